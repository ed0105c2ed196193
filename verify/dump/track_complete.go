package dump

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// complete searches the options that set leaves open, with what the checks before this one have found of them first: stages
// share their options, not their numbers.
func (t *track) complete(b *dump.Batch, set *convention.Set, s *session) (fits []stage.Fit, all bool) {
	known, found := t.foundBefore(set, s)
	holds := t.holds(b, s)
	ways := []func() ([]stage.Fit, bool){
		func() ([]stage.Fit, bool) {
			if starts := t.ofRows(b, set, s); len(starts) > 0 {
				fits, _ := stage.CompleteFrom(t.check, b, set, starts, holds)
				return fits, false
			}
			return nil, false
		},
		func() ([]stage.Fit, bool) {
			if starts := t.ofSteps(unit{b, set}, found, s); len(starts) > 0 {
				fits, _ := stage.CompleteFrom(t.check, b, set, starts, holds)
				return fits, false
			}
			return nil, false
		},
		func() ([]stage.Fit, bool) {
			if shown := ofTensors(b, known); len(shown) > 0 && s.profile == nil && t.check.Stage == convention.Advantage {
				fits, _ := stage.CompleteFrom(t.check, b, set, [][]stage.Change{merge(shown, found, set)}, holds)
				return fits, false
			}
			return nil, false
		},
		func() ([]stage.Fit, bool) {
			if starts := t.upstreamFits(upstreamOf[t.check.ID], found, set, s); len(starts) > 0 {
				return stage.CompleteFrom(t.check, b, set, starts, holds)
			}
			return nil, false
		},
		func() ([]stage.Fit, bool) {
			if len(found) == 0 {
				return nil, false
			}
			fits, all := stage.CompleteHolding(t.check, b, known, holds.After(found))
			for i := range fits {
				fits[i].Changes = append(slices.Clone(found), fits[i].Changes...)
			}
			return fits, all
		},
		func() ([]stage.Fit, bool) { return stage.CompleteHolding(t.check, b, set, holds) },
		func() ([]stage.Fit, bool) {
			if starts := t.upstreamFits(termsOf[t.check.ID], found, set, s); len(starts) > 0 {
				fits, _ := stage.CompleteFrom(t.check, b, set, starts, holds)
				return fits, all
			}
			return nil, all
		},
		func() ([]stage.Fit, bool) {
			if starts := t.ofGradient(b, set, s); len(starts) > 0 {
				fits, _ := stage.CompleteFrom(t.check, b, set, starts, holds)
				return fits, all
			}
			return nil, all
		},
	}
	var here []stage.Fit // what is right in b alone
	allHere := false
	for _, way := range ways {
		fits, all = way()
		if fits = s.withForm(fits, set); len(fits) > 0 && holds.Some(fits) {
			return fits, all
		}
		if len(fits) > 0 && here == nil {
			here, allHere = fits, all
		}
	}
	if here != nil {
		return here, allHere
	}
	return nil, all
}

// withForm returns fits with what the losses of all files show of the options that they read: a search has not found these, and nobody declares them.
func (s *session) withForm(fits []stage.Fit, set *convention.Set) []stage.Fit {
	for i, f := range fits {
		var form []stage.Change
		for _, c := range s.scan().form {
			if set.Value(c.Option) == c.To && set.Origin(c.Option) == "search" && slices.Contains(f.Outcome.Case.Read, c.Option) {
				form = append(form, c)
			}
		}
		fits[i].Changes = slices.Concat(form, f.Changes)
	}
	return fits
}

// laterTells are the checks behind one that tell it options, too, where all their steps are right: returns are of the recursion that advantages are of, before
// anything is whitened, and gradients show every token of a value loss that a loss has one number of.
var laterTells = map[string]string{"gae/advantage": "gae/returns", "aggregate/loss": "gradient/dvalues"}

// order are the tracks of the session as a step is judged: where nothing is declared and a value loss was not dumped, its gradients come before the loss.
func (s *session) order(b *dump.Batch) []*track {
	at := func(id string) int {
		return slices.IndexFunc(s.tracks, func(t *track) bool { return t.check.ID == id })
	}
	loss, slopes := at("aggregate/loss"), at("gradient/dvalues")
	if s.profile != nil || loss < 0 || slopes < loss || b.Tensors["value_loss"] != nil || b.Tensors["dvalues"] == nil {
		return s.tracks
	}
	list := slices.Delete(slices.Clone(s.tracks), slopes, slopes+1)
	return slices.Insert(list, loss, s.tracks[slopes])
}

// foundBefore returns set with what the checks before this one have decided of the options that it leaves open, and these changes.
func (t *track) foundBefore(set *convention.Set, s *session) (known *convention.Set, found []stage.Change) {
	known = set
	for i, earlier := range s.tracks {
		if earlier == t || i > slices.Index(s.tracks, t) && !(laterTells[t.check.ID] == earlier.check.ID && len(earlier.failing) == 0) {
			continue
		}
		for _, c := range earlier.decided() {
			if known.Value(c.Option).Kind() == convention.Unknown {
				known, found = known.With(c.Option, c.To, earlier.check.ID), append(found, c)
			}
		}
	}
	return known, found
}

// holds returns what says whether options that make an output right in b, where nothing declares them, make it wrong at other steps of the run, two of
// them at most; nil where there are none.
func (t *track) holds(b *dump.Batch, s *session) stage.Holds {
	const others = 2
	if s.profile != nil || t.pooled || len(b.Missing) > 0 || s.o.FirstFailure {
		return nil
	}
	var at []unit
	for _, step := range spread(s.run.Steps(), others+1) {
		if step == b.Meta.Step || len(at) == others {
			continue
		}
		u, err := s.unit(s.ctx, t, step)
		if err != nil {
			return nil // the step is read once more, and the error is reported then
		}
		if len(u.b.Missing) == 0 {
			at = append(at, u)
		}
	}
	if len(at) == 0 {
		return nil
	}
	return func(changes []stage.Change) bool {
		for _, u := range at {
			if stage.Judge(t.check, u.b, changed(u.set, changes)).Verdict == check.Fail {
				return false
			}
		}
		return true
	}
}

// ofRows is what the advantages of all steps together show of what becomes of scores, and their gradients of a policy loss with one ratio for a row,
// where the losses of tokens were not dumped.
func (t *track) ofRows(b *dump.Batch, set *convention.Set, s *session) [][]stage.Change {
	if s.profile == nil && t.check.ID == "advantage/group" {
		return s.scan().scores.Changes(set)
	}
	if s.profile != nil || t.check.ID != "gradient/dlogp" && !stage.TellsByGradient(t.check, b) {
		return nil
	}
	const most = 3
	starts := s.scan().rows.Changes(set)
	return starts[:min(most, len(starts))]
}

// ofSteps is what the gradients of all steps together show of the bounds of a loss, with what is found besides.
func (t *track) ofSteps(u unit, found []stage.Change, s *session) (starts [][]stage.Change) {
	const most = 3
	shown := stage.ShownTogether(t.check, s.solving(t, u))
	for _, changes := range shown[:min(most, len(shown))] {
		starts = append(starts, merge(changes, found, u.set))
	}
	return starts
}

// ofGradient is what makes the gradient of a policy loss right in all steps that are tried, where neither the losses of tokens nor their terms were dumped: it
// tells of every token, and the loss of a file is one number.
func (t *track) ofGradient(b *dump.Batch, set *convention.Set, s *session) (starts [][]stage.Change) {
	const most = 6
	i := slices.IndexFunc(s.tracks, func(u *track) bool { return u.check.ID == "gradient/dlogp" })
	if s.profile != nil || !stage.TellsByGradient(t.check, b) || i < 0 {
		return nil
	}
	fits := s.tracks[i].fits
	if !s.tracks[i].searched {
		fits, _ = s.tracks[i].complete(b, set, s)
	}
	for _, f := range fits[:min(most, len(fits))] {
		starts = append(starts, f.Changes)
	}
	return starts
}
