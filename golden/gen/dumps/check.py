"""Judge the dumps written here with formulas of our own in float64, from each stage's dumped inputs.

The answer is, per step, the outputs that cannot be recomputed: none for a healthy run, the planted ones for a faulty run.
"""
import glob
import json
import os
import sys

import torch
from safetensors import safe_open


def load(folder):
    """step → list of (metadata, tensors in float64), ordered by rank and micro-batch."""
    steps = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with safe_open(path, "pt") as f:
            m = json.loads(f.metadata()["plumbline"])
            t = {k: f.get_tensor(k) for k in f.keys()}
        t = {k: v.double() for k, v in t.items()}
        steps.setdefault(m["step"], []).append((m, t))
    for v in steps.values():
        v.sort(key=lambda x: (x[0]["rank"], x[0]["micro_batch"]))
    return steps


def off(got, want, scale, tol, where=None):
    """Whether some cell differs by more than tol·scale; NaN differs."""
    d = (got - want).abs()
    if where is not None:
        d = torch.where(where.bool(), d, torch.zeros_like(d))
    return not bool((d <= tol * scale).all())


def agree(key, case, seen):
    """Fail if a clean run shows anything, or a faulty one not exactly what it declares."""
    all_ = {x for v in seen.values() for x in v}
    want = set(case.inconsistent) | {"scalars:" + s for s in case.scalars}
    missing, extra = want - all_, all_ - want
    print(f"{key:60s} {'clean' if not case.faults else 'fault'}  {' '.join(sorted(all_)) or '-'}", flush=True)
    if missing or extra:
        print(f"    declared but not seen: {sorted(missing)}; seen but not declared: {sorted(extra)}", flush=True)
        agree.failed = True


agree.failed = False


def trl_token_loss(o, t, lp, adv):
    """TRL 1.16's per-token loss (KL included) and KL."""
    M, old = t["response_mask"], t["logp_old"]
    lr = lp - old
    if o["importance_sampling_level"] == "sequence":
        lr = ((lr * M).sum(1) / M.sum(1).clamp(min=1)).unsqueeze(1)
    r = lr.exp()
    A = adv.unsqueeze(1)
    kl = None
    if o["beta"]:
        x = t["logp_ref"] - lp
        kl = x.exp() - 1 - x
        if o["use_bias_correction_kl"]:
            kl = kl * r
    lo, hi, kind = 1 - o["epsilon"], 1 + o["epsilon_high"], o["loss_type"]
    if kind == "cispo":
        loss = -torch.clamp(r, max=o["epsilon_high"]).detach() * A * lp
    elif kind == "sapo":
        tau = torch.where(A > 0, o["sapo_temperature_pos"], o["sapo_temperature_neg"])
        loss = -4 / tau * torch.sigmoid(tau * (r - 1)) * A
    else:
        capped = r if o["delta"] is None else torch.clamp(r, max=o["delta"])
        inside = (r >= lo) & (r <= hi)
        clipped = torch.where(r > hi, hi, torch.where(r < lo, lo, r.detach())) * A
        loss = torch.where(inside & (capped == r), -r * A, -torch.minimum(capped * A, clipped.detach()))
    if kl is not None:
        loss = loss + o["beta"] * kl
    return loss.expand_as(lp), kl, r


def trl_loss(o, m, t, x, items, kind=None):
    M, ga = t["response_mask"], m["micro_batches"]
    kind = o["loss_type"]
    n = M.sum(1)
    if kind in ("grpo", "sapo"):
        return ((x * M).sum(1) / n.clamp(min=1)).mean() / ga
    if kind == "bnpo":
        return (x * M).sum() / M.sum().clamp(min=1) / ga
    if kind == "dr_grpo":
        return (x * M).sum() / (len(n) * o["max_completion_length"]) / ga
    if kind == "luspo":
        return (x * M).sum(1).mean() / ga
    return (x * M).sum() / (items / m["world_size"] * ga / o["steps_per_generation"])


def std(x, dim=None):
    return x.std(correction=1) if dim is None else x.std(dim, correction=1)


def trl_advantages(o, rows):
    """Advantages by (group, row) over whole groups; `rows` maps group → list of (score, per function, advantage)."""
    groups = [torch.stack([r[0] for r in g]) for g in rows]
    full = all(len(g) == o["num_generations"] for g in groups)
    got = torch.cat([torch.stack([r[2] for r in g]) for g in rows])
    if not full:
        return None, got
    if o["multi_objective_aggregation"] == "normalize_then_sum":
        w = torch.tensor(o["reward_weights"]).double()
        f = [torch.stack([r[1] for r in g]) for g in rows]
        z = torch.cat([((v - v.mean(0)) / (std(v, 0) + 1e-4)) @ w for v in f])
        return (z - z.mean()) / (std(z) + 1e-4), got
    s = torch.stack(groups)
    a = s - s.mean(1, keepdim=True)
    if o["scale_rewards"] == "group":
        a = a / (std(s, 1).unsqueeze(1) + 1e-4)
    elif o["scale_rewards"] == "batch":
        a = a / (std(s) + 1e-4)
    return a.reshape(-1), got


def trl_grpo(folder):
    steps, seen = load(folder), {}
    for step, files in steps.items():
        bad = set()
        m0 = files[0][0]
        o = m0["options"]
        bf16 = bool(m0.get("lossy"))
        far = bf16 or m0["options"].get("dtype") == "bfloat16"
        tol = 2e-2 if bf16 else 2e-5
        updates = o["num_iterations"] * o["steps_per_generation"] // o["gradient_accumulation_steps"]
        first = (step - 1) % max(updates, 1) == 0
        rows, sums = {}, {k: 0.0 for k in ("loss", "kl", "entropy", "low", "high", "region", "tokens", "reward")}
        rank_mean = {k: [] for k in ("kl", "entropy", "low", "high", "region")}
        per_mb = {}
        tokens = sum(float(t["response_mask"].sum()) for _, t in files)
        for m, t in files:
            o = m["options"]
            M = t["response_mask"]
            ids, eos = t["response_ids"], o["eos_token_id"][0]
            # masks: a row shorter than the budget ended, with its EOS inside the mask, unless it is masked as a whole
            last = (M * torch.arange(1, M.shape[1] + 1)).max(1).values.long()
            for b in range(len(ids)):
                if 0 < last[b] < o["max_completion_length"] and ids[b, last[b] - 1] != eos:
                    bad.add("response_mask")
            lp = t["logp_new"].clone().requires_grad_(True)
            x, kl, r = trl_token_loss(o, t, lp, t["advantages"])
            scale = x.detach().abs() + lp.detach().abs() * 1e-2 + 1
            if off(t["token_loss"], x, scale, tol, M):
                bad.add("token_loss")
            if kl is not None and off(t["kl"], kl, scale, tol, M):
                bad.add("kl")
            want = trl_loss(o, m, t, t["token_loss"], o["num_items_in_batch"])
            mass = trl_loss(o, m, t, t["token_loss"].abs(), o["num_items_in_batch"])
            if off(t["loss"], want, mass, tol):
                bad.add("loss")
            (g,) = torch.autograd.grad(trl_loss(o, m, t, x, o["num_items_in_batch"]), lp)
            # a clip decision or a KL gradient is as sharp as the log-probs are
            # log-probs cast to bfloat16 leave open on which side of a clip bound a ratio next to it fell
            near = bf16 & (((r - 1 - o["epsilon_high"]).abs() < 0.06) | ((r - 1 + o["epsilon"]).abs() < 0.06))
            if off(t["dlogp"], g, g.abs() + g.abs().max(), tol * 3, ~near):
                bad.add("dlogp")
            w = torch.tensor(o["reward_weights"]).double()
            s = t["rewards_per_func"] @ w
            if o["multi_objective_aggregation"] == "sum_then_normalize" and off(t["scores"], s, s.abs() + 1, 1e-6):
                bad.add("scores")
            for b in range(len(ids)):
                rows.setdefault((int(t["group_id"][b])), []).append((t["scores"][b], t["rewards_per_func"][b], t["advantages"][b]))
            if first and off(t["logp_old"], t["logp_new"], 1, 5e-2 if bf16 else 1e-4, M):
                bad.add("logp_old")
            if first and not far and off(t["logp_gen"], t["logp_new"], 1, 1e-3, M) and not off(t["logp_old"], t["logp_new"], 1, 1e-4, M):
                bad.add("logp_new")
            if not first and updates > 1 and float(((t["logp_new"] - t["logp_old"]) * M).abs().max()) == 0 and float(((t["logp_new"] - t["logp_gen"]) * M).abs().max()) > 1e-3:
                bad.add("logp_old")
            if "logits" in t:
                z = (t["logits"] / o["temperature"]).log_softmax(-1)
                if off(t["logp_new"], z.gather(-1, t["response_ids"].long().unsqueeze(-1)).squeeze(-1), 1, 1e-4, M):
                    bad.add("logp_new")
                if "logp_new" not in bad and off(t["entropy"], -(z.exp() * z).sum(-1), 1, 1e-4, M):
                    bad.add("entropy")
            # scalars, as sums over ranks of one micro-batch
            c = per_mb.setdefault(m["micro_batch"], {"n": 0.0, "rows": 0, "kl": 0.0, "entropy": 0.0, "low": 0.0, "high": 0.0, "loss": 0.0})
            A = t["advantages"].unsqueeze(1)
            r = r.detach()
            rc = r if o["delta"] is None else torch.clamp(r, max=o["delta"])
            low, high = ((rc < 1 - o["epsilon"]) & (A < 0)).double(), ((rc > 1 + o["epsilon_high"]) & (A > 0)).double()
            seq = low.shape[1] == 1
            c["n"] += float(M.sum()); c["rows"] += len(ids)
            c["low"] += float(low.sum() if seq else (low * M).sum()); c["high"] += float(high.sum() if seq else (high * M).sum())
            if "kl" in t:
                c["kl"] += float((t["kl"] * M).sum())
            c["entropy"] += float((t["entropy"] * M).sum())
            c["loss"] += float(t["loss"]) / m["world_size"]
            c["seq"] = seq
        same = {}
        for _, t in files:
            for b in range(len(t["group_id"])):
                same.setdefault(int(t["group_id"][b]), set()).add(tuple(x for x in t["response_ids"][b].tolist() if x != 1))
        if all(len(v) == 1 for v in same.values()):
            bad.add("response_ids")
        want, got = trl_advantages(o, [rows[k] for k in sorted(rows)])
        if want is not None and off(got, want, want.abs() + 1, 1e-3 if bf16 else 2e-4):
            bad.add("advantages")
        sc = m0["scalars"]
        mean = lambda k: sum(c[k] / max(c["rows" if c["seq"] and k in ("low", "high") else "n"], 1) for c in per_mb.values()) / len(per_mb)
        mass = sum(float((trl_loss(m["options"], m, t, t["token_loss"].abs(), m["options"]["num_items_in_batch"]))) for m, t in files)
        declared = sum(float((trl_loss(m["options"], m, t, t["token_loss"], m["options"]["num_items_in_batch"]))) / m["world_size"] for m, t in files)
        if "loss" in sc and sc["loss"] is not None and abs(sc["loss"] - declared) > tol * mass + 1e-7:
            bad.add("scalars:loss")
        pairs = [("entropy", "entropy"), ("kl", "kl")] + ([("low", "clip_ratio/low_mean"), ("high", "clip_ratio/high_mean")] if "clip_ratio/low_mean" in sc else [])
        for k, name in pairs:
            # a declared sequence-level ratio makes one clip decision per row
            if name in sc and abs(sc[name] - mean(k)) > tol * 20 * (abs(mean(k)) + 1e-2) + (2e-2 if bf16 else 0):
                bad.add("scalars:" + name)
        if "clip_ratio/region_mean" in sc and abs(sc["clip_ratio/region_mean"] - mean("low") - mean("high")) > 1e-5 + (2e-2 if bf16 else 0):
            bad.add("scalars:clip_ratio/region_mean")
        if "reward" in sc and want is not None:
            s = torch.stack([r[1] for g in rows.values() for r in g]) @ torch.tensor(o["reward_weights"]).double()
            if abs(sc["reward"] - float(s.mean())) > 1e-5 * (float(s.abs().mean()) + 1):
                bad.add("scalars:reward")
            if abs(sc["reward_std"] - float(std(s))) > 1e-4 * (float(std(s)) + 1):
                bad.add("scalars:reward_std")
        if o["steps_per_generation"] == o["gradient_accumulation_steps"]:
            if abs(o["num_items_in_batch"] - tokens) > 0.5:
                bad.add("num_items_in_batch")
            if "completions/mean_length" in sc and not o["mask_truncated_completions"]:
                n = sum(len(g) for g in rows.values())
                if abs(sc["completions/mean_length"] - tokens / n) > 1e-4:
                    bad.add("scalars:completions/mean_length")
        seen[step] = bad
    return seen


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print(folder, trl_grpo(folder))
