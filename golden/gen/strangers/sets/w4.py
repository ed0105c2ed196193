"""w4: OpenRLHF 0.11.2, its own models/loss.py (PolicyLoss, ValueLoss, aggregate_loss), models/utils.py (KL, reward), length penalties, the experience
maker's compute_advantages_and_returns and the normalisers of a step, loaded from the released files."""
import sys
from world_w import *
from typing import List, Tuple, Optional, Union, Dict
OD = f"{SRC}/openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf"
_, ut = tree(f"{OD}/models/utils.py")
UNS = dict(torch=torch, F=F, KL_IS_WEIGHT_CLIP=10.0, Optional=Optional, Union=Union, Tuple=Tuple)
exec_nodes([find_def(ut, n) for n in ("compute_approx_kl", "compute_reward", "masked_mean")], UNS)
lt = open(f"{OD}/models/loss.py").read().replace("from .utils import masked_mean", "")
LNS = dict(masked_mean=UNS["masked_mean"], __name__="loss"); exec(compile(lt, "loss.py", "exec"), LNS)
pt = open(f"{OD}/trainer/ppo_utils/length_penalty.py").read().replace("from openrlhf.utils.logging_utils import init_logger", "")
PNS = dict(init_logger=lambda n: types.SimpleNamespace(info=lambda *a: None), __name__="lp"); exec(compile(pt, "length_penalty.py", "exec"), PNS)
xt = open(f"{OD}/utils/loss_utils.py").read(); XNS = dict(__name__="lu"); exec(compile(xt, "loss_utils.py", "exec"), XNS)
_, kt = tree(f"{OD}/trainer/ppo_utils/kl_controller.py"); KNS = dict(np=__import__("numpy")); exec_nodes([n for n in kt.body if isinstance(n, ast.ClassDef)], KNS)
_, et = tree(f"{OD}/trainer/ppo_utils/experience_maker.py")
ENS = dict(torch=torch, itertools=__import__("itertools"), List=List, Tuple=Tuple, Optional=Optional, Experience=object, apply_length_penalties=PNS["apply_length_penalties"], compute_reward=UNS["compute_reward"],
           logger=types.SimpleNamespace(warning=lambda *a: None))
cls = next(n for n in et.body if isinstance(n, ast.ClassDef) and any(getattr(b, "name", "") == "compute_advantages_and_returns" for b in n.body))
exec_nodes([b for b in cls.body if getattr(b, "name", "") in ("compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns")], ENS)


def est_clips(a):
    """scores_shaped stands for scores after penalty and clip: where nothing is subtracted between the two (compute_reward clips after the baseline)"""
    return a["algo.advantage.estimator"] in ("gae", "reinforce")


class Maker:
    compute_advantages_and_returns, get_advantages_and_returns, get_cumulative_returns = (ENS[n] for n in ("compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"))


def ns(d):
    o = types.SimpleNamespace()
    for k, x in d.items():
        at = o; *path, last = k.split(".")
        for q in path:
            if not hasattr(at, q): setattr(at, q, types.SimpleNamespace())
            at = getattr(at, q)
        setattr(at, last, x)
    return o


BASE = {"actor.eps_clip": 0.2, "actor.eps_clip_low_high": (0.2, 0.2), "actor.dual_clip": None, "actor.loss_agg_mode": "token-mean", "actor.policy_loss_type": "ppo", "actor.entropy_coef": None, "critic.value_clip": 0.5,
        "algo.advantage.estimator": "gae", "algo.advantage.gamma": 1.0, "algo.advantage.lambd": 1.0, "algo.advantage.no_std_norm": False, "algo.advantage.is_correction_level": "off", "algo.advantage.is_correction_mode": "mask",
        "algo.advantage.is_correction_gating": "ratio", "algo.advantage.is_correction_threshold": [0.5, 5.0], "algo.kl.use_loss": False, "algo.kl.init_coef": 0.01, "algo.kl.estimator": "k1", "algo.kl.unbiased_gradient": False,
        "algo.kl.target": None, "algo.kl.horizon": 10000, "reward.clip_range": (-10, 10), "reward.overlong_buffer_len": None, "reward.overlong_penalty_factor": 1.0, "reward.stop_properly_penalty_coef": None, "rollout.n_samples_per_prompt": 4,
        "rollout.temperature": 1.0, "rollout.max_new_tokens": 16, "train.max_epochs": 1}


def run(cases, name, a, rng, little, n_prompts=6, world=1, gas=2, steps_per=2, lr=1e-2, noise=0.0, engine="same", rkind="share", kind="gru", rollouts=2, drop=(), seed=0, shaped=False, holes=False):
    a = {**BASE, **a}
    args = ns(a); n, Tm, temp, V = a["rollout.n_samples_per_prompt"], a["rollout.max_new_tokens"], a["rollout.temperature"], 30
    gae = a["algo.advantage.estimator"] == "gae"
    note = "OpenRLHF 0.11.2, " + ", ".join(f"{k}={x}" for k, x in a.items() if x != BASE[k] or k == "algo.advantage.estimator") + f", world {world}, gas {gas}, {steps_per} steps of a pass"
    case = Case(cases, "w4", name, note, (), little)
    g = torch.Generator().manual_seed(seed); torch.manual_seed(seed); rs = random.Random(seed)
    model = LM(V=V, kind=kind, eos_bias=rng.choice([0.3, 0.9])); ref = copy.deepcopy(model); crit = LM(V=V, H=16, value=True)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(0.03 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0); copt = torch.optim.AdamW(crit.parameters(), lr=lr)
    ploss = LNS["PolicyLoss"](*a["actor.eps_clip_low_high"], a["actor.dual_clip"], a["actor.loss_agg_mode"] == "token-mean", a["actor.policy_loss_type"], a["algo.advantage.is_correction_level"], a["algo.advantage.is_correction_mode"],
                              a["algo.advantage.is_correction_gating"], a["algo.advantage.is_correction_threshold"])
    vloss = LNS["ValueLoss"](a["critic.value_clip"])
    mk = Maker(); mk.strategy = types.SimpleNamespace(args=args); mk.advantage_estimator = a["algo.advantage.estimator"]
    mk.kl_ctl = KNS["FixedKLController"](a["algo.kl.init_coef"]) if a["algo.kl.target"] is None else KNS["AdaptiveKLController"](a["algo.kl.init_coef"], a["algo.kl.target"], a["algo.kl.horizon"])
    step = 0
    for ro in range(rollouts):
        p, gid = prompts_for(n_prompts, n, 4, V, g); N = len(gid)
        force = hole = None
        if holes:
            hole = torch.zeros(N, Tm, dtype=torch.bool)
            for b in range(N):
                if b % 4: s = rs.randrange(1, Tm - 5); hole[b, s:s + rs.randrange(1, 5)] = True
            def force(t, lg): lg = lg.clone(); lg[hole[:, t]] = -1e9; lg[hole[:, t], 9] = 0.0; return lg
        resp, mask, lpg = generate(engine_of(model, engine), p, Tm, g, temp, noise, force)
        ended = ((resp == EOS) & mask).any(1); am = mask & ~hole if holes else mask
        raw = reward(rkind, resp, mask, g)
        with torch.no_grad(): old = score(model, p, resp, temp)[0]; rf = score(ref, p, resp, temp)[0]; val = score(crit, p, resp)[2]
        klr = UNS["compute_approx_kl"](old, rf, kl_estimator=a["algo.kl.estimator"]) if not a["algo.kl.use_loss"] else torch.zeros_like(old)
        exps = []
        for ix in torch.arange(N).chunk(3):
            exps.append(types.SimpleNamespace(index=ix.tolist(), rewards=raw[ix].clone(), kl=klr[ix], action_mask=am[ix], values=val[ix] if gae else None, info={}, response_length=am[ix].sum(1), truncated=~ended[ix]))
        beta = mk.kl_ctl.value
        exps = mk.compute_advantages_and_returns(exps)
        adv, ret, sc = (torch.cat([getattr(e, k) for e in exps]) for k in ("advantages", "returns", "rewards"))
        klm = []
        per = N // world
        for ep in range(a["train.max_epochs"]):
            order = [torch.tensor(rs.sample(range(per), per)) + r * per for r in range(world)]
            mbr = per // (gas * steps_per)
            for k in range(steps_per):
                step += 1
                parts = [[o[(k * gas + j) * mbr:(k * gas + j + 1) * mbr] for j in range(gas)] for o in order]
                info = XNS["_optimizer_step_loss_norm"]([am[i] for pr in parts for i in pr], None, world, gas)
                for r in range(world):
                    for j in range(gas):
                        i = parts[r][j]
                        lp, ent, _, lg = score(model, p[i], resp[i], temp)
                        seen = []; real = LNS["aggregate_loss"]
                        LNS["aggregate_loss"] = lambda loss, m, **kw: (seen.append(loss), real(loss, m, **kw))[1]
                        al, clip_ratio, ppo_kl, vkl, filt = ploss(lp, old[i], adv[i], action_mask=am[i], rollout_log_probs=lpg[i], **info)
                        LNS["aggregate_loss"] = real
                        kl = klloss = None; loss = al
                        if a["algo.kl.use_loss"]:
                            kl = UNS["compute_approx_kl"](lp, rf[i], log_probs_old=old[i], kl_estimator=a["algo.kl.estimator"], unbiased_gradient=a["algo.kl.unbiased_gradient"])
                            klloss = real(kl, am[i], **info); loss = loss + klloss * beta; klm.append(float(klloss))
                        entl = None
                        if a["actor.entropy_coef"] is not None:
                            entl = real(ent, am[i], **info)
                            if a["actor.entropy_coef"] != 0: loss = loss - entl * a["actor.entropy_coef"]
                        dl, = grads(loss, lp); (loss / gas / world).backward()
                        t = dict(response_ids=resp[i], response_mask=am[i], logp_new=lp, logp_old=old[i], logp_ref=rf[i], logp_gen=lpg[i] if a["algo.advantage.is_correction_level"] != "off" or seed % 2 else None, kl=kl, entropy=ent,
                                 advantages=adv[i], returns=ret[i], scores=(sc.clamp(*a["reward.clip_range"]) if shaped and est_clips(a) else sc if shaped else raw)[i], group_id=(gid + ro * 100)[i], loss=loss / gas, pg_loss=al / gas, kl_loss=None if klloss is None else klloss / gas, entropy_loss=None if entl is None else entl / gas,
                                 token_loss=seen[0], dlogp=dl / gas, input_ids=torch.cat([p[i], resp[i]], 1), attention_mask=torch.cat([torch.ones_like(p[i]), (mask | hole if holes else mask)[i].long()], 1), sample_id=i + ro * N)
                        if gae:
                            vn = score(crit, p[i], resp[i])[2]; vl = vloss(vn, val[i], ret[i], action_mask=am[i], **info); dv, = grads(vl, vn); (vl / gas / world).backward()
                            t.update(values=val[i], values_new=vn, value_loss=vl / gas, dvalues=dv / gas)
                        o = {q: (list(x) if isinstance(x, tuple) else x) for q, x in a.items()}
                        o |= {"num_items_in_batch": round(float(info["batch_num_tokens"]) * gas), "agg.denominator": "global", "kl.beta": beta, "gradient_accumulation_steps": gas, "num_mini_batches": steps_per, "eos_token_id": EOS}
                        m = dict(ppo_clip_ratio=clip_ratio, ppo_kl=ppo_kl)
                        if vkl is not None: m.update(vllm_kl=vkl)
                        meta = dict(framework="openrlhf", version="0.11.2", algorithm="ppo" if gae else "grpo", step=step, rank=r, world_size=world, micro_batch=j, micro_batches=gas, options=o, scalars=fin(m), scalars_scope="micro_batch", token_loss_includes_kl=False)
                        if shaped: meta["scores_shaped"] = True
                        case.put(meta, t, drop)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(); copt.step(); copt.zero_grad()
        mk.kl_ctl.update(sum(klm) / len(klm) if klm else float(((klr * am).sum(1) / am.sum(1)).mean()), N)


def main(cases):
    E = ["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"]
    for i in range(21):
        r = random.Random(10400 + i); little = i % 3 == 2; est = E[i % 7]
        a = {"algo.advantage.estimator": est, "rollout.max_new_tokens": r.choice([12, 18, 26])}
        a.update({k: r.choice(x) for k, x in {"actor.dual_clip": [None, None, 2.0, 5.0], "actor.loss_agg_mode": ["token-mean", "seq-mean-token-mean"], "actor.policy_loss_type": ["ppo", "ppo", "gspo"], "actor.entropy_coef": [None, 0.0, 0.01],
                 "critic.value_clip": [0.5, 0.05], "algo.advantage.lambd": [1.0, 0.95], "algo.kl.use_loss": [False, True], "algo.kl.init_coef": [0.01, 0.2, 0.0], "algo.kl.estimator": ["k1", "k2", "k3"],
                 "algo.kl.unbiased_gradient": [False, True], "reward.clip_range": [(-10, 10), (-0.4, 0.5)], "reward.stop_properly_penalty_coef": [None, None, 0.5, -0.5], "rollout.temperature": [1.0, 0.7], "train.max_epochs": [1, 2, 3],
                 "algo.advantage.no_std_norm": [False, True]}.items()})
        if est in ("gae", "reinforce"): a["algo.advantage.gamma"] = r.choice([1.0, 0.99])
        lo = r.choice([0.2, 0.1]); a["actor.eps_clip"] = lo; a["actor.eps_clip_low_high"] = (lo, r.choice([lo, 0.28]))
        if r.random() < 0.5:
            lev = r.choice(["token", "seq"]); gate = r.choice(["ratio", "binary_kl", "tv"])
            a.update({"algo.advantage.is_correction_level": lev, "algo.advantage.is_correction_gating": gate, "algo.advantage.is_correction_mode": r.choice(["mask", "clip"]) if lev == "token" and gate == "ratio" else "mask",
                      "algo.advantage.is_correction_threshold": r.choice([[0.5, 5.0], [0.9, 1.1]]) if gate == "ratio" else [0.0, 0.004 if gate == "binary_kl" else 0.03]})
        if i in (5, 12): a["algo.kl.target"], a["algo.kl.horizon"] = 0.1, 200
        np_, n = r.choice([(6, 4), (12, 2), (4, 6)]); a["rollout.n_samples_per_prompt"] = n
        if est == "reinforce" and i == 8: np_, n = 24, 1; a["rollout.n_samples_per_prompt"] = 1
        if est == "flash_reinforce": np_, n = 24, 1; a["rollout.n_samples_per_prompt"] = 1
        gas, sp = r.choice([(1, 1), (2, 1), (2, 2), (3, 2), (1, 3)]); world = 2 if i in (2, 9, 16) else 1
        if i == 11: a["reward.overlong_buffer_len"] = 6; a["reward.overlong_penalty_factor"] = 0.5
        run(cases, f"{i:02d}_{est}", a, r, little, np_, world, gas, sp, r.choice([3e-3, 2e-2]), noise=r.choice([0.03, 0.15]) if a.get("algo.advantage.is_correction_level") else 0.0, engine=r.choice(["same", "bf16"]),
            rkind=r.choice(["share", "sign", "noisy", "length"]), kind=r.choice(["gru", "attn"]), drop=r.choice([(), ("dlogp",), ("token_loss",), ("input_ids", "attention_mask")]), seed=i, shaped=i == 11 or (a["reward.stop_properly_penalty_coef"] is not None and r.random() < 0.5), holes=i in (3, 10, 18))


if __name__ == "__main__": main(sys.argv[1])
