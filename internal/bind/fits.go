package bind

import (
	"fmt"

	"plumbline/internal/memory"
	"plumbline/internal/refmodel"
	"plumbline/internal/train"
	"plumbline/reference/model"
)

// LengthError says that a text has more tokens than the model has positions. Beyond them the model computes something, and was never
// trained to.
type LengthError struct{ Row, Tokens, New, Positions int }

func (e *LengthError) Error() string {
	return fmt.Sprintf("row %d has %d tokens and %d new ones, and the model has %d positions (max_position_embeddings): make the longest prompt or the responses shorter",
		e.Row, e.Tokens, e.New, e.Positions)
}

// within refuses rows [rows, time] with more real tokens and fresh ones than a model has positions.
func within(positions, rows, time int, real []bool, fresh int) error {
	for i := range rows {
		n := time
		if real != nil {
			n = 0
			for _, is := range real[i*time : (i+1)*time] {
				if is {
					n++
				}
			}
		}
		if positions > 0 && n+fresh > positions {
			return &LengthError{i, n, fresh, positions}
		}
	}
	return nil
}

// fits refuses a pass of the reference over a batch that is too long for the model or needs more memory than there is, before the work.
func (l *Language) fits(b train.Batch, grad bool) error {
	time := b.Prompt + b.Response
	if err := within(l.config.MaxPositions, b.Rows, time, b.Real, 0); err != nil {
		return err
	}
	return roomFor(l.config, memory.Pass{Rows: b.Rows, Time: time, Keys: time, Scored: b.Response, Grad: grad, Again: grad && l.options.Checkpointing})
}

func roomFor(c model.Config, p memory.Pass) error {
	return memory.Need(refmodel.Sizes(c).Bytes(p), "a pass over %d rows of %d tokens", p.Rows, p.Time)
}
