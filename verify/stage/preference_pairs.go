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
	loss, _, _ := p.slopes(o)
	return loss
}

// slopes returns the loss of the pair and its derivatives by the policy's log-probs.
func (p Pair) slopes(o rl.DPOOptions) (loss, dchosen, drejected float64) {
	var rc, rr []float64
	if o.Kind != rl.DPOORPO {
		rc, rr = []float64{p.RefChosen}, []float64{p.RefRejected}
	}
	l, dc, dr := rl.DPO(nil, nil, nil, []float64{p.Chosen}, []float64{p.Rejected}, rc, rr, o)
	return l[0], dc[0], dr[0]
}

// size is the sum of the magnitudes of the log-probs.
func (p Pair) size() float64 {
	return math.Abs(p.Chosen) + math.Abs(p.Rejected) + math.Abs(p.RefChosen) + math.Abs(p.RefRejected)
}

// pairs are the pairs of a batch and the losses that are summed of them.
type pairs struct {
	parts  []pairPart
	raw    []Pair    // as dumped
	stored []float64 // what rounding on storing adds to the errors of a pair's log-probs

	weights, weightErr []float64 // of every pair, detached (dpo.weighting), and what rounding on storing makes of them; nil where there are none
}

// pairPart is one loss of the sum.
type pairPart struct {
	weight float64
	o      rl.DPOOptions
	tokens bool      // log-probs were divided by tokens
	of     []Pair    // as the loss reads them: of a loss that sorts, by rank
	stored []float64 // as of pairs, and what dividing by tokens adds
	ranks  *ranks    // of a loss that sorts
	scores []pairScores
}

// lossTerms returns the losses that are summed: dpo.mix, or dpo.loss alone.
func (c *Case) lossTerms() rl.DPOSum {
	if c.mixed() {
		sum, _ := rl.ParseDPOSum(c.Enum("dpo.mix"))
		return sum
	}
	kind, _ := rl.ParseDPOKind(c.Enum("dpo.loss"))
	return rl.DPOSum{{Weight: 1, Kind: kind}}
}

// mixed reports whether several losses are summed. A sum is declared or there is none: it is not searched.
func (c *Case) mixed() bool { return c.Set.Value("dpo.mix").Kind() == convention.Enum }

// oddsRatio reports whether the loss is that of ORPO.
func (c *Case) oddsRatio() bool {
	terms := c.lossTerms()
	return len(terms) == 1 && terms[0].Kind == rl.DPOORPO
}

// readPairs reads the pairs; what is missing is noted.
func (c *Case) readPairs() *pairs {
	p := &pairs{stored: make([]float64, c.B.Rows), raw: make([]Pair, c.B.Rows)}
	terms := c.lossTerms()
	for _, t := range terms {
		p.parts = append(p.parts, c.pairPart(t, c.mixed()))
	}
	beta := c.Num("dpo.beta") // a search solves it for the loss that it has taken
	names := []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"}
	if terms[0].Kind == rl.DPOORPO {
		names = names[:2]
	}
	tokens := false
	for i := range p.parts {
		p.parts[i].o.Beta = beta
		tokens = tokens || p.parts[i].tokens
	}
	for i, name := range append(names, "chosen_tokens", "rejected_tokens") {
		x := c.B.Row(name)
		if i < len(names) || tokens {
			if x == nil {
				note(&c.Absent, name)
			}
			for r, e := range c.rounding(name) {
				p.stored[r] += e
			}
		}
		p.fill(name, x)
	}
	if said := c.Set.Value("dpo.weighting").Kind() != convention.Unknown; (said || c.Has("pair_weights")) && c.BoolOr("dpo.weighting", false) {
		w := c.Row("pair_weights")
		p.weights, p.weightErr = w.X, w.Err
	}
	if c.OK() {
		for i := range p.parts {
			c.searchable(p, &p.parts[i])
			c.arrange(p, &p.parts[i])
		}
	}
	return p
}

// pairPart reads the options of one loss.
func (c *Case) pairPart(t rl.DPOTerm, mixed bool) pairPart {
	q := pairPart{weight: t.Weight, tokens: t.PerToken}
	q.o.Kind = t.Kind
	if t.Kind.Smooths() && !(mixed && t.Kind == rl.DPOSigmoid) {
		q.o.LabelSmoothing = c.NumOr("dpo.label_smoothing", 0)
		c.smoothable(q.o)
	}
	if t.Kind == rl.DPODiscoPOP {
		if q.o.Tau = c.NumOr("dpo.tau", 0.05); !c.OK() {
			q.o.Tau = 0.05
		}
	}
	if t.Kind.Margin() {
		q.o.Divergence, _ = rl.ParseDPODivergence(c.EnumOr("dpo.divergence", "reverse_kl"))
		if q.o.Divergence == rl.DPOAlpha {
			// It is not searched: far from the reference e^{−αc} is so large that its bound would hold anything.
			if c.Set.Value("dpo.alpha").Kind() != convention.Number {
				note(&c.Absent, "dpo.alpha")
			}
			q.o.Alpha = c.Default("dpo.alpha", 1)
		}
	}
	switch {
	case mixed:
	case t.Kind == rl.DPOIPO && c.B.Row("chosen_tokens") != nil && c.B.Row("rejected_tokens") != nil:
		q.tokens = c.Bool("dpo.per_token") // releases differ in whether the dumped log-probs are means already
	case t.Kind != rl.DPOORPO:
		q.tokens = c.BoolOr("dpo.per_token", false)
	}
	return q
}

// smoothable notes a label smoothing under which a loss is no number, ½ of robust, 0 and 1 of exo_pair, and that of robust which a search takes for
// sigmoid: 0.
func (c *Case) smoothable(o rl.DPOOptions) {
	e, searched := o.LabelSmoothing, c.Set.Origin("dpo.loss") == "search"
	if o.Kind == rl.DPORobust && (e == .5 || e == 0 && searched) || o.Kind == rl.DPOEXO && !(e > 0 && e < 1) {
		note(&c.Absent, "dpo.label_smoothing for "+o.Kind.String())
	}
}

// searchable notes a forward KL that a search has taken where it could not be refuted: far from the reference e^{−c} is so large that its bound would
// hold anything.
func (c *Case) searchable(p *pairs, q *pairPart) {
	if q.o.Divergence != rl.DPOForwardKL || c.Set.Origin("dpo.divergence") != "search" {
		return
	}
	const most = 1e-2 // of h, beyond which no bound is taken
	for r, raw := range p.raw {
		h, _, _ := rl.DPOMargin(raw.Chosen, raw.Rejected, raw.RefChosen, raw.RefRejected, q.o)
		u := c.Unit + tol.U64
		if !(marginError(q.o, raw.Chosen, raw.Rejected, raw.RefChosen, raw.RefRejected, p.stored[r]+2*u*raw.size(), h, u) <= most) {
			note(&c.Absent, "log-ratios near 0, for dpo.divergence forward_kl")
		}
	}
}

// fill puts the numbers of a tensor into the pairs, NaN where there is none.
func (p *pairs) fill(name string, x []float64) {
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

// arrange makes of the dumped pairs those that a loss reads.
func (c *Case) arrange(p *pairs, q *pairPart) {
	q.of, q.stored = p.raw, p.stored
	switch {
	case q.tokens && q.o.Divergence != rl.DPOReverseKL:
		c.scorePairs(p, q)
	case q.tokens:
		q.of, q.stored = make([]Pair, len(p.raw)), make([]float64, len(p.raw))
		for r, raw := range p.raw {
			q.of[r] = raw.PerToken()
			q.stored[r] = p.stored[r]/min(raw.ChosenTokens, raw.RejectedTokens) + (c.Unit+tol.U64)*q.of[r].size()
		}
	}
	if q.o.Kind.Sorts() {
		c.sortPairs(q)
		if c.Set.Origin("dpo.loss") == "search" && q.inOrder(p.raw) {
			note(&c.Absent, "an order of the pairs that sorting changes") // a search takes sigmoid for it
		}
		q.o.Kind = rl.DPOSigmoid
	}
}

// margin returns h of a row, or rank, and its derivatives.
func (q *pairPart) margin(r int) (h, dchosen, drejected float64) {
	p := q.of[r]
	return rl.DPOMargin(p.Chosen, p.Rejected, p.RefChosen, p.RefRejected, q.o)
}

// losses returns the losses of the pairs and their errors.
func (p *pairs) losses(u float64) (loss, err []float64) {
	loss, err = make([]float64, len(p.raw)), make([]float64, len(p.raw))
	for _, q := range p.parts {
		for r, pair := range q.of {
			l := pair.Loss(q.o)
			loss[r] += float64(q.weight * l)
			err[r] += math.Abs(q.weight) * dpoError(q.o, pair.Chosen, pair.Rejected, pair.RefChosen, pair.RefRejected, q.stored[r], l, u)
			if len(p.parts) > 1 || q.weight != 1 { // a product and a sum of each
				err[r] += float64(len(p.parts)+1) * u * math.Abs(q.weight*l)
			}
		}
	}
	for r := range p.weights {
		loss[r], err[r] = p.weigh(r, loss[r], err[r], u)
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
		h, _, _ := p.parts[0].margin(r)
		beta := p.parts[0].o.Beta
		return []Term{{"h", h}, {"dpo.beta", beta}, {"σ(−βh)", 1 / (1 + math.Exp(beta*h))}}
	}}
}
