package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/assets"
	"plumbline/internal/format/hf"
	"plumbline/internal/format/safetensors"
)

// The folder of a run is its model in final; a folder without one is refused as before.
func TestSampleRunFolder(t *testing.T) {
	run := t.TempDir()
	final := filepath.Join(run, "final")
	files, err := fs.Sub(assets.Tiny, "tiny")
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(final, files))
	args := func(model string) []string {
		return []string{"sample", "--model", model, "--prompt", "Question: 1+2\nAnswer:", "--tokens", "6"}
	}
	want, errs, code := program(t, args(final)...)
	require.Zero(t, code, errs)
	require.NotEmpty(t, want)
	got, errs, code := program(t, args(run)...)
	require.Zero(t, code, errs)
	require.Equal(t, want, got)
	require.NoError(t, os.Remove(filepath.Join(final, "config.json")))
	_, _, code = program(t, args(run)...)
	require.NotZero(t, code)
}

// A run whose last model is an adapter is sampled on the base that it wrote beside its checkpoints, as PEFT finds it from there, and so is
// one folder of it; without that folder on the embedded one, and with neither it is refused in words.
func TestSampleAdapter(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	trains(t, smallShielded(run)...)
	config, err := os.ReadFile(filepath.Join(run, "final", "adapter_config.json"))
	require.NoError(t, err)
	require.Contains(t, string(config), `"base_model_name_or_path": "tiny-gptj"`)
	base := filepath.Join(run, "tiny-gptj")
	files, err := fs.Sub(assets.TinyGPTJ, "tiny_gptj")
	require.NoError(t, err)
	want, err := fs.ReadFile(files, "model.safetensors")
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(base, "model.safetensors"))
	require.NoError(t, err)
	require.Equal(t, want, got)
	args := func(model string, more ...string) []string {
		return append([]string{"sample", "--model", model, "--prompt", "Name a colour.", "--tokens", "6"}, more...)
	}
	explicit, errs, code := program(t, args(base, "--adapter", filepath.Join(run, "final"))...)
	require.Zero(t, code, errs)
	for _, model := range []string{run, filepath.Join(run, "final")} {
		out, errs, code := program(t, args(model)...)
		require.Zero(t, code, errs)
		require.Equal(t, explicit, out)
	}
	_, errs, code = program(t, args(run, "--adapter", filepath.Join(run, "final"))...)
	require.Equal(t, 2, code)
	require.Contains(t, errs, "give its base as --model")
	require.NoError(t, os.RemoveAll(base))
	out, errs, code := program(t, args(run)...)
	require.Zero(t, code, errs)
	require.Equal(t, explicit, out)
	replace(t, filepath.Join(run, "final", "adapter_config.json"), `"tiny-gptj"`, `"lab/none"`)
	_, errs, code = program(t, args(run)...)
	require.Equal(t, 4, code)
	require.Contains(t, errs, "is an adapter of PEFT and holds no model")
}

// A masked model fills in what is masked, a judge gives a verdict, and what is exported says what it is.
func TestSampleAndExportMasked(t *testing.T) {
	out, errs, code := program(t, "sample", "--model", "tiny_masked", "--prompt", "Shall I comp___ thee")
	require.Zero(t, code, errs)
	require.Regexp(t, `^Shall I comp[^_]{3} thee\n$`, out)
	out, errs, code = program(t, "sample", "--model", "tiny_judge", "--prompt", "Shall I compare thee")
	require.Zero(t, code, errs)
	require.Regexp(t, `^0\.\d{6}\n$`, out)
	_, errs, code = program(t, "sample", "--model", "tiny_masked", "--prompt", "x_", "--tokens", "3")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "--tokens does not go with a masked model")

	dir := filepath.Join(t.TempDir(), "out")
	out, errs, code = program(t, "export", "--model", "tiny_masked", "--output", dir)
	require.Zero(t, code, errs)
	require.Contains(t, out, "GPTNeoXForCausalLM: bidirectional")
	require.FileExists(t, filepath.Join(dir, "tokenizer.json"))
	_, errs, code = program(t, "export", "--model", "tiny_masked", "--output", dir)
	require.Equal(t, 2, code)
	require.Contains(t, errs, "is not empty")
	_, errs, code = program(t, "export", "--model", dir)
	require.Equal(t, 2, code)
	require.Contains(t, errs, "--output is missing")
}

// The encoder of train arc, left as it was, is exported as the model that it came from: the tensors of Qwen2Model, bit for bit, and a folder
// that the reader of Hugging Face models takes.
func TestExportEncoder(t *testing.T) {
	run, dir := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "out")
	trains(t, "arc", "output_dir="+run, "epochs=1", "max_batches=1", "tasks=2", "save_every=0", "encoder.train=frozen")
	out, errs, code := program(t, "export", "--model", run, "--output", dir)
	require.Zero(t, code, errs)
	require.Contains(t, out, "Qwen2Model: the text encoder alone")
	want, err := assets.Tiny.ReadFile("tiny/model.safetensors")
	require.NoError(t, err)
	a, err := safetensors.ParseAt(bytes.NewReader(want), int64(len(want)), "tiny")
	require.NoError(t, err)
	b, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, a.Len(), b.Len())
	for name, x := range a.Tensors() {
		y, ok := b.Tensor(strings.TrimPrefix(name, "model."))
		require.True(t, ok, name)
		p, err := x.Float64s()
		require.NoError(t, err)
		q, err := y.Float64s()
		require.NoError(t, err)
		require.Equal(t, p, q, name)
	}
	_, err = hf.ReadConfig(dir)
	require.NoError(t, err)
}
