"""Shared: a tiny causal LM with value head, sampling by an engine, a dumper, the case runner."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
import ast, copy, json, math, shutil, sys, __future__
import torch, torch.nn as nn, torch.nn.functional as F, safetensors.torch

torch.set_num_threads(1)
PAD, EOS, V = 0, 1, 20


class LM(nn.Module):
    def __init__(s, d=24):
        super().__init__()
        s.emb, s.l1, s.l2, s.head, s.vh = nn.Embedding(V, d), nn.Linear(3 * d, 2 * d), nn.Linear(2 * d, d), nn.Linear(d, V), nn.Linear(d, 1)

    def forward(s, ids, att):
        m = att.unsqueeze(-1).to(s.emb.weight.dtype)
        e = s.emb(ids) * m
        c = e.cumsum(1) / m.cumsum(1).clamp(min=1)
        p = F.pad(e, (0, 0, 1, 0))[:, :-1]
        h = torch.tanh(s.l2(torch.tanh(s.l1(torch.cat([e, p, c], -1)))))
        return s.head(h), s.vh(h).squeeze(-1)


def make(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    m = LM()
    with torch.no_grad():
        m.head.weight.mul_(2.5)
        m.head.bias[PAD] = -1e4
        m.head.bias[EOS] = 0.6
    return m.to(dtype)


def engine_of(model, dtype=torch.bfloat16):
    return copy.deepcopy(model).to(dtype)


def prompts(n, gen, P=7):
    ids, att = torch.zeros(n, P, dtype=torch.long), torch.zeros(n, P, dtype=torch.long)
    for i in range(n):
        L = int(torch.randint(2, P + 1, (1,), generator=gen))
        ids[i, P - L :] = torch.randint(2, V, (L,), generator=gen)
        att[i, P - L :] = 1
    return ids, att


@torch.no_grad()
def sample(engine, pid, patt, T, gen, temp=1.0, force_last=None):
    B, P = pid.shape
    ids = torch.cat([pid, torch.zeros(B, T, dtype=torch.long)], 1)
    att = torch.cat([patt, torch.zeros(B, T, dtype=torch.long)], 1)
    lp, done = torch.zeros(B, T), torch.zeros(B, dtype=torch.bool)
    for t in range(T):
        lg = engine(ids[:, : P + t], att[:, : P + t])[0][:, -1].float() / temp
        l = torch.log_softmax(lg, -1)
        k = torch.multinomial(l.exp(), 1, generator=gen).squeeze(1)
        k = torch.where(done, PAD, k)
        ids[:, P + t] = k
        att[:, P + t] = (~done).long()
        lp[:, t] = torch.where(done, 0.0, l.gather(1, k[:, None]).squeeze(1))
        done = done | (k == EOS)
    return ids, att, ids[:, P:], att[:, P:], lp  # mask holds the EOS


def logps(model, ids, att, T, temp=1.0, amp=False, ent=False):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        lg, v = model(ids, att)
    if amp:
        lg, v = lg.float(), v.float()
    lg = lg[:, -T - 1 : -1] / temp
    l = torch.log_softmax(lg, -1)
    out = l.gather(-1, ids[:, -T:, None]).squeeze(-1)
    return out, v[:, -T - 1 : -1], (-(l.exp() * l.clamp(min=-1e5)).sum(-1) if ent else None)


def reward(rid, m, kind=0):
    n = m.sum(1).clamp(min=1).float()
    a = ((rid % 2 == 0) * m).sum(1) / n
    b = ((rid > 12) * m).sum(1) / n
    c = ((rid == EOS) * m).sum(1).float()
    if kind == 1:
        return torch.stack([a, 0.3 * b + 0.5 * c], 1)
    if kind == 2:
        return (a > 0.45).float() + 0.25 * c * (b > 0.2)
    if kind == 3:
        return 4 * a + 2 * b - 0.02 * n
    return a + 0.5 * b + 0.2 * c


def write(folder, name, t, meta):
    os.makedirs(folder, exist_ok=True)
    t = {k: x.detach().cpu().contiguous().clone() for k, x in t.items() if x is not None}
    safetensors.torch.save_file(t, os.path.join(folder, name + ".safetensors"), metadata={"plumbline": json.dumps(meta, allow_nan=False)})


def cut(path, names, ns):
    """functions and classes of a released source, without decorators and imports"""
    tree = ast.parse(open(path).read())
    body = [n for n in tree.body if getattr(n, "name", None) in names]
    for n in body:
        n.decorator_list = []
    exec(compile(ast.Module(body, []), path, "exec", flags=__future__.annotations.compiler_flag), ns)
    miss = set(names) - {n.name for n in body}
    assert not miss, miss
    return ns


def main(NAME, healthy, bugs, run):
    """healthy: {case: (setting, declared)}; bugs: {case: (healthy case, id, sentence)}"""
    out, want = sys.argv[1], sys.argv[2:]
    for case in [*healthy, *bugs]:
        if want and case not in want and not (want == ["h"] and case in healthy) and not (want == ["b"] and case in bugs):
            continue
        base, bug, text = (case, "", "") if case in healthy else bugs[case]
        cfg, decl = healthy[base]
        d = os.path.join(out, f"{NAME}-{case}")
        shutil.rmtree(d, ignore_errors=True)
        run(copy.deepcopy(cfg), bug, os.path.join(d, "run"), f"{NAME}-{case}")
        if bug and not differs(os.path.join(out, f"{NAME}-{base}", "run"), os.path.join(d, "run")):
            print("SAME, dropped:", case)
            shutil.rmtree(d)
            continue
        json.dump(
            dict(program=NAME, healthy=not bug, bug=bug, describes=text, sealed=False, declared=decl), open(os.path.join(d, "expected.json"), "w"), indent=1
        )


def differs(a, b):
    fa, fb = sorted(os.listdir(a)), sorted(os.listdir(b))
    if fa != fb:
        return True
    for f in fa:
        x, y = safetensors.torch.load_file(f"{a}/{f}"), safetensors.torch.load_file(f"{b}/{f}")
        if x.keys() != y.keys():
            return True
        for k in x:
            if x[k].shape != y[k].shape:
                return True
            p, q = x[k].double(), y[k].double()
            s = p.abs().nan_to_num(0, 0, 0).max() if p.numel() else 0
            if ((p - q).abs().nan_to_num(9e9) > 2e-2 * s + 1e-7).any() or (p.dim() == 0 and abs(p - q) > 5e-3 * abs(p)):
                return True
    return False
