"""A researcher's GRPO from a notebook. Lazy dump: log-probs, mask, ids, advantages, scores, groups, loss (reference log-probs where there is a KL); no gradients, no token losses."""

import torch
from world_f import *

D = dict(
    n=6,
    prompts=6,
    T=28,
    lr=0.012,
    rollouts=2,
    epochs=2,
    ga=1,
    eps_lo=0.2,
    eps_hi=0.2,
    dual=None,
    center="mean",
    scale="group_std",
    ddof=1,
    eps=1e-6,
    agg="token",
    beta=0.0,
    kl="k3",
    place="none",
    temp=1.0,
    bf16=False,
    seed=31,
)
H = dict(
    h_plain_3ep=dict(epochs=3),
    h_loo_kl=dict(center="loo", scale="none", agg="seq_mean_token_mean", beta=0.05, place="loss", seed=32, n=4, prompts=8),
    h_const_ga_dual=dict(scale="none", agg="const", ga=3, eps_hi=0.3, dual=3.0, seed=33, bf16=True, rollouts=3),
    h_klreward_t07=dict(beta=0.02, kl="k1", place="reward", temp=0.7, ddof=0, eps=1e-4, agg="seq_mean_token_sum", seed=34, n=8, prompts=4, lr=0.008),
)
B = dict(
    var_not_std=("h_plain_3ep", "centred rewards are divided by the variance of the group"),
    wrong_axis=("h_plain_3ep", "rewards.view(n, prompts).mean(0): mean and std over the wrong axis"),
    mask_shift=("h_plain_3ep", "response mask is rolled by one: the first token is out and the first padding token in"),
    old_late=("h_plain_3ep", "old log-probs are computed after the first optimiser step of the rollout (first epoch uses the detached new ones)"),
    ratio_inverted=("h_plain_3ep", "ratio is exp(old − new)"),
    pad_in_mean=("h_plain_3ep", "token mean divides by rows × columns, padding included"),
    stale_scores=("h_plain_3ep", "advantages are made of the previous rollout's rewards (cached), from the second rollout on"),
    loo_self=("h_loo_kl", "leave-one-out mean contains the row itself: sum / (n − 1)"),
    kl_sum=("h_loo_kl", "KL is summed over tokens and averaged over rows, not averaged over tokens"),
    kl_of_old=("h_loo_kl", "KL term is between the old policy and the reference: a constant in the loss"),
    len_with_prompt=("h_loo_kl", "token losses of a row are divided by the length of prompt and response"),
    no_ga=("h_const_ga_dual", "loss not divided by the number of accumulation steps"),
    dual_pos=("h_const_ga_dual", "dual clip on the wrong sign: max(surrogate, 3·A) for A > 0, so that their loss is the constant −3·A"),
    surrogate_max=("h_const_ga_dual", "max of the two surrogates where min belongs"),
    upper_only=("h_const_ga_dual", "clamp(ratio, max=1+eps): no lower bound"),
    relu_adv=("h_const_ga_dual", "negative advantages are clamped to 0 (left over from a trial)"),
    klr_sign=("h_klreward_t07", "KL penalty is added to the reward"),
    klr_pad=("h_klreward_t07", "KL sum of a response runs over the padding as well"),
    new_t1=("h_klreward_t07", "log-probs of the training pass are not divided by the temperature"),
    klr_after=("h_klreward_t07", "KL penalty is subtracted after the group was normalised, with no baseline of its own"),
)


def run(c, s, bug):
    s = D | s
    g = torch.Generator().manual_seed(s["seed"])
    torch.manual_seed(s["seed"])
    model = LM()
    ref = copy_of(model)
    opt = torch.optim.Adam(model.parameters(), lr=s["lr"])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.03)
    n, P, T, temp = s["n"], s["prompts"], s["T"], s["temp"]
    N = n * P
    step = 0
    prev = None
    for ro in range(s["rollouts"]):
        pid, pam = prompts(g, P, 8)
        pid, pam = pid.repeat_interleave(n, 0), pam.repeat_interleave(n, 0)
        r = sample(copy_of(model, torch.bfloat16), pid, pam, T, g, temp)
        ids, am = r["input_ids"], r["attention_mask"]
        mask = r["mask"]
        if bug == "mask_shift":
            mask = torch.roll(mask, 1, 1)
            mask[:, 0] = 0
        sc = score(r)
        rew = sc
        lps = lambda m, t=temp: logps(m, ids, am, T, t, s["bf16"])[0]
        with torch.no_grad():
            old, rl = lps(model), lps(ref)
        pen = s["beta"] * ((old - rl) * (1 if bug == "klr_pad" else mask)).sum(1) if s["place"] == "reward" else 0
        if s["place"] == "reward" and bug != "klr_after":
            rew = rew + pen if bug == "klr_sign" else rew - pen
        if bug == "stale_scores" and prev is not None:
            rew, prev = prev, rew
        elif bug == "stale_scores":
            prev = rew
        if bug == "wrong_axis":
            x = rew.view(n, P)
            mu, sd = x.mean(0).repeat(n), x.std(0).repeat(n)
        else:
            x = rew.view(P, n)
            mu, sd = x.mean(1).repeat_interleave(n), x.std(1, correction=s["ddof"]).repeat_interleave(n)
        if s["center"] == "loo":
            tot = x.sum(1).repeat_interleave(n)
            mu = tot / (n - 1) if bug == "loo_self" else (tot - rew) / (n - 1)
        adv = rew - mu
        if bug == "var_not_std":
            sd = sd**2
        if s["scale"] == "group_std":
            adv = adv / (sd + s["eps"])
        if bug == "klr_after":
            adv = adv - pen
        if bug == "relu_adv":
            adv = adv.clamp(min=0)
        for ep in range(s["epochs"]):
            step += 1
            opt.zero_grad()
            rows = torch.arange(N).chunk(s["ga"])
            first = old
            if bug == "old_late" and ep == 0:
                first = None
            if bug == "old_late" and ep == 1:
                with torch.no_grad():
                    old = first = lps(model)
            for j, q in enumerate(rows):
                m, A = mask[q], adv[q][:, None]
                lp = logps(model, ids[q], am[q], T, 1.0 if bug == "new_t1" else temp, s["bf16"])[0]
                o = lp.detach() if first is None else first[q]
                rho = (o - lp).exp() if bug == "ratio_inverted" else (lp - o).exp()
                cl = rho.clamp(max=1 + s["eps_hi"]) if bug == "upper_only" else rho.clamp(1 - s["eps_lo"], 1 + s["eps_hi"])
                sur = (torch.max if bug == "surrogate_max" else torch.min)(rho * A, cl * A)
                if s["dual"]:
                    sur = (
                        torch.where(A > 0, torch.max(sur, s["dual"] * A), sur) if bug == "dual_pos" else torch.where(A < 0, torch.max(sur, s["dual"] * A), sur)
                    )
                tl = -sur
                kl = None
                if s["place"] == "loss":
                    d = rl[q] - (old[q] if bug == "kl_of_old" else lp)
                    kl = d.exp() - d - 1
                    if bug != "kl_sum":
                        tl = tl + s["beta"] * kl
                ln = m.sum(1) + (pam[q].sum(1) if bug == "len_with_prompt" else 0)
                if s["agg"] == "token":
                    loss = (tl * m).sum() / (m.numel() if bug == "pad_in_mean" else m.sum())
                elif s["agg"] == "seq_mean_token_mean":
                    loss = ((tl * m).sum(1) / ln).mean()
                elif s["agg"] == "seq_mean_token_sum":
                    loss = (tl * m).sum(1).mean()
                else:
                    loss = (tl * m).sum() / (len(q) * T)
                if bug == "kl_sum":
                    loss = loss + s["beta"] * (kl * m).sum(1).mean()
                if bug != "no_ga":
                    loss = loss / s["ga"]
                loss.backward()
                o_ = {
                    "eos_token_id": EOS,
                    "adv.kind": "group",
                    "adv.center": s["center"],
                    "adv.scale": s["scale"],
                    "loss.kind": "ppo",
                    "clip.low": s["eps_lo"],
                    "clip.high": s["eps_hi"],
                    "kl.beta": s["beta"],
                    "logp.temperature": temp,
                    "agg.kind": dict(const="seq_sum_const").get(s["agg"], s["agg"]),
                    "optim.epochs": s["epochs"],
                    "optim.lr": s["lr"],
                    "agg.div_ga": True,
                    "num_mini_batches": 1,
                }
                if s["scale"] != "none":
                    o_ |= {"adv.ddof": s["ddof"], "adv.eps": s["eps"]}
                if s["dual"]:
                    o_["clip.dual"] = s["dual"]
                if s["agg"] == "const":
                    o_ |= {"loss_denominator": T, "agg.div_batch": True}
                if s["beta"]:
                    o_ |= {
                        "kl.kind": s["kl"],
                        "kl.place": dict(loss="loss", reward="sequence_reward_before_baseline")[s["place"]],
                        "kl.grad": "naive",
                        "kl.clamp_in": None,
                        "kl.clamp_out": None,
                    }
                if s["place"] == "reward":
                    o_["kl.reduce"] = "sequence_sum"
                t = dict(
                    response_mask=m.bool(),
                    response_ids=r["response_ids"][q],
                    logp_new=lp,
                    logp_old=o,
                    advantages=adv[q],
                    scores=sc[q],
                    group_id=q // n + 100 * ro,
                    loss=loss,
                    logp_ref=rl[q] if s["beta"] else None,
                    logp_gen=r["gen"][q] if ro >= 0 else None,
                )
                c.write(
                    f"step{step}_{j}",
                    t,
                    dict(
                        framework="notebook",
                        algorithm="grpo",
                        step=step,
                        micro_batch=j,
                        micro_batches=s["ga"],
                        options=o_,
                        scalars=dict(loss=loss.item()),
                        scalars_scope="micro_batch",
                    ),
                )
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
    return []


if __name__ == "__main__":
    main("f3_own", H, B, run)
