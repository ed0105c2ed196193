"""Section int8_layers: what bitsandbytes' int8 layers and PEFT's merge into them return on a CPU.

    python golden/gen/quant/produce.py golden/quant

Needs bitsandbytes 0.50.2, peft 0.21.2 and torch 2.15.0. int8.json and int8.safetensors, of the same folder, come from
golden/gen/rl/produce_models.py.
"""
import importlib.metadata
import os
import sys
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rl"))
import bitsandbytes as bnb
import bitsandbytes.functional as functional
import numpy as np
import peft
import torch
from peft.tuners.lora.bnb import Linear8bitLt as LoraLinear8bit
from record import Section

SEED = 20260704
VERSIONS = {name: importlib.metadata.version(name) for name in ("bitsandbytes", "peft", "torch")}
assert VERSIONS["bitsandbytes"] == "0.50.2" and VERSIONS["peft"] == "0.21.2" and VERSIONS["torch"].startswith("2.15.0")
warnings.simplefilter("ignore")
torch.set_num_threads(1)
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def generator(name):
    return np.random.default_rng([SEED, *name.encode()])


def awkward():
    """Matrices whose rows a quantiser may get wrong, with their thresholds."""
    nan, inf = float("nan"), float("inf")
    below = float(np.nextafter(np.float16(6), np.float16(0)))
    yield "not_finite", 0.0, [[1, nan, -2, 0.5], [inf, 1, -1, 0], [-inf, 3, inf, 1], [1, 2, 3, 4]]
    yield "subnormal", 0.0, [[6e-8, -1.2e-7, 0, 6e-8], [1e-5, -3e-6, 2e-6, 1.5e-5], [65504, -1, 0.25, -65504], [0, 0, 0, 0]]
    yield "tiny", 0.0, [[1e-36, -5e-37, 3e-37, 0], [1e-38, -4e-39, 2e-39, 0], [1e-40, 3e-41, -7e-41, 0]]
    yield "threshold_exact", 6.0, [[6, 1, -0.5, 2], [0.1, below, 0.3, -3], [0.5, -0.25, 1, 4]]
    yield "threshold_one_row", 6.0, [[7, 1, -0.5, 5.5, -9]]
    yield "threshold_all", 6.0, [[7, -8], [9, 60]]
    yield "threshold_none", 6.0, [[1, -2, 3], [0.5, 5.9, -4]]
    yield "threshold_rounded", 2.1, [[2.1, 2.0996, 2.0977, 2.1016], [1, 2, -1, 0.5]]
    yield "threshold_absmax_in_column", 6.0, [[7, 0.5, -0.25], [5.5, 1, 0.3]]


def quantised(x, threshold):
    codes, scales, columns = functional.int8_vectorwise_quant(x, threshold=threshold)
    out = dict(codes=codes, scales=scales, dequantised=functional.int8_vectorwise_dequant(codes, scales))
    if columns is not None:
        out["outlier_cols"] = columns
    return out


def layer(w, b, threshold, training):
    n_out, n_in = w.shape
    linear = bnb.nn.Linear8bitLt(n_in, n_out, bias=b is not None, has_fp16_weights=False, threshold=threshold)
    linear.weight = bnb.nn.Int8Params(torch.from_numpy(w).float(), requires_grad=False, has_fp16_weights=False)
    if b is not None:
        linear.bias = torch.nn.Parameter(torch.from_numpy(b).float())
    return linear.to("cpu").train(training)


def main(folder):
    section = Section("int8_layers", folder, VERSIONS, SEED)

    def add(case, peer, function, options, inputs, outputs, note=None):
        section.entry(case, peer, function, "import", options, inputs, outputs, note=note)

    for name, threshold, rows in awkward():
        for dtype, t in TYPES.items():
            if name == "tiny" and dtype == "float16":
                continue
            x = torch.tensor(rows, dtype=torch.float64).to(t)
            kept = x.clone()
            add(f"{name}_{dtype}", "bitsandbytes", "functional.int8_vectorwise_quant / int8_vectorwise_dequant", dict(threshold=threshold, dtype=dtype, device="cpu"),
                dict(A=kept), quantised(x, threshold))

    # weights with a row of zeros, activations with two outlier columns and an absmax inside one of them
    for name, n, width, n_out, threshold, bias in (("plain", 5, 12, 7, 0.0, True), ("outliers", 6, 12, 7, 6.0, True), ("no_outliers", 4, 9, 5, 6.0, False), ("one_row", 1, 10, 4, 6.0, True)):
        g = generator(name)
        w, b, x = g.normal(size=(n_out, width)) * 0.3, g.normal(size=n_out), g.normal(size=(n, width))
        w[2] = 0
        if name in ("outliers", "one_row"):
            x[0, 3], x[n // 2, 8] = 9.25, -31.5
        for dtype, t in TYPES.items():
            for training in (False, True):
                linear = layer(w, b if bias else None, threshold, training)
                a = torch.from_numpy(x).to(t).requires_grad_(True)
                y = linear(a)
                dy = torch.from_numpy(generator(name + " dy").normal(size=tuple(y.shape))).to(t)
                y.backward(dy)
                inputs = dict(W=torch.from_numpy(w).float(), X=a.detach().clone(), dY=dy)
                if bias:
                    inputs["b"] = torch.from_numpy(b).float()
                add(f"{name}_{dtype}_{'training' if training else 'eval'}", "bitsandbytes", "nn.Linear8bitLt", dict(threshold=threshold, dtype=dtype, training=training, device="cpu"),
                    inputs, dict(codes=linear.weight.data, scales=linear.state.SCB, y=y.detach(), dX=a.grad))

    for dtype in ("float32", "bfloat16", "float16"):
        name = "merge_" + dtype
        g = generator(name)
        w, rank = g.normal(size=(6, 10)), 3
        w[4] = 0
        base = layer(w, None, 0.0, False)
        lora = LoraLinear8bit(base, "default", r=rank, lora_alpha=6, config=peft.LoraConfig(r=rank, lora_alpha=6, lora_dropout=0.0))
        a, b = (torch.from_numpy(g.normal(size=s) * 0.4).to(TYPES[dtype]) for s in ((rank, 10), (6, rank)))
        lora.lora_A.default.weight.data, lora.lora_B.default.weight.data = a.clone(), b.clone()
        before = base.weight.data.clone(), base.weight.SCB.clone()
        delta = lora.get_delta_weight("default").detach().clone()
        lora.merge()
        merged = lora.get_base_layer().weight
        out = dict(codes=merged.data.clone(), scales=merged.SCB.clone())
        lora.unmerge()
        back = lora.get_base_layer().weight
        out |= dict(unmerged_codes=back.data.clone(), unmerged_scales=back.SCB.clone())
        add(name, "peft", "tuners.lora.bnb.Linear8bitLt merge, unmerge", dict(dtype=dtype), dict(codes=before[0], scales=before[1], delta=delta), out)

    section.close(dict(set="layers"))


if __name__ == "__main__":
    main(sys.argv[1])
