package fault

import (
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Healed returns a batch as it would be without a bug that its output shows whatever the options are, once for each bug: what makes the output right there is a
// base on which the bug is looked for.
func Healed(ch *stage.Check, b *dump.Batch, set *convention.Set) (list []*dump.Batch) {
	if ch.ID == "advantage/return" {
		for _, f := range toGoForms {
			if f.undo == nil {
				continue
			}
			if in := stage.Undone(b, set, f.undo); in != nil {
				list = append(list, in)
			}
		}
	}
	return list
}
