"""verl 0.9.1 PPO with a critic; the functions are those of core_algos.py and torch_functional.py. The hook dumps what actor, critic and driver have:
scores, token rewards, values, returns, advantages, log-probs, token losses (KL not in them), pg_loss, entropy, value loss, dlogp, dvalues, actor/* scalars."""

from world_i import *

NAME = "i3_verlppo"
T, P = 24, 6


def msum(x, m):
    return torch.where(m.bool(), x, torch.zeros_like(x)).sum()


def mmean(x, m):
    return msum(x * m, m) / (m.sum() + 1e-8)


def whiten(x, m):
    mu = mmean(x, m)
    var = mmean((x - mu) ** 2, m)
    s = m.sum()
    var = var * s / (s - 1)
    return (x - mu) * torch.rsqrt(var + 1e-8)


def gae(r, v, m, gamma, lam, bug):
    nv = 0
    last = 0
    out = []
    for t in reversed(range(r.shape[1])):
        if bug == "gae_no_lam_on_next":
            d = r[:, t] + gamma * lam * nv - v[:, t]
        elif bug == "gae_minus_next":
            d = r[:, t] - v[:, t]
        else:
            d = r[:, t] + gamma * nv - v[:, t]
        l_ = d + gamma * lam * last
        if bug == "gae_holes_ignored":
            nv = v[:, t]
            last = l_
        else:
            nv = v[:, t] * m[:, t] + (1 - m[:, t]) * nv
            last = l_ * m[:, t] + (1 - m[:, t]) * last
        out.append(last)
    a = torch.stack(out[::-1], 1)
    ret = a + v
    w = whiten(a, m)
    if bug == "whiten_pad":
        w = whiten(a, torch.ones_like(m))
    if bug == "returns_from_whitened":
        ret = w + v
    return w, ret


def agg(x, m, mode, dp, bnt, gbs, sf=None):
    if mode == "token-mean":
        return msum(x, m) / bnt * dp
    seq = (x * m).sum(-1)
    sm = (m.sum(-1) > 0).float()
    if mode == "seq-mean-token-mean":
        seq = seq / (m.sum(-1) + 1e-8)
    l = msum(seq, sm) / gbs * dp
    return l / (sf or m.shape[-1]) if mode == "seq-mean-token-sum-norm" else l


def klp(lp, rf, kind):
    if kind == "k1":
        return lp - rf
    if kind == "k2":
        return 0.5 * (lp - rf).square()
    k = torch.clamp(rf - lp, -20, 20)
    return torch.clamp(k.exp() - k - 1, -10, 10)


D = dict(
    gamma=1.0,
    lam=0.95,
    klr=None,
    klbeta=0.0,
    kll=None,
    kllc=0.0,
    mode="token-mean",
    lo=0.2,
    hi=0.2,
    dual=3.0,
    ent=0.0,
    vclip=0.5,
    R=1,
    mini=2,
    micro=1,
    epochs=2,
    holes=False,
    bf16=False,
    temp=1.0,
    n=32,
    lr=1.5e-2,
    vlr=3e-2,
    rollouts=2,
)


def C(**k):
    return {**D, **k}


PR = ["--profile", "verl-ppo@0.9"]
H = {
    "h_klreward_k1": (C(klr="k1", klbeta=0.05), PR),
    "h_ranks_seqmean_dual": (C(R=2, mode="seq-mean-token-mean", micro=2, ent=0.01, dual=1.3, epochs=1, n=48, mini=3), PR),
    "h_klloss_k3_sumnorm": (C(kll="k3", kllc=0.05, mode="seq-mean-token-sum-norm", gamma=0.99, lam=0.9, hi=0.28, temp=0.7), PR),
    "h_holes_bf16_vclip": (C(holes=True, bf16=True, vclip=0.1, klr="k2", klbeta=0.02, lam=0.9, micro=2, mini=1, epochs=3), PR),
}
A, B_, C_, E_ = list(H)
BUGS = {
    "b_score_last_column": (
        A,
        "the score is put at the last column of the padded response, not at the last valid token: GAE never sees it where the row is short",
        "",
    ),
    "b_kl_added": (A, "the KL penalty is added to the token rewards", ""),
    "b_returns_from_whitened": (
        A,
        "returns are whitened advantages plus values",
        "older PPO codes that whiten before taking returns (returns.before_whiten false)",
    ),
    "b_gae_no_lam_on_next": (A, "delta discounts the next value by gamma*lambda", ""),
    "b_whiten_pad": (
        A,
        "advantages are whitened with the statistics of all cells, padding included",
        "whiten.mask none of frameworks that whiten the padded matrix",
    ),
    "b_per_rank_rows": (B_, "rows are counted on the rank only, yet the loss is multiplied by the number of ranks: double gradient", ""),
    "b_dual_on_positive": (B_, "the dual clip is applied where A > 0", ""),
    "b_entropy_sign": (B_, "the entropy bonus is added to the loss: entropy is minimised", ""),
    "b_value_swap_rank": (B_, "values of the second rank's rows come in reversed row order when they are gathered for GAE", ""),
    "b_kl_old_for_new": (C_, "the KL loss takes the old log-probs: it has no gradient", ""),
    "b_sumnorm_len": (C_, "the sum of a row is divided by its own length and by the horizon both", ""),
    "b_temp_not_in_update": (C_, "the actor's update forgets the temperature that old log-probs were divided by", ""),
    "b_clip_symmetric_low": (C_, "the clip range is 1 - hi .. 1 + hi: the declared lower bound is never read", "clip_ratio_low 0.28 computes this"),
    "b_gae_holes_ignored": (E_, "GAE runs over tool tokens as over the policy's own (values at masked cells enter)", ""),
    "b_vclip_min": (E_, "the value loss takes the minimum of clipped and unclipped error", ""),
    "b_vclip_around_returns": (E_, "new values are clipped around the returns in place of the old values", ""),
    "b_gae_minus_next": (E_, "delta lacks the value of the next state", ""),
}


def main(c, bug, out, run):
    g = torch.Generator().manual_seed(sum(map(ord, run)))
    model, critic = LM(), LM(value=True)
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.04 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.01)
    vopt = torch.optim.AdamW(critic.parameters(), lr=c["vlr"], weight_decay=0.01)
    N, R = c["n"], c["R"]
    step = 0

    def vals(i, a):
        with torch.autocast("cpu", torch.bfloat16, enabled=c["bf16"]):
            v = critic(i, a)
        return v[:, -T - 1 : -1].float()

    for roll in range(c["rollouts"]):
        pid, patt = prompts(N // 4, P, g)
        pid, patt = pid.repeat_interleave(4, 0), patt.repeat_interleave(4, 0)
        resp, full, gen = sample(model, pid, patt, T, c["temp"], g)
        ids, att = torch.cat([pid, resp], 1), torch.cat([patt, full], 1)
        m = full.float()
        if c["holes"]:  # tool output in the middle
            L = full.sum(1)
            for i in range(N):
                if L[i] > 8:
                    a = int(torch.randint(2, 5, (1,), generator=g))
                    m[i, a : a + 3] = 0
        sc = score(resp, full, g).sum(1)
        with torch.no_grad():
            old, _ = logps(model, ids, att, T, c["temp"], c["bf16"])
            rf, _ = logps(ref, ids, att, T, c["temp"], c["bf16"])
            V = vals(ids, att)
        last = (torch.arange(T) * (m > 0)).max(1).values
        tr = torch.zeros(N, T)
        tr[torch.arange(N), torch.full((N,), T - 1) if bug == "score_last_column" else last] = sc
        kl = None
        if c["klr"]:
            kl = klp(old, rf, c["klr"]) * m
            tr = tr + c["klbeta"] * kl if bug == "kl_added" else tr - c["klbeta"] * kl
        Vg = V.clone()
        if bug == "value_swap_rank":
            Vg[N // 2 :] = V[N // 2 :].flip(0)
        adv, ret = gae(tr, Vg, m, c["gamma"], c["lam"], bug)
        Vd = V
        for ep in range(c["epochs"]):
            for mb in range(c["mini"]):
                per = N // R // c["mini"] // c["micro"]
                rows = [[torch.arange(per) + r * (N // R) + (mb * c["micro"] + a) * per for a in range(c["micro"])] for r in range(R)]
                allr = torch.cat([x for r in rows for x in r])
                bnt = m[allr].sum()
                gbs = float(len(allr))
                if bug == "per_rank_rows":
                    gbs = gbs / R
                opt.zero_grad()
                vopt.zero_grad()
                fl = []
                for r in range(R):
                    for a in range(c["micro"]):
                        ix = rows[r][a]
                        M = m[ix]
                        A = adv[ix]
                        o = old[ix]
                        lp, ent = logps(model, ids[ix], att[ix], T, 1.0 if bug == "temp_not_in_update" else c["temp"], c["bf16"])
                        lp.retain_grad()
                        nk = torch.clamp(lp - o, -20.0, 20.0)
                        ratio = nk.exp()
                        l1 = -A * ratio
                        l2 = -A * torch.clamp(ratio, 1 - (c["hi"] if bug == "clip_symmetric_low" else c["lo"]), 1 + c["hi"])
                        c1 = torch.maximum(l1, l2)
                        l3 = -A * c["dual"]
                        c2 = torch.min(l3, c1)
                        pg = torch.where(A > 0 if bug == "dual_on_positive" else A < 0, c2, c1)
                        mode = c["mode"]
                        ag = lambda x: agg(x, M, mode, R, bnt, gbs)
                        if bug == "sumnorm_len":
                            pgl = ag(pg / M.sum(1, keepdim=True))
                        else:
                            pgl = ag(pg)
                        loss = pgl
                        kll = k = el = None
                        if c["ent"]:
                            el = ag(ent)
                            loss = loss + c["ent"] * el if bug == "entropy_sign" else loss - c["ent"] * el
                        if c["kll"]:
                            k = klp(o if bug == "kl_old_for_new" else lp, rf[ix], c["kll"])
                            kll = ag(k)
                            loss = loss + c["kllc"] * kll
                        loss.backward()
                        vn = vals(ids[ix], att[ix])
                        vn.retain_grad()
                        v0, R_ = Vd[ix], ret[ix]
                        ctr = R_ if bug == "vclip_around_returns" else v0
                        vc = torch.max(torch.min(vn, ctr + c["vclip"]), ctr - c["vclip"])
                        e1, e2 = (vn - R_) ** 2, (vc - R_) ** 2
                        vl = 0.5 * ag(torch.min(e1, e2) if bug == "vclip_min" else torch.max(e1, e2))
                        vl.backward()
                        sc_ = {
                            "actor/pg_clipfrac": float(mmean((l2 > l1).float(), M)),
                            "actor/ppo_kl": float(mmean(-nk.detach(), M)),
                            "actor/pg_loss": float(pgl.detach()),
                        }
                        opts = dict(
                            gamma=c["gamma"],
                            lam=c["lam"],
                            clip_ratio_low=c["lo"],
                            clip_ratio_high=c["hi"],
                            clip_ratio_c=c["dual"],
                            loss_agg_mode=mode,
                            entropy_coeff=c["ent"],
                            cliprange_value=c["vclip"],
                            temperature=c["temp"],
                            use_kl_loss=bool(c["kll"]),
                            use_kl_in_reward=bool(c["klr"]),
                            num_mini_batches=c["mini"],
                            ppo_epochs=c["epochs"],
                            eos_token_id=EOS,
                            **{"agg.denominator": "global"},
                        )
                        if c["kll"]:
                            opts.update(kl_loss_coef=c["kllc"], kl_loss_type="low_var_kl")
                        if c["klr"]:
                            opts.update({"kl.kind": c["klr"], "kl.beta": c["klbeta"], "kl.place": "token_reward"})
                        write(
                            out,
                            f"s{step:03d}r{r}m{a}",
                            dict(
                                schema=2,
                                framework="verl",
                                version="0.9.1",
                                algorithm="ppo",
                                run=run,
                                step=step,
                                rank=r,
                                world_size=R,
                                micro_batch=a,
                                micro_batches=c["micro"],
                                align="response",
                                options=opts,
                                scalars=sc_,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=False,
                                compute_dtype="float32",
                            ),
                            dict(
                                response_mask=M.bool(),
                                logp_new=lp,
                                logp_old=o,
                                logp_ref=rf[ix] if (c["kll"] or c["klr"]) else None,
                                advantages=A,
                                returns=R_,
                                values=V[ix],
                                values_new=vn,
                                scores=sc[ix],
                                token_rewards=tr[ix],
                                token_loss=pg,
                                pg_loss=pgl,
                                loss=loss,
                                entropy=ent,
                                entropy_loss=el,
                                kl_loss=kll,
                                kl=k if k is not None else (kl[ix] if kl is not None else None),
                                value_loss=vl,
                                dlogp=lp.grad,
                                dvalues=vn.grad,
                                sample_id=ix + roll * N,
                                group_id=ix // 4 + roll * N,
                                response_ids=resp[ix],
                            ),
                        )
                for mm in (model, critic):
                    for p in mm.parameters():
                        p.grad.div_(R)
                    nn.utils.clip_grad_norm_(mm.parameters(), 1.0)
                opt.step()
                vopt.step()
                step += 1


runner(NAME, H, BUGS, main)
