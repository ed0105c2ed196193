package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

const (
	trlRuns    = "../../verify/dump/testdata/trl"
	goldenRuns = "../../golden/dumps"
	trlProfile = "trl-grpo@1.16"
)

// dumpText is a dump taken apart, to be written again with something else in it.
type dumpText struct {
	meta    map[string]any
	tensors map[string]*safetensors.Tensor
}

func readDump(t testing.TB, path string) *dumpText {
	t.Helper()
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	d := &dumpText{tensors: map[string]*safetensors.Tensor{}}
	require.NoError(t, json.Unmarshal([]byte(f.Metadata["plumbline"]), &d.meta))
	for name, a := range f.Tensors() {
		x, err := a.Float64s()
		require.NoError(t, err)
		dtype := a.DType
		if dtype == format.I32 {
			dtype = format.I64
		}
		d.tensors[name] = &safetensors.Tensor{Name: name, DType: dtype, Shape: slices.Clone(a.Shape), Data: x}
	}
	return d
}

func (d *dumpText) write(t testing.TB, path string) {
	t.Helper()
	text, err := json.Marshal(d.meta)
	require.NoError(t, err)
	d.writeText(t, path, string(text))
}

// writeText writes the tensors with metadata that need not be JSON.
func (d *dumpText) writeText(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	var list []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(d.tensors)) {
		list = append(list, *d.tensors[name])
	}
	require.NoError(t, safetensors.WriteFile(path, map[string]string{"plumbline": text}, list))
}

func (d *dumpText) options() map[string]any { return d.meta["options"].(map[string]any) }

func (d *dumpText) drop(names ...string) {
	for _, name := range names {
		delete(d.tensors, name)
	}
}

// keep drops every tensor but these.
func (d *dumpText) keep(names ...string) {
	for name := range d.tensors {
		if !slices.Contains(names, name) {
			delete(d.tensors, name)
		}
	}
}

// cell returns the index of the first cell whose mask is m.
func (d *dumpText) cell(m float64) int { return slices.Index(d.tensors["response_mask"].Data, m) }

// runOf copies a run of the repository to a folder, each file changed by edit.
func runOf(t testing.TB, from, to string, edit func(d *dumpText)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(from, "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, files, from)
	for _, f := range files {
		d := readDump(t, f)
		edit(d)
		d.write(t, filepath.Join(to, filepath.Base(f)))
	}
}

// cleanRun is a healthy run with every file changed by edit.
func cleanRun(edit func(d *dumpText)) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) { runOf(t, filepath.Join(trlRuns, "clean", "grpo"), dir, edit) }
}

// oneFile is the first file of a healthy run, said to be the whole step.
func oneFile(edit func(d *dumpText)) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) {
		d := readDump(t, filepath.Join(trlRuns, "clean", "grpo", "step_0001_mb_0.safetensors"))
		edit(d)
		d.write(t, filepath.Join(dir, "a.safetensors"))
	}
}

// manySteps is the first step of a healthy run as often as wanted, the last of them changed by edit.
func manySteps(t testing.TB, dir string, n int, edit func(d *dumpText)) {
	t.Helper()
	for mb := range 2 {
		for step := 1; step <= n; step++ {
			d := readDump(t, filepath.Join(trlRuns, "clean", "grpo", fmt.Sprintf("step_0001_mb_%d.safetensors", mb)))
			d.meta["step"] = step
			if step > n/2 {
				edit(d)
			}
			d.write(t, filepath.Join(dir, fmt.Sprintf("s%05d_%d.safetensors", step, mb)))
		}
	}
}
