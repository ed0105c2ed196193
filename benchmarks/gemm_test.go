package benchmarks

import (
	"testing"

	"plumbline/accel/f32"
	"plumbline/accel/f64"
)

// BenchmarkF32Gemm multiplies by the transpose of a weight [n, k].
func BenchmarkF32Gemm(b *testing.B) {
	products(b, "f32.Gemm", "peak/f32", func(m, n, k int) func() {
		x, w, y := numbers[float32](m*k), numbers[float32](n*k), make([]float32, m*n)
		return func() { f32.Gemm(y, n, x, k, w, k, m, n, k, false, true, false) }
	})
}

// BenchmarkF64Gemm is the same in float64.
func BenchmarkF64Gemm(b *testing.B) {
	products(b, "f64.Gemm", "peak/f64", func(m, n, k int) func() {
		x, w, y := numbers[float64](m*k), numbers[float64](n*k), make([]float64, m*n)
		return func() { f64.Gemm(y, n, x, k, w, k, m, n, k, false, true, false) }
	})
}
