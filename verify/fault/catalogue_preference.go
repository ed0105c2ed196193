package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// pairOutputs are what a bug of a pair's loss changes, the narrowest first.
var pairOutputs = []string{"preference/pair_loss", "preference/dlogp_chosen", "preference/dlogp_rejected", "preference/dpo_loss"}

var pairGradients = []string{"preference/dlogp_chosen", "preference/dlogp_rejected"}

// pairLoss is the loss of a pair, in place of the declared one under o, whose log-probs are those of the loss.
type pairLoss struct {
	id, title string
	of        func(o rl.DPOOptions, p stage.Pair) float64 // nil: it cannot show
	needs     func(o rl.DPOOptions) bool                  // under which it can; nil: under every one that has a reference
	raw       bool                                        // log-probs are as they were dumped
	apart     bool                                        // log-probs are as they were dumped, where those of the loss are per token
}

// kind demands one kind of loss by the reverse KL.
func kind(k rl.DPOKind) func(rl.DPOOptions) bool {
	return func(o rl.DPOOptions) bool { return o.Kind == k && o.Divergence == rl.DPOReverseKL }
}

// ofMargin demands a loss in which β multiplies log-ratios: in those of ipo and sppo_hard it stands in the target alone, whose bugs have an id
// of their own.
func ofMargin(o rl.DPOOptions) bool {
	return o.Kind != rl.DPOIPO && o.Kind != rl.DPOORPO && o.Kind != rl.DPOSPPO
}

// smoothed demands the label smoothing of the sigmoid loss.
func smoothed(o rl.DPOOptions) bool { return o.Kind == rl.DPOSigmoid && o.LabelSmoothing > 0 }

// margin of a pair by the reverse KL.
func marginOf(p stage.Pair) float64 { return p.Chosen - p.Rejected - (p.RefChosen - p.RefRejected) }

// softplus is ln(1 + eˣ) = −ln σ(−x).
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// exchanged are the chosen and the rejected log-probs of the policy, of the reference, or both, in each other's place.
func exchanged(p stage.Pair, policy, reference bool) stage.Pair {
	if policy {
		p.Chosen, p.Rejected = p.Rejected, p.Chosen
	}
	if reference {
		p.RefChosen, p.RefRejected = p.RefRejected, p.RefChosen
	}
	return p
}

// ofBeta is the declared loss with another β.
func ofBeta(change func(float64) float64) func(rl.DPOOptions, stage.Pair) float64 {
	return func(o rl.DPOOptions, p stage.Pair) float64 {
		o.Beta = change(o.Beta)
		return p.Loss(o)
	}
}

// target is the loss of ipo with another target and slope: (k·h − t)².
func target(k, t func(beta float64) float64) func(rl.DPOOptions, stage.Pair) float64 {
	return func(o rl.DPOOptions, p stage.Pair) float64 {
		d := k(o.Beta)*marginOf(p) - t(o.Beta)
		return d * d
	}
}

func one(float64) float64    { return 1 }
func zero(float64) float64   { return 0 }
func same(b float64) float64 { return b }

var pairLosses = []pairLoss{
	{id: "DPO-SWAPPED", needs: func(rl.DPOOptions) bool { return true }, of: func(o rl.DPOOptions, p stage.Pair) float64 { return exchanged(p, true, true).Loss(o) }},
	{id: "DPO-SWAPPED", title: "the policy's log-probs of chosen and rejected answers are exchanged, the reference's are not",
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return exchanged(p, true, false).Loss(o) }},
	{id: "DPO-REFERENCE-SIGN", of: func(o rl.DPOOptions, p stage.Pair) float64 { return exchanged(p, false, true).Loss(o) }},
	{id: "DPO-BETA", title: "β is left out of the preference loss", needs: ofMargin, of: ofBeta(one)},
	{id: "DPO-BETA", title: "β enters the preference loss twice: β²", of: ofBeta(func(b float64) float64 { return b * b })},
	{id: "DPO-BETA", title: "the margin is divided by β", needs: ofMargin, of: ofBeta(func(b float64) float64 { return 1 / b })},
	{id: "DPO-BETA", title: "β multiplies the loss in place of the margin", needs: kind(rl.DPOSigmoid),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return o.Beta * ofBeta(one)(o, p) }},
	{id: "DPO-BETA", title: "β multiplies the policy's log-probs alone", needs: ofMargin,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			p.RefChosen, p.RefRejected = p.RefChosen/o.Beta, p.RefRejected/o.Beta
			return p.Loss(o)
		}},
	{id: "DPO-BETA", title: "β multiplies the reference's log-probs alone", needs: ofMargin,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			p.Chosen, p.Rejected = p.Chosen/o.Beta, p.Rejected/o.Beta
			return p.Loss(o)
		}},
	{id: "DPO-ANSWER-MISSING", title: "the rejected answer is left out of the margin",
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			p.Rejected, p.RefRejected = 0, 0
			return p.Loss(o)
		}},
	{id: "DPO-ANSWER-MISSING", title: "the chosen answer is left out of the margin",
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			p.Chosen, p.RefChosen = 0, 0
			return p.Loss(o)
		}},
	{id: "DPO-ANSWER-MISSING", title: "the answers are held against the reference one by one, not against each other: −ln σ(β·c) − ln σ(−β·r)", needs: kind(rl.DPOSigmoid),
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			return softplus(-o.Beta*(p.Chosen-p.RefChosen)) + softplus(o.Beta*(p.Rejected-p.RefRejected))
		}},
	{id: "DPO-SIGMOID", title: "the loss is 1 − σ(βh), without a logarithm", needs: kind(rl.DPOSigmoid),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return sigmoid(-o.Beta * marginOf(p)) }},
	{id: "DPO-SIGMOID", title: "the loss is −σ(βh), without a logarithm", needs: kind(rl.DPOSigmoid),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return -sigmoid(o.Beta * marginOf(p)) }},
	{id: "DPO-SMOOTHING", title: "the term of the wrong labels is subtracted: −(1 − ε)·ln σ(βh) + ε·ln σ(−βh)", needs: smoothed,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			x := o.Beta * rlMargin(o, p)
			return (1-o.LabelSmoothing)*softplus(-x) - o.LabelSmoothing*softplus(x)
		}},
	{id: "DPO-SMOOTHING", title: "the loss is that of robust DPO, divided by 1 − 2ε with the term of the wrong labels subtracted", needs: func(o rl.DPOOptions) bool { return smoothed(o) && o.LabelSmoothing != .5 },
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			x := o.Beta * rlMargin(o, p)
			return ((1-o.LabelSmoothing)*softplus(-x) - o.LabelSmoothing*softplus(x)) / (1 - 2*o.LabelSmoothing)
		}},
	{id: "DPO-SMOOTHING", title: "the term of the right labels is not multiplied by 1 − ε", needs: smoothed,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			x := o.Beta * rlMargin(o, p)
			return softplus(-x) + o.LabelSmoothing*softplus(x)
		}},
	{id: "DPO-SMOOTHING", title: "the term of the wrong labels is missing, that of the right ones is multiplied by 1 − ε", needs: smoothed,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			return (1 - o.LabelSmoothing) * softplus(-o.Beta*rlMargin(o, p))
		}},
	{id: "DPO-SMOOTHING", title: "ε is halved, as where it is shared among two classes", needs: smoothed,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			o.LabelSmoothing /= 2
			return p.Loss(o)
		}},
	{id: "DPO-SMOOTHING", title: "ε and 1 − ε are exchanged, which gives the numbers of exchanged answers, too", needs: smoothed,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			o.LabelSmoothing = 1 - o.LabelSmoothing
			return p.Loss(o)
		}},
	{id: "DPO-HINGE", title: "the hinge has no margin of 1: max(0, −βh)", needs: kind(rl.DPOHinge),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return max(0, -o.Beta*marginOf(p)) }},
	{id: "DPO-HINGE", title: "the hinge is of the other sign: max(0, βh − 1)", needs: kind(rl.DPOHinge),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return max(0, o.Beta*marginOf(p)-1) }},
	{id: "DPO-HINGE", title: "nothing cuts the hinge off at 0: 1 − βh", needs: kind(rl.DPOHinge),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return 1 - o.Beta*marginOf(p) }},
	{id: "DPO-HINGE", title: "the margin of the hinge is β, and multiplies nothing: max(0, β − h)", needs: kind(rl.DPOHinge),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return max(0, o.Beta-marginOf(p)) }},
	{id: "DPO-HINGE", title: "the hinge is squared", needs: kind(rl.DPOHinge),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { x := max(0, 1-o.Beta*marginOf(p)); return x * x }},
	{id: "DPO-IPO", title: "the target of ipo is 1/β, not 1/(2β)", needs: kind(rl.DPOIPO), of: target(one, func(b float64) float64 { return 1 / b })},
	{id: "DPO-IPO", title: "the target of ipo is β/2, not 1/(2β)", needs: kind(rl.DPOIPO), of: target(one, func(b float64) float64 { return b / 2 })},
	{id: "DPO-IPO", title: "the target of ipo is β, not 1/(2β)", needs: kind(rl.DPOIPO), of: target(one, same)},
	{id: "DPO-IPO", title: "the target of ipo is 2β, not 1/(2β)", needs: kind(rl.DPOIPO), of: target(one, func(b float64) float64 { return 2 * b })},
	{id: "DPO-IPO", title: "the target of ipo is ½, not 1/(2β)", needs: kind(rl.DPOIPO), of: target(one, func(float64) float64 { return .5 })},
	{id: "DPO-IPO", title: "ipo has no target: h²", needs: kind(rl.DPOIPO), of: target(one, zero)},
	{id: "DPO-IPO", title: "the margin of ipo is multiplied by β: (βh − 1/(2β))²", needs: kind(rl.DPOIPO), of: target(same, func(b float64) float64 { return 1 / (2 * b) })},
	{id: "DPO-IPO", title: "ipo is multiplied out by β: (βh − ½)²", needs: kind(rl.DPOIPO), of: target(same, func(float64) float64 { return .5 })},
	{id: "DPO-IPO", title: "ipo is of (βh − 1)², the square in place of the hinge", needs: kind(rl.DPOIPO), of: target(same, one)},
	{id: "DPO-IPO", title: "the target of ipo is added: (h + 1/(2β))², which gives the numbers of exchanged answers, too", needs: kind(rl.DPOIPO),
		of: target(one, func(b float64) float64 { return -1 / (2 * b) })},
	{id: "DPO-IPO", title: "ipo is |h − 1/(2β)|, without a square", needs: kind(rl.DPOIPO),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return math.Abs(marginOf(p) - 1/(2*o.Beta)) }},
	{id: "DPO-PER-TOKEN", title: "the log-probs of an answer are divided by its tokens", raw: true, of: perToken4(true, true)},
	{id: "DPO-PER-TOKEN", title: "the policy's log-probs of an answer are divided by its tokens, the reference's are not", raw: true, of: perToken4(true, false)},
	{id: "DPO-PER-TOKEN", title: "the reference's log-probs of an answer are divided by its tokens, the policy's are not", raw: true, of: perToken4(false, true)},
	{id: "DPO-PER-TOKEN", title: "the log-probs of both answers are divided by the tokens of the chosen one", raw: true,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			p.RejectedTokens = p.ChosenTokens
			return perToken4(true, true)(o, p)
		}},
}

// rlMargin is the margin by the divergence of o.
func rlMargin(o rl.DPOOptions, p stage.Pair) float64 {
	h, _, _ := rl.DPOMargin(p.Chosen, p.Rejected, p.RefChosen, p.RefRejected, o)
	return h
}

// perToken4 is the declared loss of log-probs divided by the tokens, of the policy, the reference, or both.
func perToken4(policy, reference bool) func(rl.DPOOptions, stage.Pair) float64 {
	return func(o rl.DPOOptions, p stage.Pair) float64 {
		if policy {
			p.Chosen, p.Rejected = p.Chosen/p.ChosenTokens, p.Rejected/p.RejectedTokens
		}
		if reference {
			p.RefChosen, p.RefRejected = p.RefChosen/p.ChosenTokens, p.RefRejected/p.RejectedTokens
		}
		return p.Loss(o)
	}
}

// hypothesis makes the bug of a pair's loss one.
func (l pairLoss) hypothesis() *Hypothesis {
	return &Hypothesis{ID: l.id, Title: l.title, Checks: pairOutputs, Foreign: l.apart, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		parts, some := c.PairParts(), false
		shows := make([]bool, len(parts))
		for i, q := range parts {
			shows[i] = l.shows(q)
			some = some || shows[i]
			if q.Sorts && len(parts) > 1 {
				return nil
			}
		}
		if !some || (l.raw || l.apart) && (c.B.Row("chosen_tokens") == nil || c.B.Row("rejected_tokens") == nil) {
			return nil
		}
		return c.Pairs(ch, func(p stage.Pair) (sum float64) {
			for i, q := range parts {
				of, loss := p, l.of
				if q.PerToken && !(l.apart && shows[i]) {
					of = p.PerToken()
				}
				if !shows[i] {
					loss = func(o rl.DPOOptions, p stage.Pair) float64 { return p.Loss(o) }
				}
				sum += q.Weight * loss(q.Options, of)
			}
			return sum
		})
	}}
}

// shows reports whether the bug can be in one of the losses that are summed.
func (l pairLoss) shows(q stage.LossPart) bool {
	switch {
	case l.needs != nil:
		return l.needs(q.Options)
	case l.raw, l.apart:
		return q.PerToken == l.apart && !q.Sorts && q.Options.Kind != rl.DPOORPO
	}
	return q.Options.Kind != rl.DPOORPO
}

// onlyPart returns the one loss of pairs by the reverse KL of log-probs as they were dumped, nil where it is another.
func onlyPart(c *stage.Case) *stage.LossPart {
	parts := c.PairParts()
	if len(parts) != 1 || parts[0].Weight != 1 || parts[0].PerToken || parts[0].Sorts || parts[0].Options.Divergence != rl.DPOReverseKL {
		return nil
	}
	return &parts[0]
}

// preferenceFaults are bugs of losses of pairs and of labelled answers.
var preferenceFaults = slices.Concat(tokenFaults(), answerRowFaults(), pairHypotheses(), answerFaults(), []*Hypothesis{
	{ID: "DPO-REFERENCE-ROWS", Checks: pairOutputs, Title: "the reference's log-probs are those of the pair before",
		Input: both(rolled("ref_chosen", 1), rolled("ref_rejected", 1))},
	{ID: "DPO-REFERENCE-ROWS", Checks: pairOutputs, Title: "the reference's log-probs are those of the next pair",
		Input: both(rolled("ref_chosen", -1), rolled("ref_rejected", -1))},
	{ID: "DPO-MEAN-INSIDE", Checks: []string{"preference/dpo_loss"}, Predict: meanInside},
	{ID: "DPO-NLL", Checks: []string{"preference/dpo_loss"}, Title: "the cross-entropy beside the preference loss is subtracted",
		Input: number("dpo.nll_weight", func(w float64) float64 { return -w })},
	{ID: "DPO-NLL", Checks: []string{"preference/dpo_loss"}, Title: "the coefficient of the cross-entropy beside the preference loss enters twice",
		Input: number("dpo.nll_weight", func(w float64) float64 { return w * w })},
	{ID: "DPO-NLL", Checks: []string{"preference/dpo_loss"}, Title: "the coefficient of the cross-entropy multiplies the preference loss instead",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			w := c.Set.Value("dpo.nll_weight")
			if w.Kind() != convention.Number || w.Num() == 0 || w.Num() == 1 {
				return nil
			}
			p := under(number("dpo.nll_weight", func(w float64) float64 { return 1 / w }), c, ch)
			return combined(w.Num(), p, 0, p)
		}},
	{ID: "DPO-NLL", Checks: []string{"preference/dpo_loss"}, Title: "the cross-entropy beside the preference loss is that of the rejected answers", Input: nllOfRejected},
	{ID: "DPO-NLL", Checks: []string{"preference/dpo_loss"}, Title: "the cross-entropy beside the preference loss is the sum over the tokens of an answer, not their mean", Input: nllOfSums},
	{ID: "GRADIENT-ZERO", Checks: pairGradients, Predict: noGradient(func(c *stage.Case, ch *stage.Check) bool { return !anyOf(c, otherAnswer(ch).Output, false) })},
	{ID: "DPO-GRADIENT", Checks: pairGradients, Title: "one of the two answers is detached: its log-prob has no gradient",
		Predict: noGradient(func(c *stage.Case, ch *stage.Check) bool { return anyOf(c, otherAnswer(ch).Output, false) })},
	{ID: "DPO-GRADIENT", Checks: pairGradients, Title: "the gradient has no weight σ(−βh): every pair counts β", Predict: pairSlope(func(o rl.DPOOptions, _ float64) float64 { return o.Beta })},
	{ID: "DPO-GRADIENT", Checks: pairGradients, Title: "the gradient is weighted by σ(βh) in place of σ(−βh): pairs in order count most", Predict: pairSlope(func(o rl.DPOOptions, h float64) float64 { return o.Beta * sigmoid(o.Beta*h) })},
	{ID: "DPO-GRADIENT", Checks: pairGradients, Title: "the gradient is that of the other answer", Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		return under(sameInput, c, otherAnswer(ch))
	}},
}, preferenceMeans, exchangedAnswers, preferenceMetricFaults)

func pairHypotheses() []*Hypothesis {
	var list []*Hypothesis
	for _, l := range slices.Concat(pairLosses, termLosses, apoLosses(), sideLosses, lengthLosses, smoothedAnyway(), heldMargins(), marginSlips()) {
		list = append(list, l.hypothesis())
	}
	return list
}

// otherAnswer is the gradient of the other answer of a pair.
func otherAnswer(ch *stage.Check) *stage.Check {
	return stage.Find(pairGradients[boolToInt(ch.ID == pairGradients[0])])
}

// pairSlope is the gradient of a sigmoid loss whose pairs have other weights.
func pairSlope(weight func(o rl.DPOOptions, h float64) float64) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		q := onlyPart(c)
		if q == nil || q.Options.Kind != rl.DPOSigmoid {
			return nil
		}
		o := q.Options
		p := under(sameInput, c, ch)
		if p == nil {
			return nil
		}
		of := &stage.Prediction{Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want))}
		lp, lr, rc, rr := c.B.Row("logp_chosen"), c.B.Row("logp_rejected"), c.B.Row("ref_chosen"), c.B.Row("ref_rejected")
		for i, d := range p.Want {
			h := lp[i] - lr[i] - (rc[i] - rr[i])
			right := o.Beta * (o.LabelSmoothing*sigmoid(o.Beta*h) - (1-o.LabelSmoothing)*sigmoid(-o.Beta*h))
			k := -weight(o, h) / right
			of.Want[i], of.Bound[i] = k*d, math.Abs(k)*p.Bound[i]
		}
		return of
	}
}

// meanInside is the loss of the mean margin of a batch.
func meanInside(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	if q := onlyPart(c); q == nil || q.Options.Kind == rl.DPOORPO || c.Has("pair_loss") {
		return nil
	}
	for _, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"} {
		b = b.With(name, fileMeans(c, b.Row(name)))
	}
	return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) { return b, c.Set, true }, c, ch)
}

// nllOfRejected returns the input whose cross-entropy is that of the rejected answers, in the form that reproduces the dumped one of the
// chosen: a mean over the tokens of the batch, or over the answers of their sums or means.
func nllOfRejected(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b := c.B
	nll := b.PerFile("nll_loss")
	if nll == nil {
		return nil, nil, false
	}
	form := func(lp, tokens []float64, file dump.FileInfo, kind int) float64 {
		var sum, n float64
		for r := file.Lo; r < file.Hi; r++ {
			switch {
			case kind == 0:
				sum, n = sum-lp[r], n+1
			case tokens == nil:
				return math.NaN()
			case kind == 1:
				sum, n = sum-lp[r], n+tokens[r]
			default:
				sum, n = sum-lp[r]/tokens[r], n+1
			}
		}
		return sum / n
	}
	for kind := range 3 {
		other := make([]float64, len(nll))
		fits := true
		for f, file := range b.Files {
			fits = fits && math.Abs(form(b.Row("logp_chosen"), b.Row("chosen_tokens"), file, kind)-nll[f]) <= 1e-4*math.Abs(nll[f])
			other[f] = form(b.Row("logp_rejected"), b.Row("rejected_tokens"), file, kind)
		}
		if fits && !slices.ContainsFunc(other, math.IsNaN) {
			return b.With("nll_loss", other), c.Set, true
		}
	}
	return nil, nil, false
}

// nllOfSums is the input whose cross-entropy is the mean over the pairs of −logp_chosen, the sum over the tokens of an answer.
func nllOfSums(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b := c.B
	nll, lp := b.PerFile("nll_loss"), b.Row("logp_chosen")
	if nll == nil || len(lp) != b.Rows {
		return nil, nil, false
	}
	other := make([]float64, len(nll))
	for f, file := range b.Files {
		for r := file.Lo; r < file.Hi; r++ {
			other[f] -= lp[r] / float64(file.Hi-file.Lo)
		}
	}
	return b.With("nll_loss", other), c.Set, true
}
