package trainer

// LeftOutRows are the rows of the catalogue whose input can be a dump and that no plant stands for.
var LeftOutRows = []LeftOut{
	// A number that is large without being wrong.
	{"A3", "a small kl_beta is a legal option and the numbers follow from it; the bug that the source takes for it is LOGP-OLD-ZERO"},
	{"B3", "a note and no fault: the row itself says that such a loss is right"},
	{"C13", "a threshold on a number that is computed correctly; the steps that were too large are not in the dump"},
	{"P037", "a drift of the ratio over 64 updates of one batch: every update alone is consistent, and a dump of one step has none before it"},
	{"P136", "a gap that grows from step to step at learning rate 0: one step has no growth, and the learning rate is no tensor"},
	{"P041", "the engine's weights are garbage: the gap is large, but no bound follows from the data; that of other weights is GEN-UNADAPTED"},
	{"P202", "as P041: the router of the engine has other weights, which the dump of the trainer does not hold"},

	// Not a bug.
	{"P090", "the row says that there is none: grouping by uid is safe under any order of rows, which the healthy data have"},
	{"P191", "one-sided by design: gmpo's clip as the conventions have it"},
	{"P032", "means of micro-batch means are what dump.md defines for numbers of a step; another reduction over ranks has no name there"},
	{"P114", "the conventions put the clamp before the weight for kl.grad score_function: the leak is part of the option's value"},

	// What the fault changes is no tensor of a dump: only its consequence, which a correct program may have, too.
	{"P053", "the reward model reads another position: the score is another number, and nothing in the dump says which is right"},
	{"P139", "as P053: the score is read at an EOS of the prompt"},
	{"P175", "as P053: the score is read at the pad id of another tokenizer"},
	{"P201", "as P053: the score depends on the padding; it takes a second run with another batch size to see it"},
	{"H13e", "the score is 0 because text was parsed wrongly, and the dump holds no text"},
	{"H13b", "the same prompts in consecutive steps: it takes two steps, each of which is consistent"},
	{"P020", "the quantile of entropies has no option and its mask no tensor; in a dump it would be one of is_weights without a formula"},
	{"P071", "metrics of rollout correction: the row does not say which, and none has a formula in the conventions"},
	{"D1", "the target of the fourth system is no tensor of the dump format, and the program raises before it could dump"},
	{"D4", "mask_ratio and the hard-cell weight of the fourth system are no tensors of the dump format"},

	// Seen in other inputs.
	{"H2", "needs the basis: verify projection plants it (gradient bit-identical before and after)"},
	{"P199", "projection of gradients: verify projection; the dump of a policy loss has one task"},
	{"P200", "projection of gradients: verify projection; the dump of a policy loss has one task"},
	{"P149", "rounding of a merge to the quantisation grid: weights, verify checkpoint"},
	{"P150", "merge of 8-bit weights: weights, verify checkpoint"},
	{"P152", "the type of a stored adapter: verify checkpoint"},
	{"P155", "overflow of fp16 inside a kernel: in a dump it is an infinity or NaN of a log-prob, for which LOGP-NAN stands"},
	{"P156", "a constant of an int8 product, 1.8e-5 relative: within what the log-probs of any two kernels differ by; the golden section int8 pins it"},
	{"P211", "half the adapter gets no gradient: weights and gradients of parameters; its NaN is LOGP-NAN"},
	{"P212", "a zero row of a quantised weight: its NaN is LOGP-NAN, its cause lies in the weights"},
}
