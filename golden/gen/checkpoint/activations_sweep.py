"""Bytes that autograd keeps, whole models of sizes that no formula was fitted to: three types, eager and sdpa, adapters and all weights, checkpointing.

    python golden/gen/checkpoint/activations_sweep.py golden/checkpoint/activations_sweep.json

Without checkpointing: three layers less one, by two. With it: what is kept is the inputs of the layers and, in the backward pass, what one
layer keeps that is computed again.
"""
import json
import sys

import peft
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

TARGETS = {"llama": ["q_proj", "o_proj", "up_proj"], "mistral": ["k_proj", "gate_proj"], "qwen2": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_fc"], "gptj": ["q_proj", "fc_in"]}
H, HEADS, KV, INNER = 192, 6, 3, 640


def build(kind, layers, attention, dtype, rank):
    if kind in ("gpt2", "gptj"):
        c = AutoConfig.for_model(kind, n_layer=layers, n_embd=H, n_head=HEADS, n_inner=INNER, vocab_size=97, n_positions=512, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, bos_token_id=1, eos_token_id=2,
                                 **({"rotary_dim": 16} if kind == "gptj" else {}))
    else:
        c = AutoConfig.for_model(kind, num_hidden_layers=layers, hidden_size=H, num_attention_heads=HEADS, num_key_value_heads=KV, intermediate_size=INNER, vocab_size=97, max_position_embeddings=512)
    c._attn_implementation, c.use_cache = attention, False
    m = AutoModelForCausalLM.from_config(c).to(dtype)
    return m if rank == 0 else peft.get_peft_model(m, peft.LoraConfig(r=rank, lora_alpha=16, target_modules=TARGETS[kind], task_type="CAUSAL_LM"))


def kept(m, batch, tokens, layer=None):
    """Bytes kept by the forward pass, or in the backward pass by the layer of that number that is computed again."""
    own = {t.untyped_storage().data_ptr() for t in list(m.parameters()) + list(m.buffers())}
    seen, hold, on = {}, [], [layer is None]

    def pack(t):
        s = t.untyped_storage()
        if on[0]:
            hold.append(t)
            if s.data_ptr() not in own:
                seen[s.data_ptr()] = s.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = m(input_ids=torch.zeros(batch, tokens, dtype=torch.long), use_cache=False).logits.float().mean()
        if layer is not None:
            block = next(x for n, x in m.named_modules() if n.endswith((f"layers.{layer}", f"h.{layer}")))
            inside = [block.input_layernorm if hasattr(block, "input_layernorm") else block.ln_1]
            inside[0].register_forward_pre_hook(lambda *_: on.__setitem__(0, True))
            last = block.mlp
            last.register_forward_hook(lambda *_: on.__setitem__(0, False))
            loss.backward()
    return sum(seen.values())


entries = []
for kind in TARGETS:
    for attention in ("eager",) if kind == "gptj" else ("eager", "sdpa"):
        for dtype in ("float32", "float16", "bfloat16"):
            for rank in (0, 4):
                for checkpointing in (False, True):
                    e = {"model_type": kind, "attention": attention, "dtype": dtype, "hidden": H, "heads": HEADS, "kv_heads": KV if kind not in ("gpt2", "gptj") else HEADS, "inner": INNER, "batch": 3, "tokens": 80,
                         "targets": TARGETS[kind] if rank else [], "r": rank, "checkpointing": checkpointing}
                    if checkpointing:
                        if dtype == "float16" or kind == "mistral":
                            continue
                        m = build(kind, 3, attention, getattr(torch, dtype), rank)
                        m.gradient_checkpointing_enable({"use_reentrant": True})
                        m.enable_input_require_grads()
                        m.train()
                        e["block"] = kept(m, 3, 80, layer=1)
                    else:
                        one, three = (kept(build(kind, n, attention, getattr(torch, dtype), rank), 3, 80) for n in (1, 3))
                        e["bytes_per_layer"] = (three - one) / 2
                    entries.append(e)
with open(sys.argv[1], "w") as f:
    json.dump({"producer": "golden/gen/checkpoint/activations_sweep.py", "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}, "entries": entries}, f, indent=1)
print(len(entries))
