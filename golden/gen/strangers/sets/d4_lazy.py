"""A researcher's own GRPO / Dr.GRPO / DAPO loop. Lazy: logp_new, logp_old (or the engine's), mask, advantages, scores, groups, loss; few options."""

from world_d import *


def token_logps(model, full, T, c):
    logits = model(full)[:, :-1][:, -T:] / c["temp"]
    if c["bf16"]:
        logits = logits.bfloat16()
    return F.log_softmax(logits, -1).gather(-1, full[:, -T:, None])[..., 0]


def group_advantages(r, G, c):
    r = r.view(-1, G)
    adv = r - r.mean(1, keepdim=True)
    if c["std"]:
        adv = adv / (r.std(1, keepdim=True) + 1e-4)
    return adv.view(-1)


def overlong(lengths, T, cache=6):
    return ((T - cache - lengths) / cache).clamp(-1, 0)


def train(c, out):
    G, T, N, mini, micro = c["G"], c["T"], c["N"], c["mini"], c["micro"]
    g = torch.Generator().manual_seed(c["seed"])
    policy = LM()
    ref = copy.deepcopy(policy)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=g))
        policy.emb.weight[PAD] = 0
    opt = torch.optim.Adam(policy.parameters(), lr=c["lr"])
    dump, step = None, 0
    ga = mini // micro
    dump = Dump(out, algorithm="grpo", micro_batches=ga, options=c["options"])
    prev = None
    for it in range(c["iters"]):
        prompts = make_prompts(N // G, 6, g).repeat_interleave(G, 0)
        with torch.no_grad():
            ids, gen_lp, mask = sample(engine_copy(policy), prompts, T, c["temp"], g)
            full = torch.cat([prompts, ids], 1)
            raw = reward_fns(ids, mask, g).sum(1)
            rewards = (raw > 0.9).float() if c["binary"] else raw
            if c["overlong"]:
                rewards = rewards + overlong(mask.sum(1).float(), T)
            adv = group_advantages(rewards, G, c)
            gid = torch.arange(N) // G + it * 1000
            sid = torch.arange(N) + it * 1000
            old = gen_lp if c["engine"] else token_logps(policy, full, T, c)
            ref_lp = token_logps(ref, full, T, c)
            if c["dynamic"]:
                spread = rewards.view(-1, G).std(1) > 0
                keep = spread.repeat_interleave(G)
                full, mask, rewards, adv, gid, sid, old, ref_lp = (x[keep] for x in (full, mask, rewards, adv, gid, sid, old, ref_lp))
                k = len(full) // mini * mini
                full, mask, rewards, adv, gid, sid, old, ref_lp = (x[:k] for x in (full, mask, rewards, adv, gid, sid, old, ref_lp))
        for epoch in range(c["epochs"]):
            for m in range(0, len(full), mini):
                step += 1
                opt.zero_grad()
                total = mask[m : m + mini].sum()
                for i in range(ga):
                    s = slice(m + i * micro, m + (i + 1) * micro)
                    lp = token_logps(policy, full[s], T, c)
                    msk = mask[s].float()
                    a = adv[s].unsqueeze(1)
                    o = lp.detach() if c["onpolicy"] else old[s]
                    ratio = torch.exp(lp - o)
                    obj = torch.min(ratio * a, ratio.clamp(1 - c["lo"], 1 + c["hi"]) * a)
                    tok = -obj
                    if c["beta"]:
                        d = ref_lp[s] - lp
                        kl = torch.exp(d) - d - 1
                        tok = tok + c["beta"] * kl
                    if c["agg"] == "seq":
                        loss = ((tok * msk).sum(1) / msk.sum(1)).mean() / ga
                    elif c["agg"] == "const":
                        loss = (tok * msk).sum() / (len(tok) * T) / ga
                    else:
                        loss = (tok * msk).sum() / total
                    loss.backward()
                    t = dict(response_mask=msk.bool(), logp_new=lp, advantages=adv[s], scores=rewards[s], group_id=gid[s], loss=loss)
                    if c["engine"]:
                        t["logp_gen"] = old[s]
                    elif not c["onpolicy"]:
                        t["logp_old"] = old[s]
                    if c["beta"]:
                        t["logp_ref"] = ref_lp[s]
                    if c["sid"]:
                        t["sample_id"] = sid[s]
                    dump(t, step, 0, i)
                opt.step()


# ==== cases
D = dict(
    N=32,
    G=8,
    T=24,
    mini=16,
    micro=16,
    epochs=2,
    iters=2,
    std=True,
    lo=0.2,
    hi=0.2,
    beta=0.0,
    agg="seq",
    engine=False,
    onpolicy=False,
    dynamic=False,
    overlong=False,
    binary=False,
    bf16=False,
    temp=1.0,
    lr=6e-3,
    sid=True,
    seed=41,
)
H = {
    "h_grpo_kl": (
        D
        | dict(
            beta=0.04,
            options={
                "clip.low": 0.2,
                "clip.high": 0.2,
                "kl.beta": 0.04,
                "kl.kind": "k3",
                "kl.place": "loss",
                "agg.kind": "seq_mean_token_mean",
                "adv.scale": "group_std",
                "adv.eps": 1e-4,
                "num_mini_batches": 2,
            },
        ),
        [],
    ),
    "h_drgrpo": (
        D
        | dict(
            std=False,
            agg="const",
            micro=8,
            seed=42,
            lr=1e-2,
            options={
                "clip.low": 0.2,
                "clip.high": 0.2,
                "agg.kind": "seq_sum_const",
                "loss_denominator": 24,
                "agg.div_ga": True,
                "adv.scale": "none",
                "kl.beta": 0,
                "num_mini_batches": 2,
            },
        ),
        [],
    ),
    "h_dapo_dynamic": (
        D
        | dict(
            agg="token",
            hi=0.28,
            dynamic=True,
            overlong=True,
            binary=True,
            N=64,
            G=8,
            micro=8,
            seed=43,
            sid=False,
            options={"clip.low": 0.2, "clip.high": 0.28, "agg.kind": "token", "agg.denominator": "global", "kl.beta": 0, "adv.scale": "group_std"},
        ),
        [],
    ),
    "h_engine_ratio": (
        D
        | dict(
            engine=True,
            temp=0.8,
            G=4,
            T=40,
            epochs=3,
            seed=44,
            options={"clip.low": 0.2, "clip.high": 0.2, "ratio.old": "engine", "agg.kind": "seq_mean_token_mean", "kl.beta": 0, "num_mini_batches": 2},
        ),
        [],
    ),
    "h_bf16_onpolicy": (
        D
        | dict(
            bf16=True,
            onpolicy=True,
            epochs=1,
            iters=4,
            mini=32,
            micro=8,
            agg="seq",
            seed=45,
            sid=False,
            options={"agg.kind": "seq_mean_token_mean", "ratio.old": "stopgrad_new", "agg.div_ga": True, "kl.beta": 0, "clip.low": 0.2, "clip.high": 0.2},
        ),
        [],
    ),
}
h1, h2, h3, h4, h5 = H
B = [
    (
        "b_adv_sign",
        h1,
        "adv = r - r.mean(1, keepdim=True)",
        "adv = r.mean(1, keepdim=True) - r",
        "mean minus reward: the policy is pushed to the worse responses",
    ),
    (
        "b_mean_repeat",
        h2,
        "adv = r - r.mean(1, keepdim=True)\n",
        "adv = r - r.mean(1).repeat(G).view(-1, G)\n",
        "the group means are repeated (tiled) and not interleaved, rows get the mean of another group",
    ),
    ("b_std_axis", h1, "r.std(1, keepdim=True) + 1e-4", "r.std(0, keepdim=True) + 1e-4", "the standard deviation is over the groups and not within"),
    ("b_ratio_inverted", h1, "ratio = torch.exp(lp - o)", "ratio = torch.exp(o - lp)", "the ratio is old over new"),
    (
        "b_clip_only",
        h2,
        'torch.min(ratio * a, ratio.clamp(1 - c["lo"], 1 + c["hi"]) * a)',
        'ratio.clamp(1 - c["lo"], 1 + c["hi"]) * a',
        "only the clipped ratio is used, the min is missing",
    ),
    (
        "b_old_shift",
        h1,
        "old[s]\n                    ratio",
        "old[s].roll(1, 1)\n                    ratio",
        "the old log-probs are one column off in the ratio",
    ),
    ("b_pad_mean", h1, "((tok * msk).sum(1) / msk.sum(1)).mean() / ga", "(tok * msk).mean(1).mean() / ga", "the mean of a row divides by the padded width"),
    (
        "b_const_is_longest",
        h2,
        "/ (len(tok) * T) / ga",
        "/ (len(tok) * msk.sum(1).max()) / ga",
        "Dr.GRPO's constant is the longest response of the micro-batch",
    ),
    (
        "b_micro_token_mean",
        h3,
        "loss = (tok * msk).sum() / total",
        "loss = (tok * msk).sum() / msk.sum() / ga",
        "token mean of each micro-batch, averaged, in place of the mini-batch's token mean",
    ),
    (
        "b_filter_adv_misaligned",
        h3,
        "(x[keep] for x in (full, mask, rewards, adv, gid, sid, old, ref_lp))",
        "(x if x is adv else x[keep] for x in (full, mask, rewards, adv, gid, sid, old, ref_lp))",
        "dynamic sampling drops groups from all but the advantages",
    ),
    (
        "b_overlong_after_norm",
        h3,
        ['            if c["overlong"]: rewards = rewards + overlong(mask.sum(1).float(), T)\n            adv = group_advantages(rewards, G, c)\n'],
        [
            '            adv = group_advantages(rewards, G, c)\n            if c["overlong"]: pen = overlong(mask.sum(1).float(), T); rewards, adv = rewards + pen, adv + pen\n'
        ],
        "the overlong penalty is added to the normalised advantage in place of the reward",
    ),
    (
        "b_clip_higher_lost",
        h3,
        'ratio.clamp(1 - c["lo"], 1 + c["hi"])',
        'ratio.clamp(1 - c["lo"], 1 + c["lo"])',
        "the upper bound uses clip low: clip-higher is declared and not there",
    ),
    (
        "b_engine_temperature",
        h4,
        'logits = model(full)[:, :-1][:, -T:] / c["temp"]',
        "logits = model(full)[:, :-1][:, -T:]",
        "the trainer's log-probs are not divided by the sampling temperature, the ratio to the engine is not near 1",
    ),
    (
        "b_engine_pad_ratio",
        h4,
        "((tok * msk).sum(1) / msk.sum(1)).mean() / ga",
        "(tok.sum(1) / msk.sum(1)).mean() / ga",
        "padding enters the sum of the token losses",
    ),
    (
        "b_stale_rewards",
        h4,
        "adv = group_advantages(rewards, G, c)",
        "adv = group_advantages(rewards if prev is None else prev, G, c); prev = rewards",
        "advantages of a rollout come from the rewards of the rollout before",
    ),
    ("b_ga_twice", h5, "msk.sum(1)).mean() / ga", "msk.sum(1)).mean() / ga / ga", "the loss is divided by the accumulation steps twice"),
    ("b_kl_sign", h1, 'tok = tok + c["beta"] * kl', 'tok = tok - c["beta"] * kl', "the KL term is subtracted from the loss"),
    (
        "b_last_group_raw",
        h1,
        "    return adv.view(-1)",
        "    adv[-1] = r[-1]; return adv.view(-1)",
        "off by one in the loop over groups: the last group keeps raw rewards",
    ),
    (
        "b_adv_over_length",
        h5,
        "a = adv[s].unsqueeze(1)",
        "a = adv[s].unsqueeze(1) / msk.sum(1, keepdim=True)",
        "advantages are divided by the length although the loss is a mean per token already",
    ),
]
if __name__ == "__main__":
    main("d4_lazy", __file__, H, B)
