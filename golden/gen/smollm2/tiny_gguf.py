"""Tiny GGUF files as gguf-py writes them, and what gguf-py and transformers read from them, for internal/format/gguf.

    python golden/gen/smollm2/tiny_gguf.py internal/format/gguf/testdata

kinds.gguf has every type of metadata and of tensor that is read; llama.gguf and qwen2.gguf are models with random weights,
whose rows of q and k are permuted for llama as convert_hf_to_gguf.py of llama.cpp permutes them. expect.json holds the
metadata, the elements as gguf-py dequantises them, and the sha256 of every tensor of the state dict that transformers loads,
as little-endian float64. gguf 0.19.0, torch 2.15.0, transformers 5.23.0, numpy 2.4.6.
"""
import hashlib
import importlib.metadata
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from transformers import AutoModelForCausalLM

VERSIONS = {"gguf": "0.19.0", "torch": "2.15.0", "transformers": "5.23.0", "numpy": "2.4.6"}
for name, want in VERSIONS.items():
    assert importlib.metadata.version(name).split("+")[0] == want, name


def digest(a):
    return hashlib.sha256(np.ascontiguousarray(a).astype("<f8").tobytes()).hexdigest()


def kinds(path, rng):
    w = gguf.GGUFWriter(path, "test")
    values = {"u8": (200, V.UINT8), "i8": (-100, V.INT8), "u16": (60000, V.UINT16), "i16": (-30000, V.INT16), "u32": (4000000000, V.UINT32),
              "i32": (-2000000000, V.INT32), "u64": (2**63 + 1, V.UINT64), "i64": (-(2**62), V.INT64), "f32": (0.1, V.FLOAT32), "f64": (0.1, V.FLOAT64),
              "bool": (True, V.BOOL), "string": ("Ġé ∑", V.STRING)}
    for k, (v, t) in values.items():
        w.add_key_value("test." + k, v, t)
        w.add_key_value("test.list." + k, [v] * 3, V.ARRAY, sub_type=t)
    expect = {}
    x = rng.standard_normal((3, 64)).astype(np.float32)
    x[0, :32] = 0
    x[1, 5] = 40
    for t in (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1):
        raw = gguf.quants.quantize(x, t)
        w.add_tensor(t.name, raw, raw_dtype=t)
        expect[t.name] = [float(v) for v in gguf.quants.dequantize(raw, t).astype(np.float64).flatten()]
    # Random bytes, to reach every code, and scales of both signs, subnormal ones, and a sum that float32 rounds.
    for t, scales in ((Q.Q8_0, 1), (Q.Q4_0, 1), (Q.Q4_1, 2)):
        size = gguf.GGML_QUANT_SIZES[t][1]
        raw = rng.integers(0, 256, (5, size), dtype=np.uint8)
        raw[:, : 2 * scales] = np.array([[0.37, -1.5], [-2.5e-7, 6e-8], [1000, -65504], [-0.0, 0.25], [0.00037, 1000]], dtype=np.float16)[:, :scales].copy().view(np.uint8)
        w.add_tensor("random." + t.name, raw, raw_dtype=t)
        expect["random." + t.name] = [float(v) for v in gguf.quants.dequantize(raw, t).astype(np.float64).flatten()]
    raw = gguf.quants.quantize(x[:1], Q.Q5_0)
    w.add_tensor("q5", raw, raw_dtype=Q.Q5_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return expect


def permute(a, heads):
    """LlamaModel.permute of convert_hf_to_gguf.py."""
    return a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def model(path, arch, rng):
    hidden, inner, heads, kv, vocab, layers = 64, 96, 4, 2, 40, 2
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(layers)
    w.add_context_length(128)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(50000.0)
    w.add_rope_dimension_count(hidden // heads)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([f"t{i}" for i in range(vocab)])
    w.add_token_types([3] + [1] * (vocab - 1))
    w.add_token_merges(["t 1", "t 2"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)

    def put(name, shape, kind=Q.F32, heads=0):
        x = rng.standard_normal(shape).astype(np.float32)
        if heads:
            x = permute(x, heads)
        w.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(x), kind), raw_dtype=kind)

    llama = arch == "llama"
    put("token_embd.weight", (vocab, hidden), Q.Q8_0)
    if not llama:
        put("output.weight", (vocab, hidden), Q.F16)
    for i in range(layers):
        b = f"blk.{i}."
        put(b + "attn_norm.weight", (hidden,))
        put(b + "ffn_norm.weight", (hidden,))
        put(b + "attn_q.weight", (hidden, hidden), Q.Q4_1 if i else Q.Q8_0, heads if llama else 0)
        put(b + "attn_k.weight", (hidden // 2, hidden), Q.Q4_0, kv if llama else 0)
        put(b + "attn_v.weight", (hidden // 2, hidden), Q.BF16)
        put(b + "attn_output.weight", (hidden, hidden), Q.F32)
        if not llama:
            put(b + "attn_q.bias", (hidden,))
            put(b + "attn_k.bias", (hidden // 2,))
            put(b + "attn_v.bias", (hidden // 2,))
        put(b + "ffn_gate.weight", (inner, hidden), Q.Q4_1)
        put(b + "ffn_up.weight", (inner, hidden), Q.Q4_0)
        put(b + "ffn_down.weight", (hidden, inner), Q.Q8_0)
    put("output_norm.weight", (hidden,))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    m = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    c = m.config
    return {
        "config": {k: getattr(c, k) for k in ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
                                              "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "tie_word_embeddings")},
        "tensors": {k: {"shape": list(v.shape), "sha256": digest(v.detach().numpy())} for k, v in sorted(m.state_dict().items())},
    }


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    expect = {"versions": VERSIONS, "kinds": kinds(out / "kinds.gguf", rng)}
    for arch in ("llama", "qwen2"):
        expect[arch] = model(out / f"{arch}.gguf", arch, rng)
    (out / "expect.json").write_text(json.dumps(expect, sort_keys=True) + "\n")


main(pathlib.Path(sys.argv[1]))
