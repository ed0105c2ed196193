"""What a notebook writes: PPO-for-RLHF, GRPO, RLOO and a DAPO-ish loop in 200 lines. Everything is dumped (logits, kl, token losses, dlogp, dvalues, grads, weights, updates), hardly anything is declared."""

from world_i import *

NAME = "i5_teach"
T, P = 20, 5
D = dict(kind="grpo", epochs=2, mini=2, n=6, G=4, lr=1.5e-2, lo=0.2, hi=0.2, beta=0.0, temp=1.0, bf16=False, rollouts=2, gamma=1.0, lam=0.95, vf=0.5, ent=0.0)


def C(**k):
    return {**D, **k}


H = {
    "h_ppo_kl_in_reward": (C(kind="ppo", beta=0.1, n=8, G=2, gamma=0.99, ent=0.01), []),
    "h_grpo_k3": (C(kind="grpo", beta=0.04), []),
    "h_rloo_seq_kl": (C(kind="rloo", beta=0.05, epochs=1, mini=2, rollouts=3), []),
    "h_dapo_bf16": (C(kind="dapo", hi=0.28, epochs=3, mini=1, rollouts=2, bf16=True, temp=0.8), []),
}
A, B_, C_, E_ = list(H)
BUGS = {
    "b_gae_forward": (A, "GAE is run from the first token to the last: the recursion goes over the past", ""),
    "b_score_everywhere": (A, "the score is added at every token of the response, not at the last one only", ""),
    "b_value_of_next_token": (A, "values of the update are taken one position late (after the action): values_new and old values are of different states", ""),
    "b_adv_not_detached": (
        A,
        "the advantages use the new values (returns minus values_new, with gradient): the value head gets a policy gradient and the loss another advantage",
        "",
    ),
    "b_value_loss_pad": (A, "the value loss is a mean over all cells, padding included", "value.mask none is CleanRL's"),
    "b_vf_negative": (A, "the value loss is subtracted from the total", ""),
    "b_std_of_mean": (B_, "divided by the std of the group's mean (std/sqrt(n))", ""),
    "b_k3_plus_one": (B_, "KL estimator is exp(d) - d + 1 with d = ref - new (a plus for a minus): two too large", ""),
    "b_pads_in_mask": (B_, "the loss mask is ones: pads behind EOS count as tokens of the response", ""),
    "b_ref_is_policy": (
        B_,
        "ref = model without a copy: reference log-probs are those of the policy at every rollout, the KL holds nothing back",
        "TRL sync_ref_model at every step with alpha 1 computes this",
    ),
    "b_no_zero_grad": (B_, "zero_grad is never called", ""),
    "b_loo_denominator": (C_, "leave-one-out: (sum - r)/n in place of (n-1)", ""),
    "b_kl_plus": (C_, "the KL of the sequence is added to the reward", ""),
    "b_logp_mean": (
        C_,
        "RLOO's loss weighs the mean of a row's log-probs while the KL is their sum: short rows count more",
        "frameworks that normalise RLOO by length (TRL 1.x token level) compute this",
    ),
    "b_baseline_batch": (
        C_,
        "the baseline leaves one out of the whole batch, not of the group",
        "a batch-level leave-one-out could be meant by REINFORCE with a batch baseline",
    ),
    "b_clip_no_min": (E_, "only the clipped surrogate is used, without the minimum", ""),
    "b_ratio_minus_one": (E_, "the ratio is 1 + (new - old), the linear term only", ""),
    "b_old_after_update": (
        E_,
        "old log-probs are recorded after the first optimiser step of the rollout, but the first ratio uses them as if they were before",
        "",
    ),
    "b_token_mean_then_rows": (E_, "the sum over tokens divides by rows times the longest row", ""),
}


def main(c, bug, out, run):
    g = torch.Generator().manual_seed(sum(map(ord, run)))
    model = LM(d=16)
    vm = LM(d=16, value=True)
    ppo = c["kind"] == "ppo"
    ref = model if bug == "ref_is_policy" else copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters():
            e = 0.05 * torch.randn(p.shape, generator=g)
            if bug != "ref_is_policy":
                p.add_(e)
    named = [("lm." + k, p) for k, p in model.named_parameters()] + ([("v." + k, p) for k, p in vm.named_parameters()] if ppo else [])
    opt = torch.optim.Adam([p for _, p in named], lr=c["lr"])
    step = 0
    n, G = c["n"], c["G"]
    N = n * G

    def lg(m, i, a):
        with torch.autocast("cpu", torch.bfloat16, enabled=c["bf16"]):
            x = m(i, a)
        return x.float()[:, -T - 1 : -1]

    def lpe(x, r):
        l = F.log_softmax(x / c["temp"], -1)
        return l.gather(2, r[..., None])[..., 0], -(l.exp() * l).sum(-1)

    for roll in range(c["rollouts"]):
        pid, patt = prompts(n, P, g)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        resp, mask, gen = sample(model, pid, patt, T, c["temp"], g, bf16=c["bf16"])
        ids, att = torch.cat([pid, resp], 1), torch.cat([patt, mask], 1)
        m = mask.float()
        if bug == "pads_in_mask":
            m = torch.ones_like(m)
        sc = (score(resp, mask, g)).sum(1) * 2
        with torch.no_grad():
            old = lpe(lg(model, ids, att), resp)[0]
            rf = lpe(lg(ref, ids, att), resp)[0]
            V = vm(ids, att)[:, -T - 1 : -1] * m
        tr = ret = None
        r_ = sc
        L = mask.sum(1)
        if ppo:
            tr = -c["beta"] * (old - rf) * m
            if bug == "score_everywhere":
                tr = tr + sc[:, None] * m
            else:
                tr[torch.arange(N), L - 1] += sc
            adv = torch.zeros(N, T)
            last = torch.zeros(N)
            for t in range(T) if bug == "gae_forward" else reversed(range(T)):
                nv = V[:, t + 1] * m[:, t + 1] if t + 1 < T else torch.zeros(N)
                d = tr[:, t] + c["gamma"] * nv - V[:, t]
                last = (d + c["gamma"] * c["lam"] * last) * m[:, t]
                adv[:, t] = last
            ret = adv + V
            raw = adv
            mu = (adv * m).sum() / m.sum()
            var = ((adv - mu) ** 2 * m).sum() / m.sum()
            adv = (adv - mu) / (var.sqrt() + 1e-8) * m
        else:
            if c["kind"] == "rloo":
                ks = ((old - rf) * m).sum(1)
                r_ = sc + c["beta"] * ks if bug == "kl_plus" else sc - c["beta"] * ks
            gr = r_.view(n, G)
            if c["kind"] == "rloo":
                b = (gr.sum(1, keepdim=True) - gr) / (G if bug == "loo_denominator" else G - 1)
                if bug == "baseline_batch":
                    b = (gr.sum() - gr) / (N - 1)
                adv = (gr - b).reshape(-1)
            else:
                sd = gr.std(1, keepdim=True)
                if bug == "std_of_mean":
                    sd = sd / G**0.5
                adv = gr - gr.mean(1, keepdim=True)
                if c["kind"] == "grpo":
                    adv = adv / (sd + 1e-8)
                adv = adv.reshape(-1)
        oldx = old.clone()
        for ep in range(c["epochs"]):
            for mb in range(c["mini"]):
                ix = torch.arange(N).view(c["mini"], -1)[mb]
                M = m[ix]
                if bug != "no_zero_grad":
                    opt.zero_grad()
                x = lg(model, ids[ix], att[ix])
                lp, ent = lpe(x, resp[ix])
                lp.retain_grad()
                Aa = adv[ix] if ppo else adv[ix][:, None]
                vn = vl = el = kl = None
                if ppo:
                    full = vm(ids[ix], att[ix])
                    vn = full[:, -T:] if bug == "value_of_next_token" else full[:, -T - 1 : -1]
                    vn.retain_grad()
                    if bug == "adv_not_detached":
                        Aa = (ret[ix] - vn) * M
                dl = lp - oldx[ix]
                ratio = 1 + dl if bug == "ratio_minus_one" else dl.exp()
                cl = ratio.clamp(1 - c["lo"], 1 + c["hi"])
                if c["kind"] == "rloo":
                    tl = -Aa * lp
                elif bug == "clip_no_min":
                    tl = -Aa * cl
                else:
                    tl = -torch.min(Aa * ratio, Aa * cl)
                pgt = tl
                if c["kind"] == "grpo" and c["beta"]:
                    d = rf[ix] - lp
                    kl = d.exp() - d + 1 if bug == "k3_plus_one" else d.exp() - d - 1
                    tl = tl + c["beta"] * kl
                if c["kind"] == "grpo":
                    loss = ((tl * M).sum(1) / M.sum(1)).mean()
                elif c["kind"] == "rloo":
                    loss = ((tl * M).sum(1) / (M.sum(1) if bug == "logp_mean" else 1)).mean()
                elif bug == "token_mean_then_rows":
                    loss = (tl * M).sum() / (len(M) * M.sum(1).max())
                else:
                    loss = (tl * M).sum() / M.sum()
                pgl = loss
                if ppo:
                    e2 = (vn - ret[ix]) ** 2
                    vl = 0.5 * e2.mean() if bug == "value_loss_pad" else 0.5 * (e2 * M).sum() / M.sum()
                    el = (ent * M).sum() / M.sum()
                    loss = pgl - c["vf"] * vl if bug == "vf_negative" else pgl + c["vf"] * vl
                    loss = loss - c["ent"] * el
                loss.backward()
                gs = {f"grad/{k}": p.grad.clone() for k, p in named}
                ws = {f"weights/{k}": p.detach().clone() for k, p in named}
                nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
                opt.step()
                us = {f"update/{k}": p.detach() - ws[f"weights/{k}"] for k, p in named}
                if bug == "old_after_update" and ep == 0 and mb == 0:
                    with torch.no_grad():
                        oldx = lpe(lg(model, ids, att), resp)[0]
                t = dict(
                    response_mask=M.bool(),
                    response_ids=resp[ix],
                    input_ids=ids[ix],
                    attention_mask=att[ix],
                    logp_new=lp,
                    logp_old=oldx[ix] if not (bug == "old_after_update" and ep == 0 and mb == 0) else old[ix],
                    advantages=Aa if ppo else adv[ix],
                    scores=sc[ix],
                    group_id=ix // G + roll * 50,
                    sample_id=ix + roll * N,
                    loss=loss,
                    token_loss=tl,
                    dlogp=lp.grad,
                    entropy=ent,
                    logits=x,
                    kl=kl,
                    logp_ref=rf[ix] if c["beta"] else None,
                    logp_gen=gen[ix],
                )
                if ppo:
                    t.update(
                        values=V[ix],
                        values_new=vn,
                        returns=ret[ix],
                        token_rewards=tr[ix],
                        value_loss=vl,
                        pg_loss=pgl,
                        entropy_loss=el,
                        dvalues=vn.grad,
                        kl=((old - rf) * m)[ix],
                    )
                al = {"ppo": "ppo", "grpo": "grpo", "rloo": "rloo", "dapo": "grpo"}[c["kind"]]
                o = {"num_mini_batches": c["mini"]}
                if c["temp"] != 1:
                    o["temperature"] = c["temp"]
                if c["beta"]:
                    o["kl.beta"] = c["beta"]
                if c["kind"] == "rloo":
                    o.update({"loss.kind": "reinforce", "kl.place": "sequence_reward_before_baseline"})
                write(
                    out,
                    f"step{step:03d}",
                    dict(
                        schema=2,
                        framework="notebook",
                        algorithm=al,
                        run=run,
                        step=step,
                        rank=0,
                        world_size=1,
                        micro_batch=0,
                        micro_batches=1,
                        align="response",
                        options=o,
                        scalars={"lr": c["lr"], "loss": float(loss.detach())},
                        scalars_scope="optimizer_step",
                        **({"token_loss_includes_kl": True} if kl is not None else {}),
                    ),
                    {**t, **gs, **ws, **us},
                )
                step += 1


runner(NAME, H, BUGS, main)
