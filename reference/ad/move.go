package ad

import (
	"fmt"
	"slices"
)

// BroadcastTo returns x repeated to a shape, under NumPy's rule: aligned at the
// last axis, an axis of x is equal to that of the shape, or 1, or absent.
//
//	JVP  ẏ = ẋ, repeated
//	VJP  x̄ = Σ ȳ over the copies of each element
func BroadcastTo(x *Var, shape ...int) *Var {
	if slices.Equal(x.shape, shape) {
		return x
	}
	shape = slices.Clone(shape)
	stride := spread("broadcast", x.shape, shape)
	repeat := func(y, x []float64) {
		walk(shape, stride, func(i, j, n, s int) {
			for k := range n {
				y[i+k] = x[j+k*s]
			}
		})
	}
	y := make([]float64, size(shape))
	repeat(y, x.data)
	return record("broadcast", shape, y, []*Var{x},
		func(dx [][]float64, dy []float64) { repeat(dy, dx[0]) },
		func(dy []float64, dx [][]float64) {
			walk(shape, stride, func(i, j, n, s int) {
				for k, d := range dy[i : i+n] {
					dx[0][j+k*s] += d
				}
			})
		})
}

// Reshape returns the elements of x, in row-major order, under another shape
// of the same size. One axis may be −1 and is then inferred.
//
//	JVP  ẏ = ẋ
//	VJP  x̄ = ȳ
func Reshape(x *Var, shape ...int) *Var {
	shape = slices.Clone(shape)
	if i := slices.Index(shape, -1); i >= 0 {
		shape[i] = 1
		if n := size(shape); n > 0 {
			shape[i] = len(x.data) / n
		}
	}
	if size(shape) != len(x.data) {
		panic(fmt.Sprintf("ad: reshape: shape %v does not fit %v", x.shape, shape))
	}
	return record("reshape", shape, x.data, []*Var{x},
		func(dx [][]float64, dy []float64) { copy(dy, dx[0]) },
		func(dy []float64, dx [][]float64) {
			for i, d := range dy {
				dx[0][i] += d
			}
		})
}

// Permute returns x with its axes reordered: axis i of the result is axis
// axes[i] of x. It panics unless axes is a permutation.
//
//	JVP  ẏ = ẋ, reordered
//	VJP  x̄ = ȳ, put back
func Permute(x *Var, axes ...int) *Var {
	rank := len(x.shape)
	if len(axes) != rank {
		panic(fmt.Sprintf("ad: permute: %d axes for shape %v", len(axes), x.shape))
	}
	shape, stride, seen := make([]int, rank), make([]int, rank), make([]bool, rank)
	from := strides(x.shape)
	for i, a := range axes {
		a = axisOf("permute", a, rank)
		if seen[a] {
			panic("ad: permute: an axis is given twice")
		}
		seen[a] = true
		shape[i], stride[i] = x.shape[a], from[a]
	}
	take := func(y, x []float64) {
		walk(shape, stride, func(i, j, n, s int) {
			for k := range n {
				y[i+k] = x[j+k*s]
			}
		})
	}
	y := make([]float64, len(x.data))
	take(y, x.data)
	return record("permute", shape, y, []*Var{x},
		func(dx [][]float64, dy []float64) { take(dy, dx[0]) },
		func(dy []float64, dx [][]float64) {
			walk(shape, stride, func(i, j, n, s int) {
				for k, d := range dy[i : i+n] {
					dx[0][j+k*s] += d
				}
			})
		})
}

// Transpose returns x with two axes exchanged. See [Permute].
func Transpose(x *Var, i, j int) *Var {
	axes := make([]int, len(x.shape))
	for k := range axes {
		axes[k] = k
	}
	i, j = axisOf("transpose", i, len(axes)), axisOf("transpose", j, len(axes))
	axes[i], axes[j] = j, i
	return Permute(x, axes...)
}

// Slice returns the elements of x with from ≤ index < to along one axis.
//
//	JVP  ẏ = ẋ[from:to]
//	VJP  x̄[from:to] = ȳ, 0 elsewhere
func Slice(x *Var, axis, from, to int) *Var {
	axis = axisOf("slice", axis, len(x.shape))
	outer, n, inner := around(x.shape, axis)
	if from < 0 || to < from || to > n {
		panic(fmt.Sprintf("ad: slice: [%d:%d] of axis %d of shape %v", from, to, axis, x.shape))
	}
	shape, w := slices.Clone(x.shape), (to-from)*inner
	shape[axis] = to - from
	cut := func(y, x []float64) {
		for o := range outer {
			copy(y[o*w:(o+1)*w], x[(o*n+from)*inner:])
		}
	}
	y := make([]float64, outer*w)
	cut(y, x.data)
	return record("slice", shape, y, []*Var{x},
		func(dx [][]float64, dy []float64) { cut(dy, dx[0]) },
		func(dy []float64, dx [][]float64) {
			for o := range outer {
				for k, d := range dy[o*w : (o+1)*w] {
					dx[0][(o*n+from)*inner+k] += d
				}
			}
		})
}

// Concat returns the tensors xs one after the other along one axis. Their
// shapes agree in all other axes.
//
//	JVP  ẏ = the tangents one after the other, 0 for a constant
//	VJP  x̄ₖ = the part of ȳ that came from xₖ
func Concat(axis int, xs ...*Var) *Var {
	if len(xs) == 0 {
		panic("ad: concat: nothing to join")
	}
	axis = axisOf("concat", axis, len(xs[0].shape))
	shape := slices.Clone(xs[0].shape)
	shape[axis] = 0
	for _, x := range xs {
		if len(x.shape) != len(shape) {
			panic(fmt.Sprintf("ad: concat: shapes %v and %v", xs[0].shape, x.shape))
		}
		for i, d := range x.shape {
			if i != axis && d != shape[i] {
				panic(fmt.Sprintf("ad: concat: shapes %v and %v along axis %d", xs[0].shape, x.shape, axis))
			}
		}
		shape[axis] += x.shape[axis]
	}
	outer, n, inner := around(shape, axis)

	// each visits the rows of operand k: at in the result, and in the operand.
	each := func(f func(k, at, from, width int)) {
		start := 0
		for k, x := range xs {
			w := x.shape[axis] * inner
			for o := range outer {
				f(k, o*n*inner+start, o*w, w)
			}
			start += w
		}
	}
	y := make([]float64, size(shape))
	each(func(k, at, from, w int) { copy(y[at:at+w], xs[k].data[from:]) })
	return record("concat", shape, y, slices.Clone(xs),
		func(dx [][]float64, dy []float64) {
			each(func(k, at, from, w int) {
				if dx[k] != nil {
					copy(dy[at:at+w], dx[k][from:])
				}
			})
		},
		func(dy []float64, dx [][]float64) {
			each(func(k, at, from, w int) {
				if dx[k] != nil {
					for i, d := range dy[at : at+w] {
						dx[k][from+i] += d
					}
				}
			})
		})
}
