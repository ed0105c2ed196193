"""A student's RLHF-PPO loop: policy with value head, per-token KL in the reward, GAE, whitening, value clip, joint loss. No framework; options in plumbline's words.
Everything that the loop has is dumped, with the logged scalars; dlogp and dvalues where grads is on, token_loss not in the lazy setting."""

from world_c import *

BASE = dict(
    seed=1,
    n=32,
    T=26,
    P=6,
    minis=2,
    epochs=2,
    rollouts=2,
    lr=5e-3,
    gamma=1.0,
    lam=0.95,
    kl=0.1,
    klk="k1",
    low=0.2,
    high=0.2,
    vclip=0.2,
    vf=0.5,
    coef=0.5,
    ent=0.0,
    whiten=True,
    ddof=0,
    rw=False,
    temp=1.0,
    lazy=False,
    penalty=None,
    clipr=None,
)
HEALTHY = {
    "h_plain_whiten": dict(BASE, seed=51),
    "h_gamma_rewardwhiten_k3": dict(BASE, seed=52, gamma=0.99, rw=True, klk="k3", kl=0.05, ddof=1, coef=0.1, low=0.1, high=0.2, ent=0.01),
    "h_nowhiten_novclip_lazy": dict(BASE, seed=53, whiten=False, vclip=None, lazy=True, vf=1.0, coef=0.1, temp=0.7, epochs=3),
    "h_eospenalty_clip_4minis": dict(BASE, seed=54, penalty=1.0, clipr=(-0.7, 0.35), minis=4, epochs=2, rollouts=1, lam=0.9, gamma=0.98, vclip=0.1),
}


def whiten(x, m, c, bug, mean=True):
    mm = m.float() if bug != "whiten_all_cells" else torch.ones_like(x)
    mu = (x * mm).sum() / mm.sum()
    var = ((x - mu) ** 2 * mm).sum() / (mm.sum() - c["ddof"])
    y = (x - mu) * torch.rsqrt(var + 1e-8)
    if bug == "whiten_var_only" and mean:
        y = (x - mu) / (var + 1e-8)
    return y if mean else y + mu


def run(root, c, bug):
    T, P, n = c["T"], c["P"], c["n"]
    model = make(c["seed"], value=True, eos=0.3)
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.03)
    opt = torch.optim.Adam(model.parameters(), lr=c["lr"], eps=1e-5)
    gen = torch.Generator().manual_seed(c["seed"])
    step = 0
    for ro in range(c["rollouts"]):
        pid, patt = prompts(n, P, gen)
        ids, att, m, _ = generate(model, pid, patt, T, gen, c["temp"])
        resp = ids[:, P:]
        with torch.no_grad():
            old = logps(model, ids, att, T, c["temp"])
            refl = logps(ref, ids, att, T, c["temp"])
            val = model.values(ids, att)[:, -T - 1 : -1] * m
        if bug == "ref_off_by_one":
            refl = torch.cat([refl[:, 1:], refl[:, -1:]], 1)
        sc = reward(resp, m)[0] * 1.2 - 0.2
        ended = ((resp == EOS) & m.bool()).any(1)
        s = sc
        if c["penalty"]:
            bad = ~ended if bug != "penalty_inverted" else ended
            s = torch.where(bad, s - c["penalty"], s) if bug != "penalty_replaces" else torch.where(bad, torch.full_like(s, -c["penalty"]), s)
        if c["clipr"]:
            if bug == "clip_before_penalty":
                s = sc.clamp(*c["clipr"]) - (s != sc) * c["penalty"]
            elif bug == "clip_symmetric":
                s = s.clamp(-c["clipr"][1], c["clipr"][1])
            else:
                s = s.clamp(*c["clipr"])
        d = (old - refl) * m
        kl = d if c["klk"] == "k1" else torch.exp(-d) - 1 + d
        if bug == "kl_abs":
            kl = d.abs()
        beta = c["kl"] if bug != "kl_beta_sq" else c["kl"] * 0.5
        rew = -beta * kl
        last = m.sum(1) - 1
        if bug == "score_last_col":
            last = torch.full_like(last, T - 1)
        if bug == "score_everywhere":
            rew = rew + s[:, None] * m / m.sum(1, keepdim=True)
        else:
            rew = rew.scatter_add(1, last[:, None], s[:, None])
        if bug == "kl_overwritten":
            rew[torch.arange(n), last] = s
        if c["rw"]:
            rew = whiten(rew, m, c, bug, mean=bug == "rw_centres") * m
        adv, run_, nxt = torch.zeros(n, T), torch.zeros(n), torch.zeros(n)
        for t in reversed(range(T)):
            v1 = val[:, t + 1] if t + 1 < T else torch.zeros(n)
            if bug == "no_bootstrap":
                v1 = torch.zeros(n)
            if bug == "bootstrap_last":
                v1 = torch.where(last == t, val[:, t], v1)
            delta = rew[:, t] + c["gamma"] * v1 - val[:, t]
            run_ = delta + c["gamma"] * c["lam"] * run_
            if bug == "gae_gamma_sq":
                run_ = delta + c["gamma"] ** 2 * c["lam"] ** 2 * (run_ - delta) / max(c["gamma"] * c["lam"], 1e-9)
            if bug == "gae_no_mask":
                run_ = run_ + 0.05 * (1 - m[:, t])
            adv[:, t] = run_
        ret = adv + val
        if bug == "ret_montecarlo":
            ret = rew.flip(1).cumsum(1).flip(1)
        if c["whiten"]:
            adv = whiten(adv, m, c, bug)
        adv = adv * m
        rows = dict(
            ids=ids, att=att, m=m, old=old, ref=refl, val=val, adv=adv, ret=ret * m, rew=rew * m, kl=kl, sc=sc, sid=torch.arange(n) + 1000 * ro
        )
        for ep in range(c["epochs"]):
            perm = torch.randperm(n, generator=gen)
            for k in range(c["minis"]):
                x = {q: v[perm[k * (n // c["minis"]) : (k + 1) * (n // c["minis"])]] for q, v in rows.items()}
                if bug == "old_refreshed" and ep > 0:
                    with torch.no_grad():
                        x["old_used"] = logps(model, x["ids"], x["att"], T, c["temp"])
                update(root, c, bug, model, opt, x, step)
                step += 1


def update(root, c, bug, model, opt, x, step):
    T, m = c["T"], x["m"]
    mf = m.float()
    lp, ent = logps(model, x["ids"], x["att"], T, c["temp"] if bug != "temp_lost" else 1.0, True)
    v = model.values(x["ids"], x["att"])[:, -T - 1 : -1]
    old, adv = x.get("old_used", x["old"]), x["adv"]
    if bug == "adv_sign":
        adv = -adv
    r = (lp - old).exp()
    if bug == "ratio_upside_down":
        r = (old - lp).exp()
    hi = 1 + c["high"] if bug != "clip_high_lost" else 1 + c["low"]
    tl = torch.max(-adv * r, -adv * r.clamp(1 - c["low"], hi))
    mean = lambda z: (z * mf).sum() / mf.sum()
    if bug == "mean_rows":
        mean = lambda z: ((z * mf).sum(1) / mf.sum(1)).mean()
    if bug == "mean_cells":
        mean = lambda z: (z * mf).mean()
    pg = mean(tl)
    e1 = (v - x["ret"]) ** 2
    if c["vclip"]:
        around = x["val"]
        e2 = (around + (v - around).clamp(-c["vclip"], c["vclip"]) - x["ret"]) ** 2
        e = torch.max(e1, e2) if bug != "vclip_only" else e2
    else:
        e = e1
    if bug == "v_detached_target":
        e = (v - (adv + v.detach())) ** 2
    vl = c["vf"] * mean(e)
    if bug == "v_unmasked":
        vl = c["vf"] * e.mean()
    el = mean(ent)
    loss = pg + c["coef"] * vl - c["ent"] * el
    if bug == "coef_twice":
        loss = pg + c["coef"] ** 2 * vl - c["ent"] * el
    if bug == "value_not_trained":
        loss = pg + c["coef"] * vl.detach() - c["ent"] * el
    if bug == "entropy_plus":
        loss = pg + c["coef"] * vl + c["ent"] * el
    dl, dv = torch.autograd.grad(loss, (lp, v), retain_graph=True, materialize_grads=True)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    t = dict(
        response_mask=m,
        response_ids=x["ids"][:, -T:],
        input_ids=x["ids"],
        attention_mask=x["att"],
        logp_new=lp,
        logp_old=x["old"],
        logp_ref=x["ref"],
        values=x["val"],
        values_new=v,
        returns=x["ret"],
        advantages=x["adv"],
        scores=x["sc"],
        token_rewards=x["rew"],
        kl=x["kl"],
        loss=loss,
        pg_loss=pg,
        value_loss=vl,
        sample_id=x["sid"],
    )
    if not c["lazy"]:
        t |= dict(token_loss=tl, dlogp=dl, dvalues=dv, entropy=ent, entropy_loss=el)
    o = {
        "gae.gamma": c["gamma"],
        "gae.lambda": c["lam"],
        "kl.beta": c["kl"],
        "kl.kind": c["klk"],
        "kl.place": "token_reward",
        "clip.low": c["low"],
        "clip.high": c["high"],
        "value.factor": c["vf"],
        "value.clip": c["vclip"] or "none",
        "value.coef": c["coef"],
        "entropy.coef": c["ent"],
        "agg.kind": "token",
        "whiten.scope": "global" if c["whiten"] else "none",
        "num_mini_batches": c["minis"],
        "optim.epochs": c["epochs"],
        "logp.temperature": c["temp"],
        "eos_token_id": EOS,
        "adv.kind": "gae",
        "rewards.whiten": "shift_mean_false" if c["rw"] else "no",
    }
    if c["whiten"]:
        o |= {"whiten.ddof": c["ddof"], "whiten.eps": 1e-8, "whiten.eps_place": "inside_sqrt", "whiten.shift_mean": "true", "whiten.mask": "response"}
    if c["rw"]:
        o["rewards.whiten_scope"] = "global"
    if c["penalty"]:
        o |= {"eos.rule": "subtract", "eos.penalty": c["penalty"], "eos.test": "eos_id"}
    if c["clipr"]:
        o |= {"reward.clip": "before_baseline", "reward.clip_range": f"{c['clipr'][0]},{c['clipr'][1]}"}
    cf = mean((-adv * r.clamp(1 - c["low"], hi) > -adv * r).float())
    write(
        root,
        step + 1,
        0,
        0,
        t,
        dict(
            schema=2,
            algorithm="ppo",
            run="c5",
            world_size=1,
            micro_batches=1,
            options=o,
            token_loss_includes_kl=False,
            scalars_scope="optimizer_step",
            scalars={"loss": loss.item(), "policy_loss": pg.item(), "value_loss": vl.item(), "clip_frac": cf.item(), "lr": c["lr"]},
        ),
    )


A, B, C, D = HEALTHY
BUGS = {
    "b_whiten_all_cells": (A, "whiten_all_cells", "whitening counts padding"),
    "b_whiten_var_only": (A, "whiten_var_only", "advantages are divided by the variance"),
    "b_score_last_col": (A, "score_last_col", "the score stands in the last column, for short rows in the padding"),
    "b_kl_abs": (A, "kl_abs", "the KL penalty is |d| where k1 is declared"),
    "b_vclip_only": (A, "vclip_only", "the value loss is the clipped one alone, no maximum"),
    "b_no_bootstrap": (A, "no_bootstrap", "delta has no next value"),
    "b_ref_off_by_one": (A, "ref_off_by_one", "log-probs of the reference are shifted by a token"),
    "b_ratio_upside_down": (A, "ratio_upside_down", "the ratio is old over new"),
    "b_rw_centres": (B, "rw_centres", "whitened rewards lose their mean"),
    "b_kl_beta_half": (B, "kl_beta_sq", "the KL coefficient is halved in the code (a factor of k2 left over)"),
    "b_coef_twice": (B, "coef_twice", "the value coefficient is applied twice"),
    "b_clip_high_lost": (B, "clip_high_lost", "the upper bound takes the lower epsilon"),
    "b_entropy_plus": (B, "entropy_plus", "entropy is added to the loss"),
    "b_gae_gamma_sq": (B, "gae_gamma_sq", "gamma*lambda enters the recursion squared"),
    "b_temp_lost": (C, "temp_lost", "training log-probs are without the sampling temperature"),
    "b_v_detached_target": (C, "v_detached_target", "the value target is the advantage plus the present value, detached"),
    "b_v_unmasked": (C, "v_unmasked", "the value loss is a mean over all cells"),
    "b_adv_sign": (C, "adv_sign", "the advantage has the wrong sign in the loss"),
    "b_mean_cells": (C, "mean_cells", "means are over all cells"),
    "b_old_refreshed": (C, "old_refreshed", "old log-probs are recomputed before every later update, so that the ratio is 1"),
    "b_score_everywhere": (C, "score_everywhere", "the score is spread over the tokens of the response"),
    "b_penalty_inverted": (D, "penalty_inverted", "responses that end with EOS are penalised"),
    "b_penalty_replaces": (D, "penalty_replaces", "the penalty replaces the score though it is to be subtracted"),
    "b_clip_before_penalty": (D, "clip_before_penalty", "the score is clipped before the penalty"),
    "b_kl_overwritten": (D, "kl_overwritten", "the score overwrites the KL at the last token"),
    "b_bootstrap_last": (D, "bootstrap_last", "the last token bootstraps with its own value though the episode ended"),
    "b_ret_montecarlo": (D, "ret_montecarlo", "returns are undiscounted sums of rewards, not A + V"),
    "b_mean_rows": (D, "mean_rows", "losses are means over rows of means over tokens"),
    "b_value_not_trained": (D, "value_not_trained", "the value loss is detached in the sum: the head gets no gradient"),
}
if __name__ == "__main__":
    main("c5_ppo", run, HEALTHY, BUGS)
