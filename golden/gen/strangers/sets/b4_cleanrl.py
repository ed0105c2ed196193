"""CleanRL PPO on a tiny environment of its own (terminations and truncations). Minibatches are of whole environments (as in ppo_atari_lstm) or the whole batch, so that rows are environments and columns steps.
Dump: everything of the loop (dlogp, dvalues, returns, dones, next_values), gradients, weights and updates of the optimiser's step, charts and losses as CleanRL names them."""

from world_b import *
from torch.distributions import Categorical, Normal


class Env:
    """N points on a line that want to reach 0; terminates at |x| > 2.5 or |x| < .1, truncates after 'limit' steps"""

    def __init__(self, n, g, cont, limit=17):
        self.n, self.g, self.cont, self.limit = n, g, cont, limit
        self.x = torch.zeros(n)
        self.v = torch.zeros(n)
        self.t = torch.zeros(n)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, w):
        self.x = torch.where(w, torch.rand(self.n, generator=self.g) * 3 - 1.5, self.x)
        self.v = torch.where(w, torch.zeros(self.n), self.v)
        self.t = torch.where(w, torch.zeros(self.n), self.t)

    def obs(self):
        return torch.stack([self.x, self.v, self.x * self.v, torch.ones(self.n)], 1)

    def step(self, a):
        f = a.squeeze(-1).clamp(-1, 1) if self.cont else (a.float() - 1)
        self.v = 0.8 * self.v + 0.3 * f
        self.x = self.x + self.v + 0.05 * torch.randn(self.n, generator=self.g)
        self.t = self.t + 1
        goal, out = (self.x.abs() < 0.1), self.x.abs() > 2.5
        r = -0.3 * self.x.abs() + goal.float() * 2 - out.float() * 2
        term, trunc = goal | out, self.t >= self.limit
        fin = self.obs()
        self.reset(term | trunc)
        return self.obs(), r, term, trunc, fin


class Agent(nn.Module):
    def __init__(self, cont, d=16):
        super().__init__()
        self.cont = cont
        mk = lambda o: nn.Sequential(nn.Linear(4, d), nn.Tanh(), nn.Linear(d, d), nn.Tanh(), nn.Linear(d, o))
        self.actor, self.critic = mk(1 if cont else 3), mk(1)
        if cont:
            self.actor_logstd = nn.Parameter(torch.zeros(1, 1) - 0.3)

    def value(self, o):
        return self.critic(o).squeeze(-1)

    def dist(self, o):
        y = self.actor(o)
        return Normal(y, self.actor_logstd.expand_as(y).exp()) if self.cont else Categorical(logits=y)

    def lp(self, o, a):
        d = self.dist(o)
        return (d.log_prob(a).sum(-1), d.entropy().sum(-1)) if self.cont else (d.log_prob(a), d.entropy())


BASE = dict(
    seed=31,
    N=8,
    T=32,
    iters=3,
    minis=2,
    epochs=2,
    lr=1.5e-2,
    gamma=0.99,
    lam=0.95,
    norm_adv=True,
    clip=0.2,
    clip_v=True,
    ent=0.01,
    vf=0.5,
    gn=0.5,
    anneal=True,
    cont=False,
    opt=True,
)
H = dict(
    h_discrete=dict(BASE),
    h_continuous=dict(BASE, seed=32, cont=True, ent=0.0, lr=2e-2),
    h_no_norm_adv=dict(BASE, seed=33, norm_adv=False, minis=4, epochs=1, N=16, gamma=0.95, anneal=False),
    h_no_vclip=dict(BASE, seed=34, clip_v=False, vf=1.0, epochs=3, minis=1, lam=0.8),
    h_gn_tight=dict(BASE, seed=35, gn=0.1, clip=0.1, cont=True, ent=0.005, N=12, minis=3, epochs=1),
    h_lazy_kl=dict(BASE, seed=36, opt=False, N=16, T=64, minis=4, epochs=4, iters=2, lr=8e-3),
)
B = {
    "done_after": ("h_discrete", "GAE uses dones[t] (before the step) where dones[t+1] belongs"),
    "done_ignored_delta": ("h_discrete", "δ bootstraps through the end of an episode; only the λ-recursion is cut"),
    "done_ignored_lam": ("h_continuous", "the λ-recursion runs over the end of an episode; only δ is cut"),
    "trunc_not_done": ("h_discrete", "truncations are left out of dones: the value of the new episode's first state is bootstrapped over a reset"),
    "next_value_zero": ("h_no_norm_adv", "the last step of the rollout bootstraps from 0 instead of V(next_obs)"),
    "next_value_last": ("h_no_vclip", "the last step bootstraps from its own value instead of V(next_obs)"),
    "lam_missing": ("h_no_vclip", "λ is missing in the recursion"),
    "gamma_squared": ("h_no_norm_adv", "γ is applied twice to the next value"),
    "norm_whole_batch": ("h_discrete", "advantages are normalised over the whole batch although norm_adv is per minibatch"),
    "norm_no_std": ("h_continuous", "advantages are centred but never divided"),
    "norm_div_var": ("h_discrete", "advantages are divided by the variance"),
    "returns_of_normed": ("h_no_norm_adv", "returns are advantages plus the next state's values instead of the state's own"),
    "vclip_min": ("h_discrete", "torch.min in place of torch.max in the clipped value loss"),
    "vclip_center": ("h_continuous", "the clipped value is clamped around the return"),
    "v_no_half": ("h_no_vclip", "the value loss lacks 0.5"),
    "ent_sign": ("h_discrete", "the entropy is added to the loss"),
    "ent_coef_in_vf": ("h_discrete", "the coefficients of entropy and value are swapped"),
    "log_ratio_swap": ("h_continuous", "the ratio is exp(old − new)"),
    "clip_lower_missing": ("h_gn_tight", "clamp has only an upper bound"),
    "pg_min": ("h_lazy_kl", "pg_loss takes the minimum of the two losses"),
    "lp_sum_axis": ("h_continuous", "log-probs of the update come from a distribution whose std is logstd instead of exp(logstd) (softplus)"),
    "anneal_ahead": ("h_discrete", "the learning rate of iteration i is that of iteration i+1, so that the last is 0"),
    "clip_after_step": ("h_gn_tight", "clip_grad_norm_ is called after optimizer.step()"),
    "adam_reset": ("h_discrete", "the optimizer is made anew in every iteration"),
    "zero_grad_epoch": ("h_no_norm_adv", "zero_grad is called once per epoch, so that gradients of the minibatches add up"),
    "adam_eps": ("h_continuous", "Adam runs with eps 1e-2 where CleanRL has 1e-5"),
    "actions_stale": ("h_lazy_kl", "the action buffer is shifted by one step against observations in the update"),
}


def run(out, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    torch.manual_seed(c["seed"])
    ag = Agent(c["cont"])
    env = Env(c["N"], g, c["cont"])
    mkopt = lambda: torch.optim.Adam(ag.parameters(), lr=c["lr"], eps=1e-2 if bug == "adam_eps" else 1e-5)
    opt = mkopt()
    N, T = c["N"], c["T"]
    next_obs, next_done = env.obs(), torch.zeros(N)
    step = 0
    for it in range(1, c["iters"] + 1):
        if bug == "adam_reset":
            opt = mkopt()
        lr = c["lr"]
        if c["anneal"]:
            lr = (1.0 - (it if bug == "anneal_ahead" else it - 1.0) / c["iters"]) * c["lr"]
            opt.param_groups[0]["lr"] = lr
        O, A, L, R, D, Vv, ends = [], [], [], [], [], [], []  # ends: what the episode recorder saw
        with torch.no_grad():
            for t in range(T):
                O.append(next_obs)
                D.append(next_done)
                d = ag.dist(next_obs)
                a = torch.normal(d.mean, d.stddev, generator=g) if c["cont"] else torch.multinomial(d.probs, 1, generator=g).squeeze(1)
                A.append(a)
                L.append(d.log_prob(a).sum(-1) if c["cont"] else d.log_prob(a))
                Vv.append(ag.value(next_obs))
                next_obs, r, term, trunc, _ = env.step(a)
                next_done = (term | trunc).float()
                R.append(r)
                ends.append(term | trunc)
                if bug == "trunc_not_done":
                    next_done = term.float()
            obs, act, lpb, rew, dn, val = map(torch.stack, (O, A, L, R, D, Vv))
            nv = ag.value(next_obs)
            real_nv = nv
            if bug == "next_value_zero":
                nv = torch.zeros(N)
            if bug == "next_value_last":
                nv = val[-1]
            adv, last = torch.zeros(T, N), 0
            for t in reversed(range(T)):
                nonterm = 1.0 - (next_done if t == T - 1 else dn[t + 1])
                nval = nv if t == T - 1 else val[t + 1]
                if bug == "done_after":
                    nonterm = 1.0 - dn[t]
                delta = (
                    rew[t]
                    + c["gamma"] * nval * (1.0 if bug == "done_ignored_delta" else nonterm) * (c["gamma"] if bug == "gamma_squared" else 1)
                    - val[t]
                )
                adv[t] = last = (
                    delta + c["gamma"] * (1.0 if bug == "lam_missing" else c["lam"]) * (1.0 if bug == "done_ignored_lam" else nonterm) * last
                )
            ret = adv + (val if bug != "returns_of_normed" else torch.cat([val[1:], nv[None]]))
            after = torch.stack(ends)
        if bug == "norm_whole_batch":
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        per = N // c["minis"]
        for ep in range(c["epochs"]):
            envs = torch.randperm(N, generator=g)
            if bug == "zero_grad_epoch":
                opt.zero_grad()
            for k in range(c["minis"]):
                step += 1
                e = envs[k * per : (k + 1) * per]
                ao = act.roll(1, 0) if bug == "actions_stale" else act
                newlp, ent = ag.lp(obs[:, e], ao[:, e])
                if bug == "lp_sum_axis":
                    y = ag.actor(obs[:, e])
                    newlp = Normal(y, F.softplus(ag.actor_logstd).expand_as(y)).log_prob(act[:, e]).sum(-1)
                newv = ag.value(obs[:, e])
                newlp.retain_grad()
                newv.retain_grad()
                logr = newlp - lpb[:, e]
                if bug == "log_ratio_swap":
                    logr = -logr
                ratio = logr.exp()
                with torch.no_grad():
                    old_kl, akl, cf = (
                        (-logr).mean().item(),
                        ((ratio - 1) - logr).mean().item(),
                        ((ratio - 1.0).abs() > c["clip"]).float().mean().item(),
                    )
                a = adv[:, e]
                if c["norm_adv"] and bug != "norm_whole_batch":
                    if bug == "norm_no_std":
                        a = a - a.mean()
                    elif bug == "norm_div_var":
                        a = (a - a.mean()) / (a.var() + 1e-8)
                    else:
                        a = (a - a.mean()) / (a.std() + 1e-8)
                p1 = -a * ratio
                p2 = -a * (torch.clamp(ratio, max=1 + c["clip"]) if bug == "clip_lower_missing" else torch.clamp(ratio, 1 - c["clip"], 1 + c["clip"]))
                tl = torch.min(p1, p2) if bug == "pg_min" else torch.max(p1, p2)
                pg = tl.mean()
                if c["clip_v"]:
                    u = (newv - ret[:, e]) ** 2
                    mid = ret[:, e] if bug == "vclip_center" else val[:, e]
                    vc = mid + torch.clamp(newv - mid, -c["clip"], c["clip"])
                    cl = (vc - ret[:, e]) ** 2
                    vl = 0.5 * (torch.min(u, cl) if bug == "vclip_min" else torch.max(u, cl)).mean()
                else:
                    vl = (1.0 if bug == "v_no_half" else 0.5) * ((newv - ret[:, e]) ** 2).mean()
                el = ent.mean()
                ec, vf = (c["vf"], c["ent"]) if bug == "ent_coef_in_vf" else (c["ent"], c["vf"])
                loss = pg - (-ec if bug == "ent_sign" else ec) * el + vl * vf
                if bug != "zero_grad_epoch":
                    opt.zero_grad()
                loss.backward()
                gr = {n: p.grad.clone() for n, p in ag.named_parameters()}
                be = {n: p.detach().clone() for n, p in ag.named_parameters()}
                if bug != "clip_after_step":
                    nn.utils.clip_grad_norm_(ag.parameters(), c["gn"])
                opt.step()
                if bug == "clip_after_step":
                    nn.utils.clip_grad_norm_(ag.parameters(), c["gn"])
                x = lambda z: z[:, e].transpose(0, 1)
                y = lambda z: z.transpose(0, 1)
                t = dict(
                    response_mask=torch.ones(per, T, dtype=torch.bool),
                    logp_new=y(newlp),
                    logp_old=x(lpb),
                    advantages=y(a),
                    token_rewards=x(rew),
                    values=x(val),
                    values_new=y(newv),
                    returns=x(ret),
                    dones=x(after) > 0,
                    next_values=real_nv[e],
                    entropy=y(ent),
                    loss=loss,
                    pg_loss=pg,
                    value_loss=vl,
                    entropy_loss=el,
                    sample_id=e + 1000 * it,
                )
                if c["opt"]:
                    t |= dict(token_loss=y(tl), dlogp=y(newlp.grad), dvalues=y(newv.grad))
                    for n, p in ag.named_parameters():
                        t |= {f"grad/{n}": gr[n], f"weights/{n}": be[n], f"update/{n}": p.detach() - be[n]}
                sca = {
                    "charts/learning_rate": lr,
                    "losses/value_loss": vl.item(),
                    "losses/policy_loss": pg.item(),
                    "losses/entropy": el.item(),
                    "losses/old_approx_kl": old_kl,
                    "losses/approx_kl": akl,
                    "losses/clipfrac": cf,
                }
                o = dict(
                    gamma=c["gamma"],
                    gae_lambda=c["lam"],
                    num_minibatches=c["minis"],
                    update_epochs=c["epochs"],
                    norm_adv=c["norm_adv"],
                    clip_coef=c["clip"],
                    clip_vloss=c["clip_v"],
                    ent_coef=c["ent"],
                    vf_coef=c["vf"],
                    max_grad_norm=c["gn"],
                    learning_rate=c["lr"],
                    anneal_lr=c["anneal"],
                    num_envs=N,
                    num_steps=T,
                    num_mini_batches=c["minis"],
                )
                write(
                    out,
                    f"u{step:03d}",
                    t,
                    framework="cleanrl",
                    version="020cf0e5",
                    algorithm="ppo",
                    run=f"cl-{c['seed']}",
                    step=step,
                    rank=0,
                    world_size=1,
                    micro_batch=0,
                    micro_batches=1,
                    options=o,
                    scalars=sca,
                    scalars_scope="optimizer_step",
                )


if __name__ == "__main__":
    main("b4_cleanrl", H, B, run)
