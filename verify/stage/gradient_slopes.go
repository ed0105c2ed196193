package stage

import (
	"math"

	"plumbline/reference/rl"
)

// slopes are derivatives of token losses, before the weights of the aggregation, with their errors.
type slopes struct {
	ratio, ratioE   []float64 // ∂/∂ρ at the ratio of the cell, importance weight included; nil if nothing is a function of ρ
	direct, directE []float64 // ∂/∂logp at constant ρ; nil if there is none
}

// slopes returns the derivatives of the token losses and their errors. A derivative that jumps where its variable lies within
// its own error of the jump may be anything between the values on both sides: torch halves it at equality.
func (p *policy) slopes(c *Case) slopes {
	n := len(p.lp.X)
	var s slopes
	if p.uses || p.ratioInKL() {
		s.ratio, s.ratioE = make([]float64, n), make([]float64, n)
	}
	s.direct, s.directE = make([]float64, n), make([]float64, n)
	switch p.o.Kind {
	case rl.LossPPO, rl.LossGSPO, rl.LossLUSPO, rl.LossClipCov, rl.LossKLCov, rl.LossSAPO:
		p.ratioSlopes(&s)
	case rl.LossReinforce:
		for i, a := range p.adv.X {
			s.direct[i], s.directE[i] = -a, p.adv.E(i)
		}
	case rl.LossCISPO, rl.LossVESPO, rl.LossDPPOTV, rl.LossDPPOKL:
		w, e, other := p.detached(c.B)
		for i, a := range p.adv.X {
			if other != nil && !math.IsNaN(other[i]) {
				e[i] += math.Abs(other[i] - w[i])
			}
			s.direct[i] = -w[i] * a
			s.directE[i] = (math.Abs(a)+p.adv.E(i))*e[i] + math.Abs(w[i])*p.adv.E(i) + p.u*math.Abs(w[i]*a) + underflow(p.unit, w[i], a)
		}
	case rl.LossDRO:
		old := p.denominator()
		for i, a := range p.adv.X {
			d := float64(p.o.DROBeta * (p.lp.X[i] - old.X[i]))
			s.direct[i] = d - a
			s.directE[i] = p.o.DROBeta*(p.lp.E(i)+old.E(i)) + 3*p.u*math.Abs(d) + p.u*math.Abs(d-a) + p.adv.E(i)
		}
	case rl.LossGMPO:
		p.geometricSlopes(c, &s)
	}
	if p.o.Kind == rl.LossKLCov {
		p.klCovSlopes(c, &s)
	}
	if p.weight.X != nil {
		for i, w := range p.weight.X {
			e := p.weight.E(i)
			if s.ratio != nil {
				s.ratioE[i] = (math.Abs(w)+e)*s.ratioE[i] + math.Abs(s.ratio[i])*e + p.u*math.Abs(w*s.ratio[i])
				s.ratio[i] *= w
			}
			s.directE[i] = (math.Abs(w)+e)*s.directE[i] + math.Abs(s.direct[i])*e + p.u*math.Abs(w*s.direct[i])
			s.direct[i] *= w
		}
	}
	if p.beta != 0 {
		p.klSlopes(&s)
	}
	return s
}

// ratioSlopes are those of the losses of the ratio: −A, 0, or of sapo −4A·σ(1 − σ), evaluated at both ends of the ratio's error,
// which 2u of a clip bound widen. Where the two operands of the maximum may be equal, half of −A is as good, even on the side of a
// bound where the clip does not act. Of sapo, with y = σ(x), x = τ(ρ − 1): y(1 − y) as autograd has it, with 1 − y rounded in units of 1,
// not of itself: (e_exp + 3u)·y, besides the products and the relative error of x.
func (p *policy) ratioSlopes(s *slopes) {
	n := len(p.lp.X)
	clip := p.o.Clip
	if p.o.Kind == rl.LossKLCov {
		clip = rl.NoClip
	}
	u := p.ratioHalf()
	at := func(d, x []float64) []float64 {
		scratch := make([]float64, n)
		switch {
		case p.o.Kind == rl.LossSAPO:
			_, d = rl.SAPO(scratch, d, x, p.adv.X, p.o.TauPos, p.o.TauNeg)
		case u > 0:
			d = p.slopes16(d, x, u)
		default:
			_, d = rl.PPO(scratch, d, x, p.adv.X, clip)
		}
		return d
	}
	at(s.ratio, p.ratio.x)
	for _, sign := range []float64{-1, 1} {
		x := make([]float64, n)
		for i, r := range p.ratio.x {
			if x[i] = r + sign*p.ratio.err[i]; u == 0 { // in 16 bits both the ratio and the bound are known
				x[i] += sign * 4 * p.u * r
			}
		}
		for i, d := range at(nil, x) {
			s.ratioE[i] = larger(s.ratioE[i], math.Abs(d-s.ratio[i]))
		}
	}
	for i, a := range p.adv.X {
		e := p.adv.E(i)
		if e >= math.Abs(a) && e > 0 { // the sign of A is open, and with it whether the clip acts
			e = 2 * (math.Abs(a) + e)
		}
		r := p.ratio.x[i]
		if m := p.ratio.err[i] + 4*p.u*r; p.o.Kind != rl.LossSAPO && u == 0 && min(math.Abs(r-1+clip.Low), math.Abs(r-1-clip.High)) <= m {
			s.ratioE[i] = larger(s.ratioE[i], math.Abs(a)/2)
		}
		s.ratioE[i] += e
		if p.o.Kind == rl.LossSAPO {
			tau := p.o.TauNeg
			if a > 0 {
				tau = p.o.TauPos
			}
			x := tau * (r - 1)
			y := 1 / (1 + math.Exp(-x))
			s.ratioE[i] += math.Abs(s.ratio[i])*(6*p.u+(2*p.u+tau32)*math.Abs(x)) + 4*math.Abs(a)*(elementary+3)*p.u*y
		}
	}
	for i, d := range p.drop {
		if d {
			s.ratio[i], s.ratioE[i] = 0, 0
		}
	}
}

// klCovSlopes adds the derivative of coef·|lp − old| of the tokens that kl_cov holds back.
func (p *policy) klCovSlopes(c *Case, s *slopes) {
	old, coef := p.denominator(), p.o.Cov.Coef
	if p.stored.X != nil {
		old = p.stored // the sign of what was subtracted, before the ratio was rounded
	}
	p.heldBack(c.B, func(i int, held, open bool) {
		d := p.lp.X[i] - old.X[i]
		if held && d != 0 {
			s.direct[i] += math.Copysign(coef, d)
		}
		switch {
		case open:
			s.directE[i] += coef
		case held && d != 0 && math.Abs(d) <= p.lp.E(i)+old.E(i):
			s.directE[i] += 2 * coef
		case held:
			s.directE[i] += p.u * coef
		}
	})
}

// geometricSlopes are those of gmpo, by the row loss and its bound; a log-ratio within u of its clip bound may be on either side.
func (p *policy) geometricSlopes(c *Case, s *slopes) {
	b, old := c.B, p.denominator()
	loss, bound, _ := p.terms(b)
	for i := range loss {
		d := p.lp.X[i] - old.X[i]
		e := p.lp.E(i) + old.E(i) + 4*p.u*math.Abs(d)
		near := math.Abs(d-p.o.GMPO.High) <= e || math.Abs(d+p.o.GMPO.Low) <= e
		a := p.adv.X[i]
		clipped := a > 0 && d > p.o.GMPO.High || a < 0 && d < -p.o.GMPO.Low || a == 0
		if l := p.o.GMPO.LogClamp; l > 0 {
			near = near || math.Abs(math.Abs(d)-l) <= e
			clipped = clipped || math.Abs(d) > l
		}
		near = near || p.adv.E(i) > 0 && p.adv.E(i) >= math.Abs(a)
		switch {
		case near:
			s.direct[i], s.directE[i] = loss[i], bound[i]+math.Abs(loss[i])
		case !clipped:
			s.direct[i], s.directE[i] = loss[i], bound[i]+4*p.u*math.Abs(loss[i])
		}
	}
}

// klSlopes adds the derivatives of β·KL. With k the estimator, k′ its derivative and e_d the error of d = lp − ref,
//
//	naive, score_function, straight_through_k2   direct:  k′, k′ + k, d or w·d
//	is_corrected, ratio_d                        direct:  ρ·k′,  ratio: k
//
// Besides what e_d does, the derivative of k3 is a difference of 1 and e^{−d}, and k itself one of e^{−d}, d and 1, which the paths
// of a gradient do not cancel before they are rounded: (e_exp + 6u)·(e^{−d} + |d| + 1); for the other kinds 4u·(|k| + |k′|).
func (p *policy) klSlopes(s *slopes) {
	o, old, u := p.o.KL, p.denominator(), p.u
	coarse := half(p.lp, p.ref)
	split := p.ratioInKL()
	if split {
		o.Grad = rl.KLNaive
		if o.Kind == rl.KLRatioD {
			o.Kind = rl.KLK1
		}
	}
	k, dk := rl.KL(nil, nil, p.lp.X, p.ref.X, old.X, o)
	for i := range k {
		beta, betaE := p.beta, 0.0
		if p.klInside && p.weight.X != nil {
			beta *= p.weight.X[i]
			betaE = math.Abs(p.beta) * p.weight.E(i)
		}
		d := p.lp.X[i] - p.ref.X[i]
		size := 4 * u * (math.Abs(k[i]) + math.Abs(dk[i]))
		if o.Kind == rl.KLK3 && d != 0 {
			size = (elementary + 6) * u * (math.Exp(-d) + math.Abs(d) + 1)
		}
		switch { // what of β, d, its functions and products is rounded to 16 bits
		case coarse == 0 || p.knowsKLPath():
		case o.Kind == rl.KLK3:
			size += 4 * coarse * (math.Exp(-d) + math.Abs(d) + 1)
		default:
			size += 3 * coarse * (math.Abs(k[i]) + math.Abs(dk[i]))
		}
		weight, weightE := 1.0, 0.0
		if o.Grad == rl.KLStraightThroughK2 && o.ISCap > 0 {
			weight = min(math.Exp(p.lp.X[i]-old.X[i]), o.ISCap)
			weightE = weight * expError(u*math.Abs(p.lp.X[i]-old.X[i])+p.lp.E(i)+old.E(i), u)
		}
		ke, dke, off := klVariation(o, d, k[i], dk[i], p.lp.E(i)+p.ref.E(i)+u*math.Abs(d), weight)
		if off {
			size = 0
		}
		dke += weightE * math.Abs(dk[i])
		rho, rhoE := 1.0, 0.0
		if split {
			rho, rhoE = p.ratio.x[i], p.ratio.err[i]
			s.ratio[i] += float64(beta * k[i])
			s.ratioE[i] += (math.Abs(beta)+betaE)*(ke+size+2*u*math.Abs(k[i])) + betaE*math.Abs(k[i])
		}
		direct := float64(beta * float64(rho*dk[i]))
		s.direct[i] += direct
		s.directE[i] += (math.Abs(beta)+betaE)*((rho+rhoE)*(dke+size)+rhoE*math.Abs(dk[i])) + betaE*math.Abs(rho*dk[i]) + 3*u*math.Abs(direct)
	}
}

// klVariation returns by how much an estimator k at d and its derivative dk can change when d changes by e:
//
//	k1   e and 0                    k2   |d|·e + ½e² and e
//	|d|  e and 0, 2 where |d| ≤ e   k3   |e^{−d} − 1|·e + e^{−d}·e² and e^{−d}·(e + e²)
//
// to which score_function adds the first to the second, and straight_through_k2 has w·e for it. Near a clamp the derivative can be that
// of either side; beyond it both are constants, and off is true.
func klVariation(o rl.KLOptions, d, k, dk, e, w float64) (ke, dke float64, off bool) {
	if e == 0 {
		return 0, 0, false
	}
	free := o
	free.ClampIn, free.ClampOut, free.Grad = 0, 0, rl.KLNaive
	switch o.Kind {
	case rl.KLK2:
		ke, dke = math.Abs(d)*e+e*e/2, e
	case rl.KLK3:
		f := math.Exp(-d)
		ke, dke = math.Abs(f-1)*e+f*e*e, f*(e+e*e)
	default:
		ke = e
		if o.Kind == rl.KLAbs && math.Abs(d) <= e {
			dke = 2
		}
	}
	in, out := o.ClampIn > 0 && math.Abs(d)+e >= o.ClampIn, o.ClampOut > 0 && math.Abs(k)+ke >= o.ClampOut
	if clamps := o.ClampAll || o.Kind == rl.KLK3; clamps && (in || out) {
		value, slope := rl.KL(nil, nil, []float64{d}, []float64{0}, nil, free)
		if o.ClampIn > 0 && math.Abs(math.Abs(d)-o.ClampIn) <= e || o.ClampOut > 0 && math.Abs(math.Abs(value[0])-o.ClampOut) <= ke {
			dke += math.Abs(slope[0])
		} else if slope[0] != 0 && o.Grad == rl.KLNaive && dk == 0 {
			return 0, 0, true
		}
	}
	switch o.Grad {
	case rl.KLScoreFunction:
		dke += ke
	case rl.KLStraightThroughK2:
		dke = w * e
	}
	return ke, dke, false
}
