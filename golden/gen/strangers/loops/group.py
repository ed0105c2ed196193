"""A group trainer of nobody: plain statements, every choice an option of the caller."""
import torch


def prepare(b, o):
    """Adds advantages to the rows of one rollout."""
    score, group = b["score"], b["group"]
    adv = torch.zeros_like(score)
    for g in group.unique():
        i = group == g
        x = score[i]
        n = len(x)
        center = x.mean() if o["center"] == "mean" else (x.sum() - x) / (n - 1)
        a = x - center
        if o["scale"] == "group_std":
            a = a / (x.std(unbiased=o["ddof"] == 1) + o["adv_eps"])
        adv[i] = a
    if o["scale"] == "batch_std":
        adv = adv / (score.std(unbiased=o["ddof"] == 1) + o["adv_eps"])
    b["advantages"] = adv
    if o["tis"]:
        w = torch.exp(b["old"] - b["gen"])
        b["is_weights"] = w.clamp(max=o["tis_cap"])


def loss(x, lp, entropy, o, total):
    """The loss of a micro-batch, its parts, and what was logged."""
    m = x["mask"].float()
    A = x["advantages"][:, None]
    log_ratio = lp - x["old"]
    ratio = torch.exp(log_ratio)
    clipped = torch.clamp(ratio, 1 - o["low"], 1 + o["high"])
    objective = torch.min(ratio * A, clipped * A)
    token_loss = -objective
    if o["tis"]:
        token_loss = token_loss * x["is_weights"]

    def reduce(t):
        if o["agg"] == "token":
            return (t * m).sum() / total["tokens"]
        if o["agg"] == "rows":
            return ((t * m).sum(1) / m.sum(1)).sum() / total["rows"]
        return (t * m).sum() / (total["rows"] * o["constant"])
    pg_loss = reduce(token_loss)
    out = pg_loss
    parts = dict(token_loss=token_loss, pg_loss=pg_loss)
    if o["beta"]:
        d = x["ref"] - lp
        kl = {"k1": -d, "k2": d * d / 2, "k3": torch.exp(d) - d - 1}[o["kl"]]
        parts["kl"] = kl
        parts["kl_loss"] = reduce(kl)
        out = out + o["beta"] * parts["kl_loss"]
    if o["bonus"]:
        parts["entropy_loss"] = reduce(entropy)
        out = out - o["bonus"] * parts["entropy_loss"]
    parts["loss"] = out
    logged = {"kl": ((x["old"] - lp) * m).sum().item() / m.sum().item()}
    outside = (ratio < 1 - o["low"]) | (ratio > 1 + o["high"])
    logged = {"ppo_kl": (-log_ratio * m).sum().item() / m.sum().item()}
    return parts, logged
