package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// Of ten tokens at most, four are the buffer: the score of six stays, that of eight loses half the factor, that of ten and of eleven all of it.
func TestOverlongPenalty(t *testing.T) {
	s := set(t, "kl.place=none eos.rule=none reward.clip=none rewards.whiten=no score.index=last_response").
		WithFact("overlong_buffer_len", 4.0).WithFact("overlong_penalty_factor", 0.5)
	at := func(x ...float64) grid {
		g := newGrid(11, 6, 8, 10, 11).row("scores", 1, 1, 1, 1)
		r := make([]float64, 44)
		for row, n := range []int{6, 8, 10, 11} {
			r[row*11+n-1] = x[row]
		}
		return g.token("token_rewards", r...)
	}
	lacks(t, "reward/token", at(1, .75, .5, .5).Batch, s, "max_completion_length")
	s = s.WithFact("max_completion_length", 10.0)
	require.Equal(t, check.Pass, Judge(Find("reward/token"), at(1, .75, .5, .5).Batch, s).Verdict)
	fails(t, "reward/token", at(1, 1.25, 1.5, 1.5).Batch, s) // the sign
	fails(t, "reward/token", at(1, .75, .5, .375).Batch, s)  // no bound
	fails(t, "reward/token", at(1, 1, 1, 1).Batch, s)        // none
}
