package fault

import (
	"math"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// rewardReturns are what programs take for returns beside advantages that are right: sums of the rewards of a response, and targets of one step.
// v has one number more than r, 0: that of the state behind.
var rewardReturns = []struct {
	title string
	of    func(r, v []float64, gamma, lambda float64) []float64
}{
	{"undiscounted sums of the rewards to come", func(r, _ []float64, _, _ float64) []float64 { return toGo(r, 1) }},
	{"sums of the rewards to come, discounted by λ", func(r, _ []float64, _, lambda float64) []float64 { return toGo(r, lambda) }},
	{"targets of one step without γ: r + V_{t+1}", func(r, v []float64, _, _ float64) []float64 {
		return eachOf(len(r), func(t int) float64 { return r[t] + v[t+1] })
	}},
	{"the sum of the rewards of the response, at every token", func(r, _ []float64, _, _ float64) []float64 {
		return eachOf(len(r), func(int) float64 { return total(r) })
	}},
	{"the discounted return of the first token, at every token", func(r, _ []float64, gamma, _ float64) []float64 {
		return eachOf(len(r), func(int) float64 { return toGo(r, gamma)[0] })
	}},
	{"the last reward of the response, at every token", func(r, _ []float64, _, _ float64) []float64 {
		return eachOf(len(r), func(int) float64 { return r[len(r)-1] })
	}},
	{"sums of the rewards up to a token, not from it on", func(r, _ []float64, _, _ float64) []float64 {
		return sumsUpTo(r)
	}},
}

func eachOf(n int, f func(i int) float64) []float64 {
	y := make([]float64, n)
	for i := range y {
		y[i] = f(i)
	}
	return y
}

// rewardReturnEdits returns edits of returns of a critic that are sums of rewards where the advantages are those of the declared recursion. A program may
// be configured to learn its values with λ = 1, as VAPO's critic does: only a declaration makes that wrong.
func rewardReturnEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.ID != "gae/returns" || c.Set.Value("adv.kind").String() != "gae" || !plainRecursion(c, o.Check) {
		return nil
	}
	if stage.Judge(stage.Find("gae/advantage"), o.Case.B, o.Case.Set).Verdict != check.Pass {
		return nil
	}
	var list []edit
	for _, f := range rewardReturns {
		list = append(list, edit{id: "RETURNS-OF-REWARDS", title: "the returns are " + f.title + ", not A + V", changes: 1, own: true,
			predict: func(c *stage.Case, _ *stage.Check) *stage.Prediction { return returnsOf(f.of, c) }})
	}
	return list
}

// returnsOf predicts returns of the rewards and values of the tokens of every response. A sum of n terms has n roundings.
func returnsOf(of func(r, v []float64, gamma, lambda float64) []float64, c *stage.Case) *stage.Prediction {
	b, reward, value := c.B, c.Token("token_rewards"), c.Token("values")
	gamma, lambda := numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN())
	if len(reward.X) != len(b.Mask) || len(value.X) != len(b.Mask) || math.IsNaN(gamma*lambda) || b.Cols == 0 {
		return nil
	}
	p := &stage.Prediction{Want: make([]float64, len(b.Mask)), Bound: make([]float64, len(b.Mask)), Judge: slices.Clone(b.Mask)}
	for row := range b.Rows {
		var cells []int
		var r, v []float64
		size, e := 0.0, 0.0
		for i := range b.TokensOf(row) {
			cells, r, v = append(cells, i), append(r, reward.X[i]), append(v, value.X[i])
			size, e = size+math.Abs(reward.X[i]), e+reward.E(i)
		}
		if len(cells) == 0 {
			continue
		}
		y := of(r, append(v, 0), gamma, lambda)
		for t, i := range cells {
			p.Want[i] = y[t]
			p.Bound[i] = e + value.E(i) + float64(len(r)+2)*c.Unit*(size+math.Abs(v[t]))
			if t+1 < len(cells) {
				p.Bound[i] += value.E(cells[t+1]) + 2*c.Unit*math.Abs(v[t+1])
			}
		}
	}
	return p
}
