import json, os, copy, sys, shutil, math
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
V, EOS, PAD, P = 40, 1, 0, 6


class LM(nn.Module):
    def __init__(s, d=32, n=160, out=V):
        super().__init__()
        s.e = nn.Embedding(V, d)
        s.p = nn.Embedding(n, d)
        s.qkv = nn.Linear(d, 3 * d)
        s.o = nn.Linear(d, d)
        s.m = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        s.n1 = nn.LayerNorm(d)
        s.nf = nn.LayerNorm(d)
        s.h = nn.Linear(d, out)

    def forward(s, ids, att):
        pos = (att.long().cumsum(-1) - 1).clamp(min=0)
        x = s.e(ids) + s.p(pos)
        q, k, v = s.qkv(s.n1(x)).chunk(3, -1)
        S = ids.shape[1]
        m = torch.ones(S, S, dtype=torch.bool).tril()[None] & att.bool()[:, None, :]
        w = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~m, -1e4).softmax(-1)
        x = x + s.o(w @ v)
        x = x + s.m(x)
        return s.h(s.nf(x))


def make(seed, out=V, eosbias=0.6, scale=1.6):
    torch.manual_seed(seed)
    m = LM(out=out)
    if out == V:
        with torch.no_grad():
            m.h.weight *= scale
            m.h.bias[EOS] += eosbias
            m.h.bias[PAD] -= 30
    return m


def perturb(m, seed, s=0.03):
    g = torch.Generator().manual_seed(seed)
    r = copy.deepcopy(m)
    with torch.no_grad():
        for p in r.parameters():
            p += s * torch.randn(p.shape, generator=g)
    return r


@torch.no_grad()
def sample(model, n_prompts, G, T, seed, bf16=False, temp=1.0, tools=False):
    g = torch.Generator().manual_seed(seed)
    m = copy.deepcopy(model).to(torch.bfloat16) if bf16 else model
    B = n_prompts * G
    pl = torch.randint(2, P + 1, (n_prompts,), generator=g)
    pr = torch.randint(3, V, (n_prompts, P), generator=g)
    pm = torch.arange(P)[None] >= P - pl[:, None]
    pr = torch.where(pm, pr, torch.tensor(PAD)).repeat_interleave(G, 0)
    pm = pm.repeat_interleave(G, 0)
    pl = pl.repeat_interleave(G)
    ids, att = pr, pm
    done = torch.zeros(B, dtype=torch.bool)
    lps = []
    for t in range(T):
        lp = (m(ids, att)[:, -1].float() / temp).log_softmax(-1)
        a = torch.multinomial(lp.exp(), 1, generator=g)[:, 0]
        if tools and t in (5, 6, 7):
            a = torch.where(done, a, torch.randint(3, V, (B,), generator=g))
        a = torch.where(done, torch.tensor(PAD), a)
        l = lp.gather(1, a[:, None])[:, 0]
        if tools and t in (5, 6, 7):
            l = torch.zeros_like(l)
        lps.append(torch.where(done, torch.zeros_like(l), l))
        ids = torch.cat([ids, a[:, None]], 1)
        att = torch.cat([att, (~done)[:, None]], 1)
        done = done | (a == EOS)
    resp = ids[:, P:]
    cm = att[:, P:]
    tm = torch.ones_like(cm)
    if tools:
        tm[:, 5:8] = False
    return dict(ids=ids, att=att, resp=resp, cmask=cm, mask=cm & tm, logp_gen=torch.stack(lps, 1), group=torch.arange(B) // G, prompt_len=pl, ended=done)


def logps(model, ids, att, T, temp=1.0):
    lg = model(ids, att)[:, -T - 1 : -1].float()
    lp = (lg / temp).log_softmax(-1)
    ent = -(lp.exp() * lp).sum(-1)
    return lp.gather(2, ids[:, -T:, None])[..., 0], ent


def rewards(b, seed, F_=1):
    g = torch.Generator().manual_seed(seed + 77)
    m = b["cmask"].float()
    n = m.sum(1)
    r1 = ((b["resp"] % 3 == 0).float() * m).sum(1) / n * 3 + 0.3 * torch.randn(len(n), generator=g)
    if F_ == 1:
        return r1
    r2 = (b["ended"].float() - 0.5) * 0.8 + 0.02 * n
    return torch.stack([r1, r2], 1)


def write(out, name, step, rank, mb, tensors, meta):
    d = f"{out}/{name}/run"
    os.makedirs(d, exist_ok=True)
    t = {k: v.detach().contiguous().clone() for k, v in tensors.items() if v is not None}
    meta = dict(schema=2, run=name, step=step, rank=rank, micro_batch=mb, **meta)
    save_file(t, f"{d}/step_{step:04d}_rank_{rank}_mb_{mb}.safetensors", {"plumbline": json.dumps(meta)})


def finish(out, prog, case, healthy, bug="", describes="", declared=(), legal=""):
    e = dict(program=prog, healthy=healthy, bug=bug, describes=describes, sealed=False, declared=list(declared))
    if not healthy:
        e["legal"] = legal
    json.dump(e, open(f"{out}/{prog}-{case}/expected.json", "w"), indent=1)


def main(prog, healthy, bugs, run):
    """healthy: {case: cfg}; bugs: {case: (base, describes, legal)}; run(out, name, cfg, bug)"""
    out, want = sys.argv[1], sys.argv[2:]
    for c in list(healthy) + list(bugs):
        if want and c not in want:
            continue
        shutil.rmtree(f"{out}/{prog}-{c}", ignore_errors=True)
        if c in healthy:
            run(out, f"{prog}-{c}", dict(healthy[c]), "")
            finish(out, prog, c, True, describes=healthy[c].get("about", ""), declared=healthy[c].get("declared", []))
        else:
            base, desc, legal = bugs[c]
            run(out, f"{prog}-{c}", dict(healthy[base]), c[2:])
            finish(out, prog, c, False, c[2:], desc, healthy[base].get("declared", []), legal)
