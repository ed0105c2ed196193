"""h5: preference, labelled and supervised losses (DPOTrainer 1.16 kinds, KTO, SFT, GKD) over the little model. Dump: sums, ref sums, pair_loss, gradients; some lazy."""

from world_o import *

F_ = torch.nn.functional
ls = F_.logsigmoid
C = dict(
    h_sigmoid_trl=dict(o=dict(loss_type=["sigmoid"], beta=0.1, label_smoothing=0.0), trl=True),
    h_ipo_pertoken=dict(o=dict(loss_type=["ipo"], beta=0.2), trl=True),
    h_mix_bco_sft=dict(o=dict(loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0], beta=0.1), trl=True),
    h_js_hinge=dict(o=dict(loss_type=["hinge"], beta=0.5, f_divergence_type="js_divergence"), trl=True, ga=2),
    h_robust_ls=dict(o=dict(loss_type=["robust"], beta=0.1, label_smoothing=0.2), trl=True),
    h_own_ipo_sums=dict(o={"dpo.loss": "ipo", "dpo.beta": 0.05, "dpo.per_token": False}, kind="ipo_sum"),
    h_aot_ties=dict(o=dict(loss_type=["aot"], beta=0.1), trl=True, ties=True),
    h_sppo_bf16=dict(o=dict(loss_type=["sppo_hard"], beta=0.3), trl=True, bf16=True),
    h_apo_down_equalref=dict(o=dict(loss_type=["apo_down"], beta=0.4), trl=True),
    h_discopop=dict(o=dict(loss_type=["discopop"], beta=0.3, discopop_tau=0.05), trl=True, lazy=True),
    h_kto_weights=dict(kto=True),
    h_sft_packed=dict(sft=True),
    h_sft_ga_unequal=dict(sft=True, ga=2),
    h_gkd_js=dict(gkd=True),
)


def pairloss(o, kind, c, r, cn, rn, b, nll, pc, prj, rc, rr):
    if kind == "ipo_sum":
        return ((c - r) - 1 / (2 * b)) ** 2
    if o.get("f_divergence_type") == "js_divergence":
        sc, sr = math.log(2) + ls(c), math.log(2) + ls(r)
    else:
        sc, sr = c, r
    d = sc - sr
    tot = 0
    for t, w in zip(o["loss_type"], o.get("loss_weights", [1.0])):
        if t == "sigmoid":
            l = -ls(b * d)
        elif t == "hinge":
            l = torch.relu(1 - b * d)
        elif t == "ipo":
            l = (sc / cn - sr / rn - 1 / (2 * b)) ** 2
        elif t == "bco_pair":
            l = -ls(b * c) - ls(-b * r)
        elif t == "sft":
            continue
        elif t == "robust":
            e = o["label_smoothing"]
            l = (-(1 - e) * ls(b * d) + e * ls(-b * d)) / (1 - 2 * e)
        elif t == "aot":
            l = -ls(b * ((pc - prj).sort(0)[0] - (rc - rr).sort(0)[0]))
        elif t == "sppo_hard":
            l = (c - 0.5 / b) ** 2 + (r + 0.5 / b) ** 2
        elif t == "apo_down":
            l = torch.sigmoid(b * c) + 1 - torch.sigmoid(b * (c - r))
        elif t == "discopop":
            z = d * b
            m = torch.sigmoid(z / o["discopop_tau"])
            l = -ls(z) * (1 - m) + torch.exp(-z) * m
        tot = tot + w * l
    return tot


def go(out, case, c):
    seed = sum(map(ord, case))
    gen = torch.Generator().manual_seed(seed)
    m = LM(seed)
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=0.01)
    B = 16
    GA = c.get("ga", 1)
    if c.get("bf16"):
        m = LM(seed, dtype=torch.bfloat16)
        ref = copy.deepcopy(m)
        opt = torch.optim.SGD(m.parameters(), lr=0.05)
    alg = "kto" if c.get("kto") else "sft" if c.get("sft") else "gkd" if c.get("gkd") else "dpo"
    fw = dict(framework="trl", version="1.16.0") if c.get("trl") else dict(framework="own", version="0")
    d = Dump(out, "o5", case, describes="right", algorithm=alg, world_size=1, **fw)
    T = 14

    def data(n, ties=False):
        P, PA = prompts(n, 1, gen)
        L = torch.randint(1, T + 1, (n,), generator=gen)
        r = torch.randint(2, V, (n, T), generator=gen)
        a = (torch.arange(T) < L[:, None]).long()
        r[torch.arange(n), L - 1] = EOS
        r = r * a + PAD * (1 - a)
        return P, PA, r, a

    for step in range(1, 6):
        opt.zero_grad()
        batches = [[data(B), data(B)] for _ in range(GA)]
        totals = sum(int(x[0][3].sum()) for x in batches)
        for mb, ((P, PA, r1, a1), (_, _, r2, a2)) in enumerate(batches):
            if c.get("ties"):
                r2[:3], a2[:3] = r1[:3], a1[:3]
            l1 = lp_of(m, P, PA, r1, a1)
            l2 = lp_of(m, P, PA, r2, a2)
            with torch.no_grad():
                q1, q2 = lp_of(ref, P, PA, r1, a1), lp_of(ref, P, PA, r2, a2)
            s = lambda z, a: (z * a).sum(-1)
            op = {}
            sc = None
            kw = {}
            if alg == "dpo":
                o = c["o"]
                b = o.get("beta", o.get("dpo.beta"))
                pc, pr, rc, rr = s(l1, a1), s(l2, a2), s(q1, a1), s(q2, a2)
                n1, n2 = a1.sum(-1), a2.sum(-1)
                pl = pairloss(o, c.get("kind"), pc - rc, pr - rr, n1, n2, b, None, pc, pr, rc, rr)
                loss = pl.mean()
                t = dict(logp_chosen=pc, logp_rejected=pr, ref_chosen=rc, ref_rejected=rr, chosen_tokens=n1, rejected_tokens=n2)
                if "sft" in o.get("loss_type", []):
                    nll = -l1[a1.bool()].mean()
                    loss = loss + o["loss_weights"][o["loss_type"].index("sft")] * nll
                    t["nll_loss"] = nll
                loss = loss / GA
                if not c.get("lazy"):
                    t |= dict(
                        pair_loss=pl,
                        dlogp_chosen=d_of(loss, pc),
                        dlogp_rejected=d_of(loss, pr),
                        chosen_token_logps=l1,
                        chosen_mask=a1.bool(),
                        rejected_token_logps=l2,
                        rejected_mask=a2.bool(),
                    )
                if "sft" in o.get("loss_type", []):
                    t.pop("dlogp_chosen", None)
                t["loss"] = loss
                op = dict(o)
                rwc, rwr = b * (pc - rc).detach(), b * (pr - rr).detach()
                if c.get("trl"):
                    sc = {
                        "rewards/chosen": rwc.mean().item(),
                        "rewards/rejected": rwr.mean().item(),
                        "rewards/margins": (rwc - rwr).mean().item(),
                        "rewards/accuracies": (rwc > rwr).float().mean().item(),
                        "logps/chosen": pc.mean().item(),
                        "logps/rejected": pr.mean().item(),
                    }
                    op["gradient_accumulation_steps"] = GA
            elif alg == "kto":
                des = torch.rand(B, generator=gen) < 0.6
                b = 0.2
                lp_, rf = s(l1, a1), s(q1, a1)
                z = (s(l2, a2) - s(q2, a2)).mean().detach().clamp(min=0)
                x = lp_ - rf
                loss = torch.cat([1.0 * (1 - torch.sigmoid(b * (x[des] - z))), 1.5 * (1 - torch.sigmoid(b * (z - x[~des])))]).mean()
                t = dict(logp_policy=lp_, logp_reference=rf, desirable=des, reference_point=z, loss=loss)
                op = {"dpo.beta": b, "kto.desirable": 1.0, "kto.undesirable": 1.5}
            elif alg == "sft":
                loss = -(l1 * a1).sum() / totals
                t = dict(labels_mask=a1.bool(), logp_new=l1, loss=loss, dlogp=d_of(loss, l1))
                op = {"num_items_in_batch": totals, "agg.kind": "token", "agg.denominator": "global"}
                if not c.get("ga"):
                    k = torch.arange(T)
                    seg = ((k >= 5).long() + 1)[None].expand(B, T).clone()
                    seg[a1 == 0] = 0
                    t["segment_ids"] = seg
            else:
                ids, att = torch.cat([P, r1], 1), torch.cat([PA, a1], 1)
                st = m(ids, att)[:, P.shape[1] - 1 : -1]
                te = LM(99)(ids, att)[:, P.shape[1] - 1 : -1].detach()
                b, tau = 0.5, 0.9
                S, Q = (st / tau).log_softmax(-1), (te / tau).log_softmax(-1)
                M = torch.logsumexp(torch.stack([S + math.log(1 - b), Q + math.log(b)]), 0)
                kl = lambda p, q: (p.exp() * (p - q)).sum(-1)
                js = b * kl(Q, M) + (1 - b) * kl(S, M)
                loss = (js * a1).sum() / a1.sum()
                t = dict(labels_mask=a1.bool(), logits=st, teacher_logits=te, loss=loss)
                op = {"distill.beta": b, "distill.temperature": tau}
            loss.backward(retain_graph=True)
            if sc:
                kw = dict(scalars=sc, scalars_scope="micro_batch")
            d.write(step, t, 0, mb, micro_batches=GA, options=op, **kw)
        opt.step()


run(C, go)
