"""verl 0.9.1 through its own core_algos and rollout_corr_helper, cut out of the source; GRPO with KL loss and rollout correction, PPO with critic.
Actor and critic stand in one file; token_loss, dlogp, dvalues, loss, entropy and the metrics of the actor are dumped."""

from world_c import *
import types

VERL = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl")
SRC = VERL + "/trainer/ppo/"
PATCH = {  # forks of the functions, as people ship them
    "tis_not_truncated": (
        "rollout_is_weights = raw_rollout_is_weights.clamp(max=rollout_is_threshold_upper)",
        "rollout_is_weights = raw_rollout_is_weights",
    ),
    "std_ddof0": ("torch.std(scores_tensor)", "torch.std(scores_tensor, unbiased=False)"),
    "dual_all_signs": ("torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)", "clip_pg_losses2"),
    "icepop_clamps": (
        "token_kept_mask, raw_rollout_is_weights, torch.zeros_like(raw_rollout_is_weights)",
        "token_kept_mask, raw_rollout_is_weights, torch.clamp(raw_rollout_is_weights, rollout_is_threshold_lower, rollout_is_threshold_upper)",
    ),
    "k2_no_half": ("return 0.5 * (logprob - ref_logprob).square()", "return (logprob - ref_logprob).square()"),
    "isnorm_padding": ("weights_mean = verl_F.masked_mean(rollout_is_weights, response_mask)", "weights_mean = rollout_is_weights.mean()"),
    "seq_sum_empty": ("loss /= loss_scale_factor", "loss /= loss_mask.shape[-1]"),
    "kl_bonus": ("return token_level_scores - kl * kl_ratio", "return token_level_scores + kl * kl_ratio"),
    "returns_of_whitened": (
        "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)",
        "        advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values",
    ),
    "vf_no_half": ("vf_loss = 0.5 * agg_loss", "vf_loss = agg_loss"),
    "vclip_returns": (
        "verl_F.clip_by_value(vpreds, values - cliprange_value, values + cliprange_value)",
        "verl_F.clip_by_value(vpreds, returns - cliprange_value, returns + cliprange_value)",
    ),
    "vf_min": ("torch.max(vf_losses1, vf_losses2)", "torch.min(vf_losses1, vf_losses2)"),
    "gae_no_skip": ("nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues", "nextvalues = values[:, t]"),
    "gae_lambda_only": ("lastgaelam_ = delta + gamma * lam * lastgaelam", "lastgaelam_ = delta + lam * lastgaelam"),
}


def functions(bug):
    def cutp(path, names, ns):
        src = open(path).read()
        if bug in PATCH and PATCH[bug][0] in src:
            src = src.replace(*PATCH[bug])
            ns["patched"] = True
        return cut(src, names, ns)

    g = dict(globals())
    f = cutp(VERL + "/utils/torch_functional.py", {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"}, dict(g))
    ns = dict(
        g,
        verl_F=types.SimpleNamespace(**{k: f[k] for k in ("masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value")}),
        ActorConfig=object,
        AlgoConfig=type("AlgoConfig", (), {}),
        SAFETY_BOUND=20.0,
        compute_is_metrics=lambda **k: {},
    )
    cutp(
        SRC + "core_algos.py",
        {
            "agg_loss",
            "compute_policy_loss_vanilla",
            "compute_value_loss",
            "kl_penalty",
            "kl_penalty_forward",
            "compute_gae_advantage_return",
            "compute_grpo_outcome_advantage",
            "compute_rewards",
        },
        ns,
    )
    cutp(SRC + "rollout_corr_helper.py", {"compute_rollout_correction_weights", "_parse_rollout_is_threshold"}, ns)
    assert bug not in PATCH or ns.get("patched") or f.get("patched"), bug
    return types.SimpleNamespace(**{k: v for k, v in ns.items() if callable(v)})


class Cfg(dict):
    __getattr__ = dict.__getitem__


BASE = dict(
    seed=1,
    algo="grpo",
    world=2,
    n=32,
    gens=4,
    T=28,
    P=6,
    minis=2,
    micro=4,
    epochs=1,
    rollouts=2,
    lr=5e-3,
    clip=0.2,
    low=None,
    high=None,
    c=3.0,
    agg="token-mean",
    ent=0.0,
    kl_loss=0.0,
    kl_type="low_var_kl",
    kl_reward=0.0,
    gamma=1.0,
    lam=1.0,
    vclip=0.5,
    norm_std=True,
    ris=None,
    rth=2.0,
    rnorm=False,
    holes=False,
    scale=None,
    temp=1.0,
    drift=0.03,
)
HEALTHY = {
    "h_grpo_klloss_tis_token": dict(BASE, seed=21, low=0.2, high=0.28, c=10.0, ent=0.01, kl_loss=0.05, ris="token", rth=1.02),
    "h_drgrpo_norm_icepop_k2": dict(
        BASE,
        seed=22,
        norm_std=False,
        agg="seq-mean-token-sum-norm",
        scale=40,
        kl_loss=0.1,
        kl_type="mse",
        ris="token",
        rth="0.97_1.04",
        rnorm=True,
        minis=4,
        micro=4,
        world=1,
        epochs=1,
    ),
    "h_ppo_klreward_2ep": dict(
        BASE, seed=23, algo="ppo", kl_reward=0.1, gamma=0.99, lam=0.95, vclip=0.2, epochs=2, world=1, micro=8, clip=0.15, temp=0.8, rollouts=2
    ),
    "h_ppo_holes_seqmean_klloss": dict(
        BASE,
        seed=24,
        algo="ppo",
        holes=True,
        agg="seq-mean-token-mean",
        kl_loss=0.05,
        kl_type="k1",
        gamma=1.0,
        lam=0.9,
        vclip=0.3,
        epochs=2,
        world=2,
        micro=8,
        ent=0.005,
        c=2.0,
        T=32,
        lr=6e-3,
    ),
}


def run(root, c, bug):
    V_ = functions(bug)
    T, P, G, W, n = c["T"], c["P"], c["gens"], c["world"], c["n"]
    model = make(c["seed"])
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * c["drift"])
    critic = make(c["seed"] + 1, value=True) if c["algo"] == "ppo" else None
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    copt = torch.optim.AdamW(critic.parameters(), lr=1e-2) if critic else None
    gen = torch.Generator().manual_seed(c["seed"])
    step = 0
    cfg = Cfg(clip_ratio=c["clip"], clip_ratio_low=c["low"], clip_ratio_high=c["high"], clip_ratio_c=c["c"], global_batch_info={})
    for ro in range(c["rollouts"]):
        pid, patt = prompts(n // G, P, gen)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        uid = np.arange(n) // G + 100 * ro
        engine = copy.deepcopy(model).bfloat16()
        ids, att, rm, samp = generate(engine, pid, patt, T, gen, c["temp"])
        if c["holes"]:
            L = rm.sum(1)
            for i in range(n):
                if L[i] > 9:
                    a = int(torch.randint(2, 6, (1,), generator=gen))
                    rm[i, a : a + 3] = 0
                    ids[i, P + a : P + a + 3] = torch.randint(2, V, (3,), generator=gen)
            with torch.no_grad():
                samp = logps(engine, ids, att, T, c["temp"]) * att[:, P:]
        # balance_batch: rows are dealt to the ranks by length
        order = torch.argsort(att.sum(1) + torch.rand(n, generator=gen) * 3)
        order = torch.cat([order[r::W] for r in range(W)])
        old_uid = uid
        ids, att, rm, samp, uid = ids[order], att[order], rm[order], samp[order], uid[order.numpy()]
        resp, m = ids[:, P:], rm.float()
        with torch.no_grad():
            old = logps(model, ids, att, T, c["temp"])
            rlp = logps(ref, ids, att, T, c["temp"] if bug != "ref_no_temp" else 1.0)
            val = critic.values(ids, att)[:, -T - 1 : -1] if critic else None
            if bug == "values_shift":
                val = critic.values(ids, att)[:, -T:]
        score = reward(resp, att[:, P:])[0]
        last = att[:, P:].sum(1) - 1
        if bug == "score_last_column":
            last = torch.full_like(last, T - 1)
        if bug == "score_one_early":
            last = (last - 1).clamp(min=0)
        tls = torch.zeros(n, T).scatter_(1, last[:, None], score[:, None])
        tlr = tls
        if c["kl_reward"]:
            kl = V_.kl_penalty(old, rlp, "kl") * m
            tlr = V_.compute_rewards(tls, old * m, rlp * m, c["kl_reward"])
        isw = None
        if c["ris"]:
            lr_ = old - samp if bug != "tis_inverted" else samp - old
            isw, _ = V_.compute_rollout_correction_weights(lr_, rm, c["ris"], c["rth"], c["rnorm"])
        if c["algo"] == "grpo":
            ns = c["norm_std"] if bug != "drgrpo_divides" else True
            adv, ret = V_.compute_grpo_outcome_advantage(tlr.clone(), m, uid if bug != "uid_not_reordered" else old_uid, norm_adv_by_std_in_grpo=ns)
        else:
            ga, la = (c["gamma"], c["lam"]) if bug != "gamma_lambda_swapped" else (c["lam"], c["gamma"])
            adv, ret = V_.compute_gae_advantage_return(tlr, val, m, ga, la)
        rows = dict(
            ids=ids,
            att=att,
            rm=rm,
            old=old,
            rlp=rlp,
            samp=samp,
            adv=adv,
            ret=ret,
            score=score,
            tlr=tlr,
            uid=torch.tensor(uid),
            sid=torch.arange(n) + 1000 * ro,
        )
        if critic:
            rows["val"] = val
        if isw is not None:
            rows["isw"] = isw
        per = n // W // c["minis"]
        for ep in range(c["epochs"]):
            perms = [torch.randperm(n // W, generator=gen) + r * (n // W) for r in range(W)]
            for k in range(c["minis"]):
                pick = [p[k * per : (k + 1) * per] for p in perms]
                opt.zero_grad()
                if critic:
                    copt.zero_grad()
                tokens = sum(rows["rm"][p].sum() for p in pick).item()
                mini = {q: v[torch.cat(pick)] for q, v in rows.items()}
                if bug == "whiten_again" and c["algo"] == "ppo":
                    mm = mini["rm"].float()
                    mu = (mini["adv"] * mm).sum() / mm.sum()
                for r in range(W):
                    for mb in range(per // c["micro"]):
                        x = {q: v[pick[r][mb * c["micro"] : (mb + 1) * c["micro"]]] for q, v in rows.items()}
                        if bug == "whiten_again":
                            x["adv"] = (x["adv"] - mu) / (((mini["adv"] - mu) ** 2 * mm).sum() / mm.sum() + 1e-8).sqrt() * 1.0
                            x["adv"] = x["adv"] - (x["adv"] * x["rm"]).sum() / x["rm"].sum()
                        micro(root, c, bug, V_, cfg, model, critic, x, step, r, mb, tokens, per * W)
                for mod in (model, critic):
                    if mod:
                        torch.nn.utils.clip_grad_norm_(mod.parameters(), 1.0)
                opt.step()
                if copt:
                    copt.step()
                step += 1


def micro(root, c, bug, V_, cfg, model, critic, x, step, rank, mb, tokens, rows):
    T, rm = c["T"], x["rm"].bool()
    info = dict(dp_size=c["world"], batch_num_tokens=tokens, global_batch_size=rows, loss_scale_factor=c["scale"])
    if bug == "micro_tokens":
        info["batch_num_tokens"] = x["rm"].sum().item()
    if bug == "no_dp_size":
        info["dp_size"] = 1
    if bug == "rows_of_micro":
        info["global_batch_size"] = x["rm"].shape[0]
    cfg["global_batch_info"] = info
    held = {}
    inner = V_.compute_policy_loss_vanilla.__globals__
    agg = V_.agg_loss
    inner["agg_loss"] = lambda loss_mat, **k: held.setdefault("tl", loss_mat) is None or agg(loss_mat=loss_mat, **k)
    lp, ent = logps(model, x["ids"], x["att"], T, c["temp"], True)
    lp_ = lp.clone() if False else lp
    adv = x["adv"]
    old = x["old"] if bug != "old_is_new" else lp.detach()
    isw = x.get("isw")
    pg, met = V_.compute_policy_loss_vanilla(
        old_log_prob=old, log_prob=lp, advantages=adv, response_mask=rm, loss_agg_mode=c["agg"], config=cfg, rollout_is_weights=isw
    )
    inner["agg_loss"] = agg
    a = lambda mat: agg(loss_mat=mat, loss_mask=rm, loss_agg_mode=c["agg"], **info)
    loss = pg
    el = a(ent)
    loss = loss - c["ent"] * el if bug != "entropy_sign" else loss + c["ent"] * el
    kld = kll = None
    if c["kl_loss"]:
        kld = V_.kl_penalty(lp, x["rlp"], c["kl_type"]) if bug != "kl_swapped" else V_.kl_penalty(x["rlp"], lp, c["kl_type"])
        if bug == "kl_of_old":
            kld = V_.kl_penalty(x["old"], x["rlp"], c["kl_type"])
        if bug == "kl_unaggregated":
            kll = (kld * rm).mean()
        else:
            kll = a(kld)
        loss = loss + kll * c["kl_loss"]
    (g,) = torch.autograd.grad(loss, lp, retain_graph=True)
    (loss / c["world"]).backward()
    t = dict(
        response_mask=x["rm"],
        response_ids=x["ids"][:, -T:],
        input_ids=x["ids"],
        attention_mask=x["att"],
        logp_new=lp,
        logp_old=x["old"],
        logp_gen=x["samp"],
        logp_ref=x["rlp"] if c["kl_loss"] or c["kl_reward"] else None,
        advantages=adv,
        is_weights=isw,
        token_loss=held["tl"],
        dlogp=g,
        loss=loss,
        pg_loss=pg,
        kl=kld,
        kl_loss=kll,
        entropy=ent,
        entropy_loss=el if c["ent"] else None,
        scores=x["score"],
        token_rewards=x["tlr"],
        group_id=x["uid"],
        sample_id=x["sid"],
    )
    o = dict(
        clip_ratio=c["clip"],
        clip_ratio_low=c["low"] or c["clip"],
        clip_ratio_high=c["high"] or c["clip"],
        clip_ratio_c=c["c"],
        loss_agg_mode=c["agg"],
        entropy_coeff=c["ent"],
        use_kl_loss=bool(c["kl_loss"]),
        kl_loss_coef=c["kl_loss"],
        kl_loss_type=c["kl_type"],
        use_kl_in_reward=bool(c["kl_reward"]),
        ppo_epochs=c["epochs"],
        num_mini_batches=c["minis"],
        num_items_in_batch=tokens,
        temperature=c["temp"],
        eos_token_id=EOS,
    ) | {"agg.denominator": "global"}
    if c["scale"]:
        o["loss_scale_factor"] = c["scale"]
    if c["algo"] == "grpo":
        o["norm_adv_by_std_in_grpo"] = c["norm_std"]
    if c["ris"]:
        o |= {"rollout_is": c["ris"], "rollout_is_threshold": c["rth"], "rollout_is_batch_normalize": c["rnorm"]}
    if c["kl_reward"]:
        o |= {"kl.beta": c["kl_reward"], "kl.place": "token_reward", "kl.kind": "k1"}
    if critic:
        o |= {"gae.gamma": c["gamma"], "gae.lambda": c["lam"], "cliprange_value": c["vclip"]}
        vp = critic.values(x["ids"], x["att"])[:, -T - 1 : -1]
        vl, _ = V_.compute_value_loss(
            vpreds=vp, returns=x["ret"], values=x["val"], response_mask=rm, cliprange_value=c["vclip"], loss_agg_mode=c["agg"], **info
        )
        (dv,) = torch.autograd.grad(vl, vp, retain_graph=True)
        (vl / c["world"]).backward()
        t |= dict(values=x["val"], values_new=vp, returns=x["ret"], value_loss=vl, dvalues=dv)
    write(
        root,
        step + 1,
        rank,
        mb,
        t,
        dict(
            schema=2,
            framework="verl",
            version="0.9.1",
            algorithm=c["algo"],
            run="c2",
            world_size=c["world"],
            options=o,
            token_loss_includes_kl=False,
            micro_batches=rows // c["world"] // c["micro"],
            scalars={"actor/pg_clipfrac": met["actor/pg_clipfrac"], "actor/ppo_kl": met["actor/ppo_kl"], "actor/pg_loss": pg.item()},
            scalars_scope="micro_batch",
        ),
    )


A, B, C, D = HEALTHY
BUGS = {
    "b_tis_inverted": (A, "tis_inverted", "rollout IS weights are engine over trainer"),
    "b_tis_not_truncated": (A, "tis_not_truncated", "the truncation of the IS weights is missing"),
    "b_kl_swapped": (A, "kl_swapped", "policy and reference are swapped in the KL loss"),
    "b_entropy_sign": (A, "entropy_sign", "the entropy bonus has the wrong sign"),
    "b_std_ddof0": (A, "std_ddof0", "group std without Bessel's correction"),
    "b_uid_not_reordered": (A, "uid_not_reordered", "balance_batch reorders the rows but the groups of the advantages keep the old order"),
    "b_micro_tokens": (A, "micro_tokens", "token-mean divides by the tokens of the micro-batch, and micro-batches are summed"),
    "b_no_dp_size": (A, "no_dp_size", "the loss misses the factor of the data-parallel size: halved gradients"),
    "b_old_is_new": (A, "old_is_new", "the loss takes log_prob.detach() as old in place of the recorded one: never clipped"),
    "b_drgrpo_divides": (B, "drgrpo_divides", "norm_adv_by_std_in_grpo=False is ignored"),
    "b_wrong_scale_factor": (B, "seq_sum_empty", "seq-mean-token-sum-norm divides by the padded length in place of loss_scale_factor"),
    "b_icepop_clamps": (B, "icepop_clamps", "weights outside the IcePop interval are clamped, not zeroed"),
    "b_k2_no_half": (B, "k2_no_half", "the squared KL estimate misses its half"),
    "b_isnorm_padding": (B, "isnorm_padding", "IS weights are normalised by a mean over padding too"),
    "b_kl_of_old": (B, "kl_of_old", "the KL loss is of the old log-probs, so that it has no gradient"),
    "b_rows_of_micro": (B, "rows_of_micro", "the mean over sequences divides by the micro-batch's rows while micro-batches add up"),
    "b_kl_bonus": (C, "kl_bonus", "the KL is added to the token rewards"),
    "b_returns_of_whitened": (C, "returns_of_whitened", "returns are whitened advantages plus values"),
    "b_vf_no_half": (C, "vf_no_half", "value loss without the half"),
    "b_vclip_returns": (C, "vclip_returns", "predicted values are clipped around the returns"),
    "b_gamma_lambda_swapped": (C, "gamma_lambda_swapped", "gamma and lambda are swapped in the call"),
    "b_values_shift": (C, "values_shift", "values of the rollout are those one token later"),
    "b_ref_no_temp": (C, "ref_no_temp", "log-probs of the reference are without the temperature"),
    "b_gae_no_skip": (D, "gae_no_skip", "GAE takes values of observation tokens as next values"),
    "b_score_one_early": (D, "score_one_early", "the score stands on the token before the last"),
    "b_vf_min": (D, "vf_min", "the smaller of clipped and unclipped value loss is taken"),
    "b_dual_all_signs": (D, "dual_all_signs", "the dual clip acts on positive advantages, too"),
    "b_kl_unaggregated": (D, "kl_unaggregated", "the KL loss is a plain mean over cells, not aggregated as the policy loss"),
    "b_whiten_again": (D, "whiten_again", "advantages are normalised again in every mini-batch and centred in the micro-batch"),
}
if __name__ == "__main__":
    main("c2_verl", run, HEALTHY, BUGS)
