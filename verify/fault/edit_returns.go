package fault

import (
	"math"
	"strings"

	"plumbline/verify/stage"
)

// returnForms are what programs make of returns R = A + V: the advantages are right, and V is something else.
var returnForms = []struct {
	title string
	of    func(c *stage.Case, v []float64, i int) (x float64, known bool)
}{
	{"the values are left out: R = A", func(*stage.Case, []float64, int) (float64, bool) { return 0, true }},
	{"the values are subtracted: R = A − V", func(_ *stage.Case, v []float64, i int) (float64, bool) { return -v[i], true }},
	{"the values are added twice: R = A + 2·V", func(_ *stage.Case, v []float64, i int) (float64, bool) { return 2 * v[i], true }},
	{"half of the values is added: R = A + V/2", func(_ *stage.Case, v []float64, i int) (float64, bool) { return v[i] / 2, true }},
	{"the magnitudes of the values are added", func(_ *stage.Case, v []float64, i int) (float64, bool) { return math.Abs(v[i]), true }},
	{"the squares of the values are added", func(_ *stage.Case, v []float64, i int) (float64, bool) { return v[i] * v[i], true }},
	{"the values are added without their fractions", func(_ *stage.Case, v []float64, i int) (float64, bool) { return math.Trunc(v[i]), true }},
	{"the value of the token before is added", func(c *stage.Case, v []float64, i int) (float64, bool) { return neighbour(c, v, i, 0, -1) }},
	{"the value of the token behind is added", func(c *stage.Case, v []float64, i int) (float64, bool) { return neighbour(c, v, i, 0, 1) }},
	{"the value of the next state is added, behind the last token that of next_values", func(c *stage.Case, v []float64, i int) (float64, bool) {
		r, next := i/c.B.Cols, c.B.Row("next_values")
		if len(next) != c.B.Rows {
			return 0, false
		}
		if t := i + 1; t < (r+1)*c.B.Cols && c.B.Mask[t] {
			return v[t], true
		}
		return next[r], true
	}},
	{"the value of the row before is added", func(c *stage.Case, v []float64, i int) (float64, bool) { return neighbour(c, v, i, -1, 0) }},
	{"the value of the row behind is added", func(c *stage.Case, v []float64, i int) (float64, bool) { return neighbour(c, v, i, 1, 0) }},
	{"the rewards are added, not the values: R = A + r", func(c *stage.Case, _ []float64, i int) (float64, bool) {
		r := c.B.Token("token_rewards")
		if r == nil {
			return 0, false
		}
		return r[i], true
	}},
	{"the rewards are taken away of responses that fill their columns: R = A + V − r", func(c *stage.Case, v []float64, i int) (float64, bool) { return withoutReward(c, v, i, true) }},
	{"the rewards are taken away of responses that end before their columns: R = A + V − r", func(c *stage.Case, v []float64, i int) (float64, bool) { return withoutReward(c, v, i, false) }},
	{"the values of the new pass are added", func(c *stage.Case, _ []float64, i int) (float64, bool) {
		v := c.B.Token("values_new")
		if v == nil {
			return 0, false
		}
		return v[i], true
	}},
}

// withoutReward is V − r of a token in responses that fill the columns of their file, or in the others; V elsewhere.
func withoutReward(c *stage.Case, v []float64, i int, full bool) (float64, bool) {
	b, r := c.B, c.B.Token("token_rewards")
	if r == nil {
		return 0, false
	}
	row := i / b.Cols
	if fills := count(b.Mask[row*b.Cols:(row+1)*b.Cols]) >= float64(width(b, row)); fills == full {
		return v[i] - r[i], true
	}
	return v[i], true
}

// neighbour returns the number of another cell, counted round its row and its file; known is false where that is not in the mask.
func neighbour(c *stage.Case, x []float64, i, rows, cols int) (y float64, known bool) {
	b := c.B
	r, t := i/b.Cols, i%b.Cols
	f := b.Files[b.File(r)]
	n, w := f.Hi-f.Lo, b.Origin[r].Cols
	if w <= 0 || w > b.Cols {
		w = b.Cols
	}
	r = f.Lo + ((r-f.Lo+rows)%n+n)%n
	t = ((t+cols)%w + w) % w
	k := r*b.Cols + t
	return x[k], b.Mask[k]
}

// returnEdits returns edits of returns that are the right advantages and another quantity in place of the values.
func returnEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "gae/returns" {
		return nil
	}
	list := []edit{{id: "OTHER-FORM", title: "the returns are normalised: every one is (R − c)/s of the right R, with one c and one s", changes: mostChanges, predict: normalisedReturns},
		{id: "GAE-RETURNS-AFTER-WHITENING", title: "the returns are made of normalised advantages: every one is (A − c)/s + V of the right A, with one c and one s", changes: mostChanges, predict: returnsOfNormalised}}
	for _, f := range returnForms {
		id := "OTHER-FORM"
		switch {
		case strings.HasSuffix(f.title, "R = A"):
			id = "RETURNS-ARE-ADVANTAGES"
		case strings.Contains(f.title, "new pass"):
			id = "RETURNS-OF-NEW-VALUES"
		}
		list = append(list, edit{id: id, title: f.title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, v := under(sameInput, c, ch), c.B.Token("values")
			if p == nil || v == nil || len(v) != len(p.Want) || c.B.Cols == 0 {
				return nil
			}
			q := altered(p)
			q.Judge = make([]bool, len(p.Want))
			for i := range c.B.Tokens() {
				x, known := f.of(c, v, i)
				q.Want[i] += x - v[i]
				q.Bound[i] += 2 * c.Unit * (math.Abs(x) + math.Abs(v[i]) + math.Abs(q.Want[i]))
				q.Judge[i] = known
			}
			return q
		}})
	}
	return list
}
