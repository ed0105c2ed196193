package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// broadcasts are the cells of which one number stands for the advantage of a cell: a reduction over a dimension that should have been kept,
// spread over it again.
var broadcasts = []struct {
	title string
	rows  bool // says something where a row has one advantage, too
	same  func(c *stage.Case, i, j int) bool
}{
	{"the rows of its file", true, func(c *stage.Case, i, j int) bool { return c.B.File(i/c.B.Cols) == c.B.File(j/c.B.Cols) }},
	{"the rows of the step", true, func(*stage.Case, int, int) bool { return true }},
	{"the rows of its group", true, func(c *stage.Case, i, j int) bool {
		id := c.B.Row("group_id")
		return id != nil && id[i/c.B.Cols] == id[j/c.B.Cols]
	}},
	{"the tokens of its row", false, func(c *stage.Case, i, j int) bool { return i/c.B.Cols == j/c.B.Cols }},
	{"the tokens of its column", false, func(c *stage.Case, i, j int) bool { return i%c.B.Cols == j%c.B.Cols }},
}

// meanAdvantageEdits returns edits in which one number stands for the advantages of many cells: their mean, their sum, or the first of them.
func meanAdvantageEdits(o *stage.Outcome) []edit {
	const most = 1 << 12 // cells: each is compared with all others
	b := o.Case.B
	t := b.Tensors["advantages"]
	if t == nil || t.Width > 1 || o.Check.Stage != convention.TokenLoss && o.Check.Stage != convention.Gradient || o.Check.Output == "dvalues" || len(b.Mask) > most || b.Cols == 0 {
		return nil
	}
	var list []edit
	for _, m := range broadcasts {
		if t.Layout == dump.PerRow && !m.rows {
			continue
		}
		for _, part := range []string{"mean", "sum", "first"} {
			list = append(list, edit{id: "ADV-BROADCAST", title: fmt.Sprintf("the advantage of every token is the %s of those of %s", part, m.title), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					x, e := broadcastOver(c, m.same, part)
					if x == nil {
						return nil
					}
					p := policyOnly(perToken("advantages", x), c, ch)
					q := combined(1, withBound(p, policyOnly(perToken("advantages", e), c, ch)), 1, klOnly(c, ch))
					if q != nil && o.Tally != nil {
						q.Scale = o.Tally.Scale // of advantages whose mean is 0 nothing but rounding is left
					}
					return q
				}})
		}
	}
	return list
}

// broadcastOver returns advantages that are one number for cells that are the same, and what rounding of sums leaves of it: u times the terms and their
// sizes. Of rows with one advantage each row counts once. It is nil where nothing changes.
func broadcastOver(c *stage.Case, same func(c *stage.Case, i, j int) bool, part string) (y, e []float64) {
	b, x := c.B, c.Optional("advantages").X
	t := b.Tensors["advantages"]
	if t == nil || len(x) != len(b.Mask) {
		return nil, nil
	}
	counts := func(j int) bool {
		if t.Layout == dump.PerRow {
			return j%b.Cols == 0
		}
		return b.Mask[j]
	}
	y, e = slices.Clone(x), make([]float64, len(x))
	for i := range y {
		var sum, size, n float64
		for j, a := range x {
			if counts(j) && same(c, i, j) && !(part == "first" && n > 0) {
				sum, size, n = sum+a, size+math.Abs(a), n+1
			}
		}
		if e[i] = n * c.Unit * size; part == "mean" && n > 0 {
			sum, e[i] = sum/n, e[i]/n
		}
		if y[i] = sum; part == "first" {
			e[i] = 0
		}
	}
	if slices.Equal(x, y) {
		return nil, nil
	}
	return y, e
}
