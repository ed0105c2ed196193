"""A right implementation of the five functions of the PPO tutorial, written from its formulas, and ways to get each of them wrong.

tutorial_wrong() gives (name, source, words): the source with one change, and words that the message of the failing test must hold.
"""
import torch


def compute_policy_loss(log_probs_new, log_probs_old, advantages, response_mask, clip_ratio):
    mask = response_mask.bool()
    log_ratio = torch.where(mask, log_probs_new - log_probs_old, torch.zeros(())).clamp(-20, 20)
    ratio = log_ratio.exp()
    surr1, surr2 = ratio * advantages, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages
    loss = -torch.min(surr1, surr2)[mask].mean()
    return loss, ((ratio - 1).abs() > clip_ratio)[mask].float().mean().detach(), -log_ratio[mask].mean().detach()


def compute_value_loss(values_new, values_old, returns, response_mask, clip_range_value):
    mask = response_mask.bool()
    clipped = values_old + (values_new - values_old).clamp(-clip_range_value, clip_range_value)
    plain, bounded = (values_new - returns) ** 2, (clipped - returns) ** 2
    return 0.5 * torch.max(plain, bounded)[mask].mean(), (bounded > plain)[mask].float().mean()


def compute_entropy_loss(logits_new, response_mask):
    entropy = torch.distributions.Categorical(logits=logits_new.float()).entropy()
    return -entropy[response_mask.bool()].mean()


@torch.no_grad()
def compute_gae_advantages(final_rewards, kl_penalties, values, response_mask, gamma, lam):
    mask, rewards = response_mask.float(), -kl_penalties
    last = response_mask.sum(1).long() - 1
    for b in range(len(rewards)):
        if last[b] >= 0:
            rewards[b, last[b]] += final_rewards[b]
    advantages, carried = torch.zeros_like(values), torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        more = t + 1 < values.shape[1]
        following = values[:, t + 1] * mask[:, t + 1] if more else 0.0
        kept = carried * mask[:, t + 1] if more else 0.0
        carried = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * kept
        advantages[:, t] = carried
    returns = advantages + values
    chosen = advantages[response_mask.bool()]
    white = (advantages - chosen.mean()) / (chosen.var(correction=0) + 1e-8).sqrt()
    return white * mask, returns


def run_ppo_update_epoch(actor_model, optimizer, lr_scheduler, collated_buffer, cfg, device):
    buf, p = collated_buffer, cfg.ppo
    prompt, response, mask = buf["prompt_input_ids"], buf["response_input_ids"], buf["response_attention_mask"]
    ids = torch.cat([prompt, response], 1)
    attention = torch.cat([buf["prompt_attention_mask"], mask], 1)
    penalties = p.kl_coeff * (buf["logprobs"] - buf["ref_logprobs"])
    advantages, returns = compute_gae_advantages(buf["rewards"], penalties, buf["values"], mask, p.gamma, p.lam)
    start, end = prompt.shape[1] - 1, prompt.shape[1] + response.shape[1] - 1
    seen, order = {}, torch.randperm(len(ids))
    for n, rows in enumerate(order.split(p.mini_batch_size), 1):
        logits, values = actor_model(ids[rows], attention_mask=attention[rows])
        logits, values = logits[:, start:end], values[:, start:end]
        log_probs = logits.log_softmax(-1).gather(2, response[rows].unsqueeze(-1)).squeeze(-1)
        policy, clip_frac, kl = compute_policy_loss(log_probs, buf["logprobs"][rows], advantages[rows], mask[rows], p.clip_ratio)
        value, _ = compute_value_loss(values, buf["values"][rows], returns[rows], mask[rows], p.clip_range_value)
        entropy = compute_entropy_loss(logits, mask[rows])
        loss = policy + p.vf_coeff * value + p.entropy_coeff * entropy
        (loss / p.gradient_accumulation_steps).backward()
        for k, x in {"loss/policy": policy, "loss/value": value, "loss/entropy": entropy, "loss/total": loss}.items():
            seen.setdefault(k, []).append(float(x.detach()))
        if n % p.gradient_accumulation_steps == 0:
            norm = torch.nn.utils.clip_grad_norm_(actor_model.parameters(), p.max_grad_norm)
            seen.setdefault("params/grad_norm", []).append(float(norm))
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    return {k: sum(x) / len(x) for k, x in seen.items()}


WRONG = [  # name, statement, replacement, words of the message
    ("policy_max", "torch.min(surr1, surr2)", "torch.max(surr1, surr2)", "larger of the two surrogates"),
    ("policy_sign", "loss = -torch.min(surr1, surr2)[mask].mean()", "loss = torch.min(surr1, surr2)[mask].mean()", "sign is missing"),
    ("policy_mask_ignored", "-torch.min(surr1, surr2)[mask].mean()", "-torch.min((log_probs_new - log_probs_old).exp() * advantages, "
     "(log_probs_new - log_probs_old).exp().clamp(1 - clip_ratio, 1 + clip_ratio) * advantages).mean()", "mask is ignored"),
    ("policy_mean_of_rows", "-torch.min(surr1, surr2)[mask].mean()", "-((torch.min(surr1, surr2) * mask).sum(1) / mask.sum(1)).mean()", "rows are averaged first"),
    ("policy_ratio_upside_down", "log_probs_new - log_probs_old, torch", "log_probs_old - log_probs_new, torch", "upside down"),
    ("policy_detached", "ratio = log_ratio.exp()", "ratio = log_ratio.exp().detach()", "has no gradient"),
    ("value_no_half", "return 0.5 * torch.max", "return 1.0 * torch.max", "0.5 is missing"),
    ("value_min", "torch.max(plain, bounded)", "torch.min(plain, bounded)", "smaller of the two squares"),
    ("value_not_clipped", "0.5 * torch.max(plain, bounded)[mask]", "0.5 * plain[mask]", "nothing is clipped"),
    ("value_clipped_absolutely", "clipped = values_old + (values_new - values_old).clamp", "clipped = values_new.clamp", "not its change"),
    ("entropy_sign", "return -entropy[", "return entropy[", "sign is missing"),
    ("entropy_mask_ignored", "-entropy[response_mask.bool()].mean()", "-entropy.mean()", "mask is ignored"),
    ("gae_kl_added", "response_mask.float(), -kl_penalties", "response_mask.float(), kl_penalties.clone()", "added to the reward"),
    ("gae_score_last_column", "last = response_mask.sum(1).long() - 1", "last = torch.full((len(rewards),), rewards.shape[1] - 1)", "last column"),
    ("gae_through_padding", "mask, rewards = response_mask.float()", "mask, rewards = torch.ones_like(values)", "runs through padding"),
    ("gae_no_lambda", "gamma * lam * kept", "gamma * kept", "lambda is missing"),
    ("gae_returns_whitened", "return white * mask, returns", "return white * mask, white + values", "whitened before returns"),
    ("gae_bessel", "chosen.var(correction=0)", "chosen.var(correction=1)", "n - 1"),
    ("gae_not_whitened", "return white * mask, returns", "return advantages * mask, returns", "not whitened"),
    ("update_slice_late", "start, end = prompt.shape[1] - 1, prompt.shape[1] + response.shape[1] - 1", "start, end = prompt.shape[1], prompt.shape[1] + response.shape[1]", "sliced"),
    ("update_entropy_sign", "+ p.entropy_coeff * entropy", "- p.entropy_coeff * entropy", "minus the entropy already"),
    ("update_entropy_missing", " + p.entropy_coeff * entropy", "", "entropy loss is missing"),
    ("update_not_divided", "(loss / p.gradient_accumulation_steps).backward()", "loss.backward()", "not divided by gradient_accumulation_steps"),
    ("update_vf_coeff", "p.vf_coeff * value", "value", "vf_coeff is not applied"),
    ("update_every_step", "if n % p.gradient_accumulation_steps == 0:", "if True:", "the optimizer stepped 4 times"),
    ("update_not_clipped", "clip_grad_norm_(actor_model.parameters(), p.max_grad_norm)", "clip_grad_norm_(actor_model.parameters(), 1e9)", "want max_grad_norm"),
    ("update_norm_after_clipping", "append(float(norm))", "append(min(float(norm), p.max_grad_norm))", "before clipping"),
]


def tutorial_wrong():
    text = open(__file__, encoding="utf-8").read().split("\nWRONG = [")[0]
    for name, old, new, words in WRONG:
        if text.count(old) != 1:
            raise RuntimeError(f"{name}: the statement stands there {text.count(old)} times")
        yield name, text.replace(old, new), words
