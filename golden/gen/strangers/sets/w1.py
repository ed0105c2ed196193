"""w1: TRL 1.16.0 GRPO. Its own _compute_loss, get_high_entropy_mask, get_off_policy_mask, get_gamma_weights, the block that makes advantages and
the one that makes importance ratios of engine and trainer, executed from the released file; options drawn by seed."""
import sys
from world_w import *
FILE = f"{SRC}/trl-1.16.0/trl/trainer/grpo_trainer.py"
UT = f"{SRC}/trl-1.16.0/trl/trainer/utils.py"
NS = dict(torch=torch, math=math)
for n in ("nanstd", "nanmin", "nanmax"): get_func(UT, n, NS)
COMPUTE = get_func(FILE, "_compute_loss", dict(NS), "GRPOTrainer", keep_locals=True)
HIGH = get_func(FILE, "get_high_entropy_mask", dict(NS), "GRPOTrainer")
_, T = tree(FILE)
GEN = find_def(T, "_generate_and_score_completions", "GRPOTrainer")


def ifs(node, text):
    return [n for n in ast.walk(node) if isinstance(n, ast.If) and text in ast.unparse(n.test)]


ADV = ifs(GEN, "self.multi_objective_aggregation == 'sum_then_normalize'")[0]
UNSC = next(n for n in GEN.body if "unscorable_mask =" in ast.unparse(n) and isinstance(n, ast.Assign))
NUM = next(n for n in GEN.body if isinstance(n, ast.Assign) and ast.unparse(n).startswith("advantages = torch.nan_to_num"))
ISR = next(n for n in ifs(GEN, "self.use_vllm and self.vllm_importance_sampling_correction") if "per_token_logps_diff" in ast.unparse(n))
for name in ("get_off_policy_mask", "get_gamma_weights"):
    fn = copy.deepcopy(find_def(T, name, "GRPOTrainer")); fn.decorator_list = [d for d in fn.decorator_list if "no_grad" in ast.unparse(d)]
    exec_nodes([fn], NS, FILE)


class Accel:
    def __init__(self, n): self.num_processes, self.sync_gradients = n, False
    gather = gather_for_metrics = staticmethod(lambda x: x)
    reduce = staticmethod(lambda x, reduction="sum": x)
    pad_across_processes = staticmethod(lambda x, dim=0, pad_index=0: x)


DEFAULTS = dict(beta=0.0, epsilon=0.2, epsilon_high=None, delta=None, loss_type="dapo", importance_sampling_level="token", scale_rewards="group",
                multi_objective_aggregation="sum_then_normalize", mask_truncated_completions=False, top_entropy_quantile=1.0, entropy_coef=0.0,
                use_adaptive_entropy=False, entropy_coef_min=0.0, entropy_coef_max=1.0, entropy_coef_delta=0.005, entropy_target=0.2, use_vllm=False,
                vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="sequence_mask", vllm_importance_sampling_clip_max=3.0,
                vllm_importance_sampling_clip_min=None, off_policy_mask_threshold=None, use_bias_correction_kl=True, num_iterations=1, temperature=1.0,
                sapo_temperature_neg=1.05, sapo_temperature_pos=1.0, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0)


class Trainer:
    get_off_policy_mask = staticmethod(NS["get_off_policy_mask"])
    get_gamma_weights = staticmethod(NS["get_gamma_weights"])
    get_high_entropy_mask = HIGH
    _compute_loss = COMPUTE

    def __init__(self, c, model, world):
        self.args = types.SimpleNamespace(**c)
        for k, x in c.items(): setattr(self, k, x)
        self.model, self.accelerator = model, Accel(world)
        self.epsilon_low, self.epsilon_high = c["epsilon"], c["epsilon_high"] if c["epsilon_high"] is not None else c["epsilon"]
        self._entropy_bonus_enabled = c["entropy_coef"] != 0.0 or c["use_adaptive_entropy"]
        self._last_world_entropy, self._entropy_window_stats, self.aux_loss_enabled = float("inf"), None, False
        from collections import defaultdict
        self._metrics = dict(train=defaultdict(list))

    def _get_per_token_logps_and_entropies(self, model, ids, am, keep, compute_entropy=False, compute_aux_loss=False, **_):
        lp, ent, _, self.logits = score(model, ids[:, :-keep], ids[:, -keep:], self.temperature)
        return lp, ent.detach() if not self._entropy_bonus_enabled else ent, None


def run(cases, name, note, c, rng, little, world=1, rows=16, n=4, ga=1, spg=None, T_max=20, lr=2e-2, noise=0.0, engine="same", kind="gru", funcs=("share",),
        weights=None, nan=None, tools=False, gens=2, extra_opts=None, drop=(), V=32, seed=0, declared=()):
    c = {**DEFAULTS, **c}
    spg = spg or ga
    case = Case(cases, "w1", name, note, declared, little)
    g = torch.Generator().manual_seed(seed); torch.manual_seed(seed)
    model = LM(V=V, kind=kind, eos_bias=rng.choice([0.0, 0.7, 1.2])); ref = copy.deepcopy(model)
    if c["beta"]:
        with torch.no_grad():
            for p in ref.parameters(): p.add_(0.02 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    tr = Trainer(dict(c, steps_per_generation=spg, max_completion_length=T_max, gradient_accumulation_steps=ga), model, world)
    tr.current_gradient_accumulation_steps = ga
    tr.reward_weights = torch.tensor(weights or [1.0] * len(funcs)); tr.reward_funcs = funcs
    generate_every = spg * c["num_iterations"]
    micro, bufs = 0, None
    total = gens * generate_every
    total += -total % ga
    gen_no = 0
    while micro < total:
        if micro % generate_every == 0:
            G = rows * spg  # rows of a rank
            N = G * world
            assert N % n == 0
            p, gid = prompts_for(N // n, n, 4, V, g)
            force, hole = None, None
            if tools:
                hole = torch.zeros(N, T_max, dtype=torch.bool); at = torch.randint(2, T_max - 6, (N,), generator=g); ln = torch.randint(1, 4, (N,), generator=g)
                for b in range(N):
                    if b % 3: hole[b, at[b]:at[b] + ln[b]] = True
                def force(t, lg):
                    lg = lg.clone(); lg[hole[:, t]] = -1e9; lg[hole[:, t], 5 + t % 7] = 0.0
                    return lg
            resp, mask, lpg = generate(engine_of(model, engine), p, T_max, g, c["temperature"], noise, force)
            cm = mask.int(); tm = None
            if tools: tm = (~hole).int(); lpg = lpg.masked_fill(hole, 0.0)
            Tn = int(cm.sum(1).max())  # TRL pads to the longest
            resp, cm, lpg = resp[:, :Tn], cm[:, :Tn], lpg[:, :Tn]; tm = None if tm is None else tm[:, :Tn]
            full = cm.bool()
            if c["mask_truncated_completions"]:
                cut = ~((resp == EOS) & full).any(1)
                cm = cm * (~cut).unsqueeze(1).int()
                if tm is not None: tm = tm * (~cut).unsqueeze(1).int()
            rpf = torch.stack([reward(f, resp, full, g) for f in funcs], 1)
            if nan: rpf = nan(rpf)
            ns = dict(NS, self=tr, rewards_per_func=rpf, device="cpu", num_generations=n)
            exec_nodes([UNSC, ADV, NUM], ns, FILE)
            adv, scores = ns["advantages"], ns["rewards"]
            if c["multi_objective_aggregation"] == "normalize_then_sum": scores = (rpf * tr.reward_weights).nansum(1)
            lm = cm if tm is None else cm * tm
            d = dict(prompt_ids=p, prompt_mask=torch.ones_like(p), completion_ids=resp, completion_mask=cm, advantages=adv, scores=scores, rewards_per_func=rpf,
                     group_id=gid + gen_no * 1000000, sample_id=torch.arange(N) + gen_no * N)
            if tm is not None: d["tool_mask"] = tm
            with torch.no_grad():
                if ga % generate_every != 0 or (c["use_vllm"] and c["vllm_importance_sampling_correction"]):
                    d["old_per_token_logps"] = score(model, p, resp, c["temperature"])[0]
                if c["use_vllm"]: d["sampling_per_token_logps"] = lpg
                if c["use_vllm"] and c["vllm_importance_sampling_correction"]:
                    ns = dict(NS, self=tr, completion_mask=cm, tool_mask=tm, old_per_token_logps=d["old_per_token_logps"], sampling_per_token_logps=lpg)
                    exec_nodes([ISR], ns, FILE)
                    d["importance_sampling_ratio"] = ns["vllm_importance_sampling_ratio"]
                if c["beta"]: d["ref_per_token_logps"] = score(ref, p, resp, c["temperature"])[0]
            bufs = []
            for r in range(world):
                perm = torch.randperm(G, generator=g) + r * G
                bufs.append([{k: x[perm[i * rows:(i + 1) * rows]] for k, x in d.items()} for i in range(spg)])
            items = lm.sum()
            gen_no += 1
        step, mb = micro // ga + 1, micro % ga
        tr.accelerator.sync_gradients = mb == ga - 1
        for r in range(world):
            x = dict(bufs[r][micro % spg], num_items_in_batch=items)
            coef = tr.entropy_coef if not c["use_adaptive_entropy"] else (tr.entropy_coef if tr._last_world_entropy <= c["entropy_target"] else 0.0)
            loss = tr._compute_loss(model, x)
            s = tr.seen; lp = s["per_token_logps"]
            dl, = grads(loss, lp)
            (loss / world).backward(retain_graph=False)
            isr = x.get("importance_sampling_ratio")
            t = dict(response_ids=x["completion_ids"], response_mask=s["mask"], logp_new=lp, logp_old=x.get("old_per_token_logps"), logp_ref=x.get("ref_per_token_logps"),
                     logp_gen=x.get("sampling_per_token_logps"), kl=s.get("per_token_kl"), is_weights=None if isr is None else isr.squeeze(1) if isr.shape[1] == 1 else isr,
                     entropy=s["entropies"], advantages=x["advantages"], scores=x["scores"], rewards_per_func=x["rewards_per_func"] if len(funcs) > 1 else None,
                     group_id=x["group_id"], loss=loss, token_loss=s["per_token_loss"].expand_as(lp), dlogp=dl,
                     input_ids=s["input_ids"], attention_mask=s["attention_mask"], sample_id=x["sample_id"] if rng.random() < 2 and (extra_opts or {}).get("_sid") else None)
            o = {k: v for k, v in c.items() if v != DEFAULTS[k] or rng_keep(k)}
            o.update(gradient_accumulation_steps=ga, steps_per_generation=spg, num_items_in_batch=int(items), num_generations=n, max_completion_length=T_max,
                     per_device_train_batch_size=rows, reward_weights=tr.reward_weights.tolist(), eos_token_id=[EOS], learning_rate=lr)
            m = {k: v[-1] for k, v in tr._metrics["train"].items() if k.startswith(("kl", "entropy", "clip_ratio", "cispo_clip"))} if world == 1 else {}
            case.put(dict(framework="trl", version="1.16.0", algorithm="grpo", step=step, rank=r, world_size=world, micro_batch=mb, micro_batches=ga, options=o,
                          scalars=fin(dict(m, loss=float(loss))), scalars_scope="micro_batch", token_loss_includes_kl=True), t, drop)
        micro += 1
        if micro % ga == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
    return case


def rng_keep(k):
    return k in ("beta", "epsilon", "loss_type", "scale_rewards", "importance_sampling_level", "temperature", "use_vllm", "num_iterations", "use_bias_correction_kl")


LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]


def main(cases):
    for i in range(20):
        r = random.Random(7100 + i)
        c = dict(loss_type=LOSSES[i % 8], **pick(r, beta=[0.0, 0.0, 0.03, 0.5], epsilon=[0.1, 0.2, 3e-4, 0.3], epsilon_high=[None, 0.28, 0.4], scale_rewards=["group", "batch", "none"],
                 num_iterations=[1, 1, 2, 3], temperature=[1.0, 0.6, 1.4], importance_sampling_level=["token", "token", "sequence"], use_bias_correction_kl=[True, False],
                 mask_truncated_completions=[False, False, True], top_entropy_quantile=[1.0, 1.0, 0.2, 0.6], entropy_coef=[0.0, 0.0, 0.01], delta=[None, None, 1.5],
                 off_policy_mask_threshold=[None, None, 0.02]))
        lt = c["loss_type"]
        if lt == "cispo": c["epsilon_high"] = r.choice([5.0, 1.2])
        if lt not in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"): c["delta"] = None
        if lt == "sapo": c.update(pick(r, sapo_temperature_neg=[1.05, 2.0], sapo_temperature_pos=[1.0, 0.5]))
        if lt == "vespo": c.update(pick(r, vespo_k_pos=[2.0, 1.0], vespo_lambda_pos=[3.0, 1.5], vespo_k_neg=[3.0, 2.0])); c["importance_sampling_level"] = "token"
        if r.random() < 0.45:
            c["use_vllm"] = True
            c["vllm_importance_sampling_correction"] = r.random() < 0.85
            c["vllm_importance_sampling_mode"] = r.choice(["token_truncate", "token_mask"] if lt == "vespo" else ["token_truncate", "token_mask", "sequence_mask", "sequence_truncate"])
            c["vllm_importance_sampling_clip_max"], c["vllm_importance_sampling_clip_min"] = r.choice([(3.0, None), (2.0, 0.5), (1.3, 0.8), (None, 0.9)])
        world = 2 if i in (4, 11, 17) else 1
        if world > 1: c["top_entropy_quantile"] = 1.0
        ga = r.choice([1, 2, 3, 4]); spg = ga * r.choice([1, 1, 2, 3])
        if i == 9: ga, spg = 4, 2
        if i == 14: ga, spg = 2, 3
        rows, n = r.choice([(8, 4), (6, 3), (12, 4), (8, 8), (10, 2)])
        funcs, weights = r.choice([(("share",), None), (("noisy",), None), (("share", "sign"), [0.7, 0.3]), (("binary", "length", "ended"), [1.0, 0.2, -0.5])])
        if len(funcs) > 1 and r.random() < 0.5:
            c["multi_objective_aggregation"] = "normalize_then_sum"
        nan = None
        if i in (6, 13):
            funcs, weights = ("share", "sign"), [1.0, 0.5]
            def nan(x, all_rows=(i == 13)):
                x = x.clone(); x[::3, 1] = float("nan")
                if all_rows: x[3, :] = float("nan")
                return x
        if i == 12: funcs, weights = ("const",), None
        little = i % 3 == 2
        note = f"TRL 1.16 GRPO, {lt}, " + ", ".join(f"{k}={v}" for k, v in c.items() if k != "loss_type" and v != DEFAULTS[k]) + f", ga {ga}, spg {spg}, world {world}, funcs {funcs}"
        run(cases, f"{i:02d}_{lt}", note, c, r, little, world, rows, n, ga, spg, T_max=r.choice([12, 20, 32]), lr=r.choice([3e-3, 2e-2, 5e-2]), noise=r.choice([0.0, 0.15]) if c.get("use_vllm") else 0.0,
            engine=r.choice(["same", "bf16"]) if c.get("use_vllm") else "same", kind=r.choice(["gru", "attn"]), funcs=funcs, weights=weights, nan=nan, tools=i in (3, 10, 16), gens=r.choice([2, 3]) if ga * spg < 6 else 2,
            extra_opts=dict(_sid=i % 2 == 0), drop=r.choice([(), ("input_ids", "attention_mask"), ("dlogp",), ("entropy",), ("token_loss", "kl")]), seed=i)


if __name__ == "__main__": main(sys.argv[1])
