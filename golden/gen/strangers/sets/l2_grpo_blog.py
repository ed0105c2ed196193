"""A blog's GRPO, in own words. h_everything dumps all; h_little log-probs, masks, advantages, scores and losses only; h_drgrpo the same with dlogp and the optimiser's gradients left out."""

from world_l import *

HEALTHY = dict(
    h_everything=dict(G=8, nq=4, T=24, eps=(0.2, 0.2), beta=0.04, inner=3, ga=2, norm="group", agg="seq", lr=8e-3, temp=1.0, dtype=None, full=2),
    h_cliphigher_little=dict(
        G=6, nq=6, T=30, eps=(0.2, 0.28), beta=0.0, inner=2, ga=3, norm="group", agg="token", lr=1e-2, temp=0.9, dtype=torch.bfloat16, full=0
    ),
    h_drgrpo_const=dict(G=4, nq=8, T=20, eps=(0.2, 0.2), beta=0.02, inner=2, ga=2, norm="none", agg="const", lr=8e-3, temp=1.0, dtype=None, full=1),
)


def run(out, case, c, bug):
    model = LM()
    ref = copy.deepcopy(model)
    with torch.no_grad():
        [p.add_(torch.randn_like(p) * 0.04) for p in model.parameters()]
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    G, nq, T, (lo, hi), beta = c["G"], c["nq"], c["T"], c["eps"], c["beta"]
    B = G * nq
    o = {
        "num_generations": G,
        "clip.low": lo,
        "clip.high": hi,
        "kl.beta": beta,
        "kl.kind": "k3",
        "kl.place": "loss" if beta else "none",
        "adv.kind": "group",
        "adv.center": "mean",
        "adv.scale": {"group": "group_std", "none": "none"}[c["norm"]],
        "adv.ddof": 1,
        "adv.eps": 1e-4,
        "agg.kind": {"seq": "seq_mean_token_mean", "token": "token", "const": "seq_sum_const"}[c["agg"]],
        "agg.denominator": {"seq": "micro", "token": "global", "const": "micro"}[c["agg"]],
        "agg.div_ga": c["agg"] != "token",
        "logp.temperature": c["temp"],
        "optim.epochs": c["inner"],
        "num_mini_batches": 1,
        "eos_token_id": EOS,
    }
    if c["agg"] == "const":
        o |= {"loss_denominator": T, "agg.div_batch": True}
    D = Out(
        out,
        "l2_grpo_blog",
        case,
        dict(framework="my-grpo-notebook", version="1", algorithm="grpo", align="response", options=o)
        | ({"token_loss_includes_kl": True} if c["full"] == 2 else {}),
    )
    g = torch.Generator().manual_seed(3)
    step = 0
    for it in range(2):
        p, att = prompts(nq, 8, g)
        p, att = p.repeat_interleave(G, 0), att.repeat_interleave(G, 0)
        gid = torch.arange(B) // G + 50 * it
        ids, mask, gen = generate(model, p, T, temp=c["temp"], dtype=c["dtype"] or torch.float32)
        if it == 0 or bug != "stale_old_logps":
            with torch.no_grad():
                old = logps(model, ids, T, temp=c["temp"], dtype=c["dtype"])
                base = logps(ref, ids, T, temp=c["temp"], dtype=c["dtype"])
        if bug == "old_logps_without_temperature":
            with torch.no_grad():
                old = logps(model, ids, T, dtype=c["dtype"])
        if bug == "ref_is_policy":
            with torch.no_grad():
                base = old.clone()
        if bug == "mask_keeps_padding":
            lossmask = torch.ones_like(mask)
        elif bug == "mask_drops_first":
            lossmask = mask.clone()
            lossmask[:, 0] = False
        elif bug == "mask_off_by_one_end":
            lossmask = torch.cat([torch.ones(B, 1, dtype=torch.bool), mask[:, :-1]], 1) & torch.ones_like(mask)
        else:
            lossmask = mask
        sc = score(ids, mask)
        used = sc
        if bug == "std_of_batch":
            mu, sd = sc.view(nq, G).mean(1).repeat_interleave(G), sc.std()
        elif bug == "groups_interleaved":
            mu, sd = sc.view(G, nq).mean(0).repeat(G), sc.view(G, nq).std(0).repeat(G)
        elif bug == "repeat_for_repeat_interleave":
            mu, sd = sc.view(nq, G).mean(1).repeat(G), sc.view(nq, G).std(1).repeat(G)
        else:
            mu, sd = sc.view(nq, G).mean(1).repeat_interleave(G), sc.view(nq, G).std(1).repeat_interleave(G)
        a = sc - mu
        if c["norm"] == "group":
            a = a / (sd**2 + 1e-4 if bug == "divides_by_variance" else sd + 1e-4)
        if bug == "variance_eps_huge":
            a = (sc - mu) / (sd + 1.0)
        if bug == "adv_clamped_positive":
            a = a.clamp(min=0)
        if bug == "length_bias":
            a = a * mask.sum(1) / mask.sum(1).float().mean()
        if bug == "last_row_shift":
            a = a.roll(1)
        for inner in range(c["inner"]):
            step += 1
            opt.zero_grad()
            per = torch.randperm(B, generator=g) if c["full"] != 1 else torch.arange(B)
            chunks = per.chunk(c["ga"])
            tot = lossmask.sum()
            for mb, ix in enumerate(chunks):
                lp, ent = logps(model, ids[ix], T, temp=c["temp"], dtype=c["dtype"], ent=True)
                m = lossmask[ix].float()
                A = a[ix][:, None]
                ol = old[ix]
                if bug == "old_is_new_detached":
                    ol = lp.detach()
                d = lp - ol
                rho = d.exp()
                if bug == "ratio_of_probs_minus":
                    rho = (ol - lp).exp()
                l, h = 1 - lo, 1 + hi
                if bug == "clip_bounds_swapped":
                    l, h = 1 - hi, 1 + lo
                s1, s2 = rho * A, rho.clamp(l, h) * A
                pl = -torch.max(s1, s2) if bug == "max_for_min" else -s2 if bug == "clip_only" else -torch.min(s1, s2)
                kl = None
                tl = pl
                if beta:
                    e = base[ix] - lp
                    if bug == "k3_direction":
                        e = -e
                    if bug == "kl_no_grad":
                        e = e.detach()
                    kl = e.exp() - e - 1
                    if bug == "k3_without_linear":
                        kl = e.exp() - 1
                    tl = pl + beta * (1 if bug != "beta_times_twice" else 2) * kl
                if c["agg"] == "seq":
                    loss = ((tl * m).sum(1) / m.sum(1)).mean()
                    if bug == "divides_by_padded_length":
                        loss = ((tl * m).sum(1) / T).mean()
                    if bug == "mean_before_mask":
                        loss = (tl.mean(1) * (m.sum(1) > 0)).mean()
                    loss = loss if bug == "no_ga_division" else loss / c["ga"]
                elif c["agg"] == "token":
                    loss = (tl * m).sum() / tot
                    if bug == "token_mean_of_micro_undivided":
                        loss = (tl * m).sum() / m.sum()
                    if bug == "ga_twice":
                        loss = loss / c["ga"]
                else:
                    loss = (tl * m).sum() / (T * len(ix)) / c["ga"]
                    if bug == "const_counts_prompt":
                        loss = (tl * m).sum() / ((T + 8) * len(ix)) / c["ga"]
                dl = torch.autograd.grad(loss, lp, retain_graph=True)[0]
                loss.backward()
                t = dict(
                    response_mask=mask[ix], logp_new=lp, logp_old=ol, advantages=a[ix], scores=sc[ix], group_id=gid[ix], loss=loss, sample_id=ix + 1000 * it
                )
                if beta:
                    t["logp_ref"] = base[ix]
                if c["full"] >= 1:
                    t |= dict(dlogp=dl, kl=kl, response_ids=ids[ix][:, -T:])
                if c["full"] == 2:
                    t |= dict(token_loss=tl, logp_gen=gen[ix], entropy=ent, input_ids=ids[ix], attention_mask=torch.cat([att[ix], mask[ix]], 1))
                scal = dict(lr=c["lr"]) | ({"mean_reward": sc[ix].mean(), "mean_kl": mm(kl, m)} if c["full"] == 2 else {})
                opt_meta = dict(options=o | ({"num_items_in_batch": int(mask.sum())} if c["agg"] == "token" else {}), scalars_scope="micro_batch")
                D(step, scal, mb=mb, mbs=c["ga"], meta=opt_meta, **t)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
    return D


BUGS = dict(
    b_mask_keeps_padding=("h_everything", "the loss runs over padding after EOS too (mask of ones), though the response mask ends at EOS"),
    b_mask_off_by_one_end=("h_everything", "the loss mask is shifted by one: the first padding cell after EOS is trained on"),
    b_groups_interleaved=("h_everything", "scores are prompt-major but reshaped as (G, prompts): baselines mix prompts"),
    b_repeat_for_repeat_interleave=("h_everything", "group mean and std are tiled with repeat instead of repeat_interleave: rows get other groups' statistics"),
    b_divides_by_variance=("h_everything", "advantages are divided by the variance, not by the standard deviation"),
    b_k3_direction=("h_everything", "k3 is computed with exp(policy - ref), the wrong direction"),
    b_no_ga_division=(
        "h_everything",
        "the loss is not divided by the accumulation steps: gradients are twice too large",
        "TRL/DeepSpeed style where the engine divides",
    ),
    b_max_for_min=("h_cliphigher_little", "the maximum of the surrogates is taken before the minus instead of the minimum: optimistic clipping"),
    b_clip_bounds_swapped=("h_cliphigher_little", "clip-higher's bounds are exchanged: 1-0.28 and 1+0.2", "a run with clip 0.28 below and 0.2 above"),
    b_old_logps_without_temperature=(
        "h_cliphigher_little",
        "old log-probs are computed without the temperature that the new ones have: the ratio starts away from 1",
    ),
    b_token_mean_of_micro_undivided=(
        "h_cliphigher_little",
        "each micro-batch is divided by its own tokens, without division by the accumulation steps",
        "token mean per micro-batch with an engine that divides later",
    ),
    b_last_row_shift=("h_cliphigher_little", "advantages are rolled by one row: each response is trained with its neighbour's advantage"),
    b_kl_no_grad=("h_drgrpo_const", "the KL term is computed from detached log-probs: it counts in the loss, has no gradient"),
    b_k3_without_linear=("h_drgrpo_const", "the KL estimate is exp(e)-1 without the linear term"),
    b_const_counts_prompt=(
        "h_drgrpo_const",
        "Dr.GRPO divides by prompt plus generation length (28) and not by the declared generation length (20)",
        "Dr. GRPO with a constant of 28",
    ),
    b_ratio_of_probs_minus=("h_drgrpo_const", "the ratio is old over new"),
)
if __name__ == "__main__":
    main("l2_grpo_blog", HEALTHY, BUGS, run)
