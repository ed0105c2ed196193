"""TRL 1.12 PPO (copied statement by statement) and TRL 1.16 RLOO (by its source). PPO even seeds full dump, odd ones lazy; RLOO as the exported hook does."""

import os
import random, types, textwrap
from world_s import *

SRC = os.path.join(os.environ["WHEELS"], "trl-1.16.0/trl/trainer/rloo_trainer.py")


def nanmin(t):
    return torch.min(t[~t.isnan()])


def nanmax(t):
    return torch.max(t[~t.isnan()])


NS = dict(torch=torch, math=math, nanmin=nanmin, nanmax=nanmax)
cut(os.path.join(os.environ["WHEELS"], "trl-1.16.0/trl/trainer/utils.py"), ["nanstd", "nanvar"], NS)
cut(SRC, ["_compute_loss"], NS, "RLOOTrainer")
_l = open(SRC).read()
_a = _l.index("        rewards = (rewards_per_func * self.reward_weights.to(device)")
_b = _l.index("advantages = torch.nan_to_num(advantages, nan=0.0)", _a) + len("advantages = torch.nan_to_num(advantages, nan=0.0)")
ADV = compile(textwrap.dedent(_l[_a:_b]), "adv", "exec")
PN = dict(torch=torch)
for f in ("ppo/ppo_trainer.py", "utils.py"):
    cut(os.path.join(os.environ["WHEELS"], "trl-1.12.0/trl/experimental/") + f, ["masked_whiten", "masked_mean", "masked_var"], PN)
mw, mm = PN["masked_whiten"], PN["masked_mean"]
INV = 1.0


def draw(i):
    r = random.Random(5100 + i)
    return dict(
        seed=i,
        ranks=r.choice([1, 2]),
        mini=r.choice([1, 2, 3]),
        ga=r.choice([1, 2]),
        epochs=r.choice([1, 2, 4]),
        T=r.choice([12, 24, 36]),
        temp=r.choice([0.7, 1.0]),
        ke=r.choice(["k1", "k3"]),
        kl=r.choice([0.05, 0.2, 0.0]),
        gamma=r.choice([1.0, 0.98]),
        lam=r.choice([0.95, 1.0, 0.7]),
        cr=r.choice([0.2, 0.1]),
        crv=r.choice([0.2, 0.05]),
        vf=r.choice([0.1, 0.5]),
        wh=r.random() < 0.5,
        pen=r.choice([None, 1.0, 0.3]),
    )


def drawr(i):
    r = random.Random(6100 + i)
    return dict(
        seed=i,
        ranks=r.choice([1, 2]),
        ga=r.choice([1, 2]),
        iters=r.choice([1, 2]),
        spg2=r.choice([1, 2]),
        G=r.choice([2, 4]),
        T=r.choice([12, 24]),
        beta=r.choice([0.0, 0.05, 0.2]),
        norm=r.random() < 0.5,
        clip=r.choice([None, [-0.2, 0.6]]),
        F=r.choice([1, 2]),
        nan=r.random() < 0.4,
        eh=r.choice([None, 0.3]),
        temp=r.choice([1.0, 0.8]),
        trunc=r.random() < 0.3,
    )


CASES = {}
for i in range(8):
    c = draw(i)
    CASES[f"h_{i:02d}_ppo_{c['ke']}_r{c['ranks']}mb{c['mini']}ga{c['ga']}" + ("_whiten" if c["wh"] else "") + ("_eos" if c["pen"] else "")] = c
for i in range(8, 14):
    c = drawr(i)
    CASES[
        f"h_{i:02d}_rloo_r{c['ranks']}ga{c['ga']}it{c['iters']}"
        + ("_norm" if c["norm"] else "")
        + ("_clip" if c["clip"] else "")
        + ("_nan" if c["nan"] else "")
    ] = c


def ppo(out, case, prog="s2", dt=torch.float32, CASES=CASES):
    c = CASES[case]
    o = Out(out, prog, case)
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(3 + c["seed"])
    W = c["ranks"]
    m = LM().to(dt)
    vm = LM().to(dt)
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(list(m.parameters()) + list(vm.parameters()), lr=5e-3, weight_decay=0.0)
    PD = 4
    loc = PD * c["ga"] * c["mini"]
    step = 0
    opts = dict(
        kl_coef=c["kl"],
        kl_estimator=c["ke"],
        gamma=c["gamma"],
        lam=c["lam"],
        cliprange=c["cr"],
        cliprange_value=c["crv"],
        vf_coef=c["vf"],
        whiten_rewards=c["wh"],
        missing_eos_penalty=c["pen"],
        num_ppo_epochs=c["epochs"],
        temperature=c["temp"],
        num_mini_batches=c["mini"],
        gradient_accumulation_steps=c["ga"],
        per_device_train_batch_size=PD,
        response_length=c["T"],
        learning_rate=5e-3,
        eos_token_id=EOS,
        pad_token_id=PAD,
        stop_token="eos",
    )
    opts["agg.div_ga"] = True
    tau = c["temp"] + 1e-7
    for roll in range(2):
        eng = engine_of(m, False)
        D = []
        for r in range(W):
            pr, pm = mkprompts(loc, 1, g)
            R, M, L = sample(m, eng, pr, pm, c["T"], tau, g)
            R = F.pad(R, (0, c["T"] - R.shape[1]), value=PAD)
            T = c["T"]
            ids = torch.cat([pr, R], 1)
            isp = R == PAD
            sl = torch.where(isp.any(1), isp.long().argmax(1), torch.full((loc,), T)) - 1
            with torch.no_grad():
                lp = logps(m, ids, T, tau)[0]
                rl = logps(ref, ids, T, tau)[0]
                v = vm(ids, value=True)[1][:, -T - 1 : -1]
                eos = (R == EOS).any(1)
                raw = (((R % 3 == 0) & ~isp).sum(1) / (sl + 1) + 0.3 * (R[:, 0] % 3)).to(dt)
                scores = raw.clone()
                if c["pen"] is not None:
                    scores[~eos] -= c["pen"]
                ri = torch.arange(T).repeat(loc, 1)
                pmk = ri > sl[:, None]
                lp = lp.masked_fill(pmk, INV)
                rl = rl.masked_fill(pmk, INV)
                sp1 = sl + 1
                pm1 = ri > sp1[:, None]
                v = v.masked_fill(pm1, 0)
                logr = rl - lp
                kl = -logr if c["ke"] == "k1" else (logr.exp() - 1) - logr
                rew = (-c["kl"] * kl).clone()
                ae = torch.where(sp1 < T, sp1, sl)
                rew[torch.arange(loc), ae] += scores
                if c["wh"]:
                    rew = mw(rew, mask=~pm1, shift_mean=False).masked_fill(pm1, 0)
                last = 0
                rev = []
                for t in reversed(range(T)):
                    nv = v[:, t + 1] if t < T - 1 else 0.0
                    delta = rew[:, t] + c["gamma"] * nv - v[:, t]
                    last = delta + c["gamma"] * c["lam"] * last
                    rev.append(last)
                adv = torch.stack(rev[::-1], axis=1)
                ret = adv + v
                adv = mw(adv, ~pmk).masked_fill(pmk, 0)
            D.append(dict(ids=ids, R=R, lp=lp, rl=rl, v=v, rew=rew, adv=adv, ret=ret, raw=raw, pmk=pmk, pm1=pm1, T=T, L=L, kl=kl))
        for ep in range(c["epochs"]):
            perm = [torch.randperm(loc, generator=g) for _ in range(W)]
            for k in range(c["mini"]):
                step += 1
                opt.zero_grad()
                for r in range(W):
                    d = D[r]
                    T = d["T"]
                    for j in range(c["ga"]):
                        ix = perm[r][(k * c["ga"] + j) * PD : (k * c["ga"] + j + 1) * PD]
                        new, ent, _ = logps(m, d["ids"][ix], T, tau)
                        new = new.masked_fill(d["pmk"][ix], INV)
                        vp = vm(d["ids"][ix], value=True)[1][:, -T - 1 : -1].masked_fill(d["pm1"][ix], 0)
                        vc = torch.clamp(vp, d["v"][ix] - c["crv"], d["v"][ix] + c["crv"])
                        vl = 0.5 * mm(torch.max((vp - d["ret"][ix]) ** 2, (vc - d["ret"][ix]) ** 2), ~d["pm1"][ix])
                        ratio = torch.exp(new - d["lp"][ix])
                        A = d["adv"][ix]
                        l1, l2 = -A * ratio, -A * torch.clamp(ratio, 1 - c["cr"], 1 + c["cr"])
                        tl = torch.max(l1, l2)
                        pg = mm(tl, ~d["pmk"][ix])
                        loss = (pg + c["vf"] * vl) / c["ga"]
                        dl, dv = torch.autograd.grad(loss, [new, vp], retain_graph=True)
                        (loss / W).backward()
                        t = dict(
                            response_mask=~d["pmk"][ix],
                            logp_new=new,
                            logp_old=d["lp"][ix],
                            logp_ref=d["rl"][ix],
                            advantages=A,
                            returns=d["ret"][ix],
                            values=d["v"][ix],
                            values_new=vp,
                            scores=d["raw"][ix],
                            loss=loss,
                            response_ids=d["R"][ix],
                            sample_id=ix + 1000 * roll + 100000 * r,
                            token_rewards=d["rew"][ix],
                        )
                        if c["seed"] % 2 == 0:
                            t.update(token_loss=tl, dlogp=dl, dvalues=dv, kl=d["kl"][ix], pg_loss=pg, value_loss=vl, entropy=ent)
                        if c["seed"] % 2 == 0 and c["ga"] > 1:
                            t.pop("pg_loss")
                            t.pop("value_loss")
                        o.write(
                            t,
                            dict(
                                schema=2,
                                framework="trl",
                                version="1.12.0",
                                algorithm="ppo",
                                run=prog + "-" + case,
                                step=step,
                                rank=r,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=c["ga"],
                                options=opts,
                                scalars=dict(loss=loss.item()),
                                scalars_scope="micro_batch",
                                masked_fill=INV,
                            ),
                        )
                opt.step()


def rloo(out, case):
    c = CASES[case]
    o = Out(out, "s2", case)
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(3 + c["seed"])
    W, GA = c["ranks"], c["ga"]
    SPG = GA * c["spg2"]
    PD = 4 if GA > 1 else 8
    rr = PD * SPG
    rows = rr * W
    m = LM()
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=0.0)
    step = 0
    opts = dict(
        beta=c["beta"],
        normalize_advantages=c["norm"],
        reward_clip_range=c["clip"],
        num_generations=c["G"],
        num_iterations=c["iters"],
        steps_per_generation=SPG,
        gradient_accumulation_steps=GA,
        epsilon=0.2,
        epsilon_high=c["eh"],
        temperature=c["temp"],
        mask_truncated_completions=c["trunc"],
        reward_weights=[1.0, 0.5][: c["F"]],
        learning_rate=5e-3,
        eos_token_id=EOS,
        max_completion_length=c["T"],
        disable_dropout=True,
        per_device_train_batch_size=PD,
        max_grad_norm=1.0,
    )
    for roll in range(3):
        eng = engine_of(m, False)
        pr, pm = mkprompts(rows // c["G"], c["G"], g)
        R, M, L = sample(m, eng, pr, pm, c["T"], c["temp"], g)
        T = R.shape[1]
        ids = torch.cat([pr, R], 1)
        ended = ((R == EOS) * M).sum(1) > 0
        n = M.sum(1).float()
        cm = M * ended[:, None].long() if c["trunc"] else M
        rpf = torch.stack([((R % 3 == 0) * M).sum(1) / n + 0.1 * (R[:, 0] % 4).float(), -(n - 9).abs() / 10][: c["F"]], 1)
        if c["nan"]:
            rpf[2] = float("nan")
            rpf[5, -1] = float("nan")
        with torch.no_grad():
            old = logps(m, ids, T, c["temp"])[0]
            rl = logps(ref, ids, T, c["temp"])[0]
        me = types.SimpleNamespace(
            reward_weights=torch.tensor(opts["reward_weights"]), reward_clip_range=c["clip"], beta=c["beta"], normalize_advantages=c["norm"]
        )
        ns = dict(
            NS,
            self=me,
            device="cpu",
            rewards_per_func=rpf,
            unscorable_mask=torch.isnan(rpf).all(dim=1),
            old_per_token_logps=old,
            ref_per_token_logps=rl,
            completion_mask=cm,
            gather=lambda x: x,
            num_generations=c["G"],
        )
        exec(ADV, ns)
        adv = ns["advantages"]
        scores = (rpf * me.reward_weights).nansum(1)
        scores[torch.isnan(rpf).all(1)] = float("nan")
        gid = torch.arange(rows) // c["G"] + roll * 1000
        perm = [torch.randperm(rr, generator=g) + r * rr for r in range(W)]
        for it in range(c["iters"]):
            for k0 in range(0, SPG, GA):
                step += 1
                opt.zero_grad()
                for r in range(W):
                    for j in range(GA):
                        ix = perm[r][(k0 + j) * PD : (k0 + j + 1) * PD]
                        held = {}

                        def lpe(model, input_ids, am, keep, **kw):
                            held["f"] = sys._getframe(1)
                            lp, e, _ = logps(model, input_ids, keep, c["temp"])
                            return lp, e, None

                        tr = types.SimpleNamespace(
                            _get_per_token_logps_and_entropies=lpe,
                            aux_loss_enabled=False,
                            epsilon_low=0.2,
                            epsilon_high=c["eh"] or 0.2,
                            model=m,
                            _metrics={"train": __import__("collections").defaultdict(list)},
                            accelerator=types.SimpleNamespace(gather=lambda x: x, reduce=lambda x, **k: x),
                        )
                        loss = NS["_compute_loss"](
                            tr,
                            m,
                            dict(
                                prompt_ids=pr[ix],
                                prompt_mask=pm[ix],
                                completion_ids=R[ix],
                                completion_mask=cm[ix],
                                advantages=adv[ix],
                                old_logps=(old * cm).sum(1)[ix],
                            ),
                        )
                        v = held["f"].f_locals
                        lp = v["per_token_logps"]
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / GA / W).backward()
                        t = dict(
                            response_ids=R[ix],
                            response_mask=cm[ix],
                            logp_new=lp,
                            logp_old=old[ix],
                            entropy=v["entropies"],
                            input_ids=ids[ix],
                            attention_mask=v["attention_mask"],
                            advantages=adv[ix],
                            scores=scores[ix],
                            rewards_per_func=rpf[ix],
                            group_id=gid[ix],
                            loss=loss,
                            dlogp=dl,
                        )
                        if c["beta"]:
                            t["logp_ref"] = rl[ix]
                        sc = dict(loss=loss.item())
                        if W == 1:
                            sc.update({k_: x[-1] for k_, x in tr._metrics["train"].items()})
                        o.write(
                            t,
                            dict(
                                schema=2,
                                framework="trl",
                                version="1.16.0",
                                algorithm="rloo",
                                run="s2-" + case,
                                step=step,
                                rank=r,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=GA,
                                options=opts,
                                scalars=sc,
                                scalars_scope="micro_batch",
                            ),
                        )
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("s2", CASES, lambda o, c: (ppo if "_ppo_" in c else rloo)(o, c))
