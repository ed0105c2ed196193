"""Loops of nobody's: CleanRL, SB3, Spinning Up, open-instruct, NeMo-RL, AReaL, slime, tinker, prime-rl and a plain REINFORCE, in their own lines; right runs."""
import sys; from world_u import *
NAME = "u5"
def gae_steps(rew, val, dones, nextv, g, l):
    A = torch.zeros_like(rew); last = torch.zeros(len(rew))
    for t in reversed(range(rew.shape[1])):
        nv = nextv if t == rew.shape[1] - 1 else val[:, t + 1]
        nt = 1 - dones[:, t]
        delta = rew[:, t] + g * nv * nt - val[:, t]
        A[:, t] = last = delta + g * l * nt * last
    return A
KINDS = ["cleanrl", "open_instruct", "sb3", "slime", "spinup", "areal", "nemo", "tinker", "prime", "reinforce"]
def env(cases, i, kind, r, little):
    """rows are environments that write tokens; an episode ends at EOS or by chance, a rollout is cut off at T"""
    T, E, gam, lam = r.choice([16, 32]), r.choice([4, 8]), r.choice([.99, 1.0, .9]), r.choice([.95, .97])
    clip = r.choice([.2, .1]); epochs = r.choice([2, 4]); nmb = r.choice([1, 2]) if kind != "spinup" else 1; vc = r.choice([.5, 1.0]); ec = r.choice([.01, 0.0]); clipv = kind == "cleanrl" and r.random() < .6; norm = r.random() < .8
    model = LM(); opt = torch.optim.Adam(model.parameters(), lr=2.5e-3, eps=1e-5)
    if kind == "cleanrl":
        opts = dict(gamma=gam, gae_lambda=lam, clip_coef=clip, norm_adv=norm, clip_vloss=clipv, ent_coef=ec, vf_coef=vc, update_epochs=epochs, num_minibatches=nmb); meta = dict(framework="cleanrl", version="020cf0e5", algorithm="ppo")
    else:
        opts = {"adv.kind": "gae", "gae.gamma": gam, "gae.lambda": lam, "gae.truncated_bootstrap": "value", "mask.tokens": "none", "clip.low": clip, "clip.high": clip, "loss.kind": "ppo", "agg.kind": "token", "agg.denominator": "micro", "value.clip": "none", "optim.epochs": epochs, "num_mini_batches": nmb, "kl.place": "none",
                "whiten.scope": ("minibatch" if kind == "sb3" else "global") if norm else "none", "whiten.ddof": 1 if kind == "sb3" else 0, "whiten.eps_place": "add_std", "whiten.eps": 1e-8 if kind == "sb3" else 0, "returns.of": "gae" if kind == "sb3" else "reward_to_go", "value.factor": 1, "value.coef": vc if kind == "sb3" else 1, "entropy.coef": ec if kind == "sb3" else 0, "returns.before_whiten": True}
        meta = dict(framework="stable-baselines3" if kind == "sb3" else "spinningup", version="2.3.2" if kind == "sb3" else "0.2", algorithm="ppo")
    run = Run(cases, NAME, f"c{i:02d}_{kind}", f"right: {kind} PPO on steps, {opts}")
    step, prompt = 0, prompts_of(r, E, 4)
    for roll in range(3):
        ids, _, _, old, _ = sample(model, prompt, T, stop=False)
        with torch.no_grad():
            old, _, val, _ = response(model, prompt, ids)
            _, v_all = model(torch.cat([prompt, ids], 1)); nextv = v_all[:, -1]
        dones = ((ids == EOS) | (torch.rand(E, T) < .03)).float(); rew = (ids % 3 == prompt[:, :1] % 3).float() * .3 + (ids == EOS).float() * r.choice([1.0, .5]) - .1
        A = gae_steps(rew, val, dones, nextv, gam, lam); R = A + val
        if kind == "spinup":
            R = gae_steps(rew, torch.zeros_like(val), dones, nextv, gam, 1.0)
            if norm: A = (A - A.mean()) / A.std(unbiased=False)
        for ep in range(epochs):
            for mbi in torch.randperm(E).chunk(nmb):
                step += 1; lp, ent, vn, _ = response(model, prompt[mbi], ids[mbi]); a = A[mbi]
                if norm and kind != "spinup": a = (a - a.mean()) / (a.std() + 1e-8)
                logratio = lp - old[mbi]; ratio = logratio.exp(); tl = torch.max(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip)); pg = tl.mean()
                if clipv: vcl = val[mbi] + (vn - val[mbi]).clamp(-clip, clip); vl = .5 * torch.max((vn - R[mbi]) ** 2, (vcl - R[mbi]) ** 2).mean()
                else: vl = (.5 if kind == "cleanrl" else 1.0) * ((vn - R[mbi]) ** 2).mean()
                el = ent.mean(); loss = pg - (ec if kind != "spinup" else 0) * el + (vc if kind != "spinup" else 1.0) * vl
                t = dict(response_mask=torch.ones_like(lp), response_ids=ids[mbi], logp_new=lp, logp_old=old[mbi], values=val[mbi], values_new=vn, next_values=nextv[mbi], dones=dones[mbi], token_rewards=rew[mbi], advantages=a, returns=R[mbi], token_loss=tl, pg_loss=pg, value_loss=vl, entropy=ent, entropy_loss=el, loss=loss, dlogp=grad(loss, lp), dvalues=grad(loss, vn), sample_id=mbi + 100 * roll)
                sc = {"losses/approx_kl": ((ratio - 1) - logratio).mean(), "losses/clipfrac": ((ratio - 1).abs() > clip).float().mean(), "losses/policy_loss": pg, "losses/value_loss": vl, "losses/entropy": el} if kind == "cleanrl" else {}
                m = dict(meta, world_size=1, micro_batches=1, options=opts)
                if not little: m |= dict(scalars={k: x.item() for k, x in sc.items()}, scalars_scope="optimizer_step")
                run.dump(pick(t, little, ("values", "returns", "token_rewards", "dones", "next_values") if i % 2 == 0 else ("sample_id",)), step, 0, 0, **m)
                opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(model.parameters(), .5); opt.step()
        prompt = torch.cat([prompt, ids], 1)[:, -4:]

def lm(cases, i, kind, r, little):
    G, T, temp = r.choice([2, 4, 8]), r.choice([12, 16, 24]), r.choice([1.0, 1.0, .7]); world = r.choice([1, 1, 2]); nmb = r.choice([1, 2]); micro = r.choice([1, 2]); per = 8; epochs = r.choice([1, 2]); N = per * world * nmb
    tools = r.random() < .3; model = LM(); ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(torch.randn_like(p) * .02)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0); beta = r.choice([0.0, .05]); lo, hi = r.choice([(.2, .2), (.2, .272)]); cap = r.choice([0, 2.0]); kest = r.choice([0, 1, 2, 3]); advn = r.choice(["standard", "centered"]); const = r.choice(["token", "token", 64.0])
    base = {"logp.temperature": temp, "num_mini_batches": nmb, "optim.epochs": epochs, "num_generations": G}
    if kind == "open_instruct":
        meta = dict(framework="open-instruct", version="e6c3044a", algorithm="grpo"); o = dict(beta=beta, clip_lower=lo, clip_higher=hi, kl_estimator=kest, truncated_importance_sampling_ratio_cap=cap, advantage_normalization_type=advn, temperature=temp, num_mini_batches=nmb, num_epochs=epochs, num_samples_per_prompt_rollout=G)
        o["agg.denominator"] = "global" if const == "token" else "constant"
        if const != "token": o["loss_denominator"] = const
    elif kind == "slime":
        meta = dict(framework="slime", version="0.2", algorithm="grpo"); o = base | {"adv.kind": "group", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-6, "clip.low": lo, "clip.high": hi, "clip.dual": "none", "loss.kind": "ppo", "agg.kind": "seq_mean_token_mean", "agg.denominator": "global", "kl.place": "loss" if beta else "none", "kl.kind": "k3", "kl.beta": beta, "tis.level": "token" if cap else "none", "tis.rule": "clamp", "tis.low": 0.0, "tis.high": cap or 2.0, "tis.gate": "ratio"}
    elif kind == "areal":
        meta = dict(framework="areal", version="0.3", algorithm="grpo"); cap = cap or 5.0; o = base | {"adv.kind": "group", "adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-9, "clip.low": lo, "clip.high": lo, "loss.kind": "ppo", "agg.kind": "token", "agg.denominator": "global", "kl.place": "none", "tis.level": "token", "tis.rule": "zero_outside", "tis.low": 0.0, "tis.high": cap, "tis.gate": "ratio", "async_rollout": True}
    elif kind == "nemo":
        meta = dict(framework="nemo-rl", version="7ea279ab", algorithm="grpo"); o = base | {"align": "response_only", "adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "clip.low": lo, "clip.high": hi, "loss.kind": "ppo", "agg.kind": "token", "agg.denominator": "global", "kl.place": "loss" if beta else "none", "kl.kind": "k3", "kl.beta": beta, "kl.grad": "naive", "tis.level": "none"}
    elif kind == "tinker":
        meta = dict(framework="tinker-cookbook", version="0.1", algorithm="grpo"); ppo_ = r.random() < .5; o = base | {"adv.kind": "group", "adv.center": "mean", "adv.scale": "none", "loss.kind": "ppo", "ratio.old": "engine", "agg.kind": "token_sum", "kl.place": "none", "clip.low": .2 if ppo_ else "none", "clip.high": .2 if ppo_ else "none", "tis.level": "none"}
    elif kind == "prime":
        meta = dict(framework="prime-rl", version="0.3", algorithm="grpo"); o = base | {"adv.kind": "group", "adv.center": "mean", "adv.scale": "none", "loss.kind": "ppo", "ratio.old": "engine", "agg.kind": "token", "agg.denominator": "global", "kl.place": "none", "clip.low": "none", "clip.high": "none", "tis.level": "none", "async_rollout": True}
    else:
        meta = dict(framework="torch", version="2.15.0", algorithm="reinforce"); o = base | {"adv.kind": "group", "adv.center": "mean", "adv.scale": "batch_std", "adv.ddof": 0, "adv.eps": 1e-8, "adv.std_of": "rewards", "loss.kind": "reinforce", "agg.kind": "seq_mean_token_sum", "agg.denominator": "micro", "kl.place": "none", "tis.level": "none"}; micro = 1; nmb = 1; N = per * world; o["num_mini_batches"] = 1; world = 1
    declared = []
    if i % 4 == 3 and kind not in ("open_instruct",):  # declared on the command line instead
        for k in list(o):
            if "." in k and k not in ("logp.temperature",): declared += ["--set", f"{k}={str(o.pop(k)).lower() if not isinstance(o.get(k), str) else o.pop(k)}"]
    run = Run(cases, NAME, f"c{i:02d}_{kind}", f"right: {kind}-like loop, G {G}, clip {lo} {hi}, beta {beta}, cap {cap}, micro {micro}, {world} ranks", declared)
    step = 0
    stale = copy.deepcopy(model); ekind = r.choice(["bf16", "noise"])
    while N % G: N += per * world * nmb
    for roll in range(3):
        pr = prompts_of(r, N // G).repeat_interleave(G, 0); eng = engine_of(stale if o.get("async_rollout") else model,  r, ekind) if kind != "reinforce" else model; stale = copy.deepcopy(model)
        ids, am, own, gen, _ = sample(eng, pr, T, temp, obs=.12 if tools else 0); mask = own.float()
        with torch.no_grad(): old = response(model, pr, ids, temp)[0]; refl = response(ref, pr, ids, temp)[0]
        s = rule(pr, ids, own, r.choice([0, 4, 0])); g = s.view(-1, G)
        if kind == "open_instruct":
            a = g - g.mean(1, keepdim=True)
            if advn == "standard": a = a / (g.std(1, keepdim=True, unbiased=False) + 1e-8)
        elif kind in ("slime", "areal"): a = (g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + (1e-6 if kind == "slime" else 1e-9))
        elif kind == "nemo": a = g - (g.sum(1, keepdim=True) - g) / (G - 1)
        elif kind == "reinforce": a = (g - g.mean(1, keepdim=True)) / (s.std(unbiased=False) + 1e-8)
        else: a = g - g.mean(1, keepdim=True)
        adv = a.reshape(-1)
        for ep in range(epochs):
            for m in range(nmb):
                step += 1; loc = N // world // nmb; rows = [torch.arange(k * N // world + m * loc, k * N // world + (m + 1) * loc) for k in range(world)]; alln = torch.cat(rows); tot = mask[alln].sum()
                for gi in range(micro):
                    for k in range(world):
                        ti = rows[k].chunk(micro)[gi]; mk = mask[ti]; A = adv[ti].unsqueeze(1) * mk; lp, ent, _, lg = response(model, pr[ti], ids[ti], temp)
                        kl = None; w = None; oldl = gen[ti] if kind in ("tinker", "prime") else old[ti]
                        ratio = (lp - oldl).exp()
                        if kind == "reinforce": tl = -A * lp
                        elif o.get("clip.low", "") == "none" or (kind == "prime") or kind == "tinker" and not ppo_: tl = -A * ratio
                        else: tl = torch.max(-A * ratio, -A * ratio.clamp(1 - (.2 if kind == "tinker" else lo), 1 + (.2 if kind == "tinker" else lo if kind == "areal" else hi)))
                        if kind in ("open_instruct", "slime") and cap: w = (oldl - gen[ti]).clamp(-10, 10).exp().clamp(max=cap) if kind == "open_instruct" else (oldl - gen[ti]).exp().clamp(0, cap); tl = tl * w
                        if kind == "areal": w = (oldl - gen[ti]).exp(); w = torch.where(w <= cap, w, torch.zeros(())); tl = tl * w
                        tot_l = tl
                        if beta and kind in ("open_instruct", "slime", "nemo"):
                            d = lp - refl[ti]
                            if kind == "open_instruct": d = d.clamp(-40, 40); kl = [d, d ** 2 / 2, torch.expm1(-d) + d, ratio * d][kest]
                            elif kind == "slime": kl = (-d).exp() - 1 + d
                            else: kl = ((-d).clamp(-20, 20).exp() - 1 + d.clamp(-20, 20)).clamp(-10, 10)
                            tot_l = tl + beta * kl
                        if kind == "open_instruct": loss = (tot_l * mk).sum() / (tot if const == "token" else const) * world
                        elif kind == "slime": loss = ((tot_l * mk).sum(1) / mk.sum(1).clamp(min=1)).sum() / (loc * world) * world
                        elif kind == "tinker": loss = (tot_l * mk).sum() * world
                        elif kind == "reinforce": loss = (tot_l * mk).sum(1).mean()
                        else: loss = (tot_l * mk).sum() / tot * world
                        t = dict(response_mask=mk, response_ids=ids[ti], logp_new=lp, logp_old=None if kind in ("tinker", "prime") and i % 2 else old[ti], logp_gen=gen[ti] if kind != "reinforce" else None, logp_ref=refl[ti] if beta and kind in ("open_instruct", "slime", "nemo") else None, kl=kl, is_weights=w, advantages=adv[ti], scores=s[ti], group_id=ti // G + 1000 * roll, sample_id=ti + 1000 * roll, token_loss=tl, entropy=ent, loss=loss, dlogp=grad(loss, lp), logits=lg if i % 4 == 1 else None)
                        mt = dict(meta, world_size=world, micro_batches=micro, options=o | ({"num_items_in_batch": int(tot)} if i % 2 else {}), token_loss_includes_kl=False)
                        run.dump(pick(t, little, ("is_weights",)), step, k, gi, **mt); (loss / world).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()

def main(cases):
    for i in range(20):
        r = random.Random(5000 + i); torch.manual_seed(500 + i); kind = KINDS[i % 10]
        (env if kind in ("cleanrl", "sb3", "spinup") else lm)(cases, i, kind, r, i % 3 == 2)
main(sys.argv[1])
