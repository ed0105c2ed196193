"""OpenRLHF 0.11.2 through its own functions (models/loss.py, models/utils.py, the advantage statements of the experience maker, cut out of the
released source and executed). h_ppo, h_rfpp_base and h_rloo: full hook (dlogp, kl, pg_loss, value side); h_drgrpo and h_gnorm_gspo: lazy."""

from world_e import *
import ast, itertools, types

SRC = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")


def load(edits=()):
    """the functions of OpenRLHF; edits: (old, new) pairs of source text"""
    ns = dict(
        __name__="orlhf",
        torch=torch,
        nn=nn,
        F=F,
        itertools=itertools,
        dist=torch.distributed,
        logger=types.SimpleNamespace(warning=print),
        apply_length_penalties=lambda e, a: None,
    )
    txt = {}
    for f in ("models/utils.py", "models/loss.py", "trainer/ppo_utils/experience_maker.py", "utils/loss_utils.py"):
        txt[f] = open(SRC + f).read()
    for old, new in edits:
        hit = [f for f in txt if old in txt[f]]
        assert len(hit) == 1, (old, hit)
        txt[hit[0]] = txt[hit[0]].replace(old, new, 1)
    want = {
        "compute_approx_kl",
        "compute_reward",
        "masked_mean",
        "aggregate_loss",
        "PolicyLoss",
        "ValueLoss",
        "log_probs_from_logits",
        "_logsumexp_by_chunk",
        "KL_IS_WEIGHT_CLIP",
        "compute_advantages_and_returns",
        "get_advantages_and_returns",
        "get_cumulative_returns",
        "_optimizer_step_loss_norm",
    }
    exec("from typing import *\nExperience = object", ns)
    for f, s in txt.items():
        for n in ast.walk(ast.parse(s)):
            name = getattr(n, "name", None) or (n.targets[0].id if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) else None)
            if name in want and isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.Assign)) and (not isinstance(n, ast.Assign) or name.isupper()):
                exec(compile(ast.Module([n], []), f, "exec"), ns)
    return types.SimpleNamespace(**{k: ns[k] for k in want})


D = dict(
    est="gae",
    gamma=1.0,
    lam=0.95,
    beta=0.05,
    kind="k1",
    use_loss=False,
    unb=False,
    G=1,
    prompts=24,
    mbs=6,
    gas=2,
    epochs=2,
    T=32,
    temp=1.0,
    clip=(0.2, 0.2),
    dual=None,
    loss="ppo",
    vclip=0.2,
    rclip=(-10.0, 10.0),
    isl="off",
    ism="mask",
    isg="ratio",
    ist=(0.5, 5.0),
    ent=None,
    nostd=False,
    rollouts=2,
    noise=0.02,
    lr=0.01,
    full=True,
    seed=11,
    rscale=1.0,
)
H = {
    "h_ppo": dict(D),
    "h_rfpp_base": dict(
        D, est="reinforce_baseline", beta=0.03, kind="k2", use_loss=True, G=4, isl="token", ism="clip", ist=(0.7, 1.3), seed=12, noise=0.06, ent=0.01, temp=0.9
    ),
    "h_drgrpo": dict(D, est="dr_grpo", beta=0.04, kind="k3", use_loss=True, unb=True, G=6, clip=(0.2, 0.27), dual=3.0, full=False, seed=13, mbs=8, gas=3, T=24),
    "h_rloo": dict(D, est="rloo", beta=0.05, kind="k3", G=4, rclip=(-0.4, 0.4), isl="seq", ism="mask", ist=(0.985, 1.012), seed=14, noise=0.08, rscale=2.0),
    "h_gnorm_gspo": dict(D, est="group_norm", beta=0.0, use_loss=True, kind="k3", G=6, loss="gspo", clip=(0.02, 0.03), full=False, seed=15, temp=0.8, epochs=3),
}
# bug: (healthy, id, sentence); source edits in EDITS, the others in run()
B = {
    "b_gae_lam": ("h_ppo", "gae-next-advantage-undiscounted", "the GAE recursion forgets lambda: every later delta counts in full"),
    "b_gae_mask": ("h_ppo", "values-shifted", "the values handed to GAE are those of the next token, one column too late"),
    "b_returns_whitened": ("h_ppo", "returns-of-whitened", "returns are the whitened advantages plus the values"),
    "b_vclip_min": ("h_ppo", "value-min", "the clipped value loss takes the smaller of the two errors"),
    "b_vclip_ret": ("h_ppo", "value-clip-around-returns", "values are clipped around the returns instead of the old values"),
    "b_score_last_col": ("h_ppo", "score-at-last-column", "the score goes to the last column of the batch, which is padding in short rows"),
    "b_kl_sign": ("h_ppo", "kl-bonus", "the KL is added to the rewards instead of subtracted"),
    "b_ref_stale": ("h_ppo", "ref-is-engine", "the reference log-probs are those of the engine: the KL penalty is of the rollout mismatch alone"),
    "b_whiten_all": ("h_rfpp_base", "whiten-with-padding", "advantage statistics run over all cells with padding"),
    "b_is_swapped": ("h_rfpp_base", "is-inverse", "the vLLM correction is exp(rollout - old)"),
    "b_is_new": (
        "h_rfpp_base",
        "is-from-new",
        "the correction uses the log-probs being trained in place of the old ones: mismatch and drift are both corrected, the ratio twice",
    ),
    "b_k2_no_half": ("h_rfpp_base", "k2-without-half", "k2 is the full square"),
    "b_ent_sign": ("h_rfpp_base", "entropy-sign", "the entropy bonus is added to the loss instead of subtracted"),
    "b_gas_norm": (
        "h_rfpp_base",
        "norm-of-first-micro",
        "the loss is normalised by the tokens of the first micro-batch of the window instead of the mean over the window",
    ),
    "b_dual_pos": ("h_drgrpo", "dual-clip-wrong-sign", "dual clip acts on the rows with a positive advantage"),
    "b_unb_no_w": ("h_drgrpo", "kl-grad-through-old", "the reference handed to the loss is permuted within the micro-batch: KL against other rows' reference"),
    "b_dr_std": ("h_drgrpo", "dr-grpo-with-std", "dr_grpo still divides by the std of the group"),
    "b_loo_n": ("h_rloo", "rloo-divides-by-n", "the leave-one-out baseline divides by n instead of n-1"),
    "b_clip_before": ("h_rloo", "clip-before-baseline", "rewards are clipped before the leave-one-out baseline is subtracted"),
    "b_seq_pad": ("h_rloo", "is-mean-over-padding", "the geometric mean of the IS ratio divides by all columns with padding"),
    "b_seq_sum": ("h_gnorm_gspo", "gspo-sum", "the log-ratio of a sequence is its sum instead of its mean"),
    "b_temp": ("h_gnorm_gspo", "train-temperature", "the training forward forgets the temperature; old log-probs have it"),
    "b_idx": ("h_gnorm_gspo", "index-not-restored", "rewards are not sorted back by their prompt index before groups are formed"),
}
EDITS = {
    "gae-next-advantage-undiscounted": [("lastgaelam = delta + gamma * lambd * lastgaelam", "lastgaelam = delta + gamma * lastgaelam")],
    "value-min": [("loss = torch.max(surr1, surr2)", "loss = torch.min(surr1, surr2)")],
    "value-clip-around-returns": [("values_clipped = old_values + (values - old_values).clamp(", "values_clipped = returns + (values - returns).clamp(")],
    "score-at-last-column": [
        (
            "eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)",
            "eos_indices = torch.full((action_mask.size(0), 1), action_mask.size(1) - 1)",
        )
    ],
    "kl-bonus": [("kl_reward = -kl_coef * kl", "kl_reward = kl_coef * kl")],
    "whiten-with-padding": [
        (
            "all_action_masks = torch.cat([exp.action_mask.flatten() for exp in experiences], dim=0)",
            "all_action_masks = torch.cat([torch.ones_like(exp.action_mask).flatten() for exp in experiences], dim=0)",
        )
    ],
    "is-inverse": [("is_log_ratio = (old_log_probs - rollout_log_probs).detach()", "is_log_ratio = (rollout_log_probs - old_log_probs).detach()")],
    "is-from-new": [("is_log_ratio = (old_log_probs - rollout_log_probs).detach()", "is_log_ratio = (log_probs - rollout_log_probs).detach()")],
    "k2-without-half": [("value = log_ratio**2 / 2.0", "value = log_ratio**2")],
    "dual-clip-wrong-sign": [
        ("loss = -torch.where(advantages < 0, clip2, clip1)", "loss = -torch.where(advantages < 0, clip1, torch.min(clip1, 0.9 * advantages))")
    ],
    "dr-grpo-with-std": [
        (
            "rewards = rewards - rewards.mean(-1, keepdim=True)\n",
            "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)\n",
        )
    ],
    "rloo-divides-by-n": [("/ (args.rollout.n_samples_per_prompt - 1)", "/ args.rollout.n_samples_per_prompt")],
    "is-mean-over-padding": [
        (
            "stat = masked_mean(is_log_ratio, action_mask, dim=-1).unsqueeze(-1) if seq_level else is_log_ratio",
            "stat = is_log_ratio.mean(-1, keepdim=True) if seq_level else is_log_ratio",
        )
    ],
    "gspo-sum": [("ratio = (log_ratio * action_mask).sum(dim=-1) / action_mask.sum(dim=-1).clamp(min=1)", "ratio = (log_ratio * action_mask).sum(dim=-1)")],
    "index-not-restored": [("rewards[indices] = raw_rewards", "rewards[:] = raw_rewards")],
}


def run(out, case, c, bug, exp):
    C = types.SimpleNamespace(**c)
    NS = types.SimpleNamespace
    o = load(EDITS.get(bug, ()))
    gen = torch.Generator().manual_seed(C.seed)
    torch.manual_seed(C.seed)
    actor, critic = LM(seed=C.seed), LM(seed=C.seed + 1, value=True)
    ref = copy.deepcopy(actor)
    opt, copt = (
        torch.optim.AdamW(actor.parameters(), lr=C.lr, betas=(0.9, 0.95), weight_decay=0.0),
        torch.optim.AdamW(critic.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0),
    )
    args = NS(
        rollout=NS(n_samples_per_prompt=C.G),
        algo=NS(advantage=NS(estimator=C.est, gamma=C.gamma, lambd=C.lam, no_std_norm=C.nostd)),
        reward=NS(clip_range=C.rclip),
    )
    maker = NS(strategy=NS(args=args), advantage_estimator=C.est, kl_ctl=NS(value=C.beta))
    maker.get_advantages_and_returns = lambda *a: o.get_advantages_and_returns(maker, *a)
    maker.get_cumulative_returns = lambda *a: o.get_cumulative_returns(maker, *a)
    pl = o.PolicyLoss(
        *C.clip,
        dual_clip=C.dual,
        policy_loss_type=C.loss,
        is_correction_level=C.isl,
        is_correction_mode=C.ism,
        is_correction_gating=C.isg,
        is_correction_threshold=list(C.ist),
    )
    vl = o.ValueLoss(C.vclip)
    gae = C.est == "gae"
    d = Dump(out, "e2_orlhf", case, framework="openrlhf", version="0.11.2", algorithm="ppo" if gae else "grpo", token_loss_includes_kl=False, **exp)
    opts = {
        "algo.advantage.estimator": C.est,
        "algo.advantage.gamma": C.gamma,
        "algo.advantage.lambd": C.lam,
        "algo.kl.init_coef": C.beta,
        "algo.kl.use_loss": C.use_loss,
        "algo.kl.estimator": C.kind,
        "algo.kl.unbiased_gradient": C.unb,
        "actor.eps_clip_low_high": list(C.clip),
        "rollout.batch_size": C.prompts // C.G,
        "train.batch_size": C.mbs * C.gas,
        "train.micro_batch_size": C.mbs,
        "actor.dual_clip": C.dual,
        "actor.policy_loss_type": C.loss,
        "critic.value_clip": C.vclip,
        "reward.clip_range": list(C.rclip),
        "rollout.n_samples_per_prompt": C.G,
        "rollout.temperature": C.temp,
        "train.max_epochs": C.epochs,
        "actor.entropy_coef": C.ent,
        "algo.advantage.is_correction_level": C.isl,
        "algo.advantage.is_correction_mode": C.ism,
        "algo.advantage.is_correction_gating": C.isg,
        "algo.advantage.is_correction_threshold": list(C.ist),
        "algo.advantage.no_std_norm": C.nostd,
        "agg.denominator": "global",
        "kl.beta": C.beta,
        "eos_token_id": EOS,
    }

    def lps(m, seq, am, temp, ent=False):
        x = m(seq)[:, :-1] / temp
        lp = o.log_probs_from_logits(x, seq[:, 1:]) * am.float()
        if ent:
            p = x.softmax(-1)
            return lp, torch.logsumexp(x, -1) - (p * x).sum(-1)
        return lp

    vals = lambda seq, am: critic(seq)[:, :-1, 0] * am.float()
    step = 0
    P = 6
    for ro in range(C.rollouts):
        n = C.prompts
        pr = prompts_(n // C.G, P, gen).repeat_interleave(C.G, 0)
        ids, mask, lpg = sample(engine(actor, C.noise, C.seed), pr, C.T, C.temp, gen)
        r = (rewards2(ids, mask, C.T) * torch.tensor([1.5, 0.6])).sum(1) * C.rscale
        seq = torch.full((n, P + C.T), PAD)
        am = torch.zeros(n, P + C.T, dtype=torch.long)
        g = torch.zeros(n, P + C.T)
        for i in range(n):
            p = pr[i][pr[i] != PAD]
            L = int(mask[i].sum())
            s = len(p)
            seq[i, :s] = p
            seq[i, s : s + L] = ids[i, :L]
            am[i, s : s + L] = 1
            g[i, s : s + L] = lpg[i, :L]
        am, g = am[:, 1:], g[:, 1:]
        w = int((seq != PAD).sum(1).max())
        seq, am, g = seq[:, :w], am[:, : w - 1], g[:, : w - 1]
        with torch.no_grad():
            old, base, v = lps(actor, seq, am, C.temp), lps(ref, seq, am, C.temp), vals(seq, am)
            if bug == "ref-is-engine":
                base = g.clone()
            kl = o.compute_approx_kl(old, base, kl_estimator=C.kind) if not C.use_loss else torch.zeros_like(old)
        perm = torch.randperm(n, generator=gen)
        E = []
        scores = r.clone()
        if bug == "clip-before-baseline":
            r = r.clamp(*C.rclip)
        for i in range(0, n, C.mbs):
            k = perm[i : i + C.mbs]
            vv = v[k]
            if bug == "values-shifted":
                vv = F.pad(vv[:, 1:], (0, 1))
            E.append(NS(index=k.tolist(), rewards=r[k].clone(), kl=kl[k], action_mask=am[k], values=vv if gae else None, info={}))
        if bug == "clip-before-baseline":
            args.reward.clip_range = None
        o.compute_advantages_and_returns(maker, E)
        adv, ret = torch.zeros_like(old), torch.zeros_like(old)
        for e in E:
            adv[e.index] = e.advantages
            ret[e.index] = e.advantages + e.values if bug == "returns-of-whitened" else e.returns
        for ep in range(C.epochs):
            perm = torch.randperm(n, generator=gen)
            for s0 in range(0, n, C.mbs * C.gas):
                step += 1
                ks = [perm[s0 + j * C.mbs : s0 + (j + 1) * C.mbs] for j in range(C.gas)]
                info = o._optimizer_step_loss_norm([am[k] for k in ks], None, 1, C.gas)
                if bug == "norm-of-first-micro":
                    info["batch_num_tokens"] = am[ks[0]].sum().float() / C.gas
                for j, k in enumerate(ks):
                    new, ent = lps(actor, seq[k], am[k], 1.0 if bug == "train-temperature" else C.temp, True)
                    al, cf, pk, vk, fr = pl(new, old[k], adv[k], action_mask=am[k], rollout_log_probs=g[k], **info)
                    loss, kll, el, klt = al, None, None, None
                    if C.use_loss and C.beta > 0:
                        b_ = base[k].roll(1, 0) if bug == "kl-grad-through-old" else base[k]
                        klt = o.compute_approx_kl(new, b_, log_probs_old=old[k], kl_estimator=C.kind, unbiased_gradient=C.unb)
                        kll = o.aggregate_loss(klt, am[k], **info)
                        loss = loss + kll * C.beta
                    if C.ent:
                        el = o.aggregate_loss(ent, am[k], **info)
                        loss = loss + el * C.ent if bug == "entropy-sign" else loss - el * C.ent
                    (dl,) = torch.autograd.grad(loss, new, retain_graph=True)
                    (loss / C.gas).backward()
                    t = dict(
                        input_ids=seq[k],
                        attention_mask=(seq[k] != PAD).long(),
                        response_ids=seq[k][:, 1:],
                        response_mask=am[k],
                        logp_new=new,
                        logp_old=old[k],
                        advantages=adv[k],
                        scores=scores[k],
                        loss=loss / C.gas,
                        group_id=k // C.G + 1000 * ro,
                        sample_id=k + 1000 * ro,
                        logp_ref=base[k] if C.beta else None,
                    )
                    if C.isl != "off":
                        t["logp_gen"] = g[k]
                    sc = dict(ppo_clip_ratio=cf.item(), ppo_kl=pk.item())
                    if C.full:
                        t |= dict(
                            logp_gen=g[k],
                            dlogp=dl / C.gas,
                            kl=klt if C.use_loss else kl[k],
                            pg_loss=al / C.gas,
                            kl_loss=kll / C.gas if kll is not None else None,
                            entropy_loss=el / C.gas if el is not None else None,
                            entropy=ent if C.ent else None,
                        )
                    if gae:
                        vn = vals(seq[k], am[k])
                        cl = vl(vn, v[k], ret[k], action_mask=am[k], **info)
                        (dv,) = torch.autograd.grad(cl, vn, retain_graph=True)
                        (cl / C.gas).backward()
                        t |= dict(values=v[k], returns=ret[k], values_new=vn, value_loss=cl / C.gas, dvalues=dv / C.gas)
                    elif C.full:
                        t["returns"] = ret[k]
                    d(
                        step,
                        j,
                        C.gas,
                        t,
                        options=dict(opts, num_items_in_batch=round(float(info["batch_num_tokens"]) * C.gas)),
                        scalars={},
                        scalars_scope="micro_batch",
                    )
                torch.nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                if gae:
                    torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                    copt.step()
                    copt.zero_grad()


if __name__ == "__main__":
    main("e2_orlhf", H, B, run)
