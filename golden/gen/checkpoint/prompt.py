"""Bytes that are alive at once while transformers reads a prompt without gradients, parameters and buffers excepted.

    python golden/gen/checkpoint/prompt.py golden/checkpoint/prompt.json
    python golden/gen/checkpoint/prompt.py golden/checkpoint/prompt_autocast.json autocast

The second form reads it with a float32 model under torch.autocast by the rules of a device, without memory as in activations.py: with every
weight trained, whose casts autocast keeps until the pass is over, and with frozen weights, whose casts live as long as one product.

Every storage that an operation returns is counted from then until it is freed. The model has two layers, no cache, and the
logits of the last position only.
"""
import contextlib
import json
import sys
import weakref

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM


class Alive(TorchDispatchMode):
    def __init__(self, own):
        super().__init__()
        self.seen, self.now, self.peak = set(own), 0, 0

    def free(self, key, size):
        self.seen.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                s = t.untyped_storage()
                key = s._cdata
                if key not in self.seen:
                    self.seen.add(key)
                    self.now += s.nbytes()
                    weakref.finalize(s, self.free, key, s.nbytes())
        self.peak = max(self.peak, self.now)
        return out


def config(kind, inner):
    if kind in ("gptj", "gpt2"):
        more = {"rotary_dim": 32} if kind == "gptj" else {}
        return AutoConfig.for_model(kind, n_layer=2, n_embd=256, n_head=4, n_inner=inner, vocab_size=97, n_positions=512, **more)
    return AutoConfig.for_model(kind, num_hidden_layers=2, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, intermediate_size=inner, vocab_size=97, max_position_embeddings=512)


AUTOCAST = sys.argv[2:] == ["autocast"]
if AUTOCAST:
    import activations

entries = []
for kind, attention in (("gptj", "eager"), ("gpt2", "eager"), ("gpt2", "sdpa"), ("llama", "eager"), ("llama", "sdpa"), ("qwen2", "eager"), ("qwen2", "sdpa")):
    for tokens, inner in ((64, 1024), (256, 1024), (256, 512)) + (((384, 256), (512, 256)) if AUTOCAST else ()):
        c = config(kind, inner)
        c._attn_implementation = attention
        for trained in (False, True) if AUTOCAST else (False,):
            m = AutoModelForCausalLM.from_config(c).to(torch.float32 if AUTOCAST else torch.bfloat16).eval().requires_grad_(trained)
            with contextlib.ExitStack() as stack:
                if AUTOCAST:
                    stack.enter_context(activations.on_device())
                    stack.enter_context(activations.autocast("cuda", torch.bfloat16))
                    activations.without_memory(m)
                own = [t.untyped_storage()._cdata for t in list(m.parameters()) + list(m.buffers())]
                with torch.no_grad(), Alive(own) as alive:
                    m(input_ids=torch.zeros(2, tokens, dtype=torch.long, device="cuda" if AUTOCAST else "cpu"), use_cache=False, logits_to_keep=1)
            entries.append({**({"trained": trained} if AUTOCAST else {}), "model_type": kind, "attention": attention, "hidden": 256, "heads": 4, "kv_heads": 2 if kind in ("llama", "qwen2") else 4, "inner": inner,
                            "batch": 2, "tokens": tokens, "peak_bytes": alive.peak})
            print(entries[-1], file=sys.stderr)
json.dump({"producer": "golden/gen/checkpoint/prompt.py", "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "entries": entries}, open(sys.argv[1], "w"), indent=1)
