"""Bytes that autograd keeps for backward per layer, in released transformers with a PEFT adapter.

    python golden/gen/checkpoint/activations.py golden/checkpoint/activations.json

Every storage that a forward pass hands to saved_tensors_hooks is counted once, parameters and buffers excepted. A model
of two layers less the same model of one layer is one layer. No random number matters: only sizes are counted.
"""
import copy
import json
import sys

import bitsandbytes
import peft
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


def build(kind, layers, attention, base, inner):
    h, heads, vocab = 256, 4, 97
    if kind == "gptj":
        c = AutoConfig.for_model("gptj", n_layer=layers, n_embd=h, n_head=heads, n_inner=inner, vocab_size=vocab, rotary_dim=32,
                                 n_positions=512, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
        targets = ["q_proj", "v_proj"]
    elif kind == "gpt2":
        c = AutoConfig.for_model("gpt2", n_layer=layers, n_embd=h, n_head=heads, n_inner=inner, vocab_size=vocab, n_positions=512,
                                 resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
        targets = ["c_attn"]
    else:
        c = AutoConfig.for_model(kind, num_hidden_layers=layers, hidden_size=h, num_attention_heads=heads, num_key_value_heads=2,
                                 intermediate_size=inner, vocab_size=vocab, max_position_embeddings=512)
        targets = ["q_proj", "v_proj"]
    c._attn_implementation = attention
    c.use_cache = False
    m = AutoModelForCausalLM.from_config(c).to(torch.bfloat16)
    if base == "int8":
        for name, mod in list(m.named_modules()):
            if isinstance(mod, torch.nn.Linear) and "lm_head" not in name:
                new = bitsandbytes.nn.Linear8bitLt(mod.in_features, mod.out_features, mod.bias is not None, has_fp16_weights=False, threshold=6.0)
                new.weight = bitsandbytes.nn.Int8Params(mod.weight.data.contiguous(), requires_grad=False, has_fp16_weights=False)
                if mod.bias is not None:
                    new.bias = mod.bias
                parent, _, last = name.rpartition(".")
                setattr(m.get_submodule(parent), last, new.to("cpu"))
    return peft.get_peft_model(m, peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM"))


def kept(model, batch, tokens):
    own = {t.untyped_storage().data_ptr() for t in list(model.parameters()) + list(model.buffers())}
    for mod in model.modules():
        st = getattr(mod, "state", None)
        for t in (getattr(st, "CB", None), getattr(st, "SCB", None)):
            if t is not None:
                own.add(t.untyped_storage().data_ptr())
    seen, hold = {}, []

    def pack(t):
        s = t.untyped_storage()
        hold.append(t)
        if s.data_ptr() not in own:
            seen[s.data_ptr()] = s.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(input_ids=torch.zeros(batch, tokens, dtype=torch.long), use_cache=False).logits
    return sum(seen.values())


entries = []
for kind in ("gptj", "gpt2", "llama", "qwen2"):
    for attention in ("eager", "sdpa"):
        for base in ("bf16", "int8"):
            if kind == "gpt2" and base == "int8" or kind == "gptj" and attention == "sdpa":
                continue  # Conv1D is no Linear; GPT-J has no sdpa
            for tokens, inner in ((64, 1024), (256, 1024), (256, 512)):
                one, two = (kept(build(kind, n, attention, base, inner), 2, tokens) for n in (1, 2))
                entries.append({"model_type": kind, "attention": attention, "base": base, "hidden": 256, "heads": 4,
                                "kv_heads": 2 if kind in ("llama", "qwen2") else 4, "inner": inner, "batch": 2, "tokens": tokens,
                                "bytes_per_layer": two - one})
                print(entries[-1], file=sys.stderr)
json.dump({"producer": "golden/gen/checkpoint/activations.py",
           "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__, "bitsandbytes": bitsandbytes.__version__},
           "entries": entries}, open(sys.argv[1], "w"), indent=1)
