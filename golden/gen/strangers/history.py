"""Bugs that shipped, put back: a function or statement of the affected release, and of the release that fixed it, in the same trainer.

The list is that of the project's study of framework histories; the number is the thread's.
"""
from case import Case

CORE, LOSSES, TF = "verl/trainer/ppo/core_algos.py", "verl/workers/utils/losses.py", "verl/utils/torch_functional.py"
PAIRS = []


def pair(number, producer, what, names, stages, bad, good, **cfg):
    """bad and good: (edits, what changes in the configuration)."""
    PAIRS.append((number, producer, what, names, stages, bad, good, cfg))


def swap(file, *functions):
    return lambda release: tuple((file, "@swap", f"{release}:{file}:{f}") for f in functions)


P = "grpo_trainer.py"
two = dict(num_iterations=2, beta=0.05)
rpp = swap(CORE, "compute_reinforce_plus_plus_outcome_advantage")
pair("verl-7300", "verl_", "REINFORCE++ return reset on observation tokens", "RFPP-HOLE-DROPS", "advantage/", (rpp("verl-0.8.0"), {}), (rpp("verl-0.9.0"), {}),
     algo=dict(adv_estimator="reinforce_plus_plus", gamma=0.99), holes=True)
vl = lambda r: swap(CORE, "compute_value_loss")(r) + swap(LOSSES, "value_loss")(r)
pair("verl-6957", "verl_", "critic loss normalised per micro-batch", "AGG-LOCAL-DENOMINATOR agg.denominator", "aggregate/ gradient/dvalues", (vl("verl-0.8.0"), {}), (vl("verl-0.9.0"), {}),
     algo=dict(adv_estimator="gae", lam=0.95), micros=2)
where = ((TF, "valid_values = torch.where(mask.bool(), values, 0.0)", "valid_values = values"),)
pair("verl-2377", "verl_", "NaN outside the mask leaks through the product", "NAN-OUTSIDE", "aggregate/ masks/ gradient/", (where, {}), ((), {}), driver=dict(nan_ref=True), actor=dict(use_kl_loss=True, kl_loss_coef=0.05), steps=1)
pair("verl-1850", "verl_", "critic mask shifted: the value of the last state is zeroed", "GAE-EOS-VALUE-ZERO", "gae/ gradient/ aggregate/ first_step/", ((), dict(driver=dict(value_mask="early"))), ((), dict(driver=dict(value_mask="right"))),
     algo=dict(adv_estimator="gae", lam=0.95))
pair("verl-2543", "verl_", "the attention mask of the response is its mask: tool tokens are trained on", "MASK-ATTENTION LOSS-MASK-TOOL", "masks/ agreement/ aggregate/", ((), dict(driver=dict(train_tools=True))), ((), {}), holes=True, actor=dict(use_kl_loss=True))
pair("verl-2646", "verl_", "one seed for every request: the rows of a group are the same", "GROUP-IDENTICAL SCORES-CONSTANT", "masks/ reward/", ((), dict(driver=dict(one_seed=True))), ((), {}))
kl_mask = (("ray_trainer.py", "kld = kld * response_mask\n", "kld = kld\n"),)
pair("slime-1372", "verl_", "the KL of the reward is not masked", "KL-OUTSIDE-MASK", "reward/ advantage/", (kl_mask, {}), ((), {}), algo=dict(use_kl_in_reward=True, kl_coef=0.05), ref_distance=0.03)
dest = (("losses.py", "        kl_loss = agg_loss(\n", "        kld *= config.kl_loss_coef\n        kl_loss = agg_loss(\n"), ("losses.py", "policy_loss += kl_loss * config.kl_loss_coef", "policy_loss += kl_loss"))
pair("slime-2114", "verl_", "the coefficient is multiplied in place into the estimate that is logged", "", "kl/ aggregate/", (dest, {}), ((), {}), actor=dict(use_kl_loss=True, kl_loss_coef=0.05, ppo_epochs=2), steps=4)
pair("verl-179", "verl_", "sign of the KL term", "KL-SIGN", "aggregate/", ((("losses.py", "policy_loss += kl_loss * config.kl_loss_coef", "policy_loss -= kl_loss * config.kl_loss_coef"),), {}), ((), {}), actor=dict(use_kl_loss=True, kl_loss_coef=0.1, ppo_epochs=2), steps=4, ref_distance=0.05)
pair("verl-2513", "verl_", "the policy loss is masked by the advantages", "LOSS-MASKED-BY-ADVANTAGES", "aggregate/", ((("losses.py", "        response_mask=response_mask,\n        loss_agg_mode=loss_agg_mode,", "        response_mask=advantages,\n        loss_agg_mode=loss_agg_mode,"),), {}), ((), {}))
adv = lambda r, **c: ((), dict(adv_release=r, **c))
pair("trl-3992-group", "trl_grpo", "scale_rewards inverted: group does not divide", "adv.scale ADV-SCALE-MISSING adv.scale=none", "advantage/", adv("trl-0.22.1"), adv("trl-0.22.2"), args=dict(beta=0.02))
pair("trl-3992-none", "trl_grpo", "scale_rewards inverted: none divides", "adv.scale", "advantage/", adv("trl-0.22.1"), adv("trl-0.22.2"), args=dict(scale_rewards="none", beta=0.02))
pair("trl-3992-batch", "trl_grpo", "scale_rewards inverted: batch takes the group's σ", "adv.scale ADV-BATCH-STD", "advantage/", adv("trl-0.22.1"), adv("trl-0.22.2"), args=dict(scale_rewards="batch", beta=0.02))
lps = lambda r: ((), dict(logps_release=r))
pair("trl-3029", "trl_grpo", "log-probs at temperature 1 while sampling at 0.7", "LOGP-TEMPERATURE", "agreement/ logp/", lps("trl-0.15.2"), lps("trl-0.16.0"), args=dict(temperature=0.7, use_vllm=True, **two), steps=4)
pair("trl-2708", "trl_grpo", "no attention mask in any pass of the trainer", "", "agreement/ logp/", ((), dict(calls=dict(no_attention_new=True, no_attention_old=True, no_attention_ref=True))), ((), {}), args=dict(use_vllm=True, **two), steps=4)
pair("trl-3004", "trl_grpo", "the logged KL is a mean of rows", "METRIC-SAMPLE-MEAN", "scalars/", (((P, 'self._metrics[mode]["kl"].append(global_masked_mean(per_token_kl))', 'self._metrics[mode]["kl"].append(((per_token_kl * mask).sum(1) / mask.sum(1)).mean().item())'),), {}), ((), {}), args=two, steps=4)
pair("trl-6439-tools", "trl_grpo", "the count has tool tokens that are masked from the numerator", "AGG-COUNTS-MASKED", "aggregate/", ((), dict(release="trl-1.8.0")), ((), dict(release="trl-1.9.0")), holes=True, args=dict(use_vllm=True))
pair("trl-6439-truncated", "trl_grpo", "the count has truncated completions that are masked out", "AGG-COUNTS-MASKED", "aggregate/", ((), dict(release="trl-1.8.0")), ((), dict(release="trl-1.9.0")), fill=1.2, args=dict(mask_truncated_completions=True, use_vllm=True))
pair("trl-4454", "trl_grpo", "samples were filtered, their old log-probs were not", "ROWS-SWAPPED", "agreement/ first_step/", ((), dict(old_rolled=True)), ((), {}), args=dict(use_vllm=True, **two), steps=4)
pair("trl-2575", "trl_grpo", "the KL of a token is the whole row's", "", "kl/", (((P, "per_token_kl = per_token_kl * coef_1", "per_token_kl = ((per_token_kl * mask).sum(-1, keepdim=True) * torch.ones_like(per_token_kl)) * coef_1"),), {}), ((), {}), args=two, steps=4)
pair("nemo-2506", "trl_grpo", "the importance weight of the KL is detached", "KL-GRAD-NAIVE kl.grad", "gradient/", (((P, "per_token_kl = per_token_kl * coef_1", "per_token_kl = per_token_kl * coef_1.detach()"),), {}), ((), {}), args=dict(two, beta=0.3), steps=4)
pair("skyrl-1353", "trl_grpo", "no gradient through a KL that is a loss", "KL-DETACHED", "gradient/", (((P, "per_token_loss = per_token_loss + self.beta * per_token_kl", "per_token_loss = per_token_loss + self.beta * per_token_kl.detach()"),), {}), ((), {}), args=dict(two, beta=0.3, loss_type="grpo"), steps=4)
pair("slime-365", "trl_grpo", "rows divide by the response's length with its tool tokens", "AGG-COUNTS-MASKED", "aggregate/", (((P, "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()", "loss = ((per_token_loss * mask).sum(-1) / completion_mask.sum(-1).clamp(min=1.0)).mean()"),), {}), ((), {}), holes=True, args=dict(two, loss_type="grpo"), steps=4)
O = {"algo.advantage.estimator": "group_norm", "algo.kl.use_loss": True, "algo.kl.estimator": "k3", "algo.kl.init_coef": 0.05}
pair("openrlhf-857", "openrlhf_", "log-probs ignore the sampling temperature", "LOGP-TEMPERATURE", "agreement/ logp/", ((), dict(calls=dict(temperature_new=1.0, temperature_old=1.0, temperature_ref=1.0))), ((), {}), args={**O, "rollout.temperature": 0.8}, steps=3)
pair("openrlhf-df78645e", "openrlhf_", "the token mean of each micro-batch", "AGG-LOCAL-DENOMINATOR agg.denominator", "aggregate/", ((), dict(driver=dict(local=True))), ((), {}), args=O, gas=4)
pair("openrlhf-feeb0283", "openrlhf_", "ppo_kl is the mean of −ratio", "METRIC-PPO-KL-RATIO", "scalars/", ((("loss.py", "ppo_kl = masked_mean(-raw_policy_log_ratio.detach(), action_mask, dim=None)", "ppo_kl = masked_mean(-ratio.detach(), action_mask, dim=None)"),), {}), ((), {}), args=dict(O, **{"train.max_epochs": 2}), scalars=True, steps=4)


def cases(seed, bugs):
    out = []
    for i, (number, producer, what, names, stages, (be, bc), (ge, gc), cfg) in enumerate(PAIRS):
        if bugs:
            fixed = dict(gc)
            fixed.setdefault("driver", {k: v for k, v in cfg.get("driver", {}).items()})
            out.append(Case(f"b-hist-{number}", producer, {**cfg, **bc, "fixed": fixed}, "f32", seed + i, f"{what} ({number})", be, f"history {number}", tuple(names.split()), tuple(stages.split()), True))
        elif ge or gc or cfg.get("driver"):
            out.append(Case(f"h-hist-{number}", producer, {**cfg, **gc}, "f32", seed + i, f"the release that fixed {number}", ge, f"healthy history {number}"))
    return out
