package refmodel

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/hf"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/pretrained"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/nn"
	"plumbline/reference/sampling"
)

// families are the small models of golden/models: transformers' logits in float64 of a left-padded batch, without and with
// an adapter.
var families = []string{"gpt2", "gptj", "llama", "qwen2", "qwen2b"}

type batch struct {
	in     model.Input
	logits map[string][]float64 // "base", "adapter": [B, T, V]
}

func familyBatch(t testing.TB, name string) batch {
	f, err := safetensors.Open(filepath.Join("../../golden/models", name, "golden.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	a, ok := f.Tensor("ids")
	require.True(t, ok)
	b := batch{in: model.Input{Batch: a.Shape[0], Time: a.Shape[1]}, logits: map[string][]float64{}}
	for _, v := range values(t, f, "ids") {
		b.in.IDs = append(b.in.IDs, int(v))
	}
	for _, v := range values(t, f, "attention_mask") {
		b.in.Real = append(b.in.Real, v == 1)
	}
	for _, kind := range []string{"base", "adapter"} {
		b.logits[kind] = values(t, f, "float64/logits_"+kind)
	}
	return b
}

// off returns how far the logits of m at real tokens are from those of transformers.
func (b batch) off(m *Model, kind string) float64 {
	var tape ad.Tape
	net := m.Base.On(&tape, model.Trainable{Adapter: m.Adapter})
	got, want := net.Logits(net.Forward(b.in).Hidden).Data(), b.logits[kind]
	v := m.Base.Config.Vocab
	if len(got) != len(want) {
		return math.NaN()
	}
	var x, y []float64
	for i, real := range b.in.Real {
		if real {
			x, y = append(x, got[i*v:(i+1)*v]...), append(y, want[i*v:(i+1)*v]...)
		}
	}
	return apart(x, y)
}

func openFamily(t testing.TB, name, kind string) *Model {
	o := Options{NoTokenizer: true}
	if kind == "adapter" {
		o.Adapter = filepath.Join("../../golden/models", name, "adapter")
	}
	m, err := Open(filepath.Join("../../golden/models", name, "base"), o)
	require.NoError(t, err)
	return m
}

func TestFamilies(t *testing.T) {
	for _, name := range families {
		b := familyBatch(t, name)
		for _, kind := range []string{"base", "adapter"} {
			off := b.off(openFamily(t, name, kind), kind)
			t.Logf("%s %s: %.2g of the largest logit", name, kind, off)
			require.LessOrEqual(t, off, agree, "%s %s", name, kind)
		}
	}
}

// A fact of a config.json that does not arrive in the model must be seen by some family's logits.
func TestFamiliesCatchFaults(t *testing.T) {
	for name, plant := range map[string]func(c *model.Config){
		"rope_theta":          func(c *model.Config) { c.RoPE.Theta *= 2 },
		"rope_scaling":        func(c *model.Config) { c.RoPE.Scaling = nn.RoPEScaling{} },
		"rotary_dim":          func(c *model.Config) { c.RoPE.Dim = min(c.HeadDim, 99*c.RoPE.Dim) },
		"epsilon of the norm": func(c *model.Config) { c.Eps *= 10 },
		"activation": func(c *model.Config) {
			c.Activation = map[string]string{"silu": "gelu", "gelu_new": "gelu", "gelu": "relu"}[c.Activation]
		},
		"scale_attn_weights":              func(c *model.Config) { c.Unscaled = c.Kind == model.GPT2 },
		"scale_attn_by_inverse_layer_idx": func(c *model.Config) { c.InverseLayerIdx = c.Kind == model.GPT2 },
		"num_hidden_layers":               func(c *model.Config) { c.Layers-- },
		"sliding_window": func(c *model.Config) {
			if c.Kind == model.Qwen2 {
				c.Windows = make([]int, c.Layers)
				c.Windows[0] = 2
			}
		},
	} {
		caught := 0
		for _, family := range families {
			m := openFamily(t, family, "base")
			c := m.Base.Config
			plant(&c)
			base, err := model.New(c, func(name string, _ ...int) ([]float64, error) { return m.Base.Data(name), nil })
			require.NoError(t, err, "%s %s", name, family)
			m.Base = base
			if !(familyBatch(t, family).off(m, "base") <= agree) {
				caught++
			}
		}
		require.NotZero(t, caught, name)
	}
}

// An int8 weight of bitsandbytes is what bitsandbytes itself dequantises, code·absmax/127.
func TestInt8(t *testing.T) {
	const dir = "../format/hf/testdata/llama_int8"
	m, err := Open(dir, Options{NoTokenizer: true})
	require.NoError(t, err)
	require.Len(t, m.Notes, 1)
	require.Contains(t, m.Notes[0], "weights are int8 of bitsandbytes")
	text, err := os.ReadFile("../format/hf/testdata/expect.json")
	require.NoError(t, err)
	var e struct {
		Int8 map[string]struct{ Dequantized []float64 }
	}
	require.NoError(t, json.Unmarshal(text, &e))
	require.NotEmpty(t, e.Int8)
	for name, w := range e.Int8 {
		// bitsandbytes multiplies by 7.874015718698502e-3, which is 1/127 to 3.7e-9, in float32: 3 roundings of 2⁻²⁴
		require.Len(t, w.Dequantized, 8, "the first of each")
		got := m.Base.Data(name)
		for i, want := range w.Dequantized {
			require.LessOrEqual(t, math.Abs(got[i]-want), math.Abs(want)*(3.8e-9+3*0x1p-24), "%s[%d]", name, i)
		}
	}
}

// Sampling with a temperature of 1 draws tokens as often as their probability says, and from equal seeds the same.
func TestGenerateDraws(t *testing.T) {
	m, err := Open(filepath.Join(golden, "llama"), Options{NoTokenizer: true})
	require.NoError(t, err)
	prompt := []int{3, 1, 4}
	all := logits(m, prompt)
	p := make([]float64, 29)
	require.True(t, sampling.Distribution(p, all[len(all)-29:], sampling.Options{Temperature: 1}))
	const n = 2000
	count := make([]float64, 29)
	for seed := range uint64(n) {
		o := GenerateOptions{Tokens: 1, Seed: seed, Sampling: sampling.Options{Temperature: 1}}
		ids, err := m.Generate(context.Background(), prompt, o, nil)
		require.NoError(t, err)
		count[ids[0]]++
	}
	for i, q := range p {
		require.InDelta(t, q*n, count[i], 5*math.Sqrt(n*q*(1-q))+1, "token %d", i)
	}
}

func TestGenerateStops(t *testing.T) {
	m, err := Open(filepath.Join(golden, "llama"), Options{NoTokenizer: true})
	require.NoError(t, err)
	prompt := []int{3, 1, 4}
	stop := errors.New("enough")
	ids, err := m.Generate(context.Background(), prompt, GenerateOptions{Tokens: 10}, func(int) error { return stop })
	require.ErrorIs(t, err, stop)
	require.Len(t, ids, 1)

	ctx, cancel := context.WithCancel(context.Background())
	ids, err = m.Generate(ctx, prompt, GenerateOptions{Tokens: 10}, func(int) error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, ids, 1)

	m.EOS = []int{ids[0]}
	ids, err = m.Generate(context.Background(), prompt, GenerateOptions{Tokens: 10}, nil)
	require.NoError(t, err)
	require.Equal(t, m.EOS, ids)

	var bad *PromptError
	for _, p := range [][]int{nil, {29}, {-1}} {
		_, err = m.Generate(context.Background(), p, GenerateOptions{Tokens: 1}, nil)
		require.ErrorAs(t, err, &bad)
	}
}

// Rows of the embedding without a token are never drawn, however large their logits.
func TestRowsWithoutToken(t *testing.T) {
	text, err := os.ReadFile("testdata/tokenizer.json")
	require.NoError(t, err)
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(golden, "llama", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	// without the last token, which is what its one merge makes
	short := []byte(replaceOnce(t, replaceOnce(t, string(text), ",\n   \"us\": 28", ""), "[\n   [\n    \"u\",\n    \"s\"\n   ]\n  ]", "[]"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), short, 0o644))
	m, err := Open(dir, Options{})
	require.NoError(t, err)
	require.Len(t, m.Notes, 1)
	require.Contains(t, m.Notes[0], "1 of 29 rows of the embedding have no token; they are never sampled")
	require.Equal(t, []int{28}, m.withoutToken())
	// Make that row the most probable after every prompt: its logit is the squared length of the hidden state.
	base, err := model.New(m.Base.Config, func(name string, _ ...int) ([]float64, error) {
		w := slices.Clone(m.Base.Data(name))
		if name == "lm_head.weight" {
			h := hidden(m, []int{3})
			for i := range h {
				w[28*16+i] = 100 * h[i]
			}
		}
		return w, nil
	})
	require.NoError(t, err)
	m.Base = base
	ids, err := m.Generate(context.Background(), []int{3}, GenerateOptions{Tokens: 1}, nil)
	require.NoError(t, err)
	require.NotEqual(t, []int{28}, ids)
	m.Tokenizer = nil
	ids, err = m.Generate(context.Background(), []int{3}, GenerateOptions{Tokens: 1}, nil)
	require.NoError(t, err)
	require.Equal(t, []int{28}, ids)
}

// hidden returns the hidden state of the last token.
func hidden(m *Model, ids []int) []float64 {
	var tape ad.Tape
	all := m.Base.On(&tape, model.Trainable{}).Forward(model.Input{Batch: 1, Time: len(ids), IDs: ids}).Hidden.Data()
	return all[len(all)-m.Base.Config.Hidden:]
}

func replaceOnce(t testing.TB, s, old, new string) string {
	i := strings.Index(s, old)
	require.GreaterOrEqual(t, i, 0, old)
	return s[:i] + new + s[i+len(old):]
}

// What a config.json says reaches the model.
func TestConfig(t *testing.T) {
	const text = `{"model_type": "qwen2", "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
		"intermediate_size": 12, "vocab_size": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "use_sliding_window": true,
		"sliding_window": 5, "max_window_layers": 1, "rope_theta": 500.0, "tie_word_embeddings": true,
		"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": false}}`
	h, err := hf.ParseConfig("config.json", []byte(text))
	require.NoError(t, err)
	known, err := pretrained.Language(h)
	require.NoError(t, err)
	c, err := Config(h.File, known)
	require.NoError(t, err)
	require.Equal(t, model.Config{
		Kind: model.Qwen2, Vocab: 10, Hidden: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadDim: 4, Intermediate: 12, MaxPositions: 64, Eps: 1e-6,
		Activation: "silu", Tied: true, QKVBias: true, Windows: []int{0, 5, 5},
		RoPE: nn.RoPE{Dim: 4, Theta: 500, Scaling: nn.RoPEScaling{Type: "yarn", Factor: 4, OriginalMaxPositions: 64, BetaFast: 32, BetaSlow: 1,
			MScale: 0.7, MScaleAllDim: 0.5, NoTruncate: true}},
	}, c)
}
