package checkpoint

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// No gradients take m² beyond the limit, and those that grow by β₂/β₁ from one step to the next reach it.
func TestMomentLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b1, b2 := 0.98*r.Float64(), 0.5+0.499*r.Float64()
		steps := 1 + r.IntN(30)
		random, worst := [2]float64{}, [2]float64{}
		for k := range steps {
			step := func(s *[2]float64, g float64) {
				s[0] = b1*s[0] + (1-b1)*g
				s[1] = b2*s[1] + (1-b2)*g*g
			}
			step(&random, r.NormFloat64()*math.Exp(5*r.NormFloat64()))
			step(&worst, math.Pow(b2/b1, float64(k)))
		}
		c := momentLimit(b1, b2, float64(steps))
		require.LessOrEqual(t, random[0]*random[0], c*random[1]*(1+1e-9))
		require.InEpsilon(t, c, worst[0]*worst[0]/worst[1], 1e-9)
	}
	require.True(t, math.IsInf(momentLimit(0.9, 1, 3), 1))
	require.InEpsilon(t, 1.0/(1-0.5), momentLimit(0, 0.5, 9), 1e-12)
	require.InEpsilon(t, 10, momentLimit(0.9, 0.999, 1), 1e-9)
}
