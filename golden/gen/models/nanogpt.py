"""The bidirectional rotary GPT of a masked language model, and its judge: golden/models/maskedgpt and judge.

Parameters have nanoGPT's names. The modules are written from the specification; with --peer DIR, a checkout of
JinxCodesAI/nano_gpt at commit 1da2900, the same weights run through that repository's own model.py, and golden.json
records how far the two are apart in float64.
"""
import math
import os
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import record


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["n_head"]
        self.c_attn = nn.Linear(c["n_embd"], 3 * c["n_embd"], bias=c["bias"])
        self.c_proj = nn.Linear(c["n_embd"], c["n_embd"], bias=c["bias"])

    def forward(self, x, keys):
        b, t, width = x.shape
        d = width // self.heads
        q, k, v = (z.reshape(b, t, self.heads, d).permute(0, 2, 1, 3) for z in self.c_attn(x).chunk(3, dim=-1))
        angle = torch.outer(torch.arange(t, dtype=torch.float64), 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d))
        turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64 if x.dtype == torch.float32 else torch.complex128)

        def rotate(z):  # element j of a head and element j + d/2 are one complex number
            z = torch.complex(z[..., : d // 2].contiguous(), z[..., d // 2 :].contiguous()) * turn
            return torch.cat([z.real, z.imag], dim=-1)

        score = torch.einsum("bhid,bhjd->bhij", rotate(q), rotate(k)) / math.sqrt(d)
        score = score.masked_fill(keys[:, None, None, :] == 0, -torch.inf)
        return self.c_proj(torch.einsum("bhij,bhjd->bihd", score.softmax(-1), v).reshape(b, t, width))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c["n_embd"], 4 * c["n_embd"], bias=c["bias"])
        self.c_proj = nn.Linear(4 * c["n_embd"], c["n_embd"], bias=c["bias"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c["n_embd"], eps=1e-5, bias=c["bias"])
        self.attn = Attention(c)
        self.ln_2 = nn.LayerNorm(c["n_embd"], eps=1e-5, bias=c["bias"])
        self.mlp = MLP(c)

    def forward(self, x, keys):
        x = x + self.attn(self.ln_1(x), keys)
        return x + self.mlp(self.ln_2(x))


class SequenceHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base_predictor = nn.Linear(width, 1, bias=False)
        self.A = nn.Parameter(torch.ones(1))
        self.B = nn.Parameter(torch.zeros(1))
        self.temperature = nn.Parameter(torch.zeros(1))  # stored by the original, used by nobody

    def forward(self, h):
        return torch.sigmoid(self.A * self.base_predictor(h)[..., 0] + self.B)


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(c["vocab_size"], c["n_embd"]),
            "h": nn.ModuleList(Block(c) for _ in range(c["n_layer"])),
            "ln_f": nn.LayerNorm(c["n_embd"], eps=1e-5, bias=c["bias"]),
        })
        if c["mode"] == "sequence_scorer":
            self.sequence_head = SequenceHead(c["n_embd"])
            self.cls_embedding = nn.Parameter(torch.zeros(c["n_embd"]))

    def hidden(self, ids, keys):
        x = self.transformer.wte(ids)
        if hasattr(self, "cls_embedding"):
            x = torch.where((ids == self.c["cls_token_id"])[..., None], self.cls_embedding, x)
        for block in self.transformer.h:
            x = block(x, keys)
        return self.transformer.ln_f(x)

    def logits(self, hidden):
        return hidden @ self.transformer.wte.weight.T

    def score(self, hidden):
        return self.sequence_head(hidden[:, 0])


BASE, MASK, PAD, CLS = 20, 20, 21, 22


def config(mode, bias):
    c = dict(model_type="maskedgpt", mode=mode, n_layer=2, n_head=3, n_embd=24, block_size=16, vocab_size=22, bias=bias,
             attention_type="bidirectional", position_encoding="rotary", mask_token_id=MASK, pad_token_id=PAD)
    if mode == "sequence_scorer":
        c.update(vocab_size=23, cls_token_id=CLS)
    return c


def peer(directory, c, model):
    """The original's GPT with the weights of model, in float64."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
        for name, item in (("timings_singleton", "get_global_timer"), ("sample_utils", "build_critic_artifacts_from_logits")):
            stub = types.ModuleType(name)
            setattr(stub, item, lambda *_, **__: None)
            sys.modules[name] = stub
    import model as original
    names = {"n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "attention_type", "position_encoding", "cls_token_id"}
    torch.set_default_dtype(torch.float64)  # its rotary tables have the default type
    try:
        m = original.GPT(original.GPTConfig(dropout=0.0, mode=original.ModelMode(c["mode"]), **{k: v for k, v in c.items() if k in names}))
    finally:
        torch.set_default_dtype(torch.float32)
    state = {n: t.double() for n, t in model.state_dict().items()}
    if c["mode"] == "language_model":
        state["lm_head.weight"] = state["transformer.wte.weight"]
    m.double().load_state_dict(state)
    d = c["n_embd"] // c["n_head"]
    frequency = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    for part in m.modules():
        if hasattr(part, "rotary_emb"):
            rotary = part.rotary_emb
            rotary.inv_freq = frequency  # made in float32 by the original
            rotary._set_cos_sin_cache(c["block_size"], None, torch.float64)
    return m.eval()


def batch(rng, rows, length, pads):
    ids = rng.integers(0, BASE, size=(rows, length))
    keys = np.ones((rows, length), np.int64)
    for i, p in enumerate(pads):
        keys[i, length - p :] = 0
        ids[i, length - p :] = PAD
    return ids, keys


def language_model(out, directory):
    c, rng = config("language_model", True), record.generator("maskedgpt")
    m = GPT(c)
    record.fill(m, rng)
    folder = os.path.join(out, "maskedgpt")
    record.save_weights(folder, m, c, {"lm_head.weight": "transformer.wte.weight"})

    completion, keys = batch(rng, 3, 11, [0, 0, 4])
    masked = (rng.random(completion.shape) < 0.5) & (keys > 0)
    masked[1] = False  # a row without actions
    ids = np.where(masked, MASK, completion)
    t = {n: torch.from_numpy(v) for n, v in dict(ids=ids, attention_mask=keys, completion_ids=completion).items()}

    def run(prefix):
        hidden = m.hidden(t["ids"], t["attention_mask"])
        logits = m.logits(hidden)
        logp = torch.log_softmax(logits, -1).gather(-1, t["completion_ids"][..., None])[..., 0]
        return {prefix + "hidden": hidden, prefix + "logits": logits, prefix + "logp": logp}

    def scalar():
        logp = run("")["logp"]
        action = t["ids"] == MASK
        return logp[action].sum() / action.sum()

    with torch.no_grad():
        t.update(run("float32/"))
    m.double()
    t.update(run("float64/"))
    t["float64/sequence_logp"] = torch.where(t["ids"] == MASK, t["float64/logp"], 0.0).sum(1)
    t["float64/mean_logp"] = scalar()
    t.update({"float64/grad/" + n: g for n, g in record.gradients(scalar(), m).items()})
    about = dict(
        versions=record.versions("torch"), spec=c,
        meaning={
            "float32/": "the model as saved, float32", "float64/": "the same weights in float64",
            "attention_mask": "1 a token, 0 a pad at the right: a key that nobody attends to; outputs at pads are not meaningful",
            "completion_ids": "ids with every MASK filled in", "logp": "log p(completion_ids) at every position, from the raw logits",
            "sequence_logp": "sum of logp over the positions of ids that are MASK",
            "mean_logp": "mean of logp over the positions of ids that are MASK; grad/ is its gradient",
        },
        gradient_finite_difference=record.differences(scalar, m, ["transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias", "transformer.h.1.mlp.c_fc.weight", "transformer.ln_f.bias"], rng),
    )
    if directory:
        o = peer(directory, c, m)
        with torch.no_grad():
            full = torch.ones_like(t["ids"])
            theirs = o(t["ids"], targets=t["ids"])[0]
            about["peer_check"] = {"peer": "JinxCodesAI/nano_gpt model.py, commit 1da2900", "what": "logits without attention_mask", "worst": record.worst(theirs, m.logits(m.hidden(t["ids"], full)))}
            assert about["peer_check"]["worst"] < 1e-13, about["peer_check"]
            keys = t["attention_mask"].clone()
            keys[:2, -1] = 0  # the inverse of a mask has something to attend to in every row
            theirs = o(t["ids"], targets=t["ids"], attention_mask=keys)[0]
            about["peer_check"]["with attention_mask"] = {n: record.worst(theirs, m.logits(m.hidden(t["ids"], k))) for n, k in (("as given", keys), ("inverted", 1 - keys))}
            assert about["peer_check"]["with attention_mask"]["inverted"] < 1e-13, about["peer_check"]
    record.save_golden(folder, t, about)
    record.save_manifest(folder, "golden/gen/models/produce.py", ["torch", "safetensors", "numpy"])


def judge(out, directory):
    c, rng = config("sequence_scorer", False), record.generator("judge")
    m = GPT(c)
    record.fill(m, rng)
    m.sequence_head.A.data = torch.tensor([0.875])
    m.sequence_head.B.data = torch.tensor([-0.125])
    folder = os.path.join(out, "judge")
    record.save_weights(folder, m, c)

    text, keys = batch(rng, 4, 9, [0, 3, 0, 1])
    long = rng.integers(0, BASE, size=(2, c["block_size"] + 3))
    share = np.array([0.0, 0.1, 0.5, 1.0])
    front = lambda z, v: torch.from_numpy(np.concatenate([np.full((len(z), 1), v), z], 1))
    t = {"text_ids": torch.from_numpy(text), "text_mask": torch.from_numpy(keys), "long_text_ids": torch.from_numpy(long),
         "ids": front(text, CLS), "attention_mask": front(keys, 1), "targets": torch.from_numpy(1 - (-(share**4) + 2 * share**3 - 2 * share + 1))}
    cut = front(long[:, -(c["block_size"] - 1) :], CLS)

    def run(prefix):
        hidden = m.hidden(t["ids"], t["attention_mask"])
        return {prefix + "hidden": hidden, prefix + "score": m.score(hidden), prefix + "long_score": m.score(m.hidden(cut, torch.ones_like(cut)))}

    def scalar():
        return (run("")["score"] - t["targets"]).square().mean()

    with torch.no_grad():
        t.update(run("float32/"))
    m.double()
    t.update(run("float64/"))
    t["float64/reward"] = 1 - t["float64/score"].clamp(0, 1)
    t["float64/loss"] = scalar()
    t.update({"float64/grad/" + n: g for n, g in record.gradients(scalar(), m).items()})
    about = dict(
        versions=record.versions("torch"), spec=c,
        meaning={
            "float32/": "the model as saved, float32", "float64/": "the same weights in float64",
            "text_ids": "the text without CLS, pads at the right; text_mask is 0 there", "ids": "CLS, then text_ids", "score": "sigmoid(A*(w.h) + B) of the hidden state h at CLS",
            "long_text_ids": "longer than block_size: the judge reads CLS and the last block_size-1 tokens, long_score",
            "reward": "1 - clamp(score, 0, 1)", "targets": "t(s) = 1 - (-s^4 + 2s^3 - 2s + 1) at s = 0, .1, .5, 1",
            "loss": "mean of (score - targets)^2; grad/ is its gradient",
        },
        gradient_finite_difference=record.differences(scalar, m, ["cls_embedding", "sequence_head.A", "sequence_head.B", "sequence_head.base_predictor.weight", "transformer.wte.weight", "transformer.h.0.attn.c_proj.weight"], rng),
    )
    if directory:
        o = peer(directory, c, m)
        with torch.no_grad():
            full = torch.ones_like(t["ids"])
            about["peer_check"] = {"peer": "JinxCodesAI/nano_gpt model.py, commit 1da2900", "what": "scores without attention_mask", "worst": record.worst(o(t["ids"])[0], m.score(m.hidden(t["ids"], full)))}
            assert about["peer_check"]["worst"] < 1e-13, about["peer_check"]
    record.save_golden(folder, t, about)
    record.save_manifest(folder, "golden/gen/models/produce.py", ["torch", "safetensors", "numpy"])
