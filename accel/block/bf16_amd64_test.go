//go:build !purego

package block

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cpu"
	"plumbline/verify/op"
)

func half(x float32) float32 { // to bfloat16, half to even, of numbers that need no other care
	b := math.Float32bits(x)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// A tiny number is seen in whatever lane, half or tail of a row it stands, and no other number is.
func TestPairRowSeesTinyNumbers(t *testing.T) {
	if why := cpu.Missing(cpu.AVX512BF16); why != "" {
		op.Skip(t, "avx512bf16", why)
	}
	for _, n := range []int{1, 2, 31, 32, 33, 64, 65, 97, 131} {
		x, ones, dst := make([]float32, n), make([]float32, n), make([]PairBF16, (n+1)/2)
		for i := range ones {
			ones[i] = 1
		}
		for _, scale := range [][]float32{nil, ones} {
			require.False(t, PairRow(dst, x, scale, half), "zeros are not tiny")
			for i := range x {
				for _, v := range []float32{0x1p-149, -0x1p-126, 0x1.fep-120} {
					x[i] = v
					require.True(t, PairRow(dst, x, scale, half), "%g at %d of %d", v, i, n)
					require.True(t, AnyTiny(x, TinyBF16), "%g at %d of %d", v, i, n)
				}
				for _, v := range []float32{0x1p-119, -0x1p-119, 1} {
					x[i] = v
					require.False(t, PairRow(dst, x, scale, half), "%g at %d of %d", v, i, n)
					require.False(t, AnyTiny(x, TinyBF16), "%g at %d of %d", v, i, n)
				}
				x[i] = 0
			}
		}
	}
}

// The pair of an odd last number holds a −0 in its other half, whatever lay there, and so do the codes.
func TestOddPairsHoldNothing(t *testing.T) {
	if why := cpu.Missing(cpu.AVX512BF16); why != "" {
		op.Skip(t, "avx512bf16", why)
	}
	for _, n := range []int{1, 3, 31, 33, 63, 65} {
		x, dst := make([]float32, n), make([]PairBF16, (n+1)/2)
		for i := range x {
			x[i] = float32(i + 1)
		}
		for i := range dst {
			dst[i] = 0x7fc07fc0
		}
		PairRow(dst, x, nil, half)
		for i, v := range x {
			want := PairBF16(math.Float32bits(half(v)) >> 16)
			if got := dst[i/2] >> (16 * (1 - i%2)) & 0xffff; got != want {
				t.Fatalf("element %d of %d: %#x, want %#x", i, n, got, want)
			}
		}
		require.Equal(t, noProduct&0xffff, dst[n/2]&0xffff, "%d numbers", n)

		const cols = 32
		codes := make([]int8, cols*n)
		for i := range codes {
			codes[i] = int8(i%255 - 127)
		}
		depth := (n + 1) / 2
		panel := make([]PairBF16, depth*cols)
		for i := range panel {
			panel[i] = 0x7fc07fc0
		}
		TurnI8BF16(panel, cols, codes, n, n, 0, depth, 0, cols)
		for c := range cols {
			last := panel[c/columns*depth*columns+(depth-1)*columns+c%columns]
			require.Equal(t, codeBF16(codes[c*n+n-1]), last>>16, "column %d of %d codes", c, n)
			require.Zero(t, last&0x7fff, "column %d of %d codes: a number stands after the last", c, n)
		}
	}
}
