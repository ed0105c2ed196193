package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestClipped(t *testing.T) {
	ratio, adv := []float64{1.5, 1.5, .5, .5, 1, 4}, []float64{1, -1, 1, -1, 1, -2}
	o := ClipOptions{Low: .2, High: .2, Dual: 3}
	require.Equal(t, []float64{1, 0, 0, 1, 0, 0}, Clipped(nil, ratio, adv, ClipFracBinding, o))
	require.Equal(t, []float64{1, 1, 1, 1, 0, 1}, Clipped(nil, ratio, adv, ClipFracOutside, o))
	require.Equal(t, []float64{0, 0, 0, 0, 0, 1}, Clipped(nil, ratio, adv, ClipFracLower, o))
}

// TestClippedIsZeroGradient: the binding fraction counts the tokens with A ≠ 0 that get no gradient.
func TestClippedIsZeroGradient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ratio := rapid.SliceOfN(rapid.Float64Range(0, 3), 6, 6).Draw(t, "ratio")
		adv := drawCells(t, "adv", 6)
		o := ClipOptions{Low: .25, High: .5}
		_, slope := PPO(nil, nil, ratio, adv, o)
		for i, c := range Clipped(nil, ratio, adv, ClipFracBinding, o) {
			if adv[i] != 0 && (c == 1) != (slope[i] == 0) {
				t.Fatalf("ratio %v, A %v: clipped %v, slope %v", ratio[i], adv[i], c, slope[i])
			}
		}
	})
}

func TestApproxKL(t *testing.T) {
	lp, old := []float64{-1, -2, nan}, []float64{-1.5, -1, nan}
	mask := []bool{true, true, false} // old − lp = −.5, 1
	require.InDelta(t, .25, ApproxKL(lp, old, mask, KLK1, 0, 0), 1e-15)
	require.InDelta(t, .3125, ApproxKL(lp, old, mask, KLK2, 0, 0), 1e-15)
	ratio := func(x float64) float64 { return math.Exp(x) - 1 - x } // (ρ − 1) − ln ρ
	require.InDelta(t, (ratio(.5)+ratio(-1))/2, ApproxKL(lp, old, mask, KLK3, 0, 0), 1e-15)
	require.InDelta(t, (-.5+.75)/2, ApproxKL(lp, old, mask, KLK1, .75, 0), 1e-15)
	require.InDelta(t, .5/3, ApproxKL(lp, old, mask, KLK1, 0, 1), 1e-15)
	require.True(t, math.IsNaN(ApproxKL(lp, old, []bool{false, false, false}, KLK1, 0, 1)))
	require.Panics(t, func() { ApproxKL(lp, old, mask, KLAbs, 0, 0) })
}

func TestExplainedVariance(t *testing.T) {
	returns := []float64{1, 2, 3, 4, nan}
	mask := []bool{true, true, true, true, false}
	require.Equal(t, 1.0, ExplainedVariance(returns, returns, mask))
	require.Equal(t, 0.0, ExplainedVariance([]float64{7, 7, 7, 7, 7}, returns, mask))
	require.InDelta(t, -3, ExplainedVariance([]float64{-1, -2, -3, -4, 0}, returns, mask), 1e-15)
	require.Equal(t, 1.0, ExplainedVariance([]float64{6, 7, 8, 9, nan}, returns, mask), "a constant offset does not count")
	require.True(t, math.IsNaN(ExplainedVariance(returns, []float64{2, 2, 2, 2, nan}, mask)))
	require.True(t, math.IsNaN(ExplainedVariance(returns, returns, make([]bool, 5))))
}
