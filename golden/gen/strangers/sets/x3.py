"""x3: a loop by someone who has read the papers: PPO with a critic on the shared trunk and GAE; GRPO with a reference and a KL loss, accumulated; REINFORCE with a
leave-one-out baseline and the KL in the rewards. One file, plain torch, of no framework; options are what its author would write down.

    python x3.py CASES
"""
import sys
from world_x import *

TEXTS = dict(program=trainer_text(__file__))

# >>> trainer
P = 4  # tokens of a prompt


def score_tokens(model, ids, temperature):
    """log π(a_t|s_t), entropies, values and logits at the response tokens."""
    logits, values = model(ids)
    logits = logits[:, P - 1 : -1]
    values = values[:, P - 1 : -1] if values is not None else None
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return logp.gather(-1, ids[:, P:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1), values, logits


def gae(rewards, values, mask, gamma, lam):
    adv, last = torch.zeros_like(rewards), torch.zeros(len(rewards))
    T = rewards.shape[1]
    for t in reversed(range(T)):
        next_value = values[:, t + 1] * mask[:, t + 1] if t + 1 < T else torch.zeros(len(rewards))
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        last = (delta + gamma * lam * last) * mask[:, t]
        adv[:, t] = last
    returns = (adv + values) * mask
    return adv, returns


def whiten(x, mask):
    chosen = x[mask.bool()]
    return (x - chosen.mean()) / (chosen.std() + 1e-8) * mask


def token_mean(x, mask):
    return (x * mask).sum() / mask.sum()


def rollout(cfg, policy, ref, it):
    G, T, temp = cfg["G"], cfg["T"], cfg["temperature"]
    prompts = make_prompts(cfg["prompts"], P, 1000 * cfg["seed"] + it).repeat_interleave(G, 0)
    engine = engine_of(policy, it, cfg["noise"])
    resp, mask, gen = sample(engine, prompts, T, temp, 50 * cfg["seed"] + it)
    ids = torch.cat([prompts, resp], 1)
    with torch.no_grad():
        old, _, values, _ = score_tokens(policy, ids, temp)
        ref_logp = score_tokens(ref, ids, temp)[0]
    lens = mask.sum(1).long()
    scores = torch.tensor([sum(f(p, r[:n]) for f in cfg["rewards"]) for p, r, n in zip(prompts.tolist(), resp.tolist(), lens.tolist())])
    return dict(ids=ids, resp=resp, mask=mask, gen=gen, old=old, values=values, ref=ref_logp, scores=scores, lens=lens,
                group=torch.arange(cfg["prompts"]).repeat_interleave(G) + 100 * it, sample=torch.arange(len(ids)) + 1000 * it)


def dump(cfg, out, step, micro, micros, t, scalars):
    t = {k: x for k, x in t.items() if x is not None and k not in cfg.get("leave_out", ())}
    meta = dict(schema=2, framework="custom", algorithm=cfg["algorithm"], run=cfg["run"], step=step, rank=0, world_size=1, micro_batch=micro, micro_batches=micros, options=dict(cfg["options"], eos_token_id=EOS),
                scalars={k: float(v) for k, v in scalars.items()}, scalars_scope="micro_batch", token_loss_includes_kl=False)
    write(out, f"step{step:04d}_{micro}", t, meta)


def common(b, i):
    return dict(response_mask=b["mask"][i], response_ids=b["resp"][i], logp_old=b["old"][i], logp_gen=b["gen"][i], logp_ref=b["ref"][i], scores=b["scores"][i], group_id=b["group"][i], sample_id=b["sample"][i])


def train_ppo(cfg, out):
    policy, ref = LM(cfg["seed"], value=True, eos=cfg["eos"]), LM(cfg["seed"] + 500, value=True, eos=cfg["eos"])
    ref.load_state_dict(policy.state_dict())
    nudge(policy, 0.03)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg["lr"], eps=1e-5)
    eps, vclip, vcoef, ecoef, beta = 0.2, 0.2, 0.5, 0.01, 0.05
    step = 0
    for it in range(cfg["rollouts"]):
        b = rollout(cfg, policy, ref, it)
        mask = b["mask"]
        # r_t = -β (log π - log π_ref), and the score on top at the last token
        rewards = -beta * (b["old"] - b["ref"]) * mask
        rewards[torch.arange(len(mask)), b["lens"] - 1] += b["scores"]
        raw, returns = gae(rewards, b["values"], mask, gamma=1.0, lam=0.95)
        adv = whiten(raw, mask)
        g = torch.Generator().manual_seed(it)
        perm = torch.randperm(len(mask), generator=g)
        for epoch in range(2):
            for i in perm.chunk(2):
                m = mask[i]
                logp, ent, v, logits = score_tokens(policy, b["ids"][i], cfg["temperature"])
                ratio = torch.exp(logp - b["old"][i])
                surr1 = ratio * adv[i]
                surr2 = torch.clamp(ratio, 1 - eps, 1 + eps) * adv[i]
                token_loss = -torch.min(surr1, surr2)
                pg_loss = token_mean(token_loss, m)
                v_clip = b["values"][i] + torch.clamp(v - b["values"][i], -vclip, vclip)
                v_loss = 0.5 * token_mean(torch.max((v - returns[i]) ** 2, (v_clip - returns[i]) ** 2), m)
                ent_loss = token_mean(ent, m)
                loss = pg_loss + vcoef * v_loss - ecoef * ent_loss
                dlogp, dv = torch.autograd.grad(loss, (logp, v), retain_graph=True)
                step += 1
                dump(cfg, out, step, 0, 1, dict(common(b, i), logp_new=logp, advantages=adv[i], returns=returns[i], values=b["values"][i], values_new=v, token_rewards=rewards[i], token_loss=token_loss,
                     entropy=ent, loss=loss, pg_loss=pg_loss, value_loss=v_loss, entropy_loss=ent_loss, dlogp=dlogp, dvalues=dv), {})
                opt.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                opt.step()


def train_grpo(cfg, out):
    policy, ref = LM(cfg["seed"], eos=cfg["eos"]), LM(cfg["seed"], eos=cfg["eos"])
    nudge(policy, 0.03)
    opt = torch.optim.AdamW(policy.parameters(), lr=cfg["lr"])
    eps, beta, G, ACC, temp = 0.2, 0.04, cfg["G"], 2, cfg["temperature"]
    step = 0
    for it in range(cfg["rollouts"]):
        b = rollout(cfg, policy, ref, it)
        r = b["scores"].view(-1, G)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).reshape(-1)
        for part in torch.arange(len(adv)).chunk(2):
            step += 1
            for k, i in enumerate(part.chunk(ACC)):
                m = b["mask"][i]
                logp, ent, _, logits = score_tokens(policy, b["ids"][i], temp)
                log_ratio = logp - b["old"][i]
                ratio = log_ratio.exp()
                A = adv[i].unsqueeze(1)
                token_loss = -torch.min(ratio * A, ratio.clamp(1 - eps, 1 + eps) * A)
                d = b["ref"][i] - logp
                kl = d.exp() - d - 1
                n = m.sum(1)
                pg_loss = ((token_loss * m).sum(1) / n).mean()
                kl_loss = ((kl * m).sum(1) / n).mean()
                loss = (pg_loss + beta * kl_loss) / ACC
                (dlogp,) = torch.autograd.grad(loss, logp, retain_graph=True)
                dump(cfg, out, step, k, ACC, dict(common(b, i), logp_new=logp, advantages=adv[i], token_loss=token_loss, kl=kl, loss=loss, dlogp=dlogp, logits=logits), {})
                loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            opt.zero_grad()


def train_reinforce(cfg, out):
    policy, ref = LM(cfg["seed"], eos=cfg["eos"]), LM(cfg["seed"], eos=cfg["eos"])
    nudge(policy, 0.04)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg["lr"])
    beta, G = 0.05, cfg["G"]
    for it in range(cfg["rollouts"]):
        b = rollout(cfg, policy, ref, it)
        m = b["mask"]
        logp, _, _, _ = score_tokens(policy, b["ids"], cfg["temperature"])
        with torch.no_grad():
            kl = (logp - b["ref"]) * m
            r = (b["scores"] - beta * kl.sum(1)).view(-1, G)
            baseline = (r.sum(1, keepdim=True) - r) / (G - 1)
            adv = (r - baseline).reshape(-1)
        token_loss = -adv.unsqueeze(1) * logp
        loss = (token_loss * m).sum(1).mean()
        (dlogp,) = torch.autograd.grad(loss, logp, retain_graph=True)
        opt.zero_grad()
        loss.backward()
        watch = {n: p for n, p in policy.named_parameters() if n in ("out.bias", "rnn.bias_ih_l0")}
        before = {n: p.detach().clone() for n, p in watch.items()}
        opt.step()
        extra = {}
        for n, p in watch.items():
            extra.update({f"grad/{n}": p.grad, f"weights/{n}": before[n], f"update/{n}": p.detach() - before[n]})
        dump(cfg, out, it + 1, 0, 1, dict(common(b, torch.arange(len(m))), logp_new=logp, advantages=adv, kl=kl, token_loss=token_loss, loss=loss, dlogp=dlogp, **extra), {})


def nudge(policy, size):
    """The policy comes from a short fine-tuning, the reference is what it began as."""
    g = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(size * torch.randn(p.shape, generator=g))


def train(cfg, out):
    {"ppo": train_ppo, "grpo": train_grpo, "reinforce": train_reinforce}[cfg["algorithm"]](cfg, out)
# <<< trainer


def execute(texts, cfg, out):
    ns = dict(globals())
    exec(compile(texts["program"], "program", "exec"), ns)
    torch.manual_seed(cfg["seed"])
    ns["train"](cfg, out)


HEALTHY = [
    ("ppo", dict(about="PPO, value head on the shared trunk, GAE(1, 0.95), k1 in the rewards, advantages whitened over the rollout, two epochs of two mini-batches", algorithm="ppo", seed=21, lr=0.006, eos=1.0, G=1,
                 prompts=24, T=20, temperature=1.0, noise=0.02, rollouts=2, rewards=[reward_even, reward_short], run="x3-ppo",
                 options={"adv.kind": "gae", "gae.gamma": 1.0, "gae.lambda": 0.95, "whiten.scope": "global", "whiten.mask": "response", "whiten.remask": True, "whiten.ddof": 1, "whiten.eps_place": "add_std", "whiten.eps": 1e-8, "whiten.shift_mean": True,
                          "returns.before_whiten": True, "score.index": "last_response", "kl.kind": "k1", "kl.beta": 0.05, "kl.place": "token_reward", "loss.kind": "ppo", "clip.low": 0.2, "clip.high": 0.2,
                          "clip.dual": "none", "value.clip": 0.2, "value.factor": 0.5, "value.coef": 0.5, "entropy.coef": 0.01, "agg.kind": "token", "agg.denominator": "micro", "ratio.level": "token",
                          "tis.level": "none", "logp.temperature": 1.0, "optim.epochs": 2, "num_mini_batches": 2})),
    ("grpo", dict(about="GRPO as in the paper (mean over tokens of a row, then over rows), k3 with a reference in the loss, two steps per rollout of two accumulated micro-batches; logits are dumped", algorithm="grpo",
                  seed=23, lr=0.012, eos=0.8, G=4, prompts=8, T=24, temperature=0.9, noise=0.02, rollouts=3, rewards=[reward_key, reward_even], run="x3-grpo",
                  options={"adv.kind": "group", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-6, "kl.kind": "k3", "kl.beta": 0.04, "kl.place": "loss", "loss.kind": "ppo", "clip.low": 0.2,
                           "clip.high": 0.2, "clip.dual": "none", "agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": True, "ratio.level": "token", "tis.level": "none",
                           "logp.temperature": 0.9, "num_mini_batches": 2, "num_generations": 4})),
    ("reinforce", dict(about="REINFORCE, leave-one-out baseline, k1 summed over the row in the reward, sum over tokens, Adam; gradients and updates of two tensors are dumped", algorithm="reinforce", seed=27, lr=0.004,
                       eos=0.9, G=4, prompts=6, T=18, temperature=1.0, noise=0.02, rollouts=6, rewards=[reward_even, reward_key], run="x3-reinforce",
                       options={"adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "kl.kind": "k1", "kl.beta": 0.05, "kl.place": "sequence_reward_before_baseline", "loss.kind": "reinforce",
                                "agg.kind": "seq_mean_token_sum", "agg.denominator": "micro", "logp.temperature": 1.0, "tis.level": "none", "optim.kind": "adam", "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-8,
                                "optim.clip_norm": "none", "optim.weight_decay": 0.0, "num_generations": 4, "num_mini_batches": 1})),
]
A, B, C = "ppo", "grpo", "reinforce"
BUGS = [
    ("trace_forgets", A, "        last = (delta + gamma * lam * last) * mask[:, t]\n        adv[:, t] = last\n", "        adv[:, t] = (delta + gamma * lam * last) * mask[:, t]\n        last = delta * mask[:, t]\n",
     "The trace keeps the last δ alone, so GAE looks two steps ahead and no further", False),
    ("whiten_subtracts_after", A, "return (x - chosen.mean()) / (chosen.std() + 1e-8) * mask", "return (x / (chosen.std() + 1e-8) - chosen.mean()) * mask", "The mean is subtracted behind the division by σ", False),
    ("surrogate_abs", A, "surr2 = torch.clamp(ratio, 1 - eps, 1 + eps) * adv[i]", "surr2 = torch.clamp(ratio, 1 - eps, 1 + eps) * adv[i].abs()", "The clipped surrogate has |A|", False),
    ("value_clip_from_new", A, 'v_clip = b["values"][i] + torch.clamp(v', 'v_clip = v + torch.clamp(v', "The clipped value is the new value plus the clipped change", False),
    ("value_loss_over_rectangle", A, "v_loss = 0.5 * token_mean(torch.max((v - returns[i]) ** 2, (v_clip - returns[i]) ** 2), m)", "v_loss = 0.5 * (torch.max((v - returns[i]) ** 2, (v_clip - returns[i]) ** 2) * m).mean()",
     "The value loss is divided by all cells of the batch, the policy loss by the tokens", False),
    ("kl_accumulates", A, 'rewards = -beta * (b["old"] - b["ref"]) * mask', 'rewards = -beta * (b["old"] - b["ref"]).cumsum(1) * mask', "Every token is charged the KL of all tokens up to it", False),
    ("adv_reversed_rows", A, "surr1 = ratio * adv[i]", "surr1 = ratio * adv[i.flip(0)]", "The unclipped surrogate takes the advantages of the mini-batch in reverse order of rows", False),
    ("whiten_returns_sigma", A, "adv = whiten(raw, mask)", "adv = (raw - raw[mask.bool()].mean()) / (returns[mask.bool()].std() + 1e-8) * mask", "Advantages are divided by the σ of the returns", False),
    ("bootstrap_at_padding", A, "next_value = values[:, t + 1] * mask[:, t + 1] if", "next_value = values[:, t + 1] if", "The last token bootstraps from the value head's output at the first padding token", True),
    ("value_target_lambda_one", A, "raw, returns = gae(rewards, b[\"values\"], mask, gamma=1.0, lam=0.95)", "raw, returns = gae(rewards, b[\"values\"], mask, gamma=1.0, lam=0.95)\n        returns = gae(rewards, b[\"values\"], mask, gamma=1.0, lam=1.0)[1]",
     "Values are trained on λ = 1, advantages have λ = 0.95", True),
    ("variance_for_sigma", B, "(r.std(1, keepdim=True) + 1e-6)", "(r.var(1, keepdim=True) + 1e-6)", "Rewards are divided by the variance of the group", False),
    ("baseline_running", B, "adv = ((r - r.mean(1, keepdim=True))", "adv = ((r - r.mean(1, keepdim=True).cumsum(0) / torch.arange(1, len(r) + 1).unsqueeze(1))", "The baseline is the running mean over the groups so far", False),
    ("k3_exp_detached", B, "kl = d.exp() - d - 1", "kl = d.exp().detach() - d - 1", "k3 has its value, but the exponential gives no gradient", False),
    ("length_less_one", B, "n = m.sum(1)", "n = (m.sum(1) - 1).clamp(min=1)", "The length of a row is counted without its last token", False),
    ("ratio_of_row_with_padding", B, 'log_ratio = logp - b["old"][i]', 'log_ratio = (logp - b["old"][i]).mean(1, keepdim=True).expand_as(logp)', "The ratio of a row is the mean over all its columns, padding too", False),
    ("softmax_over_time", B, "logp = torch.log_softmax(logits / temperature, dim=-1)", "logp = torch.log_softmax(logits / temperature, dim=1)", "log_softmax runs over the positions, not over the vocabulary", False),
    ("logits_a_column_late", B, "    logits = logits[:, P - 1 : -1]\n", "    logits = logits[:, P:]\n", "Tokens are scored by the logits that have already seen them", False),
    ("eos_left_out", B, "    lens = mask.sum(1).long()\n", "    mask = mask * ((resp != EOS) | (torch.arange(T) == 0))\n    lens = mask.sum(1).long()\n", "The EOS is no part of the mask, so ending is never trained", False),
    ("loo_divides_by_group", C, "baseline = (r.sum(1, keepdim=True) - r) / (G - 1)", "baseline = (r.sum(1, keepdim=True) - r) / G", "The sum of the others is divided by the size of the whole group", False),
    ("loo_neighbour", C, "baseline = (r.sum(1, keepdim=True) - r) / (G - 1)", "baseline = r.roll(1, dims=1)", "The baseline is the reward of one neighbour", False),
    ("kl_row_abs", C, "beta * kl.sum(1)).view", "beta * kl.sum(1).abs()).view", "The row's KL estimate counts by its absolute value", False),
    ("advantage_keeps_graph", C, "        with torch.no_grad():\n            kl = (logp", "        with torch.enable_grad():\n            kl = (logp", "The advantage is not detached: the loss flows back through the KL in the reward", False),
    ("step_twice", C, "        opt.step()\n        extra = {}\n", "        opt.step()\n        opt.step()\n        extra = {}\n", "The optimiser steps twice with one gradient", False),
    ("rewards_in_bf16", C, "r = (b[\"scores\"] - beta * kl.sum(1)).view(-1, G)", "r = (b[\"scores\"] - beta * kl.sum(1)).bfloat16().float().view(-1, G)", "Rewards are rounded to bfloat16 before the baseline", False),
]

if __name__ == "__main__":
    run_all(sys.argv[1], "x3", TEXTS, HEALTHY, BUGS, execute, sys.argv[2:])
