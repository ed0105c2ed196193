# Nobody's own loop, no framework named; the options are declared in plumbline's names. GRPO family: leave-one-out or group baselines, clip-higher, token mean, k3 in the loss, an engine with corrections.
# Full hook (token losses, kl, dlogp, parts of the loss, engine log-probs, sample ids) in four settings; lazy=True: log-probs, mask, advantages, scores, loss only.
import os, sys

sys.path.insert(0, os.path.dirname(__file__))
from world_a import *

W = dict(
    seed=1,
    n=4,
    P=8,
    T=24,
    world=1,
    GA=2,
    NB=2,
    epochs=2,
    rollouts=2,
    lr=1e-2,
    temp=1.0,
    beta=0.05,
    center="mean",
    scale="group_std",
    eps=1e-6,
    lo=0.2,
    hi=0.28,
    agg="token",
    level="token",
    tis=None,
    engine=torch.bfloat16,
    autocast=False,
    lazy=False,
    const=None,
    eos_bias=1.0,
    mt=None,
)
HEALTHY = {
    "h_loo_k3_clip_higher": dict(W, center="loo", scale="none", seed=41),
    "h_group_std_tis_token": dict(W, tis=("token", "truncate_upper", None, 1.02), seed=42, temp=0.9, beta=0.02),
    "h_drgrpo_const_denominator": dict(W, scale="none", agg="seq_sum_const", const=24, beta=0.0, seed=43, lazy=True, lr=2e-2),
    "h_seqmean_2ranks": dict(W, agg="seq_mean_token_mean", world=2, GA=2, seed=44, n=8, P=4, beta=0.1, lr=1.5e-2),
    "h_gspo_small_clip": dict(W, level="seq_mean", agg="seq_mean_token_mean", lo=0.003, hi=0.004, beta=0.0, seed=45, epochs=3, engine=torch.float32),
    "h_bf16_seq_filter_lazy": dict(
        W, autocast=True, tis=("seq_geo", "seq_filter", 0.999, 1.001), center="loo", scale="none", seed=46, lazy=True, NB=1, epochs=3, GA=4, lr=1.5e-2
    ),
}
A, B_, C, E_, F_, G = list(HEALTHY)
BUGS = {
    "b_loo_includes_self": (A, "The leave-one-out baseline is the mean over the whole group, the row itself included."),
    "b_loo_wrong_divisor": (A, "The baseline divides the sum of the others by n instead of n-1."),
    "b_group_stride": (A, "Rows are repeated block-wise but grouped with a stride (view(n, prompts)), so baselines mix prompts."),
    "b_clip_high_ignored": (A, "The upper bound of the clip is the lower one."),
    "b_clip_log_ratio": (A, "The clip acts on the log-ratio (between -low and high) and not on the ratio."),
    "b_kl_of_old": (A, "The KL term compares old and reference log-probs: it is a constant without a gradient."),
    "b_kl_twice_beta": (A, "Beta multiplies the KL term inside and once more in the sum."),
    "b_local_token_mean": (A, "Every micro-batch divides by its own tokens and by the accumulation steps instead of by all tokens of the step."),
    "b_adv_abs_sign": (A, "The loss of negative advantages has its sign lost: torch.abs around the surrogate of clipped tokens."),
    "b_old_refreshed": (A, "old log-probs are refreshed at every mini-batch, so nothing is ever off-policy."),
    "b_tis_on_kl": (B_, "The engine weight multiplies the KL term too."),
    "b_tis_from_new": (B_, "The engine weight is exp(new - gen) with its gradient, instead of exp(old - gen) detached."),
    "b_tis_min": (B_, "The truncation bounds the weight from below (max in place of min)."),
    "b_std_of_batch": (B_, "Advantages are divided by the deviation of the whole batch, not of the group."),
    "b_std_plus_eps_squared": (B_, "The group's variance plus eps divides, the root is missing."),
    "b_temperature_twice": (B_, "The logits of the update are divided by the temperature twice."),
    "b_adv_stale": (
        B_,
        "The buffer of advantages is filled after the update: every rollout trains on the advantages of the one before (zeros at first).",
    ),
    "b_const_is_batch_max": (C, "The constant length is the longest answer of the micro-batch without EOS, so it changes from step to step."),
    "b_mask_shifted": (C, "The mask in the loss is shifted by one: the first token is left out and the first pad counts."),
    "b_linear_ratio": (C, "The ratio is 1 + (new - old), the exponential's first terms."),
    "b_reward_padding_order": (C, "Rewards come back from the workers sorted by length and are not put back in order."),
    "b_rank_local_groups": (E_, "Groups are spread over both ranks, and each rank takes mean and deviation of its own half of a group."),
    "b_row_padded_mean": (E_, "The mean of a row runs over the padded width."),
    "b_world_not_compensated": (E_, "Divided by the global number of rows but not multiplied by the ranks before gradients are averaged."),
    "b_kl_token_mean_only": (E_, "The KL term is a sum over tokens divided by the number of rows, the policy term a mean of row means."),
    "b_gspo_sum": (F_, "The sequence ratio is the exponential of the sum, not of the mean."),
    "b_gspo_padded_mean": (F_, "The mean log-ratio divides by the padded width."),
    "b_gspo_detached": (F_, "The sequence ratio is detached: the policy loss has no gradient."),
    "b_filter_inverted": (G, "Rows inside the bounds are dropped, those outside are trained."),
    "b_filter_bound_log": (G, "The bounds of the ratio are compared with the log-ratio, so almost every row is dropped."),
    "b_logits_not_shifted": (G, "The update's log-probs are gathered from the logits of the token itself (no shift by one)."),
    "b_engine_stale": (G, "The engine keeps the initial weights."),
}


def run(out, c, bug):
    torch.manual_seed(c["seed"])
    g = torch.Generator().manual_seed(c["seed"])
    n, P, world, temp = c["n"], c["P"], c["world"], c["temp"]
    model = LM(eos_bias=c["eos_bias"])
    ref = copy.deepcopy(model).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.03 * torch.randn_like(p))
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    first = engine_of(model, c["engine"])

    def lps(m, ids, am, T, t, shift=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=c["autocast"]):
            lg = m(ids, am)
        lg = lg[:, -T - 1 : -1] if shift else lg[:, -T:]
        return (lg.float() / t).log_softmax(-1).gather(-1, ids[:, -T:, None])[..., 0]

    step, sid, prev = 0, 0, None
    for it in range(c["rollouts"]):
        up, um = prompts(P, g)
        pids, pm = up.repeat_interleave(n, 0), um.repeat_interleave(n, 0)
        N = P * n
        resp, mask, gen = generate(first if bug == "engine_stale" else engine_of(model, c["engine"]), pids, pm, c["T"], g, temp)
        T = resp.shape[1]
        ids, am = torch.cat([pids, resp], 1), torch.cat([pm, mask], 1)
        score = reward_fn(resp, mask, pids, g)
        with torch.no_grad():
            old, base = lps(model, ids, am, T, temp), lps(ref, ids, am, T, temp)
        r = score[mask.sum(-1).argsort(stable=True)] if bug == "reward_padding_order" else score
        gr = r.view(P, n)
        if bug == "group_stride":
            gr = r.view(n, P).t()
        if bug == "rank_local_groups":
            gr = r.view(P, n // 2, 2).transpose(1, 2).reshape(P * 2, n // 2)
        if c["center"] == "loo" and bug != "loo_includes_self":
            b = (gr.sum(1, keepdim=True) - gr) / (n if bug == "loo_wrong_divisor" else n - 1)
        else:
            b = gr.mean(1, keepdim=True)
        a = gr - b
        if c["scale"] == "group_std":
            s = gr.std(1, keepdim=True)
            if bug == "std_of_batch":
                s = r.std()
            if bug == "std_plus_eps_squared":
                s = s**2
            a = a / (s + c["eps"])
        if bug == "group_stride":
            a = a.t()
        if bug == "rank_local_groups":
            a = a.reshape(P, 2, n // 2).transpose(1, 2)
        adv = a.reshape(-1)
        if bug == "adv_stale":
            adv, prev = (prev if prev is not None else torch.zeros(N)), adv
        d = dict(
            ids=ids,
            am=am,
            resp=resp,
            mask=mask,
            gen=gen,
            old=old,
            ref=base,
            adv=adv,
            score=score,
            group=torch.arange(N) // n + it * P,
            sid=torch.arange(N) + sid,
        )
        sid += N
        if c["tis"]:
            lev, rule, lo_, hi_ = c["tis"]
            dl = (old - gen) * mask
            if lev == "token":
                w = dl.exp()
                w = w.clamp(min=hi_) if bug == "tis_min" else w.clamp(max=hi_)
            else:
                q = dl.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
                q = q if bug == "filter_bound_log" else q.exp()
                keep = (q >= lo_) & (q <= hi_)
                w = (~keep if bug == "filter_inverted" else keep).float() * dl.exp()  # survivors keep their token weights
            d["isw"] = w
        for ep in range(c["epochs"]):
            perm = torch.randperm(N, generator=g)
            if world == 2:
                perm = torch.cat([p_[torch.randperm(N // 2, generator=g)] for p_ in (torch.arange(0, N, 2), torch.arange(1, N, 2))])
            for b_ in range(c["NB"]):
                step += 1
                rows = [perm[k * N // world : (k + 1) * N // world].chunk(c["NB"])[b_] for k in range(world)]
                allrows = torch.cat(rows)
                ntok, nrow = int(mask[allrows].sum()), len(allrows)
                if bug == "old_refreshed":
                    with torch.no_grad():
                        d["old"] = lps(model, ids, am, T, temp)
                opt.zero_grad()
                for j in range(c["GA"]):
                    for k in range(world):
                        i = rows[k].chunk(c["GA"])[j]
                        x = {q_: v[i] for q_, v in d.items()}
                        m = x["mask"].float()
                        A_ = x["adv"][:, None]
                        lp = lps(model, x["ids"], x["am"], T, temp**2 if bug == "temperature_twice" else temp, shift=bug != "logits_not_shifted")
                        dl = lp - x["old"]
                        if c["level"] == "seq_mean":
                            q = (dl * m).sum(-1, keepdim=True)
                            if bug != "gspo_sum":
                                q = q / (T if bug == "gspo_padded_mean" else m.sum(-1, keepdim=True).clamp(min=1))
                            ratio = q.exp().expand_as(lp)
                            if bug == "gspo_detached":
                                ratio = ratio.detach() + 0 * lp
                        else:
                            ratio = 1 + dl if bug == "linear_ratio" else dl.exp()
                        hi = c["lo"] if bug == "clip_high_ignored" else c["hi"]
                        cl = dl.clamp(-c["lo"], hi).exp() if bug == "clip_log_ratio" else ratio.clamp(1 - c["lo"], 1 + hi)
                        tl = -torch.min(ratio * A_, cl * A_)
                        if bug == "adv_abs_sign":
                            tl = torch.where((A_ < 0) & (ratio > 1 + hi), -tl, tl)
                        kl = None
                        if c["tis"]:
                            w = x["isw"]
                            if bug == "tis_from_new":
                                w = (lp - x["gen"]).exp().clamp(max=c["tis"][3])
                            tl = tl * w
                        if c["beta"]:
                            e = x["ref"] - (x["old"] if bug == "kl_of_old" else lp)
                            kl = e.exp() - e - 1

                        def agg(t, const=None, mm=m):
                            if c["agg"] == "token":
                                if bug == "local_token_mean":
                                    return (t * mm).sum() / mm.sum().clamp(min=1) / c["GA"]
                                return (t * mm).sum() / ntok * world
                            if c["agg"] == "seq_sum_const":
                                L = int((x["resp"] != PAD).sum(-1).max()) - 1 if bug == "const_is_batch_max" else c["const"]
                                return (t * mm).sum() / (nrow * L) * world
                            den = torch.full((len(mm),), float(T)) if bug == "row_padded_mean" else mm.sum(-1).clamp(min=1)
                            return ((t * mm).sum(-1) / den).sum() / nrow * (1 if bug == "world_not_compensated" else world)

                        pg = agg(tl, mm=m.roll(1, 1) * (torch.arange(T) > 0) if bug == "mask_shifted" else m)
                        loss, kll = pg, None
                        if kl is not None:
                            if bug == "tis_on_kl":
                                kll = agg(kl * x["isw"])
                            elif bug == "kl_token_mean_only":
                                kll = (kl * m).sum() / nrow * world
                            else:
                                kll = agg(kl * c["beta"] if bug == "kl_twice_beta" else kl)
                            loss = pg + c["beta"] * kll
                        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / world).backward()
                        t = dict(
                            response_mask=x["mask"],
                            response_ids=x["resp"],
                            logp_new=lp,
                            logp_old=x["old"],
                            advantages=x["adv"],
                            scores=x["score"],
                            group_id=x["group"],
                            sample_id=x["sid"],
                            loss=loss,
                            logp_gen=x["gen"],
                            is_weights=x.get("isw"),
                        )
                        if c["beta"]:
                            t["logp_ref"] = x["ref"]
                        if not c["lazy"]:
                            t |= dict(input_ids=x["ids"], attention_mask=x["am"], token_loss=tl, kl=kl, kl_loss=kll, pg_loss=pg, dlogp=dlogp)
                        o = {
                            "loss.kind": "ppo",
                            "adv.kind": "group",
                            "adv.center": c["center"],
                            "adv.scale": c["scale"],
                            "clip.low": c["lo"],
                            "clip.high": c["hi"],
                            "ratio.level": c["level"],
                            "ratio.old": "stored",
                            "agg.kind": c["agg"],
                            "agg.denominator": "global",
                            "kl.beta": c["beta"],
                            "kl.place": "loss" if c["beta"] else "none",
                            "logp.temperature": temp,
                            "num_mini_batches": c["NB"],
                            "optim.epochs": c["epochs"],
                            "num_items_in_batch": ntok,
                            "num_generations": n,
                            "eos_token_id": EOS,
                        }
                        if c["beta"]:
                            o |= {"kl.kind": "k3", "kl.grad": "naive"}
                        if c["scale"] != "none":
                            o |= {"adv.ddof": 1, "adv.eps": c["eps"]}
                        if c["const"]:
                            o |= {"loss_denominator": c["const"], "agg.div_batch": True}
                        o |= (
                            {"tis.level": "none"}
                            if not c["tis"]
                            else {"tis.level": c["tis"][0], "tis.rule": c["tis"][1], "tis.high": c["tis"][3]}
                            | ({"tis.low": c["tis"][2]} if c["tis"][2] else {})
                        )
                        if c["tis"]:
                            o["tis.applies_to_kl"] = False
                        out.dump(
                            step,
                            t,
                            k,
                            j,
                            algorithm="grpo",
                            world_size=world,
                            micro_batches=c["GA"],
                            align="response",
                            options=o,
                            token_loss_includes_kl=False,
                        )
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()


if __name__ == "__main__":
    main("a4_mix", HEALTHY, BUGS, run)
