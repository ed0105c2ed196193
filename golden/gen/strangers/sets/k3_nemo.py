"""A trainer of one's own in the spirit of NeMo-RL, torchtune, AReaL and prime-rl. Partly lazy: settings 1 and 3 dump log-probs, mask, advantages, rewards, groups, loss, kl only; 2 and 4 token_loss and dlogp, too."""

from world_k import *

base = dict(
    kind="ppo",
    G=8,
    n=32,
    micro=2,
    mini=2,
    world=1,
    el=0.2,
    eh=0.2,
    agg="token",
    beta=0.0,
    center="mean",
    scale="group_std",
    eps=1e-6,
    dec=None,
    engine=False,
    temp=1.0,
    lr=8e-3,
    T=32,
    steps=4,
    lazy=True,
    stale=False,
    epochs=1,
)
H = dict(
    h_loo_global_tokens_two_ranks=base | dict(world=2, center="loo", scale="none", eh=0.28, beta=0.02, seed=21),
    h_decoupled_iw=base | dict(dec=1.03, lazy=False, seed=22, T=48, epochs=2, steps=6, G=16, n=48, mini=1, micro=3),
    h_torchtune_seqmean_kl=base | dict(agg="seq_mean_token_mean", beta=0.05, eps=1e-4, seed=23, T=40, G=4, n=24, mini=3, micro=1, steps=6),
    h_primerl_engine_is_async=base
    | dict(kind="cispo", scale="none", engine=True, eh=1.15, temp=0.8, stale=True, lazy=False, seed=24, T=60, n=16, mini=1, micro=2, world=2, steps=5),
)


def run(c, bug, out, name):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = m if bug == "ref_alias" else copy.deepcopy(m)
    eng = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.01)
    G, T, n, W, P = c["G"], c["T"], c["n"], c["world"], 10
    step = roll = 0
    prev = copy.deepcopy(m)
    while step < c["steps"]:
        if c["stale"]:
            eng = prev if bug != "no_sync" else eng
            prev = copy.deepcopy(m)
        else:
            eng = m
        pid, pam = prompts(n // G, P, g)
        pid, pam = pid.repeat_interleave(G, 0), pam.repeat_interleave(G, 0)
        ids, am, gen, pol, _ = sample(eng, pid, pam, T, g, c["temp"], bf16=True)
        resp = ids[:, P:]
        mask = am[:, P:].bool()
        tt = 1.0 if bug == "no_temp" else c["temp"]
        full = mask
        if bug == "mask_shift":
            mask = am[:, P - 1 : -1].bool()
        with torch.no_grad():
            old = score_fwd(m, ids, am, T, tt)[0]
            rl = score_fwd(ref, ids, am, T, tt)[0]
        rw = r_even(resp, full) + r_len(resp, full) + 0.3 * r_big(resp, full)
        gr = rw.view(-1, G)
        if bug == "reshape":
            gr = rw.view(G, -1).t()
        base_ = gr.mean(1, keepdim=True) if c["center"] == "mean" else (gr.sum(1, keepdim=True) - gr) / (G if bug == "loo_G" else G - 1)
        A = gr - base_
        if c["scale"] == "group_std":
            A = A / ((gr - (gr if 0 else gr.mean(1, keepdim=True))).pow(2).sum(1, keepdim=True).div(G - 1).sqrt() + c["eps"])
        if bug == "adv_abs_std":
            A = (gr - base_) / ((gr - base_).abs().mean(1, keepdim=True) + c["eps"])
        A = A.t().reshape(-1) if bug == "reshape" else A.reshape(-1)
        if bug == "pos_only":
            A = A.clamp(min=0)
        gs = gen[torch.arange(n).view(-1, G).roll(1, 1).reshape(-1)] if bug == "gen_misrow" else gen
        iw = None
        if c["dec"]:
            iw = torch.exp((old - gs) * mask).clamp(max=c["dec"])
            if bug == "iw_from_ref":
                iw = torch.exp((old - rl) * mask).clamp(max=c["dec"])
            if bug == "iw_mean_pad":
                iw = iw / (iw * mask).mean()
        per = n // W
        mb = per // c["mini"]
        for ep in range(c["epochs"]):
            pm = [r * per + torch.randperm(per, generator=g) for r in range(W)]
            for k in range(c["mini"]):
                if step >= c["steps"]:
                    break
                step += 1
                opt.zero_grad()
                rows = [pm[r][k * mb : (k + 1) * mb] for r in range(W)]
                tok = sum(mask[x].sum() for x in rows)
                for r in range(W):
                    for j, ix in enumerate(rows[r].chunk(c["micro"])):
                        lp, ent, _ = score_fwd(m, ids[ix], am[ix], T, tt)
                        M = mask[ix].float()
                        a = A[ix][:, None]
                        o = gs[ix] if c["engine"] else old[ix]
                        ratio = torch.exp(lp - o)
                        if c["kind"] == "cispo":
                            w = ratio.clamp(max=c["eh"])
                            if bug == "log_clamp":
                                w = torch.exp((lp - o).clamp(max=c["eh"] - 1.15 + 0.02))
                            if bug == "clamp_min":
                                w = ratio.clamp(min=c["eh"])
                            pl = -(w if bug == "w_grad" else w.detach()) * a * lp
                        else:
                            cl = ratio.clamp(1 - c["el"], 1 + c["eh"])
                            pl = -cl * a if bug == "no_min" else -torch.min(ratio * a, cl * a)
                            if bug == "clip_adv":
                                pl = -torch.min(ratio * a, (ratio * a).clamp(1 - c["el"], 1 + c["eh"]))
                            if iw is not None:
                                wt = torch.exp(lp.detach() - gs[ix]).clamp(max=c["dec"]) if bug == "iw_new" else iw[ix]
                                pl = pl * wt
                        kl = None
                        tl = pl
                        if c["beta"]:
                            d = rl[ix] - lp
                            kl = torch.exp(d) - d - 1
                            tl = pl + (-c["beta"] if bug == "kl_sign" else c["beta"]) * kl
                        if c["agg"] == "token":
                            den = tok
                            if bug == "rank_tokens":
                                den = mask[rows[r]].sum()
                            if bug == "numel":
                                den = torch.tensor(mb * W * T)
                            if bug == "micro_mean":
                                den = M.sum() * c["micro"] * W
                            loss = (tl * M).sum() / den * W
                            if bug == "micro_div":
                                loss = loss / c["micro"]
                        else:
                            L = M.sum(1)
                            L = L - 1 if bug == "len_off" else L
                            loss = ((tl * M).sum(1) / L.clamp(min=1)).mean() / c["micro"]
                            if bug == "kl_unmasked":
                                loss = (((pl * M).sum(1) / L).mean() + c["beta"] * kl.mean()) / c["micro"]
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        po = {
                            "loss.kind": c["kind"],
                            "adv.center": c["center"],
                            "adv.scale": c["scale"],
                            "adv.ddof": 1,
                            "adv.eps": c["eps"],
                            "agg.kind": c["agg"],
                            "kl.beta": c["beta"],
                            "logp.temperature": c["temp"],
                            "ratio.old": "engine" if c["engine"] else "stored",
                            "optim.epochs": c["epochs"],
                            "num_mini_batches": c["mini"],
                            "num_generations": G,
                            "eos_token_id": EOS,
                            "agg.denominator": "global" if c["agg"] == "token" else "micro",
                        }
                        if c["kind"] == "cispo":
                            po |= {"clip.high": c["eh"], "clip.high_is_absolute": True}
                        else:
                            po |= {"clip.low": c["el"], "clip.high": c["eh"]}
                        if c["beta"]:
                            po |= {"kl.kind": "k3", "kl.place": "loss"}
                        if c["dec"]:
                            po |= {"tis.level": "token", "tis.rule": "truncate_upper", "tis.high": c["dec"]}
                        if c["stale"]:
                            po |= {"async_rollout": True}
                        t = dict(
                            response_ids=resp[ix],
                            response_mask=mask[ix],
                            logp_new=lp,
                            logp_old=None if c["engine"] else old[ix],
                            logp_ref=rl[ix] if c["beta"] else None,
                            logp_gen=gs[ix] if c["dec"] or c["engine"] else None,
                            advantages=A[ix],
                            scores=rw[ix],
                            group_id=ix // G + 100 * roll,
                            sample_id=ix + 1000 * roll,
                            loss=loss,
                            kl=kl,
                        )
                        if not c["lazy"]:
                            t |= dict(token_loss=tl, dlogp=dl, is_weights=wt if iw is not None else None)
                        dump(
                            out,
                            dict(
                                framework="nemolike",
                                version="0.3",
                                algorithm="grpo",
                                run=name,
                                step=step,
                                rank=r,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=c["micro"],
                                options=po,
                                token_loss_includes_kl=True,
                                scalars=dict(loss=loss.item()),
                                scalars_scope="micro_batch",
                            ),
                            t,
                            f"step_{step:03d}_r{r}_m{j}",
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
        roll += 1


a, b, c_, d_ = list(H)
B = dict(
    b_loo_over_G=(a, "loo_G", "the leave-one-out baseline divides the sum of the others by G in place of G-1", ""),
    b_rank_tokens=(a, "rank_tokens", "the global token count is not all-reduced, while the loss is still multiplied by the world size", ""),
    b_numel_tokens=(a, "numel", "valid tokens are counted with the padding", ""),
    b_micro_mean=(
        a,
        "micro_mean",
        "every micro-batch is a mean over its own tokens, divided by micro-batches, where global tokens are declared",
        "a token mean per micro-batch with gradient accumulation, as old transformers trainers had it",
    ),
    b_micro_div=(a, "micro_div", "a loss that is already over the global tokens is divided by the micro-batches again", ""),
    b_kl_sign=(a, "kl_sign", "the KL term is subtracted from the loss", ""),
    b_iw_from_ref=(b, "iw_from_ref", "the decoupled weight takes the reference's log-probs for the engine's", ""),
    b_iw_mean_padding=(b, "iw_mean_pad", "weights are divided by a mean over padding as zeros, so that they are too large", ""),
    b_iw_new=(b, "iw_new", "the decoupled weight takes the current policy over the engine, so the update's ratio enters twice", ""),
    b_reshape=(b, "reshape", "rewards are reshaped as [G, prompts] where rows are grouped by prompt, so baselines mix prompts", ""),
    b_no_min=(b, "no_min", "only the clipped term is kept: no min with the unclipped one, so tokens outside lose their gradient on both sides", ""),
    b_clip_of_product=(b, "clip_adv", "ratio times advantage is clipped where the ratio is meant", ""),
    b_kl_unmasked=(c_, "kl_unmasked", "the KL term is a mean over all cells, padding included", ""),
    b_len_minus_one=(c_, "len_off", "row sums are divided by the length less one", ""),
    b_mask_shift=(c_, "mask_shift", "the mask is that of the prefix, one column early: a padding token counts after each EOS", ""),
    b_ref_alias=(c_, "ref_alias", "the reference is the policy itself (no copy), so its log-probs move with training", ""),
    b_mad_for_std=(c_, "adv_abs_std", "the mean absolute deviation stands where the standard deviation is declared", ""),
    b_no_temperature=(d_, "no_temp", "the trainer scores without the sampling temperature that the engine has", ""),
    b_gen_misrow=(d_, "gen_misrow", "engine log-probs are of the neighbour's row in the group", ""),
    b_w_grad=(d_, "w_grad", "the truncated weight is not detached", ""),
    b_clamp_min=(d_, "clamp_min", "the weight is bounded from below in place of above", ""),
    b_pos_only=(d_, "pos_only", "negative advantages are clamped to zero", ""),
    b_no_sync=(d_, "no_sync", "weights are never sent to the engine, which samples with the first ones for ever", ""),
)
if __name__ == "__main__":
    main("k3_nemo", run, H, B, lambda c: [])
