"""OpenRLHF 0.11.2 through its own functions (experience maker, PolicyLoss, ValueLoss, compute_approx_kl, aggregate_loss), cut out of the source.
Two ranks or accumulation steps, 2 epochs. The hook is a short one: no token_loss, no kl; losses as back-propagated, dlogp/dvalues for some settings only."""

from world_c import *
import itertools, types

SRC = os.path.join(os.environ["WHEELS"], "openrlhf-0.11.2/openrlhf-0.11.2.data/purelib/openrlhf/")
PATCH = {
    "whiten_unmasked": ("num_actions = all_action_masks.sum()\n", "num_actions = all_action_masks.numel()\n"),
    "whiten_std_plain": ("rstd = var.clamp(min=1e-8).rsqrt()", "rstd = 1 / (var + 1e-1)"),
    "kl_positive": ("kl_reward = -kl_coef * kl", "kl_reward = kl_coef * kl"),
    "eos_index_forward": (
        "action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)",
        "action_mask.long().argmax(dim=1, keepdim=True)",
    ),
    "next_values_same": (
        "nextvalues = values[:, t + 1] if t < response_length - 1 else 0.0",
        "nextvalues = values[:, t] if t < response_length - 1 else 0.0",
    ),
    "gae_no_lambda": ("lastgaelam = delta + gamma * lambd * lastgaelam", "lastgaelam = delta + gamma * lastgaelam"),
    "vclip_min": ("loss = torch.max(surr1, surr2)", "loss = torch.min(surr1, surr2)"),
    "vclip_sign": ("(values - old_values).clamp(-self.clip_eps, self.clip_eps)", "(old_values - values).clamp(-self.clip_eps, self.clip_eps)"),
    "k3_sign": ("value = (-k3_log_ratio).exp() - 1 + k3_log_ratio", "value = k3_log_ratio.exp() - 1 - k3_log_ratio"),
    "rb_std": (
        "rewards = rewards - rewards.mean(-1, keepdim=True)\n",
        "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)\n",
    ),
    "rb_batch_mean": ("rewards = rewards - rewards.mean(-1, keepdim=True)\n", "rewards = rewards - rewards.mean(0, keepdim=True)\n"),
    "is_mask_not_clip": ("coef = stat.clamp(min=low, max=high)", "coef = torch.where((stat < low) | (stat > high), 0.0, stat)"),
    "is_of_engine": ("is_log_ratio = (old_log_probs - rollout_log_probs).detach()", "is_log_ratio = (rollout_log_probs - old_log_probs).detach()"),
    "rloo_keeps_own": (
        "baseline = (rewards.sum(-1, keepdim=True) - rewards) / (args.rollout.n_samples_per_prompt - 1)",
        "baseline = rewards.sum(-1, keepdim=True) / (args.rollout.n_samples_per_prompt - 1)",
    ),
    "stop_adds": (
        "experience.rewards[j] = experience.rewards[j] * stop_properly_penalty_coef",
        "experience.rewards[j] = experience.rewards[j] - stop_properly_penalty_coef",
    ),
    "stop_wrong_rows": ("if truncated_flags[j].item():", "if not truncated_flags[j].item():"),
    "return_gamma_lost": ("cumulative_return = rewards[:, t] + gamma * cumulative_return", "cumulative_return = rewards[:, t] + cumulative_return"),
    "clip_hi_for_lo": ("ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high)", "ratio.clamp(1 - self.clip_eps_high, 1 + self.clip_eps_low)"),
    "ratio_no_exp": ("ratio = policy_log_ratio.exp()", "ratio = 1 + policy_log_ratio"),
    "dual_sign": ("clip2 = torch.max(clip1, self.dual_clip * advantages)", "clip2 = torch.min(clip1, self.dual_clip * advantages)"),
}


class NS(types.SimpleNamespace):
    pass


def functions(bug):
    done = []

    def src(path):
        s = open(SRC + path).read()
        if bug in PATCH and PATCH[bug][0] in s:
            done.append(1)
            s = s.replace(*PATCH[bug])
        return s

    ns = dict(
        globals(),
        dist=types.SimpleNamespace(is_initialized=lambda: False),
        logger=types.SimpleNamespace(info=lambda *a: 0, warning=lambda *a: 0),
        Experience=object,
    )
    cut(src("models/utils.py"), {"compute_approx_kl", "compute_reward", "masked_mean", "KL_IS_WEIGHT_CLIP"}, ns)
    cut(src("models/loss.py"), {"aggregate_loss", "PolicyLoss", "ValueLoss"}, ns)
    cut(src("trainer/ppo_utils/length_penalty.py"), {"apply_stop_properly_penalty", "apply_length_penalties"}, ns)
    tree = ast.parse(src("trainer/ppo_utils/experience_maker.py"))
    for k in ast.walk(tree):
        if isinstance(k, ast.ClassDef):
            for f in k.body:
                if isinstance(f, ast.FunctionDef) and f.name in (
                    "compute_advantages_and_returns",
                    "get_advantages_and_returns",
                    "get_cumulative_returns",
                ):
                    f.decorator_list = []
                    f.returns = None
                    exec(compile(ast.Module([f], []), "em", "exec"), ns)
    assert bug not in PATCH or done, bug
    return ns


BASE = dict(
    seed=1,
    est="gae",
    n=32,
    gens=1,
    T=28,
    P=6,
    world=1,
    gas=2,
    mb=8,
    epochs=2,
    rollouts=2,
    lr=5e-3,
    clip=(0.2, 0.2),
    dual=None,
    vclip=0.5,
    gamma=1.0,
    lam=1.0,
    kl=0.05,
    klest="k1",
    use_loss=False,
    unbiased=False,
    is_level="off",
    is_mode="mask",
    is_th=(0.5, 5.0),
    rclip=(-10, 10),
    stop=None,
    no_std=False,
    ent=None,
    temp=1.0,
    grads=True,
    agg="token-mean",
)
HEALTHY = {
    "h_ppo_kl_2ep_ga2": dict(BASE, seed=31, lam=0.95, kl=0.1, vclip=0.15, clip=(0.1, 0.15)),
    "h_reinforce_pp_stop_2ranks_lazy": dict(
        BASE, seed=32, est="reinforce", gamma=0.98, kl=0.1, stop=0.5, world=2, gas=1, grads=False, clip=(0.15, 0.2), temp=0.9
    ),
    "h_rfbaseline_k3loss_tisclip": dict(
        BASE,
        seed=33,
        est="reinforce_baseline",
        gens=4,
        kl=0.05,
        klest="k3",
        use_loss=True,
        is_level="token",
        is_mode="clip",
        is_th=(0.98, 1.02),
        ent=0.005,
        dual=1.3,
        lr=8e-3,
    ),
    "h_rloo_klreward_unclipped": dict(BASE, seed=34, est="rloo", gens=4, kl=0.08, rclip=(-0.3, 0.3), clip=(0.1, 0.2), world=2, gas=2, mb=4),
}


def run(root, c, bug):
    f = functions(bug)
    T, P, n, W, gas, mb = c["T"], c["P"], c["n"], c["world"], c["gas"], c["mb"]
    model = make(c["seed"], eos=0.3 if c["stop"] else 0.6)
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.03)
    critic = make(c["seed"] + 1, value=True) if c["est"] == "gae" else None
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    copt = torch.optim.AdamW(critic.parameters(), lr=1e-2) if critic else None
    gen = torch.Generator().manual_seed(c["seed"])
    args = NS(
        rollout=NS(n_samples_per_prompt=c["gens"]),
        algo=NS(advantage=NS(estimator=c["est"], gamma=c["gamma"], lambd=c["lam"], no_std_norm=c["no_std"])),
        reward=NS(clip_range=c["rclip"], stop_properly_penalty_coef=c["stop"], overlong_buffer_len=None),
    )
    maker = NS(strategy=NS(args=args), kl_ctl=NS(value=0.0 if c["use_loss"] else c["kl"]), advantage_estimator=c["est"])
    maker.get_advantages_and_returns = lambda *a: f["get_advantages_and_returns"](maker, *a)
    maker.get_cumulative_returns = lambda *a: f["get_cumulative_returns"](maker, *a)
    lossfn = f["PolicyLoss"](
        *c["clip"],
        dual_clip=c["dual"],
        token_level_loss=True,
        is_correction_level=c["is_level"],
        is_correction_mode=c["is_mode"],
        is_correction_threshold=list(c["is_th"]),
    )
    vlossfn = f["ValueLoss"](c["vclip"])
    step = 0
    for ro in range(c["rollouts"]):
        pid, patt = prompts(n // c["gens"], P, gen)
        pid, patt = pid.repeat_interleave(c["gens"], 0), patt.repeat_interleave(c["gens"], 0)
        ids, att, am, samp = generate(copy.deepcopy(model).bfloat16(), pid, patt, T, gen, c["temp"])
        resp = ids[:, P:]
        ended = (resp == EOS).any(1)
        with torch.no_grad():
            old = logps(model, ids, att, T, c["temp"])
            base = logps(ref, ids, att, T, c["temp"])
            val = critic.values(ids, att)[:, -T - 1 : -1] if critic else None
            if bug == "values_of_last":
                val = critic.values(ids, att)[:, -T:]
            if bug == "old_from_engine":
                old = samp
        raw = reward(resp, am)[0] + (0.3 if c["stop"] else 0)
        if bug == "reward_reordered":
            raw_used = raw.flip(0)
        else:
            raw_used = raw
        kl = f["compute_approx_kl"](old, base if bug != "kl_to_engine" else samp, kl_estimator=c["klest"])
        exps = []
        for i in range(0, n, mb):
            s = slice(i, i + mb)
            exps.append(
                NS(
                    index=list(range(i, i + mb)),
                    rewards=raw_used[s].clone(),
                    kl=kl[s],
                    action_mask=am[s],
                    values=val[s] if critic else None,
                    truncated=~ended[s],
                    info={},
                )
            )
        with torch.no_grad():
            f["compute_advantages_and_returns"](maker, exps)
        adv, ret = torch.cat([e.advantages for e in exps]), torch.cat([e.returns for e in exps])
        rows = dict(
            ids=ids,
            att=att,
            am=am,
            old=old,
            base=base,
            samp=samp,
            adv=adv,
            ret=ret,
            raw=raw,
            gid=torch.arange(n) // c["gens"] + 100 * ro,
            sid=torch.arange(n) + 1000 * ro,
        )
        if critic:
            rows["val"] = val
        opt_rows = W * gas * mb
        for ep in range(c["epochs"]):
            perm = torch.randperm(n, generator=gen)
            for b in range(n // opt_rows):
                idx = perm[b * opt_rows : (b + 1) * opt_rows].view(W, gas, mb)
                opt.zero_grad()
                if critic:
                    copt.zero_grad()
                tokens = rows["am"][idx.flatten()].sum().float()
                for r in range(W):
                    for g in range(gas):
                        x = {k: v[idx[r, g]] for k, v in rows.items()}
                        info = dict(dp_size=W, batch_num_tokens=tokens / gas, global_batch_size=torch.tensor(float(opt_rows)) / gas)
                        if bug == "tokens_of_micro":
                            info["batch_num_tokens"] = x["am"].sum()
                        if bug == "tokens_not_over_gas":
                            info["batch_num_tokens"] = tokens
                        if bug == "dp_lost":
                            info["dp_size"] = 1
                        training_step(root, c, bug, f, lossfn, vlossfn, model, critic, x, info, step, r, g, tokens)
                for m in (model, critic):
                    if m:
                        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                if copt:
                    copt.step()
                step += 1


def training_step(root, c, bug, f, lossfn, vlossfn, model, critic, x, info, step, r, g, tokens):
    T, gas, am = c["T"], c["gas"], x["am"]
    lp, ent = logps(model, x["ids"], x["att"], T, c["temp"] if bug != "train_no_temp" else 1.0, True)
    adv = x["adv"]
    pg, clip_ratio, ppo_kl, vkl, _ = lossfn(lp, x["old"], adv, action_mask=am, rollout_log_probs=x["samp"], **info)
    loss, kll = pg, None
    if c["use_loss"]:
        kl = f["compute_approx_kl"](lp, x["base"], log_probs_old=x["old"], kl_estimator=c["klest"], unbiased_gradient=c["unbiased"])
        if bug == "kl_loss_detached":
            kl = kl.detach()
        kll = f["aggregate_loss"](kl, am, **info)
        loss = loss + kll * (c["kl"] if bug != "kl_coef_twice" else c["kl"] ** 2)
    el = None
    if c["ent"] is not None:
        el = f["aggregate_loss"](ent, am, **info)
        loss = loss - el * c["ent"] if bug != "entropy_added" else loss + el * c["ent"]
    back = loss / gas  # DeepSpeed's engine
    (dl,) = torch.autograd.grad(back, lp, retain_graph=True)
    (back / c["world"]).backward()
    t = dict(
        input_ids=x["ids"],
        attention_mask=x["att"],
        response_ids=x["ids"][:, -T:],
        response_mask=am,
        logp_new=lp,
        logp_old=x["old"],
        logp_gen=x["samp"],
        logp_ref=x["base"],
        advantages=adv,
        scores=x["raw"],
        loss=back,
        pg_loss=pg / gas,
        sample_id=x["sid"],
        dlogp=dl if c["grads"] else None,
        returns=x["ret"] if critic else None,
    )
    if c["gens"] > 1:
        t["group_id"] = x["gid"]
    if kll is not None:
        t["kl_loss"] = kll / gas
    if el is not None:
        t |= dict(entropy=ent, entropy_loss=el / gas)
    o = {
        "actor.eps_clip_low_high": list(c["clip"]),
        "actor.dual_clip": c["dual"],
        "actor.policy_loss_type": "ppo",
        "actor.entropy_coef": c["ent"],
        "actor.loss_agg_mode": "token-mean",
        "algo.advantage.gamma": c["gamma"],
        "algo.advantage.lambd": c["lam"],
        "algo.advantage.estimator": c["est"],
        "algo.advantage.no_std_norm": c["no_std"],
        "algo.advantage.is_correction_level": c["is_level"],
        "algo.advantage.is_correction_mode": c["is_mode"],
        "algo.advantage.is_correction_gating": "ratio",
        "algo.advantage.is_correction_threshold": list(c["is_th"]),
        "algo.kl.init_coef": c["kl"],
        "algo.kl.estimator": c["klest"],
        "algo.kl.use_loss": c["use_loss"],
        "algo.kl.unbiased_gradient": c["unbiased"],
        "reward.clip_range": list(c["rclip"]),
        "reward.stop_properly_penalty_coef": c["stop"],
        "rollout.n_samples_per_prompt": c["gens"],
        "rollout.temperature": c["temp"],
        "train.max_epochs": c["epochs"],
        "eos.test": "eos_id",
        "num_items_in_batch": tokens.item(),
        "agg.denominator": "global",
        "kl.beta": c["kl"],
        "eos_token_id": EOS,
        "num_mini_batches": c["n"] // (c["world"] * gas * c["mb"]),
    }
    if critic:
        vp = critic.values(x["ids"], x["att"])[:, -T - 1 : -1]
        ret = x["ret"] if bug != "target_is_adv" else x["adv"]
        vl = vlossfn(vp, x["val"] if bug != "vclip_around_new" else vp.detach(), ret, action_mask=am, **info) / gas
        (dv,) = torch.autograd.grad(vl, vp, retain_graph=True)
        (vl / c["world"]).backward()
        t |= dict(values=x["val"], values_new=vp, value_loss=vl, dvalues=dv)
        o["critic.value_clip"] = c["vclip"]
    write(
        root,
        step + 1,
        r,
        g,
        t,
        dict(
            schema=2,
            framework="openrlhf",
            version="0.11.2",
            algorithm="ppo" if critic else "grpo",
            run="c3",
            world_size=c["world"],
            micro_batches=gas,
            options=o,
            token_loss_includes_kl=False,
            scalars={"ppo_clip_ratio": clip_ratio, "ppo_kl": ppo_kl},
            scalars_scope="micro_batch",
        ),
    )


A, B, C, D = HEALTHY
BUGS = {
    "b_whiten_unmasked": (A, "whiten_unmasked", "mean and variance of the advantages are divided by all cells, padding included"),
    "b_kl_positive": (A, "kl_positive", "KL is a bonus in the token rewards"),
    "b_next_values_same": (A, "next_values_same", "GAE bootstraps with the value of the same token"),
    "b_gae_no_lambda": (A, "gae_no_lambda", "lambda is left out of the recursion"),
    "b_vclip_min": (A, "vclip_min", "the smaller of the two value losses is taken"),
    "b_vclip_sign": (A, "vclip_sign", "the clipped value moves to the wrong side of the old one"),
    "b_target_is_adv": (A, "target_is_adv", "the critic is fitted to the whitened advantages"),
    "b_values_of_last": (A, "values_of_last", "values of the rollout are taken one token too late"),
    "b_tokens_not_over_gas": (
        A,
        "tokens_not_over_gas",
        "the global token count is not divided by the accumulation steps, the engine divides again: half the gradient",
    ),
    "b_eos_index_forward": (B, "eos_index_forward", "the score is given to the first token"),
    "b_stop_adds": (B, "stop_adds", "the coefficient of stop_properly is subtracted, not multiplied"),
    "b_stop_wrong_rows": (B, "stop_wrong_rows", "the rows that ended properly are penalised"),
    "b_return_gamma_lost": (B, "return_gamma_lost", "returns are not discounted"),
    "b_dp_lost": (B, "dp_lost", "the loss is not multiplied by the data-parallel size"),
    "b_train_no_temp": (B, "train_no_temp", "the temperature is not applied in the training pass"),
    "b_kl_to_engine": (B, "kl_to_engine", "the KL of the reward is against the engine's log-probs, not the reference's"),
    "b_k3_sign": (C, "k3_sign", "k3 of the wrong sign of the log-ratio"),
    "b_rb_batch_mean": (C, "rb_batch_mean", "reinforce_baseline subtracts the mean over prompts at the same index in place of the group's"),
    "b_is_mask_not_clip": (C, "is_mask_not_clip", "is_correction_mode=clip zeroes tokens outside the bounds"),
    "b_is_of_engine": (C, "is_of_engine", "IS ratio is upside down"),
    "b_kl_loss_detached": (C, "kl_loss_detached", "the KL loss is detached"),
    "b_kl_coef_twice": (C, "kl_coef_twice", "the KL coefficient is applied twice"),
    "b_entropy_added": (C, "entropy_added", "entropy is a penalty"),
    "b_dual_sign": (C, "dual_sign", "dual clip takes the minimum: the loss of negative advantages is at least c times A"),
    "b_rloo_keeps_own": (D, "rloo_keeps_own", "the leave-one-out baseline sums the own reward, too"),
    "b_reward_reordered": (D, "reward_reordered", "rewards come back from the remote reward model in reversed order"),
    "b_clip_hi_for_lo": (D, "clip_hi_for_lo", "clip bounds swapped"),
    "b_ratio_no_exp": (D, "ratio_no_exp", "the ratio is 1 + log-ratio, exp is missing"),
    "b_tokens_of_micro": (D, "tokens_of_micro", "every micro-batch is divided by its own tokens (times the data-parallel size)"),
}
if __name__ == "__main__":
    main("c3_orlhf", run, HEALTHY, BUGS)
