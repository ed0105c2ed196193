//go:build slow

package dump

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// TestManyFiles opens a run of 10,000 files within 10 s and without keeping them: less than 32 MiB stay.
func TestManyFiles(t *testing.T) {
	const steps = 10_000
	dir := t.TempDir()
	m := Meta{Framework: "trl", Algorithm: "grpo", WorldSize: 1}
	for i := range 60 {
		m.Options = append(m.Options, Option{fmt.Sprintf("option_%d", i), float64(i)})
		m.Scalars = append(m.Scalars, Scalar{fmt.Sprintf("scalar_%d", i), float64(i)})
	}
	for m.Step = range steps { // not by WriteFile, which waits for the disk
		text, err := m.appendJSON(nil)
		require.NoError(t, err)
		put(t, join(dir, fmt.Sprintf("step_%d.safetensors", m.Step)), string(text), mask("response_mask", "0111"), f32("logp_new", 0, 1, 4))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	r, err := Open(t.Context(), []string{dir})
	took := time.Since(start)
	require.NoError(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Len(t, r.Steps(), steps)
	start = time.Now()
	n := 0
	for b, err := range r.Batches(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, n, b.Meta.Step)
		n++
	}
	t.Logf("%d files: opened in %v, %d bytes kept; all batches read in %v", steps, took, int64(after.HeapAlloc)-int64(before.HeapAlloc), time.Since(start))
	require.Less(t, took, 10*time.Second)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(32<<20))
	runtime.KeepAlive(r)
}

// TestLargeBatch reads 1024 × 1024 cells of nine float32 tensors within 3 s and 1 GiB.
func TestLargeBatch(t *testing.T) {
	const n = 1024
	rnd := rand.New(rand.NewPCG(1, 2))
	bits := make([]bool, n*n)
	for i := range bits {
		bits[i] = rnd.IntN(4) > 0
	}
	tensors := []*Tensor{NewMask("response_mask", n, n, bits)}
	data := make([]float64, n*n)
	for i := range data {
		data[i] = rnd.NormFloat64()
	}
	for _, name := range []string{"logp_new", "logp_old", "logp_gen", "logp_ref", "kl", "entropy", "token_loss", "dlogp", "advantages"} {
		tensors = append(tensors, tensor(name, format.F32, []int{n, n}, data...))
	}
	path := join(t.TempDir(), "a.safetensors")
	require.NoError(t, WriteFile(path, Meta{}, tensors...))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	b := mustBatch(t, path)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	t.Logf("%d × %d, %d tensors: %v, %d MiB allocated", b.Rows, b.Cols, len(b.Tensors), took, (after.TotalAlloc-before.TotalAlloc)>>20)
	require.Less(t, took, 3*time.Second)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30))
}
