package dump

import (
	"context"
	"slices"

	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// alike adds to what explains t and a failure before it by two names those of one that give the numbers of the other, too: it is one bug. A formula of the
// policy's loss means nothing in the critic's.
func (s *session) alike(ctx context.Context, t *track, before []*track) error {
	for _, u := range before {
		related := groupOf(u.check.ID) == groupOf(t.check.ID) || slices.Contains(made[groupOf(t.check.ID)], groupOf(u.check.ID))
		if !related || apart(t.check.ID, u.check.ID) || !t.proven() || !u.proven() || slices.ContainsFunc(t.why.faults, u.has) {
			continue
		}
		found, err := s.borrow(ctx, t, u)
		if err == nil && !found {
			_, err = s.borrow(ctx, u, t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shares reports whether a bug that explains u may be that of t: both are of one stage, or a loss and its gradient.
func (t *track) shares(u *track) bool {
	return u != t && u.first.Rules == nil && (u.check.Stage == t.check.Stage || slices.Contains(gradients[t.check.ID], u.check.ID))
}

// lend gives a failure that nothing explains in all its steps the bug of rows of other steps, or those of another failure of its stage: a number that was solved
// for seemed to explain its first step, and stood before them.
func (s *session) lend(ctx context.Context, t *track, failing []*track) error {
	if t.unexplained() {
		t.fromBeside(s)
		if err := s.everywhere(ctx, t); err != nil {
			return err
		}
	}
	for _, u := range failing {
		if !t.unexplained() || !t.shares(u) || !u.proven() {
			continue
		}
		if _, err := s.borrow(ctx, t, u); err != nil {
			return err
		}
	}
	return nil
}

// borrow gives a failure the explanations of another one that reproduce it, in its other steps, too. A name is put before a factor, of which it says more.
func (s *session) borrow(ctx context.Context, to, from *track) (any bool, err error) {
	const tries = 3 // steps
	for _, e := range from.why.faults {
		f, ok := fault.Shared(e, to.first)
		for _, step := range spread(to.failing, tries) {
			if !ok || step == to.first.Case.B.Meta.Step {
				continue
			}
			u, err := s.unit(ctx, to, step)
			if err != nil {
				return any, err
			}
			ok = !fault.Contradicts(f, stage.Judge(to.check, u.b, completed(to, u.set)))
		}
		if !ok {
			continue
		}
		to.decidedBeside([]*track{from})
		any, to.why.others = true, append(to.why.others, f.Hypothesis.ID)
		at := len(to.why.faults)
		if !slices.ContainsFunc(to.why.faults, func(e fault.Explanation) bool { return e.Factor == "" }) {
			at = 0
		}
		to.why.faults = slices.Insert(to.why.faults, at, f)
	}
	return any, nil
}

// proven reports whether nothing but bugs explain a failure of numbers.
func (t *track) proven() bool {
	return t.first.Rules == nil && len(t.why.fits) == 0 && len(t.why.faults) > 0 && !slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return e.Lead })
}

// has reports whether a bug, or a factor, is among what explains t.
func (t *track) has(e fault.Explanation) bool {
	return slices.ContainsFunc(t.why.faults, func(f fault.Explanation) bool { return f.Hypothesis.ID == e.Hypothesis.ID && f.Factor == e.Factor })
}

// widestFirst puts the bug that explains the most of the failing checks first of those that explain t: what explains one of them alone leaves
// the others to a second bug. A factor, and a lead, stand for no bug of their own, and keep their places.
func (t *track) widestFirst(failing []*track) {
	if slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return e.Lead || e.Factor != "" }) {
		return
	}
	explains := func(e fault.Explanation) (n int) {
		for _, u := range failing {
			if slices.ContainsFunc(u.why.faults, func(f fault.Explanation) bool { return !f.Lead && f.Hypothesis.ID == e.Hypothesis.ID }) && !slices.Contains(u.why.others, e.Hypothesis.ID) {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(t.why.faults, func(a, b fault.Explanation) int { return explains(b) - explains(a) })
}
