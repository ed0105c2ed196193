"""Common ground of w1..w6: a tiny language model, an engine that samples from a copy, rules that reward, a writer of dumps, and readers of
the released frameworks' sources."""
import ast, copy, json, math, os, random, sys, textwrap, types, shutil
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save
torch.set_num_threads(1)
SRC = os.environ["WHEELS"]
EOS, PAD = 1, 0


class LM(nn.Module):
    def __init__(self, V=32, E=16, H=32, kind="gru", value=False, eos_bias=0.3, sharp=2.0):
        super().__init__()
        self.kind, self.V = kind, V
        self.emb = nn.Embedding(V, E if kind == "gru" else H)
        if kind == "gru":
            self.core = nn.GRU(E, H, batch_first=True)
        else:
            self.pos = nn.Embedding(128, H)
            self.n1, self.n2 = nn.LayerNorm(H), nn.LayerNorm(H)
            self.qkv, self.o = nn.Linear(H, 3 * H), nn.Linear(H, H)
            self.mlp = nn.Sequential(nn.Linear(H, 2 * H), nn.GELU(), nn.Linear(2 * H, H))
        self.head = nn.Linear(H, V)
        if value: self.vhead = nn.Linear(H, 1)
        with torch.no_grad():
            self.head.weight.mul_(sharp); self.head.bias[EOS] += eos_bias; self.head.bias[PAD] -= 20.0

    def forward(self, ids):
        x = self.emb(ids)
        if self.kind == "gru":
            h = self.core(x)[0]
        else:
            S = ids.shape[1]
            x = x + self.pos(torch.arange(S))
            q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
            a = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[-1])
            a = a.masked_fill(torch.ones(S, S, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
            x = x + self.o(a @ v)
            h = x + self.mlp(self.n2(x))
        return self.head(h), (self.vhead(h).squeeze(-1) if hasattr(self, "vhead") else None)


def engine_of(model, how="same"):
    e = copy.deepcopy(model).requires_grad_(False)
    return e.to(torch.bfloat16) if how == "bf16" else e


@torch.no_grad()
def generate(engine, prompts, T, g, temp=1.0, noise=0.0, force=None):
    """Responses [B, T], right padded; mask up to EOS with it; log-probs of the engine (processed: divided by the temperature)."""
    B = prompts.shape[0]
    ids, lps, alive = prompts, [], torch.ones(B, dtype=torch.bool)
    toks, msk = [], []
    for t in range(T):
        lg = engine(ids)[0][:, -1].float() / temp
        if noise: lg = lg + noise * torch.randn(lg.shape, generator=g)
        if force is not None: lg = force(t, lg)
        lp = lg.log_softmax(-1)
        tok = torch.multinomial(lp.exp(), 1, generator=g).squeeze(1)
        lps.append(torch.where(alive, lp.gather(1, tok[:, None]).squeeze(1), torch.zeros(B)))
        tok = torch.where(alive, tok, torch.full_like(tok, PAD))
        toks.append(tok); msk.append(alive.clone())
        alive = alive & (tok != EOS)
        ids = torch.cat([ids, tok[:, None]], 1)
    return torch.stack(toks, 1), torch.stack(msk, 1), torch.stack(lps, 1)


def score(model, prompts, resp, temp=1.0, temp_eps=0.0):
    """log-probs, entropies, values, logits of the responses' tokens."""
    P = prompts.shape[1]
    lg, v = model(torch.cat([prompts, resp], 1))
    lg = lg[:, P - 1:-1].float()
    ls = (lg / (temp + temp_eps)).log_softmax(-1)
    ent = -(ls.exp() * ls).sum(-1)
    return ls.gather(-1, resp[..., None]).squeeze(-1), ent, (None if v is None else v[:, P - 1:-1].float()), lg


def reward(kind, resp, mask, g=None):
    m = mask.float()
    n = m.sum(1).clamp(min=1)
    if kind == "share": return ((resp % 3 == 0).float() * m).sum(1) / n
    if kind == "binary": return ((((resp % 5 == 2).float() * m).sum(1) >= 2)).float()
    if kind == "sign": return torch.where(((resp * mask).sum(1) % 2) == 0, 1.0, -1.0)
    if kind == "length": return -(n - 6.0).abs() / 4.0
    if kind == "noisy": return ((resp * mask).sum(1) % 7).float() / 3 + 0.1 * torch.randn(resp.shape[0], generator=g)
    if kind == "ended": return ((resp == EOS) & mask).any(1).float() * 2 - 0.5
    if kind == "const": return torch.full((resp.shape[0],), 0.7)
    if kind == "huge": return 5000.0 * ((resp % 3 == 0).float() * m).sum(1) / n - 3000.0
    raise KeyError(kind)


def prompts_for(n_prompts, n, P, V, g):
    p = torch.randint(2, V, (n_prompts, P), generator=g)
    return p.repeat_interleave(n, 0), torch.arange(n_prompts).repeat_interleave(n)


def write(folder, meta, t):
    t = {k: torch.as_tensor(x).detach().contiguous().clone() for k, x in t.items() if x is not None}
    meta = dict(schema=meta.pop("schema", 2), **meta)
    name = f"step_{meta.get('step', 0):06d}_rank_{meta.get('rank', 0)}_mb_{meta.get('micro_batch', 0)}.safetensors"
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    assert not os.path.exists(path), path
    with open(path, "wb") as f: f.write(save(t, {"plumbline": json.dumps(meta, allow_nan=False)}))


def fin(d):
    return {k: (float(x) if math.isfinite(float(x)) else None) for k, x in d.items()}


LITTLE = set("logp_new logp_old logp_gen logp_ref response_mask advantages scores token_rewards group_id loss".split())


class Case:
    """Folder of one case; keep(t) leaves out what a user of little dumps leaves out."""
    def __init__(self, cases, prog, name, note, declared=(), little=False):
        self.root = os.path.join(cases, f"{prog}-{name}")
        shutil.rmtree(self.root, ignore_errors=True)
        os.makedirs(self.root + "/run")
        self.run, self.little = f"{prog}-{name}", little
        json.dump(dict(program=prog, healthy=True, bug=None, describes=note, legal=True, sealed=False, declared=list(declared)),
                  open(self.root + "/expected.json", "w"), indent=1)

    def put(self, meta, t, drop=()):
        t = {k: x for k, x in t.items() if x is not None and k not in drop and (not self.little or k in LITTLE)}
        if self.little: meta = {k: x for k, x in meta.items() if k not in ("scalars", "scalars_scope", "token_loss_includes_kl")}
        write(self.root + "/run", dict(meta, run=self.run), t)


def grads(loss, *xs):
    return torch.autograd.grad(loss, xs, retain_graph=True, allow_unused=True, materialize_grads=True)


# ---- the sources of frameworks
def tree(path):
    text = open(path).read()
    return text, ast.parse(text)


def find_def(t, name, cls=None):
    nodes = t.body
    if cls: nodes = next(n for n in t.body if isinstance(n, ast.ClassDef) and n.name == cls).body
    return next(n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and n.name == name)


def exec_nodes(nodes, ns, path="<source>"):
    m = ast.Module(body=list(nodes), type_ignores=[])
    exec(compile(ast.fix_missing_locations(m), path, "exec"), ns)
    return ns


def get_func(path, name, ns, cls=None, keep_locals=False):
    """A function of a released file, decorators of profiling off; keep_locals has it leave its variables on self."""
    _, t = tree(path)
    fn = copy.deepcopy(find_def(t, name, cls))
    fn.decorator_list = [d for d in fn.decorator_list if not (isinstance(d, ast.Name) and "profiling" in d.id or isinstance(d, ast.Attribute))]
    if keep_locals:
        assert isinstance(fn.body[-1], ast.Return)
        fn.body.insert(-1, ast.parse("self.seen = dict(locals())").body[0])
    exec_nodes([fn], ns, path)
    f = ns[name]
    return f.__func__ if isinstance(f, staticmethod) else f


def pick(rng, **kw):
    return {k: rng.choice(v) for k, v in kw.items()}
