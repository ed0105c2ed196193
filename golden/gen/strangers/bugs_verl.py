"""Bugs in verl 0.9.1: edits of its source, or of how it is called. The right names were written before any was judged."""
from case import Case

C, T_, LS, RAY, RC = "core_algos.py", "torch_functional.py", "losses.py", "ray_trainer.py", "rollout_corr_helper.py"
L = []


def bug(name, what, edits, names, stages, family, dtype="f32", **cfg):
    if edits and isinstance(edits[0], str):
        edits = (edits,)
    L.append(Case("b-verl-" + name, "verl_", cfg, dtype, 0, what, tuple(edits), family, tuple(names.split()), tuple(stages.split()), True))


def d(**a):
    return a


ADV, TOK, AGG, GRAD, KL, IS, GAE = "advantage/", "token_loss/policy", "aggregate/", "gradient/dlogp", "kl/token", "ratio/is_weights", "gae/"
KLL = dict(actor=d(use_kl_loss=True, kl_loss_coef=0.05, ppo_epochs=2, clip_ratio_high=0.28), steps=4)
PPO = dict(algo=d(adv_estimator="gae", lam=0.95, gamma=0.99), actor=d(ppo_epochs=2), steps=4)
PPOH = dict(PPO, holes=True)
PPOK = dict(algo=d(adv_estimator="gae", lam=0.95, use_kl_in_reward=True, kl_coef=0.05), ref_distance=0.03)
TIS = dict(algo=d(rollout_is="token", rollout_is_threshold=1.01), temperature=0.9)
RPP = dict(algo=d(adv_estimator="reinforce_plus_plus", gamma=0.99), holes=True)

# estimators
bug("grpo-ddof0", "σ over n", (C, "id2mean[idx] = torch.mean(scores_tensor)\n                id2std[idx] = torch.std(scores_tensor)\n            else:\n                raise ValueError(f\"no score in prompt index: {idx}\")\n        for i in range(bsz):\n            if norm_adv_by_std_in_grpo:", "id2mean[idx] = torch.mean(scores_tensor)\n                id2std[idx] = torch.std(scores_tensor, unbiased=False)\n            else:\n                raise ValueError(f\"no score in prompt index: {idx}\")\n        for i in range(bsz):\n            if norm_adv_by_std_in_grpo:"), "ADV-DDOF adv.ddof", ADV, "adv-ddof")
bug("grpo-no-eps-std-max", "σ bounded from below by 1 in place of ε", (C, "scores[i] = (scores[i] - id2mean[index[i]]) / (id2std[index[i]] + epsilon)\n            else:\n                scores[i] = scores[i] - id2mean[index[i]]\n        scores = scores.unsqueeze(-1) * response_mask", "scores[i] = (scores[i] - id2mean[index[i]]) / id2std[index[i]].clamp(min=1.0)\n            else:\n                scores[i] = scores[i] - id2mean[index[i]]\n        scores = scores.unsqueeze(-1) * response_mask"), "adv.scale ADV-SCALE-MISSING adv.scale=none", ADV, "adv-scale")
bug("grpo-norm-inverted", "norm_adv_by_std_in_grpo inverted", (C, "            if norm_adv_by_std_in_grpo:\n                scores[i] = (scores[i] - id2mean[index[i]]) / (id2std[index[i]] + epsilon)\n            else:\n                scores[i] = scores[i] - id2mean[index[i]]\n        scores = scores.unsqueeze(-1) * response_mask\n\n    return scores, scores\n\n\n@register_adv_est(AdvantageEstimator.GRPO_VECTORIZED)", "            if not norm_adv_by_std_in_grpo:\n                scores[i] = (scores[i] - id2mean[index[i]]) / (id2std[index[i]] + epsilon)\n            else:\n                scores[i] = scores[i] - id2mean[index[i]]\n        scores = scores.unsqueeze(-1) * response_mask\n\n    return scores, scores\n\n\n@register_adv_est(AdvantageEstimator.GRPO_VECTORIZED)"), "adv.scale ADV-SCALE-MISSING adv.scale=none", ADV, "adv-scale")
bug("grpo-merged-groups", "two prompts share a key", (), "ADV-WRONG-GROUPS", ADV, "adv-groups", driver=d(merged_groups=True))
bug("grpo-mean-over-tokens", "scores are means over the tokens", (C, "    scores = token_level_rewards.sum(dim=-1)\n\n    id2score = defaultdict(list)\n    id2mean = {}\n    id2std = {}\n\n    with torch.no_grad():\n        bsz = scores.shape[0]\n        for i in range(bsz):\n            id2score[index[i]].append(scores[i])\n        for idx in id2score:\n            if len(id2score[idx]) == 1:\n                id2mean[idx] = torch.tensor(0.0)\n                id2std[idx] = torch.tensor(1.0)\n            elif len(id2score[idx]) > 1:\n                scores_tensor = torch.stack(id2score[idx])\n                id2mean[idx] = torch.mean(scores_tensor)\n                id2std[idx] = torch.std(scores_tensor)\n            else:\n                raise ValueError(f\"no score in prompt index: {idx}\")\n        for i in range(bsz):\n            if norm", "    scores = token_level_rewards.sum(dim=-1) / response_mask.sum(-1)\n\n    id2score = defaultdict(list)\n    id2mean = {}\n    id2std = {}\n\n    with torch.no_grad():\n        bsz = scores.shape[0]\n        for i in range(bsz):\n            id2score[index[i]].append(scores[i])\n        for idx in id2score:\n            if len(id2score[idx]) == 1:\n                id2mean[idx] = torch.tensor(0.0)\n                id2std[idx] = torch.tensor(1.0)\n            elif len(id2score[idx]) > 1:\n                scores_tensor = torch.stack(id2score[idx])\n                id2mean[idx] = torch.mean(scores_tensor)\n                id2std[idx] = torch.std(scores_tensor)\n            else:\n                raise ValueError(f\"no score in prompt index: {idx}\")\n        for i in range(bsz):\n            if norm"), "", ADV, "adv-scores")
bug("rloo-no-factor", "leave-one-out without n/(n − 1)", (C, "                scores[i] = scores[i] * response_num / (response_num - 1) - id2mean[index[i]] * response_num / (\n                    response_num - 1\n                )", "                scores[i] = scores[i] - id2mean[index[i]]"), "adv.center adv.center=mean", ADV, "rloo", algo=d(adv_estimator="rloo"))
bug("rloo-divisor", "leave-one-out divides the baseline by n", (C, "scores[i] * response_num / (response_num - 1) - id2mean[index[i]] * response_num / (\n                    response_num - 1\n                )", "scores[i] * response_num / (response_num - 1) - id2mean[index[i]]"), "", ADV, "rloo", algo=d(adv_estimator="rloo"))
bug("rpp-hole", "REINFORCE++ loses the return at tool tokens (verl#7300)", (C, "running_return = new_running_return * response_mask[:, t] + running_return * (1 - response_mask[:, t])", "running_return = new_running_return * response_mask[:, t]"), "RFPP-HOLE-DROPS", ADV, "rpp", **RPP)
bug("rpp-gamma-hole", "REINFORCE++ discounts over tool tokens", (C, "running_return = new_running_return * response_mask[:, t] + running_return * (1 - response_mask[:, t])", "running_return = new_running_return"), "GAE-TOOL-TOKENS", ADV, "rpp", **RPP)
bug("rpp-unwhitened", "REINFORCE++ not whitened", (C, "        advantages = verl_F.masked_whiten(returns, response_mask)\n        advantages = advantages * response_mask", "        advantages = returns.clone()\n        advantages = advantages * response_mask"), "WHITEN-MISSING", ADV, "whiten", **RPP)
bug("rpp-forward", "REINFORCE++ runs left to right", (C, "        for t in reversed(range(token_level_rewards.shape[1])):\n            new_running_return", "        for t in range(token_level_rewards.shape[1]):\n            new_running_return"), "", ADV, "rpp-direction", **RPP)

# GAE
bug("gae-holes", "GAE runs over tool tokens", ((C, "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues", "nextvalues = values[:, t]"), (C, "lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam", "lastgaelam = lastgaelam_")), "GAE-TOOL-TOKENS gae.hole", GAE, "gae-holes", **PPOH)
bug("gae-holes-value", "the value of a tool token enters the recursion", (C, "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues", "nextvalues = values[:, t]"), "GAE-TOOL-TOKENS gae.hole", GAE, "gae-holes", **PPOH)
bug("gae-no-lambda", "no λ", (C, "lastgaelam_ = delta + gamma * lam * lastgaelam", "lastgaelam_ = delta + gamma * lastgaelam"), "GAE-NO-LAMBDA gae.lambda gae.lambda=1", GAE, "gae-recursion", **PPO)
bug("gae-no-gamma", "no γ in the recursion", (C, "lastgaelam_ = delta + gamma * lam * lastgaelam", "lastgaelam_ = delta + lam * lastgaelam"), "", GAE, "gae-recursion2", algo=d(adv_estimator="gae", lam=0.95, gamma=0.9))
bug("gae-gamma-swapped", "γ and λ exchanged in the call", (C, "delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]", "delta = token_level_rewards[:, t] + lam * nextvalues - values[:, t]"), "", GAE, "gae-recursion2", algo=d(adv_estimator="gae", lam=0.9, gamma=1.0))
bug("gae-r-minus-v", "r − V without the next value", (C, "delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]", "delta = token_level_rewards[:, t] - values[:, t]"), "GAE-R-MINUS-V", GAE, "gae-recursion", **PPO)
bug("gae-plus-v", "the value is added", (C, "delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]", "delta = token_level_rewards[:, t] + gamma * nextvalues + values[:, t]"), "", GAE, "gae-recursion3", **PPO)
bug("gae-returns-whitened", "returns after whitening", (C, "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns", "        advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values\n    return advantages, returns"), "GAE-RETURNS-AFTER-WHITENING returns.before_whiten", GAE, "gae-returns", **PPO)
bug("gae-returns-no-v", "returns without V", (C, "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns", "        returns = advantages.clone()\n        advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns"), "", GAE, "gae-returns2", **PPO)
bug("gae-unwhitened", "advantages are not whitened", (C, "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns", "        returns = advantages + values\n    return advantages, returns"), "WHITEN-MISSING", GAE + " " + ADV, "whiten", **PPO)
bug("gae-whiten-pads", "padding counts in whitening", (C, "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns", "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, torch.ones_like(response_mask))\n    return advantages, returns"), "WHITEN-PADS whiten.mask", GAE + " " + ADV, "whiten-mask", **PPO)
bug("gae-whiten-ddof", "whitening over n", (T_, "variance = variance * bessel_correction", "pass"), "WHITEN-DDOF whiten.ddof", GAE + " " + ADV, "whiten-ddof", **PPO)
bug("gae-whiten-eps", "ε 1e-2 in whitening", (T_, "whitened = (values - mean) * torch.rsqrt(var + 1e-8)", "whitened = (values - mean) * torch.rsqrt(var + 1e-2)"), "whiten.eps", GAE + " " + ADV, "whiten-eps", **PPO)
bug("gae-whiten-no-shift", "whitening adds the mean back", (T_, "    if not shift_mean:\n        whitened += mean\n    return whitened", "    if True:\n        whitened += mean\n    return whitened"), "whiten.shift_mean", GAE + " " + ADV, "whiten-shift", **PPO)
bug("gae-values-late", "values cut one position late", (), "GAE-VALUE-SHIFT", GAE + " first_step/ gradient/ aggregate/", "values-late", driver=d(late_values=True), **PPO)
bug("score-early", "the score stands one token early", (), "SCORE-SHIFT score.index", "reward/ gae/", "score-place", driver=d(score_offset=-1), **PPO)
bug("score-late", "the score stands on the first pad", (), "SCORE-SHIFT SCORE-LOST score.index", "reward/ gae/", "score-place", driver=d(score_offset=1), **PPO)

# KL in the reward
bug("klr-sign", "KL added to the reward", (RAY, "token_level_rewards = token_level_scores - beta * kld", "token_level_rewards = token_level_scores + beta * kld"), "KL-SIGN", "reward/token", "kl-reward", **PPOK)
bug("klr-no-beta", "KL without its coefficient in the reward", (RAY, "token_level_rewards = token_level_scores - beta * kld", "token_level_rewards = token_level_scores - kld"), "BETA-MISSING", "reward/token", "kl-reward", **PPOK)
bug("klr-absent", "no KL in the reward", (RAY, "token_level_rewards = token_level_scores - beta * kld", "token_level_rewards = token_level_scores"), "KL-ABSENT kl.place kl.beta kl.beta=0", "reward/token", "kl-reward", **PPOK)
bug("klr-reversed", "policy and reference exchanged in the reward's KL", (RAY, 'data.batch["old_log_probs"], data.batch["ref_log_prob"], kl_penalty=kl_penalty', 'data.batch["ref_log_prob"], data.batch["old_log_probs"], kl_penalty=kl_penalty'), "KL-REVERSED KL-SIGN", "reward/token", "kl-reward2", **PPOK)
bug("klr-last", "the row's whole KL is subtracted at its last token", (RAY, "kld = kld * response_mask\n    beta = kl_ctrl.value", "kld = kld * response_mask\n    beta = kl_ctrl.value\n    last = response_mask.long().cumsum(-1).argmax(-1, keepdim=True)\n    kld = torch.zeros_like(kld).scatter(1, last, kld.sum(-1, keepdim=True))"), "", "reward/token", "kl-reward3", **PPOK)
bug("klr-mean", "the row's mean KL at every token", (RAY, "kld = kld * response_mask\n    beta = kl_ctrl.value", "kld = (kld * response_mask).sum(-1, keepdim=True) / response_mask.sum(-1, keepdim=True) * response_mask\n    beta = kl_ctrl.value"), "", "reward/token", "kl-reward3", **PPOK)
bug("klr-nan-mask", "NaN at masked cells of logp_ref enters the rewards (verl#6361)", (), "NAN-OUTSIDE", "reward/ masks/ gae/", "nan-ref", driver=d(nan_ref=True), **dict(PPOK, steps=1))
bug("ref-is-policy", "the adapter stays on in the reference pass: reference = policy", (), "KL-OLD-FOR-REF REF-IS-POLICY", "agreement/", "ref-policy", driver=d(ref_is_policy=True), minis=2, actor=d(use_kl_loss=True, kl_loss_coef=0.05), steps=6)
bug("ref-is-policy-reward", "the same with KL in the reward of PPO", (), "KL-OLD-FOR-REF REF-IS-POLICY", "agreement/", "ref-policy", driver=d(ref_is_policy=True), algo=d(adv_estimator="gae", lam=0.95, use_kl_in_reward=True, kl_coef=0.05), steps=4)

# token loss
bug("clip-swapped", "the two ε exchanged", (C, "    cliprange = clip_ratio\n    cliprange_low = clip_ratio_low\n    cliprange_high = clip_ratio_high\n\n    assert clip_ratio_c", "    cliprange = clip_ratio\n    cliprange_low = clip_ratio_high\n    cliprange_high = clip_ratio_low\n\n    assert clip_ratio_c"), "CLIP-SIDES-SWAPPED", TOK, "clip-bounds", **KLL)
bug("clip-high-ignored", "clip_ratio_high is not forwarded", (C, "    cliprange = clip_ratio\n    cliprange_low = clip_ratio_low\n    cliprange_high = clip_ratio_high\n\n    assert clip_ratio_c", "    cliprange = clip_ratio\n    cliprange_low = clip_ratio_low\n    cliprange_high = clip_ratio\n\n    assert clip_ratio_c"), "clip.high", TOK, "clip-bounds", **KLL)
VAN = "    ppo_kl = verl_F.masked_mean(-negative_approx_kl, response_mask)\n\n    pg_losses1 = -advantages * ratio\n    if cliprange_low is None:\n        cliprange_low = cliprange\n    if cliprange_high is None:\n        cliprange_high = cliprange\n    pg_losses2"
DUAL = "    pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)\n\n    # Apply rollout correction weights if provided\n    if rollout_is_weights is not None:\n        pg_losses = pg_losses * rollout_is_weights"
DUALX = DUAL.split("\n\n")[0]
bug("dual-both", "the dual clip for both signs", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = clip_pg_losses2")), "CLIP-DUAL-BOTH-SIGNS", TOK, "dual", **dict(KLL, actor=d(clip_ratio_c=1.05, ppo_epochs=2)))
bug("dual-absent", "the dual clip is never applied", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = clip_pg_losses1")), "clip.dual clip.dual=none", TOK, "dual", **dict(KLL, actor=d(clip_ratio_c=1.05, ppo_epochs=2)))
bug("clip-absent", "no clip", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = pg_losses1")), "CLIP-ABSENT", TOK, "clip-absent", **KLL)
bug("clip-always", "always the clipped term", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = pg_losses2")), "CLIP-ALWAYS", TOK, "clip-absent", **KLL)
bug("clip-min", "the smaller of the two losses", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = torch.minimum(pg_losses1, pg_losses2)")), "CLIP-MIN-MAX", TOK, "clip-minmax", **KLL)
bug("loss-sign", "the sign of the policy loss", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = -torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)")), "ADV-SIGN", TOK, "loss-sign", **KLL)
bug("loss-reinforce", "log-prob times advantage where PPO's ratio is declared", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = -advantages * log_prob")), "loss.kind", TOK, "loss-kind", **KLL)
bug("loss-k-power", "advantages squared", (C, DUAL, DUAL.replace(DUALX, "    pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1) * advantages.abs()")), "", TOK, "loss-form", **KLL)
bug("is-not-applied", "weights are not multiplied", (C, DUAL, DUALX), "IS-NOT-APPLIED tis.level tis.level=none", TOK, "is-applied", **TIS)
bug("is-sqrt", "the square root of the weights", (C, DUAL, DUAL.replace("* rollout_is_weights", "* rollout_is_weights.sqrt()")), "", TOK, "is-form", **TIS)
bug("is-inverted", "the weights inverted", (RC, "        raw_rollout_is_weights: torch.Tensor = torch.exp(log_ratio_safe)", "        raw_rollout_is_weights: torch.Tensor = torch.exp(-log_ratio_safe)"), "", IS, "is-form", **TIS)
bug("is-no-cap", "weights are not truncated", (RC, "rollout_is_weights = raw_rollout_is_weights.clamp(max=rollout_is_threshold_upper)", "rollout_is_weights = raw_rollout_is_weights"), "IS-CLAMP-MISSING tis.high", IS, "is-cap", **TIS)
bug("is-normalised", "weights divided by their mean", (RC, "rollout_is_weights = raw_rollout_is_weights.clamp(max=rollout_is_threshold_upper)", "rollout_is_weights = raw_rollout_is_weights.clamp(max=rollout_is_threshold_upper); rollout_is_weights = rollout_is_weights / verl_F.masked_mean(rollout_is_weights, response_mask)"), "IS-NORMALISED tis.normalize", IS, "is-norm", **TIS)
bug("is-sequence", "sequence weights where token weights are declared", ((RC, '    if rollout_is == "token":\n        # Per-token IS weight', '    if rollout_is == "nothing":\n        # Per-token IS weight'), (RC, '    elif rollout_is == "sequence":\n        # Sequence-level IS', '    elif rollout_is in ("sequence", "token"):\n        # Sequence-level IS')), "tis.level", IS, "is-level", **TIS)
bug("gspo-sum", "GSPO with the sum of log-ratios", (C, "negative_approx_kl_seq = torch.sum(negative_approx_kl * response_mask, dim=-1) / seq_lengths", "negative_approx_kl_seq = torch.sum(negative_approx_kl * response_mask, dim=-1)"), "ratio.level", TOK, "gspo", policy=d(loss_mode="gspo"), actor=d(loss_agg_mode="seq-mean-token-mean", clip_ratio_low=0.05, clip_ratio_high=0.05, ppo_epochs=2), steps=4)
bug("cispo-attached", "CISPO's ratio not detached", (C, "clipped_ratio_sg = clipped_ratio.detach()", "clipped_ratio_sg = clipped_ratio"), "CISPO-NOT-DETACHED", GRAD, "cispo", policy=d(loss_mode="cispo"), actor=d(clip_ratio_low=0.9, clip_ratio_high=0.3, ppo_epochs=2), steps=4)
bug("sapo-tau", "SAPO's temperatures exchanged", (C, "        input=tau_pos,  # if A_{i,t} > 0 we set to tau_pos\n        other=tau_neg,", "        input=tau_neg,\n        other=tau_pos,"), "sapo.tau_pos sapo.tau_neg", TOK, "sapo", policy=d(loss_mode="sapo"), actor=d(loss_agg_mode="seq-mean-token-mean", ppo_epochs=2, tau_neg=1.5), steps=4)

# KL loss
bug("kl-reversed", "k3 with policy and reference exchanged", (C, "        kl = ref_logprob - logprob\n        # For", "        kl = logprob - ref_logprob\n        # For"), "KL-REVERSED", KL, "kl-form", **KLL)
bug("kl-k2", "k2 for k3", (C, "        kld = (ratio - kl - 1).contiguous()", "        kld = (0.5 * kl * kl).contiguous()"), "KL-KIND kl.kind", KL, "kl-form", **dict(KLL, ref_distance=0.05))
bug("kl-no-clamp", "k3 without its bound", (C, "return torch.clamp(kld, min=-10, max=10)", "return kld"), "kl.clamp_out KL-CLAMP-MISSING", KL, "kl-clamp", **dict(KLL, ref_distance=0.6))
bug("kl-sign", "the KL term is subtracted", (LS, "policy_loss += kl_loss * config.kl_loss_coef", "policy_loss -= kl_loss * config.kl_loss_coef"), "KL-SIGN", AGG, "kl-sum", **KLL)
bug("kl-no-coef", "the KL term without its coefficient", (LS, "policy_loss += kl_loss * config.kl_loss_coef", "policy_loss += kl_loss"), "BETA-MISSING", AGG, "kl-sum", **KLL)
bug("kl-absent", "the KL term is computed and not added", (LS, "policy_loss += kl_loss * config.kl_loss_coef", "pass"), "KL-ABSENT kl.beta kl.beta=0 kl.place", AGG, "kl-sum", **KLL)
bug("kl-detached", "the KL term has no gradient", (LS, "policy_loss += kl_loss * config.kl_loss_coef", "policy_loss += kl_loss.detach() * config.kl_loss_coef"), "KL-DETACHED", GRAD, "kl-gradient", **KLL)
bug("kl-squared-coef", "the coefficient squared", (LS, "policy_loss += kl_loss * config.kl_loss_coef", "policy_loss += kl_loss * config.kl_loss_coef ** 2"), "kl.beta", AGG, "kl-sum2", **KLL)
bug("kl-no-mask", "the KL term over padding, too", (LS, "loss_mat=kld, loss_mask=response_mask, loss_agg_mode=config.loss_agg_mode", "loss_mat=kld, loss_mask=torch.ones_like(response_mask), loss_agg_mode=config.loss_agg_mode"), "KL-OUTSIDE-MASK", AGG, "kl-mask", **KLL)
bug("kl-agg-other", "the KL term by a mean of rows", (LS, "loss_mat=kld, loss_mask=response_mask, loss_agg_mode=config.loss_agg_mode", 'loss_mat=kld, loss_mask=response_mask, loss_agg_mode="seq-mean-token-mean"'), "kl.agg agg.kind", AGG, "kl-agg", **KLL)
bug("entropy-sign", "the bonus is a penalty", (LS, "policy_loss -= entropy_coeff * entropy_loss", "policy_loss += entropy_coeff * entropy_loss"), "ENTROPY-SIGN", AGG, "entropy", actor=d(entropy_coeff=0.02))
bug("entropy-absent", "the bonus is not subtracted", (LS, "policy_loss -= entropy_coeff * entropy_loss", "pass"), "entropy.coef entropy.coef=0", AGG, "entropy", actor=d(entropy_coeff=0.02))

# aggregation
G0, G1, G2 = ("        if batch_num_tokens is None:\n            if dp_size > 1:\n                raise ValueError(\"(global) batch_num_tokens is required when dp_size > 1\")\n            batch_num_tokens = loss_mask.sum()\n        loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens * dp_size",
              "loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens * dp_size",
              "seq_losses = torch.sum(loss_mat * loss_mask, dim=-1) / (seq_mask + 1e-8)  # token-mean")
bug("agg-local", "each micro-batch takes its own token mean", (), "AGG-LOCAL-DENOMINATOR agg.denominator", AGG, "agg-local", driver=d(tokens="local"), micros=2, **KLL)
bug("agg-width", "the mean over the padded width", (C, G1, "loss = (loss_mat * loss_mask).mean() * dp_size"), "AGG-PAD-DENOMINATOR", AGG, "agg-width", **KLL)
bug("agg-no-mask", "padding is averaged in", (C, G1, "loss = loss_mat.mean() * dp_size"), "LOSS-MASK-PADS", AGG, "agg-mask", **KLL)
bug("agg-no-dp", "dp_size missing in the loss", (C, G1, "loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens"), "FACTOR-WORLD-SIZE FACTOR", AGG, "agg-world", ranks=2, actor=d(use_kl_loss=True, kl_loss_coef=0.05))
bug("agg-rows-local", "seq-mean divides by the micro-batch's rows", (), "AGG-LOCAL-DENOMINATOR agg.denominator", AGG, "agg-local", driver=d(rows="local"), micros=2, actor=d(loss_agg_mode="seq-mean-token-mean", use_kl_loss=True, kl_loss_coef=0.05))
bug("agg-seq-width", "row means divide by the width", (C, G2, "seq_losses = torch.sum(loss_mat * loss_mask, dim=-1) / loss_mask.shape[-1]"), "AGG-PAD-DENOMINATOR", AGG, "agg-width", actor=d(loss_agg_mode="seq-mean-token-mean", use_kl_loss=True, kl_loss_coef=0.05))
bug("agg-token-for-seq", "token-mean where seq-mean-token-mean is declared", (C, 'if loss_agg_mode == "token-mean":', 'if loss_agg_mode in ("token-mean", "seq-mean-token-mean"):'), "agg.kind", AGG, "agg-kind", actor=d(loss_agg_mode="seq-mean-token-mean", use_kl_loss=True, kl_loss_coef=0.05, ppo_epochs=2), steps=4)
bug("agg-seq-for-token", "seq-mean-token-mean where token-mean is declared", (C, 'if loss_agg_mode == "token-mean":', 'if loss_agg_mode == "token-mean":\n        loss_agg_mode = "seq-mean-token-mean"\n    if loss_agg_mode == "token-mean":'), "agg.kind AGG-SAMPLE-MEAN", AGG, "agg-kind", **KLL)
bug("agg-tokens-all", "batch_num_tokens counts the attention mask", (), "AGG-COUNTS-MASKED", AGG, "agg-count", driver=d(tokens="live"), holes=True, **KLL)
bug("agg-epochs", "divided by the epochs, too", (C, G1, "loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens * dp_size / 2"), "FACTOR", AGG, "agg-factor", **KLL)
bug("agg-clamp", "the loss clamped to ±0.01", (C, "    return loss\n\n\n@deprecated", "    return loss.clamp(-0.01, 0.01)\n\n\n@deprecated"), "", AGG, "agg-form", **KLL)
bug("agg-mask-last", "the last token of each row is masked", (C, G1, "loss_mask = loss_mask * torch.cat([loss_mask[:, 1:], loss_mask[:, :1] * 0], 1); loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens * dp_size"), "MASK-NO-EOS", AGG, "agg-mask2", **KLL)
bug("attention-mask", "the attention mask as loss mask", (), "LOSS-MASK-TOOL MASK-ATTENTION", AGG, "agg-tool", driver=d(mask="live"), holes=True, **KLL)

# value loss
bug("value-no-half", "no ½", (C, "    vf_loss = 0.5 * agg_loss(", "    vf_loss = 1.0 * agg_loss("), "VALUE-NO-HALF value.factor", AGG, "value-factor", **PPO)
bug("value-no-clip", "the value is not clipped", (C, "clipped_vf_losses = torch.max(vf_losses1, vf_losses2)", "clipped_vf_losses = vf_losses1"), "VALUE-CLIP-ABSENT value.clip", AGG, "value-clip", **dict(PPO, cliprange_value=0.02))
bug("value-min", "the smaller of the two squares", (C, "clipped_vf_losses = torch.max(vf_losses1, vf_losses2)", "clipped_vf_losses = torch.min(vf_losses1, vf_losses2)"), "VALUE-CLIP-MIN", AGG, "value-clip", **dict(PPO, cliprange_value=0.02))
bug("value-huber", "Huber in place of the square", (C, "    vf_losses1 = (vpreds - returns) ** 2", "    vf_losses1 = 2 * F.huber_loss(vpreds, returns, reduction='none', delta=0.3)"), "", AGG, "value-form", **PPO)
bug("value-abs", "absolute errors", (C, "    vf_losses1 = (vpreds - returns) ** 2\n    vf_losses2 = (vpredclipped - returns) ** 2", "    vf_losses1 = (vpreds - returns).abs()\n    vf_losses2 = (vpredclipped - returns).abs()"), "", AGG, "value-form", **PPO)
bug("value-clip-returns", "clipped around the return", (C, "vpredclipped = verl_F.clip_by_value(vpreds, values - cliprange_value, values + cliprange_value)", "vpredclipped = verl_F.clip_by_value(vpreds, returns - cliprange_value, returns + cliprange_value)"), "", AGG, "value-clip2", **dict(PPO, cliprange_value=0.02))
bug("value-mask", "padding in the value loss", (C, "        loss_mat=clipped_vf_losses,\n        loss_mask=response_mask,", "        loss_mat=clipped_vf_losses,\n        loss_mask=torch.ones_like(response_mask),"), "VALUE-MASK value.mask", AGG, "value-mask", **PPO)
bug("value-detached", "the critic has no gradient", (C, "    vf_losses1 = (vpreds - returns) ** 2", "    vpreds = vpreds.detach() + 0 * vpreds\n    vf_losses1 = (vpreds - returns) ** 2"), "VALUE-DETACHED", "gradient/dvalues", "value-gradient", **dict(PPO, cliprange_value=10.0))

# metrics and the way it is driven
M = dict(KLL, scalars=True)
bug("metric-ppo-kl", "ppo_kl with the wrong sign", (LS, 'pg_metrics = Metric.from_dict(pg_metrics, aggregation=AggregationType.MEAN)', 'pg_metrics["actor/ppo_kl"] = -pg_metrics["actor/ppo_kl"]\n    pg_metrics = Metric.from_dict(pg_metrics, aggregation=AggregationType.MEAN)'), "METRIC-SIGN", "scalars/", "metric-sign", **M)
bug("metric-clipfrac", "clipfrac counts both terms backwards", (LS, 'pg_metrics = Metric.from_dict(pg_metrics, aggregation=AggregationType.MEAN)', 'pg_metrics["actor/pg_clipfrac"] = 1 - pg_metrics["actor/pg_clipfrac"]\n    pg_metrics = Metric.from_dict(pg_metrics, aggregation=AggregationType.MEAN)'), "METRIC-CLIP-SIGN", "scalars/", "metric-clip", **M)
bug("metric-pg-total", "the logged policy loss is the total", ((LS, '    metrics["actor/pg_loss"] = Metric(value=pg_loss, aggregation=metric_aggregation)\n', ""), (LS, "    return policy_loss, metrics\n\n\ndef value_loss", '    metrics["actor/pg_loss"] = Metric(value=policy_loss, aggregation=metric_aggregation)\n    return policy_loss, metrics\n\n\ndef value_loss')), "METRIC-POLICY-IS-TOTAL", "scalars/", "metric-total", **M)
bug("stale-engine", "the engine keeps the first weights", (), "GEN-UNADAPTED", "agreement/", "stale", stale_engine=True, lr=0.03, steps=6)
bug("both-temperature", "the trainer without the temperature", (), "LOGP-TEMPERATURE", "agreement/ logp/", "temperature", temperature=0.7, calls={"temperature_new": 1.0, "temperature_old": 1.0})
bug("new-temperature", "the new pass without the temperature", (), "LOGP-TEMPERATURE", "agreement/ logp/ first_step/", "temperature", temperature=0.7, calls={"temperature_new": 1.0})
bug("ref-temperature", "the reference without the temperature", (), "LOGP-TEMPERATURE", "agreement/ logp/", "temperature-ref", temperature=0.7, calls={"temperature_ref": 1.0}, **KLL)
bug("gen-raw", "raw engine log-probs at a temperature", (), "GEN-RAW", "agreement/", "engine", temperature=0.7, raw_logps=True)
bug("gen-top-p", "engine log-probs over the nucleus", (), "GEN-TRUNCATED", "agreement/", "engine", engine_top_p=0.8)

L[:] = [c for c in L if c]


def cases(seed):
    for i, c in enumerate(L):
        c.seed = seed + i
    return L
