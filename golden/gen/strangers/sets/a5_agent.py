# A multi-turn tool agent trained GRPO-style by a script of nobody's framework. Observation tokens stand in the middle of rows and are masked out; the rewards of the turns are summed.
# Lazy hook: log-probs (new, old), mask, advantages, rewards (of the turns and their sum), groups, loss; the engine's log-probs and token ids in some; few options declared.
import os, sys

sys.path.insert(0, os.path.dirname(__file__))
from world_a import *

W = dict(
    seed=1,
    n=4,
    P=6,
    T=36,
    world=1,
    GA=1,
    NB=2,
    epochs=2,
    rollouts=2,
    lr=1e-2,
    temp=1.0,
    beta=0.0,
    scale="std",
    lo=0.2,
    hi=0.2,
    agg="token_micro",
    engine=torch.bfloat16,
    dtype="fp32",
    turns=3,
    gen=False,
    ids=True,
    tis=None,
    opts={},
    eos_bias=0.8,
    lag=0,
)
HEALTHY = {
    "h_plain": dict(W, seed=51, opts={"clip.low": 0.2, "clip.high": 0.2, "num_mini_batches": 2}),
    "h_center_only_seqmean": dict(
        W,
        seed=52,
        scale="none",
        agg="seq",
        lo=0.2,
        hi=0.3,
        gen=True,
        opts={"clip.high": 0.3, "clip.low": 0.2, "agg.kind": "seq_mean_token_mean", "adv.scale": "none", "num_mini_batches": 2},
    ),
    "h_async_tis": dict(
        W,
        seed=53,
        gen=True,
        tis=1.5,
        lag=1,
        rollouts=3,
        epochs=1,
        agg="token_step",
        GA=3,
        opts={
            "max_staleness": 1,
            "async_rollout": True,
            "tis.level": "token",
            "tis.rule": "truncate_upper",
            "tis.high": 1.5,
            "num_mini_batches": 2,
            "clip.low": 0.2,
            "clip.high": 0.2,
        },
    ),
    "h_long_rows_ga2": dict(
        W,
        seed=54,
        T=140,
        P=4,
        GA=2,
        NB=1,
        epochs=3,
        turns=5,
        eos_bias=-0.6,
        agg="token_step",
        lr=6e-3,
        opts={"agg.kind": "token", "agg.denominator": "global", "eos_token_id": 1, "clip.low": 0.2, "clip.high": 0.2, "num_mini_batches": 1},
    ),
    "h_kl_k3": dict(
        W,
        seed=55,
        beta=0.1,
        agg="seq",
        NB=3,
        opts={
            "kl.beta": 0.1,
            "kl.kind": "k3",
            "kl.place": "loss",
            "agg.kind": "seq_mean_token_mean",
            "clip.low": 0.2,
            "clip.high": 0.2,
            "num_mini_batches": 3,
        },
    ),
    "h_2ranks_bf16": dict(
        W,
        seed=56,
        world=2,
        dtype="bf16",
        n=8,
        P=4,
        agg="token_step",
        GA=2,
        gen=True,
        lr=2e-2,
        opts={"agg.kind": "token", "agg.denominator": "global", "clip.low": 0.2, "clip.high": 0.2, "num_mini_batches": 2, "adv.scale": "group_std"},
    ),
}
A, B_, C, E_, F_, G = list(HEALTHY)
BUGS = {
    "b_obs_in_loss": (A, "The loss uses the attention mask of the response: observation tokens are trained as if the policy had written them."),
    "b_obs_mask_late": (
        A,
        "The loss mask is shifted by one column at observations: each one's first token is trained, and the first token behind it is not.",
    ),
    "b_last_turn_only": (A, "Advantages are made of the last turn's reward instead of the sum over turns."),
    "b_turn_mean": (A, "Rewards of turns are averaged over the turns that a row had, so many good turns count as one."),
    "b_group_of_neighbours": (A, "The group index is shifted by one row after a row was inserted: groups begin one row too early."),
    "b_no_clip": (A, "min is taken of the unclipped surrogate with itself, so nothing clips."),
    "b_adv_sign_flip": (A, "Mean minus reward instead of reward minus mean."),
    "b_count_with_obs": (A, "The divisor counts observation tokens, which the numerator leaves out."),
    "b_seq_sum": (B_, "Rows are summed and not averaged over their tokens, long rows dominate."),
    "b_turns_as_rows": (B_, "A row's mean is the mean of the means of its turns instead of its tokens."),
    "b_std_left": (B_, "Advantages are divided by the group's deviation though only centring is declared: the flag is read from the wrong key."),
    "b_cut_rows_zeroed": (
        B_,
        "Rows that were cut off get advantage 0 before the mean is taken of the others' scores, and the dumped scores still have them.",
    ),
    "b_clip_high_on_low": (B_, "The clip range is 1-0.3 to 1+0.2."),
    "b_prefix_lost": (
        B_,
        "The trainer's forward pass of the update sees the response without observations in its attention mask, so its log-probs have another context than the rollout.",
    ),
    "b_tis_cumulative": (
        C,
        "The weight of a token is the product over all tokens before it, observations included, where the engine has no log-probs (0).",
    ),
    "b_tis_inverse": (C, "exp(gen - old) corrects in the wrong direction."),
    "b_tis_twice": (C, "The ratio is taken against the engine's log-probs and the weight is applied as well."),
    "b_ga_not_divided": (
        C,
        "Each micro-batch divides by its own tokens, so the accumulated gradient is as many times too large as there are micro-batches.",
    ),
    "b_adv_from_previous": (C, "With the asynchronous queue the advantages of the rollout before are joined to the new rows."),
    "b_epoch_baseline": (E_, "From the second epoch on the advantages are normalised once more over the batch."),
    "b_lengths_before_obs": (E_, "The global token count was made before observations were masked out."),
    "b_mask_first_turn": (E_, "Only tokens up to the first observation are trained, later turns are lost."),
    "b_new_detached": (
        E_,
        "Rows with a negative advantage are detached (where on a tensor without gradient), so the policy is never pushed away from bad rows; the loss's value stays.",
    ),
    "b_kl_sum_mask": (F_, "The KL term is averaged over all cells, padding and observations too."),
    "b_kl_minus": (F_, "The KL term is subtracted."),
    "b_kl_k1_abs": (F_, "The estimator loses its exponential: |new - ref| in place of k3."),
    "b_ref_moves": (F_, "The reference is updated with the policy after every rollout."),
    "b_rank_order": (G, "Gathered rewards are interleaved by rank (all_gather then stack on dim 1), so rows get the advantages of others."),
    "b_rank_mean_of_means": (G, "Each rank divides by its own tokens of the step, and the ranks' means are averaged."),
    "b_logp_over_temp": (
        G,
        "The update divides its log-probs (not the logits) by a temperature of 1.05 before the ratio is taken; the old ones are as they are.",
    ),
    "b_std_over_tokens": (G, "Mean and deviation are weighted by the lengths of the rows (rewards were expanded to tokens before)."),
}


def run(out, c, bug):
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(c["seed"])
    n, P, world, temp, T0 = c["n"], c["P"], c["world"], c["temp"], c["T"]
    model = LM(eos_bias=c["eos_bias"])
    ref = copy.deepcopy(model).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.03 * torch.randn_like(p))
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    engines = [engine_of(model, c["engine"])]

    def lps(m, ids, am, T, t=1.0):
        with torch.autocast("cpu", torch.bfloat16, enabled=c["dtype"] == "bf16"):
            lg = m(ids, am)[:, -T - 1 : -1]
        return (lg.float() / t).log_softmax(-1).gather(-1, ids[:, -T:, None])[..., 0]

    step, prev = 0, None
    for it in range(c["rollouts"]):
        N = P * n
        up, um = prompts(P, g)
        pids, pm = up.repeat_interleave(n, 0), um.repeat_interleave(n, 0)
        obs = torch.full((N, T0), -1)
        turn = torch.zeros(N, T0, dtype=torch.long)
        for i in range(N):  # the tool answers after every few tokens
            t = 0
            for k in range(c["turns"] - 1):
                t += int(torch.randint(4, 8 if T0 < 60 else 16, (1,), generator=g))
                l = int(torch.randint(2, 5, (1,), generator=g))
                if t + l + 2 < T0:
                    obs[i, t : t + l] = torch.randint(2, 24, (l,), generator=g)
                    turn[i, t + l :] += 1
                t += l
        resp, mask, gen = generate(engines[max(0, len(engines) - 1 - c["lag"])], pids, pm, T0, g, temp, obs=obs)
        T = resp.shape[1]
        turn, seen = turn[:, :T], (resp != PAD).long()
        ids, am = torch.cat([pids, resp], 1), torch.cat([pm, seen], 1)
        tr = torch.zeros(N, c["turns"])  # rewards of the turns
        for k in range(c["turns"]):
            mk = mask * (turn == k)
            cnt = mk.sum(-1)
            tr[:, k] = torch.where(
                cnt > 0, ((resp % 3 == 0).float() * mk).sum(-1) / cnt.clamp(min=1) + 0.15 * torch.randn(N, generator=g), torch.zeros(N)
            )
        score = tr.sum(-1)
        r = (
            tr.gather(1, ((mask * turn).max(-1)[0])[:, None])[:, 0]
            if bug == "last_turn_only"
            else score / (tr != 0).sum(-1).clamp(min=1)
            if bug == "turn_mean"
            else score
        )
        if bug == "rank_order":
            r = r.view(2, -1).t().reshape(-1)
        if bug == "group_of_neighbours":
            r = r.roll(1)
        gr = r.view(P, n)
        mu, sd = gr.mean(1, keepdim=True), gr.std(1, keepdim=True)
        if bug == "std_over_tokens":
            L = mask.sum(-1).float().view(P, n)
            mu = (gr * L).sum(1, keepdim=True) / L.sum(1, keepdim=True)
            sd = (((gr - mu) ** 2 * L).sum(1, keepdim=True) / L.sum(1, keepdim=True)).sqrt()
        a = mu - gr if bug == "adv_sign_flip" else gr - mu
        if bug == "cut_rows_zeroed":
            e = ((resp == EOS) & mask.bool()).any(-1).float().view(P, n)
            a = (gr - (gr * e).sum(1, keepdim=True) / e.sum(1, keepdim=True).clamp(min=1)) * e
        if c["scale"] == "std" or bug == "std_left":
            a = a / (sd + 1e-6)
        if bug == "group_of_neighbours":
            a = a.reshape(-1).roll(-1).view(P, n)
        adv = a.reshape(-1)
        if bug == "adv_from_previous":
            adv, prev = (prev if prev is not None else adv), adv
        with torch.no_grad():
            old, base = lps(model, ids, am, T), lps(ref, ids, am, T)
        d = dict(
            ids=ids,
            am=am,
            resp=resp,
            mask=mask,
            seen=seen,
            gen=gen,
            old=old,
            ref=base,
            adv=adv,
            score=score,
            tr=tr,
            group=torch.arange(N) // n + it * P,
            turn=turn,
        )
        if c["tis"]:
            dl = (old - gen) * mask
            if bug == "tis_cumulative":
                dl = (old - gen).cumsum(-1)
            d["isw"] = (-dl if bug == "tis_inverse" else dl).exp().clamp(max=c["tis"])
        for ep in range(c["epochs"]):
            if bug == "epoch_baseline" and ep > 0:
                d["adv"] = (d["adv"] - d["adv"].mean()) / d["adv"].std()
            perm = torch.randperm(N, generator=g)
            for b in range(c["NB"]):
                step += 1
                rows = [x_.chunk(c["NB"])[b] for x_ in perm.chunk(world)]
                allr = torch.cat(rows)
                ntok = int((seen if bug == "lengths_before_obs" else mask)[allr].sum())
                nrow = len(allr)
                opt.zero_grad()
                for j in range(c["GA"]):
                    for k in range(world):
                        x = {q: v[rows[k].chunk(c["GA"])[j]] for q, v in d.items()}
                        m = x["mask"].float()
                        A_ = x["adv"][:, None].expand_as(m)
                        if bug == "obs_in_loss":
                            m = x["seen"].float()
                        if bug == "obs_mask_late":
                            o_ = (x["seen"].bool() & ~x["mask"].bool()).float().roll(1, 1)
                            m = x["seen"].float() * (1 - o_)
                        if bug == "mask_first_turn":
                            m = m * (x["turn"] == 0)
                        lam = torch.cat([x["am"][:, :-T], x["mask"]], 1) if bug == "prefix_lost" else x["am"]
                        lp = lps(model, x["ids"], lam, T)
                        nl = lp / 1.05 if bug == "logp_over_temp" else lp
                        ratio = (nl - (x["gen"] if bug == "tis_twice" else x["old"])).exp()
                        lo, hi = (c["hi"], c["lo"]) if bug == "clip_high_on_low" else (c["lo"], c["hi"])
                        s1 = ratio * A_
                        s2 = s1 if bug == "no_clip" else ratio.clamp(1 - lo, 1 + hi) * A_
                        tl = -torch.min(s1, s2)
                        if bug == "new_detached":
                            tl = torch.where(A_ < 0, tl.detach(), tl)
                        if c["tis"]:
                            tl = tl * x["isw"]
                        if c["agg"] == "token_micro":
                            loss = (tl * m).sum() / (x["seen"].sum() if bug == "count_with_obs" else m.sum().clamp(min=1))
                        elif c["agg"] == "token_step":
                            loss = (tl * m).sum() / ntok * world
                            if bug == "ga_not_divided":
                                loss = (tl * m).sum() / m.sum().clamp(min=1)
                            if bug == "rank_mean_of_means":
                                loss = (tl * m).sum() / mask[rows[k]].sum()
                        else:
                            if bug == "seq_sum":
                                loss = (tl * m).sum(-1).mean()
                            elif bug == "turns_as_rows":
                                pt = [((tl * m * (x["turn"] == q)).sum(-1), (m * (x["turn"] == q)).sum(-1)) for q in range(c["turns"])]
                                loss = (sum(s_ / n_.clamp(min=1) for s_, n_ in pt) / sum((n_ > 0).float() for _, n_ in pt)).mean()
                            else:
                                loss = ((tl * m).sum(-1) / m.sum(-1).clamp(min=1)).mean()
                        if c["beta"]:
                            e = x["ref"] - lp
                            kl = e.abs() if bug == "kl_k1_abs" else e.exp() - e - 1
                            kt = kl.mean() if bug == "kl_sum_mask" else ((kl * m).sum(-1) / m.sum(-1).clamp(min=1)).mean()
                            loss = loss + (-1 if bug == "kl_minus" else 1) * c["beta"] * kt
                        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / world).backward()
                        t = dict(
                            response_mask=x["mask"],
                            logp_new=lp,
                            logp_old=x["old"],
                            advantages=x["adv"],
                            scores=x["score"],
                            rewards_per_func=x["tr"],
                            group_id=x["group"],
                            loss=loss,
                        )
                        if c["ids"]:
                            t["response_ids"] = x["resp"]
                        if c["gen"]:
                            t["logp_gen"] = x["gen"]
                        if c["tis"]:
                            t["is_weights"] = x["isw"]
                        if c["beta"]:
                            t["logp_ref"] = x["ref"]
                        if step % 2 == 0 and c["agg"] != "token_micro":
                            t["dlogp"] = dlogp
                        o = dict(c["opts"]) | ({"num_items_in_batch": ntok} if c["agg"] == "token_step" else {})
                        out.dump(step, t, k, j, algorithm="grpo", world_size=world, micro_batches=c["GA"], options=o)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
        engines.append(engine_of(model, c["engine"]))
        if bug == "ref_moves":
            ref = copy.deepcopy(model).eval()


if __name__ == "__main__":
    main("a5_agent", HEALTHY, BUGS, run)
