package fault

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// turnRewards are what a program may make of the rewards of the turns of a response, which stand at the last token of each: s of them, in their order.
var turnRewards = []struct {
	title string
	of    func(s []float64) []float64
}{
	{"the rewards of all turns but the last are lost", func(s []float64) []float64 { return kept(s, func(k int) bool { return k == len(s)-1 }) }},
	{"the reward of the last turn is lost", func(s []float64) []float64 { return kept(s, func(k int) bool { return k < len(s)-1 }) }},
	{"the rewards of all turns but the first are lost", func(s []float64) []float64 { return kept(s, func(k int) bool { return k == 0 }) }},
	{"the rewards of all turns are lost", func(s []float64) []float64 { return make([]float64, len(s)) }},
	{"the last turn has the rewards of all turns", func(s []float64) []float64 {
		y := make([]float64, len(s))
		y[len(s)-1] = total(s)
		return y
	}},
	{"a turn has the reward of the turn before", func(s []float64) []float64 { return append([]float64{0}, s[:len(s)-1]...) }},
	{"a turn has the reward of the turn behind", func(s []float64) []float64 { return append(slices.Clone(s[1:]), 0) }},
}

// kept returns the numbers that keep reports true of, and 0 for the others.
func kept(s []float64, keep func(k int) bool) []float64 {
	y := make([]float64, len(s))
	for k, x := range s {
		if keep(k) {
			y[k] = x
		}
	}
	return y
}

// turnRewardEdits returns edits of a recursion over rewards of several turns, the tokens between gaps of the mask, some of whose rewards it does not read where they
// stand. What the KL has in a reward stays in its token.
func turnRewardEdits(o *stage.Outcome) (list []edit) {
	b := o.Case.B
	if o.Check.ID != "gae/advantage" && o.Check.ID != "gae/returns" || b.Token("token_rewards") == nil || b.Cols == 0 {
		return nil
	}
	for _, f := range turnRewards {
		list = append(list, edit{id: "SCORE-LOST", title: f.title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				y := ofTurns(c, f.of)
				return c.B.With("token_rewards", y), c.Set, y != nil
			}, c, ch)
		}})
	}
	return list
}

// ofTurns returns the rewards of tokens with those of turns replaced, nil where no response has several turns.
func ofTurns(c *stage.Case, of func(s []float64) []float64) []float64 {
	b, reward := c.B, c.B.Token("token_rewards")
	if len(reward) != len(b.Mask) {
		return nil
	}
	score := scoreParts(c)
	y, several := slices.Clone(reward), false
	for r := range b.Rows {
		var at []int
		var s []float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] && ((i+1)%b.Cols == 0 || !b.Mask[i+1]) {
				at, s = append(at, i), append(s, score(i))
			}
		}
		if len(at) == 0 {
			continue
		}
		several = several || len(at) > 1
		for k, x := range of(s) {
			y[at[k]] += x - s[k]
		}
	}
	if !several {
		return nil
	}
	return y
}

// scoreParts returns what the reward of a token has beside the KL, where that is dumped.
func scoreParts(c *stage.Case) func(i int) float64 {
	reward, kl, beta := c.B.Token("token_rewards"), c.B.Token("kl"), numberOr(c, "kl.beta", 0)
	if c.Set.Value("kl.place").String() != "token_reward" || len(kl) != len(reward) {
		beta = 0
	}
	return func(i int) float64 {
		switch {
		case i >= len(reward):
			return 0
		case beta == 0:
			return reward[i]
		}
		return reward[i] + beta*kl[i]
	}
}
