package dump

import (
	"context"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// Sight is a bug and the checks that would see it in a dump.
type Sight struct {
	Hypothesis *fault.Hypothesis
	Checks     []string // empty: its tensors are not there, or its numbers are the right ones on these data
}

// Visible says which bugs would show in the first step of a run, by the tensors that it has and the numbers in them.
func Visible(ctx context.Context, run Source, profile string) ([]Sight, error) {
	s, err := newSession(run, Options{Profile: profile})
	if err != nil {
		return nil, err
	}
	b, err := run.Batch(ctx, run.Steps()[0])
	if err != nil {
		return nil, err
	}
	set, err := s.options(b)
	if err != nil {
		return nil, err
	}
	if s.profile == nil && s.suggest != nil {
		set, _ = convention.FromProfile(s.suggest).Over(set)
	}
	var sights []Sight
	at := map[string]int{}
	for _, h := range fault.All() {
		if h.Input != nil || h.Predict != nil {
			at[h.ID] = len(sights)
			sights = append(sights, Sight{Hypothesis: h})
		}
	}
	for _, c := range stage.All() {
		if c.Predict == nil {
			continue
		}
		o := stage.Judge(c, b, set)
		if o.Pred == nil || o.Verdict != check.Pass && o.Verdict != check.Fail {
			continue
		}
		for _, h := range fault.All() {
			i, ok := at[h.ID]
			if ok && h.Applies(c) && fault.Tells(h, o) && !slices.Contains(sights[i].Checks, c.ID) {
				sights[i].Checks = append(sights[i].Checks, c.ID)
			}
		}
	}
	return sights, nil
}
