# GRPO as TRL 1.16's GRPOTrainer computes it (statements of _generate_and_score_completions and _compute_loss).
# Half of the settings dump everything (hook "full": grads, weights, logits, sample ids, kl terms), half what `verify export trl` does (hook "trl").
import os, sys

sys.path.insert(0, os.path.dirname(__file__))
from world_a import *

D = dict(
    loss_type="dapo",
    scale_rewards="group",
    num_iterations=1,
    gradient_accumulation_steps=2,
    steps_per_generation=None,
    epsilon=0.2,
    epsilon_high=None,
    delta=None,
    beta=0.0,
    use_bias_correction_kl=True,
    use_vllm=False,
    vllm_importance_sampling_correction=True,
    vllm_importance_sampling_mode="sequence_mask",
    vllm_importance_sampling_clip_max=3.0,
    vllm_importance_sampling_clip_min=None,
    mask_truncated_completions=False,
    top_entropy_quantile=1.0,
    importance_sampling_level="token",
    off_policy_mask_threshold=None,
    num_generations=4,
    per_device_train_batch_size=8,
    max_completion_length=24,
    temperature=1.0,
    learning_rate=5e-3,
    max_grad_norm=1.0,
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    entropy_coef=0.0,
    multi_objective_aggregation="sum_then_normalize",
    reward_weights=[1.0],
    max_steps=6,
    weight_decay=0.0,
)
W = dict(world=1, hook="trl", seed=1, noise=0.3, eos_bias=0.0)
HEALTHY = {
    "h_dapo_vllm_iter2": dict(W, use_vllm=True, num_iterations=2, hook="full", seed=11, temperature=0.9, learning_rate=2e-2),
    "h_grpo_beta_batchstd": dict(
        W, loss_type="grpo", beta=0.04, scale_rewards="batch", num_iterations=2, epsilon_high=0.28, seed=12, learning_rate=1e-2
    ),
    "h_drgrpo_masktrunc_2ranks": dict(
        W,
        loss_type="dr_grpo",
        scale_rewards="none",
        world=2,
        mask_truncated_completions=True,
        steps_per_generation=4,
        hook="full",
        seed=13,
        learning_rate=1e-2,
        eos_bias=0.6,
    ),
    "h_bnpo_entmask_delta": dict(
        W,
        loss_type="bnpo",
        top_entropy_quantile=0.4,
        delta=1.6,
        steps_per_generation=4,
        epsilon=0.1,
        beta=0.1,
        use_bias_correction_kl=False,
        seed=14,
        num_generations=8,
        learning_rate=1.5e-2,
    ),
    "h_cispo_vllm_tokentrunc": dict(
        W,
        loss_type="cispo",
        epsilon_high=1.2,
        use_vllm=True,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=1.02,
        steps_per_generation=4,
        beta=0.05,
        hook="full",
        seed=15,
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=[1.0, 0.5],
        learning_rate=1.5e-2,
    ),
    "h_sapo_opsm_2rewards": dict(
        W,
        loss_type="sapo",
        num_iterations=2,
        reward_weights=[0.7, 1.5],
        off_policy_mask_threshold=0.01,
        gradient_accumulation_steps=4,
        per_device_train_batch_size=4,
        seed=16,
        learning_rate=1.5e-2,
    ),
}
A, B_, C, E_, F_, G = list(HEALTHY)
BUGS = {
    "b_pad_denominator": (B_, "The mean of a row divides by the padded width instead of the mask's sum, so short answers count less."),
    "b_std_biased": (B_, "The standard deviation is taken with ddof 0 (numpy's default), so advantages are too large."),
    "b_ga_local_tokens": (
        A,
        "num_items_in_batch is replaced by the micro-batch's own token count times GA, so micro-batches with short answers weigh more (the accumulation bug of transformers).",
    ),
    "b_old_from_engine": (
        A,
        "old_per_token_logps are taken from the engine, so the mismatch is corrected twice, once in the ratio and once by the weight.",
    ),
    "b_is_inverted": (A, "The importance ratio is exp(sampling - old) instead of exp(old - sampling)."),
    "b_temperature_forgotten": (
        A,
        "The log-probs under the trained policy are taken without dividing the logits by the temperature, those of the old policy with it.",
    ),
    "b_kl_reversed": (B_, "k3 is taken with policy and reference swapped: exp(lp-ref)-(lp-ref)-1."),
    "b_kl_detached": (B_, "The KL term is computed under no_grad, so it has a value in the loss but no gradient."),
    "b_kl_outside_mask": (B_, "The KL term's row mean is added without the mask: padding columns enter it."),
    "b_eps_swapped": (B_, "Lower and upper clip bound are swapped: ratios are clamped to 1-epsilon_high and 1+epsilon."),
    "b_min_to_max": (B_, "The pessimistic min of the surrogates is a max, so clipping works on the wrong side."),
    "b_truncated_test_inverted": (
        C,
        "The test for truncation is negated: completions that ended are masked out, and only those that were cut are trained.",
    ),
    "b_eos_masked": (C, "The mask ends before EOS: the EOS token is never trained."),
    "b_rank_local_groups": (C, "Each rank takes the slice of the other rank's advantages (process_slice off by one rank)."),
    "b_drgrpo_total_length": (C, "dr_grpo divides by the padded length of prompt and completion instead of max_completion_length."),
    "b_entropy_lowest": (E_, "The entropy mask keeps the tokens of lowest entropy (threshold on the wrong side)."),
    "b_entropy_mask_pads": (E_, "The quantile of entropies is taken over all cells with padding, so the threshold is wrong and more tokens pass."),
    "b_delta_on_clipped": (E_, "delta bounds the clipped coefficient and not the raw one, so a negative advantage is never bounded."),
    "b_cispo_grad_through_ratio": (F_, "The clamped ratio of CISPO is not detached, so a gradient flows through it."),
    "b_cispo_is_not_truncated": (F_, "The vLLM weight is not truncated: clamp is called without assigning its result."),
    "b_gdpo_last_reward": (F_, "The normalised rewards are overwritten in the loop over functions: only the last one counts."),
    "b_weights_shuffled": (G, "Rewards are weighted with the weights of the functions in reversed order."),
    "b_shuffle_advantages": (G, "Rows are shuffled but the advantages keep the unshuffled order."),
    "b_sapo_tau_swapped": (G, "sapo uses the temperature of negative advantages for positive ones and the other way round."),
    "b_opsm_sign": (G, "The off-policy mask drops rows of positive advantage (sign of the comparison) instead of negative."),
    "b_engine_stale": (A, "The weights are sent to the engine once, at the start: later rollouts come from the initial policy."),
    "b_ref_is_policy": (B_, "The reference is a second name of the trained model, so KL is computed against itself at the time of the rollout."),
}


def rewards_of(resp, mask, pids, g, noise, F_n):
    r = [reward_fn(resp, mask, pids, g, noise)]
    if F_n > 1:
        r.append(((resp < 8).float() * mask).sum(-1) / mask.sum(-1).clamp(min=1) + 0.1 * torch.randn(resp.shape[0], generator=g))
    return torch.stack(r, 1)


def run(out, cfg, bug):
    o = {k: cfg.get(k, v) for k, v in D.items()}
    o["steps_per_generation"] = o["steps_per_generation"] or o["gradient_accumulation_steps"]
    o["epsilon_high"] = o["epsilon_high"] if o["epsilon_high"] is not None else o["epsilon"]
    torch.manual_seed(cfg["seed"])
    g = torch.Generator().manual_seed(cfg["seed"])
    world, GA, SPG, NI, pdb, n = (
        cfg["world"],
        o["gradient_accumulation_steps"],
        o["steps_per_generation"],
        o["num_iterations"],
        o["per_device_train_batch_size"],
        o["num_generations"],
    )
    model = LM(eos_bias=cfg["eos_bias"] + 0.8)
    ref = copy.deepcopy(model).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))  # a policy some steps after its reference
    opt = torch.optim.AdamW(model.parameters(), lr=o["learning_rate"], weight_decay=0.0)
    mb_step, total, sid, buf, full = 0, o["max_steps"] * GA, 0, None, cfg["hook"] == "full"
    temp, first = o["temperature"], {}

    def gen_batch():
        nonlocal sid
        rows = pdb * SPG * world
        up, um = prompts(rows // n, g)
        pids, pm = up.repeat_interleave(n, 0), um.repeat_interleave(n, 0)
        eng = engine_of(model, torch.bfloat16 if o["use_vllm"] else torch.float32)
        if bug == "engine_stale":
            eng = first.setdefault(0, eng)
        resp, mask, gen = generate(eng, pids, pm, o["max_completion_length"], g, temp)
        if bug == "eos_masked":
            mask = mask * (resp != EOS)
        ended = (resp == EOS).any(-1)
        rpf = rewards_of(resp, mask, pids, g, cfg["noise"], len(o["reward_weights"]))
        if o["mask_truncated_completions"]:
            trunc = ended if bug == "truncated_test_inverted" else ~ended
            mask = mask * (~trunc).long()[:, None]
        nitems = mask.sum().float()
        ids, am = torch.cat([pids, resp], 1), torch.cat([pm, mask], 1)
        T = resp.shape[1]
        d = dict(ids=ids, am=am, resp=resp, mask=mask)
        with torch.no_grad():
            if GA % (SPG * NI) != 0 or (o["use_vllm"] and o["vllm_importance_sampling_correction"]):
                d["old"] = logps(model, ids, am, T, temp)
                if bug == "old_from_engine":
                    d["old"] = gen.clone()
            if o["use_vllm"]:
                d["gen"] = gen
                base = logps(model, ids, am, T, temp)
                diff = (base - gen) * mask
                if bug == "is_inverted":
                    diff = -diff
                mode = o["vllm_importance_sampling_mode"]
                if mode.startswith("sequence"):
                    diff = diff.sum(-1, keepdim=True)
                w = diff.exp()
                hi = o["vllm_importance_sampling_clip_max"]
                if mode.endswith("truncate"):
                    if bug == "cispo_is_not_truncated":
                        torch.clamp(w, max=hi)
                    else:
                        w = torch.clamp(w, max=hi)
                else:
                    w = w.masked_fill(w > hi, 0.0)
                d["isw"] = w
            if o["beta"] != 0:
                d["ref"] = logps(model if bug == "ref_is_policy" else ref, ids, am, T, temp)
        wts = torch.tensor(o["reward_weights"])
        if bug == "weights_shuffled":
            wts = wts.flip(0)
        dd = 0 if bug == "std_biased" else 1
        if o["multi_objective_aggregation"] == "sum_then_normalize":
            r = (rpf * wts).nansum(1)
            gr = r.view(-1, n)
            adv = r - gr.mean(1).repeat_interleave(n)
            std = gr.std(1, correction=dd).repeat_interleave(n) if o["scale_rewards"] in ("group", "none") else r.std(correction=dd).expand_as(r)
            if o["scale_rewards"] != "none":
                adv = adv / (std + 1e-4)
        else:
            gr = rpf.view(-1, n, rpf.shape[1])
            rk = ((gr - gr.mean(1, keepdim=True)) / (gr.std(1, keepdim=True) + 1e-4)).view(-1, rpf.shape[1])
            r = (rk * wts).nansum(1)
            if bug == "gdpo_last_reward":
                r = rk[:, -1] * wts[-1]
            adv = (r - r.mean()) / (r.std() + 1e-4)
        d |= dict(
            adv=adv,
            scores=(rpf * torch.tensor(o["reward_weights"])).sum(1),
            rpf=rpf,
            group=torch.arange(rows) // n + mb_step * 1000000,
            sid=torch.arange(rows) + sid,
        )
        sid += rows
        parts = []
        for rk_ in range(world):  # process_slice, shuffled, split
            sl = slice(rk_ * pdb * SPG, (rk_ + 1) * pdb * SPG)
            x = {k: v[sl] for k, v in d.items()}
            if bug == "rank_local_groups":
                x["adv"] = d["adv"].roll(pdb * SPG)[sl]
            perm = torch.randperm(pdb * SPG, generator=g)
            y = {k: v[perm] for k, v in x.items()}
            if bug == "shuffle_advantages":
                y["adv"] = x["adv"]
            parts.append([{k: v[i * pdb : (i + 1) * pdb] for k, v in y.items()} | dict(nitems=nitems) for i in range(SPG)])
        return parts

    def loss_of(x):
        mask, T = x["mask"], x["mask"].shape[1]
        lp, ent, logits = logps(model, x["ids"], x["am"], T, 1.0 if bug == "temperature_forgotten" else temp, entropy=True)
        em = None
        if o["top_entropy_quantile"] < 1:
            e = ent.detach()
            if bug == "entropy_mask_pads":
                th = torch.quantile((e * mask).flatten(), 1 - o["top_entropy_quantile"])
            else:
                th = torch.quantile(e[mask.bool()].float(), 1 - o["top_entropy_quantile"])
            em = ((e * mask >= th) if bug != "entropy_lowest" else (e <= th)) & mask.bool()
        adv = x["adv"][:, None]
        old = x.get("old")
        old = lp.detach() if old is None else old
        lr = lp - old
        c1 = lr.exp()
        kl = None
        if o["beta"] != 0:
            dlt = x["ref"] - lp
            if bug == "kl_reversed":
                dlt = -dlt
            kl = dlt.exp() - dlt - 1
            if o["use_bias_correction_kl"]:
                kl = kl * c1
            if bug == "kl_detached":
                kl = kl.detach()
        lo, hi = o["epsilon"], o["epsilon_high"]
        if bug == "eps_swapped":
            lo, hi = hi, lo
        if o["loss_type"] == "cispo":
            cl = torch.clamp(c1, max=hi)
            tl = -(cl if bug == "cispo_grad_through_ratio" else cl.detach()) * adv * lp
        elif o["loss_type"] == "sapo":
            p_, n_ = o["sapo_temperature_pos"], o["sapo_temperature_neg"]
            if bug == "sapo_tau_swapped":
                p_, n_ = n_, p_
            t_ = torch.where(adv > 0, p_, n_)
            tl = -torch.sigmoid(t_ * (c1 - 1)) * 4 / t_ * adv
        else:
            c2 = torch.clamp(c1, 1 - lo, 1 + hi)
            k1 = c1
            if o["delta"] is not None:
                if bug == "delta_on_clipped":
                    c2 = torch.clamp(c2, max=o["delta"])
                else:
                    k1 = torch.clamp(c1, max=o["delta"])
            tl = -(torch.max if bug == "min_to_max" else torch.min)(k1 * adv, c2 * adv)
        if o["off_policy_mask_threshold"] is not None:
            s = x.get("gen", old)
            ak = ((s - lp.detach()) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
            sgn = adv <= 0 if bug == "opsm_sign" else adv >= 0
            tl = tl * (sgn | (ak <= o["off_policy_mask_threshold"])).float()
        if em is not None:
            tl = tl * em
        if o["use_vllm"]:
            tl = tl * x["isw"]
        pol = tl
        if kl is not None:
            tl = tl + o["beta"] * kl
        lt = o["loss_type"]
        if lt in ("grpo", "sapo"):
            den = mask.sum(-1).clamp(min=1.0)
            if bug == "pad_denominator":
                den = torch.full_like(den, T)
            row = (tl * mask).sum(-1) / den
            if bug == "kl_outside_mask":
                row = (pol * mask).sum(-1) / den + o["beta"] * kl.mean(-1)
            loss = row.mean() / GA
        elif lt == "bnpo":
            loss = (tl * mask).sum() / mask.sum().clamp(min=1.0) / GA
        elif lt == "dr_grpo":
            loss = (tl * mask).sum() / (tl.size(0) * (x["ids"].shape[1] if bug == "drgrpo_total_length" else o["max_completion_length"])) / GA
        else:
            nz = x["nitems"].clamp(min=1.0) / world * GA / SPG
            if bug == "ga_local_tokens":
                nz = mask.sum().clamp(min=1.0) * GA
            loss = (tl * mask).sum() / nz
        m = mask.float()
        mm = lambda v: ((v * m).sum() / m.sum().clamp(min=1)).item()
        sc = dict(loss=loss.item(), entropy=mm(ent))
        if kl is not None:
            sc["kl"] = mm(kl)
        if lt in ("grpo", "bnpo", "dr_grpo", "dapo"):
            cc = c1 if o["delta"] is None else torch.clamp(c1, max=o["delta"])
            low, high = (cc < 1 - o["epsilon"]) & (adv < 0), (cc > 1 + o["epsilon_high"]) & (adv > 0)
            sc |= {
                "clip_ratio/low_mean": mm(low.float()),
                "clip_ratio/high_mean": mm(high.float()),
                "clip_ratio/region_mean": mm((low | high).float()),
            }
        return loss, lp, ent, logits, tl, kl, sc

    while mb_step < total:
        if mb_step % (SPG * NI) == 0:
            buf = gen_batch()
        step = mb_step // GA + 1
        opt.zero_grad()
        held = []
        for j in range(GA):
            for rk_ in range(world):
                x = buf[rk_][(mb_step + j) % SPG]
                loss, lp, ent, logits, tl, kl, sc = loss_of(x)
                (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                (loss / world).backward()
                t = dict(
                    response_ids=x["resp"],
                    response_mask=x["mask"],
                    logp_new=lp,
                    logp_old=x.get("old"),
                    logp_ref=x.get("ref"),
                    logp_gen=x.get("gen"),
                    is_weights=x.get("isw"),
                    kl=kl,
                    entropy=ent,
                    input_ids=x["ids"],
                    attention_mask=x["am"],
                    advantages=x["adv"],
                    scores=x["scores"],
                    rewards_per_func=x["rpf"],
                    group_id=x["group"],
                    loss=loss,
                    token_loss=tl.expand_as(lp),
                    dlogp=dlogp,
                )
                if full:
                    t |= dict(sample_id=x["sid"], logits=logits, prompt_len=x["am"][:, : -x["mask"].shape[1]].sum(-1))
                opts = {k: v for k, v in o.items()} | dict(num_items_in_batch=float(x["nitems"]), eos_token_id=[EOS])
                held.append((t, rk_, j, opts, sc))
        nn.utils.clip_grad_norm_(model.parameters(), o["max_grad_norm"])
        opt.step()
        for i, (t, rk_, j, opts, sc) in enumerate(held):
            if world > 1:
                sc = dict(loss=sc["loss"])
            if full and j == GA - 1 and rk_ == world - 1 and False:
                pass
            out.dump(
                step,
                t,
                rk_,
                j,
                framework="trl",
                version="1.16.0",
                algorithm="grpo",
                world_size=world,
                micro_batches=GA,
                options=opts,
                scalars=sc,
                scalars_scope="micro_batch",
                token_loss_includes_kl=True,
            )
        mb_step += GA


if __name__ == "__main__":
    main("a1_trlgrpo", HEALTHY, BUGS, run)
