package stage

import (
	"math"
	"slices"

	"plumbline/verify/tol"
)

// engineMode is a way in which weights for the engine's log-probs, which were not dumped, may multiply a loss: the weight of a token that is
// kept, and the number that decides, both by their place in [lossCell.engine].
type engineMode struct {
	level, rule string
	kept, by    int
}

var engineModes = []engineMode{{"token", "", 0, 0}, {"seq_sum", "", 1, 1}, {"seq_geo", "", 2, 2}, {"seq_geo", "seq_filter", 0, 2}}

// engineWeights returns the weights of a cell of every level.
func engineWeights(step Step, p *policy) func(i int) [3]float64 {
	b, none := step.B, [3]float64{math.NaN(), math.NaN(), math.NaN()}
	old, gen := b.Token("logp_old"), b.Token("logp_gen")
	if old == nil || gen == nil || b.Tensors["is_weights"] != nil {
		return func(int) [3]float64 { return none }
	}
	sum, n := make([]float64, b.Rows), make([]float64, b.Rows)
	for i, m := range p.mask {
		if m {
			sum[i/b.Cols] += old[i] - gen[i]
			n[i/b.Cols]++
		}
	}
	return func(i int) [3]float64 {
		r := i / b.Cols
		return [3]float64{math.Exp(old[i] - gen[i]), math.Exp(sum[r]), math.Exp(sum[r] / n[r])}
	}
}

// weigh reads off tokens whose ratio is 1, where the loss of a surrogate is −A·w, what becomes of weights, and returns the tokens with them and
// the options that say so; nil where weights of this mode, or a rule for them, do not show. Of a loss with a KL term nothing is read.
func (m engineMode) weigh(cells []lossCell, place string) (weighted []lossCell, list []assign) {
	if place != "" || len(cells) == 0 || math.IsNaN(cells[0].engine[0]) {
		return nil, nil
	}
	const least = 8 // tokens that a rule is read from
	var at, plain, odd int
	below, above := math.Inf(-1), math.Inf(1) // of what decides: the largest left out below 1, the smallest above
	low, high := math.Inf(1), math.Inf(-1)    // the smallest and the largest kept
	var stopLow, stopLowE, stopHigh, stopHighE []float64
	for i := range cells {
		c := &cells[i]
		if math.Abs(c.rho-1) > 8*tol.U32+c.rhoE || c.adv == 0 {
			continue
		}
		at++
		w, by := c.engine[m.kept], c.engine[m.by]
		x, e := -c.loss/c.adv, 4*c.u*math.Abs(c.loss/c.adv)+1e-5*w
		switch {
		case math.Abs(x-w) <= e:
			low, high = min(low, by), max(high, by)
			plain++
		case x == 0 && by < 1:
			below = max(below, by)
		case x == 0:
			above = min(above, by)
		case x < w && m.kept == m.by:
			stopHigh, stopHighE = append(stopHigh, x), append(stopHighE, e)
		case m.kept == m.by:
			stopLow, stopLowE = append(stopLow, x), append(stopLowE, e)
		default:
			odd++
		}
	}
	stops := len(stopLow) + len(stopHigh)
	dropped := !math.IsInf(below, 0) || !math.IsInf(above, 0)
	if at < least || 4*plain < at || 20*odd > at || stops > 0 && dropped {
		return nil, nil
	}
	list = []assign{word("tis.level", m.level)}
	var lower, upper float64
	limit := func(option string, v interval) float64 {
		a := numbers(option, v)[0]
		list = append(list, a)
		if v.n == 0 {
			return math.NaN()
		}
		return a.value.Num()
	}
	between := func(lo, hi float64) interval {
		if math.IsInf(lo, 0) || math.IsInf(hi, 0) || !(lo < hi) {
			return interval{}
		}
		return interval{lo: lo, hi: hi, mid: (lo + hi) / 2, n: 1}
	}
	drops := m.rule != "" || stops == 0
	if drops {
		rule := m.rule
		if rule == "" {
			rule = "zero_outside"
		}
		list = append(list, word("tis.rule", rule))
		lower, upper = limit("tis.low", between(below, low)), limit("tis.high", between(high, above))
	} else {
		list = append(list, word("tis.rule", "clamp"))
		lower, upper = limit("tis.low", meet(stopLow, stopLowE)), limit("tis.high", meet(stopHigh, stopHighE))
	}
	weighted = slices.Clone(cells)
	for i := range weighted {
		c := &weighted[i]
		c.w = c.engine[m.kept]
		by := c.engine[m.by]
		switch {
		case drops && (by < lower || by > upper):
			c.w = 0
		case !drops && by < lower:
			c.w = lower
		case !drops && by > upper:
			c.w = upper
		}
	}
	return weighted, list
}
