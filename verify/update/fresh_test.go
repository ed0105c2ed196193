package update

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Elements to which no batch adds anything show a gradient that nobody set to 0; a batch that is repeated does not look like it.
func TestFresh(t *testing.T) {
	run := func(keep, repeat bool) *Run {
		rnd := rand.New(rand.NewPCG(3, 4))
		r := &Run{}
		held := make([]float64, 400)
		for step := 1; step <= 5; step++ {
			g := make([]float64, 400)
			var sum float64
			for i := range g {
				if i%2 == 0 || step == 1 {
					g[i] = f32(rnd.NormFloat64())
				}
				if repeat && step > 1 {
					g[i] = held[i]
				}
				if keep {
					g[i] = f32(g[i] + held[i])
				}
				sum += g[i] * g[i]
			}
			norm := math.Sqrt(sum)
			r.Add(&Step{Number: step, Norm: norm, Rate: math.NaN(), Tensors: []Tensor{{Name: "embedding", Parts: 1, Grad: &Values{X: append([]float64(nil), g...)}}}})
			for i := range g {
				if held[i] = g[i]; !repeat {
					held[i] = f32(g[i] * f32(2/(norm+1e-6)))
				}
			}
		}
		return r
	}
	d := Undeclared()
	d.Clip = 2
	res := fresh(run(true, false), d)
	require.NotNil(t, res)
	require.Equal(t, "OPTIM-GRAD-KEPT", res.Explanations[0].Fault)
	require.Nil(t, fresh(run(false, false), d))
	require.Nil(t, fresh(run(false, true), d))
	require.Nil(t, fresh(run(true, false), Undeclared()), "what the factor is has to be declared")
}
