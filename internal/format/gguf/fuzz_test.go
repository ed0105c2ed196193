package gguf

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// allocated returns the bytes that f allocates, all together, whether or not they are freed.
func allocated(f func()) int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	f()
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - before)
}

// budget is what a reader may allocate for a file of n bytes.
func budget(n int) int64 { return 4*int64(n) + 16<<20 }

// measure parses b and holds the reader to its budget.
func measure(t require.TestingT, b []byte) (f *File, err error) {
	n := allocated(func() { f, err = parse(b) })
	require.LessOrEqual(t, n, budget(len(b)), "allocation of a file of %d bytes", len(b))
	return f, err
}

func FuzzGGUF(f *testing.F) {
	for _, c := range hostile {
		f.Add(c.file)
	}
	f.Add(sound().Bytes())
	for _, name := range []string{"kinds.gguf", "llama.gguf", "qwen2.gguf"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { read(t, b) })
}

// FuzzFields reads files whose fields are each chosen by a byte: sound ones and those at which a reader trips. It gets
// behind the checks that a file of random bytes fails at.
func FuzzFields(f *testing.F) {
	f.Add([]byte{0}, []byte{0, 0}, uint16(64))
	f.Add([]byte("\x10abcdefghijklmnopqrstuvwxyz"), []byte("\x09abcdefghijklmnopqrstuvwxyz"), uint16(999))
	embedding, query := []byte{0, 1, 0, 0, 0, 0, 0}, []byte{0, 0, 0, 0, 4, 0, 1} // [32, 32], and of no rows
	f.Add([]byte{}, embedding, uint16(4096))
	f.Add([]byte{}, append(embedding, query...), uint16(4096))
	f.Add([]byte{}, append(embedding, 0, 0, 0, 4, 8, 0, 1), uint16(4096)) // of 2⁶² rows and no columns
	f.Fuzz(func(t *testing.T, keys, tensors []byte, data uint16) { read(t, fields(keys, tensors, int(data))) })
}

// draw takes a byte of a source and returns one of a list by it, the first when there is none left.
func draw[T any](from *[]byte, list ...T) T {
	if len(*from) == 0 {
		return list[0]
	}
	b := (*from)[0]
	*from = (*from)[1:]
	return list[int(b)%len(list)]
}

// fields writes a file by what the bytes of keys and tensors choose, with so many bytes of data.
func fields(keys, tensors []byte, data int) []byte {
	b := new(builder).put(raw("GGUF"), draw(&keys, u32(3), u32(2), u32(1)))
	var table, metadata builder
	n := 0
	for len(tensors) > 0 {
		part := draw(&tensors, "attn_q", "attn_k", "attn_v", "attn_norm", "ffn_up", "ffn_down")
		table.put(draw(&tensors, fmt.Sprintf("blk.%d.%s.weight", n%3, part), "token_embd.weight", "output.weight", "output_norm.weight",
			fmt.Sprintf("blk.%d.%s.bias", n%3, part), "blk.18446744073709551616.attn_q.weight", "x", "", strings.Repeat("n", 65)))
		dims := draw(&tensors, 2, 1, 2, 2, 3, 4, 0, 5)
		table.put(u32(dims))
		for range dims {
			table.put(draw(&tensors, 32, 2, 1, 4, 0, 256, 1<<31, 1<<32, 1<<62, 1<<63, 1<<64-1, uint64(3)))
		}
		table.put(draw(&tensors, u32(0), 1, 2, 3, 8, 24, 28, 30, 10, 40, 255, 256, 1<<31), draw(&tensors, uint64(32*n), uint64(256*n), 0, 32, 31, 1<<63, 1<<64-32))
		n++
	}
	k := 0
	put := func(key string, fields ...any) {
		metadata.put(key).put(fields...)
		k++
	}
	for i, key := range []string{"block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length"} {
		put("llama."+key, kindU32, draw(&keys, []uint32{2, 4, 8, 2, 16}[i], 1, 4, 0, 32, 1<<31, 1<<32-1))
	}
	put("llama.attention.layer_norm_rms_epsilon", kindF32, draw(&keys, float32(1e-5), 0, -1, float32(math.NaN())))
	put("general.architecture", kindString, draw(&keys, "llama", "qwen2", "llama", ""))
	for len(keys) > 0 {
		key := draw(&keys, "general.alignment", "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.scores",
			"tokenizer.ggml.bos_token_id", "llama.attention.head_count_kv", "llama.attention.key_length", "llama.rope.freq_base", "llama.rope.dimension_count",
			"llama.rope.scaling.type", "llama.rope.scaling.factor", "split.count", "llama.expert_count", fmt.Sprint(k))
		kind := draw(&keys, kindU32, kindArray, kindString, kindF32, kindI64, kindU64, kindF64, kindBool, kindU8, kindI8, kindU16, kindI16, kindI32, kind(13))
		if kind != kindArray {
			put(key, kind)
			value(&metadata, kind, &keys)
			continue
		}
		count := draw(&keys, 1, 0, 2, 5, 1<<31, 1<<61, 1<<63, uint64(1<<64-1))
		kind = draw(&keys, kindString, kindI32, kindF32, kindU8, kindBool, kindF64, kindArray, ^kind)
		put(key, kindArray, kind, count)
		for range min(count, 5) {
			value(&metadata, kind, &keys)
		}
	}
	b.put(draw(&keys, u64(n), u64(n), u64(n+1), 1<<63), draw(&keys, u64(k), u64(k-1), 1<<63)).Write(metadata.Bytes())
	b.Write(table.Bytes())
	return b.align(32).put(make(raw, data)).Bytes()
}

// value writes a value of that kind.
func value(b *builder, k kind, from *[]byte) {
	n := draw(from, uint64(0), 1, 2, 32, 127, 128, 255, 1<<15, 1<<31, 1<<32-1, 1<<63, 1<<64-1)
	switch k {
	case kindString:
		b.put(draw(from, "a", "b", "a b", "", "\xff", "linear", "none", strings.Repeat("s", 300)))
	case kindU8, kindI8, kindBool:
		b.put(uint8(n))
	case kindU16, kindI16:
		b.put(uint16(n))
	case kindU32, kindI32, kindF32:
		b.put(uint32(n))
	default:
		b.put(n)
	}
}

// read demands of what is read from b what every file promises.
func read(t *testing.T, b []byte) {
	file, err := measure(t, b)
	if err != nil {
		require.True(t, format.IsMalformed(err), "%v", err)
		require.Nil(t, file)
		return
	}
	// Accepted: every tensor that can be decoded can be read, and its bytes lie in the file.
	end := int64(0)
	for x := range file.Tensors() {
		require.LessOrEqual(t, len(x.Shape), maxDims)
		k := &types[x.Type]
		size := int64(x.Len()) / k.block * k.bytes
		require.GreaterOrEqual(t, x.at, file.data)
		require.LessOrEqual(t, x.at+size, int64(len(b)))
		if size > 0 {
			require.GreaterOrEqual(t, x.at, end)
			end = x.at + size
		}
		v, err := x.Float64s()
		if k.decode == nil {
			require.True(t, format.IsMalformed(err))
			continue
		}
		require.NoError(t, err)
		require.Len(t, v, x.Len())
		found, ok := file.Tensor(x.Name)
		require.True(t, ok)
		require.Equal(t, x.at, found.at)
	}
	m, err := file.Model()
	if err != nil {
		require.True(t, format.IsMalformed(err), "%v", err)
		return
	}
	for _, name := range m.Names() {
		shape, err := m.Shape(name)
		require.NoError(t, err)
		if v, err := m.Read(name, shape...); err == nil {
			found, _ := m.find(name)
			require.Len(t, v, found.tensor.Len())
		}
	}
}

// The first seeds of FuzzFields are models, whose weights of no elements are read at no cost.
func TestFields(t *testing.T) {
	embedding := []byte{0, 1, 0, 0, 0, 0, 0}
	for _, query := range [][]byte{nil, {0, 0, 0, 0, 4, 0, 1}, {0, 0, 0, 4, 8, 0, 1}} {
		b := fields(nil, append(slices.Clone(embedding), query...), 4096)
		f, err := parse(b)
		require.NoError(t, err)
		m, err := f.Model()
		require.NoError(t, err)
		require.Len(t, m.Names(), 1+len(query)/7)
		read(t, b)
	}
}

// TestAllocation measures files that are made to cost as much memory per byte as they can.
func TestAllocation(t *testing.T) {
	const n = 50_000
	strs := start(3, 0, 1).put("k", kindArray, kindString, u64(n))
	for range n {
		strs.put("x")
	}
	keys := start(3, 0, MaxKeys)
	for i := range MaxKeys {
		keys.put(fmt.Sprintf("%x", i), kindU8, uint8(1))
	}
	tensors := start(3, n, 0)
	for i := range n {
		name := fmt.Sprintf("%x", i)
		tensors.put(name, u32(0), u32(0), u64(0)) // zero dimensions: a scalar
	}
	empty := start(3, n, 0)
	for i := range n {
		empty.put(fmt.Sprintf("%x", i), u32(1), u64(0), u32(0), u64(0))
	}
	lying := start(3, 0, 1).put("k", kindArray, kindString, u64(4<<20/8)).put(bytes.Repeat([]byte{0xff}, 4<<20))
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"strings": {strs.Bytes(), ""},
		"keys":    {keys.Bytes(), ""},
		"scalars": {tensors.align(32).put(make(raw, 64)).Bytes(), "begins at byte 0 of the data"},
		"empty":   {empty.align(32).Bytes(), ""},
		"lying":   {lying.Bytes(), "a string of 18446744073709551615 bytes"},
		"numbers": {start(3, 0, 1).put("k", kindArray, kindU8, u64(1<<20), make(raw, 1<<20)).Bytes(), ""},
		"text":    {start(3, 0, 1).put("k", kindString, strings.Repeat("x", MaxString)).Bytes(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := measure(t, c.b)
			if c.want != "" {
				refused(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.NotNil(t, f)
		})
	}
}
