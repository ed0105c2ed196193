package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format"
)

// Lora is an adapter_config.json of PEFT. Values that make no sense are kept: to judge them is the purpose.
type Lora struct {
	File       string
	Type       string // peft_type
	Task       string // task_type
	Base       string // base_model_name_or_path
	Revision   string
	R          int
	Alpha      float64
	HasR       bool
	HasAlpha   bool
	NullAlpha  bool // lora_alpha is there and null
	RSLora     bool
	DoRA       bool
	Bias       string
	LoraBias   bool
	Init       string // init_lora_weights, where it is a name
	Variant    string // the first key that makes it another function than α/r·B·A and DoRA; "" for none
	FanInOut   bool
	Targets    []string         // target_modules as a list
	Pattern    string           // target_modules as a regular expression, or all-linear
	Exclude    []string         // exclude_modules as a list
	ExcludeRE  string           // exclude_modules as a regular expression
	Layers     []int            // layers_to_transform; nil: all
	LayersIn   []string         // layers_pattern
	Ranks      []patternValue   // rank_pattern
	Alphas     []patternValue   // alpha_pattern
	Save       []string         // modules_to_save
	Parameters []string         // target_parameters
	Tokens     map[string][]int // trainable_token_indices by the module, "" for the embedding
	Ties       bool             // ensure_weight_tying
	Repeats    [][2]int         // layer_replication: layers from, up to and without
	Inference  bool

	InitR int            // init_r of AdaLoRA
	Kept  map[string]int // rank_pattern of AdaLoRA: singular values that are left, by module
}

// patternValue is a member of rank_pattern or alpha_pattern: a regular expression and its value.
type patternValue struct {
	key   string
	value float64
	re    *regexp.Regexp // nil if Go cannot read it
}

const largest = 1 << 30

// peftTypes are the methods that an adapter_config.json of PEFT may name (peft@0.21.2 utils/peft_types.py, and BONE of
// earlier releases).
var peftTypes = []string{
	"ADALORA", "ADAMSS", "ADAPTION_PROMPT", "BEFT", "BOFT", "BONE", "C3A", "CARTRIDGE", "CPT", "DEFT", "DELORA",
	"FOURIERFT", "FROD", "GLORA", "GRALORA", "HIRA", "HRA", "IA3", "LILY", "LN_TUNING", "LOHA", "LOKR", "LORA", "MISS",
	"MULTITASK_PROMPT_TUNING", "OFT", "OSF", "PEANUT", "POLY", "PREFIX_TUNING", "PROMPT_TUNING", "PSOFT", "PVERA",
	"P_TUNING", "RANDLORA", "ROAD", "SHADOW", "SHIRA", "SUPERTUNING", "TINYLORA", "TRAINABLE_TOKENS", "UNILORA",
	"VBLORA", "VERA", "WAVEFT", "XLORA",
}

// parseLora reads an adapter_config.json.
func parseLora(o *format.Object) (*Lora, error) {
	l := &Lora{
		File: o.File, Type: o.Text("peft_type", ""), Task: o.Text("task_type", ""), Base: o.Text("base_model_name_or_path", ""), Revision: o.Text("revision", ""),
		R: o.Int("r", 0, -largest, largest), Alpha: o.Float("lora_alpha", 0, -math.MaxFloat64, math.MaxFloat64), HasR: o.Has("r"), HasAlpha: o.Has("lora_alpha"),
		RSLora: o.Bool("use_rslora", false), DoRA: o.Bool("use_dora", false), Bias: o.Text("bias", "none"), LoraBias: o.Bool("lora_bias", false),
		FanInOut: o.Bool("fan_in_fan_out", false), Save: o.Texts("modules_to_save"), Parameters: o.Texts("target_parameters"),
		Inference: o.Bool("inference_mode", true), Layers: o.Ints("layers_to_transform", 0, largest),
	}
	if v, there := o.Members["lora_alpha"]; there && v == nil {
		l.NullAlpha = true
	}
	l.Tokens, l.Ties, l.Repeats = tokenIndices(o), o.Bool("ensure_weight_tying", false), repeats(o)
	l.Init, _ = o.Members["init_lora_weights"].(string)
	l.Variant = variant(o)
	if !l.HasR {
		l.R = 8 // the default of LoraConfig, as that of α
	}
	if !l.HasAlpha {
		l.Alpha = 8
	}
	l.Targets, l.Pattern = textOrTexts(o, "target_modules")
	l.Exclude, l.ExcludeRE = textOrTexts(o, "exclude_modules")
	var one string
	if l.LayersIn, one = textOrTexts(o, "layers_pattern"); one != "" {
		l.LayersIn = []string{one}
	}
	if l.Type == "ADALORA" {
		l.InitR, l.Kept = o.Int("init_r", 12, 0, largest), kept(o) // 12 is the default of AdaLoraConfig
		return l, o.Err()
	}
	l.Ranks, l.Alphas = patterns(o, "rank_pattern"), patterns(o, "alpha_pattern")
	return l, o.Err()
}

// variants are the settings of LoraConfig with which a module computes something else (peft@0.21 tuners/lora/config.py).
var variants = []string{"use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config"}

func variant(o *format.Object) string {
	for _, key := range variants {
		switch v := o.Members[key].(type) {
		case nil:
			continue
		case bool:
			if !v {
				continue
			}
		case []any:
			if len(v) == 0 {
				continue
			}
		}
		return key
	}
	return ""
}

// repeats reads layer_replication: ranges of layers that one after the other are the layers of the model that was trained.
func repeats(o *format.Object) (list [][2]int) {
	all, _ := o.Members["layer_replication"].([]any)
	for _, v := range all {
		ends, _ := v.([]any)
		var r [2]int
		for i := range min(2, len(ends)) {
			n, _ := ends[i].(format.Number)
			r[i], _ = strconv.Atoi(string(n))
		}
		if len(ends) != 2 || r[0] < 0 || r[1] < r[0] || r[1] > 1<<16 {
			o.Malformed("layer_replication", "holds something other than ranges [from, to] of layers")
			return nil
		}
		list = append(list, r)
	}
	return list
}

// changesBase reports whether the way in which A and B began takes a part out of the base when an adapter is attached
// (pissa, olora, corda, loftq, lora_ga), so that they belong to weights that are in no file.
func (l *Lora) changesBase() bool {
	return l.Init != "" && !slices.Contains([]string{"gaussian", "eva", "orthogonal", "mica"}, l.Init)
}

// parameter reports whether the adapter of the module is one of target_parameters: factors of all experts in one tensor, whose rank
// is r times their number. Several parameters of one module lie inside each other, each in the base_layer of the next.
func (l *Lora) parameter(module string) bool {
	for strings.HasSuffix(module, ".base_layer") {
		module = strings.TrimSuffix(module, ".base_layer")
	}
	return slices.ContainsFunc(l.Parameters, func(p string) bool {
		i := strings.LastIndexByte(p, '.')
		return i > 0 && endsWith(module, p[:i])
	})
}

// tied reports whether ensure_weight_tying adapts or saves the module, an embedding or a head, since it does the other.
func (l *Lora) tied(module string) bool {
	if !l.Ties {
		return false
	}
	for _, e := range []string{"embed_tokens", "wte", "embed_in", "word_embeddings", "lm_head", "embed_out"} {
		if endsWith(module, e) {
			return true
		}
	}
	return false
}

// textOrTexts reads a member that is a string or an array of strings.
func textOrTexts(o *format.Object, key string) (list []string, one string) {
	if _, ok := o.Members[key].(string); ok {
		return nil, o.Text(key, "")
	}
	return o.Texts(key), ""
}

func patterns(o *format.Object, key string) []patternValue {
	in := o.Object(key)
	if in == nil {
		return nil
	}
	var list []patternValue
	for _, k := range in.Keys() {
		p := patternValue{key: k}
		if kept, ok := in.Members[k].([]any); ok { // AdaLoRA says of each rank whether it is kept
			for _, on := range kept {
				if on == true {
					p.value++
				}
			}
		} else {
			p.value = in.Float(k, 0, -largest, largest)
		}
		p.re, _ = regexp.Compile(`^(?:.*\.)?(?:` + k + `)$`)
		list = append(list, p)
	}
	return list
}

// Scaling returns the factor of B·A in the module: α/r, or α/√r with use_rslora.
func (l *Lora) Scaling(module string) float64 {
	r, alpha := float64(l.rank(module)), l.Alpha
	if p := pick(l.Alphas, module); p != nil {
		alpha = p.value
	}
	if l.RSLora {
		return alpha / math.Sqrt(r)
	}
	return alpha / r
}

// rank returns the rank of the module.
func (l *Lora) rank(module string) int {
	if p := pick(l.Ranks, module); p != nil {
		return int(p.value)
	}
	return l.R
}

// pick returns the first pattern that matches the module. PEFT takes the first of the file; here it is the first by name,
// and more than one match makes the two differ only where their values do.
func pick(list []patternValue, module string) *patternValue {
	for i := range list {
		if list[i].re != nil && list[i].re.MatchString(module) {
			return &list[i]
		}
	}
	return nil
}

// targeted returns a function that says whether a module of the base is adapted, and why that cannot be told.
//
// It implements check_target_module_exists of peft@0.21 (tuners/tuners_utils.py): a list matches whole names or their
// ends behind a dot, a string is a regular expression for the whole name, and layers_to_transform restricts by the first
// number behind one of layers_pattern.
func (l *Lora) targeted() (match func(module string) bool, unknown string) {
	include, unknown := matcher("target_modules", l.Targets, l.Pattern)
	if unknown != "" {
		return nil, unknown
	}
	exclude, unknown := matcher("exclude_modules", l.Exclude, l.ExcludeRE)
	if unknown != "" {
		return nil, unknown
	}
	return func(module string) bool {
		if exclude(module) || !include(module) {
			return false
		}
		if l.Layers == nil || l.Pattern != "" {
			return true
		}
		i, ok := layerOf(module)
		return ok && slices.Contains(l.Layers, i)
	}, ""
}

func matcher(key string, list []string, pattern string) (match func(string) bool, unknown string) {
	switch {
	case pattern == "all-linear":
		return func(module string) bool { return !strings.HasSuffix(module, "lm_head") }, ""
	case pattern != "":
		re, err := regexp.Compile(`^(?:` + pattern + `)$`)
		if err != nil {
			return nil, fmt.Sprintf("%s %.64q is no regular expression that Go can read", key, pattern)
		}
		return re.MatchString, ""
	}
	return func(module string) bool {
		return slices.ContainsFunc(list, func(t string) bool { return endsWith(module, t) })
	}, ""
}

// unreadable says what is wrong with a pattern that neither Go nor Python can read, "" where Python may: it has lookarounds and more.
func unreadable(pattern string) string {
	_, err := syntax.Parse(pattern, syntax.Perl)
	var bad *syntax.Error
	if !errors.As(err, &bad) {
		return ""
	}
	switch bad.Code {
	case syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrMissingBracket, syntax.ErrTrailingBackslash, syntax.ErrMissingRepeatArgument:
		return bad.Code.String()
	}
	return ""
}

// endsWith reports whether module is name or ends in it behind a dot.
func endsWith(module, name string) bool { return module == name || strings.HasSuffix(module, "."+name) }

// layerOf returns the first number among the parts of a module's name.
func layerOf(module string) (int, bool) {
	for part := range strings.SplitSeq(module, ".") {
		if i, err := strconv.Atoi(part); err == nil && i >= 0 {
			return i, true
		}
	}
	return 0, false
}

// pair is the two matrices of one module of an adapter.
type pair struct {
	module string // name in the base
	name   string // of the adapter in the keys, "" where PEFT took it out
	a, b   *Tensor
	bias   *Tensor // lora_B.bias
	other  []*Tensor
	embed  bool
}

// rank returns the rank by the shapes, 0 where the two disagree.
func (p *pair) rank() int {
	a, b := p.ranks()
	if a != b {
		return 0
	}
	return max(a, 0)
}

// ranks returns the ranks that A, [r, in], and B, [out, r], have; -1 where there is none.
func (p *pair) ranks() (a, b int) {
	a, b = -1, -1
	if p.a != nil && len(p.a.Array.Shape) >= 2 {
		a = p.a.Array.Shape[0]
	}
	if p.b != nil && len(p.b.Array.Shape) >= 2 {
		b = p.b.Array.Shape[1]
	}
	return a, b
}

// in and out are the widths of the module by the shapes, 0 where a matrix is missing.
func (p *pair) in() int {
	if p.a == nil || len(p.a.Array.Shape) < 2 {
		return 0
	}
	return p.a.Array.Shape[1]
}

func (p *pair) out() int {
	if p.b == nil || len(p.b.Array.Shape) < 2 {
		return 0
	}
	return p.b.Array.Shape[0]
}

// magnitude returns the magnitudes of DoRA, nil if there are none.
func (p *pair) magnitude() *Tensor {
	for _, t := range p.other {
		if strings.Contains(t.Name, ".lora_magnitude_vector") {
			return t
		}
	}
	return nil
}

// turned reports whether the pair is stored as [in, r] and [r, out], or A and B are exchanged.
func (p *pair) turned(rank int) bool {
	return rank > 0 && p.a != nil && p.b != nil && len(p.a.Array.Shape) == 2 && len(p.b.Array.Shape) == 2 &&
		p.a.Array.Shape[1] == rank && p.b.Array.Shape[0] == rank && (p.a.Array.Shape[0] != rank || p.b.Array.Shape[1] != rank)
}

// part is what a key of an adapter names.
type part int

const (
	partNone part = iota // no tensor of LoRA
	partA
	partB
	partBias
	partOther // lora_magnitude_vector of DoRA, lora_E of AdaLoRA
)

// loraKey splits a key such as base_model.model.h.0.attn.q_proj.lora_A.weight into the module, the adapter's name and
// what of it the tensor is.
func loraKey(key string) (module, adapter string, kind part, embed bool) {
	for _, k := range []struct {
		mark  string
		kind  part
		embed bool
	}{{".lora_A", partA, false}, {".lora_B", partB, false}, {".lora_embedding_A", partA, true}, {".lora_embedding_B", partB, true}, {".lora_magnitude_vector", partOther, false}, {".lora_E", partOther, false}} {
		i := strings.LastIndex(key, k.mark)
		if i < 0 {
			continue
		}
		module, rest := key[:i], key[i+len(k.mark):]
		kind = k.kind
		if rest != "" && rest[0] != '.' {
			continue
		}
		if kind == partB && strings.HasSuffix(rest, ".bias") {
			kind, rest = partBias, strings.TrimSuffix(rest, ".bias")
		} else {
			rest = strings.TrimSuffix(rest, ".weight")
		}
		return module, strings.TrimPrefix(rest, "."), kind, k.embed
	}
	return "", "", partNone, false
}

// peftPrefix is what PEFT puts in front of the names of the base.
const peftPrefix = "base_model.model."

// pairs groups the tensors of an adapter by module, in the order of the names; rest are those that are not LoRA's.
func pairs(tensors []*Tensor) (list []*pair, rest []*Tensor) {
	byName := map[string]*pair{}
	for _, t := range tensors {
		module, name, kind, embed := loraKey(t.Name)
		if kind == partNone {
			rest = append(rest, t)
			continue
		}
		key := module + "\x00" + name
		p := byName[key]
		if p == nil {
			p = &pair{module: strings.TrimPrefix(module, peftPrefix), name: name, embed: embed}
			byName[key] = p
			list = append(list, p)
		}
		switch {
		case kind == partA && p.a == nil:
			p.a = t
		case kind == partB && p.b == nil:
			p.b = t
		case kind == partBias && p.bias == nil:
			p.bias = t
		default:
			p.other = append(p.other, t)
		}
	}
	slices.SortFunc(list, func(a, b *pair) int {
		return cmp.Or(compareNatural(a.module, b.module), strings.Compare(a.name, b.name))
	})
	return list, rest
}

// compareNatural orders names with numbers by the numbers: h.2 before h.10.
func compareNatural(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		if x[i] == y[i] {
			continue
		}
		m, err1 := strconv.Atoi(x[i])
		n, err2 := strconv.Atoi(y[i])
		if err1 == nil && err2 == nil && m != n {
			return cmp.Compare(m, n)
		}
		return strings.Compare(x[i], y[i])
	}
	return cmp.Compare(len(x), len(y))
}
