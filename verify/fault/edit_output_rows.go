package fault

import (
	"cmp"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// predictedRow is a row of an output as a right program computes it, with its bounds and the number of its response, NaN where the dump has none.
type predictedRow struct {
	want, bound []float64
	mask        []bool
	sample      float64
}

// has reports whether the row has a token in a column.
func (p predictedRow) has(t int) bool { return t < len(p.want) && p.mask[t] }

// at returns the number of a column, the fill where the row has no token there; false where that is NaN.
func (p predictedRow) at(t int, fill float64) (want, bound float64, ok bool) {
	if p.has(t) {
		return p.want[t], p.bound[t], true
	}
	return fill, 0, !math.IsNaN(fill)
}

// outputRowIDs are the bugs that rows of an output are which belong to other responses.
var outputRowIDs = map[string]string{"is_weights": "IS-ROWS", "kl": "KL-REFERENCE-ROWS", "returns": "RETURNS-OF-OTHER-ROWS", "advantages": "ADV-ROWS-OF-OTHERS"}

// outputRowsAmong returns the edit of an output per token that is computed rightly and stands in other rows, some of them of other steps: a tensor of the
// rollout that was not permuted with the others, or came back in another order.
func outputRowsAmong(o *stage.Outcome, beside func(step int) []*dump.Batch) []edit {
	recursion := o.Check.ID == "gae/returns" || o.Check.ID == "gae/advantage" // other advantages are one number in all tokens of a row, which rows may share
	if o.Check.Stage != convention.Ratio && o.Check.Stage != convention.KL && !recursion || len(o.Got) != len(o.Case.B.Mask) || o.Case.B.Cols == 0 || o.Case.B.Rows > 128 {
		return nil
	}
	match := func(c *stage.Case, ch *stage.Check) (*stage.Prediction, string) {
		var sources []predictedRow
		for _, b := range append([]*dump.Batch{c.B}, beside(c.B.Meta.Step)...) {
			sources = append(sources, predictedRows(c.Of(b, c.Set), ch)...)
		}
		got, fill := c.B.Token(ch.Output), math.NaN()
		if ch.Output == "is_weights" && len(got) == len(c.B.Mask) {
			fill = fillOf(got, c.B.Mask)
		}
		return outputRows(c, got, fill, sources)
	}
	_, order := match(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	title := o.Check.Output + " stand in other rows than those that they were computed of, some of other steps: " + cmp.Or(order, "they were not permuted as the rest of the rollout was")
	return []edit{{id: cmp.Or(outputRowIDs[o.Check.Output], "SLICE-OF-OTHERS"), title: title, changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, _ := match(c, ch)
			return p
		}}}
}

// predictedRows returns the rows of an output that a right program computes, nil where that cannot be told.
func predictedRows(c *stage.Case, ch *stage.Check) (rows []predictedRow) {
	b := c.B
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != len(b.Mask) || b.Cols == 0 {
		return nil
	}
	sample := b.Row("sample_id")
	for r := range b.Rows {
		lo, hi := r*b.Cols, (r+1)*b.Cols
		row := predictedRow{p.Want[lo:hi], p.Bound[lo:hi], b.Mask[lo:hi], math.NaN()}
		if len(sample) == b.Rows {
			row.sample = sample[r]
		}
		rows = append(rows, row)
	}
	return rows
}

// fillOf returns what weights are outside their masks, 1 or 0: that of both which more of the cells outside the mask have, NaN where none has either.
func fillOf(x []float64, mask []bool) float64 {
	ones, zeros := 0, 0
	for i, v := range x {
		if !mask[i] && v == 1 {
			ones++
		} else if !mask[i] && v == 0 {
			zeros++
		}
	}
	switch {
	case ones > zeros:
		return 1
	case zeros > 0:
		return 0
	}
	return math.NaN()
}

// outputRows predicts for every row that of the sources which is nearest to what was dumped, over the tokens that both have, and over those that the source has
// not, where it has a fill, unless that is NaN. The sources begin with the rows of the batch. It is nil where a row has none, or where so few tokens are compared
// that a row fits by chance. order says what the numbers of the responses do.
func outputRows(c *stage.Case, got []float64, fill float64, sources []predictedRow) (p *stage.Prediction, order string) {
	const least = 24 // tokens of rows that are not their own
	b := c.B
	if len(got) != len(b.Mask) || b.Rows < 2 || len(sources) < b.Rows {
		return nil, ""
	}
	q := &stage.Prediction{Want: make([]float64, len(got)), Bound: make([]float64, len(got)), Judge: make([]bool, len(got))}
	moved, compared, used := 0, 0, map[int]bool{}
	var own, other []float64
	for r := range b.Rows {
		best, nearest, shared := -1, math.Inf(1), 0
		for s, from := range sources {
			n, off, judged := 0, 0.0, false
			for i := range b.TokensOf(r) {
				want, bound, ok := from.at(i%b.Cols, fill)
				if !ok {
					continue
				}
				if judged, off = true, max(off, math.Abs(got[i]-want)-bound); from.has(i % b.Cols) {
					n++
				}
			}
			if judged && (off < nearest || off <= 0 && n > shared) {
				best, nearest, shared = s, max(off, 0), n
			}
		}
		if first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols]); best < 0 && first < 0 {
			continue
		} else if best < 0 {
			return nil, ""
		}
		from := sources[best]
		if shared > 0 {
			used[best], compared = true, compared+1
			own, other = append(own, sources[r].sample), append(other, from.sample)
		}
		if best != r {
			moved += shared
		}
		for i := range b.TokensOf(r) {
			if want, bound, ok := from.at(i%b.Cols, fill); ok {
				q.Want[i], q.Bound[i], q.Judge[i] = want, bound, true
			}
		}
	}
	if moved < least || 2*len(used) < compared {
		return nil, ""
	}
	return q, orderOf(own, other)
}

// orderOf says which order puts the rows of other numbers in the place of those of their own, "" where no simple one does.
func orderOf(own, other []float64) string {
	all := func(of func(x, y float64) float64) bool {
		return !slices.ContainsFunc(own, math.IsNaN) && len(own) > 2 && !slices.ContainsFunc(own, func(x float64) bool {
			k := slices.Index(own, x)
			return of(own[k], other[k]) != of(own[0], other[0])
		})
	}
	switch {
	case all(func(x, y float64) float64 { return x + y }):
		return "the rollout is in reversed order"
	case all(func(x, y float64) float64 { return y - x }):
		return "those of a response that stands a fixed number of rows away"
	}
	return ""
}
