"""Runs the programs p_*.py: python make.py OUT [--only PROGRAM] [--seeds N]. Every case is reproducible from its program, seed and bug.

A bug is an edit of the program's own text or of the text of the release that it runs, (name, description, knobs it needs, edits). The healthy
run of the same seed and knobs is written beside it; a bug whose numbers equal those is not written.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.environ.get("PLUMBLINE", os.path.join(HERE, "../../../../cmd/verify/wheel"))]

import frames  # noqa: E402
import torch  # noqa: E402
import world  # noqa: E402
from safetensors import safe_open  # noqa: E402

torch.set_num_threads(1)
PROGRAMS = sorted(n[:-3] for n in os.listdir(HERE) if n.startswith("p_"))


def load(name, edits=()):
    """The program as a module of its own, with the edits of its own text."""
    path = os.path.join(HERE, name + ".py")
    with open(path) as f:
        src = f.read()
    cut = src.index("\nBUGS = ")
    own = [(a, b) for where, a, b in edits if where == "self"]
    src = frames.apply(src[:cut], own, name) + src[cut:]
    mod = type(sys)(name)
    mod.__file__ = path
    exec(compile(src, path, "exec"), vars(mod))
    return mod


def run(name, seed, out, fixed, edits=()):
    mod = load(name, edits)
    k = world.Knobs(f"{name} {seed}", fixed)
    k.__dict__["seed"] = zlib.crc32(f"{name} {seed}".encode()) % 100000
    k.__dict__["edits"] = lambda where: [(a, b) for w, a, b in edits if w == where]
    mod.knobs(k)
    torch.manual_seed(k.seed)
    return mod.main(out, k), dict(k)


def tensors(folder):
    got = {}
    for at, _, files in os.walk(folder):
        for f in sorted(files):
            if f.endswith(".safetensors"):
                with safe_open(os.path.join(at, f), "pt") as s:
                    got[f] = ({n: s.get_tensor(n) for n in s.keys()}, json.loads(s.metadata()["plumbline"]).get("scalars", {}))
    return got


def shown(a, b):
    """The first tensor or number that differs between the runs, in the order of the files; nothing if none does."""
    for f in sorted(a):
        if f not in b:
            return f"{f}: missing"
        (ta, sa), (tb, sb) = a[f], b[f]
        for n in sorted(set(ta) | set(tb)):
            if n not in ta or n not in tb or ta[n].shape != tb[n].shape or ta[n].dtype != tb[n].dtype:
                return f"{f}: {n}"
            x, y = ta[n].double(), tb[n].double()
            d = (x - y).nan_to_num(nan=1.0).abs().max().item() if x.numel() and not torch.equal(x, y) else 0.0
            if d > 1e-6:
                return f"{f}: {n} by {d:.3g}"
        for n in sorted(set(sa) & set(sb)):
            if sa[n] is not None and sb[n] is not None and abs(sa[n] - sb[n]) > 1e-6 * max(1, abs(sa[n])):
                return f"{f}: scalar {n} by {abs(sa[n] - sb[n]):.3g}"
    return ""


def case(name, seed, bug, out, sealed):
    label = bug[0] if bug else "healthy"
    to = os.path.join(out, f"{name[2:]}-{seed}-{label}")
    part = tempfile.mkdtemp(dir=out, prefix=".part")
    try:
        declared, k = run(name, seed, part, bug[2] if bug else None, bug[3] if bug else ())
    except BaseException:
        shutil.rmtree(part)
        raise
    e = dict(program=name[2:], seed=seed, healthy=not bug, bug=label if bug else "", describes=bug[1] if bug else "", declared=declared, sealed=sealed, knobs=k)
    return to, part, e


def write(to, part, e):
    with open(os.path.join(part, "expected.json"), "w") as f:
        json.dump(e, f, indent=1, default=str)
    os.chmod(part, 0o755)
    shutil.rmtree(to, ignore_errors=True)
    os.rename(part, to)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--only", nargs="*")
    p.add_argument("--bug")
    p.add_argument("--seeds", type=int, default=4)
    p.add_argument("--first", type=int, default=1)
    p.add_argument("--no-bugs", action="store_true")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for i, name in enumerate(sorted(PROGRAMS)):
        if a.only and name[2:] not in a.only:
            continue
        order = json.load(open(os.path.join(HERE, "order.json")))
        sealed = order.index(name[2:]) % 2 == 1
        for seed in range(a.first, a.first + a.seeds) if not a.bug else ():
            try:
                write(*case(name, seed, None, a.out, sealed))
            except Exception:
                print(f"{name} {seed} healthy", traceback.format_exc(limit=-3), flush=True)
        if a.no_bugs:
            continue
        for j, bug in enumerate(load(name).BUGS):
            if a.bug and a.bug != bug[0]:
                continue
            seed = 100 + j
            try:
                to, twin, e = case(name, seed, (bug[0], "", bug[2], ()), a.out, sealed)
                write(os.path.join(a.out, f"{name[2:]}-{seed}-healthy"), twin, dict(e, healthy=True, bug="", describes=""))
                healthy = tensors(os.path.join(a.out, f"{name[2:]}-{seed}-healthy"))
                to, part, e = case(name, seed, bug, a.out, sealed)
                s = shown(healthy, tensors(part))
                if s:
                    write(to, part, dict(e, shown=s))
                else:
                    shutil.rmtree(part)
                    print(f"{name} {seed} {bug[0]}: not visible", flush=True)
            except Exception:
                print(f"{name} {seed} {bug[0]}", traceback.format_exc(limit=-3), flush=True)


if __name__ == "__main__":
    main()
