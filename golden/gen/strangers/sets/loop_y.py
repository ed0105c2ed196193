"""A loop for language models as people write it themselves: one function for advantages, one for the loss, one for the step. Used by y5 and y6."""
from world_y import *


def kl_of(kind, d):                       # d = lp - ref
    return {"k1": d, "k2": 0.5 * d * d, "k3": torch.exp(-d) - 1 + d, "abs": d.abs()}[kind]


def whiten_(x, m, ddof=0, eps=1e-8, place="inside_sqrt"):
    v = x[m]
    mu, var = v.mean(), v.var(unbiased=bool(ddof))
    return torch.where(m, (x - mu) / (torch.sqrt(var + eps) if place == "inside_sqrt" else var.sqrt() + eps), torch.zeros_like(x))


def gae_(r, v, m, gamma, lam):
    """holes are carried over: what was behind the next token of the policy's own"""
    A, last, nxt = torch.zeros_like(r), torch.zeros(len(r), dtype=r.dtype), torch.zeros(len(r), dtype=r.dtype)
    for t in reversed(range(r.shape[1])):
        a = r[:, t] + gamma * nxt - v[:, t] + gamma * lam * last
        last, nxt = torch.where(m[:, t], a, last), torch.where(m[:, t], v[:, t], nxt)
        A[:, t] = torch.where(m[:, t], a, torch.zeros_like(a))
    return A


def group_adv(s, n, o):
    g = s.view(-1, n)
    if o["center"] == "loo": a = g - (g.sum(1, keepdim=True) - g) / (n - 1)
    elif o["center"] == "mean": a = g - g.mean(1, keepdim=True)
    else: a = g
    if o["scale"] == "group_std": a = a / (g.std(1, keepdim=True, unbiased=bool(o["ddof"])) + o["eps"])
    if o["scale"] == "batch_std": a = a / (s.std(unbiased=bool(o["ddof"])) + o["eps"])
    if o["scale"] == "loo_std":                                   # NeMo-RL: of the others, n/(n-1) with n of the others; not divided where it is 0
        k = n - 1
        mu = (g.sum(1, keepdim=True) - g) / k
        sq = ((g * g).sum(1, keepdim=True) - g * g) / k
        sd = ((sq - mu * mu).clamp(min=0) * (k / (k - 1))).sqrt()
        a = torch.where(sd > 0, a / (sd + o["eps"]), a)
    return a.reshape(-1)


def token_loss(o, lp, old, A, m, ref):
    d = lp - old
    if o["loss"] == "reinforce": return -A * lp
    if o["level"] == "seq":
        s = (d * m).sum(1, keepdim=True) / m.sum(1, keepdim=True).clamp(min=1)
        d = lp - lp.detach() + s.detach() if o["seq_token"] else s.expand_as(d)
    r = d.exp()
    if o["loss"] == "cispo": return -r.clamp(1 - o["low"] if o["low"] is not None else None, o["high"] if o["abs_high"] else 1 + o["high"]).detach() * A * lp
    un = -A * r
    if o["low"] is None and o["high"] is None: return un
    L = torch.maximum(un, -A * r.clamp(1 - o["low"], 1 + o["high"]))
    if o["dual"]: L = torch.where(A < 0, torch.minimum(L, -A * o["dual"]), L)
    return L


def aggregate(o, x, m, total, rows):
    m = m.to(x.dtype)
    k = o["agg"]
    if k.endswith("global") and o["reduce"] == "mean": total, rows = total / o["ranks"], rows / o["ranks"]     # DDP takes the mean of the ranks
    if k == "token_micro": return (x * m).sum() / m.sum().clamp(min=1)
    if k == "token_global": return (x * m).sum() / total
    if k == "token_sum": return (x * m).sum()
    if k == "constant": return (x * m).sum() / o["constant"]
    if k == "seq_mean": return ((x * m).sum(1) / m.sum(1).clamp(min=1)).mean()
    if k == "seq_mean_global": return ((x * m).sum(1) / m.sum(1).clamp(min=1)).sum() / rows
    if k == "seq_sum": return (x * m).sum(1).mean()
    if k == "seq_const": return (x * m).sum() / (len(x) * o["constant"])
    raise KeyError(k)


BASE = dict(n=4, groups=4, T=18, temperature=1.0, reward="binary", rollouts=3, epochs=1, minis=1, micro=1, lr=8e-3, eos_bias=1.2, noise=0.0, bf16_engine=True, turns=False, world=1, ragged=False, old="trainer", adv="group", center="mean", scale="group_std",
    ddof=1, eps=1e-6, gamma=1.0, lam=0.95, whiten=None, loss="ppo", level="token", seq_token=False, low=0.2, high=0.2, dual=None, abs_high=False, agg="token_micro", constant=None, div_ga=True, beta=0.0, kl="k3", kl_place="none", entropy=0.0, critic=False,
    vclip=0.2, vcoef=0.5, vfactor=0.5, joint=False, tis=None, dtype=torch.float32, min_rows=1, ref_noise=0.05, clip=None, min_new=1, stale=0, shifted=False, reduce="mean")


def run(cases, name, program, seed, over, little, text, meta, options, declared=(), keep=None):
    """little: few tensors; keep: these tensors alone"""
    rng, npr, gen = random.Random(seed), np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    o = {**BASE, **over}
    o["ranks"] = o["world"]
    dt = o["dtype"]
    model, val = policy(seed, o["eos_bias"]), critic(seed)
    ref = clone(model, o["ref_noise"], seed)
    opt = torch.optim.AdamW([*model.parameters(), *val.parameters()], lr=o["lr"], weight_decay=0.0)
    c = Case(cases, name, program, text, declared=declared, meta=meta, options=dict(options) | dict(eos_token_id=EOS), many=not little)
    engines = []
    N, n, W, step = o["groups"] * o["n"], o["n"], o["world"], 1
    for rollout in range(o["rollouts"]):
        P1 = prompts_of(rng, o["groups"]); P = P1.repeat_interleave(n, 0)
        engines = engines + [clone(model, o["noise"], seed + rollout, bf16=o["bf16_engine"])]
        resp, full, lpg, ended = sample(engines[max(0, len(engines) - 1 - o["stale"])], P, o["T"], o["temperature"], gen, o["min_new"])
        mask = full.clone()
        if o["turns"]:
            for i in range(N):
                k, a = int(full[i].sum()), 2
                while a + 4 < k:
                    w = rng.randrange(1, 4); mask[i, a:min(a + w, k - 1)] = False; a += w + rng.randrange(2, 5)
        scores = rule_reward(o["reward"], P, resp, full, ended, o["T"])
        with torch.no_grad():
            lp0, rl = (score(x, P, resp, o["temperature"])[0].to(dt) for x in (model, ref)); lpg = lpg.to(dt)
            v = values_of(val, P, resp).to(dt)
        old = lpg if o["old"] == "engine" else lp0
        m = mask
        last = torch.zeros_like(full); last[torch.arange(N), (m.long() * torch.arange(1, m.shape[1] + 1)).argmax(1)] = True
        tr = torch.where(last, (scores.clamp(*o["clip"]) if o["clip"] else scores)[:, None], torch.zeros(1)).to(torch.float32)
        klt = None
        if o["kl_place"] == "token_reward": klt = kl_of(o["kl"], old - rl); tr = tr - o["beta"] * klt.float() * m
        base, ret, extra = None, None, {}
        if o["adv"] == "group": A = group_adv(tr.sum(1) if o["kl_place"] == "token_reward" else scores, n, o)
        elif o["adv"] == "gae": A = gae_(tr, v.float(), m, o["gamma"], o["lam"]); ret = A + v.float()
        elif o["adv"] == "rtg":
            A = gae_(tr, torch.zeros_like(tr), m, o["gamma"], 1.0); ret = A.clone()
        elif o["adv"] == "batch": A = scores - scores.mean()
        elif o["adv"] == "remax":
            with torch.no_grad(): g, gm, _, ge = sample(clone(model), P1, o["T"], 0.02, gen)
            base = rule_reward(o["reward"], P1, g, gm, ge, o["T"]).repeat_interleave(n); A = scores - base
        elif o["adv"] == "opo":
            L = m.sum(1).float().view(-1, n); g = scores.view(-1, n); A = (g - (L * g).sum(1, keepdim=True) / L.sum(1, keepdim=True)).reshape(-1)
        if o["whiten"] and o["whiten"][0] == "global": A = whiten_(A, m, *o["whiten"][1:])
        A = A.to(dt)
        w = None
        if o["tis"]:
            lvl, rule, lo, hi = o["tis"]
            dlt = (lp0 - lpg).float() * m
            w = (dlt if lvl == "token" else dlt.sum(1, keepdim=True) if lvl == "seq_sum" else dlt.sum(1, keepdim=True) / m.sum(1, keepdim=True)).exp()
            w = w.clamp(max=hi) if rule == "truncate" else torch.where((w >= (lo or 0)) & (w <= hi), w, torch.zeros_like(w))
            w = w.expand_as(lp0).contiguous().to(dt) if lvl == "token" else w.to(dt)
        gid, sid = torch.arange(N) // n + 1000 * rollout, torch.arange(N) + 1000 * rollout
        for epoch in range(o["epochs"]):
            order = shuffled(npr, N) if o["minis"] > 1 or rng.random() < 0.5 else torch.arange(N)
            for mini in order.chunk(o["minis"]):
                per = [x for x in mini.chunk(W)] if not o["ragged"] else list(mini.split([len(mini) * 5 // 8, len(mini) - len(mini) * 5 // 8]))
                total, rows = float(m[mini].sum()), float(len(mini))
                for r in range(len(per)):
                    parts = per[r].chunk(o["micro"]) if not isinstance(o["micro"], list) else per[r].split([*o["micro"], len(per[r]) - sum(o["micro"])])
                    for mi, ix in enumerate(parts):
                        lp, ent, raw = score(model, P[ix], resp[ix], o["temperature"])
                        if dt != torch.float32: lp = lp.to(dt); ent = ent.to(dt)
                        mk, a = m[ix], A[ix]
                        if o["whiten"] and o["whiten"][0] == "minibatch": a = whiten_(a, mk, *o["whiten"][1:])
                        a2 = a if a.dim() == 2 else a[:, None]
                        L = token_loss(o, lp, old[ix], a2, mk.to(dt), rl[ix])
                        if w is not None: L = L * w[ix]
                        ga = len(parts) if o["div_ga"] else 1
                        pg = aggregate(o, L, mk, total, rows)
                        loss, kll, kd = pg, None, None
                        if o["kl_place"] == "loss": kd = kl_of(o["kl"], lp - rl[ix]); kll = aggregate(o, kd, mk, total, rows); loss = loss + o["beta"] * kll
                        en = aggregate(o, ent, mk, total, rows)
                        if o["entropy"]: loss = loss - o["entropy"] * en
                        vn = vl = None
                        if o["critic"]:
                            vn = values_of(val, P[ix], resp[ix]).to(dt)
                            R = ret[ix].to(dt)
                            e2 = (vn - R) ** 2
                            if o["vclip"]: e2 = torch.maximum(e2, (v[ix] + (vn - v[ix]).clamp(-o["vclip"], o["vclip"]) - R) ** 2)
                            vl = o["vfactor"] * aggregate(o, e2, mk, total, rows)
                            if o["joint"]: loss = loss + o["vcoef"] * vl
                            else: (vl / ga / (W if o["reduce"] == "mean" else 1)).backward(retain_graph=True)
                        loss = loss / ga
                        (loss / (W if o["reduce"] == "mean" else 1)).backward(retain_graph=True)
                        few = dict(response_mask=mk, logp_new=lp, logp_old=old[ix], advantages=a, scores=scores[ix], loss=loss)
                        if o["kl_place"] != "none": few["logp_ref"] = rl[ix]
                        if o["kl_place"] == "token_reward": few["token_rewards"] = tr[ix]
                        if o["old"] == "engine" or o["tis"]: few["logp_gen"] = lpg[ix]
                        if o["adv"] == "group" or o["adv"] == "opo": few["group_id"] = gid[ix]
                        if base is not None: few["reward_baselines"] = base[ix]
                        if o["old"] == "engine": few["logp_old"] = lp0[ix] if o.get("both") else lpg[ix]
                        scal = None
                        t = few
                        if not little:
                            g = grads(loss, a=lp, **({"v": vn} if vn is not None and o["joint"] else {}))
                            t = few | dict(token_loss=L, dlogp=g["a"], entropy=ent, response_ids=resp[ix], group_id=gid[ix], sample_id=sid[ix], logp_gen=lpg[ix], is_weights=None if w is None else w[ix], pg_loss=pg / ga, kl=kd if kd is not None else (klt[ix] if klt is not None else None),
                                           kl_loss=None if kll is None else kll / ga, entropy_loss=en / ga if o["entropy"] else None)
                            if o["critic"]: t |= dict(values=v[ix], values_new=vn, returns=ret[ix], value_loss=vl / ga, token_rewards=tr[ix], dvalues=g["v"] if "v" in g else grads(vl / ga, v=vn)["v"])
                            if o["adv"] == "rtg": t |= dict(returns=ret[ix], token_rewards=tr[ix])
                            with torch.no_grad():
                                rr = (lp - old[ix]).exp().float()
                                scal = dict(entropy=float((ent * mk).sum() / mk.sum().clamp(min=1))) if W == 1 and not o["ragged"] else None
                        if o["shifted"]:          # [B, S-1]: entry s is of ids[s+1]; the prompt's entries are there, outside the mask
                            ids = torch.cat([P[ix], resp[ix]], 1)
                            t = {k: (F.pad(x, (P.shape[1] - 1, 0)) if torch.is_tensor(x) and x.dim() == 2 and x.shape == mk.shape and k != "response_ids" else x) for k, x in t.items() if k != "response_ids"} | dict(input_ids=ids)
                        if keep: t = {k: t[k] for k in keep if k in t}
                        c.dump(step, t, mi, len(parts), r, len(per), scal, dict(num_items_in_batch=int(total)) if "global" in o["agg"] else None, scalars_scope="micro_batch", **(dict(align="shifted") if o["shifted"] else {}), **o.get("more_meta", {}))
                nn.utils.clip_grad_norm_([*model.parameters(), *val.parameters()], 1.0)
                opt.step(); opt.zero_grad(); step += 1
    return c


def described(o):
    """the options of plumbline that such a configuration is, as its writer would put them into the dump"""
    o = {**BASE, **o}
    d = {"logp.temperature": o["temperature"], "optim.epochs": o["epochs"], "num_mini_batches": o["minis"]}
    if o["adv"] == "group": d |= {"adv.kind": "group", "adv.center": o["center"], "adv.scale": o["scale"], "num_generations": o["n"]} | ({"adv.ddof": o["ddof"], "adv.eps": o["eps"]} if o["scale"] != "none" else {}) | ({"adv.zero_std": "skip"} if o["scale"] == "loo_std" else {})
    if o["adv"] == "gae": d |= {"adv.kind": "gae", "gae.gamma": o["gamma"], "gae.lambda": o["lam"], "gae.hole": "carry", "gae.value_mask": "response", "score.index": "last_response", "returns.before_whiten": True}
    if o["adv"] == "rtg": d |= {"adv.kind": "rfpp", "rfpp.mode": "return_to_go", "gae.gamma": o["gamma"], "gae.hole": "carry", "score.index": "last_response"}
    if o["adv"] == "batch": d |= {"adv.kind": "batch_baseline", "adv.center": "mean", "adv.scale": "none"}
    if o["adv"] in ("remax", "opo"): d |= {"adv.kind": o["adv"]}
    if o["whiten"]: d |= {"whiten.scope": o["whiten"][0], "whiten.mask": "response", "whiten.ddof": o["whiten"][1], "whiten.eps": o["whiten"][2], "whiten.eps_place": o["whiten"][3], "whiten.shift_mean": "true", "whiten.remask": True}
    elif o["adv"] in ("gae", "rtg"): d |= {"whiten.scope": "none"}
    d |= {"loss.kind": o["loss"], "ratio.level": "seq_mean" if o["level"] == "seq" else "token", "ratio.old": "engine" if o["old"] == "engine" else "stored"}
    if o["level"] == "seq": d |= {"ratio.grad": "token" if o["seq_token"] else "row"}
    if o["loss"] != "reinforce":
        d |= {"clip.low": "none" if o["low"] is None else o["low"], "clip.high": "none" if o["high"] is None else o["high"], "clip.dual": o["dual"] or "none"}
        if o["loss"] == "cispo": d["clip.high_is_absolute"] = o["abs_high"]
    a = {"token_micro": ("token", "micro"), "token_global": ("token", "global"), "token_sum": ("token_sum", None), "constant": ("token", "constant"), "seq_mean": ("seq_mean_token_mean", "micro"), "seq_mean_global": ("seq_mean_token_mean", "global"),
         "seq_sum": ("seq_mean_token_sum", "micro"), "seq_const": ("seq_sum_const", "micro")}[o["agg"]]
    d |= {"agg.kind": a[0]} | ({"agg.denominator": a[1]} if a[1] else {}) | ({"loss_denominator": o["constant"]} if o["constant"] else {}) | {"agg.div_ga": bool(o["div_ga"])} | ({"agg.div_batch": True} if o["agg"] == "seq_const" else {})
    d |= {"kl.place": o["kl_place"], "kl.beta": o["beta"]} | ({"kl.kind": o["kl"]} if o["kl_place"] != "none" else {}) | ({"kl.grad": "naive"} if o["kl_place"] == "loss" else {}) | ({"kl.clamp_in": "none", "kl.clamp_out": "none"} if o["kl_place"] != "none" else {})
    d |= {"entropy.coef": o["entropy"]}
    if o["critic"]: d |= {"value.clip": o["vclip"] or "none", "value.factor": o["vfactor"], "value.mask": "response"} | ({"value.coef": o["vcoef"]} if o["joint"] else {})
    if o["tis"]:
        d |= {"tis.level": {"token": "token", "seq_sum": "seq_sum", "seq_geo": "seq_geo"}[o["tis"][0]], "tis.rule": {"truncate": "truncate_upper", "mask": "zero_outside"}[o["tis"][1]], "tis.high": o["tis"][3], "tis.gate": "ratio"} | ({"tis.low": o["tis"][2]} if o["tis"][2] else {})
    else: d |= {"tis.level": "none"}
    if o["clip"]: d |= {"reward.clip": "before_baseline", "reward.clip_range": list(o["clip"])}
    return d
