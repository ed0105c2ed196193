package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// bounds are options that a number is held within, and usual what programs write for them.
var (
	bounds = []string{"value.clip", "clip.dual"}
	usual  = []float64{0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1, 1.1, 1.2, 1.25, 1.3, 1.5, 2, 3, 4, 5, 10, 20}
)

// boundEdits returns edits of a bound that is another usual number, or off by a factor of ten or two.
func boundEdits(o *stage.Outcome) []edit {
	if !slices.Contains([]convention.Stage{convention.TokenLoss, convention.Aggregate, convention.Gradient}, o.Check.Stage) {
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
			list = append(list, edit{id: optionID(name, "OTHER-OPTION"), title: fmt.Sprintf("%s is %g where it should be %g", name, x, v.Num()), changes: 1, number: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(in, c, ch) }})
		}
	}
	return list
}

// rowed are the tensors whose rows may be those of others, and the bug that this is.
var rowed = []struct{ tensor, id string }{{"is_weights", "IS-ROWS"}, {"logp_ref", "KL-REFERENCE-ROWS"}, {"values", "VALUES-OF-OTHER-ROWS"},
	{"logp_old", "OLD-ROWS-ROLLED"}, {"advantages", "ADV-ROWS-OF-OTHERS"}, {"logp_gen", "SLICE-OF-OTHERS"}, {"returns", "SLICE-OF-OTHERS"}, {"token_rewards", "SLICE-OF-OTHERS"}, {"kl", "KL-OF-OTHER-ROWS"}}

// rowEdits returns edits in which every row reads the row of another response: a tensor that was not permuted with its mini-batch.
func rowEdits(o *stage.Outcome) []edit { return rowEditsAmong(o, nil) }

// rowEditsAmong is [rowEdits] where the rows of other steps stand beside those of the step, nil: none do.
func rowEditsAmong(o *stage.Outcome, beside func(step int) []*dump.Batch) []edit {
	var list []edit
	for _, f := range rowed {
		b := o.Case.B
		t, out := b.Tensors[f.tensor], b.Tensors[o.Check.Output]
		if t == nil || out == nil || t.Width > 1 || t.Layout != dump.PerToken && t.Layout != dump.PerRow || out.Layout != dump.PerToken || f.tensor == o.Check.Output || b.Rows > 128 || made[f.tensor] > made[o.Check.Output] {
			continue
		}
		title := f.tensor + " is that of other rows: it was not permuted with the rest of the batch"
		if beside != nil {
			title = f.tensor + " is that of other rows, some of them of other steps: it was not permuted, or not cut into mini-batches, as the rest of the rollout was"
		}
		list = append(list, edit{id: f.id, title: title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				rows := rowsOf(f.tensor, c.B)
				if beside != nil {
					for _, other := range beside(c.B.Meta.Step) {
						rows = append(rows, rowsOf(f.tensor, other)...)
					}
				}
				return matchedRows(f.tensor, rows, c, ch)
			}})
	}
	return list
}

// ExplainRows explains a failure by a tensor whose rows are those of other steps: a rollout that was permuted, or cut into mini-batches, without it.
// What stands beside a step are the batches of those around it.
func ExplainRows(o *stage.Outcome, beside func(step int) []*dump.Batch) []Explanation {
	if o.Verdict != check.Fail || o.Pred == nil {
		return nil
	}
	if o.Check.ID == "aggregate/loss" || o.Check.ID == "gradient/dlogp" { // what a loss reads is told by its terms
		if found := newTrial(o).fitting(append(rolloutCountEdits(o, beside), leftOutCountEdits(o, beside)...)); len(found) > 0 || o.Check.ID == "aggregate/loss" {
			return found
		}
	}
	if found := newTrial(o).fitting(anewEdits(o, beside)); len(found) > 0 {
		return found // rows of others have the same numbers where they are the same rows
	}
	var list []edit
	if _, row := o.Case.B.Tensors[o.Check.Output]; row && len(o.Got) == len(o.Case.B.Mask) {
		list = rowEditsAmong(o, beside)
	}
	return newTrial(o).fitting(slices.Concat(staleEdits(o, beside), slicesAmong(o, beside), ordersAmong(o, beside), outputRowsAmong(o, beside), list))
}

// sourceRow is a row of a tensor, per token, with the cells that it has numbers for.
type sourceRow struct {
	x    []float64
	mask []bool
}

// rowsOf returns the rows of a tensor of a batch, nil where it has none.
func rowsOf(name string, b *dump.Batch) (rows []sourceRow) {
	x, each := b.Token(name), b.Row(name)
	if x == nil && len(each) != b.Rows || b.Cols == 0 {
		return nil
	}
	for r := range b.Rows {
		row := sourceRow{mask: b.Mask[r*b.Cols : (r+1)*b.Cols]}
		if x != nil {
			row.x = x[r*b.Cols : (r+1)*b.Cols]
		} else {
			row.x, row.mask = slices.Repeat(each[r:r+1], b.Cols), slices.Repeat([]bool{true}, b.Cols)
		}
		rows = append(rows, row)
	}
	return rows
}

// matchedRows predicts an output for the tensor whose row r is the one of the sources under which the numbers of row r are right. The sources begin
// with the rows of the batch. It is nil where a row has none, where the rows are their own, or where so few tokens are compared that a row fits by
// chance.
func matchedRows(name string, sources []sourceRow, c *stage.Case, ch *stage.Check) *stage.Prediction {
	least := 24 // tokens of rows that are not their own
	if c.B.Rows < 4 {
		least = 8
	}
	const most = 4 << 20 // cells that are predicted
	b := c.B
	x, got := c.Optional(name).X, b.Token(ch.Output)
	if len(x) != len(b.Mask) || len(got) != len(b.Mask) || b.Rows < 2 || b.Cols == 0 || len(sources) < b.Rows || 2*len(sources)*len(b.Mask) > most {
		return nil
	}
	want, bound, judge := make([]float64, len(x)), make([]float64, len(x)), make([]bool, len(x))
	open, moved, used := b.Rows, 0, map[int]bool{}
	done := make([]bool, b.Rows)
	shifted := make([]*stage.Prediction, len(sources)) // by the number of rows
	for k := 0; k < 2*len(sources) && open > 0; k++ {  // rows that differ by little are told by what is nearest, so that wide bounds come last
		by, slack := k%len(sources), 1.0
		if k >= len(sources) {
			slack = 4
		}
		p := shifted[by]
		if p == nil {
			y := make([]float64, len(x))
			for r := range b.Rows {
				copy(y[r*b.Cols:(r+1)*b.Cols], sources[(r+by)%len(sources)].x)
			}
			if p = under(perToken(name, y), c, ch); p == nil || len(p.Want) != len(x) {
				return nil
			}
			shifted[by] = p
		}
		for r := range b.Rows {
			s := (r + by) % len(sources)
			if done[r] {
				continue
			}
			has := func(t int) bool { return b.Mask[r*b.Cols+t] && t < len(sources[s].mask) && sources[s].mask[t] }
			n, fits := 0, true
			for t := 0; t < b.Cols && fits; t++ {
				if i := r*b.Cols + t; has(t) {
					n++
					fits = math.Abs(got[i]-p.Want[i]) <= slack*p.Bound[i]+0x1p-23*math.Abs(p.Want[i])
				}
			}
			if first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols]); !fits || n == 0 && first >= 0 {
				continue
			}
			done[r], used[s] = true, true
			open--
			// A row of zeros is one of another row that has none, and one that a mask leaves out.
			if by > 0 && slices.ContainsFunc(got[r*b.Cols:(r+1)*b.Cols], func(v float64) bool { return v != 0 }) {
				moved += n
			}
			for t := range b.Cols {
				i := r*b.Cols + t
				want[i], bound[i], judge[i] = p.Want[i], p.Bound[i], has(t)
			}
		}
	}
	if open > 0 || moved < least || 2*len(used) < b.Rows {
		return nil
	}
	return &stage.Prediction{Want: want, Bound: bound, Judge: judge}
}
