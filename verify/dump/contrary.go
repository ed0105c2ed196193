package dump

import (
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// contrary returns the fit of the first failure under which one option has another value than the declared one, where a run declares some options and no profile:
// the search of the others is done again without that declaration. Under the options that stand in for what nobody declares, one alone may not be enough;
// the failure then stands as one under those that were found.
func (t *track) contrary(s *session) []stage.Fit {
	const most = 6   // options
	const least = 16 // elements of the failing steps: the numbers that a search chooses fit a few of them
	if s.profile != nil || !t.searched || t.check.Stage == convention.Aggregate || t.of < least {
		return nil
	}
	u, err := s.unit(s.ctx, t, t.first.Case.B.Meta.Step)
	if err != nil {
		return nil
	}
	tried := 0
	for _, name := range u.set.Names() {
		if o, err := convention.Find(name); err != nil || !slices.Contains(o.Stages, t.check.Stage) && !slices.Contains(t.first.Case.Read, name) {
			continue // it is of another formula
		}
		v := u.set.Value(name)
		if !isDeclared(u.set, name) || strings.HasSuffix(name, "eps") {
			continue
		}
		if tried++; tried > most {
			return nil
		}
		found, _ := t.complete(u.b, u.set.With(name, convention.Value{}, ""), s)
		for _, f := range found {
			i := slices.IndexFunc(f.Changes, func(c stage.Change) bool { return c.Option == name && c.To.Known() && c.To != v })
			if i < 0 || f.Unwritten() {
				continue
			}
			under := changed(u.set, slices.Delete(slices.Clone(f.Changes), i, i+1))
			if o := stage.Judge(t.check, u.b, under); o.Verdict == check.Fail && o.Pred != nil {
				t.first = o
				return []stage.Fit{{Changes: []stage.Change{{Option: name, From: v, To: f.Changes[i].To}}, Set: changed(u.set, f.Changes), Outcome: f.Outcome}}
			}
		}
	}
	return nil
}
