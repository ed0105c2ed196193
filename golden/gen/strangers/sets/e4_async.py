"""An asynchronous trainer in the style of AReaL / slime / prime-rl / open-instruct, own words. The rollout worker samples with weights that are one update old (max_staleness 1);
proximal log-probs are recomputed by the trainer before the update; the weight prox/behaviour is capped or masked; the loss is a token mean over the global batch (2 ranks, accumulation).
No profile: options in plumbline's names. h_areal_cap, h_slime_seq and h_prime_mask: token_loss, is_weights, dlogp; the others: log-probs, mask, advantages, rewards, loss."""

from world_e import *

D = dict(
    G=4,
    prompts=8,
    world=2,
    ga=2,
    steps=2,
    epochs=1,
    T=32,
    temp=1.0,
    eps=(0.2, 0.2),
    dual=None,
    is_=("token", "truncate_upper", None, 2.0),
    adv="std",
    eps_adv=1e-6,
    ddof=1,
    kl=0.0,
    klk="k3",
    noise=0.03,
    lr=0.012,
    rollouts=3,
    lag=1,
    full=True,
    seed=41,
    head_bf16=False,
    hole=False,
    agg="token",
    ent=0.0,
)
H = {
    "h_areal_cap": dict(D),
    "h_slime_seq": dict(D, is_=("seq_geo", "zero_outside", 0.98, 1.02), seed=42, adv="loo", eps=(0.2, 0.28), kl=0.02, noise=0.05, T=24, temp=0.8),
    "h_prime_mask": dict(
        D, is_=("token", "zero_outside", 0.7, 1.5), seed=43, adv="none", eps=(0.1, 0.1), dual=3.0, noise=0.06, epochs=2, hole=True, steps=1, ga=2
    ),
    "h_openinstruct": dict(
        D,
        is_=("token", "clamp", 0.6, 1.6),
        seed=44,
        adv="std",
        ddof=0,
        eps_adv=1e-8,
        full=False,
        eps=(0.2, 0.272),
        kl=0.05,
        klk="k2",
        world=1,
        ga=4,
        noise=0.06,
    ),
    "h_seqmean": dict(
        D,
        is_=("seq_sum", "truncate_upper", None, 1.3),
        seed=45,
        adv="batch",
        full=False,
        agg="seq_mean_token_mean",
        head_bf16=True,
        G=8,
        prompts=4,
        lag=2,
        rollouts=4,
        ent=0.01,
    ),
}
B = {
    "b_prox_is_behav": (
        "h_areal_cap",
        "prox-is-behaviour",
        "the ratio is against the behaviour log-probs while the capped weight still multiplies: the mismatch counts twice",
    ),
    "b_w_new": ("h_areal_cap", "weight-from-new", "the weight is exp(new - behaviour), detached, instead of exp(prox - behaviour)"),
    "b_w_grad": (
        "h_areal_cap",
        "log-weight-halved",
        "the log-difference of prox and behaviour is averaged over the two ranks where it should not be: the weight is its square root",
    ),
    "b_local_mean": ("h_areal_cap", "local-token-mean", "every rank divides by its own tokens, then ranks are averaged"),
    "b_ga_mean": ("h_areal_cap", "micro-mean", "every micro-batch takes its own token mean divided by the accumulation steps"),
    "b_no_world": ("h_areal_cap", "no-world-scale", "the loss is not multiplied by the number of ranks although gradients are averaged over them"),
    "b_stale_prox": ("h_slime_seq", "prox-stale", "proximal log-probs come from the policy of the last rollout: they are not recomputed before the update"),
    "b_geo_pad": ("h_slime_seq", "geo-over-columns", "the geometric mean of a row divides by the columns, padding included"),
    "b_loo_mean": ("h_slime_seq", "loo-includes-self", "the leave-one-out baseline includes the response itself"),
    "b_kl_prox": ("h_slime_seq", "kl-of-prox", "the KL is of the proximal log-probs: it has a value and no gradient"),
    "b_hole_in": ("h_prime_mask", "tool-tokens-in-loss", "the loss multiplies by the length mask: tokens of the tool are trained on, though the mask says no"),
    "b_mask_inv": ("h_prime_mask", "mask-one-sided", "weights below the lower bound are kept"),
    "b_dual_all": ("h_prime_mask", "dual-for-all-signs", "a bound is put on rows of positive advantage as well: their loss is at most -0.9 A"),
    "b_adv_rank": ("h_prime_mask", "adv-other-rank", "advantages are scattered in the reverse order of the ranks"),
    "b_adv_dump": ("h_openinstruct", "adv-mean-of-batch", "the baseline is the mean of the whole batch, the std that of the group"),
    "b_cap_swapped": ("h_openinstruct", "cap-reciprocal", "bounds of the weight are the reciprocals: 1/1.6 to 1/0.6 on exp(behaviour - prox)"),
    "b_clip_hi_off": ("h_openinstruct", "clip-high-unused", "the upper clip uses the lower epsilon"),
    "b_k2_ref_next": ("h_openinstruct", "ref-shifted", "reference log-probs are shifted by one token"),
    "b_row_sum": ("h_seqmean", "row-sum", "rows are summed instead of averaged over their tokens"),
    "b_batch_std_mean": ("h_seqmean", "batch-std-zero-mean", "the std of the batch is the root mean square of the rewards: no mean is subtracted"),
    "b_ent_sign": ("h_seqmean", "entropy-penalty", "the entropy bonus has the wrong sign"),
    "b_seq_cap_tok": ("h_seqmean", "weight-per-token", "the weight is taken per token, not per sequence, and capped at the same value"),
}


def run(out, case, c, bug, exp):
    C = type("C", (), c)
    gen = torch.Generator().manual_seed(C.seed)
    torch.manual_seed(C.seed)
    pol = LM(seed=C.seed, head_bf16=C.head_bf16)
    ref = copy.deepcopy(pol)
    opt = torch.optim.AdamW(pol.parameters(), lr=C.lr, weight_decay=0.0)
    lvl, rule, lo, hi = C.is_
    d = Dump(out, "e4_async", case, framework="asynclab", version="0.3", algorithm="grpo", token_loss_includes_kl=False, **exp)
    N = C.prompts * C.G
    P = 6
    bs = N // C.world // C.steps // C.ga
    o = {
        "mask.tokens": "response",
        "align": "response_only",
        "adv.kind": "group",
        "adv.center": "loo" if C.adv == "loo" else "mean",
        "adv.scale": {"std": "group_std", "loo": "none", "none": "none", "batch": "batch_std"}[C.adv],
        "adv.ddof": C.ddof,
        "adv.eps": C.eps_adv,
        "adv.group_by": "uid",
        "adv.std_of": "rewards",
        "adv.zero_std": "divide_eps",
        "loss.kind": "ppo",
        "clip.low": C.eps[0],
        "clip.high": C.eps[1],
        "clip.dual": C.dual,
        "ratio.level": "token",
        "ratio.old": "stored",
        "ratio.log_clamp": None,
        "tis.level": lvl,
        "tis.rule": rule,
        "tis.gate": "ratio",
        "tis.low": lo,
        "tis.high": hi,
        "tis.log_clamp": None,
        "tis.normalize": False,
        "tis.applies_to_kl": False,
        "agg.kind": C.agg,
        "agg.denominator": "global",
        "agg.div_ga": False,
        "kl.beta": C.kl,
        "kl.kind": C.klk,
        "kl.place": "loss" if C.kl else "none",
        "kl.grad": "naive",
        "kl.agg": "same",
        "kl.reduce": "token",
        "kl.clamp_in": None,
        "kl.clamp_out": None,
        "entropy.coef": C.ent,
        "entropy.agg": "same",
        "logp.temperature": C.temp,
        "optim.epochs": C.epochs,
        "num_mini_batches": C.steps,
        "max_staleness": C.lag,
        "eos_token_id": EOS,
        "num_generations": C.G,
        "learning_rate": C.lr,
    }
    o = {k: v for k, v in o.items() if v is not None}
    hist = [copy.deepcopy(pol)]
    step = 0
    for ro in range(C.rollouts):
        old_w = hist[max(0, len(hist) - 1 - C.lag)]
        pr = prompts_(C.prompts, P, gen).repeat_interleave(C.G, 0)
        ids, mask, beh = sample(engine(old_w, C.noise, C.seed + ro), pr, C.T, C.temp, gen)
        length = mask.clone()
        if C.hole:
            st = torch.randint(3, 9, (N,), generator=gen)
            ix = torch.arange(C.T)
            h = (ix >= st[:, None]) & (ix < st[:, None] + 4)
            h &= mask.sum(1, keepdim=True) > 16
            h &= ids != EOS
            mask = mask & ~h
        r = (rewards2(ids, length, C.T) * torch.tensor([2.0, 0.4])).sum(1)
        g = r.view(-1, C.G)
        if C.adv == "loo":
            a = g - ((g.sum(1, keepdim=True) - g) / (C.G - 1) if bug != "loo-includes-self" else g.mean(1, keepdim=True))
        else:
            a = g - (r.mean() if bug == "adv-mean-of-batch" else g.mean(1, keepdim=True))
            if C.adv == "std":
                a = a / (g.std(1, keepdim=True, unbiased=C.ddof == 1) + C.eps_adv)
            if C.adv == "batch":
                a = a / ((r.pow(2).mean().sqrt() if bug == "batch-std-zero-mean" else r.std()) + C.eps_adv)
        adv = a.reshape(-1)
        with torch.no_grad():
            prox = logps(hist[-2] if bug == "prox-stale" and len(hist) > 1 else pol, pr, ids, C.temp)
            rl = logps(ref, pr, ids, C.temp)
            if bug == "ref-shifted":
                rl = rl.roll(1, 1)
        perm = torch.randperm(N, generator=gen).view(C.steps, C.ga, C.world, bs)
        advs = adv
        for ep in range(C.epochs):
            for s in range(C.steps):
                step += 1
                k_all = perm[s].reshape(-1)
                tokens = mask[k_all].sum().float()
                rows = float(len(k_all))
                for mb in range(C.ga):
                    for rk in range(C.world):
                        k = perm[s, mb, rk]
                        m = mask[k].float()
                        new, ent = logps(pol, pr[k], ids[k], C.temp, True)
                        A = adv[perm[s, mb, C.world - 1 - rk]] if bug == "adv-other-rank" else adv[k]
                        Au = A[:, None]
                        lw = ((new.detach() if bug == "weight-from-new" else prox[k]) - beh[k]) * m
                        if bug == "cap-reciprocal":
                            lw = -lw
                        if lvl == "token" or bug == "weight-per-token":
                            w = lw.exp()
                        elif lvl == "seq_sum":
                            w = lw.sum(1, keepdim=True).exp()
                        else:
                            w = (lw.sum(1, keepdim=True) / (m.shape[1] if bug == "geo-over-columns" else m.sum(1, keepdim=True).clamp(min=1))).exp()
                        if bug == "log-weight-halved":
                            w = (lw / 2).exp()
                        if rule == "truncate_upper":
                            w = w.clamp(max=hi)
                        elif rule == "clamp":
                            w = w.clamp(1 / hi, 1 / lo) if bug == "cap-reciprocal" else w.clamp(lo, hi)
                        else:
                            w = torch.where((w <= hi) & ((w >= lo) | (bug == "mask-one-sided")), w, 0.0)
                        ratio = (new - (beh[k] if bug == "prox-is-behaviour" else prox[k])).exp()
                        eh = C.eps[0] if bug == "clip-high-unused" else C.eps[1]
                        tl = -torch.min(ratio * Au, ratio.clamp(1 - C.eps[0], 1 + eh) * Au)
                        if C.dual:
                            tl = torch.where(Au < 0, torch.min(tl, -C.dual * Au), tl)
                            if bug == "dual-for-all-signs":
                                tl = torch.where(Au > 0, torch.min(tl, -0.9 * Au), tl)
                        tl = tl * w
                        kl = None
                        lt = tl
                        if C.kl:
                            q = (prox[k] if bug == "kl-of-prox" else new) - rl[k]
                            kl = (-q).exp() - 1 + q if C.klk == "k3" else 0.5 * q**2
                            lt = tl + C.kl * kl
                        if C.ent:
                            lt = lt - C.ent * ent * (-1 if bug == "entropy-penalty" else 1)
                        lm = length[k].float() if bug == "tool-tokens-in-loss" else m
                        if C.agg == "token":
                            z = tokens
                            loss = (lt * lm).sum() / z * C.world
                            if bug == "local-token-mean":
                                loss = (lt * m).sum() / mask[perm[s, :, rk].reshape(-1)].sum()
                            if bug == "micro-mean":
                                loss = (lt * m).sum() / m.sum() / C.ga
                            if bug == "no-world-scale":
                                loss = loss / C.world
                        else:
                            row = (lt * m).sum(1) / (1.0 if bug == "row-sum" else m.sum(1).clamp(min=1))
                            loss = row.sum() / rows * C.world
                        (dl,) = torch.autograd.grad(loss, new, retain_graph=True)
                        (loss / C.world).backward()
                        t = dict(
                            response_ids=ids[k],
                            response_mask=mask[k],
                            prompt_len=(pr[k] != PAD).sum(1),
                            logp_new=new,
                            logp_old=prox[k],
                            logp_gen=beh[k],
                            advantages=A,
                            scores=r[k],
                            group_id=k // C.G + 100 * ro,
                            sample_id=k + 1000 * ro,
                            loss=loss,
                        )
                        if C.kl:
                            t["logp_ref"] = rl[k]
                        sc = {}
                        if C.ent:
                            t["entropy"] = ent
                        if C.full:
                            t |= dict(token_loss=tl, is_weights=w, dlogp=dl, kl=kl)
                            sc = dict(loss=loss.item())
                        d(step, mb, C.ga, t, rk, C.world, options=o, scalars=sc, scalars_scope="micro_batch")
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
        hist.append(copy.deepcopy(pol))


if __name__ == "__main__":
    main("e4_async", H, B, run)
