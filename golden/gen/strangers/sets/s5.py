"""OpenRLHF 0.11.2 by its own functions (PolicyLoss, ValueLoss, compute_approx_kl, RemoteExperienceMaker.compute_advantages_and_returns). Odd seeds lazy (no dlogp / token losses are never there, as the class does not return them)."""

import os
import random, types, itertools
from world_s import *

B_ = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")
U = dict(torch=torch, F=F, KL_IS_WEIGHT_CLIP=10.0)
cut(B_ + "models/utils.py", ["masked_mean", "compute_approx_kl", "compute_reward"], U)
LS = dict(U, __name__="lossmod")
exec(compile(open(B_ + "models/loss.py").read().replace("from .utils import masked_mean", ""), "loss", "exec"), LS)
from typing import *

EM = dict(
    torch=torch, itertools=itertools, compute_reward=U["compute_reward"], logger=types.SimpleNamespace(warning=lambda *a: 0, info=lambda *a: 0), List=list
)
LP = dict(torch=torch, List=list)
cut(B_ + "trainer/ppo_utils/length_penalty.py", ["apply_stop_properly_penalty"], LP)
EM["apply_length_penalties"] = lambda ex, a: LP["apply_stop_properly_penalty"](ex, a.reward.stop) if a.reward.stop is not None else None
cut(
    B_ + "trainer/ppo_utils/experience_maker.py",
    ["compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"],
    EM,
    "RemoteExperienceMaker",
)
N_ = types.SimpleNamespace
EST = [
    "gae",
    "reinforce",
    "rloo",
    "reinforce_baseline",
    "group_norm",
    "dr_grpo",
    "gae",
    "group_norm",
    "rloo",
    "gae",
    "reinforce",
    "reinforce_baseline",
    "group_norm",
]


def draw(i):
    r = random.Random(7200 + i)
    c = dict(
        seed=i,
        est=EST[i],
        ranks=r.choice([1, 2]),
        ga=r.choice([1, 2]),
        mini=r.choice([1, 2]),
        epochs=r.choice([1, 2]),
        G=r.choice([4, 8]),
        T=r.choice([14, 28, 40]),
        agg=r.choice(["token-mean", "seq-mean-token-mean"]),
        plt=r.choice(["ppo", "ppo", "gspo"]),
        dual=r.choice([None, None, 3.0]),
        lev=r.choice(["off", "off", "token", "seq"]),
        mode=r.choice(["mask", "clip"]),
        gate=r.choice(["ratio", "ratio", "binary_kl", "tv"]),
        klc=r.choice([0.01, 0.1]),
        kuse=r.random() < 0.5,
        ke=r.choice(["k1", "k2", "k3"]),
        unb=r.random() < 0.4,
        ent=r.choice([None, 0.0, 0.01]),
        clip=r.choice([(-10, 10), (-0.2, 0.5)]),
        gamma=r.choice([1.0, 0.95]),
        lam=r.choice([1.0, 0.9]),
        eps=r.choice([(0.2, 0.2), (0.1, 0.28)]),
        nostd=r.random() < 0.3,
        stop=r.choice([None, None, 0.5, -0.5]),
        vclip=r.choice([0.5, 0.1, None]),
        holes=r.random() < 0.4,
    )
    if c["lev"] == "seq" or c["gate"] != "ratio":
        c["mode"] = "mask"
    if c["plt"] == "gspo" and c["lev"] != "off":
        c["lev"] = "off"
    if c["est"] not in ("gae", "reinforce"):
        c["gamma"] = 1.0
    return c


CASES = {
    f"h_{i:02d}_{c['est']}_{c['plt']}_{c['agg'].replace('-', '')}_r{c['ranks']}ga{c['ga']}_{c['lev']}"
    + ("_klloss" if c["kuse"] else "_klrew")
    + ("_stop" if c["stop"] is not None else ""): c
    for i in range(13)
    for c in [draw(i)]
}


def run(out, case):
    c = CASES[case]
    o = Out(out, "s5", case)
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(9 + c["seed"])
    W, G = c["ranks"], c["G"] if c["est"] != "gae" else 1
    rows = 32
    m = LM()
    ref = copy.deepcopy(m)
    cr = LM()
    opt = torch.optim.AdamW(list(m.parameters()) + list(cr.parameters()), lr=8e-3, betas=(0.9, 0.95), weight_decay=0.0)
    gae = c["est"] == "gae"
    step = 0
    th = [0.0, 0.0005] if c["gate"] != "ratio" else ([0.98, 1.02] if c["lev"] == "token" else [0.999, 1.001])
    PL = LS["PolicyLoss"](
        clip_eps_low=c["eps"][0],
        clip_eps_high=c["eps"][1],
        dual_clip=c["dual"],
        token_level_loss=c["agg"] == "token-mean",
        policy_loss_type=c["plt"],
        is_correction_level=c["lev"],
        is_correction_mode=c["mode"],
        is_correction_gating=c["gate"],
        is_correction_threshold=th,
    )
    VL = LS["ValueLoss"](c["vclip"])
    args = N_(
        rollout=N_(n_samples_per_prompt=G),
        algo=N_(advantage=N_(estimator=c["est"], gamma=c["gamma"], lambd=c["lam"], no_std_norm=c["nostd"])),
        reward=N_(clip_range=c["clip"], stop=c["stop"]),
    )
    opts = {
        "actor.eps_clip_low_high": list(c["eps"]),
        "actor.dual_clip": c["dual"],
        "actor.policy_loss_type": c["plt"],
        "actor.loss_agg_mode": c["agg"],
        "actor.entropy_coef": c["ent"],
        "critic.value_clip": c["vclip"],
        "algo.advantage.estimator": c["est"],
        "algo.advantage.gamma": c["gamma"],
        "algo.advantage.lambd": c["lam"],
        "algo.advantage.no_std_norm": c["nostd"],
        "algo.advantage.is_correction_level": c["lev"],
        "algo.advantage.is_correction_mode": c["mode"],
        "algo.advantage.is_correction_gating": c["gate"],
        "algo.advantage.is_correction_threshold": th,
        "algo.kl.init_coef": c["klc"],
        "algo.kl.use_loss": c["kuse"],
        "algo.kl.estimator": c["ke"],
        "algo.kl.unbiased_gradient": c["unb"],
        "reward.clip_range": list(c["clip"]),
        "reward.stop_properly_penalty_coef": c["stop"],
        "rollout.n_samples_per_prompt": G,
        "train.max_epochs": c["epochs"],
        "agg.denominator": "global",
        "kl.beta": c["klc"],
        "num_mini_batches": c["mini"],
        "eos_token_id": EOS,
    }
    for roll in range(3 if c["mini"] * c["epochs"] < 3 else 2):
        eng = engine_of(m, c["lev"] != "off")
        pr, pm = mkprompts(rows // G, G, g)
        R, M, L = sample(m, eng, pr, pm, c["T"], 1.0, g)
        T = R.shape[1]
        ids = torch.cat([pr, R], 1)
        am = M.clone()
        if c["holes"]:
            for b in range(0, rows, 3):
                if int(M[b].sum()) > 7:
                    am[b, 2:5] = 0
        ended = ((R == EOS) * M).sum(1) > 0
        raw = ((R % 3 == 0) * M).sum(1) / M.sum(1).float() + 0.2 * (R[:, 0] % 3)
        with torch.no_grad():
            old = logps(m, ids, T)[0]
            rl = logps(ref, ids, T)[0]
            vals = cr(ids, value=True)[1][:, -T - 1 : -1]
        kl = U["compute_approx_kl"](old, rl, kl_estimator=c["ke"]) if not c["kuse"] else torch.zeros_like(old)
        perm = torch.arange(rows)
        ex = [
            N_(
                rewards=raw[i].clone(),
                index=i.tolist(),
                kl=kl[i],
                action_mask=am[i],
                values=vals[i] if gae else None,
                truncated=~ended[i],
                info={},
                advantages=None,
                returns=None,
            )
            for i in perm.split(8)
        ]
        me = N_(strategy=N_(args=args), kl_ctl=N_(value=c["klc"]), advantage_estimator=c["est"])
        me.get_advantages_and_returns = lambda *a: EM["get_advantages_and_returns"](me, *a)
        me.get_cumulative_returns = lambda *a: EM["get_cumulative_returns"](me, *a)
        EM["compute_advantages_and_returns"](me, ex)
        adv = torch.cat([e.advantages for e in ex])
        ret = torch.cat([e.returns for e in ex])
        gid = torch.arange(rows) // G + 1000 * roll
        sid = torch.arange(rows) + 1000 * roll
        per = rows // W
        mb = per // c["mini"]
        for ep in range(c["epochs"]):
            order = torch.cat([torch.randperm(per, generator=g) + r * per for r in range(W)])
            for k in range(c["mini"]):
                step += 1
                opt.zero_grad()
                Is = [order[r * per + k * mb : r * per + (k + 1) * mb] for r in range(W)]
                info = dict(dp_size=W, batch_num_tokens=float(sum(int(am[i].sum()) for i in Is)), global_batch_size=float(sum(len(i) for i in Is)))
                for r in range(W):
                    for j, ix in enumerate(Is[r].split(mb // c["ga"])):
                        lp, ent, _ = logps(m, ids[ix], T)
                        a = am[ix]
                        al, cf, pk, vk, ff = PL(lp, old[ix], adv[ix], action_mask=a, rollout_log_probs=(L * M)[ix], **info)
                        kll = el = k_ = None
                        loss = al * 1.0
                        if c["kuse"]:
                            k_ = U["compute_approx_kl"](lp, rl[ix], log_probs_old=old[ix], kl_estimator=c["ke"], unbiased_gradient=c["unb"])
                            kll = LS["aggregate_loss"](k_, a, **info)
                            loss = loss + kll * c["klc"]
                        if c["ent"] is not None:
                            el = LS["aggregate_loss"](ent, a, **info)
                            if c["ent"]:
                                loss = loss - el * c["ent"]
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        tot = loss
                        t = dict(
                            response_mask=a,
                            logp_new=lp,
                            logp_old=old[ix],
                            logp_ref=rl[ix],
                            advantages=adv[ix],
                            returns=ret[ix],
                            scores=raw[ix],
                            group_id=gid[ix],
                            sample_id=sid[ix],
                            loss=loss,
                            response_ids=R[ix],
                            input_ids=ids[ix],
                        )
                        if c["lev"] != "off":
                            t["logp_gen"] = (L * M)[ix]
                        if gae:
                            vp = cr(ids[ix], value=True)[1][:, -T - 1 : -1]
                            vl = VL(vp, vals[ix], ret[ix], action_mask=a, **info)
                            (dv,) = torch.autograd.grad(vl, vp, retain_graph=True)
                            tot = tot + vl
                            t.update(values=vals[ix], values_new=vp, value_loss=vl, dvalues=dv)
                        else:
                            t.pop("group_id") if False else None
                        if c["seed"] % 2 == 0:
                            t.update(dlogp=dl, kl=k_ if c["kuse"] else kl[ix], pg_loss=al, kl_loss=kll, entropy_loss=el, entropy=ent)
                        elif c["ent"]:
                            t["entropy"] = ent
                        (tot / W).backward()
                        sc = dict(loss=loss.item())
                        if c["seed"] % 2 == 0:
                            sc["ppo_clip_ratio"] = cf.item()
                            sc["ppo_kl"] = pk.item()
                        o.write(
                            t,
                            dict(
                                schema=2,
                                framework="openrlhf",
                                version="0.11.2",
                                algorithm="ppo" if gae else "grpo",
                                run="s5-" + case,
                                step=step,
                                rank=r,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=c["ga"],
                                options=dict(
                                    {k2: v2 for k2, v2 in opts.items() if v2 is not None},
                                    num_items_in_batch=int(info["batch_num_tokens"]),
                                    **({"value.clip": "none"} if c["vclip"] is None and gae else {}),
                                ),
                                scalars=sc,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=False,
                                scores_shaped=False,
                            ),
                        )
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("s5", CASES, run)
