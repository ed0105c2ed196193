"""Writes the cases of the bench: python run.py OUT [--only TEXT] [--jobs N]. Healthy twins of bugs are written beside them and compared."""

import argparse
import dataclasses
import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import traceback

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch
from safetensors import safe_open

import names
import source

PARTS = ("trl", "verl", "openrlhf", "ppo", "loops", "history", "second")


def all_cases():
    out = []
    for kind in ("healthy", "bugs"):
        for k, part in enumerate(PARTS):
            if os.path.exists(os.path.join(HERE, f"{kind}_{part}.py")):
                out += importlib.import_module(f"{kind}_{part}").cases(1000 * (k + 1) + (500 if kind == "bugs" else 0))
    for c in out:
        c.names += tuple(names.MORE.get(c.id, ()))
    ids = [c.id for c in out]
    assert len(set(ids)) == len(ids), [i for i in ids if ids.count(i) > 1]
    return seeded(out)


def read(path):
    with safe_open(path, "pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, json.loads(f.metadata()["plumbline"])


def differs(a, b):
    """The first number by which two runs differ beyond rounding: what the bug shows in the dump."""
    for n in sorted(os.listdir(a)):
        if not os.path.exists(os.path.join(b, n)):
            return f"{n}: only in one"
        (x, mx), (y, my) = read(os.path.join(a, n)), read(os.path.join(b, n))
        for k in sorted(set(x) | set(y)):
            if k not in x or k not in y or x[k].shape != y[k].shape:
                return f"{n}: {k} differs in shape"
            p, q = x[k].double(), y[k].double()
            if p.isnan().ne(q.isnan()).any():
                return f"{n}: {k} NaN"
            d = (p - q).nan_to_num().abs().max().item() if p.numel() else 0.0
            if d > 1e-5 * max(1e-3, p.nan_to_num().abs().max().item()):
                return f"{n}: {k} by {d:.3g}"
        for k in set(mx["scalars"]) | set(my["scalars"]):
            p, q = mx["scalars"].get(k), my["scalars"].get(k)
            if (p is None) != (q is None) or p is not None and abs(p - q) > 1e-5 * max(1e-3, abs(p)):
                return f"{n}: scalar {k}"
    return ""


BUG_KEYS = ("calls", "stale_engine", "raw_logps", "engine_top_p", "driver", "old_rolled")


def seeded(cases):
    """Bugs of one configuration share seed and healthy twin (those of TRL GRPO were numbered before)."""
    seeds = {}
    for c in cases:
        if c.bug and c.producer != "trl_grpo":
            key = repr((c.producer, sorted((k, repr(v)) for k, v in c.cfg.items() if k not in BUG_KEYS), c.dtype))
            c.seed = seeds.setdefault(key, c.seed)
    return cases


def twin(case):
    """The same without the bug; of a rebuilt case, the fixed release."""
    cfg = {k: v for k, v in case.cfg.items() if k not in BUG_KEYS} | case.cfg.get("fixed", {})
    return dataclasses.replace(case, edits=(), cfg=cfg)


def one(job):
    case, out = job
    torch.set_num_threads(1)
    folder = os.path.join(out, case.id)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        module = importlib.import_module(case.producer)
        module.run(case, folder)
        shown = ""
        if case.bug:
            t = twin(case)
            key = hashlib.sha256(repr((t.producer, sorted((k, repr(v)) for k, v in t.cfg.items()), t.dtype, t.seed)).encode()).hexdigest()[
                :16
            ]
            other = os.path.join(out, ".twins", key)
            if not os.path.isdir(other):
                part = f"{other}.{os.getpid()}"
                shutil.rmtree(part, ignore_errors=True)
                module.run(t, part)
                if not os.path.isdir(other):
                    os.rename(part, other)
            shown = differs(folder, other)
            if not shown:
                return case.id, "NOT VISIBLE", ""
        return case.id, "", shown
    except Exception as e:
        shutil.rmtree(folder, ignore_errors=True)
        return case.id, f"{type(e).__name__}: {e} {traceback.format_exc().splitlines()[-3]}", ""


def index_write(cases, shown, known, broken, index, stamp, only):
    """cases.json: what is in the folder and finished."""
    bad = {b[0] for b in broken}
    for c in cases:
        if c.id in bad:
            known.pop(c.id, None)
        elif c.id in shown or c.id in known and known[c.id].get("stamp") == stamp(c):
            known[c.id] = dict(
                id=c.id,
                producer=c.producer,
                dtype=c.dtype,
                seed=c.seed,
                what=c.what,
                family=c.family,
                bug=c.bug,
                names=list(c.names),
                stages=list(c.stages),
                stamp=stamp(c),
                shown=shown[c.id] if c.id in shown else known[c.id].get("shown", ""),
            )
    if not only:
        ids = {c.id for c in cases}
        for id in [k for k in known if k not in ids]:
            known.pop(id)
    with open(index + ".part", "w") as f:
        json.dump(sorted(known.values(), key=lambda c: c["id"]), f, indent=1)
    os.replace(index + ".part", index)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out"), p.add_argument("--only", default=""), p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--wheels", default=os.environ.get("STRANGERS_WHEELS", "wheels")), p.add_argument("--fresh", action="store_true")
    a = p.parse_args()
    source.unpacked(a.wheels)
    os.makedirs(a.out, exist_ok=True)
    index = os.path.join(a.out, "cases.json")
    known = {c["id"]: c for c in json.load(open(index))} if os.path.exists(index) and not a.fresh else {}
    cases = [c for c in all_cases() if a.only in c.id]
    critic = lambda c: (
        c.producer == "trl_ppo"
        or "gae" in repr(c.cfg)
        or c.cfg.get("loop") in ("cleanrl", "oai")
        or c.producer == "openrlhf_"
        and "algo.advantage.estimator" not in c.cfg["args"]
    )
    version = lambda c: ("critic from the seed",) * critic(c)
    stamp = lambda c: hashlib.sha256(repr((sorted(c.cfg.items()), c.dtype, c.seed, c.edits, *version(c))).encode()).hexdigest()[:16]
    todo = [c for c in cases if c.id not in known or known[c.id].get("stamp") != stamp(c) or not os.path.isdir(os.path.join(a.out, c.id))]
    broken = []
    with multiprocessing.get_context("fork").Pool(a.jobs) as pool:
        shown = {}
        for i, (id, error, show) in enumerate(pool.imap_unordered(one, [(c, a.out) for c in todo])):
            if error:
                broken.append((id, error))
                print(f"{id}: {error}", flush=True)
            shown[id] = show
            if i % 20 == 19:
                index_write(cases, shown, known, broken, index, stamp, a.only)
    index_write(cases, shown, known, broken, index, stamp, a.only)
    print(f"{len(known)} cases, {sum(c['bug'] for c in known.values())} bugs, {len(broken)} broken")


if __name__ == "__main__":
    main()
