package gguf

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// table returns a file whose table is written by put and whose data has n bytes.
func table(count int, put func(b *builder), n int) []byte {
	b := start(3, count, 0)
	put(b)
	return b.align(32).put(make(raw, n)).Bytes()
}

// tensor writes an entry of the table.
func tensor(b *builder, name string, kind int, offset uint64, dims ...uint64) {
	b.put(name, u32(len(dims)), dims, u32(kind), offset)
}

var hostile = []struct {
	name string
	file []byte
	want string
}{
	{"empty", nil, "magic, byte 0: 4 bytes are needed, the file has 0 more"},
	{"magic only", []byte("GGUF"), "version, byte 4: 4 bytes are needed"},
	{"another magic", start(3, 0, 0).Bytes()[1:], `found "GUF\x03", want "GGUF"`},
	{"version 1", start(1, 0, 0).Bytes(), "version, byte 4: 1, want 2 or 3"},
	{"version 99", start(99, 0, 0).Bytes(), "version, byte 4: 99, want 2 or 3"},
	{"big-endian", start(0x03000000, 0, 0).Bytes(), "a big-endian file"},
	{"key count 2^63", new(builder).put(raw("GGUF"), u32(3), u64(0), uint64(1<<63)).Bytes(), "key count, byte 16: 9223372036854775808, want at most 65536"},
	{"key count beyond the file", start(3, 0, 60_000).Bytes(), "key count, byte 16: 60000, but 0 bytes hold at most 0"},
	{"tensor count beyond the file", start(3, 1_000_000, 0).Bytes(), "tensor count, byte 8: 1000000, but 8 bytes hold at most 0"},
	{"key of 2^63 bytes", start(3, 0, 1).put(uint64(1<<63), make(raw, 20)).Bytes(), "a key of 9223372036854775808 bytes, want at most 65536"},
	{"key beyond the file", start(3, 0, 1).put(uint64(60000), make(raw, 20)).Bytes(), "a key of 60000 bytes, the file has 20 more"},
	{"key empty", start(3, 0, 1).put("", kindU8, make(raw, 20)).Bytes(), "a key that is empty"},
	{"key not UTF-8", start(3, 0, 1).put("\xff", kindU8, make(raw, 20)).Bytes(), "not UTF-8"},
	{"key twice", start(3, 0, 2).put("k", kindU8, uint8(1), "k", kindU8, uint8(1)).Bytes(), `duplicate key "k"`},
	{"value type 13", start(3, 0, 1).put("k", kind(13), make(raw, 9)).Bytes(), `key "k", byte 33: unknown value type 13`},
	{"value type 2^32-1", start(3, 0, 1).put("k", ^kind(0), make(raw, 9)).Bytes(), "unknown value type 4294967295"},
	{"value cut", start(3, 0, 1).put("k", kindU64, make(raw, 7)).Bytes(), "8 bytes are needed, the file has 7 more"},
	{"string of 2^63 bytes", start(3, 0, 1).put("k", kindString, uint64(1<<63)).Bytes(), "a string of 9223372036854775808 bytes, want at most 1048576"},
	{"string beyond the file", start(3, 0, 1).put("k", kindString, uint64(100), make(raw, 99)).Bytes(), "a string of 100 bytes, the file has 99 more"},
	{"bool 2", start(3, 0, 1).put("k", kindBool, uint8(2)).Bytes(), "2, want 0 or 1 for a bool"},
	{"bool 2 in an array", start(3, 0, 1).put("k", kindArray, kindBool, u64(3), raw{0, 1, 2}).Bytes(), "byte 51: 2, want 0 or 1"},
	{"array of 2^63 strings", start(3, 0, 1).put("k", kindArray, kindString, uint64(1<<63)).Bytes(), "an array of 9223372036854775808 elements, but 0 bytes hold at most 0"},
	{"array of strings without room for their lengths", start(3, 0, 1).put("k", kindArray, kindString, u64(9), make(raw, 71)).Bytes(), "an array of 9 elements, but 71 bytes hold at most 8"},
	{"array of 2^61 u64, whose bytes overflow", start(3, 0, 1).put("k", kindArray, kindU64, uint64(1<<61), make(raw, 64)).Bytes(), "an array of 2305843009213693952 elements, but 64 bytes hold at most 8"},
	{"array of arrays", start(3, 0, 1).put("k", kindArray, kindArray, u64(1), kindU8, u64(0)).Bytes(), "an array of arrays"},
	{"array of unknown", start(3, 0, 1).put("k", kindArray, kind(77), u64(0)).Bytes(), "unknown value type 77"},
	{"alignment 3", start(3, 0, 1).put("general.alignment", kindU32, uint32(3)).Bytes(), "general.alignment: is 3 of type uint32, want a uint32 that is a power of two"},
	{"alignment 0", start(3, 0, 1).put("general.alignment", kindU32, uint32(0)).Bytes(), "general.alignment: is 0"},
	{"alignment 2^30", start(3, 0, 1).put("general.alignment", kindU32, uint32(1<<30)).Bytes(), "at most 1048576"},
	{"alignment a string", start(3, 0, 1).put("general.alignment", kindString, "32").Bytes(), "is 32 of type string"},
	{"one of three parts", start(3, 0, 1).put("split.count", kindU16, uint16(3)).Bytes(), "split.count: is 3: the file is one part of a model"},
	{"5 dimensions", table(1, func(b *builder) { tensor(b, "t", 0, 0, 1, 1, 1, 1, 1) }, 4), `tensor "t", byte 33: 5 dimensions, want at most 4`},
	{"2^32-1 dimensions", table(1, func(b *builder) { b.put("t", ^uint32(0), make(raw, 64)) }, 4), "4294967295 dimensions"},
	{"dimension 2^63", table(1, func(b *builder) { tensor(b, "t", 0, 0, 1<<63) }, 4), "dimension 0 is 9223372036854775808"},
	{"dimensions overflow", table(1, func(b *builder) { tensor(b, "t", 0, 0, 1<<32, 1<<32) }, 4), "the number of elements overflows"},
	{"bytes overflow", table(1, func(b *builder) { tensor(b, "t", 0, 0, 1<<62) }, 4), "the number of bytes overflows"},
	{"half a block", table(1, func(b *builder) { tensor(b, "t", 8, 0, 16, 2) }, 34), "the first is no multiple of the 32 of a block of Q8_0"},
	{"scalar of blocks", table(1, func(b *builder) { tensor(b, "t", 8, 0) }, 34), "no multiple of the 32"},
	{"unknown type", table(1, func(b *builder) { tensor(b, "t", 4, 0, 1) }, 4), "unknown type 4"},
	{"unknown type 999", table(1, func(b *builder) { tensor(b, "t", 999, 0, 1) }, 4), "unknown type 999"},
	{"offset between", table(1, func(b *builder) { tensor(b, "t", 0, 4, 1) }, 8), "offset 4, want a multiple of 32"},
	{"offset beyond", table(1, func(b *builder) { tensor(b, "t", 0, 1<<40, 1) }, 8), "offset 1099511627776, want a multiple of 32 inside the file"},
	{"tensor beyond the file", table(1, func(b *builder) { tensor(b, "t", 0, 0, 3) }, 11), `tensor "t": 12 bytes at byte 0 of the data, of which the file has 11`},
	{"second tensor beyond the file", table(2, func(b *builder) { tensor(b, "t", 0, 0, 8); tensor(b, "u", 0, 32, 8) }, 63), `tensor "u": 32 bytes at byte 32 of the data, of which the file has 63`},
	{"two tensors at one place", table(2, func(b *builder) { tensor(b, "t", 0, 0, 9); tensor(b, "u", 0, 32, 1) }, 64), `tensor "u": begins at byte 32 of the data, where tensor "t" ends at 36`},
	{"tensor twice", table(2, func(b *builder) { tensor(b, "t", 0, 0, 8); tensor(b, "t", 0, 32, 8) }, 64), `tensor "t": is there twice`},
	{"tensor without a name", table(1, func(b *builder) { tensor(b, "", 0, 0, 1) }, 4), "a tensor's name that is empty"},
	{"name of 65 bytes", table(1, func(b *builder) { tensor(b, strings.Repeat("x", 65), 0, 0, 1) }, 4), "a tensor's name of 65 bytes, want at most 64"},
	{"no data at all", start(3, 1, 0).put("t", u32(1), u64(1), u32(0), u64(0)).Bytes(), "of which the file has 0"},
}

func TestHostile(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			f, err := measure(t, c.file)
			require.Nil(t, f)
			refused(t, err, "x.gguf: ", c.want)
		})
	}
}

// A file that ends anywhere before its last element is refused, and never by a panic.
func TestCut(t *testing.T) {
	b := sound().Bytes()
	for n := range len(b) {
		f, err := parse(b[:n])
		require.Nil(t, f)
		refused(t, err)
	}
	f, err := parse(b)
	require.NoError(t, err)
	a, ok := f.Tensor("a")
	require.True(t, ok)
	require.Equal(t, []int{1, 2}, a.Shape)
	v, err := a.Float64s()
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2}, v)
	require.NoError(t, f.Close())
}

func TestAccepted(t *testing.T) {
	for _, version := range []int{2, 3} {
		f, err := parse(start(version, 0, 0).Bytes())
		require.NoError(t, err)
		require.Equal(t, version, f.Version)
	}
	// Another alignment, an order of the elements that is not that of the table, empty and scalar tensors.
	b := start(3, 4, 1).put("general.alignment", kindU32, uint32(64))
	tensor(b, "t", 0, 64, 2)
	tensor(b, "u", 0, 0)
	tensor(b, "none", 8, 64, 32, 0)
	tensor(b, "also none", 0, 64, 0)
	b.align(64).put(float32(3)).align(64).put(float32(4), float32(5))
	f, err := parse(b.Bytes())
	require.NoError(t, err)
	require.Empty(t, f.Notes)
	for name, want := range map[string][]float64{"t": {4, 5}, "u": {3}, "none": {}, "also none": {}} {
		x, ok := f.Tensor(name)
		require.True(t, ok)
		v, err := x.Float64s()
		require.NoError(t, err)
		require.Equal(t, want, v)
	}
	_, ok := f.Tensor("v")
	require.False(t, ok)
	f, err = parse(b.put(make(raw, 64)).Bytes())
	require.NoError(t, err)
	require.Equal(t, []string{"64 bytes follow the last tensor"}, f.Notes)
	for bytes, want := range map[int][]string{4 + 31: nil, 4 + 32: {"32 bytes follow the last tensor"}} { // padding is shorter than the alignment
		f, err := parse(table(1, func(b *builder) { tensor(b, "t", 0, 0, 1) }, bytes))
		require.NoError(t, err)
		require.Equal(t, want, f.Notes)
	}
}

// A file that is cut after it was opened, and a device that fails, give errors that are not about content.
func TestReadErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.gguf")
	b := sound().Bytes()
	require.NoError(t, os.WriteFile(path, b, 0o666))
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Truncate(path, int64(len(b)-1)))
	x, _ := f.Tensor("b")
	_, err = x.Float64s()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, `tensor "b"`)
	require.False(t, format.IsMalformed(err))
	_, err = ParseAt(bad{}, 1000, "x.gguf")
	require.ErrorIs(t, err, errBad)
	_, err = ParseAt(bytes.NewReader(b[:30]), int64(len(b)), "x.gguf")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.False(t, format.IsMalformed(err))
	_, err = Open(t.TempDir())
	refused(t, err, "is a directory")
	require.NoError(t, os.WriteFile(path, b[:50], 0o666))
	_, err = Open(path)
	refused(t, err, path)
	_, err = OpenModel(path)
	refused(t, err, path)
}

type bad struct{}

var errBad = errors.New("bad sector")

func (bad) ReadAt([]byte, int64) (int, error) { return 0, errBad }

// modelKeys are the metadata of the smallest llama.
func modelKeys() map[string]any {
	return map[string]any{
		"general.architecture": "llama", "llama.block_count": uint32(1), "llama.embedding_length": uint32(4), "llama.feed_forward_length": uint32(3),
		"llama.attention.head_count": uint32(2), "llama.context_length": uint32(8), "llama.attention.layer_norm_rms_epsilon": float32(1e-5),
	}
}

func modelTensors() map[string][]uint64 {
	return map[string][]uint64{"token_embd.weight": {4, 5}, "blk.0.attn_q.weight": {4, 4}, "output_norm.weight": {4}}
}

// Each row changes the smallest model in one way.
func TestModelRefused(t *testing.T) {
	build := func(keys map[string]any, tensors map[string][]uint64) (*Model, error) {
		f := &File{Path: "x.gguf", values: keys, r: bytes.NewReader(make([]byte, 4096)), Size: 4096, Alignment: 32}
		for name, dims := range tensors {
			e := info{name: name, n: uint8(len(dims)), offset: int64(len(f.infos)) * 128}
			copy(e.dims[:], []int64{1, 1, 1, 1})
			for i, d := range dims {
				e.dims[i] = int64(d)
			}
			f.infos = append(f.infos, e)
		}
		require.NoError(t, f.layout(0))
		return f.Model()
	}
	m, err := build(modelKeys(), modelTensors())
	require.NoError(t, err)
	require.True(t, m.Config.Tied)
	require.Equal(t, 10000.0, m.Config.Rope.Theta)
	require.Equal(t, 5, m.Config.Vocab)
	require.Equal(t, 2, m.Config.KVHeads)
	for _, c := range []struct {
		key   string
		value any // nil removes it
		want  string
	}{
		{"general.architecture", nil, `general.architecture: "" is not a supported architecture, want one of llama, qwen2`},
		{"general.architecture", "mamba", `"mamba" is not a supported architecture`},
		{"general.architecture", uint8(1), "is uint8, want string"},
		{"llama.block_count", nil, "llama.block_count: is missing"},
		{"llama.block_count", uint32(0), "num_hidden_layers: is 0"},
		{"llama.block_count", uint64(1 << 40), "llama.block_count: is 1099511627776"},
		{"llama.attention.head_count", "2", "is string, want an integer"},
		{"llama.attention.head_count", uint32(3), "hidden_size: is 4, no multiple of num_attention_heads 3"},
		{"llama.attention.head_count_kv", []int32{1}, "is an array of int32, want an integer"},
		{"llama.attention.layer_norm_rms_epsilon", nil, "llama.attention.layer_norm_rms_epsilon: is missing"},
		{"llama.attention.layer_norm_rms_epsilon", float32(math.Inf(1)), "want a finite number"},
		{"llama.attention.value_length", uint32(2), "heads of two sizes"},
		{"llama.expert_count", uint32(8), "mixtures of experts are not supported"},
		{"llama.rope.dimension_count", uint32(1), "llama.rope.dimension_count: is 1, a head has 2"},
		{"llama.rope.scaling.type", int8(1), "is int8, want string"},
		{"tokenizer.ggml.tokens", []int32{1}, "is an array of int32, want an array of string"},
		{"tokenizer.ggml.add_bos_token", uint8(1), "is uint8, want bool"},
	} {
		keys := modelKeys()
		keys[c.key] = c.value
		if c.value == nil {
			delete(keys, c.key)
		}
		_, err := build(keys, modelTensors())
		refused(t, err, "x.gguf: ", c.want)
	}
	for name, c := range map[string]struct {
		dims []uint64
		want string
	}{
		"token_embd.weight":      {nil, `tensor "token_embd.weight": is missing`},
		"rope_freqs.weight":      {[]uint64{2}, "has no place in a model of architecture llama with 1 layers"},
		"blk.1.attn_q.weight":    {[]uint64{4, 4}, "has no place"},
		"blk.01.attn_q.weight":   {[]uint64{4, 4}, "has no place"},
		"blk.0.attn_q.scale":     {[]uint64{4}, "has no place"},
		"blk.0.attn_q_norm.bias": {[]uint64{4}, "has no place"},
		"blk.0.attn_v.bias":      {[]uint64{4}, "has no place"},
		"blk.0.attn_k.weight":    {[]uint64{4, 6}, "the rows are no pairs in 2 heads"},
		"output_norm.bias":       {[]uint64{4}, "has no place"},
	} {
		tensors := modelTensors()
		tensors[name] = c.dims
		if c.dims == nil {
			delete(tensors, name)
		}
		_, err := build(modelKeys(), tensors)
		refused(t, err, name, c.want)
	}
	for key, value := range map[string]any{
		"tokenizer.ggml.token_type":   []int32{1},
		"tokenizer.ggml.scores":       []float32{1},
		"tokenizer.ggml.bos_token_id": uint32(3),
		"tokenizer.ggml.eos_token_id": int32(-2),
	} {
		keys := modelKeys()
		keys["tokenizer.ggml.tokens"] = []string{"a", "b", "c"}
		keys[key] = value
		_, err := build(keys, modelTensors())
		refused(t, err, key)
	}
	keys := modelKeys()
	keys["llama.rope.scaling.type"], keys["llama.rope.scaling.factor"], keys["llama.rope.scaling.original_context_length"] = "linear", float32(4), uint32(2)
	keys["tokenizer.ggml.padding_token_id"] = uint32(math.MaxUint32)
	m, err = build(keys, modelTensors())
	require.NoError(t, err)
	require.Equal(t, "linear", m.Config.Rope.Type)
	require.Equal(t, 4.0, m.Config.Rope.Factor)
	require.Equal(t, 2, m.Config.Rope.OriginalPositions)
	require.Equal(t, -1, m.Tokenizer.PAD)
}
