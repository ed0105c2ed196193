package convention

// factDocs says what the facts of a run are, by the names that [FactNames] lists.
var factDocs = map[string]string{
	"gradient_accumulation_steps": "micro-batches that one step of the optimiser takes: what agg.div_ga divides by; else the micro-batches of the files",
	"max_completion_length":       "longest response in tokens: what agg.kind seq_sum_const divides by (TRL dr_grpo), and what tells a response that was cut",
	"num_items_in_batch":          "tokens of a step, or of a generation batch, that transformers' Trainer hands to the loss: the divisor of agg.denominator global (TRL dapo)",
	"steps_per_generation":        "micro-batches that one generation batch is split into (TRL)",
	"num_generations":             "responses to one prompt",
	"num_iterations":              "passes over one rollout",
	"reward_weights":              "weights of the columns of rewards_per_func",
	"eos_token_id":                "tokens that end a response, one or a list",
	"pad_token_id":                "token of the padding",
	"mask_truncated_completions":  "responses that were cut have no token in the mask",
	"vocab_size":                  "tokens of the vocabulary: no entropy is above its logarithm",
	"first_step":                  "the first step of the files is the first of the run, where ratios are 1",
	"world_size":                  "ranks",
	"generation_batch_size":       "responses of one generation batch (TRL)",
	"per_device_train_batch_size": "rows of a micro-batch (transformers)",
	"num_mini_batches":            "steps of the optimiser that one pass over a rollout takes, epochs not counted",
	"loss_scale_factor":           "what agg.kind seq_sum_const divides by, before max_completion_length and loss_denominator (verl)",
	"loss_denominator": "constant that sums over tokens or rows are divided by where agg.denominator is constant (open-instruct); the length that agg.kind " +
		"seq_sum_const divides by, too, unless agg.div_batch divides by it in place of the rows",
	"max_steps":              "steps of the run, where a schedule of the learning rate ends",
	"warmup_steps":           "steps in which the learning rate rises",
	"async_rollout":          "the engine samples while the trainer trains, with weights that may be older than the policy",
	"one_step_off":           "the engine's weights are those before the rollout that was trained on last",
	"max_staleness":          "rollouts by which the engine's weights may be older than the policy",
	"token_loss_includes_kl": "token_loss holds kl.beta·KL",
	"scores_shaped":          "scores stand after eos.rule and reward.clip",
	"masked_fill":            "what the trainer keeps outside the mask",
	"scalars_scope":          "optimizer_step (the same logged numbers in every file of a step) or micro_batch",
	"dlogp_scale":            "what dlogp and dvalues are still to be multiplied by",
}

// FactDoc says what a fact of a run is, "" where there is no fact of that name.
func FactDoc(name string) string { return factDocs[name] }
