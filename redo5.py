import json,sys,subprocess,glob
from concurrent.futures import ThreadPoolExecutor
BIN,mode,which=sys.argv[1:4]  # which: healthy|open
todo=[]
for f in sorted(glob.glob('/tmp/s5_un_*.json')):
    for r in json.load(open(f)):
        if r['mode']!=mode: continue
        if which=='healthy' and r['kind']=='healthy': todo.append(r)
        if which=='open' and r['kind']=='bug' and not (r['rc']==1 and r['named']): todo.append(r)
import re
def j(r):
    d=f"/work/env/s5/dumps/{r['prog']}/{r['case']}.{r['mode']}"
    try:
        p=subprocess.run(['env','GOMAXPROCS=1',BIN,'dump',d,'--color','never'],capture_output=True,text=True,timeout=200); rc,o=p.returncode,p.stdout
    except subprocess.TimeoutExpired: rc,o='T',''
    named=re.findall(r'^  ((?:FACTOR|[A-Z][A-Z0-9]+(?:-[A-Z0-9]+)+))\b',o,re.M)
    return r,rc,named
with ThreadPoolExecutor(2) as ex:
    for r,rc,named in ex.map(j,todo):
        mark='+' if rc==1 and named and r['kind']=='bug' or r['kind']=='healthy' and rc==0 else ' '
        print(mark,r['rc'],'->',rc,r['mode'],r['prog']+'/'+r['case'],'|',r['what'][:90],'|',','.join(named),flush=True)
