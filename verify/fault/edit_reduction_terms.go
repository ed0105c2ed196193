package fault

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// policyReductions are the reductions of [reductions] and those that people put on top of the right one: what a token of a row of n has in it.
func policyReductions() (list []struct {
	title string
	by    func(s sizes, healthy float64) float64
	known bool // agg.kind has it
}) {
	add := func(title string, known bool, by func(s sizes, healthy float64) float64) {
		list = append(list, struct {
			title string
			by    func(s sizes, healthy float64) float64
			known bool
		}{title, by, known})
	}
	add("every response is divided by its own tokens besides", false, func(s sizes, healthy float64) float64 { return healthy / s.n })
	add("every response is multiplied by its own tokens", false, func(s sizes, healthy float64) float64 { return healthy * s.n })
	for _, r := range reductions {
		if !r.pads {
			add(r.title, true, func(s sizes, _ float64) float64 { return r.weight(s) })
		}
	}
	return list
}

// policyReductionEdits returns edits of a loss whose policy term is reduced in another way than declared, and whose other terms are right.
func policyReductionEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if _, any := otherTermsOff(c); o.Check.ID != "aggregate/loss" && (o.Check.ID != "gradient/dlogp" || !lossTerms[0].apart(c, o.Check)) || !any {
		return nil
	}
	for _, f := range policyReductions() {
		var configured []string
		if f.known { // OpenRLHF 0.11.2 reduces the policy term by loss_agg_mode and the KL over all tokens (trainer/ray/ppo_actor.py)
			configured = []string{"agg.kind"}
		}
		list = append(list, edit{id: "AGG-KIND", title: "the policy term is reduced in its own way: " + f.title, changes: 1, configured: configured,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				healthy := rowWeights(c)
				if healthy == nil {
					return nil
				}
				by := make([]float64, c.B.Rows)
				for r, s := range sizesOf(c.B) {
					if by[r] = 1; healthy[r] != 0 && s.n > 0 {
						by[r] = f.by(s, healthy[r]) / healthy[r]
					}
					if math.IsNaN(by[r]) || math.IsInf(by[r], 0) {
						return nil
					}
				}
				alone, rest := policyApart(c, ch)
				if rest == nil {
					return nil
				}
				return combined(1, weighted(alone.B, alone, ch, by), 1, rest)
			}})
	}
	return list
}

// policyApart returns the case of the policy term alone, and what the other terms of a loss, or of its gradient, add to it: nil where that cannot be told.
func policyApart(c *stage.Case, ch *stage.Check) (*stage.Case, *stage.Prediction) {
	split := splitKL(c, ch)
	off, _ := otherTermsOff(split)
	b, set, ok := off(split)
	if !ok {
		return nil, nil
	}
	alone := split.Of(b, set)
	rest := combined(1, under(sameInput, split, ch), -1, under(sameInput, alone, ch))
	return split.Of(b, set), rest
}

// valueReductions are the aggregations of the value term that [reductions] are of the others, as options of the loss of which it is part.
var valueReductions = []struct {
	title, kind, denominator string
}{
	{"the mean over the tokens of the micro-batch", "token", "micro"},
	{"the mean over the tokens of the step", "token", "global"},
	{"the mean of the means of the responses of the micro-batch", "seq_mean_token_mean", "micro"},
	{"the mean of the means of the responses of the step", "seq_mean_token_mean", "global"},
	{"the mean of the sums of the responses of the micro-batch", "seq_mean_token_sum", "micro"},
	{"the mean of the sums of the responses of the step", "seq_mean_token_sum", "global"},
}

// valueReductionEdits returns edits of a loss whose value term is reduced in another way than the rest of it. No framework sums a policy loss and a value loss of
// two aggregations: those that let the critic have its own (verl's critic.loss_agg_mode) have two losses, and OpenRLHF's is a mean over tokens (value.agg).
func valueReductionEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "aggregate/loss" || numberOr(o.Case, "value.coef", 0) == 0 || o.Case.B.Token("values_new") == nil {
		return nil
	}
	for _, f := range valueReductions {
		list = append(list, edit{id: "AGG-KIND", title: "the value term is reduced in its own way: " + f.title, changes: 1, foreign: f.kind != "token",
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				off := number("value.coef", func(float64) float64 { return 0 })
				set := c.Set
				for name, x := range map[string]string{"agg.kind": f.kind, "agg.denominator": f.denominator, "value.agg": "same"} {
					set = set.With(name, parsed(name, x), "hypothesis")
				}
				for name, x := range map[string]string{"agg.empty_rows": "counted", "agg.len_eps": "0"} {
					if !set.Value(name).Known() {
						set = set.With(name, parsed(name, x), "hypothesis")
					}
				}
				other := c.Of(c.B, set)
				term := combined(1, under(sameInput, other, ch), -1, under(off, other, ch))
				return combined(1, under(off, c, ch), 1, term)
			}})
	}
	return list
}

// columnForms are means over the responses of every column first: a program that takes the mean along the other axis divides a token by the tokens of
// its column.
var columnForms = []struct {
	title  string
	filled bool // columns without tokens are not counted
}{
	{"the mean over the responses of each column, and then over the columns", false},
	{"the mean over the responses of each column, and then over the columns that have tokens", true},
}

// columnEdits returns edits of a loss whose mean is taken along the other axis first.
func columnEdits(o *stage.Outcome) (list []edit) {
	if s := o.Check.Stage; s != convention.Aggregate && s != convention.Gradient || o.Check.Output == "value_loss" || o.Check.Output == "dvalues" || o.Case.B.Meta.Algorithm == "sft" {
		return nil
	}
	for _, f := range columnForms {
		list = append(list, edit{id: "AGG-KIND", title: "the loss is " + f.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				healthy := rowWeights(c)
				if healthy == nil {
					return nil
				}
				by := columnWeights(c.B, f.filled)
				for i := range by {
					if w := healthy[i/c.B.Cols]; w != 0 {
						by[i] /= w
					}
				}
				return weightedCells(c.B, c, ch, by)
			}})
	}
	return list
}

// columnWeights returns the weight of every token in the mean over the columns of each file of the means over their tokens, 0 outside the mask.
func columnWeights(b *dump.Batch, filled bool) []float64 {
	w := make([]float64, len(b.Mask))
	for _, file := range b.Files {
		width := file.Cols
		if width <= 0 {
			width = b.Cols
		}
		tokens, columns := make([]float64, b.Cols), 0.0
		for i := range b.TokensIn(file.Lo, file.Hi) {
			if tokens[i%b.Cols]++; tokens[i%b.Cols] == 1 {
				columns++
			}
		}
		if !filled {
			columns = float64(width)
		}
		for i := range b.TokensIn(file.Lo, file.Hi) {
			w[i] = 1 / (tokens[i%b.Cols] * columns)
		}
	}
	return w
}
