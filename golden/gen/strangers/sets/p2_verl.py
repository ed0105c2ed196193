"""verl 0.9.1 by its own functions (cut out of core_algos.py and torch_functional.py), dumped by a hook of the user's that writes nearly everything, with verl's option names.
Bugs are lines replaced in verl's functions or in the driver below."""

import os
from world_p import *
import ast, types, numpy as np
from collections import defaultdict

SRC = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl")


def cut(path, ns, names, edits=()):
    src = open(path).read()
    for node in ast.parse(src).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            code = "from __future__ import annotations\n" + "\n".join(src.split("\n")[node.lineno - 1 : node.end_lineno])
            for fn, old, new in edits:
                if fn == node.name:
                    assert old in code, (fn, old)
                    code = code.replace(old, new, 1)
            exec(code, ns)


def verl(edits):
    f = types.SimpleNamespace()
    n1 = dict(torch=torch, F=F, np=np)
    class_ = type("ActorConfig", (), {})
    alg = type("AlgoConfig", (), {})
    cut(SRC + "/utils/torch_functional.py", n1, {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"}, edits)
    n2 = dict(torch=torch, np=np, defaultdict=defaultdict, verl_F=types.SimpleNamespace(**n1), ActorConfig=class_, AlgoConfig=alg)
    cut(
        SRC + "/trainer/ppo/core_algos.py",
        n2,
        {
            "compute_gae_advantage_return",
            "compute_grpo_outcome_advantage",
            "compute_reinforce_plus_plus_outcome_advantage",
            "agg_loss",
            "compute_policy_loss_vanilla",
            "compute_policy_loss_gspo",
            "compute_value_loss",
            "kl_penalty",
            "kl_penalty_forward",
        },
        edits,
    )
    return types.SimpleNamespace(**n2), class_


H = dict(
    h_grpo_vanilla_klloss_2ranks=dict(
        adv="grpo",
        loss="vanilla",
        agg="token-mean",
        world=2,
        micro=2,
        minis=2,
        clip=(0.2, 0.28),
        klloss=0.02,
        kltype="low_var_kl",
        ent=0.01,
        seed=21,
        lr=6e-3,
        T=24,
        tis=None,
        holes=False,
    ),
    h_ppo_gae_klreward_holes=dict(
        adv="gae",
        loss="vanilla",
        agg="token-mean",
        world=1,
        micro=2,
        minis=2,
        clip=(0.2, 0.2),
        klloss=None,
        ent=0.0,
        seed=22,
        lr=6e-3,
        T=24,
        gamma=0.99,
        lam=0.95,
        klr=0.03,
        tis=None,
        holes=True,
    ),
    h_rfpp_gspo_tis=dict(
        adv="reinforce_plus_plus",
        loss="gspo",
        agg="seq-mean-token-mean",
        world=1,
        micro=4,
        minis=2,
        clip=(0.01, 0.02),
        klloss=None,
        ent=0.0,
        seed=23,
        lr=4e-3,
        T=28,
        gamma=1.0,
        tis=2.0,
        holes=False,
    ),
)


def run(h, bug, d):
    c = H[h]
    T, world, n = c["T"], c["world"], 4
    K, AC = verl(EDITS.get(bug, ()))
    cfg = AC()
    cfg.clip_ratio, cfg.clip_ratio_low, cfg.clip_ratio_high, cfg.gamma = c["clip"][0], c["clip"][0], c["clip"][1], c.get("gamma", 1.0)
    cfg.get = lambda k, dflt=None: dflt
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(c["seed"])
    policy = LM()
    ref = copy.deepcopy(policy)
    critic = LM(value=True)
    opt = torch.optim.AdamW(policy.parameters(), lr=c["lr"])
    copt = torch.optim.AdamW(critic.parameters(), lr=5e-3)
    engine = copy.deepcopy(policy).bfloat16()
    gae = c["adv"] == "gae"
    o = dict(
        adv_estimator=c["adv"],
        clip_ratio=c["clip"][0],
        clip_ratio_low=c["clip"][0],
        clip_ratio_high=c["clip"][1],
        clip_ratio_c=3.0,
        loss_agg_mode=c["agg"],
        loss_mode=c["loss"],
        entropy_coeff=c["ent"],
        use_kl_loss=bool(c["klloss"]),
        use_kl_in_reward=gae,
        num_mini_batches=c["minis"],
        temperature=1.0,
        eos_token_id=EOS,
    )
    if c["klloss"]:
        o |= dict(kl_loss_coef=c["klloss"], kl_loss_type=c["kltype"])
    if gae:
        o |= dict(gamma=c["gamma"], lam=c["lam"], kl_penalty="kl", kl_coef=c["klr"], cliprange_value=0.2)
    if c["adv"] == "reinforce_plus_plus":
        o |= dict(gamma=c["gamma"])
    if c["tis"]:
        o |= dict(rollout_is="token", rollout_is_threshold=c["tis"])
    if c["adv"] == "grpo":
        o |= dict(norm_adv_by_std_in_grpo=True)
    o |= {"agg.denominator": "global"}
    step = sid = 0
    for roll in range(2):
        engine.load_state_dict({k: v.bfloat16() for k, v in policy.state_dict().items()})
        pid, pam = prompts(g, 8, 8)
        pid, pam = pid.repeat_interleave(n, 0), pam.repeat_interleave(n, 0)
        ids, am, mask, gen = sample(engine, pid, pam, T, 1.0, g)
        scores, B = reward(ids, mask, T), len(ids)
        if c["holes"]:
            for i in range(B):
                L = int(mask[i].sum())
                if L > 10 and i % 2:
                    mask[i, 4:7] = False
        uid = np.arange(B) // n + 10 * roll
        gid = torch.tensor(uid)
        sids = torch.arange(B) + sid
        sid += B
        m = mask.float()
        with torch.no_grad():
            old = score_tokens(policy, ids, am, T)[0]
            rlp = score_tokens(ref, ids, am, T)[0]
            values = score_tokens(critic, ids, am, T, 1.0, True)[2] * m
        tls = torch.zeros(B, T)
        last = (torch.arange(T) * mask).max(1).values
        tls[torch.arange(B), last] = scores
        tlr, returns = tls, None
        if gae:
            kld = K.kl_penalty(old, rlp, "kl") * m
            if bug == "b_kl_reward_to_engine":
                kld = (old - gen) * m * 20
            tlr = tls - c["klr"] * kld
            if bug == "b_score_overwrites_kl":
                tlr = -c["klr"] * kld
                tlr[torch.arange(B), last] = scores
            adv, returns = K.compute_gae_advantage_return(tlr, values, m, c["gamma"], c["lam"])
        elif c["adv"] == "grpo":
            idx = uid
            if bug == "b_uid_not_reordered":
                idx = uid[np.random.default_rng(roll).permutation(B)]  # balance_batch reorders the tensors, not the uids
            adv, _ = K.compute_grpo_outcome_advantage(tlr.clone(), m, idx)
        else:
            adv, returns = K.compute_reinforce_plus_plus_outcome_advantage(tlr, m, cfg)
        if bug == "b_rank1_gets_rank0":
            adv = adv.clone()
            adv[B // 2 :] = adv[: B // 2]
        w = None
        if c["tis"]:
            lr = old - gen
            if bug == "b_is_inverted":
                lr = -lr * 3
            w = (torch.clamp(lr, -20, 20).exp() * m).clamp(max=c["tis"])
            if bug == "b_is_sequence_product":
                w = ((lr * m).sum(1, keepdim=True)).exp().clamp(max=c["tis"]) * m
        half = [torch.arange(B)[r * (B // world) : (r + 1) * (B // world)] for r in range(world)]
        perms = [x[torch.randperm(len(x), generator=g)].chunk(c["minis"]) for x in half]
        for k in range(c["minis"]):
            all_rows = torch.cat([p[k] for p in perms])
            N = int(mask[all_rows].sum())
            opt.zero_grad()
            copt.zero_grad()
            for rank in range(world):
                for mb, i in enumerate(perms[rank][k].chunk(c["micro"])):
                    lp, ent, _ = score_tokens(policy, ids[i], am[i], T)
                    vnew = score_tokens(critic, ids[i], am[i], T, 1.0, True)[2] if gae else None
                    info = dict(dp_size=world, batch_num_tokens=N, global_batch_size=len(all_rows), loss_scale_factor=None)
                    if bug == "b_tokens_of_rank":
                        info["batch_num_tokens"] = int(mask[perms[rank][k]].sum())
                    if bug == "b_tokens_of_padded_batch":
                        info["batch_num_tokens"] = len(all_rows) * T
                    cfg.global_batch_info = info
                    fn = K.compute_policy_loss_vanilla if c["loss"] == "vanilla" else K.compute_policy_loss_gspo
                    oldi, advi = old[i], adv[i]
                    if bug == "b_old_is_engine":
                        oldi = gen[i]
                    pg, met = fn(oldi, lp, advi, m[i], c["agg"], cfg, w[i] if w is not None else None)
                    loss = pg
                    kl = kll = entl = None
                    if c["ent"]:
                        entl = K.agg_loss(ent, m[i], c["agg"], **info)
                        loss = loss + c["ent"] * entl if bug == "b_entropy_sign" else loss - c["ent"] * entl
                    if c["klloss"]:
                        kl = K.kl_penalty(lp, rlp[i], c["kltype"])
                        kll = K.agg_loss(kl, m[i], c["agg"], **info)
                        loss = loss + c["klloss"] * kll
                    (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                    (loss / world).backward()
                    vl = dv = None
                    if gae:
                        vl, _ = K.compute_value_loss(vnew, returns[i], values[i], m[i], 0.2, c["agg"], **info)
                        (dv,) = torch.autograd.grad(vl, vnew, retain_graph=True)
                        vl.backward()
                    dump(
                        d,
                        dict(
                            response_ids=ids[i, -T:],
                            input_ids=ids[i],
                            attention_mask=am[i],
                            response_mask=mask[i],
                            logp_new=lp,
                            logp_old=oldi,
                            logp_gen=gen[i],
                            logp_ref=rlp[i] if c["klloss"] or gae else None,
                            advantages=advi,
                            returns=returns[i] if gae else None,
                            values=values[i] if gae else None,
                            values_new=vnew,
                            value_loss=vl,
                            dvalues=dv,
                            token_rewards=tlr[i],
                            scores=scores[i],
                            group_id=gid[i],
                            sample_id=sids[i],
                            is_weights=w[i] if w is not None else None,
                            kl=kl,
                            kl_loss=kll,
                            entropy=ent,
                            entropy_loss=entl,
                            pg_loss=pg,
                            loss=loss,
                            dlogp=dlogp,
                        ),
                        step + 1,
                        rank,
                        world,
                        mb,
                        c["micro"],
                        framework="verl",
                        version="0.9.1",
                        algorithm="ppo" if gae else "grpo",
                        align="response",
                        options=o | {"num_items_in_batch": N},
                        scalars={"actor/pg_clipfrac": met["actor/pg_clipfrac"], "actor/ppo_kl": met["actor/ppo_kl"]},
                        scalars_scope="micro_batch",
                        token_loss_includes_kl=False,
                    )
            opt.step()
            copt.step()
            step += 1


G, P, R = list(H)
C = {k: (k, "", "", "") for k in H}
EDITS = {}


def b(k, h, desc, *e, legal=""):
    C[k] = (h, k, desc, legal)
    EDITS[k] = e


b("b_uid_not_reordered", G, "the batch is balanced across ranks, the uids stay: groups are of strangers")
b("b_rank1_gets_rank0", G, "rank 1 is handed the advantages of rank 0's rows")
b("b_entropy_sign", G, "the entropy bonus is added to the loss: entropy is punished", legal="entropy_coeff=-0.01 computes this; 0.01 is declared")
b("b_tokens_of_rank", G, "the denominator is the tokens of the rank, times dp_size on top: the loss is twice too large")
b("b_tokens_of_padded_batch", G, "the denominator counts padded columns, too")
b("b_k3_reversed", G, "low_var_kl with the difference turned round", ("kl_penalty_forward", "kl = ref_logprob - logprob", "kl = logprob - ref_logprob"))
b(
    "b_dual_clip_on_positive",
    G,
    "the dual clip is chosen where the advantage is positive",
    (
        "compute_policy_loss_vanilla",
        "torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)",
        "torch.where(advantages > 0, clip_pg_losses2, clip_pg_losses1)",
    ),
)
b(
    "b_std_over_mean",
    G,
    "advantages are divided by the mean score of the group plus its deviation",
    ("compute_grpo_outcome_advantage", "(id2std[index[i]] + epsilon)", "(id2std[index[i]] + id2mean[index[i]].abs() + epsilon)"),
)
b(
    "b_hole_value_not_carried",
    P,
    "at tool tokens the next value is taken as it is (0) instead of being carried over the hole",
    (
        "compute_gae_advantage_return",
        "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues",
        "nextvalues = values[:, t] * response_mask[:, t]",
    ),
)
b(
    "b_returns_of_whitened",
    P,
    "returns are whitened advantages plus values",
    (
        "compute_gae_advantage_return",
        "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)",
        "        advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values",
    ),
)
b(
    "b_gamma_on_reward",
    P,
    "gamma multiplies the reward of the step instead of the next value",
    ("compute_gae_advantage_return", "token_level_rewards[:, t] + gamma * nextvalues", "gamma * token_level_rewards[:, t] + nextvalues"),
)
b(
    "b_value_min_for_max",
    P,
    "the optimistic bound of the clipped value loss",
    ("compute_value_loss", "torch.max(vf_losses1, vf_losses2)", "torch.min(vf_losses1, vf_losses2)"),
)
b(
    "b_value_clip_around_returns",
    P,
    "the values are clipped around the returns",
    (
        "compute_value_loss",
        "clip_by_value(vpreds, values - cliprange_value, values + cliprange_value)",
        "clip_by_value(vpreds, returns - cliprange_value, returns + cliprange_value)",
    ),
)
b("b_score_overwrites_kl", P, "the score is written over the KL penalty of the last token instead of being added")
b("b_whiten_no_bessel_eps_out", P, "whitening divides by the variance, not its root", ("masked_whiten", "torch.rsqrt(var + 1e-8)", "1 / (var + 1e-8)"))
b(
    "b_gspo_length_is_width",
    R,
    "the mean of the log-ratio is over the padded width",
    ("compute_policy_loss_gspo", "seq_lengths = torch.sum(response_mask, dim=-1).clamp(min=1)", "seq_lengths = float(response_mask.shape[-1])"),
)
b(
    "b_gspo_ratio_attached",
    R,
    "the sequence's log-ratio is not detached: every token's gradient counts twice",
    ("compute_policy_loss_gspo", "negative_approx_kl_seq.detach().unsqueeze(-1)", "negative_approx_kl_seq.unsqueeze(-1)"),
)
b(
    "b_rfpp_whiten_padding",
    R,
    "REINFORCE++ whitens over padding, too",
    (
        "compute_reinforce_plus_plus_outcome_advantage",
        "verl_F.masked_whiten(returns, response_mask)",
        "verl_F.masked_whiten(returns, torch.ones_like(response_mask))",
    ),
)
b("b_is_inverted", R, "the rollout weights are the inverse, cubed")
b("b_is_sequence_product", R, "the rollout weights are the product over the sequence although token is set", legal="rollout_is=sequence computes this")
b("b_old_is_engine", R, "old_log_probs are the engine's although the weights correct for the engine: the mismatch counts twice")
if __name__ == "__main__":
    main("p2_verl", C, run)
