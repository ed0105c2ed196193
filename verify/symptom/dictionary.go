package symptom

import (
	"math"
	"slices"
	"strings"
)

// Quantity is what a metric is: one number with one formula, under whatever names programs log it.
type Quantity struct {
	ID        string
	Formula   string
	Mask      string // over which cells, "" where there are none
	Reduction string
	Sign      string // what its sign means
	Low, High float64
	Range     string // the symptom where a value lies outside of [Low, High]
}

var inf = math.Inf(1)

// quantities are the formulas. Ranges follow from them: k3 = e^d − d − 1 ≥ 0 (Schulman 2020), 0 ≤ H ≤ ln V, a share in [0, 1].
var quantities = []Quantity{
	{ID: "loss", Formula: "what is minimised", Low: -inf, High: inf},
	{ID: "loss_policy", Formula: "−mean min(ρA, clip(ρ)A)", Mask: "response", Sign: "undetermined: the advantages have mean 0", Low: -inf, High: inf},
	{ID: "loss_value", Formula: "½ mean max((V−R)², (Vc−R)²)", Mask: "response", Sign: "at least 0", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "loss_entropy", Formula: "−H, or H", Mask: "response", Sign: "negative: −H is logged; positive: H (C21)", Low: -12.7, High: 12.7, Range: "ENTROPY-RANGE"},
	{ID: "loss_kl", Formula: "β · KL to the reference", Mask: "response", Reduction: "token mean", Sign: "at least 0 for k2 and k3", Low: 0, High: inf, Range: "KL-NEGATIVE"},
	{ID: "kl_penalty", Formula: "β · KL to the reference; k1 in the notes, k3 in this project", Mask: "masked positions", Reduction: "row sum, mean over rows", Sign: "k1 may be negative", Low: -inf, High: inf},
	{ID: "kl_k3", Formula: "e^d − d − 1, d = log π_ref − log π", Mask: "response", Reduction: "token mean", Sign: "at least 0 at every token", Low: 0, High: inf, Range: "KL-NEGATIVE"},
	{ID: "kl_k2", Formula: "½ (log π − log π_old)²", Mask: "response, in TRL's PPO padding too", Reduction: "token mean", Sign: "at least 0 at every token", Low: 0, High: inf, Range: "KL-NEGATIVE"},
	{ID: "kl_k1", Formula: "log π − log π_ref", Mask: "response", Reduction: "token mean", Sign: "may be negative at a step; its mean over many is not", Low: -inf, High: inf},
	{ID: "kl_seq", Formula: "Σ_t log π − log π_ref", Mask: "response", Reduction: "row sum, mean over rows", Sign: "may be negative at a step", Low: -inf, High: inf},
	{ID: "kl_any", Formula: "KL to the reference, of the estimator that is configured", Mask: "response", Reduction: "token mean", Low: -inf, High: inf},
	{ID: "approx_kl", Formula: "mean(log π_old − log π): k1 to the policy of the rollout", Mask: "response", Reduction: "token mean", Sign: "may be slightly negative", Low: -inf, High: inf},
	{ID: "entropy", Formula: "−Σ_v p log p", Mask: "response", Reduction: "token mean", Sign: "0 to ln V", Low: 0, High: 12.7, Range: "ENTROPY-RANGE"},
	{ID: "entropy_mc", Formula: "−Σ_t log π(y_t)", Mask: "response", Reduction: "row sum, mean over rows", Sign: "at least 0: a log-probability is at most 0", Low: 0, High: inf, Range: "ENTROPY-RANGE"},
	{ID: "clip_frac", Formula: "share of tokens that clipping binds", Mask: "response", Reduction: "token mean", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "value_clip_frac", Formula: "share of tokens whose clipped value error is the larger", Mask: "response", Reduction: "token mean", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "share", Formula: "a count over a count", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "zero_std_share", Formula: "share of groups without spread of rewards", Reduction: "mean over groups", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "truncated", Formula: "share of completions that reach the length limit", Reduction: "mean over rows", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "grad_norm", Formula: "‖g‖₂ before clipping", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "lr", Formula: "learning rate of the step", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "reward", Formula: "score of a completion", Reduction: "mean over rows", Low: -inf, High: inf},
	{ID: "reward_of", Formula: "score by one reward function", Reduction: "mean over rows", Low: -inf, High: inf},
	{ID: "reward_std", Formula: "standard deviation of the rewards", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "length", Formula: "tokens of a completion", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "positive", Formula: "a count, a norm, a deviation or a time", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "implicit_reward", Formula: "β·(log π − log π_ref) of a completion, or a difference of two", Reduction: "mean over rows", Low: -inf, High: inf},
	{ID: "logp_sum", Formula: "log π of a completion: Σ_t log π(y_t), or its mean", Mask: "completion", Reduction: "mean over rows", Sign: "at most 0", Low: -inf, High: 0, Range: "BOUND-RANGE"},
	{ID: "loss_eval", Formula: "the loss on held-out data", Low: -inf, High: inf},
	{ID: "ratio", Formula: "exp(log π − log π_old)", Mask: "response", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "is_ratio", Formula: "exp(log π_trainer − log π_engine)", Mask: "response", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "is_max", Formula: "largest exp(log π_trainer − log π_engine)", Mask: "response", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "engine_gap", Formula: "mean |log π_trainer − log π_engine|", Mask: "response", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "engine_max", Formula: "largest |log π_trainer − log π_engine|", Mask: "response", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "engine_kl", Formula: "mean(log π_engine − log π_trainer): k1 of KL(engine‖trainer)", Mask: "response", Low: -inf, High: inf},
	{ID: "engine_k3", Formula: "e^d − d − 1, d = log π_trainer − log π_engine", Mask: "response", Low: 0, High: inf, Range: "KL-NEGATIVE"},
	{ID: "engine_probs", Formula: "mean |p_engine − p_trainer|: of probabilities", Mask: "response", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "engine_tmpe", Formula: "mean exp|log π_engine − log π_trainer|", Mask: "response", Low: 1, High: inf, Range: "BOUND-RANGE"},
	{ID: "correlation", Formula: "Pearson's r", Low: -1, High: 1, Range: "BOUND-RANGE"},
	{ID: "explained", Formula: "1 − Var(R − V)/Var(R)", Low: -inf, High: 1, Range: "BOUND-RANGE"},
	{ID: "advantage", Formula: "mean of the advantages", Low: -inf, High: inf},
	{ID: "advantage_max", Formula: "largest advantage", Low: -inf, High: inf},
	{ID: "advantage_min", Formula: "smallest advantage", Low: -inf, High: inf},
	{ID: "qwen_grad", Formula: "‖g‖₂ of the encoder before clipping", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "mask_ratio", Formula: "wrong cells over cells", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "efe", Formula: "(loss + 0.3·reward) / (0.7·w·(0.5 + 0.5·mask_ratio)): the loss without reward, curriculum and hard-cell weight", Low: -inf, High: inf},
	{ID: "hard_cell", Formula: "0.5 + 0.5·mask_ratio", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "val_accuracy", Formula: "right cells over cells", Low: 0, High: 1, Range: "SHARE-RANGE"},
	{ID: "iter_time", Formula: "milliseconds of an iteration", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "step_time", Formula: "milliseconds of a step", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "project_time", Formula: "milliseconds of the projection", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "gpu_memory", Formula: "MiB in use, by nvidia-smi", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "main", Formula: "loss without the critic's", Low: -inf, High: inf},
	{ID: "critic", Formula: "weighted loss of the critic; 0 in GRPO", Low: -inf, High: inf},
	{ID: "num_masked", Formula: "masked positions of a row", Low: 0, High: inf, Range: "SIGN-RANGE"},
	{ID: "flow_mean", Formula: "mean over tensors of mean |g|", Low: 0, High: inf, Range: "SIGN-RANGE"},
}

var quantity = func() map[string]*Quantity {
	m := map[string]*Quantity{}
	for i := range quantities {
		m[quantities[i].ID] = &quantities[i]
	}
	return m
}()

var learningRate = quantity["lr"]

// Name says what a program means by a name. A * stands for any part without a slash.
type Name struct {
	Program  string // "": any
	Name     string
	Quantity string
	Trap     string // where another program means something else by that name
}

// names is the dictionary. Programs: shielded, grpo, ppo and arc are the four systems of this project; formulas of the others are those
// of TRL 1.16, verl 0.9, OpenRLHF 0.11 and NeMo-RL.
var names = []Name{
	{"shielded", "loss", "loss", ""}, {"shielded", "loss_pg", "loss_policy", "whitened advantages: rises towards 0 while the policy learns"}, {"shielded", "loss_kl", "loss_kl", ""},
	{"shielded", "kl", "kl_k3", "TRL's PPO logs a sum of k1 under objective/kl"}, {"shielded", "ratio_mean", "ratio", ""}, {"shielded", "reward_mean", "reward", ""}, {"shielded", "ctr", "reward", ""},
	{"shielded", "grad_norm_raw", "grad_norm", ""}, {"shielded", "grad_norm", "grad_norm", ""}, {"shielded", "time_project_ms", "project_time", ""}, {"shielded", "time_project_ms_of", "step_time", ""},
	{"shielded", "time_step_ms", "step_time", ""}, {"shielded", "projection_ms", "project_time", ""}, {"shielded", "step_ms", "step_time", ""}, {"shielded", "ratio_min", "positive", ""}, {"shielded", "ratio_max", "positive", ""},

	{"grpo", "loss", "loss", "the notes print that of the last micro-step"}, {"grpo", "main", "main", ""}, {"grpo", "critic", "critic", "0 in GRPO: no symptom"}, {"grpo", "pg_loss", "loss_policy", "the sign is undetermined"},
	{"grpo", "kl_penalty", "kl_penalty", ""}, {"grpo", "kl", "kl_penalty", "β·KL, not a KL"}, {"grpo", "mean_kl", "kl_seq", ""}, {"grpo", "mean_reward", "reward", ""}, {"grpo", "std_reward", "reward_std", ""},
	{"grpo", "zero_std_ratio", "zero_std_share", ""}, {"grpo", "num_masked", "num_masked", ""}, {"grpo", "grad_norm", "grad_norm", "of a sum over masked tokens: tens are usual"}, {"grpo", "lr", "lr", ""},
	{"grpo", "time_ms", "iter_time", ""}, {"grpo", "time", "iter_time", ""}, {"grpo", "rewards", "reward", ""}, {"grpo", "rewards_std", "reward_std", ""},

	{"ppo", "loss/policy", "loss_policy", ""}, {"ppo", "loss/value", "loss_value", ""}, {"ppo", "loss/entropy", "loss_entropy", ""}, {"ppo", "loss/total", "loss", ""}, {"ppo", "policy/entropy", "entropy", ""},
	{"ppo", "params/policy_clip_frac", "clip_frac", ""}, {"ppo", "params/value_clip_frac", "value_clip_frac", ""}, {"ppo", "params/approx_kl", "approx_kl", "CleanRL logs k3 under approx_kl, TRL's PPO k2"},
	{"ppo", "params/grad_norm", "grad_norm", "before clipping"}, {"ppo", "params/learning_rate", "lr", ""}, {"ppo", "rollout/reward_mean", "reward", ""}, {"ppo", "rollout/kl_mean", "kl_k1", ""}, {"ppo", "rollout/response_length", "length", ""},
	{"ppo", "reward", "reward", ""}, {"ppo", "policy", "loss_policy", ""}, {"ppo", "value", "loss_value", ""}, {"ppo", "entropy", "loss_entropy", ""}, {"ppo", "kl", "approx_kl", ""}, {"ppo", "clip", "clip_frac", ""}, {"ppo", "clip_2", "value_clip_frac", ""}, {"ppo", "gnorm", "grad_norm", ""},

	{"arc", "reward", "reward", ""}, {"arc", "loss", "loss", ""}, {"arc", "qwen_grad", "qwen_grad", ""}, {"arc", "mask_ratio", "mask_ratio", ""}, {"arc", "hard_cell", "hard_cell", ""}, {"arc", "val_accuracy", "val_accuracy", ""},
	{"arc", "policy/entropy", "", "of a Gaussian: may be negative and large"}, {"arc", "policy/loss", "", ""}, {"arc", "time_step_ms", "step_time", ""}, {"arc", "grad_norm/*", "positive", ""},

	{"trl-ppo", "objective/kl", "kl_seq", "verl and TRL's GRPO log a token mean under kl"}, {"trl-ppo", "objective/entropy", "entropy_mc", "a Monte Carlo sum, not a token's entropy"}, {"trl-ppo", "objective/rlhf_reward", "reward", "scores minus the KL penalty"},
	{"trl-ppo", "objective/scores", "reward", ""}, {"trl-ppo", "objective/non_score_reward", "", ""}, {"trl-ppo", "policy/approxkl_avg", "kl_k2", "k2, over padding too; CleanRL logs k3 as approx_kl"}, {"trl-ppo", "policy/clipfrac_avg", "clip_frac", ""},
	{"trl-ppo", "policy/entropy_avg", "entropy", "over padding too"}, {"trl-ppo", "loss/policy_avg", "loss_policy", ""}, {"trl-ppo", "loss/value_avg", "loss_value", ""}, {"trl-ppo", "val/clipfrac_avg", "value_clip_frac", ""}, {"trl-ppo", "val/ratio", "ratio", "over padding too"},
	{"trl-ppo", "val/ratio_var", "positive", ""}, {"trl-ppo", "val/num_eos_tokens", "positive", ""}, {"trl-ppo", "lr", "lr", ""},

	{"trl-grpo", "loss", "loss", "0 in value with one update per batch and centred advantages: look at grad_norm"}, {"trl-grpo", "kl", "kl_k3", "TRL's PPO logs a sum of k1, verl the estimator that is configured"}, {"trl-grpo", "reward", "reward", ""},
	{"trl-grpo", "reward_std", "reward_std", ""}, {"trl-grpo", "rewards/*/mean", "reward_of", ""}, {"trl-grpo", "rewards/*/std", "positive", ""}, {"trl-grpo", "rewards/*", "reward_of", ""}, {"trl-grpo", "frac_reward_zero_std", "zero_std_share", ""},
	{"trl-grpo", "completions/clipped_ratio", "truncated", "completions that are cut, not the clipping of the policy"}, {"trl-grpo", "completions/mean_length", "length", ""}, {"trl-grpo", "completion_length", "length", ""}, {"trl-grpo", "completions/*_length", "length", ""}, {"trl-grpo", "completions/*_terminated_length", "positive", ""},
	{"trl-grpo", "clip_ratio", "clip_frac", ""}, {"trl-grpo", "clip_ratio/region_mean", "clip_frac", ""}, {"trl-grpo", "clip_ratio/*", "share", ""}, {"trl-grpo", "entropy", "entropy", "of the full vocabulary; OpenRLHF's entropy_loss is −H"},
	{"trl-grpo", "sampling/sampling_logp_difference/mean", "engine_gap", ""}, {"trl-grpo", "sampling/sampling_logp_difference/max", "engine_max", ""}, {"trl-grpo", "sampling/importance_sampling_ratio/mean", "is_ratio", "after truncation, and exp of a sum in sequence mode"}, {"trl-grpo", "sampling/importance_sampling_ratio/*", "is_max", ""},
	{"trl-grpo", "cispo_clip_ratio", "share", ""}, {"trl-grpo", "clip", "clip_frac", ""}, {"trl-grpo", "length", "length", ""}, {"trl-grpo", "gnorm", "grad_norm", ""},

	{"verl", "actor/pg_loss", "loss_policy", ""}, {"verl", "actor/loss", "loss", ""}, {"verl", "actor/ppo_kl", "approx_kl", "mean(old − new), clamped; OpenRLHF's ppo_kl is not"}, {"verl", "actor/pg_clipfrac", "clip_frac", "before dual clip"}, {"verl", "actor/pg_clipfrac_lower", "share", ""},
	{"verl", "actor/entropy", "entropy", ""}, {"verl", "actor/entropy_loss", "entropy", "+H, and not −H as its name says"}, {"verl", "actor/kl_loss", "kl_any", "of the kl_loss_type that is configured"}, {"verl", "actor/kl_coef", "positive", ""}, {"verl", "actor/grad_norm", "grad_norm", ""}, {"verl", "actor/lr", "lr", ""},
	{"verl", "actor/reward_kl_penalty", "kl_any", ""}, {"verl", "critic/kl", "kl_any", ""}, {"verl", "critic/vf_loss", "loss_value", ""}, {"verl", "critic/vf_clipfrac", "value_clip_frac", ""}, {"verl", "critic/vf_explained_var", "explained", ""}, {"verl", "critic/grad_norm", "positive", ""}, {"verl", "critic/lr", "positive", ""},
	{"verl", "critic/score/mean", "reward", ""}, {"verl", "critic/rewards/mean", "reward_of", "score minus the KL penalty"}, {"verl", "critic/advantages/max", "advantage_max", ""}, {"verl", "critic/advantages/min", "advantage_min", ""}, {"verl", "critic/advantages/mean", "advantage", ""},
	{"verl", "response_length/mean", "length", ""}, {"verl", "response_length/clip_ratio", "truncated", "responses that are cut, not the clipping of the policy"}, {"verl", "prompt_length/clip_ratio", "share", ""}, {"verl", "response_length/*", "length", ""}, {"verl", "prompt_length/*", "length", ""},
	{"verl", "training/rollout_probs_diff_mean", "engine_probs", "probabilities, not log-probabilities"}, {"verl", "training/rollout_probs_diff_max", "share", ""}, {"verl", "training/rollout_probs_diff_std", "positive", ""}, {"verl", "training/rollout_actor_probs_pearson_corr", "correlation", "0.0 with valid=0 means: not computed"},
	{"verl", "rollout_corr/kl", "engine_kl", "ms-swift fixed its direction; its guide says the other one"}, {"verl", "rollout_corr/k3_kl", "engine_k3", ""}, {"verl", "rollout_corr/chi2_token", "", ""}, {"verl", "rollout_corr/chi2_seq", "", "explodes with length by rounding alone; ms-swift takes the geometric mean"},
	{"verl", "timing_s/*", "positive", ""}, {"verl", "perf/*", "positive", ""},

	{"openrlhf", "policy_loss", "loss_policy", ""}, {"openrlhf", "entropy_loss", "loss_entropy", ""}, {"openrlhf", "actor_lr", "lr", ""}, {"openrlhf", "policy_lr", "lr", ""}, {"openrlhf", "actor_grad_norm", "grad_norm", ""}, {"openrlhf", "ppo_clip_ratio", "clip_frac", ""}, {"openrlhf", "ppo_kl", "approx_kl", "not clamped; −1 means that −ratio is logged"},
	{"openrlhf", "vllm_kl", "engine_kl", ""}, {"openrlhf", "kl", "kl_any", "of the estimator that is configured"}, {"openrlhf", "logprobs_diff", "", ""}, {"openrlhf", "reward", "reward", ""}, {"openrlhf", "return", "", ""}, {"openrlhf", "response_length", "length", ""}, {"openrlhf", "total_length", "length", ""},
	{"openrlhf", "truncated", "truncated", ""}, {"openrlhf", "group_reward_std", "reward_std", ""}, {"openrlhf", "critic_loss", "loss_value", ""}, {"openrlhf", "values", "", ""}, {"openrlhf", "timing/*", "positive", ""},

	{"nemo", "gen_kl_error", "engine_k3", ""}, {"nemo", "policy_kl_error", "engine_k3", "sampled by the other law: one token dominates"}, {"nemo", "token_mult_prob_error", "engine_tmpe", ""}, {"nemo", "sampling_importance_ratio", "is_ratio", ""}, {"nemo", "js_divergence_error", "positive", ""},

	{"", "loss", "loss", ""}, {"", "train_loss", "loss", ""}, {"", "grad_norm", "grad_norm", ""}, {"", "gradient_norm", "grad_norm", ""}, {"", "learning_rate", "lr", ""}, {"", "lr", "lr", ""}, {"", "reward", "reward", ""}, {"", "reward_mean", "reward", ""}, {"", "mean_reward", "reward", ""}, {"", "reward_std", "reward_std", ""}, {"", "std_reward", "reward_std", ""},
	{"", "kl", "kl_any", "TRL's GRPO: token mean of k3; TRL's PPO: row sum of k1; verl, OpenRLHF: as configured"}, {"", "approx_kl", "approx_kl", "k3 in CleanRL, k2 in TRL's PPO, k1 in the tutorial"}, {"", "entropy", "entropy", ""}, {"", "policy_loss", "loss_policy", ""}, {"", "pg_loss", "loss_policy", ""}, {"", "value_loss", "loss_value", ""}, {"", "vf_loss", "loss_value", ""},
	{"", "clip_frac", "clip_frac", ""}, {"", "clipfrac", "clip_frac", ""}, {"", "clip_fraction", "clip_frac", ""}, {"", "policy_clip_frac", "clip_frac", ""}, {"", "value_clip_frac", "value_clip_frac", ""}, {"", "explained_variance", "explained", ""}, {"", "k3", "kl_k3", ""}, {"", "kl_k3", "kl_k3", ""}, {"", "k3_kl", "kl_k3", ""}, {"", "kl_k1", "kl_k1", ""},
	{"", "losses/policy_loss", "loss_policy", ""}, {"", "losses/value_loss", "loss_value", ""}, {"", "losses/entropy", "entropy", ""}, {"", "losses/approx_kl", "kl_k3", "k3: at least 0"}, {"", "losses/old_approx_kl", "approx_kl", "k1"}, {"", "losses/clipfrac", "clip_frac", ""}, {"", "losses/explained_variance", "explained", ""}, {"", "charts/learning_rate", "lr", ""}, {"", "charts/episodic_return", "reward", ""},
	{"", "objective/kl", "kl_seq", ""}, {"", "objective/kl2_avg", "kl_k3", "open-instruct: k3 under the name of k2"}, {"", "debug/vllm_vs_local_logprob_diff_mean", "engine_gap", ""}, {"", "debug/vllm_local_reverse_kl", "", "e^g·(g − o): no estimate of a KL"}, {"", "mismatch_kl/mean", "engine_k3", ""},
	{"", "train_rollout_logprob_abs_diff", "engine_gap", ""}, {"", "train_rollout_kl", "engine_k3", ""}, {"", "rollout_correction/kl", "engine_kl", ""}, {"", "rollout_correction/k3_kl", "engine_k3", ""}, {"", "behave_approx_kl", "engine_kl", "AReaL: o − g, the sign of verl inverted"}, {"", "policy/rollout_train_prob_diff_mean", "", "SkyRL: mean of exp(g − o), no difference of probabilities"},
	{"", "memory.used [MiB]", "gpu_memory", ""}, {"", "memory.used", "gpu_memory", ""}, {"", "step_time", "positive", ""}, {"", "num_tokens", "positive", ""}, {"", "mean_token_accuracy", "share", ""},
	{"", "rewards/chosen", "implicit_reward", "DPO: β times a log-ratio, no score"}, {"", "rewards/rejected", "implicit_reward", "DPO: β times a log-ratio, no score"}, {"", "rewards/margins", "implicit_reward", ""}, {"", "rewards/accuracies", "share", ""},
	{"", "logps/chosen", "logp_sum", ""}, {"", "logps/rejected", "logp_sum", ""}, {"", "logits/chosen", "", "a mean of raw logits has no scale"}, {"", "logits/rejected", "", "a mean of raw logits has no scale"},
	{"", "min_reward", "reward_of", ""}, {"", "max_reward", "reward_of", ""}, {"", "margin", "reward_of", "chosen minus rejected"}, {"", "accuracy", "share", ""}, {"", "eval_loss", "loss_eval", ""}, {"", "eval/loss", "loss_eval", ""},
	{"", "train_runtime", "positive", ""}, {"", "train_samples_per_second", "positive", ""}, {"", "train_steps_per_second", "positive", ""}, {"", "total_flos", "positive", ""}, {"", "epoch", "positive", ""}, {"", "runtime", "positive", ""}, {"", "samples_per_second", "positive", ""}, {"", "steps_per_second", "positive", ""}, {"", "completions/clipped_ratio", "truncated", ""}, {"", "frac_reward_zero_std", "zero_std_share", ""},
}

// lookup finds what a program means by a name; "train/" before it is left out where the whole is not known.
func lookup(program, name string) *Name {
	if e := exact(program, name); e != nil {
		return e
	}
	if low := strings.ToLower(name); low != name {
		return exact(program, low)
	}
	return nil
}

func exact(program, name string) *Name {
	short, cut := strings.CutPrefix(name, "train/")
	for _, p := range []string{program, ""} {
		for _, n := range []string{name, short} {
			if e := index[p+"\x00"+n]; e != nil {
				return e
			}
			if !cut {
				break
			}
		}
		for _, e := range globs {
			if e.Program == p && (matches(e.Name, name) || cut && matches(e.Name, short)) {
				return e
			}
		}
		if program == "" {
			break
		}
	}
	return nil
}

var index, globs = func() (map[string]*Name, []*Name) {
	m, g := map[string]*Name{}, []*Name(nil)
	for i := range names {
		if e := &names[i]; strings.Contains(e.Name, "*") {
			g = append(g, e)
		} else {
			m[e.Program+"\x00"+e.Name] = e
		}
	}
	return m, g
}()

func matches(pattern, name string) bool {
	before, after, _ := strings.Cut(pattern, "*")
	return len(name) > len(before)+len(after) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after) && !strings.Contains(name[len(before):len(name)-len(after)], "/")
}

// Meanings returns what programs mean by a name, in the order of the dictionary.
func Meanings(name string) (list []Name) {
	for _, e := range names {
		if strings.EqualFold(e.Name, name) || strings.Contains(e.Name, "*") && matches(e.Name, name) {
			list = append(list, e)
		}
	}
	return list
}

// Find returns the quantity of that id, nil if there is none.
func Find(id string) *Quantity { return quantity[id] }

// NamesLoss reports whether a name that is in no dictionary is one of a loss, which is judged for NaN.
func NamesLoss(name string) bool { return strings.Contains(strings.ToLower(name), "loss") }

// Known reports whether any program logs a metric of that name.
func Known(name string) bool {
	if anyName[name] || stepNames[name] {
		return true
	}
	for _, prefix := range []string{"train/", "eval/", "eval_"} { // of held-out data: known, and judged for NaN where they name a loss
		if short, ok := strings.CutPrefix(name, prefix); ok {
			return Known(short)
		}
	}
	if low := strings.ToLower(name); low != name {
		return Known(low)
	}
	return slices.ContainsFunc(globs, func(e *Name) bool { return matches(e.Name, name) })
}

var anyName = func() map[string]bool {
	m := map[string]bool{}
	for _, e := range names {
		if !strings.Contains(e.Name, "*") {
			m[e.Name] = true
		}
	}
	return m
}()

// stepNames are names of the step, the best one last.
var stepNames = map[string]bool{"_step": true, "step": true, "Step": true, "global_step": true, "iter": true, "iteration": true, "training/global_step": true, "train/global_step": true, "batch": true}

// programOf tells the program by the names that only it has.
func programOf(has func(string) bool) string {
	for _, p := range []struct {
		program string
		names   []string // any of them
		all     []string // and all of these
	}{
		{"arc", []string{"qwen_grad"}, nil},
		{"shielded", []string{"loss_kl", "loss_pg", "ratio_mean"}, nil},
		{"ppo", []string{"params/approx_kl", "params/policy_clip_frac", "params/grad_norm", "rollout/reward_mean", "clip_2"}, nil},
		{"verl", []string{"actor/pg_loss", "actor/ppo_kl", "critic/score/mean", "actor/grad_norm", "critic/rewards/mean"}, nil},
		{"trl-ppo", []string{"objective/rlhf_reward", "policy/approxkl_avg", "objective/non_score_reward", "val/ratio"}, nil},
		{"trl-grpo", []string{"completions/mean_length", "frac_reward_zero_std", "completions/clipped_ratio", "completion_length", "clip_ratio/region_mean", "clip_ratio/low_mean"}, nil},
		{"openrlhf", []string{"actor_lr", "ppo_kl", "vllm_kl", "actor_grad_norm", "ppo_clip_ratio", "policy_lr", "act_loss"}, nil},
		{"grpo", []string{"kl_penalty", "num_masked", "main", "micro", "phase"}, nil},
		{"nemo", []string{"gen_kl_error", "token_mult_prob_error"}, nil},
	} {
		for _, n := range p.names {
			if has(n) || has("train/"+n) {
				return p.program
			}
		}
	}
	return ""
}
