"""TRL 1.16 GRPO, rewritten in a few lines as GRPOTrainer computes it; the hook dumps much (case-wise: logp, kl, entropies, token_loss, dlogp, scalars, optimiser)."""

from world_q import *


def table(seed):
    r = random.Random(seed)
    c = dict(seed=seed)
    c["loss_type"] = ["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo", "dapo", "grpo", "bnpo", "cispo", "dapo", "dr_grpo"][seed % 14]
    c["epsilon"] = r.choice([0.2, 0.1, 0.2, 3e-2])
    c["epsilon_high"] = r.choice([None, 0.28, 0.05])
    if c["loss_type"] == "cispo":
        c["epsilon_high"] = r.choice([1.05, 2.0, 5.0])
    c["delta"] = r.choice([None, None, 1.5]) if c["loss_type"] in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo") else None
    c["importance_sampling_level"] = r.choice(["token", "token", "sequence"]) if c["loss_type"] not in ("vespo",) else "token"
    if c["loss_type"] == "luspo":
        c["importance_sampling_level"] = "sequence"
    c["beta"] = r.choice([0.0, 0.04, 0.2])
    c["use_bias_correction_kl"] = r.choice([True, False])
    c["scale_rewards"] = r.choice(["group", "batch", "none"])
    c["nf"] = r.choice([1, 1, 2, 3])
    c["multi_objective_aggregation"] = r.choice(["sum_then_normalize", "normalize_then_sum"]) if c["nf"] > 1 else "sum_then_normalize"
    c["reward_weights"] = [1.0, 0.5, 2.0][: c["nf"]]
    c["binary"] = r.random() < 0.3
    c["num_iterations"], c["ga"], c["spgm"] = r.choice([(1, 1, 2), (2, 1, 1), (2, 2, 1), (1, 2, 2), (1, 4, 1), (3, 1, 1), (2, 1, 2)])
    c["num_generations"] = r.choice([4, 8, 2])
    c["groups"] = r.choice([2, 4])
    c["ranks"] = r.choice([1, 1, 2])
    c["T"] = r.choice([16, 33, 60])
    c["temperature"] = r.choice([1.0, 0.7, 1.2])
    c["use_vllm"] = r.random() < 0.5
    c["mode"] = r.choice(["sequence_mask", "token_truncate", "token_mask", "sequence_truncate"])
    c["vllm_importance_sampling_correction"] = r.random() < 0.75
    if c["loss_type"] == "vespo":
        c["mode"] = r.choice(["token_truncate", "token_mask"])
    c["cmax"] = r.choice([3.0, 1.02, 2.0])
    c["cmin"] = r.choice([None, 0.5, None])
    c["mask_truncated_completions"] = r.random() < 0.4
    c["top_entropy_quantile"] = r.choice([1.0, 1.0, 0.5]) if c["loss_type"] != "vespo" else 1.0
    c["off_policy_mask_threshold"] = r.choice([None, None, 0.002])
    c["entropy_coef"] = r.choice([0.0, 0.0, 0.01])
    c["holes"] = r.choice([0, 0, 0.05])
    c["lowp"] = r.random() < 0.3
    c["lr"] = r.choice([3e-3, 8e-3])
    c["opt"] = r.random() < 0.35
    c["eospad"] = r.random() < 0.3
    return c


def nanstd(tensor: torch.Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> torch.Tensor:
    """
    Compute the standard deviation of a tensor, ignoring NaNs.

    Args:
        tensor (`torch.Tensor`):
            Input tensor.
        dim (`int` or `tuple[int, ...]`, *optional*):
            Dimension(s) to reduce. Defaults to all dimensions.
        keepdim (`bool`, *optional*, defaults to `False`):
            Whether to keep reduced dimensions.

    Returns:
        `torch.Tensor`:
            Standard deviation of the tensor, ignoring NaNs.
    """
    # Compute variance ignoring NaNs
    mean = torch.nanmean(tensor, dim=dim, keepdim=True)
    variance = torch.nanmean((tensor - mean) ** 2, dim=dim, keepdim=True)
    count = torch.sum(~torch.isnan(tensor), dim=dim, keepdim=True)  # count of non-NaN values
    correction = count / (count - 1)
    correction = torch.where(count > 1, correction, torch.full_like(correction, float("nan")))
    variance *= correction  # Bessel's correction
    std = torch.sqrt(variance)
    if keepdim:
        return std
    if dim is None:
        return std.squeeze()
    if isinstance(dim, int):
        return std.squeeze(dim)
    dims = [(d if d >= 0 else d + std.ndim) for d in dim]
    for d in sorted(dims, reverse=True):
        std = std.squeeze(d)
    return std


def run(folder, case, c):
    gen = torch.Generator().manual_seed(c["seed"])
    pad = EOS if c["eospad"] else PAD
    m = LM(pad=pad)
    m.lowp = c["lowp"]
    ref = copy.deepcopy(m)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=gen))
    P, T, G, R, ga, mu = 6, c["T"], c["num_generations"], c["ranks"], c["ga"], c["num_iterations"]
    spg = ga * c["spgm"]
    temp = c["temperature"]
    per_rank = c["groups"] * G
    per_rank = -(-per_rank // spg) * spg
    while (per_rank * R) % G or per_rank % spg:
        per_rank += 1
    mbs = per_rank // spg
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    corr = c["use_vllm"] and c["vllm_importance_sampling_correction"]
    eh = c["epsilon_high"] if c["epsilon_high"] is not None else c["epsilon"]
    opts = {
        k: c[k]
        for k in (
            "loss_type",
            "epsilon",
            "delta",
            "importance_sampling_level",
            "beta",
            "use_bias_correction_kl",
            "scale_rewards",
            "multi_objective_aggregation",
            "reward_weights",
            "num_iterations",
            "num_generations",
            "temperature",
            "use_vllm",
            "vllm_importance_sampling_correction",
            "mask_truncated_completions",
            "top_entropy_quantile",
            "off_policy_mask_threshold",
            "entropy_coef",
        )
    }
    opts |= dict(
        epsilon_high=c["epsilon_high"],
        vllm_importance_sampling_mode=c["mode"],
        vllm_importance_sampling_clip_max=c["cmax"],
        vllm_importance_sampling_clip_min=c["cmin"],
        gradient_accumulation_steps=ga,
        steps_per_generation=spg,
        per_device_train_batch_size=mbs,
        max_completion_length=T,
        eos_token_id=[EOS],
        learning_rate=c["lr"],
        max_grad_norm=1.0,
        weight_decay=0.0,
        lr_scheduler_type="constant",
        disable_dropout=True,
    )
    step, sid = 0, 0
    for roll in range(2):
        N = per_rank * R
        pi, pa = prompts(N // G, P, gen, pad)
        pi, pa = pi.repeat_interleave(G, 0), pa.repeat_interleave(G, 0)
        eng = engine_of(m) if c["use_vllm"] else m
        ids, cm, tool, gen_lp = sample(eng, pi, pa, T, temp, gen, pad=pad, holes=c["holes"])
        W = int(cm.sum(1).max())
        ids, cm, tool, gen_lp = ids[:, :W], cm[:, :W], tool[:, :W], gen_lp[:, :W]
        rpf = rewards(ids, cm, gen, c["nf"], c["binary"])
        if c.get("nan"):
            rpf[torch.rand(rpf.shape, generator=gen) < 0.15] = math.nan
            if c["nan"] == "rows":
                rpf[torch.randint(0, N, (max(1, N // 8),), generator=gen)] = math.nan
        uns = rpf.isnan().all(1)
        w = torch.tensor(c["reward_weights"])
        scores = (rpf * w).nansum(1)
        scores[uns] = math.nan
        if c["multi_objective_aggregation"] == "sum_then_normalize":
            g = scores.view(-1, G)
            adv = (g - g.nanmean(1, keepdim=True)).view(-1)
            if c["scale_rewards"] == "group":
                adv = adv / (nanstd(g, 1).repeat_interleave(G) + 1e-4)
            elif c["scale_rewards"] == "batch":
                adv = adv / (nanstd(scores) + 1e-4)
        else:
            g = rpf.view(-1, G, c["nf"])
            k = ((g - g.nanmean(1, keepdim=True)) / (nanstd(g, 1, True) + 1e-4)).view(-1, c["nf"])
            k = (k * w).nansum(1)
            k[uns] = math.nan
            adv = (k - k.nanmean()) / (nanstd(k) + 1e-4)
        adv = torch.nan_to_num(adv, nan=0.0)
        ended = (ids * cm).gather(1, (cm.sum(1) - 1)[:, None]).squeeze(1) == EOS
        if c["mask_truncated_completions"]:
            cm = cm * ended[:, None].long()
        mask = cm * tool if c["holes"] else cm
        num_items = mask.sum()
        full = torch.cat([pi, ids], 1)
        att = torch.cat([pa, cm], 1)
        with torch.no_grad():
            need_old = ga % (spg * mu) != 0 or corr
            old = lp_ent(m, full, att, W, temp)[0] if need_old else None
            refl = lp_ent(ref, full, att, W, temp)[0] if c["beta"] else None
            isr = None
            if corr:
                d = (old - gen_lp) * mask
                if c["mode"].startswith("sequence"):
                    d = d.sum(-1, keepdim=True)
                isr = d.exp()
                if c["mode"].endswith("truncate"):
                    isr = isr.clamp(min=c["cmin"], max=c["cmax"])
                else:
                    isr = isr.masked_fill((isr < (c["cmin"] if c["cmin"] is not None else -math.inf)) | (isr > c["cmax"]), 0.0)
        X = dict(
            full=full,
            att=att,
            ids=ids,
            mask=mask,
            adv=adv,
            old=old,
            ref=refl,
            isr=isr,
            gen=gen_lp if c["use_vllm"] else None,
            scores=scores,
            rpf=rpf,
            group=torch.arange(N) // G + roll * 100000,
            sid=torch.arange(N) + sid,
        )
        sid += N
        rk = []
        for r in range(R):
            perm = torch.randperm(per_rank, generator=gen) + r * per_rank
            rk.append({k: (None if v is None else v[perm]) for k, v in X.items()})
        for it in range(mu):
            for s in range(spg // ga):
                files, qthr = [], {}
                for mb in range(ga):
                    parts = [{k: (None if v is None else v[(s * ga + mb) * mbs : (s * ga + mb + 1) * mbs]) for k, v in x.items()} for x in rk]
                    fw = [lp_ent(m, x["full"], x["att"], W, temp) for x in parts]
                    thr = None
                    if c["top_entropy_quantile"] < 1:
                        allv = torch.cat([e[x["mask"].bool()] for (lp, e), x in zip(fw, parts)])
                        thr = torch.quantile(allv.detach(), 1 - c["top_entropy_quantile"]) if allv.numel() else None
                    for r, (x, (lp, ent)) in enumerate(zip(parts, fw)):
                        k_, A = x["mask"], x["adv"].unsqueeze(1)
                        o = x["old"] if x["old"] is not None else lp.detach()
                        em = None
                        if c["top_entropy_quantile"] < 1:
                            em = ((ent * k_.float()) >= thr) & k_.bool() if thr is not None else torch.zeros_like(k_, dtype=torch.bool)
                        lr_ = lp - o
                        den = k_.sum(-1).clamp(min=1.0)
                        liw = lr_ if c["importance_sampling_level"] == "token" else ((lr_ * k_).sum(-1) / den).unsqueeze(-1)
                        c1 = liw.exp()
                        kl = None
                        if c["beta"]:
                            kl = (x["ref"] - lp).exp() - (x["ref"] - lp) - 1
                            if c["use_bias_correction_kl"]:
                                kl = kl * c1
                        lt = c["loss_type"]
                        if lt == "cispo":
                            tl = -c1.clamp(max=eh).detach() * A * lp
                        elif lt == "sapo":
                            tau = torch.where(A > 0, 1.0, 1.05)
                            tl = -torch.sigmoid(tau * (c1 - 1)) * 4 / tau * A
                        elif lt == "vespo":
                            with torch.no_grad():
                                low = math.log(1e-8)
                                sl = (lr_.clamp(-20, 20) * k_).sum(-1, keepdim=True)
                                if x["isr"] is not None:
                                    sl = sl + torch.log(x["isr"]).clamp(low, 20.0).sum(-1, keepdim=True)
                                sl = sl.clamp(low, 20.0)
                                nn_ = A >= 0
                                kk = torch.where(nn_, 2.0, 3.0)
                                la = torch.where(nn_, 3.0, 2.0)
                                phi = (la + kk * sl - la * sl.exp()).exp().nan_to_num(0.0, 0.0, 0.0)
                            tl = -phi * A * lp
                        else:
                            c2 = c1.clamp(1 - c["epsilon"], 1 + eh)
                            if c["delta"] is not None:
                                c1 = c1.clamp(max=c["delta"])
                            tl = -torch.min(c1 * A, c2 * A)
                        if c["off_policy_mask_threshold"] is not None:
                            sp = x["gen"] if corr or (c["use_vllm"]) else o
                            sp = sp if sp is not None else o
                            q = ((sp - lp.detach()) * k_).sum(1, keepdim=True) / k_.sum(1, keepdim=True).clamp(min=1.0)
                            tl = tl * ((A >= 0) | (q <= c["off_policy_mask_threshold"])).to(k_.dtype)
                        if em is not None:
                            tl = tl * em
                        if corr and lt != "vespo":
                            tl = tl * x["isr"]
                        if c["beta"]:
                            tl = tl + c["beta"] * kl
                        if lt in ("grpo", "sapo"):
                            loss = ((tl * k_).sum(-1) / den).mean() / ga
                        elif lt == "bnpo":
                            loss = (tl * k_).sum() / k_.sum().clamp(min=1.0) / ga
                        elif lt == "dr_grpo":
                            loss = (tl * k_).sum() / (tl.size(0) * T) / ga
                        elif lt == "luspo":
                            loss = (tl * k_).sum(-1).mean() / ga
                        else:
                            loss = (tl * k_).sum() / (num_items.clamp(min=1.0) / R * ga / spg)
                        if c["entropy_coef"]:
                            ef = k_ if em is None else k_ * em
                            loss = loss - c["entropy_coef"] * (ent * ef).sum() / ef.sum().clamp(min=1.0) / ga
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / R).backward()
                        sc = dict(loss=fin(loss.item()))
                        if R == 1:
                            mm = lambda y: y.mean().item() if y.shape[1] == 1 else ((y * k_).sum() / k_.sum().clamp(min=1.0)).item()
                            sc["entropy"] = mm(ent.detach())
                            if c["beta"]:
                                sc["kl"] = mm(kl.detach())
                            if lt in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
                                lo_ = ((c1 < 1 - c["epsilon"]) & (A < 0)).float()
                                hi_ = ((c1 > 1 + eh) & (A > 0)).float()
                                sc |= {"clip_ratio/low_mean": mm(lo_), "clip_ratio/high_mean": mm(hi_), "clip_ratio/region_mean": mm(((lo_ + hi_) > 0).float())}
                        t = dict(
                            response_mask=k_,
                            response_ids=x["ids"],
                            input_ids=x["full"],
                            attention_mask=x["att"],
                            advantages=x["adv"],
                            scores=x["scores"],
                            rewards_per_func=x["rpf"],
                            group_id=x["group"],
                            sample_id=x["sid"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_ref=x["ref"],
                            logp_gen=x["gen"],
                            is_weights=x["isr"],
                            entropy=ent,
                            kl=kl.expand_as(lp) if kl is not None else None,
                            token_loss=tl.expand_as(lp),
                            dlogp=dl,
                            loss=loss,
                        )
                        meta = dict(
                            schema=2,
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run=case,
                            step=step + 1,
                            rank=r,
                            world_size=R,
                            micro_batch=mb,
                            micro_batches=ga,
                            options=opts | dict(num_items_in_batch=int(num_items)),
                            scalars=sc,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=True,
                        )
                        files.append((f"step_{step + 1:06d}_rank_{r}_mb_{mb}", meta, t))
                        if r == 0 and mb == ga - 1:
                            last = t
                ot, norm = step_with_dump(opt, list(m.named_parameters()), 1.0)
                if c["opt"]:
                    last.update(ot)
                for f in files:
                    dump(folder, *f)
                step += 1


names = {}
for s in range(14):
    c = table(s)
    names[f"h_{s:02d}_{c['loss_type']}_{c['scale_rewards']}_r{c['ranks']}"] = c
for s in range(14, 20):
    c = table(s)
    c["nf"] = 1 if s % 3 == 2 else 2 + s % 2
    c["reward_weights"] = [1.0, 0.5, 2.0][: c["nf"]]
    c["binary"] = False
    c["nan"] = "rows" if s % 2 else "cells"
    c["num_generations"] = 8
    c["multi_objective_aggregation"] = "normalize_then_sum" if c["nf"] > 1 and s % 4 == 0 else "sum_then_normalize"
    names[f"h_{s:02d}_{c['loss_type']}_nan{c['nan']}_f{c['nf']}"] = c
if __name__ == "__main__":
    main("q1", names, run)
