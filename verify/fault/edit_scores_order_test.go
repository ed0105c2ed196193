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

// Rows of equal scores may stand for one another where the order is told all the same.
func TestOrderOfEqualScores(t *testing.T) {
	b := grouped([]int{5, 5, 5, 5}, func(r, id []float64) []float64 {
		r[3], r[11] = r[7], r[16]
		return normalised(placedBy(r, func(k int) int { return (k*7 + 3) % 20 }), id, 0)
	})
	requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t)), "REWARD-OF-OTHER-ROW", "those of other rows of the rollout, each of one row")
}

// placedBy returns the numbers of the rows from(k).
func placedBy(x []float64, from func(k int) int) (y []float64) {
	for k := range x {
		y = append(y, x[from(k)])
	}
	return y
}

// Orders of the rollout are those of the numbers of its responses, wherever they stand in the dump.
func TestOrderOfScoresBySample(t *testing.T) {
	const rows = 24
	place := func(r int) int { return (r*7 + 5) % rows } // of the row in the rollout
	group := func(k int) (id float64) {
		for _, end := range []int{3, 8, 12, 19, 21} {
			if k >= end {
				id++
			}
		}
		return id
	}
	for words, from := range map[string]func(k int) int{
		"of the responses in reversed order":          func(k int) int { return rows - 1 - k },
		"reversed order within every rank":            func(k int) int { return k/12*12 + 11 - k%12 },
		"every 8 rows, which stand in reversed order": func(k int) int { return rows - 8 - k/8*8 + k%8 },
		"those of the response before":                func(k int) int { return (k + rows - 1) % rows },
		"behind within every 6 rows":                  func(k int) int { return k/6*6 + (k+1)%6 },
		"every two are exchanged":                     func(k int) int { return k ^ 1 },
	} {
		b := grouped([]int{3, 5, 4, 7, 2, 3}, func(r, id []float64) []float64 {
			of := make([]int, rows) // the row of a place
			for k := range rows {
				of[place(k)], id[k] = k, group(place(k))
			}
			return normalised(placedBy(r, func(k int) int { return of[from(place(k))] }), id, 0)
		})
		x := make([]float64, rows)
		for k := range x {
			x[k] = float64(place(k))
		}
		sample := *b.Tensors["scores"]
		sample.Name, sample.Data = "sample_id", x
		b.Tensors["sample_id"], b.Meta.WorldSize = &sample, 2
		requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t)), "REWARD-OF-OTHER-ROW", words)
	}
}
