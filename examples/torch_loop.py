"""A loop of one's own in PyTorch that dumps what it computes. GRPO on a bandit: prompts are digits, an answer is right if it repeats one.

    python torch_loop.py run && plumbline dump run --profile trl-grpo@1.16
    python torch_loop.py run --bug && plumbline dump run --profile trl-grpo@1.16      # exits 1 and names ADV-DDOF
"""
import sys

import torch

import plumbline

PROMPTS, GROUP, TOKENS, BETA, EPS = 4, 8, 3, 0.04, 0.2


def main(folder, bug):
    torch.manual_seed(1)
    policy = torch.nn.Sequential(torch.nn.Embedding(10, 16), torch.nn.Linear(16, 10 * TOKENS))
    with torch.no_grad():
        reference = [p.clone() for p in policy.parameters()]
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    rows = torch.arange(PROMPTS).repeat_interleave(GROUP)
    for step in range(1, 4):
        prompt = torch.randint(10, (PROMPTS,))[rows]
        logits = policy(prompt).view(-1, TOKENS, 10)
        answer = torch.distributions.Categorical(logits=logits).sample()
        logp = logits.log_softmax(-1).gather(-1, answer[..., None]).squeeze(-1)
        with torch.no_grad():
            ref = torch.func.functional_call(policy, dict(zip(dict(policy.named_parameters()), reference)), (prompt,)).view(-1, TOKENS, 10)
            ref = ref.log_softmax(-1).gather(-1, answer[..., None]).squeeze(-1)
        reward = (answer == prompt[:, None]).float().mean(1)
        groups = reward.view(PROMPTS, GROUP)
        std = groups.std(1, correction=0 if bug else 1)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (std[:, None] + 1e-4)).view(-1)
        ratio = (logp - logp.detach()).exp()
        clipped = ratio.clamp(1 - EPS, 1 + EPS)
        kl = (ref - logp).exp() - (ref - logp) - 1
        token_loss = -torch.min(ratio * advantage[:, None], clipped * advantage[:, None]) + BETA * kl
        loss = token_loss.mean(1).mean()  # every answer has TOKENS tokens
        (dlogp,) = torch.autograd.grad(loss, logp, retain_graph=True)
        plumbline.dump(folder, step=step, framework="trl", algorithm="grpo", options={"loss_type": "grpo", "beta": BETA, "epsilon": EPS, "num_generations": GROUP, "use_bias_correction_kl": False},
                       metadata={"token_loss_includes_kl": True}, response_ids=answer, response_mask=torch.ones_like(answer), logp_new=logp, logp_old=logp.detach(), logp_ref=ref, kl=kl,
                       scores=reward, group_id=rows + step * PROMPTS, advantages=advantage, token_loss=token_loss, loss=loss, dlogp=dlogp)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


if __name__ == "__main__":
    main(sys.argv[1], "--bug" in sys.argv)
