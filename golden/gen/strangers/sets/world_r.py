"""world_r: small GRU language model, engine, rewards, dump writer and case driver of stranger r."""

import copy, json, os, shutil, sys
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file, load_file

torch.set_num_threads(1)
V, PAD, EOS = 24, 0, 1


class LM(nn.Module):
    def __init__(self, h=40, value=False, scale=1.6):
        super().__init__()
        self.emb = nn.Embedding(V, h)
        self.rnn = nn.GRU(h, h, batch_first=True)
        self.head = nn.Linear(h, V)
        self.v = nn.Linear(h, 1) if value else None
        with torch.no_grad():
            self.head.weight.mul_(scale * 4)
            self.head.bias[PAD] = -30.0
            self.head.bias[EOS] = -0.2

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(h), (self.v(h).squeeze(-1) if self.v is not None else None)


def bf16_copy(m):
    c = copy.deepcopy(m)
    with torch.no_grad():
        for p in c.parameters():
            p.copy_(p.to(torch.bfloat16).float())
    return c


def prompts(n, P, g):
    x = torch.randint(2, V, (n, P), generator=g)
    lens = torch.randint(P // 2, P + 1, (n,), generator=g)
    m = torch.arange(P)[None] >= (P - lens)[:, None]
    return x.masked_fill(~m, PAD), m


@torch.no_grad()
def sample(model, pid, T, g, temp=1.0, holes=None):
    """holes: [B,T] bool, tokens of tools forced in. returns ids, logp, mask up to and with EOS"""
    B = len(pid)
    ids = pid.clone()
    done = torch.zeros(B, dtype=torch.bool)
    out, lp, mk = [], [], []
    logits, h = None, None
    e, h = model.rnn(model.emb(ids))
    last = e[:, -1:]
    for t in range(T):
        l = F.log_softmax(model.head(last)[:, 0] / temp, -1)
        y = torch.multinomial(l.exp(), 1, generator=g)[:, 0]
        if holes is not None:
            z = torch.randint(2, V, (B,), generator=g)
            y = torch.where(holes[:, t], z, y)
        y = torch.where(done, torch.full_like(y, PAD), y)
        out.append(y)
        lp.append(l.gather(1, y[:, None])[:, 0])
        mk.append(~done)
        done = done | ((y == EOS) & ~done)
        e, h = model.rnn(model.emb(y[:, None]), h)
        last = e
    return torch.stack(out, 1), torch.stack(lp, 1), torch.stack(mk, 1)


def forward_lp(model, pid, rid, temp=1.0, shift=0):
    ids = torch.cat([pid, rid], 1)
    T = rid.shape[1]
    lg, v = model(ids)
    lg = lg[:, -T - 1 : -1] / temp
    v = v[:, -T - 1 : -1] if v is not None else None
    l = F.log_softmax(lg.float(), -1)
    return l.gather(2, rid[..., None])[..., 0], -(l.exp() * l).sum(-1), v


def score(rid, mask, pid, g):
    n = mask.sum(1).float()
    a = ((rid % 3 == 0) & mask).sum(1) / n + 0.3 * (pid[:, -1] % 5)
    return a, (1 - (n - 10).abs() / rid.shape[1]) * 0.5 + 0.1 * torch.randn(len(rid), generator=g)


def write(folder, name, meta, t):
    os.makedirs(folder, exist_ok=True)
    save_file({k: x.detach().contiguous().clone() for k, x in t.items() if x is not None}, f"{folder}/{name}.safetensors", {"plumbline": json.dumps(meta)})


def differs(a, b):
    r = []
    for f in sorted(
        [x for x in os.listdir(a) if x.endswith(".safetensors")] + (["critic/" + x for x in os.listdir(a + "/critic")] if os.path.isdir(a + "/critic") else [])
    ):
        if not os.path.exists(f"{b}/{f}"):
            r.append("file " + f)
            continue
        x, y = load_file(f"{a}/{f}"), load_file(f"{b}/{f}")
        m = x["response_mask"].bool()
        for k in x:
            if k not in y or x[k].shape != y[k].shape:
                r.append(k + " shape")
                continue
            p, q = x[k].double(), y[k].double()
            if p.shape == m.shape and k not in ("token_loss",):
                p, q = p * m, q * m
            d = (p - q).abs().max() / (q.abs().max() + 1e-12)
            if d > 1e-3:
                r.append(k)
    return sorted(set(r))


def main(name, cases, settings, train):
    """cases: {case: (setting, describes, legal)}; healthy cases are the settings' names"""
    out, want = sys.argv[1], sys.argv[2:]
    for c, (s, desc, legal) in cases.items():
        if want and c not in want:
            continue
        d = f"{out}/{name}-{c}"
        shutil.rmtree(d, ignore_errors=True)
        cfg = dict(settings[s])
        dec = cfg.pop("declared", [])
        healthy = c.startswith("h_")
        train(f"{d}/run", "" if healthy else c[2:], run=f"{name}-{c}", **cfg)
        e = dict(program=name, healthy=healthy, bug="" if healthy else c[2:], describes=desc, sealed=False, declared=dec)
        if not healthy:
            e["legal"] = legal
            r = differs(f"{d}/run", f"{out}/{name}-{s}/run")
            print(c, "differs in", r)
            if not r:
                print("   DROPPED")
                shutil.rmtree(d)
                continue
        json.dump(e, open(f"{d}/expected.json", "w"), indent=1)
