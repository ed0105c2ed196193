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

// Shard judges the steps of shard i of n, 0 ≤ i < n, and hands over the records from which [Merge] makes the report of [Judge], those of
// a step as soon as it is judged. The search of options that nobody declares reads steps of the whole run, as [Judge] does; nothing is
// explained. Where a file is malformed the records up to it are handed over and the error is bad: Merge meets the same error.
func Shard(ctx context.Context, run Source, o Options, i, n int, put func(Record) error) (bad *format.Error, err error) {
	if i < 0 || i >= n {
		return nil, fmt.Errorf("shard %d of %d: want 0 to %d", i, n, n-1)
	}
	write := &pages{units: map[string]*UnitNotes{}, put: put}
	o.FirstFailure = false // what stops the run is known from all steps
	s, err := begin(ctx, run, o, &ledger{write: write})
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
	if err != nil && !errors.As(err, &bad) {
		return nil, err
	}
	return bad, write.flush()
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
