"""verl 0.9.1 by its own functions (cut out of core_algos.py and torch_functional.py), two ranks, mini-batches; critic and group estimators.
Dumps like verl's hook, in one file per micro-batch: token_loss, kl, entropies, losses, dlogp (and dvalues where there is a critic; loss is then the actor's)."""

from world_h import *
import ast
from collections import defaultdict
from typing import *

SRC = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")


class NS:
    pass


def cut(path, names, env):
    t = ast.parse(open(SRC + path).read())
    for n in t.body:
        if isinstance(n, ast.FunctionDef) and n.name in names:
            n.decorator_list = []
            n.returns = None
            for a in n.args.args + n.args.kwonlyargs:
                a.annotation = None
            exec(compile(ast.Module([n], []), path, "exec"), env)
    return env


tf = cut("utils/torch_functional.py", {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"}, dict(torch=torch))
verl_F = NS()
verl_F.__dict__.update(tf)


class AlgoConfig:
    pass


core = cut(
    "trainer/ppo/core_algos.py",
    {
        "compute_gae_advantage_return",
        "compute_grpo_outcome_advantage",
        "compute_policy_loss_vanilla",
        "agg_loss",
        "compute_value_loss",
        "kl_penalty",
        "kl_penalty_forward",
    },
    dict(torch=torch, verl_F=verl_F, np=np, defaultdict=defaultdict, AlgoConfig=AlgoConfig, Optional=Optional, Any=Any),
)


class Cfg(dict):
    __getattr__ = dict.get


def go(f, c, bug):
    W, N, P, T, G, GA = 2, c["N"], 4, c["T"], c["G"], c["ga"]
    critic = c["est"] == "gae"
    pol = LM()
    val = LM(value=True) if critic else None
    ref = copy.deepcopy(pol)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(torch.randn_like(p) * 0.03)
    opt = torch.optim.AdamW(pol.parameters(), lr=c["lr"])
    vopt = torch.optim.AdamW(val.parameters(), lr=c["lr"]) if critic else None
    cfg = Cfg(clip_ratio=c["clip"], clip_ratio_low=c["lo"], clip_ratio_high=c["hi"], clip_ratio_c=c["dual"], global_batch_info={})
    step = 0
    temp = c["temp"]
    o = dict(
        clip_ratio=c["clip"],
        clip_ratio_low=c["lo"],
        clip_ratio_high=c["hi"],
        clip_ratio_c=c["dual"],
        loss_agg_mode=c["agg"],
        use_kl_loss=c["kl_loss"],
        kl_loss_coef=c["klc"],
        kl_loss_type=c["klt"],
        entropy_coeff=c["ec"],
        ppo_epochs=c["ep"],
        num_mini_batches=c["mbs"],
        temperature=temp,
        use_kl_in_reward=c["kl_rew"],
        loss_scale_factor=None,
    )
    o["agg.denominator"] = "global"
    if c["kl_rew"]:
        o.update({"kl.beta": c["rklc"], "kl.kind": "k1"})
    if critic:
        o.update({"gamma": c["gamma"], "lam": c["lam"], "cliprange_value": c["crv"]})
    else:
        o.update(norm_adv_by_std_in_grpo=c["norm"])
    vv = lambda q, r: val.v(val(torch.cat([q, r], 1))[1])[:, P - 1 : -1, 0]
    loc = N // W
    mini = loc // c["mbs"]
    micro = mini // GA
    for roll in range(2):
        q = prompts(N // G, P, G)
        r, gen = generate(bf(pol), q, T, temp)
        m = rmask(r).long()
        uid = torch.arange(N) // G + 1000 * roll
        if c["holes"]:
            for b in range(N):
                if b % 3 == 0:
                    m[b, 4:7] = 0
        old, _, _, _ = lps(pol, q, r, 1.0 if bug == "b_old_temp" else temp, False)
        rlp = lps(ref, q, r, temp, False)[0]
        sc = score(q, r, rmask(r)) * 2
        tls = torch.zeros(N, T)
        lastv = (torch.arange(T) * m).max(1).values
        if bug == "b_score_len":
            tls[torch.arange(N), (m.sum(1) - 1)] = sc
        elif bug == "b_score_first":
            tls[:, 0] = sc
        else:
            tls[torch.arange(N), lastv] = sc
        tlr = tls
        if c["kl_rew"]:
            kld = core["kl_penalty"](old, rlp, c["rklt"])
            if bug != "b_klrew_mask":
                kld = kld * m
            tlr = tls - c["rklc"] * kld * (-1 if bug == "b_klrew_sign" else 1)
            if bug == "b_klrew_mask":
                tlr = tls - c["rklc"] * kld.sum(1, keepdim=True) / T
        vals = None
        ret = None
        if critic:
            with torch.no_grad():
                vals = vv(q, r) * m
            mm = torch.ones_like(m) if bug == "b_gae_holes" else m
            adv, ret = core["compute_gae_advantage_return"](tlr, vals, mm, c["gamma"], c["lam"] if bug != "b_lam_one" else 1.0)
            if bug == "b_whiten_rank":
                for k in range(W):
                    raw = ret[k * loc : (k + 1) * loc] - vals[k * loc : (k + 1) * loc]
                    adv[k * loc : (k + 1) * loc] = verl_F.masked_whiten(raw, m[k * loc : (k + 1) * loc])
            if bug == "b_no_whiten":
                adv = ret - vals
        else:
            ix = (torch.arange(N) % (N // G)).numpy() if bug == "b_uid_interleave" else uid.numpy()
            adv, _ = core["compute_grpo_outcome_advantage"](tlr.clone(), m, ix, norm_adv_by_std_in_grpo=c["norm"] if bug != "b_norm_flag" else not c["norm"])
            if bug == "b_adv_len":
                adv = adv / m.sum(1, keepdim=True)
        full = dict(q=q, r=r, m=m, old=old, gen=gen, ref=rlp, adv=adv, sc=sc, tlr=tlr, uid=uid, sid=torch.arange(N) + roll * N)
        if critic:
            full.update(vals=vals, ret=ret)
        order = torch.randperm(N)
        full = {k: x[order] for k, x in full.items()}
        if bug == "b_adv_order":
            full["adv"] = adv
        for ep in range(c["ep"]):
            perm = [torch.randperm(loc) + k * loc for k in range(W)]
            for ms in range(c["mbs"]):
                step += 1
                opt.zero_grad()
                vopt and vopt.zero_grad()
                dumps = []
                rows = [perm[k][ms * mini : (ms + 1) * mini] for k in range(W)]
                tok = int(sum(full["m"][x].sum() for x in rows))
                gbs = mini * W
                for k in range(W):
                    info = dict(dp_size=W, batch_num_tokens=tok, global_batch_size=gbs, loss_scale_factor=None)
                    if bug == "b_local_tokens":
                        info["batch_num_tokens"] = int(full["m"][rows[k]].sum())
                    if bug == "b_no_dp":
                        info["dp_size"] = 1
                    for j in range(GA):
                        x = {n: v[rows[k][j * micro : (j + 1) * micro]] for n, v in full.items()}
                        cfg["global_batch_info"] = info
                        rm = x["m"].bool()
                        lp, ent, _, _ = lps(pol, x["q"], x["r"], temp)
                        oldx = x["old"]
                        if bug == "b_gen_as_old":
                            oldx = x["gen"].roll(1, 1)
                        if bug == "b_old_swap":
                            oldx = x["ref"]
                        A = x["adv"]
                        pl, _ = core["compute_policy_loss_vanilla"](oldx, lp, A, rm, c["agg"] if bug != "b_agg" else "seq-mean-token-mean", cfg)
                        ratio = (lp - oldx).clamp(-20, 20).exp()
                        lo = c["lo"] if c["lo"] is not None else c["clip"]
                        hi = c["hi"] if c["hi"] is not None else c["clip"]
                        tl = torch.maximum(-A * ratio, -A * ratio.clamp(1 - lo, 1 + hi))
                        tl = torch.where(A < 0, torch.min(-A * c["dual"], tl), tl)
                        loss = pl
                        ent_l = kl_l = kld = None
                        if c["ec"]:
                            ent_l = core["agg_loss"](ent, rm, c["agg"], **info)
                            loss = loss + (1 if bug == "b_ent_sign" else -1) * c["ec"] * ent_l
                        if c["kl_loss"]:
                            kld = core["kl_penalty"](lp if bug != "b_kl_old" else oldx, x["ref"], c["klt"])
                            kl_l = core["agg_loss"](kld, rm, c["agg"], **info)
                            loss = loss + c["klc"] * (kl_l.detach() if bug == "b_kl_detach" else kl_l)
                        (g,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        t = dict(
                            logp_new=lp,
                            logp_old=oldx,
                            logp_ref=x["ref"] if c["kl_loss"] or c["kl_rew"] else None,
                            kl=kld,
                            logp_gen=x["gen"],
                            response_mask=x["m"],
                            response_ids=x["r"],
                            advantages=A,
                            token_rewards=x["tlr"],
                            scores=x["sc"],
                            group_id=x["uid"],
                            sample_id=x["sid"],
                            entropy=ent if c["ec"] else None,
                            entropy_loss=ent_l,
                            kl_loss=kl_l,
                            pg_loss=pl,
                            loss=loss,
                            dlogp=g,
                            token_loss=tl,
                        )
                        if critic:
                            vp = vv(x["q"], x["r"])
                            tgt = x["ret"]
                            if bug == "b_vf_adv":
                                tgt = A
                            vl, _ = core["compute_value_loss"](
                                vp, tgt, x["vals"] if bug != "b_vclip_new" else vp.detach(), rm, c["crv"], c["agg"], W, info["batch_num_tokens"], gbs
                            )
                            (dv,) = torch.autograd.grad(vl, vp, retain_graph=True)
                            (vl / W).backward()
                            t.update(values=x["vals"], returns=x["ret"], values_new=vp, value_loss=vl, dvalues=dv)
                        meta = dict(
                            schema=2,
                            framework="verl",
                            version="0.9.1",
                            algorithm="ppo" if critic else "grpo",
                            run=f.split("/")[-1],
                            step=step,
                            rank=k,
                            world_size=W,
                            micro_batch=j,
                            micro_batches=GA,
                            options=dict(o, num_items_in_batch=tok),
                            token_loss_includes_kl=False,
                        )
                        dumps.append((step, k, j, t, meta))
                for d in dumps:
                    put(f, *d)
                nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()
                vopt and vopt.step()


base = dict(
    N=32,
    T=32,
    G=4,
    ga=2,
    mbs=2,
    ep=1,
    est="gae",
    lr=8e-3,
    clip=0.2,
    lo=0.2,
    hi=0.2,
    dual=3.0,
    agg="token-mean",
    kl_loss=False,
    klc=0.0,
    klt="low_var_kl",
    ec=0.0,
    kl_rew=False,
    rklc=0.0,
    rklt="kl",
    temp=1.0,
    gamma=1.0,
    lam=1.0,
    crv=0.5,
    norm=True,
    holes=False,
)
H = dict(
    h_critic_klrew=(
        dict(base, seed=31, kl_rew=True, rklc=0.05, lam=0.95, gamma=0.99, holes=True, ec=0.01, ep=2),
        [],
        "critic, GAE with holes in masks, k1 in the reward, entropy bonus, two epochs",
    ),
    h_grpo_klloss=(
        dict(base, seed=32, est="grpo", kl_loss=True, klc=0.02, hi=0.28, temp=0.8, G=8, mbs=4, ga=1, N=64),
        [],
        "GRPO, low_var_kl in the loss, clip higher, four mini-batches",
    ),
    h_grpo_dr=(
        dict(
            base,
            seed=33,
            est="grpo",
            norm=False,
            agg="seq-mean-token-sum",
            ec=0.003,
            lo=0.1,
            hi=0.15,
            dual=1.5,
            ep=2,
            kl_loss=True,
            klt="mse",
            klc=0.05,
            lr=5e-3,
        ),
        [],
        "no std, seq-mean-token-sum, k2 KL loss, tight dual clip, entropy",
    ),
)
B = dict(
    b_old_temp=("h_grpo_klloss", "old log-probs without the temperature"),
    b_score_len=("h_critic_klrew", "score at column Σm-1, which with holes is not the last response token"),
    b_klrew_sign=("h_critic_klrew", "KL penalty is added to the reward"),
    b_klrew_mask=("h_critic_klrew", "KL summed with padding and spread evenly"),
    b_gae_holes=("h_critic_klrew", "GAE and whitening with a mask of ones"),
    b_lam_one=("h_critic_klrew", "lambda of the config not handed on: 1"),
    b_whiten_rank=("h_critic_klrew", "advantages whitened per rank"),
    b_no_whiten=("h_critic_klrew", "advantages not whitened"),
    b_uid_interleave=("h_grpo_klloss", "group index interleaved while rows are repeated in blocks"),
    b_norm_flag=("h_grpo_dr", "norm_adv_by_std_in_grpo read inverted"),
    b_adv_len=("h_grpo_dr", "advantages divided by response length"),
    b_adv_order=("h_grpo_klloss", "advantages not reordered with the balanced batch"),
    b_local_tokens=("h_grpo_klloss", "batch_num_tokens of the rank, still times dp_size"),
    b_no_dp=("h_grpo_dr", "sum over the global batch size without dp_size"),
    b_gen_as_old=("h_grpo_klloss", "old log-probs are the engine's, shifted by one"),
    b_ent_sign=("h_grpo_dr", "entropy is penalised"),
    b_kl_old=("h_grpo_klloss", "KL loss of the old log-probs: no gradient"),
    b_kl_detach=("h_grpo_dr", "KL loss is detached"),
    b_vf_adv=("h_critic_klrew", "critic is fitted to advantages"),
    b_vclip_new=("h_critic_klrew", "value clip around the new values themselves: never clips"),
    b_agg=("h_grpo_dr", "seq-mean-token-mean in the policy term"),
)
main("h3_verlmix", H, B, go)
