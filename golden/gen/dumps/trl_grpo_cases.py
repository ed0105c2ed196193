"""The runs of trl_grpo.py: what each healthy one varies, and for each bug the statement it replaces."""
from dataclasses import dataclass, field

from patch import Patch

LOSS = "_compute_loss"
ROLL = "_generate_and_score_completions"


@dataclass
class Case:
    folder: str
    what: str
    seed: int
    config: dict = field(default_factory=dict)
    patches: list = field(default_factory=list)
    faults: list = field(default_factory=list)      # rows of faults.md
    inconsistent: list = field(default_factory=list)  # outputs that cannot be recomputed from their inputs under the declared options
    scalars: list = field(default_factory=list)       # logged numbers of which the same is true
    conclude: str = "nothing inconsistent at float32 tolerance"
    option: str = ""                                # the legal option set that gives the same numbers, if there is one
    rewards: tuple = ("digits", "short")
    steps: int = 4
    ranks: int = 1
    lora: bool = False
    bf16: bool = False
    cast: bool = False
    tools: bool = False
    logits: bool = False
    pad_is_eos: bool = True
    temperature_dropped: bool = False

    def expectation(self, profile, where, seen):
        e = {"expect": "fault" if self.faults else "clean", "what": self.what, "profile": profile, "seed": self.seed,
             "options": {k: v for k, v in self.config.items()}, "inconsistent": self.inconsistent, "scalars": self.scalars,
             "conclude": self.conclude}
        if self.faults:
            e.update(faults=self.faults, mnemonic=self.folder.split("/")[-1].upper().replace("_", "-"), patched=where,
                     visible_in_steps={str(s): sorted(v) for s, v in sorted(seen.items()) if v})
            if self.option:
                e["same_as_option"] = self.option
        return e


W = {"reward_weights": [1.0, 0.5]}

CLEAN = [
    Case("clean/grpo_lora", "loss_type grpo, token ratio, scale_rewards group, LoRA reference by disabling the adapter, two passes", 101,
         dict(W, learning_rate=5e-3), lora=True),
    Case("clean/bnpo_batch_std", "loss_type bnpo, no KL, scale_rewards batch, two passes", 102,
         dict(W, loss_type="bnpo", beta=0.0, scale_rewards="batch")),
    Case("clean/dr_grpo_no_std", "loss_type dr_grpo, scale_rewards none, plain k3 (use_bias_correction_kl false)", 103,
         dict(W, loss_type="dr_grpo", scale_rewards="none", use_bias_correction_kl=False, learning_rate=8e-4)),
    Case("clean/dapo_truncated_masked", "loss_type dapo, mask_truncated_completions, a generation batch of two optimiser steps", 104,
         dict(W, loss_type="dapo", mask_truncated_completions=True, num_iterations=1, steps_per_generation=4)),
    Case("clean/cispo", "loss_type cispo with a cap that binds, no KL", 105,
         dict(W, loss_type="cispo", beta=0.0, epsilon_high=1.1)),
    Case("clean/sapo", "loss_type sapo, KL 0.04", 106, dict(W, loss_type="sapo")),
    Case("clean/gspo", "importance_sampling_level sequence, loss_type grpo, narrow clip, KL 0.04", 107,
         dict(W, importance_sampling_level="sequence", epsilon=0.02, epsilon_high=0.03)),
    Case("clean/dapo_two_ranks", "two ranks, every group spans both, loss_type dapo", 108,
         dict(W, loss_type="dapo", per_device_train_batch_size=2, num_generations=8), ranks=2),
    Case("clean/grpo_bf16", "model in bfloat16; log-probs and losses in float32, as the fused head of TRL 1.16 gives them", 109, dict(W, learning_rate=3e-3), bf16=True),
    Case("clean/grpo_hook_bf16", "trained in float32; the hook casts the per-token tensors to bfloat16 and says so (lossy)", 115,
         dict(W), cast=True),
    Case("clean/grpo_delta_gdpo", "delta 1.2 (two-sided clip), normalize_then_sum over three rewards, three passes, no accumulation", 110,
         dict(reward_weights=[1.0, 0.5, 0.25], delta=1.3, multi_objective_aggregation="normalize_then_sum", num_iterations=3,
              gradient_accumulation_steps=1, per_device_train_batch_size=8, temperature=1.0), rewards=("digits", "short", "even")),
    Case("clean/grpo_pad_not_eos", "pad differs from eos, one 0/1 reward (groups without spread), temperature 1, logits dumped", 111,
         dict(temperature=1.0, scale_rewards="group"), rewards=("even",), pad_is_eos=False, logits=True),
    Case("clean/grpo_tools", "two turns with a tool's tokens between them (holes in response_mask), loss_type bnpo", 112,
         dict(W, loss_type="bnpo"), tools=True),
    Case("clean/luspo", "loss_type luspo at sequence level, KL 0.04", 113,
         dict(W, loss_type="luspo", importance_sampling_level="sequence", epsilon=0.02, epsilon_high=0.03)),
    Case("clean/dapo_masked_micro_batch", "mask_truncated_completions with a micro-batch of truncated rows only: its row means are NaN, dropped by TRL's log", 212,
         dict(W, loss_type="dapo", mask_truncated_completions=True)),
    Case("clean/dapo_aligned", "loss_type dapo, one pass: the ratio is exp(lp − sg lp), identically 1", 114,
         dict(W, loss_type="dapo", num_iterations=1)),
]

GRPO_MEAN = "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()\n            normalizer = self.current_gradient_accumulation_steps if mode == \"train\" else 1.0  # no accum in eval"
GROUP_STD = "std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)"
MIN = "per_token_loss = -torch.min(per_token_loss1, per_token_loss2)"
CLIP = "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)"
OLD = 'old_per_token_logps = inputs.get("old_per_token_logps")'
MASK = 'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]'
NORMALIZER = 'normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation'
ITEMS = "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).sum()"
ONES = "completion_mask = [torch.ones_like(ids, dtype=torch.long) for ids in completion_ids]"
KL_CORR = "per_token_kl = per_token_kl * coef_1"
DAPO_SUM = "loss = (per_token_loss * mask).sum() / normalizer"
LOGGED_REWARD = "rewards = (rewards_per_func * self.reward_weights.to(rewards_per_func.device).unsqueeze(0)).nansum(dim=1)"
SUMMED_REWARD = "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)\n            rewards[unscorable_mask] = torch.nan\n            mean_grouped"

FAULTS = [
    Case("faulty/adv_std_ddof0", "group std divides by n, not n − 1", 201, dict(W),
         [Patch(ROLL, GROUP_STD, "std_rewards = rewards.view(-1, num_generations).std(dim=1, correction=0)")],
         ["P189"], ["advantages"], [], "advantages follow ddof 0; declared trl-grpo has ddof 1", "adv.ddof=0"),
    Case("faulty/adv_group_batch_std_swapped", "the branches of scale_rewards are swapped: group uses the batch's std", 202, dict(W),
         [Patch(ROLL, 'if self.scale_rewards in ["group", "none"]:', 'if self.scale_rewards in ["batch", "none"]:'),
          Patch(ROLL, 'elif self.scale_rewards == "batch":', 'elif self.scale_rewards == "group":')],
         ["P021", "P180"], ["advantages"], [], "advantages are divided by the batch's std; declared group", "adv.scale=batch_std"),
    Case("faulty/adv_group_stride", "rewards viewed as [G, prompts]: each group mixes the samples of all prompts", 203, dict(W),
         [Patch(ROLL, "mean_grouped_rewards = torch.nanmean(rewards.view(-1, num_generations), dim=1)",
                "mean_grouped_rewards = torch.nanmean(rewards.view(num_generations, -1), dim=0)"),
          Patch(ROLL, "mean_grouped_rewards = mean_grouped_rewards.repeat_interleave(num_generations, dim=0)",
                "mean_grouped_rewards = mean_grouped_rewards.repeat(num_generations)"),
          Patch(ROLL, GROUP_STD, "std_rewards = nanstd(rewards.view(num_generations, -1), dim=0)"),
          Patch(ROLL, "std_rewards = std_rewards.repeat_interleave(num_generations, dim=0)", "std_rewards = std_rewards.repeat(num_generations)")],
         ["P179"], ["advantages"], [], "advantages are those of another grouping than group_id"),
    Case("faulty/reward_weights_ignored_in_log", "the logged reward sums the functions without reward_weights", 204, dict(W),
         [Patch(ROLL, LOGGED_REWARD, "rewards = rewards_per_func.nansum(dim=1)")],
         ["P029"], [], ["reward", "reward_std"], "logged reward is the unweighted sum; training is right"),
    Case("faulty/reward_weights_ignored", "reward_weights not applied to the rewards that are normalised", 205, dict(W),
         [Patch(ROLL, SUMMED_REWARD, SUMMED_REWARD.replace("(rewards_per_func * self.reward_weights.to(device).unsqueeze(0))", "rewards_per_func"))],
         ["P029"], ["scores"], [], "scores (and the advantages made of them) are the unweighted sum of rewards_per_func"),
    Case("faulty/mask_excludes_eos", "pad = eos and completion_mask = (id ≠ pad): the EOS that ends a row is not trained", 206, dict(W),
         [Patch(ROLL, ONES, "completion_mask = [(ids != self._tokenizer.pad_token_id).long() for ids in completion_ids]")],
         ["H13f", "P033"], ["response_mask"], ["completions/mean_length"],
         "no row that ended has its EOS inside the mask"),
    Case("faulty/mask_shifted", "loss mask taken from the full row one column early: first token dropped", 207, dict(W, loss_type="bnpo"),
         [Patch(LOSS, MASK, 'mask = torch.cat([torch.zeros_like(prompt_mask), completion_mask], dim=1)[:, -logits_to_keep - 1 : -1]')],
         ["P068", "P004"], ["loss", "dlogp"], ["loss", "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"],
         "loss and dlogp use the response mask shifted by one"),
    Case("faulty/mask_ignores_tools", "the tool mask is not applied: tool tokens are trained", 208,
         dict(W, loss_type="bnpo"),
         [Patch(LOSS, MASK, "mask = completion_mask")],
         ["P027", "P062"], ["loss", "dlogp"], ["loss", "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"], "loss and dlogp cover the holes of response_mask", tools=True),
    Case("faulty/loss_not_divided_by_accumulation", "loss_type grpo without the division by the accumulation steps", 209, dict(W),
         [Patch(LOSS, GRPO_MEAN, GRPO_MEAN.replace('self.current_gradient_accumulation_steps if mode == "train" else 1.0', "1.0"))],
         ["P012"], ["loss", "dlogp"], ["loss"], "loss and dlogp are larger by the factor gradient_accumulation_steps", "agg.div_ga=false"),
    Case("faulty/loss_divided_by_accumulation_twice", "loss_type dapo divided by the accumulation steps although its denominator is global", 210,
         dict(W, loss_type="dapo"),
         [Patch(LOSS, DAPO_SUM, DAPO_SUM + " / self.current_gradient_accumulation_steps")],
         ["P184"], ["loss", "dlogp"], ["loss"], "loss and dlogp are smaller by the factor gradient_accumulation_steps"),
    Case("faulty/dapo_local_denominator", "dapo divides by the micro-batch's own tokens", 211, dict(W, loss_type="dapo"),
         [Patch(LOSS, DAPO_SUM, "loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0) / self.current_gradient_accumulation_steps")],
         ["P014", "P080"], ["loss", "dlogp"], ["loss"], "denominator is the micro-batch's, not the generation batch's", "loss_type=bnpo"),
    Case("faulty/dapo_counts_masked_tokens", "num_items_in_batch counts the tokens of masked truncated rows", 212,
         dict(W, loss_type="dapo", mask_truncated_completions=True),
         [Patch(ROLL, ITEMS, "num_items_in_batch = self.accelerator.gather(torch.tensor(sum(len(i) for i in completion_ids_list))).sum()")],
         ["P030"], ["num_items_in_batch"], [], "num_items_in_batch is not Σ response_mask over the generation batch"),
    Case("faulty/dapo_generation_denominator", "num_items_in_batch of a generation batch of two optimiser steps, not rescaled to one", 213,
         dict(W, loss_type="dapo", num_iterations=1, steps_per_generation=4),
         [Patch(LOSS, NORMALIZER, "normalizer = normalizer * 1")],
         ["P031"], ["loss", "dlogp"], ["loss"], "loss and dlogp are smaller by the factor steps_per_generation / accumulation steps"),
    Case("faulty/kl_weight_detached", "the ratio that corrects the KL is detached: the value is right, its gradient is plain k3 × ratio", 214, dict(W, beta=0.2),
         [Patch(LOSS, KL_CORR, KL_CORR + ".detach()")],
         ["P113", "P045"], ["dlogp"], [], "gradient only: the score-function term of the KL is missing"),
    Case("faulty/kl_naive_k3", "use_bias_correction_kl is true but never applied; the ratio is 1, so only the gradient shows it", 215,
         dict(W, beta=0.2, num_iterations=1),
         [Patch(LOSS, KL_CORR, "pass")],
         ["P045", "P210"], ["dlogp"], [], "gradient is naive k3 (1 − eˣ); declared bias-corrected (−x·ratio)", "use_bias_correction_kl=false"),
    Case("faulty/kl_sign", "β·KL subtracted from the loss", 216, dict(W),
         [Patch(LOSS, "per_token_loss = per_token_loss + self.beta * per_token_kl", "per_token_loss = per_token_loss - self.beta * per_token_kl")],
         ["P181"], ["token_loss", "dlogp"], [], "token_loss holds −β·KL"),
    Case("faulty/clip_bounds_swapped", "clamp(r, 1 − ε_high, 1 + ε_low)", 217, dict(W, epsilon=0.1, epsilon_high=0.3, learning_rate=8e-4),
         [Patch(LOSS, CLIP, "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_high, 1 + self.epsilon_low)")],
         ["P016"], ["token_loss", "dlogp"], [], "clip bounds are exchanged"),
    Case("faulty/clip_max_for_min", "−max(r·A, clip(r)·A) instead of −min", 218, dict(W, learning_rate=8e-4),
         [Patch(LOSS, MIN, "per_token_loss = -torch.max(per_token_loss1, per_token_loss2)")],
         ["P016"], ["token_loss", "dlogp"], [], "the optimistic bound is taken"),
    Case("faulty/clip_ratio_sign_blind", "clip_ratio counts clipping without regard to the sign of the advantage", 219, dict(W, learning_rate=8e-4),
         [Patch(LOSS, "is_low_clipped = (coef_1 < 1 - self.epsilon_low) & (advantages < 0)", "is_low_clipped = (coef_1 < 1 - self.epsilon_low).expand_as(per_token_loss)"),
          Patch(LOSS, "is_high_clipped = (coef_1 > 1 + self.epsilon_high) & (advantages > 0)", "is_high_clipped = (coef_1 > 1 + self.epsilon_high).expand_as(per_token_loss)")],
         ["P016"], [], ["clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"], "metric only: |r − 1| > ε counted", "metric.clip_frac=outside"),
    Case("faulty/temperature_missing", "logits of the training forward are not divided by the sampling temperature 0.7", 220,
         dict(W, temperature=0.7), [], ["P015"], ["logp_new"], [], "logp_new is the log-softmax of logits/1, logp_gen of logits/0.7",
         logits=True, temperature_dropped=True),
    Case("faulty/old_logp_rows_shuffled", "the generation batch is shuffled, its old log-probs are not", 221, dict(W),
         [Patch("_prepare_inputs", "generation_batch = shuffle_sequence_dict(generation_batch)",
                'kept = generation_batch.pop("old_per_token_logps")\n                generation_batch = shuffle_sequence_dict(generation_batch)\n                generation_batch["old_per_token_logps"] = kept')],
         ["P023"], ["logp_old"], [], "logp_old belongs to other rows: at the first update it differs from logp_new"),
    Case("faulty/old_logp_zero", "old log-probs are zeros: the ratio is exp(lp)", 222, dict(W),
         [Patch(LOSS, OLD, OLD + "\n        old_per_token_logps = torch.zeros_like(per_token_logps)")],
         ["H1"], ["logp_old"], [], "logp_old is 0 on every token"),
    Case("faulty/old_logp_recomputed", "old log-probs recomputed with the new weights: the ratio is 1 at every update", 223,
         dict(W, learning_rate=8e-4),
         [Patch(LOSS, OLD, "old_per_token_logps = None")],
         ["P162"], ["logp_old"], [], "logp_old = logp_new at the second update of a batch, while both differ from logp_gen"),
    Case("faulty/gspo_sum_for_mean", "sequence ratio is exp(Σ log-ratio), not of its mean", 224,
         dict(W, importance_sampling_level="sequence", epsilon=0.02, epsilon_high=0.03),
         [Patch(LOSS, "log_importance_weights = (log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)", "log_importance_weights = (log_ratio * mask).sum(-1)")],
         ["P043", "P125"], ["token_loss", "dlogp", "kl"], ["clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"], "ratio level is seq_sum", "ratio.level=seq_sum"),
    Case("faulty/cispo_through_clip", "CISPO trains through the clipped ratio: no detach, no log-prob factor", 225,
         dict(W, loss_type="cispo", beta=0.0, epsilon_high=1.1),
         [Patch(LOSS, "clamped_ratios = torch.clamp(coef_1, max=self.epsilon_high).detach()", "clamped_ratios = torch.clamp(coef_1, max=self.epsilon_high)"),
          Patch(LOSS, "per_token_loss = -clamped_ratios * advantages * per_token_logps", "per_token_loss = -clamped_ratios * advantages")],
         ["P130"], ["token_loss", "dlogp"], [], "token_loss has no log-prob factor and its gradient stops at the cap"),
    Case("faulty/entropy_counts_padding", "entropy metric is the mean over all cells, padding included", 226, dict(W),
         [Patch(LOSS, 'self._metrics[mode]["entropy"].append(global_masked_mean(entropies))', 'self._metrics[mode]["entropy"].append(entropies.mean().item())')],
         ["P127", "P171"], [], ["entropy"], "metric only: mean over B·T cells"),
    Case("faulty/entropy_rows_reversed", "the entropies of a batch are not put back into row order", 227, dict(W),
         [Patch(LOSS, "if self.top_entropy_quantile < 1.0:", "entropies = entropies.flip(0)\n        if self.top_entropy_quantile < 1.0:")],
         ["P077"], ["entropy"], [], "entropy belongs to other rows; only the logits tell", logits=True),
    Case("faulty/logp_one_position_early", "log-probs sliced one column early: entry t is token t − 1", 228, dict(W),
         [Patch("_get_per_token_logps_and_entropies", "outputs.log_probs[:, -logits_to_keep:]", "outputs.log_probs[:, -logits_to_keep - 1 : -1]")],
         ["C5", "P163"], ["logp_new"], [], "logp_new, logp_old and logp_ref are one position ahead of logp_gen", logits=True),
    Case("faulty/adv_std_cancellation", "group std from E[x²] − μ² in float32, rewards near 4096", 229,
         dict(W, reward_weights=[1.0]),
         [Patch(ROLL, GROUP_STD, "std_rewards = ((rewards**2).view(-1, num_generations).mean(1) - rewards.view(-1, num_generations).mean(1) ** 2).clamp(min=0).mul(num_generations / (num_generations - 1)).sqrt()")],
         ["P109"], ["advantages"], [], "the std holds rounding only", rewards=("offset",)),
    Case("faulty/group_identical", "sampling is greedy: the samples of a group are all the same", 230,
         dict(W, temperature=1.0, num_iterations=1, generation_kwargs={"do_sample": False}), [], ["P064", "B1", "P057"], ["response_ids"], [],
         "every group holds one completion four times, so all advantages are 0"),
]
