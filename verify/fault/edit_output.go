package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// outputEdits returns edits of an output whose numbers are right and stand elsewhere, or are right up to numbers that a group has.
func outputEdits(o *stage.Outcome) []edit {
	t := o.Case.B.Tensors[o.Check.Output]
	if t == nil || t.Width > 1 || o.Case.B.Cols == 0 || len(o.Got) != len(t.Data) || len(o.Pred.Want) != len(t.Data) {
		return nil
	}
	if !slices.Contains([]convention.Stage{convention.Advantage, convention.KL, convention.Reward, convention.Ratio, convention.TokenLoss}, o.Check.Stage) {
		return nil
	}
	return append(movedEdits(o), groupEdits(o)...)
}

func movedEdits(o *stage.Outcome) []edit {
	id := "OTHER-TENSOR"
	if o.Check.Output == "advantages" {
		id = "ADV-ROWS-OF-OTHERS"
	}
	var list []edit
	for _, m := range rowMoves {
		for _, whole := range []bool{false, true} {
			title := fmt.Sprintf("%s are those of %s", o.Check.Output, m.title)
			if whole {
				title += " in the step"
			}
			list = append(list, edit{id: id, title: title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				from := make([]int, c.B.Rows)
				for _, f := range c.B.Files {
					lo, n := f.Lo, f.Hi-f.Lo
					if whole {
						lo, n = 0, c.B.Rows
					}
					for r := f.Lo; r < f.Hi; r++ {
						from[r] = lo + m.from(r-lo, n)
					}
				}
				return ofRows(c, ch, from)
			}})
		}
	}
	if o.Check.ID == "gae/advantage" || o.Check.ID == "advantage/return" {
		list = append(list, edit{id: id, title: o.Check.Output + " of every row are those of another row of the step", changes: 1, predict: permuted})
	}
	if o.Check.Output == "advantages" {
		list = append(list, edit{id: id, title: "advantages of rows are the right ones of other rows: the rows were not selected, or not permuted, with the rest of the batch", changes: mostChanges, predict: ofAny})
	}
	if o.Case.B.Tensors[o.Check.Output].Layout == dump.PerToken {
		for _, by := range []int{1, -1} {
			word := map[int]string{1: "late", -1: "early"}[by]
			list = append(list, edit{id: "OTHER-TENSOR", title: fmt.Sprintf("%s stand one token %s", o.Check.Output, word), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return moved(c, ch, func(int) int { return by })
				}})
		}
	}
	return list
}

// ofAny predicts an output whose rows are right, or the right ones of other rows, several of which may be those of one. It is nil where the rows that are
// elsewhere have so few numbers that other formulas have them, too.
func ofAny(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const most, enough = 512, 8 // rows; distinct numbers
	b, t := c.B, c.B.Tensors[ch.Output]
	p := under(sameInput, c, ch)
	if p == nil || t == nil || b.Rows < 4 || b.Rows > most || len(p.Want) != len(t.Data) || len(p.Want)%b.Rows != 0 {
		return nil
	}
	w := len(p.Want) / b.Rows
	raw := p
	scope := c.EnumOr("whiten.scope", "none")
	if scope != "none" {
		if raw = under(notWhitened, c, ch); raw == nil || w != b.Cols || len(raw.Want) != len(p.Want) {
			return nil
		}
	}
	in := func(i int) bool {
		return (p.Judge == nil || p.Judge[i]) && (w != b.Cols || b.Mask[i])
	}
	from, numbers := make([]int, b.Rows), map[float64]bool{}
	for r := range b.Rows {
		from[r] = -1
		for k := 0; k < b.Rows && from[r] < 0; k++ {
			s, n, fits := (r+k)%b.Rows, 0, true
			if scope != "none" {
				n, fits = onLine(t.Data[r*w:(r+1)*w], raw.Want[s*w:(s+1)*w], func(x int) bool { return in(r*w+x) && in(s*w+x) })
			}
			for x := 0; x < w && scope == "none" && fits; x++ {
				if i, j := r*w+x, s*w+x; in(i) && in(j) {
					n++
					fits = math.Abs(t.Data[i]-p.Want[j]) <= p.Bound[j]
				}
			}
			if fits && (n > 0 || k == 0) {
				from[r] = s
			}
		}
		if from[r] < 0 {
			return nil
		}
		for x := 0; x < w && from[r] != r; x++ {
			if in(r*w+x) && in(from[r]*w+x) {
				numbers[math.Round(1e5*p.Want[from[r]*w+x])] = true
			}
		}
	}
	if len(numbers) < enough {
		return nil
	}
	if scope == "none" {
		return ofRows(c, ch, from)
	}
	moved, judge := altered(raw), slices.Clone(b.Mask)
	for r, s := range from {
		for x := range w {
			if i, j := r*w+x, s*w+x; b.Mask[i] {
				moved.Want[i], moved.Bound[i], judge[i] = raw.Want[j], raw.Bound[j], in(j)
			}
		}
	}
	return whitenedFrom(moved, judge, c, ch)
}

// onLine reports whether the numbers y of a row are k·x + m, k > 0, of those of another, with how many numbers speak: at least five.
func onLine(y, x []float64, in func(t int) bool) (n int, fits bool) {
	const enough, near = 5, 2e-4
	at := slices.DeleteFunc(inOrder(len(y)), func(t int) bool { return !in(t) })
	if n = len(at); n < enough {
		return n, false
	}
	low, high := extremes(at, func(t int) float64 { return x[t] })
	k := (y[high] - y[low]) / (x[high] - x[low])
	if !(k > 0) || math.IsInf(k, 0) {
		return n, false
	}
	return n, !slices.ContainsFunc(at, func(t int) bool { return !(math.Abs(y[t]-y[low]-k*(x[t]-x[low])) <= near*(y[high]-y[low])) })
}

// whitenedFrom predicts the advantages that the whitening of the options makes of others, judged where judge says, or where they are anyway if that is nil:
// they are handed to it as rewards without a future.
func whitenedFrom(others *stage.Prediction, judge []bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p := under(both(both(perToken("token_rewards", others.Want), constant("values", 0)), number("gae.gamma", func(float64) float64 { return 0 })), c, ch)
	if p == nil {
		return nil
	}
	var most float64
	for i := range c.B.Tokens() {
		most = max(most, others.Bound[i])
	}
	q := *p
	q.Bound = slices.Clone(p.Bound)
	for i := range q.Bound {
		q.Bound[i] += 4 * most
	}
	if judge != nil {
		q.Judge = judge
	}
	return &q
}

// ofRows predicts an output whose row r is row from[r] of the right one, judged where both are in the mask.
func ofRows(c *stage.Case, ch *stage.Check, from []int) *stage.Prediction {
	p := under(sameInput, c, ch)
	if p == nil || c.B.Rows == 0 || len(p.Want)%c.B.Rows != 0 || len(p.Want) == 0 {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
	w := len(p.Want) / c.B.Rows
	if w == c.B.Cols {
		q.Judge = slices.Clone(c.B.Mask)
	}
	for r, s := range from {
		for t := range w {
			i, j := r*w+t, s*w+t
			q.Want[i], q.Bound[i] = p.Want[j], p.Bound[j]
			if q.Judge != nil {
				q.Judge[i] = q.Judge[i] && c.B.Mask[j]
			}
		}
	}
	return q
}

// groupEdits returns edits of advantages that are right but for one number of every group: another baseline, or another spread. The
// number is read off the group's own advantages, and all others of the group must agree with it.
func groupEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "advantage/group" {
		return nil
	}
	return append(deviationEdits(o), []edit{
		{id: "ADV-CENTER", title: "every group has another baseline: its advantages are the right ones plus one number", changes: mostChanges,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return groupFitted(c, ch, false) }},
		{id: "ADV-SPREAD", title: "every group has another spread: its advantages are the right ones times one number", changes: mostChanges,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return groupFitted(c, ch, true) }},
	}...)
}

// groupFitted predicts advantages that are right but for a number of every group, added or multiplied. It predicts nothing where the
// numbers are as many as half of what they must explain, or where all are the same: that is a common factor or a common term.
func groupFitted(c *stage.Case, ch *stage.Check, times bool) *stage.Prediction {
	p, t, id := under(sameInput, c, ch), c.B.Tensors[ch.Output], c.B.Row("group_id")
	if p == nil || t == nil || len(id) != c.B.Rows || len(p.Want) != len(t.Data) || len(p.Want)%c.B.Rows != 0 {
		return nil
	}
	w := len(p.Want) / c.B.Rows
	first := func(r int) int { // the cell that stands for a row
		for i := r * w; i < (r+1)*w; i++ {
			if w == 1 || c.B.Mask[i] {
				return i
			}
		}
		return -1
	}
	groups := map[float64][]int{}
	for r, g := range id {
		if first(r) >= 0 {
			groups[g] = append(groups[g], r)
		}
	}
	by := map[float64]float64{}
	free, least, most := 0, math.Inf(1), math.Inf(-1)
	for g, rows := range groups {
		var num, den float64
		distinct := map[float64]bool{}
		for _, r := range rows {
			i := first(r)
			distinct[p.Want[i]] = true
			if times {
				num, den = num+float64(t.Data[i]*p.Want[i]), den+float64(p.Want[i]*p.Want[i])
			} else {
				num, den = num+t.Data[i]-p.Want[i], den+1
			}
		}
		if by[g] = num / den; times && den == 0 {
			by[g] = 1
		}
		free += max(len(distinct)-1, 0)
		if !times || den > 0 {
			least, most = min(least, by[g]), max(most, by[g])
		}
	}
	const enough = 6 // numbers that are explained beyond those that were fitted
	if free < enough || free < len(groups) || !(most-least > 1e-3*max(math.Abs(most), math.Abs(least))) {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale, Judge: p.Judge, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
	for r, g := range id {
		for i := r * w; i < (r+1)*w; i++ {
			if times {
				q.Want[i] *= by[g]
				q.Bound[i] = 2*math.Abs(by[g])*q.Bound[i] + 8*c.Unit*math.Abs(q.Want[i])
			} else {
				q.Bound[i] = 2*q.Bound[i] + 8*c.Unit*(math.Abs(by[g])+math.Abs(q.Want[i]))
				q.Want[i] += by[g]
			}
		}
	}
	return q
}

// zero explains advantages that are all 0: they were never filled, or multiplied by 0. Many formulas give that, by groups of one row or a bound of 0,
// and the numbers tell none of them from the others.
func (t *trial) zero() []Explanation {
	o := t.levels[0]
	if o.Check.Output != "advantages" {
		return nil
	}
	for i, x := range o.Got {
		if (o.Pred.Judge == nil || o.Pred.Judge[i]) && (o.Pred.Judge != nil || len(o.Got) != len(o.Case.B.Mask) || o.Case.B.Mask[i]) && x != 0 {
			return nil
		}
	}
	h := described(&Hypothesis{ID: "ADV-ZERO", Checks: []string{o.Check.ID}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := under(sameInput, c, ch)
		if p == nil {
			return nil
		}
		q := *p
		q.Want, q.Bound, q.Alt = make([]float64, len(p.Want)), make([]float64, len(p.Want)), nil
		return &q
	}})[0]
	if e, ok := t.try(h, "", h.judge); ok && !e.Lead {
		return []Explanation{e}
	}
	return nil
}
