package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/stage"
)

// scoreEdits returns edits of token rewards: a score that is multiplied by one number, the KL beside it right, and rewards that are whitened
// without their mean.
func scoreEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "reward/token" || len(o.Got) != len(o.Pred.Want) {
		return nil
	}
	list := append(heldTotals(o), edit{id: "WHITEN-FORM", title: "whitened rewards lose their mean, which should be added back", changes: 1, predict: whiteWithoutMean})
	c := o.Case.Of(o.Case.B, o.Case.Set)
	without := under(constant("scores", 0), c, o.Check)
	score := combined(1, under(sameInput, c, o.Check), -1, without)
	if score == nil {
		return list
	}
	if _, at := scoreFound(c, o.Check); at != "" {
		var configured []string
		if !strings.HasPrefix(at, "column ") { // an environment may pay each response where it has earned it
			configured = []string{"score.index"}
		}
		list = append(list, edit{id: "SCORE-INDEX", title: "the score stands in " + at, changes: 2, configured: configured,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { p, _ := scoreFound(c, ch); return p }})
	}
	if f := normalisedElsewhere(c, o.Check, o.Got); f != nil {
		title := "the scores in the rewards are (s − m)/d of the scores s, with one m and one d: they are normalised, over rows that need not be in the step"
		list = append(list, edit{id: "SCORE-NORMALISED", title: title, changes: 2, own: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			t := c.B.Tensors[ch.Output]
			if t == nil {
				return nil
			}
			return normalisedElsewhere(c, ch, t.Data)
		}})
	}
	const enough = 3 // scores that one number explains
	var k []float64
	for i, s := range score.Want {
		if s != 0 && (c.B.Mask[i] || o.Got[i] != 0) && math.Abs(s) > 100*score.Bound[i] && !math.IsNaN(o.Got[i]) { // a score may stand behind the response
			k = append(k, (o.Got[i]-without.Want[i])/s)
		}
	}
	if len(k) < enough {
		return list
	}
	slices.Sort(k)
	by := k[len(k)/2]
	if short := rounded(by, 3); math.Abs(short-by) <= 1e-4*math.Abs(by) {
		by = short
	}
	if by == 0 || math.Abs(by-1) < 1e-6 {
		return list
	}
	id := "FACTOR"
	if by == 2 {
		id = "SCORE-TWICE"
	}
	return append(list, edit{id: id, title: fmt.Sprintf("the score enters %.6g times; the KL is right", by), changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, bare := under(sameInput, c, ch), under(constant("scores", 0), c, ch)
			return combined(by, p, 1-by, bare)
		}})
}

// normalisedElsewhere predicts token rewards whose scores are k·s + b, k > 0 and b ≠ 0 the least squares of what the rows have beside their KL. It is nil where
// fewer than six rows with four scores speak.
func normalisedElsewhere(c *stage.Case, ch *stage.Check, got []float64) *stage.Prediction {
	const rows, several = 6, 4
	with, without := under(sameInput, c, ch), under(constant("scores", 0), c, ch)
	score := combined(1, with, -1, without)
	if score == nil || len(got) != len(score.Want) {
		return nil
	}
	var x, y []float64
	var at []int
	seen := map[float64]bool{}
	for i, s := range score.Want {
		if s == 0 || with.Judge != nil && !with.Judge[i] {
			continue
		}
		d := got[i] - without.Want[i]
		if math.IsNaN(d) || math.IsInf(d, 0) {
			return nil
		}
		x, y, at = append(x, s), append(y, d), append(at, i)
		seen[math.Round(s*1e6)] = true
	}
	if len(x) < rows || len(seen) < several {
		return nil
	}
	mx, my := meanOf(x), meanOf(y)
	var xx, xy float64
	for i := range x {
		xx, xy = xx+(x[i]-mx)*(x[i]-mx), xy+(x[i]-mx)*(y[i]-my)
	}
	k := xy / xx
	b := my - k*mx
	if !(k > 0) || math.IsInf(k, 0) || math.Abs(b) < 1e-4*math.Abs(k) {
		return nil
	}
	q := altered(without)
	q.Judge = with.Judge
	for _, i := range at {
		q.Want[i] += k*score.Want[i] + b
		q.Bound[i] += k*score.Bound[i] + 64*c.Unit*(math.Abs(k*score.Want[i])+math.Abs(b))
	}
	return q
}

// scoreFound returns the token rewards with the score of every row in the column where the dumped ones have it, and says where that is: one cell of a row
// is s − β·kl_t, the others are −β·kl_t. It is nil where a score of some size is in no column of its row, or in several, or where all are in place.
func scoreFound(c *stage.Case, ch *stage.Check) (p *stage.Prediction, at string) {
	b, got := c.B, c.B.Token("token_rewards")
	with, without := under(sameInput, c, ch), under(constant("scores", 0), c, ch)
	if len(got) != len(b.Mask) || with == nil || without == nil || len(with.Want) != len(got) || len(without.Want) != len(got) || c.EnumOr("rewards.whiten", "no") != "no" {
		return nil, ""
	}
	q := *with
	q.Want, q.Bound, q.Judge, q.Alt = slices.Clone(without.Want), slices.Clone(without.Bound), nil, nil
	const enough = 3 // rows whose score is elsewhere
	columns, moved := map[int]bool{}, 0
	for r := range b.Rows {
		from := -1
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if with.Want[i] != without.Want[i] {
				if from >= 0 {
					return nil, ""
				}
				from = i
			}
		}
		if from < 0 {
			continue
		}
		s, e := with.Want[from]-without.Want[from], with.Bound[from]
		to := -1
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if math.Abs(got[i]-without.Want[i]-s) <= 4*(e+without.Bound[i]) {
				if to >= 0 {
					return nil, ""
				}
				to = i
			}
		}
		if to < 0 || !(math.Abs(s) > 100*e) {
			return nil, ""
		}
		q.Want[to], q.Bound[to] = without.Want[to]+s, without.Bound[to]+2*e
		columns[to%b.Cols] = true
		if to != from {
			moved++
			if at == "" {
				at = fmt.Sprintf("other columns than the score is of: that of row %d in column %d, where column %d is right", r, to%b.Cols, from%b.Cols)
			}
		}
	}
	if moved < enough {
		return nil, ""
	}
	if len(columns) == 1 {
		for t := range columns {
			at = fmt.Sprintf("column %d of every row", t)
		}
	}
	return &q, at
}

// whiteWithoutMean predicts whitened rewards (r − m)/s, where (r − m)/s + m is right.
func whiteWithoutMean(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, raw := under(sameInput, c, ch), under(option("rewards.whiten", "no"), c, ch)
	if p == nil || raw == nil || len(p.Want) != len(c.B.Mask) || len(raw.Want) != len(c.B.Mask) {
		return nil
	}
	extra := boolToInt(c.EnumOr("gae.value_mask", "response") == "p1")
	var sum, size, n float64
	for i, in := range rl.LengthMask(nil, c.B.Mask, c.B.Rows, c.B.Cols, extra) {
		if r := i / c.B.Cols; in && (c.B.Origin[r].Cols == 0 || i%c.B.Cols < c.B.Origin[r].Cols) {
			sum, size, n = sum+raw.Want[i], size+math.Abs(raw.Want[i]), n+1
		}
	}
	q := altered(p)
	for i := range q.Want {
		q.Want[i] -= sum / max(n, 1)
		q.Bound[i] += 16*c.Unit*size/max(n, 1) + 4*c.Unit*math.Abs(p.Want[i])
	}
	return q
}
