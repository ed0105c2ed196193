import json, os, sys, copy, math, ast, shutil, torch, safetensors.torch
import torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1)
V, PAD, EOS = 24, 0, 1


class LM(nn.Module):
    def __init__(s, h=32, value=False):
        super().__init__()
        s.e = nn.Embedding(V, h)
        s.r = nn.GRU(h, h, batch_first=True)
        s.o = nn.Linear(h, V)
        s.v = nn.Linear(h, 1)
        with torch.no_grad():
            s.o.weight.mul_(2.0)
            s.o.bias[PAD] = -9.0
            s.o.bias[EOS] = -1.2

    def forward(s, x, value=False):
        h, _ = s.r(s.e(x))
        return (s.o(h), s.v(h).squeeze(-1)) if value else s.o(h)


def logps(m, ids, T, temp=1.0, fp32=True):
    lg = m(ids)[:, -T - 1 : -1]
    raw = lg
    if fp32 and lg.dtype == torch.bfloat16:
        lg = lg.float()
    lg = lg / temp
    ls = F.log_softmax(lg, -1)
    lp = ls.gather(-1, ids[:, -T:, None]).squeeze(-1)
    ent = -(ls.exp() * ls).sum(-1)
    return lp, ent, raw


def engine_of(m, bf16=True):
    return copy.deepcopy(m).bfloat16() if bf16 else copy.deepcopy(m)


@torch.no_grad()
def sample(m, eng, prompts, pmask, T, temp, g, eos=EOS):
    x, B = prompts, len(prompts)
    done = torch.zeros(B, dtype=torch.bool)
    lps, ids = [], []
    e, st = eng, None
    inp = x
    for t in range(T):
        h, st = e.r(e.e(inp), st)
        lg = e.o(h[:, -1]).float() / temp
        ls = F.log_softmax(lg, -1)
        tok = torch.multinomial(ls.exp(), 1, generator=g).squeeze(1)
        lp = ls.gather(1, tok[:, None]).squeeze(1)
        tok = torch.where(done, torch.full_like(tok, PAD), tok)
        lps.append(torch.where(done, torch.zeros_like(lp), lp))
        ids.append(tok)
        done = done | (tok == eos)
        inp = tok[:, None]
        if done.all():
            break
    R = torch.stack(ids, 1)
    L = torch.stack(lps, 1)
    ended = R == eos
    c = ended.long().cumsum(1) - ended.long()
    mask = (c == 0).long()
    return R, mask, L


def mkprompts(P, n, g, lo=3, hi=9):
    L = torch.randint(lo, hi + 1, (P,), generator=g)
    W = int(L.max())
    x = torch.zeros(P, W, dtype=torch.long)
    m = torch.zeros_like(x)
    for i in range(P):
        x[i, W - L[i] :] = torch.randint(2, V, (int(L[i]),), generator=g)
        m[i, W - L[i] :] = 1
    return x.repeat_interleave(n, 0), m.repeat_interleave(n, 0)


class Out:
    def __init__(s, out, prog, case, declared=()):
        s.d = os.path.join(out, f"{prog}-{case}")
        shutil.rmtree(s.d, ignore_errors=True)
        os.makedirs(s.d + "/run")
        json.dump(
            dict(program=prog, healthy=True, bug="", legal="", describes="healthy: " + case, sealed=False, declared=list(declared)),
            open(s.d + "/expected.json", "w"),
            indent=1,
        )

    def write(s, t, meta):
        t = {k: (x.detach().contiguous().clone() if torch.is_tensor(x) else x) for k, x in t.items() if x is not None}
        p = f"{s.d}/run/step_{meta['step']:06d}_rank_{meta.get('rank', 0)}_mb_{meta.get('micro_batch', 0)}.safetensors"
        assert not os.path.exists(p)
        safetensors.torch.save_file(t, p, {"plumbline": json.dumps(meta, allow_nan=False)})


def cut(path, names, ns, cls=None):
    tree = ast.parse(open(path).read())
    body = tree.body
    if cls:
        body = [c for c in tree.body if isinstance(c, ast.ClassDef) and c.name == cls][0].body
    for f in body:
        if isinstance(f, ast.FunctionDef) and f.name in names:
            if not cls or True:
                f.decorator_list = [d for d in f.decorator_list if "no_grad" in ast.unparse(d)]
            f.returns = None
            for a in f.args.args + f.args.kwonlyargs:
                a.annotation = None
            exec(compile(ast.Module([f], []), path, "exec"), ns)
    return ns


def main(prog, cases, fn):
    out = sys.argv[1]
    want = sys.argv[2:]
    for c in cases:
        if not want or c in want:
            fn(out, c)
