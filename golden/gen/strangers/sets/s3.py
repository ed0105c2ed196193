"""verl 0.9.1 actor by its own functions (core_algos, rollout_corr_helper). Every third case dumps little (log-probs, mask, advantages, rewards, loss), the others everything incl. token_loss, dlogp."""

import random
from verl_s import *

MODES = [
    "vanilla",
    "gspo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "cispo",
    "dppo_tv",
    "dppo_kl",
    "bypass_mode",
    "vanilla",
    "vanilla",
    "gspo",
    "vanilla",
    "bypass_mode",
    "vanilla",
]
EST = [
    "grpo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "opo",
    "gpg",
    "grpo_passk",
    "optimal_token_baseline",
    "grpo_vectorized",
    "rloo_vectorized",
]
FN = dict(
    grpo="grpo_outcome",
    rloo="rloo_outcome",
    reinforce_plus_plus="reinforce_plus_plus_outcome",
    reinforce_plus_plus_baseline="reinforce_plus_plus_baseline_outcome",
    remax="remax_outcome",
    opo="opo_outcome",
    gpg="gpg_outcome",
    grpo_passk="grpo_passk_outcome",
    optimal_token_baseline="optimal_token_baseline",
    grpo_vectorized="grpo_vectorized_outcome",
    rloo_vectorized="rloo_vectorized_outcome",
)
AGG = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]


def draw(i):
    r = random.Random(900 + i)
    c = dict(
        seed=i,
        loss_mode=MODES[i % len(MODES)],
        est=EST[(i * 3 + i // 11) % 11],
        agg=AGG[(i * 2 + i // 5) % 5],
        ranks=r.choice([1, 2]),
        micro=r.choice([1, 2, 3]),
        mini=r.choice([1, 2]),
        epochs=r.choice([1, 2]),
        G=r.choice([4, 8]),
        T=r.choice([14, 24, 36]),
        temp=r.choice([1.0, 0.7, 1.2]),
        std=r.random() < 0.6,
        ent=r.choice([0, 0, 0.01]),
        klp=r.choice(["none", "none", "loss", "reward"]),
        kk=r.choice(["kl", "low_var_kl", "mse", "abs", "low_var_kl+", "kl+"]),
        rc=r.choice([None, "token", "sequence", "token_ice", "norm", "rs", "seqrs"]),
        low=r.choice([None, 0.1]),
        high=r.choice([None, 0.28]),
        cdual=r.choice([3.0, 1.5, 10.0]),
        lsf=r.choice([None, 50]),
        gamma=r.choice([1.0, 0.99]),
        tool=r.random() < 0.4,
        lr=r.choice([4e-3, 1e-2]),
    )
    if c["klp"] == "reward":
        c["kk"] = c["kk"].replace("+", "")
    if c["loss_mode"] == "bypass_mode":
        c["rc"] = r.choice(["token", "sequence", None])
        c["lt"] = ["reinforce", "ppo_clip"][i % 2]
    if c["agg"] != "seq-mean-token-sum-norm":
        c["lsf"] = None
    return c


CASES = {}
for i in range(18):
    c = draw(i)
    CASES[
        f"h_{i:02d}_"
        + "_".join(
            [c["loss_mode"] + (("-" + c["lt"]) if "lt" in c else ""), c["est"], c["agg"].replace("-", ""), f"r{c['ranks']}", "kl" + c["klp"]]
            + ([c["rc"]] if c["rc"] else [])
        )
    ] = c


def run(out, case, prog="s3", CASES=CASES, dt=torch.float32, extra={}):
    c = CASES[case]
    o = Out(out, prog, case)
    torch.manual_seed(50 + c["seed"])
    g = torch.Generator().manual_seed(77 + c["seed"])
    m = LM().to(dt)
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.01)
    G = c["G"]
    W = c["ranks"]
    P = 6 if c["micro"] == 3 else 4 if G == 4 else 4
    rows = P * G
    if rows % (W * c["mini"] * c["micro"]):
        rows = P * G
    rc = dict(rollout_is=None, rollout_is_threshold=2.0, rollout_is_batch_normalize=False, rollout_rs=None, rollout_rs_threshold=None)
    if c["rc"] in ("token", "sequence"):
        rc.update(rollout_is=c["rc"], rollout_is_threshold=1.01 if c["rc"] == "token" else 1.02)
    if c["rc"] == "token_ice":
        rc.update(rollout_is="token", rollout_is_threshold="0.97_1.03")
    if c["rc"] == "norm":
        rc.update(rollout_is="token", rollout_is_threshold=1.01, rollout_is_batch_normalize=True)
    if c["rc"] == "rs":
        rc.update(rollout_is="token", rollout_is_threshold=2.0, rollout_rs="token_k1", rollout_rs_threshold="0.98_1.02")
    if c["rc"] == "seqrs":
        rc.update(rollout_is="sequence", rollout_is_threshold=2.0, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.999_1.001")
    byp = c["loss_mode"] == "bypass_mode"
    if byp:
        rc.update(bypass_mode=True, loss_type=c["lt"])
    pl = Cfg(
        loss_mode=c["loss_mode"],
        clip_cov_ratio=0.05,
        clip_cov_lb=0.02,
        clip_cov_ub=5.0,
        kl_cov_ratio=0.05,
        ppo_kl_coef=0.1,
        dro_beta=0.3 if c["loss_mode"] == "dro" else None,
        rollout_correction=Cfg(rc),
    )
    cfg = Cfg(
        clip_ratio=0.2,
        clip_ratio_low=c["low"],
        clip_ratio_high=c["high"],
        clip_ratio_c=c["cdual"],
        tau_pos=1.0,
        tau_neg=1.05,
        policy_loss=pl,
        loss_agg_mode=c["agg"],
        global_batch_info={},
        loss_scale_factor=c["lsf"],
    )
    opts = dict(
        clip_ratio=0.2,
        clip_ratio_low=c["low"],
        clip_ratio_high=c["high"],
        clip_ratio_c=c["cdual"],
        tau_pos=1.0,
        tau_neg=1.05,
        loss_mode=c["loss_mode"],
        clip_cov_ratio=0.05,
        clip_cov_lb=0.02,
        clip_cov_ub=5.0,
        kl_cov_ratio=0.05,
        ppo_kl_coef=0.1,
        dro_beta=pl.dro_beta,
        loss_agg_mode=c["agg"],
        loss_scale_factor=c["lsf"],
        adv_estimator=c["est"],
        norm_adv_by_std_in_grpo=c["std"],
        gamma=c["gamma"],
        entropy_coeff=c["ent"],
        use_kl_loss=c["klp"] == "loss",
        use_kl_in_reward=c["klp"] == "reward",
        temperature=c["temp"],
        ppo_epochs=c["epochs"],
        lr=c["lr"],
        weight_decay=0.01,
        num_mini_batches=c["mini"],
        n=G,
        eos_token_id=EOS,
        **rc,
    )
    opts["agg.denominator"] = "global"
    if c["klp"] == "loss":
        opts.update(kl_loss_coef=0.05, kl_loss_type=c["kk"])
    if c["klp"] == "reward":
        opts.update(kl_penalty=c["kk"], kl_coef=0.05)
    opts = {k: v for k, v in opts.items() if v is not None}
    opts.update(extra.get("options", {}))
    step = 0
    held = {}
    real = C["agg_loss"]

    def rec(loss_mat, loss_mask, *a, **k):
        held.setdefault("tl", loss_mat)
        return real(loss_mat, loss_mask, *a, **k)

    for roll in range(3 if c["mini"] * c["epochs"] < 3 else 2):
        eng = engine_of(m)
        pr, pm = mkprompts(P, G, g)
        R, M, L = sample(m, eng, pr, pm, c["T"], c["temp"], g)
        rm = M.clone()
        if c["tool"]:
            for b in range(0, rows, 3):
                if int(M[b].sum()) > 7:
                    rm[b, 2:5] = 0
        T = R.shape[1]
        ids = torch.cat([pr, R], 1)
        with torch.no_grad():
            old, _, raw = logps(m, ids, T, c["temp"])
            refl = logps(ref, ids, T, c["temp"])[0]
            sp2 = F.softmax(raw.float() / c["temp"], -1).square().sum(-1)
        L = L * M
        if byp:
            old = L
        ended = ((R == EOS) * M).sum(1) > 0
        n = M.sum(1).float()
        sc = ((R % 3 == 0) * M).sum(1) / n + ended.float() * 0.5 + 0.2 * (R[:, 0] % 3)
        tls = torch.zeros(rows, T)
        last = (rm * torch.arange(T)).argmax(1)
        tls[torch.arange(rows), last] = sc
        full = rm.clone()
        tlr = tls
        if c["klp"] == "reward":
            tlr = tls - 0.05 * C["kl_penalty"](old, refl, kl_penalty=c["kk"]) * rm
        isw = None
        if not byp and c["rc"]:
            b = types.SimpleNamespace()
            pz, rm, _ = R_["compute_rollout_correction_and_rejection_mask"](old, L, rm, **rc)
            isw = pz.batch["rollout_is_weights"] if pz else None
        uid = np.array([f"u{k}" for k in (torch.arange(rows) // G + 1000 * roll).tolist()], dtype=object)
        kw = dict(token_level_rewards=tlr, response_mask=rm, index=uid)
        base = 0.3 + torch.rand(P, generator=g).repeat_interleave(G)
        if c["est"] != "grpo":
            kw["config"] = Cfg(gamma=c["gamma"], norm_adv_by_std_in_grpo=c["std"])
        else:
            kw["norm_adv_by_std_in_grpo"] = c["std"]
        if c["est"] == "grpo_vectorized":
            kw["norm_adv_by_std_in_grpo"] = True
            opts["norm_adv_by_std_in_grpo"] = True
        if c["est"] == "remax":
            kw["reward_baselines"] = base
        if c["est"] == "optimal_token_baseline":
            kw.update(sum_pi_squared=sp2, old_log_probs=old, rollout_is_weights=isw)
        adv, ret = C[f"compute_{FN[c['est']]}_advantage"](**kw)
        gid = torch.arange(rows) // G + 1000 * roll
        sid = torch.arange(rows) + 10000 * roll
        per = rows // W
        mb = per // c["mini"]
        order = torch.randperm(rows, generator=g)
        for ep in range(c["epochs"]):
            for k in range(c["mini"]):
                step += 1
                opt.zero_grad()
                Is = [order[r * per + k * mb : r * per + (k + 1) * mb] for r in range(W)]
                bnt = sum(int(rm[i].sum()) for i in Is)
                gbs = sum(len(i) for i in Is)
                for r in range(W):
                    for j, ix in enumerate(Is[r].split((mb + c["micro"] - 1) // c["micro"])):
                        cfg["global_batch_info"] = dict(dp_size=W, batch_num_tokens=bnt, global_batch_size=gbs, loss_scale_factor=c["lsf"])
                        lp, ent, raw = logps(m, ids[ix], T, c["temp"])
                        held.clear()
                        C["agg_loss"] = rec
                        mk = rm[ix].bool()
                        w = isw[ix] if isw is not None else None
                        kwl = dict(
                            old_log_prob=old[ix], log_prob=lp, advantages=adv[ix], response_mask=mk, loss_agg_mode=c["agg"], config=cfg, rollout_is_weights=w
                        )
                        fnm = {"vanilla": "vanilla", "bypass_mode": "bypass_mode"}.get(c["loss_mode"], c["loss_mode"])
                        pg, met = C["compute_policy_loss_" + fnm](**kwl)
                        C["agg_loss"] = real
                        loss = pg * 1.0
                        gi = cfg.global_batch_info
                        el = kl = kld = None
                        if c["ent"]:
                            el = real(ent, mk, c["agg"], **gi)
                            loss = loss - c["ent"] * el
                        if c["klp"] == "loss":
                            kld = C["kl_penalty"](lp, refl[ix], c["kk"])
                            kl = real(kld, mk, c["agg"], **gi)
                            loss = loss + 0.05 * kl
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
                        (loss / W).backward()
                        t = dict(
                            response_mask=rm[ix].bool(),
                            logp_new=lp,
                            logp_old=old[ix],
                            logp_gen=L[ix],
                            advantages=adv[ix],
                            scores=sc[ix],
                            token_rewards=tlr[ix],
                            group_id=gid[ix],
                            sample_id=sid[ix],
                            loss=loss,
                            response_ids=R[ix],
                            is_weights=w,
                        )
                        if c["klp"] != "none":
                            t["logp_ref"] = refl[ix]
                        if c["est"] == "remax":
                            t["reward_baselines"] = base[ix]
                        if c["est"] == "optimal_token_baseline":
                            t["sum_pi_squared"] = sp2[ix]
                        s_ = dict(loss=loss.item())
                        if c["ent"]:
                            t["entropy"] = ent
                        if c["seed"] % 3 != 2:
                            t.update(
                                dlogp=dl,
                                token_loss=held["tl"].expand_as(lp) if "tl" in held and held["tl"].dim() == 2 else None,
                                entropy=ent,
                                kl=kld,
                                kl_loss=kl,
                                entropy_loss=el,
                                pg_loss=pg,
                                returns=ret[ix],
                            )
                            s_.update({k_: v for k_, v in met.items() if k_.startswith("actor/") and isinstance(v, float)})
                        meta = dict(
                            schema=2,
                            framework="verl",
                            version="0.9.1",
                            algorithm="grpo",
                            run=prog + "-" + case,
                            step=step,
                            rank=r,
                            world_size=W,
                            micro_batch=j,
                            options=dict(opts, num_items_in_batch=bnt),
                            micro_batches=len(Is[r].split((mb + c["micro"] - 1) // c["micro"])),
                            scalars=s_,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        )
                        meta.update(extra.get("meta", {}))
                        o.write(t, meta)
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("s3", CASES, run)
