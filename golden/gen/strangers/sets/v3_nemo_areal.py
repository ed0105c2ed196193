"""Two trainers of the same rollouts: GRPO in the manner of NeMo-RL (left-out baselines, sample masks, a global count of tokens, weights between engine
and trainer) and asynchronous PPO in the manner of AReaL (behaviour, proximal and new policy, critic).   python v3_nemo_areal.py CASES [case…]"""
import copy, sys
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from world_v import Attn, Bug, Dumper, Gru, LM, main, read, sample

V, EOS, PAD = 48, 46, 47


# ------------------------------------------------------------------ rollouts
def make_prompts(n, width, gen):
    p = torch.randint(0, EOS, (n, width), generator=gen)
    p[:, 0] = torch.randint(0, 3, (n,), generator=gen)  # one of three system tokens
    return p


def pattern(o, p):
    hits = sum((a + b) % 3 == 0 for a, b in zip(o, o[1:]))
    return 2.0 * hits / max(len(o), 2) - (0.6 if o[-1] != EOS else 0.0)


def steps_up(o, p):
    return float(sum(b > a for a, b in zip(o, o[1:])) >= len(o) / 2) + 0.1 * (p[-1] in o)


def verifier(o, p):
    return 1.0 if (sum(o[:4]) + p[-1]) % 2 else 0.0


def rollout(engine, c, gen, index):
    G, n = c["generations"], c["rows"]
    prompts = make_prompts(n // G, c["prompt"], gen).repeat_interleave(G, 0)
    out, gen_lp, done = sample(engine, prompts, torch.ones_like(prompts), c["length"], c["temperature"], EOS, PAD, gen, low=c["low"], noise=c["noise"])
    out, gen_lp = F.pad(out, (0, c["length"] - out.shape[1]), value=PAD), F.pad(gen_lp, (0, c["length"] - gen_lp.shape[1]))
    mask = (out != PAD).float()
    rewards = torch.tensor([c["reward"](out[i, :int(mask[i].sum())].tolist(), prompts[i].tolist()) for i in range(n)])
    return dict(prompts=prompts, input_ids=torch.cat([prompts, out], 1), response=out, mask=mask, finished=done, total_reward=rewards, behaviour=gen_lp,
                sample_id=torch.arange(n) + index * n, group_id=torch.arange(n) // G + index * n)


def token_logprobs(model, ids, attention, temperature):
    """[B, S-1]: entry s is of ids[s+1]."""
    logits = model(ids, attention_mask=attention).logits[:, :-1] / temperature
    return F.log_softmax(logits, -1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1) * attention[:, 1:]


# ------------------------------------------------------------------ NeMo-RL
def baseline_and_std(prompts, rewards, leave_one_out=True):
    baseline, sq_baseline, count = torch.zeros_like(rewards), torch.zeros_like(rewards), torch.zeros_like(rewards)
    keys = torch.unique(prompts, dim=0, return_inverse=True)[1]
    for key in keys.unique():
        idx = (keys == key).nonzero().squeeze(-1)
        n = len(idx)
        others = (1 - torch.eye(n)) if leave_one_out else torch.ones(n, n)
        valid = n - int(leave_one_out)
        baseline[idx] = others @ rewards[idx] / valid
        sq_baseline[idx] = others @ rewards[idx].square() / valid
        count[idx] = valid
    std = ((sq_baseline - baseline.square()) * (count / (count - 1))).clamp(min=0).sqrt()
    return baseline, std


def grpo_advantages(batch, c):
    rewards = batch["total_reward"]
    baseline, std = baseline_and_std(batch["prompts"], rewards, c["leave_one_out"])
    advantages = rewards - baseline
    if c["normalize_rewards"]:
        nonzero = std > 1e-4
        advantages = torch.where(nonzero, advantages / (std + 1e-6), advantages)
    return advantages


def clipped_pg_loss(curr, data, c, global_valid_toks, global_valid_seqs):
    token_mask, sample_mask = data["token_mask"][:, 1:], data["sample_mask"]
    mask = token_mask * sample_mask.unsqueeze(-1)
    prev, gen, adv = data["prev_logprobs"][:, 1:], data["generation_logprobs"][:, 1:], data["advantages"].unsqueeze(-1)
    log_ratio = curr - prev
    if c["sequence_level_ratio"]:
        lengths = mask.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = ((log_ratio * mask).sum(-1, keepdim=True) / lengths).expand_as(log_ratio)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - c["ratio_clip_min"], 1 + c["ratio_clip_max"])
    loss = torch.max(-adv * ratio, -adv * clipped)
    if c["ratio_clip_c"]:
        loss = torch.where(adv < 0, torch.min(loss, -adv * c["ratio_clip_c"]), loss)
    weights = None
    if c["truncated_importance"]:
        weights = torch.exp(prev - gen).detach().clamp(max=c["truncated_importance"])
    policy_term = loss if weights is None else loss * weights
    if c["token_level_loss"]:
        pg_loss = (policy_term * mask).sum() / global_valid_toks
    else:
        per_seq = (policy_term * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        pg_loss = (per_seq * sample_mask).sum() / global_valid_seqs
    kl = kl_loss = None
    if c["kl_penalty"]:
        d = data["reference_policy_logprobs"][:, 1:] - curr
        kl = d.exp() - 1 - d
        kl_loss = (kl * mask).sum() / global_valid_toks
    total = pg_loss if kl is None else pg_loss + c["kl_penalty"] * kl_loss
    return total, dict(pg_loss=pg_loss, kl=kl, kl_loss=kl_loss, token_loss=policy_term, is_weights=weights, mask=mask)


def nemo(dump, c):
    gen = torch.Generator().manual_seed(c["seed"])
    policy = LM(Attn(V, 24, 2, 1, c["prompt"] + c["length"]), 24, V, never=(PAD,), sharp=c["sharp"])
    reference = copy.deepcopy(policy)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=gen))
    opt = torch.optim.AdamW(policy.parameters(), lr=c["lr"], weight_decay=0.01)
    step, P, n = 0, c["prompt"], c["rows"]
    for it in range(c["rollouts"]):
        r = rollout(policy, c, gen, it)
        ids, attention = r["input_ids"], torch.cat([torch.ones(n, P), r["mask"]], 1).long()
        with torch.no_grad():
            prev = F.pad(token_logprobs(policy, ids, attention, c["temperature"]), (1, 0))
            ref = F.pad(token_logprobs(reference, ids, attention, c["temperature"]), (1, 0))
        data = dict(token_mask=torch.cat([torch.zeros(n, P), r["mask"]], 1), prev_logprobs=prev, reference_policy_logprobs=ref, attention=attention, input_ids=ids,
                    generation_logprobs=torch.cat([torch.zeros(n, P), r["behaviour"]], 1), advantages=grpo_advantages(r, c), total_reward=r["total_reward"],
                    sample_mask=r["finished"].float() if c["overlong_filtering"] else torch.ones(n), sample_id=r["sample_id"], group_id=r["group_id"])
        order = torch.randperm(n, generator=gen)
        size = n // c["minis"]
        for k in range(c["minis"]):
            rows, step = order[k * size:(k + 1) * size], step + 1
            batch = {x: y[rows] for x, y in data.items()}
            both = batch["token_mask"] * batch["sample_mask"].unsqueeze(-1)
            valid_toks, valid_seqs = both[:, 1:].sum(), batch["sample_mask"].sum()
            micros = size // c["micro"]
            for m in range(micros):
                part = {x: y[m * c["micro"]:(m + 1) * c["micro"]] for x, y in batch.items()}
                curr = token_logprobs(policy, part["input_ids"], part["attention"], c["temperature"])
                loss, got = clipped_pg_loss(curr, part, c, valid_toks, valid_seqs)
                (dlogp,) = torch.autograd.grad(loss, curr, retain_graph=True)
                loss.backward()
                t = dict(response_mask=got["mask"].bool(), input_ids=part["input_ids"], attention_mask=part["attention"], prompt_len=torch.full((len(curr),), P), logp_new=curr,
                         logp_old=part["prev_logprobs"][:, 1:], logp_gen=part["generation_logprobs"][:, 1:], advantages=part["advantages"], scores=part["total_reward"],
                         group_id=part["group_id"], sample_id=part["sample_id"], loss=loss, pg_loss=got["pg_loss"], token_loss=got["token_loss"], dlogp=dlogp)
                if c["kl_penalty"]:
                    t.update(logp_ref=part["reference_policy_logprobs"][:, 1:], kl=got["kl"], kl_loss=got["kl_loss"])
                if got["is_weights"] is not None:
                    t.update(is_weights=got["is_weights"])
                dump(step, t, m, micros, align="shifted", token_loss_includes_kl=False)
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            opt.zero_grad()


# ------------------------------------------------------------------ AReaL
def gae_rewards(r, prox, ref, values, c):
    mask, n = r["mask"], len(prox)
    kl = prox - ref
    kl_rewards = -c["kl_ctl"] * kl * mask
    tot_rewards = kl_rewards.clone()
    last = mask.sum(1).long() - 1
    score = r["total_reward"].clamp(-c["reward_clip"], c["reward_clip"])
    tot_rewards[torch.arange(n), last] += score
    advantages, lastgaelam, nextvalues = [], torch.zeros(n), torch.zeros(n)
    for t in reversed(range(mask.shape[1])):
        delta = tot_rewards[:, t] + c["discount"] * nextvalues - values[:, t]
        new = delta + c["discount"] * c["gae_lambda"] * lastgaelam
        m = mask[:, t]
        nextvalues = nextvalues * (1 - m) + values[:, t] * m
        lastgaelam = lastgaelam * (1 - m) + new * m
        advantages.append(lastgaelam)
    advantages = torch.stack(advantages[::-1], 1)
    returns = (advantages + values) * mask
    mean = (advantages * mask).sum() / mask.sum()
    std = (((advantages - mean) ** 2 * mask).sum() / mask.sum()).sqrt()
    return (advantages - mean) / (std + 1e-5) * mask, returns, tot_rewards, kl


def decoupled_loss(logp, b, c, count):
    mask = b["mask"]
    ratio = torch.exp(logp - b["prox"])
    clipped = ratio.clamp(1 - c["eps_clip"], 1 + c["eps_clip"])
    token_loss = torch.max(-b["advantages"] * ratio, -b["advantages"] * clipped)
    behave = torch.exp(b["prox"] - b["behaviour"])
    keep = behave <= c["behave_cap"]
    weights = torch.where(keep, behave, torch.zeros_like(behave))
    return (token_loss * weights * mask).sum() / count, token_loss * weights, weights


def critic_loss(new, b, c, count):
    mask = b["mask"]
    around = b["values"] + (new - b["values"]).clamp(-c["value_eps_clip"], c["value_eps_clip"])
    worse = torch.max((new - b["returns"]) ** 2, (around - b["returns"]) ** 2)
    return 0.5 * (worse * mask).sum() / count


def areal(dump, c):
    gen = torch.Generator().manual_seed(c["seed"])
    actor, critic = LM(Gru(V, 32), 32, V, never=(PAD,), sharp=c["sharp"]), LM(Gru(V, 20), 20, 1)
    reference, engine = copy.deepcopy(actor), copy.deepcopy(actor)
    opt = torch.optim.Adam(list(actor.parameters()), lr=c["lr"], betas=(0.9, 0.95))
    copt = torch.optim.Adam(critic.parameters(), lr=c["lr"])
    step, P, n = 0, c["prompt"], c["rows"]
    waiting = [rollout(engine, c, gen, 0)]  # the engine is one rollout ahead
    for it in range(c["rollouts"]):
        waiting.append(rollout(engine, c, gen, it + 1))
        r = waiting.pop(0)
        ids, attention = r["input_ids"], torch.cat([torch.ones(n, P), r["mask"]], 1).long()
        proximal = copy.deepcopy(actor)
        with torch.no_grad():
            prox = token_logprobs(proximal, ids, attention, c["temperature"])[:, P - 1:]
            ref = token_logprobs(reference, ids, attention, c["temperature"])[:, P - 1:]
            values = critic(ids).logits.squeeze(-1)[:, P - 1:-1] * r["mask"]
        advantages, returns, tot_rewards, kl = gae_rewards(r, prox, ref, values, c)
        data = dict(ids=ids, attention=attention, prox=prox, ref=ref, values=values, advantages=advantages, returns=returns, tot_rewards=tot_rewards, kl=kl,
                    **{k: r[k] for k in "mask behaviour response total_reward sample_id".split()})
        for epoch in range(c["epochs"]):
            order = torch.randperm(n, generator=gen)
            for rows in order.split(n // c["minis"]):
                step += 1
                b = {k: x[rows] for k, x in data.items()}
                count = b["mask"].sum()
                logp = token_logprobs(actor, b["ids"], b["attention"], c["temperature"])[:, P - 1:]
                loss, token_loss, weights = decoupled_loss(logp, b, c, count)
                new = critic(b["ids"]).logits.squeeze(-1)[:, P - 1:-1] * b["mask"]
                vloss = critic_loss(new, b, c, count)
                (dlogp,), (dvalues,) = torch.autograd.grad(loss, logp, retain_graph=True), torch.autograd.grad(vloss, new, retain_graph=True)
                (loss + vloss).backward()
                t = dict(response_mask=b["mask"].bool(), response_ids=b["response"], logp_new=logp, logp_old=b["prox"], logp_gen=b["behaviour"], logp_ref=b["ref"], is_weights=weights,
                         token_loss=token_loss, loss=loss, pg_loss=loss, dlogp=dlogp, advantages=b["advantages"], returns=b["returns"], values=b["values"], values_new=new,
                         value_loss=vloss, dvalues=dvalues, token_rewards=b["tot_rewards"], kl=b["kl"], scores=b["total_reward"], sample_id=b["sample_id"])
                dump(step, t, align="response")
                for o, net in ((opt, actor), (copt, critic)):
                    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                    o.step()
                    o.zero_grad()
        engine.load_state_dict(actor.state_dict())


def start(folder, c):
    dump = Dumper(folder, run=f"{c['kind']}-{c['seed']}", framework=c["framework"], version="main", algorithm=c["algorithm"], options=c["options"], compute_dtype="float32")
    dump.keep = c["keep"]
    (nemo if c["kind"] == "nemo" else areal)(dump, c)


# ================================================================== cases
TRAINER = read(__file__).split("# ====" + "=" * 62)[0]


def run(folder, c, plant):
    space = dict(__name__="trainer")
    exec(compile(plant("self", TRAINER), "v3", "exec"), space)
    space["start"](folder, {**c, "reward": space[c["reward"]]})


RATIO = {"loss.kind": "ppo", "ratio.level": "token", "ratio.old": "stored", "tis.gate": "ratio", "tis.level": "token", "kl.under_is_weight": "outside"}
GROUP = {"adv.kind": "group", "adv.center": "loo", "adv.group_by": "uid", "adv.ddof": 1, "adv.eps": 1e-6, "adv.zero_std": "skip", "eos_token_id": EOS}
BASES = dict(
    nemo=dict(kind="nemo", framework="mynemo", algorithm="grpo", seed=31, sharp=1.6, rows=48, generations=6, prompt=5, length=18, rollouts=2, minis=2, micro=12, lr=8e-3, temperature=0.8,
              low=True, noise=0.2, reward="pattern", leave_one_out=True, normalize_rewards=True, sequence_level_ratio=False, ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=3.0,
              truncated_importance=1.3, token_level_loss=True, kl_penalty=0.04, overlong_filtering=True, keep=None,
              options={**RATIO, **GROUP, "adv.scale": "loo_std", "clip.low": 0.2, "clip.high": 0.28, "clip.dual": 3.0, "tis.rule": "truncate_upper", "tis.high": 1.3, "kl.kind": "k3",
                       "kl.beta": 0.04, "kl.place": "loss", "kl.grad": "naive", "kl.clamp_in": "none", "kl.clamp_out": "none", "tis.applies_to_kl": False, "agg.kind": "token",
                       "agg.denominator": "global", "agg.div_ga": False, "logp.temperature": 0.8, "num_generations": 6, "num_mini_batches": 2}),
    areal=dict(kind="areal", framework="myareal", algorithm="ppo", seed=32, sharp=1.5, rows=32, generations=1, prompt=4, length=20, rollouts=3, epochs=2, minis=2, lr=6e-3, temperature=1.0,
               low=False, noise=0.0, reward="steps_up", kl_ctl=0.06, reward_clip=0.9, discount=0.97, gae_lambda=0.92, eps_clip=0.2, behave_cap=1.25, value_eps_clip=0.3, keep=None,
               options={**RATIO, "max_staleness": 1, "clip.low": 0.2, "clip.high": 0.2, "clip.dual": "none", "tis.rule": "zero_outside", "tis.high": 1.25, "adv.kind": "gae",
                        "gae.gamma": 0.97, "gae.lambda": 0.92, "gae.hole": "carry", "gae.value_mask": "response", "gae.truncated_bootstrap": "none", "returns.before_whiten": True,
                        "whiten.scope": "global", "whiten.mask": "response", "whiten.ddof": 0, "whiten.eps": 1e-5, "whiten.eps_place": "add_std", "whiten.shift_mean": True,
                        "score.index": "last_response", "reward.clip": "before_baseline", "reward.clip_range": [-0.9, 0.9], "kl.kind": "k1", "kl.beta": 0.06, "kl.place": "token_reward",
                        "value.factor": 0.5, "value.clip": 0.3, "value.mask": "response", "agg.kind": "token", "agg.denominator": "micro", "logp.temperature": 1.0, "eos_token_id": EOS,
                        "num_mini_batches": 2, "optim.epochs": 2}),
    # GSPO-like: ratios by sequence, mean over responses, no std, no KL, no weights; only what a lean hook keeps
    lean=dict(kind="nemo", framework="mynemo", algorithm="grpo", seed=33, sharp=1.4, rows=64, generations=4, prompt=4, length=14, rollouts=3, minis=2, micro=32, lr=1.2e-2, temperature=1.0,
              low=False, noise=0.0, reward="verifier", leave_one_out=True, normalize_rewards=False, sequence_level_ratio=True, ratio_clip_min=0.02, ratio_clip_max=0.03, ratio_clip_c=None,
              truncated_importance=None, token_level_loss=False, kl_penalty=0.0, overlong_filtering=False,
              keep="response_mask logp_new logp_old advantages scores group_id loss dlogp sample_id".split(),
              options={"loss.kind": "ppo", "ratio.level": "seq_mean", "ratio.old": "stored", **GROUP, "adv.scale": "none", "clip.low": 0.02, "clip.high": 0.03, "clip.dual": "none",
                       "kl.beta": 0, "kl.place": "none", "tis.level": "none", "agg.kind": "seq_mean_token_mean", "agg.denominator": "global", "agg.div_ga": False, "logp.temperature": 1.0,
                       "num_generations": 4, "num_mini_batches": 2}),
)
S = "self"
BUGS = [
    Bug("loo_with_self", "nemo", False, "baseline_and_std: others = ones, so that the sum has the own reward, divided by n - 1", S, "others = (1 - torch.eye(n)) if leave_one_out", "others = torch.ones(n, n) if leave_one_out"),
    Bug("std_population", "nemo", True, "the std of the others is over n, the factor count / (count - 1) is missing", S, "* (count / (count - 1))", "* 1.0"),
    Bug("mask_unshifted", "nemo", False, "token_mask[:, :-1] beside log-probs of ids[1:]: the mask is one column late, the first token is out and the cell after EOS is in", S,
        'token_mask, sample_mask = data["token_mask"][:, 1:], data["sample_mask"]', 'token_mask, sample_mask = data["token_mask"][:, :-1], data["sample_mask"]'),
    Bug("count_first_micro", "nemo", False, "global_valid_toks counts the rows of the first micro-batch alone", S,
        "valid_toks, valid_seqs = both[:, 1:].sum(), ", 'valid_toks, valid_seqs = both[:c["micro"], 1:].sum(), '),
    Bug("kl_to_engine", "nemo", False, "the KL term is taken against generation_logprobs, not the reference", S,
        'd = data["reference_policy_logprobs"][:, 1:] - curr', 'd = data["generation_logprobs"][:, 1:] - curr'),
    Bug("weights_by_new", "nemo", False, "the weights are exp(curr - gen) without detach: new over engine, with a gradient of their own", S,
        "weights = torch.exp(prev - gen).detach()", "weights = torch.exp(curr - gen)"),
    Bug("weights_on_kl", "nemo", True, "KL is multiplied by the weights as well", S, "kl = d.exp() - 1 - d\n", "kl = d.exp() - 1 - d if weights is None else (d.exp() - 1 - d) * weights\n"),
    Bug("dual_max", "nemo", False, "dual clip takes torch.max of the loss and -A·c where A < 0: never less than 3|A|", S, "torch.min(loss, -adv *", "torch.max(loss, -adv *"),
    Bug("count_filtered_rows", "nemo", False, "rows that overlong filtering takes out are still counted in global_valid_toks", S,
        'both = batch["token_mask"] * batch["sample_mask"].unsqueeze(-1)', 'both = batch["token_mask"]'),
    Bug("prev_temperature_one", "nemo", False, "prev_logprobs are computed at temperature 1, the new ones at 0.8", S,
        'prev = F.pad(token_logprobs(policy, ids, attention, c["temperature"]), (1, 0))', "prev = F.pad(token_logprobs(policy, ids, attention, 1.0), (1, 0))"),
    Bug("key_first_token", "nemo", False, "groups are keyed by the first token of the prompt (the system token): prompts that share it are one group", S,
        "torch.unique(prompts, dim=0, return_inverse=True)", "torch.unique(prompts[:, :1], dim=0, return_inverse=True)"),
    Bug("ratio_padded_mean", "lean", False, "the log-ratio of a sequence is divided by the padded width, not by its tokens", S,
        "lengths = mask.sum(-1, keepdim=True).clamp(min=1)", "lengths = torch.full_like(mask.sum(-1, keepdim=True), mask.shape[-1])"),
    Bug("baseline_next_group", "lean", False, "the baselines are rolled by one group: rewards - baseline.roll(4)", S, "advantages = rewards - baseline\n", 'advantages = rewards - baseline.roll(c["generations"])\n'),
    Bug("length_twice", "lean", False, "advantages are divided by the response's length before a loss that is a mean over the response", S,
        "advantages=grpo_advantages(r, c), total", 'advantages=grpo_advantages(r, c) / r["mask"].sum(1), total'),
    Bug("seq_len_all", "lean", False, "the mean of a response divides by its length with the prompt", S,
        "per_seq = (policy_term * mask).sum(-1) / mask.sum(-1).clamp(min=1)", 'per_seq = (policy_term * mask).sum(-1) / data["attention"].sum(-1)'),
    Bug("ratio_to_behaviour", "areal", False, "the ratio is logp - behaviour while the weights prox/behaviour stay: the gap to the engine counts twice", S,
        'ratio = torch.exp(logp - b["prox"])', 'ratio = torch.exp(logp - b["behaviour"])'),
    Bug("kl_of_behaviour", "areal", False, "the KL reward is behaviour - ref, the numbers of the engine some versions ago", S, "kl = prox - ref\n", 'kl = r["behaviour"] - ref\n'),
    Bug("score_one_early", "areal", False, "the score falls on the token before the last: mask.sum(1) - 2", S, "last = mask.sum(1).long() - 1", "last = (mask.sum(1).long() - 2).clamp(min=0)"),
    Bug("norm_all_cells", "areal", False, "mean and std of the advantages divide by all cells, not by the tokens", S,
        "mean = (advantages * mask).sum() / mask.sum()\n    std = (((advantages - mean) ** 2 * mask).sum() / mask.sum()).sqrt()",
        "mean = (advantages * mask).mean()\n    std = (((advantages - mean) ** 2 * mask).mean()).sqrt()"),
    Bug("filter_in_count", "areal", False, "the loss divides by the tokens that pass the cap, not by those of the batch", S,
        "return (token_loss * weights * mask).sum() / count,", "return (token_loss * weights * mask).sum() / (mask * keep).sum(),"),
    Bug("cap_clamps", "areal", True, "weights above the cap are cut to it, not set to zero", S, "torch.where(keep, behave, torch.zeros_like(behave))", 'behave.clamp(max=c["behave_cap"])'),
    Bug("prox_every_epoch", "areal", False, "the proximal log-probs of the second epoch are the actor's then: prox is the running copy", S,
        "        for epoch in range(c[\"epochs\"]):\n", "        for epoch in range(c[\"epochs\"]):\n            data[\"prox\"] = token_logprobs(actor, ids, attention, c[\"temperature\"])[:, P - 1:].detach()\n"),
    Bug("gamma_only_lambda", "areal", False, "δ = r + V' - V without γ (0.97), the recursion has γλ", S, 'delta = tot_rewards[:, t] + c["discount"] * nextvalues - values[:, t]', "delta = tot_rewards[:, t] + nextvalues - values[:, t]"),
]

if __name__ == "__main__":
    main("v3_nemo_areal", run, BASES, BUGS, sys.argv)
