"""PPO as CleanRL's ppo.py writes it: no mask, rewards where they fall, done flags, the value behind the rollout, normalised minibatches."""
import torch


def prepare(b, o):
    rewards, values, ends = b["rewards"], b["values"], b["ends"].float()
    T = rewards.shape[1]
    adv = torch.zeros_like(rewards)
    last = 0
    for t in reversed(range(T)):
        nextnonterminal = 1.0 - ends[:, t]
        nextvalues = b["next_values"] if t == T - 1 else values[:, t + 1]
        delta = rewards[:, t] + o["gamma"] * nextvalues * nextnonterminal - values[:, t]
        last = delta + o["gamma"] * o["lam"] * nextnonterminal * last
        adv[:, t] = last
    b["raw"] = adv
    b["returns"] = adv + values


def loss(x, lp, entropy, o, total, v):
    adv = x["raw"]
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    logratio = lp - x["old"]
    ratio = logratio.exp()
    pg1 = -adv * ratio
    pg2 = -adv * torch.clamp(ratio, 1 - o["clip"], 1 + o["clip"])
    pg_max = torch.max(pg1, pg2)
    pg_loss = pg_max.mean()
    v_unclipped = (v - x["returns"]) ** 2
    v_clipped = x["values"] + torch.clamp(v - x["values"], -o["clip"], o["clip"])
    v_loss = 0.5 * torch.max(v_unclipped, (v_clipped - x["returns"]) ** 2).mean()
    entropy_loss = entropy.mean()
    out = pg_loss - o["ent_coef"] * entropy_loss + v_loss * o["vf_coef"]
    with torch.no_grad():
        logged = {"approx_kl": ((ratio - 1) - logratio).mean().item(), "clip_frac": ((ratio - 1.0).abs() > o["clip"]).float().mean().item()}
    return dict(advantages=adv, token_loss=pg_max, pg_loss=pg_loss, value_loss=v_loss, entropy_loss=entropy_loss, loss=out), logged
