package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// LossesOf are the checks of the losses that a gradient is the derivative of.
var LossesOf = map[string][]string{
	"gradient/dlogp":   {"aggregate/loss", "aggregate/pg_loss"},
	"gradient/dvalues": {"aggregate/loss", "aggregate/value_loss"},
}

func gradientChecks() []*Check {
	return []*Check{{
		ID: "gradient/dlogp", Stage: convention.Gradient, Output: "dlogp",
		Title:   "gradient of the loss with respect to logp_new",
		Formula: "∂loss/∂logp_new = w·(∂ℓ/∂ρ·ρ + kl.beta·∂KL), w the weight of the token in the aggregation, ∂ρ/∂logp = ρ; KL by kl.grad; 0 outside the mask; times 1/dlogp_scale",
		Source:  "the derivative of the stages before; TRL 1.16 backward; V21 (trl#6503, NeMo-RL#2506, verl#4105)",
		Fix:     "a gradient of 0 everywhere: the ratio is detached; a factor: denominator or accumulation; a difference that grows with logp_new − logp_ref: the score-function term of the KL",
		Applies: func(c *Case) bool { return !c.preference() && !c.distilled() },
		Predict: predictDLogp,
	}, {
		ID: "gradient/dvalues", Stage: convention.Gradient, Output: "dvalues",
		Title:   "gradient of the loss with respect to values_new",
		Formula: "∂loss/∂values_new = w·value.coef·value.factor·2(v − R), and 0 where the clipped square is the larger one and v beyond the clip; value.coef only where the policy's loss holds the value loss",
		Source:  "the derivative of the value loss; V18, V21",
		Fix:     "a factor of 2: value.factor; 0 where it should not be: clip range or mask",
		Applies: func(c *Case) bool { return !c.preference() && !c.supervised() },
		Predict: predictDValues,
	}}
}

func predictDLogp(c *Case) *Prediction {
	p := c.policy(true)
	if p == nil {
		return nil
	}
	red := c.policyReduction()
	if scale := c.B.Meta.DLogpScale; !(math.Abs(scale) > 0) || math.IsInf(scale, 0) {
		note(&c.Absent, "dlogp_scale")
	}
	if !c.OK() || red == nil {
		return nil
	}
	b := c.B
	by, beta := red, p.beta
	if beta != 0 {
		by = c.klReduction(red)
	}
	if !c.OK() {
		return nil
	}
	n := b.Rows * b.Cols
	weights := make([]float64, n)
	drawn := !p.randomCut || p.draw(c)
	tied := p.tied
	var ofKL, ofKLErr []float64 // where the KL term has an aggregation of its own
	if by != red || p.klOld.X != nil {
		kl := p.klAlone()
		ofKL, ofKLErr = make([]float64, n), make([]float64, n)
		kl.backward(c, by, ofKL, weights)
		kl.backwardErrors(c, kl.slopes(c), red.slack, weights, ofKL, ofKLErr)
		p, tied = p.withoutKL(), nil
	}
	q := p.gradient(c, red, weights)
	for i := range tied {
		if r := tied[i].gradient(c, red, weights); r.misses(c) < q.misses(c) {
			p, q = &tied[i], r
		}
	}
	if p.onBound() {
		other := *p
		other.inclusive = !p.inclusive
		if r := other.gradient(c, red, weights); r.misses(c) < q.misses(c) {
			p, q = &other, r
		}
	}
	if !drawn {
		if p.o.Ratio.Level != rl.RatioToken {
			return c.lacks("token_loss (clip_cov draws the tokens that it leaves out)")
		}
		q.Alt = p.undrawn(c, red)
	}
	for i, k := range ofKL {
		if p.lp.Half > 0 && p.ref.Half == 0 { // it is float32, and cast where it reaches the log-probs
			k, ofKLErr[i] = step16(k, ofKLErr[i], p.lp.Half, false)
		}
		q.Want[i] += k
		q.Bound[i] += ofKLErr[i] + (c.Unit+tol.U64)*math.Abs(q.Want[i])
		if q.Alt != nil {
			q.Alt[i] += k
		}
	}
	for i := range q.Want {
		q.Want[i] /= b.Meta.DLogpScale
		q.Bound[i] /= math.Abs(b.Meta.DLogpScale)
		if q.Alt != nil {
			q.Alt[i] /= b.Meta.DLogpScale
		}
		q.Judge[i] = extent(b, i)
		if !p.mask[i] && q.Judge[i] {
			q.Judge[i] = finite(p.lp, i) && finite(p.denominator(), i) && finite(p.adv, i) && finite(p.ref, i) && !p.addsNothing(i)
		}
		q.settle(i, overflow(c.Unit))
	}
	q.Terms = func(i int) []Term {
		t := []Term{{"weight in the loss", weights[i]}, {"advantage", p.adv.X[i]}}
		if p.ratio.x != nil {
			t = append(t, Term{"ratio", p.ratio.x[i]})
		}
		if p.weight.X != nil {
			t = append(t, Term{"is_weight", p.weight.X[i]})
		}
		if beta != 0 {
			t = append(t, Term{"kl.beta", beta}, Term{"logp_new − logp_ref", p.lp.X[i] - p.ref.X[i]})
		}
		return t
	}
	return q
}

// gradient returns the gradient of policy and KL term under one aggregation, and stores the weights of the cells in it.
func (p *policy) gradient(c *Case, red *reduction, weights []float64) *Prediction {
	n := len(weights)
	q := &Prediction{Want: make([]float64, n), Bound: make([]float64, n), Judge: make([]bool, n)}
	p.backward(c, red, q.Want, weights)
	p.backwardErrors(c, p.slopes(c), red.slack, weights, q.Want, q.Bound)
	p.promotedPath(c, red, q)
	return q
}

// misses returns the number of dumped gradients beyond the bound of q and the rounding of a 16-bit type.
func (q *Prediction) misses(c *Case) (n int) {
	got, u := c.B.Token("dlogp"), halfOf(c.B, "dlogp")
	if len(got) != len(q.Want) {
		return 0
	}
	for i, x := range q.Want {
		if c.B.Mask[i] && !(math.Abs(got[i]*c.B.Meta.DLogpScale-x) <= q.Bound[i]+u*math.Abs(x)) {
			n++
		}
	}
	return n
}

// withoutKL returns the policy term alone.
func (p *policy) withoutKL() *policy {
	q := *p
	q.beta, q.o.KLBeta = 0, 0
	return &q
}

// klAlone returns the KL term alone: a score-function loss of advantage 0, which has no gradient, in place of the policy term.
func (p *policy) klAlone() *policy {
	q := *p
	q.o.Kind, q.uses, q.randomCut = rl.LossReinforce, false, false
	q.adv = Input{X: make([]float64, len(p.adv.X))}
	if p.klOld.X != nil {
		q.old = p.klOld
	}
	return &q
}

// addsNothing reports whether a cell outside the mask holds what a program put there so that a sum over the whole row is that over its tokens: equal
// log-probs where a row has one ratio, as TRL's masked_fill with INVALID_LOGPROB leaves them, or 0 where log-probs are summed themselves. The slope
// there is that of the row's sum, and ends at the fill.
func (p *policy) addsNothing(i int) bool {
	old := p.denominator()
	switch {
	case p.o.Kind == rl.LossReinforce:
		return p.lp.X[i] == 0
	case p.o.Ratio.Level != rl.RatioToken:
		return old.X != nil && p.lp.X[i] == old.X[i]
	}
	return false
}

func finite(x Input, i int) bool {
	return x.X == nil || !math.IsNaN(x.X[i]) && !math.IsInf(x.X[i], 0)
}

// backward stores the gradient of every file's loss, and the weights of its cells in the aggregation.
func (p *policy) backward(c *Case, red *reduction, want, weights []float64) {
	b := c.B
	for f, file := range b.Files {
		lo, hi := file.Lo*b.Cols, file.Hi*b.Cols
		part := func(x Input) []float64 {
			if x.X == nil {
				return nil
			}
			return x.X[lo:hi]
		}
		batch := rl.PolicyBatch{Rows: file.Hi - file.Lo, Cols: b.Cols, LogProbs: part(p.lp), Old: part(p.old), Ref: part(p.ref),
			Adv: part(p.adv), Mask: red.mask[lo:hi], Weight: part(p.weight), Gamma: part(p.gamma)}
		o := p.o
		if o.Kind == rl.LossVESPO && p.old.Half > 0 { // a weight like any other, and detached
			o.Kind, batch.Weight = rl.LossReinforce, p.promotedGamma(b.Rows, b.Cols).X[lo:hi]
			for i, w := range part(p.weight) {
				batch.Weight[i] *= w
			}
		}
		o.Agg = red.o[f]
		o.KLUnderWeight = p.klInside
		if p.drop != nil {
			batch.Drop = p.drop[lo:hi]
		}
		res := rl.PolicyResult{DLogp: want[lo:hi], Weights: weights[lo:hi]}
		if err := rl.Policy(&res, batch, o); err != nil {
			for i := lo; i < hi; i++ {
				want[i] = math.NaN()
			}
		}
	}
}

// draw finds out which tokens clip_cov left out, as token_loss shows: those whose loss is nearer to 0 than to that of a token that was
// kept. It reports false, and takes none to be left out, where token_loss is not there, or is not the policy term alone.
func (p *policy) draw(c *Case) bool {
	p.drop = make([]bool, len(p.lp.X))
	got, has := c.B.Token("token_loss"), c.B.Meta.TokenLossIncludesKL
	if got == nil || p.weight.X != nil || p.beta != 0 && (has == nil || *has) {
		return false
	}
	full, _ := rl.PPO(nil, nil, p.ratio.x, p.adv.X, p.o.Clip)
	for i, alt := range p.clipCov(c.B) {
		p.drop[i] = alt == 0 && math.Abs(got[i]) < math.Abs(got[i]-full[i])
	}
	return true
}

// undrawn returns, as another value for the tokens that clip_cov may have left out, their gradient without the policy term.
func (p *policy) undrawn(c *Case, red *reduction) []float64 {
	alt := p.clipCov(c.B)
	for i, a := range alt {
		p.drop[i] = a == 0
	}
	without := make([]float64, len(alt))
	p.backward(c, red, without, make([]float64, len(alt)))
	for i, a := range alt {
		if a == 0 {
			alt[i] = without[i]
		}
	}
	return alt
}

// backwardErrors bounds the gradient. With w the weight of the aggregation (4u: counts, division, steps, factor), g = ∂/∂ρ and h the
// direct derivative,
//
//	token     B = |w|·(e_g·(ρ + e_ρ) + |g|·e_ρ + 2u·|g·ρ| + e_h) + (4u + slack)·|w|·(|g·ρ| + |h|) + u·|sum|
//	sequence  the first three, summed over the row and divided by its n, and fold(n)·Σ|w·g·ρ|/n; with the gradient of
//	          GSPO-token as a token's
//
// Each product may underflow besides, one more than the factors named: A and an importance weight, see [underflow].
// Where the log-ratio lies on a clamp within its error, the gradient may be that of either side.
func (p *policy) backwardErrors(c *Case, s slopes, slack float64, weights, want, bound []float64) {
	b, u := c.B, p.u
	o := p.o.Ratio
	old := p.denominator()
	for r := range b.Rows {
		lo, hi := r*b.Cols, (r+1)*b.Cols
		var shared, sharedE float64
		var onMax bool
		if s.ratio != nil && o.Level != rl.RatioToken {
			var tokens int
			for i := lo; i < hi; i++ {
				if weights[i] == 0 {
					continue
				}
				w, rho := math.Abs(weights[i]), p.ratio.x[i]
				g := math.Abs(s.ratio[i])
				shared += w * g * rho
				sharedE += w * (s.ratioE[i]*(rho+p.ratio.err[i]) + g*p.ratio.err[i] + 6*u*g*rho)
				sharedE += underflow(p.unit, w, g, rho, 1)
				tokens++
			}
			sharedE += foldError(tokens, p.unit) * shared
			n := p.ratio.count[r]
			shared, sharedE = shared/n, sharedE/n+2*u*shared/n+halfSpacing(p.unit)
			if onMax = o.SeqLogMax > 0 && math.Abs(p.ratio.log[r]-o.SeqLogMax) <= p.ratio.logE[r]+u*o.SeqLogMax; onMax {
				sharedE += shared
			}
		}
		for i := lo; i < hi; i++ {
			w := math.Abs(weights[i])
			if w == 0 && !p.mask[i] {
				continue
			}
			e := w*(s.directE[i]+4*u*math.Abs(s.direct[i])) + underflow(p.unit, w, s.direct[i], 1)
			var path, pathE float64
			if s.ratio != nil && (o.Level == rl.RatioToken || o.PerToken) {
				rho, g := p.ratio.x[i], math.Abs(s.ratio[i])
				path = w * g * rho
				pathE = w*(s.ratioE[i]*(rho+p.ratio.err[i])+g*p.ratio.err[i]) + 6*u*path + underflow(p.unit, w, g, rho, 1)
				if onMax {
					pathE += path
				}
			} else if p.mask[i] {
				path, pathE = shared, sharedE
			}
			if m := o.LogClamp; m > 0 && s.ratio != nil && !o.PerToken {
				d := math.Abs(p.lp.X[i] - old.X[i])
				margin := p.lp.E(i) + old.E(i) + u*(d+m)
				switch {
				case math.Abs(d-m) <= margin:
					pathE += path
				case d > m:
					path, pathE = 0, 0
				}
			}
			bound[i] = e + pathE + (u+slack)*(path+w*math.Abs(s.direct[i])) + u*math.Abs(want[i])
		}
	}
}

func predictDValues(c *Case) *Prediction {
	w := c.values()
	coef := c.valueCoef(1)
	if w == nil || !c.OK() {
		return nil
	}
	if coef == 0 && slices.ContainsFunc(c.B.Token("dvalues"), func(x float64) bool { return x != 0 }) {
		coef = 1 // the loss that the critic has for itself, of which the other one holds nothing
	}
	b, n, u := c.B, c.B.Rows*c.B.Cols, c.Unit+tol.U64
	p := &Prediction{Want: make([]float64, n), Bound: make([]float64, n), Judge: make([]bool, n)}
	weights := make([]float64, n)
	for f, file := range b.Files {
		lo, hi := file.Lo*b.Cols, file.Hi*b.Cols
		o := w.o
		o.Agg = w.red.o[f]
		res := rl.ValueResult{DValue: p.Want[lo:hi]}
		err := rl.ValueLoss(&res, w.v.X[lo:hi], w.old.X[lo:hi], w.r.X[lo:hi], w.mask[lo:hi], file.Hi-file.Lo, b.Cols, o)
		if err == nil {
			_, _, err = rl.Aggregate(weights[lo:hi], res.Token, w.mask[lo:hi], file.Hi-file.Lo, b.Cols, o.Agg)
		}
		for i := lo; i < hi; i++ {
			if err != nil {
				p.Want[i] = math.NaN()
			}
			p.Want[i] *= coef
			p.Judge[i] = extent(b, i)
			if !w.mask[i] {
				p.Judge[i] = p.Judge[i] && finite(w.v, i) && finite(w.old, i) && finite(w.r, i)
				continue
			}
			slope, _ := w.cell(i)
			p.Bound[i] = math.Abs(weights[i]*coef*w.o.Factor)*slope + (8*u+w.red.slack)*math.Abs(p.Want[i])
			p.settle(i, overflow(c.Unit))
		}
	}
	w.promoted16(p, b.Token("dvalues"), weights, coef*w.o.Factor)
	p.Terms = func(i int) []Term {
		t := []Term{{"weight in the loss", weights[i]}, {"values_new", w.v.X[i]}, {"returns", w.r.X[i]}}
		if w.o.Clip > 0 {
			t = append(t, Term{"values", w.old.X[i]}, Term{"value.clip", w.o.Clip})
		}
		return append(t, Term{"value.factor", w.o.Factor}, Term{"value.coef", coef})
	}
	return p
}
