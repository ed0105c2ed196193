package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

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
