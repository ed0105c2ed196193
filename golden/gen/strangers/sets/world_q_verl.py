"""verl 0.9.1's own functions, out of the released source"""

import os
import ast, types
from world_q import *
import numpy as np

S = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")


def load(path, ns, names=None):
    tree = ast.parse(open(path).read())
    body = []
    for n in tree.body:
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            continue
        if names is None or (isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names):
            body.append(n)
    tree.body = body
    exec(compile(tree, path, "exec"), ns)
    return ns


from typing import Any, Callable, Optional
from collections import defaultdict
from enum import Enum

base = dict(torch=torch, np=np, Any=Any, Callable=Callable, Optional=Optional, defaultdict=defaultdict, Enum=Enum, F=F, os=os)
tf = load(S + "utils/torch_functional.py", dict(base), ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value", "entropy_from_logits"])
gw = load(S + "utils/groupwise.py", dict(base))


class AlgoConfig(dict):
    __getattr__ = dict.get


class ActorConfig(dict):
    __getattr__ = dict.get


core = dict(
    base,
    DictConfig=dict,
    verl_F=types.SimpleNamespace(**{k: v for k, v in tf.items() if callable(v)}),
    AlgoConfig=AlgoConfig,
    ActorConfig=ActorConfig,
    as_torch_index=gw["as_torch_index"],
    group_mean_std=gw["group_mean_std"],
    deprecated=lambda *a, **k: lambda f: f,
    __name__="core",
)
load(S + "trainer/ppo/core_algos.py", core)
C = types.SimpleNamespace(**core)
masked_mean = tf["masked_mean"]


def run_verl(folder, case, c):
    gen = torch.Generator().manual_seed(c["seed"])
    R, G, T, E = c["ranks"], c["n"], c["T"], c["ppo_epochs"]
    pad = EOS if c.get("eospad") else PAD
    m = LM(pad=pad)
    m.lowp = c["lowp"]
    ref = copy.deepcopy(m)
    critic = LM(pad=pad, value=True)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.01, betas=(0.9, 0.999))
    copt = torch.optim.AdamW(critic.parameters(), lr=1e-2)
    val = lambda full, att: critic.v(critic.hidden(full, att))[:, -T - 1 : -1].squeeze(-1)
    gae = c["adv_estimator"] == "gae"
    cfg = ActorConfig(
        clip_ratio=c["clip_ratio"],
        clip_ratio_low=c["clip_ratio_low"],
        clip_ratio_high=c["clip_ratio_high"],
        clip_ratio_c=c["clip_ratio_c"],
        tau_pos=1.0,
        tau_neg=1.05,
        policy_loss=ActorConfig(loss_mode=c["loss_mode"], dro_beta=c.get("dro_beta")),
        loss_scale_factor=c["loss_scale_factor"],
    )
    opts = {
        k: c[k]
        for k in (
            "adv_estimator",
            "clip_ratio",
            "clip_ratio_low",
            "clip_ratio_high",
            "clip_ratio_c",
            "loss_mode",
            "loss_agg_mode",
            "use_kl_loss",
            "kl_loss_coef",
            "kl_loss_type",
            "entropy_coeff",
            "ppo_epochs",
            "use_kl_in_reward",
            "temperature",
            "gamma",
            "lam",
            "loss_scale_factor",
            "norm_adv_by_std_in_grpo",
        )
    }
    opts |= {
        "eos_token_id": EOS,
        "agg.denominator": "global",
        "rollout.n": G,
        "num_mini_batches": c["mini"],
        "dropout": "off",
        "grad_clip": 1.0,
        "lr": c["lr"],
        "weight_decay": 0.01,
    }
    if c["use_kl_in_reward"]:
        opts |= {"kl_penalty": c["kl_penalty"], "kl_coef": c["kl_coef"], "kl.beta": c["kl_coef"]}
    if c["loss_mode"] == "sapo":
        opts |= dict(tau_pos=1.0, tau_neg=1.05)
    if c["loss_mode"] == "dro":
        opts |= {"dro_beta": c["dro_beta"]}
    if c["loss_mode"].startswith("dppo"):
        opts |= {"dppo.limit": c["clip_ratio_c"]}
    if c["ris"]:
        opts |= {"rollout_is": c["ris"], "rollout_is_threshold": c["rth"], "rollout_is_batch_normalize": c["rnorm"]}
    if gae:
        opts |= {"cliprange_value": c["cliprange_value"]}
    step = sid = 0
    for roll in range(2):
        ng = c["groups"]
        N = ng * G
        P = 5
        pi, pa = prompts(ng, P, gen, pad)
        pi, pa = pi.repeat_interleave(G, 0), pa.repeat_interleave(G, 0)
        eng = engine_of(m, "bf16") if c["ris"] or c["seed"] % 2 else m
        ids, am, tool, glp = sample(eng, pi, pa, T, c["temperature"], gen, pad=pad, holes=c["holes"], raw=False)
        mask = (am * tool) if c["holes"] else am
        full, att = torch.cat([pi, ids], 1), torch.cat([pa, am], 1)
        uid = np.array([f"u{roll}-{i // G}" for i in range(N)], dtype=object)
        with torch.no_grad():
            old = lp_ent(m, full, att, T, c["temperature"])[0]
            refl = lp_ent(ref, full, att, T, c["temperature"])[0]
            values = val(full, att) if gae else None
            sc = rewards(ids, am, gen, 1, c["binary"]).sum(1) * c.get("rscale", 1.0)
            tls = torch.zeros(N, T)
            tls[torch.arange(N), am.sum(1) - 1] = sc
            fm = mask.float()
            if c["use_kl_in_reward"]:
                kld = C.kl_penalty(old, refl, kl_penalty=c["kl_penalty"]) * fm
                tlr = tls - c["kl_coef"] * kld
            else:
                tlr = tls
                kld = None
            est = c["adv_estimator"]
            base_ = None
            ac = AlgoConfig(gamma=c["gamma"], lam=c["lam"])
            if gae:
                adv, ret = C.compute_gae_advantage_return(tlr, values, fm, c["gamma"], c["lam"])
            elif est == "grpo":
                adv, ret = C.compute_grpo_outcome_advantage(tlr, fm, uid, norm_adv_by_std_in_grpo=c["norm_adv_by_std_in_grpo"])
            elif est == "remax":
                base_ = torch.randn(ng, generator=gen).mul(0.2).repeat_interleave(G)
                adv, ret = C.compute_remax_outcome_advantage(tlr, base_, fm)
            elif est == "reinforce_plus_plus":
                adv, ret = C.compute_reinforce_plus_plus_outcome_advantage(tlr, fm, config=ac)
            else:
                adv, ret = C.get_adv_estimator_fn(est)(
                    token_level_rewards=tlr,
                    response_mask=fm,
                    index=uid,
                    config=ac,
                    **(dict(norm_adv_by_std_in_grpo=c["norm_adv_by_std_in_grpo"]) if est == "grpo_vectorized" else {}),
                )
            isw = None
            if c["ris"]:
                d = old - glp
                if c["ris"] == "token":
                    w = d.clamp(-20, 20).exp()
                else:
                    w = tf["masked_sum"](d, mask, axis=-1).unsqueeze(-1).clamp(-20, 20).exp().expand_as(old)
                w = w * fm
                w = w.clamp(max=c["rth"])
                if c["rnorm"]:
                    mean = (
                        masked_mean(w, mask)
                        if c["ris"] == "token"
                        else masked_mean(w, mask)
                        if False
                        else w.sum() / fm.sum()
                        if False
                        else ((w * fm).sum(-1) / fm.sum(-1).clamp(min=1)).mean()
                    )
                    w = w / mean
                isw = w
        order = torch.randperm(N, generator=gen) if c["balance"] else torch.arange(N)
        X = dict(
            full=full,
            att=att,
            ids=ids,
            mask=mask,
            adv=adv,
            old=old,
            ref=refl,
            isw=isw,
            gen=glp if c["seed"] % 2 or c["ris"] else None,
            scores=sc,
            tlr=tlr,
            ret=ret,
            values=values,
            base=base_,
            kld=kld,
            group=torch.tensor([int(u.split("-")[1]) + roll * 1000 for u in uid]),
            sid=torch.arange(N) + sid,
        )
        sid += N
        per = N // R
        ranks = [{k: None if v is None else v[order[r * per : (r + 1) * per]] for k, v in X.items()} for r in range(R)]
        mbz = per // c["mini"]
        mic = c["micro"]
        sz = mbz // mic
        for ep in range(E):
            perms = [torch.randperm(per, generator=gen) if c["shuffle"] else torch.arange(per) for _ in range(R)]
            for b in range(c["mini"]):
                mbs = [{k: None if v is None else v[p[b * mbz : (b + 1) * mbz]] for k, v in x.items()} for x, p in zip(ranks, perms)]
                ntok = sum(int(x["mask"].sum()) for x in mbs)
                gbs = mbz * R
                if c["locald"]:
                    info = lambda: {}
                gi = dict(dp_size=R, batch_num_tokens=ntok, global_batch_size=gbs, loss_scale_factor=c["loss_scale_factor"])
                cfg["global_batch_info"] = gi
                files = []
                for j in range(mic):
                    for r in range(R):
                        x = {k: None if v is None else v[j * sz : (j + 1) * sz] for k, v in mbs[r].items()}
                        lp, ent = lp_ent(m, x["full"], x["att"], T, c["temperature"])
                        rm = x["mask"].bool()
                        cap = {}
                        real = core["agg_loss"]

                        def spy(loss_mat=None, **k):
                            cap.setdefault("t", loss_mat)
                            return real(loss_mat=loss_mat, **k)

                        core["agg_loss"] = spy
                        pg, met = C.get_policy_loss_fn(c["loss_mode"])(
                            old_log_prob=x["old"],
                            log_prob=lp,
                            advantages=x["adv"],
                            response_mask=rm,
                            loss_agg_mode=c["loss_agg_mode"],
                            config=cfg,
                            rollout_is_weights=x["isw"],
                        )
                        core["agg_loss"] = real
                        loss = pg
                        el = kl = klt = None
                        if c["entropy_coeff"]:
                            el = real(loss_mat=ent, loss_mask=rm, loss_agg_mode=c["loss_agg_mode"], **gi)
                            loss = loss - c["entropy_coeff"] * el
                        if c["use_kl_loss"]:
                            klt = C.kl_penalty(logprob=lp, ref_logprob=x["ref"], kl_penalty=c["kl_loss_type"])
                            kl = real(loss_mat=klt, loss_mask=rm, loss_agg_mode=c["loss_agg_mode"], **gi)
                            loss = loss + kl * c["kl_loss_coef"]
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
                        (loss / R).backward()
                        t = dict(
                            response_mask=rm,
                            response_ids=x["ids"],
                            advantages=x["adv"],
                            scores=x["scores"],
                            group_id=x["group"],
                            sample_id=x["sid"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            logp_ref=x["ref"] if c["use_kl_loss"] or c["use_kl_in_reward"] else None,
                            is_weights=x["isw"],
                            entropy=ent if c["entropy_coeff"] else None,
                            entropy_loss=el,
                            kl=klt if klt is not None else x["kld"],
                            kl_loss=kl,
                            token_loss=cap.get("t"),
                            token_rewards=x["tlr"],
                            returns=x["ret"] if gae else None,
                            values=x["values"],
                            reward_baselines=x["base"],
                            dlogp=dl,
                            loss=loss,
                            pg_loss=pg.detach() if True else None,
                            input_ids=x["full"],
                            attention_mask=x["att"],
                        )
                        if c["lazy"]:
                            [t.pop(k, None) for k in ("token_loss", "input_ids", "attention_mask", "response_ids", "kl", "pg_loss")]
                        if gae:
                            v = val(x["full"], x["att"])
                            vl, cf = C.compute_value_loss(
                                vpreds=v,
                                returns=x["ret"],
                                values=x["values"],
                                response_mask=rm,
                                cliprange_value=c["cliprange_value"],
                                loss_agg_mode=c["loss_agg_mode"],
                                **gi,
                            )
                            (dv,) = torch.autograd.grad(vl, v, retain_graph=True)
                            (vl / R).backward()
                            t |= dict(values_new=v, value_loss=vl, dvalues=dv)
                        scal = {k: fin(float(v_)) for k, v_ in met.items()} if R == 1 or True else {}
                        meta = dict(
                            schema=2,
                            framework="verl",
                            version="0.9.1",
                            algorithm="ppo" if gae else "grpo",
                            run=case,
                            step=step + 1,
                            rank=r,
                            world_size=R,
                            micro_batch=j,
                            micro_batches=mic,
                            options=opts | dict(num_items_in_batch=ntok),
                            scalars=scal,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        )
                        files.append((f"step_{step + 1:06d}_rank_{r}_mb_{j}", meta, t))
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                if gae:
                    torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                    copt.step()
                    copt.zero_grad()
                for f in files:
                    dump(folder, *f)
                step += 1


def table(seed, gae):
    r = random.Random(seed * 7 + gae)
    c = dict(seed=seed + 100 * gae, locald=False)
    c["loss_mode"] = (
        "vanilla"
        if gae and seed % 3
        else ["vanilla", "gspo", "sapo", "cispo", "dro", "gpg", "dppo_tv", "vanilla", "dppo_kl", "vanilla", "geo_mean", "vanilla", "cispo", "gspo"][seed % 14]
    )
    c["adv_estimator"] = (
        "gae"
        if gae
        else r.choice(
            ["grpo", "grpo", "rloo", "opo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo_vectorized", "grpo_vectorized", "gpg"]
        )
    )
    if c["loss_mode"] == "geo_mean":
        c["adv_estimator"] = "grpo"
    c["clip_ratio"] = r.choice([0.2, 0.1])
    lo = r.random() < 0.5
    c["clip_ratio_low"], c["clip_ratio_high"] = r.choice([(0.2, 0.28), (0.05, 0.1), (0.2, 0.2)]) if lo else (c["clip_ratio"], c["clip_ratio"])
    if c["loss_mode"] == "gspo":
        c["clip_ratio_low"], c["clip_ratio_high"] = 3e-3, 4e-3
    c["clip_ratio_c"] = 20.0 if c["loss_mode"].startswith("dppo") else r.choice([3.0, 3.0, 1.2])
    c["loss_agg_mode"] = (
        r.choice(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]) if c["loss_mode"] != "sapo" else "seq-mean-token-mean"
    )
    c["loss_scale_factor"] = r.choice([None, 64]) if c["loss_agg_mode"].endswith("norm") else None
    c["use_kl_loss"] = r.random() < 0.5
    c["kl_loss_coef"] = r.choice([0.001, 0.05])
    c["kl_loss_type"] = r.choice(["low_var_kl", "k1", "k2", "k3+", "abs", "kl", "mse"])
    c["use_kl_in_reward"] = (not c["use_kl_loss"]) and r.random() < 0.6
    c["kl_penalty"] = r.choice(["kl", "abs", "low_var_kl"])
    c["kl_coef"] = r.choice([0.05, 0.001])
    c["entropy_coeff"] = r.choice([0, 0.01, 0.0])
    c["ppo_epochs"] = r.choice([1, 2, 3])
    c["mini"] = r.choice([1, 2, 4])
    c["micro"] = r.choice([1, 2])
    if c["ppo_epochs"] * c["mini"] == 1:
        c["mini"] = 2
    c["n"] = r.choice([4, 8])
    c["groups"] = r.choice([4, 8])
    c["ranks"] = r.choice([1, 1, 2])
    c["T"] = r.choice([20, 40])
    c["temperature"] = r.choice([1.0, 1.0, 0.8])
    c["gamma"] = r.choice([1.0, 0.98, 1.0])
    c["lam"] = r.choice([1.0, 0.95, 0.9])
    c["norm_adv_by_std_in_grpo"] = r.random() < 0.6
    c["ris"] = r.choice([None, None, "token", "sequence"])
    c["rth"] = r.choice([2.0, 1.01])
    c["rnorm"] = False
    c["holes"] = r.choice([0, 0, 0.05])
    c["lowp"] = r.random() < 0.3
    c["binary"] = r.random() < 0.3
    c["balance"] = r.random() < 0.6
    c["shuffle"] = r.random() < 0.5
    c["lr"] = r.choice([4e-3, 1e-2])
    c["cliprange_value"] = r.choice([0.5, 0.1, 0.2])
    c["lazy"] = r.random() < 0.3
    c["dro_beta"] = 0.1
    c["eospad"] = r.random() < 0.3
    if c["adv_estimator"] in ("remax",):
        c["use_kl_in_reward"] = False
    return c
