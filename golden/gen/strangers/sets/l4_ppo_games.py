"""PPO for control: rows are environments (or trajectories, spinning-up), columns steps. h_cleanrl_* dumps everything incl. token_loss; h_sb3_* without token_loss; h_spinup_* is lazy."""

import math
from world_l import *

HEALTHY = dict(
    h_cleanrl_vclip=dict(style="cleanrl", N=16, T=32, gamma=0.99, lam=0.95, clip=0.2, mb=2, epochs=2, lr=6e-3, ent=0.01, vf=0.5, gauss=False, its=2),
    h_sb3_gauss_timeouts=dict(style="sb3", N=16, T=24, gamma=0.98, lam=0.9, clip=0.2, mb=1, epochs=3, lr=8e-3, ent=0.005, vf=0.5, gauss=True, its=2),
    h_spinup_trajectories=dict(style="spinup", N=24, T=30, gamma=0.99, lam=0.97, clip=0.2, mb=1, epochs=3, lr=8e-3, ent=0.0, vf=0.0, gauss=True, its=2),
)


class AC(nn.Module):
    def __init__(self, gauss):
        super().__init__()
        self.gauss = gauss
        self.pi = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2 if gauss else 3))
        self.v = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        if gauss:
            self.logstd = nn.Parameter(torch.zeros(2) - 0.3)

    def value(self, s):
        return self.v(s).squeeze(-1)

    def dist(self, s):
        return torch.distributions.Normal(self.pi(s), self.logstd.exp()) if self.gauss else torch.distributions.Categorical(logits=self.pi(s))

    def lp(self, d, a):
        return d.log_prob(a).sum(-1) if self.gauss else d.log_prob(a)

    def ent(self, d):
        return d.entropy().sum(-1) if self.gauss else d.entropy()


def reset(n):
    return torch.randn(n, 4) * 0.5


def env_step(s, a, age, gauss):
    f = a[..., :2] * 0.3 if gauss else torch.stack([(a == 1).float() - (a == 2).float(), (a == 0).float() * 0.5], -1) * 0.4
    s2 = torch.cat([s[:, :2] + 0.3 * s[:, 2:], 0.9 * s[:, 2:] + f], 1) + 0.05 * torch.randn_like(s)
    r = 1.0 - s2[:, :2].pow(2).sum(1)
    term = s2[:, :2].abs().max(1).values > 1.8
    trunc = (age + 1 >= 14) & ~term
    return s2, r, term, trunc


def run(out, case, c, bug):
    N, T, ga, la, st = c["N"], c["T"], c["gamma"], c["lam"], c["style"]
    net = AC(c["gauss"])
    opt = torch.optim.Adam(net.parameters(), lr=c["lr"], eps=1e-5 if st != "spinup" else 1e-8)
    if st == "cleanrl":
        meta = dict(
            framework="cleanrl",
            version="020cf0e",
            algorithm="ppo",
            profile="cleanrl@020cf0e",
            options={"optim.epochs": c["epochs"], "num_mini_batches": c["mb"], "clip.low": 0.2, "clip.high": 0.2, "value.clip": 0.2},
        )
    elif st == "sb3":
        meta = dict(
            framework="stable-baselines3",
            version="2.3.2",
            algorithm="ppo",
            options={
                "gae.gamma": ga,
                "gae.lambda": la,
                "adv.kind": "gae",
                "whiten.scope": "minibatch",
                "whiten.ddof": 1,
                "whiten.eps": 1e-8,
                "whiten.eps_place": "add_std",
                "whiten.mask": "none",
                "returns.before_whiten": True,
                "gae.truncated_bootstrap": "value",
                "clip.low": 0.2,
                "clip.high": 0.2,
                "value.clip": None,
                "value.factor": 1,
                "value.coef": c["vf"],
                "entropy.coef": c["ent"],
                "agg.kind": "token",
                "agg.denominator": "micro",
                "mask.tokens": "none",
                "kl.place": "none",
                "kl.beta": 0,
                "loss.kind": "ppo",
                "optim.epochs": c["epochs"],
                "num_mini_batches": 1,
            },
        )
    else:
        meta = dict(
            framework="spinningup",
            version="0.2",
            algorithm="ppo",
            options={
                "gae.gamma": ga,
                "gae.lambda": la,
                "adv.kind": "gae",
                "whiten.scope": "global",
                "whiten.ddof": 0,
                "whiten.eps": 0,
                "clip.low": 0.2,
                "clip.high": 0.2,
                "agg.kind": "token",
                "agg.denominator": "micro",
                "gae.truncated_bootstrap": "value",
                "kl.place": "none",
                "kl.beta": 0,
                "optim.epochs": c["epochs"],
                "num_mini_batches": 1,
                "value.factor": 1,
                "value.clip": None,
            },
        )
    meta["options"] = {k: v if v is not None else "none" for k, v in meta["options"].items()}
    D = Out(out, "l4_ppo_games", case, meta | dict(align="response", token_loss_includes_kl=False))
    s, age, step = reset(N), torch.randint(0, 10, (N,)), 0
    total = c["its"] * c["epochs"] * c["mb"]
    for it in range(c["its"]):
        if st == "cleanrl":
            lr = c["lr"] * (1 - it / c["its"])
            opt.param_groups[0]["lr"] = lr
        else:
            lr = c["lr"]
        S, A, L, R, DN, VV, TR = [], [], [], [], [], [], []
        mask = torch.ones(N, T, dtype=torch.bool)
        alive = torch.ones(N, dtype=torch.bool)
        M = []
        if st == "spinup":
            s, age = reset(N), torch.randint(0, 12, (N,)) - 16
        with torch.no_grad():
            for t in range(T):
                d = net.dist(s)
                a = d.sample()
                v = net.value(s)
                s2, r, te, tr = env_step(s, a, age, c["gauss"])
                if bug == "logp_before_clip_action":
                    L.append(net.lp(d, a.clamp(-0.5, 0.5)))
                else:
                    L.append(net.lp(d, a))
                S.append(s)
                A.append(a)
                VV.append(v)
                M.append(alive.clone())
                done = te | tr
                if st == "sb3" and bug != "":
                    pass
                if st == "sb3":
                    boot = ga * net.value(s2)
                    if bug == "timeout_bootstrap_of_terminated":
                        r = r + boot * te * 1.0
                    elif bug == "timeout_bootstrap_reset_state":
                        r = r + ga * net.value(reset(N)) * tr
                    else:
                        r = r + boot * tr
                R.append(r)
                DN.append(done)
                TR.append(tr)
                age = age + 1
                if st == "spinup":
                    alive = alive & ~done
                    s = torch.where(alive[:, None], s2, s2 if False else s)
                    last = s2 if t == 0 else torch.where(M[-1][:, None], s2, last)
                    term_last = te.clone() if t == 0 else torch.where(M[-1], te, term_last)
                else:
                    s = torch.where(done[:, None], reset(N), s2)
                    age = torch.where(done, 0, age)
        S, A, L, R, DN, VV, M = (
            torch.stack(S, 1),
            torch.stack(A, 1),
            torch.stack(L, 1),
            torch.stack(R, 1),
            torch.stack(DN, 1),
            torch.stack(VV, 1),
            torch.stack(M, 1),
        )
        with torch.no_grad():
            nv = net.value(s if st != "spinup" else last)
            if st == "spinup":
                mask = M
                nv = torch.where(term_last, torch.zeros(()), nv)
                DN = DN & M
                n = M.sum(1) - 1
                DNd = torch.zeros_like(M)
                DNd[torch.arange(N)[term_last], n[term_last]] = True
                if bug == "bootstrap_terminal":
                    nv = net.value(last)
                if bug == "no_bootstrap_timeouts":
                    nv = torch.zeros_like(nv)
                nv_used = nv
            else:
                DNd = DN
                nv_used = nv
            # GAE
            adv = torch.zeros(N, T)
            g = torch.zeros(N)
            rtg = torch.zeros(N, T)
            run_r = nv_used.clone()
            for t in reversed(range(T)):
                if st == "spinup":
                    at_end = t == n
                    vn = torch.where(at_end, nv_used, VV[:, t + 1] if t + 1 < T else nv_used)
                    dlt = R[:, t] + ga * vn - VV[:, t]
                    g = torch.where(M[:, t], dlt + ga * la * torch.where(at_end, 0.0, g), 0.0)
                    adv[:, t] = g
                    run_r = torch.where(M[:, t], R[:, t] + ga * torch.where(at_end, nv_used, run_r), run_r)
                    rtg[:, t] = run_r
                else:
                    vn = nv if t == T - 1 else VV[:, t + 1]
                    nt = 1 - DN[:, t].float()
                    if bug == "dones_off_by_one":
                        nt = 1 - (DN[:, t - 1].float() if t else torch.zeros(N))
                    if bug == "last_value_is_last_state" and t == T - 1:
                        vn = VV[:, t]
                    dlt = R[:, t] + ga * vn * nt - VV[:, t]
                    if bug == "value_flows_over_reset":
                        dlt = R[:, t] + ga * vn - VV[:, t]
                    g = dlt + ga * la * (1 if bug == "trace_over_reset" else nt) * g
                    if bug == "gamma_forgotten_in_trace":
                        g = (
                            dlt + la * nt * (g - dlt) / (ga * la * nt).clamp(min=1e-9)
                            if False
                            else dlt + (la * nt * ((g - dlt) / (ga * la * nt).clamp(min=1e-9)) if True else 0)
                        )
                    adv[:, t] = g
            ret = adv + VV if st != "spinup" else rtg
            if bug == "returns_without_values":
                ret = adv.clone()
            if bug == "rtg_undiscounted":
                rr = nv_used.clone()
                for t in reversed(range(T)):
                    rr = torch.where(M[:, t], R[:, t] + torch.where(t == n, nv_used, rr), rr)
                    ret[:, t] = rr
            if st == "spinup":
                x = adv[mask]
                adv = torch.where(mask, (adv - x.mean()) / x.std(correction=0), 0.0)
                if bug == "normalised_with_padding":
                    raw = torch.where(mask, adv * x.std(correction=0) + x.mean(), 0.0)
                    adv = (raw - raw.mean()) / raw.std(correction=0)
                if bug == "adv_abs_scale":
                    adv = torch.where(mask, adv * x.std(correction=0) / x.abs().mean() + 0 * adv, 0.0)
        for ep in range(c["epochs"]):
            idx = torch.randperm(N) if c["mb"] > 1 else torch.arange(N)
            for ix in idx.chunk(c["mb"]):
                step += 1
                m = mask[ix]
                d = net.dist(S[ix])
                lp = net.lp(d, A[ix])
                ent = net.ent(d)
                v = net.value(S[ix])
                a = adv[ix]
                if bug == "logp_summed_wrong" and c["gauss"]:
                    lp = d.log_prob(A[ix]).mean(-1)
                if st in ("cleanrl", "sb3"):
                    a = (a - a.mean()) / (a.std() + 1e-8)
                    if bug == "norm_per_env":
                        a = adv[ix]
                        a = (a - a.mean(1, keepdim=True)) / (a.std(1, keepdim=True) + 1e-8)
                    if bug == "norm_over_time_axis":
                        a = adv[ix]
                        a = (a - a.mean(0)) / (a.std(0) + 1e-8)
                rho = (lp - L[ix]).exp()
                tl = torch.max(-a * rho, -a * rho.clamp(1 - c["clip"], 1 + c["clip"]))
                if bug == "clip_min":
                    tl = torch.min(-a * rho, -a * rho.clamp(1 - c["clip"], 1 + c["clip"]))
                if bug == "clip_around_zero":
                    tl = torch.max(-a * rho, -a * rho.clamp(1 - c["clip"], 1.0))
                if bug == "spinup_min_adv_sign":
                    tl = -torch.min(rho * a, torch.where(a > 0, 1 - c["clip"], 1 + c["clip"]) * a)
                pg = mm(tl, m.float())
                el = mm(ent, m.float())
                rt = ret[ix]
                vo = VV[ix]
                if bug == "returns_of_other_envs":
                    rt = ret[: len(ix)]
                if st == "cleanrl":
                    vu = (v - rt) ** 2
                    vc = vo + (v - vo).clamp(-0.2, 0.2)
                    vl = 0.5 * torch.max(vu, (vc - rt) ** 2).mean()
                    if bug == "vclip_unclipped_dropped":
                        vl = 0.5 * ((vc - rt) ** 2).mean()
                else:
                    vl = mm((v - rt) ** 2, m.float())
                if bug == "value_targets_detached_wrong":
                    vl = mm((v.detach() - rt) ** 2, m.float()) + 0 * v.sum()
                if st == "spinup":
                    loss = pg
                else:
                    loss = pg - (-1 if bug == "entropy_sign" else 1) * c["ent"] * el + c["vf"] * vl
                if bug == "vf_coef_on_policy":
                    loss = c["vf"] * pg - c["ent"] * el + vl
                opt.zero_grad()
                dl = torch.autograd.grad(loss, lp, retain_graph=True)[0]
                tt = {}
                dv = torch.autograd.grad(vl if st == "spinup" else loss, v, retain_graph=True)[0]
                (loss + vl if st == "spinup" else loss).backward()
                if st != "spinup":
                    tt = dict(entropy=ent, entropy_loss=el, dlogp=dl, dvalues=dv, pg_loss=pg)
                else:
                    tt = dict(dvalues=dv)
                if st == "cleanrl":
                    tt["token_loss"] = tl
                sc = dict(lr=lr)
                if st == "cleanrl":
                    sc |= dict(clipfrac=((rho - 1).abs() > 0.2).float().mean().item())
                D(
                    step,
                    sc,
                    response_mask=m,
                    logp_new=lp,
                    logp_old=L[ix],
                    advantages=a,
                    values=vo,
                    values_new=v,
                    returns=rt,
                    token_rewards=torch.where(m, R[ix], 0.0),
                    dones=DNd[ix],
                    next_values=nv_used[ix],
                    loss=loss,
                    value_loss=vl,
                    sample_id=ix + 100 * it,
                    **tt,
                )
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
    return D


C1, C2, C3 = "h_cleanrl_vclip", "h_sb3_gauss_timeouts", "h_spinup_trajectories"
BUGS = dict(
    b_dones_off_by_one=(C1, "GAE uses the done flag of the step before: the recursion is cut one step late"),
    b_value_flows_over_reset=(C1, "the bootstrap value of the next episode's first state is not masked at episode ends"),
    b_trace_over_reset=(C1, "the λ-trace is not cut at episode ends: advantages leak from the next episode"),
    b_norm_per_env=(C1, "advantages are normalised per environment and not over the minibatch"),
    b_vclip_unclipped_dropped=(C1, "the value loss takes the clipped error alone, the maximum with the unclipped one is missing"),
    b_returns_of_other_envs=(C1, "value targets are those of the first environments, not of the minibatch's indices"),
    b_entropy_sign=(C1, "the entropy bonus is added to the loss: entropy is punished"),
    b_clip_min=(C2, "the minimum of the two negated surrogates is taken in place of the maximum: clipping is optimistic"),
    b_clip_around_zero=(C2, "the ratio is clipped to (1-0.2, 1) and not to (1-0.2, 1+0.2)"),
    b_logp_summed_wrong=(C2, "log-probs of the update are the mean over action dimensions, those of the rollout the sum"),
    b_last_value_is_last_state=(C2, "the recursion starts with V of the last state instead of the next one"),
    b_norm_over_time_axis=(C2, "advantages are normalised over environments at each step, axis 0, and not over all"),
    b_vf_coef_on_policy=(C2, "the value coefficient multiplies the policy term instead of the value term"),
    b_returns_without_values=(C2, "the value targets are the advantages, V is not added"),
    b_bootstrap_terminal=(C3, "trajectories that really ended are bootstrapped with V too"),
    b_normalised_with_padding=(C3, "advantages are normalised with the padding behind trajectories counted"),
    b_rtg_undiscounted=(C3, "the rewards-to-go that the critic learns are not discounted"),
    b_spinup_min_adv_sign=(C3, "min_adv has the signs of its clip bounds exchanged: (1-ε)A for A>0, (1+ε)A for A<0"),
    b_value_targets_detached_wrong=(C3, "the value is detached in the value loss: the critic gets no gradient"),
)
if __name__ == "__main__":
    main("l4_ppo_games", HEALTHY, BUGS, run)
