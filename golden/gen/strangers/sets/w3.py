"""w3: verl 0.9.1, its own core_algos (estimators, losses, aggregation, KL, value loss), rollout_corr_helper (weights, rejection), losses.py (ppo_loss,
value_loss), loaded from the released files with stub packages around them."""
import sys, importlib.util
import numpy as np
from world_w import *
VD = f"{SRC}/verl-0.9.1/verl"


def stub(name, **kw):
    m = types.ModuleType(name); m.__dict__.update(kw); m.__path__ = []; sys.modules[name] = m; return m


class Cfg(dict):
    __getattr__ = dict.__getitem__
    def __setattr__(self, k, v): self[k] = v


class ActorConfig(Cfg): pass
class CriticConfig(Cfg): pass
class AlgoConfig(Cfg): pass


class TD(dict):
    def select(self, *k): return TD({x: self[x] for x in k if x in self})
    def to_padded_tensor(self): return self


class Metric:
    def __init__(self, value, aggregation): self.value, self.aggregation = value, aggregation
    @classmethod
    def from_dict(cls, d, aggregation): return {k: cls(v, aggregation) for k, v in d.items()}


class Proto:
    def __init__(self, b): self.batch = b
    @staticmethod
    def from_dict(tensors): return Proto(tensors)


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path); m = importlib.util.module_from_spec(spec); sys.modules[name] = m; spec.loader.exec_module(m); return m


for n in ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo", "verl.workers", "verl.utils.dataset", "verl.workers.utils", "verl.trainer.config.algorithm"): stub(n)
stub("omegaconf", DictConfig=dict)
stub("tensordict", TensorDict=TD)
stub("verl.utils.device", get_device_name=lambda: "cpu")
gw = load("verl.utils.groupwise", f"{VD}/utils/groupwise.py")
sys.modules["verl.utils"].as_torch_index, sys.modules["verl.utils"].group_mean_std = gw.as_torch_index, gw.group_mean_std
F_ = dict(torch=torch)
_, tf = tree(f"{VD}/utils/torch_functional.py")
exec_nodes([find_def(tf, n) for n in ("masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value")], F_)
vf = stub("verl.utils.torch_functional", **{k: F_[k] for k in ("masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value")})
sys.modules["verl.utils"].torch_functional = vf
stub("verl.trainer.config", AlgoConfig=AlgoConfig)
stub("verl.utils.import_utils", deprecated=lambda *_: (lambda f: f))
stub("verl.workers.config", ActorConfig=ActorConfig, CriticConfig=CriticConfig)
stub("verl.workers.config.actor", PolicyLossConfig=Cfg)
sys.modules["verl.trainer.config.algorithm"].RolloutCorrectionConfig = Cfg
stub("verl.protocol", DataProto=Proto)
core = load("verl.trainer.ppo.core_algos", f"{VD}/trainer/ppo/core_algos.py")
corr = load("verl.trainer.ppo.rollout_corr_helper", f"{VD}/trainer/ppo/rollout_corr_helper.py")
stub("verl.utils.tensordict_utils", get_non_tensor_data=lambda **k: None)
sys.modules["verl.utils"].tensordict_utils = sys.modules["verl.utils.tensordict_utils"]
stub("verl.utils.dataset.dataset_utils", DatasetPadMode=types.SimpleNamespace(NO_PADDING=0))
stub("verl.utils.metric", AggregationType=types.SimpleNamespace(SUM="sum", MEAN="mean"), Metric=Metric)
stub("verl.workers.utils.padding", no_padding_2_padding=lambda x, d: x)
losses = load("verl.workers.utils.losses", f"{VD}/workers/utils/losses.py")
RAY = {}
exec_nodes([copy.deepcopy(find_def(tree(f"{VD}/trainer/ppo/ray_trainer.py")[1], "apply_kl_penalty"))], dict(core_algos=core, masked_mean=vf.masked_mean, torch=torch, DataProto=Proto)) if False else None
rt = dict(core_algos=core, masked_mean=vf.masked_mean, torch=torch, DataProto=Proto, AdvantageEstimator=core.AdvantageEstimator, AlgoConfig=AlgoConfig, Optional=__import__("typing").Optional)
exec_nodes([find_def(tree(f"{VD}/trainer/ppo/ray_trainer.py")[1], n) for n in ("apply_kl_penalty", "compute_advantage")], rt)


def run(cases, name, note, algo, actor, pl, rc, rng, little, critic=False, n_prompts=6, n=4, mini=2, micro=2, epochs=1, world=1, Tm=16, lr=1e-2, temp=1.0, noise=0.0, engine="same", rkind="share", kind="gru", rollouts=2, drop=(),
        seed=0, holes=False, ragged=False, prog="w3", flags=(), V=30, gdpo=None):
    ppo_alg = "ppo" if critic else "grpo"
    case = Case(cases, prog, name, note, flags, little)
    g = torch.Generator().manual_seed(seed); torch.manual_seed(seed); rs = random.Random(seed)
    model = LM(V=V, kind=kind, eos_bias=rng.choice([0.3, 0.9])); ref = copy.deepcopy(model); crit = LM(V=V, H=16, value=True)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(0.03 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01); copt = torch.optim.AdamW(crit.parameters(), lr=lr)
    cfg = ActorConfig(dict(dict(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, loss_agg_mode="token-mean", loss_scale_factor=None, entropy_coeff=0.0, use_kl_loss=False, kl_loss_coef=0.001,
                                kl_loss_type="low_var_kl", tau_pos=1.0, tau_neg=1.05), **actor))
    cfg["policy_loss"] = Cfg(dict(loss_mode="vanilla", clip_cov_ratio=0.0002, clip_cov_lb=1.0, clip_cov_ub=5.0, kl_cov_ratio=0.0002, ppo_kl_coef=0.1, dro_beta=None, **{}), **pl)
    cfg["global_batch_info"] = {}
    algo = AlgoConfig(dict(dict(adv_estimator="grpo", gamma=1.0, lam=1.0, norm_adv_by_std_in_grpo=True, use_kl_in_reward=False, kl_penalty="kl"), **algo))
    ctl = core.FixedKLController(algo.get("kl_coef", 0.001))
    rc = Cfg(rc)
    if rc.get("bypass_mode"): cfg["policy_loss"].update(rollout_correction=rc, loss_mode="bypass_mode")
    vc = CriticConfig(cliprange_value=algo.pop("cliprange_value", 0.5), loss_agg_mode=cfg.loss_agg_mode, loss_scale_factor=cfg.loss_scale_factor)  # critic.yaml: both are the actor's
    step = 0
    for ro in range(rollouts):
        p, gid = prompts_for(n_prompts, n, 4, V, g); N = len(gid)
        force, hole = None, None
        if holes:
            hole = torch.zeros(N, Tm, dtype=torch.bool)
            for b in range(N):
                if rs.random() < 0.8: a = rs.randrange(1, Tm - 5); hole[b, a:a + rs.randrange(1, 5)] = True
            def force(t, lg): lg = lg.clone(); lg[hole[:, t]] = -1e9; lg[hole[:, t], 7 + t % 5] = 0.0; return lg
        resp, mask, lpg = generate(engine_of(model, engine), p, Tm, g, temp, noise, force)
        if holes: mask = mask & ~hole; lpg = lpg.masked_fill(hole, 0.0)
        rm = mask.long()
        sc = reward(rkind, resp, mask, g)
        last = torch.where(mask, torch.arange(Tm), torch.zeros(())).argmax(1)
        tls = torch.zeros(N, Tm); tls[torch.arange(N), last] = sc
        with torch.no_grad():
            old, ent0, _, lg0 = score(model, p, resp, temp); rf = score(ref, p, resp, temp)[0]; val = score(crit, p, resp)[2]
            pi2 = (lg0 / temp).softmax(-1).square().sum(-1)
        b = TD(response_mask=rm, token_level_scores=tls, old_log_probs=old, ref_log_prob=rf, values=val, rollout_log_probs=lpg, sum_pi_squared=pi2, responses=resp, prompts=p, attention_mask=torch.cat([torch.ones_like(p), (mask | (hole if holes else False)).long()], 1))
        data = types.SimpleNamespace(batch=types.SimpleNamespace(), non_tensor_batch={"uid": np.array([f"u{ro}-{int(x)}" for x in gid], dtype=object)})
        class B(TD):
            batch_size = [N]
        data.batch = B(b)
        if rc.get("bypass_mode"): data.batch["old_log_probs"] = lpg
        if algo.use_kl_in_reward: data, _ = rt["apply_kl_penalty"](data, ctl, algo.kl_penalty)
        else: data.batch["token_level_rewards"] = tls
        isw = None
        if rc.get("bypass_mode"): data.batch["old_log_probs"] = lpg
        elif rc:
            pr, newm, _ = corr.compute_rollout_correction_and_rejection_mask(old, lpg, rm, rc.get("rollout_is"), rc.get("rollout_is_threshold", 2.0), rc.get("rollout_is_batch_normalize", False), rc.get("rollout_rs"), rc.get("rollout_rs_threshold"))
            data.batch["response_mask"] = newm
            if pr: isw = data.batch["rollout_is_weights"] = pr.batch["rollout_is_weights"]
        if algo.adv_estimator == "remax":
            gr, gm, _ = generate(engine_of(model), p, Tm, g, 0.01); data.batch["reward_baselines"] = reward(rkind, gr, gm, g)
        est = core.AdvantageEstimator(algo.adv_estimator)
        data = rt["compute_advantage"](data, est, algo.gamma, algo.lam, n, algo.norm_adv_by_std_in_grpo, algo)
        D = data.batch
        per = N // world
        for ep in range(epochs):
            order = [torch.tensor(rs.sample(range(per), per)) + r * per if actor.get("shuffle") else torch.arange(per) + r * per for r in range(world)]
            for k in range(mini):
                step += 1
                ix = [o[k * per // mini:(k + 1) * per // mini] for o in order]
                tok = int(D["response_mask"][torch.cat(ix)].sum()); gb = sum(len(i) for i in ix)
                for r in range(world):
                    # micro-batches: equal, or of sizes that differ (use_dynamic_bsz)
                    if ragged: cuts = sorted(rs.sample(range(1, len(ix[r])), micro - 1)); parts = [ix[r][a:c] for a, c in zip([0] + cuts, cuts + [len(ix[r])])]
                    else: parts = list(ix[r].chunk(micro))
                    for j, i in enumerate(parts):
                        lp, ent, _, lg = score(model, p[i], resp[i], temp)
                        dd = TD({x: D[x][i] for x in ("response_mask", "old_log_probs", "advantages", "ref_log_prob", "values", "returns") if x in D})
                        if isw is not None: dd["rollout_is_weights"] = isw[i]
                        if not cfg.use_kl_loss: dd.pop("ref_log_prob", None)
                        dd.update(dp_size=world, batch_num_tokens=tok, global_batch_size=gb)
                        seen = {}
                        real = core.agg_loss
                        def spy(loss_mat, **kw): seen.setdefault("mats", []).append(loss_mat); return real(loss_mat=loss_mat, **kw)
                        core.agg_loss = spy; losses.agg_loss = lambda loss_mat, **kw: real(loss_mat=loss_mat, **kw)
                        use_ent = cfg.entropy_coeff != 0 or rng.random() < 0
                        loss, met = losses.ppo_loss(cfg, dict(log_probs=lp, entropy=ent if use_ent else None), dd)
                        core.agg_loss = losses.agg_loss = real
                        dl, = grads(loss, lp); (loss / world).backward(retain_graph=True)
                        tl = seen["mats"][0] if seen.get("mats") else None
                        if pl.get("loss_mode") == "geo_mean": tl = None
                        kld = core.kl_penalty(lp, D["ref_log_prob"][i], cfg.kl_loss_type) if cfg.use_kl_loss else None
                        t = dict(response_ids=resp[i], response_mask=D["response_mask"][i].bool(), logp_new=lp, logp_old=D["old_log_probs"][i], logp_gen=lpg[i] if (rc or noise or engine != "same") else None,
                                 logp_ref=D["ref_log_prob"][i] if cfg.use_kl_loss or algo.use_kl_in_reward else None, kl=kld, is_weights=None if isw is None else isw[i], entropy=ent, advantages=D["advantages"][i], returns=D["returns"][i] if critic else None,
                                 values=val[i] if critic else None, token_rewards=D["token_level_rewards"][i], scores=sc[i], group_id=(gid + ro * 1000)[i], loss=loss, pg_loss=met["actor/pg_loss"].value, token_loss=tl, dlogp=dl,
                                 entropy_loss=met["actor/entropy_loss"].value if use_ent else None, kl_loss=met["kl_loss"].value if cfg.use_kl_loss else None, sample_id=i + ro * N, reward_baselines=D["reward_baselines"][i] if "reward_baselines" in D else None,
                                 sum_pi_squared=pi2[i] if "optimal" in algo.adv_estimator else None)
                        if met["actor/pg_loss"].value is not loss: pass
                        t["pg_loss"] = None if (use_ent or cfg.use_kl_loss) else t["pg_loss"]  # ppo_loss adds the other terms in place (policy_loss is pg_loss)
                        if critic:
                            vp = score(crit, p[i], resp[i])[2]
                            vl, vm = losses.value_loss(vc, dict(values=vp), TD({**{x: D[x][i] for x in ("values", "returns", "response_mask")}, "dp_size": world, "batch_num_tokens": tok, "global_batch_size": gb}))
                            dv, = grads(vl, vp); (vl / world).backward()
                            t.update(values_new=vp, value_loss=vl, dvalues=dv)
                        o = {x: y for x, y in cfg.items() if x not in ("policy_loss", "global_batch_info") and y is not None}
                        o |= {x: y for x, y in cfg["policy_loss"].items() if x != "rollout_correction" and (x == "loss_mode" or x in pl)}
                        o |= {x: y for x, y in algo.items()}
                        o |= {x: y for x, y in rc.items()}
                        if critic: o["cliprange_value"] = vc.cliprange_value
                        o |= {"num_items_in_batch": tok, "agg.denominator": "global", "num_mini_batches": mini, "rollout.n": n, "temperature": temp, "eos_token_id": EOS}
                        if rc.get("bypass_mode") or algo.adv_estimator not in ("gae",): pass
                        m = {k2: (v.value if isinstance(v, Metric) else v) for k2, v in met.items()}
                        m = {k2: v for k2, v in m.items() if k2 in ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")}
                        case.put(dict(framework="verl", version="0.9.1", algorithm=ppo_alg, step=step, rank=r, world_size=world, micro_batch=j, micro_batches=len(parts), options=o, scalars=fin(m), scalars_scope="micro_batch", token_loss_includes_kl=False), t, drop)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
                if critic: nn.utils.clip_grad_norm_(crit.parameters(), 1.0); copt.step(); copt.zero_grad()


EST = ["grpo", "rloo", "reinforce_plus_plus", "gae", "opo", "grpo_vectorized", "gpg", "remax", "reinforce_plus_plus_baseline", "gae", "grpo_passk", "rloo_vectorized", "optimal_token_baseline"]
LOSS = ["vanilla", "gspo", "cispo", "sapo", "dppo_tv", "dppo_kl", "gpg", "geo_mean", "dro", "kl_cov", "vanilla", "clip_cov"]
AGG = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"]


def main(cases):
    for i in range(22):
        r = random.Random(9300 + i); little = i % 3 == 2
        est, loss = EST[i % len(EST)], LOSS[(i * 5) % len(LOSS)]
        critic = est == "gae"
        if critic and loss in ("geo_mean",): loss = "vanilla"
        algo = dict(adv_estimator=est, **pick(r, norm_adv_by_std_in_grpo=[True, False], use_kl_in_reward=[False, False, True], kl_penalty=["kl", "k2", "k3", "abs"]))
        if est in ("gae", "reinforce_plus_plus"): algo.update(pick(r, gamma=[1.0, 0.97]))
        if critic: algo.update(pick(r, lam=[1.0, 0.9], cliprange_value=[0.5, 0.1]))
        if algo["use_kl_in_reward"]: algo["kl_coef"] = r.choice([0.05, 0.2])
        actor = pick(r, clip_ratio_low=[0.2, 0.1], clip_ratio_high=[0.2, 0.28], clip_ratio_c=[3.0, 1.6, 10.0], loss_agg_mode=AGG, entropy_coeff=[0.0, 0.0, 0.02], use_kl_loss=[False, True], kl_loss_coef=[0.01, 0.3],
                     kl_loss_type=["low_var_kl", "k1", "k2", "abs", "k3+", "k1+"], shuffle=[False, True])
        if algo["use_kl_in_reward"]: actor["use_kl_loss"] = False
        pl = dict(loss_mode=loss)
        if loss == "dro": pl["dro_beta"] = r.choice([0.1, 1.0])
        if loss in ("kl_cov",): pl.update(kl_cov_ratio=0.1, ppo_kl_coef=0.5)
        if loss in ("clip_cov",): pl.update(clip_cov_ratio=0.05, clip_cov_lb=0.2, clip_cov_ub=5.0)
        if loss == "gspo": actor.update(clip_ratio_low=3e-3, clip_ratio_high=4e-3)
        if loss in ("dppo_tv", "dppo_kl"): actor.update(clip_ratio_low=0.05, clip_ratio_high=0.08)
        if loss in ("sapo", "geo_mean"):
            actor["loss_agg_mode"] = "seq-mean-token-mean" if loss == "sapo" else "token-mean"; actor["entropy_coeff"] = 0.0
        if actor["loss_agg_mode"] == "seq-mean-token-sum-norm": actor["loss_scale_factor"] = r.choice([None, 64])
        rc = {}
        if r.random() < 0.5:
            rc = dict(rollout_is=r.choice(["token", "sequence"]), rollout_is_threshold=r.choice([2.0, 1.3, "0.5_1.5"]), rollout_is_batch_normalize=r.choice([False, False, True]))
            if r.random() < 0.4: rc.update(rollout_rs=r.choice(["token_k1", "seq_mean_k3", "seq_max_k2"]), rollout_rs_threshold=0.02); rc["rollout_rs_threshold"] = "0.8_1.25" if rc["rollout_rs"].endswith("k1") else 0.05
        if i in (10, 20): rc, loss, pl, algo["adv_estimator"] = dict(bypass_mode=True, loss_type="ppo_clip"), "vanilla", {}, "grpo"; critic = False
        if loss == "geo_mean": rc = {}
        n_prompts, n = r.choice([(6, 4), (8, 4), (12, 2), (4, 6)]); world = 2 if i in (1, 8, 15) else 1
        mini, micro = r.choice([(1, 2), (2, 1), (2, 2), (2, 3)])
        note = f"verl 0.9.1, {algo}, {actor}, {pl}, rollout correction {rc}, world {world}, {mini} mini-batches of {micro}"
        run(cases, f"{i:02d}_{algo['adv_estimator']}_{loss}", note, algo, actor, pl, rc, r, little, critic, n_prompts, n, mini, micro, r.choice([1, 2, 3]), world, r.choice([12, 18, 28]), r.choice([3e-3, 2e-2]), r.choice([1.0, 0.8]),
            noise=r.choice([0.05, 0.2]) if rc else 0.0, engine=r.choice(["same", "bf16"]), rkind=r.choice(["share", "sign", "noisy", "length"]), kind=r.choice(["gru", "attn"]), drop=r.choice([(), ("dlogp",), ("token_loss",), ("kl", "entropy")]) if not actor["entropy_coeff"] else (), seed=i,
            holes=i in (3, 6, 12, 18), ragged=i in (4, 13, 19))


if __name__ == "__main__": main(sys.argv[1])
