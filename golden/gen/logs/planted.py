"""A third set of logs: a token-level policy trained by policy gradients in this file, with a fault in the program, under the names that TRL, verl,
OpenRLHF, CleanRL and transformers' Trainer log, in the forms of their loggers.

    python golden/gen/logs/planted.py OUT --seed 31 --forms 3            # every fault in three forms: OUT/table.txt names the symptom that is due
    python golden/gen/logs/planted.py OUT --seed 31 --healthy 100        # the same program without a fault, at drawn settings

The faults are drawn from the catalogue and planted in what the program computes, or in how a number is reduced before it is logged; none
was looked up in the rules. Needs numpy.
"""

import argparse
import csv
import json
import math
import os
import random
import struct

import numpy as np

NAN = math.nan


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Adam:
    def __init__(self, like):
        self.m, self.v, self.t = [np.zeros_like(x) for x in like], [np.zeros_like(x) for x in like], 0

    def step(self, xs, gs, lr):
        self.t += 1
        for x, g, m, v in zip(xs, gs, self.m, self.v):
            m += .1 * (g - m)
            v += .001 * (g * g - v)
            x -= lr * (m / (1 - .9 ** self.t)) / (np.sqrt(v / (1 - .999 ** self.t)) + 1e-8)


def settings(r):
    """What a healthy run may be."""
    return dict(V=r.choice([16, 24, 40]), T=r.choice([8, 12, 20]), prompts=r.choice([4, 6, 8]), G=r.choice([4, 8]), steps=r.choice([30, 45, 60]), lr=r.choice([.01, .02, .03]), shown_lr=r.choice([1e-6, 5e-6, 2e-5]),
                beta=r.choice([0., .01, .04]), eps=.2, updates=r.choice([1, 2]), weights=r.choice([(1., 1.), (1., .5), (2., 1.)]), warmup=r.choice([0, 3]), entropy=0., vf=.5, noise=r.choice([.005, .01]), clip_norm=1.)


def run(s, seed, f):
    """Yields the numbers of every update. f is the fault, a name and perhaps a number."""
    name, x = f if isinstance(f, tuple) else (f, None)
    g = np.random.default_rng(seed)
    V, T, G = s["V"], s["T"], s["G"]
    bank = 48
    a, b = g.normal(0, .8, (V, V)), g.normal(0, .3, (bank, V))
    a[:, 0] -= .5  # token 0 ends a response
    plen = g.integers(12, 90, bank)
    value = np.zeros((V + bank,))
    ref = (a.copy(), b.copy())
    opt, vopt = Adam([a, b]), Adam([value])
    good = np.zeros(V)
    good[1:1 + V // 4] = 1
    engine, total = (a.copy(), b.copy()), s["steps"] * s["updates"]
    step, same = 0, g.integers(0, bank, s["prompts"])
    logits = lambda w, prev, p: w[0][prev] + w[1][p]
    for rollout in range(s["steps"]):
        ids = np.repeat(same if name == "same prompts" else g.permutation(bank)[:s["prompts"]], G)
        n = len(ids)
        if name != "stale engine" and not (name == "late sync" and rollout % 8):
            engine = (a.copy(), b.copy())
        if name == "engine precision":
            engine = (np.round(a / x) * x, np.round(b / x) * x)
        toks, prevs, gen, mask = np.zeros((n, T), int), np.zeros((n, T), int), np.zeros((n, T)), np.zeros((n, T), bool)
        prev, alive = np.full(n, V - 1), np.ones(n, bool)
        for t in range(T):
            z = logits(engine, prev, ids)
            if name == "engine temperature":
                z = z / x
            lp = np.log(softmax(z))
            q = softmax(z / 1e-3) if name == "greedy" else np.exp(lp)
            if name in ("top-k samples",):
                kept = np.argsort(-q, -1)[:, :x]
                m = np.zeros_like(q)
                np.put_along_axis(m, kept, 1, -1)
                q = q * m / (q * m).sum(-1, keepdims=True)
            if name == "no end" and rollout >= x:
                q = q * (np.arange(V) > 0)
                q /= q.sum(-1, keepdims=True)
            y = (q.cumsum(-1) > g.random((n, 1)) * q.sum(-1, keepdims=True)).argmax(-1)
            prevs[:, t], toks[:, t], mask[:, t] = prev, y, alive
            gen[:, t] = lp[np.arange(n), y] + g.normal(0, s["noise"], n) * (1 - np.exp(lp[np.arange(n), y]))
            alive, prev = alive & (y != 0), y
        lens = mask.sum(1)
        ended = ~alive
        ra, rb = (good[toks] * mask).sum(1) / lens, ended * (1 - lens / (2. * T))
        if name == "judge constant" and rollout >= x:
            ra, rb = ra * 0 + .5, rb * 0 + .5
        if name == "nan reward" and rollout >= x:
            ra[g.integers(0, n)] = NAN
        w = s["weights"]
        score = w[0] * ra + w[1] * rb
        logged = ra + rb if name == "weights not logged" else score
        grouped = score.reshape(-1, G)
        centre = grouped - grouped.mean(1, keepdims=True)
        adv = (centre / (grouped.std(1, ddof=1, keepdims=True) + 1e-4)).ravel()
        if name == "advantage sign":
            adv = -adv
        if name == "advantages by variance":
            adv = (centre / (grouped.var(1, ddof=1, keepdims=True) + 1e-4)).ravel()
        z = logits((a, b), prevs, ids[:, None])
        if name == "old temperature":
            z = z / x
        if name == "dropout":
            z = z * (g.random(z.shape) > x) / (1 - x)
        old = np.take_along_axis(np.log(softmax(z)), toks[..., None], -1)[..., 0]
        if name == "rows shuffled" and rollout >= x:
            old = np.roll(old, 1, 0)
        lref = np.take_along_axis(np.log(softmax(logits(ref, prevs, ids[:, None]))), toks[..., None], -1)[..., 0]
        if name == "reference zero":
            lref = lref * 0
        M = mask.sum()
        mean = lambda v: (v * mask).sum() / M
        vold = value[prevs] + value[V + ids][:, None]
        for update in range(s["updates"]):
            shown = s["shown_lr"] * min(1, step / max(1, s["warmup"])) * max(1e-3, 1 - step / total)
            lr = s["lr"] * shown / s["shown_lr"]
            if name == "lr zero" or name == "lr ends" and step > x:
                shown = lr = 0.
            if name == "lr tiny":
                shown = lr = x
            if name == "lr high":
                lr *= x
            z = logits((a, b), prevs, ids[:, None])
            p = softmax(z)
            lp = np.take_along_axis(np.log(np.maximum(p, 1e-300)), toks[..., None], -1)[..., 0]
            if name == "old recomputed":
                old = lp
            d = lp - old
            ratio = np.exp(d)
            A = adv[:, None]
            low, high = 1 - s["eps"], 1 + s["eps"]
            if name == "narrow clip":
                low, high = 1 - x, 1 + x
            cut = (ratio > high) & (A > 0) | (ratio < low) & (A < 0)
            if name == "no clip":
                cut = cut & False
            pg = -np.where(cut, np.clip(ratio, low, high), ratio) * A
            e = lref - lp
            k3 = np.exp(e) - e - 1
            H = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
            loss = mean(pg) + s["beta"] * mean(k3)
            coefficient = np.where(cut, 0, -ratio * A) + s["beta"] * (1 - np.exp(e))
            if name == "reward kl":
                coefficient = coefficient + x * (1 - np.exp(e))
            scale = {"sum loss": M, "summed micro-batches": 512.}.get(name, 1.) / M
            dz = (coefficient * mask * scale)[..., None] * (np.eye(V)[toks] - p)
            if name == "entropy bonus":
                dz = dz + (x * mask / M)[..., None] * p * (np.log(np.maximum(p, 1e-300)) + H[..., None])
            ga, gb = np.zeros_like(a), np.zeros_like(b)
            np.add.at(ga, prevs.ravel(), dz.reshape(-1, V))
            np.add.at(gb, np.repeat(ids, T), dz.reshape(-1, V))
            if name == "nan gradient" and step >= x:
                ga[0, 0] = NAN
            if name == "outlier" and step == x:
                ga *= 3e4
            if name == "detached" or name == "detached later" and step >= x:
                ga, gb = ga * 0, gb * 0
            norm = math.sqrt((ga ** 2).sum() + (gb ** 2).sum())
            c = min(1, s["clip_norm"] / (norm + 1e-6)) if not math.isnan(norm) else 1
            opt.step([a, b], [ga * c, gb * c], lr)
            R = (score[:, None] * mask)
            v = value[prevs] + value[V + ids][:, None]
            dv = (v - R) * mask / M
            if name == "value sign":
                dv = -dv
            gv = np.zeros_like(value)
            np.add.at(gv, prevs.ravel(), dv.ravel())
            np.add.at(gv, V + np.repeat(ids, T), dv.ravel())
            vopt.step([value], [gv], 0 if name == "value frozen" else .01)
            real, est = np.broadcast_to(score[:, None], mask.shape)[mask], v[mask]
            gap, gd = np.abs(old - gen), gen - old
            if name == "engine shifted":
                gap, gd = np.abs(old - np.roll(gen, 1, 1)), np.roll(gen, 1, 1) - old
                gen_ = np.roll(gen, 1, 1)
            else:
                gen_ = gen
            seq = np.exp((-gd * mask).sum(1))
            first = update == 0
            m = dict(step=step + 1, rollout=rollout + 1, first=first, epoch=round((step + 1) * s["prompts"] / 480 / s["updates"], 4), lr=shown, loss=loss, pg=mean(pg), k3=mean(k3), k1=mean(-e), entropy=mean(H), clip=mean(cut * 1.), approx=mean(-d),
                     approx3=mean(np.exp(d) - d - 1), reward=logged.mean(), reward_std=grouped.std(1, ddof=1).mean(), ra=ra.mean(), rb=rb.mean(), sa=ra.std(), sb=rb.std(), zero=(grouped.std(1) < 1e-8).mean(), trunc=1 - ended.mean(), length=lens.mean(), least=lens.min() * 1.,
                     most=lens.max() * 1., norm=norm, amax=adv.max(), amin=adv.min(), amean=adv.mean(), gap=mean(gap), gapmax=(gap * mask).max(), ratio=mean(np.minimum(np.exp(-gd), 2)), ek1=mean(gd), ek3=mean(np.exp(-gd) + gd - 1),
                     probs=mean(np.abs(np.exp(old) - np.exp(gen_))), probmax=(np.abs(np.exp(old) - np.exp(gen_)) * mask).max(), corr=np.corrcoef(np.exp(old[mask]), np.exp(gen_[mask]))[0, 1], vloss=.5 * ((est - real) ** 2).mean(), explained=1 - np.var(real - est) / np.var(real) if np.var(real) > 0 else NAN,
                     smax=score.max(), smin=score.min(), pmean=plen[ids].mean(), pmin=plen[ids].min() * 1., pmax=plen[ids].max() * 1., tokens=float(M * (step + 1)))
            # faults of what is logged
            if name == "k3 sign":
                m["k3"] = -m["k3"]
            if name in ("k1 as k3", "top-k samples"):
                m["k3"] = m["k1"]
            if name == "k3 unmasked":
                m["k3"] = (-e * np.where(mask, 1, -3)).mean()
            if name == "entropy sum":
                m["entropy"] = (H * mask).sum(1).mean()
            if name == "entropy sign":
                m["entropy"] = -m["entropy"]
            if name == "entropy pads":
                m["entropy"] = ((H * mask).sum(1) - 4 * (T - lens)).mean()
            if name == "percent":
                m["clip"], m["trunc"] = 100 * m["clip"], 100 * m["trunc"]
            if name == "local share":
                m["trunc"], m["zero"] = 4 * m["trunc"], 4 * m["zero"]
            if name == "variance":
                m["reward_std"] = (grouped ** 2).mean() - (grouped.mean() + .5) ** 2
            if name == "mean over kept":
                m["length"] = m["most"] * 1.25
            if name == "value loss sign":
                m["vloss"] = -m["vloss"]
            if name == "sequence ratio":
                m["ratio"] = np.minimum(seq ** 40, 2).mean() * .5
            if name == "engine k3 sign":
                m["ek3"] = -m["ek3"] - 1e-4
            step += 1
            yield m


def trl(m, s):
    return {"loss": m["loss"], "grad_norm": m["norm"], "learning_rate": m["lr"], "num_tokens": m["tokens"], "completions/mean_length": m["length"], "completions/min_length": m["least"], "completions/max_length": m["most"], "completions/clipped_ratio": m["trunc"],
            "rewards/accuracy/mean": m["ra"], "rewards/accuracy/std": m["sa"], "rewards/brevity/mean": m["rb"], "rewards/brevity/std": m["sb"], "reward": m["reward"], "reward_std": m["reward_std"], "frac_reward_zero_std": m["zero"],
            "sampling/sampling_logp_difference/mean": m["gap"], "sampling/sampling_logp_difference/max": m["gapmax"], "sampling/importance_sampling_ratio/mean": m["ratio"], **({"kl": m["k3"]} if s["beta"] else {}), "entropy": m["entropy"],
            "clip_ratio/low_mean": m["clip"] / 2, "clip_ratio/high_mean": m["clip"] / 2, "clip_ratio/region_mean": m["clip"], "epoch": m["epoch"]}


def verl(m, s):
    return {"training/global_step": m["step"], "training/epoch": 0, "actor/entropy": m["entropy"], "actor/pg_loss": m["pg"], "actor/pg_clipfrac": m["clip"], "actor/ppo_kl": m["approx"], "actor/pg_clipfrac_lower": 0., **({"actor/kl_loss": m["k3"], "actor/kl_coef": s["beta"]} if s["beta"] else {}),
            "actor/grad_norm": m["norm"], "actor/lr": m["lr"], "critic/score/mean": m["reward"], "critic/score/max": m["smax"], "critic/score/min": m["smin"], "critic/advantages/mean": m["amean"], "critic/advantages/max": m["amax"], "critic/advantages/min": m["amin"],
            "critic/vf_loss": m["vloss"], "critic/vf_explained_var": m["explained"], "response_length/mean": m["length"], "response_length/max": m["most"], "response_length/min": m["least"], "response_length/clip_ratio": m["trunc"], "prompt_length/mean": m["pmean"], "prompt_length/max": m["pmax"],
            "prompt_length/min": m["pmin"], "training/rollout_probs_diff_mean": m["probs"], "training/rollout_probs_diff_max": m["probmax"], "training/rollout_actor_probs_pearson_corr": m["corr"], "rollout_corr/kl": m["ek1"], "rollout_corr/k3_kl": m["ek3"], "timing_s/step": 1.25}


def openrlhf(m, s):
    return {"policy_loss": m["pg"], "entropy_loss": -m["entropy"], "actor_lr": m["lr"], "actor_grad_norm": m["norm"], "ppo_clip_ratio": m["clip"], "ppo_kl": m["approx"], "vllm_kl": m["ek1"], "kl": m["k1"], "reward": m["reward"], "response_length": m["length"], "total_length": m["length"] + m["pmean"],
            "truncated": m["trunc"], "group_reward_std": m["reward_std"]}


def cleanrl(m, s):
    return {"charts/learning_rate": m["lr"], "losses/value_loss": m["vloss"], "losses/policy_loss": m["pg"], "losses/entropy": m["entropy"], "losses/old_approx_kl": m["approx"], "losses/approx_kl": m["approx3"], "losses/clipfrac": m["clip"], "losses/explained_variance": m["explained"], "charts/episodic_return": m["reward"]}


def crc(data):
    c = 0xffffffff
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
    c ^= 0xffffffff
    return ((c >> 15 | c << 17) + 0xa282ead8) & 0xffffffff


def event(step, values):
    def varint(n):
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])
    field = lambda n, b: bytes([n << 3 | 2]) + varint(len(b)) + b
    summary = b"".join(field(1, field(1, k.encode()) + b"\x15" + struct.pack("<f", v)) for k, v in values.items())
    body = b"\x09" + struct.pack("<d", 1.7e9 + step) + b"\x10" + varint(step) + field(5, summary)
    head = struct.pack("<Q", len(body))
    return head + struct.pack("<I", crc(head)) + body + struct.pack("<I", crc(body))


def write(path, form, rows, s):
    """One log in a form; returns the name of the file."""
    names = {"trl": trl, "verl": verl, "openrlhf": openrlhf, "cleanrl": cleanrl}[form.split("-")[0]]
    list_ = [(m["step"], {k: float(v) for k, v in names(m, s).items()}) for m in rows]
    kind = form.split("-")[1]
    to = os.path.join(path, {"console": "console.log", "jsonl": "metrics.jsonl", "state": "trainer_state.json", "csv": "history.csv", "wandb": "history.jsonl", "events": "events.out.tfevents.1700000000.host"}[kind])
    os.makedirs(path, exist_ok=True)
    if kind == "events":
        with open(to, "wb") as f:
            for step, row in list_:
                f.write(event(step, {k: v for k, v in row.items() if abs(v) < 3e38 or v != v}))
        return
    with open(to, "w", newline="", encoding="utf-8") as f:
        if kind == "state":
            json.dump({"global_step": list_[-1][0], "log_history": [{**r, "step": n} for n, r in list_]}, f, indent=1)
        elif kind == "csv":
            w = csv.DictWriter(f, ["_step"] + [("train/" if form == "trl-csv" else "") + k for k in list_[0][1]])
            w.writeheader()
            for n, r in list_:
                w.writerow({"_step": n, **{("train/" if form == "trl-csv" else "") + k: "" if v != v else v for k, v in r.items()}})
        elif kind == "wandb":
            for n, r in list_:
                f.write(json.dumps({"_step": n, "_runtime": 3. * n, "train/global_step": n, **{"train/" + k: v for k, v in r.items()}}) + "\n")
        elif kind == "jsonl":
            for n, r in list_:
                f.write(json.dumps({"step": n, "data": {k: v if math.isfinite(v) else None for k, v in r.items()}}) + "\n")
        elif form == "trl-console":
            for n, r in list_:
                f.write(repr({k: round(v, 4) if k == "loss" else v for k, v in r.items()}) + "\n")
        elif form == "verl-console":
            for n, r in list_:
                f.write(f"step:{n} - " + " - ".join(f"{k}:{v}" for k, v in r.items()) + "\n")
        else:
            for n, r in list_:
                f.write(f"2026-03-02 10:{n // 60 % 60:02d}:{n % 60:02d} INFO logging_utils.py: ✨ Global step {n}: {r}\n")


TRL, VERL, RLHF, CLEAN = ["trl-console", "trl-state", "trl-csv", "trl-wandb"], ["verl-console", "verl-jsonl", "verl-csv"], ["openrlhf-console", "openrlhf-events"], ["cleanrl-events", "cleanrl-csv"]
# fault, the symptoms that name it (the first is due), forms that log what it shows in, settings that it needs
FAULTS = [
    (("nan reward", 9), "NONFINITE", TRL + VERL + RLHF, {}), (("nan gradient", 11), "NONFINITE", TRL + VERL + RLHF, {}), ("k3 sign", "KL-NEGATIVE", TRL, {"beta": .04}), ("k1 as k3", "KL-NEGATIVE", TRL, {"beta": .04, "lr": .01, "k1": 1}),
    (("top-k samples", 3), "KL-NEGATIVE", TRL, {"beta": .04}), ("k3 unmasked", "KL-NEGATIVE", TRL, {"beta": .04}), ("entropy sum", "ENTROPY-RANGE", TRL + VERL + RLHF, {"T": 20}), ("entropy sign", "ENTROPY-RANGE", TRL + VERL, {}),
    ("entropy pads", "ENTROPY-RANGE", TRL + VERL, {"T": 20}), ("percent", "SHARE-RANGE", TRL + VERL + RLHF, {"updates": 2}), ("local share", "SHARE-RANGE", TRL + VERL, {"T": 8}), ("variance", "SIGN-RANGE", TRL + RLHF, {}), ("mean over kept", "ORDER-RANGE", TRL + VERL, {}),
    ("value loss sign", "SIGN-RANGE", VERL + CLEAN, {}), ("weights not logged", "REWARD-SUM", TRL, {"weights": (1., .5), "config": 1}), ("lr zero", "LR-ZERO", TRL + VERL + RLHF + CLEAN, {}), (("lr tiny", 1e-13), "LR-ZERO", TRL + VERL + RLHF, {}),
    ("detached", "GRAD-ZERO", TRL + VERL, {}), (("detached later", 12), "GRAD-ZERO", TRL + VERL, {"steps": 45}), (("judge constant", 0), "ZERO-STD", TRL + VERL + RLHF, {}), (("judge constant", 15), "ZERO-STD", TRL, {"steps": 45}),
    ("greedy", "ZERO-STD", TRL + VERL + RLHF, {}), (("no end", 0), "TRUNCATED", TRL + VERL + RLHF, {}), (("engine temperature", .6), "ENGINE-GAP", TRL + VERL + RLHF, {}), (("engine temperature", 1.4), "ENGINE-GAP", TRL + VERL + RLHF, {}),
    ("stale engine", "ENGINE-GAP", TRL + VERL + RLHF, {}), (("engine precision", .6), "ENGINE-GAP", TRL + VERL, {}), ("engine shifted", "ENGINE-GAP", TRL + VERL, {}), ("sequence ratio", "IS-SEQUENCE", TRL, {}), ("engine k3 sign", "KL-NEGATIVE", VERL, {}),
    (("old temperature", .7), "RATIO-FIRST ENGINE-GAP H1", VERL + RLHF + CLEAN, {"warmup": 5, "updates": 1}), (("dropout", .1), "RATIO-FIRST ENGINE-GAP", VERL + RLHF, {"warmup": 5, "updates": 1}), ("old recomputed", "RATIO-STUCK", VERL + RLHF, {"updates": 2, "warmup": 0, "config": 1}),
    ("no clip", "CLIP-ALWAYS-0", VERL + CLEAN, {"updates": 4, "lr": .08, "steps": 30}), (("lr high", 30), "C12 C13 C14", VERL + RLHF + CLEAN, {"updates": 2}), (("narrow clip", .002), "C13", VERL + RLHF + CLEAN, {"updates": 2}),
    ("sum loss", "C14", VERL + RLHF, {}), ("summed micro-batches", "C14", VERL + RLHF, {}), ("value sign", "C11", VERL + CLEAN, {"steps": 60}), ("value frozen", "C11", VERL + CLEAN, {"steps": 60}), (("entropy bonus", -3), "C8 A3 C12", TRL + VERL + RLHF, {"steps": 60, "lr": .2, "updates": 2}),
    ("advantage sign", "C10", TRL + VERL + RLHF, {"steps": 60, "lr": .03}), (("outlier", 21), "SPIKE", TRL + VERL + RLHF, {}), ("advantages by variance", "ADV-SCALE", VERL, {"config": 1}), ("reference zero", "H1", VERL, {"beta": .001, "warmup": 3}), (("lr ends", 10), "LR-ZERO", TRL, {}),
    ("same prompts", "H13b", VERL, {}), ("two ranks", "TWO-RUNS", TRL[:1] + VERL[:2], {}), ("restarted", "STEPS-BACK STEPS-RESUMED", VERL, {}),
]


def make(out, seed, fault, form, extra):
    r = random.Random(seed)
    s = settings(r) | {k: v for k, v in extra.items() if k not in ("config", "k1")}
    with np.errstate(all="ignore"):
        rows = list(run(s, seed, fault))
    if fault == "two ranks":
        with np.errstate(all="ignore"):
            other = list(run(s, seed + 1, None))
        for m in other:
            m["step"] += 500
        rows = [m for pair in zip(rows, other) for m in pair]
    if fault == "restarted":
        rows = rows[20:] + rows[:20]
    write(out, form, rows, s)
    config = {"reward_weights": list(s["weights"]), "num_iterations": s["updates"]} if form.startswith("trl") else {"actor_rollout_ref": {"rollout": {"n": s["G"]}, "actor": {"ppo_epochs": s["updates"]}}, "algorithm": {"adv_estimator": "grpo"}}
    return config if extra.get("config") else None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--seed", type=int, default=31)
    ap.add_argument("--forms", type=int, default=3)
    ap.add_argument("--healthy", type=int, default=0)
    o = ap.parse_args()
    os.makedirs(o.out, exist_ok=True)
    r = random.Random(o.seed)
    if o.healthy:
        forms = TRL + VERL + RLHF + CLEAN
        for i in range(o.healthy):
            make(os.path.join(o.out, f"{i:03d}-{forms[i % len(forms)]}"), o.seed * 1000 + i, None, forms[i % len(forms)], {})
        return
    with open(os.path.join(o.out, "table.txt"), "w", encoding="utf-8") as f:
        for i, (fault, due, forms, extra) in enumerate(FAULTS):
            for form in r.sample(forms, min(o.forms, len(forms))):
                name = f"{i:02d}-{(fault if isinstance(fault, str) else fault[0]).replace(' ', '-')}-{form}"
                config = make(os.path.join(o.out, name), o.seed * 1000 + i, fault, form, extra)
                f.write("\t".join([name, due, json.dumps(config or {})]) + "\n")


if __name__ == "__main__":
    main()
