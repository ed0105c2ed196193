package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
)

// terms returns the policy term of every cell without weight and KL, its bound, and where a decision lies within its own error
// the value of the other one; alt is nil for losses that are continuous. What masked cells hold is of no use.
//
// Continuous functions of the ratio are evaluated at both ends of its error, which carries the kinks of maxima and clips along;
// what is written beside each kind is the rounding that is added.
func (p *policy) terms(b *dump.Batch) (loss, bound, alt []float64) {
	n := b.Rows * b.Cols
	bound = make([]float64, n)
	u, adv, lp := p.u, p.adv, p.lp
	switch p.o.Kind {
	case rl.LossPPO, rl.LossGSPO, rl.LossLUSPO, rl.LossClipCov, rl.LossKLCov:
		loss = p.surrogate(bound)
	case rl.LossSAPO:
		loss = p.sapo(bound)
	case rl.LossReinforce: // −A·lp: u
		loss, _ = rl.Reinforce(nil, nil, lp.X, adv.X, nil)
		for i, l := range loss {
			bound[i] = u*math.Abs(l) + (math.Abs(adv.X[i])+adv.E(i))*lp.E(i) + math.Abs(lp.X[i])*adv.E(i)
			if half := p.lossHalf(); half > 0 {
				loss[i], _ = rounded(l, half)
				bound[i] = 0
			}
		}
	case rl.LossCISPO, rl.LossVESPO, rl.LossDPPOTV, rl.LossDPPOKL: // −w·A·lp: e_w and 2u
		w, e, other := p.detached(b)
		loss, _ = rl.Reinforce(nil, nil, lp.X, adv.X, w)
		alt = other
		half := p.lossHalf()
		for i, l := range loss {
			a := math.Abs(adv.X[i])
			if half > 0 {
				loss[i], bound[i] = scored(w[i], e[i], adv.X[i], lp.X[i], half)
				continue
			}
			product := (a+adv.E(i))*lp.E(i) + math.Abs(lp.X[i])*adv.E(i)
			bound[i] = e[i]*(a*math.Abs(lp.X[i])+product) + 2*u*math.Abs(l) + math.Abs(w[i])*product
			bound[i] += underflow(p.unit, w[i], a, lp.X[i])
			if alt != nil {
				alt[i] *= -adv.X[i] * lp.X[i]
			}
		}
	case rl.LossDRO: // −A·lp + ½β·d²: u on the first, d with u and the square with 3u, u on the sum
		loss, _ = rl.DRO(nil, nil, lp.X, p.denominator().X, adv.X, p.o.DROBeta)
		for i, l := range loss {
			d := lp.X[i] - p.denominator().X[i]
			e := lp.E(i) + p.denominator().E(i) + u*math.Abs(d)
			bound[i] = u*math.Abs(adv.X[i]*lp.X[i]) + (math.Abs(adv.X[i])+adv.E(i))*lp.E(i) + math.Abs(lp.X[i])*adv.E(i) +
				p.o.DROBeta*(math.Abs(d)*e+e*e/2+2*u*d*d) + u*math.Abs(l)
		}
	case rl.LossGMPO:
		loss = p.geometric(b, bound)
	}
	switch p.o.Kind {
	case rl.LossClipCov:
		alt = p.clipCov(b)
	case rl.LossKLCov:
		alt = p.klCov(b, loss, bound)
	}
	return loss, bound, alt
}

// denominator returns the log-probs of the start of the update, logp_new itself for a detached copy.
func (p *policy) denominator() Input {
	if p.old.X == nil {
		return p.lp
	}
	return p.old
}

// shifted returns the ratios moved by their errors, times sign.
func (p *policy) shifted(sign float64) []float64 {
	x := make([]float64, len(p.ratio.x))
	for i, r := range p.ratio.x {
		x[i] = r + sign*p.ratio.err[i]
	}
	return x
}

// surrogate returns the clipped surrogate: u for the product on the branch of the ratio; 3u on that of a bound, which is
// rounded twice, in 1 ± ε and to the format. kl_cov clips nothing.
func (p *policy) surrogate(bound []float64) []float64 {
	clip := p.o.Clip
	if p.o.Kind == rl.LossKLCov {
		clip = rl.NoClip
	}
	adv := p.adv.X
	if u := p.ratioHalf(); u > 0 && p.adv.Half == u {
		return p.rounds(bound, u)
	}
	loss, scratch := rl.PPO(nil, nil, p.ratio.x, adv, clip)
	for _, sign := range []float64{-1, 1} {
		moved := p.shifted(sign)
		rl.PPO(moved, scratch, moved, adv, clip)
		for i, l := range moved {
			bound[i] = larger(bound[i], math.Abs(l-loss[i]))
		}
	}
	for i, l := range loss {
		r := p.ratio.x[i]
		k := 3.0
		if l == float64(-adv[i]*r) {
			k = 1
		}
		bound[i] += k * p.u * math.Abs(l)
		if e := p.adv.E(i); e > 0 {
			if adv[i] != 0 {
				r = max(r, math.Abs(l/adv[i]))
			}
			bound[i] += e * (r + p.ratio.err[i])
		}
		bound[i] += underflow(p.unit, adv[i], r)
	}
	return loss
}

// rounds is surrogate where its products have a 16-bit type: what a ratio that is open can move them by.
func (p *policy) rounds(bound []float64, u float64) (loss []float64) {
	loss = make([]float64, len(p.ratio.x))
	for i, r := range p.ratio.x {
		loss[i], _, _ = p.surrogate16(r, p.adv.X[i], u)
		for _, s := range []float64{-1, 1} {
			moved, _, _ := p.surrogate16(r+s*p.ratio.err[i], p.adv.X[i], u)
			bound[i] = larger(bound[i], math.Abs(moved-loss[i]))
		}
	}
	return loss
}

// larger is max that keeps neither NaN: a masked cell may hold anything.
func larger(a, b float64) float64 {
	if b > a {
		return b
	}
	return a
}

// tau32 is the rounding of sapo's temperatures to float32, which TRL does whatever the format of the rest.
const tau32 = 0x1p-24

// sapo returns the soft-gated surrogate −A·(4/τ)·σ(x), x = τ(ρ − 1): ρ − 1 and x one u each, σ e_exp and 2u, three products.
func (p *policy) sapo(bound []float64) []float64 {
	loss, slope := rl.SAPO(nil, nil, p.ratio.x, p.adv.X, p.o.TauPos, p.o.TauNeg)
	scratch := make([]float64, len(loss))
	for _, sign := range []float64{-1, 1} {
		moved := p.shifted(sign)
		rl.SAPO(moved, scratch, moved, p.adv.X, p.o.TauPos, p.o.TauNeg)
		for i, l := range moved {
			bound[i] = larger(bound[i], math.Abs(l-loss[i]))
		}
	}
	for i, l := range loss {
		r := p.ratio.x[i]
		bound[i] += math.Abs(slope[i])*(2*p.u+tau32)*math.Abs(r-1) + math.Abs(l)*((elementary+6)*p.u+tau32)
		if p.adv.E(i) > 0 && p.adv.X[i] != 0 {
			bound[i] += p.adv.E(i) * (math.Abs(l) + bound[i]) / math.Abs(p.adv.X[i])
		} else if p.adv.E(i) > 0 {
			bound[i] += p.adv.E(i) * 4 / min(p.o.TauPos, p.o.TauNeg)
		}
	}
	return loss
}

// detached returns the weight of a score-function loss, its error, and where a decision may fall either way the other weight.
func (p *policy) detached(b *dump.Batch) (w, e, alt []float64) {
	e = make([]float64, len(p.lp.X))
	if p.o.Kind == rl.LossVESPO {
		if p.old.Half > 0 {
			phi := p.promotedGamma(b.Rows, b.Cols)
			return phi.X, phi.Err, nil
		}
		return p.vespo(b, e), e, nil
	}
	r := p.ratio.x
	if p.o.Kind == rl.LossCISPO { // a clip of the ratio: its error, or 2u of the bound
		w = rl.CISPOWeight(nil, r, p.o.Clip)
		for _, sign := range []float64{-1, 1} {
			moved := p.shifted(sign)
			rl.CISPOWeight(moved, moved, p.o.Clip)
			for i, x := range moved {
				e[i] = larger(e[i], math.Abs(x-w[i]))
			}
		}
		for i, x := range w {
			if x != r[i] {
				e[i] += 2 * p.u * math.Abs(x)
			}
		}
		return w, e, nil
	}
	div := rl.DPPOTV
	if p.o.Kind == rl.LossDPPOKL {
		div = rl.DPPOKL
	}
	old := p.denominator()
	w = rl.DPPOWeight(nil, r, p.lp.X, old.X, p.adv.X, div, p.o.DPPOLimit, p.o.Clip)
	alt = make([]float64, len(w))
	for i, x := range w {
		kept := min(r[i], p.o.DPPOLimit)
		e[i] = p.ratio.err[i]
		if x == 0 {
			e[i] = 0
		}
		alt[i] = math.NaN()
		if p.trustEdge(i, div) {
			e[i] = p.ratio.err[i]
			alt[i] = kept - x
		}
	}
	return w, e, alt
}

// trustEdge reports whether cell i lies on the edge of dppo's trust region within the error of what decides: of p − q with
// e_exp on each, or of D, whose terms carry it with the logarithm of a quotient of complements.
func (p *policy) trustEdge(i int, div rl.DPPODivergence) bool {
	u, old := p.u, p.denominator()
	a, b := math.Exp(p.lp.X[i]), math.Exp(old.X[i])
	ea, eb := a*(elementary*u+p.lp.E(i)), b*(elementary*u+old.E(i))
	limit := p.o.Clip.Low
	if p.adv.X[i] > 0 {
		limit = p.o.Clip.High
	}
	if div == rl.DPPOTV {
		return onEdge(math.Abs(a-b), ea+eb+u*math.Abs(a-b), limit, u)
	}
	d, l := old.X[i]-p.lp.X[i], math.Log((1-b+1e-8)/(1-a+1e-8))
	x := float64(b*d) + float64((1-b)*l)
	e := b*(u*math.Abs(d)*2+p.lp.E(i)+old.E(i)) + eb*math.Abs(d) +
		(1-b)*((eb+2*u)/(1-b+1e-8)+(ea+2*u)/(1-a+1e-8)+u+elementary*u*math.Abs(l)) + (eb+2*u)*math.Abs(l) + u*math.Abs(x)
	return onEdge(x, e, limit, u) || x > limit && math.Abs(a-b) <= ea+eb // inside the region the sign of p − q decides nothing
}

// vespo returns the weight φ = exp(λ + k·s − λ·W), W = e^s, s the clamped sum of a row's log-ratios and of the logarithms of the
// engine's weights, each with e_w/w and e_log of its own. With e_s of the sum as for other ratios,
//
//	e_φ/φ = |k|·e_s + λ·W·(e^{e_s} − 1 + e_exp) + 3u·(λ + |k·s| + λ·W) + e_exp
func (p *policy) vespo(b *dump.Batch, e []float64) []float64 {
	o, old, u := p.o.VESPO, p.denominator(), p.u
	w := rl.VESPOWeight(nil, p.lp.X, old.X, p.adv.X, p.gamma.X, p.mask, b.Rows, b.Cols, o)
	for r := range b.Rows {
		var s, size, es, n float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if p.mask[i] {
				d := max(min(p.lp.X[i]-old.X[i], 20), -20)
				s += d
				size += math.Abs(d)
				es += p.lp.E(i) + old.E(i)
				n++
				if g := p.gamma; g.X != nil {
					l := max(min(math.Log(g.X[i]), 20), math.Log(1e-8))
					s += l
					size += math.Abs(l)
					es += elementary * u * math.Abs(l)
					if e := g.E(i); e > 0 && g.X[i] > 1e-8 {
						es += min(ofLog(e/g.X[i]), 40)
					}
				}
			}
		}
		es += (u + foldError(int(n), p.unit)) * size
		s = max(min(s, 20), math.Log(1e-8))
		es += elementary * u * math.Abs(s)
		whole := math.Exp(s)
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			k, lambda := o.KPos, o.LambdaPos
			if p.adv.X[i] < 0 {
				k, lambda = o.KNeg, o.LambdaNeg
			}
			arg := k*es + lambda*whole*(math.Expm1(es)+elementary*u) + 3*u*(lambda+math.Abs(k*s)+lambda*whole)
			e[i] = w[i]*(math.Expm1(arg)+elementary*u) + expUnderflow(p.unit)
		}
	}
	return w
}

// geometricWeights takes the importance weights of gmpo into its advantages. The loss of a row is linear in them, and verl 0.9.1
// (compute_policy_loss_geo_mean) multiplies it by the geometric mean of the row's weights,
//
//	W = exp(Σ m·ln(w + 1e-10)/(n + eps)), relative error (Σ(e_w/w + 3u·|ln w|) + fold(n)·Σ|ln w|)/n + 4u.
func (p *policy) geometricWeights(rows, cols int) {
	const least = 1e-10 // is added to every weight
	adv := Input{X: slices.Clone(p.adv.X), Err: make([]float64, len(p.adv.X)), Half: p.adv.Half}
	for r := range rows {
		var sum, size, e, n float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if p.mask[i] {
				w := p.weight.X[i] + least
				l := math.Log(w)
				sum, size, n = sum+l, size+math.Abs(l), n+1
				e += (p.weight.E(i)+p.unit*w)/w + 3*p.u*math.Abs(l)
			}
		}
		n = max(n+p.o.GMPO.LenEps, 1)
		w := math.Exp(sum / n)
		rel := math.Expm1((e+foldError(int(n), p.unit)*size)/n) + elementary*p.u
		for i := r * cols; i < (r+1)*cols; i++ {
			adv.X[i] *= w
			adv.Err[i] = w*(1+rel)*p.adv.E(i) + (rel+2*p.u)*math.Abs(adv.X[i])
		}
	}
	p.adv, p.weight = adv, Input{}
}

// geometric returns the row losses of gmpo in every cell: ℓ = −Ā·exp(s), s = Σc/n, with the errors of Ā, 2u and those of a sum
// of n terms, and e_s of the clipped log-ratios, which clips do not enlarge.
func (p *policy) geometric(b *dump.Batch, bound []float64) []float64 {
	old, u := p.denominator(), p.u
	loss := make([]float64, b.Rows*b.Cols)
	perRow, _ := rl.GMPO(nil, nil, p.lp.X, old.X, p.adv.X, p.mask, b.Rows, b.Cols, p.o.GMPO)
	for r := range b.Rows {
		var n, size, e, a, ae float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if p.mask[i] {
				d := math.Abs(p.lp.X[i] - old.X[i])
				if l := p.o.GMPO.LogClamp; l > 0 {
					d = min(d, l)
				}
				size += d
				e += p.lp.E(i) + old.E(i) + 3*u*d
				a += math.Abs(p.adv.X[i])
				ae += p.adv.E(i)
				n++
			}
		}
		n = max(n+p.o.GMPO.LenEps, 1)
		es := (e+foldError(int(n), p.unit)*size)/n + 2*u*size/n
		ae = (ae + (foldError(int(n), p.unit)+2*u)*a) / n
		grown := math.Abs(perRow[r])*expError(es, u) + ae*math.Exp(size/n)*(1+es)
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			loss[i] = perRow[r]
			bound[i] = grown + 2*u*math.Abs(perRow[r])
		}
	}
	return loss
}

// covariance returns the products of deviations by which tokens are chosen, file by file, and their errors:
//
//	e = |A − Ā|·(e_mean(lp) + u·|lp − mean|) + |lp − mean|·(e_mean(A) + u·|A − Ā|) + u·|cov|
func (p *policy) covariance(b *dump.Batch, visit func(lo, hi int, cov, e []float64)) {
	for _, f := range b.Files {
		lo, hi := f.Lo*b.Cols, f.Hi*b.Cols
		mask, adv, lp := p.mask[lo:hi], p.adv.X[lo:hi], p.lp.X[lo:hi]
		eps := p.o.Cov.MeanEps
		cov := rl.TokenCovariance(nil, lp, adv, mask, eps)
		e := make([]float64, len(cov))
		var n, a, l, sa, sl, ea, el float64
		for i, m := range mask {
			if m {
				n++
				a += adv[i]
				l += lp[i]
				sa += math.Abs(adv[i])
				sl += math.Abs(lp[i])
				ea += p.adv.E(lo + i)
				el += p.lp.E(lo + i)
			}
		}
		// verl's 1e-8 beside n moves a mean by 1e-8/n of itself.
		fold := foldError(int(n), p.unit) + p.u + 1e-8/max(n, 1)
		a, l, sa, sl = a/n, l/n, (fold*sa+ea)/n, (fold*sl+el)/n
		half := p.lp.Half // in which the sum of log-probs, their mean and the difference from it are rounded
		sl += 3 * half * math.Abs(l)
		for i := range e {
			da, dl := math.Abs(adv[i]-a), math.Abs(lp[i]-l)
			e[i] = da*(sl+p.lp.E(lo+i)+p.u*dl) + dl*(sa+p.adv.E(lo+i)+p.u*da) + p.u*math.Abs(cov[i]) + half*da*dl
		}
		visit(lo, hi, cov, e)
	}
}

// clipCov returns 0 as the other value of every token that clip_cov may leave out; which of them it draws nobody knows.
func (p *policy) clipCov(b *dump.Batch) []float64 {
	alt := slices.Repeat([]float64{math.NaN()}, b.Rows*b.Cols)
	p.covariance(b, func(lo, hi int, cov, e []float64) {
		for i, c := range cov {
			if p.mask[lo+i] && c+e[i] > p.o.Cov.Lower && c-e[i] < p.o.Cov.Upper {
				alt[lo+i] = 0
			}
		}
	})
	return alt
}

// heldBack visits the tokens that count and says of each whether kl_cov holds it back, and whether that is open: its covariance is
// not beyond that of the nearest token of the other side within both errors.
func (p *policy) heldBack(b *dump.Batch, visit func(i int, held, open bool)) {
	p.covariance(b, func(lo, hi int, cov, e []float64) {
		held := rl.KLCovSelect(nil, cov, p.mask[lo:hi], p.o.Cov)
		least, most := math.Inf(1), math.Inf(-1) // of those held, of the others
		for i, h := range held {
			if h {
				least = min(least, cov[i]-e[i])
			} else if p.mask[lo+i] {
				most = max(most, cov[i]+e[i])
			}
		}
		for i, h := range held {
			if p.mask[lo+i] {
				visit(lo+i, h, h && !(cov[i]-e[i] > most) || !h && !(cov[i]+e[i] < least))
			}
		}
	})
}

// klCov adds the penalty coef·|lp − old| to the tokens that kl_cov holds back, and returns the loss under the other decision where that
// is open. Of log-probs in a 16-bit type the difference and the product with the coefficient have that type.
func (p *policy) klCov(b *dump.Batch, loss, bound []float64) []float64 {
	alt := slices.Repeat([]float64{math.NaN()}, b.Rows*b.Cols)
	old, u := p.denominator(), p.u
	p.heldBack(b, func(i int, held, open bool) {
		base := loss[i]
		extra := float64(p.o.Cov.Coef * math.Abs(p.lp.X[i]-old.X[i]))
		e := p.o.Cov.Coef*(p.lp.E(i)+old.E(i)) + 2*u*extra
		if x := p.stored.X; x != nil {
			h := old.Half
			d, _ := rounded(math.Abs(p.lp.X[i]-x[i]), h)
			var near bool
			if extra, near = rounded(float64(p.o.Cov.Coef*d), h); near {
				e = 2 * h * extra
			} else {
				e = 0
			}
		}
		if held || open {
			bound[i] += e + u*math.Abs(base+extra)
		}
		if held {
			loss[i] = base + extra
		}
		switch {
		case open && held:
			alt[i] = base
		case open:
			alt[i] = base + extra
		}
	})
	return alt
}
