package stage

import "math"

// Where values, those of the rollout and targets have one 16-bit type, every operation of the value loss rounds to it, and so does every
// step of its gradient: e = rnd(v − R), the bounds rnd(V ± c), the squares; and rnd(W·2e) with W the weight that reaches a square. Squares
// that are equal when rounded pass half each, so that half of the gradient is left where v lies beyond its bound. Of a value on its bound to
// the bit a clamp passes half where the bounds are tensors (torch 2.15), none where they are numbers, or all (releases before).

// valueOrders are the ways in which the weight w of a cell and the coefficient f of the loss become a number of the type.
var valueOrders = []func(w, f float64, r func(float64) float64) float64{
	func(w, f float64, r func(float64) float64) float64 { return r(w * f) },
	func(w, f float64, r func(float64) float64) float64 { return r(r(f) * w) },
	func(w, f float64, r func(float64) float64) float64 { return r(r(w) * f) },
}

// promoted16 replaces the gradient by that of the type; coef is the coefficient of the value loss with its factor. One order of the weight
// holds for all cells, that which leaves the fewest of what was dumped, got, beyond its bound.
func (w *value) promoted16(p *Prediction, got, weights []float64, coef float64) {
	u := w.half()
	if u == 0 {
		return
	}
	var want, bound []float64
	least := 0
	type way struct {
		order func(w, f float64, r func(float64) float64) float64
		edge  float64
	}
	var ways []way
	for _, edge := range []float64{0.5, 0, 1} {
		for _, order := range valueOrders {
			ways = append(ways, way{order, edge})
		}
	}
	for _, way := range ways {
		x, e := make([]float64, len(weights)), make([]float64, len(weights))
		misses := 0
		for i, weight := range weights {
			if !w.mask[i] || math.IsNaN(p.Want[i]) {
				x[i], e[i] = p.Want[i], p.Bound[i]
				continue
			}
			open := false
			slope, _ := w.squares16(i, way.edge, u)
			reach := way.order(weight, coef, func(x float64) float64 {
				y, near := rounded(x, u)
				open = open || near
				return y
			})
			x[i], _ = rounded(reach*slope, u) // float32 has the product of two numbers of the type without an error
			if open {
				e[i] = 4 * u * math.Abs(x[i])
			}
			if len(got) == len(x) && !(math.Abs(got[i]-x[i]) <= e[i]) {
				misses++
			}
		}
		if want == nil || misses < least {
			want, bound, least = x, e, misses
		}
		if least == 0 {
			break
		}
	}
	p.Want, p.Bound = want, bound
}

// half returns the unit roundoff of the 16-bit type that squares have, 0 if they have a wider one.
func (w *value) half() float64 {
	if w.r.Half != w.v.Half || w.o.Clip > 0 && w.old.Half != w.v.Half {
		return 0
	}
	return w.v.Half
}

// squares16 returns the larger square of cell i and its derivative, of which a clamp passes the share edge on its bound.
func (w *value) squares16(i int, edge, u float64) (slope, square float64) {
	d, _ := rounded(w.v.X[i]-w.r.X[i], u)
	free, _ := rounded(d*d, u)
	if w.o.Clip <= 0 {
		return 2 * d, free
	}
	low, _ := rounded(w.old.X[i]-w.o.Clip, u)
	high, _ := rounded(w.old.X[i]+w.o.Clip, u)
	v := w.v.X[i]
	dc, _ := rounded(max(min(v, high), low)-w.r.X[i], u)
	clipped, _ := rounded(dc*dc, u)
	inside := 2 * dc
	switch {
	case v < low || v > high:
		inside = 0
	case v == low || v == high:
		inside *= edge
	}
	square, slope = larger2(free, 2*d, clipped, inside)
	return slope, square
}
