package rl

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCrossEntropy compares with the tape and checks that ignored rows do not matter.
func TestCrossEntropy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits, labels, vocab := drawLogits(t)
		n := len(labels)
		var tape ad.Tape
		x := tape.Param(append([]float64{}, logits...), n, vocab)
		y := ad.Neg(ad.Mean(ad.Gather(ad.LogSoftmax(x, 1), 1, labels), false, 0, 1))
		ad.Backward(y, []float64{1})
		loss, grad := CrossEntropy(nil, logits, labels, vocab, 0)
		if closeTo([]float64{loss}, y.Data()) != nil || closeTo(grad, x.Grad()) != nil {
			t.Fatal("cross-entropy of the tape")
		}
		more := append(append([]float64{}, logits...), make([]float64, vocab)...)
		more[len(logits)] = nan
		padded, pg := CrossEntropy(nil, more, append(append([]int{}, labels...), IgnoreLabel), vocab, 0)
		if padded != loss || !sameBits(pg[:len(logits)], grad) || pg[len(logits)] != 0 {
			t.Fatal("an ignored row matters")
		}
		// Micro-batches with the number of labels of the batch add up.
		var sum float64
		for r := range n {
			part, _ := CrossEntropy(nil, logits[r*vocab:(r+1)*vocab], labels[r:r+1], vocab, float64(n))
			sum += part
		}
		if !(math.Abs(sum-loss) <= 1e-12) {
			t.Fatal("micro-batches do not add up")
		}
	})
	loss, _ := CrossEntropy(nil, []float64{1, 2}, []int{IgnoreLabel}, 2, 0)
	require.True(t, math.IsNaN(loss))
	loss, grad := CrossEntropy(nil, []float64{0, 0, 0, 0}, []int{1}, 4, 0)
	require.InDelta(t, math.Log(4), loss, 1e-15)
	require.Equal(t, []float64{.25, -.75, .25, .25}, grad)
	require.Panics(t, func() { CrossEntropy(nil, []float64{1, 2}, []int{2}, 2, 0) })
	require.Panics(t, func() { CrossEntropy(nil, []float64{1, 2}, []int{-1}, 2, 0) })
}
