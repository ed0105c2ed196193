"""plumbline run, the callback and the pytest plugin of the wheel, tried on scripts that know nothing of them.

    python golden/gen/bridges/way_in.py [--only WORD]

run by `make bridges` in the environment of run.py, with the wheel installed. A bug of TRL is a statement replaced in a copy of the
release; those of verl and OpenRLHF are the toys'. Prints a line per trial; exit 0 if all went as expected.
"""
import argparse
import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from trl_bugs import BUGS

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", ".."))
BIN = os.path.dirname(sys.executable)
EXAMPLE = os.path.join(ROOT, "examples", "trl_grpo.py")
LOOP = os.path.join(ROOT, "examples", "torch_loop.py")
NOTEBOOK = f"""
import json
for cell in json.load(open({os.path.join(ROOT, 'examples', 'judge.ipynb')!r}, encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]))
print("EXECUTED")
"""
GAE = ["--set", "gae.gamma=0.99", "--set", "gae.lambda=0.95", "--set", "kl.beta=0.05", "--set", "kl.kind=k1"]  # of verl's driver
DDOF = ("std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)", "std_rewards = rewards.view(-1, num_generations).std(dim=1, correction=0)")

CALLBACK = """
import sys
sys.path.insert(0, %r)
import transformers, trl_grpo
from plumbline.trl import PlumblineCallback
seen = PlumblineCallback(folder=sys.argv[1], every=1, stop=len(sys.argv) > 2)
real = trl_grpo.GRPOTrainer
trl_grpo.GRPOTrainer = lambda *a, **k: real(*a, callbacks=[seen], **k)
trl_grpo.main(6)
print("VERDICT", seen.verdict.exit, seen.verdict.headline, "STEPS", seen.session.cost()["steps"], "LOST", seen.session.cost()["lost"])
""" % os.path.dirname(EXAMPLE)

TRL = """
import sys
sys.path.insert(0, %r)
import trl_grpo
model, tokenizer, prompts = trl_grpo.toy()
model.save_pretrained("tiny")
tokenizer.save_pretrained("tiny")
prompts.to_json("prompts/train.jsonl")
""" % os.path.dirname(EXAMPLE)

PYTEST = """
import numpy as np, sys
sys.path.insert(0, %r)

def test_loop(plumbline):
    plumbline.profile = "trl-grpo@1.16"
    scores = np.random.default_rng(0).normal(size=(4, 8))
    adv = (scores - scores.mean(1, keepdims=True)) / (scores.std(1, ddof=DDOF, keepdims=True) + 1e-4)
    plumbline.dump(step=1, framework="trl", algorithm="grpo", response_mask=np.ones((32, 5), bool), scores=scores.reshape(-1),
                   group_id=np.arange(32) // 8, advantages=adv.reshape(-1))

def test_trl():
    import trl_grpo
    trl_grpo.main(2)
""" % os.path.dirname(EXAMPLE)


def release(tmp, trainer, old, new):
    """A copy of TRL with a statement of a trainer replaced, on the path before the release."""
    root = os.path.join(tmp, "patched-" + trainer)
    source = os.path.dirname(importlib.util.find_spec("trl").origin)
    shutil.copytree(source, os.path.join(root, "trl"), ignore=shutil.ignore_patterns("__pycache__"))
    path = os.path.join(root, "trl", "trainer", trainer + "_trainer.py")
    text = open(path, encoding="utf-8").read()
    if text.count(old) != 1:
        raise RuntimeError(f"{path}: statement found {text.count(old)} times: {old!r}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(old, new))
    return {"PYTHONPATH": root}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--only", default="")
    a = ap.parse_args()
    bad, count = [], 0
    with tempfile.TemporaryDirectory() as tmp:
        os.chdir(tmp)
        buggy = release(tmp, "grpo", *DDOF)
        planted = {k: release(tmp, k, p.old, p.new) for k, p in (("rloo", BUGS["rloo_whole_group"]), ("dpo", BUGS["dpo_bco_sign"]))}
        toy = lambda name: os.path.join(HERE, name)
        for name, text in (("callback.py", CALLBACK), ("test_clean.py", PYTEST.replace("DDOF", "1")), ("test_bug.py", PYTEST.replace("DDOF", "0"))):
            with open(name, "w", encoding="utf-8") as f:
                f.write(text)
        subprocess.run([sys.executable, "-c", TRL], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.copy(EXAMPLE, ".")  # its reward
        command = [os.path.join(BIN, "trl"), "grpo", *("--model_name_or_path tiny --dataset_name prompts --reward_funcs trl_grpo.digits --output_dir out --use_cpu true --bf16 false "
                   "--report_to none --save_strategy no --max_steps 3 --learning_rate 4e-4 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 4 "
                   "--max_completion_length 20").split()]
        run, test = [os.path.join(BIN, "plumbline"), "run"], [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        ranks = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29641", EXAMPLE, "3"]
        # name, command line, environment, exit code, words that the output has, words that it has not
        trials = [
            ("trl, clean", [*run, EXAMPLE], {}, 0, ["steps agree with TRL 1.16.0", "of 4 steps dumped"], ["could not be dumped"]),
            ("trl, every step", [*run, "--every", "1", EXAMPLE], {}, 0, ["checks on 4 steps agree", "4 of 4 steps dumped"], []),
            ("trl, bug: std over n", [*run, EXAMPLE], buggy, 1, ["ADV-DDOF"], []),
            ("trl, bug, stopped", [*run, "--stop", "--every", "1", EXAMPLE, "4000"], buggy, 1, ["ADV-DDOF", "stopped at the first failure"], []),
            ("trl, two ranks", [*run, "--every", "1", *ranks], {}, 0, ["agree with TRL 1.16.0", "3 of 3 steps dumped, 12 files"], ["could not be dumped"]),
            ("trl grpo", [*run, "--every", "1", "--", *command], {}, 0, ["agree with TRL 1.16.0", "3 of 3 steps dumped"], ["could not be dumped"]),
            ("trl grpo, bug", [*run, "--", *command], buggy, 1, ["ADV-DDOF"], []),
            ("trl, rows", [*run, "--rows", "2", EXAMPLE], {}, 0, ["agree with TRL"], ["✗"]),
            ("trl, size limit", [*run, "--every", "1", "--limit", "30KB", EXAMPLE], {}, 0, ["the size limit was reached"], []),
            ("trl, callback", [sys.executable, "callback.py", "calls"], {}, 0, ["VERDICT 0", "STEPS 6 LOST []"], []),
            ("trl, callback, bug, stopped", [sys.executable, "callback.py", "calls-bug", "stop"], buggy, 0, ["VERDICT 1 ADV-DDOF:", "STEPS 1 "], []),
            ("trl rloo, clean", [*run, toy("trl_toy.py"), "-", "x", "--trainer", "RLOO"], {}, 0, ["agree with TRL 1.16.0"], ["could not be dumped"]),
            ("trl rloo, bug", [*run, toy("trl_toy.py"), "-", "x", "--trainer", "RLOO"], planted["rloo"], 1, ["ADV-CENTER"], []),
            ("trl dpo, clean", [*run, toy("trl_toy.py"), "-", "x", "--trainer", "DPO"], {}, 0, ["agree with what is declared"], ["could not be dumped"]),
            ("trl dpo, bug", [*run, toy("trl_toy.py"), "-", "x", "--trainer", "DPO", "--config", '{"loss_type":["bco_pair"]}'], planted["dpo"], 1, ["DPO-TERMS"], []),
            ("verl, clean", [*run, toy("verl_toy.py"), "-"], {}, 0, ["agree with verl 0.9.1"], []),
            ("verl, bug: bounds exchanged", [*run, toy("verl_toy.py"), "-", "--bug", "clip_bounds_swapped"], {}, 1, ["CLIP-SIDES-SWAPPED"], []),
            ("verl ppo, bug: no half", [*run, *GAE, toy("verl_toy.py"), "-", "--ppo", "--bug", "value_loss_no_half"], {}, 1, ["VALUE-NO-HALF"], []),
            ("verl in a worker of Ray", [*run, toy("ray_toy.py")], {}, 0, ["another process hooked", "agree with verl 0.9.1"], []),
            ("verl in a worker of Ray, bug", [*run, toy("ray_toy.py"), "--bug", "clip_bounds_swapped"], {}, 1, ["another process hooked", "CLIP-SIDES-SWAPPED"], []),
            ("openrlhf, clean", [*run, toy("openrlhf_toy.py"), "-", "x"], {}, 0, ["agree with OpenRLHF 0.11.2"], []),
            ("openrlhf, bug: sign of the KL", [*run, toy("openrlhf_toy.py"), "-", "x", "--bug", "kl_sign"], {}, 1, ["KL-SIGN"], []),
            ("pytest, clean", [*test, "--plumbline", "test_clean.py"], {}, 0, ["2 passed"], []),
            ("pytest, bug in a loop", [*test, "test_bug.py", "-k", "loop"], {}, 1, ["AssertionError: ADV-DDOF:"], []),
            ("pytest, bug in TRL", [*test, "--plumbline", "test_clean.py"], buggy, 1, ["test_trl - AssertionError: ADV-DDOF:", "1 failed, 1 passed"], []),
            ("plain loop, clean", ["bash", "-c", f"{sys.executable} {LOOP} loop && {run[0]} dump loop --profile trl-grpo@1.16"], {}, 0, ["agree with TRL 1.16.0"], []),
            ("plain loop, bug: std over n", ["bash", "-c", f"{sys.executable} {LOOP} loop-bug --bug && {run[0]} dump loop-bug --profile trl-grpo@1.16"], {}, 1, ["ADV-DDOF"], []),
            ("notebook", [sys.executable, "-c", NOTEBOOK], {}, 0, ["ADV-DDOF", "EXECUTED"], []),
            ("nothing to hook", [*run, "--", sys.executable, "-c", "print(1)"], {}, 5, ["nothing was dumped"], []),
            ("command fails", [*run, "--", sys.executable, "-c", "raise SystemExit(7)"], {}, 7, ["exit code 7"], []),
        ]
        for name, line, env, code, words, never in trials:
            if a.only not in name:
                continue
            count += 1
            started = time.time()
            done = subprocess.run(line, env=dict(os.environ, OMP_NUM_THREADS="1", COLUMNS="160", TERM="dumb", PLUMBLINE_STRICT="", **env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            missing = [w for w in words if w not in " ".join(done.stdout.split())] + [f"not {w}" for w in never if w in done.stdout]
            ok = done.returncode == code and not missing
            cost = [x for x in done.stdout.splitlines() if " ms each" in x]
            print(f"{'ok ' if ok else 'BAD'} {name:32s} exit {done.returncode}  {cost[0][11:] if cost else ''}  ({time.time() - started:.0f} s)", flush=True)
            if not ok:
                bad.append(name)
                print(f"want exit {code}, {missing}\n{done.stdout[-4000:]}")
        left = [f for f in glob.glob(os.path.join(tmp, "plumbline-runs", "*", "cost-*.json")) if json.load(open(f, encoding="utf-8"))["lost"]]
        if left:
            bad.append("lost micro-batches: " + ", ".join(left))
    if not count:
        sys.exit(f"no trial's name holds {a.only!r}")
    print(f"way in: {count - len(bad)} of {count} as expected" + (f"; not: {', '.join(bad)}" if bad else ""))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
