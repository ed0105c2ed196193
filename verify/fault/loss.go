package fault

import (
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// againstLoss splits explanations of a gradient into those that the losses of the same batch allow, and those that they refute: a bug of a
// term changes the loss as it changes the derivative, so that a loss which is right, and would not be with the bug, has its term, and what
// is wrong is the way the gradient takes through it.
func (t *trial) againstLoss(list []Explanation) (allowed, refuted []Explanation) {
	o := t.levels[0]
	var right []*stage.Outcome
	for _, id := range stage.LossesOf[o.Check.ID] {
		if l := stage.Judge(stage.Find(id), o.Case.B, o.Case.Set); l.Verdict == check.Pass && l.Pred != nil {
			right = append(right, l)
		}
	}
	for _, e := range list {
		if slices.ContainsFunc(right, func(l *stage.Outcome) bool { return RefutedBy(e, l) }) {
			refuted = append(refuted, e)
		} else {
			allowed = append(allowed, e)
		}
	}
	return allowed, refuted
}

// RefutedBy reports whether an output that is right would be wrong with the bug of e.
func RefutedBy(e Explanation, right *stage.Outcome) bool {
	h := e.Hypothesis
	if e.Lead || e.Factor != "" || !h.Applies(right.Check) || right.Verdict != check.Pass || right.Pred == nil {
		return false
	}
	q := h.judge(right)
	return q != nil && q.Verdict == check.Fail
}
