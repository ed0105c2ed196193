"""OpenRLHF 0.11.2 by its own functions, cut out of the released source (loss.py, models/utils.py, experience_maker.py), driven by a loop like ppo_trainer's.
Dumps as a hook of the training steps does: log-probs, values, returns, advantages, kl, dlogp, dvalues, losses; no token_loss.
Bugs are edits of the source's text or of the loop."""

from world_n import *
import os
import ast, types, itertools, logging
from typing import *

SRC = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")


def library(edits):
    used = set()

    def text(f):
        s = open(SRC + f).read()
        for a, b in edits:
            if a in s:
                s = s.replace(a, b)
                used.add(a)
        return s

    ns = dict(
        torch=torch,
        nn=nn,
        F=F,
        Optional=Optional,
        Tuple=Tuple,
        Union=Union,
        List=List,
        itertools=itertools,
        logger=logging.getLogger("x"),
        Experience=object,
        apply_length_penalties=lambda e, a: None,
    )
    import torch.distributed as dist

    ns["dist"] = dist

    def cut(s, names, cls=None):
        t = ast.parse(s)
        body = t.body
        if cls:
            body = [n for n in t.body if isinstance(n, ast.ClassDef) and n.name == cls][0].body
        for n in body:
            if (isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names) or (isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") in names):
                exec(ast.unparse(n), ns)

    cut(text("models/utils.py"), ["compute_approx_kl", "compute_reward", "masked_mean", "KL_IS_WEIGHT_CLIP"])
    cut(text("models/loss.py"), ["aggregate_loss", "PolicyLoss", "ValueLoss"])
    cut(
        text("trainer/ppo_utils/experience_maker.py"),
        ["compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns"],
        "RemoteExperienceMaker" if "class RemoteExperienceMaker" in text("trainer/ppo_utils/experience_maker.py") else None,
    )
    assert len(used) == len(edits), (edits, used)
    return types.SimpleNamespace(**ns)


NSP = types.SimpleNamespace


def run(out, name, c, bug):
    lib = library(EDITS.get(bug, []))
    T, G, R, GAS = c["T"], c["G"], c["ranks"], c["gas"]
    args = NSP(
        rollout=NSP(n_samples_per_prompt=G),
        algo=NSP(advantage=NSP(estimator=c["est"], gamma=c["gamma"], lambd=c["lambd"], no_std_norm=False)),
        reward=NSP(clip_range=c["rclip"]),
    )
    maker = NSP(strategy=NSP(args=args), kl_ctl=NSP(value=c["kl"] if not c["use_loss"] else 0.0), advantage_estimator=c["est"])
    for f in ("get_advantages_and_returns", "get_cumulative_returns"):
        setattr(maker, f, types.MethodType(getattr(lib, f), maker))
    actor = make(c["seed"])
    ref = perturb(actor, 3, 0.03)
    critic = make(c["seed"] + 50, out=1)
    oa = torch.optim.AdamW(actor.parameters(), lr=c["lr"], weight_decay=0.0)
    oc = torch.optim.AdamW(critic.parameters(), lr=3e-3, weight_decay=0.0)
    ploss = lib.PolicyLoss(c["lo"], c["hi"], c["dual"], c["agg"] == "token-mean", "ppo")
    vloss = lib.ValueLoss(0.3)
    step = 0
    gae = c["est"] == "gae"
    for ro in range(2):
        b = sample(actor, c["prompts"], G, T, c["seed"] * 10 + ro, c["bf16"])
        sc = rewards(b, c["seed"] * 10 + ro)
        am = b["mask"]
        if bug == "mask_without_eos":
            am = am & (b["resp"] != EOS)
            b["mask"] = am
        if bug == "reward_delayed":
            sc = sc.view(-1, G).roll(1, 0).reshape(-1)
        with torch.no_grad():
            old, _ = logps(actor, b["ids"], b["att"], T)
            rl, _ = logps(ref, b["ids"], b["att"], T)
            val = critic(b["ids"], b["att"])[:, -T - 1 : -1, 0] if bug != "value_shift" else critic(b["ids"], b["att"])[:, -T:, 0]
            if bug == "kl_ref_old_swapped":
                old_, rl_ = rl, old
            else:
                old_, rl_ = old, rl
            klt = lib.compute_approx_kl(old_, rl_, kl_estimator=c["kl_est"]) if not c["use_loss"] else torch.zeros_like(old)
            if bug == "kl_abs_sum":
                klt = klt.abs()
            if not c["use_loss"]:
                klt = klt
        B = len(sc)
        E = 4
        n = B // E
        exps = []
        order = torch.arange(B) if bug != "index_ignored" else torch.arange(B)
        for e in range(E):
            ix = torch.arange(e, B, E)  # experiences hold rows of all prompts, index says which
            exps.append(
                NSP(
                    index=(ix.tolist() if bug != "index_ignored" else list(range(e * n, e * n + n))),
                    rewards=sc[ix],
                    kl=klt[ix],
                    action_mask=am[ix],
                    values=val[ix],
                    info={},
                    rows=ix,
                )
            )
        lib.compute_advantages_and_returns(maker, exps)
        rows = torch.cat([e.rows for e in exps])
        inv = torch.argsort(rows)
        adv = torch.cat([e.advantages for e in exps])[inv]
        ret = torch.cat([e.returns for e in exps])[inv]
        if bug == "returns_whitened":
            ret = adv + val * am
        data = dict(b, old=old, ref=rl, val=val, scores=sc, adv=adv, ret=ret, group=b["group"] + 1000 * ro, klt=klt, idx=torch.arange(B) + 1000 * ro)
        per = B // R
        M = per // c["minis"]
        for ep in range(c["epochs"]):
            pr = [torch.randperm(per, generator=torch.Generator().manual_seed(ro * 100 + ep * 10 + r)) + r * per for r in range(R)]
            if bug == "rank_same_rows":
                pr = [pr[0]] * R
            for k in range(c["minis"]):
                step += 1
                oa.zero_grad()
                oc.zero_grad()
                files = []
                mine = [[p[k * M : (k + 1) * M].chunk(GAS)[j] for j in range(GAS)] for p in pr]
                allr = torch.cat([z for q in mine for z in q])
                tok = data["mask"][allr].sum().float() / GAS
                nb = torch.tensor(float(len(allr))) / GAS
                if bug == "no_gas_in_norm":
                    tok, nb = tok * GAS, nb * GAS
                for r in range(R):
                    for j in range(GAS):
                        x = {q: v[mine[r][j]] for q, v in data.items()}
                        m = x["mask"].float()
                        info = dict(dp_size=R if bug != "dp_forgotten" else 1, batch_num_tokens=tok, global_batch_size=nb)
                        lp, ent = logps(actor, x["ids"], x["att"], T)
                        lp.retain_grad()
                        o_ = x["old"] if bug != "old_from_ref" else x["ref"]
                        pg, *_ = ploss(lp, o_, x["adv"], action_mask=m, rollout_log_probs=x["logp_gen"], **info)
                        loss = pg
                        kl_loss = kl = None
                        if c["use_loss"]:
                            kl = lib.compute_approx_kl(lp, x["ref"], log_probs_old=x["old"], kl_estimator=c["kl_est"], unbiased_gradient=False)
                            kl_loss = lib.aggregate_loss(kl, m, **info) if bug != "kl_no_info" else (kl * m).sum(1).mean()
                            loss = loss + kl_loss * c["kl"]
                        el = lib.aggregate_loss(ent, m, **info)
                        if c["ent"]:
                            loss = loss - el * c["ent"] if bug != "entropy_sign" else loss + el * c["ent"]
                        (loss / GAS / R).backward()
                        D = GAS
                        t = dict(
                            input_ids=x["ids"],
                            attention_mask=x["att"],
                            response_ids=x["resp"],
                            response_mask=x["mask"],
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_ref=x["ref"],
                            advantages=x["adv"],
                            returns=x["ret"],
                            scores=x["scores"],
                            group_id=x["group"],
                            sample_id=x["idx"],
                            logp_gen=x["logp_gen"] if c["bf16"] else None,
                            entropy=ent,
                            entropy_loss=el / D if c["ent"] else None,
                            kl=kl if c["use_loss"] else x["klt"],
                            kl_loss=kl_loss / D if kl_loss is not None else None,
                            loss=loss / D,
                            pg_loss=pg / D,
                            dlogp=lp.grad * R,
                        )
                        if gae:
                            v = critic(x["ids"], x["att"])[:, -T - 1 : -1, 0] if bug != "value_shift" else critic(x["ids"], x["att"])[:, -T:, 0]
                            v.retain_grad()
                            vl = vloss(v, x["val"], x["ret"], action_mask=m, **info)
                            (vl / GAS / R).backward()
                            t.update(values=x["val"], values_new=v, value_loss=vl / D, dvalues=v.grad * R)
                        files.append((r, j, t))
                for o, mod in ((oa, actor), (oc, critic)) if gae else ((oa, actor),):
                    torch.nn.utils.clip_grad_norm_(mod.parameters(), 1.0)
                    o.step()
                opts = {
                    "algo.advantage.estimator": c["est"],
                    "algo.advantage.gamma": c["gamma"],
                    "algo.advantage.lambd": c["lambd"],
                    "algo.kl.init_coef": c["kl"],
                    "algo.kl.use_loss": c["use_loss"],
                    "algo.kl.estimator": c["kl_est"],
                    "algo.kl.unbiased_gradient": False,
                    "algo.kl.target": None,
                    "actor.eps_clip_low_high": [c["lo"], c["hi"]],
                    "actor.dual_clip": c["dual"],
                    "actor.loss_agg_mode": c["agg"],
                    "actor.entropy_coef": c["ent"],
                    "critic.value_clip": 0.3,
                    "reward.clip_range": c["rclip"],
                    "rollout.n_samples_per_prompt": G,
                    "rollout.temperature": 1.0,
                    "num_items_in_batch": int(data["mask"][allr].sum()),
                    "agg.denominator": "global",
                    "eos_token_id": EOS,
                    "num_mini_batches": c["minis"],
                    "kl.beta": c["kl"],
                    "train.max_epochs": c["epochs"],
                }
                for r, j, t in files:
                    write(
                        out,
                        name,
                        step,
                        r,
                        j,
                        t,
                        dict(
                            framework="openrlhf",
                            version="0.11.2",
                            algorithm="ppo" if gae else "grpo",
                            world_size=R,
                            micro_batches=GAS,
                            options=opts,
                            token_loss_includes_kl=False,
                        ),
                    )


base = dict(
    gamma=1.0,
    lambd=1.0,
    kl=0.05,
    use_loss=False,
    kl_est="k1",
    lo=0.2,
    hi=0.2,
    dual=None,
    agg="token-mean",
    ent=None,
    ranks=1,
    gas=1,
    epochs=2,
    minis=2,
    bf16=False,
    rclip=[-10, 10],
    lr=4e-3,
)
H = {
    "h_ppo_critic": dict(
        base,
        seed=31,
        est="gae",
        prompts=16,
        G=2,
        T=24,
        gamma=0.99,
        lambd=0.95,
        gas=2,
        rclip=[-1, 1.3],
        about="PPO with critic, k1 in the token rewards, reward clip, two epochs and mini-batches, accumulation",
    ),
    "h_rfbase_2ranks_klloss": dict(
        base,
        seed=32,
        est="reinforce_baseline",
        prompts=8,
        G=4,
        T=20,
        use_loss=True,
        kl_est="k3",
        kl=0.1,
        ranks=2,
        hi=0.27,
        ent=0.01,
        about="REINFORCE++-baseline, k3 in the loss, entropy bonus, two ranks",
    ),
    "h_rloo_dual_seqmean": dict(
        base,
        seed=33,
        est="rloo",
        prompts=8,
        G=4,
        T=28,
        dual=3.0,
        agg="seq-mean-token-mean",
        bf16=True,
        gas=2,
        kl_est="k2",
        lr=6e-3,
        about="RLOO with k2 in the reward, dual clip, mean over sequences, bfloat16 engine",
    ),
    "h_rfpp_gamma": dict(
        base,
        seed=34,
        est="reinforce",
        prompts=16,
        G=2,
        T=20,
        gamma=0.97,
        kl=0.1,
        minis=1,
        epochs=3,
        about="REINFORCE++ with gamma 0.97 and KL in the token rewards",
    ),
}
h1, h2, h3, h4 = H
EDITS = {
    "gae_no_lambda": [("lastgaelam = delta + gamma * lambd * lastgaelam", "lastgaelam = delta + lambd * lastgaelam")],
    "gae_next_unmasked": [("        values = action_mask * values\n", "        pass\n")],
    "returns_no_values": [("returns = advantages + values", "returns = advantages")],
    "value_min": [("loss = torch.max(surr1, surr2)", "loss = torch.min(surr1, surr2)")],
    "value_clip_new": [("values_clipped = old_values + (values - old_values).clamp", "values_clipped = returns + (values - returns).clamp")],
    "kl_added": [("kl_reward = -kl_coef * kl", "kl_reward = kl_coef * kl")],
    "score_first_token": [
        (
            "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)",
            "eos_indices = action_mask.long().argmax(dim=1, keepdim=True)",
        )
    ],
    "dual_sign": [("clip2 = torch.max(clip1, self.dual_clip * advantages)", "clip2 = torch.max(clip1, -self.dual_clip * advantages)")],
    "dual_all_signs": [("loss = -torch.where(advantages < 0, clip2, clip1)", "loss = -clip2")],
    "rloo_plus": [
        (
            "baseline = (rewards.sum(-1, keepdim=True) - rewards) / (args.rollout.n_samples_per_prompt - 1)",
            "baseline = rewards.sum(-1, keepdim=True) / (args.rollout.n_samples_per_prompt - 1)",
        )
    ],
    "k3_flipped": [("value = (-k3_log_ratio).exp() - 1 + k3_log_ratio", "value = k3_log_ratio.exp() - 1 + k3_log_ratio")],
    "whiten_var": [("rstd = var.clamp(min=1e-8).rsqrt()", "rstd = 1 / var.clamp(min=1e-8)")],
    "whiten_unmasked": [("mean = (all_advantages * all_action_masks).sum() / num_actions", "mean = all_advantages.mean()")],
    "gamma_forward": [
        ("for t in reversed(range(response_length)):\n            cumulative_return", "for t in range(response_length):\n            cumulative_return")
    ],
    "seq_len_eps": [("seq_loss = (loss * loss_mask).sum(dim=-1) / (token_counts + 1e-8)", "seq_loss = (loss * loss_mask).sum(dim=-1) / loss_mask.size(-1)")],
}
B = {
    "b_gae_no_lambda": (h1, "the recursion of GAE forgets gamma", ""),
    "b_value_min": (h1, "min in place of max in the clipped value loss", ""),
    "b_value_clip_new": (
        h1,
        "values are clipped around the returns, not around the old values: the clip does nothing",
        "value loss without clip (value_clip None)",
    ),
    "b_kl_added": (h1, "KL is added to the reward", ""),
    "b_returns_no_values": (h1, "returns are the advantages alone: the critic learns advantages", ""),
    "b_returns_whitened": (h1, "returns are made of whitened advantages", ""),
    "b_dp_forgotten": (h2, "the loss is divided by the global tokens but not multiplied by the ranks: half the gradient", ""),
    "b_k3_flipped": (h2, "k3's exponent has the wrong sign", ""),
    "b_entropy_sign": (h2, "the entropy bonus is a penalty", "a negative entropy coefficient"),
    "b_kl_no_info": (h2, "the KL loss is summed over tokens and averaged over the micro-batch's rows", ""),
    "b_whiten_var": (h2, "advantages are divided by the variance", ""),
    "b_dual_all_signs": (h3, "dual clip applies to positive advantages too: max(clip1, c*A)", ""),
    "b_rloo_plus": (h3, "the row's own reward stays in the leave-one-out baseline's sum", ""),
    "b_no_gas_in_norm": (h3, "the divisor is not corrected for DeepSpeed's division by the accumulation steps: half the loss", ""),
    "b_index_ignored": (h3, "experiences are regrouped without their index: baselines of other prompts", ""),
    "b_seq_len_eps": (h3, "sequence means divide by the padded width", ""),
    "b_score_first_token": (h4, "the score is put on the first token: later tokens see none", ""),
    "b_gamma_forward": (h4, "returns accumulate from the front, not from the end", ""),
    "b_old_from_ref": (h4, "the ratio is taken against the reference instead of the old policy", ""),
    "b_kl_ref_old_swapped": (h4, "the KL has policy and reference swapped", ""),
    "b_whiten_unmasked": (h4, "the mean of whitening includes padding", ""),
}
if __name__ == "__main__":
    main("n2_orlhf", H, B, run)
