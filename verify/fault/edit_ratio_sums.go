package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// ratioSums are sets of cells over which a program may sum the log-probs of one side of the ratio of a row, where the other is summed over the tokens: all
// cells of a row, or those of rows without a token, which the mask takes out and the sum still has.
var ratioSums = []struct {
	title    string
	old, new bool // the side that is summed over more than the tokens
	dropped  bool // of rows without a token alone
}{
	{"the old log-probs are summed over responses that the mask takes out as well, the new ones are not", true, false, true},
	{"the new log-probs are summed over responses that the mask takes out as well, the old ones are not", false, true, true},
	{"the old log-probs are summed over all columns, padding included, the new ones over the tokens", true, false, false},
	{"the new log-probs are summed over all columns, padding included, the old ones over the tokens", false, true, false},
}

// ratioSumEdits returns edits of the ratio of a row, s = e to the Σ(logp_new) − Σ(logp_old) over its tokens, whose two sums are over different cells.
func ratioSumEdits(o *stage.Outcome) (list []edit) {
	level := o.Case.Set.Value("ratio.level").String()
	if !policyOutput(o) || o.Check.Stage != convention.Aggregate || level != "seq_mean" && level != "seq_sum" || !slices.Contains(o.Case.B.Mask, false) {
		return nil
	}
	for _, f := range ratioSums {
		list = append(list, edit{id: "RATIO-MEAN-PADS", title: f.title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return ofRatioSums(f.old, f.new, f.dropped, c, ch)
		}})
	}
	return list
}

func ofRatioSums(moreOld, moreNew, dropped bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	kind := c.Set.Value("loss.kind").String()
	if lp == nil || old == nil || len(adv) != b.Rows || b.Cols == 0 || weighsBesides(c) || !slices.Contains([]string{"ppo", "gspo", "luspo"}, kind) ||
		c.Set.Value("kl.place").String() == "loss" && numberOr(c, "kl.beta", 1) != 0 {
		return nil
	}
	o, mask := boundsOf(c), slices.Clone(b.Mask)
	a, e := make([]float64, len(lp)), make([]float64, len(lp))
	for r := range b.Rows {
		lo, hi := r*b.Cols, r*b.Cols+b.Files[b.File(r)].Cols
		n := 0.0
		for i := lo; i < hi; i++ {
			n += float64(boolToInt(b.Mask[i]))
		}
		var d, size float64
		for i := lo; i < hi; i++ {
			more := !dropped || n == 0
			if b.Mask[i] || moreNew && more {
				d, size = d+lp[i], size+math.Abs(lp[i])
			}
			if b.Mask[i] || moreOld && more {
				d, size = d-old[i], size+math.Abs(old[i])
			}
		}
		if c.Set.Value("ratio.level").String() == "seq_mean" {
			d, size = d/max(n, 1), size/max(n, 1)
		}
		x := math.Exp(d)
		loss := max(-adv[r]*x, -adv[r]*min(max(x, 1-o.low), 1+o.high))
		if over := -adv[r] * o.dual; o.dual > 0 && adv[r] < 0 {
			loss = min(loss, over)
		}
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return nil
		}
		for i := lo; i < hi; i++ { // a row without a token counts as one, by any of its cells
			if mask[i] = b.Mask[i] || n == 0; mask[i] {
				a[i], e[i] = -loss, 8*c.Unit*(2+size)*(math.Abs(loss)+math.Abs(adv[r])*(1+x))
			}
		}
	}
	if c.Set.Value("agg.empty_rows").String() == "excluded" {
		mask = b.Mask
	}
	return ofLosses(c.Of(b.WithMask(mask), c.Set), ch, a, e)
}
