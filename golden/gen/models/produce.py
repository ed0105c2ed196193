"""Writes golden/models: maskedgpt, judge, arcagent, llama and qwen2b.

    python -m venv .venv && .venv/bin/pip install -r golden/gen/models/requirements.txt
    .venv/bin/python golden/gen/models/produce.py golden/models [--only NAME] [--nanogpt DIR] [--arcefe DIR]

DIR is a checkout of a public repository whose own code checks ours, see nanogpt.py and arc.py; without it golden.json has
no peer_check, and nothing else changes.
"""
import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

import arc
import hf
import nanogpt

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
arguments = argparse.ArgumentParser()
arguments.add_argument("out")
arguments.add_argument("--only", default="")
arguments.add_argument("--nanogpt", default="")
arguments.add_argument("--arcefe", default="")
a = arguments.parse_args()
for name, make in {
    "maskedgpt": lambda: nanogpt.language_model(a.out, a.nanogpt),
    "judge": lambda: nanogpt.judge(a.out, a.nanogpt),
    "arcagent": lambda: arc.agent(a.out, a.arcefe),
    "llama": lambda: hf.llama(a.out),
    "qwen2b": lambda: hf.qwen2(a.out),
}.items():
    if a.only in ("", name):
        make()
        print(name, flush=True)
