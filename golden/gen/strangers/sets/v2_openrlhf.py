"""OpenRLHF 0.11.2 by its own modules (loss, utils, experience, experience_maker, length_penalty, loss_utils, kl_controller) and the training_step of
its actor and critic, on stand-ins for ray, deepspeed and the engines.   python v2_openrlhf.py CASES [case…]"""
import random, sys, types
from abc import ABC
from dataclasses import fields
from types import SimpleNamespace as NS
from typing import Dict, List, Optional
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from world_v import Attn, Bug, Dumper, Gru, LM, Out, SRC, before, edit, main, pick, read, sample

V, EOS, PAD = 32, 30, 31
ROOT = f"{SRC}/openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf"
TEXT = {k: read(f"{ROOT}/{k}.py") for k in ("models/loss models/utils trainer/ppo_utils/experience trainer/ppo_utils/experience_maker trainer/ppo_utils/length_penalty "
                                            "trainer/ppo_utils/kl_controller utils/loss_utils").split()}
TEXT["actor_step"] = "class ActorTrainer:\n" + "".join("    " + l for l in pick(read(f"{ROOT}/trainer/ray/ppo_actor.py"), "training_step", cls="ActorPPOTrainer").splitlines(True))
TEXT["critic_step"] = "class CriticTrainer:\n" + "".join("    " + l for l in pick(read(f"{ROOT}/trainer/ray/ppo_critic.py"), "training_step", cls="CriticPPOTrainer").splitlines(True))
TEXT["actor"] = "class Actor(nn.Module):\n" + "".join("    " + l for l in pick(read(f"{ROOT}/models/actor.py"), "forward", cls="Actor").splitlines(True))


def load(plant):
    """The release's modules, each with the edit that is planted into it, as a package of their own."""
    mods = {}

    def module(name, **k):
        m = types.ModuleType(name)
        m.__dict__.update(k)
        mods[name] = sys.modules[name] = m
        return m

    for p in "openrlhf openrlhf.models openrlhf.utils openrlhf.trainer openrlhf.trainer.ppo_utils openrlhf.trainer.ray".split():
        module(p).__path__ = []
    module("ray", get=lambda x: x, put=lambda x: x)
    module("deepspeed")
    quiet = NS(info=lambda *a: None, warning=lambda *a: None)
    module("openrlhf.utils.logging_utils", init_logger=lambda n: quiet)
    module("openrlhf.trainer.ray.launcher", RayActorGroup=object)
    module("openrlhf.utils.seqlen_balancing", get_minimum_num_micro_batch_size=None, get_seqlen_balanced_partitions=None)
    zero = dict(torch=torch, F=F, List=List)
    exec(pick(read(f"{ROOT}/utils/utils.py"), "zero_pad_sequences"), zero)
    module("openrlhf.utils.utils", zero_pad_sequences=zero["zero_pad_sequences"])
    for key in "models/utils models/loss trainer/ppo_utils/experience trainer/ppo_utils/length_penalty trainer/ppo_utils/kl_controller utils/loss_utils trainer/ppo_utils/experience_maker".split():
        name = "openrlhf." + key.replace("/", ".")
        m = module(name)
        m.__package__ = name.rpartition(".")[0]
        text = plant(key, TEXT[key]).replace("@torch.compile\n", "")
        if key.endswith("experience_maker"):  # our hook: token rewards in the place of the KL that is thrown away, the reference is kept
            text = edit(text, "experience.kl = None", "experience.kl = reward")
            text = edit(text, "                base_action_log_probs = None\n", "                pass\n")
        exec(compile(text, key, "exec"), m.__dict__)
    g = NS(**{k.rpartition(".")[2]: m for k, m in mods.items() if hasattr(m, "__dict__")}, utils_=mods["openrlhf.models.utils"], loss_=mods["openrlhf.models.loss"])
    space = dict(torch=torch, nn=nn, Optional=Optional, Dict=Dict, fields=fields, dist=NS(ProcessGroup=None), compute_entropy=g.utils_.compute_entropy,
                 log_probs_from_logits=g.utils_.log_probs_from_logits, compute_approx_kl=g.utils_.compute_approx_kl, masked_mean=g.utils_.masked_mean,
                 aggregate_loss=g.loss_.aggregate_loss, Experience=g.experience.Experience, get_loss_batch_info=g.loss_utils.get_loss_batch_info)
    for key in ("actor", "actor_step", "critic_step"):
        exec(compile("from __future__ import annotations\n" + plant(key, TEXT[key]), key, "exec"), space)
    g.Actor, g.ActorTrainer, g.CriticTrainer = space["Actor"], space["ActorTrainer"], space["CriticTrainer"]
    return g


class Critic(nn.Module):
    """CriticModel.forward: values of the states before each token, times the action mask."""

    def __init__(self, body, width):
        super().__init__()
        self.body, self.v = body, nn.Linear(width, 1, bias=False)

    def forward(self, sequences, action_mask=None, attention_mask=None, return_output=False, **_):
        values = self.v(self.body(sequences, attention_mask=attention_mask)).squeeze(-1)[:, :-1]
        values = values[:, -action_mask.shape[1]:] * action_mask.float()
        return (values, None) if return_output else values


class Group:
    """A group of ray actors that runs here: its forward over the batches of the maker."""

    def __init__(self, model):
        self.model = model

    def async_run_method_batch(self, method_name, sequences, action_mask, attention_mask):
        return [[self.model(s, action_mask=a, attention_mask=m).detach() for s, a, m in zip(sequences, action_mask, attention_mask)]]

    def async_run_method(self, method_name):
        return []


class Strategy:
    ring_attn_group = None

    def __init__(self, args, gas):
        self.args, self.accumulated_gradient, self.n = args, gas, {}

    def backward(self, loss, model, opt):
        frame = sys._getframe(1).f_locals
        self.hook(frame, loss)
        (loss / self.accumulated_gradient).backward()

    def optimizer_step(self, opt, model, sched, name):
        self.n[name] = self.n.get(name, 0) + 1
        if self.n[name] % self.accumulated_gradient == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()

    def get_grad_norm(self, model):
        return 0.0


def flat(x, name=""):
    if isinstance(x, NS):
        return {k: y for n, a in vars(x).items() for k, y in flat(a, f"{name}.{n}" if name else n).items()}
    return {name: list(x) if isinstance(x, tuple) else x}


def run(folder, c, plant):
    g = load(plant)
    G, P, n, T = c["samples"], c["prompt"], c["rows"], c["length"]
    random.seed(c["seed"])
    gen = torch.Generator().manual_seed(c["seed"] + 1)
    args = NS(algo=NS(advantage=NS(estimator=c["estimator"], gamma=c["gamma"], lambd=c["lambd"], no_std_norm=False, is_correction_level=c["is_level"],
                                   is_correction_mode=c["is_mode"], is_correction_gating=c["is_gating"], is_correction_threshold=c["is_threshold"]),
                      kl=NS(use_loss=c["kl_loss"], init_coef=c["kl"], estimator=c["kl_estimator"], unbiased_gradient=c["unbiased"], target=None, horizon=10000)),
              actor=NS(eps_clip_low_high=c["clip"], dual_clip=c["dual"], loss_agg_mode=c["agg"], policy_loss_type=c["loss"], entropy_coef=c["entropy"], aux_loss_coef=0.0),
              critic=NS(value_clip=c["value_clip"]), reward=NS(clip_range=c["reward_clip"], overlong_buffer_len=c["overlong"], overlong_penalty_factor=c["overlong_factor"],
                                                             stop_properly_penalty_coef=c["stop_properly"]),
              rollout=NS(n_samples_per_prompt=G, micro_batch_size=c["maker_rows"], max_new_tokens=T, temperature=c["temperature"], batch_size=n // G),
              train=NS(dynamic_batch_enable=False, colocate_all=False, colocate_actor_ref=False, colocate_critic_reward=False, max_epochs=c["epochs"],
                       micro_batch_size=c["micro"], batch_size=c["micro"] * c["gas"]),
              ds=NS(ring_attn_size=1, tensor_parallel_size=1))
    body = (lambda: Attn(V, 24, 3, 1, P + T)) if c["net"] == "attn" else (lambda: Gru(V, 30, 2))
    width = 24 if c["net"] == "attn" else 30

    def actor():
        a = g.Actor()
        a.model, a.packing_samples, a.temperature = LM(body(), width, V, never=(PAD,), sharp=c["sharp"]), False, c["temperature"]
        return a

    policy, initial = actor(), actor()
    initial.load_state_dict(policy.state_dict())
    with torch.no_grad():  # training begins at some distance from the reference
        for p in policy.parameters():
            p.add_(c["away"] * torch.randn(p.shape, generator=gen) * p.std().nan_to_num(0.1))
    engine = actor()
    gae = c["estimator"] == "gae"
    critic = Critic(body(), width) if gae else None
    strategy = Strategy(args, c["gas"])
    control = g.kl_controller.FixedKLController(c["kl"])
    maker = g.experience_maker.RemoteExperienceMaker(Group(policy), Group(critic) if gae else None, None, Group(initial) if c["kl"] else None, control, strategy, NS(pad_token_id=PAD))
    at = NS(strategy=strategy, args=args, actor=policy, actor_optim=torch.optim.AdamW(policy.parameters(), lr=c["lr"], betas=(0.9, 0.95)), aux_loss=False, ema_model=None,
            actor_scheduler=NS(get_last_lr=lambda: [c["lr"]]), replay_buffer=None)
    at.actor_loss_fn = g.loss_.PolicyLoss(clip_eps_low=c["clip"][0], clip_eps_high=c["clip"][1], dual_clip=c["dual"], token_level_loss=c["agg"] == "token-mean",
                                          policy_loss_type=c["loss"], is_correction_level=c["is_level"], is_correction_mode=c["is_mode"], is_correction_gating=c["is_gating"],
                                          is_correction_threshold=c["is_threshold"])
    if gae:
        ct = NS(strategy=strategy, args=args, critic=critic, critic_optim=torch.optim.AdamW(critic.parameters(), lr=c["lr"]), aux_loss=False, replay_buffer=None,
                critic_loss_fn=g.loss_.ValueLoss(c["value_clip"]), critic_scheduler=NS(get_last_lr=lambda: [c["lr"]]))
    o = {k: x for k, x in flat(args).items() if k.split(".")[0] not in ("ds",) and not k.startswith("train.colocate")}
    o["eos_token_id"], o["async_rollout"] = EOS, c["sync"] > 1
    dump = Dumper(folder, run=f"orlhf-{c['seed']}", framework="openrlhf", version="0.11.2", algorithm="ppo" if gae else "grpo", token_loss_includes_kl=False)
    dump.keep = c["keep"]
    count, held = [0], {}

    def hook(v, loss):
        e, gas, info = v["experience"], c["gas"], v["loss_batch_info"]
        S = e.action_mask.shape[1]
        if "critic_loss" in v:
            d = torch.autograd.grad(loss, v["values"], retain_graph=True)[0]
            held.update(values_new=v["values"].detach(), value_loss=v["critic_loss"].detach() / gas, dvalues=d / gas)
            return
        lp = v["action_log_probs"]
        d = torch.autograd.grad(loss, lp, retain_graph=True)[0]
        t = dict(response_mask=e.action_mask, response_ids=e.sequences[:, -S:], input_ids=e.sequences, attention_mask=e.attention_mask, logp_new=lp, logp_old=e.action_log_probs,
                 logp_ref=e.base_action_log_probs, logp_gen=e.rollout_log_probs, advantages=e.advantages, returns=e.returns, values=e.values, scores=e.scores, token_rewards=e.kl,
                 group_id=torch.tensor([int(p) for p in e.prompts]), sample_id=torch.tensor([int(l) for l in e.labels]), loss=loss / gas, pg_loss=v["actor_loss"] / gas, dlogp=d / gas, **held)
        if torch.is_tensor(v["kl_loss"]):
            t.update(kl=v["kl"], kl_loss=v["kl_loss"] / gas)
        if c["entropy"] is not None:
            t.update(entropy=v["output"].entropy[:, -S:], entropy_loss=v["entropy_loss"] / gas)
        x = {"kl.beta": float(control.value), "num_items_in_batch": round(float(info["batch_num_tokens"]) * gas), "agg.denominator": "global"}
        s = {"ppo_clip_ratio": e.info["ppo_clip_ratio"], "ppo_kl": e.info["ppo_kl"]} if c["scalars"] else None
        dump(count[0] // gas + 1, t, count[0] % gas, gas, options={**o, **x}, scalars=s)
        count[0] += 1

    strategy.hook = hook
    E = g.experience
    for it in range(c["rollouts"]):
        if it % c["sync"] == 0:
            engine.load_state_dict(policy.state_dict())
        prompts = torch.randint(0, EOS, (n // G, P), generator=gen).repeat_interleave(G, 0)
        out, lp, done = sample(engine.model, prompts, torch.ones_like(prompts), T, c["temperature"], EOS, PAD, gen, low=c["low"], noise=c["noise"])
        rows = []
        for i in range(n):
            k = int((out[i] != PAD).sum())
            ids = torch.cat([prompts[i], out[i, :k]])
            score = c["reward"](out[i, :k].tolist(), prompts[i].tolist())
            mask, glp = torch.zeros(P + k - 1), torch.zeros(P + k - 1)
            mask[P - 1:], glp[P - 1:] = 1, lp[i, :k]
            rows.append(E.Experience(sequences=ids[None], attention_mask=torch.ones(1, P + k, dtype=torch.long), action_mask=mask[None].bool(), rollout_log_probs=glp[None],
                                     rewards=torch.tensor([score]), scores=torch.tensor([score]), response_length=torch.tensor([float(k)]), truncated=torch.tensor([not bool(done[i])]),
                                     total_length=torch.tensor([float(P + k)]), prompts=[str(it * 1000 + i // G)], labels=[str(it * 1000 + i)], info={"reward": torch.tensor([score])}))
        made = maker.make_experience_batch(rows)
        items = [x for e in made for x in E.split_experience_batch(e)]
        items = E.remove_padding_in_sequences(items)
        for epoch in range(c["epochs"]):
            order = torch.randperm(n, generator=gen).tolist()
            batches = (E.make_experience_batch([items[j] for j in order[k:k + c["micro"]]]) for k in range(0, n, c["micro"]))
            for step, (e, info) in enumerate(g.loss_utils.iter_grad_accum_global_norm(batches, strategy, c["gas"], lambda e: e.action_mask)):
                e.info = {}
                if gae:
                    g.CriticTrainer.training_step(ct, e, step, info)
                g.ActorTrainer.training_step(at, e, control.value, step, info)


def reward_sorted(o, p):
    return sum(b > a for a, b in zip(o, o[1:])) / max(len(o), 1) * 2 - 0.5 + (0.5 if o[-1] == EOS else 0)


def reward_copy(o, p):
    return float(len(set(o) & set(p))) / 2 - 0.04 * len(o)


def reward_binary(o, p):
    return 1.0 if sum(o) % 3 == sum(p) % 3 else (0.2 if o[-1] == EOS else 0.0)


FEW = "response_mask logp_new logp_old logp_gen advantages scores group_id sample_id loss pg_loss dlogp response_ids".split()
NONE = dict(is_level="off", is_mode="mask", is_gating="ratio", is_threshold=(0.5, 5.0), noise=0.0)
BASES = dict(
    # GAE with a critic, KL (k1) in the rewards, dual clip, two epochs, value clip
    gae=dict(NONE, seed=21, net="gru", sharp=1.4, away=0.15, rows=32, samples=1, prompt=5, length=20, estimator="gae", gamma=0.99, lambd=0.95, kl=0.05, kl_loss=False, kl_estimator="k2",
             unbiased=False, clip=(0.2, 0.3), dual=1.5, agg="token-mean", loss="ppo", entropy=0.01, value_clip=0.2, reward_clip=(-1.0, 1.0), overlong=None, overlong_factor=1.0,
             stop_properly=None, temperature=0.9, maker_rows=8, epochs=2, micro=16, gas=1, lr=1e-2, rollouts=2, sync=1, low=False, reward=reward_sorted, scalars=True, keep=None),
    # group_norm, KL (k3, straight-through) in the loss, weights between engine and trainer clipped by token, sums by response, accumulation
    group=dict(NONE, seed=22, net="attn", sharp=1.3, away=0.1, rows=32, samples=4, prompt=4, length=24, estimator="group_norm", gamma=1.0, lambd=1.0, kl=0.1, kl_loss=True, kl_estimator="k3",
               unbiased=True, clip=(0.2, 0.2), dual=None, agg="seq-mean-token-mean", loss="ppo", entropy=None, value_clip=None, reward_clip=(-10.0, 10.0), overlong=8, overlong_factor=0.5,
               stop_properly=None, temperature=1.0, maker_rows=8, epochs=2, micro=8, gas=2, lr=1e-2, rollouts=2, sync=2, low=True, reward=reward_copy, scalars=False, keep=None) | dict(is_level="token", is_mode="clip", is_threshold=(0.7, 1.4)),
    # REINFORCE++ with the group's mean as baseline, whole responses masked by the engine's divergence, stop-properly penalty; few tensors
    base=dict(NONE, seed=23, net="gru", sharp=1.7, away=0.0, rows=48, samples=6, prompt=6, length=16, estimator="reinforce_baseline", gamma=1.0, lambd=1.0, kl=0.0, kl_loss=False, kl_estimator="k1",
              unbiased=False, clip=(0.15, 0.25), dual=None, agg="token-mean", loss="ppo", entropy=None, value_clip=None, reward_clip=(-10.0, 10.0), overlong=None, overlong_factor=1.0,
              stop_properly=0.3, temperature=1.0, maker_rows=12, epochs=1, micro=12, gas=2, lr=1e-2, rollouts=3, sync=1, low=True, reward=reward_binary, scalars=False, keep=FEW)
    | dict(is_level="seq", is_mode="mask", is_gating="binary_kl", is_threshold=(0.0, 2e-3), noise=0.25),
)
MAKER, LOSS, UTILS = "trainer/ppo_utils/experience_maker", "models/loss", "models/utils"
BUGS = [
    Bug("whiten_second_moment", "gae", False, "var = (A² · mask).sum() / n, not of A - mean, in the whitening of the maker", MAKER,
        "var = ((all_advantages - mean).pow(2) * all_action_masks).sum() / num_actions", "var = (all_advantages.pow(2) * all_action_masks).sum() / num_actions"),
    Bug("whiten_mean_all_cells", "gae", False, "mean = all_advantages.mean(): over prompt and padding too, the variance over actions", MAKER,
        "mean = (all_advantages * all_action_masks).sum() / num_actions", "mean = all_advantages.mean()"),
    Bug("whiten_per_batch_last", "base", False, "all_advantages is that of the last experience alone: every batch is whitened with its statistics", MAKER,
        "all_advantages = torch.cat([exp.advantages.flatten() for exp in experiences], dim=0).float()\n            all_action_masks = torch.cat([exp.action_mask.flatten() for exp in experiences], dim=0)",
        "all_advantages = experiences[-1].advantages.flatten().float()\n            all_action_masks = experiences[-1].action_mask.flatten()"),
    Bug("loo_all", "base", False, "rloo: (sum - r) / n in place of / (n - 1)", MAKER,
        "baseline = (rewards.sum(-1, keepdim=True) - rewards) / (args.rollout.n_samples_per_prompt - 1)",
        "baseline = (rewards.sum(-1, keepdim=True) - rewards) / args.rollout.n_samples_per_prompt", estimator="rloo"),
    Bug("std_keepdim_all", "group", True, "group_norm divides by rewards.std(), that of the whole batch", MAKER,
        "(rewards.std(-1, keepdim=True) + 1e-9)", "(rewards.std() + 1e-9)"),
    Bug("reshape_columns", "base", False, "rewards.reshape(n_samples, -1).T: a group is made of every eighth row, of as many prompts", MAKER,
        "rewards = rewards.reshape(-1, args.rollout.n_samples_per_prompt)\n", "rewards = rewards.reshape(args.rollout.n_samples_per_prompt, -1).T\n"),
    Bug("gae_value_now", "gae", False, "GAE: nextvalues = values[:, t], δ = r + (γ-1)V", MAKER,
        "nextvalues = values[:, t + 1] if t < response_length - 1 else 0.0", "nextvalues = values[:, t] if t < response_length - 1 else 0.0"),
    Bug("gae_lambda_once", "gae", False, "lastgaelam = delta + lambd · lastgaelam: γ is missing in the recursion, present in δ", MAKER,
        "lastgaelam = delta + gamma * lambd * lastgaelam", "lastgaelam = delta + lambd * lastgaelam"),
    Bug("returns_of_rewards", "gae", True, "returns are the discounted rewards to go (get_cumulative_returns), not advantages + values", MAKER,
        "returns = advantages + values\n", "returns = self.get_cumulative_returns(rewards, action_mask, gamma)\n"),
    Bug("reward_first_token", "gae", False, "eos_indices without fliplr: the score lands at the first action, mirrored", UTILS,
        "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)", "eos_indices = action_mask.long().argmax(dim=1, keepdim=True)"),
    Bug("kl_sum_each_token", "gae", False, "kl_reward is the sum over the row at every token: -kl_coef * kl.sum(-1, keepdim=True)", UTILS,
        "kl_reward = -kl_coef * kl\n", "kl_reward = -kl_coef * kl.sum(-1, keepdim=True).expand_as(kl)\n"),
    Bug("overlong_replaces", "group", False, "the overlong penalty takes the place of the reward: experience.rewards[j] = overlong_penalty", "trainer/ppo_utils/length_penalty",
        "experience.rewards[j] += overlong_penalty", "experience.rewards[j] = overlong_penalty"),
    Bug("surrogate_linear", "group", False, "unbiased gradient: w · log_ratio in place of w · log_ratio²/2; the value is right, the gradient is w", UTILS,
        "grad_surrogate = w * (log_ratio**2 / 2.0)", "grad_surrogate = w * log_ratio"),
    Bug("surrogate_w_grad", "group", False, "the weight w of the KL gradient is not detached", UTILS,
        ".clamp(max=KL_IS_WEIGHT_CLIP).detach()", ".clamp(max=KL_IS_WEIGHT_CLIP)"),
    Bug("kl_old_base_swapped", "group", False, "compute_approx_kl gets the old log-probs as base and the reference as old", "actor_step",
        "base_action_log_probs,\n                    log_probs_old=old_action_log_probs,", "old_action_log_probs,\n                    log_probs_old=base_action_log_probs,"),
    Bug("dual_positive", "gae", False, "dual clip is used where A > 0, not where A < 0", LOSS,
        "loss = -torch.where(advantages < 0, clip2, clip1)", "loss = -torch.where(advantages > 0, clip2, clip1)"),
    Bug("is_inverse", "group", False, "the weight is π_rollout/π_train", LOSS, "is_log_ratio = (old_log_probs - rollout_log_probs).detach()", "is_log_ratio = (rollout_log_probs - old_log_probs).detach()"),
    Bug("is_twice", "group", False, "coef · loss where loss has the weight by rollout_log_probs already: the ratio is taken to the engine and corrected too", LOSS,
        "raw_policy_log_ratio = log_probs - old_log_probs", "raw_policy_log_ratio = log_probs - (rollout_log_probs if rollout_log_probs is not None else old_log_probs)"),
    Bug("survivors_unweighted", "base", True, "responses that pass the gate keep the weight 1, not π_train/π_rollout", LOSS,
        "coef = torch.where(keep, token_is, 0.0)", "coef = torch.where(keep, torch.ones_like(token_is), 0.0)"),
    Bug("gate_other_side", "base", False, "keep = stat > high: the responses beyond the gate are kept, those within are dropped", LOSS,
        "keep = (stat >= low) & (stat <= high)", "keep = stat > high"),
    Bug("value_clip_base", "gae", False, "values_clipped = old + clamp(values - returns): clipped about the wrong centre", LOSS,
        "(values - old_values).clamp(-self.clip_eps, self.clip_eps)", "(values - returns).clamp(-self.clip_eps, self.clip_eps)"),
    Bug("seq_count_rows", "group", False, "token_counts is the padded width for the mean of a response, its sum under the mask", LOSS,
        "token_counts = loss_mask.sum(dim=-1)", "token_counts = torch.full_like(loss_mask.sum(dim=-1), loss_mask.size(-1))"),
    Bug("entropy_shift", "gae", False, "the entropies are those of one column before (roll by 1) where the loss takes them", "actor_step",
        "output.entropy[:, -experience.action_mask.shape[1] :]", "output.entropy.roll(1, dims=1)[:, -experience.action_mask.shape[1] :]"),
    Bug("window_no_gas", "base", False, "the token count of the window is not divided by gas, though the engine divides the loss by it again", "utils/loss_utils",
        '"batch_num_tokens": num_tokens / gas', '"batch_num_tokens": num_tokens'),
]

if __name__ == "__main__":
    main("v2_openrlhf", run, BASES, BUGS, sys.argv)
