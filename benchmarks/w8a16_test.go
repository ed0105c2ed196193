package benchmarks

import (
	"testing"

	"plumbline/accel/bf16"
)

// BenchmarkW8A16 is the linear layer of bfloat16 activations and int8 weights.
func BenchmarkW8A16(b *testing.B) {
	products(b, "bf16.W8A16", "peak/bf16", func(m, n, k int) func() {
		x, w, y, scale := numbers[float32](m*k), numbers[int8](n*k), make([]float32, m*n), numbers[float32](n)
		return func() { bf16.W8A16(y, n, x, k, w, k, scale, nil, m, n, k) }
	})
}

// BenchmarkW8A16DX is its gradient for the activations.
func BenchmarkW8A16DX(b *testing.B) {
	products(b, "bf16.W8A16DX", "peak/bf16", func(m, n, k int) func() {
		dy, w, dx, scale := numbers[float32](m*n), numbers[int8](n*k), make([]float32, m*k), numbers[float32](n)
		return func() { bf16.W8A16DX(dx, k, dy, n, w, k, scale, m, n, k, false) }
	})
}
