"""t1: GRPOTrainer of TRL 1.16.0 by its own source lines (masks, old and reference log-probs, engine correction, advantages, the loss,
buffering, shuffling, splitting), around a tiny model. Rewards of three functions, one of which returns None now and then."""
import math, types
from world_t import *

F, U = "trl-1.16.0/trl/trainer/grpo_trainer.py", "trl-1.16.0/trl/trainer/utils.py"
HEAD = "def generate_and_score(self, mode, device, images, prompts, prompt_ids_list, completion_ids_list, tool_mask_list, sampling_per_token_logps_list, rewards_per_func, forward_kwargs={}, num_images=None, num_tiles=None):\n"
ind = lambda s: textwrap.indent(textwrap.dedent(s), "    ")
TRL = [source_of(U, "nanstd", "nanmin", "nanmax", "split_tensor_dict", "shuffle_sequence_dict"),
       source_of(F, "get_high_entropy_mask", "_get_per_token_logps_and_entropies", "get_off_policy_mask", "get_gamma_weights", "_prepare_inputs", "_compute_loss", cls="GRPOTrainer"),
       HEAD + ind(between(F, "# Convert lists of token IDs to padded tensors", "num_images = [len(img_list)"))
       + ind(between(F, "# When gradient checkpointing is enabled with use_reentrant=True", "# Merge extra_fields from rollout_func", 2600))
       + "    num_generations = self.num_generations\n" + ind(between(F, "# A completion for which every reward function returned None", "all_process_advantages =", 2700))
       + ind(between(F, "advantages = advantages[process_slice]", "# Calculate mean reward per function", 2700))
       + ind(between(F, "rewards = (rewards_per_func * self.reward_weights.to(rewards_per_func.device)", 'self._metrics[mode]["reward"]', 2800))
       + ind(between(F, "output = {", 'if "pixel_values" in forward_kwargs:', 2800))
       + '    if tool_mask is not None:\n        output["tool_mask"] = tool_mask\n    return output, rewards, process_slice\n']

# <trainer>
class Model(nn.Module):
    """The policy with TRL's fused head: log-probs of the labels, 0 where they are -100."""
    def __init__(self, lm, temperature): super().__init__(); self.lm, self.temperature = lm, temperature
    def forward(self, input_ids, attention_mask, labels, fused_lm_head=True):
        h, _ = self.lm.hidden(input_ids)
        logits = self.lm.head(h[:, :-1])
        labels = labels[:, 1:]; mask = labels != -100
        logp = torch.log_softmax(logits / self.temperature, -1)
        lp = logp.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        self.raw = logits.detach()
        return types.SimpleNamespace(log_probs=lp * mask, entropy=-(logp.exp() * logp).sum(-1) * mask)

def rewards_of(prompts, ids, mask):
    r = torch.stack([r_parity(prompts, ids, mask), r_length(prompts, ids, mask), r_end(prompts, ids, mask)][:cfg["funcs"]], 1)
    if cfg["funcs"] == 3: r[(ids[:, 0] % 5) == 0, 2] = torch.nan      # the function returned None
    return r

def train(cfg, writer):
    a = types.SimpleNamespace(**cfg["args"]); R, G = cfg["ranks"], a.num_generations
    gen = torch.Generator().manual_seed(cfg["seed"]); torch.manual_seed(cfg["seed"])
    model = Model(LM(cfg["seed"], tool_bias=cfg.get("tool_bias", -1.0)), a.temperature); ref = Model(copy.deepcopy(model.lm), a.temperature)
    opt = torch.optim.AdamW(model.parameters(), lr=a.learning_rate, weight_decay=0.0)
    per_rank = a.per_device_train_batch_size * a.steps_per_generation
    step, seen = 0, 0
    selves = [make_self(cfg, a, model, ref, r, R) for r in range(R)]
    for rollout in range(cfg["rollouts"]):
        engine = engine_of(model.lm, bf16=cfg["vllm"], noise=cfg.get("noise", 0.0), gen=gen)
        prompts = make_prompts(per_rank * R // G, 6, gen).repeat_interleave(G, 0)
        ids, lp, own, att = sample(engine, prompts, a.max_completion_length, a.temperature, gen, cfg["observe"])
        rewards_per_func = rewards_of(prompts, ids, own)
        def generate(s, record):
            sl = slice(s.accelerator.process_index * per_rank, (s.accelerator.process_index + 1) * per_rank)
            n = att[sl].sum(1).tolist()
            s.record = record
            out, rewards, ps = generate_and_score(
                s, "train", "cpu", None, prompts[sl], [p[p != PAD].tolist() for p in prompts[sl]], [x[:k].tolist() for x, k in zip(ids[sl], n)],
                [x[:k].tolist() for x, k in zip(own[sl], n)] if cfg["observe"] else None,
                [x[:k].tolist() for x, k in zip(lp[sl], n)] if cfg["vllm"] else None, rewards_per_func.clone())
            group = torch.arange(len(rewards)) // G + rollout * 1000
            out.update(scores=rewards[ps], rewards_per_func=rewards_per_func[ps], group_id=group[ps], sample_id=(torch.arange(len(rewards)) + rollout * 1000)[ps])
            return out
        counts = []
        for s in selves: generate(s, counts)                       # what the ranks would gather
        for s in selves: s.counts = torch.stack(counts); s._generate_and_score_completions = lambda batch, s=s: generate(s, None)
        for _ in range(a.steps_per_generation * a.num_iterations // a.gradient_accumulation_steps):
            step += 1; opt.zero_grad()
            for micro in range(a.gradient_accumulation_steps):
                for s in selves:
                    inputs = _prepare_inputs(s, {})
                    for k in s._metrics["train"]: s._metrics["train"][k].clear()
                    loss, frame = run_with_locals(_compute_loss, s, model, inputs)
                    dump(cfg, a, writer, s, step, micro, inputs, frame, loss, model.raw)
                    (loss / R).backward(); s._step += 1
            torch.nn.utils.clip_grad_norm_(model.parameters(), a.max_grad_norm); opt.step()
# </trainer>

# <hook>
def dump(cfg, a, writer, s, step, micro, inputs, v, loss, raw):
    lp = v["per_token_logps"]; T = lp.shape[1]
    (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
    t = dict(response_ids=v["completion_ids"], response_mask=v["mask"], input_ids=v["input_ids"], attention_mask=v["attention_mask"], logp_new=lp,
             logp_old=inputs.get("old_per_token_logps"), logp_ref=inputs.get("ref_per_token_logps"), logp_gen=inputs.get("sampling_per_token_logps"),
             is_weights=inputs.get("importance_sampling_ratio"), entropy=v["entropies"], kl=v.get("per_token_kl"), advantages=inputs["advantages"],
             token_loss=v["per_token_loss"].expand_as(lp), dlogp=dlogp, loss=loss, logits=raw[:, -T:],
             **{k: inputs[k] for k in ("scores", "rewards_per_func", "group_id", "sample_id")})
    if t["is_weights"] is not None and t["is_weights"].shape[1] == 1: t["is_weights"] = t["is_weights"][:, 0]
    t = {k: x for k, x in t.items() if k not in cfg["left_out"]}
    o = {k: x for k, x in vars(a).items() if isinstance(x, (int, float, str, type(None), list))} | dict(
        num_items_in_batch=inputs["num_items_in_batch"].item(), eos_token_id=EOS)
    m = s._metrics["train"]
    scalars = {k: x[-1] for k, x in m.items() if x and cfg["ranks"] == 1 and k.startswith(("kl", "entropy", "clip_ratio")) and k != "entropy_coef" and math.isfinite(x[-1])}
    writer(dict(schema=2, framework="trl", version="1.16.0", algorithm="grpo", run=f"t1-{cfg['name']}", step=step, rank=s.accelerator.process_index,
                world_size=cfg["ranks"], micro_batch=micro, micro_batches=a.gradient_accumulation_steps, options=o, scalars=scalars | {"loss": loss.item()},
                scalars_scope="micro_batch", token_loss_includes_kl=True), t)
# </hook>

def run_with_locals(f, *args):
    got = {}
    def look(frame, event, arg):
        if event == "return" and frame.f_code is f.__code__: got.update(frame.f_locals)
    sys.setprofile(look)
    try: out = f(*args)
    finally: sys.setprofile(None)
    return out, got

class Auto:
    def __enter__(self): return self
    def __exit__(self, *a): return False

def pad(tensors, padding_value=0, padding_side="right", pad_to_multiple_of=None):
    n = max(len(x) for x in tensors); out = torch.full((len(tensors), n), padding_value, dtype=tensors[0].dtype)
    for i, x in enumerate(tensors): out[i, slice(n - len(x), n) if padding_side == "left" else slice(0, len(x))] = x
    return out

def make_self(cfg, a, model, ref, rank, R):
    from collections import defaultdict
    s = types.SimpleNamespace()
    def gather(x):
        if s.record is not None: s.record.append(x)
        return s.counts if s.record is None and x.ndim == 0 and not x.is_floating_point() else x.reshape(-1)
    s.gathering, s.record = True, None
    s.accelerator = types.SimpleNamespace(process_index=rank, num_processes=R, gather=gather, reduce=lambda x, reduction: x, autocast=Auto, device="cpu",
                                          pad_across_processes=lambda x, **k: x, sync_gradients=False, gather_for_metrics=lambda x: x)
    s.args, s.model, s.ref_model = a, model, ref
    s.current_gradient_accumulation_steps, s._step, s._buffered_inputs, s._metrics = a.gradient_accumulation_steps, 0, None, {"train": defaultdict(list)}
    s._tokenizer, s.pad_to_multiple_of, s.eos_token_ids = types.SimpleNamespace(pad_token_id=PAD), None, [EOS]
    for k, x in vars(a).items(): setattr(s, k, x)
    s.epsilon_low, s.epsilon_high = a.epsilon, a.epsilon if a.epsilon_high is None else a.epsilon_high
    s.reward_weights, s.reward_funcs = torch.tensor(a.reward_weights), [None] * cfg["funcs"]
    s.aux_loss_enabled, s.use_adaptive_entropy, s._entropy_bonus_enabled = False, False, a.entropy_coef != 0
    return s

DEFAULT = dict(num_generations=4, per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=2, num_iterations=1, max_completion_length=20,
               temperature=1.0, learning_rate=6e-3, max_grad_norm=1.0, beta=0.0, epsilon=0.2, epsilon_high=None, delta=None, loss_type="dapo", scale_rewards="group",
               importance_sampling_level="token", reward_weights=[1.0, 0.5], use_vllm=False, vllm_importance_sampling_correction=True,
               vllm_importance_sampling_mode="sequence_mask", vllm_importance_sampling_clip_max=3.0, vllm_importance_sampling_clip_min=None, top_entropy_quantile=1.0,
               entropy_coef=0.0, mask_truncated_completions=False, multi_objective_aggregation="sum_then_normalize", off_policy_mask_threshold=None,
               use_bias_correction_kl=True, gradient_checkpointing_kwargs=None, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05)
CONFIGS = dict(
    grpo_beta_iter2=dict(seed=11, ranks=1, rollouts=3, funcs=2, vllm=False, observe=None, left_out=(), args=DEFAULT | dict(
        loss_type="grpo", beta=0.06, num_iterations=2, temperature=0.9)),
    dapo_vllm_tools_2rank=dict(seed=12, noise=0.02, tool_bias=1.2, ranks=2, rollouts=2, funcs=2, vllm=True, observe=lambda ids, t: 3 + (ids.sum(1) + t) % 37, left_out=("token_loss", "kl", "logits"), args=DEFAULT | dict(
        loss_type="dapo", use_vllm=True, vllm_importance_sampling_mode="token_mask", vllm_importance_sampling_clip_max=1.15, vllm_importance_sampling_clip_min=0.88, scale_rewards="none",
        per_device_train_batch_size=8, steps_per_generation=4, gradient_accumulation_steps=2, epsilon_high=0.28, entropy_coef=0.02, beta=0.03, use_bias_correction_kl=False, max_completion_length=24, learning_rate=1e-2)),
    bnpo_seq_top_multi=dict(seed=13, noise=0.005, ranks=1, rollouts=3, funcs=3, vllm=True, observe=None, left_out=("dlogp", "input_ids", "attention_mask", "logits"), args=DEFAULT | dict(
        loss_type="bnpo", importance_sampling_level="sequence", epsilon=0.02, epsilon_high=0.03, use_vllm=True, vllm_importance_sampling_mode="sequence_truncate", vllm_importance_sampling_clip_max=1.05,
        multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.5, 2.0], num_iterations=2, gradient_accumulation_steps=1, top_entropy_quantile=0.3,
        mask_truncated_completions=True, temperature=1.1, learning_rate=3e-3)))
for n, c in CONFIGS.items(): c["name"] = n

A, B, C = CONFIGS
BUGS = [
 ("mean_tiled_std_repeated", A, False, "advantages: the group means are tiled (.repeat) where the stds are repeated (repeat_interleave)", "mean_grouped_rewards = mean_grouped_rewards.repeat_interleave(num_generations, dim=0)", "mean_grouped_rewards = mean_grouped_rewards.repeat(num_generations)"),
 ("std_over_prompts", A, False, "advantages: nanstd of the view (G, -1) over dim 0: σ over strided rows of other prompts", "std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)\n", "std_rewards = nanstd(rewards.view(num_generations, -1), dim=0)\n"),
 ("kl_weight_clipped", A, False, "the bias correction of the KL multiplies with the clipped ratio", "per_token_kl = per_token_kl * coef_1", "per_token_kl = per_token_kl * torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)"),
 ("k3_linear_term_of_old", A, False, "k3: the linear term is of old_per_token_logps, the exponent of per_token_logps", "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1", "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - old_per_token_logps) - 1"),
 ("row_over_sqrt_length", A, False, "loss_type grpo: rows are divided by the square root of their length", "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()", "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0).sqrt()).mean()"),
 ("reward_weights_reversed", A, False, "the reward weights of the advantages are in reversed order (those of the logged scores are right)", "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)", "rewards = (rewards_per_func * self.reward_weights.to(device).flip(0).unsqueeze(0)).nansum(dim=1)"),
 ("old_chunks_masked_by_first_chunk", A, False, "log-probs in chunks (old, ref): the attention mask of the first chunk masks the labels of every chunk", "attention_mask_batch = attention_mask[start:end]", "attention_mask_batch = attention_mask[: end - start]"),
 ("same_microbatch_twice", A, False, "the buffer is indexed by _step // 2: a micro-batch is taken twice in one accumulation, the other in the next", "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]", "inputs = self._buffered_inputs[self._step // 2 % self.args.steps_per_generation]"),
 ("advantages_kept_in_bf16", A, False, "the buffered advantages went through bfloat16", '"advantages": advantages,', '"advantages": advantages.bfloat16().float(),'),
 ("loss_over_num_iterations", A, False, "the loss of grpo is divided by num_iterations, too", "policy_loss = loss.detach()\n        loss = loss / normalizer\n    elif self.loss_type == \"bnpo\":", "policy_loss = loss.detach()\n        loss = loss / normalizer / self.num_iterations\n    elif self.loss_type == \"bnpo\":"),
 ("mismatch_mask_fills_one", B, False, "token_mask: weights outside the bounds become 1 and not 0", "invalid_mis_mask, value=0.0", "invalid_mis_mask, value=1.0"),
 ("num_items_max_of_ranks", B, False, "num_items_in_batch is the largest rank's count and not the sum", "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).sum()", "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).max()"),
 ("advantages_sliced_by_stride", B, False, "advantages of a rank are every second row (stride world) and not its block", "advantages = advantages[process_slice]", "advantages = advantages[self.accelerator.process_index :: self.accelerator.num_processes]"),
 ("entropy_of_tool_tokens", B, False, "the entropy bonus is a mean over the completion mask, tool tokens included", "effective_mask = mask if entropy_mask is None", "effective_mask = completion_mask if entropy_mask is None"),
 ("entropy_not_accumulated", B, False, "the entropy bonus is not divided by the accumulation steps", "effective_mask.sum().clamp(min=1.0) / accumulation_factor", "effective_mask.sum().clamp(min=1.0)"),
 ("is_ratio_not_shuffled", B, False, "the importance weights stay in the first order where all else is shuffled", "generation_batch = shuffle_sequence_dict(generation_batch)", 'generation_batch = {**shuffle_sequence_dict(generation_batch), "importance_sampling_ratio": generation_batch["importance_sampling_ratio"]}'),
 ("kl_under_is_weight", B, True, "the engine weight multiplies policy and KL term together (NeMo-RL's way; legal)", 'per_token_loss = per_token_loss * inputs["importance_sampling_ratio"]', 'per_token_loss = (per_token_loss + (self.beta * per_token_kl if self.beta else 0)) * inputs["importance_sampling_ratio"] - (self.beta * per_token_kl if self.beta else 0)'),
 ("num_items_with_tools", B, False, "num_items_in_batch counts tool tokens", "loss_mask = completion_mask if tool_mask is None else completion_mask * tool_mask", "loss_mask = completion_mask"),
 ("gdpo_std_over_groups", C, False, "normalize_then_sum: the σ of a function is taken over dim 0, across prompts at equal places", "nanstd(grouped, dim=1, keepdim=True)", "nanstd(grouped, dim=0, keepdim=True)"),
 ("seq_ratio_over_width", C, False, "importance_sampling_level sequence: the log-ratio's sum is divided by the padded width", "(log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)\n        log_importance_weights", "(log_ratio * mask).mean(-1)\n        log_importance_weights"),
 ("quantile_of_padded_entropies", C, False, "the entropy threshold is a quantile of all cells, padding (0) included", "local = entropies[mask.bool()].float()", "local = entropies.flatten().float()"),
 ("top_quantile_complement", C, True, "the threshold is the quantile q in place of 1 − q: 70% of the tokens are kept (legal: another top_entropy_quantile)", "mask, 1 - self.top_entropy_quantile)", "mask, self.top_entropy_quantile)"),
 ("none_counts_as_zero_in_mean", C, False, "normalize_then_sum: rewards that are None count as 0 in the group's mean", "mean_k = torch.nanmean(grouped, dim=1, keepdim=True)", "mean_k = torch.nan_to_num(grouped).mean(dim=1, keepdim=True)"),
 ("clip_on_token_ratio", C, False, "the clipped branch clamps the ratio of the token, the other is of the sequence", "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low", "coef_2 = torch.clamp(torch.exp(log_ratio), 1 - self.epsilon_low"),
]

def run(config, edit, writer):
    global cfg
    cfg = CONFIGS[config]
    sources = plant([*TRL, own_source(__file__, "trainer")], edit)
    ns = globals() | dict(__name__="t1", disable_gradient_checkpointing=lambda *a: Auto(), split_pixel_values_by_grid=lambda x: x, unsplit_pixel_values_by_grid=lambda x: x,
                          profiling_decorator=lambda f: f, Any=object, Sequence=list, PreTrainedModel=object, cfg=cfg)
    ns["math"] = math
    for s in sources: exec(compile(s, "trl", "exec"), ns)
    model_self = ns["make_self"]
    def made(*a):
        s = model_self(*a); s.model.train()
        for f in ("get_high_entropy_mask", "_get_per_token_logps_and_entropies"): setattr(s, f, types.MethodType(ns[f], s))
        s.get_off_policy_mask, s.get_gamma_weights = ns["get_off_policy_mask"], ns["get_gamma_weights"]
        return s
    ns["make_self"] = made
    ns["train"](cfg, writer)

if __name__ == "__main__":
    main("t1_trl_grpo_mix", __file__, {c: (f"TRL 1.16 GRPO as released, {c}", []) for c in CONFIGS}, BUGS, run)
