"""TRL 1.16 GRPOTrainer rewritten from its source (_generate_and_score_completions, _compute_loss), two ranks, gradient accumulation.
The hook is that of a TRL user and dumps much: token_loss, kl, dlogp, loss, IS weights, scores; scalars only with one rank."""

from world_c import *

BASE = dict(
    seed=1,
    world=2,
    mb=8,
    ga=4,
    spg=4,
    iters=1,
    gens=4,
    T=28,
    P=6,
    steps=4,
    lr=4e-3,
    loss_type="bnpo",
    scale_rewards="group",
    level="token",
    eps=0.2,
    eps_high=None,
    delta=None,
    beta=0.0,
    temp=1.0,
    vllm=None,
    cap=3.0,
    tool=False,
    dtype="f32",
    trunc=False,
    weights=None,
    bck=True,
    agg="sum_then_normalize",
)
HEALTHY = {
    "h_bnpo_ga4_batchstd_kl": dict(BASE, seed=11, scale_rewards="batch", beta=0.05, ga=4, spg=8, temp=0.9, mb=4),
    "h_luspo_seq_none_bf16": dict(
        BASE,
        seed=12,
        loss_type="luspo",
        level="sequence",
        scale_rewards="none",
        dtype="bf16",
        world=1,
        ga=2,
        spg=4,
        iters=2,
        eps=0.02,
        eps_high=0.03,
        lr=6e-3,
    ),
    "h_dapo_tool_vllm_delta_mixed": dict(
        BASE,
        seed=13,
        loss_type="dapo",
        tool=True,
        vllm="token_truncate",
        cap=1.2,
        eps=0.2,
        eps_high=0.28,
        delta=1.5,
        dtype="mixed",
        ga=4,
        spg=8,
        mb=4,
        T=32,
    ),
    "h_grpo_seq_kl_trunc_rw": dict(
        BASE,
        seed=14,
        loss_type="grpo",
        level="sequence",
        beta=0.1,
        trunc=True,
        weights=[1.0, 0.5],
        world=1,
        ga=2,
        spg=4,
        iters=2,
        mb=8,
        eps=0.05,
        eps_high=0.08,
        delta=1.3,
        lr=6e-3,
    ),
}


def lps(m, c, ids, att, ent=False, temp=None):
    temp = c["temp"] if temp is None else temp
    if c["dtype"] == "mixed":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return logps(m, ids, att, c["T"], temp, ent, f32=True)
    return logps(m, ids, att, c["T"], temp, ent, f32=c["dtype"] != "bf16")


def run(root, c, bug):
    W, G, T, P = c["world"], c["gens"], c["T"], c["P"]
    model = make(c["seed"])
    if c["dtype"] == "bf16":
        model = model.bfloat16()
    ref = copy.deepcopy(model) if bug != "ref_is_policy" else model
    if c["beta"] and bug != "ref_is_policy":
        with torch.no_grad():  # starts from an SFT checkpoint that has moved a little from the reference
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.03)
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    gen = torch.Generator().manual_seed(c["seed"])
    eps_low, eps_high = c["eps"], c["eps_high"] or c["eps"]
    if bug == "eps_swapped":
        eps_low, eps_high = eps_high, eps_low
    step, per = 0, c["spg"] // c["ga"]
    n_func = 2 if c["weights"] else 1
    rw = torch.tensor(c["weights"] or [1.0])
    while step < c["steps"]:
        # ---- generation: a batch of spg micro-batches for each rank, gathered
        n = c["mb"] * c["spg"] * W
        pid, patt = prompts(n // G, P, gen)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        engine = copy.deepcopy(model).bfloat16() if c["vllm"] else model
        ids, att, cm, samp = generate(engine, pid, patt, T, gen, c["temp"])
        tool = None
        if c["tool"]:
            tool = torch.ones_like(cm)
            L = cm.sum(1)
            for i in range(n):
                if L[i] > 10:
                    a = int(torch.randint(2, 6, (1,), generator=gen))
                    tool[i, a : a + 3] = 0
                    ids[i, P + a : P + a + 3] = torch.randint(2, V, (3,), generator=gen)
            with torch.no_grad():
                samp = logps(engine, ids, att, T, c["temp"]) * cm * tool
        if c["trunc"]:
            ended = ((ids[:, P:] == EOS) & cm.bool()).any(1)
            cm = cm * ended[:, None].long()
            att = torch.cat([att[:, :P], cm], 1)
        if bug == "eos_out_of_mask":
            cm = cm * (ids[:, P:] != EOS).long()
        mask = cm if tool is None else cm * tool
        items = mask.sum().float()
        with torch.no_grad():
            old = None
            if c["ga"] % (c["spg"] * c["iters"]) or c["vllm"]:
                old = lps(model, c, ids, att, temp=1.0 if bug == "old_no_temp" else None)
            isr = None
            if c["vllm"]:
                d = (old - samp) * mask
                if bug == "is_inverted":
                    d = -d
                isr = torch.exp(d)
                isr = torch.clamp(isr, max=c["cap"])
                if bug == "old_is_engine":
                    old = samp
            refl = lps(ref, c, ids, att) if c["beta"] else None
        r1, r2 = reward(ids[:, P:], cm)
        rpf = torch.stack([r1, r2], 1)[:, :n_func]
        rew = (rpf * (rw if bug != "weights_ignored" else torch.ones_like(rw))).nansum(1)
        grp = rew.view(-1, G)
        mean = grp.mean(1).repeat_interleave(G)
        if bug == "loo_mean":
            mean = ((grp.sum(1, keepdim=True) - grp) / (G - 1)).flatten()
        if bug == "group_wrong_axis":
            mean = rew.view(G, -1).mean(0).repeat(G)
        if c["scale_rewards"] == "batch":
            std = rew.std().expand_as(rew)
            if bug == "batch_std_local":
                std = rew.view(W, -1).std(1).repeat_interleave(n // W)
            if bug == "batch_std_of_means":
                std = grp.mean(1).std().expand_as(rew)
        else:
            std = grp.std(1, unbiased=bug != "ddof0").repeat_interleave(G)
        adv = rew - mean
        if c["scale_rewards"] != "none" or bug == "none_divides":
            adv = adv / (std + 1e-4)
        gid = torch.arange(n) // G + step * 1000
        rows = dict(ids=ids, att=att, cm=cm, adv=adv, scores=rew, rpf=rpf, gid=gid, sid=torch.arange(n) + step * 10000)
        for k, v in dict(old=old, samp=samp if c["vllm"] else None, isr=isr, ref=refl, tool=tool).items():
            if v is not None:
                rows[k] = v
        # ---- each rank shuffles its own slice and splits it into micro-batches
        parts = []
        for r in range(W):
            perm = torch.randperm(n // W, generator=gen) + r * (n // W)
            d = {k: v[perm] for k, v in rows.items()}
            if bug == "adv_unshuffled":
                d["adv"] = rows["adv"][r * (n // W) : (r + 1) * (n // W)]
            parts.append(d)
        for it in range(c["iters"]):
            for s in range(per):
                if step >= c["steps"]:
                    break
                opt.zero_grad()
                for r in range(W):
                    for m_i in range(c["ga"]):
                        a = (s * c["ga"] + m_i) * c["mb"]
                        x = {k: v[a : a + c["mb"]] for k, v in parts[r].items()}
                        loss_step(root, c, bug, model, x, step, r, m_i, items, eps_low, eps_high)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                step += 1
        if bug == "ref_synced":
            ref.load_state_dict(model.state_dict())


def loss_step(root, c, bug, model, x, step, rank, mb, items, eps_low, eps_high):
    mask = x["cm"] * x["tool"] if "tool" in x and bug != "tool_in_loss" else x["cm"]
    T, ga = c["T"], c["ga"]
    lp, ent = lps(model, c, x["ids"], x["att"], True)
    adv = x["adv"].unsqueeze(1)
    old = x["old"] if "old" in x else lp.detach()
    log_ratio = lp - old
    if c["level"] == "token":
        w = log_ratio
    else:
        den = mask.sum(-1).clamp(min=1.0)
        if bug == "seq_ratio_sum":
            den = torch.ones_like(den)
        if bug == "seq_ratio_over_T":
            den = torch.full_like(den, T)
        w = ((log_ratio * mask).sum(-1) / den).unsqueeze(-1)
        if bug == "seq_ratio_unmasked":
            w = (log_ratio.sum(-1) / den).unsqueeze(-1)
    c1 = torch.exp(w)
    kl = None
    if c["beta"]:
        d = x["ref"] - lp
        if bug == "k3_reversed":
            d = -d
        kl = torch.exp(d) - d - 1
        if bug == "k3_no_minus_1":
            kl = torch.exp(d) - d
        if bug == "kl_coef_detached":
            kl = kl * c1.detach()
        elif bug != "kl_no_correction":
            kl = kl * c1
    c2 = torch.clamp(c1, 1 - eps_low, 1 + eps_high)
    if c["delta"]:
        if bug == "delta_min":
            c1 = torch.clamp(c1, min=c["delta"] - 1)
        elif bug == "delta_on_clipped":
            c2 = torch.clamp(torch.exp(w), max=c["delta"])
        else:
            c1 = torch.clamp(c1, max=c["delta"])
    tl = -torch.min(c1 * adv, c2 * adv)
    if bug == "max_for_min":
        tl = -torch.max(c1 * adv, c2 * adv)
    if "isr" in x:
        tl = tl * x["isr"]
    if kl is not None:
        tl = tl + c["beta"] * kl
    lt = c["loss_type"]
    if lt == "grpo":
        loss = ((tl * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean() / ga
        if bug == "empty_rows_dropped":
            loss = ((tl * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).sum() / (mask.sum(-1) > 0).sum().clamp(min=1) / ga
    elif lt == "bnpo":
        loss = (tl * mask).sum() / mask.sum().clamp(min=1.0) / ga
        if bug == "no_div_ga":
            loss = loss * ga
        if bug == "mean_over_padding":
            loss = (tl * mask).mean() / ga
    elif lt == "dapo":
        norm = items.clamp(min=1.0) / (c["world"] if bug != "no_world" else 1)
        norm = norm * (ga if bug != "window_short" else 1) / c["spg"]
        loss = (tl * mask).sum() / norm
        if bug == "dapo_div_ga_again":
            loss = loss / ga
    elif lt == "luspo":
        loss = (tl * mask).sum(-1).mean() / ga
        if bug == "luspo_token_mean":
            loss = ((tl * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean() / ga
        if bug == "luspo_bt_mean":
            loss = (tl * mask).mean() * mask.shape[0] / ga
    (g,) = torch.autograd.grad(loss, lp, retain_graph=True)
    (loss / c["world"]).backward()
    o = dict(
        loss_type=lt,
        scale_rewards=c["scale_rewards"],
        importance_sampling_level=c["level"],
        epsilon=c["eps"],
        epsilon_high=c["eps_high"] or c["eps"],
        delta=c["delta"],
        beta=c["beta"],
        temperature=c["temp"],
        num_generations=c["gens"],
        gradient_accumulation_steps=ga,
        steps_per_generation=c["spg"],
        num_iterations=c["iters"],
        per_device_train_batch_size=c["mb"],
        max_completion_length=T,
        num_items_in_batch=items.item(),
        mask_truncated_completions=c["trunc"],
        eos_token_id=EOS,
        reward_weights=c["weights"] or [1.0],
        use_bias_correction_kl=c["bck"],
        bf16=c["dtype"] == "mixed",
        max_grad_norm=1.0,
        learning_rate=c["lr"],
        use_vllm=bool(c["vllm"]),
    )
    if c["vllm"]:
        o |= dict(
            vllm_importance_sampling_correction=True,
            vllm_importance_sampling_mode=c["vllm"],
            vllm_importance_sampling_clip_max=c["cap"],
            vllm_importance_sampling_clip_min=None,
        )
    t = dict(
        input_ids=x["ids"],
        attention_mask=x["att"],
        response_ids=x["ids"][:, -T:],
        response_mask=mask,
        logp_new=lp,
        logp_old=x.get("old"),
        logp_ref=x.get("ref"),
        logp_gen=x.get("samp"),
        is_weights=x.get("isr"),
        kl=kl,
        entropy=ent,
        advantages=x["adv"],
        scores=x["scores"],
        rewards_per_func=x["rpf"],
        group_id=x["gid"],
        sample_id=x["sid"],
        token_loss=tl.expand_as(lp),
        dlogp=g,
        loss=loss,
    )
    sc = {"loss": loss.item()}
    if c["world"] == 1:
        gm = lambda v: v.float().mean() if v.shape[1] == 1 else (v * mask).sum() / mask.sum().clamp(min=1)
        sc |= {"entropy": gm(ent.detach())}
        if kl is not None:
            sc["kl"] = gm(kl.detach())
        lo, hi = (c1 < 1 - eps_low) & (adv < 0), (c1 > 1 + eps_high) & (adv > 0)
        sc |= {"clip_ratio/low_mean": gm(lo.float()), "clip_ratio/high_mean": gm(hi.float()), "clip_ratio/region_mean": gm((lo | hi).float())}
    write(
        root,
        step + 1,
        rank,
        mb,
        t,
        dict(
            schema=2,
            framework="trl",
            version="1.16.0",
            algorithm="grpo",
            run="c1",
            world_size=c["world"],
            micro_batches=ga,
            options=o,
            scalars=sc,
            scalars_scope="micro_batch",
            token_loss_includes_kl=True,
        ),
    )


A, B, C, D = HEALTHY
BUGS = {
    "b_no_div_ga": (A, "no_div_ga", "bnpo loss is not divided by the accumulation steps; the gradient is 4 times too large"),
    "b_batch_std_local": (A, "batch_std_local", "scale_rewards=batch takes the std of the rank's own rewards, not of the gathered ones"),
    "b_batch_std_of_means": (A, "batch_std_of_means", "the batch std is that of the group means"),
    "b_k3_reversed": (A, "k3_reversed", "the KL's k3 is taken of new - ref instead of ref - new"),
    "b_mean_over_padding": (A, "mean_over_padding", "bnpo divides by all cells with padding, not by the mask's sum"),
    "b_old_no_temp": (A, "old_no_temp", "the old log-probs are computed without the temperature"),
    "b_kl_coef_detached": (A, "kl_coef_detached", "the bias correction of the KL is detached: value right, gradient wrong"),
    "b_group_wrong_axis": (A, "group_wrong_axis", "rewards are viewed as (G, prompts) for the group's mean; baselines of other prompts"),
    "b_ref_synced": (A, "ref_synced", "the reference takes the policy's weights after every rollout although sync_ref_model is off"),
    "b_none_divides": (B, "none_divides", "scale_rewards=none still divides by the group's std"),
    "b_luspo_token_mean": (B, "luspo_token_mean", "luspo averages the tokens of a row instead of summing"),
    "b_luspo_bt_mean": (B, "luspo_bt_mean", "luspo's sum over tokens is a mean over columns times the rows"),
    "b_seq_ratio_sum": (B, "seq_ratio_sum", "the sequence's log-ratio is a sum, not divided by the length"),
    "b_seq_ratio_over_T": (B, "seq_ratio_over_T", "the sequence's log-ratio is divided by the padded length"),
    "b_eps_swapped": (C, "eps_swapped", "epsilon and epsilon_high are swapped"),
    "b_no_world": (C, "no_world", "dapo's normaliser is not divided by the number of processes: the loss is halved"),
    "b_window_short": (C, "window_short", "dapo's normaliser is not rescaled to the accumulation window: 4 times too large loss"),
    "b_is_inverted": (C, "is_inverted", "the vLLM importance ratio is engine over trainer"),
    "b_old_is_engine": (C, "old_is_engine", "old log-probs are those of the engine while the IS correction stays: corrected twice"),
    "b_tool_in_loss": (C, "tool_in_loss", "tokens of the tools are in the loss: the tool mask is not multiplied in"),
    "b_adv_unshuffled": (C, "adv_unshuffled", "the shuffle of the buffered rows leaves out the advantages"),
    "b_ddof0": (D, "ddof0", "the group's std is the biased one"),
    "b_weights_ignored": (D, "weights_ignored", "reward_weights are not applied to the sum of the reward functions"),
    "b_delta_on_clipped": (D, "delta_on_clipped", "delta bounds the clipped ratio in place of the eps interval"),
    "b_max_for_min": (D, "max_for_min", "the maximum of the two surrogates is taken"),
    "b_empty_rows_dropped": (D, "empty_rows_dropped", "rows that are masked as truncated do not count in the mean over rows"),
    "b_seq_ratio_unmasked": (D, "seq_ratio_unmasked", "the sequence's log-ratio sums padding too"),
}
if __name__ == "__main__":
    main("c1_trlgrpo", run, HEALTHY, BUGS)
