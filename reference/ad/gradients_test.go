package ad

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A primitive's case draws shapes and values and returns the function to check.
type drawCase func(g gen) (Func, []Tensor)

func elementwise1(op func(*Var) *Var, value valueFunc) drawCase {
	return func(g gen) (Func, []Tensor) {
		return func(x []*Var) *Var { return op(x[0]) },
			[]Tensor{g.tensor(g.shape(0, 4), value)}
	}
}

func elementwise2(op func(a, b *Var) *Var, va, vb valueFunc) drawCase {
	return func(g gen) (Func, []Tensor) {
		s := g.shape(0, 4)
		return func(x []*Var) *Var { return op(x[0], x[1]) },
			[]Tensor{g.tensor(g.thinner(s), va), g.tensor(g.thinner(s), vb)}
	}
}

// axisCase draws a tensor with at least one axis and one of its axes.
func axisCase(value valueFunc, op func(x *Var, keepdims bool, axis int) *Var) drawCase {
	return func(g gen) (Func, []Tensor) {
		s := g.shape(1, 4)
		axis := g.int("axis", -len(s), len(s)-1)
		keep := rapid.Bool().Draw(g.t, "keepdims")
		return func(x []*Var) *Var { return op(x[0], keep, axis) },
			[]Tensor{g.tensor(s, value)}
	}
}

// permutation draws an order of n axes.
func (g gen) permutation(n int) []int {
	axes := make([]int, n)
	for i := range axes {
		axes[i] = i
	}
	return rapid.Permutation(axes).Draw(g.t, "axes")
}

func drawMatMul(g gen) (Func, []Tensor) {
	lead := g.shape(0, 2)
	m, k, n := g.int("m", 0, 3), g.int("k", 0, 3), g.int("n", 0, 3)
	ta, tb := rapid.Bool().Draw(g.t, "transA"), rapid.Bool().Draw(g.t, "transB")
	a, b := []int{m, k}, []int{k, n}
	if ta {
		a = []int{k, m}
	}
	if tb {
		b = []int{n, k}
	}
	return func(x []*Var) *Var { return MatMul(x[0], x[1], ta, tb) },
		[]Tensor{g.tensor(append(g.thinner(lead), a...), plain), g.tensor(append(g.thinner(lead), b...), plain)}
}

// primitives are all functions of the package with cases on both sides of the
// edges: no axes, empty axes, axes of 1, broadcasting both ways.
var primitives = map[string]drawCase{
	"Add":        elementwise2(Add, plain, plain),
	"Sub":        elementwise2(Sub, plain, plain),
	"Mul":        elementwise2(Mul, plain, plain),
	"Div":        elementwise2(Div, plain, signed),
	"Max":        elementwise2(Max, offGrid(0), offGrid(0.5)),
	"Min":        elementwise2(Min, offGrid(0), offGrid(0.5)),
	"Mul itself": elementwise1(func(x *Var) *Var { return Mul(x, x) }, plain),

	"Neg":       elementwise1(Neg, plain),
	"Scale":     elementwise1(func(x *Var) *Var { return Scale(x, -1.7) }, plain),
	"AddScalar": elementwise1(func(x *Var) *Var { return AddScalar(x, 0.3) }, plain),
	"Exp":       elementwise1(Exp, uniform(-3, 3)),
	"Expm1":     elementwise1(Expm1, uniform(-3, 3)),
	"Log":       elementwise1(Log, uniform(0.2, 4)),
	"Log1p":     elementwise1(Log1p, uniform(-0.7, 4)),
	"Sqrt":      elementwise1(Sqrt, uniform(0.2, 4)),
	"Tanh":      elementwise1(Tanh, uniform(-4, 4)),
	"Erf":       elementwise1(Erf, uniform(-3, 3)),
	"Sigmoid":   elementwise1(Sigmoid, uniform(-6, 6)),
	"Pow 2.5":   elementwise1(func(x *Var) *Var { return Pow(x, 2.5) }, uniform(0.2, 3)),
	"Pow -0.5":  elementwise1(func(x *Var) *Var { return Pow(x, -0.5) }, uniform(0.2, 3)),
	"Pow 3":     elementwise1(func(x *Var) *Var { return Pow(x, 3) }, plain),
	"Pow 0":     elementwise1(func(x *Var) *Var { return Pow(x, 0) }, plain),
	"Abs":       elementwise1(Abs, signed),
	"Clamp":     elementwise1(func(x *Var) *Var { return Clamp(x, -1.5, 0.5) }, offGrid(0)),

	"Where": func(g gen) (Func, []Tensor) {
		s := g.shape(0, 4)
		m := g.mask(g.thinner(s))
		return func(x []*Var) *Var { return Where(m, x[0], x[1]) },
			[]Tensor{g.tensor(g.thinner(s), plain), g.tensor(g.thinner(s), plain)}
	},
	"Sum": func(g gen) (Func, []Tensor) {
		s := g.shape(0, 4)
		axes := g.permutation(len(s))[:g.int("axes", 0, len(s))]
		keep := rapid.Bool().Draw(g.t, "keepdims")
		return func(x []*Var) *Var { return Sum(x[0], keep, axes...) },
			[]Tensor{g.tensor(s, plain)}
	},
	"Mean": func(g gen) (Func, []Tensor) {
		s := g.shape(0, 4)
		for i := range s { // the mean of nothing is NaN
			s[i] = max(1, s[i])
		}
		axes := g.permutation(len(s))[:g.int("axes", 0, len(s))]
		return func(x []*Var) *Var { return Mean(x[0], false, axes...) },
			[]Tensor{g.tensor(s, plain)}
	},
	"MaxReduce": axisCase(distinct, func(x *Var, keep bool, axis int) *Var {
		if x.shape[axisOf("test", axis, len(x.shape))] == 0 { // −Inf has no difference
			return Reshape(x, 0)
		}
		return MaxReduce(x, keep, axis)
	}),
	"CumSum": axisCase(plain, func(x *Var, _ bool, axis int) *Var { return CumSum(x, axis) }),

	"BroadcastTo": func(g gen) (Func, []Tensor) {
		s := g.shape(0, 4)
		return func(x []*Var) *Var { return BroadcastTo(x[0], s...) },
			[]Tensor{g.tensor(g.thinner(s), plain)}
	},
	"Reshape": func(g gen) (Func, []Tensor) {
		s := g.shape(0, 4)
		return func(x []*Var) *Var { return Reshape(x[0], append([]int{-1}, s[:len(s)/2]...)...) },
			[]Tensor{g.tensor(s, plain)}
	},
	"Permute": func(g gen) (Func, []Tensor) {
		s := g.shape(0, 4)
		axes := g.permutation(len(s))
		return func(x []*Var) *Var { return Permute(x[0], axes...) },
			[]Tensor{g.tensor(s, plain)}
	},
	"Transpose": func(g gen) (Func, []Tensor) {
		s := g.shape(1, 4)
		i, j := g.int("i", 0, len(s)-1), g.int("j", -len(s), -1)
		return func(x []*Var) *Var { return Transpose(x[0], i, j) },
			[]Tensor{g.tensor(s, plain)}
	},
	"Slice": func(g gen) (Func, []Tensor) {
		s := g.shape(1, 4)
		axis := g.int("axis", 0, len(s)-1)
		from := g.int("from", 0, s[axis])
		to := g.int("to", from, s[axis])
		return func(x []*Var) *Var { return Slice(x[0], axis, from, to) },
			[]Tensor{g.tensor(s, plain)}
	},
	"Concat": func(g gen) (Func, []Tensor) {
		s := g.shape(1, 4)
		axis := g.int("axis", 0, len(s)-1)
		var in []Tensor
		for range g.int("operands", 1, 3) {
			p := slices.Clone(s)
			p[axis] = g.int("length", 0, 3)
			in = append(in, g.tensor(p, plain))
		}
		return func(x []*Var) *Var { return Concat(axis, x...) }, in
	},
	"Gather": func(g gen) (Func, []Tensor) {
		s := append(g.shape(0, 3), g.int("V", 1, 4))
		k := g.int("k", 0, 3)
		idx := make([]int, size(s[:len(s)-1])*k)
		for i := range idx {
			idx[i] = g.rng.IntN(s[len(s)-1])
		}
		return func(x []*Var) *Var { return Gather(x[0], k, idx) },
			[]Tensor{g.tensor(s, plain)}
	},
	"Embedding": func(g gen) (Func, []Tensor) {
		s, v := g.shape(0, 2), g.int("V", 1, 4)
		ids := make([]int, size(s))
		for i := range ids {
			ids[i] = g.rng.IntN(v)
		}
		return func(x []*Var) *Var { return Embedding(x[0], ids, s...) },
			[]Tensor{g.tensor([]int{v, g.int("C", 0, 3)}, plain)}
	},
	"MatMul": drawMatMul,
	"Checkpoint": func(g gen) (Func, []Tensor) {
		s := g.shape(0, 3)
		return func(x []*Var) *Var {
				return Checkpoint([]*Var{x[0], x[1], x[0]}, func(x []*Var) *Var { return Mul(Tanh(Add(x[0], x[1])), x[2]) })
			},
			[]Tensor{g.tensor(g.thinner(s), plain), g.tensor(g.thinner(s), plain)}
	},

	"LogSumExp": axisCase(uniform(-4, 4), func(x *Var, keep bool, axis int) *Var {
		if x.shape[axisOf("test", axis, len(x.shape))] == 0 { // −Inf has no difference
			return Reshape(x, 0)
		}
		return LogSumExp(x, keep, axis)
	}),
	"LogSoftmax": axisCase(uniform(-4, 4), func(x *Var, _ bool, axis int) *Var {
		if x.shape[axisOf("test", axis, len(x.shape))] == 1 { // 0 throughout: a difference has no scale
			return Add(LogSoftmax(x, axis), x)
		}
		return LogSoftmax(x, axis)
	}),
	"Softmax": axisCase(uniform(-4, 4), func(x *Var, _ bool, axis int) *Var { return Softmax(x, axis) }),
}

func TestGradients(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(primitives)) {
		cases := primitives[name]
		t.Run(name, func(t *testing.T) {
			compared := 0
			rapid.Check(t, func(t *rapid.T) {
				g := newGen(t)
				f, in := cases(g)
				err := CheckGrad(name, f, in, g.rng)
				if empty(f, in) {
					require.ErrorIs(t, err, ErrNothing)
					return
				}
				require.NoError(t, err)
				compared++
			})
			require.NotZero(t, compared, "every case was empty")
		})
	}
}

// An empty tensor has no gradient to compare, but its backward pass runs and
// gives parameters of other sizes their zeros.
func TestEmptyTensors(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(primitives)) {
		cases := primitives[name]
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				f, in := cases(newGen(t))
				var tape Tape
				var x []*Var
				var u [][]float64
				for _, a := range in {
					x = append(x, tape.Param(a.Data, a.Shape...))
					u = append(u, make([]float64, len(a.Data)))
				}
				y := f(x)
				require.Equal(t, size(y.shape), len(y.data))
				require.Equal(t, evaluate(f, in).shape, y.shape)
				require.Len(t, JVP(y, x, u), y.Size())
				Backward(y, make([]float64, y.Size()))
				for _, p := range x {
					for _, d := range p.Grad() {
						require.Zero(t, d)
					}
				}
			})
		})
	}
}

// The bounds of the checks must be neither wrong nor idle: over more than 10⁴
// correct cases the largest |difference|/bound is at most 1, and where
// truncation rules it is 1/3, as its derivation says. The bound of the adjoint
// identity is wide by the size of the tensors; scalars come closest.
func TestBoundsAreTight(t *testing.T) {
	rounds := 3 // of 100 cases for each primitive: over 12 000 in all
	if testing.Short() {
		rounds = 1
	}
	var vjp, adjoint, jvp float64
	for _, name := range slices.Sorted(maps.Keys(primitives)) {
		cases := primitives[name]
		rapid.Check(t, func(t *rapid.T) {
			g := newGen(t)
			for range rounds {
				f, in := cases(g)
				if empty(f, in) {
					continue
				}
				var worst [3]float64
				for i, check := range []func(*trial, [][]float64, []float64) error{
					func(p *trial, _ [][]float64, v []float64) error { return p.differences(v) },
					(*trial).adjoint,
					(*trial).direction,
				} {
					p, err := newTrial(name, f, in)
					require.NoError(t, err)
					u := make([][]float64, len(in))
					for k := range u {
						u[k] = scaled(draw(g.rng, len(in[k].Data)), rootMeanSquare(in[k].Data))
					}
					require.NoError(t, check(p, u, draw(g.rng, p.y.Size())))
					worst[i] = p.worst
				}
				vjp, adjoint, jvp = max(vjp, worst[0]), max(adjoint, worst[1]), max(jvp, worst[2])
			}
		})
	}
	t.Logf("largest |difference|/bound: CheckVJP %.3f, CheckAdjoint %.3f, CheckJVP %.3f", vjp, adjoint, jvp)
	for _, r := range []float64{vjp, adjoint, jvp} {
		require.False(t, math.IsNaN(r))
		require.LessOrEqual(t, r, 1.0)
	}
	// The logarithm bends so much between 0.01 and its neighbours at the step
	// for 3 that truncation is all: T(h/2) is a third of T(h) − T(h/2).
	p, err := newTrial("log", unaryFunc(Log), []Tensor{vector(0.01, 3)})
	require.NoError(t, err)
	require.NoError(t, p.differences([]float64{0.7, 0.3}))
	require.InDelta(t, 1./3, p.worst, 0.01)
	p.worst = 0
	require.NoError(t, p.direction([][]float64{{0.7, -0.9}}, []float64{0.7, 0.3}))
	require.InDelta(t, 1./3, p.worst, 0.01)
}
