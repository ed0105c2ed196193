"""A loop of nobody's on a language model, in options of plumbline's names: what it declares is what it computes."""
from world_w import *


def lm_loop(cases, prog, name, note, o, seed, little=False, declared=(), framework="my-loop", version="0.1", algorithm="grpo", V=28, n_prompts=6, n=4, Tm=16, temp=1.0, rollouts=2, epochs=1, minis=1, micros=2, world=1, lr=1e-2, engine="same",
            noise=0.0, rkind="share", holes=False, eos_bias=0.5, ragged=False, bf16=False, stale=0, keep=None, drop=(), kind="gru", extra=None, sgd=False, shuffle=True, whole_rows=False, no_options=False, micro_of=None):
    """o: plumbline options. Everything not named is off."""
    D = {"adv.kind": "group", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-6, "loss.kind": "ppo", "clip.low": 0.2, "clip.high": 0.2, "clip.dual": None, "clip.delta": None, "agg.kind": "token", "agg.denominator": "global",
         "kl.beta": 0.0, "kl.kind": "k3", "kl.place": "none", "tis.level": "none", "entropy.coef": 0.0, "ratio.old": "stored", "ratio.level": "token"}
    q = {**D, **o}
    case = Case(cases, prog, name, note, declared, little)
    g = torch.Generator().manual_seed(seed); torch.manual_seed(seed); rs = random.Random(seed)
    gae = q["adv.kind"] == "gae"
    model = LM(V=V, kind=kind, value=gae, eos_bias=eos_bias); ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(0.03 * torch.randn(p.shape, generator=g))
    opt = torch.optim.SGD(model.parameters(), lr=lr) if sgd else torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    if bf16: model.to(torch.bfloat16); ref.to(torch.bfloat16)
    cdt = torch.bfloat16 if bf16 else torch.float32
    old_engines = [copy.deepcopy(model)]

    def sc(m, p, r):
        P = p.shape[1]; lg, v = m(torch.cat([p, r], 1)); lg = lg[:, P - 1:-1]
        ls = (lg / temp).log_softmax(-1)  # in the model's own type
        return ls.gather(-1, r[..., None]).squeeze(-1), -(ls.exp() * ls).sum(-1), None if v is None else v[:, P - 1:-1].float(), lg

    step = 0
    for ro in range(rollouts):
        p, gid = prompts_for(n_prompts, n, 3, V, g); N = len(gid)
        force = hole = None
        if holes:
            hole = torch.zeros(N, Tm, dtype=torch.bool)
            for b in range(N):
                for _ in range(rs.randrange(0, 3)): s = rs.randrange(1, Tm - 4); hole[b, s:s + rs.randrange(1, 4)] = True
            def force(t, lg): lg = lg.clone(); lg[hole[:, t]] = -1e9; lg[hole[:, t], 8 + t % 3] = 0.0; return lg
        eng = engine_of(old_engines[max(0, len(old_engines) - 1 - stale)], engine)
        resp, mask, lpg = generate(eng, p, Tm, g, temp, noise, force)
        if holes: mask = mask & ~hole; lpg = lpg.masked_fill(hole, 0.0)
        m = mask.to(torch.float32)
        r = reward(rkind, resp, mask, g)
        with torch.no_grad():
            old, _, val, _ = sc(model, p, resp); rf = sc(ref, p, resp)[0]
        old, rf = old.to(cdt), rf.to(cdt)
        ratio_old = lpg if q["ratio.old"] == "engine" else old
        # ---- rewards and advantages
        tr = ret = None
        if gae:
            d = (old - rf).float(); klt = {"k1": d, "k2": 0.5 * d * d, "k3": torch.exp(-d) - 1 + d}[q["kl.kind"]]
            tr = (-q["kl.beta"] * klt * m) if q["kl.place"] == "token_reward" else torch.zeros(N, Tm)
            last = (torch.arange(Tm) * m).argmax(1); tr[torch.arange(N), last] += r
            adv = torch.zeros(N, Tm); lastA = torch.zeros(N); nextV = torch.zeros(N)
            for t in reversed(range(Tm)):  # masked cells are carried over
                A = tr[:, t] + q["gae.gamma"] * nextV - val[:, t] + q["gae.gamma"] * q["gae.lambda"] * lastA
                k = m[:, t]; lastA = A * k + lastA * (1 - k); nextV = val[:, t] * k + nextV * (1 - k); adv[:, t] = lastA * k
            ret = (adv + val) * m
            if q.get("whiten.scope", "none") == "global":
                nn_ = m.sum(); mu = (adv * m).sum() / nn_; var = ((adv - mu) ** 2 * m).sum() / (nn_ - q["whiten.ddof"])
                adv = (adv - mu) / (var.sqrt() + q["whiten.eps"]) * m
        elif q["adv.kind"] == "batch_baseline":
            adv = r - r.mean()
            if q["adv.scale"] == "batch_std": adv = adv / (r.std(correction=q["adv.ddof"]) + q["adv.eps"])
        elif q["adv.kind"] == "raw": adv = r.clone()
        else:
            R = r.view(-1, n)
            if q["adv.center"] == "mean": A = R - R.mean(1, keepdim=True)
            elif q["adv.center"] == "loo": A = R - (R.sum(1, keepdim=True) - R) / (n - 1)
            else: A = R
            if q["adv.scale"] == "group_std": A = A / (R.std(1, correction=q["adv.ddof"], keepdim=True) + q["adv.eps"])
            if q["adv.scale"] == "batch_std": A = A / (R.std(correction=q["adv.ddof"]) + q["adv.eps"])
            adv = A.reshape(-1)
        isw = None
        if q["tis.level"] != "none":
            w = (old.float() - lpg) * m
            if q["tis.level"] == "seq_sum": w = w.sum(1, keepdim=True).expand(-1, Tm)
            if q["tis.level"] == "seq_geo": w = (w.sum(1, keepdim=True) / m.sum(1, keepdim=True)).expand(-1, Tm)
            w = w.exp(); lo, hi = q.get("tis.low") or 0.0, q["tis.high"]
            if q["tis.rule"] == "truncate_upper": w = w.clamp(max=hi)
            if q["tis.rule"] == "clamp": w = w.clamp(lo, hi)
            if q["tis.rule"] == "zero_outside": w = torch.where((w >= lo) & (w <= hi), w, 0.0)
            isw = w * m
        # ---- updates
        if ragged:  # ranks of different sizes
            cut = sorted(rs.sample(range(minis * 2, N - minis * 2), world - 1)); rank_rows = [list(range(a, b)) for a, b in zip([0] + cut, cut + [N])]
        else: rank_rows = [list(range(k * N // world, (k + 1) * N // world)) for k in range(world)]
        for ep in range(epochs):
            for k in range(minis):
                if k == 0: orders = [rs.sample(x, len(x)) if shuffle else list(x) for x in rank_rows]
                step += 1
                ix = [x[k * len(x) // minis:(k + 1) * len(x) // minis] for x in orders]
                tot_tok, tot_rows = m[sum(ix, [])].sum(), sum(len(x) for x in ix)
                for rk in range(world):
                    mb = micro_of(len(ix[rk])) if micro_of else [c.tolist() for c in torch.arange(len(ix[rk])).chunk(micros)]
                    for j, sel in enumerate(mb):
                        i = torch.tensor([ix[rk][s] for s in sel])
                        lp, ent, v, lg = sc(model, p[i], resp[i]); mm = m[i].to(cdt)
                        A = adv[i] if adv.dim() == 2 else adv[i][:, None]
                        A = A.to(cdt); ro_lp = ratio_old[i].to(cdt)
                        lr_ = lp - ro_lp
                        if q["ratio.level"] == "seq_mean": lr_ = ((lr_ * mm).sum(1) / mm.sum(1).clamp(min=1))[:, None].expand_as(lp)
                        rho = lr_.exp()
                        if q["loss.kind"] == "ppo":
                            c = rho if q["clip.low"] is None and q["clip.high"] is None else rho.clamp(0.0 if q["clip.low"] is None else 1 - q["clip.low"], None if q["clip.high"] is None else 1 + q["clip.high"])
                            rr = rho if q["clip.delta"] is None else rho.clamp(max=q["clip.delta"])
                            tl = torch.max(-A * rr, -A * c)
                            if q["clip.dual"] is not None: tl = torch.where(A < 0, torch.min(tl, -A * q["clip.dual"]), tl)
                        elif q["loss.kind"] == "cispo":
                            lo = 0.0 if q["clip.low"] is None else 1 - q["clip.low"]
                            tl = -rho.clamp(lo, q["clip.high"] if q.get("clip.high_is_absolute") else 1 + q["clip.high"]).detach() * A * lp
                        elif q["loss.kind"] == "reinforce": tl = -A * lp
                        tl = tl.expand_as(lp)
                        if isw is not None: tl = tl * isw[i].to(cdt)
                        kl = None
                        if q["kl.place"] == "loss":
                            d = lp - rf[i]; kl = {"k1": d, "k2": 0.5 * d * d, "k3": torch.exp(-d) - 1 + d}[q["kl.kind"]]
                            inc = tl + q["kl.beta"] * kl
                        else: inc = tl

                        def agg(x):
                            s = (x * mm).sum(1); kd, dn = q["agg.kind"], q["agg.denominator"]
                            rows = {"micro": len(i), "global": tot_rows / world, "rank": len(ix[rk]), "constant": q.get("loss_denominator")}[dn]
                            if kd == "token_sum": return s.sum()
                            if kd == "token": return s.sum() / {"micro": mm.sum(), "global": tot_tok / world, "rank": m[ix[rk]].sum(), "constant": q.get("loss_denominator")}[dn]
                            if kd == "seq_mean_token_mean": return (s / mm.sum(1).clamp(min=1)).sum() / rows
                            if kd == "seq_mean_token_sum": return s.sum() / rows
                            if kd == "seq_sum_const": return s.sum() / (rows * q["loss_denominator"])
                        loss = agg(inc); el = None
                        ga = len(mb) if q.get("agg.div_ga") else 1
                        loss = loss / ga
                        if q["entropy.coef"]: el = agg(ent) / ga; loss = loss - q["entropy.coef"] * el
                        pg = agg(tl) / ga; vl = None; t = {}
                        if gae:
                            vn = v; c = q.get("value.clip")
                            e = (vn - ret[i]) ** 2
                            if c is not None: e = torch.max(e, ((val[i] + (vn - val[i]).clamp(-c, c)) - ret[i]) ** 2)
                            vl = q["value.factor"] * agg(e) / ga
                            loss = loss + q["value.coef"] * vl
                        dl, = grads(loss, lp)
                        if gae: t["dvalues"], = grads(loss, vn); t.update(values=val[i], values_new=vn, returns=ret[i], value_loss=vl, token_rewards=tr[i])
                        (loss / world).backward()
                        t.update(response_ids=resp[i], response_mask=mask[i], logp_new=lp, logp_old=old[i] if q["ratio.old"] != "engine" or seed % 2 else None, logp_gen=lpg[i] if isw is not None or q["ratio.old"] == "engine" else None,
                                 logp_ref=rf[i] if q["kl.place"] != "none" else None, kl=kl, is_weights=None if isw is None else isw[i], entropy=ent, entropy_loss=el, advantages=adv[i], scores=r[i], group_id=(gid + ro * 1000)[i], loss=loss, pg_loss=pg,
                                 token_loss=tl, dlogp=dl, sample_id=i + ro * N)
                        if keep: t = {x: y for x, y in t.items() if x in keep}
                        opts = {x: y for x, y in q.items() if x not in D or x in o or x in ("adv.kind", "loss.kind", "agg.kind", "agg.denominator", "kl.beta", "kl.place", "tis.level", "entropy.coef", "clip.low", "clip.high", "ratio.old", "ratio.level")}
                        for x in [x for x, y in opts.items() if y is None]: opts[x] = "none"
                        opts.update({"num_mini_batches": minis, "eos_token_id": EOS, "logp.temperature": temp, "num_generations": n}); opts.update(extra or {})
                        if no_options: opts = {x: opts[x] for x in no_options if x in opts}
                        with torch.no_grad():
                            kk = mm.sum().float().clamp(min=1); sd = dict(approx_kl=((ro_lp - lp) * mm).float().sum() / kk, entropy=(ent * mm).float().sum() / kk)
                        meta = dict(framework=framework, version=version, algorithm=algorithm, align="response", step=step, rank=rk, world_size=world, micro_batch=j, micro_batches=len(mb), options=opts, token_loss_includes_kl=False)
                        if not bf16 and not keep: meta.update(scalars=fin(sd), scalars_scope="micro_batch")
                        if bf16: meta["compute_dtype"] = "bfloat16"
                        case.put(meta, t, drop)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
        old_engines.append(copy.deepcopy(model))
