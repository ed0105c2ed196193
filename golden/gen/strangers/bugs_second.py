"""Bugs of the second family, said in plain words first; ids are those whose title in `verify explain` says the same, written before judging."""

from case import Case

L = []


def bug(name, loop, what, edits, names, stages, family, o=None, dtype="f32", **cfg):
    if edits and isinstance(edits[0], str):
        edits = (edits,)
    cfg = dict(cfg, loop=loop, o=o or {})
    L.append(
        Case(f"b-two-{name}", "second", cfg, dtype, 0, what, tuple((loop, *e) for e in edits), family, tuple(names.split()), tuple(stages.split()), True)
    )


TOK, AGG, GRAD, GAE, ADV = "token_loss/policy", "aggregate/", "gradient/dlogp", "gae/", "advantage/"
t = dict(loop="tokens", epochs=2, profile="cleanrl@020cf0e")
bug("gae-no-stop", what="rewards of the next episode flow back over its end", edits=('o["lam"] * go * run', 'o["lam"] * run'), names="GAE-DONES gae.hole GAE-RECURSION", stages=GAE, family="gae-done", **t)
bug("gae-stop-early", what="the episode end of the step before is read", edits=("go = 1 - stop[:, t]", "go = 1 - stop[:, max(t - 1, 0)]"), names="GAE-DONES", stages=GAE, family="gae-done2", **t)
bug("gae-self", what="no value of the state behind the rollout", edits=('b["next_values"] if', 'torch.zeros_like(run) if'), names="GAE-BOOTSTRAP-MISSING gae.truncated_bootstrap", stages=GAE, family="gae-bootstrap", **t)
bug("gae-swap", what="γ and λ in each other's place in the sum", edits=('o["gamma"] * o["lam"] * go * run', 'o["lam"] * o["lam"] * go * run'), names="", stages=GAE, family="gae-recursion", **t)
bug("gae-mc", what="λ ignored", edits=('o["gamma"] * o["lam"] * go * run', 'o["gamma"] * go * run'), names="GAE-NO-LAMBDA gae.lambda", stages=GAE, family="gae-lambda", **t)
bug("targets-bare", what="targets of the critic without V", edits=('b["returns"] = adv + v', 'b["returns"] = adv.clone()'), names="RETURNS-ARE-ADVANTAGES", stages=GAE, family="returns", **t)
bug("norm-row", what="advantages normalised row by row", edits=("(a - a.mean()) / (a.std() + 1e-8)", "(a - a.mean(1, keepdim=True)) / (a.std(1, keepdim=True) + 1e-8)"), names="WHITEN-WRONG-AXIS WHITEN-SCOPE whiten.scope", stages=f"{GAE} {ADV}", family="whiten", **t)
bug("norm-scale", what="divided by the variance", edits=("(a.std() + 1e-8)", "(a.var() + 1e-8)"), names="", stages=f"{GAE} {ADV}", family="whiten2", **t)
bug("norm-not", what="the normalised advantages are not used", edits=("a * rho, a * rho.clamp(1 - o[\"clip\"]", 'x["adv"] * rho, x["adv"] * rho.clamp(1 - o["clip"]'), names="ADV-NOT-WHITENED", stages=TOK, family="whiten3", **t)
bug("clip-twice", what="the clip takes twice ε above", edits=('1 + o["clip"]))\n    pg', '1 + 2 * o["clip"]))\n    pg'), names="clip.high", stages=TOK, family="clip", **dict(t, epochs=4, lr=8e-3))
bug("value-square", what="no ½ in the value loss", edits=("vl = 0.5 * err.mean()", "vl = err.mean()"), names="VALUE-NO-HALF value.factor", stages=AGG, family="value-factor", **t)
bug("value-huber", what="absolute errors in place of squares", edits=('err = (v - x["returns"]) ** 2\n', 'err = (v - x["returns"]).abs()\n'), names="", stages=f"{AGG} gradient/dvalues", family="value-form", **dict(t, o=dict(vclip=None)))
bug("value-held", what="only the clipped value is fitted", edits=('err = torch.maximum(err, (held - x["returns"]) ** 2)', 'err = (held - x["returns"]) ** 2'), names="VALUE-CLIP-ALONE VALUE-CLIP-ALWAYS", stages=f"{AGG} gradient/dvalues", family="value-clip", **dict(t, o=dict(vclip=0.02), epochs=4))
bug("bonus-plus", what="entropy is punished", edits=('- o["ent"] * bonus\n    logs = dict(\n        approx', '+ o["ent"] * bonus\n    logs = dict(\n        approx'), names="ENTROPY-SIGN", stages=AGG, family="entropy", **t)
bug("logged-kl", what="the logged approximate KL is ½(log ρ)²", edits=("((rho - 1) - log_ratio).mean()", "(0.5 * log_ratio**2).mean()"), names="METRIC-UPDATE-KL", stages="scalars/", family="metric", **dict(t, scalars=True))

n = dict(loop="nano")
bug("nano-ddof", what="divided by the group's σ though it says not", edits=("(s - s.mean(1, keepdim=True)).reshape(-1)\n\n\ndef nano", "((s - s.mean(1, keepdim=True)) / (s.std(1, keepdim=True) + 1e-6)).reshape(-1)\n\n\ndef nano"), names="adv.scale ADV-SCALED", stages=ADV, family="adv-scale", **n)
bug("nano-batch-mean", what="the baseline is that of the batch", edits=("(s - s.mean(1, keepdim=True)).reshape(-1)\n\n\ndef nano", "(s - s.mean()).reshape(-1)\n\n\ndef nano"), names="ADV-ONE-GROUP adv.kind=batch_baseline", stages=ADV, family="adv-center", **n)
bug("nano-mask", what="padding is in the sum", edits=("(objective * valid).sum()", "objective.sum()"), names="LOSS-MASK-PADS-ABOVE LOSS-MASK-PADS", stages=f"{AGG} {GRAD}", family="mask", **n)
bug("nano-passes", what="not divided by the passes", edits=(' / total["passes"]\n    return dict(loss=pg, token_loss=-objective', '\n    return dict(loss=pg, token_loss=-objective'), names="AGG-GA-MISSING agg.div_ga", stages=AGG, family="agg-ga", micros=4, ordered=True, **n)
bug("nano-prob", what="probabilities in place of log-probs", edits=("objective = lp * x", "objective = lp.exp() * x"), names="", stages=TOK, family="loss-form", **n)
bug("nano-minus", what="the loss is not negated", edits=("pg = -(objective", "pg = (objective"), names="POLICY-SIGN ADV-SIGN", stages=AGG, family="loss-sign", **n)

m = dict(loop="mixed", epochs=2)
K = dict(beta=0.05, place="loss")
bug("kl-swapped", what="policy and reference exchanged in k3", edits=("d = lp - ref\n", "d = ref - lp\n"), names="KL-REVERSED", stages="kl/token", family="kl-form", o=K, **m)
bug("kl-no-minus-one", what="k3 without −1", edits=("torch.exp(-d) - 1 + d", "torch.exp(-d) + d"), names="KL-FORMULA", stages="kl/token", family="kl-form2", o=K, **m)
bug("kl-stop", what="KL has no gradient", edits=('loss = loss + o["beta"] * parts["kl_loss"]', 'loss = loss + o["beta"] * parts["kl_loss"].detach()'), names="KL-DETACHED", stages=GRAD, family="kl-grad", o=dict(K, beta=0.3), **m)
bug("kl-minus", what="KL is subtracted", edits=('loss = loss + o["beta"] * parts["kl_loss"]', 'loss = loss - o["beta"] * parts["kl_loss"]'), names="KL-SIGN", stages=AGG, family="kl-sign", o=K, **m)
bug("kl-unscaled", what="β is forgotten", edits=('loss = loss + o["beta"] * parts["kl_loss"]', 'loss = loss + parts["kl_loss"]'), names="BETA-MISSING kl.beta", stages=AGG, family="kl-beta", o=K, **m)
bug("kl-old", what="KL of the old policy", edits=('estimate(o["kl"], lp, x["ref"], o["bound"])', 'estimate(o["kl"], x["old"], x["ref"], o["bound"]) + 0 * lp'), names="KL-OF-OLD", stages="kl/token", family="kl-of", o=dict(K, beta=0.3), lr=8e-3, **m)
bug("kl-all", what="KL averaged over padding", edits=('parts["kl"], parts["kl_loss"] = kl, reduce(kl, m, o, total)', 'parts["kl"], parts["kl_loss"] = kl, kl.mean()'), names="KL-OUTSIDE-MASK kl.agg LOSS-MASK-PADS mask.tokens", stages=AGG, family="kl-mask", o=K, **m)
bug("kl-after", what="the KL of a response is subtracted behind the baseline", edits=(('score = score - o["beta"] * (estimate(o["kl"], b["old"], b["ref"]) * m).sum(1)', "pass"), ('    b["adv"] = adv\n    if o["tis"]', '    adv = adv - o["beta"] * (estimate(o["kl"], b["old"], b["ref"]) * m).sum(1)\n    b["adv"] = adv\n    if o["tis"]')), names="KL-AFTER-BASELINE kl.place", stages=ADV, family="kl-place", o=dict(kl="k1", beta=0.1, place="before", center="loo", scale="none"), ref_distance=0.1, **m)
bug("adv-loo", what="the row is in its own baseline", edits=("(s.sum() - s) / (len(s) - 1)", "s.mean()"), names="adv.center ADV-CENTER", stages=ADV, family="adv-center", o=dict(center="loo", scale="none"), **m)
bug("adv-n", what="σ over n where n − 1 is said", edits=('a = a / (s.std(correction=o["ddof"])', "a = a / (s.std(correction=0)"), names="ADV-DDOF adv.ddof", stages=ADV, family="adv-ddof", **m)
bug("adv-eps", what="ε is 0.1", edits=('a = a / (s.std(correction=o["ddof"]) + o["eps"])', 'a = a / (s.std(correction=o["ddof"]) + 0.1)'), names="ADV-EPS adv.eps", stages=ADV, family="adv-eps", **m)
bug("adv-roll", what="advantages of the row behind", edits=('    b["adv"] = adv\n    if o["tis"]', '    b["adv"] = adv.roll(1)\n    if o["tis"]'), names="ADV-ROWS-ROLLED ADV-ROWS-ROLLED-BACK ADV-ROWS-OF-OTHERS ADV-ROWS-PERMUTED REWARD-OF-OTHER-ROW", stages=ADV, family="adv-rows", **m)
bug("adv-square", what="advantages squared with their sign", edits=('    b["adv"] = adv\n    if o["tis"]', '    b["adv"] = adv * adv.abs()\n    if o["tis"]'), names="", stages=ADV, family="adv-form", **m)
bug("adv-tanh", what="advantages pressed through tanh", edits=('    b["adv"] = adv\n    if o["tis"]', '    b["adv"] = adv.tanh()\n    if o["tis"]'), names="", stages=ADV, family="adv-form2", **m)
bug("ratio-inverse", what="old over new", edits=("    gap = lp - x[\"old\"]\n    if o", "    gap = x[\"old\"] - lp\n    if o"), names="RATIO-INVERTED", stages=f"{TOK} {GRAD}", family="ratio", **m)
bug("ratio-engine", what="the engine's log-probs for the old ones", edits=("    gap = lp - x[\"old\"]\n    if o", "    gap = lp - x[\"gen\"]\n    if o"), names="OLD-IS-GEN RATIO-GEN-FOR-OLD", stages=TOK, family="ratio-of", **m)
bug("ratio-stop", what="the ratio passes no gradient", edits=("    rho = gap.exp()\n    low", "    rho = gap.exp().detach() + 0 * lp\n    low"), names="RATIO-DETACHED", stages=GRAD, family="ratio-grad", o=K, **m)
bug("ratio-length", what="the sum for the mean of the log-ratios", edits=('gap = ((gap * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)).expand_as(lp)\n    rho', "gap = (gap * m).sum(1, keepdim=True).expand_as(lp)\n    rho"), names="RATIO-SUM-FOR-MEAN RATIO-LEVEL ratio.level", stages=TOK, family="ratio-level", o=dict(kind="sequence", low=3e-3, high=4e-3), **m)
bug("clip-sides", what="the two ε exchanged", edits=('low, high = 1 - o["low"], 1 + o["high"]', 'low, high = 1 - o["high"], 1 + o["low"]'), names="CLIP-SIDES-SWAPPED", stages=TOK, family="clip-bounds", o=dict(low=0.03, high=0.12), epochs=4, lr=8e-3, loop="mixed")
bug("clip-low-only", what="the upper bound is the lower one's", edits=('low, high = 1 - o["low"], 1 + o["high"]', 'low, high = 1 - o["low"], 1 + o["low"]'), names="CLIP-HIGH-AS-LOW CLIP-BOUND clip.high", stages=TOK, family="clip-bounds2", o=dict(low=0.03, high=0.12), epochs=4, lr=8e-3, loop="mixed")
bug("clip-min", what="the smaller loss", edits=("token = torch.maximum(-a * rho, -a * rho.clamp(low, high))\n        if", "token = torch.minimum(-a * rho, -a * rho.clamp(low, high))\n        if"), names="CLIP-MIN-MAX", stages=TOK, family="clip-minmax", o=dict(low=0.05, high=0.05), epochs=4, lr=8e-3, loop="mixed")
bug("clip-all", what="clipped whatever the other term is", edits=("token = torch.maximum(-a * rho, -a * rho.clamp(low, high))\n        if", "token = -a * rho.clamp(low, high)\n        if"), names="CLIP-WITHOUT-MIN", stages=f"{TOK} {GRAD}", family="clip-all", o=dict(low=0.05, high=0.05), epochs=4, lr=8e-3, loop="mixed")
bug("clip-none", what="not clipped", edits=("token = torch.maximum(-a * rho, -a * rho.clamp(low, high))\n        if", "token = -a * rho\n        if"), names="CLIP-ABSENT", stages=f"{TOK} {GRAD}", family="clip-none", o=dict(low=0.05, high=0.05), epochs=4, lr=8e-3, loop="mixed")
bug("cispo-attached", what="CISPO's weight carries gradient", edits=("-rho.clamp(low, high).detach() * a * lp", "-rho.clamp(low, high) * a * lp"), names="CISPO-NOT-DETACHED", stages=GRAD, family="cispo", o=dict(kind="cispo", low=0.9, high=0.37), epochs=3, loop="mixed")
bug("soft-tau", what="one temperature of the soft gate for both signs", edits=('torch.where(a > 0, torch.tensor(o["tau"][0]), torch.tensor(o["tau"][1]))', 'torch.tensor(o["tau"][0])'), names="sapo.tau_neg SAPO-TAU", stages=TOK, family="soft", o=dict(kind="soft", tau=(0.9, 1.2)), epochs=3, loop="mixed")
bug("agg-sum", what="sums of rows where means are said", edits=("((t * m).sum(1) / m.sum(1)).sum()", "(t * m).sum(1).sum()"), names="AGG-KIND agg.kind", stages=AGG, family="agg-kind", o=dict(K, agg="rows"), **m)
bug("agg-width", what="the token mean divides by all cells", edits=('return (t * m).sum() / total["tokens"]\n    if o["agg"] == "pass"', 'return (t * m).mean()\n    if o["agg"] == "pass"'), names="AGG-PAD-DENOMINATOR AGG-COUNTS-CELLS", stages=AGG, family="agg-width", o=K, **m)
bug("agg-own", what="each micro-batch divides by its own tokens", edits=('return (t * m).sum() / total["tokens"]\n    if o["agg"] == "pass"', 'return (t * m).sum() / m.sum()\n    if o["agg"] == "pass"'), names="AGG-LOCAL-DENOMINATOR AGG-DENOMINATOR agg.denominator", stages=AGG, family="agg-local", o=K, micros=2, **m)
bug("agg-const", what="the constant is the width, not the declared one", edits=('(total["rows"] * o["length"])', '(total["rows"] * t.shape[1])'), names="", stages=AGG, family="agg-constant", o=dict(agg="length", length=200.0), **m)
bug("agg-first", what="the first column is lost", edits=('return (t * m).sum() / total["tokens"]\n    if o["agg"] == "pass"', 'return (t * m)[:, 1:].sum() / total["tokens"]\n    if o["agg"] == "pass"'), names="LOSS-MASK-FIRST", stages=f"{AGG} {GRAD}", family="mask", o=K, **m)
bug("agg-tool", what="tool tokens are in the sum", edits=('return (t * m).sum() / total["tokens"]\n    if o["agg"] == "pass"', 'f = (m.flip(1).cumsum(1).flip(1) > 0).float()\n        return (t * f).sum() / total["tokens"]\n    if o["agg"] == "pass"'), names="LOSS-MASK-TOOL-ABOVE LOSS-MASK-TOOL", stages=f"{AGG} {GRAD}", family="mask-tool", tools=True, **m)
bug("bonus-lost", what="the entropy bonus is computed and not used", edits=('loss = loss - o["ent"] * parts["entropy_loss"]', "pass"), names="ENTROPY-MISSING entropy.coef", stages=AGG, family="entropy", o=dict(ent=0.02), **m)
bug("weight-inverse", what="the weight is engine over trainer", edits=('gap = (b["old"] - b["gen"]) * m', 'gap = (b["gen"] - b["old"]) * m'), names="IS-INVERTED", stages="ratio/", family="is", o=dict(tis="token", high_w=1.7), lag=1, lr=1e-3, loop="mixed")
bug("weight-uncapped", what="the cap is forgotten", edits=('w = w.clamp(max=o["high_w"])', "pass"), names="IS-CLAMP-MISSING tis.high", stages="ratio/", family="is-cap", o=dict(tis="token", high_w=1.01), lag=1, lr=1e-3, loop="mixed")
bug("weight-unused", what="the weight is not applied", edits=('token = token * x["w"]', "pass"), names="IS-NOT-APPLIED", stages=TOK, family="is-use", o=dict(tis="token", high_w=1.7), lag=1, lr=1e-3, loop="mixed")
bug("weight-norm", what="weights divided by their mean", edits=('        b["w"] = w\n', '        b["w"] = w / w[m > 0].mean()\n'), names="IS-NORMALISED tis.normalize", stages="ratio/", family="is-norm", o=dict(tis="token", high_w=1.05), lag=1, lr=1e-3, loop="mixed")
bug("temp-new", what="the pass with gradient at temperature 1", edits=(), names="LOGP-TEMPERATURE AGREEMENT-TEMPERATURE", stages="agreement/ logp/", family="temperature", temperature=0.6, calls={"new": 1.0}, **m)
bug("temp-ref", what="the reference at temperature 1", edits=(), names="LOGP-TEMPERATURE REF-TEMPERATURE", stages="agreement/ logp/", family="temperature2", o=K, temperature=0.6, calls={"ref": 1.0}, **m)
bug("temp-trainer", what="all passes of the trainer at temperature 1", edits=(), names="LOGP-TEMPERATURE GEN-TEMPERATURE GEN-TEMPERATURE-TWICE", stages="agreement/ logp/", family="temperature3", temperature=0.6, calls={"new": 1.0, "old": 1.0, "ref": 1.0}, **m)
bug("engine-first", what="the engine keeps its first weights", edits=(), names="GEN-UNADAPTED GEN-STALE", stages="agreement/", family="stale", stale_engine=True, lr=0.02, epochs=1, steps=6, loop="mixed")
p = dict(loop="packed", epochs=2)
bug("pack-whole-row", what="one mean over the packed row", edits=("return sum((t[i]).mean() for i in rows if i.any()) / total[\"rows\"]", "return sum((t[r] * m[r]).sum() / m[r].sum() for r in range(len(t))) / len(t)"), names="", stages=AGG, family="agg-packed", o=dict(agg="rows", beta=0.05), **p)
bug("pack-sign", what="KL subtracted", edits=('pg + o["beta"] * kl_loss', 'pg - o["beta"] * kl_loss'), names="KL-SIGN", stages=AGG, family="kl-sign", o=dict(beta=0.05), **p)
r = dict(loop="ranks", ranks=2, epochs=2)
bug("ranks-kl-sign", what="KL is a reward", edits=('rewards = -o["beta"] * kl * m', 'rewards = o["beta"] * kl * m'), names="KL-SIGN", stages="reward/token", family="kl-reward", o=dict(beta=0.2), **r)
bug("ranks-score-first", what="the score on the first token", edits=("rewards[torch.arange(len(m)), last] +=", "rewards[:, 0] +="), names="REWARD-PLACE SCORE-INDEX score.index", stages="reward/token", family="score-place", **r)
bug("ranks-holes", what="GAE runs over tool tokens", edits=(("run = torch.where(own, a, run)", "run = a"), ("ahead = torch.where(own, value, ahead)", "ahead = value")), names="GAE-TOOL-TOKENS GAE-PADS gae.hole GAE-HOLE", stages=GAE, family="gae-holes", tools=True, **r)
bug("ranks-biased", what="variance over n", edits=("* m).sum() / (n - 1)", "* m).sum() / n"), names="WHITEN-DDOF whiten.ddof", stages=f"{GAE} {ADV}", family="whiten-ddof", **r)
bug("ranks-half", what="whitened by each half of the batch", edits=("        adv = (adv - mu) * torch.rsqrt(var + 1e-8)", "        for h in (slice(0, len(m) // 2), slice(len(m) // 2, None)):\n            k = m[h].sum()\n            mu = (adv[h] * m[h]).sum() / k\n            var = ((adv[h] - mu) ** 2 * m[h]).sum() / (k - 1)\n            adv[h] = (adv[h] - mu) * torch.rsqrt(var + 1e-8)"), names="WHITEN-SCOPE whiten.scope", stages=f"{GAE} {ADV}", family="whiten-scope", ordered=True, **r)
bug("ranks-dual", what="the dual clip for every sign", edits=("token = torch.where(a < 0, torch.minimum(token, -a * o[\"dual\"]), token)\n    pg", "token = torch.minimum(token, -a * o[\"dual\"])\n    pg"), names="CLIP-DUAL-BOTH-SIGNS", stages=TOK, family="dual", o=dict(dual=1.02), **dict(r, epochs=4, lr=8e-3))
bug("ranks-critic-min", what="the smaller square", edits=("vl = 0.5 * (torch.maximum(", "vl = 0.5 * (torch.minimum("), names="VALUE-CLIP-MIN", stages=f"{AGG} gradient/dvalues", family="value-clip", o=dict(vclip=0.02), **dict(r, epochs=3))
bug("ranks-critic-coef", what="the critic's coefficient is forgotten", edits=('pg + o["vf"] * vl - o["ent"] * bonus\n    logs = dict(ppo_kl', 'pg + vl - o["ent"] * bonus\n    logs = dict(ppo_kl'), names="VALUE-COEF-MISSING VALUE-COEF value.coef", stages=AGG, family="value-coef", **r)
bug("ranks-kl-log", what="ppo_kl logged with the wrong sign", edits=("ppo_kl=(-gap * m)", "ppo_kl=(gap * m)"), names="METRIC-SIGN", stages="scalars/", family="metric", scalars=True, **r)
bug("ranks-new-values", what="returns of the values that are being trained", edits=('held = v.clamp(', 'x["returns"] = x["returns"] - x["values"] + v.detach()\n    held = v.clamp('), names="RETURNS-OF-NEW-VALUES", stages=f"{GAE} {AGG} gradient/dvalues", family="value-target", **dict(r, lr=8e-3))


def cases(seed):
    for i, c in enumerate(L):
        c.seed = seed + i
    return L
