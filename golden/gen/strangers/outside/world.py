"""What every program here stands on: a small language model, an engine that samples from its bfloat16 copy, prompts and rewards.

The model is the neural probabilistic language model of Bengio et al. (2003): the embeddings of the last WINDOW tokens, one hidden layer with
a residual, a linear head. It is real autograd with real rounding, and sampling needs no cache.
"""

import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, EOS, VOCAB, WINDOW = 0, 1, 61, 4


class Net(nn.Module):
    def __init__(self, width=40, out=VOCAB, spread=1.6):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width)
        self.mix = nn.Linear(WINDOW * width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, out)
        nn.init.normal_(self.head.weight, std=spread / width**0.5)

    def forward(self, ids, attention):
        """ids, attention [B, S] → [B, S, out]; entry s has seen the tokens up to s."""
        x = self.emb(ids) * attention.unsqueeze(-1).to(self.emb.weight.dtype)
        past = [F.pad(x, (0, 0, k, 0))[:, : x.shape[1]] for k in range(WINDOW)]
        return self.head(self.norm(x + F.gelu(self.mix(torch.cat(past, -1)))))


class Knobs(dict):
    """Settings of one run, drawn from its seed; what is in fixed is taken as given."""

    def __init__(self, seed, fixed=None):
        super().__init__()
        self.r, self.fixed = random.Random(f"outside {seed}"), dict(fixed or {})

    def __getattr__(self, k):
        try:
            return self[k]
        except KeyError:
            raise AttributeError(k) from None

    def draw(self, **choices):
        for k, v in choices.items():
            drawn = v(self) if callable(v) else self.r.choice(v)
            self[k] = self.fixed.get(k, drawn)
        return self


def policy(seed, tokens, eos_scale=1.5):
    """A policy whose responses end after about tokens/eos_scale tokens."""
    torch.manual_seed(seed)
    net = Net()
    with torch.no_grad():
        net.head.bias[EOS] += float(torch.log(torch.tensor(VOCAB * eos_scale / tokens))) + 0.6
        net.head.bias[PAD] -= 30.0
    return net


def moved(net, seed, by):
    """A copy whose weights are off by normal noise of that size: a reference, an earlier policy."""
    torch.manual_seed(seed)
    out = copy.deepcopy(net)
    with torch.no_grad():
        for p in out.parameters():
            p.add_(by * torch.randn_like(p))
    return out


def prompts(seed, n, most):
    """n left-padded prompts: ids [n, most], attention [n, most]."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCAB, (n, most), generator=g)
    lens = torch.randint(min(2, most), most + 1, (n,), generator=g)
    att = (torch.arange(most)[None] >= most - lens[:, None]).long()
    return ids * att, att


@torch.no_grad()
def generate(net, ids, att, tokens, temperature=1.0, seed=0, dtype=torch.bfloat16, noise=0.0, top_p=1.0):
    """Samples as an inference engine does: weights and logits in dtype, log-softmax in float32.

    Returns response [B, tokens] (PAD after EOS), mask, finished [B], log-probs [B, tokens].
    """
    g = torch.Generator().manual_seed(seed)
    eng = copy.deepcopy(net).to(dtype)
    if noise:
        for p in eng.parameters():
            p.add_(noise * torch.randn(p.shape, generator=g).to(dtype))
    seq, a, lps = ids, att, []
    done = torch.zeros(len(ids), dtype=torch.bool)
    mask = []
    for _ in range(tokens):
        lg = eng(seq[:, -WINDOW:], a[:, -WINDOW:])[:, -1].float() / temperature
        lp = F.log_softmax(lg, -1)
        tok = torch.multinomial(lp.exp(), 1, generator=g).squeeze(1)
        lps.append(lp.gather(1, tok[:, None]).squeeze(1).masked_fill(done, 0.0))
        tok = tok.masked_fill(done, PAD)
        mask.append(~done)
        seq = torch.cat([seq, tok[:, None]], 1)
        a = torch.cat([a, (~done).long()[:, None]], 1)
        done = done | (tok == EOS)
        if bool(done.all()):
            break
    n = tokens - len(lps)
    return (
        F.pad(seq[:, ids.shape[1] :], (0, n)),
        F.pad(torch.stack(mask, 1), (0, n)),
        done,
        F.pad(torch.stack(lps, 1), (0, n)),
    )


def judge_rewards(seq, mask, done, kind, seed=0):
    """A reward per response: exact match (0, 1), a graded share, or two parts of different size."""
    n = mask.sum(1).clamp(min=1)
    even = ((seq % 2 == 0) & mask).sum(1) / n
    if kind == "binary":
        return (even > even.median()).float()
    if kind == "graded":
        return even.float() * 2 - 1 + 0.25 * done.float()
    if kind == "big":
        return torch.round(even * 40) - 12
    low = ((seq < VOCAB // 3) & mask).sum(1) / n
    return torch.stack([(even > 0.5).float(), low.float()], 1)


def holes(mask, share, seed):
    """Spans in the middle of responses that a tool wrote: false there."""
    g = torch.Generator().manual_seed(seed)
    m = mask.clone()
    for i in range(len(m)):
        n = int(m[i].sum())
        if n > 6 and torch.rand((), generator=g) < share:
            lo = int(torch.randint(1, n - 3, (), generator=g))
            m[i, lo : lo + int(torch.randint(1, max(2, (n - lo) // 2), (), generator=g))] = False
    return m


def rollout(k, net, i, temperature=1.0, **how):
    """One generation batch: k.prompts prompts with k.gens responses each, rows of a prompt next to each other."""
    ids, att = prompts(k.seed * 31 + i, k.prompts, k.most)
    ids, att = ids.repeat_interleave(k.gens, 0), att.repeat_interleave(k.gens, 0)
    seq, mask, done, gen = generate(net, ids, att, k.tokens, temperature, k.seed * 7 + i, **how)
    n = len(ids)
    return dict(
        ids=ids,
        att=att,
        seq=seq,
        mask=mask,
        done=done,
        gen=gen,
        full=torch.cat([ids, seq], 1),
        fatt=torch.cat([att, mask.long()], 1),
        group=torch.arange(n) // k.gens + 1000 * i,
        row=torch.arange(n) + 100000 * i,
    )
