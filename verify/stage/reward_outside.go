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
// With a critic the recursion itself shows it: G_t − V_t = r_t + γV_k − V_t + γλ(G_k − V_k) of the last token t of a turn, k the first of the next one, has nothing of the
// reward between them.
//
// What stands behind the last action of a row is left out: a program that counts attended tokens puts the score there, and gives it up.
func outsideCheck() *Check {
	return &Check{
		ID: "reward/outside", Stage: convention.Reward, Output: "token_rewards", Title: "a reward behind a turn is part of the advantages before it",
		Formula: "A_t is not one number for all tokens behind which no reward stands in the mask, where the rewards behind them outside of it differ",
		Source:  "P170, P083",
		Fix:     "put the reward of a turn on the last token of the policy in it",
		Applies: func(c *Case) bool {
			return c.Has("token_rewards") && (c.Has("advantages") && !c.Has("values") && !c.Has("scores") || c.Has("values") && c.Has("returns"))
		},
		Assert: assertOutside,
	}
}

func assertOutside(c *Case) *Assertion {
	if c.Has("values") {
		return c.rewardsBetweenTurns()
	}
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

// rewardsBetweenTurns demands that the returns of a critic have the rewards between two turns, where these stand in few of the cells there: a KL in all of them is no
// reward of a turn.
func (c *Case) rewardsBetweenTurns() *Assertion {
	const least = 4 // turns that lose a reward, none of which keeps one
	b, r, v, ret := c.B, c.B.Token("token_rewards"), c.B.Token("values"), c.B.Token("returns")
	gamma, lambda := c.Set.Value("gae.gamma"), c.Set.Value("gae.lambda")
	if len(r) != len(b.Mask) || len(v) != len(r) || len(ret) != len(r) || b.Cols == 0 || gamma.Kind() != convention.Number || lambda.Kind() != convention.Number {
		return nil
	}
	a := &Assertion{}
	lost, kept, cells, paid := 0, 0, 0, 0
	row, col := -1, -1
	for q := range b.Rows {
		next, reward, at := -1, 0.0, -1 // the first token of the turn behind, and the reward in front of it
		for i := (q+1)*b.Cols - 1; i >= q*b.Cols; i-- {
			if !b.Mask[i] {
				if next >= 0 {
					if cells++; r[i] != 0 {
						paid++
						reward, at = reward+r[i], i
					}
				}
				continue
			}
			a.Checked++
			if at >= 0 {
				is := r[i] + gamma.Num()*v[next] + gamma.Num()*lambda.Num()*(ret[next]-v[next])
				size := math.Abs(r[i]) + math.Abs(v[next]) + math.Abs(ret[next])
				if math.Abs(reward) <= 1e-3*size {
					kept++ // too small to tell
				} else if math.Abs(ret[i]-is) <= 1e-5*size {
					lost, row, col = lost+1, q, at%b.Cols
				} else {
					kept++
				}
			}
			next, reward, at = i, 0, -1
		}
	}
	if lost >= least && kept == 0 && 2*paid <= cells {
		a.Violations = []Violation{{Row: row, Col: col, Got: r[row*b.Cols+col], Fault: "SCORE-LOST",
			Reason: fmt.Sprintf("the rewards behind turns stand outside the mask, and no return has them: %d turns are followed by one, and have the returns that they would have without it", lost)}}
	}
	return a
}
