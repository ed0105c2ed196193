package dump

import (
	"cmp"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// upstreamOf are the checks whose options those of a gradient are: it is that of its loss. A share of tokens beyond the bounds counts with those of the loss.
var upstreamOf = map[string][]string{
	"gradient/dlogp":   {"token_loss/policy", "aggregate/kl_loss", "aggregate/pg_loss", "aggregate/loss", "kl/token"},
	"gradient/dvalues": {"aggregate/value_loss"},

	"scalars/clip_frac":     {"token_loss/policy", "gradient/dlogp"},
	"scalars/clip_fraction": {"token_loss/policy", "gradient/dlogp"},
}

// termsOf are the checks of the terms of a loss. It is one number of a file, of which a coefficient that is solved for makes any, so that it is
// searched from its terms only where it is not found without them.
var termsOf = map[string][]string{
	"aggregate/loss": {"aggregate/kl_loss", "aggregate/value_loss", "aggregate/entropy_loss", "aggregate/pg_loss"},
}

// upstreamFits returns what the fits of checks upstream say together of the options of a run that declares nothing, and what is found besides: a
// fit of each, those that come first in each before others, and of an option on which two differ the value of the former.
func (t *track) upstreamFits(upstream []string, found []stage.Change, set *convention.Set, s *session) [][]stage.Change {
	const each, most = 6, 48
	type start struct {
		changes []stage.Change
		rank    int
	}
	if s.profile != nil {
		return nil
	}
	list := []start{{}}
	any := false
	for _, id := range upstream {
		i := slices.IndexFunc(s.tracks, func(u *track) bool { return u.check.ID == id && u.searched && len(u.fits) > 0 })
		if i < 0 {
			continue
		}
		any = true
		var next []start
		for n, f := range s.tracks[i].fits[:min(each, len(s.tracks[i].fits))] {
			for _, l := range list {
				merged := merge(l.changes, ofValues(id, f.Changes), set)
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
		starts[i] = merge(l.changes, found, set)
	}
	return starts
}

// ofValues leaves out of the changes of a fit of an aggregate what says how its KL is differentiated, and of a term whether the loss has a KL: of
// that its number tells nothing.
func ofValues(id string, changes []stage.Change) []stage.Change {
	if groupOf(id) != "aggregate" {
		return changes
	}
	return slices.DeleteFunc(slices.Clone(changes), func(c stage.Change) bool {
		return c.Option == "kl.grad" || c.Option == "kl.is_cap" || c.Option == "kl.place" && id != "aggregate/loss"
	})
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
