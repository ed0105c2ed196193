"""Trainers in plain PyTorch: the texts of loops/ with a bug's edits in them, around one machine of rollouts, epochs and micro-batches."""

import copy
import os

import torch

from world import EOS, LM, Policy, Task, rollout
from source import SOURCE, edited
from writer import write

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loops")
DEFAULT = {
    "group": dict(
        center="mean",
        scale="group_std",
        ddof=1,
        adv_eps=1e-6,
        tis=False,
        tis_cap=2.0,
        low=0.2,
        high=0.2,
        agg="token",
        constant=20.0,
        beta=0.0,
        kl="k3",
        bonus=0.0,
    ),
    "open_instruct": dict(samples=4, normalization="standard", low=0.2, high=0.272, beta=0.05, tis=False, tis_cap=2.0),
    "cleanrl": dict(gamma=0.99, lam=0.95, clip=0.2, ent_coef=0.01, vf_coef=0.5),
    "oai": dict(kl_coef=0.15, gamma=1.0, lam=0.95, clip=0.2, clip_value=0.2, vf_coef=0.1, whiten_rewards=True),
}


def declare(loop, o, w):
    """What an honest user writes: plumbline's names for a loop that no release has."""
    if loop == "group":
        d = {
            "adv.kind": "group",
            "adv.center": o["center"],
            "adv.scale": o["scale"],
            "adv.std_of": "rewards",
            "adv.ddof": o["ddof"],
            "adv.eps": o["adv_eps"],
            "adv.zero_std": "divide_eps",
            "kl.beta": o["beta"],
            "kl.kind": o["kl"],
            "kl.place": "loss" if o["beta"] else "none",
            "kl.grad": "naive",
            "kl.clamp_in": None,
            "kl.clamp_out": None,
            "kl.reduce": "token",
            "kl.agg": "same",
            "ratio.level": "token",
            "ratio.log_clamp": None,
            "ratio.old": "stored",
            "loss.kind": "ppo",
            "clip.low": o["low"],
            "clip.high": o["high"],
            "clip.dual": None,
            "clip.delta": None,
            "agg.kind": {"token": "token", "rows": "seq_mean_token_mean", "constant": "seq_sum_const"}[o["agg"]],
            "agg.denominator": "global",
            "agg.div_ga": False,
            "agg.div_batch": True,
            "mean.eps": 0,
            "entropy.coef": o["bonus"],
            "logp.temperature": w.get("temperature", 1.0),
            "tis.level": "token" if o["tis"] else "none",
        }
        if o["agg"] == "constant":
            d["max_completion_length"] = o["constant"]
        if o["tis"]:
            d |= {"tis.rule": "truncate_upper", "tis.high": o["tis_cap"], "tis.gate": "ratio", "tis.low": None, "tis.log_clamp": None}
        return "", d
    if loop == "open_instruct":
        d = {
            "adv.scale": "group_std" if o["normalization"] == "standard" else "none",
            "clip.low": o["low"],
            "clip.high": o["high"],
            "kl.beta": o["beta"],
            "agg.denominator": "global",
            "tis.level": "token" if o["tis"] else "none",
            "logp.temperature": w.get("temperature", 1.0),
            "entropy.coef": 0.0,
        }
        if o["tis"]:
            d |= {"tis.rule": "truncate_upper", "tis.high": o["tis_cap"], "tis.gate": "ratio"}
        return "open-instruct@e6c3044", d
    if loop == "cleanrl":
        return "cleanrl@020cf0e", {
            "gae.gamma": o["gamma"],
            "gae.lambda": o["lam"],
            "clip.low": o["clip"],
            "clip.high": o["clip"],
            "value.clip": o["clip"],
            "value.coef": o["vf_coef"],
            "entropy.coef": o["ent_coef"],
        }
    return "oai@2019", {
        "eos.rule": "none",
        "kl.beta": o["kl_coef"],
        "gae.gamma": o["gamma"],
        "gae.lambda": o["lam"],
        "clip.low": o["clip"],
        "clip.high": o["clip"],
        "value.clip": o["clip_value"],
        "value.coef": o["vf_coef"],
        "rewards.whiten": "shift_mean_false" if o["whiten_rewards"] else "no",
        "logp.temperature": w.get("temperature", 1.0),
    }


def run(case, folder):
    w, name = case.cfg, case.cfg["loop"]
    text = edited(open(os.path.join(HERE, name + ".py"), encoding="utf-8").read(), case.edits, name)
    ns = {}
    exec(compile(text, SOURCE + name, "exec"), ns)
    o = {**DEFAULT[name], **w.get("o", {})}
    episodic, fixed = name in ("cleanrl", "oai"), name in ("cleanrl", "oai")
    task = Task(
        prompts=w.get("prompts", 4),
        group=w.get("group", 4),
        T=w.get("T", 20),
        holes=w.get("holes", False),
        temperature=w.get("temperature", 1.0),
        reward=w.get("reward", "float"),
        endless=fixed,
        top_p=w.get("engine_top_p", 1.0),
        raw_logps=w.get("raw_logps", False),
        pad_is_eos=w.get("pad_is_eos", False),
    )
    policy = Policy(LM(case.seed, mean_length=task.T * w.get("fill", 0.6)), case.dtype)
    ref = policy.copy(case.seed + 1, w.get("ref_distance", 0.02))
    value = Policy(LM(case.seed + 2), case.dtype) if episodic else None
    optimizer = torch.optim.Adam(list(policy.model.parameters()) + (list(value.model.parameters()) if value else []), lr=w.get("lr", 4e-3))
    profile, options = declare(name, o, w)
    calls, steps, epochs, minis, micros, ranks = (
        w.get("calls", {}),
        w.get("steps", 4),
        w.get("epochs", 2),
        w.get("minis", 1),
        w.get("micros", 1),
        w.get("ranks", 1),
    )
    step = generation = 0
    engine = policy.model
    while step < steps:
        if not (w.get("stale_engine") and generation >= 1):
            engine = copy.deepcopy(policy.model)
        r = rollout(engine, task, case.seed * 1000 + generation)
        T = task.T
        ids, att = torch.cat([r["prompt_ids"], r["response"]], 1), torch.cat([r["prompt_mask"], r["live"]], 1)
        with torch.no_grad():
            score = lambda p, k: p.score(ids, att, T, calls.get("temperature_" + k, task.temperature))
            b = dict(
                ids=ids,
                att=att,
                response=r["response"],
                mask=r["mask"],
                gen=r["gen"],
                score=r["score"],
                group=r["group"] + 1000 * generation,
                plen=r["plen"],
                sample=torch.arange(len(ids)) + generation * len(ids),
                old=score(policy, "old")[0],
                ref=score(ref, "ref")[0],
            )
            if value:
                z = value.raw(ids, att, T)
                b["values"], b["next_values"] = z[1], z[2][:, -1]
                b["ends"] = r["response"] == EOS
                b["rewards"] = (r["response"] % 3 == 0).float() - 0.3
            ns["prepare"](b, o)
        for e in range(epochs):
            order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(case.seed * 7 + generation * 31 + e))
            for mini in order.view(minis, -1):
                if step >= steps:
                    break
                optimizer.zero_grad()
                total = {"tokens": float(r["mask"][mini].sum()), "rows": float(len(mini))}
                for k in range(ranks):
                    for i, sel in enumerate(mini.view(ranks, micros, -1)[k]):
                        x = {key: v[sel] for key, v in b.items()}
                        lp, ent, _, _ = policy.score(x["ids"], x["att"], T, calls.get("temperature_new", task.temperature))
                        if value:
                            v = value.raw(x["ids"], x["att"], T)[1]
                            parts, logged = ns["loss"](x, lp, ent, o, total, v)
                        else:
                            parts, logged = ns["loss"](x, lp, ent, o, total)
                        loss = parts["loss"]
                        t = dict(
                            input_ids=x["ids"],
                            attention_mask=x["att"],
                            response_ids=x["response"],
                            response_mask=x["mask"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            entropy=ent,
                            group_id=x["group"],
                            prompt_len=x["plen"],
                            sample_id=x["sample"],
                            advantages=x.get("advantages"),
                            is_weights=x.get("is_weights"),
                            **{key: v for key, v in parts.items() if key not in ("advantages",)},
                        )
                        if "advantages" in parts:
                            t["advantages"] = parts["advantages"]
                        if name != "cleanrl":
                            t.update(logp_ref=x["ref"], scores=x["score"])
                        (t["dlogp"],) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
                        if value:
                            (t["dvalues"],) = torch.autograd.grad(loss, v, retain_graph=True, materialize_grads=True)
                            t.update(
                                values=x["values"], values_new=v, token_rewards=x["rewards"], returns=t.get("returns", x.get("returns"))
                            )
                            if name == "cleanrl":
                                t.update(dones=x["ends"], next_values=x["next_values"])
                                for key in ("group_id", "prompt_len"):
                                    t.pop(key)
                            else:
                                t["kl"] = x["kl"]
                        if name == "open_instruct" or name == "group":
                            if not o["beta"]:
                                t.pop("logp_ref", None)
                        t["sample_id"] = t["sample_id"].to(torch.int32)
                        loss.backward()
                        opts = dict(options)
                        if opts.get("agg.denominator") == "global":
                            opts["num_items_in_batch"] = total["tokens"]
                        meta = dict(
                            framework={
                                "group": "torch",
                                "open_instruct": "open-instruct",
                                "cleanrl": "cleanrl",
                                "oai": "lm-human-preferences",
                            }[name],
                            algorithm="ppo" if value else "grpo",
                            step=step + 1,
                            rank=k,
                            world_size=ranks,
                            micro_batch=i,
                            micro_batches=micros,
                            options=opts,
                            scalars=logged if w.get("scalars") else {},
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        )
                        if profile:
                            meta["profile"] = profile
                        write(folder, t, meta, schema=2)
                optimizer.step()
                step += 1
        generation += 1
