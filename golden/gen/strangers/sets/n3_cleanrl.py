"""PPO for control after CleanRL (rows are environments, minibatches of whole environments as in its LSTM file) and SB3 (flattened shuffled minibatches, [M, 1]).
Natural dumps: what stands in the loop's variables; dlogp, dvalues, gradients and weights in h_cleanrl_anneal alone, h_sb3_flat is lazy."""

from world_n import *


class Agent(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        s.c = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def get(s, x, a):
        lp = s.a(x).log_softmax(-1)
        return lp.gather(-1, a[..., None])[..., 0], -(lp.exp() * lp).sum(-1), s.c(x)[..., 0]


class Envs:
    def __init__(s, n, seed, limit):
        s.g = torch.Generator().manual_seed(seed)
        s.n, s.limit = n, limit
        s.x = s.new(n)
        s.t = torch.zeros(n, dtype=torch.long)

    def new(s, n):
        return torch.randn(n, 4, generator=s.g) * 0.5

    def step(s, a):
        s.x = (
            s.x * 0.97
            + torch.stack([(a - 1).float() * 0.3, s.x[:, 0] * 0.2, torch.zeros(s.n), torch.zeros(s.n)], 1)
            + 0.12 * torch.randn(s.n, 4, generator=s.g)
        )
        s.t += 1
        r = 1 - s.x[:, 0].abs() + 0.2 * s.x[:, 1]
        term = s.x.abs().max(1).values > 1.9
        trunc = (s.t >= s.limit) & ~term
        last = s.x.clone()
        d = term | trunc
        s.x = torch.where(d[:, None], s.new(s.n), s.x)
        s.t = torch.where(d, 0, s.t)
        return s.x.clone(), r, term, trunc, last


def run(out, name, c, bug):
    torch.manual_seed(c["seed"])
    ag = Agent()
    N, T = c["N"], c["T"]
    opt = torch.optim.Adam(ag.parameters(), lr=c["lr"], eps=1e-5)
    env = Envs(N, c["seed"], c["limit"])
    obs_ = env.x.clone()
    step = 0
    g = torch.Generator().manual_seed(c["seed"] + 1)
    gam, lam, iters = c["gamma"], c["lam"], c["iters"]
    for it in range(iters):
        lr = c["lr"] * (1 - it / iters) if c["anneal"] else c["lr"]
        opt.param_groups[0]["lr"] = lr
        obs, act, logp, val, rew, dn = [], [], [], [], [], []
        for t in range(T):
            with torch.no_grad():
                lp = ag.a(obs_).log_softmax(-1)
                a = torch.multinomial(lp.exp(), 1, generator=g)[:, 0]
                v = ag.c(obs_)[:, 0]
            n, r, term, trunc, last = env.step(a)
            if c["sb3"]:
                with torch.no_grad():
                    r = r + gam * ag.c(last)[:, 0] * trunc.float()
            obs.append(obs_)
            act.append(a)
            logp.append(lp.gather(1, a[:, None])[:, 0])
            val.append(v)
            rew.append(r)
            dn.append((term | trunc).float())
            obs_ = n
        obs, act, logp, val, rew, dn = (torch.stack(z, 1) for z in (obs, act, logp, val, rew, dn))
        with torch.no_grad():
            nv = ag.c(obs_)[:, 0]
        adv = torch.zeros(N, T)
        l = 0
        for t in reversed(range(T)):
            nn_ = 1 - (dn[:, t] if bug != "done_shift" else (dn[:, t - 1] if t else torch.zeros(N)))
            if bug == "no_done":
                nn_ = torch.ones(N)
            nx = nv if t == T - 1 else val[:, t + 1]
            if t == T - 1 and bug == "bootstrap_last_obs":
                nx = val[:, -1]
            if t == T - 1 and bug == "bootstrap_zero":
                nx = torch.zeros(N)
            de = rew[:, t] + gam * nx * nn_ - val[:, t]
            if bug == "done_delta_only":
                l = de + gam * lam * l
            elif bug == "done_trace_only":
                l = rew[:, t] + gam * nx - val[:, t] + gam * lam * nn_ * l
            elif bug == "gamma_twice":
                l = de + gam * gam * lam * nn_ * l
            else:
                l = de + gam * lam * nn_ * l
            adv[:, t] = l
        ret = adv + val
        if bug == "returns_of_normalised":
            ret = (adv - adv.mean()) / (adv.std() + 1e-8) + val
        if bug == "returns_reward_to_go_undone":
            q = nv.clone()
            for t in reversed(range(T)):
                q = rew[:, t] + gam * q
                ret[:, t] = q
        D = dict(o=obs, a=act, lp=logp, v=val, r=rew, d=dn, adv=adv, ret=ret)
        if c["sb3"]:
            D = {k: z.reshape(N * T, *z.shape[2:])[:, None] for k, z in D.items()}
        R = len(D["a"])
        ids = torch.arange(R) + it * R
        stop = False
        for ep in range(c["epochs"]):
            perm = torch.randperm(R, generator=g)
            for ix in perm.chunk(c["minis"]):
                step += 1
                x = {k: z[ix] for k, z in D.items()}
                acts = x["a"] if bug != "actions_unshuffled" else D["a"][: len(ix)]
                nl, ent, nval = ag.get(x["o"], acts)
                nl.retain_grad()
                nval.retain_grad()
                A = x["adv"]
                if c["norm"]:
                    s = A.std()
                    if bug == "norm_by_returns":
                        s = x["ret"].std()
                    if bug == "norm_times_std":
                        A = (A - A.mean()) * s
                    elif bug == "norm_abs_mean":
                        A = (A - A.abs().mean()) / (s + 1e-8)
                    else:
                        A = (A - A.mean()) / (s + 1e-8)
                rt = (nl - x["lp"]).exp() if bug != "ratio_inverse" else (x["lp"] - nl).exp()
                cc = c["clip"]
                l1, l2 = -A * rt, -A * rt.clamp(1 - cc, 1 + cc)
                pg = torch.min(l1, l2).mean() if bug == "surrogate_min" else torch.max(l1, l2).mean()
                if bug == "policy_sum":
                    pg = torch.max(l1, l2).sum()
                if c["sb3"]:
                    vl = F.mse_loss(x["ret"], nval)
                    if bug == "value_broadcast":
                        vl = ((x["ret"][:, 0][None] - nval) ** 2).mean()
                    if bug == "value_target_adv":
                        vl = F.mse_loss(x["adv"], nval)
                elif c["vclip"]:
                    vc = x["v"] + (nval - x["v"]).clamp(-cc, cc)
                    u1, u2 = (nval - x["ret"]) ** 2, (vc - x["ret"]) ** 2
                    if bug == "vclip_min":
                        vl = 0.5 * torch.min(u1, u2).mean()
                    elif bug == "vclip_ratio":
                        vc = x["v"] * (nval / x["v"]).clamp(1 - cc, 1 + cc)
                        vl = 0.5 * torch.max(u1, (vc - x["ret"]) ** 2).mean()
                    else:
                        vl = 0.5 * torch.max(u1, u2).mean()
                else:
                    vl = 0.5 * ((nval - x["ret"]) ** 2).mean()
                en = ent.mean()
                if bug == "entropy_sum":
                    en = ent.sum()
                loss = pg - c["ent"] * en + c["vf"] * vl
                if bug == "entropy_sign":
                    loss = pg + c["ent"] * en + c["vf"] * vl
                if bug == "value_sign":
                    loss = pg - c["ent"] * en - c["vf"] * vl
                opt.zero_grad()
                loss.backward()
                with torch.no_grad():
                    lgr = nl - x["lp"]
                    akl = float((lgr.exp() - 1 - lgr).mean())
                    cf = float(((lgr.exp() - 1).abs() > cc).float().mean())
                gr = {n: p.grad.clone() for n, p in ag.named_parameters()}
                w0 = {n: p.detach().clone() for n, p in ag.named_parameters()}
                if bug == "clip_value_not_norm":
                    torch.nn.utils.clip_grad_value_(ag.parameters(), 0.01)
                else:
                    torch.nn.utils.clip_grad_norm_(ag.parameters(), 0.5)
                if bug == "grad_clip_after":
                    pass
                opt.step()
                t = dict(
                    response_mask=torch.ones_like(x["a"], dtype=torch.bool),
                    logp_new=nl,
                    logp_old=x["lp"],
                    values=x["v"],
                    values_new=nval,
                    returns=x["ret"],
                    advantages=A,
                    entropy=ent,
                    sample_id=ids[ix],
                    loss=loss,
                    pg_loss=pg,
                    value_loss=vl,
                )
                if not c["sb3"]:
                    t.update(token_rewards=x["r"], dones=x["d"], next_values=nv[ix], entropy_loss=en)
                if c["full"]:
                    t.update(
                        dlogp=nl.grad,
                        dvalues=nval.grad,
                        **{f"grad/{n}": z for n, z in gr.items()},
                        **{f"weights/{n}": z for n, z in w0.items()},
                        **{f"update/{n}": p.detach() - w0[n] for n, p in ag.named_parameters()},
                    )
                if c["sb3"]:
                    meta = dict(
                        framework="stable-baselines3",
                        algorithm="ppo",
                        options={
                            "clip.low": cc,
                            "clip.high": cc,
                            "gae.gamma": gam,
                            "gae.lambda": lam,
                            "whiten.scope": "minibatch",
                            "whiten.ddof": 1,
                            "whiten.eps": 1e-8,
                            "whiten.eps_place": "add_std",
                            "value.factor": 1,
                            "value.coef": c["vf"],
                            "value.clip": "none",
                            "entropy.coef": c["ent"],
                            "num_mini_batches": c["minis"],
                        },
                        scalars={"learning_rate": lr},
                    )
                else:
                    meta = dict(
                        framework="cleanrl",
                        version="020cf0e",
                        algorithm="ppo",
                        options=dict(
                            gamma=gam,
                            gae_lambda=lam,
                            clip_coef=cc,
                            norm_adv=c["norm"],
                            clip_vloss=c["vclip"],
                            ent_coef=c["ent"],
                            vf_coef=c["vf"],
                            max_grad_norm=0.5,
                            num_minibatches=c["minis"],
                            update_epochs=c["epochs"],
                            anneal_lr=c["anneal"],
                            target_kl=c["tkl"],
                        ),
                        scalars={
                            "losses/policy_loss": pg.item(),
                            "losses/value_loss": vl.item(),
                            "losses/entropy": en.item(),
                            "losses/approx_kl": akl,
                            "losses/clipfrac": cf,
                            "learning_rate": lr,
                        },
                    )
                write(out, name, step, 0, 0, t, dict(world_size=1, micro_batches=1, scalars_scope="optimizer_step", **meta))
            if c["tkl"] and akl > c["tkl"]:
                break


base = dict(
    gamma=0.99, lam=0.95, clip=0.2, ent=0.01, vf=0.5, norm=True, vclip=True, anneal=False, tkl=None, sb3=False, full=False, iters=2, epochs=2, minis=2, limit=18
)
H = {
    "h_cleanrl_anneal": dict(
        base,
        seed=41,
        N=8,
        T=40,
        lr=1e-2,
        anneal=True,
        full=True,
        iters=3,
        about="CleanRL, annealed rate, value clipping, whole environments per minibatch, everything of the optimiser dumped",
    ),
    "h_cleanrl_targetkl": dict(
        base,
        seed=42,
        N=6,
        T=64,
        lr=2e-2,
        epochs=4,
        minis=1,
        tkl=0.02,
        vclip=False,
        gamma=0.97,
        lam=0.9,
        ent=0.02,
        about="CleanRL, one minibatch, target-KL stop, no value clipping",
    ),
    "h_sb3_flat": dict(
        base,
        seed=43,
        N=8,
        T=48,
        lr=1e-2,
        sb3=True,
        epochs=2,
        minis=3,
        vclip=False,
        limit=12,
        about="SB3: time limits bootstrapped in the reward, flattened minibatches, mse value loss",
    ),
}
h1, h2, h3 = H
B = {
    "b_done_shift": (h1, "dones are read one step early: dones[t] for dones[t+1]", ""),
    "b_no_done": (h2, "values and advantages flow over the ends of episodes", ""),
    "b_done_delta_only": (h2, "the trace is not cut at the end of an episode, the delta is", ""),
    "b_done_trace_only": (h1, "the delta bootstraps over the end of an episode, the trace is cut", ""),
    "b_bootstrap_last_obs": (h1, "V of the last observation of the rollout stands where V(next_obs) belongs", ""),
    "b_bootstrap_zero": (h2, "nothing is bootstrapped where the rollout is cut", ""),
    "b_gamma_twice": (h1, "the trace decays by gamma^2*lambda", ""),
    "b_returns_of_normalised": (h2, "returns are made of normalised advantages", ""),
    "b_vclip_min": (h1, "min in place of max in the clipped value loss", ""),
    "b_vclip_ratio": (h1, "values are clipped as a ratio to the old value", ""),
    "b_surrogate_min": (h2, "min of the two negative surrogates: the optimistic bound", ""),
    "b_entropy_sign": (h1, "entropy is punished", "a negative entropy coefficient"),
    "b_clip_value_not_norm": (h1, "gradients are clipped by value at 0.01, not by norm at 0.5", "clip_grad_value_ is used by some"),
    "b_actions_unshuffled": (h3, "new log-probs are of actions in another order than the rows", ""),
    "b_value_broadcast": (h3, "values [M, 1] against returns [M]: the mse is over all pairs", ""),
    "b_value_target_adv": (h3, "the critic is trained towards the advantages", ""),
    "b_norm_by_returns": (h3, "advantages are divided by the std of the returns", ""),
    "b_norm_abs_mean": (h3, "the mean of |A| is subtracted", ""),
    "b_ratio_inverse": (h3, "the ratio is old over new", ""),
    "b_policy_sum": (h2, "the policy loss is a sum, the value loss a mean", ""),
}
if __name__ == "__main__":
    main("n3_cleanrl", H, B, run)
