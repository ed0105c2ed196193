"""verl 0.9.1 by its own functions (cut out of core_algos with ast; a bug is an edit of their text or of the small trainer around them). Dump: what the workers' losses have at hand:
log-probs, mask, advantages, returns, values, token losses, losses, dlogp / dvalues, kl, scores, token rewards, groups. In case h_ppo_gae actor and critic stand in one file."""

from world_m import *
import os
import ast, numpy as np, types, re
from collections import defaultdict
from typing import *

SRC = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")


def cut(path, names, edits=()):
    s = open(SRC + path).read()
    tree = ast.parse(s)
    out = []
    for n in tree.body:
        if isinstance(n, ast.FunctionDef) and n.name in names:
            n.decorator_list = []
            n.returns = None
            [setattr(a, "annotation", None) for a in n.args.args]
            out.append(ast.unparse(n))
    s = "\n".join(out)
    for a, b in edits:
        assert a in s, a
        s = s.replace(a, b)
    return s


EDITS = {
    "gae-lam-on-delta": [("lastgaelam_ = delta + gamma * lam * lastgaelam", "lastgaelam_ = delta + gamma * lastgaelam")],
    "gae-hole-resets": [
        ("nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues", "nextvalues = values[:, t]"),
        ("lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam", "lastgaelam = lastgaelam_"),
    ],
    "returns-whitened": [
        (
            "returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)",
            "advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values",
        )
    ],
    "dual-clip-wrong-sign": [
        ("torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)", "torch.where(advantages > 0, clip_pg_losses2, clip_pg_losses1)")
    ],
    "clip-bounds-swapped": [("torch.clamp(ratio, 1 - cliprange_low, 1 + cliprange_high)", "torch.clamp(ratio, 1 - cliprange_high, 1 + cliprange_low)")],
    "dp-size-missing": [("/ batch_num_tokens * dp_size", "/ batch_num_tokens")],
    "value-unclipped-only": [("clipped_vf_losses = torch.max(vf_losses1, vf_losses2)", "clipped_vf_losses = vf_losses2")],
    "std-of-other-axis": [("id2std[idx] = torch.std(scores_tensor)", "id2std[idx] = torch.std(scores_tensor) ** 2")],
    "norm-by-own-rows": [
        (
            "loss = verl_F.masked_sum(seq_losses, seq_mask) / global_batch_size * dp_size\n        if loss_agg_mode",
            "loss = verl_F.masked_sum(seq_losses, seq_mask) / seq_mask.sum() * dp_size\n        if loss_agg_mode",
        )
    ],
    "horizon-longest": [("horizon = loss_mask.shape[-1]", "horizon = int(loss_mask.sum(-1).max())")],
    "kl-k3-reversed": [("kl = ref_logprob - logprob\n", "kl = logprob - ref_logprob\n")],
    "loo-factor-missing": [
        (
            "scores[i] * response_num / (response_num - 1) - id2mean[index[i]] * response_num / (response_num - 1)",
            "scores[i] - id2mean[index[i]] * response_num / (response_num - 1)",
        )
    ],
    "cispo-not-detached": [("clipped_ratio_sg = clipped_ratio.detach()", "clipped_ratio_sg = clipped_ratio")],
}


def lib(bug):
    ns = dict(torch=torch, np=np, defaultdict=defaultdict, Optional=Optional, Any=Any)
    exec(cut("utils/torch_functional.py", ("masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value")), ns)
    ns["verl_F"] = types.SimpleNamespace(**ns)
    ns["ActorConfig"] = Cfg
    ns["AlgoConfig"] = type("AlgoConfig", (), {})
    exec(
        "from __future__ import annotations\n"
        + cut(
            "trainer/ppo/core_algos.py",
            (
                "agg_loss",
                "compute_gae_advantage_return",
                "compute_grpo_outcome_advantage",
                "compute_rloo_outcome_advantage",
                "compute_policy_loss_vanilla",
                "compute_policy_loss_cispo",
                "compute_value_loss",
                "kl_penalty",
                "kl_penalty_forward",
            ),
            EDITS.get(bug, ()),
        ),
        ns,
    )
    return types.SimpleNamespace(**ns)


class Cfg(dict):
    def __getattr__(s, k):
        return s[k]


def run(cfg, bug, folder, case):
    C = dict(cfg)
    L = lib(bug)
    W, M, MM = C["dp"], C["mini"], C["micro"]
    N, G, T, Pn = C["N"], C["n"], C["T"], 6
    pol = LM()
    ref = copy.deepcopy(pol)
    cri = LM(value=True)
    est = C["adv_estimator"]
    ppo = est == "gae"
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn_like(p))
        cri.v.weight.mul_(3)
    opt = torch.optim.AdamW(pol.parameters(), lr=C["lr"])
    opc = torch.optim.AdamW(cri.parameters(), lr=C["lr"])
    val = lambda i, P, ids: cri.v(cri.hid(torch.cat([P, ids], 1))[:, Pn - 1 : -1])[..., 0]
    step = 0
    tmp = C["temperature"]
    for roll in range(2):
        pr = prompts_of(N // G, Pn).repeat_interleave(G, 0)
        ids, cm, glp, ended, own = generate(bf16_copy(pol), pr, T, tmp, tool=5 if C.get("tools") else None)
        mask = own
        a, b_, c_ = rewards_of(ids, cm)
        sc = a + b_ + 0.3 * c_
        uid = np.arange(N) // G + roll * 1000
        with torch.no_grad():
            old = score(pol, pr, ids, tmp)[0]
            rl = score(ref, pr, ids, tmp)[0]
            v = val(None, pr, ids) if ppo else None
            if bug == "old-logp-no-temperature":
                old = score(pol, pr, ids, 1.0)[0]
        tls = torch.zeros(N, T)
        last = cm.sum(1) - 1
        tls[torch.arange(N), last] = sc
        if bug == "score-before-eos":
            tls = torch.zeros(N, T)
            tls[torch.arange(N), (last - 1).clamp(min=0)] = sc
        tlr = tls
        if C["use_kl_in_reward"]:
            kld = L.kl_penalty(old, rl, C["kl_penalty"]) * mask
            tlr = tls - C["kl_coef"] * kld
            if bug == "kl-reward-unmasked":
                tlr = tls - C["kl_coef"] * L.kl_penalty(old, rl, C["kl_penalty"])
            if bug == "kl-reward-mean":
                tlr = tls - C["kl_coef"] * (kld.sum(1, keepdim=True) / mask.sum(1, keepdim=True)) * mask
        mk = mask.float()
        ret = None
        if ppo:
            vv = v
            adv, ret = L.compute_gae_advantage_return(tlr, vv, mk, C["gamma"], C["lam"])
        elif est == "grpo":
            adv, _ = L.compute_grpo_outcome_advantage(
                tlr, mk, uid if bug != "uid-per-row-order" else np.arange(N) % (N // G), norm_adv_by_std_in_grpo=C["norm_adv_by_std_in_grpo"]
            )
        else:
            adv, _ = L.compute_rloo_outcome_advantage(tlr, mk, uid)
        isw = None
        if C.get("rollout_is"):
            isw = ((old - glp).clamp(-20, 20)).exp().clamp(max=C["rollout_is_threshold"]) * mk
            if bug == "is-sequence-sum-on-tokens":
                isw = (((old - glp) * mk).sum(1, keepdim=True).clamp(-20, 20)).exp().clamp(max=C["rollout_is_threshold"]) * mk
        for ep in range(C["ppo_epochs"]):
            n = N // W
            for s in range(M):
                step += 1
                opt.zero_grad()
                opc.zero_grad()
                sel = [
                    [torch.arange(k * n + s * (n // M) + j * (n // M // MM), k * n + s * (n // M) + (j + 1) * (n // M // MM)) for j in range(MM)]
                    for k in range(W)
                ]
                bt = sum(mk[i].sum() for k in sel for i in k)
                gb = N // M
                info = dict(dp_size=W, batch_num_tokens=bt, global_batch_size=gb, loss_scale_factor=C.get("loss_scale_factor"))
                if bug == "batch-tokens-of-micro":
                    pass
                conf = Cfg(
                    clip_ratio=C["clip_ratio"],
                    clip_ratio_low=C["clip_ratio_low"],
                    clip_ratio_high=C["clip_ratio_high"],
                    clip_ratio_c=C["clip_ratio_c"],
                    global_batch_info=info,
                )
                for k in range(W):
                    for j in range(MM):
                        i = sel[k][j]
                        m = mask[i].bool()
                        if bug == "batch-tokens-of-micro":
                            info["batch_num_tokens"] = m.sum()
                        lp, ent = score(pol, pr[i], ids[i], tmp)
                        aa = adv[i]
                        if bug == "advantages-of-rank0":
                            aa = adv[sel[0][j]] * mk[i]
                        fn = L.compute_policy_loss_cispo if C["loss_mode"] == "cispo" else L.compute_policy_loss_vanilla
                        held = {}
                        real = L.agg_loss
                        g = fn.__globals__

                        def spy(*q, _r=g["_agg"] if "_agg" in g else g["agg_loss"], **kw):
                            held["tl"] = kw["loss_mat"]
                            return _r(*q, **kw)

                        if "_agg" not in g:
                            g["_agg"] = g["agg_loss"]
                        g["agg_loss"] = spy
                        pg, met = fn(
                            old_log_prob=old[i],
                            log_prob=lp,
                            advantages=aa,
                            response_mask=m,
                            loss_agg_mode=C["loss_agg_mode"],
                            config=conf,
                            rollout_is_weights=isw[i] if isw is not None else None,
                        )
                        tl = held["tl"]
                        g["agg_loss"] = g["_agg"]
                        loss = pg
                        kld = kll = el = None
                        if C["entropy_coeff"]:
                            el = L.agg_loss(loss_mat=ent, loss_mask=m, loss_agg_mode=C["loss_agg_mode"], **info)
                            loss = loss - C["entropy_coeff"] * el
                            if bug == "entropy-plus":
                                loss = pg + C["entropy_coeff"] * el
                        if C["use_kl_loss"]:
                            kld = L.kl_penalty(lp, rl[i], C["kl_loss_type"])
                            kll = L.agg_loss(loss_mat=kld, loss_mask=m, loss_agg_mode=C["loss_agg_mode"], **info)
                            loss = loss + C["kl_loss_coef"] * (kll if bug != "kl-loss-detached" else kll.detach())
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        t = dict(
                            response_mask=m,
                            response_ids=ids[i],
                            logp_new=lp,
                            logp_old=old[i],
                            logp_ref=rl[i] if C["use_kl_loss"] or C["use_kl_in_reward"] else None,
                            logp_gen=glp[i] if isw is not None else None,
                            advantages=aa,
                            entropy=ent if C["entropy_coeff"] else None,
                            entropy_loss=el,
                            kl=kld,
                            kl_loss=kll,
                            token_loss=tl,
                            pg_loss=pg,
                            loss=loss,
                            dlogp=dl,
                            is_weights=isw[i] if isw is not None else None,
                            scores=sc[i],
                            group_id=torch.tensor(uid[i]),
                            token_rewards=tlr[i],
                            sample_id=i + 1000 * roll,
                        )
                        if ppo:
                            vp = val(None, pr[i], ids[i])
                            vl, vcf = L.compute_value_loss(vp, ret[i], v[i], m, C["cliprange_value"], C["loss_agg_mode"], **info)
                            (dv,) = torch.autograd.grad(vl, vp, retain_graph=True)
                            (vl / W).backward()
                            t.update(values=v[i], values_new=vp, returns=ret[i], value_loss=vl, dvalues=dv)
                        o = {
                            x: C[x]
                            for x in (
                                "clip_ratio",
                                "clip_ratio_low",
                                "clip_ratio_high",
                                "clip_ratio_c",
                                "loss_agg_mode",
                                "entropy_coeff",
                                "use_kl_loss",
                                "kl_loss_coef",
                                "kl_loss_type",
                                "loss_mode",
                                "adv_estimator",
                                "use_kl_in_reward",
                                "norm_adv_by_std_in_grpo",
                                "ppo_epochs",
                            )
                            if x in C
                        }
                        o.update({"num_items_in_batch": bt.item(), "agg.denominator": "global", "num_mini_batches": M, "logp.temperature": tmp})
                        o.update(C.get("say", {}))
                        if C.get("loss_scale_factor"):
                            o["loss_scale_factor"] = C["loss_scale_factor"]
                        sca = {q: float(x) for q, x in met.items()} if W == 1 else {}
                        write(
                            folder,
                            f"s{step:03d}_rank{k}_mb{j}",
                            t,
                            dict(
                                schema=2,
                                framework="verl",
                                version="0.9.1",
                                algorithm="ppo" if ppo else "grpo",
                                run=case,
                                step=step,
                                rank=k,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=MM,
                                options=o,
                                scalars=sca,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=False,
                            ),
                        )
                for pp, oo in ((pol, opt), (cri, opc)):
                    torch.nn.utils.clip_grad_norm_(pp.parameters(), 1.0)
                    oo.step()


B0 = dict(
    clip_ratio=0.2,
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
    clip_ratio_c=3.0,
    loss_agg_mode="token-mean",
    entropy_coeff=0.0,
    use_kl_loss=False,
    kl_loss_coef=0.001,
    kl_loss_type="low_var_kl",
    loss_mode="vanilla",
    use_kl_in_reward=False,
    norm_adv_by_std_in_grpo=True,
    ppo_epochs=2,
    temperature=1.0,
    dp=1,
    mini=2,
    micro=2,
    N=32,
    n=4,
    T=28,
    lr=1e-2,
)
H = {
    "h_ppo_gae_klreward_tools": dict(
        B0,
        adv_estimator="gae",
        use_kl_in_reward=True,
        kl_penalty="kl",
        kl_coef=0.05,
        gamma=0.99,
        lam=0.95,
        cliprange_value=0.3,
        dp=2,
        tools=True,
        T=36,
        clip_ratio_high=0.28,
        seed=41,
        say={"gae.gamma": 0.99, "gae.lambda": 0.95, "kl.beta": 0.05, "kl.kind": "k1", "value.clip": 0.3, "kl.place": "token_reward"},
    ),
    "h_ppo_gae_valueclip_1rank": dict(
        B0,
        adv_estimator="gae",
        use_kl_in_reward=True,
        kl_penalty="low_var_kl",
        kl_coef=0.1,
        gamma=0.97,
        lam=0.9,
        cliprange_value=0.2,
        dp=1,
        micro=2,
        T=30,
        seed=44,
        loss_agg_mode="seq-mean-token-mean",
        lr=2e-2,
        say={"gae.gamma": 0.97, "gae.lambda": 0.9, "kl.beta": 0.1, "kl.kind": "k3", "value.clip": 0.2, "kl.place": "token_reward"},
    ),
    "h_grpo_kl_seqnorm_2ranks": dict(
        B0,
        adv_estimator="grpo",
        use_kl_loss=True,
        kl_loss_coef=0.05,
        entropy_coeff=0.01,
        loss_agg_mode="seq-mean-token-sum-norm",
        dp=2,
        lr=2e-2,
        clip_ratio_low=0.15,
        clip_ratio_high=0.3,
        temperature=0.8,
        clip_ratio_c=1.6,
        ppo_epochs=3,
        seed=42,
    ),
    "h_rloo_cispo_is_k3plus": dict(
        B0,
        adv_estimator="rloo",
        loss_mode="cispo",
        rollout_is=True,
        rollout_is_threshold=1.01,
        use_kl_loss=True,
        kl_loss_coef=0.05,
        kl_loss_type="k3+",
        mini=4,
        micro=1,
        n=8,
        N=64,
        clip_ratio_high=0.25,
        seed=43,
        say={"rollout_is": "token", "rollout_is_threshold": 1.01},
    ),
}


def b(of, describes, legal="", **k):
    return dict(of=of, describes=describes, legal=legal, **k)


P_, V_, S_, R_ = H.keys()
B = {
    "gae-lam-on-delta": b(V_, "lambda is missing in the recursion of GAE: lambda 1 is computed", "lam=1 computes this"),
    "gae-hole-resets": b(P_, "GAE runs through tool tokens as if they were actions", "GAE without hole handling is TRL's"),
    "returns-whitened": b(V_, "returns are made of whitened advantages"),
    "score-before-eos": b(V_, "the score stands one token before the end of the response"),
    "kl-reward-mean": b(V_, "KL penalty of the token rewards is the response's mean at every token"),
    "value-unclipped-only": b(V_, "the value loss is the clipped one alone, without the maximum"),
    "dp-size-missing": b(P_, "the factor dp_size is missing while gradients are averaged over ranks: half the loss"),
    "old-logp-no-temperature": b(S_, "old log-probs are recomputed without the temperature"),
    "clip-bounds-swapped": b(S_, "lower and upper clip bounds are swapped", "clip_ratio_low=0.3, clip_ratio_high=0.15 computes this"),
    "dual-clip-wrong-sign": b(S_, "dual clip is applied where advantages are positive and not where negative"),
    "norm-by-own-rows": b(S_, "sums over rows are divided by the rows of the micro-batch, not by the global batch: 4 times too large after accumulation"),
    "horizon-longest": b(S_, "the constant of token-sum-norm is the longest response of the micro-batch"),
    "uid-per-row-order": b(S_, "groups are formed by row modulo prompts (interleaved) while the rows lie in blocks"),
    "kl-k3-reversed": b(S_, "k3 is made of logp - ref: reverse argument"),
    "loo-factor-missing": b(R_, "leave-one-out lacks the factor n/(n-1) at the own score"),
    "cispo-not-detached": b(R_, "cispo's clipped ratio is not detached"),
    "kl-loss-detached": b(R_, "the KL loss is detached: value right, no gradient"),
    "is-sequence-sum-on-tokens": b(R_, "importance weights are of the whole sequence where tokens are declared", "rollout_is=sequence computes this"),
}
if __name__ == "__main__":
    main("m4_verl", {**H, **{"b_" + k: dict(v, bug=k) for k, v in B.items()}}, run)
