package rl

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The worked numbers of the tutorial (systems C.7), and its formulas written once more, cell by cell.
func TestTutorialWorked(t *testing.T) {
	adv, ret, err := ComputeGAEAdvantages([]float64{10}, []float64{.1, .2}, []float64{1, 2}, []bool{true, true}, 1, 2, .9, .9)
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{8.018, 9.8}, ret, 1e-12)
	// Printed as −1 and 1: both 1e-8 count, the one in the mean and the one beside the variance.
	mean := (7.018 + 7.8) / (2 + 1e-8)
	variance := ((7.018-mean)*(7.018-mean) + (7.8-mean)*(7.8-mean)) / (2 + 1e-8)
	std := math.Sqrt(variance + 1e-8)
	require.InDeltaSlice(t, []float64{(7.018 - mean) / std, (7.8 - mean) / std}, adv, 1e-12)
	require.InDeltaSlice(t, []float64{-1, 1}, adv, 1e-6)

	adv, ret, err = ComputeGAEAdvantages([]float64{10}, []float64{.1, .2}, []float64{1, 2}, []bool{true, false}, 1, 2, .9, .9)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 0}, adv, "one token: exactly 0 when whitened")
	require.InDeltaSlice(t, []float64{9.9, 0}, ret, 1e-12)

	loss, _, err := ComputeEntropyLoss(make([]float64, 2*5), []bool{true, true}, 1, 2, 5)
	require.NoError(t, err)
	require.InDelta(t, -math.Log(5), loss, 2e-8) // the mean divides by 2 + 1e-8

	same := []float64{-1, -2, -3}
	p, err := ComputePolicyLoss(same, same, []float64{1, -2, 4}, []bool{true, true, false}, 1, 3, .2)
	require.NoError(t, err)
	require.Zero(t, p.ApproxKL)
	require.Zero(t, p.ClipFrac)
	require.InDelta(t, .5, p.Loss, 1e-8) // −(1 − 2)/2
}

func TestTutorialFormulas(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const rows, cols, n, eps, c, vocab = 3, 5, 15, .2, .3, 7
	draw := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = r.NormFloat64()
		}
		return x
	}
	mask := make([]bool, n)
	count := 1e-8
	for i := range mask {
		if mask[i] = i%cols < 2+i/cols; mask[i] {
			count++
		}
	}
	lp, old, adv, v, vOld, ret, logits := draw(n), draw(n), draw(n), draw(n), draw(n), draw(n), draw(n*vocab)
	var policy, outside, kl, value, clipped, entropy float64
	for i, m := range mask {
		if !m {
			lp[i], v[i], adv[i] = math.NaN(), math.NaN(), math.NaN() // must not matter
			for j := range vocab {
				logits[i*vocab+j] = math.NaN()
			}
			continue
		}
		ratio := math.Exp(max(-20, min(20, lp[i]-old[i])))
		policy -= min(ratio*adv[i], max(1-eps, min(1+eps, ratio))*adv[i]) / count
		if math.Abs(ratio-1) > eps {
			outside += 1 / count
		}
		kl += (old[i] - lp[i]) / count
		vc := vOld[i] + max(-c, min(c, v[i]-vOld[i]))
		a, b := (v[i]-ret[i])*(v[i]-ret[i]), (vc-ret[i])*(vc-ret[i])
		value += .5 * max(a, b) / count
		if b > a {
			clipped += 1 / count
		}
		z := 0.0
		for _, x := range logits[i*vocab : (i+1)*vocab] {
			z += math.Exp(x)
		}
		for _, x := range logits[i*vocab : (i+1)*vocab] {
			entropy -= math.Exp(x) / z * math.Log(math.Exp(x)/z) / count
		}
	}
	p, err := ComputePolicyLoss(lp, old, adv, mask, rows, cols, eps)
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{policy, outside, kl}, []float64{p.Loss, p.ClipFrac, p.ApproxKL}, 1e-12)
	w, err := ComputeValueLoss(v, vOld, ret, mask, rows, cols, c)
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{value, clipped}, []float64{w.Loss, w.ClipFrac}, 1e-12)
	loss, dlogits, err := ComputeEntropyLoss(logits, mask, rows, cols, vocab)
	require.NoError(t, err)
	require.InDelta(t, -entropy, loss, 1e-12)

	// Central differences of the three losses in one true cell each; gradients outside the mask are exactly 0.
	const h = 1e-6
	at := 1
	slope := func(x []float64, f func() float64) float64 {
		keep := x[at]
		x[at] = keep + h
		up := f()
		x[at] = keep - h
		down := f()
		x[at] = keep
		return (up - down) / (2 * h)
	}
	require.InDelta(t, slope(lp, func() float64 { q, _ := ComputePolicyLoss(lp, old, adv, mask, rows, cols, eps); return q.Loss }), p.DLogp[at], 1e-8)
	require.InDelta(t, slope(v, func() float64 { q, _ := ComputeValueLoss(v, vOld, ret, mask, rows, cols, c); return q.Loss }), w.DValue[at], 1e-8)
	require.InDelta(t, slope(logits, func() float64 { q, _, _ := ComputeEntropyLoss(logits, mask, rows, cols, vocab); return q }), dlogits[at], 1e-8)
	for i, m := range mask {
		if !m {
			require.Zero(t, p.DLogp[i])
			require.Zero(t, w.DValue[i])
			require.Equal(t, make([]float64, vocab), dlogits[i*vocab:(i+1)*vocab])
		}
	}
}
