"""TRL 1.16 RLOOTrainer / GRPOTrainer rewritten from source. Dumps everything (token_loss, kl, dlogp, entropy, grads, scalars)."""

from world_n import *


def rollout(cfg, bug, policy, ref, seed):
    c = cfg
    T = c["T"]
    b = sample(policy, c["prompts"], c["G"], T, seed, c["bf16"], c["temp"], c["tools"])
    ttemp = 1.0 if bug == "temp_forgotten" else c["temp"]
    with torch.no_grad():
        old, _ = logps(policy, b["ids"], b["att"], T, ttemp)
        refl, _ = logps(ref, b["ids"], b["att"], T, ttemp)
    if bug == "eos_dropped":
        b["mask"] = b["mask"] & (b["resp"] != EOS)
    if bug == "mask_late":
        b["mask"] = torch.cat([torch.zeros_like(b["mask"][:, :1]), b["mask"][:, :-1]], 1) & b["cmask"]
    rpf = rewards(b, seed, 2)
    w = torch.tensor(c["weights"])
    r = (rpf * w).nansum(1)
    G = c["G"]
    m = b["mask"].float()
    if c["algo"] == "rloo":
        if c["clip"] and bug != "clip_after_kl":
            r = r.clamp(*c["clip"])
        kl_tok = old - refl
        if bug == "kl_unmasked":
            kl = kl_tok.sum(1)
        elif bug == "kl_mean":
            kl = (kl_tok * m).sum(1) / m.sum(1)
        else:
            kl = (kl_tok * m).sum(1)
        shaped = r
        if c["beta"]:
            if bug == "kl_sign":
                shaped = r + c["beta"] * kl
            elif bug == "kl_after_baseline":
                shaped = r
            else:
                shaped = r - c["beta"] * kl
        if bug == "clip_after_kl":
            shaped = shaped.clamp(*c["clip"])
        g = shaped.view(-1, G)
        if bug == "groups_interleaved":
            g2 = shaped.view(G, -1)
            bl = ((g2.sum(0, keepdim=True) - g2) / (G - 1)).reshape(-1)
        elif bug == "loo_div_g":
            bl = ((g.sum(1, keepdim=True) - g) / G).view(-1)
        else:
            bl = ((g.sum(1, keepdim=True) - g) / (G - 1)).view(-1)
        adv = shaped - bl
        if bug == "kl_after_baseline":
            adv = adv - c["beta"] * kl
        if c["norm"]:
            adv = (adv - adv.mean()) / (adv.std() + 1e-4)
    else:
        g = r.view(-1, G)
        mu = g.mean(1).repeat_interleave(G)
        sd = g.std(1).repeat_interleave(G)
        adv = (r - mu) / (sd + 1e-4)
        kl_tok = None
    b.update(old=old, ref=refl, rpf=rpf, scores=(rpf * w).nansum(1) if True else r, adv=adv, kl_tok=kl_tok, group=b["group"] + seed * 1000)
    if c["algo"] == "grpo":
        isr = torch.exp(((b["logp_gen"] - old) if bug == "is_inverted" else (old - b["logp_gen"])) * m).clamp(max=c["cap"])
        b["isw"] = isr
        b["num_items"] = (b["cmask"] if bug == "tool_in_denominator" else b["mask"]).sum()
    return b


def run(out, name, c, bug):
    torch.manual_seed(c["seed"])
    policy = make(c["seed"])
    ref = perturb(policy, 5, 0.02)
    opt = torch.optim.AdamW(policy.parameters(), lr=c["lr"], weight_decay=0.0)
    step = 0
    T = c["T"]
    for ro in range(2):
        b = rollout(c, bug, policy, ref, c["seed"] * 10 + ro)
        B = len(b["adv"])
        g = torch.Generator().manual_seed(ro)
        perm = torch.randperm(B, generator=g)
        sh = {k: v[perm] if torch.is_tensor(v) and v.dim() and len(v) == B else v for k, v in b.items()}
        if bug == "adv_not_shuffled":
            sh["adv"] = b["adv"]
        S = c["S"]
        GA = c["GA"]
        mbs = [{k: (v.chunk(S)[i] if torch.is_tensor(v) and v.dim() and len(v) == B else v) for k, v in sh.items()} for i in range(S)]
        for it in range(c["iters"]):
            for k in range(S // GA):
                step += 1
                opt.zero_grad()
                files = []
                for j in range(GA):
                    x = mbs[k * GA + j]
                    m = x["mask"].float()
                    lp, ent = logps(policy, x["ids"], x["att"], T, 1.0 if bug == "temp_forgotten" else c["temp"])
                    lp.retain_grad()
                    old = lp.detach() if bug == "old_is_new" else x["old"]
                    A = x["adv"]
                    lo, hi = c["eps"], c["eps_high"]
                    if bug == "clip_swapped":
                        lo, hi = hi, lo
                    sc = {}
                    if c["algo"] == "rloo":
                        lr_ = (lp * m).sum(1) - (old * m).sum(1)
                        if bug == "ratio_mean":
                            lr_ = lr_ / m.sum(1)
                        if bug == "ratio_with_padding":
                            lr_ = (lp - old).sum(1)
                        c1 = lr_.exp()
                        c2 = c1.clamp(1 - lo, 1 + hi)
                        if bug == "max_for_min":
                            ps = -torch.max(c1 * A, c2 * A)
                        elif bug == "clip_only":
                            ps = -c2 * A
                        else:
                            ps = -torch.min(c1 * A, c2 * A)
                        loss = ps.mean() / GA
                        low = ((c1 < 1 - lo) & (A < 0)).float()
                        high = ((c1 > 1 + hi) & (A > 0)).float()
                        tl = None
                        kl = x["kl_tok"]
                    else:
                        A1 = A[:, None]
                        c1 = (lp - old).exp()
                        c2 = c1.clamp(1 - lo, 1 + hi)
                        tl = -torch.min(c1 * A1, c2 * A1) * x["isw"]
                        d = lp - x["ref"] if bug == "k3_reversed" else x["ref"] - lp
                        kl = d.exp() - d - 1
                        kl = kl * c1
                        tl = tl + c["beta"] * (kl.detach() if bug == "kl_detached" else kl)
                        nrm = x["num_items"].float() * GA / S
                        loss = (tl * m).sum() / nrm
                        if bug == "ga_twice":
                            loss = loss / GA
                        low = ((c1 < 1 - lo) & (A1 < 0)).float()
                        high = ((c1 > 1 + hi) & (A1 > 0)).float()
                        mm = lambda z: (z * m).sum() / m.sum()
                        sc["kl"] = float(mm(kl))
                        low, high = mm(low), mm(high)
                    loss.backward()
                    sc.update(
                        {
                            "loss": loss.item(),
                            "entropy": float((ent.detach() * m).sum() / m.sum()),
                            "clip_ratio/low_mean": float(low.mean()),
                            "clip_ratio/high_mean": float(high.mean()),
                            "clip_ratio/region_mean": float((low + high).mean()),
                        }
                    )
                    t = dict(
                        input_ids=x["ids"],
                        attention_mask=x["att"],
                        response_ids=x["resp"],
                        response_mask=x["mask"],
                        logp_new=lp,
                        logp_old=x["old"],
                        logp_ref=x["ref"],
                        logp_gen=x["logp_gen"] if c["algo"] == "grpo" or c["bf16"] else None,
                        advantages=A,
                        scores=x["scores"],
                        rewards_per_func=x["rpf"],
                        group_id=x["group"],
                        prompt_len=x["prompt_len"],
                        loss=loss,
                        dlogp=lp.grad,
                        entropy=ent,
                        token_loss=tl,
                        kl=kl,
                        is_weights=x.get("isw"),
                    )
                    files.append((j, t, sc))
                tot = {n: p.grad.clone() for n, p in policy.named_parameters() if n in ("h.bias", "o.bias")}
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                opt.step()
                for j, t, sc in files:
                    o = dict(
                        beta=c["beta"],
                        epsilon=c["eps"],
                        epsilon_high=c["eps_high"],
                        num_generations=c["G"],
                        num_iterations=c["iters"],
                        steps_per_generation=S,
                        gradient_accumulation_steps=GA,
                        temperature=c["temp"],
                        learning_rate=c["lr"],
                        lr_scheduler_type="constant",
                        eos_token_id=EOS,
                        reward_weights=c["weights"],
                        max_completion_length=T,
                        weight_decay=0.0,
                    )
                    if c["algo"] == "rloo":
                        o.update(normalize_advantages=c["norm"], reward_clip_range=c["clip"])
                    else:
                        o.update(
                            loss_type="dapo",
                            scale_rewards="group",
                            use_vllm=True,
                            vllm_importance_sampling_correction=True,
                            vllm_importance_sampling_mode=c["mode"],
                            **{c["capname"]: c["cap"]},
                            num_items_in_batch=int(b["num_items"]),
                        )
                    write(
                        out,
                        name,
                        step,
                        0,
                        j,
                        t,
                        dict(
                            framework="trl",
                            version="1.16.0",
                            algorithm=c["algo"],
                            world_size=1,
                            micro_batches=GA,
                            options=o,
                            scalars=sc,
                            scalars_scope="micro_batch",
                            **({"token_loss_includes_kl": True} if c["algo"] == "grpo" else {}),
                        ),
                    )


H = {
    "h_rloo_klreward_norm": dict(
        algo="rloo",
        seed=3,
        prompts=4,
        G=4,
        T=20,
        temp=1.0,
        tools=False,
        bf16=False,
        weights=[1.0, 0.5],
        clip=[0.2, 1.9],
        beta=0.1,
        norm=True,
        lr=1.5e-3,
        eps=0.2,
        eps_high=0.28,
        S=2,
        GA=1,
        iters=2,
        about="RLOO with KL in the reward, reward clip, normalised advantages",
    ),
    "h_rloo_bf16engine_ga": dict(
        algo="rloo",
        seed=4,
        prompts=6,
        G=4,
        T=28,
        temp=0.8,
        tools=False,
        bf16=True,
        weights=[0.7, 1.3],
        clip=None,
        beta=0.05,
        norm=False,
        lr=1e-3,
        eps=0.2,
        eps_high=0.2,
        S=4,
        GA=2,
        iters=2,
        about="RLOO, bfloat16 engine, temperature 0.8, accumulation",
    ),
    "h_grpo_tools_is": dict(
        algo="grpo",
        seed=5,
        prompts=4,
        G=6,
        T=24,
        temp=0.9,
        tools=True,
        bf16=True,
        weights=[1.0, 1.0],
        clip=None,
        beta=0.04,
        norm=False,
        lr=6e-3,
        eps=0.2,
        eps_high=0.28,
        S=4,
        GA=2,
        iters=2,
        cap=1.02,
        mode="token_truncate",
        capname="vllm_importance_sampling_clip_max",
        about="GRPO dapo with tool holes, bfloat16 engine with truncated weights",
    ),
}
h1, h2, h3 = H
B = {
    "b_loo_div_g": (h2, "the leave-one-out baseline divides the sum of the others by G, not G-1, so the advantage is not centred", ""),
    "b_kl_after_baseline": (h2, "the KL penalty is subtracted after the leave-one-out baseline", "OpenRLHF rloo subtracts KL after the baseline"),
    "b_kl_unmasked": (h1, "the KL of a response is summed over padding too", ""),
    "b_kl_sign": (h1, "the KL penalty is added to the reward: drift is paid", ""),
    "b_clip_after_kl": (h1, "the reward clip is applied after the KL was subtracted", ""),
    "b_groups_interleaved": (h2, "rewards are viewed as [G, prompts]: the baseline is over other prompts' responses", ""),
    "b_ratio_with_padding": (h2, "the sequence's log-ratio sums padded columns too", ""),
    "b_ratio_mean": (h1, "the sequence's log-ratio is divided by its length", "GSPO's ratio"),
    "b_adv_not_shuffled": (h1, "the rows are shuffled after generation, the advantages are not", ""),
    "b_max_for_min": (h1, "max in place of min in the clipped surrogate (optimistic)", ""),
    "b_temp_forgotten": (h2, "the trainer's log-probs are not divided by the sampling temperature 0.8", ""),
    "b_tool_in_denominator": (h3, "num_items_in_batch counts tool tokens, the sum does not", ""),
    "b_is_inverted": (h3, "engine weights are exp(gen-old) in place of exp(old-gen)", ""),
    "b_k3_reversed": (h3, "k3 with the log-ratio reversed", ""),
    "b_kl_detached": (h3, "the KL term is detached: no gradient", ""),
    "b_ga_twice": (h3, "the dapo loss, already normalised over the window, is divided by the accumulation steps again", ""),
    "b_clip_swapped": (h1, "lower and upper clip bounds swapped", "epsilon=0.28, epsilon_high=0.2 computes this"),
}
if __name__ == "__main__":
    main("n1_trl_rloo", H, B, run)
