package stage

import (
	"math"

	"plumbline/internal/format"
	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// Where ratios and advantages have one 16-bit type the two products of a clipped surrogate are rounded to it before the smaller one is taken.
// A ratio beyond its bound by less than what is rounded away then gives two equal products, of which autograd passes half to each: to the
// ratio −A/2, where the formula has −A or 0. A ratio on its bound to the bit is common in 16 bits, whatever advantages are. torch 2.15 passes
// nothing through a clamp there, releases before it all; a run has one of them.

// ratioHalf returns the unit roundoff of the 16-bit type that the ratio of a clipped surrogate and its bounds have, 0 if it has a wider one.
func (p *policy) ratioHalf() float64 {
	if p.old.X == nil || p.o.Ratio.Level != rl.RatioToken && !p.rowHalf {
		return 0
	}
	if p.clipped() {
		return p.old.Half
	}
	return 0
}

// slopes16 stores the derivatives of the clipped surrogate with respect to the ratios x as autograd has them in the type.
func (p *policy) slopes16(d, x []float64, u float64) []float64 {
	if d == nil {
		d = make([]float64, len(x))
	}
	for i, r := range x {
		_, free, held := p.surrogate16(r, p.adv.X[i], u)
		if d[i] = 0; free+held > 0 {
			d[i] = -p.adv.X[i] * (free + held)
		}
	}
	return d
}

// surrogate16 returns the clipped surrogate of a ratio and an advantage in the type, and of its derivative with respect to the ratio, which is
// −A of each of the two products, the part that each passes. Clip bounds are numbers of the type already, see [promotedClip]. Products have
// it where advantages do.
func (p *policy) surrogate16(ratio, a, u float64) (loss, free, held float64) {
	clip := p.o.Clip
	product := func(b float64) float64 {
		x := a * b
		if p.adv.Half == u {
			x, _ = rounded(x, u)
		}
		return x
	}
	low, high := 1-clip.Low, 1+clip.High
	if clip.HighAbsolute {
		high = clip.High
	}
	rho, _ := rounded(ratio, u)
	first, second := rho, max(min(rho, high), low)
	free, held = 1, 1
	if clip.Delta > 0 && !(rho < clip.Delta) {
		if first = min(rho, clip.Delta); rho > clip.Delta || !p.inclusive {
			free = 0
		}
	}
	if rho < low || rho > high || !p.inclusive && (rho == low || rho == high) {
		held = 0
	}
	one, two := -product(first), -product(second)
	f, h := share(one, two)
	loss, free, held = max(one, two), free*f, held*h
	if clip.Dual > 0 && a < 0 {
		bound := -product(clip.Dual)
		f, _ := share(-loss, -bound)
		loss, free, held = min(loss, bound), free*f, held*f
	}
	return loss, free, held
}

// share returns the parts of a gradient that the operands of a maximum pass: half each where they are equal.
func share(a, b float64) (x, y float64) {
	switch {
	case a > b:
		return 1, 0
	case b > a:
		return 0, 1
	}
	return 0.5, 0.5
}

// larger2 returns the larger of a and b with its derivative, half of each where they are equal.
func larger2(a, da, b, db float64) (x, dx float64) {
	switch {
	case a > b:
		return a, da
	case b > a:
		return b, db
	}
	return a, da/2 + db/2
}

// tie16 replaces in path, the gradient of the policy term by ratios of tokens, and in want, which has it besides others, the slopes of the
// formula by those of the type; weights are those of the aggregation. A ratio of a row that is taken token by token (GSPO-token) is itself
// another one in the type.
func (p *policy) tie16(weights, path, want []float64) {
	u := p.ratioHalf()
	if u == 0 || p.o.Ratio.Level != rl.RatioToken && !p.o.Ratio.PerToken {
		return
	}
	slopes := p.slopes16(nil, p.ratio.x, u)
	for i, w := range weights {
		if w == 0 || p.drop != nil && p.drop[i] {
			continue
		}
		if p.weight.X != nil {
			w *= p.weight.X[i]
		}
		if by := float64(w*slopes[i])*p.ratio.x[i] - path[i]; !math.IsNaN(by) {
			path[i] += by
			want[i] += by
		}
	}
}

// onBound reports whether a ratio lies on its clip bound to the bit, where a clamp passes its gradient or not.
func (p *policy) onBound() bool {
	u := p.ratioHalf()
	if u == 0 {
		return false
	}
	q := *p
	q.inclusive = !p.inclusive
	one, other := p.slopes16(nil, p.ratio.x, u), q.slopes16(nil, p.ratio.x, u)
	for i, m := range p.mask {
		if m && one[i] != other[i] {
			return true
		}
	}
	return false
}

// wideKL reports whether the estimates of a KL were computed in a wider type than the 16-bit one of its log-probs, as those that hold more
// bits than it show (OpenRLHF 0.11.2 compute_approx_kl: log_probs.float() − log_probs_base.float()).
func (c *Case) wideKL() bool {
	t := c.B.Tensors["kl"]
	if t == nil || t.Casts || t.Type == format.BF16 || t.Type == format.F16 {
		return false
	}
	grid := Grid(t.Data)
	return grid > 0 && grid < halfOf(c.B, "logp_ref")
}

// knowsWidePath reports whether the gradient of a KL term that is float32 beside log-probs of a 16-bit type is computed operation by
// operation.
func (p *policy) knowsWidePath() bool {
	if p.lp.Half == 0 || half(p.lp, p.ref) > 0 || p.beta == 0 || p.o.Kind == rl.LossGMPO {
		return false
	}
	switch p.o.KL.Grad {
	case rl.KLNaive:
		return p.o.KL.Kind == rl.KLK1 || p.o.KL.Kind == rl.KLK2 || p.o.KL.Kind == rl.KLAbs || p.o.KL.Kind == rl.KLK3
	case rl.KLStraightThroughK2:
		return true
	}
	return false
}

// wideWay is how the gradient of a float32 KL term reaches a tensor of a 16-bit type: cast once where the program has cast the log-probs, and
// of k3 once for each of its two ways, −w·β·e^{−d} and w·β, where it subtracts them twice (TRL: exp(ref − lp) − (ref − lp) − 1). Two of the
// three gradients are then added and rounded before the third one is.
type wideWay int

const (
	wideOnce wideWay = iota
	wideTwice
	wideLastFirst
	wideFirstFirst
	wideWays
)

// widePath stores the gradient by policy and KL term, given q.Want, what it is without a rounding, and path, that of the policy term.
func (p *policy) widePath(c *Case, q *Prediction, path, weights []float64, u float64) {
	got := c.B.Token("dlogp")
	var want, bound []float64
	least := 0
	for way := range wideWays {
		x, e := make([]float64, len(path)), make([]float64, len(path))
		misses := 0
		for i, g := range path {
			x[i] = q.Want[i]
			if math.IsNaN(g) || weights[i] == 0 {
				continue
			}
			x[i], e[i] = p.wideSum(g, q.Want[i]-g, p.lp.X[i]-p.ref.X[i], weights[i], i, way, u)
			if len(got) == len(path) && math.Abs(got[i]*c.B.Meta.DLogpScale-x[i]) > q.Bound[i]+e[i]+u*math.Abs(x[i]) {
				misses++
			}
		}
		if want == nil || misses < least {
			want, bound, least = x, e, misses
		}
		if least == 0 || p.o.KL.Kind != rl.KLK3 || p.o.KL.Grad != rl.KLNaive {
			break
		}
	}
	for i, x := range want {
		q.Want[i] = x
		q.Bound[i] += bound[i]
	}
}

// wideSum adds the gradient of the policy term, g in float32, and that of the KL term, k at d = lp − ref.
func (p *policy) wideSum(g, k, d, weight float64, i int, way wideWay, u float64) (x, e float64) {
	y, e := p.castPath(g, 0, i, u, false)
	direct := p.beta * weight
	if p.klInside && p.weight.X != nil {
		direct *= p.weight.X[i]
	}
	off := 8 * tol.U32 * math.Abs(k)
	if p.o.KL.Kind == rl.KLK3 && p.o.KL.Grad == rl.KLNaive {
		off = (elementary + 8) * tol.U32 * math.Abs(direct) * (math.Exp(-d) + 1)
	}
	if way == wideOnce || k == 0 {
		k, ke := step16(k, off, u, false)
		return y + k, e + ke
	}
	first, fe := step16(k-direct, off, u, false)
	second, se := step16(direct, 4*tol.U32*math.Abs(direct), u, false)
	e += fe + se
	switch way {
	case wideTwice:
		both, _ := rounded(first+second, u)
		return y + both, e
	case wideLastFirst:
		part, _ := rounded(y+second, u)
		return part + first, e
	}
	part, _ := rounded(y+first, u)
	return part + second, e
}
