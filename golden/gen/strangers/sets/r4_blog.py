"""r4: a blog's single file: GRPO, Dr.GRPO and PPO "from scratch" for a small model. Little declared, framework custom. Dump: log-probs, mask, advantages, scores, loss;
GRPO also token_loss (with the KL in it), Dr.GRPO and PPO dlogp; PPO values, returns, token_rewards."""

from world_r import *


def train(
    folder, B, run, algo, N=48, G=6, T=24, beta=0.0, eps=0.2, epochs=2, mini=1, gamma=1.0, lam=1.0, vf=0.5, ent=0.0, lr=5e-3, rollouts=3, seed=0, bf16=False
):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    ppo = algo == "ppo"
    policy = LM(value=ppo)
    ref = copy.deepcopy(policy)
    opt = torch.optim.AdamW(policy.parameters(), lr=lr, weight_decay=0.0)
    step = 1
    vmean = None
    for it in range(rollouts):
        q, _ = prompts(N // G, 8, g)
        q = q.repeat_interleave(G, 0)
        y, gen, mask = sample(policy, q, T, g)
        s = sum(score(y, mask, q, g))
        gid = torch.arange(N) // G + 1000 * (it + 1)
        if B == "eos_left_out":
            mask = mask & (y != EOS)
        if B == "mask_runs_one_over":
            mask = torch.cat([mask[:, :1], mask[:, :-1]], 1)
        with torch.no_grad():
            old, _, val = forward_lp(policy, q, y)
            lref = forward_lp(ref, q, y)[0]
            if B == "label_shift":
                old = torch.cat([old[:, 1:], old[:, -1:]], 1)
            if B == "ref_follows_policy" and it:
                lref = forward_lp(prev, q, y)[0]
        prev = copy.deepcopy(policy)
        m = mask.float()
        gr = s.view(-1, G)
        ret = tr = None
        if algo == "grpo":
            mu, sd = gr.mean(1, keepdim=True), gr.std(1, keepdim=True)
            if B == "std_before_leave_one_out":
                mu = (gr.sum(1, keepdim=True) - gr) / (G - 1)
            if B == "variance_for_std":
                sd = gr.var(1, keepdim=True)
            if B == "median_baseline":
                mu = gr.median(1, keepdim=True).values
            adv = ((gr - mu) / (sd + 1e-4)).view(-1)
            if B == "group_transposed":
                gt = s.view(G, -1)
                adv = ((gt - gt.mean(0)) / (gt.std(0) + 1e-4)).view(-1)
            if B == "running_mean_baseline":
                vmean = s.mean() if vmean is None else 0.5 * vmean + 0.5 * s.mean()
                adv = ((gr - vmean) / (sd + 1e-4)).view(-1)
        elif algo == "drgrpo":
            adv = (gr - gr.mean(1, keepdim=True)).view(-1)
            if B == "relu_advantage":
                adv = adv.clamp(min=0)
            if B == "advantage_by_length":
                adv = adv / m.sum(1) * m.sum(1).mean()
            if B == "baseline_of_greatest":
                adv = (gr - gr.max(1, keepdim=True).values).view(-1)
        else:
            tr = -beta * (old - lref) * m
            last = m.sum(1).long() - 1
            tr[torch.arange(N), last] += s
            if B == "score_on_every_token":
                tr = -beta * (old - lref) * m + s[:, None] * m
            if B == "kl_reward_k3":
                d = lref - old
                tr = -beta * (d.exp() - 1 - d) * m
                tr[torch.arange(N), last] += s
            v = val if B == "padding_values_bootstrap" else val * m
            A = torch.zeros_like(v)
            run_ = torch.zeros(N)
            for t in reversed(range(T)):
                nv = v[:, t + 1] if t < T - 1 else torch.zeros(N)
                de = tr[:, t] + gamma * nv - v[:, t]
                run_ = de + (lam if B == "gamma_missing_in_trace" else gamma * lam) * run_
                A[:, t] = run_
            ret = A + v
            if B == "returns_are_rewards_to_go_undiscounted":
                ret = tr.flip(1).cumsum(1).flip(1)
            adv = A * m if B != "padding_values_bootstrap" else A
        for ep in range(epochs):
            for ix in torch.randperm(N, generator=g).chunk(mini):
                lp, en, vn = forward_lp(policy, q[ix], y[ix])
                if bf16:
                    pass
                M, a, o = m[ix], adv[ix], old[ix]
                if ppo:
                    mean = (a * M).sum() / M.sum()
                    var = ((a - mean) ** 2 * M).sum() / M.sum()
                    if B == "whitened_by_cells_with_padding":
                        mean, var = a.mean(), a.var(unbiased=False)
                    a = (a - mean) / (var + 1e-8).sqrt() if B != "whitened_with_variance" else (a - mean) / (var + 1e-8)
                    a = a * M
                    A2 = a
                else:
                    A2 = a[:, None]
                if B == "ratio_of_sequence_sums_minus_len":
                    pass
                r = (lp - o).exp()
                if B == "ratio_one_plus_logdiff":
                    r = 1 + (lp - o)
                cl = r.clamp(1 - eps, 1 + eps)
                if B == "clip_detached":
                    cl = cl.detach() + 0 * lp
                if B == "only_upper_clip":
                    cl = r.clamp(max=1 + eps)
                tl = -torch.min(r * A2, cl * A2)
                if B == "clip_by_advantage_sign_flipped":
                    tl = -torch.where(A2 > 0, torch.max(r, cl) * A2, torch.min(r, cl) * A2)
                if algo == "grpo":
                    d = lref[ix] - lp
                    kl = d.exp() - d - 1
                    if B == "k3_without_minus_one":
                        kl = d.exp() - d
                    if B == "kl_detached":
                        kl = kl.detach()
                    if B == "kl_k3_sign_of_d":
                        kl = (-d).exp() - d - 1
                    tl = tl + beta * kl
                    loss = ((tl * M).sum(1) / M.sum(1)).mean()
                    if B == "mean_over_width":
                        loss = (tl * M).mean()
                    if B == "mean_of_batch_lengths":
                        loss = (tl * M).sum(1).mean() / M.sum(1).max()
                elif algo == "drgrpo":
                    loss = (tl * M).sum() / (len(ix) * T)
                    if B == "constant_forgets_rows":
                        loss = (tl * M).sum(1).mean() / M.sum(1).median()
                    if B == "padding_in_sum":
                        loss = tl.sum() / (len(ix) * T)
                    if B == "grad_through_half":
                        loss = (tl * M * (torch.arange(T) < T // 2)).sum() / (len(ix) * T)
                pg = vl = el = None
                if ppo:
                    pg = (tl * M).sum() / M.sum()
                    vl = 0.5 * ((vn - ret[ix]) ** 2 * M).sum() / M.sum()
                    el = (en * M).sum() / M.sum()
                    if B == "value_target_is_advantage":
                        vl = 0.5 * ((vn - adv[ix]) ** 2 * M).sum() / M.sum()
                    if B == "value_loss_broadcast":
                        vl = 0.5 * (((vn[:, :, None] - ret[ix][:, None, :]) ** 2).mean(2) * M).sum() / M.sum()
                    loss = pg + vf * vl - ent * el
                    if B == "value_coef_halves_policy":
                        loss = (1 - vf) * pg + vf * vl - ent * el
                (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                opt.step()
                opts = {"num_generations": G, "clip.low": eps, "clip.high": eps, "kl.beta": beta, "eos_token_id": EOS, "num_mini_batches": mini}
                if ppo:
                    opts |= {"gae.gamma": gamma, "gae.lambda": lam, "value.coef": vf, "entropy.coef": ent}
                write(
                    folder,
                    f"step_{step:04d}",
                    dict(schema=1, framework="custom", algorithm="ppo" if ppo else "grpo", run=run, step=step, options=opts)
                    | (dict(token_loss_includes_kl=True) if algo == "grpo" else {}),
                    dict(
                        response_ids=y[ix],
                        response_mask=mask[ix],
                        logp_new=lp,
                        logp_old=o,
                        logp_ref=lref[ix] if beta else None,
                        advantages=a,
                        scores=s[ix],
                        group_id=gid[ix],
                        loss=loss,
                        token_loss=tl if algo == "grpo" else None,
                        dlogp=dl if algo != "grpo" else None,
                        pg_loss=pg,
                        value_loss=vl,
                        entropy=en if ppo else None,
                        entropy_loss=None,
                        values=val[ix] if ppo else None,
                        values_new=vn if ppo else None,
                        returns=ret[ix] if ppo else None,
                        token_rewards=tr[ix] if ppo else None,
                    ),
                )
                step += 1


S = dict(
    h_grpo_k3_tokenloss=dict(algo="grpo", beta=0.04, epochs=2, mini=1, seed=31),
    h_drgrpo_constant_dlogp=dict(algo="drgrpo", epochs=3, N=32, G=8, rollouts=2, seed=32),
    h_ppo_shared_whiten_minibatch=dict(algo="ppo", beta=0.05, gamma=0.99, lam=0.95, epochs=2, mini=2, ent=0.01, N=64, G=8, rollouts=2, seed=33),
)
p, f, n = S
C = {k: (k, "", "") for k in S} | {
    "b_mask_runs_one_over": (p, "the mask is one token too long: the first padding after EOS is trained on", ""),
    "b_label_shift": (p, "old log-probs are shifted by one token against the new ones", ""),
    "b_std_before_leave_one_out": (
        p,
        "leave-one-out baseline with the standard deviation of the whole group",
        "leave-one-out centring with group std, as REINFORCE-leave-one-out variants with scaling have it",
    ),
    "b_variance_for_std": (p, "advantages are divided by the variance", ""),
    "b_group_transposed": (p, "rewards are viewed as [G, prompts] although repeats are contiguous: groups mix prompts", ""),
    "b_running_mean_baseline": (p, "the baseline is a running mean of all rewards, the scale that of the group", ""),
    "b_k3_without_minus_one": (p, "k3 misses the minus one: the KL of equal policies is 1", ""),
    "b_kl_k3_sign_of_d": (p, "the exponential of k3 has the other sign than its linear term", ""),
    "b_mean_over_width": (p, "masked token losses are averaged over all cells with padding", "Dr.GRPO's constant, width times rows, computes this"),
    "b_mean_of_batch_lengths": (
        p,
        "every row is divided by the length of the longest row instead of its own",
        "verl's seq-mean-token-sum-norm divides by the width of the batch",
    ),
    "b_ref_follows_policy": (p, "the reference is replaced by the policy of the last rollout", "TR-DPO-like sync_ref_model of TRL does this"),
    "b_relu_advantage": (f, "negative advantages are set to zero", "positive-only (RAFT-like) fine-tuning means this"),
    "b_advantage_by_length": (f, "advantages are divided by the length of the row relative to the mean length", ""),
    "b_clip_detached": (
        f,
        "the clipped ratio is detached: the values are right, but within the bounds both terms of the minimum tie and half of the gradient is lost",
        "",
    ),
    "b_only_upper_clip": (f, "the ratio is clipped from above only", "clip.low none"),
    "b_ratio_one_plus_logdiff": (f, "the ratio is linearised: 1 + log-difference", ""),
    "b_padding_in_sum": (f, "padding tokens enter the sum", ""),
    "b_grad_through_half": (f, "tokens of the second half of the buffer are left out of the loss", ""),
    "b_clip_by_advantage_sign_flipped": (f, "the max is taken for positive and the min for negative advantages: the optimistic side", ""),
    "b_score_on_every_token": (n, "the score is put on every token of the response", ""),
    "b_gamma_missing_in_trace": (n, "the trace decays by lambda alone", ""),
    "b_returns_are_rewards_to_go_undiscounted": (n, "the value targets are undiscounted rewards to go, gamma is .99", ""),
    "b_padding_values_bootstrap": (n, "values of padding are not masked: the value after EOS is bootstrapped from", ""),
    "b_whitened_by_cells_with_padding": (n, "mean and variance of whitening run over padding too", "whiten.mask none, as unmasked whitening has it"),
    "b_whitened_with_variance": (n, "centred advantages are divided by the variance", ""),
    "b_value_target_is_advantage": (n, "values regress on the advantages, not on the returns", ""),
    "b_value_loss_broadcast": (n, "values [B,T,1] minus returns [B,1,T] broadcast: every value is compared with all returns of its row", ""),
    "b_value_coef_halves_policy": (n, "the policy loss is multiplied by one minus the value coefficient", ""),
}
if __name__ == "__main__":
    main("r4_blog", C, S, train)
