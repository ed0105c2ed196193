package stage

import (
	"math"

	"plumbline/reference/rl"
)

// clipped reports whether the policy term is the smaller of two products with the ratio.
func (p *policy) clipped() bool {
	switch p.o.Kind {
	case rl.LossPPO, rl.LossGSPO, rl.LossLUSPO, rl.LossClipCov:
		return true
	}
	return false
}

// lossHalf returns the unit roundoff of the 16-bit type that the policy term of a token has, 0 if it has a wider one.
func (p *policy) lossHalf() float64 {
	u := p.ratioHalf()
	if p.o.Kind == rl.LossReinforce || p.o.Kind == rl.LossCISPO && p.old.X != nil && p.o.Ratio.Level == rl.RatioToken {
		u = half(p.lp, p.denominator())
	}
	if u != p.adv.Half {
		return 0
	}
	return u
}

// scorePath returns the gradient of cell i of a score function −c·A·lp, c a number without a gradient or 1, where the advantages have the
// 16-bit type of the log-probs: rnd(W·rnd(c·A)), W being the gradient that reaches the loss of the token, times its importance weight.
func (p *policy) scorePath(i int, u float64) (y, e float64) {
	w, near := p.toToken(i, u)
	a := p.adv.X[i]
	if p.coef != nil {
		c, _ := rounded(p.coef[i], u) // it is of the format but for the logarithm that it went through
		a, _ = rounded(c*a, u)
	}
	y, _ = rounded(-w*a, u)
	if near {
		e = 4 * u * math.Abs(y)
	}
	return y, e
}

// scored returns the loss −c·A·lp in the type, c having an error of e, and by how much that moves it: rnd(rnd(c·A)·lp).
func scored(c, e, a, lp, u float64) (loss, bound float64) {
	at := func(c float64) float64 {
		c, _ = rounded(c, u)
		c, _ = rounded(-c*a, u)
		c, _ = rounded(c*lp, u)
		return c
	}
	loss = at(c)
	for _, x := range []float64{c - e, c + e} {
		bound = larger(bound, math.Abs(at(x)-loss))
	}
	return loss, bound
}

// toToken returns the gradient that reaches the policy term of a token: the weight of the cell, times its importance weight where that is not
// of the 16-bit type in float32; near says that a rounding is open.
func (p *policy) toToken(i int, u float64) (w float64, near bool) {
	switch {
	case p.weight.X == nil:
		return rounded(p.reach[i], u)
	case p.weight.Half == u:
		w, near = rounded(p.reach[i], u)
		w, _ = rounded(w*p.weight.X[i], u)
		return w, near
	}
	return rounded(p.reach[i]*p.weight.X[i], u)
}

// surrogatePath returns the gradient of cell i through a ratio of the token where the products of the clipped surrogate have a 16-bit type, and
// how far roundings that are open can move it. With W the gradient that reaches the loss of the token, times its importance weight,
//
//	∂/∂(ρA) = W·s,  ∂/∂(clip(ρ)A) = W·t,  s and t being 0, ½ or 1  (exact)
//	∂/∂ρ    = rnd(W·A)·s + rnd(W·A)·t + more
//	∂/∂lp   = rnd(∂/∂ρ·ρ)
//
// where more is what the ratio has from the KL term. Autograd adds it last where the KL was recorded before the surrogate, and first, each
// sum rounded, where it came after (late).
func (p *policy) surrogatePath(more, rho float64, i int, u float64, late bool) (y, e float64) {
	w, near := p.toSurrogate(i, u)
	sum, open := p.ofRatio(w, more, i, u, late)
	y, _ = rounded(sum*rho, u)
	if near || open {
		e = 2 * u * (math.Abs(w*p.adv.X[i]*rho) + math.Abs(y))
	}
	return y, e
}

// ofRatio returns ∂/∂ρ of [policy.surrogatePath], w being the gradient that reaches the surrogate of cell i; near says that a rounding of what
// is float32 is open.
func (p *policy) ofRatio(w, more float64, i int, u float64, late bool) (sum float64, near bool) {
	product, near := rounded(-w*p.adv.X[i], u)
	s, t := p.shares(i, u)
	free, held := product*s, product*t
	if late {
		sum, _ = rounded(more+free, u)
		sum, _ = rounded(sum+held, u)
	} else {
		sum, _ = rounded(free+held+more, u)
	}
	return sum, near && p.lossHalf() != u
}

// toSurrogate is [policy.toToken] where the surrogate may be float32.
func (p *policy) toSurrogate(i int, u float64) (w float64, near bool) {
	if p.lossHalf() == u {
		return p.toToken(i, u)
	}
	w = p.reach[i]
	if p.weight.X != nil {
		w *= p.weight.X[i]
	}
	return w, false
}

// shares returns which part of the gradient of cell i the product with the ratio passes, and which that with the clipped ratio.
func (p *policy) shares(i int, u float64) (free, held float64) {
	switch {
	case p.drop != nil && p.drop[i]:
		return 0, 0
	case p.old.X == nil: // a ratio of 1 is inside of all bounds
		return 0.5, 0.5
	}
	_, free, held = p.surrogate16(p.ratio.x[i], p.adv.X[i], u)
	return free, held
}

// chained returns the weights of the cells where a program computes its loss in a 16-bit type and each of its divisions is an operation of its
// own, whose gradient is rounded: by the accumulation steps, by the rows or tokens of a mean, and by the length of a row,
//
//	rnd(rnd(rnd(1/steps)/rows)/n)
//
// nil where these are the weights rounded once, or the reduction is another one.
func (red *reduction) chained(c *Case, weights []float64, u float64) []float64 {
	r := func(x float64) float64 { y, _ := rounded(x, u); return y }
	out := make([]float64, len(weights))
	same := true
	for f, file := range c.B.Files {
		o := red.o[f]
		scale, steps := max(o.Scale, 0), max(o.Steps, 1)
		if scale == 0 {
			scale = 1
		}
		w, byRow := r(1/steps), false
		switch o.Kind {
		case rl.AggToken:
			w = r(w / (o.Tokens / scale))
		case rl.AggSeqMeanTokenMean, rl.AggSeqMeanTokenSum:
			w, byRow = r(w/(o.Rows/scale)), o.Kind == rl.AggSeqMeanTokenMean
		default:
			return nil
		}
		for row := file.Lo; row < file.Hi; row++ {
			lo, hi := row*c.B.Cols, (row+1)*c.B.Cols
			of := w
			if byRow {
				n := 0.0
				for _, m := range red.mask[lo:hi] {
					if m {
						n++
					}
				}
				of = r(w / max(n+o.LenEps, 1))
			}
			for i := lo; i < hi; i++ {
				if weights[i] != 0 {
					out[i] = of
					same = same && of == r(weights[i])
				}
			}
		}
	}
	if same {
		return nil
	}
	return out
}

// weighted returns the ways with the weights of the cells rounded once, and with those of a loss that is divided step by step.
func (p *policy) weighted(ways []roundingWay, c *Case, red *reduction, weights []float64, u float64) []roundingWay {
	chained := red.chained(c, weights, u)
	for i := range ways {
		ways[i].weights = weights
	}
	if chained == nil {
		return ways
	}
	for _, way := range ways {
		way.weights = chained
		ways = append(ways, way)
	}
	return ways
}

// rowWays returns the ways, and where the policy term has a ratio of rows those in which its surrogate is one of rows, too.
func (p *policy) rowWays(ways []roundingWay) []roundingWay {
	if p.rowPathed() {
		for _, way := range ways {
			way.whole = true
			ways = append(ways, way)
		}
	}
	return ways
}

// reached returns the gradient of the policy term, which is linear in the weights of the cells, under the weights of a way, and these.
func (p *policy) reached(way roundingWay, path, weights []float64) (scaled, of []float64) {
	p.reach = way.weights
	if len(way.weights) == 0 || &way.weights[0] == &weights[0] {
		return path, weights
	}
	scaled = make([]float64, len(path))
	for i, g := range path {
		if scaled[i] = g; weights[i] != 0 {
			scaled[i] = g * way.weights[i] / weights[i]
		}
	}
	return scaled, way.weights
}

// withoutKLPath rounds a gradient that has no KL term of the type: by the weights that leave the fewest of what was dumped beyond their bound.
func (p *policy) withoutKLPath(c *Case, red *reduction, q *Prediction, path, weights []float64, u float64) {
	cast := half(p.lp, p.ref) == 0 && p.beta != 0 // of a KL term in a wider type, once for each of its two paths
	var best *Prediction
	least := 0
	for _, way := range p.weighted(p.rowWays([]roundingWay{{}}), c, red, weights, u) {
		scaled, of := p.reached(way, path, weights)
		if p.rowPathed() {
			p.rowPaths(c.B.Cols, nil, way, u)
		}
		x := &Prediction{Want: make([]float64, len(path)), Bound: make([]float64, len(path))}
		for i, g := range path {
			x.Want[i], x.Bound[i] = q.Want[i], q.Bound[i]
			if math.IsNaN(g) || of[i] == 0 {
				continue
			}
			y, e := p.castPath(scaled[i], 0, i, u, false)
			x.Want[i] += y - g
			if x.Bound[i] += e; cast {
				x.Bound[i] += 2 * u * math.Abs(p.beta*of[i]) * (math.Exp(p.ref.X[i]-p.lp.X[i]) + 1)
			}
		}
		if n := x.misses(c); best == nil || n < least {
			best, least = x, n
		}
		if least == 0 {
			break
		}
	}
	copy(q.Want, best.Want)
	copy(q.Bound, best.Bound)
}

// scoreOrder is the order in which the gradients of a score function meet at the log-probs: P that of the score itself, S and F those of the
// estimate of the KL by its two ways, see [klPaths], R that by the ratio of the KL term. Where lp − ref was written once S and F are added
// before they reach them.
type scoreOrder int

const (
	scoreTwice      scoreOrder = iota // ((P + S) + F) + R
	scoreOnce                         // (P + (S + F)) + R
	ratioFirstTwice                   // ((P + R) + S) + F: the ratio is recorded after the KL
	ratioFirstOnce                    // (P + R) + (S + F)
	klFirst                           // ((S + F) + P) + R: the score function is recorded before the KL
	scoreOrders
)

// sum adds the gradients in the order, each sum but the last, which is rounded on storing, rounded to a type of unit roundoff u.
func (o scoreOrder) sum(p, f, s, r, u float64) float64 {
	add := func(x, y float64) float64 { z, _ := rounded(x+y, u); return z }
	switch o {
	case scoreTwice:
		return add(add(p, s), f) + r
	case ratioFirstTwice:
		return add(add(p, r), s) + f
	case ratioFirstOnce:
		return add(p, r) + add(s, f)
	case klFirst:
		return add(add(s, f), p) + r
	}
	return add(p, add(s, f)) + r
}
