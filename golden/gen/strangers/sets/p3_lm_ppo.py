"""PPO for language models after "The N implementation details of RLHF with PPO" / summarize-from-feedback: KL in the rewards with an adaptive coefficient, score at the last token,
whitening, value clipping, epochs and mini-batches. One model with a value head, one loss. Own words, few options declared; the hook writes what the loop has (no token_loss, no entropy)."""

from world_p import *

H = dict(
    h_base_2epochs=dict(
        whiten_r=False,
        temp=1.0,
        epochs=2,
        minis=2,
        micro=1,
        beta=0.05,
        adaptive=None,
        vf=0.1,
        gamma=1.0,
        lam=0.95,
        seed=31,
        lr=4e-3,
        T=24,
        bf16=False,
        eosp=None,
    ),
    h_whiten_rewards_ga_temp07=dict(
        whiten_r=True,
        temp=0.7,
        epochs=1,
        minis=2,
        micro=2,
        beta=0.15,
        adaptive=None,
        vf=0.1,
        gamma=0.99,
        lam=0.9,
        seed=32,
        lr=6e-3,
        T=20,
        bf16=False,
        eosp=None,
    ),
    h_bf16_adaptive_noeos=dict(
        whiten_r=False,
        temp=1.0,
        epochs=2,
        minis=2,
        micro=1,
        beta=0.1,
        adaptive=(0.5, 200),
        vf=0.5,
        gamma=1.0,
        lam=1.0,
        seed=33,
        lr=4e-3,
        T=28,
        bf16=True,
        eosp=-1.0,
    ),
)


def whiten(x, m, shift=True):
    mean = (x * m).sum() / m.sum()
    var = (((x - mean) ** 2) * m).sum() / m.sum()
    y = (x - mean) * torch.rsqrt(var + 1e-8)
    return y if shift else y + mean


def run(h, bug, d):
    c = H[h]
    T = c["T"]
    beta = c["beta"]
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(c["seed"])
    policy = LM(value=True)
    ref = copy.deepcopy(policy)
    rolls = 3
    amp = lambda: torch.autocast("cpu", torch.bfloat16, enabled=c["bf16"])
    opt = torch.optim.Adam(policy.parameters(), lr=c["lr"], eps=1e-5)
    step = sid = 0
    prev = None
    for roll in range(rolls):
        pid, pam = prompts(g, 32, 8)
        ids, am, mask, gen = sample(policy, pid, pam, T, c["temp"], g)
        B, m = len(ids), mask.float()
        sids = torch.arange(B) + sid
        sid += B
        ar = torch.arange(B)
        last = mask.sum(1) - 1
        raw = reward(ids, mask, T)
        with torch.no_grad(), amp():
            t_old = 1.0 if bug == "b_old_without_temperature" else c["temp"]
            old, _, val = score_tokens(policy, ids, am, T, t_old, True)
            rlp = score_tokens(ref, ids, am, T, c["temp"])[0]
            if bug == "b_ref_shares_weights":
                rlp = score_tokens(policy, ids, am, T, c["temp"])[0]
        val = val * m
        if bug == "b_values_shifted":
            val = torch.cat([val[:, 1:], torch.zeros(B, 1)], 1)
        ended = (ids[:, -T:].eq(EOS) & mask).any(1)
        scores = raw
        shaped = torch.where(ended, raw, torch.full_like(raw, c["eosp"])) if c["eosp"] is not None else raw
        if bug == "b_penalty_for_ended":
            shaped = torch.where(ended, torch.full_like(raw, c["eosp"]), raw)
        kl = (old - rlp) * m
        if bug == "b_kl_squared":
            kl = 0.5 * kl**2 + kl
        nonscore = -beta * kl
        if bug == "b_kl_of_sequence_everywhere":
            nonscore = -beta * kl.sum(1, keepdim=True) * m / T * 3
        if bug == "b_kl_sign":
            nonscore = beta * kl
        tr = nonscore.clone()
        at = last
        if bug == "b_score_at_last_but_one":
            at = (last - 1).clamp(min=0)
        if bug == "b_score_on_padding":
            at = (last + 1).clamp(max=T - 1)
        if bug == "b_score_every_token":
            tr = tr + shaped[:, None] * m / m.sum(1, keepdim=True)
        else:
            tr[ar, at] += shaped
        if bug == "b_score_of_previous_rollout" and prev is not None:
            tr[ar, at] += prev - shaped
        prev = shaped
        dumped_tr = tr
        if c["whiten_r"]:
            tr = whiten(tr, torch.ones_like(m) if bug == "b_reward_whiten_padding" else m, shift=bug == "b_reward_whiten_shifts") * m
            dumped_tr = tr
        adv, lastg = torch.zeros(B, T), torch.zeros(B)
        for t in reversed(range(T)):
            nv = val[:, t + 1] if t < T - 1 else torch.zeros(B)
            if bug == "b_bootstrap_at_end":
                nv = torch.where(t == last, val[ar, last], nv)
            delta = tr[:, t] + c["gamma"] * nv - val[:, t]
            if bug == "b_delta_without_value":
                delta = tr[:, t] + c["gamma"] * nv - val[:, t] * (0.5 if t == 0 else 1.0)
            lastg = delta + (c["gamma"] + c["lam"] - 1 if bug == "b_gamma_plus_lambda" else c["gamma"] * c["lam"]) * lastg
            if bug == "b_lambda_restarts":
                lastg = torch.where(torch.tensor(t % 8 == 7), delta, lastg)
            lastg = lastg * m[:, t]
            adv[:, t] = lastg
        returns = (adv + val) * m
        if bug == "b_returns_no_value":
            returns = adv * m
        adv = whiten(adv, m) * m
        if bug == "b_returns_of_whitened":
            returns = (adv + val) * m
        if bug == "b_whiten_rows":
            adv = torch.stack([whiten(a, b_) * b_ for a, b_ in zip(adv, m)])
        for ep in range(c["epochs"]):
            perm = torch.randperm(B, generator=g)
            if bug == "b_values_refreshed" and ep:  # the values are computed anew each epoch but the returns stay
                with torch.no_grad(), amp():
                    val = score_tokens(policy, ids, am, T, c["temp"], True)[2] * m
            for mini in perm.chunk(c["minis"]):
                opt.zero_grad()
                for mb, i in enumerate(mini.chunk(c["micro"])):
                    with amp():
                        lp, ent, v = score_tokens(policy, ids[i], am[i], T, c["temp"], True)
                    mm, A, R, V0, o = m[i], adv[i], returns[i], val[i], old[i]
                    if bug == "b_advantages_other_permutation":
                        A = adv[i.sort().values]
                    r = (lp - o).exp()
                    if bug == "b_ratio_upside_down":
                        r = (o - lp).exp()
                    l1, l2 = -A * r, -A * r.clamp(0.8, 1.2)
                    l = torch.maximum(l1, l2)
                    if bug == "b_clip_product":
                        l = -(A * r).clamp(-0.8, 1.2)
                    vc = torch.clamp(v, V0 - 0.05, V0 + 0.05)
                    if bug == "b_value_clip_one_side":
                        vc = torch.minimum(v, V0 + 0.05)
                    vl = torch.maximum((v - R) ** 2, (vc - R) ** 2)
                    if bug == "b_value_clip_only":
                        vl = (vc - R) ** 2
                    n = mm.sum()
                    pg, vloss = (l * mm).sum() / n, 0.5 * (vl * mm).sum() / n
                    if bug == "b_value_mean_over_padding":
                        vloss = 0.5 * (vl * mm).mean()
                    if bug == "b_policy_rows_then_tokens":
                        pg = ((l * mm).sum(1) / T).mean()
                    loss = (pg + c["vf"] * vloss) / c["micro"]
                    if bug == "b_vf_coef_squared":
                        loss = (pg + c["vf"] ** 2 * vloss) / c["micro"]
                    if bug == "b_value_not_divided":
                        loss = pg / c["micro"] + c["vf"] * vloss
                    dlogp, dv = torch.autograd.grad(loss, [lp, v], retain_graph=True)
                    loss.backward()
                    dump(
                        d,
                        dict(
                            input_ids=ids[i],
                            attention_mask=am[i],
                            response_ids=ids[i, -T:],
                            response_mask=mask[i],
                            logp_new=lp,
                            logp_old=o,
                            logp_ref=rlp[i],
                            values=V0,
                            values_new=v,
                            advantages=A,
                            returns=R,
                            token_rewards=dumped_tr[i],
                            kl=kl[i],
                            scores=scores[i],
                            sample_id=sids[i],
                            loss=loss,
                            pg_loss=pg,
                            value_loss=vloss,
                            dlogp=dlogp,
                            dvalues=dv,
                        ),
                        step + 1,
                        0,
                        1,
                        mb,
                        c["micro"],
                        framework="custom",
                        algorithm="ppo",
                        align="response",
                        options={
                            "gae.gamma": c["gamma"],
                            "gae.lambda": c["lam"],
                            "clip.low": 0.2,
                            "clip.high": 0.2,
                            "value.clip": 0.05,
                            "value.coef": c["vf"],
                            "kl.beta": beta,
                            "kl.place": "token_reward",
                            "kl.kind": "k1",
                            "score.index": "last_response",
                            "logp.temperature": c["temp"],
                            "num_mini_batches": c["minis"],
                            "optim.epochs": c["epochs"],
                            "eos_token_id": EOS,
                        }
                        | ({"eos.rule": "replace", "eos.penalty": c["eosp"], "eos.test": "eos_id"} if c["eosp"] is not None else {}),
                        scalars=dict(kl_coef=beta, lr=c["lr"]),
                        scalars_scope="micro_batch",
                    )
                opt.step()
                step += 1
        if c["adaptive"]:
            target, horizon = c["adaptive"]
            cur = kl.sum(1).mean().item()
            beta *= 1 + max(-0.2, min(0.2, cur / target - 1)) * B / horizon


A, I, B_ = list(H)
B = B_
C = {k: (k, "", "", "") for k in H}


def b(k, h, desc, legal=""):
    C[k] = (h, k, desc, legal)


b("b_ref_shares_weights", A, "the reference is a handle of the policy's own weights: KL stays about 0 whatever happens")
b("b_values_shifted", A, "values are read one token late: V of the state after the token")
b("b_kl_sign", A, "the KL penalty is a bonus", "kl.beta=-0.05 would compute this; 0.05 is declared")
b("b_kl_squared", A, "the penalty is d + d²/2, k1 and k2 added up")
b("b_score_at_last_but_one", A, "the score is given to the last token but one")
b(
    "b_bootstrap_at_end",
    A,
    "the value of the last token is bootstrapped from itself at the end of the response",
    "a truncated-response bootstrap with V would look like this, but not for responses that ended",
)
b("b_returns_no_value", A, "returns are the advantages before whitening, the values are not added")
b("b_returns_of_whitened", A, "returns are made of whitened advantages")
b("b_ratio_upside_down", A, "the ratio is old over new")
b("b_clip_product", A, "the product of advantage and ratio is clipped to [-0.8, 1.2] instead of the ratio")
b("b_advantages_other_permutation", A, "advantages are indexed with the sorted mini-batch, the rest with the shuffled one")
b("b_value_clip_only", A, "the value loss is that of the clipped values alone, without the maximum")
b("b_values_refreshed", A, "old values are recomputed in the second epoch, so that the value clip follows the values")
b("b_old_without_temperature", I, "the old log-probs are computed without the temperature of 0.7")
b(
    "b_reward_whiten_padding",
    I,
    "token rewards are whitened over padding, too",
    "lm-human-preferences has no mask and whitens everything, but for advantages alike",
)
b("b_value_not_divided", I, "the value term is not divided by the accumulation steps, the policy term is")
b("b_value_mean_over_padding", I, "the value loss is a mean over padded columns, too")
b("b_score_of_previous_rollout", B, "the scores put into the rewards are those of the previous rollout")
b("b_penalty_for_ended", B, "the penalty is given to the responses that ended instead of to those that did not")
b("b_lambda_restarts", B, "the trace restarts every eight tokens (chunks of a packed buffer)")
b("b_vf_coef_squared", B, "the coefficient of the value loss is applied twice", "value.coef=0.25 computes this; 0.5 is declared")
if __name__ == "__main__":
    main("p3_lm_ppo", C, run)
