package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// All returns the hypotheses in the order of the pipeline. The slice is shared and must not be changed.
func All() []*Hypothesis { return all }

// Find returns the hypothesis of that id, nil if there is none.
func Find(id string) *Hypothesis {
	for _, h := range []*Hypothesis{factorHypothesis, extraTerm, otherTensor} {
		if h.ID == id {
			return h
		}
	}
	if i := slices.IndexFunc(all, func(h *Hypothesis) bool { return h.ID == id }); i >= 0 {
		return all[i]
	}
	return nil
}

var all = slices.Concat(maskFaults, logpFaults, klFaults, rewardFaults, advantageFaults, lossFaults, aggregateFaults, gradientFaults, engineFaults, rowFaults, groupFaults, reductionFaults, formulaFaults, sequenceFaults, metricFaults, signFaults)

var masked = []string{"reward", "gae", "advantage", "token_loss", "aggregate", "gradient", "scalars"}

var maskFaults = []*Hypothesis{
	{ID: "LOSS-MASK-TOOL", Rows: []string{"P027", "P062", "P187", "P088"}, Checks: masked,
		Title: "tool or environment tokens inside a response are counted as the policy's own",
		Cause: "the attention mask, or a mask from the first to the last token, is used where the response mask belongs",
		Fix:   "multiply by the response mask, and select with it where a cell can hold NaN",
		Input: mask(func(row []bool) {
			if first, last := firstLast(row); first >= 0 {
				for i := first; i <= last; i++ {
					row[i] = true
				}
			}
		})},
	{ID: "LOSS-MASK-PADS", Rows: []string{"C4", "P129", "P020", "P047", "P127", "P205"}, Checks: masked,
		Title: "padding is counted: no mask is applied",
		Cause: "the mean or sum runs over the padded width",
		Fix:   "apply the response mask before the reduction, and divide by its sum",
		Input: mask(func(row []bool) {
			for i := range row {
				row[i] = true
			}
		})},
	{ID: "LOSS-MASK-SHIFT", Rows: []string{"P068", "P004", "C5"}, Checks: masked,
		Title: "the mask is one position late",
		Cause: "mask[:, :-1] where the shifted log-probs need mask[:, 1:], or a slice one too far",
		Fix:   "cut the mask by the same slice as the tokens that it marks",
		Input: mask(func(row []bool) { copy(row[1:], slices.Clone(row)); row[0] = false })},
	{ID: "LOSS-MASK-EARLY", Rows: []string{"P059", "P133"}, Checks: masked,
		Title: "the mask is one position early",
		Cause: "a mask of the inputs is used for the outputs, or shifted twice",
		Fix:   "cut the mask by the same slice as the tokens that it marks",
		Input: mask(func(row []bool) { copy(row, row[1:]); row[len(row)-1] = false })},
	{ID: "LOSS-MASK-NO-EOS", Rows: []string{"H13f", "P033", "P054"}, Checks: masked,
		Title: "the last token of every response, its EOS, is left out",
		Cause: "the mask is ids ≠ pad with pad = eos, or ends before the first EOS",
		Fix:   "let the mask run up to and including the first EOS",
		Input: mask(func(row []bool) {
			if _, last := firstLast(row); last >= 0 {
				row[last] = false
			}
		})},
	{ID: "LOSS-MASK-P1", Rows: []string{"P170", "P190", "C4"}, Checks: masked,
		Title: "the token after the last one of a response is counted",
		Cause: "an end index of sum(mask) + 1, or the value mask used for the policy",
		Fix:   "the last index of a response of n tokens is n − 1",
		Input: mask(func(row []bool) {
			if _, last := firstLast(row); last >= 0 && last+1 < len(row) {
				row[last+1] = true
			}
		})},
	{ID: "LOSS-MASK-TOOL-ABOVE", Rows: []string{"P027", "P062"}, Checks: []string{"aggregate", "gradient"},
		Title: "tool or environment tokens inside a response are summed over, and not counted",
		Cause: "the attention mask is used for the sum, the response mask for the denominator",
		Fix:   "use the response mask for both",
		Predict: numerator(func(row []bool) {
			if first, last := firstLast(row); first >= 0 {
				for i := first; i <= last; i++ {
					row[i] = true
				}
			}
		})},
	{ID: "LOSS-MASK-PADS-ABOVE", Rows: []string{"C4", "P129"}, Checks: []string{"aggregate", "gradient"},
		Title: "padding is summed over, and not counted",
		Cause: "no mask is applied to the sum",
		Fix:   "multiply by the response mask",
		Predict: numerator(func(row []bool) {
			for i := range row {
				row[i] = true
			}
		})},
	{ID: "LOSS-MASKED-BY-ADVANTAGES", Rows: []string{"P063"}, Checks: []string{"aggregate", "gradient"},
		Title:   "the token losses are multiplied by the advantages, as if these were the mask",
		Cause:   "response_mask=advantages is passed",
		Fix:     "pass the response mask",
		Predict: timesAdvantages},
	{ID: "LOSS-FIRST-COLUMN", Rows: []string{"H5"}, Checks: []string{"aggregate", "gradient"},
		Title: "only the first column enters the loss",
		Cause: "the model returned the logits of one position, and everything else was cut to it",
		Fix:   "make the model return all positions, and assert shapes before the loss",
		Input: mask(func(row []bool) { clear(row[1:]) })},
	{ID: "LOSS-MASKED-BY-ADVANTAGES-TWICE", Rows: []string{"P063"}, Checks: []string{"aggregate", "gradient"},
		Title:   "the advantages stand for the mask, in the sum and in its denominator",
		Cause:   "response_mask=advantages is passed",
		Fix:     "pass the response mask",
		Predict: overAdvantages},
	{ID: "LOSS-MASK-ADVANTAGES", Rows: []string{"P063"}, Checks: []string{"aggregate", "gradient"},
		Title: "tokens whose advantage is 0 are masked out",
		Cause: "response_mask=advantages != 0 is passed",
		Fix:   "pass the response mask",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			a := c.Optional("advantages")
			if a.X == nil {
				return nil, nil, false
			}
			m := make([]bool, len(c.B.Mask))
			changed := false
			for i := range m {
				m[i] = c.B.Mask[i] && a.X[i] != 0
				changed = changed || m[i] != c.B.Mask[i]
			}
			return c.B.WithMask(m), c.Set, changed
		}},
}

var ratioed = []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp", "ratio"}

var logpFaults = []*Hypothesis{
	{ID: "LOGP-TEMPERATURE", Rows: []string{"P015", "P066", "P092", "P185", "P121"}, Checks: []string{"logp"},
		Title: "the logits are not divided by the temperature",
		Cause: "the temperature is applied on one side only: in the sampler, and not in the training forward",
		Fix:   "divide the logits by the sampling temperature wherever log-probs are taken",
		Input: number("logp.temperature", func(float64) float64 { return 1 })},
	{ID: "LOGP-TEMPERATURE-TWICE", Rows: []string{"P121"}, Checks: []string{"logp"},
		Title: "the logits are divided by the temperature twice",
		Cause: "the engine has applied it already",
		Fix:   "apply it once",
		Input: number("logp.temperature", func(t float64) float64 { return t * t })},
	{ID: "LOGP-SHIFT-LATE", Rows: []string{"C5", "P163", "P133"}, Checks: []string{"logp"},
		Title: "log-probs are one position late",
		Cause: "logits of position t are read for token t in place of token t+1",
		Fix:   "logits[:, :-1] score ids[:, 1:]",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := ch.Predict(c.Of(c.B, c.Set))
			if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
				return nil
			}
			return moved(p, c, func(int) int { return 1 })
		}},
	{ID: "OLD-RECOMPUTED", Rows: []string{"P162", "P182"}, Checks: ratioed,
		Title:   "the ratio is 1 everywhere: the old log-probs are those of the policy being trained",
		Cause:   "old log-probs are recomputed after the update, or with the new parameters",
		Fix:     "keep the log-probs of the start of the update",
		Predict: policyTerm(1, instead("logp_old", "logp_new"))},
	{ID: "OLD-IS-GEN", Rows: []string{"P084"}, Checks: ratioed,
		Title:   "the engine's log-probs stand in for the old ones",
		Cause:   "logp_gen is taken where logp_old belongs",
		Fix:     "recompute old log-probs with the trainer, and correct the mismatch by importance weights",
		Predict: policyTerm(1, instead("logp_old", "logp_gen"))},
	{ID: "LOGP-OLD-ZERO", Rows: []string{"H1", "P120", "P174"}, Checks: ratioed,
		Title:   "the old log-probs are 0",
		Cause:   "a placeholder was never filled",
		Fix:     "fill in the log-probs of the rollout",
		Predict: policyTerm(1, constant("logp_old", 0))},
	{ID: "OLD-ROWS-ROLLED", Rows: []string{"P023", "P077"}, Checks: ratioed,
		Title:   "the old log-probs belong to other rows",
		Cause:   "one tensor was filtered, sorted or shuffled and another was not",
		Fix:     "permute all tensors of a batch together",
		Predict: policyTerm(1, rolled("logp_old", 1))},
	{ID: "OLD-ROWS-ROLLED-BACK", Rows: []string{"P023"}, Checks: ratioed,
		Title:   "the old log-probs belong to other rows",
		Cause:   "one tensor was filtered, sorted or shuffled and another was not",
		Fix:     "permute all tensors of a batch together",
		Predict: policyTerm(1, rolled("logp_old", -1))},
	{ID: "OLD-SHIFT", Rows: []string{"P163", "C5"}, Checks: ratioed,
		Title:   "the old log-probs are one position late",
		Cause:   "one of the two log-probs is cut by another slice",
		Fix:     "cut both by [p−1 : p+r−1]",
		Predict: policyTerm(1, shifted("logp_old", 1))},
	{ID: "OLD-SHIFT-BACK", Rows: []string{"P163"}, Checks: ratioed,
		Title:   "the old log-probs are one position early",
		Cause:   "one of the two log-probs is cut by another slice",
		Fix:     "cut both by [p−1 : p+r−1]",
		Predict: policyTerm(1, shifted("logp_old", -1))},
	{ID: "RATIO-INVERTED", Rows: []string{"P094"}, Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "kl/token"},
		Title:   "the ratio is inverted",
		Cause:   "exp(old − new) in place of exp(new − old)",
		Fix:     "ρ = exp(logp_new − logp_old)",
		Predict: invertedRatio},
	{ID: "IS-NEW-FOR-GEN", Rows: []string{"P026"}, Checks: []string{"ratio"},
		Title: "importance weights compare the old policy with the new one",
		Cause: "logp_new is taken where the engine's log-probs belong",
		Fix:   "w = exp(logp_old − logp_gen)",
		Input: instead("logp_gen", "logp_new")},
	{ID: "IS-INVERTED", Rows: []string{"P188"}, Checks: []string{"ratio"},
		Title: "importance weights are inverted",
		Cause: "exp(gen − old) in place of exp(old − gen)",
		Fix:   "w = exp(logp_old − logp_gen)",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			a, b := c.B.Token("logp_gen"), c.B.Token("logp_old")
			if a == nil || b == nil {
				return nil, nil, false
			}
			return c.B.With("logp_gen", b).With("logp_old", a), c.Set, true
		}},
	{ID: "IS-NOT-APPLIED", Rows: []string{"P210"}, Checks: []string{"token_loss", "aggregate", "gradient"},
		Title: "the importance weights are not applied",
		Cause: "the weight is computed and not multiplied in",
		Fix:   "multiply the policy term by the detached weight",
		Input: constant("is_weights", 1)},
}

var klDependent = []string{"kl", "token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"}

var klFaults = []*Hypothesis{
	{ID: "KL-SIGN", Rows: []string{"P181"}, Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"},
		Title: "the KL term has the wrong sign",
		Cause: "the penalty is subtracted from the loss, or added to the reward",
		Fix:   "loss + β·KL; reward − β·KL",
		Input: number("kl.beta", func(b float64) float64 { return -b })},
	{ID: "KL-TWICE", Rows: []string{"P075"}, Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"},
		Title: "the KL term is added twice",
		Cause: "it is part of the token loss and added again after the aggregation",
		Fix:   "add it once",
		Input: number("kl.beta", func(b float64) float64 { return 2 * b })},
	{ID: "KL-ABSENT", Rows: []string{"P107", "P210", "P009"}, Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"},
		Title: "the KL term is missing",
		Cause: "the option is accepted and ignored, or the term is switched off by another one",
		Fix:   "add β·KL, or declare kl.beta=0",
		Input: noKL},
	{ID: "BETA-MISSING", Rows: []string{"A3"}, Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"},
		Title: "the KL term is not multiplied by β",
		Cause: "the coefficient is left out",
		Fix:   "multiply by kl.beta",
		Input: number("kl.beta", func(float64) float64 { return 1 })},
	{ID: "KL-REVERSED", Rows: []string{"P181"}, Checks: []string{"kl"},
		Title: "policy and reference are exchanged",
		Cause: "d = ref − new is put into the estimator of d = new − ref",
		Fix:   "d = logp_new − logp_ref",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			a, b := c.B.Token("logp_new"), c.B.Token("logp_ref")
			if a == nil || b == nil {
				return nil, nil, false
			}
			d := c.B.With("logp_new", b).With("logp_ref", a)
			if v := c.Set.Value("kl.place"); v.Kind() == convention.Enum && v.Text() != "loss" && v.Text() != "none" {
				if old := c.B.Token("logp_old"); old != nil { // KL of the rollout is that of the old policy
					return c.B.With("logp_old", b).With("logp_ref", old), c.Set, true
				}
			}
			if old := c.B.Token("logp_old"); old != nil { // the ratio of a corrected estimator keeps its own
				shiftOld := make([]float64, len(old))
				for i := range old {
					shiftOld[i] = b[i] - a[i] + old[i]
				}
				d = d.With("logp_old", shiftOld)
			}
			return d, c.Set, true
		}},
	{ID: "KL-OLD-FOR-REF", Rows: []string{"P018", "P039", "P207"}, Checks: klDependent,
		Title: "KL is taken against the old policy, not the reference",
		Cause: "the reference log-probs are those of the policy at the start of the update",
		Fix:   "compute logp_ref with the frozen reference (adapter off)",
		Input: instead("logp_ref", "logp_old")},
	{ID: "KL-OF-OLD", Rows: []string{"P003"}, Checks: klDependent,
		Title: "KL is that of the old policy, not of the one being trained",
		Cause: "logp_old is used in the estimator; its gradient is then 0",
		Fix:   "use logp_new in the loss",
		Input: instead("logp_new", "logp_old")},
	{ID: "KL-OF-GEN", Rows: []string{"P052"}, Checks: klDependent,
		Title: "KL is that of the engine's log-probs",
		Cause: "logp_gen is used in the estimator",
		Fix:   "use the trainer's log-probs",
		Input: instead("logp_new", "logp_gen")},
	{ID: "KL-REFERENCE-ZERO", Rows: []string{"P116"}, Checks: klDependent,
		Title: "KL is taken against a reference of zeros",
		Cause: "the reference forward was skipped, and its placeholder used",
		Fix:   "run the reference",
		Input: constant("logp_ref", 0)},
	{ID: "KL-REFERENCE-SHIFT", Rows: []string{"P163"}, Checks: klDependent,
		Title: "the reference log-probs are one position late",
		Cause: "they are cut by another slice",
		Fix:   "cut all log-probs alike",
		Input: shifted("logp_ref", 1)},
	{ID: "KL-REFERENCE-ROWS", Rows: []string{"P077"}, Checks: klDependent,
		Title: "the reference log-probs belong to other rows",
		Cause: "one tensor was permuted and another was not",
		Fix:   "permute all tensors of a batch together",
		Input: rolled("logp_ref", 1)},
}

var rewardFaults = []*Hypothesis{
	{ID: "REWARD-WEIGHTS-IGNORED", Rows: []string{"P029"}, Checks: []string{"reward", "advantage", "scalars"},
		Title: "the reward weights are not applied",
		Cause: "rewards are summed without reward_weights",
		Fix:   "score = Σ weight·reward",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			w := c.FactList("reward_weights")
			if w == nil {
				return nil, nil, false
			}
			ones := make([]any, len(w))
			for i := range ones {
				ones[i] = 1.0
			}
			b := c.B
			if t := b.Tensors["rewards_per_func"]; t != nil && b.Row("scores") != nil {
				sums := make([]float64, b.Rows)
				for i, x := range t.Data {
					if !math.IsNaN(x) {
						sums[i/t.Width] += x
					}
				}
				b = b.With("scores", sums)
			}
			return b, c.Set.WithFact("reward_weights", ones), true
		}},
	{ID: "SCORE-SHIFT", Rows: []string{"P036", "P170", "P053"}, Checks: []string{"reward/token"},
		Title: "the score is put one token late", Cause: "an index of one past the last token", Fix: "put it on the last token of the response",
		Predict: scoreMoved(1)},
	{ID: "SCORE-EARLY", Rows: []string{"P190", "H13f"}, Checks: []string{"reward/token"},
		Title: "the score is put one token early", Cause: "EOS is excluded from the mask that gives the index", Fix: "put it on the last token of the response",
		Predict: scoreMoved(-1)},
	{ID: "SCORE-LOST", Rows: []string{"P170", "P083"}, Checks: []string{"reward/token"},
		Title: "the score is missing from the rewards", Cause: "it is written to a masked cell, or treated as missing when 0", Fix: "put it on the last token of the response",
		Input: constant("scores", 0)},
	{ID: "EOS-PENALTY-SIGN", Rows: []string{"P036"}, Checks: []string{"reward"},
		Title: "the penalty for a missing EOS is added", Cause: "its sign", Fix: "subtract a positive penalty",
		Input: number("eos.penalty", func(x float64) float64 { return -x })},
	{ID: "EOS-PENALTY-IGNORED", Rows: []string{"P036"}, Checks: []string{"reward"},
		Title: "a missing EOS is not penalised", Cause: "the test looks for another token than the one that ends responses", Fix: "test what really ended the row",
		Input: option("eos.rule", "none")},
}

// scoreMoved returns the token rewards with the part that the score makes moved by some columns.
func scoreMoved(by int) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		with := ch.Predict(c.Of(c.B, c.Set))
		without := under(constant("scores", 0), c, ch)
		score := combined(1, with, -1, without)
		if score == nil || len(score.Want) != c.B.Rows*c.B.Cols {
			return nil
		}
		score.Want = shift(score.Want, c.B.Rows, c.B.Cols, by)
		score.Bound = shift(score.Bound, c.B.Rows, c.B.Cols, by)
		return combined(1, without, 1, score)
	}
}

// invertedRatio swaps the two policies of the ratio. An estimator of KL that is multiplied by the ratio reads logp_new for itself,
// too: there the old log-probs are mirrored at the new ones.
func invertedRatio(c *stage.Case, ch *stage.Check) *stage.Prediction {
	a, b := c.B.Token("logp_new"), c.B.Token("logp_old")
	if a == nil || b == nil {
		return nil
	}
	if ch.Stage == convention.KL {
		mirrored := make([]float64, len(a))
		for i, x := range a {
			mirrored[i] = 2*x - b[i]
		}
		return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			return c.B.With("logp_old", mirrored), c.Set, true
		}, c, ch)
	}
	return policyTerm(1, func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		return c.B.With("logp_new", b).With("logp_old", a), c.Set, true
	})(c, ch)
}
