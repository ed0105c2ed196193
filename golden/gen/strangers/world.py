"""A small causal language model, an engine that samples from it in bfloat16, and an environment that scores.

Nothing here knows a loss. The trainers of this folder get rows from rollout() and log-probs from Policy.score().
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
PAD, EOS, CALL, RESULT = 0, 1, 2, 3


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x, allowed, past=None):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.silu(self.up(self.n2(x)))), (k, v)


class LM(nn.Module):
    """Logits at position s predict ids[s + 1]; values are those of the state at s."""

    def __init__(self, seed, vocab=40, d=32, places=320, layers=2, mean_length=16.0, spread=1.0):
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, d), nn.Embedding(places, d)
        self.blocks = nn.ModuleList(Block(d, 2) for _ in range(layers))
        self.norm, self.head, self.value = nn.RMSNorm(d), nn.Linear(d, vocab), nn.Linear(d, 1)
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    std = {"token": 1.0, "place": 0.3, "head": 1.7 * spread / math.sqrt(d), "value": 0.4 / math.sqrt(d)}.get(
                        name.split(".")[0], 1 / math.sqrt(p.shape[1])
                    )
                    p.copy_(torch.randn(p.shape, generator=g) * std)
            self.head.bias.zero_()
            self.value.bias.zero_()
            self.head.weight[EOS] *= 0.3
            self.head.weight[PAD] = 0
            self.head.bias[PAD] = -30.0
            self.head.bias[EOS] = math.log(vocab * math.exp(0.5 * (1.7 * spread) ** 2) / mean_length)

    def hidden(self, ids, attention, past=None):
        """attention covers the whole sequence, the cached part included."""
        n = ids.shape[1]
        place = (attention.long().cumsum(1) - 1).clamp(min=0)[:, -n:]
        s = attention.shape[1]
        causal = torch.ones(s, s, dtype=torch.bool).tril()[-n:]
        allowed = (causal & attention.bool()[:, None, :]) | torch.eye(s, dtype=torch.bool)[-n:]
        x = self.token(ids) + self.place(place)
        cache = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, allowed[:, None], None if past is None else past[i])
            cache.append(kv)
        return self.norm(x), cache


def token_logps(logits, ids):
    """As the frameworks do: float32 by logsumexp, 16 bits by log_softmax row by row, in the type of the logits."""
    if logits.dtype == torch.float32:
        return logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
    return torch.stack([F.log_softmax(z, -1).gather(-1, i.unsqueeze(-1)).squeeze(-1) for z, i in zip(logits, ids)])


class Policy:
    """A model in one of three number formats. f32; bf16: weights, logits and log-probs; mixed: bfloat16 forward, float32 log-probs."""

    def __init__(self, model, dtype="f32"):
        self.model, self.dtype = model.to(torch.bfloat16) if dtype == "bf16" else model, dtype

    def raw(self, ids, attention, T):
        """Logits [B, T, V] that predict the last T ids, and values [B, T] of the states that they are predicted from."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "mixed"):
            h, _ = self.model.hidden(ids, attention)
            z, v = self.model.head(h), self.model.value(h).squeeze(-1)
        if self.dtype == "mixed":
            z, v = z.float(), v.float()
        return z[:, -T - 1 : -1], v[:, -T - 1 : -1], v

    def score(self, ids, attention, T, temperature=1.0):
        """Log-probs, entropy, values, logits divided by the temperature."""
        z, v, _ = self.raw(ids, attention, T)
        if temperature != 1.0:
            z = z / temperature
        p = torch.softmax(z, -1)
        return token_logps(z, ids[:, -T:]), torch.logsumexp(z, -1) - (p * z).sum(-1), v, z

    def copy(self, seed=None, distance=0.0, dtype=None):
        other = LM.__new__(LM)
        nn.Module.__init__(other)
        import copy

        other = copy.deepcopy(self.model)
        if seed is not None:
            g = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for p in other.parameters():
                    if p.dim() == 2:
                        p.add_((torch.randn(p.shape, generator=g) * distance * p.float().std()).to(p.dtype))
        return Policy(other, dtype or self.dtype)


@dataclass
class Task:
    prompts: int = 4
    group: int = 4
    T: int = 20
    prompt: int = 6
    holes: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    reward: str = "float"  # float, binary, offset
    pad_is_eos: bool = False
    raw_logps: bool = False
    endless: bool = False  # EOS is a token like others: rows of a fixed length


@torch.no_grad()
def rollout(model, task, seed):
    """Rows of one generation by an engine in bfloat16 with a cache. The rows of a prompt stand together."""
    import copy

    engine = copy.deepcopy(model).to(torch.bfloat16)
    g = torch.Generator().manual_seed(seed)
    B, P, T = task.prompts * task.group, task.prompt, task.T
    vocab = model.head.out_features
    pad = EOS if task.pad_is_eos else PAD
    group = torch.arange(B) // task.group
    plen = torch.randint(2, P + 1, (task.prompts,), generator=g)[group]
    text = torch.randint(4, vocab, (task.prompts, P), generator=g)[group]
    attention = (torch.arange(P)[None] >= P - plen[:, None]).long()
    ids = torch.where(attention.bool(), text, pad)
    response = torch.full((B, T), pad)
    live, mask = torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
    gen = torch.zeros(B, T)
    done, todo = torch.zeros(B, dtype=torch.bool), torch.zeros(B, dtype=torch.long)
    h, cache = engine.hidden(ids, attention)
    seen = attention
    for t in range(T):
        z = engine.head(h[:, -1]).float() / task.temperature
        lp = torch.log_softmax(z, -1)
        draw = lp
        if task.top_p < 1:
            order = lp.argsort(-1, descending=True)
            kept = lp.gather(-1, order).exp().cumsum(-1) - lp.gather(-1, order).exp() < task.top_p
            draw = torch.full_like(lp, -math.inf).scatter(-1, order, lp.gather(-1, order).where(kept, torch.tensor(-math.inf)))
            draw = draw - draw.logsumexp(-1, keepdim=True)
        token = torch.multinomial(draw.exp(), 1, generator=g).squeeze(1)
        tool = (todo > 0) & ~done
        token = torch.where(tool, RESULT + 1 + (todo + group) % 5, token)
        alive = ~done
        response[alive, t] = token[alive]
        live[alive, t] = 1
        mask[:, t] = (alive & ~tool).long()
        shown = torch.log_softmax(z * task.temperature, -1) if task.raw_logps else draw
        gen[:, t] = torch.where(alive & ~tool, shown.gather(-1, token[:, None]).squeeze(1), torch.tensor(0.0))
        todo = torch.where(tool, todo - 1, todo)
        if task.holes:
            call = alive & ~tool & (token % 7 == 2) & (T - t > 6)
            todo = torch.where(call, 2 + group % 3, todo)
        done = done | (alive & ~tool & (token == EOS) & (not task.endless))
        if done.all():
            break
        seen = torch.cat([seen, alive.long()[:, None]], 1)
        h, cache = engine.hidden(response[:, t : t + 1], seen, cache)
    truncated = ~done
    length = live.sum(1)
    hits = ((response % 3 == 0) * mask).sum(1) / mask.sum(1).clamp(min=1)
    score = {"float": hits + 0.02 * length.float() / T * 10, "binary": (hits > 0.33).float(), "offset": hits + 5.0}[task.reward].float()
    second = 0.3 * ((response % 5 == 1) * mask).sum(1).float()
    return dict(
        prompt_ids=ids,
        prompt_mask=attention,
        response=response,
        live=live,
        mask=mask,
        gen=gen,
        group=group,
        plen=plen,
        truncated=truncated,
        score=score,
        second=second,
        length=length,
    )
