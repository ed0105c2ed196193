package ad

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"pgregory.net/rapid"
)

// Derivative checks cannot see a wrong value whose derivative fits it. So the
// values are compared here with the definition, index by index.

// index returns the multi-index of the i-th element of a shape.
func index(i int, shape []int) []int {
	at := make([]int, len(shape))
	for k := len(shape) - 1; k >= 0; k-- {
		at[k] = i % shape[k]
		i /= shape[k]
	}
	return at
}

// element returns x at a multi-index, which may have more axes than x and counts
// as 0 on axes of 1: NumPy's broadcasting.
func element(x Tensor, at ...int) float64 {
	at = at[len(at)-len(x.Shape):]
	i := 0
	for k, d := range x.Shape {
		i *= d
		if d != 1 {
			i += at[k]
		}
	}
	return x.Data[i]
}

func requireElements(t require.TestingT, y *Var, shape []int, want func(at []int) float64) {
	require.Equal(t, shape, append([]int{}, y.shape...))
	require.Len(t, y.data, size(shape))
	for i, v := range y.data {
		w := want(index(i, shape))
		if math.IsNaN(v) && math.IsNaN(w) {
			continue
		}
		require.Equal(t, math.Float64bits(w), math.Float64bits(v), "element %v: %g, want %g", index(i, shape), v, w)
	}
}

func constants(in ...Tensor) []*Var {
	var tape Tape
	var x []*Var
	for _, a := range in {
		x = append(x, tape.Const(a.Data, a.Shape...))
	}
	return x
}

func TestBroadcastValues(t *testing.T) {
	ops := map[string]struct {
		op   func(a, b *Var) *Var
		want func(a, b float64) float64
	}{
		"add": {Add, func(a, b float64) float64 { return a + b }},
		"sub": {Sub, func(a, b float64) float64 { return a - b }},
		"mul": {Mul, func(a, b float64) float64 { return a * b }},
		"div": {Div, func(a, b float64) float64 { return a / b }},
		"max": {Max, math.Max},
		"min": {Min, math.Min},
	}
	for name, c := range ops {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				g := newGen(t)
				s := g.shape(0, 4)
				a, b := g.tensor(g.thinner(s), plain), g.tensor(g.thinner(s), plain)
				x := constants(a, b)
				y := c.op(x[0], x[1])
				requireElements(t, y, append([]int{}, y.shape...), func(at []int) float64 {
					return c.want(element(a, at...), element(b, at...))
				})
				requireElements(t, BroadcastTo(x[0], s...), s, func(at []int) float64 { return element(a, at...) })
			})
		})
	}
}

func TestBroadcastShape(t *testing.T) {
	for _, c := range []struct{ a, b, want []int }{
		{nil, nil, []int{}},
		{nil, []int{2, 3}, []int{2, 3}},
		{[]int{3}, []int{2, 1}, []int{2, 3}},
		{[]int{4, 1, 3}, []int{2, 1}, []int{4, 2, 3}},
		{[]int{0}, []int{2, 1}, []int{2, 0}},
		{[]int{1}, []int{0}, []int{0}},
	} {
		require.Equal(t, c.want, append([]int{}, broadcastShape("test", c.a, c.b)...))
		require.Equal(t, c.want, append([]int{}, broadcastShape("test", c.b, c.a)...))
	}
}

func TestWhereValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGen(t)
		s := g.shape(0, 4)
		a, b, m := g.tensor(g.thinner(s), plain), g.tensor(g.thinner(s), plain), g.mask(g.thinner(s))
		on := Tensor{m.Shape, make([]float64, len(m.On))}
		for i, v := range m.On {
			if v {
				on.Data[i] = 1
			}
		}
		x := constants(a, b)
		y := Where(m, x[0], x[1])
		requireElements(t, y, append([]int{}, y.shape...), func(at []int) float64 {
			if element(on, at...) == 1 {
				return element(a, at...)
			}
			return element(b, at...)
		})
	})
}

func TestReduceValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGen(t)
		s := g.shape(1, 4)
		a := g.tensor(s, plain)
		x := constants(a)[0]
		axes := g.permutation(len(s))[:g.int("axes", 1, len(s))]

		kept := slices.Clone(s)
		for _, k := range axes {
			kept[k] = 1
		}
		// One accumulator per output, in index order: the same bits.
		sum, largest := make([]float64, size(kept)), make([]float64, size(kept))
		for i := range largest {
			largest[i] = math.Inf(-1)
		}
		for i, v := range a.Data {
			j := 0
			for k, at := range index(i, s) {
				j *= kept[k]
				if kept[k] != 1 {
					j += at
				}
			}
			sum[j] += v
			largest[j] = math.Max(largest[j], v)
		}
		y := Sum(x, true, axes...)
		requireElements(t, y, kept, func(at []int) float64 { return element(Tensor{kept, sum}, at...) })
		require.Equal(t, y.data, Sum(x, false, axes...).data)
		require.Len(t, Sum(x, false, axes...).shape, len(s)-len(axes))

		if len(axes) == 1 {
			requireElements(t, MaxReduce(x, true, axes[0]), kept, func(at []int) float64 {
				return element(Tensor{kept, largest}, at...)
			})
			requireElements(t, CumSum(x, axes[0]), s, func(at []int) float64 {
				var run float64
				for i := range at[axes[0]] + 1 {
					at[axes[0]] = i
					run += element(a, at...)
				}
				return run
			})
		}
	})
	require.Equal(t, 2.5, Mean(constants(Tensor{[]int{2, 2}, []float64{1, 2, 3, 4}})[0], false).Item())
	require.True(t, math.IsNaN(Mean(constants(Tensor{[]int{0}, nil})[0], false).Item()))
	require.Equal(t, math.Inf(-1), MaxReduce(constants(Tensor{[]int{0}, nil})[0], false, 0).Item())
}

func TestMoveValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGen(t)
		s := g.shape(1, 4)
		a := g.tensor(s, plain)
		x := constants(a)[0]

		axes := g.permutation(len(s))
		p := make([]int, len(s))
		for i, k := range axes {
			p[i] = s[k]
		}
		requireElements(t, Permute(x, axes...), p, func(at []int) float64 {
			from := make([]int, len(s))
			for i, k := range axes {
				from[k] = at[i]
			}
			return element(a, from...)
		})

		axis := g.int("axis", 0, len(s)-1)
		from := g.int("from", 0, s[axis])
		to := g.int("to", from, s[axis])
		p = slices.Clone(s)
		p[axis] = to - from
		requireElements(t, Slice(x, axis, from, to), p, func(at []int) float64 {
			at[axis] += from
			return a.Data[flat(at, s)]
		})

		parts := Concat(axis, Slice(x, axis, 0, from), Slice(x, axis, from, to), Slice(x, axis, to, s[axis]))
		requireElements(t, parts, s, func(at []int) float64 { return a.Data[flat(at, s)] })
		require.Equal(t, a.Data, Reshape(x, -1, 1).data)
	})
}

func flat(at, shape []int) int {
	i := 0
	for k, d := range shape {
		i = i*d + at[k]
	}
	return i
}

func TestIndexValues(t *testing.T) {
	x := constants(Tensor{[]int{2, 3}, []float64{10, 11, 12, 20, 21, 22}})[0]
	requireElements(t, Gather(x, 2, []int{2, 2, 0, 1}), []int{2, 2}, func(at []int) float64 {
		return [][]float64{{12, 12}, {20, 21}}[at[0]][at[1]]
	})
	requireElements(t, Embedding(x, []int{1, 0, 1, 1}, 2, 2), []int{2, 2, 3}, func(at []int) float64 {
		return float64(10*[][]int{{2, 1}, {2, 2}}[at[0]][at[1]] + at[2])
	})
	require.Equal(t, []int{4, 2, 0}, Embedding(constants(Tensor{[]int{1, 0}, nil})[0], make([]int, 8), 4, 2).shape)
}

// MatMul has the bits of the textbook loop: for sizes on both sides of gonum's
// block of 64, which switches it to goroutines, for zeros, which it skips, for
// Inf, and for all transpositions and batches.
func TestMatMulValues(t *testing.T) {
	sizes := []int{0, 1, 2, 3, 5, 8}
	large := []int{63, 64, 65, 130}
	rapid.Check(t, func(t *rapid.T) {
		g := newGen(t)
		pick := sizes
		if g.int("large", 0, 9) == 0 {
			pick = large
		}
		m := rapid.SampledFrom(pick).Draw(t, "m")
		k := rapid.SampledFrom(pick).Draw(t, "k")
		n := rapid.SampledFrom(pick).Draw(t, "n")
		ta, tb := rapid.Bool().Draw(t, "transA"), rapid.Bool().Draw(t, "transB")
		lead := []int{}
		if k < 63 {
			lead = g.shape(0, 2)
		}
		infinite := rapid.Bool().Draw(t, "infinite") // takes the plain loop
		value := func(i int, r *rand.Rand) float64 {
			switch k := r.IntN(16); {
			case k < 4:
				return 0
			case k == 4 && infinite:
				return math.Inf(1 - 2*r.IntN(2))
			}
			return plain(i, r)
		}
		sa, sb := []int{m, k}, []int{k, n}
		if ta {
			sa = []int{k, m}
		}
		if tb {
			sb = []int{n, k}
		}
		a, b := g.tensor(append(g.thinner(lead), sa...), value), g.tensor(append(g.thinner(lead), sb...), value)
		x := constants(a, b)
		y := MatMul(x[0], x[1], ta, tb)
		requireElements(t, y, append([]int{}, y.shape...), func(at []int) float64 {
			rank := len(at)
			i, j := at[rank-2], at[rank-1]
			var sum float64
			for l := range k {
				ia, ib := append(slices.Clone(at[:rank-2]), i, l), append(slices.Clone(at[:rank-2]), l, j)
				if ta {
					ia[rank-2], ia[rank-1] = l, i
				}
				if tb {
					ib[rank-2], ib[rank-1] = j, l
				}
				sum += float64(element(a, ia...) * element(b, ib...))
			}
			return sum
		})
	})
}

// 0·NaN and 0·Inf are NaN in every transposition, in the value and in both
// rules. Gemm alone would lose them.
func TestMatMulKeepsNaN(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for mask := range 4 {
			ta, tb := mask&1 != 0, mask&2 != 0
			for _, left := range []bool{true, false} {
				zero, poison := []float64{0, 0, 0, 0}, []float64{1, bad, 1, 1}
				var tape Tape
				a, b := tape.Param(zero, 2, 2), tape.Param(poison, 2, 2)
				if left {
					a, b = b, a
				}
				y := MatMul(a, b, ta, tb)
				require.Equal(t, 2, countNaN(y.data), "value, transA %v transB %v left %v", ta, tb, left)
				require.Equal(t, 2, countNaN(JVP(y, []*Var{a, b}, [][]float64{zero, zero})), "tangent")
				Backward(y, zero)
				require.Equal(t, 2, countNaN(append(a.Grad(), b.Grad()...)), "cotangent")
			}
		}
	}
	for m := 1; m <= 2; m++ { // fewer rows than columns, the second operand by columns
		var tape Tape
		b := tape.Const([]float64{1, 1, 1, math.NaN(), 1, 1}, 3, 2)
		require.Equal(t, m, countNaN(MatMul(tape.Const(make([]float64, 2*m), m, 2), b, false, true).data))
	}
	c := blas64.General{Rows: 1, Cols: 1, Stride: 1, Data: []float64{0}}
	blas64.Gemm(blas.NoTrans, blas.NoTrans, 1,
		blas64.General{Rows: 1, Cols: 1, Stride: 1, Data: []float64{0}},
		blas64.General{Rows: 1, Cols: 1, Stride: 1, Data: []float64{math.NaN()}}, 1, c)
	require.Zero(t, c.Data[0], "gonum skips zeros; if no longer, mulAdd needs no plain loop")
}

func countNaN(x []float64) (n int) {
	for _, v := range x {
		if math.IsNaN(v) {
			n++
		}
	}
	return n
}
