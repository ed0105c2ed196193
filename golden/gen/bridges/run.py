"""The bridges, tried from end to end: what `verify export` prints is run as it stands in the pinned frameworks, and `verify dump` judges it.

    python3.11 golden/gen/bridges/run.py [--venv FOLDER] [--python EXECUTABLE] [--only WORD]

Makes a virtual environment in FOLDER (.venv/bridges) with requirements.txt, and the wheel in dist/ if there is one for this machine;
--python takes an environment that is there. Builds verify. Prints a line per trial; exit 0 if all went as expected.
"""
import argparse
import glob
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", ".."))
ALONE = ["verl==0.9.1", "openrlhf==0.11.2"]
TARGETS = {"trl": "plumbline_trl.py", "trl_rloo": "plumbline_trl_rloo.py", "trl_dpo": "plumbline_trl_dpo.py", "verl": "plumbline_verl.py", "openrlhf": "plumbline_openrlhf.py", "torch": "plumbline_torch.py", "pytest": "test_ppo_golden.py"}
GAE = ["--set", "gae.gamma=0.99", "--set", "gae.lambda=0.95", "--set", "kl.beta=0.05", "--set", "kl.kind=k1"]  # of verl's driver, which its workers do not know

# name, script and its arguments, folder of the dumps, options of verify dump, exit code, word of the explanation
TRIALS = [
    ("trl", "trl_toy.py HOOK DUMPS", "", ["--profile", "trl-grpo@1.16"], 0, ""),
    ("trl first step", "trl_toy.py HOOK DUMPS", "", ["--profile", "trl-grpo@1.16", "--first-step"], 0, ""),
    ("trl sequence level", 'trl_toy.py HOOK DUMPS --config {"importance_sampling_level":"sequence","loss_type":"dapo","beta":0.0,"num_iterations":1}', "",
     ["--profile", "trl-grpo@1.16"], 0, ""),
    ("trl bfloat16 model", 'trl_toy.py HOOK DUMPS --config {"model_init_kwargs":{"dtype":"bfloat16"}}', "", ["--profile", "trl-grpo@1.16"], 0, ""),
    ("trl two ranks", '-m torch.distributed.run --nproc_per_node 2 --master_port 29633 trl_toy.py HOOK DUMPS --config '
     '{"loss_type":"dapo","per_device_train_batch_size":2,"num_generations":8}', "", ["--profile", "trl-grpo@1.16"], 0, ""),
    ("trl groups over two steps", 'trl_toy.py HOOK DUMPS --config {"steps_per_generation":4,"max_steps":8}', "", ["--profile", "trl-grpo@1.16", "--require", "advantage/group"], 0, ""),
    ("trl groups over two steps, bug: std over n", 'trl_toy.py HOOK DUMPS --bug adv_std_ddof0 --config {"steps_per_generation":4,"max_steps":8}', "",
     ["--profile", "trl-grpo@1.16"], 1, "ADV-DDOF"),
    ("trl bug: sign of the KL", "trl_toy.py HOOK DUMPS --bug kl_sign", "", ["--profile", "trl-grpo@1.16"], 1, "KL-SIGN"),
    ("trl bug: std over n", "trl_toy.py HOOK DUMPS --bug adv_std_ddof0", "", ["--profile", "trl-grpo@1.16"], 1, "ADV-DDOF"),
    ("trl bug: local denominator", "trl_toy.py HOOK DUMPS --bug dapo_local_denominator", "", ["--profile", "trl-grpo@1.16"], 1, "AGG-LOCAL-DENOMINATOR"),
    ("verl grpo", "verl_toy.py HOOK", "", ["--profile", "verl-grpo@0.9"], 0, ""),
    ("verl ppo, actor", "verl_toy.py HOOK --ppo", "", ["--profile", "verl-ppo@0.9", *GAE], 0, ""),
    ("verl ppo, critic", "verl_toy.py HOOK --ppo", "critic", ["--profile", "verl-ppo@0.9", *GAE], 0, ""),
    ("verl grpo, groups over two mini-batches", "verl_toy.py HOOK --mini 2", "", ["--profile", "verl-grpo@0.9", "--require", "advantage/group"], 0, ""),
    ("verl ppo, two mini-batches", "verl_toy.py HOOK --ppo --mini 2", "", ["--profile", "verl-ppo@0.9", *GAE, "--require", "gae/advantage"], 0, ""),
    ("verl ppo, two mini-batches, critic", "verl_toy.py HOOK --ppo --mini 2", "critic", ["--profile", "verl-ppo@0.9", *GAE], 0, ""),
    ("verl gspo", 'verl_toy.py HOOK --actor {"policy_loss":{"loss_mode":"gspo"},"loss_agg_mode":"seq-mean-token-mean","clip_ratio_low":3e-4,"clip_ratio_high":4e-4}', "",
     ["--profile", "verl-grpo@0.9"], 0, ""),
    ("verl sapo beside a mean over tokens", 'verl_toy.py HOOK --actor {"policy_loss":{"loss_mode":"sapo"}}', "", ["--profile", "verl-grpo@0.9"], 0, ""),
    ("verl geo_mean", 'verl_toy.py HOOK --actor {"policy_loss":{"loss_mode":"geo_mean"}}', "", ["--profile", "verl-grpo@0.9"], 0, ""),
    ("verl dppo_kl", 'verl_toy.py HOOK --actor {"policy_loss":{"loss_mode":"dppo_kl"}}', "", ["--profile", "verl-grpo@0.9"], 0, ""),
    ("verl bug: bounds exchanged", "verl_toy.py HOOK --bug clip_bounds_swapped", "", ["--profile", "verl-grpo@0.9"], 1, "CLIP-SIDES-SWAPPED"),
    ("verl bug: no half", "verl_toy.py HOOK --ppo --bug value_loss_no_half", "critic", ["--profile", "verl-ppo@0.9", *GAE], 1, "VALUE-NO-HALF"),
    ("openrlhf group_norm", "openrlhf_toy.py HOOK DUMPS", "", ["--profile", "openrlhf-group@0.11"], 0, ""),
    ("openrlhf ppo, actor", "openrlhf_toy.py HOOK DUMPS --ppo", "", ["--profile", "openrlhf-ppo@0.11"], 0, ""),
    ("openrlhf ppo, critic", "openrlhf_toy.py HOOK DUMPS --ppo", "critic", ["--profile", "openrlhf-ppo@0.11"], 0, ""),
    ("openrlhf group_norm, groups over two steps", "openrlhf_toy.py HOOK DUMPS --mini 2", "", ["--profile", "openrlhf-group@0.11", "--require", "advantage/group"], 0, ""),
    ("openrlhf ppo, two steps", "openrlhf_toy.py HOOK DUMPS --ppo --mini 2", "", ["--profile", "openrlhf-ppo@0.11", "--require", "gae/advantage"], 0, ""),
    ("openrlhf bug: sign of the KL", "openrlhf_toy.py HOOK DUMPS --bug kl_sign", "", ["--profile", "openrlhf-group@0.11"], 1, "KL-SIGN"),
    ("openrlhf bug: no half", "openrlhf_toy.py HOOK DUMPS --ppo --bug critic_loss_no_half", "critic", ["--profile", "openrlhf-ppo@0.11"], 1, "VALUE-NO-HALF"),
    ("torch on verl's functions", "torch_peers.py HOOK DUMPS verl/clean/ppo", "", ["--profile", "verl-ppo@0.9"], 0, ""),
    ("torch on openrlhf's functions", "torch_peers.py HOOK DUMPS openrlhf/clean/group_norm", "", ["--profile", "openrlhf-group@0.11"], 0, ""),
    ("torch on verl's functions, bug", "torch_peers.py HOOK DUMPS verl/faulty/value_loss_no_half", "", ["--profile", "verl-ppo@0.9"], 1, "VALUE-NO-HALF"),
    ("torch on openrlhf's functions, bug", "torch_peers.py HOOK DUMPS openrlhf/faulty/gspo_per_token", "", ["--profile", "openrlhf-group@0.11"], 1, "agg.kind token"),
    ("torch, bad input", "robust.py HOOK", None, [], 0, ""),
    ("trl_rloo", "trl_toy.py HOOK DUMPS --trainer RLOO", "", ["--profile", "trl-rloo@1.16"], 0, ""),
    ("trl_rloo bug: the whole group's mean", "trl_toy.py HOOK DUMPS --trainer RLOO --bug rloo_whole_group", "", ["--profile", "trl-rloo@1.16"], 1, "ADV-CENTER"),
    ("trl_dpo", "trl_toy.py HOOK DUMPS --trainer DPO", "", [], 0, ""),
    ("trl_dpo sum of losses", 'trl_toy.py HOOK DUMPS --trainer DPO --config {"loss_type":["sigmoid","bco_pair","sft"],"loss_weights":[0.8,0.2,1.0]}', "", [], 0, ""),
    ("trl_dpo bug: sign of the rejected answer", 'trl_toy.py HOOK DUMPS --trainer DPO --bug dpo_bco_sign --config {"loss_type":["bco_pair"]}', "", [], 1, "DPO-TERMS"),
    ("trl, bad input", "trl_robust.py HOOK", None, [], 0, ""),
    ("pytest file", "check_pytest.py HOOK", None, [], 0, ""),
    ("wheel, run and callback and pytest plugin", "way_in.py", None, [], 0, ""),
]


def environment(folder):
    """A virtual environment with the pinned frameworks, made if it is not there."""
    python = os.path.join(folder, "bin", "python")
    done = os.path.join(folder, "plumbline-bridges")
    want = open(os.path.join(HERE, "requirements.txt"), encoding="utf-8").read() + "\n".join(ALONE)
    if not os.path.exists(done) or open(done, encoding="utf-8").read() != want:
        if sys.version_info[:2] != (3, 11):
            sys.exit(f"the pinned releases want Python 3.11, this is {sys.version.split()[0]}: python3.11 {sys.argv[0]}")
        started = time.time()
        print("installing the pinned frameworks (6 GB with the GPU libraries of PyTorch) …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", os.path.join(HERE, "requirements.txt")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *ALONE], check=True)
        with open(done, "w", encoding="utf-8") as f:
            f.write(want)
        print(f"installed in {time.time() - started:.0f} s", flush=True)
    wheels = glob.glob(os.path.join(ROOT, "dist", "plumbline_rl-*.whl"))
    if wheels:
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall", "--find-links", os.path.join(ROOT, "dist"), "plumbline-rl"], check=True)
    return python, bool(wheels)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--venv", default=os.path.join(ROOT, ".venv", "bridges"))
    ap.add_argument("--python", default="", help="an environment that is there")
    ap.add_argument("--only", default="", help="trials whose name holds this word")
    a = ap.parse_args()
    python, wheel = (a.python, False) if a.python else environment(a.venv)
    bad, count = [], 0
    with tempfile.TemporaryDirectory() as tmp:
        verify = os.path.join(tmp, "verify")
        subprocess.run([os.environ.get("GO", "go"), "build", "-o", verify, "./cmd/verify"], cwd=ROOT, check=True)
        hooks = {}
        for target, name in TARGETS.items():
            hooks[target] = os.path.join(tmp, name)
            with open(hooks[target], "wb") as f:
                subprocess.run([verify, "export", target.replace("_", "-")], stdout=f, check=True)
        if wheel:  # the program of the wheel stands for the one built here
            installed = os.path.join(os.path.dirname(python), "verify")
            same = subprocess.run([installed, "export", "trl"], capture_output=True, check=True).stdout == open(hooks["trl"], "rb").read()
            print(f"{'ok ' if same else 'BAD'} wheel: the installed verify prints the same hook", flush=True)
            bad += [] if same else ["wheel"]
        made = {}  # command → folder: trials of one run share it
        for name, command, sub, options, code, word in TRIALS:
            if a.only not in name or name.startswith("wheel") and not wheel:
                continue
            count += 1
            started = time.time()
            dumps = made.get(command)
            log = ""
            if dumps is None:
                dumps = os.path.join(tmp, f"dumps{len(made)}")
                target = name.split()[0].rstrip(",")
                args = [{"HOOK": hooks.get(target), "DUMPS": dumps}.get(x, os.path.join(HERE, x) if x.endswith(".py") else x) for x in command.split()]
                env = dict(os.environ, PLUMBLINE_DUMPS=dumps, PLUMBLINE_STRICT="1")
                done = subprocess.run([python, *args], cwd=tmp, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                log, got = done.stdout, done.returncode
                made[command] = dumps
                if got or sub is None:
                    ok = got == 0 and sub is None
                    line = (log.strip().splitlines() or [""])[-1]
                    print(f"{'ok ' if ok else 'BAD'} {name:36s} exit {got}  {line[:150]}  ({time.time() - started:.0f} s)", flush=True)
                    if not ok:
                        bad.append(name)
                        print(log[-4000:])
                    continue
            judged = subprocess.run([verify, "dump", os.path.join(dumps, sub), *options], capture_output=True, text=True)
            found = [x.strip() for x in judged.stdout.splitlines() if x.startswith("  ") and word in x]
            ok = judged.returncode == code and (not word or bool(found))
            last = (judged.stdout.strip() or judged.stderr.strip()).splitlines()[-1]
            print(f"{'ok ' if ok else 'BAD'} {name:36s} {(found[0][:110] if word and found else last)[:110]}  ({time.time() - started:.0f} s)", flush=True)
            if not ok:
                bad.append(name)
                print(judged.stdout[-4000:], judged.stderr[-1000:], log[-2000:])
    if not count:
        sys.exit(f"no trial's name holds {a.only!r}")
    print(f"bridges: {count - len(bad)} of {count} as expected" + (f"; not: {', '.join(bad)}" if bad else ""))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
