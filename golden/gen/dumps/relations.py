"""Pairs of toy runs of TRL 1.16.0's GRPOTrainer for verify diff --relation: python relations.py OUT (golden/relations).

Each run is one of trl_grpo.py's dumps, 8 completions an update. Pairs that keep their relation: the same run twice, 1x8 against 2x4
micro-batches under a global denominator, other padding, saved and resumed. Pairs that break it: bnpo's mean of means (a setting of the
release), dropout under another partition, a checkpoint without its random state, from which transformers seeds
the order of the data, a beta that the loss does not read. expect.json names
for each pair the two runs, the relation, and the cause that must be named, "" for none. Versions as trl_grpo.py.
"""
import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile

import trl_grpo as G
from patch import Patch
from trl_grpo_cases import Case

PLAIN = dict(per_device_train_batch_size=8, gradient_accumulation_steps=1, num_iterations=1, max_completion_length=10, loss_type="dapo")
HALVES = dict(PLAIN, per_device_train_batch_size=4, gradient_accumulation_steps=2)
BETA = "self.beta * per_token_kl"
RUNS = {  # configuration, patches, dropout
    "plain": (PLAIN, [], 0), "again": (PLAIN, [], 0), "halves": (HALVES, [], 0), "padded": (dict(PLAIN, pad_to_multiple_of=16), [], 0),
    "bnpo": (dict(PLAIN, loss_type="bnpo"), [], 0), "bnpo-halves": (dict(HALVES, loss_type="bnpo"), [], 0),
    "dropout": (PLAIN, [], 0.2), "dropout-halves": (HALVES, [], 0.2),
    "beta": (dict(PLAIN, beta=0.4), [], 0), "beta-ignored": (dict(PLAIN, beta=0.4), [Patch("_compute_loss", BETA, "0.04 * per_token_kl")], 0),
}
PAIRS = [("plain", "again", "repeat", ""), ("plain", "halves", "partition", ""), ("plain", "padded", "padding", ""), ("plain", "resumed", "resume", ""), ("plain", "beta", "toggle=kl.beta", ""),
         ("bnpo", "bnpo-halves", "partition", "AGG-LOCAL-DENOMINATOR"), ("dropout", "dropout-halves", "partition", "BATCH-SEEN"), ("plain", "rng-lost", "resume", "DATA-ORDER-LOST"),
         ("plain", "beta-ignored", "toggle=kl.beta", "OPTION-IGNORED")]
STEPS = 4


def run(folder, config, patches, dropout, keep=None, resume=None):
    os.makedirs(folder)
    case = Case(folder="", what="", seed=11, config=config)
    cls, _ = G.trainer_class(patches)
    with tempfile.TemporaryDirectory() as tmp:
        path = G.tiny.save(os.path.join(tmp, "model"), case.seed)
        if dropout:
            with open(os.path.join(path, "config.json")) as f:
                c = json.load(f)
            c["attention_dropout"] = dropout
            with open(os.path.join(path, "config.json"), "w") as f:
                json.dump(c, f)
        base = dict(output_dir=keep or os.path.join(tmp, "out"), use_cpu=True, bf16=False, report_to=[], save_strategy="steps" if keep else "no", save_steps=2, logging_steps=1,
                    disable_tqdm=True, seed=case.seed, max_steps=STEPS, num_generations=4, learning_rate=4e-4, lr_scheduler_type="constant", temperature=0.9, beta=0.04,
                    epsilon=0.2, gradient_checkpointing=False, model_init_kwargs={"dtype": G.torch.float32}, dataloader_pin_memory=False, disable_dropout=False)
        args = G.GRPOConfig(**{**base, **config})
        data = G.datasets.Dataset.from_dict({"prompt": G.tiny.PROMPTS})
        t = cls(model=path, reward_funcs=[G.REWARDS[r] for r in case.rewards], args=args, train_dataset=data, processing_class=G.tiny.tokenizer(case.pad_is_eos))
        t.arm(folder, case, False)
        t.remove_callback(G.transformers.PrinterCallback)
        t.train(resume_from_checkpoint=resume)


def store(out):
    """expect.json, and manifest.json with the sums of all files."""
    with open(os.path.join(out, "expect.json"), "w") as f:
        json.dump([dict(a=a, b=b, relation=r, cause=c) for a, b, r, c in PAIRS], f, indent=1)
    sums = {}
    for d, _, names in os.walk(out):
        for n in names:
            if n != "manifest.json":
                with open(os.path.join(d, n), "rb") as f:
                    sums[os.path.relpath(os.path.join(d, n), out)] = hashlib.sha256(f.read()).hexdigest()
    versions = {"torch": G.torch.__version__.split("+")[0], "transformers": G.transformers.__version__, "trl": G.trl.__version__}
    with open(os.path.join(out, "manifest.json"), "w") as f:
        json.dump({"producer": "golden/gen/dumps/relations.py", "seed": 11, "versions": versions, "sha256": dict(sorted(sums.items()))}, f, indent=1)


def main():
    out = sys.argv[1]
    shutil.rmtree(out, ignore_errors=True)
    for name, (config, patches, dropout) in RUNS.items():
        run(os.path.join(out, name), config, patches, dropout)
        print(name, flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        run(os.path.join(tmp, "saved"), PLAIN, [], 0, keep=os.path.join(tmp, "run"))
        checkpoint = os.path.join(tmp, "run", "checkpoint-2")
        run(os.path.join(out, "resumed"), PLAIN, [], 0, keep=os.path.join(tmp, "run"), resume=checkpoint)
        for f in glob.glob(os.path.join(checkpoint, "rng_state*")):
            os.remove(f)
        run(os.path.join(out, "rng-lost"), PLAIN, [], 0, keep=os.path.join(tmp, "run"), resume=checkpoint)
    store(out)


if __name__ == "__main__":
    main()
