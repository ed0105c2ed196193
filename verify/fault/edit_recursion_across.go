package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// acrossRule is what a recursion reads of a column of all rows of a rollout in place of the number of the k-th row.
type acrossRule struct {
	title string
	of    func(x []float64, k int) float64
}

var (
	ownRow     = acrossRule{"", func(x []float64, k int) float64 { return x[k] }}
	acrossRows = []acrossRule{
		{"that of the row before", func(x []float64, k int) float64 { return x[(k+len(x)-1)%len(x)] }},
		{"that of the row behind", func(x []float64, k int) float64 { return x[(k+1)%len(x)] }},
		{"that of the row at the other end", func(x []float64, k int) float64 { return x[len(x)-1-k] }},
		{"the mean over all rows", func(x []float64, _ int) float64 { return meanOf(x) }},
		{"the sum over all rows", func(x []float64, _ int) float64 { return total(x) }},
		{"that of the first row", func(x []float64, _ int) float64 { return x[0] }},
		{"that of the last row", func(x []float64, _ int) float64 { return x[len(x)-1] }},
	}
)

// recursionAcrossEdits returns edits of the recursion A_t = r_t + γ·V_{t+1} − V_t + γλ·A_{t+1} over the columns of a whole rollout, that reads one of these of other rows
// than its own: of tensors that are rolled along their rows, or reduced over them.
func recursionAcrossEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "gae/advantage" && o.Check.ID != "gae/returns" || o.Case.B.Rows < 2 {
		return nil
	}
	for _, rule := range acrossRows {
		add := func(what string, next, own, carried, reward acrossRule, masked bool) {
			list = append(list, edit{id: "GAE-RECURSION", title: what + " is " + rule.title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return acrossColumns(next, own, carried, reward, masked, c, ch)
			}})
		}
		add("the next value", rule, ownRow, ownRow, ownRow, false)
		add("the next value, 0 outside the mask,", rule, ownRow, ownRow, ownRow, true)
		add("the own value", ownRow, rule, ownRow, ownRow, false)
		add("A_{t+1}", ownRow, ownRow, rule, ownRow, false)
		add("the reward", ownRow, ownRow, ownRow, rule, false)
	}
	return list
}

// acrossColumns predicts the recursion column by column. masked says whether the values of the other rows are 0 outside their own masks. It is nil where responses
// have holes, over which programs carry by rules of their own.
func acrossColumns(next, own, carried, reward acrossRule, masked bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	r, v := c.Token("token_rewards"), c.Token("values")
	gamma, lambda := numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN())
	if len(r.X) != len(b.Mask) || len(v.X) != len(b.Mask) || math.IsNaN(gamma*lambda) || b.Cols == 0 || c.Has("dones") || c.Has("next_values") || !plainRecursion(c, ch) {
		return nil
	}
	rows := byPlace(b)
	for _, row := range rows {
		if first, last := firstLast(b.Mask[row*b.Cols : (row+1)*b.Cols]); first >= 0 && slices.Contains(b.Mask[row*b.Cols+first:row*b.Cols+last], false) {
			return nil
		}
	}
	column := func(x []float64, t int, inside bool) []float64 {
		return eachOf(len(rows), func(k int) float64 {
			if i := rows[k]*b.Cols + t; t < b.Cols && (!inside || b.Mask[i]) {
				return x[i]
			}
			return 0
		})
	}
	p := &stage.Prediction{Want: make([]float64, len(b.Mask)), Bound: make([]float64, len(b.Mask)), Judge: slices.Clone(b.Mask), Scale: 1}
	a, e := make([]float64, len(rows)), 0.0
	for t := b.Cols - 1; t >= 0; t-- {
		behind, here, rewards, was, worst := column(v.X, t+1, masked), column(v.X, t, false), column(r.X, t, true), slices.Clone(a), 0.0
		by := gamma * lambda
		if math.Abs(carried.of(eachOf(len(rows), func(int) float64 { return 1 }), 0)) > 1 {
			e *= float64(len(rows)) // a sum
		}
		for k, row := range rows {
			i := row*b.Cols + t
			if a[k] = 0; !b.Mask[i] {
				continue
			}
			following := 0.0
			if t+1 < b.Cols && b.Mask[i+1] {
				following = next.of(behind, k)
			}
			x, y, z := reward.of(rewards, k), own.of(here, k), carried.of(was, k)
			a[k] = x + gamma*following - y + by*z
			p.Want[i] = a[k]
			p.Bound[i] = by*e + float64(len(rows)+8)*c.Unit*(math.Abs(x)+math.Abs(gamma*following)+math.Abs(y)+math.Abs(by*z)) + r.E(i) + v.E(i)
			worst = max(worst, p.Bound[i])
		}
		e = worst
	}
	if ch.Output == "returns" {
		return withValues(p, v, c)
	}
	if whitened := c.Set.Value("whiten.scope").String(); whitened == "none" || whitened == "–" {
		return p
	}
	return whitenedFrom(p, nil, c, ch)
}
