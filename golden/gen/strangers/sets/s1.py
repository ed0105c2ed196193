"""TRL 1.16 GRPO, from its source (_compute_loss, advantage statements, masks). Dumps: odd numbers lazy (log-probs, mask, advantages, rewards, loss), even ones everything."""

import os
import random, types
from world_s import *

SRC = os.path.join(os.environ["WHEELS"], "trl-1.16.0/trl/trainer/grpo_trainer.py")


def nanmin(t):
    return torch.min(t[~t.isnan()]) if (~t.isnan()).any() else torch.tensor(float("nan"))


def nanmax(t):
    return torch.max(t[~t.isnan()]) if (~t.isnan()).any() else torch.tensor(float("nan"))


NS = dict(torch=torch, math=math, nanmin=nanmin, nanmax=nanmax)
cut(os.path.join(os.environ["WHEELS"], "trl-1.16.0/trl/trainer/utils.py"), ["nanstd", "nanvar"], NS)
cut(SRC, ["get_high_entropy_mask", "get_off_policy_mask", "get_gamma_weights", "_compute_loss"], NS, "GRPOTrainer")
_l = open(SRC).read()
_a = _l.index("        unscorable_mask = torch.isnan(rewards_per_func)")
_b = _l.index("        # Slice to keep only the local part of the data", _a)
import textwrap

ADV = compile(textwrap.dedent(_l[_a:_b]), "adv", "exec")
LOSS = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]
N = 16


def draw(i):
    r = random.Random(4000 + i)
    c = {}
    c["loss_type"] = LOSS[i % 8]
    c["importance_sampling_level"] = r.choice(["token", "sequence"]) if c["loss_type"] != "luspo" else r.choice(["sequence", "sequence", "token"])
    c["ranks"] = r.choice([1, 2])
    c["ga"] = r.choice([1, 2, 3]) if i % 2 else r.choice([1, 2])
    c["spg"] = c["ga"] * r.choice([1, 2])
    c["iters"] = r.choice([1, 2, 3])
    c["G"] = r.choice([4, 8])
    c["F"] = r.choice([1, 2, 3])
    c["nan"] = r.random() < 0.5
    c["tools"] = r.random() < 0.4
    c["trunc"] = r.random() < 0.4
    c["mode"] = r.choice([None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
    c["is_max"] = r.choice([1.02, 1.1, 3.0])
    c["is_min"] = r.choice([None, None, 0.9])
    c["beta"] = r.choice([0.0, 0.04, 0.2])
    c["bias_kl"] = r.random() < 0.6
    c["ent"] = r.choice([0.0, 0.0, 0.02])
    c["quant"] = r.choice([1.0, 1.0, 0.3, 0.6])
    c["sync"] = r.random() < 0.5
    c["eps"] = r.choice([0.1, 0.2])
    c["eps_high"] = r.choice([None, 0.28, 0.15])
    if c["loss_type"] == "cispo":
        c["eps_high"] = r.choice([1.1, 2.0, 5.0])
    c["delta"] = r.choice([None, None, 1.5])
    c["scale"] = r.choice(["group", "batch", "none"])
    c["multi"] = r.choice(["sum_then_normalize", "sum_then_normalize", "normalize_then_sum"]) if c["F"] > 1 else "sum_then_normalize"
    c["opm"] = r.choice([None, None, 0.02])
    c["temp"] = r.choice([1.0, 0.8, 1.3])
    c["T"] = r.choice([16, 28, 40])
    c["lr"] = r.choice([3e-3, 8e-3])
    c["seed"] = i
    return c


CASES = {}
for i in range(N):
    c = draw(i)
    w = (
        [c["loss_type"], c["importance_sampling_level"][:3], f"r{c['ranks']}ga{c['ga']}"]
        + [c["mode"] or "novllm"]
        + (["ent"] if c["ent"] else [])
        + (["q"] if c["quant"] < 1 else [])
    )
    CASES[f"h_{i:02d}_" + "_".join(w)] = c


def run(out, case):
    c = CASES[case]
    o = Out(out, "s1", case)
    torch.manual_seed(100 + c["seed"])
    g = torch.Generator().manual_seed(7 + c["seed"])
    m = LM()
    ref = copy.deepcopy(m)
    opt = torch.optim.AdamW(m.parameters(), lr=c["lr"], weight_decay=0.0)
    W, GA, SPG, G = c["ranks"], c["ga"], c["spg"], c["G"]
    PD = 8 if SPG * W > 4 else 12 if G == 4 else 8
    rows = PD * SPG * W
    rows_rank = PD * SPG
    vllm = c["mode"] is not None
    opts = dict(
        loss_type=c["loss_type"],
        importance_sampling_level=c["importance_sampling_level"],
        gradient_accumulation_steps=GA,
        steps_per_generation=SPG,
        num_iterations=c["iters"],
        num_generations=G,
        beta=c["beta"],
        use_bias_correction_kl=c["bias_kl"],
        epsilon=c["eps"],
        epsilon_high=c["eps_high"],
        delta=c["delta"],
        scale_rewards=c["scale"],
        multi_objective_aggregation=c["multi"],
        off_policy_mask_threshold=c["opm"],
        temperature=c["temp"],
        max_completion_length=c["T"],
        mask_truncated_completions=c["trunc"],
        top_entropy_quantile=c["quant"],
        entropy_coef=c["ent"],
        use_vllm=vllm,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=c["mode"] or "sequence_mask",
        vllm_importance_sampling_clip_max=c["is_max"],
        vllm_importance_sampling_clip_min=c["is_min"],
        sync_ref_model=c["sync"],
        ref_model_mixup_alpha=0.6,
        ref_model_sync_steps=2,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        vespo_k_pos=2.0,
        vespo_lambda_pos=3.0,
        vespo_k_neg=3.0,
        vespo_lambda_neg=2.0,
        learning_rate=c["lr"],
        reward_weights=[1.0, 0.5, 2.0][: c["F"]],
        eos_token_id=EOS,
        pad_token_id=PAD,
        per_device_train_batch_size=PD,
        disable_dropout=True,
        max_grad_norm=1.0,
        weight_decay=0.0,
    )
    args = types.SimpleNamespace(**opts)
    ref_on = c["beta"] != 0
    step = 0
    micro_total = 0
    for gen in range(3 if SPG // GA * c["iters"] <= 3 else 2):
        eng = engine_of(m, vllm)
        pr, pm = mkprompts(rows // G, G, g)
        R, M, L = sample(m, eng, pr, pm, c["T"], c["temp"], g)
        tool = None
        if c["tools"]:
            tool = torch.ones_like(M)
            for b in range(0, rows, 2):
                n = int(M[b].sum())
                if n > 6:
                    tool[b, 2 : 2 + 3] = 0
            R = torch.where((tool == 0) & (R == EOS), torch.full_like(R, 5), R)
        ended = ((R == EOS) * M).sum(1) > 0
        n = M.sum(1).float()
        T = R.shape[1]
        fs = [((R % 3 == 0) * M).sum(1) / n + 0.1 * (R[:, 0] % 4).float(), -(n - 9).abs() / 10, ended.float() + 0.3 * (R[:, 1] > 12)]
        rpf = torch.stack(fs[: c["F"]], 1)
        if c["nan"]:
            if c["F"] > 1:
                rpf[::5, 1] = float("nan")
            rpf[3] = float("nan")
        cm = M.clone()
        if c["trunc"]:
            cm = cm * ended[:, None].long()
            tool = tool * ended[:, None].long() if tool is not None else None
        ids = torch.cat([pr, R], 1)
        mask = cm if tool is None else cm * tool
        nib = mask.sum()
        with torch.no_grad():
            lp0, _, _ = logps(m, ids, T, c["temp"])
            old = lp0 if (GA % (SPG * c["iters"]) != 0 or vllm) else None
            isr = None
            samp = L * M if vllm else None
            if vllm:
                d = torch.nan_to_num((old - samp) * mask, nan=0.0)
                if c["mode"].startswith("seq"):
                    d = d.sum(-1, keepdim=True)
                isr = d.exp()
                if c["mode"].endswith("truncate"):
                    isr = torch.clamp(isr, min=c["is_min"], max=c["is_max"])
                else:
                    isr = isr.masked_fill((isr < (c["is_min"] if c["is_min"] is not None else -math.inf)) | (isr > c["is_max"]), 0.0)
            refl = logps(ref, ids, T, c["temp"])[0] if ref_on else None
        me = types.SimpleNamespace(
            multi_objective_aggregation=c["multi"], reward_weights=torch.tensor(opts["reward_weights"]), scale_rewards=c["scale"], reward_funcs=[0] * c["F"]
        )
        ns = dict(NS, self=me, rewards_per_func=rpf, num_generations=G, device="cpu")
        exec(ADV, ns)
        adv = ns["advantages"]
        scores = (rpf * me.reward_weights).nansum(dim=1)
        scores[torch.isnan(rpf).all(dim=1)] = torch.nan  # as TRL reassigns rewards afterwards
        gid = torch.arange(rows) // G + gen * 1000
        sid = torch.arange(rows) + gen * 100000
        perm = [torch.randperm(rows_rank, generator=g) + r * rows_rank for r in range(W)]
        for it in range(c["iters"]):
            for k0 in range(0, SPG, GA):
                step += 1
                opt.zero_grad()
                for j in range(GA):
                    k = k0 + j
                    I = [perm[r][k * PD : (k + 1) * PD] for r in range(W)]
                    with torch.no_grad():
                        ents = [logps(m, ids[I[r]], T, c["temp"])[1][mask[I[r]].bool()] for r in range(W)]
                    for r in range(W):
                        held = {}
                        ix = I[r]

                        def lpe(model, input_ids, am, keep, **kw):
                            held["f"] = sys._getframe(1)
                            lp, e, raw = logps(model, input_ids, keep, c["temp"])
                            lp.retain_grad() if False else None
                            return lp, e, None

                        acc = types.SimpleNamespace(
                            num_processes=W,
                            process_index=r,
                            sync_gradients=j == GA - 1,
                            pad_across_processes=lambda x, **kw: x,
                            gather=lambda x: (
                                torch.cat(ents)
                                if x.dim() == 1 and x.is_floating_point() and not x.requires_grad and x.numel() == ents[r].numel() and torch.equal(x, ents[r])
                                else x
                            ),
                            reduce=lambda x, **kw: x,
                            gather_for_metrics=lambda x: x,
                        )
                        met = {"train": __import__("collections").defaultdict(list)}
                        ec = {}
                        tr = types.SimpleNamespace(
                            _get_per_token_logps_and_entropies=lpe,
                            aux_loss_enabled=False,
                            top_entropy_quantile=c["quant"],
                            off_policy_mask_threshold=c["opm"],
                            importance_sampling_level=c["importance_sampling_level"],
                            beta=c["beta"],
                            args=args,
                            loss_type=c["loss_type"],
                            epsilon_low=c["eps"],
                            epsilon_high=c["eps_high"] if c["eps_high"] is not None else c["eps"],
                            use_vllm=vllm,
                            vllm_importance_sampling_correction=True,
                            model=m,
                            current_gradient_accumulation_steps=GA,
                            max_completion_length=c["T"],
                            accelerator=acc,
                            _entropy_bonus_enabled=c["ent"] != 0,
                            use_adaptive_entropy=False,
                            entropy_coef=c["ent"],
                            _metrics=met,
                            get_off_policy_mask=NS["get_off_policy_mask"],
                            get_gamma_weights=NS["get_gamma_weights"],
                        )
                        tr.get_high_entropy_mask = lambda e, mk, th: NS["get_high_entropy_mask"](tr, e.detach(), mk, th)
                        inp = dict(
                            prompt_ids=pr[ix], prompt_mask=pm[ix], completion_ids=R[ix], completion_mask=cm[ix], advantages=adv[ix], num_items_in_batch=nib
                        )
                        if tool is not None:
                            inp["tool_mask"] = tool[ix]
                        if old is not None:
                            inp["old_per_token_logps"] = old[ix]
                        if samp is not None:
                            inp["sampling_per_token_logps"] = samp[ix]
                            inp["importance_sampling_ratio"] = isr[ix]
                        if refl is not None:
                            inp["ref_per_token_logps"] = refl[ix]
                        loss = NS["_compute_loss"](tr, m, inp)
                        v = held["f"].f_locals
                        lp = v["per_token_logps"]
                        (dl,) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
                        (loss / W).backward()
                        full = c["seed"] % 2 == 0
                        t = dict(
                            response_ids=R[ix],
                            response_mask=v["mask"],
                            logp_new=lp,
                            logp_old=inp.get("old_per_token_logps"),
                            logp_ref=inp.get("ref_per_token_logps"),
                            logp_gen=inp.get("sampling_per_token_logps"),
                            advantages=adv[ix],
                            scores=scores[ix],
                            group_id=gid[ix],
                            loss=loss,
                            sample_id=sid[ix],
                        )
                        if c["F"] > 1 or c["nan"]:
                            t["rewards_per_func"] = rpf[ix]
                        if c["quant"] < 1 or c["ent"]:
                            t["entropy"] = v["entropies"]
                        if full:
                            t.update(
                                input_ids=v["input_ids"],
                                attention_mask=v["attention_mask"],
                                kl=v.get("per_token_kl"),
                                is_weights=inp.get("importance_sampling_ratio"),
                                entropy=v["entropies"],
                                token_loss=v["per_token_loss"].expand_as(lp),
                                dlogp=dl,
                            )
                        if full and t["is_weights"] is not None and t["is_weights"].shape[1] == 1:
                            t["is_weights"] = t["is_weights"].squeeze(1)
                        sc = {"loss": loss.item()}
                        if full and W == 1:
                            sc.update(
                                {
                                    k_: x[-1]
                                    for k_, x in met["train"].items()
                                    if (k_ == "kl" or k_ == "entropy" or k_.startswith("clip_ratio")) and math.isfinite(x[-1])
                                }
                            )
                        o.write(
                            t,
                            dict(
                                schema=2,
                                framework="trl",
                                version="1.16.0",
                                algorithm="grpo",
                                run="s1-" + case,
                                step=step,
                                rank=r,
                                world_size=W,
                                micro_batch=j,
                                micro_batches=GA,
                                options={**{k_: x for k_, x in opts.items()}, "num_items_in_batch": int(nib)},
                                scalars=sc,
                                scalars_scope="micro_batch",
                                token_loss_includes_kl=True,
                            ),
                        )
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                opt.step()
                if ref_on and c["sync"] and step % 2 == 0:
                    with torch.no_grad():
                        for a, b in zip(ref.parameters(), m.parameters()):
                            a.mul_(0.4).add_(b, alpha=0.6)


main("s1", CASES, run)
