"""Writes reference/nn/testdata/layers.json: layers of torch and transformers on random float64 inputs, with gradients.

usage: python layers.py OUT      (requirements.txt)

An entry has the layer, the function that was called, its options, inputs {name: [shape, elements]}, the output, and the
gradient of Σ output·cotangent for each input that has one.
"""

import json
import sys

import torch
import torch.nn.functional as F
import transformers

SEED = 20261122

# transformers computes rotary tables in float32; it looks the type up when it runs.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)

from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

g = torch.Generator().manual_seed(SEED)
entries = []


def normal(*shape, scale=1.0):
    return (torch.randn(shape, generator=g) * scale).requires_grad_()


def flat(x):
    return [list(x.shape), x.detach().reshape(-1).tolist()]


def entry(layer, function, inputs, f, **options):
    y = f(**inputs)
    cotangent = torch.randn(y.shape, generator=g)
    (y * cotangent).sum().backward()
    entries.append(dict(layer=layer, function=function, options=options, inputs={k: flat(v) for k, v in inputs.items()}, output=flat(y),
                        cotangent=flat(cotangent), grads={k: flat(v.grad) for k, v in inputs.items() if v.grad is not None}))


for eps in (1e-5, 1e-2):
    entry("layernorm", "torch.nn.functional.layer_norm", dict(x=normal(2, 3, 5), w=normal(5), b=normal(5)), lambda x, w, b: F.layer_norm(x, (5,), w, b, eps), eps=eps)
    entry("rmsnorm", "torch.nn.functional.rms_norm", dict(x=normal(2, 3, 5), w=normal(5)), lambda x, w: F.rms_norm(x, (5,), w, eps), eps=eps)
entry("linear", "torch.nn.functional.linear", dict(x=normal(2, 3, 4), w=normal(5, 4), b=normal(5)), lambda x, w, b: F.linear(x, w, b))
for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"):
    entry("activation", "transformers ACT2FN", dict(x=normal(4, 6, scale=3)), lambda x: ACT2FN[name](x), name=name)
for kv in (1, 2, 4):
    mask = torch.rand((2, 1, 3, 5), generator=g) < 0.6
    mask[..., 0] = True  # torch has NaN where nothing is seen
    entry("attention", "torch.nn.functional.scaled_dot_product_attention", dict(q=normal(2, 3, 4, 6), k=normal(2, 5, kv, 6), v=normal(2, 5, kv, 6)),
          lambda q, k, v: F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, enable_gqa=True).transpose(1, 2),
          mask=mask.reshape(-1).int().tolist())
targets = torch.tensor([3, -100, 0, 6, -100, 2])
entry("crossentropy", "torch.nn.functional.cross_entropy", dict(x=normal(6, 7, scale=4)), lambda x: F.cross_entropy(x, targets, ignore_index=-100), targets=targets.tolist())

pos = torch.tensor([[0, 1, 2, 700], [0, 0, 1, 5]])
for rope in (dict(rope_type="default", rope_theta=10000.0), dict(rope_type="linear", rope_theta=100.0, factor=2.5),
             dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
             dict(rope_type="llama3", rope_theta=50.0, factor=3.0, low_freq_factor=1.0, high_freq_factor=2.5, original_max_position_embeddings=64),
             dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=32768),
             dict(rope_type="yarn", rope_theta=100.0, factor=2.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=0.5, truncate=False),
             dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=100000, beta_fast=2000.0),
             dict(rope_type="yarn", rope_theta=100.0, factor=8.0, original_max_position_embeddings=64, mscale=1.5, mscale_all_dim=0.7),
             dict(rope_type="yarn", rope_theta=100.0, factor=8.0, original_max_position_embeddings=64, attention_factor=1.25)):
    config = transformers.LlamaConfig(hidden_size=24, num_attention_heads=2, head_dim=12, max_position_embeddings=131072, rope_parameters=dict(rope))
    rotary = modeling_llama.LlamaRotaryEmbedding(config)
    assert rotary.inv_freq.dtype == torch.float64

    def rotate(x):
        cos, sin = rotary(x, pos)
        return modeling_llama.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)[0]

    entry("rope", "transformers LlamaRotaryEmbedding, apply_rotary_pos_emb", dict(x=normal(2, 4, 2, 12)), rotate, pos=pos.reshape(-1).tolist(), dim=12,
          interleaved=False, frequencies=rotary.inv_freq.tolist(), attention_scaling=float(rotary.attention_scaling), **rope)
for dim in (2, 6):

    def rotate(x):
        table = modeling_gptj.create_sinusoidal_positions(1024, dim)[pos]
        sin, cos = table.chunk(2, -1)
        return torch.cat([modeling_gptj.apply_rotary_pos_emb(x[..., :dim], sin, cos), x[..., dim:]], -1)

    entry("rope", "transformers modeling_gptj.apply_rotary_pos_emb", dict(x=normal(2, 4, 2, 6)), rotate, pos=pos.reshape(-1).tolist(), dim=dim,
          interleaved=True, rope_type="default", rope_theta=10000.0)

with open(sys.argv[1], "w") as f:
    json.dump(dict(producer="golden/gen/nn/layers.py", seed=SEED, torch=torch.__version__.split("+")[0], transformers=transformers.__version__, entries=entries), f)
    f.write("\n")
