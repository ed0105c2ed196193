"""Five trainers as documentation and papers describe them: token rows (recurrent PPO), nano (plain policy gradient), mixed (group
advantages with an engine that lags), packed (padding-free rows), ranks (a critic on two ranks). A bug is an edit of this text.

Every loss takes the rows x of a micro-batch, the policy's log-probs lp, entropies, values, the settings o, and the totals of the step.
"""

import torch


# ---- token rows: Schulman 2017, with Andrychowicz 2021's normalisation per minibatch -----------------------------------------------


def tokens_prepare(b, o):
    r, v, stop = b["rewards"], b["values"], b["dones"].float()
    n = r.shape[1]
    adv, run = torch.zeros_like(r), torch.zeros_like(r[:, 0])
    for t in range(n - 1, -1, -1):
        ahead = b["next_values"] if t == n - 1 else v[:, t + 1]
        go = 1 - stop[:, t]
        td = r[:, t] + o["gamma"] * ahead * go - v[:, t]
        run = td + o["gamma"] * o["lam"] * go * run
        adv[:, t] = run
    b["adv"] = adv
    b["returns"] = adv + v


def tokens_loss(x, lp, ent, v, o, total):
    a = x["adv"]
    if o["normalise"]:
        a = (a - a.mean()) / (a.std() + 1e-8)
    log_ratio = lp - x["old"]
    rho = log_ratio.exp()
    objective = torch.minimum(a * rho, a * rho.clamp(1 - o["clip"], 1 + o["clip"]))
    pg = (-objective).mean()
    err = (v - x["returns"]) ** 2
    if o["vclip"]:
        held = x["values"] + (v - x["values"]).clamp(-o["vclip"], o["vclip"])
        err = torch.maximum(err, (held - x["returns"]) ** 2)
    vl = 0.5 * err.mean()
    bonus = ent.mean()
    loss = pg + o["vf"] * vl - o["ent"] * bonus
    logs = dict(
        approx_kl=((rho - 1) - log_ratio).mean(),
        clip_frac=((rho - 1).abs() > o["clip"]).float().mean(),
        value_loss=vl,
        pg_loss=pg,
        entropy=bonus,
    )
    return dict(loss=loss, token_loss=-objective, pg_loss=pg, value_loss=vl, entropy_loss=bonus, advantages=a), logs


# ---- nano: REINFORCE with the group's mean as baseline, tokens normalised per pass -------------------------------------------------


def nano_prepare(b, o):
    s = b["score"].view(-1, o["samples"])
    b["adv"] = (s - s.mean(1, keepdim=True)).reshape(-1)


def nano_loss(x, lp, ent, v, o, total):
    valid = x["mask"].float()
    objective = lp * x["adv"][:, None]
    pg = -(objective * valid).sum() / valid.sum() / total["passes"]
    return dict(loss=pg, token_loss=-objective, pg_loss=pg), dict(loss=pg)


# ---- mixed: group advantages, a weight between engine and trainer, four losses and four aggregations -------------------------------


def estimate(kind, lp, ref, clamp=None):
    d = lp - ref
    if clamp:
        d = d.clamp(-clamp, clamp)
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d.square()
    if kind == "abs":
        return d.abs()
    return torch.exp(-d) - 1 + d


def mixed_prepare(b, o):
    m, score = b["mask"].float(), b["score"].clone()
    if o["place"] == "before":
        score = score - o["beta"] * (estimate(o["kl"], b["old"], b["ref"]) * m).sum(1)
    adv = torch.zeros_like(score)
    for g in b["group"].unique():
        rows = b["group"] == g
        s = score[rows]
        base = s.mean() if o["center"] == "mean" else (s.sum() - s) / (len(s) - 1)
        a = s - base
        if o["scale"] == "group":
            a = a / (s.std(correction=o["ddof"]) + o["eps"])
        adv[rows] = a
    if o["scale"] == "batch":
        adv = adv / (score.std(correction=o["ddof"]) + o["eps"])
    b["adv"] = adv
    if o["tis"]:
        gap = (b["old"] - b["gen"]) * m
        if o["tis"] == "sequence":
            gap = (gap.sum(1) / m.sum(1))[:, None].expand_as(m)
        w = gap.exp()
        if o["rule"] == "cap":
            w = w.clamp(max=o["high_w"])
        elif o["rule"] == "clamp":
            w = w.clamp(o["low_w"], o["high_w"])
        else:
            w = torch.where((w >= o["low_w"]) & (w <= o["high_w"]), w, torch.zeros_like(w))
        b["w"] = w


def reduce(t, m, o, total):
    if o["agg"] == "token":
        return (t * m).sum() / total["tokens"]
    if o["agg"] == "pass":
        return (t * m).sum() / m.sum() / total["passes"]
    if o["agg"] == "rows":
        return ((t * m).sum(1) / m.sum(1)).sum() / total["rows"]
    if o["agg"] == "sums":
        return (t * m).sum() / total["rows"]
    return (t * m).sum() / (total["rows"] * o["length"])


def mixed_loss(x, lp, ent, v, o, total):
    m, a = x["mask"].float(), x["adv"][:, None]
    gap = lp - x["old"]
    if o["kind"] == "sequence":
        gap = ((gap * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)).expand_as(lp)
    rho = gap.exp()
    low, high = 1 - o["low"], 1 + o["high"]
    if o["kind"] == "cispo":
        token = -rho.clamp(low, high).detach() * a * lp
    elif o["kind"] == "soft":
        tau = torch.where(a > 0, torch.tensor(o["tau"][0]), torch.tensor(o["tau"][1]))
        token = -4 / tau * torch.sigmoid(tau * (rho - 1)) * a
    else:
        token = torch.maximum(-a * rho, -a * rho.clamp(low, high))
        if o["dual"]:
            token = torch.where(a < 0, torch.minimum(token, -a * o["dual"]), token)
    if o["tis"]:
        token = token * x["w"]
    pg = reduce(token, m, o, total)
    loss, parts = pg, dict(token_loss=token, pg_loss=pg)
    logs = dict(entropy=(ent * m).sum() / m.sum(), clip_frac=(((rho < low) | (rho > high)) * m).sum() / m.sum())
    if o["place"] == "loss":
        kl = estimate(o["kl"], lp, x["ref"], o["bound"])
        parts["kl"], parts["kl_loss"] = kl, reduce(kl, m, o, total)
        loss = loss + o["beta"] * parts["kl_loss"]
        logs["kl"] = (kl * m).sum() / m.sum()
    if o["ent"]:
        parts["entropy_loss"] = reduce(ent, m, o, total)
        loss = loss - o["ent"] * parts["entropy_loss"]
    parts["loss"] = loss
    return parts, logs


# ---- packed: several sequences in a row, every rule by its segment -----------------------------------------------------------------


def packed_prepare(b, o):
    s = b["score"].view(-1, o["samples"])
    b["adv"] = ((s - s.mean(1, keepdim=True)) / (s.std(1, keepdim=True) + o["eps"])).reshape(-1)


def packed_loss(x, lp, ent, v, o, total):
    m, a, seg = x["mask"].float(), x["advantages"], x["segment"]
    rho = torch.exp(lp - x["old"])
    token = -torch.min(rho * a, rho.clamp(1 - o["low"], 1 + o["high"]) * a)
    kl = estimate("k3", lp, x["ref"])

    def mean(t):
        if o["agg"] == "token":
            return (t * m).sum() / total["tokens"]
        rows = [(seg == k) & (m > 0) for k in seg.unique() if k > 0]
        return sum((t[i]).mean() for i in rows if i.any()) / total["rows"]

    pg, kl_loss = mean(token), mean(kl)
    loss = pg + o["beta"] * kl_loss
    return dict(loss=loss, token_loss=token, pg_loss=pg, kl=kl, kl_loss=kl_loss, advantages=a), dict(loss=loss)


# ---- ranks: a critic, KL in the reward, GAE that steps over tool tokens, whitened over all ranks -----------------------------------


def ranks_prepare(b, o):
    m = b["mask"].float()
    kl = estimate(o["kl"], b["old"], b["ref"])
    rewards = -o["beta"] * kl * m
    last = (m * torch.arange(m.shape[1])).argmax(1)
    rewards[torch.arange(len(m)), last] += b["score"]
    adv = torch.zeros_like(rewards)
    ahead, run = torch.zeros(len(m)), torch.zeros(len(m))
    for t in range(m.shape[1] - 1, -1, -1):
        own = m[:, t] > 0
        value = b["values"][:, t].float()
        a = rewards[:, t] + o["gamma"] * ahead - value + o["gamma"] * o["lam"] * run
        run = torch.where(own, a, run)
        ahead = torch.where(own, value, ahead)
        adv[:, t] = run
    b["kl"], b["rewards"], b["returns"] = kl, rewards, adv + b["values"]
    if o["whiten"]:
        n = m.sum()
        mu = (adv * m).sum() / n
        var = ((adv - mu) ** 2 * m).sum() / (n - 1)
        adv = (adv - mu) * torch.rsqrt(var + 1e-8)
    b["adv"] = adv * m


def ranks_loss(x, lp, ent, v, o, total):
    m, a = x["mask"].float(), x["adv"]
    gap = (lp - x["old"]).clamp(-20, 20)
    rho = gap.exp()
    token = torch.maximum(-a * rho, -a * rho.clamp(1 - o["low"], 1 + o["high"]))
    token = torch.where(a < 0, torch.minimum(token, -a * o["dual"]), token)
    pg = (token * m).sum() / total["tokens"]
    held = v.clamp(x["values"] - o["vclip"], x["values"] + o["vclip"])
    vl = 0.5 * (torch.maximum((v - x["returns"]) ** 2, (held - x["returns"]) ** 2) * m).sum() / total["tokens"]
    bonus = (ent * m).sum() / total["tokens"]
    loss = pg + o["vf"] * vl - o["ent"] * bonus
    logs = dict(ppo_kl=(-gap * m).sum() / m.sum(), value_loss=vl, pg_loss=pg, entropy=(ent * m).sum() / m.sum())
    return dict(loss=loss, token_loss=token, pg_loss=pg, value_loss=vl, entropy_loss=bonus), logs
