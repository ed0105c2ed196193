"""Cases that golden/gen/rl/cases_visible.py leaves out: DoRA, trained biases, adapters on every layer, untied heads, one head of
keys and values, other thresholds, and rows of one element.

    python golden/gen/rl/produce_models.py --cases golden/gen/quant/cases_variants.py --out golden/variants --tokenizer none --only int8,lora,models
    rm golden/variants/checks_*.txt
    python golden/gen/quant/manifest.py golden/variants golden/gen/rl/produce_models.py
"""
import numpy as np

NAME = "variants"
SEED = 20261122


def rng(tag):
    return np.random.default_rng([SEED, sum(ord(c) * (i + 1) for i, c in enumerate(tag))])


def int8():
    g = rng("int8")
    wide = g.normal(size=(3, 40)) * 2.5
    spread = g.normal(size=(4, 6)) * np.array([[1e-3], [1.0], [50.0], [1e-7]])
    return [dict(name="threshold3", a=wide, thr=3.0), dict(name="threshold_below_all", a=np.abs(wide) + 1, thr=0.5), dict(name="one_row", a=wide[:1], thr=4.0),
            dict(name="one_column", a=spread[:, :1], thr=0.0), dict(name="one_element", a=spread[2:3, :1], thr=6.0), dict(name="random", a=spread, thr=0.0)]


LORA = [dict(name="dora_r2_a6", din=6, dout=5, r=2, alpha=6, rs=False, bias=True, ff=False, dora=True),
        dict(name="dora_rslora", din=4, dout=7, r=3, alpha=2, rs=True, bias=False, ff=False, dora=True),
        dict(name="dora_conv1d", din=5, dout=6, r=2, alpha=3, rs=False, bias=True, ff=True, dora=True),
        dict(name="r1_a1", din=3, dout=3, r=1, alpha=1, rs=False, bias=False, ff=False),
        dict(name="r8_wider_than_layer", din=4, dout=4, r=8, alpha=16, rs=True, bias=True, ff=False)]

MODELS = [dict(kind="gptj", V=23, H=16, L=1, heads=2, rot=8, r=2, alpha=3, rs=True, targets=["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"], bias="lora_only", B=3, T=5, pads=[0, 2, 1]),
          dict(kind="qwen2", V=29, H=16, L=2, heads=4, kv=1, inter=20, tie=False, r=2, alpha=7, rs=False, targets=["q_proj", "v_proj", "gate_proj", "down_proj"], bias="all", B=3, T=6, pads=[0, 0, 0], theta=1e6),
          dict(kind="gpt2", V=19, H=12, L=1, heads=3, r=3, alpha=2, rs=True, targets=["c_attn", "c_proj", "c_fc"], bias="all", B=2, T=6, pads=[3, 0])]
ADAMW = []


def grads(g, n):
    return []


def strings():
    return []
