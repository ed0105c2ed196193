package golden

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// An empty response, sequence_lengths −1: TRL's first_true_indices finds the padding at column 0 and takes one away. Then
// padding_mask covers the whole row, padding_mask_p1 all but its first cell, the score falls on that cell, and its value is the only
// one that is left: rewards[0] = score, advantages 0 after the mask, returns[0] = score. The other rows are as without it.
func TestEmptyResponse(t *testing.T) {
	c := &call{e: &Entry{}}
	b := &ppoBatch{rows: 2, cols: 3, last: []int{-1, 1}, old: []float64{-1, -1, -1, -1, -2, -1}, ref: []float64{-1, -1, -1, -1.5, -2, -1}, values: []float64{.25, 9, 9, .5, .75, .125},
		score: []float64{2, 3}, finished: []bool{true, true}, beta: .1, gae: c.recursion(trlPPOProfile, native{{Name: "lam", Value: 1.0}}), variance: c.whitenOf("trl-ppo", true),
		mask: []bool{false, false, false, true, true, false}, p1: []bool{true, false, false, true, true, true}}
	r, err := b.compute(false)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 0, 0}, r.kl[:3])
	require.Equal(t, []float64{2, 0, 0}, r.rewards[:3])
	require.Equal(t, []float64{2, 0, 0}, r.ret[:3])
	require.Equal(t, []float64{0, 0, 0}, r.adv[:3])
	require.InDeltaSlice(t, []float64{-.05, 0, 3}, r.rewards[3:], 1e-15)
	// A of the second row before whitening, by hand: δ2 = 3 − 0.125, δ1 = 0.125 − 0.75, δ0 = −0.05 + 0.75 − 0.5; λ = γ = 1
	a1, a0 := 3-.75, 2.95-.5
	mean, sd := (a0+a1)/2, math.Abs(a0-a1)/math.Sqrt2
	require.InDelta(t, (a0-mean)/math.Sqrt(sd*sd+1e-8), r.adv[3], 1e-12)
	require.InDelta(t, (a1-mean)/math.Sqrt(sd*sd+1e-8), r.adv[4], 1e-12)
}
