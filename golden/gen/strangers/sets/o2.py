"""h2: verl 0.9.1 main loop written out (fit of the trainer, ppo_loss of the workers, value_loss of the critic). Dump: nearly everything, some cases lazy (no token_loss, no dlogp)."""

from world_o import *

DEF = dict(
    adv_estimator="grpo",
    norm_adv_by_std_in_grpo=True,
    gamma=1.0,
    lam=1.0,
    use_kl_in_reward=False,
    kl_penalty="kl",
    kl_coef=0.05,
    clip_ratio=0.2,
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
    clip_ratio_c=3.0,
    loss_mode="vanilla",
    loss_agg_mode="token-mean",
    loss_scale_factor=None,
    use_kl_loss=False,
    kl_loss_coef=0.01,
    kl_loss_type="low_var_kl",
    entropy_coeff=0,
    ppo_epochs=1,
    cliprange_value=0.5,
    rollout_is=None,
    rollout_is_threshold=2.0,
    rollout_is_batch_normalize=False,
    temperature=1.0,
    lr=0.02,
)
C = dict(
    h_ppo_holes_klreward=dict(
        o=dict(adv_estimator="gae", gamma=0.99, lam=0.95, use_kl_in_reward=True, ppo_epochs=2, loss_agg_mode="token-mean"), holes=True, M=2, K=1
    ),
    h_ppo_2ranks_vf=dict(o=dict(adv_estimator="gae", gamma=1.0, lam=0.9, cliprange_value=0.05, entropy_coeff=0.01), M=2, K=2, R=2, two=True),
    h_grpo_klcov=dict(o=dict(loss_mode="kl_cov", kl_cov_ratio=0.02, ppo_kl_coef=1.0), M=3, K=1),
    h_grpo_clipcov=dict(o=dict(loss_mode="clip_cov", clip_cov_ratio=0.05, clip_cov_lb=0.3, clip_cov_ub=5.0, ppo_epochs=2), M=2, K=1),
    h_gmpo=dict(o=dict(loss_mode="geo_mean", clip_ratio_low=0.05, clip_ratio_high=0.05, ppo_epochs=2), M=2, K=1, local=True),
    h_gspo_seqmean=dict(o=dict(loss_mode="gspo", clip_ratio_low=3e-3, clip_ratio_high=4e-3, loss_agg_mode="seq-mean-token-mean"), M=4, K=2),
    h_cispo_rloo=dict(o=dict(adv_estimator="rloo", loss_mode="cispo", clip_ratio_low=0.1, clip_ratio_high=0.1, ppo_epochs=2), M=2, K=1),
    h_sapo_opo_klk2=dict(
        o=dict(
            adv_estimator="opo",
            loss_mode="sapo",
            tau_pos=1.0,
            tau_neg=1.2,
            loss_agg_mode="seq-mean-token-mean",
            use_kl_loss=True,
            kl_loss_type="mse",
            kl_loss_coef=0.1,
        ),
        M=3,
        K=1,
        refother=True,
    ),
    h_remax_seqsum=dict(o=dict(adv_estimator="remax", loss_agg_mode="seq-mean-token-sum"), M=2, K=2, G=1),
    h_gpg=dict(o=dict(adv_estimator="gpg", loss_mode="gpg"), M=2, K=1, zeros=True),
    h_rfpp_gamma_holes=dict(
        o=dict(adv_estimator="reinforce_plus_plus", gamma=0.97, use_kl_in_reward=True, kl_penalty="low_var_kl", kl_coef=0.02), M=2, K=1, holes=True
    ),
    h_rfppbase_norm_scale=dict(
        o=dict(adv_estimator="reinforce_plus_plus_baseline", loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=100), M=2, K=2, R=2
    ),
    h_drgrpo_width=dict(o=dict(norm_adv_by_std_in_grpo=False, loss_agg_mode="seq-mean-token-sum-norm", clip_ratio_high=0.28), M=2, K=1),
    h_is_seq_rejected=dict(o=dict(rollout_is="sequence", rollout_is_threshold=1.5, ppo_epochs=2), M=2, K=1, reject=True, bf16=True),
    h_is_token_norm_lag=dict(o=dict(rollout_is="token", rollout_is_batch_normalize=True, use_kl_loss=True, kl_loss_type="low_var_kl"), M=2, K=1, lag=2),
    h_ppo_turnrewards=dict(o=dict(adv_estimator="gae", gamma=0.98, lam=0.95), M=2, K=1, holes=True, turn=True),
    h_ppo_scoreontoken=dict(o=dict(adv_estimator="gae", gamma=1.0, lam=1.0, use_kl_in_reward=True, kl_coef=0.02), M=2, K=1, anywhere=True),
    h_ragged_groups=dict(o=dict(ppo_epochs=2), M=2, K=1, ragged=True),
    h_ragged_rloo=dict(o=dict(adv_estimator="rloo", use_kl_loss=True, kl_loss_type="abs", kl_loss_coef=0.02), M=2, K=2, ragged=True),
    h_onetoken=dict(o=dict(use_kl_loss=True, kl_loss_type="kl", ppo_epochs=2, loss_agg_mode="seq-mean-token-mean"), M=2, K=1, T=1),
    h_equal_all=dict(o=dict(ppo_epochs=2, use_kl_loss=True), M=2, K=1, equal=True),
    h_uneven_micro_adaptivekl=dict(o=dict(adv_estimator="gae", lam=0.97, gamma=1.0, use_kl_in_reward=True, kl_coef=0.2, kl_penalty="abs"), M=4, K=2),
    h_dro=dict(o=dict(loss_mode="dro", dro_beta=0.5, ppo_epochs=2), M=2, K=1),
    h_dual_neg=dict(o=dict(clip_ratio_c=1.3, lr=0.06, ppo_epochs=3, loss_agg_mode="token-sum"), M=2, K=1),
)
mm = lambda x, m: (x * m).sum() / (m.sum() + 1e-8)


def whiten(x, m):
    mu = mm(x, m)
    v = mm((x - mu) ** 2, m)
    n = m.sum()
    v = v * n / (n - 1)
    return (x - mu) * torch.rsqrt(v + 1e-8)


def klp(a, b, kind):
    if kind in ("kl", "k1"):
        return a - b
    if kind == "abs":
        return (a - b).abs()
    if kind in ("mse", "k2"):
        return 0.5 * (a - b) ** 2
    k = (b - a).clamp(-20, 20)
    return (k.exp() - k - 1).clamp(-10, 10)


def advs(o, tlr, mask, gid, values, base):
    e = o["adv_estimator"]
    s = tlr.sum(-1)
    T = tlr.shape[1]
    if e == "gae":
        nv = 0
        la = 0
        out = []
        for t in reversed(range(T)):
            d = tlr[:, t] + o["gamma"] * nv - values[:, t]
            l_ = d + o["gamma"] * o["lam"] * la
            nv = values[:, t] * mask[:, t] + (1 - mask[:, t]) * nv
            la = l_ * mask[:, t] + (1 - mask[:, t]) * la
            out.append(la)
        a = torch.stack(out[::-1], 1)
        return whiten(a, mask), a + values
    if e == "reinforce_plus_plus":
        ret = torch.zeros_like(tlr)
        run_ = 0
        for t in reversed(range(T)):
            n = tlr[:, t] + o["gamma"] * run_
            ret[:, t] = n * mask[:, t]
            run_ = n * mask[:, t] + run_ * (1 - mask[:, t])
        return whiten(ret, mask) * mask, ret
    if e == "remax":
        ret = (tlr * mask).flip(-1).cumsum(-1).flip(-1)
        return ret - base[:, None] * mask, ret
    out = s.clone()
    L = mask.sum(-1)
    alpha = len(s) / torch.count_nonzero(s).clamp(min=1)
    for g in gid.unique():
        i = gid == g
        n = int(i.sum())
        x = s[i]
        if n == 1:
            out[i] = x / (1 + 1e-6) if e == "grpo" else x
        elif e == "grpo":
            out[i] = (x - x.mean()) / (x.std() + 1e-6) if o["norm_adv_by_std_in_grpo"] else x - x.mean()
        elif e == "rloo":
            out[i] = x * n / (n - 1) - x.mean() * n / (n - 1)
        elif e == "opo":
            out[i] = x - (L[i] * x).sum() / L[i].sum()
        elif e == "gpg":
            out[i] = alpha * (x - x.mean())
        elif e == "reinforce_plus_plus_baseline":
            out[i] = x - x.mean()
    a = out[:, None] * mask
    if e == "reinforce_plus_plus_baseline":
        a = whiten(a, mask) * mask
    return a, a


def go(out, case, c):
    o = {**DEF, **c["o"]}
    G = c.get("G", 4)
    R = c.get("R", 1)
    M, K = c["M"], c["K"]
    n = 24 // G if M == 3 else 32 // G
    seed = sum(map(ord, case))
    gen = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    pol = LM(seed)
    ref = LM(seed + 1) if c.get("refother") else copy.deepcopy(pol)
    ppo = o["adv_estimator"] == "gae"
    crit = LM(seed + 2, value=True) if ppo else None
    opt = torch.optim.AdamW(pol.parameters(), lr=o["lr"], weight_decay=0.01)
    copt = torch.optim.AdamW(crit.parameters(), lr=0.03) if ppo else None
    d = Dump(out, "o2", case, describes="right", framework="verl", version="0.9.1", algorithm="ppo" if ppo else "grpo", world_size=R)
    hist = [copy.deepcopy(pol)]
    step = 0
    for it in range(3 if c.get("lag") else 2):
        eng = copy.deepcopy(hist[max(0, len(hist) - 1 - c.get("lag", 0))])
        if c.get("bf16"):
            eng = eng.to(torch.bfloat16)
        P, PA = prompts(n, G, gen)
        r, att, lg, fin = sample(eng, P, PA, c.get("T", 20 + 6 * it), gen, o["temperature"], eos_bias=0 if (c.get("bf16") or c.get("lag")) else 0.5)
        mask = att.clone().float()
        N = len(r)
        T = r.shape[1]
        if c.get("holes"):
            for i in range(0, N, 2):
                L = int(att[i].sum())
                if L > 8:
                    r[i, 3:6] = torch.randint(2, V, (3,), generator=gen)
                    mask[i, 3:6] = 0
                if i % 4 == 0 and not fin[i]:
                    mask[i, L - 2 : L] = 0
        sc = score(r, att, gen)
        if c.get("zeros"):
            sc = torch.where(sc < 0, torch.zeros_like(sc), torch.ones_like(sc))
            sc[:G] = 1.0
        gid = torch.arange(N) // G + 100 * it
        if c.get("ragged"):
            gid = torch.bucketize(torch.arange(N), torch.tensor([0, 1, 3, 8, 9, 15, 16, 22, 30])) + 100 * it
        if c.get("equal"):
            sc = torch.ones(N) if it == 0 else torch.where(torch.arange(N) // G % 2 == 0, torch.full((N,), 0.1), sc)
        tls = torch.zeros(N, T)
        last = (torch.arange(T) * mask).argmax(-1)
        tls[torch.arange(N), last] = sc
        if c.get("turn"):  # a reward function that also pays at the end of every turn
            tls[:, 2] += 0.4 * (r[:, 2] > 12).float() * mask[:, 2]
            tls = tls * mask
            sc = tls.sum(-1)
        if c.get("anywhere"):  # ... or that pays where the answer stands
            tls = torch.zeros(N, T)
            tls[torch.arange(N), (last // 2)] = sc
            tls = tls * mask
            sc = tls.sum(-1)
        with torch.no_grad():
            old = lp_of(pol, P, PA, r, att)
            rlp = lp_of(ref, P, PA, r, att)
            vals = val_of(crit, P, PA, r, att) if ppo else None
        base = None
        if o["adv_estimator"] == "remax":
            gr, gm, _, _ = sample(eng, P, PA, T, gen, greedy=True)
            base = score(gr, gm, gen, 0)
        tlr = tls - o["kl_coef"] * klp(old, rlp, o["kl_penalty"]) * mask if o["use_kl_in_reward"] else tls
        if c.get("reject"):
            mask = mask.clone()
            dd = ((old - lg) * mask).sum(-1) / mask.sum(-1)
            bad = dd.abs().topk(5).indices
            mask[bad] = 0.0
        isw = None
        if o["rollout_is"]:
            lr_ = old - lg
            if o["rollout_is"] == "sequence":
                isw = (lr_ * mask).sum(-1, keepdim=True).clamp(-20, 20).exp().expand_as(lr_)
            else:
                isw = lr_.clamp(-20, 20).exp()
            isw = (isw * mask).clamp(max=o["rollout_is_threshold"])
            if o["rollout_is_batch_normalize"]:
                if o["rollout_is"] == "token":
                    isw = isw / mm(isw, mask)
        A, ret = advs(o, tlr, mask, gid, vals, base)
        order = torch.arange(N).view(n, G)[torch.randperm(n, generator=gen)].reshape(-1) if not c.get("shuffle") else torch.randperm(N, generator=gen)
        minis = order.view(M, R, K, -1)
        for ep in range(o["ppo_epochs"]):
            for mi in range(M):
                step += 1
                opt.zero_grad()
                copt and copt.zero_grad()
                allix = minis[mi].reshape(-1)
                tok = mask[allix].sum()
                gb = len(allix)
                for k in range(R):
                    for b in range(K):
                        ix = minis[mi, k, b]
                        m = mask[ix]
                        a = A[ix]
                        lp, ent, raw = lp_of(pol, P[ix], PA[ix], r[ix], att[ix], o["temperature"], True)
                        lp.retain_grad() if False else None
                        x = lp - old[ix]
                        xc = x.clamp(-20, 20)
                        lm_ = o["loss_mode"]
                        lo, hi = o["clip_ratio_low"], o["clip_ratio_high"]

                        def agg(mat, mode=None):
                            mode = mode or o["loss_agg_mode"]
                            if mode == "token-mean":
                                return (mat * m).sum() / tok * R
                            if mode == "token-sum":
                                return (mat * m).sum() * R
                            if mode.startswith("seq-mean-token-sum"):
                                l = (mat * m).sum(-1).mul((m.sum(-1) > 0).float()).sum() / gb * R
                                if mode.endswith("norm"):
                                    l = l / (o["loss_scale_factor"] or m.shape[-1])
                                return l
                            q = m.sum(-1)
                            return ((mat * m).sum(-1) / (q + 1e-8) * (q > 0)).sum() / gb * R

                        mets = {}
                        if lm_ == "vanilla":
                            rho = xc.exp()
                            l1, l2 = -a * rho, -a * rho.clamp(1 - lo, 1 + hi)
                            c1 = torch.maximum(l1, l2)
                            l3 = -a * o["clip_ratio_c"]
                            pl = torch.where(a < 0, torch.min(l3, c1), c1)
                            mets = {"actor/pg_clipfrac": mm((l2 > l1).float(), m).item(), "actor/pg_clipfrac_lower": mm((c1 > l3) * (a < 0).float(), m).item()}
                        elif lm_ == "gspo":
                            sq = (x * m).sum(-1) / m.sum(-1).clamp(min=1)
                            rho = (lp - lp.detach() + sq.detach()[:, None]).clamp(max=10).exp()
                            l1, l2 = -a * rho, -a * rho.clamp(1 - lo, 1 + hi)
                            pl = torch.maximum(l1, l2)
                            mets = {"actor/pg_clipfrac": mm((l2 > l1).float(), m).item()}
                        elif lm_ == "sapo":
                            t_ = torch.where(a > 0, torch.tensor(o["tau_pos"]), torch.tensor(o["tau_neg"]))
                            pl = -torch.sigmoid(t_ * (xc.exp() - 1)) * (4 / t_) * a
                        elif lm_ == "gpg":
                            pl = -lp * a
                        elif lm_ == "cispo":
                            pl = -xc.exp().clamp(1 - lo, 1 + hi).detach() * a * lp
                        elif lm_ == "dro":
                            pl = -(lp * a - 0.5 * o["dro_beta"] * x**2)
                        elif lm_ == "clip_cov":
                            rho = x.exp()
                            l1, l2 = -a * rho, -a * rho.clamp(1 - lo, 1 + hi)
                            with torch.no_grad():
                                cov = (a - mm(a, m)) * (lp - mm(lp, m))
                                cov[m == 0] = -math.inf
                                cov[(l2 > l1) & (m > 0)] = -math.inf
                                num = max(int(o["clip_cov_ratio"] * m.sum().item()), 1)
                                ii = torch.nonzero((cov < o["clip_cov_ub"]) & (cov > o["clip_cov_lb"]) & (m > 0))
                                corr = torch.ones_like(a)
                                if len(ii):
                                    ii = ii[torch.randperm(len(ii))[:num]]
                                    corr[ii[:, 0], ii[:, 1]] = 0
                            pl = torch.maximum(l1, l2) * corr
                        elif lm_ == "kl_cov":
                            l1 = -a * x.exp()
                            lk = l1 + o["ppo_kl_coef"] * x.abs()
                            vi = torch.nonzero(m.reshape(-1) > 0)[:, 0]
                            av, lv = a[m > 0], lp.detach()[m > 0]
                            cov = (av - av.mean()) * (lv - lv.mean())
                            top = vi[torch.topk(cov, max(1, int(len(cov) * o["kl_cov_ratio"]))).indices]
                            sel = torch.zeros(m.numel(), dtype=torch.bool)
                            sel[top] = True
                            pl = torch.where(sel.view_as(m), lk, l1)
                        elif lm_ == "geo_mean":
                            sg = a.sign()
                            xm = sg * torch.min(sg * x, sg * x.clamp(-lo, hi))
                            q = m.sum(-1)
                            rho = ((xm * m).sum(-1) / (q + 1e-8)).exp()
                            pl = -((a * m).sum(-1) / (q + 1e-8)) * rho
                        if isw is not None:
                            pl = pl * isw[ix]
                        pg = pl.mean() if lm_ == "geo_mean" else agg(pl, "seq-mean-token-mean" if lm_ == "sapo" else None)
                        loss = pg
                        t = dict(
                            response_mask=m.long(),
                            logp_new=lp,
                            logp_old=old[ix],
                            advantages=a,
                            response_ids=r[ix],
                            group_id=gid[ix],
                            scores=sc[ix],
                            pg_loss=pg,
                            entropy=ent,
                        )
                        scal = {"actor/pg_loss": pg.item(), **mets}
                        if o["entropy_coeff"]:
                            el = agg(ent)
                            loss = loss - o["entropy_coeff"] * el
                            t["entropy_loss"] = el
                        if o["use_kl_loss"]:
                            kd = klp(lp, rlp[ix], o["kl_loss_type"])
                            kl = agg(kd)
                            loss = loss + o["kl_loss_coef"] * kl
                            t |= dict(kl=kd, kl_loss=kl)
                        if o["use_kl_loss"] or o["use_kl_in_reward"]:
                            t["logp_ref"] = rlp[ix]
                        if lm_ != "geo_mean":
                            t["token_loss"] = pl
                        t |= dict(loss=loss, dlogp=d_of(loss, lp), token_rewards=tlr[ix])
                        if isw is not None:
                            t |= dict(is_weights=isw[ix], logp_gen=lg[ix])
                        if base is not None:
                            t["reward_baselines"] = base[ix]
                        (loss / R).backward(retain_graph=True)
                        if ppo:
                            vp = val_of(crit, P[ix], PA[ix], r[ix], att[ix])
                            cl = vals[ix] + (vp - vals[ix]).clamp(-o["cliprange_value"], o["cliprange_value"])
                            vl = 0.5 * agg(torch.max((vp - ret[ix]) ** 2, (cl - ret[ix]) ** 2))
                            t |= dict(values=vals[ix], values_new=vp, returns=ret[ix], value_loss=vl, dvalues=d_of(vl, vp))
                            (vl / R).backward()
                        opts = {k_: v for k_, v in o.items() if k_ not in ("lr",)} | {
                            "num_items_in_batch": int(tok),
                            "agg.denominator": "global",
                            "num_mini_batches": M,
                            "eos_token_id": EOS,
                        }
                        if c.get("local"):
                            del opts["num_items_in_batch"]
                        if c.get("lag"):
                            opts["max_staleness"] = c["lag"]
                        d.write(step, t, k, b, micro_batches=K, options=opts, scalars=scal, scalars_scope="micro_batch", token_loss_includes_kl=False)
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()
                hist.append(copy.deepcopy(pol)) if mi == M - 1 and ep == o["ppo_epochs"] - 1 else None
                if ppo:
                    copt.step()


run(C, go)
