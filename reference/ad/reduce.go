package ad

import (
	"math"
	"slices"
)

// Sum returns the sum of x over the given axes, over all if none is given.
// With keepdims the axes stay as 1, otherwise they go. The sum of nothing is 0.
//
//	JVP  ẏ = Σ ẋ
//	VJP  x̄ = ȳ, repeated along the summed axes
func Sum(x *Var, keepdims bool, axes ...int) *Var {
	shape := x.shape
	kept, gone := reduced("sum", x.shape, axes)
	stride := spread("sum", kept, x.shape)
	add := func(sum, x []float64) {
		walk(shape, stride, func(i, j, n, s int) {
			for k, v := range x[i : i+n] {
				sum[j+k*s] += v
			}
		})
	}
	y := make([]float64, size(kept))
	add(y, x.data)

	v := record("sum", squeezed(kept, gone, keepdims), y, []*Var{x},
		func(dx [][]float64, dy []float64) { add(dy, dx[0]) },
		func(dy []float64, dx [][]float64) {
			walk(shape, stride, func(i, j, n, s int) {
				for k := range n {
					dx[0][i+k] += dy[j+k*s]
				}
			})
		})
	if len(y) > 0 {
		v.mag = func() []float64 { // n·Σ|x|
			m := make([]float64, len(y))
			add(m, absolute(x.data))
			return scaled(m, float64(len(x.data)/len(y)))
		}
	}
	return v
}

// Mean returns the mean of x over the given axes, over all if none is given:
// [Sum] divided by the number of elements. The mean of nothing is NaN.
func Mean(x *Var, keepdims bool, axes ...int) *Var {
	_, gone := reduced("mean", x.shape, axes)
	n := 1
	for i, g := range gone {
		if g {
			n *= x.shape[i]
		}
	}
	return Div(Sum(x, keepdims, axes...), x.tape.Scalar(float64(n)))
}

// MaxReduce returns the largest element of x along one axis, which stays as 1
// with keepdims and goes otherwise. It is NaN where x has a NaN, and −Inf over an
// empty axis.
//
//	JVP  ẏ = mean of ẋ over the elements that equal y
//	VJP  x̄ = ȳ/(number of those) at each of them, else 0
//
// Sharing a tie evenly is what torch.amax does. If y is NaN, the elements that
// equal it are the NaNs. A maximum that only shifts, as in [LogSumExp], should
// be detached.
func MaxReduce(x *Var, keepdims bool, axis int) *Var {
	kept, gone := reduced("maxreduce", x.shape, []int{axis})
	outer, n, inner := around(x.shape, axisOf("maxreduce", axis, len(x.shape)))

	y := make([]float64, outer*inner)
	for o := range outer {
		for p := range inner {
			m := math.Inf(-1)
			for i := range n {
				m = max(m, x.data[(o*n+i)*inner+p])
			}
			y[o*inner+p] = m
		}
	}
	// ties returns the places in x of the elements that equal y[o,p].
	ties := func(o, p int) (at []int) {
		m := y[o*inner+p]
		for i := range n {
			v := x.data[(o*n+i)*inner+p]
			if v == m || (math.IsNaN(v) && math.IsNaN(m)) {
				at = append(at, (o*n+i)*inner+p)
			}
		}
		return at
	}
	return record("maxreduce", squeezed(kept, gone, keepdims), y, []*Var{x},
		func(dx [][]float64, dy []float64) {
			for o := range outer {
				for p := range inner {
					at := ties(o, p)
					var sum float64
					for _, a := range at {
						sum += dx[0][a]
					}
					if len(at) > 0 {
						dy[o*inner+p] = sum / float64(len(at))
					}
				}
			}
		},
		func(dy []float64, dx [][]float64) {
			for o := range outer {
				for p := range inner {
					at := ties(o, p)
					for _, a := range at {
						dx[0][a] += dy[o*inner+p] / float64(len(at))
					}
				}
			}
		})
}

// CumSum returns the running sums y[i] = Σ_{j≤i} x[j] along one axis.
//
//	JVP  ẏ[i] = Σ_{j≤i} ẋ[j]
//	VJP  x̄[j] = Σ_{i≥j} ȳ[i]
func CumSum(x *Var, axis int) *Var {
	outer, n, inner := around(x.shape, axisOf("cumsum", axis, len(x.shape)))
	run := func(y, x []float64) {
		for o := range outer {
			for p := range inner {
				var sum float64
				for i := range n {
					sum += x[(o*n+i)*inner+p]
					y[(o*n+i)*inner+p] = sum
				}
			}
		}
	}
	y := make([]float64, len(x.data))
	run(y, x.data)
	v := record("cumsum", x.shape, y, []*Var{x},
		func(dx [][]float64, dy []float64) { run(dy, dx[0]) },
		func(dy []float64, dx [][]float64) {
			for o := range outer {
				for p := range inner {
					var sum float64
					for i := n - 1; i >= 0; i-- {
						sum += dy[(o*n+i)*inner+p]
						dx[0][(o*n+i)*inner+p] += sum
					}
				}
			}
		})
	v.mag = func() []float64 { // n·Σ|x|
		m := make([]float64, len(y))
		run(m, absolute(x.data))
		return scaled(m, float64(n))
	}
	return v
}

// reduced returns shape with 1 at the given axes, all of them if none is given,
// and which axes those are.
func reduced(op string, shape, axes []int) (kept []int, gone []bool) {
	kept, gone = slices.Clone(shape), make([]bool, len(shape))
	for i := range gone {
		gone[i] = len(axes) == 0
	}
	for _, a := range axes {
		a = axisOf(op, a, len(shape))
		if gone[a] {
			panic("ad: " + op + ": an axis is given twice")
		}
		gone[a] = true
	}
	for i, g := range gone {
		if g {
			kept[i] = 1
		}
	}
	return kept, gone
}

// squeezed returns kept without the axes that are gone, or as it is with
// keepdims.
func squeezed(kept []int, gone []bool, keepdims bool) []int {
	if keepdims {
		return kept
	}
	s := []int{}
	for i, d := range kept {
		if !gone[i] {
			s = append(s, d)
		}
	}
	return s
}
