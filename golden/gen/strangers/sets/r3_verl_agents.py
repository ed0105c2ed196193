"""r3: verl 0.9.1 by its own functions (cut out of core_algos.py, torch_functional.py) in an agent loop: tool holes, rewards at the last token of each turn.
Dump: everything of the hook; critic's value_loss/dvalues in files of critic/. token_loss only in the GRPO settings without entropy."""

import os
from world_r import *
import ast, types, numpy as np
from collections import defaultdict
from typing import *

W = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")
EDIT = {
    "trace_decays_over_tools": (
        "lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam",
        "lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * gamma * lam * lastgaelam",
    ),
    "returns_add_masked_next": ("returns = advantages + values", "returns = advantages + torch.cat([values[:, 1:], values[:, -1:]], 1)"),
    "dual_clip_sign": ("pg_losses3 = -advantages * clip_ratio_c", "pg_losses3 = advantages * clip_ratio_c"),
    "value_max_of_unsquared": (
        "clipped_vf_losses = torch.max(vf_losses1, vf_losses2)",
        "clipped_vf_losses = torch.max((vpreds - returns).abs(), (vpredclipped - returns).abs())",
    ),
    "baseline_of_rewarded_only": (
        "id2mean[idx] = torch.mean(scores_tensor)",
        "id2mean[idx] = torch.mean(scores_tensor[scores_tensor > 0]) if (scores_tensor > 0).any() else torch.tensor(0.0)",
    ),
    "score_is_mean_of_turns": (
        "    scores = token_level_rewards.sum(dim=-1)\n",
        "    scores = token_level_rewards.sum(dim=-1) / (token_level_rewards != 0).sum(dim=-1).clamp(min=1)\n",
    ),
    "importance_weight_after_sum": ("pg_losses = pg_losses * rollout_is_weights", "pg_losses = pg_losses * rollout_is_weights.sum() / response_mask.sum()"),
}


def cut(bug):
    ns = dict(
        torch=torch,
        np=np,
        defaultdict=defaultdict,
        Optional=Optional,
        Any=Any,
        Callable=Callable,
        AlgoConfig=type("AlgoConfig", (), {}),
        warnings=__import__("warnings"),
    )
    for path, names in (
        ("utils/torch_functional.py", ("masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value")),
        (
            "trainer/ppo/core_algos.py",
            (
                "compute_gae_advantage_return",
                "compute_grpo_outcome_advantage",
                "agg_loss",
                "compute_policy_loss_vanilla",
                "compute_value_loss",
                "kl_penalty",
                "kl_penalty_forward",
            ),
        ),
    ):
        src = open(W + path).read()
        if bug in EDIT and path.endswith("core_algos.py"):
            a, b = EDIT[bug]
            assert a in src, bug
            src = src.replace(a, b)
        for n in ast.parse(src).body:
            if isinstance(n, ast.FunctionDef) and n.name in names:
                n.decorator_list = []
                n.returns = None
                for a in n.args.args + n.args.kwonlyargs:
                    a.annotation = None
                exec(compile(ast.Module([n], []), path, "exec"), ns)
        if "verl_F" not in ns:
            ns["verl_F"] = types.SimpleNamespace(**{k: ns[k] for k in names if k in ns})
    return types.SimpleNamespace(**ns)


class Cfg(dict):
    __getattr__ = dict.get


def train(
    folder,
    B,
    run,
    est,
    ranks=1,
    ga=1,
    mini=2,
    epochs=1,
    gamma=1.0,
    lam=1.0,
    kl_in_reward=0.0,
    kl_loss=0.0,
    klk="k3",
    agg="token-mean",
    ent=0.0,
    is_level=None,
    is_high=2.0,
    norm_std=True,
    factor=None,
    c=3.0,
    lo=0.2,
    hi=0.2,
    cv=0.5,
    N=64,
    T=40,
    temp=1.0,
    rollouts=2,
    seed=0,
    lr=4e-3,
):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    G = 8
    core = cut(B)
    gae = est == "gae"
    if B == "importance_weight_after_sum":
        pass
    actor = LM()
    ref = copy.deepcopy(actor)
    critic = LM(value=True) if gae else None
    opts = [torch.optim.AdamW(m.parameters(), lr=lr, weight_decay=0.01) for m in (actor, critic) if m is not None]
    step = 1
    last_tok = None
    for ro in range(rollouts):
        pid, _ = prompts(N // G, 8, g)
        pid = pid.repeat_interleave(G, 0)
        a = torch.arange(T)[None]
        s1 = torch.randint(4, 9, (N, 1), generator=g)
        s2 = s1 + torch.randint(7, 12, (N, 1), generator=g)
        holes = ((a >= s1) & (a < s1 + 3)) | ((a >= s2) & (a < s2 + 4))
        rid, gen, cm = sample(bf16_copy(actor), pid, T, g, temp, holes)
        m = cm & ~holes
        gen = gen.masked_fill(~m, 0.0)
        nxt = torch.cat([m[:, 1:], torch.zeros(N, 1, dtype=torch.bool)], 1)
        ends = m & ~nxt
        turn = ends.long().cumsum(1) - ends.long()
        fin = sum(score(rid, m, pid, g))
        per = 0.2 * torch.randn(N, T, generator=g) * ends
        lastm = m & (turn == (ends.sum(1, keepdim=True) - 1))
        tls = per + (lastm & ends) * fin[:, None]
        given = tls.clone()
        if B == "turn_reward_on_tool_token":
            tls = torch.cat([torch.zeros(N, 1), tls[:, :-1]], 1)
        if B == "turn_rewards_cumulated":
            tls = tls.cumsum(1) * ends
        with torch.no_grad():
            old = forward_lp(actor, pid, rid, temp)[0]
            rlp = forward_lp(ref, pid, rid, temp)[0]
            val = forward_lp(critic, pid, rid)[2] if gae else None
        mf = m.float()
        uid = np.array([f"u{ro}-{i // G}" for i in range(N)])
        gid = torch.arange(N) // G + 1000 * (ro + 1)
        tlr = tls
        if kl_in_reward:
            kld = core.kl_penalty(gen if B == "kl_of_engine" else old, rlp, "kl") * mf
            tlr = tls - kl_in_reward * kld
        isw = None
        if is_level:
            lr_ = (old - gen).clamp(-20, 20)
            if is_level == "sequence":
                z = ((old - gen) * mf).sum(-1, keepdim=True)
                if B == "is_threshold_bounds_log":
                    isw = z.clamp(max=is_high).exp().expand(N, T) * mf
                else:
                    isw = (z.clamp(-20, 20).exp().expand(N, T) * mf).clamp(max=is_high)
            else:
                isw = (lr_.exp() * mf).clamp(max=is_high)
            if B == "is_mean_one_by_row":
                isw = isw / ((isw * mf).sum(1, keepdim=True) / mf.sum(1, keepdim=True))
        if gae:
            with torch.no_grad():
                adv, ret = core.compute_gae_advantage_return(tlr, val, mf, gamma, lam)
            if B == "whitened_over_tool_tokens":
                raw = ret - val
                adv = core.masked_whiten(raw, cm.float())
        else:
            ix = np.array([f"{(i % (N // ranks)) // G}" for i in range(N)]) if B == "uid_is_index_on_rank" else uid
            adv, ret = core.compute_grpo_outcome_advantage(tlr.clone(), mf, ix, norm_adv_by_std_in_grpo=norm_std)
            if B == "advantage_of_last_turn_only":
                adv = adv * lastm
            if B == "advantage_divided_by_turns":
                adv = adv / ends.sum(1, keepdim=True)
        rows = dict(pid=pid, rid=rid, m=m, cm=cm, old=old, ref=rlp, gen=gen, adv=adv, ret=ret, tlr=tlr, s=given.sum(1), gid=gid)
        if isw is not None:
            rows["isw"] = isw
        if gae:
            rows["val"] = val
        for ep in range(epochs):
            perm = torch.randperm(N, generator=g)
            for mbx in perm.chunk(mini):
                tok = rows["m"][mbx].sum().item()
                use = tok
                if B == "tokens_of_last_mini_batch":
                    use = last_tok or tok
                last_tok = tok
                for k, rk in enumerate(mbx.chunk(ranks)):
                    parts = rk.chunk(ga)
                    for mb, ixx in enumerate(parts):
                        x = {n: v[ixx] for n, v in rows.items()}
                        lp, en, _ = forward_lp(actor, x["pid"], x["rid"], temp)
                        gb = dict(dp_size=ranks, batch_num_tokens=use, global_batch_size=N // mini, loss_scale_factor=factor)
                        if B == "factor_is_longest_row":
                            gb["loss_scale_factor"] = x["m"].sum(1).max().item()
                        cfg = Cfg(clip_ratio=lo, clip_ratio_low=lo, clip_ratio_high=hi, clip_ratio_c=c, global_batch_info=gb)
                        held = []
                        real = core.agg_loss
                        w = x.get("isw")
                        if B == "is_weight_of_current_policy":
                            w = ((lp.detach() - x["gen"]).clamp(-20, 20).exp() * x["m"]).clamp(max=is_high)
                        f = core.compute_policy_loss_vanilla
                        f.__globals__["agg_loss"] = lambda **q: (held.append(q["loss_mat"]), real(**q))[1]
                        pg, met = f(
                            old_log_prob=x["old"], log_prob=lp, advantages=x["adv"], response_mask=x["m"], loss_agg_mode=agg, config=cfg, rollout_is_weights=w
                        )
                        f.__globals__["agg_loss"] = real
                        loss = pg
                        kll = kl = el = None
                        if ent:
                            el = core.agg_loss(en, x["cm"] if B == "entropy_over_tool_tokens" else x["m"], agg, **gb)
                            loss = loss - ent * el
                        if kl_loss:
                            kl = core.kl_penalty(lp, x["ref"], klk)
                            kll = core.agg_loss(kl, x["cm"] if B == "kl_loss_over_tool_tokens" else x["m"], agg, **gb)
                            loss = loss + kl_loss * kll
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / ranks).backward()
                        o = dict(
                            clip_ratio=lo,
                            clip_ratio_low=lo,
                            clip_ratio_high=hi,
                            clip_ratio_c=c,
                            loss_agg_mode=agg,
                            use_kl_loss=bool(kl_loss),
                            kl_loss_coef=kl_loss,
                            kl_loss_type=klk,
                            entropy_coeff=ent,
                            use_kl_in_reward=bool(kl_in_reward),
                            num_items_in_batch=tok,
                            num_mini_batches=mini,
                            ppo_epochs=epochs,
                            eos_token_id=EOS,
                            rollout_n=G,
                        ) | {"agg.denominator": "global"}
                        if factor:
                            o["loss_scale_factor"] = factor
                        if gae:
                            o |= {"gae.gamma": gamma, "gae.lambda": lam, "value.clip": cv, "kl.kind": "k1"}
                        else:
                            o |= {"norm_adv_by_std_in_grpo": norm_std}
                        if kl_in_reward:
                            o |= {"kl.beta": kl_in_reward, "kl.place": "token_reward"}
                        if is_level:
                            o |= {"rollout_is": is_level, "rollout_is_threshold": is_high}
                        meta = dict(
                            schema=1,
                            framework="verl",
                            version="0.9.1",
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
                        write(
                            folder,
                            f"step_{step:06d}_rank_{k}_mb_{mb}",
                            meta,
                            dict(
                                response_ids=x["rid"],
                                response_mask=x["m"],
                                logp_new=lp,
                                logp_old=x["old"],
                                logp_gen=x["gen"],
                                logp_ref=x["ref"] if kl_loss or kl_in_reward else None,
                                advantages=x["adv"],
                                returns=x["ret"] if gae else None,
                                values=x.get("val"),
                                token_rewards=x["tlr"],
                                scores=x["s"],
                                group_id=x["gid"],
                                is_weights=w,
                                kl=kl,
                                kl_loss=kll,
                                entropy=en if ent else None,
                                entropy_loss=el,
                                pg_loss=pg,
                                loss=loss,
                                dlogp=dl,
                                token_loss=held[0] if not gae and not ent else None,
                            ),
                        )
                        if gae:
                            v = forward_lp(critic, x["pid"], x["rid"])[2]
                            vl, _ = core.compute_value_loss(
                                v,
                                x["ret"],
                                x["val"],
                                x["cm"] if B == "value_loss_over_tool_tokens" else x["m"],
                                cv,
                                agg,
                                dp_size=ranks,
                                batch_num_tokens=use,
                                global_batch_size=N // mini,
                            )
                            (dv,) = torch.autograd.grad(vl, v, retain_graph=True)
                            (vl / ranks).backward()
                            write(
                                folder + "/critic",
                                f"step_{step:06d}_rank_{k}_mb_{mb}",
                                meta,
                                dict(response_ids=x["rid"], response_mask=x["m"], values=x["val"], values_new=v, returns=x["ret"], value_loss=vl, dvalues=dv),
                            )
                for q, mo in zip(opts, (actor, critic)):
                    nn.utils.clip_grad_norm_(mo.parameters(), 1.0)
                    q.step()
                    q.zero_grad()
                step += 1


S = dict(
    h_gae_turn_rewards_token_is=dict(est="gae", gamma=0.98, lam=0.9, kl_in_reward=0.05, is_level="token", is_high=1.02, epochs=2, cv=0.1, seed=21, lr=6e-3),
    h_grpo_turns_2rank_k3loss=dict(est="grpo", ranks=2, ga=2, mini=2, epochs=2, kl_loss=0.02, hi=0.28, seed=22),
    h_drgrpo_turns_sumnorm_seqis_entropy=dict(
        est="grpo",
        ga=2,
        mini=2,
        epochs=2,
        norm_std=False,
        agg="seq-mean-token-sum-norm",
        factor=50,
        c=1.3,
        ent=0.004,
        is_level="sequence",
        is_high=1.02,
        temp=0.9,
        seed=23,
        lr=6e-3,
    ),
)
p, f, n = S
C = {k: (k, "", "") for k in S} | {
    "b_trace_decays_over_tools": (p, "the GAE trace decays by gamma lambda at every tool token instead of being carried over", ""),
    "b_returns_add_masked_next": (p, "returns are the advantages plus the value of the next token", ""),
    "b_turn_reward_on_tool_token": (p, "the reward of a turn stands one token late, on the first token of the tool's answer", ""),
    "b_turn_rewards_cumulated": (p, "every turn is given the sum of all rewards so far: early rewards count several times", ""),
    "b_kl_of_engine": (
        p,
        "the KL penalty of the token rewards uses the engine's log-probs (0 at tools) instead of the trainer's",
        "a bypass mode that takes rollout log-probs as old ones computes this, but then old would be the engine's",
    ),
    "b_whitened_over_tool_tokens": (p, "mean and variance of the advantages are taken over tool tokens too", ""),
    "b_value_loss_over_tool_tokens": (p, "the value loss sums over tool tokens, too", ""),
    "b_value_max_of_unsquared": (p, "the value loss is the maximum of absolute errors, half of it, not of squares", ""),
    "b_is_weight_of_current_policy": (
        p,
        "importance weights are recomputed with the current policy in each mini-batch: the update's ratio is counted twice",
        "",
    ),
    "b_uid_is_index_on_rank": (f, "the uid is the index of the prompt on its rank: groups of two ranks are merged", ""),
    "b_score_is_mean_of_turns": (f, "the score of a trajectory is the mean of its turns' rewards where token rewards are summed", ""),
    "b_advantage_of_last_turn_only": (f, "only the last turn gets the advantage, earlier turns get 0 but count as tokens", ""),
    "b_kl_loss_over_tool_tokens": (f, "the KL loss sums over tool tokens, too", ""),
    "b_tokens_of_last_mini_batch": (f, "the count of tokens is that of the mini-batch before", ""),
    "b_dual_clip_sign": (n, "the bound of the dual clip has the wrong sign", ""),
    "b_baseline_of_rewarded_only": (n, "the baseline is the mean of the group's positive scores only", ""),
    "b_is_threshold_bounds_log": (n, "the threshold bounds the log of the sequence weight instead of the weight", "a larger threshold, e^1.02, computes this"),
    "b_factor_is_longest_row": (n, "sums are divided by the longest response of the micro-batch instead of the declared constant", ""),
    "b_entropy_over_tool_tokens": (n, "the entropy bonus sums over tool tokens, too", ""),
    "b_importance_weight_after_sum": (n, "every token is multiplied by the mean importance weight of the micro-batch", ""),
}
if __name__ == "__main__":
    main("r3_verl_agents", C, S, train)
