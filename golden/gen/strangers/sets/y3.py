"""y3: right runs of verl 0.9.1 by its own functions: core_algos, rollout_corr_helper, losses, apply_kl_penalty.  python y3.py CASES"""
from collections import defaultdict
from enum import Enum
from typing import Any, Callable, Optional
from types import SimpleNamespace as NS
from world_y import *
B0 = "verl-0.9.1/verl/"


class Cfg(dict):
    __getattr__ = dict.__getitem__
    def get(self, k, d=None): return dict.get(self, k, d)
class ActorConfig(Cfg): pass
class AlgoConfig(Cfg): pass


F_ = types.ModuleType("verl_F"); F_.__dict__.update(torch=torch, Optional=Optional, Any=Any)
functions(B0 + "utils/torch_functional.py", ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"], F_.__dict__)
GW = dict(torch=torch, np=np, Optional=Optional, Any=Any, os=os)
import pathlib
gp = next(p for p in pathlib.Path(SRC, B0, "utils").glob("*.py") if "def group_mean_std" in p.read_text())
from typing import Sequence
GW.update(Sequence=Sequence)
whole(str(gp.relative_to(SRC)), GW)
common = dict(torch=torch, np=np, math=math, Enum=Enum, defaultdict=defaultdict, Any=Any, Callable=Callable, Optional=Optional, verl_F=F_, deprecated=lambda *a: (lambda f: f), DictConfig=Cfg, AlgoConfig=AlgoConfig,
              ActorConfig=ActorConfig, as_torch_index=GW["as_torch_index"], group_mean_std=GW["group_mean_std"])
C = dict(common, __name__="core_algos"); whole(B0 + "trainer/ppo/core_algos.py", C)
class DataProto:
    @staticmethod
    def from_dict(tensors): return NS(batch=tensors)
R = dict(common, DataProto=DataProto, __name__="rch"); whole(B0 + "trainer/ppo/rollout_corr_helper.py", R)
for n in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.rollout_corr_helper"): sys.modules[n] = types.ModuleType(n)
sys.modules["verl.trainer.ppo.rollout_corr_helper"].compute_rollout_correction_and_rejection_mask = R["compute_rollout_correction_and_rejection_mask"]
agg0, seen = C["agg_loss"], {}
def agg_seen(loss_mat, **k):
    seen.setdefault("token_loss", loss_mat); seen["mask"] = k["loss_mask"]
    return agg0(loss_mat=loss_mat, **k)
C["agg_loss"] = agg_seen
class Metric:
    def __init__(s, value, aggregation=None): s.value = value.detach().clone() if torch.is_tensor(value) else value
    @staticmethod
    def from_dict(d, aggregation=None): return {k: Metric(v) for k, v in d.items()}
L = dict(torch=torch, agg_loss=agg0, compute_value_loss=C["compute_value_loss"], get_policy_loss_fn=C["get_policy_loss_fn"], kl_penalty=C["kl_penalty"], Metric=Metric, AggregationType=NS(SUM=0, MEAN=1),
         masked_mean=F_.masked_mean, masked_sum=F_.masked_sum, no_padding_2_padding=lambda x, d: x)
functions(B0 + "workers/utils/losses.py", ["ppo_loss", "value_loss"], L)
K = dict(torch=torch, core_algos=NS(kl_penalty=C["kl_penalty"]), masked_mean=F_.masked_mean)
functions(B0 + "trainer/ppo/ray_trainer.py", ["apply_kl_penalty"], K)
class D(dict):
    def select(s, *n): return D({k: s[k] for k in n})
    def to_padded_tensor(s): return s


ACTOR = dict(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, loss_agg_mode="token-mean", loss_scale_factor=None, entropy_coeff=0, tau_pos=1.0, tau_neg=1.05, use_kl_loss=False, kl_loss_coef=0.001, kl_loss_type="low_var_kl", ppo_epochs=1)
PL = dict(loss_mode="vanilla", clip_cov_ratio=0.0002, clip_cov_lb=1.0, clip_cov_ub=5.0, kl_cov_ratio=0.0002, ppo_kl_coef=0.1, dro_beta=None)
ALGO = dict(adv_estimator="grpo", gamma=1.0, lam=1.0, norm_adv_by_std_in_grpo=True, use_kl_in_reward=False, kl_penalty="kl")


def run(cases, name, seed, over, little, text):
    rng, npr, gen = random.Random(seed), np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    o = {**ACTOR, **PL, **ALGO, "rollout_correction": None, "kl_coef": 0.001, "kl_type": "fixed", "n": 4, "train_batch_size": 8, "ppo_mini_batch_size": 4, "micro": 1, "dp": 1, "T": 20, "temperature": 1.0, "reward": "binary", "rollouts": 3,
         "lr": 8e-3, "eos_bias": 1.2, "turns": False, "noise": 0.0, "cliprange_value": 0.5, "gdpo": None, "dotted": rng.random() < 0.3, **over}
    cfg = ActorConfig({k: o[k] for k in ACTOR}); cfg["policy_loss"] = Cfg({k: o[k] for k in PL}); cfg["global_batch_info"] = {}
    rc = o["rollout_correction"] and {**dict(rollout_is="sequence", rollout_is_threshold=2.0, rollout_is_batch_normalize=False, rollout_rs=None, rollout_rs_threshold=None, bypass_mode=False, loss_type="ppo_clip"), **o["rollout_correction"]}
    bypass = bool(rc and rc["bypass_mode"])
    if bypass: cfg.policy_loss.update(loss_mode="bypass_mode", rollout_correction=Cfg(rc)); o["loss_mode"] = "bypass_mode"
    if o["loss_mode"] == "dro": assert o["dro_beta"] and o["dro_beta"] > 0
    assert cfg.clip_ratio_c > 1
    n, W = o["n"], o["dp"]
    gae = o["adv_estimator"] == "gae"
    model, val = policy(seed, o["eos_bias"]), critic(seed)
    ref = clone(model, 0.05, seed)
    opt = torch.optim.AdamW([*model.parameters(), *val.parameters()], lr=o["lr"], weight_decay=0.01)
    kl_ctrl = C["get_kl_controller"](NS(type=o["kl_type"], kl_coef=o["kl_coef"], target_kl=0.1, horizon=1000))
    need_ref = o["use_kl_loss"] or o["use_kl_in_reward"]
    pre = (lambda p, k: f"{p}.{k}") if o["dotted"] else (lambda p, k: k)
    opts = {pre("actor_rollout_ref.actor", k): o[k] for k in ACTOR if k not in ("ppo_epochs",)} | {pre("actor_rollout_ref.actor.policy_loss", k): o[k] for k in PL if o[k] != PL[k] or k == "loss_mode"} | {pre("algorithm", k): o[k] for k in ALGO}
    opts |= {pre("actor_rollout_ref.actor", "ppo_epochs"): o["ppo_epochs"], pre("actor_rollout_ref.rollout", "n"): n, "num_mini_batches": o["train_batch_size"] // o["ppo_mini_batch_size"], "agg.denominator": "global", "eos_token_id": EOS,
             pre("actor_rollout_ref.rollout", "temperature"): o["temperature"]}
    if o["use_kl_in_reward"]: opts |= {"algorithm.kl_ctrl.kl_coef": o["kl_coef"], "algorithm.kl_ctrl.type": o["kl_type"]} | (dict([("algorithm.kl_ctrl.target_kl", 0.1), ("algorithm.kl_ctrl.horizon", 1000)]) if o["kl_type"] == "adaptive" else {})
    if rc: opts |= {f"algorithm.rollout_correction.{k}": v for k, v in rc.items()}
    if gae: opts |= {"critic.cliprange_value": o["cliprange_value"], "critic.loss_agg_mode": o["loss_agg_mode"]}
    if o["gdpo"]: opts |= {"algorithm.gdpo_reward_keys": o["gdpo"][0], "algorithm.gdpo_reward_weights": o["gdpo"][1], "reward_weights": o["gdpo"][1] or [1.0] * len(o["gdpo"][0])}
    c = Case(cases, name, "y3", text, meta=dict(framework="verl", version="0.9.1", algorithm="ppo" if gae else "grpo", token_loss_includes_kl=False), options=opts, many=not little)
    step = 1
    for rollout in range(o["rollouts"]):
        N = o["train_batch_size"] * n
        P = prompts_of(rng, o["train_batch_size"])
        prompts = P.repeat_interleave(n, 0)
        resp, full, lpg, ended = sample(clone(model, o["noise"], seed + rollout, bf16=True), prompts, o["T"], o["temperature"], gen)
        mask = full.long()
        if o["turns"]:
            for i in range(N):
                k = int(full[i].sum())
                if k > 7: a = rng.randrange(2, k - 4); mask[i, a:a + rng.randrange(1, 3)] = 0
        raw = rule_reward(o["reward"], prompts, resp, full, ended, o["T"])
        uid = np.array([f"u{rollout}-{i // n}" for i in range(N)], dtype=object)
        nt = {"uid": uid}
        if o["gdpo"]:
            fs = [rule_reward(k, prompts, resp, full, ended, o["T"]) for k in o["gdpo"][0]]
            raw = sum(fs); nt |= {k: x.numpy() for k, x in zip(o["gdpo"][0], fs)}
        last = full.sum(1) - 1
        tls = torch.zeros(resp.shape); tls[torch.arange(N), last] = raw
        with torch.no_grad():
            lpo, ent0, lg = score(model, prompts, resp, o["temperature"]); rl = score(ref, prompts, resp, o["temperature"])[0]
            p = (lg / o["temperature"]).softmax(-1); spi = (p * p).sum(-1)
            v = values_of(val, prompts, resp)
        old = lpg if bypass else lpo
        b = dict(prompts=prompts, attention_mask=torch.cat([torch.ones_like(prompts), full.long()], 1), response_mask=mask, token_level_scores=tls, old_log_probs=old, ref_log_prob=rl, rollout_log_probs=lpg, values=v)
        class TB(dict): batch_size = [N]
        data = NS(batch=TB(b), non_tensor_batch=nt)
        beta = kl_ctrl.value
        if o["use_kl_in_reward"]: data, _ = K["apply_kl_penalty"](data, kl_ctrl, o["kl_penalty"])
        else: data.batch["token_level_rewards"] = tls
        b = data.batch
        if rc and not bypass:
            w, m2, _ = R["compute_rollout_correction_and_rejection_mask"](old_log_prob=old, rollout_log_prob=lpg, response_mask=b["response_mask"], **{k: rc[k] for k in ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold", "rollout_is_batch_normalize")})
            b["response_mask"] = m2
            if w is not None: b["rollout_is_weights"] = w.batch["rollout_is_weights"]
        acfg = AlgoConfig({k: o[k] for k in ALGO}); acfg.update(gdpo_reward_keys=o["gdpo"] and o["gdpo"][0], gdpo_reward_weights=o["gdpo"] and o["gdpo"][1])
        e, base = o["adv_estimator"], None
        if gae: adv, ret = C["compute_gae_advantage_return"](b["token_level_rewards"], v, b["response_mask"], o["gamma"], o["lam"])
        elif e == "grpo": adv, ret = C["compute_grpo_outcome_advantage"](b["token_level_rewards"].clone(), b["response_mask"], uid, norm_adv_by_std_in_grpo=o["norm_adv_by_std_in_grpo"])
        else:
            kw = dict(token_level_rewards=b["token_level_rewards"].clone(), response_mask=b["response_mask"], config=acfg, index=uid)
            if e == "remax":
                with torch.no_grad():
                    g, gm, _, ge = sample(clone(model), P, o["T"], 0.01, gen)
                base = rule_reward(o["reward"], P, g, gm, ge, o["T"]).repeat_interleave(n); kw["reward_baselines"] = base
            if e == "gdpo": kw |= dict(non_tensor_batch=nt, batch=b)
            if "optimal" in e: kw |= dict(sum_pi_squared=spi, old_log_probs=old, rollout_is_weights=b.get("rollout_is_weights"))
            adv, ret = C["get_adv_estimator_fn"](e)(**kw)
        gid = torch.arange(N) // n + 1000 * rollout
        for epoch in range(o["ppo_epochs"]):
            mini = o["ppo_mini_batch_size"] * n
            for a in range(0, N, mini):
                rows = torch.arange(a, a + mini)
                per = [rows[r * mini // W:(r + 1) * mini // W] for r in range(W)]
                tokens = int(b["response_mask"][rows].sum())
                for r in range(W):
                    parts = per[r].chunk(o["micro"]) if o["micro"] != "dynamic" else [x for x in per[r].split([3, 1] + [len(per[r]) - 4]) if len(x)]
                    for mi, ix in enumerate(parts):
                        lp, ent, _ = score(model, prompts[ix], resp[ix], o["temperature"])
                        d = D({k: x[ix] for k, x in b.items() if torch.is_tensor(x)} | dict(advantages=adv[ix], returns=ret[ix])) | {}
                        d = D(d); d.update(dp_size=W, batch_num_tokens=tokens, global_batch_size=mini)
                        seen.clear()
                        before = torch.get_rng_state()
                        want_ent = o["entropy_coeff"] != 0 or not little
                        loss, met = L["ppo_loss"](cfg, dict(log_probs=lp, entropy=ent if want_ent else None), d)
                        (loss / W).backward(retain_graph=True)
                        mk = seen["mask"] if bypass else d["response_mask"]
                        t = dict(response_mask=mk, logp_new=lp, logp_old=d["old_log_probs"], advantages=d["advantages"], scores=raw[ix], loss=loss, group_id=gid[ix])
                        if need_ref: t["logp_ref"] = d["ref_log_prob"]
                        if rc: t["logp_gen"] = d["rollout_log_probs"]
                        if base is not None: t["reward_baselines"] = base[ix]
                        if o["gdpo"]: t["rewards_per_func"] = torch.stack(fs, 1)[ix]
                        if "optimal" in e: t["sum_pi_squared"] = spi[ix]
                        scal = None
                        if o["use_kl_in_reward"] or gae: t["token_rewards"] = d["token_level_rewards"]
                        if "rollout_is_weights" in d and (not little or rng.random() < 0.5): t["is_weights"] = d["rollout_is_weights"]
                        if gae:
                            vp = values_of(val, prompts[ix], resp[ix])
                            vl, vm = L["value_loss"](Cfg(cliprange_value=o["cliprange_value"], loss_agg_mode=o["loss_agg_mode"], loss_scale_factor=o["loss_scale_factor"]), dict(values=vp), d)
                            (vl / W).backward(retain_graph=True)
                            t |= dict(values=d["values"], returns=ret[ix])
                            if not little: t |= dict(values_new=vp, value_loss=vl, dvalues=grads(vl, v=vp)["v"])
                        if not little:
                            t |= dict(dlogp=grads(loss, a=lp)["a"], entropy=ent, response_ids=resp[ix], token_rewards=d["token_level_rewards"], pg_loss=met["actor/pg_loss"].value, returns=ret[ix], logp_gen=d["rollout_log_probs"],
                                      entropy_loss=met["actor/entropy_loss"].value, sample_id=ix + 1000 * rollout)
                            if seen.get("token_loss") is not None: t["token_loss"] = seen["token_loss"]
                            if o["use_kl_loss"]: t |= dict(kl=C["kl_penalty"](lp, d["ref_log_prob"], o["kl_loss_type"]), kl_loss=met["kl_loss"].value)
                            if W == 1: scal = {k: (m.value if isinstance(m, Metric) else m) for k, m in met.items() if k in ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower", "actor/pg_loss")}
                        c.dump(step, t, mi, len(parts), r, W, scal, dict(num_items_in_batch=tokens), scalars_scope="micro_batch")
                nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(); step += 1
    return c


RECIPES = [("grpo_qwen", dict(use_kl_loss=True)), ("dapo", dict(clip_ratio_high=0.28, clip_ratio_c=10.0, reward="acc_format")), ("drgrpo", dict(norm_adv_by_std_in_grpo=False, loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=20)),
    ("gspo", dict(loss_mode="gspo", clip_ratio_low=3e-4, clip_ratio_high=4e-4, loss_agg_mode="seq-mean-token-mean")), ("ppo", dict(adv_estimator="gae", use_kl_in_reward=True, reward="rm")), ("rloo", dict(adv_estimator="rloo", use_kl_in_reward=True, n=5)),
    ("rfpp", dict(adv_estimator="reinforce_plus_plus", use_kl_in_reward=True, n=1, train_batch_size=16, ppo_mini_batch_size=16)), ("rfppbase", dict(adv_estimator="reinforce_plus_plus_baseline", use_kl_loss=True, kl_loss_type="k2")), ("remax", dict(adv_estimator="remax", n=1, train_batch_size=16, ppo_mini_batch_size=8, use_kl_in_reward=True)),
    ("opo", dict(adv_estimator="opo", entropy_coeff=0.001)), ("gpg", dict(adv_estimator="gpg", loss_mode="gpg")), ("passk", dict(adv_estimator="grpo_passk", reward="share")), ("cispo", dict(loss_mode="cispo", clip_ratio_low=10.0, clip_ratio_high=0.2)),
    ("sapo", dict(loss_mode="sapo", loss_agg_mode="seq-mean-token-mean")), ("clipcov", dict(loss_mode="clip_cov", clip_ratio_low=1.0, clip_ratio_high=1.0, clip_cov_ratio=0.05, clip_cov_lb=0.1, ppo_epochs=2)), ("klcov", dict(loss_mode="kl_cov", kl_cov_ratio=0.02, ppo_kl_coef=1.0)),
    ("gmpo", dict(loss_mode="geo_mean", clip_ratio_low=0.4, clip_ratio_high=0.4, norm_adv_by_std_in_grpo=True)), ("dppo", dict(loss_mode="dppo_tv", clip_ratio_low=0.15, clip_ratio_high=0.15, clip_ratio_c=20.0)), ("tis", dict(rollout_correction=dict(rollout_is="token", rollout_is_threshold=2.0), noise=0.03)),
    ("seqrs", dict(rollout_correction=dict(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.97_1.03", rollout_is="sequence"), noise=0.03)), ("bypass", dict(rollout_correction=dict(bypass_mode=True, rollout_is=None), noise=0.02)), ("otb", dict(adv_estimator="optimal_token_baseline"))]
CHANGES = [dict(micro=2), dict(dp=2), dict(micro="dynamic"), dict(entropy_coeff=0.001), dict(n=8, train_batch_size=4, ppo_mini_batch_size=2), dict(ppo_mini_batch_size=8), dict(use_kl_loss=True, kl_loss_coef=0.01), dict(temperature=0.8), dict(reward="share"),
    dict(reward="acc_format"), dict(loss_agg_mode="seq-mean-token-mean"), dict(loss_agg_mode="seq-mean-token-sum"), dict(clip_ratio_high=0.28), dict(turns=True), dict(lr=2e-2), dict(rollouts=2)]
ODD = [dict(ppo_epochs=3), dict(reward="constant"), dict(reward="huge"), dict(T=1), dict(lr=0.0), dict(eos_bias=-6.0), dict(loss_agg_mode="token-sum"), dict(kl_loss_type="k3+", use_kl_loss=True), dict(kl_type="adaptive"), dict(gamma=0.9, lam=0.8), dict(kl_loss_type="abs", use_kl_loss=True), dict(kl_loss_type="k1", use_kl_loss=True)]


def main(cases):
    rng = random.Random(20261203)
    for i, (name, over) in enumerate(RECIPES):
        o, notes = dict(over), [name]
        for ch in rng.sample(CHANGES, rng.randrange(1, 3)) + (rng.sample(ODD, 2) if i % 3 == 1 else []):
            if any(k in over for k in ch) or ("use_kl_loss" in ch and "use_kl_in_reward" in over): continue
            if ch.get("T") == 1 and (o.get("loss_mode") == "clip_cov"): continue
            o.update(ch); notes.append(",".join(f"{k}={v}" for k, v in ch.items()))
        c = run(cases, f"y3-{i:02d}_{name}", 7300 + i, o, i % 3 == 2, "; ".join(notes))
        print(c.name, c.n, "; ".join(notes), flush=True)


if __name__ == "__main__": main(sys.argv[1])
