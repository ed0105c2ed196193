package dump

import "slices"

// Only returns the part of the run with the steps that keep says; it may be empty. Common stays that of the whole run.
func (r *Run) Only(keep func(step int) bool) *Run {
	part := *r
	part.files = slices.DeleteFunc(slices.Clone(r.files), func(f File) bool { return !keep(f.Step) })
	part.steps = slices.DeleteFunc(slices.Clone(r.steps), func(step int) bool { return !keep(step) })
	return &part
}
