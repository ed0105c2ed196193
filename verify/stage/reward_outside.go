package stage

import (
	"fmt"
	"math"

	"plumbline/verify/convention"
)

// outsideCheck demands that a reward behind a turn, in what a tool or an environment answers, is part of some advantage. A loop over tokens that resets what it carries at
// cells outside the mask, or passes them by with their reward, loses it there: verl 0.9.1's REINFORCE++ multiplies the running return by the mask once it has added the
// reward, and its GAE keeps A_{t+1} where the mask is 0. The advantages of tokens before which no reward stands in the mask are those of a return of 0 then, one number for
// all of them, however much they earn outside of it.
//
// What stands behind the last action of a row is left out: a program that counts attended tokens puts the score there, and gives it up.
func outsideCheck() *Check {
	return &Check{
		ID: "reward/outside", Stage: convention.Reward, Output: "token_rewards", Title: "a reward behind a turn is part of the advantages before it",
		Formula: "A_t is not one number for all tokens behind which no reward stands in the mask, where the rewards behind them outside of it differ",
		Source:  "P170, P083",
		Fix:     "put the reward of a turn on the last token of the policy in it",
		Applies: func(c *Case) bool {
			return c.Has("token_rewards") && c.Has("advantages") && !c.Has("values") && !c.Has("scores")
		},
		Assert: assertOutside,
	}
}

func assertOutside(c *Case) *Assertion {
	const least = 4 // rows whose rewards outside the mask are lost
	b, r, adv := c.B, c.B.Token("token_rewards"), c.B.Token("advantages")
	if len(r) != len(b.Mask) || len(adv) != len(b.Mask) || b.Cols == 0 {
		return nil
	}
	a := &Assertion{}
	lost, other := 0, false
	row, col := -1, -1
	none, sums := map[int]float64{}, map[float64]bool{} // A of a return of 0 in each file, and the rewards that stand behind it outside the mask
	for q := range b.Rows {
		last, file := c.last(q), b.File(q)
		inside, outside, at := 0.0, 0.0, -1
		var mostBehind float64
		for t := last; t >= 0; t-- {
			i := q*b.Cols + t
			if !b.Mask[i] {
				if r[i] != 0 && (t == 0 || !b.Mask[i-1]) {
					return nil // not that of a turn
				}
				if outside += r[i]; r[i] != 0 {
					at = t
				}
				continue
			}
			a.Checked++
			inside = math.Max(inside, math.Abs(r[i]))
			is, known := none[file]
			switch {
			case inside != 0:
				other = other || known && adv[i] != is
			case !known:
				none[file] = adv[i]
			case math.Abs(adv[i]-is) > 1e-6*math.Abs(is):
				return &Assertion{Checked: 1}
			}
			if inside == 0 && at >= 0 {
				mostBehind = outside
			}
		}
		if mostBehind != 0 && !sums[mostBehind] {
			sums[mostBehind] = true
			lost, row, col = lost+1, q, at
		}
	}
	if lost >= least && other {
		a.Violations = []Violation{{Row: row, Col: col, Got: r[row*b.Cols+col], Fault: "SCORE-LOST",
			Reason: fmt.Sprintf("the rewards behind turns stand outside the mask, and no advantage has them: those of tokens with nothing else behind them are one number in %d rows, whose rewards differ", lost)}}
	}
	return a
}
