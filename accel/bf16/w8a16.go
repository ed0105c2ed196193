// Package bf16 holds the products of bfloat16 activations with int8 weights, and the format's rounding.
//
// An int8 code is a bfloat16 number, and the product of two bfloat16 numbers is a float32 number unless it overflows: the only
// roundings of a sum are those of its additions.
package bf16

import (
	"fmt"
	"math"

	"plumbline/accel"
)

// Round returns x rounded to bfloat16, half to even: infinite beyond the largest number, NaN for NaN.
func Round(x float32) float32 {
	u := math.Float32bits(x)
	if x != x {
		return math.Float32frombits((u | 1<<22) &^ (1<<16 - 1)) // quiet, and with a payload that survives
	}
	u += 1<<15 - 1 + u>>16&1
	return math.Float32frombits(u &^ (1<<16 - 1))
}

// ForwardFunc is the type of [W8A16].
type ForwardFunc = func(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int)

// BackwardFunc is the type of [W8A16DX].
type BackwardFunc = func(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool)

var (
	forward  = accel.New("bf16.W8A16", forwardGeneric, testForward)
	backward = accel.New("bf16.W8A16DX", backwardGeneric, testBackward)
)

// W8A16 stores in y [m, n] the outputs of a linear layer for the activations x [m, k], with the weight of codes w [n, k] and
// scales [n], plus a bias [n] if it is not nil:
//
//	y_ij = fl(fl(Σ_k bf16(x_ik)·w_jk)·scale_j + bias_j)
//
// where fl rounds to float32 (after the multiplication and after the addition) and bf16 to bfloat16, half to even. Matrices are
// row-major, a row of x starts ldx elements after the one before; what lies between rows is neither read nor written.
//
// A sum is one chain of fused multiply-adds in float32 in the order of k, which starts with +0: every variant but amx returns the same
// bits. The variant amx takes 32 products at a time, those of even k as one chain, those of odd k as another, each from +0; their sum is added
// to what the products before them gave. A row with a number that is not 0 and below 2⁻¹¹⁹, whose sums could be subnormal, is a chain there,
// too. All return the same bits for any number of goroutines, and a row gives the same outputs alone as among others. On the rounded activations, with
// u = 2⁻²⁴ and S = Σ|bf16(x)·w|, the error is at most |scale|·(k·u·S + k·2⁻¹⁴⁹) + u·|y| (2u with a bias). NaN and infinities
// spread as IEEE 754 says, also where a code is 0.
//
// y must not overlap x. W8A16 panics if a matrix does not fit its slice.
func W8A16(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	accel.CheckMatrix("bf16.W8A16: y", len(y), m, n, ldy)
	accel.CheckMatrix("bf16.W8A16: x", len(x), m, k, ldx)
	accel.CheckMatrix("bf16.W8A16: w", len(w), n, k, ldw)
	if len(scale) < n || bias != nil && len(bias) < n {
		panic("accel: bf16.W8A16: the scales or the bias are too short")
	}
	if k == 0 {
		ldx, ldw = 0, 0
	}
	if m > 0 && n > 0 {
		forward.Func()(y, ldy, x, ldx, w, ldw, scale, bias, m, n, k)
	}
}

// W8A16DX stores in dx [m, k] the gradient for the activations of [W8A16] from the gradient dy [m, n] for its outputs, or adds it:
//
//	dx_ik = (accumulate ? dx_ik : 0) + Σ_j bf16(fl(dy_ij·scale_j))·w_jk
//
// The scale goes into dy, so that the weight stays exact. A sum is one chain of fused multiply-adds in float32 in the order of j,
// which starts with dx_ik or +0; what is said of bits in W8A16 holds here (a row is a chain in every variant also where a dx_ik that is added to
// is not 0 and below 2⁻¹⁰³). On the rounded dy·scale, with u = 2⁻²⁴ and
// S = |dx_ik| + Σ_j|bf16(dy·scale)·w|, the error is at most n·u·S + n·2⁻¹⁴⁹.
//
// dx must not overlap dy. W8A16DX panics if a matrix does not fit its slice.
func W8A16DX(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	accel.CheckMatrix("bf16.W8A16DX: dx", len(dx), m, k, lddx)
	accel.CheckMatrix("bf16.W8A16DX: dy", len(dy), m, n, lddy)
	accel.CheckMatrix("bf16.W8A16DX: w", len(w), n, k, ldw)
	if len(scale) < n {
		panic("accel: bf16.W8A16DX: the scales are too short")
	}
	if m > 0 && k > 0 {
		backward.Func()(dx, lddx, dy, lddy, w, ldw, scale, m, n, k, accumulate)
	}
}

// testCase is a layer larger than a register tile in every direction.
func testCase(m, n, k int) (x []float32, w []int8, scale []float32) {
	x, w, scale = make([]float32, m*max(n, k)), make([]int8, n*k), make([]float32, n)
	for i := range x {
		x[i] = float32(i*7919%1009-504) / 331
	}
	for i := range w {
		w[i] = int8(i*6007%255 - 127)
	}
	for i := range scale {
		scale[i] = 1 / float32(i+3)
	}
	return x, w, scale
}

func testForward(f ForwardFunc) error { return testForwardAs(f, forwardGeneric) }

func testForwardAs(f, as ForwardFunc) error {
	const m, n, k = 7, 19, 101
	x, w, scale := testCase(m, n, k)
	want, got := make([]float32, m*n), make([]float32, m*n)
	as(want, n, x, k, w, k, scale, scale, m, n, k)
	f(got, n, x, k, w, k, scale, scale, m, n, k)
	return equal(got, want)
}

func testBackward(f BackwardFunc) error { return testBackwardAs(f, backwardGeneric) }

func testBackwardAs(f, as BackwardFunc) error {
	const m, n, k = 7, 75, 21
	dy, w, scale := testCase(m, n, k)
	want, got := make([]float32, m*k), make([]float32, m*k)
	as(want, k, dy, n, w, k, scale, m, n, k, false)
	f(got, k, dy, n, w, k, scale, m, n, k, false)
	return equal(got, want)
}

func equal(got, want []float32) error {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("element %d of a product is %v, not %v", i, got[i], want[i])
		}
	}
	return nil
}
