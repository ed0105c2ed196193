"""TRL 1.16 GRPO as its trainer computes it. The dump is the full one (token_loss, dlogp, kl, entropies, some scalars), as TRL users with a hook have it;
the settings dapo and dr leave out token_loss and kl."""

from world_g import *

BASE = dict(
    loss_type="dapo",
    beta=0.0,
    epsilon=0.2,
    epsilon_high=0.2,
    delta=None,
    scale_rewards="group",
    num_generations=8,
    num_iterations=1,
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    per_device_train_batch_size=8,
    temperature=1.0,
    max_completion_length=24,
    mask_truncated_completions=False,
    importance_sampling_level="token",
    use_vllm=False,
    vllm_importance_sampling_correction=True,
    vllm_importance_sampling_mode="sequence_mask",
    vllm_importance_sampling_clip_max=3.0,
    vllm_importance_sampling_clip_min=None,
    use_bias_correction_kl=True,
    reward_weights=[1.0],
    top_entropy_quantile=1.0,
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
)
INNER = dict(world=1, dtype="float32", amp=False, lr=6e-3, gens=2, seed=11, tools=False, lazy=False, kind=0)


def S(inner={}, **k):
    return ({**BASE, **k}, {**INNER, **inner})


H = {
    "h_dapo_bf16": (S(dict(amp=True, lazy=True, lr=8e-3), epsilon_high=0.28), []),
    "h_bnpo_beta_iter2": (
        S(
            dict(seed=12),
            loss_type="bnpo",
            beta=0.02,
            num_iterations=2,
            steps_per_generation=2,
            per_device_train_batch_size=16,
            mask_truncated_completions=True,
            num_generations=4,
            temperature=0.9,
        ),
        [],
    ),
    "h_vllm_tokentrunc_2ranks_multi": (
        S(
            dict(world=2, seed=13, kind=1),
            use_vllm=True,
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_max=1.05,
            reward_weights=[1.0, 0.5],
            scale_rewards="batch",
            num_generations=8,
            delta=1.4,
            beta=0.04,
        ),
        [],
    ),
    "h_cispo_tools_seqmask": (
        S(
            dict(seed=14, tools=True),
            loss_type="cispo",
            epsilon_high=1.2,
            use_vllm=True,
            vllm_importance_sampling_mode="sequence_mask",
            vllm_importance_sampling_clip_max=1.06,
            scale_rewards="none",
            max_completion_length=40,
        ),
        [],
    ),
}
B = {
    "b_shift_mask": ("h_dapo_bf16", "mask-off-by-one", "The completion mask ends one token early, so EOS is never trained (old eos handling of a fork)."),
    "b_dapo_local_norm": (
        "h_dapo_bf16",
        "dapo-norm-no-rescale",
        "DAPO divides by the tokens of the whole generation batch without rescaling to one accumulation window: gradients are half of what they should be.",
    ),
    "b_popstd": ("h_dapo_bf16", "std-population", "Own reward code normalises with numpy's std (ddof 0)."),
    "b_group_cols": ("h_dapo_bf16", "group-axis", "rewards.view(G, -1) with mean over dim 0: groups mix the prompts."),
    "b_shuffle_adv": ("h_dapo_bf16", "advantages-not-shuffled", "The rows are shuffled after scoring but the advantages are not."),
    "b_clip_swapped": ("h_dapo_bf16", "clip-bounds-swapped", "epsilon and epsilon_high are swapped: 1-0.28 and 1+0.2."),
    "b_min_max": ("h_dapo_bf16", "max-for-min", "torch.max of the two surrogates instead of min."),
    "b_double_ga": ("h_bnpo_beta_iter2", "double-ga", "The fork divides by the accumulation steps and the Trainer divides again."),
    "b_kl_reversed": ("h_bnpo_beta_iter2", "kl-reversed", "k3 of the log-ratio the wrong way round (new - ref for ref - new)."),
    "b_kl_no_grad": ("h_bnpo_beta_iter2", "kl-detached", "The KL is computed under no_grad: its value is in the loss, its gradient is missing."),
    "b_old_is_new": (
        "h_bnpo_beta_iter2",
        "ratio-always-one",
        "In the second iteration old log-probs are recomputed with the current policy: the ratio is always 1.",
    ),
    "b_temp": ("h_bnpo_beta_iter2", "temperature-missing-in-old", "Old log-probs are computed at temperature 1, new ones at 0.9."),
    "b_truncated_in": ("h_bnpo_beta_iter2", "truncated-not-masked", "mask_truncated_completions only masks what ended with EOS (test inverted)."),
    "b_ref_updates": ("h_bnpo_beta_iter2", "ref-is-policy", "The reference model shares its weights with the policy (no copy), KL is always about 0."),
    "b_mean_rows": ("h_bnpo_beta_iter2", "bnpo-as-mean-of-rows", "bnpo's loss is a mean of row means (grpo) although bnpo is configured."),
    "b_is_inverted": ("h_vllm_tokentrunc_2ranks_multi", "is-inverted", "Importance weight exp(sampling - old) instead of exp(old - sampling)."),
    "b_is_new": ("h_vllm_tokentrunc_2ranks_multi", "is-truncated-below", "Importance weights are truncated from below (min for max)."),
    "b_rank_slice": ("h_vllm_tokentrunc_2ranks_multi", "wrong-rank-slice", "Every rank takes the advantages of the other rank."),
    "b_weights_ignored": ("h_vllm_tokentrunc_2ranks_multi", "reward-weights-ignored", "reward_weights are read but the sum is a plain one."),
    "b_local_std": ("h_vllm_tokentrunc_2ranks_multi", "batch-std-local", "The batch standard deviation is taken over the group means only."),
    "b_delta_after": ("h_vllm_tokentrunc_2ranks_multi", "delta-below", "delta bounds the ratio from below (min= for max=)."),
    "b_kl_double": ("h_vllm_tokentrunc_2ranks_multi", "beta-twice", "beta is multiplied into the KL twice."),
    "b_cispo_attached": ("h_cispo_tools_seqmask", "cispo-not-detached", "The clamped ratio of CISPO is not detached."),
    "b_tool_tokens": (
        "h_cispo_tools_seqmask",
        "tool-mask-not-in-loss",
        "The tool mask is applied to the normaliser but not to the sum of the loss: tool results are trained on.",
    ),
    "b_seq_mean": ("h_cispo_tools_seqmask", "seq-is-mean", "The sequence importance ratio averages the log difference instead of summing it."),
    "b_sign": ("h_cispo_tools_seqmask", "negative-advantages-dropped", "Negative advantages are clamped to 0 before the loss (half of the signal is lost)."),
    "b_cispo_low": ("h_cispo_tools_seqmask", "cispo-min", "clamp(min=epsilon_high) for clamp(max=epsilon_high)."),
}


def rowsplit(d, n):
    return [{k: (x[i * (len(x) // n) : (i + 1) * (len(x) // n)] if torch.is_tensor(x) and x.dim() else x) for k, x in d.items()} for i in range(n)]


def run(cfg, bug, out, name):
    c, s = cfg
    W, G, bs, spg, ga, T, temp = (
        s["world"],
        c["num_generations"],
        c["per_device_train_batch_size"],
        c["steps_per_generation"],
        c["gradient_accumulation_steps"],
        c["max_completion_length"],
        c["temperature"],
    )
    model = make(s["seed"])
    ref = model if bug == "ref-is-policy" else copy.deepcopy(model)
    gen = torch.Generator().manual_seed(s["seed"])
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"], weight_decay=0.0)
    step = 0
    lp_of = lambda m, i, a, t=temp, e=False: logps(m, i, a, T, t, s["amp"], e)
    for g in range(s["gens"]):
        N = W * bs * spg
        pid, patt = prompts(N // G, gen)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        ids, att, rid, cm, slp = sample(engine_of(model), pid, patt, T, gen, temp)
        r = rewards = None
        rpf = reward(rid, cm, s["kind"])
        rpf = rpf[:, None] if rpf.dim() == 1 else rpf
        trunc = ~(rid == EOS).any(1)
        tm = torch.ones_like(cm)
        if s["tools"]:  # columns of a tool's result
            for i in range(N):
                if i % 2 == 0 and cm[i].sum() > 8:
                    a = int(torch.randint(1, 3, (1,), generator=gen))
                    tm[i, a : a + 5] = 0
        if c["mask_truncated_completions"]:
            cm = cm * (trunc if bug == "truncated-not-masked" else ~trunc)[:, None].long()
        if bug == "mask-off-by-one":
            cm = cm * (rid != EOS).long()
        mask = cm * tm
        att = torch.cat([patt, cm], 1) if c["mask_truncated_completions"] else att
        items = mask.sum()
        w = torch.tensor(c["reward_weights"])
        w = torch.ones_like(w) if bug == "reward-weights-ignored" else w
        rewards = (rpf * w).nansum(1)
        if bug == "group-axis":
            v = rewards.view(G, -1)
            mean, std = v.mean(0).repeat(G), v.std(0).repeat(G)
        else:
            v = rewards.view(-1, G)
            mean, std = v.mean(1).repeat_interleave(G), v.std(1).repeat_interleave(G)
            if bug == "std-population":
                std = v.std(1, unbiased=False).repeat_interleave(G)
        if c["scale_rewards"] == "batch":
            std = v.mean(1).std().expand_as(rewards) if bug == "batch-std-local" else rewards.std().expand_as(rewards)
        adv = rewards - mean
        if c["scale_rewards"] != "none":
            adv = adv / (std + 1e-4)
        if bug == "wrong-rank-slice":
            adv = adv.roll(N // 2)
        if bug == "negative-advantages-dropped":
            adv = adv.clamp(min=0)
        with torch.no_grad():
            need_old = ga % (spg * c["num_iterations"]) != 0 or c["use_vllm"]
            old = lp_of(model, ids, att, 1.0 if bug == "temperature-missing-in-old" else temp)[0] if need_old else None
            refl = lp_of(ref, ids, att)[0] if c["beta"] else None
            isr = None
            if c["use_vllm"]:
                d = (old - slp) * mask
                if bug == "is-inverted":
                    d = -d
                if "sequence" in c["vllm_importance_sampling_mode"]:
                    d = d.sum(-1, keepdim=True)
                if bug == "seq-is-mean":
                    d = d / mask.sum(-1, keepdim=True).clamp(min=1)
                isr = d.exp()
                if "truncate" in c["vllm_importance_sampling_mode"]:
                    isr = isr.clamp(min=1.0) if bug == "is-truncated-below" else isr.clamp(max=c["vllm_importance_sampling_clip_max"])
                else:
                    isr = isr.masked_fill(isr > c["vllm_importance_sampling_clip_max"], 0.0)
        data = dict(
            ids=ids,
            att=att,
            rid=rid,
            mask=mask,
            cm=cm,
            slp=slp,
            adv=adv,
            scores=rewards,
            rpf=rpf,
            gid=torch.arange(N) // G + 1000 * g,
            sid=torch.arange(N) + N * g,
        )
        if old is not None:
            data["old"] = old
        if refl is not None:
            data["refl"] = refl
        if isr is not None:
            data["isr"] = isr
        ranks = []
        for part in rowsplit(data, W):
            p = torch.randperm(bs * spg, generator=gen)
            ranks.append(rowsplit({k: (x if bug == "advantages-not-shuffled" and k == "adv" else x[p]) for k, x in part.items()}, spg))
        for it in range(c["num_iterations"]):
            for k in range(spg):
                mb = k % ga
                if mb == 0:
                    opt.zero_grad()
                    step += 1
                for rk in range(W):
                    x = ranks[rk][k]
                    m = x["mask"].float()
                    lp, _, en = lp_of(model, x["ids"], x["att"], e=True)
                    A = x["adv"][:, None]
                    old = x.get("old", lp.detach())
                    if bug == "ratio-always-one":
                        old = lp.detach()
                    lr_ = lp - old
                    c1 = lr_.exp()
                    kl = None
                    if c["beta"]:
                        dd = x["refl"] - lp
                        if bug == "kl-reversed":
                            dd = -dd
                        kl = dd.exp() - dd - 1
                        if bug == "kl-detached":
                            kl = kl.detach()
                        if c["use_bias_correction_kl"]:
                            kl = kl * (c1.detach() if bug == "kl-detached" else c1)
                    el, eh = c["epsilon"], c["epsilon_high"]
                    if bug == "clip-bounds-swapped":
                        el, eh = eh, el
                    r0 = c1
                    if c["loss_type"] == "cispo":
                        cl = c1.clamp(min=eh) if bug == "cispo-min" else c1.clamp(max=eh)
                        if bug != "cispo-not-detached":
                            cl = cl.detach()
                        tl = -cl * A * lp
                    else:
                        c2 = c1.clamp(1 - el, 1 + eh)
                        if c["delta"] is not None:
                            c1 = c1.clamp(min=c["delta"]) if bug == "delta-below" else c1.clamp(max=c["delta"])
                        tl = -(torch.max if bug == "max-for-min" else torch.min)(c1 * A, c2 * A)
                    if c["use_vllm"]:
                        tl = tl * x["isr"]
                    if c["beta"]:
                        tl = tl + c["beta"] * kl * (c["beta"] if bug == "beta-twice" else 1)
                    if c["loss_type"] in ("dapo", "cispo"):
                        n = items.float() / W * ga / spg
                        if bug == "dapo-norm-no-rescale":
                            n = items.float() / W
                        loss = (tl * (x["cm"] if bug == "tool-mask-not-in-loss" else m)).sum() / n
                    else:
                        loss = (tl * m).sum() / m.sum().clamp(min=1)
                        if bug == "bnpo-as-mean-of-rows":
                            loss = ((tl * m).sum(-1) / m.sum(-1).clamp(min=1)).mean()
                        loss = loss / ga
                        if bug == "double-ga":
                            loss = loss / ga
                    (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                    (loss / W).backward()
                    t = dict(
                        input_ids=x["ids"],
                        attention_mask=x["att"],
                        response_ids=x["rid"],
                        response_mask=x["mask"].bool(),
                        advantages=x["adv"],
                        scores=x["scores"],
                        group_id=x["gid"],
                        logp_new=lp,
                        loss=loss,
                        sample_id=x["sid"],
                    )
                    if "old" in x:
                        t["logp_old"] = old
                    if not s["lazy"]:
                        t |= dict(
                            rewards_per_func=x["rpf"],
                            logp_ref=x.get("refl"),
                            logp_gen=x["slp"] if c["use_vllm"] else None,
                            is_weights=x["isr"].squeeze(1) if c["use_vllm"] and x["isr"].shape[1] == 1 else x.get("isr"),
                            kl=kl,
                            token_loss=tl.expand_as(lp),
                            entropy=en,
                        )
                    t["dlogp"] = dlogp
                    sc = dict(loss=loss.item())
                    if W == 1:
                        sc["entropy"] = ((en * m).sum() / m.sum().clamp(min=1)).item()
                    if W == 1 and kl is not None:
                        sc["kl"] = ((kl * m).sum() / m.sum().clamp(min=1)).item()
                    write(
                        out,
                        f"step_{step:06d}_rank_{rk}_mb_{mb}",
                        t,
                        dict(
                            schema=2,
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run=name,
                            step=step,
                            rank=rk,
                            world_size=W,
                            micro_batch=mb,
                            micro_batches=ga,
                            options={**{k: v for k, v in c.items()}, "num_items_in_batch": int(items), "eos_token_id": EOS},
                            scalars=sc,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=True,
                        ),
                    )
                if mb == ga - 1:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    opt.step()


if __name__ == "__main__":
    main("g1_trlgrpo", H, B, run)
