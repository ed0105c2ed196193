//go:build slow

package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
)

// A basis of 2,000,000 × 32 float32 (256 MB) with a gradient: at most 3 s on 2 cores, with a Go heap under 256 MB, and
// the results are those of one piece.
//
// Orthonormal columns of that size come without a decomposition: column j is √(2/d)·cos(π(i + ½)(j + 1)/d), a row of the
// orthonormal discrete cosine transform (DCT-II).
func TestLargeBasis(t *testing.T) {
	const d, k = 2_000_000, 32
	dir := t.TempDir()
	path := filepath.Join(dir, "q.npy")
	f, err := os.Create(path)
	require.NoError(t, err)
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = w.Write(npy.Header(format.F32, []int{d, k}))
	require.NoError(t, err)
	row := make([]byte, 0, 4*k)
	norm := math.Sqrt(2.0 / d)
	for i := range d {
		row = row[:0]
		for j := range k {
			v := norm * math.Cos(math.Pi*(float64(i)+0.5)*float64(j+1)/d)
			row = binary.LittleEndian.AppendUint32(row, math.Float32bits(float32(v)))
		}
		_, err = w.Write(row)
		require.NoError(t, err)
	}
	require.NoError(t, w.Flush())
	require.NoError(t, f.Close())
	r := rand.New(rand.NewPCG(1, 1))
	g := make([]float64, d)
	for i := range g {
		g[i] = r.NormFloat64() / math.Sqrt(d)
	}
	require.NoError(t, npy.WriteFile(filepath.Join(dir, "g.npy"), format.F32, []int{d}, g))

	run := func(args ...string) (jsonForm, time.Duration, uint64) {
		cmd := exec.Command(binaryPath, append([]string{"projection", "--basis", "q.npy", "--grad", "g.npy", "--projected", "g.npy", "--format", "json"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1", "GOMAXPROCS=2", "GOGC=")
		var out, trace strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &trace
		started := time.Now()
		_ = cmd.Run() // exit 1: the gradient is not projected, so that every pass over Q is made
		took := time.Since(started)
		require.Equal(t, 1, cmd.ProcessState.ExitCode(), trace.String())
		var form jsonForm
		require.NoError(t, json.Unmarshal([]byte(out.String()), &form))
		return form, took, peakHeap(t, trace.String())
	}
	blocks, took, heap := run()
	for range 2 { // the best of three: other work on the machine only adds
		if _, again, _ := run(); again < took {
			took = again
		}
	}
	t.Logf("2,000,000 × 32 float32 with a gradient: %.2f s, Go heap at most %d MB", took.Seconds(), heap>>20)
	require.LessOrEqual(t, took, 3*time.Second)
	require.Less(t, heap, uint64(256<<20))

	whole, _, _ := run("--reference")
	bound := 2 * float64(d) * 0x1p-53
	for _, id := range []string{"basis/orthonormal", "gradient/component"} {
		require.InDelta(t, whole.find(t, id).Measured, blocks.find(t, id).Measured, bound, id)
	}
}

// peakHeap returns the largest heap before a collection that the runtime's trace shows, in bytes.
func peakHeap(t *testing.T, trace string) uint64 {
	t.Helper()
	var most uint64
	for line := range strings.Lines(trace) {
		// gc 3 @0.1s 1%: … 8->9->4 MB, 8 MB goal, …
		for _, part := range strings.Split(line, ", ") {
			sizes, ok := strings.CutSuffix(part, " MB")
			if !ok || !strings.Contains(sizes, "->") {
				continue
			}
			for _, s := range strings.Split(sizes[strings.LastIndex(sizes, " ")+1:], "->") {
				var n uint64
				for _, c := range s {
					if c < '0' || c > '9' {
						break
					}
					n = 10*n + uint64(c-'0')
				}
				most = max(most, n<<20)
			}
		}
	}
	require.NotZero(t, most, "no trace of the collector")
	return most
}
