# OpenRLHF 0.11.2's PPO with a critic, REINFORCE++ and group estimators through its own functions (models/loss.py, models/utils.py, ppo_utils/experience_maker.py, length_penalty.py).
# The loop is a user's: actor and critic are trained on the same micro-batches. Dumps everything but logits; gradients of log-probs and values, logged scalars.
import os, sys

sys.path.insert(0, os.path.dirname(__file__))
from world_a import *
import itertools, logging
from types import SimpleNamespace as NS
from typing import *

R = "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/"
D = {
    "actor.eps_clip_low_high": [0.2, 0.2],
    "actor.dual_clip": None,
    "actor.loss_agg_mode": "token-mean",
    "actor.policy_loss_type": "ppo",
    "actor.entropy_coef": None,
    "critic.value_clip": 0.2,
    "algo.advantage.estimator": "gae",
    "algo.advantage.gamma": 1.0,
    "algo.advantage.lambd": 1.0,
    "algo.advantage.no_std_norm": False,
    "algo.advantage.is_correction_level": "off",
    "algo.advantage.is_correction_mode": "mask",
    "algo.advantage.is_correction_gating": "ratio",
    "algo.advantage.is_correction_threshold": [0.5, 5.0],
    "algo.kl.estimator": "k1",
    "algo.kl.use_loss": False,
    "algo.kl.init_coef": 0.05,
    "algo.kl.unbiased_gradient": False,
    "reward.clip_range": [-10.0, 10.0],
    "reward.stop_properly_penalty_coef": None,
    "rollout.n_samples_per_prompt": 1,
    "rollout.temperature": 1.0,
    "rollout.batch_size": 32,
    "rollout.max_new_tokens": 24,
    "train.batch_size": 16,
    "train.micro_batch_size": 8,
    "train.max_epochs": 1,
    "train.dynamic_batch_enable": False,
}
W = dict(world=1, seed=1, rollouts=2, lr=1e-2, engine=torch.bfloat16, autocast=False, eos_bias=1.0)
HEALTHY = {
    "h_gae_value_clip": dict(W, o={"algo.advantage.lambd": 0.95, "algo.advantage.gamma": 0.99, "train.max_epochs": 2}, seed=21),
    "h_reinforcepp_k2_dual": dict(
        W,
        o={
            "algo.advantage.estimator": "reinforce",
            "algo.advantage.gamma": 0.98,
            "algo.kl.estimator": "k2",
            "actor.dual_clip": 1.3,
            "actor.eps_clip_low_high": [0.1, 0.25],
        },
        seed=22,
        lr=2e-2,
    ),
    "h_groupnorm_k3loss_dynamic": dict(
        W,
        o={
            "algo.advantage.estimator": "group_norm",
            "rollout.batch_size": 8,
            "rollout.n_samples_per_prompt": 4,
            "algo.kl.use_loss": True,
            "algo.kl.estimator": "k3",
            "train.dynamic_batch_enable": True,
            "algo.kl.init_coef": 0.1,
            "train.max_epochs": 2,
        },
        seed=23,
    ),
    "h_rloo_tis_bf16": dict(
        W,
        o={
            "algo.advantage.estimator": "rloo",
            "rollout.batch_size": 8,
            "rollout.n_samples_per_prompt": 4,
            "algo.advantage.is_correction_level": "token",
            "algo.advantage.is_correction_mode": "clip",
            "algo.advantage.is_correction_threshold": [0.98, 1.02],
            "algo.kl.use_loss": True,
            "algo.kl.estimator": "k2",
            "reward.clip_range": [-1.0, 1.0],
        },
        seed=24,
        autocast=True,
    ),
    "h_drgrpo_stop_seqmean": dict(
        W,
        o={
            "algo.advantage.estimator": "dr_grpo",
            "rollout.batch_size": 8,
            "rollout.n_samples_per_prompt": 4,
            "actor.loss_agg_mode": "seq-mean-token-mean",
            "reward.stop_properly_penalty_coef": 0.3,
            "algo.kl.init_coef": 0.02,
            "actor.entropy_coef": 0.01,
            "actor.eps_clip_low_high": [0.2, 0.28],
            "rollout.temperature": 1.2,
        },
        seed=25,
        lr=2e-2,
        eos_bias=0.4,
    ),
    "h_rfbaseline_2ranks_seqmask": dict(
        W,
        o={
            "algo.advantage.estimator": "reinforce_baseline",
            "rollout.batch_size": 8,
            "rollout.n_samples_per_prompt": 4,
            "algo.advantage.is_correction_level": "seq",
            "algo.advantage.is_correction_threshold": [0.999, 1.001],
            "algo.kl.use_loss": True,
            "algo.kl.estimator": "k3",
            "algo.kl.unbiased_gradient": True,
            "train.micro_batch_size": 4,
            "algo.kl.init_coef": 0.1,
        },
        world=2,
        seed=26,
        lr=2e-2,
    ),
}
A, B_, C, E_, F_, G = list(HEALTHY)
LOSS, UTIL, EXP, PEN = "models/loss.py", "models/utils.py", "trainer/ppo_utils/experience_maker.py", "trainer/ppo_utils/length_penalty.py"
PATCH = {  # edits of the released functions
    "gae_next_value": (EXP, "values[:, t + 1] if t < response_length - 1", "values[:, t] if t < response_length - 1"),
    "gae_no_discount_delta": (EXP, "delta = rewards[:, t] + gamma * nextvalues - values[:, t]", "delta = rewards[:, t] + nextvalues - values[:, t]"),
    "gae_lambda_once": (EXP, "lastgaelam = delta + gamma * lambd * lastgaelam", "lastgaelam = delta + lambd * lastgaelam"),
    "returns_after_whiten": (
        EXP,
        "exp.advantages = (exp.advantages - mean) * rstd",
        "exp.advantages = (exp.advantages - mean) * rstd; exp.returns = exp.advantages + exp.values if exp.values is not None else exp.returns",
    ),
    "whiten_with_padding": (
        EXP,
        "all_action_masks = torch.cat([exp.action_mask.flatten() for exp in experiences], dim=0)",
        "all_action_masks = torch.cat([torch.ones_like(exp.action_mask).flatten() for exp in experiences], dim=0)",
    ),
    "whiten_var_for_std": (EXP, "rstd = var.clamp(min=1e-8).rsqrt()", "rstd = 1 / var.clamp(min=1e-8)"),
    "rtg_forward": (
        EXP,
        "for t in reversed(range(response_length)):\n            cumulative_return",
        "for t in range(response_length):\n            cumulative_return",
    ),
    "group_columns": (
        EXP,
        "rewards = rewards.reshape(-1, args.rollout.n_samples_per_prompt)",
        "rewards = rewards.reshape(args.rollout.n_samples_per_prompt, -1).t()",
    ),
    "group_no_center": (
        EXP,
        "(rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)",
        "rewards / (rewards.std(-1, keepdim=True) + 1e-9)",
    ),
    "rloo_divides_by_n": (
        EXP,
        "(rewards.sum(-1, keepdim=True) - rewards) / (args.rollout.n_samples_per_prompt - 1)",
        "(rewards.sum(-1, keepdim=True) - rewards) / args.rollout.n_samples_per_prompt",
    ),
    "score_at_last_column": (
        UTIL,
        "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)",
        "eos_indices = torch.full((action_mask.size(0), 1), action_mask.size(1) - 1)",
    ),
    "kl_reward_sign": (UTIL, "kl_reward = -kl_coef * kl", "kl_reward = kl_coef * kl"),
    "k2_no_half": (UTIL, "value = log_ratio**2 / 2.0", "value = log_ratio**2"),
    "k3_swapped": (UTIL, "value = (-k3_log_ratio).exp() - 1 + k3_log_ratio", "value = k3_log_ratio.exp() - 1 - k3_log_ratio"),
    "dual_clip_all_signs": (LOSS, "loss = -torch.where(advantages < 0, clip2, clip1)", "loss = -clip2"),
    "clip_symmetric_low": (
        LOSS,
        "surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages",
        "surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_low) * advantages",
    ),
    "tis_ratio_reversed": (
        LOSS,
        "is_log_ratio = (old_log_probs - rollout_log_probs).detach()",
        "is_log_ratio = (rollout_log_probs - old_log_probs).detach()",
    ),
    "seq_stat_unmasked": (
        LOSS,
        "stat = masked_mean(is_log_ratio, action_mask, dim=-1).unsqueeze(-1) if seq_level",
        "stat = is_log_ratio.sum(-1, keepdim=True) if seq_level",
    ),
    "value_clip_min": (LOSS, "loss = torch.max(surr1, surr2)", "loss = torch.min(surr1, surr2)"),
    "value_clip_around_returns": (
        LOSS,
        "values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)",
        "values_clipped = returns + (values - returns).clamp(-self.clip_eps, self.clip_eps)",
    ),
    "no_dp_size": (LOSS, "return (loss * loss_mask).sum() / batch_num_tokens * dp_size", "return (loss * loss_mask).sum() / batch_num_tokens"),
    "row_mean_of_padded": (LOSS, "seq_loss = (loss * loss_mask).sum(dim=-1) / (token_counts + 1e-8)", "seq_loss = (loss * loss_mask).mean(dim=-1)"),
    "stop_penalty_all": (PEN, "if truncated_flags[j].item():", "if not truncated_flags[j].item():"),
    "is_weight_not_detached_kl": (
        UTIL,
        "w = (log_probs.float() - log_probs_old.float()).exp().clamp(max=KL_IS_WEIGHT_CLIP).detach()",
        "w = (log_probs_old.float() - log_probs.float()).exp().clamp(max=KL_IS_WEIGHT_CLIP).detach()",
    ),
}
BUGS = {
    "b_gae_next_value": (A, "GAE bootstraps with V of the same step instead of the next one."),
    "b_gae_no_discount_delta": (A, "The TD error does not discount the next value."),
    "b_gae_lambda_once": (A, "GAE decays by lambda alone, gamma is lost in the recursion."),
    "b_returns_after_whiten": (A, "Returns are whitened advantages plus values, so the critic learns targets in the wrong units."),
    "b_value_clip_min": (A, "The value loss takes the smaller of the clipped and the unclipped square."),
    "b_value_clip_around_returns": (
        A,
        "The value is clipped around the return instead of the old value, so the larger square is always the unclipped one and nothing is ever clipped.",
    ),
    "b_kl_reward_sign": (A, "The KL penalty is added to the rewards, so drifting from the reference is paid."),
    "b_score_at_last_column": (A, "The score goes to the last column, which is padding for short answers, so GAE loses it."),
    "b_values_shifted": (A, "The critic's values are those of the states after the token (no shift of one to the left): V has seen the action."),
    "b_whiten_with_padding": (B_, "Mean and variance of the advantages run over the padding too."),
    "b_whiten_var_for_std": (B_, "Advantages are divided by the variance instead of its root."),
    "b_rtg_forward": (B_, "The return accumulates from the first token on, so it holds past rewards instead of future ones."),
    "b_dual_clip_all_signs": (B_, "The dual clip's lower bound is applied to every sign of the advantage."),
    "b_clip_symmetric_low": (B_, "The upper clip bound is the lower one (clip-higher is lost)."),
    "b_k2_no_half": (B_, "k2 lacks its factor of one half."),
    "b_group_columns": (C, "The rewards are reshaped to (n, prompts) and transposed, so a group holds rows of different prompts."),
    "b_group_no_center": (C, "Rewards are divided by the group's deviation without subtracting its mean."),
    "b_k3_swapped": (C, "k3 is taken of the log-ratio with the wrong sign."),
    "b_dynamic_local_tokens": (
        C,
        "With dynamic micro-batches each one divides by its own tokens, so the sum over micro-batches is several times too large and short ones weigh more.",
    ),
    "b_rloo_divides_by_n": (E_, "The leave-one-out baseline divides by n instead of n-1."),
    "b_tis_ratio_reversed": (E_, "The engine correction is pi_rollout over pi_train."),
    "b_kl_ctl_twice": (E_, "The KL loss is multiplied by its coefficient inside the term and again in the sum."),
    "b_row_mean_of_padded": (F_, "The mean of a row runs over the padded width."),
    "b_stop_penalty_all": (F_, "The penalty for responses without a proper stop is applied to those that stopped."),
    "b_entropy_sign": (F_, "The entropy term is added to the loss, so entropy is minimised."),
    "b_no_temperature_new": (F_, "The trained policy's log-probs are not divided by the temperature while those of the rollout are."),
    "b_no_dp_size": (G, "The factor dp_size is missing, so averaging over ranks halves gradient and loss."),
    "b_seq_stat_unmasked": (G, "The sequence filter judges the sum of the log-ratio over the row, not its mean over tokens."),
    "b_is_weight_inverted_kl": (G, "The importance weight of the unbiased KL gradient is pi_old over pi_new."),
    "b_rank_mask_swapped": (G, "Rank 1 gets rank 0's action masks with its own rows."),
}
ALIAS = {"is_weight_inverted_kl": "is_weight_not_detached_kl"}


def functions(bug):
    ns = dict(
        torch=torch,
        F=F,
        nn=nn,
        Optional=Optional,
        Tuple=Tuple,
        Union=Union,
        List=List,
        KL_IS_WEIGHT_CLIP=10.0,
        itertools=itertools,
        logger=logging.getLogger("x"),
        Experience=object,
    )
    f, a, b = PATCH.get(ALIAS.get(bug, bug), (None, None, None))
    pt = lambda name: [(a, b)] if f == name else []
    cut(R + UTIL, ["compute_approx_kl", "compute_reward", "masked_mean", "masked_normalize"], ns, pt(UTIL))
    cut(R + LOSS, ["aggregate_loss", "PolicyLoss", "ValueLoss"], ns, pt(LOSS))
    cut(R + PEN, ["apply_overlong_penalty", "apply_stop_properly_penalty", "apply_length_penalties"], ns, pt(PEN))
    cut(R + EXP, ["compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"], ns, pt(EXP))
    return NS(**ns)


def tree(o):
    root = NS()
    for k, v in o.items():
        at = root
        *path, last = k.split(".")
        for p in path:
            if not hasattr(at, p):
                setattr(at, p, NS())
            at = getattr(at, p)
        setattr(at, last, v)
    return root


def run(out, cfg, bug):
    o = D | cfg["o"]
    args = tree(o)
    f = functions(bug)
    torch.manual_seed(cfg["seed"])
    g = torch.Generator().manual_seed(cfg["seed"])
    gae, world, n, temp = o["algo.advantage.estimator"] == "gae", cfg["world"], o["rollout.n_samples_per_prompt"], o["rollout.temperature"]
    actor = LM(eos_bias=cfg["eos_bias"])
    ref = copy.deepcopy(actor).eval()
    critic = LM(out=1) if gae else None
    with torch.no_grad():
        for p in actor.parameters():
            p.add_(0.03 * torch.randn_like(p))
    opt = torch.optim.AdamW(actor.parameters(), lr=cfg["lr"], betas=(0.9, 0.95), weight_decay=0.0)
    copt = torch.optim.AdamW(critic.parameters(), lr=3e-3, betas=(0.9, 0.95)) if gae else None
    ploss = f.PolicyLoss(
        *o["actor.eps_clip_low_high"],
        o["actor.dual_clip"],
        o["actor.loss_agg_mode"] == "token-mean",
        o["actor.policy_loss_type"],
        o["algo.advantage.is_correction_level"],
        o["algo.advantage.is_correction_mode"],
        o["algo.advantage.is_correction_gating"],
        o["algo.advantage.is_correction_threshold"],
    )
    vloss = f.ValueLoss(o["critic.value_clip"])
    kl_ctl = NS(value=o["algo.kl.init_coef"])
    maker = NS(strategy=NS(args=args), kl_ctl=kl_ctl, advantage_estimator=o["algo.advantage.estimator"])
    maker.get_advantages_and_returns = lambda *a: f.get_advantages_and_returns(maker, *a)
    maker.get_cumulative_returns = lambda *a: f.get_cumulative_returns(maker, *a)

    def lps(model, ids, am, T, t, entropy=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=cfg["autocast"]):
            logits = model(ids, am)[:, -T - 1 : -1]
        ls = (logits.float() / t).log_softmax(-1)
        lp = ls.gather(-1, ids[:, -T:, None])[..., 0]
        return (lp, -(ls.exp() * ls).sum(-1)) if entropy else lp

    def vals(ids, am, T):
        v = critic(ids, am)[..., 0]
        return v[:, -T:] if bug == "values_shifted" else v[:, -T - 1 : -1]

    step, sid = 0, 0
    for it in range(cfg["rollouts"]):
        up, um = prompts(o["rollout.batch_size"], g)
        pids, pm = up.repeat_interleave(n, 0), um.repeat_interleave(n, 0)
        N = len(pids)
        resp, mask, gen = generate(engine_of(actor, cfg["engine"]), pids, pm, o["rollout.max_new_tokens"], g, temp)
        T = resp.shape[1]
        ids, am = torch.cat([pids, resp], 1), torch.cat([pm, mask], 1)
        mask = mask.bool()
        score = reward_fn(resp, mask, pids, g) - 1.0
        with torch.no_grad():
            old, base = lps(actor, ids, am, T, temp), lps(ref, ids, am, T, temp)
            v = vals(ids, am, T) if gae else None
        trunc = ~(resp == EOS).any(-1)
        exps = []
        for i in range(0, N, 8):  # experiences of the forward micro-batches
            s = slice(i, i + 8)
            kl = f.compute_approx_kl(old[s], base[s], kl_estimator=o["algo.kl.estimator"]) if not o["algo.kl.use_loss"] else torch.zeros_like(old[s])
            exps.append(
                NS(
                    index=list(range(i, min(i + 8, N))),
                    rewards=score[s].clone(),
                    action_mask=mask[s],
                    values=v[s] if gae else None,
                    kl=kl,
                    info={},
                    truncated=trunc[s],
                    response_length=mask[s].sum(-1),
                )
            )
        kls = torch.cat([e.kl for e in exps])
        f.compute_advantages_and_returns(maker, exps)
        cat = lambda k: torch.cat([getattr(e, k) for e in exps])
        d = dict(
            ids=ids,
            am=am,
            resp=resp,
            mask=mask,
            old=old,
            gen=gen,
            adv=cat("advantages"),
            ret=cat("returns"),
            scores=cat("rewards"),
            group=torch.arange(N) // n + it * 1000,
            sid=torch.arange(N) + sid,
        )
        d["base"] = base
        d["klr"] = kls
        if gae:
            d["v"] = v
        sid += N
        NB = N // o["train.batch_size"]
        for ep in range(o["train.max_epochs"]):
            perm = torch.stack([torch.randperm(N // world, generator=g) + r * (N // world) for r in range(world)])
            for b in range(NB):
                step += 1
                per = o["train.batch_size"] // world
                rows = [perm[r][b * per : (b + 1) * per] for r in range(world)]
                tot = float(sum(d["mask"][i].sum() for i in rows))
                nseq = float(sum((d["mask"][i].sum(-1) > 0).sum() for i in rows))
                if o["train.dynamic_batch_enable"]:
                    order = rows[0][d["mask"][rows[0]].sum(-1).argsort(descending=True)]
                    micros, gas = [[order[:4], order[4:9], order[9:]]], 1
                else:
                    m_ = o["train.micro_batch_size"]
                    gas = per // m_
                    micros = [[r[i : i + m_] for i in range(0, per, m_)] for r in rows]
                opt.zero_grad()
                copt and copt.zero_grad()
                for j in range(len(micros[0])):
                    for r in range(world):
                        x = {k: w[micros[r][j]] for k, w in d.items()}
                        if bug == "rank_mask_swapped" and r == 1:
                            x["mask"] = d["mask"][micros[0][j]]
                        info = dict(dp_size=world, batch_num_tokens=torch.tensor(tot / gas), global_batch_size=torch.tensor(nseq / gas))
                        if bug == "dynamic_local_tokens":
                            info["batch_num_tokens"] = x["mask"].sum().float()
                        lp, ent = lps(actor, x["ids"], x["am"], T, 1.0 if bug == "no_temperature_new" else temp, entropy=True)
                        pg, clipfrac, ppo_kl, _, _ = ploss(lp, x["old"], x["adv"], action_mask=x["mask"], rollout_log_probs=x["gen"], **info)
                        kl, kl_loss = None, None
                        loss = pg
                        if o["algo.kl.use_loss"]:
                            kl = f.compute_approx_kl(
                                lp,
                                x["base"],
                                log_probs_old=x["old"],
                                kl_estimator=o["algo.kl.estimator"],
                                unbiased_gradient=o["algo.kl.unbiased_gradient"],
                            )
                            kl_loss = f.aggregate_loss(kl * kl_ctl.value if bug == "kl_ctl_twice" else kl, x["mask"], **info)
                            loss = loss + kl_loss * kl_ctl.value
                        el = None
                        if o["actor.entropy_coef"] is not None:
                            el = f.aggregate_loss(ent, x["mask"], **info)
                            loss = loss + el * o["actor.entropy_coef"] * (1 if bug == "entropy_sign" else -1)
                        loss = loss / gas
                        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / world).backward()
                        t = dict(
                            input_ids=x["ids"],
                            attention_mask=x["am"],
                            response_ids=x["resp"],
                            response_mask=x["mask"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            logp_ref=x["base"],
                            kl=kl if kl is not None else x["klr"],
                            entropy=ent,
                            advantages=x["adv"],
                            returns=x["ret"],
                            scores=x["scores"],
                            group_id=x["group"],
                            sample_id=x["sid"],
                            loss=loss,
                            pg_loss=pg / gas,
                            dlogp=dlogp,
                        )
                        if kl_loss is not None:
                            t["kl_loss"] = kl_loss / gas
                        if el is not None:
                            t["entropy_loss"] = el / gas
                        if gae:
                            vn = vals(x["ids"], x["am"], T)
                            vl = vloss(vn, x["v"], x["ret"], action_mask=x["mask"], **info) / gas
                            (dv,) = torch.autograd.grad(vl, vn, retain_graph=True)
                            (vl / world).backward()
                            t |= dict(values=x["v"], values_new=vn, value_loss=vl, dvalues=dv)
                        opts = dict(o) | {
                            "num_items_in_batch": tot,
                            "agg.denominator": "global",
                            "kl.beta": kl_ctl.value,
                            "eos_token_id": EOS,
                            "num_mini_batches": NB,
                        }
                        out.dump(
                            step,
                            t,
                            r,
                            j,
                            framework="openrlhf",
                            version="0.11.2",
                            algorithm="ppo" if gae else "grpo",
                            world_size=world,
                            micro_batches=len(micros[0]),
                            options=opts,
                            token_loss_includes_kl=False,
                            scores_shaped=True,
                        )
                nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
                opt.step()
                if gae:
                    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                    copt.step()


if __name__ == "__main__":
    main("a2_orlhf", HEALTHY, BUGS, run)
