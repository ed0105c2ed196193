"""Loops of one's own in the manner of open-instruct, NeMo-RL and slime: own words, few declarations. The hook dumps log-probs, masks, rewards, advantages, losses, in some cases dlogp, kl and token_loss."""

from world_q import *


def table(seed):
    r = random.Random(seed * 11 + 3)
    c = dict(seed=seed + 600)
    st = ["own", "open-instruct", "nemo", "own", "own", "open-instruct", "nemo", "own", "own", "own", "open-instruct", "own", "nemo", "own"][seed % 14]
    c["style"] = st
    c["center"], c["scale"], c["ddof"], c["eps"] = r.choice(
        [("mean", "group_std", 0, 1e-8), ("mean", "group_std", 1, 1e-6), ("mean", "none", 1, 1e-6), ("loo", "none", 1, 1e-6), ("mean", "batch_std", 1, 1e-4)]
    )
    c["kind"] = r.choice(["ppo", "ppo", "ppo", "cispo", "reinforce"])
    c["low"], c["high"], c["dual"] = r.choice([(0.2, 0.28, None), (0.1, 0.1, 3.0), (0.2, 0.2, None), (0.05, 0.3, 1.5)])
    c["agg"] = r.choice(["token", "token", "seq_mean_token_mean", "seq_mean_token_sum", "seq_sum_const", "token_sum"])
    c["den"] = r.choice(["micro", "rank", "global"]) if c["agg"] == "token" else "micro"
    c["beta"] = r.choice([0.0, 0.05, 0.1])
    c["kl"] = r.choice(["k1", "k2", "k3"])
    c["tis"] = r.choice(["none", "token", "seq_geo", "none"])
    c["tr"] = r.choice(["truncate_upper", "zero_outside"])
    c["th"], c["tl"] = r.choice([(2.0, 0.5), (1.02, 0.98)])
    if st == "open-instruct":
        c |= dict(
            center="mean",
            scale=r.choice(["none", "group_std"]),
            ddof=0,
            eps=1e-8,
            kind="ppo",
            dual=None,
            agg="token",
            den=r.choice(["global", "constant"]),
            kl=r.choice(["k3", "k2", "k1"]),
            tr="truncate_upper",
            tis=r.choice(["none", "token"]),
        )
    if st == "nemo":
        c |= dict(
            center="loo",
            scale=r.choice(["loo_std", "none"]),
            ddof=1,
            eps=1e-6,
            kind="ppo",
            agg=r.choice(["token", "seq_mean_token_mean"]),
            den="global",
            beta=0.0,
            tis="none",
        )
    c["ent"] = r.choice([0.0, 0.0, 0.01])
    c["epochs"] = r.choice([1, 2])
    c["mini"] = r.choice([2, 4])
    c["micro"] = r.choice([1, 2])
    c["R"] = r.choice([1, 1, 2])
    c["n"] = r.choice([4, 8])
    c["groups"] = r.choice([4, 8])
    c["T"] = r.choice([18, 40])
    c["temp"] = r.choice([1.0, 0.9])
    c["holes"] = r.choice([0, 0.05])
    c["lr"] = r.choice([3e-3, 8e-3])
    c["lowp"] = r.random() < 0.3
    c["binary"] = r.random() < 0.3
    c["rich"] = r.random() < 0.6
    c["declare"] = r.random() < 0.6
    c["shift"] = r.random() < 0.3
    c["Ad"] = r.choice(["B", "BT"])
    return c


def run(folder, case, c):
    gen = torch.Generator().manual_seed(c["seed"])
    m = LM()
    m.lowp = c["lowp"]
    ref = copy.deepcopy(m)
    R, G, T, st = c["R"], c["n"], c["T"], c["style"]
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.Adam(m.parameters(), lr=c["lr"])
    const = 640.0
    facts = {"num_mini_batches": c["mini"], "eos_token_id": EOS}
    own = {
        "adv.kind": "group",
        "adv.center": c["center"],
        "adv.scale": c["scale"],
        "adv.ddof": c["ddof"],
        "adv.eps": c["eps"],
        "adv.group_by": "uid",
        "loss.kind": c["kind"],
        "clip.low": c["low"],
        "clip.high": c["high"],
        "clip.dual": c["dual"] or "none",
        "agg.kind": c["agg"],
        "agg.denominator": c["den"],
        "kl.beta": c["beta"],
        "kl.kind": c["kl"],
        "kl.grad": "naive",
        "kl.place": "loss" if c["beta"] else "none",
        "entropy.coef": c["ent"],
        "logp.temperature": c["temp"],
        "kl.clamp_in": "none",
        "kl.clamp_out": "none",
        "kl.under_is_weight": "outside",
    }
    own |= {"tis.level": c["tis"]} | (
        {"tis.rule": c["tr"], "tis.high": c["th"]} | ({"tis.low": c["tl"]} if c["tr"] == "zero_outside" else {}) if c["tis"] != "none" else {}
    )
    if c["agg"] == "seq_sum_const":
        own["loss_denominator"] = T
        own["agg.div_batch"] = True
    if c["den"] == "micro":
        own["agg.div_ga"] = c["micro"] > 1 and True
    if st == "open-instruct":
        opts = (
            facts
            | {
                k: own[k]
                for k in (
                    "adv.scale",
                    "clip.low",
                    "clip.high",
                    "kl.beta",
                    "kl.kind",
                    "agg.denominator",
                    "tis.level",
                    "entropy.coef",
                    "logp.temperature",
                    "kl.place",
                )
            }
            | ({k: own[k] for k in ("tis.rule", "tis.high") if k in own})
            | ({"loss_denominator": const} if c["den"] == "constant" else {})
        )
        fw = dict(framework="open-instruct", version="e6c3044", algorithm="grpo")
    elif st == "nemo":
        opts = facts | {
            k: own[k]
            for k in (
                "adv.scale",
                "clip.low",
                "clip.high",
                "clip.dual",
                "kl.beta",
                "agg.kind",
                "agg.denominator",
                "tis.level",
                "entropy.coef",
                "logp.temperature",
                "kl.place",
            )
        }
        fw = dict(framework="nemo-rl", version="7ea279a", algorithm="grpo")
    else:
        opts = (facts | own) if c["declare"] else dict(facts)
        fw = dict(algorithm="grpo")
    step = sid = 0
    for roll in range(2):
        N = c["groups"] * G
        pi, pa = prompts(c["groups"], 5, gen)
        pi, pa = pi.repeat_interleave(G, 0), pa.repeat_interleave(G, 0)
        ids, am, tool, glp = sample(engine_of(m), pi, pa, T, c["temp"], gen, holes=c["holes"])
        mask = am * tool if c["holes"] else am
        full, att = torch.cat([pi, ids], 1), torch.cat([pa, am], 1)
        with torch.no_grad():
            old = lp_ent(m, full, att, T, c["temp"])[0]
            refl = lp_ent(ref, full, att, T, c["temp"])[0]
        sc = rewards(ids, am, gen, 1, c["binary"]).sum(1)
        g = sc.view(-1, G)
        n = G
        if c["center"] == "mean":
            A = g - g.mean(1, keepdim=True)
        else:
            A = g - (g.sum(1, keepdim=True) - g) / (n - 1)
        if c["scale"] == "group_std":
            A = A / (g.std(1, correction=c["ddof"], keepdim=True) + c["eps"])
        elif c["scale"] == "batch_std":
            A = A / (sc.std() + c["eps"])
        elif c["scale"] == "loo_std":
            q = g.double()
            mu = (q.sum(1, keepdim=True) - q) / (n - 1)
            ss = ((q * q).sum(1, keepdim=True) - q * q) / (n - 1)
            sd = ((ss - mu * mu).clamp(min=0) * (n - 1) / (n - 2)).sqrt().float()
            A = torch.where(sd > 0, A / (sd + c["eps"]), A)
        adv = A.reshape(-1)
        d = old - glp
        isw = None
        if c["tis"] != "none":
            w = d.exp() if c["tis"] == "token" else ((d * mask).sum(1) / mask.sum(1).clamp(min=1)).exp()[:, None].expand_as(d)
            isw = w.clamp(max=c["th"]) if c["tr"] == "truncate_upper" else torch.where((w >= c["tl"]) & (w <= c["th"]), w, torch.zeros_like(w))
        X = dict(
            full=full,
            att=att,
            ids=ids,
            mask=mask,
            adv=adv,
            old=old,
            ref=refl,
            gen=glp,
            isw=isw,
            scores=sc,
            group=torch.arange(N) // G + roll * 1000,
            sid=torch.arange(N) + sid,
        )
        sid += N
        pm0 = torch.randperm(N, generator=gen)
        per = N // R
        rk = [{k: None if v is None else v[pm0[r * per : (r + 1) * per]] for k, v in X.items()} for r in range(R)]
        mbz = per // c["mini"]
        sz = mbz // c["micro"]
        for ep in range(c["epochs"]):
            for b in range(c["mini"]):
                mb = [{k: None if v is None else v[b * mbz : (b + 1) * mbz] for k, v in x.items()} for x in rk]
                tok = sum(int(x["mask"].sum()) for x in mb)
                files = []
                for j in range(c["micro"]):
                    for r in range(R):
                        x = {k: None if v is None else v[j * sz : (j + 1) * sz] for k, v in mb[r].items()}
                        k_ = x["mask"].float()
                        lp, ent = lp_ent(m, x["full"], x["att"], T, c["temp"])
                        Ac = x["adv"][:, None]
                        ratio = (lp - x["old"]).exp()
                        if c["kind"] == "ppo":
                            tl = torch.max(-Ac * ratio, -Ac * ratio.clamp(1 - c["low"], 1 + c["high"]))
                            if c["dual"]:
                                tl = torch.where(Ac < 0, torch.min(tl, -Ac * c["dual"]), tl)
                        elif c["kind"] == "cispo":
                            tl = -Ac * ratio.clamp(1 - c["low"], 1 + c["high"]).detach() * lp
                        else:
                            tl = -Ac * lp
                        if x["isw"] is not None:
                            tl = tl * x["isw"]
                        dd = lp - x["ref"]
                        if st == "open-instruct":
                            dd = dd.clamp(-40, 40)
                        kl = dd if c["kl"] == "k1" else 0.5 * dd**2 if c["kl"] == "k2" else (-dd).exp() - 1 + dd

                        def agg(y):
                            s = (y * k_).sum()
                            if c["agg"] == "token":
                                if c["den"] == "micro":
                                    return s / k_.sum() / c["micro"]
                                if c["den"] == "rank":
                                    return s / mb[r]["mask"].sum()
                                if c["den"] == "constant":
                                    return s / const
                                return s / tok * R
                            if c["agg"] == "token_sum":
                                return s
                            if st == "nemo":
                                return ((y * k_).sum(1) / (k_.sum(1) + 1e-8)).sum() / (mbz * R) * R
                            if c["agg"] == "seq_mean_token_mean":
                                return ((y * k_).sum(1) / k_.sum(1).clamp(min=1)).mean() / c["micro"]
                            if c["agg"] == "seq_mean_token_sum":
                                return (y * k_).sum(1).mean() / c["micro"]
                            return (y * k_).sum() / (len(y) * T) / c["micro"]

                        pg = agg(tl)
                        loss = pg
                        if c["beta"]:
                            loss = loss + c["beta"] * agg(kl)
                        if c["ent"]:
                            loss = loss - c["ent"] * agg(ent)
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / R).backward()
                        t = dict(
                            response_mask=x["mask"].bool(),
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            logp_ref=x["ref"] if c["beta"] else None,
                            is_weights=x["isw"],
                            advantages=x["adv"] if c["Ad"] == "B" else Ac * k_,
                            scores=x["scores"],
                            group_id=x["group"],
                            sample_id=x["sid"],
                            loss=loss,
                            entropy=ent if c["ent"] else None,
                        )
                        if c["rich"] or c["declare"]:
                            t |= dict(token_loss=tl, kl=kl if c["beta"] else None, pg_loss=pg, dlogp=dl, response_ids=x["ids"])
                        if c["shift"] and "response_ids" not in t:
                            pass
                        o = opts | ({"num_items_in_batch": tok} if c["den"] == "global" else {})
                        files.append(
                            (
                                f"s{step + 1}_r{r}_m{j}",
                                dict(
                                    schema=2,
                                    run=case,
                                    step=step + 1,
                                    rank=r,
                                    world_size=R,
                                    micro_batch=j,
                                    micro_batches=c["micro"],
                                    options=o,
                                    token_loss_includes_kl=False,
                                    scalars={"loss": loss.item()},
                                    scalars_scope="micro_batch",
                                )
                                | fw,
                                t,
                            )
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                step += 1
                for f in files:
                    dump(folder, *f)


names = {}
for s in range(14):
    c = table(s)
    names[f"h_{s:02d}_{c['style']}_{c['kind']}_{c['agg']}_{'decl' if c['declare'] else 'bare'}"] = c
if __name__ == "__main__":
    main("q6", names, run, lambda c: ["--profile", "none"] if c["style"] == "own" else [])
