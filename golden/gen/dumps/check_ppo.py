"""Judge the dumps of trl_ppo.py with formulas of our own in float64, each stage from its dumped inputs."""
import torch

from check import load, off

EOS = 1


def whiten(x, m):
    n = m.sum()
    mean = (x * m).sum() / n
    var = ((x - mean) ** 2 * m).sum() / (n - 1)
    return mean, (var + 1e-8).sqrt()


def judge(folder):
    seen = {}
    for step, files in load(folder).items():
        bad = set()
        o = files[0][0]["options"]
        tol = 2e-5
        w = {k: torch.cat([t[k] for _, t in files]) for k in files[0][1] if files[0][1][k].dim()}
        M, T = w["response_mask"], w["response_mask"].shape[1]
        n = M.sum(1).long()
        p1 = (torch.arange(T) <= n.unsqueeze(1)).double()
        for b in range(len(n)):
            if n[b] < T and w["response_ids"][b, n[b] - 1] != EOS:
                bad.add("response_mask")
        d = (w["logp_new"] - w["logp_old"]) * M
        kl = w["logp_old"] - w["logp_ref"]
        if o["kl_estimator"] == "k3":
            kl = (-kl).exp() - 1 + kl
        if off(w["kl"], kl, kl.abs() + 1, tol, M):
            bad.add("kl")
        r = -o["kl_coef"] * w["kl"]
        end = torch.where(n < T, n, n - 1)
        r[torch.arange(len(n)), end] += w["scores"]
        whole = len(n) == o["per_device_train_batch_size"] * o["gradient_accumulation_steps"]
        if o["whiten_rewards"]:
            mean, std = whiten(r, p1)
            r = ((r - mean) / std + mean) * p1
        if whole or not o["whiten_rewards"]:
            if off(w["token_rewards"], r, r.abs() + 1, tol, p1):
                bad.add("token_rewards")
        A = torch.zeros_like(M)
        last = torch.zeros(len(n), dtype=torch.float64)
        for t in reversed(range(T)):
            nv = w["values"][:, t + 1] if t + 1 < T else 0
            last = w["token_rewards"][:, t] + o["gamma"] * nv - w["values"][:, t] + o["gamma"] * o["lam"] * last
            A[:, t] = last
        if off(w["returns"], A + w["values"], A.abs() + 1, tol, M):
            bad.add("returns")
        if whole:
            mean, std = whiten(A, M)
            if off(w["advantages"], (A - mean) / std * M, 1, tol * 10, M):
                bad.add("advantages")
        if step == 1 and off(d, torch.zeros_like(d), 1, 1e-4):
            bad.add("logp_old")
        for m, t in files:
            M = t["response_mask"]
            n = M.sum(1).long()
            p1 = (torch.arange(T) <= n.unsqueeze(1)).double()
            k = m["micro_batches"]
            lp, v = t["logp_new"].clone().requires_grad_(True), t["values_new"].clone().requires_grad_(True)
            ratio = (lp - t["logp_old"]).exp()
            A = t["advantages"]
            x = torch.maximum(-A * ratio, -A * ratio.clamp(1 - o["cliprange"], 1 + o["cliprange"]))
            if off(t["token_loss"], x, x.abs().detach() + 1, tol, M):
                bad.add("token_loss")
            mean = lambda y, mask: (y * mask).sum() / mask.sum()
            if off(t["pg_loss"], mean(t["token_loss"], M) / k, mean(t["token_loss"].abs(), M), tol):
                bad.add("pg_loss")
            c = t["values"] + (v - t["values"]).clamp(-o["cliprange_value"], o["cliprange_value"])
            vl = 0.5 * mean(torch.maximum((v - t["returns"]) ** 2, (c - t["returns"]) ** 2), p1) / k
            if off(t["value_loss"], vl, vl.abs(), tol):
                bad |= {"value_loss", "scalars:loss/value_avg"}
            if off(t["loss"], t["pg_loss"] + o["vf_coef"] * t["value_loss"], t["pg_loss"].abs() + t["value_loss"], tol):
                bad.add("loss")
            (g,) = torch.autograd.grad(mean(x, M) / k, lp)
            if off(t["dlogp"], g, g.abs() + g.abs().max(), tol * 3):
                bad.add("dlogp")
            (g,) = torch.autograd.grad(o["vf_coef"] * vl, v)
            if off(t["dvalues"], g, g.abs() + g.abs().max(), tol * 3):
                bad.add("dvalues")
            s = m["scalars"]
            dd = t["logp_new"] - t["logp_old"]
            for name, want in (("policy/approxkl_avg", (dd**2).mean() / 2), ("val/ratio", dd.exp().mean()), ("policy/entropy_avg", t["entropy"].mean()),
                               ("loss/policy_avg", t["pg_loss"] * k)):
                if abs(s[name] - float(want)) > 1e-4 * (abs(float(want)) + 1e-2):
                    bad.add("scalars:" + name)
        seen[step] = bad
    return seen
