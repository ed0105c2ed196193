"""OpenRLHF 0.11.2's own functions (losses, KL, compute_reward, advantages of the experience maker); the hook dumps what OpenRLHF's training_step holds."""

import os
from world_q import *
import ast, itertools, types
from typing import *

S = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")


def load(path, ns, names):
    tree = ast.parse(open(path).read())
    body = []
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names:
            body.append(n)
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") in names:
            body.insert(0, n)
    tree.body = body
    exec(compile(tree, path, "exec"), ns)
    return ns


ns = dict(
    torch=torch,
    nn=nn,
    F=F,
    Optional=Optional,
    Tuple=Tuple,
    Union=Union,
    List=List,
    itertools=itertools,
    Experience=object,
    logger=types.SimpleNamespace(info=lambda *a: None, warning=lambda *a: None),
)
load(S + "models/utils.py", ns, ["masked_mean", "compute_approx_kl", "compute_reward", "KL_IS_WEIGHT_CLIP"])
load(S + "models/loss.py", ns, ["aggregate_loss", "PolicyLoss", "ValueLoss"])
load(S + "trainer/ppo_utils/length_penalty.py", ns, ["apply_overlong_penalty", "apply_stop_properly_penalty"])
ns["apply_length_penalties"] = lambda exps, args: args.pen(exps)
load(S + "trainer/ppo_utils/experience_maker.py", ns, ["compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"])
O = types.SimpleNamespace(**ns)
NS = types.SimpleNamespace


def table(seed):
    r = random.Random(seed * 31 + 5)
    c = dict(seed=seed + 500)
    c["est"] = [
        "gae",
        "group_norm",
        "rloo",
        "dr_grpo",
        "reinforce_baseline",
        "reinforce",
        "gae",
        "group_norm",
        "rloo",
        "gae",
        "group_norm",
        "reinforce",
        "dr_grpo",
        "gae",
    ][seed % 14]
    c["type"] = r.choice(["ppo", "ppo", "gspo"]) if c["est"] != "gae" else "ppo"
    c["use_loss"] = r.random() < 0.5
    c["kl_est"] = r.choice(["k2", "k3", "k1"] if c["use_loss"] else ["k1", "k1", "k3", "k2"])
    c["unb"] = c["use_loss"] and r.random() < 0.5
    c["beta"] = r.choice([0.01, 0.1, 1e-3])
    c["low"], c["high"] = r.choice([(0.2, 0.2), (0.2, 0.27), (0.05, 0.05)]) if c["type"] == "ppo" else (3e-3, 4e-3)
    c["dual"] = r.choice([None, None, 1.3, 3.0])
    c["agg"] = r.choice(["token-mean", "token-mean", "seq-mean-token-mean"])
    c["isl"] = r.choice(["off", "token", "seq", "off", "token"])
    c["gate"] = r.choice(["ratio", "ratio", "binary_kl", "tv"])
    c["ism"] = r.choice(["mask", "clip"]) if c["isl"] == "token" and c["gate"] == "ratio" else "mask"
    c["thr"] = r.choice([[0.5, 5.0], [0.97, 1.02]]) if c["gate"] == "ratio" else [0.0, r.choice([1e-4, 1e-3, 0.05])]
    c["ent"] = r.choice([None, 0.0, 0.01])
    c["gamma"], c["lam"] = r.choice([(1.0, 1.0), (0.99, 0.95), (1.0, 0.95)]) if c["est"] in ("gae", "reinforce") else (1.0, 1.0)
    c["clip"] = r.choice([(-10, 10), (-10, 10), (-0.3, 0.3)])
    c["nostd"] = r.random() < 0.3
    c["n"] = r.choice([4, 8])
    c["groups"] = r.choice([4, 8])
    c["ranks"] = r.choice([1, 2])
    c["epochs"] = r.choice([1, 2])
    c["mini"] = r.choice([2, 4])
    c["micro"] = r.choice([1, 2])
    c["T"] = r.choice([20, 36, 64])
    c["temp"] = r.choice([1.0, 0.8, 1.2])
    c["vclip"] = r.choice([0.5, 0.1, 0.2])
    c["holes"] = r.choice([0, 0, 0.05])
    c["lr"] = r.choice([4e-3, 1e-2])
    c["lowp"] = r.random() < 0.3
    c["binary"] = r.random() < 0.3
    c["stop"] = r.choice([None, None, 0.5, 0.0]) if c["est"] != "gae" else r.choice([None, 0.5])
    c["tables"] = r.random() < 0.4
    return c


def run(folder, case, c):
    gen = torch.Generator().manual_seed(c["seed"])
    R, G, T = c["ranks"], c["n"], c["T"]
    m = LM()
    m.lowp = c["lowp"]
    ref = copy.deepcopy(m)
    critic = LM(value=True)
    gae = c["est"] == "gae"
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0.0)
    copt = torch.optim.AdamW(critic.parameters(), lr=1e-2, betas=(0.9, 0.95))
    val = lambda full, att: critic.v(critic.hidden(full, att))[:, -T - 1 : -1].squeeze(-1)
    pl = O.PolicyLoss(c["low"], c["high"], c["dual"], c["agg"] == "token-mean", c["type"], c["isl"], c["ism"], c["gate"], c["thr"])
    vlf = O.ValueLoss(c["vclip"])
    opts = {
        "actor.eps_clip_low_high": [c["low"], c["high"]],
        "actor.dual_clip": c["dual"],
        "actor.policy_loss_type": c["type"],
        "actor.loss_agg_mode": c["agg"],
        "algo.advantage.is_correction_level": c["isl"],
        "algo.advantage.is_correction_mode": c["ism"],
        "algo.advantage.is_correction_gating": c["gate"],
        "algo.advantage.is_correction_threshold": c["thr"],
        "algo.advantage.estimator": c["est"],
        "algo.advantage.gamma": c["gamma"],
        "algo.advantage.lambd": c["lam"],
        "algo.advantage.no_std_norm": c["nostd"],
        "algo.kl.use_loss": c["use_loss"],
        "algo.kl.estimator": c["kl_est"],
        "algo.kl.unbiased_gradient": c["unb"],
        "algo.kl.init_coef": c["beta"],
        "kl.beta": c["beta"],
        "actor.entropy_coef": c["ent"],
        "reward.clip_range": list(c["clip"]),
        "critic.value_clip": c["vclip"],
        "rollout.n_samples_per_prompt": G,
        "rollout.temperature": c["temp"],
        "train.max_epochs": c["epochs"],
        "num_mini_batches": c["mini"],
        "agg.denominator": "global",
        "eos_token_id": EOS,
        "reward.stop_properly_penalty_coef": c["stop"],
        "rollout.max_new_tokens": T,
        "dropout": "off",
    }
    step = sid = 0
    for roll in range(2):
        N = c["groups"] * G
        pi, pa = prompts(c["groups"], 5, gen)
        pi, pa = pi.repeat_interleave(G, 0), pa.repeat_interleave(G, 0)
        eng = engine_of(m)
        ids, am, tool, glp = sample(eng, pi, pa, T, c["temp"], gen, holes=c["holes"])
        mask = am * tool if c["holes"] else am
        full, att = torch.cat([pi, ids], 1), torch.cat([pa, am], 1)
        trunc = ~((ids == EOS) & am.bool()).any(1)
        with torch.no_grad():
            old = lp_ent(m, full, att, T, c["temp"])[0]
            refl = lp_ent(ref, full, att, T, c["temp"])[0]
            values = val(full, att) if gae else None
            raw = rewards(ids, am, gen, 1, c["binary"]).sum(1)
            kl = O.compute_approx_kl(old, refl, kl_estimator=c["kl_est"]) if not c["use_loss"] else torch.zeros_like(old)
        order = torch.randperm(N, generator=gen) if c["tables"] else torch.arange(N)
        h = N // 2
        exps = [
            NS(
                index=order[k * h : (k + 1) * h].tolist(),
                rewards=raw[order[k * h : (k + 1) * h]].clone(),
                kl=kl[order[k * h : (k + 1) * h]],
                action_mask=mask[order[k * h : (k + 1) * h]],
                values=values[order[k * h : (k + 1) * h]] if gae else None,
                info={},
                tr=trunc[order[k * h : (k + 1) * h]],
            )
            for k in range(2)
        ]

        def pen(es):
            if c["stop"] is None:
                return
            for e in es:
                e.rewards = torch.where(e.tr, e.rewards * c["stop"], e.rewards)

        args = NS(
            rollout=NS(n_samples_per_prompt=G),
            algo=NS(advantage=NS(estimator=c["est"], gamma=c["gamma"], lambd=c["lam"], no_std_norm=c["nostd"])),
            reward=NS(clip_range=c["clip"]),
            pen=pen,
        )
        self_ = NS(strategy=NS(args=args), kl_ctl=NS(value=c["beta"]), advantage_estimator=c["est"])
        self_.get_advantages_and_returns = lambda *a: O.get_advantages_and_returns(self_, *a)
        self_.get_cumulative_returns = lambda *a: O.get_cumulative_returns(self_, *a)
        O.compute_advantages_and_returns(self_, exps)
        cat = lambda k: torch.cat([getattr(e, k) for e in exps])
        inv = torch.empty(N, dtype=torch.long)
        inv[order] = torch.arange(N)
        X = dict(
            full=full,
            att=att,
            ids=ids,
            mask=mask,
            adv=cat("advantages")[inv],
            ret=cat("returns")[inv],
            old=old,
            ref=refl,
            gen=glp,
            values=values,
            scores=cat("rewards")[inv],
            group=torch.arange(N) // G + 1000 * roll,
            sid=torch.arange(N) + sid,
        )
        sid += N
        perm = torch.randperm(N, generator=gen)
        per = N // R
        ranks = [{k: None if v is None else v[perm[r * per : (r + 1) * per]] for k, v in X.items()} for r in range(R)]
        mbz = per // c["mini"]
        sz = mbz // c["micro"]
        for ep in range(c["epochs"]):
            pm = [torch.randperm(per, generator=gen) for _ in range(R)]
            for b in range(c["mini"]):
                mb = [{k: None if v is None else v[p[b * mbz : (b + 1) * mbz]] for k, v in x.items()} for x, p in zip(ranks, pm)]
                ntok = float(sum(int(x["mask"].sum()) for x in mb))
                gbs = float(sum(int((x["mask"].sum(1) > 0).sum()) for x in mb))
                info = dict(dp_size=R, batch_num_tokens=ntok, global_batch_size=gbs)
                files = []
                for j in range(c["micro"]):
                    for r in range(R):
                        x = {k: None if v is None else v[j * sz : (j + 1) * sz] for k, v in mb[r].items()}
                        k_ = x["mask"]
                        lp, ent = lp_ent(m, x["full"], x["att"], T, c["temp"])
                        al, cr, pk, vk, fr = pl(lp, x["old"], x["adv"], action_mask=k_, rollout_log_probs=x["gen"], **info)
                        loss = al
                        t = dict(
                            response_mask=k_,
                            response_ids=x["ids"],
                            input_ids=x["full"],
                            attention_mask=x["att"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_ref=x["ref"],
                            logp_gen=x["gen"],
                            values=x["values"],
                            returns=x["ret"] if gae else None,
                            advantages=x["adv"],
                            scores=x["scores"],
                            group_id=x["group"],
                            sample_id=x["sid"],
                            pg_loss=al,
                        )
                        if c["use_loss"]:
                            kk = O.compute_approx_kl(lp, x["ref"], log_probs_old=x["old"], kl_estimator=c["kl_est"], unbiased_gradient=c["unb"])
                            kll = O.aggregate_loss(kk, k_, **info)
                            loss = loss + kll * c["beta"]
                            t |= dict(kl=kk, kl_loss=kll)
                        if c["ent"] is not None:
                            el = O.aggregate_loss(ent, k_, **info)
                            t |= dict(entropy=ent, entropy_loss=el)
                            if c["ent"] != 0:
                                loss = loss - el * c["ent"]
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / R).backward()
                        t |= dict(loss=loss, dlogp=dl)
                        if gae:
                            v = val(x["full"], x["att"])
                            vl = vlf(v, x["values"], x["ret"], action_mask=k_, **info)
                            (dv,) = torch.autograd.grad(vl, v, retain_graph=True)
                            (vl / R).backward()
                            t |= dict(values_new=v, value_loss=vl, dvalues=dv)
                        sc = dict(ppo_clip_ratio=fin(cr.item()), ppo_kl=fin(pk.item()), policy_loss=fin(al.item()))
                        meta = dict(
                            schema=2,
                            framework="openrlhf",
                            version="0.11.2",
                            algorithm="ppo" if gae else "grpo",
                            run=case,
                            step=step + 1,
                            rank=r,
                            world_size=R,
                            micro_batch=j,
                            micro_batches=c["micro"],
                            options=opts | dict(num_items_in_batch=int(ntok)),
                            scalars=sc,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                            scores_shaped=True,
                        )
                        if c["stop"] is None:
                            meta.pop("scores_shaped")
                        files.append((f"step_{step + 1:06d}_rank_{r}_mb_{j}", meta, t))
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                if gae:
                    torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                    copt.step()
                    copt.zero_grad()
                for f in files:
                    dump(folder, *f)
                step += 1


names = {}
for s in range(14):
    c = table(s)
    names[f"h_{s:02d}_{c['est']}_{c['type']}_{c['isl']}"] = c
if __name__ == "__main__":
    main("q5", names, run)
