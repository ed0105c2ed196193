import json, os, sys, copy, random, shutil
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
V, EOS, PAD = 24, 2, 0


class LM(nn.Module):
    def __init__(s, d=32, value=False):
        super().__init__()
        s.emb = nn.Embedding(V, d)
        s.rnn = nn.GRU(d, d, batch_first=True)
        s.head = nn.Linear(d, V)
        s.v = nn.Linear(d, 1) if value else None
        with torch.no_grad():
            s.head.weight.mul_(3.0)
            s.head.bias.zero_()
            s.head.bias[PAD] = -8.0
            s.head.bias[EOS] = -0.6

    def forward(s, ids):
        h, _ = s.rnn(s.emb(ids))
        return s.head(h), h


def seed(n):
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)


def lps(model, q, r, temp=1.0, grad=True):
    ids = torch.cat([q, r], 1)
    with torch.set_grad_enabled(grad):
        lg, h = model(ids)
        lg = lg[:, q.shape[1] - 1 : -1].float() / temp
        ls = lg.log_softmax(-1)
        lp = ls.gather(-1, r[..., None])[..., 0]
        return lp, -(ls.exp() * ls).sum(-1), lg, h[:, q.shape[1] - 1 : -1].float()


def generate(model, q, T, temp=1.0, minlen=3):
    with torch.no_grad():
        ids, B = q, q.shape[0]
        done = torch.zeros(B, dtype=torch.bool)
        lp = []
        out = []
        h = None
        x = q
        for t in range(T):
            e = model.emb(x)
            o, h = model.rnn(e, h)
            lg = model.head(o[:, -1]).float() / temp
            s = lg.clone()
            s[:, PAD] = -1e9
            if t < minlen:
                s[:, EOS] = -1e9
            a = torch.multinomial(s.softmax(-1), 1)[:, 0]
            l = lg.log_softmax(-1).gather(1, a[:, None])[:, 0]
            a = torch.where(done, torch.full_like(a, PAD), a)
            out.append(a)
            lp.append(torch.where(done, torch.zeros_like(l), l))
            done = done | (a == EOS)
            x = a[:, None]
        return torch.stack(out, 1), torch.stack(lp, 1)


def rmask(r):
    e = (r == EOS).int()
    return (e.cumsum(1) - e).eq(0)


def score(q, r, m):
    good = ((r % 3) == (q[:, :1] % 3)) & m
    return good.float().sum(1) / m.float().sum(1) * 2 + 0.3 * ((r == EOS) & m).any(1).float() - 0.01 * m.float().sum(1)


def prompts(n, P, k):
    return torch.randint(3, V, (n, P)).repeat_interleave(k, 0)


def bf(model):
    return copy.deepcopy(model).bfloat16()


def put(folder, step, rank, mb, t, meta):
    os.makedirs(folder + "/run", exist_ok=True)
    t = {k: (x.detach().clone().contiguous() if torch.is_tensor(x) else torch.tensor(x)) for k, x in t.items() if x is not None}
    save_file(t, f"{folder}/run/step_{step:04d}_rank_{rank}_mb_{mb}.safetensors", metadata={"plumbline": json.dumps(meta)})


def main(name, healthy, bugs, go):
    out = sys.argv[1]
    want = sys.argv[2:]
    for c, (cfg, declared, say) in healthy.items():
        if want and c not in want:
            continue
        one(out, name, c, cfg, declared, "", say, True, go)
    for c, (base, say) in bugs.items():
        if want and c not in want:
            continue
        cfg, declared, _ = healthy[base]
        one(out, name, c, cfg, declared, c, say, False, go)


def one(out, name, c, cfg, declared, bug, say, ok, go):
    f = f"{out}/{name}-{c}"
    shutil.rmtree(f, ignore_errors=True)
    os.makedirs(f)
    seed(cfg.get("seed", 1))
    go(f, dict(cfg), bug)
    json.dump(dict(program=name, healthy=ok, bug=bug, describes=say, sealed=False, declared=declared), open(f + "/expected.json", "w"))
