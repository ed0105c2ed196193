package model

import (
	"math"
	"slices"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
)

func TestConfigValidate(t *testing.T) {
	for kind, c := range tinies() {
		require.NoError(t, c.Validate(), kind)
	}
	for _, c := range []struct {
		kind Kind
		set  func(c *Config)
		want string
	}{
		{Llama, func(c *Config) { c.Kind = "mamba" }, `model: "mamba": the model_type is not one of gpt2, gptj, llama, qwen2`},
		{Llama, func(c *Config) { c.Vocab = 0 }, "vocab_size 0 is out of range"},
		{Llama, func(c *Config) { c.Layers = -1 }, "num_hidden_layers -1 is out of range"},
		{Llama, func(c *Config) { c.Layers = 4097 }, "num_hidden_layers 4097 is more than 4096"},
		{Llama, func(c *Config) { c.Hidden = math.MaxInt32 + 1 }, "hidden_size 2147483648 is out of range"},
		{Llama, func(c *Config) { c.KVHeads = 3 }, "num_attention_heads 2 is no multiple of num_key_value_heads 3"},
		{Llama, func(c *Config) { c.Eps = 0 }, "the epsilon of the norms is 0"},
		{Llama, func(c *Config) { c.Eps = math.NaN() }, "the epsilon of the norms is NaN"},
		{Llama, func(c *Config) { c.Activation = "mish" }, `activation "mish" is not one of`},
		{Llama, func(c *Config) { c.RoPE.Dim = 4 }, "4 rotated channels of heads of 2"},
		{Llama, func(c *Config) { c.RoPE.Theta = 0 }, "rope_theta 0 is not positive"},
		{Llama, func(c *Config) { c.RoPE.Scaling.Type = "dynamic" }, `rope_type "dynamic" is not one of default, linear, llama3, yarn`},
		{Llama, func(c *Config) { c.RoPE.Interleaved = true }, "interleaved rotary pairs are not of this family"},
		{Llama, func(c *Config) { c.QKVBias = true }, "attention_bias is of q, k, v and o or of none"},
		{Llama, func(c *Config) { c.Windows = []int{2} }, "sliding_window is not of this family"},
		{Llama, func(c *Config) { c.Unscaled = true }, "scale_attn_weights false is not of this family"},
		{Qwen2, func(c *Config) { c.QKVBias = false }, "biases at q, k and v and nowhere else are of this family"},
		{Qwen2, func(c *Config) { c.Windows = []int{1, 2} }, "2 windows for 1 layers"},
		{Qwen2, func(c *Config) { c.Windows = []int{-1} }, "the window of layer 0 is -1"},
		{Qwen2, func(c *Config) { c.InverseLayerIdx = true }, "scale_attn_by_inverse_layer_idx is not of this family"},
		{GPTJ, func(c *Config) { c.RoPE.Interleaved = false }, "half-split rotary pairs are not of this family"},
		{GPTJ, func(c *Config) { c.RoPE.Dim = 0 }, "0 rotated channels: must be even and at least 2"},
		{GPTJ, func(c *Config) { c.KVHeads = 1 }, "2 heads of 2 channels with 1 key-value heads for hidden states of 4"},
		{GPTJ, func(c *Config) { c.HeadDim = 4 }, "2 heads of 4 channels with 2 key-value heads for hidden states of 4"},
		{GPTJ, func(c *Config) { c.QKVBias = true }, "biases at the MLP and nowhere else in a block are of this family"},
		{GPTJ, func(c *Config) { c.Windows = []int{1} }, "sliding_window is not of this family"},
		{GPT2, func(c *Config) { c.MLPBias = false }, "biases everywhere are of this family"},
		{GPT2, func(c *Config) { c.RoPE.Dim = 2 }, "rotary positions is not of this family"},
		{GPT2, func(c *Config) { c.Hidden = 6 }, "2 heads of 2 channels with 2 key-value heads for hidden states of 6"},
	} {
		cfg := tinies()[c.kind]
		c.set(&cfg)
		require.ErrorContains(t, cfg.Validate(), c.want)
		_, err := New(cfg, nil)
		require.ErrorContains(t, err, c.want)
		require.Panics(t, func() { cfg.Tensors() })
	}
}

// The names and shapes are those that transformers wrote: the goldens' files hold these tensors and no others.
func TestTensorsAreTheFiles(t *testing.T) {
	for _, name := range goldenModels {
		g := readGolden(t, name)
		file := readTensors(t, "../../golden/models/"+name+"/base/model.safetensors")
		require.Len(t, file, len(g.config.Tensors()))
		for _, w := range g.config.Tensors() {
			require.Equal(t, file[w.Name].shape, w.Shape, w.Name)
		}
	}
}

func TestWeightsAreRefused(t *testing.T) {
	c := tinies()[GPT2]
	_, err := New(c, func(name string, shape ...int) ([]float64, error) {
		if name == "transformer.wpe.weight" {
			return nil, errNoTensor
		}
		return make([]float64, elements(shape)), nil
	})
	require.ErrorIs(t, err, errNoTensor)
	require.ErrorContains(t, err, "model: weight transformer.wpe.weight: ")
	_, err = New(c, func(name string, shape ...int) ([]float64, error) { return make([]float64, elements(shape)+1), nil })
	require.EqualError(t, err, "model: weight transformer.wte.weight: 21 elements for shape [5 4]")

	m, err := New(c, func(name string, shape ...int) ([]float64, error) { return make([]float64, elements(shape)), nil })
	require.NoError(t, err)
	require.Len(t, m.Data("transformer.wte.weight"), 20)
	require.PanicsWithValue(t, `model: there is no weight "lm_head.weight"`, func() { m.Data("lm_head.weight") })
	require.PanicsWithValue(t, `model: there is no weight "x"`, func() { m.On(new(ad.Tape), Trainable{}).Var("x") })
}

func TestAdapterIsRefused(t *testing.T) {
	c := tinies()[GPT2]
	layer := "transformer.h.0.attn.c_attn"
	require.NoError(t, Adapter(nil).Validate(c))
	require.NoError(t, Adapter{layer: {Rank: 2, A: make([]float64, 8), B: make([]float64, 24)}}.Validate(c))
	for want, a := range map[string]Adapter{
		`there is no linear layer "transformer.h.0.attn.q_proj"`:    {"transformer.h.0.attn.q_proj": {Rank: 1}},
		`there is no linear layer "transformer.wte"`:                {"transformer.wte": {Rank: 1}},
		`there is no linear layer "transformer.h.0.ln_1"`:           {"transformer.h.0.ln_1": {Rank: 1}},
		"transformer.h.0.attn.c_attn: rank 0":                       {layer: {}},
		"A of 24 and B of 8 elements for rank 2 of a layer of 12×4": {layer: {Rank: 2, A: make([]float64, 24), B: make([]float64, 8)}},
		"A of 8 and B of 25 elements for rank 2 of a layer of 12×4": {layer: {Rank: 2, A: make([]float64, 8), B: make([]float64, 25)}},
	} {
		require.ErrorContains(t, a.Validate(c), want)
		m, err := New(c, func(name string, shape ...int) ([]float64, error) { return make([]float64, elements(shape)), nil })
		require.NoError(t, err)
		require.Panics(t, func() { m.On(new(ad.Tape), Trainable{Adapter: a}) })
	}
}

func TestInputIsRefused(t *testing.T) {
	c := tinies()[GPT2]
	m, err := New(c, func(name string, shape ...int) ([]float64, error) { return make([]float64, elements(shape)), nil })
	require.NoError(t, err)
	n := m.On(new(ad.Tape), Trainable{})
	one := []int{1}
	used := new(Cache)
	n.Forward(Input{Batch: 1, Time: 3, IDs: []int{1, 2, 3}, Cache: used})
	for _, in := range []struct {
		want string
		in   Input
	}{
		{"0 rows of 1 tokens", Input{Time: 1}},
		{"2 ids for 1 rows of 1 tokens", Input{Batch: 1, Time: 1, IDs: []int{1, 2}}},
		{"id 5 is not in a vocabulary of 5", Input{Batch: 1, Time: 1, IDs: []int{5}}},
		{"row 1, token 0: id -1 is not in", Input{Batch: 2, Time: 1, IDs: []int{0, -1}}},
		{"an attention mask of 2 for 1 tokens", Input{Batch: 1, Time: 1, IDs: one, Real: make([]bool, 2)}},
		{"2 positions for 1 tokens", Input{Batch: 1, Time: 1, IDs: one, Positions: make([]int, 2)}},
		{"2 segments for 1 tokens", Input{Batch: 1, Time: 1, IDs: one, Segment: make([]int, 2)}},
		{"row 0, token 2: segment 1 comes in two pieces", Input{Batch: 1, Time: 3, IDs: []int{1, 1, 1}, Segment: []int{1, 2, 1}}},
		{"packed sequences with a cache", Input{Batch: 1, Time: 1, IDs: one, Segment: []int{1}, Cache: new(Cache)}},
		{"2 rows with a cache of 1", Input{Batch: 2, Time: 1, IDs: []int{1, 1}, Cache: used}},
		{"row 0, token 1: position 4 of 4", Input{Batch: 1, Time: 2, IDs: []int{1, 1}, Cache: used}},
		{"row 0, token 4: position 4 of 4", Input{Batch: 1, Time: 5, IDs: make([]int, 5)}},
		{"row 0, token 0: position -1 of 4", Input{Batch: 1, Time: 1, IDs: one, Positions: []int{-1}}},
	} {
		require.ErrorContains(t, in.in.Validate(c), in.want)
		require.Panics(t, func() { n.Forward(in.in) }, in.want)
	}
	require.Equal(t, 3, used.Len(), "a refused input leaves the cache")
	require.PanicsWithValue(t, "model: log-probabilities of 1 tokens", func() { n.LogProbs(Input{Batch: 1, Time: 1, IDs: one}) })
}

// Segments start anew in the positions, padding does not count, and a cache goes on.
func TestScored(t *testing.T) {
	in := Input{Batch: 2, Time: 4, IDs: make([]int, 8),
		Real:    []bool{false, true, true, true, true, true, true, false},
		Segment: []int{1, 1, 2, 2, 1, 1, 1, 1}}
	require.Equal(t, []bool{false, false, true, true, true, false}, in.Scored())
	require.Equal(t, []int{0, 0, 0, 1, 0, 1, 2, 2}, nn.Positions(2, 4, in.Real, in.Segment))
	m, err := New(tinies()[Llama], func(name string, shape ...int) ([]float64, error) {
		return slices.Repeat([]float64{1}, elements(shape)), nil
	})
	require.NoError(t, err)
	n := m.On(new(ad.Tape), Trainable{})
	require.InDelta(t, -math.Log(5), n.MeanLogProb(in).Item(), 1e-14, "all tokens are alike")
	none := Input{Batch: 1, Time: 2, IDs: []int{0, 0}, Real: []bool{false, true}}
	require.True(t, math.IsNaN(n.MeanLogProb(none).Item()), "the mean of nothing")
}
