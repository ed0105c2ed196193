package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// GroupsRecur reports whether a group_id is in several files, and the rows of every one are equally many in each file that has any, two at least: groups of
// generation batches that have the same ids in one step have that, and seldom groups that were cut.
func GroupsRecur(b *dump.Batch) bool {
	id := b.Row("group_id")
	if len(id) != b.Rows || b.Rows == 0 {
		return false
	}
	n, files := map[[2]float64]int{}, map[float64]int{}
	for r, g := range id {
		at := [2]float64{float64(b.Origin[r].File), g}
		if n[at]++; n[at] == 1 {
			files[g]++
		}
	}
	size, several := n[[2]float64{float64(b.Origin[0].File), id[0]}], false
	for _, k := range files {
		several = several || k > 1
	}
	for _, k := range n {
		if k != size {
			return false
		}
	}
	return several && size > 1
}

// AtUpperBound reports whether some importance weight of a case is at tis.high, or above it.
func AtUpperBound(c *Case) bool {
	high, w := c.Set.Value("tis.high"), c.B.Tensors["is_weights"]
	if w == nil || high.Kind() != convention.Number {
		return false
	}
	for _, x := range w.Data {
		if !math.IsNaN(x) && x >= high.Num()*(1-1e-6) {
			return true
		}
	}
	return false
}
