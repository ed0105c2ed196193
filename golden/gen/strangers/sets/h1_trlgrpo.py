"""TRL 1.16 GRPO, written out after GRPOTrainer; two ranks x gradient accumulation. Dumps what TRL's hook does (token_loss, kl, dlogp, loss, entropy, rewards per function)."""

from world_h import *


def nanstd(x, dim=None):
    return x.std() if dim is None else x.std(dim)


class Rank:
    pass


def go(f, c, bug):
    W, GA, SPG, IT, bs, G, P, maxT = 2, c["ga"], c["spg"], c["iters"], c["bs"], c["G"], 5, c["maxT"]
    model = LM()
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    rw = torch.tensor(c["rw"])
    step = 0
    o = dict(
        loss_type=c["loss"],
        beta=c["beta"],
        epsilon=c["eps"],
        epsilon_high=c["epsh"],
        num_iterations=IT,
        steps_per_generation=SPG,
        gradient_accumulation_steps=GA,
        scale_rewards=c["scale"],
        top_entropy_quantile=c["teq"],
        off_policy_mask_threshold=c["opm"],
        importance_sampling_level=c["level"],
        use_bias_correction_kl=c["bias"],
        num_generations=G,
        max_completion_length=maxT,
        temperature=c["temp"],
        per_device_train_batch_size=bs,
        use_vllm=c["vllm"],
        reward_weights=c["rw"],
        eos_token_id=EOS,
        learning_rate=c["lr"],
        delta=c["delta"],
        weight_decay=0.0,
    )
    if c["vllm"]:
        o.update(
            vllm_importance_sampling_correction=True,
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_max=c["cap"],
            vllm_importance_sampling_clip_min=None,
        )
    for roll in range(2):
        N = W * SPG * bs
        q = prompts(N // G, P, G)
        r, lg = generate(bf(model) if c["vllm"] else model, q, maxT, c["temp"])
        mask = rmask(r) & True
        if bug == "b_eos_out":
            mask = mask & (r != EOS)
        keep = int(rmask(r).sum(1).max())
        r, lg, mask = r[:, :keep], lg[:, :keep], mask[:, :keep].int()
        funcs = torch.stack([score(q, r, rmask(r)), ((r % 2 == 0) & rmask(r)).float().sum(1) / 10], 1)
        rewards = (funcs * (rw if bug != "b_weights_ignored" else torch.ones(2))).nansum(1)
        if bug == "b_group_axis":
            mu = rewards.view(G, -1).mean(0).repeat_interleave(G)[:N] if N // G == G else rewards.view(G, -1).mean(0).repeat(G)
            sd = rewards.view(G, -1).std(0).repeat(G)
        else:
            mu = rewards.view(-1, G).mean(1).repeat_interleave(G, 0)
            sd = rewards.view(-1, G).std(1).repeat_interleave(G, 0)
        if c["scale"] == "batch":
            sd = rewards.std().expand_as(rewards)
        adv = rewards - mu
        if c["scale"] != "none":
            adv = adv / (sd + 1e-4)
        if bug == "b_std_twice":
            adv = adv / (sd + 1e-4)
        items = mask.sum().float()
        loc = N // W
        buf = []
        for k in range(W):
            s = slice(k * loc, (k + 1) * loc)
            a = adv[slice(0, loc)] if bug == "b_rank_slice" else adv[s]
            d = dict(q=q[s], r=r[s], mask=mask[s], adv=a, gen=lg[s], scores=rewards[s], rpf=funcs[s], gid=torch.arange(N)[s] // G + roll * 1000000)
            d["old"] = lps(model, d["q"], d["r"], c["temp"], False)[0]
            d["ref"] = lps(ref, d["q"], d["r"], c["temp"], False)[0]
            if c["vllm"]:
                w = torch.exp((d["old"] - d["gen"]) * d["mask"])
                if bug == "b_is_inverse":
                    w = torch.exp((d["gen"] - d["old"]) * d["mask"])
                d["w"] = torch.clamp(w, max=c["cap"])
            pm = torch.randperm(loc)
            buf.append({n: x[pm] for n, x in d.items()})
            buf[-1]["items"] = mask[s].sum().float() if bug == "b_items_local" else items
            if bug == "b_adv_unshuffled":
                buf[-1]["adv"] = a
        for it in range(IT):
            for w0 in range(0, SPG, GA):
                step += 1
                opt.zero_grad()
                dumps = []
                # the entropy quantile is gathered over the ranks of one micro-step
                for mb in range(GA):
                    R = []
                    for k in range(W):
                        x = {n: (v[(w0 + mb) * bs : (w0 + mb + 1) * bs] if v.dim() else v) for n, v in buf[k].items()}
                        x["lp"], x["ent"], _, _ = lps(model, x["q"], x["r"], c["temp"])
                        R.append(x)
                    if c["teq"] < 1:
                        thr = torch.quantile(torch.cat([x["ent"][x["mask"].bool()] for x in R]).detach(), c["teq"] if bug == "b_topent_low" else 1 - c["teq"])
                    for k, x in enumerate(R):
                        lp, m, A, old = x["lp"], x["mask"], x["adv"][:, None], x["old"]
                        if bug == "b_old_refreshed" and it:
                            old = lp.detach()
                        lr = lp - old
                        if c["level"] == "token":
                            liw = lr
                        else:
                            liw = ((lr * m).sum(-1) / (1 if bug == "b_seq_nolen" else m.sum(-1).clamp(min=1)))[:, None]
                        c1 = liw.exp()
                        kl = None
                        if c["beta"]:
                            dd = x["ref"] - lp
                            if bug == "b_kl_reversed":
                                dd = -dd
                            kl = dd.exp() - dd - 1
                            if c["bias"]:
                                kl = kl * (c1.detach() if bug == "b_kl_detached_w" else c1)
                        lo, hi = (c["epsh"], c["eps"]) if bug == "b_clip_swapped" else (c["eps"], c["epsh"])
                        c2 = torch.clamp(c1, 1 - lo, 1 + hi)
                        if c["delta"] is not None:
                            c1 = torch.clamp(c1, max=c["delta"])
                        tl = -(torch.max if bug == "b_max" else torch.min)(c1 * A, c2 * A)
                        if c["opm"] is not None:
                            kd = (x["gen"] if c["vllm"] else old) - lp.detach()
                            if bug == "b_opm_sign":
                                kd = -kd
                            ak = (kd * m).sum(1, keepdim=True) / m.sum(1, keepdim=True).clamp(min=1.0)
                            tl = tl * ((A >= 0) | (ak <= c["opm"])).to(m.dtype)
                        if c["teq"] < 1:
                            tl = tl * ((x["ent"] * m >= thr) & m.bool())
                        if c["vllm"]:
                            tl = tl * x["w"]
                        if kl is not None:
                            tl = tl + c["beta"] * kl
                        tl = tl.expand_as(lp)
                        if c["loss"] == "grpo":
                            loss = ((tl * m).sum(-1) / m.sum(-1).clamp(min=1.0)).mean() / GA
                        elif c["loss"] == "dr_grpo":
                            loss = (tl * m).sum() / (tl.size(0) * (tl.size(1) if bug == "b_dr_actual_len" else maxT)) / GA
                        else:
                            nz = x["items"].clamp(min=1.0) / W
                            if bug != "b_items_window":
                                nz = nz * GA / SPG
                            loss = (tl * m).sum() / nz
                        if bug == "b_no_ga":
                            loss = loss * GA
                        (g,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        meta = dict(
                            schema=1,
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run=f.split("/")[-1],
                            step=step,
                            rank=k,
                            world_size=W,
                            micro_batch=mb,
                            micro_batches=GA,
                            options=dict(o, num_items_in_batch=float(items)),
                            scalars=dict(loss=loss.item()),
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=True,
                        )
                        dumps.append(
                            (
                                step,
                                k,
                                mb,
                                dict(
                                    response_ids=x["r"],
                                    response_mask=m,
                                    input_ids=torch.cat([x["q"], x["r"]], 1),
                                    logp_new=lp,
                                    logp_old=old,
                                    kl=kl,
                                    logp_ref=x["ref"] if c["beta"] else None,
                                    logp_gen=x["gen"] if c["vllm"] else None,
                                    is_weights=x.get("w"),
                                    entropy=x["ent"],
                                    advantages=x["adv"],
                                    scores=x["scores"],
                                    rewards_per_func=x["rpf"],
                                    group_id=x["gid"],
                                    loss=loss,
                                    token_loss=tl,
                                    dlogp=g,
                                ),
                                meta,
                            )
                        )
                for d in dumps:
                    put(f, *d)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()


base = dict(
    ga=2,
    spg=4,
    iters=2,
    bs=8,
    G=8,
    maxT=36,
    lr=6e-3,
    loss="dapo",
    beta=0.0,
    eps=0.2,
    epsh=0.28,
    scale="group",
    teq=1.0,
    opm=None,
    level="token",
    bias=True,
    vllm=False,
    cap=2.0,
    temp=1.0,
    rw=[1.0, 1.0],
    delta=None,
)
H = dict(
    h_dapo_kl=(dict(base, seed=11, beta=0.04), [], "dapo, corrected KL, num_iterations 2, two windows a generation"),
    h_dr_vllm_topent=(
        dict(base, seed=12, maxT=110, loss="dr_grpo", scale="none", teq=0.3, opm=0.003, vllm=True, cap=1.05, temp=0.9, epsh=0.2, delta=1.6, lr=8e-3),
        [],
        "dr_grpo, top entropy, off-policy mask, engine weights, delta",
    ),
    h_gspo_batch=(
        dict(
            base, seed=13, loss="grpo", level="sequence", scale="batch", bias=False, beta=0.02, eps=0.03, epsh=0.05, rw=[1.0, 0.4], ga=1, spg=2, iters=3, bs=16
        ),
        [],
        "sequence ratios, batch std, KL uncorrected, reward weights",
    ),
)
B = dict(
    b_eos_out=("h_dapo_kl", "EOS token left out of the completion mask"),
    b_weights_ignored=("h_gspo_batch", "reward_weights are not applied"),
    b_group_axis=("h_dapo_kl", "rewards viewed as (G, prompts): groups across prompts"),
    b_std_twice=("h_gspo_batch", "advantages are divided by the std twice"),
    b_rank_slice=("h_dapo_kl", "rank 1 trains on rank 0's advantages"),
    b_is_inverse=("h_dr_vllm_topent", "engine weight exp(gen - old), inverse"),
    b_items_local=("h_dapo_kl", "num_items_in_batch not gathered over ranks: loss twice too large"),
    b_items_window=("h_dapo_kl", "num_items not rescaled to an accumulation window"),
    b_adv_unshuffled=("h_gspo_batch", "advantages not shuffled with the rows"),
    b_topent_low=("h_dr_vllm_topent", "quantile at q instead of 1-q: keeps 70% of tokens"),
    b_old_refreshed=("h_dapo_kl", "old log-probs replaced by the current ones from the second iteration on: no clipping"),
    b_seq_nolen=("h_gspo_batch", "sequence log-ratio is a sum, not divided by length"),
    b_kl_reversed=("h_gspo_batch", "k3 of lp - ref instead of ref - lp"),
    b_kl_detached_w=("h_dapo_kl", "bias-correction weight of KL is detached: gradient wrong"),
    b_clip_swapped=("h_dapo_kl", "clip bounds swapped"),
    b_opm_sign=("h_dr_vllm_topent", "off-policy mask with the log-ratio's sign flipped"),
    b_max=("h_dr_vllm_topent", "max instead of min of the two surrogates"),
)
main("h1_trlgrpo", H, B, go)
