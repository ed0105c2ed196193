"""verl 0.9.1's own ppo_loss and value_loss, with the hook that `verify export verl` printed, as it stands, on the policy of toy.py (CPU).

    PLUMBLINE_DUMPS=FOLDER python verl_toy.py HOOK.py [--ppo] [--bug NAME] [--mini N] [--actor JSON]

Ours are the model, the sampler and the loop over mini-batches; advantages, losses and configurations are the release's.
"""
import argparse
import importlib.util
import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "dumps"))
import numpy as np
import torch

import toy
import verl.trainer.ppo.core_algos as core
import verl.utils.tensordict_utils as tdu
import verl.workers.utils.losses as losses
from verl.workers.config import CriticConfig, FSDPActorConfig
from verl.workers.config.actor import PolicyLossConfig

torch.set_num_threads(1)
T, MICRO = 14, 2

# statements of the release that a bug replaces; each must stand there once
BUGS = {
    "value_loss_no_half": ("compute_value_loss", "vf_loss = 0.5 * agg_loss(", "vf_loss = 1.0 * agg_loss("),
    "clip_bounds_swapped": ("compute_policy_loss_vanilla", "ratio, 1 - cliprange_low, 1 + cliprange_high", "ratio, 1 - cliprange_high, 1 + cliprange_low"),
}


def plant(name):
    """Compile the function again with the bug in it, and put it wherever the release holds it."""
    import inspect
    function, old, new = BUGS[name]
    real = getattr(core, function)
    text = inspect.getsource(real)
    if text.count(old) != 1:
        raise RuntimeError(f"{function}: statement found {text.count(old)} times: {old!r}")
    exec(compile(text.replace(old, new), core.__file__, "exec"), vars(core))
    if hasattr(losses, function):
        setattr(losses, function, getattr(core, function))
    print("planted in", function, flush=True)


def unpadded(logits, ids, attention):
    """Log-probs as the engine hands them over: the rows without padding one after another, entry s about token s + 1."""
    lp = torch.cat([logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1), torch.zeros(len(ids), 1)], 1)
    return lp[attention.bool()]


def batch(policy, ref, engine, seed, ppo):
    """What verl's driver sends to the workers, padded: ids, masks, log-probs, scores, advantages."""
    ids, att, mask, group, _ = toy.sample(policy, 2, 4, T, seed)
    with torch.no_grad():
        _, old, values = policy.response(ids, T)
        d = {"input_ids": ids, "attention_mask": att, "prompts": ids[:, :-T], "responses": ids[:, -T:], "response_mask": mask, "old_log_probs": old,
             "rollout_log_probs": engine.response(ids, T)[1], "ref_log_prob": ref.response(ids, T)[1]}
    last = (mask * torch.arange(1, T + 1)).argmax(1, keepdim=True)
    d["token_level_scores"] = torch.zeros(len(ids), T).scatter(1, last, toy.score(ids, mask).unsqueeze(1))
    uid = np.array([f"{seed}-{g}" for g in group.tolist()])
    if ppo:
        d["values"] = values
        d["token_level_rewards"] = d["token_level_scores"] - 0.05 * core.kl_penalty(old, d["ref_log_prob"], "kl") * mask
        d["advantages"], d["returns"] = core.compute_gae_advantage_return(d["token_level_rewards"], values, mask, 0.99, 0.95)
    else:
        d["token_level_rewards"] = d["token_level_scores"]
        d["advantages"], d["returns"] = core.compute_grpo_outcome_advantage(d["token_level_rewards"], mask, uid)
    return d, uid


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("hook")
    ap.add_argument("--ppo", action="store_true")
    ap.add_argument("--bug", choices=sorted(BUGS))
    ap.add_argument("--actor", type=json.loads, default={}, help="fields of FSDPActorConfig, JSON")
    ap.add_argument("--mini", type=int, default=1, help="mini-batches of a rollout batch, shuffled")
    a = ap.parse_args()
    if a.bug:
        plant(a.bug)
    if a.hook != "-":  # plumbline run puts its own in
        spec = importlib.util.spec_from_file_location("plumbline_verl", a.hook)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))  # as external_lib does
    common = dict(strategy="fsdp", rollout_n=4, ppo_mini_batch_size=2, ppo_micro_batch_size_per_gpu=4, clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28)
    if "policy_loss" in a.actor:
        a.actor["policy_loss"] = PolicyLossConfig(**a.actor["policy_loss"])
    actor = FSDPActorConfig(**{**common, "use_kl_loss": not a.ppo, "kl_loss_coef": 0.05, "entropy_coeff": 0.01, **a.actor})
    critic = CriticConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4, cliprange_value=0.1)
    policy = toy.Toy(5)
    ref = toy.near(policy, 6, 0.15)
    opt = torch.optim.Adam(policy.parameters(), lr=0.02)

    def train_mini_batch(d, uid, batch_size_per_dp, mini_batch_size_per_gpu):  # the names of TrainingWorker.train_mini_batch, two epochs
        for _ in range(2):
            order = np.random.default_rng(len(seen)).permutation(batch_size_per_dp) if a.mini > 1 else np.arange(batch_size_per_dp)
            seen.append(order)
            for lo in range(0, batch_size_per_dp, mini_batch_size_per_gpu):
                update(d, uid, order[lo:lo + mini_batch_size_per_gpu])

    def update(d, uid, mini):
        opt.zero_grad()
        for k in range(MICRO):
            rows = mini[k * len(mini) // MICRO:(k + 1) * len(mini) // MICRO]
            data = tdu.get_tensordict({key: x[rows] for key, x in d.items()} | {"uid": uid[rows].tolist()},
                                      {"dp_size": 1, "batch_num_tokens": int(d["response_mask"][mini].sum()), "global_batch_size": len(mini)})
            ids, att = data["input_ids"], data["attention_mask"]
            z = policy.logits(ids)
            out = {"log_probs": unpadded(z, ids, att), "entropy": torch.distributions.Categorical(logits=z).entropy()[att.bool()]}
            loss, _ = losses.ppo_loss(actor, out, data)
            if a.ppo:
                loss = loss + losses.value_loss(critic, {"values": policy.values(ids)[att.bool()]}, data)[0]
            loss.backward()
        opt.step()

    worker = open(importlib.util.find_spec("verl.workers.engine_workers").origin, encoding="utf-8").read()
    assert "batch_size_per_dp = data.shape[0]" in worker and "mini_batch_size_per_gpu = " in worker and "def train_mini_batch(" in worker
    seen = []
    for rollout in range(2):
        engine = toy.near(policy, 7, 0.002)  # it has got the weights of the last update
        d, uid = batch(policy, ref, engine, 50 + rollout, a.ppo)
        train_mini_batch(d, uid, len(uid), len(uid) // a.mini)


if __name__ == "__main__":
    main()
