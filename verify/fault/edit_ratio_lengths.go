package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// rowLengths are what a program has at hand where it should divide the log-ratios of a row by their number.
type rowLengths struct {
	own, mean, longest, shortest, stepMean, stepLongest, groupMean, declared float64
}

var ratioLengths = []struct {
	title string
	by    func(n rowLengths) float64
}{
	{"the mean length of its micro-batch", func(n rowLengths) float64 { return n.mean }},
	{"the longest response of its micro-batch", func(n rowLengths) float64 { return n.longest }},
	{"the shortest response of its micro-batch", func(n rowLengths) float64 { return n.shortest }},
	{"the mean length of the step", func(n rowLengths) float64 { return n.stepMean }},
	{"the longest response of the step", func(n rowLengths) float64 { return n.stepLongest }},
	{"the mean length of its group", func(n rowLengths) float64 { return n.groupMean }},
	{"max_completion_length", func(n rowLengths) float64 { return n.declared }},
	{"its length less 1", func(n rowLengths) float64 { return n.own - 1 }},
	{"its length and 1", func(n rowLengths) float64 { return n.own + 1 }},
	{"the square of its length", func(n rowLengths) float64 { return n.own * n.own }},
	{"half its length", func(n rowLengths) float64 { return n.own / 2 }},
}

// ratioLengthEdits returns edits of the ratio of a row, e to the Σd/n, that divides by another number than that of its tokens.
func ratioLengthEdits(o *stage.Outcome) (list []edit) {
	if !policyOutput(o) || o.Case.Set.Value("ratio.level").String() != "seq_mean" {
		return nil
	}
	for _, f := range ratioLengths {
		list = append(list, edit{id: "RATIO-FORM", title: "the log-ratios of a response are divided by " + f.title + ", not by its length", changes: 1, foreign: f.title != "max_completion_length", // a constant may be meant
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return overOtherLengths(f.by, c, ch) }})
	}
	return list
}

func overOtherLengths(by func(n rowLengths) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	c = ofStored(c)
	b, lp, old, id := c.B, c.B.Token("logp_new"), c.B.Token("logp_old"), c.B.Row("group_id")
	if len(lp) != len(b.Mask) || len(old) != len(lp) || b.Cols == 0 {
		return nil
	}
	n, byToken := tokensOf(b, b.Mask), c.Set.Value("ratio.grad").String() == "token"
	groups := map[float64][]float64{}
	if len(id) == b.Rows {
		for r, g := range id {
			groups[g] = append(groups[g], n[r])
		}
	}
	standIn, slope, e := slices.Clone(old), make([]float64, len(lp)), 0.0
	for r, own := range n {
		if own == 0 {
			continue
		}
		file := b.Files[b.File(r)]
		micro := n[file.Lo:file.Hi]
		of := rowLengths{own, meanOf(micro), slices.Max(micro), slices.Min(micro), meanOf(n), slices.Max(n), math.NaN(), c.FactOr("max_completion_length", math.NaN())}
		if len(id) == b.Rows {
			of.groupMean = meanOf(groups[id[r]])
		}
		x := by(of)
		if !(x > 0) {
			return nil
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			d := lp[i] - old[i]
			standIn[i], slope[i] = lp[i]-d*own/x, own/x
			if byToken {
				slope[i] = 1
			}
			if b.Mask[i] {
				e = max(e, 8*c.Unit*(1+own/x)*(math.Abs(lp[i])+math.Abs(old[i])))
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
	return q
}
