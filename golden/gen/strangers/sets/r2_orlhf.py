"""r2: OpenRLHF 0.11.2 by its own functions (models/loss.py, models/utils.py; compute_advantages_and_returns cut out). Dump: log-probs, values, returns, advantages, scores,
token_rewards (PPO), losses, dlogp, dvalues; no token_loss. Bugs are edits of the released text or of the loop."""

import os
from world_r import *
import re, types

O = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")
EDIT = {
    "gae_of_unmasked_values": ("maker", "values = action_mask * values\n", "pass\n"),
    "whiten_var_about_zero": ("maker", "((all_advantages - mean).pow(2) * all_action_masks)", "((all_advantages).pow(2) * all_action_masks)"),
    "whiten_count_is_cells": ("maker", "num_actions = all_action_masks.sum()", "num_actions = all_action_masks.numel()"),
    "kl_added_to_reward": ("utils", "kl_reward = -kl_coef * kl", "kl_reward = kl_coef * kl"),
    "reward_at_first_token": (
        "utils",
        "action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)",
        "action_mask.long().argmax(dim=1, keepdim=True)",
    ),
    "next_value_undiscounted_delta_lambda": (
        "maker",
        "delta = rewards[:, t] + gamma * nextvalues - values[:, t]",
        "delta = rewards[:, t] + gamma * lambd * nextvalues - values[:, t]",
    ),
    "value_clip_about_new": (
        "loss",
        "values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)",
        "values_clipped = values + (old_values - values).clamp(-self.clip_eps, self.clip_eps)",
    ),
    "k2_of_probs": ("utils", "value = log_ratio**2 / 2.0", "value = (log_probs.float().exp() - log_probs_base.float().exp())**2 / 2.0"),
    "is_ratio_not_detached_new": (
        "loss",
        "is_log_ratio = (old_log_probs - rollout_log_probs).detach()",
        "is_log_ratio = (log_probs - rollout_log_probs).detach()",
    ),
    "dp_size_forgotten": ("loss", "/ batch_num_tokens * dp_size", "/ batch_num_tokens"),
    "dual_clip_on_every_sign": ("loss", "loss = -torch.where(advantages < 0, clip2, clip1)", "loss = -clip2"),
    "dual_clip_without_max": ("loss", "clip2 = torch.max(clip1, self.dual_clip * advantages)", "clip2 = torch.min(clip1, self.dual_clip * advantages)"),
    "mean_of_others_and_self_n_minus_1": (
        "maker",
        "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)",
        "rewards = (rewards - rewards.sum(-1, keepdim=True) / (rewards.shape[1] - 1)) / (rewards.std(-1, keepdim=True) + 1e-9)",
    ),
    "indices_inverted": ("maker", "rewards = rewards.reshape(-1)[indices].split(exp_len)", "rewards = rewards.reshape(-1).split(exp_len)"),
    "cumulative_returns_exclusive": (
        "maker",
        "            returns[:, t] = cumulative_return\n",
        "            returns[:, t] = cumulative_return - rewards[:, t]\n",
    ),
    "clip_high_is_low": ("loss", "1 + self.clip_eps_high) * advantages", "1 + self.clip_eps_low) * advantages"),
}


def load(bug):
    src = {
        "utils": open(O + "models/utils.py").read(),
        "loss": open(O + "models/loss.py").read(),
        "maker": open(O + "trainer/ppo_utils/experience_maker.py").read(),
    }
    if bug in EDIT:
        f, a, b = EDIT[bug]
        assert a in src[f], bug
        src[f] = src[f].replace(a, b)
    mk = src["maker"]
    i = mk.index("    def compute_advantages_and_returns")
    j = mk.find("\n    def ", mk.index("def get_cumulative_returns"))
    k = mk.find("\nclass ", i)
    ends = [e for e in (j, k) if e > 0]
    mk = mk[: min(ends)] if ends else mk
    mk = mk[i:]
    mk = mk[: mk.index("        return returns\n") + len("        return returns\n")] if "        return returns\n" in mk else mk
    dec = src["maker"][:i].rstrip().split("\n")[-1]
    u = {}
    exec("from __future__ import annotations\n" + src["utils"].replace("import deepspeed\n", ""), u)
    l = {"masked_mean": u["masked_mean"]}
    exec("from __future__ import annotations\n" + src["loss"].replace("from .utils import masked_mean", ""), l)
    m = dict(
        torch=torch,
        itertools=__import__("itertools"),
        compute_reward=u["compute_reward"],
        apply_length_penalties=lambda *a: None,
        logger=types.SimpleNamespace(warning=print),
    )
    exec("from __future__ import annotations\nfrom typing import *\nclass Maker:\n" + mk, m)
    return u, l, m["Maker"]


NS = lambda **k: types.SimpleNamespace(**k)


def train(
    folder,
    B,
    run,
    est,
    ranks=1,
    ga=2,
    micro=8,
    tbs=32,
    epochs=2,
    kl0=0.0,
    use_loss=False,
    kest="k1",
    lam=1.0,
    gamma=1.0,
    clip=(0.2, 0.2),
    dual=None,
    agg="token-mean",
    vclip=0.2,
    isc=("off", "mask", "ratio", (0.5, 5.0)),
    ent=None,
    rollouts=2,
    N=64,
    T=28,
    seed=0,
    lr=4e-3,
):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    G = 8
    u, l, Maker = load(B)
    gae = est == "gae"
    actor = LM()
    ref = copy.deepcopy(actor)
    critic = LM(value=True) if gae else None
    with torch.no_grad():
        [p.add_(0.03 * torch.randn(p.shape, generator=g)) for n, p in ref.named_parameters() if "head" in n]
    ao = torch.optim.AdamW(actor.parameters(), lr=lr, weight_decay=0.0)
    co = torch.optim.AdamW(critic.parameters(), lr=lr, weight_decay=0.0) if gae else None
    args = NS(
        algo=NS(advantage=NS(estimator=est, gamma=gamma, lambd=lam, no_std_norm=False), kl=NS(use_loss=use_loss)),
        rollout=NS(n_samples_per_prompt=G),
        reward=NS(clip_range=(-10, 10)),
    )
    mk = Maker()
    mk.strategy = NS(args=args)
    mk.kl_ctl = NS(value=kl0)
    mk.advantage_estimator = est
    PL = l["PolicyLoss"](
        clip_eps_low=clip[0],
        clip_eps_high=clip[1],
        dual_clip=dual,
        token_level_loss=agg == "token-mean",
        policy_loss_type="ppo",
        is_correction_level=isc[0],
        is_correction_mode=isc[1],
        is_correction_gating=isc[2],
        is_correction_threshold=isc[3],
    )
    VL = l["ValueLoss"](vclip)
    step = 1
    for ro in range(rollouts):
        pid, _ = prompts(N // G, 8, g)
        pid = pid.repeat_interleave(G, 0)
        eng = actor if ro == 0 or B != "engine_of_last_rollout" else stale
        rid, gen, mask = sample(bf16_copy(eng), pid, T, g)
        stale = copy.deepcopy(actor)
        gen = gen.masked_fill(~mask, 0)
        s = sum(score(rid, mask, pid, g))
        with torch.no_grad():
            old = forward_lp(actor, pid, rid)[0]
            rlp = forward_lp(ref, pid, rid)[0]
            val = forward_lp(critic, pid, rid)[2] if gae else None
            if B == "values_one_token_late":
                val = torch.cat([val[:, 1:], val[:, -1:]], 1)
        # rows come back from the engine in another order
        order = torch.randperm(N, generator=g)
        exps = []
        for c in order.split(micro):
            kl = u["compute_approx_kl"](old[c], rlp[c], kl_estimator=kest) if not use_loss else torch.zeros_like(old[c])
            exps.append(
                NS(index=c.tolist(), rewards=s[c].clone(), kl=kl, action_mask=mask[c], values=val[c] if gae else None, info={}, action_log_probs=old[c])
            )
        kls = [e.kl for e in exps]
        mk.compute_advantages_and_returns(exps)
        cat = lambda f: torch.cat([f(e) for e in exps])
        rows = dict(
            pid=pid[order],
            rid=rid[order],
            mask=mask[order],
            old=old[order],
            ref=rlp[order],
            gen=gen[order],
            s=s[order],
            adv=cat(lambda e: e.advantages),
            ret=cat(lambda e: e.returns),
            gid=(torch.arange(N) // G)[order] + 1000 * (ro + 1),
        )
        if gae:
            rows["val"] = val[order]
        if B == "advantages_from_whole_batch_mean_per_micro":
            pass
        for ep in range(epochs):
            pi = torch.randperm(N, generator=g)
            for st in pi.split(tbs):
                tot = rows["mask"][st].sum().float() / ga
                seqs = (rows["mask"][st].sum(1) > 0).sum().float() / ga
                for k, rk in enumerate(st.chunk(ranks)):
                    for mb, ix in enumerate(rk.split(micro)):
                        x = {n: v[ix] for n, v in rows.items()}
                        info = dict(dp_size=ranks, batch_num_tokens=tot, global_batch_size=seqs)
                        if B == "tokens_of_first_micro_batch":
                            if mb == 0:
                                first = x["mask"].sum().float() * ranks
                            info["batch_num_tokens"] = first
                        lp, en, _ = forward_lp(actor, x["pid"], x["rid"])
                        old_ = x["old"]
                        pl = PL(lp, old_, x["adv"], action_mask=x["mask"], rollout_log_probs=x["gen"], **info)[0]
                        loss = pl
                        kll = ent_l = kl = None
                        if use_loss:
                            kl = u["compute_approx_kl"](lp, x["ref"], log_probs_old=old_, kl_estimator=kest, unbiased_gradient=False)
                            if B == "kl_loss_without_mask":
                                kll = kl.sum() / tot * ranks
                            else:
                                kll = l["aggregate_loss"](kl, x["mask"], **info)
                            loss = loss + kll * kl0
                        if ent is not None:
                            ent_l = l["aggregate_loss"](en, x["mask"], **info)
                            loss = loss - ent * ent_l
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / ga / ranks).backward()
                        t = dict(
                            response_ids=x["rid"],
                            response_mask=x["mask"],
                            logp_new=lp,
                            logp_old=old_,
                            logp_ref=x["ref"] if kl0 else None,
                            logp_gen=x["gen"],
                            advantages=x["adv"],
                            returns=x["ret"] if gae else None,
                            scores=x["s"],
                            group_id=x["gid"],
                            loss=loss / ga,
                            pg_loss=pl / ga,
                            kl_loss=kll / ga if kll is not None else None,
                            kl=kl,
                            entropy=en if ent is not None else None,
                            entropy_loss=ent_l / ga if ent_l is not None else None,
                            dlogp=dl / ga,
                        )
                        o = {
                            "actor.eps_clip_low_high": list(clip),
                            "actor.dual_clip": dual,
                            "actor.loss_agg_mode": agg,
                            "actor.policy_loss_type": "ppo",
                            "actor.entropy_coef": ent,
                            "algo.advantage.estimator": est,
                            "algo.advantage.gamma": gamma,
                            "algo.advantage.lambd": lam,
                            "algo.kl.init_coef": kl0,
                            "algo.kl.use_loss": use_loss,
                            "algo.kl.estimator": kest,
                            "algo.advantage.is_correction_level": isc[0],
                            "algo.advantage.is_correction_mode": isc[1],
                            "algo.advantage.is_correction_gating": isc[2],
                            "algo.advantage.is_correction_threshold": list(isc[3]),
                            "rollout.n_samples_per_prompt": G,
                            "reward.clip_range": [-10, 10],
                            "critic.value_clip": vclip,
                            "train.max_epochs": epochs,
                            "num_items_in_batch": round(float(tot * ga)),
                            "agg.denominator": "global",
                            "num_mini_batches": N // tbs,
                        }
                        meta = dict(
                            schema=1,
                            framework="openrlhf",
                            version="0.11.2",
                            algorithm="ppo" if gae else "grpo",
                            run=run,
                            step=step,
                            rank=k,
                            world_size=ranks,
                            micro_batch=mb,
                            micro_batches=ga,
                            options=o,
                            token_loss_includes_kl=False,
                        )
                        write(folder, f"step_{step:06d}_rank_{k}_mb_{mb}", meta, t)
                        if gae:
                            _, _, v = forward_lp(critic, x["pid"], x["rid"])
                            ov = x["val"]
                            vl = VL(v, ov, x["ret"], action_mask=x["mask"], **info)
                            (dv,) = torch.autograd.grad(vl, v, retain_graph=True)
                            (vl / ga / ranks).backward()
                            write(
                                folder + "/critic",
                                f"step_{step:06d}_rank_{k}_mb_{mb}",
                                meta,
                                dict(
                                    response_ids=x["rid"],
                                    response_mask=x["mask"],
                                    values=ov,
                                    values_new=v,
                                    returns=x["ret"],
                                    value_loss=vl / ga,
                                    dvalues=dv / ga,
                                ),
                            )
                            t["values"] = ov
                            write(folder, f"step_{step:06d}_rank_{k}_mb_{mb}", meta, t)
                nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
                ao.step()
                ao.zero_grad()
                if gae:
                    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                    co.step()
                    co.zero_grad()
                step += 1


S = dict(
    h_ppo_gae_klreward_2epochs=dict(est="gae", kl0=0.05, lam=0.95, micro=16, seed=11),
    h_rfpp_baseline_2rank_klloss_is=dict(
        est="reinforce_baseline",
        ranks=2,
        ga=2,
        micro=8,
        kl0=0.03,
        use_loss=True,
        kest="k2",
        clip=(0.2, 0.28),
        isc=("token", "clip", "ratio", (0.97, 1.03)),
        seed=12,
    ),
    h_group_norm_seqmean_dual_entropy=dict(
        est="group_norm",
        agg="seq-mean-token-mean",
        dual=1.5,
        ent=0.01,
        micro=16,
        epochs=2,
        isc=("seq", "mask", "ratio", (0.5, 5.0)),
        seed=13,
        lr=4e-3,
        clip=(0.1, 0.15),
    ),
)
p, f, n = S
C = {k: (k, "", "") for k in S} | {
    "b_next_value_undiscounted_delta_lambda": (p, "the TD error discounts the next value by gamma times lambda", ""),
    "b_whiten_var_about_zero": (p, "the variance of whitening is the mean square, the mean is still subtracted", ""),
    "b_kl_added_to_reward": (p, "the KL penalty is added to the token rewards, not subtracted", ""),
    "b_reward_at_first_token": (p, "the score of a response is put at its first token, not at the last", ""),
    "b_value_clip_about_new": (p, "the clipped value is the new one plus the clamped way back to the old one: it runs from the new value", ""),
    "b_values_one_token_late": (p, "old values are of the state after the token, one too late", ""),
    "b_engine_of_last_rollout": (
        p,
        "the engine samples the second rollout with the weights of the first: the weight sync is skipped",
        "asynchronous rollouts do this when they are declared",
    ),
    "b_whiten_count_is_cells": (f, "whitening divides sums over tokens by the number of all cells with padding", ""),
    "b_k2_of_probs": (f, "k2 squares the difference of probabilities, not of log-probabilities", ""),
    "b_is_ratio_not_detached_new": (
        f,
        "the engine correction takes the current log-probs over the engine's: from the second mini-batch on the ratio enters twice",
        "",
    ),
    "b_dp_size_forgotten": (f, "the loss divides by the tokens of all ranks, is averaged over the ranks and not multiplied by their number", ""),
    "b_clip_high_is_low": (f, "the upper clip bound uses the lower epsilon", "clip range 0.2, 0.2 computes this, but 0.2, 0.28 is declared"),
    "b_kl_loss_without_mask": (f, "the KL loss sums over padding too", ""),
    "b_dual_clip_without_max": (n, "dual clip takes the minimum where it should take the maximum", ""),
    "b_mean_of_others_and_self_n_minus_1": (n, "the group mean is the sum over n − 1", ""),
    "b_indices_inverted": (n, "advantages are not put back into the order of the rows: each row gets another row's", ""),
    "b_tokens_of_first_micro_batch": (f, "the token count of the first micro-batch normalises all of the step", ""),
    "b_cumulative_returns_exclusive": (n, "returns leave out the reward of the token itself", ""),
}
if __name__ == "__main__":
    main("r2_orlhf", C, S, train)
