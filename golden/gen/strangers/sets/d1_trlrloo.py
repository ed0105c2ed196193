"""TRL 1.16 RLOOTrainer, rewritten. full=1 dumps what the exported hook does (entropy, ids, dlogp, old and reference log-probs, logged numbers), full=0 is a lazy hook:
log-probs (new, old, reference), mask, advantages, scores per function, groups, loss."""

from world_d import *


def logps_of(model, ids, keep, temp):
    x = model(ids)[:, :-1][:, -keep:] / temp
    lp = F.log_softmax(x, -1)
    return lp.gather(-1, ids[:, -keep:, None])[..., 0], -(lp.exp() * lp).sum(-1)


def train(c, out):
    W, b, ga, spg, mu, G, T, P = c["W"], c["b"], c["ga"], c["spg"], c["mu"], c["G"], c["T"], 6
    g = torch.Generator().manual_seed(c["seed"])
    model = LM()
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=g))
        model.emb.weight[PAD] = 0
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    weights = torch.tensor(c["weights"])
    options = dict(
        num_generations=G,
        beta=c["beta"],
        normalize_advantages=c["norm"],
        reward_clip_range=c["clip"],
        num_iterations=mu,
        epsilon=c["eps"],
        epsilon_high=c["eps_high"],
        temperature=c["temp"],
        mask_truncated_completions=c["trunc"],
        steps_per_generation=spg,
        gradient_accumulation_steps=ga,
        per_device_train_batch_size=b,
        learning_rate=c["lr"],
        eos_token_id=EOS,
        reward_weights=c["weights"],
        disable_dropout=True,
    )
    dump = Dump(out, framework="trl", version="1.16.0", algorithm="rloo", world_size=W, micro_batches=ga, options=options)
    step = 0
    for roll in range(c["rolls"]):
        n = W * b * spg
        prompts = make_prompts(n // G, P, g).repeat_interleave(G, 0)
        with torch.no_grad():
            ids, gen_lp, mask = sample(engine_copy(model), prompts, T, c["temp"], g)
            rewards_per_func = reward_fns(ids, mask, g)
            completion_mask = mask.long()
            is_truncated = ~((ids == EOS) & mask).any(1)
            if c["trunc"]:
                completion_mask = completion_mask * (~is_truncated).unsqueeze(1).long()
            full_ids = torch.cat([prompts, ids], 1)
            attention_mask = torch.cat([(prompts != PAD).long(), completion_mask], 1)
            old_lp, _ = logps_of(model, full_ids, T, c["temp"])
            old_logps = (old_lp * completion_mask).sum(1)
            ref_lp, _ = logps_of(ref, full_ids, T, c["temp"])
            rewards = (rewards_per_func * weights.unsqueeze(0)).nansum(dim=1)
            scores = rewards.clone()
            if c["clip"]:
                rewards = rewards.clamp(min=c["clip"][0], max=c["clip"][1])
            if c["beta"] != 0.0:
                per_token_kl = old_lp - ref_lp
                kl = (per_token_kl * completion_mask).sum(-1)
                rewards = rewards - c["beta"] * kl
            grouped = rewards.view(-1, G)
            baselines = (grouped.sum(1, keepdim=True) - grouped) / (G - 1)
            advantages = (grouped - baselines).reshape(-1)
            if c["norm"]:
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-4)
        group_id = torch.arange(n) // G + roll * 100000
        sample_id = torch.arange(n) + roll * 100000
        parts = []
        for r in range(W):
            sl = slice(r * n // W, (r + 1) * n // W)
            batch = dict(
                ids=full_ids[sl],
                am=attention_mask[sl],
                mask=completion_mask[sl],
                old=old_logps[sl],
                adv=advantages[sl],
                old_lp=old_lp[sl],
                ref_lp=ref_lp[sl],
                scores=scores[sl],
                rpf=rewards_per_func[sl],
                gid=group_id[sl],
                sid=sample_id[sl],
            )
            perm = torch.randperm(n // W, generator=g)
            batch = {k: x[perm] for k, x in batch.items()}
            parts.append([{k: x[i * b : (i + 1) * b] for k, x in batch.items()} for i in range(spg)])
        for it in range(mu):
            for s in range(spg):
                if s % ga == 0:
                    step += 1
                    opt.zero_grad()
                for r in range(W):
                    x = parts[r][s]
                    per_token_logps, entropies = logps_of(model, x["ids"], T, c["temp"])
                    logps = (per_token_logps * x["mask"]).sum(1)
                    old = x["old"]
                    log_ratio = logps - old
                    adv = x["adv"]
                    coef_1 = torch.exp(log_ratio)
                    coef_2 = torch.clamp(coef_1, 1 - c["eps"], 1 + c["eps_high"])
                    per_sequence_loss = -torch.min(coef_1 * adv, coef_2 * adv)
                    loss = per_sequence_loss.mean()
                    low = (coef_1 < 1 - c["eps"]) & (adv < 0)
                    high = (coef_1 > 1 + c["eps_high"]) & (adv > 0)
                    (dlogp,) = torch.autograd.grad(loss, per_token_logps, retain_graph=True)
                    (loss / ga / W).backward()
                    t = dict(
                        response_mask=x["mask"],
                        logp_new=per_token_logps,
                        logp_old=x["old_lp"],
                        logp_ref=x["ref_lp"] if c["beta"] else None,
                        advantages=adv,
                        rewards_per_func=x["rpf"],
                        group_id=x["gid"],
                        loss=loss,
                        scores=x["scores"],
                    )
                    sc = {}
                    if c["full"]:
                        t |= dict(input_ids=x["ids"], attention_mask=x["am"], response_ids=x["ids"][:, -T:], entropy=entropies, dlogp=dlogp, sample_id=x["sid"])
                        sc = {"loss": loss.item()}
                        if W == 1:
                            sc |= {
                                "clip_ratio/low_mean": low.float().mean().item(),
                                "clip_ratio/high_mean": high.float().mean().item(),
                                "clip_ratio/region_mean": (low | high).float().mean().item(),
                                "entropy": ((entropies * x["mask"]).sum() / x["mask"].sum().clamp(min=1)).item(),
                            }
                    dump(t, step, r, s % ga, scalars=sc, scalars_scope="micro_batch")
                if s % ga == ga - 1:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    opt.step()


# ==== cases
D = dict(
    W=1,
    b=16,
    ga=1,
    spg=2,
    mu=2,
    G=4,
    T=24,
    rolls=2,
    beta=0.05,
    norm=False,
    clip=None,
    eps=0.2,
    eps_high=0.2,
    temp=1.0,
    trunc=False,
    weights=[1.0, 0.5],
    lr=4e-3,
    full=1,
    seed=11,
)
H = {
    "h_default": (D, []),
    "h_norm_rewardclip": (D | dict(norm=True, clip=[-0.5, 1.2], beta=0.1, G=8, seed=12), []),
    "h_two_ranks_ga_lazy": (D | dict(W=2, b=8, ga=2, spg=4, norm=True, full=0, seed=13), []),
    "h_trunc_masked_lazy": (D | dict(trunc=True, mu=2, T=14, clip=[-1.0, 1.5], full=0, seed=14), []),
    "h_asym_temperature": (D | dict(temp=0.7, eps=0.1, eps_high=0.3, W=2, b=8, ga=2, T=32, mu=3, spg=2, seed=15), []),
}
B = [
    (
        "b_group_mean_baseline",
        "h_default",
        "(grouped.sum(1, keepdim=True) - grouped) / (G - 1)",
        "grouped.mean(1, keepdim=True).expand_as(grouped)",
        "the baseline is the mean of the whole group, own reward included, so advantages are too small",
    ),
    ("b_kl_sign", "h_default", 'rewards - c["beta"] * kl', 'rewards + c["beta"] * kl', "the KL penalty is added to the reward and pays for drifting away"),
    (
        "b_kl_token_mean",
        "h_two_ranks_ga_lazy",
        "kl = (per_token_kl * completion_mask).sum(-1)",
        "kl = (per_token_kl * completion_mask).sum(-1) / completion_mask.sum(-1).clamp(min=1)",
        "the KL of a sequence is the mean over its tokens and not their sum",
    ),
    ("b_kl_unmasked", "h_default", "kl = (per_token_kl * completion_mask).sum(-1)", "kl = per_token_kl.sum(-1)", "the KL sum takes in the padding behind EOS"),
    (
        "b_clip_after_kl",
        "h_norm_rewardclip",
        ['            if c["clip"]:\n                rewards = rewards.clamp(min=c["clip"][0], max=c["clip"][1])\n', "            grouped = rewards.view"],
        ["", '            if c["clip"]:\n                rewards = rewards.clamp(min=c["clip"][0], max=c["clip"][1])\n            grouped = rewards.view'],
        "rewards are clipped after the KL penalty",
    ),
    (
        "b_norm_per_rank",
        "h_two_ranks_ga_lazy",
        "advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-4)",
        "advantages = torch.cat([(a - a.mean()) / (a.std() + 1e-4) for a in advantages.chunk(W)])",
        "each rank normalises its own advantages in place of the gathered ones",
    ),
    (
        "b_old_recomputed",
        "h_trunc_masked_lazy",
        'old = x["old"]',
        "old = logps.detach()",
        "the ratio is taken to the current policy in every iteration, so that nothing is ever clipped",
    ),
    ("b_eos_outside_mask", "h_default", "completion_mask = mask.long()", "completion_mask = (mask & (ids != EOS)).long()", "the mask leaves out the EOS token"),
    (
        "b_ratio_seq_mean",
        "h_norm_rewardclip",
        "log_ratio = logps - old",
        'log_ratio = (logps - old) / x["mask"].sum(1).clamp(min=1)',
        "the sequence's log-ratio is divided by its length",
    ),
    ("b_max_for_min", "h_two_ranks_ga_lazy", "-torch.min(coef_1", "-torch.max(coef_1", "the optimistic side of the clipped surrogate is taken"),
    (
        "b_eps_swapped",
        "h_asym_temperature",
        'torch.clamp(coef_1, 1 - c["eps"], 1 + c["eps_high"])',
        'torch.clamp(coef_1, 1 - c["eps_high"], 1 + c["eps"])',
        "lower and upper clip range are swapped",
    ),
    (
        "b_adv_not_shuffled",
        "h_trunc_masked_lazy",
        "x[perm] for k, x in batch",
        'x if k == "adv" else x[perm] for k, x in batch',
        "advantages are not shuffled with their rows",
    ),
    ("b_rank_slice", "h_two_ranks_ga_lazy", "adv=advantages[sl]", "adv=advantages[:n // W]", "every rank takes the advantages of rank 0"),
    (
        "b_old_no_temperature",
        "h_asym_temperature",
        'old_lp, _ = logps_of(model, full_ids, T, c["temp"])',
        "old_lp, _ = logps_of(model, full_ids, T, 1.0)",
        "the old log-probs are not divided by the temperature",
    ),
    (
        "b_trunc_old_unmasked",
        "h_trunc_masked_lazy",
        "old_logps = (old_lp * completion_mask).sum(1)",
        "old_logps = (old_lp * mask).sum(1)",
        "the old sequence log-probs still hold the truncated completions that the mask drops: their ratio explodes",
    ),
    (
        "b_group_axis",
        "h_default",
        ["grouped = rewards.view(-1, G)", "(grouped - baselines).reshape(-1)"],
        ["grouped = rewards.view(G, -1).t()", "(grouped - baselines).t().reshape(-1)"],
        "groups are made along the wrong axis, of different prompts",
    ),
    (
        "b_no_center",
        "h_norm_rewardclip",
        "(advantages - advantages.mean()) / (advantages.std() + 1e-4)",
        "advantages / (advantages.pow(2).mean(-1) + 1e-4)",
        "advantages are divided by their second moment in place of the standard deviation",
    ),
]
if __name__ == "__main__":
    main("d1_trlrloo", __file__, H, B)
