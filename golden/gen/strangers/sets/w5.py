"""w5: loops of nobody's, each like one that is in use, declared in plumbline's options (or CleanRL's and open-instruct's own names)."""
import sys
from loop_w import *


# ---- an environment: a walk on a small graph, discrete actions, episodes that end
class Walk:
    def __init__(self, E, S=12, A=4, seed=0):
        g = torch.Generator().manual_seed(seed); self.E, self.S, self.g = E, S, g
        self.nxt = torch.randint(0, S, (S, A), generator=g); self.rew = torch.randn(S, A, generator=g); self.s = torch.randint(0, S, (E,), generator=g)
    def step(self, a):
        r = self.rew[self.s, a]; self.s = self.nxt[self.s, a]; done = torch.rand(self.E, generator=self.g) < 0.12
        self.s = torch.where(done, torch.randint(0, self.S, (self.E,), generator=self.g), self.s)
        return r, done


class AC(nn.Module):
    def __init__(self, S=12, A=4, H=32):
        super().__init__(); self.e = nn.Embedding(S, H); self.pi = nn.Sequential(nn.Linear(H, H), nn.Tanh(), nn.Linear(H, A)); self.v = nn.Sequential(nn.Linear(H, H), nn.Tanh(), nn.Linear(H, 1))
    def forward(self, s): x = self.e(s); return self.pi(x), self.v(x).squeeze(-1)


def games(cases, name, style, c, seed, little, E=16, T=24, updates=2, lr=3e-3, drop=()):
    note = f"{style}: environment steps, {E} environments of {T} steps, " + ", ".join(f"{k}={v}" for k, v in c.items())
    case = Case(cases, "w5", name, note, (), little)
    torch.manual_seed(seed); rs = random.Random(seed); env = Walk(E, seed=seed); net = AC()
    opt = torch.optim.Adam(net.parameters(), lr=lr, eps=1e-5)
    gam, lam, eps = c["gamma"], c["gae_lambda"], c["clip_coef"]
    step = 0
    for u in range(updates):
        S, A, L, R, Dn, Vs = [], [], [], [], [], []
        with torch.no_grad():
            for t in range(T):
                lg, v = net(env.s); d = torch.distributions.Categorical(logits=lg); a = d.sample(); S.append(env.s); A.append(a); L.append(d.log_prob(a)); Vs.append(v)
                r, dn = env.step(a); R.append(r); Dn.append(dn)
            nv = net(env.s)[1]
        S, A, L, R, Dn, Vs = (torch.stack(x, 1) for x in (S, A, L, R, Dn, Vs))
        adv = torch.zeros(E, T); last = torch.zeros(E); nxt = nv
        for t in reversed(range(T)):
            nt = 1.0 - Dn[:, t].float(); delta = R[:, t] + gam * nxt * nt - Vs[:, t]; last = delta + gam * lam * nt * last; adv[:, t] = last; nxt = Vs[:, t]
        ret = adv + Vs
        if style == "spinningup":
            ret = torch.zeros(E, T); acc = nv
            for t in reversed(range(T)): acc = R[:, t] + gam * acc * (1.0 - Dn[:, t].float()); ret[:, t] = acc
            adv = (adv - adv.mean()) / adv.std(correction=0)
        for ep in range(c["update_epochs"]):
            perm = rs.sample(range(E), E); nb = c["num_minibatches"]
            for k in range(nb):
                step += 1; i = torch.tensor(perm[k * E // nb:(k + 1) * E // nb]); a_ = adv[i]
                lg, v = net(S[i]); d = torch.distributions.Categorical(logits=lg); lp, ent = d.log_prob(A[i]), d.entropy(); rho = (lp - L[i]).exp()
                if c["norm_adv"] and style != "spinningup": a_ = (a_ - a_.mean()) / (a_.std() + 1e-8)
                tl = torch.max(-a_ * rho, -a_ * rho.clamp(1 - eps, 1 + eps)) if style != "a2c" else -a_ * lp
                pg = tl.mean()
                if style == "cleanrl":
                    e = (v - ret[i]) ** 2
                    if c["clip_vloss"]: e = torch.max(e, (Vs[i] + (v - Vs[i]).clamp(-eps, eps) - ret[i]) ** 2)
                    vl = 0.5 * e.mean()
                else: vl = ((v - ret[i]) ** 2).mean()
                loss = pg - c["ent_coef"] * ent.mean() + c["vf_coef"] * vl
                if style == "spinningup": loss = pg
                dl, dv = grads(loss + (vl if style == "spinningup" else 0), lp, v)
                (loss + (vl if style == "spinningup" else 0)).backward()
                t = dict(response_mask=torch.ones(len(i), T, dtype=torch.bool), logp_new=lp, logp_old=L[i], advantages=a_, values=Vs[i], values_new=v, returns=ret[i], token_rewards=R[i], dones=Dn[i], next_values=nv[i], token_loss=tl, pg_loss=pg, value_loss=vl,
                         entropy=ent, entropy_loss=ent.mean() if style != "spinningup" else None, loss=loss, dlogp=dl, dvalues=dv, sample_id=i + u * E)
                if style == "cleanrl": meta = dict(framework="cleanrl", version="020cf0e5", algorithm="ppo", options={k2: x for k2, x in c.items()} | {"num_mini_batches": nb})
                else:
                    o = {"mask.tokens": "none", "adv.kind": "gae", "gae.gamma": gam, "gae.lambda": lam, "gae.truncated_bootstrap": "value", "gae.hole": "none", "returns.before_whiten": True, "ratio.old": "stored", "ratio.level": "token", "agg.kind": "token", "agg.denominator": "micro",
                         "value.factor": 1, "value.clip": "none", "value.mask": "none", "value.coef": c["vf_coef"], "entropy.coef": c["ent_coef"], "clip.low": eps, "clip.high": eps, "clip.dual": "none", "loss.kind": "ppo", "kl.place": "none", "kl.beta": 0.0, "num_mini_batches": nb, "whiten.scope": "none", "tis.level": "none"}
                    if style == "a2c": o.update({"loss.kind": "reinforce"}); o.pop("clip.low"); o.pop("clip.high"); o.pop("clip.dual")
                    if c["norm_adv"] and style != "spinningup": o.update({"whiten.scope": "minibatch", "whiten.eps_place": "add_std", "whiten.eps": 1e-8, "whiten.ddof": 1, "whiten.mask": "none"})
                    if style == "spinningup": o.update({"returns.of": "reward_to_go", "whiten.scope": "global", "whiten.eps_place": "add_std", "whiten.eps": 0.0, "whiten.ddof": 0, "whiten.mask": "none", "value.coef": 0.0, "entropy.coef": 0.0})
                    meta = dict(framework={"sb3": "stable-baselines3", "spinningup": "spinningup", "a2c": "a2c-loop"}[style], version="2", algorithm="ppo", options=o)
                if style == "spinningup": t["value_loss"] = None; t["values_new"] = None; t["dvalues"] = None
                sd = dict(approx_kl=((rho - 1) - (lp - L[i])).mean(), clipfrac=((rho - 1).abs() > eps).float().mean()) if style == "cleanrl" else {}
                if style == "cleanrl" and little: t["token_rewards"], meta["options"] = R[i], meta["options"]
                case.put(dict(meta, step=step, scalars=fin(sd), scalars_scope="micro_batch"), t, drop)
                nn.utils.clip_grad_norm_(net.parameters(), 0.5); opt.step(); opt.zero_grad()


def main(cases):
    for i in range(20):
        r = random.Random(11500 + i); little = i % 3 == 2
        common = dict(seed=i, little=little, kind=r.choice(["gru", "attn"]), Tm=r.choice([10, 16, 24]), temp=r.choice([1.0, 0.8]), epochs=r.choice([1, 2]), minis=r.choice([1, 2]), micros=r.choice([1, 2, 3]), lr=r.choice([3e-3, 2e-2]), rkind=r.choice(["share", "sign", "noisy", "length"]))
        if i in (0, 7, 13):
            c = dict(num_minibatches=r.choice([1, 2, 4]), **pick(r, gamma=[0.99, 0.9], gae_lambda=[0.95, 1.0, 0.5], clip_coef=[0.2, 0.05], norm_adv=[True, False], clip_vloss=[True, False], ent_coef=[0.01, 0.0], vf_coef=[0.5, 1.0], update_epochs=[1, 4]))
            games(cases, f"{i:02d}_cleanrl", "cleanrl", c, i, little, drop=r.choice([(), ("dlogp", "dvalues")]))
        elif i in (1, 8, 14, 17):
            st = {1: "sb3", 8: "spinningup", 14: "a2c", 17: "sb3"}[i]
            c = dict(num_minibatches=1 if st in ("spinningup", "a2c") else r.choice([2, 4]), clip_vloss=False, norm_adv=st == "sb3", **pick(r, gamma=[0.99, 0.97], gae_lambda=[0.95, 0.97], clip_coef=[0.2, 0.1], ent_coef=[0.0, 0.01], vf_coef=[0.5, 0.25], update_epochs=[3, 5]))
            if st == "a2c": c["update_epochs"] = 1; c["gae_lambda"] = 1.0
            if st == "spinningup": c["ent_coef"] = 0.0
            games(cases, f"{i:02d}_{st}", st, c, i, little)
        elif i in (2, 9):  # open-instruct: groups over n, k3 counted from zero, asymmetric clip, TIS cap, one denominator
            o = {"adv.ddof": 0, "adv.eps": 1e-8, "clip.low": 0.2, "clip.high": 0.272, "kl.beta": 0.05, "kl.place": "loss", "kl.kind": "k3", "agg.denominator": "global"}
            if i == 9: o.update({"tis.level": "token", "tis.rule": "clamp", "tis.low": 0.0, "tis.high": 2.0, "adv.scale": "none"})
            lm_loop(cases, "w5", f"{i:02d}_openinstruct", f"open-instruct like: {o}", o, framework="open-instruct-like", version="e6c3044", engine="bf16", **common)
        elif i in (3, 10):  # NeMo-RL like: leave-one-out baseline, sigma none, dual clip
            o = {"adv.center": "loo", "adv.scale": "none", "clip.low": 0.2, "clip.high": 0.28, "clip.dual": r.choice([None, 3.0]), "kl.beta": 0.01, "kl.place": "loss", "kl.kind": "k3", "agg.kind": r.choice(["token", "seq_mean_token_mean"])}
            lm_loop(cases, "w5", f"{i:02d}_nemolike", f"NeMo-RL like, sharded over 2 ranks: {o}", o, framework="nemo-like", world=2, **common)
        elif i in (4, 11):  # AReaL: decoupled PPO, behaviour weight under a cap, stale engine
            o = {"adv.scale": r.choice(["group_std", "batch_std"]), "adv.ddof": 1, "adv.eps": 1e-5, "clip.low": 0.2, "clip.high": 0.2, "tis.level": "token", "tis.rule": "zero_outside", "tis.low": None, "tis.high": r.choice([5.0, 1.3])}
            lm_loop(cases, "w5", f"{i:02d}_areal", f"AReaL like: decoupled PPO, engine one rollout older: {o}", o, framework="areal-like", stale=1, rollouts=3, extra=dict(async_rollout=True), **common)
        elif i in (5, 12):  # slime: mean over samples of token means, TIS 2.0, low_var_kl
            o = {"clip.low": 0.2, "clip.high": 0.28, "kl.beta": r.choice([0.001, 0.05]), "kl.place": "loss", "kl.kind": "k3", "agg.kind": "seq_mean_token_mean", "tis.level": "token", "tis.rule": "clamp", "tis.low": 0.0, "tis.high": 2.0, "entropy.coef": r.choice([0.0, 0.01])}
            lm_loop(cases, "w5", f"{i:02d}_slime", f"slime like: {o}", o, framework="slime-like", noise=0.1, world=2 if i == 12 else 1, **common)
        elif i in (6, 15):  # tinker: importance_sampling, ratio to the sampler, sum over tokens, centred rewards
            o = {"adv.scale": "none", "clip.low": None, "clip.high": None, "agg.kind": "token_sum", "ratio.old": "engine"}
            lm_loop(cases, "w5", f"{i:02d}_tinker", f"tinker like: −Σ π/π_sampler·A, no clip: {o}", o, framework="tinker-like", engine="bf16", **dict(common, epochs=1))
        elif i == 16:  # prime-rl: cap of the ratio for every sign
            o = {"adv.scale": "none", "clip.low": None, "clip.high": None, "clip.delta": 1.4, "ratio.old": "engine", "agg.kind": "token"}
            lm_loop(cases, "w5", f"{i:02d}_primerl", f"prime-rl like: −min(ρ, cap)·A, ratio to the engine, one token mean: {o}", o, framework="prime-like", noise=0.15, stale=1, rollouts=3, extra=dict(async_rollout=True), **common)
        elif i == 18:  # Dr. GRPO, sum over a constant
            o = {"adv.scale": "none", "agg.kind": "seq_sum_const", "agg.denominator": "micro", "agg.div_batch": True, "agg.div_ga": True, "loss_denominator": 24}
            lm_loop(cases, "w5", f"{i:02d}_drgrpo", f"Dr. GRPO: {o}", o, framework="blog", **dict(common, Tm=24))
        else:  # PPO with a critic on tokens, KL in the reward
            o = {"adv.kind": "gae", "gae.gamma": 1.0, "gae.lambda": 0.95, "gae.hole": "carry", "gae.value_mask": "response", "gae.truncated_bootstrap": "none", "kl.beta": 0.1, "kl.kind": "k1", "kl.place": "token_reward", "whiten.scope": "global", "whiten.mask": "response", "whiten.ddof": 0, "whiten.eps_place": "add_std",
                 "whiten.eps": 1e-8, "whiten.shift_mean": True, "whiten.remask": True, "returns.before_whiten": True, "returns.of": "gae", "returns.remask": True, "score.index": "last_response", "rewards.whiten": "no", "value.factor": 0.5, "value.clip": 0.2, "value.mask": "response", "value.agg": "same", "value.coef": 0.1,
                 "entropy.coef": 0.005, "agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": True, "reward.clip": "none", "eos.rule": "none"}
            lm_loop(cases, "w5", f"{i:02d}_tokenppo", f"PPO of one's own on tokens with a shared trunk: {o}", o, framework="my-ppo", algorithm="ppo", **common)


if __name__ == "__main__": main(sys.argv[1])
