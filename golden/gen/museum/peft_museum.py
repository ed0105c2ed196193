"""PEFT: each release runs in a process of its own, imported from its wheel, and leaves what a user has on disk (peft_folders.py)."""

import os
import subprocess
import sys

import source
from scene import case

HERE = os.path.dirname(os.path.abspath(__file__))


def folders(id, variants=(("f32", 1),)):
    def make(release, variant, folder):
        env = dict(os.environ, PYTHONPATH=source.ROOTS[release.name], PYTHONHASHSEED="0", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
        done = subprocess.run([sys.executable, "-P", os.path.join(HERE, "peft_folders.py"), id, variant, folder], env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])

    make.folders = True
    case(id, variants)(make)


for id in ("peft-1355", "peft-2775", "peft-2195"):
    folders(id, (("f32", 1), ("bf16", 2)))
for id in ("peft-2104", "peft-3282", "peft-3532", "peft-2334", "peft-1884"):
    folders(id)
