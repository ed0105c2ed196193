package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Pair is what the preference loss of a pair is made of. The reference's log-probs are 0 where the loss has no reference, the tokens NaN
// where they were not dumped.
type Pair struct {
	Chosen, Rejected             float64
	RefChosen, RefRejected       float64
	ChosenTokens, RejectedTokens float64
}

// PerToken returns the pair with log-probs divided by the tokens of their answers.
func (p Pair) PerToken() Pair {
	p.Chosen, p.RefChosen = p.Chosen/p.ChosenTokens, p.RefChosen/p.ChosenTokens
	p.Rejected, p.RefRejected = p.Rejected/p.RejectedTokens, p.RefRejected/p.RejectedTokens
	return p
}

// Loss is the loss of the pair under o, of log-probs as they are.
func (p Pair) Loss(o rl.DPOOptions) float64 {
	var rc, rr []float64
	if o.Kind != rl.DPOORPO {
		rc, rr = []float64{p.RefChosen}, []float64{p.RefRejected}
	}
	loss, _, _ := rl.DPO(nil, nil, nil, []float64{p.Chosen}, []float64{p.Rejected}, rc, rr, o)
	return loss[0]
}

// pairs are the pairs of a batch and the options of their loss.
type pairs struct {
	o      rl.DPOOptions
	of     []Pair    // as the loss reads them
	stored []float64 // what rounding on storing, and dividing by tokens, adds to the errors of a pair's log-probs
	tokens bool      // log-probs were divided by tokens
	raw    []Pair    // as dumped
}

// readPairs reads the pairs; what is missing is noted.
func (c *Case) readPairs() *pairs {
	p := &pairs{stored: make([]float64, c.B.Rows), raw: make([]Pair, c.B.Rows)}
	kind := c.Enum("dpo.loss")
	p.o.Kind, _ = rl.ParseDPOKind(kind)
	if kind == "sigmoid" {
		p.o.LabelSmoothing = c.NumOr("dpo.label_smoothing", 0)
	}
	if p.o.Kind != rl.DPOORPO {
		p.o.Divergence, _ = rl.ParseDPODivergence(c.EnumOr("dpo.divergence", "reverse_kl"))
		if p.o.Divergence == rl.DPOAlpha {
			// It is not searched: far from the reference e^{−αc} is so large that its bound would hold anything.
			if c.Set.Value("dpo.alpha").Kind() != convention.Number {
				note(&c.Absent, "dpo.alpha")
			}
			p.o.Alpha = c.Default("dpo.alpha", 1)
		}
		if kind == "ipo" && c.B.Row("chosen_tokens") != nil && c.B.Row("rejected_tokens") != nil {
			p.tokens = c.Bool("dpo.per_token") // releases differ in whether the dumped log-probs are means already
		} else {
			p.tokens = c.BoolOr("dpo.per_token", false)
		}
		if p.tokens && p.o.Divergence != rl.DPOReverseKL {
			note(&c.Absent, "a divergence of log-probs per token")
		}
	}
	p.o.Beta = c.Num("dpo.beta") // a search solves it for the loss that it has taken
	names := []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"}
	if p.o.Kind == rl.DPOORPO {
		names = names[:2]
	}
	for i, name := range append(names, "chosen_tokens", "rejected_tokens") {
		x := c.B.Row(name)
		if i < len(names) || p.tokens {
			if x == nil {
				note(&c.Absent, name)
			}
			for r, e := range c.rounding(name) {
				p.stored[r] += e
			}
		}
		for r := range p.raw {
			v := math.NaN()
			if r < len(x) {
				v = x[r]
			}
			q := &p.raw[r]
			switch name {
			case "logp_chosen":
				q.Chosen = v
			case "logp_rejected":
				q.Rejected = v
			case "ref_chosen":
				q.RefChosen = v
			case "ref_rejected":
				q.RefRejected = v
			case "chosen_tokens":
				q.ChosenTokens = v
			default:
				q.RejectedTokens = v
			}
		}
	}
	p.of = p.raw
	if p.tokens {
		p.of = make([]Pair, len(p.raw))
		for r, q := range p.raw {
			p.of[r] = q.PerToken()
			p.stored[r] = p.stored[r]/min(q.ChosenTokens, q.RejectedTokens) + (c.Unit+tol.U64)*p.of[r].size()
		}
	}
	return p
}

// size is the sum of the magnitudes of the log-probs.
func (p Pair) size() float64 {
	return math.Abs(p.Chosen) + math.Abs(p.Rejected) + math.Abs(p.RefChosen) + math.Abs(p.RefRejected)
}

// margin returns h of a row and its derivatives.
func (p *pairs) margin(r int) (h, dchosen, drejected float64) {
	q := p.of[r]
	return rl.DPOMargin(q.Chosen, q.Rejected, q.RefChosen, q.RefRejected, p.o)
}

// losses returns the losses of the pairs and their errors.
func (p *pairs) losses(u float64) (loss, err []float64) {
	loss, err = make([]float64, len(p.of)), make([]float64, len(p.of))
	for r, q := range p.of {
		loss[r] = q.Loss(p.o)
		err[r] = dpoError(p.o, q.Chosen, q.Rejected, q.RefChosen, q.RefRejected, p.stored[r], loss[r], u)
	}
	return loss, err
}

// pairSteps is what a micro-batch's mean is divided by more.
func (c *Case) pairSteps() float64 {
	if c.divides() {
		return c.accumulation()
	}
	return 1
}

// orDivided makes what a trainer that divides by the accumulation steps has as good as what one has that does not, where nobody says which:
// the transformers Trainer divides what a loss returns, and a hook may stand before or behind that.
func (c *Case) orDivided(p *Prediction) *Prediction {
	if by := c.Of(c.B, c.Set).accumulation(); p != nil && c.Set.Value("agg.div_ga").Kind() == convention.Unknown && by > 1 {
		p.Alt = times(p.Want, 1/by)
	}
	return p
}

func predictPairLoss(c *Case) *Prediction {
	p := c.readPairs()
	if !c.OK() {
		return nil
	}
	loss, err := p.losses(c.Unit + tol.U64)
	return &Prediction{Want: loss, Bound: err, Terms: func(r int) []Term {
		h, _, _ := p.margin(r)
		return []Term{{"h", h}, {"dpo.beta", p.o.Beta}, {"σ(−βh)", 1 / (1 + math.Exp(p.o.Beta*h))}}
	}}
}

// predictPairGradient is the closed form that [rl.DPO] has, divided by the pairs of the file, the accumulation steps and what the file says of
// its scale. The cross-entropy beside the loss reaches the log-probs of an answer where a program makes it of them, and else its tokens: with
// it the gradient is not known.
func predictPairGradient(c *Case, chosen bool) *Prediction {
	p := c.readPairs()
	steps := c.pairSteps()
	if c.nllWeight(p.o.Kind) != 0 {
		note(&c.Absent, "the gradient of nll_loss by the log-prob of an answer")
	}
	scale := c.B.Meta.DLogpScale
	if !c.OK() || !(math.Abs(scale) > 0) || math.IsInf(scale, 0) {
		return nil
	}
	return c.orDivided(c.pairGradient(func(r int) (d, err float64) {
		q, u := p.of[r], c.Unit+tol.U64
		d = p.slope(q, chosen)
		// The slope is monotone in h for every kind of loss: its error is what a shift of h by e_h makes of it, and that of its operations,
		// an elementary function among them, of terms that are at most β·|∂h|, or 2(|h| + 1/(2β)) for ipo.
		h, hc, hr := p.margin(r)
		eh := p.stored[r] + 2*u*q.size()
		size := p.o.Beta * max(1, math.Abs(hc), math.Abs(hr))
		if p.o.Kind == rl.DPOIPO {
			size = 2*math.Abs(h) + 1/p.o.Beta
		}
		for _, by := range []float64{eh, -eh} {
			moved := q
			moved.Chosen += by
			err = max(err, math.Abs(p.slope(moved, chosen)-d))
		}
		err += (elementary + 4) * u * size
		if p.tokens {
			n := q.ChosenTokens
			if !chosen {
				n = q.RejectedTokens
			}
			d, err = d/n, err/n+u*math.Abs(d/n)
		}
		return d, err
	}, steps*scale))
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

// slope is the derivative of a pair's loss by one of its log-probs.
func (p *pairs) slope(q Pair, chosen bool) float64 {
	var rc, rr []float64
	if p.o.Kind != rl.DPOORPO {
		rc, rr = []float64{q.RefChosen}, []float64{q.RefRejected}
	}
	_, dc, dr := rl.DPO(nil, nil, nil, []float64{q.Chosen}, []float64{q.Rejected}, rc, rr, p.o)
	if chosen {
		return dc[0]
	}
	return dr[0]
}

// PairOptions returns the options of the loss of pairs, false where something is not known.
func (c *Case) PairOptions() (o rl.DPOOptions, perToken, ok bool) {
	d := c.Of(c.B, c.Set)
	p := d.readPairs()
	return p.o, p.tokens, d.OK()
}

// Pairs predicts an output of a preference loss (pair_loss, loss, dlogp_chosen, dlogp_rejected) whose pairs have another loss than the
// declared one; nil where something is not known, and for a loss where pair_loss was dumped, since the difference shows there. f gets
// the log-probs as they were dumped. Its error is what a shift of either log-ratio by e = stored + 4u·Σ|log-probs| makes of it, and that
// of a few operations. Derivatives are central differences of fourth order.
func (c *Case) Pairs(ch *Check, f func(Pair) float64) *Prediction {
	p := c.readPairs()
	nll := c.nllTerm(p.o.Kind)
	steps := c.pairSteps()
	if !c.OK() {
		return nil
	}
	u := c.Unit + tol.U64
	value := func(g func(Pair) float64, r int) (x, err float64) {
		q := p.raw[r]
		x = g(q)
		e := p.stored[r] + 4*u*q.size()
		for _, by := range []float64{e, -e} {
			a, b := q, q
			a.Chosen += by
			b.Rejected += by
			err = max(err, math.Abs(g(a)-x), math.Abs(g(b)-x))
		}
		return x, 2*err + (elementary+8)*u*math.Abs(x)
	}
	switch ch.Output {
	case "dlogp_chosen", "dlogp_rejected":
		scale := c.B.Meta.DLogpScale
		if c.nllWeight(p.o.Kind) != 0 || !(math.Abs(scale) > 0) || math.IsInf(scale, 0) {
			return nil
		}
		chosen := ch.Output == "dlogp_chosen"
		at := func(q Pair, by float64) float64 {
			if chosen {
				q.Chosen += by
			} else {
				q.Rejected += by
			}
			return f(q)
		}
		slope := func(q Pair) float64 {
			const step = 0x1p-9
			return (8*(at(q, step)-at(q, -step)) - (at(q, 2*step) - at(q, -2*step))) / (12 * step)
		}
		return c.pairGradient(func(r int) (float64, float64) {
			d, err := value(slope, r)
			return d, err + 8*u*p.o.Beta
		}, steps*scale)
	case "loss":
		if c.Has("pair_loss") {
			return nil
		}
	}
	loss, err := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	for r := range loss {
		loss[r], err[r] = value(f, r)
	}
	if ch.Output == "pair_loss" {
		return &Prediction{Want: loss, Bound: err}
	}
	s := c.pairSums(loss, func(r int) float64 { return err[r] })
	if nll != nil {
		s.add(1, *nll, u)
	}
	s.divide(steps, u)
	return s.prediction(func(int) []Term { return nil })
}

// Answers predicts the loss of labelled answers as another function of their log-probs, the reference point and the label; nil where
// something is not known. Its error is that of a shift of the log-ratio by e = stored + 4u·(|policy| + |reference| + |z|), and of a few
// operations.
func (c *Case) Answers(f func(policy, reference, z float64, good bool) float64) *Prediction {
	policy, reference, labels, point := c.B.Row("logp_policy"), c.B.Row("logp_reference"), c.B.Row("desirable"), c.B.PerFile("reference_point")
	steps := c.pairSteps()
	if !c.OK() || policy == nil || reference == nil || labels == nil || point == nil {
		return nil
	}
	u := c.Unit + tol.U64
	stored := Input{Err: c.rounding("logp_policy")}
	other := Input{Err: c.rounding("logp_reference")}
	loss, err := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	for i, file := range c.B.Files {
		z := point[i]
		for r := file.Lo; r < file.Hi; r++ {
			good := labels[r] == 1
			x := f(policy[r], reference[r], z, good)
			e := stored.E(r) + other.E(r) + 4*u*(math.Abs(policy[r])+math.Abs(reference[r])+math.Abs(z))
			for _, by := range []float64{e, -e} {
				err[r] = max(err[r], math.Abs(f(policy[r]+by, reference[r], z, good)-x))
			}
			loss[r], err[r] = x, 2*err[r]+(elementary+8)*u*(math.Abs(x)+1)
		}
	}
	s := c.pairSums(loss, func(r int) float64 { return err[r] })
	s.divide(steps, u)
	return s.prediction(func(int) []Term { return nil })
}
