"""Runs of configurations drawn at random, judged: python drawn.py VERIFY OUT --wheels DIR [--seed N] [--count N] [--bugs] [--undeclared].

Every case is one legal configuration of a released trainer or of a plain loop, with a number format, sizes and numbers that nobody chose.
A finding on one of them is a false alarm. With --bugs each has one statement of its source changed by a rule of mutate.py, or its passes
are driven wrongly; only changes that move a dumped number by more than its format rounds count. The files of a case that is not judged as
it should be are kept in OUT.
"""

import argparse
import collections
import concurrent.futures
import json
import math
import multiprocessing
import os
import random
import shutil
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import importlib

import mutate
import source
from case import Case


def number(r, low, high):
    """Log-uniform with three digits."""
    return float(f"{math.exp(r.uniform(math.log(low), math.log(high))):.3g}")


def maybe(r, p, value, other=None):
    return value if r.random() < p else other


def sizes(r):
    """Prompts, samples per prompt, response width. Rows divide by ranks, mini-batches and passes of up to two each."""
    return r.choice([2, 4, 6, 8]), r.choice([4, 8]), r.choice([9, 20, 20, 33])


def world(r):
    w = dict(holes=r.random() < 0.25, reward=r.choice(["float", "float", "binary", "offset"]), fill=r.choice([0.3, 0.6, 0.6, 1.3]))
    w["pad_is_eos"] = r.random() < 0.15
    if r.random() < 0.4:
        w["ref_distance"] = number(r, 0.005, 0.15)
    return w


def trl_grpo(r):
    w = world(r)
    prompts, group, T = sizes(r)
    ranks = maybe(r, 0.2, 2, 1)
    ga = r.choice([1, 1, 2])
    spg = ga * r.choice([1, 1, 2])
    kind = r.choice(["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo"])
    mu = r.choice([1, 2, 3])
    a = dict(
        loss_type=kind,
        num_generations=group,
        max_completion_length=T,
        num_iterations=mu,
        gradient_accumulation_steps=ga,
        steps_per_generation=spg,
        per_device_train_batch_size=prompts * group // ranks // spg,
        beta=maybe(r, 0.5, number(r, 1e-3, 0.2), 0.0),
        epsilon=number(r, 0.02, 0.3),
        epsilon_high=maybe(r, 0.5, number(r, 0.02, 0.4)),
        scale_rewards=r.choice(["group", "group", "batch", "none"]),
        use_bias_correction_kl=r.random() < 0.7,
        entropy_coef=maybe(r, 0.2, number(r, 1e-3, 0.05), 0.0),
        top_entropy_quantile=maybe(r, 0.15, number(r, 0.1, 0.9), 1.0),
        mask_truncated_completions=r.random() < 0.2,
        temperature=maybe(r, 0.3, number(r, 0.6, 1.5), 1.0),
        use_vllm=r.random() < 0.5,
        vllm_importance_sampling_mode=r.choice(["sequence_mask", "sequence_truncate", "token_mask", "token_truncate"]),
        vllm_importance_sampling_clip_max=number(r, 1.02, 4),
        vllm_importance_sampling_correction=r.random() < 0.85,
        learning_rate=number(r, 1e-3, 8e-3),
    )
    if ranks > 1:  # the quantile is gathered from all ranks, which run here one after the other
        a["top_entropy_quantile"] = 1.0
    if kind == "vespo":  # TRL refuses the other two
        a["vllm_importance_sampling_mode"] = r.choice(["token_mask", "token_truncate"])
    if kind in ("grpo", "dapo", "bnpo", "dr_grpo", "luspo") and r.random() < 0.3:
        a.update(importance_sampling_level="sequence", epsilon=number(r, 3e-4, 0.01), epsilon_high=number(r, 3e-4, 0.01))
    if kind == "cispo":
        a["epsilon_high"] = number(r, 1.05, 6)
    if kind == "sapo":
        a.update(sapo_temperature_pos=number(r, 0.7, 1.4), sapo_temperature_neg=number(r, 0.7, 1.4))
    if kind in ("grpo", "dapo", "bnpo", "dr_grpo") and r.random() < 0.2:
        a["delta"] = number(r, 1.3, 3)
    if r.random() < 0.3:
        w["rewards"] = 2
        a["reward_weights"] = [number(r, 0.2, 2), number(r, 0.2, 2)]
        a["multi_objective_aggregation"] = r.choice(["sum_then_normalize", "normalize_then_sum"])
    return dict(w, args=a, prompts=prompts, ranks=ranks, steps=3 if mu == 1 else 4)


def verl_(r):
    w = world(r)
    w["prompts"], w["group"], w["T"] = sizes(r)
    w["ranks"], w["minis"], w["micros"] = maybe(r, 0.25, 2, 1), maybe(r, 0.25, 2, 1), maybe(r, 0.3, 2, 1)
    est = r.choice("grpo grpo grpo grpo_vectorized rloo rloo_vectorized opo reinforce_plus_plus rpp_baseline remax gae gae gae".split())
    mode = r.choice("vanilla vanilla vanilla vanilla gspo sapo cispo geo_mean kl_cov clip_cov dro gpg".split())
    if mode in ("gspo", "sapo", "geo_mean"):
        agg = "seq-mean-token-mean"
    else:
        agg = r.choice(["token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
    low, high = number(r, 0.02, 0.3), number(r, 0.02, 0.4)
    if mode == "gspo":
        low, high = number(r, 3e-4, 0.01), number(r, 3e-4, 0.01)
    actor = dict(
        clip_ratio=low,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=number(r, 1.5, 10),
        loss_agg_mode=agg,
        loss_scale_factor=maybe(r, 0.4, r.choice([64, 256, 1000])) if agg.endswith("norm") else None,
        entropy_coeff=maybe(r, 0.25, number(r, 1e-3, 0.05), 0.0),
        use_kl_loss=r.random() < 0.5,
        kl_loss_coef=number(r, 1e-3, 0.2),
        kl_loss_type=r.choice(["low_var_kl", "low_var_kl", "kl", "mse", "abs", "k3+"]),
        ppo_epochs=r.choice([1, 2, 3]),
        tau_pos=number(r, 0.7, 1.4),
        tau_neg=number(r, 0.7, 1.4),
    )
    algo = dict(
        adv_estimator=est,
        gamma=maybe(r, 0.4, number(r, 0.9, 1), 1.0) if est in ("gae", "reinforce_plus_plus") else 1.0,
        lam=maybe(r, 0.7, number(r, 0.85, 1), 1.0),
        norm_adv_by_std_in_grpo=r.random() < 0.75,
        use_kl_in_reward=r.random() < (0.5 if est == "gae" else 0.1) and not actor["use_kl_loss"],
        kl_coef=number(r, 1e-3, 0.1),
        kl_penalty=r.choice(["kl", "kl", "low_var_kl", "mse", "abs"]),
        rollout_is=maybe(r, 0.35, r.choice(["token", "sequence"])),
        rollout_is_threshold=number(r, 1.005, 5),
    )
    w["temperature"] = maybe(r, 0.25, number(r, 0.6, 1.5), 1.0)
    if est == "gae":
        w["critic_agg"], w["critic_scale"] = agg, actor["loss_scale_factor"]  # critic.loss_agg_mode and its factor are the actor's by default
        w["cliprange_value"] = number(r, 0.02, 0.6)
        if r.random() < 0.2:
            w["adaptive"] = (number(r, 0.01, 0.3), 200)
    policy = dict(loss_mode=mode, clip_cov_ratio=0.05, clip_cov_lb=0.1, kl_cov_ratio=0.02, ppo_kl_coef=number(r, 0.02, 1), dro_beta=number(r, 0.05, 1))
    return dict(w, actor=actor, algo=algo, policy=policy, scalars=r.random() < 0.4, entropy=r.random() < 0.3, steps=4, lr=number(r, 1e-3, 8e-3))


def openrlhf_(r):
    w = world(r)
    w["prompts"], w["group"], w["T"] = sizes(r)
    w["ranks"], w["minis"], w["gas"] = maybe(r, 0.25, 2, 1), maybe(r, 0.25, 2, 1), maybe(r, 0.3, 2, 1)
    est = r.choice("gae gae gae reinforce reinforce_baseline rloo dr_grpo group_norm group_norm group_norm".split())
    loss_kl = est in ("dr_grpo", "group_norm") or r.random() < 0.3
    args = {
        "algo.advantage.estimator": est,
        "algo.kl.use_loss": loss_kl,
        "algo.kl.estimator": r.choice(["k2", "k3"]) if loss_kl else r.choice(["k1", "k1", "k3"]),
        "algo.kl.init_coef": number(r, 1e-3, 0.2),
        "algo.kl.unbiased_gradient": loss_kl and r.random() < 0.25,
        "algo.advantage.gamma": maybe(r, 0.4, number(r, 0.9, 1), 1.0) if est in ("gae", "reinforce", "reinforce_baseline") else 1.0,
        "algo.advantage.lambd": maybe(r, 0.7, number(r, 0.85, 1), 1.0) if est == "gae" else 1.0,
        "algo.advantage.no_std_norm": est == "gae" and r.random() < 0.3,
        "actor.eps_clip_low_high": [number(r, 0.02, 0.3), number(r, 0.02, 0.4)],
        "actor.dual_clip": maybe(r, 0.2, number(r, 1.5, 5)),
        "actor.loss_agg_mode": r.choice(["token-mean", "token-mean", "seq-mean-token-mean"]),
        "actor.entropy_coef": maybe(r, 0.3, number(r, 1e-3, 0.05)),
        "critic.value_clip": maybe(r, 0.8, number(r, 0.02, 0.6)),
        "rollout.temperature": maybe(r, 0.25, number(r, 0.6, 1.5), 1.0),
        "train.max_epochs": r.choice([1, 2, 3]),
        "rollout.max_new_tokens": w["T"],
    }
    if r.random() < 0.15:
        args.update({"actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [number(r, 3e-4, 0.01), number(r, 3e-4, 0.01)]})
    if r.random() < 0.35:
        level = r.choice(["token", "token", "seq"])
        args["algo.advantage.is_correction_level"] = level
        args["algo.advantage.is_correction_mode"] = r.choice(["mask", "clip"]) if level == "token" else "mask"
        args["algo.advantage.is_correction_threshold"] = [number(r, 0.5, 0.99), number(r, 1.01, 3)]
    return dict(w, args=args, scalars=r.random() < 0.4, steps=4, lr=number(r, 1e-3, 8e-3))


def trl_ppo(r):
    args = dict(
        kl_coef=number(r, 1e-3, 0.3),
        kl_estimator=r.choice(["k1", "k3"]),
        cliprange=number(r, 0.02, 0.3),
        cliprange_value=number(r, 0.02, 0.5),
        vf_coef=number(r, 0.05, 1),
        gamma=maybe(r, 0.4, number(r, 0.9, 1), 1.0),
        lam=number(r, 0.85, 1),
        whiten_rewards=r.random() < 0.3,
        missing_eos_penalty=maybe(r, 0.3, number(r, 0.3, 2)),
        temperature=r.choice([0.7, 1.0, number(r, 0.6, 1.5)]),
        num_ppo_epochs=r.choice([1, 2, 4]),
        gradient_accumulation_steps=r.choice([1, 2]),
        num_mini_batches=r.choice([1, 2]),
    )
    w = dict(prompts=r.choice([8, 16, 24]), T=r.choice([9, 20, 33]), fill=r.choice([0.3, 0.6, 1.3]), reward=r.choice(["float", "binary", "offset"]))
    if r.random() < 0.4:
        w["ref_distance"] = number(r, 0.005, 0.15)
    return dict(w, args=args, scalars=r.random() < 0.4, gen=r.random() < 0.4, lr=number(r, 1e-3, 6e-3))


def loops_(r):
    w = dict(prompts=r.choice([4, 6, 8]), minis=maybe(r, 0.3, 2, 1), micros=maybe(r, 0.3, 2, 1), reward=r.choice(["float", "binary", "offset"]))
    w.update(T=r.choice([9, 20, 33]), epochs=r.choice([1, 2, 3]), lr=number(r, 1e-3, 8e-3), loop=r.choice(["group"] * 4 + ["open_instruct", "cleanrl", "oai"]))
    clip = dict(low=number(r, 0.02, 0.3), high=number(r, 0.02, 0.4), beta=maybe(r, 0.6, number(r, 1e-3, 0.2), 0.0))
    if w["loop"] in ("group", "open_instruct"):
        w.update(holes=r.random() < 0.3, temperature=maybe(r, 0.25, number(r, 0.6, 1.5), 1.0), fill=r.choice([0.3, 0.6, 1.3]), ref_distance=number(r, 0.005, 0.1))
    if w["loop"] == "group":
        scale = r.choice(["group_std", "group_std", "none", "batch_std"])
        o = dict(clip, center=r.choice(["mean", "mean", "loo"]), scale=scale, ddof=r.choice([0, 1]), adv_eps=number(r, 1e-8, 1e-2))
        o.update(tis=r.random() < 0.3, tis_cap=number(r, 1.02, 4), agg=r.choice(["token", "rows", "constant"]), constant=float(max(r.choice([20, 64, 777]), w["T"])))
        o.update(kl=r.choice(["k1", "k2", "k3"]), bonus=maybe(r, 0.3, number(r, 1e-3, 0.05), 0.0))
    elif w["loop"] == "open_instruct":
        o = dict(clip, normalization=r.choice(["standard", "centered"]), tis=r.random() < 0.4, tis_cap=number(r, 1.02, 4))
    elif w["loop"] == "cleanrl":
        o = dict(gamma=number(r, 0.9, 1), lam=number(r, 0.85, 1), clip=number(r, 0.02, 0.3), ent_coef=number(r, 1e-3, 0.05), vf_coef=number(r, 0.1, 1))
    else:
        o = dict(kl_coef=number(r, 1e-3, 0.3), gamma=number(r, 0.9, 1), lam=number(r, 0.85, 1), clip=number(r, 0.02, 0.3), clip_value=number(r, 0.02, 0.5))
        o.update(vf_coef=number(r, 0.05, 1), whiten_rewards=r.random() < 0.6)
    return dict(w, o=o)


def second(r):
    loop = r.choice(["tokens", "nano", "packed", "ranks"] + ["mixed"] * 4)
    w = dict(loop=loop, prompts=r.choice([4, 6, 8]), T=r.choice([9, 24, 40]), epochs=r.choice([1, 2, 3]), lr=number(r, 1e-3, 8e-3))
    w.update(minis=maybe(r, 0.3, 2, 1), micros=maybe(r, 0.3, 2, 1), ref_distance=number(r, 0.005, 0.1), reward=r.choice(["share", "binary", "offset"]))
    if loop == "packed":
        w.update(minis=1, width=3 * w["T"] + 20)
        return dict(w, o=dict(eps=number(r, 1e-8, 1e-3), low=number(r, 0.02, 0.3), high=number(r, 0.02, 0.4), beta=number(r, 1e-3, 0.2), agg=r.choice(["token", "rows"])))
    if loop == "tokens":
        o = dict(gamma=number(r, 0.9, 1), lam=number(r, 0.85, 1), clip=number(r, 0.02, 0.3), vclip=maybe(r, 0.7, number(r, 0.02, 0.5)))
        return dict(w, o=dict(o, vf=number(r, 0.1, 1), ent=maybe(r, 0.6, number(r, 1e-3, 0.05), 0.0), normalise=r.random() < 0.6))
    if loop == "nano":
        return dict(w, o={}, temperature=maybe(r, 0.3, number(r, 0.6, 1.5), 1.0), ordered=r.random() < 0.3)
    w["tools"] = r.random() < 0.3
    if loop == "ranks":
        w.update(ranks=2)
        o = dict(kl=r.choice(["k1", "k3"]), beta=number(r, 1e-3, 0.2), gamma=number(r, 0.9, 1), lam=number(r, 0.85, 1), whiten=r.random() < 0.6)
        return dict(w, o=dict(o, low=number(r, 0.02, 0.3), high=number(r, 0.02, 0.4), dual=number(r, 1.5, 5), vclip=number(r, 0.02, 0.5), vf=number(r, 0.1, 1)))
    kind = r.choice(["ppo", "ppo", "ppo", "cispo", "sequence", "soft"])
    place = r.choice(["none", "loss", "loss", "before"])
    o = dict(center=r.choice(["mean", "mean", "loo"]), scale=r.choice(["group", "group", "none", "batch"]), ddof=r.choice([0, 1]), eps=number(r, 1e-8, 1e-2))
    o.update(kind=kind, low=number(r, 0.02, 0.3), high=number(r, 0.02, 0.4), place=place, beta=number(r, 1e-3, 0.2) if place != "none" else 0.0)
    o.update(kl=r.choice(["k1", "k2", "abs", "k3"]), agg=r.choice(["token", "pass", "rows", "sums", "length"]), length=float(r.choice([24, 64, 777])))
    if kind == "ppo":
        o.update(dual=maybe(r, 0.3, number(r, 1.5, 5)))
    if kind == "sequence":
        o.update(low=number(r, 3e-4, 0.01), high=number(r, 3e-4, 0.01))
    if kind == "soft":
        o.update(tau=(number(r, 0.7, 1.4), number(r, 0.7, 1.4)))
    o["ent"] = maybe(r, 0.3, number(r, 1e-3, 0.05), 0.0)
    if r.random() < 0.25:
        o.update(tis="token", rule=r.choice(["cap", "clamp", "drop"]), low_w=number(r, 0.5, 0.95), high_w=number(r, 1.05, 3))
        w.update(lag=1, lr=1e-3)
    return dict(w, o=o, temperature=maybe(r, 0.25, number(r, 0.6, 1.5), 1.0))


DRAW = dict(trl_grpo=trl_grpo, verl_=verl_, openrlhf_=openrlhf_, trl_ppo=trl_ppo, loops_=loops_, second=second)
WEIGHT = [4, 4, 3, 1, 2, 3]


def draw(seed):
    r = random.Random(seed)
    producer = r.choices(list(DRAW), WEIGHT)[0]
    cfg = DRAW[producer](r)
    return Case(f"d-{producer.strip('_')}-{seed}", producer, cfg, r.choice(["f32", "bf16", "mixed"]), seed, "drawn")


ROUNDS = dict(f32=1e-3, bf16=5e-2, mixed=5e-2)  # a change is visible that moves a number by more, of the largest of its tensor


def moved(a, b):
    """The largest change of a tensor between two runs, of its largest number, at the first step where they differ; and which tensor."""
    import torch
    from run import read

    first, most, where, differ = None, 0.0, "", set(os.listdir(a)) ^ set(os.listdir(b))
    for n in sorted(set(os.listdir(a)) & set(os.listdir(b))):
        (x, mx), (y, my) = read(os.path.join(a, n)), read(os.path.join(b, n))
        if first is not None and mx["step"] != first:
            break
        pairs = [(k, x[k].double(), y.get(k)) for k in x] + [("scalars/" + k, torch.tensor(v or 0.0), torch.tensor(my["scalars"].get(k) or 0.0)) for k, v in mx["scalars"].items()]
        if any(k in y and (x[k].shape != y[k].shape or (x[k] != y[k]).any()) for k in ("input_ids", "response_ids") if k in x) and mx["step"] == 1:
            return 0.0, "rows"  # an engine in bfloat16 does not draw the same twice on every machine
        for k, p, q in pairs:
            if q is None or p.shape != q.shape or p.numel() == 0:
                continue
            p, q = p.nan_to_num(9e9), q.double().nan_to_num(9e9)
            d = ((p - q).abs().max() / max(1e-12, p.abs().max().item(), q.abs().max().item())).item()
            if d > 0:
                first = mx["step"]
            if d > most:
                most, where = d, f"step {mx['step']}: {k}"
    return (1.0, "files") if differ and first is None else (most, where)


# how a producer drives its passes wrongly: the words of a subject, the change of the configuration, the right names
DRIVEN = [
    ("temperature of the " + side, {"temperature_" + side: 0.8, side: 0.8}, names)
    for side, names in (
        ("new", "LOGP- GEN-TEMPERATURE OLD- logp.temperature agreement ENTROPY-TEMPERATURE"),
        ("old", "LOGP- GEN-TEMPERATURE OLD- logp.temperature agreement"),
        ("ref", "REF- LOGP- KL- logp.temperature agreement GEN-TEMPERATURE"),
    )
]


def text_of(case, name):
    if case.producer == "loops_":
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loops", name + ".py")
    elif case.producer == "second":
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loops", "second.py")
    else:
        path = next(p for p in (os.path.join(source.ROOTS[r], name) for r in {"trl_grpo": ("trl-1.16.0",), "trl_ppo": ("trl-1.12.0",), "verl_": ("verl-0.9.1",), "openrlhf_": ("openrlhf-0.11.2",)}[case.producer]) if os.path.exists(p))
    return open(path, encoding="utf-8").read()


def broken(case, folder):
    """Writes a run of the case with a bug in it; what the bug is, None if eight draws showed nothing."""
    import torch

    r = random.Random(case.seed * 31 + 7)
    producer = importlib.import_module(case.producer).run

    def run(case, folder):
        torch.manual_seed(case.seed)  # of what a module draws without a generator of its own
        producer(case, folder)

    healthy = folder + ".healthy"
    shutil.rmtree(healthy, ignore_errors=True)
    try:
        seen = mutate.lines(lambda: run(case, healthy), source.SOURCE)
        by = collections.defaultdict(lambda: collections.defaultdict(list))
        for name, executed in seen.items():
            name = name[len(source.SOURCE) :]
            for m in mutate.mutations(text_of(case, name), name, executed):
                by[m[0]][m[1]].append(m)
        for _ in range(8):
            shutil.rmtree(folder, ignore_errors=True)
            if r.random() < 0.06:
                what, calls, names = r.choice(DRIVEN)
                bug = dict(family="driven", what=what, subjects=["driven"], names=names.split())
                changed = Case(case.id, case.producer, dict(case.cfg, calls=calls), case.dtype, case.seed)
            else:
                family = r.choice(sorted(by))
                statement = r.choice(sorted(by[family]))
                _, statement, edit, what = r.choice(by[family][statement])
                subjects, names = mutate.subjects(statement)
                bug = dict(family=family, what=f"{statement}: {what}", subjects=subjects, names=names)
                changed = Case(case.id, case.producer, case.cfg, case.dtype, case.seed, edits=(edit,))
            try:
                run(changed, folder)
            except Exception:
                continue
            size, bug["shows"] = moved(healthy, folder)
            if size > ROUNDS[case.dtype]:
                return bug
        return None
    finally:
        shutil.rmtree(healthy, ignore_errors=True)


def one(job):
    import judge
    import torch

    torch.set_num_threads(1)
    seed, binary, out, declared, bugs = job
    case = draw(seed)
    folder = os.path.join(out, case.id)
    shutil.rmtree(folder, ignore_errors=True)
    bug = {}
    try:
        if bugs:
            bug = broken(case, folder)
        else:
            importlib.import_module(case.producer).run(case, folder)
    except Exception as e:
        shutil.rmtree(folder, ignore_errors=True)
        return dict(id=case.id, exit="producer", why=f"{type(e).__name__}: {e}", dtype=case.dtype, cfg=case.cfg)
    if bug is None:
        shutil.rmtree(folder, ignore_errors=True)
        return dict(id=case.id, exit="nothing shows", why="eight changes", dtype=case.dtype, cfg=case.cfg)
    row = judge.judge(binary, dict(id=case.id, bug=bugs, family=bug.get("family", "drawn"), producer=case.producer, names=(), stages=()), folder, declared)
    row.update(bug, cfg=case.cfg, dtype=case.dtype)
    if bugs:
        got = set(row["first"]) - judge.GENERAL
        row["named"] = any(x.startswith(tuple(bug["names"])) for x in got) or "FACTOR" in row["first"] and bug["family"] in FACTORS
        row["misnamed"] = row["caught"] and bool(got) and not row["named"]
    if row["exit"] == 0 and not bugs or bugs and row["named"]:
        shutil.rmtree(folder)
    return row


# rules that change a quantity by a factor: a finding that says which factor has named them
FACTORS = {"scaled", "factor lost", "factor twice", "constant factor", "constant", "count", "sign", "inverted", "mean and sum", "unbiased"}


def table(rows):
    """Caught, named first, misnamed and without a name, by the rule that made the bug."""
    by = collections.defaultdict(collections.Counter)
    for r in rows:
        if "caught" not in r:
            continue
        for key in (r["family"], "all"):
            c = by[key]
            c["bugs"] += 1
            for k in ("caught", "named", "misnamed"):
                c[k] += bool(r[k])
            c["unnamed"] += r["caught"] and not r["named"] and not r["misnamed"]
    for key in sorted(by, key=lambda k: (k == "all", k)):
        print(f"{key:26s}" + "".join(f" {k} {by[key][k]:3d}" for k in ("bugs", "caught", "named", "misnamed", "unnamed")))




def main():
    p = argparse.ArgumentParser()
    p.add_argument("verify"), p.add_argument("out"), p.add_argument("--wheels", default=os.environ.get("STRANGERS_WHEELS", "wheels"))
    p.add_argument("--seed", type=int, default=1), p.add_argument("--count", type=int, default=100), p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--undeclared", action="store_true"), p.add_argument("--bugs", action="store_true")
    a = p.parse_args()
    source.unpacked(a.wheels)
    os.makedirs(a.out, exist_ok=True)
    rows, count = [], collections.Counter()
    jobs = [(s, a.verify, a.out, not a.undeclared, a.bugs) for s in range(a.seed, a.seed + a.count)]
    with concurrent.futures.ProcessPoolExecutor(a.jobs, multiprocessing.get_context("fork")) as pool:
        for row in pool.map(one, jobs):
            rows.append(row)
            count[row["exit"]] += 1
            if a.bugs and "caught" in row:
                if not (row["caught"] and row["named"]):
                    verdict = "MISSED" if not row["caught"] else "MISNAMED" if row["misnamed"] else "UNNAMED"
                    print(verdict, row["id"], row["dtype"], f"[{row['family']}]", row["what"], "shows", row["shows"])
                    for f in (row["findings"] or row["undetermined"])[:2]:
                        print("     ", f[:600], flush=True)
            elif row["exit"] != 0:
                print(row["id"], row["dtype"], "exit", row["exit"], row.get("why") or (row["findings"] or row["undetermined"])[:2], flush=True)
    with open(os.path.join(a.out, "rows.json"), "w") as f:
        json.dump(rows, f, indent=1)
    print(dict(count))
    if a.bugs:
        table(rows)
    return 1 if count[1] and not a.bugs else 0


if __name__ == "__main__":
    sys.exit(main())
