"""Asynchronous trainer after AReaL / slime / prime-rl: behaviour log-probs of a stale bfloat16 engine, a proximal policy, importance weights.
The hook dumps everything (token_loss, kl, dlogp, is_weights) and declares the options fully."""

from world_p import *

H = dict(
    h_areal_cap=dict(
        tis="zero_outside",
        low=None,
        high=2.0,
        clip=(0.2, 0.2),
        dual=None,
        adv="std",
        temp=1.0,
        world=1,
        micro=2,
        minis=2,
        epochs=1,
        beta=0.0,
        seed=11,
        lr=6e-3,
        T=24,
    ),
    h_icepop_loo_2ranks=dict(
        tis="zero_outside",
        low=0.5,
        high=2.0,
        clip=(0.2, 0.28),
        dual=None,
        adv="loo",
        temp=1.0,
        world=2,
        micro=2,
        minis=2,
        epochs=1,
        beta=0.05,
        seed=12,
        lr=6e-3,
        T=20,
    ),
    h_tis_dual_temp=dict(
        tis="truncate_upper",
        low=None,
        high=1.3,
        clip=(0.15, 0.25),
        dual=3.0,
        adv="center",
        temp=0.8,
        world=1,
        micro=4,
        minis=2,
        epochs=2,
        beta=0.02,
        seed=13,
        lr=5e-3,
        T=28,
    ),
)


def run(h, bug, d):
    c = H[h]
    T, world, n = c["T"], c["world"], 4
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(c["seed"])
    policy = LM()
    ref = copy.deepcopy(policy)
    opt = torch.optim.AdamW(policy.parameters(), lr=c["lr"], weight_decay=0.0)
    snaps, step, last_adv = [copy.deepcopy(policy.state_dict())], 0, None
    engine = copy.deepcopy(policy).bfloat16()
    opts = {
        "adv.kind": "group",
        "adv.center": "loo" if c["adv"] == "loo" else "mean",
        "adv.scale": "group_std" if c["adv"] == "std" else "none",
        "adv.group_by": "uid",
        "ratio.level": "token",
        "ratio.old": "stored",
        "tis.level": "token",
        "tis.rule": c["tis"],
        "tis.gate": "ratio",
        "tis.high": c["high"],
        "tis.low": c["low"] if c["low"] else "none",
        "tis.normalize": False,
        "tis.applies_to_kl": False,
        "loss.kind": "ppo",
        "clip.low": c["clip"][0],
        "clip.high": c["clip"][1],
        "clip.dual": c["dual"] or "none",
        "agg.kind": "token",
        "agg.denominator": "global",
        "kl.beta": c["beta"],
        "kl.place": "loss" if c["beta"] else "none",
        "logp.temperature": c["temp"],
        "logp.source": "processed",
        "whiten.scope": "none",
        "entropy.coef": 0,
        "num_mini_batches": c["minis"],
        "optim.epochs": c["epochs"],
        "optim.lr": c["lr"],
        "eos_token_id": EOS,
        "num_generations": n,
        "async_rollout": True,
        "eos.rule": "none",
        "reward.clip": "none",
    }
    if c["adv"] == "std":
        opts |= {"adv.ddof": 1, "adv.eps": 1e-6, "adv.zero_std": "divide_eps"}
    if c["beta"]:
        opts |= {"kl.kind": "k3", "kl.agg": "same", "kl.grad": "naive", "kl.reduce": "token"}
    sid = 0
    for roll in range(3):
        stale = snaps[max(0, len(snaps) - 2)]
        engine.load_state_dict({k: v.bfloat16() for k, v in stale.items()})
        pid, pam = prompts(g, 8, 8)
        pid, pam = pid.repeat_interleave(n, 0), pam.repeat_interleave(n, 0)
        ids, am, mask, gen = sample(engine, pid, pam, T, c["temp"], g)
        B = len(ids)
        gid = torch.arange(B) // n + 100 * roll
        sids = torch.arange(B) + sid
        sid += B
        if bug == "b_gen_shifted":
            gen = torch.cat([gen[:, 1:], gen[:, :1]], 1) * mask
        if bug == "b_gen_raw":
            gen = score_tokens(engine, ids, am, T, 1.0)[0].detach() * mask
        scores = reward(ids, mask, T)
        rs = scores
        if bug == "b_interleaved_groups":
            rs = scores.view(n, 8).t().reshape(-1)  # the queue hands them over sample-major
        x = rs.view(-1, n)
        if c["adv"] == "loo":
            a = x - (x.sum(1, keepdim=True) - x) / (n - 1)
            if bug == "b_loo_self":
                a = x - x.sum(1, keepdim=True) / (n - 1)
        else:
            a = x - x.mean(1, keepdim=True)
            if c["adv"] == "std":
                a = a / (x.std(1, keepdim=True) + 1e-6)
            if bug == "b_std_squared":
                a = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-6)
            if bug == "b_center_stale":
                a = x - (x.mean(1, keepdim=True) if roll == 0 else last_mean)
            last_mean = x.mean(1, keepdim=True)
        adv = a.reshape(-1)
        if bug == "b_interleaved_groups":
            adv = adv.view(8, n).t().reshape(-1) if False else adv
        if bug == "b_adv_of_last_rollout":
            adv, last_adv = (adv if last_adv is None else last_adv), adv
        with torch.no_grad():
            prox = score_tokens(policy, ids, am, T, 1.0 if bug == "b_prox_temperature" else c["temp"])[0]
            reflp = score_tokens(ref, ids, am, T, c["temp"])[0]
        if bug == "b_prox_interpolated_wrong":
            prox = 0.5 * prox + 0.5 * reflp
        for ep in range(c["epochs"]):
            perm = torch.randperm(B, generator=g)
            for mini in perm.chunk(c["minis"]):
                N = mask[mini].sum().float()
                opt.zero_grad()
                parts = c["micro"]
                for rank, rows in enumerate(mini.chunk(world)):
                    for mb, i in enumerate(rows.chunk(parts)):
                        lp, ent, _ = score_tokens(policy, ids[i], am[i], T, c["temp"])
                        m, A, gl, old = mask[i].float(), adv[i, None], gen[i], prox[i]
                        logw = old - gl
                        if bug == "b_weight_inverted":
                            logw = gl - old
                        if bug == "b_weight_by_new":
                            logw = lp.detach() - gl
                        if bug == "b_weight_with_gradient":
                            logw = lp - gl
                        w = logw.exp()
                        if bug == "b_cap_on_log":
                            w = torch.clamp(logw, max=c["high"]).exp()
                        elif bug == "b_weight_row_max":
                            w = torch.clamp((logw * m).sum(1, keepdim=True).exp(), max=c["high"]).expand_as(lp)
                        elif c["tis"] == "zero_outside":
                            keep = (w <= c["high"]) & ((w >= c["low"]) if c["low"] and bug != "b_band_lower_lost" else True)
                            if bug == "b_band_on_ratio":
                                keep = ((lp.detach() - old).exp() <= c["high"] * 0.6) & ((lp.detach() - old).exp() >= c["low"])
                            if bug == "b_band_drops_good_side":
                                keep = keep | (A < 0)
                            w = w * keep
                            if bug == "b_band_weight_one":
                                w = keep.float()
                        else:
                            w = w.clamp(max=c["high"])
                        base = gl if bug == "b_ratio_to_engine" else old
                        r = (lp - base).exp()
                        lo, hi = 1 - c["clip"][0], 1 + c["clip"][1]
                        rc = r.clamp(lo, hi)
                        if bug == "b_clip_mirrored_for_negative":
                            rc = torch.where(A < 0, r.clamp(1 - c["clip"][1], 1 + c["clip"][0]), rc)
                        l = torch.maximum(-A * r, -A * rc)
                        if bug == "b_weight_inside_clip":
                            l = torch.maximum(-A * r * w, -A * (r * w).clamp(lo, hi))
                        if c["dual"]:
                            l = torch.where(A < 0, torch.minimum(l, -A * (c["dual"] if bug != "b_dual_below_clip" else 1.05)), l)
                        if bug != "b_weight_inside_clip":
                            l = l * w
                        kl = None
                        if c["beta"]:
                            q = (gl if bug == "b_kl_to_engine" else reflp[i]) - lp
                            kl = q.exp() - 1 - q
                            if bug == "b_kl_detached":
                                kl = kl.detach()
                            if bug == "b_kl_weighted_only_value":
                                kl = kl * w
                            l = l + c["beta"] * kl
                        den = N
                        if bug == "b_last_micro_own_count" and mb == parts - 1:
                            den = m.sum()
                        if bug == "b_count_of_kept":
                            den = N * (w > 0)[m > 0].float().mean()
                        if bug == "b_count_with_eos_lost":
                            den = N - len(mini)
                        loss = (l * m).sum() / den * world
                        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / world).backward()
                        dump(
                            d,
                            dict(
                                input_ids=ids[i],
                                attention_mask=am[i],
                                response_ids=ids[i, -T:],
                                response_mask=mask[i],
                                logp_new=lp,
                                logp_old=old,
                                logp_gen=gl,
                                logp_ref=reflp[i] if c["beta"] else None,
                                advantages=adv[i],
                                scores=scores[i],
                                group_id=gid[i],
                                sample_id=sids[i],
                                is_weights=w,
                                kl=kl,
                                token_loss=l,
                                loss=loss,
                                dlogp=dlogp,
                                entropy=ent,
                            ),
                            step + 1,
                            rank,
                            world,
                            mb,
                            parts,
                            framework="custom",
                            algorithm="grpo",
                            align="response",
                            options=opts | {"num_items_in_batch": int(N)},
                            token_loss_includes_kl=True,
                            scalars=dict(loss=loss.item()),
                            scalars_scope="micro_batch",
                        )
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                opt.step()
                step += 1
        snaps.append(copy.deepcopy(policy.state_dict()))


A, I, D = "h_areal_cap", "h_icepop_loo_2ranks", "h_tis_dual_temp"
C = {k: (k, "", "", "") for k in H}


def b(k, h, desc, legal=""):
    C[k] = (h, k, desc, legal)


b("b_gen_shifted", A, "the engine's log-probs are read one token late, so that weights compare neighbouring tokens")
b("b_weight_inverted", D, "the importance weight is exp(behaviour - proximal), the reciprocal of the correction")
b("b_weight_by_new", A, "the weights take the current policy instead of the proximal one: the ratio new/prox is counted twice")
b("b_weight_with_gradient", D, "the weight is of the current log-probs and not detached: a second gradient flows through it")
b("b_ratio_to_engine", A, "the clipped ratio is against the behaviour policy although the weight multiplies it: staleness corrected twice")
b(
    "b_cap_on_log",
    D,
    "the cap is applied to the log of the weight, so that weights up to e^1.3 pass",
    "a truncation at 3.67 would compute this; 1.3 is declared",
)
b("b_band_lower_lost", I, "the lower edge of the icepop band is dropped", "a band without a lower bound would compute this; 0.5 is declared")
b("b_band_drops_good_side", I, "tokens outside the band are kept where the advantage is negative")
b("b_band_weight_one", I, "inside the band the weight is 1: the mask alone is used", "MIS-style masking alone; the weights are declared as ratios")
b("b_interleaved_groups", A, "rewards arrive sample-major and are normalised prompt-major: groups and rows are mixed")
b("b_loo_self", I, "the leave-one-out baseline keeps the own reward in the sum")
b("b_std_squared", A, "advantages are divided by the variance of the group")
b("b_center_stale", D, "the baseline is the group means of the previous rollout")
b("b_adv_of_last_rollout", A, "the queue hands the advantages of the previous rollout to this one's rows")
b("b_prox_temperature", D, "the proximal log-probs are computed without the temperature")
b("b_clip_mirrored_for_negative", I, "for negative advantages the clip bounds are mirrored (1-high, 1+low)")
b("b_weight_inside_clip", A, "the weight multiplies the ratio before the clip, so that the clip judges the product")
b("b_kl_to_engine", I, "the KL term is against the behaviour log-probs, not the reference")
b("b_kl_detached", D, "the KL term is detached: logged and in the loss, but without a gradient")
b("b_last_micro_own_count", D, "the last micro-batch is divided by its own tokens instead of those of the global batch")
b("b_count_of_kept", I, "the denominator counts only tokens inside the band, estimated per micro-batch")
if __name__ == "__main__":
    main("p4_decoupled", C, run)
