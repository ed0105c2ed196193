"""Multi-turn tool-use GRPO: assistant tokens in the mask, tool tokens out. Natural dumps of an agent loop, little declared (clip bounds, EOS, generations). Setting 3 is packed and dumps no scores."""

from world_k import *

base = dict(
    G=8,
    n=32,
    mini=2,
    epochs=1,
    el=0.2,
    eh=0.2,
    T=64,
    lr=8e-3,
    steps=4,
    mode="traj",
    agg="token",
    level="token",
    scale=True,
    filt=False,
    packed=False,
    bf16=False,
)
H = dict(
    h_token_level_tools=base | dict(seed=41, eh=0.28, epochs=2, mini=1),
    h_turn_rewards_to_go=base | dict(seed=42, mode="turn", T=72, G=4, n=24, mini=2, bf16=True),
    h_packed_group_filter=base | dict(seed=43, packed=True, filt=True, T=40, n=48, mini=3, steps=6),
    h_gspo_mean_baseline=base | dict(seed=44, level="seq", el=0.02, eh=0.03, scale=False, agg="seq", epochs=2, mini=2, T=56, n=24, steps=6, filt=True),
)


def run(c, bug, out, name):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"], 0.0)
    with torch.no_grad():
        m.head.bias[2] += 1.2
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"])
    G, T, n, P = c["G"], c["T"], c["n"], 8
    step = roll = 0
    while step < c["steps"]:
        pid, pam = prompts(n // G, P, g)
        pid, pam = pid.repeat_interleave(G, 0), pam.repeat_interleave(G, 0)
        ids, am, gen, pol, turns = sample(m, pid, pam, T, g, 1.0, bf16=True, tool=True)
        resp = ids[:, P:]
        al = am[:, P:].bool()
        mask = pol & al
        gen = gen * mask
        good = mask
        if bug == "tools_trained":
            mask = al
        if bug == "tool_mask_shift":
            mask = al & torch.cat([pol[:, :1], pol[:, :-1]], 1)
        with torch.no_grad():
            old = score_fwd(m, ids, am, T, 1.0, c["bf16"])[0]
        if bug == "old_shift":
            old = torch.cat([old[:, :1], old[:, :-1]], 1)
        gid = torch.arange(n) // G
        sc = r_even(resp, good) + 0.5 * (turns[:, -1] > 0).float() + r_len(resp, good)
        tr = None
        keep = torch.arange(n)
        if c["filt"]:
            sc = (sc * 2).round() / 2
        if c["mode"] == "traj":
            gr = sc.view(-1, G)
            A = gr - gr.mean(1, keepdim=True)
            if bug == "baseline_first":
                A = gr - gr[:, :1]
            if c["scale"]:
                A = A / ((gr.std(1, keepdim=True) if bug != "std_of_abs" else gr.abs().mean(1, keepdim=True)) + 1e-6)
            if bug == "abs_adv":
                A = A.abs()
            A = A.reshape(-1)
            if bug == "adv_roll_rows":
                A = A.roll(1)
            if c["filt"]:
                keep = torch.arange(n)[(gr.std(1) > 1e-3).repeat_interleave(G)]
            adv = A[:, None].expand(n, T).clone()
            if bug == "turn_decay":
                adv = adv * (0.9 ** turns.float())
        else:
            tr = torch.zeros(n, T)
            for i in range(n):
                for u in range(int(turns[i].max()) + 1):
                    cells = torch.nonzero(good[i] & (turns[i] == u)).flatten()
                    if len(cells):
                        at = int(cells[-1])
                        at = min(at + 1, T - 1) if bug == "reward_on_tool" else at
                        tr[i, at] += float((resp[i, cells] % 2 == 0).float().mean()) - 0.2
            run_, rt = torch.zeros(n), torch.zeros(n, T)
            mf = good.float()
            rr = range(T) if bug == "cumsum" else reversed(range(T))
            for t in rr:
                nw = tr[:, t] + run_
                rt[:, t] = nw * mf[:, t]
                run_ = nw * mf[:, t] + run_ * (1 - mf[:, t])
                if bug == "reset_at_tool":
                    run_ = nw * mf[:, t]
            sel = rt[good]
            mu, var = sel.mean(), sel.var()
            adv = (rt - mu) * torch.rsqrt(var + 1e-8) * mf
            if bug == "whiten_all":
                adv = (rt - rt.mean()) * torch.rsqrt(rt.var() + 1e-8) * mf
            if bug == "no_center":
                adv = rt * torch.rsqrt((sel**2).sum() + 1e-8) * mf
            sc = tr.sum(1)
        n2 = len(keep)
        for ep in range(c["epochs"]):
            pm = keep[torch.randperm(n2, generator=g)]
            for k, ix in enumerate(pm.chunk(c["mini"])):
                if step >= c["steps"] or not len(ix):
                    break
                step += 1
                lp, ent, _ = score_fwd(m, ids[ix], am[ix], T, 1.0, c["bf16"])
                M = mask[ix]
                a, o = adv[ix], old[ix]
                if bug == "old_lazy" and ep == 0:
                    old[ix] = lp.detach()
                    o = old[ix]
                if bug == "adv_unfiltered":
                    a = adv[ix - ix.min()]
                seg = None
                if c["packed"]:
                    L = al[ix].sum(1)
                    rows, cur, curl = [], [], 0
                    cap = 96
                    for q in range(len(ix)):
                        if cur and curl + int(L[q]) > cap:
                            rows.append(cur)
                            cur, curl = [], 0
                        cur.append(q)
                        curl += int(L[q])
                    rows.append(cur)

                    def pk(x):
                        return torch.stack([F.pad(torch.cat([x[q, : L[q]] for q in r]), (0, cap - sum(int(L[q]) for q in r))) for r in rows])

                    seg = torch.stack(
                        [F.pad(torch.cat([torch.full((int(L[q]),), j + 1) for j, q in enumerate(r)]), (0, cap - sum(int(L[q]) for q in r))) for r in rows]
                    )
                    lp, o, a, M = pk(lp), pk(o), pk(a), pk(M)
                    rp, gg = pk(resp[ix]), pk(gen[ix])
                    if bug == "adv_off_by_one":
                        a = torch.cat([a[:, :1], a[:, :-1]], 1)
                    if bug == "seg_start_masked":
                        M = M & (seg == F.pad(seg, (1, 0))[:, :-1])
                    if bug == "old_packed_roll":
                        o = torch.cat([o[:, 1:], o[:, -1:]], 1)
                else:
                    rp, gg = resp[ix], gen[ix]
                m_ = M.float()
                d = lp - o
                if c["level"] == "seq":
                    den = m_.sum(1, keepdim=True) if bug != "ratio_len_all" else al[ix].float().sum(1, keepdim=True)
                    s = (d * m_).sum(1, keepdim=True) / den.clamp(min=1)
                    if bug == "ratio_with_tools":
                        s = (d * al[ix]).sum(1, keepdim=True) / den.clamp(min=1)
                    if bug == "seq_detached":
                        s = s.detach()
                    if bug == "seq_sum":
                        s = s * den
                    ratio = s.exp().expand_as(d)
                else:
                    ratio = d.exp()
                l1, l2 = -a * ratio, -a * ratio.clamp(1 - c["el"], 1 + c["eh"])
                tl = torch.max(l1, l2)
                if bug == "min_loss":
                    tl = torch.min(l1, l2)
                if bug == "clip_grad_only":
                    tl = l2
                if bug == "log_ratio":
                    tl = -a * d.clamp(-c["el"], c["eh"])
                if c["agg"] == "token":
                    loss = (tl * m_).sum() / m_.sum()
                    if bug == "den_all":
                        loss = (tl * m_).sum() / al[ix].sum()
                    if bug == "all_cells":
                        loss = (tl * m_).mean()
                    if bug == "turn_mean":
                        loss = (tl * m_).sum() / (m_.sum() - len(ix))
                else:
                    loss = ((tl * m_).sum(1) / m_.sum(1).clamp(min=1)).mean()
                if bug == "den_rollout":
                    loss = loss * len(ix) / n
                if bug == "sum_len2":
                    loss = ((tl * m_).sum(1) / m_.sum(1).clamp(min=1) ** 2).mean()
                if bug == "seq_detached":
                    loss = loss + 0 * lp.sum()
                (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                opt.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                t = dict(response_ids=rp, response_mask=M, logp_new=lp, logp_old=o, logp_gen=gg, token_loss=tl, loss=loss, dlogp=dl)
                if c["packed"]:
                    t |= dict(segment_ids=seg, advantages=a)
                else:
                    t |= dict(
                        scores=None if tr is not None else sc[ix],
                        sample_id=ix + 1000 * roll,
                        advantages=a if c["mode"] == "turn" or bug == "turn_decay" else a[:, 0],
                    )
                    t |= dict(token_rewards=tr[ix]) if tr is not None else dict(group_id=gid[ix] + 100 * roll)
                po = {"clip.low": c["el"], "clip.high": c["eh"], "eos_token_id": EOS, "num_generations": G, "num_mini_batches": c["mini"]}
                if c["level"] == "seq":
                    po["ratio.level"] = "seq_mean"
                if c["mode"] == "turn":
                    po |= {"adv.kind": "rfpp", "gae.gamma": 1}
                dump(
                    out,
                    dict(
                        framework="agent-loop",
                        version="0",
                        algorithm="grpo",
                        run=name,
                        step=step,
                        options=po,
                        token_loss_includes_kl=False,
                        scalars=dict(loss=loss.item()),
                    ),
                    t,
                    f"step_{step:03d}",
                )
        roll += 1


a, b, c_, d_ = list(H)
B = dict(
    b_tools_trained=(a, "tools_trained", "the mask takes in tool tokens, which the engine gave no log-probs for", ""),
    b_tool_mask_shift=(
        a,
        "tool_mask_shift",
        "the mask of assistant tokens is a column late: the first token of each tool answer counts, the first after it does not",
        "",
    ),
    b_den_all=(a, "den_all", "the loss sums over assistant tokens and divides by assistant and tool tokens", ""),
    b_old_shift=(a, "old_shift", "old log-probs are a token late", ""),
    b_adv_roll_rows=(a, "adv_roll_rows", "each row has the advantage of the row before", ""),
    b_baseline_first=(a, "baseline_first", "the baseline is the first reward of the group, not the mean", ""),
    b_min_loss=(a, "min_loss", "the lesser of the two losses is taken, so clipping acts on the wrong side", ""),
    b_reward_on_tool=(b, "reward_on_tool", "the reward of a turn is put at the token after its end, which is the tool's, and is masked out", ""),
    b_reset_at_tool=(
        b,
        "reset_at_tool",
        "the return is reset to zero at each tool answer, so a turn does not see the rewards of later ones",
        "a credit per turn by design",
    ),
    b_cumsum=(b, "cumsum", "rewards are summed from the start on: a token is credited with what came before it", ""),
    b_whiten_all=(b, "whiten_all", "returns are whitened over all cells, tool tokens and padding included", "whitening without a mask"),
    b_norm_by_l2=(b, "no_center", "returns are divided by their norm in place of whitening", ""),
    b_adv_off_by_one=(c_, "adv_off_by_one", "packed advantages are one column late: the first token of a sequence has the one of the sequence before", ""),
    b_seg_start_masked=(c_, "seg_start_masked", "the first token of every packed sequence is masked out", ""),
    b_all_cells=(c_, "all_cells", "the loss is a mean over all cells of the packed rows", "a constant normaliser of rows times row length"),
    b_old_packed_roll=(c_, "old_packed_roll", "packed old log-probs are a token early", ""),
    b_clipped_only=(c_, "clip_grad_only", "the clipped term alone, no max with the unclipped one", ""),
    b_log_ratio=(c_, "log_ratio", "the log-ratio is clipped and used in place of the ratio (exp forgotten)", ""),
    b_turn_mean=(c_, "turn_mean", "token count less the number of sequences (a shift of labels) divides the loss", ""),
    b_ratio_len_all=(d_, "ratio_len_all", "the sequence ratio divides by the length with tool tokens", ""),
    b_ratio_with_tools=(d_, "ratio_with_tools", "the sequence ratio sums tool tokens, too", ""),
    b_seq_detached=(d_, "seq_detached", "the sequence ratio is detached, so the loss has no gradient", ""),
    b_seq_sum=(d_, "seq_sum", "the sequence ratio is not divided by the length", "RLOO's ratio of sums"),
    b_abs_adv=(d_, "abs_adv", "advantages lose their sign", ""),
    b_sum_len_twice=(d_, "sum_len2", "row sums are divided by the length twice", ""),
    b_old_lazy=(d_, "old_lazy", "old log-probs are cached at the first use of a row, after earlier mini-batches have moved the policy", ""),
    b_den_rollout=(d_, "den_rollout", "the mean over rows divides by the rows of the whole rollout, not of the mini-batch", ""),
)
for k in ["b_reset_at_tool", "b_whiten_all", "b_all_cells", "b_den_rollout"]:
    B.pop(k)  # legal configurations that nothing declared contradicts: no cases
if __name__ == "__main__":
    main("k5_agent", run, H, B, lambda c: [])
