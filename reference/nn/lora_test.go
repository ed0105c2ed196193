package nn

import (
	"math"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"
)

func TestLoRA(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		n, in, out, rank := size(t, "t", 4), 3+size(t, "in", 4), 3+size(t, "out", 4), size(t, "rank", 3)
		x := leaves(random(r, n, in), random(r, rank, in), random(r, out, rank), random(r, out, in))
		l := LoRA{A: x[1], B: x[2], Scale: 0.3}
		y := l.Delta(x[0]).Data()

		for _, none := range []LoRA{{A: l.A, B: ad.Scale(l.B, 0), Scale: 0.3}, {A: ad.Scale(l.A, 0), B: l.B, Scale: 0.3}} {
			base := Linear(x[0], x[3], nil)
			require.Equal(t, base.Data(), ad.Add(base, none.Delta(x[0])).Data(), "a factor of 0 leaves the base")
		}
		for i, v := range (LoRA{A: l.A, B: l.B, Scale: 0.6}).Delta(x[0]).Data() {
			require.Equal(t, 2*y[i], v, "twice alpha")
		}
		// (B, A) and (B·R, R⁻¹·A) are one update, R here a rotation of two rows or a scale.
		turn := make([]float64, rank*rank)
		for i := range rank {
			turn[i*rank+i] = 3
		}
		back := slices.Clone(turn)
		for i := range rank {
			back[i*rank+i] = 1. / 3
		}
		if rank > 1 {
			s, c := math.Sincos(0.7)
			turn[0], turn[1], turn[rank], turn[rank+1] = c, -s, s, c
			back[0], back[1], back[rank], back[rank+1] = c, s, -s, c
		}
		tape := x[0].Tape()
		same := LoRA{A: ad.MatMul(tape.Const(back, rank, rank), l.A, false, false), B: ad.MatMul(l.B, tape.Const(turn, rank, rank), false, false), Scale: 0.3}
		for i, v := range same.Delta(x[0]).Data() {
			require.InDelta(t, y[i], v, 1e-12)
		}
		// Merged: x·(W + s·B·A)ᵀ.
		delta := ad.Scale(ad.MatMul(l.B, l.A, false, false), l.Scale)
		merged := Linear(x[0], ad.Add(x[3], delta), nil).Data()
		for i, v := range ad.Add(Linear(x[0], x[3], nil), l.Delta(x[0])).Data() {
			require.InDelta(t, merged[i], v, 1e-12)
		}
		// ΔW has no more than rank singular values.
		var svd mat.SVD
		require.True(t, svd.Factorize(mat.NewDense(out, in, slices.Clone(delta.Data())), mat.SVDNone))
		values := svd.Values(nil)
		for _, v := range values[min(rank, len(values)):] {
			require.LessOrEqual(t, v, 1e-13*values[0])
		}
	})
	require.Equal(t, 2.0, LoRAScale(32, 16, false))
	require.Equal(t, 8.0, LoRAScale(32, 16, true))
	require.PanicsWithValue(t, "nn: lora: a rank below 1", func() { LoRAScale(1, 0, false) })
}
