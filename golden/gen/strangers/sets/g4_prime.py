"""A trainer in the style of prime-rl / tinker-cookbook / slime: policy gradient against the engine's log-probs. Lazy dump: logp_new, logp_gen and/or logp_old, mask, advantages, scores, group ids, loss."""

from world_g import *


def S(o, **k):
    return dict(
        dict(seed=41, N=32, G=8, T=40, minis=2, micros=2, epochs=1, lr=6e-3, gens=3, temp=1.0, base="mean", obj="is", amp=False, world=1, kind=0, fw=None, o=o),
        **k,
    )


COMMON = {"adv.kind": "group", "adv.scale": "none", "kl.beta": 0, "entropy.coef": 0}
H = {
    "h_tinker_is_sum": (
        S(
            {
                **COMMON,
                "adv.center": "mean",
                "loss.kind": "ppo",
                "clip.low": "none",
                "clip.high": "none",
                "ratio.level": "token",
                "ratio.old": "engine",
                "tis.level": "none",
                "agg.kind": "token_sum",
            },
            lr=4e-3,
            fw="tinker-cookbook",
            gens=4,
            minis=1,
        ),
        ["--profile", "none"],
    ),
    "h_cispo_loo_const": (
        S(
            {
                **COMMON,
                "adv.center": "loo",
                "loss.kind": "cispo",
                "clip.low": "none",
                "clip.high": 0.1,
                "ratio.level": "token",
                "ratio.old": "engine",
                "tis.level": "none",
                "agg.kind": "token",
                "agg.denominator": "constant",
                "loss_denominator": 640,
            },
            seed=42,
            base="loo",
            obj="cispo",
            epochs=2,
            fw="prime-rl",
            T=32,
        ),
        ["--profile", "none"],
    ),
    "h_gspo_slime": (
        S(
            {
                **COMMON,
                "adv.center": "mean",
                "loss.kind": "gspo",
                "clip.low": 0.006,
                "clip.high": 0.008,
                "ratio.level": "seq_mean",
                "ratio.old": "stored",
                "tis.level": "none",
                "agg.kind": "seq_mean_token_mean",
                "agg.div_ga": True,
            },
            seed=43,
            obj="gspo",
            epochs=2,
            fw="slime",
            temp=0.9,
            amp=True,
        ),
        ["--profile", "none"],
    ),
    "h_icepop_masked": (
        S(
            {
                **COMMON,
                "adv.center": "mean",
                "loss.kind": "ppo",
                "clip.low": 0.2,
                "clip.high": 0.28,
                "ratio.level": "token",
                "ratio.old": "stored",
                "tis.level": "token",
                "tis.rule": "zero_outside",
                "tis.low": 0.98,
                "tis.high": 1.03,
                "agg.kind": "seq_sum_const",
                "agg.div_batch": True,
                "agg.denominator": "micro",
                "loss_denominator": 48,
                "agg.div_ga": True,
            },
            seed=44,
            obj="icepop",
            epochs=2,
            world=2,
            T=48,
            lr=8e-3,
        ),
        ["--profile", "none"],
    ),
}
B = {
    "b_shift_gen": (
        "h_tinker_is_sum",
        "engine-logprobs-shifted",
        "The engine's log-probs are one token late against the trainer's (the list holds the first prompt token's None).",
    ),
    "b_ratio_detached": ("h_tinker_is_sum", "ratio-inverted", "The ratio is inverted: exp(gen - new)."),
    "b_mean_all": ("h_tinker_is_sum", "baseline-batch", "The baseline is the mean of the whole batch instead of the group."),
    "b_stale_engine": ("h_tinker_is_sum", "engine-never-updated", "The engine's weights are never synchronised with the trainer after the first rollout."),
    "b_no_eos": ("h_tinker_is_sum", "mask-no-eos", "The mask leaves out the EOS token, so the policy never learns to stop."),
    "b_token_mean": ("h_tinker_is_sum", "mean-for-sum", "The loss is averaged over tokens instead of summed, while the docs and config say sum."),
    "b_loo_off": ("h_cispo_loo_const", "loo-wrong-divisor", "Leave-one-out baseline: sum of the others divided by n."),
    "b_cispo_grad": ("h_cispo_loo_const", "cispo-clamp-low", "The clamp of CISPO bounds from below."),
    "b_const_ranked": ("h_cispo_loo_const", "denominator-actual", "The loss is divided by the tokens of the micro-batch instead of the constant."),
    "b_epoch_engine": (
        "h_cispo_loo_const",
        "gen-refreshed",
        "From the second mini-batch on the ratio's denominator is the trainer's current log-prob (ratio 1).",
    ),
    "b_adv_len": ("h_cispo_loo_const", "advantage-by-length", "Advantages are divided by the length of the response and so counted twice."),
    "b_gspo_sum": ("h_gspo_slime", "gspo-sum", "The sequence log-ratio is a sum, not a mean."),
    "b_gspo_dup": ("h_gspo_slime", "gspo-includes-padding", "The mean of the log-ratio divides by the padded length."),
    "b_temp_lost": ("h_gspo_slime", "temperature-lost-in-train", "New log-probs are computed without the temperature."),
    "b_min_sign": ("h_gspo_slime", "clip-swapped", "clip.low and clip.high stand in each other's place, and max is taken for min."),
    "b_rows_sum": ("h_gspo_slime", "row-tokens-of-batch", "Row sums are divided by the mean length of the batch instead of the row's own."),
    "b_icepop_norm": ("h_icepop_masked", "band-inverted", "The band is inverted: tokens inside it are dropped, those outside are kept with their weights."),
    "b_icepop_new": ("h_icepop_masked", "mismatch-against-new", "The mismatch weight is made of the current log-probs, not the old ones."),
    "b_icepop_one": ("h_icepop_masked", "weights-dropped", "Inside the band the weight is 1."),
    "b_rank_baseline": ("h_icepop_masked", "baseline-split-groups", "Groups are split in halves by a wrong reshape (G/2) before the baseline."),
    "b_div_twice": ("h_icepop_masked", "const-times-two", "Every rank divides by the rows of both ranks while the framework averages too."),
    "b_score_order": ("h_icepop_masked", "scores-other-order", "Rewards come back in the order of completion (by length) and are not sorted back."),
}


def run(s, bug, out, name):
    model = make(s["seed"])
    gen = torch.Generator().manual_seed(s["seed"])
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"], weight_decay=0.0)
    N, G, T, W, o = s["N"], s["G"], s["T"], s["world"], s["o"]
    step = 0
    eng = None
    for g in range(s["gens"]):
        pid, patt = prompts(N // G, gen)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        if eng is None or bug != "engine-never-updated":
            eng = engine_of(model)
        ids, att, rid, m, slp = sample(eng, pid, patt, T, gen, s["temp"])
        with torch.no_grad():
            old = logps(model, ids, att, T, s["temp"], s["amp"])[0]
        if bug == "engine-logprobs-shifted":
            slp = slp.roll(1, 1)
            slp[:, 0] = 0
        sc = reward(rid, m, 0)
        if bug == "mask-no-eos":
            m = m * (rid != EOS).long()
        r = sc.clone()
        if bug == "scores-other-order":
            r = r[m.sum(1).argsort(stable=True)]
        R = r.view(-1, G // 2 if bug == "baseline-split-groups" else G)
        A = R - R.mean(1, keepdim=True)
        if s["base"] == "loo":
            A = R - (R.sum(1, keepdim=True) - R) / (G if bug == "loo-wrong-divisor" else G - 1)
        A = A.reshape(-1)
        if bug == "baseline-batch":
            A = r - r.mean()
        if bug == "advantage-by-length":
            A = A / m.sum(1) * 10
        d = dict(ids=ids, att=att, rid=rid, m=m, slp=slp, old=old, sc=sc, A=A, gid=torch.arange(N) // G + 100 * g, sid=torch.arange(N) + N * g)
        for ep in range(s["epochs"]):
            p = torch.randperm(N, generator=gen).chunk(s["minis"])
            for k, rows in enumerate(p):
                step += 1
                opt.zero_grad()
                for rk, rr in enumerate(rows.chunk(W)):
                    for mb, idx in enumerate(rr.chunk(s["micros"])):
                        x = {k_: v[idx] for k_, v in d.items()}
                        mk = x["m"].float()
                        a = x["A"][:, None]
                        lp, _, _ = logps(model, x["ids"], x["att"], T, 1.0 if bug == "temperature-lost-in-train" else s["temp"], s["amp"])
                        ga = s["micros"]
                        if s["obj"] == "is":
                            q = (lp - x["slp"]).exp()
                            if bug == "ratio-inverted":
                                q = ((x["slp"] - lp) * mk).exp()
                            tl = -q * a
                            loss = (tl * mk).sum()
                            if bug == "mean-for-sum":
                                loss = loss / mk.sum()
                        elif s["obj"] == "cispo":
                            ref = lp.detach() if bug == "gen-refreshed" and k + ep > 0 else x["slp"]
                            q = (lp - ref).exp().detach()
                            q = q.clamp(min=1.1) if bug == "cispo-clamp-low" else q.clamp(max=1.1)
                            tl = -q * a * lp
                            loss = (tl * mk).sum() / (mk.sum() if bug == "denominator-actual" else o["loss_denominator"])
                        elif s["obj"] == "gspo":
                            z = ((lp - x["old"]) * mk).sum(1) / (1 if bug == "gspo-sum" else T if bug == "gspo-includes-padding" else mk.sum(1))
                            q = z.exp()[:, None]
                            lo, hi, f = o["clip.low"], o["clip.high"], torch.min
                            if bug == "clip-swapped":
                                lo, hi, f = hi, lo, torch.max
                            tl = -f(q * a, q.clamp(1 - lo, 1 + hi) * a)
                            loss = ((tl * mk).sum(1) / (mk.sum(1).mean() if bug == "row-tokens-of-batch" else mk.sum(1))).mean() / ga
                        else:
                            q = (lp - x["old"]).exp()
                            tl = -torch.min(q * a, q.clamp(0.8, 1.28) * a)
                            w = ((lp.detach() if bug == "mismatch-against-new" else x["old"]) - x["slp"]).exp()
                            keep = (w >= o["tis.low"]) & (w <= o["tis.high"])
                            if bug == "band-inverted":
                                keep = ~keep
                            w = keep.float() if bug == "weights-dropped" else w * keep
                            tl = tl * w
                            loss = (tl * mk).sum() / o["loss_denominator"] / len(idx) / ga
                            if bug == "const-times-two":
                                loss = loss / W
                        t = dict(
                            response_mask=x["m"].bool(),
                            logp_new=lp,
                            advantages=x["A"],
                            scores=x["sc"],
                            group_id=x["gid"],
                            loss=loss,
                            sample_id=x["sid"],
                            response_ids=x["rid"],
                        )
                        if s["obj"] != "gspo":
                            t["logp_gen"] = x["slp"]
                        if s["obj"] in ("gspo", "icepop"):
                            t["logp_old"] = x["old"]
                        (loss / W).backward()
                        meta = dict(
                            schema=2,
                            run=name,
                            step=step,
                            rank=rk,
                            world_size=W,
                            micro_batch=mb,
                            micro_batches=ga,
                            options={**{k_: v for k_, v in o.items()}, "eos_token_id": EOS, "num_mini_batches": s["minis"], "logp.temperature": s["temp"]},
                        )
                        write(out, f"s{step}_r{rk}_m{mb}", t, meta)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("g4_prime", H, B, run)
