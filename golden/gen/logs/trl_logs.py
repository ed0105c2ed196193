"""Logs that TRL 1.16.0 and transformers 5.23.0 write themselves, of toy runs on the CPU: python trl_logs.py golden/logs/trl, or OUT --runs N [--first K].

Without --runs the stored cases: healthy runs of five trainers in float32 and bfloat16, and five with one fault. With it N healthy runs with
drawn settings, whatever seed K and the following give. A run is a folder: console.txt (what the trainer printed), trainer_state.json,
events.out.tfevents.* (TensorBoard), config.json (what was set). Needs torch 2.15.0, trl 1.16.0, peft 0.21.2, tensorboard 2.20.0.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile

os.environ.update(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  TRANSFORMERS_VERBOSITY="error", HF_DATASETS_DISABLE_PROGRESS_BARS="1", TRL_EXPERIMENTAL_SILENCE="1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "dumps"))
import datasets
import torch
import transformers
import trl

import tiny
from patch import Patch, compile_method

torch.set_num_threads(1)
datasets.disable_progress_bars()
RL = dict(per_device_train_batch_size=4, num_generations=4, learning_rate=1e-4, logging_steps=1, max_steps=15, max_completion_length=20)
HEALTHY = {
    "grpo": dict(RL, trainer="GRPO"),
    "grpo-kl": dict(RL, trainer="GRPO", beta=0.04, num_iterations=2, loss_type="grpo", scale_rewards="batch"),
    "grpo-bf16": dict(RL, trainer="GRPO", beta=0.04, dtype="bfloat16", loss_type="dr_grpo", logging_steps=2),
    "grpo-cispo": dict(RL, trainer="GRPO", loss_type="cispo", gradient_accumulation_steps=2),
    "rloo": dict(RL, trainer="RLOO", beta=0.05, learning_rate=4e-4),
    "rloo-bf16": dict(RL, trainer="RLOO", beta=0.05, dtype="bfloat16", num_generations=2),
    "sft": dict(trainer="SFT", per_device_train_batch_size=4, learning_rate=1e-5, logging_steps=2, max_steps=30, lr_scheduler_type="cosine", eval_strategy="steps", eval_steps=10),
    "dpo": dict(trainer="DPO", per_device_train_batch_size=4, learning_rate=1e-4, logging_steps=2, max_steps=20, beta=0.5),
    "dpo-ipo-bf16": dict(trainer="DPO", per_device_train_batch_size=4, learning_rate=1e-5, logging_steps=1, max_steps=15, loss_type=["ipo"], dtype="bfloat16"),
    "reward": dict(trainer="Reward", per_device_train_batch_size=4, learning_rate=1e-4, logging_steps=1, max_steps=15),
}
FAULTS = {  # what is wrong, and the symptom that names it
    "lr-zero": ("LR-ZERO", dict(RL, trainer="GRPO", learning_rate=0.0)),
    "reward-constant": ("ZERO-STD", dict(RL, trainer="GRPO", reward="constant")),
    "cut-off": ("TRUNCATED", dict(RL, trainer="GRPO", max_completion_length=1)),
    "reward-nan": ("NONFINITE", dict(RL, trainer="GRPO", reward="nan")),
    "kl-k1": ("KL-NEGATIVE", dict(RL, trainer="GRPO", beta=0.04, learning_rate=1e-3, loss_type="cispo", patch=True)),
}
K3 = "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1"
OWN = {"trainer", "dtype", "reward", "patch"}


def digits(completions, **_):
    return [sum(c.isdigit() for c in s) / max(len(s), 1) for s in completions]


def short(completion_ids, **_):
    return [2.0 ** (-len(c) / 12) for c in completion_ids]


def constant(completions, **_):
    return [0.5] * len(completions)


def nan(completions, **_):
    return [float("nan")] * len(completions)


def draw(seed):
    r = random.Random(seed)
    kind = r.choice(["GRPO"] * 5 + ["RLOO"] * 2 + ["SFT"] * 2 + ["DPO"] * 2 + ["Reward"])
    c = dict(trainer=kind, per_device_train_batch_size=4, learning_rate=r.choice([1e-5, 1e-4, 4e-4, 1e-3]), logging_steps=r.choice([1, 2, 5]), max_steps=r.choice([8, 15, 30]),
             lr_scheduler_type=r.choice(["constant", "linear", "cosine"]), warmup_steps=r.choice([0, 2]), weight_decay=r.choice([0.0, 0.01]), seed=seed)
    if kind == "GRPO":
        c.update(num_generations=r.choice([2, 4]), gradient_accumulation_steps=r.choice([1, 2]), beta=r.choice([0.0, 0.0, 0.04]), num_iterations=r.choice([1, 1, 2]),
                 loss_type=r.choice(["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo"]), max_completion_length=r.choice([8, 20]), temperature=r.choice([1.0, 0.9]),
                 scale_rewards=r.choice(["group", "batch", "none"]), mask_truncated_completions=r.random() < 0.2)
    if kind == "RLOO":
        c.update(num_generations=r.choice([2, 4]), gradient_accumulation_steps=r.choice([1, 2]), beta=r.choice([0.05, 0.0]), max_completion_length=12)
    if kind == "SFT":
        c.update(eval_strategy=r.choice(["no", "steps"]), eval_steps=5)
    if kind == "DPO":
        c.update(beta=r.choice([0.1, 0.5]), loss_type=[r.choice(["sigmoid", "ipo", "hinge"])])
    if r.random() < 0.4:
        c["dtype"] = "bfloat16"
    return c


def trainer(tmp, events, c):
    kind = c["trainer"]
    Config, Trainer = getattr(trl, kind + "Config"), getattr(trl, kind + "Trainer")
    os.environ["TENSORBOARD_LOGGING_DIR"] = events
    args = Config(**{**dict(output_dir=os.path.join(tmp, "out"), use_cpu=True, bf16=False, report_to=["tensorboard"], save_strategy="no", seed=7, disable_tqdm=True,
                            dataloader_pin_memory=False), **{k: v for k, v in c.items() if k not in OWN}})
    dtype = getattr(torch, c.get("dtype", "float32"))
    model, tok = tiny.save(os.path.join(tmp, "model"), args.seed, dtype=dtype), tiny.tokenizer(True)
    n, more = 8 * len(tiny.PROMPTS), {}
    prompts = tiny.PROMPTS * 8
    if kind in ("GRPO", "RLOO"):
        data = {"prompt": prompts}
        more["reward_funcs"] = {"constant": [constant], "nan": [nan]}.get(c.get("reward"), [digits, short])
        if c.get("patch"):
            method, _ = compile_method(Trainer, "_compute_loss", [Patch("_compute_loss", K3, "per_token_logps - ref_per_token_logps")])
            Trainer = type(Trainer.__name__, (Trainer,), {"_compute_loss": method})
    elif kind == "SFT":
        data = {"prompt": prompts, "completion": [f" {i * 7 % 10}{i % 10}" for i in range(n)]}
    elif kind == "DPO":
        data = {"prompt": prompts, "chosen": [f" {i % 10}" for i in range(n)], "rejected": [" ab"] * n}
    else:
        data = {"chosen": [p + f" {i % 10}" for i, p in enumerate(prompts)], "rejected": [p + " ab" for p in prompts]}
        model = transformers.AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=dtype)
        model.config.pad_token_id = tok.pad_token_id
    if kind != "Reward":
        args.model_init_kwargs = {"dtype": c.get("dtype", "float32")}
    data = datasets.Dataset.from_dict(data)
    if c.get("eval_strategy") == "steps":
        more["eval_dataset"] = data.select(range(4))
    return Trainer(model=model, args=args, processing_class=tok, train_dataset=data, **more)


def run(out, c):
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    text = io.StringIO()
    with tempfile.TemporaryDirectory() as tmp:
        events = os.path.join(tmp, "events")
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            t = trainer(tmp, events, c)
            t.train()
        t.state.save_to_json(os.path.join(out, "trainer_state.json"))
        for folder, _, names in os.walk(events):
            for n in names:
                if "tfevents" in n:
                    shutil.copy(os.path.join(folder, n), os.path.join(out, "events.out.tfevents.1"))
        console = text.getvalue().replace(tmp, "RUN")  # the name of a temporary folder is no part of a log
    with open(os.path.join(out, "console.txt"), "w") as f:
        f.write("\n".join(l for l in console.split("\n") if "site-packages" not in l))
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(c, f, indent=1, sort_keys=True)


def manifest(folder):
    """manifest.json of golden/logs: where the files come from and their sums."""
    sums = {}
    for d, _, names in os.walk(folder):
        for n in names:
            path = os.path.relpath(os.path.join(d, n), folder)
            if path != "manifest.json":
                with open(os.path.join(d, n), "rb") as f:
                    sums[path] = hashlib.sha256(f.read()).hexdigest()
    versions = {"torch": "2.15.0", "transformers": "5.23.0", "trl": "1.16.0", "tensorboard": "2.20.0"}
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump({"producer": "golden/gen/logs/trl_logs.py", "seed": 7, "versions": versions, "sha256": dict(sorted(sums.items()))}, f, indent=1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--runs", type=int, default=0)
    ap.add_argument("--first", type=int, default=0)
    a = ap.parse_args()
    if a.runs:
        for seed in range(a.first, a.first + a.runs):
            run(os.path.join(a.out, f"{seed:03d}"), draw(seed))
            print(seed, flush=True)
    else:
        for name, c in HEALTHY.items():
            run(os.path.join(a.out, "healthy", name), c)
        for name, (symptom, c) in FAULTS.items():
            run(os.path.join(a.out, "faulty", name), c)
        with open(os.path.join(a.out, "expect.json"), "w") as f:
            json.dump({name: symptom for name, (symptom, _) in FAULTS.items()}, f, indent=1, sort_keys=True)
        manifest(os.path.dirname(os.path.abspath(a.out)))
