import os, json, sys, copy, shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
PAD, EOS, V = 0, 1, 24


class LM(nn.Module):
    """GRU without biases: a zeroed pad embedding leaves the state at 0, so left padding is neutral."""

    def __init__(self, d=32, value=False, seed=0, head_bf16=False):
        super().__init__()
        g = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.emb = nn.Embedding(V, d, padding_idx=PAD)
        self.rnn = nn.GRU(d, d, batch_first=True, bias=False)
        self.head = nn.Linear(d, 1 if value else V, bias=value)
        self.head_bf16 = head_bf16
        nn.init.normal_(self.emb.weight, 0, 0.8)
        nn.init.normal_(self.head.weight, 0, 0.35 if not value else 0.2)
        with torch.no_grad():
            self.emb.weight[PAD] = 0
        torch.random.set_rng_state(g)

    def forward(self, ids, h=None, state=False):
        o, h = self.rnn(self.emb(ids), h)
        if self.head_bf16:
            x = F.linear(o.bfloat16(), self.head.weight.bfloat16()).float()
        else:
            x = self.head(o)
        return (x, h) if state else x


def engine(model, noise=0.0, seed=7):
    m = copy.deepcopy(model)
    m.head_bf16 = False
    if noise:
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in m.parameters():
                p += noise * p.std() * torch.randn(p.shape, generator=g)
            m.emb.weight[PAD] = 0
    return m.bfloat16()


@torch.no_grad()
def sample(m, prompts, T, temp, gen, eos_bias=0.0, eos_at=None):
    """prompts left-padded [B,P]; returns ids [B,T] padded with PAD behind EOS, mask, logp of the engine"""
    B = len(prompts)
    x, h = m(prompts, state=True)
    x = x[:, -1:]
    ids = torch.full((B, T), PAD)
    lp = torch.zeros(B, T)
    mask = torch.zeros(B, T, dtype=torch.bool)
    alive = torch.ones(B, dtype=torch.bool)
    for t in range(T):
        l = x[:, 0].float() / temp
        l[:, PAD] = -1e9 if False else l[:, PAD]
        lsm = l.log_softmax(-1)
        p = lsm.exp().clone()
        p[:, PAD] = 0
        tok = torch.multinomial(p, 1, generator=gen)
        ids[:, t] = torch.where(alive, tok[:, 0], PAD)
        lp[:, t] = torch.where(alive, lsm.gather(1, tok)[:, 0], 0.0)
        mask[:, t] = alive
        alive = alive & (tok[:, 0] != EOS)
        if not alive.any():
            break
        x, h = m(tok, h, state=True)
    return ids, mask, lp


def prompts_(n, P, gen):
    ids = torch.randint(2, V, (n, P), generator=gen)
    L = torch.randint(3, P + 1, (n,), generator=gen)
    for i in range(n):
        ids[i, : P - L[i]] = PAD
    return ids


def logps(m, prompts, ids, temp, ent=False):
    x = m(torch.cat([prompts, ids], 1))[:, prompts.shape[1] - 1 : -1] / temp
    lsm = x.log_softmax(-1)
    lp = lsm.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return (lp, -(lsm.exp() * lsm).sum(-1)) if ent else lp


def rewards2(ids, mask, T):
    L = mask.sum(1).float()
    m = mask.float()
    r1 = ((ids % 3 == 0).float() * m).sum(1) / L + 0.02 * (ids[:, 0] % 5).float()
    r2 = (ids == 7).float().mul(m).sum(1) - 0.03 * (L - T / 2).abs()
    return torch.stack([r1, r2], 1)


def mmean(x, m):
    return (x * m).sum() / m.sum()


class Dump:
    def __init__(self, out, program, case, healthy, bug="", describes="", declared=(), **base):
        self.dir = os.path.join(out, f"{program}-{case}")
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir + "/run")
        json.dump(
            dict(program=program, healthy=healthy, bug=bug, describes=describes, sealed=False, declared=list(declared)),
            open(self.dir + "/expected.json", "w"),
            indent=1,
        )
        self.base = dict(schema=2, run=f"{case}", **base)

    def __call__(self, step, mb, mbs, tensors, rank=0, world=1, **meta):
        o = dict(self.base, step=step, rank=rank, world_size=world, micro_batch=mb, micro_batches=mbs, **meta)
        t = {k: v.detach().contiguous().clone() for k, v in tensors.items() if v is not None}
        save_file(t, f"{self.dir}/run/step_{step:06d}_rank_{rank}_mb_{mb}.safetensors", {"plumbline": json.dumps(o)})


def main(name, H, B, run):
    """H: {case: settings}; B: {case: (healthy case, bug id, sentence, edits)}"""
    out = sys.argv[1]
    want = sys.argv[2:]
    for c, s in H.items():
        if not want or c in want or "h" in want:
            run(out, c, dict(s), "", dict(healthy=True))
    for c, (h, bug, text) in B.items():
        if not want or c in want or "b" in want:
            run(out, c, dict(H[h]), bug, dict(healthy=False, bug=bug, describes=text))
    print("made", name)
