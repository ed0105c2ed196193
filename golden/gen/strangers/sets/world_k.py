import sys, os, json, math, copy, shutil, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file, load_file

torch.set_num_threads(1)
V, EOS, PAD = 24, 1, 0


class LM(nn.Module):
    def __init__(s, d=32, heads=2, maxlen=256):
        super().__init__()
        s.h = heads
        s.emb, s.pos = nn.Embedding(V, d), nn.Embedding(maxlen, d)
        s.qkv, s.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.f1, s.f2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        s.ln1, s.ln2, s.ln3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        s.head, s.v = nn.Linear(d, V), nn.Linear(d, 1)

    def forward(s, ids, am):
        B, S = ids.shape
        p = (am.cumsum(1) - 1).clamp(min=0)
        x = s.emb(ids) + s.pos(p)
        q, k, v = s.qkv(s.ln1(x)).chunk(3, -1)
        sp = lambda t: t.view(B, S, s.h, -1).transpose(1, 2)
        m = torch.ones(S, S, dtype=torch.bool).tril() & am[:, None, None, :].bool() | torch.eye(S, dtype=torch.bool)
        a = F.scaled_dot_product_attention(sp(q), sp(k), sp(v), attn_mask=m)
        x = x + s.o(a.transpose(1, 2).reshape(B, S, -1))
        x = x + s.f2(F.gelu(s.f1(s.ln2(x))))
        x = s.ln3(x)
        return s.head(x), s.v(x).squeeze(-1)


def make(seed, eosb=0.3):
    torch.manual_seed(seed)
    m = LM()
    with torch.no_grad():
        m.head.weight.mul_(3)
        m.head.bias[EOS] += eosb
        m.head.bias[PAD] = -9
        m.v.weight.mul_(2)
    return m


def prompts(n, P, g):
    ids, am = torch.zeros(n, P, dtype=torch.long), torch.zeros(n, P, dtype=torch.long)
    for i in range(n):
        L = int(torch.randint(3, P + 1, (1,), generator=g))
        ids[i, P - L :] = torch.randint(3, V, (L,), generator=g)
        am[i, P - L :] = 1
    return ids, am


@torch.no_grad()
def sample(eng, pid, pam, T, g, temp=1.0, bf16=False, tool=None):
    """eng samples (bfloat16 copy if bf16). tool: probability that a tool block of 3 tokens is put in. -> ids, response am, gen logps, is_policy mask, turn"""
    if bf16:
        eng = copy.deepcopy(eng).to(torch.bfloat16)
    B, P = pid.shape
    ids, am = pid.clone(), pam.clone()
    done = torch.zeros(B, dtype=torch.bool)
    lps, pol, turns = [], [], []
    inj = torch.zeros(B, dtype=torch.long)
    turn = torch.zeros(B, dtype=torch.long)
    for t in range(T):
        l, _ = eng(ids, am)
        lp = F.log_softmax(l[:, -1].float() / temp, -1)
        nt = torch.multinomial(lp.exp(), 1, generator=g).squeeze(1)
        if tool:
            r = torch.randint(3, V, (B,), generator=g)
            tk = inj > 0
            nt = torch.where(tk, r, nt)
            inj = (inj - 1).clamp(min=0)
            turn = turn + (tk & (inj == 0)).long()
        else:
            tk = torch.zeros(B, dtype=torch.bool)
        alive = ~done
        nt = torch.where(alive, nt, torch.full_like(nt, PAD))
        lps.append(lp.gather(1, nt[:, None]).squeeze(1) * alive)
        pol.append(alive & ~tk)
        turns.append(turn.clone())
        ids = torch.cat([ids, nt[:, None]], 1)
        am = torch.cat([am, alive.long()[:, None]], 1)
        if tool:
            inj = torch.where(alive & (nt == 2) & ~tk & (turn < 3), torch.full_like(inj, 3), inj)
        done = done | ((nt == EOS) & ~tk)
    return ids, am, torch.stack(lps, 1), torch.stack(pol, 1), torch.stack(turns, 1)


def score_fwd(m, ids, am, T, temp=1.0, bf16=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        l, v = m(ids, am)
    l, v = l.float(), v.float()
    P = ids.shape[1] - T
    l = l[:, P - 1 : -1] / temp
    lsm = F.log_softmax(l, -1)
    lp = lsm.gather(-1, ids[:, P:, None]).squeeze(-1)
    return lp, -(lsm.exp() * lsm).sum(-1), v[:, P - 1 : -1]


def r_even(resp, m):
    return ((resp % 2 == 0) & m.bool()).sum(1).float() / m.sum(1).clamp(min=1) * 2


def r_len(resp, m):
    return (m.sum(1) < 14).float()


def r_big(resp, m):
    return ((resp > V // 2) & m.bool()).sum(1).float().clamp(max=8) / 4


def dump(out, meta, tensors, tag):
    os.makedirs(out, exist_ok=True)
    t = {k: x.detach().contiguous().clone() for k, x in tensors.items() if x is not None}
    save_file(t, f"{out}/{tag}.safetensors", {"plumbline": json.dumps(dict(schema=2) | meta)})


def differs(a, b):
    fs = sorted(set(os.listdir(a)) & set(os.listdir(b)))
    d = {}
    for f in fs:
        x, y = load_file(f"{a}/{f}"), load_file(f"{b}/{f}")
        for k in x:
            if k in y and x[k].shape == y[k].shape:
                e = (x[k].double() - y[k].double()).abs()
                s = y[k].double().abs().nan_to_num(0).max() + 1e-9
                if (v := float(e.nan_to_num(0).max() / s)) > 1e-3:
                    d[k] = max(d.get(k, 0), round(v, 4))
    return d


def main(NAME, run, H, B, declared):
    out, only = sys.argv[1], sys.argv[2:]
    cases = {k: (k, "", "", "") for k in H} | {k: v for k, v in B.items()}
    for case, (h, bug, desc, legal) in cases.items():
        if only and case not in only and not any(case.startswith(o) for o in only):
            continue
        d = f"{out}/{NAME}-{case}"
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(d + "/run")
        run(H[h], bug, d + "/run", NAME + "-" + h)
        e = dict(program=NAME, healthy=not bug, bug=bug, describes=desc, sealed=False, declared=declared(H[h]))
        if bug:
            e["legal"] = legal
        json.dump(e, open(d + "/expected.json", "w"), indent=1)
        if bug:
            x = differs(d + "/run", f"{out}/{NAME}-{h}/run")
            print(case, dict(list(x.items())[:7]) if x else "SAME -> dropped")
            if not x:
                shutil.rmtree(d)
