package fault

import (
	"fmt"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// overlongAfter returns edits of group advantages A(s) of scores s = r + p, p the penalty of long answers, which are A(r) + p: the penalty is added to finished
// advantages, while the scores have it already. Of n tokens, of L at most, with a buffer b and a factor f (DAPO, Yu et al. 2025, Eq. 13)
//
//	p = −f·min(max(n − (L − b), 0), b)/b
func overlongAfter(o *stage.Outcome) (list []edit) {
	const rows, most, least = 1 << 10, 64, 3 // of a step; buffers; rows of the longest
	b := o.Case.B
	if o.Check.ID != "advantage/group" || b.Rows > rows || b.Cols == 0 || len(b.Row("scores")) != b.Rows {
		return nil
	}
	n := tokensOf(b, b.Mask)
	longest := slices.Max(n)
	if at := slices.DeleteFunc(slices.Clone(n), func(x float64) bool { return x < longest }); len(at) < least || b.Rows-len(at) < least {
		return nil
	}
	var buffers []float64
	for x := 1.0; x < longest && x <= most; x++ {
		buffers = append(buffers, x)
	}
	for x := 2.0 * most; x < longest; x *= 2 {
		buffers = append(buffers, x)
	}
	for _, limit := range []float64{longest, float64(b.Cols)} {
		for _, buffer := range buffers {
			for _, factor := range []float64{1, 0.5} {
				at := func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return overlongAdded(c, ch, limit, buffer, factor)
				}
				if buffer >= limit || !nearBy(o, at(o.Case.Of(b, o.Case.Set), o.Check)) {
					continue
				}
				title := fmt.Sprintf("the penalty of responses longer than %g tokens, down to −%g at %g, which their scores have, is added to finished advantages: it belongs into the reward, before the baseline",
					limit-buffer, factor, limit)
				list = append(list, edit{id: "PENALTY-AFTER-BASELINE", title: title, changes: 1, foreign: true, predict: at}) // other steps tell buffers apart
			}
		}
		if longest == float64(b.Cols) {
			break
		}
	}
	return list
}

// overlongAdded predicts the advantages of scores without their penalty, plus the penalty.
func overlongAdded(c *stage.Case, ch *stage.Check, limit, buffer, factor float64) *stage.Prediction {
	b := c.B
	score, n := b.Row("scores"), tokensOf(b, b.Mask)
	if len(score) != b.Rows {
		return nil
	}
	penalty := func(row int) float64 { return -factor * min(max(n[row]-(limit-buffer), 0), buffer) / buffer }
	x := eachOf(b.Rows, func(r int) float64 { return float64(float32(score[r] - penalty(r))) })
	return addedByRow(under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) { return c.B.With("scores", x), c.Set, true }, c, ch), c, penalty)
}
