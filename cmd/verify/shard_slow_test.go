//go:build slow

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/convention"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// repeatedRun writes steps of one healthy batch, whose rows have names of their own in each, and returns the bytes that it wrote.
func repeatedRun(t *testing.T, dir string, steps, rows, cols int) (size int64) {
	t.Helper()
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	b, set := trainer.Healthy(trainer.Config{Set: trainer.Complete(p, rand.New(rand.NewPCG(5, 23))), Rows: rows, Group: rows / 2, Cols: cols, Seed: 23})
	b = plant.Declared(b, set)
	require.Len(t, b.Files, 1)
	m := b.Meta
	m.Rank, m.MicroBatch, m.Scalars = b.Files[0].Rank, b.Files[0].MicroBatch, b.Files[0].Scalars
	tensors := []*dumpfile.Tensor{dumpfile.NewMask("response_mask", b.Rows, b.Cols, b.Mask)}
	names := &dumpfile.Tensor{Name: "sample_id", Type: format.I64, Layout: dumpfile.PerRow, Width: 1, Shape: []int{b.Rows}, Data: make([]float64, b.Rows)}
	for _, name := range b.Names() {
		if x := b.Tensors[name]; name != "sample_id" && (name != "kl" || x.Layout != dumpfile.PerRow) { // a file has kl per token
			tensors = append(tensors, x)
		}
	}
	tensors = append(tensors, names)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for step := range steps {
		m.Step = step + 1
		for row := range names.Data {
			names.Data[row] = float64(step*b.Rows + row)
		}
		path := filepath.Join(dir, fmt.Sprintf("step_%06d.safetensors", m.Step))
		require.NoError(t, dumpfile.WriteFile(path, m, tensors...))
		if step == 0 {
			info, err := os.Stat(path)
			require.NoError(t, err)
			size = info.Size() * int64(steps)
		}
	}
	return size
}

// What a process remembers of a step that it has judged is bounded. A row takes its name and its cells of three tensors until two
// generations have passed, some 1.5 kB for 32 cells; checks keep a number each, the merge the places of records: 4 kB a row, twice that
// while garbage waits. Notes in memory took 56 kB for each step.
func TestShardMemoryOfAStep(t *testing.T) {
	const few, many, rows = 150, 1150, 4
	const most = 2 * 4 << 10 * rows / 2
	dir := t.TempDir()
	repeatedRun(t, filepath.Join(dir, "few"), few, rows, 32)
	repeatedRun(t, filepath.Join(dir, "many"), many, rows, 32)
	part := func(run string) string { return filepath.Join(dir, run+".json") }
	for name, args := range map[string]func(run string) []string{
		"one process": func(run string) []string { return []string{"dump", filepath.Join(dir, run), "--format", "json"} },
		"shard": func(run string) []string {
			return []string{"dump", filepath.Join(dir, run), "--shard", "0/1", "-o", part(run)}
		},
	} {
		_, _, small, code := timed(t, args("few")...)
		require.Zero(t, code, name)
		_, wall, large, code := timed(t, args("many")...)
		require.Zero(t, code, name)
		perStep := (large - small) / (many - few)
		t.Logf("%s: %d MB, %d MB, %.1f kB a step, %.1f s", name, small>>20, large>>20, float64(perStep)/1024, wall.Seconds())
		require.Less(t, perStep, int64(most), name)
	}
	_, _, small, code := timed(t, "merge", part("few"))
	require.Zero(t, code)
	_, wall, large, code := timed(t, "merge", part("many"))
	require.Zero(t, code)
	perStep := (large - small) / (many - few)
	t.Logf("merge: %d MB, %d MB, %.1f kB a step, %.1f s", small>>20, large>>20, float64(perStep)/1024, wall.Seconds())
	require.Less(t, perStep, int64(most))
}

// The report of 1, 2, 3 and 7 shards of 500 steps is that of one process, byte for byte outside run, with and without a step that is wrong;
// without one of the shards, or with one of them twice, there is none.
func TestShardsOf500Steps(t *testing.T) {
	dir := t.TempDir()
	repeatedRun(t, filepath.Join(dir, "run"), 500, 4, 16)
	for _, broken := range []bool{false, true} {
		if broken { // the advantages of a step in the middle
			path := filepath.Join(dir, "run", "step_000307.safetensors")
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			data := 8 + int(binary.LittleEndian.Uint64(text))
			var head map[string]struct {
				Offsets [2]int `json:"data_offsets"`
			}
			require.NoError(t, json.Unmarshal(text[8:data], &head))
			at := head["advantages"].Offsets
			require.Less(t, at[0], at[1])
			for i := data + at[0]; i < data+at[1]; i++ {
				text[i] ^= 0x10
			}
			require.NoError(t, os.WriteFile(path, text, 0o644))
		}
		want, _, code := verify(t, dir, "dump", "run", "--format", "json")
		require.Equal(t, broken, code == 1, "exit %d", code)
		for _, n := range []int{7, 3, 2, 1} {
			merge := partials(t, dir, n, 0, "dump", "run")
			got, stderr, merged := verify(t, dir, merge...)
			require.Equal(t, code, merged, stderr)
			require.Equal(t, withoutRun(t, want), withoutRun(t, got), "%d shards", n)
			if broken {
				break // seven say as much
			}
			for said, wrong := range map[string][]string{fmt.Sprintf("shard %d of %d is there twice", n-1, n): append(merge, merge[len(merge)-1]), fmt.Sprintf("shard %d of %d is missing", n-1, n): merge[:len(merge)-1]} {
				if n == 1 && len(wrong) < len(merge) {
					continue // no partial at all
				}
				_, stderr, code := verify(t, dir, wrong...)
				require.Equal(t, 2, code)
				require.Contains(t, stderr, said)
			}
		}
	}
}

// TestShardsOfManyGigabytes judges as many GB of dumps as SHARD_GB says by 1, 2 and 4 shards, all shards of a run at once: none takes
// more than 300 MB, and the merged reports are those of one process. SHARD_DIR is where the dumps lie, and stay; SHARD_SELECT selects checks.
func TestShardsOfManyGigabytes(t *testing.T) {
	gb := 0.02
	if text := os.Getenv("SHARD_GB"); text != "" {
		var err error
		gb, err = strconv.ParseFloat(text, 64)
		require.NoError(t, err)
	}
	dir := os.Getenv("SHARD_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	run := filepath.Join(dir, "run")
	const rows, cols = 64, 512
	if _, err := os.Stat(run); err != nil {
		one := repeatedRun(t, filepath.Join(dir, "one"), 1, rows, cols)
		steps := int(gb * 1e9 / float64(one))
		t.Logf("%d steps of %.2f MB: %.2f GB", steps, float64(one)/1e6, float64(repeatedRun(t, run, steps, rows, cols))/1e9)
	}
	judge := []string{"dump", run}
	if selected := os.Getenv("SHARD_SELECT"); selected != "" {
		judge = append(judge, "--select", selected)
	}
	want, wall, peak, code := timed(t, append(slices.Clone(judge), "--format", "json")...)
	require.Zero(t, code)
	t.Logf("one process: %.1f s, %d MB", wall.Seconds(), peak>>20)
	for _, n := range []int{1, 2, 4} {
		type done struct {
			seconds float64
			peak    int64
			code    int
		}
		all := make(chan done, n)
		args := []string{"merge", "--format", "json"}
		for i := range n {
			part := filepath.Join(t.TempDir(), "part.json")
			args = append(args, part)
			go func() {
				_, wall, peak, code := timed(t, append(slices.Clone(judge), "--shard", fmt.Sprintf("%d/%d", i, n), "-o", part)...)
				all <- done{wall.Seconds(), peak, code}
			}()
		}
		longest, most := 0.0, int64(0)
		for range n {
			d := <-all
			require.Zero(t, d.code)
			longest, most = max(longest, d.seconds), max(most, d.peak)
		}
		got, wall, peak, code := timed(t, args...)
		require.Zero(t, code)
		t.Logf("%d shards: %.1f s, %d MB; merge: %.1f s, %d MB", n, longest, most>>20, wall.Seconds(), peak>>20)
		require.Less(t, most, int64(300e6))
		require.Less(t, peak, int64(300e6), "merge")
		require.Equal(t, withoutRun(t, want), withoutRun(t, got), "%d shards", n)
	}
}
