package stage

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// startedBudget is that of a search from what other checks have found.
const startedBudget = openBudget / 2

// CompleteFrom is [Complete] from sets of values that other checks have found of the options of ch, the likeliest first: one program has one value
// of an option, and values that only together are right, as a bound and what it counts from, are not right apart. Of each start only what it
// leaves open is searched; the first that is right ends the search, with all that gives the same numbers. It is nil where none is right.
func CompleteFrom(ch *Check, b *dump.Batch, set *convention.Set, starts [][]Change, holds Holds) (fits []Fit, all bool) {
	var here []Fit // what is right in b alone
	allHere := false
	s := newSearch(ch, b)
	s.open = set.Profile() == nil
	for i, start := range starts {
		s.fits, s.cap = nil, s.spent+(startedBudget-s.spent)/(len(starts)-i)
		s.complete(changedBy(set, start, "search"), slices.Clone(start))
		if len(s.fits) == 0 {
			continue
		}
		s.cap = s.spent + openBudget/4
		all = s.expand(s.fits[0])
		if fits = s.confirmed(); len(fits) > 0 && fits[0].Outcome.Verdict == check.Pass {
			if kept := holds.of(fits); len(kept) > 0 {
				return kept, all
			}
			if here == nil {
				here, allHere = fits, all
			}
		}
	}
	return here, allHere
}
