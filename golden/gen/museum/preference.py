"""DPO and its kin: TRL's and Liger's losses, and the accumulation of TRL's trainers under transformers 4.49.0."""

import ast
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from scene import BOTH, Scene, case, gradient, meta, ns
from source import base

BETA = 0.1


def pairs(s, n=6):
    return dict(logp_chosen=-20 + s.normal(n, std=4), logp_rejected=-20 + s.normal(n, std=4), ref_chosen=-20 + s.normal(n, std=4), ref_rejected=-20 + s.normal(n, std=4))


def trl_dpo(rel, x, kind="sigmoid"):
    text = rel.text("trl/trainer/dpo_trainer.py")
    space = dict(base(), cap_exp=torch.exp)
    for path in ("trl/trainer/dpo_config.py", "trl/trainer/dpo_trainer.py", "trl/trainer/utils.py"):
        try:
            rel.functions(path, dict(space, Enum=object), {"FDivergenceType"})
        except Exception:
            pass
    space.update(FDivergenceType=ns(ALPHA_DIVERGENCE=ns(value="alpha"), JS_DIVERGENCE=ns(value="js"), REVERSE_KL=ns(value="rkl")), FDivergenceConstants=ns(ALPHA_DIVERGENCE_COEF_DEFAULT=1.0, ALPHA_DIVERGENCE_COEF_KEY="alpha"))
    f = rel.method("trl/trainer/dpo_trainer.py", "dpo_loss", space)
    self = ns(accelerator=ns(device="cpu"), reference_free=False, f_divergence_type="reverse_kl", f_divergence_params=None, loss_type=kind, beta=BETA, label_smoothing=0.0, use_weighting=False)
    args = [x["logp_chosen"], x["logp_rejected"], x["ref_chosen"], x["ref_rejected"]]
    more = [kind] if "loss_type" in f.__code__.co_varnames[: f.__code__.co_argcount] else []
    return f(self, *args, *more)[0]


def training_step(rel, trainer, loss, steps):
    """What Trainer.training_step of transformers 4.49.0 hands to backward, with what the trainer's __init__ says about loss kwargs."""
    from run import Release

    hf = Release("transformers-4.49.0")
    space = dict(base(), is_sagemaker_mp_enabled=lambda: False, OptimizerNames=ns(LOMO=1, ADALOMO=2), Dict=dict, Any=None, Union=None, Optional=None, DistributedType=ns(DEEPSPEED=1))
    hf.functions("transformers/trainer.py", space, {"training_step"}, cls="Trainer")
    back = []
    self = ns(
        optimizer=ns(), _prepare_inputs=lambda x: x, compute_loss_context_manager=contextlib.nullcontext, compute_loss_func=None, model_accepts_loss_kwargs=True, use_apex=False,
        args=ns(gradient_accumulation_steps=steps, torch_empty_cache_steps=None, n_gpu=1, optim=0), state=ns(global_step=0), compute_loss=lambda *a, **k: loss,
        accelerator=ns(backward=lambda loss, **k: back.append(loss.detach()), distributed_type=0),
    )
    init = next(n for n in ast.walk(ast.parse(rel.text(trainer))) if isinstance(n, ast.FunctionDef) and n.name == "__init__" and "model" in [a.arg for a in n.args.args])
    for n in ast.walk(init):
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "self.model_accepts_loss_kwargs":
            exec(ast.unparse(n), dict(self=self))
    model = ns(train=lambda: None)
    space["training_step"](self, model, {}, num_items_in_batch=None)
    return back[0]


def accumulated(rel, trainer, seed, loss_of, keep=lambda x: x, options=None):
    s = Scene(seed, prompts=1, group=2, T=4)
    for i in range(2):
        x = keep(pairs(s))
        yield dict(x, loss=training_step(rel, trainer, loss_of(x).mean(), 2)), meta(
            "trl", rel, "dpo", micro=i, micros=2, options={"dpo.beta": BETA, "dpo.loss": "sigmoid", "agg.div_ga": True, **(options or {})}
        )


@case("trl-2615")
def dpo(rel, side, seed, dtype):
    return accumulated(rel, "trl/trainer/dpo_trainer.py", seed, lambda x: trl_dpo(rel, x))


@case("trl-2645")
def cpo(rel, side, seed, dtype):
    f = rel.method("trl/trainer/cpo_trainer.py", "cpo_loss", base())
    self = ns(loss_type="sigmoid", beta=BETA, label_smoothing=0.0, accelerator=ns(device="cpu"), simpo_gamma=0.0)
    none = lambda x: dict(x, ref_chosen=torch.zeros(6), ref_rejected=torch.zeros(6))  # CPO is DPO without a reference
    return accumulated(rel, "trl/trainer/cpo_trainer.py", seed, lambda x: f(self, x["logp_chosen"], x["logp_rejected"])[0], none)


@case("c-trl-dpo", (("f32", 1), ("f32", 2), ("f32", 3)))
def dpo_kinds(rel, side, seed, dtype):
    s = Scene(seed, prompts=1, group=2, T=4)
    x, kind = pairs(s), ("sigmoid", "hinge", "ipo")[seed - 1]
    yield dict(x, loss=trl_dpo(rel, x, kind).mean()), meta("trl", rel, "dpo", options={"dpo.beta": BETA, "dpo.loss": kind})


def liger(rel, *files):
    """The modules of chunked_loss, in the order of their imports, in one namespace."""
    space = dict(base(), nn=nn)
    for f in files:
        tree = ast.parse(rel.text("liger_kernel/chunked_loss/" + f))
        tree.body = [n for n in tree.body if not (isinstance(n, ast.ImportFrom) and (n.module or "").startswith("liger_kernel"))]
        exec(compile(tree, f, "exec"), space)
    return space


def liger_dpo(rel, seed, nll):
    s = Scene(seed, prompts=3, group=4)
    space = liger(rel, "fused_linear_preference.py", "dpo_loss.py")
    P = s.ids.shape[1] - s.T
    labels = torch.where(torch.cat([torch.zeros(len(s.ids), P), s.mask], 1).bool(), s.ids, -100)[:, 1:].contiguous()

    def hidden(policy):
        with torch.no_grad():
            return policy.model.hidden(s.ids, s.att)[0][:, :-1].contiguous(), policy.model.head.weight.detach()

    (x, w), (xr, wr) = hidden(s.new), hidden(s.ref)
    import inspect

    make = space["LigerFusedLinearDPOFunction"]
    names = list(inspect.signature(make.forward).parameters)[1:]
    b, br = s.new.model.head.bias.detach(), s.ref.model.head.bias.detach()
    values = dict(_input=x.requires_grad_(), weight=w, target=labels, bias=b, ref_input=xr, ref_weight=wr, ref_bias=br, ignore_index=-100, beta=BETA, compute_nll_loss=nll, compiled=False, use_ref_model=True,
                  average_log_prob=False, chunk_size=1, loss_type="sigmoid")
    if "ref_input" not in names:  # one hidden state for both heads
        ref_logits = x.detach() @ wr.T + br
    else:
        ref_logits = xr @ wr.T + br
    signature = inspect.signature(make.forward).parameters
    out = make.apply(*[values.get(n, signature[n].default) for n in names])
    loss = out[0] if isinstance(out, tuple) else out
    ok = labels != -100
    average = "average_log_prob" not in names

    def rows(z):
        lp = z.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1) * ok
        return (lp.sum(1) / ok.sum(1) if average else lp.sum(1)).detach()

    n = len(labels) // 2
    new, ref = rows(x @ w.T + b), rows(ref_logits)
    yield dict(logp_chosen=new[:n], logp_rejected=new[n:], ref_chosen=ref[:n], ref_rejected=ref[n:], loss=loss.detach()), meta("liger", rel, "dpo", options={"dpo.beta": BETA, "dpo.loss": "sigmoid", "dpo.label_smoothing": 0.0})


@case("liger-405")
def no_reference(rel, side, seed, dtype):
    return liger_dpo(rel, seed, False)


@case("liger-484")
def sign(rel, side, seed, dtype):
    return liger_dpo(rel, seed, False)


@case("liger-1194")
def nll_weight(rel, side, seed, dtype):
    """LigerFusedLinearDPOLoss beside its NLL term, whose weight is meant to be 0.3: older releases have no argument for it."""
    import inspect

    s = Scene(seed, prompts=3, group=4)
    space = liger(rel, "fused_linear_preference.py", "dpo_loss.py")
    P = s.ids.shape[1] - s.T
    labels = torch.where(torch.cat([torch.zeros(len(s.ids), P), s.mask], 1).bool(), s.ids, -100)[:, 1:].contiguous()
    with torch.no_grad():
        h, hr = (p.model.hidden(s.ids, s.att)[0][:, :-1].contiguous() for p in (s.new, s.ref))
    (w, b), (wr, br) = ((p.model.head.weight.detach(), p.model.head.bias.detach()) for p in (s.new, s.ref))
    make, weight = space["LigerFusedLinearDPOLoss"], 0.3
    more = dict(alpha=weight) if "alpha" in inspect.signature(make.__init__).parameters else {}
    f = make(beta=BETA, compute_nll_loss=True, compiled=False, **more)
    loss, parts = f(w, h.requires_grad_(), labels, bias=b, ref_input=hr, ref_weight=wr, ref_bias=br)
    ok = labels != -100
    rows = lambda z: (z.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1) * ok).sum(1).detach()
    new, ref, n = rows(h @ w.T + b), rows(hr @ wr.T + br), len(labels) // 2
    nll = -new[:n].sum() / ok[:n].sum()
    yield dict(logp_chosen=new[:n], logp_rejected=new[n:], ref_chosen=ref[:n], ref_rejected=ref[n:], nll_loss=nll, loss=loss.detach()), meta(
        "liger", rel, "dpo", options={"dpo.beta": BETA, "dpo.loss": "sigmoid", "dpo.label_smoothing": 0.0, "dpo.nll_weight": weight}
    )


@case("llamafactory-6722")
def twice_by_length(rel, side, seed, dtype):
    """LLaMA-Factory's IPO on means over tokens beside 0.5 of the SFT term; the loss of the pairs is that of TRL, which it inherits."""
    from run import Release

    s = Scene(seed, prompts=6, group=4)
    path = "llamafactory/train/dpo/trainer.py"
    space = dict(base(), DPOTrainer=None)
    for name in ("concatenated_forward", "compute_preference_loss", "get_batch_loss_metrics"):
        rel.functions(path, space, {name}, cls="CustomDPOTrainer")
    utils = rel.functions("llamafactory/train/trainer_utils.py", dict(base(), IGNORE_INDEX=-100), {"get_batch_logps"})
    space["get_batch_logps"], space["nested_detach"] = utils["get_batch_logps"], lambda b, clone: b
    P, weight = s.ids.shape[1] - s.T, 0.5
    labels = torch.where(torch.cat([torch.zeros(len(s.ids), P), s.mask], 1).bool(), s.ids, -100)
    of = lambda policy: lambda input_ids, attention_mask, labels, **k: ns(logits=policy.model.head(policy.model.hidden(input_ids, attention_mask)[0]).float())
    self = ns(loss_type="ipo", beta=BETA, ftx_gamma=weight, finetuning_args=ns(use_ref_model=True), label_smoothing=0.0)
    self.concatenated_forward = lambda model, batch: space["concatenated_forward"](self, model, batch)
    self.compute_preference_loss = lambda *a: space["compute_preference_loss"](self, *a)
    self.dpo_loss = lambda c, r, rc, rr: (trl_dpo(Release("trl-0.9.6"), dict(logp_chosen=c, logp_rejected=r, ref_chosen=rc, ref_rejected=rr), "ipo"), c, r)
    for i in range(2):
        k = torch.arange(i, len(labels), 2)
        batch = dict(input_ids=s.ids[k], attention_mask=s.att[k], labels=labels[k])
        with torch.no_grad():
            c, r, *_ = self.concatenated_forward(of(s.new), batch)
            rc, rr, *_ = self.concatenated_forward(of(s.ref), batch)
            self.compute_reference_log_probs = lambda *a: (rc, rr)
            loss = space["get_batch_loss_metrics"](self, of(s.new), batch)[0]
        tokens = (batch["labels"][: len(c), 1:] != -100).sum(1)
        yield dict(logp_chosen=c, logp_rejected=r, ref_chosen=rc, ref_rejected=rr, nll_loss=-c.mean(), chosen_tokens=tokens, loss=loss), meta(
            "llamafactory", rel, "dpo", micro=i, micros=2, options={"dpo.beta": BETA, "dpo.loss": "ipo", "dpo.nll_weight": weight, "agg.div_ga": False}
        )


@case("trl-2431")
def dropped(rel, side, seed, dtype):
    """Reference log-probs of the data set through the collator, then the loss: without them the trainer, which has no reference model, asks itself."""
    from collated import pad

    s = Scene(seed, prompts=1, group=2, T=4)
    x = pairs(s)
    path = "trl/trainer/dpo_trainer.py"
    space = dict(base(), pad=pad, DataCollatorMixin=object, amp=None, nullcontext=contextlib.nullcontext, contextmanager=contextlib.contextmanager)
    rel.functions(path, space, {"torch_call"}, cls="PreferenceCollator" if "class PreferenceCollator" in rel.text(path) else "DataCollatorForPreference")
    rows = [dict(prompt_input_ids=[4], chosen_input_ids=[5, 6], rejected_input_ids=[7], ref_chosen_logps=float(c), ref_rejected_logps=float(r)) for c, r in zip(x["ref_chosen"], x["ref_rejected"])]
    batch = space["torch_call"](ns(pad_token_id=0), rows)
    for name in ("get_batch_loss_metrics", "compute_ref_log_probs", "null_ref_context"):
        rel.functions(path, space, {name}, cls="DPOTrainer")
    same = ns(unwrap_model=lambda m: m, gather_for_metrics=lambda t: t, device="cpu")
    self = ns(
        model="policy", ref_model=None, is_peft_model=False, ref_adapter_name=None, _peft_has_been_casted_to_bf16=False, accelerator=same, args=ns(rpo_alpha=None), use_weighting=False, aux_loss_enabled=False,
        concatenated_forward=lambda *a: dict(chosen_logps=x["logp_chosen"], rejected_logps=x["logp_rejected"], mean_chosen_logits=torch.zeros(()), mean_rejected_logits=torch.zeros(())),
        dpo_loss=lambda c, r, rc, rr: (trl_dpo(rel, dict(logp_chosen=c, logp_rejected=r, ref_chosen=rc, ref_rejected=rr)), torch.zeros(1), torch.zeros(1)),
    )
    self.null_ref_context = lambda: contextlib.contextmanager(space["null_ref_context"])(self)
    self.compute_ref_log_probs = lambda b: space["compute_ref_log_probs"](self, b)
    loss = space["get_batch_loss_metrics"](self, "policy", batch)[0]
    yield dict(x, loss=loss), meta("trl", rel, "dpo", options={"dpo.beta": BETA, "dpo.loss": "sigmoid"})


@case("c-liger-dpo")
def refactored(rel, side, seed, dtype):
    return liger_dpo(rel, seed, False)


@case("liger-1202")
def liger_grpo(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    space = liger(rel, "fused_linear_ppo.py", "grpo_loss.py")
    with torch.no_grad():
        h = s.new.model.hidden(s.ids, s.att)[0][:, -s.T - 1 : -1].contiguous()
    w, bias = s.new.model.head.weight.detach(), s.new.model.head.bias.detach()
    g = s.scores.view(-1, 4)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1)
    order = s.mask.sum(1).argsort()
    n = len(order) // 2
    items = float(s.mask.sum())
    old = s.logps(s.old)
    lp = (h @ w.T + bias).log_softmax(-1).gather(-1, s.r["response"][..., None]).squeeze(-1)
    f = space["LigerFusedLinearGRPOLoss"](beta=0.0, compiled=False, use_ref_model=False, loss_type="dapo")
    for i in range(2):
        sel = order[i * n : (i + 1) * n]
        more = dict(num_items_in_batch=items) if side == "fixed" else {}
        loss = f(h[sel].requires_grad_(), w, s.r["response"][sel], s.mask[sel], adv[sel], bias=bias, old_per_token_logps=old[sel], **more)[0].detach()
        yield dict(response_mask=s.mask[sel], group_id=s.group[sel], logp_new=lp[sel], logp_old=old[sel], advantages=adv[sel], scores=s.scores[sel], loss=loss), meta(
            "trl", rel, "grpo", "trl-grpo@1.16", micro=i, micros=2, options={"beta": 0.0, "loss_type": "dapo", "num_items_in_batch": items, "num_iterations": 2, "tis.level": "none"}
        )


def answers(s, n=4):
    """Log-probs of n good and n + 1 bad answers, and of the pairs that KTO estimates its KL from."""
    return dict(policy=-20 + s.normal(2 * n + 1, std=4), reference=-21 + s.normal(2 * n + 1, std=4), good=torch.arange(2 * n + 1) < n, kl=s.normal(2 * n + 1, std=2) + 1)


def unpaired(rel, trainer, algorithm, seed):
    s = Scene(seed, prompts=1, group=2, T=4)
    path = f"trl/trainer/{algorithm}_trainer.py"
    f = rel.method(path, algorithm + "_loss", base())
    same = ns(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    running = ns(mean=torch.tensor(0.0))
    running.update = lambda x: setattr(running, "mean", 0.5 * running.mean + 0.5 * x)  # any number that the loss takes as a constant
    self = ns(calculate_KL=True, beta=BETA, loss_type="kto", desirable_weight=1.0, undesirable_weight=1.0, accelerator=same, running=running, match_underlying_distribution=False)
    for i in range(2):
        x = answers(s)
        split = [x[k][g] for k in ("policy", "reference") for g in (x["good"], ~x["good"])]
        if algorithm == "kto":
            losses, _, _, z = f(self, split[0], split[1], x["kl"], split[2], split[3], torch.zeros_like(x["kl"]))
        else:
            losses, _, _, z = f(self, *split, None, None)
        yield dict(logp_policy=x["policy"], logp_reference=x["reference"], desirable=x["good"], reference_point=z, loss=training_step(rel, path, losses.nanmean(), 2)), meta(
            "trl", rel, algorithm, micro=i, micros=2, options={"dpo.beta": BETA, "agg.div_ga": True}
        )


@case("trl-2648")
def kto(rel, side, seed, dtype):
    return unpaired(rel, "kto", "kto", seed)


@case("trl-2638")
def bco(rel, side, seed, dtype):
    return unpaired(rel, "bco", "bco", seed)


@case("trl-3716")
def orpo_accumulated(rel, side, seed, dtype):
    s = Scene(seed, prompts=1, group=2, T=4)
    path = "trl/trainer/orpo_trainer.py"
    odds = rel.method(path, "odds_ratio_loss", base())
    metrics = rel.method(path, "get_batch_loss_metrics", dict(base(), is_torch_xla_available=lambda: False))
    for i in range(2):
        c, r, nll = (-0.2 - s.normal(6, std=1).abs() for _ in range(3))
        nll = -nll.mean()
        same = ns(device="cpu", gather_for_metrics=lambda x: x)
        self = ns(beta=BETA, accelerator=same, aux_loss_enabled=False, concatenated_forward=lambda *a: (c, r, torch.zeros(1), torch.zeros(1), nll))
        self.odds_ratio_loss = lambda *a: odds(self, *a)
        loss = metrics(self, None, {})[0]
        yield dict(logp_chosen=c, logp_rejected=r, nll_loss=nll, loss=training_step(rel, path, loss, 2)), meta(
            "trl", rel, "dpo", micro=i, micros=2, options={"dpo.beta": BETA, "dpo.loss": "orpo", "agg.div_ga": True}
        )


@case("trl-4171")
def divergence(rel, side, seed, dtype):
    """The trainer keeps the member of the enumeration that DPOConfig made; what it is compared with is the release's line."""
    s = Scene(seed, prompts=1, group=2, T=4)
    x = pairs(s)
    import enum

    config = dict(base(), Enum=enum.Enum)
    rel.functions("trl/trainer/dpo_config.py", config, {"FDivergenceType", "FDivergenceConstants"})
    kinds, constants = config["FDivergenceType"], config["FDivergenceConstants"]
    kind, word = [(kinds.JS_DIVERGENCE, "js"), (kinds.ALPHA_DIVERGENCE, "alpha")][seed - 1]
    space = dict(base(), FDivergenceType=kinds, FDivergenceConstants=constants)
    rel.functions("trl/trainer/utils.py", space, {"cap_exp", "get_exp_cap"})
    f = rel.method("trl/trainer/dpo_trainer.py", "dpo_loss", space)
    self = ns(accelerator=ns(device="cpu"), reference_free=False, f_divergence_type=kind, f_divergence_params={constants.ALPHA_DIVERGENCE_COEF_KEY: 0.1}, loss_type=["sigmoid"], beta=BETA, label_smoothing=0.0,
              use_weighting=False)
    loss = f(self, x["logp_chosen"], x["logp_rejected"], x["ref_chosen"], x["ref_rejected"], "sigmoid")[0].mean()
    more = {"dpo.alpha": 0.1} if word == "alpha" else {}
    yield dict(x, loss=loss), meta("trl", rel, "dpo", options={"dpo.beta": BETA, "dpo.loss": "sigmoid", "dpo.divergence": word, **more})
