"""DAPO by its paper (Yu et al. 2025): clip higher, a loss per token of the whole batch, overlong reward shaping, groups without spread left out.
Two ranks that split the rows of the batch, micro-batches of unequal token counts."""

import plumbline
import torch
import torch.nn.functional as F
import world


def knobs(k):
    k.draw(
        prompts=[4, 8], gens=[8], tokens=[24, 64, 128, 256], most=[4, 8], ranks=[1, 2], micro=[1, 2], updates=[1, 2, 4], low=[0.2], high=[0.28, 0.4], overlong=[True, False],
        buffer=[0.25, 0.5], temperature=[1.0, 0.9], tis=[None, 2.0, 5.0], dtype=["f32", "amp", "bf16"], lr=[3e-3, 8e-3], rewards=["binary", "graded"], entropy=[False, True],
    )


def token_logps(model, b, k):
    with torch.autocast("cpu", torch.bfloat16, enabled=k.dtype == "amp"):
        logits = model(b["full"], b["fatt"])
    logits = (logits / k.temperature)[:, b["ids"].shape[1] - 1 : -1].float()
    logps = torch.log_softmax(logits, -1)
    return logps.gather(-1, b["seq"][..., None]).squeeze(-1), logps


def soft_overlong(lengths, limit, buffer):
    """Eq. 13 of the paper: 0 up to limit − buffer, then falling to −1."""
    start = limit - buffer
    return torch.where(lengths <= start, 0.0, ((start - lengths) / buffer).clamp(min=-1.0))


def main(out, k):
    policy = world.policy(k.seed, k.tokens, 0.9)
    if k.dtype == "bf16":
        policy = policy.bfloat16()
    optim = torch.optim.AdamW(policy.parameters(), lr=k.lr, betas=(0.9, 0.95))
    step = 0
    for i in range(2):
        b = world.rollout(k, policy, i, k.temperature)
        correct = world.judge_rewards(b["seq"], b["mask"], b["done"], k.rewards)
        correct = correct * 2 - 1 if k.rewards == "binary" else correct
        lengths = b["mask"].sum(1).float()
        scores = correct + soft_overlong(lengths, k.tokens, k.buffer * k.tokens) if k.overlong else correct
        by_group = scores.view(-1, k.gens)
        keep = (by_group.std(1) > 1e-6).repeat_interleave(k.gens)
        mean, std = by_group.mean(1, keepdim=True), by_group.std(1, keepdim=True)
        advantages = ((by_group - mean) / (std + 1e-6)).view(-1)
        with torch.no_grad():
            old, _ = token_logps(policy, b, k)
        weights = torch.exp(old - b["gen"]).clamp(max=k.tis) if k.tis else None
        b.update(scores=scores, advantages=advantages, old=old)
        if k.tis:
            b["w"] = weights
        b = {name: x[keep] for name, x in b.items()}
        n = len(b["scores"]) // (k.ranks * k.micro) * (k.ranks * k.micro)
        for _ in range(k.updates):
            step += 1
            optim.zero_grad()
            total = b["mask"][:n].sum()
            for r in range(k.ranks):
                for part in range(k.micro):
                    at = (r * k.micro + part) * (n // k.ranks // k.micro)
                    x = {name: v[at : at + n // k.ranks // k.micro] for name, v in b.items()}
                    new, logps = token_logps(policy, x, k)
                    ratio = torch.exp(new - x["old"])
                    A = x["advantages"][:, None]
                    clipped = ratio.clamp(1 - k.low, 1 + k.high)
                    token_loss = -torch.minimum(ratio * A, clipped * A)
                    if k.tis:
                        token_loss = token_loss * x["w"]
                    loss = (token_loss * x["mask"]).sum() / total * k.ranks
                    dlogp = torch.autograd.grad(loss, new, retain_graph=True)[0]
                    (loss / k.ranks).backward()
                    with torch.no_grad():
                        ent = -(logps.exp() * logps).sum(-1)
                        logged = {"loss": loss.item()}
                        if k.entropy and k.ranks == 1:
                            logged["entropy"] = ((ent * x["mask"]).sum() / x["mask"].sum()).item()
                    plumbline.dump(
                        out, step=step, rank=r, world_size=k.ranks, micro_batch=part, micro_batches=k.micro, framework="my-dapo", algorithm="dapo", run="run", strict=True,
                        scalars=logged, response_mask=x["mask"], response_ids=x["seq"], input_ids=x["full"], attention_mask=x["fatt"], logp_new=new, logp_old=x["old"],
                        logp_gen=x["gen"], is_weights=x.get("w"), advantages=x["advantages"], scores=x["scores"], group_id=x["group"], sample_id=None, entropy=ent,
                        token_loss=token_loss, loss=loss, dlogp=dlogp, options={"num_mini_batches": 1, "optim.epochs": k.updates, "num_items_in_batch": int(total)},
                        metadata=dict(scalars_scope="micro_batch"),
                    )
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optim.step()
    sets = {
        "adv.kind": "group", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-6, "clip.low": k.low, "clip.high": k.high, "clip.dual": "none", "loss.kind": "ppo",
        "ratio.level": "token", "kl.place": "none", "kl.beta": 0, "agg.kind": "token", "agg.denominator": "global", "agg.div_ga": "false", "logp.temperature": k.temperature, "logp.source": "processed",
        "tis.level": "token" if k.tis else "none", "mean.eps": 0, "entropy.coef": 0,
    }
    if k.tis:
        sets.update({"tis.rule": "truncate_upper", "tis.high": k.tis})
    return ["--profile", "none"] + [x for a, b in sets.items() for x in ("--set", f"{a}={b}")]


BUGS = [
    ("mean-per-response", "a mean per response where DAPO's is per token of the batch", dict(tokens=64, ranks=1, micro=1),
     [("self", 'loss = (token_loss * x["mask"]).sum() / total * k.ranks', 'loss = ((token_loss * x["mask"]).sum(1) / x["mask"].sum(1)).mean()')]),
    ("clip-symmetric", "the upper bound uses the lower epsilon", dict(high=0.4, updates=4, lr=8e-3),
     [("self", "ratio.clamp(1 - k.low, 1 + k.high)", "ratio.clamp(1 - k.low, 1 + k.low)")]),
    ("bounds-exchanged", "the two epsilons are exchanged", dict(high=0.4, updates=4, lr=8e-3),
     [("self", "ratio.clamp(1 - k.low, 1 + k.high)", "ratio.clamp(1 - k.high, 1 + k.low)")]),
    ("rank-tokens", "each rank divides by its own tokens", dict(ranks=2, micro=1, tokens=128),
     [("self", '.sum() / total * k.ranks', '.sum() / b["mask"][r * (n // 2) : (r + 1) * (n // 2)].sum()')]),
    ("padding-counted", "the denominator counts padded cells", dict(tokens=64),
     [("self", 'total = b["mask"][:n].sum()', 'total = b["mask"][:n].numel()')]),
    ("advantage-before-shaping", "the advantages come from rewards without the overlong penalty", dict(overlong=True, tokens=64, buffer=0.5),
     [("self", "by_group = scores.view(-1, k.gens)", "by_group = correct.view(-1, k.gens)")]),
    ("stale-engine", "the engine samples with weights of before the last updates", dict(updates=4, lr=8e-3, tis=None),
     [("self", "b = world.rollout(k, policy, i, k.temperature)", "first = locals().get('first') or __import__('copy').deepcopy(policy); b = world.rollout(k, first, i, k.temperature)")]),
    ("engine-temperature", "the engine samples at another temperature than it is told", dict(temperature=0.9, tis=None),
     [("self", "b = world.rollout(k, policy, i, k.temperature)", "b = world.rollout(k, policy, i, 1.4)")]),
    ("tis-not-bounded", "the importance weights are not truncated", dict(tis=1.02, dtype="bf16", tokens=256),
     [("self", 'weights = torch.exp(old - b["gen"]).clamp(max=k.tis) if', 'weights = torch.exp(old - b["gen"]) if')]),
    ("logp-in-bf16", "the log-softmax is computed in bfloat16", dict(dtype="f32", updates=2),
     [("self", 'b["ids"].shape[1] - 1 : -1].float()', 'b["ids"].shape[1] - 1 : -1].bfloat16()')]),
    ("one-row-off", "the advantages of the next row are used", dict(rewards="graded", overlong=False),
     [("self", 'A = x["advantages"][:, None]', 'A = x["advantages"].roll(-1)[:, None]')]),
    ("loss-sign", "the objective is minimised", dict(),
     [("self", "token_loss = -torch.minimum(ratio * A, clipped * A)", "token_loss = torch.minimum(ratio * A, clipped * A)")]),
]
