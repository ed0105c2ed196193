package benchmarks

import (
	"testing"

	"plumbline/accel/i8"
)

// BenchmarkI8Gemm is the exact product of int8 codes.
func BenchmarkI8Gemm(b *testing.B) {
	products(b, "i8.Gemm", "peak/i8", func(m, n, k int) func() {
		x, w, y := numbers[int8](m*k), numbers[int8](n*k), make([]int32, m*n)
		return func() { i8.Gemm(y, n, x, k, w, k, m, n, k) }
	})
}

// BenchmarkW8A8 is that product with scales and the quantisation of the activations before it.
func BenchmarkW8A8(b *testing.B) {
	products(b, "i8.GemmScaled", "peak/i8", func(m, n, k int) func() {
		x, w, y := numbers[float32](m*k), numbers[int8](n*k), make([]float32, m*n)
		codes, sx, sw := make([]int8, m*k), make([]float32, m), numbers[float32](n)
		return func() {
			i8.QuantizeRows(codes, k, sx, x, k, m, k)
			i8.Scales(sx, sx)
			i8.GemmScaled(y, n, codes, k, sx, w, k, sw, nil, m, n, k)
		}
	})
}

// BenchmarkQuantizeRows quantises 4 million elements; an operation is one of them.
func BenchmarkQuantizeRows(b *testing.B) {
	const rows, cols = 1024, 4096
	x, codes, absmax := numbers[float32](rows*cols), make([]int8, rows*cols), make([]float32, rows)
	variants(b, "i8.QuantizeRows", "1024x4096", "", rows*cols, func() { i8.QuantizeRows(codes, cols, absmax, x, cols, rows, cols) })
}
