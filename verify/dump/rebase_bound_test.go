package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// The work of bugs on top of options that nobody declares is bounded over a run by the numbers that they are held against, and some base is always looked at.
func TestBasesOfARunAreBounded(t *testing.T) {
	outcome := func(n int) *stage.Outcome { return &stage.Outcome{Got: make([]float64, n)} }
	s := &session{}
	require.True(t, s.affords(outcome(20_000)))
	require.True(t, s.affords(outcome(30_000)))
	require.False(t, s.affords(outcome(1)))
	require.True(t, (&session{}).affords(outcome(1_000_000)), "the first")
}

// Two changes of a loss on one base are one change of another, which convicts: bases are tried until then.
func TestTwoChangesOfALossGoOn(t *testing.T) {
	for _, id := range []string{"aggregate/loss", "gradient/dlogp", "kl/token"} {
		for _, several := range []bool{true, false} {
			tr := &track{check: stage.Find(id), first: &stage.Outcome{Case: stage.NewCase(&dumpfile.Batch{}, &convention.Set{}, 0)}}
			tr.why.faults = []fault.Explanation{{Hypothesis: &fault.Hypothesis{ID: "AGG-KIND", Relative: true}, Several: several}}
			require.Equal(t, several && id != "kl/token", tr.goesOn(), id)
		}
	}
}
