"""A GRPO, RLOO or DPO run of TRL on a tiny random model (CPU) with the hook that `verify export trl` printed, as it stands.

    python trl_toy.py HOOK.py FOLDER [--trainer GRPO|RLOO|DPO] [--bug NAME] [--config JSON]
    python -m torch.distributed.run --nproc_per_node 2 trl_toy.py …      (two ranks)

A bug is one replaced statement of the release, of GRPO from golden/gen/dumps/trl_grpo_cases.py, of the others from trl_bugs.py.
"""
import argparse
import importlib.util
import json
import os
import sys
import tempfile

os.environ.update(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  TRANSFORMERS_VERBOSITY="error", HF_DATASETS_DISABLE_PROGRESS_BARS="1", TRL_EXPERIMENTAL_SILENCE="1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "dumps"))
import datasets, torch, transformers
import trl

import tiny
from patch import compile_method
from trl_bugs import BUGS
from trl_grpo_cases import FAULTS

torch.set_num_threads(1)


def digits(completions, **_):
    return [sum(c.isdigit() for c in s) / max(len(s), 1) for s in completions]


def short(completion_ids, **_):
    return [2.0 ** (-len(c) / 12) for c in completion_ids]


def load(path):
    spec = importlib.util.spec_from_file_location("plumbline_hook", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plant(cls, patches):
    """Replace the methods of the released class by the ones with the bug; returns where it went."""
    places = []
    for name in sorted({p.method for p in patches}):
        method, where = compile_method(cls, name, [p for p in patches if p.method == name])
        setattr(cls, name, method)
        places += [f"{w['file']}:{w['line']}" for w in where]
    return places


def trainer(kind, tmp, config):
    cfg = dict(output_dir=os.path.join(tmp, "out"), use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=10, disable_tqdm=True,
               seed=7, max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=4e-4, lr_scheduler_type="constant",
               gradient_checkpointing=False, dataloader_pin_memory=False)
    if kind != "DPO":
        cfg.update(num_generations=4, max_completion_length=20, temperature=0.9, beta=0.04, epsilon=0.2, epsilon_high=0.28, num_iterations=2, reward_weights=[1.0, 0.5])
    if kind == "GRPO":
        cfg.update(loss_type="grpo")
    cfg.update(config)
    dtype = getattr(torch, cfg.setdefault("model_init_kwargs", {}).get("dtype", "float32"))
    path = tiny.save(os.path.join(tmp, "model"), cfg["seed"], dtype=dtype)
    prompts = datasets.Dataset.from_dict({"prompt": tiny.PROMPTS})
    if kind == "DPO":
        answers = dict(chosen=[p[::-1] + " 12" for p in tiny.PROMPTS], rejected=["7" + p[: len(p) // 2] for p in tiny.PROMPTS])
        more = dict(train_dataset=datasets.Dataset.from_dict({"prompt": tiny.PROMPTS, **answers}))
    else:
        more = dict(reward_funcs=[digits, short], train_dataset=prompts, eval_dataset=prompts.select(range(2)) if "eval_strategy" in config else None)
    t = getattr(trl, kind + "Trainer")(model=path, args=getattr(trl, kind + "Config")(**cfg), processing_class=tiny.tokenizer(True), **more)
    t.remove_callback(transformers.PrinterCallback)
    return t


def run(kind, hook, folder, config, bug=""):
    cls = getattr(trl, kind + "Trainer")
    if bug in BUGS:
        print("planted in", ", ".join(plant(cls, [BUGS[bug]])), flush=True)
    elif bug:
        case = next(c for c in FAULTS if c.folder == "faulty/" + bug)
        config = dict(case.config, **config)
        print("planted in", ", ".join(plant(cls, case.patches)), flush=True)
    if hook != "-":  # plumbline run puts its own in
        load(hook).install(cls, folder, strict=True)
    with tempfile.TemporaryDirectory() as tmp:
        trainer(kind, tmp, config).train()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("hook")
    ap.add_argument("folder")
    ap.add_argument("--trainer", default="GRPO", choices=["GRPO", "RLOO", "DPO"])
    ap.add_argument("--bug", default="")
    ap.add_argument("--config", default="{}", help="of its configuration, as JSON")
    a = ap.parse_args()
    datasets.disable_progress_bars()
    run(a.trainer, a.hook, a.folder, json.loads(a.config), a.bug)
