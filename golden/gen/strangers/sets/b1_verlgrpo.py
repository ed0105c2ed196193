"""verl 0.9.1 group estimators through its own core_algos (cut out of the release). Dump: as verl's hook does (everything the loss function sees, dlogp included), entropy where there is a bonus."""

import ast, re
from world_b import *
from collections import defaultdict
from typing import Any, Callable, Optional

SRC = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")
# textual bugs: what a patched verl fork looks like
PATCH = {
    "padded_mean": [
        (
            "seq_losses = torch.sum(loss_mat * loss_mask, dim=-1) / (seq_mask + 1e-8)",
            "seq_losses = torch.sum(loss_mat * loss_mask, dim=-1) / loss_mask.shape[-1]",
        )
    ],
    "no_dp_scale": [
        (
            "loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens * dp_size",
            "loss = verl_F.masked_sum(loss_mat, loss_mask) / batch_num_tokens",
        )
    ],
    "clip_bounds_swapped": [("ratio, 1 - cliprange_low, 1 + cliprange_high\n", "ratio, 1 - cliprange_high, 1 + cliprange_low\n")],
    "dual_clip_all": [("pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)", "pg_losses = clip_pg_losses2")],
    "min_instead_of_max": [("clip_pg_losses1 = torch.maximum(", "clip_pg_losses1 = torch.minimum(")],
    "std_biased": [("id2std[idx] = torch.std(scores_tensor)", "id2std[idx] = torch.std(scores_tensor, unbiased=False)")],
    "gspo_sum": [
        (
            "negative_approx_kl_seq = torch.sum(negative_approx_kl * response_mask, dim=-1) / seq_lengths",
            "negative_approx_kl_seq = torch.sum(negative_approx_kl, dim=-1) / negative_approx_kl.shape[-1]",
        )
    ],
    "gspo_detached": [
        (
            "log_prob - log_prob.detach() + negative_approx_kl_seq.detach().unsqueeze(-1)",
            "log_prob - log_prob.detach() + 0.5 * negative_approx_kl_seq.detach().unsqueeze(-1)",
        )
    ],
    "cispo_not_detached": [("clipped_ratio_sg = clipped_ratio.detach()", "clipped_ratio_sg = clipped_ratio")],
    "rloo_no_factor": [
        (
            "scores[i] = scores[i] * response_num / (response_num - 1) - id2mean[index[i]] * response_num / (\n                    response_num - 1\n                )",
            "scores[i] = scores[i] - id2mean[index[i]] * response_num / (response_num - 1)",
        )
    ],
    "kl_wrong_way": [("kl = ref_logprob - logprob\n", "kl = logprob - ref_logprob\n")],
    "kl_plus_forward": [("return backward_score - backward_score.detach() + forward_score.detach()", "return forward_score")],
    "rfpp_whiten_unmasked": [
        (
            "scores = verl_F.masked_whiten(scores, response_mask) * response_mask",
            "scores = verl_F.masked_whiten(scores, torch.ones_like(response_mask)) * response_mask",
        )
    ],
    "is_inverse": [("log_ratio_safe: torch.Tensor = torch.clamp(log_ratio, min=", "log_ratio_safe: torch.Tensor = torch.clamp(-log_ratio, min=")],
    "is_seq_padding": [
        (
            "log_ratio_sum: torch.Tensor = verl_F.masked_sum(log_ratio, response_mask, axis=-1)",
            "log_ratio_sum: torch.Tensor = verl_F.masked_mean(log_ratio, response_mask, axis=-1)",
        )
    ],
    "remax_baseline_mean": [
        ("advantages = returns - reward_baselines.unsqueeze(-1) * response_mask", "advantages = returns - reward_baselines.mean() * response_mask")
    ],
}
WANT = [
    "agg_loss",
    "compute_grpo_outcome_advantage",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    "compute_rloo_outcome_advantage",
    "compute_remax_outcome_advantage",
    "compute_policy_loss_vanilla",
    "compute_policy_loss_gspo",
    "compute_policy_loss_cispo",
    "kl_penalty",
    "kl_penalty_forward",
]


def cut(path, names):
    s = open(SRC + path).read()
    out = []
    for n in ast.parse(s).body:
        if isinstance(n, ast.FunctionDef) and n.name in names:
            n.decorator_list = []
            out.append("\n".join(s.splitlines()[n.lineno - 1 : n.end_lineno]))
    return "\n\n".join(out)


class ActorConfig(dict):
    __getattr__ = dict.get


class AlgoConfig:
    pass


def core(bug):
    import types

    vf = types.SimpleNamespace()
    ns = dict(
        torch=torch,
        np=np,
        defaultdict=defaultdict,
        Any=Any,
        Callable=Callable,
        Optional=Optional,
        DictConfig=dict,
        ActorConfig=ActorConfig,
        AlgoConfig=AlgoConfig,
        SAFETY_BOUND=20.0,
        compute_is_metrics=lambda **k: {},
        math=math,
    )
    exec("from __future__ import annotations\n" + cut("utils/torch_functional.py", ["masked_sum", "masked_mean", "masked_var", "masked_whiten"]), ns)
    for k in ["masked_sum", "masked_mean", "masked_var", "masked_whiten"]:
        setattr(vf, k, ns[k])
    ns["verl_F"] = vf
    src = (
        cut("trainer/ppo/core_algos.py", WANT)
        + "\n\n"
        + cut("trainer/ppo/rollout_corr_helper.py", ["compute_rollout_correction_weights", "_parse_rollout_is_threshold"])
    )
    for a, b in PATCH.get(bug, []):
        assert a in src, a
        src = src.replace(a, b)
    exec("from __future__ import annotations\n" + src, ns)
    return types.SimpleNamespace(**ns)


BASE = dict(
    seed=1,
    groups=8,
    n=4,
    P=6,
    T=28,
    ranks=1,
    minis=2,
    micros=2,
    epochs=1,
    rollouts=2,
    lr=8e-3,
    temp=1.0,
    adv="grpo",
    norm_std=True,
    loss_mode="vanilla",
    agg="token-mean",
    clip=0.2,
    clip_low=None,
    clip_high=None,
    clip_c=3.0,
    use_kl=False,
    kl_coef=0.05,
    kl_type="low_var_kl",
    ent=0.0,
    bf16=True,
    is_mode=None,
    is_thr=2.0,
    reward="frac",
    tools=False,
    lsf=None,
)
H = dict(
    h_grpo_kl=dict(BASE, use_kl=True, epochs=2),
    h_drgrpo_norm=dict(
        BASE, seed=2, norm_std=False, agg="seq-mean-token-sum-norm", lsf=28, ranks=2, micros=1, clip_low=0.15, clip_high=0.28, tools=True
    ),
    h_gspo=dict(BASE, seed=3, loss_mode="gspo", agg="seq-mean-token-mean", clip_low=0.002, clip_high=0.003, epochs=2, reward="binary"),
    h_rloo_tis=dict(BASE, seed=4, adv="rloo", is_mode="token", is_thr=1.05, ent=0.01, epochs=2, temp=0.8),
    h_cispo_2ranks=dict(
        BASE,
        seed=5,
        loss_mode="cispo",
        ranks=2,
        clip_low=0.3,
        clip_high=0.2,
        use_kl=True,
        kl_type="k3+",
        kl_coef=0.1,
        adv="reinforce_plus_plus_baseline",
        epochs=2,
    ),
    h_remax_seqis=dict(
        BASE, seed=6, adv="remax", is_mode="sequence", is_thr=1.2, agg="seq-mean-token-sum", n=2, groups=10, epochs=3, minis=1, lr=5e-3
    ),
)
B = {
    "padded_mean": ("h_gspo", "seq-mean-token-mean divides each row by the padded width: short answers count less"),
    "no_dp_scale": ("h_cispo_2ranks", "the loss over the global tokens is not multiplied by dp_size, so that averaged gradients are half as large"),
    "clip_bounds_swapped": ("h_drgrpo_norm", "lower and upper clip bound are swapped: clip-higher becomes clip-lower"),
    "dual_clip_all": ("h_drgrpo_norm", "the dual clip acts on positive advantages too and takes −cA there: min with −3A"),
    "min_instead_of_max": ("h_grpo_kl", "the smaller of clipped and unclipped loss is taken: clipping is optimistic"),
    "std_biased": ("h_grpo_kl", "the group's standard deviation is over n"),
    "gspo_sum": ("h_gspo", "GSPO's length is the padded width and the sum takes in padding"),
    "gspo_detached": ("h_gspo", "GSPO's sequence log-ratio is halved before exp"),
    "cispo_not_detached": ("h_cispo_2ranks", "CISPO's clipped ratio is not detached: the gradient has a second term"),
    "rloo_no_factor": ("h_rloo_tis", "RLOO scales only the mean by n/(n−1), not the own score"),
    "kl_wrong_way": ("h_grpo_kl", "k3 of the wrong direction: exp(lp − ref)"),
    "kl_plus_forward": ("h_cispo_2ranks", "k3+ without its straight-through: the gradient is that of k3"),
    "rfpp_whiten_unmasked": ("h_cispo_2ranks", "REINFORCE++ baseline whitens over padding too"),
    "is_inverse": ("h_rloo_tis", "rollout IS weights are π_rollout/π_train"),
    "is_seq_padding": ("h_remax_seqis", "sequence IS weights are of the mean log-ratio, not of the sum"),
    "remax_baseline_mean": ("h_remax_seqis", "ReMax subtracts the batch's mean of greedy rewards, not the prompt's own"),
    "rank_shuffle": ("h_drgrpo_norm", "advantages of rank 1 are handed out in another order of rows: rolled by one"),
    "temp_missing": ("h_rloo_tis", "the training pass forgets to divide logits by the temperature, the old log-probs do not"),
    "old_recomputed": ("h_grpo_kl", "old log-probs are recomputed before the second epoch: ratios are 1 again"),
    "tool_mask_lost": ("h_drgrpo_norm", "advantages and loss are masked by the attention of the response, so that tool outputs are trained on"),
    "kl_coef_entropy_sign": ("h_rloo_tis", "the entropy bonus is added to the loss: entropy is minimised"),
    "is_on_kl_loss_twice": ("h_rloo_tis", "rollout IS weights are multiplied into advantages as well as into the loss"),
    "micro_token_mean": (
        "h_grpo_kl",
        "batch_num_tokens is that of the micro-batch, and the accumulation is not divided: the mini-batch's loss is twice too large",
    ),
}


def run(out, c, bug):
    A = core(bug)
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = copy.deepcopy(m)
    if c["use_kl"]:
        with torch.no_grad():
            for p in ref.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.01)
    R, P, T = c["ranks"], c["P"], c["T"]
    conf = ActorConfig(
        clip_ratio=c["clip"],
        clip_ratio_low=c["clip_low"],
        clip_ratio_high=c["clip_high"],
        clip_ratio_c=c["clip_c"],
        global_batch_info={},
        loss_scale_factor=c["lsf"],
    )
    step = 0
    for it in range(c["rollouts"]):
        pids, patt, pl = prompts(c["groups"], P, g)
        ids, att = pids.repeat_interleave(c["n"], 0), patt.repeat_interleave(c["n"], 0)
        eng = copy.deepcopy(m).bfloat16() if c["bf16"] else m
        resp, mask, gen = sample(eng, ids, att, T, c["temp"], g)
        full, fatt = torch.cat([ids, resp], 1), torch.cat([att, mask], 1)
        rmask = mask.clone()
        if c["tools"]:  # tool outputs in the middle of some answers: not the policy's tokens
            for i in range(0, len(resp), 3):
                rmask[i, 4:8] = False
        rm = rmask.float() if False else rmask.long()
        with torch.no_grad():
            old, refl = logps(m, full, fatt, P, c["temp"]), logps(ref, full, fatt, P, c["temp"])
        sc = reward(resp, mask, c["reward"])
        last = (mask * torch.arange(T)).argmax(1)
        if c["tools"]:
            last = (rmask * torch.arange(T)).argmax(1)
        tlr = torch.zeros(len(resp), T)
        tlr[torch.arange(len(resp)), last] = sc
        uid = np.repeat(np.arange(c["groups"]), c["n"]) + 100 * it
        base = None
        if c["adv"] == "grpo":
            adv, ret = A.compute_grpo_outcome_advantage(tlr.clone(), rm, uid, norm_adv_by_std_in_grpo=c["norm_std"])
        elif c["adv"] == "rloo":
            adv, ret = A.compute_rloo_outcome_advantage(tlr.clone(), rm, uid)
        elif c["adv"] == "reinforce_plus_plus_baseline":
            adv, ret = A.compute_reinforce_plus_plus_baseline_outcome_advantage(tlr.clone(), rm, uid)
        else:
            r2, m2, _ = sample(eng, pids, patt, T, 1.0, g, greedy=True)
            base = reward(r2, m2, c["reward"]).repeat_interleave(c["n"], 0)
            adv, ret = A.compute_remax_outcome_advantage(tlr.clone(), base, rm)
        isw = None
        if c["is_mode"]:
            isw, _ = A.compute_rollout_correction_weights(old - gen, rm, c["is_mode"], c["is_thr"])
        if bug == "is_on_kl_loss_twice":
            adv = adv * isw
        if bug == "tool_mask_lost":
            adv = (adv.sum(1, keepdim=True) / rm.sum(1, keepdim=True)) * mask
        if bug == "rank_shuffle":
            h = len(adv) // R
            adv = torch.cat([adv[:h], adv[h:].roll(1, 0) * rm[h:]])
        # verl balances the batch over ranks, then mini-batches per rank
        n = len(resp)
        per = n // R
        mb = per // c["minis"]
        mi = mb // c["micros"]
        order = torch.arange(n)
        for ep in range(c["epochs"]):
            if bug == "old_recomputed" and ep:
                with torch.no_grad():
                    old = logps(m, full, fatt, P, c["temp"])
            for k in range(c["minis"]):
                step += 1
                opt.zero_grad()
                rows_all = torch.cat([order[r * per + k * mb : r * per + (k + 1) * mb] for r in range(R)])
                bt, gbs = int(rm[rows_all].sum()), len(rows_all)
                for r in range(R):
                    for q in range(c["micros"]):
                        rows = order[r * per + k * mb + q * mi : r * per + k * mb + (q + 1) * mi]
                        lp, ent, _ = logps(m, full[rows], fatt[rows], P, 1.0 if bug == "temp_missing" else c["temp"], entropy=True)
                        lp.retain_grad()
                        conf["global_batch_info"] = dict(
                            dp_size=R,
                            batch_num_tokens=int(rm[rows].sum()) if bug == "micro_token_mean" else bt,
                            global_batch_size=gbs,
                            loss_scale_factor=c["lsf"],
                        )
                        seen = {}
                        real = A.agg_loss
                        fn = dict(vanilla=A.compute_policy_loss_vanilla, gspo=A.compute_policy_loss_gspo, cispo=A.compute_policy_loss_cispo)[
                            c["loss_mode"]
                        ]
                        fn.__globals__["agg_loss"] = lambda **kw: (seen.setdefault("tl", kw["loss_mat"]), real(**kw))[1]
                        lm = rm[rows]
                        if bug == "tool_mask_lost":
                            lm = mask[rows].long()
                        pg, met = fn(
                            old_log_prob=old[rows],
                            log_prob=lp,
                            advantages=adv[rows],
                            response_mask=lm.bool(),
                            loss_agg_mode=c["agg"],
                            config=conf,
                            rollout_is_weights=None if isw is None else isw[rows],
                        )
                        loss = pg.clone()
                        t = {}
                        if c["ent"]:
                            el = real(loss_mat=ent, loss_mask=lm.bool(), loss_agg_mode=c["agg"], **conf["global_batch_info"])
                            loss = loss + c["ent"] * el if bug == "kl_coef_entropy_sign" else loss - c["ent"] * el
                            t |= dict(entropy=ent, entropy_loss=el)
                            met["actor/entropy_loss"] = el.item()
                        if c["use_kl"]:
                            kld = A.kl_penalty(logprob=lp, ref_logprob=refl[rows], kl_penalty=c["kl_type"])
                            kl = real(loss_mat=kld, loss_mask=lm.bool(), loss_agg_mode=c["agg"], **conf["global_batch_info"])
                            loss = loss + kl * c["kl_coef"]
                            t |= dict(kl=kld, kl_loss=kl, logp_ref=refl[rows])
                        (loss / R).backward(retain_graph=True)  # FSDP averages over ranks
                        t |= dict(
                            response_mask=rmask[rows],
                            response_ids=resp[rows],
                            logp_new=lp,
                            logp_old=old[rows],
                            advantages=adv[rows],
                            scores=sc[rows],
                            token_rewards=tlr[rows],
                            group_id=torch.tensor(uid)[rows],
                            loss=loss,
                            token_loss=seen["tl"],
                            dlogp=lp.grad * R,
                            pg_loss=pg,
                            is_weights=None if isw is None else isw[rows],
                            reward_baselines=None if base is None else base[rows],
                        )
                        if isw is not None or it == 0:
                            t["logp_gen"] = gen[rows]
                        o = dict(
                            adv_estimator=c["adv"],
                            loss_mode=c["loss_mode"],
                            loss_agg_mode=c["agg"],
                            clip_ratio=c["clip"],
                            clip_ratio_low=c["clip_low"],
                            clip_ratio_high=c["clip_high"],
                            clip_ratio_c=c["clip_c"],
                            use_kl_loss=c["use_kl"],
                            entropy_coeff=c["ent"],
                            temperature=c["temp"],
                            num_mini_batches=c["minis"],
                            ppo_epochs=c["epochs"],
                            eos_token_id=EOS,
                            use_kl_in_reward=False,
                        )
                        o |= {"agg.denominator": "global", "num_items_in_batch": bt}
                        if c["use_kl"]:
                            o |= dict(kl_loss_coef=c["kl_coef"], kl_loss_type=c["kl_type"])
                        if c["adv"] == "grpo":
                            o["norm_adv_by_std_in_grpo"] = c["norm_std"]
                        if c["lsf"]:
                            o["loss_scale_factor"] = c["lsf"]
                        if c["is_mode"]:
                            o |= dict(rollout_is=c["is_mode"], rollout_is_threshold=c["is_thr"])
                        sca = {k2: float(v2) for k2, v2 in met.items()}
                        write(
                            out,
                            f"step_{step:03d}_rank_{r}_mb_{q}",
                            t,
                            framework="verl",
                            version="0.9.1",
                            algorithm="grpo",
                            run="verl-" + str(c["seed"]),
                            step=step,
                            rank=r,
                            world_size=R,
                            micro_batch=q,
                            micro_batches=c["micros"],
                            options=o,
                            scalars=sca,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("b1_verlgrpo", H, B, run)
