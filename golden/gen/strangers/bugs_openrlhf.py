"""Bugs in OpenRLHF 0.11.2: edits of its source, or of how it is called. The right names were written before any was judged."""
from case import Case

LO, UT, MK, AC, LU = "loss.py", "utils.py", "experience_maker.py", "ppo_actor.py", "loss_utils.py"
UT = "openrlhf/models/utils.py"
L = []


def bug(name, what, edits, names, stages, family, dtype="f32", args=None, **cfg):
    if edits and isinstance(edits[0], str):
        edits = (edits,)
    L.append(Case("b-orlhf-" + name, "openrlhf_", dict(cfg, args=args or {}), dtype, 0, what, tuple(edits), family, tuple(names.split()), tuple(stages.split()), True))


E, U, C, B = "algo.advantage.estimator", "algo.kl.use_loss", "algo.kl.init_coef", "algo.kl.estimator"
ADV, TOK, AGG, GRAD, KL, GAE = "advantage/", "token_loss/policy", "aggregate/", "gradient/dlogp", "kl/token", "gae/"
GN = dict(args={E: "group_norm", U: True, B: "k3", C: 0.05, "actor.eps_clip_low_high": [0.2, 0.28], "train.max_epochs": 2}, steps=4)
PPO = dict(args={"algo.advantage.lambd": 0.95, "algo.advantage.gamma": 0.99, C: 0.05}, ref_distance=0.03)
RL = dict(args={E: "rloo", U: True, B: "k3", C: 0.02})

bug("gn-ddof0", "σ of a group over n", (MK, "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)", "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True, unbiased=False) + 1e-9)"), "ADV-DDOF adv.ddof", ADV, "adv-ddof", **GN)
bug("gn-batch-std", "σ of the batch", (MK, "/ (rewards.std(-1, keepdim=True) + 1e-9)", "/ (rewards.std() + 1e-9)"), "ADV-BATCH-STD adv.scale", ADV, "adv-scale", **GN)
bug("gn-eps", "ε 1e-2", (MK, "/ (rewards.std(-1, keepdim=True) + 1e-9)", "/ (rewards.std(-1, keepdim=True) + 1e-2)"), "adv.eps", ADV, "adv-eps", **GN)
bug("gn-columns", "statistics down the columns", (MK, "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)", "rewards = (rewards - rewards.mean(0, keepdim=True)) / (rewards.std(0, keepdim=True) + 1e-9)"), "ADV-WRONG-GROUPS", ADV, "adv-groups", **GN)
bug("gn-reshape", "the batch is folded the other way round", (MK, "rewards = rewards.reshape(-1, args.rollout.n_samples_per_prompt)", "rewards = rewards.reshape(args.rollout.n_samples_per_prompt, -1).t().reshape(-1, args.rollout.n_samples_per_prompt)"), "ADV-WRONG-GROUPS ROWS-SWAPPED", ADV, "adv-groups", **GN)
bug("gn-minmax", "min-max scaling for the standard score", (MK, "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)", "rewards = (rewards - rewards.amin(-1, keepdim=True)) / (rewards.amax(-1, keepdim=True) - rewards.amin(-1, keepdim=True) + 1e-9)"), "", ADV, "adv-form", **GN)
bug("rloo-n", "leave-one-out divides by n", (MK, "baseline = (rewards.sum(-1, keepdim=True) - rewards) / (args.rollout.n_samples_per_prompt - 1)", "baseline = (rewards.sum(-1, keepdim=True) - rewards) / args.rollout.n_samples_per_prompt"), "", ADV, "rloo", **RL)
bug("rloo-mean", "leave-one-out takes the whole group's mean", (MK, "baseline = (rewards.sum(-1, keepdim=True) - rewards) / (args.rollout.n_samples_per_prompt - 1)", "baseline = rewards.mean(-1, keepdim=True)"), "adv.center", ADV, "rloo", **RL)
bug("clip-range-before", "scores clipped at ±0.3", (UT, "r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])", "r = r.clamp(min=-0.3, max=0.3)"), "reward.clip_range", ADV + " reward/ gae/", "reward-clip", **RL)
bug("score-one-late", "the score one past the end", (UT, "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)", "eos_indices = (action_mask.size(1) - action_mask.long().fliplr().argmax(dim=1, keepdim=True)).clamp(max=action_mask.size(1) - 1)"), "SCORE-SHIFT SCORE-LOST score.index", "reward/ gae/", "score-place", **PPO)
bug("score-last-column", "the score in the last column", (UT, "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)", "eos_indices = torch.full((action_mask.size(0), 1), action_mask.size(1) - 1)"), "SCORE-LOST score.index", "reward/ gae/", "score-place", **PPO)
bug("score-first", "the score at the first token", (UT, "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)", "eos_indices = torch.zeros(action_mask.size(0), 1, dtype=torch.long)"), "SCORE-SHIFT score.index", "reward/ gae/", "score-place2", **PPO)
bug("klr-sign", "KL added to the reward", (UT, "kl_reward = -kl_coef * kl", "kl_reward = kl_coef * kl"), "KL-SIGN", "reward/token", "kl-reward", **PPO)
bug("klr-twice", "KL twice in the reward", (UT, "kl_reward = -kl_coef * kl", "kl_reward = -2 * kl_coef * kl"), "KL-TWICE kl.beta", "reward/token", "kl-reward", **PPO)
bug("klr-abs", "the absolute log-ratio in the reward", (UT, "kl_reward = -kl_coef * kl", "kl_reward = -kl_coef * kl.abs()"), "KL-KIND kl.kind", "reward/token", "kl-reward2", **PPO)
bug("gae-next-own", "the next value is the own one", (MK, "nextvalues = values[:, t + 1] if t < response_length - 1 else 0.0", "nextvalues = values[:, t] if t < response_length - 1 else 0.0"), "", GAE, "gae-next", **PPO)
bug("gae-bootstrap-last", "the last column bootstraps from itself", (MK, "nextvalues = values[:, t + 1] if t < response_length - 1 else 0.0", "nextvalues = values[:, t + 1] if t < response_length - 1 else values[:, t]"), "GAE-TRUNCATED-BOOTSTRAP GAE-LAST-INDEX gae.truncated_bootstrap", GAE, "gae-next", fill=1.4, **PPO)
bug("gae-gamma-squared", "γ² in the recursion", (MK, "lastgaelam = delta + gamma * lambd * lastgaelam", "lastgaelam = delta + gamma * gamma * lambd * lastgaelam"), "gae.lambda", GAE, "gae-recursion", args={"algo.advantage.lambd": 0.95, "algo.advantage.gamma": 0.9})
bug("gae-no-lambda", "no λ", (MK, "lastgaelam = delta + gamma * lambd * lastgaelam", "lastgaelam = delta + gamma * lastgaelam"), "GAE-NO-LAMBDA gae.lambda", GAE, "gae-recursion", **PPO)
bug("gae-unmasked", "values and rewards of padding stay", (MK, "            values = action_mask * values\n            rewards = action_mask * rewards\n\n        for t in reversed(range(response_length)):\n            nextvalues", "            pass\n\n        for t in reversed(range(response_length)):\n            nextvalues"), "GAE-PADS", GAE, "gae-mask", **PPO)
bug("gae-returns-rewards", "returns are cumulated rewards without the bootstrap", (MK, "        returns = advantages + values\n        return advantages.detach(), returns", "        returns = rewards.flip(1).cumsum(1).flip(1)\n        return advantages.detach(), returns"), "", GAE, "gae-returns", **PPO)
bug("whiten-ddof1", "whitening over n − 1", (MK, "var = ((all_advantages - mean).pow(2) * all_action_masks).sum() / num_actions", "var = ((all_advantages - mean).pow(2) * all_action_masks).sum() / (num_actions - 1)"), "WHITEN-DDOF whiten.ddof", GAE + " " + ADV, "whiten-ddof", **PPO)
bug("whiten-cells", "the variance divides by all cells", (MK, "var = ((all_advantages - mean).pow(2) * all_action_masks).sum() / num_actions", "var = ((all_advantages - mean).pow(2) * all_action_masks).sum() / all_action_masks.numel()"), "", GAE + " " + ADV, "whiten-mask", **PPO)
bug("whiten-uncentred", "second moment for the variance", (MK, "var = ((all_advantages - mean).pow(2) * all_action_masks).sum() / num_actions", "var = (all_advantages.pow(2) * all_action_masks).sum() / num_actions"), "", GAE + " " + ADV, "whiten-form", **PPO)
bug("whiten-no-mean", "divided by σ, not centred", (MK, "exp.advantages = (exp.advantages - mean) * rstd", "exp.advantages = exp.advantages * rstd"), "whiten.shift_mean", GAE + " " + ADV, "whiten-form", **PPO)
bug("whiten-variance", "divided by the variance", (MK, "rstd = var.clamp(min=1e-8).rsqrt()", "rstd = 1 / var.clamp(min=1e-8)"), "", GAE + " " + ADV, "whiten-form", **PPO)

bug("clip-swapped", "the two ε exchanged", (LO, "surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages", "surr2 = ratio.clamp(1 - self.clip_eps_high, 1 + self.clip_eps_low) * advantages"), "CLIP-SIDES-SWAPPED", TOK, "clip-bounds", **GN)
bug("clip-one-sided", "no lower bound", (LO, "surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages", "surr2 = ratio.clamp(max=1 + self.clip_eps_high) * advantages"), "clip.low", TOK, "clip-bounds", **GN)
bug("clip-division", "the lower bound is 1/(1 + ε)", (LO, "surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages", "surr2 = ratio.clamp(1 / (1 + self.clip_eps_low), 1 + self.clip_eps_high) * advantages"), "clip.low", TOK, "clip-bounds", **GN)
bug("clip-max", "the larger surrogate", (LO, "            loss = -torch.min(surr1, surr2)", "            loss = -torch.max(surr1, surr2)"), "CLIP-MIN-MAX", TOK, "clip-minmax", **GN)
bug("clip-absent", "no clip", (LO, "            loss = -torch.min(surr1, surr2)", "            loss = -surr1"), "CLIP-ABSENT", TOK, "clip-absent", **GN)
bug("ratio-no-exp", "the log-ratio in place of the ratio", (LO, "            policy_log_ratio = raw_policy_log_ratio.clamp(min=-20.0, max=20.0)\n            ratio = policy_log_ratio.exp()", "            policy_log_ratio = raw_policy_log_ratio.clamp(min=-20.0, max=20.0)\n            ratio = policy_log_ratio"), "", TOK, "ratio-form", **GN)
bug("ratio-detached-old", "the ratio's new side detached", (LO, "ratio = policy_log_ratio.exp()", "ratio = policy_log_ratio.detach().exp()"), "RATIO-DETACHED", GRAD, "ratio-gradient", **GN)
bug("ratio-inverted", "exp(old − new)", (LO, "raw_policy_log_ratio = log_probs - old_log_probs", "raw_policy_log_ratio = old_log_probs - log_probs"), "RATIO-INVERTED", TOK, "ratio", **GN)
bug("adv-norm-loss", "advantages normalised again in the loss", (LO, "surr1 = ratio * advantages\n        surr2", "advantages = advantages / (advantages.std() + 1e-8)\n        surr1 = ratio * advantages\n        surr2"), "", TOK, "adv-in-loss", **GN)
bug("gspo-token-mean", "GSPO averaged over tokens", (LO, "            self.token_level_loss = False", "            pass"), "agg.kind", AGG, "gspo", args={E: "group_norm", U: True, C: 0.0, "actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [0.1, 0.1], "train.max_epochs": 2}, steps=4)
bug("gspo-no-length", "GSPO's sum is not divided by the length", (LO, "ratio = (log_ratio * action_mask).sum(dim=-1) / action_mask.sum(dim=-1).clamp(min=1)", "ratio = (log_ratio * action_mask).sum(dim=-1)"), "ratio.level", TOK, "gspo", args={E: "group_norm", U: True, C: 0.0, "actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [0.1, 0.1], "train.max_epochs": 2}, steps=4)
TI = dict(args={E: "group_norm", U: True, B: "k3", "algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip", "algo.advantage.is_correction_threshold": [0.99, 1.01]})
bug("is-attached", "the weights from the new log-probs with their gradient", (LO, "is_log_ratio = (old_log_probs - rollout_log_probs).detach()", "is_log_ratio = log_probs - rollout_log_probs"), "IS-GRADIENT IS-NEW-FOR-OLD", GRAD + " token_loss/", "is-gradient", **TI)
bug("is-inverted", "the weights inverted", (LO, "is_log_ratio = (old_log_probs - rollout_log_probs).detach()", "is_log_ratio = (rollout_log_probs - old_log_probs).detach()"), "", TOK, "is-form", **TI)
bug("is-absent", "the weights are not multiplied", (LO, "            loss = coef * loss", "            pass"), "IS-NOT-APPLIED tis.level tis.level=none", TOK, "is-applied", **TI)
bug("is-no-low", "no lower bound", (LO, "coef = stat.clamp(min=low, max=high)", "coef = stat.clamp(max=high)"), "tis.low tis.rule", TOK, "is-bounds", **TI)

bug("kl-reversed", "k3 the other way round", (UT, "k3_log_ratio = log_ratio.clamp(min=-10)", "k3_log_ratio = (-log_ratio).clamp(min=-10)"), "KL-REVERSED", KL, "kl-form", **GN)
bug("kl-k2-no-half", "k2 without ½", (UT, "value = log_ratio**2 / 2.0", "value = log_ratio**2"), "", KL, "kl-form2", args={E: "group_norm", U: True, B: "k2", C: 0.05, "train.max_epochs": 2}, steps=4)
bug("kl-relu", "negative estimates cut off", (UT, "value = value.clamp(min=-10, max=10)", "value = value.clamp(min=0, max=10)"), "", KL, "kl-form2", args={E: "group_norm", U: True, B: "k1", C: 0.05, "train.max_epochs": 2}, steps=4)
bug("kl-k1-for-k3", "k1 where k3 is declared", (UT, 'if kl_estimator == "k1":', 'if kl_estimator in ("k1", "k3"):'), "KL-KIND kl.kind", KL, "kl-form", **GN)
bug("kl-old", "the KL against the old policy", (AC, "kl = compute_approx_kl(\n                    action_log_probs,\n                    base_action_log_probs,", "kl = compute_approx_kl(\n                    action_log_probs,\n                    old_action_log_probs,"), "KL-OLD-FOR-REF", KL, "kl-reference", **dict(GN, ref_distance=0.03))
bug("kl-sign", "the KL term subtracted", (AC, "loss = actor_loss + kl_loss * kl_ctl", "loss = actor_loss - kl_loss * kl_ctl"), "KL-SIGN", AGG, "kl-sum", **GN)
bug("kl-no-coef", "no coefficient", (AC, "loss = actor_loss + kl_loss * kl_ctl", "loss = actor_loss + kl_loss"), "BETA-MISSING", AGG, "kl-sum", **GN)
bug("kl-absent", "no KL term", (AC, "loss = actor_loss + kl_loss * kl_ctl", "loss = actor_loss"), "KL-ABSENT kl.beta kl.beta=0 kl.place", AGG, "kl-sum", **GN)
bug("kl-no-mask", "padding in the KL term", (AC, "kl_loss = aggregate_loss(kl, experience.action_mask, **loss_batch_info)", "kl_loss = aggregate_loss(kl, torch.ones_like(experience.action_mask), **loss_batch_info)"), "KL-OUTSIDE-MASK", AGG, "kl-mask", **GN)
bug("kl-detached", "no gradient", (AC, "kl_loss = aggregate_loss(kl, experience.action_mask, **loss_batch_info)", "kl_loss = aggregate_loss(kl.detach(), experience.action_mask, **loss_batch_info)"), "KL-DETACHED", GRAD, "kl-gradient", **GN)
bug("kl-unbiased-no-weight", "the unbiased gradient without its weight", (UT, "grad_surrogate = w * (log_ratio**2 / 2.0)", "grad_surrogate = log_ratio**2 / 2.0"), "kl.is_cap kl.grad", GRAD, "kl-gradient2", args={E: "group_norm", U: True, B: "k3", C: 0.5, "algo.kl.unbiased_gradient": True, "train.max_epochs": 2}, steps=4, ref_distance=0.05)
bug("entropy-sign", "the bonus is a penalty", (AC, "loss -= entropy_loss * self.args.actor.entropy_coef", "loss += entropy_loss * self.args.actor.entropy_coef"), "ENTROPY-SIGN", AGG, "entropy", args={E: "group_norm", U: True, B: "k3", "actor.entropy_coef": 0.02})

SE = dict(args={E: "group_norm", U: True, B: "k3", C: 0.05, "actor.loss_agg_mode": "seq-mean-token-mean", "train.max_epochs": 2}, steps=4)
bug("agg-local", "each micro-batch takes its own mean", (), "AGG-LOCAL-DENOMINATOR agg.denominator", AGG, "agg-local", driver={"local": True}, gas=2, **GN)
bug("agg-no-gas", "the accumulation is divided out twice", (LU, '"batch_num_tokens": num_tokens / gas', '"batch_num_tokens": num_tokens'), "AGG-GA-TWICE FACTOR agg.div_ga", AGG, "agg-ga", gas=4, **GN)
bug("agg-no-dp", "no dp_size", (LO, "return (loss * loss_mask).sum() / batch_num_tokens * dp_size", "return (loss * loss_mask).sum() / batch_num_tokens"), "FACTOR-WORLD-SIZE FACTOR", AGG, "agg-world", ranks=2, **GN)
bug("agg-width", "the mean over the width", (LO, "return (loss * loss_mask).sum() / batch_num_tokens * dp_size", "return (loss * loss_mask).mean() * dp_size"), "AGG-PAD-DENOMINATOR", AGG, "agg-width", **GN)
bug("agg-no-mask", "padding averaged in", (LO, "return (loss * loss_mask).sum() / batch_num_tokens * dp_size", "return loss.mean() * dp_size"), "LOSS-MASK-PADS", AGG, "agg-mask", **GN)
bug("agg-rms", "a root mean square", (LO, "return (loss * loss_mask).sum() / batch_num_tokens * dp_size", "return ((loss ** 2 * loss_mask).sum() / batch_num_tokens * dp_size).sqrt()"), "", AGG, "agg-form", **dict(GN, steps=1))
bug("agg-seq-sum", "row sums for row means", (LO, "seq_loss = (loss * loss_mask).sum(dim=-1) / (token_counts + 1e-8)", "seq_loss = (loss * loss_mask).sum(dim=-1)"), "agg.kind", AGG, "agg-kind", **SE)
bug("agg-seq-square", "row means weighted by the length", (LO, "    seq_mask = (token_counts > 0).float()  # exclude fully masked sequences", "    seq_loss = seq_loss * token_counts / token_counts.float().mean()\n    seq_mask = (token_counts > 0).float()"), "agg.kind AGG-TOKEN-MEAN", AGG, "agg-kind", **SE)
bug("agg-tool", "tool tokens in the loss", (), "LOSS-MASK-TOOL MASK-ATTENTION", AGG, "agg-tool", driver={"mask": "live"}, holes=True, **GN)
VC = dict(args={"critic.value_clip": 0.02, "train.max_epochs": 2, C: 0.05}, steps=4)
bug("value-no-half", "no ½", (LO, "        return 0.5 * loss\n\n\nclass PairWiseLoss", "        return loss\n\n\nclass PairWiseLoss"), "VALUE-NO-HALF value.factor", AGG, "value-factor", **VC)
bug("value-min", "the smaller square", (LO, "            loss = torch.max(surr1, surr2)\n        else:\n            loss = (values - returns) ** 2", "            loss = torch.min(surr1, surr2)\n        else:\n            loss = (values - returns) ** 2"), "VALUE-CLIP-MIN", AGG, "value-clip", **VC)
bug("value-no-clip", "not clipped", (LO, "            loss = torch.max(surr1, surr2)\n        else:\n            loss = (values - returns) ** 2", "            loss = surr2\n        else:\n            loss = (values - returns) ** 2"), "VALUE-CLIP-ABSENT value.clip", AGG, "value-clip", **VC)
bug("value-only-clip", "always the clipped value", (LO, "            loss = torch.max(surr1, surr2)\n        else:\n            loss = (values - returns) ** 2", "            loss = surr1\n        else:\n            loss = (values - returns) ** 2"), "VALUE-CLIP-ALWAYS", AGG, "value-clip2", **VC)
bug("value-relative", "the clip range relative to the value", (LO, "values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)", "values_clipped = old_values * (values / old_values).clamp(1 - self.clip_eps, 1 + self.clip_eps)"), "", AGG, "value-clip2", **VC)
bug("values-late", "values cut one position late", (), "GAE-VALUE-SHIFT", GAE + " first_step/ gradient/ aggregate/", "values-late", driver={"late_values": True}, **PPO)
bug("metric-ppo-kl-ratio", "ppo_kl is the mean of −ratio", (LO, "ppo_kl = masked_mean(-raw_policy_log_ratio.detach(), action_mask, dim=None)", "ppo_kl = masked_mean(-ratio.detach(), action_mask, dim=None)"), "METRIC-PPO-KL-RATIO", "scalars/", "metric", scalars=True, **GN)
bug("metric-clip-lower", "the clip ratio with ≤", (LO, "clip_ratio = masked_mean(torch.lt(surr2, surr1).float(), action_mask, dim=None)", "clip_ratio = masked_mean(torch.gt(surr2, surr1).float(), action_mask, dim=None)"), "METRIC-CLIP-SIGN", "scalars/", "metric", scalars=True, **GN)
bug("stale-engine", "the engine keeps the first weights", (), "GEN-UNADAPTED", "agreement/", "stale", stale_engine=True, lr=0.03, args={E: "group_norm", U: True, B: "k3"}, steps=6)
bug("ref-is-policy", "the reference is the policy", (), "KL-OLD-FOR-REF REF-IS-POLICY", "agreement/", "ref-policy", driver={"ref_is_policy": True}, args={E: "group_norm", U: True, B: "k3", C: 0.05}, steps=4)
bug("both-temperature", "the trainer without the temperature (OpenRLHF#857)", (), "LOGP-TEMPERATURE", "agreement/ logp/", "temperature", calls={"temperature_new": 1.0, "temperature_old": 1.0}, args={E: "group_norm", U: True, B: "k3", "rollout.temperature": 0.7})


def cases(seed):
    for i, c in enumerate(L):
        c.seed = seed + i
    return L
