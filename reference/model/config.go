package model

import (
	"fmt"
	"math"
	"strings"

	"plumbline/reference/nn"
)

// Kind is the family of a model: model_type in its config.json.
type Kind string

// The families.
const (
	GPT2  Kind = "gpt2"
	GPTJ  Kind = "gptj"
	Llama Kind = "llama" // also SmolLM2
	Qwen2 Kind = "qwen2" // also Qwen1.5 and Qwen2.5
)

// Config is what a config.json says about the arithmetic of a model. The comments name the keys of transformers@5.23.0, those
// of GPT-2 and GPT-J after the semicolon. No field has a default: the reader of the file knows those of the family.
type Config struct {
	Kind         Kind
	Vocab        int     // vocab_size: the rows of the embedding, padding rows included
	Hidden       int     // hidden_size; n_embd
	Layers       int     // num_hidden_layers; n_layer
	Heads        int     // num_attention_heads; n_head
	KVHeads      int     // num_key_value_heads; as many as heads
	HeadDim      int     // head_dim, by default hidden_size/num_attention_heads
	Intermediate int     // intermediate_size; n_inner, by default 4·n_embd
	MaxPositions int     // max_position_embeddings; n_positions. GPT-2 has as many rows of wpe; others ignore it
	Eps          float64 // rms_norm_eps; layer_norm_epsilon
	Activation   string  // hidden_act; activation_function
	Tied         bool    // tie_word_embeddings: the head is the embedding
	RoPE         nn.RoPE // rope_theta, rope_scaling or rope_parameters; GPT-J: rotary_dim, 10000, interleaved. GPT-2: none

	QKVBias    bool // q, k and v have biases: attention_bias of Llama; always so in Qwen2 and GPT-2, never in GPT-J
	OutputBias bool // the output of the attention has one: attention_bias of Llama; always so in GPT-2, never in Qwen2, GPT-J
	MLPBias    bool // the MLP has biases: mlp_bias of Llama; always so in GPT-2 and GPT-J, never in Qwen2

	// Windows holds the sliding window of each layer, 0 for full attention; nil: full everywhere. It is sliding_window at the
	// layers from max_window_layers on, or where layer_types is sliding_attention, if use_sliding_window is set. Qwen2 only.
	Windows []int

	Unscaled        bool // the negation of scale_attn_weights: scores are not divided by √D. GPT-2 only
	InverseLayerIdx bool // scale_attn_by_inverse_layer_idx: layer i divides its scores by i+1 as well. GPT-2 only
}

// maxLayers bounds what a file that lies about its layers can make [Config.Tensors] list.
const maxLayers = 4096

// Validate returns an error that names the first fact that is out of range or that this package does not know.
func (c Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"vocab_size", c.Vocab}, {"hidden_size", c.Hidden}, {"num_hidden_layers", c.Layers},
		{"num_attention_heads", c.Heads}, {"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim},
		{"intermediate_size", c.Intermediate}, {"max_position_embeddings", c.MaxPositions},
	} {
		if f.value < 1 || f.value > math.MaxInt32 {
			return c.errorf("%s %d is out of range", f.name, f.value)
		}
	}
	if c.Layers > maxLayers {
		return c.errorf("num_hidden_layers %d is more than %d", c.Layers, maxLayers)
	}
	if c.Heads%c.KVHeads != 0 {
		return c.errorf("num_attention_heads %d is no multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	}
	if !(c.Eps > 0) || math.IsInf(c.Eps, 0) {
		return c.errorf("the epsilon of the norms is %g", c.Eps)
	}
	if _, err := nn.Activation(c.Activation); err != nil {
		return c.errorf("%w", err)
	}
	if c.Windows != nil && len(c.Windows) != c.Layers {
		return c.errorf("%d windows for %d layers", len(c.Windows), c.Layers)
	}
	for i, w := range c.Windows {
		if w < 0 {
			return c.errorf("the window of layer %d is %d", i, w)
		}
	}
	switch c.Kind {
	case Llama, Qwen2:
		return c.validateLlama()
	case GPTJ:
		return c.validateGPTJ()
	case GPT2:
		return c.validateGPT2()
	}
	return c.errorf("the model_type is not one of %s, %s, %s, %s", GPT2, GPTJ, Llama, Qwen2)
}

func (c Config) errorf(format string, args ...any) error {
	return fmt.Errorf("model: %q: "+format, append([]any{string(c.Kind)}, args...)...)
}

// rotates returns an error unless the rotary embedding is valid and fits the heads.
func (c Config) rotates() error {
	if err := c.RoPE.Validate(); err != nil {
		return c.errorf("%w", err)
	}
	if c.RoPE.Dim > c.HeadDim {
		return c.errorf("%d rotated channels of heads of %d", c.RoPE.Dim, c.HeadDim)
	}
	return nil
}

// refuses returns an error that names the first set option that the family does not have.
func (c Config) refuses(options ...option) error {
	for _, o := range options {
		if o.set {
			return c.errorf("%s is not of this family", o.name)
		}
	}
	return nil
}

type option struct {
	name string
	set  bool
}

// whole returns an error unless heads of HeadDim fill the hidden states, each with keys of its own.
func (c Config) whole() error {
	if c.KVHeads != c.Heads || c.Heads*c.HeadDim != c.Hidden {
		return c.errorf("%d heads of %d channels with %d key-value heads for hidden states of %d", c.Heads, c.HeadDim, c.KVHeads, c.Hidden)
	}
	return nil
}

// A Tensor is the name and the shape of a weight.
type Tensor struct {
	Name  string
	Shape []int
}

// Tensors returns the weights of the model in the order of the forward pass. A tied head is not among them. It panics if c
// is not valid.
func (c Config) Tensors() []Tensor {
	if err := c.Validate(); err != nil {
		panic(err.Error())
	}
	switch c.Kind {
	case GPTJ:
		return c.tensorsGPTJ()
	case GPT2:
		return c.tensorsGPT2()
	}
	return c.tensorsLlama()
}

// Linears returns the linear layers that a LoRA update may have, by name, with the shape [out, in] of the update: whatever
// way round the layer stores its own weight. The head is the last, also if it is tied.
func (c Config) Linears() []Tensor {
	var linears []Tensor
	for _, t := range c.Tensors() {
		name, ok := strings.CutSuffix(t.Name, ".weight")
		if !ok || len(t.Shape) != 2 || c.isTable(name) || name == head {
			continue
		}
		out, in := t.Shape[0], t.Shape[1]
		if c.Kind == GPT2 {
			out, in = in, out
		}
		linears = append(linears, Tensor{name, []int{out, in}})
	}
	return append(linears, Tensor{head, []int{c.Vocab, c.Hidden}})
}

// head is the layer that turns hidden states into logits.
const head = "lm_head"

// embedding returns the name of the table of token embeddings.
func (c Config) embedding() string {
	if c.Kind == GPT2 || c.Kind == GPTJ {
		return "transformer.wte"
	}
	return "model.embed_tokens"
}

// isTable tells whether a name is that of a table of embeddings.
func (c Config) isTable(name string) bool { return name == c.embedding() || name == "transformer.wpe" }

// blank returns the tensor name.part[shape].
func blank(name, part string, shape ...int) Tensor { return Tensor{name + "." + part, shape} }

// headTensors returns the weights of the head: none if it is tied.
func (c Config) headTensors(bias bool) []Tensor {
	var t []Tensor
	if !c.Tied {
		t = append(t, blank(head, "weight", c.Vocab, c.Hidden))
	}
	if bias {
		t = append(t, blank(head, "bias", c.Vocab))
	}
	return t
}
