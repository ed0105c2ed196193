"""TRL 1.16 RLOO and GRPO trainers. Dumps what TRL's variables give: log-probs, masks, rewards, advantages, dlogp, loss, a few scalars (GRPO also token_loss)."""

from world_j import *

NAME = "j1_trlrloo"
H = dict(
    h_rloo2r=dict(
        algo="rloo", beta=0.05, G=6, norm=False, clip=[-0.2, 1.1], ranks=2, ga=2, spg=4, it=2, temp=1.0, trunc=False, eps=(0.2, 0.2), T=20, lr=6e-3, seed=1
    ),
    h_rloonorm=dict(algo="rloo", beta=0.02, G=4, norm=True, clip=None, ranks=2, ga=1, spg=2, it=2, temp=0.9, trunc=True, eps=(0.2, 0.3), T=24, lr=6e-3, seed=2),
    h_grpodapo=dict(
        algo="grpo", beta=0.04, G=6, norm=None, clip=None, ranks=2, ga=2, spg=4, it=2, temp=0.8, trunc=False, eps=(0.2, 0.28), T=22, lr=6e-3, seed=3
    ),
)
B = dict(
    b_loo_n=("h_rloo2r", "loo_n", "the leave-one-out baseline divides by n instead of n-1", "", None),
    b_self_mean=("h_rloo2r", "self_mean", "the baseline is the mean of the group with the row itself", "TRL GRPO with scale_rewards none centres so", None),
    b_kl_sign=("h_rloo2r", "kl_sign", "the KL penalty is added to the reward instead of subtracted", "", None),
    b_kl_unmasked=("h_rloo2r", "kl_unmasked", "the KL of a sequence sums the padding behind EOS, too", "", None),
    b_kl_norank=("h_rloo2r", "kl_norank", "KL is not gathered: the rows of rank 1 get the KL of rank 0's rows", "", None),
    b_clip_after=("h_rloo2r", "clip_after", "rewards are clipped after the KL penalty was subtracted instead of before", "", None),
    b_ratio_mean=(
        "h_rloo2r",
        "ratio_mean",
        "the log-ratio of a sequence is its mean over tokens, not the sum",
        "TRL GRPO importance_sampling_level sequence (GSPO) computes this",
        None,
    ),
    b_shuffled=("h_rloo2r", "shuffled", "rows are shuffled before the rewards are grouped, so baselines are of other prompts", "", None),
    b_norm_rank=("h_rloonorm", "norm_rank", "advantages are normalised over a rank's rows instead of the whole gathered batch", "", None),
    b_eos_out=("h_rloonorm", "eos_out", "the completion mask ends one token early and loses the EOS", "", None),
    b_trunc_late=(
        "h_rloonorm",
        "trunc_late",
        "truncated completions are taken out of the new log-probs' sum, but old sums were made before the mask",
        "",
        None,
    ),
    b_max=("h_rloonorm", "max", "pessimistic bound upside down: max instead of min of the two surrogates", "", None),
    b_items_local=(
        "h_grpodapo",
        "items_local",
        "the normaliser is the token count of all ranks without the division by the number of processes, so gradients are halved",
        "",
        None,
    ),
    b_k3_swap=("h_grpodapo", "k3_swap", "k3 with the log-ratio's sign swapped (policy over reference)", "", None),
    b_no_is=("h_grpodapo", "no_is", "the importance-sampling weights of the engine are computed but never multiplied", "", None),
    b_temp_new=("h_grpodapo", "temp_new", "log-probs with gradient are computed without the temperature, old and reference ones with it", "", None),
    b_std_rank=("h_grpodapo", "std0_batch", "the standard deviation is that of the local rank's batch instead of the group", "", None),
)


def run(d, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    G, T, R, P = c["G"], c["T"], c["ranks"], 6
    pol = LM(seed=c["seed"])
    ref = copy.deepcopy(pol)
    opt = torch.optim.AdamW(pol.parameters(), lr=c["lr"], weight_decay=0.0)
    for p in ref.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=g)
    step, w = 0, torch.tensor([1.0, 0.5])
    grpo = c["algo"] == "grpo"
    for roll in range(2):
        N = 48
        x, L = prompts(N // G, P, g)
        x, L = x.repeat_interleave(G, 0), L.repeat_interleave(G)
        eng = engine_of(pol)
        ids, r, m = generate(eng, x, T, c["temp"], g)
        ended = (r == EOS).any(1)
        raw_m = m
        if c["trunc"]:
            m = m & ended[:, None]
        if bug == "eos_out":
            m = m & (r != EOS)
        with torch.no_grad():
            old, rf, gen = logps(pol, ids, T, c["temp"], 0), logps(ref, ids, T, c["temp"], 0), logps(eng, ids, T, c["temp"], 0)
        fn = reward(ids, r, raw_m)
        rw = (fn * w).sum(1)
        score = rw.clone()
        uid = torch.arange(N) // G + roll * 1000
        if grpo:
            gr = rw.view(-1, G)
            sd = gr.std(1, keepdim=True).expand_as(gr)
            if bug == "std0_batch":
                sd = torch.cat([q.std().expand_as(q) for q in gr.chunk(R)])
            adv = ((gr - gr.mean(1, keepdim=True)) / (sd + 1e-4)).reshape(-1)
            isw = ((old - gen) * m).exp().clamp(max=2.0)
        else:
            if c["clip"] and bug != "clip_after":
                rw = rw.clamp(*c["clip"])
            k = (old - rf) * (1 if bug == "kl_unmasked" else m)
            k = k.sum(1)
            if bug == "kl_norank":
                k = k[: N // R].repeat(R)
            rw = rw + c["beta"] * k if bug == "kl_sign" else rw - c["beta"] * k
            if bug == "clip_after":
                rw = rw.clamp(*c["clip"])
            pm = torch.randperm(N, generator=torch.Generator().manual_seed(5)) if bug == "shuffled" else torch.arange(N)
            gr = rw[pm].view(-1, G)
            base = gr.mean(1, keepdim=True) if bug == "self_mean" else (gr.sum(1, keepdim=True) - gr) / (G if bug == "loo_n" else G - 1)
            a = (gr - base).reshape(-1)
            adv = torch.empty(N)
            adv[pm] = a
            if c["norm"]:
                adv = torch.cat([(q - q.mean()) / (q.std() + 1e-4) for q in (adv.chunk(R) if bug == "norm_rank" else [adv])])
        olds = (old * (raw_m if bug == "trunc_late" else m)).sum(1)
        items = m.sum().float()
        spg, ga = c["spg"], c["ga"]
        per = N // R // spg
        order = [torch.randperm(N // R, generator=g) + q * (N // R) for q in range(R)]
        for it in range(c["it"]):
            for s0 in range(0, spg, ga):
                opt.zero_grad()
                step += 1
                for rank in range(R):
                    for mb in range(ga):
                        i = order[rank][(s0 + mb) * per : (s0 + mb + 1) * per]
                        lp, en = logps(pol, ids[i], T, 1.0 if bug == "temp_new" else c["temp"])
                        mm = m[i].float()
                        A = adv[i]
                        t = {}
                        if grpo:
                            ra = (lp - old[i]).exp()
                            A1 = A[:, None]
                            tl = -torch.min(ra * A1, ra.clamp(1 - c["eps"][0], 1 + c["eps"][1]) * A1)
                            if bug != "no_is":
                                tl = tl * isw[i]
                            dd = rf[i] - lp
                            dd = -dd if bug == "k3_swap" else dd
                            kl = dd.exp() - dd - 1
                            tl = tl + c["beta"] * kl
                            norm = (items if bug == "items_local" else items / R) * ga / spg
                            loss = (tl * mm).sum() / norm
                            t.update(token_loss=tl, is_weights=isw[i], logp_gen=gen[i], kl=kl)
                            sc = {"kl": ((kl * mm).sum() / mm.sum()).item()} if R == 1 else {}
                        else:
                            lr_ = (lp * mm).sum(1) - olds[i]
                            if bug == "ratio_mean":
                                lr_ = lr_ / mm.sum(1).clamp(min=1)
                            c1 = lr_.exp()
                            l1, l2 = c1 * A, c1.clamp(1 - c["eps"][0], 1 + c["eps"][1]) * A
                            loss = -(torch.max if bug == "max" else torch.min)(l1, l2).mean()
                            sc = {}
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss if grpo else loss / ga).backward()
                        o = dict(
                            beta=c["beta"],
                            epsilon=c["eps"][0],
                            epsilon_high=c["eps"][1],
                            num_generations=G,
                            num_iterations=c["it"],
                            steps_per_generation=spg,
                            gradient_accumulation_steps=ga,
                            temperature=c["temp"],
                            mask_truncated_completions=c["trunc"],
                            reward_weights=[1.0, 0.5],
                            eos_token_id=EOS,
                            max_completion_length=T,
                        )
                        if grpo:
                            o.update(
                                loss_type="dapo",
                                scale_rewards="group",
                                importance_sampling_level="token",
                                use_vllm=True,
                                vllm_importance_sampling_correction=True,
                                vllm_importance_sampling_mode="token_truncate",
                                vllm_importance_sampling_clip_max=2.0,
                                num_items_in_batch=int(items),
                                use_bias_correction_kl=False,
                            )
                        else:
                            o.update(normalize_advantages=c["norm"], reward_clip_range=c["clip"])
                        t.update(
                            input_ids=ids[i],
                            attention_mask=torch.cat([(x[i] != PAD), m[i]], 1),
                            response_ids=r[i],
                            response_mask=m[i],
                            logp_new=lp,
                            logp_old=old[i],
                            logp_ref=rf[i],
                            entropy=en,
                            advantages=A,
                            scores=score[i],
                            rewards_per_func=fn[i],
                            group_id=uid[i],
                            sample_id=i + roll * 1000,
                            loss=loss,
                            dlogp=dl,
                            prompt_len=L[i],
                        )
                        meta = dict(
                            framework="trl",
                            version="1.16.0",
                            algorithm=c["algo"],
                            run="j1",
                            step=step,
                            rank=rank,
                            world_size=R,
                            micro_batch=mb,
                            micro_batches=ga,
                            options=o,
                            scalars=dict(loss=loss.item(), **sc),
                            scalars_scope="micro_batch",
                        )
                        if grpo:
                            meta["token_loss_includes_kl"] = True
                        write(d, f"step_{step:04d}_rank_{rank}_mb_{mb}", t, meta)
                for p in pol.parameters():
                    p.grad /= R
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()


main(NAME, H, B, run)
