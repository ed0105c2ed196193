package hf

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
)

// Limits of the sizes in a configuration. They are far above every published model and keep the products of two of them
// inside an int64.
const (
	maxSize      = 1 << 24 // of hidden, inner and vocabulary
	maxLayers    = 1 << 16
	maxPositions = 1 << 30
)

// Config is a config.json. For a model_type that is not among those of arch.Types only Type of its geometry is filled.
type Config struct {
	arch.Config // Type is model_type, whatever it is

	File          string   // for messages
	Architectures []string // class names
	DType         string   // dtype or torch_dtype without "torch.": the type the weights were saved in, "" if not said
	Quantization  *Quantization
	BOS, PAD      int   // ids of tokens, -1 for none; they may lie outside a vocabulary that was made small
	EOS           []int // ids of the tokens that end a text

	Object *format.Object // the document, for what has no field
}

// Quantization is a quantization_config.
type Quantization struct {
	Method string   // quant_method: "bitsandbytes", "gptq"; "bitsandbytes" where an old file says only load_in_8bit
	Int8   bool     // load_in_8bit
	Bit4   bool     // load_in_4bit
	Skip   []string // llm_int8_skip_modules
}

// ReadConfig reads the config.json of the model folder at path.
func ReadConfig(path string) (*Config, error) {
	dir, err := format.OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return readConfig(dir)
}

func readConfig(dir *format.Dir) (*Config, error) {
	text, err := dir.ReadFile("config.json", format.MaxConfig)
	if err != nil {
		if !dir.Has("config.json") && dir.Has("adapter_config.json") {
			return nil, format.Malformed(dir.Path(), "", "is an adapter of PEFT and holds no model (no config.json): give the folder of its base model, too")
		}
		return nil, err
	}
	return ParseConfig(filepath.Join(dir.Path(), "config.json"), text)
}

// ParseConfig reads the text of a config.json; file is for messages. A size that is missing is refused: the default that a
// class of transformers has for it belongs to some other model.
func ParseConfig(file string, text []byte) (*Config, error) {
	o, err := format.ParseObject(file, text)
	if err != nil {
		return nil, err
	}
	c := &Config{File: file, Object: o}
	c.Type = o.Text("model_type", "")
	c.Architectures = o.Texts("architectures")
	c.DType = strings.TrimPrefix(o.Text("dtype", o.Text("torch_dtype", "")), "torch.")
	c.BOS = o.Int("bos_token_id", -1, -1, maxSize)
	c.PAD = o.Int("pad_token_id", -1, -1, maxSize)
	c.EOS = o.Ints("eos_token_id", 0, maxSize)
	c.Quantization = quantization(o.Object("quantization_config"))
	switch c.Type {
	case "gpt2", "gptj":
		c.gpt(o)
	case "llama", "qwen2":
		c.llama(o)
	default:
		c.alike(o)
	}
	if arch.Known(c.Type) {
		c.consistent(o)
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// OneOf returns an error that lists the supported architectures, which are values of model_type, if c is of another one.
func (c *Config) OneOf(supported []string) error {
	if slices.Contains(supported, c.Type) {
		return nil
	}
	list := strings.Join(supported, ", ")
	if c.Type == "" {
		return format.Malformed(c.File, "model_type", "is missing, want one of %s", list)
	}
	return format.Malformed(c.File, "model_type", "%.64q is not a supported architecture, want one of %s", c.Type, list)
}

// size returns the integer called key, which must be there and lie in [1, most].
func size(o *format.Object, key string, most int) int {
	if !o.Has(key) {
		o.Malformed(key, "is missing")
	}
	return o.Int(key, 1, 1, most)
}

// Canonical returns the name in the state dict of the class ...ForCausalLM of transformers of the tensor that is stored or
// asked for as name: [arch.Canonical].
func (c *Config) Canonical(name string) string { return arch.Canonical(c.Type, name) }

// gpt reads the sizes of GPT-2 and GPT-J, whose biases are fixed by their classes.
func (c *Config) gpt(o *format.Object) {
	c.Hidden = size(o, "n_embd", maxSize)
	c.Layers = size(o, "n_layer", maxLayers)
	c.Heads = size(o, "n_head", maxSize)
	c.Vocab = size(o, "vocab_size", maxSize)
	c.Positions = size(o, "n_positions", maxPositions)
	c.KVHeads = c.Heads
	c.HeadDim = c.Hidden / c.Heads
	c.Inner = o.Int("n_inner", 4*c.Hidden, 1, maxSize)
	c.Eps = o.Float("layer_norm_epsilon", 1e-5, 0, 1)
	c.Activation = o.Text("activation_function", "gelu_new")
	c.MLPBias = true
	if c.Type == "gpt2" {
		c.Tied = o.Bool("tie_word_embeddings", true)
		c.QKVBias, c.OutputBias = true, true
		c.Unscaled = !o.Bool("scale_attn_weights", true)
		c.InverseLayerIdx = o.Bool("scale_attn_by_inverse_layer_idx", false)
		if o.Bool("add_cross_attention", false) {
			o.Malformed("add_cross_attention", "is true: a decoder of an encoder is no language model")
		}
		return
	}
	c.Tied = o.Bool("tie_word_embeddings", false)
	c.HeadBias = true
	c.Rope = arch.Rope{Theta: 10000, Interleaved: true, Type: "default", Factor: 1, Dim: o.Int("rotary_dim", 64, 2, maxSize)}
	if v, there := o.Members["rotary_dim"]; there && v == nil {
		o.Malformed("rotary_dim", "is null, for which the class has no working meaning; want an integer")
	}
}

// llama reads the sizes of Llama and Qwen2. What differs is the bias: Qwen2 has one for q, k and v and no setting for it.
func (c *Config) llama(o *format.Object) {
	c.Hidden = size(o, "hidden_size", maxSize)
	c.Layers = size(o, "num_hidden_layers", maxLayers)
	c.Heads = size(o, "num_attention_heads", maxSize)
	c.Inner = size(o, "intermediate_size", maxSize)
	c.Vocab = size(o, "vocab_size", maxSize)
	c.KVHeads = o.Int("num_key_value_heads", c.Heads, 1, maxSize)
	if !o.Has("head_dim") && c.Hidden%c.Heads != 0 {
		o.Malformed("hidden_size", "is %d, no multiple of num_attention_heads %d", c.Hidden, c.Heads)
	}
	c.HeadDim = o.Int("head_dim", c.Hidden/c.Heads, 1, maxSize)
	c.Eps = o.Float("rms_norm_eps", 1e-6, 0, 1)
	c.Activation = o.Text("hidden_act", "silu")
	c.Tied = o.Bool("tie_word_embeddings", false)
	positions := 2048
	if c.Type == "llama" {
		c.QKVBias = o.Bool("attention_bias", false)
		c.OutputBias = c.QKVBias
		c.MLPBias = o.Bool("mlp_bias", false)
	} else {
		positions = 32768
		c.QKVBias = true
		if o.Bool("use_sliding_window", false) {
			c.window(o)
		}
	}
	c.Positions = o.Int("max_position_embeddings", positions, 1, maxPositions)
	c.Rope = c.rope(o)
}

// alike reads the sizes of the other architectures whose geometry is known. What a file leaves out has the default of the class
// (transformers@5.23.0 models/*/configuration_*.py), and a file whose sizes make no sense is one of an architecture that is not known:
// nothing here computes with these models.
func (c *Config) alike(o *format.Object) {
	if !arch.Known(c.Type) {
		return
	}
	n := func(key string, or, most int) int {
		v, there := o.Members[key].(format.Number)
		if !there {
			return or
		}
		i, err := strconv.Atoi(string(v))
		if err != nil || i < 1 || i > most {
			return 0
		}
		return i
	}
	flag := func(key string, or bool) bool {
		v, there := o.Members[key].(bool)
		return there && v || !there && or
	}
	c.Hidden, c.Layers, c.Heads = n("hidden_size", 0, maxSize), n("num_hidden_layers", 0, maxLayers), n("num_attention_heads", 0, maxSize)
	c.Inner, c.Vocab = n("intermediate_size", 0, maxSize), n("vocab_size", 0, maxSize)
	c.KVHeads = n("num_key_value_heads", c.Heads, maxSize)
	head := c.Hidden / max(c.Heads, 1)
	c.Positions = n("max_position_embeddings", 0, maxPositions)
	c.QKVBias = flag("attention_bias", false)
	c.OutputBias = c.QKVBias
	switch c.Type {
	case "qwen3":
		head = 128
	case "gemma", "gemma2", "gemma3_text":
		head = 256
	case "granite", "smollm3":
		c.MLPBias = flag("mlp_bias", false)
	case "phi":
		c.QKVBias, c.OutputBias, c.MLPBias, c.HeadBias, c.HeadNorms = true, true, true, true, flag("qk_layernorm", false)
	case "mistral", "mixtral", "phi3":
		c.QKVBias, c.OutputBias = false, false
	}
	switch c.Type {
	case "olmo", "olmo2", "olmo3", "phi", "phi3", "starcoder2", "stablelm", "gpt_neox", "opt", "falcon": // without the setting
	default:
		head = n("head_dim", head, maxSize)
	}
	c.HeadDim = head
	c.Experts = 0
	if c.Type == "mixtral" {
		c.Experts = n("num_local_experts", 8, 1024)
	}
	c.Tied = flag("tie_word_embeddings", strings.HasPrefix(c.Type, "gemma") || slices.Contains([]string{"smollm3", "starcoder2", "cohere", "opt", "bloom", "falcon"}, c.Type))
	c.alikeMore(n, flag)
}

// alikeMore reads what the later families of arch add. Where a setting makes another geometry than the one that is known, the sizes are
// left invalid: the architecture is then one that is not known.
func (c *Config) alikeMore(n func(key string, or, most int) int, flag func(key string, or bool) bool) {
	known := true
	switch c.Type {
	case "starcoder2":
		c.KVHeads = n("num_key_value_heads", 2, maxSize)
		c.QKVBias = flag("use_bias", true)
		c.OutputBias, c.MLPBias = c.QKVBias, c.QKVBias
	case "stablelm":
		c.QKVBias, c.OutputBias, c.OneNorm = flag("use_qkv_bias", false), false, flag("use_parallel_residual", false)
		known = !flag("qk_layernorm", false)
	case "cohere":
		known = !flag("use_qk_norm", false)
	case "gpt_neox":
		c.KVHeads, c.MLPBias, c.QKVBias = c.Heads, true, flag("attention_bias", true)
		c.OutputBias = c.QKVBias
	case "qwen2_moe", "qwen3_moe":
		if c.Type == "qwen2_moe" {
			c.QKVBias, c.OutputBias = flag("qkv_bias", true), false
			c.SharedInner = n("shared_expert_intermediate_size", 5632, maxSize)
			c.Experts, c.ExpertInner = n("num_experts", 60, 1024), n("moe_intermediate_size", 1408, maxSize)
		} else {
			c.Experts, c.ExpertInner = n("num_experts", n("num_local_experts", 128, 1024), 1024), n("moe_intermediate_size", 768, maxSize)
		}
		dense, _ := c.Object.Members["mlp_only_layers"].([]any)
		known = n("decoder_sparse_step", 1, maxLayers) == 1 && len(dense) == 0 && c.Experts > 0 && c.ExpertInner > 0
	case "opt":
		c.Inner, c.KVHeads = n("ffn_dim", 0, maxSize), c.Heads
		c.QKVBias = flag("enable_bias", true)
		c.OutputBias, c.MLPBias = c.QKVBias, c.QKVBias
		known = n("word_embed_proj_dim", c.Hidden, maxSize) == c.Hidden && flag("do_layer_norm_before", true) && !flag("_remove_final_layer_norm", false) && flag("layer_norm_elementwise_affine", true)
	case "bloom":
		c.Hidden, c.Layers, c.Heads = n("hidden_size", n("n_embed", 0, maxSize), maxSize), n("n_layer", n("num_hidden_layers", 0, maxLayers), maxLayers), n("n_head", n("num_attention_heads", 0, maxSize), maxSize)
		c.KVHeads, c.HeadDim, c.Inner, c.Positions = c.Heads, c.Hidden/max(c.Heads, 1), 4*c.Hidden, 0
		c.QKVBias, c.OutputBias, c.MLPBias = true, true, true
	case "falcon":
		c.Inner, c.KVHeads = n("ffn_hidden_size", 4*c.Hidden, maxSize), c.Heads
		if flag("multi_query", true) {
			c.KVHeads = 1
		}
		c.QKVBias, c.OneNorm = flag("bias", false), flag("parallel_attn", true)
		c.OutputBias, c.MLPBias = c.QKVBias, c.QKVBias
		known = !flag("new_decoder_architecture", false) && n("num_ln_in_parallel_attn", 1, maxSize) == 1
	}
	if !known {
		c.Hidden = 0
	}
}

// window reads which layers of Qwen2 attend to the nearest tokens only: those that layer_types names, in a file without it
// those from max_window_layers on.
func (c *Config) window(o *format.Object) {
	width := o.Int("sliding_window", 4096, 1, maxPositions)
	c.Windows = make([]int, c.Layers)
	types := o.Texts("layer_types")
	if types != nil && len(types) != c.Layers {
		o.Malformed("layer_types", "has %d elements, num_hidden_layers is %d", len(types), c.Layers)
		return
	}
	first := o.Int("max_window_layers", 28, 0, maxLayers)
	for i := range c.Windows {
		near := i >= first
		if types != nil {
			near = types[i] == "sliding_attention"
			if !near && types[i] != "full_attention" {
				o.Malformed("layer_types", "element %d is %.64q, want full_attention or sliding_attention", i, types[i])
			}
		}
		if near {
			c.Windows[i] = width
		}
	}
}

// rope reads rope_parameters of transformers 5 or rope_theta and rope_scaling of earlier versions. Where a file has both,
// rope_scaling counts, as in RotaryEmbeddingConfigMixin of transformers@5.23.0.
func (c *Config) rope(o *format.Object) arch.Rope {
	r := arch.Rope{Theta: o.Float("rope_theta", 10000, 1, 1e18), Type: "default", Factor: 1}
	part := o.Float("partial_rotary_factor", 1, 0, 1)
	key := "rope_parameters"
	if s, ok := o.Members["rope_scaling"].(map[string]any); ok && len(s) > 0 {
		key = "rope_scaling"
	} else {
		o.Object("rope_scaling") // of another type it is refused
	}
	if s := o.Object(key); s != nil {
		r.Theta = s.Float("rope_theta", r.Theta, 1, 1e18)
		part = s.Float("partial_rotary_factor", part, 0, 1)
		r.Type = s.Text("rope_type", s.Text("type", "default"))
		r.Factor = s.Float("factor", 1, 0, 1e9)
		r.LowFreqFactor = s.Float("low_freq_factor", 0, 0, 1e9)
		r.HighFreqFactor = s.Float("high_freq_factor", 0, 0, 1e9)
		if r.Type == "yarn" {
			r.BetaFast = s.Float("beta_fast", 32, 0, 1e9)
			r.BetaSlow = s.Float("beta_slow", 1, 0, 1e9)
			r.MScale = s.Float("mscale", 0, 0, 1e9)
			r.MScaleAllDim = s.Float("mscale_all_dim", 0, 0, 1e9)
			r.NoTruncate = !s.Bool("truncate", true)
		}
		r.AttentionFactor = s.Float("attention_factor", 0, 0, 1e9)
		r.OriginalPositions = s.Int("original_max_position_embeddings", 0, 1, maxPositions)
		if r.Type != "default" && r.OriginalPositions == 0 { // modeling_rope_utils standardize_rope_params
			r.OriginalPositions = c.Positions
		}
	}
	r.Dim = int(float64(c.HeadDim) * part)
	return r
}

// consistent makes the checks that need several members.
func (c *Config) consistent(o *format.Object) {
	switch {
	case o.Err() != nil || c.Rope.Type == "" && c.Type != "gpt2": // of those read by alike
	case c.Type[:3] == "gpt" && c.Hidden%c.Heads != 0:
		o.Malformed("n_embd", "is %d, no multiple of n_head %d", c.Hidden, c.Heads)
	case c.KVHeads > c.Heads || c.Heads%c.KVHeads != 0:
		o.Malformed("num_key_value_heads", "is %d, which does not divide num_attention_heads %d", c.KVHeads, c.Heads)
	case c.Rope.Theta > 0 && (c.Rope.Dim < 2 || c.Rope.Dim > c.HeadDim || c.Rope.Dim%2 != 0):
		key := "head_dim"
		if c.Type == "gptj" {
			key = "rotary_dim"
		}
		o.Malformed(key, "%d dimensions of a head of %d are to be rotated in pairs, want an even number in [2, %d]", c.Rope.Dim, c.HeadDim, c.HeadDim)
	}
}

func quantization(o *format.Object) *Quantization {
	if o == nil {
		return nil
	}
	q := &Quantization{
		Method: o.Text("quant_method", ""),
		Int8:   o.Bool("load_in_8bit", false),
		Bit4:   o.Bool("load_in_4bit", false),
		Skip:   o.Texts("llm_int8_skip_modules"),
	}
	if q.Method == "" && (q.Int8 || q.Bit4) {
		q.Method = "bitsandbytes"
	}
	return q
}
