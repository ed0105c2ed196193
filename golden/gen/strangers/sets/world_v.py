"""Shared by v1…v4: small language models, sampling, a writer of dumps, planting of edits, the list of cases."""
import ast, copy, json, os, shutil, sys, textwrap, time, types
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
SRC = os.environ["WHEELS"]


# ------------------------------------------------------------------ models
class Out(dict):
    """What transformers returns: keys and attributes."""
    __getattr__ = dict.__getitem__

    def __setattr__(self, k, v):
        self[k] = v


class Attn(nn.Module):
    """Causal transformer with left or right padding, learned positions."""

    def __init__(self, vocab, width, heads, layers, longest):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        self.heads, self.blocks, self.norm = heads, nn.ModuleList(), nn.LayerNorm(width)
        for _ in range(layers):
            self.blocks.append(nn.ModuleDict(dict(n1=nn.LayerNorm(width), qkv=nn.Linear(width, 3 * width), o=nn.Linear(width, width),
                                                  n2=nn.LayerNorm(width), up=nn.Linear(width, 2 * width), down=nn.Linear(2 * width, width))))

    def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
        B, S = input_ids.shape
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if position_ids is None:
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        x = self.tok(input_ids) + self.pos(position_ids)
        see = torch.ones(S, S, dtype=torch.bool).tril() & attention_mask.bool()[:, None, None, :]
        see = see | torch.eye(S, dtype=torch.bool)
        for b in self.blocks:
            q, k, v = (y.view(B, S, self.heads, -1).transpose(1, 2) for y in b["qkv"](b["n1"](x)).chunk(3, -1))
            x = x + b["o"](F.scaled_dot_product_attention(q, k, v, attn_mask=see).transpose(1, 2).reshape(B, S, -1))
            x = x + b["down"](F.gelu(b["up"](b["n2"](x))))
        return self.norm(x)


class Gru(nn.Module):
    def __init__(self, vocab, width, layers=1):
        super().__init__()
        self.tok, self.rnn = nn.Embedding(vocab, width), nn.GRU(width, width, layers, batch_first=True)

    def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
        return self.rnn(self.tok(input_ids))[0]


class LM(nn.Module):
    """A body and a head over tokens; `never` are tokens that it does not emit (padding)."""

    def __init__(self, body, width, vocab, never=(), sharp=1.0):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, vocab)
        nn.init.normal_(self.head.weight, std=sharp * width ** -0.5)
        shut = torch.zeros(vocab)
        shut[list(never)] = -1e4
        self.register_buffer("shut", shut)

    def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
        h = self.body(input_ids, attention_mask=attention_mask, position_ids=position_ids)
        return Out(logits=self.head(h) + self.shut, hidden_states=(h,), last_hidden_state=h)


@torch.no_grad()
def sample(model, ids, attn, n, temperature, eos=None, pad=0, gen=None, low=False, noise=0.0):
    """n tokens after ids; returns response ids, their log-probs by the engine, and which rows have ended."""
    B, done = ids.shape[0], torch.zeros(ids.shape[0], dtype=torch.bool)
    toks, lps = [], []
    for _ in range(n):
        x = model(ids, attention_mask=attn).logits[:, -1]
        if noise:
            x = x + noise * torch.randn(x.shape, generator=gen)
        if low:
            x = x.bfloat16().float()
        lp = F.log_softmax(x / temperature, -1)
        t = torch.multinomial(lp.exp(), 1, generator=gen).squeeze(1)
        t = torch.where(done, torch.full_like(t, pad), t)
        toks.append(t)
        lps.append(torch.where(done, torch.zeros(B), lp.gather(1, t[:, None]).squeeze(1)))
        ids = torch.cat([ids, t[:, None]], 1)
        attn = torch.cat([attn, (~done).to(attn.dtype)[:, None]], 1)
        if eos is not None:
            done = done | (t == eos)
        if done.all():
            break
    return torch.stack(toks, 1), torch.stack(lps, 1), done


# ------------------------------------------------------------------ dumps
class Dumper:
    def __init__(self, folder, **meta):
        self.folder, self.meta, self.keep = folder, dict(schema=2, run=meta.pop("run", "run"), **meta), None
        os.makedirs(folder, exist_ok=True)

    def __call__(self, step, tensors, micro=0, micros=1, rank=0, world=1, scalars=None, options=None, **meta):
        m = dict(self.meta, step=step, micro_batch=micro, micro_batches=micros, rank=rank, world_size=world, **meta)
        m["options"] = {**self.meta.get("options", {}), **(options or {})}
        if scalars:
            m["scalars"] = {k: (x if np.isfinite(x := float(torch.as_tensor(v).detach())) else None) for k, v in scalars.items()}
            m.setdefault("scalars_scope", "micro_batch")
        t = {k: (v.detach().to("cpu").contiguous().clone() if torch.is_tensor(v) else torch.as_tensor(v)) for k, v in tensors.items()
             if v is not None and (self.keep is None or k in self.keep)}
        save_file(t, f"{self.folder}/step_{step:06d}_rank_{rank}_mb_{micro}.safetensors", metadata={"plumbline": json.dumps(m, allow_nan=False)})


# ------------------------------------------------------------------ sources and edits
def read(path):
    with open(path) as f:
        return f.read()


def pick(text, *names, cls=None):
    """The source of functions or classes of a module, or of methods of a class, by name."""
    tree = ast.parse(text)
    body = next(n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls) if cls else tree.body
    out, lines = [], text.splitlines(keepends=True)
    for name in names:
        n = next(n for n in body if getattr(n, "name", None) == name)
        first = min([n.lineno] + [d.lineno for d in n.decorator_list])
        out.append(textwrap.dedent("".join(lines[first - 1:n.end_lineno])))
    return "\n\n".join(out)


def between(text, first, last):
    """Lines from the one that holds `first` up to and with the one that holds `last`, dedented."""
    a = text.index(first)
    a = text.rindex("\n", 0, a) + 1
    b = text.index(last, a)
    return textwrap.dedent(text[a:text.index("\n", b) + 1])


def edit(text, old, new, count=1):
    assert text.count(old) == count, (text.count(old), old)
    return text.replace(old, new)


def before(text, anchor, line):
    """Puts a line of our own before the only line that begins with `anchor`."""
    lines = text.splitlines(keepends=True)
    (at,) = [i for i, l in enumerate(lines) if l.strip().startswith(anchor)]
    lines.insert(at, lines[at][:len(lines[at]) - len(lines[at].lstrip())] + line + "\n")
    return "".join(lines)


class Bug:
    """One edit: in the text named `where`, `old` becomes `new`; `base` is the configuration that it is planted into."""

    def __init__(self, id, base, legal, describes, where, old, new, count=1, **config):
        self.__dict__.update(id=id, base=base, legal=legal, describes=describes, where=where, old=old, new=new, count=count, config=config)

    def __call__(self, where, text):
        if where != self.where:
            return text
        self.used = True
        return edit(text, self.old, self.new, self.count)


def healthy(where, text):
    return text


def main(name, run, bases, bugs, argv):
    """Writes all cases of a program; `run(folder, config, plant)` trains and dumps."""
    root, only = argv[1], set(argv[2:])
    jobs = [(f"h{i + 1}", base, None) for i, base in enumerate(bases)] + [(b.id, b.base, b) for b in bugs]
    assert len({j[0] for j in jobs}) == len(jobs)
    for case, base, bug in jobs:
        if only and case not in only:
            continue
        start, at = time.time(), f"{root}/{name}-{case}"
        shutil.rmtree(at, ignore_errors=True)
        os.makedirs(f"{at}/run")
        config = copy.deepcopy(bases[base])
        if bug:
            config.update(bug.config)
            bug.used = False
        torch.manual_seed(config["seed"])
        np.random.seed(config["seed"])
        run(f"{at}/run", config, bug or healthy)
        assert bug is None or bug.used, case
        with open(f"{at}/expected.json", "w") as f:
            json.dump(dict(program=name, healthy=bug is None, bug=bug and bug.id, describes=bug.describes if bug else f"healthy, configuration {base}",
                           legal=bug.legal if bug else True, sealed=False, declared=config.get("declared", [])), f, indent=1, ensure_ascii=False)
        print(f"{case} {len(os.listdir(at + '/run'))} files {time.time() - start:.1f}s", flush=True)
