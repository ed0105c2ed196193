"""verl 0.9.1 through its own functions (core_algos, cut out of the released source), the loop of its actor: rollout batch -> ranks -> mini-batches -> micro-batches, several epochs.
The hook dumps everything: log-probs of engine, trainer and reference, kl, entropy, token_loss, losses, dlogp, logged numbers; where opt=1 gradients, weights and updates, too."""

from world_d import *
import ast, types, numpy as np
from collections import defaultdict
from typing import Any, Optional, Callable

VERL = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/")
CORE, TF = VERL + "trainer/ppo/core_algos.py", VERL + "utils/torch_functional.py"
PATCHES = []


class AlgoConfig:
    pass


class ActorConfig(types.SimpleNamespace):
    def get(self, k, d=None):
        return getattr(self, k, d)


def cut(path, names, ns):
    s = open(path).read()
    for n in ast.parse(s).body:
        if isinstance(n, ast.FunctionDef) and n.name in names:
            f = ast.get_source_segment(s, n)
            for where, old, new in PATCHES:
                if where == n.name:
                    assert f.count(old) == 1, (where, f.count(old))
                    f = f.replace(old, new)
            exec(f, ns)


ns = dict(
    torch=torch, np=np, Any=Any, Optional=Optional, Callable=Callable, defaultdict=defaultdict, AlgoConfig=AlgoConfig, ActorConfig=ActorConfig, DictConfig=dict
)
vf = dict(torch=torch)
cut(TF, ["masked_sum", "masked_mean", "entropy_from_logits"], vf)
ns["verl_F"] = types.SimpleNamespace(**{k: vf[k] for k in ("masked_sum", "masked_mean")})
cut(
    CORE,
    [
        "agg_loss",
        "compute_policy_loss_vanilla",
        "compute_policy_loss_gspo",
        "compute_policy_loss_geo_mean",
        "compute_policy_loss_cispo",
        "kl_penalty",
        "kl_penalty_forward",
        "compute_grpo_outcome_advantage",
        "compute_rloo_outcome_advantage",
    ],
    ns,
)
agg_loss, kl_penalty = ns["agg_loss"], ns["kl_penalty"]
held = {}


def spy(**k):
    held["loss_mat"] = k["loss_mat"]
    return agg_loss(**k)


ns["agg_loss"] = spy


def forward(model, full, T, temp):
    x = model(full)[:, :-1][:, -T:] / temp
    held["logits"] = x * temp
    return F.log_softmax(x, -1).gather(-1, full[:, -T:, None])[..., 0], vf["entropy_from_logits"](x)


def train(c, out):
    W, G, T, P, N, mini, micro = c["W"], c["G"], c["T"], 6, c["N"], c["mini"], c["micro"]
    g = torch.Generator().manual_seed(c["seed"])
    model = LM()
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=g))
        model.emb.weight[PAD] = 0
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.01)
    cfg = ActorConfig(
        clip_ratio=0.2,
        clip_ratio_low=c["low"],
        clip_ratio_high=c["high"],
        clip_ratio_c=c["c"],
        loss_agg_mode=c["agg"],
        loss_scale_factor=c["scale"],
        entropy_coeff=c["ent"],
        use_kl_loss=c["klc"] > 0,
        kl_loss_coef=c["klc"],
        kl_loss_type=c["klt"],
    )
    options = (
        {k: v for k, v in vars(cfg).items()}
        | dict(
            loss_mode=c["mode"],
            adv_estimator=c["est"],
            norm_adv_by_std_in_grpo=c["std"],
            ppo_epochs=c["epochs"],
            num_mini_batches=N // mini,
            temperature=c["temp"],
            use_kl_in_reward=False,
            lr=c["lr"],
            eos_token_id=EOS,
        )
        | {"agg.denominator": "global"}
    )
    if c["tis"]:
        options |= dict(rollout_is="token", rollout_is_threshold=c["tis"])
    step = 0
    dump = Dump(out, framework="verl", version="0.9.1", algorithm="grpo", world_size=W, micro_batches=mini // W // micro, token_loss_includes_kl=False)
    for roll in range(c["rolls"]):
        prompts = make_prompts(N // G, P, g).repeat_interleave(G, 0)
        with torch.no_grad():
            engine = engine_copy(model)
            ids, _, alive = sample(engine, prompts, T, c["temp"], g)
            mask = alive.clone()
            if c["holes"]:
                for i in range(N):
                    n = int(alive[i].sum())
                    if n >= 8 and i % 3:
                        s = int(torch.randint(1, n - 5, (1,), generator=g))
                        k = int(torch.randint(1, 4, (1,), generator=g))
                        ids[i, s : s + k] = torch.randint(2, V, (k,), generator=g)
                        mask[i, s : s + k] = False
            full = torch.cat([prompts, ids], 1)
            gen_lp, _ = forward(engine, full, T, c["temp"])
            old, _ = forward(model, full, T, c["temp"])
            ref_lp, _ = forward(ref, full, T, c["temp"])
            gen_lp = gen_lp * mask  # the engine gives 0 where it has not sampled
            response_mask = mask.long()
            reward = reward_fns(ids, mask, g).sum(1)
            last = alive.sum(1) - 1
            token_level_scores = torch.zeros(N, T)
            token_level_scores[torch.arange(N), last] = reward
            uid = np.arange(N) // G + roll * 1000
            if c["est"] == "grpo":
                adv, _ = ns["compute_grpo_outcome_advantage"](token_level_scores.clone(), response_mask, uid, norm_adv_by_std_in_grpo=c["std"])
            else:
                adv, _ = ns["compute_rloo_outcome_advantage"](token_level_scores.clone(), response_mask, uid)
            isw = None
            if c["tis"]:
                isw = torch.exp((old - gen_lp).clamp(-20, 20)) * response_mask
                isw = isw.clamp(max=c["tis"])
        batch = dict(
            full=full,
            mask=response_mask,
            gen=gen_lp,
            old=old,
            ref=ref_lp,
            adv=adv,
            rew=token_level_scores,
            scores=reward,
            gid=torch.tensor(uid),
            sid=torch.arange(N) + 1000 * roll,
        ) | ({"isw": isw} if isw is not None else {})
        perm = torch.randperm(N, generator=g)
        batch = {k: x[perm] for k, x in batch.items()}
        for epoch in range(c["epochs"]):
            for m in range(N // mini):
                step += 1
                opt.zero_grad()
                per = mini // W
                rows = [slice(r * N // W + m * per, r * N // W + (m + 1) * per) for r in range(W)]
                tokens = sum(int(batch["mask"][s].sum()) for s in rows)
                late = []
                for r in range(W):
                    for i in range(per // micro):
                        lo = rows[r].start + i * micro
                        x = {k: v[lo : lo + micro] for k, v in batch.items()}
                        cfg.global_batch_info = dict(dp_size=W, batch_num_tokens=tokens, global_batch_size=mini, loss_scale_factor=c["scale"])
                        rmask = x["mask"].bool()
                        log_prob, entropy = forward(model, x["full"], T, c["temp"])
                        held.pop("loss_mat", None)
                        pg_loss, metrics = ns["compute_policy_loss_" + c["mode"]](
                            old_log_prob=x["old"],
                            log_prob=log_prob,
                            advantages=x["adv"],
                            response_mask=rmask,
                            loss_agg_mode=c["agg"],
                            config=cfg,
                            rollout_is_weights=x.get("isw"),
                        )
                        policy_loss = pg_loss
                        entropy_loss = agg_loss(loss_mat=entropy, loss_mask=rmask, loss_agg_mode=c["agg"], **cfg.global_batch_info)
                        policy_loss = policy_loss - c["ent"] * entropy_loss
                        kld = kl_loss = None
                        if cfg.use_kl_loss:
                            kld = kl_penalty(logprob=log_prob, ref_logprob=x["ref"], kl_penalty=c["klt"])
                            kl_loss = agg_loss(loss_mat=kld, loss_mask=rmask, loss_agg_mode=c["agg"], **cfg.global_batch_info)
                            policy_loss = policy_loss + kl_loss * c["klc"]
                            metrics["kl_loss"] = kl_loss.item()
                        metrics["actor/pg_loss"] = pg_loss.item()
                        (dlogp,) = torch.autograd.grad(policy_loss, log_prob, retain_graph=True)
                        (policy_loss / W).backward()
                        t = dict(
                            response_mask=x["mask"],
                            response_ids=x["full"][:, -T:],
                            input_ids=x["full"],
                            logp_new=log_prob,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            logp_ref=x["ref"] if cfg.use_kl_loss else None,
                            advantages=x["adv"],
                            token_rewards=x["rew"],
                            scores=x["scores"],
                            group_id=x["gid"],
                            sample_id=x["sid"],
                            entropy=entropy,
                            entropy_loss=entropy_loss,
                            kl=kld,
                            kl_loss=kl_loss,
                            pg_loss=pg_loss,
                            loss=policy_loss,
                            dlogp=dlogp,
                            token_loss=held.get("loss_mat"),
                            is_weights=x.get("isw"),
                            logits=held["logits"] if c["opt"] else None,
                        )
                        late.append((t, r, i, metrics))
                named = list(model.named_parameters())
                before = {n: p.detach().clone() for n, p in named}
                grads = {n: p.grad.clone() for n, p in named}
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                if c["opt"]:
                    late[-1][0].update(
                        {f"grad/{n}": x for n, x in grads.items()}
                        | {f"weights/{n}": w for n, w in before.items()}
                        | {f"update/{n}": p.detach() - before[n] for n, p in named}
                    )
                for t, r, i, metrics in late:
                    dump(t, step, r, i, scalars=metrics, scalars_scope="micro_batch", options=options | dict(num_items_in_batch=tokens))


# ==== cases
D = dict(
    W=1,
    N=32,
    G=4,
    T=24,
    mini=16,
    micro=8,
    epochs=2,
    rolls=2,
    low=0.2,
    high=0.28,
    c=3.0,
    agg="token-mean",
    scale=None,
    ent=0.0,
    klc=0.05,
    klt="low_var_kl",
    mode="vanilla",
    est="grpo",
    std=True,
    temp=1.0,
    tis=None,
    holes=True,
    lr=5e-3,
    opt=0,
    seed=21,
)
H = {
    "h_vanilla_k3_clip_higher_adamw": (D | dict(opt=1), []),
    "h_drgrpo_two_ranks": (D | dict(std=False, W=2, agg="seq-mean-token-sum-norm", scale=24, klc=0.0, mini=16, micro=4, c=1.5, lr=1e-2, seed=22), []),
    "h_gspo_k2_entropy": (D | dict(mode="gspo", agg="seq-mean-token-mean", low=0.02, high=0.03, klt="k2", ent=0.01, temp=0.8, T=40, seed=23), []),
    "h_cispo_tis_abs": (D | dict(mode="cispo", tis=2.0, klt="abs", W=2, micro=8, klc=0.1, seed=24), []),
    "h_geomean_rloo_k1": (
        D | dict(mode="geo_mean", est="rloo", agg="seq-mean-token-mean", klt="k1", low=0.1, high=0.15, mini=8, micro=8, holes=False, lr=1e-2, seed=25),
        [],
    ),
}
h1, h2, h3, h4, h5 = H
P = lambda where, old, new: f"PATCHES = [({where!r}, {old!r}, {new!r})]"
B = [
    (
        "b_hole_in_mask",
        h1,
        "response_mask = mask.long()",
        "response_mask = alive.long()",
        "tool tokens between the turns are trained on: the mask is the attention mask",
    ),
    (
        "b_micro_tokens",
        h1,
        "batch_num_tokens=tokens",
        "batch_num_tokens=int(x['mask'].sum())",
        "token-mean divides by the tokens of the micro-batch, so the sum over micro-batches is twice too large",
    ),
    (
        "b_dual_clip_all",
        h2,
        "PATCHES = []",
        P("compute_policy_loss_vanilla", "torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)", "clip_pg_losses2"),
        "the dual clip's minimum is taken for positive advantages too, where -A*c is the smaller: they lose their gradient",
    ),
    (
        "b_clip_sides",
        h1,
        'clip_ratio_low=c["low"], clip_ratio_high=c["high"], clip_ratio_c',
        'clip_ratio_low=c["high"], clip_ratio_high=c["low"], clip_ratio_c',
        "low and high clip ratio are handed over in the wrong order",
    ),
    (
        "b_kl_reversed",
        h1,
        'kl_penalty(logprob=log_prob, ref_logprob=x["ref"]',
        'kl_penalty(logprob=x["ref"], ref_logprob=log_prob',
        "k3 of the wrong direction: policy and reference are swapped",
    ),
    (
        "b_kl_old_for_ref",
        h3,
        'kl_penalty(logprob=log_prob, ref_logprob=x["ref"]',
        'kl_penalty(logprob=log_prob, ref_logprob=x["old"]',
        "the KL term is against the old policy and not the reference",
    ),
    ("b_kl_detached", h1, "kl_penalty(logprob=log_prob,", "kl_penalty(logprob=log_prob.detach(),", "the KL term is detached and gives no gradient"),
    ("b_entropy_sign", h3, 'policy_loss - c["ent"] * entropy_loss', 'policy_loss + c["ent"] * entropy_loss', "the entropy bonus is a penalty"),
    (
        "b_gspo_not_detached",
        h3,
        "PATCHES = []",
        P(
            "compute_policy_loss_gspo",
            "log_prob - log_prob.detach() + negative_approx_kl_seq.detach().unsqueeze(-1)",
            "log_prob.detach() - log_prob.detach() + negative_approx_kl_seq.detach().unsqueeze(-1)",
        ),
        "the straight-through term is detached, the policy has no gradient",
    ),
    (
        "b_gspo_padded_length",
        h3,
        "PATCHES = []",
        P("compute_policy_loss_gspo", "torch.sum(response_mask, dim=-1).clamp(min=1)", "response_mask.shape[-1]"),
        "GSPO's log-ratio is divided by the padded width and not the length",
    ),
    (
        "b_cispo_grad_through_ratio",
        h4,
        "PATCHES = []",
        P("compute_policy_loss_cispo", "clipped_ratio.detach()", "clipped_ratio"),
        "the clipped weight of CISPO is not detached: the gradient has an extra term",
    ),
    ("b_tis_inverted", h4, "torch.exp((old - gen_lp)", "torch.exp((gen_lp - old)", "the importance weights are engine over trainer, upside down"),
    (
        "b_old_from_engine_ratio",
        h1,
        'compute_policy_loss_" + c["mode"]](old_log_prob=x["old"]',
        'compute_policy_loss_" + c["mode"]](old_log_prob=x["gen"]',
        "the ratio is to the engine's log-probs, the declared old log-probs are unused",
    ),
    (
        "b_score_at_row_end",
        h2,
        ["last = alive.sum(1) - 1", "token_level_scores[torch.arange(N), last] = reward"],
        ["last = torch.full((N,), T - 1)", "token_level_scores[torch.arange(N), last] = reward; token_level_scores *= response_mask"],
        "the reward is put into the last column and masked away for all responses that end before it",
    ),
    (
        "b_uid_modulo",
        h1,
        "uid = np.arange(N) // G",
        "uid = np.arange(N) % (N // G)",
        "uids are made with modulo although the batch is repeated interleaved: groups mix prompts",
    ),
    (
        "b_rloo_no_correction",
        h5,
        "PATCHES = []",
        P(
            "compute_rloo_outcome_advantage",
            "scores[i] = scores[i] * response_num / (response_num - 1) - id2mean[index[i]] * response_num / (\n                    response_num - 1\n                )",
            "scores[i] = scores[i] - id2mean[index[i]] * response_num / (response_num - 1)",
        ),
        "the leave-one-out formula scales the mean but not the own score",
    ),
    (
        "b_geo_abs_len",
        h5,
        "PATCHES = []",
        P(
            "compute_policy_loss_geo_mean",
            "negative_approx_kl_min = sgn_advantage * negative_approx_kl_min\n",
            "negative_approx_kl_min = negative_approx_kl_min + 0\n",
        ),
        "the sign is not taken back after the minimum: negative advantages get the inverse ratio",
    ),
    (
        "b_dp_unscaled",
        h2,
        "dp_size=W,",
        "dp_size=1,",
        "the loss is not multiplied by the number of ranks before the average of gradients: everything is halved",
    ),
    (
        "b_opt_wd_l2",
        h1,
        'torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.01)',
        'torch.optim.Adam(model.parameters(), lr=c["lr"], weight_decay=0.1)',
        "Adam with weight decay in the gradient in place of the decoupled decay",
    ),
    (
        "b_grad_accum_lost",
        h1,
        "                        (policy_loss / W).backward()",
        "                        opt.zero_grad(); (policy_loss / W).backward()",
        "zero_grad inside the micro-batch loop: only the last micro-batch trains",
    ),
]
if __name__ == "__main__":
    main("d2_verl", __file__, H, B)
