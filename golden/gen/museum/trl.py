"""TRL's GRPO: pieces of its trainers."""

import ast
import re
import types
from collections import defaultdict

import torch
import torch.nn.functional as F
from scene import BOTH, Scene, case, gradient, meta, ns
from source import base

PATH = "trl/trainer/grpo_trainer.py"
PROFILE, OLDER = "trl-grpo@1.16", "trl-grpo@1.9"


def selective(rel, space):
    """trl.trainer.utils.selective_log_softmax of the release, where it has one."""
    rel.functions("trl/trainer/utils.py", space, {"selective_log_softmax", "entropy_from_logits"})
    return space


@case("trl-3992")
def scale_rewards(rel, side, seed, dtype):
    s = Scene(seed)
    block = rel.block(PATH, "mean_grouped_rewards = rewards.view(-1, self.num_generations).mean(dim=1)", "advantages = advantages / (std_rewards + 1e-4)")
    for i, (how, word) in enumerate((("group", "group_std"),)):
        env = dict(base(), self=ns(num_generations=4, scale_rewards=how), rewards=s.scores.clone())
        exec(block, env)
        yield dict(s.tokens(), scores=s.scores, advantages=env["advantages"]), meta("trl", rel, "grpo", PROFILE, step=i + 1, options={"scale_rewards": how})


@case("trl-3029", BOTH)
def temperature(rel, side, seed, dtype):
    s = Scene(seed, dtype, prompts=2, group=3, temperature=0.9)
    space = selective(rel, dict(base(), profiling_decorator=lambda f: f))
    f = rel.method(PATH, "_get_per_token_logps", space)
    kept = {}

    def model(input_ids, attention_mask, logits_to_keep):
        h, _ = s.old.model.hidden(input_ids, attention_mask)
        kept["z"] = s.old.model.head(h)[:, -logits_to_keep:]
        return ns(logits=kept["z"].clone())

    with torch.no_grad():
        lp = f(ns(temperature=0.9), model, s.ids, s.att, s.T)
    yield dict(s.rows(), logp_new=lp, logp_gen=s.gen, logits=kept["z"][:, :-1]), meta("trl", rel, "grpo", PROFILE, options={"temperature": 0.9})


@case("trl-2708")
def attention_mask(rel, side, seed, dtype):
    s = Scene(seed, dtype, prompts=8, group=4, T=12)
    space = selective(rel, dict(base(), profiling_decorator=lambda f: f))
    kept = {}

    def model(input_ids, attention_mask=None, logits_to_keep=None, num_logits_to_keep=None):
        h, _ = kept["policy"].model.hidden(input_ids, torch.ones_like(input_ids) if attention_mask is None else attention_mask)
        return ns(logits=kept["policy"].model.head(h)[:, -(logits_to_keep or num_logits_to_keep) :])

    out = {}
    with torch.no_grad():
        for name, policy in (("logp_new", s.old), ("logp_ref", s.ref)):
            kept["policy"] = policy
            if rel.name == "trl-0.14.0":
                out[name] = rel.method(PATH, "get_per_token_logps", space)(model, s.ids, s.T)
            else:
                out[name] = rel.method(PATH, "_get_per_token_logps", space)(ns(), model, s.ids, s.att, s.T)
    yield dict(s.rows(), logp_gen=s.gen, **out), meta("trl", rel, "grpo", PROFILE, options={"temperature": 1.0, "beta": 0.04})


def compute_loss(rel, s, options, name="compute_loss", extra=(), rank=None, gather=None, inputs=(), processes=2):
    """The trainer's loss of rows of the scene, its locals, and what it logged."""
    space = selective(rel, dict(base(), profiling_decorator=lambda f: f))
    rel.functions("trl/trainer/utils.py", space, {"nanmin", "nanmax", "nanstd"})
    rel.functions(PATH, space, {"nanmin", "nanmax", "nanstd"})
    f = rel.method(PATH, name, space, keep_locals=True)
    sel = slice(None) if rank is None else rank
    new, entropy = s.new.score(s.ids[sel], s.att[sel], s.T)[:2]
    new = new.detach().requires_grad_()
    metrics = {k: [] for k in ("kl", "entropy", "clip_ratio", "completion_length", "cispo_clip_ratio", "vespo/phi_seq_mean", *("clip_ratio/" + n for n in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")))}
    gather = gather or (lambda x: x)
    P = s.ids.shape[1] - s.T
    three = re.search(r"per_token_logps, \w+, \w+ = self._get_per_token_logps_and_entropies", rel.text(PATH))
    logps = lambda *a, compute_entropy=False, **k: (new if torch.is_grad_enabled() else s.logps(s.ref)[sel], entropy.detach() if compute_entropy else None, None)[: 3 if three else 2]
    self = ns(
        **{
            **dict(
                beta=0.0, epsilon_low=0.2, epsilon_high=0.2, num_iterations=2, temperature=1.0, loss_type="dapo", importance_sampling_level="token", delta=None,
                top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False, vllm_importance_sampling_correction=False, mask_truncated_completions=False,
                max_completion_length=s.T, current_gradient_accumulation_steps=1, use_liger_loss=False, aux_loss_enabled=False, use_bias_correction_kl=False,
                tools=None, ref_model=True, use_entropy_mask=False, entropy_coef=0.0, use_adaptive_entropy=False, _entropy_bonus_enabled=False,
            ),
            **options,
        },
        args=ns(delta=None, use_bias_correction_kl=False, steps_per_generation=1, gradient_accumulation_steps=1, per_device_train_batch_size=len(new),
                sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0),
        accelerator=ns(gather=gather, gather_for_metrics=gather, num_processes=1 if rank is None else processes, reduce=lambda x, reduction="sum": gather(x).reshape(-1, x.numel()).sum(0).view(x.shape)),
        control=ns(should_evaluate=False),
        model=ns(training=True),
        _metrics={"train": metrics, **metrics} if name == "_compute_loss" or "mode = " in rel.text(PATH).split("def compute_loss")[-1][:9000] else metrics,
    )
    ref = s.logps(s.ref)[sel]
    self._get_per_token_logps = lambda *a, **k: new if torch.is_grad_enabled() else ref
    self._get_per_token_logps_and_entropies = logps
    data = dict(
        prompt_ids=s.ids[sel, :P], prompt_mask=s.att[sel, :P], completion_ids=s.ids[sel, P:], completion_mask=s.att[sel, P:], old_per_token_logps=s.logps(s.old)[sel],
        ref_per_token_logps=s.logps(s.ref)[sel], **dict(inputs),
    )
    loss = f(self, None, data)
    return loss, self._frame, metrics, new, data


@case("trl-3004")
def kl_metric(rel, side, seed, dtype):
    s = Scene(seed)
    adv = s.advantages(1e-4)
    loss, f, metrics, new, d = compute_loss(rel, s, dict(beta=0.04, num_iterations=2), inputs=dict(advantages=adv))
    yield dict(s.tokens(), logp_new=new, logp_ref=d["ref_per_token_logps"], kl=f["per_token_kl"]), meta(
        "trl", rel, "grpo", PROFILE, options={"beta": 0.04}, scalars={"kl": metrics["kl"][-1]}
    )


@case("c-trl-2881")
def sample_mean(rel, side, seed, dtype):
    s = Scene(seed)
    adv = s.advantages(1e-4)
    loss, f, metrics, new, d = compute_loss(rel, s, dict(beta=0.04, num_iterations=1), inputs=dict(advantages=adv))
    kind = "seq_mean_token_mean" if side == "affected" else "token"
    yield dict(
        s.tokens(), logp_new=new, logp_old=new, logp_ref=d["ref_per_token_logps"], kl=f["per_token_kl"], scores=s.scores, advantages=adv, token_loss=f["per_token_loss"], loss=loss, dlogp=gradient(loss, new)
    ), meta("trl", rel, "grpo", OLDER, options={"beta": 0.04, "agg.kind": kind, "agg.denominator": "micro", "num_iterations": 1}, token_loss_includes_kl=True)


def two_ranks(make):
    """Runs make(rank, gather) on both ranks: gathered tensors are recorded once, then handed to both."""
    seen = ([], [])
    for rank in (0, 1):
        make(rank, lambda x, r=rank: seen[r].append(x.detach().clone()) or x)
    out = []
    for rank in (0, 1):
        at = iter(range(10**6))
        out.append(make(rank, lambda x: (lambda i: torch.cat([seen[0][i].reshape(-1), seen[1][i].reshape(-1)]))(next(at))))
    return out


@case("trl-6380")
def rank_means(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    adv = s.advantages(1e-4)
    n = len(adv) // 2
    order = s.mask.sum(1).argsort()  # short rows on one rank, long ones on the other
    half = (order[:n], order[n:])
    items = s.mask.sum()

    def make(rank, gather):
        sel = half[rank]
        return compute_loss(rel, s, dict(beta=0.04), "_compute_loss", rank=sel, gather=gather, inputs=dict(advantages=adv[sel], num_items_in_batch=items))

    for rank, (loss, f, metrics, new, d) in enumerate(two_ranks(make)):
        sel = half[rank]
        yield dict(
            {k: v[sel] for k, v in s.tokens().items()}, logp_new=new, logp_old=d["old_per_token_logps"], logp_ref=d["ref_per_token_logps"], kl=f["per_token_kl"], entropy=f["entropies"]
        ), meta("trl", rel, "grpo", PROFILE, rank=rank, ranks=2, options={"beta": 0.04, "use_bias_correction_kl": False}, scalars={k: metrics[k][-1] for k in ("kl", "entropy")})


@case("trl-6439", BOTH)
def counts_tools(rel, side, seed, dtype):
    from case import Case
    import trl_grpo
    import os, tempfile, json
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as d:
        trl_grpo.run(Case("x", "trl_grpo", dict(release=rel.name, holes=True, steps=1, prompts=3, args=dict(use_vllm=True, max_completion_length=14)), dtype, seed), d)
        for n in sorted(os.listdir(d)):
            with safe_open(os.path.join(d, n), "pt") as f:
                yield {k: f.get_tensor(k) for k in f.keys()}, json.loads(f.metadata()["plumbline"])


@case("trl-4857")
def off_policy(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    adv = s.advantages(1e-4)
    old, new = s.logps(s.old), s.logps(s.new)
    gen = s.gen + s.normal(len(adv), 1, std=0.3) * s.mask
    f = rel.method(PATH, "get_off_policy_mask", base())
    limit = 0.1
    loss, frame, metrics, new, d = compute_loss(
        rel, s, dict(off_policy_mask_threshold=limit, get_off_policy_mask=f), "_compute_loss", inputs=dict(advantages=adv, num_items_in_batch=s.mask.sum(), sampling_per_token_logps=gen)
    )
    yield dict(s.tokens(), logp_new=new, logp_old=d["old_per_token_logps"], logp_gen=gen, advantages=adv, scores=s.scores, token_loss=frame["per_token_loss"], loss=loss, dlogp=gradient(loss, new)), meta(
        "trl", rel, "grpo", PROFILE, options={"beta": 0.0, "loss.off_policy_max": limit, "num_items_in_batch": float(s.mask.sum()), "num_iterations": 2, "tis.level": "none"}
    )


@case("trl-3833")
def entropy_of_rank(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    adv = s.advantages(1e-4)
    n = len(adv) // 2
    _, entropy = s.new.score(s.ids, s.att, s.T)[:2]
    order = (entropy.detach() * s.mask).sum(1).argsort()
    half = (order[:n], order[n:])
    f = rel.method(PATH, "get_high_entropy_mask", base())

    def make(rank, gather):
        sel = half[rank]
        self = ns(accelerator=ns(gather=gather))
        high = f if rel.name == "trl-0.20.0" else types.MethodType(f, self)
        return compute_loss_entropy(rel, s, sel, gather, high, adv)

    for rank, (loss, frame, metrics, new, d) in enumerate(two_ranks(make)):
        sel = half[rank]
        yield dict(
            {k: v[sel] for k, v in s.tokens().items()}, logp_new=new, logp_old=d["old_per_token_logps"], advantages=adv[sel], scores=s.scores[sel], entropy=frame["entropies"] if "entropies" in frame else entropy[sel].detach(),
            token_loss=frame["per_token_loss"], loss=loss, dlogp=gradient(loss, new),
        ), meta("trl", rel, "grpo", PROFILE, rank=rank, ranks=2, options={"beta": 0.0, "loss.top_entropy": 0.4, "agg.denominator": "micro", "num_iterations": 2, "tis.level": "none"})


def compute_loss_entropy(rel, s, sel, gather, high, adv):
    import source

    keep = source.base
    try:
        source.base = lambda: keep()
        g = globals()
        g["base"] = lambda: dict(keep(), get_high_entropy_mask=high)
        return compute_loss(rel, s, dict(loss_type="bnpo", top_entropy_quantile=0.4, get_high_entropy_mask=high), "_compute_loss", rank=sel, gather=gather, inputs=dict(advantages=adv[sel], num_items_in_batch=s.mask.sum()))
    finally:
        source.base = keep
        g["base"] = keep


@case("c-trl-gspo")
def gspo(rel, side, seed, dtype):
    s = Scene(seed)
    adv = s.advantages(1e-4)
    loss, f, metrics, new, d = compute_loss(rel, s, dict(loss_type="grpo", importance_sampling_level="sequence"), "_compute_loss", inputs=dict(advantages=adv, num_items_in_batch=s.mask.sum()))
    yield dict(s.tokens(), logp_new=new, logp_old=d["old_per_token_logps"], advantages=adv, scores=s.scores, token_loss=f["per_token_loss"].expand_as(new), loss=loss, dlogp=gradient(loss, new)), meta(
        "trl", rel, "grpo", PROFILE, options={"beta": 0.0, "loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2, "tis.level": "none"}
    )


@case("c-trl-value")
def bnpo(rel, side, seed, dtype):
    s = Scene(seed)
    adv = s.advantages(1e-4)
    name = "compute_loss" if side == "affected" else "_compute_loss"
    name = name if f"def {name}(" in rel.text(PATH) else "compute_loss"
    loss, f, metrics, new, d = compute_loss(rel, s, dict(loss_type="bnpo", beta=0.04), name, inputs=dict(advantages=adv))
    yield dict(
        s.tokens(), logp_new=new, logp_old=d["old_per_token_logps"], logp_ref=d["ref_per_token_logps"], kl=f["per_token_kl"], advantages=adv, scores=s.scores, token_loss=f["per_token_loss"], loss=loss, dlogp=gradient(loss, new)
    ), meta("trl", rel, "grpo", OLDER, options={"beta": 0.04, "loss_type": "bnpo", "num_iterations": 2, "tis.level": "none"}, token_loss_includes_kl=True)


def default(rel, name):
    """The default of a field of the release's GRPOConfig."""
    for n in ast.walk(ast.parse(rel.text("trl/trainer/grpo_config.py"))):
        if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == name:
            return ast.literal_eval(next(k.value for k in n.value.keywords if k.arg == "default"))


@case("c-trl-beta")
def default_beta(rel, side, seed, dtype):
    s = Scene(seed)
    adv, beta = s.advantages(1e-4), default(rel, "beta")
    name = "_compute_loss" if "def _compute_loss(" in rel.text(PATH) else "compute_loss"
    loss, f, metrics, new, d = compute_loss(rel, s, dict(loss_type="bnpo", beta=beta), name, inputs=dict(advantages=adv))
    yield dict(
        s.tokens(), logp_new=new, logp_old=d["old_per_token_logps"], logp_ref=d["ref_per_token_logps"], advantages=adv, scores=s.scores, token_loss=f["per_token_loss"], loss=loss, dlogp=gradient(loss, new)
    ), meta("trl", rel, "grpo", OLDER, options={"kl.beta": beta, "loss_type": "bnpo", "num_iterations": 2, "tis.level": "none"}, token_loss_includes_kl=True)


@case("c-trl-dapo")
def default_loss(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    adv, kind = s.advantages(1e-4), default(rel, "loss_type")
    order, n = s.mask.sum(1).argsort(), len(adv) // 2
    items = s.mask.sum()
    name = "_compute_loss" if "def _compute_loss(" in rel.text(PATH) else "compute_loss"
    for i in range(2):
        sel = order[i * n : (i + 1) * n]
        loss, f, metrics, new, d = compute_loss(
            rel, s, dict(loss_type=kind, current_gradient_accumulation_steps=2), name, rank=sel, processes=1, inputs=dict(advantages=adv[sel], num_items_in_batch=items)
        )
        if "current_gradient_accumulation_steps" not in rel.text(PATH):
            loss = loss / 2  # the Trainer divides, where the loss does not
        yield dict(
            {k: v[sel] for k, v in s.tokens().items()}, logp_new=new, logp_old=d["old_per_token_logps"], advantages=adv[sel], scores=s.scores[sel], token_loss=f["per_token_loss"], loss=loss, dlogp=gradient(loss, new)
        ), meta("trl", rel, "grpo", PROFILE, micro=i, micros=2, options={
            "beta": 0.0, "loss_type": kind, "agg.denominator": dict(bnpo="micro", dapo="global")[kind], "num_items_in_batch": float(items), "num_iterations": 2, "tis.level": "none"})


@case("c-trl-scale")
def advantages(rel, side, seed, dtype):
    s = Scene(seed)
    block = rel.block(PATH, "mean_grouped_rewards = ", "advantages = advantages / (std_rewards + 1e-4)")
    env = dict(base(), self=ns(num_generations=4, scale_rewards="group", multi_objective_aggregation="sum_then_normalize"), rewards=s.scores.clone(), num_generations=4)
    exec(block, env)
    yield dict(s.tokens(), scores=s.scores, advantages=env["advantages"]), meta("trl", rel, "grpo", PROFILE, options={"scale_rewards": "group"})


@case("trl-4454")
def filtered(rel, side, seed, dtype):
    """GFPO keeps four of eight samples of a prompt; what the trainer then shuffles is the dictionary of tensors that it was given."""
    s = Scene(seed, prompts=2, group=8, T=12)
    path = "trl/experimental/gfpo/gfpo_trainer.py"
    block = rel.block(path, "num_in_group = self.num_generations", 'output["num_images"] = num_images')
    P = s.ids.shape[1] - s.T
    self = ns(
        num_generations=8, num_remains_in_group=4, group_filter_func=lambda group_completions, group_rewards: group_rewards, scale_rewards="group", reward_func_names=["score"], use_vllm=False,
        vllm_importance_sampling_correction=False, accelerator=ns(process_index=0, gather=lambda x: x), _metrics={"train": defaultdict(list)}, _logs={"prompt": [], "completion": [], "rewards": defaultdict(list), "advantages": []},
    )
    texts = list(range(len(s.ids)))
    space = rel.functions("trl/trainer/utils.py", base(), {"nanstd", "nanmin", "nanmax", "shuffle_sequence_dict"})
    old, ref = s.logps(s.old), s.logps(s.ref)
    env = dict(
        space, self=self, mode="train", device="cpu", gather_object=lambda x: x, prompts=texts, completions=texts, prompts_text=texts, completions_text=texts, images=None, rewards=s.scores.clone(),
        rewards_per_func=s.scores[:, None].clone(), prompt_ids=s.ids[:, :P], prompt_mask=s.att[:, :P], completion_ids=s.ids[:, P:], completion_mask=s.mask, attention_mask=s.att, old_per_token_logps=old,
        ref_per_token_logps=ref, forward_kwargs={}, num_items_in_batch=s.mask.sum(), num_images=None, sampling_per_token_logps=None,
    )
    exec(block, env)
    torch.manual_seed(seed)
    kept = dict(scores=env["rewards"], group=s.group[env["group_global_indices"]])  # what a hook adds
    d = env["shuffle_sequence_dict"]({k: v for k, v in env["output"].items() if v.dim() > 0} | kept)
    ids, att = torch.cat([d["prompt_ids"], d["completion_ids"]], 1), torch.cat([d["prompt_mask"], d["completion_mask"]], 1)
    new = s.new.score(ids, att, s.T)[0].detach()
    yield dict(
        input_ids=ids, attention_mask=att, response_ids=d["completion_ids"], response_mask=d["completion_mask"], logp_new=new, logp_old=d["old_per_token_logps"], logp_ref=d["ref_per_token_logps"], advantages=d["advantages"],
        scores=d["scores"], group_id=d["group"],
    ), meta("trl", rel, "grpo", PROFILE, options={"beta": 0.04, "num_iterations": 2})
