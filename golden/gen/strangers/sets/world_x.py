"""Shared by x1 … x4: a small language model, an engine, reward rules, the writer of dumps, and the harness that runs a
trainer's text with one edit."""
import ast, copy, json, os, shutil, sys, textwrap
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file, load_file

torch.set_num_threads(1)
PAD, EOS, BOS, V = 0, 1, 2, 36
SRC = os.environ["WHEELS"]


class LM(nn.Module):
    """A GRU language model; with a head for values where asked."""

    def __init__(self, seed, hidden=48, emb=24, sharp=2.2, eos=0.9, value=False):
        super().__init__()
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        self.emb, self.rnn, self.out = nn.Embedding(V, emb), nn.GRU(emb, hidden, batch_first=True), nn.Linear(hidden, V)
        self.vhead = nn.Linear(hidden, 1) if value else None
        with torch.no_grad():
            self.out.weight.mul_(sharp * 3)
            self.out.bias[EOS] += eos
            if value:
                self.vhead.weight.mul_(2)
        ban = torch.zeros(V)
        ban[[PAD, BOS]] = -30.0
        self.register_buffer("ban", ban)
        torch.set_rng_state(state)

    def hidden(self, ids):
        return self.rnn(self.emb(ids))[0]

    def forward(self, ids):
        h = self.hidden(ids)
        return self.out(h) + self.ban, (self.vhead(h).squeeze(-1) if self.vhead is not None else None)


def resp_logits(model, ids, P):
    """Logits that predict the response tokens of ids [B, P+T]: [B, T, V]."""
    return model(ids)[0][:, P - 1 : -1]


def gather_logp(logits, tokens):
    return torch.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def entropy_of(logits):
    lp = torch.log_softmax(logits, -1)
    return -(lp.exp() * lp).sum(-1)


def engine_of(model, seed, noise=0.02):
    """A copy with weights rounded to bfloat16 and a little noise in the head, as another implementation has."""
    e, g = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in e.parameters():
            p.copy_(p.bfloat16().float())
        e.out.weight.add_(noise * torch.randn(e.out.weight.shape, generator=g))
    return e


@torch.no_grad()
def sample(engine, prompts, T, temperature, seed):
    """Responses [B, T], mask with the EOS in it, log-probs of the engine."""
    g, B = torch.Generator().manual_seed(seed), len(prompts)
    h = engine.rnn(engine.emb(prompts))[1]
    x = engine.rnn(engine.emb(prompts))[0][:, -1]
    ids, lps, mask = torch.full((B, T), PAD), torch.zeros(B, T), torch.zeros(B, T)
    alive = torch.ones(B, dtype=torch.bool)
    for t in range(T):
        lp = torch.log_softmax(((engine.out(x) + engine.ban) / temperature).float(), -1)
        tok = torch.multinomial(lp.exp(), 1, generator=g)
        ids[:, t] = torch.where(alive, tok[:, 0], torch.tensor(PAD))
        lps[:, t] = torch.where(alive, lp.gather(1, tok)[:, 0], torch.tensor(0.0))
        mask[:, t] = alive.float()
        alive = alive & (tok[:, 0] != EOS)
        if not alive.any():
            break
        o, h = engine.rnn(engine.emb(ids[:, t : t + 1]), h)
        x = o[:, 0]
    return ids, mask, lps


def make_prompts(n, P, seed):
    g = torch.Generator().manual_seed(seed)
    p = torch.randint(3, V, (n, P), generator=g)
    p[:, 0] = BOS
    return p


def reward_even(prompt, resp):
    r = [t for t in resp if t > 2]
    return sum(t % 2 == 0 for t in r) / max(len(r), 1)


def reward_key(prompt, resp):
    """How often the response names a token that is congruent to the last of the prompt."""
    return float(sum((t - prompt[-1]) % 5 == 0 for t in resp if t > 2)) / 4.0


def reward_short(prompt, resp):
    return 0.5 - 0.03 * len(resp) if EOS in resp else -0.5


def write(folder, name, tensors, meta):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".safetensors")
    assert not os.path.exists(path), path
    t = {}
    for k, x in tensors.items():
        if x is None:
            continue
        x = x.detach().clone().contiguous()
        t[k] = x
    save_file(t, path, {"plumbline": json.dumps(meta, allow_nan=False)})


# ---- texts of the frameworks --------------------------------------------------------------------------------------
def functions(path, names, cls=None):
    """The text of functions of a file, of a class where named."""
    text = open(path).read()
    body = ast.parse(text).body
    if cls:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == cls).body
    found = {n.name: textwrap.dedent(ast.get_source_segment(text, n, padded=True)) for n in body if isinstance(n, ast.FunctionDef) and n.name in names}
    assert set(found) == set(names), set(names) - set(found)
    return "\n\n".join(found[n] for n in names)


def trainer_text(file):
    text = open(file).read()
    return text.split("# >>> trainer\n")[1].split("# <<< trainer")[0]


# ---- harness ------------------------------------------------------------------------------------------------------
def edited(texts, edit):
    """Texts with one edit (old, new); old must be there exactly once in all of them."""
    if edit is None:
        return dict(texts)
    old, new = edit
    counts = {k: t.count(old) for k, t in texts.items()}
    assert sum(counts.values()) == 1, (old, counts)
    return {k: t.replace(old, new) for k, t in texts.items()}


def differs(a, b, tol=1e-4):
    """The first file and tensor in which two runs differ by more than rounding."""
    fa, fb = sorted(os.listdir(a)), sorted(os.listdir(b))
    if fa != fb:
        return "other files"
    for f in fa:
        x, y = load_file(f"{a}/{f}"), load_file(f"{b}/{f}")
        for k in sorted(set(x) | set(y)):
            if k not in x or k not in y or x[k].shape != y[k].shape:
                return f"{f}: {k} (shape)"
            p, q = x[k].double(), y[k].double()
            d = (p - q).abs().nan_to_num(1.0).max().item() if p.numel() else 0
            if d > tol * (1e-3 + q.abs().max().item()):
                return f"{f}: {k} by {d:.2g} of {q.abs().max().item():.2g}"
    return None


def run_all(root, name, texts, healthy, bugs, execute, only=None):
    """healthy: (case, cfg); bugs: (id, case of the configuration, old, new, describes, legal)."""
    rows, cfgs = [], dict(healthy)
    for case, cfg in healthy:
        folder = f"{root}/{name}-{case}"
        shutil.rmtree(folder, ignore_errors=True)
        execute(edited(texts, None), copy.deepcopy(cfg), folder + "/run")
        put(folder, name, True, None, "a right run: " + cfg["about"], True, cfg.get("declared", []))
    seen = set()
    for bug, case, old, new, describes, legal in bugs:
        if only and bug not in only:
            continue
        assert bug not in seen and case in cfgs, bug
        seen.add(bug)
        folder = f"{root}/{name}-{bug}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            execute(edited(texts, (old, new)), copy.deepcopy(cfgs[case]), folder + "/run")
        except AssertionError:
            raise
        except Exception as e:
            raise RuntimeError(f"{name}-{bug}: {e!r}") from e
        where = differs(f"{folder}/run", f"{root}/{name}-{case}/run")
        print(f"{name}-{bug:34s} {case:10s} {'legal' if legal else '':6s} {where or '*** the same ***'}", flush=True)
        put(folder, name, False, bug, describes + f" [configuration {case}; `{old.strip()[:150]}` became `{new.strip()[:150]}`]", legal, cfgs[case].get("declared", []))


def put(folder, name, healthy, bug, describes, legal, declared):
    json.dump(dict(program=name, healthy=healthy, bug=bug, describes=describes, legal=legal, sealed=False, declared=declared), open(f"{folder}/expected.json", "w"), indent=1)
