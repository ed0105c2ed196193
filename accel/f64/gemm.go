// Package f64 holds the kernels of float64 tensors.
package f64

import (
	"fmt"

	"plumbline/accel"
)

// GemmFunc is the type of [Gemm].
type GemmFunc = func(c []float64, ldc int, a []float64, lda int, b []float64, ldb int, m, n, k int, transA, transB, accumulate bool)

var gemm = accel.New("f64.Gemm", gemmGeneric, testGemm)

// Gemm stores in the matrix c [m, n] the product of op(a) [m, k] and op(b) [k, n], or adds it:
//
//	c_ij = (accumulate ? c_ij : 0) + Σ_k op(a)_ik·op(b)_kj
//
// op(a) is a [m, k], or the transpose of a [k, m] if transA; op(b) is b [k, n], or the transpose of b [n, k] if transB. Matrices
// are row-major, a row of x starts ldx elements after the one before. What lies between rows is neither read nor written.
//
// An element is one chain of fused multiply-adds in the order of k, which starts with c_ij or +0: every variant returns the same
// bits, for any number of goroutines, and a row of a gives the same row of c alone as among others. With u = 2⁻⁵³ and
// S = |c_ij| + Σ|a·b| the error is at most k·u·S + k·2⁻¹⁰⁷⁴. NaN and infinities spread as IEEE 754 says. With k = 0 the sum is 0.
//
// c must not overlap a or b. Gemm panics if a matrix does not fit its slice.
func Gemm(c []float64, ldc int, a []float64, lda int, b []float64, ldb int, m, n, k int, transA, transB, accumulate bool) {
	accel.CheckMatrix("f64.Gemm: c", len(c), m, n, ldc)
	if transA {
		accel.CheckMatrix("f64.Gemm: a", len(a), k, m, lda)
	} else {
		accel.CheckMatrix("f64.Gemm: a", len(a), m, k, lda)
	}
	if transB {
		accel.CheckMatrix("f64.Gemm: b", len(b), n, k, ldb)
	} else {
		accel.CheckMatrix("f64.Gemm: b", len(b), k, n, ldb)
	}
	if m > 0 && n > 0 {
		gemm.Func()(c, ldc, a, lda, b, ldb, m, n, k, transA, transB, accumulate)
	}
}

// testGemm compares f with the generic twin, bit by bit, on a product of many columns and one of few.
func testGemm(f GemmFunc) error {
	const m, most, k = 14, 39, 11
	a, b := make([]float64, m*k), make([]float64, k*most)
	for i := range a {
		a[i] = float64(i*7919%1009-504) / 331
	}
	for i := range b {
		b[i] = float64(i*6007%1013-506) / 337
	}
	for _, n := range []int{most, 5} {
		want, got := make([]float64, m*n), make([]float64, m*n)
		gemmGeneric(want, n, a, k, b, n, m, n, k, false, false, false)
		f(got, n, a, k, b, n, m, n, k, false, false, false)
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("element %d of a product is %v, not %v", i, got[i], want[i])
			}
		}
	}
	return nil
}
