"""OpenRLHF 0.11.2 by its own functions (cut out with ast). Actor and critic in one file per micro-batch, as a hook in a combined loop would; token_loss is not dumped (it is inside PolicyLoss)."""

from world_j import *
import ast
from typing import Optional, Tuple, Union

NAME, SRC = "j3_orlhf", os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")


def orlhf(edits):
    e = dict(torch=torch, nn=nn, F=F, Optional=Optional, Tuple=Tuple, Union=Union, list=list, KL_IS_WEIGHT_CLIP=10.0)
    hit = set()

    def ex(n):
        s = ast.unparse(n)
        for x, y in edits:
            if x in s:
                s = s.replace(x, y)
                hit.add(x)
        exec(s, e)

    for p, names in (
        ("models/utils.py", ["masked_mean", "compute_approx_kl", "compute_reward"]),
        ("models/loss.py", ["aggregate_loss", "PolicyLoss", "ValueLoss"]),
    ):
        for n in ast.parse(open(SRC + p).read()).body:
            if getattr(n, "name", "") in names:
                ex(n)
    for n in ast.walk(ast.parse(open(SRC + "trainer/ppo_utils/experience_maker.py").read())):
        if getattr(n, "name", "") in ("get_advantages_and_returns", "get_cumulative_returns"):
            n.decorator_list = []
            ex(n)
    assert hit == {x for x, _ in edits}, (hit, edits)
    return e


H = dict(
    h_ppo=dict(
        est="gae",
        G=4,
        T=24,
        gamma=0.99,
        lam=0.95,
        kl="k1",
        beta=0.05,
        use_loss=False,
        clip=[-1.0, 1.2],
        eps=(0.2, 0.2),
        dual=None,
        vclip=0.2,
        ent=None,
        corr="off",
        agg="token",
        ranks=2,
        ga=2,
        mini=2,
        ep=2,
        seed=21,
        lr=5e-3,
    ),
    h_rfppb=dict(
        est="reinforce_baseline",
        G=6,
        T=22,
        gamma=1.0,
        lam=1.0,
        kl="k2",
        beta=0.04,
        use_loss=True,
        clip=[-10.0, 10.0],
        eps=(0.2, 0.27),
        dual=3.0,
        vclip=0.5,
        ent=0.01,
        corr="off",
        agg="token",
        ranks=2,
        ga=1,
        mini=4,
        ep=1,
        seed=22,
        lr=1.2e-2,
    ),
    h_rloo=dict(
        est="rloo",
        G=6,
        T=20,
        gamma=1.0,
        lam=1.0,
        kl="k3",
        beta=0.08,
        use_loss=False,
        clip=[-10.0, 10.0],
        eps=(0.2, 0.2),
        dual=None,
        vclip=0.5,
        ent=None,
        corr="token",
        agg="token",
        ranks=1,
        ga=2,
        mini=2,
        ep=2,
        seed=23,
        lr=1e-2,
    ),
)
ED = dict(
    kl_plus=[("kl_reward = -kl_coef * kl", "kl_reward = kl_coef * kl")],
    eos_plus=[("index=eos_indices,", "index=(eos_indices + 1).clamp(max=kl.size(1) - 1),")],
    no_half=[("return 0.5 * loss", "return loss")],
    vmin=[("loss = torch.max(surr1, surr2)", "loss = torch.min(surr1, surr2)")],
    gae_v=[
        (
            "advantages = torch.stack(advantages_reversed[::-1], dim=1)",
            "advantages = torch.stack(advantages_reversed[::-1], dim=1) ; values = values.roll(-1, 1)",
        )
    ],
    gae_gamma=[("delta + gamma * lambd * lastgaelam", "delta + lambd * lastgaelam")],
    k2_nohalf=[("value = log_ratio ** 2 / 2.0", "value = log_ratio ** 2")],
    dual_min=[("torch.max(clip1, self.dual_clip * advantages)", "torch.min(clip1, self.dual_clip * advantages)")],
    k3_pos=[("value = (-k3_log_ratio).exp() - 1 + k3_log_ratio", "value = k3_log_ratio.exp() - 1 + k3_log_ratio")],
    is_swap=[("is_log_ratio = (old_log_probs - rollout_log_probs).detach()", "is_log_ratio = (log_probs - rollout_log_probs).detach()")],
    vclip_new=[("values_clipped = old_values +", "values_clipped = returns +")],
)
B = dict(
    b_kl_plus=("h_ppo", "kl_plus", "the KL penalty is added to the token rewards instead of subtracted", "", None),
    b_eos_plus=("h_ppo", "eos_plus", "the score is scattered one column behind the last token, where the mask swallows it", "", None),
    b_no_half=("h_ppo", "no_half", "the value loss lost its factor one half", "PPO codes without the half compute this", None),
    b_vmin=("h_ppo", "vmin", "the clipped value loss takes the smaller of both errors", "", None),
    b_gae_gamma=("h_ppo", "gae_gamma", "GAE's recursion multiplies by lambda alone, gamma only in delta", "", None),
    b_ret_shift=("h_ppo", "gae_v", "returns add the value of the next column to the advantage", "", None),
    b_ret_white=("h_ppo", "ret_white", "returns are made of the normalised advantages plus the values", "", None),
    b_wh_pad=("h_ppo", "wh_micro", "advantages are normalised over the padded cells, too", "", None),
    b_vclip_ret=("h_ppo", "vclip_new", "the value clip is around the returns instead of the old values", "", None),
    b_val_online=("h_ppo", "val_online", "old values are recomputed by the critic before every mini-batch, so the value clip never binds", "", None),
    b_k2_nohalf=("h_rfppb", "k2_nohalf", "k2 lost its half", "", None),
    b_dual_min=("h_rfppb", "dual_min", "the dual clip takes the minimum, making negative advantages at least that large", "", None),
    b_no_white=("h_rfppb", "no_white", "the batch's standard deviation is taken of the padded advantages with zeros, the mean of the real ones", "", None),
    b_kl_detach=("h_rfppb", "kl_detach", "log-probs are detached in the KL term, it has no gradient", "", None),
    b_kl_doubled=("h_rfppb", "kl_doubled", "KL stands in the reward and in the loss", "", None),
    b_k3_pos=("h_rloo", "k3_pos", "k3 with exp(+d)", "", None),
    b_is_swap=("h_rloo", "is_swap", "the correction weights are made of the new log-probs (updated policy over engine) instead of the old ones", "", None),
    b_order=("h_rloo", "order", "rewards are grouped in the order of the shuffled experiences, not of the prompts", "", None),
    b_loo_self=("h_rloo", "loo_self", "the leave-one-out baseline holds the row itself, sum/(n-1)", "", None),
    b_items_micro=("h_rloo", "items_micro", "the loss is divided by the token count of the last micro-batch for all of a window", "", None),
)


def run(d, c, bug):
    e = orlhf(ED.get(bug, []))
    g = torch.Generator().manual_seed(c["seed"])
    G, T, R, N, ga = c["G"], c["T"], c["ranks"], 48, c["ga"]
    pol = LM(seed=c["seed"])
    ref = copy.deepcopy(pol)
    gae = c["est"] == "gae"
    cri = LM(seed=c["seed"] + 50, value=True)
    for p in ref.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=g)
    opt, copt = (
        torch.optim.AdamW(pol.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0.0),
        torch.optim.AdamW(cri.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0),
    )
    PL = e["PolicyLoss"](c["eps"][0], c["eps"][1], c["dual"], c["agg"] == "token", "ppo", c["corr"], "clip", "ratio", (0.97, 1.03))
    VL = e["ValueLoss"](c["vclip"])
    step = 0
    val = lambda i: cri.values(i)[:, -T - 1 : -1]
    for roll in range(2):
        x, L = prompts(N // G, 6, g)
        x = x.repeat_interleave(G, 0)
        eng = engine_of(pol)
        ids, r, m = generate(eng, x, T, 1.0, g)
        sc = reward(ids, r, m).sum(1)
        uid = torch.arange(N) // G + 100 * roll
        with torch.no_grad():
            old, gen, rf = logps(pol, ids, T, 1.0, 0), logps(eng, ids, T, 1.0, 0), logps(ref, ids, T, 1.0, 0)
            v = val(ids) if gae else None
            kl = e["compute_approx_kl"](old, rf, kl_estimator=c["kl"]) if not c["use_loss"] or bug == "kl_doubled" else torch.zeros_like(old)
            pm = torch.randperm(N, generator=torch.Generator().manual_seed(3)) if bug == "order" else torch.arange(N)
            rw = sc[pm].reshape(-1, G)
            if c["est"] == "rloo":
                rw = rw - (rw.sum(-1, keepdim=True) - (0 if bug == "loo_self" else rw)) / (G - 1)
            elif c["est"] == "reinforce_baseline":
                rw = rw - rw.mean(-1, keepdim=True)
            q = torch.empty(N)
            q[pm] = rw.reshape(-1)
            rw = q
            tr = e["compute_reward"](rw, c["beta"], kl, action_mask=m, reward_clip_range=c["clip"])
            if gae:
                adv, ret = e["get_advantages_and_returns"](None, v, tr, m, c["gamma"], c["lam"])
            else:
                ret = e["get_cumulative_returns"](None, tr, m, c["gamma"])
                adv = ret.clone()
            if c["est"] != "rloo":
                M = torch.ones_like(m) if bug == "wh_micro" else m
                n = M.sum()
                mean = (adv * M).sum() / n
                var = ((adv - mean).pow(2) * M).sum() / n
                if bug == "no_white":
                    var = ((adv * m - mean) ** 2).mean()
                adv = (adv - mean) * var.clamp(min=1e-8).rsqrt()
                if bug == "ret_white":
                    ret = adv + v * m
        per = N // R // c["mini"]
        pmic = per // ga
        for ep in range(c["ep"]):
            od = [torch.randperm(N // R, generator=g) + k * (N // R) for k in range(R)]
            for mi in range(c["mini"]):
                step += 1
                opt.zero_grad()
                copt.zero_grad()
                rows = [o_[mi * per : (mi + 1) * per] for o_ in od]
                items = m[torch.cat(rows)].sum().float()
                if bug == "val_online":
                    with torch.no_grad():
                        v = val(ids)
                for k in range(R):
                    for mb in range(ga):
                        i = rows[k][mb * pmic : (mb + 1) * pmic]
                        mm = m[i]
                        lp, en = logps(pol, ids[i], T)
                        info = dict(dp_size=R, batch_num_tokens=items / ga, global_batch_size=per * R / ga)
                        if bug == "items_micro":
                            info["batch_num_tokens"] = m[rows[k][-pmic:]].sum().float()
                        al, cf, pk, _, _ = PL(lp, old[i], adv[i], action_mask=mm, rollout_log_probs=gen[i], **info)
                        t, sc_ = {}, {}
                        loss = al
                        if c["use_loss"]:
                            kk = e["compute_approx_kl"](lp.detach() if bug == "kl_detach" else lp, rf[i], log_probs_old=old[i], kl_estimator=c["kl"])
                            kll = e["aggregate_loss"](kk, mm, **info)
                            loss = loss + kll * c["beta"]
                            t.update(kl=kk, kl_loss=kll / ga)
                        else:
                            t.update(kl=kl[i])
                        if c["ent"] is not None:
                            el = e["aggregate_loss"](en, mm, **info)
                            loss = loss - c["ent"] * el
                            t.update(entropy_loss=el / ga)
                        lb = loss / ga
                        (dl,) = torch.autograd.grad(lb, lp, retain_graph=True)
                        lb.backward()
                        if gae:
                            vn = val(ids[i])
                            vl = VL(vn, v[i], ret[i], action_mask=mm, **info) / ga
                            (dv,) = torch.autograd.grad(vl, vn, retain_graph=True)
                            vl.backward()
                            t.update(values=v[i], values_new=vn, value_loss=vl, dvalues=dv, token_rewards=tr[i])
                        t.update(
                            input_ids=ids[i],
                            attention_mask=(ids[i] != PAD),
                            response_ids=r[i],
                            response_mask=mm,
                            logp_new=lp,
                            logp_old=old[i],
                            logp_ref=rf[i],
                            logp_gen=gen[i],
                            returns=ret[i],
                            advantages=adv[i],
                            scores=sc[i],
                            entropy=en,
                            group_id=uid[i],
                            loss=lb,
                            pg_loss=al / ga,
                            dlogp=dl,
                            sample_id=i + 1000 * roll,
                        )
                        o = {
                            "algo.advantage.estimator": c["est"],
                            "algo.advantage.gamma": c["gamma"],
                            "algo.advantage.lambd": c["lam"],
                            "algo.kl.estimator": c["kl"],
                            "algo.kl.init_coef": c["beta"],
                            "algo.kl.use_loss": c["use_loss"],
                            "algo.kl.unbiased_gradient": False,
                            "algo.advantage.no_std_norm": False,
                            "actor.eps_clip_low_high": list(c["eps"]),
                            "actor.dual_clip": c["dual"],
                            "actor.policy_loss_type": "ppo",
                            "actor.entropy_coef": c["ent"],
                            "critic.value_clip": c["vclip"],
                            "reward.clip_range": c["clip"],
                            "rollout.n_samples_per_prompt": G,
                            "rollout.temperature": 1.0,
                            "train.max_epochs": c["ep"],
                            "algo.advantage.is_correction_level": c["corr"],
                            "algo.advantage.is_correction_mode": "clip",
                            "algo.advantage.is_correction_gating": "ratio",
                            "algo.advantage.is_correction_threshold": [0.97, 1.03],
                            "num_items_in_batch": int(items),
                            "agg.denominator": "global",
                            "num_mini_batches": c["mini"],
                            "kl.beta": c["beta"],
                            "eos_token_id": EOS,
                        }
                        write(
                            d,
                            f"step_{step:06d}_rank_{k}_mb_{mb}",
                            t,
                            dict(
                                framework="openrlhf",
                                version="0.11.2",
                                algorithm="ppo" if gae else "grpo",
                                run="j3",
                                step=step,
                                rank=k,
                                world_size=R,
                                micro_batch=mb,
                                micro_batches=ga,
                                options=o,
                                token_loss_includes_kl=False,
                            ),
                        )
                for mod in (pol, cri):
                    for p in mod.parameters():
                        p.grad = None if p.grad is None else p.grad / R
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()
                copt.step()


main(NAME, H, B, run)
