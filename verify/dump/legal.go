package dump

import (
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// legal looks for a right program beside what explains a failure: a bug that is another value of an option is what a program is configured to where nobody
// declares the option, if all that was judged is right under it. A search begins at profiles, and does not try that value on the base of the explanation.
func (t *track) legal(s *session) (changes []stage.Change, ok bool) {
	const most = 48 // values
	if s.profile != nil || !t.searched || t.first.Rules != nil {
		return nil, false
	}
	open := func(c stage.Change) bool { // and no other check says otherwise
		return !isDeclared(t.first.Case.Set, c.Option) && slices.Contains(t.first.Case.Read, c.Option) && !slices.ContainsFunc(s.tracks, func(u *track) bool {
			return slices.ContainsFunc(u.decided(), func(d stage.Change) bool { return d.Option == c.Option && d.To != c.To })
		})
	}
	var seen []string
	n := 0
	for _, e := range t.why.faults {
		if e.Hypothesis == nil || slices.Contains(seen, e.Hypothesis.ID) {
			continue
		}
		seen = append(seen, e.Hypothesis.ID)
		for _, list := range fault.ConfiguredAs(e.Hypothesis.ID, t.first.Case.B, t.first.Case.Set) {
			if n++; n > most {
				return nil, false
			}
			if !slices.ContainsFunc(list, func(c stage.Change) bool { return isDeclared(t.first.Case.Set, c.Option) }) && open(list[0]) && t.rightUnder(t.asked(changed(t.first.Case.Set, list), 0), s) {
				return append(t.besides(list), list...), true
			}
		}
	}
	return nil, false
}

// asked is a set with values for the options that the check asks for under it and not under that of the failure, under which that is right, if any are.
func (t *track) asked(set *convention.Set, n int) *convention.Set {
	const most = 2 // options
	o := stage.Judge(t.check, t.first.Case.B, set)
	if o.Verdict != check.Undetermined || len(o.Case.Unknown) == 0 || len(o.Case.Absent) > 0 || n == most {
		return set
	}
	for _, v := range set.Among(o.Case.Unknown[0]) {
		if full := t.asked(set.With(o.Case.Unknown[0], v, "search"), n+1); stage.Judge(t.check, t.first.Case.B, full).Verdict == check.Pass {
			return full
		}
	}
	return set
}

// rightUnder reports whether every batch of the check is right under what set has beside its own declarations.
func (t *track) rightUnder(set *convention.Set, s *session) bool {
	passed := 0
	for _, step := range t.starts {
		u, err := s.unit(s.ctx, t, step)
		if err != nil {
			return false
		}
		full, _ := set.Over(u.set)
		switch stage.Judge(t.check, u.b, full).Verdict {
		case check.Pass:
			passed++
		case check.NotSeen, check.Skip:
		default:
			return false
		}
	}
	return passed > 0
}

// besides are the other options of a failure that have a value which nobody declares.
func (t *track) besides(changes []stage.Change) (list []stage.Change) {
	for _, name := range t.openOptions() {
		v := t.first.Case.Set.Value(name)
		if v.Known() && !slices.ContainsFunc(changes, func(c stage.Change) bool { return c.Option == name }) {
			list = append(list, stage.Change{Option: name, To: v})
		}
	}
	return list
}
