"""t3: a researcher's own trainer: PPO with a value head on a shared trunk, and GRPO, in one file. Little is declared."""
from world_t import *

# <trainer>
def logprobs(model, ids, T, resp, temp, value=False):
    if value: logits, v = model.both(ids, T)
    else: logits, v = model.logits(ids, T), None
    ls = torch.log_softmax(logits / temp, dim=-1)
    return ls.gather(2, resp[:, :, None])[:, :, 0], v, -(ls.exp() * ls).sum(-1), logits

def masked_mean(x, m): return (x * m).sum() / m.sum()

def gae(rewards, values, mask, gamma, lam):
    adv, last, T = torch.zeros_like(rewards), torch.zeros(len(rewards)), rewards.shape[1]
    for t in reversed(range(T)):
        nxt = values[:, t + 1] * mask[:, t + 1] if t < T - 1 else torch.zeros(len(rewards))
        delta = rewards[:, t] + gamma * nxt - values[:, t]
        last = (delta + gamma * lam * last) * mask[:, t]
        adv[:, t] = last
    return adv, (adv + values) * mask

def whiten(x, m):
    mu = masked_mean(x, m)
    sd = masked_mean((x - mu) ** 2, m).sqrt()
    return (x - mu) / (sd + 1e-8) * m

def shape_rewards(score, lp, ref, mask, ended, kl_coef, penalty):
    score = torch.where(ended, score, score - penalty)
    r = -kl_coef * (lp - ref) * mask
    lengths = mask.sum(1).long()
    r[torch.arange(len(r)), lengths - 1] += score.clamp(-1.5, 1.5)
    return r, score

def group_advantages(score, G, kind):
    g = score.view(-1, G)
    if kind == "loo": a = g - (g.sum(1, keepdim=True) - g) / (G - 1)
    else: a = (g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)
    return a.reshape(-1)

def policy_loss(lp, old, adv, mask, c):
    if c["level"] == "sequence":
        w = ((lp - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        ratio = torch.exp(w).expand_as(lp)
    else: ratio = torch.exp(lp - old)
    clipped = torch.clamp(ratio, 1 - c["clip_low"], 1 + c["clip_high"])
    return torch.max(-adv * ratio, -adv * clipped), ratio

def k3(lp, ref): return torch.exp(ref - lp) - 1 - (ref - lp)

def value_objective(v, old_v, ret, clip):
    vc = old_v + torch.clamp(v - old_v, -clip, clip)
    return 0.5 * torch.max((v - ret) ** 2, (vc - ret) ** 2)

def train(c, write):
    gen = torch.Generator().manual_seed(c["seed"]); torch.manual_seed(c["seed"])
    model = LM(c["seed"], value=c["critic"]); ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(torch.randn(p.shape, generator=gen) * 0.01)
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    step, G, T, N = 0, c["group"], c["T"], c["rows"]
    for rollout in range(c["rollouts"]):
        for g in opt.param_groups: g["lr"] = c["lr"] * (1 - rollout / 10)
        engine = engine_of(model, bf16=c["bf16"])
        prompts = make_prompts(N // G, 6, gen).repeat_interleave(G, 0)
        resp, lp_gen, mask, _ = sample(engine, prompts, T, c["temp"], gen)
        ids, ended, mask = torch.cat([prompts, resp], 1), (resp == EOS).any(1), mask.float()
        raw = 0.4 + r_parity(prompts, resp, mask) + r_length(prompts, resp, mask) * 0.8
        with torch.no_grad():
            old, values, _, _ = logprobs(model, ids, T, resp, c["temp"], value=c["critic"])
            lp_ref = logprobs(ref, ids, T, resp, c["temp"])[0]
        roll = dict(ids=ids, resp=resp, mask=mask, old=old, ref=lp_ref, gen=lp_gen, score=raw, gid=torch.arange(N) // G + rollout * 100, sid=torch.arange(N) + rollout * N)
        if c["critic"]:
            roll["rew"], _ = shape_rewards(raw, old, lp_ref, mask, ended, c["kl"], c["penalty"])
            adv, roll["ret"] = gae(roll["rew"], values, mask, c["gamma"], c["lam"])
            roll["adv"] = whiten(adv, mask) if c["whiten"] == "batch" else adv
            roll["val"] = values
        else:
            roll["adv"] = group_advantages(raw, G, c["kind"])
        for epoch in range(c["epochs"]):
            perm = torch.randperm(N, generator=gen)
            for mb in perm.split(N // c["minibatches"]):
                b = {k: x[mb] for k, x in roll.items()}; m = b["mask"]
                step += 1; opt.zero_grad()
                total = m.sum()
                parts = list(range(0, len(mb), len(mb) // c["accumulate"]))
                adv_all = whiten(b["adv"], m) if c["whiten"] == "minibatch" else b["adv"]
                dumps = []
                for j, s in enumerate(parts):
                    e = s + len(mb) // c["accumulate"]; x = {k: y[s:e] for k, y in b.items()}; mm = x["mask"]
                    adv = adv_all[s:e]
                    lp, v, ent, logits = logprobs(model, x["ids"], T, x["resp"], c["temp"], value=c["critic"])
                    a = adv if adv.dim() == 2 else adv[:, None]
                    pl, ratio = policy_loss(lp, x["old"], a, mm, c)
                    if c["agg"] == "token": pg = (pl * mm).sum() / total
                    else: pg = ((pl * mm).sum(1) / mm.sum(1)).sum() / len(mb)
                    loss, kl, vl = pg, None, None
                    if c["kl_loss"]:
                        kl = k3(lp, x["ref"])
                        loss = loss + c["kl_loss"] * (kl * mm).sum() / total
                    if c["critic"]:
                        vl = (value_objective(v, x["val"], x["ret"], c["vclip"]) * mm).sum() / total
                        loss = loss + c["vf"] * vl
                    if c["ent"]: loss = loss - c["ent"] * (ent * mm).sum() / total
                    dumps.append(collect(c, x, adv, lp, v, ent, pl, pg, kl, vl, loss, logits, ratio, mm))
                    loss.backward()
                named = [(n, p) for n, p in model.named_parameters() if c["weights"]]
                before = {n: p.detach().clone() for n, p in named}; grads = {n: p.grad.clone() for n, p in named}
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c["max_norm"])
                opt.step()
                last = {f"grad/{n}": g for n, g in grads.items()} | {f"weights/{n}": w for n, w in before.items()} | {f"update/{n}": p.detach() - before[n] for n, p in named}
                for j, (t, sc) in enumerate(dumps):
                    emit(c, write, step, j, t | (last if j == len(dumps) - 1 else {}), sc | dict(lr=opt.param_groups[0]["lr"], grad_norm=float(norm)))
# </trainer>

# <hook>
def collect(c, x, adv, lp, v, ent, pl, pg, kl, vl, loss, logits, ratio, mm):
    t = dict(response_ids=x["resp"], response_mask=mm, logp_new=lp, logp_old=x["old"], logp_ref=x["ref"], logp_gen=x["gen"], advantages=adv, scores=x["score"], group_id=x["gid"], sample_id=x["sid"],
             token_rewards=x.get("rew"), values=x.get("val"), returns=x.get("ret"), values_new=v, entropy=ent, token_loss=pl, pg_loss=pg, kl=kl, value_loss=vl, loss=loss, logits=logits,
             dlogp=torch.autograd.grad(loss, lp, retain_graph=True)[0])
    if v is not None: t["dvalues"] = torch.autograd.grad(loss, v, retain_graph=True)[0]
    t = {k: y.detach().clone() for k, y in t.items() if y is not None and (c["dumped"] is None or k in c["dumped"])}
    if "response_mask" in t: t["response_mask"] = t["response_mask"].to(torch.uint8)
    clipped = ((ratio < 1 - c["clip_low"]) | (ratio > 1 + c["clip_high"])).float()
    return t, dict(clip_fraction=masked_mean(clipped, mm).item(), loss=loss.item(), entropy=masked_mean(ent, mm).item())
def emit(c, write, step, j, t, scalars):
    write(dict(schema=2, framework="minirl", version="0.0.3", algorithm=c["algorithm"], run=f"t3-{c['name']}", step=step, micro_batch=j, micro_batches=c["accumulate"], options=c["options"],
               scalars=scalars if c["log"] else {}, scalars_scope="micro_batch", **({"token_loss_includes_kl": False} if c["dumped"] is None else {})), t)
# </hook>

BASE = dict(rollouts=3, rows=32, group=4, T=24, epochs=2, minibatches=2, accumulate=1, temp=1.0, bf16=True, lr=5e-3, max_norm=0.5, level="token", clip_low=0.2, clip_high=0.2, agg="token", kl_loss=0.0, ent=0.0,
            critic=False, kind="std", whiten="none", weights=False, dumped=None, log=True, kl=0.0, penalty=0.0, gamma=1.0, lam=0.95, vf=0.0, vclip=0.2)
CONFIGS = dict(
    ppo_shared_trunk=BASE | dict(seed=31, critic=True, algorithm="ppo", kl=0.08, penalty=0.7, gamma=0.99, vf=0.25, ent=0.005, whiten="minibatch", weights=True, group=1, accumulate=2,
        options={"clip.low": 0.2, "gae.gamma": 0.99, "gae.lambda": 0.95, "eos_token_id": EOS, "num_mini_batches": 2}),
    grpo_std_kl=BASE | dict(seed=32, algorithm="grpo", kl_loss=0.08, clip_high=0.3, agg="row", temp=0.85, accumulate=2,
        options={"num_generations": 4, "kl.beta": 0.08, "temperature": 0.85, "num_mini_batches": 2}),
    loo_sequence_few=BASE | dict(seed=33, algorithm="grpo", kind="loo", level="sequence", clip_low=0.03, clip_high=0.04, epochs=3, agg="row", log=False, lr=1e-2,
        dumped=("response_mask", "logp_new", "logp_old", "advantages", "scores", "group_id", "sample_id", "loss"), options={"num_mini_batches": 2}))
for n, c in CONFIGS.items(): c["name"] = n

A, B, C = CONFIGS
BUGS = [
 ("gae_value_of_next_row", A, False, "gae: the next value is values[:, t+1] rolled by one row", "nxt = values[:, t + 1] * mask[:, t + 1] if", "nxt = values.roll(1, 0)[:, t + 1] * mask[:, t + 1] if"),
 ("gae_lambda_sum_of_batch", A, False, "gae: the recursion takes the mean over the rows of the sum so far (a reduction without dim)", "last = (delta + gamma * lam * last) * mask[:, t]", "last = (delta + gamma * lam * last.mean()) * mask[:, t]"),
 ("kl_shifted_one_token", A, False, "the KL penalty of a token is that of the token before", "r = -kl_coef * (lp - ref) * mask", "r = -kl_coef * (lp - ref).roll(1, 1) * mask"),
 ("penalty_again_after_clamp", A, False, "a response without EOS is penalised again after the clamp of the score", "r[torch.arange(len(r)), lengths - 1] += score.clamp(-1.5, 1.5)", "r[torch.arange(len(r)), lengths - 1] += score.clamp(-1.5, 1.5) - torch.where(ended, 0.0, penalty)"),
 ("score_overwrites_kl", A, False, "the score is put in place of the last token's KL penalty, not added", "r[torch.arange(len(r)), lengths - 1] += score.clamp(-1.5, 1.5)", "r[torch.arange(len(r)), lengths - 1] = score.clamp(-1.5, 1.5)"),
 ("value_clip_multiplicative", A, False, "the value's clip range is relative: ± clip·|old value|", "vc = old_v + torch.clamp(v - old_v, -clip, clip)", "vc = old_v + torch.maximum(torch.minimum(v - old_v, clip * old_v.abs()), -clip * old_v.abs())"),
 ("whiten_mean_unmasked", A, False, "advantages are whitened over the mini-batch, but the mean is not over the masked cells", "mu = masked_mean(x, m)\n    sd", "mu = (x * m).mean()\n    sd"),
 ("returns_lack_rewards_of_cut", A, False, "returns lack the rewards of rows that reach the full length", "return adv, (adv + values) * mask", "return adv, (adv + values) * mask - rewards * mask * (mask.sum(1, keepdim=True) == T)"),
 ("value_loss_accumulation_twice", A, False, "the value loss is divided by tokens of the mini-batch and by the accumulation, the rest is not", 'loss = loss + c["vf"] * vl', 'loss = loss + c["vf"] * vl / c["accumulate"]'),
 ("grad_zeroed_per_microbatch", A, False, "optimizer.zero_grad() inside the accumulation loop: the step is of the last micro-batch alone (grad is that of all in the healthy run)", "dumps.append(collect(", "opt.zero_grad(); dumps.append(collect("),
 ("clip_after_step", A, False, "the gradient is clipped after the step: not at all", 'norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c["max_norm"])\n                opt.step()', 'opt.step()\n                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c["max_norm"])'),
 ("lr_falls_faster", A, True, "the learning rate falls twice as fast (legal)", 'g["lr"] = c["lr"] * (1 - rollout / 10)', 'g["lr"] = c["lr"] * (1 - rollout / 5)'),
 ("entropy_of_log_twice", A, False, "the entropy is -Σ p·log p of probabilities that were softmaxed twice", "return ls.gather(2, resp[:, :, None])[:, :, 0], v, -(ls.exp() * ls).sum(-1), logits", "return ls.gather(2, resp[:, :, None])[:, :, 0], v, -(ls.exp() * ls.exp().log_softmax(-1)).sum(-1), logits"),
 ("std_of_prompt_means", B, False, "the group is divided by the σ of the batch's means of groups", "(g.std(1, keepdim=True) + 1e-6)", "(g.mean(1).std() + 1e-6)"),
 ("groups_of_shifted_rows", B, False, "groups start one row late (rows rolled by one before the view, and not back)", "g = score.view(-1, G)", "g = score.roll(1).view(-1, G)"),
 ("k3_exponent_detached", B, False, "k3's exponent is detached", "def k3(lp, ref): return torch.exp(ref - lp) - 1 - (ref - lp)", "def k3(lp, ref): return torch.exp(ref - lp).detach() - 1 - (ref - lp)"),
 ("kl_over_microbatch_tokens", B, False, "the KL term is divided by the tokens of its micro-batch", 'loss = loss + c["kl_loss"] * (kl * mm).sum() / total', 'loss = loss + c["kl_loss"] * (kl * mm).sum() / mm.sum()'),
 ("clip_high_reciprocal_of_low", B, False, "the upper bound is 1 / (1 - clip_low) in place of 1 + clip_high", '1 + c["clip_high"])\n', '1 / (1 - c["clip_low"]))\n'),
 ("row_means_over_all_rows", B, False, "row means are divided by the rows of the rollout, not of the mini-batch", ").sum() / len(mb)", ").sum() / N"),
 ("loo_by_group_size", C, False, "leave-one-out: the others' sum is divided by G", "(g.sum(1, keepdim=True) - g) / (G - 1)", "(g.sum(1, keepdim=True) - g) / G"),
 ("sequence_ratio_unmasked", C, False, "the sequence's log-ratio is a sum over all columns, divided by the length", "w = ((lp - old) * mask).sum(1, keepdim=True)", "w = (lp - old).sum(1, keepdim=True)"),
 ("clip_by_side_not_max", C, False, "the clip is chosen by the ratio's side and not by the maximum: where(ratio > 1, clipped, ratio)", "return torch.max(-adv * ratio, -adv * clipped), ratio", "return torch.where(ratio > 1, -adv * clipped, -adv * ratio), ratio"),
 ("advantages_of_last_rollout", C, False, "advantages are those of the rollout before, from the second rollout on", 'roll["adv"] = group_advantages(raw, G, c["kind"])', 'roll["adv"] = c.get("_adv", group_advantages(raw, G, c["kind"])); c["_adv"] = group_advantages(raw, G, c["kind"])'),
 ("mean_group_center", C, True, "the group's mean is subtracted in place of that of the others (legal: Dr.GRPO)", 'if kind == "loo": a = g - (g.sum(1, keepdim=True) - g) / (G - 1)', 'if kind == "loo": a = g - g.mean(1, keepdim=True)'),
]

def run(config, edit, writer):
    ns = dict(globals())
    for s in plant([own_source(__file__, "trainer")], edit): exec(compile(s, "t3", "exec"), ns)
    globals()["masked_mean"] = ns["masked_mean"]
    ns["train"](copy.deepcopy(CONFIGS[config]), writer)

if __name__ == "__main__":
    main("t3_own_mix", __file__, {A: ("PPO with a value head on a shared trunk, healthy", []), B: ("GRPO with std, KL in the loss, accumulation, healthy", []),
                                  C: ("leave-one-out, sequence ratio, few tensors, healthy", [])}, BUGS, run)
