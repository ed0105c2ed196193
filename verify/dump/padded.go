package dump

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// strange reports whether a fit is none of a right program, where nothing declares the options that it changes: it has a number that nobody writes, or whitens
// over padding.
func (s *session) strange(f stage.Fit) bool {
	return s.profile == nil && (f.Unwritten() || whitensPadding(f))
}

// whitensPadding reports whether a fit takes mean and variance over all cells, those outside the mask included (whiten.mask none), where the mask has such cells and
// nobody declares it. The programs that do have responses of one length and no mask (lm-human-preferences, CleanRL): by the format theirs holds every cell.
func whitensPadding(f stage.Fit) bool {
	const option = "whiten.mask"
	if f.Outcome == nil || !slices.ContainsFunc(f.Changes, func(c stage.Change) bool { return c.Option == option && !c.From.Known() }) {
		return false
	}
	c := f.Outcome.Case
	v, counted := c.Set.Value(option), c.Set.Value("mask.tokens")
	return v.Kind() == convention.Enum && v.Text() == "none" && slices.Contains(c.Read, option) && counted.Kind() == convention.Enum && counted.Text() == "response" && padded(c.B)
}

// padded reports whether a cell of some file is outside the mask, those left out by which other files of the step are wider.
func padded(b *dump.Batch) bool {
	for r := range b.Rows {
		cols := b.Cols
		if o := b.Origin[r]; o.Cols > 0 {
			cols = o.Cols
		}
		if slices.Contains(b.Mask[r*b.Cols:r*b.Cols+cols], false) {
			return true
		}
	}
	return false
}
