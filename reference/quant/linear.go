package quant

import (
	"cmp"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

const (
	badMode   = "quant: unknown mode"
	badColumn = "quant: outlier columns must be ascending and inside the matrix"
)

// Mode is how a linear layer with an int8 weight treats its activations.
type Mode int

const (
	// W8A16 keeps them in their 16-bit type: y = (x·codesᵀ)·absmax/127.
	W8A16 Mode = iota
	// W8A8 quantises them row by row, but for the columns in Linear.Columns, which stay in their type.
	W8A8
	// LLMInt8 quantises them row by row after a cast to Float16, but for the outlier columns of the batch, which stay in their
	// type. Dettmers et al. 2022, Section 3; bitsandbytes@0.50.2 MatMul8bitLt.
	LLMInt8
)

// Linear is a linear layer y = x·Wᵀ + b with an int8 weight.
type Linear struct {
	Weight *Int8     // [out, in]
	Bias   []float64 // [out]; nil: none
	Mode   Mode
	Type   Type // of the activations
	// Threshold is where an activation is an outlier; only LLMInt8. 0: there are no outliers. The paper and transformers have
	// 6, the class of bitsandbytes has 0.
	Threshold float64
	Columns   []int // ascending columns that W8A8 does not quantise
	// Inv127 dequantises the weight where the activation is not quantised, 0 means [Inv127]; Inv127Squared dequantises the
	// product where it is, 0 means [Inv127Squared].
	Inv127, Inv127Squared float64
}

// Forward stores in y [n, out] the outputs for the activations x [n, in], rounded to Type first:
//
//	W8A16   y_ij = absmax_j·inv127·Σ_k x_ik·code_jk + b_j
//	others  y_ij = absmax_j·absmax(x)_i·inv127²·Σ_k code(x)_ik·code_jk + b_j + Σ_{k∈O} x_ik·w_jk
//
// where O are the columns that are not quantised: they are 0 in the first sum, and in the second x keeps its type and w_jk is
// code_jk·absmax_j·inv127 rounded to it. The sums are of exact integers, and of float64. A framework's output is rounded to its
// type; y is not.
//
// It panics if the lengths do not fit.
func (l *Linear) Forward(y, x []float64, n int) {
	w := l.Weight
	w.check()
	shaped(x, n, w.Cols)
	shaped(y, n, w.Rows)
	if l.Bias != nil && len(l.Bias) != w.Rows {
		panic(badLength)
	}
	inv127, squared := cmp.Or(l.Inv127, Inv127), cmp.Or(l.Inv127Squared, Inv127Squared)
	in := make([]float64, len(x))
	for i, v := range x {
		in[i] = l.Type.Round(v)
	}
	switch l.Mode {
	case W8A16:
		codes := make([]float64, len(w.Codes))
		for i, c := range w.Codes {
			codes[i] = float64(c)
		}
		product(y, in, codes, n, w.Rows, w.Cols, blas.Trans)
		for i := range y {
			y[i] *= w.AbsMax[i%w.Rows] * inv127
		}
	case W8A8, LLMInt8:
		a, columns := l.quantize(in, n)
		for i, sum := range Product(a, w) {
			y[i] = float64(sum) * (a.AbsMax[i/w.Rows] * w.AbsMax[i%w.Rows]) * squared
		}
		for i := range y {
			for _, k := range columns {
				row := i % w.Rows
				weight := l.Type.Round(float64(w.Codes[row*w.Cols+k]) * w.AbsMax[row] * inv127)
				y[i] += float64(in[i/w.Rows*w.Cols+k] * weight)
			}
		}
	default:
		panic(badMode)
	}
	if l.Bias != nil {
		for i := range y {
			y[i] += l.Bias[i%w.Rows]
		}
	}
}

// quantize returns the codes of the activations and the columns that have none.
func (l *Linear) quantize(x []float64, n int) (*Int8, []int) {
	cols := l.Weight.Cols
	if l.Mode == LLMInt8 {
		return QuantizeOutliers(x, n, cols, Float16, l.Threshold)
	}
	rest := slices.Clone(x)
	for at, k := range l.Columns {
		if k < 0 || k >= cols || at > 0 && k <= l.Columns[at-1] {
			panic(badColumn)
		}
		for i := range n {
			rest[i*cols+k] = 0
		}
	}
	return Quantize(rest, n, cols, l.Type), l.Columns
}

// Backward stores in dx [n, in] the gradient for the activations from dy [n, out]:
//
//	dx_ik = Σ_j dy_ij·code_jk·absmax_j·inv127
//
// Rounding to codes and to types has no gradient of its own: in every mode the layer is differentiated as if it were
// x·dequantise(W)ᵀ + b, as MatMul8bitLt of bitsandbytes@0.50.2 does. The bias takes Σ_i dy_ij; the weight has no gradient. It
// panics if the lengths do not fit.
func (l *Linear) Backward(dx, dy []float64, n int) {
	w := l.Weight
	w.check()
	shaped(dx, n, w.Cols)
	shaped(dy, n, w.Rows)
	inv127 := cmp.Or(l.Inv127, Inv127)
	weight := make([]float64, len(w.Codes))
	w.Dequantize(weight, inv127)
	product(dx, dy, weight, n, w.Cols, w.Rows, blas.NoTrans)
}

// product stores a·b in dst [n, m]: a is [n, k] and b is [k, m], or [m, k] where it is to be transposed.
func product(dst, a, b []float64, n, m, k int, t blas.Transpose) {
	clear(dst)
	if n == 0 || m == 0 || k == 0 {
		return
	}
	rows, cols := k, m
	if t == blas.Trans {
		rows, cols = m, k
	}
	blas64.Gemm(blas.NoTrans, t, 1, general(a, n, k), general(b, rows, cols), 0, general(dst, n, m))
}

func general(x []float64, rows, cols int) blas64.General {
	return blas64.General{Rows: rows, Cols: cols, Stride: max(1, cols), Data: x}
}
