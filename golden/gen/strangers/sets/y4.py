"""y4: right runs of OpenRLHF 0.11.2 by its own functions (models/loss.py, models/utils.py, experience_maker, length_penalty).  python y4.py CASES"""
import itertools
from typing import Any, List, Optional, Tuple, Union
from types import SimpleNamespace as NS
from world_y import *
B0 = "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/"
log = NS(info=lambda *a, **k: 0, warning=lambda *a, **k: 0)
G = dict(torch=torch, nn=nn, F=F, Optional=Optional, Tuple=Tuple, Union=Union, List=List, itertools=itertools, logger=log, KL_IS_WEIGHT_CLIP=10.0, __name__="orlhf", dist=None)
functions(B0 + "models/utils.py", ["masked_mean", "compute_approx_kl", "compute_reward"], G)
functions(B0 + "models/loss.py", ["aggregate_loss", "PolicyLoss", "ValueLoss"], G)
functions(B0 + "trainer/ppo_utils/length_penalty.py", ["apply_overlong_penalty", "apply_stop_properly_penalty", "apply_length_penalties"], G)
exec("np = __import__('numpy')", G); functions(B0 + "trainer/ppo_utils/kl_controller.py", None, G)
M = dict(G); functions(B0 + "trainer/ppo_utils/experience_maker.py", ["compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"], M, "RemoteExperienceMaker")


def run(cases, name, seed, over, little, text):
    rng, npr, gen = random.Random(seed), np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    o = {"estimator": "reinforce_baseline", "gamma": 1.0, "lambd": 1.0, "no_std_norm": False, "is_correction_level": "off", "is_correction_mode": "mask", "is_correction_gating": "ratio", "is_correction_threshold": [0.5, 5.0],
         "init_coef": 0.01, "kl_estimator": "k1", "use_loss": False, "unbiased_gradient": False, "eps_clip": 0.2, "low_high": None, "dual_clip": None, "loss_agg_mode": "token-mean", "policy_loss_type": "ppo", "entropy_coef": None,
         "value_clip": 0.5, "clip_range": (-10.0, 10.0), "overlong_buffer_len": None, "overlong_penalty_factor": 1.0, "stop_coef": None, "n": 4, "rollout_batch": 8, "train_batch": 16, "micro": 8, "max_epochs": 1, "T": 20, "temperature": 1.0,
         "reward": "binary", "rollouts": 3, "dp": 1, "lr": 8e-3, "eos_bias": 1.2, "noise": 0.01, "shaped": False, "dynamic": False, "turns": False, **over}
    assert o["dual_clip"] is None or o["dual_clip"] > 1
    if o["estimator"] in ("rloo", "reinforce_baseline", "group_norm", "dr_grpo"): assert o["n"] > 1
    th = list(o["is_correction_threshold"]); th = [0.0] + th if len(th) == 1 else th
    W, n, N = o["dp"], o["n"], o["n"] * o["rollout_batch"]
    gas = o["train_batch"] // (o["micro"] * W)
    lo, hi = o["low_high"] or (o["eps_clip"], o["eps_clip"])
    args = NS(algo=NS(advantage=NS(**{k: o[k] for k in ("estimator", "gamma", "lambd", "no_std_norm")}), kl=NS(use_loss=o["use_loss"])), reward=NS(clip_range=o["clip_range"], overlong_buffer_len=o["overlong_buffer_len"],
              overlong_penalty_factor=o["overlong_penalty_factor"], stop_properly_penalty_coef=o["stop_coef"]), rollout=NS(n_samples_per_prompt=n, max_new_tokens=o["T"]), data=NS(max_len=o["T"]))
    ploss = G["PolicyLoss"](lo, hi, o["dual_clip"], o["loss_agg_mode"] == "token-mean", o["policy_loss_type"], o["is_correction_level"], o["is_correction_mode"], o["is_correction_gating"], th)
    vloss = G["ValueLoss"](o["value_clip"])
    model, val = policy(seed, o["eos_bias"]), critic(seed)
    ref = clone(model, 0.05, seed)
    opt = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(0.9, 0.95), weight_decay=0.0); vopt = torch.optim.AdamW(val.parameters(), lr=o["lr"], weight_decay=0.0)
    gae = o["estimator"] == "gae"
    opts = {"algo.advantage.estimator": o["estimator"], "algo.advantage.gamma": o["gamma"], "algo.advantage.lambd": o["lambd"], "algo.advantage.no_std_norm": o["no_std_norm"], "algo.advantage.is_correction_level": o["is_correction_level"],
            "algo.kl.init_coef": o["init_coef"], "algo.kl.estimator": o["kl_estimator"], "algo.kl.use_loss": o["use_loss"], "algo.kl.unbiased_gradient": o["unbiased_gradient"], "actor.eps_clip": o["eps_clip"], "actor.eps_clip_low_high": [lo, hi],
            "actor.dual_clip": o["dual_clip"], "actor.loss_agg_mode": o["loss_agg_mode"], "actor.policy_loss_type": o["policy_loss_type"], "actor.entropy_coef": o["entropy_coef"], "critic.value_clip": o["value_clip"],
            "reward.clip_range": list(o["clip_range"]), "reward.overlong_buffer_len": o["overlong_buffer_len"], "reward.overlong_penalty_factor": o["overlong_penalty_factor"], "reward.stop_properly_penalty_coef": o["stop_coef"],
            "rollout.n_samples_per_prompt": n, "rollout.temperature": o["temperature"], "rollout.max_new_tokens": o["T"], "train.max_epochs": o["max_epochs"], "train.batch_size": o["train_batch"], "train.micro_batch_size": o["micro"]}
    if o["is_correction_level"] != "off": opts |= {f"algo.advantage.is_correction_{k}": o[f"is_correction_{k}"] for k in ("mode", "gating")} | {"algo.advantage.is_correction_threshold": th}
    opts |= {"agg.denominator": "global", "num_mini_batches": N // o["train_batch"], "eos_token_id": EOS}
    c = Case(cases, name, "y4", text, meta=dict(framework="openrlhf", version="0.11.2", algorithm="ppo" if gae else "grpo", token_loss_includes_kl=False) | (dict(scores_shaped=True) if o["shaped"] else {}), options=opts, many=not little)
    kl_ctl, step = G["FixedKLController"](o["init_coef"]), 1
    for rollout in range(o["rollouts"]):
        P = prompts_of(rng, o["rollout_batch"]).repeat_interleave(n, 0)
        resp, full, lpg, ended = sample(clone(model, o["noise"], seed + rollout, bf16=True), P, o["T"], o["temperature"], gen)
        mask = full.clone()
        if o["turns"]:
            for i in range(N):
                k = int(full[i].sum())
                if k > 7: a = rng.randrange(2, k - 4); mask[i, a:a + rng.randrange(1, 3)] = False
        raw = rule_reward(o["reward"], P, resp, full, ended, o["T"])
        with torch.no_grad():
            lp0 = score(model, P, resp, o["temperature"])[0]; rl = score(ref, P, resp, o["temperature"])[0]
            v = values_of(val, P, resp)
        use_ref = o["init_coef"] > 0
        kl = G["compute_approx_kl"](lp0, rl, kl_estimator=o["kl_estimator"]) if use_ref and not o["use_loss"] else torch.zeros_like(lp0)
        kl0 = kl.clone()
        e = NS(rewards=raw.clone(), action_mask=mask, values=v, kl=kl, index=list(range(N)), info={"reward": raw.clone()}, response_length=full.sum(1), truncated=~ended, advantages=None, returns=None)
        S = NS(strategy=NS(args=args), advantage_estimator=o["estimator"], kl_ctl=kl_ctl)
        S.get_advantages_and_returns = lambda *a: M["get_advantages_and_returns"](S, *a)
        S.get_cumulative_returns = lambda *a: M["get_cumulative_returns"](S, *a)
        tok = {}
        real = G["compute_reward"]
        def spy(r, *a, **k): tok["r"] = real(r, *a, **k); return tok["r"]
        M["compute_reward"] = spy
        with torch.no_grad(): M["compute_advantages_and_returns"](S, [e])
        sc = raw if not o["shaped"] else e.rewards.clamp(*o["clip_range"])
        gid = torch.arange(N) // n + rollout * 1000
        for epoch in range(o["max_epochs"]):
            order = shuffled(npr, N) if W == 1 else torch.cat([shuffled(npr, N // W) + r * (N // W) for r in range(W)])
            per = order.reshape(W, -1)
            for s0 in range(0, N // W, o["train_batch"] // W):
                window = per[:, s0:s0 + o["train_batch"] // W]
                tokens, samples = float(mask[window.reshape(-1)].sum()), float((mask[window.reshape(-1)].sum(1) > 0).sum())
                for r in range(W):
                    parts = window[r].split(o["micro"]) if not o["dynamic"] else window[r].split([3, 5] + [window.shape[1] - 8])
                    G_ = gas if not o["dynamic"] else 1
                    for mi, ix in enumerate(parts):
                        info = dict(dp_size=W, batch_num_tokens=torch.tensor(tokens / G_), global_batch_size=torch.tensor(samples / G_))
                        lp, ent, _ = score(model, P[ix], resp[ix], o["temperature"])
                        am = mask[ix]
                        seen = {}
                        agg = G["aggregate_loss"]
                        def watch(x, *a, **k): seen.setdefault("t", x); return agg(x, *a, **k)
                        ploss.forward.__globals__["aggregate_loss"] = watch
                        aloss, clipr, ppokl, vkl, filt = ploss(lp, lp0[ix], e.advantages[ix], action_mask=am, rollout_log_probs=lpg[ix], **info)
                        ploss.forward.__globals__["aggregate_loss"] = agg
                        klt, klloss = None, 0
                        if o["use_loss"]:
                            klt = G["compute_approx_kl"](lp, rl[ix], log_probs_old=lp0[ix], kl_estimator=o["kl_estimator"], unbiased_gradient=o["unbiased_gradient"]) if o["init_coef"] > 0 else torch.zeros_like(lp)
                            klloss = agg(klt, am, **info)
                        loss = aloss + klloss * kl_ctl.value
                        entl = None
                        if o["entropy_coef"] is not None:
                            entl = agg(ent, am, **info)
                            if o["entropy_coef"] != 0: loss = loss - entl * o["entropy_coef"]
                        (loss / G_ / W).backward(retain_graph=True)
                        t = dict(response_mask=am, logp_new=lp, logp_old=lp0[ix], advantages=e.advantages[ix], scores=sc[ix], loss=loss / G_, group_id=gid[ix])
                        if use_ref: t["logp_ref"] = rl[ix]
                        if o["is_correction_level"] != "off": t["logp_gen"] = lpg[ix]
                        if o["stop_coef"] is not None: t["response_ids"] = resp[ix]
                        scal = None
                        if gae:
                            vn = values_of(val, P[ix], resp[ix])
                            vl = vloss(vn, v[ix], e.returns[ix], action_mask=am, **info)
                            (vl / G_ / W).backward(retain_graph=True)
                            t |= dict(values=v[ix], returns=e.returns[ix])
                            if not little: t |= dict(values_new=vn, value_loss=vl / G_, dvalues=grads(vl / G_, v=vn)["v"])
                        if not little:
                            t |= dict(dlogp=grads(loss / G_, a=lp)["a"], returns=e.returns[ix], token_rewards=tok["r"][ix], response_ids=resp[ix], pg_loss=aloss / G_, token_loss=seen["t"].expand_as(lp), logp_gen=lpg[ix], entropy=ent,
                                      entropy_loss=None if entl is None else entl / G_, kl=klt if o["use_loss"] else (kl0[ix] if use_ref else None), kl_loss=klloss / G_ if o["use_loss"] else None)
                            if W == 1: scal = dict(ppo_clip_ratio=clipr, ppo_kl=ppokl)
                        c.dump(step, t, mi, len(parts), r, W, scal, dict(num_items_in_batch=int(tokens)), scalars_scope="micro_batch")
                for op, m in ((opt, model), (vopt, val)):
                    nn.utils.clip_grad_norm_(m.parameters(), 1.0); op.step(); op.zero_grad()
                step += 1
    return c


RECIPES = [("rfppbase", dict(use_loss=True, kl_estimator="k2", init_coef=1e-5)), ("ppo", dict(estimator="gae", n=1, rollout_batch=16, lambd=0.95, reward="rm")), ("grpo", dict(estimator="group_norm", use_loss=True, kl_estimator="k3", init_coef=1e-3)),
    ("reinforcepp", dict(estimator="reinforce", n=1, rollout_batch=32, init_coef=0.01)), ("rloo", dict(estimator="rloo", init_coef=1e-2)), ("drgrpo", dict(estimator="dr_grpo", init_coef=0.0)), ("dapo", dict(estimator="group_norm", init_coef=0.0, low_high=(0.2, 0.3), overlong_buffer_len=8, dual_clip=10.0)),
    ("prorl", dict(use_loss=True, kl_estimator="k2", init_coef=1e-4, stop_coef=0.0, low_high=(0.2, 0.27), reward="acc_format")), ("tis", dict(is_correction_level="token", is_correction_mode="clip", is_correction_threshold=[0.5, 2.0], noise=0.03)),
    ("icepop", dict(is_correction_level="token", noise=0.03, use_loss=True, kl_estimator="k3", init_coef=1e-3)), ("seqmask", dict(is_correction_level="seq", is_correction_threshold=[0.99, 1.01], noise=0.03)),
    ("flash", dict(estimator="flash_reinforce", n=1, rollout_batch=32, is_correction_level="seq", is_correction_gating="binary_kl", is_correction_threshold=[0.02], init_coef=0.0, noise=0.03)), ("gspo", dict(policy_loss_type="gspo", estimator="group_norm", low_high=(3e-4, 4e-4), init_coef=0.0)),
    ("unbiased", dict(use_loss=True, unbiased_gradient=True, init_coef=0.01, max_epochs=2)), ("entropy", dict(entropy_coef=0.01, init_coef=0.0)), ("dual", dict(dual_clip=3.0, estimator="gae", n=2, rollout_batch=8, value_clip=0.2, lambd=0.95)),
    ("seqmean", dict(loss_agg_mode="seq-mean-token-mean", estimator="group_norm", init_coef=0.0)), ("nostd", dict(no_std_norm=True)), ("stopneg", dict(stop_coef=-0.5, eos_bias=0.0, init_coef=0.0)), ("tv", dict(is_correction_level="token", is_correction_gating="tv", is_correction_threshold=[0.01], noise=0.03))]
CHANGES = [dict(micro=4), dict(dp=2), dict(train_batch=32), dict(temperature=0.8), dict(reward="share"), dict(reward="acc_format"), dict(low_high=(0.2, 0.28)), dict(n=8, rollout_batch=4), dict(max_epochs=2), dict(entropy_coef=0.0), dict(clip_range=(-1.0, 1.0)), dict(lr=2e-2), dict(init_coef=0.1), dict(turns=True), dict(shaped=True)]
ODD = [dict(max_epochs=4), dict(reward="constant"), dict(reward="huge", clip_range=(-1000.0, 1000.0)), dict(T=1), dict(lr=0.0), dict(eos_bias=-6.0), dict(dynamic=True), dict(gamma=0.97), dict(overlong_buffer_len=10, overlong_penalty_factor=0.5), dict(loss_agg_mode="seq-mean-token-mean", use_loss=True, kl_estimator="k1")]


def main(cases):
    rng = random.Random(20261204)
    for i, (name, over) in enumerate(RECIPES):
        o, notes = dict(over), [name]
        for ch in rng.sample(CHANGES, rng.randrange(1, 3)) + (rng.sample(ODD, 2) if i % 3 == 2 else []):
            if any(k in over for k in ch): continue
            if "shaped" in ch and o.get("estimator", "reinforce_baseline") not in ("gae", "reinforce"): continue
            if o.get("dynamic") and ("micro" in ch or "train_batch" in ch): continue
            if "gamma" in ch and o.get("estimator", "reinforce_baseline") not in ("gae", "reinforce"): continue
            if "overlong_buffer_len" in ch and o.get("T", 20) < 10 or ch.get("T") == 1 and "overlong_buffer_len" in o: continue
            if "clip_range" in o and "clip_range" in ch: continue
            o.update(ch); notes.append(",".join(f"{k}={v}" for k, v in ch.items()))
        c = run(cases, f"y4-{i:02d}_{name}", 7400 + i, o, i % 3 == 1, "; ".join(notes))
        print(c.name, c.n, "; ".join(notes), flush=True)


if __name__ == "__main__": main(sys.argv[1])
