"""Peak of a training step of float32 weights under autocast on the CPU: what torch's profiler sees allocated above weights and moments.

    python golden/gen/checkpoint/autocast_step.py golden/checkpoint/autocast_step.json

Llama and Qwen2, for which the rules of the processor are those of a device. The second step is counted: moments are there from then on.
"""
import json
import sys

import peft
import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM


def run(kind, attention, rank, checkpointing, layers=6, hidden=256, heads=4, kv=2, inner=1024, vocab=512, batch=4, tokens=256):
    torch.manual_seed(1)
    c = AutoConfig.for_model(kind, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv, intermediate_size=inner, vocab_size=vocab, max_position_embeddings=512,
                             tie_word_embeddings=False)
    c._attn_implementation, c.use_cache = attention, False
    m = AutoModelForCausalLM.from_config(c, dtype=torch.float32)
    targets = ["q_proj", "v_proj"] if rank else []
    if rank:
        m = peft.get_peft_model(m, peft.LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM"))
    if checkpointing:
        m.gradient_checkpointing_enable({"use_reentrant": False})
        m.enable_input_require_grads()
    m.train()
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], foreach=False)
    ids = torch.randint(0, vocab, (batch, tokens))

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = m(input_ids=ids, labels=ids).loss
        loss.backward()
        opt.step()
        opt.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        step()
    live = peak = 0
    for e in sorted((e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += e.nbytes()
        peak = max(peak, live)
    return {"model_type": kind, "attention": attention, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv, "inner": inner, "vocab": vocab, "batch": batch, "tokens": tokens, "r": rank,
            "targets": targets, "checkpointing": checkpointing, "peak": peak}


entries = [run("llama", attention, rank, checkpointing) for attention in ("sdpa", "eager") for rank in (0, 8) for checkpointing in (False, True)]
entries += [run("qwen2", "sdpa", rank, checkpointing, layers=4, hidden=384, heads=12, kv=4, inner=1152, vocab=4096, batch=2, tokens=384) for rank in (0, 16) for checkpointing in (False, True)]
with open(sys.argv[1], "w") as f:
    json.dump({"producer": "golden/gen/checkpoint/autocast_step.py", "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}, "entries": entries}, f, indent=1)
