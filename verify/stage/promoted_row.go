package stage

import (
	"math"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// A ratio of a row whose log-probs have a 16-bit type has that type, too, where what its sum is divided by is an integer tensor, as the
// sum of a mask of integers is: rnd(exp(rnd(s/n))), s and n being numbers of the type (verl 0.9.1 compute_policy_loss_gspo, OpenRLHF
// 0.11.2 PolicyLoss). A length of float32 makes it float32 (TRL 1.16: clamp(min=1.0) of integers is float32), and a mask of float32 the
// sum, too. A dump does not say which its program has: the token losses tell, or the estimates of a KL that have the ratio.

// chooseRowRatio replaces the ratios of rows by those of another type where these leave fewer of what was dumped beyond its bound, or as
// many in a release that has them.
func (p *policy) chooseRowRatio(c *Case, misses func(*policy) int) {
	u := half(p.lp, p.old)
	if u == 0 || p.old.X == nil || p.o.Ratio.Level != rl.RatioSeqMean {
		return
	}
	narrow, loose := *p, *p
	narrow.rowHalf = true
	narrow.o.Clip = promotedClip(p.o.Clip, u)
	narrow.ratio = p.halfRatios(c.B.Cols, u)
	loose.old = p.loose
	loose.ratio = c.ratios(p.lp, p.loose, p.mask, p.o.Ratio)
	ways := []policy{*p, narrow, loose}
	if framework := strings.ToLower(c.B.Meta.Framework); framework == "verl" || framework == "openrlhf" {
		ways[0], ways[1] = ways[1], ways[0]
	}
	least := -1
	var tied []policy
	for _, way := range ways {
		switch n := misses(&way); {
		case least < 0 || n < least:
			*p, least, tied = way, n, nil
		case n == least:
			tied = append(tied, way)
		}
	}
	p.tied = tied
}

// klRatios returns the ratios that multiply the estimates of a KL.
func (c *Case) klRatios(lp, old, ref Input, by rl.RatioOptions, o rl.KLOptions) ratios {
	p := &policy{lp: lp, old: old, mask: c.lossMask()}
	p.o.Ratio = by
	got := c.B.Token("kl")
	if half(lp, old) > 0 && old.X != nil && lp.X != nil {
		p.promotedOld(c.B.Rows, c.B.Cols)
	}
	p.ratio = c.ratios(lp, p.old, p.mask, by)
	if got != nil && half(lp, ref) > 0 {
		p.chooseRowRatio(c, func(q *policy) int {
			_, n := k3FormOf(got, c.B.Mask, lp, ref, o, &q.ratio)
			return n
		})
	}
	return p.ratio
}

// misses returns the number of dumped token losses beyond their bound, 0 where there are none that can be predicted. Where nobody says whether
// they hold the KL term it is that of the better reading.
func (p *policy) misses(c *Case) int {
	if c.B.Token("token_loss") == nil {
		return 0
	}
	least, has := -1, c.B.Meta.TokenLossIncludesKL
	for _, with := range []bool{false, true} {
		if with && p.beta == 0 || p.beta != 0 && has != nil && *has != with {
			continue
		}
		var kl Input
		if with {
			if kl = (Input{X: c.B.Token("kl"), Half: c.half("kl")}); kl.X == nil {
				continue
			}
		}
		if n := p.tokenLoss(c, kl).wrong(c, "token_loss"); least < 0 || n < least {
			least = n
		}
	}
	return max(least, 0)
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

// rowPaths stores what every token of a row has in its gradient through a ratio of the row that has the 16-bit type, and how far roundings
// that are open can move it,
//
//	rnd(rnd(∂/∂ρ·ρ)/n)
//
// more being what the estimates of the KL add to ∂/∂ρ, nil without any. Where the ratio is spread over the tokens before the surrogate
// (verl, OpenRLHF), ∂/∂ρ is the sum over them of what [policy.surrogatePath] says, in float32, rounded once. Where the surrogate is one of
// the row that is spread over the tokens (TRL), the weights of these are summed and rounded, and what is taken of them is that of a token.
func (p *policy) rowPaths(cols int, more []float64, way roundingWay, u float64) {
	p.rowGrad, p.rowGradE = make([]float64, len(p.lp.X)), make([]float64, len(p.lp.X))
	for row, n := range p.ratio.count {
		lo, hi := row*cols, (row+1)*cols
		var sum, kl, size float64
		first, open := -1, false
		for i := lo; i < hi; i++ {
			if p.reach[i] == 0 {
				continue
			}
			if first < 0 {
				first = i
			}
			w, near := p.toSurrogate(i, u)
			open = open || near
			var k float64
			if more != nil {
				k = more[i]
			}
			size += math.Abs(w*p.adv.X[i]) + math.Abs(k)
			if way.whole {
				sum, kl = sum+w, kl+k
				continue
			}
			x, near := p.ofRatio(w, k, i, u, way.late)
			sum, open = sum+x, open || near
		}
		if first < 0 {
			continue
		}
		settle := func(x float64) float64 { // a sum in float32 may be rounded to either side
			y, near := rounded(x, u)
			for _, s := range []float64{-1, 1} {
				other, _ := rounded(x+s*foldError(cols, tol.U32)*size, u)
				near = near || other != y
			}
			open = open || near
			return y
		}
		var total float64
		if !way.whole {
			total = settle(sum)
		} else {
			if p.lossHalf() == u {
				sum = settle(sum)
			}
			var near bool
			total, near = p.ofRatio(sum, settle(kl), first, u, way.late)
			open = open || near
		}
		y, near := rounded(total*p.ratio.x[first], u)
		open = open || near
		n, _ := rounded(n, u)
		y, near = rounded(y/n, u)
		var e float64
		if open || near { // a step of a term, of the sum, or of what follows
			e = 4*u*math.Abs(y) + 2*u*size*p.ratio.x[first]/n
		}
		for i := lo; i < hi; i++ {
			p.rowGrad[i], p.rowGradE[i] = y, e
		}
	}
}

// rowPathed reports whether the gradient of the policy term is one of rows.
func (p *policy) rowPathed() bool { return p.rowHalf && !p.o.Ratio.PerToken && p.uses && p.clipped() }
