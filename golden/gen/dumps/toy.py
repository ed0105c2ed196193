"""A policy with a value head small enough to be seen through: logits of a token depend on the last token and the position."""
import torch

VOCAB, WIDTH, PROMPT, PAD, EOS = 24, 16, 3, 0, 1
TOOL = [5, 9, 7]


class Toy(torch.nn.Module):
    def __init__(self, seed, spread=1.0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        r = lambda *s: torch.nn.Parameter(torch.randn(*s, generator=g) * spread)
        self.token, self.place, self.out = r(VOCAB, WIDTH), r(64, WIDTH), r(WIDTH, VOCAB)
        self.value_token, self.value = r(VOCAB, WIDTH), r(WIDTH)

    def logits(self, ids):
        """Row s of the answer predicts ids[s + 1]."""
        h = torch.tanh(self.token[ids] + 0.5 * self.place[: ids.shape[1]])
        z = 0.7 * (h @ self.out)
        pad = torch.zeros(VOCAB)
        pad[PAD], pad[EOS] = -1e4, 1.0
        return z + pad

    def values(self, ids):
        return torch.tanh(self.value_token[ids] + 0.5 * self.place[: ids.shape[1]]) @ self.value * 0.3

    def response(self, ids, T):
        """Logits that predict the last T ids, log-probs of those ids, and values where they are predicted from."""
        z = self.logits(ids)[:, -T - 1:-1]
        lp = z.gather(-1, ids[:, -T:].unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)
        return z, lp, self.values(ids)[:, -T - 1:-1]


def near(model, seed, distance):
    """A copy at a random distance: the reference, or the engine's idea of the policy."""
    other = Toy(0)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p, q in zip(other.parameters(), model.parameters()):
            p.copy_(q + distance * torch.randn(q.shape, generator=g))
    return other


@torch.no_grad()
def sample(model, prompts, groups, T, seed, holes=False):
    """`groups` rows per prompt, shuffled. Returns ids [B, PROMPT+T], attention, response mask, group of each row, prompt lengths."""
    g = torch.Generator().manual_seed(seed)
    B = prompts * groups
    ids = torch.full((B, PROMPT + T), PAD)
    att = torch.zeros(B, PROMPT + T, dtype=torch.long)
    mask = torch.zeros(B, T, dtype=torch.long)
    group = torch.arange(B) // groups
    plen = torch.randint(1, PROMPT + 1, (prompts,), generator=g)[group]
    text = torch.randint(2, VOCAB, (prompts, PROMPT), generator=g)
    for b in range(B):
        n = int(plen[b])
        ids[b, PROMPT - n:PROMPT] = text[group[b], :n]
        att[b, PROMPT - n:PROMPT] = 1
        t, call = 0, 2 + int(torch.randint(0, 4, (1,), generator=g))
        while t < T:
            if holes and b % 4 and t == call and T - t > len(TOOL) + 1:
                ids[b, PROMPT + t:PROMPT + t + len(TOOL)] = torch.tensor(TOOL)
                att[b, PROMPT + t:PROMPT + t + len(TOOL)] = 1
                t += len(TOOL)
                continue
            p = model.logits(ids[b:b + 1, :PROMPT + t])[0, -1].softmax(-1)
            ids[b, PROMPT + t] = torch.multinomial(p, 1, generator=g)
            att[b, PROMPT + t] = mask[b, t] = 1
            t += 1
            if ids[b, PROMPT + t - 1] == EOS:
                break
    order = torch.randperm(B, generator=g)
    return ids[order], att[order], mask[order], group[order], plen[order]


def score(ids, mask):
    """A reward with some spread inside every group."""
    r = ids[:, -mask.shape[1]:]
    return (((r % 3 == 0) * mask).sum(1) / mask.sum(1)).float() + 0.05 * mask.sum(1).float()
