"""PPO with a value model: settings 1 and 2 are TRL 1.12's PPOTrainer, 3 and 4 a blog post's loop. Everything is dumped (4: also weights, gradients and updates)."""

from world_k import *

base = dict(
    kind="trl",
    n=32,
    mini=2,
    epochs=2,
    kl="k1",
    klc=0.05,
    gamma=1.0,
    lam=0.95,
    wr=False,
    pen=1.0,
    temp=0.7,
    bf16=False,
    cr=0.2,
    cv=0.2,
    vf=0.1,
    lr=6e-3,
    T=32,
    steps=6,
    ec=0.0,
    rclip=None,
    dual=None,
    opt=False,
)
H = dict(
    h_trl_missing_eos=base | dict(seed=31),
    h_trl_k3_whiten_bf16=base | dict(kl="k3", wr=True, bf16=True, epochs=3, mini=1, seed=32, pen=None, temp=1.0, gamma=0.99, T=48),
    h_blog_minibatch_norm=base | dict(kind="blog", seed=33, pen=None, temp=1.0, gamma=0.99, ec=0.01, vf=0.5, epochs=2, mini=3, n=24, T=40),
    h_blog_clip_penalty_adam=base
    | dict(kind="blog2", seed=34, pen=0.5, temp=1.0, rclip=1.0, vf=1.0, cv=None, dual=2.5, opt=True, n=16, T=24, mini=2, epochs=2, steps=4, lr=4e-3),
)


def mmean(v, m):
    return (v * m).sum() / m.sum()


def whiten(x, m, shift=True):
    mu = mmean(x, m)
    c = x - mu
    var = mmean(c**2, m)
    k = m.sum()
    var = var * k / (k - 1)
    y = c * torch.rsqrt(var + 1e-8)
    return y if shift else y + mu


def run(c, bug, out, name):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = copy.deepcopy(m)
    vm = make(c["seed"] + 9)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=g))
    named = [("policy." + k, p) for k, p in m.named_parameters() if not k.startswith("v.")] + [
        ("value." + k, p) for k, p in vm.named_parameters() if not k.startswith("head.")
    ]
    opt = torch.optim.AdamW([p for _, p in named], lr=c["lr"], weight_decay=0.0, eps=1e-5)
    n, T, P = c["n"], c["T"], 8
    step = roll = 0
    trl = c["kind"] == "trl"
    te = c["temp"] + (1e-7 if trl else 0)
    while step < c["steps"]:
        pid, pam = prompts(n, P, g)
        ids, am, gen, pol, _ = sample(m, pid, pam, T, g, c["temp"])
        resp = ids[:, P:]
        mask = am[:, P:].bool()
        with torch.no_grad():
            old = score_fwd(m, ids, am, T, 1.0 if bug == "old_no_temp" else te, c["bf16"])[0]
            rl = score_fwd(ref, ids, am, T, te, c["bf16"])[0]
            va = score_fwd(vm, ids, am, T, 1.0, c["bf16"])[2]
        if bug == "ref_shift":
            rl = torch.cat([rl[:, 1:], rl[:, -1:]], 1)
        has = ((resp == EOS) & mask).any(1)
        raw = r_even(resp, mask) + r_len(resp, mask) - 0.7
        sc = raw.clone()
        if c["rclip"] and bug != "clip_token_rewards":
            sc = sc.clamp(-c["rclip"], c["rclip"])
        if c["pen"] is not None:
            if bug == "pen_sign":
                sc[~has] += c["pen"]
            elif bug == "pen_inverted":
                sc[has] -= c["pen"]
            else:
                sc[~has] -= c["pen"]
        idx = torch.arange(T).repeat(n, 1)
        sl = mask.sum(1) - 1
        pm = idx > sl[:, None]
        p1 = idx > (sl + 1)[:, None]
        if trl:
            old, rl = old.masked_fill(pm, 1.0), rl.masked_fill(pm, 1.0)
            va = va.masked_fill(p1, 0)
        else:
            va = va * mask
            old, rl = old * mask, rl * mask
            p1 = pm
        lr_ = rl - old
        kl = -lr_ if c["kl"] == "k1" else (lr_.exp() - 1) - lr_
        tr = c["klc"] * kl if bug == "kl_bonus" else -c["klc"] * kl
        end = torch.where(sl + 2 < T + 1, sl + 1, sl)
        end = torch.where(end < T, end, sl) if trl else sl
        if bug == "score_first":
            end = torch.zeros_like(sl)
        if bug == "score_eos_rows":
            tr[torch.arange(n)[has], end[has]] += sc[has]
        else:
            tr[torch.arange(n), end] += sc
        if bug == "clip_token_rewards":
            tr = tr.clamp(-c["rclip"] / 2, c["rclip"] / 2)
        if c["wr"]:
            tr = whiten(tr, ~p1, bug == "wr_shift").masked_fill(p1, 0)
        last = 0
        av = [None] * T
        for t in range(T) if bug == "gae_forward" else reversed(range(T)):
            nv = va[:, t + 1] if t < T - 1 else 0.0
            if bug == "self_value":
                nv = va[:, t]
            d = tr[:, t] + c["gamma"] * nv - va[:, t]
            last = d + c["gamma"] * c["lam"] * last
            av[t] = last
            if bug == "lam_twice":
                last = d + c["gamma"] * c["lam"] * last * c["lam"]
                av[t] = last
        A = torch.stack(av, 1)
        ret = A + va
        if bug == "ret_no_v":
            ret = A.clone()
        if c["kind"] != "blog":
            A = whiten(A, ~pm)
        if bug == "std_no_mean":
            A = A + 1.0
        A = A.masked_fill(pm, 0)
        for ep in range(c["epochs"]):
            bi = torch.randperm(n, generator=g)
            b0 = bi if ep == 0 else b0
            mb = n // c["mini"]
            for k in range(c["mini"]):
                if step >= c["steps"]:
                    break
                step += 1
                ix = bi[k * mb : (k + 1) * mb]
                ai = b0[k * mb : (k + 1) * mb] if bug == "adv_old_perm" else ix
                vi = torch.arange(k * mb, (k + 1) * mb) if bug == "values_unperm" else ix
                lp, ent, _ = score_fwd(m, ids[ix], am[ix], T, te, c["bf16"])
                v = score_fwd(vm, ids[ix], am[ix], T, 1.0, c["bf16"])[2]
                M, V1 = (~pm)[ix], (~p1)[ix]
                if trl:
                    lp = lp.masked_fill(pm[ix], 1.0)
                    v = v.masked_fill(p1[ix], 0)
                a, R, V0, o = A[ai], ret[ix], va[vi], old[ix]
                if c["kind"] == "blog":
                    mu = mmean(a, M)
                    sd = mmean((a - mu) ** 2, M).sqrt()
                    a = ((a - mu) / (sd + 1e-8)) * M
                    if bug == "norm_with_pad":
                        aa = A[ai]
                        a = (aa - aa.mean()) / (aa.std(unbiased=False) + 1e-8) * M
                if bug == "old_is_ref":
                    o2 = rl[ix]
                else:
                    o2 = o
                ratio = torch.exp(lp - o2)
                l1, l2 = -a * ratio, -a * ratio.clamp(1 - c["cr"], 1 + c["cr"])
                tl = torch.max(l1, l2)
                if bug == "abs_adv_clip":
                    tl = torch.where(a > 0, l2, l1)
                if c["dual"]:
                    tl = torch.where(a < 0, torch.min(tl, -a * c["dual"]), tl)
                pg = mmean(tl, M)
                L1 = (v - R) ** 2
                if c["cv"]:
                    vc = torch.min(torch.max(v, V0 - c["cv"]), V0 + c["cv"]) if bug != "vclip_abs" else v.clamp(-c["cv"], c["cv"])
                    L1 = torch.max(L1, (vc - R) ** 2)
                VM = V1
                if bug == "vmask_all":
                    VM = torch.ones_like(V1)
                if bug == "vmask_late":
                    VM = V1 & (idx[ix] > 0) & (idx[ix] > sl[ix][:, None] - 5)
                vl = 0.5 * mmean(L1, VM)
                loss = pg + c["vf"] * vl
                el = None
                if c["ec"]:
                    el = ent.mean() if bug == "ent_all" else mmean(ent, M)
                    loss = loss - c["ec"] * el
                dl, dv = torch.autograd.grad(loss, [lp, v], retain_graph=True)
                if bug != "no_zero_grad":
                    opt.zero_grad()
                loss.backward()
                gs = {q: p.grad.clone() for q, p in named if p.grad is not None}
                bf = {q: p.detach().clone() for q, p in named}
                if c["opt"]:
                    torch.nn.utils.clip_grad_norm_([p for _, p in named], 0.5 if bug != "clip_value" else 1e9)
                opt.step()
                t = dict(
                    response_ids=resp[ix],
                    response_mask=M,
                    input_ids=ids[ix],
                    attention_mask=am[ix],
                    logp_new=lp,
                    logp_old=o,
                    logp_ref=rl[ix],
                    values=va[ix],
                    values_new=v,
                    token_rewards=tr[ix],
                    scores=raw[ix] if not trl else raw[ix],
                    kl=kl[ix],
                    advantages=a,
                    returns=R,
                    token_loss=tl,
                    pg_loss=pg,
                    value_loss=vl,
                    entropy=ent,
                    entropy_loss=el,
                    loss=loss,
                    dlogp=dl,
                    dvalues=dv,
                    sample_id=ix + 1000 * roll,
                )
                if c["opt"]:
                    t |= (
                        {"grad/" + q: x for q, x in gs.items()}
                        | {"weights/" + q: x for q, x in bf.items()}
                        | {"update/" + q: p.detach() - bf[q] for q, p in named}
                    )
                fr = lambda x, y: float(mmean((x > y).float(), M).detach())
                sca = dict(loss=loss.item(), lr=c["lr"])
                if trl:
                    po = dict(
                        kl_coef=c["klc"],
                        kl_estimator=c["kl"],
                        gamma=c["gamma"],
                        lam=c["lam"],
                        cliprange=c["cr"],
                        cliprange_value=c["cv"],
                        vf_coef=c["vf"],
                        whiten_rewards=c["wr"],
                        missing_eos_penalty=c["pen"],
                        temperature=c["temp"],
                        num_ppo_epochs=c["epochs"],
                        num_mini_batches=c["mini"],
                        eos_token_id=EOS,
                    )
                    meta = dict(framework="trl", version="1.12.0", masked_fill=1.0)
                    sca |= {"policy/clipfrac_avg": fr(l2, l1), "policy/entropy_avg": ent.mean().item()}
                    sca.pop("policy/entropy_avg")
                else:
                    po = {
                        "gae.gamma": c["gamma"],
                        "gae.lambda": c["lam"],
                        "kl.kind": c["kl"],
                        "kl.beta": c["klc"],
                        "kl.place": "token_reward",
                        "score.index": "last_response",
                        "adv.kind": "gae",
                        "clip.low": c["cr"],
                        "clip.high": c["cr"],
                        "value.clip": c["cv"] or "none",
                        "value.coef": c["vf"],
                        "value.factor": 0.5,
                        "entropy.coef": c["ec"],
                        "agg.kind": "token",
                        "loss.kind": "ppo",
                        "eos_token_id": EOS,
                        "num_mini_batches": c["mini"],
                        "optim.epochs": c["epochs"],
                        "rewards.whiten": "no",
                    }
                    po |= (
                        {"whiten.scope": "minibatch", "whiten.ddof": 0, "whiten.eps_place": "add_std", "whiten.eps": 1e-8}
                        if c["kind"] == "blog"
                        else {"whiten.scope": "local_batch", "whiten.ddof": 1, "whiten.eps_place": "inside_sqrt", "whiten.eps": 1e-8}
                    )
                    if c["dual"]:
                        po["clip.dual"] = c["dual"]
                    if c["rclip"]:
                        po |= {"reward.clip": "before_baseline", "reward.clip_range": f"{-c['rclip']},{c['rclip']}"}
                    if c["pen"]:
                        po |= {"eos.rule": "subtract", "eos.penalty": c["pen"], "eos.test": "eos_id"}
                    if c["opt"]:
                        po |= {
                            "optim.kind": "adamw",
                            "optim.eps": 1e-5,
                            "optim.clip_norm": 0.5,
                            "optim.lr": c["lr"],
                            "optim.weight_decay": 0.0,
                            "optim.beta1": 0.9,
                            "optim.beta2": 0.999,
                        }
                    meta = dict(framework="llama-ppo-from-scratch", version="1")
                dump(
                    out,
                    meta | dict(algorithm="ppo", run=name, step=step, options=po, token_loss_includes_kl=False, scalars=sca, scalars_scope="optimizer_step"),
                    t,
                    f"step_{step:03d}",
                )
        roll += 1


a, b, c_, d_ = list(H)
B = dict(
    b_pen_sign=(a, "pen_sign", "the penalty for a missing EOS is added", ""),
    b_pen_inverted=(a, "pen_inverted", "the responses with EOS are penalised (~ forgotten)", ""),
    b_self_value=(a, "self_value", "the TD error takes the value of the same step for the next one's", ""),
    b_values_unperm=(a, "values_unperm", "old values of the value clip are not permuted with the mini-batch", ""),
    b_old_no_temp=(a, "old_no_temp", "old log-probs are not divided by the temperature, new ones are", ""),
    b_ref_shift=(a, "ref_shift", "reference log-probs are one token late", ""),
    b_wr_shift=(b, "wr_shift", "whitened rewards have their mean subtracted where it is meant to be kept", ""),
    b_kl_bonus=(b, "kl_bonus", "the KL penalty is a bonus", ""),
    b_values_order_bf16=(b, "values_unperm", "old values for the clip are in the order of the rollout, the rest is permuted", ""),
    b_lam_twice=(b, "lam_twice", "lambda multiplies the recursion twice", "lambda squared in the configuration"),
    b_vmask_all=(b, "vmask_all", "the value loss is a mean over all cells, padding included", "a value loss without a mask"),
    b_score_first=(b, "score_first", "the score is put at the first token", ""),
    b_gae_forward=(c_, "gae_forward", "GAE runs forward in time", ""),
    b_ent_all=(c_, "ent_all", "the entropy is a mean over padding, too", ""),
    b_norm_with_pad=(c_, "norm_with_pad", "advantages are normalised over padding, too", "normalisation without a mask"),
    b_adv_perm_of_first_epoch=(c_, "adv_old_perm", "advantages keep the permutation of the first epoch", ""),
    b_old_is_ref=(c_, "old_is_ref", "the ratio is taken to the reference", ""),
    b_vclip_absolute=(c_, "vclip_abs", "new values are clamped to ±0.2 in place of old ± 0.2", ""),
    b_score_eos_rows=(a, "score_eos_rows", "only rows with EOS get their score", ""),
    b_clip_token_rewards=(d_, "clip_token_rewards", "token rewards are clipped after the KL in place of scores", ""),
    b_ret_no_v=(d_, "ret_no_v", "value targets lack + V: they are the advantages", ""),
    b_adv_plus_one=(d_, "std_no_mean", "whitened advantages get 1 added (a stray shift), so all actions look good", ""),
    b_clip_one_side=(d_, "abs_adv_clip", "for A > 0 the clipped term alone is taken, for A < 0 the unclipped one", ""),
    b_no_zero_grad=(d_, "no_zero_grad", "gradients are never zeroed and add up over the steps", ""),
    b_no_grad_clip=(d_, "clip_value", "the gradient norm is not bounded", "max_grad_norm switched off"),
    b_vmask_late=(d_, "vmask_late", "the value loss takes the last five tokens only", ""),
)
for k in ["b_norm_with_pad"]:
    B.pop(k)  # legal configurations that nothing declared contradicts: no cases
if __name__ == "__main__":
    main("k4_llama_ppo", run, H, B, lambda c: ["--profile", "trl-ppo@1.12"] if c["kind"] == "trl" else [])
