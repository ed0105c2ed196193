package f32_test

import (
	"math"

	"plumbline/accel/f32"
	"plumbline/reference/optim"
)

// adamRef is a step of reference/optim with what its bound needs: the sizes of gradient and moment, and of the update.
type adamRef struct{ p, m, v, sizes, update []float64 }

func reference(o f32.AdamW, p, g, m, v []float64, scale float64) adamRef {
	r := adamRef{p: append([]float64(nil), p...), m: m, v: v}
	for i := range g {
		g[i] *= scale
		r.sizes = append(r.sizes, math.Abs(g[i])+math.Abs(m[i]))
	}
	state := &optim.State{Step: o.Step - 1, M: m, V: v}
	optim.Adam{LR: o.LR, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.Decay}.Step(r.p, g, state)
	for i := range p {
		r.update = append(r.update, math.Abs(r.p[i]-p[i]))
	}
	return r
}
