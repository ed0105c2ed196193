"""Keeps a tenth of the open half in the repository: python store.py CASES ROWS ROOT [NAME COUNT].

With NAME and COUNT, as many open cases whose ids contain NAME are added to what is there, and those of that name before them removed.

ROWS is what judge.py wrote. A stored case is small and quick; EXPECT.json says what must come of it: healthy runs must not fail, and of
the bugs those that were caught, and those named first, must stay so; the rest are listed as missed.
"""

import hashlib
import json
import os
import shutil
import sys

from case import SEED, half

VERSIONS = {
    "torch": "2.15.0",
    "trl": "1.16.0",
    "trl (PPO)": "1.12.0",
    "verl": "0.9.1",
    "openrlhf": "0.11.2",
    "safetensors": "0.8.0",
    "history": "trl 0.15.2 to 1.9.0, verl 0.8.0 and 0.9.0",
}
BYTES, SECONDS, QUICK, TOTAL = 160_000, 1.5, 0.5, 9_000_000


def main():
    cases, rows, root, name, count = (sys.argv[1:] + ["", "0"])[:5]
    rows = {r["id"]: r for r in json.load(open(rows)) if r["declared"]}
    expect, sums, total = {}, {}, 0
    if name:
        expect = {k: v for k, v in json.load(open(os.path.join(root, "EXPECT.json"))).items() if name not in k}
        sums = {k: v for k, v in json.load(open(os.path.join(root, "manifest.json")))["sha256"].items() if k.split("/")[0] in expect}
        total = sum(os.path.getsize(os.path.join(root, k)) for k in sums)
        for k in os.listdir(root):
            if name in k:
                shutil.rmtree(os.path.join(root, k))
    else:
        shutil.rmtree(root, ignore_errors=True)
        os.makedirs(root)
    order = sorted(json.load(open(os.path.join(cases, "cases.json"))), key=lambda c: hashlib.sha256(c["id"].encode()).hexdigest())
    wanted = len(expect) + int(count) if name else len(order) // 10
    for c in order:
        r, folder = rows.get(c["id"]), os.path.join(cases, c["id"])
        if r is None or half(c) != "open" or len(expect) == wanted or name not in c["id"]:
            continue
        size = sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder))
        if size > BYTES or total + size > TOTAL or r["cpu"] > (QUICK if name else SECONDS):
            continue
        total += size
        shutil.copytree(folder, os.path.join(root, c["id"]))
        for n in sorted(os.listdir(folder)):
            os.chmod(os.path.join(root, c["id"], n), 0o644)
            sums[f"{c['id']}/{n}"] = hashlib.sha256(open(os.path.join(root, c["id"], n), "rb").read()).hexdigest()
        e = dict(what=c["what"], producer=c["producer"], dtype=c["dtype"], seed=c["seed"], bug=c["bug"])
        if c["bug"]:
            e.update(
                names=c["names"],
                stages=c["stages"],
                shown=c["shown"],
                caught=bool(r["caught"] and r["stage"]),
                named=bool(r["named"] and r["caught"]),
            )
        else:
            e["exit"] = r["exit"]
        expect[c["id"]] = e
    with open(os.path.join(root, "EXPECT.json"), "w") as f:
        json.dump(expect, f, indent=1, sort_keys=True, ensure_ascii=False)
        f.write("\n")
    sums["EXPECT.json"] = hashlib.sha256(open(os.path.join(root, "EXPECT.json"), "rb").read()).hexdigest()
    with open(os.path.join(root, "manifest.json"), "w") as f:
        json.dump(
            {"producer": "golden/gen/strangers/run.py", "seed": SEED, "versions": VERSIONS, "sha256": dict(sorted(sums.items()))},
            f,
            indent=1,
        )
        f.write("\n")
    print(f"{len(expect)} cases, {total} bytes")


if __name__ == "__main__":
    main()
