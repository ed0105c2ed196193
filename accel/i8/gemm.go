package i8

import (
	"fmt"

	"plumbline/accel"
)

// MaxK is the longest sum of products of codes in [−127, 127] that int32 holds: 133,144·127² < 2³¹. With −128 among the codes it
// is 131,071.
const MaxK = 133144

// GemmFunc is the type of [Gemm].
type GemmFunc = func(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int)

// ScaledFunc is the type of [GemmScaled].
type ScaledFunc = func(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int)

var (
	gemm   = accel.New("i8.Gemm", gemmGeneric, testGemm)
	scaled = accel.New("i8.GemmScaled", scaledGeneric, testScaled)
)

// Gemm stores in c [m, n] the product of a [m, k] and the transpose of b [n, k]:
//
//	c_ij = Σ_k a_ik·b_jk
//
// Matrices are row-major, a row of x starts ldx elements after the one before; what lies between rows is neither read nor written.
// The sums are exact, so that every variant returns the same bits. (With −128 among the codes and k above 131,071 a sum may not
// fit; it is then taken modulo 2³².) With k = 0 it is 0.
//
// c must not overlap a or b. Gemm panics if k exceeds [MaxK] or a matrix does not fit its slice.
func Gemm(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
	checkGemm("i8.Gemm", len(c), ldc, len(a), lda, len(b), ldb, m, n, k)
	if k == 0 {
		lda, ldb = 0, 0
	}
	if m > 0 && n > 0 {
		gemm.Func()(c, ldc, a, lda, b, ldb, m, n, k)
	}
}

// GemmScaled stores in y [m, n] the product of two quantised matrices, a [m, k] with the scales scaleA [m] and the transpose of
// b [n, k] with the scales scaleB [n], plus a bias [n] if it is not nil:
//
//	y_ij = fl(fl(fl(fl(Σ_k a_ik·b_jk)·scaleA_i)·scaleB_j) + bias_j)
//
// where the sum is that of [Gemm] and fl rounds to float32. It is the linear layer in mode w8a8. Every variant returns the same
// bits. With u = 2⁻²⁴ the error is at most |y|·3u (2u where the sum is at most 2²⁴), and u·|y| more for the bias, while no
// product falls below 2⁻¹²⁶. A scale that is NaN or infinite makes its row or column so, or NaN.
//
// It panics as Gemm does, and if a scale or bias is short.
func GemmScaled(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int) {
	checkGemm("i8.GemmScaled", len(y), ldy, len(a), lda, len(b), ldb, m, n, k)
	if len(scaleA) < m || len(scaleB) < n || bias != nil && len(bias) < n {
		panic("accel: i8.GemmScaled: a scale or the bias is too short")
	}
	if k == 0 {
		lda, ldb = 0, 0
	}
	if m > 0 && n > 0 {
		scaled.Func()(y, ldy, a, lda, scaleA, b, ldb, scaleB, bias, m, n, k)
	}
}

func checkGemm(name string, lenC, ldc, lenA, lda, lenB, ldb, m, n, k int) {
	accel.CheckMatrix(name+": c", lenC, m, n, ldc)
	accel.CheckMatrix(name+": a", lenA, m, k, lda)
	accel.CheckMatrix(name+": b", lenB, n, k, ldb)
	if k > MaxK {
		panic(fmt.Sprintf("accel: %s: a sum of %d products can exceed int32; at most %d", name, k, MaxK))
	}
}

// testOperands are codes among which every product of extremes occurs side by side.
func testOperands() (a, b []int8, m, n, k int) {
	m, n, k = 7, 19, 67
	a, b = make([]int8, m*k), make([]int8, n*k)
	for i := range a {
		a[i] = int8(i*7919%255 - 127)
	}
	for i := range b {
		b[i] = int8(i*6007%255 - 127)
	}
	for i := range 2 * k { // rows 0 and 1
		a[i], b[i] = 127, -127
	}
	return a, b, m, n, k
}

func testGemm(f GemmFunc) error {
	a, b, m, n, k := testOperands()
	want, got := make([]int32, m*n), make([]int32, m*n)
	gemmGeneric(want, n, a, k, b, k, m, n, k)
	for _, rows := range []int{m, 1} { // many rows and one may take two ways
		clear(got)
		f(got, n, a, k, b, k, rows, n, k)
		for i := range rows * n {
			if got[i] != want[i] {
				return fmt.Errorf("element %d of a product is %d, not %d", i, got[i], want[i])
			}
		}
	}
	return nil
}

func testScaled(f ScaledFunc) error {
	a, b, m, n, k := testOperands()
	s := make([]float32, m+n)
	for i := range s {
		s[i] = 1 / float32(i+3)
	}
	want, got := make([]float32, m*n), make([]float32, m*n)
	scaledGeneric(want, n, a, k, s[:m], b, k, s[m:], s[:n], m, n, k)
	f(got, n, a, k, s[:m], b, k, s[m:], s[:n], m, n, k)
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("element %d of a product is %v, not %v", i, got[i], want[i])
		}
	}
	return nil
}
