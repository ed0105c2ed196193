// Package f64 holds the kernels of float64 tensors.
package f64

import "plumbline/accel"

// GemmFunc is the type of [Gemm].
type GemmFunc = accel.GemmFunc[float64]

var gemm = accel.New("f64.Gemm", gemmGeneric, accel.TestGemm(gemmGeneric))

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
