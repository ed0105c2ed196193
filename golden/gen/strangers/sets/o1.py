"""h1: TRL GRPOTrainer 1.16 written out (whole hook: everything that the exported hook gives), 13 healthy configurations. Dump: all, lazy cases only where cfg lazy."""

from world_o import *

TRL = dict(
    loss_type="dapo",
    beta=0.0,
    epsilon=0.2,
    epsilon_high=None,
    delta=None,
    scale_rewards="group",
    num_iterations=1,
    importance_sampling_level="token",
    gradient_accumulation_steps=1,
    steps_per_generation=1,
    num_generations=4,
    max_completion_length=24,
    temperature=1.0,
    use_vllm=False,
    vllm_importance_sampling_correction=True,
    vllm_importance_sampling_mode="sequence_mask",
    vllm_importance_sampling_clip_max=3.0,
    vllm_importance_sampling_clip_min=None,
    mask_truncated_completions=False,
    use_bias_correction_kl=True,
    top_entropy_quantile=1.0,
    off_policy_mask_threshold=None,
    multi_objective_aggregation="sum_then_normalize",
    reward_weights=[1.0],
    entropy_coef=0.0,
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    vespo_k_pos=2.0,
    vespo_lambda_pos=3.0,
    vespo_k_neg=3.0,
    vespo_lambda_neg=2.0,
    learning_rate=0.02,
    top_p=1.0,
    top_k=0,
)
CASES = dict(
    h_onetoken=dict(o=dict(loss_type="grpo", max_completion_length=1, num_iterations=2, beta=0.04)),
    h_alltrunc=dict(
        o=dict(loss_type="dapo", mask_truncated_completions=True, num_iterations=2, steps_per_generation=2, gradient_accumulation_steps=1),
        eos_by_gen=[-50, 1.5],
    ),
    h_equalgroups_batchstd_bnpo=dict(
        o=dict(loss_type="bnpo", scale_rewards="batch", num_iterations=2, steps_per_generation=2, gradient_accumulation_steps=2), equal=True, binary=True
    ),
    h_drgrpo_delta_ga4=dict(
        o=dict(
            loss_type="dr_grpo",
            scale_rewards="none",
            delta=1.5,
            epsilon_high=0.28,
            gradient_accumulation_steps=4,
            steps_per_generation=8,
            num_iterations=2,
            num_generations=8,
        ),
        n=8,
    ),
    h_nanrewards_padeos=dict(
        o=dict(loss_type="grpo", beta=0.05, reward_weights=[1.0, 0.5, 2.0], steps_per_generation=2, num_iterations=2, use_bias_correction_kl=False),
        nan=True,
        pad=EOS,
    ),
    h_gdpo_nan=dict(
        o=dict(loss_type="dapo", reward_weights=[1.0, 0.3], multi_objective_aggregation="normalize_then_sum", steps_per_generation=2, num_iterations=2)
    ),
    h_gspo_2ranks=dict(
        o=dict(
            loss_type="grpo",
            importance_sampling_level="sequence",
            epsilon=3e-3,
            epsilon_high=4e-3,
            beta=0.02,
            steps_per_generation=4,
            gradient_accumulation_steps=2,
            num_iterations=2,
        ),
        ranks=2,
        n=8,
    ),
    h_sapo_tools=dict(o=dict(loss_type="sapo", steps_per_generation=2, num_iterations=2, sapo_temperature_neg=1.3, temperature=0.7), tools="own_eos"),
    h_vespo_vllm=dict(
        o=dict(
            loss_type="vespo",
            use_vllm=True,
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_max=2.0,
            steps_per_generation=2,
            num_iterations=2,
        ),
        tools=True,
        bf16engine=True,
    ),
    h_cispo_tokenmask_band=dict(
        o=dict(
            loss_type="cispo",
            epsilon_high=1.3,
            use_vllm=True,
            vllm_importance_sampling_mode="token_mask",
            vllm_importance_sampling_clip_max=1.02,
            vllm_importance_sampling_clip_min=0.98,
            steps_per_generation=2,
            num_iterations=2,
            beta=0.03,
        ),
        bf16engine=True,
    ),
    h_luspo_entropy=dict(
        o=dict(
            loss_type="luspo",
            importance_sampling_level="sequence",
            epsilon=0.01,
            epsilon_high=0.02,
            steps_per_generation=2,
            gradient_accumulation_steps=2,
            num_iterations=3,
            entropy_coef=0.01,
        )
    ),
    h_entropyquantile_opsm=dict(
        o=dict(loss_type="bnpo", top_entropy_quantile=0.3, off_policy_mask_threshold=0.02, steps_per_generation=2, num_iterations=3, beta=0.01)
    ),
    h_topp_topk_seqtrunc_warm0=dict(
        o=dict(
            loss_type="dapo",
            use_vllm=True,
            vllm_importance_sampling_mode="sequence_truncate",
            vllm_importance_sampling_clip_max=1.5,
            steps_per_generation=2,
            num_iterations=2,
            temperature=0.9,
            top_p=0.9,
            top_k=12,
        ),
        lr0=True,
        bf16engine=True,
    ),
    h_syncref_alpha1=dict(
        o=dict(loss_type="grpo", beta=0.05, sync_ref_model=True, ref_model_mixup_alpha=1.0, ref_model_sync_steps=4, steps_per_generation=2, num_iterations=2)
    ),
    h_syncref_mix=dict(
        o=dict(loss_type="dapo", beta=0.05, sync_ref_model=True, ref_model_mixup_alpha=0.6, ref_model_sync_steps=2, steps_per_generation=2, num_iterations=2)
    ),
    h_long_tools_dapo=dict(
        o=dict(loss_type="dapo", max_completion_length=150, steps_per_generation=2, num_iterations=2, epsilon_high=0.28, mask_truncated_completions=True),
        tools="own_eos",
        eos_by_gen=[-1.0, -2.0],
    ),
    h_onerow_microbatches=dict(o=dict(loss_type="bnpo", gradient_accumulation_steps=8, steps_per_generation=8, num_generations=4, num_iterations=2), n=2),
    h_topp_mild_tokentrunc=dict(
        o=dict(
            loss_type="grpo",
            use_vllm=True,
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_max=2.0,
            steps_per_generation=2,
            num_iterations=2,
            top_p=0.95,
        ),
        bf16engine=True,
    ),
    h_vllm_nocorrection=dict(
        o=dict(loss_type="dapo", use_vllm=True, vllm_importance_sampling_correction=False, steps_per_generation=2, num_iterations=2), bf16engine=True
    ),
    h_onpolicy_oldnone=dict(
        o=dict(loss_type="grpo", beta=0.01, steps_per_generation=2, gradient_accumulation_steps=2, num_iterations=1, use_bias_correction_kl=False), gens=4
    ),
    h_allequal_rollout=dict(o=dict(loss_type="dapo", beta=0.02, steps_per_generation=2, num_iterations=2), flat=True),
    h_dapo_2ranks_nothing=dict(o=dict(loss_type="dapo", steps_per_generation=2, num_iterations=2, gradient_accumulation_steps=2), ranks=2, lazy=True, n=8),
)


def nanstd(x, dim=None, keepdim=False):
    m = torch.nanmean(x, dim=dim, keepdim=True) if dim is not None else torch.nanmean(x)
    v = torch.nanmean((x - m) ** 2, dim=dim, keepdim=True) if dim is not None else torch.nanmean((x - m) ** 2)
    n = (~torch.isnan(x)).sum(dim=dim, keepdim=True) if dim is not None else (~torch.isnan(x)).sum()
    s = torch.sqrt(v * (n / (n - 1)))
    return s if keepdim or dim is None else s.squeeze(dim)


def go(out, case, c):
    o = {**TRL, **c["o"]}
    R = c.get("ranks", 1)
    n = c.get("n", 4)
    G = o["num_generations"]
    pad = c.get("pad", PAD)
    eps_h = o["epsilon_high"] if o["epsilon_high"] is not None else o["epsilon"]
    eps_l = o["epsilon"]
    seed = sum(map(ord, case))
    gen = torch.Generator().manual_seed(seed)
    pol = LM(seed)
    ref = copy.deepcopy(pol) if not c.get("nan") else LM(seed + 1)
    opt = torch.optim.AdamW(pol.parameters(), lr=o["learning_rate"], weight_decay=0.0)
    d = Dump(out, "o1", case, describes="right", framework="trl", version="1.16.0", algorithm="grpo", world_size=R)
    SPG, GA, T = o["steps_per_generation"], o["gradient_accumulation_steps"], o["max_completion_length"]
    step = 0
    for it in range(c.get("gens", 2)):
        eng = copy.deepcopy(pol)
        if c.get("bf16engine"):
            eng = eng.to(torch.bfloat16)
        P, PA = prompts(n, G, gen, pad=pad)
        eb = c.get("eos_by_gen", [0, 0.7, 0.3, 0.5])[it]
        r, cm, lg, fin = sample(eng, P, PA, T, gen, o["temperature"], o["top_p"], o["top_k"], eos_bias=eb if not o["use_vllm"] else 0, pad=pad)
        N = len(r)
        F = len(o["reward_weights"])
        rpf = torch.stack([score(r, cm, gen) if f == 0 else (cm.sum(-1).float() / T if f == 1 else (r[:, 0] > 8).float()) for f in range(F)], 1)
        if c.get("binary"):
            rpf = (rpf > 0).float()
        if c.get("equal"):
            rpf[:G] = 0.3
            rpf[-G:] = 0.0
        if c.get("flat") and it == 0:
            rpf[:] = 1.0
        if c.get("nan"):
            rpf[3] = torch.nan
            rpf[5, 1] = torch.nan
            rpf[G + 1 :, 2] = torch.nan
        un = torch.isnan(rpf).all(1)
        w = torch.tensor(o["reward_weights"])
        rewards = (rpf * w).nansum(1)
        rewards[un] = torch.nan
        if o["multi_objective_aggregation"] == "sum_then_normalize":
            mean = torch.nanmean(rewards.view(-1, G), 1).repeat_interleave(G)
            std = nanstd(rewards).expand_as(rewards) if o["scale_rewards"] == "batch" else nanstd(rewards.view(-1, G), dim=1).repeat_interleave(G)
            adv = rewards - mean
            if o["scale_rewards"] != "none":
                adv = adv / (std + 1e-4)
        else:
            g = rpf.view(-1, G, F)
            rk = ((g - torch.nanmean(g, 1, keepdim=True)) / (nanstd(g, 1, True) + 1e-4)).view(-1, F)
            rr = (rk * w).nansum(1)
            adv = (rr - rr.mean()) / (nanstd(rr) + 1e-4)
        adv = torch.nan_to_num(adv)
        att = cm.clone()
        if o["mask_truncated_completions"]:
            cm = cm * fin[:, None].long()
        tm = torch.ones_like(cm)
        if c.get("tools"):  # tool outputs are the environment's tokens (the template's EOS in them), also where the length ends within one
            for i in range(0, N, 3):
                L = int(att[i].sum())
                a = 2 + i % 4
                e = min(a + 3, L)
                if a < e - 1 and L > e + 1:
                    if c["tools"] == "own_eos":
                        r[i, a - 1] = EOS  # the assistant's turn ends with its own EOS
                    r[i, a:e] = torch.randint(2, V, (e - a,), generator=gen)
                    tm[i, a:e] = 0
                    if i % 2 == 0:
                        r[i, e - 1] = EOS
                if i % 2 and not fin[i]:
                    r[i, L - 4 : L] = torch.randint(2, V, (4,), generator=gen)
                    tm[i, L - 4 : L] = 0
            with torch.no_grad():
                lg = lp_of(eng, P, PA, r, att, o["temperature"]) * (att * tm)
        mask = cm * tm
        with torch.no_grad():
            old = lp_of(pol, P, PA, r, att, o["temperature"])
            rlp = lp_of(ref, P, PA, r, att, o["temperature"])
        corr = o["use_vllm"] and o["vllm_importance_sampling_correction"]
        have_old = GA % (SPG * o["num_iterations"]) != 0 or corr
        isr = None
        if corr:
            df = (old - lg) * mask
            seq = "sequence" in o["vllm_importance_sampling_mode"]
            if seq:
                df = df.sum(-1, keepdim=True)
            isr = df.exp()
            lo, hi = o["vllm_importance_sampling_clip_min"], o["vllm_importance_sampling_clip_max"]
            if "truncate" in o["vllm_importance_sampling_mode"]:
                isr = isr.clamp(min=lo, max=hi)
            else:
                isr = isr.masked_fill((isr < (lo if lo is not None else -math.inf)) | (isr > (hi if hi is not None else math.inf)), 0.0)
        perm = torch.cat([torch.randperm(N // R, generator=gen) + k * (N // R) for k in range(R)]).view(R, SPG, -1)
        items = int(mask.sum())
        gid = torch.arange(N) // G + it * 1000
        for _ in range(o["num_iterations"]):
            for s0 in range(0, SPG, GA):
                step += 1
                opt.zero_grad()
                if c.get("lr0"):
                    opt.param_groups[0]["lr"] = 0.0 if step == 1 else o["learning_rate"]
                recs = []
                # logged numbers and entropy quantile are over ranks, so forward all ranks of a micro batch first
                for mb in range(GA):
                    fw = []
                    for k in range(R):
                        ix = perm[k, s0 + mb]
                        m = mask[ix].float()
                        lp, ent, raw = lp_of(pol, P[ix], PA[ix], r[ix], att[ix], o["temperature"], True)
                        fw.append((ix, m, lp, ent, raw))
                    if o["top_entropy_quantile"] < 1:
                        th = torch.quantile(torch.cat([e[mm.bool()] for _, mm, _, e, _ in fw]).detach(), 1 - o["top_entropy_quantile"])
                    for k, (ix, m, lp, ent, raw) in enumerate(fw):
                        A = adv[ix][:, None]
                        ol = old[ix] if have_old else lp.detach()
                        lr_ = lp - ol
                        liw = lr_ if o["importance_sampling_level"] == "token" else ((lr_ * m).sum(-1) / m.sum(-1).clamp(min=1.0))[:, None]
                        c1 = liw.exp()
                        kl = None
                        if o["beta"]:
                            x = rlp[ix] - lp
                            kl = x.exp() - x - 1
                            if o["use_bias_correction_kl"]:
                                kl = kl * c1
                        c1raw = c1
                        lt = o["loss_type"]
                        if lt == "cispo":
                            pl = -c1.clamp(max=eps_h).detach() * A * lp
                        elif lt == "sapo":
                            tt = torch.where(A > 0, o["sapo_temperature_pos"], o["sapo_temperature_neg"])
                            pl = -torch.sigmoid(tt * (c1 - 1)) * 4 / tt * A
                        elif lt == "vespo":
                            with torch.no_grad():
                                sl = (lr_.clamp(-20, 20) * m).sum(-1, keepdim=True)
                                if isr is not None:
                                    sl = sl + isr[ix].log().clamp(math.log(1e-8), 20).sum(-1, keepdim=True)
                                lw = sl.clamp(math.log(1e-8), 20)
                                pos = A >= 0
                                kk = torch.where(pos, o["vespo_k_pos"], o["vespo_k_neg"])
                                la = torch.where(pos, o["vespo_lambda_pos"], o["vespo_lambda_neg"])
                                phi = (la + kk * lw - la * lw.exp()).exp()
                            pl = -phi * A * lp
                        else:
                            c2 = c1.clamp(1 - eps_l, 1 + eps_h)
                            cc = c1.clamp(max=o["delta"]) if o["delta"] else c1
                            pl = -torch.min(cc * A, c2 * A)
                        if o["off_policy_mask_threshold"] is not None:
                            kd = ((ol - lp.detach()) * m).sum(1, keepdim=True) / m.sum(1, keepdim=True).clamp(min=1.0)
                            pl = pl * ((A >= 0) | (kd <= o["off_policy_mask_threshold"])).float()
                        em = None
                        if o["top_entropy_quantile"] < 1:
                            em = (((ent * m) >= th) & m.bool()).float()
                            pl = pl * em
                        if isr is not None and lt != "vespo":
                            pl = pl * isr[ix]
                        if o["beta"]:
                            pl = pl + o["beta"] * kl
                        if lt in ("grpo", "sapo"):
                            loss = ((pl * m).sum(-1) / m.sum(-1).clamp(min=1.0)).mean() / GA
                        elif lt == "bnpo":
                            loss = (pl * m).sum() / m.sum().clamp(min=1.0) / GA
                        elif lt == "dr_grpo":
                            loss = (pl * m).sum() / (len(pl) * T) / GA
                        elif lt == "luspo":
                            loss = (pl * m).sum(-1).mean() / GA
                        else:
                            loss = (pl * m).sum() / (max(items, 1) / R * GA / SPG)
                        if o["entropy_coef"]:
                            ef = m if em is None else m * em
                            loss = loss - o["entropy_coef"] * (ent * ef).sum() / ef.sum().clamp(min=1.0) / GA
                        (loss / R).backward(retain_graph=True)
                        t = dict(response_mask=m.bool(), advantages=adv[ix], logp_new=lp, loss=loss, group_id=gid[ix])
                        if have_old:
                            t["logp_old"] = old[ix]
                        sc = dict(loss=loss.item())
                        if R == 1:
                            gm = lambda x: (x.mean() if x.shape[1] == 1 else (x * m).sum() / m.sum().clamp(min=1.0)).item()
                            if o["beta"]:
                                sc["kl"] = gm(kl.detach())
                            sc["entropy"] = gm(ent.detach())
                            if lt in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
                                cx = c1.clamp(max=o["delta"]) if o["delta"] else c1
                                lo_, hi_ = ((cx < 1 - eps_l) & (A < 0)).float(), ((cx > 1 + eps_h) & (A > 0)).float()
                                sc["clip_ratio/low_mean"], sc["clip_ratio/high_mean"], sc["clip_ratio/region_mean"] = gm(lo_), gm(hi_), gm(lo_ + hi_)
                        if not c.get("lazy"):
                            t |= dict(
                                input_ids=torch.cat([P[ix], r[ix]], 1),
                                attention_mask=torch.cat([PA[ix], att[ix]], 1),
                                response_ids=r[ix],
                                entropy=ent,
                                kl=kl,
                                scores=rewards[ix],
                                rewards_per_func=rpf[ix],
                                token_loss=pl.expand_as(lp),
                                dlogp=d_of(loss, lp),
                            )
                            if o["beta"]:
                                t["logp_ref"] = rlp[ix]
                            if o["use_vllm"] and not corr:
                                t["logp_gen"] = lg[ix]
                            if corr:
                                t |= dict(logp_gen=lg[ix], is_weights=isr[ix] if isr.shape[1] > 1 else isr[ix][:, 0])
                            opts = {k: v for k, v in o.items()} | dict(num_items_in_batch=items, eos_token_id=EOS, bf16=False)
                        else:
                            t |= dict(scores=rewards[ix])
                            opts = dict(
                                loss_type=lt,
                                num_generations=G,
                                num_items_in_batch=items,
                                gradient_accumulation_steps=GA,
                                steps_per_generation=SPG,
                                num_iterations=o["num_iterations"],
                            )
                        recs.append((k, mb, t, opts, sc))
                for k, mb, t, opts, sc in recs:
                    d.write(step, t, k, mb, options=opts, micro_batches=GA, scalars=sc, scalars_scope="micro_batch", token_loss_includes_kl=True)
                opt.step()
                if o.get("sync_ref_model") and step % o["ref_model_sync_steps"] == 0:
                    al = o["ref_model_mixup_alpha"]
                    with torch.no_grad():
                        for q, w_ in zip(ref.parameters(), pol.parameters()):
                            q.mul_(1 - al).add_(w_, alpha=al)


run(CASES, go)
