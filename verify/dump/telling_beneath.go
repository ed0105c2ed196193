package dump

import (
	"plumbline/internal/format/dump"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// beneath solves for the numbers of losses of which no form explains what all files have, beneath one bug after the other of what they are computed from. The
// losses are then wrong under these numbers, and the bug is looked for as any is.
func (s *session) beneath(losses *stage.Losses) {
	steps := s.run.Steps()
	if len(steps) > mostScanned {
		return
	}
	var batches []*dump.Batch
	for _, step := range steps {
		b, err := s.run.Batch(s.ctx, step)
		if err != nil {
			return // the step is read once more, and the error is reported then
		}
		batches = append(batches, b)
	}
	for list := range fault.Beneath(batches) {
		if s.ctx.Err() != nil || losses.Beneath(list) {
			return
		}
	}
}
