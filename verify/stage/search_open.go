package stage

import (
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Complete returns the values of the options that set leaves open under which the output of ch in b is right, and whether all
// were tried: what every profile says of them first, then all combinations, if they are few, then profiles with one or two
// options changed. Options are asked for one after another, so that one that another value makes meaningless is not searched.
func Complete(ch *Check, b *dump.Batch, set *convention.Set) (fits []Fit, all bool) {
	s := newSearch(ch, b)
	all = true
	starts := s.profiles(set)
	for _, p := range starts {
		all = s.complete(p.Set, p.Changes) && all
	}
	if len(s.fits) == 0 {
		s.cap = s.spent + combinations*(len(s.part.Mask)+256)
		all = s.complete(set, nil)
		s.cap = budget
	}
	if len(s.fits) > 0 {
		s.expand(s.fits[0])
	}
	if len(s.fits) == 0 && len(s.void) == 0 && !all {
		for _, p := range starts {
			all = s.changed(p, 1) && all
		}
		for _, p := range starts {
			if len(s.fits) == 0 {
				all = s.changed(p, 2) && all
			}
		}
	}
	if fits = s.confirmed(); len(fits) == 0 {
		fits = s.void
	}
	return fits, all
}

// wide is the number of cells above which ties are sought by one change only.
const wide = 200_000

// expand adds what one and two changes of the options that were open make of a fit: data that cannot tell options apart must
// not name one of them only.
func (s *search) expand(fit Fit) {
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
	try := func(set *convention.Set, changes []Change) {
		if k := key(set); !seen[k] {
			seen[k] = true
			s.complete(set, changes)
		}
	}
	for i, c := range fit.Changes {
		for _, v := range fit.Set.Among(c.Option) {
			one := slices.Clone(fit.Changes)
			one[i].To = v
			set := fit.Set.With(c.Option, v, "search")
			try(set, one)
			if len(s.part.Mask) > wide {
				continue
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
			if v != set.Value(name) && v.Known() {
				changes = append(changes, Change{name, set.Value(name), v})
			}
		}
		if !seen[key.String()] {
			seen[key.String()] = true
			starts = append(starts, Fit{Changes: changes, Set: changedBy(set, changes, p.Name)})
		}
	}
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
