import ast, copy, json, math, os, shutil, sys
from collections import defaultdict
from typing import *
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
V, PAD, EOS = 40, 0, 1


class LM(nn.Module):
    """one causal attention layer, left-padded prompts, positions from the attention mask"""

    def __init__(self, d=24, value=False, maxlen=256):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(maxlen, d)
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.head = nn.Linear(d, V)
        self.vhead = nn.Linear(d, 1) if value else None

    def hidden(self, ids, att):
        p = (att.long().cumsum(1) - 1).clamp(min=0)
        x = self.tok(ids) + self.pos(p)
        S = ids.shape[1]
        ok = torch.tril(torch.ones(S, S, dtype=torch.bool)) & att.bool()[:, None, :]
        ok = ok | torch.eye(S, dtype=torch.bool)
        s = (self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])).masked_fill(~ok, -1e4)
        x = x + s.softmax(-1).to(x.dtype) @ self.v(x)
        return x + self.down(torch.tanh(self.up(x)))

    def forward(self, ids, att):
        return self.head(self.hidden(ids, att))

    def values(self, ids, att):
        return self.vhead(self.hidden(ids, att)).squeeze(-1)


def make(seed, eos=0.6, **k):
    torch.manual_seed(seed)
    m = LM(**k)
    with torch.no_grad():
        m.head.weight.mul_(2.5)
        m.head.bias[EOS] += eos
        m.head.bias[PAD] -= 30
    return m


def logps(model, ids, att, T, temp=1.0, entropy=False, f32=True):
    lg = model(ids, att)[:, -T - 1 : -1]
    lg = lg.float() if f32 else lg
    lg = lg / temp
    ls = lg.log_softmax(-1)
    lp = ls.gather(-1, ids[:, -T:, None]).squeeze(-1)
    return (lp, -(ls.exp() * ls).sum(-1)) if entropy else lp


def prompts(n, P, gen):
    ids, att = torch.zeros(n, P, dtype=torch.long), torch.zeros(n, P, dtype=torch.long)
    for i in range(n):
        l = int(torch.randint(2, P + 1, (1,), generator=gen))
        ids[i, -l:] = torch.randint(2, V, (l,), generator=gen)
        att[i, -l:] = 1
    return ids, att


@torch.no_grad()
def generate(model, ids, att, T, gen, temp=1.0, f32=True):
    """-> ids [B,P+T], att, response mask (EOS included), logp of the engine"""
    B, P = ids.shape
    alive, lps = torch.ones(B, dtype=torch.bool), []
    for _ in range(T):
        lg = model(ids, att)[:, -1].float() / temp
        ls = lg.log_softmax(-1)
        t = torch.multinomial(ls.exp(), 1, generator=gen).squeeze(1)
        t = torch.where(alive, t, torch.tensor(PAD))
        lps.append(torch.where(alive, ls.gather(1, t[:, None]).squeeze(1), torch.tensor(0.0)))
        ids, att = torch.cat([ids, t[:, None]], 1), torch.cat([att, alive[:, None].long()], 1)
        alive = alive & (t != EOS)
    return ids, att, att[:, P:].clone(), torch.stack(lps, 1)


def reward(resp, mask, prompt_last=None):
    m = mask.float()
    n = m.sum(1).clamp(min=1)
    r = ((resp % 3 == 0).float() * m).sum(1) / n + 0.5 * ((resp > 25).float() * m).sum(1) / n
    ended = ((resp == EOS) & mask.bool()).any(1).float()
    return r + 0.2 * ended, 0.01 * n - 0.3 * ((resp == 7).float() * m).sum(1)


def write(root, step, rank, mb, tensors, meta):
    os.makedirs(root, exist_ok=True)
    t = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items() if v is not None}
    sc = meta.get("scalars")
    if sc:
        meta = dict(meta, scalars={k: float(v) if math.isfinite(float(v)) else None for k, v in sc.items()})
    meta = dict(meta, step=step, rank=rank, micro_batch=mb)
    save_file(t, f"{root}/step_{step:04d}_r{rank}_mb{mb}.safetensors", {"plumbline": json.dumps(meta)})


def cut(text, names, ns):
    """functions and classes of the text of a released source, without its imports"""
    tree = ast.parse(text)
    got = []
    for n in tree.body:
        nm = getattr(n, "name", None) or (n.targets[0].id if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) else None)
        if nm in names:
            if hasattr(n, "decorator_list"):
                n.decorator_list = []
            got.append(n)
    exec(compile(ast.Module(got, []), "<release>", "exec"), ns)
    return ns


def main(name, run, healthy, bugs):
    """healthy: {case: settings}; bugs: {case: (healthy case, bug id, sentence[, other settings])}"""
    out, want = sys.argv[1], sys.argv[2:]
    for case in want or [*healthy, *bugs]:
        if case in healthy:
            cfg, bug, text = dict(healthy[case]), "", ""
        else:
            cfg, bug, text = dict(healthy[bugs[case][0]]), bugs[case][1], bugs[case][2]
        folder = f"{out}/{name}-{case}"
        shutil.rmtree(folder, ignore_errors=True)
        declared = cfg.pop("declared", [])
        run(f"{folder}/run", cfg, bug)
        json.dump(
            dict(program=name, healthy=not bug, bug=bug, describes=text, sealed=False, declared=declared),
            open(f"{folder}/expected.json", "w"),
            indent=1,
        )
