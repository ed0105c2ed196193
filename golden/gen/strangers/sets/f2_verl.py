"""verl 0.9.1 with its own functions (cut out of core_algos and torch_functional): PPO with a critic, GRPO with kl_loss. Dumps nearly everything; critic and actor in one file."""

import types, numpy as np, torch
from collections import defaultdict
from typing import Any, Optional
from world_f import *

S = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")
tf = dict(torch=torch)
cut(S + "utils/torch_functional.py", ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"], tf)
verl_F = types.SimpleNamespace(**tf)
ca = dict(torch=torch, np=np, verl_F=verl_F, defaultdict=defaultdict, Any=Any, Optional=Optional, AlgoConfig=type("AlgoConfig", (), {}))
cut(
    S + "trainer/ppo/core_algos.py",
    [
        "compute_gae_advantage_return",
        "compute_grpo_outcome_advantage",
        "agg_loss",
        "compute_policy_loss_vanilla",
        "compute_value_loss",
        "kl_penalty",
        "kl_penalty_forward",
    ],
    ca,
)


class Cfg(dict):
    __getattr__ = dict.__getitem__


D = dict(
    algo="grpo",
    world=1,
    n=4,
    rows=32,
    T=24,
    lr=0.01,
    clr=0.01,
    gens=2,
    epochs=2,
    minis=2,
    micros=2,
    clip_ratio=0.2,
    clip_ratio_low=None,
    clip_ratio_high=None,
    clip_ratio_c=3.0,
    loss_agg_mode="token-mean",
    entropy_coeff=0.0,
    use_kl_loss=False,
    kl_loss_coef=0.0,
    kl_loss_type="low_var_kl",
    use_kl_in_reward=False,
    kl_penalty="kl",
    kl_coef=0.0,
    gamma=1.0,
    lam=1.0,
    cliprange_value=0.5,
    autocast=False,
    holes=False,
    is_=None,
    norm_adv_by_std_in_grpo=True,
    temperature=1.0,
    seed=21,
)
H = dict(
    h_ppo_gae_klr=dict(algo="ppo", gamma=0.98, lam=0.95, use_kl_in_reward=True, kl_coef=0.05, n=1, rows=32, seed=21),
    h_ppo_2rank_holes=dict(
        algo="ppo",
        world=2,
        gamma=0.99,
        lam=0.9,
        use_kl_in_reward=True,
        kl_penalty="low_var_kl",
        kl_coef=0.1,
        holes=True,
        cliprange_value=0.2,
        n=2,
        seed=22,
        entropy_coeff=0.003,
    ),
    h_grpo_klloss=dict(
        use_kl_loss=True,
        kl_loss_coef=0.05,
        entropy_coeff=0.01,
        clip_ratio_high=0.28,
        clip_ratio_low=0.2,
        autocast=True,
        temperature=0.8,
        seed=23,
        rows=48,
        n=8,
        micros=3,
    ),
    h_grpo_tis_2rank=dict(use_kl_loss=True, kl_loss_coef=0.02, kl_loss_type="k2", world=2, norm_adv_by_std_in_grpo=False, is_=2.0, seed=24, clip_ratio=0.1),
)
B = dict(
    gamma_lambda_swapped=("h_ppo_gae_klr", "GAE runs with gamma and lambda swapped"),
    score_at_last_column=("h_ppo_gae_klr", "the score is put on the last column of the padded response, where the mask is 0, instead of on the EOS"),
    kl_to_new=("h_ppo_gae_klr", "KL in the reward is ref − old, a bonus for leaving the reference"),
    whiten_unmasked=("h_ppo_gae_klr", "advantage whitening runs over all cells, padding included"),
    returns_after_whiten=("h_ppo_gae_klr", "returns are whitened advantages + values"),
    vclip_from_new=("h_ppo_gae_klr", "value clip is around the detached new values rather than the rollout's: nothing is ever clipped"),
    gae_hole_reset=("h_ppo_2rank_holes", "GAE does not carry over tool tokens but resets there (values of tool tokens enter, the trace is cut by the mask)"),
    tokens_local=("h_ppo_2rank_holes", "batch_num_tokens is counted on the own rank but the loss is still multiplied by dp_size"),
    rank_whiten=("h_ppo_2rank_holes", "advantages whitened per rank after the split of the batch, not by the driver over the whole batch"),
    value_mask_all=("h_ppo_2rank_holes", "the value loss counts tool tokens (mask of attention), divides by the response mask's tokens"),
    ent_sign=("h_ppo_2rank_holes", "entropy term is added to the loss"),
    uid_after_balance=("h_grpo_klloss", "rows are reordered for balance between ranks after uid was taken: groups mix prompts"),
    old_raw_temp=("h_grpo_klloss", "old log-probs computed at temperature 1, new ones at 0.8"),
    micro_mean=("h_grpo_klloss", "each micro-batch divides by its own tokens and is not scaled by its share"),
    k3_swapped=("h_grpo_klloss", "k3 of logp − ref in place of ref − logp"),
    std_of_batch=("h_grpo_klloss", "std of the whole batch of rewards used for every group"),
    is_old_new=("h_grpo_tis_2rank", "TIS weight is exp(new − rollout), recomputed and with its gradient, not of old − rollout"),
    is_unclipped=("h_grpo_tis_2rank", "TIS weight lower-truncated (max instead of min): weights below 2 are raised to 2"),
    kl_detached=("h_grpo_tis_2rank", "the KL term is computed on detached log-probs: in the loss, but without gradient"),
    no_dp_scale=("h_grpo_tis_2rank", "loss not multiplied by dp_size although gradients are averaged over ranks: half the gradient"),
)


def run(c, s, bug):
    s = D | s
    g = torch.Generator().manual_seed(s["seed"])
    torch.manual_seed(s["seed"])
    model = LM()
    ref = copy_of(model)
    critic = LM(value=True)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.03)
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"], weight_decay=0.01)
    copt = torch.optim.AdamW(critic.parameters(), lr=s["clr"], weight_decay=0.01)
    W, N, T, n, temp = s["world"], s["rows"], s["T"], s["n"], s["temperature"]
    step = 0
    ppo = s["algo"] == "ppo"
    vals = lambda x: critic(x["input_ids"], x["attention_mask"])[:, -T - 1 : -1, 0]
    for gen in range(s["gens"]):
        pid, pam = prompts(g, N // n, 8)
        pid, pam = pid.repeat_interleave(n, 0), pam.repeat_interleave(n, 0)
        r = sample(copy_of(model, torch.bfloat16), pid, pam, T, g, temp, s["holes"])
        m = r["mask"]
        sc = score(r)
        uid = np.arange(N) // n
        with torch.no_grad():
            old = logps(model, r["input_ids"], r["attention_mask"], T, 1.0 if bug == "old_raw_temp" else temp, s["autocast"])[0]
            rl = logps(ref, r["input_ids"], r["attention_mask"], T, temp, s["autocast"])[0]
            v = vals(r) * m if not s["holes"] else vals(r) * r["att"]
        last = (r["att"].sum(1) - 1).long()
        if s["holes"]:
            last = torch.where(r["mask"].gather(1, last[:, None])[:, 0] > 0, last, (m * torch.arange(T)).argmax(1))
        tls = torch.zeros(N, T)
        tls[torch.arange(N), last] = sc
        if bug == "score_at_last_column":
            tls = torch.zeros(N, T)
            tls[:, -1] = sc
        tlr = tls.clone()
        if s["use_kl_in_reward"]:
            kld = ca["kl_penalty"](old, rl, s["kl_penalty"]) * m
            if bug == "kl_to_new":
                kld = -kld
            tlr = tls - s["kl_coef"] * kld
        if ppo:
            mm = torch.ones_like(m) if bug == "whiten_unmasked" else m
            if bug == "gae_hole_reset":
                lg, nv, out = 0, 0, []
                for t in reversed(range(T)):
                    lg = (tlr[:, t] + s["gamma"] * nv - v[:, t] + s["gamma"] * s["lam"] * lg) * m[:, t]
                    nv = v[:, t]
                    out.append(lg)
                adv = torch.stack(out[::-1], 1)
                ret = adv + v
                adv = verl_F.masked_whiten(adv, m)
            elif bug == "whiten_unmasked":
                adv, ret = ca["compute_gae_advantage_return"](tlr, v, m, s["gamma"], s["lam"])
                adv = verl_F.masked_whiten((ret - v) * m, torch.ones_like(m))
            else:
                ga, la = (s["lam"], s["gamma"]) if bug == "gamma_lambda_swapped" else (s["gamma"], s["lam"])
                adv, ret = ca["compute_gae_advantage_return"](tlr, v, m, ga, la)
            if bug == "returns_after_whiten":
                ret = adv + v
            if bug == "rank_whiten":
                raw = ret - v
                adv = torch.cat([verl_F.masked_whiten(a, b) for a, b in zip(raw.chunk(W), m.chunk(W))])
        else:
            u = uid
            if bug == "uid_after_balance":
                u = uid[np.random.default_rng(5).permutation(N)]
            if bug == "std_of_batch":
                x = tlr.sum(-1)
                mu = x.view(-1, n).mean(1).repeat_interleave(n)
                adv = ((x - mu) / (x.std() + 1e-6))[:, None] * m
            else:
                adv, _ = ca["compute_grpo_outcome_advantage"](tlr.clone(), m, u, norm_adv_by_std_in_grpo=s["norm_adv_by_std_in_grpo"])
            ret = None
        isw = None
        if s["is_"]:
            x = torch.exp((old - r["gen"]).clamp(-20, 20))
            isw = (x.clamp(min=s["is_"]) if bug == "is_unclipped" else x.clamp(max=s["is_"])) * m
        data = dict(
            input_ids=r["input_ids"],
            attention_mask=r["attention_mask"],
            response_ids=r["response_ids"],
            mask=m,
            att=r["att"],
            old=old,
            ref=rl,
            gen=r["gen"],
            adv=adv,
            scores=sc,
            tlr=tlr,
            gid=torch.tensor(uid) + gen * 1000,
        )
        if ppo:
            data |= dict(ret=ret, v=v)
        if isw is not None:
            data["isw"] = isw
        ranks = [{k: x[w * N // W : (w + 1) * N // W] for k, x in data.items()} for w in range(W)]
        R = N // W
        mb = R // s["minis"]
        ub = mb // s["micros"]
        for ep in range(s["epochs"]):
            perms = [torch.randperm(R, generator=g) for _ in ranks]
            for k in range(s["minis"]):
                step += 1
                opt.zero_grad()
                copt.zero_grad()
                sh = [{q: x[p[k * mb : (k + 1) * mb]] for q, x in d.items()} for d, p in zip(ranks, perms)]
                tot = sum(d["mask"].sum() for d in sh)
                for w, d in enumerate(sh):
                    for j in range(s["micros"]):
                        x = {q: y[j * ub : (j + 1) * ub] for q, y in d.items()}
                        rm = x["mask"].bool()
                        cnt = d["mask"].sum() if bug == "tokens_local" else x["mask"].sum() * s["micros"] / s["micros"] if bug == "micro_mean" else tot
                        gi = dict(dp_size=1 if bug == "no_dp_scale" else W, batch_num_tokens=cnt, global_batch_size=mb * W, loss_scale_factor=None)
                        cfg = Cfg({q: s[q] for q in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")} | dict(global_batch_info=gi))
                        lp, ent = logps(model, x["input_ids"], x["attention_mask"], T, temp, s["autocast"])
                        kept = {}
                        real = ca["agg_loss"]
                        ca["agg_loss"] = lambda loss_mat, **kw: kept.setdefault("tl", loss_mat) is None or real(loss_mat=loss_mat, **kw)
                        iw = x.get("isw")
                        if bug == "is_old_new":
                            iw = torch.exp(lp - x["gen"]).clamp(max=s["is_"]) * x["mask"]
                        pg, met = ca["compute_policy_loss_vanilla"](x["old"], lp, x["adv"], rm, s["loss_agg_mode"], cfg, iw)
                        ca["agg_loss"] = real
                        loss = pg
                        t = {}
                        el = real(loss_mat=ent, loss_mask=rm, loss_agg_mode=s["loss_agg_mode"], **gi)
                        loss = loss - (-1 if bug == "ent_sign" else 1) * s["entropy_coeff"] * el
                        if s["use_kl_loss"]:
                            a, b = (lp.detach() if bug == "kl_detached" else lp), x["ref"]
                            kld = ca["kl_penalty"](b, a, s["kl_loss_type"]) if bug == "k3_swapped" else ca["kl_penalty"](a, b, s["kl_loss_type"])
                            kll = real(loss_mat=kld, loss_mask=rm, loss_agg_mode=s["loss_agg_mode"], **gi)
                            loss = loss + kll * s["kl_loss_coef"]
                            t |= dict(kl=kld, kl_loss=kll)
                        (t["dlogp"],) = torch.autograd.grad(loss, lp, retain_graph=True)
                        if s["entropy_coeff"]:
                            t.pop("dlogp")
                            (t["dlogp"],) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        if ppo:
                            vp = vals(x)
                            vm = x["att"].bool() if bug == "value_mask_all" else rm
                            vl, vcf = ca["compute_value_loss"](
                                vp, x["ret"], vp.detach() if bug == "vclip_from_new" else x["v"], vm, s["cliprange_value"], s["loss_agg_mode"], **gi
                            )
                            (t["dvalues"],) = torch.autograd.grad(vl, vp, retain_graph=True)
                            (vl / W).backward()
                            t |= dict(values=x["v"], values_new=vp, returns=x["ret"], value_loss=vl)
                        opts = (
                            {
                                q: s[q]
                                for q in (
                                    "clip_ratio",
                                    "clip_ratio_low",
                                    "clip_ratio_high",
                                    "clip_ratio_c",
                                    "loss_agg_mode",
                                    "entropy_coeff",
                                    "use_kl_loss",
                                    "use_kl_in_reward",
                                    "temperature",
                                )
                            }
                            | dict(num_items_in_batch=int(tot))
                            | {"agg.denominator": "global", "num_mini_batches": s["minis"], "eos_token_id": EOS, "optim.epochs": s["epochs"]}
                        )
                        if s["use_kl_loss"]:
                            opts |= dict(kl_loss_coef=s["kl_loss_coef"], kl_loss_type=s["kl_loss_type"])
                        if ppo:
                            opts |= {"gae.gamma": s["gamma"], "gae.lambda": s["lam"], "cliprange_value": s["cliprange_value"]}
                        else:
                            opts |= {"norm_adv_by_std_in_grpo": s["norm_adv_by_std_in_grpo"]}
                        if s["use_kl_in_reward"]:
                            opts |= {"kl.kind": dict(kl="k1", low_var_kl="k3")[s["kl_penalty"]], "kl.beta": s["kl_coef"], "kl.place": "token_reward"}
                        if s["is_"]:
                            opts |= {"tis.level": "token", "tis.high": s["is_"], "tis.rule": "truncate_upper"}
                        t |= dict(
                            response_mask=rm,
                            response_ids=x["response_ids"],
                            input_ids=x["input_ids"],
                            attention_mask=x["attention_mask"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            advantages=x["adv"],
                            scores=x["scores"],
                            token_rewards=x["tlr"],
                            group_id=x["gid"],
                            loss=loss,
                            token_loss=kept["tl"],
                            entropy=ent,
                            entropy_loss=el,
                            is_weights=iw,
                            logp_ref=x["ref"] if s["use_kl_loss"] or s["use_kl_in_reward"] else None,
                        )
                        sc_ = {q: z for q, z in met.items()}
                        c.write(
                            f"step_{step:03d}_rank_{w}_mb_{j}",
                            t,
                            dict(
                                framework="verl",
                                version="0.9.1",
                                algorithm=s["algo"],
                                step=step,
                                rank=w,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=s["micros"],
                                options=opts,
                                scalars=sc_,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=False,
                            ),
                        )
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                if ppo:
                    torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                    copt.step()
    return ["--profile", "verl-ppo@0.9" if ppo else "verl-grpo@0.9"]


if __name__ == "__main__":
    main("f2_verl", H, B, run)
