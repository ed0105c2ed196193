package arch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// small returns a valid configuration of a type whose sizes all differ, so that no two of them can be taken for each other.
func small(modelType string) Config {
	c := Config{Type: modelType, Vocab: 31, Hidden: 24, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 10, Inner: 52, Positions: 17, Eps: 1e-5, Activation: "silu"}
	switch modelType {
	case "gpt2":
		c.KVHeads, c.HeadDim, c.QKVBias, c.OutputBias, c.MLPBias, c.Tied = 4, 6, true, true, true, true
	case "gptj":
		c.KVHeads, c.HeadDim, c.MLPBias, c.HeadBias = 4, 6, true, true
	case "qwen2":
		c.QKVBias = true
	}
	return c
}

func draw(t *rapid.T) Config {
	size := func(name string) int { return rapid.IntRange(1, 9).Draw(t, name) }
	c := Config{Type: rapid.SampledFrom(Types()).Draw(t, "type"), Vocab: size("vocab"), Hidden: size("hidden"), Layers: size("layers"), KVHeads: size("kv"),
		HeadDim: size("dim"), Inner: size("inner"), Positions: size("positions")}
	c.Heads, c.Experts = c.KVHeads*size("group"), size("experts")
	for _, b := range []*bool{&c.Tied, &c.QKVBias, &c.OutputBias, &c.MLPBias, &c.HeadBias} {
		*b = rapid.Bool().Draw(t, "flag")
	}
	return c
}

// The state dicts of transformers@5.23.0 for the configurations of small with one layer, as
// {n: tuple(p.shape) for n, p in AutoModelForCausalLM.from_config(c).state_dict().items()} gives them, in the order of the forward
// pass. The stored files under golden/ are compared in plumbline/internal/format/hf.
func TestTensors(t *testing.T) {
	for modelType, want := range map[string]string{
		"gpt2": `transformer.wte.weight [31 24], transformer.wpe.weight [17 24], transformer.h.0.ln_1.weight [24], transformer.h.0.ln_1.bias [24],
			transformer.h.0.attn.c_attn.weight [24 72], transformer.h.0.attn.c_attn.bias [72], transformer.h.0.attn.c_proj.weight [24 24],
			transformer.h.0.attn.c_proj.bias [24], transformer.h.0.ln_2.weight [24], transformer.h.0.ln_2.bias [24],
			transformer.h.0.mlp.c_fc.weight [24 52], transformer.h.0.mlp.c_fc.bias [52], transformer.h.0.mlp.c_proj.weight [52 24],
			transformer.h.0.mlp.c_proj.bias [24], transformer.ln_f.weight [24], transformer.ln_f.bias [24]`,
		"gptj": `transformer.wte.weight [31 24], transformer.h.0.ln_1.weight [24], transformer.h.0.ln_1.bias [24],
			transformer.h.0.attn.q_proj.weight [24 24], transformer.h.0.attn.k_proj.weight [24 24], transformer.h.0.attn.v_proj.weight [24 24],
			transformer.h.0.attn.out_proj.weight [24 24], transformer.h.0.mlp.fc_in.weight [52 24], transformer.h.0.mlp.fc_in.bias [52],
			transformer.h.0.mlp.fc_out.weight [24 52], transformer.h.0.mlp.fc_out.bias [24], transformer.ln_f.weight [24],
			transformer.ln_f.bias [24], lm_head.weight [31 24], lm_head.bias [31]`,
		"llama": `model.embed_tokens.weight [31 24], model.layers.0.input_layernorm.weight [24], model.layers.0.self_attn.q_proj.weight [40 24],
			model.layers.0.self_attn.k_proj.weight [20 24], model.layers.0.self_attn.v_proj.weight [20 24],
			model.layers.0.self_attn.o_proj.weight [24 40], model.layers.0.post_attention_layernorm.weight [24],
			model.layers.0.mlp.gate_proj.weight [52 24], model.layers.0.mlp.up_proj.weight [52 24], model.layers.0.mlp.down_proj.weight [24 52],
			model.norm.weight [24], lm_head.weight [31 24]`,
		"qwen2": `model.embed_tokens.weight [31 24], model.layers.0.input_layernorm.weight [24], model.layers.0.self_attn.q_proj.weight [40 24],
			model.layers.0.self_attn.q_proj.bias [40], model.layers.0.self_attn.k_proj.weight [20 24], model.layers.0.self_attn.k_proj.bias [20],
			model.layers.0.self_attn.v_proj.weight [20 24], model.layers.0.self_attn.v_proj.bias [20],
			model.layers.0.self_attn.o_proj.weight [24 40], model.layers.0.post_attention_layernorm.weight [24],
			model.layers.0.mlp.gate_proj.weight [52 24], model.layers.0.mlp.up_proj.weight [52 24], model.layers.0.mlp.down_proj.weight [24 52],
			model.norm.weight [24], lm_head.weight [31 24]`,
	} {
		c := small(modelType)
		c.Layers = 1
		var got []string
		for _, w := range c.Tensors() {
			got = append(got, fmt.Sprint(w.Name, " ", w.Shape))
		}
		require.Equal(t, strings.Join(strings.Fields(want), " "), strings.Join(got, ", "), modelType)
	}
}

// A role finds the module that the list has, a name stands once, and every block has the modules of the first.
func TestModules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := draw(t)
		require.NoError(t, c.Validate())
		names, layers := map[string]bool{}, map[int]int{}
		for _, m := range c.Modules() {
			require.False(t, names[m.Name], m.Name)
			names[m.Name] = true
			layers[m.Layer]++
			found, ok := c.Module(m.Role, m.Layer)
			require.True(t, ok)
			if m.Role != Expert {
				require.Equal(t, m, found)
			}
			require.Equal(t, m.Tied, m.Role == Head && c.Tied)
			if m.IsLinear() { // the shape of its LoRA update does not depend on how it is stored
				shape := m.Weight().Shape
				if m.Kind == Conv1D {
					shape = []int{shape[1], shape[0]}
				}
				require.Equal(t, []int{m.Out, m.In}, shape)
			}
		}
		for i := range c.Layers {
			require.Equal(t, layers[0], layers[i])
			require.Len(t, c.Block(i), layers[i])
		}
		_, ok := c.Module(Query, c.Layers)
		require.False(t, ok)
		linears := c.Linears()
		require.Equal(t, Head, linears[len(linears)-1].Role)
		require.Equal(t, EmbeddingOf(c.Type), c.Tensors()[0].Name)
	})
}

func TestValidate(t *testing.T) {
	require.Panics(t, func() { Config{}.Tensors() })
	require.Panics(t, func() { Config{}.Block(0) })
	require.Panics(t, func() { Config{}.Module(Head, -1) })
	for name, spoil := range map[string]func(*Config){
		"model_type": func(c *Config) { c.Type = "t5" }, "vocab_size": func(c *Config) { c.Vocab = 0 }, "hidden_size": func(c *Config) { c.Hidden = -1 },
		"num_hidden_layers": func(c *Config) { c.Layers = 4097 }, "num_key_value_heads": func(c *Config) { c.KVHeads = 3 },
		"head_dim": func(c *Config) { c.HeadDim = 1 << 31 }, "intermediate_size": func(c *Config) { c.Inner = 0 },
		"max_position_embeddings": func(c *Config) { c.Positions = -1 }, "windows": func(c *Config) { c.Windows = []int{1} },
		"num_local_experts": func(c *Config) { c.Experts = 1025 },
	} {
		c := small("llama")
		require.NoError(t, c.Validate())
		spoil(&c)
		require.ErrorContains(t, c.Validate(), name)
	}
}

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ modelType, name, want string }{
		{"gpt2", "h.0.ln_1.weight", "transformer.h.0.ln_1.weight"},
		{"gpt2", "base_model.model.module.wte.weight", "transformer.wte.weight"},
		{"llama", "_orig_mod.model.norm.weight", "model.norm.weight"},
		{"llama", "layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"},
		{"llama", "lm_head.weight", "lm_head.weight"},
		{"t5", "module.shared.weight", "shared.weight"},
		{"mixtral", "layers.1.mlp.gate.weight", "model.layers.1.block_sparse_moe.gate.weight"},
		{"gpt_neox", "lm_head.weight", "embed_out.weight"},
		{"phi", "final_layernorm.bias", "model.final_layernorm.bias"},
	} {
		require.Equal(t, c.want, Canonical(c.modelType, c.name))
	}
	require.True(t, Buffer("gpt2", "transformer.h.0.attn.bias"))
	require.False(t, Buffer("gpt2", "transformer.h.0.attn.c_attn.bias"))
	require.False(t, Buffer("t5", "transformer.h.0.attn.bias"))
}

func ExampleConfig_Module() {
	c := Config{Type: "gpt2", Vocab: 50257, Hidden: 768, Layers: 12, Heads: 12, KVHeads: 12, HeadDim: 64, Inner: 3072, Positions: 1024, Tied: true}
	m, _ := c.Module(QKV, 11)
	fmt.Println(m.Weight(), "an update of", m.In, "inputs and", m.Out, "outputs")
	_, ok := c.Module(Query, 11)
	fmt.Println(ok)
	// Output:
	// {transformer.h.11.attn.c_attn.weight [768 2304]} an update of 768 inputs and 2304 outputs
	// false
}

// The known models have valid sizes; a name finds them by its last part.
func TestModels(t *testing.T) {
	for _, m := range Models {
		require.NoError(t, m.Validate(), m.Name)
		require.Same(t, Find(m.Name), Find("lab/"+strings.ToUpper(m.Name)+"-Instruct"))
	}
	require.Nil(t, Find("lab/tiny"))
	require.Contains(t, Names(), "gpt2")
	require.Equal(t, "out_proj", Find("gpt-j-6b").Alike("o_proj"))
	require.Equal(t, "c_attn", Find("gpt2").Alike("v_proj"))
	require.Empty(t, Find("gpt2").Alike("conv1"))
}
