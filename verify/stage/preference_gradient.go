package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// predictPairGradient is the closed form that [rl.DPO] has, divided by the pairs of the file, the accumulation steps and what the file says of
// its scale. The cross-entropy beside the loss reaches the log-probs of an answer where a program makes it of them, and else their tokens, as TRL
// 1.16's sft does: with it the gradient of the chosen answers has one of two values.
func predictPairGradient(c *Case, chosen bool) *Prediction {
	p := c.readPairs()
	steps := c.pairSteps()
	beside := 0.0
	if chosen {
		beside = c.nllWeight(c.oddsRatio())
	}
	switch {
	case beside == 0:
	case c.oddsRatio():
		note(&c.Absent, "the gradient of nll_loss by the log-prob of an answer")
	case c.Set.Value("agg.div_ga").Kind() == convention.Unknown && c.Of(c.B, c.Set).accumulation() > 1:
		note(&c.Unknown, "agg.div_ga") // with it and the cross-entropy the gradient would have one of four values
	}
	scale := c.B.Meta.DLogpScale
	if !c.OK() || !(math.Abs(scale) > 0) || math.IsInf(scale, 0) {
		return nil
	}
	d, err := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	for i := range p.parts {
		q := &p.parts[i]
		slope, e := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
		for r := range slope {
			slope[r], e[r] = q.gradient(r, p.raw[r], chosen, c.Unit+tol.U64)
		}
		put := func(r int, x, e float64) {
			if p.weights != nil {
				x, e = p.weigh(r, x, e, c.Unit+tol.U64)
			}
			d[r] += float64(q.weight * x)
			err[r] += math.Abs(q.weight) * (e + 2*c.Unit*math.Abs(x))
		}
		for _, f := range c.B.Files {
			if q.ranks != nil {
				q.toRows(f.Lo, f.Hi, slope, e, chosen, put)
				continue
			}
			for r := f.Lo; r < f.Hi; r++ {
				put(r, slope[r], e[r])
			}
		}
	}
	of := c.pairGradient(func(r int) (float64, float64) { return d[r], err[r] }, steps*scale)
	if beside != 0 {
		of.Alt = c.withNLL(of, beside/(steps*scale))
		return of
	}
	return c.orDivided(of)
}

// withNLL adds to a gradient that of weight·nll_loss where the numbers are those of a function of the answers' log-probs, by the forms of [nllForms] that
// trainers have; NaN where they are not.
func (c *Case) withNLL(p *Prediction, weight float64) []float64 {
	b := c.B
	lp, other, t, u, nll := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("chosen_tokens"), b.Row("rejected_tokens"), b.PerFile("nll_loss")
	alt := make([]float64, len(p.Want))
	for k, file := range b.Files {
		form := slices.IndexFunc(nllForms, func(f nllForm) bool {
			x := f.file(file, lp, other, t, u)
			return f.words == "" && nll != nil && math.Abs(nll[k]-x) <= 1e-5*math.Abs(x)
		})
		for r := file.Lo; r < file.Hi; r++ {
			alt[r] = math.NaN()
			if form >= 0 {
				unit := func(by float64) float64 {
					one := slices.Clone(lp)
					one[r] += by
					return nllForms[form].file(file, one, other, t, u)
				}
				alt[r] = p.Want[r] + weight*(unit(1)-unit(0)) // it is linear
			}
		}
	}
	return alt
}

// gradient is the derivative of the loss of a row, or rank, by one of the dumped log-probs, and its error.
func (q *pairPart) gradient(r int, raw Pair, chosen bool, u float64) (d, err float64) {
	p := q.of[r]
	d = p.slope(q.o, chosen)
	switch e := q.stored[r] + 2*u*p.size(); q.o.Kind {
	case rl.DPOSigmoid, rl.DPOHinge, rl.DPOIPO, rl.DPOORPO, rl.DPORobust:
		err = q.monotoneError(p, d, e, chosen, u)
	case rl.DPOEXO, rl.DPODiscoPOP:
		err = q.curvedError(p, d, e, chosen, u)
	default:
		err = answersSlopeError(q.o, p.Chosen-p.RefChosen, p.Rejected-p.RefRejected, e, chosen, u)
	}
	if q.scores != nil {
		return q.scores[r].chain(d, err, chosen, u)
	}
	if q.tokens {
		n := raw.ChosenTokens
		if !chosen {
			n = raw.RejectedTokens
		}
		d, err = d/n, err/n+u*math.Abs(d/n)
	}
	return d, err
}

// slope is the derivative of a pair's loss by one of its log-probs.
func (p Pair) slope(o rl.DPOOptions, chosen bool) float64 {
	_, dc, dr := p.slopes(o)
	if chosen {
		return dc
	}
	return dr
}

// monotoneError bounds a slope that is monotone in h: its error is what a shift of h by e_h makes of it, and that of its operations, an elementary
// function among them, of terms that are at most β·|∂h|, or 2(|h| + 1/(2β)) for ipo, and divided by |1 − 2ε| for robust.
func (q *pairPart) monotoneError(p Pair, d, eh float64, chosen bool, u float64) (err float64) {
	h, hc, hr := rl.DPOMargin(p.Chosen, p.Rejected, p.RefChosen, p.RefRejected, q.o)
	size := q.o.Beta * max(1, math.Abs(hc), math.Abs(hr))
	switch q.o.Kind {
	case rl.DPOIPO:
		size = 2*math.Abs(h) + 1/q.o.Beta
	case rl.DPORobust:
		size /= math.Abs(1 - 2*q.o.LabelSmoothing)
	}
	for _, by := range []float64{eh, -eh} {
		moved := p
		moved.Chosen += by
		err = max(err, math.Abs(moved.slope(q.o, chosen)-d))
	}
	return err + (elementary+4)*u*size
}

// curvedError bounds a slope ℓ′(x)·∂h, x = βh, with the second derivative of ℓ: β·|∂h|·(|ℓ″|·e_x + roundings) + |βℓ′|·e(∂h). ∂h is monotone in each
// log-ratio. The roundings of automatic differentiation, whose σ′ is (1 − y)·y with an error of u·y, are
//
//	exo_pair  (2·e_exp + 8u)·(q·|ln q − ln(1 − ε)| + p·|ln p − ln ε| + 2·min(q, p) + q·p·(|ln q| + |ln p| + |ln ε| + |ln(1 − ε)|))
//	discopop  (2·e_exp + 8u)·(σ(−x) + (S + E)·m/τ + E·m)
func (q *pairPart) curvedError(p Pair, d, e float64, chosen bool, u float64) float64 {
	o := q.o
	h, hc, hr := rl.DPOMargin(p.Chosen, p.Rejected, p.RefChosen, p.RefRejected, o)
	x := o.Beta * h
	ex := o.Beta*marginError(o, p.Chosen, p.Rejected, p.RefChosen, p.RefRejected, e, h, u) + 2*u*math.Abs(x)
	var curve, round float64
	if o.Kind == rl.DPOEXO {
		up, down, a, b := sigma(x), sigma(-x), math.Log(1-o.LabelSmoothing), math.Log(o.LabelSmoothing)
		curve = exoCurve(o.LabelSmoothing, x, ex)
		round = up*math.Abs(-softplus(-x)-a) + down*math.Abs(-softplus(x)-b) + 2*min(up, down) + up*down*(softplus(-x)+softplus(x)-a-b)
	} else {
		m, s, e := sigma(x/o.Tau), softplus(-x), math.Exp(-x)
		curve = discoCurve(o.Tau, x, ex+u*math.Abs(x))
		round = sigma(-x) + (s+e)*m/o.Tau + e*m
	}
	by := hc
	if !chosen {
		by = hr
	}
	shifted := 0.0
	for _, step := range []float64{e, -e} {
		_, sc, sr := rl.DPOMargin(p.Chosen+step, p.Rejected+step, p.RefChosen, p.RefRejected, o)
		shifted = max(shifted, math.Abs(sc-hc), math.Abs(sr-hr))
	}
	slope := 0.0
	if by != 0 {
		slope = math.Abs(d / by)
	}
	return math.Abs(by)*o.Beta*(curve*ex+(2*elementary+8)*u*round) + slope*shifted + (elementary+4)*u*math.Abs(d)
}

// answersSlopeError bounds the derivative of a loss that reads the log-ratios c and r by themselves: of a term φ(x), x = βc, it is
// β·(|φ″|·e_x + (e_exp + 6u)·|φ′|) with |φ″| ≤ ¼ of −ln σ, 0.0963 of σ, whose φ′ has the error u·σ besides; 2e_t + 4u·|t| of a square.
func answersSlopeError(o rl.DPOOptions, c, r, e float64, chosen bool, u float64) float64 {
	soft := func(w, lin float64) float64 {
		x := o.Beta * lin
		ex := o.Beta*e + 2*u*math.Abs(x)
		return w * o.Beta * (ex/4 + (elementary+6)*u*sigma(x))
	}
	prob := func(lin float64) float64 {
		x := o.Beta * lin
		ex := o.Beta*e + 2*u*math.Abs(x)
		return o.Beta * (logisticCurve*ex + (elementary+6)*u*sigma(x))
	}
	square := func(lin float64) float64 {
		return 2*(e+2*u*(math.Abs(lin)+1/(2*o.Beta))) + 4*u*(math.Abs(lin)+1/(2*o.Beta))
	}
	of := r
	if chosen {
		of = c
	}
	switch o.Kind {
	case rl.DPONCA, rl.DPOBCO:
		if !chosen {
			return soft(1, r)
		}
		return soft(1, -c) + soft(.5, c)
	case rl.DPOSPPO:
		return square(of)
	case rl.DPOAPOZero:
		return prob(of)
	}
	if !chosen {
		return prob(c - r)
	}
	return prob(c) + prob(c-r)
}

// pairGradient divides slopes of the pairs by the pairs of their file and by by.
func (c *Case) pairGradient(of func(r int) (d, err float64), by float64) *Prediction {
	q := &Prediction{Want: make([]float64, c.B.Rows), Bound: make([]float64, c.B.Rows)}
	for _, file := range c.B.Files {
		n := float64(file.Hi-file.Lo) * by
		for r := file.Lo; r < file.Hi; r++ {
			d, err := of(r)
			q.Want[r] = d / n
			q.Bound[r] = err/math.Abs(n) + 3*(c.Unit+tol.U64)*math.Abs(d/n)
		}
	}
	return q
}
