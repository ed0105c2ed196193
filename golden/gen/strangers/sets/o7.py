"""h7: TRL's RLOOTrainer 1.16, open-instruct's GRPO and plain group methods of papers, written out. Dump: RLOO whole, open-instruct without dlogp in one case."""

from world_o import *

C = dict(
    h_rloo_kl_clipreward=dict(kind="rloo", beta=0.05, clip=[-0.5, 0.5], iters=2),
    h_rloo_norm_nan_ga=dict(kind="rloo", beta=0.0, norm=True, nan=True, ga=2, iters=2),
    h_rloo_group2_binary=dict(kind="rloo", beta=0.02, G=2, binary=True, iters=3),
    h_oi_standard_tis=dict(kind="oi", scale="group_std", cap=1.05, beta=0.05, bf16=True),
    h_oi_centered_async=dict(kind="oi", scale="none", cap=0, beta=0.0, lag=1, lazy=True),
    h_oi_const=dict(kind="oi", scale="none", cap=0, beta=0.02, const=200.0, ga=2),
    h_oi_masktruncated=dict(kind="oi", scale="group_std", cap=2.0, beta=0.01, rej=True),
)


def go(out, case, c):
    seed = sum(map(ord, case))
    gen = torch.Generator().manual_seed(seed)
    pol = LM(seed)
    ref = LM(seed + 1) if c["kind"] == "rloo" and c["beta"] else copy.deepcopy(pol)
    opt = torch.optim.AdamW(pol.parameters(), lr=0.01 if c["kind"] == "rloo" else 0.02)
    G = c.get("G", 4)
    n = 32 // G
    GA = c.get("ga", 1)
    rl = c["kind"] == "rloo"
    fw = dict(framework="trl", version="1.16.0", algorithm="rloo") if rl else dict(framework="open-instruct", version="e6c3044a", algorithm="grpo")
    d = Dump(out, "o7", case, describes="right", world_size=1, **fw)
    step = 0
    hist = [copy.deepcopy(pol)]
    for it in range(2 + c.get("lag", 0)):
        eng = copy.deepcopy(hist[max(0, len(hist) - 1 - c.get("lag", 0))])
        if c.get("bf16"):
            eng = eng.to(torch.bfloat16)
        P, PA = prompts(n, G, gen)
        r, att, lg, fin = sample(eng, P, PA, 16, gen, 1.0, eos_bias=0.6 if rl else 0)
        mask = att.float()
        N, T = r.shape
        sc = score(r, att, gen)
        gid = torch.arange(N) // G + it * 90
        if c.get("binary"):
            sc = (sc > 0).float()
        if c.get("nan"):
            sc[5] = math.nan
            sc[8:12] = math.nan
            sc[12:15] = math.nan
        with torch.no_grad():
            old = lp_of(pol, P, PA, r, att)
            rf = lp_of(ref, P, PA, r, att)
        if rl:
            rw = sc.clamp(*c["clip"]) if c.get("clip") else sc.clone()
            kl = old - rf
            if c["beta"]:
                rw = rw - c["beta"] * (kl * mask).sum(-1)
            g = rw.view(-1, G)
            cnt = (~g.isnan()).sum(1, keepdim=True)
            adv = rw - ((torch.nansum(g, 1, keepdim=True) - g) / (cnt - 1)).view(-1)
            if c.get("norm"):
                ok = adv[torch.isfinite(adv)]
                adv = (adv - ok.mean()) / (ok.std() + 1e-4)
            adv = torch.nan_to_num(adv, nan=0.0)
        else:
            g = sc.view(-1, G)
            adv = g - g.mean(1, keepdim=True)
            if c["scale"] == "group_std":
                adv = adv / (g.std(1, correction=0, keepdim=True) + 1e-8)
            adv = adv.view(-1)
            if c.get("rej"):
                mask = mask * fin[:, None]
        SPG = 2 * GA
        for e in range(c.get("iters", 2)):
            pm = torch.randperm(N, generator=gen).view(2, GA, -1)
            for mi in range(2):
                step += 1
                opt.zero_grad()
                tok = mask[pm[mi].reshape(-1)].sum()
                for b in range(GA):
                    ix = pm[mi, b]
                    m = mask[ix]
                    lp, ent, _ = lp_of(pol, P[ix], PA[ix], r[ix], att[ix], 1.0, True)
                    A = adv[ix]
                    t = {}
                    sca = {}
                    if rl:
                        rho = ((lp * m).sum(1) - (old[ix] * m).sum(1)).exp()
                        pl = -torch.min(rho * A, rho.clamp(0.8, 1.2) * A)
                        loss = pl.mean() / GA
                        t = dict(entropy=ent, rewards_per_func=sc[ix][:, None], token_loss=pl[:, None].expand_as(lp))
                        if c["beta"]:
                            t |= dict(logp_ref=rf[ix], kl=kl[ix])
                        lo, hi = ((rho < 0.8) & (A < 0)).float(), ((rho > 1.2) & (A > 0)).float()
                        sca = {
                            "entropy": ((ent * m).sum() / m.sum()).item(),
                            "clip_ratio/low_mean": lo.mean().item(),
                            "clip_ratio/high_mean": hi.mean().item(),
                            "clip_ratio/region_mean": (lo + hi).mean().item(),
                        }
                        op = dict(
                            beta=c["beta"],
                            epsilon=0.2,
                            epsilon_high=None,
                            num_generations=G,
                            normalize_advantages=bool(c.get("norm")),
                            reward_clip_range=c.get("clip"),
                            num_iterations=c["iters"],
                            steps_per_generation=SPG,
                            gradient_accumulation_steps=GA,
                            temperature=1.0,
                            max_completion_length=16,
                            eos_token_id=EOS,
                            mask_truncated_completions=False,
                            reward_weights=[1.0],
                        )
                    else:
                        x = lp - old[ix]
                        rho = x.exp()
                        pl = torch.max(-A[:, None] * rho, -A[:, None] * rho.clamp(0.8, 1.272))
                        op = {"adv.scale": c["scale"], "kl.beta": c["beta"], "num_mini_batches": 2, "eos_token_id": EOS}
                        if c["cap"]:
                            w = (old - lg)[ix].clamp(-10, 10).exp().clamp(max=c["cap"])
                            pl = pl * w
                            t |= dict(is_weights=w, logp_gen=lg[ix])
                            op |= {"tis.level": "token", "tis.rule": "truncate_upper", "tis.high": c["cap"], "tis.gate": "ratio"}
                        else:
                            op |= {"tis.level": "none"}
                        if c.get("lag"):
                            t["logp_gen"] = lg[ix]
                            op["async_rollout"] = True
                        full = pl
                        if c["beta"]:
                            z = (lp - rf[ix]).clamp(-40, 40)
                            k = torch.expm1(-z) + z
                            full = pl + c["beta"] * k
                            t |= dict(logp_ref=rf[ix], kl=k)
                        loss = (full * m).sum() / (c.get("const") or tok)
                        if c.get("const"):
                            op |= {"agg.denominator": "constant", "loss_denominator": c["const"]}
                        else:
                            op |= {"agg.denominator": "global" if GA > 1 else "micro"}
                        t["token_loss"] = pl
                    t |= dict(
                        response_mask=m.bool(), logp_new=lp, logp_old=old[ix], advantages=A, scores=sc[ix], group_id=gid[ix], response_ids=r[ix], loss=loss
                    )
                    if not c.get("lazy"):
                        t["dlogp"] = d_of(loss, lp)
                    loss.backward(retain_graph=True)
                    kw = dict(scalars=sca, scalars_scope="micro_batch") if sca else {}
                    if not rl:
                        kw["token_loss_includes_kl"] = False
                    d.write(step, t, 0, b, micro_batches=GA, options=op, **kw)
                opt.step()
        hist.append(copy.deepcopy(pol))


run(C, go)
