"""PPO on steps of an environment in one file, with CleanRL's conventions: dones flags, V(next_obs), advantages normalised per minibatch."""

import plumbline
import torch
import torch.nn as nn
import world



def knobs(k):
    k.draw(
        envs=[8, 16, 32],
        steps=[16, 32, 64, 128],
        gamma=[0.99, 0.95],
        lam=[0.95, 0.9],
        minibatches=[2, 4],
        epochs=[2, 1],
        clip=[0.2, 0.1],
        clip_vloss=[True, False],
        norm_adv=[True, True, False],
        ent_coef=[0.01, 0.0],
        vf_coef=[0.5, 1.0],
        lr=[2.5e-3, 1e-3],
        horizon=[9, 23],
        width=[6, 10],
    )


class Agent(nn.Module):
    def __init__(self, obs, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, actions), nn.Linear(32, 1)

    def value(self, x):
        return self.critic(self.body(x)).squeeze(-1)

    def act(self, x, action=None):
        dist = torch.distributions.Categorical(logits=self.actor(self.body(x)))
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy(), self.value(x)


def main(out, k):
    torch.manual_seed(k.seed)
    actions, drift = 5, 0.3 * torch.randn(5, k.width)
    agent = Agent(k.width, actions)
    opt = torch.optim.Adam(agent.parameters(), lr=k.lr, eps=1e-5)
    state, age, done = torch.randn(k.envs, k.width), torch.zeros(k.envs), torch.zeros(k.envs)
    update = 0
    for it in range(2):
        obs, acts, lps, rews, dones, vals = [], [], [], [], [], []
        for _ in range(k.steps):
            obs.append(state)
            dones.append(done)
            with torch.no_grad():
                a, lp, _, v = agent.act(state)
            acts.append(a), lps.append(lp), vals.append(v)
            state = 0.9 * state + drift[a] + 0.1 * torch.randn_like(state)
            rews.append(state[:, 0] - 0.1 * state.square().mean(1))
            age += 1
            done = ((age >= k.horizon) | (torch.rand(k.envs) < 0.03)).float()
            age, state = age * (1 - done), torch.where(done[:, None] > 0, torch.randn_like(state), state)
        obs, acts, lps, rews, dones, vals = (torch.stack(x) for x in (obs, acts, lps, rews, dones, vals))
        with torch.no_grad():
            next_value = agent.value(state)
            advantages = torch.zeros_like(rews)
            lastgaelam = 0
            for t in reversed(range(k.steps)):
                if t == k.steps - 1:
                    nextnonterminal, nextvalues = 1.0 - done, next_value
                else:
                    nextnonterminal, nextvalues = 1.0 - dones[t + 1], vals[t + 1]
                delta = rews[t] + k.gamma * nextvalues * nextnonterminal - vals[t]
                advantages[t] = lastgaelam = delta + k.gamma * k.lam * nextnonterminal * lastgaelam
            returns = advantages + vals
        ends = torch.cat([dones[1:], done[None]])  # the step after which the episode was over
        for _ in range(k.epochs):
            order = torch.randperm(k.envs)
            for part in order.chunk(k.minibatches):
                update += 1
                _, new, entropy, values = agent.act(obs[:, part].transpose(0, 1).reshape(-1, k.width), acts[:, part].T.reshape(-1))
                new, entropy, values = (x.reshape(len(part), k.steps) for x in (new, entropy, values))
                old, adv, ret, val = (x[:, part].T for x in (lps, advantages, returns, vals))
                logratio = new - old
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfrac = ((ratio - 1.0).abs() > k.clip).float().mean()
                if k.norm_adv:
                    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg1 = -adv * ratio
                pg2 = -adv * torch.clamp(ratio, 1 - k.clip, 1 + k.clip)
                token_loss = torch.max(pg1, pg2)
                pg_loss = token_loss.mean()
                if k.clip_vloss:
                    unclipped = (values - ret) ** 2
                    clipped = val + torch.clamp(values - val, -k.clip, k.clip)
                    v_loss = 0.5 * torch.max(unclipped, (clipped - ret) ** 2).mean()
                else:
                    v_loss = 0.5 * ((values - ret) ** 2).mean()
                entropy_loss = entropy.mean()
                loss = pg_loss - k.ent_coef * entropy_loss + v_loss * k.vf_coef
                opt.zero_grad()
                dlogp, dvalues = torch.autograd.grad(loss, [new, values], retain_graph=True)
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                plumbline.dump(
                    f"{out}/run/step_{update:06d}_rank_0_mb_0.safetensors", step=update, framework="cleanrl", algorithm="ppo", run="run", strict=True,
                    scalars={"losses/policy_loss": pg_loss.item(), "losses/value_loss": v_loss.item(), "losses/entropy": entropy_loss.item(), "losses/approx_kl": approx_kl.item(), "losses/clipfrac": clipfrac.item()},
                    response_mask=torch.ones(len(part), k.steps, dtype=torch.bool), logp_new=new, logp_old=old, values=val, values_new=values,
                    token_rewards=rews[:, part].T, dones=ends[:, part].T.bool(), next_values=next_value[part], advantages=adv, returns=ret,
                    entropy=entropy, token_loss=token_loss, loss=loss, pg_loss=pg_loss, value_loss=v_loss, entropy_loss=entropy_loss, dlogp=dlogp, dvalues=dvalues,
                    options={"num_mini_batches": k.minibatches},
                )
                opt.step()
    sets = {
        "gae.gamma": k.gamma, "gae.lambda": k.lam, "clip.low": k.clip, "clip.high": k.clip, "value.clip": k.clip if k.clip_vloss else "none",
        "entropy.coef": k.ent_coef, "value.coef": k.vf_coef, "whiten.scope": "minibatch" if k.norm_adv else "none", "optim.lr": k.lr, "optim.epochs": k.epochs,
    }
    return ["--profile", "cleanrl@020cf0e"] + [x for a, b in sets.items() for x in ("--set", f"{a}={b}")]


BUGS = [
    ("done-of-the-same-step", "the flag of step t, not of t+1, cuts the recursion", dict(),
     [("self", "nextnonterminal, nextvalues = 1.0 - dones[t + 1], vals[t + 1]", "nextnonterminal, nextvalues = 1.0 - dones[t], vals[t + 1]")]),
    ("no-bootstrap", "what follows the last step of a rollout is taken as 0", dict(),
     [("self", "nextnonterminal, nextvalues = 1.0 - done, next_value", "nextnonterminal, nextvalues = 1.0 - done, 0 * next_value")]),
    ("bootstrap-of-next-episode", "the value of the next episode's first state flows back over the end, the trace does not", dict(),
     [("self", "k.gamma * nextvalues * nextnonterminal - vals[t]", "k.gamma * nextvalues - vals[t]")]),
    ("lambda-twice", "lambda enters the one-step error too", dict(),
     [("self", "delta = rews[t] + k.gamma * nextvalues", "delta = rews[t] + k.gamma * k.lam * nextvalues")]),
    ("returns-from-normalised", "the value target is made of the normalised advantages", dict(norm_adv=True),
     [("self", "adv = (adv - adv.mean()) / (adv.std() + 1e-8)", "adv = (adv - adv.mean()) / (adv.std() + 1e-8); ret = adv + val")]),
    ("value-min", "the clipped value loss takes the smaller of the two errors", dict(clip_vloss=True, lr=2.5e-3, epochs=2),
     [("self", "v_loss = 0.5 * torch.max(unclipped", "v_loss = 0.5 * torch.min(unclipped")]),
    ("entropy-as-penalty", "the entropy is added, which lowers it", dict(ent_coef=0.01),
     [("self", "pg_loss - k.ent_coef * entropy_loss", "pg_loss + k.ent_coef * entropy_loss")]),
    ("ratio-inverted", "the ratio is old over new", dict(epochs=2),
     [("self", "logratio = new - old\n", "logratio = old - new\n")]),
    ("value-coef-missing", "the value loss enters without its coefficient", dict(vf_coef=0.5),
     [("self", "v_loss * k.vf_coef", "v_loss")]),
    ("clip-around-zero", "the ratio is clipped to plus and minus epsilon", dict(epochs=2),
     [("self", "torch.clamp(ratio, 1 - k.clip, 1 + k.clip)", "torch.clamp(ratio, -k.clip, k.clip)")]),
    ("approx-kl-of-old", "the logged KL is the mean of the log-ratio squared, without the half", dict(epochs=2),
     [("self", "approx_kl = ((ratio - 1) - logratio).mean()", "approx_kl = (logratio ** 2).mean()")]),
]
