package stage

import (
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Complete returns the values of the options that set leaves open under which the output of ch in b is right, and whether all
// were tried: what every profile says of them first, then profiles with one option changed, then all combinations, if they are few, then
// profiles with two options changed. Options are asked for one after another, so that one that another value makes meaningless is not searched.
// What the numbers give in closed form, see [Shown], is searched on top of first.
func Complete(ch *Check, b *dump.Batch, set *convention.Set) (fits []Fit, all bool) {
	return CompleteHolding(ch, b, set, nil)
}

// Holds says whether changes of what is declared, which make an output right in one batch, hold elsewhere.
type Holds func(changes []Change) bool

// of returns the fits that hold, all of them of nil.
func (h Holds) of(fits []Fit) (kept []Fit) {
	for _, f := range fits {
		if h == nil || h(f.Changes) {
			kept = append(kept, f)
		}
	}
	return kept
}

// Some reports whether some of the fits hold.
func (h Holds) Some(fits []Fit) bool {
	return h == nil || slices.ContainsFunc(fits, func(f Fit) bool { return h(f.Changes) })
}

// After returns what says whether changes hold behind others.
func (h Holds) After(before []Change) Holds {
	if h == nil {
		return nil
	}
	return func(changes []Change) bool { return h(slices.Concat(before, changes)) }
}

// CompleteHolding is Complete where the search goes on while nothing that is right in b holds elsewhere: a loss is one number, which many values of
// one option or another give. What is right in b alone is returned where nothing holds.
func CompleteHolding(ch *Check, b *dump.Batch, set *convention.Set, holds Holds) (fits []Fit, all bool) {
	if set.Profile() != nil {
		return completeWithin(ch, b, set, budget)
	}
	var void, here []Fit
	allHere := false
	first, last := slices.Concat(ShownByGradient(ch, b, set), Shown(ch, b, set)), openOf(rareForms(ch, b), set)
	bare := len(first)
	list := slices.Concat(first, [][]Change{nil}, last)
	left := false
	for i, shown := range list {
		most := shownBudget / len(list)
		if i == bare {
			most = openBudget
		}
		fits, all = completeWithin(ch, b, changedBy(set, shown, "search"), most)
		left = left || i == bare && !all
		for i := range fits {
			fits[i].Changes = slices.Concat(shown, fits[i].Changes)
		}
		if len(fits) > 0 && fits[0].Outcome.Verdict == check.Pass {
			if kept := holds.of(fits); len(kept) > 0 {
				return kept, all
			}
			if here == nil {
				here, allHere = fits, all
			}
			continue
		}
		if void == nil {
			void = fits
		}
	}
	if here != nil {
		return here, allHere
	}
	return void, !left
}

// completeWithin is Complete for at most so many cells, without what numbers give in closed form.
func completeWithin(ch *Check, b *dump.Batch, set *convention.Set, most int) (fits []Fit, all bool) {
	s := newSearch(ch, b)
	s.open = set.Profile() == nil
	s.cap = most
	all = true
	starts := s.profiles(set)
	each := func(try func(Fit) bool) { // no start may take what the others need
		left := most - s.spent
		for _, p := range starts {
			s.cap = min(s.spent+left/len(starts), most)
			all = try(p) && all
		}
		s.cap = most
	}
	each(func(p Fit) bool { return s.complete(p.Set, p.Changes) })
	changed := func(n int) {
		if len(s.fits) == 0 {
			each(func(p Fit) bool { return len(s.fits) > 0 || s.changed(p, n) })
		}
	}
	changed(1)
	if len(s.fits) == 0 {
		s.cap = min(s.spent+combinations*(len(s.part.Mask)+256), most)
		all = s.complete(set, nil)
		s.cap = most
	}
	if len(s.fits) == 0 && !all {
		changed(2)
	}
	if len(s.fits) > 0 {
		all = s.expand(s.fits[0]) && all
	}
	if fits = s.confirmed(); len(fits) == 0 {
		fits = s.void
	}
	return fits, all
}

// wide is the number of cells above which ties are sought by one change only.
const wide = 200_000

// pairsUpTo is what a search may have spent when it still looks for ties of two changes.
const pairsUpTo = openBudget / 8

// openBudget is the [budget] of the search of what is not declared: a run has a dozen checks that search.
const openBudget = budget / 4

// shownBudget is that of all searches on top of what numbers give in closed form.
const shownBudget = openBudget

// expand adds what one and two changes of the options that were open make of a fit: data that cannot tell options apart must
// not name one of them only.
// It reports whether every one change was tried.
func (s *search) expand(fit Fit) bool {
	seen := map[string]bool{}
	key := func(set *convention.Set) string {
		var k strings.Builder
		for _, c := range fit.Changes {
			k.WriteString(set.Value(c.Option).String() + ";")
		}
		return k.String()
	}
	for _, f := range s.fits {
		seen[key(f.Set)] = true
	}
	all, ones := true, true
	try := func(set *convention.Set, changes []Change) {
		if k := key(set); !seen[k] {
			seen[k] = true
			all = s.complete(set, changes) && all
		}
	}
	for _, pairs := range []bool{false, true} { // every option alone first, so that none is taken for decided where the search is cut short
		for i, c := range fit.Changes {
			for _, v := range fit.Set.Among(c.Option) {
				one := slices.Clone(fit.Changes)
				one[i].To = v
				set := fit.Set.With(c.Option, v, "search")
				if !pairs {
					try(set, one)
					continue
				}
				if len(s.part.Mask) > wide || s.open && s.spent > pairsUpTo {
					return ones
				}
				for j := i + 1; j < len(fit.Changes); j++ {
					for _, w := range set.Among(fit.Changes[j].Option) {
						two := slices.Clone(one)
						two[j].To = w
						try(set.With(fit.Changes[j].Option, w, "search"), two)
					}
				}
			}
		}
		if !pairs {
			ones = all
		}
	}
	return ones
}

// combinations is the number of them below which all are tried before profiles with changes are.
const combinations = 3000

// profiles returns set completed by each profile, once where several say the same of what the check reads.
func (s *search) profiles(set *convention.Set) []Fit {
	var starts []Fit
	seen := map[string]bool{}
	for _, p := range convention.Profiles() {
		full, _ := convention.FromProfile(p).Over(set)
		o := s.judge(s.part, full)
		var key strings.Builder
		var changes []Change
		for _, name := range o.Case.Read {
			v := full.Value(name)
			key.WriteString(name + "=" + v.String() + ";")
			if v != set.Value(name) && (v.Known() || s.open && v.Kind() != convention.Unknown) {
				changes = append(changes, Change{name, set.Value(name), v})
			}
		}
		if !seen[key.String()] {
			seen[key.String()] = true
			starts = append(starts, Fit{Changes: changes, Set: changedBy(set, changes, p.Name), Outcome: o})
		}
	}
	slices.SortStableFunc(starts, func(x, y Fit) int { return len(x.Outcome.Case.Unknown) - len(y.Outcome.Case.Unknown) })
	return starts
}

func changedBy(set *convention.Set, changes []Change, origin string) *convention.Set {
	for _, c := range changes {
		set = set.With(c.Option, c.To, origin)
	}
	return set
}

// changed tries a start with n of its own options changed.
func (s *search) changed(start Fit, n int) bool {
	all := true
	for i, c := range start.Changes {
		for _, v := range alternatives(start.Set, c.Option, s) {
			rest := slices.Clone(start.Changes)
			rest[i].To = v
			next := Fit{Changes: rest, Set: start.Set.With(c.Option, v, "search")}
			if n == 1 {
				all = s.complete(next.Set, rest) && all
				continue
			}
			later := next
			later.Changes = rest[i+1:]
			for j, d := range later.Changes {
				for _, w := range alternatives(next.Set, d.Option, s) {
					both := slices.Clone(rest)
					both[i+1+j].To = w
					all = s.complete(next.Set.With(d.Option, w, "search"), both) && all
				}
			}
		}
	}
	return all
}
