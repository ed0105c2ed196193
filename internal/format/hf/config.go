package hf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// Limits of the sizes in a configuration. They are far above every published model and keep the products of two of them
// inside an int64.
const (
	maxSize      = 1 << 24 // of hidden, inner and vocabulary
	maxLayers    = 1 << 16
	maxPositions = 1 << 30
)

// Config is a config.json. For a ModelType that is not among those of Supported only the fields up to Quantization and
// Object are filled; the others are 0.
type Config struct {
	File          string   // for messages
	ModelType     string   // model_type
	Architectures []string // class names
	DType         string   // dtype or torch_dtype without "torch.": the type the weights were saved in, "" if not said
	Quantization  *Quantization
	BOS, PAD      int   // ids of tokens, -1 for none; they may lie outside a vocabulary that was made small
	EOS           []int // ids of the tokens that end a text

	Hidden    int // C: hidden_size, n_embd
	Layers    int // num_hidden_layers, n_layer
	Heads     int // H: num_attention_heads, n_head
	KVHeads   int // num_key_value_heads; Heads where keys and values are not shared
	HeadDim   int // D: head_dim, by default Hidden/Heads
	Inner     int // intermediate_size, n_inner; 4·Hidden where GPT-2 and GPT-J leave it out
	Vocab     int // V: rows of the embedding
	Positions int // max_position_embeddings, n_positions

	NormEps       float64 // rms_norm_eps, layer_norm_epsilon
	Activation    string  // hidden_act, activation_function
	TieEmbeddings bool    // tie_word_embeddings: the head is the embedding
	AttentionBias bool    // q, k and v have a bias
	OutputBias    bool    // the projection after attention has one
	MLPBias       bool    // the projections of the MLP have one
	HeadBias      bool    // lm_head has one
	Rope          Rope

	ScaleAttention      bool // scale_attn_weights of GPT-2: scores are divided by √D; true for the others
	ScaleByInverseLayer bool // scale_attn_by_inverse_layer_idx of GPT-2: scores of layer i are divided by i+1, too

	SlidingWindow int    // tokens that a layer with a window attends to; 0 if all layers attend to all
	Windowed      []bool // the layers with a window, nil if SlidingWindow is 0

	Object *format.Object // the document, for what has no field
}

// Rope is the rotary position embedding. Theta is 0 where positions are learned.
type Rope struct {
	Theta       float64 // base of the wavelengths
	Dim         int     // leading dimensions of a head that are rotated
	Interleaved bool    // pairs are (2i, 2i+1) as in GPT-J, else (i, i+Dim/2)

	Type                          string  // "default", "linear", "dynamic", "yarn", "longrope", "llama3"
	Factor                        float64 // of the positions, 1 for "default"
	LowFreqFactor, HighFreqFactor float64
	BetaFast, BetaSlow            float64 // of "yarn"
	AttentionFactor               float64 // 0 if not said
	OriginalPositions             int     // original_max_position_embeddings, 0 if not said
}

// Quantization is a quantization_config.
type Quantization struct {
	Method string   // quant_method: "bitsandbytes", "gptq"; "bitsandbytes" where an old file says only load_in_8bit
	Int8   bool     // load_in_8bit
	Bit4   bool     // load_in_4bit
	Skip   []string // llm_int8_skip_modules
}

// Supported returns the values of model_type whose configuration is read in full.
func Supported() []string { return slices.Sorted(maps.Keys(families)) }

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
	f, err := dir.Open("config.json")
	if err != nil {
		if !dir.Has("config.json") && dir.Has("adapter_config.json") {
			return nil, format.Malformed(dir.Path(), "", "is an adapter of PEFT and holds no model (no config.json): give the folder of its base model, too")
		}
		return nil, err
	}
	defer f.Close()
	text, err := f.ReadAll(format.MaxConfig)
	if err != nil {
		return nil, err
	}
	return ParseConfig(f.Path, text)
}

// ParseConfig reads the text of a config.json; file is for messages. A size that is missing is refused: the default that a
// class of transformers has for it belongs to some other model.
func ParseConfig(file string, text []byte) (*Config, error) {
	o, err := format.ParseObject(file, text)
	if err != nil {
		return nil, err
	}
	c := &Config{File: file, Object: o}
	c.ModelType = o.Text("model_type", "")
	c.Architectures = o.Texts("architectures")
	c.DType = strings.TrimPrefix(o.Text("dtype", o.Text("torch_dtype", "")), "torch.")
	c.BOS = o.Int("bos_token_id", -1, -1, maxSize)
	c.PAD = o.Int("pad_token_id", -1, -1, maxSize)
	c.EOS = o.Ints("eos_token_id", 0, maxSize)
	c.Quantization = quantization(o.Object("quantization_config"))
	switch c.ModelType {
	case "gpt2", "gptj":
		c.gpt(o)
	case "llama", "qwen2":
		c.llama(o)
	}
	if families[c.ModelType] != nil {
		c.consistent(o)
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Known returns an error that lists the supported architectures if c is of another one.
func (c *Config) Known() error {
	if families[c.ModelType] != nil {
		return nil
	}
	list := strings.Join(Supported(), ", ")
	if c.ModelType == "" {
		return format.Malformed(c.File, "model_type", "is missing, want one of %s", list)
	}
	return format.Malformed(c.File, "model_type", "%.64q is not a supported architecture, want one of %s", c.ModelType, list)
}

// size returns the integer called key, which must be there and lie in [1, most].
func size(o *format.Object, key string, most int) int {
	if !o.Has(key) {
		o.Malformed(key, "is missing")
	}
	return o.Int(key, 1, 1, most)
}

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
	c.NormEps = o.Float("layer_norm_epsilon", 1e-5, 0, 1)
	c.Activation = o.Text("activation_function", "gelu_new")
	c.MLPBias = true
	c.ScaleAttention = true
	if c.ModelType == "gpt2" {
		c.TieEmbeddings = o.Bool("tie_word_embeddings", true)
		c.AttentionBias, c.OutputBias = true, true
		c.ScaleAttention = o.Bool("scale_attn_weights", true)
		c.ScaleByInverseLayer = o.Bool("scale_attn_by_inverse_layer_idx", false)
		if o.Bool("add_cross_attention", false) {
			o.Malformed("add_cross_attention", "is true: a decoder of an encoder is no language model")
		}
		return
	}
	c.TieEmbeddings = o.Bool("tie_word_embeddings", false)
	c.HeadBias = true
	c.Rope = Rope{Theta: 10000, Interleaved: true, Type: "default", Factor: 1, Dim: o.Int("rotary_dim", 64, 2, maxSize)}
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
	c.NormEps = o.Float("rms_norm_eps", 1e-6, 0, 1)
	c.Activation = o.Text("hidden_act", "silu")
	c.TieEmbeddings = o.Bool("tie_word_embeddings", false)
	c.ScaleAttention = true
	positions := 2048
	if c.ModelType == "llama" {
		c.AttentionBias = o.Bool("attention_bias", false)
		c.OutputBias = c.AttentionBias
		c.MLPBias = o.Bool("mlp_bias", false)
	} else {
		positions = 32768
		c.AttentionBias = true
		if o.Bool("use_sliding_window", false) {
			c.window(o)
		}
	}
	c.Positions = o.Int("max_position_embeddings", positions, 1, maxPositions)
	c.Rope = c.rope(o)
}

// window reads which layers of Qwen2 attend to the nearest tokens only: those that layer_types names, in a file without it
// those from max_window_layers on.
func (c *Config) window(o *format.Object) {
	c.SlidingWindow = o.Int("sliding_window", 4096, 1, maxPositions)
	c.Windowed = make([]bool, c.Layers)
	types := o.Texts("layer_types")
	if types != nil && len(types) != c.Layers {
		o.Malformed("layer_types", "has %d elements, num_hidden_layers is %d", len(types), c.Layers)
		return
	}
	first := o.Int("max_window_layers", 28, 0, maxLayers)
	for i := range c.Windowed {
		c.Windowed[i] = i >= first
		if types != nil {
			c.Windowed[i] = types[i] == "sliding_attention"
			if !c.Windowed[i] && types[i] != "full_attention" {
				o.Malformed("layer_types", "element %d is %.64q, want full_attention or sliding_attention", i, types[i])
			}
		}
	}
}

// rope reads rope_parameters of transformers 5 or rope_theta and rope_scaling of earlier versions. Where a file has both,
// rope_scaling counts, as in RotaryEmbeddingConfigMixin of transformers@5.23.0.
func (c *Config) rope(o *format.Object) Rope {
	r := Rope{Theta: o.Float("rope_theta", 10000, 1, 1e18), Type: "default", Factor: 1}
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
		}
		r.AttentionFactor = s.Float("attention_factor", 0, 0, 1e9)
		r.OriginalPositions = s.Int("original_max_position_embeddings", 0, 1, maxPositions)
	}
	r.Dim = int(float64(c.HeadDim) * part)
	return r
}

// consistent makes the checks that need several members.
func (c *Config) consistent(o *format.Object) {
	switch {
	case o.Err() != nil:
	case c.ModelType[:3] == "gpt" && c.Hidden%c.Heads != 0:
		o.Malformed("n_embd", "is %d, no multiple of n_head %d", c.Hidden, c.Heads)
	case c.KVHeads > c.Heads || c.Heads%c.KVHeads != 0:
		o.Malformed("num_key_value_heads", "is %d, which does not divide num_attention_heads %d", c.KVHeads, c.Heads)
	case c.Rope.Theta > 0 && (c.Rope.Dim < 2 || c.Rope.Dim > c.HeadDim || c.Rope.Dim%2 != 0):
		key := "head_dim"
		if c.ModelType == "gptj" {
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

// String returns one line about the model.
func (c *Config) String() string {
	return fmt.Sprintf("%s: %d layers, hidden %d, %d heads of %d, %d for keys and values, inner %d, vocabulary %d",
		c.ModelType, c.Layers, c.Hidden, c.Heads, c.HeadDim, c.KVHeads, c.Inner, c.Vocab)
}
