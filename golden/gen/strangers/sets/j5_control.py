"""PPO and A2C for control: CleanRL (minibatches of whole envs, as its lstm script), SB3-like (truncation bootstrapped into the reward), A2C. Dumps values, rewards, dones, returns, losses, dlogp/dvalues in CleanRL's case."""

from world_j import *

NAME = "j5_control"
H = dict(
    h_cleanrl=dict(
        kind="cleanrl", N=16, T=32, gamma=0.99, lam=0.95, ep=3, mbs=4, vclip=True, ent=0.01, norm=True, lr=8e-3, seed=41, _decl=["--profile", "cleanrl@020cf0e"]
    ),
    h_sb3=dict(kind="sb3", N=8, T=40, gamma=0.98, lam=0.9, ep=4, mbs=1, vclip=False, ent=0.005, norm=True, lr=1e-2, seed=42),
    h_a2c=dict(kind="a2c", N=16, T=16, gamma=0.99, lam=1.0, ep=1, mbs=1, vclip=False, ent=0.01, norm=False, lr=7e-3, seed=43),
)
B = dict(
    b_done_shift=("h_cleanrl", "done_shift", "GAE cuts with dones[t] where dones[t+1] is meant, one step early", "", None),
    b_no_done=("h_cleanrl", "no_done", "GAE flows over the ends of episodes", "", None),
    b_next_zero=("h_cleanrl", "next_zero", "the rollout's last step is not bootstrapped", "", None),
    b_std_plain=("h_cleanrl", "std_plain", "advantages of a minibatch are divided by the variance instead of the standard deviation", "", None),
    b_vclip_min=("h_cleanrl", "vclip_min", "the clipped value loss takes the smaller error", "", None),
    b_ret_norm=("h_cleanrl", "ret_norm", "returns are made of advantages that were normalised over the rollout", "", None),
    b_ent_sign=("h_cleanrl", "ent_sign", "the entropy is added to the loss", "a negative ent_coef computes this", None),
    b_ratio_inv=("h_cleanrl", "ratio_inv", "the ratio is exp(old - new)", "", None),
    b_lam_lost=("h_cleanrl", "lam_lost", "GAE's recursion has gamma alone, lambda is lost", "GAE with lambda 1 computes this", None),
    b_old_late=("h_cleanrl", "old_late", "old log-probs are stored by the policy after the first epoch", "", None),
    b_trunc_flow=("h_sb3", "trunc_flow", "truncated episodes are bootstrapped into the reward and GAE flows on over their ends, too", "", None),
    b_norm_rows=("h_sb3", "norm_rows", "advantages are normalised along time per environment instead of over the minibatch", "", None),
    b_clip_low=("h_sb3", "clip_low", "the ratio is clamped to (1-eps, 1) by a misplaced bracket", "", None),
    b_vf_twice=("h_sb3", "vf_twice", "vf_coef is multiplied twice", "vf_coef 0.25", None),
    b_gae_v=("h_sb3", "gae_v", "delta subtracts the value of the next state instead of this one's", "", None),
    b_adv_live=("h_a2c", "adv_live", "advantages subtract the new values with their graph instead of those of the rollout, detached", "", None),
    b_sign=("h_a2c", "sign", "the policy term has the wrong sign", "", None),
    b_rew_shift=("h_a2c", "rew_shift", "rewards are stored one step late", "", None),
    b_vf_sum=("h_a2c", "vf_sum", "the value loss is summed over steps, the policy loss averaged", "", None),
)


class AC(nn.Module):
    def __init__(s, seed):
        super().__init__()
        torch.manual_seed(seed)
        s.p = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
        s.c = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(s, o, a):
        ls = s.p(o).log_softmax(-1)
        return ls.gather(-1, a[..., None]).squeeze(-1), -(ls.exp() * ls).sum(-1), s.c(o).squeeze(-1)


def run(d, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    N, T, gm, lam = c["N"], c["T"], c["gamma"], c["lam"]
    ac = AC(c["seed"])
    opt = (
        torch.optim.RMSprop(ac.parameters(), lr=c["lr"], alpha=0.99, eps=1e-5)
        if c["kind"] == "a2c"
        else torch.optim.Adam(ac.parameters(), lr=c["lr"], eps=1e-5)
    )
    new = lambda n: torch.randn(n, 4, generator=g) * 0.5
    obs, age, M, step, prev_done = new(N), torch.zeros(N), torch.randn(4, 4, generator=g) * 0.2 + 0.85 * torch.eye(4), 0, torch.zeros(N)
    push = torch.tensor([[-0.4, 0, 0.2, 0], [0, 0, 0, 0], [0.4, 0.1, -0.2, 0]])
    for roll in range(6 if c["kind"] == "a2c" else 2):
        O, A, RW, D, TR, Dprev = [], [], [], [], [], [prev_done]
        for t in range(T):
            with torch.no_grad():
                a = torch.multinomial(ac.p(obs).softmax(-1), 1, generator=g).squeeze(1)
            O.append(obs)
            A.append(a)
            nx = obs @ M.T + push[a] + 0.15 * torch.randn(N, 4, generator=g)
            age = age + 1
            term = nx.norm(dim=1) > 2.2
            tr = (age >= 11) & ~term
            rw = 1 - 0.3 * nx.norm(dim=1) - term.float()
            if c["kind"] == "sb3":
                with torch.no_grad():
                    rw = torch.where(tr, rw + gm * ac.c(nx).squeeze(-1), rw)
            dn = term | tr
            RW.append(rw)
            D.append(dn.float())
            TR.append(tr.float())
            obs = torch.where(dn[:, None], new(N), nx)
            age = torch.where(dn, 0.0, age)
            Dprev.append(dn.float())
        prev_done = Dprev[-1]
        O, A = torch.stack(O, 1), torch.stack(A, 1)
        RW, D, TR = (torch.stack(q, 1) for q in (RW, D, TR))
        Dp = torch.stack(Dprev[:-1], 1)
        with torch.no_grad():
            old, _, v = ac(O, A)
            nv = ac.c(obs).squeeze(-1)
            R_ = F.pad(RW[:, :-1], (1, 0)) if bug == "rew_shift" else RW
            adv, last = torch.zeros(N, T), torch.zeros(N)
            for t in reversed(range(T)):
                dn = Dp[:, t] if bug == "done_shift" else torch.zeros(N) if bug == "no_done" else D[:, t] * (1 - TR[:, t]) if bug == "trunc_flow" else D[:, t]
                vn = (nv * (0 if bug == "next_zero" else 1)) if t == T - 1 else v[:, t + 1]
                delta = R_[:, t] + gm * vn * (1 - dn) - (vn if bug == "gae_v" else v[:, t])
                last = delta + gm * (1 if bug == "lam_lost" else lam) * (1 - dn) * last
                adv[:, t] = last
            ret = ((adv - adv.mean()) / adv.std() if bug == "ret_norm" else adv) + v
        for ep in range(c["ep"]):
            if bug == "old_late" and ep == 1:
                with torch.no_grad():
                    old, _, _ = ac(O, A)
            pm = torch.randperm(N, generator=g)
            for i in pm.chunk(c["mbs"]):
                step += 1
                lp, en, vv = ac(O[i], A[i])
                ad = adv[i]
                if bug == "adv_live":
                    ad = ret[i] - vv
                if c["norm"]:
                    ad = (
                        (ad - ad.mean(1, keepdim=True)) / (ad.std(1, keepdim=True) + 1e-8)
                        if bug == "norm_rows"
                        else (ad - ad.mean()) / ((ad.var() if bug == "std_plain" else ad.std()) + 1e-8)
                    )
                ra = (old[i] - lp if bug == "ratio_inv" else lp - old[i]).exp()
                if c["kind"] == "a2c":
                    pl = -ad * lp * (-1 if bug == "sign" else 1)
                else:
                    pl = torch.max(-ad * ra, -ad * (ra.clamp(0.8, 1.0) if bug == "clip_low" else ra.clamp(0.8, 1.2)))
                pg = pl.mean()
                ve = (vv - ret[i]) ** 2
                if c["vclip"]:
                    ve = (torch.min if bug == "vclip_min" else torch.max)(ve, (v[i] + (vv - v[i]).clamp(-0.2, 0.2) - ret[i]) ** 2)
                vl = (ve.sum() if bug == "vf_sum" else ve.mean()) * (0.5 if c["kind"] == "cleanrl" else 1.0)
                el = en.mean()
                loss = pg + (1 if bug == "ent_sign" else -1) * c["ent"] * el + 0.5 * vl * (0.5 if bug == "vf_twice" else 1)
                dl, dv = torch.autograd.grad(loss, [lp, vv], retain_graph=True)
                opt.zero_grad()
                loss.backward()
                t = dict(
                    response_mask=torch.ones(len(i), T, dtype=torch.bool),
                    logp_new=lp,
                    logp_old=old[i],
                    values=v[i],
                    values_new=vv,
                    token_rewards=R_[i] if bug != "rew_shift" else RW[i],
                    dones=D[i],
                    next_values=nv[i],
                    advantages=ad,
                    returns=ret[i],
                    entropy=en,
                    loss=loss,
                    pg_loss=pg,
                    value_loss=vl,
                    entropy_loss=el,
                    sample_id=i + 1000 * roll,
                )
                if c["kind"] != "sb3":
                    t.update(dlogp=dl, dvalues=dv)
                o = {"gae.gamma": gm, "gae.lambda": lam, "value.coef": 0.5, "entropy.coef": c["ent"], "num_mini_batches": c["mbs"]}
                if c["kind"] == "cleanrl":
                    o.update({"clip.low": 0.2, "clip.high": 0.2, "value.clip": 0.2})
                    fw = dict(framework="cleanrl", version="020cf0e5")
                else:
                    fw = dict(framework="stable-baselines3", version="2.3.2")
                    o.update(
                        {
                            "adv.kind": "gae",
                            "mask.tokens": "none",
                            "gae.truncated_bootstrap": "value",
                            "gae.hole": "none",
                            "whiten.mask": "none",
                            "returns.before_whiten": True,
                            "rewards.whiten": "no",
                            "value.clip": "none",
                            "value.factor": 1,
                            "kl.place": "none",
                            "agg.kind": "token",
                            "agg.denominator": "micro",
                            "ratio.level": "token",
                        }
                    )
                    if c["norm"]:
                        o.update(
                            {
                                "whiten.scope": "minibatch",
                                "whiten.ddof": 1,
                                "whiten.eps_place": "add_std",
                                "whiten.eps": 1e-8,
                                "whiten.shift_mean": True,
                                "loss.kind": "ppo",
                                "clip.low": 0.2,
                                "clip.high": 0.2,
                            }
                        )
                    else:
                        o.update({"whiten.scope": "none", "loss.kind": "reinforce"})
                # A2C's REINFORCE loss has no ratio: the log-probs of the rollout are the same numbers
                write(d, f"step_{step:03d}", t, dict(**fw, algorithm="ppo", run="j5", step=step, options=o, token_loss_includes_kl=False))
                nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
                opt.step()


main(NAME, H, B, run)
