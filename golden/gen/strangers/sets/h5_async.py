"""An asynchronous trainer: rollouts wait in a queue, so that the engine's weights are one or two versions late (declared). Decoupled PPO: logp_old are the proximal log-probs, taken when the update begins;
the engine's mismatch is a capped weight. Token mean over the global batch of two ranks (loss x world, gradients averaged). Dump: log-probs, weights, advantages, scores, token_loss, dlogp, loss, a few scalars."""

from world_h import *
from collections import deque


def go(f, c, bug):
    W, N, G, T, P = 2, c["N"], c["G"], c["T"], 4
    pi = LM()
    ref = copy.deepcopy(pi)
    eng = bf(pi)
    lagq = deque()
    inflight = deque()
    step = 0
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(torch.randn_like(p) * 0.03)
    opt = torch.optim.AdamW(pi.parameters(), lr=c["lr"], weight_decay=0.0)
    loc = N // W
    nb = loc // c["mbs"]
    versions = deque([bf(pi)], maxlen=c["lag"] + 1)
    prev = None
    o = {"async_rollout": True, "max_staleness": c["lag"], "num_mini_batches": c["mbs"], "eos_token_id": EOS, "logp.temperature": c["temp"], **c["say"]}
    for it in range(c["its"]):
        while len(inflight) <= c["lag"]:  # rollouts in flight: engine holds what was last handed over
            q = prompts(N // G, P, G)
            r, gen = generate(versions[-1] if bug != "b_never_synced" else eng, q, T, c["temp"])
            inflight.append(dict(q=q, r=r, gen=gen, n=it * 10 + len(inflight)))
        x = inflight.popleft()
        q, r, gen = x["q"], x["r"], x["gen"]
        m = rmask(r)
        if bug == "b_eos_dropped":
            m = m & (r != EOS)
        s = score(q, r, rmask(r))
        gid = torch.arange(N) // G + it * 100
        sc_used = s if bug != "b_late_scores" or prev is None else prev
        prev = s
        g = sc_used.view(-1, G)
        ctr = g.mean(1, keepdim=True)
        if c["adv"] == "std":
            sd = g.std(1, keepdim=True)
            adv = (g - ctr) / (sd + 1e-6)
            if bug == "b_std_batch":
                adv = (g - ctr) / (g.mean(1).std() + 1e-6)
        elif c["adv"] == "loo":
            adv = (g - ctr) * G / (G - 1) if bug != "b_loo_scale" else (g - ctr) * (G - 1) / G
        else:
            adv = g - ctr
        adv = adv.reshape(-1)
        if bug == "b_split_groups":
            h = sc_used.view(2, -1, G // 2) if 0 else sc_used.view(-1, G // 2)
            adv = (h - h.mean(1, keepdim=True)).reshape(-1)
        if bug == "b_pos_only":
            adv = adv.abs()
        if bug == "b_gen_shift":
            gen = gen.roll(1, 1)
        prox = lps(pi, q, r, c["temp"] if bug != "b_prox_temp" else 1.0, False)[0]
        rl = lps(ref, q, r, c["temp"], False)[0]
        if bug == "b_prox_gen":
            prox = gen.clone()
        lw = (prox - gen) * m
        if bug == "b_tis_inverse":
            lw = -lw
        if c["tis"] == "token":
            w = lw.exp().clamp(max=c["cap"])
        elif c["tis"] == "seq":
            w = (lw.sum(1, keepdim=True)).exp().clamp(max=c["cap"]).expand(-1, T)
        else:
            w = lw.exp()
            w = w * ((w >= c["low"]) & (w <= c["cap"]))
        if bug == "b_nocap":
            w = lw.exp()
        if bug == "b_floor":
            w = lw.exp().clamp(min=c["cap"])
        if bug == "b_mask_keeps_bad":
            e = lw.exp()
            w = e * ~((e >= c["low"]) & (e <= c["cap"]))
        if bug == "b_seq_mean":
            w = (lw.mean(1, keepdim=True)).exp().clamp(max=c["cap"]).expand(-1, T)
        if bug == "b_w_norm_pad":
            w = w / w.mean() * 0.5
        order = [torch.arange(N)[k::W] for k in range(W)]
        for ep in range(c["ep"]):
            pm = [o_[torch.randperm(loc)] for o_ in order]
            for b in range(c["mbs"]):
                step += 1
                opt.zero_grad()
                idx = [pm[k][b * nb : (b + 1) * nb] for k in range(W)]
                tok = int(sum(m[i].sum() for i in idx))
                D = []
                for k in range(W):
                    i = idx[k]
                    mi = m[i].float()
                    lp = lps(pi, q[i], r[i], c["temp"])[0]
                    A = adv[i][:, None]
                    old = prox[i]
                    wi = w[i]
                    if bug == "b_rank0_weights":
                        wi = w[idx[0]]
                    den = old
                    if bug == "b_double_is":
                        den = gen[i]
                    x_ = (lp - den).exp()
                    y = x_.clamp(1 - c["lo"], 1 + c["hi"])
                    tl = -torch.min(x_ * A, y * A)
                    if bug == "b_clip_sign":
                        tl = torch.where(A > 0, -torch.max(x_ * A, y * A), tl)
                    if bug == "b_clip_joint":
                        xj = x_ * wi
                        tl = -torch.min(xj * A, xj.clamp(1 - c["lo"], 1 + c["hi"]) * A) / wi.clamp(min=1e-6)
                    if bug == "b_w_grad":
                        wi = (lp - gen[i]).exp().clamp(max=c["cap"])
                    if bug != "b_w_unused":
                        tl = tl * wi
                    kl = None
                    if c["beta"]:
                        d = rl[i] - lp
                        kl = d.exp() - 1 - d
                        if bug == "b_kl_k2":
                            kl = d**2
                        tl2 = tl + c["beta"] * kl if bug != "b_kl_under_w" else tl + c["beta"] * kl * wi
                        if bug == "b_kl_masked_out":
                            tl2 = tl + c["beta"] * kl * (A > 0)
                    else:
                        tl2 = tl
                    loss = (tl2 * mi).sum() / tok * W
                    if bug == "b_local_mean":
                        loss = (tl2 * mi).sum() / mi.sum() * (1 + 0.0)
                    if bug == "b_no_world":
                        loss = (tl2 * mi).sum() / tok / W
                    if bug == "b_rows":
                        loss = ((tl2 * mi).sum(1) / mi.sum(1)).mean()
                    (gr,) = torch.autograd.grad(loss, lp, retain_graph=True)
                    (loss / W).backward()
                    D.append(
                        (
                            step,
                            k,
                            0,
                            dict(
                                logp_new=lp,
                                logp_old=old,
                                logp_gen=gen[i],
                                logp_ref=rl[i] if c["beta"] else None,
                                kl=kl,
                                is_weights=wi,
                                response_mask=m[i],
                                response_ids=r[i],
                                input_ids=torch.cat([q[i], r[i]], 1),
                                scores=s[i],
                                group_id=gid[i],
                                advantages=adv[i],
                                token_loss=tl if c["dump"] else None,
                                dlogp=gr if c["dump"] else None,
                                loss=loss,
                            ),
                            dict(
                                schema=1,
                                framework="async-lab",
                                algorithm="grpo",
                                run=f.split("/")[-1],
                                step=step,
                                rank=k,
                                world_size=W,
                                micro_batch=0,
                                micro_batches=1,
                                options=dict(o, num_items_in_batch=tok),
                                token_loss_includes_kl=False,
                            ),
                        )
                    )
                for d in D:
                    put(f, *d)
                opt.step()
        versions.append(bf(pi))


say = {
    "clip.low": 0.2,
    "clip.high": 0.2,
    "adv.kind": "group",
    "agg.kind": "token",
    "agg.denominator": "global",
    "tis.applies_to_kl": False,
    "loss.kind": "ppo",
    "ratio.old": "stored",
}
base = dict(
    N=32, G=8, T=30, lag=1, mbs=2, ep=1, its=4, lr=5e-3, lo=0.2, hi=0.2, adv="std", tis="token", cap=1.2, low=None, temp=1.0, beta=0.0, dump=True, say=say
)
fl = ["--profile", "none"]
H = dict(
    h_lag1=(
        dict(
            base,
            seed=51,
            say=dict(
                say,
                **{
                    "tis.level": "token",
                    "tis.rule": "truncate_upper",
                    "tis.high": 1.2,
                    "adv.center": "mean",
                    "adv.scale": "group_std",
                    "adv.ddof": 1,
                    "adv.eps": 1e-6,
                    "kl.beta": 0.0,
                },
            ),
        ),
        fl,
        "one version late, token weights truncated at 1.2, decoupled",
    ),
    h_lag2_mask=(
        dict(
            base,
            seed=52,
            lag=2,
            tis="mask",
            low=0.7,
            cap=1.4,
            adv="loo",
            temp=0.9,
            ep=2,
            hi=0.28,
            N=48,
            G=6,
            say=dict(
                say,
                **{
                    "clip.high": 0.28,
                    "tis.level": "token",
                    "tis.rule": "zero_outside",
                    "tis.low": 0.7,
                    "tis.high": 1.4,
                    "adv.center": "loo",
                    "adv.scale": "none",
                    "kl.beta": 0.0,
                },
            ),
        ),
        fl,
        "two versions late, tokens outside .7 to 1.4 masked, leave-one-out, two epochs",
    ),
    h_lag1_seq_kl=(
        dict(
            base,
            seed=53,
            tis="seq",
            cap=2.0,
            adv="mean",
            beta=0.03,
            dump=False,
            mbs=4,
            N=64,
            say=dict(
                say,
                **{
                    "tis.level": "seq_sum",
                    "tis.rule": "truncate_upper",
                    "tis.high": 2.0,
                    "adv.center": "mean",
                    "adv.scale": "none",
                    "kl.beta": 0.03,
                    "kl.kind": "k3",
                    "kl.place": "loss",
                    "kl.under_is_weight": "outside",
                },
            ),
        ),
        fl,
        "one version late, sequence weights, k3 in the loss, lazy dump",
    ),
)
B = dict(
    b_never_synced=("h_lag1", "the engine never gets new weights"),
    b_eos_dropped=("h_lag2_mask", "EOS left out of the mask"),
    b_late_scores=("h_lag1", "rewards of the rollout before: the reward queue is one behind"),
    b_std_batch=("h_lag1", "divided by the std of the groups' means"),
    b_loo_scale=("h_lag2_mask", "leave-one-out factor upside down"),
    b_split_groups=("h_lag1_seq_kl", "groups are halved before the baseline"),
    b_pos_only=("h_lag2_mask", "advantages without sign"),
    b_gen_shift=("h_lag1", "engine log-probs shifted by one token"),
    b_prox_temp=("h_lag2_mask", "proximal log-probs without the temperature"),
    b_tis_inverse=("h_lag1", "weight is engine over trainer"),
    b_nocap=("h_lag1", "the cap is not applied"),
    b_floor=("h_lag1", "clamp(min=cap) in place of max"),
    b_mask_keeps_bad=("h_lag2_mask", "mask inverted: keeps what is outside"),
    b_seq_mean=("h_lag1_seq_kl", "sequence weight from the mean over all columns"),
    b_w_norm_pad=("h_lag1_seq_kl", "weights normalised over padding and halved"),
    b_rank0_weights=("h_lag1", "rank 1 uses rank 0's weights"),
    b_double_is=("h_lag1", "ratio against the engine and the weight too: corrected twice"),
    b_clip_sign=("h_lag2_mask", "max of the surrogates where A > 0"),
    b_clip_joint=("h_lag1", "weight times ratio is what is clipped"),
    b_w_grad=("h_lag1", "weight from the current log-probs with its gradient"),
    b_w_unused=("h_lag2_mask", "weights are computed and not applied"),
    b_kl_k2=("h_lag1_seq_kl", "KL is d squared"),
    b_kl_under_w=("h_lag1_seq_kl", "weights multiply KL, declared outside"),
    b_kl_masked_out=("h_lag1_seq_kl", "KL only where A > 0"),
    b_local_mean=("h_lag1", "mean over the rank's tokens"),
    b_no_world=("h_lag1_seq_kl", "divided by world size where it should be multiplied"),
    b_rows=("h_lag2_mask", "mean of row means where token mean is declared"),
    b_prox_gen=("h_lag1_seq_kl", "proximal log-probs are the engine's: weights 1"),
)
main("h5_async", H, B, go)
