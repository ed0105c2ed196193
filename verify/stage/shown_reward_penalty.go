package stage

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// penaltyWithin returns the rule of [penalty] with the range of [heldWithin] behind it, where ends are y: what most of the longest responses lack is one
// number of few digits, or they have one share of their scores, and what is then left is held in a range. Those of the longest that end with the token that ends others lack nothing.
func penaltyWithin(b *dump.Batch, y, score []float64, longest func(row int) bool) []assign {
	const near = 1e-5
	c := NewCase(b, &convention.Set{}, 0)
	end, known := EndToken(b)
	var lack, share []float64
	var open []int
	for row, x := range y {
		if id, there := b.TokenID(row, max(c.last(row), 0)); longest(row) && !(known && there && id == end) {
			lack, share, open = append(lack, score[row]-x), append(share, x/score[row]), append(open, row)
		}
	}
	for i, of := range [][]float64{lack, share} {
		f := endRules[i]
		x, n := commonest(of)
		if x = written(x, 1e-3); 2*n < len(of) || !f.is(x) || !hasDigits(x, 2, near) {
			continue
		}
		left := slices.Clone(score)
		for _, row := range open {
			left[row] = f.left(score[row], x)
		}
		if held := heldWithin(y, left, 1); held != nil {
			return append(f.by(x), held...)
		}
	}
	return nil
}

// penalisable reports for each row of a case whether its score may have the penalty of a response without an end, and whether some response may not.
type penalisable func(c *Case) (may []bool, some bool)

// longestRows are the responses that are as long as the longest: the others have ended.
func longestRows(c *Case) (may []bool, some bool) {
	spans, longest := c.spans()
	may = make([]bool, len(spans))
	for r, n := range spans {
		may[r] = n == longest
		some = some || n > 0 && n < longest
	}
	return may, some
}

// endedRows are the responses that are shorter than the longest or end as these do.
func endedRows(c *Case) (may []bool, some bool) {
	longest, _ := longestRows(c)
	end, known := EndToken(c.B)
	may = make([]bool, len(longest))
	for r, l := range longest {
		id, there := c.B.TokenID(r, max(c.last(r), 0))
		may[r] = !l || known && there && id == end
		some = some || !may[r]
	}
	return may, some
}

// InvertedPenalties returns what an output shows of rewards, as [Shown] does, where the penalty of responses without an end is that of those with one.
func InvertedPenalties(ch *Check, b *dump.Batch, set *convention.Set) [][]Change {
	lists := impliedRewardFormsOf(b, set, endedRows)
	if b.Token("token_rewards") != nil {
		lists = rewardTermsOf(b, set, endedRows)
	}
	return openOf(slices.DeleteFunc(lists, func(l []assign) bool {
		return !slices.ContainsFunc(l, func(a assign) bool { return a.option == "eos.rule" })
	}), set)
}
