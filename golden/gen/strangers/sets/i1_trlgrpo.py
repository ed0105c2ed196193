"""TRL 1.16 GRPO as GRPOTrainer computes it. The hook dumps nearly everything: log-probs, kl, token_loss (KL included), dlogp, entropy, scalars."""

from world_i import *

NAME = "i1_trlgrpo"
T = 24
D = dict(
    loss_type="dapo",
    beta=0.0,
    epsilon=0.2,
    epsilon_high=0.2,
    num_iterations=1,
    ga=1,
    spg=2,
    bs=8,
    R=1,
    G=4,
    temp=1.0,
    bf16=False,
    vllm=None,
    scale_rewards="group",
    weights=[1.0, 1.0],
    lr=2e-2,
    rollouts=2,
    cap=3.0,
)


def C(**k):
    return {**D, **k}


H = {
    "h_dapo_spg4_kl": (C(loss_type="dapo", beta=0.04, ga=2, spg=4), ["--profile", "trl-grpo@1.16"]),
    "h_grpo_iter2_ranks": (C(loss_type="grpo", num_iterations=2, R=2, ga=1, spg=2, epsilon_high=0.28, weights=[1.0, 0.5]), ["--profile", "trl-grpo@1.16"]),
    "h_drgrpo_vllm_bf16": (
        C(loss_type="dr_grpo", beta=0.1, bf16=True, vllm="token_truncate", cap=2.0, spg=2, temp=0.8, scale_rewards="none"),
        ["--profile", "trl-grpo@1.16"],
    ),
    "h_bnpo_batchstd_ga": (C(loss_type="bnpo", ga=2, spg=4, bs=6, scale_rewards="batch", epsilon=0.1, epsilon_high=0.3), ["--profile", "trl-grpo@1.16"]),
}
A, B_, C_, E_ = list(H)
BUGS = {
    "b_ga_twice": (A, "the loss is divided by the gradient accumulation steps although the dapo normaliser already spans one window: half the gradient", ""),
    "b_mask_first": (
        A,
        "the completion mask lacks its first token (a shift of labels done twice): no loss at the first token of any response, but the count of items keeps it",
        "",
    ),
    "b_kl_sign": (A, "the KL term is subtracted in the token loss: the policy is pushed away from the reference", ""),
    "b_kl_swapped": (A, "k3 of the wrong direction: exp(new-ref)-(new-ref)-1", ""),
    "b_wrong_rank_adv": (B_, "rewards of the two ranks are not gathered: the slice of advantages of rank 0 is handed to rank 1 too", ""),
    "b_old_refreshed": (B_, "old log-probs are computed anew at every iteration, so that the ratio never leaves 1 in the second one", ""),
    "b_clip_swapped": (B_, "clip bounds swapped: 1-eps_high and 1+eps_low", "a configuration with epsilon 0.28 and epsilon_high 0.2 computes this"),
    "b_max_for_min": (B_, "the pessimistic minimum of the two surrogates became a maximum", ""),
    "b_group_interleaved": (B_, "rewards are reshaped to (G, groups) instead of (groups, G): the baseline mixes prompts", ""),
    "b_is_inverse": (C_, "importance weights between engine and trainer inverted: exp(gen - old)", ""),
    "b_temp_train": (C_, "the trainer's log-probs forget the sampling temperature in the pass with gradient, the old ones have it", ""),
    "b_drgrpo_len": (C_, "dr_grpo divides by the longest completion of the micro-batch in place of max_completion_length", ""),
    "b_is_on_kl": (
        C_,
        "the engine weight multiplies the KL term too",
        "frameworks that let the engine weight stand over the whole token loss (NeMo-RL style) compute this",
    ),
    "b_std_of_advantage": (E_, "batch std is taken per micro-batch slice after splitting, not over the generation batch", ""),
    "b_abs_adv_in_clip": (E_, "the surrogate uses |A| in the clipped branch, so negative advantages are never clipped and get the wrong sign", ""),
    "b_bnpo_pad": (E_, "bnpo divides by all cells of the padded completion matrix, not by the mask", ""),
}


def main(c, bug, out, run):
    g = torch.Generator().manual_seed(sum(map(ord, run)))
    mods = [LM()]
    model = mods[0]
    ref = copy.deepcopy(model)
    with torch.no_grad():  # the reference is an older policy
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    R, bs, spg, ga, G, mu = c["R"], c["bs"], c["spg"], c["ga"], c["G"], c["num_iterations"]
    N = R * bs * spg
    n = N // G
    step = 0
    sid0 = 0
    need_old = mu > 1 or spg > ga or c["vllm"]
    for roll in range(c["rollouts"]):
        pid, patt = prompts(n, 6, g)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        resp, mask, gen = sample(model, pid, patt, T, c["temp"], g)
        ids, att = torch.cat([pid, resp], 1), torch.cat([patt, mask], 1)
        num_items = mask.sum()
        with torch.no_grad():
            old = logps(model, ids, att, T, c["temp"], c["bf16"])[0] if need_old else None
            refl = logps(ref, ids, att, T, c["temp"], c["bf16"])[0] if c["beta"] else None
        isw = None
        if c["vllm"]:
            d = (old - gen) * mask
            if bug == "is_inverse":
                d = -d
            isw = torch.clamp(torch.exp(3.0 * 0 + d), max=c["cap"])
        rpf = score(resp, mask, g)
        rewards = (rpf * torch.tensor(c["weights"])).nansum(1)
        if bug == "group_interleaved":
            m_ = rewards.view(G, n).mean(0).repeat(G)
            s_ = rewards.view(G, n).std(0).repeat(G)
        else:
            m_ = rewards.view(n, G).mean(1).repeat_interleave(G)
            s_ = rewards.view(n, G).std(1).repeat_interleave(G)
        adv = rewards - m_
        if c["scale_rewards"] == "group":
            adv = adv / (s_ + 1e-4)
        elif c["scale_rewards"] == "batch":
            if bug != "std_of_advantage":
                adv = adv / (rewards.std() + 1e-4)
        lmask = mask.clone()
        if bug == "mask_first":
            lmask[:, 0] = 0
        gid = torch.arange(N) // G + roll * 100
        sid = torch.arange(N) + sid0
        sid0 += N
        perms = [torch.randperm(bs * spg, generator=g) + r * bs * spg for r in range(R)]
        for it in range(mu):
            if bug == "old_refreshed" and it > 0:
                with torch.no_grad():
                    old = logps(model, ids, att, T, c["temp"], c["bf16"])[0]
            for w in range(spg // ga):
                opt.zero_grad()
                files = []
                met = {"kl": [0.0, 0.0], "ent": [0.0, 0.0], "lo": [0.0, 0.0], "hi": [0.0, 0.0]}
                for a in range(ga):
                    for r in range(R):
                        ix = perms[r][(w * ga + a) * bs : (w * ga + a + 1) * bs]
                        M = lmask[ix].float()
                        tm = 1.0 if bug == "temp_train" else c["temp"]
                        lp, ent = logps(model, ids[ix], att[ix], T, tm, c["bf16"])
                        lp.retain_grad()
                        ad = adv[ix]
                        if bug == "wrong_rank_adv":
                            ad = adv[ix - r * bs * spg]
                        if bug == "std_of_advantage":
                            ad = ad / (rewards[ix].std() + 1e-4)
                        A = ad[:, None]
                        o = old[ix] if need_old else lp.detach()
                        c1 = torch.exp(lp - o)
                        lo, hi = c["epsilon"], c["epsilon_high"]
                        if bug == "clip_swapped":
                            lo, hi = hi, lo
                        c2 = torch.clamp(c1, 1 - lo, 1 + hi)
                        if bug == "max_for_min":
                            tl = -torch.max(c1 * A, c2 * A)
                        elif bug == "abs_adv_in_clip":
                            tl = -torch.min(c1 * A, c2 * A.abs())
                        else:
                            tl = -torch.min(c1 * A, c2 * A)
                        k = None
                        if isw is not None and bug != "is_on_kl":
                            tl = tl * isw[ix]
                        if c["beta"]:
                            dd = refl[ix] - lp
                            if bug == "kl_swapped":
                                dd = -dd
                            k = (torch.exp(dd) - dd - 1) * c1
                            tl = tl - c["beta"] * k if bug == "kl_sign" else tl + c["beta"] * k
                        if isw is not None and bug == "is_on_kl":
                            tl = tl * isw[ix]
                        lt = c["loss_type"]
                        if lt == "grpo":
                            loss = ((tl * M).sum(-1) / M.sum(-1).clamp(min=1.0)).mean() / ga
                        elif lt == "bnpo":
                            loss = (tl * M).sum() / (M.numel() if bug == "bnpo_pad" else M.sum().clamp(min=1.0)) / ga
                        elif lt == "dr_grpo":
                            loss = (tl * M).sum() / (tl.size(0) * (M.sum(1).max() if bug == "drgrpo_len" else c.get("mcl", T))) / ga
                        else:
                            loss = (tl * M).sum() / (num_items.clamp(min=1.0) / R * ga / spg)
                            if bug == "ga_twice":
                                loss = loss / ga
                        loss.backward()
                        for nm, x in (
                            ("kl", k),
                            ("ent", ent),
                            ("lo", ((c1 < 1 - c["epsilon"]) & (A < 0)).float()),
                            ("hi", ((c1 > 1 + c["epsilon_high"]) & (A > 0)).float()),
                        ):
                            if x is not None:
                                met[nm][0] += 0
                                met.setdefault((nm, a), []).append((float((x.detach() * M).sum()), float(M.sum())))
                        files.append(
                            (
                                a,
                                r,
                                dict(
                                    response_mask=M.bool(),
                                    advantages=ad,
                                    logp_new=lp,
                                    logp_old=old[ix] if need_old else None,
                                    logp_ref=refl[ix] if k is not None else None,
                                    logp_gen=gen[ix] if c["vllm"] else None,
                                    is_weights=isw[ix] if isw is not None else None,
                                    rewards_per_func=rpf[ix],
                                    scores=rewards[ix],
                                    group_id=gid[ix],
                                    sample_id=sid[ix],
                                    input_ids=ids[ix],
                                    attention_mask=att[ix],
                                    response_ids=resp[ix],
                                    token_loss=tl,
                                    kl=k,
                                    dlogp=lp.grad,
                                    loss=loss,
                                    entropy=ent,
                                ),
                            )
                        )
                for p in model.parameters():
                    p.grad.div_(R)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                mean = lambda nm: sum(sum(x for x, _ in met[(nm, a)]) / sum(y for _, y in met[(nm, a)]) for a in range(ga)) / ga
                sc = {"entropy": mean("ent"), "clip_ratio/low_mean": mean("lo"), "clip_ratio/high_mean": mean("hi")}
                if c["beta"]:
                    sc["kl"] = mean("kl")
                o_ = dict(
                    loss_type=c["loss_type"],
                    beta=c["beta"],
                    epsilon=c["epsilon"],
                    epsilon_high=c["epsilon_high"],
                    num_iterations=mu,
                    gradient_accumulation_steps=ga,
                    steps_per_generation=spg,
                    num_generations=G,
                    scale_rewards=c["scale_rewards"],
                    temperature=c["temp"],
                    max_completion_length=T,
                    reward_weights=c["weights"],
                    eos_token_id=EOS,
                    num_items_in_batch=int(num_items),
                    per_device_train_batch_size=bs,
                    learning_rate=c["lr"],
                )
                if c["vllm"]:
                    o_.update(
                        use_vllm=True,
                        vllm_importance_sampling_correction=True,
                        vllm_importance_sampling_mode=c["vllm"],
                        vllm_importance_sampling_clip_max=c["cap"],
                    )
                for a, r, t in files:
                    write(
                        out,
                        f"s{step:03d}_r{r}_m{a}",
                        dict(
                            schema=2,
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run=run,
                            step=step,
                            rank=r,
                            world_size=R,
                            micro_batch=a,
                            micro_batches=ga,
                            align="response",
                            options=o_,
                            scalars=sc,
                            scalars_scope="optimizer_step",
                            token_loss_includes_kl=True,
                            compute_dtype="float32",
                        ),
                        t,
                    )
                step += 1


runner(NAME, H, BUGS, main)
