"""CleanRL's PPO for continuous control on a toy vector environment (terminations, truncations, autoreset). Minibatches of whole environments (as ppo_atari_lstm) are dumped as rows [envs, steps] with
everything; flat minibatches as [n, 1] with log-probs, advantages, values, returns, entropy and losses only. opt=1: gradients, weights and updates of every step, too."""

from world_d import *
import math


class Agent(nn.Module):
    def __init__(self, o=3, a=2, H=16):
        super().__init__()
        mlp = lambda k: nn.Sequential(nn.Linear(o, H), nn.Tanh(), nn.Linear(H, H), nn.Tanh(), nn.Linear(H, k))
        self.critic, self.actor_mean, self.actor_logstd = mlp(1), mlp(a), nn.Parameter(torch.zeros(1, a) - 0.5)

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get(self, x, action=None, g=None):
        mean = self.actor_mean(x)
        std = self.actor_logstd.expand_as(mean).exp()
        if action is None:
            action = mean + std * torch.randn(mean.shape, generator=g, dtype=mean.dtype)
        d = torch.distributions.Normal(mean, std)
        return action, d.log_prob(action).sum(-1), d.entropy().sum(-1), self.get_value(x)


class Envs:
    def __init__(self, n, limit, g, dt):
        self.n, self.limit, self.g, self.dt = n, limit, g, dt
        self.s = self.new(n)
        self.t = torch.randint(0, limit // 2, (n,), generator=g)

    def new(self, n):
        return torch.randn(n, 3, generator=self.g, dtype=self.dt) * 0.6

    def step(self, a):
        self.s = self.s + 0.25 * torch.cat([a.clamp(-2, 2), a[:, :1] * a[:, 1:]], 1) + 0.1 * torch.randn(self.n, 3, generator=self.g, dtype=self.dt)
        self.t += 1
        term = self.s.norm(dim=1) > 2.5
        trunc = (self.t >= self.limit) & ~term
        r = 1 - self.s.pow(2).sum(1) * 0.4 - 2.0 * term.to(self.dt)
        final = self.s.clone()
        done = term | trunc
        if done.any():
            self.s[done] = self.new(int(done.sum()))
            self.t[done] = 0
        return self.s.clone(), r, term, trunc, final


def train(c, out):
    dt = torch.float64 if c["f64"] else torch.float32
    E, T, g = c["E"], c["T"], torch.Generator().manual_seed(c["seed"])
    agent = Agent().to(dt)
    envs = Envs(E, c["limit"], g, dt)
    optimizer = torch.optim.Adam(agent.parameters(), lr=c["lr"], eps=1e-5)
    options = dict(
        gamma=c["gamma"],
        gae_lambda=c["lam"],
        clip_coef=c["clip"],
        ent_coef=c["ent"],
        vf_coef=c["vf"],
        norm_adv=c["norm"],
        clip_vloss=c["vclip"],
        max_grad_norm=0.5,
        update_epochs=c["epochs"],
        num_minibatches=c["nmb"],
        num_mini_batches=c["nmb"],
        learning_rate=c["lr"],
        anneal_lr=c["anneal"],
        num_steps=T,
        num_envs=E,
    )
    dump = Dump(out, framework="cleanrl", version="020cf0e", algorithm="ppo", options=options)
    next_obs, next_done, step = envs.s.clone(), torch.zeros(E, dtype=dt), 0
    for iteration in range(1, c["iters"] + 1):
        lr = (1 - (iteration - 1) / c["iters"]) * c["lr"] if c["anneal"] else c["lr"]
        optimizer.param_groups[0]["lr"] = lr
        obs, actions, logprobs, rewards, dones, values = [], [], [], [], [], []
        for t in range(T):
            obs.append(next_obs)
            dones.append(next_done)
            with torch.no_grad():
                action, lp, _, v = agent.get(next_obs, g=g)
            actions.append(action)
            logprobs.append(lp)
            values.append(v)
            next_obs, r, term, trunc, final = envs.step(action)
            if c["boot"]:
                with torch.no_grad():
                    r = r + c["gamma"] * agent.get_value(final) * trunc.to(dt)
            rewards.append(r)
            next_done = (term | trunc).to(dt)
        obs, actions, logprobs, rewards, dones, values = map(torch.stack, (obs, actions, logprobs, rewards, dones, values))
        with torch.no_grad():
            next_value = agent.get_value(next_obs)
            advantages = torch.zeros_like(rewards)
            lastgaelam = 0
            for t in reversed(range(T)):
                if t == T - 1:
                    nextnonterminal = 1.0 - next_done
                    nextvalues = next_value
                else:
                    nextnonterminal = 1.0 - dones[t + 1]
                    nextvalues = values[t + 1]
                delta = rewards[t] + c["gamma"] * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = delta + c["gamma"] * c["lam"] * nextnonterminal * lastgaelam
            returns = advantages + values
            dones_after = torch.cat([dones[1:], next_done[None]])
        b = dict(obs=obs, act=actions, lp=logprobs, adv=advantages, ret=returns, val=values, rew=rewards, done=dones_after)
        b = {k: x.transpose(0, 1).contiguous() for k, x in b.items()}  # rows are environments
        b["id"] = torch.arange(E) + 1000 * iteration
        b["next"] = next_value
        if c["flat"]:
            b = {k: x.reshape(E * T, 1, *x.shape[2:]) for k, x in b.items() if k not in ("id", "next")}
            b["id"] = torch.arange(E * T) + 100000 * iteration
        n = len(b["adv"])
        size = n // c["nmb"]
        for epoch in range(c["epochs"]):
            inds = torch.randperm(n, generator=g)
            for start in range(0, n, size):
                step += 1
                mb = {k: x[inds[start : start + size]] for k, x in b.items()}
                _, newlogprob, entropy, newvalue = agent.get(mb["obs"], mb["act"])
                logratio = newlogprob - mb["lp"]
                ratio = logratio.exp()
                with torch.no_grad():
                    old_approx_kl = (-logratio).mean()
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfrac = ((ratio - 1.0).abs() > c["clip"]).float().mean()
                mb_adv = mb["adv"]
                if c["norm"]:
                    mb_adv = (mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)
                pg1 = -mb_adv * ratio
                pg2 = -mb_adv * torch.clamp(ratio, 1 - c["clip"], 1 + c["clip"])
                pg_loss = torch.max(pg1, pg2).mean()
                if c["vclip"]:
                    v_unclipped = (newvalue - mb["ret"]) ** 2
                    v_clipped = mb["val"] + torch.clamp(newvalue - mb["val"], -c["clip"], c["clip"])
                    v_loss = 0.5 * torch.max(v_unclipped, (v_clipped - mb["ret"]) ** 2).mean()
                else:
                    v_loss = 0.5 * ((newvalue - mb["ret"]) ** 2).mean()
                entropy_loss = entropy.mean()
                loss = pg_loss - c["ent"] * entropy_loss + v_loss * c["vf"]
                dlogp, dvalues = torch.autograd.grad(loss, (newlogprob, newvalue), retain_graph=True)
                optimizer.zero_grad()
                loss.backward()
                named = list(agent.named_parameters())
                before = {k: p.detach().clone() for k, p in named}
                grads = {k: p.grad.clone() for k, p in named}
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                t = dict(
                    response_mask=torch.ones_like(mb["adv"]).bool(),
                    logp_new=newlogprob,
                    logp_old=mb["lp"],
                    advantages=mb_adv,
                    returns=mb["ret"],
                    values=mb["val"],
                    values_new=newvalue,
                    loss=loss,
                    pg_loss=pg_loss,
                    value_loss=v_loss,
                    sample_id=mb["id"],
                    entropy=entropy,
                )
                if not c["flat"]:
                    t |= dict(token_rewards=mb["rew"], dones=mb["done"].bool(), next_values=mb["next"], entropy_loss=entropy_loss, dlogp=dlogp, dvalues=dvalues)
                if c["opt"]:
                    t |= (
                        {f"grad/{k}": x for k, x in grads.items()}
                        | {f"weights/{k}": w for k, w in before.items()}
                        | {f"update/{k}": p.detach() - before[k] for k, p in named}
                    )
                dump(
                    t,
                    step,
                    scalars={
                        "losses/clipfrac": clipfrac.item(),
                        "losses/approx_kl": approx_kl.item(),
                        "losses/old_approx_kl": old_approx_kl.item(),
                        "learning_rate": lr,
                    },
                    scalars_scope="optimizer_step",
                )


# ==== cases
D = dict(
    E=8,
    T=32,
    limit=13,
    iters=3,
    epochs=2,
    nmb=2,
    gamma=0.99,
    lam=0.95,
    clip=0.2,
    ent=0.01,
    vf=0.5,
    norm=True,
    vclip=True,
    boot=False,
    flat=False,
    anneal=True,
    f64=False,
    opt=0,
    lr=6e-3,
    seed=51,
)
H = {
    "h_envwise_adam": (D | dict(opt=1), []),
    "h_trunc_bootstrap": (D | dict(boot=True, ent=0.0, vclip=False, epochs=3, seed=52), []),
    "h_flat_lazy": (D | dict(flat=True, nmb=4, epochs=3, iters=2, anneal=False, seed=53), []),
    "h_no_norm_long": (D | dict(norm=False, gamma=0.97, lam=0.9, T=64, limit=21, vf=1.0, ent=0.02, opt=1, epochs=3, iters=2, seed=54), []),
    "h_float64_clip01": (D | dict(f64=True, clip=0.1, E=16, T=24, nmb=4, boot=True, seed=55), []),
}
h1, h2, h3, h4, h5 = H
B = [
    (
        "b_dones_index",
        h1,
        "nextnonterminal = 1.0 - dones[t + 1]",
        "nextnonterminal = 1.0 - dones[t]",
        "GAE reads the done flag of the step itself and not of the next one",
    ),
    ("b_no_final_bootstrap", h1, "nextvalues = next_value", "nextvalues = 0.0", "the value of the state behind the rollout is not bootstrapped"),
    (
        "b_returns_of_normalised",
        h1,
        "returns = advantages + values\n",
        "returns = (advantages - advantages.mean()) / (advantages.std() + 1e-8) + values\n",
        "returns are made of normalised advantages",
    ),
    (
        "b_norm_no_mean",
        h3,
        "(mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)",
        "mb_adv / (mb_adv.std() + 1e-8)",
        "the advantages are scaled and not centred although norm_adv is on",
    ),
    ("b_vclip_min", h1, "torch.max(v_unclipped,", "torch.min(v_unclipped,", "the clipped value loss takes the smaller of the two"),
    (
        "b_vclip_around_return",
        h4,
        'mb["val"] + torch.clamp(newvalue - mb["val"]',
        'mb["ret"] + torch.clamp(newvalue - mb["ret"]',
        "the value is clipped around the return and not the old value",
    ),
    ("b_half_missing", h2, "v_loss = 0.5 * ((newvalue", "v_loss = ((newvalue", "the value loss lacks its factor one half"),
    ("b_entropy_sign", h4, '- c["ent"] * entropy_loss', '+ c["ent"] * entropy_loss', "entropy is a penalty"),
    (
        "b_old_is_new",
        h5,
        'logratio = newlogprob - mb["lp"]',
        "logratio = newlogprob - newlogprob.detach()",
        "the ratio is to the current policy: nothing is clipped",
    ),
    (
        "b_lr_not_set",
        h1,
        '        optimizer.param_groups[0]["lr"] = lr\n',
        '        optimizer.defaults["lr"] = lr\n',
        "the annealed learning rate is logged but set in the optimiser's defaults, which nobody reads",
    ),
    (
        "b_clip_after_step",
        h4,
        ["                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)\n", "                optimizer.step()\n"],
        ["", "                optimizer.step()\n                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)\n"],
        "gradients are clipped after the optimiser's step",
    ),
    ("b_zero_grad_lost", h1, "                optimizer.zero_grad()\n", "", "zero_grad is missing, gradients of all steps add up"),
    (
        "b_adv_transposed",
        h5,
        '        b["id"] = torch.arange(E) +',
        '        b["adv"] = advantages.reshape(E, T)\n        b["id"] = torch.arange(E) +',
        "advantages are reshaped where the rest is transposed: steps of one environment get those of another",
    ),
    ("b_lambda_lost", h4, 'c["gamma"] * c["lam"] * nextnonterminal', 'c["gamma"] * nextnonterminal', "λ is missing from the recursion"),
    ("b_vf_coef_lost", h5, 'v_loss * c["vf"]', "v_loss", "the value loss is added without its coefficient"),
    ("b_min_surrogate", h3, "torch.max(pg1, pg2)", "torch.min(pg1, pg2)", "the optimistic side of the surrogate"),
    (
        "b_value_broadcast",
        h3,
        '0.5 * torch.max(v_unclipped, (v_clipped - mb["ret"]) ** 2).mean()',
        '0.5 * torch.max((newvalue - mb["ret"].t()) ** 2, (v_clipped - mb["ret"].t()) ** 2).mean()',
        "shapes [n, 1] and [1, n] are broadcast: every value is fitted to every return",
    ),
    (
        "b_bootstrap_twice",
        h2,
        "nextvalues * nextnonterminal - values[t]",
        "nextvalues * (1.0 if t == T - 1 else nextnonterminal) - values[t]",
        "the last step bootstraps the next state though its episode has ended (and truncations are in the reward already)",
    ),
    (
        "b_delta_unmasked",
        h2,
        "nextvalues * nextnonterminal - values[t]",
        "nextvalues - values[t]",
        "δ bootstraps over episode ends with the value of the next episode's first state",
    ),
    (
        "b_adam_reset",
        h4,
        "        obs, actions, logprobs, rewards, dones, values = [], [], [], [], [], []\n",
        "        optimizer = torch.optim.Adam(agent.parameters(), lr=lr, eps=1e-5)\n        obs, actions, logprobs, rewards, dones, values = [], [], [], [], [], []\n",
        "the optimiser is made anew in every iteration and loses its moments",
    ),
]
if __name__ == "__main__":
    main("d5_cleanrl", __file__, H, B)
