"""A tool agent of several turns on two ranks. agent: PPO with a value head, rewards at the ends of turns, Adam as CleanRL has it, with the optimiser's
steps dumped; reinforce: REINFORCE++ with KL in the rewards, a global count of tokens; long: 64 rows of 256 tokens, log-probs in bfloat16, sums over a
constant length.   python v4_agent.py CASES [case…]"""
import copy, sys
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from world_v import Bug, Dumper, main, read

V, CALL, EOS, PAD = 28, 25, 26, 27


class Net(nn.Module):
    def __init__(self, width, sharp):
        super().__init__()
        self.tok, self.rnn = nn.Embedding(V, width), nn.GRU(width, width, batch_first=True)
        self.head, self.value = nn.Linear(width, V - 1), nn.Linear(width, 1)  # padding is never said
        nn.init.normal_(self.head.weight, std=sharp * width ** -0.5)

    def forward(self, ids):
        h = self.rnn(self.tok(ids))[0]
        return self.head(h), self.value(h).squeeze(-1)


# ------------------------------------------------------------------ episodes
@torch.no_grad()
def episodes(engine, c, gen, index):
    """Prompt, then turns: the agent's tokens up to CALL, EOS or the limit, then the tool's answer; the columns are right-padded."""
    G, n, P, T = c["group"], c["rows"], c["prompt"], c["length"]
    prompts = torch.randint(0, CALL, (n // G, P), generator=gen).repeat_interleave(G, 0)
    out, filled, mask = torch.full((n, T), PAD), torch.zeros(n, T), torch.zeros(n, T)
    gen_lp, rewards = torch.zeros(n, T), torch.zeros(n, T)
    told, said, turn, over = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.bool)
    queue = [[] for _ in range(n)]
    x, h = engine.rnn(engine.tok(prompts))
    x = x[:, -1]
    for t in range(T):
        logits = engine.head(x)
        if c["low"]:
            logits = logits.bfloat16().float()
        lp = F.log_softmax(logits / c["temperature"], -1)
        s = torch.multinomial(lp.exp(), 1, generator=gen).squeeze(1)
        for i in range(n):
            if over[i]:
                continue
            filled[i, t] = 1
            if queue[i]:
                out[i, t] = queue[i].pop(0)
                continue
            a = int(s[i])
            out[i, t], mask[i, t], gen_lp[i, t] = a, 1, lp[i, a]
            said[i] += 1
            ends = a == CALL or (said[i] >= c["turn"] and c["tools"])
            if a == EOS:
                over[i] = True
            if (ends or over[i]) and c["tools"]:
                spoken = [int(v) for v, m in zip(out[i, t - int(said[i]) + 1:t + 1], mask[i, t - int(said[i]) + 1:t + 1])]
                rewards[i, t] = c["reward"](spoken, prompts[i].tolist(), int(turn[i]), bool(over[i]))
                turn[i], said[i] = turn[i] + 1, 0
                if turn[i] >= c["turns"]:
                    over[i] = True
                elif not over[i]:
                    queue[i] = [(sum(spoken) + j * 7 + int(turn[i])) % CALL for j in range(1 + sum(spoken) % 3)]
        x, h = engine.rnn(engine.tok(out[:, t:t + 1]), h)
        x = x[:, 0]
    if not c["tools"]:
        last = mask.sum(1).long() - 1
        for i in range(n):
            rewards[i, last[i]] = c["reward"](out[i, :last[i] + 1].tolist(), prompts[i].tolist(), 0, bool(over[i]))
    return dict(ids=torch.cat([prompts, out], 1), response=out, filled=filled, mask=mask, gen=gen_lp, token_rewards=rewards, scores=rewards.sum(1), over=over,
                sample=torch.arange(n) + index * n, group=torch.arange(n) // G + index * n)


def ask(spoken, prompt, turn, over):
    return 0.5 * float(spoken[-1] == CALL and len(spoken) < 6) - 0.1 * turn + 0.7 * float(over and sum(spoken) % 2 == prompt[0] % 2)


def finish(spoken, prompt, turn, over):
    return float(over) * (1.0 if len(spoken) > 2 else 0.3) if turn else 0.25 * float(prompt[-1] % 4 == spoken[0] % 4)


def spread(spoken, prompt, turn, over):
    return len(set(spoken[:40])) / 20 - 0.5 * float(not over) + 0.3 * spoken.count(prompt[0]) / len(spoken)


# ------------------------------------------------------------------ advantages
def score(net, ids, c):
    """Log-probs and entropies of the response, values before each of its tokens."""
    P = c["prompt"]
    logits, values = net(ids)
    logits = logits[:, P - 1:-1]
    if c["bf16"]:
        logits = logits.bfloat16()
    told = F.log_softmax(logits / c["temperature"], -1)
    logp = told.gather(-1, ids[:, P:].clamp(max=V - 2).unsqueeze(-1)).squeeze(-1)
    return logp, -(told.exp() * told).sum(-1), values[:, P - 1:-1]


def gae(rewards, values, mask, c):
    """Over the agent's tokens alone: what the tool says carries the next value and advantage over."""
    n, T = rewards.shape
    nextv, last, out = torch.zeros(n), torch.zeros(n), []
    for t in reversed(range(T)):
        m = mask[:, t]
        delta = rewards[:, t] + c["gamma"] * nextv - values[:, t]
        new = delta + c["gamma"] * c["lam"] * last
        nextv = nextv * (1 - m) + values[:, t] * m
        last = last * (1 - m) + new * m
        out.append(last)
    return torch.stack(out[::-1], 1)


def to_go(rewards, mask):
    out, r = [], torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        r = r + rewards[:, t]
        out.append(r)
    return torch.stack(out[::-1], 1) * mask


def statistics(shards):
    """Mean and variance of the advantages of the tokens of all ranks, as two all-reduces."""
    count = sum(s["mask"].sum() for s in shards)
    mean = sum((s["advantages"] * s["mask"]).sum() for s in shards) / count
    var = sum(((s["advantages"] - mean) ** 2 * s["mask"]).sum() for s in shards) / (count - 1)
    return mean, var


def whiten(shards, kept):
    mean, var = statistics(shards)
    for s in shards:
        s["advantages"] = (s["advantages"] - mean) * torch.rsqrt(var + 1e-8) * s["mask"]
    kept["stats"] = mean, var


def prepare(net, ref, e, c):
    with torch.no_grad():
        e["old"], _, e["values"] = score(net, e["ids"], c)
        if c["kl"]:
            e["ref"] = score(ref, e["ids"], c)[0]
            e["kl"] = e["old"] - e["ref"]
            e["token_rewards"] = e["token_rewards"] - c["kl"] * e["kl"] * e["mask"]
    if c["kind"] == "agent":
        e["advantages"] = gae(e["token_rewards"], e["values"], e["mask"], c)
        e["returns"] = e["advantages"] + e["values"]
    elif c["kind"] == "reinforce":
        e["advantages"] = to_go(e["token_rewards"], e["mask"])
    else:
        g = e["scores"].view(-1, c["group"])
        e["advantages"] = (g - g.mean(1, keepdim=True)).view(-1)


# ------------------------------------------------------------------ losses
def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum()


def losses(net, b, c, tokens):
    logp, entropy, values = score(net, b["ids"], c)
    adv = b["advantages"] if b["advantages"].dim() == 2 else b["advantages"].unsqueeze(1)
    diff = logp.float() - b["old"].float()
    ratio = diff.exp()
    token_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - c["clip_low"], 1 + c["clip_high"]))
    mask, out = b["mask"], dict(logp=logp, entropy=entropy, values_new=values, token_loss=token_loss)
    if c["kind"] == "agent":
        pg = masked_mean(token_loss, mask)
        near = b["values"] + (values - b["values"]).clamp(-c["clip_value"], c["clip_value"])
        vf = 0.5 * masked_mean(torch.max((values - b["returns"]) ** 2, (near - b["returns"]) ** 2), mask)
        ent = masked_mean(entropy, mask)
        out.update(pg_loss=pg, value_loss=vf, entropy_loss=ent, loss=pg - c["ent_coef"] * ent + c["vf_coef"] * vf)
    elif c["kind"] == "reinforce":
        pg = (token_loss * mask).sum() / tokens * c["world"]
        out.update(pg_loss=pg, loss=pg)
    else:
        longest = c["length"]
        pg = ((token_loss * mask).sum(1) / longest).mean()
        out.update(pg_loss=pg, loss=pg)
    return out


# ------------------------------------------------------------------ training
def reduce_gradients(nets):
    """The mean over the ranks, as DDP leaves it on each."""
    for ps in zip(*(n.parameters() for n in nets)):
        if ps[0].grad is None:
            continue
        g = sum(p.grad for p in ps) / len(ps)
        for p in ps:
            p.grad = g.clone()


def train(dump, c):
    gen = torch.Generator().manual_seed(c["seed"])
    world, net = c["world"], Net(c["width"], c["sharp"])
    nets = [net] + [copy.deepcopy(net) for _ in range(world - 1)]
    ref = copy.deepcopy(net)
    opts = [torch.optim.Adam(n.parameters(), lr=c["lr"], eps=1e-5) for n in nets]
    rngs = [torch.Generator().manual_seed(c["seed"] * 10 + r) for r in range(world)]
    step, kept = 0, {}
    for it in range(c["rollouts"]):
        e = episodes(copy.deepcopy(net), c, gen, it)
        n = c["rows"] // world
        shards = [{k: x[r * n:(r + 1) * n].clone() for k, x in e.items()} for r in range(world)]
        for r in range(world):
            prepare(nets[r], ref, shards[r], c)
        if c["kind"] != "long":
            whiten(shards, kept)
        for epoch in range(c["epochs"]):
            orders = [torch.randperm(n, generator=g) for g in rngs]
            size = n // c["minis"]
            for k in range(c["minis"]):
                step += 1
                mine = [o[k * size:(k + 1) * size] for o in orders]
                tokens = sum(s["mask"][i].sum() for s, i in zip(shards, mine))
                files = []
                for r in range(world):
                    micros = size // c["micro"]
                    for m in range(micros):
                        i = mine[r][m * c["micro"]:(m + 1) * c["micro"]]
                        b = {x: y[i] for x, y in shards[r].items()}
                        o = losses(nets[r], b, c, tokens)
                        scale = 1 / micros
                        loss = o["loss"] * scale
                        want = [o["logp"]] + ([o["values_new"]] if c["kind"] == "agent" else [])
                        grads = torch.autograd.grad(loss, want, retain_graph=True)
                        loss.backward()
                        t = dict(response_mask=b["mask"].bool(), response_ids=b["response"], logp_new=o["logp"], logp_old=b["old"], logp_gen=b["gen"], logp_ref=b.get("ref"), kl=b.get("kl"),
                                 advantages=b["advantages"], token_loss=o["token_loss"], loss=loss, pg_loss=o["pg_loss"] * scale, dlogp=grads[0], sample_id=b["sample"],
                                 group_id=b["group"], token_rewards=b["token_rewards"] if c["kind"] != "long" else None, scores=b["scores"] if c["kind"] != "agent" else None)
                        if c["kind"] == "agent":
                            t.update(values=b["values"], values_new=o["values_new"], returns=b["returns"], value_loss=o["value_loss"] * scale, dvalues=grads[1],
                                     entropy=o["entropy"], entropy_loss=o["entropy_loss"] * scale)
                        files.append((r, m, micros, t))
                if world > 1:
                    reduce_gradients(nets)
                if c["optimiser"]:
                    named = list(nets[0].named_parameters())
                    was = {name: p.detach().clone() for name, p in named}
                    files[0][3].update({f"grad/{name}": p.grad.clone() for name, p in named})
                for model, opt in zip(nets, opts):
                    nn.utils.clip_grad_norm_(model.parameters(), c["max_norm"])
                    opt.step()
                    opt.zero_grad()
                if c["optimiser"]:
                    files[0][3].update({f"weights/{name}": w for name, w in was.items()} | {f"update/{name}": p.detach() - was[name] for name, p in named})
                for r, m, micros, t in files:
                    dump(step, t, m, micros, rank=r, world=world, scalars=dict(lr=c["lr"]) if c["optimiser"] else None,
                         options={"num_items_in_batch": int(tokens)} if c["kind"] == "reinforce" else None)


def start(folder, c):
    dump = Dumper(folder, run=f"{c['kind']}-{c['seed']}", framework="agentloop", version="0.2", algorithm=c["algorithm"], align="response", options=c["options"], token_loss_includes_kl=False,
                  compute_dtype="float32")
    dump.keep = c["keep"]
    train(dump, c)


# ================================================================== cases
TRAINER = read(__file__).split("# ====" + "=" * 62)[0]


def run(folder, c, plant):
    space = dict(__name__="trainer")
    exec(compile(plant("self", TRAINER), "v4", "exec"), space)
    space["start"](folder, {**c, "reward": space[c["reward"]]})


PPO = {"loss.kind": "ppo", "ratio.level": "token", "ratio.old": "stored", "clip.dual": "none", "tis.level": "none", "eos_token_id": EOS}
WHITE = {"whiten.scope": "global", "whiten.mask": "response", "whiten.ddof": 1, "whiten.eps": 1e-8, "whiten.eps_place": "inside_sqrt", "whiten.shift_mean": True}
BASES = dict(
    agent=dict(kind="agent", algorithm="ppo", seed=41, world=2, width=16, sharp=1.3, rows=32, group=1, prompt=4, length=30, turn=6, turns=3, tools=True, rollouts=2, epochs=2, minis=2, micro=8, lr=4e-3,
               temperature=1.0, low=False, bf16=False, reward="ask", gamma=0.98, lam=0.93, kl=0.0, clip_low=0.2, clip_high=0.2, clip_value=0.2, ent_coef=0.02, vf_coef=0.5, max_norm=0.05,
               optimiser=True, keep=None,
               options={**PPO, **WHITE, "clip.low": 0.2, "clip.high": 0.2, "adv.kind": "gae", "gae.gamma": 0.98, "gae.lambda": 0.93, "gae.hole": "carry", "gae.value_mask": "response",
                        "gae.truncated_bootstrap": "none", "returns.before_whiten": True, "kl.beta": 0, "kl.place": "none", "value.factor": 0.5, "value.clip": 0.2, "value.mask": "response", "value.coef": 0.5,
                        "entropy.coef": 0.02, "agg.kind": "token", "agg.denominator": "micro", "logp.temperature": 1.0, "num_mini_batches": 2, "optim.epochs": 2, "optim.kind": "adam",
                        "optim.eps": 1e-5, "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.weight_decay": 0, "optim.clip_norm": 0.05, "optim.lr": 4e-3}),
    reinforce=dict(kind="reinforce", algorithm="reinforce++", seed=42, world=2, width=24, sharp=1.5, rows=48, group=1, prompt=5, length=24, turn=5, turns=3, tools=True, rollouts=3, epochs=1, minis=2, micro=12,
                   lr=8e-3, temperature=0.9, low=True, bf16=False, reward="finish", kl=0.08, clip_low=0.2, clip_high=0.24, max_norm=1.0, optimiser=False,
                   keep="response_mask response_ids logp_new logp_old logp_gen logp_ref kl token_rewards advantages loss pg_loss token_loss dlogp sample_id".split(),
                   options={**PPO, **WHITE, "clip.low": 0.2, "clip.high": 0.24, "adv.kind": "rfpp", "rfpp.mode": "return_to_go", "gae.gamma": 1.0, "kl.kind": "k1", "kl.beta": 0.08,
                            "kl.place": "token_reward", "agg.kind": "token", "agg.denominator": "global", "logp.temperature": 0.9, "num_mini_batches": 2}),
    long=dict(kind="long", algorithm="grpo", seed=43, world=1, width=20, sharp=0.7, rows=64, group=8, prompt=4, length=256, turn=10 ** 6, turns=1, tools=False, rollouts=2, epochs=1, minis=2, micro=16, lr=1e-2,
              temperature=1.0, low=True, bf16=True, reward="spread", kl=0.0, clip_low=0.2, clip_high=0.28, max_norm=1.0, optimiser=False,
              keep="response_mask response_ids logp_new logp_old logp_gen advantages scores group_id sample_id loss pg_loss token_loss dlogp".split(),
              options={**PPO, "clip.low": 0.2, "clip.high": 0.28, "adv.kind": "group", "adv.center": "mean", "adv.scale": "none", "adv.group_by": "uid", "kl.beta": 0, "kl.place": "none",
                       "agg.kind": "seq_sum_const", "agg.div_batch": True, "agg.denominator": "micro", "agg.div_ga": True, "loss_denominator": 256, "logp.temperature": 1.0, "num_generations": 8,
                       "num_mini_batches": 2}),
)
S = "self"
BUGS = [
    Bug("tool_in_loss", "agent", False, "pg = masked_mean(token_loss, filled): the policy term runs over what the tool said too, the value and entropy terms do not", S,
        "pg = masked_mean(token_loss, mask)", 'pg = masked_mean(token_loss, b["filled"])'),
    Bug("turn_reward_late", "agent", False, "the reward of a turn is written one column late, on the tool's first token (the last turn's is lost or on padding)", S,
        'rewards[i, t] = c["reward"](spoken', 'rewards[i, min(t + 1, T - 1)] = c["reward"](spoken'),
    Bug("gae_cut_at_tool", "agent", True, "GAE begins anew before every answer of the tool: last and nextv are 0 at masked cells", S,
        "nextv = nextv * (1 - m) + values[:, t] * m\n        last = last * (1 - m) + new * m", "nextv = values[:, t] * m\n        last = new * m"),
    Bug("entropy_all_cells", "agent", False, "the entropy bonus is entropy.mean(): over tool and padding cells too", S, "ent = masked_mean(entropy, mask)", "ent = entropy.mean()"),
    Bug("rows_with_replacement", "agent", False, "mini-batches are drawn with replacement (randint): rows come twice in an epoch, others never", S,
        "torch.randperm(n, generator=g)", "torch.randint(0, n, (n,), generator=g)"),
    Bug("var_of_rank", "agent", False, "the mean of the whitening is that of both ranks, the variance that of the own rank", S,
        's["advantages"] = (s["advantages"] - mean) * torch.rsqrt(var + 1e-8)',
        's["advantages"] = (s["advantages"] - mean) * torch.rsqrt(((s["advantages"] - mean) ** 2 * s["mask"]).sum() / (s["mask"].sum() - 1) + 1e-8)'),
    Bug("returns_of_rank0", "agent", False, "every rank has the returns of rank 0 (broadcast in place of scatter)", S,
        "b = {x: y[i] for x, y in shards[r].items()}\n", 'b = {x: y[i] for x, y in shards[r].items()} | ({"returns": shards[0]["returns"][i]} if c["kind"] == "agent" else {})\n'),
    Bug("gradients_summed", "agent", False, "gradients are summed over the ranks, not averaged, where each rank's loss is a mean of its own", S,
        "g = sum(p.grad for p in ps) / len(ps)", "g = sum(p.grad for p in ps)"),
    Bug("clip_each_tensor", "agent", False, "clip_grad_norm_ is called for each parameter alone, not for all", S,
        'nn.utils.clip_grad_norm_(model.parameters(), c["max_norm"])', '[nn.utils.clip_grad_norm_([p], c["max_norm"]) for p in model.parameters()]'),
    Bug("bootstrap_own_value", "agent", False, "the recursion starts from the value of the last agent token of every row, as if it were that of the state after it", S,
        "nextv, last, out = torch.zeros(n), torch.zeros(n), []", "nextv, last, out = values[torch.arange(n), (mask * torch.arange(1, T + 1)).argmax(1)], torch.zeros(n), []"),
    Bug("values_of_new_net", "agent", False, "the value loss clips about values.detach() on one side: near = values + (…) with the new value as its base", S,
        'near = b["values"] + (values - b["values"])', 'near = values.detach() + (values - b["values"])'),
    Bug("count_of_rank0", "reinforce", False, "the count of tokens is twice that of rank 0, not the sum over the ranks", S,
        'tokens = sum(s["mask"][i].sum() for s, i in zip(shards, mine))', 'tokens = shards[0]["mask"][mine[0]].sum() * world'),
    Bug("stats_over_tool", "reinforce", False, "the statistics of the whitening count the tool's cells (advantage 0) among the tokens", S,
        'count = sum(s["mask"].sum() for s in shards)', 'count = sum(s["filled"].sum() for s in shards)'),
    Bug("kl_on_tool", "reinforce", False, "the KL penalty is charged for the tool's tokens too and runs into the returns to go", S,
        'e["token_rewards"] - c["kl"] * e["kl"] * e["mask"]', 'e["token_rewards"] - c["kl"] * e["kl"] * e["filled"]'),
    Bug("to_go_exclusive", "reinforce", False, "the return to go leaves out the token's own reward", S, "        r = r + rewards[:, t]\n        out.append(r)", "        out.append(r)\n        r = r + rewards[:, t]"),
    Bug("sorted_not_back", "reinforce", False, "old log-probs are computed over rows that are sorted by length and not put back in order", S,
        'e["old"], _, e["values"] = score(net, e["ids"], c)', 'e["old"], _, e["values"] = score(net, e["ids"][e["filled"].sum(1).argsort(stable=True)], c)'),
    Bug("old_of_engine", "reinforce", True, "the ratio is that to the engine's log-probs: diff = logp - gen", S, 'diff = logp.float() - b["old"].float()', 'diff = logp.float() - b["gen"].float()'),
    Bug("stats_of_first", "reinforce", False, "mean and variance of the first rollout are kept and whiten the advantages of all later ones", S,
        "mean, var = statistics(shards)\n    for s", 'mean, var = kept.get("stats") or statistics(shards)\n    for s'),
    Bug("longest_of_batch", "long", True, "sums are divided by the longest response of the batch, not by the limit of 256", S, 'longest = c["length"]', "longest = mask.sum(1).max()"),
    Bug("logits_one_late", "long", False, "log-probs are gathered from the logits of one column later, those after the token itself", S,
        "    logits = logits[:, P - 1:-1]\n", "    logits = logits.roll(-1, dims=1)[:, P - 1:-1]\n"),
    Bug("last_micro_unscaled", "long", False, "the last micro-batch of a step is not divided by the number of micro-batches", S, "scale = 1 / micros", "scale = 1 / micros if m + 1 < micros else 1.0"),
    Bug("baseline_of_micro", "long", False, "the baseline is the mean of the micro-batch's rows, which are shuffled over groups", S,
        'adv = b["advantages"] if b["advantages"].dim() == 2 else b["advantages"].unsqueeze(1)',
        'b["advantages"] = b["advantages"] if b["advantages"].dim() == 2 else b["scores"] - b["scores"].mean()\n    adv = b["advantages"] if b["advantages"].dim() == 2 else b["advantages"].unsqueeze(1)'),
    Bug("eos_outside", "long", False, "EOS is not among the policy's tokens: its cell is 0 in the mask", S,
        "filled=filled, mask=mask, gen", "filled=filled, mask=mask * (out != EOS), gen"),
    Bug("ratio_of_prefix", "long", False, "the ratio of a token is that of the response so far: exp(cumsum of the differences)", S, "ratio = diff.exp()", 'ratio = (diff * b["mask"]).cumsum(1).exp()'),
]

if __name__ == "__main__":
    main("v4_agent", run, BASES, BUGS, sys.argv)
