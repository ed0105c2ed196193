"""Distillation: the generalised Jensen-Shannon divergence of TRL's GKD, its successor, Liger's chunked loss and verl's."""

import ast
import math
import types

import torch
import torch.nn as nn
import torch.nn.functional as F
from preference import liger
from scene import Scene, case, meta, ns
from source import base


def two(s):
    """Logits of student and teacher for each response token of a scene, and the labels."""
    with torch.no_grad():
        z = [p.model.head(p.model.hidden(s.ids, s.att)[0])[:, -s.T - 1 : -1].float() for p in (s.new, s.ref)]
    return z[0], z[1] * 1.5, torch.where(s.mask.bool(), s.r["response"], -100)


def gkd(framework, rel, z, q, mask, loss, micro=0, micros=1, ids=None, options=None):
    t = dict(labels_mask=mask.bool(), logits=z, teacher_logits=q, loss=loss)
    if ids is not None:  # for the cross-entropy of the labels
        t["response_ids"] = ids.clamp(min=0)
        t["logp_new"] = z.log_softmax(-1).gather(-1, ids.clamp(min=0)[..., None]).squeeze(-1)
    return t, meta(framework, rel, "gkd", micro=micro, micros=micros, options={"agg.kind": "token", "agg.denominator": "micro", "distill.temperature": 1.0, **options})


def jsd(rel, *names):
    for path in ("trl/trainer/gkd_trainer.py", "trl/experimental/gkd/gkd_trainer.py"):
        try:
            rel.text(path)
        except FileNotFoundError:
            continue
        return rel.method(path, "generalized_jsd_loss", base())


@case("trl-3043")
def mixture(rel, side, seed, dtype):
    s = Scene(seed)
    z, q, labels = two(s)
    loss = jsd(rel)(z, q, labels=labels, beta=0.2)
    yield gkd("trl", rel, z, q, s.mask, loss, options={"distill.beta": 0.2})


@case("trl-4105")
def batchmean(rel, side, seed, dtype):
    s = Scene(seed)
    z, q, _ = two(s)
    loss = jsd(rel)(z, q, beta=0.5)  # without labels every position counts
    yield gkd("trl", rel, z, q, torch.ones_like(s.mask), loss, options={"distill.beta": 0.5, "agg.kind": "seq_mean_token_sum", "agg.empty_rows": "counted"})


def liger_jsd(rel, s, arguments, scale=1.0, labels=None):
    space = dict(liger(rel, "fused_linear_distillation.py", "jsd_loss.py"))
    space["math"] = math
    with torch.no_grad():
        h = [p.model.hidden(s.ids, s.att)[0][:, -s.T - 1 : -1] for p in (s.new, s.ref)]
    w = [p.model.head.weight.detach() for p in (s.new, s.ref)]
    b = [p.model.head.bias.detach() for p in (s.new, s.ref)]
    w[1], b[1] = w[1] * 1.5 * scale, b[1] * 1.5 * scale
    flat = [x.reshape(-1, x.shape[-1]).contiguous() for x in h]
    f = space["LigerFusedLinearJSDLoss"](**arguments)
    loss = f(flat[0].requires_grad_(), w[0], flat[1], w[1], labels.reshape(-1), b[0], b[1])
    z, q = (h[i].detach() @ w[i].T + b[i] for i in range(2))
    return z, q, (loss[0] if isinstance(loss, tuple) else loss).detach()


@case("liger-609")
def swapped(rel, side, seed, dtype):
    s = Scene(seed)
    every = torch.ones_like(s.mask)  # the release divides by all rows
    z, q, loss = liger_jsd(rel, s, dict(beta=0.2, weight_hard_loss=0.0, weight_soft_loss=1.0, compiled=False), labels=s.r["response"])
    yield gkd("liger", rel, z, q, every, loss, options={"distill.beta": 0.2})


@case("liger-862")
def underflow(rel, side, seed, dtype):
    s = Scene(seed)
    every = torch.ones_like(s.mask)
    # logits that leave less than the smallest float32 to a token in both distributions
    for p in (s.new, s.ref):
        with torch.no_grad():
            p.model.head.bias[5] = -400.0
    z, q, loss = liger_jsd(rel, s, dict(beta=0.5, weight_hard_loss=0.0, weight_soft_loss=1.0, compiled=False), labels=s.r["response"])
    yield gkd("liger", rel, z, q, every, loss, options={"distill.beta": 0.5})


@case("liger-974")
def ignored(rel, side, seed, dtype):
    s = Scene(seed, fill=0.5)
    labels = torch.where(s.mask.bool(), s.r["response"], -100)
    z, q, loss = liger_jsd(rel, s, dict(beta=0.5, weight_hard_loss=0.0, weight_soft_loss=1.0, compiled=False), labels=labels)
    yield gkd("liger", rel, z, q, s.mask, loss, options={"distill.beta": 0.5})


@case("trl-5731")
def hard_labels(rel, side, seed, dtype):
    """What GKDTrainer hands to Liger's loss (0.8.5), read from its __init__."""
    from run import Release

    s = Scene(seed)
    labels = torch.where(s.mask.bool(), s.r["response"], -100)
    tree = ast.parse(rel.text("trl/experimental/gkd/gkd_trainer.py"))
    call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "LigerFusedLinearJSDLoss")
    arguments = eval(f"dict({', '.join(ast.unparse(k) for k in call.keywords)})", dict(args=ns(beta=0.5, temperature=1.0), self=ns(beta=0.5, temperature=1.0)))
    arguments["compiled"] = False
    z, q, loss = liger_jsd(Release("liger-kernel-0.8.5"), s, arguments, labels=labels)
    yield gkd("trl", rel, z, q, s.mask, loss, ids=labels, options={"distill.beta": 0.5, "logp.temperature": 1.0})


def distillation(rel, z, q, labels, items):
    path = "trl/experimental/distillation/distillation_trainer.py"
    space = base()
    space["_add_tail_bucket"] = None
    rel.functions(path, space, {"_jsd_divergence"})
    reduce = rel.method(path, "_reduce_divergence_loss", space)
    space["DistillationTrainer"] = ns(_reduce_divergence_loss=reduce)
    f = rel.method(path, "generalized_jsd_loss", space)
    more = dict(num_items_in_batch=items) if "num_items_in_batch" in f.__code__.co_varnames[: f.__code__.co_argcount + f.__code__.co_kwonlyargcount] else {}
    return f(z, q, labels=labels, beta=0.5, **more)


@case("trl-6006")
def per_micro_batch(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    z, q, labels = two(s)
    order = s.mask.sum(1).argsort()
    n = len(order) // 2
    items = int((labels != -100).sum())
    for i in range(2):
        sel = order[i * n : (i + 1) * n]
        loss = distillation(rel, z[sel], q[sel], labels[sel], items)
        yield gkd("trl", rel, z[sel], q[sel], s.mask[sel], loss, i, 2, options={"distill.beta": 0.5, "agg.denominator": "global", "num_items_in_batch": items, "agg.div_ga": False})


@case("verl-7225")
def verl_micro_batch(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    z, q, _ = two(s)
    core = dict(base(), verl_F=ns(masked_sum=lambda x, m: torch.where(m.bool(), x, torch.zeros_like(x)).sum(), masked_mean=None))
    rel.functions("verl/trainer/ppo/core_algos.py", core, {"agg_loss"})
    space = dict(base(), agg_loss=core["agg_loss"], Any=None, DistillationLossConfig=None, get_distillation_loss_fn=None, compute_distillation_loss_range=lambda **k: {})
    f = dict(space)
    rel.functions("verl/trainer/distillation/losses.py", f, {"distillation_loss"})
    d = (q.log_softmax(-1).exp() * (q.log_softmax(-1) - z.log_softmax(-1))).sum(-1)  # forward KL over the whole vocabulary
    order = s.mask.sum(1).argsort()
    n = len(order) // 2
    config = ns(loss_agg_mode="token-mean", loss_scale_factor=None, global_batch_info={})
    settings = ns(distillation_loss=ns(loss_mode="forward_kl_topk", loss_max_clamp=None, use_policy_gradient=False))
    total = int(s.mask.sum())
    for i in range(2):
        sel = order[i * n : (i + 1) * n]

        class Mask(torch.Tensor):
            is_nested = False

        data = dict(response_mask=s.mask[sel], dp_size=1, batch_num_tokens=total, global_batch_size=len(order))
        f["get_distillation_loss_fn"] = lambda mode: lambda **k: (d[sel], {})
        loss = f["distillation_loss"](config, settings, {}, data)[0]
        yield gkd("verl", rel, z[sel], q[sel], s.mask[sel], loss, i, 2, options={"distill.beta": 0.0, "agg.denominator": "global", "agg.div_ga": False})


@case("trl-6478")
def counted_before(rel, side, seed, dtype):
    """compute_loss of two micro-batches of generated answers; the Trainer hands it the labels of the data set, which had answers of its own."""
    s = Scene(seed, prompts=4)
    given = Scene(seed + 100, prompts=4, T=14)  # the answers that the data set had to the same number of prompts
    path = "trl/experimental/distillation/distillation_trainer.py"
    space = base()
    rel.functions(path, space, {"_jsd_divergence"})
    space["DistillationTrainer"] = ns(_reduce_divergence_loss=rel.method(path, "_reduce_divergence_loss", space))
    for name in ("compute_loss", "_compute_prompt_length", "generalized_jsd_loss"):
        rel.method(path, name, space)
    P = s.ids.shape[1] - s.T
    labels = torch.where(torch.cat([torch.zeros(len(s.ids), P), s.mask], 1).bool(), s.ids, -100)
    order = s.mask.sum(1).argsort()
    n = len(order) // 2
    parts = [order[:n], order[n:]]
    of = lambda policy: lambda input_ids, attention_mask: ns(logits=policy.model.head(policy.model.hidden(input_ids, attention_mask)[0]).float())
    self = ns(model=ns(training=True), use_liger_loss=False, use_teacher_server=False, beta=0.5, temperature=1.0, loss_top_k=0, loss_add_tail=True, accelerator=ns(num_processes=1, device="cpu", gather=lambda x: x))
    self._raise_if_local_teacher_tokenizer_mismatch = lambda: None
    self._compute_prompt_length = lambda inputs: space["_compute_prompt_length"](self, inputs)
    self._get_teacher_logits = lambda inputs: of(s.ref)(inputs["input_ids"], inputs["attention_mask"]).logits * 1.5
    self.generalized_jsd_loss = space["generalized_jsd_loss"]
    batches = [dict(input_ids=s.ids[k], attention_mask=s.att[k], labels=labels[k]) for k in parts]
    if "_buffered_num_items" in rel.text(path):
        self._buffered_inputs = batches
        env = dict(base(), self=self)
        exec(rel.block(path, "local_completion_tokens = sum(", "  ).sum()"), env)
    items = given.mask.sum()
    z, q, _ = two(s)
    for i, (k, batch) in enumerate(zip(parts, batches)):
        with torch.no_grad():
            loss = space["compute_loss"](self, of(s.new), batch, num_items_in_batch=items)
        count = getattr(self, "_buffered_num_items", items)
        yield gkd("trl", rel, z[k], q[k], s.mask[k], loss, i, 2, options={"distill.beta": 0.5, "agg.denominator": "global", "num_items_in_batch": float(count), "agg.div_ga": False})
