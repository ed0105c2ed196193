"""Discrete PPO in the style of CleanRL (vector env; mini-batches over envs as in ppo_atari_lstm so that rows stay whole) and PPO on a tiny language model with critic.
The env cases dump all; h_class drops entropy and clip numbers; LM cases have values, returns, token_rewards, no token_loss in h_lm_seq."""

from world_g import *


class Env:  # a walk on a ring of 12 cells, goal moves; episodes end at random lengths
    def __init__(s, n, gen):
        s.n, s.g = n, gen
        s.pos = torch.randint(0, 12, (n,), generator=gen)
        s.goal = torch.randint(0, 12, (n,), generator=gen)
        s.t = torch.zeros(n, dtype=torch.long)

    def obs(s):
        d = (s.goal - s.pos).float() * math.pi / 6
        return torch.stack([d.sin(), d.cos(), (s.pos.float() / 12), s.t.float() / 15, torch.ones(s.n)], 1)

    def step(s, a):
        s.pos = (s.pos + a - 1) % 12
        s.t += 1
        hit = s.pos == s.goal
        r = hit.float() * 2 - 0.1 + 0.1 * torch.randn(s.n, generator=s.g)
        done = hit | (s.t >= 15)
        i = done.nonzero().squeeze(1)
        s.pos[i] = torch.randint(0, 12, (len(i),), generator=s.g)
        s.goal[i] = torch.randint(0, 12, (len(i),), generator=s.g)
        s.t[i] = 0
        return r, done.float()


def mlp(o, std):
    return nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, o))


class Agent(nn.Module):
    def __init__(s):
        super().__init__()
        s.actor, s.critic = mlp(3, 0.01), mlp(1, 1.0)

    def forward(s, x):
        return torch.log_softmax(s.actor(x), -1), s.critic(x).squeeze(-1)


def SE(**k):
    return dict(
        dict(
            env=True,
            seed=51,
            n=16,
            T=32,
            minis=4,
            epochs=4,
            gamma=0.99,
            lam=0.95,
            clip=0.2,
            norm=True,
            vclip=True,
            ent=0.01,
            vf=0.5,
            mgn=0.5,
            lr=2.5e-3,
            iters=2,
            anneal=True,
            lazy=False,
        ),
        **k,
    )


def SL(o, **k):
    return dict(
        dict(
            env=False,
            seed=55,
            N=32,
            T=24,
            minis=2,
            micros=1,
            epochs=2,
            gamma=1.0,
            lam=0.95,
            clip=0.2,
            vclip=0.2,
            vf=0.1,
            ent=0.0,
            beta=0.05,
            kl="k1",
            whiten="batch",
            agg="token",
            lr=5e-3,
            gens=2,
            temp=1.0,
            lazy=False,
            o=o,
        ),
        **k,
    )


LM_O = {
    "adv.kind": "gae",
    "kl.place": "token_reward",
    "score.index": "last_response",
    "gae.truncated_bootstrap": "none",
    "loss.kind": "ppo",
    "ratio.level": "token",
    "ratio.old": "stored",
    "tis.level": "none",
    "value.factor": 0.5,
    "returns.before_whiten": True,
    "gae.hole": "zero_step",
    "value.mask": "response",
    "rewards.whiten": "no",
    "kl.reduce": "token",
    "eos.rule": "none",
    "reward.clip": "none",
    "kl.clamp_in": "none",
    "kl.clamp_out": "none",
}
H = {
    "h_cleanrl": (SE(), ["--profile", "cleanrl@020cf0e"]),
    "h_class_nonorm": (
        SE(seed=52, norm=False, vclip=False, ent=0.02, vf=1.0, gamma=0.95, lam=0.9, minis=2, epochs=6, anneal=False, clip=0.1, n=8, T=48, lr=4e-3, lazy=True),
        ["--profile", "cleanrl@020cf0e"],
    ),
    "h_lm_whiten": (
        SL(
            {
                **LM_O,
                "whiten.scope": "global",
                "whiten.mask": "response",
                "whiten.ddof": 1,
                "whiten.eps_place": "inside_sqrt",
                "whiten.eps": 1e-8,
                "whiten.shift_mean": "true",
                "whiten.remask": True,
                "agg.kind": "token",
                "agg.denominator": "micro",
            },
            seed=53,
        ),
        ["--profile", "none"],
    ),
    "h_lm_seq": (
        SL(
            {**LM_O, "whiten.scope": "none", "agg.kind": "seq_mean_token_mean", "agg.div_ga": True},
            seed=54,
            whiten=None,
            agg="seq",
            gamma=0.99,
            lam=0.9,
            ent=0.01,
            kl="k3",
            beta=0.1,
            micros=2,
            lazy=True,
            vf=0.5,
            lr=4e-3,
        ),
        ["--profile", "none"],
    ),
}
B = {
    "b_done_shift": ("h_cleanrl", "dones-one-late", "GAE uses the done flag before the action instead of after it: episodes leak by one step."),
    "b_boot_zero": ("h_cleanrl", "no-bootstrap", "The value after the last step is taken as 0 although the episode goes on."),
    "b_norm_rollout": ("h_cleanrl", "norm-no-mean", "Advantages are divided by the std but the mean is not subtracted."),
    "b_ent_plus": ("h_cleanrl", "entropy-sign", "The entropy term is added with a plus sign."),
    "b_vclip_cur": ("h_cleanrl", "vclip-other-rows", "The old values that the value clip is centred on come from rows of other envs."),
    "b_old_live": ("h_cleanrl", "old-recomputed", "Old log-probs are recomputed at the start of each epoch."),
    "b_mb_mismatch": ("h_cleanrl", "advantages-other-minibatch", "Advantages are indexed with the unshuffled indices."),
    "b_vmin": ("h_cleanrl", "value-min", "min for max in the clipped value loss."),
    "b_lam_only": ("h_class_nonorm", "gae-without-gamma", "The recursion multiplies by lambda only, without gamma."),
    "b_adv_not_detached": ("h_class_nonorm", "returns-are-rewards", "The value is regressed on discounted rewards to go without bootstrap."),
    "b_half": ("h_class_nonorm", "value-no-half", "The value loss lacks the factor one half."),
    "b_min_max": ("h_class_nonorm", "surrogate-max", "The maximum of the surrogates is taken (pessimism inverted)."),
    "b_ratio_inv": ("h_class_nonorm", "ratio-inverted", "ratio = exp(old - new)."),
    "b_white_pad": ("h_lm_whiten", "whiten-padding", "Whitening takes in padding."),
    "b_kl_sign": ("h_lm_whiten", "kl-sign", "The KL penalty is a bonus."),
    "b_score_add": ("h_lm_whiten", "score-at-eos-plus-one", "The score is put one token behind the last one (as TRL's old PPO does when there's room)."),
    "b_ret_after": ("h_lm_whiten", "returns-after-whitening", "Returns are built from whitened advantages."),
    "b_kl_new": ("h_lm_whiten", "kl-reference-is-old", "The reference is refreshed at every rollout: KL is 0 at its start."),
    "b_vclip_none": ("h_lm_whiten", "vf-coef-twice", "vf coef is multiplied in twice."),
    "b_gae_cross": ("h_lm_seq", "gae-flat", "GAE runs over the flattened batch: the next row's first value is the last token's successor."),
    "b_mean_pad": ("h_lm_seq", "row-mean-padded", "Row means divide by the padded width."),
    "b_micro_undiv": ("h_lm_seq", "ga-missing", "The loss isn't divided by the number of micro-batches."),
    "b_ent_masked": ("h_lm_seq", "entropy-unmasked", "The entropy bonus is averaged over padding as well."),
    "b_k3_rev": ("h_lm_seq", "k3-reversed", "k3 with the log-ratio's sign swapped."),
    "b_last_value": ("h_lm_seq", "values-shifted", "Values are those of the state after the token (one column late)."),
}


def run(s, bug, out, name):
    (run_env if s["env"] else run_lm)(s, bug, out, name)


def run_env(s, bug, out, name):
    torch.manual_seed(s["seed"])
    gen = torch.Generator().manual_seed(s["seed"])
    ag = Agent()
    opt = torch.optim.Adam(ag.parameters(), lr=s["lr"], eps=1e-5)
    n, T = s["n"], s["T"]
    env = Env(n, gen)
    step = 0
    prevdone = torch.zeros(n)
    for it in range(s["iters"]):
        lr = s["lr"] * (1 - it / s["iters"]) if s["anneal"] else s["lr"]
        opt.param_groups[0]["lr"] = lr
        ob, ac, lpo, rw, dn, va = [], [], [], [], [], []
        first = prevdone
        for t in range(T):
            o = env.obs()
            with torch.no_grad():
                l, v = ag(o)
            a = torch.multinomial(l.exp(), 1, generator=gen).squeeze(1)
            r, d = env.step(a)
            ob.append(o)
            ac.append(a)
            lpo.append(l.gather(1, a[:, None]).squeeze(1))
            rw.append(r)
            dn.append(d)
            va.append(v)
        ob, ac, lpo, rw, dn, va = (torch.stack(z, 1) for z in (ob, ac, lpo, rw, dn, va))
        prevdone = dn[:, -1]
        with torch.no_grad():
            nv = ag(env.obs())[1]
        adv = torch.zeros_like(rw)
        last = 0
        du = torch.cat([first[:, None], dn[:, :-1]], 1) if bug == "dones-one-late" else dn
        boot = torch.zeros_like(nv) if bug == "no-bootstrap" else nv
        for t in reversed(range(T)):
            nx = boot if t == T - 1 else va[:, t + 1]
            nt = 1 - du[:, t]
            last = rw[:, t] + s["gamma"] * nx * nt - va[:, t] + (1 if bug == "gae-without-gamma" else s["gamma"]) * s["lam"] * nt * last
            adv[:, t] = last
        ret = adv + va
        if bug == "returns-are-rewards":
            q = 0
            ret = torch.zeros_like(rw)
            for t in reversed(range(T)):
                q = rw[:, t] + s["gamma"] * (1 - dn[:, t]) * q
                ret[:, t] = q
        for ep in range(s["epochs"]):
            if bug == "old-recomputed" and ep:
                with torch.no_grad():
                    lpo = ag(ob)[0].gather(2, ac[..., None]).squeeze(2)
            for k, i in enumerate(torch.randperm(n, generator=gen).chunk(s["minis"])):
                step += 1
                L, v = ag(ob[i])
                lp = L.gather(2, ac[i][..., None]).squeeze(2)
                en = -(L.exp() * L).sum(-1)
                A = adv[i]
                if bug == "advantages-other-minibatch":
                    A = adv[torch.arange(n).chunk(s["minis"])[k]]
                if s["norm"]:
                    A = (A - (0 if bug == "norm-no-mean" else A.mean())) / (A.std() + 1e-8)
                r = (lpo[i] - lp).exp() if bug == "ratio-inverted" else (lp - lpo[i]).exp()
                tl = (torch.min if bug == "surrogate-max" else torch.max)(-A * r, -A * r.clamp(1 - s["clip"], 1 + s["clip"]))
                pg = tl.mean()
                V0 = va[i.flip(0)] if bug == "vclip-other-rows" else va[i]
                if s["vclip"]:
                    vc = V0 + (v - V0).clamp(-s["clip"], s["clip"])
                    vl = 0.5 * (torch.min if bug == "value-min" else torch.max)((v - ret[i]) ** 2, (vc - ret[i]) ** 2).mean()
                else:
                    vl = (1 if bug == "value-no-half" else 0.5) * ((v - ret[i]) ** 2).mean()
                el = en.mean()
                loss = pg - s["ent"] * el * (-1 if bug == "entropy-sign" else 1) + s["vf"] * vl
                gl, gv = torch.autograd.grad(loss, [lp, v], retain_graph=True)
                opt.zero_grad()
                loss.backward()
                t = dict(
                    response_mask=torch.ones_like(lp, dtype=torch.bool),
                    logp_new=lp,
                    logp_old=lpo[i],
                    advantages=A,
                    returns=ret[i],
                    values=va[i],
                    values_new=v,
                    token_rewards=rw[i],
                    dones=dn[i].bool(),
                    next_values=nv[i],
                    loss=loss,
                    pg_loss=pg,
                    value_loss=vl,
                    sample_id=i + n * it,
                )
                if not s["lazy"]:
                    t |= dict(entropy=en, entropy_loss=el, token_loss=tl)
                else:
                    t |= dict(entropy=en)
                op = dict(
                    gamma=s["gamma"],
                    gae_lambda=s["lam"],
                    clip_coef=s["clip"],
                    norm_adv=s["norm"],
                    clip_vloss=s["vclip"],
                    ent_coef=s["ent"],
                    vf_coef=s["vf"],
                    max_grad_norm=s["mgn"],
                    num_minibatches=s["minis"],
                    update_epochs=s["epochs"],
                    learning_rate=s["lr"],
                    anneal_lr=s["anneal"],
                )
                sc = dict(clipfrac=((r - 1).abs() > s["clip"]).float().mean().item()) if not s["lazy"] else {}
                write(
                    out,
                    f"step_{step:04d}",
                    t,
                    dict(schema=2, framework="cleanrl", algorithm="ppo", run=name, step=step, options=op, scalars=sc, scalars_scope="optimizer_step"),
                )
                nn.utils.clip_grad_norm_(ag.parameters(), s["mgn"])
                opt.step()


def run_lm(s, bug, out, name):
    m_ = make(s["seed"])
    gen = torch.Generator().manual_seed(s["seed"])
    ref = copy.deepcopy(m_)
    N, T, step = s["N"], s["T"], 0
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.AdamW(m_.parameters(), lr=s["lr"], weight_decay=0.0)
    for g in range(s["gens"]):
        pid, patt = prompts(N, gen)
        ids, att, rid, m, slp = sample(m_, pid, patt, T, gen, s["temp"])
        sc = reward(rid, m, 0)
        if bug == "kl-reference-is-old":
            ref = copy.deepcopy(m_)
        with torch.no_grad():
            old, va, _ = logps(m_, ids, att, T, s["temp"])
            rl = logps(ref, ids, att, T, s["temp"])[0]
        if bug == "values-shifted":
            va = F.pad(va[:, 1:], (0, 1))
        va = va * m
        d = old - rl
        if bug == "k3-reversed":
            d = -d
        kl = (d if s["kl"] == "k1" else (-d).exp() - 1 + d) * m
        rw = -s["beta"] * kl * (-1 if bug == "kl-sign" else 1)
        last = T - 1 - m.flip(1).argmax(1)
        if bug == "score-at-eos-plus-one":
            last = (last + 1).clamp(max=T - 1)
        rw[torch.arange(N), last] += sc
        adv = torch.zeros_like(rw)
        q = 0
        for t in reversed(range(T)):
            nx = va[:, t + 1] if t < T - 1 else (va[:, 0].roll(-1) if bug == "gae-flat" else 0.0)
            q = rw[:, t] + s["gamma"] * nx - va[:, t] + s["gamma"] * s["lam"] * q
            adv[:, t] = q

        adv = adv * m
        ret = (adv + va) * m
        if s["whiten"]:
            w = torch.ones_like(m) if bug == "whiten-padding" else m
            c = w.sum()
            mu = (adv * w).sum() / c
            var = ((adv - mu) ** 2 * w).sum() / (c - 1)
            adv = (adv - mu) * (var + 1e-8).rsqrt() * m
            if bug == "returns-after-whitening":
                ret = (adv + va) * m
        for ep in range(s["epochs"]):
            for mi in torch.randperm(N, generator=gen).chunk(s["minis"]):
                step += 1
                opt.zero_grad()
                K = s["micros"]
                for mb, i in enumerate(mi.chunk(K)):
                    lp, v, en = logps(m_, ids[i], att[i], T, s["temp"], False, True)
                    mk = m[i].float()
                    if bug == "values-shifted":
                        v = F.pad(v[:, 1:], (0, 1))

                    def agg(x, w=mk):
                        if s["agg"] == "token":
                            return (x * w).sum() / w.sum()
                        return ((x * w).sum(1) / (T if bug == "row-mean-padded" else w.sum(1))).mean() / (1 if bug == "ga-missing" else K)

                    r = (lp - old[i]).exp()
                    A = adv[i]
                    tl = torch.max(-A * r, -A * r.clamp(1 - s["clip"], 1 + s["clip"]))
                    vc = va[i] + (v - va[i]).clamp(-s["vclip"], s["vclip"])
                    vl = 0.5 * agg(torch.max((v - ret[i]) ** 2, (vc - ret[i]) ** 2))
                    pg = agg(tl)
                    el = agg(en, torch.ones_like(mk)) if bug == "entropy-unmasked" else agg(en)
                    loss = pg + s["vf"] * vl * (s["vf"] if bug == "vf-coef-twice" else 1) - s["ent"] * el
                    gl, gv = torch.autograd.grad(loss, [lp, v], retain_graph=True)
                    loss.backward()
                    t = dict(
                        response_mask=m[i].bool(),
                        response_ids=rid[i],
                        logp_new=lp,
                        logp_old=old[i],
                        logp_ref=rl[i],
                        advantages=A,
                        returns=ret[i],
                        values=va[i],
                        values_new=v,
                        token_rewards=rw[i],
                        scores=sc[i],
                        loss=loss,
                        pg_loss=pg,
                        value_loss=vl,
                        sample_id=i + N * g,
                    )
                    if s["ent"]:
                        t |= dict(entropy=en, entropy_loss=el)
                    if not s["lazy"]:
                        t |= dict(token_loss=tl, dlogp=gl, kl=kl[i])
                    op = {
                        **s["o"],
                        "gae.gamma": s["gamma"],
                        "gae.lambda": s["lam"],
                        "clip.low": s["clip"],
                        "clip.high": s["clip"],
                        "value.clip": s["vclip"],
                        "value.coef": s["vf"],
                        "entropy.coef": s["ent"],
                        "kl.beta": s["beta"],
                        "kl.kind": s["kl"],
                        "num_mini_batches": s["minis"],
                        "eos_token_id": EOS,
                        "logp.temperature": s["temp"],
                    }
                    write(
                        out,
                        f"step_{step:04d}_{mb}",
                        t,
                        dict(schema=2, algorithm="ppo", run=name, step=step, micro_batch=mb, micro_batches=K, options=op, token_loss_includes_kl=False),
                    )
                nn.utils.clip_grad_norm_(m_.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("g5_ppo", H, B, run)
