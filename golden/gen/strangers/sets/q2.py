"""TRL 1.16 RLOO and TRL 1.12 PPO (experimental), rewritten as RLOOTrainer and PPOTrainer compute; RLOO dumps what its hook sees, PPO everything of the micro-batch."""

from world_q import *


def mmean(v, m):
    return (v * m).sum() / m.sum()


def mvar(v, m):
    mean = mmean(v, m)
    var = mmean((v - mean) ** 2, m)
    n = m.sum()
    return var * (n / (n - 1))


def mwhiten(v, m, shift=True):
    mean, var = mmean(v, m), mvar(v, m)
    w = (v - mean) * torch.rsqrt(var + 1e-8)
    return w if shift else w + mean


def table_rloo(seed):
    r = random.Random(seed * 3 + 1)
    c = dict(seed=seed + 200, kind="rloo")
    c["nf"] = r.choice([1, 2, 3])
    c["reward_weights"] = [1.0, 0.5, 2.0][: c["nf"]]
    c["binary"] = r.random() < 0.3
    c["beta"] = r.choice([0.05, 0.0, 0.2])
    c["normalize_advantages"] = r.random() < 0.5
    c["reward_clip_range"] = r.choice([None, [-0.3, 0.6]])
    c["epsilon"], c["epsilon_high"] = r.choice([(0.2, None), (0.1, 0.3), (0.05, 0.05)])
    c["num_generations"] = r.choice([4, 2, 8])
    c["groups"] = r.choice([2, 4])
    c["ranks"] = r.choice([1, 1, 2])
    c["mu"], c["ga"], c["spgm"] = r.choice([(1, 1, 2), (2, 1, 1), (2, 2, 1), (1, 2, 2), (3, 1, 1)])
    c["T"] = r.choice([14, 30])
    c["temperature"] = r.choice([1.0, 0.8])
    c["mask_truncated_completions"] = r.random() < 0.4
    c["lr"] = r.choice([1e-3, 3e-3])
    c["lowp"] = r.random() < 0.3
    c["eospad"] = r.random() < 0.3
    return c


def rloo(folder, case, c):
    gen = torch.Generator().manual_seed(c["seed"])
    pad = EOS if c["eospad"] else PAD
    m = LM(pad=pad)
    m.lowp = c["lowp"]
    ref = copy.deepcopy(m)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=gen))
    G, R, ga, mu, T, temp = c["num_generations"], c["ranks"], c["ga"], c["mu"], c["T"], c["temperature"]
    spg = ga * c["spgm"]
    per = c["groups"] * G
    per = -(-per // spg) * spg
    mbs = per // spg
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    eh = c["epsilon_high"] if c["epsilon_high"] is not None else c["epsilon"]
    opts = (
        {
            k: c[k]
            for k in (
                "beta",
                "normalize_advantages",
                "reward_clip_range",
                "epsilon",
                "epsilon_high",
                "num_generations",
                "temperature",
                "mask_truncated_completions",
                "reward_weights",
            )
        }
        | dict(
            num_iterations=mu,
            steps_per_generation=spg,
            gradient_accumulation_steps=ga,
            per_device_train_batch_size=mbs,
            max_completion_length=T,
            eos_token_id=[EOS],
            disable_dropout=True,
            learning_rate=c["lr"],
        )
        | {"agg.div_ga": False}
    )
    step = sid = 0
    for roll in range(2):
        N = per * R
        pi, pa = prompts(N // G, 5, gen, pad)
        pi, pa = pi.repeat_interleave(G, 0), pa.repeat_interleave(G, 0)
        ids, cm, _, _ = sample(m, pi, pa, T, temp, gen, pad=pad)
        W = int(cm.sum(1).max())
        ids, cm = ids[:, :W], cm[:, :W]
        ended = ids.gather(1, (cm.sum(1) - 1)[:, None]).squeeze(1) == EOS
        rpf = rewards(ids, cm, gen, c["nf"], c["binary"])
        if c["mask_truncated_completions"]:
            cm = cm * ended[:, None].long()
        full, att = torch.cat([pi, ids], 1), torch.cat([pa, cm], 1)
        with torch.no_grad():
            old = lp_ent(m, full, att, W, temp)[0]
            refl = lp_ent(ref, full, att, W, temp)[0] if c["beta"] else None
        rw = (rpf * torch.tensor(c["reward_weights"])).nansum(1)
        scores = rw.clone()
        if c["reward_clip_range"]:
            rw = rw.clamp(*c["reward_clip_range"])
        if c["beta"]:
            klt = old - refl
            rw = rw - c["beta"] * (klt * cm).sum(-1)
        g = rw.view(-1, G)
        adv = (g - (g.sum(1, keepdim=True) - g) / (G - 1)).view(-1)
        if c["normalize_advantages"]:
            adv = (adv - adv.mean()) / (adv.std() + 1e-4)
        X = dict(
            full=full,
            att=att,
            ids=ids,
            mask=cm,
            adv=adv,
            old=old,
            ref=refl,
            kl=klt if c["beta"] else None,
            scores=scores,
            rpf=rpf,
            group=torch.arange(N) // G + 1000 * roll,
            sid=torch.arange(N) + sid,
        )
        sid += N
        rk = []
        for r in range(R):
            p = torch.randperm(per, generator=gen) + r * per
            rk.append({k: None if v is None else v[p] for k, v in X.items()})
        for it in range(mu):
            for s in range(spg // ga):
                files = []
                for mb in range(ga):
                    for r in range(R):
                        x = {k: None if v is None else v[(s * ga + mb) * mbs : (s * ga + mb + 1) * mbs] for k, v in rk[r].items()}
                        k_, A = x["mask"], x["adv"]
                        lp, ent = lp_ent(m, x["full"], x["att"], W, temp)
                        lr_ = (lp * k_).sum(1) - (x["old"] * k_).sum(1)
                        c1 = lr_.exp()
                        c2 = c1.clamp(1 - c["epsilon"], 1 + eh)
                        tl = -torch.min(c1 * A, c2 * A)
                        loss = tl.mean()
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / ga / R).backward()
                        lo = ((c1 < 1 - c["epsilon"]) & (A < 0)).float()
                        hi = ((c1 > 1 + eh) & (A > 0)).float()
                        sc = dict(loss=loss.item())
                        if R == 1:
                            sc |= {
                                "clip_ratio/low_mean": lo.mean().item(),
                                "clip_ratio/high_mean": hi.mean().item(),
                                "clip_ratio/region_mean": (lo + hi).mean().item(),
                                "entropy": ((ent * k_).sum() / k_.sum().clamp(min=1)).item(),
                            }
                        t = dict(
                            response_mask=k_,
                            response_ids=x["ids"],
                            input_ids=x["full"],
                            attention_mask=x["att"],
                            advantages=A,
                            scores=x["scores"],
                            rewards_per_func=x["rpf"],
                            group_id=x["group"],
                            sample_id=x["sid"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_ref=x["ref"],
                            kl=x["kl"],
                            entropy=ent,
                            dlogp=dl,
                            loss=loss,
                            token_loss=tl.unsqueeze(1).expand_as(lp),
                        )
                        files.append(
                            (
                                f"step_{step + 1:06d}_rank_{r}_mb_{mb}",
                                dict(
                                    schema=2,
                                    framework="trl",
                                    version="1.16.0",
                                    algorithm="rloo",
                                    run=case,
                                    step=step + 1,
                                    rank=r,
                                    world_size=R,
                                    micro_batch=mb,
                                    micro_batches=ga,
                                    options=opts,
                                    scalars=sc,
                                    scalars_scope="micro_batch",
                                ),
                                t,
                            )
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                step += 1
                for f in files:
                    dump(folder, *f)


def table_ppo(seed):
    r = random.Random(seed * 5 + 2)
    c = dict(seed=seed + 300, kind="ppo")
    c["kl_estimator"] = r.choice(["k1", "k3"])
    c["kl_coef"] = r.choice([0.05, 0.2, 0.01])
    c["missing_eos_penalty"] = r.choice([None, 1.0, 0.5])
    c["whiten_rewards"] = r.random() < 0.4
    c["gamma"], c["lam"] = r.choice([(1.0, 0.95), (0.99, 0.9), (1.0, 1.0)])
    c["cliprange"] = r.choice([0.2, 0.1])
    c["cliprange_value"] = r.choice([0.2, 0.1, 0.4])
    c["vf_coef"] = r.choice([0.1, 0.5, 1.0])
    c["num_ppo_epochs"] = r.choice([1, 2, 3])
    c["num_mini_batches"] = r.choice([1, 2, 4])
    c["ga"] = r.choice([1, 2])
    c["rows"] = r.choice([16, 32])
    c["T"] = r.choice([16, 31])
    c["temperature"] = r.choice([0.7, 1.0])
    c["ranks"] = r.choice([1, 1, 2])
    c["lr"] = r.choice([3e-3, 6e-3])
    c["lowp"] = r.random() < 0.3
    return c


def ppo(folder, case, c):
    gen = torch.Generator().manual_seed(c["seed"])
    m = LM(value=True)
    m.lowp = c["lowp"]
    ref = copy.deepcopy(m)
    R, T, B = c["ranks"], c["T"], c["rows"]
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    temp = c["temperature"] + 1e-7
    vof = lambda full, att: m.v(m.hidden(full, att))[:, -T - 1 : -1].squeeze(-1)
    opts = (
        {
            k: c[k]
            for k in (
                "kl_estimator",
                "kl_coef",
                "missing_eos_penalty",
                "whiten_rewards",
                "gamma",
                "lam",
                "cliprange",
                "cliprange_value",
                "vf_coef",
                "num_ppo_epochs",
                "num_mini_batches",
                "temperature",
            )
        }
        | dict(response_length=T, eos_token_id=EOS, gradient_accumulation_steps=c["ga"], learning_rate=c["lr"])
        | {"agg.div_ga": False}
    )
    step = sid = 0
    for roll in range(2):
        D = []
        for r in range(R):
            pi, pa = prompts(B, 5, gen)
            ids, cm, _, _ = sample(m, pi, pa, T, temp, gen)
            full, att = torch.cat([pi, ids], 1), torch.cat([pa, cm], 1)
            with torch.no_grad():
                old = lp_ent(m, full, att, T, temp)[0]
                refl = lp_ent(ref, full, att, T, temp)[0]
                values = vof(full, att)
            raw = rewards(ids, cm, gen, 1).sum(1)
            scores = raw.clone()
            contain = ((ids == EOS) & cm.bool()).any(1)
            sl = cm.sum(1) - 1
            if c["missing_eos_penalty"] is not None:
                scores[~contain] -= c["missing_eos_penalty"]
            idx = torch.arange(T).repeat(B, 1)
            pm = idx > sl[:, None]
            old = old.masked_fill(pm, 1.0)
            refl = refl.masked_fill(pm, 1.0)
            sl1 = sl + 1
            pm1 = idx > sl1[:, None]
            values = values.masked_fill(pm1, 0)
            logr = refl - old
            kl = -logr if c["kl_estimator"] == "k1" else (logr.exp() - 1) - logr
            rew = -c["kl_coef"] * kl
            end = torch.where(sl1 < T, sl1, sl)
            rew[torch.arange(B), end] += scores
            if c["whiten_rewards"]:
                rew = mwhiten(rew, ~pm1, False).masked_fill(pm1, 0)
            last, a = 0, []
            for t in reversed(range(T)):
                nv = values[:, t + 1] if t < T - 1 else 0.0
                last = rew[:, t] + c["gamma"] * nv - values[:, t] + c["gamma"] * c["lam"] * last
                a.append(last)
            adv = torch.stack(a[::-1], 1)
            ret = adv + values
            adv = mwhiten(adv, ~pm).masked_fill(pm, 0)
            D.append(
                dict(
                    full=full,
                    att=att,
                    ids=ids,
                    pm=pm,
                    pm1=pm1,
                    adv=adv,
                    ret=ret,
                    values=values,
                    old=old,
                    ref=refl,
                    kl=kl,
                    rew=rew,
                    scores=raw,
                    sid=torch.arange(B) + sid,
                )
            )
            sid += B
        for ep in range(c["num_ppo_epochs"]):
            bi = [torch.randperm(B, generator=gen) for _ in range(R)]
            mbz = B // c["num_mini_batches"]
            sz = mbz // c["ga"]
            for b in range(c["num_mini_batches"]):
                files = []
                for j in range(c["ga"]):
                    for r in range(R):
                        sel = bi[r][b * mbz + j * sz : b * mbz + (j + 1) * sz]
                        x = {k: v[sel] for k, v in D[r].items()}
                        lp, ent = lp_ent(m, x["full"], x["att"], T, temp)
                        lp = lp.masked_fill(x["pm"], 1.0)
                        v = vof(x["full"], x["att"]).masked_fill(x["pm1"], 0)
                        vc = v.clamp(x["values"] - c["cliprange_value"], x["values"] + c["cliprange_value"])
                        vl = 0.5 * mmean(torch.max((v - x["ret"]) ** 2, (vc - x["ret"]) ** 2), ~x["pm1"])
                        ratio = (lp - x["old"]).exp()
                        A = x["adv"]
                        l1, l2 = -A * ratio, -A * ratio.clamp(1 - c["cliprange"], 1 + c["cliprange"])
                        tl = torch.max(l1, l2)
                        pg = mmean(tl, ~x["pm"])
                        loss = pg + c["vf_coef"] * vl
                        dl, dv = torch.autograd.grad(loss, [lp, v], retain_graph=True)
                        (loss / c["ga"] / R).backward()
                        sc = (
                            {"policy/clipfrac_avg": mmean((l2 > l1).float(), ~x["pm"]).item(), "loss/policy_avg": pg.item(), "loss/value_avg": vl.item()}
                            if R == 1
                            else {}
                        )
                        t = dict(
                            response_mask=~x["pm"],
                            response_ids=x["ids"],
                            input_ids=x["full"],
                            attention_mask=x["att"],
                            advantages=A,
                            returns=x["ret"],
                            values=x["values"],
                            values_new=v,
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_ref=x["ref"],
                            kl=x["kl"],
                            token_rewards=x["rew"],
                            scores=x["scores"],
                            sample_id=x["sid"],
                            token_loss=tl,
                            pg_loss=pg,
                            value_loss=vl,
                            loss=loss,
                            dlogp=dl,
                            dvalues=dv,
                        )
                        files.append(
                            (
                                f"step_{step + 1:06d}_rank_{r}_mb_{j}",
                                dict(
                                    schema=2,
                                    framework="trl",
                                    version="1.12.0",
                                    algorithm="ppo",
                                    run=case,
                                    step=step + 1,
                                    rank=r,
                                    world_size=R,
                                    micro_batch=j,
                                    micro_batches=c["ga"],
                                    options=opts,
                                    scalars=sc,
                                    scalars_scope="micro_batch",
                                    token_loss_includes_kl=False,
                                    masked_fill=1.0,
                                ),
                                t,
                            )
                        )
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                step += 1
                for f in files:
                    dump(folder, *f)


names = {}
for s in range(7):
    c = table_rloo(s)
    names[f"h_rloo{s}_norm{int(c['normalize_advantages'])}_ga{c['ga']}"] = c
for s in range(7):
    c = table_ppo(s)
    names[f"h_ppo{s}_{c['kl_estimator']}_wr{int(c['whiten_rewards'])}_r{c['ranks']}"] = c
if __name__ == "__main__":
    main("q2", names, lambda f, k, c: (rloo if c["kind"] == "rloo" else ppo)(f, k, c))
