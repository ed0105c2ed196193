"""What releases that later ones changed compute: python releases.py WHEELS OUT [--only TEXT]. WHEELS is the folder that wheels.py wrote.

Each folder of OUT is a profile; its runs are dumps of that release's functions on small random batches. They name framework and
version and of the options only what the run was given, so that the profile of the version says the rest.
"""

import argparse
import os
import shutil
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "strangers")]
import torch

torch.set_num_threads(1)
import source
import openrlhf_museum as openrlhf
import trl
import verl_museum as verl
from run import Release
from scene import Scene, gradient, manifest, meta, ns
from source import base
from writer import write

PROFILES = {}


def profile(name, release):
    """Registers a generator of (run, tensors, metadata) for a release."""

    def register(f):
        PROFILES.setdefault(name, []).append((release, f))
        return f

    return register


def old_logps(rel, policy, s):
    """get_per_token_logps, which stands in 0.14's compute_loss."""
    z = {}

    def model(input_ids, num_logits_to_keep):
        h, _ = policy.model.hidden(input_ids, torch.ones_like(input_ids))
        z["logits"] = policy.model.head(h)[:, -num_logits_to_keep:]
        return ns(logits=z["logits"].clone())

    with torch.no_grad():
        return rel.method(trl.PATH, "get_per_token_logps", base())(model, s.ids, s.T), z["logits"][:, :-1]


def trl_logps(rel, policy, s, temperature):
    """The log-probs of the trainer's pass at the temperature that it is configured with, and the logits."""
    space = trl.selective(rel, dict(base(), profiling_decorator=lambda f: f))
    name = "_get_per_token_logps" if "def _get_per_token_logps(" in rel.text(trl.PATH) else "_get_per_token_logps_and_entropies"
    z = {}

    def model(input_ids, attention_mask, logits_to_keep, use_cache=False):
        h, _ = policy.model.hidden(input_ids, attention_mask)
        z["logits"] = policy.model.head(h)[:, -logits_to_keep:]
        return ns(logits=z["logits"].clone())

    self = ns(temperature=temperature, model_kwarg_keys=["logits_to_keep"])
    with torch.no_grad():
        out = rel.method(trl.PATH, name, space)(self, model, s.ids, s.att, s.T)
    return (out[0] if isinstance(out, tuple) else out), z["logits"][:, :-1]


def halves(s):
    """Rows of two micro-batches, with whole groups and unequal numbers of tokens."""
    rows = s.mask.sum(1).view(-1, s.task.group).sum(1).argsort()
    ids = torch.arange(len(s.scores)).view(-1, s.task.group)[rows].reshape(-1)
    return ids.chunk(2)


@profile("trl-grpo@0.14", "trl-0.14.0")
def trl_014(rel):
    s = Scene(11, prompts=2, group=3)
    logps, z = old_logps(rel, s.old, s)
    yield "logp", dict(s.rows(), logp_new=logps, logits=z), meta("trl", rel, "grpo")

    kl = rel.block(trl.PATH, "per_token_kl = torch.exp(", "per_token_kl = torch.exp(")
    rest = rel.block(trl.PATH, "mean_grouped_rewards = rewards.view", "loss = ((per_token_loss * completion_mask)")
    for run, s in ("loss", Scene(12, prompts=4)), ("loss-bf16", Scene(13, "bf16", prompts=6)):
        for i, sel in enumerate(halves(s)):
            new = s.logps(s.new)[sel].requires_grad_()
            env = dict(base(), per_token_logps=new, ref_per_token_logps=s.logps(s.ref)[sel], completion_mask=s.mask[sel].int(), rewards=s.scores[sel].clone(), self=ns(num_generations=4, beta=trl.default(rel, "beta")))
            exec(kl, env)
            exec(rest, env)
            loss = env["loss"] / 2  # the Trainer divides by the accumulation steps, where the loss does not
            yield run, dict(
                {k: v[sel] for k, v in s.tokens().items()}, logp_new=new, logp_ref=env["ref_per_token_logps"], kl=env["per_token_kl"], scores=s.scores[sel], advantages=env["advantages"],
                token_loss=env["per_token_loss"], loss=loss, dlogp=gradient(loss, new),
            ), meta("trl", rel, "grpo", micro=i, micros=2, token_loss_includes_kl=True)


def trl_advantages(rel, scores):
    text = rel.text(trl.PATH)
    last = "advantages = advantages / (std_grouped_rewards + 1e-4)" if "std_grouped_rewards + 1e-4" in text else "advantages = advantages / (std_rewards + 1e-4)"
    block = rel.block(trl.PATH, "mean_grouped_rewards = rewards.view(", last)
    scale = trl.default(rel, "scale_rewards")
    env = dict(base(), self=ns(num_generations=4, scale_rewards=scale, args=ns(scale_rewards=scale)), rewards=scores.clone(), num_generations=4)
    exec(block, env)
    return env["advantages"]


@profile("trl-grpo@0.16", "trl-0.16.0")
@profile("trl-grpo@0.22", "trl-0.22.2")
@profile("trl-grpo@0.27", "trl-0.27.2")
@profile("trl-grpo@1.0", "trl-1.0.0")
def trl_later(rel):
    s = Scene(11, prompts=2, group=3)
    logps, z = trl_logps(rel, s.old, s, trl.default(rel, "temperature"))
    yield "logp", dict(s.rows(), logp_new=logps, logits=z), meta("trl", rel, "grpo")

    name = "_compute_loss" if "def _compute_loss(" in rel.text(trl.PATH) else "compute_loss"
    engine = "self.vllm_importance_sampling_correction" in rel.text(trl.PATH)
    for run in ("loss", "kl", "kl-bf16") + (("engine",) if engine else ()):
        s = Scene(13, "bf16", prompts=6) if run == "kl-bf16" else Scene(12, prompts=4)
        adv = trl_advantages(rel, s.scores)
        beta = 0.04 if run.startswith("kl") else trl.default(rel, "beta")
        items = s.mask.sum()
        for i, sel in enumerate(halves(s)):
            settings = dict(beta=beta, loss_type=trl.default(rel, "loss_type"), current_gradient_accumulation_steps=2)
            inputs = dict(advantages=adv[sel], num_items_in_batch=items)
            options, more = {"num_iterations": 2, "num_items_in_batch": float(items)}, {}
            if run.startswith("kl"):
                options["beta"] = beta
            if run == "engine":
                settings |= dict(use_vllm=True, vllm_importance_sampling_correction=True)
                gen = (s.gen + s.normal(len(adv), s.T, std=0.4) * s.mask)[sel]
                env = dict(
                    base(), old_per_token_logps=s.logps(s.old)[sel], sampling_per_token_logps=gen, completion_mask=s.mask[sel],
                    self=ns(use_vllm=True, vllm_importance_sampling_correction=True, tools=None, vllm_importance_sampling_mode=trl.default(rel, "vllm_importance_sampling_mode"), vllm_importance_sampling_cap=trl.default(rel, "vllm_importance_sampling_cap")),
                    tool_mask=None,
                )
                exec(rel.block(trl.PATH, "if self.use_vllm and self.vllm_importance_sampling_correction:", "# Compute the per-token log probabilities for the reference model"), env)
                more = dict(logp_gen=gen, is_weights=env["vllm_importance_sampling_ratio"])
                inputs["importance_sampling_ratio"] = more["is_weights"]
            options["use_vllm"] = run == "engine"
            loss, f, _, new, d = trl.compute_loss(rel, s, settings, name, rank=sel, processes=1, inputs=inputs)
            if "current_gradient_accumulation_steps" not in rel.text(trl.PATH):
                loss = loss / 2  # the Trainer divides
            if beta:
                more |= dict(logp_ref=d["ref_per_token_logps"], kl=f["per_token_kl"])
            yield run, dict(
                {k: v[sel] for k, v in s.tokens().items()}, logp_new=new, logp_old=d["old_per_token_logps"], scores=s.scores[sel], advantages=adv[sel], token_loss=f["per_token_loss"], loss=loss,
                dlogp=gradient(loss, new), **more,
            ), meta("trl", rel, "grpo", micro=i, micros=2, options=options, token_loss_includes_kl=True)


def verl_policy(f, rel, old, new, adv, mask, c):
    """The clipped loss of a micro-batch."""
    arguments = dict(old_log_prob=old, log_prob=new, advantages=adv, response_mask=mask, loss_agg_mode="token-mean")
    if "compute_policy_loss_vanilla" in f:
        config = source.Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=c)
        return f["compute_policy_loss_vanilla"](**arguments, config=config)[0]
    return f["compute_policy_loss"](**arguments, cliprange=0.2, cliprange_low=0.2, cliprange_high=0.2, clip_ratio_c=c)[0]


def verl_core(rel):
    f, _ = verl.core(rel)
    f["AlgoConfig"] = type("AlgoConfig", (), {})
    return f


@profile("verl-grpo@0.4", "verl-0.4.0")
@profile("verl-grpo@0.4.1", "verl-0.4.1")
@profile("verl-grpo@0.6", "verl-0.6.0")
def verl_grpo(rel):
    f = verl_core(rel)
    s = Scene(21, prompts=3)
    rewards, group = verl.token_rewards(s), s.group.clone()
    group[-1] = 9  # a group of one
    adv, _ = f["compute_grpo_outcome_advantage"](rewards, s.mask, group.numpy(), norm_adv_by_std_in_grpo=True)
    yield "advantages", dict(response_mask=s.mask, group_id=group, scores=s.scores, token_rewards=rewards, advantages=adv), meta(
        "verl", rel, "grpo", options={"adv_estimator": "grpo", "use_kl_in_reward": False}
    )

    for run in ("loss", "far"):
        s = Scene(22, prompts=4)
        adv, _ = f["compute_grpo_outcome_advantage"](verl.token_rewards(s), s.mask, s.group.numpy(), norm_adv_by_std_in_grpo=True)
        c = 3.0 if run == "loss" else 1e12  # so that the dual clip does not hide what a bound of the log-ratio does
        for i, sel in enumerate(halves(s)):
            mask, ref, old, new = s.mask[sel], s.logps(s.ref)[sel], s.logps(s.old)[sel], s.logps(s.new)[sel]
            if run == "far":
                low, high = adv[sel].sum(1).argmin(), adv[sel].sum(1).argmax()
                old, new, ref = old.clone(), new.clone(), ref.clone()  # each in another token, so that no temperature explains it
                old[low, 0] -= 22.0
                new[high, 0] -= 22.0
                ref[high, 1] -= 22.0
            new.requires_grad_()
            kl = f["kl_penalty"](new, ref, "low_var_kl")
            pg = verl_policy(f, rel, old, new, adv[sel], mask, c)
            loss = (pg + 0.05 * f["agg_loss"](loss_mat=kl, loss_mask=mask, loss_agg_mode="token-mean")) / 2  # as update_policy adds them
            yield run, dict(
                {k: v[sel] for k, v in s.tokens().items()}, logp_new=new, logp_old=old, logp_ref=ref, kl=kl, scores=s.scores[sel], advantages=adv[sel], loss=loss, dlogp=gradient(loss, new)
            ), meta("verl", rel, "grpo", micro=i, micros=2, options={"use_kl_loss": True, "kl_loss_coef": 0.05, "kl_loss_type": "low_var_kl", "clip_ratio_c": c, "ratio.old": "stored", "tis.level": "none"})


@profile("verl-ppo@0.4", "verl-0.4.0")
@profile("verl-ppo@0.4.1", "verl-0.4.1")
@profile("verl-ppo@0.6", "verl-0.6.0")
def verl_ppo(rel):
    f = verl_core(rel)
    s = Scene(23, T=12, holes=True)
    values = s.normal(*s.mask.shape) * s.mask
    rewards = verl.token_rewards(s)
    adv, returns = f["compute_gae_advantage_return"](rewards, values, s.mask, 0.99, 0.95)
    yield "gae", dict(s.tokens(), values=values, token_rewards=rewards, scores=s.scores, advantages=adv, returns=returns), meta(
        "verl", rel, "ppo", options={"gae.gamma": 0.99, "gae.lambda": 0.95, "kl.place": "none"}
    )

    s = Scene(24, prompts=4)
    values = s.normal(*s.mask.shape, std=0.5) * s.mask
    rewards = verl.token_rewards(s)
    adv, returns = f["compute_gae_advantage_return"](rewards, values, s.mask, 0.99, 0.95)
    new = values + s.normal(*s.mask.shape, std=0.5)
    for i, sel in enumerate(halves(s)):
        v = new[sel].clone().requires_grad_()
        loss = f["compute_value_loss"](vpreds=v, returns=returns[sel], values=values[sel], response_mask=s.mask[sel], cliprange_value=0.5, loss_agg_mode="token-mean")[0] / 2  # as update_critic divides
        yield "value", dict(
            {k: t[sel] for k, t in s.tokens().items()}, values=values[sel], values_new=v, token_rewards=rewards[sel], scores=s.scores[sel], advantages=adv[sel], returns=returns[sel], value_loss=loss, dvalues=gradient(loss, v)
        ), meta("verl", rel, "ppo", micro=i, micros=2, options={"gae.gamma": 0.99, "gae.lambda": 0.95, "kl.place": "none"})


MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"


def openrlhf_functions(rel):
    out = dict(base(), Optional=None, Union=None, Tuple=None)
    rel.functions(openrlhf.UTIL, out, {"masked_mean", "compute_approx_kl", "compute_reward"})
    for name in ("get_advantages_and_returns", "get_cumulative_returns"):
        out[name] = rel.method(MAKER, name, dict(base(), Tuple=None))
    return out


def openrlhf_totals(rel, s, micros):
    """What 0.10.3 and later are given: the counts of the whole batch, on the scale of a micro-batch."""
    if "batch_num_tokens" not in rel.text(openrlhf.LOSS):
        return {}
    return dict(dp_size=1, batch_num_tokens=float(s.mask.sum()) / micros, global_batch_size=len(s.mask) // micros)


@profile("openrlhf-group@0.6", "openrlhf-0.6.2")
@profile("openrlhf-group@0.10", "openrlhf-0.10.2")
@profile("openrlhf-group@0.10.3", "openrlhf-0.10.4")
def openrlhf_group(rel):
    f, loss_of = openrlhf_functions(rel), openrlhf.losses(rel)
    arguments = (0.2,) if "clip_eps_high" not in rel.text(openrlhf.LOSS) else (0.2, 0.2)
    for run in ("loss", "far"):
        s = Scene(31, prompts=4)
        env = dict(base(), rewards=s.scores.view(-1, 4).clone())
        exec(rel.block(MAKER, "rewards.std(-1, keepdim=True) + 1e-9", "rewards.std(-1, keepdim=True) + 1e-9"), env)
        old, new, ref = s.logps(s.old), s.logps(s.new), s.logps(s.ref)
        if run == "far":  # each in another token, so that no temperature explains it
            for sel in halves(s):
                low, high = sel[env["rewards"].reshape(-1)[sel].argmin()], sel[env["rewards"].reshape(-1)[sel].argmax()]
                old[low, 0] -= 22.0
                new[high, 0] -= 22.0
                ref[high, 1] -= 22.0
        kl = f["compute_approx_kl"](old, ref, kl_estimator="k1") * s.mask
        rewards = f["compute_reward"](env["rewards"].reshape(-1), 0.01, kl, action_mask=s.mask, reward_clip_range=(-10.0, 10.0))
        adv = f["get_cumulative_returns"](None, rewards, s.mask, 1.0)
        for i, sel in enumerate(halves(s)):
            x = new[sel].clone().requires_grad_()
            loss = loss_of["PolicyLoss"](*arguments)(x, old[sel], adv[sel], action_mask=s.mask[sel], **openrlhf_totals(rel, s, 2))
            loss = (loss[0] if isinstance(loss, tuple) else loss) / 2  # DeepSpeed divides by the accumulation steps
            yield run, dict(
                {k: v[sel] for k, v in s.tokens().items()}, logp_new=x, logp_old=old[sel], logp_ref=ref[sel], kl=kl[sel], token_rewards=rewards[sel], scores=s.scores[sel], advantages=adv[sel], loss=loss,
                dlogp=gradient(loss, x),
            ), meta("openrlhf", rel, "grpo", micro=i, micros=2, options={"kl.kind": "k1", "kl.place": "sequence_reward_after", "tis.level": "none", "num_items_in_batch": float(s.mask.sum())})


@profile("openrlhf-ppo@0.6", "openrlhf-0.6.2")
@profile("openrlhf-ppo@0.10", "openrlhf-0.10.2")
@profile("openrlhf-ppo@0.10.3", "openrlhf-0.10.4")
def openrlhf_ppo(rel):
    f, loss_of = openrlhf_functions(rel), openrlhf.losses(rel)
    s = Scene(33, prompts=4)
    values = s.normal(*s.mask.shape, std=0.5) * s.mask
    rewards = f["compute_reward"](s.scores, 0.0, torch.zeros(s.mask.shape), action_mask=s.mask, reward_clip_range=(-10.0, 10.0))
    raw, returns = f["get_advantages_and_returns"](None, values, rewards, s.mask, 0.99, 0.95)
    row = ns(advantages=raw, action_mask=s.mask)
    if "all_advantages = torch.cat" in rel.text(MAKER):
        args = ns(algo=ns(advantage=ns(no_std_norm=False)))
        exec(rel.block(MAKER, "all_advantages = torch.cat", "exp.advantages = (exp.advantages - mean) * rstd"), dict(base(), experiences=[row], args=args))
    else:
        rel.method("openrlhf/trainer/ppo_utils/replay_buffer.py", "normalize", base())([row], "advantages", ns(all_reduce=lambda x, how: x))
    new = values + s.normal(*s.mask.shape, std=0.4)
    for i, sel in enumerate(halves(s)):
        v = new[sel].clone().requires_grad_()
        loss = loss_of["ValueLoss"](0.5)(v, values[sel], returns[sel], action_mask=s.mask[sel], **openrlhf_totals(rel, s, 2)) / 2  # as for the policy
        yield "value", dict(
            {k: t[sel] for k, t in s.tokens().items()}, values=values[sel], values_new=v, token_rewards=rewards[sel], scores=s.scores[sel], advantages=row.advantages[sel], returns=returns[sel], value_loss=loss, dvalues=gradient(loss, v)
        ), meta("openrlhf", rel, "ppo", micro=i, micros=2, options={"gae.gamma": 0.99, "gae.lambda": 0.95, "kl.beta": 0.0, "value.clip": 0.5, "num_items_in_batch": float(s.mask.sum())})


def main():
    p = argparse.ArgumentParser()
    p.add_argument("wheels"), p.add_argument("out"), p.add_argument("--only", default="")
    a = p.parse_args()
    source.unpacked(a.wheels)
    for name, makers in PROFILES.items():
        if a.only not in name:
            continue
        shutil.rmtree(os.path.join(a.out, name), ignore_errors=True)
        for release, f in makers:
            for run, tensors, m in f(Release(release)):
                write(os.path.join(a.out, name, run), tensors, m)
    sums = manifest(a.out, a.wheels, "golden/gen/museum/releases.py", 11, {r for makers in PROFILES.values() for r, _ in makers})
    print(f"{len(sums)} files, {sum(os.path.getsize(os.path.join(a.out, k)) for k in sums)} bytes")


if __name__ == "__main__":
    main()
