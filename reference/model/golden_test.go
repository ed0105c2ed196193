package model

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
)

// Two sets of tiny models of transformers 5.23.0, computed in float64 by the framework:
//
//	golden/models  a base and an adapter of peft 0.21.2: logits, log-probabilities, gradients of the LoRA factors;
//	               golden.json beside them says how they were made
//	testdata       one per option that those leave out: logits, gradients of all weights; golden/gen/nn/variants.py

var (
	goldenModels   = []string{"gpt2", "gptj", "qwen2", "llama", "qwen2b"}
	goldenVariants = []string{"gpt2_inverse_erf", "gpt2_unscaled", "gptj_tied", "llama_biases_llama3", "llama_gelu_linear", "qwen2_packed", "qwen2_window_yarn"}
)

// The tolerances are relative to the largest element. The framework's float64 and ours differ by the order of sums only.
const (
	valueTolerance    = 1e-10
	gradientTolerance = 1e-9
)

// tensorFile is a safetensors file, widened to float64.
type tensorFile map[string]tensorEntry

type tensorEntry struct {
	shape []int
	data  []float64
}

func readTensors(t testing.TB, path string) tensorFile {
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	size := binary.LittleEndian.Uint64(raw)
	var header map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw[8:8+size], &header))
	delete(header, "__metadata__")
	file := tensorFile{}
	for name, entry := range header {
		var e struct {
			DType   string
			Shape   []int
			Offsets [2]int `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(entry, &e))
		body := raw[8+int(size)+e.Offsets[0] : 8+int(size)+e.Offsets[1]]
		x := make([]float64, elements(e.Shape))
		for i := range x {
			switch e.DType {
			case "F64":
				x[i] = math.Float64frombits(binary.LittleEndian.Uint64(body[8*i:]))
			case "I64":
				x[i] = float64(int64(binary.LittleEndian.Uint64(body[8*i:])))
			case "F32":
				x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(body[4*i:])))
			default:
				require.Fail(t, e.DType)
			}
		}
		file[name] = tensorEntry{e.Shape, x}
	}
	return file
}

var errNoTensor = errors.New("no tensor of this name and shape")

// weights serves the tensors of a file.
func (f tensorFile) weights(name string, shape ...int) ([]float64, error) {
	if w, ok := f[name]; ok && slices.Equal(w.shape, shape) {
		return w.data, nil
	}
	return nil, errNoTensor
}

func (f tensorFile) ints(name string) []int {
	x := make([]int, len(f[name].data))
	for i, v := range f[name].data {
		x[i] = int(v)
	}
	return x
}

func readJSON(t testing.TB, path string, v any) {
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, v))
}

// facts are the keys of a config.json that the goldens have, by the names of both generations.
type facts struct {
	Kind          Kind    `json:"model_type"`
	Vocab         int     `json:"vocab_size"`
	Tied          *bool   `json:"tie_word_embeddings"`
	Hidden        int     `json:"hidden_size"`
	Layers        int     `json:"num_hidden_layers"`
	Heads         int     `json:"num_attention_heads"`
	KVHeads       int     `json:"num_key_value_heads"`
	HeadDim       int     `json:"head_dim"`
	Intermediate  int     `json:"intermediate_size"`
	Positions     int     `json:"max_position_embeddings"`
	RMSEps        float64 `json:"rms_norm_eps"`
	Act           string  `json:"hidden_act"`
	AttentionBias bool    `json:"attention_bias"`
	MLPBias       bool    `json:"mlp_bias"`
	UseWindow     bool    `json:"use_sliding_window"`
	Window        int     `json:"sliding_window"`
	WindowFrom    int     `json:"max_window_layers"`
	RoPE          struct {
		Type     string  `json:"rope_type"`
		Theta    float64 `json:"rope_theta"`
		Factor   float64 `json:"factor"`
		Low      float64 `json:"low_freq_factor"`
		High     float64 `json:"high_freq_factor"`
		Original float64 `json:"original_max_position_embeddings"`
		Fast     float64 `json:"beta_fast"`
		Slow     float64 `json:"beta_slow"`
	} `json:"rope_parameters"`
	NEmbd      int      `json:"n_embd"`
	NHead      int      `json:"n_head"`
	NLayer     int      `json:"n_layer"`
	NPositions int      `json:"n_positions"`
	NInner     int      `json:"n_inner"`
	Rotary     int      `json:"rotary_dim"`
	LNEps      *float64 `json:"layer_norm_epsilon"`
	Activation string   `json:"activation_function"`
	Scaled     *bool    `json:"scale_attn_weights"`
	Inverse    bool     `json:"scale_attn_by_inverse_layer_idx"`
}

func (f facts) config() Config {
	if f.Kind == GPT2 || f.Kind == GPTJ {
		c := Config{Kind: f.Kind, Vocab: f.Vocab, Hidden: f.NEmbd, Layers: f.NLayer, Heads: f.NHead, KVHeads: f.NHead,
			HeadDim: f.NEmbd / f.NHead, Intermediate: f.NInner, MaxPositions: f.NPositions, Eps: 1e-5, Activation: f.Activation,
			Tied: f.Tied == nil || *f.Tied, MLPBias: true, QKVBias: f.Kind == GPT2, OutputBias: f.Kind == GPT2,
			Unscaled: f.Scaled != nil && !*f.Scaled, InverseLayerIdx: f.Inverse}
		if f.NInner == 0 {
			c.Intermediate = 4 * f.NEmbd
		}
		if f.LNEps != nil {
			c.Eps = *f.LNEps
		}
		if f.Kind == GPTJ {
			c.RoPE = nn.RoPE{Dim: f.Rotary, Theta: 10000, Interleaved: true}
		}
		return c
	}
	c := Config{Kind: f.Kind, Vocab: f.Vocab, Hidden: f.Hidden, Layers: f.Layers, Heads: f.Heads, KVHeads: f.KVHeads, HeadDim: f.HeadDim,
		Intermediate: f.Intermediate, MaxPositions: f.Positions, Eps: f.RMSEps, Activation: f.Act, Tied: *f.Tied,
		QKVBias: f.AttentionBias || f.Kind == Qwen2, OutputBias: f.AttentionBias, MLPBias: f.MLPBias}
	if f.HeadDim == 0 {
		c.HeadDim = f.Hidden / f.Heads
	}
	if f.Act == "" {
		c.Activation = "silu"
	}
	if f.UseWindow {
		c.Windows = make([]int, c.Layers)
		for i := f.WindowFrom; i < c.Layers; i++ {
			c.Windows[i] = f.Window
		}
	}
	r := f.RoPE
	c.RoPE = nn.RoPE{Dim: c.HeadDim, Theta: r.Theta, Scaling: nn.RoPEScaling{Type: r.Type, Factor: r.Factor, LowFreqFactor: r.Low,
		HighFreqFactor: r.High, OriginalMaxPositions: r.Original, BetaFast: r.Fast, BetaSlow: r.Slow}}
	return c
}

// golden is one tiny model with what the framework computed of it.
type golden struct {
	config  Config
	weights Weights
	adapter Adapter // nil in testdata
	input   Input
	states  [][]float64          // hidden states of the base; nil in golden/models
	logits  []float64            // of the base
	adapted []float64            // logits with the adapter
	logp    map[string][]float64 // base, adapter
	mean    float64              // of the log-probabilities, with the adapter if there is one
	grads   map[string][]float64 // of mean: by weight, or by layer.lora_A.weight
}

func readGolden(t testing.TB, name string) golden {
	if slices.Contains(goldenVariants, name) {
		return readVariant(t, name)
	}
	dir := filepath.Join("../../golden/models", name)
	v := readTensors(t, filepath.Join(dir, "golden.safetensors"))
	g := golden{
		weights: readTensors(t, filepath.Join(dir, "base", "model.safetensors")).weights,
		adapter: Adapter{}, logits: v["float64/logits_base"].data, adapted: v["float64/logits_adapter"].data,
		logp: map[string][]float64{"base": v["float64/logp_base"].data, "adapter": v["float64/logp_adapter"].data},
		mean: v["float64/mean_logp"].data[0], grads: map[string][]float64{},
	}
	var f facts
	readJSON(t, filepath.Join(dir, "base", "config.json"), &f)
	g.config = f.config()
	var a struct {
		Alpha   float64            `json:"lora_alpha"`
		RS      bool               `json:"use_rslora"`
		Pattern map[string]float64 `json:"alpha_pattern"`
	}
	readJSON(t, filepath.Join(dir, "adapter", "adapter_config.json"), &a)
	factors := readTensors(t, filepath.Join(dir, "adapter", "adapter_model.safetensors"))
	for key, f := range factors {
		name, ok := strings.CutSuffix(strings.TrimPrefix(key, "base_model.model."), ".lora_A.weight")
		if !ok {
			continue
		}
		alpha, rank := a.Alpha, f.shape[0]
		for target, v := range a.Pattern {
			if strings.HasSuffix(name, "."+target) {
				alpha = v
			}
		}
		b := factors[strings.Replace(key, "lora_A", "lora_B", 1)]
		g.adapter[name] = LoRA{Rank: rank, A: f.data, B: b.data, Scale: nn.LoRAScale(alpha, rank, a.RS)}
	}
	for key, x := range v {
		if name, ok := strings.CutPrefix(key, "float64/grad/"); ok {
			g.grads[strings.TrimPrefix(name, "base_model.model.")] = x.data
		}
	}
	require.Len(t, g.grads, 2*len(g.adapter))
	g.input = inputOf(t, v)
	return g
}

func readVariant(t testing.TB, name string) golden {
	var about struct{ Variants map[string]facts }
	readJSON(t, filepath.Join("testdata", "variants.json"), &about)
	v := readTensors(t, filepath.Join("testdata", name+".safetensors"))
	g := golden{config: about.Variants[name].config(), weights: func(name string, shape ...int) ([]float64, error) { return v.weights("weight/"+name, shape...) }, logits: v["logits"].data,
		mean: v["mean_logp"].data[0], grads: map[string][]float64{}, input: inputOf(t, v)}
	for key, x := range v {
		if w, ok := strings.CutPrefix(key, "grad/"); ok {
			g.grads[w] = x.data
		}
	}
	for i := range g.config.Layers + 1 {
		g.states = append(g.states, v[fmt.Sprintf("state/%d", i)].data)
	}
	require.Len(t, g.grads, len(g.config.Tensors()), "a gradient for every weight")
	return g
}

func inputOf(t testing.TB, v tensorFile) Input {
	shape := v["ids"].shape
	in := Input{Batch: shape[0], Time: shape[1], IDs: v.ints("ids"), Real: make([]bool, shape[0]*shape[1])}
	for i, m := range v.ints("attention_mask") {
		in.Real[i] = m != 0
	}
	pos := v.ints("position_ids")
	if !slices.Equal(pos, nn.Positions(in.Batch, in.Time, in.Real, nil)) { // packed: a sequence starts at position 0
		in.Segment = make([]int, len(pos))
		for i := range pos {
			if i > 0 {
				in.Segment[i] = in.Segment[i-1]
			}
			if pos[i] == 0 {
				in.Segment[i]++
			}
		}
	}
	require.Equal(t, pos, nn.Positions(in.Batch, in.Time, in.Real, in.Segment))
	return in
}

// model builds the golden's base.
func (g golden) model(t testing.TB) *Model {
	m, err := New(g.config, g.weights)
	require.NoError(t, err)
	return m
}

// worst returns the largest |got − want| among the rows of width n that count, over the largest |want| of all.
func worst(got, want []float64, n int, counts []bool) float64 {
	if len(got) != len(want) || len(want) == 0 {
		return math.Inf(1)
	}
	var diff, scale float64
	for i, w := range want {
		scale = max(scale, math.Abs(w))
		if counts == nil || counts[i/n] {
			diff = max(diff, math.Abs(got[i]-w))
		}
	}
	return diff / scale
}

// miss is how far a model is from its golden: in logits and log-probabilities, and in gradients.
type miss struct{ values, gradients float64 }

func (w miss) ok() bool { return w.values <= valueTolerance && w.gradients <= gradientTolerance }

func (g golden) compare(m *Model) (w miss) {
	note := func(to *float64, d float64) {
		if !(d <= *to) { // NaN stays
			*to = d
		}
	}
	in, vocab := g.input, g.config.Vocab
	logits := func(n *Net) []float64 { return n.Logits(n.Forward(in).Hidden).Data() }
	var tape ad.Tape
	if g.states != nil {
		in.States = true
		for i, x := range m.On(&tape, Trainable{}).Forward(in).States {
			note(&w.values, worst(x.Data(), g.states[i], g.config.Hidden, in.Real))
		}
	}
	note(&w.values, worst(logits(m.On(&tape, Trainable{})), g.logits, vocab, in.Real))
	if g.adapter != nil {
		note(&w.values, worst(logits(m.On(&tape, Trainable{Adapter: g.adapter})), g.adapted, vocab, in.Real))
		note(&w.values, worst(m.On(&tape, Trainable{}).LogProbs(in).Data(), g.logp["base"], 1, in.Scored()))
		note(&w.values, worst(m.On(&tape, Trainable{Adapter: g.adapter}).LogProbs(in).Data(), g.logp["adapter"], 1, in.Scored()))
	}
	n := m.On(&tape, Trainable{Adapter: g.adapter, LoRA: true, Weight: func(string) bool { return g.adapter == nil }})
	mean := n.MeanLogProb(in)
	note(&w.values, worst(mean.Data(), []float64{g.mean}, 1, nil))
	if !mean.NeedsGrad() {
		w.gradients = math.Inf(1)
		return w
	}
	ad.Backward(mean, []float64{1})
	for name, want := range g.grads {
		var v *ad.Var
		if layer, ok := strings.CutSuffix(name, ".lora_A.weight"); ok {
			l, _ := n.Factors(layer)
			v = l.A
		} else if layer, ok := strings.CutSuffix(name, ".lora_B.weight"); ok {
			l, _ := n.Factors(layer)
			v = l.B
		} else {
			v = n.Var(name)
		}
		note(&w.gradients, worst(v.Grad(), want, 1, nil))
	}
	return w
}

func TestGoldens(t *testing.T) {
	for _, name := range slices.Concat(goldenModels, goldenVariants) {
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, name)
			w := g.compare(g.model(t))
			t.Logf("values %.2g, gradients %.2g", w.values, w.gradients)
			require.LessOrEqual(t, w.values, valueTolerance)
			require.LessOrEqual(t, w.gradients, gradientTolerance)
		})
	}
}

// Greedy decoding behind left padding, token by token with a cache: the ids and the logits of transformers' generate, which
// makes its positions from the attention mask.
func TestGoldenGeneration(t *testing.T) {
	decoded := 0
	for _, name := range goldenVariants {
		v := readTensors(t, filepath.Join("testdata", name+".safetensors"))
		want, ok := v["generated"]
		if !ok {
			continue
		}
		decoded++
		g := readGolden(t, name)
		steps, vocab := want.shape[1], g.config.Vocab
		var tape ad.Tape
		n := g.model(t).On(&tape, Trainable{})
		in := g.input
		in.Cache = new(Cache)
		for i := range steps {
			h := n.Forward(in).Hidden
			scores := n.Logits(ad.Slice(h, 1, in.Time-1, in.Time)).Data()
			next := Input{Batch: in.Batch, Time: 1, Cache: in.Cache}
			for row := range in.Batch {
				at := scores[row*vocab : (row+1)*vocab]
				best := slices.Index(at, slices.Max(at))
				require.Equal(t, v.ints("generated")[row*steps+i], best, "%s: row %d, token %d", name, row, i)
				logits := v["generated_logits"].data[(row*steps+i)*vocab : (row*steps+i+1)*vocab]
				require.LessOrEqual(t, worst(at, logits, 1, nil), valueTolerance, "%s: row %d, token %d", name, row, i)
				next.IDs = append(next.IDs, best)
			}
			in = next
		}
	}
	require.Equal(t, 3, decoded)
}

// The update that PEFT adds to a weight when it merges is Delta, turned round for GPT-2's [in, out].
func TestGoldenDelta(t *testing.T) {
	for _, kind := range []string{"gpt2", "gptj", "qwen2"} {
		g := readGolden(t, kind)
		v := readTensors(t, filepath.Join("../../golden/models", kind, "golden.safetensors"))
		for name, l := range g.adapter {
			want, got := v["delta_weight/"+name+".weight"], l.Delta()
			if g.config.Kind == GPT2 {
				got = turned(got, want.shape[1], want.shape[0])
			}
			require.LessOrEqual(t, worst(got, want.data, 1, nil), 1e-6, "%s %s: PEFT multiplies in float32", kind, name)
		}
	}
}

// turned returns the transposed of x [rows, cols].
func turned(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for i := range rows {
		for j := range cols {
			y[j*rows+i] = x[i*cols+j]
		}
	}
	return y
}
