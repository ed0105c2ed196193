"""helpers of set j: a small language model, an engine, a writer"""

import copy, json, os, shutil, sys
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file, load_file

torch.set_num_threads(1)
PAD, EOS, V = 0, 1, 24


class LM(nn.Module):
    def __init__(s, d=32, seed=0, value=False):
        super().__init__()
        torch.manual_seed(seed)
        s.e = nn.Embedding(V, d)
        s.r = nn.GRU(d, d, batch_first=True)
        s.o = nn.Linear(d, V)
        s.v = nn.Linear(d, 1) if value else None

    def forward(s, ids):
        h, _ = s.r(s.e(ids))
        return s.o(h)

    def values(s, ids):
        h, _ = s.r(s.e(ids))
        return s.v(h).squeeze(-1)


def logps(m, ids, T, temp=1.0, ent=True, dtype=torch.float32):
    lg = m(ids)[:, -T - 1 : -1].to(dtype) / temp
    ls = lg.log_softmax(-1)
    lp = ls.gather(-1, ids[:, -T:, None]).squeeze(-1)
    return (lp, -(ls.exp() * ls).sum(-1)) if ent else lp


@torch.no_grad()
def generate(engine, prompts, T, temp=1.0, gen=None):
    ids, done, out = prompts, torch.zeros(len(prompts), dtype=torch.bool), []
    for t in range(T):
        lg = engine(ids)[:, -1].float() / temp
        lg[:, PAD] = -30
        if t < 2:
            lg[:, EOS] = -30
        p = lg.softmax(-1)
        a = torch.multinomial(p, 1, generator=gen).squeeze(1)
        a = torch.where(done, PAD, a)
        out.append(a)
        done = done | (a == EOS)
        ids = torch.cat([ids, a[:, None]], 1)
    r = torch.stack(out, 1)
    m = r != PAD
    return ids, r, m


def engine_of(m, bf16=True):
    e = copy.deepcopy(m)
    if bf16:
        for p in e.parameters():
            p.data = p.data.bfloat16().float()
    return e


def prompts(n, P, gen):
    x = torch.randint(2, V, (n, P), generator=gen)
    L = torch.randint(P // 2, P + 1, (n,), generator=gen)
    x[torch.arange(P)[None] < (P - L)[:, None]] = PAD
    return x, L


def reward(ids, r, m, gen=None):
    f1 = ((r % 3 == 0) & m).sum(1).float() / m.sum(1).clamp(min=1) * 2
    f2 = ((r == EOS) & m).any(1).float() * 0.5 + ((r > 15) & m).float().sum(1) * 0.1
    return torch.stack([f1, f2], 1)


def write(case, name, t, meta):
    os.makedirs(f"{case}/run", exist_ok=True)
    t = {k: x.detach().contiguous().clone() for k, x in t.items() if x is not None}
    save_file(t, f"{case}/run/{name}.safetensors", {"plumbline": json.dumps(dict(schema=2, **meta))})


def differ(a, b):
    worst, fa, fb = {}, sorted(os.listdir(a + "/run")), sorted(os.listdir(b + "/run"))
    if fa != fb:
        return {"files": 1.0}
    for f in fa:
        x, y = load_file(f"{a}/run/{f}"), load_file(f"{b}/run/{f}")
        for k in set(x) | set(y):
            if k not in x or k not in y or x[k].shape != y[k].shape:
                worst[k] = 1.0
                continue
            u, v = x[k].double(), y[k].double()
            d = ((u - v).abs().max() / (v.abs().mean() + 1e-9)).item() if u.numel() else 0
            worst[k] = max(worst.get(k, 0), d)
    return {k: round(d, 3) for k, d in worst.items() if d > 2e-3 or d != d}


def main(name, H, B, run):
    out, only = sys.argv[1], sys.argv[2:]
    for case, (base, bug, desc, legal, decl) in ({h: (h, "", "", "", d.get("_decl", [])) for h, d in H.items()} | B).items():
        if only and case not in only:
            continue
        d = f"{out}/{name}-{case}"
        shutil.rmtree(d, ignore_errors=True)
        if decl is None:
            decl = H[base].get("_decl", [])
        torch.manual_seed(7)
        run(d, dict(H[base]), bug)
        json.dump(
            dict(program=name, healthy=not bug, bug=bug, describes=desc, sealed=False, declared=decl, legal=legal), open(d + "/expected.json", "w"), indent=1
        )
        if bug:
            w = differ(d, f"{out}/{name}-{base}")
            print(case, "SAME" if not w else dict(list(sorted(w.items(), key=lambda x: -x[1]))[:6]), flush=True)
            if not w:
                shutil.rmtree(d)
