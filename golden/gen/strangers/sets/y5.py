"""y5: right runs of loops of nobody's and of trainers that have no hook: CleanRL, SB3, Spinning Up, open-instruct, NeMo-RL, AReaL, slime, tinker, prime-rl and such.  python y5.py CASES"""
from world_y import *
import loop_y


class Net(nn.Module):
    def __init__(s, out, gain):
        super().__init__(); s.l = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, out))
        with torch.no_grad(): s.l[-1].weight.mul_(gain)
    def forward(s, x): return s.l(x)


class Env:
    """E carts on a circle: four actions, a reward near the top, an episode ends by a fall or by its length"""
    def __init__(s, E, seed, limit): s.g = torch.Generator().manual_seed(seed); s.E, s.limit = E, limit; s.x = torch.randn(E, 4, generator=s.g); s.t = torch.zeros(E)
    def step(s, a):
        s.x = 0.9 * s.x + 0.3 * F.one_hot(a, 4).float() - 0.08 + 0.15 * torch.randn(s.E, 4, generator=s.g); s.t += 1
        r = (s.x[:, 0] > 0.2).float() - 0.1 * (a == 3).float()
        done = (s.x.abs().max(1).values > 2.1) | (s.t >= s.limit)
        new = torch.randn(s.E, 4, generator=s.g)
        s.x = torch.where(done[:, None], new, s.x); s.t = torch.where(done, torch.zeros_like(s.t), s.t)
        return s.x, r, done.float()


def game(cases, name, kind, seed, over, little, text):
    npr = np.random.default_rng(seed); torch.manual_seed(seed)
    o = dict(E=8, T=16, gamma=0.99, lam=0.95, clip=0.2, ent=0.01, vf=0.5, norm=True, vclip=True, epochs=4, minis=1, lr=3e-3, updates=3, limit=11, scale=1.0) | over
    pi, vf = Net(4, 1.0), Net(1, 1.0)
    opt = torch.optim.Adam([*pi.parameters(), *vf.parameters()], lr=o["lr"], eps=1e-5)
    env = Env(o["E"], seed, o["limit"])
    if kind == "cleanrl":
        meta = dict(framework="cleanrl", version="020cf0e", algorithm="ppo")
        opts = dict(num_envs=o["E"], num_steps=o["T"], gamma=o["gamma"], gae_lambda=o["lam"], clip_coef=o["clip"], ent_coef=o["ent"], vf_coef=o["vf"], norm_adv=o["norm"], clip_vloss=o["vclip"], update_epochs=o["epochs"], num_minibatches=o["minis"], num_mini_batches=o["minis"])
    else:
        meta = dict(framework=kind, algorithm="a2c" if kind == "sb3-a2c" else "ppo")
        sb, a2c = kind != "spinningup", kind == "sb3-a2c"
        opts = {"mask.tokens": "none", "adv.kind": "gae", "gae.gamma": o["gamma"], "gae.lambda": o["lam"], "gae.truncated_bootstrap": "value", "gae.hole": "none", "gae.value_mask": "response", "returns.of": "gae" if sb else "reward_to_go", "returns.before_whiten": True,
                "whiten.scope": "none" if a2c else ("minibatch" if sb else "global"), "loss.kind": "reinforce" if a2c else "ppo", "kl.place": "none", "kl.beta": 0, "agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": False, "entropy.coef": o["ent"] if sb else 0,
                "value.factor": 1, "value.clip": "none", "optim.epochs": o["epochs"], "tis.level": "none", "num_mini_batches": o["minis"]}
        if sb: opts["value.coef"] = o["vf"]      # Spinning Up has none: the critic has its own optimiser
        if not a2c: opts |= {"clip.low": o["clip"], "clip.high": o["clip"], "clip.dual": "none", "ratio.level": "token", "ratio.old": "stored", "ratio.log_clamp": "none", "whiten.ddof": 1 if sb else 0, "whiten.eps": 1e-8 if sb else 0, "whiten.eps_place": "add_std", "whiten.mask": "none", "whiten.shift_mean": "true"}
    c = Case(cases, name, "y5", text, meta=meta, options=opts)
    obs, done, step = env.x, torch.zeros(o["E"]), 1
    for u in range(o["updates"]):
        O, Ac, LP, R, Dn, V = [], [], [], [], [], []
        for t in range(o["T"]):
            O.append(obs); Dn.append(done)
            with torch.no_grad():
                d = torch.distributions.Categorical(logits=pi(obs)); a = d.sample(); Ac.append(a); LP.append(d.log_prob(a)); V.append(vf(obs)[:, 0])
            obs, r, done = env.step(a); R.append(r * o["scale"])
        O, Ac, LP, R, Dn, V = (torch.stack(x, 1) for x in (O, Ac, LP, R, Dn, V))
        with torch.no_grad(): nv = vf(obs)[:, 0]
        after = torch.cat([Dn[:, 1:], done[:, None]], 1)
        A, last, rtg, run_ = torch.zeros_like(R), torch.zeros(o["E"]), torch.zeros_like(R), nv.clone()
        for t in reversed(range(o["T"])):
            nn_ = 1 - after[:, t]; nxt = nv if t == o["T"] - 1 else V[:, t + 1]
            last = R[:, t] + o["gamma"] * nxt * nn_ - V[:, t] + o["gamma"] * o["lam"] * nn_ * last; A[:, t] = last
            run_ = R[:, t] + o["gamma"] * nn_ * run_; rtg[:, t] = run_
        ret = A + V if kind != "spinningup" else rtg
        if kind == "spinningup": A = (A - A.mean()) / A.std(unbiased=False)
        for ep in range(o["epochs"]):
            for mi in shuffled(npr, o["E"]).chunk(o["minis"]):
                d = torch.distributions.Categorical(logits=pi(O[mi])); lp, ent = d.log_prob(Ac[mi]), d.entropy(); vn = vf(O[mi])[..., 0]
                a = A[mi]
                if kind == "cleanrl" and o["norm"] or kind == "sb3": a = (a - a.mean()) / (a.std() + 1e-8)
                ratio = (lp - LP[mi]).exp()
                L = -a * lp if kind == "sb3-a2c" else torch.max(-a * ratio, -a * ratio.clamp(1 - o["clip"], 1 + o["clip"]))
                pg = L.mean()
                if kind == "cleanrl":
                    e = (vn - ret[mi]) ** 2
                    if o["vclip"]: e = torch.max(e, (V[mi] + (vn - V[mi]).clamp(-o["clip"], o["clip"]) - ret[mi]) ** 2)
                    vl = 0.5 * e.mean()
                else: vl = F.mse_loss(vn, ret[mi])
                loss = pg if kind == "spinningup" else pg - o["ent"] * ent.mean() + o["vf"] * vl
                if kind == "spinningup": vl.backward(retain_graph=True)
                loss.backward(retain_graph=True)
                t = dict(response_mask=torch.ones_like(R[mi]).bool(), logp_new=lp, logp_old=LP[mi], advantages=a, token_rewards=R[mi], loss=loss)
                sc = None
                if not little:
                    g = grads(loss, a=lp, **({} if kind == "spinningup" else {"v": vn}))
                    t |= dict(values=V[mi], values_new=vn, returns=ret[mi], dones=after[mi], next_values=nv[mi], token_loss=L, entropy=ent, dlogp=g["a"], dvalues=g["v"] if "v" in g else grads(vl, v=vn)["v"], pg_loss=pg, value_loss=vl, entropy_loss=ent.mean())
                    lr_ = lp - LP[mi]
                    sc = dict(approx_kl=((lr_.exp() - 1) - lr_).mean() if kind != "spinningup" else (-lr_).mean(), clipfrac=((lr_.exp() - 1).abs() > o["clip"]).float().mean()) if kind != "sb3-a2c" else None
                elif o.get("values"): t |= dict(values=V[mi], dones=after[mi], next_values=nv[mi])
                c.dump(step, t, scalars=sc)
                if kind in ("cleanrl", "sb3", "sb3-a2c"): nn.utils.clip_grad_norm_([*pi.parameters(), *vf.parameters()], 0.5)
                opt.step(); opt.zero_grad(); step += 1
    return c


GAMES = [("cleanrl", "cleanrl", dict()), ("cleanrl_lstm", "cleanrl", dict(minis=2, ent=0.0, gamma=0.98)), ("cleanrl_novclip", "cleanrl", dict(vclip=False, norm=False, clip=0.1)), ("sb3", "sb3", dict(ent=0.0, epochs=10, updates=2)), ("spinningup", "spinningup", dict(lam=0.97, epochs=6, E=6)),
         ("sb3_a2c", "sb3-a2c", dict(lam=1.0, epochs=1, ent=0.0, T=5, updates=6))]
T_ = lambda **k: k
LOOPS = [  # name, meta (framework …), configuration
    ("openinstruct", dict(framework="open-instruct", version="e6c3044", algorithm="grpo"), T_(scale="none", high=0.272, beta=0.05, kl="k3", kl_place="loss", agg="token_micro")),
    ("openinstruct_std", dict(framework="open-instruct", version="e6c3044", algorithm="grpo"), T_(ddof=0, eps=1e-8, high=0.272, agg="constant", constant=200.0, div_ga=False, tis=("token", "truncate", None, 2.0), noise=0.03)),
    ("nemo", dict(framework="nemo-rl", version="7ea279a", algorithm="grpo"), T_(center="loo", scale="loo_std", eps=1e-6, agg="token_global", div_ga=False, micro=2, n=6)),
    ("nemo_noscale", dict(framework="nemo-rl", version="7ea279a", algorithm="grpo"), T_(center="loo", scale="none", agg="token_global", div_ga=False, high=0.28, reward="acc_format")),
    ("areal", dict(framework="areal", algorithm="grpo"), T_(old="trainer", tis=("token", "mask", None, 5.0), noise=0.05, agg="token_global", div_ga=False, minis=2, eps=1e-5, ddof=0, low=0.2, high=0.28)),
    ("slime", dict(framework="slime", algorithm="grpo"), T_(agg="seq_mean_global", div_ga=False, low=0.2, high=0.28, beta=0.001, kl_place="loss", eps=1e-6, micro=[3, 6])),
    ("slime_tis", dict(framework="slime", algorithm="grpo"), T_(agg="seq_mean_global", div_ga=False, tis=("token", "truncate", None, 2.0), noise=0.03, dual=3.0)),
    ("tinker_is", dict(framework="tinker", algorithm="grpo"), T_(old="engine", low=None, high=None, scale="none", agg="token_sum", noise=0.02, div_ga=False)),
    ("tinker_ppo", dict(framework="tinker", algorithm="grpo"), T_(old="engine", scale="none", agg="token_sum", minis=2, noise=0.02, div_ga=False)),
    ("primerl", dict(framework="prime-rl", algorithm="grpo"), T_(old="engine", loss="cispo", low=None, high=8.0, abs_high=True, scale="none", agg="token_global", div_ga=False, noise=0.03)),
    ("minimax", dict(framework="custom", algorithm="grpo"), T_(loss="cispo", low=1.0, high=0.28, minis=2, epochs=2, lr=2e-2, agg="token_global", div_ga=False)),
    ("rloo_blog", dict(framework="custom", algorithm="rloo"), T_(center="loo", scale="none", loss="reinforce", kl_place="token_reward", kl="k1", beta=0.05, agg="seq_sum", n=4)),
    ("rlhf_ppo", dict(framework="custom", algorithm="ppo"), T_(adv="gae", critic=True, joint=True, vcoef=0.1, kl_place="token_reward", kl="k1", beta=0.1, reward="rm", n=1, groups=16, epochs=2, clip=(-5.0, 5.0))),
    ("reinforce_rtg", dict(framework="custom", algorithm="reinforce"), T_(adv="rtg", whiten=("global", 0, 1e-8, "add_std"), loss="reinforce", gamma=0.99, n=1, groups=24, entropy=0.01)),
]
CH = [T_(temperature=0.8), T_(n=8, groups=2), T_(reward="share"), T_(reward="acc_format"), T_(lr=2e-2), T_(epochs=2), T_(T=12), T_(micro=2), T_(entropy=0.001), T_(eos_bias=2.5), T_(groups=6)]
OD = [T_(reward="constant"), T_(lr=0.0), T_(epochs=5), T_(T=2), T_(turns=True), T_(reward="huge"), T_(minis=4)]


def main(cases):
    rng = random.Random(20261205)
    i = 0
    for name, kind, over in GAMES:
        c = game(cases, f"y5-{i:02d}_{name}", kind, 7500 + i, over | ({"values": rng.random() < 0.5}), i % 3 == 0, f"{name}: {over}")
        print(c.name, c.n, over, flush=True); i += 1
    for name, meta, over in LOOPS:
        o, notes = dict(over), [name]
        for ch in rng.sample(CH, rng.randrange(1, 3)) + (rng.sample(OD, 1) if i % 3 == 2 else []):
            if any(k in over for k in ch): continue
            o.update(ch); notes.append(",".join(f"{k}={v}" for k, v in ch.items()))
        c = loop_y.run(cases, f"y5-{i:02d}_{name}", "y5", 7500 + i, o, i % 3 == 0, "; ".join(notes), dict(meta, token_loss_includes_kl=False), loop_y.described(o))
        print(c.name, c.n, "; ".join(notes), flush=True); i += 1


if __name__ == "__main__": main(sys.argv[1])
