"""h6: people's own loops: plumbline's option names or nothing at all; odd dtypes, packed rows, fills, turns, filters, scopes. Dump varies: each case says by `keys` what it leaves out."""

from world_o import *

B0 = {"loss.kind": "ppo", "clip.low": 0.2, "clip.high": 0.2}
C = dict(
    h_nothing=dict(nothing=True, drop="scores group_id token_loss dlogp pg_loss entropy logp_gen response_ids".split(), ep=2),
    h_nothing_full=dict(nothing=True, ep=2),
    h_bf16_logps=dict(dt=torch.bfloat16, ep=2, o=B0),
    h_float64=dict(dt=torch.float64, ep=2, o=B0 | {"adv.ddof": 0, "adv.eps": 1e-8}, ddof=0, eps=1e-8),
    h_nanfill=dict(fill=float("nan"), ep=2, o=B0),
    h_onesfill_rankmean3=dict(fill=1.0, R=3, rank=True, n=6, ep=2, o=B0 | {"agg.denominator": "rank"}),
    h_const_denominator=dict(const=300.0, ep=2, o=B0 | {"agg.kind": "token", "agg.denominator": "constant", "loss_denominator": 300.0}, K=2),
    h_packed=dict(packed=True, ep=2, o=B0),
    h_filtered_groups=dict(filt=True, ep=1, M=2, o=B0),
    h_stopgrad_onpolicy=dict(sg=True, M=1, o=B0 | {"ratio.old": "stopgrad_new"}, drop=["logp_old"]),
    h_engine_old_lag2=dict(engold=True, lag=2, ep=1, o=B0 | {"ratio.old": "engine", "max_staleness": 2}),
    h_refsync_k2loss=dict(refsync=True, kl="k2", ep=2, o=B0 | {"kl.kind": "k2", "kl.beta": 0.05, "kl.place": "loss"}),
    h_entropy_raw_temp=dict(temp=0.7, ent=0.01, ep=2, o=B0 | {"logp.temperature": 0.7, "entropy.coef": 0.01, "entropy.logits": "unscaled"}),
    h_loo_nocl=dict(loo=True, noclip=True, M=1, o={"loss.kind": "reinforce", "adv.kind": "group", "adv.center": "loo", "adv.scale": "none"}),
    h_vapo_turns=dict(
        gae=(0.98, 1.0),
        vapo=True,
        turns=True,
        ep=2,
        o=B0 | {"adv.kind": "gae", "gae.gamma": 0.98, "gae.lambda": 1.0, "gae.lambda_policy": "vapo", "gae.hole": "none", "whiten.scope": "none"},
    ),
    h_gae_mse_coef1=dict(
        gae=(1.0, 0.95),
        vfac=1.0,
        vcoef=0.3,
        ep=2,
        whiten=True,
        o=B0 | {"adv.kind": "gae", "gae.gamma": 1.0, "gae.lambda": 0.95, "value.factor": 1.0, "value.clip": None, "value.coef": 0.3, "whiten.scope": "global"},
    ),
    h_advclip_onelen=dict(T=1, ep=2, o=B0),
)


def go(out, case, c):
    dt = c.get("dt", torch.float32)
    R, K, M, ep = c.get("R", 1), c.get("K", 1), c.get("M", 2), c.get("ep", 1)
    G = 4
    n = c.get("n", 8)
    temp = c.get("temp", 1.0)
    seed = sum(map(ord, case))
    gen = torch.Generator().manual_seed(seed)
    pol = LM(seed, dtype=dt)
    ref = copy.deepcopy(pol)
    opt = torch.optim.SGD(pol.parameters(), lr=0.5) if dt == torch.bfloat16 else torch.optim.Adam(pol.parameters(), lr=0.02)
    crit = LM(seed + 2, value=True) if c.get("gae") else None
    copt = torch.optim.SGD(crit.parameters(), lr=0.1) if crit else None
    meta = {} if c.get("nothing") else dict(framework="mine", version="1", algorithm="ppo" if crit else "grpo")
    d = Dump(out, "o6", case, declared=["--profile", "none"], describes="right", world_size=R, **meta)
    step = 0
    hist = [copy.deepcopy(pol)]
    for it in range(2 + c.get("lag", 0)):
        if c.get("refsync"):
            ref = copy.deepcopy(pol) if it else LM(seed + 9)
        eng = hist[max(0, len(hist) - 1 - c.get("lag", 0))]
        P, PA = prompts(n, G, gen)
        r, att, lg, fin = sample(
            eng, P, PA, c.get("T", 18 + 4 * it) if not c.get("vapo") else 64, gen, temp, eos_bias=-50 if c.get("vapo") else 0, processed=not c.get("vapo")
        )
        if c.get("vapo"):
            att = (torch.arange(r.shape[1]) < torch.randint(30, 65, (len(r), 1), generator=gen)).long() * att  # cut by a budget of each row
        mask = att.clone()
        N, T = r.shape
        sc = score(r, att, gen)
        gid = torch.arange(N) // G + 10 * it
        x = sc.view(-1, G)
        dd = c.get("ddof", 1)
        e = c.get("eps", 1e-6)
        if c.get("filt"):
            sc = (sc > 0).float()
            sc[:G] = 1.0
            sc[G : 2 * G] = torch.tensor([1.0, 0, 0, 1])
            x = sc.view(-1, G)
        if c.get("loo"):
            adv = sc - ((x.sum(1, keepdim=True) - x) / (G - 1)).view(-1)
        else:
            adv = ((x - x.mean(1, keepdim=True)) / (x.std(1, correction=dd, keepdim=True) + e)).view(-1)
        keep = torch.arange(N)
        if c.get("filt"):
            kg = (x.std(1) > 0).repeat_interleave(G)
            keep = keep[kg]
            keep = keep[: len(keep) // (2 * G) * 2 * G] if len(keep) >= 2 * G else keep
        with torch.no_grad():
            old = lp_of(pol, P, PA, r, att, temp, fp32=dt != torch.bfloat16)
            rl = lp_of(ref, P, PA, r, att, temp)
        if crit:
            with torch.no_grad():
                vals = val_of(crit, P, PA, r, att)
            L = att.sum(-1)
            tr = torch.zeros(N, T)
            tr[torch.arange(N), L - 1] = sc
            if c.get("turns"):
                tr[:, 4] += 0.3 * (r[:, 4] > 10).float() * att[:, 4]
                tr[:, 9 if T > 9 else T - 1] += 0.2 * att[:, 9 if T > 9 else T - 1]
            g_, l_ = c["gae"]
            mf = att.float()

            def gae(lam):
                la = torch.zeros(N)
                o_ = []
                for t in reversed(range(T)):
                    nv = vals[:, t + 1] * mf[:, t + 1] if t < T - 1 else 0.0
                    la = (tr[:, t] + g_ * nv - vals[:, t] + g_ * lam * la) * mf[:, t]
                    o_.append(la)
                return torch.stack(o_[::-1], 1)

            adv = gae(l_)
            ret = adv + vals * mf
            if c.get("vapo"):
                adv = gae(1 - 1 / (0.05 * L.float()).clamp(min=1.0 + 1e-6)) if False else gae(1 - 1 / (0.05 * L.float()))
            if c.get("whiten"):
                mu = (adv * mf).sum() / mf.sum()
                va = ((adv - mu) ** 2 * mf).sum() / (mf.sum() - 1)
                adv = (adv - mu) * torch.rsqrt(va + 1e-8) * mf
        for e_ in range(ep):
            od = keep[torch.randperm(len(keep), generator=gen)] if not c.get("rank") else keep
            ch = len(od) // (M * R * K)
            for mi in range(M):
                step += 1
                opt.zero_grad()
                copt and copt.zero_grad()
                for k in range(R):
                    for b in range(K):
                        s0 = ((mi * R + k) * K + b) * ch
                        ix = od[s0 : s0 + ch]
                        allix = od[mi * R * K * ch : (mi + 1) * R * K * ch]
                        m = mask[ix].to(dt)
                        lp, ent, raw = lp_of(pol, P[ix], PA[ix], r[ix], att[ix], temp, True, fp32=dt != torch.bfloat16)
                        entu = -(raw.float().softmax(-1) * raw.float().log_softmax(-1)).sum(-1)
                        A = adv[ix].to(dt)
                        A2 = A[:, None] if A.dim() == 1 else A
                        o_ = lg[ix] if c.get("engold") else lp.detach() if c.get("sg") else old[ix]
                        rho = (lp - o_).exp()
                        pl = -A2 * lp if c.get("noclip") else torch.max(-A2 * rho, -A2 * rho.clamp(0.8, 1.2))
                        tok = mask[allix].sum()
                        den = c.get("const") or (m.sum() if (c.get("rank") or R == 1 and K == 1) else tok)
                        agg = lambda y: (y * m).sum() / den
                        pg = agg(pl)
                        loss = pg
                        t = {}
                        if c.get("kl"):
                            kk = 0.5 * (lp - rl[ix]) ** 2
                            kl_ = agg(kk)
                            loss = loss + 0.05 * kl_
                            t |= dict(kl=kk, kl_loss=kl_, logp_ref=rl[ix])
                        if c.get("ent"):  # bonus of the undivided distribution
                            lraw = pol(torch.cat([P[ix], r[ix]], 1), torch.cat([PA[ix], att[ix]], 1))[:, P.shape[1] - 1 : -1]
                            eu = -(lraw.softmax(-1) * lraw.log_softmax(-1)).sum(-1)
                            loss = loss - c["ent"] * agg(eu)
                            entd = eu
                        else:
                            entd = ent
                        if crit:
                            vn = val_of(crit, P[ix], PA[ix], r[ix], att[ix])
                            vl = c.get("vfac", 0.5) * agg((vn - ret[ix]) ** 2)
                            t |= dict(values=vals[ix], values_new=vn, returns=ret[ix], token_rewards=tr[ix], value_loss=vl)
                            if c.get("vcoef"):
                                loss = loss + c["vcoef"] * vl
                            t["dvalues"] = d_of(loss if c.get("vcoef") else vl, vn)
                            if not c.get("vcoef"):
                                vl.backward(retain_graph=True)
                        t |= dict(
                            response_mask=mask[ix].bool(),
                            logp_new=lp,
                            logp_old=old[ix],
                            logp_gen=lg[ix],
                            advantages=A,
                            scores=sc[ix],
                            group_id=gid[ix],
                            response_ids=r[ix],
                            entropy=entd,
                            token_loss=pl,
                            pg_loss=pg,
                            loss=loss,
                            dlogp=d_of(loss, lp),
                        )
                        (loss / R).backward(retain_graph=True)
                        if crit:
                            t.pop("group_id")
                        if c.get("turns"):
                            t.pop("scores")
                        if "fill" in c:
                            out_ = mask[ix] == 0
                            for q in ("logp_new", "logp_old", "logp_gen"):
                                t[q] = t[q].masked_fill(out_, c["fill"])
                            t.pop("token_loss")
                        if c.get("packed"):  # two responses of a row behind each other, T -> 2T columns
                            h2 = ch // 2
                            tt = {}
                            for q in ("logp_new", "logp_old", "logp_gen", "token_loss", "entropy", "dlogp", "response_mask", "response_ids"):
                                tt[q] = torch.cat([t[q][:h2], t[q][h2 : 2 * h2]], 1)
                            at = A2.expand_as(lp) * m
                            tt["advantages"] = torch.cat([at[:h2], at[h2 : 2 * h2]], 1)
                            sg = torch.cat([torch.ones(h2, T), 2 * torch.ones(h2, T)], 1).long()
                            sg[~tt["response_mask"]] = 0
                            tt["segment_ids"] = sg
                            tt |= dict(pg_loss=pg, loss=loss)
                            t = tt
                        for q in c.get("drop", []):
                            t.pop(q, None)
                        op = {} if c.get("nothing") else dict(c["o"]) | {"num_mini_batches": M, "eos_token_id": EOS}
                        kw = {} if c.get("nothing") else dict(token_loss_includes_kl=False)
                        if "fill" in c and c["fill"] == 1.0:
                            kw["masked_fill"] = 1.0
                        d.write(step, t, k, b, micro_batches=K, **({"options": op} if op else {}), **kw)
                opt.step()
                copt and copt.step()
        hist.append(copy.deepcopy(pol))


run(C, go)
