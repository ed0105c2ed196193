// Package benchmarks times what plumbline does. Results of named machines are in results/, in Go's benchmark format.
package benchmarks

import (
	"bufio"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/verify/check"
	"plumbline/verify/projection"
)

// BenchmarkProjection judges a basis of 500,000 × 32 with a raw gradient given as its own projection, so that every pass
// over the file is made, and one more that looks for what makes it not orthonormal. Bytes are those of the basis.
func BenchmarkProjection(b *testing.B) {
	const d, k = 500_000, 32
	r := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		name      string
		dtype     format.DType
		transpose bool
	}{{"f32", format.F32, false}, {"f64", format.F64, false}, {"bf16", format.BF16, false}, {"f16", format.F16, false}, {"f32/stored-transposed", format.F32, true}} {
		dir := b.TempDir()
		path := filepath.Join(dir, "q.npy")
		shape := []int{d, k}
		if c.transpose {
			shape = []int{k, d}
		}
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		w := bufio.NewWriter(f)
		w.Write(npy.Header(c.dtype, shape))
		row := make([]float64, k)
		var raw []byte
		for range d {
			for j := range row {
				row[j] = r.NormFloat64() / 707 // norm about 1: not orthonormal, which costs the same
			}
			raw = format.Encode(raw[:0], row, c.dtype)
			w.Write(raw)
		}
		if err := w.Flush(); err != nil {
			b.Fatal(err)
		}
		f.Close()
		g := make([]float64, d)
		for i := range g {
			g[i] = r.NormFloat64()
		}
		if err := npy.WriteFile(filepath.Join(dir, "g.npy"), format.F32, []int{d}, g); err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			info, err := os.Stat(path)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(info.Size())
			for b.Loop() {
				l, err := projection.Load(b.Context(), projection.Paths{Basis: path, Grads: []string{filepath.Join(dir, "g.npy")}, Projected: []string{filepath.Join(dir, "g.npy")},
					Reader: npy.Options{AssumeBF16: true}})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := projection.Suite.Run(l.Input, check.Selection{}); err != nil {
					b.Fatal(err)
				}
				l.Close()
			}
		})
	}
}
