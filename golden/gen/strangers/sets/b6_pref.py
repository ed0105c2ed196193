"""DPO family as in TRL 1.16's DPOTrainer (losses rewritten from _compute_loss), one setting a trainer of one's own (reference-free, label smoothing). Dump: sums, references, loss everywhere; token log-probs and masks, pair_loss, dlogp in some settings (cfg tok, grads)."""

from world_b import *

BASE = dict(
    seed=51,
    N=32,
    B=8,
    ga=1,
    steps=6,
    P=6,
    T=24,
    lr=3e-3,
    beta=0.1,
    loss=["sigmoid"],
    w=None,
    ls=0.0,
    tau=0.05,
    tok=False,
    grads=False,
    pre=False,
    own=False,
    half=False,
)
H = dict(
    h_robust_pre=dict(BASE, loss=["robust"], ls=0.1, pre=True, grads=True, N=24),
    h_ipo=dict(BASE, seed=52, loss=["ipo"], beta=0.2, tok=True, ga=2, steps=5, grads=True),
    h_apo_zero=dict(BASE, seed=53, loss=["apo_zero"], beta=0.3, B=16, lr=4e-3),
    h_discopop=dict(BASE, seed=54, loss=["discopop"], beta=0.2, tau=0.2, tok=True, B=8, T=40, lr=2e-3),
    h_mix_sft=dict(BASE, seed=55, loss=["sigmoid", "bco_pair", "sft"], w=[0.8, 0.2, 1.0], tok=True, grads=True, beta=0.15, lr=2e-3),
    h_reffree_ls=dict(BASE, seed=56, ls=0.15, own=True, beta=0.05, ga=2, half=True),
)
B = {
    "ref_swapped": ("h_mix_sft", "the halves of the reference's batch are taken the wrong way round: ref_chosen is of the rejected answers"),
    "prompt_in_sum": ("h_discopop", "the sum takes in the prompt's tokens: the completion mask is not applied"),
    "pad_in_sum": ("h_ipo", "padding tokens behind the EOS are scored too"),
    "eos_left_out": ("h_mix_sft", "the last token of every answer (EOS) is left out of the sum, in the policy's pass only"),
    "no_beta": ("h_discopop", "β is missing in the argument of the loss"),
    "robust_undivided": ("h_robust_pre", "robust's division by 1 − 2ε is missing"),
    "robust_plus": ("h_robust_pre", "robust adds the flipped term as conservative DPO does"),
    "ipo_sum": ("h_ipo", "IPO's log-ratios are sums, not divided by the tokens"),
    "ipo_target": ("h_ipo", "IPO's target is 1/β in place of 1/(2β)"),
    "ipo_len_padded": ("h_ipo", "IPO divides by the padded length"),
    "ipo_lens_swapped": ("h_ipo", "IPO divides chosen by the rejected answer's tokens and the other way round"),
    "tau_multiplied": ("h_discopop", "τ multiplies where it should divide"),
    "disco_mix_swapped": ("h_discopop", "the modulation weights logistic and exponential part the wrong way round"),
    "apo_down": ("h_apo_zero", "the sign of the chosen term is that of apo_down"),
    "apo_margin": ("h_apo_zero", "the rejected term is of the margin chosen − rejected, as of apo_down, with the sign kept"),
    "apo_sum": ("h_apo_zero", "the loss is the sum over pairs, not the mean"),
    "mix_equal": ("h_mix_sft", "loss_weights are never handed over: all weights are 1"),
    "sft_rejected": ("h_mix_sft", "the SFT term is of the rejected answers"),
    "sft_padded": ("h_mix_sft", "the SFT term is a mean over all columns, prompt and padding as zeros"),
    "sft_row_mean": ("h_mix_sft", "the SFT term is summed per row over tokens and averaged over rows"),
    "ref_shuffled": ("h_robust_pre", "precomputed reference log-probs are in the order of the unshuffled data: each pair gets another one's"),
    "ref_is_policy": ("h_mix_sft", "the reference is the policy itself (no copy was made): log-ratios are 0 for ever"),
    "ref_follows": ("h_apo_zero", "the reference is overwritten by the policy after every step"),
    "ls_swapped": ("h_reffree_ls", "label smoothing's weights are swapped: 1 − ε goes with the flipped label"),
    "len_mean": ("h_reffree_ls", "log-probs are divided by the length in the loss, though sums are declared"),
    "rejected_detached": ("h_robust_pre", "the rejected answers' log-probs are detached: nothing pushes them down"),
    "reward_log_no_beta": ("h_apo_zero", "rewards/chosen and rewards/rejected are logged without β"),
    "length_filter": (
        "h_discopop",
        "pairs with a chosen answer as long as or much shorter than the rejected one are masked out of the mean, which nothing declares",
    ),
}


def run(out, c, bug):
    g = torch.Generator().manual_seed(c["seed"])
    m = make(c["seed"])
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    N, P, T = c["N"], c["P"], c["T"]
    # the data set: chosen and rejected answers of two other models, right-padded rows
    pids, patt, pl = prompts(N, P, g)
    good, bad = make(c["seed"] + 500), make(c["seed"] + 600)
    rows = []
    for mm in (good, bad):
        resp, mask, _ = sample(mm, pids, patt, T, 1.0, g)
        ids, cm = torch.full((N, P + T), PAD), torch.zeros(N, P + T, dtype=torch.bool)
        for i in range(N):
            p = pids[i][patt[i]]
            r = resp[i][mask[i]]
            ids[i, : len(p)] = p
            ids[i, len(p) : len(p) + len(r)] = r
            cm[i, len(p) : len(p) + len(r)] = True
        rows.append((ids, cm))

    def pass_(model, ids, cm, policy=True):
        att = ids != PAD
        lg = logits_of(model, ids, att)
        S = ids.shape[1]
        lp = lg[:, :-1].float().log_softmax(-1)
        tok = lp.gather(-1, ids[:, 1:, None]).squeeze(-1)
        use = cm[:, 1:]
        if bug == "prompt_in_sum":
            use = att[:, 1:]
        if bug == "pad_in_sum":
            use = use | ~att[:, 1:]
        if bug == "eos_left_out" and policy:
            last = (cm[:, 1:] * torch.arange(S - 1)).argmax(1)
            use = use.clone()
            use[torch.arange(len(ids)), last] = False
        tok = tok * use
        return tok, tok.sum(1)

    pre = None
    if c["pre"]:
        with torch.no_grad():
            pre = [pass_(ref, *r, policy=False)[1] for r in rows]
    b = c["beta"]
    micro = c["B"]
    order = torch.cat([torch.randperm(N, generator=g) for _ in range(20)])
    at = 0
    for step in range(1, c["steps"] + 1):
        opt.zero_grad()
        for q in range(c["ga"]):
            i = order[at : at + micro]
            at += micro
            (ci, cc), (ri, rc) = [(a[i], k[i]) for a, k in rows]
            ids, cm = torch.cat([ci, ri]), torch.cat([cc, rc])
            S = int((ids != PAD).sum(1).max())
            ids, cm = ids[:, :S], cm[:, :S]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=c["half"]):
                tok, s = pass_(m, ids, cm)
            lc, lr_ = s.chunk(2)
            lc.retain_grad()
            lr_.retain_grad()
            rtok = None
            if c["own"]:
                fc = fr = torch.zeros_like(lc.detach())
            elif c["pre"]:
                j = torch.arange(at - micro, at) % N if bug == "ref_shuffled" else i
                fc, fr = pre[0][j], pre[1][j]
            else:
                with torch.no_grad():
                    if bug == "ref_is_policy":
                        rtok, rs = pass_(m, ids, cm, policy=False)
                    elif bug == "ref_swapped":
                        rtok, rs = pass_(ref, torch.cat([ids[micro:], ids[:micro]]), torch.cat([cm[micro:], cm[:micro]]), policy=False)
                    else:
                        rtok, rs = pass_(ref, ids, cm, policy=False)
                    fc, fr = rs.chunk(2)
            nc, nr = cm.sum(1).chunk(2)
            x, y = lc - fc, (lr_.detach() if bug == "rejected_detached" else lr_) - fr
            d = x - y
            F_ = F.logsigmoid
            bb = 1.0 if bug == "no_beta" else b
            total, t, sole = 0.0, {}, None
            for name, w in zip(c["loss"], c["w"] or [1.0] * len(c["loss"])):
                if bug == "mix_equal":
                    w = 1.0
                if name == "sigmoid":
                    if c["own"]:
                        e = 1 - c["ls"] if bug == "ls_swapped" else c["ls"]
                        dd = lc / nc - lr_ / nr if bug == "len_mean" else d
                        l = -F_(bb * dd) * (1 - e) - F_(-bb * dd) * e
                    else:
                        l = -F_(bb * d)
                elif name == "robust":
                    k = -(1 - c["ls"]) * F_(b * d)
                    f = -c["ls"] * F_(-b * d)
                    l = (k + f if bug == "robust_plus" else k - f) / (1.0 if bug == "robust_undivided" else 1 - 2 * c["ls"])
                elif name == "ipo":
                    n1, n2 = (nr, nc) if bug == "ipo_lens_swapped" else (nc, nr)
                    if bug == "ipo_len_padded":
                        n1 = n2 = S
                    if bug == "ipo_sum":
                        n1 = n2 = 1
                    l = (x / n1 - y / n2 - 1 / ((1 if bug == "ipo_target" else 2) * b)) ** 2
                elif name == "apo_zero":
                    a1 = torch.sigmoid(b * x) if bug == "apo_down" else 1 - torch.sigmoid(b * x)
                    l = a1 + (torch.sigmoid(-b * d) if bug == "apo_margin" else torch.sigmoid(b * y))
                elif name == "discopop":
                    z = d * bb
                    mo = torch.sigmoid(z * c["tau"] if bug == "tau_multiplied" else z / c["tau"])
                    if bug == "disco_mix_swapped":
                        mo = 1 - mo
                    l = -F_(z) * (1 - mo) + (-z).exp() * mo
                elif name == "bco_pair":
                    l = -F_(b * x) - F_(-b * y)
                elif name == "sft":
                    h = slice(micro, None) if bug == "sft_rejected" else slice(0, micro)
                    tk, mk = tok[h], cm[h, 1:]
                    nll = -tk.mean() if bug == "sft_padded" else -(tk * mk).sum(1).mean() if bug == "sft_row_mean" else -tk[mk].mean()
                    l = nll.expand(micro)
                    t["nll_loss"] = nll
                if bug == "length_filter":
                    keep = (nc != nr) & (nc > nr - 3)
                    mean = (l * keep).sum() / keep.sum().clamp(min=1)
                else:
                    mean = l.sum() if bug == "apo_sum" else l.mean()
                total = total + mean * w
                sole = l
            (total / c["ga"]).backward()
            t |= dict(response_mask=cm[:micro, 1:], logp_chosen=lc, logp_rejected=lr_, ref_chosen=fc, ref_rejected=fr, loss=total)
            if "ipo" in c["loss"] or c["tok"]:
                t |= dict(chosen_tokens=nc, rejected_tokens=nr)
            if c["tok"]:
                t |= dict(
                    chosen_mask=cm[:micro, 1:],
                    rejected_mask=cm[micro:, 1:],
                    chosen_token_logps=tok[:micro],
                    rejected_token_logps=tok[micro:],
                    ref_chosen_token_logps=rtok[:micro],
                    ref_rejected_token_logps=rtok[micro:],
                )
            if c["grads"]:
                t |= dict(dlogp_chosen=lc.grad * c["ga"], dlogp_rejected=(lr_.grad if lr_.grad is not None else torch.zeros_like(lr_)) * c["ga"])
            if c["grads"] and len(c["loss"]) == 1:
                t["pair_loss"] = sole
            rb = 1.0 if bug == "reward_log_no_beta" else b
            with torch.no_grad():
                u, v = rb * (lc - fc), rb * (lr_ - fr)
                sca = {
                    "loss": total.item(),
                    "rewards/chosen": u.mean().item(),
                    "rewards/rejected": v.mean().item(),
                    "rewards/margins": (u - v).mean().item(),
                    "rewards/accuracies": (u > v).float().mean().item(),
                    "logps/chosen": lc.mean().item(),
                    "logps/rejected": lr_.mean().item(),
                }
            meta = dict(
                algorithm="dpo",
                run=f"pref-{c['seed']}",
                step=step,
                rank=0,
                world_size=1,
                micro_batch=q,
                micro_batches=c["ga"],
                scalars=sca,
                scalars_scope="micro_batch",
            )
            if c["own"]:
                meta["options"] = {"dpo.loss": "sigmoid", "dpo.beta": b, "dpo.label_smoothing": c["ls"], "agg.div_ga": False}
            else:
                meta |= dict(
                    framework="trl",
                    version="1.16.0",
                    options=dict(
                        loss_type=c["loss"],
                        loss_weights=c["w"],
                        beta=b,
                        label_smoothing=c["ls"],
                        discopop_tau=c["tau"],
                        f_divergence_type="reverse_kl",
                        use_weighting=False,
                        precompute_ref_log_probs=c["pre"],
                        gradient_accumulation_steps=c["ga"],
                        learning_rate=c["lr"],
                        ld_alpha=None,
                        **{"agg.div_ga": False},
                    ),
                )
            write(out, f"step_{step:04d}_{q}", t, **meta)
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        if bug == "ref_follows":
            ref = copy.deepcopy(m)


if __name__ == "__main__":
    main("b6_pref", H, B, run)
