"""Peak of one step of TRL's GRPO on the CPU: what torch's profiler sees allocated above the weights and moments, generation apart.

    python golden/gen/checkpoint/grpo.py golden/checkpoint/grpo.json
"""
import importlib.metadata
import json
import sys
import tempfile

import folders
import torch
from datasets import Dataset
from peft import LoraConfig
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer


def run(kind, layers, inner, vocab, new, rank, dtype="float32", checkpointing=False, hidden=256, heads=4, kv=2, batch=4, prompt=32, attention="sdpa"):
    torch.manual_seed(1)
    c = AutoConfig.for_model(kind, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv, intermediate_size=inner, vocab_size=vocab,
                             max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
    c._attn_implementation = attention
    targets = ["q_proj", "v_proj"] if rank else []
    args = GRPOConfig(output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=batch, num_generations=2, max_completion_length=new, learning_rate=1e-3, report_to=[], use_cpu=True, bf16=False,
                      disable_tqdm=True, save_strategy="no", gradient_checkpointing=checkpointing, gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None, logging_steps=1,
                      generation_kwargs={"min_new_tokens": new})
    t = GRPOTrainer(model=AutoModelForCausalLM.from_config(c, dtype=getattr(torch, dtype)), args=args, reward_funcs=lambda completions, **_: [float(i % 2) for i, _ in enumerate(completions)],
                    train_dataset=Dataset.from_dict({"prompt": [" ".join(f"w{3 + i % 80}" for i in range(prompt))] * 16}), processing_class=folders.tokenizer(),
                    peft_config=LoraConfig(r=rank, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM") if rank else None)
    out, step, prepare, count = {}, t.training_step, t._prepare_inputs, [0]

    def profiled(model, inputs, *rest, **more):
        count[0] += 1
        if count[0] != 2:  # moments are there from the second step on
            return step(model, inputs, *rest, **more)
        inputs = prepare(inputs)
        t._prepare_inputs = lambda x: x
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
            loss = step(model, inputs, *rest, **more)
        t._prepare_inputs = prepare
        live = peak = 0
        for e in sorted((e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
            live += e.nbytes()
            peak = max(peak, live)
        out.update(peak=peak, comp=int(inputs["completion_ids"].shape[1]), prompt=int(inputs["prompt_ids"].shape[1]), batch=int(inputs["completion_ids"].shape[0]))
        return loss

    t.training_step = profiled
    t.train()
    return {"model_type": kind, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv, "inner": inner, "vocab": vocab, "r": rank, "targets": targets, "dtype": dtype, "attention": attention,
            "checkpointing": checkpointing, **out}


entries = [run("llama", 4, 1024, 8192, 96, 8), run("llama", 4, 1024, 8192, 96, 0), run("qwen2", 2, 512, 40000, 64, 8), run("llama", 4, 1024, 8192, 96, 8, checkpointing=True),
           run("llama", 4, 1024, 8192, 96, 0, dtype="bfloat16")]
with open(sys.argv[1], "w") as f:
    json.dump({"producer": "golden/gen/checkpoint/grpo.py", "versions": {p: importlib.metadata.version(p) for p in ("torch", "transformers", "peft", "trl")}, "entries": entries}, f, indent=1)
