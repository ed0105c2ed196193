package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func klChecks() []*Check {
	return []*Check{{
		ID: "kl/token", Stage: convention.KL, Output: "kl",
		Title:   "estimate of KL(π‖ref) from each token",
		Formula: "k1 = d, k2 = ½d², k3 = e^{−d} − 1 + d, |d| or ρ·d (kl.kind), d = lp − logp_ref within kl.clamp_in, result within kl.clamp_out; × ρ under kl.grad is_corrected; lp = logp_new for a KL in the loss, logp_old for one in the reward",
		Source:  "Schulman 2020, Approximating KL divergence; TRL 1.16 use_bias_correction_kl, verl kl_penalty, OpenRLHF compute_approx_kl; V04",
		Fix:     "compare the estimator, its clamps and the log-probs it takes with the options; a wrong sign of d shows as e^{d}, a reference that was not loaded as 0",
		Predict: predictKL,
	}}
}

// elementary is the relative error of an elementary function in units of u: 2 ulp.
const elementary = 4

// elementaryError is [elementary] times u; a function of a 16-bit format is that of float32, rounded once.
func elementaryError(unit float64) float64 {
	if unit > tol.U32 {
		return unit + elementary*tol.U32
	}
	return elementary * (unit + tol.U64)
}

// inapplicable is Enum for an option that has a value where it does not apply. Unknown stays unknown.
func (c *Case) inapplicable(name, value string) string {
	if c.Set.Value(name).Kind() == convention.NotApplicable {
		note(&c.Read, name)
		return value
	}
	return c.Enum(name)
}

// klOptions returns the estimator. kl.grad is read only for a KL in the loss, where it decides the value too (is_corrected)
// and not only the gradient.
func (c *Case) klOptions(inLoss bool) rl.KLOptions {
	var o rl.KLOptions
	kind := c.Enum("kl.kind")
	if kind == "" {
		return o
	}
	o.Kind, _ = rl.ParseKLKind(kind)
	if o.Kind == rl.KLSeqProb {
		note(&c.Absent, "an estimate per token (kl.kind seq_prob has one per sequence)")
		return rl.KLOptions{}
	}
	o.ClampIn, o.ClampOut = c.NumOr("kl.clamp_in", 0), c.NumOr("kl.clamp_out", 0)
	if o.Kind != rl.KLK3 && (o.ClampIn > 0 || o.ClampOut > 0) {
		o.ClampAll = c.Bool("kl.clamp_applies_to_k1")
	}
	if o.ClampIn > 0 && (o.Kind == rl.KLK3 || o.ClampAll) {
		o.ClampInBelow = c.EnumOr("kl.clamp_in_side", "both") == "below"
	}
	if inLoss {
		o.Grad, _ = rl.ParseKLGrad(c.inapplicable("kl.grad", "naive"))
		if o.Grad == rl.KLStraightThroughK2 {
			o.ISCap = c.Default("kl.is_cap", 0)
		}
	}
	return o
}

func predictKL(c *Case) *Prediction {
	place := c.Enum("kl.place")
	if place == "" {
		return nil
	}
	// A KL that enters nowhere is a metric, and metrics are taken of the policy that is being trained.
	inLoss := place == "loss" || place == "none"
	o := c.klOptions(place == "loss")
	lp, ref := c.Token(policyLogp(inLoss)), c.Token("logp_ref")
	if !c.OK() {
		return nil
	}
	n := c.B.Rows * c.B.Cols
	weighted := inLoss && (o.Kind == rl.KLRatioD || o.Grad == rl.KLISCorrected)
	var weight ratios
	if weighted { // a KL in the reward is of the policy that sampled: its ratio is 1
		old, by := c.oldLogp(), c.ratioOptions()
		if !c.OK() {
			return nil
		}
		weight = c.klRatios(lp, old, ref, by, unweighted(o))
	}
	p := &Prediction{Want: make([]float64, n), Bound: make([]float64, n), Scale: 1}
	plain := unweighted(o)
	rl.KL(p.Want, nil, lp.X, ref.X, nil, plain)
	largest := overflow(c.Unit)
	var by *ratios
	if weighted {
		by = &weight
	}
	known := c.promotedEstimates(p, lp, ref, plain, by)
	for i, k := range p.Want {
		d := lp.X[i] - ref.X[i]
		b := klBound(plain, d, lp.E(i)+ref.E(i), c.Unit)
		if known {
			b = p.Bound[i]
		}
		if o.ISCap > 0 {
			b += throughSurrogate(k, d, c.oldRatio(i, lp.X[i], o.ISCap), c.Unit)
		}
		if weighted {
			w := weight.x[i]
			p.Want[i] = float64(w * k)
			b = w*b + weight.err[i]*(math.Abs(k)+b) + (c.Unit+tol.U64)*math.Abs(p.Want[i])
		}
		p.Bound[i] = b * (1 + 8*c.Unit)
		p.settle(i, largest)
	}
	p.Terms = func(i int) []Term {
		t := []Term{{policyLogp(inLoss), lp.X[i]}, {"logp_ref", ref.X[i]}, {"d", lp.X[i] - ref.X[i]}}
		if weighted {
			t = append(t, Term{"ratio", weight.x[i]})
		}
		return t
	}
	switch perRow, ok := c.layout("kl"); {
	case !ok:
		return nil
	case perRow:
		return c.rowSums(p)
	}
	return p
}

// unweighted returns the estimator that a ratio multiplies.
func unweighted(o rl.KLOptions) rl.KLOptions {
	o.Grad = rl.KLNaive
	if o.Kind == rl.KLRatioD {
		o.Kind = rl.KLK1
	}
	return o
}

// throughSurrogate bounds what k + s − s loses, s = w·½d²: OpenRLHF's unbiased_gradient puts the gradient of s under the value k that
// way, in float32 whatever the log-probs are. The first sum is rounded at |k| + s, the second at |k|; s takes part of it even where k
// is small or clamped.
func throughSurrogate(k, d, w, unit float64) float64 {
	u := min(unit, tol.U32) + tol.U64
	return u * (2*math.Abs(k) + w*d*d/2) * (1 + 8*u)
}

// oldRatio is min(exp(lp − logp_old), limit) at cell i; the limit where logp_old was not dumped.
func (c *Case) oldRatio(i int, lp, limit float64) float64 {
	if old := c.B.Token("logp_old"); old != nil {
		return min(math.Exp(lp-old[i]), limit)
	}
	return limit
}

// policyLogp names the log-probs of the policy: those of the update for a term of the loss, those of the rollout for a
// term of the reward.
func policyLogp(inLoss bool) string {
	if inLoss {
		return "logp_new"
	}
	return "logp_old"
}

// klBound bounds the estimate k at d, where e is the error of d that comes from the inputs:
//
//	e_d = e + u·|d|
//	k1, |d|  e_d                 k2  |d|·e_d + ½e_d² + 2u·k
//	k3       |e^{−d} − 1|·e_d + e^{−d}·(½e_d² + e_exp) + u·(|e^{−d} + d| + |d| + k)
//
// The last is of the form exp(−d) − (−d) − 1, in any order of the sums: d is rounded once, so that its error enters through
// the derivative; expm1 is more accurate. Clamps do not enlarge errors; a result that is beyond its clamp by more than
// its bound is exact.
func klBound(o rl.KLOptions, d, e, unit float64) float64 {
	if d == 0 && e == 0 {
		return 0 // exp(0) is 1, and every operation here is exact
	}
	u := unit + tol.U64
	clamps := o.ClampAll || o.Kind == rl.KLK3
	e += u * math.Abs(d)
	x := d
	if clamps && o.ClampIn > 0 {
		x = max(x, -o.ClampIn)
		if !o.ClampInBelow {
			x = min(x, o.ClampIn)
		}
		if math.Abs(d-x) > e {
			e = 0
		}
	}
	var b, free float64
	switch o.Kind {
	case rl.KLK2:
		free = float64(x*x) / 2
		b = math.Abs(x)*e + float64(e*e)/2 + 2*u*free
	case rl.KLK3:
		f := math.Expm1(-x)
		free = f + x
		b = math.Abs(f)*e + (f+1)*(float64(e*e)/2+elementaryError(unit)) + u*(math.Abs(f+1+x)+math.Abs(x)+math.Abs(free))
	default:
		b, free = e, x
		if o.Kind == rl.KLAbs {
			free = math.Abs(x)
		}
	}
	if clamps && o.ClampOut > 0 && math.Abs(free)-b > o.ClampOut {
		return 0
	}
	return b
}

// overflow is the largest finite number of the format of unit roundoff u.
func overflow(u float64) float64 {
	switch {
	case u == tol.U16:
		return 65504
	case u < tol.U32:
		return math.MaxFloat64
	}
	return math.MaxFloat32
}

// settle makes element i what the computation holds where it overflows or is undefined; nothing else is as good there,
// unless the bound is infinite: then rounding decides whether it is defined, and it is not judged.
func (p *Prediction) settle(i int, largest float64) {
	w := p.Want[i]
	if math.Abs(w) > largest {
		w = math.Copysign(math.Inf(1), w)
		p.Want[i] = w
	}
	switch finite := !math.IsNaN(w) && !math.IsInf(w, 0); {
	case !finite && math.IsInf(p.Bound[i], 1) && p.Judge != nil:
		p.Judge[i] = false
		fallthrough
	case !finite:
		p.Bound[i] = 0
	case math.IsNaN(p.Bound[i]):
		p.Bound[i] = math.Inf(1)
	}
}

// rowSums turns a prediction per token into one of the sums over the tokens of a row.
func (c *Case) rowSums(p *Prediction) *Prediction {
	b := c.B
	q := &Prediction{Want: rl.RowSums(nil, p.Want, b.Mask, b.Rows, b.Cols), Bound: make([]float64, b.Rows), Scale: p.Scale}
	tokens := make([]float64, b.Rows)
	for r := range b.Rows {
		var size float64
		for i := range b.TokensOf(r) {
			q.Bound[r] += p.Bound[i]
			size += math.Abs(p.Want[i])
			tokens[r]++
		}
		q.Bound[r] += foldError(int(tokens[r]), c.Unit) * size
		q.settle(r, math.MaxFloat64)
	}
	q.Terms = func(r int) []Term { return []Term{{"tokens", tokens[r]}, {"sum", q.Want[r]}} }
	return q
}
