"""Writes manifest.json for a folder of goldens: its producer, and versions, seed and sha256 of its files.

    python golden/gen/quant/manifest.py golden/quant golden/gen/quant/produce.py
    python golden/gen/quant/manifest.py golden/lora golden/gen/rl/produce_models.py
    python golden/gen/quant/manifest.py golden/models/gptj golden/gen/rl/produce_models.py

A section of the folder with another producer is named after the second argument: int8.json=golden/gen/rl/produce_models.py.
"""
import hashlib
import json
import os
import sys


def main(folder, producer, *others):
    versions, seeds, sums = {}, [], {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if name == "manifest.json":
                continue
            with open(path, "rb") as f:
                data = f.read()
            sums[os.path.relpath(path, folder).replace(os.sep, "/")] = hashlib.sha256(data).hexdigest()
            if name.endswith(".json"):
                about = json.loads(data)
                if "seed" in about:
                    versions |= about.get("versions", {})
                    seeds.append(about["seed"])
    manifest = {"producer": producer, "versions": dict(sorted(versions.items())), "seed": max(seeds), "sha256": dict(sorted(sums.items()))}
    if others:
        manifest["values"] = {"producers": dict(o.split("=") for o in others)}
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
