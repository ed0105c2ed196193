"""PPO as lm-human-preferences writes it: fixed length, KL in the reward, rewards and advantages whitened inside the loss of a minibatch."""
import torch


def whiten(x, shift_mean=True):
    mean, var = x.mean(), x.var(unbiased=False)
    w = (x - mean) * torch.rsqrt(var + 1e-8)
    return w if shift_mean else w + mean


def prepare(b, o):
    kl = b["old"] - b["ref"]
    rewards = -o["kl_coef"] * kl
    rewards[:, -1] += b["score"]
    b["kl"], b["rewards"] = kl, rewards


def loss(x, lp, entropy, o, total, v):
    values, rewards = x["values"], x["rewards"]
    if o["whiten_rewards"]:
        rewards = whiten(rewards, shift_mean=False)
    last, adv = 0, []
    T = rewards.shape[1]
    for t in reversed(range(T)):
        nextvalues = values[:, t + 1] if t < T - 1 else 0.0
        delta = rewards[:, t] + o["gamma"] * nextvalues - values[:, t]
        last = delta + o["gamma"] * o["lam"] * last
        adv.append(last)
    adv = torch.stack(adv[::-1], 1)
    returns = adv + values
    adv = whiten(adv).detach()
    vclipped = torch.clamp(v, values - o["clip_value"], values + o["clip_value"])
    vf_loss = 0.5 * torch.maximum((v - returns) ** 2, (vclipped - returns) ** 2).mean()
    ratio = torch.exp(lp - x["old"])
    pg = torch.maximum(-adv * ratio, -adv * torch.clamp(ratio, 1 - o["clip"], 1 + o["clip"]))
    pg_loss = pg.mean()
    out = pg_loss + o["vf_coef"] * vf_loss
    return dict(advantages=adv, returns=returns, token_loss=pg, pg_loss=pg_loss, value_loss=vf_loss, loss=out), {}
