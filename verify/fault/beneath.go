package fault

import (
	"iter"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Beneath yields, for every bug of what a policy loss is computed from, what the losses of some batches are then of. Numbers of a loss that nobody declares
// are solved for with the bug in place, where they are not without.
func Beneath(batches []*dump.Batch) iter.Seq[[]stage.LossInputs] {
	return func(yield func([]stage.LossInputs) bool) {
		for _, of := range lossBugs() {
			if list := of.all(batches); list != nil && !yield(list) {
				return
			}
		}
	}
}

// ratioInput is a bug of the log-probs that ratios are taken to.
type ratioInput struct {
	id string
	in input
}

var ratioInputs = []ratioInput{
	{"OLD-IS-REF", instead("logp_old", "logp_ref")},
	{"OLD-IS-GEN", instead("logp_old", "logp_gen")},
	{"OLD-RECOMPUTED", instead("logp_old", "logp_new")},
	{"OLD-ROWS-ROLLED", rolled("logp_old", 1)},
	{"OLD-ROWS-ROLLED-BACK", rolled("logp_old", -1)},
	{"OLD-SHIFT", shifted("logp_old", 1)},
	{"OLD-SHIFT-BACK", shifted("logp_old", -1)},
}

// lossBug is a bug of what a loss is computed from.
type lossBug struct {
	in   input
	term string // "ratio", "kl" or "weights" where it is of the log-probs of that alone, "minus" where the KL is subtracted; "": of all
}

// lossBugs are the bugs of the catalogue that change the inputs of a loss, or of one of its terms, those of a term first, which few forms have.
func lossBugs() (list []lossBug) {
	loss, sum, kl, weights := stage.Find("token_loss/policy"), stage.Find("aggregate/loss"), stage.Find("kl/token"), stage.Find("ratio/is_weights")
	var ofAll []lossBug
	for _, h := range all {
		switch {
		case h.Input == nil:
		case h.Applies(kl):
			list = append(list, lossBug{h.Input, "kl"})
		case h.Applies(weights) && !h.Applies(loss):
			list = append(list, lossBug{h.Input, "weights"})
		case h.Applies(sum):
			ofAll = append(ofAll, lossBug{in: h.Input})
		}
	}
	list = append(list, lossBug{term: "minus"})
	for _, in := range ratioInputs {
		list = append(list, lossBug{in.in, "ratio"})
	}
	return append(list, ofAll...)
}

// all returns the inputs of batches, nil where the bug does not show in them.
func (l lossBug) all(batches []*dump.Batch) (list []stage.LossInputs) {
	shows := false
	for _, b := range batches {
		in := stage.LossInputs{Batch: b}
		if l.term == "minus" {
			in.Term = "kl"
			in.Minus = b.Token("logp_ref") != nil || b.Token("kl") != nil
			shows = shows || in.Minus
			list = append(list, in)
			continue
		}
		changed, _, ok := l.in(stage.NewCase(b, &convention.Set{}, 0))
		if !ok {
			changed = b
		}
		shows = shows || changed != b
		switch l.term {
		case "kl":
			in.KL, in.Term = changed, l.term
		case "weights":
			in.Weights, in.Term = changed, l.term
		case "ratio":
			in.Batch, in.Weights = changed, b
		default:
			in.Batch = changed
		}
		list = append(list, in)
	}
	if !shows || slices.ContainsFunc(list, func(in stage.LossInputs) bool { return in.Batch == nil }) {
		return nil
	}
	return list
}

// ofKL tries the bugs of the log-probs that a KL is of on a loss of which the losses of tokens and the KL were not dumped: the policy's term keeps its own.
func (t *trial) ofKL(known []Explanation) (found []Explanation) {
	o := t.levels[0]
	if o.Check.ID != "aggregate/loss" || o.Case.Has("token_loss") || o.Case.Has("kl") {
		return nil
	}
	kl := stage.Find("kl/token")
	for _, h := range all {
		if h.Input == nil || !h.Applies(kl) || slices.ContainsFunc(known, func(e Explanation) bool { return e.Hypothesis.ID == h.ID }) {
			continue
		}
		lifted := *h
		lifted.Input = nil
		lifted.Predict = func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			b, set, ok := h.Input(c)
			if !ok {
				return nil
			}
			return combined(1, under(sameInput, c, ch), 1, combined(1, klOnly(c.Of(b, set), ch), -1, klOnly(c, ch)))
		}
		if e, ok := t.try(&lifted, "", lifted.judge); ok && !e.Lead {
			found = append(found, e)
		}
	}
	return found
}
