package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/stage"
)

// partDetached predicts the gradient of a cross-entropy in which some tokens of the mask have none: exactly 0 where that of all others is right. Weights of tokens are of one
// size, so that none is lost in a format that keeps the others.
func partDetached(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const least = 8 // tokens that have no gradient, and as many that have one
	got := c.B.Token(ch.Output)
	p := under(sameInput, c, ch)
	if c.B.Meta.Algorithm != "sft" || p == nil || len(got) != len(p.Want) || len(got) != len(c.B.Mask) {
		return nil
	}
	q := &stage.Prediction{Judge: p.Judge, Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
	without, with := 0, 0
	smallest, largest := math.Inf(1), 0.0 // of those that have one, and of those that have none
	for i, w := range p.Want {
		switch {
		case !c.B.Mask[i] || p.Judge != nil && !p.Judge[i] || w == 0:
		case got[i] == 0:
			without++
			largest = max(largest, math.Abs(w))
			q.Want[i], q.Bound[i] = 0, 0
		default:
			with++
			smallest = min(smallest, math.Abs(w))
		}
	}
	if without < least || with < least || largest < smallest/2 {
		return nil
	}
	return q
}

// fewTokens are masks of the first or the last few tokens of every response.
func fewTokens() (list []maskForm) {
	for _, k := range []int{2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64} {
		list = append(list,
			maskForm{"LOSS-MASK-OTHER", fmt.Sprintf("only the last %d tokens of every response count", k), rowByRow(func(row []bool) {
				left := k
				for t := len(row) - 1; t >= 0; t-- {
					if row[t] {
						row[t] = left > 0
						left--
					}
				}
			})},
			maskForm{"LOSS-MASK-OTHER", fmt.Sprintf("only the first %d tokens of every response count", k), rowByRow(func(row []bool) {
				left := k
				for t := range row {
					if row[t] {
						row[t] = left > 0
						left--
					}
				}
			})})
	}
	return list
}
