"""A single-file trainer of nobody's: group baseline, clip, k3 KL in the loss, gradient accumulation, bf16 engine. Lazy dump: log-probs, mask, scores, groups, advantages, loss; few options said."""

from world_h import *


def baseline(s, gid, kind, bug):
    a = torch.zeros_like(s)
    for g in gid.unique():
        i = (gid == g).nonzero()[:, 0]
        x = s[i]
        n = len(i)
        if kind == "z":
            sd = x.std(unbiased=True) + 1e-6
            if bug == "b_var":
                sd = x.var(unbiased=True) + 1e-6
            a[i] = (x - x.mean()) / sd
            if bug == "b_median":
                a[i] = (x - x.median()) / sd
            if bug == "b_no_center":
                a[i] = x / sd
        elif kind == "loo":
            a[i] = x - (x.sum() - x) / (n - 1)
            if bug == "b_loo_n":
                a[i] = x - (x.sum() - x) / n
        else:
            a[i] = x - x.mean()
            if bug == "b_global_mean":
                a[i] = x - s.mean()
            if bug == "b_max_base":
                a[i] = x - x.max()
    return a


def go(f, c, bug):
    N, G, T, P, GA = c["N"], c["G"], c["T"], 4, c["ga"]
    pi = LM()
    ref = copy.deepcopy(pi)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(torch.randn_like(p) * 0.03)
    opt = torch.optim.Adam(pi.parameters(), lr=c["lr"])
    step = 0
    nb = N // c["mbs"]
    mb = nb // GA
    for it in range(3):
        q = prompts(N // G, P, G)
        r, gen = generate(bf(pi), q, T, c["temp"])
        m = rmask(r)
        gid = torch.arange(N) // G + it * 100
        if bug == "b_mask_pad_first":
            m = m | torch.cat([torch.zeros(N, 1, dtype=torch.bool), m[:, :-1]], 1)
        if bug == "b_mask_all":
            m = torch.ones_like(m)
        s = score(q, r, rmask(r))
        adv = baseline(s, gid, c["base"], bug)
        if bug == "b_adv_clip0":
            adv = adv.clamp(min=0)
        if bug == "b_adv_neg":
            adv = -adv
        old = gen if c["old_engine"] else lps(pi, q, r, c["temp"], False)[0]
        if bug == "b_old_before":
            old = lps(ref, q, r, c["temp"], False)[0]
        if bug == "b_old_shift":
            old = torch.cat([old[:, 1:], old[:, -1:]], 1)
        rl = lps(ref, q, r, 1.0 if bug == "b_ref_t" else c["temp"], False)[0]
        for ep in range(c["ep"]):
            pm = torch.randperm(N)
            for b in range(c["mbs"]):
                step += 1
                opt.zero_grad()
                D = []
                for k in range(GA):
                    i = pm[b * nb + k * mb : b * nb + (k + 1) * mb]
                    mi = m[i].float()
                    lp = lps(pi, q[i], r[i], c["temp"])[0]
                    A = adv[i][:, None]
                    if bug == "b_adv_row":
                        A = adv[b * nb + k * mb : b * nb + (k + 1) * mb][:, None]
                    lr = lp - old[i]
                    if bug == "b_ratio_inv":
                        lr = -lr
                    x = lr.exp()
                    y = x.clamp(1 - c["lo"], 1 + c["hi"])
                    tl = -torch.minimum(x * A, y * A)
                    if bug == "b_only_clipped":
                        tl = -y * A
                    if bug == "b_clip_log":
                        tl = -torch.minimum(x * A, lr.clamp(-c["lo"] * 2, c["hi"] * 2).exp() * A)
                    if c["beta"]:
                        d = rl[i] - lp
                        kl = d.exp() - 1 - d
                        if bug == "b_kl_k1":
                            kl = -d
                        if bug == "b_kl_minus":
                            kl = -kl
                        if bug == "b_kl_from_old":
                            d2 = rl[i] - old[i]
                            kl = d2.exp() - 1 - d2
                        tl = tl + c["beta"] * kl
                    if c["agg"] == "token":
                        loss = (tl * mi).sum() / mi.sum() / GA
                    elif c["agg"] == "seq":
                        loss = ((tl * mi).sum(1) / mi.sum(1)).mean() / GA
                    else:
                        loss = (tl * mi).sum() / (len(i) * T) / GA
                    if bug == "b_plain_mean":
                        loss = (tl * mi).mean() / GA
                    if bug == "b_ga_twice":
                        loss = loss / GA
                    if bug == "b_sum_rows":
                        loss = ((tl * mi).sum(1) / mi.sum()).mean() / GA
                    loss.backward()
                    D.append(
                        (
                            step,
                            0,
                            k,
                            dict(
                                logp_new=lp,
                                logp_old=old[i],
                                logp_ref=rl[i] if c["beta"] else None,
                                response_mask=m[i],
                                response_ids=r[i],
                                scores=s[i],
                                group_id=gid[i],
                                advantages=adv[i] if bug != "b_adv_row" else A[:, 0],
                                loss=loss,
                            ),
                            dict(
                                schema=1,
                                framework="mini-rl",
                                algorithm="grpo",
                                run=f.split("/")[-1],
                                step=step,
                                micro_batch=k,
                                micro_batches=GA,
                                options={**c["say"], "num_mini_batches": c["mbs"], "eos_token_id": EOS},
                            ),
                        )
                    )
                for d in D:
                    put(f, *d)
                opt.step()


base = dict(N=32, G=8, T=28, ga=2, mbs=1, ep=3, lr=5e-3, lo=0.2, hi=0.2, beta=0.05, base="z", agg="token", temp=1.0, old_engine=False, say={})
H = dict(
    h_plain=(
        dict(
            base,
            seed=41,
            say={"adv.kind": "group", "adv.center": "mean", "clip.low": 0.2, "clip.high": 0.2, "kl.beta": 0.05, "kl.kind": "k3", "kl.place": "loss"},
        ),
        ["--profile", "none"],
        "z-scored groups, token mean, k3, accumulation of two",
    ),
    h_loo=(
        dict(base, seed=42, base="loo", agg="seq", old_engine=True, ga=1, mbs=2, ep=2, beta=0.0, temp=0.8, say={"clip.low": 0.2, "clip.high": 0.2}),
        ["--profile", "none"],
        "leave-one-out baseline, means of sequence means, the engine's own log-probs as old",
    ),
    h_drlike=(
        dict(
            base,
            seed=43,
            base="mean",
            agg="const",
            hi=0.3,
            beta=0.02,
            N=48,
            G=6,
            ep=2,
            mbs=2,
            lr=8e-3,
            say={
                "adv.kind": "group",
                "adv.center": "mean",
                "clip.low": 0.2,
                "clip.high": 0.3,
                "kl.beta": 0.02,
                "kl.kind": "k3",
                "kl.place": "loss",
                "loss_denominator": 28,
            },
        ),
        ["--profile", "none", "--set", "agg.kind=seq_sum_const"],
        "mean baseline without std, sums over a constant length",
    ),
)
B = dict(
    b_var=("h_plain", "divided by the variance"),
    b_no_center=("h_plain", "baseline never subtracted, only divided by std"),
    b_median=("h_plain", "median instead of mean as baseline"),
    b_loo_n=("h_loo", "sum of the others divided by n, not n-1"),
    b_global_mean=("h_drlike", "baseline is the mean of the whole batch"),
    b_max_base=("h_drlike", "baseline is the group's best reward"),
    b_mask_pad_first=("h_plain", "mask holds the first padding token behind EOS"),
    b_mask_all=("h_drlike", "mask of ones: padding is trained"),
    b_adv_neg=("h_loo", "advantage with the wrong sign"),
    b_adv_clip0=("h_drlike", "negative advantages cut to 0"),
    b_old_before=("h_plain", "old log-probs are the reference's"),
    b_old_shift=("h_loo", "old log-probs shifted by a token"),
    b_ref_t=("h_drlike", "the reference at another temperature") if 0 else ("h_loo", "x"),
    b_adv_row=("h_loo", "advantages not permuted with the rows"),
    b_ratio_inv=("h_plain", "ratio old/new"),
    b_only_clipped=("h_drlike", "clipped surrogate alone, no min"),
    b_clip_log=("h_loo", "log-ratio is clipped, at twice the bound"),
    b_kl_k1=("h_plain", "k1 where k3 is declared"),
    b_kl_minus=("h_drlike", "KL term is subtracted"),
    b_kl_from_old=("h_plain", "KL of the old log-probs: constant, no gradient"),
    b_plain_mean=("h_loo", "mean over padding too"),
    b_ga_twice=("h_plain", "divided by the accumulation steps twice"),
    b_sum_rows=("h_drlike", "rows' sums over all tokens, then a mean: B times too small"),
)
del B["b_ref_t"]
main("h4_nobody", H, B, go)
