"""open-instruct's grpo_fast in a small world. Dump: the padded cases have the loss's own tensors (logprobs, mask, advantages, scores, groups, kl, is weights, token losses, dlogp); the cispo case is lazy
(log-probs, mask, advantages, scores, loss); the packed case has packed rows with segment ids and no scores."""

from world_m import *

BASE = dict(
    loss_fn="dapo",
    advantage_normalization_type="standard",
    beta=0.05,
    kl_estimator=2,
    clip_lower=0.2,
    clip_higher=0.272,
    truncated_importance_sampling_ratio_cap=0.0,
    loss_denominator="token",
    mask_tool_use=True,
    num_samples_per_prompt_rollout=4,
    temperature=1.0,
    num_epochs=2,
    num_mini_batches=2,
)


def estimate_kl(d, r, bug):
    if bug == "k3-sign":
        return torch.stack([d, d**2 / 2, torch.expm1(d) - d, r * d])
    return torch.stack([d, d**2 / 2, torch.expm1(-d) + d, r * d])


def run(cfg, bug, folder, case):
    C = {**BASE, **cfg}
    W = C.get("world", 1)
    A = C.get("acc", 2)
    G = C["num_samples_per_prompt_rollout"]
    T = C.get("T", 28)
    N = C.get("N", 32)
    Pn = 6
    pol = LM()
    ref = copy.deepcopy(pol)
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.03 * torch.randn_like(p))
    opt = torch.optim.AdamW(pol.parameters(), lr=C.get("lr", 6e-3), weight_decay=0.0)
    step = 0
    tmp = C["temperature"]
    names = {k: C[k] for k in BASE if k not in ("num_epochs",)}
    names["eos_token_id"] = EOS
    names["temperature"] = tmp
    names["num_epochs"] = C["num_epochs"]
    old_engine = bf16_copy(pol)
    for roll in range(2):
        pr = prompts_of(N // G, Pn).repeat_interleave(G, 0)
        eng = bf16_copy(pol)
        if bug == "engine-not-synced":
            eng = old_engine
        ids, cm, vlp, ended, own = generate(eng, pr, T, tmp, tool=5 if C.get("tools") else None)
        mask = own if C["mask_tool_use"] and bug != "tool-tokens-trained" else cm
        if bug == "tool-mask-late":
            mask = cm * torch.cat([torch.ones(N, 1, dtype=torch.long), own[:, :-1]], 1)
        a, b_, c_ = rewards_of(ids, cm)
        sc = a + b_ + 0.2 * c_
        if C.get("tools"):
            pass
        g = sc.view(-1, G)
        mu = g.mean(1).repeat_interleave(G)
        sd = g.std(1, correction=0).repeat_interleave(G)
        if bug == "std-over-batch-axis":
            sd = g.std(0, correction=0).repeat(N // G)
        if bug == "mean-loo-scaled":
            mu = ((g.sum(1, keepdim=True) - g) / G).flatten()
        adv = (sc - mu) / (sd + 1e-8) if C["advantage_normalization_type"] == "standard" else sc - mu
        if bug == "centred-by-global-mean":
            adv = sc - sc.mean()
        if bug == "adv-by-length":
            adv = adv / cm.sum(1).float().sqrt()
        with torch.no_grad():
            old = score(pol, pr, ids, tmp)[0]
            rl = score(ref, pr, ids, tmp)[0]
            if bug == "old-from-vllm-shift":
                old = torch.cat([old[:, 1:], old[:, -1:]], 1)
        gid = torch.arange(N) // G + roll * 1000
        for ep in range(C["num_epochs"]):
            n = N // W
            nmb = n // C["num_mini_batches"]
            mic = nmb // A
            order = [torch.randperm(n) + k * n for k in range(W)]
            for s in range(C["num_mini_batches"]):
                step += 1
                opt.zero_grad()
                sel = [[order[k][s * nmb + m * mic : s * nmb + (m + 1) * mic] for m in range(A)] for k in range(W)]
                tot = sum(mask[i].sum() for k in sel for i in k).float()
                for k in range(W):
                    for m in range(A):
                        i = sel[k][m]
                        mk = mask[i].float()
                        lp, ent = score(pol, pr[i], ids[i], tmp)
                        o, r_, v = old[i], rl[i], vlp[i]
                        av = adv[i][:, None].expand_as(lp)
                        ratio = (lp - o).exp()
                        if bug == "ratio-against-vllm":
                            ratio = (lp - v).exp()
                        if C["loss_fn"] == "dapo":
                            lo, hi = C["clip_lower"], C["clip_higher"]
                            if bug == "clip-symmetric-higher":
                                lo = hi
                            p1 = -av * ratio
                            p2 = -av * ratio.clamp(1 - lo, 1 + hi)
                            if bug == "clip-no-max":
                                p1 = p2
                            if bug == "neg-adv-unclipped":
                                p2 = torch.where(av < 0, p1, p2)
                        else:
                            w = ratio.detach().clamp(max=1 + C["clip_higher"])
                            if bug == "cispo-clip-absolute":
                                w = ratio.detach().clamp(max=C["clip_higher"])
                            if bug == "cispo-unclipped":
                                w = ratio.detach()
                            p1 = p2 = -av * w * lp
                            if bug == "cispo-prob-not-logprob":
                                p1 = p2 = -av * w * lp.exp()
                        tis = None
                        cap = C["truncated_importance_sampling_ratio_cap"]
                        if cap > 0:
                            tis = ((o - v).clamp(-10, 10)).exp().clamp(max=cap)
                            if bug == "tis-of-new":
                                tis = ((lp.detach() - v).clamp(-10, 10)).exp().clamp(max=cap)
                            if bug == "tis-inverted":
                                tis = ((v - o).clamp(-10, 10)).exp().clamp(max=cap)
                            if bug == "tis-min":
                                tis = ((o - v).clamp(-10, 10)).exp().clamp(min=cap)
                            p1, p2 = p1 * tis, p2 * tis
                        pl = torch.max(p1, p2)
                        kl = None
                        full = pl
                        if C["beta"]:
                            d = (lp - r_).clamp(-40, 40)
                            kl = estimate_kl(d, ratio, bug)[C["kl_estimator"]]
                            if bug == "kl-index-off":
                                kl = estimate_kl(d, ratio, bug)[C["kl_estimator"] - 1]
                            full = pl + C["beta"] * kl if bug != "kl-subtracted" else pl - C["beta"] * kl
                        den = tot if C["loss_denominator"] == "token" else float(C["loss_denominator"])
                        if bug == "local-count-times-world":
                            den = mk.sum() / 1.0
                        if bug == "denominator-with-padding":
                            den = torch.tensor(float(sum(mask[i_].numel() for kk in sel for i_ in kk)))
                        mm = mk
                        if bug == "eos-unmasked":
                            mm = mk * (ids[i] != EOS).float()
                        loss = (full * mm).sum() / den * W
                        if bug == "const-div-acc":
                            loss = loss / A
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                        (loss / W).backward()
                        t = dict(
                            response_ids=ids[i],
                            response_mask=mask[i].bool(),
                            logp_new=lp,
                            logp_old=o,
                            logp_ref=r_ if C["beta"] else None,
                            logp_gen=v if C.get("dump_gen", True) else None,
                            advantages=adv[i],
                            scores=sc[i],
                            group_id=gid[i],
                            sample_id=i + 1000 * roll,
                            kl=kl,
                            is_weights=tis,
                            token_loss=pl,
                            loss=loss,
                            dlogp=dl,
                            entropy=ent,
                        )
                        opts = dict(names)
                        opts["agg.denominator"] = "global" if C["loss_denominator"] == "token" else "constant"
                        scal = {}
                        if W == 1 and not C.get("lazy"):
                            scal = {"loss": loss.item()}
                        if C.get("lazy"):
                            t = {
                                q: t[q]
                                for q in ("response_mask", "logp_new", "logp_old", "advantages", "scores", "group_id", "loss", "logp_gen")
                                if t.get(q) is not None
                            }
                        if C.get("packed"):
                            # two rows of two sequences each, cells of the responses and prompts, aligned with the tokens they predict
                            rows = []
                            h = len(i) // 2
                            for q in (range(h), range(h, len(i))):
                                R = {x: [] for x in ("m", "n", "o", "r", "a", "k", "t", "d", "s", "g", "i")}
                                for z, j in enumerate(q):
                                    L = int(cm[i[j]].sum())
                                    pre = Pn if z else Pn - 1
                                    cat = lambda x, f: torch.cat([torch.full((pre,), f, dtype=x.dtype), x[j, :L].detach()])
                                    R["m"].append(cat(mask[i], 0))
                                    R["i"].append(cat(ids[i], 0))
                                    for key, x in (("n", lp), ("o", o), ("r", r_), ("a", av.contiguous()), ("k", kl), ("t", pl), ("d", dl), ("g", v)):
                                        R[key].append(cat(x, 0.0))
                                    R["s"].append(torch.full((pre + L,), z + 1))
                                rows.append({x: torch.cat(y) for x, y in R.items()})
                            padr = lambda key: nn.utils.rnn.pad_sequence([x[key] for x in rows], batch_first=True)
                            t = dict(
                                response_mask=padr("m").bool(),
                                logp_new=padr("n"),
                                logp_old=padr("o"),
                                logp_ref=padr("r"),
                                advantages=padr("a"),
                                kl=padr("k"),
                                token_loss=padr("t"),
                                dlogp=padr("d"),
                                segment_ids=padr("s"),
                                logp_gen=padr("g"),
                                loss=loss,
                            )
                        write(
                            folder,
                            f"step{step:03d}_r{k}_m{m}",
                            t,
                            dict(
                                schema=2,
                                framework="open-instruct",
                                version="e6c3044",
                                algorithm="grpo",
                                run=case,
                                step=step,
                                rank=k,
                                world_size=W,
                                micro_batch=m,
                                micro_batches=A,
                                options=opts,
                                scalars=scal,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=False,
                                align="response",
                            ),
                        )
                torch.nn.utils.clip_grad_norm_(pol.parameters(), 1.0)
                opt.step()


H = {
    "h_dapo_tis_tools": dict(tools=True, truncated_importance_sampling_ratio_cap=1.01, T=40, seed=31, lr=1e-2),
    "h_cispo_centered_const_2ranks": dict(
        loss_fn="cispo",
        advantage_normalization_type="centered",
        beta=0.0,
        loss_denominator=300,
        world=2,
        lazy=True,
        clip_higher=0.1,
        temperature=0.8,
        seed=32,
        lr=1e-2,
        truncated_importance_sampling_ratio_cap=0.0,
        num_samples_per_prompt_rollout=8,
        N=64,
    ),
    "h_packed_k1_mixed": dict(packed=True, kl_estimator=1, beta=0.1, acc=1, N=16, num_mini_batches=2, tools=True, seed=33, T=36, lr=1e-2),
}


def b(of, describes, legal="", **k):
    return dict(of=of, describes=describes, legal=legal, **k)


B = {
    "k3-sign": b("h_dapo_tis_tools", "k3 is made with the wrong sign of the log-ratio (forward KL)"),
    "kl-subtracted": b("h_dapo_tis_tools", "beta times KL is subtracted from the loss"),
    "std-over-batch-axis": b("h_dapo_tis_tools", "standard deviation is over the wrong axis: of the k-th samples of all prompts"),
    "tis-of-new": b(
        "h_dapo_tis_tools",
        "truncated importance weights take the current policy's log-probs for the old ones",
    ),
    "tis-min": b("h_dapo_tis_tools", "the cap of the importance weights is a lower bound: clamp(min=cap)"),
    "engine-not-synced": b("h_dapo_tis_tools", "the engine never gets new weights after the first rollout"),
    "cispo-clip-absolute": b("h_cispo_centered_const_2ranks", "the cap of cispo is clip_higher instead of 1 + clip_higher: every weight is 0.1"),
    "centred-by-global-mean": b(
        "h_cispo_centered_const_2ranks",
        "advantages are centred by the batch's mean instead of the group's",
        "adv.kind batch_baseline (REINFORCE with a batch baseline) computes this",
    ),
    "const-div-acc": b(
        "h_cispo_centered_const_2ranks", "the constant denominator is divided by the accumulation steps once more", "a constant twice as large computes this"
    ),
    "cispo-prob-not-logprob": b("h_cispo_centered_const_2ranks", "cispo's loss takes the probability in place of its logarithm"),
    "adv-by-length": b("h_cispo_centered_const_2ranks", "advantages are divided by the root of the response's length"),
    "kl-index-off": b("h_packed_k1_mixed", "KL estimator counted from one: k1 runs where index 1 (k2) is declared", "kl_estimator=0 computes this"),
    "eos-unmasked": b("h_packed_k1_mixed", "EOS is left out of the loss though the count and the mask keep it"),
    "ratio-against-vllm": b(
        "h_packed_k1_mixed",
        "the ratio is taken against the engine's log-probs although the trainer's old ones are stored and no such option is set",
        "use_vllm_logprobs=True computes this",
    ),
    "neg-adv-unclipped": b("h_packed_k1_mixed", "the clip is applied for positive advantages only"),
    "denominator-with-padding": b("h_packed_k1_mixed", "the denominator counts all cells with padding and tool tokens instead of the trained tokens"),
}
main("m3_openinstruct", {**H, **{"b_" + k: dict(v, bug=k) for k, v in B.items()}}, run)
