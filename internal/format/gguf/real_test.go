//go:build slow

package gguf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/hf"
)

// TestRealModel reads SmolLM2-135M-Instruct, which `make real-model` fetches. Every weight of the GGUF file, dequantised
// and with its rows in order, has the bits that transformers@5.23.0 reads from it (golden/models/smollm2), and so has the
// folder of Hugging Face; the configurations agree in every field.
func TestRealModel(t *testing.T) {
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir := filepath.Join(cache, "plumbline", "smollm2")
	if _, err := os.Stat(filepath.Join(dir, "hf", "model.safetensors")); err != nil {
		t.Skipf("no real model: %v; make real-model fetches it", err)
	}
	var golden struct {
		Tensors map[string]struct {
			Shape  []int
			SHA256 string
		}
	}
	text, err := os.ReadFile("../../../golden/models/smollm2/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden.Tensors, 273)

	m, err := OpenModel(filepath.Join(dir, "SmolLM2-135M-Instruct.Q4_1.gguf"))
	require.NoError(t, err)
	defer m.Close()
	f, err := hf.Open(filepath.Join(dir, "hf"))
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, m.Names(), f.Names())
	require.Len(t, m.Names(), 272)
	require.Empty(t, m.Notes)
	require.Empty(t, f.Notes)
	permuted := 0
	for name, want := range golden.Tensors {
		a, err := m.Read(name, want.Shape...)
		require.NoError(t, err)
		require.Equal(t, want.SHA256, digest32(a), "%s of the GGUF file", name)
		b, err := f.Read(name, want.Shape...)
		require.NoError(t, err)
		require.Equal(t, want.SHA256, digest32(b), "%s of the folder", name)
		if w, err := m.find(name); err == nil && w.heads > 0 {
			permuted++
			require.NotEqual(t, want.SHA256, digest32(must(w.tensor.Float64s())), "%s in the order of the file", name)
		}
	}
	require.Equal(t, 60, permuted)
	a, b := *m.Config, *f.Config
	a.File, a.Object, a.DType = b.File, b.Object, b.DType
	require.Equal(t, b, a)
	require.Equal(t, "smollm", m.Tokenizer.Pre)
	require.Len(t, m.Tokenizer.Tokens, 49152)
	require.Len(t, m.Tokenizer.Merges, 48900)
	require.Equal(t, []int{1, 2, 0, 2}, []int{m.Tokenizer.BOS, m.Tokenizer.EOS, m.Tokenizer.UNK, m.Tokenizer.PAD})
}

// digest32 is the sha256 of the elements as little-endian float32, which they must be.
func digest32(v []float64) string {
	h := sha256.New()
	b := make([]byte, 0, 4*4096)
	for i, x := range v {
		if float64(float32(x)) != x {
			return "an element is no float32"
		}
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		if len(b) == cap(b) || i == len(v)-1 {
			h.Write(b)
			b = b[:0]
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
