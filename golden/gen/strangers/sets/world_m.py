import json, os, sys, math, copy, shutil, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)


class LM(nn.Module):
    def __init__(s, V=28, d=32, value=False):
        super().__init__()
        s.emb, s.rnn, s.head = nn.Embedding(V, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, V)
        s.v = nn.Linear(d, 1) if value else None

    def hid(s, ids):
        return s.rnn(s.emb(ids))[0]

    def forward(s, ids):
        return s.head(s.hid(ids))


def bf16_copy(m):
    e = copy.deepcopy(m)
    with torch.no_grad():
        for p in e.parameters():
            p.copy_(p.to(torch.bfloat16).float())
    return e


EOS, PAD = 1, 0


@torch.no_grad()
def generate(m, prompts, T, temp=1.0, tool=None):
    """prompts [B,P] left padded; returns ids [B,T], mask [B,T] up to and with EOS, logp of the engine [B,T], ended [B], tool mask"""
    B = prompts.shape[0]
    out, h = m.rnn(m.emb(prompts))
    x = out[:, -1]
    ids = torch.full((B, T), PAD)
    lp = torch.zeros(B, T)
    mask = torch.zeros(B, T, dtype=torch.long)
    own = torch.ones(B, T, dtype=torch.long)
    live = torch.ones(B, dtype=torch.bool)
    left = torch.zeros(B, dtype=torch.long)
    for t in range(T):
        lg = m.head(x)
        lg[:, PAD] = -1e9 if tool is None else lg[:, PAD]
        lg[:, PAD] = lg[:, PAD].clamp(max=1e9)
        l = F.log_softmax(m.head(x) / temp, -1)
        pr = l.exp()
        pr[:, PAD] = 0
        a = torch.multinomial(pr, 1)[:, 0]
        forced = torch.zeros(B, dtype=torch.bool)
        if tool is not None:
            forced = left > 0
            a = torch.where(forced, torch.randint(20, 28, (B,)), a)
            left = (left - 1).clamp(min=0)
            left = torch.where(~forced & (a == tool), torch.full_like(left, 3), left)
        ids[:, t] = torch.where(live, a, torch.full_like(a, PAD))
        mask[:, t] = live.long()
        own[:, t] = (~forced).long()
        lp[:, t] = torch.where(live, l.gather(1, a[:, None])[:, 0], torch.zeros(B))
        live = live & (a != EOS)
        out, h = m.rnn(m.emb(ids[:, t : t + 1]), h)
        x = out[:, 0]
    return ids, mask, lp, ~live, own * mask


def score(m, prompts, ids, temp=1.0, hidden=False):
    h = m.hid(torch.cat([prompts, ids], 1))[:, prompts.shape[1] - 1 : -1]
    lg = m.head(h) / temp
    ls = F.log_softmax(lg, -1)
    lp = ls.gather(2, ids[..., None])[..., 0]
    ent = -(ls.exp() * ls).sum(-1)
    return (lp, ent, h) if hidden else (lp, ent)


def prompts_of(G, P, V=28, pad=True):
    p = torch.randint(2, V, (G, P))
    n = torch.randint(2, P + 1, (G,))
    if pad:
        p = torch.where(torch.arange(P)[None] < (P - n)[:, None], torch.zeros_like(p), p)
    return p


def rewards_of(ids, mask):
    m = mask.float()
    n = m.sum(1).clamp(min=1)
    a = (((ids % 3) == 0).float() * m).sum(1) / n
    b = (((ids > 12) & (ids < 18)).float() * m).sum(1).clamp(max=4) / 4
    c = -(n / ids.shape[1])
    return a * 2, b, c


def write(folder, name, t, meta):
    os.makedirs(folder, exist_ok=True)
    t = {k: v.detach().contiguous().clone() for k, v in t.items() if v is not None}
    for k, v in t.items():
        if v.dtype == torch.float64:
            t[k] = v
    save_file(t, f"{folder}/{name}.safetensors", {"plumbline": json.dumps(meta, allow_nan=False)})


def fin(x):
    return x if math.isfinite(x) else None


def main(name, cases, run):
    out, want = sys.argv[1], sys.argv[2:]
    for cname, c in cases.items():
        if want and cname not in want:
            continue
        d = f"{out}/{name}-{cname}"
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(d)
        cfg = dict(c)
        bug = cfg.pop("bug", "")
        desc = cfg.pop("describes", "")
        legal = cfg.pop("legal", "")
        decl = cfg.pop("declared", [])
        base = cfg.pop("of", None)
        if base:
            b = {k: v for k, v in cases[base].items() if k not in ("describes", "declared")}
            decl = decl or cases[base].get("declared", [])
            cfg = {**b, **cfg}
        torch.manual_seed(cfg.get("seed", 1))
        run(cfg, bug, d + "/run", base or cname)
        json.dump(
            dict(program=name, healthy=not bug, bug=bug, describes=desc, sealed=False, declared=decl, legal=legal), open(d + "/expected.json", "w"), indent=1
        )
