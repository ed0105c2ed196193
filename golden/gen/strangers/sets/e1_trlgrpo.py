"""TRL 1.16 GRPO as GRPOTrainer computes it. h_dapo_vllm and h_grpo_beta: full hook (as `verify export trl`); the others lazy:
mask, ids, log-probs, advantages, rewards, loss, nothing more."""

from world_e import *

D = dict(
    G=8,
    prompts=4,
    bs=4,
    ga=4,
    spg=8,
    iters=1,
    world=1,
    T=32,
    beta=0.0,
    temp=1.0,
    eps=(0.2, 0.2),
    loss="dapo",
    scale="group",
    w=[1.0],
    vllm=None,
    cmax=3.0,
    cmin=None,
    mtc=False,
    full=False,
    rollouts=2,
    lr=0.02,
    noise=0.02,
    seed=1,
    head_bf16=False,
)
H = {
    "h_dapo_vllm": dict(D, vllm="sequence_mask", full=True, noise=0.06, cmax=1.25),
    "h_grpo_beta": dict(D, loss="grpo", beta=0.04, G=4, prompts=6, bs=6, ga=2, spg=4, iters=2, w=[1.0, 0.5], full=True, temp=0.9, seed=2, eps=(0.2, 0.28)),
    "h_bnpo_batch": dict(
        D, loss="bnpo", scale="batch", G=6, prompts=4, bs=6, ga=2, spg=4, mtc=True, vllm="token_truncate", cmax=2.0, T=24, seed=3, noise=0.05, w=[0.7, 0.3]
    ),
    "h_drgrpo": dict(D, loss="dr_grpo", scale="none", beta=0.02, iters=2, eps=(0.2, 0.28), G=8, prompts=3, bs=6, ga=4, spg=4, seed=4, head_bf16=True),
    "h_dapo_2rank": dict(
        D, world=2, iters=2, vllm="token_mask", cmax=1.6, cmin=0.6, beta=0.05, G=4, prompts=8, bs=4, ga=2, spg=4, seed=5, noise=0.06, temp=0.8, w=[1.0, 0.3]
    ),
}
B = {
    "b_ddof0": ("h_dapo_vllm", "std-ddof0", "group std is taken with unbiased=False, so advantages are about 7 % too large"),
    "b_group_axis": ("h_grpo_beta", "group-axis", "rewards are viewed as (num_generations, -1) and averaged over dim 0: the baseline mixes prompts"),
    "b_items_not_scaled": (
        "h_dapo_vllm",
        "dapo-items-unscaled",
        "num_items_in_batch of the generation batch is not rescaled to one accumulation window: the loss is half",
    ),
    "b_dapo_div_ga": ("h_dapo_vllm", "dapo-double-ga", "the dapo loss is divided by the accumulation steps although its normaliser has them already"),
    "b_is_inverse": ("h_dapo_vllm", "is-inverse", "the vLLM importance ratio is exp(sampling - old) instead of exp(old - sampling)"),
    "b_is_clamp_not_mask": ("h_dapo_vllm", "is-clamp", "sequences outside the bound keep the clamped ratio although sequence_mask is set"),
    "b_kl_reversed": ("h_grpo_beta", "kl-reversed", "k3 is computed with policy and reference exchanged"),
    "b_old_recomputed": ("h_grpo_beta", "old-detached", "old log-probs are replaced by the detached new ones in every iteration: the ratio is always 1"),
    "b_ref_temp": ("h_grpo_beta", "ref-temperature", "reference log-probs are taken without the temperature: the KL is not one of the two policies"),
    "b_weights_squared": ("h_grpo_beta", "reward-weights-twice", "reward weights are applied twice, 0.25 instead of 0.5 for the second function"),
    "b_len_padded": ("h_grpo_beta", "mean-over-padded", "the mean of a row divides by the padded length instead of its own tokens"),
    "b_eos_masked": ("h_bnpo_batch", "mask-without-eos", "the completion mask ends before the EOS: no gradient reaches the stopping token"),
    "b_batch_std_centred": ("h_bnpo_batch", "std-of-group-for-batch", "scale_rewards=batch divides by the std of the centred rewards instead of the raw ones"),
    "b_trunc_inverted": (
        "h_bnpo_batch",
        "truncated-inverted",
        "mask_truncated_completions masks the finished completions of even rows and keeps the truncated ones",
    ),
    "b_adv_unshuffled": ("h_drgrpo", "adv-not-shuffled", "all of the generation batch is shuffled but the advantages: every row has another row's advantage"),
    "b_clip_swapped": ("h_drgrpo", "clip-swapped", "epsilon and epsilon_high are exchanged: 1-0.28 to 1+0.2"),
    "b_max_for_min": ("h_drgrpo", "max-for-min", "the optimistic side of the clip: -max(r A, clip(r) A)"),
    "b_dr_width": ("h_drgrpo", "dr-divides-by-width", "dr_grpo divides by the width of prompt and completion instead of max_completion_length"),
    "b_rank_slice": ("h_dapo_2rank", "rank-slice", "rank 1 takes the advantages of rank 0's slice of the gathered batch"),
    "b_items_local": ("h_dapo_2rank", "items-local", "num_items counts the tokens of the own rank but is still divided by the number of processes"),
    "b_old_no_temp": ("h_dapo_2rank", "old-without-temperature", "old log-probs are recomputed at temperature 1 while the new ones are divided by 0.8"),
}


def run(out, case, c, bug, exp):
    C = type("C", (), c)
    gen = torch.Generator().manual_seed(C.seed)
    torch.manual_seed(C.seed)
    pol = LM(seed=C.seed, head_bf16=C.head_bf16)
    ref = copy.deepcopy(pol)
    opt = torch.optim.AdamW(pol.parameters(), lr=C.lr, weight_decay=0.0)
    d = Dump(out, "e1_trlgrpo", case, framework="trl", version="1.16.0", algorithm="grpo", token_loss_includes_kl=True, **exp)
    o = dict(
        num_generations=C.G,
        gradient_accumulation_steps=C.ga,
        steps_per_generation=C.spg,
        num_iterations=C.iters,
        per_device_train_batch_size=C.bs,
        max_completion_length=C.T,
        beta=C.beta,
        temperature=C.temp,
        epsilon=C.eps[0],
        epsilon_high=C.eps[1],
        loss_type=C.loss,
        scale_rewards=C.scale,
        reward_weights=C.w,
        mask_truncated_completions=C.mtc,
        learning_rate=C.lr,
        eos_token_id=EOS,
        use_vllm=C.vllm is not None,
    )
    if C.vllm:
        o |= dict(
            vllm_importance_sampling_mode=C.vllm,
            vllm_importance_sampling_clip_max=C.cmax,
            vllm_importance_sampling_clip_min=C.cmin,
            vllm_importance_sampling_correction=True,
        )
    step = 0
    P = 6
    N = C.bs * C.spg * C.world
    assert N == C.prompts * C.G or N % C.G == 0
    for ro in range(C.rollouts):
        pr = prompts_(N // C.G, P, gen).repeat_interleave(C.G, 0)
        ids, mask, lpg = sample(engine(pol, C.noise if C.vllm else 0.0, C.seed), pr, C.T, C.temp, gen)
        R = rewards2(ids, mask, C.T)[:, : len(C.w)]
        w = torch.tensor(C.w)
        if bug == "reward-weights-twice":
            R_ = R * w
        else:
            R_ = R
        r = (R_ * w).nansum(1)
        if bug == "group-axis":
            mean = r.view(C.G, -1).mean(0).repeat_interleave(C.G)
            std = r.view(C.G, -1).std(0).repeat_interleave(C.G)
        else:
            mean = r.view(-1, C.G).mean(1).repeat_interleave(C.G)
            std = r.view(-1, C.G).std(1, unbiased=bug != "std-ddof0").repeat_interleave(C.G)
        adv = r - mean
        if C.scale == "batch":
            std = (adv if bug == "std-of-group-for-batch" else r).std().expand_as(r)
        if C.scale != "none":
            adv = adv / (std + 1e-4)
        num_items = mask.sum() if not C.mtc else mask.sum()
        cm = mask.clone()
        if bug == "mask-without-eos":
            cm &= ids != EOS
        if C.mtc:
            trunc = ~(ids == EOS).any(1)
            if bug == "truncated-inverted":
                trunc = ~trunc & (torch.arange(N) % 2 == 0)
            cm = cm & ~trunc[:, None]
            num_items = cm.sum()
        with torch.no_grad():
            need_old = C.ga % (C.spg * C.iters) != 0 or C.vllm
            old = logps(pol, pr, ids, 1.0 if bug == "old-without-temperature" else C.temp) if need_old else None
            rl = logps(ref, pr, ids, 1.0 if bug == "ref-temperature" else C.temp) if C.beta else None
            isr = None
            if C.vllm:
                df = (old - lpg) * cm
                if bug == "is-inverse":
                    df = -df
                isr = torch.exp(df.sum(1, keepdim=True) if "sequence" in C.vllm else df)
                if "truncate" in C.vllm or bug == "is-clamp":
                    isr = isr.clamp(min=C.cmin, max=C.cmax)
                else:
                    isr = isr.masked_fill((isr < (C.cmin or -1.0)) | (isr > C.cmax), 0.0)
        batch = dict(
            pr=pr,
            ids=ids,
            cm=cm,
            adv=adv,
            old=old,
            rl=rl,
            isr=isr,
            lpg=lpg if C.vllm else None,
            scores=r,
            R=R,
            g=torch.arange(N) // C.G + 1000 * ro,
            sid=torch.arange(N) + 1000 * ro,
        )
        n_loc = N // C.world
        parts = []
        for rk in range(C.world):
            perm = torch.randperm(n_loc, generator=gen)
            b = {k: v[rk * n_loc : (rk + 1) * n_loc] if v is not None else None for k, v in batch.items()}
            if bug == "rank-slice" and rk:
                b["adv"] = adv[:n_loc]
            b = {k: (v if k == "adv" and bug == "adv-not-shuffled" else v[perm]) if v is not None else None for k, v in b.items()}
            parts.append([{k: v[i * C.bs : (i + 1) * C.bs] if v is not None else None for k, v in b.items()} for i in range(C.spg)])
        items = [batch["cm"][rk * n_loc : (rk + 1) * n_loc].sum() if bug == "items-local" else num_items for rk in range(C.world)]
        for it in range(C.iters):
            for s0 in range(0, C.spg, C.ga):
                step += 1
                for mb in range(C.ga):
                    for rk in range(C.world):
                        x = parts[rk][s0 + mb]
                        m = x["cm"].float()
                        A = x["adv"].unsqueeze(1)
                        new, ent = logps(pol, x["pr"], x["ids"], C.temp, True)
                        old = new.detach() if x["old"] is None or bug == "old-detached" else x["old"]
                        ratio = torch.exp(new - old)
                        kl = None
                        if C.beta:
                            q = x["rl"] - new
                            if bug == "kl-reversed":
                                q = -q
                            kl = (torch.exp(q) - q - 1) * ratio
                        lo, hi = C.eps if bug != "clip-swapped" else C.eps[::-1]
                        l1, l2 = ratio * A, ratio.clamp(1 - lo, 1 + hi) * A
                        tl = -(torch.max if bug == "max-for-min" else torch.min)(l1, l2)
                        if C.vllm:
                            tl = tl * x["isr"]
                        if C.beta:
                            tl = tl + C.beta * kl
                        if C.loss == "grpo":
                            n = m.sum(1).clamp(min=1.0) if bug != "mean-over-padded" else m.shape[1]
                            loss = ((tl * m).sum(1) / n).mean() / C.ga
                        elif C.loss == "bnpo":
                            loss = (tl * m).sum() / m.sum().clamp(min=1.0) / C.ga
                        elif C.loss == "dr_grpo":
                            loss = (tl * m).sum() / (len(tl) * (C.T if bug != "dr-divides-by-width" else x["pr"].shape[1] + x["ids"].shape[1])) / C.ga
                        else:
                            nz = items[rk].clamp(min=1.0) / C.world * (C.ga / C.spg)
                            if bug == "dapo-items-unscaled":
                                nz = items[rk] / C.world
                            loss = (tl * m).sum() / nz
                            if bug == "dapo-double-ga":
                                loss = loss / C.ga
                        (dl,) = torch.autograd.grad(loss, new, retain_graph=True)
                        (loss / C.world).backward()
                        t = dict(
                            input_ids=torch.cat([x["pr"], x["ids"]], 1),
                            attention_mask=torch.cat([x["pr"] != PAD, x["cm"] if not C.mtc else x["ids"] != PAD], 1).long(),
                            response_ids=x["ids"],
                            response_mask=x["cm"].long(),
                            logp_new=new,
                            logp_old=x["old"],
                            logp_ref=x["rl"],
                            logp_gen=x["lpg"],
                            advantages=x["adv"],
                            scores=x["scores"],
                            group_id=x["g"],
                            loss=loss,
                            rewards_per_func=x["R"],
                        )
                        sc = dict(loss=loss.item())
                        if C.full:
                            t |= dict(kl=kl, is_weights=x["isr"], entropy=ent, token_loss=tl, dlogp=dl)
                            sc |= {
                                "entropy": mmean(ent, m).item(),
                                "clip_ratio/low_mean": mmean(((ratio < 1 - C.eps[0]) & (A < 0)).float(), m).item(),
                                "clip_ratio/high_mean": mmean(((ratio > 1 + C.eps[1]) & (A > 0)).float(), m).item(),
                            }
                            if C.beta:
                                sc["kl"] = mmean(kl, m).item()
                        d(step, mb, C.ga, t, rk, C.world, options=dict(o, num_items_in_batch=int(items[rk])), scalars=sc, scalars_scope="micro_batch")
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()
                opt.zero_grad()


if __name__ == "__main__":
    main("e1_trlgrpo", H, B, run)
