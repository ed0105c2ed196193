"""Produces golden/sampling: what the warpers of transformers leave of logits, with the probabilities of what is left.

    .venv/bin/python golden/gen/sampling.py golden/sampling      (torch 2.15.0, transformers 5.23.0)

The warpers run in float64, in the order of GenerationMixin._get_logits_processor.
"""
import hashlib
import json
import os
import platform
import sys

import torch
import transformers
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

SEED = 20260722


def main(folder):
    os.makedirs(folder, exist_ok=True)
    g = torch.Generator().manual_seed(SEED)
    rows = {
        "normal": torch.randn(24, generator=g, dtype=torch.float64) * 2,
        "peaked": torch.randn(24, generator=g, dtype=torch.float64) * 30,
        "flat": torch.randn(24, generator=g, dtype=torch.float64) * 1e-3,
        "ties": torch.tensor([1.0, 3, 2, 3, 0, 1, 2, 2, -1, 3, 1, 0], dtype=torch.float64),
        "equal": torch.zeros(8, dtype=torch.float64),
        "large": torch.randn(24, generator=g, dtype=torch.float64) + 1000,
        "masked": torch.tensor([0.5, float("-inf"), 1.5, -0.5, float("-inf"), 2.0], dtype=torch.float64),
        "one": torch.tensor([0.25], dtype=torch.float64),
    }
    cases = []
    for name, row in rows.items():
        for temperature in (1.0, 0.7, 2.5):
            for k in (0, 1, 3, 40):
                for p in (1.0, 0.9, 0.5, 0.05):
                    scores = row[None]
                    if temperature != 1:
                        scores = TemperatureLogitsWarper(temperature)(None, scores)
                    if k:
                        scores = TopKLogitsWarper(top_k=k)(None, scores)
                    if p < 1:
                        scores = TopPLogitsWarper(top_p=p)(None, scores)
                    cases.append({"row": name, "temperature": temperature, "top_k": k, "top_p": p, "probabilities": scores.softmax(-1)[0].tolist()})
    text = json.dumps({"rows": {k: [str(x) if x == float("-inf") else x for x in v.tolist()] for k, v in rows.items()}, "cases": cases}) + "\n"
    with open(os.path.join(folder, "warpers.json"), "w") as f:
        f.write(text)
    manifest = {
        "producer": "golden/gen/sampling.py",
        "versions": {"python": platform.python_version(), "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "seed": SEED,
        "sha256": {"warpers.json": hashlib.sha256(text.encode()).hexdigest()},
    }
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
