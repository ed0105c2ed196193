"""x4: three loops that have little in common with the others: an asynchronous trainer (an engine that is one or two rollouts old, decoupled PPO: the proximal policy is computed by the trainer, the engine's
log-probs weight the tokens; ragged shards over two ranks, accumulated); a tool agent of several turns whose observations stand masked in the middle of the row, with process rewards at the ends of turns, a
critic and GAE over the holes; a run of 64 rows × 256 tokens with a model in bfloat16, scored in chunks.

    python x4.py CASES
"""
import sys
from world_x import *

TEXTS = dict(program=trainer_text(__file__))

# >>> trainer
P = 4
TURN = 3  # ends a turn of the agent


def nudge(model, size, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=g))
    return model


def logp_entropy(model, ids, temperature=1.0):
    logits = model(ids)[0][:, P - 1 : -1] / temperature
    return gather_logp(logits, ids[:, P:]), entropy_of(logits)


def dump(cfg, out, step, rank, world, micro, micros, t, extra=None):
    t = {k: x for k, x in t.items() if x is not None and k not in cfg.get("leave_out", ())}
    meta = dict(schema=2, framework="custom", algorithm=cfg["algorithm"], run=cfg["run"], step=step, rank=rank, world_size=world, micro_batch=micro, micro_batches=micros,
                options=dict(cfg["options"], eos_token_id=EOS, **(extra or {})), token_loss_includes_kl=False, compute_dtype=cfg.get("compute_dtype", "float32"))
    write(out, f"s{step:03d}.r{rank}.m{micro}", t, meta)


# ---- asynchronous, two ranks --------------------------------------------------------------------------------------
def train_async(cfg, out):
    policy = LM(cfg["seed"], eos=cfg["eos"])
    versions = [copy.deepcopy(policy)]
    opt = torch.optim.AdamW(policy.parameters(), lr=cfg["lr"])
    G, T, WORLD, CAP, eps_low, eps_high = cfg["G"], cfg["T"], 2, 2.0, 0.2, 0.25
    step = 0
    for it in range(cfg["rollouts"]):
        lag = min(it, 1 + it % 2)  # how many rollouts ago the engine got its weights
        engine = engine_of(versions[-1 - lag], it, cfg["noise"])
        prompts = make_prompts(cfg["prompts"], P, 300 * cfg["seed"] + it).repeat_interleave(G, 0)
        resp, mask, gen = sample(engine, prompts, T, 1.0, 40 * cfg["seed"] + it)
        ids = torch.cat([prompts, resp], 1)
        with torch.no_grad():
            prox = logp_entropy(policy, ids)[0]
        score = torch.tensor([reward_even(p, r[:n]) + reward_short(p, r[:n]) for p, r, n in zip(prompts.tolist(), resp.tolist(), mask.sum(1).long().tolist())])
        group = torch.arange(len(ids)) // G + 50 * it
        adv = torch.zeros(len(ids))
        for g in group.unique():
            of = group == g
            adv[of] = score[of] - score[of].mean()
        for half in range(2):
            rows = torch.arange(len(ids))[half::2]
            cut = cfg["cut"]  # the first rank is faster and takes more rows
            shards = [rows[:cut], rows[cut:]]
            tokens = sum(mask[s].sum() for s in shards)
            step += 1
            for rank, shard in enumerate(shards):
                micros = shard.chunk(2)
                for k, i in enumerate(micros):
                    m, A = mask[i], adv[i].unsqueeze(1)
                    logp, _ = logp_entropy(policy, ids[i])
                    w = (prox[i] - gen[i]).exp().clamp(max=CAP)
                    ratio = (logp - prox[i]).exp()
                    token_loss = -torch.min(ratio * A, ratio.clamp(1 - eps_low, 1 + eps_high) * A) * w
                    loss = (token_loss * m).sum() / tokens * WORLD
                    (dlogp,) = torch.autograd.grad(loss, logp, retain_graph=True)
                    dump(cfg, out, step, rank, WORLD, k, len(micros), dict(response_mask=m, response_ids=resp[i], logp_new=logp, logp_old=prox[i], logp_gen=gen[i], advantages=adv[i], scores=score[i],
                         group_id=group[i], sample_id=i + 1000 * it, is_weights=w, token_loss=token_loss, loss=loss, dlogp=dlogp), dict(num_items_in_batch=int(tokens)))
                    loss.backward()
            for p in policy.parameters():
                p.grad /= WORLD  # all-reduce, mean
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        versions.append(copy.deepcopy(policy))


# ---- an agent of several turns ------------------------------------------------------------------------------------
@torch.no_grad()
def episodes(engine, prompts, T, seed):
    """Rows of turns and observations: ids, mask of the agent's tokens, mask of all tokens, log-probs, ends of turns."""
    g, B = torch.Generator().manual_seed(seed), len(prompts)
    ids, mine, full, lps = torch.full((B, T), PAD), torch.zeros(B, T), torch.zeros(B, T), torch.zeros(B, T)
    ends = [[] for _ in range(B)]
    for b in range(B):
        seq, h = prompts[b].tolist(), None
        x, h = engine.rnn(engine.emb(prompts[b : b + 1]))
        x, t, in_turn, turns = x[:, -1], 0, 0, 0
        while t < T:
            lp = torch.log_softmax(engine.out(x) + engine.ban, -1)[0]
            tok = int(torch.multinomial(lp.exp(), 1, generator=g))
            ids[b, t], mine[b, t], full[b, t], lps[b, t] = tok, 1, 1, lp[tok]
            in_turn += 1
            o, h = engine.rnn(engine.emb(torch.tensor([[tok]])), h)
            x, t = o[:, 0], t + 1
            if tok == EOS or t == T:
                ends[b].append(t - 1)
                break
            if tok == TURN or in_turn == 7:
                ends[b].append(t - 1)
                turns, in_turn = turns + 1, 0
                obs = [4 + (tok * 7 + turns) % 30, 5 + (t * 3) % 29, 20][: min(3, T - t)]
                for w in obs:  # the tool's answer, none of the agent's
                    ids[b, t], full[b, t] = w, 1
                    o, h = engine.rnn(engine.emb(torch.tensor([[w]])), h)
                    x, t = o[:, 0], t + 1
                if turns == 4:
                    break
    return ids, mine, full, lps, ends


def gae_over_turns(rewards, values, mine, gamma, lam):
    """An observation is no step: value and trace of the next token of the agent are carried over it."""
    adv, next_value, last = torch.zeros_like(rewards), torch.zeros(len(rewards)), torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        m = mine[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        now = delta + gamma * lam * last
        next_value = m * values[:, t] + (1 - m) * next_value
        last = m * now + (1 - m) * last
        adv[:, t] = last * m
    return adv, (adv + values) * mine


def train_agent(cfg, out):
    policy, critic = LM(cfg["seed"], eos=-0.6), LM(cfg["seed"] + 9, value=True)
    with torch.no_grad():
        policy.out.bias[TURN] += 1.2
    opt = torch.optim.AdamW([*policy.parameters(), *critic.parameters()], lr=cfg["lr"])
    DUAL, ACC = 3.0, 2
    step = 0
    for it in range(cfg["rollouts"]):
        engine = engine_of(policy, it, cfg["noise"])
        prompts = make_prompts(cfg["rows"], P, 200 * cfg["seed"] + it)
        resp, mine, full, gen, ends = episodes(engine, prompts, cfg["T"], 60 * cfg["seed"] + it)
        ids = torch.cat([prompts, resp], 1)
        with torch.no_grad():
            old = logp_entropy(policy, ids)[0]
            values = critic(ids)[1][:, P - 1 : -1] * mine
        rewards, start = torch.zeros_like(mine), 0
        for b, of in enumerate(ends):
            begin = 0
            for e in of:  # a process reward for every turn
                rewards[b, e] += reward_even(None, resp[b, begin : e + 1].tolist()) - 0.3
                begin = e + 1
        adv, returns = gae_over_turns(rewards, values, mine, gamma=0.98, lam=0.9)
        for epoch in range(2):
            step += 1
            for k, i in enumerate(torch.arange(len(ids)).chunk(ACC)):
                m, A = mine[i], adv[i]
                logp, _ = logp_entropy(policy, ids[i])
                ratio = (logp - old[i]).exp()
                clipped = torch.max(-A * ratio, -A * ratio.clamp(0.8, 1.28))
                token_loss = torch.where(A < 0, torch.min(clipped, -A * DUAL), clipped)
                n = m.sum(1)
                pg_loss = ((token_loss * m).sum(1) / n).mean()
                v = critic(ids[i])[1][:, P - 1 : -1]
                value_loss = 0.5 * ((((v - returns[i]) ** 2) * m).sum(1) / n).mean()
                loss = (pg_loss + 0.5 * value_loss) / ACC
                dlogp, dv = torch.autograd.grad(loss, (logp, v), retain_graph=True)
                dump(cfg, out, step, 0, 1, k, ACC, dict(response_mask=m, response_ids=resp[i], logp_new=logp, logp_old=old[i], logp_gen=gen[i], advantages=A, returns=returns[i], values=values[i], values_new=v,
                     token_rewards=rewards[i], token_loss=token_loss, pg_loss=pg_loss, value_loss=value_loss, loss=loss, dlogp=dlogp, dvalues=dv, sample_id=i + 100 * it))
                loss.backward()
            opt.step()
            opt.zero_grad()


# ---- long rows in bfloat16 ----------------------------------------------------------------------------------------
def score_in_chunks(model, ids, size=64):
    """Log-probs of the response, the logits of one chunk at a time in memory; weights in bfloat16, log-softmax in float32."""
    h, logps = None, []
    x, target = ids[:, :-1], ids[:, 1:]
    for c in range(0, x.shape[1], size):
        o, h = model.rnn(model.emb(x[:, c : c + size]), h)
        logits = (model.out(o) + model.ban).float()
        logps.append(gather_logp(logits, target[:, c : c + size]))
    return torch.cat(logps, 1)[:, P - 1 :]


def train_long(cfg, out):
    master = LM(cfg["seed"], eos=cfg["eos"])
    work = copy.deepcopy(master).bfloat16()
    opt = torch.optim.AdamW(master.parameters(), lr=cfg["lr"])
    G, T, B = cfg["G"], cfg["T"], cfg["rows"]
    step = 0
    for it in range(cfg["rollouts"]):
        prompts = make_prompts(B // G, P, 500 * cfg["seed"] + it).repeat_interleave(G, 0)
        resp, mask, gen = sample(work, prompts, T, 1.0, 90 * cfg["seed"] + it)
        ids = torch.cat([prompts, resp], 1)
        with torch.no_grad():
            old = score_in_chunks(work, ids)
        r = torch.tensor([reward_even(p, x[:n]) - 0.002 * n for p, x, n in zip(prompts.tolist(), resp.tolist(), mask.sum(1).long().tolist())])
        adv = (r.view(-1, G) - r.view(-1, G).mean(1, keepdim=True)).view(-1) * 4.0
        score = r * 4.0
        for part in torch.arange(B).chunk(2):
            step += 1
            m, A = mask[part], adv[part].unsqueeze(1)
            logp = score_in_chunks(work, ids[part])
            ratio = (logp - old[part]).exp()
            s1, s2 = ratio * A, ratio.clamp(0.9, 1.15) * A
            token_loss = -torch.min(s1, s2)
            loss = (token_loss * m).sum() / (len(part) * T)
            (dlogp,) = torch.autograd.grad(loss, logp, retain_graph=True)
            dump(cfg, out, step, 0, 1, 0, 1, dict(response_mask=m.bool(), response_ids=resp[part].int(), logp_new=logp, logp_old=old[part], logp_gen=gen[part].bfloat16(), advantages=adv[part], scores=score[part],
                 group_id=part // G + 100 * it, sample_id=part + 1000 * it, token_loss=token_loss, loss=loss, dlogp=dlogp))
            loss.backward()
            for p, q in zip(master.parameters(), work.parameters()):
                p.grad, q.grad = q.grad.float(), None
            torch.nn.utils.clip_grad_norm_(master.parameters(), 1.0)
            opt.step()
            with torch.no_grad():
                for p, q in zip(master.parameters(), work.parameters()):
                    q.copy_(p)


def train(cfg, out):
    {"async": train_async, "agent": train_agent, "long": train_long}[cfg["loop"]](cfg, out)
# <<< trainer


def execute(texts, cfg, out):
    ns = dict(globals())
    exec(compile(texts["program"], "program", "exec"), ns)
    torch.manual_seed(cfg["seed"])
    ns["train"](cfg, out)


HEALTHY = [
    ("async", dict(about="asynchronous decoupled PPO, engine one or two rollouts old, weights of the engine cut at 2, group mean as baseline, ragged shards over two ranks, two accumulated micro-batches, mean over all tokens",
                   loop="async", algorithm="grpo", run="x4-async", seed=31, lr=0.004, eos=0.9, G=4, prompts=8, T=22, noise=0.02, cut=10, rollouts=4,
                   options={"adv.kind": "group", "adv.center": "mean", "adv.scale": "none", "kl.place": "none", "kl.beta": 0.0, "loss.kind": "ppo", "clip.low": 0.2, "clip.high": 0.25, "clip.dual": "none",
                            "agg.kind": "token", "agg.denominator": "global", "ratio.level": "token", "ratio.old": "stored", "tis.level": "token", "tis.rule": "truncate_upper", "tis.high": 2.0, "max_staleness": 2,
                            "num_mini_batches": 2, "logp.temperature": 1.0})),
    ("agent", dict(about="tool agent, up to four turns, observations masked in the row, process rewards, GAE(0.98, 0.9) carried over the holes, critic, dual clip 3, two epochs, two accumulated micro-batches", loop="agent",
                   algorithm="ppo", run="x4-agent", seed=35, lr=0.004, rows=16, T=40, noise=0.02, rollouts=3,
                   options={"adv.kind": "gae", "gae.gamma": 0.98, "gae.lambda": 0.9, "gae.hole": "carry", "whiten.scope": "none", "returns.before_whiten": True, "kl.place": "none", "kl.beta": 0.0, "loss.kind": "ppo",
                            "clip.low": 0.2, "clip.high": 0.28, "clip.dual": 3.0, "value.clip": "none", "value.factor": 0.5, "value.coef": 0.5, "agg.kind": "seq_mean_token_mean", "agg.denominator": "micro",
                            "agg.div_ga": True, "tis.level": "none", "optim.epochs": 2, "num_mini_batches": 1, "logp.temperature": 1.0})),
    ("long", dict(about="64 rows of 256 tokens, weights in bfloat16 with float32 masters, scored in chunks, Dr.GRPO: group mean, sum over a constant of 256 and the rows; the engine's log-probs come as bfloat16", loop="long",
                  algorithm="grpo", run="x4-long", seed=39, lr=0.002, eos=-1.3, G=8, rows=64, T=256, rollouts=2, leave_out=(),
                  options={"adv.kind": "group", "adv.center": "mean", "adv.scale": "none", "kl.place": "none", "kl.beta": 0.0, "loss.kind": "ppo", "clip.low": 0.1, "clip.high": 0.15, "clip.dual": "none",
                           "agg.kind": "seq_sum_const", "agg.denominator": "micro", "agg.div_batch": True, "loss_denominator": 256, "tis.level": "none", "ratio.level": "token", "num_mini_batches": 2,
                           "logp.temperature": 1.0})),
]
A, B, C = "async", "agent", "long"
BUGS = [
    ("weight_of_new_policy", A, "w = (prox[i] - gen[i]).exp().clamp(max=CAP)", "w = (logp.detach() - gen[i]).exp().clamp(max=CAP)", "The behaviour weight is that of the policy being trained, while the ratio over the proximal one multiplies, too", False),
    ("weight_inside_clip", A, "token_loss = -torch.min(ratio * A, ratio.clamp(1 - eps_low, 1 + eps_high) * A) * w", "token_loss = -torch.min(ratio * w * A, (ratio * w).clamp(1 - eps_low, 1 + eps_high) * A)", "The product of ratio and weight is clipped", False),
    ("prox_one_version_behind", A, "prox = logp_entropy(policy, ids)[0]", "prox = logp_entropy(versions[max(len(versions) - 2, 0)], ids)[0]", "The proximal log-probs are of the version before the current one", False),
    ("baseline_of_shard_rows", A, "adv[of] = score[of] - score[of].mean()", "adv[of] = score[of] - score[of][::2].mean()", "The baseline is the mean over the rows of the group that go into the first half", False),
    ("tokens_without_remainder", A, "tokens = sum(mask[s].sum() for s in shards)", "tokens = sum(mask[s[: len(shards[1])]].sum() for s in shards)", "The count of tokens takes as many rows of each shard as the shorter one has", False),
    ("gen_from_prompt_end", A, "resp, mask, gen = sample(engine, prompts, T, 1.0, 40 * cfg[\"seed\"] + it)", "resp, mask, gen = sample(engine, prompts, T, 1.0, 40 * cfg[\"seed\"] + it)\n        gen = gen.roll(1, 1)", "The engine's log-probs stand one token late", False),
    ("world_factor_by_rank_rows", A, "loss = (token_loss * m).sum() / tokens * WORLD", "loss = (token_loss * m).sum() / tokens * (len(rows) / len(shard))", "The factor of the ranks is rows of the batch over rows of the rank", False),
    ("shard_padded_with_repeats", A, "shards = [rows[:cut], rows[cut:]]", "shards = [rows[:cut], torch.cat([rows[cut:], rows[cut : 2 * cut - len(rows) + cut]])]", "The shorter shard is filled up with its own rows, which count again", False),
    ("loss_on_observations", B, "pg_loss = ((token_loss * m).sum(1) / n).mean()", "pg_loss = ((token_loss * m - 0.1 * (full[i] - m) * logp).sum(1) / n).mean()",
     "Observations get a small likelihood term, a left-over of imitation, which nobody declared", False),
    ("trace_lost_in_holes", B, "last = m * now + (1 - m) * last", "last = m * now", "The trace of GAE is lost at every observation, the value is carried over it", True),
    ("reward_on_observation", B, "rewards[b, e] += reward_even", "rewards[b, min(e + 1, cfg[\"T\"] - 1)] += reward_even", "The process reward stands on the first token of the observation, where no step is", False),
    ("reward_read_a_step_late", B, "delta = rewards[:, t] + gamma * next_value - values[:, t]\n        now", "delta = rewards[:, t - 1] + gamma * next_value - values[:, t]\n        now", "δ takes the reward of the column before", False),
    ("first_advantage_for_row", B, "m, A = mine[i], adv[i]\n", "m, A = mine[i], adv[i][:, :1] * mine[i]\n", "Every token of a row has the advantage of its first token", False),
    ("returns_of_next_value", B, "return adv, (adv + values) * mine", "return adv, (adv + values.roll(-1, 1)) * mine", "The returns add the value of the next column", False),
    ("dual_clip_raises", B, "torch.where(A < 0, torch.min(clipped, -A * DUAL), clipped)", "torch.where(A < 0, torch.max(clipped, -A * DUAL), clipped)", "The dual clip is a floor of the loss where A < 0", False),
    ("value_mean_over_all_tokens", B, "value_loss = 0.5 * ((((v - returns[i]) ** 2) * m).sum(1) / n).mean()", "value_loss = 0.5 * ((((v - returns[i]) ** 2) * m).sum(1) / full[i].sum(1)).mean()", "The value loss of a row is divided by its tokens with the observations", False),
    ("discount_trace_only", B, "delta = rewards[:, t] + gamma * next_value - values[:, t]\n        now", "delta = rewards[:, t] + next_value - values[:, t]\n        now", "δ has no discount, the trace has γλ", False),
    ("chunks_forget_state", C, "o, h = model.rnn(model.emb(x[:, c : c + size]), h)", "o, h = model.rnn(model.emb(x[:, c : c + size]))", "Every chunk of 64 tokens is scored without what stands before it", False),
    ("ratio_in_bf16", C, "ratio = (logp - old[part]).exp()\n            s1", "ratio = (logp.bfloat16() - old[part].bfloat16()).exp().float()\n            s1", "Log-probs are rounded to bfloat16 before the ratio", True),
    ("clip_in_log_space", C, "s1, s2 = ratio * A, ratio.clamp(0.9, 1.15) * A", "s1, s2 = ratio * A, (logp - old[part]).clamp(-0.1, 0.15).exp() * A", "The bounds are those of the log-ratio", False),
    ("group_transposed", C, "adv = (r.view(-1, G) - r.view(-1, G).mean(1, keepdim=True)).view(-1) * 4.0", "adv = (r.view(-1, G) - r.view(G, -1).mean(0).view(-1, 1)).view(-1) * 4.0", "The mean is taken over a transposed view", False),
    ("min_over_row_mean", C, "token_loss = -torch.min(s1, s2)\n            loss", "token_loss = -torch.min(s1, s2.mean(1, keepdim=True))\n            loss", "The clipped surrogate is averaged over the row before the minimum", False),
    ("longest_for_constant", C, "loss = (token_loss * m).sum() / (len(part) * T)", "loss = (token_loss * m).sum() / (len(part) * m.sum(1).median())", "The constant is the median length of the batch", False),
    ("work_copy_not_synced", C, "                    q.copy_(p)\n", "                    q.copy_(p if step % 2 == 0 else q)\n", "The bfloat16 copy gets the master's weights after every second step only (the ratio of the second step is 1)", True),
]

if __name__ == "__main__":
    run_all(sys.argv[1], "x4", TEXTS, HEALTHY, BUGS, execute, sys.argv[2:])
