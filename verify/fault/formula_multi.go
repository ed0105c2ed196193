package fault

import (
	"fmt"
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
	{ID: "ADV-MULTI", Checks: []string{"advantage/group"},
		Title:   "every reward is normalised over the reward functions of its response, not over the responses of its group",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return normalisedAcross(c, ch) }},
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

// normalisedAcross predicts (S − m)/(s + ε) over the batch, of S = Σ w_k·(r_k − m_r)/(s_r + ε) with the mean and the deviation, of n − 1, of the rewards of one
// response. Rewards of at most x are off by 4·u·x there, and S by 16 roundings of its terms.
func normalisedAcross(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, v, t, w := c.B, c.Set.Value("adv.multi"), c.B.Tensors["rewards_per_func"], c.FactList("reward_weights")
	eps := numberOr(c, "adv.eps", math.NaN())
	if v.Kind() != convention.Enum || v.Text() != "normalize_then_sum" || t == nil || len(w) != t.Width || len(w) < 2 || math.IsNaN(eps) || len(t.Data) != b.Rows*len(w) {
		return nil
	}
	right := under(sameInput, c, ch)
	if right == nil || len(right.Want) != b.Rows {
		return nil
	}
	sums, rows, most, size := make([]float64, b.Rows), make([]int, b.Rows), 0.0, 0.0
	for r := range sums {
		own := t.Data[r*len(w) : (r+1)*len(w)]
		each := make([]int, len(w))
		for k, x := range own {
			if each[k] = k; math.IsNaN(x) {
				return nil
			}
		}
		mean, by := centreOf("mean", own, each, 0), spreadOf("std1", own, each)+eps
		e := 0.0
		for k, x := range own {
			z := (x - mean) / by
			sums[r] += w[k] * z
			e += math.Abs(w[k]) * (4*c.Unit*math.Abs(x)/by + 16*c.Unit*math.Abs(z))
		}
		rows[r], most, size = r, max(most, e), max(size, math.Abs(sums[r]))
	}
	mean, by := centreOf("mean", sums, rows, 0), spreadOf("std1", sums, rows)+eps
	q := *right
	q.Want, q.Bound, q.Alt = slices.Clone(right.Want), slices.Clone(right.Bound), nil
	for r, x := range sums {
		standardised(&q, r, x, mean, by, most, size, c.Unit)
	}
	return &q
}

// A weighting is what a program makes of the weights of several reward functions.
type weighting struct {
	id, title string
	w         []float64
}

// weightings are those of w: in every order, of single functions, without one, without weights, and squared.
func weightings(w []float64) []weighting {
	reversed := slices.Clone(w)
	slices.Reverse(reversed)
	const id = "REWARD-WEIGHTS"
	list := []weighting{
		{id, "in the reverse order of the functions", reversed},
		{id, "those of the functions before", append(slices.Clone(w[len(w)-1:]), w[:len(w)-1]...)},
		{id, "those of the functions behind", append(slices.Clone(w[1:]), w[0])},
	}
	const most = 5 // functions, of 120 orders
	if len(w) <= most {
		for _, p := range permutations(w) {
			list = append(list, weighting{id, "in another order: " + fewNumbers(p), p})
		}
	}
	for k, x := range w {
		alone, without := make([]float64, len(w)), slices.Clone(w)
		alone[k], without[k] = x, 0
		list = append(list, weighting{"REWARD-ONE-FUNCTION", fmt.Sprintf("that of function %d of %d, and 0 for the others", k+1, len(w)), alone})
		if len(w) > 2 {
			list = append(list, weighting{id, fmt.Sprintf("0 for function %d of %d", k+1, len(w)), without})
		}
	}
	n, sum := float64(len(w)), total(w)
	one := func(x float64) []float64 { return slices.Repeat([]float64{x}, len(w)) }
	list = append(list, weighting{id, "1 for all functions", one(1)}, weighting{id, "squared", mapped(w, func(x float64) float64 { return x * x })},
		weighting{id, "their mean for all functions", one(sum / n)}, weighting{id, "their sum for all functions", one(sum)}, weighting{id, "the first one for all functions", one(w[0])},
		weighting{id, "the last one for all functions", one(w[len(w)-1])}, weighting{id, "1 over their number for all functions", one(1 / n)})
	if sum > 0 {
		list = append(list, weighting{id, "their share of the sum of all", mapped(w, func(x float64) float64 { return x / sum })})
	}
	var other []weighting
	for _, f := range list {
		if !slices.Equal(f.w, w) && !slices.ContainsFunc(other, func(g weighting) bool { return slices.Equal(f.w, g.w) }) {
			other = append(other, f)
		}
	}
	return other
}

// permutations are all orders of some numbers.
func permutations(x []float64) (list [][]float64) {
	if len(x) < 2 {
		return [][]float64{slices.Clone(x)}
	}
	for i := range x {
		for _, p := range permutations(append(slices.Clone(x[:i]), x[i+1:]...)) {
			list = append(list, append([]float64{x[i]}, p...))
		}
	}
	return list
}

// multiEdits returns edits of the weights of several reward functions in advantages whose scores are right, and of rewards that are normalised each before
// they are added.
func multiEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	w, t := c.FactList("reward_weights"), c.B.Tensors["rewards_per_func"]
	if o.Check.Stage != convention.Advantage || t == nil || t.Width < 2 || len(t.Data) != c.B.Rows*t.Width {
		return nil
	}
	var list []edit
	for _, f := range chosenRewards {
		list = append(list, edit{id: f.id, title: "of the rewards of a row " + f.title + " makes its advantage, not their sum", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return chosenOf(f.of, c, ch) }})
	}
	own := stage.RewardWeights(c.B) // of the scores in the dump, which advantages of others contradict
	if len(w) != t.Width {
		w = own
	}
	if len(w) != t.Width {
		return list
	}
	what := "the rewards in the advantages"
	if c.Set.Value("adv.multi").String() == "normalize_then_sum" {
		what = "the normalised rewards"
	}
	for _, f := range weightings(w) {
		list = append(list, edit{id: f.id, title: what + " have other weights: " + f.title, changes: 1, foreign: slices.Equal(own, w),
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(withWeights(f.w), c, ch) }})
	}
	return list
}

// withWeights returns the input with other weights of the reward functions, and with the scores that they make.
func withWeights(w []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, t := c.B, c.B.Tensors["rewards_per_func"]
		if t == nil || t.Width != len(w) || len(t.Data) != b.Rows*len(w) {
			return nil, nil, false
		}
		facts := make([]any, len(w))
		for k, x := range w {
			facts[k] = x
		}
		if b.Row("scores") != nil {
			sums := make([]float64, b.Rows)
			for i, x := range t.Data {
				if !math.IsNaN(x) {
					sums[i/len(w)] += w[i%len(w)] * x
				}
			}
			b = b.With("scores", sums)
		}
		return b, c.Set.WithFact("reward_weights", facts), true
	}
}

// chosenRewards are single numbers of the rewards of a row, one of each function, as of each turn of a dialogue, that stand for their sum. A turn that a row
// has not got has 0.
var chosenRewards = []struct {
	id, title string
	of        func(x []float64) float64
}{
	{"REWARD-ONE-FUNCTION", "the last one that is not 0", func(x []float64) float64 { return lastOtherThan0(x) }},
	{"REWARD-ONE-FUNCTION", "the first one that is not 0", func(x []float64) float64 {
		y := slices.Clone(x)
		slices.Reverse(y)
		return lastOtherThan0(y)
	}},
	{"ADV-REWARDS", "the largest", func(x []float64) float64 { return slices.Max(x) }},
	{"ADV-REWARDS", "the least", func(x []float64) float64 { return slices.Min(x) }},
	{"ADV-REWARDS", "the mean of those that are not 0", func(x []float64) float64 {
		var sum, n float64
		for _, v := range x {
			sum, n = sum+v, n+float64(boolToInt(v != 0))
		}
		return sum / max(n, 1)
	}},
	{"ADV-REWARDS", "the product", func(x []float64) float64 {
		y := 1.0
		for _, v := range x {
			y *= v
		}
		return y
	}},
}

func lastOtherThan0(x []float64) (y float64) {
	for _, v := range x {
		if v != 0 {
			y = v
		}
	}
	return y
}

// chosenOf predicts an output for scores that are one number of the rewards of their rows. It is nil where that is the same function of all rows.
func chosenOf(of func(x []float64) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	t, b := c.B.Tensors["rewards_per_func"], c.B
	if t == nil || b.Row("scores") == nil || slices.ContainsFunc(t.Data, math.IsNaN) || len(t.Data) != b.Rows*t.Width {
		return nil
	}
	x, functions := make([]float64, b.Rows), make([]bool, t.Width)
	for r := range x {
		row := t.Data[r*t.Width : (r+1)*t.Width]
		x[r] = of(row)
		for k, v := range row {
			functions[k] = functions[k] || v != x[r]
		}
	}
	if slices.Contains(functions, false) {
		return nil
	}
	return under(token("scores", func(*stage.Case, []float64) []float64 { return x }), c, ch)
}
