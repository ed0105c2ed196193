package dump

import (
	"context"
	"errors"
	"fmt"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// Steps that shard i of n judges: consecutive ones, so that the steps of one rollout batch, whose span is known, stay together.
func sharded(steps []int, i, n, span int) []int {
	groups := (len(steps) + span - 1) / span
	from, to := groups*i/n*span, groups*(i+1)/n*span
	return steps[min(from, len(steps)):min(to, len(steps))]
}

// Shard judges the steps of shard i of n, 0 ≤ i < n, and returns the notes from which [Merge] makes the report of [Judge]. The search of
// options that nobody declares reads steps of the whole run, as [Judge] does; nothing is explained. Where a file is malformed the notes
// up to it are returned with the error: Merge meets the same error.
func Shard(ctx context.Context, run Source, o Options, i, n int) (*Notes, error) {
	if i < 0 || i >= n {
		return nil, fmt.Errorf("shard %d of %d: want 0 to %d", i, n, n-1)
	}
	notes := &Notes{Units: map[string]*asUnits{}}
	o.FirstFailure = false // what stops the run is known from all steps
	s, err := begin(ctx, run, o, &ledger{steps: map[int]*StepNotes{}, units: map[string]*asUnits{}, write: notes})
	if err != nil {
		return nil, err
	}
	steps := run.Steps()
	b, err := run.Batch(ctx, steps[0])
	if err != nil {
		return nil, err
	}
	set, err := s.options(&view{b: b})
	if err != nil {
		return nil, err
	}
	err = s.judgeSteps(sharded(steps, i, n, spanOf(set)))
	var bad *format.Error
	if err != nil && !errors.As(err, &bad) {
		return nil, err
	}
	return notes, err
}

// Light returns the batch of a step without its tensors.
func (b Batches) Light(step int) (*dump.Batch, error) {
	whole, err := b.Batch(context.Background(), step)
	if err != nil {
		return nil, err
	}
	light := *whole
	light.Tensors = nil
	return &light, nil
}
