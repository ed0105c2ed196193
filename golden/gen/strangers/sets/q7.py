"""CleanRL, SB3 and Spinning Up style control tasks (MLP, discrete actions), rows are environments, mini-batches of whole environments (as CleanRL's LSTM variant); everything is dumped that the loop holds."""

from world_q import *


class AC(nn.Module):
    def __init__(s, o=4, a=3, h=24):
        super().__init__()
        s.pi = nn.Sequential(nn.Linear(o, h), nn.Tanh(), nn.Linear(h, a))
        s.v = nn.Sequential(nn.Linear(o, h), nn.Tanh(), nn.Linear(h, 1))


def table(seed):
    r = random.Random(seed * 13 + 7)
    c = dict(seed=seed + 700)
    c["style"] = ["cleanrl", "sb3", "spinup", "cleanrl", "cleanrl", "sb3", "spinup", "cleanrl", "sb3", "cleanrl", "spinup", "sb3"][seed % 12]
    c["gamma"] = r.choice([0.99, 0.95, 1.0])
    c["lam"] = r.choice([0.95, 0.9, 1.0])
    c["clip"] = r.choice([0.2, 0.1, 0.05])
    c["E"] = r.choice([8, 16, 12])
    c["T"] = r.choice([16, 32, 64])
    c["epochs"] = r.choice([1, 2, 4])
    c["mini"] = r.choice([1, 2, 4])
    c["ent"] = r.choice([0.01, 0.0, 0.05])
    c["vf"] = r.choice([0.5, 1.0, 0.25])
    c["vclip"] = r.choice([True, False])
    c["norm"] = r.choice([True, True, False])
    c["pdone"] = r.choice([0.02, 0.1, 0.0])
    c["lr"] = r.choice([3e-3, 1e-2])
    c["gn"] = r.choice([0.5, 1.0])
    c["anneal"] = r.random() < 0.5
    c["opt"] = r.random() < 0.6
    c["rs"] = r.choice([1.0, 0.1, 10.0])
    c["kl"] = r.choice([None, 0.015])
    if c["style"] == "spinup":
        c |= dict(epochs=r.choice([3, 5]), mini=1, ent=0.0, vclip=False, norm=True)
    if c["style"] == "sb3":
        c |= dict(ent=r.choice([0.0, 0.01]), anneal=False)
    return c


def run(folder, case, c):
    gen = torch.Generator().manual_seed(c["seed"])
    st = c["style"]
    ac = AC()
    E, T = c["E"], c["T"]
    dyn = torch.randn(4, 4, generator=gen) * 0.4
    act = torch.randn(3, 4, generator=gen) * 0.5
    opt = torch.optim.Adam(ac.parameters(), lr=c["lr"], eps=1e-8 if st == "spinup" else 1e-5)
    s = torch.randn(E, 4, generator=gen)
    step = sid = 0
    iters = 2
    opts = {
        "gae.gamma": c["gamma"],
        "gae.lambda": c["lam"],
        "clip.low": c["clip"],
        "clip.high": c["clip"],
        "optim.epochs": c["epochs"],
        "num_mini_batches": c["mini"],
        "entropy.coef": c["ent"],
        "value.coef": c["vf"],
        "optim.clip_norm": c["gn"],
        "optim.eps": 1e-8 if st == "spinup" else 1e-5,
        "value.clip": c["clip"] if c["vclip"] else "none",
        "whiten.scope": "minibatch" if c["norm"] else "none",
        "optim.schedule": "linear" if c["anneal"] else "constant",
        "optim.kind": "adam",
        "gae.truncated_bootstrap": "value",
        "gae.hole": "none",
        "mask.tokens": "none",
        "kl.place": "none",
    }
    if st == "cleanrl":
        opts = {
            "gamma": c["gamma"],
            "gae_lambda": c["lam"],
            "clip_coef": c["clip"],
            "update_epochs": c["epochs"],
            "num_minibatches": c["mini"],
            "ent_coef": c["ent"],
            "vf_coef": c["vf"],
            "max_grad_norm": c["gn"],
            "clip_vloss": c["vclip"],
            "norm_adv": c["norm"],
            "anneal_lr": c["anneal"],
            "learning_rate": c["lr"],
            "num_mini_batches": c["mini"],
        }
    if st == "sb3":
        opts |= {
            "value.factor": 1,
            "value.clip": "none",
            "whiten.ddof": 1,
            "whiten.eps_place": "add_std",
            "whiten.eps": 1e-8,
            "metric.clip_frac": "outside",
            "adv.kind": "gae",
            "whiten.mask": "none",
            "agg.kind": "token",
            "agg.denominator": "micro",
            "value.mask": "none",
        }
    if st == "spinup":
        opts |= {
            "value.factor": 1,
            "value.coef": 1,
            "value.clip": "none",
            "returns.of": "reward_to_go",
            "whiten.scope": "global",
            "whiten.ddof": 0,
            "whiten.eps_place": "add_std",
            "whiten.eps": 0,
            "optim.clip_norm": "none",
            "metric.clip_frac": "outside",
            "adv.kind": "gae",
            "whiten.mask": "none",
            "value.mask": "none",
        }
    upd, total = 0, iters * c["epochs"] * c["mini"]
    for it in range(iters):
        if c["anneal"]:
            opt.param_groups[0]["lr"] = c["lr"] * (1 - it / iters)
        S, A, L, Vv, Rw, D = [], [], [], [], [], []
        for t in range(T):
            with torch.no_grad():
                lo = ac.pi(s)
                lp = torch.log_softmax(lo, -1)
                a = torch.multinomial(lp.exp(), 1, generator=gen).squeeze(1)
                v = ac.v(s).squeeze(1)
            S.append(s)
            A.append(a)
            L.append(lp.gather(1, a[:, None]).squeeze(1))
            Vv.append(v)
            Rw.append(c["rs"] * (1 - s.pow(2).mean(1) + 0.3 * torch.randn(E, generator=gen)))
            s = torch.tanh(s @ dyn + act[a]) + 0.2 * torch.randn(E, 4, generator=gen)
            d = torch.rand(E, generator=gen) < c["pdone"]
            s = torch.where(d[:, None], torch.randn(E, 4, generator=gen), s)
            D.append(d)
        S, A, L, Vv, Rw, D = (torch.stack(x, 1) for x in (S, A, L, Vv, Rw, D))
        with torch.no_grad():
            nv = ac.v(s).squeeze(1)
        adv = torch.zeros(E, T)
        last = torch.zeros(E)
        rtg = torch.zeros(E, T)
        run_ = nv.clone()
        for t in reversed(range(T)):
            nn_ = 1 - D[:, t].float()
            nx = nv if t == T - 1 else Vv[:, t + 1]
            delta = Rw[:, t] + c["gamma"] * nx * nn_ - Vv[:, t]
            last = delta + c["gamma"] * c["lam"] * nn_ * last
            adv[:, t] = last
            run_ = Rw[:, t] + c["gamma"] * nn_ * run_
            rtg[:, t] = run_
        ret = adv + Vv if st != "spinup" else rtg
        if st == "spinup":
            adv = (adv - adv.mean()) / adv.std(correction=0)
        for ep in range(c["epochs"]):
            p = torch.randperm(E, generator=gen) if c["mini"] > 1 else torch.arange(E)
            sz = E // c["mini"]
            for b in range(c["mini"]):
                i = p[b * sz : (b + 1) * sz]
                lsm = torch.log_softmax(ac.pi(S[i]), -1)
                lp = lsm.gather(-1, A[i][..., None]).squeeze(-1)
                ent = -(lsm.exp() * lsm).sum(-1)
                v = ac.v(S[i]).squeeze(-1)
                ratio = (lp - L[i]).exp()
                a_ = adv[i]
                if c["norm"] and st != "spinup":
                    a_ = (a_ - a_.mean()) / (a_.std() + 1e-8)
                tl = torch.max(-a_ * ratio, -a_ * ratio.clamp(1 - c["clip"], 1 + c["clip"]))
                pg = tl.mean()
                if st == "cleanrl":
                    if c["vclip"]:
                        vc = Vv[i] + (v - Vv[i]).clamp(-c["clip"], c["clip"])
                        vl = 0.5 * torch.max((v - ret[i]) ** 2, (vc - ret[i]) ** 2).mean()
                    else:
                        vl = 0.5 * ((v - ret[i]) ** 2).mean()
                else:
                    vl = F.mse_loss(v, ret[i])
                coef = c["vf"] if st != "spinup" else 1.0
                loss = pg - c["ent"] * ent.mean() + coef * vl
                dl, dv = torch.autograd.grad(loss, [lp, v], retain_graph=True)
                opt.zero_grad()
                loss.backward()
                opt_t, norm = step_with_dump(opt, list(ac.named_parameters()), None if st == "spinup" else c["gn"])
                cf = ((ratio - 1).abs() > c["clip"]).float().mean().item()
                akl = ((ratio - 1) - (lp - L[i])).mean().item()
                sc = {
                    "cleanrl": {
                        "losses/clipfrac": cf,
                        "losses/approx_kl": akl,
                        "losses/value_loss": vl.item(),
                        "losses/policy_loss": pg.item(),
                        "losses/entropy": ent.mean().item(),
                        "charts/learning_rate": opt.param_groups[0]["lr"],
                    },
                    "sb3": {"train/clip_fraction": cf, "train/value_loss": vl.item(), "train/policy_gradient_loss": pg.item()},
                    "spinup": {"ClipFrac": cf, "LossPi": pg.item(), "LossV": vl.item()},
                }[st]
                t = dict(
                    response_mask=torch.ones_like(D[i]),
                    logp_new=lp,
                    logp_old=L[i],
                    advantages=a_,
                    values=Vv[i],
                    values_new=v,
                    returns=ret[i],
                    token_rewards=Rw[i],
                    dones=D[i],
                    next_values=nv[i],
                    entropy=ent,
                    token_loss=tl,
                    pg_loss=pg,
                    value_loss=vl,
                    entropy_loss=ent.mean(),
                    loss=loss,
                    dlogp=dl,
                    dvalues=dv,
                    sample_id=i + sid,
                )
                if c["opt"]:
                    t |= opt_t
                fw = dict(framework="cleanrl", version="020cf0e", algorithm="ppo") if st == "cleanrl" else dict(algorithm="ppo")
                dump(
                    folder,
                    f"u{step:04d}",
                    dict(schema=2, run=case, step=step + 1, options=opts, scalars=sc, scalars_scope="optimizer_step", token_loss_includes_kl=False) | fw,
                    t,
                )
                step += 1
        sid += E


names = {}
for s in range(12):
    c = table(s)
    names[f"h_{s:02d}_{c['style']}_mb{c['mini']}_norm{int(c['norm'])}"] = c
if __name__ == "__main__":
    main("q7", names, run, lambda c: [] if c["style"] == "cleanrl" else ["--profile", "none"])
