package linalg_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/reference/linalg"
)

// A·v_j has the norm s_j, the columns of v are orthonormal, and Σ s² is the squared Frobenius norm of A.
func TestRightSingular(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, d := rapid.IntRange(1, 9).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "d")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		a, frobenius := make([]float64, n*d), 0.0
		for i := range a {
			a[i] = r.NormFloat64()
			frobenius += a[i] * a[i]
		}
		keep := append([]float64(nil), a...)
		v, s, ok := linalg.RightSingular(a, d)
		require.True(t, ok)
		require.Equal(t, keep, a)
		m := min(n, d)
		require.Len(t, s, m)
		require.Len(t, v, d*m)
		const bound = 1e-13 // some ten roundings of sums of nine terms near 10
		defect, _, _ := linalg.Defect(linalg.Gram(v, m), m)
		require.LessOrEqual(t, defect, bound)
		sum := 0.0
		for j := range m {
			norm := 0.0
			for i := range n {
				dot := 0.0
				for k := range d {
					dot += a[i*d+k] * v[k*m+j]
				}
				norm += dot * dot
			}
			require.InDelta(t, s[j], math.Sqrt(norm), bound*10)
			sum += s[j] * s[j]
			if j > 0 {
				require.LessOrEqual(t, s[j], s[j-1])
			}
		}
		require.InDelta(t, frobenius, sum, bound*frobenius*10)
	})
	_, _, ok := linalg.RightSingular(nil, 3)
	require.False(t, ok)
	require.Panics(t, func() { linalg.RightSingular(make([]float64, 4), 3) })
}
