// Package projection plants bugs in bases, gradients and adapters that a correct program left: the faults of the checks of
// plumbline/verify/projection, and the healthy data they are planted in.
package projection

import (
	"math"
	"math/rand/v2"

	"plumbline/internal/format"
	"plumbline/reference/linalg"
	"plumbline/verify/projection"
)

// Scenario describes data that a correct program leaves: what faults are planted in and false alarms are counted on.
//
// The program here is not the reference: it rounds to float32 after every operation and sums in order, as a plain kernel
// does, so its results agree with the reference only within the bounds.
type Scenario struct {
	D, K   int
	Norm   float64      // of the raw gradient
	Basis  format.DType // that Q is stored in
	Vector format.DType // that gradients and updates are stored in
	Passes int          // of the projection
	Steps  int          // of training between Init and Adapter; 0: no adapter
}

// Draw makes a healthy input: a basis, a raw and a projected gradient, and, after Steps steps of Adam whose updates were
// projected, the last update and the adapter before and after.
func (s Scenario) Draw(r *rand.Rand) *projection.Input {
	q := RandomBasis(r, s.D, s.K)
	store(q, s.Basis)
	g := randomVector(r, s.D, s.Norm)
	store(g, s.Vector)
	p := project32(q, s.K, g, s.Passes)
	store(p, s.Vector)
	in := &projection.Input{
		Basis:     projection.DenseBasis(q, s.D, s.K, s.Basis),
		Grads:     []projection.Set{vectorSet("g", s.Vector, g)},
		Projected: []projection.Set{vectorSet("p", s.Vector, p)},
	}
	if s.Steps > 0 {
		run := newAdam(r, s, q)
		for range s.Steps {
			run.step(r, projectUpdate)
		}
		in.Init, in.Adapter = run.adapter("init", run.start), run.adapter("adapter", run.w)
		in.Updates = []projection.Set{vectorSet("update", format.F32, run.last)}
	}
	return in
}

// RandomBasis returns K orthonormal columns in a random position, d×K.
func RandomBasis(r *rand.Rand, d, k int) []float64 {
	q := make([]float64, d*k)
	for {
		for i := range q {
			q[i] = r.NormFloat64()
		}
		if out, rank, ok := linalg.Orthonormalise(q, k); ok && rank == k {
			return out
		}
	}
}

func randomVector(r *rand.Rand, d int, size float64) []float64 {
	v := make([]float64, d)
	for i := range v {
		v[i] = r.NormFloat64()
	}
	scale := size / norm(v)
	for i := range v {
		v[i] *= scale
	}
	return v
}

func norm(x []float64) float64 {
	var s float64
	for _, v := range x {
		s += float64(v * v)
	}
	return math.Sqrt(s)
}

// store rounds x in place to what dtype can hold.
func store(x []float64, dtype format.DType) {
	for i, v := range x {
		x[i] = format.Round(v, dtype)
	}
}

func vectorSet(name string, dtype format.DType, v []float64) projection.Set {
	return projection.Set{Name: name, Tensors: []projection.Tensor{{Name: name, DType: dtype, Shape: []int{len(v)}, Data: v}}}
}

// project32 is g − Q(Qᵀg) in float32, every sum in order.
func project32(q []float64, k int, g []float64, passes int) []float64 {
	y := make([]float32, len(g))
	for i, v := range g {
		y[i] = float32(v)
	}
	for range passes {
		c := make([]float32, k)
		for i, v := range y {
			for j := range c {
				c[j] += float32(float32(q[i*k+j]) * v)
			}
		}
		for i := range y {
			var s float32
			for j, cj := range c {
				s += float32(float32(q[i*k+j]) * cj)
			}
			y[i] -= s
		}
	}
	out := make([]float64, len(g))
	for i, v := range y {
		out[i] = float64(v)
	}
	return out
}

// adam trains a LoRA adapter whose tensors lie in a row of d numbers: lora_A (random) and lora_B (zero).
type adam struct {
	q              []float64
	k, lenA        int
	start, w, last []float64
	m, v           []float64
	pull           []float64 // what the gradients have in common from step to step
	t              int
}

const (
	loraA = "base_model.model.h.0.attn.q_proj.lora_A.weight"
	loraB = "base_model.model.h.0.attn.q_proj.lora_B.weight"
)

func newAdam(r *rand.Rand, s Scenario, q []float64) *adam {
	a := &adam{q: q, k: s.K, lenA: s.D / 4, start: make([]float64, s.D), m: make([]float64, s.D), v: make([]float64, s.D), pull: randomVector(r, s.D, 1)}
	bound := 1 / math.Sqrt(float64(a.lenA)) // Kaiming's bound of lora_A with its default slope √5
	for i := range a.lenA {
		a.start[i] = float64(float32((2*r.Float64() - 1) * bound))
	}
	a.w = append([]float64(nil), a.start...)
	return a
}

// What of a step is projected, if anything.
const (
	projectNothing = iota
	projectGradient
	projectUpdate
)

// step is one step of Adam (lr 3e-5, β 0.9 and 0.999, eps 1e-8) on a gradient of norm about 1.
func (a *adam) step(r *rand.Rand, what int) {
	g := randomVector(r, len(a.w), 1)
	for i := range g {
		g[i] = 0.7*a.pull[i] + 0.7*g[i]
	}
	if what == projectGradient {
		g = linalg.Project(a.q, a.k, g, 1, 2)
	}
	a.t++
	c1, c2 := 1-math.Pow(0.9, float64(a.t)), 1-math.Pow(0.999, float64(a.t))
	u := make([]float64, len(g))
	for i, x := range g {
		a.m[i] = 0.9*a.m[i] + 0.1*x
		a.v[i] = 0.999*a.v[i] + 0.001*x*x
		u[i] = -3e-5 * (a.m[i] / c1) / (math.Sqrt(a.v[i]/c2) + 1e-8)
	}
	if what == projectUpdate {
		u = linalg.Project(a.q, a.k, u, 1, 2)
	}
	store(u, format.F32)
	for i := range u {
		a.w[i] = float64(float32(a.w[i] + u[i]))
	}
	a.last = u
}

func (a *adam) adapter(name string, w []float64) *projection.Set {
	w = append([]float64(nil), w...)
	return &projection.Set{Name: name, Tensors: []projection.Tensor{
		{Name: loraA, DType: format.F32, Shape: []int{1, a.lenA}, Data: w[:a.lenA]},
		{Name: loraB, DType: format.F32, Shape: []int{len(w) - a.lenA, 1}, Data: w[a.lenA:]},
	}}
}
