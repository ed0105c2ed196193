"""helpers of stranger q: a small language model, a sampler, rewards, the writer of dumps"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
import json, math, sys, copy, random, shutil
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
V, EOS, PAD = 26, 1, 0


class LM(nn.Module):
    def __init__(self, d=10, h=24, k=5, pad=PAD, value=False):
        super().__init__()
        self.pad, self.k, self.lowp = pad, k, False
        self.emb = nn.Embedding(V, d)
        self.conv = nn.Conv1d(d, h, k)
        self.head = nn.Linear(h, V)
        if value:
            self.v = nn.Linear(h, 1)
        with torch.no_grad():
            self.head.weight.mul_(2.0)

    def hidden(self, ids, att):
        x = self.emb(ids) * att.unsqueeze(-1).to(self.emb.weight.dtype)
        x = F.pad(x.transpose(1, 2), (self.k - 1, 0))
        h = torch.tanh(self.conv(x).transpose(1, 2))
        if self.lowp:
            h = h.bfloat16().to(h.dtype)
        return h

    def forward(self, ids, att):
        y = self.head(self.hidden(ids, att))
        if self.lowp:
            y = y.bfloat16().float()
        return y


def engine_of(m, kind="bf16"):
    e = copy.deepcopy(m)
    if kind == "bf16":
        with torch.no_grad():
            for p in e.parameters():
                p.copy_(p.bfloat16().to(p.dtype))
        e.lowp = True
    return e


def prompts(n, P, gen, pad=PAD):
    ids = torch.full((n, P), pad)
    att = torch.zeros(n, P, dtype=torch.long)
    for i in range(n):
        l = int(torch.randint(2, P + 1, (1,), generator=gen))
        ids[i, P - l :] = torch.randint(2, V, (l,), generator=gen)
        att[i, P - l :] = 1
    return ids, att


@torch.no_grad()
def sample(m, pids, patt, T, temp, gen, eos_bias=0.0, eos=(EOS,), pad=PAD, holes=0.0, noise=0.0, raw=False):
    """→ ids, length mask (EOS inside), tool mask, logp of the engine"""
    B = pids.shape[0]
    ids, att = pids.clone(), patt.clone()
    alive = torch.ones(B, dtype=torch.bool)
    tool = torch.ones(B, T, dtype=torch.long)
    lps = torch.zeros(B, T)
    m_ = torch.zeros(B, T, dtype=torch.long)
    hole = torch.zeros(B, dtype=torch.long)
    for t in range(T):
        lo = m(ids[:, -m.k :], att[:, -m.k :])[:, -1].float()
        if noise:
            lo = lo + noise * torch.randn(lo.shape, generator=gen)
        lp = torch.log_softmax(lo / temp, -1)
        nxt = torch.multinomial(lp.exp(), 1, generator=gen).squeeze(1)
        if holes and 2 < t < T - 4:
            start = (hole == 0) & (torch.rand(B, generator=gen) < holes)
            hole = torch.where(start, torch.randint(2, 5, (B,), generator=gen), hole)
        inh = hole > 0
        hole = (hole - 1).clamp(min=0)
        if inh.any():
            nxt = torch.where(inh, torch.randint(2, V, (B,), generator=gen), nxt)
        l = lp if not raw else torch.log_softmax(lo, -1)
        lps[:, t] = torch.where(alive & ~inh, l.gather(1, nxt[:, None]).squeeze(1), torch.zeros(B))
        tool[:, t] = (~inh).long()
        m_[:, t] = alive.long()
        nxt = torch.where(alive, nxt, torch.full_like(nxt, pad))
        ids = torch.cat([ids, nxt[:, None]], 1)
        att = torch.cat([att, alive.long()[:, None]], 1)
        fin = torch.zeros(B, dtype=torch.bool)
        for e in eos:
            fin |= nxt == e
        alive = alive & ~(fin & ~inh)
    tool = torch.where(m_.bool(), tool, torch.ones_like(tool))
    return ids[:, pids.shape[1] :], m_, tool, lps


def lp_ent(m, ids, att, T, temp=1.0, eps=0.0):
    lo = m(ids, att)[:, -T - 1 : -1]
    lo = lo / (temp + eps) if temp != 1.0 or eps else lo
    L = torch.log_softmax(lo, -1)
    lp = L.gather(-1, ids[:, -T:, None]).squeeze(-1)
    return lp, -(L.exp() * L).sum(-1)


def rewards(ids, mask, gen, n=1, binary=False):
    L = mask.sum(1).clamp(min=1).float()
    f = [
        ((ids >= 13) * mask).sum(1) / L + 0.25 * torch.randn(len(ids), generator=gen),
        -L / ids.shape[1],
        (((ids == 5) | (ids == 7) | (ids == 20)) * mask).sum(1).clamp(max=1).float(),
    ]
    if binary:
        f = [f[2]] + f[:2]
    return torch.stack(f[:n], 1).float()


def dump(folder, name, meta, t):
    os.makedirs(folder, exist_ok=True)
    t = {k: v.detach().contiguous().clone() for k, v in t.items() if v is not None}
    save_file(t, f"{folder}/{name}.safetensors", {"plumbline": json.dumps(meta, allow_nan=False)})


def fin(x):
    return x if x is None or math.isfinite(x) else None


def expected(out, prog, case, declared=(), note=""):
    json.dump(
        {"program": prog, "healthy": True, "bug": "", "describes": note, "sealed": False, "declared": list(declared), "legal": ""},
        open(f"{out}/{prog}-{case}/expected.json", "w"),
        indent=1,
    )


def main(prog, cases, run, declared=lambda c: []):
    out = sys.argv[1]
    want = sys.argv[2:]
    for case, cfg in cases.items():
        if want and case not in want:
            continue
        d = f"{out}/{prog}-{case}"
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(d + "/run")
        torch.manual_seed(cfg["seed"])
        random.seed(cfg["seed"])
        run(d + "/run", case, cfg)
        expected(out, prog, case, declared(cfg), json.dumps({k: v for k, v in cfg.items()}, default=str)[:600])


def step_with_dump(opt, params, clip):
    """gradients before clipping, weights before, update"""
    before = {n: p.detach().clone() for n, p in params}
    g = {n: p.grad.clone() for n, p in params if p.grad is not None}
    norm = torch.nn.utils.clip_grad_norm_([p for _, p in params], clip) if clip else torch.sqrt(sum((x**2).sum() for x in g.values()))
    opt.step()
    opt.zero_grad()
    t = {f"grad/{n}": x for n, x in g.items()} | {f"weights/{n}": before[n] for n in g} | {f"update/{n}": p.detach() - before[n] for n, p in params if n in g}
    return t, float(norm)
