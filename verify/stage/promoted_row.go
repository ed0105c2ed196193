package stage

import (
	"math"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// A ratio of a row whose log-probs have a 16-bit type has that type, too, where what its sum is divided by is an integer tensor, as the
// sum of a mask of integers is: rnd(exp(rnd(s/n))), s and n being numbers of the type (verl 0.9.1 compute_policy_loss_gspo, OpenRLHF
// 0.11.2 PolicyLoss). A length of float32 makes it float32 (TRL 1.16: clamp(min=1.0) of integers is float32). A dump does not say which
// its program has: the token losses tell.

// chooseRowRatio replaces the ratios of rows by those of the 16-bit type where the dumped token losses fit these better, or as well in
// a release that has them.
func (p *policy) chooseRowRatio(c *Case) {
	u := half(p.lp, p.old)
	if u == 0 || p.old.X == nil || p.o.Ratio.Level != rl.RatioSeqMean {
		return
	}
	narrow := *p
	narrow.rowHalf = true
	narrow.o.Clip = promotedClip(p.o.Clip, u)
	narrow.ratio = p.halfRatios(c.B.Cols, u)
	framework := strings.ToLower(c.B.Meta.Framework)
	prefers := framework == "verl" || framework == "openrlhf"
	wide, short := p.misses(c), narrow.misses(c)
	if short < wide || short == wide && prefers {
		*p = narrow
	}
}

// misses returns the number of dumped token losses beyond the bound of the policy term, 0 where there are none that it can be held to.
func (p *policy) misses(c *Case) (n int) {
	got := c.B.Token("token_loss")
	has := c.B.Meta.TokenLossIncludesKL
	if got == nil || p.o.KLBeta != 0 && (has == nil || *has) {
		return 0
	}
	want, bound, _ := p.terms(c.B)
	for i, x := range got {
		if !p.mask[i] {
			continue
		}
		w, b := want[i], bound[i]
		if p.weight.X != nil {
			w, b = p.weight.X[i]*w, math.Abs(p.weight.X[i])*b+math.Abs(w)*(p.weight.E(i)+p.u)
		}
		if !(math.Abs(x-w) <= b+p.u*math.Abs(w)) {
			n++
		}
	}
	return n
}

// halfRatios returns the ratios of rows operation by operation in the type. A sum, a quotient or an exponential that lies next to the
// middle between two numbers of the type may have been rounded to either: the error is what that moves.
func (p *policy) halfRatios(cols int, u float64) ratios {
	r := ratios{o: p.o.Ratio, x: make([]float64, len(p.lp.X)), err: make([]float64, len(p.lp.X)), log: p.ratio.log, logE: p.ratio.logE, count: p.ratio.count}
	at := func(s, n float64) (rho float64, open bool) {
		mean, near := rounded(s/n, u)
		if m := p.o.Ratio.SeqLogMax; m > 0 {
			mean = min(mean, m)
		}
		rho, open = rounded(math.Exp(mean), u)
		return rho, open || near
	}
	for row := range len(p.lp.X) / max(cols, 1) {
		var s, e, tokens float64
		for i := row * cols; i < (row+1)*cols; i++ {
			if p.mask[i] {
				s += p.lp.X[i] - p.old.X[i]
				e += p.old.E(i)
				tokens++
			}
		}
		s, _ = rounded(s, u) // it is a number of the type but for float64
		n, _ := rounded(max(tokens, 1)+p.o.Ratio.LenEps, u)
		rho, open := at(s, n)
		var off float64
		for _, x := range []float64{s - e, s + e} {
			other, near := at(x, n)
			off = max(off, math.Abs(other-rho))
			open = open || e > 0 && near
		}
		if open {
			off += 2 * u * rho
		}
		for i := row * cols; i < (row+1)*cols; i++ {
			r.x[i], r.err[i] = rho, off
		}
	}
	return r
}

// castRow returns the gradient of a cell through a ratio of its row in the type: rnd(rnd(rnd(Σ rnd(∂/∂ρ))·ρ)/n), the sum being taken in
// float32; g is what it is without a rounding.
func (p *policy) castRow(g float64, i int, u float64) (y, e float64) {
	if p.rowSlopes == nil || p.ratioInKL() { // what a KL term adds to the ratio is in g alone
		return g, 4 * u * math.Abs(g)
	}
	cols := len(p.lp.X) / max(len(p.ratio.count), 1)
	row := i / max(cols, 1)
	var sum, size float64
	open := false
	for k := row * cols; k < (row+1)*cols; k++ {
		x, near := rounded(p.rowSlopes[k], u)
		sum += x
		size += math.Abs(x)
		open = open || near
	}
	total, near := rounded(sum, u)
	off := foldError(cols, tol.U32) * size
	for _, s := range []float64{sum - off, sum + off} {
		other, _ := rounded(s, u)
		open = open || other != total
	}
	open = open || near
	y, near = rounded(total*p.ratio.x[i], u)
	open = open || near
	n, _ := rounded(p.ratio.count[row], u)
	y, near = rounded(y/n, u)
	if open || near { // a step of a term, of the sum, or of what follows
		e = 4*u*math.Abs(y) + 2*u*size*p.ratio.x[i]/n
	}
	return y, e
}
