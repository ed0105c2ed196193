"""Judge the dumps of peer_losses.py with formulas of our own in float64, each stage from its dumped inputs."""
import torch

from check import load, off


def whiten(x, m, ddof, place):
    n = m.sum()
    mean = (x * m).sum() / n
    var = ((x - mean) ** 2 * m).sum() / (n - ddof)
    return (x - mean) / ((var.clamp(min=1e-8) if place == "floor_var" else var + 1e-8).sqrt())


def gae(o, r, v, m):
    B, T = m.shape
    A = torch.zeros(B, T, dtype=torch.float64)
    g, gl = o["gae.gamma"], o["gae.gamma"] * o["gae.lambda"]
    if o["gae.hole"] == "zero_step":
        r, v = r * m, v * m
    for b in range(B):
        vn = an = 0.0
        for t in reversed(range(T)):
            if o["gae.hole"] == "carry" and not m[b, t]:
                A[b, t] = an
                continue
            an = r[b, t] + g * vn - v[b, t] + gl * an
            vn = v[b, t]
            A[b, t] = an
    return A, A + v


def kl(o, lp, ref, old):
    d = lp - ref
    if o["kl.kind"] == "k1":
        return d
    value = (torch.exp(-d) - 1 + d).clamp(max=10)
    if o["kl.grad"] == "straight_through_k2":
        w = 1.0
        if o.get("kl.is_cap"):
            w = (lp - old).detach().exp().clamp(max=o["kl.is_cap"])
        s = w * d * d / 2
        return value.detach() + s - s.detach()
    return value


def token_loss(o, t, lp, w):
    m, A = t["response_mask"], t["advantages"]
    d = lp - t["logp_old"]
    if o.get("ratio.level") == "seq_mean":
        r = ((d * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)).exp() * m
    else:
        r = d.exp()
    x = torch.maximum(-A * r, -A * r.clamp(1 - o["clip.low"], 1 + o["clip.high"]))
    if o.get("clip.dual"):
        x = torch.where(A < 0, torch.minimum(x, -A * o["clip.dual"]), x)
    return x if w is None else x * w


def agg(o, x, m, facts):
    tokens, rows, ranks = facts
    if o["agg.kind"] == "token":
        return (x * m).sum() / tokens * ranks
    return ((x * m).sum(1) / m.sum(1).clamp(min=1)).sum() / rows * ranks


def judge(folder, case):
    seen = {}
    for step, files in load(folder).items():
        bad = set()
        o = files[0][0]["options"]
        low = files[0][0]["compute_dtype"] == "bfloat16"
        tol = 1.5e-2 if low else 1e-5
        facts = (sum(float(t["response_mask"].sum()) for _, t in files), sum(len(t["response_mask"]) for _, t in files), files[0][0]["world_size"])
        ppo = files[0][0]["algorithm"] == "ppo"
        whole = {k: torch.cat([t[k] for _, t in files]) for k in files[0][1] if files[0][1][k].dim()}
        m = whole["response_mask"]
        if ppo:
            last = (m * torch.arange(1, m.shape[1] + 1)).argmax(1, keepdim=True)
            r = torch.zeros_like(m).scatter(1, last, whole["scores"].unsqueeze(1)) - o["kl.beta"] * whole["kl"]
            if off(whole["token_rewards"], r, r.abs() + 1, tol, m):
                bad.add("token_rewards")
            if off(whole["kl"], kl(o, whole["logp_old"], whole["logp_ref"], None), 1, tol, m):
                bad.add("kl")
            A, R = gae(o, whole["token_rewards"], whole["values"], m)
            if off(whole["returns"], R, R.abs() + 1, tol * 10, m):
                bad.add("returns")
            A = whiten(A, m, o["whiten.ddof"], o.get("whiten.eps_place"))
        else:
            A = torch.zeros_like(m)
            for g in whole["group_id"].unique():
                i = whole["group_id"] == g
                s = whole["scores"][i]
                a = s - s.mean()
                if o["adv.center"] == "loo":
                    a = a * len(s) / (len(s) - 1)
                if o["adv.scale"] == "group_std":
                    a = a / (s.std(correction=1) + o["adv.eps"])
                A[i] = a.unsqueeze(1).expand(-1, m.shape[1])
        if off(whole["advantages"], A, A.abs() + 1, tol * 10, m):
            bad.add("advantages")
        for meta, t in files:
            M = t["response_mask"]
            lp = t["logp_new"].clone().requires_grad_(True)
            w = t.get("is_weights")
            if w is not None:
                ww = (t["logp_old"] - t["logp_gen"]).exp().clamp(o.get("tis.low", 0), o["tis.high"])
                if off(w, ww, 1, tol * 10, M):
                    bad.add("is_weights")
            x = token_loss(o, t, lp, w)
            if off(t["token_loss"], x, x.abs().detach() + 1, tol, M):
                bad.add("token_loss")
            if off(t["pg_loss"], agg(o, t["token_loss"], M, facts), agg(o, t["token_loss"].abs(), M, facts), tol * 3):
                bad.add("pg_loss")
            total = agg(o, x, M, facts)
            back = t["pg_loss"].clone()
            if o["kl.place"] == "loss":
                k = kl(o, lp, t["logp_ref"], t["logp_old"])
                # OpenRLHF hands no token_level_loss to the aggregation of its KL: always a token mean
                ok = dict(o, **{"agg.kind": "token"}) if meta["framework"] == "openrlhf" else o
                if off(t["kl"], k, k.abs().detach() + 0.1 + (4 if low else 0), tol, M):
                    bad.add("kl")
                if off(t["kl_loss"], agg(ok, t["kl"], M, facts), agg(ok, t["kl"].abs(), M, facts), tol * 3):
                    bad.add("kl_loss")
                total = total + o["kl.beta"] * agg(ok, k, M, facts)
                back = back + o["kl.beta"] * t["kl_loss"]
            if "entropy_loss" in t:
                if off(t["entropy_loss"], agg(o, t["entropy"], M, facts), 1, tol * 3):
                    bad.add("entropy_loss")
                back = back - o["entropy.coef"] * t["entropy_loss"]
            if bad & {"pg_loss", "kl_loss"} or off(t["loss"], back, t["pg_loss"].abs() + 0.1, tol * 3):
                bad.add("loss")
            (g,) = torch.autograd.grad(total, lp)
            r = (t["logp_new"] - t["logp_old"]).exp()
            # in bfloat16 a ratio next to a bound may fall on either side of it
            near = low & (((r - 1 - o["clip.high"]).abs() < 0.02) | ((r - 1 + o["clip.low"]).abs() < 0.02))
            if off(t["dlogp"], g, g.abs() + g.abs().max(), tol * 10, ~near):
                bad.add("dlogp")
            s = meta["scalars"]
            for k in ("loss", "pg_loss", "kl_loss", "value_loss"):
                if k in s and k in t and (k in bad or abs(s[k] - float(t[k])) > 1e-6):
                    bad.add("scalars:" + k)
            d = t["logp_new"] - t["logp_old"]
            if abs(s["ppo_kl"] + float((d * M).sum() / M.sum())) > tol + (2e-2 if low else 0):
                bad.add("scalars:ppo_kl")
            rr = d.exp() if o.get("ratio.level") != "seq_mean" else ((d * M).sum(1, keepdim=True) / M.sum(1, keepdim=True)).exp().expand_as(M)
            bind = ((rr > 1 + o["clip.high"]) & (t["advantages"] > 0)) | ((rr < 1 - o["clip.low"]) & (t["advantages"] < 0))
            if abs(s["clip_frac"] - float((bind * M).sum() / M.sum())) > 1e-4 + float((near & M.bool()).sum() / M.sum()):
                bad.add("scalars:clip_frac")
            if ppo:
                v = t["values_new"].clone().requires_grad_(True)
                c = t["values"] + (v - t["values"]).clamp(-o["value.clip"], o["value.clip"])
                vl = o["value.factor"] * agg(o, torch.maximum((v - t["returns"]) ** 2, (c - t["returns"]) ** 2), M, facts)
                if off(t["value_loss"], vl, vl.abs(), tol * 10):
                    bad.add("value_loss")
                    bad.add("scalars:value_loss")
                (g,) = torch.autograd.grad(vl, v)
                if off(t["dvalues"], g, g.abs() + g.abs().max(), tol * 10):
                    bad.add("dvalues")
        seen[step] = bad
    return seen
