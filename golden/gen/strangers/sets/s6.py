"""own loops in the manner of slime / AReaL / prime-rl / NeMo-RL, every option declared by plumbline's names. Even seeds full, odd lazy; packed rows in the last four."""

import random
from world_s import *

KINDS = [
    "areal-decoupled",
    "icepop",
    "loo-global",
    "seqtis",
    "primerl-engine",
    "drgrpo-const",
    "cispo-async",
    "gspo",
    "seqmean-k3",
    "geomask",
    "packed-segid",
    "packed-cu",
    "packed-decoupled",
    "packed-const",
]


def draw(i):
    r = random.Random(8800 + i)
    return dict(
        seed=i,
        kind=KINDS[i],
        ranks=r.choice([1, 2]),
        ga=r.choice([1, 2]),
        mini=r.choice([1, 2]),
        G=r.choice([4, 8]),
        T=r.choice([16, 30]),
        center=r.choice(["mean", "loo"]),
        scale=r.choice(["none", "group_std"]),
        lr=r.choice([4e-3, 8e-3]),
    )


CASES = {f"h_{i:02d}_{KINDS[i]}_r{draw(i)['ranks']}ga{draw(i)['ga']}": draw(i) for i in range(len(KINDS))}


def run(out, case):
    c = CASES[case]
    k = c["kind"]
    o = Out(out, "s6", case)
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(5 + c["seed"])
    W, G, GA = c["ranks"], c["G"], c["ga"]
    m = LM()
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    packed = k.startswith("packed")
    asy = k in ("areal-decoupled", "cispo-async", "packed-decoupled", "primerl-engine")
    rows = 32
    scale = "none" if c["center"] == "loo" else c["scale"]
    P = {
        "adv.kind": "group",
        "adv.center": c["center"],
        "adv.scale": scale,
        "adv.ddof": 1,
        "adv.eps": 1e-6,
        "adv.zero_std": "divide_eps",
        "loss.kind": "ppo",
        "clip.low": 0.2,
        "clip.high": 0.28,
        "ratio.level": "token",
        "ratio.old": "stored",
        "agg.kind": "token",
        "agg.denominator": "global",
        "kl.beta": 0,
        "kl.place": "none",
        "tis.level": "none",
        "logp.temperature": 1,
        "entropy.coef": 0,
        "num_mini_batches": c["mini"],
        "eos_token_id": EOS,
    }
    if asy:
        P["async_rollout"] = True
    if "decoupled" in k:
        P.update({"tis.level": "token", "tis.rule": "truncate_upper", "tis.gate": "ratio", "tis.high": 1.1, "tis.normalize": False})
    if k == "icepop":
        P.update({"tis.level": "token", "tis.rule": "zero_outside", "tis.gate": "ratio", "tis.low": 0.98, "tis.high": 1.02, "tis.normalize": False})
    if k == "seqtis":
        P.update({"tis.level": "seq_sum", "tis.rule": "truncate_upper", "tis.gate": "ratio", "tis.high": 1.01, "tis.normalize": False})
    if k == "geomask":
        P.update({"tis.level": "seq_geo", "tis.rule": "zero_outside", "tis.gate": "ratio", "tis.low": 0.9995, "tis.high": 1.0005, "tis.normalize": False})
    if k == "primerl-engine":
        P.update({"ratio.old": "engine"})
    if k in ("drgrpo-const", "packed-const"):
        P.update({"agg.kind": "token", "agg.denominator": "constant", "loss_denominator": 500})
    if k == "cispo-async":
        P.update({"loss.kind": "cispo", "clip.low": 1.0, "clip.high": 0.3, "clip.high_is_absolute": False})
    if k == "gspo":
        P.update(
            {
                "ratio.level": "seq_mean",
                "ratio.grad": "row",
                "ratio.len_eps": 0,
                "clip.low": 0.003,
                "clip.high": 0.004,
                "agg.kind": "seq_mean_token_mean",
                "agg.empty_rows": "counted",
                "agg.len_eps": 0,
            }
        )
    if k == "seqmean-k3":
        P.update(
            {
                "agg.kind": "seq_mean_token_mean",
                "agg.empty_rows": "counted",
                "agg.len_eps": 0,
                "kl.place": "loss",
                "kl.beta": 0.05,
                "kl.kind": "k3",
                "kl.grad": "naive",
                "kl.agg": "same",
            }
        )
    engs = [copy.deepcopy(m)]
    step = 0
    for roll in range(4 if c["mini"] == 1 else 3):
        src = engs[-2] if asy and len(engs) > 1 else m
        eng = engine_of(src)
        pr, pm = mkprompts(rows // G, G, g)
        R, M, L = sample(m, eng, pr, pm, c["T"], 1.0, g)
        T = R.shape[1]
        ids = torch.cat([pr, R], 1)
        L = L * M
        with torch.no_grad():
            old = logps(m, ids, T)[0]
            rl = logps(ref, ids, T)[0]
        sc = ((R % 3 == 0) * M).sum(1) / M.sum(1).float() + 0.2 * (R[:, 0] % 3)
        s_ = sc.view(-1, G)
        adv = (s_ - s_.mean(1, keepdim=True)) if c["center"] == "mean" else s_ - (s_.sum(1, keepdim=True) - s_) / (G - 1)
        if scale == "group_std":
            adv = adv / (s_.std(1, keepdim=True) + 1e-6)
        adv = adv.view(-1, 1).expand(-1, T) * M
        gid = torch.arange(rows) // G + 1000 * roll
        order = torch.randperm(rows, generator=g)
        per = rows // W
        mb = per // c["mini"]
        for q in range(c["mini"]):
            step += 1
            opt.zero_grad()
            Is = [order[r * per + q * mb : r * per + (q + 1) * mb] for r in range(W)]
            tot = sum(int(M[i].sum()) for i in Is)
            nr = sum(len(i) for i in Is)
            for r in range(W):
                for j, ix in enumerate(Is[r].split(mb // GA)):
                    lp, ent, _ = logps(m, ids[ix], T)
                    mk, A, od, ge = M[ix].float(), adv[ix], old[ix], L[ix]
                    den = ge if k == "primerl-engine" else od
                    d = lp - den
                    n = mk.sum(1, keepdim=True)
                    if k == "gspo":
                        d = (d * mk).sum(1, keepdim=True) / n
                    rat = d.exp().expand_as(lp)
                    w = None
                    x = (od - ge) * mk
                    tl = (
                        -torch.minimum(rat * A, rat.clamp(1 - P["clip.low"], 1 + P["clip.high"]) * A)
                        if P["loss.kind"] == "ppo"
                        else -rat.clamp(0, 1.3).detach() * A * lp
                    )
                    if "decoupled" in k:
                        w = x.exp().clamp(max=1.1)
                    if k == "icepop":
                        w = x.exp()
                        w = torch.where((w >= 0.98) & (w <= 1.02), w, torch.zeros_like(w))
                    if k == "seqtis":
                        w = x.sum(1, keepdim=True).exp().clamp(max=1.01).expand_as(lp)
                    if k == "geomask":
                        w = (x.sum(1, keepdim=True) / n).exp()
                        w = torch.where((w >= 0.9995) & (w <= 1.0005), w, torch.zeros_like(w)).expand_as(lp)
                    if w is not None:
                        tl = tl * w
                    full = tl
                    kl = None
                    if k == "seqmean-k3":
                        e = rl[ix] - lp
                        kl = e.exp() - 1 - e
                        full = tl + 0.05 * kl
                    if P["agg.kind"] == "token":
                        loss = (full * mk).sum() / (500 if P["agg.denominator"] == "constant" else tot / W)
                    else:
                        loss = ((full * mk).sum(1) / n[:, 0]).sum() / nr * W
                    (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                    (loss / W).backward()
                    t = dict(
                        response_mask=M[ix].bool(),
                        logp_new=lp,
                        logp_old=od,
                        logp_gen=ge,
                        advantages=A,
                        dlogp=dl,
                        token_loss=tl,
                        is_weights=w,
                        response_ids=R[ix],
                        kl=kl,
                        entropy=ent,
                        logp_ref=rl[ix] if kl is not None else None,
                    )
                    if c["seed"] % 2:
                        [t.pop(z) for z in ("dlogp", "token_loss", "is_weights", "kl", "entropy")]
                    meta = dict(
                        schema=2,
                        framework="own",
                        algorithm="grpo",
                        run="s6-" + case,
                        step=step,
                        rank=r,
                        world_size=W,
                        micro_batch=j,
                        micro_batches=GA,
                        options=dict(P, num_items_in_batch=tot),
                        scalars=dict(loss=loss.item()),
                        scalars_scope="micro_batch",
                        token_loss_includes_kl=False,
                    )
                    if packed:
                        b = len(ix) // 2
                        wd = max(int(M[ix[2 * z]].sum() + M[ix[2 * z + 1]].sum()) for z in range(b))
                        seg = torch.zeros(b, wd, dtype=torch.long)
                        cu = torch.zeros(b, 3, dtype=torch.long)
                        new = {kk: torch.zeros(b, wd, dtype=vv.dtype) for kk, vv in t.items() if vv is not None}
                        for z in range(b):
                            a1, a2 = int(M[ix[2 * z]].sum()), int(M[ix[2 * z + 1]].sum())
                            seg[z, :a1] = 1
                            seg[z, a1 : a1 + a2] = 2
                            cu[z] = torch.tensor([0, a1, a1 + a2])
                            for kk in new:
                                new[kk][z, :a1] = t[kk][2 * z, :a1].detach()
                                new[kk][z, a1 : a1 + a2] = t[kk][2 * z + 1, :a2].detach()
                        t = new
                        t["cu_seqlens" if k == "packed-cu" else "segment_ids"] = cu if k == "packed-cu" else seg
                    else:
                        t.update(scores=sc[ix], group_id=gid[ix], sample_id=ix + 1000 * roll)
                    t["loss"] = loss
                    o.write(t, meta)
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            opt.step()
        engs.append(copy.deepcopy(m))


if __name__ == "__main__":
    main("s6", CASES, run)
