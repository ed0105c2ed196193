"""Writes manifest.json of golden/checkpoint: what produce.py, activations.py, activations_sweep.py, prompt.py, grpo.py and sizes.py have made.

    python golden/gen/checkpoint/manifest.py golden/checkpoint
"""
import hashlib
import json
import os
import sys


def write(folder):
    with open(os.path.join(folder, "EXPECT.json")) as f:
        made = json.load(f)
    sums = {}
    for d, _, files in os.walk(folder):
        for name in files:
            path = os.path.relpath(os.path.join(d, name), folder)
            if path != "manifest.json":
                with open(os.path.join(d, name), "rb") as f:
                    sums[path] = hashlib.sha256(f.read()).hexdigest()
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump({"producer": made["producer"], "versions": made["versions"], "seed": made["seed"], "sha256": dict(sorted(sums.items()))}, f, indent=1)


if __name__ == "__main__":
    write(sys.argv[1])
