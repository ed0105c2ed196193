"""What bitsandbytes' 8-bit Adam does on a CPU: code books, block-wise codes, and steps of the optimiser.

    python golden/gen/optim/adam8bit.py reference/optim/testdata/adam8bit.json

Needs bitsandbytes 0.50.2 and torch 2.15.0. A number of float32 is written as the float64 that it is.

The codes are those of its kernel in Python, which compares with the middles between codes as its CUDA kernel does. Its native
library for CPUs looks codes up in a table of some 2^16 entries: near zero it returns others, which are kept under "native".
"""
import ctypes
import importlib.metadata
import json
import subprocess
import sys

if sys.argv[1] != "native":  # without its library the kernels in Python are used

    def refuse(*_, **__):
        raise OSError("not loaded")

    ctypes.cdll.LoadLibrary = refuse
import bitsandbytes as bnb
import bitsandbytes.functional as functional
import numpy as np
import torch

SEED = 20261121
VERSIONS = {name: importlib.metadata.version(name) for name in ("bitsandbytes", "torch")}
assert VERSIONS["bitsandbytes"] == "0.50.2" and VERSIONS["torch"].startswith("2.15.0")
torch.set_num_threads(1)


def numbers(t):
    return [float(v) for v in t.detach().double().flatten()] if t.dtype != torch.uint8 else [int(v) for v in t.flatten()]


def blocks():
    """Vectors whose blocks a quantiser may get wrong, by name, with whether the code book is signed."""
    rng = np.random.default_rng(SEED)
    yield "normal", True, rng.standard_normal(600)
    yield "squares", False, rng.standard_normal(600) ** 2 * 1e-3
    yield "wide", True, rng.standard_normal(256) * 10.0 ** rng.uniform(-9, 0, 256)
    yield "zeros", True, np.concatenate([np.zeros(256), np.ones(3)])
    yield "zeros_unsigned", False, np.zeros(257)
    yield "one", True, np.array([-3.0])
    yield "tiny", True, np.array([1e-39, -2e-39, 0, 5e-40])
    yield "absmax_twice", True, np.array([2.0, -2.0, 1.0, -1.0, 0.5])
    for signed in (True, False):
        code = functional.create_dynamic_map(signed=signed).double().numpy()
        middle = ((code[1:] + code[:-1]) / 2).astype(np.float32)
        yield f"middles_{'signed' if signed else 'unsigned'}", signed, np.concatenate([middle, [1.0]])


def quantised():
    out = []
    for name, signed, x in blocks():
        x = torch.tensor(x, dtype=torch.float32)
        code = functional.create_dynamic_map(signed=signed)
        codes, state = functional.quantize_blockwise(x, code=code, blocksize=256)
        back = functional.dequantize_blockwise(codes, state)
        out.append(dict(name=name, signed=signed, x=numbers(x), codes=numbers(codes), absmax=numbers(state.absmax), back=numbers(back)))
    return out


def main(path):
    native = json.loads(subprocess.run([sys.executable, sys.argv[0], "native"], check=True, capture_output=True, text=True).stdout)
    out = dict(producer="golden/gen/optim/adam8bit.py", versions=VERSIONS, seed=SEED)
    out["signed"] = numbers(functional.create_dynamic_map(signed=True))
    out["unsigned"] = numbers(functional.create_dynamic_map(signed=False))
    out["blocks"] = quantised()
    for block, codes in zip(out["blocks"], native, strict=True):
        block["native"] = codes["codes"]
    out["types"] = []
    for n in (4095, 4096, 4097):
        p = torch.nn.Parameter(torch.ones(n))
        p.grad = torch.ones(n)
        o = bnb.optim.AdamW8bit([p])
        o.step()
        out["types"].append(dict(n=n, dtype=str(o.state[p]["state1"].dtype)))
    out["steps"] = []
    rng = np.random.default_rng(SEED + 1)
    for decay in (0.0, 0.1):
        p = torch.nn.Parameter(torch.tensor(rng.standard_normal(300), dtype=torch.float32))
        o = bnb.optim.AdamW8bit([p], lr=1e-2, weight_decay=decay, min_8bit_size=1)
        for step in range(3):
            g = rng.standard_normal(300) * 10.0 ** rng.uniform(-4, 0, 300)
            g[7] = 0
            p.grad = torch.tensor(g, dtype=torch.float32)
            row = dict(step=step + 1, decay=decay, lr=1e-2, grad=numbers(p.grad), before=numbers(p))
            o.step()
            s = o.state[p]
            row.update(after=numbers(p), state1=numbers(s["state1"]), state2=numbers(s["state2"]), absmax1=numbers(s["absmax1"]), absmax2=numbers(s["absmax2"]))
            out["steps"].append(row)
    with open(path, "w") as f:
        json.dump(out, f)
        f.write("\n")


if __name__ == "__main__":
    if sys.argv[1] == "native":
        print(json.dumps(quantised()))
    else:
        main(*sys.argv[1:])
