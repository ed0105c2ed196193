"""Logs that the loggers of verl 0.9.1, OpenRLHF 0.11.2, tensorboardX 2.6.4 and torch's SummaryWriter write themselves.

    python loggers.py golden/logs/loggers VERL OPENRLHF

VERL and OPENRLHF are unpacked wheels. The numbers are those of a small policy-gradient loop of this file, over 12 steps with one seed;
the names are the ones that the releases log. Python 3.11 with torch 2.15.0, tensorboard 2.20.0, tensorboardX 2.6.4, orjson.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import math
import os
import shutil
import sys
import tempfile
import types

import torch


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def loop(steps, temperature=1.0, nan_from=10**9):
    """A softmax over 16 actions, 64 draws a step: what a policy-gradient trainer logs. temperature is that of the engine alone."""
    torch.manual_seed(7)
    z = torch.zeros(16, requires_grad=True)
    opt = torch.optim.Adam([z], lr=0.05)
    for step in range(1, steps + 1):
        lp = z.log_softmax(-1)
        gen = (z.detach() / temperature).log_softmax(-1)
        y = torch.multinomial(gen.exp(), 64, replacement=True)
        reward = (y < 4).float()
        adv = (reward - reward.mean()) / (reward.std() + 1e-6)
        loss = -(adv * lp[y]).mean()
        opt.zero_grad()
        loss.backward()
        norm = z.grad.norm()
        opt.step()
        with torch.no_grad():
            new = z.log_softmax(-1)
            d = lp[y] - gen[y]
            m = dict(loss=loss.item(), entropy=-(lp.exp() * lp).sum().item(), grad_norm=norm.item(), reward=reward.mean().item(), lo=adv.min().item(), hi=adv.max().item(),
                     kl=(lp[y] - new[y]).mean().item(), gap=d.abs().mean().item(), engine_kl=-d.mean().item(), probs=(lp[y].exp() - gen[y].exp()).abs().mean().item(), std=reward.std().item())
        if step >= nan_from:
            m.update(loss=math.nan, grad_norm=math.nan)
        yield step, m


def verl(m, step):
    return {"training/global_step": step, "training/epoch": 0, "actor/pg_loss": m["loss"], "actor/ppo_kl": m["kl"], "actor/pg_clipfrac": 0.0, "actor/pg_clipfrac_lower": 0.0, "actor/entropy": m["entropy"],
            "actor/grad_norm": m["grad_norm"], "actor/lr": 1e-6, "critic/score/mean": m["reward"], "critic/score/max": 1.0, "critic/score/min": 0.0, "critic/rewards/mean": m["reward"],
            "critic/advantages/mean": 0.0, "critic/advantages/max": m["hi"], "critic/advantages/min": m["lo"], "response_length/mean": 1.0, "response_length/max": 1.0, "response_length/min": 1.0,
            "response_length/clip_ratio": 0.0, "training/rollout_probs_diff_mean": m["probs"], "rollout_corr/kl": m["engine_kl"], "timing_s/gen": 0.5, "timing_s/step": 1.0, "perf/throughput": 64.0}


def openrlhf(m, step):
    return {"policy_loss": m["loss"], "entropy_loss": -m["entropy"], "actor_lr": 1e-6, "actor_grad_norm": m["grad_norm"], "ppo_clip_ratio": 0.0, "ppo_kl": m["kl"], "vllm_kl": m["engine_kl"], "kl": 0.0,
            "reward": m["reward"], "response_length": 1.0, "total_length": 2.0, "group_reward_std": m["std"]}


def hf(m, step):
    return {"train/loss": m["loss"], "train/grad_norm": m["grad_norm"], "train/learning_rate": 1e-6, "train/entropy": m["entropy"], "train/reward": m["reward"]}


def events(folder, to):
    for d, _, names in os.walk(folder):
        for n in names:
            if "tfevents" in n:
                shutil.copy(os.path.join(d, n), to)


def main():
    out, verl_root, openrlhf_root = sys.argv[1:4]
    shutil.rmtree(out, ignore_errors=True)
    wheel = os.path.join(verl_root, "verl", "utils")
    aggregate = load("verl_aggregate", os.path.join(wheel, "logger", "aggregate_logger.py"))
    pkg = types.ModuleType("verl.utils.logger")
    pkg.LocalLogger = aggregate.LocalLogger
    sys.modules.update({"verl": types.ModuleType("verl"), "verl.utils": types.ModuleType("verl.utils"), "verl.utils.logger": pkg})
    tracking = load("verl_tracking", os.path.join(wheel, "tracking.py"))
    for name, args in {"healthy": {}, "temperature": {"temperature": 0.1}, "nan": {"nan_from": 6}}.items():
        to = os.path.join(out, "verl-" + name)
        os.makedirs(to)
        with tempfile.TemporaryDirectory() as tmp:
            os.environ.update(VERL_FILE_LOGGER_PATH=os.path.join(to, "metrics.jsonl"), TENSORBOARD_DIR=tmp)
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                t = tracking.Tracking("project", "run", ["console", "file", "tensorboard"])
                for step, m in loop(12, **args):
                    t.log(verl(m, step), step)
                t.finish()
            events(tmp, os.path.join(to, "events.out.tfevents.1"))
            with open(os.path.join(to, "console.log"), "w") as f:
                f.write(text.getvalue().replace(os.path.abspath(to), "RUN").replace(to, "RUN").replace(tmp, "EVENTS"))

    for name, args in {"healthy": {}, "nan": {"nan_from": 6}}.items():
        to = os.path.join(out, "openrlhf-" + name)
        os.makedirs(to)
        with tempfile.TemporaryDirectory() as tmp:
            console = io.StringIO()
            with contextlib.redirect_stdout(console):  # its logger takes the stdout of its import
                log_utils = load("openrlhf_logging_" + name, find(openrlhf_root, "logging_utils.py"))
                writer = log_utils.TensorboardLogger(types.SimpleNamespace(logger=types.SimpleNamespace(tensorboard_dir=tmp, wandb=types.SimpleNamespace(run_name="run"))))
                log_utils._default_handler.setStream(console)
                for step, m in loop(12, **args):
                    writer.log_train(step, openrlhf(m, step))
                    log_utils._root_logger.info(f"✨ Global step {step}: {openrlhf(m, step)}")
            writer.close()
            events(tmp, os.path.join(to, "events.out.tfevents.1"))
            with open(os.path.join(to, "console.log"), "w") as f:
                f.write(console.getvalue())

    import tensorboardX
    from torch.utils.tensorboard import SummaryWriter

    for name, make in {"tensorboardx": tensorboardX.SummaryWriter, "torch-writer": SummaryWriter}.items():
        to = os.path.join(out, name)
        os.makedirs(to)
        with tempfile.TemporaryDirectory() as tmp:
            w = make(tmp)
            w.add_text("config", "learning rate 1e-6")
            w.add_histogram("weights", torch.arange(32.0).numpy(), 0)
            for step, m in loop(12):
                for k, v in hf(m, step).items():
                    w.add_scalar(k, v, step)
                w.add_histogram("weights", torch.arange(32.).numpy() * step, step)
            w.close()
            for d, _, names in os.walk(tmp):
                for i, n in enumerate(sorted(names, key=lambda n: -os.path.getsize(os.path.join(d, n)))):
                    shutil.copy(os.path.join(d, n), os.path.join(to, f"events.out.tfevents.{i + 1}"))
    manifest(os.path.dirname(os.path.abspath(out)))


def manifest(folder):
    """Adds the files to manifest.json of golden/logs, whose first producer is trl_logs.py."""
    path = os.path.join(folder, "manifest.json")
    with open(path) as f:
        m = json.load(f)
    m["versions"].update({"verl": "0.9.1", "openrlhf": "0.11.2", "tensorboardX": "2.6.4", "wandb": "0.31.0", "pandas": "2.3.3"})
    m["sha256"] = {k: v for k, v in m["sha256"].items() if not k.startswith("loggers/")}
    for d, _, names in os.walk(os.path.join(folder, "loggers")):
        for n in names:
            with open(os.path.join(d, n), "rb") as f:
                m["sha256"][os.path.relpath(os.path.join(d, n), folder)] = hashlib.sha256(f.read()).hexdigest()
    m["sha256"] = dict(sorted(m["sha256"].items()))
    with open(path, "w") as f:
        json.dump(m, f, indent=1)


def find(root, name):
    return next(os.path.join(d, name) for d, _, names in os.walk(root) if name in names)


if __name__ == "__main__":
    main()
