package peft

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// Defaults of PEFT for keys that a configuration leaves out (tuners/lora/config.py LoraConfig).
const (
	DefaultRank  = 8
	DefaultAlpha = 8
)

// maxRank bounds r; the factors themselves are bounded by their file.
const maxRank = 1 << 20

// Config is the part of adapter_config.json that decides what an adapter computes.
type Config struct {
	BaseModel string // base_model_name_or_path: a folder, or a name on a hub
	Revision  string
	TaskType  string  // as "CAUSAL_LM"
	R         int     // rank, ≥ 1
	Alpha     float64 // lora_alpha, α of the scaling
	RSLoRA    bool    // use_rslora: the scaling is α/√r in place of α/r
	Dropout   float64 // lora_dropout: in training only

	Targets       Targets // target_modules
	Exclude       Targets // exclude_modules; no targets exclude nothing
	Layers        []int   // layers_to_transform: only layers of these indices; nil: all
	LayersPattern []string
	ModulesToSave []string // modules trained and saved whole

	RankPattern  []Pattern // rank_pattern: the first that matches a module's path gives its rank
	AlphaPattern []Pattern // alpha_pattern: the same for α

	FanInFanOut bool   // the weights of the base are stored [in, out]; changes merging only
	Bias        string // "none", "all" or "lora_only": which biases of the base were trained
	LoraBias    bool   // lora_bias: B has a bias
	TiesWeights bool   // ensure_weight_tying: a head that is tied to an adapted embedding is adapted with it
	// Variant is the key of a variant of LoRA that computes something else than the package comment says, "" for none:
	// "use_dora", "init_lora_weights", …
	Variant string

	// Of a Config that was checked, so that a list of ten thousand names is not walked for each of a million tensors.
	expressions      map[pattern]*regexp.Regexp
	targets, exclude map[string]bool // of the lists
	steps            int             // of the expressions
}

// known are the keys of peft@0.21.2's LoraConfig and of the classes below it.
var known = []string{"alora_invocation_tokens", "alpha_pattern", "arrow_config", "auto_mapping", "base_model_name_or_path", "bias",
	"corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
	"kasa_config", "layer_replication", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_bias", "lora_dropout",
	"lora_ga_config", "megatron_config", "megatron_core", "modules_to_save", "monteclora_config", "peft_type", "peft_version",
	"qalora_group_size", "r", "rank_pattern", "revision", "target_modules", "target_parameters", "task_type", "trainable_token_indices",
	"use_bdlora", "use_dora", "use_qalora", "use_rslora", "velora_config", "runtime_config"}

// variants are the keys that, set, change what an adapter computes.
var variants = []string{"use_dora", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication",
	"megatron_config", "monteclora_config", "target_parameters", "trainable_token_indices"}

// harmless are the values of init_lora_weights that leave the base as it is. The others (pissa, olora, corda, loftq,
// lora_ga) take a part out of the base weights when an adapter is attached, so that its factors belong to another base.
var harmless = []string{"gaussian", "eva", "orthogonal", "mica"}

// ParseConfig reads an adapter_config.json; file is for messages. The notes name keys that PEFT would ignore and defaults
// that took the place of keys that decide the scaling.
func ParseConfig(file string, text []byte) (c Config, notes []string, err error) {
	o, err := format.ParseObject(file, text)
	if err != nil {
		return Config{}, nil, err
	}
	kind := o.Text("peft_type", "")
	if err := o.Err(); err != nil {
		return Config{}, nil, err
	}
	if kind != "LORA" {
		if kind == "" {
			return Config{}, nil, format.Malformed(file, "peft_type", "is absent, want \"LORA\"")
		}
		return Config{}, nil, format.Malformed(file, "peft_type", "is %.64q, supported: \"LORA\"", kind)
	}
	for _, d := range []struct {
		key   string
		value int
	}{{"r", DefaultRank}, {"lora_alpha", DefaultAlpha}} {
		switch v, there := o.Members[d.key]; {
		case there && v == nil:
			o.Malformed(d.key, "is null, want a number")
		case !there:
			notes = append(notes, fmt.Sprintf("%s has no %s: PEFT's default is %d", file, d.key, d.value))
		}
	}
	c = Config{
		BaseModel:     o.Text("base_model_name_or_path", ""),
		Revision:      o.Text("revision", ""),
		TaskType:      o.Text("task_type", ""),
		R:             o.Int("r", DefaultRank, 1, maxRank),
		Alpha:         o.Float("lora_alpha", DefaultAlpha, -math.MaxFloat64, math.MaxFloat64),
		RSLoRA:        o.Bool("use_rslora", false),
		Dropout:       o.Float("lora_dropout", 0, 0, 1),
		Targets:       targets(o, "target_modules"),
		Exclude:       targets(o, "exclude_modules"),
		Layers:        o.Ints("layers_to_transform", 0, math.MaxInt32),
		LayersPattern: targets(o, "layers_pattern").either(),
		ModulesToSave: o.Texts("modules_to_save"),
		FanInFanOut:   o.Bool("fan_in_fan_out", false),
		Bias:          o.Text("bias", "none"),
		LoraBias:      o.Bool("lora_bias", false),
		TiesWeights:   o.Bool("ensure_weight_tying", false),
		Variant:       variant(o),
	}
	if c.RankPattern, err = patterns(o, "rank_pattern", text); err == nil {
		c.AlphaPattern, err = patterns(o, "alpha_pattern", text)
	}
	if err == nil {
		err = o.Err()
	}
	if err == nil {
		err = c.check(file)
	}
	if err != nil {
		return Config{}, nil, err
	}
	for _, key := range o.Keys() {
		if !slices.Contains(known, key) {
			notes = append(notes, fmt.Sprintf("%s: %.64q is no key of a LoRA configuration; PEFT ignores it", file, key))
		}
	}
	return c, notes, nil
}

// variant returns the first key that makes the adapter another function than plain LoRA.
func variant(o *format.Object) string {
	for _, key := range variants {
		switch v := o.Members[key].(type) {
		case nil:
		case bool:
			if v {
				return key
			}
		case []any:
			if len(v) > 0 {
				return key
			}
		default:
			return key
		}
	}
	switch v := o.Members["init_lora_weights"].(type) {
	case nil, bool:
	case string:
		if !slices.Contains(harmless, v) {
			return fmt.Sprintf("init_lora_weights %.64q", v)
		}
	default:
		o.Malformed("init_lora_weights", "want a boolean or a string")
	}
	return ""
}

// check compiles every pattern and compares the keys with each other.
func (c *Config) check(file string) error {
	var firstErr error
	bad := func(key, msg string, args ...any) {
		if firstErr == nil {
			firstErr = format.Malformed(file, key, msg, args...)
		}
	}
	all := compiler{done: map[pattern]*regexp.Regexp{}}
	compile := func(key string, f form, text string) {
		if err := all.add(f, text); err != nil {
			bad(key, "%v", err)
		}
	}
	if c.R < 1 {
		bad("r", "is %d, want at least 1", c.R)
	}
	if math.IsNaN(c.Alpha) || math.IsInf(c.Alpha, 0) {
		bad("lora_alpha", "is %v, want a finite number", c.Alpha)
	}
	if !slices.Contains([]string{"none", "all", "lora_only"}, c.Bias) {
		bad("bias", "is %.64q, want \"none\", \"all\" or \"lora_only\"", c.Bias)
	}
	if c.Targets.Regex == "" && len(c.Targets.List) == 0 && c.Variant != "target_parameters" {
		bad("target_modules", "is absent or empty, want names or a pattern of the modules with an adapter")
	}
	if c.Targets.Regex != "" && !c.Targets.allLinear() {
		compile("target_modules", whole, c.Targets.Regex)
	}
	if c.Targets.Regex != "" && (c.Layers != nil || c.LayersPattern != nil) {
		bad("layers_to_transform", "goes with a list of target_modules only, found a pattern")
	}
	if c.LayersPattern != nil && c.Layers == nil {
		bad("layers_pattern", "needs layers_to_transform")
	}
	if c.Exclude.Regex != "" {
		compile("exclude_modules", whole, c.Exclude.Regex)
	}
	for _, p := range c.LayersPattern {
		compile("layers_pattern", layer, p)
	}
	if len(c.ModulesToSave) > maxSaved {
		bad("modules_to_save", "has %d names, want at most %d", len(c.ModulesToSave), maxSaved)
	}
	for _, m := range c.ModulesToSave {
		compile("modules_to_save", within, m)
	}
	for _, p := range c.RankPattern {
		compile("rank_pattern", ending, p.Key)
		if p.Value < 1 || p.Value > maxRank || p.Value != math.Trunc(p.Value) {
			bad("rank_pattern", "%.64q is %v, want an integer in [1, %d]", p.Key, p.Value, maxRank)
		}
	}
	for _, p := range c.AlphaPattern {
		compile("alpha_pattern", ending, p.Key)
		if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
			bad("alpha_pattern", "%.64q is %v, want a finite number", p.Key, p.Value)
		}
	}
	c.expressions, c.targets, c.exclude, c.steps = all.done, c.Targets.set(), c.Exclude.set(), all.program
	return firstErr
}

// Scaling returns the rank, α and the scaling s of the module at path:
//
//	s = α/r, or α/√r with RSLoRA
//
// where rank_pattern and alpha_pattern, each by the first of its patterns that matches the path or its end after a dot,
// take the place of r and lora_alpha.
func (c *Config) Scaling(path string) (r int, alpha, s float64) {
	r = c.R
	if v, ok := c.first(c.RankPattern, path); ok {
		r = int(v)
	}
	alpha = c.Alpha
	if v, ok := c.first(c.AlphaPattern, path); ok {
		alpha = v
	}
	if c.RSLoRA {
		return r, alpha, alpha / math.Sqrt(float64(r))
	}
	return r, alpha, alpha / float64(r)
}

// Pattern is an entry of rank_pattern or alpha_pattern: a regular expression and what holds for the modules it matches.
type Pattern struct {
	Key   string
	Value float64
}

func (c *Config) first(list []Pattern, path string) (float64, bool) {
	for _, p := range list {
		if c.matches(ending, p.Key, path) {
			return p.Value, true
		}
	}
	return 0, false
}

// patterns returns the members of the object called key in the order of the document, which decides where two match: a
// Python dict keeps it.
func patterns(o *format.Object, key string, text []byte) ([]Pattern, error) {
	in := o.Object(key)
	if in == nil {
		return nil, nil
	}
	var list []Pattern
	s := format.NewScanner(o.File, text, 0)
	err := s.Object(func(k string) error {
		if k != key {
			return s.Skip()
		}
		return s.Object(func(k string) error {
			list = append(list, Pattern{strings.Clone(k), in.Float(k, math.NaN(), -math.MaxFloat64, math.MaxFloat64)})
			if in.Members[k] == nil {
				in.Malformed(k, "is null, want a number")
			}
			return s.Skip()
		})
	})
	return list, err
}
