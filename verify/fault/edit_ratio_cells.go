package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// ratioCells are means of log-ratios of a row, d = logp_new − logp_old, whose sum or length is over all cells that are attended to, those of tools
// between the tokens of the policy with them.
var ratioCells = []struct {
	title      string
	sum, count bool // over all cells that are attended to
}{
	{"the log-ratio of a response is summed over the tokens of tools as well, and divided by those of the policy", true, false},
	{"the log-ratio of a response is divided by its length with the tokens of tools, and summed over those of the policy", false, true},
	{"the log-ratio of a response is the mean over the tokens of tools as well", true, true},
}

// ratioCellEdits returns edits of the ratio of a row that takes in what the mask leaves out between its tokens.
func ratioCellEdits(o *stage.Outcome) (list []edit) {
	level := o.Case.Set.Value("ratio.level").String()
	if !policyOutput(o) || level != "seq_mean" && level != "seq_sum" || slices.Equal(attendedCells(o.Case.B), o.Case.B.Mask) {
		return nil
	}
	for _, f := range ratioCells {
		if level == "seq_sum" && f.count {
			continue
		}
		list = append(list, edit{id: "RATIO-COUNTS-TOOLS", title: f.title, changes: 1, foreign: f.sum != f.count,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return ofAttended(f.sum, f.count, c, ch) }})
	}
	return list
}

// ofAttended predicts an output of the loss of ratios e to the Σd/n, with Σ, n or both over all cells that are attended to. Old log-probs with which the right
// formula gives these ratios stand for the dumped ones; a cell outside the mask that is summed has the slope of a token of its row.
func ofAttended(sum, length bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	c = ofStored(c)
	b, lp, old := c.B, c.B.Token("logp_new"), c.B.Token("logp_old")
	if len(lp) != len(b.Mask) || len(old) != len(lp) || b.Cols == 0 {
		return nil
	}
	cells, bySum := attendedCells(b), c.Set.Value("ratio.level").String() == "seq_sum"
	standIn, slope, e := slices.Clone(old), make([]float64, len(lp)), 0.0
	for r := range b.Rows {
		var own, all, n, total, size float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			d := lp[i] - old[i]
			if b.Mask[i] {
				own, n = own+d, n+1
			}
			if cells[i] || b.Mask[i] {
				all, total, size = all+d, total+1, size+math.Abs(lp[i])+math.Abs(old[i])
			}
		}
		if n == 0 {
			continue
		}
		is, by, share := own, n, 1.0
		if sum {
			is = all
		}
		if length {
			by = total
		}
		right := own / n
		if bySum {
			right, by, share = own, 1, n
		}
		if math.IsNaN(is) || math.IsInf(is, 0) {
			return nil
		}
		e = max(e, 8*c.Unit*size/n)
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if standIn[i], slope[i] = old[i]+(right-is/by)/share, n/by; bySum {
				slope[i] = 1
			}
		}
	}
	p := ofPolicyTerm(perToken("logp_old", standIn), slope, c, ch)
	if p == nil {
		return nil
	}
	q := altered(p)
	for i, w := range p.Want {
		q.Bound[i] += e * math.Abs(w)
	}
	if ch.Stage != convention.Gradient || !sum || len(q.Want) != len(b.Mask) {
		return q
	}
	for r := range b.Rows {
		first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
		for i := r * b.Cols; first >= 0 && i < (r+1)*b.Cols; i++ {
			if cells[i] && !b.Mask[i] {
				q.Want[i], q.Bound[i] = q.Want[r*b.Cols+first], q.Bound[r*b.Cols+first]
			}
		}
	}
	return q
}
