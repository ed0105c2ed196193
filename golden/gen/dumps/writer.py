"""Write dumps in the format of dump.md, the list of expectations and the manifest of golden/dumps."""
import hashlib
import json
import math
import os
import shutil

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", "dumps"))
PRODUCER = "golden/gen/dumps/produce.py"
SEED = 20261121  # names this set of goldens; every run has a seed of its own, in EXPECT.json


def finite(x):
    """JSON has no NaN: null stands for every number that is not finite."""
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return x


def write(path, tensors, meta):
    """One file of a dump. Masks are bool, ids int32, the rest keeps its dtype."""
    out = {}
    for name, t in tensors.items():
        if t is None:
            continue
        t = t.detach()
        if name in ("attention_mask", "response_mask", "dones"):
            t = t.bool()
        elif name in ("input_ids", "response_ids", "prompt_len", "group_id", "segment_ids"):
            t = t.to(torch.int32)
        out[name] = t.contiguous().clone()
    meta = dict(meta, schema=1)
    meta["scalars"] = {k: finite(v) for k, v in meta.get("scalars", {}).items()}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    save_file(out, path, metadata={"plumbline": json.dumps(meta, sort_keys=True, allow_nan=False)})
    os.chmod(path, 0o644)


def fresh(folder):
    """Empty the folder of one run below golden/dumps and return its path."""
    path = os.path.join(ROOT, folder)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def _read(name, default):
    path = os.path.join(ROOT, name)
    return json.load(open(path)) if os.path.exists(path) else default


def _write(name, value):
    path = os.path.join(ROOT, name)
    with open(path + ".part", "w") as f:
        json.dump(value, f, indent=1, sort_keys=True)
        f.write("\n")
    os.replace(path + ".part", path)


def expect(entries):
    """Merge expectations, one per folder, into EXPECT.json; folders that are gone lose theirs."""
    all_ = _read("EXPECT.json", {})
    all_.update(entries)
    for entry in all_.values():
        for place in entry.get("patched", []):
            place.pop("from", None)  # where the bug sits, not the release's own words
            place.pop("to", None)
    _write("EXPECT.json", {k: v for k, v in all_.items() if os.path.isdir(os.path.join(ROOT, k))})


def manifest(versions):
    """List every file below golden/dumps with its sha256."""
    old = _read("manifest.json", {})
    sums = {}
    for folder, _, names in os.walk(ROOT):
        for n in names:
            path = os.path.join(folder, n)
            rel = os.path.relpath(path, ROOT)
            if rel != "manifest.json" and not n.endswith(".part"):
                sums[rel] = hashlib.sha256(open(path, "rb").read()).hexdigest()
    _write("manifest.json", {
        "producer": PRODUCER, "seed": SEED,
        "versions": dict(sorted({**old.get("versions", {}), **versions}.items())),
        "sha256": dict(sorted(sums.items())),
    })
