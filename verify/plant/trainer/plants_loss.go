package trainer

import "plumbline/verify/convention"

// lossPlants sit in ratios, in the losses of a token and in their gradients.
var lossPlants = []Plant{
	{"RATIO-INVERTED", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, all(usesRatio, stored)},
	{"RATIO-DETACHED", []string{"dlogp"}, nil, always},
	{"RATIO-SUM-FOR-MEAN", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, all(usesRatio, stored, is("ratio.level", "seq_mean"))},
	{"RATIO-GRAD-PER-TOKEN", []string{"dlogp"}, []string{"logp_new", "logp_old", "advantages"}, all(surrogate, is("ratio.level", "seq_mean"), not(is("ratio.grad", "token")), not(is("agg.kind", "luspo")))},
	{"GSPO-ADV-PADDING", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, all(masked, is("ratio.level", "seq_mean"), usesRatio)},
	{"IS-SUM-FOR-MEAN", []string{"is_weights"}, []string{"logp_old", "logp_gen"}, is("tis.level", "seq_geo")},
	{"IS-CLAMP-MISSING", []string{"is_weights"}, []string{"logp_old", "logp_gen"}, all(weighted, positive("tis.high"), is("tis.rule", "truncate_upper", "clamp", "zero_outside"))},
	{"IS-OLD-FOR-GEN", []string{"is_weights"}, []string{"logp_new", "logp_old", "logp_gen"}, all(weighted, stored)},
	{"IS-NOT-APPLIED", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"is_weights"}, weighted},
	{"IS-GRADIENT", []string{"dlogp"}, []string{"is_weights", "token_loss"}, all(weighted, is("tis.level", "token"))},
	{"ADV-SIGN", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"advantages"}, always},
	{"CLIP-MIN-MAX", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, clipped},
	{"CLIP-SIDES-SWAPPED", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, all(clipped, asymmetric)},
	{"CLIP-ABSENT", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, clipped},
	{"CLIP-DUAL-BOTH-SIGNS", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, all(clipped, is("loss.kind", "ppo"), positive("clip.dual"))},
	{"CLIP-GRADIENT-LEAK", []string{"dlogp"}, []string{"logp_new", "logp_old", "advantages"}, clipped},
	{"CISPO-NOT-DETACHED", []string{"token_loss", "loss", "pg_loss", "dlogp"}, []string{"logp_new", "logp_old", "advantages"}, is("loss.kind", "cispo")},
	{"VALUES-OTHER-PASS", []string{"values"}, []string{"values_new", "logp_old", "logp_new"}, hasValues},
	{"VALUE-NO-HALF", []string{"value_loss", "loss", "dvalues"}, []string{"values", "values_new", "returns"}, all(hasValues, is("value.factor", "0.5"))},
	{"VALUE-MASK", []string{"value_loss", "loss", "dvalues"}, []string{"values", "values_new", "returns"}, all(hasValues, is("value.mask", "response", "p1"), masked)},
	{"VALUE-CLIP-ABSENT", []string{"value_loss", "loss", "dvalues"}, []string{"values", "values_new", "returns"}, valueClip},
	{"VALUE-CLIP-MIN", []string{"value_loss", "loss", "dvalues"}, []string{"values", "values_new", "returns"}, valueClip},
	{"VALUE-TARGET-GRAD", []string{"dvalues"}, []string{"values", "values_new", "returns"}, hasValues},
	{"VALUE-DETACHED", []string{"dvalues"}, []string{"values", "values_new", "returns"}, hasValues},
	{"ENTROPY-SIGN", []string{"entropy_loss", "loss"}, []string{"entropy"}, entropyTerm},
}

var asymmetric = func(s *convention.Set) bool { return s.Value("clip.low") != s.Value("clip.high") }

// aggregatePlants sit between token losses and what is back-propagated.
var aggregatePlants = []Plant{
	{"AGG-PAD-DENOMINATOR", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, all(masked, is("agg.kind", "token", "seq_mean_token_mean"))},
	{"AGG-LOCAL-DENOMINATOR", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, all(pooled, is("agg.kind", "token"))},
	{"AGG-SAMPLE-MEAN", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, perToken},
	{"AGG-TOKEN-FOR-SEQUENCE", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, byRow},
	{"AGG-COUNTS-MASKED", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss", "attention_mask"}, all(masked, perToken)},
	{"AGG-NUM-ITEMS-GENERATION", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, all(perToken, is("agg.denominator", "global"))},
	{"AGG-NO-BATCH", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, all(is("agg.kind", "seq_sum_const"), is("agg.div_batch", "true"))},
	{"AGG-GA-TWICE", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, always},
	{"AGG-GA-MISSING", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, is("agg.div_ga", "true")},
	{"FACTOR-USED-STEPS", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, is("agg.div_ga", "true")},
	{"FACTOR-WORLD-SIZE", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, is("agg.denominator", "global")},
	{"FACTOR-GROUP", []string{"loss", "pg_loss", "dlogp"}, []string{"token_loss"}, group},
	{"NAN-OUTSIDE", []string{"loss", "pg_loss"}, []string{"token_loss"}, all(masked, is("mean.nan_outside", "ignore"))},
	{"NAN-EMPTY-ROW", []string{"loss", "pg_loss"}, []string{"token_loss"}, all(masked, byRow, group)},
	{"GRAD-LAST-CHUNK", []string{"dlogp"}, []string{"token_loss"}, always},
	{"GRAD-GA", []string{"dlogp", "dvalues"}, []string{"token_loss"}, is("agg.div_ga", "true")},
}

// metricPlants sit in what is logged; training is right.
var metricPlants = []Plant{
	{"METRIC-KL-K1", []string{"scalar:kl", "scalar:actor/kl_loss"}, []string{"kl"}, all(klEnters, not(is("kl.kind", "k1")))},
	{"METRIC-CLIP-SIGN", []string{"scalar:clip_frac", "scalar:actor/pg_clipfrac"}, []string{"logp_new", "logp_old", "advantages"}, all(clipped, tokenRatio, is("metric.clip_frac", "binding"))},
	{"METRIC-CLIP-SIGN-BLIND", []string{"scalar:clip_frac", "scalar:actor/pg_clipfrac"}, []string{"logp_new", "logp_old", "advantages"}, all(clipped, tokenRatio, is("metric.clip_frac", "binding"))},
	{"METRIC-LOCAL-OVER-GLOBAL", []string{"scalar:completions/clipped_ratio"}, []string{"response_ids"}, always},
	{"METRIC-REWARD-UNWEIGHTED", []string{"scalar:reward"}, []string{"rewards_per_func"}, is("adv.multi", "sum_then_normalize", "normalize_then_sum")},
	{"METRIC-ENTROPY-PADS", []string{"scalar:entropy"}, []string{"entropy"}, all(masked, is("entropy.logits", "scaled", "unscaled"))},
	{"METRIC-ENTROPY-SENTINEL", []string{"scalar:entropy"}, []string{"entropy", "logp_new"}, all(masked, is("entropy.logits", "scaled", "unscaled"))},
	{"METRIC-LAST-MICRO", []string{"scalar:kl", "scalar:actor/kl_loss"}, []string{"kl"}, klInLoss},
	{"METRIC-SCALED-TWICE", []string{"scalar:pg_loss"}, []string{"token_loss"}, always},
	{"METRIC-PPO-KL-RATIO", []string{"scalar:ppo_kl", "scalar:actor/ppo_kl"}, []string{"logp_new", "logp_old"}, all(tokenRatio, stored)},
	{"METRIC-APPROX-KL-PADS", []string{"scalar:approx_kl", "scalar:ppo_kl", "scalar:actor/ppo_kl"}, []string{"logp_new", "logp_old"}, all(tokenRatio, stored, masked)},
	{"METRIC-MAX-AVERAGED", []string{"scalar:ratio_max", "scalar:clip_ratio/high_max"}, []string{"logp_new", "logp_old"}, all(tokenRatio, stored)},
	{"METRIC-POLICY-IS-TOTAL", []string{"scalar:pg_loss"}, []string{"pg_loss"}, anyOf(klInLoss, entropyTerm, all(hasValues, positive("value.coef")))},
	{"METRIC-DUPLICATED-ROWS", []string{"scalar:reward"}, []string{"scores"}, always},
	{"METRIC-GRAD-NORM", []string{"scalar:grad_norm"}, []string{"grad"}, always},
}
