"""Shared helpers: a small causal language model, an engine that samples, a writer of dumps, a runner of cases."""

import json, os, sys, shutil, copy
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
V, EOS, PAD = 32, 1, 0


class LM(nn.Module):
    def __init__(s, d=24, value=False, drop=0.0):
        super().__init__()
        s.emb = nn.Embedding(V, d)
        s.pos = nn.Embedding(256, d)
        s.q = nn.Linear(d, d)
        s.k = nn.Linear(d, d)
        s.v = nn.Linear(d, d)
        s.o = nn.Linear(d, d)
        s.f1 = nn.Linear(d, 2 * d)
        s.f2 = nn.Linear(2 * d, d)
        s.head = nn.Linear(d, 1 if value else V)
        s.value = value
        nn.init.normal_(s.head.weight, std=0.25)

    def forward(s, ids, att):
        p = (att.long().cumsum(1) - 1).clamp(min=0)
        h = s.emb(ids) + s.pos(p)
        S = ids.shape[1]
        ok = torch.tril(torch.ones(S, S, dtype=torch.bool))[None] & att.bool()[:, None, :]
        ok = ok | torch.eye(S, dtype=torch.bool)[None]
        a = (s.q(h) @ s.k(h).transpose(1, 2)) / s.q.out_features**0.5
        a = a.masked_fill(~ok, -1e4).softmax(-1)
        h = h + s.o(a.to(h.dtype) @ s.v(h))
        h = h + s.f2(F.gelu(s.f1(h)))
        out = s.head(h)
        return out.squeeze(-1) if s.value else out


def prompts(n, P, gen):
    ids = torch.randint(3, V, (n, P), generator=gen)
    att = torch.ones(n, P, dtype=torch.long)
    for i in range(n):
        k = int(torch.randint(0, P - 2, (1,), generator=gen))
        ids[i, :k] = PAD
        att[i, :k] = 0
    return ids, att


@torch.no_grad()
def sample(model, pid, patt, T, temp, gen, bf16=True):
    """the engine: a bfloat16 copy; log-probs of the distribution that was sampled"""
    m = copy.deepcopy(model)
    if bf16:
        m = m.to(torch.bfloat16)
    ids, att = pid.clone(), patt.clone()
    B = pid.shape[0]
    alive = torch.ones(B, dtype=torch.bool)
    lp = torch.zeros(B, T)
    mask = torch.zeros(B, T, dtype=torch.long)
    for t in range(T):
        l = F.log_softmax(m(ids, att)[:, -1].float() / temp, -1)
        tok = torch.multinomial(l.exp(), 1, generator=gen)[:, 0]
        tok = torch.where(alive, tok, torch.full_like(tok, PAD))
        lp[:, t] = torch.where(alive, l.gather(1, tok[:, None])[:, 0], torch.zeros(B))
        mask[:, t] = alive.long()
        ids = torch.cat([ids, tok[:, None]], 1)
        att = torch.cat([att, alive.long()[:, None]], 1)
        alive = alive & (tok != EOS)
    return ids[:, pid.shape[1] :], mask, lp


def logps(model, ids, att, T, temp=1.0, bf16=False, shift=0):
    """log-probs [B,T] of the last T tokens, entropy"""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        lg = model(ids, att)
    lg = lg.float()[:, -T - 1 + shift : lg.shape[1] - 1 + shift] / temp
    l = F.log_softmax(lg, -1)
    return l.gather(2, ids[:, -T:, None])[..., 0], -(l.exp() * l).sum(-1)


def score(resp, mask, g):
    m = mask.float()
    L = m.sum(1)
    r1 = ((resp % 3 == 0).float() * m).sum(1) / L
    r2 = ((resp > 20).float() * m).sum(1) / L - 0.01 * L
    r = torch.stack([(r1 > 0.36).float() + 0.25 * (r1 > 0.5).float(), r2], 1)
    return r


def write(out, name, meta, tensors):
    os.makedirs(out, exist_ok=True)
    t = {k: v.detach().clone().contiguous() for k, v in tensors.items() if v is not None}
    save_file(t, f"{out}/{name}.safetensors", metadata={"plumbline": json.dumps(meta)})


def runner(NAME, H, BUGS, main):
    """H: {case: (cfg, declared)}; BUGS: {case: (base, describes, legal)}"""
    out = sys.argv[1]
    want = sys.argv[2:]
    for c in list(H) + list(BUGS):
        if want and c not in want and not (want == ["H"] and c in H) and not (want == ["B"] and c in BUGS):
            continue
        base = c if c in H else BUGS[c][0]
        cfg, decl = H[base]
        d = f"{out}/{NAME}-{c}"
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(d + "/run")
        torch.manual_seed(sum(map(ord, NAME + base)))
        bug = "" if c in H else c[2:]
        main(dict(cfg), bug, d + "/run", NAME + "-" + base)
        e = {"program": NAME, "healthy": c in H, "bug": bug, "describes": "" if c in H else BUGS[c][1], "sealed": False, "declared": decl}
        if bug:
            e["legal"] = BUGS[c][2]
            e["base"] = base
        json.dump(e, open(d + "/expected.json", "w"), indent=1)
