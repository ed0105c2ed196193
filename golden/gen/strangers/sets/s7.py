"""offline: TRL 1.16 DPO (loss statements exec'd from the source), SFT, KTO. Even seeds full (token log-probs, dlogp, pair_loss where one loss), odd ones lazy."""

import os
import random, types, textwrap
from world_s import *

SRC = os.path.join(os.environ["WHEELS"], "trl-1.16.0/trl/trainer/dpo_trainer.py")
_l = open(SRC).read()
_a = _l.index("        # Get the log ratios for the chosen and rejected responses")
_e = "            loss += per_sequence_loss.mean() * loss_weight"
_b = _l.index(_e, _a) + len(_e)
DPO = compile(textwrap.dedent(_l[_a:_b]), "dpo", "exec")
K = [
    ("sigmoid", {}),
    ("ipo", {}),
    ("hinge", {}),
    ("robust", dict(label_smoothing=0.1)),
    ("exo_pair", dict(label_smoothing=0.05)),
    ("aot", dict(label_smoothing=0.2)),
    ("sigmoid_norm", dict(beta=2.0)),
    ("discopop", dict(discopop_tau=0.05)),
    ("sigmoid+bco_pair+sft", {}),
    ("sigmoid", dict(f_divergence_type="js_divergence")),
    ("nca_pair", {}),
    ("sigmoid", dict(f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.5)),
    ("apo_down", {}),
    ("SFT", {}),
    ("KTO", {}),
    ("SFTga", {}),
]
CASES = {f"h_{i:02d}_{k.replace('+', '-')}" + ("_" + "_".join(str(v) for v in o.values()) if o else ""): (i, k, o) for i, (k, o) in enumerate(K)}


def run(out, case):
    i, kind, ov = CASES[case]
    r = random.Random(i + 88)
    o = Out(out, "s7", case)
    torch.manual_seed(i)
    g = torch.Generator().manual_seed(60 + i)
    m = LM()
    ref = copy.deepcopy(m)
    with torch.no_grad():
        [p.add_(0.05 * torch.randn(p.shape, generator=g)) for p in m.parameters()]
    opt = torch.optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.0)
    W, GA, B, full = r.choice([1, 2]), r.choice([1, 2]), 8, i % 2 == 0
    beta = ov.get("beta", 0.1 if kind != "ipo" else 0.5)
    lt = kind.split("+")
    lw = {"sigmoid+bco_pair+sft": [0.7, 0.2, 0.5]}.get(kind)
    for step in range(1, 5):
        opt.zero_grad()
        DD = []
        for r_ in range(W):
            for j in range(GA):
                pr, pm = mkprompts(B, 2, g)
                R, M, L = sample(ref, ref, pr, pm, 24, 1.0, g)
                DD.append((pr, R, M, pm))
        tot = sum(int(d[2].sum()) for d in DD)
        for n, (pr, R, M, pm) in enumerate(DD):
            r_, j = divmod(n, GA)
            ids = torch.cat([pr, R], 1)
            T = R.shape[1]
            meta = dict(
                schema=2,
                framework="trl",
                version="1.16.0",
                run="s7-" + case,
                step=step,
                rank=r_,
                world_size=W,
                micro_batch=j,
                micro_batches=GA,
                scalars_scope="micro_batch",
            )
            if kind.startswith("SFT"):
                lp, ent, _ = logps(m, ids, T)
                loss = -(lp * M).sum() / tot * W
                (dl,) = torch.autograd.grad(loss, lp, retain_graph=True)
                (loss / W).backward()
                t = dict(labels_mask=M, logp_new=lp, loss=loss)
                if full:
                    t["dlogp"] = dl
                o.write(
                    t,
                    dict(
                        meta,
                        algorithm="sft",
                        options=dict(loss_type="nll", num_items_in_batch=tot, gradient_accumulation_steps=GA),
                        scalars=dict(loss=loss.item()),
                    ),
                )
                continue
            if kind == "KTO":
                lp = (logps(m, ids, T)[0] * M).sum(1)
                with torch.no_grad():
                    rl = (logps(ref, ids, T)[0] * M).sum(1)
                    sh = torch.roll(torch.arange(len(ids)), 1)
                    kids = torch.cat([pr[sh], R], 1)
                    kl = ((logps(m, kids, T)[0] - logps(ref, kids, T)[0]) * M).sum(1).mean().clamp(min=0)
                des = torch.rand(len(ids), generator=g) < 0.5
                lr_ = lp - rl
                ls = torch.where(des, 1 - torch.sigmoid(0.1 * (lr_ - kl)), 1.2 * (1 - torch.sigmoid(0.1 * (kl - lr_))))
                loss = ls.mean()
                (loss / GA / W).backward()
                o.write(
                    dict(response_mask=M, logp_policy=lp, logp_reference=rl, desirable=des, reference_point=kl, loss=loss),
                    dict(
                        meta,
                        algorithm="kto",
                        framework="own-kto",
                        options={"kto.desirable": 1.0, "kto.undesirable": 1.2, "dpo.beta": 0.1, "agg.div_ga": False},
                        scalars=dict(loss=loss.item()),
                    ),
                )
                continue
            s = torch.cat([torch.arange(0, 2 * B, 2), torch.arange(1, 2 * B, 2)])
            ids, M, pr_ = ids[s], M[s], pr[s]
            S = ids.shape[1]
            cm = torch.cat([torch.zeros_like(pr_), M], 1)
            ptl = F.pad(logps(m, ids, T)[0] * M, (S - 1 - T, 0))
            with torch.no_grad():
                rptl = F.pad(logps(ref, ids, T)[0] * M, (S - 1 - T, 0))
            cl, rj = ptl.sum(1).chunk(2)
            rc, rr = rptl.sum(1).chunk(2)
            me = types.SimpleNamespace(
                f_divergence_type=ov.get("f_divergence_type", "reverse_kl"),
                f_alpha_divergence_coef=ov.get("f_alpha_divergence_coef", 0.5),
                loss_types=lt,
                loss_weights=lw or [1.0] * len(lt),
                beta=beta,
                label_smoothing=ov.get("label_smoothing", 0.0),
                use_weighting=False,
                args=types.SimpleNamespace(discopop_tau=ov.get("discopop_tau", 0.05)),
            )
            ns = dict(
                torch=torch,
                F=F,
                math=math,
                self=me,
                chosen_logps=cl,
                rejected_logps=rj,
                ref_chosen_logps=rc,
                ref_rejected_logps=rr,
                completion_mask=cm,
                shift_completion_mask=cm[:, 1:],
                per_token_logps=ptl,
                device="cpu",
            )
            exec(DPO, ns)
            loss = ns["loss"]
            dc, dr = torch.autograd.grad(loss, [cl, rj], retain_graph=True)
            (loss / GA / W).backward()
            mk = cm[:, 1:]
            nc, nr = mk.sum(1).chunk(2)
            c2 = lambda x: x.chunk(2)
            t = dict(response_mask=c2(mk)[0], logp_chosen=cl, logp_rejected=rj, ref_chosen=rc, ref_rejected=rr, loss=loss, chosen_tokens=nc, rejected_tokens=nr)
            if "sft" in lt:
                t["nll_loss"] = -ptl.chunk(2)[0][c2(mk)[0].bool()].mean()
            if full:
                t.update(
                    dlogp_chosen=dc,
                    dlogp_rejected=dr,
                    chosen_token_logps=c2(ptl)[0],
                    rejected_token_logps=c2(ptl)[1],
                    ref_chosen_token_logps=c2(rptl)[0],
                    ref_rejected_token_logps=c2(rptl)[1],
                    chosen_mask=c2(mk)[0],
                    rejected_mask=c2(mk)[1],
                )
                if len(lt) == 1:
                    t["pair_loss"] = ns["per_sequence_loss"]
            o.write(
                t,
                dict(
                    meta,
                    algorithm="dpo",
                    options={
                        "loss_type": lt,
                        "loss_weights": lw,
                        "beta": beta,
                        "label_smoothing": me.label_smoothing,
                        "f_divergence_type": me.f_divergence_type,
                        "f_alpha_divergence_coef": me.f_alpha_divergence_coef,
                        "discopop_tau": me.args.discopop_tau,
                        "gradient_accumulation_steps": GA,
                        "agg.div_ga": False,
                    },
                    scalars={"loss": loss.item(), "rewards/chosen": (beta * (cl - rc)).mean().item()} if W == 1 else {"loss": loss.item()},
                ),
            )
        opt.step()


if __name__ == "__main__":
    main("s7", CASES, run)
