package dump

import (
	"context"

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
	set, err := s.options(&view{b: b})
	if err != nil {
		return nil, err
	}
	if s.profile == nil && s.suggest != nil {
		set, _ = convention.FromProfile(s.suggest).Over(set)
	}
	shows := sights(b, func(*stage.Check) *convention.Set { return set })
	var list []Sight
	for _, h := range fault.All() {
		if h.Input != nil || h.Predict != nil {
			list = append(list, Sight{Hypothesis: h, Checks: shows[h]})
		}
	}
	return list, nil
}
