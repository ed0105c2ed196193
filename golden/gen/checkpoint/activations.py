"""Bytes that autograd keeps for backward per layer, in released transformers with a PEFT adapter.

    python golden/gen/checkpoint/activations.py golden/checkpoint/activations.json
    python golden/gen/checkpoint/activations.py golden/checkpoint/activations_float32.json float32
    python golden/gen/checkpoint/activations.py golden/checkpoint/activations_autocast.json autocast

The second form counts models in float32, whose adapters take their inputs as they are: those of several share one. It counts Mistral, too.

The third form counts models in float32 under torch.autocast, by the rules of a device: tensors without memory (FakeTensorMode) that say
they lie on one, and its flash attention, which keeps queries, keys, values, output and one float32 of each row and head. The rules of the
processor are others (softmax and pow are not in its list for float32), so that of Llama and
Qwen2 alone, where both agree, entries of both are kept.
What is kept includes the casts of weights. The types of a KV cache under autocast are counted, too, and with checkpointing what a layer
keeps that is computed again.

Every storage that a forward pass hands to saved_tensors_hooks is counted once, parameters and buffers excepted. A model
of two layers less the same model of one layer is one layer. No random number matters: only sizes are counted. Adapters on
several sets of modules are counted, since the adapter of each keeps a float32 copy of its module's input, and models of which
every weight is trained.
"""
import contextlib
import json
import sys
from unittest import mock

import peft
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


AUTOCAST = sys.argv[2:] == ["autocast"]
FLOAT32 = sys.argv[2:] == ["float32"] or AUTOCAST
if not FLOAT32:
    import bitsandbytes
ATTENTION = {"mistral": ["q_proj", "v_proj"], "gptj": ["q_proj", "v_proj"], "gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "qwen2": ["q_proj", "v_proj"]}
MORE = {"mistral": [["o_proj", "down_proj"]], "gptj": [["q_proj"], ["fc_out"], ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"]],
        "gpt2": [["c_fc"], ["c_attn", "c_proj", "c_fc"]],
        "llama": [["q_proj"], ["down_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]],
        "qwen2": [["o_proj", "up_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]]}


def build(kind, layers, attention, base, inner, targets, rank, kv=2, h=256, heads=4):
    vocab = 97
    if kind == "gptj":
        c = AutoConfig.for_model("gptj", n_layer=layers, n_embd=h, n_head=heads, n_inner=inner, vocab_size=vocab, rotary_dim=32,
                                 n_positions=512, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
    elif kind == "gpt2":
        c = AutoConfig.for_model("gpt2", n_layer=layers, n_embd=h, n_head=heads, n_inner=inner, vocab_size=vocab, n_positions=512,
                                 resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
    else:
        c = AutoConfig.for_model(kind, num_hidden_layers=layers, hidden_size=h, num_attention_heads=heads, num_key_value_heads=kv,
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


def kept(model, batch, tokens, device="cpu", around=contextlib.nullcontext, layer=None):
    """Bytes kept by the forward pass, or in the backward pass by the layer of that number that is computed again."""
    own = {t.untyped_storage()._cdata for t in list(model.parameters()) + list(model.buffers())}
    for mod in model.modules():
        st = getattr(mod, "state", None)
        for t in (getattr(st, "CB", None), getattr(st, "SCB", None)):
            if t is not None:
                own.add(t.untyped_storage()._cdata)
    seen, hold, on = {}, [], [layer is None]

    def pack(t):
        s = t.untyped_storage()
        hold.append((t, s))
        if on[0] and s._cdata not in own:
            seen[s._cdata] = s.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        with around():
            logits = model(input_ids=torch.zeros(batch, tokens, dtype=torch.long, device=device), use_cache=False).logits
        if layer is not None:
            loss = logits.float().mean()
            block = next(x for n, x in model.named_modules() if n.endswith((f"layers.{layer}", f"h.{layer}")))
            block.get_submodule("input_layernorm" if hasattr(block, "input_layernorm") else "ln_1").register_forward_pre_hook(lambda *_: on.__setitem__(0, True))
            block.mlp.register_forward_hook(lambda *_: on.__setitem__(0, False))
            loss.backward()
    return sum(seen.values())


@contextlib.contextmanager
def autocast(device, dtype):
    """torch.autocast as it is on a machine that has the device: without one torch switches the class off."""
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, False)


def without_memory(model):
    """Gives every parameter and buffer the device cuda, without memory; called in FakeTensorMode. What is tied stays tied."""
    moved = {}
    for mod in model.modules():
        for name, p in mod._parameters.items():
            if p is not None:
                if id(p) not in moved:
                    moved[id(p)] = torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="cuda"), requires_grad=p.requires_grad)
                mod._parameters[name] = moved[id(p)]
        for name, b in mod._buffers.items():
            if b is not None:
                mod._buffers[name] = torch.empty(b.shape, dtype=b.dtype, device="cuda")
    return model


def flash(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The attention that torch chooses on a device for causal rows without a mask; autocast hands it the narrow type."""
    assert attn_mask is None and (is_causal or q.shape[2] == 1)
    low = torch.get_autocast_dtype("cuda")
    return torch.ops.aten._scaled_dot_product_flash_attention(q.to(low), k.to(low), v.to(low), dropout_p, is_causal, scale=scale)[0]


@contextlib.contextmanager
def on_device():
    """Tensors without memory that lie on a device. They look like a trace, for which transformers makes masks that a run does not have."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with (FakeTensorMode(allow_non_fake_inputs=True), mock.patch("torch.nn.functional.scaled_dot_product_attention", flash),
          mock.patch("transformers.masking_utils.is_tracing", lambda *_: False), mock.patch("transformers.masking_utils.find_packed_sequence_indices", lambda *_: None)):
        yield


def under_autocast(rules, kind, attention, inner, targets, rank, tokens, kv, dtype, checkpointing, hidden, heads, batch):
    """Bytes that one layer keeps under autocast, by the rules of a device."""
    sizes = []
    for layers in (3,) if checkpointing else (2, 3):  # the first keeps what later ones share
        m = build(kind, layers, attention, "float32", inner, targets, rank, kv, hidden, heads)
        if checkpointing:
            m.gradient_checkpointing_enable({"use_reentrant": True})
            m.enable_input_require_grads()
            m.train()
        if rules == "cpu":
            sizes.append(kept(m, batch, tokens, "cpu", lambda: autocast("cpu", dtype), 1 if checkpointing else None))
            continue
        with on_device():
            sizes.append(kept(without_memory(m), batch, tokens, "cuda", lambda: autocast("cuda", dtype)))
    return sizes[-1] - (0 if checkpointing else sizes[0])


def cache(kind):
    """Bytes of a key and of a value in the KV cache of a float32 model that generates under autocast."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        layer = build(kind, 1, "eager", "float32", 512, [], 0)(input_ids=torch.zeros(1, 4, dtype=torch.long), use_cache=True).past_key_values.layers[0]
    return [layer.keys.element_size(), layer.values.element_size()]


def autocast_entries():
    for kind in ("gptj", "gpt2", "llama", "qwen2", "mistral"):
        for attention in ("eager",) if kind == "gptj" else ("eager", "sdpa"):
            grouped = kind in ("llama", "qwen2", "mistral")
            shapes = [(64, 1024, 2), (256, 1024, 2), (256, 512, 2)] + ([(128, 640, 1), (128, 640, 4)] if grouped else [])
            plans = [("cuda", *shape, targets, rank, "bfloat16", False) for shape in shapes for targets, rank in (([], 0), (ATTENTION[kind], 8))]
            plans += [("cuda", 256, 1024, 2, targets, 8, "bfloat16", False) for targets in MORE[kind]] + [("cuda", 256, 1024, 2, ATTENTION[kind], 64, "bfloat16", False)]
            plans += [("cuda", 128, 640, 2, targets, rank, "float16", False) for targets, rank in (([], 0), (ATTENTION[kind], 8))]
            if kind in ("llama", "qwen2"):  # a backward pass needs the processor
                plans += [("cpu", 128, 640, 2, targets, rank, "bfloat16", c) for targets, rank in (([], 0), (ATTENTION[kind], 8)) for c in (False, True)]
            plans = [(*p, 256, 4, 2) for p in plans]
            # sizes of another shape, to which no formula was fitted
            plans += [("cuda", 80, 640, 3, targets, rank, "bfloat16", False, 192, 6, 3) for targets, rank in (([], 0), (ATTENTION[kind], 4))]
            plans += [("cuda", 200, 416, 2, targets, rank, "bfloat16", False, 384, 12, 1) for targets, rank in (([], 0), (MORE[kind][-1], 16))]
            for rules, tokens, inner, kv, targets, rank, dtype, checkpointing, hidden, heads, batch in plans:
                size = under_autocast(rules, kind, attention, inner, targets, rank, tokens, kv, getattr(torch, dtype), checkpointing, hidden, heads, batch)
                yield {"model_type": kind, "attention": attention, "autocast": dtype, "rules": rules, "hidden": hidden, "heads": heads, "kv_heads": kv if grouped else heads, "inner": inner, "batch": batch,
                       "tokens": tokens, "targets": targets, "r": rank, "checkpointing": checkpointing, "bytes_per_layer": size}


if __name__ == "__main__":
    entries = list(autocast_entries()) if AUTOCAST else []
    for kind in () if AUTOCAST else ("gptj", "gpt2", "llama", "qwen2") + (("mistral",) if FLOAT32 else ()):
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
               **({"cache": {kind: cache(kind) for kind in ATTENTION}} if AUTOCAST else {}), "entries": entries}, open(sys.argv[1], "w"), indent=1)
