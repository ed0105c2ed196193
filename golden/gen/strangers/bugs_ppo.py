"""Bugs in TRL 1.12.0's PPO. The right names were written before any was judged."""
from case import Case

P = "ppo_trainer.py"
L = []


def bug(name, what, edits, names, stages, family, args=None, **cfg):
    if edits and isinstance(edits[0], str):
        edits = (edits,)
    L.append(Case("b-trlppo-" + name, "trl_ppo", dict(cfg, args=args or {}), "f32", 0, what, tuple(edits), family, tuple(names.split()), tuple(stages.split()), True))


K = dict(ref_distance=0.03)
V = dict(args={"cliprange_value": 0.02, "num_ppo_epochs": 4})
GAE, AGG, TOK = "gae/", "aggregate/", "token_loss/policy"
bug("kl-sign", "KL added to the reward", (P, "non_score_reward = -args.kl_coef * kl", "non_score_reward = args.kl_coef * kl"), "KL-SIGN", "reward/token", "kl-reward", **K)
bug("kl-reversed", "the log-ratio reversed", (P, "logr = ref_logprobs - logprobs", "logr = logprobs - ref_logprobs"), "KL-REVERSED KL-SIGN", "kl/token reward/token", "kl-form", **K)
bug("kl-k3-half", "k3 without + log-ratio", (P, "(logr.exp() - 1) - logr", "(logr.exp() - 1)"), "", "kl/token reward/token", "kl-form2", args={"kl_estimator": "k3"}, **K)
bug("score-last-token", "the score on the last response token", (P, "actual_end = torch.where(sequence_lengths_p1 < rewards.size(1), sequence_lengths_p1, sequence_lengths)", "actual_end = sequence_lengths"), "SCORE-SHIFT score.index", "reward/token gae/", "score-place", **K)
bug("score-last-column", "the score in the last column", (P, "actual_end = torch.where(sequence_lengths_p1 < rewards.size(1), sequence_lengths_p1, sequence_lengths)", "actual_end = torch.full_like(sequence_lengths, rewards.size(1) - 1)"), "score.index SCORE-LOST SCORE-SHIFT", "reward/token gae/", "score-place", **K)
bug("score-replaces", "the score replaces the KL of its token", (P, "rewards[actual_start, actual_end] += scores", "rewards[actual_start, actual_end] = scores"), "", "reward/token", "score-form", **K)
bug("eos-penalty-inverted", "the penalty falls on responses that ended", (P, "scores[~contain_eos_token] -= self.args.missing_eos_penalty", "scores[contain_eos_token] -= self.args.missing_eos_penalty"), "EOS-INVERTED", "reward/", "eos", args={"missing_eos_penalty": 1.0}, fill=1.3)
bug("eos-penalty-absent", "the penalty never fires", (P, "scores[~contain_eos_token] -= self.args.missing_eos_penalty", "pass"), "EOS-PENALTY-MISSING eos.penalty eos.rule", "reward/", "eos", args={"missing_eos_penalty": 1.0}, fill=1.3)
bug("eos-penalty-replaces", "the penalty replaces the score", (P, "scores[~contain_eos_token] -= self.args.missing_eos_penalty", "scores[~contain_eos_token] = -self.args.missing_eos_penalty"), "eos.rule", "reward/", "eos", args={"missing_eos_penalty": 1.0}, fill=1.3)
bug("gae-no-lambda", "no λ", (P, "lastgaelam = delta + args.gamma * args.lam * lastgaelam", "lastgaelam = delta + args.gamma * lastgaelam"), "GAE-NO-LAMBDA gae.lambda", GAE, "gae-recursion", **K)
bug("gae-lambda-delta", "λ on the next value, too", (P, "delta = rewards[:, t] + args.gamma * nextvalues - values[:, t]", "delta = rewards[:, t] + args.gamma * args.lam * nextvalues - values[:, t]"), "", GAE, "gae-recursion2", **K)
bug("gae-values-shifted", "the next value two steps on", (P, "nextvalues = values[:, t + 1] if t < gen_length - 1 else 0.0", "nextvalues = values[:, t + 2] if t < gen_length - 2 else 0.0"), "", GAE, "gae-next", **K)
bug("gae-returns-late", "returns from whitened advantages", (P, "returns = advantages + values\n                advantages = masked_whiten(advantages, ~padding_mask)", "advantages = masked_whiten(advantages, ~padding_mask)\n                returns = advantages + values"), "GAE-RETURNS-AFTER-WHITENING returns.before_whiten", GAE, "gae-returns", **K)
bug("whiten-off", "advantages not whitened", (P, "advantages = masked_whiten(advantages, ~padding_mask)", "pass"), "WHITEN-MISSING", GAE + " advantage/", "whiten", **K)
bug("whiten-biased", "whitening over n", (P, "variance = variance * bessel_correction", "pass"), "WHITEN-DDOF whiten.ddof", GAE + " advantage/", "whiten-ddof", **K)
bug("whiten-p1", "whitening with the value mask", (P, "advantages = masked_whiten(advantages, ~padding_mask)", "advantages = masked_whiten(advantages, ~padding_mask_p1)"), "WHITEN-PADS whiten.mask", GAE + " advantage/", "whiten-mask", **K)
bug("clip-min", "min of the losses", (P, "pg_loss_max = torch.max(pg_losses, pg_losses2)", "pg_loss_max = torch.min(pg_losses, pg_losses2)"), "CLIP-MIN-MAX", TOK, "clip-minmax", args={"num_ppo_epochs": 4, "cliprange": 0.05})
bug("clip-upper-only", "no lower bound", (P, "torch.clamp(ratio, 1.0 - args.cliprange, 1.0 + args.cliprange)", "torch.clamp(ratio, max=1.0 + args.cliprange)"), "clip.low", TOK, "clip-bounds", args={"num_ppo_epochs": 4, "cliprange": 0.05})
bug("pg-mask-p1", "the policy loss with the value mask", (P, "pg_loss = masked_mean(pg_loss_max, ~padding_mask[micro_batch_inds])", "pg_loss = masked_mean(pg_loss_max, ~padding_mask_p1[micro_batch_inds])"), "LOSS-MASK-P1", AGG, "agg-mask", **K)
bug("pg-plain-mean", "the policy loss without a mask", (P, "pg_loss = masked_mean(pg_loss_max, ~padding_mask[micro_batch_inds])", "pg_loss = pg_loss_max.mean()"), "AGG-PAD-DENOMINATOR LOSS-MASK-PADS", AGG, "agg-mask", **K)
bug("vf-mask", "the value loss with the policy's mask", (P, "vf_loss = 0.5 * masked_mean(vf_loss_max, ~padding_mask_p1[micro_batch_inds])", "vf_loss = 0.5 * masked_mean(vf_loss_max, ~padding_mask[micro_batch_inds])"), "value.mask VALUE-MASK", AGG, "value-mask", **V)
bug("vf-no-half", "no ½", (P, "vf_loss = 0.5 * masked_mean(vf_loss_max", "vf_loss = masked_mean(vf_loss_max"), "VALUE-NO-HALF value.factor", AGG, "value-factor", **V)
bug("vf-unclipped", "not clipped", (P, "vf_loss_max = torch.max(vf_losses1, vf_losses2)", "vf_loss_max = vf_losses1"), "VALUE-CLIP-ABSENT value.clip", AGG, "value-clip", **V)
bug("vf-coef-missing", "no vf_coef", (P, "loss = pg_loss + args.vf_coef * vf_loss", "loss = pg_loss + vf_loss"), "value.coef VALUE-COEF-MISSING", AGG, "value-coef", **V)
bug("ratio-double", "the log-ratio doubled", (P, "ratio = torch.exp(logprobs_diff)", "ratio = torch.exp(2 * logprobs_diff)"), "", TOK, "ratio-form", args={"num_ppo_epochs": 4})
bug("new-temperature", "the new pass without the temperature", (), "LOGP-TEMPERATURE", "agreement/ logp/ first_step/", "temperature", calls={"temperature_new": 1.0}, gen=True)
bug("both-temperature", "the trainer without the temperature", (), "LOGP-TEMPERATURE", "agreement/ logp/", "temperature", calls={"temperature_new": 1.0, "temperature_old": 1.0, "temperature_ref": 1.0}, gen=True)


def cases(seed):
    for i, c in enumerate(L):
        c.seed = seed + i
    return L
