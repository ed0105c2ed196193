package stage

import (
	"math"

	"plumbline/verify/convention"
)

// Form returns the options of the loss that the losses of the files show where they are all that says of its terms, the bounds where they act.
func (l *Losses) Form() []Change {
	if f := l.fitted(); f != nil && f.misdivided != "" && l.forms.fit == nil && !l.parts && len(l.pairs.loss) == 0 {
		return openOf([][]assign{f.reduction()}, &convention.Set{})[0]
	}
	fit, form := l.forms.best()
	if fit == nil || l.parts && !l.forms.policy || len(l.pairs.loss) > 0 {
		return nil
	}
	var list []assign
	if form.kl != "" {
		list = append(list, word("kl.place", "loss"))
		if form.kl != anyKL {
			list = append(list, word("kl.kind", form.kl))
		}
		if form.kl != anyKL && form.corrected {
			list = append(list, word("kl.grad", "is_corrected"))
		}
	}
	switch form.level {
	case "":
	case logLevel:
		list = append(list, word("loss.kind", "reinforce"))
	case detachedLevel:
		list = append(list, word("ratio.old", "stopgrad_new"))
	default:
		list = append(list, word("ratio.level", form.level))
	}
	if form.engine {
		list = append(list, word("ratio.old", "engine"))
	}
	if fit.constant > 0 && l.forms.solver.ofAll(fit.constant) == 1 {
		list = append(list, word("agg.kind", "token_sum"))
	} else if l.constantOfWhole() > 0 { // which the padded width may be, and a mean over padding has its numbers where padding adds nothing
		list = append(list, word("agg.kind", "seq_sum_const"))
	}
	if fit.misdivided != "" || fit.turned || l.forms.beneath {
		list = append(list, fit.reduction()...)
	}
	for _, of := range []struct {
		option string
		bound  float64
	}{{"clip.low", form.low}, {"clip.high", form.high}} {
		switch {
		case math.IsNaN(of.bound):
		case math.IsInf(of.bound, 0):
			list = append(list, word(of.option, "none"))
		default:
			list = append(list, amount(of.option, of.bound))
		}
	}
	list = append(list, l.forms.beside...)
	if shown := openOf([][]assign{list}, &convention.Set{}); len(shown) > 0 {
		return shown[0]
	}
	return nil
}
