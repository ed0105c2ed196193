"""TRL 1.16 GRPOTrainer as it computes it; a hook that dumps nearly everything (token_loss, kl, dlogp, metrics of a micro-batch)."""

from world_k import *

base = dict(
    G=8,
    bs=8,
    ga=2,
    spg=4,
    it=1,
    world=1,
    loss="dapo",
    scale="group",
    beta=0.0,
    el=0.2,
    eh=0.2,
    delta=None,
    vllm=None,
    vmin=None,
    vmax=3.0,
    multi="sum_then_normalize",
    temp=1.0,
    bf16=False,
    T=32,
    w=[1.0, 0.5],
    mtc=False,
    level="token",
    teq=1.0,
    ec=0.0,
    opm=None,
    bck=False,
    lr=6e-3,
    seed=1,
    steps=4,
)
H = dict(
    h_dapo_kl_accum=base | dict(beta=0.04),
    h_grpo_iter2_vllm_seqmask=base
    | dict(spg=2, it=2, loss="grpo", scale="batch", eh=0.28, vllm="sequence_mask", vmax=2.0, temp=0.9, mtc=True, seed=2, lr=8e-3, T=28),
    h_cispo_two_ranks_gdpo=base | dict(world=2, spg=2, ga=1, loss="cispo", eh=1.2, multi="normalize_then_sum", vllm="token_truncate", seed=3, T=40),
    h_bnpo_entropy_delta=base
    | dict(spg=2, ga=1, it=2, loss="bnpo", scale="none", beta=0.05, bck=True, delta=1.4, teq=0.5, ec=0.01, seed=4, bf16=True, T=36, w=[1.0, 2.0]),
)


def nanstd(x, dim=None, keepdim=False):
    return x.std(dim=dim, keepdim=keepdim) if dim is not None else x.std()


def run(c, bug, out, name):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    G, T, W = c["G"], c["T"], c["world"]
    n = c["bs"] * c["spg"] * W
    step = 0
    roll = 0
    while step < c["steps"]:
        pid, pam = prompts(n // G, 8, g)
        pid, pam = pid.repeat_interleave(G, 0), pam.repeat_interleave(G, 0)
        ids, am, gen, pol, _ = sample(m, pid, pam, T, g, c["temp"], bf16=bool(c["vllm"]))
        P = 8
        resp = ids[:, P:]
        cm = am[:, P:].clone()
        full = cm.clone()
        if c["mtc"]:
            trunc = ~((resp == EOS) & (cm == 1)).any(1)
            cm = cm * (~trunc)[:, None].long()
        if bug == "eos_out":
            cm = cm * (resp != EOS).long()
        am = torch.cat([pam, cm], 1)
        rk = torch.arange(n) // (n // W)
        items_all = cm.sum()
        need_old = c["ga"] % (c["spg"] * c["it"]) != 0 or c["vllm"]
        fwd = lambda mod: torch.cat([score_fwd(mod, ids[i : i + c["bs"]], am[i : i + c["bs"]], T, c["temp"], c["bf16"])[0] for i in range(0, n, c["bs"])])
        with torch.no_grad():
            old = fwd(m) if need_old else None
            refl = fwd(ref) if c["beta"] else None
        isr = None
        if c["vllm"]:
            df = (old - gen) * cm
            if bug == "is_inverse":
                df = -df
            if bug == "is_no_mask":
                df = (old - gen) * 0 + (old - gen).roll(1, 1) * cm
            if c["vllm"].startswith("seq"):
                df = df.sum(-1, keepdim=True)
            isr = torch.exp(df)
            isr = isr.clamp(min=c["vmin"], max=c["vmax"]) if "truncate" in c["vllm"] else isr.masked_fill(isr > c["vmax"], 0.0)
        rpf = torch.stack([r_even(resp, full), r_len(resp, full)], 1)
        w = torch.tensor(c["w"])
        if c["multi"] == "sum_then_normalize":
            rw = (rpf * w).nansum(1)
            mean = rw.view(-1, G).mean(1)
            if bug == "weights_twice":
                rw = (rpf * w * w).nansum(1)
                mean = rw.view(-1, G).mean(1)
            mean = mean.repeat(G) if bug == "repeat" else mean.repeat_interleave(G)
            std = rw.std().expand_as(rw) if c["scale"] == "batch" else rw.view(-1, G).std(1).repeat_interleave(G)
            if bug == "batch_std_centred_var":
                std = rw.var().expand_as(rw)
            adv = rw - mean
            if c["scale"] != "none":
                adv = adv / (std + 1e-4)
        else:
            gr = rpf.view(-1, G, 2)
            rkk = (gr - gr.mean(1, keepdim=True)) / (nanstd(gr, 1, True) + 1e-4)
            if bug == "gdpo_axis":
                rkk = (gr - gr.mean(2, keepdim=True)) / (nanstd(gr, 2, True) + 1e-4)
            rw = (rkk.view(-1, 2) * w).nansum(1)
            adv = (rw - rw.mean()) / (rw.std() + 1e-4)
        sc = (rpf * w).nansum(1)
        gid = torch.arange(n) // G + roll * 1000
        perms = [r * (n // W) + torch.randperm(n // W, generator=g) for r in range(W)]
        if bug == "rank_adv":
            adv = torch.cat([adv[: n // W]] * W)
        aidx = [torch.arange(r * (n // W), (r + 1) * (n // W)) for r in range(W)] if bug == "adv_unshuffled" else perms
        for itn in range(c["it"]):
            if bug == "old_refreshed" and itn:
                with torch.no_grad():
                    old = fwd(m)
            for s0 in range(0, c["spg"], c["ga"]):
                if step >= c["steps"]:
                    break
                opt.zero_grad()
                step += 1
                for mb in range(c["ga"]):
                    thr = {}
                    outs = []
                    for r in range(W):
                        sl = slice((s0 + mb) * c["bs"], (s0 + mb + 1) * c["bs"])
                        ix = perms[r][sl]
                        mask = cm[ix]
                        lp, ent, _ = score_fwd(m, ids[ix], am[ix], T, 1.0 if bug == "temp_new" else c["temp"], c["bf16"])
                        A = adv[aidx[r][sl]][:, None]
                        o = lp.detach() if old is None else old[ix]
                        lr_ = lp - o
                        lw = lr_ if c["level"] == "token" else ((lr_ * mask).sum(-1) / mask.sum(-1).clamp(min=1)).unsqueeze(-1)
                        c1 = torch.exp(lw)
                        kl = None
                        if c["beta"]:
                            d = refl[ix] - lp
                            if bug == "kl_dir":
                                d = -d
                            kl = torch.exp(d) - d - 1
                            if bug == "kl_no_minus1":
                                kl = torch.exp(d) - 1
                            if c["bck"]:
                                kl = kl * (c1.detach() if bug == "bck_detached" else c1)
                        if c["loss"] == "cispo":
                            cr = torch.clamp(c1, max=c["eh"])
                            if bug != "cispo_grad":
                                cr = cr.detach()
                            if bug == "cispo_lower":
                                cr = torch.clamp(c1, max=1 - c["el"]).detach()
                            pl = -cr * A * lp
                        else:
                            lo, hi = (c["eh"], c["el"]) if bug == "clip_swapped" else (c["el"], c["eh"])
                            c2 = torch.clamp(c1, 1 - lo, 1 + hi)
                            if c["delta"]:
                                c1 = torch.clamp(c1, max=c["delta"])
                            pl = -(torch.max if bug == "max_for_min" else torch.min)(c1 * A, c2 * A)
                        if c["teq"] < 1:
                            q = torch.quantile(ent.detach()[mask.bool()], 1 - c["teq"])
                            em = ((ent * mask <= q) if bug == "low_entropy" else (ent * mask >= q)) & mask.bool()
                            pl = pl * em
                        if c["vllm"]:
                            pl = pl * isr[ix]
                        if c["beta"]:
                            pl = pl + c["beta"] * kl
                        if c["loss"] == "grpo":
                            den = mask.sum(-1).clamp(min=1.0)
                            if bug == "len_T":
                                den = torch.full_like(den, full.sum(-1).max())
                            loss = ((pl * mask).sum(-1) / den).mean()
                            loss = loss if bug == "no_ga" else loss / c["ga"]
                        elif c["loss"] == "bnpo":
                            loss = (pl * mask).sum() / mask.sum().clamp(min=1) / c["ga"]
                        else:
                            it_n = cm[perms[r]].sum() if bug == "items_local" else items_all
                            nz = it_n.clamp(min=1.0) / W * c["ga"] / c["spg"]
                            if bug == "ga_twice":
                                nz = nz * c["ga"]
                            loss = (pl * mask).sum() / nz
                        if c["ec"]:
                            el = (ent * mask * em).sum() / (mask * em).sum().clamp(min=1.0) / c["ga"]
                            loss = loss + c["ec"] * el if bug == "entropy_sign" else loss - c["ec"] * el
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        gm = lambda x: float((x * mask).sum() / mask.sum().clamp(min=1))
                        scal = dict(loss=loss.item(), entropy=gm(ent))
                        if c["beta"]:
                            scal["kl"] = gm(kl)
                        if c["loss"] != "cispo":
                            x1, x2 = ((c1 < 1 - c["el"]) & (A < 0)).float(), ((c1 > 1 + c["eh"]) & (A > 0)).float()
                            scal |= {"clip_ratio/low_mean": gm(x1), "clip_ratio/high_mean": gm(x2), "clip_ratio/region_mean": gm(((x1 + x2) > 0).float())}
                        opts = dict(
                            loss_type=c["loss"],
                            beta=c["beta"],
                            epsilon=c["el"],
                            epsilon_high=c["eh"],
                            delta=c["delta"],
                            scale_rewards=c["scale"],
                            num_iterations=c["it"],
                            gradient_accumulation_steps=c["ga"],
                            steps_per_generation=c["spg"],
                            per_device_train_batch_size=c["bs"],
                            num_generations=G,
                            temperature=c["temp"],
                            reward_weights=c["w"],
                            multi_objective_aggregation=c["multi"],
                            mask_truncated_completions=c["mtc"],
                            use_vllm=bool(c["vllm"]),
                            vllm_importance_sampling_correction=bool(c["vllm"]),
                            importance_sampling_level=c["level"],
                            top_entropy_quantile=c["teq"],
                            entropy_coef=c["ec"],
                            use_bias_correction_kl=c["bck"],
                            max_completion_length=T,
                            num_items_in_batch=int(items_all),
                            eos_token_id=EOS,
                            bf16=c["bf16"],
                            learning_rate=c["lr"],
                        )
                        if c["vllm"]:
                            opts |= dict(
                                vllm_importance_sampling_mode=c["vllm"],
                                vllm_importance_sampling_clip_max=c["vmax"],
                                vllm_importance_sampling_clip_min=c["vmin"],
                            )
                        meta = dict(
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run=name,
                            step=step,
                            rank=r,
                            world_size=W,
                            micro_batch=mb,
                            micro_batches=c["ga"],
                            options=opts,
                            token_loss_includes_kl=True,
                            scalars=scal if W == 1 else dict(loss=loss.item()),
                            scalars_scope="micro_batch",
                        )
                        dump(
                            out,
                            meta,
                            dict(
                                response_ids=resp[ix],
                                input_ids=ids[ix],
                                attention_mask=am[ix],
                                response_mask=mask.bool(),
                                logp_new=lp,
                                logp_old=old[ix] if old is not None else None,
                                logp_ref=refl[ix] if refl is not None else None,
                                logp_gen=gen[ix] if c["vllm"] else None,
                                is_weights=None if isr is None else (isr[ix] if isr.shape[1] > 1 else isr[ix].squeeze(1)),
                                advantages=adv[aidx[r][sl]],
                                scores=sc[ix],
                                rewards_per_func=rpf[ix],
                                group_id=gid[ix],
                                sample_id=ix + roll * 10000,
                                entropy=ent,
                                kl=kl,
                                token_loss=pl.expand_as(lp),
                                dlogp=dl,
                                loss=loss,
                            ),
                            f"step_{step:03d}_rank_{r}_mb_{mb}",
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
        roll += 1


a, b, c_, d_ = list(H)
B = dict(
    b_reward_repeat=(
        a,
        "repeat",
        "the group mean is spread over rows with repeat in place of repeat_interleave, so that rows get the baselines of other groups",
        "",
    ),
    b_weights_twice=(
        a,
        "weights_twice",
        "reward weights are applied twice in the advantages, so the second reward counts a quarter",
        "another choice of reward_weights gives such advantages",
    ),
    b_kl_direction=(a, "kl_dir", "the k3 estimator takes lp-ref for ref-lp, so the penalty is that of the other direction", ""),
    b_kl_no_minus_d=(a, "kl_no_minus1", "k3 without its -d term: exp(d)-1, a biased estimate that may be negative", ""),
    b_eos_masked_out=(a, "eos_out", "the completion mask leaves out the EOS token, so that stopping is never trained", ""),
    b_ga_twice=(a, "ga_twice", "the dapo loss is divided by the accumulation steps a second time", ""),
    b_old_refreshed=(b, "old_refreshed", "old log-probs are recomputed at the second iteration, so the ratio is 1 there and nothing is clipped", ""),
    b_is_inverse=(b, "is_inverse", "the vLLM importance ratio is exp(sampling-old), the inverse", ""),
    b_temp_new=(b, "temp_new", "the training pass forgets to divide logits by the temperature that old log-probs have", ""),
    b_len_of_batch=(
        b,
        "len_T",
        "sums over tokens are divided by the longest completion of the batch in place of each row's length",
        "a constant-length (Dr.GRPO) normaliser",
    ),
    b_batch_var=(b, "batch_std_centred_var", "advantages are divided by the variance of the batch where its standard deviation is meant", ""),
    b_clip_swapped=(b, "clip_swapped", "the lower and the upper clip range are swapped", "epsilon 0.28 and epsilon_high 0.2 would compute this"),
    b_cispo_grad=(c_, "cispo_grad", "the clamped CISPO ratio is not detached, so the gradient flows through it, too", ""),
    b_rank_adv=(c_, "rank_adv", "every rank takes the slice of advantages of rank 0", ""),
    b_items_local=(c_, "items_local", "num_items_in_batch is not gathered: the tokens of the own rank are divided by the world size", ""),
    b_gdpo_axis=(c_, "gdpo_axis", "each reward is normalised over the reward functions in place of over the group", ""),
    b_adv_unshuffled=(d_, "adv_unshuffled", "rows are shuffled before the micro-batches, the advantages are not", ""),
    b_low_entropy=(d_, "low_entropy", "the entropy mask keeps the tokens of lowest entropy", ""),
    b_entropy_sign=(d_, "entropy_sign", "the entropy bonus is added to the loss, so that entropy is pushed down", "a negative entropy_coef computes this"),
    b_max_for_min=(d_, "max_for_min", "the larger of clipped and unclipped objective is taken: clipping stops nothing that it should", ""),
    b_bck_detached=(d_, "bck_detached", "the importance weight of the KL term is detached, so that its gradient lacks the score-function part", ""),
)
if __name__ == "__main__":
    main("k1_trl", run, H, B, lambda c: ["--profile", "trl-grpo@1.16"])
