package gguf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// expected is testdata/expect.json, written by golden/gen/smollm2/tiny_gguf.py beside the files: what gguf-py@0.19.0 and
// transformers@5.23.0 read from them.
type expected struct {
	Kinds        map[string][]float64
	Llama, Qwen2 expectedModel
}

type expectedModel struct {
	Config  map[string]any
	Tensors map[string]struct {
		Shape  []int
		SHA256 string
	}
}

func expect(t *testing.T) (e expected) {
	text, err := os.ReadFile("testdata/expect.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &e))
	require.Len(t, e.Kinds, 9)
	return e
}

func openGolden(t *testing.T, name string) *File {
	f, err := Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// digest is the sha256 of the little-endian float64 elements.
func digest(v []float64) string {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Every metadata type, as tiny_gguf.py wrote it.
func TestMetadata(t *testing.T) {
	f := openGolden(t, "kinds.gguf")
	require.Equal(t, 3, f.Version)
	require.Equal(t, int64(32), f.Alignment)
	require.Empty(t, f.Notes)
	want := map[string]any{
		"u8": uint8(200), "i8": int8(-100), "u16": uint16(60000), "i16": int16(-30000), "u32": uint32(4000000000), "i32": int32(-2000000000),
		"u64": uint64(1<<63 + 1), "i64": int64(-1 << 62), "f32": float32(0.1), "f64": 0.1, "bool": true, "string": "Ġé ∑",
	}
	lists := map[string]any{
		"u8": []uint8{200, 200, 200}, "i8": []int8{-100, -100, -100}, "u16": []uint16{60000, 60000, 60000}, "i16": []int16{-30000, -30000, -30000},
		"u32": []uint32{4000000000, 4000000000, 4000000000}, "i32": []int32{-2000000000, -2000000000, -2000000000},
		"u64": []uint64{1<<63 + 1, 1<<63 + 1, 1<<63 + 1}, "i64": []int64{-1 << 62, -1 << 62, -1 << 62}, "f32": []float32{0.1, 0.1, 0.1},
		"f64": []float64{0.1, 0.1, 0.1}, "bool": []bool{true, true, true}, "string": []string{"Ġé ∑", "Ġé ∑", "Ġé ∑"},
	}
	for k, w := range want {
		v, ok := f.Value("test." + k)
		require.True(t, ok)
		require.Equal(t, w, v, k)
		v, ok = f.Value("test.list." + k)
		require.True(t, ok)
		require.Equal(t, lists[k], v, k)
	}
	require.Len(t, f.Keys(), 25)
	require.Equal(t, "general.architecture", f.Keys()[0])
	for _, k := range []string{"u8", "i8", "u16", "i16", "u32", "i32", "i64"} {
		_, err := f.Int("test."+k, 0, math.MinInt64, math.MaxInt64)
		require.NoError(t, err)
		_, err = f.Int("test."+k, 0, 1, 2)
		refused(t, err, "test."+k, "want an integer in [1, 2]")
	}
	n, err := f.Int("test.i16", 0, math.MinInt64, 0)
	require.NoError(t, err)
	require.Equal(t, int64(-30000), n)
	_, err = f.Int("test.u64", 0, 0, math.MaxInt64)
	refused(t, err, "is 9223372036854775809")
	_, err = f.Int("test.f32", 0, 0, 1)
	refused(t, err, "testdata/kinds.gguf: test.f32: is float32, want an integer")
	_, err = f.Float("test.list.f32", 0)
	refused(t, err, "is an array of float32, want a float")
	_, err = Metadata[[]string](f, "test.string")
	refused(t, err, "is string, want an array of string")
	v, err := f.Float("test.f32", 0)
	require.NoError(t, err)
	require.Equal(t, float64(float32(0.1)), v)
	v, err = f.Float("absent", 3)
	require.NoError(t, err)
	require.Equal(t, 3.0, v)
}

// Every element that is read has the bits of gguf-py's dequantisation, whole and row by row.
func TestDequantize(t *testing.T) {
	f := openGolden(t, "kinds.gguf")
	require.Equal(t, 10, f.Len())
	for name, want := range expect(t).Kinds {
		x, ok := f.Tensor(name)
		require.True(t, ok, name)
		got, err := x.Float64s()
		require.NoError(t, err)
		require.Equal(t, digest(want), digest(got), name)
		n := x.Shape[1]
		row := make([]float64, n)
		for i := range x.Shape[0] {
			require.NoError(t, x.ReadRows(row, i))
			require.Equal(t, digest(want[i*n:][:n]), digest(row), "%s row %d", name, i)
		}
		require.Panics(t, func() { x.ReadRows(row, x.Shape[0]) })
		require.Panics(t, func() { x.ReadRows(row[1:], 0) })
	}
	x, ok := f.Tensor("q5")
	require.True(t, ok)
	_, err := x.Float64s()
	refused(t, err, `testdata/kinds.gguf: tensor "q5": unsupported GGUF type Q5_0 (6), want one of F32`)
}

// A model from GGUF is the model that transformers makes of the same file: names, shapes, bits and configuration.
func TestModel(t *testing.T) {
	e := expect(t)
	for name, want := range map[string]expectedModel{"llama": e.Llama, "qwen2": e.Qwen2} {
		t.Run(name, func(t *testing.T) {
			m, err := OpenModel("testdata/" + name + ".gguf")
			require.NoError(t, err)
			defer m.Close()
			permuted := 0
			for tensor, w := range want.Tensors {
				shape, err := m.Shape(tensor)
				require.NoError(t, err)
				require.Equal(t, w.Shape, shape)
				for _, asked := range []string{tensor, strings.TrimPrefix(tensor, "model.")} {
					v, err := m.Read(asked, shape...)
					require.NoError(t, err)
					require.Equal(t, w.SHA256, digest(v), asked)
				}
				if found, err := m.find(tensor); err == nil && digest(must(found.tensor.Float64s())) != w.SHA256 {
					permuted++
				}
			}
			// The rows as they lie in the file give another model: q and k of both layers.
			require.Equal(t, map[string]int{"llama": 4, "qwen2": 0}[name], permuted)
			names := slices.Sorted(maps.Keys(want.Tensors))
			if m.Config.Tied {
				names = slices.DeleteFunc(names, func(s string) bool { return s == head })
			}
			require.Equal(t, names, m.Names())

			c, w := m.Config, want.Config
			integer := func(key string) int { return int(w[key].(float64)) }
			require.Equal(t, w["model_type"], c.Type)
			require.Equal(t, integer("hidden_size"), c.Hidden)
			require.Equal(t, integer("num_hidden_layers"), c.Layers)
			require.Equal(t, integer("num_attention_heads"), c.Heads)
			require.Equal(t, integer("num_key_value_heads"), c.KVHeads)
			require.Equal(t, integer("intermediate_size"), c.Inner)
			require.Equal(t, integer("vocab_size"), c.Vocab)
			require.Equal(t, integer("max_position_embeddings"), c.Positions)
			require.Equal(t, w["rms_norm_eps"], c.Eps)
			require.Equal(t, w["tie_word_embeddings"], c.Tied)
			require.Equal(t, w["rope_parameters"].(map[string]any)["rope_theta"], c.Rope.Theta)
			require.Equal(t, name == "qwen2", c.QKVBias)
			require.False(t, c.OutputBias || c.MLPBias)

			require.Equal(t, &Tokenizer{Model: "gpt2", Pre: "smollm", Tokens: m.Tokenizer.Tokens, Types: m.Tokenizer.Types, Merges: []string{"t 1", "t 2"},
				BOS: 1, EOS: 2, UNK: -1, PAD: -1}, m.Tokenizer)
			require.Len(t, m.Tokenizer.Tokens, 40)
			require.Equal(t, "t39", m.Tokenizer.Tokens[39])
			require.Equal(t, []int32{3, 1}, m.Tokenizer.Types[:2])
			require.Equal(t, []int{2}, c.EOS)

			_, err = m.Read("model.norm.weight", 63)
			refused(t, err, `tensor "output_norm.weight": (model.norm.weight): shape (64,), want (63,)`)
			_, err = m.Read("model.absent.weight", 63)
			refused(t, err, `tensor "model.absent.weight": is missing`)
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Keys returns the keys of the metadata in the order of the file.
func (f *File) Keys() []string { return slices.Clone(f.keys) }

// Value returns the metadata of that key, or false. It is one of uint8, int8, uint16, int16, uint32, int32, uint64, int64,
// float32, float64, bool and string, or a slice of one of them, which must not be changed.
func (f *File) Value(key string) (any, bool) {
	v, ok := f.values[key]
	return v, ok
}

// Shape returns the shape of the weight called name.
func (m *Model) Shape(name string) ([]int, error) {
	w, err := m.find(name)
	if err != nil {
		return nil, err
	}
	return slices.Clone(w.tensor.Shape), nil
}
