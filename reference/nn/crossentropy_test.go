package nn

import (
	"math"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCrossEntropy(t *testing.T) {
	const ignore = -100
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		n, v := size(t, "rows", 5), size(t, "v", 6)
		in := random(r, n, v)
		targets := make([]int, n)
		for i := range targets {
			targets[i] = r.IntN(v)
			if i > 0 && r.IntN(3) == 0 {
				targets[i] = ignore
				in.Data[i*v] = math.NaN()
			}
		}
		x := leaves(in)[0]
		loss := CrossEntropy(x, targets, ignore)
		var want, count float64
		for i, k := range targets {
			if k == ignore {
				continue
			}
			var z float64
			for _, u := range in.Data[i*v : (i+1)*v] {
				z += math.Exp(u)
			}
			want -= math.Log(math.Exp(in.Data[i*v+k]) / z)
			count++
		}
		require.InDelta(t, want/count, loss.Item(), 1e-13)
		require.GreaterOrEqual(t, loss.Item(), 0.0)
		ad.Backward(loss, []float64{1})
		for i, k := range targets {
			var sum float64
			for _, g := range x.Grad()[i*v : (i+1)*v] {
				sum += g
				if k == ignore {
					require.Zero(t, g, "an ignored row has no gradient")
				}
			}
			require.InDelta(t, 0, sum, 1e-15)
		}
		// Padding columns of the vocabulary are left out by a slice, whatever they hold.
		wide := ad.Concat(-1, x, x.Tape().Const(slices.Repeat([]float64{1e9}, 2*n), n, 2))
		require.Equal(t, loss.Data(), CrossEntropy(ad.Slice(wide, -1, 0, v), targets, ignore).Data())
	})
	var tape ad.Tape
	uniform := tape.Const([]float64{3, 3, 3, 3}, 1, 4)
	require.InDelta(t, math.Log(4), CrossEntropy(uniform, []int{2}, ignore).Item(), 1e-15)
	require.True(t, math.IsNaN(CrossEntropy(uniform, []int{ignore}, ignore).Item()), "the mean of nothing")
	require.PanicsWithValue(t, "nn: cross-entropy: 2 targets for logits of shape [1 4]", func() { CrossEntropy(uniform, []int{0, 1}, ignore) })
	require.Panics(t, func() { CrossEntropy(uniform, []int{4}, ignore) })
}
