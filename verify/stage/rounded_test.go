package stage

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/tol"
)

// TestRounded holds the rounding of every exponent of float64 against that of math/big, which has no smallest exponent.
func TestRounded(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 52))
	for _, u := range []float64{tol.UB, tol.U16} {
		bits := uint(-math.Ilogb(u)) // u = 2^−p of p bits: bf16 has 8, f16 has 11
		for exp := -1074; exp < 1023; exp++ {
			for range 8 {
				x := math.Ldexp(1+r.Float64(), exp)
				switch r.IntN(4) {
				case 0: // a middle of two neighbours, or a number of the format
					x = math.Ldexp(1+math.Trunc(r.Float64()/u)*u, exp)
				case 1:
					x = -x
				}
				want, _ := new(big.Float).SetMode(big.ToNearestEven).SetPrec(bits).SetFloat64(x).Float64()
				y, _ := rounded(x, u)
				require.Equal(t, math.Float64bits(want), math.Float64bits(y), "%b to %d bits", x, bits)
			}
		}
		for _, x := range []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN()} {
			y, open := rounded(x, u)
			require.Equal(t, math.Float64bits(x), math.Float64bits(y))
			require.False(t, open)
		}
		near := 32 * tol.U32 // of the middle 1 + u: sixteen units roundoff of float32, in units of the spacing 2u
		for by, want := range map[float64]bool{0: true, near: true, -near: true, near + 0x1p-40: false, -near - 0x1p-40: false, u: false, -u: false} {
			for _, scale := range []float64{1, -0x1p-100, 0x1p900, -0x1p-1000} {
				_, open := rounded((1+u+by)*scale, u)
				require.Equal(t, want, open, "(1 + u + %g)·%g", by, scale)
			}
		}
	}
}
