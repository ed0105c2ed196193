package stage

import (
	"math"

	"plumbline/reference/rl"
)

// sigma is the logistic function.
func sigma(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// dpoError bounds the loss of a pair whose log-probs have errors of the sum e. They may be subtracted in either order:
//
//	e_0 = e + 2u·(|chosen| + |rejected| + |ref chosen| + |ref rejected|)   e_h = marginError   e_x = β·e_h + 2u·|βh|
//	sigmoid  |ℓ′|·e_x + ½·e_x² + e_log·ℓ + 2u·ℓ    |dℓ/dx| ≤ 1       hinge  e_x + u·(1 + ℓ), 0 beyond it
//	ipo      2|r|·e_r + e_r² + 2u·ℓ,   e_r = e_h + 2u·(|h| + 1/(2β))
//	orpo     β times that of sigmoid with x = h
//	robust   |ℓ′|·e_x + ½·e_x² + (e_log + 5u)·((1 − ε)·ln(1 + e^{−x}) + ε·ln(1 + eˣ))/|1 − 2ε|                        |d²ℓ/dx²| = σ′ ≤ ¼
//	others   [answersError], [exoError], [discoError]
func dpoError(o rl.DPOOptions, c, r, rc, rr, e, loss, u float64) float64 {
	e += 2 * u * (math.Abs(c) + math.Abs(r) + math.Abs(rc) + math.Abs(rr))
	if !o.Kind.Margin() && o.Kind != rl.DPOORPO {
		return answersError(o, c-rc, r-rr, e, u)
	}
	h, _, _ := rl.DPOMargin(c, r, rc, rr, o)
	eh := marginError(o, c, r, rc, rr, e, h, u)
	x, scale := o.Beta*h, 1.0
	if o.Kind == rl.DPOORPO {
		x, scale = h, o.Beta
	}
	ex := x/h*eh + 2*u*math.Abs(x)
	if h == 0 {
		ex = eh
	}
	switch o.Kind {
	case rl.DPOHinge:
		if x-1 > ex+u {
			return 0
		}
		return ex + u*(1+loss)
	case rl.DPOIPO:
		root := math.Sqrt(loss)
		er := eh + 2*u*(math.Abs(h)+1/(2*o.Beta))
		return 2*root*er + er*er + 2*u*loss
	case rl.DPORobust:
		k, s := math.Abs(1-2*o.LabelSmoothing), o.LabelSmoothing
		slope := ((1-s)*sigma(-x) + s*sigma(x)) / k
		return slope*ex + ex*ex/2 + (elementary+5)*u*((1-s)*softplus(-x)+s*softplus(x))/k
	case rl.DPOEXO:
		return exoError(o.LabelSmoothing, x, ex, u)
	case rl.DPODiscoPOP:
		return discoError(o.Tau, x, ex, u)
	}
	p := 1 / (1 + math.Exp(-x)) // |dℓ/dx| = |ε·σ(x) − (1 − ε)·σ(−x)|
	slope := math.Abs(o.LabelSmoothing*p - (1-o.LabelSmoothing)*(1-p))
	e = scale*(slope*ex+ex*ex/2) + (elementary+2)*u*loss
	if o.LabelSmoothing > 0 { // two terms
		e += ex*o.LabelSmoothing + 2*u*math.Abs(x)*o.LabelSmoothing + u*loss
	}
	return e
}

// marginError bounds h where the log-ratios, or for ORPO the log-probs, have errors of the sum e:
//
//	reverse KL  e                     js     e + 3u·(|c| + |r| + |h|) + (e_log + u)·(softplus c + softplus r)      |∂h| ≤ 1
//	alpha       (e^{−αc} + e^{−αr})/|α|·(expm1(|α|·(e + 2u·(|c| + |r|))) + e_exp + 2u) + 2u·|h|, and forward KL with α = 1
//	orpo        e·(1/(1 − eᶜ) + 1/(1 − eʳ)) + Σ (e_exp + u)·eˣ/(1 − eˣ) + e_log·|ln(1 − eˣ)| + 3u·(|c| + |r| + |h|)
func marginError(o rl.DPOOptions, c, r, rc, rr, e, h, u float64) float64 {
	el := elementary * u
	switch {
	case o.Kind == rl.DPOORPO:
		b := 3 * u * (math.Abs(c) + math.Abs(r) + math.Abs(h))
		for _, x := range []float64{c, r} {
			q := -math.Expm1(x) // 1 − eˣ
			b += e/q + (el+u)*(1-q)/q + el*math.Abs(math.Log(q))
		}
		return b
	case o.Divergence == rl.DPOJS:
		c, r = c-rc, r-rr
		return e + 3*u*(math.Abs(c)+math.Abs(r)+math.Abs(h)) + (el+u)*(max(c, 0)+max(r, 0)+2*math.Ln2)
	case o.Divergence == rl.DPOForwardKL:
		o.Divergence, o.Alpha = rl.DPOAlpha, 1
		return marginError(o, c, r, rc, rr, e, h, u)
	case o.Divergence == rl.DPOAlpha && o.Alpha != 0:
		c, r = c-rc, r-rr
		a := math.Abs(o.Alpha)
		return (math.Exp(-o.Alpha*c)+math.Exp(-o.Alpha*r))/a*(math.Expm1(a*e+2*u*a*(math.Abs(c)+math.Abs(r)))+el+2*u) + 2*u*math.Abs(h)
	}
	return e
}

// logisticCurve bounds the second derivative of σ, 1/(6·√3).
const logisticCurve = 0.0963

// answersError bounds a loss that reads the log-ratios c and r by themselves, each with an error of at most e. Of a term φ(x), x = β·c,
//
//	e_x = β·e + 2u·|x|     −ln σ  σ(−x)·e_x + ⅛·e_x² + (e_log + 3u)·φ     σ  σ′·e_x + 0.05·e_x² + (e_exp + 2u), 1 − σ with it
//	square  2|t|·e_t + e_t² + 2u·t²,  e_t = e + 2u·(|c| + 1/(2β))
//
// and u of every sum.
func answersError(o rl.DPOOptions, c, r, e, u float64) float64 {
	soft := func(w, lin float64) float64 { // w·ln(1 + e^{β·lin})
		x := o.Beta * lin
		ex := o.Beta*e + 2*u*math.Abs(x)
		return w * (sigma(x)*ex + ex*ex/8 + (elementary+6)*u*softplus(x))
	}
	prob := func(lin float64) float64 {
		x := o.Beta * lin
		ex := o.Beta*e + 2*u*math.Abs(x)
		return sigma(x)*sigma(-x)*ex + logisticCurve/2*ex*ex + (elementary+4)*u
	}
	square := func(t, lin float64) float64 {
		et := e + 2*u*(math.Abs(lin)+1/(2*o.Beta))
		return 2*math.Abs(t)*et + et*et + 3*u*t*t
	}
	switch o.Kind {
	case rl.DPONCA:
		return soft(1, -c) + soft(.5, c) + soft(.5, r)
	case rl.DPOBCO:
		return soft(1, -c) + soft(1, r)
	case rl.DPOSPPO:
		return square(c-1/(2*o.Beta), c) + square(r+1/(2*o.Beta), r)
	case rl.DPOAPOZero:
		return prob(c) + prob(r)
	}
	return prob(c) + prob(c-r)
}

// exoCurve bounds the second derivative of the loss of exo_pair, q·(ln q − A) + p·(ln p − B), p = 1 − q, by its argument x = ln q − ln p: the first is
// q·p·(x − A + B), the second q·p + q·p·(p − q)·(x − A + B).
func exoCurve(eps, x, ex float64) float64 {
	return 0.25 + logisticCurve*(math.Abs(x)+ex+math.Abs(math.Log(eps))+math.Abs(math.Log(1-eps)))
}

// exoError bounds the loss of exo_pair whose argument is off by e_x: |ℓ′|·e_x + ½·|ℓ″|·e_x², and of q and p, their logarithms and those of ε and
// 1 − ε, which have the roundings of ε itself, (2·e_log + 4u)·(q·(|ln q| + |ln(1 − ε)|) + p·(|ln p| + |ln ε|)) + 2u.
func exoError(eps, x, ex, u float64) float64 {
	q, p, a, b := sigma(x), sigma(-x), math.Log(1-eps), math.Log(eps)
	slope := q * p * math.Abs(x-a+b)
	return slope*ex + exoCurve(eps, x, ex)*ex*ex/2 + (2*elementary+4)*u*(q*(softplus(-x)-a)+p*(softplus(x)-b)) + 2*u
}

// discoCurve bounds the second derivative of the loss of discopop, S·(1 − m) + E·m with S = −ln σ(x), E = e^{−x}, m = σ(x/τ):
// |S″| ≤ ¼, |S′| ≤ 1, |m′| ≤ 1/(4τ), |m″| ≤ 0.0963/τ², and E and S are largest at the lower end.
func discoCurve(tau, x, ex float64) float64 {
	s, e := softplus(-x+ex), math.Exp(-x+ex)
	return 0.25 + e + (1+e)/(2*tau) + logisticCurve*(s+e)/(tau*tau)
}

// discoError bounds the loss of discopop whose argument is off by e_x: |ℓ′|·e_x + ½·|ℓ″|·e_x², of x/τ another 2u·|x/τ|·m′·|E − S|, and of the
// elementary functions (2·e_exp + 4u)·(S + E·m).
func discoError(tau, x, ex, u float64) float64 {
	m, k := sigma(x/tau), sigma(-x/tau)
	s, e := softplus(-x), math.Exp(-x)
	slope := math.Abs(m*k/tau*(e-s) - sigma(-x)*k - e*m)
	return slope*ex + discoCurve(tau, x, ex)*ex*ex/2 + 2*u*math.Abs(x/tau)*m*k*math.Abs(e-s) + (2*elementary+4)*u*(s+e*m)
}
