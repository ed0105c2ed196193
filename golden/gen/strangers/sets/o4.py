"""h4: CleanRL's PPO on a vector of small environments (rows are environments, columns steps). Dump: all incl. dones, next_values, entropy; one with grad/weights/update."""

from world_o import *

DEF = dict(
    gamma=0.99,
    gae_lambda=0.95,
    clip_coef=0.2,
    norm_adv=True,
    clip_vloss=True,
    ent_coef=0.01,
    vf_coef=0.5,
    max_grad_norm=0.5,
    num_envs=16,
    num_steps=32,
    num_minibatches=2,
    update_epochs=3,
    learning_rate=5e-3,
    target_kl=None,
    anneal_lr=False,
)
C = dict(
    h_lstm_like_minibatches=dict(),
    h_full_batch=dict(num_minibatches=1, update_epochs=4),
    h_nonorm_novclip=dict(norm_adv=False, clip_vloss=False, ent_coef=0.0),
    h_targetkl=dict(target_kl=0.004, update_epochs=10, learning_rate=2e-2),
    h_truncboot=dict(_boot=True, gamma=0.95),
    h_anneal_grads=dict(_grads=True, anneal_lr=True, num_envs=8, num_steps=24),
    h_float64=dict(_f64=True, gae_lambda=1.0),
    h_longepisodes=dict(_never=True, gamma=0.9, vf_coef=1.0),
    h_oneenv=dict(num_envs=1, num_steps=64, num_minibatches=1),
    h_gamma1_lam0=dict(gamma=1.0, gae_lambda=0.0, num_envs=32),
    h_onestep=dict(num_steps=8, num_envs=32, _allend=True),
)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
        s.v = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


def go(out, case, c):
    o = {**DEF, **{k: v for k, v in c.items() if k[0] != "_"}}
    seed = sum(map(ord, case))
    torch.manual_seed(seed)
    dt = torch.float64 if c.get("_f64") else torch.float32
    net = Net().to(dt)
    E_, T = o["num_envs"], o["num_steps"]
    opt = torch.optim.Adam(net.parameters(), lr=o["learning_rate"], eps=1e-5)
    d = Dump(out, "o4", case, describes="right", framework="cleanrl", version="020cf0e5", algorithm="ppo", world_size=1)
    ob = torch.randn(E_, 4, dtype=dt)
    age = torch.zeros(E_, dtype=torch.long)
    step = 0
    iters = 3
    W = torch.randn(3, 4, dtype=dt) * 0.5
    for it in range(iters):
        if o["anneal_lr"]:
            opt.param_groups[0]["lr"] = (1 - it / iters) * o["learning_rate"]
        OB, AC, LP, RW, DN, VA = [], [], [], [], [], []
        for t in range(T):
            with torch.no_grad():
                lo = net.a(ob)
                v = net.v(ob)[:, 0]
            di = torch.distributions.Categorical(logits=lo)
            a = di.sample()
            OB.append(ob)
            AC.append(a)
            LP.append(di.log_prob(a))
            VA.append(v)
            nxt = 0.9 * ob + W[a] * 0.5 + 0.2 * torch.randn(E_, 4, dtype=dt)
            rw = -nxt.pow(2).mean(-1) + 0.5
            age += 1
            term = nxt.abs().max(-1).values > 2.2
            trunc = (age >= 13) & ~term
            if c.get("_never"):
                term, trunc = term & False, trunc & False
            if c.get("_allend"):
                term, trunc = term | True, trunc & False
            if c.get("_boot"):
                with torch.no_grad():
                    rw = rw + o["gamma"] * net.v(nxt)[:, 0] * trunc.to(dt)
            dn = term | trunc
            nxt = torch.where(dn[:, None], torch.randn(E_, 4, dtype=dt), nxt)
            age = torch.where(dn, torch.zeros_like(age), age)
            ob = nxt
            RW.append(rw)
            DN.append(dn)
        with torch.no_grad():
            nv = net.v(ob)[:, 0]
        OB, AC, LP, RW, DN, VA = [torch.stack(z, 1) for z in (OB, AC, LP, RW, DN, VA)]
        adv = torch.zeros_like(RW)
        la = 0
        for t in reversed(range(T)):
            nn_ = 1 - DN[:, t].to(dt)
            nxv = nv if t == T - 1 else VA[:, t + 1]
            de = RW[:, t] + o["gamma"] * nxv * nn_ - VA[:, t]
            la = de + o["gamma"] * o["gae_lambda"] * nn_ * la
            adv[:, t] = la
        ret = adv + VA
        stop = False
        for ep in range(o["update_epochs"]):
            pm = torch.randperm(E_).view(o["num_minibatches"], -1)
            for ix in pm:
                step += 1
                lo = net.a(OB[ix])
                di = torch.distributions.Categorical(logits=lo)
                lp = di.log_prob(AC[ix])
                ent = di.entropy()
                vn = net.v(OB[ix])[..., 0]
                lr_ = lp - LP[ix]
                rho = lr_.exp()
                a = adv[ix]
                if o["norm_adv"]:
                    a = (a - a.mean()) / (a.std() + 1e-8)
                pl = torch.max(-a * rho, -a * rho.clamp(1 - o["clip_coef"], 1 + o["clip_coef"]))
                pg = pl.mean()
                if o["clip_vloss"]:
                    u = (vn - ret[ix]) ** 2
                    cl = VA[ix] + (vn - VA[ix]).clamp(-o["clip_coef"], o["clip_coef"])
                    vl = 0.5 * torch.max(u, (cl - ret[ix]) ** 2).mean()
                else:
                    vl = 0.5 * ((vn - ret[ix]) ** 2).mean()
                el = ent.mean()
                loss = pg - o["ent_coef"] * el + vl * o["vf_coef"]
                t = dict(
                    response_mask=torch.ones_like(lp, dtype=torch.bool),
                    logp_new=lp,
                    logp_old=LP[ix],
                    advantages=a,
                    values=VA[ix],
                    values_new=vn,
                    returns=ret[ix],
                    token_rewards=RW[ix],
                    dones=DN[ix],
                    next_values=nv[ix],
                    entropy=ent,
                    logits=lo,
                    response_ids=AC[ix],
                    token_loss=pl,
                    pg_loss=pg,
                    value_loss=vl,
                    loss=loss,
                    dlogp=d_of(pg - 0 * el, lp) if False else d_of(loss, lp),
                    dvalues=d_of(loss, vn),
                )
                # entropy reaches the logits, not lp, so dlogp is the policy term's
                opt.zero_grad()
                loss.backward()
                kl = ((rho - 1) - lr_).mean().item()
                scal = {
                    "losses/policy_loss": pg.item(),
                    "losses/value_loss": vl.item(),
                    "losses/entropy": el.item(),
                    "losses/approx_kl": kl,
                    "losses/old_approx_kl": (-lr_).mean().item(),
                    "charts/learning_rate": opt.param_groups[0]["lr"],
                }
                named = list(net.named_parameters())
                if c.get("_grads"):
                    bf = {n: p.detach().clone() for n, p in named}
                    t |= {f"grad/{n}": p.grad.clone() for n, p in named}
                nn.utils.clip_grad_norm_(net.parameters(), o["max_grad_norm"])
                opt.step()
                if c.get("_grads"):
                    t |= {f"weights/{n}": w for n, w in bf.items()} | {f"update/{n}": p.detach() - bf[n] for n, p in named}
                t.pop("response_ids")
                t.pop("logits")
                d.write(step, t, options=o, micro_batches=1, scalars=scal, scalars_scope="micro_batch")
            if o["target_kl"] is not None and kl > o["target_kl"]:
                break


run(C, go)
