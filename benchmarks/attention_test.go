package benchmarks

import (
	"testing"

	"plumbline/accel/cpu"
	"plumbline/accel/f32"
)

// BenchmarkAttention measures one sequence of 256 tokens with the heads of SmolLM2-135M, 9 that share 3 of keys and values.
func BenchmarkAttention(b *testing.B) {
	const time, heads, kvHeads, dim = 256, 9, 3, 64
	a := f32.Attention{Heads: heads, KVHeads: kvHeads, Dim: dim, Scale: 0.125, Causal: true}
	draw := func(name string, n int) []float32 {
		x := make([]float32, n)
		_ = random(name, x, 0)
		return x
	}
	q, k, v, dy := draw("q", time*heads*dim), draw("kk", time*kvHeads*dim), draw("vvv", time*kvHeads*dim), draw("dydy", time*heads*dim)
	y, dk, dv := make([]float32, len(q)), make([]float32, len(k)), make([]float32, len(v))
	var w f32.Scratch
	for _, c := range []struct {
		name string
		f    func(kv int)
	}{
		{"forward", func(kv int) { a.Forward(y, q, k, v, kv, &w) }},
		{"backward", func(kv int) { a.Backward(y, dk, dv, dy, q, k, v, kv, &w) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			start := cpu.Time()
			for b.Loop() {
				for kv := range kvHeads {
					c.f(kv)
				}
			}
			b.ReportMetric(float64((cpu.Time()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}
