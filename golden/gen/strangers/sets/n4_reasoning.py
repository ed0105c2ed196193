"""The trainer of a reasoning paper's repository; lazy dump: log-probs, mask, advantages, scores, groups, loss, is_weights; few declarations."""

from world_n import *


def correct(b, seed, n_prompts, G, disc):
    g = torch.Generator().manual_seed(seed + 9)
    m = b["cmask"].float()
    q = ((b["resp"] % 3 == 0).float() * m).sum(1) / m.sum(1)
    r = (q + 0.12 * torch.randn(len(q), generator=g) > 0.36).float() * 2 - 1 if disc else q * 2 + 0.2 * torch.randn(len(q), generator=g)
    return r


def roll(c, bug, engine, policy, seed):
    G, T = c["G"], c["T"]
    b = sample(engine, c["prompts"], G, T, seed, c["bf16"])
    sc = correct(b, seed, c["prompts"], G, c["disc"])
    if bug == "score_of_next":
        sc = sc.roll(1)
    if c["overlong"]:
        L, buf = T, c["overlong"]
        n = b["cmask"].sum(1).float()
        pen = ((L - buf) - n) / buf
        sc = sc + pen.clamp(-1, 0)
    scores = sc
    g = sc.view(-1, G)
    keep = torch.ones(len(sc), dtype=torch.bool)
    if c["dynamic"]:
        k = g.std(1) > 1e-6
        if not k.any():
            k[:] = True
        keep = k.repeat_interleave(G)
    mu = g.mean(1, keepdim=True)
    if bug == "median_baseline":
        mu = g.median(1, keepdim=True).values
    if bug == "max_baseline":
        mu = g.max(1, keepdim=True).values
    a = g - mu
    if c["std"]:
        sd = g.std(1, keepdim=True)
        if bug == "var_for_std":
            sd = sd**2
        elif bug == "std_axis":
            sd = g.std(0, keepdim=True)
        a = a / (sd + 1e-6)
    adv = a.reshape(-1)
    if bug == "adv_abs_scale":
        adv = adv * b["cmask"].sum(1).float() / b["cmask"].sum(1).float().mean()
    if bug == "mask_drops_first":
        b["mask"][:, 0] = False
    if bug == "mask_past_eos":
        n = b["cmask"].sum(1)
        i = n.clamp(max=T - 1)
        b["mask"][torch.arange(len(n)), i] = True
    with torch.no_grad():
        old, _ = logps(policy, b["ids"], b["att"], T)
    if bug == "old_shifted":
        old = old.roll(1, 1)
    b.update(old=old, scores=scores, adv=adv, group=b["group"] + 1000 * seed, idx=torch.arange(len(adv)) + 1000 * seed)
    return {k: v[keep] for k, v in b.items()}


def run(out, name, c, bug):
    policy = make(c["seed"], eosbias=c.get("eosbias", 0.6))
    opt = torch.optim.AdamW(policy.parameters(), lr=c["lr"])
    prev = copy.deepcopy(policy)
    stale0 = copy.deepcopy(policy)
    step = 0
    T = c["T"]
    for ro in range(c.get("rollouts", 2)):
        eng = prev if c["async_"] else (stale0 if bug == "engine_never_synced" else policy)
        b = roll(c, bug, eng, policy, c["seed"] * 10 + ro)
        prev = copy.deepcopy(policy)
        B = len(b["adv"])
        for ep in range(c["epochs"]):
            perm = torch.randperm(B, generator=torch.Generator().manual_seed(ro * 10 + ep))
            for mini in perm.chunk(c["minis"]):
                step += 1
                opt.zero_grad()
                fl = []
                mbs = mini.chunk(c["micros"])
                ntok = b["mask"][mini].sum().float()
                nrow = len(mini)
                for j, ix in enumerate(mbs):
                    x = {k: v[ix] for k, v in b.items()}
                    m = x["mask"].float()
                    lp, ent = logps(policy, x["ids"], x["att"], T)
                    lp.retain_grad()
                    A = x["adv"][:, None]
                    lo, hi = c["lo"], c["hi"]
                    old = x["old"]
                    if bug == "old_is_engine":
                        old = x["logp_gen"]
                    lr_ = lp - old
                    w = None
                    if c["tis"]:
                        lw = x["old"] - x["logp_gen"]
                        if bug == "tis_new":
                            lw = (lp - x["logp_gen"]).detach()
                        if bug == "tis_inverse":
                            lw = -lw
                        w = (lw * m).exp().clamp(max=c["tis"])
                        if bug == "tis_log_not_exp":
                            w = (1 + lw * m).clamp(max=c["tis"]) * 0 + (lw * m).clamp(max=c["tis"]) + 0
                        if bug == "tis_min_for_max":
                            w = (lw * m).exp().clamp(min=1 / c["tis"])
                    if c["kind"] == "gspo":
                        den = m.sum(1) if bug != "gspo_width" else torch.full_like(m.sum(1), T)
                        s = (lr_ * m).sum(1) / den
                        if bug == "gspo_arith":
                            s = ((lr_.exp() * m).sum(1) / m.sum(1)).log()
                        rt = s.exp()[:, None].expand_as(lp)
                    else:
                        rt = lr_.exp()
                    if c["kind"] == "cispo":
                        cl = rt.clamp(1 - lo, 1 + hi)
                        if bug != "cispo_not_detached":
                            cl = cl.detach()
                        tl = -cl * A * lp
                        if bug == "cispo_prob":
                            tl = -cl * A * lp.exp()
                        if bug == "cispo_hard_drop":
                            tl = tl * ((rt >= 1 - lo) & (rt <= 1 + hi)).float() * 1.0
                        if bug == "cispo_no_logp_sign":
                            tl = tl * torch.sign(A)
                    else:
                        r2 = rt.clamp(1 - lo, 1 + hi)
                        if bug == "clip_low_high_swapped":
                            r2 = rt.clamp(1 - hi, 1 + lo)
                        tl = -torch.min(rt * A, r2 * A)
                        if bug == "clip_by_max":
                            tl = -torch.where(A > 0, torch.max(rt, r2) * A, torch.min(rt, r2) * A)
                    if w is not None:
                        tl = tl * w
                        if bug == "tis_twice":
                            tl = tl * w
                    if c["agg"] == "token":
                        d = ntok
                        if bug == "micro_denominator":
                            d = m.sum() * len(mbs)
                        if bug == "denominator_all_rows":
                            d = b["mask"].sum().float()
                        loss = (tl * m).sum() / d
                        if bug == "micros_twice":
                            loss = loss / len(mbs)
                        if bug == "sum_unmasked":
                            loss = tl.sum() / d
                    elif c["agg"] == "const":
                        loss = (tl * m).sum() / (nrow * T)
                        if bug == "longest_not_const":
                            loss = (tl * m).sum() / (nrow * m.sum(1).max())
                        if bug == "const_per_row_len":
                            loss = ((tl * m).sum(1) / m.sum(1)).sum() / (nrow * T)
                    else:
                        loss = ((tl * m).sum(1) / m.sum(1)).sum() / nrow
                        if bug == "seq_sum":
                            loss = ((tl * m).sum(1) / m.sum(1).max()).sum() / nrow
                    loss.backward()
                    fl.append(
                        (
                            j,
                            dict(
                                response_mask=x["mask"],
                                logp_new=lp,
                                logp_old=x["old"],
                                logp_gen=x["logp_gen"] if c["tis"] or c["async_"] else None,
                                advantages=x["adv"],
                                scores=x["scores"],
                                group_id=x["group"],
                                sample_id=x["idx"],
                                loss=loss,
                                is_weights=w,
                            ),
                        )
                    )
                opt.step()
                for j, t in fl:
                    write(
                        out,
                        name,
                        step,
                        0,
                        j,
                        t,
                        dict(
                            framework="reasoner",
                            algorithm="grpo",
                            world_size=1,
                            micro_batches=len(mbs),
                            options=dict(c["opts"], num_mini_batches=c["minis"]),
                            scalars={"lr": c["lr"]},
                            scalars_scope="optimizer_step",
                        ),
                    )


base = dict(
    bf16=False, disc=False, overlong=0, dynamic=False, std=True, async_=False, epochs=1, minis=2, micros=2, tis=0, lo=0.2, hi=0.2, kind="ppo", agg="token"
)
H = {
    "h_dapo_tis_overlong": dict(
        base,
        seed=21,
        prompts=8,
        G=4,
        T=32,
        bf16=True,
        disc=True,
        overlong=12,
        dynamic=True,
        epochs=2,
        tis=1.01,
        lo=0.2,
        hi=0.28,
        lr=4e-3,
        opts={"clip.low": 0.2, "clip.high": 0.28, "tis.high": 1.01},
        about="DAPO: clip-higher, overlong penalty in the scores, dynamic sampling, token loss over the global batch, truncated weights of a bfloat16 engine",
    ),
    "h_drgrpo_async": dict(
        base,
        seed=22,
        prompts=6,
        G=6,
        T=24,
        std=False,
        async_=True,
        rollouts=3,
        epochs=2,
        tis=2.0,
        agg="const",
        lr=2.5e-3,
        opts={"clip.low": 0.2, "clip.high": 0.2, "one_step_off": True, "max_completion_length": 24, "agg.kind": "seq_sum_const", "loss_denominator": 24},
        about="Dr. GRPO, constant divisor, one step off, declared so",
    ),
    "h_cispo": dict(
        base,
        seed=23,
        prompts=6,
        G=8,
        T=40,
        epochs=3,
        minis=1,
        micros=3,
        kind="cispo",
        lo=0.5,
        hi=0.2,
        lr=5e-3,
        eosbias=0.2,
        opts={"loss.kind": "cispo", "clip.high": 0.2, "clip.low": 0.5},
        about="CISPO, three epochs, token mean over three micro-batches",
    ),
    "h_gspo": dict(
        base,
        seed=24,
        prompts=5,
        G=6,
        T=30,
        epochs=2,
        minis=2,
        micros=1,
        kind="gspo",
        lo=0.02,
        hi=0.03,
        agg="seq",
        lr=2e-3,
        opts={"clip.low": 0.02, "clip.high": 0.03},
        about="GSPO, sequence ratio, mean over rows",
    ),
}
h1, h2, h3, h4 = H
B = {
    "b_micro_denominator": (
        h1,
        "each micro-batch is divided by its own tokens (times the micro-batches), not by the global count",
        "TRL bnpo / verl token-mean per micro-batch computes this",
    ),
    "b_micros_twice": (h1, "the globally normalised loss is divided by the accumulation steps once more", ""),
    "b_tis_inverse": (h1, "engine weights are exp(gen-old)", ""),
    "b_tis_twice": (h1, "the truncated weights multiply the token loss twice", ""),
    "b_tis_min_for_max": (h1, "the weights are bounded from below by 1/C, not truncated from above by C", ""),
    "b_sum_unmasked": (h1, "the sum of token losses runs over padding", ""),
    "b_mask_past_eos": (h1, "the mask takes in one padded column after EOS", ""),
    "b_clip_low_high_swapped": (h1, "clip bounds swapped: clip-lower in place of clip-higher", "clip.low=.28, clip.high=.2"),
    "b_max_baseline": (h2, "the group's baseline is its maximum: no response is ever reinforced", ""),
    "b_longest_not_const": (
        h2,
        "the divisor is the longest response of the micro-batch, not the constant",
        "verl seq-mean-token-sum-norm over the width of a trimmed micro-batch computes this",
    ),
    "b_const_per_row_len": (h2, "token means of rows are divided by the constant a second time", ""),
    "b_adv_abs_scale": (h2, "advantages are scaled by the response's length over the mean length", ""),
    "b_tis_new": (h2, "the engine weights use the new log-probs beside the ratio: off-policy drift is counted twice", ""),
    "b_cispo_hard_drop": (
        h3,
        "tokens with a ratio outside the band are dropped, which CISPO is there to avoid",
        "a trust-region token mask on both sides, as IcePop-like trainers have",
    ),
    "b_cispo_prob": (h3, "the probability stands where the log-probability belongs", ""),
    "b_cispo_no_logp_sign": (h3, "the loss takes |A|: bad responses are reinforced", ""),
    "b_var_for_std": (h3, "advantages are divided by the variance", ""),
    "b_gspo_width": (h4, "the sequence's log-ratio is divided by the padded width", ""),
    "b_gspo_arith": (h4, "the sequence's ratio is the arithmetic mean of token ratios", ""),
    "b_old_shifted": (h4, "old log-probs are one column late", ""),
    "b_seq_sum": (h4, "row sums are divided by the longest row of the batch", ""),
}
if __name__ == "__main__":
    main("n4_reasoning", H, B, run)
