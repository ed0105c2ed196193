# verl 0.9.1's PPO (GAE) with a critic through its own core_algos, torch_functional and apply_kl_penalty; the loop is a worker's: mini-batches, micro-batches, 2 epochs, ranks.
# Dumps what the driver and both workers know (token rewards, values, returns, token losses, dlogp, dvalues); settings with lazy=True leave out token_loss, kl, entropy, dvalues and scalars.
import os, sys

sys.path.insert(0, os.path.dirname(__file__))
from world_a import *
import numpy as np
from types import SimpleNamespace as NS
from typing import *

CORE, TF, RAY = (f"verl-0.9.1/verl/{x}.py" for x in ("trainer/ppo/core_algos", "utils/torch_functional", "trainer/ppo/ray_trainer"))


class C(dict):
    __getattr__ = dict.__getitem__


D = dict(
    clip_ratio=0.2,
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
    clip_ratio_c=3.0,
    loss_agg_mode="token-mean",
    entropy_coeff=0.0,
    use_kl_loss=False,
    kl_loss_coef=0.001,
    kl_loss_type="low_var_kl",
    loss_scale_factor=None,
    ppo_epochs=2,
    ppo_mini_batch_size=16,
    ppo_micro_batch_size_per_gpu=8,
    cliprange_value=0.5,
    gamma=1.0,
    lam=0.95,
    use_kl_in_reward=False,
    kl_penalty="kl",
    kl_ctrl=None,
    temperature=1.0,
)
W = dict(B=32, T=24, world=1, seed=1, rollouts=2, lr=1e-2, clr=5e-3, engine=torch.float32, eos_bias=1.0, holes=False, tis=None, lazy=False)
HEALTHY = {
    "h_adaptive_klreward": dict(
        W,
        o=dict(use_kl_in_reward=True, kl_ctrl=dict(type="adaptive", kl_coef=0.1, target_kl=0.02, horizon=200), gamma=0.99, cliprange_value=0.2),
        seed=31,
        rollouts=3,
        ppo_epochs=1,
    ),
    "h_2ranks_seqmean_dual": dict(
        W,
        o=dict(loss_agg_mode="seq-mean-token-mean", clip_ratio_c=1.5, clip_ratio_low=0.1, clip_ratio_high=0.3, ppo_micro_batch_size_per_gpu=4),
        world=2,
        seed=32,
        lr=2e-2,
    ),
    "h_tool_holes_klloss": dict(W, o=dict(use_kl_loss=True, kl_loss_coef=0.05, entropy_coeff=0.01, gamma=0.97, lam=0.9), holes=True, seed=33, T=32),
    "h_tis_seqsum_2ranks": dict(
        W,
        o=dict(loss_agg_mode="seq-mean-token-sum", temperature=0.8, ppo_micro_batch_size_per_gpu=8, cliprange_value=0.3),
        world=2,
        tis=1.02,
        engine=torch.bfloat16,
        seed=34,
        lr=1e-2,
    ),
    "h_lazy_fixedkl_mse": dict(
        W,
        o=dict(use_kl_in_reward=True, kl_penalty="mse", kl_ctrl=dict(type="fixed", kl_coef=0.3), lam=1.0, cliprange_value=10.0),
        lazy=True,
        seed=35,
        lr=1.5e-2,
    ),
    "h_sumnorm_k3plus": dict(
        W,
        o=dict(
            loss_agg_mode="seq-mean-token-sum-norm",
            loss_scale_factor=32,
            use_kl_loss=True,
            kl_loss_type="k3+",
            kl_loss_coef=0.1,
            ppo_mini_batch_size=8,
        ),
        seed=36,
        lr=8e-3,
        B=16,
    ),
}
A, B_, C_, E_, F_, G = list(HEALTHY)
PATCH = {
    "kl_ctrl_divided": (
        CORE,
        "proportional_error = np.clip(current_kl / target - 1, -0.2, 0.2)",
        "proportional_error = np.clip(1 - current_kl / target, -0.2, 0.2)",
    ),
    "kl_mask_forgotten_score": (
        RAY,
        "token_level_rewards = token_level_scores - beta * kld",
        "token_level_rewards = (token_level_scores - beta * kld).sum(-1, keepdim=True) * response_mask / response_mask.sum(-1, keepdim=True)",
    ),
    "gae_gamma_lam_swapped": (
        CORE,
        "delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]\n            lastgaelam_ = delta + gamma * lam * lastgaelam",
        "delta = token_level_rewards[:, t] + lam * nextvalues - values[:, t]\n            lastgaelam_ = delta + gamma * lam * lastgaelam",
    ),
    "returns_whitened": (
        CORE,
        "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns",
        "        advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values\n    return advantages, returns",
    ),
    "no_whiten_mean": (TF, "whitened = (values - mean) * torch.rsqrt(var + 1e-8)", "whitened = values * torch.rsqrt(var + 1e-8)"),
    "whiten_rows": (
        CORE,
        "        advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns\n\n\n# NOTE(sgm)",
        "        advantages = torch.stack([verl_F.masked_whiten(a, m) if m.sum() > 1 else a * 0 for a, m in zip(advantages, response_mask)])\n    return advantages, returns\n\n\n# NOTE(sgm)",
    ),
    "hole_values_bootstrap": (
        CORE,
        "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues",
        "nextvalues = values[:, t]",
    ),
    "hole_gae_reset": (
        CORE,
        "lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam\n\n            advantages_reversed.append(lastgaelam)\n        advantages = torch.stack(advantages_reversed[::-1], dim=1)\n\n        returns = advantages + values",
        "lastgaelam = lastgaelam_ * response_mask[:, t]\n\n            advantages_reversed.append(lastgaelam)\n        advantages = torch.stack(advantages_reversed[::-1], dim=1)\n\n        returns = advantages + values",
    ),
    "pg_min": (
        CORE,
        "clip_pg_losses1 = torch.maximum(\n        pg_losses1, pg_losses2\n    )",
        "clip_pg_losses1 = torch.minimum(\n        pg_losses1, pg_losses2\n    )",
    ),
    "dual_on_positive": (
        CORE,
        "pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)\n\n    # Apply rollout",
        "pg_losses = torch.where(advantages > 0, clip_pg_losses2, clip_pg_losses1)\n\n    # Apply rollout",
    ),
    "clip_bounds_swapped": (
        CORE,
        "ratio, 1 - cliprange_low, 1 + cliprange_high\n    )  # - clip(ratio, 1-cliprange, 1+cliprange) * A\n    clip_pg",
        "ratio, 1 - cliprange_high, 1 + cliprange_low\n    )  # - clip(ratio, 1-cliprange, 1+cliprange) * A\n    clip_pg",
    ),
    "vclip_around_returns": (
        CORE,
        "vpredclipped = verl_F.clip_by_value(vpreds, values - cliprange_value, values + cliprange_value)",
        "vpredclipped = verl_F.clip_by_value(vpreds, returns - cliprange_value, returns + cliprange_value)",
    ),
    "vloss_min": (CORE, "clipped_vf_losses = torch.max(vf_losses1, vf_losses2)", "clipped_vf_losses = torch.min(vf_losses1, vf_losses2)"),
    "seqmean_no_division": (
        CORE,
        "seq_losses = torch.sum(loss_mat * loss_mask, dim=-1) / (seq_mask + 1e-8)  # token-mean",
        "seq_losses = torch.mean(loss_mat * loss_mask, dim=-1)  # token-mean",
    ),
    "norm_by_width": (CORE, "if loss_scale_factor is None:\n                horizon", "if True:\n                horizon"),
    "k3plus_no_straight": (
        CORE,
        "return backward_score - backward_score.detach() + forward_score.detach()",
        "return backward_score + forward_score.detach()",
    ),
    "mse_without_half": (
        CORE,
        "return 0.5 * (logprob - ref_logprob).square()\n\n    # J. Schulman",
        "return (logprob - ref_logprob).square()\n\n    # J. Schulman",
    ),
    "no_dp_seq": (
        CORE,
        "loss = verl_F.masked_sum(seq_losses, seq_mask) / global_batch_size * dp_size  # seq-mean\n        if loss_agg_mode",
        "loss = verl_F.masked_sum(seq_losses, seq_mask) / global_batch_size  # seq-mean\n        if loss_agg_mode",
    ),
}
BUGS = {
    "b_kl_ctrl_wrong_way": (A, "The adaptive controller lowers the coefficient when KL is above its target."),
    "b_kl_ctrl_after_half": (
        A,
        "The controller counts mini-batches of 16 rows twice: it is updated twice per rollout, so beta moves at double speed.",
    ),
    "b_kl_spread": (A, "The token rewards (score minus KL) are summed and spread evenly over the response."),
    "b_kl_ref_is_old": (A, "The reference worker shares the actor's weights: its log-probs are those of the old policy and KL is zero."),
    "b_gae_gamma_lam_swapped": (A, "The TD error is discounted by lambda in place of gamma."),
    "b_returns_whitened": (A, "Returns are whitened advantages plus values."),
    "b_score_first_pad": (
        A,
        "The score is put one token behind the last response token, where the mask is 0 (rows that fill the width keep theirs).",
    ),
    "b_no_whiten_mean": (B_, "Whitening divides by the deviation but does not subtract the mean."),
    "b_whiten_per_rank": (B_, "Each rank computes the advantages of its own rows, so whitening uses the statistics of half of the batch."),
    "b_pg_min": (B_, "The policy loss takes the minimum of the two losses: it is optimistic, and clipping holds nothing."),
    "b_dual_on_positive": (B_, "The dual clip's bound is used for positive advantages instead of negative ones."),
    "b_clip_bounds_swapped": (B_, "clip_ratio_low and clip_ratio_high are swapped in the clamp."),
    "b_rank_batch_count": (B_, "The divisor counts the rows of one rank instead of the global mini-batch, while dp_size is still multiplied."),
    "b_seqmean_padded": (B_, "The token mean of a row divides by the padded width."),
    "b_hole_values_bootstrap": (C_, "GAE bootstraps from the critic's values at observation tokens."),
    "b_hole_gae_reset": (C_, "GAE's accumulator is cut at observation tokens, so reward does not reach earlier turns."),
    "b_tool_tokens_trained": (C_, "The policy loss uses the attention mask of the response: observation tokens are trained as actions."),
    "b_entropy_added": (C_, "The entropy bonus has the wrong sign."),
    "b_kl_loss_no_mask": (C_, "The KL loss is a plain mean over all cells of the micro-batch."),
    "b_tis_reversed": (E_, "The weights are pi_rollout/pi_old, the inverse of the correction."),
    "b_tis_not_truncated": (E_, "The truncation of the weights is lost."),
    "b_temp_new_only": (E_, "The update's log-probs are computed at temperature 1, rollout and old log-probs at 0.8."),
    "b_no_dp_seq": (E_, "dp_size is missing in the sequence mode, so ranks average to half of the loss."),
    "b_old_recomputed": (E_, "old_log_probs are recomputed before every mini-batch, so the ratio is always 1 and nothing clips."),
    "b_mse_without_half": (F_, "The squared KL penalty lacks its factor one half."),
    "b_ref_shifted": (
        F_,
        "The reference worker's log-probs are off by one token (gathered without the shift), so the penalty compares different tokens.",
    ),
    "b_values_stale": (F_, "The rollout's values come from a copy of the critic that was made at the start and is never refreshed."),
    "b_whiten_rows": (A, "Advantages are whitened row by row instead of over the batch."),
    "b_vloss_min": (A, "The value loss takes the smaller square."),
    "b_vclip_around_returns": (A, "The prediction is clipped around the return."),
    "b_norm_by_width": (G, "seq-mean-token-sum-norm ignores loss_scale_factor and divides by the padded width of the batch."),
    "b_k3plus_no_straight": (G, "The straight-through trick of k3+ does not remove the surrogate's value, so the KL loss is the sum of k2 and k3."),
    "b_critic_policy_adv": (G, "The critic is trained on advantages in place of returns."),
}
ALIAS = dict(kl_ctrl_wrong_way="kl_ctrl_divided", kl_spread="kl_mask_forgotten_score", seqmean_padded="seqmean_no_division")


def functions(bug):
    f, a, b = PATCH.get(ALIAS.get(bug, bug), (None, None, None))
    pt = lambda n: [(a, b)] if f == n else []
    vf = cut(TF, ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value", "entropy_from_logits"], dict(torch=torch), pt(TF))
    ns = dict(torch=torch, np=np, verl_F=NS(**vf), Optional=Optional, Any=Any, AlgoConfig=type("AlgoConfig", (), {}))
    cut(
        CORE,
        [
            "agg_loss",
            "compute_policy_loss_vanilla",
            "compute_value_loss",
            "compute_gae_advantage_return",
            "kl_penalty",
            "kl_penalty_forward",
            "AdaptiveKLController",
            "FixedKLController",
            "get_kl_controller",
        ],
        ns,
        pt(CORE),
    )
    real, seen = ns["agg_loss"], {}

    def agg(**k):
        seen.setdefault("token_loss", k["loss_mat"])
        return real(**k)

    ns["agg_loss"] = agg
    r = cut(RAY, ["apply_kl_penalty"], dict(core_algos=NS(**ns), masked_mean=vf["masked_mean"], torch=torch, DataProto=object), pt(RAY))
    return NS(**ns, apply_kl_penalty=r["apply_kl_penalty"], seen=seen, vf=NS(**vf))


class Batch(dict):
    @property
    def batch_size(s):
        return [len(s["response_mask"])]


def run(out, cfg, bug):
    o = D | cfg["o"]
    f = functions(bug)
    temp, world, T0, B = o["temperature"], cfg["world"], cfg["T"], cfg["B"]
    if "ppo_epochs" in cfg:
        o["ppo_epochs"] = cfg["ppo_epochs"]
    torch.manual_seed(cfg["seed"])
    g = torch.Generator().manual_seed(cfg["seed"])
    actor = LM(eos_bias=cfg["eos_bias"])
    ref = copy.deepcopy(actor).eval()
    critic = LM(out=1)
    frozen = copy.deepcopy(critic)
    with torch.no_grad():
        for p in actor.parameters():
            p.add_(0.03 * torch.randn_like(p))
    opt = torch.optim.AdamW(actor.parameters(), lr=cfg["lr"], weight_decay=0.01)
    copt = torch.optim.AdamW(critic.parameters(), lr=cfg["clr"], weight_decay=0.01)
    kc = o["kl_ctrl"] or dict(type="fixed", kl_coef=0.0)
    ctl = f.get_kl_controller(NS(**kc))
    step, sid = 0, 0
    vals = lambda ids, am, T: critic(ids, am)[:, -T - 1 : -1, 0]
    for it in range(cfg["rollouts"]):
        pids, pm = prompts(B, g)
        obs = None
        if cfg["holes"]:
            obs = torch.full((B, T0), -1)
            for i in range(B):
                for a in [6, 15] if i % 3 == 0 else [4 + i % 5] if i % 3 == 1 else []:
                    obs[i, a : a + 3 + i % 2] = torch.randint(2, 24, (3 + i % 2,), generator=g)
        resp, mask, gen = generate(engine_of(actor, cfg["engine"]), pids, pm, T0, g, temp, obs=obs)
        T = resp.shape[1]
        seen = (resp != PAD).long()
        ids, am = torch.cat([pids, resp], 1), torch.cat([pm, seen], 1)
        score = reward_fn(resp, mask, pids, g)
        with torch.no_grad():
            old, base, v = logps(actor, ids, am, T, temp), logps(ref, ids, am, T, temp), vals(ids, am, T)
            if bug == "kl_ref_is_old":
                base = old.clone()
            if bug == "ref_shifted":
                base = base.roll(1, 1)
            if bug == "values_stale":
                v = frozen(ids, am)[:, -T - 1 : -1, 0]
        last = seen.sum(-1) - 1
        if bug == "score_first_pad":
            last = (last + 1).clamp(max=T - 1)
        tls = torch.zeros(B, T)
        tls[torch.arange(B), last] = score
        d = dict(ids=ids, am=am, resp=resp, mask=mask, old=old, ref=base, v=v, scores=score, sid=torch.arange(B) + sid)
        sid += B
        beta = ctl.value
        if o["use_kl_in_reward"]:
            data = NS(batch=Batch(response_mask=mask, token_level_scores=tls, old_log_probs=old, ref_log_prob=base))
            f.apply_kl_penalty(data, ctl, kl_penalty=o["kl_penalty"])
            if bug == "kl_ctrl_after_half":
                f.apply_kl_penalty(NS(batch=Batch(data.batch)), ctl, kl_penalty=o["kl_penalty"])
            d["tlr"] = data.batch["token_level_rewards"]
        else:
            d["tlr"] = tls
        if bug == "whiten_per_rank":
            parts = [f.compute_gae_advantage_return(d["tlr"][s], v[s], mask[s], o["gamma"], o["lam"]) for s in (slice(0, B // 2), slice(B // 2, B))]
            d["adv"], d["ret"] = (torch.cat([p[i] for p in parts]) for i in (0, 1))
        else:
            d["adv"], d["ret"] = f.compute_gae_advantage_return(d["tlr"], v, mask, o["gamma"], o["lam"])
        if cfg["tis"]:
            dl = (old - gen) * mask
            if bug == "tis_reversed":
                dl = -dl
            w = dl.clamp(-20, 20).exp()
            d["isw"] = (w if bug == "tis_not_truncated" else w.clamp(max=cfg["tis"])) * mask
            d["gen"] = gen
        NB, per = B // o["ppo_mini_batch_size"], o["ppo_mini_batch_size"] // world
        for ep in range(o["ppo_epochs"]):
            perm = [torch.randperm(B // world, generator=g) + r * (B // world) for r in range(world)]
            for b in range(NB):
                step += 1
                rows = [p[b * per : (b + 1) * per] for p in perm]
                ntok, nseq = sum(int(mask[i].sum()) for i in rows), o["ppo_mini_batch_size"]
                if bug == "rank_batch_count":
                    nseq = per
                if bug == "old_recomputed":
                    with torch.no_grad():
                        d["old"] = logps(actor, ids, am, T, temp)
                opt.zero_grad()
                copt.zero_grad()
                m_ = o["ppo_micro_batch_size_per_gpu"]
                nm = per // m_
                for j in range(nm):
                    for r in range(world):
                        x = {k: z[rows[r][j * m_ : (j + 1) * m_]] for k, z in d.items()}
                        info = dict(dp_size=world, batch_num_tokens=ntok, global_batch_size=nseq, loss_scale_factor=o["loss_scale_factor"])
                        conf = C(o, global_batch_info=info)
                        f.seen.clear()
                        lp, ent, logits = logps(actor, x["ids"], x["am"], T, 1.0 if bug == "temp_new_only" else temp, entropy=True)
                        m = x["mask"].bool()
                        lm = (x["resp"] != PAD) if bug == "tool_tokens_trained" else m
                        pg, met = f.compute_policy_loss_vanilla(
                            old_log_prob=x["old"],
                            log_prob=lp,
                            advantages=x["adv"],
                            response_mask=lm,
                            loss_agg_mode=o["loss_agg_mode"],
                            config=conf,
                            rollout_is_weights=x.get("isw"),
                        )
                        tl = f.seen["token_loss"]
                        loss = pg
                        el = f.agg_loss(loss_mat=ent, loss_mask=m, loss_agg_mode=o["loss_agg_mode"], **info)
                        if o["entropy_coeff"]:
                            loss = loss - (-1 if bug == "entropy_added" else 1) * o["entropy_coeff"] * el
                        kld = kll = None
                        if o["use_kl_loss"]:
                            kld = f.kl_penalty(lp, x["ref"], o["kl_loss_type"])
                            kll = (
                                kld.mean()
                                if bug == "kl_loss_no_mask"
                                else f.agg_loss(loss_mat=kld, loss_mask=m, loss_agg_mode=o["loss_agg_mode"], **info)
                            )
                            loss = loss + kll * o["kl_loss_coef"]
                        vn = vals(x["ids"], x["am"], T)
                        vl, vcf = f.compute_value_loss(
                            vpreds=vn,
                            returns=x["adv"] if bug == "critic_policy_adv" else x["ret"],
                            values=x["v"],
                            response_mask=m,
                            cliprange_value=o["cliprange_value"],
                            loss_agg_mode=o["loss_agg_mode"],
                            **info,
                        )
                        (dl_,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (dv,) = torch.autograd.grad(vl, vn, retain_graph=True)
                        (loss / world).backward()
                        (vl / world).backward()
                        t = dict(
                            response_ids=x["resp"],
                            response_mask=x["mask"],
                            input_ids=x["ids"],
                            attention_mask=x["am"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_ref=x["ref"] if o["use_kl_loss"] or o["use_kl_in_reward"] else None,
                            logp_gen=x.get("gen"),
                            is_weights=x.get("isw"),
                            token_rewards=x["tlr"],
                            scores=x["scores"],
                            values=x["v"],
                            returns=x["ret"],
                            advantages=x["adv"],
                            values_new=vn,
                            loss=loss,
                            value_loss=vl,
                            dlogp=dl_,
                            sample_id=x["sid"],
                        )
                        if not cfg["lazy"]:
                            t |= dict(
                                token_loss=tl,
                                kl=kld,
                                kl_loss=kll,
                                entropy=ent,
                                entropy_loss=el if o["entropy_coeff"] else None,
                                dvalues=dv,
                                pg_loss=pg,
                            )
                        names = [k for k in D if k not in ("gamma", "lam", "kl_ctrl", "kl_penalty")]
                        opts = {k: o[k] for k in names} | {
                            "num_items_in_batch": ntok,
                            "agg.denominator": "global",
                            "num_mini_batches": NB,
                            "gae.gamma": o["gamma"],
                            "gae.lambda": o["lam"],
                            "eos_token_id": EOS,
                            "logp.temperature": temp,
                        }
                        if o["use_kl_in_reward"]:
                            opts |= {"kl.place": "token_reward", "kl.kind": {"kl": "k1", "mse": "k2"}[o["kl_penalty"]], "kl.beta": beta}
                            if kc["type"] == "adaptive":
                                opts["kl.adaptive"] = f"{kc['target_kl']},{kc['horizon']},{B}"
                        if cfg["tis"]:
                            opts |= {"tis.level": "token", "tis.rule": "truncate_upper", "tis.high": cfg["tis"]}
                        sc = {} if cfg["lazy"] else met | {"critic/vf_clipfrac": vcf.item()}
                        out.dump(
                            step,
                            t,
                            r,
                            j,
                            framework="verl",
                            version="0.9.1",
                            algorithm="ppo",
                            world_size=world,
                            micro_batches=nm,
                            options=opts,
                            scalars=sc,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        )
                nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
                opt.step()
                nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                copt.step()


if __name__ == "__main__":
    main("a3_verlppo", HEALTHY, BUGS, run)
