"""Tiny model folders as transformers writes them, and what torch reads from them, for the tests of internal/format/hf.

    python golden/gen/smollm2/tiny_hf.py internal/format/hf/testdata

Each folder is written by save_pretrained of a model with random weights; expect.json holds, for each, what the configuration
of the loaded model says and the sha256 of every tensor of its state dict as little-endian float64. torch 2.15.0, transformers
5.23.0, bitsandbytes 0.50.2.
"""
import hashlib
import json
import pathlib
import shutil
import sys

import bitsandbytes
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

VERSIONS = {"torch": "2.15.0", "transformers": "5.23.0", "bitsandbytes": "0.50.2"}
for module, want in ((torch, "torch"), (transformers, "transformers"), (bitsandbytes, "bitsandbytes")):
    assert module.__version__.split("+")[0] == VERSIONS[want], (want, module.__version__)

gpt = dict(n_embd=16, n_layer=2, n_head=4, vocab_size=29, n_positions=32)
llama = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, vocab_size=29, max_position_embeddings=32)
FOLDERS = {
    "gpt2": ("gpt2", dict(gpt), torch.float32, {}),
    "gptj": ("gptj", dict(gpt, rotary_dim=2, n_inner=40), torch.float16, {}),
    "llama": ("llama", dict(llama, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
        torch.bfloat16, {}),
    "llama_bias": ("llama", dict(llama, attention_bias=True, mlp_bias=True, head_dim=6), torch.float32, {}),
    "qwen2": ("qwen2", dict(llama, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}), torch.bfloat16, {}),
    "qwen2_sharded": ("qwen2", dict(llama, use_sliding_window=True, sliding_window=8, max_window_layers=1), torch.bfloat16, {"max_shard_size": "3KB"}),
    "gptj_variant": ("gptj", dict(gpt, rotary_dim=4), torch.float16, {"variant": "fp16"}),
}
FIELDS = ["model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
          "n_inner", "vocab_size", "max_position_embeddings", "rms_norm_eps", "layer_norm_epsilon", "hidden_act", "activation_function",
          "tie_word_embeddings", "rope_parameters", "rotary_dim", "attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "pad_token_id", "sliding_window"]


def digest(t):
    return hashlib.sha256(t.detach().to(torch.float64).contiguous().numpy().astype("<f8").tobytes()).hexdigest()


def tensors(state):
    return {k: {"shape": list(v.shape), "sha256": digest(v)} for k, v in sorted(state.items())}


def describe(folder, **how):
    m = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **how)
    c = m.config
    out = {f: getattr(c, f) for f in FIELDS if hasattr(c, f)}
    out["dtype"] = str(m.dtype).removeprefix("torch.")
    return {"config": out, "tensors": tensors(m.state_dict())}


def old_buffers(folder):
    """What GPT-J of transformers 4 had beside its weights: the causal mask and the number for what it hides."""
    s = load_file(folder / "model.safetensors")
    for i in range(2):
        s[f"transformer.h.{i}.attn.bias"] = torch.tril(torch.ones(32, 32, dtype=torch.uint8)).view(1, 1, 32, 32)
        s[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e9)
    save_file(s, folder / "model.safetensors", {"format": "pt"})


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    expect = {"versions": VERSIONS, "folders": {}}
    for seed, (name, (kind, sizes, dtype, how)) in enumerate(FOLDERS.items()):
        torch.manual_seed(seed)
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).to(dtype)
        for p in model.parameters():  # nothing stays at the 0 and 1 of an initialisation
            torch.nn.init.normal_(p)
        model.save_pretrained(folder, **how)
        if name == "gptj":
            old_buffers(folder)
        expect["folders"][name] = describe(folder, **({"variant": "fp16"} if name == "gptj_variant" else {}))

    # int8: the codes and scales as saved, and the weight that bitsandbytes makes of them.
    folder = out / "llama_int8"
    shutil.rmtree(folder, ignore_errors=True)
    m = AutoModelForCausalLM.from_pretrained(out / "llama", dtype=torch.float16, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map="cpu")
    m.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    expect["int8"] = {}
    for k in sorted(stored):
        if k.endswith(".SCB"):
            w = stored[k.removesuffix("SCB") + "weight"]
            back = bitsandbytes.functional.int8_vectorwise_dequant(w, stored[k])
            expect["int8"][k.removesuffix("SCB") + "weight"] = {
                "shape": list(w.shape), "codes": w.flatten().tolist()[:8], "scale": [float(v) for v in stored[k][:4]], "dequantized": [float(v) for v in back.flatten()[:8]]}
    expect["int8_types"] = {k: str(v.dtype) for k, v in sorted(stored.items())}
    (out / "expect.json").write_text(json.dumps(expect, indent=1, sort_keys=True) + "\n")


main(pathlib.Path(sys.argv[1]))
