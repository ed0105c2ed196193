//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// mutations is how many files the commands are tried on here; HOSTILE says another number (make hostile).
func mutations(t *testing.T, otherwise int) int {
	text := os.Getenv("HOSTILE")
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// mutate returns a copy of b with one to three faults: bits and bytes, pieces that are cut, doubled, moved or zeroed, numbers at the ends
// of their types, digits of text, and a cut end.
func mutate(r *rand.Rand, b []byte) []byte {
	b = slices.Clone(b)
	for range 1 + r.IntN(3) {
		if len(b) == 0 {
			return []byte{byte(r.Uint32())}
		}
		// Half of the faults strike the first bytes, where headers are.
		at := r.IntN(len(b))
		if r.IntN(2) == 0 {
			at = r.IntN(min(len(b), 256))
		}
		end := min(len(b), at+1+r.IntN(32))
		switch r.IntN(10) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b[at] = byte(r.Uint32())
		case 2:
			b = slices.Delete(b, at, end)
		case 3:
			b = slices.Insert(b, at, slices.Clone(b[at:end])...)
		case 4:
			clear(b[at:end])
		case 5:
			edge := []string{"\xff\xff\xff\xff\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x80", "\xff\xff\xff\xff\xff\xff\xff\x7f", "\x00\x00\x00\x00\x00\x00\xf0\x7f", "\x01\x00\x00\x00\x00\x00\x00\x00"}[r.IntN(5)]
			copy(b[at:], edge)
		case 6:
			if i := bytes.IndexAny(b[at:], "0123456789"); i >= 0 {
				word := []string{"0", "-1", "9223372036854775807", "1e999", "null", "NaN", "4294967296"}[r.IntN(7)]
				b = slices.Replace(b, at+i, at+i+1, []byte(word)...)
			}
		case 7:
			if i := bytes.IndexAny(b[at:], "{}[]\":,\n"); i >= 0 {
				b[at+i] = "{}[]\":,\n \x00\x1b"[r.IntN(11)]
			}
		case 8:
			b = b[:at]
		case 9:
			other := r.IntN(len(b))
			copy(b[at:end], slices.Clone(b[other:]))
		}
	}
	return b
}

// subject is a healthy file or folder, and the commands that read it; PATH is it.
type subject struct {
	name     string
	from     string // file or folder
	commands []string
}

// inProcess runs a command as main does, without a process. A panic is the exit code that it has there.
func inProcess(ctx context.Context, args []string) (code int, panicked string) {
	defer func() {
		if p := recover(); p != nil {
			code, panicked = check.ExitInternal, fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
	}()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return check.ExitPass, ""
	}
	var done interface{ Error() string } = err
	if text := done.Error(); strings.HasPrefix(text, "exit ") {
		if n, err := strconv.Atoi(strings.TrimPrefix(text, "exit ")); err == nil {
			return n, ""
		}
	}
	return exitCode(err), ""
}

// Every command that reads files is tried on mutated ones: it ends with a documented code that is not that of an internal error, and never
// panics. The seed is fixed, so a failure repeats; it names the file, which stays.
func TestMutatedFiles(t *testing.T) {
	subjects := []subject{
		{"basis", "../../internal/format/npy/testdata/f8_c.npy", []string{"projection --basis PATH", "projection --basis PATH --grad PATH"}},
		{"archive", "../../internal/format/npy/testdata/savez.npz", []string{"projection --basis PATH", "projection --basis PATH:a"}},
		{"compressed", "../../internal/format/npy/testdata/compressed.npz", []string{"projection --basis PATH"}},
		{"tensors", "../../internal/format/safetensors/testdata/types.safetensors", []string{"projection --basis PATH", "dump PATH"}},
		{"dump", "../../internal/format/dump/testdata/step_0001_mb_0.safetensors", []string{"dump PATH", "dump PATH --format json", "dump PATH --first-step --strict"}},
		{"adapter", "../../golden/peft/cases/list", []string{"checkpoint PATH", "checkpoint PATH --base ../../golden/peft/llama"}},
		{"model", "../../golden/peft/llama", []string{"checkpoint PATH", "vram --model PATH --batch 1 --seq 8"}},
		{"shards", "../../internal/format/hf/testdata/qwen2_sharded", []string{"checkpoint PATH"}},
		{"int8", "../../internal/format/hf/testdata/llama_int8", []string{"checkpoint PATH"}},
		{"events", "../../internal/format/tfevents/testdata/tensorboard.tfevents", []string{"log PATH"}},
		{"log", "../../verify/dump/testdata/runs/grpo/metrics.jsonl", []string{"log PATH", "log PATH --format junit"}},
		{"printed log", "../../verify/dump/testdata/runs/arc/log.txt", []string{"log PATH"}},
		{"pickle", "../../internal/format/pickle/testdata/state_dict.pt", []string{"checkpoint DIR"}},
		{"trainer's configuration", "testdata/configs/trl/dapo.json", []string{"dump ../../internal/format/dump/testdata --config PATH"}},
		{"script", "testdata/configs/verl/rollout_correction.sh", []string{"dump ../../internal/format/dump/testdata --config PATH"}},
	}
	const seed = 20
	r := rand.New(rand.NewPCG(seed, 0))
	total := mutations(t, 240)
	codes := map[int]int{}
	dir := t.TempDir()
	for i := range total {
		s := subjects[i%len(subjects)]
		here := filepath.Join(dir, strconv.Itoa(i))
		require.NoError(t, os.Mkdir(here, 0o755))
		path := copyMutated(t, r, s.from, here)
		args := strings.Fields(strings.NewReplacer("PATH", path, "DIR", here).Replace(s.commands[r.IntN(len(s.commands))]))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		code, panicked := inProcess(ctx, args)
		cancel()
		codes[code]++
		if panicked != "" || !slices.Contains([]int{0, 1, 2, 4, 5, 6}, code) {
			keep, err := os.MkdirTemp("", "hostile-")
			require.NoError(t, err)
			require.NoError(t, os.CopyFS(keep, os.DirFS(here)))
			t.Fatalf("seed %d, case %d, %s, kept in %s: verify %s: exit %d\n%s", seed, i, s.name, keep, strings.Join(args, " "), code, panicked)
		}
		require.NoError(t, os.RemoveAll(here))
	}
	runtime.GC()
	var held runtime.MemStats
	runtime.ReadMemStats(&held)
	t.Logf("%d mutated files, by exit code: %v; %d MB of heap are held at the end", total, codes, held.HeapAlloc>>20)
	require.Less(t, held.HeapAlloc, uint64(64<<20), "what one file took is given back before the next")
	require.Greater(t, codes[4], total/10, "files are refused")
	require.Greater(t, codes[0]+codes[1]+codes[5]+codes[6], total/50, "files are read to the end: mutations that every header check stops try nothing else")
}

// copyMutated copies a file or a folder of files into dir, one file of it mutated, and returns its path.
func copyMutated(t testing.TB, r *rand.Rand, from, dir string) string {
	info, err := os.Stat(from)
	require.NoError(t, err)
	to := filepath.Join(dir, filepath.Base(from))
	if !info.IsDir() {
		b, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, mutate(r, b), 0o644))
		return to
	}
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	var files []string
	require.NoError(t, filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	}))
	hit := files[r.IntN(len(files))]
	b, err := os.ReadFile(hit)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(hit, mutate(r, b), 0o644))
	return to
}
