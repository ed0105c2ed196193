"""A student's PPO-RLHF loop: a shared trunk with a value head, KL in the token rewards, GAE, whitened advantages, value clip, entropy bonus. Dumps rewards, values, returns, advantages, log-probs, losses and the logged scalars; gradients (dlogp, dvalues) in half of the settings."""

import torch
from world_f import *


class AC(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm = LM()
        self.v = nn.Linear(V, 1)

    def forward(self, ids, am):
        return self.lm(ids, am)


D = dict(
    rows=24,
    T=26,
    lr=0.01,
    rollouts=2,
    epochs=2,
    minis=2,
    ga=1,
    gamma=1.0,
    lam=0.95,
    kl_coef=0.05,
    kl="k1",
    clip=0.2,
    vclip=0.2,
    vf=0.5,
    ent=0.01,
    vfactor=0.5,
    white=True,
    scope="global",
    ddof=0,
    weps=1e-8,
    temp=1.0,
    grads=True,
    eos_pen=None,
    rclip=None,
    bf16=False,
    seed=51,
)
H = dict(
    h_classic=dict(),
    h_lazy_gamma_ga=dict(gamma=0.99, lam=0.9, ga=2, grads=False, ddof=1, seed=52, vf=0.1, kl_coef=0.1, rows=32),
    h_minibatch_white_k3=dict(scope="minibatch", kl="k3", kl_coef=0.2, ent=0.0, vfactor=1.0, vf=0.25, seed=53, epochs=3, temp=0.8, vclip=0.1),
    h_nowhite_rclip_bf16=dict(white=False, rclip=0.4, lam=1.0, gamma=0.995, vclip=None, bf16=True, grads=True, seed=54, ent=0.02, rows=32),
)
B = dict(
    score_after_eos=("h_classic", "score is added one token after the last one, outside the mask"),
    bootstrap_wrong=("h_classic", "GAE uses V of the present token instead of the next one (delta = r + γV_t − V_t)"),
    lam_missing=("h_classic", "trace is discounted by γ alone, λ forgotten"),
    ret_whitened=("h_classic", "returns computed from whitened advantages"),
    ent_plus=("h_classic", "entropy is added to the loss: minimised"),
    vclip_min=("h_classic", "min of clipped and unclipped value errors in place of max"),
    vclip_around_return=("h_classic", "value is clipped around the return, not the old value"),
    approx_kl_sign=("h_classic", "logged approx_kl is the mean of new − old: the sign is wrong"),
    clipfrac_upper=("h_classic", "logged clipfrac counts ratio > 1 + clip only"),
    vf_coef_twice=("h_lazy_gamma_ga", "value loss is multiplied by vf_coef when computed and again in the total"),
    ga_sum=("h_lazy_gamma_ga", "losses of the micro-batches are not divided by the accumulation steps"),
    kl_ref_swap=("h_lazy_gamma_ga", "KL reward is −β(ref − old)"),
    white_by_variance=("h_lazy_gamma_ga", "advantages are divided by the variance"),
    adv_from_new_values=("h_lazy_gamma_ga", "second epoch recomputes advantages as returns − new values, not whitened"),
    k3_sign=("h_minibatch_white_k3", "k3 made of old − ref: exp(d) − 1 − d with d = old − ref"),
    white_rollout=("h_minibatch_white_k3", "advantages are whitened over all cells, padding zeros included"),
    v_pad_not_zero=("h_minibatch_white_k3", "values of padding are not zeroed and the recursion bootstraps from the first padding token"),
    temp_new=("h_minibatch_white_k3", "new log-probs and entropies without the temperature"),
    rclip_pos=("h_nowhite_rclip_bf16", "score is clipped from above only (min(score, 0.4)), the lower bound is lost"),
    pg_sum=("h_nowhite_rclip_bf16", "policy term is a sum over tokens divided by the rows, value and entropy are means over tokens"),
    ratio_one_side=("h_nowhite_rclip_bf16", "clip bounds used as clamp(ratio, clip, 1 + clip)"),
    value_grad_pg=("h_nowhite_rclip_bf16", "advantage in the loss is returns − values_new with gradient: policy term trains the value head"),
)


def run(c, s, bug):
    s = D | s
    g = torch.Generator().manual_seed(s["seed"])
    torch.manual_seed(s["seed"])
    net = AC()
    ref = copy_of(net.lm)
    opt = torch.optim.Adam(net.parameters(), lr=s["lr"], eps=1e-5)
    with torch.no_grad():
        for p in net.lm.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.03)
    N, T, temp = s["rows"], s["T"], s["temp"]
    step = 0

    def fwd(ids, am, t):
        with torch.autocast("cpu", torch.bfloat16, enabled=s["bf16"]):
            z = net(ids, am)
        z = z.float()[:, -T - 1 : -1]
        v = net.v(z)[..., 0]
        lp = (z / t).log_softmax(-1)
        return lp.gather(-1, ids[:, -T:, None])[..., 0], -(lp.exp() * lp).sum(-1), v

    for ro in range(s["rollouts"]):
        pid, pam = prompts(g, N, 8)
        r = sample(copy_of(net.lm, torch.bfloat16), pid, pam, T, g, temp)
        ids, am, m = r["input_ids"], r["attention_mask"], r["mask"]
        sc = (score(r) - 1.0) * 1.5
        with torch.no_grad():
            old, _, val = fwd(ids, am, temp)
            rl = logps(ref, ids, am, T, temp, s["bf16"])[0]
            if bug != "v_pad_not_zero":
                val = val * m
            d = old - rl
            kl = d if s["kl"] == "k1" else (torch.exp(d) - 1 - d if bug == "k3_sign" else torch.exp(-d) - 1 + d)
            rew = -s["kl_coef"] * kl * m
            if bug == "kl_ref_swap":
                rew = -rew
            last = (m.sum(1) - 1).long()
            x = sc
            if s["rclip"]:
                x = sc.clamp(max=s["rclip"]) if bug == "rclip_pos" else sc.clamp(-s["rclip"], s["rclip"])
            rew[torch.arange(N), (last + 1).clamp(max=T - 1) if bug == "score_after_eos" else last] += x
            lg, out = 0, []
            for t in reversed(range(T)):
                nv = val[:, t + 1] if t + 1 < T else torch.zeros(N)
                if bug == "bootstrap_wrong":
                    nv = val[:, t]
                dl = rew[:, t] + s["gamma"] * nv - val[:, t]
                lg = (dl + s["gamma"] * (1 if bug == "lam_missing" else s["lam"]) * lg) * m[:, t]
                out.append(lg)
            adv0 = torch.stack(out[::-1], 1)
            ret = adv0 + val

        def white(a, mm):
            if bug == "white_rollout":
                mm_ = torch.ones_like(mm)
            else:
                mm_ = mm
            mu = (a * mm_).sum() / mm_.sum()
            va = ((a - mu) ** 2 * mm_).sum() / (mm_.sum() - s["ddof"])
            return (a - mu) / (va if bug == "white_by_variance" else torch.sqrt(va + s["weps"]))

        adv = white(adv0, m) if s["white"] and s["scope"] == "global" else adv0
        if bug == "ret_whitened":
            ret = adv + val
        for ep in range(s["epochs"]):
            pm = torch.randperm(N, generator=g)
            for q0 in pm.chunk(s["minis"]):
                step += 1
                opt.zero_grad()
                advs = {}
                for j, q in enumerate(q0.chunk(s["ga"])):
                    mm = m[q]
                    lp, ent, v = fwd(ids[q], am[q], 1.0 if bug == "temp_new" else temp)
                    A = adv[q]
                    if s["white"] and s["scope"] == "minibatch":
                        A = white(A, mm)
                    if bug == "adv_from_new_values" and ep:
                        A = ret[q] - v.detach()
                    if bug == "value_grad_pg":
                        A = ret[q] - v
                    mean = lambda z: (z * mm).sum() / mm.sum()
                    rho = (lp - old[q]).exp()
                    cl = rho.clamp(s["clip"], 1 + s["clip"]) if bug == "ratio_one_side" else rho.clamp(1 - s["clip"], 1 + s["clip"])
                    tl = torch.max(-A * rho, -A * cl)
                    pg = (tl * mm).sum() / len(q) if bug == "pg_sum" else mean(tl)
                    e1 = (v - ret[q]) ** 2
                    e = e1
                    if s["vclip"]:
                        around = ret[q] if bug == "vclip_around_return" else val[q]
                        e2 = (around + (v - around).clamp(-s["vclip"], s["vclip"]) - ret[q]) ** 2
                        e = torch.min(e1, e2) if bug == "vclip_min" else torch.max(e1, e2)
                    vl = s["vfactor"] * mean(e) * (s["vf"] if bug == "vf_coef_twice" else 1)
                    el = mean(ent)
                    ga = 1 if bug == "ga_sum" else s["ga"]
                    loss = (pg + s["vf"] * vl - (-1 if bug == "ent_plus" else 1) * s["ent"] * el) / ga
                    t = dict(
                        response_mask=mm.bool(),
                        response_ids=r["response_ids"][q],
                        logp_new=lp,
                        logp_old=old[q],
                        logp_ref=rl[q],
                        scores=sc[q],
                        token_rewards=rew[q],
                        values=val[q],
                        values_new=v,
                        returns=ret[q],
                        advantages=A,
                        loss=loss,
                        sample_id=q + 1000 * ro,
                    )
                    if s["grads"]:
                        t["dlogp"], t["dvalues"] = torch.autograd.grad(loss, [lp, v], retain_graph=True)
                        t["token_loss"] = tl
                    t["entropy"] = ent
                    loss.backward()
                    with torch.no_grad():
                        kk = mean(lp - old[q]) if bug == "approx_kl_sign" else mean(old[q] - lp)
                        cf = mean((rho > 1 + s["clip"]).float()) if bug == "clipfrac_upper" else mean(((rho - 1).abs() > s["clip"]).float())
                    scal = dict(loss=loss.item(), policy_loss=pg.item(), value_loss=vl.item(), entropy=el.item(), approx_kl=kk.item(), clipfrac=cf.item())
                    o = {
                        "eos_token_id": EOS,
                        "adv.kind": "gae",
                        "gae.gamma": s["gamma"],
                        "gae.lambda": s["lam"],
                        "whiten.scope": s["scope"] if s["white"] else "none",
                        "kl.place": "token_reward",
                        "kl.kind": s["kl"],
                        "kl.beta": s["kl_coef"],
                        "kl.clamp_in": None,
                        "kl.clamp_out": None,
                        "score.index": "last_response",
                        "clip.low": s["clip"],
                        "clip.high": s["clip"],
                        "value.clip": s["vclip"],
                        "value.coef": s["vf"],
                        "value.factor": s["vfactor"],
                        "entropy.coef": s["ent"],
                        "agg.kind": "token",
                        "agg.denominator": "micro",
                        "agg.div_ga": True,
                        "logp.temperature": temp,
                        "metric.clip_frac": "outside",
                        "optim.epochs": s["epochs"],
                        "num_mini_batches": s["minis"],
                        "optim.lr": s["lr"],
                        "loss.kind": "ppo",
                        "rewards.whiten": "no",
                        "returns.before_whiten": True,
                        "gae.value_mask": "response",
                        "gae.truncated_bootstrap": "none",
                        "value.mask": "response",
                    }
                    if s["white"]:
                        o |= {
                            "whiten.mask": "response",
                            "whiten.ddof": s["ddof"],
                            "whiten.eps": s["weps"],
                            "whiten.eps_place": "inside_sqrt",
                            "whiten.shift_mean": True,
                        }
                    if s["rclip"]:
                        o |= {"reward.clip": "before_baseline", "reward.clip_range": [-s["rclip"], s["rclip"]]}
                    else:
                        o |= {"reward.clip": "none"}
                    c.write(
                        f"step_{step:02d}_{j}",
                        t,
                        dict(
                            framework="student-ppo",
                            algorithm="ppo",
                            step=step,
                            micro_batch=j,
                            micro_batches=s["ga"],
                            options=o,
                            scalars=scal,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        ),
                    )
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
    return []


if __name__ == "__main__":
    main("f5_rlhf", H, B, run)
