"""Masks that a collator, a generation or a tokeniser made: which tokens of a row are trained on."""

import torch
import torch.nn.functional as F
from distill import gkd, jsd
from scene import Scene, case, meta, ns
from source import base
from supervised import logps, sft
from world import EOS, PAD


def texts(s):
    """The tokens of every row without padding."""
    return [x[a.bool()].tolist() for x, a in zip(s.ids, s.att)]


def pad(rows, padding_value=0, padding_side="right"):
    """Rows side by side, as wide as the longest: what tokenizer.pad and trl.trainer.utils.pad do."""
    width = max(len(r) for r in rows)
    fill = [torch.full((width - len(r),), padding_value, dtype=torch.long) for r in rows]
    rows = [torch.as_tensor(r) for r in rows]
    return torch.stack([torch.cat([f, r] if padding_side == "left" else [r, f]) for r, f in zip(rows, fill)])


def logits(policy, ids, att):
    with torch.no_grad():
        return policy.model.head(policy.model.hidden(ids, att)[0]).float()


def ends(**more):
    return {"eos_token_id": EOS, "pad_token_id": EOS, "agg.denominator": "micro", **more}


@case("trl-3200")
def pad_is_eos(rel, side, seed, dtype):
    """Without a collator of its own SFTTrainer takes that of transformers, with mlm=False."""
    from run import Release

    s = Scene(seed, prompts=4, pad_is_eos=True)
    examples = [{"input_ids": x} for x in texts(s)]
    own = "class DataCollatorForLanguageModeling" in rel.text("trl/trainer/sft_trainer.py")
    if own:
        space = dict(base(), pad=pad, DataCollatorMixin=object)
        rel.functions("trl/trainer/sft_trainer.py", space, {"torch_call"}, cls="DataCollatorForLanguageModeling")
        batch = space["torch_call"](ns(pad_token_id=EOS), examples)
    else:
        padded = lambda tokenizer, rows, **k: dict(input_ids=pad([r["input_ids"] for r in rows], EOS), attention_mask=pad([[1] * len(r["input_ids"]) for r in rows]))
        space = dict(base(), Mapping=dict, pad_without_fast_tokenizer_warning=padded)
        Release("transformers-4.49.0").functions("transformers/data/data_collator.py", space, {"torch_call"}, cls="DataCollatorForLanguageModeling")
        batch = space["torch_call"](ns(tokenizer=ns(pad_token_id=EOS), pad_to_multiple_of=None, mlm=False), examples)
    ids, att, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    z = logits(s.old, ids, att)
    loss = F.cross_entropy(z[:, :-1].reshape(-1, z.shape[-1]), labels[:, 1:].reshape(-1))
    yield sft(rel, "trl", ids, labels[:, 1:] != -100, z, loss, options=ends(), input_ids=ids, attention_mask=att, response_ids=ids[:, 1:])


@case("trl-6357")
def generated(rel, side, seed, dtype):
    """What GKDTrainer makes of generated rows whose padding is EOS."""
    s = Scene(seed, prompts=4, pad_is_eos=True)
    P = s.ids.shape[1] - s.T
    f = rel.method("trl/experimental/gkd/gkd_trainer.py", "generate_on_policy_outputs", base())
    more = dict(pad_token_id=EOS) if "pad_token_id" in f.__code__.co_varnames[: f.__code__.co_argcount] else {}
    model = ns(generate=lambda **k: ns(sequences=s.ids.clone()))
    ids, att, labels = f(model, dict(prompts=s.ids[:, :P], prompt_attention_mask=s.att[:, :P]), ns(eos_token_id=EOS), **more)
    z, q = (logits(p, ids, att)[:, P - 1 : -1] for p in (s.new, s.ref))
    loss = jsd(rel)(z, q, labels=labels[:, P:], beta=0.5)
    t, m = gkd("trl", rel, z, q, labels[:, P:] != -100, loss, ids=ids[:, P:], options=ends(**{"distill.beta": 0.5}))
    yield dict(t, input_ids=ids, attention_mask=att.bool(), prompt_len=s.r["plen"]), m


def forward(rel, s, n):
    """DPOTrainer.concatenated_forward on chosen rows (the first n) and rejected ones, with the NLL of RPO."""
    space = dict(base(), amp=None)
    for name in ("pad_to_length", "flush_left", "pad"):
        rel.functions("trl/trainer/utils.py", space, {name})
    f = rel.method("trl/trainer/dpo_trainer.py", "concatenated_forward", space)
    inputs = rel.method("trl/trainer/dpo_trainer.py", "concatenated_inputs", space)
    P = s.ids.shape[1] - s.T
    half = lambda x: (x[:n], x[n:])
    batch = dict(prompt_input_ids=s.ids[:n, :P], prompt_attention_mask=s.att[:n, :P])
    for kind, ids, att in zip(("chosen", "rejected"), half(s.ids[:, P:]), half(s.att[:, P:])):
        batch[kind + "_input_ids"], batch[kind + "_attention_mask"] = ids.clone(), att.clone()
    self = ns(
        padding_value=PAD, is_encoder_decoder=False, aux_loss_enabled=False, use_weighting=False, use_num_logits_to_keep=False, use_logits_to_keep=False, loss_type="sigmoid", concatenated_inputs=inputs,
        label_pad_token_id=-100, max_length=None, truncation_mode="keep_end", padding_free=False, args=ns(max_length=None, rpo_alpha=1.0),
    )
    model = lambda input_ids, attention_mask, **k: ns(logits=logits(s.new, input_ids, attention_mask))
    return f(self, model, batch)


@case("trl-2332")
def trimmed(rel, side, seed, dtype):
    """The pairs' prompts have the same length, so that what is trimmed is the end of the longest answer."""
    s = Scene(seed, prompts=1, group=6)
    first = int(s.att[0].argmax())
    s.ids, s.att = s.ids[:, first:], s.att[:, first:]
    P = s.ids.shape[1] - s.T
    order = s.mask.sum(1).argsort(descending=True)  # the longest is a chosen one
    s.ids, s.att = s.ids[order], s.att[order]
    s.ids, s.att = F.pad(s.ids, (0, 2)), F.pad(s.att, (0, 2))  # an empty column behind it, as pad_to_multiple_of leaves
    s.T += 2
    n = len(s.ids) // 2
    out = forward(rel, s, n)
    ids, att = s.ids[:n], s.att[:n]
    mask = att.clone()
    mask[:, :P] = 0
    yield sft(rel, "trl", ids, mask[:, 1:], logits(s.new, ids, att), out["nll_loss"], options={"agg.denominator": "micro"})


@case("trl-4908")
def two_ends(rel, side, seed, dtype):
    """A conversational data set, whose chat template has written the EOS of the answer."""
    s = Scene(seed, prompts=4)
    P = s.ids.shape[1] - s.T
    f = rel.method("trl/trainer/dpo_trainer.py", "tokenize_row", base())
    tokenizer = type("T", (), {"eos_token_id": EOS, "bos_token_id": None, "__call__": lambda self, text, **k: {"input_ids": list(text)}})()
    more = dict(is_chat=True) if "is_chat" in f.__code__.co_varnames[: f.__code__.co_argcount] else {}
    prompts, answers = [], []
    for x, a, m in zip(s.ids, s.att, s.mask):
        answer = x[P:][m.bool()].tolist()
        answer += [EOS] if answer[-1] != EOS else []
        row = f(dict(prompt=x[:P][a[:P].bool()].tolist(), chosen=answer, rejected=answer), tokenizer, None, None, False, **more)
        prompts.append(row["prompt_input_ids"]), answers.append(row["chosen_input_ids"])
    ones = lambda rows: [[1] * len(r) for r in rows]
    ids = torch.cat([pad(prompts, PAD, "left"), pad(answers, PAD)], 1)
    att = torch.cat([pad(ones(prompts), 0, "left"), pad(ones(answers))], 1)
    P = ids.shape[1] - pad(answers).shape[1]
    z, labels = logits(s.new, ids, att), torch.where(att.bool(), ids, -100)
    z, labels = z[:, P - 1 : -1], labels[:, P:]
    loss = F.cross_entropy(z.reshape(-1, z.shape[-1]), labels.reshape(-1))
    t = dict(labels_mask=labels != -100, logp_new=logps(logits(s.new, ids, att), ids)[:, P - 1 :], loss=loss, input_ids=ids, attention_mask=att, response_ids=ids[:, P:])
    yield t, meta("trl", rel, "sft", options={"agg.kind": "token", "agg.denominator": "micro", "eos_token_id": EOS, "pad_token_id": PAD})
