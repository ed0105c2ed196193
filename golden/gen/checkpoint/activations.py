"""Bytes that autograd keeps for backward per layer, in released transformers with a PEFT adapter.

    python golden/gen/checkpoint/activations.py golden/checkpoint/activations.json
    python golden/gen/checkpoint/activations.py golden/checkpoint/activations_float32.json float32

The second form counts models in float32, whose adapters take their inputs as they are: those of several share one. It counts Mistral, too.

Every storage that a forward pass hands to saved_tensors_hooks is counted once, parameters and buffers excepted. A model
of two layers less the same model of one layer is one layer. No random number matters: only sizes are counted. Adapters on
several sets of modules are counted, since the adapter of each keeps a float32 copy of its module's input, and models of which
every weight is trained.
"""
import copy
import json
import sys

import peft
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


FLOAT32 = sys.argv[2:] == ["float32"]
if not FLOAT32:
    import bitsandbytes
ATTENTION = {"mistral": ["q_proj", "v_proj"], "gptj": ["q_proj", "v_proj"], "gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "qwen2": ["q_proj", "v_proj"]}
MORE = {"mistral": [["o_proj", "down_proj"]], "gptj": [["q_proj"], ["fc_out"], ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"]],
        "gpt2": [["c_fc"], ["c_attn", "c_proj", "c_fc"]],
        "llama": [["q_proj"], ["down_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]],
        "qwen2": [["o_proj", "up_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]]}


def build(kind, layers, attention, base, inner, targets, rank):
    h, heads, vocab = 256, 4, 97
    if kind == "gptj":
        c = AutoConfig.for_model("gptj", n_layer=layers, n_embd=h, n_head=heads, n_inner=inner, vocab_size=vocab, rotary_dim=32,
                                 n_positions=512, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
    elif kind == "gpt2":
        c = AutoConfig.for_model("gpt2", n_layer=layers, n_embd=h, n_head=heads, n_inner=inner, vocab_size=vocab, n_positions=512,
                                 resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
    else:
        c = AutoConfig.for_model(kind, num_hidden_layers=layers, hidden_size=h, num_attention_heads=heads, num_key_value_heads=2,
                                 intermediate_size=inner, vocab_size=vocab, max_position_embeddings=512)
    c._attn_implementation = attention
    c.use_cache = False
    m = AutoModelForCausalLM.from_config(c).to(torch.float32 if FLOAT32 else torch.bfloat16)
    if base == "int8":
        for name, mod in list(m.named_modules()):
            if isinstance(mod, torch.nn.Linear) and "lm_head" not in name:
                new = bitsandbytes.nn.Linear8bitLt(mod.in_features, mod.out_features, mod.bias is not None, has_fp16_weights=False, threshold=6.0)
                new.weight = bitsandbytes.nn.Int8Params(mod.weight.data.contiguous(), requires_grad=False, has_fp16_weights=False)
                if mod.bias is not None:
                    new.bias = mod.bias
                parent, _, last = name.rpartition(".")
                setattr(m.get_submodule(parent), last, new.to("cpu"))
    if rank == 0:
        return m
    return peft.get_peft_model(m, peft.LoraConfig(r=rank, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM"))


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
for kind in ("gptj", "gpt2", "llama", "qwen2") + (("mistral",) if FLOAT32 else ()):
    for attention in ("eager", "sdpa"):
        for base in ("float32",) if FLOAT32 else ("bf16", "int8"):
            if kind == "gpt2" and base == "int8" or kind == "gptj" and attention == "sdpa":
                continue  # Conv1D is no Linear; GPT-J has no sdpa
            plans = [(tokens, inner, ATTENTION[kind], 8) for tokens, inner in ((64, 1024), (256, 1024), (256, 512))]
            if base != "int8":
                plans += [(256, 1024, targets, 8) for targets in MORE[kind]] + [(256, 1024, ATTENTION[kind], 64)]
                plans += [(tokens, inner, [], 0) for tokens, inner in ((64, 1024), (256, 1024), (256, 512))]
            for tokens, inner, targets, rank in plans:
                one, two = (kept(build(kind, n, attention, base, inner, targets, rank), 2, tokens) for n in (1, 2))
                entries.append({"model_type": kind, "attention": attention, "base": base, "hidden": 256, "heads": 4,
                                "kv_heads": 2 if kind in ("llama", "qwen2", "mistral") else 4, "inner": inner, "batch": 2, "tokens": tokens,
                                "targets": targets, "r": rank, "bytes_per_layer": two - one})
                print(entries[-1], file=sys.stderr)
json.dump({"producer": "golden/gen/checkpoint/activations.py",
           "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__, **({} if FLOAT32 else {"bitsandbytes": bitsandbytes.__version__})},
           "entries": entries}, open(sys.argv[1], "w"), indent=1)
