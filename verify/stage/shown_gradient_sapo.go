package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// movedGradient is a token with a ratio other than 1 of a row: what its gradient is of −A·ρ.
type movedGradient struct{ of, rho float64 }

// movedRows returns the tokens of each row that has several with a gradient and different ratios, by whether its advantage is positive.
func movedRows(b *dump.Batch) (up, down [][]movedGradient) {
	const least, apart = 3, 1e-3
	lp, old, g := b.Token("logp_new"), b.Token("logp_old"), b.Token("dlogp")
	adv := NewCase(b, &convention.Set{}, 0).Optional("advantages").X
	if lp == nil || old == nil || g == nil || adv == nil {
		return nil, nil
	}
	for r := range b.Rows {
		var row []movedGradient
		lo, hi, first := math.Inf(1), math.Inf(-1), math.NaN()
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if !b.Mask[i] || adv[i] == 0 || g[i] == 0 {
				continue
			}
			if math.IsNaN(first) {
				first = adv[i]
			}
			rho := math.Exp(lp[i] - old[i])
			if x := -g[i] / (adv[i] * rho); adv[i] == first && !math.IsNaN(x) && !math.IsInf(x, 0) {
				row = append(row, movedGradient{x, rho})
				lo, hi = min(lo, rho), max(hi, rho)
			}
		}
		switch {
		case len(row) < least || hi-lo < apart:
		case first > 0:
			up = append(up, row)
		default:
			down = append(down, row)
		}
	}
	return up, down
}

// sapoGates proposes the temperatures of SAPO (arXiv 2511.20347; verl 0.9.1 compute_policy_loss_sapo), whose gradient is −w·A·ρ·4σ(1 − σ) with σ
// the logistic function of τ(ρ − 1): 4σ(1 − σ) is 1/cosh²(τ(ρ − 1)/2), and what it is in two tokens of a row gives τ without w.
func sapoGates(b *dump.Batch) (lists [][]assign) {
	up, down := movedRows(b)
	pos, neg := temperature(up), temperature(down)
	if math.IsNaN(pos) && math.IsNaN(neg) {
		return nil
	}
	list := []assign{word("loss.kind", "sapo")}
	if !math.IsNaN(pos) {
		list = append(list, amount("sapo.tau_pos", pos))
	}
	if !math.IsNaN(neg) {
		list = append(list, amount("sapo.tau_neg", neg))
	}
	return [][]assign{list}
}

// temperature returns the τ of SAPO that rows show, NaN where none is that of all their tokens.
func temperature(rows [][]movedGradient) float64 {
	const largest, near, exact = 64, 1e-3, 1e-4
	gate := func(x movedGradient, t float64) float64 {
		c := math.Cosh(t * (x.rho - 1) / 2)
		return 1 / (c * c)
	}
	var taus, weights []float64
	for _, row := range rows {
		far, mid := row[0], row[0]
		for _, x := range row {
			if math.Abs(x.rho-1) > math.Abs(far.rho-1) {
				far = x
			}
			if math.Abs(x.rho-1) < math.Abs(mid.rho-1) {
				mid = x
			}
		}
		lo, hi := 0.0, float64(largest)
		for range 60 {
			if t := (lo + hi) / 2; gate(far, t)/gate(mid, t) > far.of/mid.of {
				lo = t
			} else {
				hi = t
			}
		}
		if lo > 0 && hi < largest {
			d := (far.rho-1)*(far.rho-1) - (mid.rho-1)*(mid.rho-1)
			taus, weights = append(taus, (lo+hi)/2), append(weights, d*d) // the error of τ is that of a quotient by d
		}
	}
	t := weightedMedian(taus, weights)
	if t = written(t, near); !(t > 0) {
		return math.NaN()
	}
	closed := 0.0 // how far the gate closes at the ratio where it does most: a token without one leaves rounding alone
	for _, row := range rows {
		for _, x := range row {
			closed = max(closed, 1-gate(x, t))
			if w := row[0].of / gate(row[0], t); !(math.Abs(x.of/gate(x, t)-w) <= exact*math.Abs(w)) {
				return math.NaN()
			}
		}
	}
	if closed < 16*exact {
		return math.NaN()
	}
	return t
}
