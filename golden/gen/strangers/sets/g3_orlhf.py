"""OpenRLHF 0.11.2 by its own functions (PolicyLoss, ValueLoss, compute_approx_kl, compute_reward and the experience maker's advantages, cut out of the release).
Dump in the manner of a hook in strategy.backward: log-probs, values, returns, advantages, scores, losses (divided by the accumulation steps as DeepSpeed does), dlogp; no token_loss."""

from world_g import *
import types, itertools, __future__
from typing import Optional, Tuple, Union, List

P = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")
ns = cut(P + "models/utils.py", ["compute_approx_kl", "compute_reward", "masked_mean"], dict(torch=torch, KL_IS_WEIGHT_CLIP=10.0, F=F))
ns = cut(P + "models/loss.py", ["aggregate_loss", "PolicyLoss", "ValueLoss"], {**ns, "nn": nn})
O = types.SimpleNamespace(**{k: ns[k] for k in ["compute_approx_kl", "compute_reward", "masked_mean", "aggregate_loss", "PolicyLoss", "ValueLoss"]})
tree = ast.parse(open(P + "trainer/ppo_utils/experience_maker.py").read())
mm = {}
for n in ast.walk(tree):
    if isinstance(n, ast.FunctionDef) and n.name in ("get_advantages_and_returns", "get_cumulative_returns"):
        n.decorator_list = []
        exec(compile(ast.Module([n], []), "em", "exec", flags=__future__.annotations.compiler_flag), dict(torch=torch), mm)


def S(**k):
    return dict(
        dict(
            seed=31,
            N=32,
            G=4,
            T=24,
            world=1,
            opt_steps=2,
            ga=2,
            epochs=1,
            est="reinforce_baseline",
            gamma=1.0,
            lambd=1.0,
            low=0.2,
            high=0.2,
            dual=None,
            agg="token-mean",
            ptype="ppo",
            kl_coef=0.01,
            kl_est="k1",
            kl_loss=False,
            unbiased=False,
            isl="off",
            ism="mask",
            isg="ratio",
            ist=[0.5, 5.0],
            vclip=0.5,
            ent=None,
            clip_range=[-10.0, 10.0],
            stop=None,
            lr=5e-3,
            temp=1.0,
            gens=2,
            no_std=False,
            amp=False,
            kind=0,
        ),
        **k,
    )


H = {
    "h_gae_stop_amp": (S(est="gae", gamma=0.99, lambd=0.95, kl_coef=0.05, vclip=0.1, stop=0.3, amp=True, epochs=2), []),
    "h_rbase_icepop_klloss": (
        S(
            est="reinforce_baseline",
            seed=32,
            kl_loss=True,
            kl_est="k2",
            kl_coef=0.02,
            isl="token",
            ism="mask",
            ist=[0.97, 1.05],
            epochs=2,
            high=0.28,
            ent=0.003,
        ),
        [],
    ),
    "h_rloo_clip_2ranks": (
        S(est="rloo", seed=33, world=2, clip_range=[-0.3, 0.25], kl_coef=0.03, kl_est="k3", epochs=2, dual=1.3, lr=1e-2, agg="seq-mean-token-mean"),
        [],
    ),
    "h_gspo_groupnorm": (
        S(est="group_norm", seed=34, ptype="gspo", kl_loss=True, kl_est="k3", unbiased=True, kl_coef=0.05, low=0.004, high=0.006, epochs=2, temp=0.9, T=32),
        [],
    ),
}
B = {
    "b_gae_pad": ("h_gae_stop_amp", "values-not-masked", "Values at padding are not zeroed before GAE, so the last token bootstraps from padding."),
    "b_ret_shift": ("h_gae_stop_amp", "returns-without-values", "Returns are advantages without the values added back."),
    "b_norm_unmasked": ("h_gae_stop_amp", "norm-mean-unmasked", "Advantages are normalised with the mean of all cells, padding included."),
    "b_score_last_col": ("h_gae_stop_amp", "score-last-column", "The score is put into the last column and masked away for short responses."),
    "b_kl_in_twice": ("h_gae_stop_amp", "kl-twice", "The KL penalty is subtracted in the reward a second time at every token."),
    "b_stop_inverted": ("h_gae_stop_amp", "stop-inverted", "The penalty for not stopping hits the responses that stopped."),
    "b_vclip_new": ("h_gae_stop_amp", "value-clip-min", "ValueLoss takes min of clipped and unclipped errors."),
    "b_icepop_inverse": ("h_rbase_icepop_klloss", "is-inverse", "The importance ratio is rollout/train."),
    "b_icepop_keep": ("h_rbase_icepop_klloss", "icepop-drops-weights", "Tokens inside the band keep weight 1 instead of their ratio."),
    "b_k2_k1": ("h_rbase_icepop_klloss", "kl-k2-missing-half", "k2 without the factor one half."),
    "b_klctl": ("h_rbase_icepop_klloss", "kl-and-reward", "With use_loss the KL still enters the rewards as well."),
    "b_base_global": ("h_rbase_icepop_klloss", "baseline-unsorted", "Rewards are grouped in the order after balancing, not by prompt."),
    "b_gas_double": ("h_rbase_icepop_klloss", "loss-not-divided", "The loss is not divided by the accumulation steps: gradients are twice too large."),
    "b_rloo_n": ("h_rloo_clip_2ranks", "rloo-own-included", "The leave-one-out baseline divides by n instead of n-1."),
    "b_clip_before": ("h_rloo_clip_2ranks", "clip-before-baseline", "Rewards are clipped before the baseline, not after."),
    "b_dpsize": ("h_rloo_clip_2ranks", "dp-double", "The global count is divided by the ranks and dp_size is multiplied as well."),
    "b_cum_forward": ("h_rloo_clip_2ranks", "returns-forward", "The cumulative return is summed forward in time."),
    "b_dual_sign": ("h_rloo_clip_2ranks", "dual-min", "Dual clip uses min for max: the bound never helps."),
    "b_ranks_groups": ("h_rloo_clip_2ranks", "groups-strided", "Samples are laid out by sample but grouped as if by prompt (reshape of the transposed)."),
    "b_gspo_sum": ("h_gspo_groupnorm", "gspo-sum", "GSPO's ratio sums the log-ratios instead of averaging."),
    "b_gspo_padlen": ("h_gspo_groupnorm", "gspo-padded-length", "GSPO divides by the padded length."),
    "b_k3_rev": ("h_gspo_groupnorm", "k3-reversed", "k3 is computed from log p - log ref with the signs swapped."),
    "b_ub_lost": ("h_gspo_groupnorm", "unbiased-weight-inverted", "The weight of the unbiased KL gradient is old/new for new/old."),
    "b_std_pop": ("h_gspo_groupnorm", "variance-for-std", "The standard deviation is replaced by the variance."),
}


def run(s, bug, out, name):
    model, critic = make(s["seed"]), make(s["seed"] + 5)
    ref = copy.deepcopy(model)
    gen = torch.Generator().manual_seed(s["seed"])
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"], betas=(0.9, 0.95), weight_decay=0.0)
    vopt = torch.optim.AdamW(critic.parameters(), lr=s["lr"], betas=(0.9, 0.95), weight_decay=0.0)
    N, G, T, W, step, gae = s["N"], s["G"], s["T"], s["world"], 0, s["est"] == "gae"
    pl = O.PolicyLoss(s["low"], s["high"], s["dual"], s["agg"] == "token-mean", s["ptype"], s["isl"], s["ism"], s["isg"], s["ist"])
    vlf = O.ValueLoss(s["vclip"])
    for g in range(s["gens"]):
        pid, patt = prompts(N // G, gen)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        ids, att, rid, m, slp = sample(engine_of(model), pid, patt, T, gen, s["temp"])
        m = m.bool()
        with torch.no_grad():
            old = logps(model, ids, att, T, s["temp"], s["amp"])[0]
            refl = logps(ref, ids, att, T, s["temp"], s["amp"])[0]
            vals = logps(critic, ids, att, T, 1.0, s["amp"])[1]
        sc = reward(rid, m.long(), s["kind"])
        shaped = sc.clone()
        if s["stop"] is not None:
            cutoff = ~(rid == EOS).any(1)
            if bug == "stop-inverted":
                cutoff = ~cutoff
            shaped = torch.where(cutoff, shaped * s["stop"], shaped)
        r = shaped.clone()
        if bug == "clip-before-baseline":
            r = r.clamp(*s["clip_range"])
        if bug == "baseline-unsorted":
            pb = torch.randperm(N, generator=torch.Generator().manual_seed(1))
            r = r[pb]
        R = r.view(G, -1).t() if bug == "groups-strided" else r.view(-1, G)
        if s["est"] == "rloo":
            R = R - (R.sum(-1, keepdim=True) - R) / (G - (0 if bug == "rloo-own-included" else 1))
        elif s["est"] == "reinforce_baseline":
            R = R - R.mean(-1, keepdim=True)
        elif s["est"] == "group_norm":
            R = (R - R.mean(-1, keepdim=True)) / ((R.var(-1, keepdim=True) if bug == "variance-for-std" else R.std(-1, keepdim=True)) + 1e-9)
        r = R.t().reshape(-1) if bug == "groups-strided" else R.reshape(-1)
        if bug == "baseline-unsorted":
            r2 = r.clone()
            r2[pb] = r
            r = r2
        kl = O.compute_approx_kl(old, refl, kl_estimator=s["kl_est"]) if not s["kl_loss"] or bug == "kl-and-reward" else torch.zeros_like(old)
        kc = s["kl_coef"]
        rew = O.compute_reward(r, kc, kl, m, None if bug == "clip-before-baseline" else s["clip_range"])
        if bug == "score-last-column":
            rew = -kc * kl
            rew[:, -1] += r
        if bug == "kl-twice":
            rew = rew - kc * kl
        if gae:
            if bug == "values-not-masked":
                adv, ret = mm["get_advantages_and_returns"](None, vals, rew * m, None, s["gamma"], s["lambd"])
            else:
                adv, ret = mm["get_advantages_and_returns"](None, vals, rew, m, s["gamma"], s["lambd"])
            if bug == "returns-without-values":
                ret = adv.clone()
        else:
            ret = mm["get_cumulative_returns"](None, rew, m, 1.0)
            if bug == "returns-forward":
                ret = (rew * m).cumsum(1)
            adv = ret.clone()
        if s["est"] in ("gae", "reinforce_baseline"):
            n = m.sum()
            mean = (adv * m).sum() / n
            if bug == "norm-mean-unmasked":
                mean = adv.mean()
            var = ((adv - mean) ** 2 * m).sum() / n
            adv = (adv - mean) * var.clamp(min=1e-8).rsqrt()
        d = dict(
            ids=ids,
            att=att,
            rid=rid,
            m=m,
            slp=slp,
            old=old,
            refl=refl,
            vals=vals,
            sc=sc,
            adv=adv,
            ret=ret,
            gid=torch.arange(N) // G + 100 * g,
            sid=torch.arange(N) + N * g,
        )
        half = N // W
        perms = torch.randperm(N, generator=gen)
        d = {k: x[perms] for k, x in d.items()}
        for ep in range(s["epochs"]):
            order = [torch.randperm(half, generator=gen) + r_ * half for r_ in range(W)]
            per = half // s["opt_steps"]
            for os_ in range(s["opt_steps"]):
                step += 1
                opt.zero_grad()
                vopt.zero_grad()
                rows = [o[os_ * per : (os_ + 1) * per] for o in order]
                ga = s["ga"]
                tok, nr = float(sum(d["m"][i].sum() for i in rows)), float(per * W)
                for rk in range(W):
                    for mb, idx in enumerate(rows[rk].chunk(ga)):
                        x = {k: v[idx] for k, v in d.items()}
                        mk = x["m"]
                        info = dict(dp_size=W, batch_num_tokens=tok / ga, global_batch_size=nr / ga)
                        if bug == "dp-double":
                            info = dict(dp_size=W, batch_num_tokens=tok / ga / W, global_batch_size=nr / ga / W)
                        lp, _, en = logps(model, x["ids"], x["att"], T, s["temp"], s["amp"], True)
                        xo, xg = x["old"], x["slp"]
                        if bug == "is-inverse":
                            xg = 2 * xo - xg
                        real = O.PolicyLoss.forward.__globals__["torch"]
                        pg, cr, pk, vk, fr = pl(lp, xo, x["adv"], mk, xg if s["isl"] != "off" else None, **info)
                        agg = lambda l: O.aggregate_loss(l, mk, token_level_loss=pl.token_level_loss, **info)
                        ra = (lp - xo).exp()
                        s1, s2 = ra * x["adv"], ra.clamp(1 - s["low"], 1 + s["high"]) * x["adv"]
                        if bug == "icepop-drops-weights":
                            w = (xo - xg).exp()
                            pg = agg(-torch.min(s1, s2) * ((w >= s["ist"][0]) & (w <= s["ist"][1])).float())
                        if bug == "dual-min":
                            c1 = torch.min(s1, s2)
                            pg = agg(-torch.where(x["adv"] < 0, torch.min(c1, s["dual"] * x["adv"]), c1))
                        if bug in ("gspo-sum", "gspo-padded-length"):
                            z = ((lp - xo) * mk).sum(-1) / (1 if bug == "gspo-sum" else T)
                            q = z.exp()[:, None] * mk
                            pg = agg(-torch.min(q * x["adv"], q.clamp(1 - s["low"], 1 + s["high"]) * x["adv"]))
                        loss = pg
                        kll = k_ = enl = None
                        if s["kl_loss"]:
                            a, b = (x["refl"], lp) if bug == "k3-reversed" else (lp, x["refl"])
                            k_ = O.compute_approx_kl(a, b, log_probs_old=xo, kl_estimator=s["kl_est"], unbiased_gradient=s["unbiased"])
                            if bug == "kl-k2-missing-half":
                                k_ = 2 * k_
                            if bug == "unbiased-weight-inverted":
                                v_ = O.compute_approx_kl(lp, x["refl"], kl_estimator="k3")
                                gs = (
                                    (xo - lp).exp().detach() * (lp - x["refl"]) ** 2 / 2 * 3.0
                                    if False
                                    else (xo - lp).exp().detach() * (lp - x["refl"]) ** 2 / 2
                                )
                                k_ = v_.detach() + gs - gs.detach()
                            kll = O.aggregate_loss(k_, mk, **info)
                            loss = loss + kll * kc
                        if s["ent"] is not None:
                            enl = O.aggregate_loss(en, mk, **info)
                            loss = loss - enl * s["ent"]
                        div = 1 if bug == "loss-not-divided" else ga
                        D = lambda z: None if z is None else z / div
                        t = dict(
                            input_ids=x["ids"],
                            attention_mask=x["att"],
                            response_ids=x["rid"],
                            response_mask=mk,
                            logp_new=lp,
                            logp_old=xo,
                            logp_ref=x["refl"],
                            advantages=x["adv"],
                            returns=x["ret"],
                            scores=x["sc"],
                            group_id=x["gid"],
                            sample_id=x["sid"],
                            logp_gen=x["slp"] if s["isl"] != "off" else None,
                            kl=k_,
                            loss=D(loss),
                            pg_loss=D(pg),
                            kl_loss=D(kll),
                            entropy=en if s["ent"] is not None else None,
                            entropy_loss=D(enl),
                            dlogp=torch.autograd.grad(D(loss), lp, retain_graph=True)[0],
                        )
                        (D(loss) / W).backward()
                        if gae:
                            vp = logps(critic, x["ids"], x["att"], T, 1.0, s["amp"])[1]
                            vl = vlf(vp, x["vals"], x["ret"], mk, **info)
                            if bug == "value-clip-min":
                                vc = x["vals"] + (vp - x["vals"]).clamp(-s["vclip"], s["vclip"])
                                vl = 0.5 * O.aggregate_loss(torch.min((vc - x["ret"]) ** 2, (vp - x["ret"]) ** 2), mk, **info)
                            t |= dict(values=x["vals"], values_new=vp, value_loss=D(vl), dvalues=torch.autograd.grad(D(vl), vp, retain_graph=True)[0])
                            (D(vl) / W).backward()
                        o = {
                            "algo.advantage.estimator": s["est"],
                            "algo.advantage.gamma": s["gamma"],
                            "algo.advantage.lambd": s["lambd"],
                            "algo.advantage.no_std_norm": s["no_std"],
                            "actor.eps_clip_low_high": [s["low"], s["high"]],
                            "actor.dual_clip": s["dual"],
                            "actor.loss_agg_mode": s["agg"],
                            "actor.policy_loss_type": s["ptype"],
                            "algo.kl.init_coef": kc,
                            "algo.kl.estimator": s["kl_est"],
                            "algo.kl.use_loss": s["kl_loss"],
                            "algo.kl.unbiased_gradient": s["unbiased"],
                            "algo.advantage.is_correction_level": s["isl"],
                            "algo.advantage.is_correction_mode": s["ism"],
                            "algo.advantage.is_correction_gating": s["isg"],
                            "algo.advantage.is_correction_threshold": s["ist"],
                            "critic.value_clip": s["vclip"],
                            "actor.entropy_coef": s["ent"],
                            "reward.clip_range": s["clip_range"],
                            "reward.stop_properly_penalty_coef": s["stop"],
                            "rollout.n_samples_per_prompt": G,
                            "rollout.temperature": s["temp"],
                            "train.max_epochs": s["epochs"],
                            "num_items_in_batch": round(tok),
                            "agg.denominator": "global",
                            "kl.beta": kc,
                            "num_mini_batches": s["opt_steps"],
                            "eos_token_id": EOS,
                        }
                        write(
                            out,
                            f"step_{step:06d}_rank_{rk}_mb_{mb}",
                            t,
                            dict(
                                schema=2,
                                framework="openrlhf",
                                version="0.11.2",
                                algorithm="ppo" if gae else "grpo",
                                run=name,
                                step=step,
                                rank=rk,
                                world_size=W,
                                micro_batch=mb,
                                micro_batches=ga,
                                options=o,
                                token_loss_includes_kl=False,
                            ),
                        )
                for p, o_ in ((model, opt), (critic, vopt)):
                    torch.nn.utils.clip_grad_norm_(p.parameters(), 1.0)
                    o_.step()


if __name__ == "__main__":
    main("g3_orlhf", H, B, run)
