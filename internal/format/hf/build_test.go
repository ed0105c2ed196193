package hf

import (
	"encoding/json"
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
	llamaConfig = `{"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 6, "vocab_size": 3}`
	tiedConfig  = `{"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 6, "vocab_size": 3, "tie_word_embeddings": true}`
	gptjConfig  = `{"model_type": "gptj", "n_embd": 4, "n_layer": 1, "n_head": 2, "vocab_size": 3, "n_positions": 8, "rotary_dim": 2}`
)

// values are the elements of tensors by name; all have the shape [len/2, 2].
type values map[string][]float64

// file writes one file of a folder.
func file(t testing.TB, dir, name, text string) {
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
}

// write writes a file of weights.
func write(t testing.TB, dir, name string, v values) {
	var list []safetensors.Tensor
	for _, k := range slices.Sorted(maps.Keys(v)) {
		list = append(list, safetensors.Tensor{Name: k, DType: format.F32, Shape: []int{len(v[k]) / 2, 2}, Data: v[k]})
	}
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, name), nil, list))
}

// single returns a folder with one file of weights.
func single(t testing.TB, config string, v values) string {
	dir := t.TempDir()
	file(t, dir, "config.json", config)
	write(t, dir, "model.safetensors", v)
	return dir
}

// index returns the text of an index.
func index(t testing.TB, weightMap map[string]string, total any) string {
	doc := map[string]any{"weight_map": weightMap}
	if total != nil {
		doc["metadata"] = map[string]any{"total_size": total}
	}
	b, err := json.Marshal(doc)
	require.NoError(t, err)
	return string(b)
}

// sharded returns a folder of two shards, a in the first and b in the second, that is sound.
func sharded(t testing.TB) string {
	dir := t.TempDir()
	file(t, dir, "config.json", llamaConfig)
	write(t, dir, "model-00001-of-00002.safetensors", values{"model.embed_tokens.weight": {1, 2, 3, 4, 5, 6}})
	write(t, dir, "model-00002-of-00002.safetensors", values{"lm_head.weight": {7, 8}, "model.norm.weight": {9, 10}})
	file(t, dir, "model.safetensors.index.json", index(t, map[string]string{
		"model.embed_tokens.weight": "model-00001-of-00002.safetensors",
		"lm_head.weight":            "model-00002-of-00002.safetensors",
		"model.norm.weight":         "model-00002-of-00002.safetensors",
	}, 40))
	return dir
}

// open opens a folder that is closed with the test.
func open(t testing.TB, dir string) *Folder {
	f, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// refused demands that the error is about content and holds every fragment.
func refused(t testing.TB, err error, fragments ...string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, format.IsMalformed(err), "%v", err)
	for _, s := range fragments {
		require.ErrorContains(t, err, s)
	}
}
