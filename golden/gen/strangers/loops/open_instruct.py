"""GRPO as open-instruct's grpo_fast writes it: z-scores by numpy, k3 with a clamp at 40, token mean over the batch."""
import numpy
import torch


def prepare(b, o):
    scores = b["score"].numpy().reshape(-1, o["samples"])
    mean = scores.mean(-1, keepdims=True)
    if o["normalization"] == "standard":
        adv = (scores - mean) / (scores.std(-1, keepdims=True) + 1e-8)
    else:
        adv = scores - mean
    b["advantages"] = torch.from_numpy(adv.reshape(-1))
    if o["tis"]:
        log_is = (b["old"] - b["gen"]).clamp(-10.0, 10.0)
        b["is_weights"] = torch.exp(log_is).clamp(max=o["tis_cap"])


def loss(x, lp, entropy, o, total):
    m = x["mask"].float()
    adv = x["advantages"].unsqueeze(-1)
    ratio = torch.exp(lp - x["old"])
    pg_losses = -adv * ratio
    pg_losses2 = -adv * torch.clamp(ratio, 1.0 - o["low"], 1.0 + o["high"])
    pg_loss_max = torch.max(pg_losses, pg_losses2)
    if o["tis"]:
        pg_loss_max = pg_loss_max * x["is_weights"]
    ref_logprobs_diff = (lp - x["ref"]).clamp(-40.0, 40.0)
    kl = torch.expm1(-ref_logprobs_diff) + ref_logprobs_diff
    denominator = total["tokens"]
    out = ((pg_loss_max + o["beta"] * kl) * m).sum() / denominator
    parts = dict(token_loss=pg_loss_max, kl=kl, loss=out, pg_loss=(pg_loss_max * m).sum() / denominator, kl_loss=(kl * m).sum() / denominator)
    return parts, {}
