import copy, json, os, sys, shutil, torch, torch.nn as nn
from safetensors.torch import save_file

torch.set_num_threads(1)
V, EOS, PAD = 24, 1, 0


class LM(nn.Module):
    def __init__(self, value=False, d=32, h=48):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.l1 = nn.Linear(3 * d, h)
        self.head = nn.Linear(h, V)
        self.v = nn.Linear(h, 1) if value else None

    def hidden(self, ids):
        x = self.emb(ids)
        prev = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        n = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        ctx = (x.float().cumsum(1) / n.sqrt()).to(x.dtype)
        return torch.tanh(self.l1(torch.cat([x, prev, ctx], -1)))

    def forward(self, ids):
        return self.head(self.hidden(ids))

    def values(self, ids):
        return self.v(self.hidden(ids)).squeeze(-1)


def prompts(n, P, g):
    ids = torch.randint(2, V, (n, P), generator=g)
    ln = torch.randint(P // 2, P + 1, (n,), generator=g)
    att = torch.arange(P)[None] >= (P - ln)[:, None]
    return ids * att, att


@torch.no_grad()
def generate(model, pids, T, temp=1.0, dtype=torch.float32, hazard=0.0):
    eng = copy.deepcopy(model).to(dtype)
    ids = pids.clone()
    B = len(ids)
    done = torch.zeros(B, dtype=torch.bool)
    mask = torch.zeros(B, T, dtype=torch.bool)
    lps = torch.zeros(B, T)
    for t in range(T):
        lp = (eng(ids)[:, -1].float() / temp).log_softmax(-1)
        a = torch.multinomial(lp.exp(), 1).squeeze(1)
        mask[:, t] = ~done
        lps[:, t] = lp.gather(1, a[:, None]).squeeze(1) * ~done
        a = torch.where(done, PAD, a)
        ids = torch.cat([ids, a[:, None]], 1)
        done |= a == EOS
    return ids, mask, lps


def logps(model, ids, T, temp=1.0, dtype=None, ent=False):
    if dtype is not None:
        with torch.autocast("cpu", dtype=dtype):
            lg = model(ids)
    else:
        lg = model(ids)
    lg = lg[:, -T - 1 : -1].float() / temp
    l = lg.log_softmax(-1)
    out = l.gather(2, ids[:, -T:, None]).squeeze(2)
    return (out, -(l.exp() * l).sum(-1)) if ent else out


def score(ids, mask):
    T = mask.shape[1]
    r = ids[:, -T:]
    good = ((r % 5 == 2) & mask).sum(1).float()
    bad = ((r % 7 == 3) & mask).sum(1).float()
    n = mask.sum(1).float()
    return (good - 0.6 * bad) / n.sqrt() + 0.2 * ((ids[:, -T:] == EOS) & mask).any(1).float()


def mm(x, m):
    return (x * m).sum() / m.sum()


class Out:
    def __init__(self, out, program, case, meta):
        self.d = os.path.join(out, f"{program}-{case}")
        shutil.rmtree(self.d, ignore_errors=True)
        os.makedirs(self.d + "/run")
        self.meta = meta | {"run": f"{program}-run-1"}

    def __call__(self, step, scalars=None, rank=0, mb=0, world=1, mbs=1, meta=None, **t):
        t = {k: (v.detach().clone().contiguous()) for k, v in t.items() if v is not None}
        m = dict(schema=2, step=step, rank=rank, world_size=world, micro_batch=mb, micro_batches=mbs) | self.meta | (meta or {})
        if scalars:
            m["scalars"] = {k: float(v) for k, v in scalars.items()}
        save_file(t, f"{self.d}/run/step_{step:04d}_r{rank}_m{mb}.safetensors", {"plumbline": json.dumps(m)})

    def expected(self, program, bug="", describes="", declared=(), legal=""):
        json.dump(
            dict(program=program, healthy=not bug, bug=bug, describes=describes, sealed=False, declared=list(declared), legal=legal),
            open(self.d + "/expected.json", "w"),
        )


def main(program, healthy, bugs, run):
    out, want = sys.argv[1], sys.argv[2:]
    for c in want or list(healthy) + list(bugs):
        base, bug, des, legal = (c, "", "", "") if c in healthy else (bugs[c][0], c[2:], bugs[c][1], bugs[c][2] if len(bugs[c]) > 2 else "")
        torch.manual_seed(1234 + list(healthy).index(base))
        cfg = dict(healthy[base])
        o = run(out, c, cfg, bug)
        o.expected(program, bug, des, cfg.get("declared", []), legal)
