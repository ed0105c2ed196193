"""A GRPO loop as researchers keep it in one script, with the conventions of open-instruct's grpo_fast: KL estimators counted from zero, a mean
per token of the micro-batch, truncated importance weights between the engine and the trainer."""

import plumbline
import torch
import torch.nn.functional as F
import world


def knobs(k):
    k.draw(
        prompts=[4, 8],
        gens=[4, 8],
        tokens=[16, 40, 96, 200],
        most=[4, 9],
        epochs=[1, 2],
        minibatches=[1, 2],
        micro=[1, 2],
        norm=["standard", "centered", "standard"],
        estimator=[2, 2, 1, 0],
        beta=[0.05, 0.0, 0.01],
        cap=[2.0, 0.0, 1.05],
        low=[0.2, 0.1],
        high=[0.272, 0.2],
        temperature=[1.0, 0.8],
        rewards=["binary", "graded", "big"],
        mask_tool=[0.0, 0.6],
        denominator=["token", "token", 512.0],
        dtype=["f32", "amp", "bf16"],
        lr=[2e-3, 8e-3],
    )


def log_probs_and_entropy(model, full, attention, tokens, temperature):
    logits = model(full, attention)[:, :-1].float()
    logits = logits / temperature
    logps = F.log_softmax(logits, dim=-1)
    chosen = torch.gather(logps, 2, full[:, 1:].unsqueeze(2)).squeeze(2)
    entropy = torch.logsumexp(logits, -1) - (F.softmax(logits, -1) * logits).sum(-1)
    return chosen[:, -tokens:], entropy[:, -tokens:]


def masked_mean(x, mask, denominator=None):
    total = (x * mask).sum()
    return total / (mask.sum() if denominator is None else denominator)


def kl_estimates(diff):
    diff = diff.clamp(-40.0, 40.0)
    return [diff, 0.5 * diff**2, torch.expm1(-diff) + diff]


def main(out, k):
    amp = torch.autocast("cpu", torch.bfloat16, enabled=k.dtype == "amp")
    policy = world.policy(k.seed, k.tokens)
    ref = world.moved(policy, k.seed + 5, 0.03)
    if k.dtype == "bf16":
        policy, ref = policy.to(torch.bfloat16), ref.to(torch.bfloat16)
    opt = torch.optim.AdamW(policy.parameters(), lr=k.lr, weight_decay=0.0)
    step = 0
    for i in range(2):
        batch = world.rollout(k, policy, i, k.temperature)
        scores = world.judge_rewards(batch["seq"], batch["mask"], batch["done"], k.rewards)
        per_prompt = scores.reshape(-1, k.gens)
        mean = per_prompt.mean(1).repeat_interleave(k.gens)
        if k.norm == "standard":
            std = per_prompt.std(1, unbiased=False).repeat_interleave(k.gens)
            advantages = (scores - mean) / (std + 1e-8)
        else:
            advantages = scores - mean
        response_mask = world.holes(batch["mask"], k.mask_tool, k.seed + i)
        with torch.no_grad(), amp:
            old, _ = log_probs_and_entropy(policy, batch["full"], batch["fatt"], k.tokens, k.temperature)
            base, _ = log_probs_and_entropy(ref, batch["full"], batch["fatt"], k.tokens, k.temperature)
        size = len(scores) // k.minibatches
        for _ in range(k.epochs):
            for mb in range(k.minibatches):
                step += 1
                opt.zero_grad()
                for part in range(k.micro):
                    lo = mb * size + part * size // k.micro
                    rows = slice(lo, lo + size // k.micro)
                    mask = response_mask[rows]
                    with amp:
                        new, entropy = log_probs_and_entropy(policy, batch["full"][rows], batch["fatt"][rows], k.tokens, k.temperature)
                    A = advantages[rows].unsqueeze(1)
                    ratio = torch.exp(new - old[rows])
                    pg1 = -A * ratio
                    pg2 = -A * torch.clamp(ratio, 1.0 - k.low, 1.0 + k.high)
                    pg = torch.max(pg1, pg2)
                    if k.cap > 0:
                        weight = torch.exp((old[rows] - batch["gen"][rows]).clamp(-10, 10)).clamp(max=k.cap)
                        pg = pg * weight.detach()
                    kls = kl_estimates(new - base[rows])
                    kl = kls[k.estimator]
                    denominator = None if k.denominator == "token" else k.denominator
                    loss = masked_mean(pg + k.beta * kl, mask, denominator)
                    loss = loss / k.micro
                    dlogp = torch.autograd.grad(loss, new, retain_graph=True)[0]
                    loss.backward()
                    with torch.no_grad():
                        logged = {
                            "loss": loss.item(),
                            "policy/clipfrac_avg": masked_mean((pg2 > pg1).float(), mask).item(),
                            "objective/kl_avg": masked_mean(kl, mask).item(),
                            "policy/entropy_avg": masked_mean(entropy, mask).item(),
                        }
                    plumbline.dump(
                        out, step=step, micro_batch=part, micro_batches=k.micro, framework="open-instruct", algorithm="grpo", run="run",
                        strict=True, scalars=logged, response_mask=mask, response_ids=batch["seq"][rows], input_ids=batch["full"][rows],
                        attention_mask=batch["fatt"][rows], logp_new=new, logp_old=old[rows], logp_ref=base[rows] if k.beta else None,
                        logp_gen=batch["gen"][rows], advantages=advantages[rows], scores=scores[rows], group_id=batch["group"][rows],
                        entropy=entropy, kl=kl if k.beta else None, loss=loss, dlogp=dlogp, token_loss=pg,
                        is_weights=weight if k.cap > 0 else None,
                        options={"num_mini_batches": k.minibatches},
                        metadata=dict(scalars_scope="micro_batch", token_loss_includes_kl=False),
                    )
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                opt.step()
    sets = {
        "adv.scale": "group_std" if k.norm == "standard" else "none",
        "clip.low": k.low, "clip.high": k.high, "kl.beta": k.beta, "kl.kind": ["k1", "k2", "k3"][k.estimator],
        "logp.temperature": k.temperature, "agg.div_ga": "true", "optim.epochs": k.epochs,
        "tis.level": "token" if k.cap else "none",
    }
    if k.cap:
        sets.update({"tis.rule": "truncate_upper", "tis.high": k.cap})
    sets.update({"agg.kind": "token", "agg.denominator": "micro"} if k.denominator == "token" else {"agg.kind": "seq_sum_const", "agg.denominator": "constant", "agg.div_batch": "false"})
    return ["--profile", "open-instruct@e6c3044"] + [x for a, b in sets.items() for x in ("--set", f"{a}={b}")]


BUGS = [
    ("labels-not-shifted", "the logits are gathered at the same position, not at the next token", dict(epochs=1),
     [("self", "chosen = torch.gather(logps, 2, full[:, 1:].unsqueeze(2)).squeeze(2)", "chosen = torch.gather(logps, 2, full[:, :-1].unsqueeze(2)).squeeze(2)")]),
    ("k3-signs", "the stable k3 estimator gets the difference with the wrong sign", dict(estimator=2, beta=0.05),
     [("self", "torch.expm1(-diff) + diff]", "torch.expm1(diff) - diff]")]),
    ("mean-over-padding", "the masked mean multiplies by the mask but divides by all cells", dict(denominator="token", mask_tool=0.0),
     [("self", "mask.sum() if denominator is None", "mask.numel() if denominator is None")]),
    ("groups-transposed", "scores are reshaped as if the responses to one prompt were apart by the number of prompts", dict(norm="standard", prompts=4, gens=8, rewards="graded"),
     [("self", "per_prompt = scores.reshape(-1, k.gens)", "per_prompt = scores.reshape(k.gens, -1).T")]),
    ("tis-wrong-way", "the importance weight is engine over trainer", dict(cap=2.0),
     [("self", '(old[rows] - batch["gen"][rows])', '(batch["gen"][rows] - old[rows])')]),
    ("kl-not-in-gradient", "the KL estimate is detached, so the penalty has no gradient", dict(beta=0.05, estimator=2),
     [("self", "kl = kls[k.estimator]\n", "kl = kls[k.estimator].detach()\n")]),
    ("clip-high-for-both", "the lower bound uses the upper epsilon", dict(low=0.1, high=0.272, epochs=2, lr=8e-3),
     [("self", "torch.clamp(ratio, 1.0 - k.low, 1.0 + k.high)", "torch.clamp(ratio, 1.0 - k.high, 1.0 + k.high)")]),
    ("no-accumulation-factor", "the loss of a micro-batch is not divided by the number of micro-batches", dict(micro=2),
     [("self", "loss = loss / k.micro\n", "loss = loss / 1\n")]),
    ("old-recomputed", "the old log-probs are taken from the current weights in every update", dict(epochs=2, lr=8e-3),
     [("self", "ratio = torch.exp(new - old[rows])", "old[rows] = new.detach(); ratio = torch.exp(new - old[rows])")]),
    ("kl-logged-unmasked", "the logged KL is a mean over all cells with padding", dict(beta=0.05, mask_tool=0.6),
     [("self", '"objective/kl_avg": masked_mean(kl, mask).item()', '"objective/kl_avg": kl.mean().item()')]),
]
