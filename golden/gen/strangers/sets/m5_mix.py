"""Nobody's: a researcher's single file. GRPO-, PPO- and RLOO-like updates with a bf16 engine, engine correction, KL in loss or reward, entropy bonus, length penalty. Little declared:
algorithm, the EOS, how many steps a pass has, temperature, coefficients at hand. Dump: most tensors; the rloo case is lazy but has logits."""

from world_m import *


def whiten(x, m, eps=1e-8):
    mu = (x * m).sum() / m.sum()
    sd = (((x - mu) ** 2 * m).sum() / m.sum()).sqrt()
    return (x - mu) / (sd + eps) * m


def run(c, bug, folder, case):
    K, B, T, tau = c["k"], c["rows"], c["T"], c["tau"]
    net = LM(value=True)
    base = copy.deepcopy(net)
    with torch.no_grad():
        for p in base.parameters():
            p.add_(0.03 * torch.randn_like(p))
        net.v.weight.mul_(3)
    opt = torch.optim.Adam(net.parameters(), lr=c["lr"])
    step = 0
    Pn = 5
    snap = bf16_copy(net)

    def through(m, P, y, temp=tau):
        h = m.hid(torch.cat([P, y], 1))[:, Pn - 1 : -1]
        raw = m.head(h)
        ls = F.log_softmax(raw / temp, -1)
        return ls.gather(-1, y[..., None])[..., 0], -(ls.exp() * ls).sum(-1), m.v(h)[..., 0], raw

    for era in range(3 if c["kind"] != "ppo" else 2):
        P = prompts_of(B // K, Pn).repeat_interleave(K, 0)
        eng = bf16_copy(net) if not (bug == "engine-lags" and era) else snap
        y, m, glp, fin_, _ = generate(eng, P, T, tau)
        m = m.float()
        n = m.sum(1)
        if bug == "pad-in-mask":
            m = torch.cat([torch.ones(B, 1), m[:, :-1]], 1)
        a, b, _ = rewards_of(y, m)
        score = a + b - c["len_pen"] * n / T
        with torch.no_grad():
            old, _, v0, _ = through(net, P, y)
            rlp = through(base, P, y)[0]
            if bug == "ref-is-policy":
                rlp = through(net, P, y)[0] * 0.9 + rlp * 0.1
        gid = torch.arange(B) // K + 100 * era
        tr = ret = None
        S = score
        if bug == "length-penalty-after-baseline":
            S = a + b
        if c["kind"] == "grpo":
            g = S.view(-1, K)
            A = (g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)
            A = A.flatten()
            if bug == "length-penalty-after-baseline":
                A = A - c["len_pen"] * n / T
            if bug == "std-plus-mean":
                A = ((g - g.mean(1, keepdim=True)) / (g.mean(1, keepdim=True).abs() + 1e-6)).flatten()
            if bug == "sum-over-self":
                A = ((g - (g.sum(1, keepdim=True) - g) / K) / (g.std(1, keepdim=True) + 1e-6)).flatten()
            if bug == "neighbour-group":
                A = ((g - g.mean(1, keepdim=True).roll(1, 0)) / (g.std(1, keepdim=True) + 1e-6)).flatten()
            adv = A[:, None] * m
        elif c["kind"] == "rloo":
            g = S.view(-1, K)
            A = (g - (g.sum(1, keepdim=True) - g) / (K - 1)).flatten()
            if bug == "loo-divides-by-k":
                A = (g - (g.sum(1, keepdim=True) - g) / K).flatten()
            if bug == "best-of-baseline":
                A = (g - g.sort(1).values[:, :1]).flatten()
            adv = A[:, None] * m
        else:
            d = (old - rlp) * m
            if bug == "kl-reward-squared":
                d = d**2 * 4
            tr = -c["beta"] * d
            if bug == "kl-twice":
                tr = 2 * tr
            end = n.long() - 1
            tr[torch.arange(B), end] += S
            V = v0 * m
            adv = torch.zeros(B, T)
            acc = torch.zeros(B)
            for t in reversed(range(T)):
                nxt = V[:, t + 1] if t + 1 < T else torch.zeros(B)
                if bug == "next-value-current":
                    nxt = V[:, t]
                delta = tr[:, t] + c["gamma"] * nxt - V[:, t]
                acc = (delta + c["gamma"] * c["lam"] * acc) * m[:, t]
                if bug == "lam-without-gamma":
                    acc = (delta + c["lam"] * (acc - 0) * 1.0) * m[:, t] if t % 2 == 0 else acc
                adv[:, t] = acc
            ret = (adv + V) * m
            if bug == "returns-minus":
                ret = (adv - V) * m
            adv = whiten(adv, m if bug != "whiten-all-cells" else torch.ones_like(m)) * m
        iw = None
        if c["corr"]:
            iw = (old - glp).exp().clamp(max=c["corr"]) * m
            if bug == "iw-double":
                iw = iw**2
        for ep in range(c["epochs"]):
            order = torch.randperm(B)
            for s in range(c["steps"]):
                step += 1
                idx = order.view(c["steps"], -1)[s]
                parts = idx.chunk(c["acc"])
                opt.zero_grad()
                toks = m[idx].sum()
                for j, i in enumerate(parts):
                    lp, ent, vv, raw = through(net, P[i], y[i], tau if bug != "temperature-update" else 1.0)
                    w = m[i]
                    aa = adv[i]
                    r = (lp - old[i]).exp()
                    if bug == "ratio-of-sums":
                        r = ((lp - old[i]) * w).cumsum(1).exp()
                    lo, hi = 1 - c["lo"], 1 + c["hi"]
                    pl = -torch.minimum(r * aa, r.clamp(lo, hi) * aa)
                    if bug == "clip-both":
                        pl = -r.clamp(lo, hi) * aa
                    if bug == "log-clip":
                        pl = -torch.minimum(r * aa, (lp - old[i]).clamp(-c["hi"] / 2, c["lo"] / 2).exp() * aa)
                    if c["kind"] == "rloo" and bug == "no-ratio-half":
                        pl = pl * 0.5
                    if iw is not None:
                        pl = pl * iw[i]
                    kl = None
                    kloss = None
                    div = lambda x: (x * w).sum() / toks
                    if c["agg"] == "rows":
                        div = lambda x: ((x * w).sum(1) / w.sum(1)).sum() / len(idx)
                    if c["agg"] == "const":
                        div = lambda x: (x * w).sum() / (len(idx) * T)
                    d1 = div
                    if bug == "mean-with-padding":
                        d1 = lambda x: (x * w).mean() / c["acc"]
                    if bug == "sum-of-micro-means":
                        d1 = lambda x: (x * w).sum() / w.sum()
                    if bug == "rows-then-cells":
                        d1 = lambda x: (x * w).sum() / w.sum() * len(i) / len(idx)
                    pg = d1(pl)
                    loss = pg
                    if c["kind"] != "ppo" and c["beta"]:
                        q = rlp[i] - lp
                        kl = q.exp() - 1 - q
                        if bug == "kl-k3-minus":
                            kl = q.exp() + q - 1
                        kloss = d1(kl)
                        loss = loss + c["beta"] * kloss
                        if bug == "kl-of-old":
                            kl = (rlp[i] - old[i]).exp() - 1 - (rlp[i] - old[i])
                            kloss = d1(kl)
                            loss = pg + c["beta"] * kloss
                    el = d1(ent)
                    if c["ent"]:
                        loss = loss - c["ent"] * el
                    if bug == "entropy-minimised":
                        loss = loss + 2 * c["ent"] * el
                    vl = None
                    if c["kind"] == "ppo":
                        vl = 0.5 * div((vv - ret[i]) ** 2)
                        if bug == "value-target-score":
                            vl = 0.5 * div((vv - S[i][:, None]) ** 2)
                        loss = loss + 0.5 * vl
                    gr = torch.autograd.grad(loss, [lp, vv] if vl is not None else [lp], retain_graph=True)
                    loss.backward()
                    t = dict(
                        response_mask=w.bool(),
                        response_ids=y[i],
                        logp_new=lp,
                        logp_old=old[i],
                        logp_gen=glp[i],
                        logp_ref=rlp[i] if c["beta"] else None,
                        advantages=aa,
                        scores=score[i],
                        group_id=gid[i] if c["kind"] != "ppo" else None,
                        sample_id=i + 1000 * era,
                        loss=loss,
                        pg_loss=pg,
                        token_loss=pl,
                        dlogp=gr[0],
                        entropy=ent,
                        entropy_loss=el,
                        kl=kl,
                        kl_loss=kloss,
                        is_weights=iw[i] if iw is not None else None,
                        token_rewards=tr[i] if tr is not None else None,
                        returns=ret[i] if ret is not None else None,
                        values=(v0 * m)[i] if ret is not None else None,
                        values_new=vv if ret is not None else None,
                        value_loss=vl,
                        dvalues=gr[1] if vl is not None else None,
                        input_ids=torch.cat([P[i], y[i]], 1),
                        attention_mask=torch.cat([(P[i] != PAD).float(), w], 1).bool(),
                    )
                    if c["lazy"]:
                        t = {
                            q: t[q]
                            for q in (
                                "response_mask",
                                "response_ids",
                                "logp_new",
                                "logp_old",
                                "advantages",
                                "scores",
                                "group_id",
                                "sample_id",
                                "loss",
                                "entropy",
                            )
                        }
                        t["logits"] = raw.to(torch.float32)
                    o = {"eos_token_id": EOS, "num_mini_batches": c["steps"], "logp.temperature": tau}
                    write(
                        folder,
                        f"{step:03d}_{j}",
                        {q: x for q, x in t.items() if x is not None},
                        dict(
                            schema=2,
                            framework="mylab",
                            algorithm="ppo" if c["kind"] == "ppo" else c["kind"],
                            run=case,
                            step=step,
                            micro_batch=j,
                            micro_batches=len(parts),
                            options=o,
                            token_loss_includes_kl=False,
                        ),
                    )
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                if step == 1:
                    snap = bf16_copy(net)


NONE = ["--profile", "none"]
H = {
    "h_grpo_engine_klloss_lenpen": dict(
        kind="grpo",
        k=4,
        rows=32,
        T=26,
        tau=1.0,
        lr=8e-3,
        len_pen=0.5,
        corr=1.05,
        beta=0.05,
        ent=0.01,
        epochs=2,
        steps=2,
        acc=2,
        lo=0.2,
        hi=0.28,
        agg="tokens",
        lazy=False,
        seed=51,
        declared=NONE,
    ),
    "h_ppo_klreward_rows": dict(
        kind="ppo",
        k=1,
        rows=32,
        T=24,
        tau=1.0,
        lr=1e-2,
        len_pen=0.0,
        corr=0,
        beta=0.1,
        gamma=0.99,
        lam=0.95,
        ent=0.005,
        epochs=3,
        steps=2,
        acc=1,
        lo=0.2,
        hi=0.2,
        agg="rows",
        lazy=False,
        seed=52,
        declared=NONE,
    ),
    "h_rloo_const_lazy_logits": dict(
        kind="rloo",
        k=4,
        rows=16,
        T=20,
        tau=0.8,
        lr=1.2e-2,
        len_pen=0.3,
        corr=0,
        beta=0.0,
        ent=0.0,
        epochs=2,
        steps=2,
        acc=1,
        lo=0.15,
        hi=0.15,
        agg="const",
        lazy=True,
        seed=53,
        declared=NONE,
    ),
    "h_rloo_tokens_lazy_logits": dict(
        kind="rloo",
        k=4,
        rows=16,
        T=22,
        tau=0.8,
        lr=1.2e-2,
        len_pen=0.3,
        corr=0,
        beta=0.0,
        ent=0.0,
        epochs=2,
        steps=2,
        acc=1,
        lo=0.15,
        hi=0.15,
        agg="tokens",
        lazy=True,
        seed=54,
        declared=NONE,
    ),
}


def b(of, describes, legal="", **k):
    return dict(of=of, describes=describes, legal=legal, **k)


g, p, _, r = H
B = {
    "engine-lags": b(g, "the engine keeps the weights of step 1 for all later rollouts"),
    "length-penalty-after-baseline": b(g, "the length penalty is subtracted from the advantage after normalisation instead of from the reward"),
    "neighbour-group": b(g, "the baseline is the mean of the neighbouring prompt's group"),
    "std-plus-mean": b(g, "centred rewards are divided by the group's mean instead of its standard deviation", "MaxRL divides by the group's mean"),
    "iw-double": b(g, "the engine weight is applied twice (squared)"),
    "sum-of-micro-means": b(
        g,
        "every micro-batch takes its own token mean and they are summed without dividing by the accumulation",
        "a loop whose engine (DeepSpeed) divides by the accumulation steps computes this",
    ),
    "kl-k3-minus": b(g, "k3 with a sign error: exp(q) + q - 1"),
    "kl-of-old": b(g, "the KL term is that of the old policy: a constant without gradient"),
    "entropy-minimised": b(g, "the entropy term has the wrong sign: entropy is minimised"),
    "next-value-current": b(p, "GAE bootstraps from the value of the same state instead of the next"),
    "kl-twice": b(p, "the KL penalty enters the token rewards twice", "a doubled coefficient computes this; nothing declares it"),
    "returns-minus": b(p, "returns are advantage minus value"),
    "whiten-all-cells": b(p, "advantages are whitened over padding, too"),
    "value-target-score": b(
        p, "the value loss regresses on the score at every token, the returns are unused", "Monte Carlo targets with gamma 1 and no KL are legal elsewhere"
    ),
    "ratio-of-sums": b(p, "the ratio of a token is the product of all ratios up to it"),
    "rows-then-cells": b(p, "the policy term is a token mean where the value term is a mean over rows", "token mean is everybody's option"),
    "loo-divides-by-k": b(r, "leave-one-out divides the others' sum by k instead of k - 1"),
    "best-of-baseline": b(r, "the baseline is the group's worst reward: advantages are never negative"),
    "clip-both": b(r, "the clipped ratio is used without the minimum"),
    "temperature-update": b(r, "the update scores at temperature 1 while rollout and old log-probs are at 0.8"),
    "pad-in-mask": b(r, "the mask is shifted by one: it takes a padding token after EOS in"),
}
main("m5_mix", {**H, **{"b_" + k: dict(v, bug=k) for k, v in B.items()}}, run)
