"""PPOTrainer of TRL 1.12 (experimental/ppo), rewritten from its source with a small policy and a separate value model. Dumped: what the loop has per micro-batch
(log-probs, mask, values, returns, rewards, advantages, token loss, losses, dlogp, dvalues, scalars)."""

from world_m import *

BASE = dict(
    kl_coef=0.05,
    kl_estimator="k1",
    cliprange=0.2,
    vf_coef=0.1,
    cliprange_value=0.2,
    gamma=1.0,
    lam=0.95,
    whiten_rewards=False,
    missing_eos_penalty=None,
    temperature=0.7,
    num_ppo_epochs=2,
    num_mini_batches=2,
    gradient_accumulation_steps=1,
    batch_size=32,
    response_length=24,
    learning_rate=1e-2,
)
INVALID = 1.0


def mmean(x, m):
    return (x * m).sum() / m.sum()


def mwhiten(x, m, shift_mean=True, unbiased=True):
    mu = mmean(x, m)
    v = mmean((x - mu) ** 2, m)
    if unbiased:
        v = v * m.sum() / (m.sum() - 1)
    o = (x - mu) * torch.rsqrt(v + 1e-8)
    return o if shift_mean else o + mu


class Value(nn.Module):
    def __init__(s):
        super().__init__()
        s.b = LM()
        s.v = nn.Linear(32, 1, bias=False)

    def forward(s, x):
        return s.v(s.b.hid(x))[..., 0]


def run(cfg, bug, folder, case):
    C = {**BASE, **cfg}
    dt = torch.bfloat16 if C.get("bf16") else torch.float32
    pol, val = LM(), Value()
    ref = copy.deepcopy(pol)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn_like(p))
        val.v.weight.mul_(2)
    opt = torch.optim.AdamW(list(pol.parameters()) + list(val.parameters()), lr=C["learning_rate"], weight_decay=0.0)
    T, N, P = C["response_length"], C["batch_size"], 5
    tmp = C["temperature"] + 1e-7
    step = 0

    def logps(model, P_, ids, temp):
        lg = model.head(model.hid(torch.cat([P_, ids], 1))[:, P - 1 : -1]).to(dt)
        lg = lg / temp
        return F.log_softmax(lg, -1).gather(2, ids[..., None])[..., 0], lg

    opts = {k: v for k, v in C.items() if k not in ("seed", "rollouts", "bf16", "batch_size")}
    opts["eos_token_id"] = EOS
    opts["stop_token"] = "eos"
    opts.pop("stop_token")
    for roll in range(2):
        with torch.no_grad():
            pr = prompts_of(N, P)
            ids, cm, glp, ended, _ = generate(pol, pr, T, tmp)
            ids_m = ids
            pm = cm == 0
            L = cm.sum(1) - 1
            lp = logps(pol, pr, ids, tmp)[0]
            rl = logps(ref, pr, ids, tmp if bug != "ref-no-temperature" else 1.0)[0]
            value = val(torch.cat([pr, ids], 1))[:, P - 1 : -1].to(dt)
            if bug == "values-shifted":
                value = val(torch.cat([pr, ids], 1))[:, P:].to(dt)
            raw = (rewards_of(ids, cm)[0] + rewards_of(ids, cm)[1]).to(dt)
            sc = raw.clone()
            if C["missing_eos_penalty"] is not None:
                has = ended
                if bug == "eos-penalty-on-ended":
                    has = ~ended
                sc[~has] -= C["missing_eos_penalty"]
            ar = torch.arange(T)[None]
            lp = lp.masked_fill(pm, INVALID)
            rl = rl.masked_fill(pm, INVALID)
            p1 = ar > (L + 1)[:, None]
            value = value.masked_fill(p1, 0)
            logr = rl - lp
            if bug == "kl-sign":
                logr = -logr
            kl = -logr if C["kl_estimator"] == "k1" else (logr.exp() - 1) - logr
            rew = -C["kl_coef"] * kl
            end = torch.where(L + 1 < T, L + 1, L)
            if bug == "score-at-last-column":
                end = torch.full_like(L, T - 1)
            if bug == "score-every-token":
                rew = torch.where(pm, rew, rew + sc[:, None] / 1.0)
            else:
                rew[torch.arange(N), end] += sc
            if bug == "score-overwrites":
                rew[torch.arange(N), end] = sc + 0.5
            if C["whiten_rewards"]:
                rew = mwhiten(rew, ~p1, shift_mean=bug == "whiten-rewards-shift").masked_fill(p1, 0)
            last = 0
            rev = []
            for t in reversed(range(T)):
                nv = value[:, t + 1] if t < T - 1 else 0.0
                if bug == "bootstrap-self" and t == T - 1:
                    nv = value[:, t]
                d = rew[:, t] + C["gamma"] * nv - value[:, t]
                if bug == "gae-no-gamma-nextvalue":
                    d = rew[:, t] + nv - value[:, t]
                last = d + C["gamma"] * C["lam"] * last
                if bug == "lam-squared":
                    last = d + C["gamma"] * C["lam"] ** 2 * (last - d) / C["lam"] if t < T - 1 else d
                rev.append(last)
            adv = torch.stack(rev[::-1], 1)
            ret = adv + value
            if bug == "adv-of-returns":
                adv = ret.clone()
            if bug == "returns-after-whiten":
                adv = mwhiten(adv, ~pm)
                ret = adv + value
            else:
                adv = mwhiten(adv, ~pm if bug != "whiten-over-padding" else torch.ones_like(pm))
            if bug == "whiten-twice-scale":
                adv = adv * 0.5
            adv = adv.masked_fill(pm, 0)
        mbs = N // C["num_mini_batches"]
        A = C["gradient_accumulation_steps"]
        mic = mbs // A
        for ep in range(C["num_ppo_epochs"]):
            perm = torch.randperm(N)
            for s in range(C["num_mini_batches"]):
                step += 1
                opt.zero_grad()
                for a in range(A):
                    i = perm[s * mbs + a * mic : s * mbs + (a + 1) * mic]
                    x = torch.cat([pr[i], ids[i]], 1)
                    nlp, lg = logps(pol, pr[i], ids[i], tmp if bug != "no-temperature-in-update" else 1.0)
                    nlp = nlp.masked_fill(pm[i], INVALID)
                    vp = val(x)[:, P - 1 : -1].to(dt).masked_fill(p1[i], 0)
                    mv, mr, ma, ml = value[i], ret[i], adv[i], lp[i]
                    if bug == "advantage-other-rows":
                        ma = adv[perm[torch.arange(s * mbs + a * mic, s * mbs + (a + 1) * mic).flip(0)]]
                    vc = torch.clamp(vp, mv - C["cliprange_value"], mv + C["cliprange_value"])
                    if bug == "value-clip-around-return":
                        vc = torch.clamp(vp, mr - C["cliprange_value"], mr + C["cliprange_value"])
                    l1, l2 = (vp - mr) ** 2, (vc - mr) ** 2
                    vl = 0.5 * mmean(torch.max(l1, l2) if bug != "value-min" else torch.min(l1, l2), ~p1[i])
                    if bug == "value-no-half":
                        vl = vl * 2
                    if bug == "value-mask-padded":
                        vl = 0.5 * torch.max(l1, l2).mean()
                    r = (nlp - ml).exp()
                    if bug == "ratio-inverted":
                        r = (ml - nlp).exp()
                    g1, g2 = -ma * r, -ma * r.clamp(1 - C["cliprange"], 1 + C["cliprange"])
                    tl = torch.max(g1, g2) if bug != "pg-min" else torch.min(g1, g2)
                    pg = mmean(tl, ~pm[i])
                    if bug == "pg-padded-mean":
                        pg = tl.mean()
                    loss = pg + C["vf_coef"] * vl
                    if bug == "vf-coef-dropped":
                        loss = pg + vl
                    dl, dv = torch.autograd.grad(loss, [nlp, vp], retain_graph=True)
                    (loss / A).backward()
                    with torch.no_grad():
                        ent = torch.logsumexp(lg, -1) - (F.softmax(lg, -1) * lg).sum(-1)
                        scal = {
                            "policy/clipfrac_avg": mmean((g2 > g1).float(), ~pm[i]).item(),
                            "loss/policy_avg": pg.item(),
                            "loss/value_avg": vl.item(),
                            "val/clipfrac_avg": mmean((l2 > l1).float(), ~p1[i]).item(),
                            "policy/approxkl_avg": (0.5 * ((nlp - ml) ** 2).mean()).item(),
                        }
                    t = dict(
                        response_ids=ids[i],
                        response_mask=~pm[i],
                        logp_new=nlp,
                        logp_old=ml,
                        logp_ref=rl[i],
                        values=mv,
                        values_new=vp,
                        returns=mr,
                        advantages=ma,
                        scores=raw[i],
                        token_rewards=rew[i],
                        kl=kl[i],
                        token_loss=tl,
                        loss=loss / A,
                        pg_loss=pg,
                        value_loss=vl,
                        dlogp=dl / A,
                        dvalues=dv / A,
                        entropy=ent,
                        input_ids=x,
                        attention_mask=torch.cat([pr[i] != PAD, ~pm[i]], 1),
                        sample_id=i + roll * 1000,
                    )
                    if A == 1:
                        pass
                    else:
                        t.pop("pg_loss")
                        t.pop("value_loss")
                    if C.get("lazy"):
                        t = {
                            k: t[k]
                            for k in (
                                "response_mask",
                                "logp_new",
                                "logp_old",
                                "logp_ref",
                                "values",
                                "values_new",
                                "returns",
                                "advantages",
                                "scores",
                                "token_rewards",
                                "loss",
                                "response_ids",
                                "sample_id",
                            )
                        }
                    write(
                        folder,
                        f"step_{step:04d}_mb_{a}",
                        t,
                        dict(
                            schema=2,
                            framework="trl",
                            version="1.12.0",
                            algorithm="ppo",
                            run=case,
                            step=step,
                            micro_batch=a,
                            micro_batches=A,
                            options={k: v for k, v in opts.items() if k != "lazy"},
                            scalars=scal if not C.get("lazy") else {},
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                            masked_fill=INVALID,
                        ),
                    )
                torch.nn.utils.clip_grad_norm_(list(pol.parameters()) + list(val.parameters()), 1.0)
                opt.step()


H = {
    "h_k1_eospenalty_2mb": dict(missing_eos_penalty=1.0, seed=21),
    "h_k3_whitenrewards_gamma": dict(
        kl_estimator="k3",
        whiten_rewards=True,
        gamma=0.98,
        lam=0.9,
        cliprange_value=0.1,
        kl_coef=0.2,
        temperature=1.0,
        num_ppo_epochs=3,
        num_mini_batches=1,
        batch_size=24,
        response_length=32,
        vf_coef=0.5,
        seed=22,
    ),
    "h_bf16_lazy_4mb": dict(
        bf16=True,
        lazy=True,
        kl_coef=0.1,
        num_mini_batches=4,
        num_ppo_epochs=2,
        batch_size=48,
        response_length=20,
        missing_eos_penalty=0.5,
        learning_rate=2e-2,
        cliprange=0.15,
        seed=23,
    ),
}


def b(of, describes, legal="", **k):
    return dict(of=of, describes=describes, legal=legal, **k)


B = {
    "eos-penalty-on-ended": b("h_k1_eospenalty_2mb", "the penalty for a missing EOS is taken from the responses that have one"),
    "values-shifted": b("h_k1_eospenalty_2mb", "values at rollout are read one position too late (state after the token); values in the update are right"),
    "kl-sign": b("h_k1_eospenalty_2mb", "KL penalty with the sign turned: moving away from the reference is rewarded"),
    "no-temperature-in-update": b(
        "h_k1_eospenalty_2mb", "the update's logits are not divided by the temperature while the rollout's are: ratio is not 1 at first"
    ),
    "value-clip-around-return": b("h_k1_eospenalty_2mb", "new values are clipped around the returns instead of the old values"),
    "advantage-other-rows": b("h_k1_eospenalty_2mb", "advantages of the mini-batch are taken in reverse order of rows"),
    "gae-no-gamma-nextvalue": b("h_k3_whitenrewards_gamma", "gamma is missing at the next value in the TD error"),
    "whiten-rewards-shift": b(
        "h_k3_whitenrewards_gamma",
        "reward whitening subtracts the mean without adding it back",
        "whitening with the mean shifted is a setting of masked_whiten that others use on rewards",
    ),
    "returns-after-whiten": b("h_k3_whitenrewards_gamma", "returns are made of whitened advantages"),
    "value-min": b("h_k3_whitenrewards_gamma", "value loss takes the minimum of clipped and unclipped squared errors"),
    "value-no-half": b("h_k3_whitenrewards_gamma", "the factor 0.5 of the value loss is missing", "value.factor 1 (OpenAI-baselines kin) computes this"),
    "ref-no-temperature": b("h_bf16_lazy_4mb", "reference log-probs are computed without the temperature"),
    "score-at-last-column": b("h_bf16_lazy_4mb", "the score goes to the last column of the padded matrix instead of the end of the response"),
    "ratio-inverted": b("h_bf16_lazy_4mb", "ratio is old / new"),
    "pg-padded-mean": b("h_bf16_lazy_4mb", "the policy loss is a mean over all cells with padding instead of over tokens"),
    "whiten-over-padding": b("h_bf16_lazy_4mb", "advantages are whitened over the padded matrix: padding zeros enter mean and variance"),
}
main("m2_trl_ppo", {**H, **{"b_" + k: dict(v, bug=k) for k, v in B.items()}}, run)
