"""Judges the cases of make.py: python grade.py VERIFY CASES ROWS.json [--only PROGRAM…] [--undeclared N] [--grades FILE] [--jobs N].

A row: exit code, CPU seconds, the first finding (name, title) and the others. Whether a name is right was graded by a person, in a file of
lines CASE<TAB>NAME<TAB>named|misnamed|unnamed (unnamed: the place is right and no cause is given); what has no line reads "to grade".
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor


def judge(verify, folder, flags):
    p = subprocess.Popen([verify, "dump", folder + "/run", *flags, "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    err = []
    reader = threading.Thread(target=lambda: err.append(p.stderr.read()))
    reader.start()
    out = p.stdout.read()
    reader.join()
    _, status, use = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    try:
        rep = json.loads(out)
    except ValueError:
        rep = {}
    return p.returncode, use.ru_utime + use.ru_stime, rep, err[0].decode()[-300:].strip()


def fisher(a, b, c, d):
    """Two-sided p of Fisher's exact test on [[a, b], [c, d]]."""
    n, r, s = a + b + c + d, a + b, a + c

    def chance(x):
        return math.comb(r, x) * math.comb(n - r, s - x) / math.comb(n, s)

    return min(1.0, sum(chance(x) for x in range(max(0, s - n + r), min(r, s) + 1) if chance(x) <= chance(a) * (1 + 1e-9)))


def flags_of(e, undeclared, folder):
    return ["--profile", "none"] if undeclared else [x.replace("CASE", folder) for x in e["declared"]]


def row(verify, cases, c, undeclared):
    with open(os.path.join(cases, c, "expected.json")) as f:
        e = json.load(f)
    code, cpu, rep, err = judge(verify, os.path.join(cases, c), flags_of(e, undeclared, os.path.join(cases, c)))
    found = [{k: x.get(k, "") for k in ("name", "verdict", "title", "evidence")} for x in rep.get("findings", [])]
    undet = [f"{r['check']}: {r.get('detail', r.get('title', ''))}"[:160] for r in rep.get("results", []) if r["verdict"] == "UNDETERMINED"]
    return dict(case=c, program=e["program"], healthy=e["healthy"], bug=e["bug"], describes=e["describes"], sealed=e["sealed"], code=code, cpu=cpu, findings=found, undetermined=undet, headline=rep.get("headline", err))


def grades(path):
    got = {}
    if path and os.path.exists(path):
        with open(path) as f:
            for line in f:
                if line.strip() and not line.startswith("#"):
                    c, name, g = line.rstrip("\n").split("\t")
                    got[c, name] = g
    return got


def grade(r, known):
    first = r["findings"][0]["name"] if r["findings"] else ""
    if r["code"] not in (1,):
        return "missed" if r["code"] == 0 else "undetermined"
    if "/" in first or not first:
        return "unnamed"
    return known.get((r["case"], first), "to grade")


def table(rows, known, title):
    h, b = [r for r in rows if r["healthy"]], [r for r in rows if not r["healthy"]]
    g = [grade(r, known) for r in b]
    n = {x: g.count(x) for x in ("named", "misnamed", "unnamed", "to grade", "undetermined", "missed")}
    caught = sum(r["code"] == 1 for r in b)
    alarms, und = sum(r["code"] not in (0, 6, 5) for r in h), sum(r["code"] in (5, 6) for r in h)
    cpu = sorted(r["cpu"] for r in rows) or [0]
    print(f"{title}: healthy {len(h)}, false alarms {alarms}, undetermined {und}; bugs {len(b)}, caught {caught} ({100 * caught / max(1, len(b)):.1f} %), {n}; "
          f"CPU s median {cpu[len(cpu) // 2]:.1f}, most {cpu[-1]:.1f}")
    return alarms + und, len(h), caught, n["named"], len(b)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("verify"), p.add_argument("cases"), p.add_argument("rows")
    p.add_argument("--only", nargs="*"), p.add_argument("--undeclared", type=int, default=0), p.add_argument("--grades")
    p.add_argument("--jobs", type=int, default=2), p.add_argument("--half", choices=["open", "sealed"]), p.add_argument("--reuse", action="store_true")
    a = p.parse_args()
    names = sorted(n for n in os.listdir(a.cases) if os.path.exists(os.path.join(a.cases, n, "expected.json")))
    names = [n for n in names if not a.only or n.split("-")[0] in a.only]
    if a.undeclared:
        names = sorted(random.Random(16).sample(names, min(a.undeclared, len(names))))
    if a.reuse:
        with open(a.rows) as f:
            rows = json.load(f)
    else:
        with ThreadPoolExecutor(a.jobs) as ex:
            rows = list(ex.map(lambda c: row(a.verify, a.cases, c, a.undeclared > 0), names))
    rows = [r for r in rows if not a.half or r["sealed"] == (a.half == "sealed")]
    with open(a.rows, "w") as f:
        json.dump(rows, f, indent=1)
    known = grades(a.grades)
    for r in rows:
        if r["healthy"] and r["code"] == 0:
            continue
        f = r["findings"][0] if r["findings"] else dict(name="-", title=r["headline"])
        g = "FALSE ALARM" if r["healthy"] and r["code"] not in (0, 5, 6) else "healthy, undetermined" if r["healthy"] else grade(r, known)
        print(f"{r['case']}\t{g}\t{r['code']}\t{r['cpu']:.1f} s\t{f['name']}\t{f['title'][:150]}\t| {r['describes']}" + (f"\t{r['undetermined'][:2]}" if r["code"] in (5, 6) else ""))
    print()
    halves = [table([r for r in rows if r["sealed"] == s], known, t) for s, t in ((False, "open  "), (True, "sealed"))]
    (ao, ho, co, no, bo), (as_, hs, cs, ns, bs) = halves
    if bo and bs:
        print(f"Fisher's exact test, open against sealed: alarms p {fisher(ao, ho - ao, as_, hs - as_):.3f}, caught p {fisher(co, bo - co, cs, bs - cs):.3f}, named p {fisher(no, bo - no, ns, bs - ns):.3f}")


if __name__ == "__main__":
    sys.exit(main())
