"""verl 0.9.1 with critic by its own functions (GAE with holes, value loss). Even cases dump everything, odd ones lazy (no token_loss, no dlogp)."""

import random
from verl_s import *

AGG = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-mean"]


def draw(i):
    r = random.Random(3300 + i)
    return dict(
        seed=i,
        agg=AGG[i % 5],
        vagg=AGG[(i * 3 + 1) % 5] if i % 3 == 0 else AGG[i % 5],
        ranks=r.choice([1, 2]),
        micro=r.choice([1, 2]),
        mini=r.choice([1, 2, 3]),
        epochs=r.choice([1, 2]),
        T=r.choice([14, 24, 40]),
        temp=r.choice([1.0, 0.8]),
        gamma=r.choice([1.0, 0.99, 0.9]),
        lam=r.choice([1.0, 0.95, 0.5]),
        vclip=r.choice([0.5, 0.05, 0.2]),
        klp=r.choice(["none", "reward", "reward", "loss"]),
        kk=r.choice(["kl", "low_var_kl", "abs", "mse"]),
        ent=r.choice([0, 0.01]),
        holes=r.random() < 0.6,
        trunc_row=r.random() < 0.3,
        lr=r.choice([5e-3, 1e-2]),
        adapt=r.random() < 0.3,
    )


CASES = {
    f"h_{i:02d}_g{draw(i)['gamma']}_l{draw(i)['lam']}_{draw(i)['agg'].replace('-', '')}_r{draw(i)['ranks']}_kl{draw(i)['klp']}"
    + ("_holes" if draw(i)["holes"] else ""): draw(i)
    for i in range(13)
}


def run(out, case, prog="s4", CASES=CASES, dt=torch.float32, extra={}):
    c = CASES[case]
    o = Out(out, prog, case)
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(17 + c["seed"])
    W = c["ranks"]
    m = LM().to(dt)
    cr = LM().to(dt)
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(list(m.parameters()) + list(cr.parameters()), lr=c["lr"], weight_decay=0.01)
    rows = 24
    B = Cfg(clip_ratio=0.2, clip_ratio_c=3.0, policy_loss=Cfg(loss_mode="vanilla"), loss_agg_mode=c["agg"], loss_scale_factor=None)
    beta = 0.05
    opts = dict(
        clip_ratio=0.2,
        clip_ratio_c=3.0,
        loss_agg_mode=c["agg"],
        adv_estimator="gae",
        gamma=c["gamma"],
        lam=c["lam"],
        cliprange_value=c["vclip"],
        entropy_coeff=c["ent"],
        use_kl_loss=c["klp"] == "loss",
        use_kl_in_reward=c["klp"] == "reward",
        temperature=c["temp"],
        ppo_epochs=c["epochs"],
        lr=c["lr"],
        num_mini_batches=c["mini"],
        eos_token_id=EOS,
    )
    opts["agg.denominator"] = "global"
    if c["vagg"] != c["agg"]:
        c["vagg"] = "token-mean"
        opts["value.agg"] = "token" if c["agg"] != "token-mean" else "same"
    if c["klp"] == "loss":
        opts.update(kl_loss_coef=beta, kl_loss_type=c["kk"])
    if c["klp"] == "reward":
        opts.update(kl_penalty=c["kk"], kl_coef=beta)
    opts.update(extra.get("options", {}))
    step = 0
    held = {}
    real = C["agg_loss"]

    def rec(loss_mat, loss_mask, *a, **k):
        held.setdefault("tl", loss_mat)
        return real(loss_mat, loss_mask, *a, **k)

    for roll in range(3 if c["mini"] * c["epochs"] < 3 else 2):
        eng = engine_of(m)
        pr, pm = mkprompts(rows // 2, 2, g)
        R, M, L = sample(m, eng, pr, pm, c["T"], c["temp"], g)
        rm = M.clone()
        T = R.shape[1]
        ids = torch.cat([pr, R], 1)
        if c["holes"]:
            for b in range(0, rows, 2):
                if int(M[b].sum()) > 7:
                    rm[b, 2:5] = 0
        with torch.no_grad():
            old = logps(m, ids, T, c["temp"])[0]
            refl = logps(ref, ids, T, c["temp"])[0]
            vals = (cr(ids, value=True)[1][:, -T - 1 : -1]).float() * rm
        ended = ((R == EOS) * M).sum(1) > 0
        sc = ((R % 3 == 0) * M).sum(1) / M.sum(1).float() + ended.float() * 0.5 + 0.2 * (R[:, 0] % 3)
        sc = sc.float()
        tls = torch.zeros(rows, T)
        tls[torch.arange(rows), (rm * torch.arange(T)).argmax(1)] = sc
        tlr = tls - beta * C["kl_penalty"](old, refl, kl_penalty=c["kk"]) * rm if c["klp"] == "reward" else tls
        adv, ret = C["compute_gae_advantage_return"](tlr, vals, rm, c["gamma"], c["lam"])
        per = rows // W
        mb = per // c["mini"]
        sid = torch.arange(rows) + 1000 * roll
        for ep in range(c["epochs"]):
            order = torch.cat([torch.randperm(per, generator=g) + r * per for r in range(W)])
            for k in range(c["mini"]):
                step += 1
                opt.zero_grad()
                Is = [order[r * per + k * mb : r * per + (k + 1) * mb] for r in range(W)]
                bnt = sum(int(rm[i].sum()) for i in Is)
                gbs = sum(len(i) for i in Is)
                for r in range(W):
                    parts = Is[r].split((mb + c["micro"] - 1) // c["micro"])
                    for j, ix in enumerate(parts):
                        gi = dict(dp_size=W, batch_num_tokens=bnt, global_batch_size=gbs, loss_scale_factor=None)
                        B["global_batch_info"] = gi
                        mk = rm[ix].bool()
                        lp, ent, _ = logps(m, ids[ix], T, c["temp"])
                        held.clear()
                        C["agg_loss"] = rec
                        pg, met = C["compute_policy_loss_vanilla"](
                            old_log_prob=old[ix], log_prob=lp, advantages=adv[ix], response_mask=mk, loss_agg_mode=c["agg"], config=B
                        )
                        C["agg_loss"] = real
                        loss = pg * 1.0
                        el = kl = kld = None
                        if c["ent"]:
                            el = real(ent, mk, c["agg"], **gi)
                            loss = loss - c["ent"] * el
                        if c["klp"] == "loss":
                            kld = C["kl_penalty"](lp, refl[ix], c["kk"])
                            kl = real(kld, mk, c["agg"], **gi)
                            loss = loss + beta * kl
                        vp = cr(ids[ix], value=True)[1][:, -T - 1 : -1]
                        vl, vcf = C["compute_value_loss"](
                            vpreds=vp, returns=ret[ix], values=vals[ix], response_mask=mk, cliprange_value=c["vclip"], loss_agg_mode=c["vagg"], **gi
                        )
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (dv,) = torch.autograd.grad(vl, vp, retain_graph=True)
                        ((loss + vl) / W).backward()
                        t = dict(
                            response_mask=mk,
                            logp_new=lp,
                            logp_old=old[ix],
                            logp_gen=(L * M)[ix],
                            advantages=adv[ix],
                            returns=ret[ix],
                            values=vals[ix],
                            values_new=vp,
                            scores=sc[ix],
                            token_rewards=tlr[ix],
                            sample_id=sid[ix],
                            loss=loss,
                            value_loss=vl,
                            response_ids=R[ix],
                        )
                        if c["klp"] != "none":
                            t["logp_ref"] = refl[ix]
                        if c["ent"]:
                            t["entropy"] = ent
                        s_ = dict(loss=loss.item())
                        if c["seed"] % 2 == 0:
                            t.update(dlogp=dl, dvalues=dv, token_loss=held["tl"], entropy=ent, kl=kld, kl_loss=kl, entropy_loss=el, pg_loss=pg)
                            s_.update({k_: v for k_, v in met.items() if isinstance(v, float)})
                            s_["critic/vf_clipfrac"] = float(vcf)
                        meta = dict(
                            schema=2,
                            framework="verl",
                            version="0.9.1",
                            algorithm="ppo",
                            run=prog + "-" + case,
                            step=step,
                            rank=r,
                            world_size=W,
                            micro_batch=j,
                            micro_batches=len(parts),
                            options=dict(opts, num_items_in_batch=bnt),
                            scalars=s_,
                            scalars_scope="micro_batch",
                            token_loss_includes_kl=False,
                        )
                        meta.update(extra.get("meta", {}))
                        o.write(t, meta)
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                nn.utils.clip_grad_norm_(cr.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("s4", CASES, run)
