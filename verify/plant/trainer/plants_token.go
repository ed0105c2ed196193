package trainer

// tokenPlants sit where ids, masks and rows are put together.
var tokenPlants = []Plant{
	{"MASK-NO-EOS", []string{"response_mask"}, []string{"response_ids", "attention_mask"}, masked},
	{"MASK-PAST-EOS", []string{"response_mask"}, []string{"response_ids", "attention_mask"}, masked},
	{"MASK-SHIFT", []string{"response_mask"}, []string{"response_ids", "attention_mask"}, masked},
	{"MASK-ATTENTION", []string{"response_mask"}, []string{"logp_gen"}, masked},
	{"MASK-EMPTY", []string{"response_mask"}, []string{"attention_mask"}, all(masked, group)},
	{"MASK-TRUNCATED-KEPT", []string{"response_mask"}, []string{"response_ids"}, all(masked, group)},
	{"LOSS-MASK-SHIFT", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, masked},
	{"LOSS-MASK-TOOL", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages", "attention_mask"}, masked},
	{"LOSS-MASK-PADS", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, all(masked, not(is("agg.kind", "luspo", "seq_sum_const")))},
	{"LOSS-MASK-P1", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, masked},
	{"LOSS-MASKED-BY-ADVANTAGES", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss", "advantages"}, all(masked, is("agg.kind", "token"))},
	{"LOSS-FIRST-COLUMN", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, masked},
	{"IDS-RETOKENISED", []string{"input_ids"}, []string{"response_ids"}, always},
	{"PROMPT-TRUNCATED", []string{"attention_mask"}, []string{"prompt_len"}, always},
	{"ROWS-SWAPPED", []string{"logp_old"}, []string{"logp_new", "logp_gen"}, stored},
	{"ROWS-REPEATED", []string{"group_id", "advantages"}, []string{"scores"}, group},
	{"GROUP-IDENTICAL", []string{"response_ids", "advantages"}, []string{"group_id"}, group},
	{"SCORES-CONSTANT", []string{"scores"}, []string{"group_id"}, group},
}

// logpPlants sit in log-probabilities and entropies.
var logpPlants = []Plant{
	{"LOGP-SHIFT", []string{"logp_new", "logp_old", "logp_ref"}, []string{"logits", "logp_gen"}, always},
	{"LOGP-SAME-POSITION", []string{"logp_new", "logp_old", "logp_ref"}, []string{"logits", "logp_gen"}, always},
	{"LOGP-SHIFT-PADDING", []string{"logp_new", "logp_old", "logp_ref"}, []string{"logits", "logp_gen"}, masked},
	{"LOGP-FIRST-TOKEN", []string{"logp_new"}, []string{"logp_old", "logp_gen"}, always},
	{"LOGP-TEMPERATURE", []string{"logp_new", "logp_old", "logp_ref"}, []string{"logits", "logp_gen"}, not(is("logp.temperature", "1", "–", "?"))},
	{"LOGP-NEW-ZERO", []string{"logp_new"}, []string{"logits", "logp_old"}, always},
	{"LOGP-OLD-ZERO", []string{"logp_old"}, []string{"logp_new"}, stored},
	{"LOGP-NAN", []string{"logp_new"}, nil, always},
	{"LOGP-BF16", []string{"logp_new"}, []string{"logits"}, always},
	{"OLD-RECOMPUTED", []string{"logp_old"}, []string{"logp_new"}, stored},
	{"OLD-OTHER-PASS", []string{"logp_old"}, []string{"logp_new"}, stored},
	{"REF-NOT-POLICY", []string{"logp_ref"}, []string{"logp_new"}, klEnters},
	{"REF-ZERO", []string{"logp_ref"}, nil, klEnters},
	{"GEN-RAW", []string{"logp_gen"}, []string{"logp_old"}, tempered},
	{"GEN-TEMPERATURE-TWICE", []string{"logp_gen"}, []string{"logp_old"}, tempered},
	{"GEN-TRUNCATED", []string{"logp_gen"}, []string{"logp_old"}, always},
	{"GEN-UNADAPTED", []string{"logp_gen"}, []string{"logp_old", "logp_ref"}, always},
	{"GEN-OTHER-TOKEN", []string{"logp_gen"}, []string{"logp_old"}, always},
	{"GEN-ZERO", []string{"logp_gen"}, nil, always},
	{"LOGP-END-ZERO", []string{"logp_gen"}, []string{"logp_old"}, masked},
	{"ENTROPY-ROWS", []string{"entropy"}, []string{"logits"}, not(is("entropy.logits", "monte_carlo", "–", "?"))},
	{"ENTROPY-TEMPERATURE", []string{"entropy"}, []string{"logits"}, all(is("entropy.logits", "scaled", "unscaled"), not(is("logp.temperature", "1", "–", "?")))},
}

// klPlants sit in the KL term, wherever it enters.
var klPlants = []Plant{
	{"KL-KIND", []string{"kl"}, []string{"logp_new", "logp_old", "logp_ref"}, all(klEnters, not(is("kl.kind", "k1")))},
	{"KL-REVERSED", []string{"kl"}, []string{"logp_new", "logp_old", "logp_ref"}, all(klEnters, not(is("kl.kind", "k2", "abs")))},
	{"KL-OLD-FOR-REF", []string{"kl"}, []string{"logp_new", "logp_old", "logp_ref"}, all(klInLoss, stored)},
	{"KL-CLAMP-MISSING", []string{"kl"}, []string{"logp_new", "logp_old", "logp_ref"}, all(klEnters, is("kl.kind", "k3"), positive("kl.clamp_out"))},
	{"KL-GRAD-OVERFLOW", []string{"dlogp"}, []string{"logp_new", "logp_ref"}, all(klInLoss, is("kl.kind", "k3"), positive("kl.clamp_out"), is("kl.grad", "naive"))},
	{"KL-SIGN", []string{"token_loss", "loss", "kl_loss", "dlogp"}, []string{"kl"}, klInLoss},
	{"KL-TWICE", []string{"token_loss", "token_rewards", "loss", "kl_loss", "dlogp"}, []string{"kl"}, anyOf(klInLoss, klInReward)},
	{"BETA-MISSING", []string{"token_loss", "token_rewards", "loss", "kl_loss", "dlogp"}, []string{"kl"}, anyOf(klInLoss, klInReward)},
	{"KL-ABSENT", []string{"token_loss", "token_rewards", "loss", "kl_loss", "dlogp"}, []string{"kl"}, anyOf(klInLoss, klInReward)},
	{"KL-OUTSIDE-MASK", []string{"loss", "kl_loss", "dlogp"}, []string{"kl"}, all(klInLoss, masked, is("agg.kind", "token"))},
	{"KL-GRAD-NAIVE", []string{"dlogp"}, []string{"kl"}, all(klInLoss, is("kl.grad", "score_function", "is_corrected", "straight_through_k2"), is("kl.kind", "k1", "k3"))},
	{"KL-GRAD-K1", []string{"dlogp"}, []string{"kl"}, all(klInLoss, not(all(is("kl.kind", "k1"), is("kl.grad", "naive"))))},
	{"KL-DETACHED", []string{"dlogp"}, []string{"kl"}, klInLoss},
	{"KL-AFTER-BASELINE", []string{"advantages"}, []string{"kl", "scores", "group_id"}, all(klEnters, group, is("kl.place", "sequence_reward_before_baseline"))},
}
