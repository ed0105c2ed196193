package nn

import (
	"math"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// leaves puts tensors on a tape of their own.
func leaves(in ...ad.Tensor) []*ad.Var {
	var tape ad.Tape
	x := make([]*ad.Var, len(in))
	for i, v := range in {
		x[i] = tape.Param(v.Data, v.Shape...)
	}
	return x
}

// near requires equality within rounding, relative to the largest element: all cases are of order 1 and sum fewer than a
// hundred terms.
func near(t require.TestingT, want, got []float64, msg ...any) {
	require.LessOrEqual(t, far(got, want), 1e-13, msg...)
}

// The softmax: probabilities that sum to 1, blind to a shift, exactly 0 with derivative 0 where masked.
func TestSoftmax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		n, s := size(t, "rows", 3), size(t, "s", 6)
		in, m := random(r, n, s), drawMask(r, n, s)
		for i, on := range m.On {
			if !on && r.IntN(2) == 0 {
				in.Data[i] = []float64{math.NaN(), math.Inf(1), 1e300}[r.IntN(3)]
			}
		}
		x := leaves(in)
		p := Softmax(x[0], m)
		ad.Backward(p, random(r, n, s).Data)
		for i := range n {
			row, on := p.Data()[i*s:(i+1)*s], m.On[i*s:(i+1)*s]
			var sum, slope, z float64
			for j, v := range row {
				sum += v
				slope += x[0].Grad()[i*s+j]
				if on[j] {
					z += math.Exp(in.Data[i*s+j])
				}
			}
			for j, v := range row {
				if !on[j] {
					require.Zero(t, v)
					require.Zero(t, x[0].Grad()[i*s+j])
				} else {
					require.InEpsilon(t, math.Exp(in.Data[i*s+j])/z, v, 1e-13)
				}
			}
			if slices.Contains(on, true) {
				require.InDelta(t, 1, sum, 1e-15*float64(s))
				require.InDelta(t, 0, slope, 1e-14*float64(s))
			} else {
				require.Zero(t, sum)
			}
		}
		shifted := Softmax(ad.AddScalar(x[0], 4), m).Data()
		for i, v := range p.Data() {
			require.InDelta(t, v, shifted[i], 1e-14)
		}
	})
}
