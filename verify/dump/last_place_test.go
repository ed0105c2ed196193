package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Steps whose bounds tell nothing, one number each, are right where all of enough numbers agree to the last place under options that are declared.
func TestStepsThatAgreeToTheLastPlace(t *testing.T) {
	exercised := true
	verdict := func(steps, toLast int, searched bool) check.Verdict {
		u := &track{check: stage.Find("aggregate/loss"), seen: true, judged: steps, compared: steps, undecided: make([]int, steps), toLast: toLast, searched: searched, starts: []int{1}, exercised: exercised}
		res, ok := u.result(&session{})
		require.True(t, ok)
		return res.Verdict
	}
	require.Equal(t, check.Pass, verdict(stage.LeastToLast, stage.LeastToLast, false))
	require.Equal(t, check.Undetermined, verdict(stage.LeastToLast, stage.LeastToLast-1, false))
	require.Equal(t, check.Undetermined, verdict(stage.LeastToLast-1, stage.LeastToLast-1, false))
	require.Equal(t, check.Undetermined, verdict(stage.LeastToLast, stage.LeastToLast, true), "a search has tried many options")
	one := &track{check: stage.Find("aggregate/loss"), seen: true, judged: 2, passed: 1, compared: 2, undecided: make([]int, 1), toLast: 1, lastPlaces: stage.LeastToLast, starts: []int{1, 2}, exercised: true}
	res, ok := one.result(&session{})
	require.True(t, ok)
	require.Equal(t, check.Pass, res.Verdict, "one number of float32")
	exercised = false
	require.Equal(t, check.Untested, verdict(stage.LeastToLast, stage.LeastToLast, false), "zeros, whatever the formula")
}

// Rewards of several turns sum up to the scores, and there is no tensor for the scores of tokens: what hooks cannot give is not seen, and leaves nothing undecided.
func TestRewardsOfTurnsAreNotSeen(t *testing.T) {
	const lacks = "not in the dump: " + stage.ScoresOfTokens + ": several tokens"
	u := &track{check: stage.Find("reward/token"), seen: true, judged: 1, compared: 1, undecided: []int{1}, lacking: lacks, starts: []int{1}}
	res, ok := u.result(&session{})
	require.True(t, ok)
	require.Equal(t, check.NotSeen, res.Verdict)
	require.Contains(t, res.Reason, lacks)
}

// A shard that judged a step says whether its numbers agree to the last place, too: merged, the steps are right as they are judged as one.
func TestNotesKeepWhetherNumbersAgreeToTheLastPlace(t *testing.T) {
	o := &stage.Outcome{Check: stage.Find("aggregate/loss"), Verdict: check.Undetermined, ToLast: 3, Case: &stage.Case{}}
	require.Equal(t, 3, judgementOf(o).note().outcome(o.Check, nil, nil).ToLast)
}
