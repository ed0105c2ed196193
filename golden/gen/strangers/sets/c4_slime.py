"""Asynchronous GRPO in the style of slime / AReaL / prime-rl, no framework named; the options are plumbline's words. The engine is one rollout old and in bfloat16.
Dumped: log-probs (policy, proximal, engine), mask, advantages, scores, IS weights, loss; token_loss and dlogp where grads is on. The packed setting has no scores."""

from world_c import *

BASE = dict(
    seed=1,
    n=32,
    gens=4,
    T=28,
    P=6,
    world=1,
    ga=4,
    minis=2,
    rollouts=2,
    epochs=1,
    lr=5e-3,
    kind="ppo",
    low=0.2,
    high=0.28,
    dual=None,
    level="token",
    rule="truncate_upper",
    tlo=None,
    thi=1.5,
    old="prox",
    std=True,
    agg="token",
    kl=0.0,
    klk="k3",
    ent=0.0,
    packed=False,
    grads=True,
    temp=1.0,
)
HEALTHY = {
    "h_decoupled_token_ga4": dict(BASE, seed=41, thi=1.2),
    "h_seqgeo_gate_lazy": dict(
        BASE, seed=42, level="seq_geo", rule="zero_outside", tlo=0.97, thi=1.03, grads=False, std=False, world=2, ga=2, temp=0.9
    ),
    "h_cispo_packed_2ranks": dict(BASE, seed=43, kind="cispo", low=1.0, high=0.1, level="token", thi=1.3, packed=True, world=2, ga=2),
    "h_engine_ratio_k2_seqmean": dict(
        BASE, seed=44, old="engine", level="none", agg="seq_mean_token_mean", kl=0.05, klk="k2", ent=0.003, epochs=2, dual=3.0, ga=2, world=1
    ),
}


def run(root, c, bug):
    T, P, n, G, W, ga = c["T"], c["P"], c["n"], c["gens"], c["world"], c["ga"]
    model = make(c["seed"])
    ref = copy.deepcopy(model)
    if c["kl"]:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.03)
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    gen = torch.Generator().manual_seed(c["seed"])
    engine, step = copy.deepcopy(model), 0
    with torch.no_grad():  # the engine lags: the trainer has been ahead of it already
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.01)
    for ro in range(c["rollouts"]):
        pid, patt = prompts(n // G, P, gen)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        ids, att, m, samp = generate(copy.deepcopy(engine).bfloat16(), pid, patt, T, gen, c["temp"] if bug != "engine_no_temp" else 1.3)
        if bug == "engine_no_temp":  # what the server reports is of the tempered distribution that it samples from
            pass
        engine = copy.deepcopy(model)  # weights are handed over behind the rollout
        with torch.no_grad():
            prox = logps(model, ids, att, T, c["temp"])
            if bug == "prox_stale":
                prox = logps(ref, ids, att, T, c["temp"])
            refl = logps(ref, ids, att, T, c["temp"])
        if bug == "gen_shifted":
            samp = torch.cat([samp[:, 1:], samp[:, :1]], 1)
        if bug == "eos_masked":
            m = m * (ids[:, P:] != EOS).long()
        sc = reward(ids[:, P:], m)[0]
        g = sc.view(-1, G)
        mean, std = g.mean(1), g.std(1)
        if bug == "std_global":
            std = sc.std().expand_as(std)
        if bug == "mean_prev_group":
            mean = mean.roll(1)
        if bug == "std_biased":
            std = g.std(1, unbiased=False)
        adv = sc - mean.repeat_interleave(G)
        if c["std"]:
            adv = adv / (std.repeat_interleave(G) + 1e-6)
        if bug == "adv_len_norm":
            adv = adv / m.sum(1).clamp(min=1).sqrt()
        mf = m.float()
        num, den = (prox, samp) if bug != "tis_inverted" else (samp, prox)
        d = (num - den) * mf
        w = None
        if c["level"] == "token":
            w = d.exp().clamp(max=c["thi"])
            if bug == "tis_clamps_log":
                w = d.clamp(max=c["thi"] - 1).exp()
            if bug == "tis_drops":
                w = d.exp()
                w = torch.where(w > c["thi"], torch.zeros_like(w), w)
            if bug == "tis_mean_norm":
                w = w / ((w * mf).sum() / mf.sum())
        elif c["level"] == "seq_geo":
            ln = mf.sum(1) if bug != "geo_over_T" else torch.full((n,), float(T))
            s = (d.sum(1) / ln if bug != "geo_is_sum" else d.sum(1)).exp()
            keep = (s >= c["tlo"]) & (s <= c["thi"])
            if bug == "gate_low_only":
                keep = s >= c["tlo"]
            if bug == "gate_inverted":
                keep = ~keep
            w = (s * keep)[:, None].expand(n, T).clone()
            if bug == "gate_binary":
                w = keep.float()[:, None].expand(n, T).clone()
        rows = dict(
            ids=ids,
            att=att,
            m=m,
            prox=prox,
            samp=samp,
            ref=refl,
            adv=adv,
            sc=sc,
            gid=torch.arange(n) // G + ro * 100,
            sid=torch.arange(n) + ro * 1000,
        )
        if w is not None:
            rows["w"] = w
        if bug == "w_row_order":
            rows["w"] = w.flip(0)
        per = n // c["minis"] // W // ga
        for ep in range(c["epochs"]):
            perm = torch.randperm(n, generator=gen)
            for k in range(c["minis"]):
                ix = perm[k * (n // c["minis"]) : (k + 1) * (n // c["minis"])].view(W, ga, per)
                tok = rows["m"][ix.flatten()].sum().float()
                if bug == "tokens_of_rollout":
                    tok = rows["m"].sum().float()
                opt.zero_grad()
                for r in range(W):
                    for a in range(ga):
                        micro(
                            root,
                            c,
                            bug,
                            model,
                            {q: v[ix[r, a]] for q, v in rows.items()},
                            step,
                            r,
                            a,
                            tok,
                            rows["m"][ix.flatten()].sum().item(),
                            n // c["minis"],
                        )
                        if bug == "zero_grad_micro" and a < ga - 1:
                            opt.zero_grad()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                step += 1


def micro(root, c, bug, model, x, step, r, a, tok, true_tok, nrows):
    T, W = c["T"], c["world"]
    lp, ent = logps(model, x["ids"], x["att"], T, c["temp"], True)
    m, prox, samp, adv = x["m"], x["prox"], x["samp"], x["adv"][:, None].expand(-1, T)
    w, refl, seg = x.get("w"), x["ref"], None
    if c["packed"]:  # two responses to a row, prompt in front, back to back
        P = c["P"]
        full = lambda v: F.pad(v, (P, 0))
        cols, segs = [], []
        for i in range(0, len(lp), 2):
            cl, sg = [], []
            for j in (i, i + 1):
                q = x["att"][j].bool().nonzero().flatten()
                cl.append(q + j * (P + T))
                sg.append(torch.full_like(q, j - i + 1))
            cols.append(torch.cat(cl))
            segs.append(torch.cat(sg))
        L = max(len(q) for q in cols)
        idx = torch.stack([F.pad(q, (0, L - len(q)), value=-1) for q in cols])
        seg = torch.stack([F.pad(s, (0, L - len(s))) for s in segs])
        pack = lambda v: torch.where(idx >= 0, full(v).reshape(-1)[idx.clamp(min=0)], torch.zeros((), dtype=v.dtype))
        lp, ent, prox, samp, adv, w, m, refl = (pack(v) for v in (lp, ent, prox, samp, adv.contiguous(), w, m, refl))
        if bug == "pack_adv_first":
            adv = adv[:, P + 1 : P + 2].expand_as(adv).clone() * (m > 0)
        if bug == "pack_mask_prompt":
            m = (seg > 0).long()
    mf = m.float()
    old = prox if c["old"] == "prox" else samp
    if bug == "ratio_to_engine":
        old = samp
    if bug == "ratio_to_prox":
        old = prox
    if bug == "old_detached_new":
        old = lp.detach()
    rho = (lp - old).exp()
    if c["kind"] == "ppo":
        lo, hi = 1 - c["low"], 1 + c["high"]
        if bug == "clip_log":
            hi = math.exp(c["high"])
            lo = math.exp(-c["low"] * 2)
        tl = -torch.min(rho * adv, rho.clamp(lo, hi) * adv)
        if bug == "clip_only":
            tl = -rho.clamp(lo, hi) * adv
        if c["dual"]:
            tl = torch.where(adv < 0, torch.min(tl, -adv * c["dual"]), tl)
    else:
        cw = rho.clamp(max=1 + c["high"])
        tl = -(cw.detach() if bug != "cispo_not_detached" else cw) * adv * lp
        if bug == "cispo_masks":
            tl = -torch.where(rho > 1 + c["high"], torch.zeros_like(rho), rho).detach() * adv * lp
        if bug == "cispo_no_logp":
            tl = -cw.detach() * adv * lp.exp()
    if w is not None and bug != "w_forgotten":
        tl = tl * w
    kl = None
    if c["kl"]:
        d = lp - refl
        kl = 0.5 * d * d if bug != "k1_for_k2" else d

    def agg(v):
        if c["agg"] == "token":
            s = (v * mf).sum() / tok * W
            if bug == "micro_mean":
                s = (v * mf).sum() / mf.sum() / c["ga"]
            if bug == "no_world":
                s = s / W
            return s
        ln = mf.sum(1).clamp(min=1) if bug != "len_T" else torch.full((len(v),), float(T))
        return ((v * mf).sum(1) / ln).sum() / nrows * W

    loss = agg(tl)
    kll = el = None
    if kl is not None:
        kll = agg(kl)
        loss = loss + c["kl"] * kll * (1 if bug != "kl_minus" else -1)
    if c["ent"]:
        el = agg(ent)
        loss = loss - c["ent"] * el * (1 if bug != "ent_plus" else -1)
    (g,) = torch.autograd.grad(loss, lp, retain_graph=True)
    (loss / W).backward()
    t = dict(response_mask=m, logp_new=lp, logp_old=prox, logp_gen=samp, advantages=adv if c["packed"] else x["adv"], loss=loss, is_weights=w)
    if c["packed"]:
        t["segment_ids"] = seg
    else:
        t |= dict(response_ids=x["ids"][:, -T:], scores=x["sc"], group_id=x["gid"], sample_id=x["sid"])
    if c["grads"]:
        t |= dict(token_loss=tl, dlogp=g)
    if kl is not None:
        t |= dict(logp_ref=refl, kl=kl, kl_loss=kll)
    if el is not None:
        t |= dict(entropy=ent, entropy_loss=el)
    o = {
        "loss.kind": c["kind"],
        "clip.low": c["low"],
        "clip.high": c["high"],
        "clip.dual": c["dual"],
        "ratio.level": "token",
        "ratio.old": "stored" if c["old"] == "prox" else "engine",
        "adv.kind": "group",
        "adv.center": "mean",
        "adv.scale": "group_std" if c["std"] else "none",
        "adv.ddof": 1,
        "adv.eps": 1e-6,
        "tis.level": c["level"],
        "agg.kind": c["agg"],
        "agg.denominator": "global",
        "kl.beta": c["kl"],
        "kl.place": "loss" if c["kl"] else "none",
        "entropy.coef": c["ent"],
        "max_staleness": 1,
        "num_mini_batches": c["minis"],
        "logp.temperature": c["temp"],
        "num_items_in_batch": true_tok,
        "optim.epochs": c["epochs"],
        "eos_token_id": EOS,
    }
    if c["kind"] == "cispo":
        o["clip.high_is_absolute"] = False
    if c["kl"]:
        o |= {"kl.kind": c["klk"], "kl.grad": "naive"}
    if c["level"] != "none":
        o |= {"tis.rule": c["rule"], "tis.low": c["tlo"], "tis.high": c["thi"]}
    if c["packed"]:  # the packed hook has no rewards, and says nothing of how they become advantages
        o = {k: v for k, v in o.items() if not k.startswith("adv.")}
    o = {k: v for k, v in o.items() if v is not None or k in ("clip.dual",)}
    if o.get("clip.dual", 1) is None:
        o["clip.dual"] = "none"
    write(
        root,
        step + 1,
        r,
        a,
        t,
        dict(
            schema=2,
            algorithm="grpo",
            run="c4",
            world_size=W,
            micro_batches=c["ga"],
            options=o,
            token_loss_includes_kl=False,
            compute_dtype="float32",
            scalars={"loss": loss.item(), "ratio_mean": ((rho * mf).sum() / mf.sum()).item()},
            scalars_scope="micro_batch",
        ),
    )


A, B, C, D = HEALTHY
BUGS = {
    "b_tis_inverted": (A, "tis_inverted", "behaviour weights are engine over proximal policy"),
    "b_tis_drops": (A, "tis_drops", "weights above the cap are zeroed, not truncated"),
    "b_tis_mean_norm": (A, "tis_mean_norm", "behaviour weights are divided by their mean, which nothing declares"),
    "b_w_forgotten": (A, "w_forgotten", "the behaviour weights are computed and not multiplied in"),
    "b_ratio_to_engine": (A, "ratio_to_engine", "the ratio is taken against the engine while the weights correct for it again"),
    "b_old_detached_new": (A, "old_detached_new", "the ratio is of the new log-probs and their detached copy: it never clips"),
    "b_micro_mean": (A, "micro_mean", "mean over tokens of each micro-batch, divided by the accumulation steps, in place of the global batch's"),
    "b_tokens_of_rollout": (A, "tokens_of_rollout", "the token count is that of the rollout, not of the mini-batch"),
    "b_std_biased": (A, "std_biased", "group std with ddof 0"),
    "b_gen_shifted": (A, "gen_shifted", "log-probs of the engine are one token early"),
    "b_clip_only": (A, "clip_only", "only the clipped surrogate, no minimum"),
    "b_w_row_order": (A, "w_row_order", "weights belong to other rows: reversed order"),
    "b_geo_over_T": (B, "geo_over_T", "the geometric mean divides by the padded length"),
    "b_geo_is_sum": (B, "geo_is_sum", "the product of the ratios in place of their geometric mean"),
    "b_gate_inverted": (B, "gate_inverted", "rows inside the bounds are dropped"),
    "b_mean_prev_group": (B, "mean_prev_group", "baselines are of the group before"),
    "b_adv_len_norm": (B, "adv_len_norm", "advantages are divided by the root of the length"),
    "b_no_world": (B, "no_world", "loss without the factor of the ranks"),
    "b_pack_adv_first": (C, "pack_adv_first", "in a packed row the advantage of the first sequence is used for all"),
    "b_cispo_not_detached": (C, "cispo_not_detached", "the weight of cispo is not detached"),
    "b_cispo_masks": (C, "cispo_masks", "cispo's weight above the bound is zeroed, not clipped"),
    "b_cispo_no_logp": (C, "cispo_no_logp", "cispo is multiplied by the probability, not by its logarithm"),
    "b_ratio_to_prox": (D, "ratio_to_prox", "the ratio is against the recomputed log-probs though the engine's are declared"),
    "b_k1_for_k2": (D, "k1_for_k2", "the KL loss is the log-ratio itself"),
    "b_kl_minus": (D, "kl_minus", "the KL loss is subtracted"),
    "b_ent_plus": (D, "ent_plus", "the entropy is penalised"),
    "b_len_T": (D, "len_T", "row means divide by the padded length"),
    "b_std_global": (D, "std_global", "the std is that of the batch"),
}
if __name__ == "__main__":
    main("c4_slime", run, HEALTHY, BUGS)
