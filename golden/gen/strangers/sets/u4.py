"""OpenRLHF 0.11.2 by its own functions: PolicyLoss, ValueLoss, aggregate_loss, compute_approx_kl, the experience maker, _optimizer_step_loss_norm; right runs."""
import sys, types, itertools; from typing import *; from world_u import *
NAME = "u4"
m_ = types.ModuleType("deepspeed"); sys.modules["deepspeed"] = m_
import torch.distributed as dist, torch.nn.functional as F
log = types.SimpleNamespace(info=lambda *a: None, warning=lambda *a: None)
ns = dict(torch=torch, dist=dist, nn=nn, F=F, Optional=Optional, Tuple=Tuple, Union=Union, List=List, Dict=Dict, itertools=itertools, logger=log, os=os, Experience=object)
UT, LO, LU, LP, EM, KC = [source(ORL + p) for p in ("/models/utils.py", "/models/loss.py", "/utils/loss_utils.py", "/trainer/ppo_utils/length_penalty.py", "/trainer/ppo_utils/experience_maker.py", "/trainer/ppo_utils/kl_controller.py")]
ns["KL_IS_WEIGHT_CLIP"] = 10.0; ns["np"] = np
for f in ("compute_approx_kl", "compute_reward", "masked_mean"): exec(get_def(UT, f), ns)
for f in ("aggregate_loss", "PolicyLoss", "ValueLoss"): exec(get_def(LO, f), ns)
exec(get_def(LU, "_optimizer_step_loss_norm"), ns)
for f in ("apply_overlong_penalty", "apply_stop_properly_penalty", "apply_length_penalties"): exec(get_def(LP, f), ns)
for f in ("AdaptiveKLController", "FixedKLController"): exec(get_def(KC, f), ns)
EMC = next(n.name for n in ast.parse(EM).body if isinstance(n, ast.ClassDef) and any(getattr(b, "name", "") == "compute_advantages_and_returns" for b in n.body))
for f in ("compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"): exec(get_def(EM, f, EMC), ns)
SN = types.SimpleNamespace
EST = ["gae", "group_norm", "rloo", "reinforce_baseline", "dr_grpo", "gae", "reinforce", "flash_reinforce", "gae", "group_norm", "gae", "rloo", "reinforce", "gae", "group_norm", "reinforce_baseline", "gae", "flash_reinforce", "dr_grpo", "gae"]
def main(cases):
    for j, (i, off) in enumerate([(i, 0) for i in range(20)] + [(0, 300), (19, 300)]):
        r = random.Random(4000 + i + off); torch.manual_seed(400 + i + off); little = i % 3 == 2; est = EST[i]
        G = r.choice([2, 4, 8]) if est in ("group_norm", "rloo", "reinforce_baseline", "dr_grpo") else r.choice([1, 2]); T0 = r.choice([12, 16, 24]); temp = r.choice([1.0, .8, 1.2])
        eps = r.choice([(.2, .2), (.2, .28), (.1, .3)]); dual = r.choice([None, None, 1.5, 3.0]); ltype = "gspo" if r.random() < .2 else "ppo"; agg = r.choice(["token-mean", "token-mean", "seq-mean-token-mean"])
        level = r.choice(["off", "off", "token", "seq"]); gating = r.choice(["ratio", "ratio", "binary_kl", "tv"]); cmode = r.choice(["mask", "clip"]) if level == "token" and gating == "ratio" else "mask"
        thr = {"ratio": [.5, 5.0] if r.random() < .5 else [.97, 1.05], "binary_kl": [0.0, .002], "tv": [0.0, .01]}[gating]
        kl_use = r.choice([0, 1, 2]); kest = r.choice(["k1", "k2", "k3"]); unb = r.random() < .4; klc = r.choice([.01, .05]) if kl_use else 0.0; adaptive = kl_use == 1 and r.random() < .3
        clipr = r.choice([(-10.0, 10.0), (-10.0, 10.0), (-.3, .3)]); stop = r.choice([None, None, 0.5, -0.5, 0.0]); overlong = r.random() < .15; shaped = stop is not None and r.random() < .5
        if shaped or overlong and stop is None: clipr = (-10.0, 10.0)
        gamma = r.choice([1.0, .99]) if est in ("gae", "reinforce") else 1.0; lam = r.choice([1.0, .95]); nostd = r.random() < .25; ent_c = r.choice([None, None, .01, 0.0]); epochs = r.choice([1, 2]); world = r.choice([1, 1, 2])
        if little and i % 2: ent_c = None
        vclip = r.choice([.2, .5]); gas = r.choice([1, 2]); dynamic = r.random() < .25; nmini = r.choice([1, 2]); tools = r.random() < .3; per = r.choice([4, 8]); bf = i == 13
        N = per * gas * nmini * world
        while N % G: N += per * gas * nmini * world
        nmini = N // (per * gas * world)
        opts = {"actor.eps_clip": .2, "actor.eps_clip_low_high": list(eps), "actor.dual_clip": dual, "actor.policy_loss_type": ltype, "actor.loss_agg_mode": agg, "actor.entropy_coef": ent_c, "critic.value_clip": vclip, "algo.advantage.estimator": est, "algo.advantage.gamma": gamma, "algo.advantage.lambd": lam,
                "algo.advantage.no_std_norm": nostd, "algo.advantage.is_correction_level": level, "algo.advantage.is_correction_mode": cmode, "algo.advantage.is_correction_gating": gating, "algo.advantage.is_correction_threshold": thr, "algo.kl.use_loss": kl_use == 2, "algo.kl.estimator": kest, "algo.kl.init_coef": klc,
                "algo.kl.unbiased_gradient": unb and kl_use == 2, "algo.kl.target": .1 if adaptive else None, "algo.kl.horizon": 100, "reward.clip_range": list(clipr), "reward.stop_properly_penalty_coef": stop, "reward.overlong_buffer_len": None, "rollout.n_samples_per_prompt": G, "rollout.temperature": temp, "rollout.max_new_tokens": T0, "train.max_epochs": epochs, "train.dynamic_batch_enable": dynamic}
        args = SN(algo=SN(advantage=SN(estimator=est, gamma=gamma, lambd=lam, no_std_norm=nostd), kl=SN()), rollout=SN(n_samples_per_prompt=G, max_new_tokens=T0), reward=SN(clip_range=clipr, stop_properly_penalty_coef=stop, overlong_buffer_len=None), data=SN(max_len=T0))
        if overlong and stop is None: args.reward.overlong_buffer_len, args.reward.overlong_penalty_factor = 4, 1.0
        ctl = ns["AdaptiveKLController"](klc, .1, 100) if adaptive else ns["FixedKLController"](klc)
        maker = SN(strategy=SN(args=args), advantage_estimator=est, kl_ctl=ctl)
        for f in ("get_advantages_and_returns", "get_cumulative_returns"): setattr(maker, f, types.MethodType(ns[f], maker))
        ploss = ns["PolicyLoss"](eps[0], eps[1], dual, agg == "token-mean", ltype, level, cmode, gating, thr); vloss = ns["ValueLoss"](vclip)
        model = LM(); ref = copy.deepcopy(model)
        with torch.no_grad():
            for p in ref.parameters(): p.add_(torch.randn_like(p) * .02)
        critic = LM(); opt = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(.9, .95), weight_decay=0.0); copt = torch.optim.AdamW(critic.parameters(), lr=5e-3, betas=(.9, .95), weight_decay=0.0)
        run = Run(cases, NAME, f"c{j:02d}_{est}", f"right: OpenRLHF 0.11.2 {est} G {G}, {ltype} {agg} dual {dual}, is {level} {cmode} {gating}, kl {['none', 'reward', 'loss'][kl_use]} {kest} unbiased {unb}, stop {stop}, gas {gas}, dynamic {dynamic}, {world} ranks")
        Fw = lambda m, pr, ids: response(m, pr, ids, temp); step = 0
        for roll in range(2):
            pr = prompts_of(r, N // G).repeat_interleave(G, 0); eng = engine_of(model, r, "noise" if level != "off" else "bf16")
            ids, am, own, gen, trunc = sample(eng, pr, T0, temp, obs=.12 if tools else 0)
            with torch.no_grad(): old, _, _, _ = Fw(model, pr, ids); refl = Fw(ref, pr, ids)[0]; vals = Fw(critic, pr, ids)[2]
            raw_sc = rule(pr, ids, own, [0, 2, 4, 0][i % 4])
            kl = ns["compute_approx_kl"](old, refl, kl_estimator=kest) if kl_use == 1 else torch.zeros_like(old)
            exps = []
            for b in range(0, N, 4):
                s = slice(b, b + 4); exps.append(SN(index=list(range(b, min(b + 4, N))), rewards=raw_sc[s].clone(), info={"reward": raw_sc[s].clone()}, response_length=am[s].sum(1), truncated=trunc[s], kl=kl[s], action_mask=own[s].bool(), values=vals[s] if est == "gae" else None))
            if est == "gae" and r.random() < .3: r.shuffle(exps); exps = sorted(exps, key=lambda e: e.index[0])
            beta = ctl.value; ns["compute_advantages_and_returns"](maker, exps)
            adv, ret, pen = torch.cat([e.advantages for e in exps]), torch.cat([e.returns for e in exps]), torch.cat([e.rewards for e in exps])
            if kl_use == 1: ctl.update(float(ns["masked_mean"](kl, own, dim=-1).mean()), N)
            sc = pen if shaped or overlong else raw_sc; mask = own.bool()
            for ep in range(epochs):
                order = [torch.randperm(N // world) + k * N // world for k in range(world)]
                lm = N // nmini // world
                for m in range(nmini):
                    step += 1; parts = []
                    for k in range(world):
                        rows = order[k][m * lm:(m + 1) * lm]
                        if dynamic: a = max(1, lm // 3); parts.append([rows[:a], rows[a:]] if k == 0 or lm < 3 else [rows[:lm - a], rows[lm - a:]])
                        else: parts.append(list(rows.split(per)))
                    n_micro = len(parts[0]); g_ = 1 if dynamic else gas
                    allrows = torch.cat([torch.cat(p) for p in parts])
                    info = ns["_optimizer_step_loss_norm"]([mask[allrows]], None, world, g_)
                    if dynamic: info = dict(dp_size=world, batch_num_tokens=mask[allrows].sum().float(), global_batch_size=(mask[allrows].sum(1) > 0).sum().float())
                    for g in range(n_micro):
                        for k in range(world):
                            ti = parts[k][g]; mk = mask[ti]
                            lp, ent, _, _ = Fw(model, pr[ti], ids[ti])
                            al, cr, pkl, vkl, ifr = ploss(lp, old[ti], adv[ti], action_mask=mk, rollout_log_probs=gen[ti], **info)
                            loss = al; kll = klt = el = None
                            if kl_use == 2:
                                klt = ns["compute_approx_kl"](lp, refl[ti], log_probs_old=old[ti], kl_estimator=kest, unbiased_gradient=unb); kll = ns["aggregate_loss"](klt, mk, **info); loss = loss + kll * ctl.value
                            if ent_c is not None:
                                el = ns["aggregate_loss"](ent, mk, **info)
                                if ent_c != 0: loss = loss - el * ent_c
                            z = lambda t_: None if t_ is None else t_ / g_
                            t = dict(input_ids=torch.cat([pr[ti], ids[ti]], 1), attention_mask=torch.cat([torch.ones_like(pr[ti]), am[ti]], 1), response_ids=ids[ti], response_mask=mk, logp_new=lp, logp_old=old[ti], logp_ref=refl[ti] if kl_use else None, logp_gen=gen[ti] if level != "off" or i % 2 else None, advantages=adv[ti], returns=ret[ti],
                                     values=vals[ti] if est == "gae" else None, scores=sc[ti], group_id=ti // G + 1000 * roll, sample_id=ti + 1000 * roll if i % 2 else None, entropy=ent if el is not None else None, kl=klt, loss=z(loss), pg_loss=z(al), kl_loss=z(kll), entropy_loss=z(el), dlogp=z(grad(loss, lp)))
                            if not tools: pass
                            sc_l = dict(policy_loss=al.item(), ppo_clip_ratio=cr.item(), ppo_kl=pkl.item())
                            meta = dict(framework="openrlhf", version="0.11.2", algorithm="ppo" if est == "gae" else "grpo", world_size=world, micro_batches=n_micro, options=opts | {"num_items_in_batch": round(float(info["batch_num_tokens"]) * g_), "agg.denominator": "global", "kl.beta": float(ctl.value if kl_use == 2 else beta), "eos_token_id": EOS, "num_mini_batches": nmini}, token_loss_includes_kl=False)
                            if overlong and stop is None: meta["options"] = meta["options"] | {"reward.overlong_buffer_len": 4, "reward.overlong_penalty_factor": 1.0}
                            if shaped or overlong: meta["scores_shaped"] = True
                            if est == "gae":
                                vn = Fw(critic, pr[ti], ids[ti])[2]; vl = vloss(vn, vals[ti], ret[ti], action_mask=mk, **info)
                                t.update(values_new=vn, value_loss=z(vl), dvalues=z(grad(vl, vn))); (vl / g_ / world).backward()
                            run.dump(pick(t, little, ("values", "returns") if i % 2 == 0 else ()), step, k, g, **meta)
                            (loss / g_ / world).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(); copt.step(); copt.zero_grad()
if __name__ == "__main__": main(sys.argv[1])
