package benchmarks

import (
	"fmt"
	"testing"

	"plumbline/accel"
	"plumbline/accel/cpu"
)

// variants runs f, which does so many operations, under every variant of an op that this machine has. The metrics are operations per
// second of wall time, and the share that a second of CPU time has of the probe, measured before and after.
func variants(b *testing.B, op, size, probe string, operations float64, f func()) {
	accel.Each(op, func(v accel.Variant) {
		b.Run(fmt.Sprintf("%s/%s", size, v.Name), func(b *testing.B) {
			if v.Missing != "" {
				b.Skip(v.Missing)
			}
			if v.Name == accel.Generic && operations > 1e9 {
				b.Skip("portable code takes seconds for it")
			}
			f()
			top := cpu.Peak(probe)
			before := cpu.Time()
			for b.Loop() {
				f()
			}
			used := (cpu.Time() - before).Seconds()
			top = max(top, cpu.Peak(probe))
			b.ReportMetric(1e9*used/float64(b.N), "cpu-ns/op")
			b.ReportMetric(operations*float64(b.N)/1e9/b.Elapsed().Seconds(), "Gop/s")
			if top > 0 {
				b.ReportMetric(100*operations*float64(b.N)/used/top, "%probe")
			}
		})
	})
}

// shapes are m, n and k of the products: a layer of 4096, one of Qwen2-0.5B, one of SmolLM2-135M, LoRA of rank 16, one token.
var shapes = [][3]int{{512, 4096, 4096}, {512, 896, 896}, {1024, 576, 576}, {1024, 16, 576}, {1, 4096, 4096}, {48, 64, 256}}

// products runs a product at all shapes; make returns it on operands of that shape.
func products(b *testing.B, op, probe string, make func(m, n, k int) func()) {
	for _, s := range shapes {
		variants(b, op, fmt.Sprintf("%dx%dx%d", s[0], s[1], s[2]), probe, 2*float64(s[0])*float64(s[1])*float64(s[2]), make(s[0], s[1], s[2]))
	}
}

// numbers are n numbers without a pattern that a kernel could profit from.
func numbers[T int8 | float32 | float64](n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(float64(i*7919%251-125) / float64(1+i%3))
	}
	return x
}
