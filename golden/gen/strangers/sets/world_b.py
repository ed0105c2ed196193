"""Shared by b1..b6: a tiny causal language model, an engine that samples, rewards, and a writer of dumps."""

import json, math, os, shutil, sys, copy
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file, load_file

torch.set_num_threads(1)
V, PAD, EOS = 40, 0, 1


class LM(nn.Module):
    def __init__(self, d=32, layers=1, value=False):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(256, d)
        self.blocks = nn.ModuleList(
            [
                nn.ModuleDict(
                    dict(
                        qkv=nn.Linear(d, 3 * d),
                        o=nn.Linear(d, d),
                        n1=nn.LayerNorm(d),
                        n2=nn.LayerNorm(d),
                        up=nn.Linear(d, 2 * d),
                        down=nn.Linear(2 * d, d),
                    )
                )
                for _ in range(layers)
            ]
        )
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V, bias=False)
        self.v = nn.Linear(d, 1) if value else None

    def hidden(self, ids, att):
        pos = (att.long().cumsum(1) - 1).clamp(min=0)
        x = self.emb(ids) + self.pos(pos)
        S = ids.shape[1]
        ok = torch.ones(S, S, dtype=torch.bool).tril()[None] & att.bool()[:, None, :]
        ok = ok | torch.eye(S, dtype=torch.bool)[None]
        for b in self.blocks:
            q, k, v = b["qkv"](b["n1"](x)).chunk(3, -1)
            a = (q @ k.transpose(1, 2)).float() / math.sqrt(q.shape[-1])
            a = a.masked_fill(~ok, -1e9).softmax(-1).to(x.dtype)
            x = x + b["o"](a @ v)
            x = x + b["down"](F.gelu(b["up"](b["n2"](x))))
        return self.norm(x)

    def forward(self, ids, att):
        h = self.hidden(ids, att)
        return self.head(h) if self.v is None else (self.head(h), self.v(h).squeeze(-1))


def make(seed, value=False, d=32, layers=1):
    torch.manual_seed(seed)
    m = LM(d, layers, value)
    with torch.no_grad():
        m.head.weight.mul_(1.5)
        m.head.weight[PAD] = 0
    return m


def logits_of(m, ids, att):
    o = m(ids, att)
    return o if torch.is_tensor(o) else o[0]


def prompts(n, P, g):
    """n left-padded prompts of width P"""
    ids = torch.randint(3, V, (n, P), generator=g)
    ln = torch.randint(2, P + 1, (n,), generator=g)
    att = torch.arange(P)[None] >= (P - ln)[:, None]
    return ids.masked_fill(~att, PAD), att, ln


@torch.no_grad()
def sample(m, ids, att, T, temp, g, eos_bias=0.0, greedy=False):
    """returns response ids [B, T] (PAD behind EOS), mask with EOS, log-probs of the engine"""
    B = ids.shape[0]
    done = torch.zeros(B, dtype=torch.bool)
    out, mask, lps = [], [], []
    for t in range(T):
        lg = logits_of(m, ids, att)[:, -1].float() / temp
        lg[:, PAD] = -1e9
        lg[:, EOS] += 0
        lp = lg.log_softmax(-1)
        tok = lp.argmax(-1) if greedy else torch.multinomial(lp.exp(), 1, generator=g).squeeze(1)
        l = lp.gather(1, tok[:, None]).squeeze(1)
        tok = tok.masked_fill(done, PAD)
        out.append(tok)
        mask.append(~done)
        lps.append(l.masked_fill(done, 0.0))
        ids = torch.cat([ids, tok[:, None]], 1)
        att = torch.cat([att, (~done)[:, None]], 1)
        done = done | (tok == EOS)
    return torch.stack(out, 1), torch.stack(mask, 1), torch.stack(lps, 1)


def logps(m, full, att, P, temp=1.0, dtype=None, entropy=False, mask_pad=True):
    """log-probs of the columns from P on; PAD is never sampled"""
    lg = logits_of(m, full, att)[:, P - 1 : -1]
    if dtype is None:
        lg = lg.float()
    if mask_pad:
        lg = lg + torch.zeros(V).index_fill(0, torch.tensor([PAD]), -1e9).to(lg.dtype)
    lg = lg / temp
    l = lg.log_softmax(-1)
    lp = l.gather(-1, full[:, P:, None]).squeeze(-1).masked_fill(full[:, P:] == PAD, 0.0)
    if entropy:
        return lp, -(l.exp() * l).sum(-1), lg
    return lp


def reward(resp, mask, kind="frac", noise=None):
    m = mask.float()
    n = m.sum(1).clamp(min=1)
    frac = (((resp % 3) == 0).float() * m).sum(1) / n
    ended = ((resp == EOS) & mask).any(1).float()
    if kind == "frac":
        return 2 * frac + 0.3 * ended - 0.2
    if kind == "binary":
        return (frac > 0.34).float()
    if kind == "pm":
        return torch.where(frac > 0.34, 1.0, -1.0)
    if kind == "sum":
        return (((resp % 3) == 0).float() * m).sum(1) * 0.4 - 1


def write(folder, name, tensors, **meta):
    os.makedirs(folder, exist_ok=True)
    t = {k: v.detach().contiguous().clone() for k, v in tensors.items() if v is not None}
    meta = {"schema": 2, **meta}
    save_file(t, os.path.join(folder, name + ".safetensors"), {"plumbline": json.dumps(meta)})


def main(name, healthy, bugs, run):
    """healthy: {case: dict(...)}; bugs: {id: (healthy case, sentence)}"""
    out, only = sys.argv[1], sys.argv[2:]
    for case in [*healthy, *("b_" + b for b in bugs)]:
        if only and case not in only:
            continue
        bug = "" if case in healthy else case[2:]
        cfg = healthy[case] if not bug else healthy[bugs[bug][0]]
        folder = os.path.join(out, f"{name}-{case}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder + "/run")
        torch.manual_seed(cfg.get("seed", 0))
        np.random.seed(cfg.get("seed", 0))
        run(folder + "/run", copy.deepcopy(cfg), bug)
        json.dump(
            dict(
                program=name,
                healthy=not bug,
                bug=bug,
                describes=bugs[bug][1] if bug else cfg.get("says", ""),
                sealed=False,
                declared=cfg.get("declared", []),
            ),
            open(folder + "/expected.json", "w"),
            indent=1,
        )
        if bug:
            print(case, differs(os.path.join(out, f"{name}-{bugs[bug][0]}", "run"), folder + "/run"), flush=True)
        else:
            print(
                case,
                len(os.listdir(folder + "/run")),
                sum(os.path.getsize(os.path.join(folder, "run", f)) for f in os.listdir(folder + "/run")) // 1024,
                "kB",
                flush=True,
            )


def scalars(f):
    import struct

    with open(f, "rb") as h:
        return json.loads(json.loads(h.read(struct.unpack("<Q", h.read(8))[0]))["__metadata__"]["plumbline"]).get("scalars")


def differs(a, b):
    if not os.path.isdir(a):
        return "?"
    fa, fb = sorted(os.listdir(a)), sorted(os.listdir(b))
    s = "" if fa == fb else "OTHER FILES "
    for f in fa[:]:
        if f not in fb:
            continue
        x, y = load_file(os.path.join(a, f)), load_file(os.path.join(b, f))
        d = []
        for k in x:
            if k not in y:
                d.append(k + ":gone")
                continue
            if x[k].shape != y[k].shape:
                d.append(k + ":shape")
                continue
            u, v = x[k].double(), y[k].double()
            e = float((u - v).abs().max() / (u.abs().max() + 1e-12)) if u.numel() else 0
            if not e < 1e-4:
                d.append(f"{k}:{e:.2g}")
        u, v = scalars(os.path.join(a, f)), scalars(os.path.join(b, f))
        d += [f"log:{k}" for k in u if k in v and abs(u[k] - v[k]) > 1e-4 * abs(u[k]) + 1e-7]
        if d:
            return s + "first in " + f[:24] + " " + " ".join(d[:9])
    return s + "SAME"
