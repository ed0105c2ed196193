package projection

import (
	"math"
	"math/rand/v2"

	"plumbline/internal/format"
	"plumbline/reference/linalg"
	"plumbline/verify/check"
	"plumbline/verify/projection"
)

type fault = check.Fault[*projection.Input]

const source = "shielded PPO, Projection Not Working"

// numbers returns a copy of Q.
func numbers(b *projection.Basis) []float64 {
	q, err := b.Numbers()
	if err != nil {
		panic("projection: " + err.Error()) // faults are planted in data held in memory
	}
	return q
}

// basisFault changes the numbers of Q alone: gradients and weights stay those of the sound basis.
func basisFault(id, title, cause string, change func(r *rand.Rand, q []float64, d, k int)) fault {
	return fault{ID: id, Title: title, Cause: cause, Source: source, Plant: func(r *rand.Rand, in *projection.Input) *projection.Input {
		return in.With(func(c *projection.Input) {
			q := numbers(in.Basis)
			change(r, q, in.Basis.D, in.Basis.K)
			store(q, in.Basis.DType)
			c.Basis = projection.DenseBasis(q, in.Basis.D, in.Basis.K, in.Basis.DType)
		})
	}}
}

// projectedFault replaces the projected gradient by what a wrong program makes of g, Q and c = Qᵀg.
func projectedFault(id, title, cause string, program func(r *rand.Rand, g, q, c []float64, k int) []float64) fault {
	return fault{ID: id, Title: title, Cause: cause, Source: source, Plant: func(r *rand.Rand, in *projection.Input) *projection.Input {
		return in.With(func(x *projection.Input) {
			t := in.Grads[0].Tensors[0]
			q, k := numbers(in.Basis), in.Basis.K
			p := program(r, append([]float64(nil), t.Data...), q, linalg.Components(q, k, t.Data, 1), k)
			store(p, t.DType)
			x.Projected = []projection.Set{vectorSet("p", t.DType, p)}
		})
	}}
}

// alone turns a fault of a projected gradient into one that is seen without the raw gradient.
func alone(f fault) fault {
	plant := f.Plant
	f.Plant = func(r *rand.Rand, in *projection.Input) *projection.Input {
		return plant(r, in).With(func(c *projection.Input) { c.Grads, c.Projected = c.Projected, nil })
	}
	return f
}

// trained replaces adapter and last update by those of a run that projects something else, or nothing, and hides the
// gradients.
func trained(id, title, cause string, what int, keepGradients bool) fault {
	return fault{ID: id, Title: title, Cause: cause, Source: "shielded PPO, Projection Not Working", Plant: func(r *rand.Rand, in *projection.Input) *projection.Input {
		return in.With(func(c *projection.Input) {
			run := newAdam(r, Scenario{D: in.Basis.D, K: in.Basis.K}, numbers(in.Basis))
			for range 30 {
				run.step(r, what)
			}
			c.Init, c.Adapter = run.adapter("init", run.start), run.adapter("adapter", run.w)
			c.Updates = []projection.Set{vectorSet("update", format.F32, run.last)}
			if !keepGradients {
				c.Grads, c.Projected = nil, nil
			}
		})
	}}
}

// combine returns α·(g − Qc) + κ·Qc.
func combine(g, q, c []float64, k int, alpha, kappa float64) []float64 {
	rest := make([]float64, len(g))
	linalg.Remove(rest, q, k, g, c, 1)
	for i := range g {
		g[i] = alpha*rest[i] + kappa*(g[i]-rest[i])
	}
	return g
}

// linear is the fault of a program that computes α·(g − Qc) + κ·Qc.
func linear(id, title, cause string, alpha, kappa float64) fault {
	return projectedFault(id, title, cause, func(_ *rand.Rand, g, q, c []float64, k int) []float64 {
		return combine(g, q, c, k, alpha, kappa)
	})
}

func init() {
	projection.Shape.Faults = []fault{
		{ID: "H4b", Title: "basis spans the whole space", Cause: "right singular vectors of a full-rank matrix, none dropped", Source: "shielded PPO, Projection Not Working", Plant: func(r *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) { c.Basis = projection.DenseBasis(RandomBasis(r, 32, 32), 32, 32, format.F64) })
		}},
		{ID: "BASIS-1D", Title: "basis flattened on saving", Cause: "Q.flatten() or one column only", Source: source, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) {
				b := *in.Basis
				b.Stored, b.D, b.K = []int{b.D * b.K}, 0, 0
				c.Basis = &b
			})
		}},
	}
	projection.DType.Faults = []fault{
		{ID: "BASIS-INT", Title: "integer basis", Cause: "Q.astype(int), or a file of indices given as the basis", Source: source, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) {
				c.Basis = projection.DenseBasis(numbers(in.Basis), in.Basis.D, in.Basis.K, format.I64)
			})
		}},
		{ID: "H3c", Title: "Q stored in low precision", Cause: "the basis was saved with the model's dtype", Source: "shielded PPO, Projection Not Working", Want: check.Warn, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) {
				q := numbers(in.Basis)
				store(q, format.BF16)
				c.Basis = projection.DenseBasis(q, in.Basis.D, in.Basis.K, format.BF16)
			})
		}},
	}
	projection.Finite.Faults = []fault{
		basisFault("BASIS-NAN", "one NaN in the basis", "0/0 when normalising a zero column", func(r *rand.Rand, q []float64, _, _ int) { q[r.IntN(len(q))] = math.NaN() }),
		basisFault("BASIS-INF", "one infinity in the basis", "overflow of float16", func(r *rand.Rand, q []float64, _, _ int) { q[r.IntN(len(q))] = math.Inf(-1) }),
	}
	projection.Orthonormal.Faults = []fault{
		basisFault("BASIS-COLUMN-SCALED", "one column is not normalised", "a column scaled by 1.001", func(r *rand.Rand, q []float64, d, k int) {
			for i, j := 0, r.IntN(k); i < d; i++ {
				q[i*k+j] *= 1.001
			}
		}),
		basisFault("BASIS-SKEW", "two columns overlap by 1e-4", "orthonormalised once by classical Gram–Schmidt, or edited afterwards", func(_ *rand.Rand, q []float64, d, k int) {
			for i := range d {
				q[i*k+1] += 1e-4 * q[i*k]
			}
		}),
		basisFault("BASIS-NOT-NORMALISED", "orthogonal columns of other norms than 1", "U·S saved in place of U", func(_ *rand.Rand, q []float64, d, k int) {
			for i := range q {
				q[i] *= 3 / (1 + float64(i%k))
			}
		}),
		basisFault("BASIS-RAW-VECTORS", "raw vectors in place of a basis", "the embeddings were saved before the SVD", func(r *rand.Rand, q []float64, d, k int) {
			for i := range q {
				q[i] = r.NormFloat64() / math.Sqrt(float64(d))
			}
		}),
		basisFault("BASIS-ORDER", "the numbers of Q in the other order", "Fortran data read as C, or Q.reshape(k, d) in place of Q.T", func(_ *rand.Rand, q []float64, d, k int) {
			old := append([]float64(nil), q...)
			for i := range d {
				for j := range k {
					q[j*d+i] = old[i*k+j]
				}
			}
		}),
		basisFault("BASIS-ZERO-COLUMN", "a column of zeros", "padding row of the embedding table", func(_ *rand.Rand, q []float64, d, k int) {
			for i := range d {
				q[i*k+k-1] = 0
			}
		}),
	}
	projection.Rank.Faults = []fault{
		basisFault("BASIS-EQUAL-COLUMNS", "two equal columns", "a protected vector listed twice", func(_ *rand.Rand, q []float64, d, k int) {
			for i := range d {
				q[i*k+1] = q[i*k]
			}
		}),
		basisFault("BASIS-DEPENDENT", "a column that is a combination of others", "singular vectors of singular value 0 kept", func(_ *rand.Rand, q []float64, d, k int) {
			for i := range d {
				q[i*k] = 0.6*q[i*k+1] - 0.8*q[i*k+k-1]
			}
		}),
	}
	projection.Fit.Faults = []fault{
		{ID: "A11", Title: "the basis belongs to another model", Cause: "basis of the ranker (201 × 128) on the language model's gradients", Source: "shielded PPO, Projection Not Working", Plant: func(r *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) { c.Basis = projection.DenseBasis(RandomBasis(r, 201, 8), 201, 8, format.F32) })
		}},
	}
	projection.VectorsFinite.Faults = []fault{
		projectedFault("GRAD-NAN", "NaN in the gradient", "0·Inf behind a mask", func(r *rand.Rand, g, q, c []float64, k int) []float64 {
			g = combine(g, q, c, k, 1, 0)
			g[r.IntN(len(g))] = math.NaN()
			return g
		}),
	}
	projection.Flow.Faults = []fault{
		{ID: "A10", Title: "no gradient flows", Cause: "frozen parameters, detached graph: p.grad is None, saved as zeros", Source: source, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) {
				c.Grads, c.Projected = []projection.Set{vectorSet("g", format.F32, make([]float64, in.Basis.D))}, nil
			})
		}},
		{ID: "A10", Title: "one trainable tensor without gradient", Cause: "lora_B frozen", Source: source, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) {
				a := in.Adapter.Tensors[0]
				c.Grads, c.Projected = []projection.Set{{Name: "g", Tensors: []projection.Tensor{{Name: a.Name, DType: a.DType, Shape: a.Shape, Data: a.Data}}}}, nil
			})
		}},
		{ID: "A10", Title: "nothing is trainable", Cause: "requires_grad of every parameter is false", Source: source, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) { c.Grads, c.Projected = []projection.Set{{Name: "g"}}, nil })
		}},
	}
	projection.NoOp.Faults = []fault{linear("H2", "the projection is a no-op", "projection skipped, its result dropped, or done on a copy", 1, 1)}
	projection.NoOp.Faults[0].Plant = func(_ *rand.Rand, in *projection.Input) *projection.Input {
		return in.With(func(c *projection.Input) { c.Projected = in.Grads })
	}
	projection.Formula.Faults = []fault{
		linear("PROJ-ZERO", "the gradient is erased", "projected on the complement of a basis of everything", 0, 0),
		linear("PROJ-COMPLEMENT", "the protected part is kept, the rest removed", "Q(Qᵀg) in place of g − Q(Qᵀg)", 0, 1),
		linear("PROJ-NEGATED", "the whole gradient has the wrong sign", "Q(Qᵀg) − g", -1, 0),
		linear("PROJ-SCALED", "the projected gradient is scaled", "loss scale undone twice, or divided by the accumulation steps again", 2, 0),
		linear("PROJ-PARTIAL", "only half of the component is removed, at norm 1e-6", "g − ½Q(Qᵀg); an absolute limit cannot see it", 1, 0.5),
		projectedFault("PROJ-OTHER-TENSOR", "projection of another tensor", "files of two parameters swapped", func(r *rand.Rand, g, q, c []float64, k int) []float64 {
			g = randomVector(r, len(g), norm(g))
			return linalg.Project(q, k, g, 1, 2)
		}),
		projectedFault("PROJ-DECAY", "something is added after the projection", "weight decay added to the projected gradient", func(r *rand.Rand, g, q, c []float64, k int) []float64 {
			g = combine(g, q, c, k, 1, 0)
			for i := range g {
				g[i] += 1e-3 * r.NormFloat64() * norm(c)
			}
			return linalg.Project(q, k, g, 1, 1)
		}),
		projectedFault("PROJ-ONE-ELEMENT", "one element is wrong", "last row left out by a kernel's tail", func(_ *rand.Rand, g, q, c []float64, k int) []float64 {
			last := g[len(g)-1]
			g = combine(g, q, c, k, 1, 0)
			g[len(g)-1] = last
			return g
		}),
		projectedFault("LOW-PRECISION", "the projection ran in bfloat16", "autocast was on", func(_ *rand.Rand, g, q, _ []float64, k int) []float64 {
			store(g, format.BF16)
			store(q, format.BF16)
			c := linalg.Components(q, k, g, 1)
			store(c, format.BF16)
			g = combine(g, q, c, k, 1, 0)
			store(g, format.BF16)
			return g
		}),
	}
	half := projection.Formula.Faults[4].Plant
	projection.Formula.Faults[4].Plant = func(r *rand.Rand, in *projection.Input) *projection.Input {
		return half(r, in.With(func(c *projection.Input) {
			t := in.Grads[0].Tensors[0]
			small := append([]float64(nil), t.Data...)
			for i := range small {
				small[i] *= 1e-6 / norm(t.Data)
			}
			store(small, t.DType)
			c.Grads = []projection.Set{vectorSet("g", t.DType, small)}
		}))
	}
	projection.Norm.Faults = []fault{
		linear("PROJ-SIGN", "the component is added in place of subtracted", "g + Q(Qᵀg)", 1, 2),
	}
	otherBasis := func(r *rand.Rand, g, q, c []float64, k int) []float64 {
		return linalg.Project(RandomBasis(r, len(g), k), k, g, 1, 2)
	}
	transposed := func(_ *rand.Rand, g, q, c []float64, k int) []float64 {
		d := len(g)
		other := make([]float64, len(q))
		for i := range d {
			for j := range k {
				other[i*k+j] = q[j*d+i]
			}
		}
		return linalg.Project(other, k, g, 1, 1)
	}
	firstColumns := func(_ *rand.Rand, g, q, c []float64, k int) []float64 {
		c[k-1] = 0
		return combine(g, q, c, k, 1, 0)
	}
	projection.GradientComponent.Faults = []fault{
		linear("PROJ-TWICE-SUBTRACTED", "the component is subtracted twice", "g − 2Q(Qᵀg), a reflection: the norm stays the same", 1, -1),
		linear("PROJ-PARTIAL", "only half of the component is removed", "g − ½Q(Qᵀg)", 1, 0.5),
		projectedFault("PROJ-COLUMNS", "one column of Q is left out", "range(k−1)", firstColumns),
		alone(linear("PROJ-NEVER", "the gradient was never projected", "the hook is not registered, or runs before backward", 1, 1)),
		alone(projectedFault("PROJ-NEVER", "projected with the numbers of Q in the other order", "Q.reshape(k, d) in place of Q.T", transposed)),
		alone(projectedFault("PROJ-NEVER", "projected with a basis of the same shape from another model", "stale basis file", otherBasis)),
		alone(projectedFault("PROJ-COLUMNS", "one column of Q is left out, seen without the raw gradient", "range(k−1)", firstColumns)),
		alone(fault{ID: "PROJ-NEVER", Title: "tensors laid in another order than the basis was made for", Cause: "dict order in place of the recorded order", Source: "shielded PPO, Projection Not Working", Plant: func(r *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) {
				p := in.Projected[0].Tensors[0].Data
				cut := len(p) / 3
				c.Projected = []projection.Set{vectorSet("p", format.F32, append(append([]float64(nil), p[cut:]...), p[:cut]...))}
			})
		}}),
		{ID: "H3d", Title: "an absolute threshold on an unclipped gradient", Cause: "norm 100, one pass in float32: right, but beyond 1e-5", Source: "shielded PPO, Projection Not Working", Want: check.Pass, Plant: func(r *rand.Rand, in *projection.Input) *projection.Input {
			return Scenario{D: in.Basis.D, K: in.Basis.K, Norm: 300, Basis: format.F32, Vector: format.F32, Passes: 1}.Draw(r)
		}},
	}
	projection.UpdateComponent.Faults = []fault{
		trained("H3a", "the optimiser's leak in one update", "the gradient is projected, Adam's update is not", projectGradient, true),
	}
	projection.AdapterDrift.Faults = []fault{
		trained("H3a", "the optimiser's leak in the weights", "30 steps of Adam on projected gradients", projectGradient, true),
		trained("H3a", "the optimiser's leak, seen without gradients", "30 steps of Adam on projected gradients", projectGradient, false),
		trained("PROJ-NEVER", "trained without projection", "--no-projection left on", projectNothing, false),
		{ID: "H3b", Title: "raw weights tested in place of their change", Cause: "check_projection.py reads lora_A, which starts at Kaiming's random values", Source: "shielded PPO, Projection Not Working", Want: check.Undetermined, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) { c.Init = nil })
		}},
		{ID: "UNTRAINED", Title: "the adapter equals its initialisation", Cause: "optimiser without the adapter's parameters", Source: "layout of a PEFT adapter", Want: check.Warn, Plant: func(_ *rand.Rand, in *projection.Input) *projection.Input {
			return in.With(func(c *projection.Input) { c.Adapter = c.Init })
		}},
	}
}
