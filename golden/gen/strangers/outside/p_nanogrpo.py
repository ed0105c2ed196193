"""A GRPO script of a hundred lines, as many are on GitHub: one optimiser step per batch and epoch, a mean per response and then over responses,
KL to the reference in the loss, right-padded prompts that differ in length, right-aligned nowhere."""

import plumbline
import torch
import world


def knobs(k):
    k.draw(
        prompts=[4, 6, 8], gens=[4, 8], tokens=[8, 20, 64, 128], most=[3, 8], iters=[1, 2, 3], eps=[0.2, 0.3], beta=[0.0, 0.04, 0.1], norm_eps=[1e-8, 1e-4, 1e-6],
        unbiased=[True, False], row_mean=[True, True, False], kl=["k3", "k3", "k1", "k2"], rewards=["binary", "graded", "big"], flat=[False, True], dtype=["f32", "bf16"], lr=[3e-3, 1e-2],
    )


def get_logprobs(model, tokens, attn, completion_len):
    logits = model(tokens, attn)
    logits = logits[:, :-1, :].float()
    targets = tokens[:, 1:]
    logp = torch.log_softmax(logits, dim=-1)
    out = torch.gather(logp, -1, targets[..., None])[..., 0]
    return out[:, -completion_len:]


def group_advantages(rewards, group_size, k):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(dim=1, keepdim=True)) / (r.std(dim=1, keepdim=True, unbiased=k.unbiased) + k.norm_eps)).view(-1)


def masked_mean(x, mask, rowwise):
    if rowwise:
        return ((x * mask).sum(dim=1) / mask.sum(dim=1)).mean()
    return (x * mask).sum() / mask.sum()


def main(out, k):
    model = world.policy(k.seed, k.tokens)
    ref = world.moved(model, k.seed + 1, 0.04)
    if k.dtype == "bf16":
        model, ref = model.bfloat16(), ref.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=k.lr)
    step = 0
    for epoch in range(2):
        batch = world.rollout(k, model, epoch)
        mask = batch["mask"].float()
        rewards = world.judge_rewards(batch["seq"], batch["mask"], batch["done"], k.rewards)
        if k.flat:
            rewards[-k.gens :] = rewards[-1]
        advantages = group_advantages(rewards, k.gens, k)
        with torch.no_grad():
            old_logp = get_logprobs(model, batch["full"], batch["fatt"], k.tokens)
            ref_logp = get_logprobs(ref, batch["full"], batch["fatt"], k.tokens)
        for it in range(k.iters):
            step += 1
            logp = get_logprobs(model, batch["full"], batch["fatt"], k.tokens)
            ratio = torch.exp(logp - old_logp)
            surr1 = ratio * advantages[:, None]
            surr2 = torch.clamp(ratio, 1 - k.eps, 1 + k.eps) * advantages[:, None]
            policy_loss = -torch.min(surr1, surr2)
            log_ratio = ref_logp - logp
            kl = {"k3": torch.exp(log_ratio) - log_ratio - 1, "k1": -log_ratio, "k2": log_ratio**2 / 2}[k.kl]
            per_token = policy_loss + k.beta * kl
            loss = masked_mean(per_token, mask, k.row_mean)
            optimizer.zero_grad()
            dlogp = torch.autograd.grad(loss, logp, retain_graph=True)[0]
            loss.backward()
            stats = dict(loss=loss.item(), kl=((kl * mask).sum() / mask.sum()).item(), reward=rewards.mean().item())
            plumbline.dump(
                out, step=step, framework="torch", algorithm="grpo", run="run", strict=True, scalars=stats, response_mask=mask.bool(), response_ids=batch["seq"],
                input_ids=batch["full"], attention_mask=batch["fatt"], logp_new=logp, logp_old=old_logp, logp_ref=ref_logp if k.beta else None, logp_gen=batch["gen"],
                advantages=advantages, scores=rewards, group_id=batch["group"], kl=kl if k.beta else None, token_loss=per_token, loss=loss, dlogp=dlogp,
                options={"num_mini_batches": 1, "optim.epochs": k.iters}, metadata=dict(token_loss_includes_kl=True),
            )
            optimizer.step()
    sets = {
        "adv.kind": "group", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": int(k.unbiased), "adv.eps": k.norm_eps, "clip.low": k.eps, "clip.high": k.eps, "loss.kind": "ppo",
        "ratio.level": "token", "kl.kind": k.kl, "kl.beta": k.beta, "kl.place": "loss" if k.beta else "none", "kl.grad": "naive", "agg.kind": "seq_mean_token_mean" if k.row_mean else "token",
        "agg.denominator": "micro", "agg.div_ga": "false", "clip.dual": "none", "tis.level": "none", "adv.zero_std": "divide_eps", "mean.eps": 0, "logp.temperature": 1,
    }
    return ["--profile", "none"] + [x for a, b in sets.items() for x in ("--set", f"{a}={b}")]


R = dict(row_mean=True, tokens=64)
BUGS = [
    ("std-over-batch-axis", "mean and deviation are taken along the wrong axis of the groups", dict(rewards="graded", flat=False, prompts=6),
     [("self", "(r - r.mean(dim=1, keepdim=True)) / (r.std(dim=1, keepdim=True, unbiased=k.unbiased) + k.norm_eps)", "(r - r.mean(dim=0, keepdim=True)) / (r.std(dim=0, keepdim=True, unbiased=k.unbiased) + k.norm_eps)")]),
    ("eps-in-root", "epsilon is added to the variance", dict(norm_eps=1e-4, rewards="binary", flat=False),
     [("self", "(r.std(dim=1, keepdim=True, unbiased=k.unbiased) + k.norm_eps)", "(r.var(dim=1, keepdim=True, unbiased=k.unbiased) + k.norm_eps).sqrt()")]),
    ("row-mean-by-width", "a row's sum is divided by the padded width", R,
     [("self", "(x * mask).sum(dim=1) / mask.sum(dim=1)).mean()", "(x * mask).mean(dim=1)).mean()")]),
    ("no-mask", "padding is part of the loss", R,
     [("self", "loss = masked_mean(per_token, mask, k.row_mean)", "loss = per_token.mean()")]),
    ("k3-without-one", "k3 lacks the minus one", dict(beta=0.1, kl="k3"),
     [("self", "torch.exp(log_ratio) - log_ratio - 1,", "torch.exp(log_ratio) - log_ratio,")]),
    ("kl-subtracted", "the KL penalty is subtracted from the loss", dict(beta=0.1, kl="k3"),
     [("self", "per_token = policy_loss + k.beta * kl", "per_token = policy_loss - k.beta * kl")]),
    ("ratio-detached", "the ratio is detached, only the KL term has a gradient", dict(beta=0.04),
     [("self", "ratio = torch.exp(logp - old_logp)", "ratio = torch.exp(logp - old_logp).detach()")]),
    ("old-is-ref", "the old log-probs are those of the reference", dict(beta=0.04),
     [("self", "ratio = torch.exp(logp - old_logp)", "ratio = torch.exp(logp - ref_logp)")]),
    ("clip-then-advantage-abs", "the surrogate uses the size of the advantage in the clipped branch", dict(iters=2, lr=1e-2),
     [("self", "surr2 = torch.clamp(ratio, 1 - k.eps, 1 + k.eps) * advantages[:, None]", "surr2 = torch.clamp(ratio, 1 - k.eps, 1 + k.eps) * advantages[:, None].abs()")]),
    ("mask-from-pad-id", "the mask is where the id is not EOS: EOS does not count", dict(tokens=20),
     [("self", 'mask = batch["mask"].float()', 'mask = (batch["mask"] & (batch["seq"] != 1)).float(); mask[:, 0] = 1')]),
    ("ref-moves", "the reference is the policy itself: one object", dict(beta=0.04, iters=3, lr=1e-2),
     [("self", "ref = world.moved(model, k.seed + 1, 0.04)\n", "ref = model\n"), ("self", "ref_logp = get_logprobs(ref,", "ref_logp = get_logprobs(model,")]),
]
