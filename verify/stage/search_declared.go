package stage

import (
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Conventions returns the sets of option values under which an output that is wrong under the declared ones is right: with one
// option changed, or all options of a profile, or two changed, whatever comes first in this order; where no profile has the one
// value that fits, those of a profile that fit come before it. The declared set is completed by the same search where it leaves
// options open.
func Conventions(o *Outcome) (fits []Fit, all bool) { return conventions(o, true) }

// Changed is [Conventions] without its last search, that of two options.
func Changed(o *Outcome) []Fit {
	fits, _ := conventions(o, false)
	return fits
}

func conventions(o *Outcome, two bool) (fits []Fit, all bool) {
	if o.Rules != nil {
		return permitted(o), true
	}
	fits, all = legal(o, two)
	if s := newSearch(o.Check, o.Case.B); o.Half() {
		s.first = o
		fits = slices.DeleteFunc(slices.Clone(fits), s.untold)
	}
	return worded(fits), all
}

// untold reports whether a fit has numbers that nobody declared, of which the output tells none: it is as right with each of them half as large
// again. Then it is no sign of the formula that they belong to, of which the data have a special case, as all ratios of a first update are 1,
// but one of how it is rounded. In 16 bits that may be all that it has before the declared one.
func (s *search) untold(f Fit) bool {
	free := 0
	for _, c := range f.Changes {
		if c.From.Known() || c.To.Kind() != convention.Number || c.To.Num() == 0 {
			continue
		}
		free++
		if o := s.judge(s.full, f.Set.With(c.Option, convention.NumberValue(1.5*c.To.Num()), "search")); o.Verdict == check.Fail {
			return false
		}
	}
	return free > 0
}

func legal(o *Outcome, two bool) (fits []Fit, all bool) {
	s := newSearch(o.Check, o.Case.B)
	s.first = o
	s.wrong = Probed(o, s.probe)
	set := o.Case.Set
	read := slices.Clone(o.Case.Read)
	all = true
	for _, name := range read {
		for _, v := range alternatives(set, name, s) {
			all = s.complete(set.With(name, v, "search"), []Change{{name, set.Value(name), v}}) && all
		}
	}
	if fits = s.confirmed(); slices.ContainsFunc(fits, Fit.known) {
		return fits, all
	}
	s.wholeProfiles(set)
	if whole := s.confirmed(); len(whole) > 0 {
		return append(s.fewest(whole, set), fits...), all
	}
	if len(fits) > 0 || !all || !two {
		return fits, all
	}
	s.fits, s.cap = nil, s.spent+budget
	if s.listed = len(s.part.Mask) > wide; s.probe != nil {
		s.cap = s.spent + budget/4
	}
	for i, first := range read {
		for _, v := range alternatives(set, first, s) {
			one := set.With(first, v, "search")
			for _, second := range read[i+1:] {
				for _, w := range alternatives(one, second, s) {
					all = s.complete(one.With(second, w, "search"), []Change{{first, set.Value(first), v}, {second, set.Value(second), w}}) && all
				}
			}
		}
	}
	return s.confirmed(), all
}

// worded leaves out fits in which an option does not apply where another has a value of it and gives the same numbers: what a program
// does that has nothing of the kind is what it does by that value, and the value says it.
func worded(fits []Fit) []Fit {
	return slices.DeleteFunc(slices.Clone(fits), func(f Fit) bool {
		c := f.Changes[len(f.Changes)-1]
		return c.To.Kind() == convention.NotApplicable && slices.ContainsFunc(fits, func(g Fit) bool {
			d := g.Changes[len(g.Changes)-1]
			return len(g.Changes) == len(f.Changes) && slices.Equal(g.Changes[:len(g.Changes)-1], f.Changes[:len(f.Changes)-1]) &&
				d.Option == c.Option && d.To.Known() && slices.Equal(g.Outcome.Pred.Want, f.Outcome.Pred.Want)
		})
	})
}

// wholeProfiles tries every profile in place of the one that set comes from, first under what else was declared, then with
// all values of its own. Options that set and the profile read differently, as another estimator reads others, are the
// profile's, too.
func (s *search) wholeProfiles(set *convention.Set) {
	declared := &convention.Set{}
	for _, name := range set.Names() {
		if !slices.Contains(convention.ProfileNames(), set.Origin(name)) {
			declared = declared.With(name, set.Value(name), set.Origin(name))
		}
	}
	s.fits, s.cap = nil, s.spent+budget/2
	seen := map[string]bool{}
	for _, strongest := range []*convention.Set{declared, {}} {
		for _, p := range convention.Profiles() {
			full, _ := set.Over(convention.FromProfile(p))
			full, _ = full.Over(strongest)
			part := s.part
			if s.probe != nil {
				part = s.probe
			}
			o := s.judge(part, full)
			var key strings.Builder
			for _, name := range o.Case.Read {
				key.WriteString(name + "=" + full.Value(name).String() + ";")
			}
			if !seen[key.String()] {
				seen[key.String()] = true
				s.complete(full, nil)
			}
		}
		if len(s.fits) > 0 {
			break
		}
	}
	for i := range s.fits {
		f := &s.fits[i]
		f.Changes, f.Whole = nil, true
		for _, name := range f.Outcome.Case.Read {
			if v := f.Set.Value(name); v != set.Value(name) {
				f.Changes = append(f.Changes, Change{name, set.Value(name), v})
			}
		}
		if len(f.Changes) == 0 { // what was read for a tensor that is recomputed
			for _, name := range f.Set.Names() {
				if v := f.Set.Value(name); v != set.Value(name) {
					f.Changes = append(f.Changes, Change{name, set.Value(name), v})
				}
			}
		}
		f.Set = changedBy(set, f.Changes, "search")
	}
	s.fits = slices.DeleteFunc(s.fits, func(f Fit) bool { return len(f.Changes) == 0 })
}

// known reports whether some profile has all the values of a fit, and the option that was changed has a value in the declared
// one: a program that is right under it is known, and does not compute something else besides.
func (f Fit) known() bool {
	return f.Changes[0].From.Kind() != convention.NotApplicable && slices.ContainsFunc(convention.Profiles(), func(p *convention.Profile) bool {
		return !slices.ContainsFunc(f.Changes, func(c Change) bool { return p.Value(c.Option) != c.To })
	})
}

// fewest returns those of the fits of whole profiles that have the fewest changes once they are reduced, each once.
func (s *search) fewest(fits []Fit, set *convention.Set) (few []Fit) {
	for i := range fits {
		s.reduce(&fits[i], set)
	}
	slices.SortStableFunc(fits, func(a, b Fit) int { return len(a.Changes) - len(b.Changes) })
	for _, f := range fits {
		if len(f.Changes) == len(fits[0].Changes) && !slices.ContainsFunc(few, func(g Fit) bool { return slices.Equal(f.Changes, g.Changes) }) {
			few = append(few, f)
		}
	}
	return few
}

// reduce takes the changes out of a fit without which the output is right as well: those that are left decide.
func (s *search) reduce(f *Fit, set *convention.Set) {
	for i := len(f.Changes) - 1; i >= 0 && len(f.Changes) > 1; i-- {
		rest := slices.Delete(slices.Clone(f.Changes), i, i+1)
		less := changedBy(set, rest, "search")
		if o := s.judge(s.full, less); s.right(o) {
			f.Changes, f.Set, f.Outcome = rest, less, o
		}
	}
}

// permitted returns the other values of the options of a check that asserts under which nothing breaks its rule.
func permitted(o *Outcome) (fits []Fit) {
	set := o.Case.Set
	for _, name := range o.Check.Options {
		for _, v := range set.Among(name) {
			if v == set.Value(name) {
				continue
			}
			changed := set.With(name, v, "search")
			if p := Judge(o.Check, o.Case.B, changed); p.Verdict == check.Pass {
				fits = append(fits, Fit{Changes: []Change{{name, set.Value(name), v}}, Set: changed, Outcome: p})
			}
		}
	}
	return fits
}

// Untried returns the changes of one option under which an output that is wrong cannot be predicted, with what the batch
// lacks for it: "kl.kind=seq_prob (…)". Whether it would be right then is open.
func Untried(o *Outcome) []string {
	if o.Rules != nil {
		return nil
	}
	s := newSearch(o.Check, o.Case.B)
	s.part, s.listed = sample(o.Case.B, sampled), true // what a prediction asks for does not depend on how many rows there are
	var list []string
	for _, name := range o.Case.Read {
		for _, v := range alternatives(o.Case.Set, name, s) {
			c := NewCase(s.part, o.Case.Set.With(name, v, "search"), s.a.Unit)
			if s.ch.Predict(c); len(c.Absent) > 0 {
				list = append(list, name+"="+v.String()+" ("+strings.Join(c.Absent, ", ")+")")
			}
		}
	}
	return list
}
