// Package arch knows the architectures of language models by their geometry: what a config.json says about a model, which
// tensors the model holds under which names and shapes, and which of them are linear layers that an adapter may sit on. It
// computes nothing and reads no file. Names are those of the state dict of the class ...ForCausalLM of transformers@5.23.0.
//
// A [Config] lists its [Module]s in the order of the forward pass. Each has a [Role], the same word in every architecture, so
// that a program finds the projection of the queries without knowing its name:
//
//	m, ok := c.Module(arch.Query, 3) // model.layers.3.self_attn.q_proj, or transformer.h.3.attn.q_proj
//	w := m.Weight()                  // its name and its shape as it is stored
package arch

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Config is what a config.json says about a language model, with the defaults of its family filled in. The comments name the
// keys of transformers@5.23.0, those of GPT-2 and GPT-J after the semicolon.
type Config struct {
	Type string // model_type: one of [Types]

	Vocab     int // V: vocab_size, the rows of the embedding, padding rows included
	Hidden    int // C: hidden_size; n_embd
	Layers    int // num_hidden_layers; n_layer
	Heads     int // H: num_attention_heads; n_head
	KVHeads   int // num_key_value_heads; as many as heads where keys and values are not shared
	HeadDim   int // D: head_dim, by default hidden_size/num_attention_heads
	Inner     int // intermediate_size; n_inner, by default 4·n_embd
	Positions int // max_position_embeddings; n_positions. GPT-2 has as many rows of wpe, others rotate

	Eps        float64 // rms_norm_eps; layer_norm_epsilon
	Activation string  // hidden_act; activation_function
	Tied       bool    // tie_word_embeddings: the head is the embedding
	Rope       Rope    // Theta is 0 where positions are learned

	QKVBias    bool // q, k and v have biases: attention_bias of Llama; always so in Qwen2 and GPT-2, never in GPT-J
	OutputBias bool // the projection after attention has one: attention_bias of Llama; always so in GPT-2, never in Qwen2, GPT-J
	MLPBias    bool // the MLP has biases: mlp_bias of Llama; always so in GPT-2 and GPT-J, never in Qwen2
	HeadBias   bool // lm_head has one: GPT-J, Phi
	HeadNorms  bool // qk_layernorm of Phi: queries and keys are normalised

	Experts     int // num_local_experts of Mixtral, num_experts of Qwen2-MoE and Qwen3-MoE
	ExpertInner int // moe_intermediate_size; 0: Inner
	SharedInner int // shared_expert_intermediate_size of Qwen2-MoE: of the expert that reads every token

	OneNorm bool // attention and MLP run side by side behind one norm: use_parallel_residual of StableLM, parallel_attn of Falcon

	// Windows holds the sliding window of each layer, 0 for full attention; nil: full everywhere.
	Windows []int

	Unscaled        bool // the negation of scale_attn_weights of GPT-2: scores are not divided by √D
	InverseLayerIdx bool // scale_attn_by_inverse_layer_idx of GPT-2: layer i divides its scores by i+1 as well
}

// Rope is the rotary position embedding: rope_theta with rope_scaling, or rope_parameters.
type Rope struct {
	Theta       float64 // base of the wavelengths
	Dim         int     // leading dimensions of a head that are rotated
	Interleaved bool    // pairs are (2i, 2i+1) as in GPT-J, else (i, i+Dim/2)

	Type                          string  // "default", "linear", "dynamic", "yarn", "longrope", "llama3"
	Factor                        float64 // of the positions, 1 for "default"
	LowFreqFactor, HighFreqFactor float64 // of "llama3"
	BetaFast, BetaSlow            float64 // of "yarn"
	MScale, MScaleAllDim          float64 // of "yarn", 0 if not said
	NoTruncate                    bool    // the negation of truncate of "yarn"
	AttentionFactor               float64 // 0 if not said
	OriginalPositions             int     // original_max_position_embeddings; where a scaling does not say, max_position_embeddings
}

// maxLayers and maxExperts bound what a file that lies about its layers can make [Config.Modules] list.
const (
	maxLayers  = 4096
	maxExperts = 1024
)

// Types returns the values of model_type whose geometry is known, in increasing order.
func Types() []string { return slices.Sorted(maps.Keys(families)) }

// Known reports whether the geometry of a model_type is known.
func Known(modelType string) bool { return families[modelType] != nil }

// Validate returns an error that names the first size that is out of range. A valid Config lists its modules.
func (c Config) Validate() error {
	if !Known(c.Type) {
		return fmt.Errorf("arch: model_type %.64q is not one of %v", c.Type, Types())
	}
	sizes := []struct {
		name  string
		value int
	}{
		{"vocab_size", c.Vocab}, {"hidden_size", c.Hidden}, {"num_hidden_layers", c.Layers}, {"num_attention_heads", c.Heads},
		{"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim}, {"intermediate_size", c.Inner},
	}
	for _, f := range sizes {
		if f.value < 1 || f.value > math.MaxInt32 {
			return c.errorf("%s %d is out of range", f.name, f.value)
		}
	}
	switch {
	case c.Positions < 0 || c.Positions > math.MaxInt32:
		return c.errorf("max_position_embeddings %d is out of range", c.Positions)
	case c.Layers > maxLayers:
		return c.errorf("num_hidden_layers %d is more than %d", c.Layers, maxLayers)
	case c.Heads%c.KVHeads != 0:
		return c.errorf("num_attention_heads %d is no multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	case c.Experts < 0 || c.Experts > maxExperts || (c.Type == "mixtral" || c.Type == "qwen2_moe" || c.Type == "qwen3_moe") && c.Experts == 0:
		return c.errorf("num_local_experts %d is out of range", c.Experts)
	case c.ExpertInner < 0 || c.ExpertInner > math.MaxInt32 || c.SharedInner < 0 || c.SharedInner > math.MaxInt32:
		return c.errorf("the inner size of an expert, %d or %d, is out of range", c.ExpertInner, c.SharedInner)
	case c.Windows != nil && len(c.Windows) != c.Layers:
		return c.errorf("%d windows for %d layers", len(c.Windows), c.Layers)
	}
	return nil
}

func (c Config) errorf(format string, args ...any) error {
	return fmt.Errorf("arch: %q: "+format, append([]any{c.Type}, args...)...)
}

// String returns one line about the model.
func (c Config) String() string {
	return fmt.Sprintf("%s: %d layers, hidden %d, %d heads of %d, %d for keys and values, inner %d, vocabulary %d",
		c.Type, c.Layers, c.Hidden, c.Heads, c.HeadDim, c.KVHeads, c.Inner, c.Vocab)
}
