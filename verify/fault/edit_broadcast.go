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
	rows  bool                                     // says something where a row has one advantage, too
	part  func(c *stage.Case, i int) (key float64) // of cell i, the same for the cells that one number stands for
}{
	{"the rows of its file", true, func(c *stage.Case, i int) float64 { return float64(c.B.File(i / c.B.Cols)) }},
	{"the rows of the step", true, func(*stage.Case, int) float64 { return 0 }},
	{"the rows of its group", true, func(c *stage.Case, i int) float64 {
		if id := c.B.Row("group_id"); id != nil {
			return id[i/c.B.Cols]
		}
		return float64(i)
	}},
	{"the tokens of its row", false, func(c *stage.Case, i int) float64 { return float64(i / c.B.Cols) }},
	{"the tokens of its column", false, func(c *stage.Case, i int) float64 { return float64(i % c.B.Cols) }},
}

// meanAdvantageEdits returns edits in which one number stands for the advantages of many cells: their mean, their sum, or the first of them.
func meanAdvantageEdits(o *stage.Outcome) []edit {
	b := o.Case.B
	t := b.Tensors["advantages"]
	if t == nil || t.Width > 1 || o.Check.Stage != convention.TokenLoss && o.Check.Stage != convention.Gradient || o.Check.Output == "dvalues" || b.Cols == 0 {
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
					x, e := broadcastOver(c, m.part, part)
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

// broadcastOver returns advantages that are one number for the cells of one key, and what rounding of sums leaves of it: u times the terms and their
// sizes. Of rows with one advantage each row counts once. It is nil where nothing changes.
func broadcastOver(c *stage.Case, key func(c *stage.Case, i int) float64, part string) (y, e []float64) {
	b, x := c.B, c.Optional("advantages").X
	t := b.Tensors["advantages"]
	if t == nil || len(x) != len(b.Mask) {
		return nil, nil
	}
	type total struct{ sum, size, n, first float64 }
	totals := map[float64]total{}
	for j, a := range x {
		if t.Layout == dump.PerRow && j%b.Cols != 0 || t.Layout != dump.PerRow && !b.Mask[j] {
			continue
		}
		k := key(c, j)
		s := totals[k]
		if s.n == 0 {
			s.first = a
		}
		totals[k] = total{s.sum + a, s.size + math.Abs(a), s.n + 1, s.first}
	}
	y, e = slices.Clone(x), make([]float64, len(x))
	for i := range y {
		s := totals[key(c, i)]
		switch y[i], e[i] = s.sum, s.n*c.Unit*s.size; {
		case part == "first":
			y[i], e[i] = s.first, 0
		case part == "mean" && s.n > 0:
			y[i], e[i] = s.sum/s.n, e[i]/s.n
		}
	}
	if slices.Equal(x, y) {
		return nil, nil
	}
	return y, e
}
