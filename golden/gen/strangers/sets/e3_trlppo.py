"""TRL 1.12's experimental PPOTrainer, rewritten from its train(): rollout, INVALID_LOGPROB fills, padding_mask_p1, whitening, epochs x mini-batches x micro-batches.
h_k1 and h_k3_white dump everything (dlogp, dvalues, kl, token rewards, scalars), the other three are lazy: log-probs, mask, values, returns, advantages, scores, loss.
Dumped scores are after the missing-EOS penalty where scores_shaped is said (h_eos_pen), before it in h_stop_pen."""

from world_e import *

INV = 1.0
D = dict(
    N=32,
    mini=2,
    micro=2,
    epochs=2,
    T=32,
    temp=0.7,
    kl_coef=0.05,
    kind="k1",
    whiten=False,
    pen=None,
    gamma=1.0,
    lam=0.95,
    clip=0.2,
    vclip=0.2,
    vf=0.1,
    stop=EOS,
    eos=EOS,
    rollouts=2,
    lr=0.008,
    full=True,
    seed=21,
    shaped=False,
    world=1,
    head_bf16=False,
)
H = {
    "h_k1": dict(D),
    "h_k3_white": dict(D, kind="k3", whiten=True, gamma=0.99, lam=0.9, N=24, mini=3, micro=1, epochs=2, seed=22, temp=1.0, vf=0.5),
    "h_eos_pen": dict(D, pen=1.0, full=False, seed=23, shaped=True, T=24, kl_coef=0.2, clip=0.1, head_bf16=True),
    "h_stop_pen": dict(D, pen=0.7, full=False, seed=24, T=20, mini=1, micro=4, epochs=4, vclip=0.1, temp=0.9),
    "h_2rank": dict(D, world=2, full=False, seed=25, kind="k3", kl_coef=0.1, N=16, mini=2, micro=1, whiten=True, temp=1.0),
}
B = {
    "b_whiten_no_std": ("h_k1", "whiten-no-std", "masked_whiten of the advantages without std: only the mean is subtracted"),
    "b_whiten_p1": ("h_k1", "whiten-mask-p1", "advantages are whitened over padding_mask_p1, a cell more per row"),
    "b_score_at_len": ("h_k1", "score-early", "the score is put one token before the last token"),
    "b_kl_pad": (
        "h_k1",
        "kl-unfilled",
        "log-probs of the padding are never filled for the reference: the KL of padding enters the rewards and, through GAE, every token",
    ),
    "b_vf_clip_sign": ("h_k1", "vf-min", "min instead of max of the two value errors"),
    "b_old_temp": ("h_k1", "forward-no-temperature", "the training forward does not divide by the temperature while rollout log-probs do"),
    "b_returns_adv": ("h_k1", "returns-without-values", "value targets are the advantages without the values added back"),
    "b_rew_white_shift": ("h_k3_white", "rewards-whiten-shift", "rewards are whitened with shift_mean=True: their mean is lost"),
    "b_rew_white_mask": ("h_k3_white", "rewards-whiten-no-mask", "the whitening of the rewards takes all cells with padding"),
    "b_k3_sign": ("h_k3_white", "k3-sign", "k3 of the negative log-ratio: exp(-logr) - 1 + logr"),
    "b_gamma_td": ("h_k3_white", "gamma-missing-in-delta", "the TD error uses the next value undiscounted"),
    "b_vf_coef": ("h_k3_white", "vf-coef-in-half", "vf_coef is applied twice"),
    "b_pen_sign": ("h_stop_pen", "penalty-on-finished", "the missing-EOS penalty is taken from the rows that do have an EOS"),
    "b_pen_add": ("h_stop_pen", "penalty-added", "the penalty is added to the score of rows without EOS"),
    "b_pen_twice": ("h_stop_pen", "penalty-every-epoch", "the penalty is subtracted twice, before and after the scores are gathered"),
    "b_clip_log": ("h_eos_pen", "clip-log-ratio", "the clip acts on the log-ratio with bounds of its own, -eps/2 and 2 eps, and not on the ratio"),
    "b_adv_sign": ("h_eos_pen", "pg-missing-minus", "the clipped term lacks the minus of the advantage"),
    "b_boot": ("h_stop_pen", "bootstrap-self", "truncated responses bootstrap from their own last value at the end"),
    "b_perm": ("h_stop_pen", "returns-not-permuted", "returns are taken by position and not by the permuted indices"),
    "b_rank_whiten": ("h_2rank", "rank1-uses-rank0-values", "rank 1 computes GAE with the values of rank 0"),
    "b_ref_updates": ("h_2rank", "ref-is-policy-after-first", "after the first rollout the reference is the policy itself: the KL is 0"),
    "b_micro_sum": ("h_stop_pen", "mean-over-cells", "the policy loss is the mean over all cells with padding"),
}


def first_true(b):
    n = b.shape[-1]
    return torch.where(b, torch.arange(n).expand_as(b), n).min(-1).values


def mvar(x, m):
    mu = mmean(x, m)
    v = mmean((x - mu) ** 2, m)
    s = m.sum()
    return v * s / (s - 1)


def whiten(x, m, shift_mean=True, std=True):
    mu, v = mmean(x, m), mvar(x, m)
    w = (x - mu) * (torch.rsqrt(v + 1e-8) if std else 1.0)
    return w if shift_mean else w + mu


def run(out, case, c, bug, exp):
    C = type("C", (), c)
    gen = torch.Generator().manual_seed(C.seed)
    torch.manual_seed(C.seed)
    pol, val = LM(seed=C.seed, head_bf16=C.head_bf16), LM(seed=C.seed + 1, value=True)
    ref = copy.deepcopy(pol)
    opt = torch.optim.AdamW(list(pol.parameters()) + list(val.parameters()), lr=C.lr, weight_decay=0.0)
    d = Dump(out, "e3_trlppo", case, framework="trl", version="1.12.0", algorithm="ppo", **exp)
    micro_rows = C.N // C.mini // C.micro
    P = 6
    tmp = C.temp + 1e-7
    step = 0
    o = dict(
        num_ppo_epochs=C.epochs,
        num_mini_batches=C.mini,
        gradient_accumulation_steps=C.micro,
        per_device_train_batch_size=micro_rows,
        kl_coef=C.kl_coef,
        kl_estimator=C.kind,
        whiten_rewards=C.whiten,
        missing_eos_penalty=C.pen,
        gamma=C.gamma,
        lam=C.lam,
        cliprange=C.clip,
        cliprange_value=C.vclip,
        vf_coef=C.vf,
        temperature=C.temp,
        response_length=C.T,
        learning_rate=C.lr,
        eos_token_id=EOS,
    )
    for ro in range(C.rollouts):
        S = []
        for rk in range(C.world):
            with torch.no_grad():
                pr = prompts_(C.N, P, gen)
                resp, mask, _ = sample(pol, pr, C.T, C.temp, gen)
                logp = logps(pol, pr, resp, tmp)
                rm = pol if bug == "ref-is-policy-after-first" and ro else ref
                rlogp = logps(rm, pr, resp, tmp)
                post = resp.clone()
                slen = first_true(post == PAD) - 1
                v = val(torch.cat([pr, resp], 1))[:, P - 1 : -1, 0]
                score = (rewards2(post, mask, C.T) * torch.tensor([2.0, 0.5])).sum(1)
                raw = score.clone()
                has = (post == EOS).any(1)
                if C.pen is not None:
                    if bug == "penalty-on-finished":
                        score[has] -= C.pen
                    elif bug == "penalty-added":
                        score[~has] += C.pen
                    else:
                        score[~has] -= C.pen * (2 if bug == "penalty-every-epoch" else 1)
                idx = torch.arange(C.T).repeat(C.N, 1)
                pm = idx > slen[:, None]
                logp = logp.masked_fill(pm, INV)
                rlogp = rlogp if bug == "kl-unfilled" else rlogp.masked_fill(pm, INV)
                s1 = slen + 1
                pm1 = idx > s1[:, None]
                v = v.masked_fill(pm1, 0)
                if bug == "rank1-uses-rank0-values" and rk:
                    v = S[0]["v"].masked_fill(pm1, 0)
                logr = rlogp - logp
                kl = -logr if C.kind == "k1" else (((-logr).exp() - 1) + logr if bug == "k3-sign" else (logr.exp() - 1) - logr)
                rew = -C.kl_coef * kl
                end = torch.where(s1 < C.T, s1, slen)
                if bug == "score-early":
                    end = (slen - 1).clamp(min=0)
                rew[torch.arange(C.N), end] += score
                raw_rew = rew.clone()
                if C.whiten:
                    rew = whiten(rew, torch.ones_like(pm1) if bug == "rewards-whiten-no-mask" else ~pm1, shift_mean=bug == "rewards-whiten-shift").masked_fill(
                        pm1, 0
                    )
                last, adv = 0, []
                for t in reversed(range(C.T)):
                    nv = v[:, t + 1] if t < C.T - 1 else (v[:, -1] if bug == "bootstrap-self" else 0.0)
                    delta = rew[:, t] + (1.0 if bug == "gamma-missing-in-delta" else C.gamma) * nv - v[:, t]
                    last = delta + C.gamma * C.lam * last
                    adv.append(last)
                adv = torch.stack(adv[::-1], 1)
                ret = adv.clone() if bug == "returns-without-values" else adv + v
                adv = whiten(adv, ~pm1 if bug == "whiten-mask-p1" else ~pm, std=bug != "whiten-no-std").masked_fill(pm, 0)
            S.append(dict(pr=pr, resp=resp, logp=logp, rlogp=rlogp, v=v, score=score, raw=raw, pm=pm, pm1=pm1, kl=kl, rew=raw_rew, adv=adv, ret=ret, post=post))
        for ep in range(C.epochs):
            perms = [torch.randperm(C.N, generator=gen) for _ in S]
            for m0 in range(0, C.N, C.N // C.mini):
                step += 1
                for mb in range(C.micro):
                    for rk, R in enumerate(S):
                        lo = m0 + mb * micro_rows
                        k = perms[rk][lo : lo + micro_rows]
                        full = logps(pol, R["pr"][k], R["resp"][k], 1.0 if bug == "forward-no-temperature" else tmp, True)
                        pm, pm1 = R["pm"][k], R["pm1"][k]
                        new = full[0].masked_fill(pm, INV)
                        A = R["adv"][k]
                        ret = R["ret"][lo : lo + micro_rows] if bug == "returns-not-permuted" else R["ret"][k]
                        vp = val(torch.cat([R["pr"][k], R["resp"][k]], 1))[:, P - 1 : -1, 0].masked_fill(pm1, 0)
                        vc = torch.clamp(vp, R["v"][k] - C.vclip, R["v"][k] + C.vclip)
                        l1, l2 = (vp - ret) ** 2, (vc - ret) ** 2
                        vl = 0.5 * mmean(torch.min(l1, l2) if bug == "vf-min" else torch.max(l1, l2), ~pm1)
                        diff = new - R["logp"][k]
                        ratio = diff.exp()
                        p1 = -A * ratio
                        p2 = -A * (torch.exp(diff.clamp(-C.clip * 0.5, C.clip * 2)) if bug == "clip-log-ratio" else ratio.clamp(1 - C.clip, 1 + C.clip))
                        if bug == "pg-missing-minus":
                            p2 = -p2
                        pmax = torch.max(p1, p2)
                        pg = pmax.mean() if bug == "mean-over-cells" else mmean(pmax, ~pm)
                        loss = pg + C.vf * vl * (C.vf if bug == "vf-coef-in-half" else 1.0)
                        loss_b = loss / C.micro
                        dl, dv = torch.autograd.grad(loss_b, [new, vp], retain_graph=True)
                        (loss_b / C.world).backward()
                        t = dict(
                            input_ids=torch.cat([R["pr"][k], R["resp"][k]], 1),
                            attention_mask=(torch.cat([R["pr"][k], R["resp"][k]], 1) != PAD),
                            response_ids=R["post"][k],
                            response_mask=~pm,
                            logp_new=new,
                            logp_old=R["logp"][k],
                            logp_ref=R["rlogp"][k],
                            values=R["v"][k],
                            values_new=vp,
                            returns=ret,
                            advantages=A,
                            scores=R["score" if C.shaped else "raw"][k],
                            loss=loss_b,
                            value_loss=vl / C.micro,
                            pg_loss=pg / C.micro,
                            sample_id=k + 1000 * rk + 10000 * ro,
                        )
                        sc = {}
                        if C.full:
                            t |= dict(kl=R["kl"][k], token_rewards=R["rew"][k], dlogp=dl, dvalues=dv, token_loss=pmax)
                            with torch.no_grad():
                                sc = {
                                    "policy/clipfrac_avg": mmean((p2 > p1).float(), ~pm).item(),
                                    "loss/policy_avg": pg.item(),
                                    "loss/value_avg": vl.item(),
                                    "val/clipfrac_avg": mmean((l2 > l1).float(), ~pm1).item(),
                                }
                        d(step, mb, C.micro, t, rk, C.world, options=o, scores_shaped=C.shaped, scalars=sc, scalars_scope="micro_batch", masked_fill=INV)
                opt.step()
                opt.zero_grad()


if __name__ == "__main__":
    main("e3_trlppo", H, B, run)
