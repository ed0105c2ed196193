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

// policyReductionEdits returns edits of a loss whose policy term is reduced in another way than declared, and whose KL term is right.
func policyReductionEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.ID != "aggregate/loss" && o.Check.ID != "gradient/dlogp" || !lossTerms[0].apart(c, o.Check) {
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
				alone := c.Of(c.B, c.Set.With("kl.beta", convention.NumberValue(0), "hypothesis"))
				return combined(1, weighted(c.B, alone, ch, by), 1, klOnly(c, ch))
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
