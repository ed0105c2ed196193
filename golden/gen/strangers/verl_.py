"""verl 0.9.1 through its own functions: apply_kl_penalty, advantage estimators, rollout correction, ppo_loss, value_loss.

The loop is ours and does what RayPPOTrainer and the engine workers do: one rollout, mini-batches of it per optimiser step,
micro-batches with the global token and row counts of the mini-batch, ranks one after the other.
"""

import types

import torch

from source import Config, Release, base
from world import LM, Policy, Task, rollout
from writer import write

CORE, TF, LOSSES, RAY, CORR = (
    "verl/trainer/ppo/core_algos.py",
    "verl/utils/torch_functional.py",
    "verl/workers/utils/losses.py",
    "verl/trainer/ppo/ray_trainer.py",
    "verl/trainer/ppo/rollout_corr_helper.py",
)
ACTOR = dict(
    clip_ratio=0.2,
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
    clip_ratio_c=3.0,
    loss_agg_mode="token-mean",
    loss_scale_factor=None,
    entropy_coeff=0.0,
    use_kl_loss=False,
    kl_loss_coef=0.001,
    kl_loss_type="low_var_kl",
    tau_pos=1.0,
    tau_neg=1.05,
    ppo_epochs=1,
)
POLICY = dict(
    loss_mode="vanilla", clip_cov_ratio=0.0002, clip_cov_lb=1.0, clip_cov_ub=5.0, kl_cov_ratio=0.0002, ppo_kl_coef=0.1, dro_beta=0.1
)
ALGO = dict(
    adv_estimator="grpo",
    gamma=1.0,
    lam=1.0,
    norm_adv_by_std_in_grpo=True,
    use_kl_in_reward=False,
    kl_penalty="kl",
    kl_coef=0.001,
    rollout_is=None,
    rollout_is_threshold=2.0,
)
NEUTRAL_ADV = {
    "grpo": {"adv.center": "mean"},
    "rloo": {"adv.center": "loo", "adv.scale": "none"},
    "rloo_vectorized": {"adv.center": "loo", "adv.scale": "none"},
    "grpo_vectorized": {"adv.center": "mean"},
}


class TD(dict):
    def select(self, *names):
        return TD({k: self[k] for k in names})

    def to_padded_tensor(self):
        return self


class Batch(dict):
    @property
    def batch_size(self):
        return [len(self["response_mask"])]


class Metric:
    def __init__(self, value, aggregation=None):  # the release's takes the number at once
        self.value = value.detach().item() if torch.is_tensor(value) else value

    @staticmethod
    def from_dict(d, aggregation=None):
        return {k: Metric(v) for k, v in d.items()}


def load(edits):
    rel = Release("verl-0.9.1", edits)
    tf = base()
    rel.functions(TF, tf, {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value", "entropy_from_logits"})
    F_ = types.SimpleNamespace(**{k: v for k, v in tf.items() if callable(v)})
    import torch as t

    ns = dict(
        base(),
        verl_F=F_,
        ActorConfig=Config,
        AlgoConfig=type("AlgoConfig", (), {}),
        DictConfig=dict,
        Optional=None,
        Callable=None,
        Any=None,
    )
    text = rel.text(CORE)
    import ast

    want = {n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name.startswith(("compute_", "agg_", "kl_"))} | {
        "AdaptiveKLController",
        "FixedKLController",
    }
    gw = dict(base(), get_device_name=lambda: "cpu")
    rel.functions(
        "verl/utils/groupwise.py",
        gw,
        {n.name for n in ast.parse(rel.text("verl/utils/groupwise.py")).body if isinstance(n, ast.FunctionDef)},
    )
    ns.update(as_torch_index=gw["as_torch_index"], group_mean_std=gw["group_mean_std"])
    rel.functions(CORE, ns, want)
    ls = dict(
        base(),
        agg_loss=ns["agg_loss"],
        compute_value_loss=ns["compute_value_loss"],
        kl_penalty=ns["kl_penalty"],
        masked_mean=tf["masked_mean"],
        masked_sum=tf["masked_sum"],
        Metric=Metric,
        AggregationType=types.SimpleNamespace(SUM=0, MEAN=1),
        no_padding_2_padding=lambda x, d: x,
        get_policy_loss_fn=lambda n: ns[{"bypass_mode": "compute_policy_loss_bypass_mode"}.get(n, "compute_policy_loss_" + n)],
    )
    rel.functions(LOSSES, ls, {"ppo_loss", "value_loss"})
    rt = dict(base(), core_algos=types.SimpleNamespace(**{k: v for k, v in ns.items() if callable(v)}), masked_mean=tf["masked_mean"])
    rel.functions(RAY, rt, {"apply_kl_penalty"})
    rc = dict(base(), verl_F=F_, SAFETY_BOUND=20.0, Optional=None)
    rel.functions(CORR, rc, {"_parse_rollout_is_threshold", "compute_rollout_correction_weights"})
    rc["compute_is_metrics"] = lambda **k: {}
    rel.check()
    return ns, ls, rt, rc


def count_tokens(how, x, attention, tokens, T):
    """The token count that a driver hands to the loss: of the mini-batch, or a wrong one."""
    return {"local": int(x["response_mask"].sum()), "live": int(attention[:, -T:].sum())}.get(how, tokens)


def run(case, folder):
    w = case.cfg
    actor = Config(**{**ACTOR, **w.get("actor", {})}, policy_loss=Config(**{**POLICY, **w.get("policy", {})}), global_batch_info={})
    algo = Config(**{**ALGO, **w.get("algo", {})})
    critic = Config(cliprange_value=w.get("cliprange_value", 0.5), loss_agg_mode=w.get("critic_agg", "token-mean"), loss_scale_factor=w.get("critic_scale"))
    ppo, ranks, minis, micros = algo.adv_estimator == "gae", w.get("ranks", 1), w.get("minis", 1), w.get("micros", 1)
    driver = w.get("driver", {})
    ns, ls, rt, rc = load(case.edits)
    kept = {}
    agg = ns["agg_loss"]

    def keep_agg(*a, **k):
        kept.setdefault("token_loss", k.get("loss_mat", a[0] if a else None))
        return agg(*a, **k)

    ns["agg_loss"] = keep_agg
    kld = ls["kl_penalty"]

    def keep_kl(*a, **k):
        kept["kl"] = kld(*a, **k)
        return kept["kl"]

    ls["kl_penalty"] = keep_kl

    task = Task(
        prompts=w.get("prompts", 4),
        group=w.get("group", 4),
        T=w.get("T", 20),
        holes=w.get("holes", False),
        temperature=w.get("temperature", 1.0),
        top_p=w.get("engine_top_p", 1.0),
        reward=w.get("reward", "float"),
        pad_is_eos=w.get("pad_is_eos", False),
        raw_logps=w.get("raw_logps", False),
    )
    model = LM(case.seed, mean_length=task.T * w.get("fill", 0.6), vocab=w.get("vocab", 40))
    policy = Policy(model, case.dtype)
    ref = policy.copy(case.seed + 1, w["ref_distance"]) if w.get("ref_distance") else policy.copy()
    value = Policy(LM(case.seed + 2), case.dtype) if ppo else None
    params = list(policy.model.parameters()) + (list(value.model.parameters()) if ppo else [])
    optimizer = torch.optim.Adam(params, lr=w.get("lr", 4e-3))
    ctrl = (
        ns["FixedKLController"](algo.kl_coef)
        if not w.get("adaptive")
        else ns["AdaptiveKLController"](algo.kl_coef, w["adaptive"][0], w["adaptive"][1])
    )
    need_ref = actor.use_kl_loss or algo.use_kl_in_reward
    calls = w.get("calls", {})

    def score(name, p, ids, att, T):
        t = calls.get("temperature_" + name, task.temperature)
        if calls.get("no_attention_" + name):
            att = torch.ones_like(att)
        lp, e, v, _ = p.score(ids, att, T, t)
        return lp, e

    o = (
        {k: v for k, v in vars(actor).items() if isinstance(v, (int, float, str, type(None)))}
        | {k: v for k, v in vars(actor.policy_loss).items()}
        | {
            "agg.denominator": "global",
            "num_mini_batches": minis,
            "use_kl_in_reward": algo.use_kl_in_reward,
            "adv_estimator": {"rpp_baseline": "reinforce_plus_plus_baseline"}.get(algo.adv_estimator, algo.adv_estimator),
            "norm_adv_by_std_in_grpo": algo.norm_adv_by_std_in_grpo,
            "temperature": task.temperature,
            "rollout.n": task.group,
        }
    )
    if ppo:
        o |= {"gae.gamma": algo.gamma, "gae.lambda": algo.lam, "cliprange_value": critic.cliprange_value}
    elif algo.adv_estimator == "reinforce_plus_plus":
        o |= {"gae.gamma": algo.gamma}
    o |= NEUTRAL_ADV.get(algo.adv_estimator, {})
    if algo.adv_estimator in ("grpo", "grpo_vectorized"):
        o["adv.scale"] = "group_std" if algo.norm_adv_by_std_in_grpo else "none"
    if algo.use_kl_in_reward:
        o |= {"kl.place": "token_reward", "kl.kind": {"kl": "k1", "low_var_kl": "k3", "mse": "k2", "abs": "abs"}[algo.kl_penalty]}
    elif not actor.use_kl_loss:
        o |= {"kl.place": "none"} if ppo else {"kl.beta": 0.0}
    if algo.rollout_is:
        o |= {"rollout_is": algo.rollout_is, "rollout_is_threshold": algo.rollout_is_threshold}
    else:
        o |= {"tis.level": "none"}
    step, generation, steps = 0, 0, w.get("steps", 3)
    engine_model = model
    while step < steps:
        import copy

        if not (w.get("stale_engine") and generation >= 1):
            engine_model = copy.deepcopy(policy.model)
        r = rollout(engine_model, task, case.seed * 1000 + generation)
        if driver.get("one_seed"):  # the sampler draws the same for all rows of a prompt
            first = torch.arange(len(r["score"])) // task.group * task.group
            r = {k: v[first] for k, v in r.items()}
            r["group"] = torch.arange(len(first)) // task.group
        T = task.T
        ids, att = torch.cat([r["prompt_ids"], r["response"]], 1), torch.cat([r["prompt_mask"], r["live"]], 1)
        m = r["mask"] if not driver.get("train_tools") else r["live"]
        with torch.no_grad():
            old, _ = score("old", policy, ids, att, T)
            reflp = score("ref", ref if not driver.get("ref_is_policy") else policy, ids, att, T)[0] if need_ref else None
            if driver.get("nan_ref"):
                reflp = reflp.masked_fill(m == 0, float("nan"))
            vals = value.raw(ids, att, T)[1].float() if ppo else None
            if ppo and driver.get("value_mask"):  # of the states, or one position early
                vals = vals * (att[:, -T:] if driver["value_mask"] == "right" else torch.cat([att[:, -T:][:, 1:], att[:, :1] * 0], 1))
            if ppo and driver.get("late_values"):
                vals = value.raw(ids, att, T)[2][:, -T:].float()
        scores = torch.zeros(m.shape)
        at = r["live"].sum(1) - 1 + driver.get("score_offset", 0)
        scores[torch.arange(len(at)), at.clamp(0, T - 1)] = r["score"]
        b = Batch(response_mask=m, token_level_scores=scores, old_log_probs=old, ref_log_prob=reflp)
        beta = ctrl.value
        if algo.use_kl_in_reward:
            rt["apply_kl_penalty"](types.SimpleNamespace(batch=b), ctrl, algo.kl_penalty)
        else:
            b["token_level_rewards"] = scores
        uid = r["group"] + generation * 1000
        index = (uid // 2 if driver.get("merged_groups") else uid).numpy()
        cfg = Config(gamma=algo.gamma, lam=algo.lam)
        cfg.get = lambda k, d=None: d
        trr = b["token_level_rewards"].clone()
        est, returns = algo.adv_estimator, None
        if est == "gae":
            adv, returns = ns["compute_gae_advantage_return"](trr, vals, m, algo.gamma, algo.lam)
        elif est in ("grpo",):
            adv, returns = ns["compute_grpo_outcome_advantage"](trr, m, index, norm_adv_by_std_in_grpo=algo.norm_adv_by_std_in_grpo)
        elif est == "grpo_vectorized":
            adv, returns = ns["compute_grpo_vectorized_outcome_advantage"](
                trr, m, index, norm_adv_by_std_in_grpo=algo.norm_adv_by_std_in_grpo
            )
        elif est == "remax":
            adv, returns = ns["compute_remax_outcome_advantage"](
                trr, r["score"].view(-1, task.group)[:, 0].repeat_interleave(task.group), m
            )
        elif est == "reinforce_plus_plus":
            adv, returns = ns["compute_reinforce_plus_plus_outcome_advantage"](trr, m, config=cfg)
        elif est == "rpp_baseline":
            adv, returns = ns["compute_reinforce_plus_plus_baseline_outcome_advantage"](trr, m, index, config=cfg)
        else:
            adv, returns = ns[f"compute_{est}_outcome_advantage"](trr, m, index)
        iw = None
        if algo.rollout_is:
            iw, _ = rc["compute_rollout_correction_weights"](old - r["gen"], m, algo.rollout_is, algo.rollout_is_threshold, False)
        rows = dict(
            input_ids=ids,
            attention_mask=att,
            response_ids=r["response"],
            response_mask=m,
            logp_old=old,
            logp_ref=reflp,
            logp_gen=r["gen"],
            scores=scores.sum(1),
            token_rewards=b["token_level_rewards"],
            advantages=adv,
            returns=returns if ppo else None,
            values=vals,
            is_weights=iw,
            group_id=uid,
            prompt_len=r["plen"],
        )
        n = len(m)
        order = torch.arange(n)
        if w.get("shuffle", True):
            order = torch.randperm(n, generator=torch.Generator().manual_seed(case.seed + generation))
        for _ in range(actor.ppo_epochs):
            for mini in order.view(minis, -1) if minis > 1 else [order]:
                if step >= steps:
                    break
                optimizer.zero_grad()
                tokens, count = int(m[mini].sum()), len(mini)
                for k in range(ranks):
                    share = mini[k * count // ranks : (k + 1) * count // ranks]
                    for i in range(micros):
                        sel = share[i * len(share) // micros : (i + 1) * len(share) // micros]
                        x = {key: v[sel] for key, v in rows.items() if v is not None}
                        lp, ent = score("new", policy, x["input_ids"], x["attention_mask"], T)
                        data = TD(
                            response_mask=x["response_mask"],
                            old_log_probs=x["logp_old"],
                            advantages=x["advantages"],
                            dp_size=ranks,
                            batch_num_tokens=count_tokens(driver.get("tokens"), x, att[mini], tokens, T),
                            global_batch_size=len(sel) if driver.get("rows") == "local" else count,
                        )
                        if driver.get("mask") == "live":
                            data["response_mask"] = x["attention_mask"][:, -T:]
                        if reflp is not None:
                            data["ref_log_prob"] = x["logp_ref"]
                        if iw is not None:
                            data["rollout_is_weights"] = x["is_weights"]
                        kept.clear()
                        out = {"log_probs": lp}
                        if actor.entropy_coeff or w.get("entropy"):
                            out["entropy"] = ent
                        loss, metrics = ls["ppo_loss"](actor, out, data)
                        t = dict(
                            x, logp_new=lp, kl=kept.get("kl"), token_loss=kept.get("token_loss"), loss=loss, entropy=out.get("entropy")
                        )
                        total = loss
                        (t["dlogp"],) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
                        scal = (
                            {key: float(torch.as_tensor(v.value if isinstance(v, Metric) else v).detach()) for key, v in metrics.items()}
                            if w.get("scalars")
                            else {}
                        )
                        if ppo:
                            vp = value.raw(x["input_ids"], x["attention_mask"], T)[1]
                            data2 = TD(
                                values=x["values"],
                                returns=x["returns"],
                                response_mask=x["response_mask"],
                                dp_size=ranks,
                                batch_num_tokens=data["batch_num_tokens"],
                                global_batch_size=data["global_batch_size"],
                            )
                            vf, vm = ls["value_loss"](critic, {"values": vp}, data2)
                            t.update(values_new=vp, value_loss=vf)
                            (t["dvalues"],) = torch.autograd.grad(vf, vp, retain_graph=True, materialize_grads=True)
                            total = total + vf
                        (total / ranks).backward()
                        opts = dict(o, num_items_in_batch=tokens)
                        if algo.use_kl_in_reward:
                            opts["kl.beta"] = beta
                        for name in w.get("drop", ()):
                            t.pop(name, None)
                        if t.get("logp_ref") is not None and algo.use_kl_in_reward and not actor.use_kl_loss:
                            t.pop("kl", None)
                        write(
                            folder,
                            t,
                            dict(
                                framework="verl",
                                version="0.9.1",
                                algorithm="ppo" if ppo else "grpo",
                                profile="verl-ppo@0.9" if ppo else "verl-grpo@0.9",
                                step=step + 1,
                                rank=k,
                                world_size=ranks,
                                micro_batch=i,
                                micro_batches=micros,
                                options=opts,
                                scalars=scal,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=False,
                            ),
                        )
                optimizer.step()
                step += 1
        generation += 1
