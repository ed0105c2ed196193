"""Helpers of the f programs: a tiny causal language model, an engine that samples, ast extraction, writing of cases."""

import ast, json, os, shutil, sys, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
V, EOS, PAD = 40, 2, 0


class LM(nn.Module):
    def __init__(self, d=24, maxlen=96, value=False):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(maxlen, d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.head = nn.Linear(d, 1 if value else V)
        if not value:
            with torch.no_grad():
                self.head.weight.normal_(0, 0.35)
                self.head.bias[EOS] = 0.9
                self.head.bias[PAD] = -4

    def forward(self, ids, am):
        p = (am.long().cumsum(1) - 1).clamp(min=0)
        x = self.emb(ids) + self.pos(p)
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        S = ids.shape[1]
        ok = torch.tril(torch.ones(S, S, dtype=torch.bool))[None] & (am.bool()[:, None, :] | torch.eye(S, dtype=torch.bool)[None])
        a = (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5
        a = a.masked_fill(~ok, torch.finfo(a.dtype).min).softmax(-1)
        x = x + self.o(a @ v)
        x = x + self.down(F.gelu(self.up(self.n2(x))))
        return self.head(self.n3(x))


def copy_of(m, dtype=torch.float32):
    c = LM(m.emb.weight.shape[1], m.pos.weight.shape[0], m.head.weight.shape[0] == 1)
    c.load_state_dict(m.state_dict())
    return c.to(dtype).requires_grad_(False)


def logps(model, ids, am, T, temp=1.0, autocast=False, drop=0):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        lg = model(ids, am)
    if autocast:
        lg = lg.float()
    lg = lg[:, -T - 1 : -1] if drop == 0 else lg[:, -T:]
    lg = lg / temp
    lp = lg.log_softmax(-1)
    lab = ids[:, -T:].unsqueeze(-1)
    ent = -(lp.exp() * lp).sum(-1)
    return lp.gather(-1, lab).squeeze(-1), ent


def prompts(g, n, P):
    ids = torch.randint(3, V, (n, P), generator=g)
    ln = torch.randint(P // 2, P + 1, (n,), generator=g)
    am = torch.arange(P)[None] >= (P - ln)[:, None]
    return ids * am, am.long()


@torch.no_grad()
def sample(engine, pid, pam, T, g, temp=1.0, holes=False):
    B = len(pid)
    ids, am = pid.clone(), pam.clone()
    done = torch.zeros(B, dtype=torch.bool)
    gen, mask, att = [], [], []
    for t in range(T):
        lp = (engine(ids, am)[:, -1].float() / temp).log_softmax(-1)
        x = torch.multinomial(lp.exp(), 1, generator=g)[:, 0]
        if t == 0:  # no empty answers
            x = torch.where(x == EOS, torch.full_like(x, 7), x)
        tool = torch.zeros(B, dtype=torch.bool)
        if holes and 3 <= t < 6:
            tool = torch.arange(B) % 3 == 0
            x = torch.where(tool, 30 + (torch.arange(B) + t) % 9, x)
        x = torch.where(done, torch.full_like(x, PAD), x)
        gen.append(torch.where(done | tool, torch.zeros(B), lp.gather(1, x[:, None])[:, 0]))
        mask.append(~done & ~tool)
        att.append(~done)
        ids = torch.cat([ids, x[:, None]], 1)
        am = torch.cat([am, (~done).long()[:, None]], 1)
        done = done | ((x == EOS) & ~tool)
    return dict(
        input_ids=ids,
        attention_mask=am,
        response_ids=ids[:, -T:],
        mask=torch.stack(mask, 1).float(),
        att=torch.stack(att, 1).float(),
        gen=torch.stack(gen, 1),
        ended=done,
    )


def score(r):  # share of even tokens, a bonus for short and ended answers
    x, m = r["response_ids"], r["att"]
    return ((x % 2 == 0).float() * m).sum(1) / m.sum(1) * 2 + 0.3 * r["ended"].float() - m.sum(1) / 60 + 0.1 * (x[:, 0] % 5).float()


def cut(path, names, ns):
    src = open(path).read()
    tree = ast.parse(src)
    for n in tree.body:
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names:
            n.decorator_list = []
            if isinstance(n, ast.FunctionDef):
                n.returns = None
                for a in n.args.args + n.args.kwonlyargs:
                    a.annotation = None
            exec(compile(ast.Module([n], []), path, "exec"), ns)


class Case:
    def __init__(self, out, prog, case):
        self.dir = os.path.join(out, f"{prog}-{case}")
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir + "/run")
        self.prog, self.case = prog, case

    def write(self, name, t, meta):
        t = {k: v.detach().contiguous().clone() for k, v in t.items() if v is not None}
        save_file(t, f"{self.dir}/run/{name}.safetensors", {"plumbline": json.dumps(dict(schema=2, run=f"{self.prog}-{self.case}", **meta))})

    def end(self, bug, text, flags):
        json.dump(
            dict(program=self.prog, healthy=not bug, bug=bug or "", describes=text, sealed=False, declared=flags),
            open(self.dir + "/expected.json", "w"),
            indent=1,
        )


def main(prog, healthy, bugs, run):
    """healthy: {name: settings}; bugs: {id: (healthy name, sentence)}"""
    out, want = sys.argv[1], sys.argv[2:]
    for name in [*healthy, *("b_" + b for b in bugs)]:
        if want and name not in want:
            continue
        bug = name[2:] if name.startswith("b_") else ""
        base = bugs[bug][0] if bug else name
        c = Case(out, prog, name)
        flags = run(c, dict(healthy[base]), bug) or []
        c.end(bug, bugs[bug][1] if bug else "right: " + name, flags)
