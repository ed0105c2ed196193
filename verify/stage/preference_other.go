package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// LossPart is one of the preference losses that are summed.
type LossPart struct {
	Weight   float64
	Options  rl.DPOOptions // the kind of one that sorts is the sigmoid of its ranks
	PerToken bool
	Sorts    bool
}

// PairParts returns the losses of pairs that are summed, nil where something is not known.
func (c *Case) PairParts() (parts []LossPart) {
	d := c.Of(c.B, c.Set)
	p := d.readPairs()
	if !d.OK() {
		return nil
	}
	for _, q := range p.parts {
		parts = append(parts, LossPart{q.weight, q.o, q.tokens, q.ranks != nil})
	}
	return parts
}

// Pairs predicts an output of a preference loss (pair_loss, loss, dlogp_chosen, dlogp_rejected) whose pairs have another loss than the
// declared one; nil where something is not known, and for a loss where pair_loss was dumped, since the difference shows there. f gets
// the log-probs as they were dumped, or, of a loss that sorts, those of ranks, whose gradient is nil. Its error is what a shift of either
// log-ratio by e = stored + 4u·Σ|log-probs| makes of it, and that of a few operations. Derivatives are central differences of fourth order.
func (c *Case) Pairs(ch *Check, f func(Pair) float64) *Prediction {
	p := c.readPairs()
	nll := c.nllTerm(c.oddsRatio())
	steps := c.pairSteps()
	if !c.OK() {
		return nil
	}
	raw, stored := p.raw, p.stored
	if q := p.parts[0]; q.ranks != nil {
		raw, stored = q.of, q.stored
	}
	u := c.Unit + tol.U64
	value := func(g func(Pair) float64, r int) (x, err float64) {
		q := raw[r]
		x = g(q)
		e := stored[r] + 4*u*q.size()
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
		chosen := ch.Output == "dlogp_chosen"
		if chosen && c.nllWeight(c.oddsRatio()) != 0 || p.parts[0].ranks != nil || !(math.Abs(scale) > 0) || math.IsInf(scale, 0) {
			return nil
		}
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
			return d, err + 8*u*p.parts[0].o.Beta
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
