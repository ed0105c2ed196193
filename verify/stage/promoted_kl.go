package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// k3Form is an order of operations in which programs write k3 = e^δ − δ − 1, δ = ref − lp. In float32 they agree within the bound of
// [klBound]; in a 16-bit type each gives numbers of its own, so that the form of a run is told by them.
type k3Form int

const (
	k3ExpFirst k3Form = iota // (e^δ − δ) − 1: TRL, verl
	k3OneFirst               // (e^δ − 1) − δ: OpenRLHF
	k3Expm1                  // expm1(δ) − δ: open-instruct
)

var k3Forms = []k3Form{k3ExpFirst, k3OneFirst, k3Expm1}

// slope returns the derivative of the exponential with respect to δ = −d as autograd has it in a type of unit roundoff u: e^δ, and of
// expm1 the result plus 1.
func (form k3Form) slope(d, u float64) (f float64, open bool) {
	if form != k3Expm1 {
		return rounded(math.Exp(-d), u)
	}
	e, open := rounded(math.Expm1(-d), u)
	f, _ = rounded(e+1, u)
	return f, open
}

// klStep is what the gradient of an estimate of a KL is made of: the difference d = lp − ref of its type, and of k3 the slope of the
// exponential at it, which is open or not.
type klStep struct {
	d, slope float64
	open     bool
}

// steps returns those of the cells.
func (form k3Form) steps(lp, ref Input, o rl.KLOptions) []klStep {
	u := half(lp, ref)
	all := make([]klStep, len(lp.X))
	for i := range all {
		all[i].d, _ = rounded(lp.X[i]-ref.X[i], u)
		if o.Kind == rl.KLK3 {
			all[i].slope, all[i].open = form.slope(all[i].d, u)
		}
	}
	return all
}

// value returns k3, and how far a rounding that is open can move it.
func (form k3Form) value(d, u float64) (k, bound float64) {
	f, open := rounded(math.Exp(-d), u)
	if form == k3Expm1 {
		f, open = rounded(math.Expm1(-d), u)
	}
	switch form {
	case k3Expm1:
		k, _ = rounded(f+d, u)
	case k3OneFirst:
		k, _ = rounded(f-1, u)
		k, _ = rounded(k+d, u)
	default:
		k, _ = rounded(f+d, u)
		k, _ = rounded(k-1, u)
	}
	if open { // one step of f, and one of what it is added to
		bound = 4 * u * max(math.Abs(f), math.Abs(d))
	}
	return k, bound
}

// k3FormOf returns the form that leaves the fewest of the dumped estimates got, which hold the ratio where ratio is not nil, beyond what
// rounding leaves open, and how many.
func k3FormOf(got []float64, mask []bool, lp, ref Input, o rl.KLOptions, ratio *ratios) (best k3Form, least int) {
	u := half(lp, ref)
	off := u // of the product with the ratio
	if grid := Grid(got); grid > 0 && grid < u {
		off = 2 * tol.U32
	}
	misses := make([]int, len(k3Forms))
	for n, form := range k3Forms {
		p := &Prediction{Want: make([]float64, len(got)), Bound: make([]float64, len(got))}
		if !promotedKL(p, lp, ref, o, form) {
			return k3ExpFirst, 0
		}
		for i, x := range got {
			want, bound := p.Want[i], p.Bound[i]
			if ratio != nil {
				want, bound = want*ratio.x[i], bound*ratio.x[i]+math.Abs(want)*ratio.err[i]
				bound += off * math.Abs(want)
			}
			if mask[i] && !(math.Abs(x-want) <= bound) {
				misses[n]++
			}
		}
	}
	least = slices.Min(misses)
	return k3Forms[slices.Index(misses, least)], least
}

// promotedKL stores the estimates k1, k2, |d| and k3 as a program computes them operation by operation in the type of lp and ref; the
// bound is 0 but where a rounding is open. It reports false for what it does not know.
func promotedKL(p *Prediction, lp, ref Input, o rl.KLOptions, form k3Form) bool {
	u := half(lp, ref)
	if u == 0 || o.Kind == rl.KLRatioD || o.Kind == rl.KLSeqProb {
		return false
	}
	clamps := o.ClampAll || o.Kind == rl.KLK3
	for i := range p.Want {
		d, _ := rounded(lp.X[i]-ref.X[i], u)
		if clamps && o.ClampIn > 0 {
			if d = max(d, -o.ClampIn); !o.ClampInBelow {
				d = min(d, o.ClampIn)
			}
		}
		k, bound := d, 0.0
		switch o.Kind {
		case rl.KLAbs:
			k = math.Abs(d)
		case rl.KLK2:
			k, _ = rounded(d*d, u)
			k /= 2
		case rl.KLK3:
			k, bound = form.value(d, u)
		}
		if clamps && o.ClampOut > 0 {
			k = max(min(k, o.ClampOut), -o.ClampOut)
		}
		p.Want[i], p.Bound[i] = k, bound
	}
	return true
}

// promotedEstimates is [promotedKL] in the form that the dumped estimates show, see [k3FormOf]. Where there are none the form is open: the
// bound spans all of them.
func (c *Case) promotedEstimates(p *Prediction, lp, ref Input, o rl.KLOptions, ratio *ratios) bool {
	p.Half = half(lp, ref)
	if o.Kind != rl.KLK3 || p.Half == 0 {
		return promotedKL(p, lp, ref, o, k3ExpFirst)
	}
	if got := c.B.Token("kl"); got != nil {
		form, _ := k3FormOf(got, c.B.Mask, lp, ref, o, ratio)
		return promotedKL(p, lp, ref, o, form)
	}
	promotedKL(p, lp, ref, o, k3ExpFirst)
	for _, form := range k3Forms[1:] {
		q := &Prediction{Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want))}
		promotedKL(q, lp, ref, o, form)
		for i, w := range q.Want {
			p.Bound[i] = larger(p.Bound[i], math.Abs(w-p.Want[i])+q.Bound[i])
		}
	}
	return true
}

// knowsKLPath reports whether the gradient of the KL term in a 16-bit type is computed operation by operation.
func (p *policy) knowsKLPath() bool {
	o := p.o.KL
	if half(p.lp, p.ref) == 0 || p.beta == 0 || p.o.Kind == rl.LossGMPO {
		return false
	}
	switch o.Grad {
	case rl.KLNaive, rl.KLISCorrected:
		return o.Kind == rl.KLK1 || o.Kind == rl.KLK2 || o.Kind == rl.KLAbs || o.Kind == rl.KLK3
	case rl.KLStraightThroughK2:
		return o.ISCap == 0
	}
	return false
}

// klPaths returns what the estimate of a cell adds to its gradient in a type of unit roundoff u, d = lp − ref being of it, g the gradient
// with respect to the estimate, of each way from it to lp, and how far roundings that are open can move them:
//
//	k1   g                |d|  g·sign(d)          k2, and what has its gradient   rnd(g·d), ½ and 2 being exact
//	k3   −rnd(g·f) and g, added before they reach lp, or in lp where lp − ref was written twice
func klPaths(o rl.KLOptions, of klStep, g, u float64) (first, second, e float64) {
	d := of.d
	switch {
	case o.Grad == rl.KLStraightThroughK2 || o.Kind == rl.KLK2:
		first, near := rounded(g*d, u)
		if near {
			e = 2 * u * math.Abs(first)
		}
		return first, 0, e
	case o.Kind == rl.KLK3:
		product, near := rounded(g*of.slope, u)
		if of.open || near {
			e = 4 * u * math.Abs(product)
		}
		return -product, g, e
	case o.Kind == rl.KLAbs && d < 0:
		return -g, 0, 0
	case o.Kind == rl.KLAbs && d == 0:
		return 0, 0, 0
	}
	return g, 0, 0
}
