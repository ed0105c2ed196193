"""Shared helpers of u1..u6: a small LM, an engine that samples, rewards, the writer of dumps, source lines of released frameworks."""
import ast, copy, json, math, os, random, shutil, sys, textwrap
import numpy as np, torch
from torch import nn
from safetensors.torch import save_file
torch.set_num_threads(1)
PAD, EOS, OBS0, OBS1, V = 0, 1, 2, 3, 32
SRC = os.environ["WHEELS"]
ORL = SRC + "/openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf"

class LM(nn.Module):
    def __init__(self, v=V, d=32, h=48, eos_bias=0.3):
        super().__init__()
        self.emb, self.rnn, self.head, self.vhead = nn.Embedding(v, d), nn.GRU(d, h, batch_first=True), nn.Linear(h, v), nn.Linear(h, 1)
        with torch.no_grad():
            self.head.weight.mul_(2.5)
            self.head.bias[EOS] += eos_bias
    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        logits = self.head(h)
        block = torch.zeros_like(logits); block[..., PAD] = -1e4; block[..., OBS0] = -1e4; block[..., OBS1] = -1e4
        return logits + block, self.vhead(h).squeeze(-1)

def response(model, prompts, ids, temp=1.0, temp_eps=0.0, dtype=None):
    """log-probs [B,T], entropies [B,T], values [B,T], logits undivided [B,T,V]"""
    P = prompts.shape[1]
    logits, values = model(torch.cat([prompts, ids], 1))
    raw = logits[:, P - 1:-1]
    x = raw / (temp + temp_eps)
    if dtype is not None: x = x.to(dtype)
    lsm = x.log_softmax(-1)
    lp = lsm.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    p = lsm.exp()
    ent = -(p * lsm).sum(-1)
    return lp, ent, values[:, P - 1:-1], raw

def engine_of(model, rng, kind):
    e = copy.deepcopy(model)
    with torch.no_grad():
        for p in e.parameters():
            if kind == "bf16": p.copy_(p.bfloat16().float())
            elif kind == "noise": p.add_(torch.randn_like(p) * 0.02)
    return e

@torch.no_grad()
def sample(model, prompts, T, temp=1.0, stop=True, obs=0.0, min_new=1, fixed_len=None):
    """ids, mask of all tokens, mask of own tokens, engine log-probs, truncated"""
    B = prompts.shape[0]
    ids = torch.full((B, T), PAD); mask = torch.zeros(B, T, dtype=torch.long); own = mask.clone(); lp = torch.zeros(B, T)
    h = model.rnn(model.emb(prompts))[1]
    done = torch.zeros(B, dtype=torch.bool); force = torch.zeros(B, dtype=torch.long); last = model.rnn(model.emb(prompts))[0][:, -1]
    for t in range(T):
        logits = model.head(last) / temp
        logits[:, [PAD, OBS0, OBS1]] = -1e4 / temp
        lsm = logits.log_softmax(-1)
        if t < min_new: 
            w = lsm.exp().clone(); w[:, EOS] = 0
        else: w = lsm.exp()
        tok = torch.multinomial(w, 1).squeeze(1)
        isobs = force > 0
        tok = torch.where(isobs, torch.where(force % 2 == 0, OBS0, OBS1), tok)
        live = ~done
        ids[live, t] = tok[live]; mask[live, t] = 1
        own[:, t] = (live & ~isobs).long()
        lp[:, t] = torch.where(live & ~isobs, lsm.gather(1, tok[:, None]).squeeze(1), torch.zeros(()))
        force = (force - 1).clamp(min=0)
        if obs > 0 and t < T - 5:
            start = (torch.rand(B) < obs) & (force == 0) & live & (tok != EOS) & ~isobs
            force = torch.where(start, torch.randint(2, 5, (B,)), force)
        if stop: done |= (tok == EOS)
        o, h = model.rnn(model.emb(tok)[:, None], h)
        last = o[:, 0]
    truncated = ~((ids == EOS) & (mask > 0)).any(1)
    return ids, mask, own, lp, truncated

def prompts_of(rng, n, P=4):
    return torch.tensor([[rng.randrange(4, V) for _ in range(P)] for _ in range(n)])

def rule(prompts, ids, mask, kind=0):
    """rewards by a rule on the tokens"""
    m = mask.bool()
    key = prompts[:, :1] % 3
    hit = ((ids % 3 == key) & m).sum(1).float()
    n = m.sum(1).clamp(min=1).float()
    if kind == 0: return hit / n
    if kind == 1: return ((ids == EOS) & m).any(1).float()
    if kind == 2: return (hit >= 3).float()
    if kind == 3: return -(n / ids.shape[1]) * 0.5
    return torch.round(hit / n * 4) / 4 - 0.3

class Run:
    def __init__(self, cases, name, case, describes, declared=(), program=None):
        self.dir = os.path.join(cases, f"{name}-{case}"); shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir + "/run"); self.case, self.program = case, name
        json.dump({"program": name, "healthy": True, "bug": None, "describes": describes, "legal": True, "sealed": False, "declared": list(declared)},
                  open(self.dir + "/expected.json", "w"))
    def dump(self, tensors, step, rank=0, mb=0, **meta):
        t = {k: x.detach().cpu().contiguous().clone() for k, x in tensors.items() if x is not None}
        m = dict(schema=2, run=self.case, step=step, rank=rank, micro_batch=mb) | meta
        if "scalars" in m: m["scalars"] = {k: (float(x) if math.isfinite(float(x)) else None) for k, x in m["scalars"].items()}
        save_file(t, f"{self.dir}/run/step_{step:06d}_rank_{rank}_mb_{mb}.safetensors", {"plumbline": json.dumps(m, allow_nan=False)})

LITTLE = {"response_mask", "logp_new", "logp_old", "logp_ref", "logp_gen", "advantages", "scores", "loss", "group_id"}
def pick(tensors, little, more=()):
    return {k: x for k, x in tensors.items() if x is not None and (not little or k in LITTLE or k in more)}

def grad(loss, x):
    return torch.autograd.grad(loss, x, retain_graph=True, materialize_grads=True)[0]

# ---- source text of released frameworks
def source(path): return open(path).read()
def get_def(text, name, cls=None):
    tree = ast.parse(text)
    body = tree.body
    if cls: body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == cls).body
    node = next(n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name)
    node.decorator_list = [d for d in getattr(node, "decorator_list", []) if isinstance(d, ast.Call) and getattr(d.func, "attr", "") == "no_grad" or isinstance(d, ast.Name) and d.id in ("staticmethod", "dataclass")]
    return ast.unparse(node)
def between(text, start, end, after=""):
    i = text.index(after) if after else 0
    a = text.rindex("\n", 0, text.index(start, i)) + 1
    b = text.rindex("\n", 0, text.index(end, a)) + 1
    return textwrap.dedent(text[a:b])
def config_defaults(path, cls):
    node = next(n for n in ast.parse(source(path)).body if isinstance(n, ast.ClassDef) and n.name == cls)
    out = {}
    for n in node.body:
        if isinstance(n, ast.AnnAssign) and isinstance(n.value, ast.Call):
            for k in n.value.keywords:
                if k.arg == "default":
                    try: out[n.target.id] = ast.literal_eval(k.value)
                    except Exception: pass
    return out
class NS(dict):
    __getattr__ = dict.get
    def __setattr__(self, k, v): self[k] = v
