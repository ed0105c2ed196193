"""open-instruct's grpo_fast.py from memory: shifted log-probs [B,S-1], 1.0 outside the mask, packed or padded rows. A lazy hook: log-probs, mask,
advantages per token, kl, loss; scores and groups where rows are padded; few options declared."""

from world_i import *

NAME = "i2_openinstruct"
T, P = 28, 6
D = dict(
    norm="standard",
    beta=0.0,
    est=2,
    lo=0.2,
    hi=0.272,
    tis=0.0,
    axis=None,
    denom="token",
    packed=False,
    mini=2,
    micro=1,
    epochs=1,
    n=8,
    G=4,
    lr=1.5e-2,
    bf16=False,
    temp=1.0,
    old="local",
    rollouts=2,
)


def C(**k):
    return {**D, **k}


PR = ["--profile", "open-instruct@e6c3044"]
H = {
    "h_standard_kl3_epochs": (C(beta=0.05, epochs=2, micro=2, opts={"adv.scale": "group_std", "kl.beta": 0.05, "agg.denominator": "global"}), PR),
    "h_centered_axis1": (
        C(
            norm="centered",
            axis=1,
            hi=0.28,
            n=8,
            bf16=True,
            temp=0.9,
            opts={
                "adv.scale": "none",
                "clip.high": 0.28,
                "kl.beta": 0.0,
                "agg.kind": "seq_mean_token_mean",
                "agg.denominator": "micro",
                "logp.temperature": 0.9,
            },
        ),
        PR,
    ),
    "h_packed_tis_kl1": (
        C(
            packed=True,
            tis=2.0,
            beta=0.02,
            est=0,
            epochs=2,
            opts={"kl.kind": "k1", "kl.beta": 0.02, "tis.level": "token", "tis.rule": "clamp", "tis.high": 2.0, "agg.denominator": "micro"},
        ),
        PR,
    ),
    "h_packed_const_kl4": (
        C(
            packed=True,
            beta=0.1,
            est=3,
            denom=500.0,
            micro=2,
            mini=1,
            epochs=3,
            opts={"kl.kind": "ratio_d", "kl.beta": 0.1, "agg.denominator": "constant", "loss_denominator": 500.0},
        ),
        PR,
    ),
}
A, B_, C_, E_ = list(H)
BUGS = {
    "b_mask_unshifted": (
        A,
        "the response mask is cut [:, :-1] where the log-probs are of ids[1:]: the first response token is trained at the next one's place, the column after EOS is in",
        "",
    ),
    "b_std_all": (
        A,
        "rewards are divided by the std over all prompts of the batch while the mean is the group's",
        "REINFORCE++ baseline or TRL scale_rewards=batch computes this",
    ),
    "b_std_no_group_mean": (A, "the mean of the whole batch is subtracted, the std of the group divides", ""),
    "b_kl_exp_sign": (A, "k3 written as exp(d) - 1 - d with d = new - ref, the direction of the reference (exp(-d) lost its minus)", ""),
    "b_token_count_last": (A, "the token count of the last micro-batch divides all micro-batches of the accumulation", ""),
    "b_axis0": (B_, "masked_mean with axis 0: the mean over rows of every column first, then over columns", ""),
    "b_temp_squared": (B_, "log-probs with gradient are divided by the temperature twice", ""),
    "b_adv_by_len": (B_, "centred advantages are divided by the length of the response before the mean over its tokens: length bias twice", ""),
    "b_next_row_adv": (B_, "rows are shuffled for mini-batches but the advantages are not", ""),
    "b_tis_min": (C_, "clamp(min=cap) where clamp(max=cap) was meant: every weight is at least 2", ""),
    "b_tis_new": (C_, "the engine weight is computed from the new log-probs, detached, in place of the old ones: ratio counted twice in later epochs", ""),
    "b_pack_adv_shift": (
        C_,
        "advantages of packed rows are not shifted by one with the mask: at every boundary the first response token has the prompt's 0",
        "",
    ),
    "b_clip_log": (C_, "the bounds clip the log-ratio (1-eps, 1+eps read as bounds of log) in place of the ratio: lower 0.8 lifts every ratio below e^0.8", ""),
    "b_kl4_ref_ratio": (E_, "KL 4 takes the ratio of new to reference log-probs where it should be new to old", ""),
    "b_const_times_micro": (
        E_,
        "the constant-denominator loss is divided by the number of micro-batches again",
        "trainers that divide by the accumulation steps compute this with another constant",
    ),
    "b_target_shift_new": (E_, "new log-probs are of the shifted-by-one target (ids[t] where ids[t+1] is scored) in the pass with gradient", ""),
}


def main(c, bug, out, run):
    g = torch.Generator().manual_seed(sum(map(ord, run)))
    model = LM()
    ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.04 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    n, G = c["n"], c["G"]
    N = n * G
    step = 0
    for roll in range(c["rollouts"]):
        pid, patt = prompts(n, P, g)
        pid, patt = pid.repeat_interleave(G, 0), patt.repeat_interleave(G, 0)
        resp, mask, gen = sample(model, pid, patt, T, c["temp"], g)
        ids, att = torch.cat([pid, resp], 1), torch.cat([patt, mask], 1)
        sc = (10 * score(resp, mask, g)).sum(1)
        gr = sc.view(n, G)
        mu, sd = gr.mean(1).repeat_interleave(G), gr.std(1, unbiased=False).repeat_interleave(G)
        if bug == "std_no_group_mean":
            mu = sc.mean().expand(N)
        if bug == "std_all":
            sd = sc.std(unbiased=False).expand(N)
        adv = (sc - mu) / (sd + 1e-8) if c["norm"] == "standard" else sc - mu
        if bug == "adv_by_len":
            adv = adv / mask.sum(1)
        gid = torch.arange(N) // G + 100 * roll
        sid = torch.arange(N) + N * roll
        perm = torch.randperm(N, generator=g)
        advs = adv.clone()
        if bug == "next_row_adv":
            advs[perm] = adv
        # rows: lists of responses; a padded row holds one, a packed row as many as fit
        W = 84
        rows = []
        if c["packed"]:
            cur, used = [], 0
            for i in perm.tolist():
                L = int(att[i].sum())
                if used + L > W:
                    rows.append(cur)
                    cur, used = [], 0
                cur.append(i)
                used += L
            rows.append(cur)
            k = c["mini"] * c["micro"]
            rows = rows[: len(rows) // k * k]
        else:
            rows = [[i] for i in perm.tolist()]
        per = len(rows) // (c["mini"] * c["micro"])

        def layout(rs):
            S = W if c["packed"] else P + T
            I, SEG = torch.zeros(len(rs), S, dtype=torch.long), torch.zeros(len(rs), S, dtype=torch.long)
            ix = []  # (row, shifted column, response, response token)
            for b, r in enumerate(rs):
                q = 0
                for j, i in enumerate(r):
                    if c["packed"]:
                        tok = ids[i][att[i].bool()]
                        L = len(tok)
                        pl = int(patt[i].sum())
                    else:
                        tok = ids[i]
                        L = P + T
                        pl = P
                    I[b, q : q + L] = tok
                    SEG[b, q : q + L] = j + 1
                    ix += [(b, q + pl + t - 1, i, t) for t in range(int(mask[i].sum()))]
                    q += L
            return I, SEG, torch.tensor(ix)

        def place(x, ix, B, S, fill):
            y = torch.full((B, S - 1), fill, dtype=x.dtype)
            return y.index_put((ix[:, 0], ix[:, 1]), x[ix[:, 2], ix[:, 3]])

        lpf = lambda m, shift=0: logps(
            m, ids, att, T, c["temp"] ** (2 if bug == "temp_squared" and m is model and torch.is_grad_enabled() else 1), c["bf16"], shift
        )
        with torch.no_grad():
            old = lpf(model)[0]
            rl = lpf(ref)[0]
        for ep in range(c["epochs"]):
            for mb in range(c["mini"]):
                chunks = [rows[(mb * c["micro"] + a) * per : (mb * c["micro"] + a + 1) * per] for a in range(c["micro"])]
                lay = [layout(r) for r in chunks]
                cnt = [len(l[2]) for l in lay]
                opt.zero_grad()
                fl = []
                for a, (I, SEG, ix) in enumerate(lay):
                    B, S = I.shape
                    new = place(lpf(model, 0 if bug != "target_shift_new" else -1)[0], ix, B, S, 1.0)
                    new.retain_grad()
                    o, rf, ge = (place(x, ix, B, S, 1.0) for x in (old, rl, gen))
                    m = place(mask.bool(), ix, B, S, False)
                    ad = place(advs[:, None].expand(N, T).contiguous(), ix, B, S, 0.0)
                    if bug == "pack_adv_shift":
                        ad = torch.cat([torch.zeros(B, 1), ad[:, :-1]], 1)
                    M = m.float()
                    if bug == "mask_unshifted":
                        M = torch.cat([torch.zeros(B, 1), M[:, :-1]], 1)
                        m = M.bool()
                    lr_ = new - o
                    if bug == "clip_log":
                        ratio = lr_.exp()
                        cl = lr_.clamp(1 - c["lo"], 1 + c["hi"]).exp()
                    else:
                        ratio = lr_.exp()
                        cl = ratio.clamp(1 - c["lo"], 1 + c["hi"])
                    pg = torch.max(-ad * ratio, -ad * cl)
                    w = None
                    if c["tis"]:
                        w = (new.detach() if bug == "tis_new" else o).sub(ge).exp()
                        w = w.clamp(min=c["tis"]) if bug == "tis_min" else w.clamp(max=c["tis"])
                        pg = pg * w
                    k = None
                    if c["beta"]:
                        d = (new - rf).clamp(-40.0, 40.0)
                        r4 = d.exp() if bug == "kl4_ref_ratio" else ratio
                        k = [d, d**2 / 2, (torch.expm1(d) - d) if bug == "kl_exp_sign" else torch.expm1(-d) + d, r4 * d][c["est"]]
                        tl = pg + c["beta"] * k
                    else:
                        tl = pg
                    if c["axis"] == 1:
                        if bug == "axis0":
                            keep = M.sum(0) > 0
                            loss = ((tl * M).sum(0)[keep] / M.sum(0)[keep]).mean()
                        else:
                            loss = ((tl * M).sum(1) / M.sum(1)).mean()
                    elif c["denom"] == "token":
                        loss = (tl * M).sum() / (cnt[-1] if bug == "token_count_last" else sum(cnt))
                    else:
                        loss = (tl * M).sum() / c["denom"] / (c["micro"] if bug == "const_times_micro" else 1)
                    loss.backward()
                    t = dict(
                        response_mask=m,
                        logp_new=new,
                        logp_old=o,
                        logp_ref=rf if k is not None else None,
                        logp_gen=ge,
                        advantages=ad,
                        kl=k,
                        loss=loss,
                        input_ids=I,
                        is_weights=w,
                        dlogp=new.grad,
                    )
                    if c["packed"]:
                        t["segment_ids"] = SEG[:, 1:]
                    else:
                        rr = torch.tensor([r[0] for r in chunks[a]])
                        t.update(scores=sc[rr], group_id=gid[rr], sample_id=sid[rr], attention_mask=att[rr])
                    fl.append((a, t))
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                for a, t in fl:
                    write(
                        out,
                        f"step{step:03d}_{a}",
                        dict(
                            schema=2,
                            framework="open-instruct",
                            version="e6c3044",
                            algorithm="grpo",
                            run=run,
                            step=step,
                            rank=0,
                            world_size=1,
                            micro_batch=a,
                            micro_batches=c["micro"],
                            align="shifted",
                            options={**c["opts"], "num_mini_batches": c["mini"]},
                            masked_fill=1.0,
                        ),
                        t,
                    )
                step += 1


runner(NAME, H, BUGS, main)
