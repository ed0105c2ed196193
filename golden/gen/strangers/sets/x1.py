"""x1: TRL 1.16's GRPOTrainer by its own lines: _compute_loss, get_high_entropy_mask and the whole of
_generate_and_score_completions behind _generate run as they stand in the release (and nanstd, pad, shuffle_sequence_dict and
split_tensor_dict of its utils); the model, the engine, the rewards and the loop of optimiser steps are ours. Bugs are one edit in
either text.

    python x1.py CASES
"""
import contextlib, math, sys
import numpy as np
from world_x import *
from collections import defaultdict
from types import SimpleNamespace

TRL = f"{SRC}/trl-1.16.0/trl/trainer"


def generate_and_score():
    """The lines of _generate_and_score_completions from the padding of the ids to its return, as a function."""
    text = functions(f"{TRL}/grpo_trainer.py", ["_generate_and_score_completions"], "GRPOTrainer")
    body = text[text.index("    # Convert lists of token IDs to padded tensors") :]
    head = '''def _generate_and_score(self, inputs, prompts, prompt_ids_list, completion_ids_list, completions, sampling_per_token_logps_list):
    device, mode, images, tool_images, extra_fields, tool_mask_list = self.accelerator.device, "train", None, [], None, None
'''
    return head + body.rstrip() + ", dict(scores=rewards, rewards_per_func=rewards_per_func)\n"  # the hook's


def loss_text():
    text = functions(f"{TRL}/grpo_trainer.py", ["_compute_loss"], "GRPOTrainer")
    assert text.rstrip().endswith("return loss")
    return text.rstrip() + ", locals()\n"  # the hook's


TEXTS = dict(
    utils=functions(f"{TRL}/utils.py", ["nanstd", "nanmin", "nanmax", "pad", "shuffle_sequence_dict", "split_tensor_dict"]),
    trl=generate_and_score() + "\n" + loss_text() + "\n" + functions(f"{TRL}/grpo_trainer.py", ["get_high_entropy_mask", "get_off_policy_mask"], "GRPOTrainer"),
    program=trainer_text(__file__),
)

# >>> trainer
class Accelerator:
    num_processes, process_index, device, sync_gradients = 1, 0, torch.device("cpu"), True
    gather = staticmethod(lambda x: x)
    pad_across_processes = staticmethod(lambda x, dim=0, pad_index=0: x)
    reduce = staticmethod(lambda x, reduction="sum": x)


class Trainer:
    def __init__(self, cfg):
        o = cfg["options"]
        self.cfg, self.args, self.options = cfg, SimpleNamespace(**dict(dict(delta=None, gradient_checkpointing_kwargs=None), **o)), o
        self.accelerator, self._metrics, self._logs = Accelerator(), defaultdict(lambda: defaultdict(list)), dict(prompt=[], completion=[], rewards=defaultdict(list), advantages=[], extra=defaultdict(list))
        self.model = LM(cfg["seed"], sharp=cfg.get("sharp", 2.2), eos=cfg.get("eos", 0.9))
        self.ref_model = LM(cfg["seed"], sharp=cfg.get("sharp", 2.2), eos=cfg.get("eos", 0.9))
        if cfg.get("sft"):  # training began from a tuned copy, the reference is the base
            g = torch.Generator().manual_seed(cfg["seed"] + 7)
            with torch.no_grad():
                for p in self.model.parameters():
                    p.add_(cfg["sft"] * torch.randn(p.shape, generator=g))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg["lr"], weight_decay=0.0)
        for k in ("steps_per_generation", "num_iterations", "num_generations", "beta", "loss_type", "importance_sampling_level", "top_entropy_quantile", "temperature",
                  "mask_truncated_completions", "multi_objective_aggregation", "scale_rewards", "max_completion_length", "use_vllm", "vllm_importance_sampling_correction",
                  "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max", "off_policy_mask_threshold", "entropy_coef"):
            setattr(self, k, o[k])
        self.epsilon_low, self.epsilon_high = o["epsilon"], o["epsilon_high"] if o["epsilon_high"] is not None else o["epsilon"]
        self.reward_funcs, self.reward_func_names = cfg["rewards"], [f.__name__ for f in cfg["rewards"]]
        self.reward_weights = torch.tensor(o["reward_weights"])
        self._entropy_bonus_enabled, self.use_adaptive_entropy, self.aux_loss_enabled = self.entropy_coef != 0, False, False
        self.current_gradient_accumulation_steps = o["gradient_accumulation_steps"]
        self._tokenizer, self.eos_token_ids, self.pad_to_multiple_of = SimpleNamespace(pad_token_id=PAD), [EOS], None
        self.tools, self._is_vlm, self.log_multimodal, self._pending_extra_logs, self._pending_metrics = None, False, False, {}, {}
        self._step, self.global_step, self._buffered_inputs, self.generation = 0, 0, None, 0

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, compute_aux_loss=False, **_):
        logits = resp_logits(model, input_ids, input_ids.size(1) - logits_to_keep)
        if compute_entropy:
            self.seen_logits = logits.detach()
        logits = logits / self.temperature
        valid = attention_mask[:, -logits_to_keep:].bool()
        logps = gather_logp(logits, input_ids[:, -logits_to_keep:]).masked_fill(~valid, 0.0)
        entropies = entropy_of(logits).masked_fill(~valid, 0.0) if compute_entropy else None
        return logps, entropies, None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        out = torch.zeros(len(prompts), len(self.reward_funcs))
        for i, f in enumerate(self.reward_funcs):
            out[:, i] = torch.tensor([f(p, c) for p, c in zip(prompts, completion_ids_list)])
        return out

    def generation_batch(self):
        n = self.args.per_device_train_batch_size * self.steps_per_generation
        base = make_prompts(n // self.num_generations, 4, 100 * self.cfg["seed"] + self.generation).tolist()
        prompts = [p for p in base for _ in range(self.num_generations)]
        engine = engine_of(self.model, self.generation, self.cfg["noise"]) if self.use_vllm else self.model
        ids, mask, lps = sample(engine, torch.tensor(prompts), self.max_completion_length, self.temperature, 31 * self.cfg["seed"] + self.generation)
        lens = mask.sum(1).long().tolist()
        completion_ids = [r[:n] for r, n in zip(ids.tolist(), lens)]
        sampling = [r[:n] for r, n in zip(lps.tolist(), lens)] if self.use_vllm else None
        batch, label = self._generate_and_score([{"prompt": p} for p in prompts], prompts, prompts, completion_ids, completion_ids, sampling)
        batch.update(label)
        groups = {tuple(p): i for i, p in enumerate(base)}
        batch["group_id"] = torch.tensor([groups[tuple(p)] for p in prompts]) + 1000 * self.generation
        batch["sample_id"] = torch.arange(n) + 1000 * self.generation
        self.generation += 1
        return batch

    def _prepare_inputs(self):
        generate_every = self.steps_per_generation * self.num_iterations
        if self._step % generate_every == 0:
            batch = self.generation_batch()
            torch.manual_seed(self._step + 5)
            batch = shuffle_sequence_dict(batch)
            self._buffered_inputs = split_tensor_dict(batch, self.steps_per_generation)
        return self._buffered_inputs[self._step % self.steps_per_generation]

    def dump(self, out, v, inputs, loss):
        x, parts, lp = {**inputs, **v}, self.current_gradient_accumulation_steps, v["per_token_logps"]
        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True)
        names = dict(response_ids="completion_ids", response_mask="mask", logp_new="per_token_logps", logp_old="old_per_token_logps", kl="per_token_kl", logp_ref="ref_per_token_logps",
                     logp_gen="sampling_per_token_logps", is_weights="importance_sampling_ratio", entropy="entropies", input_ids="input_ids", attention_mask="attention_mask",
                     rewards_per_func="rewards_per_func", scores="scores", group_id="group_id", sample_id="sample_id")
        t = {k: x[n] for k, n in names.items() if x.get(n) is not None}
        t.update(advantages=inputs["advantages"], token_loss=x["per_token_loss"].expand_as(lp), dlogp=dlogp, loss=loss)
        if x["importance_sampling_ratio"].shape[-1] == 1 if x.get("importance_sampling_ratio") is not None else False:
            t["is_weights"] = x["importance_sampling_ratio"].squeeze(1)
        if self.cfg.get("logits"):
            t["logits"] = self.seen_logits
        t = {k: t[k] for k in t if k not in self.cfg.get("leave_out", ())}
        scalars = {k: m[-1] for k, m in self._metrics["train"].items() if k == "kl" or k.startswith(("entropy", "clip_ratio/region", "clip_ratio/low_mean", "clip_ratio/high_mean")) if k != "entropy_coef"}
        options = dict(self.options, eos_token_id=EOS, num_items_in_batch=int(inputs["num_items_in_batch"]))
        meta = dict(schema=2, framework="trl", version="1.16.0", algorithm="grpo", run=self.cfg["run"], step=self.global_step + 1, rank=0, world_size=1, micro_batch=self._step % parts, micro_batches=parts,
                    options=options, scalars=dict(scalars, loss=loss.item()), scalars_scope="micro_batch", token_loss_includes_kl=True)
        write(out, f"step_{self.global_step + 1:06d}_rank_0_mb_{self._step % parts}", t, meta)

    def train(self, out):
        for _ in range(self.cfg["micro_steps"]):
            inputs = self._prepare_inputs()
            loss, v = self._compute_loss(self.model, inputs)
            self.dump(out, v, inputs, loss)
            loss.backward()
            self._step += 1
            if self._step % self.current_gradient_accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.opt.zero_grad()
                self.global_step += 1
# <<< trainer


def execute(texts, cfg, out):
    ns = dict(globals(), F=F, math=math, np=np, Sequence=list, disable_gradient_checkpointing=lambda *a: contextlib.nullcontext(), gather_object=lambda x: x, is_rich_available=lambda: False)
    exec(compile("from __future__ import annotations\n" + texts["utils"], "utils", "exec"), ns)
    trl = texts["trl"].replace("@staticmethod\n", "").replace("@profiling_decorator\n", "")
    exec(compile("from __future__ import annotations\n" + trl, "trl", "exec"), ns)
    exec(compile(texts["program"], "program", "exec"), ns)
    cls = ns["Trainer"]
    for f in ("_generate_and_score", "_compute_loss", "get_high_entropy_mask"):
        setattr(cls, f, ns[f])
    cls.get_off_policy_mask = staticmethod(ns["get_off_policy_mask"])
    cls(cfg).train(out)


BASE = dict(loss_type="dapo", epsilon=0.2, epsilon_high=0.28, delta=None, beta=0.0, use_bias_correction_kl=True, num_generations=4, per_device_train_batch_size=8, steps_per_generation=4,
            gradient_accumulation_steps=2, num_iterations=1, temperature=1.0, max_completion_length=24, importance_sampling_level="token", mask_truncated_completions=False,
            top_entropy_quantile=1.0, scale_rewards="group", multi_objective_aggregation="sum_then_normalize", reward_weights=[1.0, 0.5], use_vllm=True,
            vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="sequence_mask", vllm_importance_sampling_clip_max=3.0, vllm_importance_sampling_clip_min=None,
            off_policy_mask_threshold=None, entropy_coef=0.0)
HEALTHY = [
    ("dapo-vllm", dict(about="dapo, clip-higher, truncated completions masked, token_truncate weights of vLLM, two rewards, two steps per generation", seed=3, lr=0.012, noise=0.12, run="x1-dapo",
                       rewards=[reward_even, reward_short], micro_steps=16, eos=1.3,
                       options=dict(BASE, mask_truncated_completions=True, vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=1.5, vllm_importance_sampling_clip_min=0.5))),
    ("grpo-kl", dict(about="grpo with bias-corrected KL 0.04, delta, the 40 % of highest entropy, std of the batch, temperature 0.7, two iterations, transformers' generate; logits are dumped", seed=5, lr=0.006,
                     noise=0.0, run="x1-grpo-kl", rewards=[reward_even, reward_key], micro_steps=16, sft=0.03, logits=True,
                     options=dict(BASE, loss_type="grpo", beta=0.04, delta=1.3, epsilon=0.15, epsilon_high=None, temperature=0.7, top_entropy_quantile=0.4, scale_rewards="batch", use_vllm=False,
                                  steps_per_generation=2, num_iterations=2, reward_weights=[1.0, 1.0], max_completion_length=20))),
    ("luspo-gdpo", dict(about="luspo with ratios of the sequence, GDPO's aggregation of three rewards, sequence_mask of vLLM, entropy bonus, two iterations, no accumulation", seed=8, lr=0.006, noise=0.16,
                        run="x1-luspo", rewards=[reward_even, reward_key, reward_short], micro_steps=8,
                        options=dict(BASE, loss_type="luspo", importance_sampling_level="sequence", epsilon=0.02, epsilon_high=0.03, multi_objective_aggregation="normalize_then_sum",
                                     reward_weights=[1.0, 0.6, 0.3], per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1, num_iterations=2,
                                     vllm_importance_sampling_clip_max=1.6, entropy_coef=0.01), leave_out=("token_loss", "attention_mask", "input_ids"))),
]
A, B, C = "dapo-vllm", "grpo-kl", "luspo-gdpo"
BUGS = [
    ("tis_inverted", A, "per_token_logps_diff = (old_per_token_logps - sampling_per_token_logps) * mask", "per_token_logps_diff = (sampling_per_token_logps - old_per_token_logps) * mask",
     "The weight of the engine mismatch is sampler over trainer", False),
    ("tis_rows_unshuffled", A, "            batch = shuffle_sequence_dict(batch)\n", '            batch = {**shuffle_sequence_dict(batch), "importance_sampling_ratio": batch["importance_sampling_ratio"]} if self.use_vllm else shuffle_sequence_dict(batch)\n',
     "The importance weights are left out of the shuffle, so every row gets another row's", False),
    ("items_with_truncated", A, "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).sum()", "num_items_in_batch = self.accelerator.gather((completion_ids != self._tokenizer.pad_token_id).sum()).sum()",
     "The tokens of the masked, truncated completions are still counted in the denominator", False),
    ("window_rescale_inverted", A, "normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation",
     "normalizer = normalizer * self.args.steps_per_generation / self.current_gradient_accumulation_steps", "The share of the generation batch in one accumulation window is turned upside down", False),
    ("tis_batch_mean", A, 'per_token_loss = per_token_loss * inputs["importance_sampling_ratio"]', 'per_token_loss = per_token_loss * inputs["importance_sampling_ratio"].mean()',
     "One mean weight of the micro-batch (padding included) multiplies every token", False),
    ("std_across_groups", A, "std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)", "std_rewards = nanstd(rewards.view(num_generations, -1), dim=0)",
     "The reshape for the std is transposed: σ is over the same place in every stride, not over the group", False),
    ("clip_bounds_swapped", A, "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)", "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_high, 1 + self.epsilon_low)",
     "epsilon and epsilon_high are swapped", True),
    ("ratio_over_sampler_too", A, 'old_per_token_logps = inputs.get("old_per_token_logps")', 'old_per_token_logps = inputs.get("sampling_per_token_logps")',
     "The ratio is taken over the sampler's log-probs while the mismatch weight multiplies, too: the mismatch is corrected twice", False),
    ("truncate_min_is_max", A, "                min=self.vllm_importance_sampling_clip_min,\n", "                min=1.0,\n",
     "Weights below 1 are lifted to 1", True),
    ("prompts_tiled", A, "prompts = [p for p in base for _ in range(self.num_generations)]", "prompts = [p for _ in range(self.num_generations) for p in base]",
     "The prompts are tiled, the rewards are still viewed as blocks of num_generations: a block is one response of each of several prompts", False),
    ("delta_lifts", B, "coef_1 = torch.clamp(coef_1, max=self.args.delta)", "coef_1 = torch.clamp(coef_1, min=1 / self.args.delta)", "delta bounds the ratio from below, at 1/δ, in place of from above", False),
    ("kl_weight_clipped", B, "per_token_kl = per_token_kl * coef_1", "per_token_kl = per_token_kl * torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)",
     "The KL's importance weight is the clipped ratio, whose gradient ends at the bounds", False),
    ("entropy_mask_low", B, "entropy_mask = masked_entropies >= entropy_threshold", "entropy_mask = masked_entropies <= entropy_threshold", "The tokens of low entropy are kept, those of high entropy dropped", False),
    ("entropy_quantile_padding", B, "local = entropies[mask.bool()].float()", "local = entropies.flatten().float()", "The quantile is over all cells, the zeros of the padding included", False),
    ("batch_std_of_means", B, "std_rewards = nanstd(rewards).expand_as(rewards)\n            else:  # doesn't", "std_rewards = nanstd(mean_grouped_rewards).expand_as(rewards)\n            else:  # doesn't",
     "σ of the batch is that of the groups' means", False),
    ("baseline_repeat", B, "mean_grouped_rewards = mean_grouped_rewards.repeat_interleave(num_generations, dim=0)", "mean_grouped_rewards = mean_grouped_rewards.repeat(num_generations)",
     "The means are tiled, not interleaved: rows get the baseline of another prompt", False),
    ("temperature_multiplied", B, "logits = logits / self.temperature\n", "logits = logits * self.temperature\n", "Logits are multiplied by the temperature where they are scored", False),
    ("kl_of_old", B, "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1", "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - old_per_token_logps) - 1",
     "k3's linear term has the old policy's log-prob, the exponential the new one's", False),
    ("seq_ratio_padded_length", C, "log_importance_weights = (log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)", "log_importance_weights = (log_ratio * mask).mean(-1)",
     "The sequence's log-ratio is divided by the padded length", False),
    ("gdpo_centre_by_place", C, "mean_k = torch.nanmean(grouped, dim=1, keepdim=True)", "mean_k = torch.nanmean(grouped, dim=0, keepdim=True)", "Each reward is centred over the same place of all groups, and divided by the group's σ", False),
    ("gdpo_outer_std_stale", C, "advantages = (rewards - torch.nanmean(rewards)) / (std_rewards + 1e-4)", "advantages = (rewards - torch.nanmean(rewards)) / (nanstd(rewards_per_func.sum(1)) + 1e-4)",
     "The sum of the normalised rewards is divided by the σ of the raw ones", False),
    ("mask_mode_fills_one", C, "invalid_mis_mask, value=0.0\n", "invalid_mis_mask, value=1.0\n", "Sequences outside the bounds count with weight 1 in place of 0", False),
    ("bonus_over_rectangle", C, "(entropies * effective_mask).sum() / effective_mask.sum().clamp(min=1.0) / accumulation_factor", "(entropies * effective_mask).sum(-1).mean() / effective_mask.size(1) / accumulation_factor",
     "The entropy bonus is a mean over the padded rectangle", False),
    ("second_iteration_old_of_neighbour", C, "        return self._buffered_inputs[self._step % self.steps_per_generation]\n",
     "        k = self._step % self.steps_per_generation\n        return {**self._buffered_inputs[k], \"old_per_token_logps\": self._buffered_inputs[(self._step % generate_every) // self.steps_per_generation * (1 - k) if self._step % generate_every >= self.steps_per_generation else k][\"old_per_token_logps\"]}\n",
     "In the second iteration the old log-probs are those of the other slice of the buffer", False),
]

if __name__ == "__main__":
    run_all(sys.argv[1], "x1", TEXTS, HEALTHY, BUGS, execute, sys.argv[2:])
