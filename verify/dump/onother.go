package dump

import (
	"context"
	"fmt"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// onOther looks for a bug on top of another value of a number that nobody declares: a profile gives a hyperparameter its framework's default, and a
// program that has its own and a bug, too, fails under every other explanation. The failure then stands as one under that value.
func (s *session) onOther(ctx context.Context, t *track) error {
	const tries = 2 // steps
	if s.profile == nil || !t.unexplained() || t.first.Pred == nil {
		return nil
	}
	for _, step := range append([]int{t.first.Case.B.Meta.Step}, spread(t.failing[1:], tries)...) {
		u, err := s.unit(ctx, t, step)
		if err != nil {
			return err
		}
		o := stage.Judge(t.check, u.b, completed(t, u.set))
		if o.Verdict != check.Fail || o.Pred == nil {
			continue
		}
		for _, option := range o.Case.Read {
			for _, c := range others(o.Case.Set, option, s.profile.Name) {
				if ok, err := s.onTop(ctx, t, o, c, ""); ok || err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// others returns the changes of a number, or of a bound that a profile leaves out, whose value is that of the profile, to what other frameworks have.
func others(set *convention.Set, option, profile string) (list []stage.Change) {
	from := set.Value(option)
	o, err := convention.Find(option)
	if err != nil || o.Type != convention.NumberType && o.Type != convention.OrNoneType || set.Origin(option) != profile || from.Kind() == convention.NotApplicable {
		return nil
	}
	for _, to := range set.Among(option) {
		if to != from && to.Kind() != convention.NotApplicable {
			list = append(list, stage.Change{Option: option, From: from, To: to})
		}
	}
	return list
}

// onTop explains a failure o of t as a bug under another value of an option, the bug of an id where that is not "", and reports whether one does, in
// the other steps, too.
func (s *session) onTop(ctx context.Context, t *track, o *stage.Outcome, c stage.Change, id string) (bool, error) {
	over, declared := []stage.Change{c}, o
	if o = stage.Judge(t.check, o.Case.B, changed(o.Case.Set, over)); o.Verdict != check.Fail || o.Pred == nil {
		return false, nil
	}
	found := slices.DeleteFunc(fault.Explain(o), func(e fault.Explanation) bool {
		return e.Lead || e.Factor != "" || e.Hypothesis.ID == "FACTOR" || id != "" && e.Hypothesis.ID != id
	})
	if len(found) == 0 {
		if id != "" {
			return false, nil
		}
		return s.otherwise(ctx, t, declared, o, c)
	}
	for i, e := range found {
		h := *e.Hypothesis
		h.Title += fmt.Sprintf(", on top of %s %s, which nobody declares, where %s has %s", c.Option, c.To, s.profile.Name, c.From)
		found[i].Hypothesis = &h
	}
	first, why := t.first, t.why
	t.first, t.over, t.why = o, over, explanation{steps: 1, faults: found, all: why.all}
	if err := s.everywhere(ctx, t); err != nil {
		return false, err
	}
	if len(t.why.faults) == 0 {
		t.first, t.over, t.why = first, nil, why
		return false, nil
	}
	return true, nil
}

// edited tries all edits of a formula on the first failing step where bugs fit that step and no other: a number whose bound is wide fits many, and what fits
// leaves out the rest of what [fault.Explain] can try.
func (s *session) edited(ctx context.Context, t *track) error {
	if !t.why.some || !t.unexplained() || t.first.Pred == nil || len(t.over) > 0 || s.spent() {
		return nil
	}
	why := t.why
	for _, found := range fault.Edited(t.first) {
		t.why = explanation{steps: 1, faults: found, all: why.all}
		if err := s.everywhere(ctx, t); err != nil {
			return err
		}
		if len(t.why.faults) > 0 {
			return nil
		}
	}
	t.why = why
	return nil
}

// everywhere keeps what explains the first failure of t and other steps, too.
func (s *session) everywhere(ctx context.Context, t *track) error {
	for _, step := range append([]int{t.failing[0]}, t.witnesses()...) {
		if step == t.first.Case.B.Meta.Step || len(t.why.faults)+len(t.why.fits) == 0 {
			continue
		}
		u, err := s.unit(ctx, t, step)
		if err != nil {
			return err
		}
		t.confirm(u.b, u.set)
	}
	return nil
}

// otherwise is [session.onTop] of an option that is a known bug where its value is not the declared one.
func (s *session) otherwise(ctx context.Context, t *track, declared, o *stage.Outcome, c stage.Change) (bool, error) {
	var fits []stage.Fit
	for _, f := range stage.Changed(o) {
		if len(f.Changes) != 1 || f.Changes[0].Option == c.Option {
			continue
		}
		if _, named := fault.OfChange(f.Changes[0]); named && tenable(f, s.closed) {
			f.Changes = append(slices.Clone(f.Changes), c)
			f.Set = changed(declared.Case.Set, f.Changes)
			fits = append(fits, f)
		}
	}
	if len(fits) == 0 {
		return false, nil
	}
	first, why := t.first, t.why
	t.first, t.why = declared, explanation{steps: 1, fits: fits, all: why.all}
	if err := s.everywhere(ctx, t); err != nil {
		return false, err
	}
	if len(t.why.fits) == 0 {
		t.first, t.why = first, why
		return false, nil
	}
	t.otherwise = true
	return true, nil
}

// onSame explains a failure as the bug that explains its loss or its gradient on top of another value of an option, where its own explanation is other
// options or none.
func (s *session) onSame(ctx context.Context, t *track, failing []*track) error {
	if len(t.over) > 0 || t.first.Rules != nil || t.first.Pred == nil || slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }) {
		return nil
	}
	for _, u := range failing {
		if u == t || !related(t.check, u.check) {
			continue
		}
		if u.otherwise && !t.otherwise {
			first, why := t.first, t.why
			t.why = explanation{steps: 1, fits: slices.Clone(u.why.fits), all: why.all}
			t.why.fits = slices.DeleteFunc(t.why.fits, func(f stage.Fit) bool {
				return stage.Judge(t.check, first.Case.B, changed(first.Case.Set, f.Changes)).Verdict != check.Pass
			})
			if err := s.everywhere(ctx, t); err != nil {
				return err
			}
			if len(t.why.fits) > 0 {
				return nil
			}
			t.first, t.why = first, why
		}
		if len(u.over) == 0 {
			continue
		}
		for _, e := range u.why.faults {
			if ok, err := s.onTop(ctx, t, t.first, u.over[0], e.Hypothesis.ID); ok || err != nil {
				return err
			}
		}
	}
	return nil
}
