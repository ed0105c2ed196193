"""verl 0.9.1 by its own functions (cut out of core_algos and torch_functional); bugs are edits of their source or of the driver. Dumps actor and critic numbers, no gradients of weights."""

from world_k import *
import ast, types, numpy as np
from collections import defaultdict
from typing import *

SRC = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")


def cut(path, names, ns, edit=None):
    for n in ast.parse(open(SRC + path).read()).body:
        if isinstance(n, ast.FunctionDef) and n.name in names:
            n.decorator_list = []
            n.returns = None
            for a in n.args.args + n.args.kwonlyargs:
                a.annotation = None
            s = ast.unparse(n)
            if edit and edit[0] == n.name:
                assert edit[1] in s, (edit, s)
                s = s.replace(edit[1], edit[2])
            exec(s, ns)
    return ns


EDIT = dict(
    var_for_std=("compute_grpo_outcome_advantage", "torch.std(scores_tensor)", "torch.var(scores_tensor)"),
    dual_sign=("compute_policy_loss_vanilla", "torch.where(advantages < 0, clip_pg_losses2", "torch.where(advantages > 0, clip_pg_losses2"),
    ratio_inverted=("compute_policy_loss_vanilla", "negative_approx_kl = log_prob - old_log_prob", "negative_approx_kl = old_log_prob - log_prob"),
    rloo_baseline=("compute_rloo_outcome_advantage", "id2mean[index[i]] * response_num / (response_num - 1)", "id2mean[index[i]]"),
    whiten_nomask=(
        "compute_reinforce_plus_plus_outcome_advantage",
        "masked_whiten(returns, response_mask)",
        "masked_whiten(returns, torch.ones_like(response_mask))",
    ),
    no_dp=("agg_loss", "global_batch_size * dp_size", "global_batch_size"),
    gae_pad_values=(
        "compute_gae_advantage_return",
        "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues",
        "nextvalues = values[:, t]",
    ),
    returns_whitened=(
        "compute_gae_advantage_return",
        "    returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)",
        "    advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values",
    ),
    vclip_target=("compute_value_loss", "(vpredclipped - returns) ** 2", "(vpredclipped - values) ** 2"),
    vmin=("compute_value_loss", "torch.max(vf_losses1, vf_losses2)", "torch.min(vf_losses1, vf_losses2)"),
)


class Cfg(dict):
    __getattr__ = dict.get


base = dict(
    adv="grpo",
    agg="token-mean",
    G=8,
    n=32,
    mini=2,
    micro=2,
    epochs=1,
    world=1,
    el=0.2,
    eh=0.2,
    c=3.0,
    klloss=False,
    klt="low_var_kl",
    klc=0.01,
    klr=0.0,
    ec=0.0,
    tis=None,
    gamma=1.0,
    lam=1.0,
    T=32,
    temp=1.0,
    lr=8e-3,
    seed=11,
    steps=4,
    lsf=None,
)
H = dict(
    h_grpo_kl_loss_higher=base | dict(klloss=True, klc=0.05, eh=0.28, bf16=True),
    h_rloo_seqmean_tis=base | dict(adv="rloo", agg="seq-mean-token-mean", tis=1.03, ec=0.01, seed=12, G=4, mini=4, micro=2, temp=1.1, T=40),
    h_rfpp_kl_reward_two_ranks=base
    | dict(adv="reinforce_plus_plus", agg="seq-mean-token-sum-norm", lsf=48, world=2, gamma=0.99, klr=0.05, klt="kl", seed=13, T=28),
    h_ppo_critic_epochs=base | dict(adv="gae", lam=0.95, klr=0.02, klt="low_var_kl", epochs=2, mini=2, micro=1, seed=14, n=24, T=44, eh=0.25, steps=6),
)


def run(c, bug, out, name):
    ns = dict(torch=torch, np=np, defaultdict=defaultdict, Optional=Optional, Any=Any, AlgoConfig=types.SimpleNamespace)
    F_ = {"torch": torch}
    cut("utils/torch_functional.py", {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"}, F_)
    ns["verl_F"] = types.SimpleNamespace(**F_)
    cut(
        "trainer/ppo/core_algos.py",
        {
            "agg_loss",
            "compute_policy_loss_vanilla",
            "compute_grpo_outcome_advantage",
            "compute_rloo_outcome_advantage",
            "compute_reinforce_plus_plus_outcome_advantage",
            "compute_gae_advantage_return",
            "compute_value_loss",
            "kl_penalty",
            "kl_penalty_forward",
        },
        ns,
        EDIT.get(bug),
    )
    K = types.SimpleNamespace(**ns)
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = make(c["seed"] + 50) if c["klr"] and 0 else copy.deepcopy(m)
    if c["klr"]:
        with torch.no_grad():
            for p in ref.parameters():
                p.add_(0.03 * torch.randn(p.shape, generator=g))
    critic = make(c["seed"] + 7) if c["adv"] == "gae" else None
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"])
    copt = critic and torch.optim.AdamW(critic.parameters(), lr=8e-3)
    G, T, n, W, P, bf = c["G"], c["T"], c["n"], c["world"], 8, c.get("bf16", False)
    step = roll = 0
    while step < c["steps"]:
        pid, pam = prompts(n // G, P, g)
        pid, pam = pid.repeat_interleave(G, 0), pam.repeat_interleave(G, 0)
        ids, am, gen, pol, _ = sample(m, pid, pam, T, g, c["temp"], bf16=True)
        resp = ids[:, P:]
        mask = am[:, P:]
        maskf = mask.float()
        with torch.no_grad():
            old = score_fwd(m, ids, am, T, c["temp"], bf)[0]
            rl = score_fwd(ref, ids, am, T, c["temp"], bf)[0]
            vals = score_fwd(critic, ids, am, T)[2] if critic else None
        sc = r_even(resp, mask) + 0.5 * r_len(resp, mask)
        last = mask.sum(1) - 1
        tls = torch.zeros(n, T)
        if bug == "score_last_col":
            tls[:, -1] = sc
        elif bug == "score_everywhere":
            tls = sc[:, None] * maskf
        else:
            tls[torch.arange(n), last] = sc
        tr, kld = tls, None
        if c["klr"]:
            kld = K.kl_penalty(old, rl, c["klt"]) * mask
            tr = tls + c["klr"] * kld if bug == "kl_reward_sign" else tls - c["klr"] * kld
            if bug == "kl_no_ref":
                kld = K.kl_penalty(old, gen, c["klt"]) * mask
                tr = tls - c["klr"] * kld
        uid = np.arange(n) // G
        ret = None
        gam, lam = (c["lam"], c["gamma"]) if bug == "gamma_lam_swapped" else (c["gamma"], c["lam"])
        if c["adv"] == "grpo":
            adv, ret = K.compute_grpo_outcome_advantage(tr.clone(), mask, uid)
        if c["adv"] == "rloo":
            adv, ret = K.compute_rloo_outcome_advantage(tr.clone(), mask, uid)
        if c["adv"] == "reinforce_plus_plus":
            adv, ret = K.compute_reinforce_plus_plus_outcome_advantage(tr, mask, types.SimpleNamespace(gamma=gam))
        if c["adv"] == "gae":
            adv, ret = K.compute_gae_advantage_return(tr, vals, mask, gam, lam)
        if bug == "returns_shift":
            ret = torch.cat([ret[:, 1:], ret[:, :1] * 0], 1)
        isw = None
        if c["tis"]:
            d = old - (gen.roll(1, 1) if bug == "is_shift" else gen)
            r = torch.exp(d.clamp(-20, 20)) * mask
            isw = r.clamp(min=c["tis"]) if bug == "tis_min" else r.clamp(max=c["tis"])
        # rows of rank r: a block; mini-batches by order, as verl's driver without shuffle
        per, mb = n // W, n // W // c["mini"]
        for ep in range(c["epochs"]):
            for k in range(c["mini"]):
                if step >= c["steps"]:
                    break
                step += 1
                opt.zero_grad()
                copt and copt.zero_grad()
                rows = [torch.arange(r * per + k * mb, r * per + (k + 1) * mb) for r in range(W)]
                tok = int(sum(mask[x].sum() for x in rows))
                gbs = mb * W
                if bug == "gbs_rollout":
                    gbs = n
                for r in range(W):
                    for j, ix in enumerate(rows[r].chunk(c["micro"])):
                        lp, ent, _ = score_fwd(m, ids[ix], am[ix], T, c["temp"], bf)
                        M = mask[ix].bool()
                        t2 = int(M.sum()) if bug == "micro_tokens" else tok
                        gi = dict(dp_size=W, batch_num_tokens=t2, global_batch_size=gbs, loss_scale_factor=c["lsf"])
                        cfg = Cfg(clip_ratio=0.2, clip_ratio_low=c["el"], clip_ratio_high=c["eh"], clip_ratio_c=c["c"], global_batch_info=gi)
                        A = adv[ix]
                        held = {}
                        orig = ns["agg_loss"]
                        ns["agg_loss"] = lambda loss_mat, **kw: held.update(tl=loss_mat) or orig(loss_mat=loss_mat, **kw)
                        pg, met = K.compute_policy_loss_vanilla(
                            old_log_prob=old[ix],
                            log_prob=lp,
                            advantages=A,
                            response_mask=M,
                            loss_agg_mode=c["agg"],
                            config=cfg,
                            rollout_is_weights=None if isw is None else isw[ix],
                        )
                        ns["agg_loss"] = orig
                        loss = pg
                        klm = kll = el = None
                        if c["ec"]:
                            el = orig(loss_mat=ent, loss_mask=M, loss_agg_mode="token-mean" if bug == "entropy_token_mean" else c["agg"], **gi)
                            loss = loss - c["ec"] * el
                        if c["klloss"]:
                            klm = K.kl_penalty(old[ix] if bug == "kl_stale" else lp, rl[ix], c["klt"])
                            kll = orig(loss_mat=klm, loss_mask=M, loss_agg_mode=c["agg"], **gi)
                            loss = loss + (-1 if bug == "kl_loss_sign" else 1) * kll * c["klc"]
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        t = {}
                        if critic:
                            v = score_fwd(critic, ids[ix], am[ix], T)[2]
                            vl, vcf = K.compute_value_loss(v, ret[ix], vals[ix], M, 0.5, c["agg"], **gi)
                            (dv,) = torch.autograd.grad(vl, v, retain_graph=True)
                            vl.backward()
                            t = dict(values=vals[ix], values_new=v, returns=ret[ix], value_loss=vl, dvalues=dv)
                        o = dict(
                            adv_estimator=c["adv"],
                            loss_agg_mode=c["agg"],
                            clip_ratio=0.2,
                            clip_ratio_low=c["el"],
                            clip_ratio_high=c["eh"],
                            clip_ratio_c=c["c"],
                            use_kl_loss=c["klloss"],
                            kl_loss_type=c["klt"] if c["klloss"] else "low_var_kl",
                            kl_loss_coef=c["klc"] if c["klloss"] else 0.001,
                            use_kl_in_reward=bool(c["klr"]),
                            entropy_coeff=c["ec"],
                            ppo_epochs=c["epochs"],
                            num_items_in_batch=t2,
                            temperature=c["temp"],
                            num_mini_batches=c["mini"],
                            eos_token_id=EOS,
                            loss_scale_factor=c["lsf"],
                            gamma=c["gamma"],
                            lam=c["lam"],
                        )
                        o["agg.denominator"] = "global"
                        if c["klr"]:
                            o |= {"kl_coef": c["klr"], "kl_penalty": c["klt"], "cliprange_value": 0.5}
                        if c["tis"]:
                            o |= {"rollout_is": "token", "rollout_is_threshold": c["tis"]}
                        meta = dict(
                            framework="verl",
                            version="0.9.1",
                            algorithm="ppo" if critic else "grpo",
                            run=name,
                            step=step,
                            rank=r,
                            world_size=W,
                            micro_batch=j,
                            micro_batches=c["micro"],
                            options=o,
                            token_loss_includes_kl=False,
                            scalars={k: v_ for k, v_ in met.items() if v_ == v_} | {"actor/pg_loss": pg.item()},
                            scalars_scope="micro_batch",
                        )
                        dump(
                            out,
                            meta,
                            t
                            | dict(
                                response_ids=resp[ix],
                                response_mask=M,
                                logp_new=lp,
                                logp_old=old[ix],
                                logp_gen=gen[ix] if c["tis"] or bug == "kl_no_ref" and 0 else None,
                                logp_ref=rl[ix] if c["klloss"] or c["klr"] else None,
                                is_weights=None if isw is None else isw[ix],
                                advantages=A,
                                scores=sc[ix],
                                token_rewards=tr[ix],
                                group_id=torch.tensor(uid)[ix] + 1000 * roll,
                                sample_id=ix + 1000 * roll,
                                entropy=ent if c["ec"] else None,
                                entropy_loss=el,
                                kl=klm if klm is not None else (kld[ix] if kld is not None else None),
                                kl_loss=kll,
                                token_loss=held["tl"],
                                pg_loss=pg,
                                loss=loss,
                                dlogp=dl,
                            ),
                            f"step_{step:03d}_rank_{r}_mb_{j}",
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                copt and copt.step()
        roll += 1


a, b, c_, d_ = list(H)
B = dict(
    b_var_for_std=(a, "var_for_std", "rewards are divided by the variance of the group where its standard deviation is meant", ""),
    b_dual_clip_sign=(a, "dual_sign", "the dual clip is applied where A > 0 in place of A < 0, so positive advantages lose their objective", ""),
    b_ratio_inverted=(a, "ratio_inverted", "the ratio is exp(old-new), so the gradient of the policy term has the wrong sign", ""),
    b_kl_stale=(a, "kl_stale", "the KL loss is computed with the old log-probs, so that it has no gradient", ""),
    b_kl_loss_sign=(a, "kl_loss_sign", "the KL loss is subtracted, so that the policy is driven from the reference", ""),
    b_micro_tokens=(
        a,
        "micro_tokens",
        "every micro-batch divides by its own tokens and nothing divides by their number, so the loss of a mini-batch is twice too large",
        "",
    ),
    b_rloo_baseline=(b, "rloo_baseline", "n/(n-1) multiplies the reward but not the mean in RLOO, so advantages do not sum to zero", ""),
    b_tis_min=(b, "tis_min", "truncated importance weights are clamped from below (min for max)", ""),
    b_is_shift=(b, "is_shift", "engine log-probs are shifted by a token in the importance weights", ""),
    b_gbs_rollout=(b, "gbs_rollout", "the mean over rows divides by the rows of the rollout batch, not of the mini-batch", ""),
    b_entropy_token_mean=(
        b,
        "entropy_token_mean",
        "the entropy bonus is a token mean where losses are means of rows",
        "TRL's entropy bonus is a token mean whatever the loss is",
    ),
    b_kl_reward_sign=(c_, "kl_reward_sign", "the KL penalty is added to the rewards", ""),
    b_kl_no_ref=(c_, "kl_no_ref", "the KL penalty of the reward takes the engine's log-probs for the reference's, so it penalises nothing", ""),
    b_score_last_col=(c_, "score_last_col", "the score is put into the last column, which short responses mask out", ""),
    b_whiten_nomask=(c_, "whiten_nomask", "returns are whitened with the padding taken in as zeros", "frameworks that whiten without a mask"),
    b_no_dp=(c_, "no_dp", "the loss lacks the factor dp_size, so averaging over ranks halves it", ""),
    b_gae_pad_values=(d_, "gae_pad_values", "values of the padding enter the last step's target, GAE does not skip masked cells for them", ""),
    b_returns_whitened=(d_, "returns_whitened", "returns are made of whitened advantages", ""),
    b_vclip_target=(d_, "vclip_target", "the clipped value error is taken against old values in place of returns", ""),
    b_vmin=(d_, "vmin", "the smaller of clipped and unclipped value error is taken", ""),
    b_returns_shift=(d_, "returns_shift", "value targets are shifted by one token", ""),
    b_gamma_lam_swapped=(d_, "gamma_lam_swapped", "gamma and lambda are handed over in the wrong order", "gamma 0.95 with lam 1"),
    b_score_everywhere=(d_, "score_everywhere", "the score is added at every token of the response, not at the last alone", ""),
)
if __name__ == "__main__":
    main("k2_verl", run, H, B, lambda c: ["--profile", "verl-ppo@0.9" if c["adv"] == "gae" else "verl-grpo@0.9"])
