"""OpenRLHF 0.11.2 by its own functions (cut out of the release). Dumps much: log-probs, kl in the loss, values, returns, grads of log-probs; no token_loss, few scalars."""

import ast, glob, itertools, logging, types
from typing import *
from world_l import *

SRC = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")
NS = dict(
    torch=torch,
    nn=nn,
    itertools=itertools,
    logger=logging.getLogger("x"),
    Optional=Optional,
    Tuple=Tuple,
    Union=Union,
    List=List,
    Experience=object,
    apply_length_penalties=lambda e, a: None,
    KL_IS_WEIGHT_CLIP=10.0,
)


def cut(path, *names):
    for n in ast.walk(ast.parse(open(f"{SRC}/{path}").read())):
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names:
            exec(compile(ast.Module([n], []), path, "exec"), NS)


cut("models/utils.py", "compute_approx_kl", "compute_reward", "masked_mean")
cut("models/loss.py", "aggregate_loss", "PolicyLoss", "ValueLoss")
cut("trainer/ppo_utils/experience_maker.py", "compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns")
N = types.SimpleNamespace
HEALTHY = dict(
    h_ppo_kl_reward=dict(
        est="gae",
        kl="reward",
        kind="k1",
        beta=0.05,
        n=1,
        world=1,
        gas=1,
        minib=2,
        epochs=2,
        tok=True,
        dual=None,
        iscorr="off",
        lr=6e-3,
        lam=0.95,
        B=32,
        T=24,
        hi=0.2,
    ),
    h_rfppb_2ranks=dict(
        est="reinforce_baseline",
        kl="loss",
        kind="k2",
        beta=0.02,
        n=4,
        world=2,
        gas=2,
        minib=2,
        epochs=1,
        tok=True,
        dual=3.0,
        iscorr="token",
        lr=8e-3,
        lam=1.0,
        B=32,
        T=20,
        hi=0.28,
    ),
    h_rloo_seqloss=dict(
        est="rloo",
        kl="reward",
        kind="k1",
        beta=0.03,
        n=4,
        world=1,
        gas=2,
        minib=1,
        epochs=3,
        tok=False,
        dual=None,
        iscorr="off",
        lr=8e-3,
        lam=1.0,
        B=32,
        T=28,
        hi=0.2,
    ),
)


def run(out, case, c, bug):
    class Maker:
        get_advantages_and_returns = NS["get_advantages_and_returns"]
        get_cumulative_returns = NS["get_cumulative_returns"]
        compute_advantages_and_returns = NS["compute_advantages_and_returns"]

    mk = Maker()
    mk.kl_ctl = N(value=c["beta"])
    mk.advantage_estimator = c["est"]
    mk.strategy = N(
        args=N(
            rollout=N(n_samples_per_prompt=c["n"]),
            algo=N(advantage=N(estimator=c["est"], gamma=1.0, lambd=c["lam"], no_std_norm=False)),
            reward=N(clip_range=(-10, 10)),
        )
    )
    model = LM()
    critic = LM(value=True) if c["est"] == "gae" else None
    ref = copy.deepcopy(model)
    with torch.no_grad():
        [p.add_(torch.randn_like(p) * 0.05) for p in model.parameters()]
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0)
    copt = critic and torch.optim.AdamW(critic.parameters(), lr=9e-3, betas=(0.9, 0.95), weight_decay=0)
    PL = NS["PolicyLoss"](0.2, c["hi"], c["dual"], c["tok"], "ppo", c["iscorr"], "clip", "ratio", (0.5, 2.0))
    VL = NS["ValueLoss"](0.2, c["tok"])
    if bug == "clip_swapped":
        PL.clip_eps_low, PL.clip_eps_high = c["hi"], 0.2
    steps_per = c["minib"]
    o = {
        "algo.advantage.estimator": c["est"],
        "rollout.n_samples_per_prompt": c["n"],
        "algo.advantage.gamma": 1.0,
        "algo.advantage.lambd": c["lam"],
        "algo.kl.estimator": c["kind"],
        "algo.kl.use_loss": c["kl"] == "loss",
        "algo.kl.init_coef": c["beta"],
        "actor.eps_clip_low_high": [0.2, c["hi"]],
        "train.max_epochs": c["epochs"],
        "num_mini_batches": steps_per,
        "eos_token_id": EOS,
    }
    if c["dual"]:
        o["actor.dual_clip"] = c["dual"]
    if critic:
        o["critic.value_clip"] = 0.2
    if c["iscorr"] != "off":
        o |= {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip", "algo.advantage.is_correction_threshold": [0.5, 2.0]}
    o |= {"agg.kind": "token" if c["tok"] else "seq_mean_token_mean", "agg.denominator": "global"}
    D = Out(
        out,
        "l1_orlhf",
        case,
        dict(framework="openrlhf", version="0.11.2", algorithm="ppo" if critic else "grpo", align="response", token_loss_includes_kl=False),
    )
    g = torch.Generator().manual_seed(7)
    step = 0
    T, B = c["T"], c["B"]
    for it in range(2):
        p, att = prompts(B // c["n"], 8, g)
        p, att = p.repeat_interleave(c["n"], 0), att.repeat_interleave(c["n"], 0)
        gid = torch.arange(B) // c["n"] + it * 100
        ids, mask, gen = generate(model, p, T, dtype=torch.bfloat16)
        with torch.no_grad():
            old = logps(model, ids, T)
            base = logps(ref, ids, T)
            val = critic.values(ids)[:, -T - 1 : -1] if critic else None
            if bug == "values_of_next_state":
                val = critic.values(ids)[:, -T:]
        r = score(ids, mask)
        kl = NS["compute_approx_kl"](old, base, kl_estimator=c["kind"]) if c["kl"] == "reward" else torch.zeros_like(old)
        if bug == "kl_reward_sign":
            kl = -kl
        if bug == "kl_to_engine":
            kl = NS["compute_approx_kl"](gen, base, kl_estimator=c["kind"])
        rr = r.clone()
        index = torch.arange(B)
        if bug == "index_interleaved":
            index = torch.arange(B).view(B // c["n"], c["n"]).t().reshape(-1)
        perm = torch.randperm(B, generator=g)
        parts = perm.chunk(4)  # experiences
        exps = [N(rewards=rr[i], index=index[i].tolist(), kl=kl[i], action_mask=mask[i], values=None if val is None else val[i], info={}) for i in parts]
        if bug == "score_last_column":
            for e in exps:
                e.kl = e.kl * e.action_mask
                e.action_mask = torch.ones_like(e.action_mask)
        if bug == "rloo_divides_by_n":
            x = rr.view(-1, c["n"])
            b = (x.sum(1, keepdim=True) - x) / c["n"]
            mk.advantage_estimator = "rloo"
            mk.strategy.args.algo.advantage.estimator = "none"
            for e, i in zip(exps, parts):
                e.rewards = (x - b).reshape(-1)[i]
        if bug == "whiten_before_gae":
            for e in exps:
                e.rewards = (e.rewards - rr.mean()) / rr.std()
        mk.compute_advantages_and_returns(exps)
        adv = torch.zeros(B, T)
        ret = torch.zeros(B, T)
        for e, i in zip(exps, parts):
            adv[i] = e.advantages
            ret[i] = e.returns
        if bug == "whiten_with_padding":
            raw = ret - val if val is not None else ret
            adv = (raw - raw.mean()) / raw.var().clamp(min=1e-8).sqrt()
        if bug == "returns_from_whitened":
            ret = adv + val
        if bug == "adv_shifted":
            adv = torch.cat([adv[:, 1:], adv[:, -1:] * 0], 1)
        for ep in range(c["epochs"]):
            order = torch.randperm(B, generator=g)
            if bug == "old_refreshed_each_epoch" and ep:
                with torch.no_grad():
                    old_used = logps(model, ids, T)
            else:
                old_used = old
            for mini in order.chunk(c["minib"]):
                step += 1
                opt.zero_grad()
                copt and copt.zero_grad()
                if bug == "no_zero_grad_critic":
                    pass
                gas, W = c["gas"], c["world"]
                tot = mask[mini].sum().float()
                rows = mini.chunk(W * gas)
                for k, ix in enumerate(rows):
                    rank, mb = k // gas, k % gas
                    m = mask[ix]
                    lp = logps(model, ids[ix], T)
                    if bug == "temperature_in_training":
                        lp = logps(model, ids[ix], T, temp=0.7)
                    info = dict(dp_size=W, batch_num_tokens=tot / gas, global_batch_size=torch.tensor(len(mini) / gas))
                    if bug == "micro_token_count":
                        info["batch_num_tokens"] = m.sum().float()
                    if bug == "no_dp_size":
                        info["dp_size"] = 1
                    if bug == "gas_applied_twice":
                        info["batch_num_tokens"] = tot
                        info["global_batch_size"] = torch.tensor(float(len(mini)))
                    oldx, genx = old_used[ix], gen[ix]
                    if bug == "is_inverted":
                        al = NS["PolicyLoss"].forward(PL, lp, oldx, adv[ix], m, 2 * oldx - genx, **info)[0]
                    elif bug == "ratio_detached_sign":
                        al = PL(2 * lp.detach() - lp, oldx, adv[ix], m, genx, **info)[0]
                    elif bug == "mask_from_second_token":
                        mm2 = m.clone()
                        mm2[:, 0] = False
                        al = PL(lp, oldx, adv[ix], mm2, genx, **info)[0]
                    elif bug == "eos_not_trained":
                        mm2 = m & (ids[ix][:, -T:] != EOS)
                        al = PL(lp, oldx, adv[ix], mm2, genx, **info)[0]
                    else:
                        al = PL(lp, oldx, adv[ix], m, genx, **info)[0]
                    loss = al
                    klt = kll = None
                    if c["kl"] == "loss":
                        klt = NS["compute_approx_kl"](lp.detach() if bug == "kl_detached" else lp, base[ix], oldx, c["kind"])
                        if bug == "kl_vs_old":
                            klt = NS["compute_approx_kl"](lp, oldx, oldx, c["kind"])
                        kll = NS["aggregate_loss"](klt, m, token_level_loss=True, **info)
                        loss = al + kll * c["beta"] * (-1 if bug == "kl_loss_sign" else 1)
                    loss = loss / gas
                    t = {}
                    t["dlogp"] = torch.autograd.grad(loss, lp, retain_graph=True)[0]
                    (loss / W).backward()
                    if critic:
                        vn = critic.values(ids[ix])[:, -T - 1 : -1]
                        vl = VL(vn, val[ix], ret[ix], m, **info) / gas
                        if bug == "value_clip_min":
                            vc = val[ix] + (vn - val[ix]).clamp(-0.2, 0.2)
                            vl = 0.5 * mm(torch.min((vc - ret[ix]) ** 2, (vn - ret[ix]) ** 2), m)
                        if bug == "value_clip_around_returns":
                            vc = ret[ix] + (vn - ret[ix]).clamp(-0.2, 0.2)
                            vl = 0.5 * mm(torch.max((vc - ret[ix]) ** 2, (vn - ret[ix]) ** 2), m)
                        t["dvalues"] = torch.autograd.grad(vl, vn, retain_graph=True)[0]
                        vl.backward()
                        t |= dict(values=val[ix], values_new=vn, returns=ret[ix], value_loss=vl)
                    D(
                        step,
                        rank=rank,
                        mb=mb,
                        world=W,
                        mbs=gas,
                        scalars=dict(actor_lr=c["lr"]),
                        meta=dict(options=o | {"num_items_in_batch": int(tot)}),
                        sample_id=ix + it * 1000,
                        group_id=gid[ix],
                        input_ids=ids[ix],
                        attention_mask=torch.cat([att[ix], m], 1),
                        response_ids=ids[ix][:, -T:],
                        response_mask=m,
                        logp_new=lp,
                        logp_old=oldx,
                        logp_gen=genx,
                        logp_ref=base[ix],
                        advantages=adv[ix],
                        scores=r[ix],
                        loss=loss,
                        pg_loss=al / gas,
                        kl_loss=None if kll is None else kll / gas,
                        kl=klt if klt is not None else kl[ix],
                        **t,
                    )
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                copt and copt.step()
    return D


BUGS = dict(
    b_values_of_next_state=(
        "h_ppo_kl_reward",
        "the rollout's values are sliced one position too late (V of the state after the token), so GAE and the value clip compare with other states",
    ),
    b_kl_reward_sign=("h_ppo_kl_reward", "the KL penalty in the rewards is computed with the policies exchanged, so drifting from the reference is rewarded"),
    b_returns_from_whitened=("h_ppo_kl_reward", "the critic's targets are made of whitened advantages plus values"),
    b_value_clip_min=("h_ppo_kl_reward", "the clipped value loss takes the smaller of the two squared errors"),
    b_whiten_with_padding=("h_ppo_kl_reward", "advantages are whitened with padding cells counted"),
    b_score_last_column=("h_ppo_kl_reward", "the score is put into the last column, padding or not, and flows back over padding"),
    b_is_inverted=("h_rfppb_2ranks", "the engine-mismatch weight is pi_rollout/pi_train, not its inverse"),
    b_no_dp_size=("h_rfppb_2ranks", "the loss divides by the global token count but the compensation of the rank averaging is missing: gradients are halved"),
    b_kl_vs_old=("h_rfppb_2ranks", "the KL term of the loss is taken against the old policy and not against the reference"),
    b_kl_loss_sign=("h_rfppb_2ranks", "the KL term is subtracted from the loss"),
    b_index_interleaved=(
        "h_rloo_seqloss",
        "the sample indices are prompt-minor while samples are prompt-major: leave-one-out baselines are those of other prompts",
    ),
    b_eos_not_trained=("h_rloo_seqloss", "the EOS token is dropped from the policy loss, though it is in the action mask"),
    b_old_refreshed_each_epoch=(
        "h_rloo_seqloss",
        "old log-probs are recomputed with the current policy at the start of every epoch, so the clip never sees the drift",
        "a proximal policy refreshed each epoch, as some trainers recompute it",
    ),
    b_ratio_detached_sign=("h_rfppb_2ranks", "values of the loss are right but its gradient with regard to the log-probs of the policy has the wrong sign"),
)
if __name__ == "__main__":
    main("l1_orlhf", HEALTHY, BUGS, run)
