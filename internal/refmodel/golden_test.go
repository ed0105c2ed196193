package refmodel

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// golden is what peft@0.21.2 and transformers@5.23.0 computed in float64 with three small bases and adapters of every kind,
// saved by PEFT and written by plumbline: golden/gen/peft/produce.py.
const golden = "../../golden/peft"

type goldenCase struct {
	Base   string
	Greedy []int
}

type expectation struct {
	IDs            []int
	Greedy         map[string][]int // of the bases
	Cases, Written map[string]goldenCase
}

func expected(t testing.TB) (*expectation, *safetensors.File) {
	text, err := os.ReadFile(filepath.Join(golden, "expect.json"))
	require.NoError(t, err)
	e := new(expectation)
	require.NoError(t, json.Unmarshal(text, e))
	require.Len(t, e.IDs, 8)
	f, err := safetensors.Open(filepath.Join(golden, "expect.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return e, f
}

func values(t testing.TB, f *safetensors.File, name string) []float64 {
	a, ok := f.Tensor(name)
	require.True(t, ok, name)
	v, err := a.Float64s()
	require.NoError(t, err)
	return v
}

// logits returns those of all tokens of a sequence.
func logits(m *Model, ids []int) []float64 {
	var tape ad.Tape
	net := m.Base.On(&tape, model.Trainable{Adapter: m.Adapter})
	return net.Logits(net.Forward(model.Input{Batch: 1, Time: len(ids), IDs: ids}).Hidden).Data()
}

// apart returns the largest difference over the largest magnitude; NaN where something is not a number.
func apart(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.NaN()
	}
	diff, size := 0.0, 0.0
	for i := range want {
		d := math.Abs(got[i] - want[i])
		if math.IsNaN(d) {
			return d
		}
		diff, size = max(diff, d), max(size, math.Abs(want[i]))
	}
	return diff / size
}

// agree is how far two float64 computations of the small models may be apart, relative to the largest logit. Their longest
// sums have 24 terms and there are about 40 operations in a row, so about 24·40·u = 1e-13 in any order of summation, times
// 100 for what norms and the softmax amplify; a wrong formula is at 1e-3 and above.
const agree = 1e-11

func TestLogitsOfTransformers(t *testing.T) {
	e, f := expected(t)
	generated := 0
	check := func(path, adapter, name string, greedy []int) {
		m, err := Open(path, Options{Adapter: adapter, NoTokenizer: true})
		require.NoError(t, err, name)
		err2 := apart(logits(m, e.IDs), values(t, f, name))
		require.LessOrEqual(t, err2, agree, name)
		got, err := m.Generate(context.Background(), e.IDs, GenerateOptions{Tokens: 12}, nil)
		require.NoError(t, err)
		require.Equal(t, greedy, got, name)
		generated += len(got)
	}
	for base, greedy := range e.Greedy {
		check(filepath.Join(golden, base), "", "base/"+base, greedy)
	}
	for name, c := range e.Cases {
		if name == "bias" { // known, and refused
			_, err := Open(filepath.Join(golden, c.Base), Options{Adapter: filepath.Join(golden, "cases", name), NoTokenizer: true})
			require.ErrorContains(t, err, "biases of B are not supported")
			continue
		}
		check(filepath.Join(golden, c.Base), filepath.Join(golden, "cases", name), "logits/"+name, c.Greedy)
	}
	for name, c := range e.Written {
		check(filepath.Join(golden, c.Base), filepath.Join(golden, "written", name), "logits/written/"+name, c.Greedy)
	}
	require.Greater(t, generated, 200)
}

// Each planted error of an adapter's loading must move the logits of some golden by more than agree.
func TestGoldensCatchFaults(t *testing.T) {
	e, f := expected(t)
	for name, plant := range map[string]func(m *Model){
		"adapter left out": func(m *Model) { m.Adapter = nil },
		"scale left out":   each(func(l *model.LoRA) { l.Scale = 1 }),
		"scale squared":    each(func(l *model.LoRA) { l.Scale *= l.Scale }),
		"scale by r":       each(func(l *model.LoRA) { l.Scale *= math.Sqrt(float64(l.Rank)) }),
		"factors exchanged": each(func(l *model.LoRA) {
			if len(l.A) == len(l.B) {
				l.A, l.B = l.B, l.A
			}
		}),
		"A transposed": each(func(l *model.LoRA) { l.A = transposed(l.A, l.Rank) }),
		"B transposed": each(func(l *model.LoRA) { l.B = transposed(l.B, len(l.B)/l.Rank) }),
		"one module lost": func(m *Model) {
			for k := range m.Adapter {
				delete(m.Adapter, k)
				return
			}
		},
	} {
		caught := 0
		for of, c := range e.Cases {
			if of == "bias" {
				continue
			}
			m, err := Open(filepath.Join(golden, c.Base), Options{Adapter: filepath.Join(golden, "cases", of), NoTokenizer: true})
			require.NoError(t, err)
			plant(m)
			if !(apart(logits(m, e.IDs), values(t, f, "logits/"+of)) <= agree) {
				caught++
			}
		}
		require.NotZero(t, caught, name)
	}
}

// An adapter of an embedding is part of the logits, of a tied head it is none, and its scaling, its orientation and its place
// matter.
func TestEmbeddingAdapterFaults(t *testing.T) {
	e, f := expected(t)
	for _, name := range []string{"embedding", "embedding_tied", "embedding_gpt2"} {
		c := e.Cases[name]
		from := filepath.Join(golden, "cases", name)
		for _, change := range []struct {
			what string
			do   func(list []safetensors.Tensor)
		}{
			{"A is 0", func(list []safetensors.Tensor) { scale(t, list, ".lora_embedding_A", 0) }},
			{"B twice", func(list []safetensors.Tensor) { scale(t, list, ".lora_embedding_B", 2) }},
		} {
			dir := t.TempDir()
			config, err := os.ReadFile(filepath.Join(from, "adapter_config.json"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_config.json"), config, 0o644))
			st, err := safetensors.Open(filepath.Join(from, "adapter_model.safetensors"))
			require.NoError(t, err)
			var list []safetensors.Tensor
			for name, a := range st.Tensors() {
				v, err := a.Float64s()
				require.NoError(t, err)
				list = append(list, safetensors.Tensor{Name: name, DType: a.DType, Shape: a.Shape, Data: v})
			}
			require.NoError(t, st.Close())
			change.do(list)
			require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), nil, list))
			m, err := Open(filepath.Join(golden, c.Base), Options{Adapter: dir, NoTokenizer: true})
			require.NoError(t, err)
			require.Greater(t, apart(logits(m, e.IDs), values(t, f, "logits/"+name)), 1e-3, "%s, %s", name, change.what)
		}
		m, err := Open(filepath.Join(golden, c.Base), Options{Adapter: from, NoTokenizer: true})
		require.NoError(t, err)
		require.Equal(t, false, m.Base.Config.Tied, name)
	}
	from, dir := filepath.Join(golden, "cases", "embedding_tied"), t.TempDir()
	for _, n := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		text, err := os.ReadFile(filepath.Join(from, n))
		require.NoError(t, err)
		changed := strings.Replace(string(text), `"ensure_weight_tying": false`, `"ensure_weight_tying": true`, 1)
		require.Equal(t, n == "adapter_config.json", changed != string(text))
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte(changed), 0o644))
	}
	_, err := Open(filepath.Join(golden, "tied"), Options{Adapter: dir, NoTokenizer: true})
	require.ErrorContains(t, err, "ensure_weight_tying")
	require.True(t, format.IsMalformed(err))
}

func scale(t *testing.T, list []safetensors.Tensor, end string, by float64) {
	n := 0
	for i := range list {
		if strings.HasSuffix(list[i].Name, end) {
			for j := range list[i].Data {
				list[i].Data[j] *= by
			}
			n++
		}
	}
	require.NotZero(t, n)
}

// A bias that was trained and is not in the file: PEFT keeps the base's and says nothing.
func TestTrainedBiasLost(t *testing.T) {
	for _, name := range []string{"bias_all", "bias_lora_only"} {
		from, dir := filepath.Join(golden, "cases", name), t.TempDir()
		config, err := os.ReadFile(filepath.Join(from, "adapter_config.json"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_config.json"), config, 0o644))
		f, err := safetensors.Open(filepath.Join(from, "adapter_model.safetensors"))
		require.NoError(t, err)
		defer f.Close()
		var list []safetensors.Tensor
		lost := ""
		for name, a := range f.Tensors() {
			if lost == "" && strings.HasSuffix(name, ".bias") {
				lost = strings.Replace(strings.TrimPrefix(name, "base_model.model."), ".base_layer", "", 1)
				continue
			}
			list = append(list, safetensors.Tensor{Name: name, Array: a})
		}
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), nil, list))
		_, err = Open(filepath.Join(golden, "gpt2"), Options{Adapter: dir, NoTokenizer: true})
		require.ErrorContains(t, err, lost+": is missing: it is trained whole by adapter_config.json")
		require.True(t, format.IsMalformed(err))
	}
}

func each(f func(l *model.LoRA)) func(m *Model) {
	return func(m *Model) {
		for k, l := range m.Adapter {
			f(&l)
			m.Adapter[k] = l
		}
	}
}

func transposed(v []float64, rows int) []float64 {
	cols := len(v) / rows
	w := make([]float64, len(v))
	for i := range rows {
		for j := range cols {
			w[j*rows+i] = v[i*cols+j]
		}
	}
	return w
}
