"""open-instruct style GRPO (grpo_fast): asynchronous engine one step behind, TIS cap, loss denominators. Dump: what the train loop has (log-probs, masks, advantages, scores, kl, loss, logged names); dlogp in some settings only."""

from world_b import *


def masked_mean(v, m, denom=None):
    return (v * m).sum() / (m.sum() if denom is None else denom)


def estimate_kl(d, ratio):
    return torch.stack([d, d**2 / 2, torch.expm1(-d) + d, ratio * d])


BASE = dict(
    seed=21,
    groups=8,
    n=4,
    P=6,
    T=30,
    ranks=1,
    minis=2,
    ga=2,
    epochs=1,
    rollouts=3,
    lr=6e-3,
    temp=1.0,
    beta=0.05,
    est=2,
    norm="standard",
    denom="token",
    cap=2.0,
    lo=0.2,
    hi=0.272,
    loss_fn="dapo",
    tools=False,
    behind=1,
    grads=False,
    reward="frac",
    scale=10.0,
)
H = dict(
    h_standard_tis=dict(BASE, cap=1.05),
    h_centered_const=dict(BASE, seed=22, norm="centered", denom=400.0, beta=0.0, reward="binary", n=8, groups=4),
    h_tools=dict(BASE, seed=23, tools=True, est=1, epochs=2, beta=0.1, grads=True),
    h_2ranks=dict(BASE, seed=24, ranks=2, cap=1.2, norm="centered", scale=1.0, grads=True),
    h_kl3=dict(BASE, seed=25, est=3, epochs=2, minis=1, ga=4, cap=0.0, behind=0, lo=0.1, hi=0.15),
    h_cispo=dict(BASE, seed=26, loss_fn="cispo", epochs=2, hi=0.2, lo=1.0, cap=1.5, temp=0.9, beta=0.01),
)
B = {
    "adv_global_std": ("h_standard_tis", "advantages are divided by the standard deviation of the whole batch instead of the prompt's"),
    "adv_repeat_wrong": ("h_standard_tis", "the mean per prompt is tiled instead of repeated, so that rows get the mean of another prompt"),
    "adv_no_center": ("h_centered_const", "rewards are divided by their group mean scale but never centred: raw rewards are the advantages"),
    "tis_inverse": ("h_standard_tis", "TIS weights are exp(vllm − old) instead of exp(old − vllm)"),
    "tis_new": ("h_2ranks", "TIS weights use the current log-probs in place of the old ones, with gradient stopped"),
    "tis_no_cap": ("h_standard_tis", "the cap is never applied"),
    "tis_floor": ("h_2ranks", "clamp has min in place of max: weights below the cap are raised to it"),
    "tis_row_mean": ("h_standard_tis", "the TIS weight is the mean log-ratio of the row instead of the token's"),
    "stale_three": ("h_2ranks", "the engine never receives weights: it samples from the initial model all the time"),
    "mask_tool_in": ("h_tools", "tool outputs are trained on: mask_tool_use is ignored in the loss"),
    "mask_off_by_one": ("h_2ranks", "the loss mask is shifted left by one: the last token is lost"),
    "denom_local": (
        "h_2ranks",
        "the token denominator is that of the rank, so ranks with short answers weigh more, and the world size still multiplies",
    ),
    "denom_micro": ("h_standard_tis", "each micro-batch divides by its own tokens and the sum is not divided by the accumulation steps"),
    "denom_with_pad": ("h_tools", "the token count is of the attention mask with prompts"),
    "const_and_ga": ("h_centered_const", "a constant denominator and, on top, a division by the accumulation steps times the rows"),
    "kl_reversed": ("h_standard_tis", "ref − new instead of new − ref under estimator 2"),
    "kl_est_offset": ("h_tools", "estimators are counted from one, so that estimator 1 is k1 and not k2"),
    "kl_detached_ratio": ("h_kl3", "estimator 3's importance ratio is a detached exp(ref − old) instead of exp(new − old): wrong value and gradient"),
    "kl_outside_mask": ("h_tools", "the KL term is summed over all tokens of the answer, tool outputs included"),
    "clip_symmetric": ("h_kl3", "clip_higher is ignored: the upper bound is 1 + clip_lower"),
    "cispo_grad": ("h_cispo", "the clipped ratio is not detached in CISPO's loss"),
    "cispo_clip_wrong": ("h_cispo", "the CISPO ratio is clamped to clip_higher itself, not to 1 + clip_higher"),
    "temp_new_missing": ("h_cispo", "new log-probs are not divided by the temperature"),
    "old_refreshed": ("h_kl3", "old log-probs are overwritten in the second epoch, so that ratios are 1"),
    "ref_moves": ("h_tools", "the reference is overwritten with the policy before every rollout but the first: logp_ref is logp_old"),
}


def run(out, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = copy.deepcopy(m)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    R, P, T = c["ranks"], c["P"], c["T"]
    hist = [copy.deepcopy(m)]
    step = 0
    for it in range(c["rollouts"]):
        pids, patt, _ = prompts(c["groups"], P, g)
        ids, att = pids.repeat_interleave(c["n"], 0), patt.repeat_interleave(c["n"], 0)
        eng = copy.deepcopy(hist[max(0, len(hist) - 1 - c["behind"])]).bfloat16()
        if bug == "stale_three":
            eng = copy.deepcopy(hist[0]).bfloat16()
        resp, mask, vllm = sample(eng, ids, att, T, c["temp"], g)
        full, fatt = torch.cat([ids, resp], 1), torch.cat([att, mask], 1)
        rm = mask.clone()
        if c["tools"]:
            for i in range(0, len(resp), 2):
                rm[i, 3 : 3 + 2 + i % 5] = False
        if bug == "ref_moves" and it:
            ref = copy.deepcopy(m)
        with torch.no_grad():
            old, refl = logps(m, full, fatt, P, c["temp"]), logps(ref, full, fatt, P, c["temp"])
        sc = reward(resp, mask, c["reward"]) * c["scale"]
        s = sc.view(-1, c["n"])
        mean = s.mean(1)
        std = s.std(1, unbiased=False)
        mr, sr = mean.repeat_interleave(c["n"]), std.repeat_interleave(c["n"])
        if bug == "adv_repeat_wrong":
            mr = mean.repeat(c["n"])
        if bug == "adv_global_std":
            sr = sc.std(unbiased=False).expand_as(sr)
        a = (sc - mr) / (sr + 1e-8) if c["norm"] == "standard" else sc - mr
        if bug == "adv_no_center":
            a = sc.clone()
        adv = a[:, None].expand(-1, T).clone()
        n = len(resp)
        per = n // R
        mb = per // c["minis"]
        mi = mb // c["ga"]
        perm = torch.randperm(n, generator=g)
        for ep in range(c["epochs"]):
            if bug == "old_refreshed" and ep:
                with torch.no_grad():
                    old = logps(m, full, fatt, P, c["temp"])
            for k in range(c["minis"]):
                step += 1
                opt.zero_grad()
                allrows = [perm[r * per + k * mb : r * per + (k + 1) * mb] for r in range(R)]
                lossmask = rm.clone()
                if bug == "mask_tool_in":
                    lossmask = mask.clone()
                if bug == "mask_off_by_one":
                    lossmask = torch.cat([rm[:, 1:], torch.zeros(n, 1, dtype=torch.bool)], 1)
                tok = int(sum(lossmask[x].sum() for x in allrows))
                if bug == "denom_with_pad":
                    tok = int(sum(fatt[x].sum() for x in allrows))
                for r in range(R):
                    for q in range(c["ga"]):
                        i = allrows[r][q * mi : (q + 1) * mi]
                        lm = lossmask[i].float()
                        lp = logps(m, full[i], fatt[i], P, 1.0 if bug == "temp_new_missing" else c["temp"])
                        lp.retain_grad()
                        ratio = (lp - old[i]).exp()
                        A = adv[i]
                        if c["loss_fn"] == "cispo":
                            cl = torch.clamp(ratio, max=c["hi"] if bug == "cispo_clip_wrong" else 1 + c["hi"])
                            pl = -A * (cl if bug == "cispo_grad" else cl.detach()) * lp
                            pl2 = pl
                        else:
                            pl = -A * ratio
                            pl2 = -A * torch.clamp(ratio, 1 - c["lo"], 1 + (c["lo"] if bug == "clip_symmetric" else c["hi"]))
                        w = None
                        if c["cap"] > 0:
                            d = (lp.detach() if bug == "tis_new" else old[i]) - vllm[i]
                            if bug == "tis_inverse":
                                d = -d
                            if bug == "tis_row_mean":
                                d = ((d * lm).sum(1, keepdim=True) / lm.sum(1, keepdim=True)).expand_as(d)
                            w = d.clamp(-10, 10).exp()
                            w = w if bug == "tis_no_cap" else w.clamp(min=c["cap"]) if bug == "tis_floor" else w.clamp(max=c["cap"])
                            pl, pl2 = pl * w, pl2 * w
                        plm = torch.max(pl, pl2)
                        tot = plm
                        t = {}
                        klv = None
                        if c["beta"]:
                            d = (lp - refl[i]).clamp(-40, 40)
                            if bug == "kl_reversed":
                                d = -d
                            rr = ratio.detach() if bug == "kl_detached_ratio" else ratio
                            klv = estimate_kl(d, rr)[c["est"] - 1 if bug == "kl_est_offset" else c["est"]]
                            if bug == "kl_detached_ratio":
                                klv = (refl[i] - old[i]).exp().detach() * d
                            tot = plm + c["beta"] * klv
                            t |= dict(kl=klv, logp_ref=refl[i])
                        if bug == "denom_micro":
                            den = None
                        elif c["denom"] == "token":
                            den = int(lossmask[allrows[r]].sum()) if bug == "denom_local" else tok
                        else:
                            den = c["denom"] * (c["ga"] * mi if bug == "const_and_ga" else 1)
                        if bug == "kl_outside_mask":
                            loss = masked_mean(plm, lm, den) + c["beta"] * masked_mean(klv, mask[i].float(), den)
                        else:
                            loss = masked_mean(tot, lm, den)
                        loss = loss * R
                        (loss / R).backward()
                        clipf = masked_mean((pl2 > pl).float(), rm[i].float()).item()
                        sca = {
                            "loss/policy_avg": masked_mean(plm, lm).item(),
                            "policy/clipfrac_avg": clipf,
                            "val/ratio": masked_mean(ratio, rm[i].float()).item(),
                            "loss/total_avg": loss.item(),
                            "lr": c["lr"],
                        }
                        if klv is not None:
                            sca["loss/kl_avg"] = masked_mean(c["beta"] * klv, rm[i].float()).item()
                        t |= dict(
                            response_mask=rm[i],
                            response_ids=resp[i],
                            logp_new=lp,
                            logp_old=old[i],
                            logp_gen=vllm[i],
                            advantages=adv[i],
                            scores=sc[i],
                            group_id=i // c["n"] + it * 100,
                            loss=loss,
                            is_weights=w,
                        )
                        if c["grads"]:
                            t |= dict(dlogp=lp.grad * R, token_loss=plm)
                        o = dict(
                            clip_lower=c["lo"],
                            clip_higher=c["hi"],
                            beta=c["beta"],
                            advantage_normalization_type=c["norm"],
                            loss_denominator=c["denom"],
                            truncated_importance_sampling_ratio_cap=c["cap"],
                            loss_fn=c["loss_fn"],
                            num_samples_per_prompt_rollout=c["n"],
                            mask_tool_use=c["tools"],
                            temperature=c["temp"],
                            async_steps=c["behind"],
                            num_mini_batches=c["minis"],
                            num_epochs=c["epochs"],
                            eos_token_id=EOS,
                            gradient_accumulation_steps=c["ga"],
                        )
                        if c["denom"] == "token":
                            o["num_items_in_batch"] = tok
                        if c["beta"]:
                            o["kl_estimator"] = c["est"]
                        if c["behind"]:
                            o["async_rollout"] = True
                        write(
                            out,
                            f"step{step:03d}_r{r}_m{q}",
                            t,
                            framework="open-instruct",
                            version="e6c3044a",
                            algorithm="grpo",
                            run=f"oi-{c['seed']}",
                            step=step,
                            rank=r,
                            world_size=R,
                            micro_batch=q,
                            micro_batches=c["ga"],
                            options=o,
                            scalars=sca,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
        hist.append(copy.deepcopy(m))


if __name__ == "__main__":
    main("b3_openinst", H, B, run)
