package trainer

// rewardPlants sit between the score of a response and the rewards of its tokens.
var rewardPlants = []Plant{
	{"SCORE-SHIFT", []string{"token_rewards"}, []string{"scores"}, all(tokenwise, is("score.index", "last_response", "eos", "eos_plus_1"), is("rewards.whiten", "no", "–"))},
	{"SCORE-LOST", []string{"token_rewards"}, []string{"scores"}, all(tokenwise, is("score.index", "last_response", "eos"))},
	{"SCORE-ZERO-MISSING", []string{"token_rewards", "advantages"}, []string{"scores"}, is("adv.kind", "gae", "group", "rfpp", "batch_baseline", "raw")},
	{"EOS-PENALTY-MISSING", []string{"token_rewards", "advantages"}, []string{"scores", "response_ids"}, eosRule},
	{"EOS-INVERTED", []string{"token_rewards", "advantages"}, []string{"scores", "response_ids"}, eosRule},
	{"KL-PADS-IN-RETURNS", []string{"token_rewards", "advantages", "returns"}, []string{"kl", "scores"}, all(klInReward, masked)},
	{"REWARD-WEIGHTS-IGNORED", []string{"advantages"}, []string{"rewards_per_func"}, is("adv.multi", "sum_then_normalize", "normalize_then_sum")},
	{"REWARD-CLIP-MISSING", []string{"advantages", "token_rewards"}, []string{"scores"}, is("reward.clip", "before_baseline", "after_baseline")},
}

var eosRule = all(is("eos.rule", "subtract", "replace", "scale"), not(is("eos.penalty", "none", "–", "?")), is("adv.kind", "gae", "group", "rfpp"))

// advantagePlants sit in the estimators of advantages, in whitening and in GAE.
var advantagePlants = []Plant{
	{"ADV-BATCH-STD", []string{"advantages"}, []string{"scores", "group_id"}, all(group, is("adv.scale", "group_std"))},
	{"ADV-GROUP-STD", []string{"advantages"}, []string{"scores", "group_id"}, all(group, is("adv.scale", "batch_std"))},
	{"ADV-DDOF", []string{"advantages"}, []string{"scores", "group_id"}, all(group, is("adv.scale", "group_std", "batch_std"), is("adv.ddof", "0", "1"))},
	{"ADV-WRONG-GROUPS", []string{"advantages"}, []string{"scores", "group_id"}, group},
	{"ADV-GROUP-SPLIT", []string{"advantages"}, []string{"scores", "group_id"}, group},
	{"ADV-ONE-PASS", []string{"advantages"}, []string{"scores", "group_id"}, all(group, is("adv.scale", "group_std"))},
	{"ADV-LOO-ZERO-STD", []string{"advantages"}, []string{"scores", "group_id"}, all(group, is("adv.scale", "loo_std"), is("adv.zero_std", "skip", "zero"))},
	{"ADV-GROUP-OF-ONE", []string{"advantages"}, []string{"scores", "group_id"}, all(group, is("adv.scale", "group_std"), is("adv.ddof", "1"), not(is("adv.singleton", "nan")))},
	{"ADV-ROW-FROM-SPAN", []string{"advantages"}, []string{"scores", "group_id"}, anyOf(group, gae)},
	{"WHITEN-MISSING", []string{"advantages"}, []string{"token_rewards", "values"}, whitened},
	{"WHITEN-SCOPE", []string{"advantages"}, []string{"token_rewards", "values"}, all(whitened, is("whiten.scope", "local_batch", "global"))},
	{"WHITEN-DDOF", []string{"advantages"}, []string{"token_rewards", "values"}, all(whitened, is("whiten.ddof", "0", "1"))},
	{"WHITEN-PADS", []string{"advantages"}, []string{"token_rewards", "values"}, all(whitened, is("whiten.mask", "response", "length"))},
	{"WHITEN-WRONG-AXIS", []string{"advantages"}, []string{"token_rewards", "values"}, whitened},
	{"GAE-TOOL-TOKENS", []string{"advantages", "returns"}, []string{"token_rewards", "values"}, all(gae, is("gae.hole", "carry"), lossy)},
	{"GAE-RETURNS-AFTER-WHITENING", []string{"returns"}, []string{"token_rewards", "values", "advantages"}, all(gae, whitened, is("returns.before_whiten", "true"))},
	{"GAE-LAST-INDEX", []string{"advantages", "returns"}, []string{"token_rewards", "values"}, all(gae, masked, not(is("gae.hole", "none")), positive("gae.gamma"))},
	{"GAE-R-MINUS-V", []string{"advantages", "returns"}, []string{"token_rewards", "values"}, all(gae, positive("gae.gamma"))},
	{"GAE-NO-LAMBDA", []string{"advantages", "returns"}, []string{"token_rewards", "values"}, all(gae, positive("gae.gamma"), not(is("gae.lambda", "1")))},
	{"GAE-EOS-VALUE-ZERO", []string{"advantages", "returns"}, []string{"token_rewards", "values"}, gae},
	{"GAE-VALUE-SHIFT", []string{"advantages", "returns"}, []string{"token_rewards", "values"}, gae},
	{"GAE-TRUNCATED-BOOTSTRAP", []string{"advantages", "returns"}, []string{"token_rewards", "values"}, all(gae, is("gae.truncated_bootstrap", "none"), masked)},
	{"RFPP-HOLE-DROPS", []string{"advantages", "returns"}, []string{"token_rewards"}, is("adv.kind", "rfpp")},
}

var lossy = anyOf(not(is("gae.gamma", "1")), not(is("gae.lambda", "1")))
