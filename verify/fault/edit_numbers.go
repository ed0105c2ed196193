package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// bounds are options that a number is held within, and usual what programs write for them.
var (
	bounds = []string{"value.clip", "clip.dual"}
	usual  = []float64{0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1, 1.5, 2, 3, 4, 5, 10, 20}
)

// boundEdits returns edits of a bound that is another usual number, or off by a factor of ten or two.
func boundEdits(o *stage.Outcome) []edit {
	switch o.Check.Stage {
	case convention.TokenLoss, convention.Aggregate, convention.Gradient:
	default:
		return nil
	}
	var list []edit
	for _, name := range bounds {
		v := o.Case.Set.Value(name)
		if v.Kind() != convention.Number || !slices.Contains(o.Case.Read, name) {
			continue
		}
		for _, x := range append(slices.Clone(usual), 10*v.Num(), v.Num()/10, 2*v.Num(), v.Num()/2) {
			if x == v.Num() {
				continue
			}
			in := number(name, func(float64) float64 { return x })
			list = append(list, edit{id: optionID(name, "OTHER-OPTION"), title: fmt.Sprintf("%s is %g where it should be %g", name, x, v.Num()), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(in, c, ch) }})
		}
	}
	return list
}

// rowed are the tensors whose rows may be those of others, and the bug that this is.
var rowed = []struct{ tensor, id string }{{"is_weights", "IS-ROWS"}, {"logp_ref", "KL-REFERENCE-ROWS"}, {"values", "VALUES-OF-OTHER-ROWS"},
	{"logp_old", "OLD-ROWS-ROLLED"}, {"advantages", "ADV-ROWS-OF-OTHERS"}}

// rowEdits returns edits in which every row reads the row of another response: a tensor that was not permuted with its mini-batch.
func rowEdits(o *stage.Outcome) []edit {
	var list []edit
	for _, f := range rowed {
		b := o.Case.B
		t, out := b.Tensors[f.tensor], b.Tensors[o.Check.Output]
		if t == nil || out == nil || t.Width > 1 || t.Layout != dump.PerToken && t.Layout != dump.PerRow || out.Layout != dump.PerToken || f.tensor == o.Check.Output || b.Rows > 128 || made[f.tensor] > made[o.Check.Output] {
			continue
		}
		list = append(list, edit{id: f.id, title: f.tensor + " is that of other rows: it was not permuted with the rest of the batch", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return matchedRows(f.tensor, c, ch) }})
	}
	return list
}

// matchedRows predicts an output for the tensor whose row r is the one under which the numbers of row r are right. It is nil where a row has
// none, where the rows are their own, or where so few tokens are compared that a row fits by chance.
func matchedRows(name string, c *stage.Case, ch *stage.Check) *stage.Prediction {
	const least = 24 // tokens of rows that are not their own
	b := c.B
	x, got := c.Optional(name).X, b.Token(ch.Output)
	if len(x) != len(b.Mask) || len(got) != len(b.Mask) || b.Rows < 4 || b.Cols == 0 {
		return nil
	}
	want, bound, judge := make([]float64, len(x)), make([]float64, len(x)), make([]bool, len(x))
	open, moved, sources := b.Rows, 0, map[int]bool{}
	done := make([]bool, b.Rows)
	for by := 0; by < b.Rows && open > 0; by++ {
		y := make([]float64, len(x))
		for r := range b.Rows {
			s := (r + by) % b.Rows
			copy(y[r*b.Cols:(r+1)*b.Cols], x[s*b.Cols:(s+1)*b.Cols])
		}
		p := under(perToken(name, y), c, ch)
		if p == nil || len(p.Want) != len(x) {
			return nil
		}
		for r := range b.Rows {
			s := (r + by) % b.Rows
			if done[r] {
				continue
			}
			n, fits := 0, true
			for t := 0; t < b.Cols && fits; t++ {
				i := r*b.Cols + t
				if b.Mask[i] && b.Mask[s*b.Cols+t] {
					n++
					fits = math.Abs(got[i]-p.Want[i]) <= 4*p.Bound[i]+0x1p-23*math.Abs(p.Want[i])
				}
			}
			if first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols]); !fits || n == 0 && first >= 0 {
				continue
			}
			done[r], sources[s] = true, true
			open--
			if by > 0 {
				moved += n
			}
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				want[i], bound[i], judge[i] = p.Want[i], p.Bound[i], b.Mask[i] && b.Mask[s*b.Cols+i-r*b.Cols]
			}
		}
	}
	if open > 0 || moved < least || 2*len(sources) < b.Rows {
		return nil
	}
	return &stage.Prediction{Want: want, Bound: bound, Judge: judge}
}
