package benchmarks

import (
	"strings"
	"testing"

	"plumbline/accel/cpu"
)

// BenchmarkPeak is what one core does at most, per second of CPU time.
func BenchmarkPeak(b *testing.B) {
	for _, p := range cpu.Probes() {
		b.Run(strings.TrimPrefix(p.Name, "peak/")+"/"+p.Level, func(b *testing.B) {
			p.Run(1000)
			before, done := cpu.Time(), 0.0
			for b.Loop() {
				done += p.Run(1_000_000)
			}
			b.ReportMetric(done/1e9/(cpu.Time()-before).Seconds(), "G"+p.Unit+"/s")
		})
	}
}
