//go:build slow && unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/verify/check"
)

// long is the length of the vectors below: 2²⁴, so that 1/√long = 2⁻¹² is a number of every type and a column of it has
// the norm 1 exactly.
const long = 1 << 24

// repeated writes a file of head, then of the given numbers over and over until there are n, in chunks.
func repeated(path string, head []byte, numbers []float64, dtype format.DType, n int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = w.Write(head)
	unit := bytes.Repeat(format.Encode(nil, numbers, dtype), max(1, 4096/len(numbers)))
	for left := n * dtype.Size(); left > 0 && err == nil; left -= len(unit) {
		_, err = w.Write(unit[:min(left, len(unit))])
	}
	return errors.Join(err, w.Flush(), f.Close())
}

// column writes a basis of long rows and one column.
func column(path string, dtype format.DType) error {
	return repeated(path, npy.Header(dtype, []int{long, 1}), []float64{0x1p-12}, dtype, long)
}

// alternating is orthogonal to that column.
var alternating = []float64{1, -1}

// tensorHead is the head of a safetensors file of one tensor.
func tensorHead(dtype string, size int, shape ...int) []byte {
	dims, _ := json.Marshal(shape)
	return stBytes(fmt.Sprintf(`{"w":{"dtype":"%s","shape":%s,"data_offsets":[0,%d]}}`, dtype, dims, size), 0)
}

// in writes several files into a folder.
func in(files map[string]func(string) error) func(string) error {
	return func(dir string) error {
		err := os.MkdirAll(dir, 0o777)
		for name, write := range files {
			err = errors.Join(err, write(filepath.Join(dir, name)))
		}
		return err
	}
}

func bytesFile(b []byte) func(string) error {
	return func(path string) error { return os.WriteFile(path, b, 0o666) }
}

// deflated returns an archive of one member, n numbers that repeat.
func deflated(name string, head []byte, numbers []float64, dtype format.DType, n int) []byte {
	return npzBytes(member{name: name + ".npy", deflate: true, content: append(head, bytes.Repeat(format.Encode(nil, numbers, dtype), n/len(numbers))...)})
}

// Memory, time and length of the report where the files are large, or their number is.
func TestHostileLarge(t *testing.T) {
	basis := func(dtype format.DType) func(string) error {
		return func(path string) error { return column(path, dtype) }
	}
	half := npy.Header(format.F16, []int{long})
	sideHalf := func(path string) error { // one column of 4 rows, and 4 × 5,000,000 numbers, the first row 0
		return errors.Join(in(map[string]func(string) error{"q.npy": bytesFile(numpyFile(1, "<f8", false, "(4, 1)", format.Encode(nil, []float64{1, 0, 0, 0}, format.F64)))})(path),
			repeated(filepath.Join(path, "g.safetensors"), append(tensorHead("F16", 40_000_000, 4, 5_000_000), make([]byte, 10_000_000)...), []float64{1}, format.F16, 15_000_000))
	}
	adapter := func(path string) error {
		if err := os.MkdirAll(path, 0o777); err != nil {
			return err
		}
		return repeated(filepath.Join(path, "adapter_model.safetensors"), tensorHead("F16", 2*long, long), alternating, format.F16, long)
	}
	t4 := func(i int) string { return fmt.Sprintf("t%d", i) }
	lora := func(i int) string { return fmt.Sprintf("m%d.lora_%c.weight", i/2, 'A'+i%2) }
	pair := "--basis FILE/q.npy --grad FILE/g.safetensors --projected FILE/g.safetensors"
	two := bytesFile(numpyFile(1, "<f8", false, "(2, 1)", format.Encode(nil, []float64{1, 0}, format.F64)))
	spans := "[" + strings.TrimSuffix(strings.Repeat(`["a",0],`, 2_000_000), ",") + "]"
	for i, c := range []hostile{
		// Honest files.
		{name: "64 MB of float32", path: "q.npy", make: basis(format.F32), code: accepted, says: "nothing failed"},
		{name: "64 MB of float32, by column", path: "q.npy", code: accepted, says: "Fortran order",
			make: func(path string) error {
				return repeated(path, numpyFile(1, "<f4", true, fmt.Sprintf("(%d, 1)", long), nil), []float64{0x1p-12}, format.F32, long)
			}},
		{name: "64 MB of float32 with a gradient as long", path: "l", make: in(map[string]func(string) error{"q.npy": basis(format.F32),
			"g.npy": func(p string) error {
				return repeated(p, npy.Header(format.F32, []int{long}), alternating, format.F32, long)
			}}),
			args: "--basis FILE/q.npy --grad FILE/g.npy", code: accepted, says: "nothing failed"},
		{name: "32 MB of float16 with a basis as long", path: "h.safetensors", args: "--basis FILE.q.npy --grad FILE", code: accepted, says: "nothing failed",
			make: func(path string) error { // the basis is streamed, and does not count
				return errors.Join(column(path+".q.npy", format.F16), repeated(path, tensorHead("F16", 2*long, long), alternating, format.F16, long))
			}, open: "as below"},
		{name: "40 MB of float16 beside a small basis", path: "s", make: sideHalf, args: "--basis FILE/q.npy --grad FILE/g.safetensors", code: accepted, says: "nothing failed",
			open: "the elements and the bound on the storage error of each are held in float64: 8 bytes for each of the file"},
		{name: "an adapter in float16 and its init", path: "a", make: in(map[string]func(string) error{"q.npy": basis(format.F16), "w": adapter}), args: "--basis FILE/q.npy --adapter FILE/w --init FILE/w", code: accepted, says: "nothing was trained",
			open: "W, W_init, the difference and its storage error are held in float64 together"},
		{name: "header of 20 MB", path: "q.safetensors", code: accepted, says: "nothing failed",
			data: append(stBytes(`{"__metadata__":{"x":"`+strings.Repeat("x", 20_000_000)+`"},"Q":{"dtype":"F64","shape":[64,4],"data_offsets":[0,2048]}}`, 0), format.Encode(nil, cosines(64, 4), format.F64)...)},
		{name: "64 MB of float32, deflated", path: "q.npz", code: accepted, says: "nothing failed", inflated: 4 * long,
			data: deflated("Q", npy.Header(format.F32, []int{long, 1}), []float64{0x1p-12}, format.F32, long)},
		{name: "32 MB of float16, deflated, as a gradient", path: "z", code: accepted, says: "nothing failed", inflated: 2 * long,
			make: in(map[string]func(string) error{"q.npy": basis(format.F16), "g.npz": bytesFile(deflated("g", half, alternating, format.F16, long))}), args: "--basis FILE/q.npy --grad FILE/g.npz",
			open: "a member of 33 kB in float16 takes 10 bytes for each that it declares, so the budget of 1 GiB allows 10 GiB"},

		// Many.
		{name: "1,000,000 tensors, one to be named", path: "n.safetensors", data: named(1_000_000, t4, []int{1}, 1), code: check.ExitUsage, says: "holds 1000000 arrays"},
		{name: "1,000,000 tensors of another length", path: "n.safetensors", data: named(1_000_000, t4, []int{1}, 1), args: "--basis q.npy --grad FILE", says: "at most 131072 are judged"},
		{name: "60,000 tensors that fit", path: "n", make: in(map[string]func(string) error{"q.npy": two, "g.safetensors": bytesFile(named(60_000, t4, []int{2}, 0))}), args: "--basis FILE/q.npy --grad FILE/g.safetensors", code: check.ExitFail, says: "exactly 0 everywhere",
			open: "about 2 kB of results for each tensor"},
		{name: "20,000 pairs", path: "p", make: in(map[string]func(string) error{"q.npy": two, "g.safetensors": bytesFile(named(20_000, t4, []int{2}, 1))}), args: pair, code: check.ExitFail, says: "no-op",
			open: "about 10 kB of histograms and results for each pair"},
		{name: "40,000 lora gradients without an effect", path: "r", make: in(map[string]func(string) error{"q.npy": two, "w.safetensors": bytesFile(named(40_000, lora, []int{3}, 0))}), args: "--basis FILE/q.npy --adapter FILE/w.safetensors --grad FILE/w.safetensors", code: check.ExitFail, says: "gradient/flow",
			open: "about 1 kB for each tensor beside its name"},
		{name: "order of 2,000,000 tensors", path: "o.safetensors", data: orderFile(spans), args: "--basis FILE --grad g.npy", says: "more than 131072 tensors"},
		{name: "baseline of 5,000,000 results", path: "b.json", data: []byte(`{"schema_version":1,"results":[` + strings.TrimSuffix(strings.Repeat("{},", 5_000_000), ",") + "]}"), args: "--basis q.npy --baseline FILE", says: "without check or verdict"},
	} {
		c.path = fmt.Sprintf("%d-%s", i, c.path)
		t.Run(c.name, func(t *testing.T) {
			dir := hostileFolder(t)
			c.survive(t, dir, idle(t, dir), limits{took: patience, text: maxText})
		})
	}
}

func orderFile(order string) []byte {
	text, _ := json.Marshal(order)
	return append(stBytes(`{"__metadata__":{"order":`+string(text)+`},"Q":{"dtype":"F64","shape":[64,4],"data_offsets":[0,2048]}}`, 0), format.Encode(nil, cosines(64, 4), format.F64)...)
}

// started is a run that is still going on.
type started struct {
	*exec.Cmd
	out, errs bytes.Buffer
	ended     chan error
}

func start(t *testing.T, dir string, args ...string) *started {
	t.Helper()
	s := &started{Cmd: exec.Command(binaryPath, append([]string{"projection"}, args...)...), ended: make(chan error, 1)}
	s.Dir, s.Stdout, s.Stderr = dir, &s.out, &s.errs
	require.NoError(t, s.Start())
	go func() { s.ended <- s.Wait() }()
	return s
}

// within waits for the end.
func (s *started) within(limit time.Duration) bool {
	select {
	case <-s.ended:
		return true
	case <-time.After(limit):
		_ = s.Process.Kill()
		<-s.ended
		return false
	}
}

// A signal during a long run: exit code 130, soon, and the files are as they were.
func TestInterrupted(t *testing.T) {
	const d, k = 800_000, 64 // 200 MB
	dir := t.TempDir()
	require.NoError(t, repeated(filepath.Join(dir, "q.npy"), npy.Header(format.F32, []int{d, k}), cosines(1000, 4), format.F32, d*k))
	require.NoError(t, repeated(filepath.Join(dir, "g.npy"), npy.Header(format.F32, []int{d}), []float64{1, 2, -1}, format.F32, d))
	long := []string{"--basis", "q.npy", "--grad", "g.npy", "--projected", "g.npy"}
	for _, c := range []struct {
		name   string
		args   []string
		signal os.Signal
		after  time.Duration
	}{
		{"at once", long, os.Interrupt, 30 * time.Millisecond},
		{"in the first pass", long, os.Interrupt, 150 * time.Millisecond},
		{"SIGTERM", long, syscall.SIGTERM, 150 * time.Millisecond},
		{"with a report on stdout", append(long, "--format", "json"), os.Interrupt, 100 * time.Millisecond},
		{"while the basis is repaired", []string{"--basis", "q.npy", "--orthonormalize", "out.npy"}, os.Interrupt, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "old.txt"), []byte("old"), 0o666))
			if c.args[len(c.args)-1] != "json" {
				c.args = append(c.args, "--output", "old.txt")
			}
			s := start(t, dir, c.args...)
			time.Sleep(c.after)
			require.NoError(t, s.Process.Signal(c.signal))
			soon := s.within(3 * time.Second)
			require.True(t, soon, "still running 3 s after the signal")
			require.Equal(t, 130, s.ProcessState.ExitCode(), "%s%s", &s.out, &s.errs)
			if c.args[len(c.args)-1] == "json" {
				var r struct {
					Exit  int
					Error string
				}
				require.NoError(t, json.Unmarshal(s.out.Bytes(), &r))
				require.Equal(t, 130, r.Exit)
				require.Contains(t, r.Error, "interrupted")
			}
			old, err := os.ReadFile(filepath.Join(dir, "old.txt"))
			require.NoError(t, err)
			require.Equal(t, "old", string(old))
			noTemporary(t, dir)
		})
	}
	t.Run("a file that is cut while it is read", func(t *testing.T) {
		s := start(t, dir, long...)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, os.Truncate(filepath.Join(dir, "q.npy"), 1_000_000))
		require.True(t, s.within(2*patience))
		require.Equal(t, 3, s.ProcessState.ExitCode(), "%s%s", &s.out, &s.errs)
		require.Contains(t, s.out.String()+s.errs.String(), "unexpected EOF")
	})
}

func noTemporary(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".*tmp*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// The digest of a file of 40 GB, which is sparse here, does not outlive the run.
func TestInterruptedDigest(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "q.npy")
	require.NoError(t, os.WriteFile(path, npy.Header(format.F32, []int{5_000_000_000, 2}), 0o666))
	if err := os.Truncate(path, 40_000_000_000+128); err != nil {
		untried(t, "no sparse files: "+err.Error())
	}
	s := start(t, dir, "--basis", "q.npy")
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, s.Process.Signal(os.Interrupt))
	require.True(t, s.within(3*time.Second), "still running 3 s after the signal")
	require.Equal(t, 130, s.ProcessState.ExitCode(), "%s%s", &s.out, &s.errs)
}

// After a kill -9 the file is the old one or the new one.
func TestKilled(t *testing.T) {
	const d, k = 200_000, 16
	dir := t.TempDir()
	require.NoError(t, npy.WriteFile(filepath.Join(dir, "q.npy"), format.F32, []int{d, k}, cosines(d, k)))
	out := filepath.Join(dir, "out.npy")
	args := []string{"--basis", "q.npy", "--orthonormalize", "out.npy"}
	began := time.Now()
	s := start(t, dir, args...)
	require.True(t, s.within(6*patience))
	require.Zero(t, s.ProcessState.ExitCode(), "%s%s", &s.out, &s.errs)
	took := time.Since(began)
	whole, err := os.ReadFile(out)
	require.NoError(t, err)
	old := []byte("old")
	r := rand.New(rand.NewPCG(1, 1))
	seen := map[bool]int{}
	for range 30 {
		require.NoError(t, os.WriteFile(out, old, 0o666))
		s := start(t, dir, args...)
		time.Sleep(time.Duration(r.Float64() * 1.2 * float64(took)))
		_ = s.Process.Kill()
		s.within(patience)
		got, err := os.ReadFile(out)
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, old) || bytes.Equal(got, whole), "%d bytes are neither the old file nor the new one", len(got))
		seen[bytes.Equal(got, whole)]++
	}
	t.Logf("killed at 30 random moments of %.2f s: %d times the old file, %d times the new one", took.Seconds(), seen[false], seen[true])
}
