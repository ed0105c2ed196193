package fault

import "plumbline/verify/stage"

// Named is what the catalogue knows of an option that has another value than the declared one: legal elsewhere, and a known
// bug here.
type Named struct {
	ID, Title string
	Rows      []string
}

var named = []struct {
	option, from, to string // "" is any value
	Named
}{
	{"adv.ddof", "", "", Named{"ADV-DDOF", "another number of degrees of freedom in the group's deviation", []string{"P189"}}},
	{"whiten.ddof", "", "", Named{"WHITEN-DDOF", "another number of degrees of freedom in whitening", []string{"P189"}}},
	{"adv.scale", "group_std", "batch_std", Named{"ADV-BATCH-STD", "the deviation is that of the batch, not of the group", []string{"P021", "P180"}}},
	{"adv.scale", "batch_std", "group_std", Named{"ADV-GROUP-STD", "the deviation is that of the group, not of the batch", []string{"P021"}}},
	{"adv.scale", "", "none", Named{"ADV-NOT-SCALED", "advantages are not divided by a deviation", []string{"P091"}}},
	{"adv.eps", "", "", Named{"ADV-EPS", "another ε is added to the deviation", nil}},
	{"adv.center", "", "", Named{"ADV-CENTER", "another baseline is subtracted", []string{"P104"}}},
	{"adv.zero_std", "skip", "divide_eps", Named{"ADV-ZERO-STD", "a deviation of 0 is divided by", []string{"P108"}}},
	{"agg.div_ga", "true", "false", Named{"AGG-GA-MISSING", "the loss is not divided by the accumulation steps", []string{"P012", "P002", "P067"}}},
	{"agg.div_ga", "false", "true", Named{"AGG-GA-TWICE", "the loss is divided by the accumulation steps once too often", []string{"P184", "P137"}}},
	{"agg.denominator", "", "micro", Named{"AGG-LOCAL-DENOMINATOR", "every micro-batch divides by its own count: a mean of means", []string{"P014", "P080", "P137", "P165"}}},
	{"agg.denominator", "", "", Named{"AGG-DENOMINATOR", "the denominator is counted over another set of files", []string{"P031"}}},
	{"agg.empty_rows", "", "", Named{"AGG-EMPTY-ROWS", "rows without a token are counted, or left out", []string{"P132"}}},
	{"agg.kind", "", "", Named{"AGG-KIND", "token losses are reduced in another way", []string{"P014", "P208", "P095"}}},
	{"agg.div_batch", "", "", Named{"AGG-DIV-BATCH", "the number of rows is, or is not, divided by", []string{"P079"}}},
	{"mask.tokens", "", "none", Named{"LOSS-MASK-PADS", "padding is counted: no mask is applied", []string{"C4", "P129", "P020", "P047", "P127", "P205"}}},
	{"value.factor", "", "", Named{"VALUE-NO-HALF", "the ½ of the value loss", []string{"P058"}}},
	{"value.mask", "", "", Named{"VALUE-MASK", "the value loss has another mask", []string{"P050", "P059"}}},
	{"value.clip", "", "none", Named{"VALUE-CLIP-ABSENT", "the value loss is not clipped", nil}},
	{"value.clip", "", "", Named{"VALUE-CLIP", "values are clipped by another bound", nil}},
	{"kl.grad", "", "", Named{"KL-GRAD", "the KL term has another gradient", []string{"P045", "P113", "P008"}}},
	{"kl.kind", "", "k1", Named{"KL-KIND", "the estimator is k1, whose expected gradient is 0", []string{"P003", "P129", "P008", "H7c"}}},
	{"kl.kind", "", "", Named{"KL-KIND", "another estimator of KL", []string{"P003", "P129"}}},
	{"kl.beta", "", "0", Named{"KL-ABSENT", "the KL term is missing", []string{"P069", "P107", "P210"}}},
	{"kl.beta", "", "1", Named{"BETA-MISSING", "the KL term enters without its coefficient", nil}},
	{"kl.beta", "", "", Named{"KL-BETA", "another coefficient of KL", []string{"P107"}}},
	{"tis.level", "", "none", Named{"IS-NOT-APPLIED", "importance weights are not applied", []string{"P049", "P210"}}},
	{"tis.level", "", "", Named{"IS-LEVEL", "importance weights are taken over another set of tokens", []string{"P043", "P125"}}},
	{"ratio.level", "", "", Named{"RATIO-LEVEL", "the ratio is taken over another set of tokens", []string{"P095"}}},
	{"returns.before_whiten", "", "", Named{"GAE-RETURNS-AFTER-WHITENING", "returns are made of whitened advantages", []string{"C19"}}},
	{"gae.hole", "", "", Named{"GAE-HOLE", "another rule for tool tokens", []string{"P169", "P083", "P171", "P206"}}},
	{"score.index", "", "", Named{"SCORE-INDEX", "the score stands at another token", []string{"P036", "P170"}}},
	{"logp.temperature", "", "", Named{"LOGP-TEMPERATURE", "the logits are divided by another temperature", []string{"P015", "P066", "P092", "P121", "P185"}}},
	{"kl.clamp_out", "", "", Named{"KL-CLAMP-MISSING", "the estimator has another bound", []string{"P081", "P099"}}},
	{"kl.clamp_in", "", "", Named{"KL-CLAMP-MISSING", "the log-ratio of KL has another bound", []string{"P081", "P099"}}},
	{"value.coef", "", "", Named{"VALUE-COEF", "another coefficient of the value loss", nil}},
	{"whiten.mask", "", "", Named{"WHITEN-PADS", "mean and variance are taken over other cells", []string{"C4", "C19"}}},
	{"whiten.scope", "", "", Named{"WHITEN-SCOPE", "mean and variance are taken over another set of rows", []string{"P105", "C19"}}},
	{"tis.high", "", "", Named{"IS-CLAMP-MISSING", "importance weights have another bound", []string{"P098"}}},
	{"tis.rule", "", "", Named{"IS-CLAMP-MISSING", "importance weights are bounded by another rule", []string{"P098"}}},
	{"gae.truncated_bootstrap", "", "", Named{"GAE-TRUNCATED-BOOTSTRAP", "truncated responses are, or are not, bootstrapped", []string{"P055"}}},
	{"reward.clip", "", "", Named{"REWARD-CLIP-MISSING", "rewards are clipped elsewhere, or not", nil}},
	{"eos.rule", "", "", Named{"EOS-PENALTY-MISSING", "another rule for responses without EOS", []string{"P036"}}},
	{"rfpp.mode", "", "", Named{"RFPP-MODE", "the return is taken in another way", []string{"P083"}}},
	{"kl.place", "", "none", Named{"KL-ABSENT", "the KL term is missing", []string{"P069", "P107"}}},
	{"kl.place", "token_reward", "", Named{"KL-ABSENT", "the KL term is missing from the token rewards", []string{"P069"}}},
	{"kl.place", "", "", Named{"KL-AFTER-BASELINE", "KL enters at another place", []string{"P104"}}},
	{"entropy.logits", "", "", Named{"ENTROPY-TEMPERATURE", "the entropy is that of other logits", nil}},
	{"clip.low", "", "", Named{"CLIP-BOUND", "another clip bound", nil}},
	{"clip.high", "", "", Named{"CLIP-BOUND", "another clip bound", nil}},
	{"clip.dual", "", "", Named{"CLIP-DUAL", "another dual clip", nil}},
	{"loss.kind", "", "", Named{"LOSS-KIND", "another loss", nil}},
	{"mean.eps", "", "", Named{"MEAN-EPS", "another ε in means", nil}},
	{"mean.nan_outside", "", "", Named{"MASK-MULTIPLIES", "masked cells are multiplied by 0, not left out", []string{"P061", "P100"}}},
	{"metric.clip_frac", "", "", Named{"METRIC-CLIP-FRACTION", "another definition of a clipped token", []string{"P016"}}},
	{"ratio.old", "", "stopgrad_new", Named{"OLD-RECOMPUTED", "the old log-probs are those of the policy being trained", []string{"P162"}}},
}

// OfChange returns what the catalogue knows of a change of an option; ok is false if it knows nothing.
func OfChange(c stage.Change) (n Named, ok bool) {
	for _, e := range named {
		if e.option == c.Option && (e.from == "" || e.from == c.From.String()) && (e.to == "" || e.to == c.To.String()) {
			return e.Named, true
		}
	}
	return Named{}, false
}

// RowsOf returns the rows of the catalogue that a bug of that id stands for, whether it is a hypothesis or a legal option at the
// wrong place.
func RowsOf(id string) []string {
	var rows []string
	if h := Find(id); h != nil {
		rows = append(rows, h.Rows...)
	}
	for _, e := range named {
		if e.ID == id {
			rows = append(rows, e.Rows...)
		}
	}
	return rows
}
