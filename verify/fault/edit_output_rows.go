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
		return outputRows(c, c.B.Token(ch.Output), sources)
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

// outputRows predicts for every row that of the sources which is nearest to what was dumped, over the tokens that both have. The sources begin with the rows of
// the batch. It is nil where a row has none, or where so few tokens are compared that a row fits by chance. order says what the numbers of the responses do.
func outputRows(c *stage.Case, got []float64, sources []predictedRow) (p *stage.Prediction, order string) {
	const least = 24 // tokens of rows that are not their own
	b := c.B
	if len(got) != len(b.Mask) || b.Rows < 2 || len(sources) < b.Rows {
		return nil, ""
	}
	q := &stage.Prediction{Want: make([]float64, len(got)), Bound: make([]float64, len(got)), Judge: make([]bool, len(got))}
	moved, used := 0, map[int]bool{}
	var own, other []float64
	for r := range b.Rows {
		best, nearest, shared := -1, math.Inf(1), 0
		for s, from := range sources {
			n, off := 0, 0.0
			for t := range min(b.Cols, len(from.want)) {
				if i := r*b.Cols + t; b.Mask[i] && from.mask[t] {
					n, off = n+1, max(off, math.Abs(got[i]-from.want[t])-from.bound[t])
				}
			}
			if n > 0 && (off < nearest || off <= 0 && n > shared) {
				best, nearest, shared = s, max(off, 0), n
			}
		}
		if first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols]); best < 0 && first < 0 {
			continue
		} else if best < 0 {
			return nil, ""
		}
		if used[best] = true; best != r {
			moved += shared
		}
		from := sources[best]
		for t := range min(b.Cols, len(from.want)) {
			if i := r*b.Cols + t; b.Mask[i] && from.mask[t] {
				q.Want[i], q.Bound[i], q.Judge[i] = from.want[t], from.bound[t], true
			}
		}
		own, other = append(own, sources[r].sample), append(other, from.sample)
	}
	if moved < least || 2*len(used) < b.Rows {
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
