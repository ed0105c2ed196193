package dump

import (
	"cmp"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// upstreamOf are the checks whose options those of a gradient are: it is that of its loss. The loss of a file is one number, of which a coefficient
// that is solved for makes any, so that no other check is a start for it.
var upstreamOf = map[string][]string{
	"gradient/dlogp":   {"token_loss/policy", "aggregate/pg_loss", "aggregate/loss", "kl/token"},
	"gradient/dvalues": {"aggregate/value_loss"},
}

// upstreamFits returns what the fits of the checks upstream say together of the options of a run that declares nothing, beside what is found of
// all: a fit of each, those that come first in each before others, and of an option on which two differ the value of the former.
func (t *track) upstreamFits(found []stage.Change, set *convention.Set, s *session) [][]stage.Change {
	const each, most = 6, 48
	type start struct {
		changes []stage.Change
		rank    int
	}
	if s.profile != nil {
		return nil
	}
	list := []start{{changes: found}}
	any := false
	for _, id := range upstreamOf[t.check.ID] {
		i := slices.IndexFunc(s.tracks, func(u *track) bool { return u.check.ID == id && u.searched && len(u.fits) > 0 })
		if i < 0 {
			continue
		}
		any = true
		var next []start
		for n, f := range s.tracks[i].fits[:min(each, len(s.tracks[i].fits))] {
			for _, l := range list {
				merged := merge(l.changes, f.Changes, set)
				if !slices.ContainsFunc(next, func(o start) bool { return slices.Equal(o.changes, merged) }) {
					next = append(next, start{merged, l.rank + n})
				}
			}
		}
		slices.SortStableFunc(next, func(a, b start) int { return cmp.Compare(a.rank, b.rank) })
		list = next[:min(most, len(next))]
	}
	if !any {
		return nil
	}
	starts := make([][]stage.Change, len(list))
	for i, l := range list {
		starts[i] = l.changes
	}
	return starts
}

// merge adds to changes those of more whose options neither they nor set have.
func merge(changes, more []stage.Change, set *convention.Set) []stage.Change {
	merged := slices.Clone(changes)
	for _, c := range more {
		if set.Value(c.Option).Kind() == convention.Unknown && !slices.ContainsFunc(merged, func(d stage.Change) bool { return d.Option == c.Option }) {
			merged = append(merged, c)
		}
	}
	return merged
}
