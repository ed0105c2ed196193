package hf

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
)

// parse reads a configuration with members put in front of those of a sound one; a member given twice is taken from there.
func parse(base string, members ...string) (*Config, error) {
	for _, m := range members {
		key := m[:strings.Index(m, ":")]
		if i := strings.Index(base, key+":"); i >= 0 {
			end := i + strings.IndexAny(base[i:], ",}")
			base = base[:i] + m + base[end:]
			continue
		}
		base = "{" + m + ", " + base[1:]
	}
	return ParseConfig("config.json", []byte(base))
}

// Defaults are those of the classes of transformers@5.23.0 (GPTJConfig, GPT2Config, LlamaConfig, Qwen2Config).
func TestConfigDefaults(t *testing.T) {
	c, err := parse(gptjConfig)
	require.NoError(t, err)
	require.Equal(t, 16, c.Inner)
	require.Equal(t, "gelu_new", c.Activation)
	require.Equal(t, 1e-5, c.Eps)
	require.False(t, c.Tied)
	require.Equal(t, arch.Rope{Theta: 10000, Dim: 2, Interleaved: true, Type: "default", Factor: 1}, c.Rope)
	require.Equal(t, "gptj: 1 layers, hidden 4, 2 heads of 2, 2 for keys and values, inner 16, vocabulary 3", c.String())

	c, err = parse(strings.Replace(gptjConfig, "gptj", "gpt2", 1))
	require.NoError(t, err)
	require.True(t, c.Tied)
	require.False(t, c.Unscaled)
	require.Zero(t, c.Rope)

	c, err = parse(llamaConfig)
	require.NoError(t, err)
	require.Equal(t, 2048, c.Positions)
	require.Equal(t, 1e-6, c.Eps)
	require.Equal(t, "silu", c.Activation)
	require.Equal(t, 2, c.KVHeads)
	require.False(t, c.Tied || c.QKVBias || c.OutputBias || c.MLPBias || c.HeadBias)
	require.Equal(t, arch.Rope{Theta: 10000, Dim: 2, Type: "default", Factor: 1}, c.Rope)

	c, err = parse(strings.Replace(llamaConfig, "llama", "qwen2", 1), `"use_sliding_window": true`, `"max_window_layers": 0`)
	require.NoError(t, err)
	require.Equal(t, 32768, c.Positions)
	require.True(t, c.QKVBias)
	require.False(t, c.OutputBias)
	require.Equal(t, []int{4096}, c.Windows)
}

// The forms that the rotary embedding has had.
func TestConfigRope(t *testing.T) {
	for _, c := range []struct {
		members []string
		want    arch.Rope
	}{
		{[]string{`"rope_theta": 1e6`}, arch.Rope{Theta: 1e6, Dim: 2, Type: "default", Factor: 1}},
		{[]string{`"rope_theta": 1e6`, `"rope_scaling": null`}, arch.Rope{Theta: 1e6, Dim: 2, Type: "default", Factor: 1}},
		{[]string{`"rope_scaling": {"type": "linear", "factor": 2.5}`}, arch.Rope{Theta: 10000, Dim: 2, Type: "linear", Factor: 2.5, OriginalPositions: 2048}},
		{[]string{`"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 4, "beta_fast": 16}`}, arch.Rope{Theta: 10000, Dim: 2, Type: "yarn", Factor: 4, BetaFast: 16, BetaSlow: 1, OriginalPositions: 2048}},
		{[]string{`"rope_theta": 6`, `"rope_parameters": {"rope_type": "default", "rope_theta": 5}`}, arch.Rope{Theta: 5, Dim: 2, Type: "default", Factor: 1}},
		{[]string{`"rope_parameters": {"rope_theta": 5}`, `"rope_scaling": {"rope_theta": 7}`}, arch.Rope{Theta: 7, Dim: 2, Type: "default", Factor: 1}},
		{[]string{`"head_dim": 8`, `"partial_rotary_factor": 0.5`}, arch.Rope{Theta: 10000, Dim: 4, Type: "default", Factor: 1}},
	} {
		got, err := parse(llamaConfig, c.members...)
		require.NoError(t, err)
		require.Equal(t, c.want, got.Rope, "%v", c.members)
	}
}

func TestConfigTypes(t *testing.T) {
	c, err := parse(llamaConfig, `"torch_dtype": "torch.float16"`, `"eos_token_id": [1, 2]`, `"bos_token_id": 5`, `"pad_token_id": -1`, `"quantization_config": {"load_in_8bit": true, "llm_int8_skip_modules": ["lm_head"]}`)
	require.NoError(t, err)
	require.Equal(t, "float16", c.DType)
	require.Equal(t, []int{1, 2}, c.EOS)
	require.Equal(t, 5, c.BOS, "an id beyond a vocabulary that was made small is no error of the file")
	require.Equal(t, -1, c.PAD)
	require.Equal(t, &Quantization{Method: "bitsandbytes", Int8: true, Skip: []string{"lm_head"}}, c.Quantization)

	c, err = parse(`{"model_type": "mamba", "hidden_size": "large"}`)
	require.NoError(t, err, "the sizes of an unknown architecture are not read")
	refused(t, c.OneOf(arch.Types()), `config.json: model_type: "mamba" is not a supported architecture, want one of bloom, cohere`)
	c, err = parse(`{"architectures": ["X"]}`)
	require.NoError(t, err)
	refused(t, c.OneOf(arch.Types()), "model_type: is missing, want one of bloom, cohere")
}

func TestConfigRefused(t *testing.T) {
	for _, c := range []struct{ base, member, want string }{
		{llamaConfig, `"hidden_size": null`, "hidden_size: is missing"},
		{llamaConfig, `"vocab_size": "3"`, `vocab_size: is "3", want an integer`},
		{llamaConfig, `"num_hidden_layers": 0`, "num_hidden_layers: is 0, want an integer in [1, 65536]"},
		{llamaConfig, `"num_hidden_layers": 99999999999999999999`, "want an integer in [1, 65536]"},
		{llamaConfig, `"num_attention_heads": 3`, "hidden_size: is 4, no multiple of num_attention_heads 3"},
		{llamaConfig, `"num_key_value_heads": 3`, "num_key_value_heads: is 3, which does not divide num_attention_heads 2"},
		{llamaConfig, `"num_key_value_heads": 4`, "is 4, which does not divide"},
		{llamaConfig, `"head_dim": 3`, "head_dim: 3 dimensions of a head of 3 are to be rotated in pairs"},
		{llamaConfig, `"rms_norm_eps": -1`, "rms_norm_eps: is -1, want a number in [0, 1]"},
		{llamaConfig, `"rope_scaling": [1]`, "rope_scaling: is an array, want an object"},
		{llamaConfig, `"rope_parameters": {"factor": "x"}`, `rope_parameters.factor: is "x", want a number`},
		{llamaConfig, `"tie_word_embeddings": 1`, "tie_word_embeddings: is 1, want a boolean"},
		{llamaConfig, `"eos_token_id": [-2]`, "eos_token_id: element 0 is -2"},
		{llamaConfig, `"model_type": 3`, "model_type: is 3, want a string"},
		{gptjConfig, `"rotary_dim": null`, "rotary_dim: is null"},
		{gptjConfig, `"rotary_dim": 4`, "rotary_dim: 4 dimensions of a head of 2"},
		{gptjConfig, `"n_head": 3`, "n_embd: is 4, no multiple of n_head 3"},
		{gptjConfig, `"n_positions": null`, "n_positions: is missing"},
		{strings.Replace(gptjConfig, "gptj", "gpt2", 1), `"add_cross_attention": true`, "add_cross_attention: is true"},
		{strings.Replace(llamaConfig, "llama", "qwen2", 1), `"use_sliding_window": true, "layer_types": ["x"]`, `layer_types: element 0 is "x"`},
		{strings.Replace(llamaConfig, "llama", "qwen2", 1), `"use_sliding_window": true, "layer_types": []`, "layer_types: has 0 elements, num_hidden_layers is 1"},
		{`{"model_type": "mamba"}`, `"architectures": "X"`, `architectures: is "X", want an array of strings`},
	} {
		got, err := parse(c.base, c.member)
		require.Nil(t, got, c.member)
		refused(t, err, "config.json: ", c.want)
	}
}
