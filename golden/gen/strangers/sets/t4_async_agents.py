"""t4: an asynchronous trainer of agents (AReaL- and slime-like, nobody's own): the engine is a rollout behind, turns with tool observations and rewards of turns,
decoupled PPO with a critic on two ranks; REINFORCE++ with sequence weights; packed rows with CISPO."""
from world_t import *

# <trainer>
def score_tokens(model, ids, T, resp, temp):
    ls = torch.log_softmax(model.logits(ids, T) / temp, -1)
    return ls.gather(-1, resp.unsqueeze(-1)).squeeze(-1)

def turn_rewards(prompts, resp, own, att):
    """Every turn that ends with TOOL earns by its words; the last token of a response earns the outcome."""
    r = torch.zeros(resp.shape)
    good = ((resp % 2 == prompts[:, -1:] % 2) & (resp > 2)).float() * own
    for t in range(resp.shape[1]):
        r[:, t] += 0.5 * (resp[:, t] == TOOL).float() * own[:, t] * good[:, :t + 1].sum(1) / (t + 1)
    last = (own * torch.arange(1, resp.shape[1] + 1)).argmax(1)
    outcome = 0.3 + r_length(prompts, resp, own) + r_parity(prompts, resp, own)
    r[torch.arange(len(r)), last] += outcome
    return r, outcome

def gae(r, v, m, gamma, lam, ended):
    adv, last, nxt = torch.zeros_like(r), torch.zeros(len(r)), torch.zeros(len(r))
    for t in reversed(range(r.shape[1])):
        new = r[:, t] + gamma * nxt - v[:, t] + gamma * lam * last
        last = torch.where(m[:, t] > 0, new, last)
        nxt = torch.where(m[:, t] > 0, v[:, t], nxt)
        adv[:, t] = last * m[:, t]
    return adv, (adv + v) * m

def whiten_all(x, m, att):
    n = m.sum(); mu = (x * m).sum() / n
    var = ((x - mu) ** 2 * m).sum() / n
    return (x - mu) * torch.rsqrt(var + 1e-8) * m

def reinforce_pp(r, m):
    returns = torch.flip(torch.cumsum(torch.flip(r * m, [1]), 1), [1]) * m
    return whiten_all(returns, m, m)

def behaviour_weights(old, gen, m, c):
    d = (old - gen) * m
    if c["is_level"] == "sequence": d = d.sum(1, keepdim=True).expand_as(d)
    return torch.exp(d).clamp(max=c["is_max"]) * m

def surrogate(lp, old, adv, c):
    if c["kind"] == "cispo":
        ratio = torch.exp(lp - old)
        return -torch.clamp(ratio, max=1 + c["high"]).detach() * adv * lp
    ratio = torch.exp(lp - old)
    return -torch.min(ratio * adv, torch.clamp(ratio, 1 - c["low"], 1 + c["high"]) * adv)

def train_padded(c, write):
    gen_ = torch.Generator().manual_seed(c["seed"]); torch.manual_seed(c["seed"])
    model = LM(c["seed"], tool_bias=c["tool_bias"]); critic = LM(c["seed"] + 9, value=True) if c["critic"] else None; ref = copy.deepcopy(model)
    opt = torch.optim.AdamW([*model.parameters()] + ([*critic.parameters()] if critic else []), lr=c["lr"])
    behind, step, R, N, T = engine_of(model), 0, c["ranks"], c["rows"], c["T"]
    for rollout in range(c["rollouts"]):
        engine, behind = behind, engine_of(model)             # the engine has the weights of the rollout before
        prompts = make_prompts(N // c["group"], 5, gen_).repeat_interleave(c["group"], 0)
        resp, lp_gen, own, att = sample(engine, prompts, T, c["temp"], gen_, c["observe"])
        ids, m = torch.cat([prompts, resp], 1), own.float()
        rewards, outcome = turn_rewards(prompts, resp, own, att)
        with torch.no_grad():
            old = score_tokens(model, ids, T, resp, c["temp"]); lp_ref = score_tokens(ref, ids, T, resp, c["temp"])
            w = behaviour_weights(old, lp_gen, m, c)
            if c["critic"]:
                v = critic.both(ids, T)[1]
                adv, ret = gae(rewards, v, m, c["gamma"], c["lam"], (resp == EOS).any(1))
                adv = whiten_all(adv, m, att)
            else:
                kl = old - lp_ref
                rewards = rewards - c["beta"] * kl * m
                adv, v, ret = reinforce_pp(rewards, m), None, None
        roll = dict(ids=ids, resp=resp, m=m, att=att.float(), old=old, ref=lp_ref, gen=lp_gen, w=w, adv=adv, rew=rewards, out=outcome, v=v, ret=ret,
                    gid=torch.arange(N) // c["group"] + 50 * rollout, sid=torch.arange(N) + N * rollout)
        roll = {k: x for k, x in roll.items() if x is not None}
        for epoch in range(c["epochs"]):
            perm = torch.randperm(N, generator=gen_)
            for mb in perm.split(N // c["minis"]):
                step += 1; opt.zero_grad(); per = len(mb) // R
                shards = [{k: x[mb][r * per:(r + 1) * per] for k, x in roll.items()} for r in range(R)]
                total = sum(s["m"].sum() for s in shards)
                for rank, s in enumerate(shards):
                    for i in range(0, per, c["micro"]):
                        x = {k: y[i:i + c["micro"]] for k, y in s.items()}
                        lp = score_tokens(model, x["ids"], T, x["resp"], c["temp"])
                        tl = surrogate(lp, x["old"], x["adv"], c) * x["w"]
                        if c["agg"] == "token": loss = (tl * x["m"]).sum() / total * R
                        else: loss = (tl * x["m"]).sum() / len(mb) * R
                        vl = vp = None; pg = loss
                        if critic:
                            vp = critic.both(x["ids"], T)[1]
                            vl = 0.5 * ((vp - x["ret"]) ** 2 * x["m"]).sum() / total * R
                            loss = loss + c["vf"] * vl
                        t = dict(response_ids=x["resp"], response_mask=x["m"].bool(), logp_new=lp, logp_old=x["old"], logp_gen=x["gen"], is_weights=x["w"], advantages=x["adv"], token_rewards=x["rew"],
                                 scores=x["out"] if c["scores"] else None, group_id=x["gid"], sample_id=x["sid"], logp_ref=x["ref"] if c["beta"] else None, token_loss=tl if c["tl"] else None, values=x.get("v"), returns=x.get("ret"),
                                 values_new=vp, pg_loss=pg, value_loss=vl, loss=loss, dlogp=torch.autograd.grad(loss, lp, retain_graph=True)[0],
                                 dvalues=torch.autograd.grad(loss, vp, retain_graph=True)[0] if critic else None)
                        emit(c, write, step, rank, i // c["micro"], per // c["micro"], {k: y for k, y in t.items() if y is not None}, dict(loss=loss.item()))
                        (loss / R).backward()
                torch.nn.utils.clip_grad_norm_([p for g in opt.param_groups for p in g["params"] if p.grad is not None], 1.0); opt.step()

def pack(seqs, width):
    """First fit, in order: rows of token ids, the mask of responses, segment ids from 1, and the spans (row, from, to, prompt length)."""
    rows, spans = [[]], []
    for p, r in seqs:
        if len(rows[-1]) + len(p) + len(r) > width: rows.append([])
        a = len(rows[-1]); rows[-1] += p + r; spans.append((len(rows) - 1, a, a + len(p) + len(r), len(p)))
    ids = torch.tensor([x + [PAD] * (width - len(x)) for x in rows]); m, seg = torch.zeros(ids.shape), torch.zeros(ids.shape, dtype=torch.long)
    for n, (row, a, b, k) in enumerate(spans): m[row, a + k:b] = 1; seg[row, a:b] = n + 1
    return ids, m, seg, spans

def score_packed(model, ids, spans, temp):
    lp = torch.zeros(ids.shape)
    for row, a, b, k in spans:
        h = model.hidden(ids[row:row + 1, a:b])[0][0]
        ls = torch.log_softmax(model.head(h[:-1]) / temp, -1)
        lp[row, a + 1:b] = ls.gather(-1, ids[row, a + 1:b, None])[:, 0]
    return lp

def train_packed(c, write):
    gen_ = torch.Generator().manual_seed(c["seed"]); torch.manual_seed(c["seed"])
    model = LM(c["seed"]); ref, step, N, G, T = copy.deepcopy(model), 0, c["rows"], c["group"], c["T"]
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"]); behind = engine_of(model)
    for rollout in range(c["rollouts"]):
        engine, behind = behind, engine_of(model)
        prompts = make_prompts(N // G, 5, gen_).repeat_interleave(G, 0)
        resp, lp_gen, own, _ = sample(engine, prompts, T, c["temp"], gen_)
        score = r_parity(prompts, resp, own).mul(4).round() / 4 + (r_length(prompts, resp, own) > 0.6).float()
        g = score.view(-1, G); adv_row = (g - g.mean(1, keepdim=True)).div(g.std(1, keepdim=True) + 1e-6).reshape(-1)
        seqs = [(p[p != PAD].tolist(), r[:n].tolist()) for p, r, n in zip(prompts, resp, own.sum(1).tolist())]
        order = torch.randperm(N, generator=gen_)
        for part in order.split(N // c["minis"]):
            step += 1
            ids, m, seg, spans = pack([seqs[i] for i in part], c["width"])
            adv, gen_lp = torch.zeros(m.shape), torch.zeros(m.shape)
            for (row, a, b, k), i in zip(spans, part.tolist()):
                adv[row, a + k:b] = adv_row[i]; gen_lp[row, a + k:b] = lp_gen[i, :b - a - k]
            with torch.no_grad(): old, lp_ref = score_packed(model, ids, spans, c["temp"]), score_packed(ref, ids, spans, c["temp"])
            for epoch in range(c["epochs"]):
                if epoch: step += 1
                opt.zero_grad(); lp = score_packed(model, ids, spans, c["temp"])
                tl = surrogate(lp, old, adv, c)
                kl = 0.5 * (lp - lp_ref) ** 2
                per = tl + c["beta"] * kl
                rows = [(per[row, a + k:b]).sum() / (b - a - k) for row, a, b, k in spans]
                loss = torch.stack(rows).sum() / len(spans)
                t = dict(input_ids=ids, response_mask=m.bool(), segment_ids=seg, logp_new=lp, logp_old=old, logp_ref=lp_ref, logp_gen=gen_lp, advantages=adv, token_loss=tl, kl=kl, loss=loss,
                         dlogp=torch.autograd.grad(loss, lp, retain_graph=True)[0])
                emit(c, write, step, 0, 0, 1, t, dict(loss=loss.item(), kl=((kl * m).sum() / m.sum()).item()))
                loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step()
# </trainer>

def emit(c, write, step, rank, micro, micros, t, scalars):
    write(dict(schema=2, framework="driftrl", version="2.1", algorithm=c["algorithm"], run=f"t4-{c['name']}", step=step, rank=rank, world_size=c["ranks"], micro_batch=micro, micro_batches=micros,
               align=c["align"], options=c["options"], scalars=scalars if c["ranks"] == 1 else {}, scalars_scope="micro_batch", token_loss_includes_kl=False), t)

OBS = lambda ids, t: 3 + (ids.sum(1) + t) % 37
BASE = dict(rollouts=3, rows=32, group=1, T=24, epochs=1, minis=2, micro=8, ranks=1, temp=1.0, lr=6e-3, observe=None, tool_bias=-1.0, critic=False, beta=0.0, is_level="token", is_max=2.0, kind="ppo", low=0.2, high=0.2, agg="token",
            vf=0.5, tl=True, scores=False, gamma=1.0, lam=1.0, align="response")
CONFIGS = dict(
    agents_decoupled_2rank=BASE | dict(seed=41, algorithm="ppo", ranks=2, observe=OBS, tool_bias=1.0, critic=True, gamma=0.97, lam=0.9, epochs=2, is_max=1.3,
        options={"max_staleness": 1, "gae.gamma": 0.97, "gae.lambda": 0.9, "tis.high": 1.3, "num_mini_batches": 2, "eos_token_id": EOS, "value.coef": 0.5}),
    reinforce_pp_seq_is=BASE | dict(seed=42, algorithm="reinforce", beta=0.1, is_level="sequence", is_max=1.5, agg="row", high=0.28, micro=8, temp=0.9, tl=False,
        options={"one_step_off": True, "adv.kind": "rfpp", "clip.high": 0.28, "kl.place": "token_reward", "kl.beta": 0.1, "kl.kind": "k1", "tis.level": "seq_sum", "tis.high": 1.5, "num_mini_batches": 2, "logp.temperature": 0.9}),
    packed_cispo_k2=BASE | dict(seed=43, algorithm="grpo", group=4, kind="cispo", high=0.2, beta=0.05, epochs=2, width=64, align="unshifted", T=20, lr=1e-2,
        options={"max_staleness": 1, "loss.kind": "cispo", "kl.kind": "k2", "kl.beta": 0.05, "clip.high": 0.2, "agg.kind": "seq_mean_token_mean"}))
for n, c in CONFIGS.items(): c["name"] = n

A, B, C = CONFIGS
BUGS = [
 ("turn_reward_after_observation", A, False, "the reward of a turn stands two tokens late, within its observation (where no token is the policy's own)", "r[:, t] += 0.5 * (resp[:, t] == TOOL).float() * own[:, t] * good[:, :t + 1].sum(1) / (t + 1)", "r[:, min(t + 2, resp.shape[1] - 1)] += 0.5 * (resp[:, t] == TOOL).float() * own[:, t] * good[:, :t + 1].sum(1) / (t + 1)"),
 ("behaviour_weight_of_prefix", A, False, "the behaviour weight of a token is the product of the ratios up to it", 'if c["is_level"] == "sequence": d = d.sum(1, keepdim=True).expand_as(d)', "d = d.cumsum(1)"),
 ("proximal_halfway", A, False, "the proximal log-probs in the ratio are halfway between those of the trainer and the engine", 'tl = surrogate(lp, x["old"], x["adv"], c) * x["w"]', 'tl = surrogate(lp, torch.lerp(x["old"], x["gen"], 0.5), x["adv"], c) * x["w"]'),
 ("lambda_decays_in_holes", A, False, "gae: λ's sum decays by γλ over every observation token", "last = torch.where(m[:, t] > 0, new, last)", "last = torch.where(m[:, t] > 0, new, gamma * lam * last)"),
 ("cut_rows_bootstrapped", A, True, "gae: rows that were cut begin with the value of their last token (legal: truncated_bootstrap)", "torch.zeros_like(r), torch.zeros(len(r)), torch.zeros(len(r))", "torch.zeros_like(r), torch.zeros(len(r)), torch.where(ended, 0.0, v[:, -1])"),
 ("total_of_first_rank", A, False, "the tokens of all ranks are taken to be those of rank 0 times the ranks", 'total = sum(s["m"].sum() for s in shards)', 'total = shards[0]["m"].sum() * R'),
 ("value_loss_of_observations", A, False, "the value loss sums over observation tokens, too", 'vl = 0.5 * ((vp - x["ret"]) ** 2 * x["m"]).sum() / total * R', 'vl = 0.5 * ((vp - x["ret"]) ** 2 * x["att"]).sum() / total * R'),
 ("whiten_counts_attention", A, False, "whitening divides the sums over own tokens by the number of attended tokens", "n = m.sum(); mu", "n = att.sum(); mu"),
 ("value_coef_one", A, True, "the value loss enters with the coefficient 1 (legal: value.coef)", 'loss = loss + c["vf"] * vl', "loss = loss + vl"),
 ("old_sharded_by_stride", A, False, "shards: the old log-probs of a rank are every second row, all else is its block", "shards = [{k: x[mb][r * per:(r + 1) * per] for k, x in roll.items()} for r in range(R)]", 'shards = [{k: x[mb][r::R] if k == "old" else x[mb][r * per:(r + 1) * per] for k, x in roll.items()} for r in range(R)]'),
 ("returns_run_forward", B, False, "REINFORCE++: the rewards are summed from the start to the token", "returns = torch.flip(torch.cumsum(torch.flip(r * m, [1]), 1), [1]) * m", "returns = torch.cumsum(r * m, 1) * m"),
 ("returns_whitened_by_first_column", B, False, "REINFORCE++: mean and variance are those of the returns of first tokens", "return whiten_all(returns, m, m)", "return (returns - returns[:, 0].mean()) * torch.rsqrt(returns[:, 0].var(unbiased=False) + 1e-8) * m"),
 ("kl_reward_cumulated", B, False, "the KL penalty of a token is the sum up to it", "kl = old - lp_ref\n", "kl = ((old - lp_ref) * m).cumsum(1)\n"),
 ("sequence_weight_is_mean", B, True, "the weight of a sequence is the geometric mean (legal: seq_geo)", 'd = d.sum(1, keepdim=True).expand_as(d)', 'd = (d.sum(1, keepdim=True) / m.sum(1, keepdim=True)).expand_as(d)'),
 ("rows_minus_one", B, False, "the loss is divided by the rows less one", 'else: loss = (tl * x["m"]).sum() / len(mb) * R', 'else: loss = (tl * x["m"]).sum() / (len(mb) - 1) * R'),
 ("ratio_in_bf16", B, False, "the ratio is computed from a difference in bfloat16", 'return -torch.clamp(ratio, max=1 + c["high"]).detach() * adv * lp\n    ratio = torch.exp(lp - old)', 'return -torch.clamp(ratio, max=1 + c["high"]).detach() * adv * lp\n    ratio = torch.exp((lp - old).bfloat16()).float()'),
 ("weight_capped_by_inverse", B, False, "the weight is 1/max(w, 1/cap): the ratio of engine over trainer, capped", 'return torch.exp(d).clamp(max=c["is_max"]) * m', 'return torch.exp(d).clamp(min=1 / c["is_max"]).reciprocal() * m'),
 ("clamp_of_product", B, False, "the clamp acts on ratio·A and not on the ratio", 'torch.clamp(ratio, 1 - c["low"], 1 + c["high"]) * adv)', 'torch.clamp(ratio * adv, 1 - c["low"], 1 + c["high"]))'),
 ("state_runs_over_segments", C, False, "packed rows: the state of a sequence goes on into the next one", "h = model.hidden(ids[row:row + 1, a:b])[0][0]", "h = model.hidden(ids[row:row + 1, :b])[0][0, a:]"),
 ("rows_counted_for_sequences", C, False, "the sum over sequences is divided by packed rows", "loss = torch.stack(rows).sum() / len(spans)", "loss = torch.stack(rows).sum() / len(ids)"),
 ("length_with_prompt", C, False, "a sequence's sum is divided by its span, prompt included", "(per[row, a + k:b]).sum() / (b - a - k)", "(per[row, a + k:b]).sum() / (b - a)"),
 ("cispo_both_bounds", C, True, "CISPO's weight has a lower bound, too (legal: verl)", 'torch.clamp(ratio, max=1 + c["high"])', 'torch.clamp(ratio, 1 - c["high"], 1 + c["high"])'),
 ("kl_only_with_advantage", C, False, "no KL where the advantage is 0 (groups of equal rewards)", "kl = 0.5 * (lp - lp_ref) ** 2", "kl = 0.5 * (lp - lp_ref) ** 2 * (adv != 0)"),
 ("cispo_log_ratio", C, False, "CISPO: the log-ratio stands in place of the log-prob (same gradient, another value)", ".detach() * adv * lp\n", ".detach() * adv * (lp - old)\n"),
]

def run(config, edit, writer):
    ns = dict(globals())
    for s in plant([own_source(__file__, "trainer")], edit): exec(compile(s, "t4", "exec"), ns)
    c = copy.deepcopy({k: v for k, v in CONFIGS[config].items() if k != "observe"}) | dict(observe=CONFIGS[config]["observe"])
    ns["train_packed" if "width" in c else "train_padded"](c, writer)

if __name__ == "__main__":
    main("t4_async_agents", __file__, {A: ("agents, decoupled PPO, critic, one rollout behind, 2 ranks", []), B: ("REINFORCE++ one step off, sequence weights", []), C: ("packed rows, CISPO, k2", [])}, BUGS, run)
