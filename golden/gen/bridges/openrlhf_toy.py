"""OpenRLHF 0.11.2's own training_step of actor and critic, with the hook that `verify export openrlhf` printed, as it stands, on the
policy of toy.py (CPU).

    python openrlhf_toy.py HOOK.py FOLDER [--ppo] [--bug NAME] [--mini N]

The release is installed without its dependencies and never imported (ray, deepspeed): its functions are parsed out of its files by
golden/gen/rl/peerload.py. Ours are the model, the sampler, the replay and a strategy that divides the loss as DeepSpeed does.
"""
import argparse
import dataclasses
import importlib.metadata
import importlib.util
import os
import sys
import types
from typing import Any, Dict, List, Optional, Union

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "rl"), os.path.join(HERE, "..", "dumps")]
import torch

import peerload
import toy

torch.set_num_threads(1)
T, PROMPTS, GROUP, MICRO = 14, 2, 4, 2
NS = types.SimpleNamespace

# name → (function or class, statement, replacement)
BUGS = {
    "critic_loss_no_half": ("models/loss.py", "return 0.5 * loss", "return 1.0 * loss"),
    "kl_sign": ("trainer/ray/ppo_actor.py", "loss = actor_loss + kl_loss * kl_ctl", "loss = actor_loss - kl_loss * kl_ctl"),
}


def release(bug, tmp):
    """The functions of the release, with the bug in a copy of its file."""
    import shutil
    root = importlib.metadata.distribution("openrlhf").locate_file("openrlhf")
    base = os.path.join(tmp, "x.data", "purelib", "openrlhf")
    for f in ("models/loss.py", "models/utils.py", "trainer/ppo_utils/experience_maker.py", "trainer/ppo_utils/experience.py",
              "trainer/ray/ppo_actor.py", "trainer/ray/ppo_critic.py", "utils/loss_utils.py"):
        os.makedirs(os.path.dirname(os.path.join(base, f)), exist_ok=True)
        text = open(os.path.join(root, f), encoding="utf-8").read()
        if bug and BUGS[bug][0] == f:
            _, old, new = BUGS[bug]
            if text.count(old) != 1:
                raise RuntimeError(f"{f}: statement found {text.count(old)} times: {old!r}")
            print(f"planted in {f}:{text[:text.index(old)].count(chr(10)) + 1}", flush=True)
            text = text.replace(old, new)
        open(os.path.join(base, f), "w", encoding="utf-8").write(text)
    lib = peerload.openrlhf(os.path.dirname(base))
    ex = dict(torch=torch, field=dataclasses.field, fields=dataclasses.fields, dataclass=dataclasses.dataclass, Any=Any, List=List, Union=Union)
    peerload._functions(os.path.join(base, "trainer/ppo_utils/experience.py"), ex)
    Experience = dataclasses.dataclass(ex["Experience"])
    info = dict(torch=torch, dist=torch.distributed, Optional=Optional)
    peerload._functions(os.path.join(base, "utils/loss_utils.py"), info)
    ns = dict(torch=torch, aggregate_loss=lib.loss["aggregate_loss"], compute_approx_kl=lib.ut["compute_approx_kl"], masked_mean=lib.ut["masked_mean"],
              get_loss_batch_info=info["get_loss_batch_info"], Experience=Experience, fields=dataclasses.fields, Optional=Optional, Dict=Dict)
    steps = [dict(ns), dict(ns)]
    for n, file, cls in ((0, "ppo_actor.py", "ActorPPOTrainer"), (1, "ppo_critic.py", "CriticPPOTrainer")):
        peerload._functions(os.path.join(base, "trainer/ray", file), steps[n], want={"training_step"}, cls=cls)
    return lib, Experience, info["iter_grad_accum_global_norm"], steps[0]["training_step"], steps[1]["training_step"]


class Strategy:
    """What training_step asks of DeepspeedStrategy."""
    ring_attn_group = None

    def __init__(self, args):
        self.args, self.accumulated_gradient, self.time = args, MICRO, {}

    def backward(self, loss, model, optimizer):
        (loss / self.accumulated_gradient).backward()

    def optimizer_step(self, optimizer, model, scheduler, name):
        self.time[name] = self.time.get(name, 0) + 1
        if self.time[name] % self.accumulated_gradient == 0:
            optimizer.step()
            optimizer.zero_grad()

    def get_grad_norm(self, model):
        return 0.0


def released_name():
    """Strategy, imported from a module that has the name of OpenRLHF's, as plumbline run waits for it."""
    import inspect
    import tempfile
    with tempfile.TemporaryDirectory() as tmp:
        folder = tmp
        for part in ("openrlhf", "utils", "deepspeed"):
            folder = os.path.join(folder, part)
            os.mkdir(folder)
            open(os.path.join(folder, "__init__.py"), "w").close()
        with open(os.path.join(folder, "deepspeed.py"), "w", encoding="utf-8") as f:
            f.write("MICRO = %d\n\n\n%s" % (MICRO, inspect.getsource(Strategy).replace("class Strategy", "class DeepspeedStrategy")))
        sys.path.insert(0, tmp)
        from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy
        sys.path.remove(tmp)
    return DeepspeedStrategy


class Model:
    """The policy or its value head, called as OpenRLHF calls its models."""

    def __init__(self, policy, critic, entropy):
        self.policy, self.critic, self.entropy = policy, critic, entropy

    def train(self):
        pass

    def __call__(self, ids, action_mask, **_):
        z, lp, values = self.policy.response(ids, action_mask.shape[1])
        return values if self.critic else lp, NS(aux_loss=0, entropy=self.entropy(z))


def flags(ppo, mini):
    return NS(actor=NS(eps_clip_low_high=[0.2, 0.28], dual_clip=None, policy_loss_type="ppo", loss_agg_mode="token-mean", entropy_coef=0.01, aux_loss_coef=0),
              critic=NS(value_clip=0.1), reward=NS(clip_range=(-10.0, 10.0)), rollout=NS(batch_size=PROMPTS, n_samples_per_prompt=GROUP, temperature=1.0),
              algo=NS(advantage=NS(estimator="gae" if ppo else "group_norm", gamma=0.99 if ppo else 1.0, lambd=0.95, no_std_norm=False, is_correction_level="off"),
                      kl=NS(estimator="k1" if ppo else "k3", use_loss=not ppo, init_coef=0.05, unbiased_gradient=False)),
              train=NS(batch_size=PROMPTS * GROUP // mini, dynamic_batch_enable=False, max_epochs=2))


def main():
    import tempfile
    ap = argparse.ArgumentParser()
    ap.add_argument("hook")
    ap.add_argument("folder")
    ap.add_argument("--ppo", action="store_true")
    ap.add_argument("--bug", choices=sorted(BUGS))
    ap.add_argument("--mini", type=int, default=1, help="optimiser steps of a pass over the replay buffer, shuffled")
    a = ap.parse_args()
    global Strategy
    if a.hook == "-":
        Strategy = released_name()
    else:
        spec = importlib.util.spec_from_file_location("plumbline_openrlhf", a.hook)
        hook = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        hook.install(Strategy, a.folder)
    with tempfile.TemporaryDirectory() as tmp:
        lib, Experience, window, actor_step, critic_step = release(a.bug, tmp)
    args = flags(a.ppo, a.mini)
    maker = lib.Maker()
    maker.advantage_estimator, maker.kl_ctl, maker.strategy = args.algo.advantage.estimator, NS(value=args.algo.kl.init_coef), NS(args=args)
    policy = toy.Toy(5)
    ref = toy.near(policy, 6, 0.15)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    strategy, scheduler = Strategy(args), NS(get_last_lr=lambda: [0.02])
    common = dict(strategy=strategy, args=args, replay_buffer=None, ema_model=None, aux_loss=False)
    entropy = lib.ut["compute_entropy"]
    actor = NS(**common, actor=Model(policy, False, entropy), actor_optim=optimizer, actor_scheduler=scheduler,
               actor_loss_fn=lib.loss["PolicyLoss"](*args.actor.eps_clip_low_high))
    critic = NS(**common, critic=Model(policy, True, entropy), critic_optim=optimizer, critic_scheduler=scheduler,
                critic_loss_fn=lib.loss["ValueLoss"](args.critic.value_clip))
    for rollout in range(2):
        engine = toy.near(policy, 7, 0.002)  # it has got the weights of the last update
        ids, att, mask, group, _ = toy.sample(policy, PROMPTS, GROUP, T, 60 + rollout)
        with torch.no_grad():
            _, old, values = policy.response(ids, T)
            gen, base = engine.response(ids, T)[1], ref.response(ids, T)[1]
        place, seen = [], {}
        for g in group.tolist():
            place.append(g * GROUP + seen.setdefault(g, 0))
            seen[g] += 1
        kl = lib.ut["compute_approx_kl"](old, base, kl_estimator="k1") if a.ppo else torch.zeros_like(old)
        e = Experience(sequences=ids, attention_mask=att, action_mask=mask, action_log_probs=old, base_action_log_probs=base, rollout_log_probs=gen,
                       values=values if a.ppo else None, kl=kl, rewards=toy.score(ids, mask), index=place, prompts=[f"{rollout} {g}" for g in group.tolist()])
        maker.compute_advantages_and_returns([e])
        pick = lambda x, rows: x[rows] if torch.is_tensor(x) else [x[i] for i in rows] if isinstance(x, list) and x else x
        for epoch in range(args.train.max_epochs):
            order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(epoch)) if a.mini > 1 else torch.arange(len(ids))
            parts = [Experience(**{f.name: pick(getattr(e, f.name), rows) for f in dataclasses.fields(Experience) if f.name != "info"})
                     for rows in order.chunk(MICRO * a.mini)]
            for step, (part, info) in enumerate(window(parts, strategy, MICRO, lambda p: p.action_mask)):
                actor_step(actor, part, args.algo.kl.init_coef if not a.ppo else 0.05, step, info)
            if a.ppo:
                for step, (part, info) in enumerate(window(parts, strategy, MICRO, lambda p: p.action_mask)):
                    critic_step(critic, part, step, info)


if __name__ == "__main__":
    main()
