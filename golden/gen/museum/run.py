"""Rebuilds the museum: python run.py WHEELS OUT [--only TEXT]. WHEELS is the folder that wheels.py wrote.

Each row of golden/museum/rows is run in its affected and in its fixed release, on the same inputs. What cannot be run says so in
EXPECT.json and is not counted.
"""

import argparse
import json
import os
import shutil
import sys
import traceback
from importlib import metadata

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "strangers")]
import torch

torch.set_num_threads(1)
import source
from scene import CASES, manifest
from writer import write

for part in ("trl", "verl_museum", "openrlhf_museum", "supervised", "preference", "distill", "collated", "engines", "peft_museum"):
    if os.path.exists(os.path.join(HERE, part + ".py")):
        __import__(part)


class Release(source.Release):
    def __init__(self, name):
        super().__init__(name)
        self.name = name


def rows(path):
    for line in open(path, encoding="utf-8"):
        if line.strip() and not line.startswith("#"):
            id, framework, issue, affected, fixed, names, stages, what = (x.strip() for x in line.split(" | "))
            yield dict(id=id, framework=framework, issue=issue, affected=affected, fixed=fixed, names=[n for n in names.split() if n != "-"], stages=stages.split(), what=what)


def make(row, out):
    f, variants = CASES[row["id"]]
    for side in ("affected", "fixed"):
        for dtype, seed in variants:
            folder = os.path.join(out, row["id"], side, f"{dtype}-{seed}")
            shutil.rmtree(folder, ignore_errors=True)
            if getattr(f, "folders", False):  # it writes folders of weights itself
                f(Release(row[side]), f"{dtype}-{seed}", folder)
                continue
            for tensors, m in f(Release(row[side]), side, seed, dtype):
                write(folder, tensors, m)
            if not os.path.isdir(folder):
                raise RuntimeError("nothing was written")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("wheels"), p.add_argument("out"), p.add_argument("--only", default="")
    a = p.parse_args()
    source.unpacked(a.wheels)
    listed = list(rows(os.path.join(a.out, "rows")))
    path = os.path.join(a.out, "EXPECT.json")
    done = {r["id"]: r for r in json.load(open(path))} if os.path.exists(path) else {}
    for row in listed:
        if a.only not in row["id"] and row["id"] not in a.only.split(","):
            if row["id"] in done:
                row.update({k: v for k, v in done[row["id"]].items() if k == "left_out"})
            else:
                row["left_out"] = "not rebuilt"
            continue
        if row["id"] not in CASES:
            row["left_out"] = "not rebuilt"
            continue
        try:
            make(row, a.out)
        except Exception as e:
            shutil.rmtree(os.path.join(a.out, row["id"]), ignore_errors=True)
            row["left_out"] = f"{type(e).__name__}: {e}"
            print(row["id"], traceback.format_exc())
    for row in listed:
        row["control"] = row["id"].startswith("c-")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(listed, f, indent=1, ensure_ascii=False)
        f.write("\n")
    sums = manifest(a.out, a.wheels, "golden/gen/museum/run.py", 1, {r[k] for r in listed for k in ("affected", "fixed")}, transformers=metadata.version("transformers"))
    made = [r for r in listed if "left_out" not in r]
    print(f"{len(made)} of {len(listed)} rows, {sum(os.path.getsize(os.path.join(a.out, k)) for k in sums)} bytes")


if __name__ == "__main__":
    main()
