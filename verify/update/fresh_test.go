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

// The gradient of a bias that every value has is the sum of their slopes: one that holds what clipping left of the last gradient, too, is told from it.
func TestFreshHead(t *testing.T) {
	run := func(keep func(step int) bool, head float64) *Run {
		rnd := rand.New(rand.NewPCG(5, 6))
		r := &Run{}
		held := []float64{0, 0}
		for step := 1; step <= 8; step++ {
			slope := f32(rnd.NormFloat64())
			g := []float64{f32(head * slope), f32(3 * rnd.NormFloat64())}
			if keep(step) {
				g[0], g[1] = f32(g[0]+held[0]), f32(g[1]+held[1])
			}
			norm := math.Hypot(g[0], g[1])
			r.Add(&Step{Number: step, Norm: math.NaN(), Rate: math.NaN(), Slope: slope, SlopeSize: 2 * math.Abs(slope),
				Tensors: []Tensor{{Name: "critic.bias", Parts: 1, Grad: &Values{X: []float64{g[0]}}}, {Name: "rest", Parts: 1, Grad: &Values{X: []float64{g[1], 0}}}}})
			c := min(1, 0.5/(norm+1e-6))
			held = []float64{f32(c * g[0]), f32(c * g[1])}
		}
		return r
	}
	d := Undeclared()
	d.Clip = 0.5
	each4 := func(step int) bool { return step%4 != 1 }
	res := freshHead(run(each4, 1), d)
	require.NotNil(t, res)
	require.Equal(t, "OPTIM-GRAD-KEPT", res.Explanations[0].Fault)
	require.Nil(t, freshHead(run(func(int) bool { return false }, 1), d))
	require.Nil(t, freshHead(run(each4, 1.3), d), "no bias of the values")
}
