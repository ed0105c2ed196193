"""A multi-turn tool agent with PPO and a critic, own loop: turns of the policy with the tool's observations between them (masked in the middle), a reward at the end of every turn,
GAE over the policy's tokens only (gae.hole carry: masked tokens are skipped), KL in the token rewards, value loss in the total. logged scalars per optimiser step... of the micro-batch.
h_base, h_perturn and h_bf16: full (token_rewards, kl, dlogp, dvalues, token_loss, scalars); h_lazy_seq and h_2rank: log-probs, values, returns, advantages, token rewards, loss, logged scalars."""

from world_e import *

D = dict(
    N=24,
    mini=2,
    micro=2,
    epochs=2,
    turns=3,
    ttok=9,
    otok=5,
    gamma=1.0,
    lam=0.95,
    kl=0.05,
    klk="k1",
    clip=(0.2, 0.2),
    vclip=0.2,
    vfac=0.5,
    vf=0.5,
    ent=0.0,
    agg="token",
    den="micro",
    rollouts=2,
    lr=0.01,
    temp=1.0,
    full=True,
    seed=51,
    world=1,
    head_bf16=False,
    wden=True,
    rw=1.0,
)
H = {
    "h_base": dict(D),
    "h_perturn": dict(D, turns=4, ttok=7, otok=4, gamma=0.99, lam=0.9, klk="k3", kl=0.1, clip=(0.2, 0.28), den="global", seed=52, mini=1, micro=3, epochs=3),
    "h_bf16": dict(D, head_bf16=True, seed=53, vclip=None, vfac=1.0, vf=0.25, ent=0.01, temp=0.8),
    "h_lazy_seq": dict(D, seed=54, agg="seq_mean_token_mean", full=False, klk="k2", kl=0.2, turns=2, ttok=14, lam=1.0),
    "h_2rank": dict(D, seed=55, world=2, N=12, micro=1, den="global", full=False, clip=(0.1, 0.15), wden=False),
}
B = {
    "b_obs_in_loss": ("h_base", "observation-tokens-in-loss", "the loss multiplies by the whole trajectory, observations included"),
    "b_gae_zero_step": ("h_base", "gae-over-observations", "GAE runs over the observation tokens with their values and zero reward instead of skipping them"),
    "b_gae_cut": ("h_base", "gae-cut-at-turn", "the recursion is reset at every observation: credit does not flow from later turns"),
    "b_turn_next": (
        "h_base",
        "rewards-rolled",
        "GAE reads the reward buffer one column too late: every token gets the reward of the token before it, the last turn's reward is lost",
    ),
    "b_kl_obs": ("h_base", "kl-in-returns-twice", "the KL is subtracted from the rewards twice"),
    "b_v_shift": ("h_base", "value-off-by-one", "values are read at the token itself and not at the state before it, at rollout alone"),
    "b_clip_metric": ("h_base", "logged-clipfrac-all-cells", "the logged clip fraction divides by all cells"),
    "b_gamma": ("h_perturn", "gamma-twice", "gamma is applied twice in the trace: gamma squared times lambda"),
    "b_final_only": (
        "h_perturn",
        "turn-rewards-lost",
        "GAE gets the KL-shaped rewards with the last turn's reward alone: those of earlier turns stay in the buffer unused",
    ),
    "b_vclip_none": ("h_perturn", "value-clip-detached", "the clipped branch alone is taken: no gradient where the value left the band"),
    "b_den": ("h_perturn", "micro-denominator", "every micro-batch divides by its own tokens and the accumulation steps are forgotten"),
    "b_boot": ("h_perturn", "old-logp-after-step", "old log-probs are recomputed at the start of every epoch"),
    "b_vf2": ("h_bf16", "value-half-twice", "the value loss has an extra half"),
    "b_ent": ("h_bf16", "entropy-masked-wrong", "the entropy is averaged over observations too"),
    "b_whiten": ("h_bf16", "whiten-on-holes", "advantages are whitened with the mean and deviation of all cells up to the padding"),
    "b_k2_sign": ("h_lazy_seq", "kl-sign", "the KL is added to the rewards"),
    "b_row_mean": ("h_lazy_seq", "row-mean-over-length", "a row's loss is divided by its length with observations"),
    "b_ret_white": ("h_lazy_seq", "returns-of-whitened", "returns are whitened advantages plus values"),
    "b_rank": ("h_2rank", "values-of-other-rank", "rank 1's value clip is around rank 0's old values"),
    "b_clip": ("h_2rank", "clip-swapped", "the bounds are exchanged: 0.15 below and 0.1 above"),
    "b_temp": ("h_bf16", "temperature-new-only", "the training forward does not divide by the temperature, the rollout does"),
}


@torch.no_grad()
def rollout(pol, pr, C, gen):
    """turns of up to ttok tokens, ended by 3 (call) or EOS; then otok observation tokens, unless the episode is over"""
    B = len(pr)
    x, h = pol(pr, state=True)
    x = x[:, -1:]
    W = C.turns * C.ttok + (C.turns - 1) * C.otok
    ids = torch.full((B, W), PAD)
    mask = torch.zeros(B, W, dtype=torch.bool)
    use = mask.clone()
    turn = torch.zeros(B, W, dtype=torch.long)
    pos = torch.zeros(B, dtype=torch.long)
    state = [0] * B
    cnt = [0] * B
    tn = [0] * B
    phase = ["act"] * B
    ends = []
    for t in range(W):
        p = (x[:, 0].float() / C.temp).softmax(-1).clone()
        p[:, PAD] = 0
        tok = torch.multinomial(p, 1, generator=gen)[:, 0]
        ob = torch.randint(8, V, (B,), generator=gen)
        nxt = torch.full((B,), PAD)
        for i in range(B):
            if phase[i] == "end":
                continue
            if phase[i] == "act":
                nxt[i] = tok[i]
                ids[i, t] = tok[i]
                mask[i, t] = True
                use[i, t] = True
                turn[i, t] = tn[i]
                cnt[i] += 1
                if tok[i] == EOS or (cnt[i] >= C.ttok or tok[i] == 3) and tn[i] == C.turns - 1:
                    phase[i] = "end"
                    ends.append((i, t))
                elif cnt[i] >= C.ttok or tok[i] == 3:
                    phase[i], cnt[i] = "obs", 0
                    ends.append((i, t))
            else:
                nxt[i] = ob[i]
                ids[i, t] = ob[i]
                use[i, t] = True
                cnt[i] += 1
                if cnt[i] >= C.otok:
                    phase[i], cnt[i] = "act", 0
                    tn[i] += 1
        if all(q == "end" for q in phase):
            break
        x, h = pol(nxt[:, None], h, state=True)
    w = int(use.sum(1).max())
    return ids[:, :w], mask[:, :w], use[:, :w], [(i, t) for i, t in ends]


def gae(r, v, m, use, C, bug):
    B, T = r.shape
    A = torch.zeros(B, T)
    last = torch.zeros(B)
    nv = torch.zeros(B)
    g2 = C.gamma**2 if bug == "gamma-twice" else C.gamma
    for t in reversed(range(T)):
        on = use[:, t] if bug == "gae-over-observations" else m[:, t]
        delta = r[:, t] + C.gamma * nv - v[:, t]
        a = delta + g2 * C.lam * last
        last = torch.where(on, a, last)
        nv = torch.where(on, v[:, t], nv)
        if bug == "gae-cut-at-turn":
            last = torch.where(m[:, t], last, 0.0)
            nv = torch.where(m[:, t], nv, 0.0)
        A[:, t] = torch.where(m[:, t], last, 0.0)
    return A


def run(out, case, c, bug, exp):
    C = type("C", (), c)
    gen = torch.Generator().manual_seed(C.seed)
    torch.manual_seed(C.seed)
    pol, val = LM(seed=C.seed, head_bf16=C.head_bf16), LM(seed=C.seed + 1, value=True)
    ref = copy.deepcopy(pol)
    opt = torch.optim.AdamW(list(pol.parameters()) + list(val.parameters()), lr=C.lr, weight_decay=0.0)
    d = Dump(out, "e5_agent", case, framework="toolgym", version="1", algorithm="ppo", token_loss_includes_kl=False, **exp)
    o = {
        "mask.tokens": "response",
        "align": "response_only",
        "gae.gamma": C.gamma,
        "gae.lambda": C.lam,
        "gae.hole": "carry",
        "gae.value_mask": "response",
        "gae.truncated_bootstrap": "none",
        "gae.lambda_policy": "none",
        "returns.before_whiten": True,
        "adv.kind": "gae",
        "whiten.scope": "local_batch" if C.wden else "none",
        "whiten.mask": "response",
        "whiten.ddof": 0,
        "whiten.eps": 1e-8,
        "whiten.eps_place": "add_std",
        "whiten.shift_mean": "true",
        "whiten.remask": True,
        "returns.remask": "true",
        "rewards.whiten": "no",
        "kl.kind": C.klk,
        "kl.beta": C.kl,
        "kl.place": "token_reward",
        "kl.clamp_in": "none",
        "kl.clamp_out": "none",
        "ratio.level": "token",
        "ratio.old": "stored",
        "loss.kind": "ppo",
        "clip.low": C.clip[0],
        "clip.high": C.clip[1],
        "clip.dual": "none",
        "value.factor": C.vfac,
        "value.clip": "none" if C.vclip is None else C.vclip,
        "value.mask": "response",
        "value.agg": "same",
        "value.coef": C.vf,
        "entropy.coef": C.ent,
        "entropy.agg": "same",
        "agg.kind": C.agg,
        "agg.denominator": C.den,
        "agg.div_ga": C.den == "micro",
        "logp.temperature": C.temp,
        "optim.epochs": C.epochs,
        "num_mini_batches": C.mini,
        "metric.clip_frac": "binding",
        "eos_token_id": EOS,
        "tis.level": "none",
        "learning_rate": C.lr,
    }
    P, step, mr = 6, 0, C.N // C.mini // C.micro
    for ro in range(C.rollouts):
        Rs = []
        for rk in range(C.world):
            pr = prompts_(C.N, P, gen)
            ids, m, use, ends = rollout(pol, pr, C, gen)
            full = torch.cat([pr, ids], 1)
            with torch.no_grad():
                old, rl = logps(pol, pr, ids, C.temp), logps(ref, pr, ids, C.temp)
                vf = val(full)[..., 0]
                v = (vf[:, P:] if bug == "value-off-by-one" else vf[:, P - 1 : -1]) * use
                q = old - rl
                kl = {"k1": q, "k2": 0.5 * q * q, "k3": (-q).exp() - 1 + q}[C.klk]
                r = -C.kl * kl * m * (2 if bug == "kl-in-returns-twice" else -1 if bug == "kl-sign" else 1)
                turn_r = torch.zeros_like(r)
                lastt = {i: t for i, t in sorted(ends)}
                start = {i: 0 for i in range(C.N)}
                for i, t in sorted(ends):
                    seg = ids[i, start[i] : t + 1]
                    x = (seg % 3 == 0).float().mean() * 1.5 + 0.5 * (seg == 7).sum() - 0.05 * len(seg)
                    start[i] = t + 1
                    turn_r[i, t] += x
                early = torch.zeros_like(r)
                for i, t in ends:
                    if t != lastt[i]:
                        early[i, t] = turn_r[i, t]
                r = r + turn_r
                r_in = r
                if bug == "turn-rewards-lost":
                    r_in = r - early
                if bug == "rewards-rolled":
                    r_in = F.pad(r[:, :-1], (1, 0))
                A = gae(r_in, v * m if bug != "gae-over-observations" else v, m, use, C, bug)
                v = v * m
                ret = (A + v) * m
                raw = A
                if C.wden:
                    mm = use if bug == "whiten-on-holes" else m
                    mu = mmean(A, mm)
                    sd = mmean((A - mu) ** 2, mm).sqrt()
                    A = (A - mu) / (sd + 1e-8) * m
                if bug == "returns-of-whitened":
                    ret = (A + v) * m
            Rs.append(dict(pr=pr, ids=ids, m=m, use=use, old=old * m, rl=rl * m, v=v, kl=kl * m, r=r, A=A, ret=ret))
        for ep in range(C.epochs):
            perms = [torch.randperm(C.N, generator=gen) for _ in Rs]
            if bug == "old-logp-after-step" and ep:
                with torch.no_grad():
                    for R in Rs:
                        R["old"] = logps(pol, R["pr"], R["ids"], C.temp) * R["m"]
            for s in range(C.mini):
                step += 1
                tot = sum(float(R["m"][p[s * mr * C.micro : (s + 1) * mr * C.micro]].sum()) for R, p in zip(Rs, perms))
                for mb in range(C.micro):
                    for rk, R in enumerate(Rs):
                        lo = (s * C.micro + mb) * mr
                        k = perms[rk][lo : lo + mr]
                        m = R["m"][k].float()
                        um = R["use"][k].float()
                        new, ent = logps(pol, R["pr"][k], R["ids"][k], 1.0 if bug == "temperature-new-only" else C.temp, True)
                        new = new * m
                        vn = val(torch.cat([R["pr"][k], R["ids"][k]], 1))[:, P - 1 : -1, 0] * m
                        A, ret, v0 = R["A"][k], R["ret"][k], R["v"][k]
                        if bug == "values-of-other-rank" and rk:
                            z = Rs[0]["v"][k]
                            w_ = min(z.shape[1], v0.shape[1])
                            v0 = torch.zeros_like(v0)
                            v0[:, :w_] = z[:, :w_]
                        ratio = (new - R["old"][k]).exp()
                        c0, c1 = C.clip[::-1] if bug == "clip-swapped" else C.clip
                        s1, s2 = -A * ratio, -A * ratio.clamp(1 - c0, 1 + c1)
                        tl = torch.max(s1, s2)
                        lm = um if bug == "observation-tokens-in-loss" else m

                        def agg(x, mask):
                            if C.agg != "token":
                                return ((x * mask).sum(1) / (um if bug == "row-mean-over-length" else m).sum(1).clamp(min=1)).mean() / C.micro
                            if C.den == "micro":
                                return (x * mask).sum() / mask.sum() / C.micro
                            return (x * mask).sum() / mask.sum() if bug == "micro-denominator" else (x * mask).sum() / tot * C.world

                        if bug == "observation-tokens-in-loss":
                            raw_lp = logps(pol, R["pr"][k], R["ids"][k], C.temp)
                            tl_ = torch.where(m > 0, tl, -A.sum(1, keepdim=True) / m.sum(1, keepdim=True) * (raw_lp - raw_lp.detach()).exp())
                            pg = agg(tl_, um)
                        else:
                            pg = agg(tl, m)
                        e1 = (vn - ret) ** 2
                        if C.vclip is not None:
                            vc = v0 + (vn - v0).clamp(-C.vclip, C.vclip)
                            e2 = (vc - ret) ** 2
                            ee = e2 if bug == "value-clip-detached" else torch.max(e1, e2)
                        else:
                            ee = e1
                        vl = C.vfac * agg(ee, m) * (0.5 if bug == "value-half-twice" else 1.0)
                        loss = pg + C.vf * vl
                        el = None
                        if C.ent:
                            el = agg(ent, um if bug == "entropy-masked-wrong" else m)
                            loss = loss - C.ent * el
                        dl, dv = torch.autograd.grad(loss, [new, vn], retain_graph=True)
                        (loss / C.world).backward()
                        t = dict(
                            response_ids=R["ids"][k],
                            response_mask=R["m"][k],
                            input_ids=torch.cat([R["pr"][k], R["ids"][k]], 1),
                            attention_mask=torch.cat([R["pr"][k], R["ids"][k]], 1) != PAD,
                            logp_new=new,
                            logp_old=R["old"][k],
                            logp_ref=R["rl"][k],
                            values=R["v"][k],
                            values_new=vn,
                            returns=ret,
                            advantages=A,
                            token_rewards=R["r"][k],
                            loss=loss,
                            sample_id=k + 1000 * rk + 10000 * ro,
                        )
                        cf = ((s2 > s1).float() * m).sum() / (m.numel() if bug == "logged-clipfrac-all-cells" else m.sum())
                        sc = {"loss": loss.item(), "value_loss": vl.item(), "clip_frac": cf.item(), "approx_kl": mmean(R["old"][k] - new, m).item()}
                        if C.ent:
                            t["entropy"] = ent
                            sc["entropy"] = mmean(ent, m).item()
                        if C.full:
                            t |= dict(kl=R["kl"][k], dlogp=dl, dvalues=dv, token_loss=tl, pg_loss=pg, value_loss=vl, entropy_loss=el)
                        d(step, mb, C.micro, t, rk, C.world, options=o, scalars=sc, scalars_scope="micro_batch")
                torch.nn.utils.clip_grad_norm_(list(pol.parameters()) + list(val.parameters()), 1.0)
                opt.step()
                opt.zero_grad()


if __name__ == "__main__":
    main("e5_agent", H, B, run)
