"""TRL 1.16 GRPO, by its own lines, right runs with drawn options."""
import sys; from world_u import *
NAME = "u1"
G = source(SRC + "/trl-1.16.0/trl/trainer/grpo_trainer.py"); U = source(SRC + "/trl-1.16.0/trl/trainer/utils.py")
ns = dict(torch=torch, math=math)
for f in ("nanmin", "nanmax", "nanstd"): exec(get_def(U, f), ns)
for f in ("get_high_entropy_mask", "get_off_policy_mask", "get_gamma_weights", "_compute_loss"): exec(get_def(G, f, "GRPOTrainer"), ns)
def raw(f): return ns[f].__func__ if isinstance(ns[f], staticmethod) else ns[f]
ADV = compile(between(G, "unscorable_mask = torch.isnan(rewards_per_func)", "# Slice to keep only the local part of the data"), "adv", "exec")
ISR = compile(between(G, "mask = completion_mask if tool_mask is None else completion_mask * tool_mask", "# Compute the per-token log probabilities for the reference", after="# Compute the importance sampling ratio when using vLLM"), "isr", "exec")
DEF = config_defaults(SRC + "/trl-1.16.0/trl/trainer/grpo_config.py", "GRPOConfig")

class Acc:
    def __init__(s, n, i): s.num_processes, s.process_index, s.sync_gradients, s.device = n, i, True, "cpu"
    def gather(s, x): return x.reshape(-1) if x.dim() == 0 else x
    gather_for_metrics = gather
    def reduce(s, x, reduction="sum"): return x
    def pad_across_processes(s, x, **k): return x

class Trainer:
    get_high_entropy_mask = raw("get_high_entropy_mask"); get_off_policy_mask = staticmethod(raw("get_off_policy_mask"))
    get_gamma_weights = staticmethod(raw("get_gamma_weights")); _compute_loss = ns["_compute_loss"]
    def __init__(s, model, cfg, world, rank, ga):
        s.model, s.args, s.accelerator = model, cfg, Acc(world, rank)
        for k in ("beta", "loss_type", "top_entropy_quantile", "off_policy_mask_threshold", "importance_sampling_level", "use_vllm", "vllm_importance_sampling_correction",
                  "max_completion_length", "entropy_coef", "use_adaptive_entropy"): setattr(s, k, cfg[k])
        s.epsilon_low, s.epsilon_high = cfg.epsilon, cfg.epsilon_high if cfg.epsilon_high is not None else cfg.epsilon
        s.current_gradient_accumulation_steps, s.aux_loss_enabled = ga, False
        s._entropy_bonus_enabled = s.entropy_coef != 0.0 or s.use_adaptive_entropy
        s._last_world_entropy, s._entropy_window_stats = float("inf"), None
        from collections import defaultdict
        s._metrics = {"train": defaultdict(list)}
    def _get_per_token_logps_and_entropies(s, model, input_ids, attention_mask, logits_to_keep, **k):
        s.frame = sys._getframe(1)
        T = logits_to_keep
        am = attention_mask[:, -T:]
        lp, ent, _, s.logits = response(model, input_ids[:, :-T], input_ids[:, -T:], s.args.temperature)
        return torch.where(am > 0, lp, torch.zeros(())), ent, None

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
def draw(i, off=0):
    r = random.Random(1000 + i + off); c = NS(DEF)
    c.loss_type = LOSSES[i % 8]; c.num_generations = r.choice([2, 4, 4, 8]); c.max_completion_length = r.choice([12, 16, 24])
    c.temperature = r.choice([1.0, 1.0, 0.7, 1.3]); c.scale_rewards = r.choice(["group", "batch", "none"])
    c.multi_objective_aggregation = r.choice(["sum_then_normalize"] * 3 + ["normalize_then_sum"])
    c.beta = r.choice([0.0, 0.0, 0.04, 0.2]); c.use_bias_correction_kl = r.random() < .5
    c.num_iterations = r.choice([1, 2, 3]); ga = r.choice([1, 1, 2, 4]); c.steps_per_generation = r.choice([ga, ga, 2 * ga, max(1, ga // 2)])
    c.epsilon = r.choice([0.1, 0.2, 0.3]); c.epsilon_high = r.choice([None, 0.28, 0.4])
    if c.loss_type == "cispo": c.epsilon_high = r.choice([1.5, 5.0])
    if c.loss_type in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo") and r.random() < .35: c.delta = r.choice([1.5, 2.0, 4.0])
    if c.loss_type == "sapo": c.sapo_temperature_pos, c.sapo_temperature_neg = r.choice([(1.0, 1.05), (0.7, 2.0)])
    if c.loss_type == "vespo" and r.random() < .5: c.vespo_k_pos, c.vespo_lambda_pos, c.vespo_k_neg, c.vespo_lambda_neg = 1.0, 2.0, 2.0, 1.0
    c.importance_sampling_level = r.choice(["token", "token", "sequence"]) if c.loss_type != "luspo" else r.choice(["sequence", "sequence", "token"])
    world = r.choice([1, 1, 1, 2])
    c.mask_truncated_completions = r.random() < .25
    if world == 1 and r.random() < .25: c.top_entropy_quantile = r.choice([0.2, 0.5, 0.8])
    if r.random() < .25: c.entropy_coef = r.choice([0.01, 0.1])
    if world == 1 and r.random() < .12: c.use_adaptive_entropy, c.entropy_target = True, r.choice([1.0, 5.0])
    if r.random() < .2: c.off_policy_mask_threshold = r.choice([0.01, 0.1, 0.5])
    c.use_vllm = r.random() < .5
    c.vllm_importance_sampling_correction = r.random() < .75
    c.vllm_importance_sampling_mode = r.choice(["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
    if c.loss_type == "vespo": c.vllm_importance_sampling_mode = r.choice(["token_truncate", "token_mask"])
    c.vllm_importance_sampling_clip_max = r.choice([3.0, 1.5, 2.0, None]); c.vllm_importance_sampling_clip_min = r.choice([None, None, 0.5])
    if c.vllm_importance_sampling_clip_max is None and c.vllm_importance_sampling_clip_min is None: c.vllm_importance_sampling_clip_max = 3.0
    nf = r.choice([1, 2, 3]); c.reward_weights = [r.choice([0.5, 1.0, 2.0]) for _ in range(nf)] if nf > 1 and r.random() < .6 else None
    tools = r.random() < .25; unscor = r.random() < .2; c.learning_rate = r.choice([3e-3, 1e-2])
    return r, c, ga, world, nf, tools, unscor, r.choice(["bf16", "noise"])

def main(cases):
    for j, (i, off) in enumerate([(i, 0) for i in range(20)] + [(9, 60), (17, 60)]):
        r, c, ga, world, nf, tools, unscor, ekind = draw(i, off); torch.manual_seed(i + off); little = i % 3 == 2
        G_ = c.num_generations; spg = c.steps_per_generation
        per = max(1, {2: 4, 4: 4, 8: 8}[G_]);
        while per * world * spg % G_ or per * world * spg > 64 and per > 1: per = per // 2 if per * world * spg > 64 and per > 1 else per + 1
        model = LM(); ref = copy.deepcopy(model)
        with torch.no_grad():
            for p in ref.parameters(): p.add_(torch.randn_like(p) * .02)
        opt = torch.optim.AdamW(model.parameters(), lr=c.learning_rate, weight_decay=0.0)
        trs = [Trainer(model, c, world, k, ga) for k in range(world)]
        c.generation_batch_size = per * world * spg
        opts = {k: v for k, v in c.items() if isinstance(v, (int, float, str, type(None)))} if not little else {k: v for k, v in c.items() if DEF.get(k, 0) != v and k != "generation_batch_size"}
        opts |= dict(gradient_accumulation_steps=ga, reward_weights=c.reward_weights or [1.0] * nf, eos_token_id=[EOS])
        run = Run(cases, NAME, f"c{j:02d}_{c.loss_type}", f"right: TRL 1.16 GRPO {c.loss_type}, {c.importance_sampling_level}, beta {c.beta}, iters {c.num_iterations}, ga {ga}, spg {spg}, {world} ranks, vllm {c.use_vllm}")
        step_no, micro, nsteps, ngen = 0, 0, 0, 0
        generate_every = spg * c.num_iterations
        total = max(2 * generate_every, 2 * ga); total = min(math.ceil(total / ga) * ga, 24 // ga * ga if ga < 24 else ga)
        buf = None
        while step_no < total:
            if step_no % generate_every == 0:
                N = per * world * spg
                pr = prompts_of(r, N // G_).repeat_interleave(G_, 0)
                eng = engine_of(model, r, ekind) if c.use_vllm else model
                ids, cmask, own, gen_lp, trunc = sample(eng, pr, c.max_completion_length, c.temperature, obs=.15 if tools else 0)
                T = int(cmask.sum(1).max()); ids, cmask, own, gen_lp = ids[:, :T], cmask[:, :T], own[:, :T], gen_lp[:, :T]
                tool_mask = torch.where(cmask > 0, own, torch.ones_like(own)) if tools else None
                lastid = ids.gather(1, cmask.sum(1, keepdim=True) - 1).squeeze(1); is_tr = (lastid != EOS)
                if c.mask_truncated_completions:
                    cmask = cmask * (~is_tr).unsqueeze(1).int()
                    if tool_mask is not None: tool_mask = tool_mask * (~is_tr).unsqueeze(1).int()
                lm_ = cmask if tool_mask is None else cmask * tool_mask
                num_items = lm_.sum()
                pick_k = r.sample([0, 1, 2, 3, 4], nf)
                rpf = torch.stack([rule(pr, ids, own, k) for k in pick_k], 1)
                if unscor: 
                    bad = torch.rand(rpf.shape) < .1; rpf[bad] = float("nan")
                    rpf[torch.rand(len(rpf)) < .08] = float("nan")
                d = dict(torch=torch, nanstd=ns["nanstd"], rewards_per_func=rpf, num_generations=G_, device="cpu",
                         self=NS(multi_objective_aggregation=c.multi_objective_aggregation, scale_rewards=c.scale_rewards, reward_funcs=[0] * nf, reward_weights=torch.tensor(c.reward_weights or [1.0] * nf)))
                exec(ADV, d); adv, scores = d["advantages"], d["rewards"]
                sums = (rpf * d["self"].reward_weights).nansum(1); sums[d["unscorable_mask"]] = float("nan")
                f = lambda mdl: trs[0]._get_per_token_logps_and_entropies(mdl, torch.cat([pr, ids], 1), torch.cat([torch.ones_like(pr), cmask], 1), T)[0]
                with torch.no_grad():
                    old = f(model) if ga % generate_every != 0 or (c.use_vllm and c.vllm_importance_sampling_correction) else None
                    refl = f(ref) if c.beta != 0 else None
                isr = None
                if c.use_vllm and c.vllm_importance_sampling_correction:
                    d2 = dict(torch=torch, math=math, self=c, completion_mask=cmask, tool_mask=tool_mask, old_per_token_logps=old, sampling_per_token_logps=gen_lp)
                    exec(textwrap.dedent(""), d2); exec(ISR, d2); isr = d2["vllm_importance_sampling_ratio"]
                out = dict(prompt_ids=pr, prompt_mask=torch.ones_like(pr), completion_ids=ids, completion_mask=cmask, advantages=adv, old_per_token_logps=old, importance_sampling_ratio=isr,
                           sampling_per_token_logps=gen_lp if c.use_vllm else None, ref_per_token_logps=refl, tool_mask=tool_mask, scores=sums,
                           rewards_per_func=rpf, group_id=torch.arange(N) // G_ + 1000 * ngen, sample_id=torch.arange(N) + 10000 * ngen)
                ngen += 1; out = {k: v for k, v in out.items() if v is not None}; buf = []
                for k in range(world):
                    sl = {n: v[k * per * spg:(k + 1) * per * spg] for n, v in out.items()}
                    perm = torch.randperm(per * spg); sl = {n: v[perm] for n, v in sl.items()}
                    buf.append([{n: v[b * per:(b + 1) * per] for n, v in sl.items()} | dict(num_items_in_batch=num_items) for b in range(spg)])
            mb = step_no % ga
            for k in range(world):
                tr = trs[k]; tr.accelerator.sync_gradients = mb == ga - 1
                x = buf[k][step_no % spg]; before = {n: len(v) for n, v in tr._metrics["train"].items()}
                coef0 = tr.entropy_coef
                loss = tr._compute_loss(model, x); v = dict(tr.frame.f_locals); lp = v["per_token_logps"]
                t = dict(response_ids=x["completion_ids"], response_mask=v["mask"], logp_new=lp, logp_old=x.get("old_per_token_logps"), kl=v.get("per_token_kl"), logp_ref=x.get("ref_per_token_logps"),
                         logp_gen=x.get("sampling_per_token_logps"), is_weights=x.get("importance_sampling_ratio"), entropy=v["entropies"], input_ids=v["input_ids"], attention_mask=v["attention_mask"],
                         advantages=x["advantages"], scores=x["scores"], rewards_per_func=x["rewards_per_func"], group_id=x["group_id"], loss=loss, token_loss=v["per_token_loss"].expand_as(lp), dlogp=grad(loss, lp))
                if t["kl"] is not None: t["kl"] = t["kl"].expand_as(lp)
                if t["is_weights"] is not None and t["is_weights"].shape[1] == 1: t["is_weights"] = t["is_weights"].squeeze(1)
                if i % 4 == 0: t["sample_id"] = x["sample_id"]
                if i % 5 == 0: t["logits"] = tr.logits
                if t["rewards_per_func"].isnan().any() and little: t.pop("rewards_per_func")
                sc = {n: m[-1] for n, m in dict(tr._metrics["train"], loss=[loss.item()]).items() if n == "loss" or world == 1 and n.startswith(("kl", "entropy", "clip_ratio")) and len(m) > before.get(n, 0)}
                meta = dict(framework="trl", version="1.16.0", algorithm="grpo", world_size=world, micro_batches=ga, options=opts | dict(num_items_in_batch=int(num_items)), token_loss_includes_kl=True)
                if not little: meta |= dict(scalars=sc, scalars_scope="micro_batch")
                run.dump(pick(t, little), step_no // ga + 1, k, mb, **meta)
                (loss / world).backward()
            step_no += 1
            if step_no % ga == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
if __name__ == "__main__": main(sys.argv[1])
