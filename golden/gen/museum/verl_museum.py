"""verl: its advantage estimators, losses, metrics and workers' statements."""

import contextlib
import copy
import itertools
import types

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scene import BOTH, Scene, case, gradient, meta, ns
from source import base

CORE, TF, ACTOR = "verl/trainer/ppo/core_algos.py", "verl/utils/torch_functional.py", "verl/workers/actor/dp_actor.py"
GRPO, PPO = "verl-grpo@0.9", "verl-ppo@0.9"


def core(rel):
    """core_algos of a release over its own torch_functional."""
    tf = base()
    rel.functions(TF, tf, {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"})
    out = dict(base(), verl_F=ns(**{k: v for k, v in tf.items() if callable(v)}), Optional=None, Callable=None, Any=None, np=np)
    if "as_torch_index" in rel.text(CORE):
        gw = dict(base(), get_device_name=lambda: "cpu")
        rel.functions("verl/utils/groupwise.py", gw, {"as_torch_index", "group_mean_std", "_to_1d_numpy_object_array", "is_cuda_available", "get_device_name"})
        out.update(as_torch_index=gw["as_torch_index"], group_mean_std=gw["group_mean_std"])
    want = {"agg_loss", "kl_penalty", "kl_penalty_forward", "compute_value_loss", "compute_policy_loss", "compute_policy_loss_vanilla", "compute_gae_advantage_return", "compute_grpo_outcome_advantage",
            "compute_reinforce_plus_plus_outcome_advantage"}
    rel.functions(CORE, out, want)
    return out, tf


def token_rewards(s):
    r = torch.zeros(s.mask.shape)
    r[torch.arange(len(r)), s.r["live"].sum(1) - 1] = s.scores
    return r


@case("verl-7300")
def holes(rel, side, seed, dtype):
    s = Scene(seed, T=14, holes=True)
    f, _ = core(rel)
    tr = token_rewards(s)
    cfg = ns(gamma=0.97)
    adv, ret = f["compute_reinforce_plus_plus_outcome_advantage"](tr, s.mask, config=cfg)
    yield dict(s.tokens(), scores=s.scores, token_rewards=tr, advantages=adv, logp_gen=s.gen), meta(
        "verl", rel, "grpo", GRPO, options={"adv_estimator": "reinforce_plus_plus", "gae.gamma": 0.97, "kl.beta": 0.0, "use_kl_in_reward": False}
    )


@case("verl-6957", BOTH)
def value_loss(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    f, _ = core(rel)
    values = s.normal(*s.mask.shape, std=0.5) * s.mask
    if dtype == "bf16":
        values = values.bfloat16().float()
    tr, adv, returns = gae(rel, s, values)
    ls = dict(base(), agg_loss=f["agg_loss"], compute_value_loss=f["compute_value_loss"], masked_mean=f["verl_F"].masked_mean, masked_sum=f["verl_F"].masked_sum,
              no_padding_2_padding=lambda x, d: x, Metric=lambda value, aggregation=None: value, AggregationType=ns(SUM=0, MEAN=1))
    ls["Metric"] = type("Metric", (), {"__init__": lambda self, value, aggregation=None: None, "from_dict": staticmethod(lambda d, aggregation=None: d)})
    rel.functions("verl/workers/utils/losses.py", ls, {"value_loss"})
    order = s.mask.sum(1).argsort()
    n = len(order) // 2
    tokens = int(s.mask.sum())

    class TD(dict):
        def select(self, *names):
            return TD({k: self[k] for k in names})

        def to_padded_tensor(self):
            return self

    for i in range(2):
        sel = order[i * n : (i + 1) * n]
        new = (values[sel] + 0.3 * s.normal(n, s.T)).requires_grad_()
        data = TD(values=values[sel], returns=returns[sel], response_mask=s.mask[sel], dp_size=1, batch_num_tokens=tokens, global_batch_size=2 * n)
        loss, _ = ls["value_loss"](ns(cliprange_value=0.2, loss_agg_mode="token-mean", loss_scale_factor=None), {"values": new}, data)
        yield dict(response_mask=s.mask[sel], values=values[sel], values_new=new, token_rewards=tr[sel], advantages=adv[sel], returns=returns[sel], value_loss=loss, dvalues=gradient(loss, new)), meta(
            "verl", rel, "ppo", PPO, micro=i, micros=2, options={"kl.place": "none", "gae.gamma": 0.99, "gae.lambda": 0.95, "cliprange_value": 0.2, "agg.denominator": "global", "loss_agg_mode": "token-mean", "num_items_in_batch": tokens}
        )


def gae(rel, s, values, mask=None):
    tr = token_rewards(s)
    f, _ = core(rel)
    return tr, *f["compute_gae_advantage_return"](tr, values, mask if mask is not None else s.mask, 0.99, 0.95)


def critic_values(rel, s, dynamic):
    """DataParallelPPOCritic.compute_values of the release around a small value head."""
    space = dict(base(), itertools=itertools, DataProto=type("DataProto", (), {}), rearrange_micro_batches=None, get_reverse_idx=None)
    critic = s.old.copy(7, 0.2)

    class TD(dict):
        def split(self, n):
            return [TD({k: v[i : i + n] for k, v in self.items()}) for i in range(0, len(self["responses"]), n)]

    batch = TD(responses=s.r["response"], input_ids=s.ids, attention_mask=s.att, position_ids=s.att)

    def dynamic_split(batch, max_token_len):
        order = batch["attention_mask"].sum(1).argsort(descending=True).tolist()
        parts = [order[::2], order[1::2]]
        return [TD({k: v[p] for k, v in batch.items()}) for p in parts], parts

    lists = dict(base(), copy=copy)
    rel.functions("verl/utils/seqlen_balancing.py", lists, {"get_reverse_idx"})
    space.update(rearrange_micro_batches=dynamic_split, get_reverse_idx=lists["get_reverse_idx"])
    f = rel.method("verl/workers/critic/dp_critic.py", "compute_values", space)
    self = ns(critic_module=ns(eval=lambda: None), ulysses_sequence_parallel_size=1, _forward_micro_batch=lambda x: critic.raw(x["input_ids"], x["attention_mask"], s.T)[1].float())
    data = ns(batch=batch, meta_info=dict(micro_batch_size=4, use_dynamic_bsz=dynamic, max_token_len=100), non_tensor_batch={})
    data.select = lambda batch_keys, **k: ns(batch=batch)
    return f(self, data).detach()


def critic_case(rel, s, values):
    tr, adv, ret = gae(rel, s, values)
    return dict(s.tokens(), response_ids=s.r["response"], input_ids=s.ids, attention_mask=s.att, values=values, token_rewards=tr, scores=s.scores, advantages=adv, returns=ret), meta(
        "verl", rel, "ppo", PPO, options={"gae.gamma": 0.99, "gae.lambda": 0.95, "kl.place": "none"}
    )


@case("verl-1850")
def critic_mask(rel, side, seed, dtype):
    s = Scene(seed)
    yield critic_case(rel, s, critic_values(rel, s, False))


@case("verl-1440")
def critic_order(rel, side, seed, dtype):
    s = Scene(seed)
    yield critic_case(rel, s, critic_values(rel, s, True))


@case("c-verl-1960")
def critic_slice(rel, side, seed, dtype):
    s = Scene(seed)
    if side == "affected":
        values = critic_values(rel, s, False)
    else:
        critic = s.old.copy(7, 0.2)
        values = (critic.raw(s.ids, s.att, s.T)[1].float() * s.att[:, -s.T :]).detach()
    yield critic_case(rel, s, values)


@case("verl-2259")
def last_kl(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    f, _ = core(rel)
    order = s.mask.sum(1).argsort()
    n = len(order) // 2
    old, ref = s.logps(s.old), s.logps(s.ref)
    adv = s.normal(len(order), 1).expand(-1, s.T) * s.mask
    kept = []

    class Micro(dict):
        def to(self, device):
            return self

        @property
        def batch(self):
            return self

        non_tensor_batch = {}

    rows = Micro(responses=s.r["response"], response_mask=s.mask, input_ids=s.ids, attention_mask=s.att, position_ids=s.att, old_log_probs=old, advantages=adv, ref_log_prob=ref)

    class Data(Micro):
        @property
        def batch(self):
            return self

        def select(self, batch_keys, non_tensor_batch_keys=()):
            return self

        def split(self, size):
            B = len(self["responses"])
            if size >= B:
                return [self]
            return [Data({k: v[order[i : i + size]] for k, v in self.items()}) for i in range(0, B, size)]

    data = Data(rows)
    data.meta_info, data.non_tensor_batch = {"temperature": 1.0}, {}

    def forward(data=None, temperature=None, calculate_entropy=False, micro_batch=None):
        d = micro_batch if micro_batch is not None else data
        lp = s.new.score(d["input_ids"], d["attention_mask"], s.T)[0].detach().requires_grad_()
        kept.append((d, lp))
        return None, lp

    def append_to_dict(metrics, new):
        for k, v in new.items():
            metrics.setdefault(k, [])
            metrics[k].append(v)

    space = dict(base(), DataProto=type("DataProto", (), {}), append_to_dict=append_to_dict, get_device_id=lambda: "cpu", get_torch_device=lambda: "cpu", **{k: f[k] for k in ("compute_policy_loss", "agg_loss", "kl_penalty")})
    space["torch"] = torch
    update = rel.method(ACTOR, "update_policy", space)

    class C(types.SimpleNamespace):
        def get(self, k, d=None):
            return getattr(self, k, d)

    self = ns(
        actor_module=ns(train=lambda: None), ulysses_sequence_parallel_size=1, actor_optimizer=ns(zero_grad=lambda: None), _optimizer_step=lambda: torch.tensor(1.0),
        config=C(use_kl_loss=True, ppo_mini_batch_size=2 * n, ppo_epochs=1, use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=n, clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0,
                 entropy_coeff=0, loss_agg_mode="token-mean", policy_loss=C(loss_mode="vanilla"), kl_loss_coef=0.05, kl_loss_type="low_var_kl"),
        _forward_micro_batch=lambda *a, **k: forward(*a, **k),
    )
    metrics = update(self, data)
    logged = metrics["actor/kl_loss"]
    mean = float(np.mean(logged))  # reduce_metrics: numpy's mean of the list, or of the number
    for i, (d, lp) in enumerate(kept):
        kl = f["kl_penalty"](lp, d["ref_log_prob"], "low_var_kl")
        yield dict(response_mask=d["response_mask"], logp_new=lp, logp_old=d["old_log_probs"], logp_ref=d["ref_log_prob"], kl=kl, kl_loss=f["agg_loss"](kl, d["response_mask"], "token-mean") / 2), meta(
            "verl", rel, "grpo", GRPO, micro=i, micros=2, scalars={"actor/kl_loss": mean}, scalars_scope="optimizer_step",
            options={"use_kl_loss": True, "kl_loss_coef": 0.05, "kl_loss_type": "low_var_kl", "agg.denominator": "micro", "agg.div_ga": True, "loss_agg_mode": "token-mean"},
        )


@case("verl-2377")
def nan_outside(rel, side, seed, dtype):
    s = Scene(seed)
    f, _ = core(rel)
    old, ref = s.logps(s.old), s.logps(s.ref).masked_fill(s.mask == 0, float("nan"))
    new = s.logps(s.new).requires_grad_()
    adv = s.advantages()[:, None].expand(-1, s.T) * s.mask
    pg = f["compute_policy_loss"](old_log_prob=old, log_prob=new, advantages=adv, response_mask=s.mask, cliprange=0.2, cliprange_low=0.2, cliprange_high=0.2, clip_ratio_c=3.0, loss_agg_mode="token-mean")[0]
    kl = f["kl_penalty"](new, ref, "low_var_kl")
    kl_loss = f["agg_loss"](loss_mat=kl, loss_mask=s.mask, loss_agg_mode="token-mean")
    loss = pg + 0.05 * kl_loss
    yield dict(s.tokens(), logp_new=new, logp_old=old, logp_ref=ref, kl=kl, scores=s.scores, advantages=adv, pg_loss=pg, loss=loss), meta(
        "verl", rel, "grpo", GRPO, options={"use_kl_loss": True, "kl_loss_coef": 0.05, "kl_loss_type": "low_var_kl", "agg.denominator": "micro", "tis.level": "none"}
    )


@case("verl-2543")
def megatron_mask(rel, side, seed, dtype):
    s = Scene(seed, T=14, holes=True)
    f, _ = core(rel)
    path = "verl/workers/actor/megatron_actor.py"
    text = rel.text(path)
    kept = {}
    agg = f["agg_loss"]

    def keep(*a, **k):
        kept["mask"] = k.get("loss_mask", a[1] if len(a) > 1 else None)
        kept.setdefault("token_loss", k.get("loss_mat", a[0] if a else None))
        return agg(*a, **k)

    f["agg_loss"] = keep

    class C(types.SimpleNamespace):
        def get(self, k, d=None):
            return getattr(self, k, d)

    cfg = C(loss_agg_mode="token-mean", clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, entropy_coeff=0, policy_loss=C(loss_mode="vanilla"), use_kl_loss=False)
    space = dict(base(), self=ns(config=cfg), forward_only=False, post_process_fn=None, calculate_entropy=False, compute_policy_loss=f["compute_policy_loss"], agg_loss=keep, kl_penalty=f["kl_penalty"],
                 append_to_dict=lambda m, d: m.update(d))
    loss_func = rel.method(path, "loss_func", space)
    new = s.logps(s.new).requires_grad_()
    whole = torch.cat([torch.zeros(len(new), s.ids.shape[1] - s.T - 1), new, torch.zeros(len(new), 1)], 1)
    adv = s.advantages()[:, None].expand(-1, s.T)
    data = dict(responses=s.r["response"], attention_mask=s.att, response_mask=s.mask, old_log_probs=s.logps(s.old), advantages=adv * (s.mask if rel.name != "verl-0.4.1" else s.r["live"]))
    out = loss_func({"log_probs": whole}, data, {"entropy_coeff": 0})
    loss = out[0]
    yield dict(s.rows(), logp_new=new, logp_old=data["old_log_probs"], advantages=data["advantages"], scores=s.scores, logp_gen=s.gen, loss=loss, dlogp=gradient(loss, new)), meta(
        "verl", rel, "grpo", GRPO, options={"use_kl_loss": False, "agg.denominator": "micro", "loss_agg_mode": "token-mean", "tis.level": "none", "kl.beta": 0.0}
    )


@case("verl-2646")
def one_seed(rel, side, seed, dtype):
    import ast
    import textwrap

    class SamplingParams:
        n, temperature, top_p, seed, detokenize = 1, 1.0, 1.0, None, True

        def __init__(self, **k):
            self.__dict__.update(k)

    text = rel.text("verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py")
    lines = text.splitlines()
    i = next(k for k, x in enumerate(lines) if "supporting adding any sampling params" in x)
    j = next(k for k in range(i, len(lines)) if "kwargs[k] = config.get(k)" in lines[k])
    env = dict(base(), SamplingParams=SamplingParams, config={"seed": 0, "temperature": 1.0}, kwargs={})
    exec(textwrap.dedent("\n".join(lines[i : j + 1])), env)
    params = SamplingParams(**env["kwargs"])
    s = Scene(seed, prompts=4)
    rows = s.rows() | dict(scores=s.scores, logp_gen=s.gen, logp_old=s.logps(s.old))
    if params.seed is not None:  # every request draws the same: the rows of a prompt are its first one
        first = torch.arange(len(s.scores)) // 4 * 4
        rows = {k: v[first] for k, v in rows.items()}
    yield rows, meta("verl", rel, "grpo", GRPO, options={"rollout.n": 4})


@case("verl-2881")
def repeats(rel, side, seed, dtype):
    s = Scene(seed, prompts=2, group=1)
    r = s.r
    n = 3

    class C(types.SimpleNamespace):
        def get(self, k, d=None):
            return getattr(self, k, d)

    tf = dict(base())
    rel.functions(TF, tf, {"get_response_mask"})
    kept = {}

    def generate(input_ids, attention_mask, generation_config, max_new_tokens, **k):
        m = generation_config["num_return_sequences"]
        kept["n"] = m
        from world import rollout

        ids = input_ids.repeat_interleave(m, 0)
        extra = torch.randint(4, 24, (len(ids), max_new_tokens), generator=s.rng)
        extra[:, -2] = 1
        extra[:, -1] = 0
        return ns(sequences=torch.cat([ids, extra], 1))

    space = dict(base(), GenerationConfig=lambda **k: k, FSDP=type("FSDP", (), {}), contextlib=contextlib, get_device_name=lambda: "cpu", get_torch_device=lambda: ns(empty_cache=lambda: None),
                 get_response_mask=tf["get_response_mask"], TensorDict=lambda d, batch_size: d, DataProto=lambda batch: batch)
    f = rel.method("verl/workers/rollout/hf_rollout.py", "_generate_minibatch", space)
    P = s.ids.shape[1] - s.T
    rep = torch.arange(2).repeat_interleave(n)  # as the trainer does before the rollout
    prompts = ns(meta_info=dict(eos_token_id=1, pad_token_id=0), batch=dict(input_ids=s.ids[rep, :P], attention_mask=s.att[rep, :P], position_ids=s.att[rep, :P].cumsum(1)))
    self = ns(config=C(do_sample=True, temperature=1.0, response_length=8, n=n, top_p=1.0, top_k=0), module=ns(eval=lambda: None, train=lambda: None, generate=generate))
    out = f(self, prompts)
    mask = out["attention_mask"][:, -8:]
    group = rep.repeat_interleave(len(mask) // len(rep))
    score = s.normal(len(mask))
    adv = (score - torch.stack([score[group == g].mean() for g in (0, 1)])[group]) / (torch.stack([score[group == g].std() for g in (0, 1)])[group] + 1e-6)
    yield dict(response_ids=out["responses"], response_mask=mask, input_ids=out["input_ids"], attention_mask=out["attention_mask"], group_id=group, scores=score, advantages=adv), meta(
        "verl", rel, "grpo", GRPO, options={"rollout.n": n, "adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True}
    )


@case("verl-60")
def integer_mask(rel, side, seed, dtype):
    s = Scene(seed)
    space = base()
    rel.functions("verl/trainer/ppo/ray_trainer.py", space, {"compute_data_metrics", "_compute_response_info"})
    tf = base()
    rel.functions(TF, tf, {"masked_mean", "masked_sum"})
    space["masked_mean"] = tf["masked_mean"]
    val = s.normal(*s.mask.shape) * s.mask
    from run import Release

    tr, adv, ret = gae(Release("verl-0.9.1"), s, val)
    b = dict(token_level_scores=tr, token_level_rewards=tr, responses=s.r["response"], advantages=adv, attention_mask=s.att, returns=ret, values=val)
    m = space["compute_data_metrics"](ns(batch=b))
    m = {k: float(v) for k, v in m.items() if k.startswith(("critic/advantages/", "critic/returns/", "critic/values/")) and k.endswith(("max", "min", "mean"))}
    yield dict(s.tokens(), values=val, token_rewards=tr, scores=s.scores, advantages=adv, returns=ret), meta("verl", rel, "ppo", PPO, scalars=m, options={"gae.gamma": 0.99, "gae.lambda": 0.95, "kl.place": "none", "num_mini_batches": 1})


@case("c-verl-agg")
def agg(rel, side, seed, dtype):
    s = Scene(seed)
    f, _ = core(rel)
    old = s.logps(s.old)
    new = s.logps(s.new).requires_grad_()
    adv = s.advantages()[:, None].expand(-1, s.T) * s.mask
    for i, mode in enumerate(("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")):
        loss = f["compute_policy_loss"](old_log_prob=old, log_prob=new, advantages=adv, response_mask=s.mask, cliprange=0.2, cliprange_low=0.2, cliprange_high=0.2, clip_ratio_c=3.0, loss_agg_mode=mode)[0]
        if i == seed % 3:
            yield dict(s.tokens(), logp_new=new, logp_old=old, scores=s.scores, advantages=adv, loss=loss, dlogp=gradient(loss, new)), meta(
                "verl", rel, "grpo", GRPO, options={"use_kl_loss": False, "kl.beta": 0.0, "agg.denominator": "micro", "tis.level": "none", "loss_agg_mode": mode}
            )


@case("c-verl-grpo")
def grpo(rel, side, seed, dtype):
    s = Scene(seed)
    f, _ = core(rel)
    tr = token_rewards(s)
    adv, _ = f["compute_grpo_outcome_advantage"](tr, s.mask, s.group.numpy(), norm_adv_by_std_in_grpo=True)
    yield dict(s.tokens(), scores=s.scores, token_rewards=tr, advantages=adv), meta("verl", rel, "grpo", GRPO, options={"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True, "kl.beta": 0.0, "use_kl_in_reward": False})


@case("c-verl-gae")
def gae_holes(rel, side, seed, dtype):
    s = Scene(seed, T=14, holes=True)
    values = s.normal(*s.mask.shape) * s.mask
    tr, adv, ret = gae(rel, s, values)
    hole = "none" if side == "affected" else "carry"
    yield dict(s.tokens(), values=values, token_rewards=tr, scores=s.scores, advantages=adv, returns=ret), meta(
        "verl", rel, "ppo", PPO, options={"gae.gamma": 0.99, "gae.lambda": 0.95, "kl.place": "none", "gae.hole": hole}
    )


@case("c-verl-kl")
def kl(rel, side, seed, dtype):
    s = Scene(seed)
    f, _ = core(rel)
    new, ref = s.logps(s.new), s.logps(s.ref)
    yield dict(s.tokens(), logp_new=new, logp_ref=ref, kl=f["kl_penalty"](new, ref, "low_var_kl")), meta(
        "verl", rel, "grpo", GRPO, options={"use_kl_loss": True, "kl_loss_coef": 0.05, "kl_loss_type": "low_var_kl"}
    )
