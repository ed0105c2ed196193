package hf

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"

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

func FuzzConfig(f *testing.F) {
	for _, s := range []string{llamaConfig, gptjConfig, tiedConfig, `{"model_type": "qwen2"}`, `{"quantization_config": {}}`} {
		f.Add(s)
	}
	for _, name := range []string{"gpt2", "gptj", "llama", "llama_bias", "llama_int8", "qwen2", "qwen2_sharded"} {
		b, err := os.ReadFile(filepath.Join("testdata", name, "config.json"))
		require.NoError(f, err)
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c *Config
		var err error
		require.LessOrEqual(t, allocated(func() { c, err = ParseConfig("c", []byte(text)) }), budget(len(text)))
		_, gerr := ParseGeneration("g", []byte(text))
		if gerr != nil {
			require.True(t, format.IsMalformed(gerr))
		}
		if err != nil {
			require.True(t, format.IsMalformed(err))
			require.Nil(t, c)
			return
		}
		if c.OneOf(arch.Types()) != nil || c.Rope.Type == "" && c.Type != "gpt2" && c.Validate() != nil {
			return // sizes that make no sense are refused for those models alone with which something is computed
		}
		// What callers divide by, index with and multiply.
		for _, n := range []int{c.Hidden, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.Inner, c.Vocab, c.Positions} {
			require.Positive(t, n)
			require.LessOrEqual(t, n, maxPositions)
		}
		require.Zero(t, c.Heads%c.KVHeads)
		require.LessOrEqual(t, c.Rope.Dim, c.HeadDim)
		require.Zero(t, c.Rope.Dim%2)
		if c.Windows != nil {
			require.Len(t, c.Windows, c.Layers)
		}
	})
}

func FuzzIndex(f *testing.F) {
	b, err := os.ReadFile("testdata/qwen2_sharded/model.safetensors.index.json")
	require.NoError(f, err)
	f.Add(string(b))
	f.Add(`{"metadata": {"total_size": 1e30}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}`)
	f.Add(`{"metadata": 3, "weight_map": {"a": "../x.safetensors"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var names []string
		var tensors []mapped
		var err error
		require.LessOrEqual(t, allocated(func() { names, tensors, _, err = parseIndex("i", []byte(text)) }), budget(len(text)))
		if err != nil {
			require.True(t, format.IsMalformed(err))
			return
		}
		require.NotEmpty(t, names)
		used := make([]bool, len(names))
		for i, m := range tensors {
			used[m.shard] = true
			require.True(t, i == 0 || tensors[i-1].tensor < m.tensor)
		}
		require.NotContains(t, used, false)
		for i, n := range names {
			require.True(t, i == 0 || names[i-1] < n)
			require.Equal(t, n, filepath.Base(n))
			require.True(t, filepath.IsLocal(n))
		}
	})
}

// An index that is made to cost as much memory per byte as it can: short names, or many shards.
func TestIndexAllocation(t *testing.T) {
	for _, shards := range []int{1, maxShards} {
		var b strings.Builder
		b.WriteString(`{"weight_map":{`)
		n := 100_000
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"%x":"%x.safetensors"`, i, i%shards)
		}
		b.WriteString("}}")
		text := []byte(b.String())
		var tensors []mapped
		var names []string
		var err error
		require.LessOrEqual(t, allocated(func() { names, tensors, _, err = parseIndex("i", text) }), budget(len(text)))
		require.NoError(t, err)
		require.Len(t, tensors, n)
		require.Len(t, names, shards)
	}
}
