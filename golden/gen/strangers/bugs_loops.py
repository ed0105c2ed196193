"""Bugs in the plain loops. The right names were written before any was judged."""
from case import Case

L = []


def bug(name, loop, what, edits, names, stages, family, o=None, **cfg):
    if edits and isinstance(edits[0], str):
        edits = (edits,)
    L.append(Case(f"b-loop-{name}", "loops_", dict(cfg, loop=loop, o=o or {}), "f32", 0, what, tuple((loop, *e) for e in edits), family, tuple(names.split()), tuple(stages.split()), True))


K = dict(beta=0.05, high=0.28)
TOK, AGG, GRAD, GAE = "token_loss/policy", "aggregate/", "gradient/dlogp", "gae/"
g = "group"
bug("grp-exp-clip", g, "the clamp before exp", ("clipped = torch.clamp(ratio, 1 - o[\"low\"], 1 + o[\"high\"])", "clipped = torch.exp(torch.clamp(log_ratio, -o[\"low\"], o[\"high\"]))"), "", TOK, "clip-bounds", K)
bug("grp-max", g, "max of the objectives", ("objective = torch.min(ratio * A, clipped * A)", "objective = torch.max(ratio * A, clipped * A)"), "CLIP-MIN-MAX", TOK, "clip-minmax", K)
bug("grp-sum-rows", g, "row sums where row means are declared", ("((t * m).sum(1) / m.sum(1)).sum() / total[\"rows\"]", "(t * m).sum(1).sum() / total[\"rows\"]"), "agg.kind", AGG, "agg-kind", dict(K, agg="rows"))
bug("grp-tokens-plus", g, "one added to the token count", ("(t * m).sum() / total[\"tokens\"]", "(t * m).sum() / (total[\"tokens\"] + 1)"), "", AGG, "agg-count", K)
bug("grp-tokens-width", g, "the padded width counts", ("(t * m).sum() / total[\"tokens\"]", "(t * m).sum() / m.numel()"), "AGG-PAD-DENOMINATOR", AGG, "agg-width", K)
bug("grp-micro-mean", g, "each micro-batch takes its own mean", ("(t * m).sum() / total[\"tokens\"]", "(t * m).sum() / m.sum()"), "AGG-LOCAL-DENOMINATOR agg.denominator", AGG, "agg-local", K, micros=2)
bug("grp-kl-bonus-swap", g, "β on the entropy, the bonus' coefficient on the KL", (("out = out + o[\"beta\"] * parts[\"kl_loss\"]", "out = out + o[\"bonus\"] * parts[\"kl_loss\"]"), ("out = out - o[\"bonus\"] * parts[\"entropy_loss\"]", "out = out - o[\"beta\"] * parts[\"entropy_loss\"]")), "", AGG, "coefficients", dict(K, bonus=0.003))
bug("grp-kl-mean", g, "the KL by a plain mean", ("parts[\"kl_loss\"] = reduce(kl)", "parts[\"kl_loss\"] = kl.mean()"), "KL-OUTSIDE-MASK", AGG, "kl-mask", K)
bug("grp-kl-sqrt", g, "k2 with the absolute value", ("\"k2\": d * d / 2", "\"k2\": d.abs() / 2"), "", "kl/token", "kl-form", dict(K, kl="k2"))
bug("grp-kl-no-grad", g, "no gradient through the KL", ("out = out + o[\"beta\"] * parts[\"kl_loss\"]", "out = out + o[\"beta\"] * parts[\"kl_loss\"].detach()"), "KL-DETACHED", GRAD, "kl-gradient", dict(K, beta=0.3))
bug("grp-bonus-sign", g, "the bonus is a penalty", ("out = out - o[\"bonus\"] * parts[\"entropy_loss\"]", "out = out + o[\"bonus\"] * parts[\"entropy_loss\"]"), "ENTROPY-SIGN", AGG, "entropy", dict(K, bonus=0.01))
bug("grp-bonus-mean", g, "the entropy by a plain mean", ("parts[\"entropy_loss\"] = reduce(entropy)", "parts[\"entropy_loss\"] = entropy.mean()"), "", AGG, "entropy2", dict(K, bonus=0.02))
bug("grp-loo-full", g, "leave-one-out with the row itself", ("center = x.mean() if o[\"center\"] == \"mean\" else (x.sum() - x) / (n - 1)", "center = x.mean()"), "adv.center", "advantage/", "adv-center", dict(center="loo", scale="none"))
bug("grp-adv-float16", g, "advantages rounded to float16", ("    b[\"advantages\"] = adv", "    b[\"advantages\"] = adv.half().float()"), "", "advantage/", "adv-rounding", K)
bug("grp-adv-rank", g, "ranks in place of scores", ("        center = x.mean() if", "        x = x.argsort().argsort().float()\n        center = x.mean() if"), "", "advantage/", "adv-form", K)
bug("grp-adv-length", g, "advantages divided by the length", ("    b[\"advantages\"] = adv", "    b[\"advantages\"] = adv / b[\"mask\"].sum(1)"), "", "advantage/", "adv-form", K)
bug("grp-adv-positive", g, "negative advantages dropped", ("    b[\"advantages\"] = adv", "    b[\"advantages\"] = adv.clamp(min=0)"), "", "advantage/", "adv-form2", K)
bug("grp-tis-new", g, "the engine weight from the new policy", ("token_loss = token_loss * x[\"is_weights\"]", "token_loss = token_loss * torch.exp(lp - x[\"gen\"]).clamp(max=o[\"tis_cap\"])"), "IS-GRADIENT IS-NEW-FOR-OLD", TOK + " " + GRAD, "is-gradient", dict(K, tis=True))
bug("grp-metric", g, "ppo_kl averaged over padding", ("(-log_ratio * m).sum().item() / m.sum().item()", "(-log_ratio).mean().item()"), "METRIC-APPROX-KL-PADS", "scalars/", "metric", K, scalars=True)
bug("grp-ratio-row", g, "one ratio for the row", ("    ratio = torch.exp(log_ratio)\n", "    ratio = torch.exp((log_ratio * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)).expand_as(lp)\n"), "ratio.level", TOK, "ratio-level", K)
bug("grp-gen-for-old", g, "the ratio against the engine's log-probs", ("log_ratio = lp - x[\"old\"]", "log_ratio = lp - x[\"gen\"]"), "RATIO-GEN-FOR-OLD", TOK, "ratio-reference", K)
bug("grp-temperature", g, "the trainer without the temperature", (), "LOGP-TEMPERATURE", "agreement/ logp/", "temperature", K, temperature=0.7, calls={"temperature_new": 1.0, "temperature_old": 1.0, "temperature_ref": 1.0})
bug("grp-stale", g, "the engine keeps the first weights", (), "GEN-UNADAPTED", "agreement/", "stale", K, stale_engine=True, lr=0.03, epochs=1, steps=6)
oi = "open_instruct"
bug("oi-ddof1", oi, "z-scores over n − 1", ("scores.std(-1, keepdims=True)", "scores.std(-1, keepdims=True, ddof=1)"), "ADV-DDOF adv.ddof", "advantage/", "adv-ddof")
bug("oi-all-std", oi, "σ of the batch", ("scores.std(-1, keepdims=True)", "scores.std()"), "ADV-BATCH-STD adv.scale", "advantage/", "adv-scale")
bug("oi-reshape", oi, "scores folded by columns", ("b[\"score\"].numpy().reshape(-1, o[\"samples\"])", "b[\"score\"].numpy().reshape(-1, o[\"samples\"], order=\"F\")"), "ADV-WRONG-GROUPS ROWS-SWAPPED", "advantage/", "adv-groups")
bug("oi-kl-index", oi, "estimator 1 where 2 is meant: k2", ("kl = torch.expm1(-ref_logprobs_diff) + ref_logprobs_diff", "kl = 0.5 * ref_logprobs_diff ** 2"), "KL-KIND kl.kind", "kl/token", "kl-form", ref_distance=0.05)
bug("oi-beta-outside", oi, "the KL outside the mask", ("((pg_loss_max + o[\"beta\"] * kl) * m).sum() / denominator", "(pg_loss_max * m).sum() / denominator + o[\"beta\"] * kl.mean()"), "KL-OUTSIDE-MASK", AGG, "kl-mask")
bug("oi-high", oi, "the upper ε is the lower one", ("1.0 - o[\"low\"], 1.0 + o[\"high\"]", "1.0 - o[\"low\"], 1.0 + o[\"low\"]"), "clip.high", TOK, "clip-bounds", epochs=4)
bug("oi-cispo", oi, "the clipped ratio not detached, no log-prob (open-instruct#1269)", ("pg_losses2 = -adv * torch.clamp(ratio, 1.0 - o[\"low\"], 1.0 + o[\"high\"])\n    pg_loss_max = torch.max(pg_losses, pg_losses2)", "pg_losses2 = -adv * torch.clamp(ratio, 1.0 - o[\"low\"], 1.0 + o[\"high\"])\n    pg_loss_max = pg_losses2"), "CLIP-ALWAYS CLIP-WITHOUT-MIN", TOK, "clip-always", epochs=4)
bug("oi-accumulation", oi, "each micro-batch divides by its own tokens (open-instruct#1161)", ("denominator = total[\"tokens\"]", "denominator = m.sum()"), "AGG-LOCAL-DENOMINATOR agg.denominator", AGG, "agg-local", micros=2)
c = "cleanrl"
bug("crl-no-done", c, "the recursion runs over done", ("last = delta + o[\"gamma\"] * o[\"lam\"] * nextnonterminal * last", "last = delta + o[\"gamma\"] * o[\"lam\"] * last"), "", GAE, "gae-done")
bug("crl-no-done-value", c, "the value behind a done enters", ("o[\"gamma\"] * nextvalues * nextnonterminal", "o[\"gamma\"] * nextvalues"), "", GAE, "gae-done")
bug("crl-no-bootstrap", c, "no value behind the rollout", ("nextvalues = b[\"next_values\"] if t == T - 1", "nextvalues = 0 * b[\"next_values\"] if t == T - 1"), "gae.truncated_bootstrap GAE-BOOTSTRAP-MISSING", GAE, "gae-bootstrap")
bug("crl-done-shift", c, "done flags of the next step", ("nextnonterminal = 1.0 - ends[:, t]", "nextnonterminal = 1.0 - ends[:, min(t + 1, T - 1)]"), "", GAE, "gae-done")
bug("crl-norm-biased", c, "σ over n", ("(adv - adv.mean()) / (adv.std() + 1e-8)", "(adv - adv.mean()) / (adv.std(unbiased=False) + 1e-8)"), "WHITEN-DDOF whiten.ddof", GAE + " advantage/", "whiten-ddof")
bug("crl-norm-rows", c, "each row normalised", ("(adv - adv.mean()) / (adv.std() + 1e-8)", "(adv - adv.mean(1, keepdim=True)) / (adv.std(1, keepdim=True) + 1e-8)"), "WHITEN-WRONG-AXIS", GAE + " advantage/", "whiten-axis")
bug("crl-v-no-half", c, "no ½ in the value loss", ("v_loss = 0.5 * torch.max", "v_loss = torch.max"), "VALUE-NO-HALF value.factor", AGG, "value-factor")
bug("crl-v-min", c, "the smaller square", ("v_loss = 0.5 * torch.max(", "v_loss = 0.5 * torch.min("), "VALUE-CLIP-MIN", AGG, "value-clip", epochs=4)
bug("crl-ent-sign", c, "entropy added to the loss", ("out = pg_loss - o[\"ent_coef\"] * entropy_loss", "out = pg_loss + o[\"ent_coef\"] * entropy_loss"), "ENTROPY-SIGN", AGG, "entropy")
bug("crl-approx-kl", c, "approx_kl is the mean log-ratio", ("((ratio - 1) - logratio).mean().item()", "(-logratio).mean().item()"), "METRIC-KL-K1", "scalars/", "metric", scalars=True)
q = "oai"
bug("oai-unbiased", q, "variances over n − 1", ("x.var(unbiased=False)", "x.var(unbiased=True)"), "WHITEN-DDOF whiten.ddof", GAE + " reward/ advantage/", "whiten-ddof")
bug("oai-no-mean-back", q, "whitened rewards lose their mean", ("rewards = whiten(rewards, shift_mean=False)", "rewards = whiten(rewards)"), "rewards.whiten", GAE + " reward/", "rewards-whiten")
bug("oai-kl-sign", q, "KL added", ("rewards = -o[\"kl_coef\"] * kl", "rewards = o[\"kl_coef\"] * kl"), "KL-SIGN", "reward/", "kl-reward")
bug("oai-score-first", q, "the score in the first column", ("rewards[:, -1] += b[\"score\"]", "rewards[:, 0] += b[\"score\"]"), "SCORE-SHIFT score.index", "reward/ gae/", "score-place")
bug("oai-no-lambda", q, "no λ", ("last = delta + o[\"gamma\"] * o[\"lam\"] * last", "last = delta + o[\"gamma\"] * last"), "GAE-NO-LAMBDA gae.lambda", GAE, "gae-recursion")
bug("oai-attached", q, "the advantages keep the gradient of the values", ("vf_loss = 0.5 * torch.maximum((v - returns) ** 2", "returns = returns + v - v.detach()\n    vf_loss = 0.5 * torch.maximum((v - returns) ** 2"), "VALUE-TARGET-GRAD", "gradient/dvalues", "value-gradient")
bug("oai-vf-coef", q, "no vf_coef", ("out = pg_loss + o[\"vf_coef\"] * vf_loss", "out = pg_loss + vf_loss"), "value.coef VALUE-COEF-MISSING", AGG, "value-coef")


def cases(seed):
    for i, c in enumerate(L):
        c.seed = seed + i
    return L
