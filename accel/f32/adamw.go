package f32

import (
	"math"

	"plumbline/accel/cpu"
)

// AdamW is one step of AdamW with decoupled decay, in the form of PyTorch: Loshchilov and Hutter 2019, Algorithm 2.
type AdamW struct {
	LR, Beta1, Beta2, Eps, Decay float64
	Step                         int // t, from 1 on
}

// Clip returns the norm of the gradients, the root of the sum of all squares in float64, and what they are multiplied by so that it stays
// below the limit: min(1, limit/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. The limit 0 is none.
func Clip(grads [][]float32, limit float64) (norm, scale float64) {
	for _, g := range grads {
		for _, v := range g {
			norm += float64(float64(v) * float64(v))
		}
	}
	norm = math.Sqrt(norm)
	if limit == 0 {
		return norm, 1
	}
	if scale = limit / (norm + 1e-6); scale > 1 {
		scale = 1
	}
	return norm, scale
}

// Update stores in u what the step adds to the parameters p for the gradient g·scale, and moves the moments m and v:
//
//	m ← m + (1 − β₁)(g − m),   v ← β₂v + (1 − β₂)g²
//	u = −lr·wd·p − (lr/c₁)·m/(√v/√c₂ + ε),   c_i = 1 − β_iᵗ
//
// The step is its first sweep: p stays, so that the update can be projected before it is added. Arithmetic is float64 per element and
// what is stored is rounded to float32 once. u may be g. It panics if the lengths differ.
func (o AdamW) Update(u, p, g, m, v []float32, scale float64) {
	for _, n := range []int{len(u), len(g), len(m), len(v)} {
		same("adamw", n, len(p))
	}
	c1, c2 := 1-math.Pow(o.Beta1, float64(o.Step)), 1-math.Pow(o.Beta2, float64(o.Step))
	rate, root := o.LR/c1, math.Sqrt(c2)
	cpu.Split(len(p), adamGrain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d := float64(float64(g[i]) * scale)
			mi := float64(m[i]) + float64((1-o.Beta1)*(d-float64(m[i])))
			vi := float64(o.Beta2*float64(v[i])) + float64((1-o.Beta2)*float64(d*d))
			m[i], v[i] = float32(mi), float32(vi)
			u[i] = float32(-float64(o.LR*o.Decay*float64(p[i])) - float64(rate*(mi/(math.Sqrt(vi)/root+o.Eps))))
		}
	})
}

// adamGrain is how many parameters a task moves.
const adamGrain = 1 << 11

// Components stores in c [K, cols] the part of v [D, cols] in the span of the orthonormal basis given by qt [K, D], its columns as rows:
// c = Qᵀv, in float64 throughout.
func Components(c []float64, qt, v []float32, k, cols int) {
	d := rows("projection", len(v), cols)
	same("projection", len(qt), k*d)
	same("projection", len(c), k*cols)
	clear(c)
	for j := range k {
		q, to := qt[j*d:(j+1)*d], c[j*cols:(j+1)*cols]
		for i, w := range q {
			for l, x := range v[i*cols : (i+1)*cols] {
				to[l] += float64(float64(w) * float64(x))
			}
		}
	}
}

// Apply adds to p the update u less what of it lies in span(Q), p += u − Q·c with c of [Components]: the second sweep of a step. Without a
// basis k is 0.
func Apply(p, u, qt []float32, c []float64, k, cols int) {
	same("projection", len(u), len(p))
	d := rows("projection", len(p), cols)
	same("projection", len(qt), k*d)
	same("projection", len(c), k*cols)
	for i := range d {
		for l := range cols {
			x := float64(u[i*cols+l])
			for j := range k {
				x -= float64(float64(qt[j*d+i]) * c[j*cols+l])
			}
			p[i*cols+l] = float32(float64(p[i*cols+l]) + x)
		}
	}
}
