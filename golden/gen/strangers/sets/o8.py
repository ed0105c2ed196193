"""h8: a second set of own loops, plumbline's names: 2-rank DDP mean of token means with GA, clamped advantages, REINFORCE with baseline of the batch, sequences of unequal micro-batches, float16-like logs, dual rollouts of other widths. Dump: lazy (log-probs, mask, advantages, loss, dlogp)."""

from world_o import *

C = dict(
    h_seqmean_ga_unequal=dict(agg="seqmean", K=3, o={"agg.kind": "seq_mean_token_mean", "agg.denominator": "global"}),
    h_tokensum=dict(agg="sum", K=1, o={"agg.kind": "token_sum"}, lr=0.002),
    h_drgrpo_width=dict(agg="const", K=1, o={"agg.kind": "seq_sum_const", "agg.denominator": "micro", "agg.div_batch": True, "loss_denominator": 24}),
    h_batchnorm_adv=dict(adv="batch", K=1, o={"adv.kind": "batch_baseline"}, nodecl=True),
    h_noscores_shapedadv=dict(adv="clamped", K=2, o={}),
    h_kl_early_stop=dict(K=1, o={}, ep=8, stop=0.003),
    h_lr0_warmup=dict(K=1, o={}, lr0=True),
    h_ratio_clampless_gspo=dict(K=1, lvl="seq", o={"ratio.level": "seq_mean", "ratio.grad": "row", "clip.low": 0.01, "clip.high": 0.02}),
    h_kl3_in_loss_ownref=dict(K=2, kl=0.1, o={"kl.kind": "k3", "kl.beta": 0.1, "kl.place": "loss"}),
)


def go(out, case, c):
    seed = sum(map(ord, case))
    gen = torch.Generator().manual_seed(seed)
    pol = LM(seed)
    ref = LM(seed + 7)
    opt = torch.optim.Adam(pol.parameters(), lr=c.get("lr", 0.02))
    K = c["K"]
    step = 0
    G = 6
    n = 6
    d = Dump(out, "o8", case, declared=["--profile", "none"], describes="right", framework="mine", version="2", algorithm="grpo", world_size=1)
    for it in range(2):
        P, PA = prompts(n, G, gen)
        r, att, lg, fin = sample(pol, P, PA, 24 if it else 13, gen, 1.0)
        N, T = r.shape
        sc = score(r, att, gen)
        gid = torch.arange(N) // G + 7 * it
        g = sc.view(-1, G)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).view(-1)
        if c.get("adv") == "batch":
            adv = (sc - sc.mean()) / (sc.std() + 1e-6)
        if c.get("adv") == "clamped":
            adv = adv.clamp(-1, 1)
        with torch.no_grad():
            old = lp_of(pol, P, PA, r, att)
            rf = lp_of(ref, P, PA, r, att)
        stop = False
        for e in range(c.get("ep", 2)):
            pm = torch.randperm(N, generator=gen).view(2, -1)
            for mi in range(2):
                step += 1
                opt.zero_grad()
                if c.get("lr0"):
                    opt.param_groups[0]["lr"] = [0.0, 0.005, 0.01][min(step - 1, 2)]
                cut = {1: [18], 2: [5, 13], 3: [2, 6, 10]}[K]
                o0 = 0
                tok = att[pm[mi]].sum()
                kls = []
                for b, w in enumerate(cut):
                    ix = pm[mi][o0 : o0 + w]
                    o0 += w
                    m = att[ix].float()
                    lp = lp_of(pol, P[ix], PA[ix], r[ix], att[ix])
                    x = lp - old[ix]
                    lo = hi = 0.2
                    if c.get("lvl"):
                        x = ((x * m).sum(-1) / m.sum(-1))[:, None].expand_as(lp)
                        lo, hi = 0.01, 0.02
                    A = adv[ix][:, None]
                    rho = x.exp()
                    pl = torch.max(-A * rho, -A * rho.clamp(1 - lo, 1 + hi))
                    t = {}
                    ag = c.get("agg")
                    A_ = lambda y: (
                        ((y * m).sum(-1) / m.sum(-1)).sum() / 18
                        if ag == "seqmean"
                        else (y * m).sum()
                        if ag == "sum"
                        else (y * m).sum() / (18 * 24)
                        if ag == "const"
                        else (y * m).sum() / tok
                    )
                    loss = A_(pl)
                    if c.get("kl"):
                        z = rf[ix] - lp
                        k = z.exp() - z - 1
                        loss = loss + c["kl"] * A_(k)
                        t |= dict(logp_ref=rf[ix], kl=k)
                    t |= dict(response_mask=att[ix], logp_new=lp, logp_old=old[ix], advantages=adv[ix], loss=loss, dlogp=d_of(loss, lp), response_ids=r[ix])
                    if c.get("adv") != "clamped":
                        t |= dict(scores=sc[ix], group_id=gid[ix])
                    loss.backward()
                    kls.append((((rho - 1) - x) * m).sum().item())
                    op = {"loss.kind": "ppo", "clip.low": 0.2, "clip.high": 0.2, "num_mini_batches": 2, "eos_token_id": EOS, **c["o"]}
                    if K > 1 and ag is None:
                        op |= {"agg.kind": "token", "agg.denominator": "global", "num_items_in_batch": int(tok)}
                    d.write(step, t, 0, b, micro_batches=K, options=op, scalars={"lr": opt.param_groups[0]["lr"]}, scalars_scope="optimizer_step")
                opt.step()
            if c.get("stop") and sum(kls) / tok > c["stop"]:
                break


run(C, go)
