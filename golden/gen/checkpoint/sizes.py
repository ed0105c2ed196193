"""Parameters of models and of adapters, counted by transformers and peft on the device meta, where nothing is allocated.

    python golden/gen/checkpoint/sizes.py golden/checkpoint/sizes.json
"""
import json
import sys

import peft
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


def llama(kind, hidden, layers, heads, kv, inner, vocab, tied, **more):
    return AutoConfig.for_model(kind, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, intermediate_size=inner,
                                vocab_size=vocab, tie_word_embeddings=tied, **more)


MODELS = {  # the figures of config.json on huggingface.co
    "gpt-j-6b": lambda: AutoConfig.for_model("gptj"),
    "gpt2": lambda: AutoConfig.for_model("gpt2"),
    "qwen1.5-1.8b": lambda: llama("qwen2", 2048, 24, 16, 16, 5504, 151936, False),
    "qwen2.5-0.5b": lambda: llama("qwen2", 896, 24, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": lambda: llama("qwen2", 1536, 28, 12, 2, 8960, 151936, True),
    "qwen2.5-7b": lambda: llama("qwen2", 3584, 28, 28, 4, 18944, 152064, False),
    "smollm2-135m": lambda: llama("llama", 576, 30, 9, 3, 1536, 49152, True),
    "smollm2-360m": lambda: llama("llama", 960, 32, 15, 5, 2560, 49152, True),
    "smollm2-1.7b": lambda: llama("llama", 2048, 24, 32, 32, 8192, 49152, True),
    "llama-3.2-1b": lambda: llama("llama", 2048, 16, 32, 8, 8192, 128256, True),
    "llama-3.1-8b": lambda: llama("llama", 4096, 32, 32, 8, 14336, 128256, False),
}
TARGETS = {"gptj": [["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "out_proj"], ["q_proj", "v_proj", "fc_in", "fc_out"]],
           "gpt2": [["c_attn"], ["c_attn", "c_proj", "c_fc"]],
           "llama": [["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]]}
TARGETS["qwen2"] = TARGETS["llama"]

out = {}
for name, make in MODELS.items():
    c = make()
    with torch.device("meta"):
        m = AutoModelForCausalLM.from_config(c)
    linear = sum(p.numel() for n, p in m.named_parameters() if p.ndim == 2 and "embed" not in n and "wte" not in n and "wpe" not in n and "lm_head" not in n)
    out[name] = {"parameters": sum(p.numel() for p in m.parameters()), "linear": linear, "adapters": []}
    for targets in TARGETS[c.model_type]:
        for r in (4, 16):
            with torch.device("meta"):
                a = peft.get_peft_model(AutoModelForCausalLM.from_config(c), peft.LoraConfig(r=r, target_modules=targets, fan_in_fan_out=c.model_type == "gpt2"))
            out[name]["adapters"].append({"targets": targets, "r": r, "parameters": sum(p.numel() for p in a.parameters() if p.requires_grad)})
    print(name, out[name]["parameters"], file=sys.stderr)
json.dump({"producer": "golden/gen/checkpoint/sizes.py", "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}, "models": out}, open(sys.argv[1], "w"), indent=1)
