package stage

import (
	"math"
	"slices"

	"plumbline/verify/convention"
)

// scoresAfterBaseline returns the advantages of responses as the scores that token rewards are made of, and the rows whose groups are complete.
func (c *Case) scoresAfterBaseline() (Input, []bool) {
	a := c.sequenceAdvantages()
	if lo, hi, ok := c.clipRange("after_baseline"); ok && a.X != nil {
		a.Input = c.bounded(a.Input, lo, hi)
	}
	return a.Input, a.complete
}

// baselineBefore reports whether the token rewards of a dump are made of scores that the baseline was subtracted from, where no KL term in them
// says it: OpenRLHF's make_experience shapes the rewards of a group before compute_reward, whose KL is 0 where the term is in the loss, and verl
// puts the scores themselves there. What stands at the end of every row tells: the advantage of the response, dumped or recomputed, and not the
// score.
func (c *Case) baselineBefore(place string) bool {
	v := c.Set.Value("adv.kind")
	if place != "loss" && place != "none" || v.Kind() != convention.Enum || !isGroupKind(v.Text()) || !c.Has("scores") {
		return false
	}
	rewards, scores := c.B.Token("token_rewards"), c.B.Row("scores")
	if len(rewards) != len(c.B.Mask) || len(scores) != c.B.Rows {
		return false
	}
	want, complete := c.Of(c.B, c.Set).scoresAfterBaseline()
	dumped := c.B.Token("advantages")
	asScores, asDumped, asWanted := true, len(dumped) == len(rewards), len(want.X) == c.B.Rows
	for r, score := range scores {
		t := c.last(r)
		if t < 0 {
			continue
		}
		i := r*c.B.Cols + t
		asScores = asScores && rewards[i] == score
		asDumped = asDumped && rewards[i] == dumped[i]
		asWanted = asWanted && (!complete[r] || math.Abs(rewards[i]-want.X[r]) <= want.E(r))
	}
	return !asScores && (asDumped || asWanted && slices.Contains(complete, true))
}
