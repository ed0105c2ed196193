package fault

import (
	"math"

	"plumbline/verify/stage"
)

// halfLossEdits returns the edit of a loss that was summed or divided in bfloat16: each number lies on that grid, which one of a finer format does once in
// 2¹⁶, and is near the right one. What rounding the right number to 16 bits explains is left to [stage.Coarser].
func halfLossEdits(o *stage.Outcome) []edit {
	if o.Check.Output != "loss" && o.Check.Output != "pg_loss" && o.Check.Output != "value_loss" || len(o.Got) != len(o.Case.B.Files) || stage.Coarser(o) != nil {
		return nil
	}
	got := o.Got
	if halfLoss(got, o.Pred, o.Case) == nil {
		return nil
	}
	return []edit{{id: "LOSS-BF16", title: "the loss is reduced in bfloat16: its numbers lie on that grid, next to the right ones", changes: mostChanges, foreign: true,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return halfLoss(c.B.PerFile(ch.Output), under(sameInput, c, ch), c)
		}}}
}

// halfLoss predicts the numbers that were dumped where all of them are on the grid of bfloat16 and none is further from the right one than four of its
// roundings: of the terms, of their sum, of the denominator and of the quotient, each 2⁻⁸ of the size of the terms.
func halfLoss(got []float64, p *stage.Prediction, c *stage.Case) *stage.Prediction {
	const roundings = 4
	if p == nil || len(got) != len(p.Want) || len(got) == 0 {
		return nil
	}
	var size, n float64
	if loss := c.Optional("token_loss").X; len(loss) == len(c.B.Mask) {
		for i, m := range c.B.Mask {
			if m && !math.IsNaN(loss[i]) {
				size, n = size+math.Abs(loss[i]), n+1
			}
		}
	}
	size /= max(n, 1)
	q := altered(p)
	for i, x := range got {
		if x == 0 || math.IsNaN(x) || inHalf(x) != x || math.Abs(x-p.Want[i]) > roundings*0x1p-8*max(math.Abs(p.Want[i]), min(size, 4*math.Abs(p.Want[i]))) {
			return nil
		}
		q.Want[i] = x
	}
	return q
}
