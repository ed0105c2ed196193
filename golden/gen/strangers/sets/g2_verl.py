"""verl 0.9.1 through its own functions (core_algos, torch_functional cut out of the release). Dump as a hook in the losses has it: log-probs, masks, rewards, advantages, kl, losses, dlogp;
the critic's numbers stand in the same files. h_rfpp is lazier (no token_loss, no kl)."""

from world_g import *
import numpy as np, types
from collections import defaultdict
from typing import Any, Optional, Callable

SRC = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")
tf = cut(SRC + "utils/torch_functional.py", ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"], dict(torch=torch))
verl_F = types.SimpleNamespace(**{k: tf[k] for k in ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"]})


class ActorConfig(dict):
    __getattr__ = dict.__getitem__


class AlgoConfig(ActorConfig):
    pass


CA = types.SimpleNamespace(
    **cut(
        SRC + "trainer/ppo/core_algos.py",
        [
            "AdaptiveKLController",
            "FixedKLController",
            "compute_gae_advantage_return",
            "compute_grpo_outcome_advantage",
            "compute_grpo_passk_outcome_advantage",
            "compute_rloo_outcome_advantage",
            "compute_opo_outcome_advantage",
            "compute_reinforce_plus_plus_outcome_advantage",
            "compute_gpg_outcome_advantage",
            "agg_loss",
            "compute_policy_loss_vanilla",
            "compute_policy_loss_gpg",
            "compute_value_loss",
            "kl_penalty",
            "kl_penalty_forward",
        ],
        dict(torch=torch, np=np, defaultdict=defaultdict, verl_F=verl_F, ActorConfig=ActorConfig, AlgoConfig=AlgoConfig, Optional=Optional, Any=Any),
    )
)


def S(**k):
    return dict(
        dict(
            seed=21,
            N=32,
            G=8,
            T=24,
            world=1,
            minis=2,
            micros=2,
            epochs=2,
            est="grpo",
            gamma=1.0,
            lam=1.0,
            clip=0.2,
            low=None,
            high=None,
            dual=3.0,
            agg="token-mean",
            kl_loss=0.0,
            kl_loss_type="low_var_kl",
            kl_reward=0.0,
            kl_adapt=None,
            rollout_is=None,
            thr=2.0,
            critic=False,
            vclip=0.5,
            lr=6e-3,
            temp=1.0,
            amp=False,
            gens=2,
            loss="vanilla",
            ent=0.0,
            holes=False,
            lazy=False,
            norm_std=True,
        ),
        **k,
    )


H = {
    "h_rfpp_holes": (S(est="reinforce_plus_plus", gamma=0.99, holes=True, kl_reward=0.02, lazy=True, T=30), []),
    "h_opo_gpgmix_2ranks_tis": (
        S(est="opo", world=2, rollout_is="token", thr=1.04, agg="seq-mean-token-sum-norm", seed=22, high=0.28, low=0.2, kl_loss=0.01, kl_loss_type="k3+"),
        [],
    ),
    "h_ppo_adaptive": (S(est="gae", critic=True, gamma=0.98, lam=0.95, kl_reward=0.05, kl_adapt=(0.02, 400), seed=23, vclip=0.1, ent=0.01, lr=5e-3), []),
    "h_ppo_dual_seqmean": (
        S(
            est="gae",
            critic=True,
            gamma=1.0,
            lam=0.9,
            agg="seq-mean-token-mean",
            seed=24,
            dual=1.15,
            vclip=0.2,
            minis=2,
            epochs=2,
            lr=1e-2,
            temp=0.8,
            micros=1,
            amp=True,
            kl_loss=0.02,
        ),
        [],
    ),
}
B = {
    "b_return_hole": (
        "h_rfpp_holes",
        "rfpp-hole-resets",
        "The running return is multiplied by the mask: rewards do not flow back over a hole (the old REINFORCE++ of verl).",
    ),
    "b_whiten_pad": ("h_rfpp_holes", "whiten-with-padding", "Advantages are whitened over all cells with padding."),
    "b_kl_sign": ("h_rfpp_holes", "kl-reward-sign", "The KL penalty is added to the reward."),
    "b_score_first": ("h_rfpp_holes", "score-one-early", "The score is put on the token before the last one."),
    "b_old_stale": ("h_rfpp_holes", "old-from-previous-weights", "Old log-probs are those of the previous rollout's weights."),
    "b_opo_chars": ("h_opo_gpgmix_2ranks_tis", "opo-length-with-prompt", "OPO's baseline weights by the length with the prompt."),
    "b_dp_missing": (
        "h_opo_gpgmix_2ranks_tis",
        "dp-size-missing",
        "The local loss is divided by the global batch without the factor dp_size: with DDP's mean gradients are halved.",
    ),
    "b_tis_low": ("h_opo_gpgmix_2ranks_tis", "tis-wrong-logprobs", "Importance weights are made of the rollout's own log-probs shifted by one token."),
    "b_tis_inside_sign": ("h_opo_gpgmix_2ranks_tis", "tis-squared", "The importance weight is applied to the advantages and again in the loss."),
    "b_kl_plain": ("h_opo_gpgmix_2ranks_tis", "kl-straight-through-lost", "k3+'s straight-through term is detached wholly: the KL loss has no gradient."),
    "b_sumnorm_len": ("h_opo_gpgmix_2ranks_tis", "norm-by-longest", "The horizon that token sums are divided by is the longest response of the micro-batch."),
    "b_gae_next": ("h_ppo_adaptive", "gae-next-same-value", "GAE is handed the values one column late: V(t-1) for V(t), V(t) for V(t+1)."),
    "b_ret_whitened": ("h_ppo_adaptive", "returns-after-whitening", "Returns are whitened advantages + values."),
    "b_beta_early": ("h_ppo_adaptive", "adaptive-kl-inverted", "The adaptive controller moves beta the wrong way."),
    "b_ent_sign": ("h_ppo_adaptive", "entropy-sign", "The entropy bonus is added to the loss instead of subtracted."),
    "b_vclip_ret": ("h_ppo_adaptive", "vclip-around-returns", "The new value is clipped around the returns instead of the old value."),
    "b_value_min": ("h_ppo_adaptive", "value-min", "min of the clipped and unclipped value errors instead of max."),
    "b_v_shift": ("h_ppo_adaptive", "value-shift", "The critic's values are taken one column late: V of the state after the token."),
    "b_dual_pos": ("h_ppo_dual_seqmean", "dual-clip-positive", "The dual clip acts on positive advantages instead of negative ones."),
    "b_temp_train": ("h_ppo_dual_seqmean", "temperature-not-in-update", "The update's log-probs are not divided by the temperature, the old ones are."),
    "b_lam": ("h_ppo_dual_seqmean", "gamma-lambda-swapped", "gamma and lambda are handed over in the wrong order."),
    "b_seqmean_micro": ("h_ppo_dual_seqmean", "lengths-of-wrong-mask", "Row means divide by the row's padded length instead of its tokens."),
    "b_kl_old": ("h_ppo_dual_seqmean", "kl-against-old", "The KL loss is taken against the old policy instead of the reference."),
}


def run(s, bug, out, name):
    model = make(s["seed"])
    critic = make(s["seed"] + 1)
    ref = copy.deepcopy(model)
    gen = torch.Generator().manual_seed(s["seed"])
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"], weight_decay=0.01)
    vopt = torch.optim.AdamW(critic.parameters(), lr=s["lr"], weight_decay=0.01)
    ctl = CA.AdaptiveKLController(s["kl_reward"], *s["kl_adapt"]) if s["kl_adapt"] else CA.FixedKLController(s["kl_reward"])
    step, N, G, T, W, E = 0, s["N"], s["G"], s["T"], s["world"], s["epochs"]
    prev = copy.deepcopy(model)
    for g in range(s["gens"]):
        pid, patt = prompts(N // G, gen)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        ids, att, rid, m, slp = sample(engine_of(model), pid, patt, T, gen, s["temp"])
        if s["holes"]:
            for i in range(0, N, 2):
                if m[i].sum() > 8:
                    m[i, 2:5] = 0
        with torch.no_grad():
            om = prev if bug == "old-from-previous-weights" else model
            old = logps(om, ids, att, T, s["temp"], s["amp"])[0]
            refl = logps(ref, ids, att, T, s["temp"], s["amp"])[0]
            vals = logps(critic, ids, att, T, 1.0, s["amp"])[1]
            if bug == "value-shift":
                vals = F.pad(vals[:, 1:], (0, 1))
            vals = vals * m
        prev = copy.deepcopy(model)
        score = reward(rid, att[:, -T:], 2 if s["est"] in ("opo",) else 0)
        tls = torch.zeros(N, T)
        last = T - 1 - m.flip(1).argmax(1)
        if bug == "score-one-early":
            last = (last - 1).clamp(min=0)
        tls[torch.arange(N), last] = score
        beta = ctl.value
        if s["kl_reward"]:
            kld = CA.kl_penalty(old, refl, "kl") * m
            tlr = tls + beta * kld if bug == "kl-reward-sign" else tls - beta * kld
            ck = verl_F.masked_mean(kld, m, -1).mean().item()
            ctl.update(current_kl=ck, n_steps=N) if bug != "adaptive-kl-inverted" else ctl.update(current_kl=-ck, n_steps=N)
        else:
            tlr = tls
        uid = np.array([str(i // G) for i in range(N)])
        cfg = AlgoConfig(gamma=s["gamma"], lam=s["lam"])
        mf = m
        isw = None
        if s["rollout_is"]:
            lr_ = old - slp
            if bug == "tis-wrong-logprobs":
                lr_ = old - slp.roll(1, 1)
            isw = (lr_.clamp(-20, 20).exp() * m).clamp(max=s["thr"])
        if s["est"] == "gae":
            ga, la = (s["lam"], s["gamma"]) if bug == "gamma-lambda-swapped" else (s["gamma"], s["lam"])
            v = F.pad(vals[:, :-1], (1, 0)) if bug == "gae-next-same-value" else vals
            adv, ret = CA.compute_gae_advantage_return(tlr, v, m, ga, la)
            if bug == "returns-after-whitening":
                ret = adv + vals
        elif s["est"] == "reinforce_plus_plus":
            if bug == "rfpp-hole-resets":
                ret, rr = torch.zeros_like(tlr), 0
                for t in reversed(range(T)):
                    rr = tlr[:, t] + s["gamma"] * rr
                    ret[:, t] = rr
                    rr = rr * m[:, t]
                adv = verl_F.masked_whiten(ret, m) * m
            else:
                adv, ret = CA.compute_reinforce_plus_plus_outcome_advantage(tlr, m, cfg)
                if bug == "whiten-with-padding":
                    adv = verl_F.masked_whiten(ret, torch.ones_like(m)) * m
        else:
            if bug == "opo-length-with-prompt":
                L = att.sum(1).float()
                sc = tlr.sum(1)
                bl = ((L * sc).view(-1, G).sum(1) / L.view(-1, G).sum(1)).repeat_interleave(G)
                adv = ret = (sc - bl)[:, None] * m
            else:
                adv, ret = CA.compute_opo_outcome_advantage(tlr.clone(), m, uid)
        if bug == "tis-squared":
            adv = adv * isw
        d = dict(
            ids=ids,
            att=att,
            rid=rid,
            m=m,
            slp=slp,
            old=old,
            refl=refl,
            vals=vals,
            score=score,
            tlr=tlr,
            adv=adv,
            ret=ret,
            gid=torch.arange(N) // G + 100 * g,
            sid=torch.arange(N) + N * g,
        )
        if isw is not None:
            d["isw"] = isw
        perm = torch.randperm(N, generator=gen)  # balance_batch moves rows
        d = {k: x[perm] for k, x in d.items()}
        half = N // W
        for ep in range(E):
            for mi in range(s["minis"]):
                step += 1
                opt.zero_grad()
                vopt.zero_grad()
                per = half // s["minis"]
                rows = [torch.arange(r * half + mi * per, r * half + (mi + 1) * per) for r in range(W)]
                ntok, nrow = sum(d["m"][r].sum().item() for r in rows), per * W
                for rk in range(W):
                    for mb, idx in enumerate(rows[rk].chunk(s["micros"])):
                        x = {k: v[idx] for k, v in d.items()}
                        mm = x["m"]
                        info = dict(dp_size=1 if bug == "dp-size-missing" else W, batch_num_tokens=ntok, global_batch_size=nrow, loss_scale_factor=None)
                        if bug == "norm-by-longest":
                            info["loss_scale_factor"] = int(mm.sum(1).max())
                        lp, _, en = logps(model, x["ids"], x["att"], T, 1.0 if bug == "temperature-not-in-update" else s["temp"], s["amp"], True)
                        cap = {}
                        ac = ActorConfig(
                            clip_ratio=s["clip"], clip_ratio_low=s["low"], clip_ratio_high=s["high"], clip_ratio_c=s["dual"], global_batch_info=info
                        )
                        real = CA.agg_loss

                        def spy(loss_mat, loss_mask, loss_agg_mode, **k):
                            cap["tl"] = loss_mat
                            return real(loss_mat, loss_mask, loss_agg_mode, **k)

                        ns = CA.compute_policy_loss_vanilla.__globals__
                        ns["agg_loss"] = spy
                        pg, met = CA.compute_policy_loss_vanilla(x["old"], lp, x["adv"], mm, s["agg"], ac, x.get("isw"))
                        ns["agg_loss"] = real
                        if bug == "dual-clip-positive":
                            r = (lp - x["old"]).exp()
                            a = x["adv"]
                            l1 = torch.maximum(-a * r, -a * r.clamp(1 - s["clip"], 1 + s["clip"]))
                            cap["tl"] = torch.where(a > 0, torch.max(-a * s["dual"], l1), l1)
                            pg = real(cap["tl"], mm, s["agg"], **info)
                        if bug == "lengths-of-wrong-mask":
                            pg = ((cap["tl"] * mm).sum(-1) / T).sum() / nrow * W
                        loss = pg
                        kld = kll = enl = None
                        if s["ent"]:
                            enl = real(en, mm, s["agg"], **info)
                            loss = loss + s["ent"] * enl * (1 if bug == "entropy-sign" else -1)
                        if s["kl_loss"]:
                            kld = CA.kl_penalty(lp, x["old"] if bug == "kl-against-old" else x["refl"], s["kl_loss_type"])
                            if bug == "kl-straight-through-lost":
                                kld = kld.detach()
                            kll = real(kld, mm, s["agg"], **info)
                            loss = loss + s["kl_loss"] * kll
                        t = dict(
                            response_mask=mm,
                            response_ids=x["rid"],
                            input_ids=x["ids"],
                            attention_mask=x["att"],
                            logp_new=lp,
                            logp_old=x["old"],
                            advantages=x["adv"],
                            scores=x["score"],
                            token_rewards=x["tlr"],
                            group_id=x["gid"],
                            sample_id=x["sid"],
                            loss=loss,
                            pg_loss=pg,
                            dlogp=torch.autograd.grad(loss, lp, retain_graph=True)[0],
                            returns=x["ret"],
                        )
                        if s["kl_reward"] or s["kl_loss"]:
                            t["logp_ref"] = x["refl"]
                        if isw is not None:
                            t |= dict(logp_gen=x["slp"], is_weights=x["isw"])
                        if not s["lazy"]:
                            t |= dict(token_loss=cap["tl"], kl=kld, kl_loss=kll, entropy=en, entropy_loss=enl)
                        (loss / W).backward()
                        if s["critic"]:
                            vp = logps(critic, x["ids"], x["att"], T, 1.0, s["amp"])[1]
                            if bug == "value-shift":
                                vp = F.pad(vp[:, 1:], (0, 1))
                            vl, _ = CA.compute_value_loss(vp, x["ret"], x["vals"], mm, s["vclip"], s["agg"], **info)
                            if bug == "vclip-around-returns":
                                vc = torch.minimum(torch.maximum(vp, x["ret"] - s["vclip"]), x["ret"] + s["vclip"])
                                vl = 0.5 * real((vc - x["ret"]) ** 2, mm, s["agg"], **info)
                            if bug == "value-min":
                                vc = x["vals"] + (vp - x["vals"]).clamp(-s["vclip"], s["vclip"])
                                vl = 0.5 * real(torch.min((vp - x["ret"]) ** 2, (vc - x["ret"]) ** 2), mm, s["agg"], **info)
                            t |= dict(values=x["vals"], values_new=vp, value_loss=vl, dvalues=torch.autograd.grad(vl, vp, retain_graph=True)[0])
                            (vl / W).backward()
                        o = dict(
                            adv_estimator=s["est"],
                            gamma=s["gamma"],
                            lam=s["lam"],
                            clip_ratio=s["clip"],
                            clip_ratio_low=s["low"],
                            clip_ratio_high=s["high"],
                            clip_ratio_c=s["dual"],
                            loss_agg_mode=s["agg"],
                            use_kl_loss=bool(s["kl_loss"]),
                            kl_loss_coef=s["kl_loss"],
                            kl_loss_type=s["kl_loss_type"],
                            use_kl_in_reward=bool(s["kl_reward"]),
                            kl_penalty="kl",
                            entropy_coeff=s["ent"],
                            ppo_epochs=E,
                            num_mini_batches=s["minis"],
                            temperature=s["temp"],
                            cliprange_value=s["vclip"],
                            num_items_in_batch=ntok,
                            eos_token_id=EOS,
                        ) | {"agg.denominator": "global"}
                        if s["kl_reward"]:
                            o["kl.beta"] = beta
                        if s["kl_adapt"]:
                            o["kl.adaptive"] = f"{s['kl_adapt'][0]},{s['kl_adapt'][1]},{N}"
                        if s["rollout_is"]:
                            o |= dict(rollout_is=s["rollout_is"], rollout_is_threshold=s["thr"])
                        if not s["critic"]:
                            [o.pop(k) for k in ("cliprange_value", "lam")]
                        write(
                            out,
                            f"step_{step:03d}_r{rk}_mb{mb}",
                            t,
                            dict(
                                schema=2,
                                framework="verl",
                                version="0.9.1",
                                algorithm="ppo" if s["critic"] else "grpo",
                                run=name,
                                step=step,
                                rank=rk,
                                world_size=W,
                                micro_batch=mb,
                                micro_batches=s["micros"],
                                options=o,
                                token_loss_includes_kl=False,
                                scalars={"actor/pg_clipfrac": met["actor/pg_clipfrac"]} if not s["lazy"] and bug != "dual-clip-positive" else {},
                                scalars_scope="micro_batch",
                            ),
                        )
                for p, o_ in ((model, opt), (critic, vopt)):
                    torch.nn.utils.clip_grad_norm_(p.parameters(), 1.0)
                    o_.step()


if __name__ == "__main__":
    main("g2_verl", H, B, run)
