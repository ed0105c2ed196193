"""TRL 1.12 PPO after its trainer (rollout, shaping, GAE, epochs x mini-batches x accumulation). Dumps everything a micro-batch has, gradients on log-probs and values too."""

from world_h import *

INV = 1.0


def masked_mean(v, m):
    return (v * m).sum() / m.sum()


def masked_whiten(v, m, shift_mean=True):
    mean = masked_mean(v, m)
    var = masked_mean((v - mean) ** 2, m)
    n = m.sum()
    var = var * (n / (n - 1))
    w = (v - mean) * torch.rsqrt(var + 1e-8)
    return w if shift_mean else w + mean


def first_true(b):
    n = b.size(-1)
    z = n * (~b).long() + torch.arange(n)
    return z.min(-1).values


def go(f, c, bug):
    N, P, T = c["N"], 4, c["T"]
    pol, val = LM(), LM(value=True)
    ref = copy.deepcopy(pol)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(torch.randn_like(p) * 0.03)
    opt = torch.optim.AdamW(list(pol.parameters()) + list(val.parameters()), lr=c["lr"], weight_decay=0.0)
    temp = c["temp"] + 1e-7
    step = 0
    mini = N // c["mbs"]
    micro = mini // c["ga"]
    o = dict(
        kl_coef=c["klc"],
        kl_estimator=c["kle"],
        gamma=c["gamma"],
        lam=c["lam"],
        cliprange=c["cr"],
        cliprange_value=c["crv"],
        vf_coef=c["vf"],
        whiten_rewards=c["wr"],
        missing_eos_penalty=c["mep"],
        num_ppo_epochs=c["ep"],
        num_mini_batches=c["mbs"],
        gradient_accumulation_steps=c["ga"],
        temperature=c["temp"],
        eos_token_id=EOS,
        learning_rate=c["lr"],
        response_length=T,
        stop_token="eos",
    )
    vv = lambda ids: val.v(val(ids)[1])[..., 0]
    for roll in range(2):
        q = prompts(N, P, 1)
        r, _ = generate(pol, q, T, temp)
        ids = torch.cat([q, r], 1)
        with torch.no_grad():
            lp = lps(pol, q, r, temp)[0]
            rlp = lps(ref, q, r, 1.0 if bug == "b_ref_temp" else temp)[0]
            seq = first_true(r == PAD) - 1
            value = vv(ids)[:, P - 1 : -1]
            raw = score(q, r, rmask(r)) * 2
            scores = raw.clone()
            has = (r == EOS).any(1)
            if c["mep"] is not None:
                scores[has if bug == "b_pen_ended" else ~has] -= c["mep"]
            idx = torch.arange(T).repeat(N, 1)
            pm = idx > seq[:, None]
            lp = lp.masked_fill(pm, INV)
            rlp = rlp.masked_fill(pm, INV)
            s1 = seq + 1
            pm1 = idx > s1[:, None]
            value = value.masked_fill(pm1, 0) if bug != "b_v_unmasked" else value
            logr = rlp - lp
            if bug == "b_kl_reversed":
                logr = -logr
            kl = -logr if c["kle"] == "k1" else (logr.exp() - 1) - logr
            rew = -c["klc"] * kl
            end = torch.where(s1 < T, s1, seq)
            if bug == "b_score_last_col":
                end = torch.full_like(end, T - 1)
            rew[torch.arange(N), end] += scores
            shaped = rew.clone()
            if c["wr"]:
                rew = masked_whiten(rew, torch.ones_like(pm1) if bug == "b_wr_pad" else ~pm1, c["wr"] and bug == "b_wr_shift")
                rew = rew.masked_fill(pm1, 0)
            last = 0
            adv = []
            for t in reversed(range(T)):
                nv = value[:, t + 1] if t < T - 1 else 0.0
                if bug == "b_gae_same_v":
                    nv = value[:, t]
                de = rew[:, t] + c["gamma"] * nv - value[:, t]
                last = de + (c["lam"] if bug == "b_gae_nogamma" else c["gamma"] * c["lam"]) * last
                adv.append(last)
            adv = torch.stack(adv[::-1], 1)
            ret = adv + value
            wa = masked_whiten(adv, torch.ones_like(pm) if bug == "b_adv_pad" else ~pm)
            if bug == "b_ret_after":
                ret = wa + value
            adv = wa.masked_fill(pm, 0)
        sid = torch.arange(N) + roll * N
        for ep in range(c["ep"]):
            perm = torch.from_numpy(np.random.permutation(N))
            for ms in range(0, N, mini):
                step += 1
                opt.zero_grad()
                dumps = []
                for k, us in enumerate(range(0, mini, micro)):
                    i = perm[ms : ms + mini][us : us + micro]
                    A, R, oldv, old = adv[i], ret[i], value[i], lp[i]
                    if bug == "b_ret_rows":
                        R = ret[ms + us : ms + us + micro]
                    nl, ent, _, _ = lps(pol, q[i], r[i], c["temp"] * 0 + 1 if bug == "b_new_temp" else temp)
                    new = nl.masked_fill(pm[i], INV)
                    vp = vv(ids[i])[:, P:] if bug == "b_v_shift" else vv(ids[i])[:, P - 1 : -1]
                    vp = vp.masked_fill(pm1[i], 0)
                    ctr = R if bug == "b_vclip_ret" else oldv
                    vpc = torch.clamp(vp, ctr - c["crv"], ctr + c["crv"])
                    v1, v2 = (vp - R) ** 2, (vpc - R) ** 2
                    vm = (torch.min if bug == "b_vmin" else torch.max)(v1, v2)
                    vf = 0.5 * masked_mean(vm, ~pm1[i])
                    rt = torch.exp(new - old)
                    l1, l2 = -A * rt, -A * torch.clamp(rt, 1 - c["cr"], 1 + c["cr"])
                    pg = torch.max(l1, l2)
                    pgl = pg.mean() if bug == "b_pg_allmean" else masked_mean(pg, ~pm[i])
                    loss = (pgl + c["vf"] * vf) / c["ga"]
                    if bug == "b_vf_twice":
                        loss = (pgl + c["vf"] * c["vf"] * vf) / c["ga"]
                    dl, dv = torch.autograd.grad(loss, [new, vp], retain_graph=True)
                    loss.backward()
                    meta = dict(
                        schema=2,
                        framework="trl",
                        version="1.12.0",
                        algorithm="ppo",
                        run=f.split("/")[-1],
                        step=step,
                        rank=0,
                        world_size=1,
                        micro_batch=k,
                        micro_batches=c["ga"],
                        options=o,
                        scores_shaped=False,
                        scalars={"loss/policy": pgl.item(), "loss/value": vf.item()} if 0 else {},
                        token_loss_includes_kl=False,
                    )
                    dumps.append(
                        (
                            step,
                            0,
                            k,
                            dict(
                                sample_id=sid[i],
                                response_ids=r[i],
                                response_mask=~pm[i],
                                logp_new=new,
                                logp_old=old,
                                logp_ref=rlp[i],
                                kl=kl[i],
                                scores=raw[i],
                                token_rewards=rew[i],
                                values=oldv,
                                values_new=vp,
                                returns=R,
                                advantages=A,
                                token_loss=pg,
                                pg_loss=pgl,
                                value_loss=vf,
                                loss=loss,
                                dlogp=dl,
                                dvalues=dv,
                            ),
                            meta,
                        )
                    )
                for d in dumps:
                    put(f, *d)
                opt.step()


base = dict(N=32, T=30, mbs=2, ga=1, ep=2, klc=0.05, kle="k1", gamma=1.0, lam=0.95, cr=0.2, crv=0.2, vf=0.1, wr=False, mep=1.0, temp=0.7, lr=5e-3)
H = dict(
    h_k1_white=(dict(base, seed=21, wr=True), [], "whitened rewards, k1, penalty of 1"),
    h_k3_accum=(dict(base, seed=22, kle="k3", ga=2, gamma=0.98, klc=0.2, mep=0.5, temp=1.0, N=48), [], "k3, accumulation of two, gamma .98"),
    h_nopenalty=(
        dict(base, seed=23, mep=None, vf=0.5, lam=0.9, ep=4, mbs=1, cr=0.1, crv=0.1, gamma=0.99),
        [],
        "no EOS penalty, four epochs of one mini-batch, tighter clips",
    ),
)
B = dict(
    b_ref_temp=("h_k1_white", "reference logits are not divided by the temperature"),
    b_pen_ended=("h_k3_accum", "the missing-EOS penalty hits those that did end"),
    b_v_unmasked=("h_nopenalty", "values behind the response are not zeroed and flow into GAE"),
    b_kl_reversed=("h_k3_accum", "log-ratio of KL has the wrong sign"),
    b_score_last_col=("h_k3_accum", "score placed in the last column of the padded response"),
    b_wr_pad=("h_k1_white", "reward whitening counts padding"),
    b_wr_shift=("h_k1_white", "reward whitening takes the mean away"),
    b_gae_same_v=("h_nopenalty", "GAE bootstraps from V(t) instead of V(t+1)"),
    b_gae_nogamma=("h_k3_accum", "GAE's recursion decays by lambda alone"),
    b_adv_pad=("h_nopenalty", "advantage whitening counts padding"),
    b_ret_after=("h_k3_accum", "returns from whitened advantages"),
    b_ret_rows=("h_k1_white", "returns of a micro-batch are not indexed by the permutation"),
    b_new_temp=("h_nopenalty", "new log-probs without the temperature"),
    b_v_shift=("h_k3_accum", "new values are taken one token late"),
    b_vclip_ret=("h_k1_white", "values clipped around the returns"),
    b_vmin=("h_nopenalty", "min of the two value losses"),
    b_pg_allmean=("h_k3_accum", "policy loss is a mean over padding too"),
    b_vf_twice=("h_nopenalty", "vf_coef applied twice"),
)
main("h2_trlppo", H, B, go)
