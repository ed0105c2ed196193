package peft

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// golden is what peft@0.21.2 saved, and what it made of adapters: golden/gen/peft/produce.py.
const golden = "../../../golden/peft"

var written = flag.String("written", "", "folder for the adapters of TestWrittenForPEFT")

type goldenCase struct {
	Base    string
	Scaling map[string][3]float64 // r, α, s of every module with an adapter
}

type expectation struct {
	Modules        map[string][][4]any // of the bases: path, inputs, outputs, kind
	Cases, Written map[string]goldenCase
}

func expected(t *testing.T) (*expectation, *safetensors.File) {
	text, err := os.ReadFile(filepath.Join(golden, "expect.json"))
	require.NoError(t, err)
	e := new(expectation)
	require.NoError(t, json.Unmarshal(text, e))
	f, err := safetensors.Open(filepath.Join(golden, "expect.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return e, f
}

// base returns the modules of a base of the goldens.
func (e *expectation) base(name string) []Base {
	var list []Base
	for _, m := range e.Modules[name] {
		list = append(list, Base{Path: m[0].(string), In: int(m[1].(float64)), Out: int(m[2].(float64)), Embedding: m[3] == "embedding", Head: m[3] == "head"})
	}
	return list
}

// delta computes s·B·A [out, in] of factors in float64.
func delta(s float64, a, b []float64, r, in, out int) []float64 {
	d := make([]float64, out*in)
	for i := range out {
		for j := range in {
			sum := 0.0
			for k := range r {
				sum += float64(b[i*r+k] * a[k*in+j])
			}
			d[i*in+j] = s * sum
		}
	}
	return d
}

// sameDelta compares s·B·A with PEFT's, which is transposed where PEFT stores the base's weight so. Both sum r products in
// float64: γ_{r+1} of the sum of their magnitudes bounds the difference of any two orders.
func sameDelta(t *testing.T, want *format.Array, m Module, a, b []float64, transposed bool) {
	got := delta(m.Scale, a, b, m.R, m.In, m.Out)
	abs := func(v []float64) []float64 {
		w := slices.Clone(v)
		for i := range w {
			w[i] = math.Abs(w[i])
		}
		return w
	}
	size := delta(math.Abs(m.Scale), abs(a), abs(b), m.R, m.In, m.Out)
	values, err := want.Float64s()
	require.NoError(t, err)
	shape := []int{m.Out, m.In}
	if transposed {
		slices.Reverse(shape)
	}
	require.Equal(t, shape, want.Shape, m.Path)
	different := false
	for i := range m.Out {
		for j := range m.In {
			w := values[i*m.In+j]
			if transposed {
				w = values[j*m.Out+i]
			}
			bound := 2 * float64(m.R+2) * 0x1p-53 * size[i*m.In+j]
			require.LessOrEqual(t, math.Abs(got[i*m.In+j]-w), bound, "%s [%d, %d]", m.Path, i, j)
			different = different || w != 0
		}
	}
	require.True(t, different, "a delta of zeros compares nothing")
}

func TestReadsWhatPEFTSaved(t *testing.T) {
	e, tensors := expected(t)
	require.GreaterOrEqual(t, len(e.Cases), 19)
	for name, c := range e.Cases {
		t.Run(name, func(t *testing.T) {
			a, err := Open(filepath.Join(golden, "cases", name))
			require.NoError(t, err)
			defer a.Close()
			require.Empty(t, a.Notes)
			require.Equal(t, c.Base, a.Config.BaseModel)
			modules, err := a.Modules()
			require.NoError(t, err)
			require.Len(t, modules, len(c.Scaling))
			for _, m := range modules {
				want, ok := c.Scaling[m.Path]
				require.True(t, ok, m.Path)
				require.Equal(t, want, [3]float64{float64(m.R), m.Alpha, m.Scale}, m.Path)
				fa, fb, err := m.Factors()
				require.NoError(t, err)
				d, ok := tensors.Tensor("delta/" + name + "/" + m.Path)
				require.True(t, ok, m.Path)
				sameDelta(t, d, m, fa, fb, c.Base == "gpt2" || m.Embedding)
			}
			notes, err := a.Fit(modules, e.base(c.Base))
			require.NoError(t, err)
			if name == "patterns" { // "q_pro" and "layers.0" match no whole part of a path
				require.Len(t, notes, 2, "%v", notes)
				require.Contains(t, notes[0], `"q_pro" matches no module`)
				require.Contains(t, notes[1], `"layers.0" matches no module`)
			} else {
				require.Empty(t, notes)
			}
			// every module of the base is a target if and only if PEFT gave it an adapter
			for _, b := range e.base(c.Base) {
				_, has := c.Scaling[b.Path]
				require.Equal(t, has, a.Config.Target(b.Path) && !(a.Config.Targets.allLinear() && (b.Head || b.Embedding)), b.Path)
			}
			var saved []string
			for _, s := range a.Saved() {
				saved = append(saved, s.Module)
			}
			switch name {
			case "saved":
				require.Equal(t, []string{"lm_head.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
					"model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight", "model.norm.weight"}, saved)
			case "saved_tied":
				require.Equal(t, []string{"lm_head.weight"}, saved)
			case "bias_lora_only":
				require.Equal(t, []string{"transformer.h.0.attn.c_attn.bias", "transformer.h.1.attn.c_attn.bias"}, saved)
			case "bias_all":
				require.Len(t, saved, 13)
				require.Contains(t, saved, "transformer.h.0.mlp.c_proj.bias")
				require.Contains(t, saved, "transformer.ln_f.bias")
			case "embedding", "embedding_tied", "saved_embedding":
				require.Equal(t, []string{"model.embed_tokens.weight"}, saved)
			default:
				require.Empty(t, saved)
			}
		})
	}
}

// TestWrittenForPEFT writes the adapters that the producer hands to PEFT, and demands that they are still, byte by byte,
// those whose results are recorded.
func TestWrittenForPEFT(t *testing.T) {
	dir := *written
	if dir == "" {
		dir = t.TempDir()
	}
	for name, c := range writtenCases {
		require.NoError(t, Write(filepath.Join(dir, name), c))
	}
	if *written != "" {
		return
	}
	e, tensors := expected(t)
	require.Len(t, e.Written, len(writtenCases))
	for name, w := range e.Written {
		for _, file := range []string{ConfigFile, WeightsFile} {
			got, err := os.ReadFile(filepath.Join(dir, name, file))
			require.NoError(t, err)
			loaded, err := os.ReadFile(filepath.Join(golden, "written", name, file))
			require.NoError(t, err)
			require.True(t, bytes.Equal(loaded, got), "%s of %s is not the file that PEFT loaded: run golden/gen/peft/produce.py", file, name)
		}
		c := writtenCases[name]
		require.Len(t, w.Scaling, len(c.Factors))
		for _, f := range c.Factors {
			m := Module{Path: f.Path, In: f.In, Out: f.Out}
			m.R, m.Alpha, m.Scale = c.Config.Scaling(f.Path)
			require.Equal(t, w.Scaling[f.Path], [3]float64{float64(m.R), m.Alpha, m.Scale}, f.Path)
			d, ok := tensors.Tensor("delta/written/" + name + "/" + f.Path)
			require.True(t, ok, f.Path)
			sameDelta(t, d, m, rounded(f.A, c.DType), rounded(f.B, c.DType), w.Base == "gpt2")
		}
	}
}

// ramp returns n values of both signs that differ, exact in bfloat16 but for the last.
func ramp(n, seed int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = float64((i*37+seed*11)%64-31) / 64
	}
	v[n-1] = 1.0 / 3
	return v
}

func factors(r, in, out, seed int, path string) Factors {
	return Factors{Path: path, In: in, Out: out, A: ramp(r*in, seed), B: ramp(out*r, seed+1)}
}

func layered(path string, make func(path string, layer int) Factors) []Factors {
	var list []Factors
	for l := range 2 {
		list = append(list, make("model.layers."+strconv.Itoa(l)+path, l))
	}
	return list
}

var writtenCases = map[string]Contents{
	"list": {
		Config: Config{BaseModel: "llama", TaskType: "CAUSAL_LM", R: 4, Alpha: 8, Bias: "none", Targets: Targets{List: []string{"q_proj"}}},
		DType:  format.F32, Fingerprint: "4443621584f0c939ce5ad37a948ad33968afeec5b4310aa1ba5039f861cbc929", // of golden/peft/llama
		Factors: layered(".self_attn.q_proj", func(p string, l int) Factors { return factors(4, 16, 16, l, p) }),
	},
	"regex": {
		Config: Config{BaseModel: "llama", TaskType: "CAUSAL_LM", R: 2, Alpha: 0.75, RSLoRA: true, Bias: "none", Targets: Targets{Regex: `.*\.(up|down)_proj`},
			RankPattern: []Pattern{{`.*\.1\..*`, 3}, {"down_proj", 1}}, AlphaPattern: []Pattern{{"up_proj", 5}, {`.*_proj`, 2.5}}},
		DType: format.F32,
		Factors: slices.Concat(
			layered(".mlp.up_proj", func(p string, l int) Factors { return factors(2+l, 16, 24, l, p) }),
			layered(".mlp.down_proj", func(p string, l int) Factors { return factors(1+2*l, 24, 16, l, p) })),
	},
	"layers": {
		Config: Config{BaseModel: "llama", TaskType: "CAUSAL_LM", R: 1, Alpha: 1, Bias: "none", Targets: Targets{List: []string{"k_proj", "v_proj"}},
			Exclude: Targets{List: []string{"v_proj"}}, Layers: []int{1}, LayersPattern: []string{"layers"}},
		DType:   format.F32,
		Factors: []Factors{factors(1, 16, 8, 1, "model.layers.1.self_attn.k_proj")},
	},
	"bf16": {
		Config:  Config{BaseModel: "tied", TaskType: "CAUSAL_LM", R: 2, Alpha: 4, Bias: "none", Targets: Targets{List: []string{"gate_proj"}}},
		DType:   format.BF16,
		Factors: layered(".mlp.gate_proj", func(p string, l int) Factors { return factors(2, 16, 24, l, p) }),
	},
	"saved": {
		Config: Config{BaseModel: "llama", TaskType: "CAUSAL_LM", R: 2, Alpha: 4, Bias: "none", Targets: Targets{List: []string{"o_proj"}}, ModulesToSave: []string{"input_layernorm", "model.norm"}},
		DType:  format.F32, Saved: []safetensors.Tensor{
			{Name: "model.norm.weight", DType: format.F32, Shape: []int{16}, Data: ramp(16, 5)},
			{Name: "model.layers.0.input_layernorm.weight", DType: format.F32, Shape: []int{16}, Data: ramp(16, 6)},
			{Name: "model.layers.1.input_layernorm.weight", DType: format.F32, Shape: []int{16}, Data: ramp(16, 7)},
		},
		Factors: layered(".self_attn.o_proj", func(p string, l int) Factors { return factors(2, 16, 16, l, p) }),
	},
	"gpt2": {
		Config:  Config{BaseModel: "gpt2", TaskType: "CAUSAL_LM", R: 2, Alpha: 4, Bias: "none", Targets: Targets{List: []string{"c_attn"}}, FanInFanOut: true},
		DType:   format.F32,
		Factors: []Factors{factors(2, 16, 48, 1, "transformer.h.0.attn.c_attn"), factors(2, 16, 48, 2, "transformer.h.1.attn.c_attn")},
	},
}
