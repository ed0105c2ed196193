package fault_test

import (
	"cmp"
	"slices"
	"testing"

	"plumbline/verify/stage"
)

// Scores that come back in another order are named by the order: that of lengths, that of parts that are stacked along the wrong axis, or one of no rule.
func TestOrderOfScores(t *testing.T) {
	const rows, width = 24, 9
	length := func(r int) int { return 1 + r*7%width }
	var byLength []int
	for r := range rows {
		byLength = append(byLength, r)
	}
	slices.SortStableFunc(byLength, func(i, j int) int { return cmp.Compare(length(i), length(j)) })
	for words, from := range map[string]func(k int) int{
		"lengths of their responses, the shortest first":      func(k int) int { return byLength[k] },
		"once too often: that of the lengths":                 func(k int) int { return slices.Index(byLength, k) },
		"in turn from 3 parts":                                func(k int) int { return k%3*8 + k/3 },
		"in turn from 2 parts, as many as the ranks":          func(k int) int { return k%2*12 + k/2 },
		"those of other rows of the rollout, each of one row": func(k int) int { return (k*5 + 3) % rows },
	} {
		b := grouped([]int{4, 4, 4, 4, 4, 4}, func(r, id []float64) []float64 {
			return normalised(placedBy(r, from), id, 0)
		})
		b.Cols, b.Files[0].Cols, b.Mask, b.Meta.WorldSize = width, width, make([]bool, rows*width), 2
		for i := range b.Mask {
			b.Mask[i] = i%width < length(i/width)
		}
		requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t)), "REWARD-OF-OTHER-ROW", words)
	}
}

// placedBy returns the numbers of the rows from(k).
func placedBy(x []float64, from func(k int) int) (y []float64) {
	for k := range x {
		y = append(y, x[from(k)])
	}
	return y
}
