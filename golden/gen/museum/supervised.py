"""SFT: verl's trainer, the Trainer of transformers, NLL terms of preference trainers, collators."""

import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from scene import BOTH, Scene, case, gradient, meta, ns
from source import base


def lm(s, policy=None):
    with torch.no_grad():
        h, _ = (policy or s.old).model.hidden(s.ids, s.att)
        return (policy or s.old).model.head(h).float()


def logps(z, ids):
    return z[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def sft(rel, framework, ids, labels_mask, z, loss, micro=0, micros=1, attention=None, options=None, **more):
    """Columns are the tokens 1 … S−1, as the labels are shifted."""
    t = dict(labels_mask=labels_mask.bool(), logp_new=logps(z, ids), loss=loss, **more)
    return t, meta(framework, rel, "sft", micro=micro, micros=micros, options={"agg.kind": "token", **(options or {})})


def verl_sft(rel, s, z, mask, n):
    space = dict(base(), nn=nn, nullcontext=contextlib.nullcontext)
    f = rel.method("verl/trainer/fsdp_sft_trainer.py", "_compute_loss_and_backward", space)
    z = z.clone().requires_grad_()
    self = ns(
        use_remove_padding=False, config=ns(ulysses_sequence_parallel_size=1, data=ns(balance_dp_token=False)), device_name="cpu", fsdp_model=lambda **k: ns(logits=z), model=ns(config=ns(vocab_size=z.shape[-1])),
    )
    batch = dict(input_ids=s[0], attention_mask=s[1], position_ids=s[1], loss_mask=mask.clone())
    more = dict(n_micro_batches=n) if "n_micro_batches" in f.__code__.co_varnames else {}
    return f(self, batch, **more)


@case("verl-3287")
def shifted_mask(rel, side, seed, dtype):
    s = Scene(seed)
    z = lm(s)
    mask = torch.cat([torch.zeros(len(s.ids), s.ids.shape[1] - s.T, dtype=torch.long), s.mask], 1)
    loss = verl_sft(rel, (s.ids, s.att), z, mask, 1).detach()
    yield sft(rel, "verl", s.ids, mask[:, 1:], z, loss, options={"agg.denominator": "micro"})


@case("verl-3332")
def not_divided(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    z = lm(s)
    n = len(s.ids) // 2
    for i in range(2):
        sel = slice(i * n, (i + 1) * n)
        ones = torch.ones_like(s.ids[sel])  # every token counts, so that the shift of the mask does not show
        loss = verl_sft(rel, (s.ids[sel], s.att[sel]), z[sel], ones, 2).detach()
        yield sft(rel, "verl", s.ids[sel], ones[:, 1:], z[sel], loss, i, 2, options={"agg.denominator": "micro", "agg.div_ga": True})


@case("transformers-34191")
def accumulation(rel, side, seed, dtype):
    s = Scene(seed, prompts=4)
    z = lm(s)
    P = s.ids.shape[1] - s.T
    labels = torch.where(torch.cat([torch.zeros(len(s.ids), P), s.mask], 1).bool(), s.ids, -100)
    path = "transformers/models/llama/modeling_llama.py"
    space = dict(base(), CrossEntropyLoss=nn.CrossEntropyLoss, CausalLMOutputWithPast=lambda **k: k)
    rel.functions(path, space, {"forward"}, cls="LlamaForCausalLM")
    trainer = dict(base(), is_sagemaker_mp_enabled=lambda: False, OptimizerNames=ns(LOMO=1, ADALOMO=2), Dict=dict, Any=None, Union=None)
    rel.functions("transformers/trainer.py", trainer, {"training_step", "compute_loss"}, cls="Trainer")
    loss_function = None
    if side == "fixed":
        lu = dict(base(), CrossEntropyLoss=nn.CrossEntropyLoss)
        rel.functions("transformers/loss/loss_utils.py", lu, {"fixed_cross_entropy", "ForCausalLMLoss"})
        loss_function = lu["ForCausalLMLoss"]
    GA = 2
    order = s.mask.sum(1).argsort()
    n = len(order) // GA
    items = int((labels[:, 1:] != -100).sum())
    for i in range(GA):
        sel = order[i * n : (i + 1) * n]
        zi = z[sel].clone().requires_grad_()
        model = ns(
            config=ns(output_attentions=False, output_hidden_states=False, use_return_dict=True, pretraining_tp=1, vocab_size=z.shape[-1]), vocab_size=z.shape[-1], loss_function=loss_function,
            model=lambda **k: type("O", (tuple,), {"past_key_values": None, "hidden_states": None, "attentions": None})((zi,)), lm_head=lambda h: h, train=lambda: None,
        )
        call = type("M", (), {"__call__": lambda self, **k: space["forward"](model, **k), "train": lambda self: None})()
        back = []
        self = ns(
            optimizer=ns(), _prepare_inputs=lambda x: x, compute_loss_context_manager=contextlib.nullcontext, label_smoother=None, compute_loss_func=None, model_accepts_loss_kwargs=True, use_apex=False,
            args=ns(gradient_accumulation_steps=GA, torch_empty_cache_steps=None, n_gpu=1, optim=0, past_index=-1), state=ns(global_step=0),
            accelerator=ns(backward=lambda loss, **k: back.append(loss.detach() / GA)),  # Accelerator.backward divides by its accumulation steps
        )
        self.compute_loss = lambda model, inputs, **k: trainer["compute_loss"](self, model, inputs, **k)
        more = dict(num_items_in_batch=items) if side == "fixed" else {}
        trainer["training_step"](self, call, dict(input_ids=s.ids[sel], attention_mask=s.att[sel], labels=labels[sel]), **more)
        yield sft(rel, "transformers", s.ids[sel], labels[sel][:, 1:] != -100, z[sel], back[0], i, GA, options={"agg.denominator": "global", "num_items_in_batch": items})


@case("transformers-35438")
def no_loss_kwargs(rel, side, seed, dtype):
    """A model that takes no loss kwargs gives the mean of its micro-batch; what becomes of it over two of them."""
    s = Scene(seed, prompts=4)
    z = lm(s)
    P = s.ids.shape[1] - s.T
    labels = torch.where(torch.cat([torch.zeros(len(s.ids), P), s.mask], 1).bool(), s.ids, -100)
    space = dict(base(), is_sagemaker_mp_enabled=lambda: False, OptimizerNames=ns(LOMO=1, ADALOMO=2), Dict=dict, Any=None, Union=None, Optional=None, DistributedType=ns(DEEPSPEED=1))
    rel.functions("transformers/trainer.py", space, {"training_step", "compute_loss", "get_batch_samples"}, cls="Trainer")
    GA, back = 2, []
    n = len(labels) // GA
    parts = [slice(i * n, (i + 1) * n) for i in range(GA)]
    self = ns(
        optimizer=ns(), _prepare_inputs=lambda x: x, compute_loss_context_manager=contextlib.nullcontext, label_smoother=None, compute_loss_func=None, model_accepts_loss_kwargs=False, use_apex=False,
        args=ns(gradient_accumulation_steps=GA, torch_empty_cache_steps=None, n_gpu=1, optim=0, past_index=-1, average_tokens_across_devices=False), state=ns(global_step=0),
        accelerator=ns(backward=lambda loss, **k: back.append(loss.detach()), distributed_type=0),
    )
    self.compute_loss = lambda *a, **k: space["compute_loss"](self, *a, **k)
    model = type("M", (), {"__call__": lambda self, z, labels: dict(loss=F.cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten())), "train": lambda self: None})()
    batches, items = space["get_batch_samples"](self, iter([dict(z=z[k], labels=labels[k]) for k in parts]), GA)
    for i, (k, b) in enumerate(zip(parts, batches)):
        space["training_step"](self, model, b, num_items_in_batch=items)
        yield sft(rel, "transformers", s.ids[k], labels[k][:, 1:] != -100, z[k], back[-1], i, GA, options={"agg.denominator": "micro", "agg.div_ga": True})


@case("trl-5620")
def logged_entropy(rel, side, seed, dtype):
    """SFTTrainer.compute_loss on rows padded to a multiple of eight, prompts masked from the labels; what it logs as the entropy."""
    s = Scene(seed, prompts=3)
    left = (s.att == 0).long().cumprod(1).sum(1)  # SFT pads on the right
    start = s.ids.shape[1] - s.T - left
    ids, att = (torch.stack([torch.roll(x, -int(k)) for x, k in zip(t, left)]) for t in (s.ids, s.att))
    wide = -(-(ids.shape[1] + 1) // 8) * 8
    ids, att = (F.pad(t, (0, wide - t.shape[1])) for t in (ids, att))
    labels = torch.where((torch.arange(wide)[None] >= start[:, None]) & att.bool(), ids, -100)
    s.ids, s.att = ids, att
    z = lm(s)
    space = dict(base(), PeftType=None, warnings=None)
    rel.functions("trl/trainer/utils.py", space, {"entropy_from_logits"})
    loss = F.cross_entropy(z[:, :-1].reshape(-1, z.shape[-1]), labels[:, 1:].reshape(-1))
    f = rel.method("trl/trainer/sft_trainer.py", "compute_loss", space)
    self = ns(model=ns(training=True), args=ns(use_liger_kernel=False), num_virtual_tokens=0, accelerator=ns(gather_for_metrics=lambda x: x), _metrics={"train": {"entropy": [], "mean_token_accuracy": []}}, _total_train_tokens=0,
              aux_loss_enabled=False)
    space["super"] = lambda: ns(compute_loss=lambda *a, **k: (loss, ns(logits=z)))
    f(self, None, dict(input_ids=ids, attention_mask=att, labels=labels))
    entropy = space["entropy_from_logits"](z)[:, :-1]
    t, m = sft(rel, "trl", ids, labels[:, 1:] != -100, z, loss, options={"agg.denominator": "micro"}, input_ids=ids, attention_mask=att, response_ids=ids[:, 1:], entropy=entropy)
    yield t, dict(m, scalars={"entropy": self._metrics["train"]["entropy"][-1]})


def preference_batch(s):
    """Chosen rows over rejected ones, with the prompt masked from the labels."""
    P = s.ids.shape[1] - s.T
    labels = torch.where(torch.cat([torch.zeros(len(s.ids), P), s.mask], 1).bool(), s.ids, -100)
    n = len(labels) // 2
    return labels, n


@case("trl-1705")
def rpo(rel, side, seed, dtype):
    s = Scene(seed)
    z = lm(s)
    labels, n = preference_batch(s)
    space = dict(base(), nn=nn)
    f = rel.method("trl/trainer/dpo_trainer.py", "concatenated_forward", space)
    g = rel.method("trl/trainer/dpo_trainer.py", "get_batch_logps", dict(base()))
    batch = dict(concatenated_input_ids=s.ids, concatenated_attention_mask=s.att, concatenated_labels=labels)
    self = ns(is_encoder_decoder=False, is_vision_model=False, aux_loss_enabled=False, label_pad_token_id=-100, padding_value=0, accelerator=ns(device="cpu"), loss_type="sigmoid",
              concatenated_inputs=lambda *a, **k: batch, get_batch_logps=g)
    out = f(self, lambda *a, **k: ns(logits=z.clone()), dict(chosen_labels=labels[:n]))
    nll = -out[4].mean() if side == "affected" else out[4]  # get_batch_loss_metrics takes the mean of the averages
    yield sft(rel, "trl", s.ids[:n], labels[:n, 1:] != -100, z[:n], nll, options={"agg.denominator": "micro"})


@case("trl-1625")
def orpo(rel, side, seed, dtype):
    s = Scene(seed)
    # ORPO pads on the right
    left = (s.att == 0).long().cumprod(1).sum(1)
    ids = torch.stack([torch.roll(x, -int(k)) for x, k in zip(s.ids, left)])
    att = torch.stack([torch.roll(x, -int(k)) for x, k in zip(s.att, left)])
    s.ids, s.att = ids, att
    z = lm(s)
    labels = torch.where(att.bool(), ids, -100)
    n = len(ids) // 2
    space = dict(base(), nn=nn)
    f = rel.method("trl/trainer/orpo_trainer.py", "concatenated_forward", space)
    g = rel.method("trl/trainer/orpo_trainer.py", "get_batch_logps", dict(base()))
    batch = dict(concatenated_input_ids=ids, concatenated_attention_mask=att, concatenated_labels=labels)
    self = ns(is_encoder_decoder=False, label_pad_token_id=-100, padding_value=0, accelerator=ns(device="cpu"), concatenated_inputs=lambda *a, **k: batch, get_batch_logps=g)
    nll = f(self, lambda *a, **k: ns(logits=z.clone()), dict(chosen_labels=labels[:n]))[4]
    yield sft(rel, "trl", ids[:n], att[:n, 1:], z[:n], nll, options={"agg.denominator": "micro"})
