"""Shared by t1..t4: a tiny language model, an engine that samples, rules that reward, a dump writer and the planting of single edits."""
import ast, copy, json, os, shutil, sys, textwrap
import torch, torch.nn as nn
from safetensors.torch import save_file

torch.set_num_threads(1)
V, PAD, EOS, TOOL = 40, 0, 1, 2          # tokens 3..39 are words; TOOL opens an observation (agents only)
SRC = os.environ["WHEELS"]


class LM(nn.Module):
    def __init__(self, seed, d=32, h=48, value=False, eos_bias=0.8, tool_bias=-1.0):
        super().__init__()
        g = torch.random.get_rng_state(); torch.manual_seed(seed)
        self.emb, self.gru, self.head = nn.Embedding(V, d), nn.GRU(d, h, batch_first=True), nn.Linear(h, V)
        self.value = nn.Linear(h, 1) if value else None
        with torch.no_grad():
            self.head.weight.mul_(3.0); self.head.bias[PAD] = -8.0; self.head.bias[TOOL] = tool_bias; self.head.bias[EOS] = eos_bias
        torch.random.set_rng_state(g)

    def hidden(self, ids, state=None):
        return self.gru(self.emb(ids), state)

    def logits(self, ids, keep):                      # the logits that predict the last `keep` tokens
        h, _ = self.hidden(ids)
        return self.head(h[:, -keep - 1:-1])

    def both(self, ids, keep):
        h, _ = self.hidden(ids); h = h[:, -keep - 1:-1]
        return self.head(h), self.value(h).squeeze(-1)


def engine_of(model, bf16=True, noise=0.0, gen=None):
    """A copy as an inference engine has it: weights in bfloat16 (or a little noise on them), arithmetic in float32."""
    e = copy.deepcopy(model)
    with torch.no_grad():
        for p in e.parameters():
            if noise: p.add_(torch.randn(p.shape, generator=gen) * noise)
            if bf16: p.copy_(p.bfloat16().float())
    return e


@torch.no_grad()
def sample(engine, prompts, T, temperature, gen, observe=None):
    """prompts [B,P], left padded. Returns ids [B,T], logp of the engine (after the temperature), response mask, attention mask.
    observe: after a TOOL token two observation tokens are put in by the environment (mask 0, attention 1)."""
    B = len(prompts); h, s = engine.hidden(prompts); h = h[:, -1]
    ids, lp = torch.full((B, T), PAD), torch.zeros(B, T)
    own, att = torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
    alive, obs = torch.ones(B, dtype=torch.bool), torch.zeros(B, dtype=torch.long)
    for t in range(T):
        ls = torch.log_softmax(engine.head(h) / temperature, -1)
        tok = torch.multinomial(ls.exp(), 1, generator=gen)[:, 0]
        o = obs > 0
        if observe is not None: tok = torch.where(o, observe(ids, t), tok)
        ids[:, t] = torch.where(alive, tok, torch.tensor(PAD))
        lp[:, t] = torch.where(alive & ~o, ls.gather(1, tok[:, None])[:, 0], torch.tensor(0.0))
        own[:, t] = (alive & ~o).long(); att[:, t] = alive.long()
        obs = (obs - 1).clamp(min=0)
        if observe is not None: obs = torch.where(alive & ~o & (tok == TOOL), torch.tensor(2), obs)
        alive = alive & ~((tok == EOS) & ~o)
        out, s = engine.hidden(ids[:, t:t + 1], s); h = out[:, 0]
    return ids, lp, own, att


def make_prompts(n, P, gen):
    out = torch.full((n, P), PAD)
    for i in range(n):
        k = int(torch.randint(3, P + 1, (1,), generator=gen)); out[i, P - k:] = torch.randint(3, V, (k,), generator=gen)
    return out


def r_parity(p, ids, m):                     # words with the parity of the prompt's last word
    ok = ((ids % 2) == (p[:, -1:] % 2)) & (ids > 2)
    return (ok * m).sum(1).float() / m.sum(1).clamp(min=1)

def r_length(p, ids, m):                     # near a length that the prompt names
    return 1 - (m.sum(1) - (p[:, -1] % 12 + 4)).abs().float() / 12

def r_end(p, ids, m):                        # ended, and with a big word before
    return ((ids == EOS) * m).sum(1).float() * 0.7 + (ids > 30).float().mul(m).sum(1) * 0.05


def source_of(path, *names, cls=None):
    """The source lines of functions (or methods of cls) of a released file, dedented, decorators off."""
    text = open(os.path.join(SRC, path)).read(); lines = text.split("\n"); body = ast.parse(text).body
    if cls: body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == cls).body
    out = []
    for n in names:
        f = next(x for x in body if isinstance(x, (ast.FunctionDef, ast.ClassDef)) and x.name == n)
        out.append(textwrap.dedent("\n".join(lines[f.lineno - 1:f.end_lineno])))
    return "\n\n".join(out) + "\n"


def between(path, first, last, skip=0):
    """The source lines of a released file from the one that contains `first` to the one before `last`, dedented."""
    lines = open(os.path.join(SRC, path)).read().split("\n")
    a = next(i for i, l in enumerate(lines) if i >= skip and first in l); b = next(i for i in range(a, len(lines)) if last in lines[i])
    return textwrap.dedent("\n".join(lines[a:b])) + "\n"


def own_source(file, mark):
    """The lines of the program between `# <mark>` and `# </mark>`."""
    t = open(file).read(); return t.split(f"# <{mark}>\n")[1].split(f"# </{mark}>")[0]


def plant(sources, edit):
    """One edit (old, new) at the only place where old stands, in one of the sources."""
    if edit is None: return list(sources)
    old, new = edit[0], edit[1]; n = sum(s.count(old) for s in sources)
    assert n == 1, f"{n} places for {old!r}"
    assert old != new
    return [s.replace(old, new) for s in sources]


class Writer:
    def __init__(self, folder): self.folder = folder; os.makedirs(folder)
    def __call__(self, meta, tensors):
        t = {k: x.detach().contiguous().clone() for k, x in tensors.items() if x is not None}
        name = f"step_{meta['step']:06d}_rank_{meta.get('rank', 0)}_mb_{meta.get('micro_batch', 0)}.safetensors"
        assert not os.path.exists(os.path.join(self.folder, name)), name
        save_file(t, os.path.join(self.folder, name), {"plumbline": json.dumps(meta, allow_nan=False)})


def main(program, file, healthy, bugs, run):
    """healthy: {config: (describes, declared)}; bugs: [(id, config, legal, describes, old, new)]; run(config, edit, writer)."""
    cases, only = sys.argv[1], set(sys.argv[2:])
    jobs = [(f"h_{c}", c, True, None, True, d, None, fl) for c, (d, fl) in healthy.items()]
    jobs += [(f"b_{i}", c, False, i, lg, f"{d} [config {c}; line: {' '.join(o.split())} -> {' '.join(n.split())}]", (o, n), healthy[c][1]) for i, c, lg, d, o, n in bugs]
    assert len({j[0] for j in jobs}) == len(jobs)
    for case, c, ok, bug, legal, d, edit, flags in jobs:
        if only and case not in only: continue
        at = os.path.join(cases, f"{program}-{case}"); shutil.rmtree(at, ignore_errors=True); os.makedirs(at)
        run(c, edit, Writer(os.path.join(at, "run")))
        json.dump(dict(program=program, healthy=ok, bug=bug, describes=d, legal=legal, sealed=False, declared=flags),
                  open(os.path.join(at, "expected.json"), "w"), indent=1)
