"""verl 0.9.1 by its own functions: core_algos, rollout_corr_helper, apply_kl_penalty; right runs."""
import sys, types; from world_u import *
NAME = "u3"; VP = SRC + "/verl-0.9.1/verl"
def mod(name, **k):
    m = types.ModuleType(name); m.__dict__.update(k); sys.modules[name] = m
    if "." in name: setattr(sys.modules[name.rsplit(".", 1)[0]], name.rsplit(".", 1)[1], m)
    return m
def load(name, path):
    m = mod(name); m.__file__ = path; exec(compile(source(path), path, "exec"), m.__dict__); return m
class Cfg(NS):
    def get(self, k, d=None): return dict.get(self, k, d)
class ActorConfig(Cfg): pass
class AlgoConfig(Cfg): pass
class DataProto:
    def __init__(s, b): s.batch = b
    @classmethod
    def from_dict(c, tensors): return c(tensors)
mod("omegaconf", DictConfig=dict)
for n in ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo", "verl.workers", "verl.trainer.config.algorithm"[:19]): mod(n)
sys.modules["verl.trainer.config"].AlgoConfig = AlgoConfig
mod("verl.trainer.config.algorithm", RolloutCorrectionConfig=Cfg); mod("verl.workers.config", ActorConfig=ActorConfig); mod("verl.workers.config.actor", PolicyLossConfig=Cfg)
mod("verl.protocol", DataProto=DataProto); mod("verl.utils.device", get_device_name=lambda: "cpu", get_torch_device=lambda: torch)
mod("verl.utils.import_utils", deprecated=lambda *a, **k: (lambda f: f))
tf = mod("verl.utils.torch_functional", torch=torch, math=math, F=torch.nn.functional)
TF = source(VP + "/utils/torch_functional.py")
for f in ("masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value", "entropy_from_logits"): exec(get_def(TF, f), tf.__dict__)
gw = load("verl.utils.groupwise", VP + "/utils/groupwise.py"); sys.modules["verl.utils"].as_torch_index, sys.modules["verl.utils"].group_mean_std = gw.as_torch_index, gw.group_mean_std
core = load("verl.trainer.ppo.core_algos", VP + "/trainer/ppo/core_algos.py"); rch = load("verl.trainer.ppo.rollout_corr_helper", VP + "/trainer/ppo/rollout_corr_helper.py")
rt = dict(core_algos=core, torch=torch, masked_mean=tf.masked_mean, DataProto=DataProto); exec("from __future__ import annotations\n" + get_def(source(VP + "/trainer/ppo/ray_trainer.py"), "apply_kl_penalty"), rt)
held = {}; _agg = core.agg_loss
def agg_loss(loss_mat, *a, **k): held.setdefault("mat", loss_mat); return _agg(loss_mat, *a, **k)
core.agg_loss = agg_loss

EST = ["grpo", "gae", "rloo", "reinforce_plus_plus", "gae", "reinforce_plus_plus_baseline", "remax", "opo", "gae", "gpg", "grpo_passk", "grpo_vectorized", "gae", "rloo_vectorized", "optimal_token_baseline", "grpo", "gae", "grpo", "reinforce_plus_plus", "gae", "grpo", "rloo"]
MODES = ["vanilla", "vanilla", "gspo", "cispo", "clip_cov", "vanilla", "dppo_tv", "sapo", "vanilla", "gpg", "geo_mean", "kl_cov", "dppo_kl", "dro", "vanilla", "bypass", "cispo", "bypass", "gspo", "vanilla", "clip_cov", "bypass"]
def main(cases):
    for j, (i, off) in enumerate([(i, 0) for i in range(22)] + [(6, 100), (7, 300)]):
        r = random.Random(3000 + i + off); torch.manual_seed(300 + i + off); little = i % 3 == 2
        est, mode = EST[i], MODES[i]; G = r.choice([2, 4, 4, 8]) if est != "gae" else r.choice([1, 2]); T0 = r.choice([12, 16, 24]); temp = r.choice([1.0, 1.0, .8])
        c = ActorConfig(clip_ratio=r.choice([.1, .2]), clip_ratio_low=r.choice([None, .1, .2]), clip_ratio_high=r.choice([None, .28, .2]), clip_ratio_c=r.choice([3.0, 1.5, 10.0]), loss_scale_factor=None, entropy_coeff=r.choice([0, 0, .01]),
                        loss_agg_mode=r.choice(["token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"]), tau_pos=1.0, tau_neg=1.05, use_kl_loss=r.random() < .4, kl_loss_coef=r.choice([.001, .05]),
                        kl_loss_type=r.choice(["low_var_kl", "k1", "k2", "abs", "k3+", "k1+"]), ppo_epochs=r.choice([1, 2]), policy_loss=Cfg(loss_mode=mode, clip_cov_ratio=r.choice([.01, .05]), clip_cov_lb=.3, clip_cov_ub=5.0, kl_cov_ratio=r.choice([.01, .05]), ppo_kl_coef=r.choice([.1, 1.0]), dro_beta=.2), global_batch_info={})
        if little and i % 2: c.entropy_coeff = 0
        if mode.startswith("dppo"): c.clip_ratio, c.clip_ratio_low, c.clip_ratio_high, c.clip_ratio_c = .02, None, None, 20.0
        if mode == "dppo_kl": c.clip_ratio = .003
        if mode == "sapo": c.loss_agg_mode = r.choice(["token-mean", "seq-mean-token-mean"])
        if mode == "geo_mean": c.loss_agg_mode = "token-mean"; c.clip_ratio_low, c.clip_ratio_high = .05, .05
        if mode == "cispo": c.clip_ratio_low, c.clip_ratio_high = r.choice([(.1, .2), (.9, .3)])
        if c.loss_agg_mode == "seq-mean-token-sum-norm" and r.random() < .5: c.loss_scale_factor = T0
        al = AlgoConfig(adv_estimator=est, gamma=r.choice([1.0, .99]) if est in ("gae", "reinforce_plus_plus") else 1.0, lam=r.choice([1.0, .95]), norm_adv_by_std_in_grpo=r.random() < .7, use_kl_in_reward=not c.use_kl_loss and r.random() < .5, kl_penalty=r.choice(["kl", "k2", "low_var_kl", "abs"]))
        klc = r.choice([.01, .1]); adaptive = al.use_kl_in_reward and r.random() < .3
        ctl = core.AdaptiveKLController(klc, .1, 100) if adaptive else core.FixedKLController(klc)
        rc = Cfg(rollout_is=None, rollout_is_threshold=2.0, rollout_is_batch_normalize=False, rollout_rs=None, rollout_rs_threshold=None, bypass_mode=mode == "bypass", loss_type="ppo_clip")
        corr = mode != "bypass" and mode != "geo_mean" and r.random() < .45
        if corr: rc.update(rollout_is=r.choice(["token", "sequence"]), rollout_is_threshold=r.choice([2.0, 1.2, "0.5_5.0", "0.9_1.1"]), rollout_is_batch_normalize=r.random() < .3)
        if rc.rollout_is == "sequence" and rc.rollout_is_threshold == "0.9_1.1": rc.rollout_is_threshold = "0.3_4.0"
        if corr and r.random() < .4: rc.update(rollout_rs=r.choice(["seq_mean_k1", "token_k2", "seq_sum_k1", "seq_mean_k3"])); rc.rollout_rs_threshold = {"seq_mean_k1": "0.9_1.1", "token_k2": .02, "seq_sum_k1": "0.5_2.0", "seq_mean_k3": .01}[rc.rollout_rs]
        world = r.choice([1, 1, 2]); per = 8; nmini = r.choice([1, 2]); nmicro = r.choice([1, 2]); N = per * world * nmini * (2 if nmicro == 2 and r.random() < .3 else 1); tools = r.random() < .25
        loc_mini = N // nmini // world; micro = loc_mini // nmicro; cliprange_value = r.choice([.5, .2]); crit_agg = c.loss_agg_mode if c.loss_agg_mode != "token-sum" else "token-mean"
        model = LM(); ref = copy.deepcopy(model)
        with torch.no_grad():
            for p in ref.parameters(): p.add_(torch.randn_like(p) * .02)
        critic = LM(); opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=.01); copt = torch.optim.AdamW(critic.parameters(), lr=5e-3, weight_decay=.01)
        run = Run(cases, NAME, f"c{j:02d}_{est}_{mode}", f"right: verl 0.9.1 {est}, {mode}, {c.loss_agg_mode}, kl loss {c.use_kl_loss and c.kl_loss_type}, in reward {al.use_kl_in_reward and al.kl_penalty}, corr {rc.rollout_is} {rc.rollout_is_threshold} {rc.rollout_rs}, {world} ranks")
        F = lambda m, pr, ids: response(m, pr, ids, temp)
        step = 0; ekind = "noise" if corr or r.random() < .5 else "bf16"
        fn = core.get_policy_loss_fn({"bypass": "bypass_mode"}.get(mode, mode))
        if mode == "bypass": c.policy_loss.rollout_correction = rc
        for roll in range(2):
            pr = prompts_of(r, N // G).repeat_interleave(G, 0); eng = engine_of(model, r, ekind)
            ids, am, own, gen, tr_ = sample(eng, pr, T0, temp, obs=.12 if tools else 0); mask = own
            with torch.no_grad():
                old, _, _, rawl = F(model, pr, ids); refl = F(ref, pr, ids)[0]; vals = F(critic, pr, ids)[2]
                sp2 = (rawl / temp).softmax(-1).pow(2).sum(-1)
            if mode == "bypass": old = gen.clone()
            sc = rule(pr, ids, own, [0, 2, 4, 0][i % 4]); tls = torch.zeros(N, T0); lastpos = am.sum(1) - 1; tls[torch.arange(N), lastpos] = sc
            if tools:  # the last token of a response is its own: an observation cut by the end does not count
                lastown = (own * torch.arange(1, T0 + 1)).argmax(1); tls.zero_(); tls[torch.arange(N), lastown] = sc
            isw = None
            if corr:
                p_, mask, _ = rch.compute_rollout_correction_and_rejection_mask(old, gen, mask, **{k: rc[k] for k in ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")})
                isw = p_.batch["rollout_is_weights"]; mask = mask.to(own.dtype)
            b = NS(response_mask=mask, token_level_scores=tls, old_log_probs=old, ref_log_prob=refl); b.batch_size = (N,)
            beta = klc
            if al.use_kl_in_reward:
                beta = ctl.value; d_, m_ = rt["apply_kl_penalty"](DataProto(b), ctl, al.kl_penalty); tlr = b["token_level_rewards"]
            else: tlr = tls
            uid = np.array([f"u{roll}_{k // G}" for k in range(N)], dtype=object); base = None
            if est == "gae": adv, ret = core.compute_gae_advantage_return(tlr, vals, mask, al.gamma, al.lam)
            elif est == "grpo": adv, ret = core.compute_grpo_outcome_advantage(tlr, mask, uid, norm_adv_by_std_in_grpo=al.norm_adv_by_std_in_grpo)
            else:
                kw = dict(token_level_rewards=tlr, response_mask=mask, config=al, index=uid)
                if est == "remax":
                    gi = pr.clone(); base = rule(pr, sample(ref, pr, T0, .3)[0], torch.ones(N, T0), 0)[::G].repeat_interleave(G) if N // G else None; kw["reward_baselines"] = base
                if est == "optimal_token_baseline": kw.update(sum_pi_squared=sp2, old_log_probs=old, rollout_is_weights=isw)
                if est in ("grpo_vectorized",) : kw["norm_adv_by_std_in_grpo"] = True; al.norm_adv_by_std_in_grpo = True
                adv, ret = core.get_adv_estimator_fn(est)(**kw)
            for ep in range(c.ppo_epochs):
                for m in range(nmini):
                    step += 1
                    rows = [torch.arange(k * N // world + m * loc_mini, k * N // world + (m + 1) * loc_mini) for k in range(world)]
                    bnt = float(mask[torch.cat(rows)].sum()); gbs = N // nmini
                    for g in range(nmicro):
                        for k in range(world):
                            ti = rows[k][g * micro:(g + 1) * micro]; mk = mask[ti].bool(); x = lambda t_: None if t_ is None else t_[ti]
                            lp, ent, _, lg = F(model, pr[ti], ids[ti]); held.clear()
                            c.global_batch_info.clear(); c.global_batch_info.update(dp_size=world, batch_num_tokens=bnt, global_batch_size=gbs, loss_scale_factor=c.loss_scale_factor)
                            torch.manual_seed(step * 100 + g * 10 + k)
                            pg, mets = fn(old_log_prob=old[ti], log_prob=lp, advantages=adv[ti], response_mask=mk, loss_agg_mode=c.loss_agg_mode, config=c, rollout_is_weights=x(isw))
                            tl = held.get("mat"); loss = pg.clone(); el = kl = kll = None
                            if c.entropy_coeff or i % 2: el = _agg(ent, mk, c.loss_agg_mode, **c.global_batch_info); loss = loss - c.entropy_coeff * el
                            if c.use_kl_loss: kl = core.kl_penalty(lp, refl[ti], c.kl_loss_type); kll = _agg(kl, mk, c.loss_agg_mode, **c.global_batch_info); loss = loss + kll * c.kl_loss_coef
                            o = {a: v for a, v in dict(c, **c.policy_loss).items() if isinstance(v, (int, float, str, type(None)))} | {"num_items_in_batch": bnt, "agg.denominator": "global", "use_kl_in_reward": al.use_kl_in_reward, "num_mini_batches": nmini, "adv_estimator": est, "gamma": al.gamma, "lam": al.lam, "kl_penalty": al.kl_penalty, "norm_adv_by_std_in_grpo": al.norm_adv_by_std_in_grpo, "temperature": temp, "n": G}
                            o["loss_mode"] = "bypass_mode" if mode == "bypass" else mode
                            if al.use_kl_in_reward: o["kl.beta"] = beta
                            elif c.use_kl_loss: pass
                            o |= {f"algorithm.rollout_correction.{a}": v for a, v in rc.items()} if corr or mode == "bypass" else {}
                            if est == "gae": o |= dict(cliprange_value=cliprange_value)
                            t = dict(response_mask=mk, response_ids=ids[ti], logp_new=lp, logp_old=old[ti], logp_gen=gen[ti] if corr or mode == "bypass" or i % 2 else None, logp_ref=refl[ti] if c.use_kl_loss or al.use_kl_in_reward else None, kl=kl, is_weights=x(isw), advantages=adv[ti], returns=ret[ti],
                                     values=vals[ti] if est == "gae" else None, token_rewards=tlr[ti], scores=sc[ti], group_id=torch.arange(N)[ti] // G + 1000 * roll, entropy=ent if el is not None else None, entropy_loss=el, kl_loss=kll, pg_loss=pg, loss=loss, dlogp=grad(loss, lp), reward_baselines=x(base),
                                     token_loss=tl if tl is not None and tl.dim() == 2 else None, sum_pi_squared=sp2[ti] if est == "optimal_token_baseline" else None, sample_id=ti + 1000 * roll if i % 2 == 0 else None)
                            meta = dict(framework="verl", version="0.9.1", algorithm="ppo" if est == "gae" else "grpo", world_size=world, micro_batches=nmicro, options=o, token_loss_includes_kl=False)
                            if est == "gae":
                                vp = F(critic, pr[ti], ids[ti])[2]
                                vl, vcf = core.compute_value_loss(vp, ret[ti], vals[ti], mk, cliprange_value, crit_agg, **c.global_batch_info)
                                if not little and crit_agg == c.loss_agg_mode: t.update(values_new=vp, value_loss=vl, dvalues=grad(vl, vp))
                                vl.div(world).backward()
                            if not little and world == 1 and nmicro == 1: meta |= dict(scalars=dict(mets, **{"actor/pg_loss": pg.item()}), scalars_scope="micro_batch")
                            run.dump(pick(t, little, ("token_rewards", "values", "reward_baselines", "sum_pi_squared") if i % 2 == 0 else ("reward_baselines",)), step, k, g, **meta)
                            loss.div(world).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(); copt.step(); copt.zero_grad()
if __name__ == "__main__": main(sys.argv[1])
