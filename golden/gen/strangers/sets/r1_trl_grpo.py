"""r1: TRL 1.16 GRPOTrainer rewritten from its source; dumps what its hook does (token_loss, dlogp, kl, is_weights, rewards, logged numbers)."""

from world_r import *

EPS, T, P = 0.2, 24, 8


def train(
    folder,
    B,
    run,
    loss_type,
    beta=0.0,
    iters=1,
    spg=2,
    ga=1,
    per=16,
    ranks=1,
    mode="sequence_mask",
    cap=3.0,
    cmin=None,
    scale_rewards="group",
    tools=False,
    mask_trunc=False,
    temp=1.0,
    eps=0.2,
    eps_high=0.28,
    weights=(1.0, 0.5),
    seed=0,
    lr=4e-3,
    rollouts=3,
    delta=None,
):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    G = 8
    model = LM()
    ref = copy.deepcopy(model)
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    w = torch.tensor(weights)
    step = 1
    N = per * spg * ranks
    micro = 0
    ftemp = 1 / temp if B == "temperature_multiplied" else temp
    for ro in range(rollouts):
        pid, pm = prompts(N // G, P, g)
        pid = pid.repeat_interleave(G, 0)
        pm = pm.repeat_interleave(G, 0)
        holes = None
        if tools:
            s = torch.randint(3, 9, (N,), generator=g)
            a = torch.arange(T)[None]
            holes = (a >= s[:, None]) & (a < (s + 4)[:, None])
        rid, gen, cm = sample(bf16_copy(model), pid, T, g, temp, holes)
        tool = torch.ones_like(cm) if holes is None else ~(holes & cm)
        if tools:
            gen = gen.masked_fill(~(tool & cm), 0.0)
        gen = gen.masked_fill(~cm, 0.0)
        if B == "tool_mask_one_late":
            tool = torch.cat([torch.ones(N, 1, dtype=torch.bool), tool[:, :-1]], 1)
        full = cm.clone()
        rw = torch.stack(score(rid, cm, pid, g), 1)
        if mask_trunc:
            cm = cm & (rid[:, -1:].eq(EOS) | rid[:, -1:].eq(PAD))
        mask = cm & tool
        num = (full & tool if B == "num_items_before_truncation_mask" else mask).sum().float()
        with torch.no_grad():
            old = forward_lp(model, pid, rid, ftemp)[0]
            rlp = forward_lp(ref, pid, rid, ftemp)[0] if beta else None
            d = (old - gen) * (cm if B == "is_sum_over_tool_tokens" else mask)
            if B == "is_ratio_gen_over_train":
                d = -d
            if mode.startswith("sequence"):
                d = d.sum(-1, keepdim=True)
            isr = d.exp()
            if mode.endswith("truncate"):
                isr = isr.clamp(min=cmin, max=cap)
            else:
                isr = isr.masked_fill((isr < (cmin or 0)) | (isr > cap), 0.0)
        r = (rw * w).sum(1)
        gr = r.view(-1, G)
        mean = gr.mean(1).repeat_interleave(G)
        if scale_rewards == "group":
            sd = (rw.sum(1) if B == "std_of_unweighted_rewards" else r).view(-1, G).std(1).repeat_interleave(G)
        else:
            sd = r.std().expand_as(r)
        adv = r - mean
        if scale_rewards != "none":
            adv = adv / (sd + 1e-4)
        rows = dict(pid=pid, pm=pm, rid=rid, mask=mask, cm=cm, old=old, gen=gen, isr=isr, adv=adv, r=r, rw=rw, gid=torch.arange(N) // G + 1000 * (ro + 1))
        if beta:
            rows["ref"] = rlp
        per_rank = []
        for k in range(ranks):
            sl = slice(k * per * spg, (k + 1) * per * spg)
            x = {n: v[sl] for n, v in rows.items()}
            if B == "advantages_of_rank_zero":
                x["adv"] = adv[: per * spg]
            pi = torch.randperm(per * spg, generator=g)
            per_rank.append({n: v[pi] for n, v in x.items()})
        for it in range(iters):
            if it and B == "old_logps_left_in_first_order":
                pi = torch.randperm(per * spg, generator=g)
                per_rank = [{n: v if n == "old" else v[pi] for n, v in x.items()} for x in per_rank]
            for mb in range(spg):
                for k in range(ranks):
                    x = {n: v[mb * per : (mb + 1) * per] for n, v in per_rank[k].items()}
                    lp, ent, _ = forward_lp(model, x["pid"], x["rid"], ftemp)
                    A = x["adv"][:, None]
                    m = x["mask"].float()
                    c1 = (lp - x["old"]).exp()
                    if beta:
                        dd = x["ref"] - lp
                        kl = dd.exp() - dd - 1
                        kl = kl * ((x["old"] - lp).exp() if B == "kl_correction_inverted" else c1)
                    e_lo, e_hi = eps, eps_high
                    if B == "clip_range_decays":
                        e_lo, e_hi = eps / step, eps_high / step
                    if loss_type == "cispo":
                        cr = c1.clamp(max=eps_high)
                        if B == "cispo_weight_attached":
                            ptl = -cr * A * lp
                        elif B == "cispo_clip_one_plus":
                            ptl = -c1.clamp(max=1 + 0.2).detach() * A * lp
                        else:
                            ptl = -cr.detach() * A * lp
                    else:
                        c2 = c1.clamp(1 - e_lo, 1 + e_hi)
                        ptl = -torch.min(c1, c2) * A if B == "min_before_advantage" else -torch.min(c1 * A, c2 * A)
                    ptl = ptl * x["isr"]
                    if B == "is_weight_on_kl_too":
                        pass
                    if beta:
                        ptl = ptl + beta * kl
                    if loss_type == "grpo":
                        den = x["cm"].sum(-1) if B == "rows_divided_by_all_tokens" else m.sum(-1)
                        loss = ((ptl * m).sum(-1) / den.clamp(min=1.0)).mean() / ga
                    else:
                        nrm = num / ranks * ga / spg
                        if B == "num_items_not_rescaled":
                            nrm = num / ranks
                        loss = (ptl * m).sum() / nrm
                        if B == "divided_by_accumulation_twice":
                            loss = loss / ga
                    (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                    (loss / ranks).backward()
                    mm = lambda y: ((y * m).sum() / m.sum().clamp(min=1)).item()
                    sc = dict(loss=loss.item())
                    if ranks == 1:
                        sc["entropy"] = mm(ent.detach())
                        if loss_type != "cispo":
                            sc["clip_ratio/low_mean"] = mm(((c1 < 1 - e_lo) & (A < 0)).float())
                            sc["clip_ratio/high_mean"] = mm(((c1 > 1 + e_hi) & (A > 0)).float())
                        if beta:
                            sc["kl"] = mm(kl.detach())
                    o = dict(
                        loss_type=loss_type,
                        beta=beta,
                        epsilon=eps,
                        epsilon_high=eps_high,
                        num_iterations=iters,
                        steps_per_generation=spg,
                        gradient_accumulation_steps=ga,
                        num_generations=G,
                        temperature=temp,
                        scale_rewards=scale_rewards,
                        mask_truncated_completions=mask_trunc,
                        use_vllm=True,
                        vllm_importance_sampling_correction=True,
                        vllm_importance_sampling_mode=mode,
                        vllm_importance_sampling_clip_max=cap,
                        vllm_importance_sampling_clip_min=cmin,
                        max_completion_length=T,
                        importance_sampling_level="token",
                        reward_weights=list(weights),
                        num_items_in_batch=num.item(),
                        eos_token_id=EOS,
                        learning_rate=lr,
                        use_bias_correction_kl=True,
                    )
                    write(
                        folder,
                        f"step_{step:06d}_rank_{k}_mb_{micro}",
                        dict(
                            schema=1,
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run=run,
                            step=step,
                            rank=k,
                            world_size=ranks,
                            micro_batch=micro,
                            micro_batches=ga,
                            options=o,
                            scalars=sc,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=True,
                        ),
                        dict(
                            response_ids=x["rid"],
                            response_mask=x["mask"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            is_weights=x["isr"].squeeze(-1) if x["isr"].shape[1] == 1 else x["isr"],
                            logp_ref=x.get("ref"),
                            kl=kl if beta else None,
                            entropy=ent,
                            advantages=x["adv"],
                            scores=x["r"],
                            rewards_per_func=x["rw"],
                            group_id=x["gid"],
                            loss=loss,
                            token_loss=ptl.expand_as(lp),
                            dlogp=dlogp,
                        ),
                    )
                micro += 1
                if micro == ga:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    opt.step()
                    opt.zero_grad()
                    step += 1
                    micro = 0


S = dict(
    h_dapo_vllm_iter2=dict(loss_type="dapo", iters=2, rollouts=2, seed=3),
    h_grpo_tools_2rank_ga2_beta=dict(loss_type="grpo", beta=0.04, ranks=2, ga=2, spg=2, iters=2, per=8, tools=True, eps_high=0.2, rollouts=2, seed=5),
    h_cispo_trunc_ga2_batchstd=dict(
        loss_type="cispo",
        eps_high=5.0,
        spg=4,
        ga=2,
        per=8,
        mode="token_truncate",
        cap=2.0,
        scale_rewards="batch",
        mask_trunc=True,
        temp=0.8,
        rollouts=3,
        seed=7,
    ),
)
d, t, c = S
C = {k: (k, "", "") for k in S} | {
    "b_num_items_not_rescaled": (
        d,
        "num_items_in_batch is of the whole generation batch but is not rescaled to the accumulation window: the loss is steps_per_generation times too small",
        "TRL releases before the rescaling divide by this",
    ),
    "b_old_logps_left_in_first_order": (d, "the second iteration reshuffles the rows, all but the old log-probs: ratios are of other rows", ""),
    "b_min_before_advantage": (
        d,
        "the minimum of ratio and clipped ratio is taken before the advantage is multiplied: negative advantages are clipped on the wrong side",
        "",
    ),
    "b_clip_range_decays": (d, "the clip range is divided by the step number, although epsilon is a constant", ""),
    "b_is_ratio_gen_over_train": (d, "the importance weight of vLLM is the engine's probability over the trainer's, the reciprocal", ""),
    "b_tool_mask_one_late": (t, "the tool mask is one token late: the first tool token is trained on, the first token after the tool is not", ""),
    "b_rows_divided_by_all_tokens": (t, "row sums leave tool tokens out, row lengths count them", ""),
    "b_advantages_of_rank_zero": (t, "every rank takes the advantages of rank 0's slice", ""),
    "b_is_sum_over_tool_tokens": (t, "the sequence importance weight sums over tool tokens, whose engine log-prob is 0", ""),
    "b_kl_correction_inverted": (t, "the bias correction of the KL multiplies by old over new", ""),
    "b_cispo_weight_attached": (c, "the clamped ratio of cispo is not detached: the gradient is (1 + log p) times that of the ratio", ""),
    "b_cispo_clip_one_plus": (c, "cispo clamps at 1.2, although epsilon_high is declared 5 and absolute", "verl or TRL with another epsilon_high clamps there"),
    "b_num_items_before_truncation_mask": (c, "num_items is counted before truncated completions are masked: the loss is too small", ""),
    "b_divided_by_accumulation_twice": (c, "dapo-style normaliser and the division by the accumulation steps both", ""),
    "b_temperature_multiplied": (c, "the trainer multiplies logits by the temperature, the engine divides", ""),
    "b_std_of_unweighted_rewards": (d, "the standard deviation is that of the plain sum of the reward functions, the mean that of the weighted", ""),
}
main("r1_trl_grpo", C, S, train)
