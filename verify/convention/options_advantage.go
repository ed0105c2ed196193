package convention

// statistics are the options of masked means and of whitening.
var statistics = []Option{
	{"mask.tokens", EnumType, []string{"response", "none"}, Any, "tokens that count: the response mask, or every cell with prompt and padding", "4.3; recrl sums all, OAI has fixed lengths", []Stage{Masks, Aggregate, Scalars}},
	{"align", EnumType, nil, Any, "what a column is: a response token, or a token of the whole sequence without or with the first", "2.11, 3.6; dump.md calls them response, shifted, unshifted", []Stage{Masks, LogP}},
	{"mean.eps", NumberType, []string{"0", "1e-8"}, NotNegative, "added to Σm in means, also in those of whitening", "2.1, 3.1", []Stage{Advantage, Aggregate, Scalars}},
	{"mean.empty", EnumType, nil, Any, "a masked mean of no cells", "2.1, 3.1", []Stage{Advantage, Aggregate, Scalars}},
	{"mean.nan_outside", EnumType, nil, Any, "multiply by the mask, so that NaN outside it spreads, or select with it", "2.1, 3.1", []Stage{Advantage, Aggregate, Scalars}},
	{"whiten.scope", EnumType, nil, Any, "set over which advantages are whitened", "2.1, 3.1", []Stage{Advantage}},
	{"whiten.mask", EnumType, nil, Any, "cells that enter: length is up to the last response token, holes included", "2.1, 3.1", []Stage{Advantage}},
	{"whiten.ddof", ChoiceType, []string{"0", "1"}, Any, "variance over n or n−1", "2.1, 3.1; 6.2: x = [0, 1] gives ±1 or ±.7071", []Stage{Advantage}},
	{"whiten.eps_place", EnumType, nil, Any, "1/√(var+ε), 1/√max(var,ε), 1/(std+ε), or 1: the mean is subtracted, nothing divides", "2.1, 3.1", []Stage{Advantage}},
	{"whiten.eps", NumberType, []string{"1e-8"}, NotNegative, "ε of whitening", "3.1", []Stage{Advantage}},
	{"whiten.shift_mean", EnumType, nil, Any, "(x−μ)/σ, (x−μ)/σ + μ, x/σ", "2.1, 3.1", []Stage{Advantage}},
	{"whiten.remask", BoolType, nil, Any, "masked cells are set to 0 after whitening", "2.1, 3.1", []Stage{Advantage}},
	{"whiten.single", EnumType, nil, Any, "whitening of one cell", "2.1, 3.1", []Stage{Advantage}},
	{"whiten.constant_zero", BoolType, nil, Any, "equal values become exactly 0, where others leave a rounding residue over ε", "4.3", []Stage{Advantage}},
}

// rewards are the options of token rewards, GAE and returns.
var rewards = []Option{
	{"score.index", EnumType, nil, Any, "token that gets the score of a response", "2.2, 3.2", []Stage{Reward}},
	{"rewards.whiten", EnumType, []string{"no", "shift_mean_false"}, Any, "token rewards are whitened before GAE, with the mean added back", "2.4, 3.2", []Stage{Reward}},
	{"rewards.whiten_scope", EnumType, []string{"same", "row", "minibatch", "local_batch", "global"}, Any, "set over which token rewards are whitened; same: that of whiten.scope", "2.1, 2.4", []Stage{Reward}},
	{"reward.clip", EnumType, []string{"none", "before_baseline", "after_baseline"}, Any, "when scores are clipped", "2.4, 3.2", []Stage{Reward}},
	{"reward.clip_range", PairType, []string{"none", "-10,10"}, Any, "bounds of reward.clip", "2.4, 3.2", []Stage{Reward}},
	{"eos.rule", EnumType, nil, Any, "score of a response without EOS: unchanged, − penalty, = penalty, × penalty", "2.4, 3.2", []Stage{Reward}},
	{"eos.penalty", OrNoneType, []string{"none", "-1"}, Any, "penalty of eos.rule; none: the rule is off", "2.4, 3.2", []Stage{Reward}},
	{"eos.test", EnumType, []string{"eos_id", "stop_id", "finish_reason"}, Any, "what says that a response has ended", "2.4, 3.2", []Stage{Reward, Masks}},
	{"gae.gamma", NumberType, []string{"1", "0.99"}, Unit, "discount γ per token", "2.14, 3.2", []Stage{Advantage}},
	{"gae.lambda", NumberType, []string{"1", "0.95"}, Unit, "λ of GAE", "2.14, 3.2", []Stage{Advantage}},
	{"gae.lambda_policy", EnumType, nil, Any, "vapo: λ = 1 − 1/(α·length) for the policy", "2.2, 3.2", []Stage{Advantage}},
	{"gae.hole", EnumType, nil, Any, "recursion at masked cells", "3.2; five answers on one row", []Stage{Advantage}},
	{"gae.value_mask", EnumType, nil, Any, "cells that hold a value: the response, or one token more", "2.2, 3.2", []Stage{Advantage}},
	{"gae.truncated_bootstrap", EnumType, nil, Any, "what follows a response cut off by length: 0, or V", "2.2, 3.2", []Stage{Advantage}},
	{"returns.before_whiten", BoolType, nil, Any, "R = A + V is taken before A is whitened", "2.2, 3.2", []Stage{Advantage}},
	{"returns.of", EnumType, []string{"gae", "reward_to_go"}, Any, "R = A + V, or the discounted rewards from there on (Spinning Up, PPOBuffer.finish_path: rewards-to-go beside advantages by λ)", "2.2", []Stage{Advantage}},
	{"returns.remask", EnumType, nil, Any, "R = A + V, (A + V)·m, or A + V·m with m the value mask", "3.2", []Stage{Advantage}},
}

// groups are the options of group advantages.
var groups = []Option{
	{"adv.kind", EnumType, []string{"gae", "group", "batch_baseline", "rfpp", "raw", "rfpp_baseline", "remax", "opo", "passk", "gpg", "optimal_token_baseline"}, Any, "estimator of the advantage", "2.5, 3.3; the kinds after raw are verl's", []Stage{Advantage}},
	{"adv.center", EnumType, nil, Any, "subtracted: the group's mean, the mean of the others, nothing", "2.5, 3.3", []Stage{Advantage}},
	{"adv.scale", EnumType, nil, Any, "divided by: nothing (Dr.GRPO, RLOO), the σ of the group, of the batch, of the others", "2.5, 3.3", []Stage{Advantage}},
	{"adv.std_of", EnumType, []string{"rewards", "centred"}, Any, "batch_std is that of the rewards, or of the centred rewards whose mean is then subtracted too", "2.5; golden group_advantages: TRL GRPO and RLOO", []Stage{Advantage}},
	{"adv.ddof", ChoiceType, []string{"0", "1"}, Any, "σ over n or n−1", "2.5, 3.3", []Stage{Advantage}},
	{"adv.eps", NumberType, []string{"1e-4", "1e-6", "1e-9", "1e-8"}, NotNegative, "added to σ", "2.5, 3.3", []Stage{Advantage}},
	{"adv.zero_std", EnumType, nil, Any, "group of equal rewards: divided by ε, not divided (NeMo-RL), exactly 0", "2.5, 3.3, 4.2", []Stage{Advantage}},
	{"adv.singleton", EnumType, nil, Any, "group of one: refused, 0, r, NaN", "2.5, 3.3, 7", []Stage{Advantage}},
	{"adv.group_by", EnumType, []string{"uid", "contiguous_blocks", "prompt_tokens"}, Any, "what makes a group", "3.3", []Stage{Advantage}},
	{"adv.multi", EnumType, nil, Any, "several reward functions; the second is GDPO", "2.5, 3.3", []Stage{Advantage}},
	{"rfpp.mode", EnumType, nil, Any, "REINFORCE++: discounted return from the token on, or the sum at every token", "2.5, 3.3", []Stage{Advantage}},
}
