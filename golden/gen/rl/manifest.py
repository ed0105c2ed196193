"""Writes manifest.json for a folder of sections that produce_rl.py and produce_models.py have made.

    python golden/gen/rl/manifest.py golden/rl
"""
import hashlib
import json
import os
import sys


def main(folder):
    versions, seeds, sums = {}, set(), {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name == "manifest.json":
            continue
        with open(path, "rb") as f:
            data = f.read()
        sums[name] = hashlib.sha256(data).hexdigest()
        if name.endswith(".json"):
            section = json.loads(data)
            versions |= section["versions"]
            seeds.add(section["seed"])
    (seed,) = seeds
    manifest = {"producer": "golden/gen/rl/produce_rl.py", "versions": dict(sorted(versions.items())), "seed": seed, "sha256": sums}
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
