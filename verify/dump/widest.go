package dump

import (
	"slices"
	"strings"

	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// kin are the failing checks of the loss that t is a gradient of, or of the gradient of its loss, which something explains.
func (t *track) kin(tracks []*track) (list []*track) {
	for _, u := range tracks {
		if u != t && !u.silent && len(u.failing) > 0 && u.first.Rules == nil && related(t.check, u.check) && u.explained() {
			list = append(list, u)
		}
	}
	return list
}

// fitsAsWell reports whether t fits under options that a fit has, too, and under none that contradict it. An option that has no value under
// another one contradicts nothing.
func (t *track) fitsAsWell(f stage.Fit) bool {
	none := func(v convention.Value) bool { return v.Kind() == convention.NotApplicable }
	return slices.ContainsFunc(t.why.fits, func(g stage.Fit) bool {
		shared := false
		for _, c := range f.Changes {
			for _, d := range g.Changes {
				switch {
				case c.Option != d.Option || none(c.To) || none(d.To):
				case c.To != d.To:
					return false
				default:
					shared = true
				}
			}
		}
		return shared
	})
}

// decidedBeside notes failures that chose between the explanations of t: it is repeated with them.
func (t *track) decidedBeside(others []*track) {
	for _, u := range others {
		if u != t && !slices.Contains(t.beside, u.check.ID) {
			t.beside = append(t.beside, u.check.ID)
		}
	}
}

// repeat returns the flags that find the failure of t again.
func (t *track) repeat(s *session) string {
	return "--select " + strings.Join(append([]string{t.check.ID}, t.beside...), ",") + s.repeatSteps(t)
}

// sharedFirst puts the fits first that fit the kin of a failure, too: a program has one value of an option in a loss and in its derivative.
func sharedFirst(fits []stage.Fit, kin []*track) []stage.Fit {
	shared := func(f stage.Fit) (n int) {
		for _, u := range kin {
			n += one(u.fitsAsWell(f))
		}
		return n
	}
	slices.SortStableFunc(fits, func(a, b stage.Fit) int { return shared(b) - shared(a) })
	return fits
}

// giveWay leaves out the options that fit t, and contradict what is declared, where its kin fit under none of them, and a bug or a factor explains
// both.
func (t *track) giveWay(failing []*track) {
	if len(t.why.fits) == 0 || t.first.Rules != nil {
		return
	}
	kin := t.kin(failing)
	known := func(e fault.Explanation) bool {
		return !e.Lead && slices.ContainsFunc(kin, func(u *track) bool {
			return slices.ContainsFunc(u.why.faults, func(f fault.Explanation) bool {
				return !f.Lead && f.Hypothesis.ID == e.Hypothesis.ID && f.Factor == e.Factor
			})
		})
	}
	if !slices.ContainsFunc(t.why.faults, known) || slices.ContainsFunc(t.why.fits, func(f stage.Fit) bool {
		return declaredChanges(f) == 0 || slices.ContainsFunc(kin, func(u *track) bool { return u.fitsAsWell(f) })
	}) {
		return
	}
	t.why.fits = nil
	t.decidedBeside(kin)
	slices.SortStableFunc(t.why.faults, func(a, b fault.Explanation) int { return one(known(b)) - one(known(a)) })
}

// related reports whether two checks are of a loss and of its gradient, of an estimate and of the gradient of the loss that it is in, or of the
// advantages of groups and of the token rewards that are made of them.
func related(a, b *stage.Check) bool {
	pair := func(x, y string) bool { return a.ID == x && b.ID == y || a.ID == y && b.ID == x }
	return derived(a, b) || pair("kl/token", "gradient/dlogp") || pair("reward/token", "advantage/group")
}

// explained reports whether options or a bug explain a failure of numbers.
func (t *track) explained() bool {
	return len(t.why.fits) > 0 || slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead })
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
