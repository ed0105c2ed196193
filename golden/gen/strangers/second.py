"""The second family: another model, another engine, another way to lay rows out, and the loops of loops/second.py.

Rows are compact (prompt, response, padding behind); a dump shows them by response columns with the prompt padded on the left, or whole,
shifted or unshifted, or several in one row.
"""

import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

from source import SOURCE, edited
from writer import write

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loops", "second.py")
STOP, TOOL = 1, 2
LOOPS = {
    "tokens": dict(gamma=0.97, lam=0.9, clip=0.17, vclip=0.2, vf=0.3, ent=0.003, normalise=True),
    "nano": dict(samples=4),
    "mixed": dict(
        center="mean",
        scale="group",
        ddof=1,
        eps=1e-5,
        kind="ppo",
        low=0.17,
        high=0.23,
        dual=None,
        tau=(1.0, 1.05),
        kl="k3",
        beta=0.0,
        bound=None,
        place="none",
        agg="token",
        length=24.0,
        ent=0.0,
        tis="",
        rule="cap",
        low_w=0.5,
        high_w=2.0,
    ),
    "packed": dict(samples=4, eps=1e-6, low=0.2, high=0.25, beta=0.004, agg="token"),
    "ranks": dict(kl="k1", beta=0.03, gamma=1.0, lam=0.95, whiten=True, low=0.2, high=0.2, dual=3.0, vclip=0.4, vf=0.7, ent=0.001),
}


class Net(nn.Module):
    """Causal mixing by a kernel over five places and one attention; row padding lies behind and is never seen."""

    def __init__(self, seed, vocab=64, d=24, mean_length=14.0):
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, d), nn.Embedding(160, d)
        self.mix, self.qkv, self.up, self.down = nn.Conv1d(d, d, 5), nn.Linear(d, 3 * d), nn.Linear(d, 3 * d), nn.Linear(3 * d, d)
        self.norm, self.head, self.value = nn.LayerNorm(d), nn.Linear(d, vocab), nn.Linear(d, 1)
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for n, p in self.named_parameters():
                if p.dim() > 1:
                    p.copy_(torch.randn(p.shape, generator=g) * (1.0 if n.startswith("token") else 0.2 if n.startswith("place") else 1 / p[0].numel() ** 0.5))
            self.head.weight.mul_(1.4)
            self.head.weight[STOP] *= 0.2
            self.head.bias[STOP] = torch.tensor(vocab * 2.66 / mean_length).log()
            self.head.bias[0] = -25.0

    def forward(self, ids):
        x = self.token(ids) + self.place.weight[: ids.shape[1]]
        x = x + torch.tanh(self.mix(F.pad(x.transpose(1, 2), (4, 0))).transpose(1, 2))
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.norm(x + self.down(F.gelu(self.up(x))))
        return self.head(x), self.value(x).squeeze(-1)


def score(net, dtype, ids, temperature=1.0):
    """Log-probs of ids[:, 1:], entropies there, values of all states. mixed: bfloat16 forward, float32 from the logits on."""
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed"):
        z, v = net(ids)
    if dtype == "mixed":
        z, v = z.float(), v.float()
    z = z[:, :-1] / temperature
    logs = F.log_softmax(z, -1)
    return logs.gather(-1, ids[:, 1:, None]).squeeze(-1), -(logs.exp() * logs).sum(-1), v


@torch.no_grad()
def sample(net, w, seed):
    """An engine in bfloat16 that reads the row anew for every token. mask: own tokens; live: all tokens of the row."""
    engine, g = copy.deepcopy(net).bfloat16(), torch.Generator().manual_seed(seed)
    G, T, P, V = w.get("samples", 4), w.get("T", 24), w.get("P", 5), 64
    B = w.get("prompts", 4) * G
    group = torch.arange(B) // G
    plen = torch.randint(1, P + 1, (B // G,), generator=g)[group]
    if w["loop"] == "tokens":
        plen = torch.ones_like(plen)
        P = 1
    text = torch.randint(4, V, (B // G, P), generator=g)[group]
    ids = torch.zeros(B, P + T, dtype=torch.long)
    ids[:, :P] = torch.where(torch.arange(P) < plen[:, None], text, 0)
    live, own, gen = (torch.zeros(B, P + T) for _ in range(3))
    live[:, :P] = (torch.arange(P) < plen[:, None]).float()
    rows, left, dead = torch.arange(B), torch.zeros(B, dtype=torch.long), torch.zeros(B, dtype=torch.bool)
    for t in range(T):
        at = plen + t
        z = engine(ids)[0][rows, at - 1].float() / w.get("temperature", 1.0)
        logs = F.log_softmax(z, -1)
        draw = torch.multinomial(logs.exp(), 1, generator=g).squeeze(1)
        tool = left > 0
        token = torch.where(tool, 8 + (at + group) % 6, draw)
        ids[rows, at] = torch.where(dead, 0, token)
        live[rows, at] = (~dead).float()
        own[rows, at] = (~dead & ~tool).float()
        gen[rows, at] = torch.where(dead | tool, torch.tensor(0.0), logs[rows, token])
        left = (left - 1).clamp(min=0)
        if w.get("tools"):
            left = torch.where(~tool & (token % 9 == 4) & (t < T - 5), 2 + group % 2, left)
        if w["loop"] != "tokens":
            dead = dead | (~tool & (token == STOP))
    good = ((ids % 4 == 1) * own).sum(1) / own.sum(1)
    value = {"share": good + 0.01 * own.sum(1), "binary": (good > 0.25).float(), "offset": 3.0 + good}[w.get("reward", "share")]
    return dict(ids=ids, live=live, own=own, gen=gen, group=group, plen=plen, score=value.float(), P=P, T=T)


def columns(plen, T):
    return plen[:, None] + torch.arange(T)[None]


def declare(loop, o, w):
    """What the author of such a loop can say of it in the format's own words."""
    d = {"logp.temperature": w.get("temperature", 1.0), "entropy.coef": o.get("ent", 0.0), "optim.epochs": w.get("epochs", 1)}
    if loop in ("nano", "mixed", "packed"):
        d |= {"adv.kind": "group", "adv.group_by": "uid"}
    if loop == "nano":
        return d | {
            "adv.center": "mean",
            "adv.scale": "none",
            "loss.kind": "reinforce",
            "kl.beta": 0.0,
            "kl.place": "none",
            "tis.level": "none",
            "agg.kind": "token",
            "agg.denominator": "micro",
            "agg.div_ga": True,
            "mean.eps": 0,
        }
    d |= {"ratio.old": "stored", "ratio.level": "token", "loss.kind": "ppo", "clip.delta": None, "mean.eps": 0}
    if loop == "tokens":
        d |= {
            "adv.kind": "gae",
            "gae.gamma": o["gamma"],
            "gae.lambda": o["lam"],
            "gae.hole": "none",
            "whiten.scope": "minibatch" if o["normalise"] else "none",
            "returns.before_whiten": True,
            "kl.beta": 0.0,
            "kl.place": "none",
            "tis.level": "none",
            "ratio.log_clamp": None,
            "clip.low": o["clip"],
            "clip.high": o["clip"],
            "clip.dual": None,
            "value.clip": o["vclip"],
            "value.coef": o["vf"],
            "value.factor": 0.5,
            "agg.kind": "token",
            "agg.denominator": "micro",
            "agg.div_ga": False,
            "metric.clip_frac": "outside",
        }
        if o["normalise"]:
            d |= {"whiten.mask": "none", "whiten.ddof": 1, "whiten.eps_place": "add_std", "whiten.eps": 1e-8, "whiten.shift_mean": "true"}
        return d
    if loop == "ranks":
        d |= {
            "adv.kind": "gae",
            "gae.gamma": o["gamma"],
            "gae.lambda": o["lam"],
            "gae.hole": "carry",
            "whiten.scope": "global" if o["whiten"] else "none",
            "score.index": "last_response",
            "eos.rule": "none",
            "reward.clip": "none",
            "rewards.whiten": "no",
            "returns.before_whiten": True,
            "returns.remask": "false",
            "kl.kind": o["kl"],
            "kl.beta": o["beta"],
            "kl.place": "token_reward",
            "kl.clamp_in": None,
            "kl.clamp_out": None,
            "tis.level": "none",
            "ratio.log_clamp": 20,
            "clip.low": o["low"],
            "clip.high": o["high"],
            "clip.dual": o["dual"],
            "value.clip": o["vclip"],
            "value.coef": o["vf"],
            "value.factor": 0.5,
            "value.mask": "response",
            "agg.kind": "token",
            "agg.denominator": "global",
            "agg.div_ga": False,
        }
        if o["whiten"]:
            d |= {
                "whiten.mask": "response",
                "whiten.ddof": 1,
                "whiten.eps_place": "inside_sqrt",
                "whiten.eps": 1e-8,
                "whiten.shift_mean": "true",
                "whiten.remask": True,
            }
        return d
    agg = {"token": "token", "pass": "token", "rows": "seq_mean_token_mean", "sums": "seq_mean_token_sum", "length": "seq_sum_const"}
    d |= {
        "agg.kind": agg[o["agg"]],
        "agg.denominator": "micro" if o["agg"] == "pass" else "global",
        "agg.div_ga": o["agg"] == "pass",
        "clip.low": o["low"],
        "clip.high": o["high"],
        "clip.dual": o.get("dual"),
        "kl.beta": o["beta"],
        "ratio.log_clamp": None,
        "kl.clamp_out": None,
        "adv.center": "mean",
        "adv.scale": "group_std",
        "adv.ddof": 1,
        "adv.eps": o["eps"],
        "adv.zero_std": "divide_eps",
        "tis.level": "none",
    }
    if loop == "packed":
        return d | {"kl.kind": "k3", "kl.place": "loss", "kl.grad": "naive", "kl.agg": "same", "kl.clamp_in": None}
    d |= {"adv.center": o["center"], "adv.scale": {"none": "none", "group": "group_std", "batch": "batch_std"}[o["scale"]], "adv.ddof": o["ddof"]}
    if o["scale"] == "batch":
        d["adv.std_of"] = "rewards"
    d["kl.place"] = {"none": "none", "loss": "loss", "before": "sequence_reward_before_baseline"}[o["place"]]
    if o["place"] != "none":
        d |= {"kl.kind": o["kl"], "kl.clamp_in": o["bound"], "kl.reduce": "token" if o["place"] == "loss" else "sequence_sum"}
    if o["place"] == "loss":
        d |= {"kl.grad": "naive", "kl.agg": "same", "kl.under_is_weight": "outside"}
    if o["kind"] == "sequence":
        d |= {"ratio.level": "seq_mean", "ratio.len_eps": 0, "ratio.seq_log_max": None}
    if o["kind"] == "cispo":
        d |= {"loss.kind": "cispo", "clip.high_is_absolute": False}
    if o["kind"] == "soft":
        d |= {"loss.kind": "sapo", "sapo.tau_pos": o["tau"][0], "sapo.tau_neg": o["tau"][1]}
    if o["agg"] == "length":
        d |= {"agg.div_batch": True, "loss_scale_factor": o["length"]}
    if o["agg"] in ("rows", "sums", "length"):
        d |= {"agg.empty_rows": "counted"}
    if o["agg"] == "rows":
        d |= {"agg.len_eps": 0}
    if o["tis"]:
        d |= {
            "tis.level": "token" if o["tis"] == "token" else "seq_geo",
            "tis.rule": {"cap": "truncate_upper", "clamp": "clamp", "drop": "zero_outside"}[o["rule"]],
            "tis.gate": "ratio",
            "tis.high": o["high_w"],
            "tis.low": None if o["rule"] == "cap" else o["low_w"],
            "tis.log_clamp": None,
            "tis.normalize": False,
            "tis.applies_to_kl": False,
        }
    d["metric.clip_frac"] = "outside"
    return d


def pack(x, lp, ent, width):
    """Sequences one behind the other in rows of this width, entry s of the token behind it; segments are numbered from 1."""
    n = (x["live"].sum(1) - 1).long()
    at, rows = [], [[]]
    used = 0
    for i, k in enumerate(n.tolist()):
        if used + k > width:
            rows.append([])
            used = 0
        rows[-1].append((i, used, k))
        used += k
    out = {key: torch.zeros(len(rows), width, dtype=t.dtype) for key, t in x["cells"].items()}
    seg = torch.zeros(len(rows), width, dtype=torch.long)
    adv = torch.zeros(len(rows), width)
    flat = torch.zeros(len(rows), width, dtype=torch.long)
    for r, row in enumerate(rows):
        for i, s, k in row:
            for key, t in x["cells"].items():
                out[key][r, s : s + k] = t[i, :k]
            seg[r, s : s + k] = i + 1
            adv[r, s : s + k] = x["adv"][i]
            flat[r, s : s + k] = i * lp.shape[1] + torch.arange(k) + 1
    pick = lambda t: torch.cat([torch.zeros(1, dtype=t.dtype), t.flatten()])[flat.clamp(min=0)]
    return dict(out, segment=seg, advantages=adv), pick(lp), pick(ent)


def run(case, folder):
    w, loop = case.cfg, case.cfg["loop"]
    text = edited(open(TEXT, encoding="utf-8").read(), case.edits, "second")
    ns = {}
    exec(compile(text, SOURCE + "second", "exec"), ns)
    o = {**LOOPS[loop], **w.get("o", {})}
    calls = w.get("calls", {})
    net = Net(case.seed, mean_length=w.get("mean_length", 14.0))
    ref = copy.deepcopy(net)
    g = torch.Generator().manual_seed(case.seed + 1)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(torch.randn(p.shape, generator=g) * w.get("ref_distance", 0.03) * p.abs().mean())
    if case.dtype == "bf16":
        net, ref = net.bfloat16(), ref.bfloat16()
    optimizer = torch.optim.AdamW(net.parameters(), lr=w.get("lr", 3e-3))
    critic, packed = loop in ("tokens", "ranks"), loop == "packed"
    layout = w.get("align", "response")
    temperature = w.get("temperature", 1.0)
    epochs, minis, micros, ranks, steps = (w.get(k, d) for k, d in (("epochs", 1), ("minis", 1), ("micros", 1), ("ranks", 1), ("steps", 4)))
    step = rollout = 0
    past = [copy.deepcopy(net)]
    while step < steps:
        engine = past[0] if w.get("stale_engine") else past[max(0, len(past) - 1 - w.get("lag", 0))]
        r = sample(engine, dict(w, loop=loop), case.seed * 100 + rollout)
        ids, P, T = r["ids"], r["P"], r["T"]
        cols = columns(r["plen"], T)
        take = lambda t: t.gather(1, (cols - 1).clamp(max=t.shape[1] - 1))  # of tensors of ids[:, 1:]
        whole = packed or layout != "response"
        cut = (lambda t: t) if whole else take
        said = lambda t: cut(t[:, 1:])  # of tensors of ids
        with torch.no_grad():
            old, _, values = score(net, case.dtype, ids, calls.get("old", temperature))
            there, _, _ = score(ref, case.dtype, ids, calls.get("ref", temperature))
        b = dict(
            ids=ids,
            live=r["live"],
            mask=said(r["own"]),
            old=cut(old),
            ref=cut(there),
            gen=said(r["gen"]),
            score=r["score"],
            group=r["group"] + 1000 * rollout,
            plen=r["plen"],
            cols=cols,
            sample=torch.arange(len(ids)) + rollout * len(ids),
        )
        if critic:
            b["values"] = cut(values[:, :-1])
            if loop == "tokens":
                b["next_values"], b["dones"] = values[:, -1], said((ids == STOP).float())
                b["rewards"] = said((ids % 4 == 1).float()) - 0.25
        ns[loop + "_prepare"](b, o)
        for e in range(epochs):
            order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(case.seed + 17 * rollout + e))
            if w.get("ordered"):
                order = torch.arange(len(ids))
            for mini in order.view(minis, -1):
                if step >= steps:
                    break
                optimizer.zero_grad()
                total = dict(tokens=b["mask"][mini].sum().item(), rows=float(len(mini)), passes=float(micros))
                for k in range(ranks):
                    for i, sel in enumerate(mini.view(ranks, micros, -1)[k]):
                        x = {key: t[sel] for key, t in b.items()}
                        lp, ent, v = score(net, case.dtype, x["ids"], calls.get("new", temperature))
                        if not whole:
                            here = (x["cols"] - 1).clamp(max=lp.shape[1] - 1)
                            lp, ent = lp.gather(1, here), ent.gather(1, here)
                        if critic:
                            v = v[:, :-1].gather(1, here)
                        if packed:
                            x["cells"] = dict(mask=x["mask"], old=x["old"], ref=x["ref"], gen=x["gen"])
                            wide, lp, ent = pack(x, lp, ent, w.get("width", 72))
                            x = dict(wide, sample=None)
                        parts, logs = ns[loop + "_loss"](x, lp, ent, v, o, dict(total, tokens=total["tokens"] / ranks))
                        loss = parts["loss"]
                        t = dict(
                            response_mask=x["mask"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            entropy=ent,
                            segment_ids=x.get("segment"),
                            is_weights=x.get("w"),
                            **{key: p for key, p in parts.items()},
                        )
                        if o.get("beta"):
                            t["logp_ref"] = x["ref"]
                        if packed:  # a number for each sequence, in the order of the segments
                            t.update(scores=b["score"][sel], group_id=b["group"][sel])
                        else:
                            t.setdefault("advantages", x["adv"])
                            t["sample_id"] = x["sample"].to(torch.int32)
                            if loop != "tokens":
                                t.update(group_id=x["group"], prompt_len=x["plen"], scores=x["score"])
                            n, cells = len(sel), torch.arange(P)[None]
                            if whole:
                                t.update(input_ids=x["ids"], attention_mask=x["live"])
                            else:
                                lead = (cells - (P - x["plen"][:, None])).clamp(min=0)
                                prompt = torch.where(cells >= P - x["plen"][:, None], x["ids"].gather(1, lead), torch.tensor(0))
                                answer = x["ids"].gather(1, x["cols"])
                                shown = torch.cat([(cells >= P - x["plen"][:, None]).float(), x["live"].gather(1, x["cols"])], 1)
                                t.update(input_ids=torch.cat([prompt, answer], 1), attention_mask=shown, response_ids=answer)
                            if loop == "nano":
                                t.pop("logp_old")
                        if layout == "unshifted":
                            front = lambda a: torch.cat([torch.zeros(len(a), 1, dtype=a.dtype), a], 1)
                            t = {key: front(a) if a is not None and a.dim() == 2 and a.shape[1] == lp.shape[1] else a for key, a in t.items()}
                        (d,) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
                        t["dlogp"] = torch.cat([torch.zeros(len(d), 1, dtype=d.dtype), d], 1) if layout == "unshifted" else d
                        if critic:
                            (t["dvalues"],) = torch.autograd.grad(loss, v, retain_graph=True, materialize_grads=True)
                            t.update(values=x["values"], values_new=v, token_rewards=x["rewards"], returns=x["returns"])
                            if loop == "tokens":
                                t.update(dones=x["dones"], next_values=x["next_values"])
                            else:
                                t["kl"] = x["kl"]
                        (loss / ranks).backward()  # as DDP, the mean over ranks
                        opts = declare(loop, o, w)
                        if opts["agg.denominator"] == "global":
                            opts["num_items_in_batch"] = total["tokens"]
                        said_profile = {"profile": w["profile"]} if "profile" in w else {}
                        meta = dict(
                            **said_profile,
                            framework="in-house",
                            algorithm="ppo" if critic else "grpo",
                            run=case.id,
                            step=step + 1,
                            rank=k,
                            world_size=ranks,
                            micro_batch=i,
                            micro_batches=micros,
                            options=opts,
                            scalars={key: a.item() for key, a in logs.items()} if w.get("scalars") else {},
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                            align=layout if not packed else "response",
                        )
                        write(folder, t, meta, schema=2)
                optimizer.step()
                step += 1
        past.append(copy.deepcopy(net))
        rollout += 1
