"""TRL 1.12 PPO, rewritten from its PPOTrainer (without accelerate). Dump: everything of the batch and of the minibatch, dlogp and dvalues, scalars of the step; weights, gradients and updates of two tensors in h_optim."""

from world_b import *

INVALID = 1.0


def masked_mean(v, m, axis=None):
    return (v * m).sum() / m.sum() if axis is None else (v * m).sum(axis) / m.sum(axis)


def masked_var(v, m, unbiased=True):
    mean = masked_mean(v, m)
    c = v - mean
    var = masked_mean(c**2, m)
    if unbiased:
        n = m.sum()
        var = var * n / (n - 1)
    return var


def masked_whiten(v, m, shift_mean=True, unbiased=True):
    mean, var = masked_mean(v, m), masked_var(v, m, unbiased)
    w = (v - mean) * torch.rsqrt(var + 1e-8)
    return w if shift_mean else w + mean


BASE = dict(
    seed=11,
    B=32,
    P=6,
    T=24,
    minis=2,
    ga=2,
    epochs=2,
    rollouts=2,
    lr=4e-3,
    temp=0.7,
    kl_coef=0.05,
    kl_est="k1",
    whiten_rewards=False,
    eos_pen=None,
    clip=0.2,
    vclip=0.2,
    vf=0.1,
    gamma=1.0,
    lam=0.95,
    eng=None,
    reward="frac",
    optim=False,
    half=None,
)
H = dict(
    h_default=dict(BASE),
    h_whiten_rewards=dict(BASE, seed=12, whiten_rewards=True, eos_pen=1.0, kl_coef=0.1, epochs=3),
    h_k3_gamma=dict(BASE, seed=13, kl_est="k3", kl_coef=0.2, gamma=0.97, lam=0.9, minis=4, ga=1, clip=0.1, temp=1.0),
    h_tight_value=dict(BASE, seed=14, vclip=0.05, vf=0.5, eos_pen=0.5, epochs=4, minis=1, ga=4, lr=6e-3),
    h_optim=dict(BASE, seed=15, optim=True, ga=1, minis=2, reward="binary", lr=3e-3),
    h_64rows=dict(BASE, seed=16, B=64, T=36, minis=4, ga=2, epochs=1, rollouts=3, lam=1.0, reward="sum", vclip=0.5, clip=0.25),
)
B = {
    "score_at_eos": ("h_default", "the score is added at the last token, not at the one behind it as TRL does"),
    "score_last_column": ("h_k3_gamma", "the score is added in the last column of the batch"),
    "kl_sign": ("h_default", "the KL reward has the wrong sign: +kl_coef·kl"),
    "kl_k3_swapped": ("h_k3_gamma", "k3 with logr of the wrong sign"),
    "gae_no_lambda": ("h_k3_gamma", "the recursion forgets λ: γ alone"),
    "gae_next_value_same": ("h_default", "δ takes the value of the same step as the next one's: V(t) in place of V(t+1)"),
    "values_not_masked": ("h_default", "values behind the end are not zeroed before GAE, so that values of padding flow into the advantages"),
    "returns_after_whiten": ("h_64rows", "returns are of the whitened advantages"),
    "whiten_unmasked": ("h_default", "advantages are whitened over padding too"),
    "whiten_biased_no_shift": ("h_k3_gamma", "advantages are whitened without subtracting the mean"),
    "reward_whiten_shift": ("h_whiten_rewards", "rewards are whitened with shift_mean=True: their mean is lost"),
    "eos_penalty_added": ("h_whiten_rewards", "the penalty is added to answers that have no EOS"),
    "eos_penalty_inverted": ("h_tight_value", "the penalty hits the answers that have an EOS"),
    "vclip_around_return": ("h_tight_value", "values are clipped around the returns, not around the old values"),
    "vclip_min": ("h_tight_value", "the smaller of the two value errors is taken"),
    "vf_no_half": ("h_default", "the value loss lacks its factor 0.5"),
    "vf_coef_twice": ("h_tight_value", "vf_coef is multiplied in twice"),
    "vf_mask_response": ("h_64rows", "the value loss is averaged over the response mask, one token short"),
    "new_logp_no_temp": ("h_default", "the logits of the update are not divided by the temperature"),
    "new_logp_shift": ("h_k3_gamma", "the logits of the update are taken one position late"),
    "micro_inds_wrong": ("h_default", "advantages are indexed by the position in the mini-batch instead of the shuffled index"),
    "loss_mean_padded": ("h_64rows", "the policy loss is a mean over all columns, padding included"),
    "clip_one_sided": ("h_tight_value", "the ratio is clamped from above only"),
    "stale_old_values": ("h_default", "old values are those of the previous rollout from the second one on"),
    "zero_grad_missing": ("h_optim", "optimizer.zero_grad is never called: gradients of all steps add up"),
    "eps_inside_clip": ("h_optim", "gradients are clipped to norm 1 element by element (clip_grad_value_) rather than by the global norm"),
}


def run(out, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"], value=True)
    ref = copy.deepcopy(m)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=g))
    decay = [p for n, p in m.named_parameters() if not (n.endswith("bias") or "norm" in n or ".n1." in n or ".n2." in n)]
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    P, T, Bn = c["P"], c["T"], c["B"]
    rng = np.random.default_rng(c["seed"])
    step, prev_values = 0, None
    for upd in range(c["rollouts"]):
        ids, att, _ = prompts(Bn, P, g)
        with torch.no_grad():
            resp, mask, _ = sample(m, ids, att, T, c["temp"] + 1e-7, g)
            full = torch.cat([ids, resp], 1)
            fatt = full != PAD
            tt = c["temp"] + 1e-7
            lp, rlp = logps(m, full, fatt, P, tt), logps(ref, full, fatt, P, tt)
            values = m(full, fatt)[1][:, P - 1 : -1]
            scores = reward(resp, mask, c["reward"])
            raw = scores.clone()
            has_eos = (resp == EOS).any(1)
            if c["eos_pen"] is not None:
                if bug == "eos_penalty_added":
                    scores[~has_eos] += c["eos_pen"]
                elif bug == "eos_penalty_inverted":
                    scores[has_eos] -= c["eos_pen"]
                else:
                    scores[~has_eos] -= c["eos_pen"]
            ispad = resp == PAD
            seqlen = torch.where(ispad.any(1), ispad.long().argmax(1), torch.full((Bn,), T)) - 1
            idx = torch.arange(T).repeat(Bn, 1)
            pm = idx > seqlen[:, None]
            lp, rlp = lp.masked_fill(pm, INVALID), rlp.masked_fill(pm, INVALID)
            s1 = seqlen + 1
            pm1 = idx > s1[:, None]
            if bug != "values_not_masked":
                values = values.masked_fill(pm1, 0)
            if bug == "stale_old_values" and prev_values is not None:
                values, prev_values = prev_values.masked_fill(pm1, 0), values
            else:
                prev_values = values
            logr = rlp - lp
            if bug == "kl_k3_swapped":
                logr = -logr
            kl = -logr if c["kl_est"] == "k1" else (logr.exp() - 1) - logr
            rewards = (c["kl_coef"] if bug == "kl_sign" else -c["kl_coef"]) * kl
            end = torch.where(s1 < T, s1, seqlen)
            if bug == "score_at_eos":
                end = seqlen
            if bug == "score_last_column":
                end = torch.full((Bn,), T - 1)
            rewards[torch.arange(Bn), end] += scores
            if c["whiten_rewards"]:
                rewards = masked_whiten(rewards, ~pm1, shift_mean=bug == "reward_whiten_shift").masked_fill(pm1, 0)
            last, rev = 0, []
            for t in reversed(range(T)):
                nv = values[:, t + 1] if t < T - 1 else 0.0
                if bug == "gae_next_value_same":
                    nv = values[:, t]
                delta = rewards[:, t] + c["gamma"] * nv - values[:, t]
                last = delta + c["gamma"] * (1.0 if bug == "gae_no_lambda" else c["lam"]) * last
                rev.append(last)
            adv = torch.stack(rev[::-1], 1)
            if bug == "returns_after_whiten":
                adv = masked_whiten(adv, ~pm)
                returns = adv + values
            else:
                returns = adv + values
                if bug == "whiten_unmasked":
                    adv = masked_whiten(adv, torch.ones_like(pm))
                elif bug == "whiten_biased_no_shift":
                    adv = masked_whiten(adv, ~pm, shift_mean=False)
                else:
                    adv = masked_whiten(adv, ~pm)
            adv = adv.masked_fill(pm, 0)
        mbs = Bn // c["minis"]
        mic = mbs // c["ga"]
        for ep in range(c["epochs"]):
            b = rng.permutation(Bn)
            for k in range(c["minis"]):
                step += 1
                files = []
                for q in range(c["ga"]):
                    i = torch.tensor(b[k * mbs : (k + 1) * mbs][q * mic : (q + 1) * mic])
                    a = adv[i]
                    if bug == "micro_inds_wrong":
                        a = adv[k * mbs + q * mic : k * mbs + (q + 1) * mic].masked_fill(pm[i], 0)
                    lg, vp = m(full[i], fatt[i])
                    lg = lg[:, P:] if bug == "new_logp_shift" else lg[:, P - 1 : -1]
                    if bug == "new_logp_shift":
                        lg = torch.cat([lg, lg[:, -1:]], 1)[:, :T]
                    lg = lg + torch.zeros(V).index_fill(0, torch.tensor([PAD]), -1e9)
                    if bug != "new_logp_no_temp":
                        lg = lg / tt
                    nlp0 = lg.log_softmax(-1).gather(-1, resp[i][..., None]).squeeze(-1)
                    nlp = nlp0.masked_fill(pm[i], INVALID)
                    nlp.retain_grad()
                    vp = vp[:, P - 1 : -1].masked_fill(pm1[i], 0)
                    vp.retain_grad()
                    ret, ov = returns[i], values[i]
                    mid = ret if bug == "vclip_around_return" else ov
                    vc = torch.clamp(vp, mid - c["vclip"], mid + c["vclip"])
                    l1, l2 = (vp - ret) ** 2, (vc - ret) ** 2
                    lm = torch.min(l1, l2) if bug == "vclip_min" else torch.max(l1, l2)
                    vm = ~pm[i] if bug == "vf_mask_response" else ~pm1[i]
                    vf = (1.0 if bug == "vf_no_half" else 0.5) * masked_mean(lm, vm)
                    if bug == "vf_coef_twice":
                        vf = c["vf"] * vf
                    d = nlp - lp[i]
                    ratio = d.exp()
                    pl1 = -a * ratio
                    pl2 = -a * (
                        torch.clamp(ratio, max=1 + c["clip"]) if bug == "clip_one_sided" else torch.clamp(ratio, 1 - c["clip"], 1 + c["clip"])
                    )
                    plm = torch.max(pl1, pl2)
                    pg = plm.mean() if bug == "loss_mean_padded" else masked_mean(plm, ~pm[i])
                    loss = pg + c["vf"] * vf
                    (loss / c["ga"]).backward()
                    with torch.no_grad():
                        pr = lg.softmax(-1)
                        ent = torch.logsumexp(lg, -1) - (pr * lg.clamp(min=-1e6)).sum(-1)
                        sca = {
                            "policy/clipfrac_avg": masked_mean((pl2 > pl1).float(), ~pm[i]).item(),
                            "loss/policy_avg": pg.item(),
                            "loss/value_avg": vf.item(),
                            "val/clipfrac_avg": masked_mean((l2 > l1).float(), vm).item(),
                        }
                    t = dict(
                        response_mask=~pm[i],
                        response_ids=resp[i],
                        logp_new=nlp,
                        logp_old=lp[i],
                        logp_ref=rlp[i],
                        values=ov,
                        values_new=vp,
                        returns=ret,
                        advantages=a,
                        token_rewards=rewards[i],
                        kl=kl[i],
                        scores=raw[i],
                        token_loss=plm,
                        entropy=ent,
                        pg_loss=pg,
                        value_loss=vf,
                        loss=loss,
                        dlogp=nlp.grad * c["ga"],
                        dvalues=vp.grad * c["ga"],
                        sample_id=i + 1000 * upd,
                    )
                    files.append((f"s{step:03d}_m{q}", t, q, sca))
                extra = {}
                if bug == "eps_inside_clip" or c["optim"]:
                    names = ["head.weight", "v.weight", "norm.bias", "emb.weight"] if False else [n for n, _ in m.named_parameters()]
                    gr = {n: p.grad.clone() for n, p in m.named_parameters()}
                    before = {n: p.detach().clone() for n, p in m.named_parameters()}
                if c["optim"]:
                    if bug == "eps_inside_clip":
                        torch.nn.utils.clip_grad_value_(m.parameters(), 0.01)
                    else:
                        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                if c["optim"]:
                    keep = [n for n, p in m.named_parameters() if step <= 8]
                    for n, p in m.named_parameters():
                        if n in keep:
                            extra[f"grad/{n}"] = gr[n]
                            extra[f"weights/{n}"] = before[n]
                            extra[f"update/{n}"] = p.detach() - before[n]
                if bug != "zero_grad_missing":
                    opt.zero_grad()
                o = dict(
                    num_ppo_epochs=c["epochs"],
                    num_mini_batches=c["minis"],
                    gradient_accumulation_steps=c["ga"],
                    whiten_rewards=c["whiten_rewards"],
                    kl_coef=c["kl_coef"],
                    kl_estimator=c["kl_est"],
                    cliprange=c["clip"],
                    cliprange_value=c["vclip"],
                    vf_coef=c["vf"],
                    gamma=c["gamma"],
                    lam=c["lam"],
                    temperature=c["temp"],
                    missing_eos_penalty=c["eos_pen"],
                    eos_token_id=EOS,
                    learning_rate=c["lr"],
                )
                if c["optim"]:
                    o |= dict(max_grad_norm=1.0, weight_decay=0.0, lr_scheduler_type="constant")
                for name, t, q, sca in files:
                    if q == c["ga"] - 1:
                        t |= extra
                    write(
                        out,
                        name,
                        t,
                        framework="trl",
                        version="1.12.0",
                        algorithm="ppo",
                        run=f"ppo-{c['seed']}",
                        step=step,
                        micro_batch=q,
                        micro_batches=c["ga"],
                        rank=0,
                        world_size=1,
                        masked_fill=1.0,
                        options=o,
                        scalars=sca,
                        scalars_scope="micro_batch",
                    )


if __name__ == "__main__":
    main("b2_trlppo", H, B, run)
