"""TRL 1.16 GRPO, statements of GRPOTrainer in a loop of its own. Dumps as the exported hook does (everything, dlogp and scalars too)."""

import copy, torch
from world_f import *

D = dict(
    loss_type="dapo",
    beta=0.0,
    num_generations=8,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    steps_per_generation=8,
    num_iterations=1,
    world=1,
    epsilon=0.2,
    epsilon_high=None,
    delta=None,
    importance_sampling_level="token",
    scale_rewards="group",
    bf16=True,
    use_vllm=False,
    temperature=1.0,
    T=24,
    lr=0.012,
    gens=2,
    mask_truncated_completions=False,
    top_entropy_quantile=1.0,
    holes=False,
    use_bias_correction_kl=True,
    entropy_coef=0.0,
    seed=11,
    vllm_importance_sampling_mode="sequence_mask",
    vllm_importance_sampling_clip_max=3.0,
)
H = dict(
    h_dapo_bf16=dict(),
    h_grpo_beta_iter2=dict(
        loss_type="grpo",
        beta=0.04,
        num_iterations=2,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        per_device_train_batch_size=16,
        bf16=False,
        epsilon_high=0.28,
        temperature=0.9,
        seed=12,
    ),
    h_gspo_2rank=dict(
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=0.02,
        epsilon_high=0.03,
        world=2,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        seed=13,
        num_generations=4,
        scale_rewards="batch",
    ),
    h_drgrpo_vllm_holes=dict(
        loss_type="dr_grpo",
        scale_rewards="none",
        use_vllm=True,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=2.0,
        holes=True,
        T=32,
        seed=14,
        beta=0.01,
        use_bias_correction_kl=False,
        delta=1.5,
    ),
)
B = dict(
    std_population=("h_dapo_bf16", "σ of the group over n instead of n−1"),
    group_interleaved=(
        "h_dapo_bf16",
        "rewards are viewed as (G, prompts) and transposed: the mean of the wrong rows is subtracted (prompts repeated with repeat, not repeat_interleave)",
    ),
    mask_no_eos=("h_dapo_bf16", "the completion mask leaves the EOS token out, it is never trained"),
    items_of_micro=(
        "h_dapo_bf16",
        "num_items_in_batch passed to the loss is the tokens of the accumulation window, but still scaled by GA/steps_per_generation",
    ),
    shuffle_adv=("h_dapo_bf16", "rows are shuffled before splitting but the advantages keep the old order"),
    old_live=("h_grpo_beta_iter2", "second iteration recomputes old log-probs from the current weights: ratio stays 1"),
    kl_k1=("h_grpo_beta_iter2", "KL term uses logp − ref (k1) where k3 belongs"),
    kl_minus=("h_grpo_beta_iter2", "KL is subtracted from the loss: the policy is pushed away from the reference"),
    temp_missing=("h_grpo_beta_iter2", "new log-probs are not divided by the temperature, old and sampling ones are"),
    ref_policy_now=(
        "h_grpo_beta_iter2",
        "reference log-probs come from the policy itself at the rollout (adapter not disabled): KL 0 at the start of each generation, reference moves",
    ),
    clip_swapped=("h_grpo_beta_iter2", "epsilon and epsilon_high are swapped"),
    gspo_sum=("h_gspo_2rank", "sequence ratio is the sum of the log-ratios, not divided by the length"),
    rank_rows=("h_gspo_2rank", "each rank slices the advantages of the other rank's rows (process_slice of 1 − rank)"),
    batch_std_local=("h_gspo_2rank", "batch σ is taken from the rank's own rows rather than gathered"),
    tool_tokens_in=("h_drgrpo_vllm_holes", "tool tokens stay in the loss and its sum though tool_mask leaves them out"),
    drgrpo_len=("h_drgrpo_vllm_holes", "divides by the longest completion of the batch instead of max_completion_length"),
    is_inverted=("h_drgrpo_vllm_holes", "engine correction is exp(sampling − old), upside down"),
    is_twice_kl=("h_drgrpo_vllm_holes", "engine weight multiplies the KL term as well (applied after adding β·KL)"),
)


def run(c, s, bug):
    s = D | s
    g = torch.Generator().manual_seed(s["seed"])
    torch.manual_seed(s["seed"])
    model = LM()
    ref = copy_of(model)
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"], weight_decay=0.0)
    with torch.no_grad():  # warm start so that policy and reference differ
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.02)
    W, Bd, SPG, GA, G, T, temp = (
        s["world"],
        s["per_device_train_batch_size"],
        s["steps_per_generation"],
        s["gradient_accumulation_steps"],
        s["num_generations"],
        s["T"],
        s["temperature"],
    )
    N = W * Bd * SPG
    step = 0
    lo, hi = s["epsilon"], s["epsilon_high"] or s["epsilon"]
    if bug == "clip_swapped":
        lo, hi = hi, lo
    for gen in range(s["gens"]):
        pid, pam = prompts(g, N // G, 8)
        pid, pam = pid.repeat_interleave(G, 0), pam.repeat_interleave(G, 0)
        r = sample(copy_of(model, torch.bfloat16), pid, pam, T, g, temp, s["holes"])
        att, mask = r["att"], r["mask"]
        if bug == "mask_no_eos":
            mask = mask * (r["response_ids"] != EOS)
        if bug == "tool_tokens_in":
            mask = att.clone()
        rew = score(r)
        rpf = rew[:, None]
        with torch.no_grad():
            old = logps(model, r["input_ids"], r["attention_mask"], T, temp, s["bf16"])[0]
            rl = logps(model if bug == "ref_policy_now" else ref, r["input_ids"], r["attention_mask"], T, temp, s["bf16"])[0] if s["beta"] else None
        need_old = s["use_vllm"] or s["num_iterations"] > 1 or SPG > GA
        if bug == "group_interleaved":
            mean = rew.view(G, -1).mean(0).repeat(G)
            std = rew.view(G, -1).std(0).repeat(G)
        else:
            mean = rew.view(-1, G).mean(1).repeat_interleave(G)
            std = rew.view(-1, G).std(1, unbiased=bug != "std_population").repeat_interleave(G)
        adv = rew - mean
        if s["scale_rewards"] == "batch":
            std = rew.std().expand_as(rew)
            if bug == "batch_std_local":
                std = rew.view(W, -1).std(1).repeat_interleave(N // W)
        if s["scale_rewards"] != "none":
            adv = adv / (std + 1e-4)
        isw = None
        if s["use_vllm"]:
            d = (old - r["gen"]) * mask
            if bug == "is_inverted":
                d = -d
            if "sequence" in s["vllm_importance_sampling_mode"]:
                d = d.sum(-1, keepdim=True)
            isw = d.exp()
            isw = (
                isw.clamp(max=s["vllm_importance_sampling_clip_max"])
                if "truncate" in s["vllm_importance_sampling_mode"]
                else isw.masked_fill(isw > s["vllm_importance_sampling_clip_max"], 0)
            )
        items = att.sum() if not s["holes"] and bug != "mask_no_eos" else mask.sum()
        if bug == "mask_no_eos":
            items = mask.sum()
        data = dict(
            input_ids=r["input_ids"],
            attention_mask=r["attention_mask"],
            response_ids=r["response_ids"],
            mask=mask,
            old=old,
            ref=rl,
            gen=r["gen"],
            isw=isw,
            adv=adv,
            rew=rew,
            rpf=rpf,
            gid=torch.arange(N) // G + gen * 1000,
        )
        ranks = []
        for w in range(W):
            sl = slice(w * N // W, (w + 1) * N // W)
            d = {k: v[sl] for k, v in data.items() if v is not None}
            if bug == "rank_rows":
                d["adv"] = adv[(1 - w) * N // W : (2 - w) * N // W]
            pm = torch.randperm(N // W, generator=g)
            keep = d["adv"]
            d = {k: v[pm] for k, v in d.items()}
            if bug == "shuffle_adv":
                d["adv"] = keep
            ranks.append(d)
        for it in range(s["num_iterations"]):
            if bug == "old_live" and it:
                for d in ranks:
                    with torch.no_grad():
                        d["old"] = logps(model, d["input_ids"], d["attention_mask"], T, temp, s["bf16"])[0]
            for k0 in range(0, SPG, GA):
                opt.zero_grad()
                files = []
                step += 1
                for w, d in enumerate(ranks):
                    for j in range(GA):
                        x = {k: v[(k0 + j) * Bd : (k0 + j + 1) * Bd] for k, v in d.items()}
                        m, A = x["mask"], x["adv"][:, None]
                        lp, ent = logps(model, x["input_ids"], x["attention_mask"], T, 1.0 if bug == "temp_missing" else temp, s["bf16"])
                        o = x["old"] if need_old else lp.detach()
                        lr_ = lp - o
                        if s["importance_sampling_level"] == "sequence":
                            lr_ = (lr_ * m).sum(-1, keepdim=True)
                            if bug != "gspo_sum":
                                lr_ = lr_ / m.sum(-1, keepdim=True).clamp(min=1.0)
                        c1 = lr_.exp()
                        kl = None
                        if s["beta"]:
                            kl = torch.exp(x["ref"] - lp) - (x["ref"] - lp) - 1
                            if bug == "kl_k1":
                                kl = lp - x["ref"]
                            if s["use_bias_correction_kl"]:
                                kl = kl * c1
                        c2 = c1.clamp(1 - lo, 1 + hi)
                        c1d = c1.clamp(max=s["delta"]) if s["delta"] else c1
                        tl = -torch.min(c1d * A, c2 * A)
                        if isw is not None and bug != "is_twice_kl":
                            tl = tl * x["isw"]
                        if s["beta"]:
                            tl = tl + (-1 if bug == "kl_minus" else 1) * s["beta"] * kl
                        if bug == "is_twice_kl":
                            tl = tl * x["isw"]
                        if s["loss_type"] == "grpo":
                            loss = ((tl * m).sum(-1) / m.sum(-1).clamp(min=1.0)).mean() / GA
                        elif s["loss_type"] == "dr_grpo":
                            loss = (tl * m).sum() / (len(m) * (x["attention_mask"][:, -T:].sum(1).max() if bug == "drgrpo_len" else T)) / GA
                        else:
                            it_ = torch.stack([dd["mask"][k0 * Bd : (k0 + GA) * Bd].sum() for dd in ranks]).sum() if bug == "items_of_micro" else items
                            loss = (tl * m).sum() / (it_.clamp(min=1.0) / W * GA / SPG)
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        low, high = (c1 < 1 - s["epsilon"]) & (A < 0), (c1 > 1 + (s["epsilon_high"] or s["epsilon"])) & (A > 0)
                        sc = dict(loss=loss.item(), entropy=((ent * m).sum() / m.sum()).item())
                        if W == 1:
                            gm = lambda z: (z.float() * m).sum().item() / m.sum().item()
                            sc |= {
                                "clip_ratio/low_mean": gm(low.expand_as(lp)),
                                "clip_ratio/high_mean": gm(high.expand_as(lp)),
                                "clip_ratio/region_mean": gm((low | high).expand_as(lp)),
                            }
                            if s["beta"]:
                                sc["kl"] = gm(kl.expand_as(lp))
                        else:
                            sc.pop("entropy")
                        opts = {k: v for k, v in s.items() if k not in ("world", "T", "lr", "gens", "holes", "seed")} | dict(
                            max_completion_length=T,
                            learning_rate=s["lr"],
                            num_items_in_batch=items.item(),
                            reward_weights=[1.0],
                            vllm_importance_sampling_correction=True,
                            vllm_importance_sampling_clip_min=None,
                            eos_token_id=EOS,
                        )
                        t = dict(
                            response_mask=m.bool(),
                            input_ids=x["input_ids"],
                            attention_mask=x["attention_mask"],
                            response_ids=x["response_ids"],
                            logp_new=lp,
                            logp_old=x["old"] if need_old else None,
                            kl=kl,
                            logp_ref=x.get("ref"),
                            logp_gen=x["gen"] if s["use_vllm"] else None,
                            is_weights=x.get("isw"),
                            entropy=ent,
                            advantages=x["adv"],
                            scores=x["rew"],
                            rewards_per_func=x["rpf"],
                            group_id=x["gid"],
                            loss=loss,
                            token_loss=tl.expand_as(lp),
                            dlogp=dl,
                        )
                        if t["is_weights"] is not None and t["is_weights"].shape[1] == 1:
                            t["is_weights"] = t["is_weights"][:, 0]
                        c.write(
                            f"step_{step:03d}_rank_{w}_mb_{j}",
                            t,
                            dict(
                                framework="trl",
                                version="1.16.0",
                                algorithm="grpo",
                                step=step,
                                rank=w,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=GA,
                                options=opts,
                                scalars=sc,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=True,
                            ),
                        )
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
    return ["--profile", "trl-grpo@1.16"]


if __name__ == "__main__":
    main("f1_trlgrpo", H, B, run)
