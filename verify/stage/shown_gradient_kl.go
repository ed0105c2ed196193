package stage

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// klSlope is a KL term as a gradient shows it: the options of its estimate, β times its derivative at each token, the weights of the rows in the loss
// with it, and the share of the tokens that it fits.
type klSlope struct {
	list     []assign
	slope, w []float64
	agree    float64
}

// klSlopes returns the KL terms that gradients of tokens show, the likeliest first. With x the slope of the policy term and y that of the KL estimate,
// the gradient is g = w·(β·y − x), and every aggregation gives the tokens of a row one w. Between two of them
//
//	β = (g₁·x₂ − g₂·x₁)/(g₁·y₂ − g₂·y₁)
//
// whatever w is. Tokens that are clipped have x = 0.
func klSlopes(b *dump.Batch) (shown []klSlope) {
	const most, enough = 4, 0.9
	lp, old, ref, g := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Token("dlogp")
	adv := NewCase(b, &convention.Set{}, 0).Optional("advantages").X
	if lp == nil || ref == nil || g == nil || adv == nil {
		return nil
	}
	if old == nil {
		old = lp
	}
	weight := b.Token("is_weights")
	inMask := func(i int) bool { return b.Mask[i] }
	unit, rows := max(Grid(g), tol.U32), min(b.Rows, 1+sampled/max(b.Cols, 1))
	for _, level := range []string{"token", "seq_mean"} {
		rho := ratiosOf(b, lp, old, level)
		for _, place := range []string{"outside", "inside"} {
			if weight == nil && place == "inside" {
				break
			}
			x := make([]float64, len(lp))
			for i := range x {
				if x[i] = adv[i] * rho[i]; weight != nil {
					x[i] *= weight[i]
				}
			}
			for _, e := range klDerivatives(b, lp, ref, old, rho, level) {
				if weight != nil && place == "inside" {
					for i := range e.slope {
						e.slope[i] *= weight[i]
					}
				}
				beta := math.NaN()
				of := pairsOf(b, g, x, e.slope, rows)
				for _, k := range []float64{of.median(), of.commonest(), clippedCoefficient(b, g, x, e.slope, rows)} {
					k = written(k, max(1e-4, unit))
					if w, agree := rowWeights(b, g, x, e.slope, k, unit, rows); k > 0 && agree > e.agree {
						beta, e.w, e.agree = k, w, agree
					}
				}
				if !(e.agree >= enough) || !(beta*rms(e.slope, inMask) > 64*unit*rms(x, inMask)) { // less is rounding
					continue
				}
				for i := range e.slope {
					e.slope[i] *= beta
				}
				e.list = append(e.list, word("kl.place", "loss"), word("ratio.level", level), amount("kl.beta", beta), word("kl.clamp_in", "none"), word("kl.clamp_out", "none"))
				if weight != nil {
					e.list = append(e.list, word("kl.under_is_weight", place))
				}
				shown = append(shown, e)
			}
		}
	}
	slices.SortStableFunc(shown, func(a, b klSlope) int { return cmp.Compare(math.Round(8*b.agree), math.Round(8*a.agree)) })
	return shown[:min(most, len(shown))]
}

// ratiosOf returns the ratio of every token, the geometric mean of those of its row ("seq_mean"), or their product ("seq_sum").
func ratiosOf(b *dump.Batch, lp, old []float64, level string) []float64 {
	rho := make([]float64, len(lp))
	for r := range b.Rows {
		var sum, n float64
		for i := range b.TokensOf(r) {
			rho[i] = math.Exp(lp[i] - old[i])
			sum, n = sum+lp[i]-old[i], n+1
		}
		if level == "seq_mean" {
			sum /= n
		}
		for i := r * b.Cols; strings.HasPrefix(level, "seq_") && i < (r+1)*b.Cols; i++ {
			if b.Mask[i] {
				rho[i] = math.Exp(sum)
			}
		}
	}
	return rho
}

// klDerivatives returns the derivatives of the estimates of a KL, those that differ. An estimate times the ratio of a row, the geometric mean of those
// of its n tokens, has besides its own derivative the nth part of the sum of all estimates.
func klDerivatives(b *dump.Batch, lp, ref, old, rho []float64, level string) (list []klSlope) {
	for _, grad := range []rl.KLGrad{rl.KLNaive, rl.KLISCorrected, rl.KLStraightThroughK2, rl.KLScoreFunction} {
		for _, kind := range []rl.KLKind{rl.KLK3, rl.KLK1, rl.KLK2, rl.KLAbs} {
			for _, limit := range []float64{0, 10} {
				capped := grad == rl.KLStraightThroughK2
				if limit > 0 && !capped || capped && kind != rl.KLK3 {
					continue
				}
				o := rl.KLOptions{Kind: kind, Grad: grad, ISCap: limit}
				throughRatio := grad == rl.KLISCorrected && level != "token"
				if throughRatio {
					o.Grad = rl.KLNaive
				}
				value, slope := rl.KL(nil, nil, lp, ref, old, o)
				if throughRatio {
					throughRows(b, value, slope, rho)
				}
				e := klSlope{list: []assign{word("kl.kind", kind.String()), word("kl.grad", grad.String())}, slope: slope}
				if capped {
					e.list = append(e.list, word("kl.is_cap", map[bool]string{true: "10", false: "none"}[limit > 0]))
				}
				list = append(list, e)
			}
		}
	}
	return list
}

// throughRows makes of the derivatives of estimates those of the estimates times the ratios of their rows.
func throughRows(b *dump.Batch, value, slope, rho []float64) {
	for r := range b.Rows {
		var sum, n float64
		for i := range b.TokensOf(r) {
			sum, n = sum+value[i], n+1
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			slope[i] = rho[i] * (slope[i] + sum/n)
		}
	}
}

// tokenPairs are what tokens of rows that stand beside one another say of β in g = w·(β·y − x), w one number of each row, and how much each says.
type tokenPairs struct{ quotients, weights []float64 }

func pairsOf(b *dump.Batch, g, x, y []float64, rows int) (p tokenPairs) {
	for r := range rows {
		before := -1
		for i := range b.TokensOf(r) {
			if k := before; k >= 0 {
				den := g[k]*y[i] - g[i]*y[k]
				q := (g[k]*x[i] - g[i]*x[k]) / den
				w := math.Abs(den) / (math.Abs(g[k]*x[i]) + math.Abs(g[i]*x[k]))
				if !math.IsNaN(q+w) && !math.IsInf(q+w, 0) {
					p.quotients, p.weights = append(p.quotients, q), append(p.weights, w)
				}
			}
			before = i
		}
	}
	return p
}

// median returns the mean of what lies near the weighted median, NaN of nothing.
func (p tokenPairs) median() float64 {
	m := weightedMedian(p.quotients, p.weights)
	var near, sum float64
	for k, q := range p.quotients {
		if math.Abs(q-m) <= 1e-3*m {
			near, sum = near+p.weights[k], sum+float64(p.weights[k]*q)
		}
	}
	return sum / near
}

// commonest returns what most of the pairs say, NaN of fewer than four.
func (p tokenPairs) commonest() float64 {
	if x, n := commonest(p.quotients); n >= 4 {
		return x
	}
	return math.NaN()
}

// clippedCoefficient solves the same where many tokens are clipped, whose gradient is w·β·y: the number that most of g/y of a row are gives w·β, and
// that which most of (w·β·y − g)/x of the others are w. It is the median over the rows.
func clippedCoefficient(b *dump.Batch, g, x, y []float64, rows int) float64 {
	var betas []float64
	for r := range rows {
		var clipped, kept []float64
		for i := range b.TokensOf(r) {
			clipped = append(clipped, g[i]/y[i])
		}
		k, n := commonest(clipped)
		if n < 3 {
			continue
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] && math.Abs(g[i]-k*y[i]) > 1e-3*math.Abs(g[i]) {
				kept = append(kept, (k*y[i]-g[i])/x[i])
			}
		}
		if w, n := commonest(kept); n >= 2 {
			betas = append(betas, k/w)
		}
	}
	return middle(betas, 1)
}

// commonest returns the middle of the most numbers that are within 1e-3 of one another, and how many they are.
func commonest(list []float64) (x float64, n int) {
	list = slices.DeleteFunc(slices.Clone(list), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) || x == 0 })
	slices.Sort(list)
	lo := 0
	for hi := range list {
		for list[hi]-list[lo] > 1e-3*math.Abs(list[hi]) {
			lo++
		}
		if hi-lo+1 > n {
			x, n = list[(lo+hi)/2], hi-lo+1
		}
	}
	return x, n
}

// rowWeights returns the weights w of rows under which most of their tokens have g = w·(β·y − x), or w·β·y where they are clipped, NaN of a row of which
// no two agree, and the share of tokens that have; of those one at least in eight must not be clipped.
func rowWeights(b *dump.Batch, g, x, y []float64, beta, unit float64, rows int) (w []float64, share float64) {
	w = slices.Repeat([]float64{math.NaN()}, b.Rows)
	var fit, free, all float64
	for r := range b.Rows {
		var list []float64
		for i := range b.TokensOf(r) {
			list = append(list, g[i]/(beta*y[i]-x[i]), g[i]/(beta*y[i]))
		}
		k, n := commonest(list)
		if n < 2 {
			continue
		}
		if w[r] = k; r >= rows {
			continue
		}
		near := func(got, want float64) bool { return math.Abs(got-want) <= (2e-3+4*unit)*math.Abs(got) }
		for i := range b.TokensOf(r) {
			all++
			switch {
			case near(g[i], k*(beta*y[i]-x[i])):
				fit, free = fit+1, free+1
			case near(g[i], k*beta*y[i]):
				fit++
			}
		}
	}
	const least = 8
	if all < least || 8*free < all {
		return w, 0
	}
	return w, fit / all
}
