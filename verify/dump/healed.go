package dump

import (
	"plumbline/verify/check"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// healed are the failures of a batch under what a search finds of it where the bug that its numbers show is taken out of them, see [fault.Healed].
func (t *track) healed(u unit, s *session) (list []*stage.Outcome) {
	const searches, each = 3, 4 // searches of a session
	if s.profile != nil {
		return nil
	}
	for _, in := range fault.Healed(t.check, u.b, u.set) {
		if s.healings++; s.healings > searches {
			break
		}
		fits, _ := stage.Complete(t.check, in, u.set)
		for _, f := range fits[:min(each, len(fits))] {
			if o := stage.Judge(t.check, u.b, changed(u.set, f.Changes)); o.Verdict == check.Fail && o.Pred != nil && !f.Unwritten() {
				list = append(list, o)
			}
		}
	}
	return list
}
