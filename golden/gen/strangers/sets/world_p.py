"""Shared by p2..p4: a tiny language model, an engine that samples, a reward, the writing of dumps."""

import os, sys, json, copy, shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save

torch.set_num_threads(1)
V, PAD, EOS = 26, 0, 1


class LM(nn.Module):
    def __init__(self, d=32, value=False, scale=1.2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(256, d)
        self.rnn, self.ff = nn.GRU(d, d, batch_first=True), nn.Linear(d, d)
        self.head = nn.Linear(d, V)
        with torch.no_grad():
            self.head.weight.mul_(scale * 3)
        if value:
            self.v = nn.Linear(d, 1)

    def forward(self, ids, am):
        pos = (am.long().cumsum(1) - 1).clamp(min=0)
        x = (self.emb(ids) + self.pos(pos)) * am[..., None].to(self.emb.weight.dtype)
        h, _ = self.rnn(x)
        h = h + torch.tanh(self.ff(h))
        return self.head(h), (self.v(h)[..., 0] if hasattr(self, "v") else None)


def prompts(gen, n, P):
    ids, am = torch.zeros(n, P, dtype=torch.long), torch.zeros(n, P, dtype=torch.long)
    for i in range(n):
        k = int(torch.randint(3, P + 1, (), generator=gen))
        ids[i, P - k :] = torch.randint(2, V, (k,), generator=gen)
        am[i, P - k :] = 1
    return ids, am


@torch.no_grad()
def sample(model, pid, pam, T, temp, gen, eos_bias=0.6):
    ids, am, B = pid, pam, len(pid)
    done, lps, mask = torch.zeros(B, dtype=torch.bool), [], []
    for t in range(T):
        lg = model(ids, am)[0][:, -1].float() / temp
        lp = F.log_softmax(lg, -1)
        tok = torch.multinomial(lp.exp(), 1, generator=gen)[:, 0]
        l = lp.gather(1, tok[:, None])[:, 0]
        tok = torch.where(done, PAD, tok)
        mask.append(~done)
        lps.append(torch.where(done, 0.0, l))
        ids = torch.cat([ids, tok[:, None]], 1)
        am = torch.cat([am, (~done).long()[:, None]], 1)
        done = done | (tok == EOS)
    return ids, am, torch.stack(mask, 1), torch.stack(lps, 1)


def score_tokens(model, ids, am, T, temp=1.0, want_v=False):
    lg, v = model(ids, am)
    lg = lg[:, -T - 1 : -1].float() / temp
    lp = F.log_softmax(lg, -1)
    out = lp.gather(2, ids[:, -T:, None])[..., 0]
    ent = -(lp.exp() * lp).sum(-1)
    return out, ent, (v[:, -T - 1 : -1].float() if v is not None else None)


def reward(ids, mask, T, gen=None):
    r = ids[:, -T:]
    m = mask.float()
    n = m.sum(1)
    s = ((r % 3 == 0) * m).sum(1) / n + 0.5 * ((r == EOS) & mask).any(1).float() - 0.4 * ((r == 7) * m).sum(1) / n
    return s


def folder(out, name, case, info):
    d = os.path.join(out, f"{name}-{case}")
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(os.path.join(d, "run"))
    json.dump(
        dict(program=name, healthy=case.startswith("h_"), bug="" if case.startswith("h_") else case, sealed=False, declared=[]) | info,
        open(os.path.join(d, "expected.json"), "w"),
        indent=1,
    )
    return os.path.join(d, "run")


def dump(d, t, step, rank, world, mb, mbs, **meta):
    m = dict(schema=2, run=os.path.basename(os.path.dirname(d)), step=step, rank=rank, world_size=world, micro_batch=mb, micro_batches=mbs) | meta
    t = {k: x.detach().contiguous().clone() for k, x in t.items() if x is not None}
    open(f"{d}/step_{step:04d}_rank_{rank}_mb_{mb}.safetensors", "wb").write(save(t, {"plumbline": json.dumps(m)}))


def main(name, cases, run):
    out = sys.argv[1]
    for c in sys.argv[2:] or cases:
        h, bug, desc, legal = cases[c]
        d = folder(out, name, c, dict(describes=desc, legal=legal))
        run(h, bug, d)
