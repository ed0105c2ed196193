"""A GRPO loop from a blog post. Lazy dump: logp_new, logp_old, mask, rewards, advantages, group ids, loss (and logp_ref, kl where there is a KL term). No framework named; options in plumbline's names, as far as the author has them as variables."""

from world_b import *

BASE = dict(
    seed=41,
    groups=6,
    n=6,
    P=5,
    T=24,
    minis=1,
    epochs=3,
    rollouts=2,
    lr=6e-3,
    temp=1.0,
    beta=0.0,
    kl="k3",
    eps=0.2,
    eps_hi=None,
    scale="group_std",
    ddof=1,
    aeps=1e-4,
    agg="seq",
    reward="frac",
    half=False,
    ga=1,
    kind="ppo",
    const=None,
)
H = dict(
    h_vanilla=dict(BASE),
    h_kl=dict(BASE, seed=42, beta=0.04, agg="token", minis=2, ddof=0, aeps=1e-8),
    h_drgrpo=dict(BASE, seed=43, scale="none", agg="const", const=24, groups=4, n=8),
    h_clip_higher=dict(BASE, seed=44, eps=0.1, eps_hi=0.18, agg="token", epochs=4, reward="sum", lr=5e-3, T=40),
    h_bf16=dict(BASE, seed=45, half=True, epochs=2, minis=2, beta=0.02, kl="k1", lr=8e-3),
    h_loo=dict(BASE, seed=46, scale="loo", agg="token", n=4, groups=8, reward="frac", temp=0.9, ga=2, minis=1, epochs=2, rollouts=3),
)
B = {
    "adv_batch": ("h_vanilla", "mean and standard deviation are those of the whole batch, groups are ignored"),
    "adv_std_only_mean_zero": ("h_kl", "rewards are divided by σ before the mean of the undivided rewards is subtracted"),
    "view_transposed": (
        "h_vanilla",
        "rewards are viewed as (n, groups) and normalised down the columns although the groups are contiguous: each row is compared with answers to other prompts",
    ),
    "ddof_swapped": ("h_kl", "torch.std's default (n−1) where the author declares n"),
    "loo_with_self": ("h_loo", "the leave-one-out baseline includes the own reward"),
    "adv_abs": ("h_drgrpo", "negative advantages are clamped to zero although nothing of the kind is declared"),
    "sign_loss": ("h_vanilla", "the loss has the sign of the objective: it is maximised the wrong way"),
    "max_of_objective": ("h_vanilla", "max in place of min of the two objectives"),
    "clip_log": ("h_clip_higher", "the log-ratio is clamped to ±ε/2 before exp where the ratio should be clamped to 1 ± ε"),
    "clip_high_lost": ("h_clip_higher", "the upper bound is 1 + ε of the lower bound"),
    "clip_only": ("h_clip_higher", "only the clipped objective is taken, no min"),
    "ratio_inverse": ("h_kl", "ratio is exp(old − new)"),
    "old_is_new": ("h_clip_higher", "the old log-probs are those of the current forward, detached, although stored ones are dumped"),
    "mask_prompt_shift": ("h_vanilla", "the loss mask is one column too far to the right: first token lost, one padding token in"),
    "eos_masked": ("h_drgrpo", "the EOS is left out of the sum"),
    "mean_padded": ("h_vanilla", "(loss * mask).mean(1): padding counts"),
    "mean_all": ("h_kl", "loss.mean() with masked cells set to 0: padding counts in the token mean"),
    "row_then_token": ("h_clip_higher", "a mean of row means where the author declares a token mean"),
    "const_twice": ("h_drgrpo", "the constant divides the sum over rows that had been divided by the row's own length already"),
    "kl_no_beta": ("h_kl", "the KL term enters without β"),
    "kl_minus": ("h_kl", "the KL term is subtracted"),
    "kl_k3_dir": ("h_kl", "k3 with new − ref in the exponent"),
    "temp_forgotten": ("h_loo", "the update's log-probs are not divided by the temperature of the rollout"),
    "ga_undivided": ("h_loo", "each micro-batch's loss is multiplied by the accumulation steps in place of a division"),
    "adv_quantised": ("h_bf16", "advantages are rounded to steps of 1/4 where the pipeline packs them"),
    "rewards_next_batch": ("h_bf16", "in the second rollout the rewards of the first are reused (list not cleared)"),
}


def run(out, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = copy.deepcopy(m)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"])
    G, n, P, T = c["groups"], c["n"], c["P"], c["T"]
    step, stale = 0, None
    for it in range(c["rollouts"]):
        pids, patt, _ = prompts(G, P, g)
        ids, att = pids.repeat_interleave(n, 0), patt.repeat_interleave(n, 0)
        resp, mask, _ = sample(m, ids, att, T, c["temp"], g)
        full, fatt = torch.cat([ids, resp], 1), torch.cat([att, mask], 1)
        cast = (lambda x: x.bfloat16().float()) if c["half"] else (lambda x: x)
        with torch.no_grad():
            old, refl = logps(m, full, fatt, P, c["temp"]), logps(ref, full, fatt, P, c["temp"])
        r = reward(resp, mask, c["reward"])
        used = r
        if bug == "rewards_next_batch" and stale is not None:
            used = stale
        stale = r
        R = used.view(n, G) if bug == "view_transposed" else used.view(G, n)
        mean = R.mean(1, keepdim=True)
        if c["scale"] == "group_std":
            sd = R.std(1, keepdim=True, unbiased=(c["ddof"] == 1) != (bug == "ddof_swapped")) if n > 1 else 1
            A = (R - mean) / (sd + c["aeps"])
            if bug == "adv_batch":
                A = (R - R.mean()) / (R.std() + c["aeps"])
            if bug == "view_transposed":
                A = (R - R.mean(0, keepdim=True)) / (R.std(0, keepdim=True) + c["aeps"])
            if bug == "adv_std_only_mean_zero":
                A = R / (sd + c["aeps"]) - mean
        elif c["scale"] == "loo":
            A = R - (mean if bug == "loo_with_self" else (R.sum(1, keepdim=True) - R) / (n - 1))
        else:
            A = R - mean
        A = A.reshape(-1)
        if bug == "adv_abs":
            A = A.clamp(min=0)
        if bug == "adv_quantised":
            A = (A * 4).round() / 4
        N = G * n
        per = N // c["minis"]
        mi = per // c["ga"]
        for ep in range(c["epochs"]):
            for k in range(c["minis"]):
                step += 1
                opt.zero_grad()
                for q in range(c["ga"]):
                    i = torch.arange(k * per + q * mi, k * per + (q + 1) * mi)
                    mk = mask[i].float()
                    lm = mk
                    if bug == "mask_prompt_shift":
                        lm = torch.cat([torch.zeros(len(i), 1), mk[:, :-1]], 1)
                    if bug == "eos_masked":
                        lm = mk * (resp[i] != EOS)
                    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=c["half"]):
                        lp = logps(m, full[i], fatt[i], P, 1.0 if bug == "temp_forgotten" else c["temp"])
                    o = old[i]
                    if bug == "old_is_new":
                        o = lp.detach()
                    lr_ = lp - o
                    if bug == "ratio_inverse":
                        lr_ = -lr_
                    ratio = lr_.exp()
                    a = A[i][:, None]
                    hi = c["eps"] if c["eps_hi"] is None or bug == "clip_high_lost" else c["eps_hi"]
                    cl = ratio.clamp(1 - c["eps"], 1 + hi)
                    if bug == "clip_log":
                        cl = lr_.clamp(-c["eps"] / 2, hi / 2).exp()
                    obj = (torch.max if bug == "max_of_objective" else torch.min)(ratio * a, cl * a)
                    if bug == "clip_only":
                        obj = cl * a
                    l = obj if bug == "sign_loss" else -obj
                    t = {}
                    if c["beta"]:
                        d = refl[i] - lp
                        if bug == "kl_k3_dir":
                            d = -d
                        kl = d.exp() - d - 1 if c["kl"] == "k3" else -d
                        l = l + (-c["beta"] if bug == "kl_minus" else 1.0 if bug == "kl_no_beta" else c["beta"]) * kl
                        t |= dict(logp_ref=refl[i], kl=kl)
                    agg = "seq" if bug == "row_then_token" else c["agg"]
                    if bug == "mean_padded":
                        loss = (l * lm).mean(1).mean()
                    elif bug == "mean_all":
                        loss = (l * lm).mean()
                    elif agg == "seq":
                        loss = ((l * lm).sum(1) / lm.sum(1)).mean()
                    elif agg == "token":
                        loss = (l * lm).sum() / lm.sum()
                    else:
                        loss = ((l * lm).sum(1) / c["const"]).mean()
                    if bug == "const_twice":
                        loss = ((l * lm).sum(1) / lm.sum(1) / c["const"]).mean()
                    loss = loss * c["ga"] if bug == "ga_undivided" else loss / c["ga"]
                    loss.backward()
                    t |= dict(response_mask=mask[i], logp_new=lp, logp_old=old[i], scores=r[i], advantages=A[i], group_id=i // n + 50 * it, loss=loss)
                    opts = {
                        "clip.low": c["eps"],
                        "clip.high": c["eps_hi"] or c["eps"],
                        "kl.beta": c["beta"],
                        "adv.kind": "group",
                        "optim.epochs": c["epochs"],
                        "num_mini_batches": c["minis"],
                        "adv.center": "mean",
                        "adv.scale": "group_std" if c["scale"] == "group_std" else "none",
                        "agg.div_ga": True,
                        "agg.kind": dict(seq="seq_mean_token_mean", token="token", const="seq_sum_const")[c["agg"]],
                    }
                    if c["scale"] == "loo":
                        opts["adv.center"] = "loo"
                    if c["scale"] == "group_std":
                        opts |= {"adv.ddof": c["ddof"], "adv.eps": c["aeps"]}
                    if c["beta"]:
                        opts |= {"kl.kind": c["kl"], "kl.place": "loss"}
                    if c["const"]:
                        opts |= {"loss_denominator": c["const"], "agg.div_batch": True}
                    opts["agg.denominator"] = "micro"
                    write(
                        out,
                        f"it{step:02d}_{q}",
                        t,
                        algorithm="grpo",
                        run=f"blog-{c['seed']}",
                        step=step,
                        micro_batch=q,
                        micro_batches=c["ga"],
                        options=opts,
                        scalars={"loss": loss.item(), "reward": r.mean().item()},
                        scalars_scope="micro_batch",
                    )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("b5_blog", H, B, run)
