package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A toGoForm is what programs make of rewards to go R_t = r_t + γ·R_{t+1}, of the rewards of the tokens of one response. undo gives the rewards of what it
// has made of them, where it is linear and a discount in it is that of the recursion.
type toGoForm struct {
	id, title string
	of        func(r []float64, gamma float64) []float64
	undo      stage.Undo
}

// unsum undoes rewards to go: r_t = x_t − γ·x_{t+1}.
func unsum(x []float64, gamma float64) []float64 {
	return eachOf(len(x), func(t int) float64 { return x[t] - gamma*at(x, t+1) })
}

var toGoForms = []toGoForm{
	{"GAE-RECURSION", "the loop runs from the first token on, not from the last one back: R_t = r_t + γ·R_{t−1}", func(r []float64, gamma float64) []float64 {
		y := make([]float64, len(r))
		for t := range r {
			y[t] = r[t] + gamma*at(y, t-1)
		}
		return y
	}, func(x []float64, gamma float64) []float64 {
		return eachOf(len(x), func(t int) float64 { return x[t] - gamma*at(x, t-1) })
	}},
	{"GAE-RECURSION", "the returns are in the reverse order: the list that grew from the last token back is not reversed", func(r []float64, gamma float64) []float64 {
		y := toGo(r, gamma)
		slices.Reverse(y)
		return y
	}, func(x []float64, gamma float64) []float64 {
		y := slices.Clone(x)
		slices.Reverse(y)
		return unsum(y, gamma)
	}},
	{"GAE-SHIFT", "the returns stand one token early: R_{t+1} in place of R_t", func(r []float64, gamma float64) []float64 {
		return append(toGo(r, gamma)[1:], 0)
	}, func(x []float64, gamma float64) []float64 {
		return append([]float64{math.NaN()}, unsum(x, gamma)[:len(x)-1]...)
	}},
	{"GAE-SHIFT", "the returns stand one token late: R_{t−1} in place of R_t, of the first token 0", func(r []float64, gamma float64) []float64 {
		return append([]float64{0}, toGo(r, gamma)[:len(r)-1]...)
	}, nil},
	{"GAE-RECURSION", "the reward of the own token is left out: R_t = γ·R_{t+1}", func(r []float64, gamma float64) []float64 {
		y := toGo(r, gamma)
		for t := range y {
			y[t] -= r[t]
		}
		return y
	}, func(x []float64, gamma float64) []float64 {
		r := append([]float64{math.NaN()}, unsum(x, gamma)[:len(x)-1]...)
		for t := range r {
			r[t] /= gamma
		}
		return r
	}},
	{"GAE-RECURSION", "what follows is subtracted: R_t = r_t − γ·R_{t+1}", func(r []float64, gamma float64) []float64 { return toGo(r, -gamma) }, func(x []float64, gamma float64) []float64 { return unsum(x, -gamma) }},
	{"GAE-RECURSION", "nothing is summed over the future: R_t = r_t", func(r []float64, _ float64) []float64 { return slices.Clone(r) }, func(x []float64, _ float64) []float64 { return slices.Clone(x) }},
	{"GAE-RECURSION", "the discount counts from the first token: R_t = Σ γ^s·r_s over s ≥ t", func(r []float64, gamma float64) []float64 {
		y, g := slices.Clone(r), 1.0
		for t := range y {
			y[t] *= g
			g *= gamma
		}
		return toGo(y, 1)
	}, func(x []float64, gamma float64) []float64 {
		r := unsum(x, 1)
		for t := range r {
			r[t] /= math.Pow(gamma, float64(t))
		}
		return r
	}},
	{"ADV-FORM", "every token has the discounted return of the first one", func(r []float64, gamma float64) []float64 {
		y := toGo(r, gamma)
		for t := range y {
			y[t] = y[0]
		}
		return y
	}, nil},
	{"GAE-RECURSION", "what follows is discounted by γ²", func(r []float64, gamma float64) []float64 { return toGo(r, gamma*gamma) }, nil},
	{"GAE-RECURSION", "what follows is discounted by √γ", func(r []float64, gamma float64) []float64 { return toGo(r, math.Sqrt(gamma)) }, nil},
	{"GAE-NO-GAMMA", "what follows is not discounted", func(r []float64, _ float64) []float64 { return toGo(r, 1) }, nil},
	{"ADV-FORM", "the mean of the rewards to come, not their sum", func(r []float64, gamma float64) []float64 {
		y := toGo(r, gamma)
		for t := range y {
			y[t] /= float64(len(y) - t)
		}
		return y
	}, func(x []float64, _ float64) []float64 {
		y := slices.Clone(x)
		for t := range y {
			y[t] *= float64(len(y) - t)
		}
		return unsum(y, 1)
	}},
}

func toGo(r []float64, gamma float64) []float64 {
	y := make([]float64, len(r))
	for t := len(r) - 1; t >= 0; t-- {
		y[t] = r[t] + gamma*at(y, t+1)
	}
	return y
}

// toGoEdits returns edits of the returns of REINFORCE, of the advantages that they are, and of those that OpenRLHF makes of the rewards of tokens whose scores have a baseline.
func toGoEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	is := func(option, text string) bool {
		v := c.Set.Value(option)
		return v.Kind() == convention.Enum && v.Text() == text
	}
	switch {
	case (o.Check.ID == "advantage/return" || o.Check.ID == "gae/returns") && is("adv.kind", "rfpp") && is("rfpp.mode", "return_to_go"):
	case o.Check.Output == "advantages" && is("kl.place", "sequence_reward_after"):
	default:
		return nil
	}
	list := []edit{{id: "GAE-HOLE", title: "the returns sum up what stands in token_rewards between the tokens of a response, in cells of tools, as well", changes: 1, predict: returnedOverGaps}}
	for _, f := range toGoForms {
		list = append(list, edit{id: f.id, title: f.title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return returned(f.of, c, ch) }})
	}
	return list
}

// rewardsOfTokens are the rewards that returns are summed of: where they were not dumped, and scores have a baseline before the KL, they are the returns that
// have no future.
func rewardsOfTokens(c *stage.Case, ch *stage.Check) stage.Input {
	if kind := c.Set.Value("adv.kind"); c.B.Token("token_rewards") != nil || kind.Kind() == convention.Enum && kind.Text() == "rfpp" {
		return c.Token("token_rewards")
	}
	p := under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		set := c.Set.With("gae.gamma", convention.NumberValue(0), "hypothesis")
		if set.Value("whiten.scope").Kind() == convention.Enum {
			set = set.With("whiten.scope", parsed("whiten.scope", "none"), "hypothesis")
		}
		return c.B, set, true
	}, c, ch)
	if p == nil {
		return stage.Input{}
	}
	return stage.Input{X: p.Want, Err: p.Bound}
}

// returnedOverGaps predicts advantages of returns that have the rewards of all cells from the first token of a row to its last.
func returnedOverGaps(c *stage.Case, ch *stage.Check) *stage.Prediction {
	mask, dumped, some := slices.Clone(c.B.Mask), c.B.Token("token_rewards"), false
	for r := range c.B.Rows {
		withHoles(mask[r*c.B.Cols : (r+1)*c.B.Cols])
	}
	for i, m := range mask {
		some = some || m && !c.B.Mask[i] && len(dumped) == len(mask) && dumped[i] != 0
	}
	if !some {
		return nil
	}
	return returnedOf(mask, toGo, c, ch)
}

// returned predicts advantages of other returns: those of rewards without a future, whitened as declared. Returns of n tokens have n sums.
func returned(of func(r []float64, gamma float64) []float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	return returnedOf(c.B.Mask, of, c, ch)
}

// returnedOf is [returned] of the rewards of the cells of a mask, which has the tokens.
func returnedOf(mask []bool, of func(r []float64, gamma float64) []float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	rewards := rewardsOfTokens(c, ch)
	reward := rewards.X
	if len(reward) != len(b.Mask) || b.Cols == 0 || !c.OK() {
		return nil
	}
	x, most := make([]float64, len(reward)), 0.0
	for r := range b.Rows {
		var cells []int
		var own []float64
		size, e := 0.0, 0.0
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if mask[i] {
				cells, own, size, e = append(cells, i), append(own, reward[i]), size+math.Abs(reward[i]), e+rewards.E(i)
			}
		}
		if len(own) == 0 {
			continue // the row has no token, as one that was rejected
		}
		for t, y := range of(own, numberOr(c, "gae.gamma", 1)) {
			x[cells[t]] = y
		}
		most = max(most, 2*float64(len(own)+4)*c.Unit*size+e)
	}
	summed := perToken("token_rewards", x)
	p := under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, set, ok := summed(c)
		return b, set.With("gae.gamma", convention.NumberValue(0), "hypothesis"), ok
	}, c, ch)
	return withErrors(p, x, most, c)
}

// withErrors adds to the bounds of p, which is x after whitening, that x is off by most.
func withErrors(p *stage.Prediction, x []float64, most float64, c *stage.Case) *stage.Prediction {
	if p == nil || len(p.Want) != len(x) {
		return nil
	}
	scale := 1.0 // of the whitening
	lo, hi, wlo, whi := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for i := range c.B.Tokens() {
		lo, hi, wlo, whi = min(lo, x[i]), max(hi, x[i]), min(wlo, p.Want[i]), max(whi, p.Want[i])
	}
	if hi > lo {
		scale = (whi - wlo) / (hi - lo)
	}
	q := altered(p)
	for i, w := range q.Want {
		q.Bound[i] += scale*most*(2+math.Abs(w)) + 8*c.Unit*math.Abs(w)
	}
	return q
}

// normalisedReturns predicts returns that are a line in the right ones, (R − c)/s with s > 0, one line for the whole step. Its two numbers
// are read off the returns themselves, and all others must agree with them.
func normalisedReturns(c *stage.Case, ch *stage.Check) *stage.Prediction {
	return onALine(c, ch, make([]float64, len(c.B.Mask)))
}

// returnsOfNormalised predicts returns (A − c)/s + V of the right A = R − V, as [normalisedReturns]. The right A must be made of rewards:
// dumped advantages that are on a line with R − V may be the normalised ones themselves.
func returnsOfNormalised(c *stage.Case, ch *stage.Check) *stage.Prediction {
	v := c.B.Token("values")
	if len(v) != len(c.B.Mask) || c.Has("advantages") && !c.Has("token_rewards") {
		return nil
	}
	return onALine(c, ch, v)
}

// onALine predicts an output y + v with y = (x − c)/s, s > 0, where the right one is x + v, and c is not 0: what is scaled alone is not normalised.
func onALine(c *stage.Case, ch *stage.Check, v []float64) *stage.Prediction {
	p, got := under(sameInput, c, ch), c.B.Token(ch.Output)
	if p == nil || len(p.Want) != len(c.B.Mask) || len(got) != len(p.Want) {
		return nil
	}
	x := func(i int) float64 { return p.Want[i] - v[i] }
	distinct := map[float64]bool{}
	var size float64
	for i := range c.B.Tokens() {
		distinct[x(i)] = true
		size = max(size, math.Abs(p.Want[i])+math.Abs(v[i]))
	}
	const enough = 12 // numbers, of which two are fitted
	if len(distinct) < enough {
		return nil
	}
	low, high := extremes(slices.Collect(c.B.Tokens()), x)
	slope := (got[high] - v[high] - (got[low] - v[low])) / (x(high) - x(low))
	if !(slope > 0) || math.IsInf(slope, 0) {
		return nil
	}
	if off := got[low] - v[low] - slope*x(low); math.Abs(off) <= slope*4*(p.Bound[low]+p.Bound[high])+64*c.Unit*size*max(slope, 1) {
		return nil
	}
	q := altered(p)
	for i := range q.Want {
		q.Want[i] = got[low] - v[low] + slope*(x(i)-x(low)) + v[i]
		q.Bound[i] = slope*(4*q.Bound[i]+2*(p.Bound[low]+p.Bound[high])+16*c.Unit*size) + 16*c.Unit*(math.Abs(q.Want[i])+math.Abs(v[i]))
	}
	return q
}
