"""y1: right runs of TRL 1.16's GRPO, by the statements of grpo_trainer.py themselves.  python y1.py CASES"""
import logging, warnings
from types import SimpleNamespace as NS
from world_y import *
TRL = "trl-1.16.0/trl/trainer/grpo_trainer.py"
G = dict(torch=torch, math=math, F=F)
functions("trl-1.16.0/trl/trainer/utils.py", ["nanstd", "nanmin", "nanmax", "shuffle_sequence_dict", "split_tensor_dict"], G)
functions(TRL, ["_compute_loss", "get_off_policy_mask", "get_gamma_weights", "get_high_entropy_mask"], G, "GRPOTrainer")
ADV = lines(TRL, "unscorable_mask =", "advantages = torch.nan_to_num", after="def _generate_and_score_completions")
IS = lines(TRL, "if self.use_vllm and self.vllm_importance_sampling_correction:", "f\"Unknown vLLM importance sampling level", after="def _generate_and_score_completions") + "\n        )"

DEFAULT = dict(per_device_train_batch_size=8, gradient_accumulation_steps=1, steps_per_generation=None, num_generations=8, max_completion_length=20, temperature=1.0,
    use_vllm=False, beta=0.0, num_iterations=1, epsilon=0.2, epsilon_high=None, delta=None, sapo_temperature_neg=1.05, sapo_temperature_pos=1.0,
    vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0, importance_sampling_level="token",
    multi_objective_aggregation="sum_then_normalize", scale_rewards="group", loss_type="dapo", mask_truncated_completions=False, top_entropy_quantile=1.0,
    entropy_coef=0.0, use_adaptive_entropy=False, entropy_coef_min=0.0, entropy_coef_max=1.0, entropy_coef_delta=0.005, entropy_target=0.2,
    vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="sequence_mask", vllm_importance_sampling_clip_max=3.0,
    vllm_importance_sampling_clip_min=None, off_policy_mask_threshold=None, use_bias_correction_kl=True)


def checked(o):
    """what GRPOConfig.__post_init__ and the trainer refuse"""
    if o["steps_per_generation"] is None: o["steps_per_generation"] = o["gradient_accumulation_steps"]
    o["generation_batch_size"] = o["per_device_train_batch_size"] * o["world"] * o["steps_per_generation"]
    assert o["generation_batch_size"] % o["num_generations"] == 0 and o["num_generations"] >= 2
    lo, hi = o["vllm_importance_sampling_clip_min"], o["vllm_importance_sampling_clip_max"]
    assert lo is None or hi is None or lo < hi
    assert not (o["vllm_importance_sampling_correction"] and o["vllm_importance_sampling_mode"].endswith("truncate") and lo is None and hi is None)
    if o["loss_type"] == "vespo" and o["use_vllm"] and o["vllm_importance_sampling_correction"]: assert o["vllm_importance_sampling_mode"].startswith("token")
    return o


def trainer(o, model, rank):
    acc = NS(device="cpu", num_processes=o["world"], process_index=rank, gather=lambda x: x, reduce=lambda x, reduction="sum": x, gather_for_metrics=lambda x: x,
             pad_across_processes=lambda x, dim=0, pad_index=0: x, sync_gradients=True)
    s = NS(args=NS(**o), accelerator=acc, model=NS(training=True), aux_loss_enabled=False, router_aux_loss_coef=0.0, _metrics={"train": {}}, **o)
    s._metrics["train"] = __import__("collections").defaultdict(list)
    s.epsilon_low, s.epsilon_high = o["epsilon"], o["epsilon_high"] if o["epsilon_high"] is not None else o["epsilon"]
    s._entropy_bonus_enabled, s._last_world_entropy, s._entropy_window_stats = o["entropy_coef"] != 0 or o["use_adaptive_entropy"], float("inf"), None
    s.current_gradient_accumulation_steps = o["gradient_accumulation_steps"]
    s.reward_weights = torch.tensor(o.get("reward_weights") or [1.0] * len(o["rewards"]))
    s.reward_funcs = o["rewards"]
    s.get_off_policy_mask, s.get_gamma_weights = G["get_off_policy_mask"], torch.no_grad()(G["get_gamma_weights"])
    s.get_high_entropy_mask = lambda e, m, t: G["get_high_entropy_mask"](s, e, m, t)
    def lps(model, ids, attention, keep, compute_entropy=False, **_):
        lp, ent, _ = score(model, ids[:, :-keep], ids[:, -keep:], o["temperature"])
        m = attention[:, -keep:]
        lp, ent = lp * m, ent * m
        s.frame = sys._getframe(1)
        s.grad_lp = lp
        return lp, ent, None
    s._get_per_token_logps_and_entropies = lps
    return s


def run(cases, name, seed, over, little, text):
    rng, npr, gen = random.Random(seed), np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    o = checked({**DEFAULT, "world": 1, "rewards": ["binary"], "steps": 5, "lr": 8e-3, "eos_bias": 1.0, "group_in_little": rng.random() < 0.6, **over})
    model = policy(seed, o["eos_bias"])
    ref = clone(model, 0.06, seed)
    opt = torch.optim.AdamW(model.parameters(), lr=o["lr"], weight_decay=0.0)
    W, GA, SPG, B = o["world"], o["gradient_accumulation_steps"], o["steps_per_generation"], o["per_device_train_batch_size"]
    ts = [trainer(o, model, r) for r in range(W)]
    changed = {k: o[k] for k in DEFAULT if o[k] != DEFAULT[k]} if little or rng.random() < 0.5 else {k: o[k] for k in DEFAULT}
    for k in ("num_generations", "loss_type", "beta", "gradient_accumulation_steps", "steps_per_generation", "num_iterations", "temperature", "max_completion_length", "per_device_train_batch_size"): changed[k] = o[k]
    if o.get("reward_weights"): changed["reward_weights"] = o["reward_weights"]
    changed["eos_token_id"] = EOS
    c = Case(cases, name, "y1", text, meta=dict(framework="trl", version="1.16.0", algorithm="grpo", token_loss_includes_kl=True), options=changed, many=not little)
    fwd, step, buf = 0, 1, None
    while step <= o["steps"]:
        if fwd % (SPG * o["num_iterations"]) == 0:
            n = o["generation_batch_size"]
            prompts = prompts_of(rng, n // o["num_generations"]).repeat_interleave(o["num_generations"], 0)
            engine = clone(model, o.get("engine_noise", 0.0), seed + fwd, bf16=o["use_vllm"])
            resp, mask, lpg, ended = sample(engine, prompts, o["max_completion_length"], o["temperature"], gen)
            rf = torch.stack([rule_reward(k, prompts, resp, mask, ended, o["max_completion_length"]) for k in o["rewards"]], 1)
            if o.get("nan_rewards"): rf[torch.rand(rf.shape, generator=gen) < 0.15] = float("nan")
            tool = None
            if o.get("tools"):
                tool = torch.ones_like(mask)
                for i in range(n):
                    L = int(mask[i].sum())
                    if L > 8: tool[i, 3:3 + rng.randrange(1, 4)] = False
            completion = mask.int()
            if o["mask_truncated_completions"]:
                completion = completion * ended.unsqueeze(1).int()
                tool = tool if tool is None else tool * ended.unsqueeze(1)
            loss_mask = completion if tool is None else completion * tool.int()
            items = loss_mask.sum()
            s = ts[0]
            env = dict(G, self=s, rewards_per_func=rf, num_generations=o["num_generations"], device="cpu")
            exec(ADV, env)
            per_rank = []
            for r, s in enumerate(ts):
                sl = slice(r * n // W, (r + 1) * n // W)
                d = dict(prompt_ids=prompts[sl], prompt_mask=torch.ones_like(prompts[sl]), completion_ids=resp[sl], completion_mask=completion[sl],
                         advantages=env["advantages"][sl], num_items_in_batch=items)
                if tool is not None: d["tool_mask"] = tool[sl].int()
                with torch.no_grad():
                    if GA % (SPG * o["num_iterations"]) != 0 or (o["use_vllm"] and o["vllm_importance_sampling_correction"]):
                        d["old_per_token_logps"] = score(model, prompts[sl], resp[sl], o["temperature"])[0] * completion[sl]
                    if o["use_vllm"]: d["sampling_per_token_logps"] = lpg[sl]
                    if o["use_vllm"] and o["vllm_importance_sampling_correction"]:
                        e2 = dict(G, self=s, completion_mask=completion[sl], tool_mask=None if tool is None else tool[sl].int(), old_per_token_logps=d["old_per_token_logps"],
                                  sampling_per_token_logps=lpg[sl])
                        exec(IS, e2)
                        d["importance_sampling_ratio"] = e2["vllm_importance_sampling_ratio"]
                    if o["beta"]: d["ref_per_token_logps"] = score(ref, prompts[sl], resp[sl], o["temperature"])[0] * completion[sl]
                d["scores"], d["rewards_per_func"], d["group_id"] = env["rewards"][sl], rf[sl], (torch.arange(n) // o["num_generations"] + fwd * 1000)[sl]
                if o["multi_objective_aggregation"] == "normalize_then_sum": d["scores"] = (rf * s.reward_weights).nansum(1)[sl]
                perm = shuffled(npr, n // W)
                d = {k: (v[perm] if v.dim() else v) for k, v in d.items()}
                per_rank.append([{k: (v[i * B:(i + 1) * B] if v.dim() else v) for k, v in d.items()} for i in range(SPG)])
        for r, s in enumerate(ts):
            d = per_rank[r][fwd % SPG]
            s._metrics["train"].clear()
            s.accelerator.sync_gradients = fwd % GA == GA - 1
            loss = G["_compute_loss"](s, model, d)
            x = {**d, **s.frame.f_locals}
            lp = s.grad_lp
            (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True, allow_unused=True, materialize_grads=True)
            (loss / W).backward()
            few = dict(response_mask=x["mask"], logp_new=x["per_token_logps"], logp_old=x["old_per_token_logps"], advantages=d["advantages"], scores=d["scores"], loss=loss)
            if "ref_per_token_logps" in d: few["logp_ref"] = d["ref_per_token_logps"]
            if o["group_in_little"] or not little: few["group_id"] = d["group_id"]
            if o["use_vllm"] and (not little or rng.random() < 2): few["logp_gen"] = d["sampling_per_token_logps"]
            t, sc = few, None
            if not little:
                t = few | dict(token_loss=x["per_token_loss"].expand_as(lp), dlogp=dlogp, entropy=x["entropies"], response_ids=d["completion_ids"], kl=x.get("per_token_kl"),
                               is_weights=d.get("importance_sampling_ratio"), rewards_per_func=d["rewards_per_func"] if len(o["rewards"]) > 1 else None)
                sc = {k: v[-1] for k, v in s._metrics["train"].items() if k.startswith(("kl", "entropy", "clip_ratio"))} | dict(loss=loss.item()) if W == 1 else None
            c.dump(step, t, fwd % GA, GA, r, W, sc, dict(num_items_in_batch=int(items)), scalars_scope="micro_batch")
            del s.frame
        fwd += 1
        if fwd % GA == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step(); opt.zero_grad(); step += 1
    return c


RECIPES = [  # name, overrides: what papers and examples set
    ("default", dict()), ("r1", dict(loss_type="grpo", beta=0.04, use_bias_correction_kl=False)), ("drgrpo", dict(loss_type="dr_grpo", scale_rewards="none")),
    ("dapo", dict(epsilon_high=0.28, mask_truncated_completions=True, rewards=["acc_format", "overlong"])),
    ("gspo", dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, steps_per_generation=4)),
    ("cispo", dict(loss_type="cispo", epsilon_high=5.0, num_iterations=2)), ("sapo", dict(loss_type="sapo", num_iterations=2)),
    ("vllm", dict(use_vllm=True, engine_noise=0.02)), ("tis", dict(use_vllm=True, vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0, engine_noise=0.03)),
    ("bnpo2", dict(loss_type="bnpo", num_iterations=2, beta=0.001)), ("intellect", dict(delta=1.5, num_iterations=3, lr=2e-2)),
    ("v32", dict(use_vllm=True, off_policy_mask_threshold=0.05, beta=0.01, num_iterations=2, engine_noise=0.03)),
    ("gdpo", dict(multi_objective_aggregation="normalize_then_sum", rewards=["share", "format", "length"], reward_weights=[1.0, 0.5, 0.25])),
    ("litepo", dict(scale_rewards="batch", loss_type="bnpo")), ("entropy8020", dict(top_entropy_quantile=0.2, epsilon_high=0.28)),
    ("entcoef", dict(entropy_coef=0.01, loss_type="dr_grpo", scale_rewards="none")), ("agent", dict(tools=True, beta=0.02, use_vllm=True)),
    ("ga4", dict(gradient_accumulation_steps=4, beta=0.04)), ("vespo", dict(loss_type="vespo", num_iterations=2)), ("luspo", dict(loss_type="luspo", importance_sampling_level="sequence", epsilon=2e-3, epsilon_high=2.5e-3, steps_per_generation=2)),
    ("noneRewards", dict(nan_rewards=True, rewards=["share", "format"], reward_weights=[1.0, 0.2], num_iterations=2)),
]
CHANGES = [dict(temperature=0.7), dict(temperature=0.9), dict(num_generations=4), dict(per_device_train_batch_size=16), dict(gradient_accumulation_steps=2), dict(beta=0.04), dict(rewards=["rm"]),
    dict(rewards=["share", "format"], reward_weights=[1.0, 0.3]), dict(rewards=["acc_format"]), dict(epsilon=0.1), dict(max_completion_length=12), dict(eos_bias=2.5), dict(mask_truncated_completions=True),
    dict(lr=2e-2), dict(world=2), dict(steps_per_generation=2)]
ODD = [dict(num_iterations=4), dict(scale_rewards="batch"), dict(rewards=["constant"]), dict(lr=0.0), dict(max_completion_length=1), dict(num_generations=2, per_device_train_batch_size=4),
    dict(use_vllm=True, vllm_importance_sampling_correction=False), dict(gradient_accumulation_steps=2, steps_per_generation=4), dict(entropy_coef=0.02), dict(rewards=["huge"], scale_rewards="none"),
    dict(eos_bias=-6.0), dict(use_adaptive_entropy=True, entropy_target=2.9, entropy_coef=0.01), dict(use_bias_correction_kl=False, beta=0.1)]


def main(cases):
    rng = random.Random(20261201)
    for i, (name, over) in enumerate(RECIPES):
        seed, o, notes = 7100 + i, dict(over), [name]
        changes = rng.sample(CHANGES, rng.randrange(1, 3)) + (rng.sample(ODD, 2) if i % 3 == 2 else [])
        for ch in changes:
            if any(k in over for k in ch) or (("world" in ch or o.get("world", 1) > 1) and (o.get("top_entropy_quantile", 1) < 1 or ch.get("use_adaptive_entropy") or o.get("use_adaptive_entropy"))): continue
            if "rewards" in ch and "rewards" in over: continue
            o.update(ch); notes.append(",".join(f"{k}={v}" for k, v in ch.items()))
        if o.get("max_completion_length") == 1 and "tools" in o: o.pop("max_completion_length")
        c = run(cases, f"y1-{i:02d}_{name}", seed, o, i % 3 == 0, "; ".join(notes))
        print(c.name, c.n, "; ".join(notes), flush=True)


if __name__ == "__main__": main(sys.argv[1])
