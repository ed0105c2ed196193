package stage

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// penaltyWithin returns the rule of [penalty] with the range of [heldWithin] behind it, where ends are y: what most of the longest responses lack is one
// number of few digits, three of them at least, and scores less that are held in a range. Those of the longest that end with the token that
// ends others lack nothing.
func penaltyWithin(b *dump.Batch, y, score []float64, longest func(row int) bool) []assign {
	const least, near = 3, 1e-5
	c := NewCase(b, &convention.Set{}, 0)
	end, known := EndToken(b)
	var lack []float64
	var open []int
	for row, x := range y {
		if id, there := b.TokenID(row, max(c.last(row), 0)); longest(row) && !(known && there && id == end) {
			lack, open = append(lack, score[row]-x), append(open, row)
		}
	}
	by, n := commonest(lack)
	if by = written(by, 1e-3); n < least || 2*n < len(lack) || !(by > 0) || !hasDigits(by, 2, near) {
		return nil
	}
	left := slices.Clone(score)
	for _, row := range open {
		left[row] -= by
	}
	if held := heldWithin(y, left, 1); held != nil {
		return append([]assign{word("eos.rule", "subtract"), amount("eos.penalty", by), word("eos.test", "eos_id")}, held...)
	}
	return nil
}
