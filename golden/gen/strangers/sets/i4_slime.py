"""A Megatron-style asynchronous trainer in the spirit of slime / AReaL / ROLL. Lazy hook: logp_new, logp_old, logp_gen, mask, advantages, scores, group ids, loss."""

from world_i import *

NAME = "i4_slime"
T, P = 30, 6
D = dict(
    est="grpo",
    per_token=False,
    dual=None,
    tis=None,
    decoupled=False,
    stale=False,
    dyn=False,
    R=1,
    micro=2,
    steps=2,
    lo=0.2,
    hi=0.2,
    bf16=False,
    n=8,
    G=4,
    temp=1.0,
    lr=1.5e-2,
    rollouts=3,
    opts={},
)


def C(**k):
    return {**D, **k}


H = {
    "h_grpo_persample_dual": (
        C(
            dual=2.0,
            hi=0.28,
            opts={
                "adv.kind": "group",
                "adv.scale": "group_std",
                "clip.low": 0.2,
                "clip.high": 0.28,
                "clip.dual": 2.0,
                "agg.kind": "seq_mean_token_mean",
                "agg.denominator": "global",
                "kl.beta": 0.0,
            },
        ),
        [],
    ),
    "h_rfppbase_tokensum": (
        C(
            est="rfpp_baseline",
            per_token=True,
            opts={"adv.kind": "rfpp_baseline", "clip.low": 0.2, "clip.high": 0.2, "agg.kind": "token", "agg.denominator": "global", "kl.beta": 0.0},
        ),
        [],
    ),
    "h_decoupled_stale": (
        C(
            decoupled=True,
            stale=True,
            tis=3.0,
            per_token=True,
            temp=0.9,
            opts={
                "adv.scale": "group_std",
                "async_rollout": True,
                "max_staleness": 1,
                "tis.level": "token",
                "tis.rule": "clamp",
                "tis.high": 3.0,
                "clip.low": 0.2,
                "clip.high": 0.2,
                "agg.kind": "token",
                "agg.denominator": "global",
                "kl.beta": 0.0,
            },
        ),
        [],
    ),
    "h_dynamic_ranks_bf16": (
        C(
            dyn=True,
            est="drgrpo",
            R=2,
            micro=1,
            bf16=True,
            n=12,
            hi=0.28,
            opts={"adv.scale": "none", "clip.low": 0.2, "clip.high": 0.28, "agg.kind": "seq_mean_token_mean", "agg.denominator": "global", "kl.beta": 0.0},
        ),
        [],
    ),
}
A, B_, C_, E_ = list(H)
BUGS = {
    "b_total_length": (A, "the mean of a sample divides by prompt plus response length (total_lengths where response_lengths is meant)", ""),
    "b_dual_max": (A, "the dual clip takes the maximum with -A*c for A < 0: every negative token's loss is at least c|A|", ""),
    "b_adv_prev_rollout": (A, "the asynchronous buffer hands the advantages of the rollout before to the rows of this one", ""),
    "b_micro_twice": (A, "Megatron divides by the number of micro-batches although the loss is over the global batch already", ""),
    "b_std_squared": (A, "centred rewards are divided by the variance of the group", ""),
    "b_whiten_no_sqrt": (B_, "the whitening multiplies by 1/var in place of rsqrt(var)", ""),
    "b_whiten_pad": (
        B_,
        "the whitening takes its statistics over padded cells too, where the broadcast advantage stands as well",
        "whiten.mask none is some frameworks' (TRL-like unmasked whiten)",
    ),
    "b_baseline_self_twice": (B_, "the baseline sums the group and divides by n-1 (leave-one-out without leaving one out)", ""),
    "b_group_roll": (B_, "the rewards come back from the reward service one row late (rolled by one) before the group means are taken", ""),
    "b_behave_inverse": (C_, "the behaviour weight is gen over prox in place of prox over gen", ""),
    "b_gen_one_late": (
        C_,
        "engine log-probs are one token late (the server returns the first token's as None and the list is padded in front): weights from wrong pairs",
        "",
    ),
    "b_double_behave": (C_, "the ratio is new over gen and the weight prox over gen still multiplies: the mismatch counts twice", ""),
    "b_weight_on_ratio_clip": (C_, "the behaviour weight multiplies the ratio before the clip, so the bounds cut the product", ""),
    "b_filter_advs_only": (E_, "dynamic sampling drops groups from the tokens but advantages are cut at the front: later rows get another group's", ""),
    "b_count_before_drop": (E_, "the loss divides by the number of rows before groups were dropped", ""),
    "b_rank_stride": (E_, "rank r takes rows in blocks but advantages with stride (adv[r::2])", ""),
    "b_loss_mask_shift": (E_, "the loss mask is rolled by one to the right: the first token is out, one column behind EOS is in", ""),
}


def main(c, bug, out, run):
    g = torch.Generator().manual_seed(sum(map(ord, run)))
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.98), weight_decay=0.0)
    n, G, R = c["n"], c["G"], c["R"]
    step = 0
    prev = None
    engine = copy.deepcopy(model)
    for roll in range(c["rollouts"]):
        pid, patt = prompts(n, P, g)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        resp, mask, gen = sample(engine if c["stale"] else model, pid, patt, T, c["temp"], g)
        engine = copy.deepcopy(model)  # arrives one rollout late
        ids, att = torch.cat([pid, resp], 1), torch.cat([patt, mask], 1)
        s = score(resp, mask, g)
        sc = (s[:, 0] > 0).float() if c["dyn"] else s.sum(1)
        N0 = n * G
        gid = torch.arange(N0) // G + roll * 1000
        sid = torch.arange(N0) + roll * 1000
        with torch.no_grad():
            old = logps(model, ids, att, T, c["temp"], c["bf16"])[0]
        rw = sc.roll(1) if bug == "group_roll" else sc
        gr = rw.view(n, G)
        mu = gr.mean(1, keepdim=True)
        if bug == "baseline_self_twice":
            mu = gr.sum(1, keepdim=True) / (G - 1)
        a = gr - mu
        if c["est"] == "grpo":
            sd = gr.std(1, keepdim=True)
            a = a / ((sd**2 if bug == "std_squared" else sd) + 1e-6)
        a = a.reshape(-1)
        M = mask.float()
        keep = torch.ones(N0, dtype=torch.bool)
        if c["dyn"]:
            keep = (gr.std(1) > 0).repeat_interleave(G)
        idx = keep.nonzero()[:, 0]
        k = R * c["micro"] * c["steps"] * G
        idx = idx[: len(idx) // k * k]
        if not len(idx):
            continue
        av = a[: len(idx)] if bug == "filter_advs_only" else a[idx]
        adv = av[:, None].expand(-1, T) * M[idx] if bug != "whiten_pad" else av[:, None].expand(-1, T).clone()
        Mi = M[idx]
        if c["est"] == "rfpp_baseline":
            W = torch.ones_like(Mi) if bug == "whiten_pad" else Mi
            m_ = (adv * W).sum() / W.sum()
            v_ = ((adv - m_) ** 2 * W).sum() / W.sum()
            v_ = v_ * W.sum() / (W.sum() - 1)
            adv = (adv - m_) / (v_ + 1e-8) if bug == "whiten_no_sqrt" else (adv - m_) * torch.rsqrt(v_ + 1e-8)
            adv = adv * Mi
        cur = adv.clone()
        if bug == "adv_prev_rollout" and prev is not None and len(prev) == len(adv):
            adv = prev * Mi
        prev = cur
        if bug == "loss_mask_shift":
            Mi = torch.cat([torch.zeros(len(Mi), 1), Mi[:, :-1]], 1)
            adv = av[:, None].expand(-1, T) * Mi
        ge = gen[idx]
        if bug == "gen_one_late":
            ge = torch.cat([torch.zeros(len(ge), 1), ge[:, :-1]], 1) * Mi
        per = len(idx) // (R * c["micro"] * c["steps"])
        for st in range(c["steps"]):
            where = [[torch.arange(per) + (r * c["steps"] + st) * c["micro"] * per + a_ * per for a_ in range(c["micro"])] for r in range(R)]
            al = torch.cat([x for w in where for x in w])
            rows = len(al)
            toks = Mi[al].sum()
            if bug == "count_before_drop":
                rows = N0 // c["steps"]
            opt.zero_grad()
            fl = []
            for r in range(R):
                for a_ in range(c["micro"]):
                    j = where[r][a_]
                    i = idx[j]
                    m = Mi[j]
                    Aj = adv[j]
                    if bug == "rank_stride":
                        Aj = av[r::R][j - r * (len(idx) // R)][:, None] * m
                    lp = logps(model, ids[i], att[i], T, c["temp"], c["bf16"])[0]
                    base = ge[j] if bug == "double_behave" else old[i]
                    ratio = ((lp - base) * m).exp()
                    w = None
                    if c["tis"]:
                        w = ((old[i] - ge[j]) * m).exp()
                        if bug == "behave_inverse":
                            w = 1 / w
                        w = w.clamp(max=c["tis"])
                    if bug == "weight_on_ratio_clip":
                        ratio = ratio * w
                    pg = torch.max(-Aj * ratio, -Aj * ratio.clamp(1 - c["lo"], 1 + c["hi"]))
                    if c["dual"]:
                        d = -Aj * c["dual"]
                        pg = torch.where(Aj < 0, torch.max(pg, d) if bug == "dual_max" else torch.min(pg, d), pg)
                    if w is not None and bug != "weight_on_ratio_clip":
                        pg = pg * w
                    if c["per_token"]:
                        loss = (pg * m).sum() / toks * R
                    else:
                        L = m.sum(1) + (patt[i].sum(1) if bug == "total_length" else 0)
                        loss = ((pg * m).sum(1) / L.clamp(min=1)).sum() / rows * R
                    if bug == "micro_twice":
                        loss = loss / c["micro"]
                    loss.backward()
                    fl.append(
                        (
                            r,
                            a_,
                            dict(
                                response_mask=m.bool(),
                                logp_new=lp,
                                logp_old=old[i],
                                logp_gen=ge[j],
                                advantages=Aj,
                                scores=sc[i],
                                group_id=gid[i],
                                sample_id=sid[i],
                                loss=loss,
                            ),
                        )
                    )
            for p in model.parameters():
                p.grad.div_(R)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            for r, a_, t in fl:
                write(
                    out,
                    f"{step:04d}_dp{r}_{a_}",
                    dict(
                        schema=2,
                        framework="slime",
                        algorithm="grpo",
                        run=run,
                        step=step,
                        rank=r,
                        world_size=R,
                        micro_batch=a_,
                        micro_batches=c["micro"],
                        align="response",
                        options={**c["opts"], "num_mini_batches": c["steps"]},
                    ),
                    t,
                )
            step += 1


runner(NAME, H, BUGS, main)
