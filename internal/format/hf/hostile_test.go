package hf

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// Each row breaks a sound folder of two shards in one way.
func TestHostile(t *testing.T) {
	const first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	embed, head, norm := "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
	for _, c := range []struct {
		name  string
		plant func(t *testing.T, dir string)
		want  []string
	}{
		{"shard missing", func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, second))) },
			[]string{"model.safetensors.index.json: weight_map", `shard "model-00002-of-00002.safetensors" is missing`}},
		{"shard cut", func(t *testing.T, dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, second), 100)) },
			[]string{second, "header length"}},
		{"shard empty", func(t *testing.T, dir string) { file(t, dir, second, "") }, []string{second, "has 0 bytes"}},
		{"shard a directory", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, second)))
			require.NoError(t, os.Mkdir(filepath.Join(dir, second), 0o777))
		}, []string{second, "is a directory"}},
		{"tensor missing", func(t *testing.T, dir string) { write(t, dir, second, values{head: {1, 2}}) },
			[]string{`weight_map, tensor "model.norm.weight": is missing from shard "` + second}},
		{"tensor in another shard", func(t *testing.T, dir string) {
			write(t, dir, first, values{embed: {1, 2}, norm: {1, 2}})
			write(t, dir, second, values{head: {1, 2}})
		}, []string{`tensor "model.norm.weight": is in "` + first + `", not in "` + second}},
		{"tensor in two shards", func(t *testing.T, dir string) { write(t, dir, first, values{embed: {1, 2}, norm: {1, 2}}) },
			[]string{first, `tensor "model.norm.weight": is in "` + second + `", too`}},
		{"tensor not in the map", func(t *testing.T, dir string) { write(t, dir, first, values{embed: {1, 2}, "extra": {1, 2}}) },
			[]string{first, `tensor "extra": is not in the weight_map of model.safetensors.index.json`}},
		{"map leaves the folder", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", index(t, map[string]string{head: "../" + second}, nil))
		}, []string{`tensor "lm_head.weight": shard "../model-00002-of-00002.safetensors" is not the name of a safetensors file in the folder`}},
		{"map is absolute", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", index(t, map[string]string{head: "/etc/x.safetensors"}, nil))
		}, []string{`shard "/etc/x.safetensors" is not the name`}},
		{"map into a folder", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", index(t, map[string]string{head: `a\x.safetensors`}, nil))
		}, []string{"is not the name"}},
		{"map to no safetensors", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", index(t, map[string]string{head: "config.json"}, nil))
		}, []string{"is not the name of a safetensors file"}},
		{"map to a pickle", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", index(t, map[string]string{head: "pytorch_model-00001-of-00002.bin"}, nil))
		}, []string{"is a pickle and is never loaded"}},
		{"map with a tensor twice", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", `{"weight_map": {"a": "`+first+`", "a": "`+second+`"}}`)
		}, []string{`duplicate key "a"`}},
		{"two maps", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", `{"weight_map": {"a": "`+first+`"}, "weight_map": {"b": "`+second+`"}}`)
		}, []string{`duplicate key "weight_map"`}},
		{"map empty", func(t *testing.T, dir string) { file(t, dir, "model.safetensors.index.json", `{"weight_map": {}}`) }, []string{"weight_map: is empty"}},
		{"no map", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", `{"metadata": {"total_size": 1}}`)
		}, []string{"weight_map: is missing"}},
		{"map of numbers", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", `{"weight_map": {"a": 1}}`)
		}, []string{"found a number, want a string"}},
		{"map an array", func(t *testing.T, dir string) { file(t, dir, "model.safetensors.index.json", `{"weight_map": []}`) }, []string{"found an array, want an object"}},
		{"index of brackets", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", strings.Repeat("[", 1<<20))
		}, []string{"found an array, want an object"}},
		{"deep metadata", func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors.index.json", `{"metadata": `+strings.Repeat("[", 1000))
		}, []string{"nested deeper than 64"}},
		{"index too large", func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors.index.json"), format.MaxIndex+1)) // sparse
		}, []string{"want at most 67108864"}},
		{"shards too many", func(t *testing.T, dir string) {
			var b strings.Builder
			for i := range maxShards + 1 {
				b.WriteString(`,"` + strings.Repeat("x", i/200) + string(rune('A'+i%200)) + `": "` + strings.Repeat("y", i/200) + string(rune('A'+i%200)) + `.safetensors"`)
			}
			file(t, dir, "model.safetensors.index.json", `{"weight_map": {`+strings.ReplaceAll(b.String(), `\`, "-")[1:]+`}}`)
		}, []string{"more than 4096 shards"}},
		{"config no JSON", func(t *testing.T, dir string) { file(t, dir, "config.json", "model_type: llama") }, []string{"config.json", "want an object"}},
		{"config too large", func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "config.json"), 1<<20+1))
		}, []string{"want at most 1048576"}},
		{"adapter", func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "config.json"), filepath.Join(dir, "adapter_config.json")))
		}, []string{"is an adapter of PEFT"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := sharded(t)
			c.plant(t, dir)
			f, err := Open(dir)
			require.Nil(t, f)
			refused(t, err, c.want...)
			require.ErrorContains(t, err, dir, "the error names the file")
		})
	}
}

func TestNoWeights(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "config.json")
	_, err = Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	file(t, dir, "config.json", llamaConfig)
	_, err = Open(dir)
	refused(t, err, dir+": holds no weights")
	file(t, dir, "SmolLM2.gguf", "")
	_, err = Open(dir)
	refused(t, err, "but SmolLM2.gguf")
}

// A pickle is not opened at all: the error comes for a file without content, and holds a command for its name.
func TestPickle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's a model")
	require.NoError(t, os.Mkdir(dir, 0o777))
	file(t, dir, "config.json", llamaConfig)
	file(t, dir, "training_args.bin", "")
	_, err := Open(dir)
	refused(t, err, "holds no weights")
	file(t, dir, "pytorch_model-00002-of-00002.bin", "")
	file(t, dir, "pytorch_model-00001-of-00002.bin", "")
	file(t, dir, "pytorch_model.bin.index.json", "")
	_, err = Open(dir)
	quoted := format.ShellQuote
	refused(t, err, filepath.Join(dir, "pytorch_model-00001-of-00002.bin")+": is a pickle",
		"python -c 'import sys, torch; ", "weights_only=True",
		quoted(filepath.Join(dir, "model.safetensors"))+" "+quoted(filepath.Join(dir, "pytorch_model-00001-of-00002.bin"))+" "+quoted(filepath.Join(dir, "pytorch_model-00002-of-00002.bin")))
	require.NotContains(t, err.Error(), "training_args")
}

// A weight_format is one number, whatever the file holds under its name.
func TestLongWeightFormat(t *testing.T) {
	dir := t.TempDir()
	file(t, dir, "config.json", llamaConfig)
	const n = 8 << 20
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), nil, []safetensors.Tensor{
		{Name: "lm_head.weight", DType: format.I8, Shape: []int{2, 2}, Raw: []byte{1, 2, 3, 4}},
		{Name: "lm_head.SCB", DType: format.F32, Shape: []int{2}, Data: []float64{1, 1}},
		{Name: "lm_head.weight_format", DType: format.U8, Shape: []int{n}, Raw: make([]byte, n)},
	}))
	f := open(t, dir)
	var err error
	require.Less(t, allocated(func() { _, err = f.Int8("lm_head.weight", 2, 2) }), int64(1<<20))
	refused(t, err, "lm_head.weight_format", "want one number")
	require.Less(t, len(err.Error()), 500)
}

// A file that was cut after it was opened has no fingerprint.
func TestFingerprintOfACutFile(t *testing.T) {
	dir := single(t, llamaConfig, values{"lm_head.weight": make([]float64, 1000)})
	f := open(t, dir)
	_, err := f.Fingerprint()
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), f.shards[0].Size-4))
	_, err = f.Fingerprint()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}
