"""GRPOTrainer of TRL 1.16 in a small world, rewritten from its source. Dump: what the trainer has at hand in _compute_loss (all of it: token_loss, kl, dlogp, is weights, scalars)."""

from world_m import *

BASE = dict(
    loss_type="grpo",
    num_generations=4,
    groups=8,
    steps_per_generation=4,
    gradient_accumulation_steps=2,
    num_iterations=2,
    beta=0.0,
    epsilon=0.2,
    epsilon_high=None,
    delta=None,
    scale_rewards="group",
    multi_objective_aggregation="sum_then_normalize",
    top_entropy_quantile=1.0,
    use_vllm=False,
    vllm_importance_sampling_mode="sequence_mask",
    vllm_importance_sampling_correction=True,
    vllm_importance_sampling_clip_max=3.0,
    vllm_importance_sampling_clip_min=None,
    mask_truncated_completions=False,
    importance_sampling_level="token",
    entropy_coef=0.0,
    use_bias_correction_kl=True,
    temperature=1.0,
    max_completion_length=24,
    reward_weights=[1.0, 0.5, 0.3],
    world=1,
    rollouts=2,
    learning_rate=6e-3,
    seed=1,
)


def nanstd(x, dim=None, keepdim=False):
    m = torch.nanmean(x, dim=dim, keepdim=True) if dim is not None else torch.nanmean(x)
    v = torch.nanmean((x - m) ** 2, dim=dim, keepdim=keepdim) if dim is not None else torch.nanmean((x - m) ** 2)
    n = (~x.isnan()).sum(dim=dim, keepdim=keepdim) if dim is not None else (~x.isnan()).sum()
    return torch.sqrt(torch.where(n > 1, v * n / (n - 1), torch.full_like(v, float("nan"))))


def run(cfg, bug, folder, case):
    C = {**BASE, **cfg}
    G = C["num_generations"]
    W = C["world"]
    T = C["max_completion_length"]
    S, A = C["steps_per_generation"], C["gradient_accumulation_steps"]
    model = LM()
    ref = copy.deepcopy(model)
    opt = torch.optim.AdamW(model.parameters(), lr=C["learning_rate"], weight_decay=0.0)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.02 * torch.randn_like(p))
    w = torch.tensor(C["reward_weights"])
    step = 0
    eps_lo = C["epsilon"]
    eps_hi = C["epsilon_high"] if C["epsilon_high"] is not None else eps_lo
    if bug == "clip-swapped":
        eps_lo, eps_hi = eps_hi, eps_lo
    stale = bf16_copy(model)
    opts = {k: v for k, v in C.items() if k not in ("unscorable", "groups", "world", "rollouts", "seed")}
    for roll in range(C["rollouts"]):
        P = prompts_of(C["groups"] * W, 6).repeat_interleave(G, 0)
        engine = bf16_copy(model)
        if bug == "stale-engine" and roll:
            engine = stale
        if bug == "engine-temperature":
            ids, cm, glp, ended, _ = generate(engine, P, T, 0.7)
        else:
            ids, cm, glp, ended, _ = generate(engine, P, T, C["temperature"])
        if bug == "eos-dropped":
            cm = cm * (ids != EOS).long()
        rf = torch.stack(rewards_of(ids, (ids != PAD).long()), 1)
        rf[torch.rand(len(rf)) < 0.15, 2] = float("nan")
        if C.get("unscorable"):
            rf[5] = float("nan")
        if C["mask_truncated_completions"]:
            cm = cm * ended[:, None].long()
        un = rf.isnan().all(1)
        if C["multi_objective_aggregation"] == "sum_then_normalize":
            r = (rf * w).nansum(1)
            if bug == "nanmean-rewards":
                r = torch.nanmean(rf * w, 1)
            if bug != "unscorable-zero":
                r[un] = float("nan")
            g = r.view(-1, G)
            if bug == "group-view":
                g = r.view(G, -1).T
                mean = torch.nanmean(r.view(G, -1), 0).repeat(G)
                sd = nanstd(r.view(G, -1), 0).repeat(G)
            else:
                mean = torch.nanmean(g, 1).repeat_interleave(G)
                sd = nanstd(g, 1).repeat_interleave(G)
            if C["scale_rewards"] == "batch":
                sd = nanstd(r).expand_as(r)
            adv = r - mean
            if bug == "batch-mean":
                adv = r - torch.nanmean(r)
            if bug == "var-not-std":
                sd = sd**2
            if C["scale_rewards"] != "none":
                adv = adv / (sd + 1e-4)
        else:
            g = rf.view(-1, G, 3)
            rk = ((g - torch.nanmean(g, 1, True)) / (nanstd(g, 1, True) + 1e-4)).view(-1, 3)
            r0 = (rk * w).nansum(1)
            adv = (r0 - torch.nanmean(r0)) / (nanstd(r0) + 1e-4)
            r = (rf * w).nansum(1)
            if bug == "gdpo-weights-dropped":
                r0 = rk.nansum(1)
                adv = (r0 - r0.mean()) / (nanstd(r0) + 1e-4)
        adv = torch.nan_to_num(adv, nan=0.0)
        if bug == "adv-abs-clip":
            adv = adv.clamp(-1, 1)
        with torch.no_grad():
            old = score(model, P, ids, C["temperature"])[0]
            rlp = score(ref, P, ids, C["temperature"])[0]
            if bug == "ref-temperature":
                rlp = score(ref, P, ids, 1.0)[0]
        isr = None
        if C["use_vllm"]:
            d = (old - glp) * cm
            if bug == "is-inverted":
                d = -d
            if "sequence" in C["vllm_importance_sampling_mode"]:
                d = d.sum(-1, keepdim=True)
            isr = d.exp()
            hi = C["vllm_importance_sampling_clip_max"]
            lo = C["vllm_importance_sampling_clip_min"]
            isr = (
                isr.clamp(min=lo, max=hi)
                if "truncate" in C["vllm_importance_sampling_mode"]
                else isr.masked_fill((isr > hi) | (isr < (lo if lo is not None else -1)), 0.0)
            )
        items = cm.sum().float()
        gid = torch.arange(len(r)) // G + roll * 1000
        n = len(r) // W
        nm = n // S
        perm = [torch.randperm(n) + k * n for k in range(W)]
        if bug == "perm-advantages":
            adv = torch.cat([adv[torch.randperm(n) + k * n] for k in range(W)])
        for it in range(C["num_iterations"]):
            for s0 in range(0, S, A):
                opt.zero_grad()
                step += 1
                for k in range(W):
                    for mb in range(A):
                        i = perm[k][(s0 + mb) * nm : (s0 + mb + 1) * nm]
                        a, m = adv[i][:, None], cm[i].float()
                        lp, ent = score(model, P[i], ids[i], C["temperature"])
                        em = None
                        if C["top_entropy_quantile"] < 1:
                            e = ent.detach()[m.bool()]
                            th = torch.quantile(e, 1 - C["top_entropy_quantile"])
                            em = (ent.detach() * m >= th) & m.bool()
                            if bug == "entropy-mask-low":
                                em = (ent.detach() <= torch.quantile(e, C["top_entropy_quantile"])) & m.bool()
                            if bug == "entropy-mask-pad":
                                em = ent.detach() >= torch.quantile(ent.detach().flatten(), 1 - C["top_entropy_quantile"])
                        o = old[i]
                        if bug == "old-detached":
                            o = lp.detach()
                        lr_ = lp - o
                        if C["importance_sampling_level"] == "sequence":
                            lw = ((lr_ * m).sum(-1) / m.sum(-1).clamp(min=1))[:, None]
                            if bug == "gspo-padded-mean":
                                lw = (lr_ * m).mean(-1, keepdim=True)
                        else:
                            lw = lr_
                        c1 = lw.exp()
                        kl = None
                        if C["beta"]:
                            x = rlp[i] - lp
                            if bug == "k3-sign":
                                x = -x
                            kl = x.exp() - x - 1
                            if bug == "k3-detached":
                                kl = kl.detach()
                            if C["use_bias_correction_kl"]:
                                kl = kl * c1
                        if C["loss_type"] == "cispo":
                            cl = c1.clamp(max=eps_hi).detach()
                            if bug == "cispo-grad":
                                cl = c1.clamp(max=eps_hi)
                            if bug == "cispo-one-plus":
                                cl = c1.clamp(max=1 + eps_hi).detach()
                            pl = -cl * a * lp
                        else:
                            c2 = c1.clamp(1 - eps_lo, 1 + eps_hi)
                            if C["delta"] is not None:
                                c1 = c1.clamp(max=C["delta"])
                                if bug == "delta-on-clipped":
                                    c1 = torch.exp(lw)
                                    c2 = c2.clamp(max=C["delta"])
                            pl = -torch.min(c1 * a, c2 * a)
                            if bug == "clip-max":
                                pl = -torch.max(c1 * a, c2 * a)
                        if em is not None:
                            pl = pl * em
                        if isr is not None and bug != "is-unused":
                            pl = pl * isr[i]
                        if C["beta"]:
                            pl = pl + C["beta"] * kl
                        if C["beta"] and isr is not None and bug == "is-on-kl":
                            pl = pl - C["beta"] * kl + C["beta"] * kl * isr[i]
                        lt = C["loss_type"]
                        if bug == "mask-shifted":
                            m = torch.cat([m[:, 1:], torch.zeros(len(m), 1)], 1) * m
                        if lt == "grpo":
                            loss = ((pl * m).sum(-1) / m.sum(-1).clamp(min=1)).mean() / A
                        elif lt == "bnpo":
                            loss = (pl * m).sum() / m.sum().clamp(min=1) / A
                        elif lt == "dr_grpo":
                            loss = (pl * m).sum() / (len(m) * (T if bug != "drgrpo-batch-length" else int(m.sum(1).max()) - 1)) / A
                        else:
                            nz = items / W * A / S
                            if bug == "dapo-double-ga":
                                nz = nz * A
                            if bug == "dapo-local-items":
                                nz = cm[k * n : (k + 1) * n].sum().float() / W * A / S
                            loss = (pl * m).sum() / nz
                        if bug == "no-ga-division" and lt in ("grpo", "bnpo", "dr_grpo"):
                            loss = loss * A
                        if C["entropy_coef"]:
                            q = m if em is None else m * em
                            el = (ent * q).sum() / q.sum().clamp(min=1) / A
                            loss = loss - C["entropy_coef"] * el if bug != "entropy-sign" else loss + C["entropy_coef"] * el
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        mm = cm[i].float()
                        gm = lambda x: ((x * mm).sum() / mm.sum().clamp(min=1)).item() if x.shape[1] > 1 else x.mean().item()
                        sc = {"loss": loss.item()}
                        if W == 1:
                            sc["entropy"] = gm(ent)
                            if C["beta"]:
                                sc["kl"] = gm(kl)
                            if lt != "cispo":
                                lc = (c1 < 1 - C["epsilon"]) & (a < 0)
                                hc = (c1 > 1 + (C["epsilon_high"] or C["epsilon"])) & (a > 0)
                                sc["clip_ratio/low_mean"], sc["clip_ratio/high_mean"], sc["clip_ratio/region_mean"] = (
                                    gm(lc.float()),
                                    gm(hc.float()),
                                    gm((lc | hc).float()),
                                )
                        t = dict(
                            response_ids=ids[i],
                            response_mask=cm[i],
                            logp_new=lp,
                            logp_old=old[i],
                            kl=kl,
                            logp_ref=rlp[i] if C["beta"] else None,
                            logp_gen=glp[i] if C["use_vllm"] else None,
                            is_weights=isr[i].expand_as(lp)
                            if isr is not None and "token" in C["vllm_importance_sampling_mode"]
                            else (isr[i][:, 0] if isr is not None else None),
                            entropy=ent,
                            advantages=adv[i],
                            scores=r[i],
                            rewards_per_func=rf[i],
                            group_id=gid[i],
                            loss=loss,
                            token_loss=pl.expand_as(lp),
                            dlogp=dl,
                            input_ids=torch.cat([P[i], ids[i]], 1),
                            attention_mask=torch.cat([(P[i] != PAD).long(), cm[i]], 1),
                        )
                        meta = dict(
                            schema=1,
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run=case,
                            step=step,
                            rank=k,
                            world_size=W,
                            micro_batch=mb,
                            micro_batches=A,
                            options={**opts, "num_items_in_batch": items.item(), "eos_token_id": EOS},
                            scalars=sc,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=True,
                        )
                        write(folder, f"step_{step:06d}_rank_{k}_mb_{mb}", t, meta)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                stale = bf16_copy(model) if roll == 0 and step == 1 else stale


H = {
    "h_grpo_kl_group": dict(loss_type="grpo", beta=0.04, entropy_coef=0.01, epsilon_high=0.28, temperature=0.9, seed=11),
    "h_dapo_vllm_2ranks": dict(
        loss_type="dapo",
        use_vllm=True,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=1.02,
        world=2,
        groups=4,
        scale_rewards="batch",
        mask_truncated_completions=True,
        epsilon_high=0.28,
        delta=1.5,
        beta=0.02,
        num_generations=4,
        seed=12,
        unscorable=True,
        max_completion_length=40,
        learning_rate=2e-2,
    ),
    "h_cispo_gdpo_entropymask": dict(
        loss_type="cispo",
        epsilon_high=1.15,
        multi_objective_aggregation="normalize_then_sum",
        top_entropy_quantile=0.5,
        gradient_accumulation_steps=1,
        steps_per_generation=2,
        use_vllm=True,
        vllm_importance_sampling_mode="sequence_truncate",
        vllm_importance_sampling_clip_max=1.05,
        seed=13,
    ),
}


def b(of, describes, legal="", **k):
    return dict(of=of, describes=describes, legal=legal, **k)


B = {
    "ref-temperature": b("h_grpo_kl_group", "reference log-probs are taken at temperature 1 while the policy's are at 0.9: KL is not 0 at the start"),
    "k3-sign": b("h_grpo_kl_group", "k3 with logp - ref in place of ref - logp: the estimator is that of the forward KL"),
    "entropy-sign": b("h_grpo_kl_group", "the entropy bonus is added to the loss instead of subtracted: entropy is minimised"),
    "mask-shifted": b("h_grpo_kl_group", "loss mask is shifted by one: the last token (EOS) is left out of the loss and of its count"),
    "group-view": b("h_grpo_kl_group", "rewards are viewed as (generations, prompts): baselines mix responses to different prompts"),
    "old-detached": b(
        "h_grpo_kl_group",
        "old log-probs are the detached new ones in the second iteration, too: ratio 1, no clip",
        "an on-policy user of stop-gradient ratios computes this, though num_iterations=2 and stored old log-probs contradict",
    ),
    "stale-engine": b("h_dapo_vllm_2ranks", "the engine keeps the weights of an earlier step in the second rollout"),
    "is-inverted": b("h_dapo_vllm_2ranks", "importance weights are engine / trainer: inverted"),
    "dapo-local-items": b(
        "h_dapo_vllm_2ranks", "dapo's normaliser takes the tokens of the own rank, still divided by the number of ranks: ranks weigh wrongly, loss doubled"
    ),
    "dapo-double-ga": b("h_dapo_vllm_2ranks", "dapo's loss is divided by the accumulation steps once more"),
    "delta-on-clipped": b("h_dapo_vllm_2ranks", "delta bounds the clipped ratio instead of the unclipped one: has no effect", "delta=None computes this"),
    "perm-advantages": b("h_dapo_vllm_2ranks", "rows are shuffled but the advantages in another order: advantages of other responses"),
    "cispo-grad": b("h_cispo_gdpo_entropymask", "the clipped ratio of CISPO is not detached: gradient through the ratio"),
    "entropy-mask-low": b("h_cispo_gdpo_entropymask", "entropy mask keeps the tokens of lowest entropy"),
    "gdpo-weights-dropped": b("h_cispo_gdpo_entropymask", "reward weights are ignored in normalize_then_sum", "reward_weights of 1 computes this"),
}
main("m1_trl_grpo", {**H, **{"b_" + k: dict(v, bug=k) for k, v in B.items()}}, run)
