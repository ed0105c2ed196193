package pretrained

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/gguf"
	"plumbline/internal/format/hf"
	"plumbline/internal/format/safetensors"
)

// stored opens a model and returns what the reader of its format says of a weight.
func stored(t testing.TB, path string) (s *Source, read func(name string, shape ...int) ([]float64, error)) {
	s, err := Open(path, Options{NoTokenizer: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	if filepath.Ext(path) == ".gguf" {
		m, err := gguf.OpenModel(path)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		return s, m.Read
	}
	f, err := hf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return s, func(name string, shape ...int) ([]float64, error) {
		if !f.IsInt8(name) {
			return f.Read(name, shape...)
		}
		q, err := f.Int8(name, shape[0], shape[1])
		require.NoError(t, err)
		w := make([]float64, len(q.Codes))
		for i, c := range q.Codes {
			w[i] = float64(c) * q.AbsMax[i/q.In] / 127
		}
		return w, nil
	}
}

// Whatever rows a weight is read by, in whatever order, they are those of the file, and float32 is their nearest.
func TestRows(t *testing.T) {
	types := map[string]int{}
	for _, path := range []string{"../format/hf/testdata/gpt2", "../format/hf/testdata/qwen2_sharded", "../format/hf/testdata/llama_int8",
		"../format/gguf/testdata/llama.gguf", "../format/gguf/testdata/qwen2.gguf", "../../golden/checkpoint/hf_llama_bf16", "../assets/tiny"} {
		s, read := stored(t, path)
		r := rand.New(rand.NewPCG(1, 2))
		for _, tensor := range s.Config.Tensors() {
			w, err := s.Weight(tensor.Name)
			require.NoError(t, err)
			require.Equal(t, tensor.Shape, w.Shape, tensor.Name)
			types[w.Type]++
			want, err := read(tensor.Name, tensor.Shape...)
			require.NoError(t, err)
			got, err := w.Float64s()
			require.NoError(t, err)
			require.Equal(t, want, got, tensor.Name)
			require.Equal(t, len(want), w.Len())
			for range 4 {
				first := r.IntN(w.Rows())
				n := 1 + r.IntN(w.Rows()-first)
				rows, rows32 := make([]float64, n*w.Width()), make([]float32, n*w.Width())
				require.NoError(t, w.ReadRows(rows, first))
				require.Equal(t, want[first*w.Width():(first+n)*w.Width()], rows, tensor.Name)
				require.NoError(t, w.ReadRows32(rows32, first))
				for i, v := range rows {
					require.Equal(t, float32(v), rows32[i])
				}
			}
			require.Panics(t, func() { _ = w.ReadRows(make([]float64, w.Width()), w.Rows()) })
			require.Panics(t, func() { _ = w.ReadRows(make([]float64, w.Width()+1), 0) })
		}
	}
	for _, kind := range []string{"F32", "BF16", "F16", "I8"} {
		require.NotZero(t, types[kind], "%s: %v", kind, types)
	}
}

// Rows of several goroutines are those of one.
func TestRowsTogether(t *testing.T) {
	s, read := stored(t, "../format/hf/testdata/llama_int8")
	for _, tensor := range s.Config.Tensors() {
		w, err := s.Weight(tensor.Name)
		require.NoError(t, err)
		want, err := read(tensor.Name, tensor.Shape...)
		require.NoError(t, err)
		var group sync.WaitGroup
		for row := range w.Rows() {
			group.Go(func() {
				got := make([]float64, w.Width())
				if w.ReadRows(got, row) != nil || got[0] != want[row*w.Width()] {
					t.Errorf("%s row %d", w.Name, row)
				}
			})
		}
		group.Wait()
	}
}

// A tied head is the embedding, by its own name.
func TestTied(t *testing.T) {
	s, err := Open("../../golden/peft/tied", Options{NoTokenizer: true})
	require.NoError(t, err)
	defer s.Close()
	require.True(t, s.Config.Tied)
	head, err := s.Weight(arch.HeadWeight)
	require.NoError(t, err)
	embedding, err := s.Weight(arch.EmbeddingOf(s.Config.Type))
	require.NoError(t, err)
	a, err := head.Float64s()
	require.NoError(t, err)
	b, err := embedding.Float64s()
	require.NoError(t, err)
	require.Equal(t, a, b)
	_, err = s.Weight("model.layers.9.mlp.up_proj.weight")
	require.True(t, format.IsMalformed(err))
}

// What is not finite is refused when its rows are read, and not before.
func TestNotFinite(t *testing.T) {
	dir := t.TempDir()
	config, err := os.ReadFile("../../golden/peft/tied/config.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644))
	f, err := safetensors.Open("../../golden/peft/tied/model.safetensors")
	require.NoError(t, err)
	defer f.Close()
	var list []safetensors.Tensor
	for name, a := range f.Tensors() {
		v, err := a.Float64s()
		require.NoError(t, err)
		switch name {
		case "model.norm.weight":
			v[2] = math.NaN()
		case "model.layers.0.mlp.up_proj.weight":
			v[3*a.Shape[1]] = 1e300
		}
		list = append(list, safetensors.Tensor{Name: name, DType: format.F64, Shape: a.Shape, Data: v})
	}
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), nil, list))
	s, err := Open(dir, Options{NoTokenizer: true})
	require.NoError(t, err)
	defer s.Close()
	w, err := s.Weight("model.norm.weight")
	require.NoError(t, err)
	_, err = w.Float64s()
	require.ErrorContains(t, err, `tensor "model.norm.weight": element 2 is NaN`)
	w, err = s.Weight("model.layers.0.mlp.up_proj.weight")
	require.NoError(t, err)
	_, err = w.Float64s()
	require.NoError(t, err)
	require.ErrorContains(t, w.ReadRows32(make([]float32, w.Len()), 0), "is 1e+300: beyond float32")
	require.NoError(t, w.ReadRows32(make([]float32, 3*w.Width()), 0))
}

// A weight that is read a few rows at a time leaves no garbage of its size.
func TestRowsLeaveNoGarbage(t *testing.T) {
	w := &Weight{Shape: []int{4096, 2048}, rows: func(dst []float64, _ int) error { clear(dst); return nil }}
	dst := make([]float32, 16*w.Width())
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a pool does not find what another processor has put back last
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for first := 0; first < w.Rows(); first += 16 {
		require.NoError(t, w.ReadRows32(dst, first))
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(128*8<<15)) // half of what 256 calls take: the race detector drops one buffer in four
}
