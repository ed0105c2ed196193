"""Shared world of h1..h6: a tiny GRU language model, sampling, dumping."""

import json, math, os, shutil, sys, copy
import torch, torch.nn as nn
from safetensors.torch import save_file

torch.set_num_threads(1)
V, EOS, PAD = 24, 1, 0


class LM(nn.Module):
    def __init__(s, seed, H=24, dtype=torch.float32, value=False):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        s.emb = nn.Embedding(V, H)
        s.rnn = nn.GRU(H, H, batch_first=True)
        s.head = nn.Linear(H, 1 if value else V)
        with torch.no_grad():
            s.head.weight.mul_(1.5 if not value else 0.5)
        s.to(dtype)

    def forward(s, ids, att):
        x = s.emb(ids) * att.unsqueeze(-1).to(s.emb.weight.dtype)
        h, _ = s.rnn(x)
        return s.head(h)


def lp_of(m, pids, patt, rids, ratt, temp=1.0, want=False, fp32=True):
    ids = torch.cat([pids, rids], 1)
    att = torch.cat([patt, ratt], 1)
    lg = m(ids, att)[:, pids.shape[1] - 1 : -1]
    raw = lg.detach()
    if fp32 and lg.dtype == torch.bfloat16:
        lg = lg.float()
    lg = lg / temp
    ls = torch.log_softmax(lg, -1)
    lp = ls.gather(-1, rids.unsqueeze(-1)).squeeze(-1)
    if not want:
        return lp
    return lp, -(ls.exp() * ls).sum(-1), raw


def val_of(m, pids, patt, rids, ratt):
    return m(torch.cat([pids, rids], 1), torch.cat([patt, ratt], 1))[:, pids.shape[1] - 1 : -1, 0]


@torch.no_grad()
def sample(m, pids, patt, T, gen, temp=1.0, top_p=1.0, top_k=0, eos_bias=0.0, pad=PAD, processed=True, greedy=False):
    B = pids.shape[0]
    ids, att = pids.clone(), patt.clone()
    fin = torch.zeros(B, dtype=torch.bool)
    out, lps, mk = [], [], []
    h = None
    x = m.emb(ids) * att.unsqueeze(-1).to(m.emb.weight.dtype)
    hs, h = m.rnn(x)
    last = hs[:, -1]
    for t in range(T):
        lg = m.head(last).float().clone()
        lg_s = lg / temp
        sl = lg_s.clone()
        sl[:, EOS] += eos_bias
        lgp = sl
        if top_k:
            kth = lgp.topk(top_k, -1).values[:, -1:]
            lgp = lgp.masked_fill(lgp < kth, -math.inf)
        if top_p < 1:
            so, ix = lgp.sort(-1, descending=True)
            c = so.softmax(-1).cumsum(-1)
            rm = (c - so.softmax(-1)) > top_p
            lgp = lgp.masked_fill(torch.zeros_like(rm).scatter(1, ix, rm), -math.inf)
        tok = lgp.argmax(-1) if greedy else torch.multinomial(lgp.softmax(-1), 1, generator=gen).squeeze(-1)
        l = (lgp if processed else lg).log_softmax(-1).gather(-1, tok[:, None]).squeeze(-1)
        tok = torch.where(fin, torch.full_like(tok, pad), tok)
        out.append(tok)
        lps.append(torch.where(fin, torch.zeros_like(l), l))
        mk.append(~fin)
        fin = fin | (tok == EOS)
        if fin.all():
            break
        e = m.emb(tok)
        _, h = m.rnn(e.unsqueeze(1), h)
        last = h[-1]
    r = torch.stack(out, 1)
    mask = torch.stack(mk, 1).long()
    return r, mask, torch.stack(lps, 1), fin


def prompts(n, G, gen, lo=2, hi=6, pad=PAD):
    L = torch.randint(lo, hi + 1, (n,), generator=gen)
    p = torch.full((n, hi), pad)
    a = torch.zeros(n, hi, dtype=torch.long)
    for i in range(n):
        k = int(L[i])
        p[i, hi - k :] = torch.randint(2, V, (k,), generator=gen)
        a[i, hi - k :] = 1
    return p.repeat_interleave(G, 0), a.repeat_interleave(G, 0)


def score(r, mask, gen, noise=0.1):
    even = ((r % 2 == 0) & mask.bool()).float().sum(-1) / mask.sum(-1).clamp(min=1)
    return even * 2 - 1 + noise * torch.randn(r.shape[0], generator=gen)


class Dump:
    def __init__(s, out, name, case, declared=(), describes="", **meta):
        s.dir = f"{out}/{name}-{case}"
        shutil.rmtree(s.dir, ignore_errors=True)
        os.makedirs(s.dir + "/run")
        s.meta = dict(schema=2, run=f"{name}-{case}", **meta)
        json.dump(
            dict(program=name, healthy=True, bug="", describes=describes, sealed=False, declared=list(declared), legal=""), open(s.dir + "/expected.json", "w")
        )

    def write(s, step, t, rank=0, mb=0, **meta):
        t = {k: v.detach().cpu().contiguous().clone() for k, v in t.items() if torch.is_tensor(v)}
        m = {**s.meta, "step": step, "rank": rank, "micro_batch": mb, **meta}
        if "scalars" in m:
            m["scalars"] = {k: (v if v is None or math.isfinite(v) else None) for k, v in m["scalars"].items()}
        save_file(t, f"{s.dir}/run/step_{step:06d}_rank_{rank}_mb_{mb}.safetensors", {"plumbline": json.dumps(m)})


def d_of(loss, x):
    (g,) = torch.autograd.grad(loss, x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if g is None else g


def run(cases, fn):
    out, want = sys.argv[1], sys.argv[2:]
    for c, cfg in cases.items():
        if not want or c in want:
            fn(out, c, dict(cfg))
