package fault

import (
	"fmt"
	"math"

	"plumbline/verify/stage"
)

// opoWeights are what programs weigh the scores of a group with in place of the lengths, in the baseline Σ len·r/Σ len of OPO (Hao et al. 2025;
// verl 0.9.1, compute_opo_outcome_advantage), and opoDivisors what they divide by in place of the sum of the weights.
var (
	opoWeights = []struct {
		title string
		of    func(n float64) float64
	}{
		{"the inverse of the length", func(n float64) float64 { return 1 / n }},
		{"the square of the length", func(n float64) float64 { return n * n }},
		{"the root of the length", math.Sqrt},
		{"the length less 1", func(n float64) float64 { return n - 1 }},
		{"the length and 1", func(n float64) float64 { return n + 1 }},
		{"1: the mean of the group", func(float64) float64 { return 1 }},
	}
	opoDivisors = []struct {
		title string
		of    func(own, all, rows, group float64) float64 // tokens of the group and of the step, their rows
	}{
		{"the tokens of the step", func(_, all, _, _ float64) float64 { return all }},
		{"the mean length of the step times the rows of the group", func(_, all, rows, group float64) float64 { return all / rows * group }},
		{"the tokens of the group times its rows", func(own, _, _, group float64) float64 { return own * group }},
		{"the rows of the group", func(_, _, _, group float64) float64 { return group }},
	}
)

// opoEdits returns edits of the baseline of OPO.
func opoEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "advantage/group" || o.Case.Set.Value("adv.kind").String() != "opo" || o.Case.B.Cols == 0 {
		return nil
	}
	var list []edit
	for _, w := range opoWeights {
		list = append(list, edit{id: "ADV-CENTER", title: fmt.Sprintf("the baseline weighs the scores of a group by another number than the length: %s", w.title), changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return opoBy(w.of, nil, c, ch) }})
	}
	for _, d := range opoDivisors {
		list = append(list, edit{id: "ADV-CENTER", title: fmt.Sprintf("the baseline Σ len·r of a group is divided by another number than Σ len: %s", d.title), changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return opoBy(func(n float64) float64 { return n }, d.of, c, ch)
			}})
	}
	return list
}

// opoBy predicts r − Σ w·r/d, w a function of the length and d the sum of the w or another number. Of a group of one row the baseline is 0.
func opoBy(weight func(n float64) float64, divisor func(own, all, rows, group float64) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, raw, id := under(sameInput, c, ch), under(option("adv.kind", "raw"), c, ch), c.B.Row("group_id")
	b := c.B
	if p == nil || raw == nil {
		return nil
	}
	r := numberOfRows(b, raw) // what is in them beside the scores, as a KL, is weighed with them
	if len(r) != b.Rows || len(id) != b.Rows || len(p.Want)%b.Rows != 0 || len(p.Want) == 0 {
		return nil
	}
	n := make([]float64, b.Rows)
	var all, size float64
	for i := range b.Tokens() {
		n[i/b.Cols]++
		all++
	}
	members := map[float64][]int{}
	for k, g := range id {
		members[g] = append(members[g], k)
		size = max(size, math.Abs(r[k]))
	}
	w := len(p.Want) / b.Rows
	q := altered(p)
	for _, rows := range members {
		var sum, own, right, tokens float64
		for _, k := range rows {
			if n[k] == 0 {
				return nil
			}
			x := weight(n[k])
			sum, own, right, tokens = sum+x*r[k], own+x, right+n[k]*r[k], tokens+n[k]
		}
		if len(rows) < 2 {
			continue
		}
		d := own
		if divisor != nil {
			d = divisor(own, all, float64(b.Rows), float64(len(rows)))
		}
		by := right/tokens - sum/d
		if math.IsNaN(by) || math.IsInf(by, 0) {
			return nil
		}
		for _, k := range rows {
			for i := k * w; i < (k+1)*w; i++ {
				if w == b.Cols && !b.Mask[i] {
					continue
				}
				q.Want[i] += by
				q.Bound[i] = 2*p.Bound[i] + 8*c.Unit*(math.Abs(by)+math.Abs(sum/d)+size)
			}
		}
	}
	return q
}
