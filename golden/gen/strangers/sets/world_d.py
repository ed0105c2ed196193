"""helpers of the programs d*: a tiny language model, sampling, a writer of dumps, and the cases"""

import json, os, shutil, sys, copy
import torch, torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file, load_file

torch.set_num_threads(1)
V, EOS, PAD = 16, 1, 0


class LM(nn.Module):
    def __init__(self, H=20, v=V):
        super().__init__()
        self.emb = nn.Embedding(v, H, padding_idx=PAD)
        self.gru = nn.GRU(H, H, batch_first=True, bias=False)
        self.head = nn.Linear(H, v)
        with torch.no_grad():
            self.head.weight.mul_(2.5)
            self.head.bias[PAD] = -20.0
            self.head.bias[EOS] += 0.3

    def forward(self, ids):
        return self.head(self.gru(self.emb(ids))[0])


def engine_copy(m):
    e = copy.deepcopy(m)
    with torch.no_grad():
        for p in e.parameters():
            p.copy_(p.bfloat16().float())
    return e


@torch.no_grad()
def sample(m, prompts, T, temp, g):
    """prompts [B, P], padded on the left; returns ids [B, T] with EOS and padding, the engine's log-probs and the mask"""
    o, h = m.gru(m.emb(prompts))
    x = m.head(o[:, -1])
    ids, lps = [], []
    alive = torch.ones(len(prompts), dtype=torch.bool)
    mask = []
    for _ in range(T):
        lp = F.log_softmax(x / temp, -1)
        a = torch.multinomial(lp.exp(), 1, generator=g)[:, 0]
        a = torch.where(alive, a, torch.full_like(a, PAD))
        ids.append(a)
        lps.append(torch.where(alive, lp.gather(1, a[:, None])[:, 0], torch.zeros(len(a))))
        mask.append(alive.clone())
        alive = alive & (a != EOS)
        o, h = m.gru(m.emb(a)[:, None], h)
        x = m.head(o[:, 0])
    return torch.stack(ids, 1), torch.stack(lps, 1), torch.stack(mask, 1)


def make_prompts(n, P, g):
    ids = torch.randint(2, V, (n, P), generator=g)
    for i in range(n):
        k = int(torch.randint(0, P - 1, (1,), generator=g))
        ids[i, :k] = PAD
    return ids


def reward_fns(ids, mask, g):
    n = mask.sum(1).clamp(min=1).float()
    r1 = 3 * ((ids % 3 == 0) & mask).sum(1) / n + 0.3 * torch.randn(len(ids), generator=g)
    r2 = ((ids == EOS) & mask).any(1).float() - 0.02 * n
    return torch.stack([r1, r2], 1)


class Dump:
    def __init__(self, folder, **meta):
        self.folder, self.meta = folder, meta
        os.makedirs(folder, exist_ok=True)

    def __call__(self, tensors, step, rank=0, mb=0, **meta):
        t = {k: x.detach().cpu().contiguous().clone() for k, x in tensors.items() if x is not None}
        m = dict(schema=2, run="run", step=step, rank=rank, micro_batch=mb) | self.meta | meta
        save_file(t, f"{self.folder}/step_{step:06d}_rank_{rank}_mb_{mb}.safetensors", {"plumbline": json.dumps(m)})


def main(name, file, H, B):
    """H: case -> (settings, flags); B: [(case, healthy case, old text, new text, sentence)]"""
    text = open(file).read().split("# ==== cases")[0]
    out, only = sys.argv[1], sys.argv[2:]
    jobs = [(c, None, c) for c in H] + [(b[0], b, b[1]) for b in B]
    for case, bug, base in jobs:
        if only and case not in only and not (only == ["h"] and bug is None):
            continue
        src = text
        if bug:
            old, new = (bug[2], bug[3]) if isinstance(bug[2], list) else ([bug[2]], [bug[3]])
            for o, n in zip(old, new):
                assert src.count(o) == 1, (case, src.count(o), o)
                src = src.replace(o, n)
        top = f"{out}/{name}-{case}"
        shutil.rmtree(top, ignore_errors=True)
        ns = {"__name__": "prog"}
        exec(compile(src, f"{case}", "exec"), ns)
        torch.manual_seed(H[base][0].get("seed", 0))
        ns["train"](dict(H[base][0]), f"{top}/run")
        json.dump(
            dict(
                program=name,
                healthy=bug is None,
                bug="" if bug is None else case[2:],
                describes="" if bug is None else bug[4],
                sealed=False,
                declared=H[base][1],
            ),
            open(f"{top}/expected.json", "w"),
        )
        line = case
        if bug and os.path.isdir(f"{out}/{name}-{base}/run"):
            worst = 0, ""
            for f in sorted(os.listdir(f"{top}/run")):
                try:
                    a, b = load_file(f"{top}/run/{f}"), load_file(f"{out}/{name}-{base}/run/{f}")
                except Exception:
                    worst = 9, "files"
                    continue
                for k in a:
                    if a[k].shape != b[k].shape:
                        worst = max(worst, (9, k))
                        continue
                    d = (a[k].double() - b[k].double()).abs().max() / (b[k].double().abs().max() + 1e-12) if a[k].numel() else 0
                    worst = max(worst, (float(d), k + " " + f))
            line += f"  differs {worst[0]:.3g} {worst[1]}"
            if not worst[0] > 1e-4:
                line += "  DROPPED"
                shutil.rmtree(top)
        print(line, flush=True)
