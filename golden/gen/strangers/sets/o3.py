"""h3: OpenRLHF 0.11.2's PPO/REINFORCE family written out. Dump as of its hook (no token_loss, dlogp yes), flags under their command-line names."""

from world_o import *

DEF = {
    "algo.advantage.estimator": "group_norm",
    "algo.advantage.gamma": 1.0,
    "algo.advantage.lambd": 1.0,
    "algo.kl.use_loss": False,
    "algo.kl.init_coef": 0.0,
    "algo.kl.estimator": "k1",
    "algo.kl.unbiased_gradient": False,
    "algo.kl.target": None,
    "algo.kl.horizon": 10000,
    "actor.policy_loss_type": "ppo",
    "actor.loss_agg_mode": "token-mean",
    "actor.eps_clip": 0.2,
    "actor.eps_clip_low_high": [0.2, 0.2],
    "actor.dual_clip": None,
    "critic.value_clip": 0.5,
    "actor.entropy_coef": None,
    "reward.clip_range": [-10, 10],
    "reward.stop_properly_penalty_coef": None,
    "algo.advantage.is_correction_level": "off",
    "algo.advantage.is_correction_mode": "mask",
    "algo.advantage.is_correction_gating": "ratio",
    "algo.advantage.is_correction_threshold": [0.5, 5.0],
    "algo.advantage.no_std_norm": False,
    "rollout.n_samples_per_prompt": 4,
    "rollout.temperature": 1.0,
    "train.max_epochs": 1,
}
A_, K_ = "algo.advantage.", "algo.kl."
C = dict(
    h_ppo_kl_holes=dict(
        o={A_ + "estimator": "gae", A_ + "gamma": 0.99, A_ + "lambd": 0.95, K_ + "init_coef": 0.05, "critic.value_clip": 0.1, "train.max_epochs": 2},
        holes=True,
        gas=2,
    ),
    h_rloo_klreward_2ranks=dict(o={A_ + "estimator": "rloo", K_ + "init_coef": 0.02, K_ + "estimator": "k2"}, gas=2, R=2),
    h_reinforce_base_nostd=dict(
        o={A_ + "estimator": "reinforce_baseline", A_ + "no_std_norm": True, K_ + "init_coef": 0.01, K_ + "estimator": "k3", "train.max_epochs": 2}
    ),
    h_drgrpo_kl3loss=dict(
        o={A_ + "estimator": "dr_grpo", K_ + "use_loss": True, K_ + "init_coef": 0.03, K_ + "estimator": "k3", "actor.entropy_coef": 0.005},
        gas=2,
        refother=True,
    ),
    h_unbiased_k2=dict(
        o={K_ + "use_loss": True, K_ + "init_coef": 0.05, K_ + "estimator": "k2", K_ + "unbiased_gradient": True, "train.max_epochs": 2}, refother=True
    ),
    h_gspo_seq=dict(o={"actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [0.003, 0.004], "train.max_epochs": 2}),
    h_icepop=dict(o={A_ + "is_correction_level": "token", A_ + "is_correction_threshold": [0.97, 1.03], "train.max_epochs": 2}, bf16=True),
    h_flash_binarykl=dict(
        o={
            A_ + "estimator": "flash_reinforce",
            A_ + "is_correction_level": "seq",
            A_ + "is_correction_gating": "binary_kl",
            A_ + "is_correction_threshold": [0.0, 2e-3],
            "rollout.n_samples_per_prompt": 1,
        },
        lag=1,
    ),
    h_tis_clip=dict(
        o={A_ + "is_correction_level": "token", A_ + "is_correction_mode": "clip", A_ + "is_correction_threshold": [0.5, 1.05], "actor.dual_clip": 3.0},
        bf16=True,
    ),
    h_stop_properly=dict(o={A_ + "estimator": "reinforce_baseline", "reward.stop_properly_penalty_coef": 0.4}, trunc=True, shaped=True),
    h_samplemean_clip=dict(
        o={"actor.loss_agg_mode": "seq-mean-token-mean", "reward.clip_range": [-1.0, 1.0], "actor.eps_clip_low_high": [0.2, 0.28], "train.max_epochs": 2}, gas=2
    ),
    h_reinforce_gamma=dict(o={A_ + "estimator": "reinforce", A_ + "gamma": 0.95, K_ + "init_coef": 0.01}, gas=1, eosless=True),
)


def akl(lp, rf, old, kind, unb):
    d = lp.float() - rf.float()
    v = d if kind == "k1" else d**2 / 2 if kind == "k2" else (-d.clamp(min=-10)).exp() - 1 + d.clamp(min=-10)
    v = v.clamp(-10, 10)
    if unb:
        w = (lp.float() - old.float()).exp().clamp(max=10).detach()
        k = w * d.detach() * lp.float()
        v = v.detach() + k - k.detach()
    return v


def go(out, case, c):
    o = {**DEF, **c["o"]}
    R, gas = c.get("R", 1), c.get("gas", 1)
    est = o[A_ + "estimator"]
    G = o["rollout.n_samples_per_prompt"]
    n = 32 // G
    ppo = est == "gae"
    lossk = o[K_ + "use_loss"]
    seed = sum(map(ord, case))
    gen = torch.Generator().manual_seed(seed)
    pol = LM(seed)
    ref = LM(seed + 1) if c.get("refother") else copy.deepcopy(pol)
    crit = LM(seed + 2, value=True) if ppo else None
    opt = torch.optim.AdamW(pol.parameters(), lr=0.02, betas=(0.9, 0.95), weight_decay=0.0)
    copt = torch.optim.AdamW(crit.parameters(), lr=0.03, betas=(0.9, 0.95)) if ppo else None
    d = Dump(out, "o3", case, describes="right", framework="openrlhf", version="0.11.2", algorithm="ppo" if ppo else "grpo", world_size=R)
    step = 0
    prev = copy.deepcopy(pol)
    for it in range(2 + c.get("lag", 0)):
        eng = copy.deepcopy(prev if c.get("lag") else pol)
        prev = copy.deepcopy(pol)
        if c.get("bf16"):
            eng = eng.to(torch.bfloat16)
        P, PA = prompts(n, G, gen)
        r, att, lg, fin = sample(
            eng, P, PA, 10 if c.get("trunc") else 24 - 5 * it, gen, 1.0, eos_bias=0 if (c.get("bf16") or c.get("lag")) else (-50 if c.get("eosless") else 0.6)
        )
        mask = att.float()
        N, T = r.shape
        if c.get("holes"):
            for i in range(1, N, 3):
                if att[i].sum() > 9:
                    r[i, 2:6] = torch.randint(2, V, (4,), generator=gen)
                    mask[i, 2:6] = 0
        raw = score(r, att, gen)
        if c.get("trunc"):
            raw = raw + 0.5
        sc = raw.clone()
        co = o["reward.stop_properly_penalty_coef"]
        if co is not None:
            sc = torch.where(fin, sc, sc * co)
        with torch.no_grad():
            old = lp_of(pol, P, PA, r, att)
            rlp = lp_of(ref, P, PA, r, att)
            vals = val_of(crit, P, PA, r, att) if ppo else None
        kl0 = akl(old, rlp, None, o[K_ + "estimator"], False) if not lossk and o[K_ + "init_coef"] > 0 else torch.zeros_like(old)
        g = sc.view(-1, G)
        if est == "rloo":
            g = g - (g.sum(-1, keepdim=True) - g) / (G - 1)
        elif est in ("reinforce_baseline", "dr_grpo"):
            g = g - g.mean(-1, keepdim=True)
        elif est == "group_norm":
            g = (g - g.mean(-1, keepdim=True)) / (g.std(-1, keepdim=True) + 1e-9)
        elif est == "flash_reinforce":
            g = g - g.mean()
        rw = g.reshape(-1).clamp(*o["reward.clip_range"])
        last = T - 1 - mask.long().fliplr().argmax(1, keepdim=True)
        tr = torch.zeros(N, T).scatter_(1, last, rw[:, None]) - (0 if lossk else o[K_ + "init_coef"]) * kl0
        gm, lm = o[A_ + "gamma"], o[A_ + "lambd"]
        rm = tr * mask
        if ppo:
            vv = vals * mask
            la = 0
            out_ = []
            for t in reversed(range(T)):
                nv = vv[:, t + 1] if t < T - 1 else 0.0
                la = rm[:, t] + gm * nv - vv[:, t] + gm * lm * la
                out_.append(la)
            adv = torch.stack(out_[::-1], 1)
            ret = adv + vv
        else:
            cu = torch.zeros(N)
            out_ = []
            for t in reversed(range(T)):
                cu = rm[:, t] + gm * cu
                out_.append(cu)
            ret = torch.stack(out_[::-1], 1)
            adv = ret.clone()
        if est in ("gae", "reinforce", "reinforce_baseline"):
            nn_ = mask.sum()
            mu = (adv * mask).sum() / nn_
            rs = 1 if o[A_ + "no_std_norm"] else (((adv - mu) ** 2 * mask).sum() / nn_).clamp(min=1e-8).rsqrt()
            adv = (adv - mu) * rs
        gid = torch.arange(N) // G + 50 * it
        M = 2
        for ep in range(o["train.max_epochs"]):
            ordr = torch.randperm(N, generator=gen).view(M, R, gas, -1)
            for mi in range(M):
                step += 1
                opt.zero_grad()
                copt and copt.zero_grad()
                al = ordr[mi].reshape(-1)
                tok = mask[al].sum()
                gb = float((mask[al].sum(-1) > 0).sum())
                for k in range(R):
                    for b in range(gas):
                        ix = ordr[mi, k, b]
                        m = mask[ix]
                        a = adv[ix]
                        lp, ent, _ = lp_of(pol, P[ix], PA[ix], r[ix], att[ix], 1.0, True)
                        x = lp - old[ix]
                        ag = lambda y, tokl=True: (y * m).sum() / tok * R if tokl else ((y * m).sum(-1) / (m.sum(-1) + 1e-8)).sum() / gb * R
                        gs = o["actor.policy_loss_type"] == "gspo"
                        rho = (((x * m).sum(-1) / m.sum(-1).clamp(min=1)).exp()[:, None] * m) if gs else x.clamp(-20, 20).exp()
                        lo, hi = o["actor.eps_clip_low_high"]
                        s1, s2 = rho * a, rho.clamp(1 - lo, 1 + hi) * a
                        L = -torch.min(s1, s2)
                        if o["actor.dual_clip"]:
                            c1 = torch.min(s1, s2)
                            L = -torch.where(a < 0, torch.max(c1, o["actor.dual_clip"] * a), c1)
                        lvl = o[A_ + "is_correction_level"]
                        isw = None
                        if lvl != "off":
                            low, high = o[A_ + "is_correction_threshold"]
                            ilr = (old - lg)[ix]
                            ti = ilr.exp()
                            mmn = lambda y: ((y * m).sum(-1) / m.sum(-1))[:, None]
                            if o[A_ + "is_correction_gating"] == "ratio":
                                st = (mmn(ilr) if lvl == "seq" else ilr).exp()
                            else:
                                p = lg[ix].exp().clamp(1e-6, 1 - 1e-6)
                                q = old[ix].exp().clamp(1e-6, 1 - 1e-6)
                                st = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
                                st = mmn(st) if lvl == "seq" else st
                            isw = st.clamp(low, high) if o[A_ + "is_correction_mode"] == "clip" else torch.where((st >= low) & (st <= high), ti, 0.0)
                            L = isw * L
                        pg = ag(L, not gs and o["actor.loss_agg_mode"] == "token-mean")
                        loss = pg
                        t = dict(
                            response_mask=m.bool(),
                            logp_new=lp,
                            logp_old=old[ix],
                            advantages=a,
                            returns=ret[ix],
                            input_ids=torch.cat([P, r], 1)[ix],
                            attention_mask=torch.cat([PA, att], 1)[ix],
                            response_ids=r[ix],
                            scores=(sc if c.get("shaped") else raw)[ix],
                            group_id=gid[ix],
                            pg_loss=pg,
                        )
                        if lossk:
                            kk = akl(lp, rlp[ix], old[ix], o[K_ + "estimator"], o[K_ + "unbiased_gradient"])
                            kl = ag(kk)
                            loss = loss + o[K_ + "init_coef"] * kl
                            t |= dict(kl=kk, kl_loss=kl)
                        if o[K_ + "init_coef"] > 0:
                            t["logp_ref"] = rlp[ix]
                        if lvl != "off" or c.get("lag"):
                            t["logp_gen"] = lg[ix]
                        if o["actor.entropy_coef"] is not None:
                            el = ag(ent)
                            loss = loss - o["actor.entropy_coef"] * el
                            t |= dict(entropy=ent, entropy_loss=el)
                        t |= dict(loss=loss, dlogp=d_of(loss, lp))
                        (loss / R).backward(retain_graph=True)
                        if ppo:
                            vp = val_of(crit, P[ix], PA[ix], r[ix], att[ix])
                            vc = vals[ix] + (vp - vals[ix]).clamp(-o["critic.value_clip"], o["critic.value_clip"])
                            vl = 0.5 * ag(torch.max((vc - ret[ix]) ** 2, (vp - ret[ix]) ** 2))
                            t |= dict(values=vals[ix], values_new=vp, value_loss=vl, dvalues=d_of(vl, vp))
                            (vl / R).backward()
                        op = dict(o) | {
                            "num_items_in_batch": int(tok),
                            "agg.denominator": "global",
                            "num_mini_batches": M,
                            "eos_token_id": EOS,
                            "kl.beta": o[K_ + "init_coef"],
                        }
                        if c.get("lag"):
                            op["async_rollout"] = True
                        kw = dict(scores_shaped=True) if c.get("shaped") else {}
                        d.write(step, t, k, b, micro_batches=gas, options=op, token_loss_includes_kl=False, **kw)
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()
                copt and copt.step()


run(C, go)
