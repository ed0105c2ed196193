"""verl 0.9.1 by its own functions (cut out of core_algos.py with ast); bf16 matmuls, float32 losses. Dumps most of it: token_loss, kl, dlogp, entropy, losses, scores, uid."""

from world_j import *
import ast
from types import SimpleNamespace
from collections import defaultdict
from typing import Any, Callable, Optional

NAME, SRC = "j2_verlgrpo", os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")


def cut(path, names, env, edits=()):
    src = open(SRC + path).read()
    tree = ast.parse(src)
    for n in tree.body:
        if isinstance(n, ast.FunctionDef) and n.name in names:
            n.decorator_list = []
            n.returns = None
            for a in n.args.args + n.args.kwonlyargs:
                a.annotation = None
            s = ast.unparse(n)
            for x, y in edits:
                if x in s:
                    s = s.replace(x, y)
                    env.setdefault("_hit", set()).add(x)
            exec(s, env)
    return env


class Cfg(SimpleNamespace):
    def get(s, k, d=None):
        return getattr(s, k, d)


LOSS = {
    "vanilla": "compute_policy_loss_vanilla",
    "gspo": "compute_policy_loss_gspo",
    "kl_cov": "compute_policy_loss_kl_cov",
    "cispo": "compute_policy_loss_cispo",
}


def verl(edits):
    f = cut("utils/torch_functional.py", ["masked_sum", "masked_mean"], dict(torch=torch))
    e = dict(
        torch=torch,
        verl_F=SimpleNamespace(masked_sum=f["masked_sum"], masked_mean=f["masked_mean"]),
        Any=Any,
        Optional=Optional,
        defaultdict=defaultdict,
        AlgoConfig=type("A", (), {}),
        ActorConfig=Cfg,
        DictConfig=dict,
    )
    cut("trainer/ppo/core_algos.py", ["agg_loss", "kl_penalty", "kl_penalty_forward", "compute_grpo_outcome_advantage", *LOSS.values()], e, edits)
    assert not edits or e.get("_hit") == {a for a, _ in edits}, edits
    real = e["agg_loss"]

    def keep(loss_mat, **k):
        e["_mat"] = loss_mat
        return real(loss_mat=loss_mat, **k)

    e["agg_loss"] = keep
    return e


H = dict(
    h_grpokl=dict(
        mode="vanilla",
        agg="token-mean",
        G=6,
        T=22,
        kl="low_var_kl",
        klc=0.05,
        ent=0.01,
        eps=(0.2, 0.28),
        c=3.0,
        std=True,
        ris=True,
        ranks=2,
        mini=2,
        micro=2,
        temp=1.0,
        epochs=1,
        holes=False,
        seed=11,
        lr=1.2e-2,
    ),
    h_drgrpo=dict(
        mode="vanilla",
        agg="seq-mean-token-sum-norm",
        G=8,
        T=26,
        kl=None,
        klc=0.0,
        ent=0.0,
        eps=(0.2, 0.2),
        c=3.0,
        std=False,
        ris=False,
        ranks=1,
        mini=3,
        micro=2,
        temp=0.9,
        epochs=2,
        holes=False,
        seed=12,
        lr=1.2e-2,
        lsf=40,
    ),
    h_gspo=dict(
        mode="gspo",
        agg="seq-mean-token-mean",
        G=4,
        T=24,
        kl=None,
        klc=0.0,
        ent=0.0,
        eps=(0.01, 0.015),
        c=3.0,
        std=True,
        ris=False,
        ranks=2,
        mini=4,
        micro=1,
        temp=1.0,
        epochs=1,
        holes=True,
        seed=13,
        lr=8e-3,
    ),
    h_klcov=dict(
        mode="kl_cov",
        agg="token-mean",
        G=6,
        T=20,
        kl="k2",
        klc=0.03,
        ent=0.0,
        eps=(0.2, 0.2),
        c=3.0,
        std=True,
        ris=False,
        ranks=1,
        mini=4,
        micro=1,
        temp=1.0,
        epochs=2,
        holes=False,
        seed=14,
        lr=1.2e-2,
        cov=0.1,
    ),
    h_cispo=dict(
        mode="cispo",
        agg="token-mean",
        G=8,
        T=24,
        kl=None,
        klc=0.0,
        ent=0.0,
        eps=(1.0, 0.3),
        c=3.0,
        std=True,
        ris=True,
        ranks=2,
        mini=3,
        micro=2,
        temp=1.0,
        epochs=1,
        holes=False,
        seed=15,
        lr=1.2e-2,
    ),
)
ED = dict(
    cov_small=[("largest=True", "largest=False")],
    cov_signed=[("abs_kl = negative_approx_kl.abs()", "abs_kl = negative_approx_kl")],
    len_full=[("seq_lengths = torch.sum(response_mask, dim=-1).clamp(min=1)", "seq_lengths = response_mask.shape[-1]")],
    dual_pos=[("torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)", "torch.where(advantages > 0, clip_pg_losses2, clip_pg_losses1)")],
    cispo_nosg=[("clipped_ratio.detach()", "clipped_ratio")],
    cispo_ratio=[("advantages * log_prob", "advantages * ratio")],
)
B = dict(
    b_no_dp=("h_grpokl", "no_dp", "dp_size is left 1 in agg_loss, so that FSDP's average over two ranks halves every gradient", "", None),
    b_dual_pos=("h_grpokl", "dual_pos", "the dual clip acts where the advantage is positive", "", None),
    b_kl_old=("h_grpokl", "kl_old", "the KL loss is taken against the old log-probs instead of the reference's", "", None),
    b_ent_sign=(
        "h_grpokl",
        "ent_sign",
        "the entropy term is added to the loss: entropy is minimised",
        "verl with a negative entropy_coeff computes this",
        None,
    ),
    b_is_inv=("h_grpokl", "is_inv", "importance weights of the engine are upside down, exp(rollout - old)", "", None),
    b_uid_order=("h_grpokl", "uid_order", "after the rows were balanced over ranks the uids keep the old order when advantages are made", "", None),
    b_clip_swap=(
        "h_grpokl",
        "clip_swap",
        "clip_ratio_low and clip_ratio_high are swapped on their way to the loss",
        "verl with low .28 and high .2 computes this",
        None,
    ),
    b_micro_mean=(
        "h_grpokl",
        "micro_mean",
        "each micro-batch is divided by its own tokens instead of those of the global mini-batch, without dividing by their number",
        "",
        None,
    ),
    b_std_left=(
        "h_drgrpo",
        "std_left",
        "norm_adv_by_std_in_grpo is not handed on, advantages stay divided by the group's std",
        "GRPO of every framework",
        None,
    ),
    b_norm_len=("h_drgrpo", "norm_len", "the constant of seq-mean-token-sum-norm is the longest response of the micro-batch", "", None),
    b_temp=("h_drgrpo", "temp", "entropy and log-probs with gradient are of logits that were not divided by the temperature; old ones were", "", None),
    b_detach_neg=("h_drgrpo", "detach_neg", "log-probs of rows with negative advantage are detached", "", None),
    b_len_full=("h_gspo", "len_full", "the sequence's mean log-ratio divides by the padded length", "", None),
    b_mask_shift=("h_gspo", "mask_shift", "the loss mask is a column late against the response (loss_mask[:, 1:] of the whole sequence)", "", None),
    b_tool=("h_gspo", "tool", "log-probs of the tool's tokens enter the row's ratio, the mask of the loss leaves them out", "", None),
    b_cov_small=("h_klcov", "cov_small", "the tokens of the smallest covariance are chosen", "", None),
    b_cov_signed=("h_klcov", "cov_signed", "the KL of the chosen tokens is signed, without the absolute value", "", None),
    b_cispo_nosg=("h_cispo", "cispo_nosg", "the clipped ratio of CISPO is not detached", "", None),
    b_cispo_ratio=("h_cispo", "cispo_ratio", "the log-prob of CISPO is the ratio: sg(clip(r))·r·A", "", None),
)


class BF(nn.Module):  # bfloat16 products, as under autocast
    def __init__(s, m):
        super().__init__()
        s.m = m

    def forward(s, ids):
        h, _ = s.m.r(s.m.e(ids))
        return F.linear(h.bfloat16(), s.m.o.weight.bfloat16(), s.m.o.bias.bfloat16())


def run(d, c, bug):
    e = verl(ED.get(bug, []))
    g = torch.Generator().manual_seed(c["seed"])
    G, T, R, N = c["G"], c["T"], c["ranks"], 48
    pol = LM(seed=c["seed"])
    f = BF(pol)
    ref = copy.deepcopy(pol)
    opt = torch.optim.AdamW(pol.parameters(), lr=c["lr"])
    for p in ref.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=g)
    lo, hi = c["eps"][::-1] if bug == "clip_swap" else c["eps"]
    step = 0
    for roll in range(2):
        x, L = prompts(N // G, 6, g)
        x = x.repeat_interleave(G, 0)
        eng = engine_of(pol)
        ids, r, m = generate(eng, x, T, c["temp"], g)
        uid = torch.arange(N) // G + 100 * roll
        pm = torch.randperm(N, generator=g)
        ids, r, m = ids[pm], r[pm], m[pm]
        uids = uid if bug == "uid_order" else uid[pm]
        uid = uid[pm]
        sc = reward(ids, r, m).sum(1)
        full = m
        if c["holes"]:
            a = torch.randint(2, 8, (N,), generator=g)[:, None]
            t_ = torch.arange(T)[None]
            m = m & ~((t_ >= a) & (t_ < a + 4) & (t_ < full.sum(1)[:, None] - 2))
        if bug == "mask_shift":
            m = F.pad(m[:, :-1], (1, 0))
        with torch.no_grad():
            old, gen, rf = logps(f, ids, T, c["temp"], 0), logps(eng, ids, T, c["temp"], 0), logps(BF(ref), ids, T, c["temp"], 0)
        old, gen, rf = old * full, gen * full, rf * full
        tr = torch.zeros(N, T)
        last = full.sum(1) - 1
        tr[torch.arange(N), last] = sc
        adv, _ = e["compute_grpo_outcome_advantage"](tr.clone(), m.float(), uids.tolist(), norm_adv_by_std_in_grpo=c["std"] or bug == "std_left")
        w = ((gen - old if bug == "is_inv" else old - gen).clamp(-20, 20).exp().clamp(max=2.0) * m) if c["ris"] else None
        per = N // R // c["mini"]
        pmic = per // c["micro"]
        for ep in range(c["epochs"]):
            for mi in range(c["mini"]):
                step += 1
                opt.zero_grad()
                rows = [q * (N // R) + mi * per + torch.arange(per) for q in range(R)]
                items = m[torch.cat(rows)].sum()
                for q in range(R):
                    for mb in range(c["micro"]):
                        i = rows[q][mb * pmic : (mb + 1) * pmic]
                        mm = m[i]
                        lp, en = logps(f, ids[i], T, 1.0 if bug == "temp" else c["temp"])
                        lp0 = lp
                        info = dict(dp_size=R, batch_num_tokens=items, global_batch_size=per * R, loss_scale_factor=c.get("lsf"))
                        if bug == "no_dp":
                            info["dp_size"] = 1
                        if bug == "micro_mean":
                            info.update(dp_size=1, batch_num_tokens=mm.sum())
                        if bug == "norm_len":
                            info["loss_scale_factor"] = int(mm.sum(1).max())
                        cfg = Cfg(
                            clip_ratio=0.2,
                            clip_ratio_low=lo,
                            clip_ratio_high=hi,
                            clip_ratio_c=c["c"],
                            loss_agg_mode=c["agg"],
                            global_batch_info=info,
                            policy_loss=Cfg(kl_cov_ratio=c.get("cov"), ppo_kl_coef=1.0),
                        )
                        lq = torch.where(adv[i] < 0, lp.detach(), lp) if bug == "detach_neg" else lp
                        ms = full[i] if bug == "tool" else mm
                        if bug == "tool":
                            nl = ((lp - old[i]) * ms).sum(1) / ms.sum(1)
                            real = (lp - lp.detach() + nl.detach()[:, None]).exp()
                            A = adv[i]
                            mat = torch.maximum(-A * real, -A * real.clamp(1 - lo, 1 + hi))
                            pg = e["agg_loss"](loss_mat=mat, loss_mask=mm, loss_agg_mode=c["agg"], **info)
                        else:
                            pg, _ = e[LOSS[c["mode"]]](
                                old_log_prob=old[i],
                                log_prob=lq,
                                advantages=adv[i],
                                response_mask=mm,
                                loss_agg_mode=c["agg"],
                                config=cfg,
                                rollout_is_weights=None if w is None else w[i],
                            )
                        tl, loss, t = e["_mat"], pg, {}
                        if c["ent"]:
                            el = e["agg_loss"](loss_mat=en, loss_mask=mm, loss_agg_mode=c["agg"], **info)
                            t["entropy_loss"] = el
                            loss = loss + (1 if bug == "ent_sign" else -1) * c["ent"] * el
                        if c["kl"]:
                            kld = e["kl_penalty"](logprob=lp, ref_logprob=old[i] if bug == "kl_old" else rf[i], kl_penalty=c["kl"])
                            kl = e["agg_loss"](loss_mat=kld, loss_mask=mm, loss_agg_mode=c["agg"], **info)
                            loss = loss + c["klc"] * kl
                            t.update(kl=kld, kl_loss=kl, logp_ref=rf[i])
                        (dl,) = torch.autograd.grad(loss, lp0, retain_graph=True)
                        loss.backward()
                        t.update(
                            response_ids=r[i],
                            input_ids=ids[i],
                            response_mask=mm,
                            logp_new=lp,
                            logp_old=old[i],
                            logp_gen=gen[i] if c["ris"] else None,
                            is_weights=None if w is None else w[i],
                            advantages=adv[i],
                            token_rewards=tr[i],
                            scores=sc[i],
                            group_id=uid[i],
                            entropy=en,
                            token_loss=tl,
                            pg_loss=pg,
                            loss=loss,
                            dlogp=dl,
                            sample_id=i + 1000 * roll,
                        )
                        o = {
                            "loss_mode": c["mode"],
                            "loss_agg_mode": c["agg"],
                            "clip_ratio": 0.2,
                            "clip_ratio_low": c["eps"][0],
                            "clip_ratio_high": c["eps"][1],
                            "clip_ratio_c": c["c"],
                            "use_kl_loss": bool(c["kl"]),
                            "entropy_coeff": c["ent"],
                            "norm_adv_by_std_in_grpo": c["std"],
                            "temperature": c["temp"],
                            "num_items_in_batch": int(items),
                            "agg.denominator": "global",
                            "num_mini_batches": c["mini"],
                            "use_kl_in_reward": False,
                            "eos_token_id": EOS,
                        }
                        if c["kl"]:
                            o.update(kl_loss_coef=c["klc"], kl_loss_type=c["kl"])
                        if c.get("lsf"):
                            o["loss_scale_factor"] = c["lsf"]
                        if c["ris"]:
                            o.update(rollout_is="token", rollout_is_threshold=2.0)
                        if c.get("cov"):
                            o.update(kl_cov_ratio=c["cov"], ppo_kl_coef=1.0)
                        write(
                            d,
                            f"step_{step:04d}_rank_{q}_mb_{mb}",
                            t,
                            dict(
                                framework="verl",
                                version="0.9.1",
                                algorithm="grpo",
                                run="j2",
                                step=step,
                                rank=q,
                                world_size=R,
                                micro_batch=mb,
                                micro_batches=c["micro"],
                                options=o,
                                token_loss_includes_kl=False,
                            ),
                        )
                for p in pol.parameters():
                    p.grad /= R
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()


main(NAME, H, B, run)
