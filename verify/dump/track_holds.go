package dump

import (
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

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
