"""Asynchronous trainer (AReaL / slime / PipelineRL): rollouts of older weights, proximal log-probs recomputed, decoupled PPO, importance weights; two ranks x micro-batches.
Dumps log-probs of engine/proximal/new, weights, advantages, scores, dlogp, losses; token_loss only in h_areal_decoupled."""

from world_l import *

HEALTHY = dict(
    h_areal_decoupled=dict(
        G=4,
        nq=8,
        T=24,
        lo=0.2,
        hi=0.2,
        level="token",
        rule="zero_outside",
        tlow=None,
        cap=1.3,
        agg="token",
        norm="batch",
        lr=1e-2,
        minib=2,
        epochs=1,
        gas=2,
        old="stored",
        filt=False,
        temp=1.0,
    ),
    h_slime_tis_seqmean=dict(
        G=8,
        nq=4,
        T=20,
        lo=0.2,
        hi=0.28,
        level="token",
        rule="truncate_upper",
        tlow=None,
        cap=1.2,
        agg="seq",
        norm="group",
        lr=1e-2,
        minib=1,
        epochs=2,
        gas=2,
        old="stored",
        filt=True,
        temp=0.8,
    ),
    h_pipeline_engine_ratio=dict(
        G=4,
        nq=8,
        T=28,
        lo=0.2,
        hi=0.3,
        level="none",
        rule="",
        tlow=None,
        cap=None,
        agg="token",
        norm="loo",
        lr=8e-3,
        minib=2,
        epochs=1,
        gas=2,
        old="engine",
        filt=False,
        temp=1.0,
    ),
)


def run(out, case, c, bug):
    model = LM()
    lagged = [copy.deepcopy(model), copy.deepcopy(model)]
    with torch.no_grad():
        [p.add_(torch.randn_like(p) * 0.03) for p in model.parameters()]
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    G, nq, T, W, gas = c["G"], c["nq"], c["T"], 2, c["gas"]
    Ball = G * nq
    o = {
        "num_generations": G,
        "async_rollout": True,
        "max_staleness": 2,
        "clip.low": c["lo"],
        "clip.high": c["hi"],
        "loss.kind": "ppo",
        "kl.place": "none",
        "kl.beta": 0,
        "ratio.level": "token",
        "ratio.old": c["old"],
        "agg.kind": "token" if c["agg"] == "token" else "seq_mean_token_mean",
        "agg.denominator": "global",
        "optim.epochs": c["epochs"],
        "num_mini_batches": c["minib"],
        "eos_token_id": EOS,
        "logp.temperature": c["temp"],
        "tis.level": c["level"],
    }
    if c["level"] != "none":
        o |= {"tis.rule": c["rule"], "tis.high": c["cap"], "tis.gate": "ratio"}
    o |= {
        "batch": {
            "adv.kind": "group",
            "adv.center": "mean",
            "adv.scale": "none",
            "whiten.scope": "global",
            "whiten.ddof": 0,
            "whiten.eps": 1e-5,
            "whiten.eps_place": "add_std",
            "whiten.mask": "response",
        },
        "group": {"adv.kind": "group", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-6, "whiten.scope": "none"},
        "loo": {"adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "whiten.scope": "none"},
    }[c["norm"]]
    D = Out(out, "l3_async_rl", case, dict(framework="async-rl", version="0.3", algorithm="grpo", align="response", token_loss_includes_kl=False))
    g = torch.Generator().manual_seed(11)
    step = 0
    for it in range(3):
        behave = lagged[-2]
        p, att = prompts(nq, 8, g)
        p, att = p.repeat_interleave(G, 0), att.repeat_interleave(G, 0)
        gid = torch.arange(Ball) // G + 64 * it
        ids, mask, gen = generate(behave, p, T, temp=c["temp"], dtype=torch.bfloat16)
        if it:  # partial rollouts: the tail of some rows was sampled by a newer policy; here an environment reply in the middle, which is masked
            pass
        lm = mask.clone()
        hole = torch.rand(Ball, generator=g) < 0.3
        lm[hole, 6:9] = False  # a tool's reply: not the policy's
        with torch.no_grad():
            prox = logps(behave if bug == "prox_from_stale_weights" else model, ids, T, temp=c["temp"])
        if bug == "prox_no_temperature":
            with torch.no_grad():
                prox = logps(model, ids, T)
        sc = score(ids, lm)
        sg = sc.view(nq, G)
        if c["filt"]:  # dynamic filtering: groups whose scores hardly differ are dropped
            keep = (sg.std(1) > sg.std(1).min()).repeat_interleave(G)
            mu_all = sg.mean(1).repeat_interleave(G)
            sd_all = sg.std(1).repeat_interleave(G)
            if bug == "filter_misaligned":
                sc_used = torch.cat([sc[keep], sc[~keep]])
            ids, mask, lm, gen, prox, gid, p, att = (x[keep] for x in (ids, mask, lm, gen, prox, gid, p, att))
            sc_before, sc = sc, sc[keep]
            if bug == "filter_misaligned":
                scores_for_adv = sc_before[: len(sc)]
            else:
                scores_for_adv = sc
        else:
            scores_for_adv = sc
        B = len(sc)
        sg = scores_for_adv.view(-1, G)
        rep = lambda x: x.repeat_interleave(G)
        lmt = torch.ones_like(lm) if bug == "whiten_padding" else lm
        if c["norm"] == "loo":
            b = (sg.sum(1, keepdim=True) - sg) / (G - 1)
            if bug == "loo_uses_all":
                b = sg.sum(1, keepdim=True) / (G - 1)
            adv = (sg - b).reshape(-1, 1).expand(B, T)
        elif c["norm"] == "group":
            sd = sg.std(1)
            adv = ((scores_for_adv - rep(sg.mean(1))) / (rep(sd) + 1e-6))[:, None].expand(B, T)
            if bug == "std_of_centered_by_sqrt_n":
                adv = adv / G**0.5
        else:
            a = (scores_for_adv - rep(sg.mean(1)))[:, None].expand(B, T)
            mean = (a * lmt).sum() / lmt.sum()
            std = (((a - mean) ** 2 * lmt).sum() / lmt.sum()).sqrt()
            adv = (a - mean) / (std + 1e-5)
            if bug == "whiten_per_rank":
                adv = a.clone()
                for r in range(2):
                    half = slice(r * B // 2, (r + 1) * B // 2)
                    x, m = a[half], lm[half]
                    mu = (x * m).sum() / m.sum()
                    adv[half] = (x - mu) / ((((x - mu) ** 2 * m).sum() / m.sum()).sqrt() + 1e-5)
        adv = adv.contiguous()
        if bug == "adv_to_wrong_rank":
            adv = adv.roll(B // 2, 0)
        for ep in range(c["epochs"]):
            order = torch.arange(B).view(2, -1)  # rank r holds the half r
            for mini in range(c["minib"]):
                step += 1
                opt.zero_grad()
                per = [order[r].chunk(c["minib"])[mini] for r in range(W)]
                ms = torch.cat(per)
                tot = lm[ms].sum().float()
                nrows = len(ms)
                for rank in range(W):
                    for mb, ix in enumerate(per[rank].chunk(gas)):
                        lp = logps(model, ids[ix], T, temp=c["temp"])
                        m = lm[ix].float()
                        A = adv[ix]
                        px, gn = prox[ix], gen[ix]
                        if bug == "gen_shifted":
                            gn_used = torch.cat([gn[:, 1:], gn[:, -1:]], 1)
                        else:
                            gn_used = gn
                        old = gn_used if c["old"] == "engine" else px
                        if bug == "decoupled_forgotten":
                            old = gn_used
                        if bug == "engine_ratio_seq_mean":
                            dd = ((lp - old) * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)
                            rho = dd.exp().expand_as(lp)
                        else:
                            rho = (lp - old).exp()
                        pl = -torch.min(rho * A, rho.clamp(1 - c["lo"], 1 + c["hi"]) * A)
                        if bug == "no_negative_clip":
                            pl = -torch.where(A > 0, torch.min(rho * A, rho.clamp(1 - c["lo"], 1 + c["hi"]) * A), rho * A)
                        if bug == "clip_log_ratio":
                            pl = -torch.min(rho * A, (lp - old).clamp(-c["lo"], c["hi"]).exp() * A)
                        w = None
                        if c["level"] == "token":
                            w = (px - gn_used).exp()
                            if bug == "is_from_new_with_grad":
                                w = (lp - gn_used).exp()
                            if bug == "is_inverted":
                                w = (gn_used - px).exp()
                            if bug == "is_seq_product":
                                w = ((px - gn_used) * m).sum(1, keepdim=True).exp().expand_as(px)
                            if c["rule"] == "truncate_upper":
                                w = w.clamp(max=c["cap"]) if bug != "truncates_from_below" else w.clamp(min=c["cap"])
                            else:
                                w = torch.where(w <= c["cap"], w, torch.zeros_like(w))
                            if bug == "mask_rule_inverted":
                                w0 = (px - gn_used).exp()
                                w = torch.where(w0 > c["cap"], w0, torch.zeros_like(w0))
                            pl_w = pl * w
                        else:
                            pl_w = pl
                        if bug == "is_applied_twice":
                            pl_w = pl_w * w
                        if bug == "hole_trained":
                            m = mask[ix].float()
                        if c["agg"] == "token":
                            loss = (pl_w * m).sum() / tot * W
                            if bug == "rank_token_count":
                                loss = (pl_w * m).sum() / lm[per[rank]].sum()
                            if bug == "micro_mean_of_means":
                                loss = (pl_w * m).sum() / m.sum() / gas
                        else:
                            loss = ((pl_w * m).sum(1) / m.sum(1)).sum() / nrows * W
                            if bug == "seq_mean_by_tokens":
                                loss = (pl_w * m).sum() / m.sum() / gas
                            if bug == "denominator_before_filter":
                                loss = ((pl_w * m).sum(1) / m.sum(1)).sum() / Ball * W
                            if bug == "is_normaliser":
                                loss = ((pl_w * m).sum(1) / (w * m).sum(1)).sum() / nrows * W
                        dl = torch.autograd.grad(loss, lp, retain_graph=True)[0]
                        (loss / W).backward()
                        D(
                            step,
                            dict(lr=c["lr"]),
                            rank=rank,
                            mb=mb,
                            world=W,
                            mbs=gas,
                            meta=dict(options=o | {"num_items_in_batch": int(tot)}),
                            response_mask=lm[ix],
                            response_ids=ids[ix][:, -T:],
                            logp_new=lp,
                            logp_old=px,
                            logp_gen=gn,
                            advantages=A,
                            scores=sc[ix],
                            group_id=gid[ix],
                            sample_id=ix + 1000 * it,
                            loss=loss,
                            dlogp=dl,
                            is_weights=w,
                            token_loss=pl_w if case == "h_areal_decoupled" or BUGS.get(case, [""])[0] == "h_areal_decoupled" else None,
                        )
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
        lagged.append(copy.deepcopy(model))
    return D


BUGS = dict(
    b_prox_from_stale_weights=(
        "h_areal_decoupled",
        "proximal log-probs are recomputed with the engine's stale weights, not with the trainer's current ones: the ratio starts away from 1 and the IS weights are all 1",
    ),
    b_decoupled_forgotten=(
        "h_areal_decoupled",
        "the clipped ratio is new/behaviour though weights prox/behaviour multiply it too: the staleness is corrected twice",
    ),
    b_mask_rule_inverted=("h_areal_decoupled", "the masked importance sampling keeps the tokens above the cap and drops the rest"),
    b_whiten_padding=("h_areal_decoupled", "padding and tool replies enter the statistics that whiten the advantages"),
    b_whiten_per_rank=(
        "h_areal_decoupled",
        "advantages are whitened by each rank over its own rows instead of over all",
        "a configuration that whitens over the local batch",
    ),
    b_is_applied_twice=("h_areal_decoupled", "the loss is multiplied by the importance weight twice"),
    b_is_inverted=("h_slime_tis_seqmean", "the importance weight is engine/trainer"),
    b_truncates_from_below=("h_slime_tis_seqmean", "clamp(min=cap) in place of clamp(max=cap): weights are at least the cap"),
    b_filter_misaligned=("h_slime_tis_seqmean", "after dynamic filtering the advantages are made of the first scores of the unfiltered batch"),
    b_denominator_before_filter=("h_slime_tis_seqmean", "the sum over rows is divided by the rows before filtering"),
    b_seq_mean_by_tokens=(
        "h_slime_tis_seqmean",
        "the mean runs over tokens of the micro-batch instead of over sequences",
        "a token mean per micro-batch, divided by the accumulation steps",
    ),
    b_prox_no_temperature=("h_slime_tis_seqmean", "proximal log-probs are recomputed without the sampling temperature"),
    b_gen_shifted=("h_pipeline_engine_ratio", "the engine's log-probs are shifted by one token in the ratio"),
    b_hole_trained=(
        "h_pipeline_engine_ratio",
        "tool replies inside of responses are trained on: the loss uses the mask that ends at EOS, not the one with holes",
    ),
    b_loo_uses_all=("h_pipeline_engine_ratio", "the leave-one-out baseline forgets to subtract the row's own score before dividing by G-1"),
    b_adv_to_wrong_rank=("h_pipeline_engine_ratio", "advantages of rank 0 go to rank 1 and the other way round"),
    b_rank_token_count=(
        "h_pipeline_engine_ratio",
        "every rank divides by its own tokens instead of by those of all ranks",
        "token mean per rank, as frameworks without a global count do",
    ),
    b_no_negative_clip=("h_pipeline_engine_ratio", "the clip is applied for positive advantages only"),
)
if __name__ == "__main__":
    main("l3_async_rl", HEALTHY, BUGS, run)
