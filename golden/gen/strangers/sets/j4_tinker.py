"""A client of a training service (tinker-like): forward_backward(batch, loss_fn) with importance_sampling | ppo | cispo, sums, advantages centred per group, KL penalty folded into the advantages.
Lazy dump: log-probs of trainer and sampler, mask, advantages, scores, groups, loss. Nothing else (token_loss in the cispo setting)."""

from world_j import *

NAME = "j4_tinker"
H = dict(
    h_iskl=dict(fn="importance_sampling", G=8, T=20, kl=0.1, sub=2, mb=2, temp=1.0, seed=31, lr=4e-3),
    h_ppo=dict(fn="ppo", G=6, T=24, kl=0.0, sub=4, mb=1, temp=1.0, seed=32, lr=8e-3),
    h_cispo=dict(fn="cispo", G=4, T=22, kl=0.0, sub=3, mb=2, temp=0.8, seed=33, lr=6e-3),
)
B = dict(
    b_shift=("h_iskl", "shift", "targets are shifted twice: the trainer's log-probs are of the next token", "", None),
    b_raw_lp=("h_cispo", "raw_lp", "the sampler gives log-probs of logits before the temperature, the trainer divides by it", "", None),
    b_inv=("h_iskl", "inv", "the ratio is upside down, exp(sampler - trainer)", "", None),
    b_pad=("h_ppo", "pad", "the sum of the loss runs over the padding, too, where the advantages of the row are still set", "", None),
    b_len=("h_iskl", "len", "every row's sum is divided by its length", "seq-mean-token-mean of other frameworks, summed over rows", None),
    b_std=("h_ppo", "std", "advantages are divided by the group's standard deviation, too", "GRPO", None),
    b_batch=("h_cispo", "batch", "the rewards are centred over the batch instead of per group", "REINFORCE with a batch baseline", None),
    b_roll=("h_ppo", "roll", "advantages are zipped with the data one group late", "", None),
    b_max=("h_ppo", "max", "ppo takes the max of the two surrogates", "", None),
    b_clip_log=("h_ppo", "clip_log", "the clip bounds 0.8 and 1.2 are applied to the log-ratio plus one", "", None),
    b_no_eos=("h_cispo", "no_eos", "the advantage at the EOS is set to 0 though the mask holds it", "", None),
    b_cispo_ratio=("h_cispo", "cispo_ratio", "cispo's loss is multiplied by the unclipped ratio", "", None),
    b_kl_sign=("h_iskl", "kl_sign", "the KL penalty is added with the wrong sign", "", None),
    b_stale=(
        "h_ppo",
        "stale",
        "the sampler keeps the weights of the beginning: the second rollout is of the first policy, its log-probs too, and the trainer calls itself on-policy",
        "",
        None,
    ),
    b_mean=("h_ppo", "mean", "the loss is the mean over tokens where the service's contract is the sum", "token mean of other frameworks", None),
    b_twice=("h_cispo", "twice", "advantages are centred and then multiplied by n/(n-1) twice", "", None),
)


def run(d, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    G, T, N = c["G"], c["T"], 48
    pol = LM(seed=c["seed"])
    ref = copy.deepcopy(pol)
    opt = torch.optim.AdamW(pol.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0.0)
    for p in ref.parameters():
        p.data += 0.03 * torch.randn(p.shape, generator=g)
    step = 0
    eng = None
    for roll in range(3):
        x, _ = prompts(N // G, 6, g)
        x = x.repeat_interleave(G, 0)
        if eng is None or bug != "stale":
            eng = engine_of(pol)
        ids, r, m = generate(eng, x, T, c["temp"], g)
        sc = reward(ids, r, m).sum(1)
        uid = torch.arange(N) // G + 100 * roll
        mf = m.float()
        with torch.no_grad():
            gen = logps(eng, ids, T, 1.0 if bug == "raw_lp" else c["temp"], 0)
            rf = logps(ref, ids, T, c["temp"], 0)
        gr = sc.view(-1, G)
        a = gr - (gr.mean() if bug == "batch" else gr.mean(1, keepdim=True))
        if bug == "std":
            a = a / (gr.std(1, keepdim=True) + 1e-6)
        if bug == "twice":
            a = a * (G / (G - 1)) ** 2
        a = a.reshape(-1)
        if bug == "roll":
            a = a.roll(G)
        adv = a[:, None].expand(N, T) * (1 if bug == "pad" else mf)
        if bug == "no_eos":
            adv = adv * (r != EOS)
        if c["kl"]:
            df = (gen - rf) * mf
            avg = df.sum() / mf.sum()
            k = c["kl"] * mf * (avg - df)
            adv = adv - k if bug == "kl_sign" else adv + k
        per = N // c["sub"]
        pm = torch.randperm(N, generator=g)
        for s in range(c["sub"]):
            step += 1
            opt.zero_grad()
            for mb in range(c["mb"]):
                q = per // c["mb"]
                i = pm[s * per + mb * q : s * per + (mb + 1) * q]
                if bug == "shift":
                    lg = (pol(ids[i])[:, -T:] / c["temp"]).log_softmax(-1)
                    lp = lg.gather(-1, ids[i][:, -T:, None]).squeeze(-1)
                else:
                    lp = logps(pol, ids[i], T, c["temp"], 0)
                A, mm = adv[i], mf[i]
                ra = (gen[i] - lp if bug == "inv" else lp - gen[i]).exp()
                if c["fn"] == "importance_sampling":
                    tl = -ra * A
                elif c["fn"] == "ppo":
                    cl = (lp - gen[i] + 1).clamp(0.8, 1.2) if bug == "clip_log" else ra.clamp(0.8, 1.2)
                    tl = -(torch.max if bug == "max" else torch.min)(ra * A, cl * A)
                else:
                    w = (ra if bug == "cispo_ratio" else ra.clamp(0.8, 1.2)).detach()
                    tl = -w * lp * A
                if bug == "pad":
                    loss = tl.sum()
                elif bug == "len":
                    loss = ((tl * mm).sum(1) / mm.sum(1)).sum()
                elif bug == "mean":
                    loss = (tl * mm).sum() / mm.sum()
                else:
                    loss = (tl * mm).sum()
                loss.backward()
                o = {
                    "loss.kind": {"importance_sampling": "reinforce"}.get(c["fn"], c["fn"]),
                    "adv.kind": "group",
                    "adv.center": "mean",
                    "adv.scale": "none",
                    "agg.kind": "token_sum",
                    "ratio.old": "engine",
                    "logp.temperature": c["temp"],
                    "eos_token_id": EOS,
                    "num_mini_batches": c["sub"],
                }
                if c["fn"] == "importance_sampling":
                    o.update({"loss.kind": "ppo", "clip.low": None, "clip.high": None})
                else:
                    o.update({"clip.low": 0.2, "clip.high": 0.2})
                if not c["kl"]:
                    o["kl.place"] = "none"
                t = dict(
                    logp_new=lp,
                    logp_gen=gen[i],
                    response_mask=m[i],
                    response_ids=r[i],
                    advantages=A,
                    scores=sc[i],
                    group_id=uid[i],
                    loss=loss,
                    sample_id=i + 1000 * roll,
                )
                if c["kl"]:
                    t["logp_ref"] = rf[i]
                if c["fn"] == "cispo":
                    t["token_loss"] = tl
                write(
                    d,
                    f"step_{step:03d}_mb_{mb}",
                    t,
                    dict(
                        framework="tinker-like",
                        algorithm="grpo",
                        run="j4",
                        step=step,
                        micro_batch=mb,
                        micro_batches=c["mb"],
                        options={k: ("none" if v is None else v) for k, v in o.items()},
                    ),
                )
            torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
            opt.step()


main(NAME, H, B, run)
