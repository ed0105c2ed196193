"""OpenRLHF 0.11.2 through its own functions: the experience maker's advantages, PolicyLoss, ValueLoss, the statements of training_step.

The loop is ours: one rollout, mini-batches per optimiser step, micro-batches under DeepSpeed's accumulation (each backward is divided
by it, the normalisers are those of the whole step), ranks one after the other.
"""

import itertools
import types

import torch

from source import Release, base
from world import LM, Policy, Task, rollout
from writer import write

LOSS, UTIL, MAKER, ACTOR, CRITIC, LB, LP = (
    "openrlhf/models/loss.py",
    "openrlhf/models/utils.py",
    "openrlhf/trainer/ppo_utils/experience_maker.py",
    "openrlhf/trainer/ray/ppo_actor.py",
    "openrlhf/trainer/ray/ppo_critic.py",
    "openrlhf/utils/loss_utils.py",
    "openrlhf/trainer/ppo_utils/length_penalty.py",
)
ns_ = types.SimpleNamespace


def arguments(w, group):
    o = dict(
        {
            "actor.eps_clip_low_high": [0.2, 0.2],
            "actor.dual_clip": None,
            "actor.loss_agg_mode": "token-mean",
            "actor.policy_loss_type": "ppo",
            "actor.entropy_coef": None,
            "actor.aux_loss_coef": 0.0,
            "critic.value_clip": 0.5,
            "algo.kl.use_loss": False,
            "algo.kl.init_coef": 0.01,
            "algo.kl.estimator": "k1",
            "algo.kl.unbiased_gradient": False,
            "algo.advantage.estimator": "gae",
            "algo.advantage.gamma": 1.0,
            "algo.advantage.lambd": 1.0,
            "algo.advantage.no_std_norm": False,
            "algo.advantage.is_correction_level": "off",
            "algo.advantage.is_correction_mode": "mask",
            "algo.advantage.is_correction_gating": "ratio",
            "algo.advantage.is_correction_threshold": [0.5, 5.0],
            "reward.clip_range": [-10, 10],
            "rollout.n_samples_per_prompt": group,
            "rollout.temperature": 1.0,
            "rollout.max_new_tokens": w.get("T", 20),
            "reward.overlong_buffer_len": None,
            "reward.overlong_penalty_factor": 1.0,
            "reward.stop_properly_penalty_coef": None,
            "train.dynamic_batch_enable": False,
            "train.max_epochs": 1,
        },
        **w.get("args", {}),
    )
    root = ns_()
    for k, v in o.items():
        at = root
        *path, leaf = k.split(".")
        for p in path:
            if not hasattr(at, p):
                setattr(at, p, ns_())
            at = getattr(at, p)
        setattr(at, leaf, v)
    return root, o


def load(edits):
    rel = Release("openrlhf-0.11.2", edits)
    ut = dict(base(), KL_IS_WEIGHT_CLIP=10.0)
    rel.functions(
        UTIL, ut, {"compute_approx_kl", "compute_reward", "_logsumexp_by_chunk", "log_probs_from_logits", "masked_mean", "compute_entropy"}
    )
    ls = dict(base(), dist=None, masked_mean=ut["masked_mean"])
    rel.functions(LOSS, ls, {"aggregate_loss", "PolicyLoss", "ValueLoss"})
    lp = dict(base(), logger=ns_(warning=print, info=lambda *a: None), List=list)
    rel.functions(LP, lp, {"apply_overlong_penalty", "apply_stop_properly_penalty", "apply_length_penalties"})
    ex = dict(
        base(),
        itertools=itertools,
        compute_reward=ut["compute_reward"],
        logger=ns_(warning=lambda *a: None),
        apply_length_penalties=lp["apply_length_penalties"],
    )
    rel.functions(
        MAKER, ex, {"compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"}, cls="RemoteExperienceMaker"
    )
    step = rel.block(
        ACTOR,
        "actor_loss, clip_ratio, ppo_kl, vllm_kl, is_filter_ratio = self.actor_loss_fn(",
        "entropy_loss * self.args.actor.entropy_coef",
    )
    critic = rel.block(CRITIC, "critic_loss = self.critic_loss_fn(", "loss = critic_loss + aux_loss")
    lb = dict(base(), dist=ns_(is_available=lambda: False, is_initialized=lambda: False), Optional=None)
    lb["torch"] = torch
    rel.functions(LB, lb, {"_optimizer_step_loss_norm"})
    rel.check()
    return ut, ls, ex, step, critic, lb["_optimizer_step_loss_norm"]


def run(case, folder):
    w = case.cfg
    group = w.get("group", 4)
    args, flat = arguments(w, group)
    est = args.algo.advantage.estimator
    ppo = est == "gae"
    ranks, minis, gas = w.get("ranks", 1), w.get("minis", 1), w.get("gas", 1)
    driver = w.get("driver", {})
    ut, ls, ex, block, cblock, norm = load(case.edits)
    kept = {}
    agg = ls["aggregate_loss"]

    def keep(*a, **k):
        kept.setdefault("token_loss", a[0])
        return agg(*a, **k)

    ls["aggregate_loss"] = keep
    task = Task(
        prompts=w.get("prompts", 4),
        group=group,
        T=args.rollout.max_new_tokens,
        holes=w.get("holes", False),
        temperature=args.rollout.temperature,
        top_p=w.get("engine_top_p", 1.0),
        reward=w.get("reward", "float"),
        pad_is_eos=w.get("pad_is_eos", False),
        raw_logps=w.get("raw_logps", False),
    )
    T = task.T
    policy = Policy(LM(case.seed, mean_length=T * w.get("fill", 0.6)), case.dtype)
    ref = policy.copy(case.seed + 1, w["ref_distance"]) if w.get("ref_distance") else policy.copy()
    value = Policy(LM(case.seed + 2), case.dtype) if ppo else None
    optimizer = torch.optim.Adam(list(policy.model.parameters()) + (list(value.model.parameters()) if ppo else []), lr=w.get("lr", 4e-3))
    kl_ctl = ns_(value=args.algo.kl.init_coef)
    calls = w.get("calls", {})

    def score(name, p, ids, att):
        return p.score(
            ids, torch.ones_like(att) if calls.get("no_attention_" + name) else att, T, calls.get("temperature_" + name, task.temperature)
        )[:2]

    actor_loss = ls["PolicyLoss"](
        clip_eps_low=args.actor.eps_clip_low_high[0],
        clip_eps_high=args.actor.eps_clip_low_high[1],
        dual_clip=args.actor.dual_clip,
        token_level_loss=args.actor.loss_agg_mode == "token-mean",
        policy_loss_type=args.actor.policy_loss_type,
        is_correction_level=args.algo.advantage.is_correction_level,
        is_correction_mode=args.algo.advantage.is_correction_mode,
        is_correction_gating=args.algo.advantage.is_correction_gating,
        is_correction_threshold=args.algo.advantage.is_correction_threshold,
    )
    critic_loss = ls["ValueLoss"](args.critic.value_clip)
    self = ns_(
        strategy=ns_(args=args),
        advantage_estimator=est,
        kl_ctl=kl_ctl,
        args=args,
        actor_loss_fn=actor_loss,
        critic_loss_fn=critic_loss,
        aux_loss=False,
    )
    for f in ("get_advantages_and_returns", "get_cumulative_returns"):
        setattr(self, f, torch.no_grad()(types.MethodType(ex[f], self)))
    step, generation, steps = 0, 0, w.get("steps", 3)
    import copy

    engine_model = policy.model
    while step < steps:
        if not (w.get("stale_engine") and generation >= 1):
            engine_model = copy.deepcopy(policy.model)
        r = rollout(engine_model, task, case.seed * 1000 + generation)
        width = int(r["live"].sum(1).max())  # samples are padded to the longest
        r.update({k: r[k][:, :width] for k in ("response", "live", "mask", "gen")})
        T = width
        ids, att, m = torch.cat([r["prompt_ids"], r["response"]], 1), torch.cat([r["prompt_mask"], r["live"]], 1), r["mask"]
        B = len(m)
        with torch.no_grad():
            old, _ = policy.score(
                ids, torch.ones_like(att) if calls.get("no_attention_old") else att, T, calls.get("temperature_old", task.temperature)
            )[:2]
            reflp = (policy if driver.get("ref_is_policy") else ref).score(ids, att, T, calls.get("temperature_ref", task.temperature))[0]
            vals = value.raw(ids, att, T)[1].float() if ppo else None
            if ppo and driver.get("late_values"):
                vals = value.raw(ids, att, T)[2][:, -T:].float()
            if args.algo.kl.init_coef == 0:  # no reference model is loaded
                reflp = None
            if not args.algo.kl.use_loss:
                kl = ut["compute_approx_kl"](old, reflp, kl_estimator=args.algo.kl.estimator)
            else:
                kl = torch.zeros_like(old)
        raw = r["score"].clone()
        e = ns_(
            rewards=raw.clone(),
            index=list(range(B)),
            action_mask=m,
            values=vals,
            kl=kl,
            info={},
            response_length=r["live"].sum(1),
            truncated=r["truncated"],
        )
        e.info["response_length"] = e.response_length
        token_rewards = None
        seen = []
        real = ex["compute_reward"]
        ex["compute_reward"] = lambda *a, **k: seen.append(real(*a, **k)) or seen[-1]
        ex["compute_advantages_and_returns"](self, [e])
        ex["compute_reward"] = real
        token_rewards = seen[0]
        rows = dict(
            input_ids=ids,
            attention_mask=att,
            response_ids=r["response"],
            response_mask=m,
            logp_old=old,
            logp_ref=reflp,
            logp_gen=r["gen"],
            values=vals,
            returns=e.returns if ppo else None,
            advantages=e.advantages,
            scores=e.rewards,
            token_rewards=token_rewards if ppo else None,
            group_id=r["group"] + 1000 * generation,
        )
        order = torch.randperm(B, generator=torch.Generator().manual_seed(case.seed + generation))
        for _ in range(args.train.max_epochs):
            for mini in order.view(minis, -1):
                if step >= steps:
                    break
                optimizer.zero_grad()
                info = norm([m[mini]], None, ranks, gas)
                info["dp_size"] = ranks
                for k in range(ranks):
                    share = mini.view(ranks, -1)[k]
                    for i in range(gas):
                        sel = share.view(gas, -1)[i]
                        x = {key: v[sel] for key, v in rows.items() if v is not None}
                        lp, ent = policy.score(
                            x["input_ids"],
                            torch.ones_like(x["attention_mask"]) if calls.get("no_attention_new") else x["attention_mask"],
                            T,
                            calls.get("temperature_new", task.temperature),
                        )[:2]
                        experience = ns_(
                            action_mask=x["response_mask"] if driver.get("mask") != "live" else x["attention_mask"][:, -T:],
                            rollout_log_probs=x["logp_gen"],
                            info={},
                        )
                        batch_info = dict(info)
                        if driver.get("local"):
                            batch_info.update(
                                batch_num_tokens=x["response_mask"].sum().float(),
                                global_batch_size=(x["response_mask"].sum(1) > 0).sum().float(),
                            )
                        kept.clear()
                        env = dict(
                            base(),
                            self=self,
                            experience=experience,
                            action_log_probs=lp,
                            old_action_log_probs=x["logp_old"],
                            advantages=x["advantages"],
                            base_action_log_probs=x.get("logp_ref"),
                            loss_batch_info=batch_info,
                            kl_ctl=kl_ctl.value,
                            output=ns_(entropy=ent),
                            compute_approx_kl=ut["compute_approx_kl"],
                            aggregate_loss=ls["aggregate_loss"],
                            masked_mean=ut["masked_mean"],
                        )
                        exec(block, env)
                        loss = env["loss"] / gas
                        t = dict(
                            x,
                            logp_new=lp,
                            kl=env.get("kl"),
                            token_loss=kept["token_loss"],
                            loss=loss,
                            pg_loss=env["actor_loss"] / gas,
                            entropy=ent if args.actor.entropy_coef is not None else None,
                            kl_loss=env["kl_loss"] / gas if torch.is_tensor(env["kl_loss"]) else None,
                            entropy_loss=env["entropy_loss"] / gas if "entropy_loss" in env else None,
                        )
                        (t["dlogp"],) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
                        total = loss
                        if ppo:
                            vn = value.raw(x["input_ids"], x["attention_mask"], T)[1]
                            env2 = dict(
                                base(),
                                self=self,
                                experience=experience,
                                values=vn,
                                old_values=x["values"],
                                returns=x["returns"],
                                loss_batch_info=batch_info,
                                output=ns_(aux_loss=0),
                                aux_loss=0,
                                action_mask=experience.action_mask,
                            )
                            exec(cblock, env2)
                            t["values_new"], t["value_loss"] = vn, env2["loss"] / gas
                            (t["dvalues"],) = torch.autograd.grad(t["value_loss"], vn, retain_graph=True, materialize_grads=True)
                            total = total + t["value_loss"]
                        (total / ranks).backward()
                        o = dict(
                            {k2: v for k2, v in flat.items() if k2 not in ("rollout.max_new_tokens",)},
                            num_items_in_batch=float(info["batch_num_tokens"]) * gas,
                            num_mini_batches=minis,
                        )
                        o["agg.denominator"], o["kl.beta"] = "global", kl_ctl.value
                        scal = {"ppo_kl": float(env["ppo_kl"]), "ppo_clip_ratio": float(env["clip_ratio"])} if w.get("scalars") else {}
                        for name in w.get("drop", ()):
                            t.pop(name, None)
                        write(
                            folder,
                            t,
                            dict(
                                framework="openrlhf",
                                version="0.11.2",
                                algorithm="ppo" if ppo else "grpo",
                                profile="openrlhf-ppo@0.11" if ppo else "openrlhf-group@0.11",
                                step=step + 1,
                                rank=k,
                                world_size=ranks,
                                micro_batch=i,
                                micro_batches=gas,
                                options=o,
                                scalars=scal,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=False,
                            ),
                        )
                optimizer.step()
                step += 1
        generation += 1
