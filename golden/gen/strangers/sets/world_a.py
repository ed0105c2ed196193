# Shared world of the programs a*: a tiny causal transformer, an engine, ragged sampling, the writer of dumps, functions cut out of released sources.
import ast, json, math, os, shutil, sys, copy
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
SRC = os.environ["WHEELS"]  # the folder that ../wheels.py makes
PAD, EOS = 0, 1


class Block(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.h = h
        s.n1, s.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        s.qkv, s.o, s.up, s.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(s, x, bias):
        B, S, D = x.shape
        q, k, v = s.qkv(s.n1(x)).view(B, S, 3, s.h, D // s.h).permute(2, 0, 3, 1, 4)
        w = ((q @ k.transpose(-1, -2)) / math.sqrt(D // s.h) + bias.to(x.dtype)).softmax(-1)
        x = x + s.o((w @ v).transpose(1, 2).reshape(B, S, D))
        return x + s.down(F.gelu(s.up(s.n2(x))))


class LM(nn.Module):
    def __init__(s, vocab=24, d=32, layers=1, heads=2, out=None, eos_bias=0.0, maxlen=256):
        super().__init__()
        s.emb, s.pos = nn.Embedding(vocab, d), nn.Embedding(maxlen, d)
        s.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        s.norm, s.head = nn.LayerNorm(d), nn.Linear(d, out or vocab)
        nn.init.normal_(s.head.weight, 0, 0.25 if out is None else 0.3)
        nn.init.zeros_(s.head.bias)
        if out is None:
            with torch.no_grad():
                s.head.bias[EOS] += eos_bias
                s.head.bias[PAD] -= 30

    def forward(s, ids, attn):
        S = ids.shape[1]
        p = (attn.long().cumsum(-1) - 1).clamp(min=0)
        x = s.emb(ids) + s.pos(p)
        ok = torch.tril(torch.ones(S, S, dtype=torch.bool)) & attn.bool()[:, None, :] | torch.eye(S, dtype=torch.bool)
        bias = torch.zeros(ids.shape[0], 1, S, S).masked_fill(~ok[:, None], -1e4)
        for b in s.blocks:
            x = b(x, bias)
        return s.head(s.norm(x))


def engine_of(model, dtype=torch.bfloat16):
    return copy.deepcopy(model).to(dtype).eval()


def prompts(n, g, lo=3, hi=8, vocab=24):
    L = torch.randint(lo, hi + 1, (n,), generator=g)
    P = int(L.max())
    ids = torch.full((n, P), PAD)
    am = torch.zeros(n, P, dtype=torch.long)
    for i, l in enumerate(L.tolist()):
        ids[i, P - l :] = torch.randint(2, vocab, (l,), generator=g)
        am[i, P - l :] = 1
    return ids, am


@torch.no_grad()
def generate(engine, pids, pmask, T, g, temp=1.0, trim=True, obs=None):
    """response ids, mask (with EOS), log-probs of the engine"""
    B, P = pids.shape
    ids, am = pids.clone(), pmask.clone()
    done = torch.zeros(B, dtype=torch.bool)
    lps, msk = [], []
    for t in range(T):
        lp = (engine(ids, am)[:, -1].float() / temp).log_softmax(-1)
        nxt = torch.multinomial(lp.exp(), 1, generator=g)[:, 0]
        nxt = torch.where(done, torch.full_like(nxt, PAD), nxt)
        own = torch.ones_like(done)
        if obs is not None:  # observations of tools: given tokens, no action
            own = obs[:, t] < 0
            nxt = torch.where(own | done, nxt, obs[:, t])
        l = lp.gather(-1, nxt[:, None])[:, 0]
        alive = ~done
        ids = torch.cat([ids, nxt[:, None]], 1)
        am = torch.cat([am, alive.long()[:, None]], 1)
        lps.append(torch.where(alive & own, l, torch.zeros_like(l)))
        msk.append((alive & own).long())
        done |= (nxt == EOS) & own
        if trim and done.all():
            break
    n = len(lps)
    return ids[:, P:], torch.stack(msk, 1), torch.stack(lps, 1)


def logps(model, ids, am, T, temp=1.0, dtype=torch.float32, entropy=False):
    """log-probs (and entropies, logits) of the last T tokens"""
    logits = model(ids, am)[:, -T - 1 : -1]
    ls = (logits.to(dtype) / temp).log_softmax(-1)
    lp = ls.gather(-1, ids[:, -T:, None])[..., 0]
    if not entropy:
        return lp
    return lp, -(ls.exp() * ls).sum(-1), logits


def reward_fn(resp, mask, pids, g, noise=0.3):
    """share of even tokens, a bonus for repeating the first prompt token's parity, and noise"""
    m = mask.float()
    n = m.sum(-1).clamp(min=1)
    a = ((resp % 2 == 0).float() * m).sum(-1) / n
    b = ((resp == (pids[:, -1:])).float() * m).sum(-1).clamp(max=2) * 0.5
    return 2 * a + b + noise * torch.randn(resp.shape[0], generator=g) + 0.02 * n


class Run:
    def __init__(s, out, program, case, bug="", describes="", declared=()):
        s.dir = os.path.join(out, f"{program}-{case}")
        shutil.rmtree(s.dir, ignore_errors=True)
        os.makedirs(s.dir + "/run")
        s.name = f"{program}-{case}"
        json.dump(
            {"program": program, "healthy": not bug, "bug": bug, "describes": describes, "sealed": False, "declared": list(declared)},
            open(s.dir + "/expected.json", "w"),
        )

    def dump(s, step, tensors, rank=0, mb=0, **meta):
        t = {k: (x.detach() if torch.is_tensor(x) else torch.tensor(x)).cpu().contiguous().clone() for k, x in tensors.items() if x is not None}
        sc = meta.get("scalars")
        if sc:
            meta["scalars"] = {k: (float(v) if math.isfinite(float(v)) else None) for k, v in sc.items()}
        m = dict(schema=2, run=s.name, step=step, rank=rank, micro_batch=mb) | meta
        save_file(t, f"{s.dir}/run/step_{step:06d}_rank_{rank}_mb_{mb}.safetensors", {"plumbline": json.dumps(m, allow_nan=False)})


def cut(path, names, ns, patch=(), decorators=False):
    """executes the functions and classes with these names out of a source file in ns"""
    text = open(os.path.join(SRC, path)).read()
    for a, b in patch:
        assert text.count(a) >= 1, a
        text = text.replace(a, b)
    tree = ast.parse(text)

    def walk(body):
        for n in body:
            if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names:
                if not decorators:
                    n.decorator_list = [d for d in n.decorator_list if isinstance(d, ast.Call) and "no_grad" in ast.dump(d)]
                if isinstance(n, ast.FunctionDef):
                    for a in n.args.args:
                        a.annotation = None
                    n.returns = None
                exec(compile(ast.Module([n], []), path, "exec"), ns)
            elif isinstance(n, ast.ClassDef):
                walk(n.body)

    walk(tree.body)
    return ns


def main(program, healthy, bugs, run):
    """healthy: {name: settings}, bugs: {name: (base, id, sentence)}"""
    out, want = sys.argv[1], sys.argv[2:]
    for name, cfg in healthy.items():
        if not want or name in want:
            run(Run(out, program, name, declared=cfg.get("declared", ())), dict(cfg), "")
    for name, (base, text) in bugs.items():
        if not want or name in want:
            cfg = dict(healthy[base])
            bug = name[2:]
            run(Run(out, program, name, bug, text, cfg.get("declared", ())), cfg, bug)
