package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// LossInputs are what the loss of a batch may have been computed from where a bug put something else in the place of what was dumped. The files keep their
// losses.
type LossInputs struct {
	Batch   *dump.Batch // rows, mask, advantages and the log-probs of ratios
	KL      *dump.Batch // whose logp_new and logp_ref the KL is of; nil: those of Batch
	Weights *dump.Batch // whose logp_old and logp_gen the weights between engine and trainer are of; nil: those of Batch
	Minus   bool        // the KL is subtracted
	Term    string      // "kl" or "weights": what is not made of these is as without a bug
}

// kl returns the log-probs that the KL is of, and those of its reference.
func (in LossInputs) kl(b *dump.Batch) (policy, reference []float64) {
	if in.KL != nil {
		b = in.KL
	}
	return b.Token("logp_new"), b.Token("logp_ref")
}

// weights returns the log-probs of the rollout and those of the engine.
func (in LossInputs) weights(b *dump.Batch) (trainer, engine []float64) {
	if in.Weights != nil {
		b = in.Weights
	}
	return b.Token("logp_old"), b.Token("logp_gen")
}

// Silent reports whether the losses are all that a run says of its tokens, and no form with its numbers explains them.
func (l *Losses) Silent() bool {
	if len(l.pairs.loss) > 0 || l.forms.no || !l.forms.solver.solvable() {
		return false
	}
	if l.forms.policy {
		fit, _ := l.forms.best()
		return fit == nil
	}
	return !l.parts && l.fitted() == nil
}

// The work of a search beneath one bug of the inputs, and beneath all, in tokens.
const mostBeneath, mostBeneathAll = 60e6, 600e6

// Beneath solves for the form and the numbers of losses beneath a bug in what they were computed from, and reports whether there are any. These are then
// those of l. It is for losses that are [Losses.Silent], with the inputs of all batches.
func (l *Losses) Beneath(list []LossInputs) bool {
	f := &l.forms
	var t boundTokens
	for _, in := range list {
		b := in.Batch
		c := NewCase(b, &convention.Set{}, 0)
		adv := c.advantagesOfLoss()
		lp := b.Token("logp_new")
		if adv == nil || lp == nil {
			return false
		}
		name := "loss"
		if f.policy {
			name = "pg_loss"
		}
		t.add(c, in, b.PerFile(name), adv, f.whole.unit, !f.policy)
	}
	if !t.solvable() || !t.finite() {
		return false
	}
	stages, term := boundStages(t.hasEngine), list[0].Term
	if term == "weights" {
		stages = slices.DeleteFunc(stages, func(s boundStage) bool { return s.weights[0] == "" })
	}
	t.besideKL = term == "kl"
	fit, form := t.together(t.among(stages, t.kinds(), min(mostBeneath, mostBeneathAll-l.beneath), &l.beneath))
	if fit == nil {
		return false
	}
	form.wrong = true
	f.fit, f.form, f.beside = fit, form.lossForm, form.options()
	return true
}

// finite reports whether all numbers of the tokens are.
func (t *boundTokens) finite() bool {
	for _, x := range [][]float64{t.lp, t.old, t.adv, t.ref, t.klOf, t.given, t.entropy} {
		if slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }) {
			return false
		}
	}
	return true
}

// advantagesOfLoss returns the advantages of tokens as a loss has them, nil where there are none.
func (c *Case) advantagesOfLoss() []float64 {
	adv := c.B.Token("advantages")
	if row := c.B.Row("advantages"); adv == nil && len(row) == c.B.Rows {
		adv = c.spread(row)
	}
	if adv == nil {
		return nil
	}
	return c.weighted(adv)
}
