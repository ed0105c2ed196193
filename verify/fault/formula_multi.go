package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// multiFaults are bugs of several reward functions that are normalised each, added and normalised again over the batch: TRL 1.16,
// grpo_trainer.py, multi_objective_aggregation="normalize_then_sum".
var multiFaults = []*Hypothesis{
	{ID: "ADV-MULTI", Checks: []string{"advantage/group"},
		Title:   "the sum of the normalised rewards is not normalised over the batch",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return eachNormalised(c, ch, sameWeights) }},
	{ID: "ADV-MULTI", Checks: []string{"advantage/group"},
		Title: "the normalised rewards are added without their weights, and the sum is not normalised over the batch",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return eachNormalised(c, ch, func(float64) float64 { return 1 })
		}},
}

func sameWeights(w float64) float64 { return w }

// eachNormalised predicts Σ w_k·A_k, with A_k the group advantages of the k-th reward function alone.
func eachNormalised(c *stage.Case, ch *stage.Check, weight func(float64) float64) *stage.Prediction {
	v, t, w := c.Set.Value("adv.multi"), c.B.Tensors["rewards_per_func"], c.FactList("reward_weights")
	if v.Kind() != convention.Enum || v.Text() != "normalize_then_sum" || t == nil || len(w) != t.Width || c.B.Row("scores") == nil {
		return nil
	}
	if mapped := mapped(w, weight); len(w) < 2 || weight(2) != 2 && slices.Equal(mapped, w) {
		return nil // the other hypothesis is the same
	}
	var sum *stage.Prediction
	for k, x := range w {
		column := make([]float64, c.B.Rows)
		for r := range column {
			if column[r] = t.Data[r*t.Width+k]; math.IsNaN(column[r]) {
				return nil
			}
		}
		alone := func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			return c.B.Without("rewards_per_func").With("scores", column), c.Set, true
		}
		p := under(both(option("adv.multi", "sum_then_normalize"), alone), c, ch)
		if p == nil {
			return nil
		}
		if sum == nil {
			sum = combined(weight(x), p, 0, p)
		} else {
			sum = combined(1, sum, weight(x), p)
		}
	}
	return sum
}

// multiWeights are what programs make of the weights of several reward functions.
var multiWeights = []struct {
	title string
	of    func(w []float64) []float64
}{
	{"in the reverse order of the functions", func(w []float64) []float64 { x := slices.Clone(w); slices.Reverse(x); return x }},
	{"those of the functions before", func(w []float64) []float64 { return append(slices.Clone(w[len(w)-1:]), w[:len(w)-1]...) }},
	{"those of the functions behind", func(w []float64) []float64 { return append(slices.Clone(w[1:]), w[0]) }},
	{"1 for all functions", func(w []float64) []float64 { return mapped(w, func(float64) float64 { return 1 }) }},
	{"squared", func(w []float64) []float64 { return mapped(w, func(x float64) float64 { return x * x }) }},
}

// multiEdits returns edits of the weights of rewards that are normalised each before they are added.
func multiEdits(o *stage.Outcome) []edit {
	w := o.Case.FactList("reward_weights")
	if o.Check.ID != "advantage/group" || o.Case.Set.Value("adv.multi").String() != "normalize_then_sum" || len(w) < 2 {
		return nil
	}
	var list []edit
	for _, f := range multiWeights {
		if slices.Equal(f.of(w), w) {
			continue
		}
		list = append(list, edit{id: "REWARD-WEIGHTS", title: "the normalised rewards have other weights: " + f.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				var weights []any
				for _, x := range f.of(c.FactList("reward_weights")) {
					weights = append(weights, x)
				}
				return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
					return c.B, c.Set.WithFact("reward_weights", weights), true
				}, c, ch)
			}})
	}
	return list
}
