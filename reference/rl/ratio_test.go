package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRatio has the three levels on two rows with a hole, a NaN in it, and a row without tokens.
func TestRatio(t *testing.T) {
	lp := []float64{-1, nan, -2, 5, 5, 5}
	old := []float64{-2, 1, -4, nan, nan, nan}
	mask := []bool{true, false, true, false, false, false}
	at := func(o RatioOptions) []float64 { return Ratio(nil, lp, old, mask, 2, 3, o) }
	token := at(RatioOptions{})
	require.InDelta(t, math.E, token[0], 1e-15)
	require.InDelta(t, math.E*math.E, token[2], 1e-14)
	require.NoError(t, off(at(RatioOptions{Level: RatioSeqMean}), append(rep(3, math.Exp(1.5)), 1, 1, 1), 1e-15))
	require.NoError(t, off(at(RatioOptions{Level: RatioSeqSum}), append(rep(3, math.Exp(3)), 1, 1, 1), 1e-14))
	require.NoError(t, off(at(RatioOptions{Level: RatioSeqMean, LenEps: 1}), append(rep(3, math.E), 1, 1, 1), 1e-15))
	require.NoError(t, off(at(RatioOptions{Level: RatioSeqSum, LogClamp: 1.5}), append(rep(3, math.Exp(2.5)), 1, 1, 1), 1e-14), "tokens are clamped before the sum")
	require.NoError(t, off(at(RatioOptions{Level: RatioSeqSum, SeqLogMax: 2}), append(rep(3, math.Exp(2)), 1, 1, 1), 1e-14))
	require.Equal(t, []float64{1, 1}, Ratio(nil, []float64{-1, -2}, nil, nil, 1, 2, RatioOptions{}), "old absent")
}

// rep is n times v.
func rep(n int, v float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = v
	}
	return x
}

// TestRatioBounds: on a bound of a clamp no gradient passes, just inside it all of it.
func TestRatioBounds(t *testing.T) {
	grad := func(d float64, o RatioOptions) float64 {
		lp, old, mask := []float64{d, 0}, []float64{0, 0}, []bool{true, false}
		ratio := Ratio(nil, lp, old, mask, 1, 2, o)
		dlp := make([]float64, 2)
		RatioBackward(dlp, []float64{1, 0}, ratio, lp, old, mask, 1, 2, o)
		require.Equal(t, 0.0, dlp[1])
		return dlp[0]
	}
	inside := math.Nextafter(2, 0)
	for _, o := range []RatioOptions{{LogClamp: 2}, {Level: RatioSeqMean, SeqLogMax: 2}, {Level: RatioSeqSum, SeqLogMax: 2}, {Level: RatioSeqMean, LogClamp: 2},
		{Level: RatioSeqMean, SeqLogMax: 2, PerToken: true}} {
		require.Equal(t, 0.0, grad(2, o), "%+v", o)
		require.Equal(t, 0.0, grad(3, o), "%+v", o)
		require.InDelta(t, math.Exp(2), grad(inside, o), 1e-14, "%+v", o)
	}
	require.Equal(t, 0.0, grad(-2, RatioOptions{LogClamp: 2}))
	require.InDelta(t, math.Exp(-2), grad(-2, RatioOptions{Level: RatioSeqMean, SeqLogMax: 2}), 1e-15, "the sequence is bounded from above only")
}
