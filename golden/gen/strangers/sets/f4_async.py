"""A decoupled asynchronous trainer: behaviour (engine, stale, bfloat16), proximal and current log-probs; token-mean over the global batch; DDP (each rank's loss is times the world size). Dumps log-probs of all three, weights, token_loss, dlogp, loss; few scalars."""

import torch
from world_f import *

D = dict(
    world=2,
    n=4,
    rows=32,
    T=30,
    lr=0.012,
    rollouts=3,
    minis=2,
    micros=2,
    lo=0.2,
    hi=0.2,
    is_="truncate",
    low=None,
    high=2.0,
    scale="group_std",
    lag=1,
    temp=1.0,
    beta=0.0,
    autocast=False,
    holes=False,
    kind="ppo",
    seed=41,
)
H = dict(
    h_tis_2rank=dict(),
    h_icepop_holes=dict(is_="zero_outside", low=0.5, high=2.0, holes=True, scale="none", world=1, hi=0.28, micros=3, rows=48, seed=42, autocast=True),
    h_tis_kl_lag2=dict(lag=2, rollouts=3, minis=2, beta=0.03, seed=43, micros=4, lo=0.1, hi=0.1, high=1.5, n=8),
    h_cispo_icepop_2rank=dict(kind="cispo", is_="zero_outside", low=0.5, high=5.0, hi=3.0, seed=44, lr=0.02, temp=0.9),
)
B = dict(
    prox_is_behav=("h_tis_2rank", "the ratio is new / behaviour and the weight is still multiplied on top: correction applied twice"),
    no_weight=("h_tis_2rank", "the engine weight is computed and logged but never multiplied"),
    weight_grad=("h_tis_2rank", "weight is made of the new log-probs with gradient (exp(new − behaviour)) rather than of the proximal ones"),
    weight_clip_low=("h_tis_2rank", "truncation from below: weights under 1 are raised to 1 (clamp(min=1, max=2))"),
    local_tokens=("h_tis_2rank", "each rank divides by its own tokens"),
    no_world=("h_tis_2rank", "loss not multiplied by the world size though DDP averages"),
    prox_after_first=("h_tis_2rank", "proximal log-probs are recomputed before each mini-batch with the current weights: ratio 1 throughout"),
    group_split=("h_tis_2rank", "advantages are normalised on each rank over the rows that it got after a shuffle, in blocks of n: groups mix prompts"),
    ice_shift=("h_icepop_holes", "IcePop's weight is of the next token (rolled by one column)"),
    ice_one=("h_icepop_holes", "tokens outside the band keep weight 1 rather than 0"),
    ice_log=("h_icepop_holes", "band is applied to the log-weight, 0.5 ≤ log w ≤ 2: nearly everything is dropped"),
    tool_in_denominator=("h_icepop_holes", "the global token count includes tool tokens"),
    micro_mean=("h_icepop_holes", "every micro-batch takes its own token mean and is divided by the number of micro-batches"),
    kl_weighted=("h_tis_kl_lag2", "KL term is multiplied by the weight (declared outside)"),
    kl_behav=("h_tis_kl_lag2", "KL is taken between the new policy and the behaviour policy, not the reference"),
    adv_sign_stale=("h_tis_kl_lag2", "rewards of the newest rollout are joined to the stale rollout's rows"),
    seq_weight=("h_tis_kl_lag2", "weight is one per response (exp of the sum), declared per token"),
    cispo_nodetach=("h_cispo_icepop_2rank", "capped ratio is not detached: gradient flows through ratio and log-prob"),
    cispo_ratio_only=("h_cispo_icepop_2rank", "log-prob left out: loss is −ratio·A with the capped ratio"),
    temp_engine=("h_cispo_icepop_2rank", "proximal log-probs are of raw logits, the engine's and the new ones of logits / 0.9"),
)


def run(c, s, bug):
    s = D | s
    g = torch.Generator().manual_seed(s["seed"])
    torch.manual_seed(s["seed"])
    model = LM()
    ref = copy_of(model)
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"], weight_decay=0.0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.03)
    W, N, T, n, temp = s["world"], s["rows"], s["T"], s["n"], s["temp"]
    step = 0
    hist = [copy_of(model, torch.bfloat16)] * (s["lag"] + 1)
    prev = None
    for ro in range(s["rollouts"]):
        hist.append(copy_of(model, torch.bfloat16))
        eng = hist[-1 - s["lag"]]
        pid, pam = prompts(g, N // n, 8)
        pid, pam = pid.repeat_interleave(n, 0), pam.repeat_interleave(n, 0)
        r = sample(eng, pid, pam, T, g, temp, s["holes"])
        m = r["mask"]
        sc = score(r)
        used = sc
        if bug == "adv_sign_stale" and prev is not None:
            used = prev
        prev = sc
        with torch.no_grad():
            prox = logps(model, r["input_ids"], r["attention_mask"], T, 1.0 if bug == "temp_engine" else temp, s["autocast"])[0]
            rl = logps(ref, r["input_ids"], r["attention_mask"], T, temp, s["autocast"])[0]

        def norm(x):
            x = x.view(-1, n)
            a = x - x.mean(1, keepdim=True)
            return (a / (x.std(1, keepdim=True) + 1e-6) if s["scale"] == "group_std" else a).reshape(-1)

        data = dict(
            input_ids=r["input_ids"],
            attention_mask=r["attention_mask"],
            response_ids=r["response_ids"],
            mask=m,
            att=r["att"],
            prox=prox,
            ref=rl,
            gen=r["gen"],
            adv=norm(used),
            sc=sc,
            gid=torch.arange(N) // n + 100 * ro,
            sid=torch.arange(N) + 1000 * ro,
        )
        pm = torch.randperm(N, generator=g)
        data = {k: x[pm] for k, x in data.items()}
        ranks = [{k: x[w * N // W : (w + 1) * N // W] for k, x in data.items()} for w in range(W)]
        if bug == "group_split":
            for d in ranks:
                d["adv"] = norm(d["sc"])
        R = N // W
        mb = R // s["minis"]
        ub = mb // s["micros"]
        for k in range(s["minis"]):
            step += 1
            opt.zero_grad()
            sh = [{q: x[k * mb : (k + 1) * mb] for q, x in d.items()} for d in ranks]
            tot = sum(d["att" if bug == "tool_in_denominator" else "mask"].sum() for d in sh)
            if bug == "prox_after_first":
                for d in sh:
                    with torch.no_grad():
                        d["prox"] = logps(model, d["input_ids"], d["attention_mask"], T, temp, s["autocast"])[0]
            for w, d in enumerate(sh):
                for j in range(s["micros"]):
                    x = {q: y[j * ub : (j + 1) * ub] for q, y in d.items()}
                    mm, A = x["mask"], x["adv"][:, None]
                    lp = logps(model, x["input_ids"], x["attention_mask"], T, temp, s["autocast"])[0]
                    lw = (x["prox"] - x["gen"]) * mm
                    if bug == "weight_grad":
                        lw = (lp - x["gen"]) * mm
                    if bug == "seq_weight":
                        lw = lw.sum(1, keepdim=True).expand_as(lp)
                    wt = lw.exp()
                    if bug == "ice_shift":
                        wt = torch.roll(wt, -1, 1)
                    if s["is_"] == "truncate":
                        wt = wt.clamp(min=1.0, max=s["high"]) if bug == "weight_clip_low" else wt.clamp(max=s["high"])
                    else:
                        bad = (lw < s["low"]) | (lw > s["high"]) if bug == "ice_log" else (wt < s["low"]) | (wt > s["high"])
                        wt = torch.where(bad, torch.ones_like(wt) if bug == "ice_one" else torch.zeros_like(wt), wt)
                    rho = (lp - (x["gen"] if bug == "prox_is_behav" else x["prox"])).exp()
                    if s["kind"] == "ppo":
                        tl = -torch.min(rho * A, rho.clamp(1 - s["lo"], 1 + s["hi"]) * A)
                    else:
                        cr = rho.clamp(max=s["hi"])
                        tl = -cr * A if bug == "cispo_ratio_only" else -(cr if bug == "cispo_nodetach" else cr.detach()) * A * lp
                    if bug != "no_weight":
                        tl = tl * wt
                    kl = None
                    if s["beta"]:
                        dd = (x["gen"] if bug == "kl_behav" else x["ref"]) - lp
                        kl = dd.exp() - dd - 1
                        tl = tl + s["beta"] * kl * (wt if bug == "kl_weighted" else 1)
                    if bug == "local_tokens":
                        loss = (tl * mm).sum() / d["mask"].sum()
                    elif bug == "micro_mean":
                        loss = (tl * mm).sum() / mm.sum() / s["micros"]
                    else:
                        loss = (tl * mm).sum() / tot * (1 if bug == "no_world" else W)
                    (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                    (loss / W).backward()
                    o = {
                        "eos_token_id": EOS,
                        "adv.kind": "group",
                        "adv.center": "mean",
                        "adv.scale": s["scale"],
                        "adv.ddof": 1,
                        "adv.eps": 1e-6,
                        "loss.kind": s["kind"],
                        "clip.high": s["hi"],
                        "kl.beta": s["beta"],
                        "logp.temperature": temp,
                        "agg.kind": "token",
                        "agg.denominator": "global",
                        "ratio.level": "token",
                        "ratio.old": "stored",
                        "tis.level": "token",
                        "tis.rule": "truncate_upper" if s["is_"] == "truncate" else "zero_outside",
                        "tis.gate": "ratio",
                        "tis.low": s["low"],
                        "tis.high": s["high"],
                        "tis.normalize": False,
                        "tis.applies_to_kl": False,
                        "max_staleness": s["lag"],
                        "async_rollout": True,
                        "num_mini_batches": s["minis"],
                    }
                    if s["kind"] == "ppo":
                        o["clip.low"] = s["lo"]
                    else:
                        o["clip.high_is_absolute"] = True
                    if s["beta"]:
                        o |= {
                            "kl.kind": "k3",
                            "kl.place": "loss",
                            "kl.grad": "naive",
                            "kl.clamp_in": None,
                            "kl.clamp_out": None,
                            "kl.under_is_weight": "outside",
                        }
                    t = dict(
                        response_mask=mm.bool(),
                        response_ids=x["response_ids"],
                        logp_new=lp,
                        logp_old=x["prox"],
                        logp_gen=x["gen"],
                        logp_ref=x["ref"] if s["beta"] else None,
                        is_weights=wt,
                        advantages=x["adv"],
                        scores=x["sc"],
                        group_id=x["gid"],
                        sample_id=x["sid"],
                        token_loss=tl,
                        dlogp=dl,
                        loss=loss,
                        kl=kl,
                    )
                    c.write(
                        f"s{step}_r{w}_m{j}",
                        t,
                        dict(
                            framework="asyncrl",
                            algorithm="grpo",
                            step=step,
                            rank=w,
                            world_size=W,
                            micro_batch=j,
                            micro_batches=s["micros"],
                            options=o,
                            scalars=dict(loss=loss.item()),
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=True,
                        ),
                    )
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
    return []


if __name__ == "__main__":
    main("f4_async", H, B, run)
