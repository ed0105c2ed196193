"""GRPO in the style of NeMo-RL (ClippedPGLossFn, leave-one-out baseline), framework not named, options in plumbline's words.
dump="all": engine, old, new, reference log-probs, kl, token_loss, is_weights, losses, dlogp, scalars; dump="mid": without token_loss, kl, dlogp."""

from world_d import *


def masked_mean(x, mask, dim=None, norm=None):
    n = mask.sum(dim) if norm is None else norm
    return (x * mask).sum(dim) / (n + 1e-8)


def calculate_kl(lp, ref, kind):
    logr = (ref - lp).clamp(-20.0, 20.0)
    if kind == "k1":
        kl = -logr
    elif kind == "k2":
        kl = logr.square() / 2
    else:
        kl = torch.exp(logr) - 1 - logr
    return kl.clamp(-10.0, 10.0)


def baseline_and_std(rewards, G, loo):
    r = rewards.view(-1, G)
    n = G - 1
    if loo:
        eye = 1 - torch.eye(G)
        mean = r @ eye / n
        sq = (r * r) @ eye / n
        var = (sq - mean**2).clamp(min=0) * n / (n - 1)
    else:
        mean = r.mean(1, keepdim=True).expand_as(r)
        var = r.var(1, keepdim=True).expand_as(r)
    return mean.reshape(-1), var.sqrt().reshape(-1)


def logprobs(model, full, T, c):
    x = model(full)[:, :-1][:, -T:]
    if c["bf16"]:
        x = x.bfloat16()
    x = x.float() / c["temp"]
    return F.log_softmax(x, -1).gather(-1, full[:, -T:, None])[..., 0]


def train(c, out):
    W, N, G, T, gbs, micro = c["W"], c["N"], c["G"], c["T"], c["gbs"], c["micro"]
    g = torch.Generator().manual_seed(c["seed"])
    model = LM()
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=g))
        model.emb.weight[PAD] = 0
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.01)
    options = {
        "clip.low": c["low"],
        "clip.high": c["high"],
        "clip.dual": c["dual"],
        "kl.kind": c["klt"],
        "kl.beta": c["beta"],
        "kl.place": "loss" if c["beta"] else "none",
        "kl.grad": "naive",
        "kl.clamp_in": 20,
        "kl.clamp_out": 10,
        "kl.clamp_applies_to_k1": True,
        "kl.agg": "same",
        "agg.kind": "token" if c["token"] else "seq_mean_token_mean",
        "agg.denominator": "global",
        "agg.empty_rows": "excluded",
        "agg.len_eps": 1e-8,
        "mean.eps": 1e-8,
        "adv.kind": "group",
        "adv.center": "loo" if c["loo"] else "mean",
        "adv.scale": ("loo_std" if c["loo"] else "group_std") if c["norm"] else "none",
        "adv.ddof": 1,
        "adv.eps": 1e-6,
        "adv.zero_std": "skip",
        "ratio.level": "seq_mean" if c["seqratio"] else "token",
        "ratio.old": "stored",
        "ratio.grad": "row",
        "ratio.len_eps": 1e-8,
        "loss.kind": "ppo",
        "logp.temperature": c["temp"],
        "tis.level": c["tis"],
        "tis.high": c["tis_high"],
        "tis.rule": "truncate_upper",
        "kl.under_is_weight": "outside",
        "num_mini_batches": N // gbs,
        "eos_token_id": EOS,
        "num_generations": G,
        "mask_truncated_completions": c["overlong"],
        "entropy.coef": 0,
    }
    if c["tis"] == "none":
        options = {k: v for k, v in options.items() if k not in ("tis.high", "tis.rule", "kl.under_is_weight")}
    dump = Dump(out, algorithm="grpo", world_size=W, micro_batches=gbs // W // micro, token_loss_includes_kl=False)
    step = 0
    for roll in range(c["rolls"]):
        prompts = make_prompts(N // G, 6, g).repeat_interleave(G, 0)
        with torch.no_grad():
            engine = copy.deepcopy(model)
            for p in engine.parameters():
                p.copy_(p.to(torch.float8_e4m3fn).float())
            ids, gen_lp, token_mask = sample(engine, prompts, T, c["temp"], g)
            full = torch.cat([prompts, ids], 1)
            old = logprobs(model, full, T, c)
            ref_lp = logprobs(ref, full, T, c)
            rewards = reward_fns(ids, token_mask, g).sum(1)
            base, std = baseline_and_std(rewards, G, c["loo"])
            advantages = rewards - base
            if c["norm"]:
                ok = std > 0
                advantages[ok] = advantages[ok] / (std[ok] + 1e-6)
            sample_mask = torch.ones(N)
            if c["overlong"]:
                sample_mask = ((ids == EOS) & token_mask).any(1).float()
        gid = torch.arange(N) // G + roll * 1000
        sid = torch.arange(N) + roll * 1000
        perm = torch.randperm(N, generator=g)
        D_ = dict(
            full=full,
            tm=token_mask.float(),
            sm=sample_mask,
            old=old,
            gen=gen_lp,
            ref=ref_lp,
            adv=advantages[:, None].expand(N, T).clone(),
            scores=rewards,
            gid=gid,
            sid=sid,
        )
        D_ = {k: v[perm] for k, v in D_.items()}
        for epoch in range(c["epochs"]):
            for m in range(N // gbs):
                step += 1
                opt.zero_grad()
                B_ = {k: v[m * gbs : (m + 1) * gbs] for k, v in D_.items()}
                global_valid_seqs = B_["sm"].sum()
                global_valid_toks = (B_["tm"] * B_["sm"][:, None]).sum()
                per = gbs // W
                for r in range(W):
                    for i in range(per // micro):
                        lo = r * per + i * micro
                        x = {k: v[lo : lo + micro] for k, v in B_.items()}
                        mask = x["tm"] * x["sm"][:, None]
                        lp = logprobs(model, x["full"], T, c)
                        kl = None
                        kl_term = torch.tensor(0.0)
                        log_ratios = lp - x["old"]
                        if c["seqratio"]:
                            log_ratios = masked_mean(log_ratios, x["tm"], dim=-1).unsqueeze(-1).expand_as(log_ratios)
                        ratios = log_ratios.exp()
                        clamped = ratios.clamp(1.0 - c["low"], 1.0 + c["high"])
                        loss1 = -x["adv"] * ratios
                        loss2 = -x["adv"] * clamped
                        clip_loss = torch.max(loss1, loss2)
                        if c["dual"] is not None:
                            loss3 = -x["adv"] * c["dual"]
                            clip_loss = torch.where(x["adv"] < 0, torch.min(clip_loss, loss3), clip_loss)
                        w = None
                        if c["tis"] != "none":
                            diff = x["old"] - x["gen"]
                            if c["tis"] == "seq_sum":
                                diff = (diff * x["tm"]).sum(-1, keepdim=True).expand_as(diff)
                            w = torch.nan_to_num(torch.exp(diff), nan=0.0, posinf=0.0, neginf=0.0).detach()
                            w = torch.clamp(w, max=c["tis_high"])
                        weighted = clip_loss if w is None else w * clip_loss

                        def reduce(y):
                            if c["token"]:
                                return masked_mean(y, mask, norm=global_valid_toks)
                            return masked_mean(masked_mean(y, x["tm"], dim=-1), x["sm"], norm=global_valid_seqs)

                        actor_loss = reduce(weighted)
                        if c["beta"]:
                            kl = calculate_kl(lp, x["ref"], c["klt"])
                            kl_term = reduce(kl) * c["beta"]
                        loss = actor_loss + kl_term
                        loss = loss * W
                        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        t = dict(
                            response_mask=mask.bool(),
                            logp_new=lp,
                            logp_old=x["old"],
                            logp_gen=x["gen"],
                            logp_ref=x["ref"] if c["beta"] else None,
                            advantages=x["adv"],
                            scores=x["scores"],
                            group_id=x["gid"],
                            sample_id=x["sid"],
                            loss=loss,
                            response_ids=x["full"][:, -T:],
                        )
                        if c["dump"] == "all":
                            t |= dict(dlogp=dlogp, token_loss=weighted, kl=kl, is_weights=w, input_ids=x["full"])
                        dump(
                            t,
                            step,
                            r,
                            i,
                            scalars={"probs_ratio_clamped_mean": float(masked_mean(clamped, mask))},
                            scalars_scope="micro_batch",
                            options=options | {"num_items_in_batch": int(global_valid_toks)},
                        )
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()


# ==== cases
D = dict(
    W=1,
    N=32,
    G=8,
    T=28,
    gbs=16,
    micro=16,
    epochs=2,
    rolls=2,
    low=0.2,
    high=0.28,
    dual=None,
    klt="k3",
    beta=0.05,
    token=True,
    norm=True,
    loo=True,
    seqratio=False,
    tis="none",
    tis_high=None,
    overlong=False,
    temp=1.0,
    bf16=False,
    lr=6e-3,
    dump="all",
    seed=31,
)
H = {
    "h_token_loo_std": (D, []),
    "h_gspo_sequence": (D | dict(token=False, seqratio=True, low=0.02, high=0.03, norm=False, klt="k2", micro=8, seed=32), []),
    "h_tis_overlong_two_ranks": (D | dict(tis="token", tis_high=1.2, overlong=True, W=2, micro=8, T=16, G=4, seed=33), []),
    "h_dual_k1_mean": (D | dict(dual=1.5, klt="k1", loo=False, beta=0.02, temp=0.8, lr=1e-2, epochs=3, dump="mid", seed=34), []),
    "h_bf16_seqtis": (D | dict(bf16=True, tis="seq_sum", tis_high=2.0, beta=0.0, token=False, W=2, micro=4, dump="all", seed=35), []),
}
h1, h2, h3, h4, h5 = H
B = [
    ("b_loo_std_mean", h1, "mean = r @ eye / n\n", "mean = r @ eye / G\n", "the leave-one-out mean divides by the group's size"),
    ("b_std_zero_bessel", h1, "* n / (n - 1)", "", "the σ of the others lacks Bessel's correction"),
    (
        "b_norm_twice",
        h1,
        "                advantages[ok] = advantages[ok] / (std[ok] + 1e-6)",
        "                advantages[ok] = advantages[ok] / (std[ok] + 1e-6) / (std[ok] + 1e-6)",
        "advantages are divided by σ twice",
    ),
    ("b_baseline_unmatched", h4, "advantages = rewards - base", "advantages = rewards - base.roll(1)", "baselines are shifted by one row against the rewards"),
    (
        "b_micro_norm",
        h2,
        "norm=global_valid_seqs)",
        'norm=x["sm"].sum())',
        "the sequence mean is over the micro-batch, not the global batch: accumulated gradients are too large",
    ),
    (
        "b_global_counts_filtered",
        h3,
        'global_valid_toks = (B_["tm"] * B_["sm"][:, None]).sum()',
        'global_valid_toks = B_["tm"].sum()',
        "overlong samples are filtered from the loss but counted in its denominator",
    ),
    (
        "b_overlong_inverted",
        h3,
        "sample_mask = ((ids == EOS) & token_mask).any(1).float()",
        "sample_mask = 1 - ((ids == EOS) & token_mask).any(1).float()",
        "overlong filtering keeps the truncated responses and drops the finished ones",
    ),
    (
        "b_tis_new_over_gen",
        h3,
        'diff = x["old"] - x["gen"]',
        'diff = lp - x["gen"]',
        "the engine correction is taken from the current policy: the policy ratio is counted twice",
    ),
    (
        "b_tis_seq_padded_mean",
        h5,
        '(diff * x["tm"]).sum(-1, keepdim=True)',
        '(diff * x["tm"]).mean(-1, keepdim=True)',
        "the sequence weight is the exponential of the mean over the padded row, not of the sum",
    ),
    (
        "b_tis_on_mask",
        h3,
        'w = torch.clamp(w, max=c["tis_high"])',
        'w = torch.clamp(w, min=c["tis_high"])',
        "the truncation of the importance weights is a floor and not a cap",
    ),
    ("b_dual_wrong_sign", h4, 'torch.where(x["adv"] < 0, torch.min', 'torch.where(x["adv"] > 0, torch.min', "the dual clip acts on positive advantages"),
    ("b_clip_min", h1, "clip_loss = torch.max(loss1, loss2)", "clip_loss = torch.min(loss1, loss2)", "min in place of max of the two losses"),
    ("b_clip_one_sided", h4, 'ratios.clamp(1.0 - c["low"], 1.0 + c["high"])', 'ratios.clamp(max=1.0 + c["high"])', "the lower bound of the ratio is missing"),
    ("b_k3_direction", h1, "logr = (ref - lp).clamp", "logr = (lp - ref).clamp", "k3 with the log-ratio the wrong way round"),
    ("b_k2_no_half", h2, "logr.square() / 2", "logr.square()", "k2 lacks its factor one half"),
    (
        "b_kl_beta_inside_twice",
        h3,
        'kl_term = reduce(kl) * c["beta"]',
        'kl_term = reduce(kl * c["beta"]) * c["beta"]',
        "the KL coefficient is multiplied in twice",
    ),
    (
        "b_seqratio_masksum",
        h2,
        'masked_mean(log_ratios, x["tm"], dim=-1).unsqueeze(-1)',
        'masked_mean(log_ratios, torch.ones_like(x["tm"]), dim=-1).unsqueeze(-1)',
        "the sequence ratio averages over padding",
    ),
    (
        "b_prev_after_step",
        h1,
        'log_ratios = lp - x["old"]',
        "log_ratios = lp - lp.detach()",
        "previous log-probs are recomputed before every step, the ratio is always 1",
    ),
    (
        "b_mask_shift",
        h3,
        'mask = x["tm"] * x["sm"][:, None]',
        'mask = torch.cat([x["tm"][:, 1:], torch.zeros(len(x["tm"]), 1)], 1) * x["sm"][:, None]',
        "the token mask is shifted by one: the last token of every response is out of the loss",
    ),
]
if __name__ == "__main__":
    main("d3_nemo", __file__, H, B)
