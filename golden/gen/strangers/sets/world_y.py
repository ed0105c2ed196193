"""A small language model, its sampler, rewards by rules on tokens, and the writer of dumps. Shared by y1 to y6."""
import ast, json, math, os, random, shutil, sys, textwrap, types
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file
torch.set_num_threads(1)
V, PAD, EOS, OBS = 32, 0, 1, 2
SRC = os.environ["WHEELS"]


class Body(nn.Module):
    def __init__(self, out, d=32, eos_bias=0.0):
        super().__init__()
        self.emb, self.rnn, self.head = nn.Embedding(V, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, out)
        if eos_bias:
            with torch.no_grad(): self.head.bias[EOS] += eos_bias

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


def policy(seed, eos_bias=0.5, spread=2.0):
    torch.manual_seed(seed)
    m = Body(V, eos_bias=eos_bias)
    with torch.no_grad(): m.head.weight.mul_(spread)
    return m


def critic(seed):
    torch.manual_seed(seed + 999)
    return Body(1)


def clone(m, noise=0.0, seed=0, bf16=False):
    import copy
    c = copy.deepcopy(m).requires_grad_(False)
    g = torch.Generator().manual_seed(seed)
    for p in c.parameters():
        if noise: p.add_(torch.randn(p.shape, generator=g) * noise)
        if bf16: p.copy_(p.bfloat16().float())
    return c


def logits_of(m, prompts, resp, temp=1.0, eps=0.0):
    P = prompts.shape[1]
    return m(torch.cat([prompts, resp], 1))[:, P - 1:-1] / (temp + eps)


def score(m, prompts, resp, temp=1.0, eps=0.0):
    """log-probs and entropies of the response tokens, and the logits, undivided"""
    raw = logits_of(m, prompts, resp)
    ls = (raw / (temp + eps)).log_softmax(-1)
    return ls.gather(-1, resp[..., None]).squeeze(-1), -(ls.exp() * ls).sum(-1), raw


def values_of(c, prompts, resp):
    """the value at the state before each response token"""
    P = prompts.shape[1]
    return c(torch.cat([prompts, resp], 1))[:, P - 1:-1, 0]


@torch.no_grad()
def sample(m, prompts, T, temp=1.0, gen=None, min_new=1):
    """responses [B, T] padded on the right, their mask (with EOS), the log-probs of the engine, what has ended"""
    B = prompts.shape[0]
    h, out, lps = None, [], []
    alive, mask = torch.ones(B, dtype=torch.bool), []
    x = prompts
    for t in range(T):
        y, h = m.rnn(m.emb(x), h)
        lg = m.head(y[:, -1]) / temp
        q = lg.clone()
        q[:, PAD] = -float("inf")
        if t < min_new - 1: q[:, EOS] = -float("inf")
        tok = torch.multinomial(q.softmax(-1), 1, generator=gen).squeeze(1)
        lp = lg.log_softmax(-1).gather(1, tok[:, None]).squeeze(1)
        tok = torch.where(alive, tok, torch.full_like(tok, PAD))
        out.append(tok); lps.append(torch.where(alive, lp, torch.zeros_like(lp))); mask.append(alive.clone())
        alive = alive & (tok != EOS)
        x = tok[:, None]
        if not alive.any(): break
    return torch.stack(out, 1), torch.stack(mask, 1), torch.stack(lps, 1), ~alive


def prompts_of(rng, n, P=5):
    return torch.tensor([[rng.randrange(3, V) for _ in range(P)] for _ in range(n)])


def rule_reward(kind, prompts, resp, mask, ended, T):
    n = mask.sum(1).float()
    hits = ((resp % 4 == (prompts[:, -1:] % 4)) & mask & (resp > 2)).sum(1).float()
    if kind == "share": return hits / n.clamp(min=1)
    if kind == "binary": return (hits / n.clamp(min=1) > 0.27).float()
    if kind == "acc_format": return (hits / n.clamp(min=1) > 0.27).float() + 0.2 * ended.float()
    if kind == "signed": return torch.where(hits / n.clamp(min=1) > 0.27, 1.0, -1.0)
    if kind == "format": return ended.float()
    if kind == "length": return -((n - T / 2).abs() / T)
    if kind == "overlong": return torch.minimum(torch.zeros_like(n), (0.6 * T - n) / (0.4 * T))      # DAPO's soft penalty
    if kind == "constant": return torch.ones_like(n)
    if kind == "rm": return (torch.sin(resp.float() * 1.7 + prompts[:, :1].float()) * mask).sum(1) / n.clamp(min=1).sqrt()
    if kind == "huge": return hits * 250 - 400.0
    raise KeyError(kind)


class Case:
    """One run: writes its files, one for each micro-batch of each rank, and expected.json."""
    def __init__(self, cases, name, program, describes, declared=(), meta=None, options=None, many=True):
        self.dir = os.path.join(cases, name)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(os.path.join(self.dir, "run"))
        self.name, self.meta, self.options, self.many, self.n = name, dict(meta or {}), dict(options or {}), many, 0
        json.dump(dict(program=program, healthy=True, bug=None, describes=describes, legal=True, sealed=False, declared=list(declared)),
                  open(os.path.join(self.dir, "expected.json"), "w"), indent=1)

    def dump(self, step, tensors, micro=0, micros=1, rank=0, world=1, scalars=None, options=None, **meta):
        t = {}
        for k, x in tensors.items():
            if x is None: continue
            x = torch.as_tensor(x).detach()
            if x.dtype == torch.bool: x = x.to(torch.uint8)
            t[k] = x.contiguous().clone()
        m = dict(schema=2, run=self.name, step=step, rank=rank, world_size=world, micro_batch=micro, micro_batches=micros, align="response") | self.meta | meta
        m["options"] = self.options | (options or {})
        if scalars: m["scalars"] = {k: (float(v) if math.isfinite(float(v)) else None) for k, v in ((k, v.detach() if torch.is_tensor(v) else v) for k, v in scalars.items())}
        path = os.path.join(self.dir, "run", f"step_{step:06d}_rank_{rank}_mb_{micro}.safetensors")
        assert not os.path.exists(path), path
        if self.meta.get("_npz"):
            m.pop("_npz")
            np.savez(path.replace(".safetensors", ".npz"), **{k: x.numpy() for k, x in t.items()})
            json.dump(m, open(path.replace(".safetensors", ".json"), "w"))
            self.n += 1
            return
        save_file(t, path, {"plumbline": json.dumps(m, allow_nan=False)})
        self.n += 1


def grads(loss, **of):
    """d loss / d each tensor, zeros where the loss does not read it"""
    names = [k for k in of if of[k] is not None]
    return dict(zip(names, torch.autograd.grad(loss, [of[k] for k in names], retain_graph=True, allow_unused=True, materialize_grads=True)))


# ---- the released sources
def source(path): return open(os.path.join(SRC, path)).read()


def functions(path, names, g, cls=None):
    """compiles the functions NAMES of the file at PATH (of its class CLS) into g and returns it"""
    text = source(path)
    tree = ast.parse(text)
    body = tree.body if cls is None else next(x for x in tree.body if isinstance(x, ast.ClassDef) and x.name == cls).body
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (names is None or node.name in names):
            if isinstance(node, ast.FunctionDef):
                node.decorator_list = [d for d in node.decorator_list if "profiling" not in ast.unparse(d) and "staticmethod" not in ast.unparse(d)]
            exec(compile(ast.fix_missing_locations(ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), node], [])), path, "exec"), g)
    return g


def lines(path, first, last, after=None, dedent=True):
    """the lines of a file from the one that begins with FIRST to the one that begins with LAST, behind the line AFTER"""
    ls = source(path).split("\n")
    i = next(n for n, l in enumerate(ls) if l.strip().startswith(after)) if after else 0
    a = next(n for n in range(i, len(ls)) if ls[n].strip().startswith(first))
    b = next(n for n in range(a, len(ls)) if ls[n].strip().startswith(last))
    return textwrap.dedent("\n".join(ls[a:b + 1]))


def shuffled(rng_np, n): return torch.as_tensor(rng_np.permutation(n))


def whole(path, g, skip=()):
    """executes a file of a release without its imports into g"""
    tree = ast.parse(source(path))
    body = [n for n in tree.body if not isinstance(n, (ast.Import, ast.ImportFrom)) and getattr(n, "name", None) not in skip
            and not (isinstance(n, ast.Assign) and any(getattr(t, "id", "").startswith(("logger", "__all__")) for t in n.targets))]
    exec(compile(ast.fix_missing_locations(ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *body], [])), path, "exec"), g)
    return g
