package gguf

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/hf"
)

// Model is a file as transformers sees it: names of its state dict, its configuration, and the rows of q and k in its
// order. It has the methods of a hf.Folder that a model is built with.
type Model struct {
	*File
	Config    *hf.Config
	Tokenizer *Tokenizer

	weights []weight // in the order of their names
}

// weight is a tensor under the name of transformers.
type weight struct {
	name   string
	tensor *Tensor
	heads  int // of the permuted rows, 0 if they are in order
}

// head and embed are the names of the tensors that may be one.
const (
	head  = "lm_head.weight"
	embed = "model.embed_tokens.weight"
)

// classes are the architectures that are mapped and the classes of transformers. llama.cpp keeps the rows of q and k of llama
// in another order (permuted).
var classes = map[string]struct {
	name     string
	permuted bool
}{
	"llama": {"LlamaForCausalLM", true},
	"qwen2": {"Qwen2ForCausalLM", false},
}

// top and layer map the names of tensors, without the ending .weight or .bias and, for a layer, without blk.i.
var (
	top   = map[string]string{"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
	layer = map[string]string{
		"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
		"attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
		"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
	}
)

// OpenModel opens the GGUF file of a language model at path.
func OpenModel(path string) (*Model, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	m, err := f.Model()
	if err != nil {
		f.Close()
		return nil, err
	}
	return m, nil
}

// Model returns f as a model. It refuses an architecture other than llama and qwen2, metadata that is missing or does not
// fit, a tokenizer whose lists disagree, and a tensor that has no place in the model: one that is left out of a computation
// gives another result and no error.
func (f *File) Model() (*Model, error) {
	m := &Model{File: f}
	arch, err := Metadata[string](f, "general.architecture")
	if err != nil {
		return nil, err
	}
	class, ok := classes[arch]
	if !ok {
		return nil, format.Malformed(f.Path, "general.architecture", "%.64q is not a supported architecture, want one of llama, qwen2", arch)
	}
	if m.Tokenizer, err = f.tokenizer(); err != nil {
		return nil, err
	}
	if m.Config, err = f.config(arch, class.name, m.Tokenizer); err != nil {
		return nil, err
	}
	for t := range f.Tensors() {
		name, ok := rename(t.Name, m.Config.Layers)
		if !ok || strings.HasSuffix(name, ".bias") && !biased(m.Config, name) {
			return nil, format.Malformed(f.Path, t.where(), "has no place in a model of architecture %s with %d layers", arch, m.Config.Layers)
		}
		w := weight{name: name, tensor: t}
		if class.permuted {
			if err := m.permuted(&w); err != nil {
				return nil, err
			}
		}
		m.weights = append(m.weights, w)
	}
	slices.SortFunc(m.weights, func(a, b weight) int { return strings.Compare(a.name, b.name) })
	return m, nil
}

// rename returns the name of transformers for that of llama.cpp.
func rename(name string, layers int) (string, bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 || name[dot:] != ".weight" && name[dot:] != ".bias" {
		return "", false
	}
	stem, end := name[:dot], name[dot:]
	if to, ok := top[stem]; ok {
		return to + end, true
	}
	rest, ok := strings.CutPrefix(stem, "blk.")
	number, part, ok2 := strings.Cut(rest, ".")
	i, err := strconv.Atoi(number)
	to, ok3 := layer[part]
	if !ok || !ok2 || !ok3 || err != nil || i < 0 || i >= layers || strconv.Itoa(i) != number {
		return "", false
	}
	return "model.layers." + number + "." + to + end, true
}

// biased reports whether a model of that configuration has the bias called name.
func biased(c *hf.Config, name string) bool {
	switch {
	case strings.HasSuffix(name, "_proj.bias") && strings.Contains(name, ".mlp."):
		return c.MLPBias
	case strings.HasSuffix(name, ".o_proj.bias"):
		return c.OutputBias
	}
	return c.QKVBias && strings.HasSuffix(name, "_proj.bias")
}

// permuted sets the heads of w if its rows are those of q or k. The converter of llama.cpp puts row h·D + p·D/2 + j of
// transformers (head h of size D, p in {0, 1}, j < D/2) at h·D + 2j + p, so that the pairs of its rotary embedding lie side
// by side (convert_hf_to_gguf.py, LlamaModel.permute).
func (m *Model) permuted(w *weight) error {
	stem := w.name[:strings.LastIndexByte(w.name, '.')]
	switch {
	case strings.HasSuffix(stem, ".q_proj"):
		w.heads = m.Config.Heads
	case strings.HasSuffix(stem, ".k_proj"):
		w.heads = m.Config.KVHeads
	default:
		return nil
	}
	if s := w.tensor.Shape; len(s) == 0 || s[0]%(2*w.heads) != 0 {
		return format.Malformed(m.Path, w.tensor.where(), "shape %s: the rows are no pairs in %d heads", shapeString(s), w.heads)
	}
	return nil
}

func shapeString(s []int) string { return (&format.Array{Shape: s}).ShapeString() }

// config makes the config.json that transformers would have for the metadata, and reads that.
func (f *File) config(arch, class string, t *Tokenizer) (*hf.Config, error) {
	c := map[string]any{"model_type": arch, "architectures": []string{class}, "hidden_act": "silu"}
	var err error
	number := func(to, key string, need bool) (n int64) {
		if err != nil {
			return 0
		}
		key = arch + "." + key
		if _, ok := f.values[key]; !ok {
			if need {
				err = format.Malformed(f.Path, key, "is missing")
			}
			return 0
		}
		if n, err = f.Int(key, 0, 0, math.MaxInt32); err == nil && to != "" {
			c[to] = n
		}
		return n
	}
	real := func(to, key string) {
		if err != nil || f.values[arch+"."+key] == nil {
			return
		}
		c[to], err = f.Float(arch+"."+key, 0)
	}
	number("num_hidden_layers", "block_count", true)
	number("hidden_size", "embedding_length", true)
	number("intermediate_size", "feed_forward_length", true)
	number("num_attention_heads", "attention.head_count", true)
	number("num_key_value_heads", "attention.head_count_kv", false)
	number("max_position_embeddings", "context_length", true)
	number("head_dim", "attention.key_length", false)
	if v := number("", "attention.value_length", false); err == nil && v != 0 && c["head_dim"] != v {
		err = format.Malformed(f.Path, arch+".attention.value_length", "is %d, attention.key_length %v: heads of two sizes are not supported", v, c["head_dim"])
	}
	if n := number("", "expert_count", false); err == nil && n > 0 {
		err = format.Malformed(f.Path, arch+".expert_count", "is %d: mixtures of experts are not supported", n)
	}
	if _, ok := f.values[arch+".attention.layer_norm_rms_epsilon"]; err == nil && !ok {
		err = format.Malformed(f.Path, arch+".attention.layer_norm_rms_epsilon", "is missing")
	}
	real("rms_norm_eps", "attention.layer_norm_rms_epsilon")
	real("rope_theta", "rope.freq_base")
	scaling := map[string]any{}
	if err == nil {
		err = f.scaling(arch, scaling)
	}
	rotated := number("", "rope.dimension_count", false)
	if err != nil {
		return nil, err
	}
	if len(scaling) > 0 {
		c["rope_scaling"] = scaling
	}
	e, ok := f.Tensor("token_embd.weight")
	if !ok || len(e.Shape) != 2 {
		return nil, format.Malformed(f.Path, `tensor "token_embd.weight"`, "is missing or no matrix")
	}
	c["vocab_size"] = e.Shape[0]
	_, untied := f.Tensor("output.weight")
	c["tie_word_embeddings"] = !untied
	_, c["attention_bias"] = f.Tensor("blk.0.attn_q.bias")
	_, c["mlp_bias"] = f.Tensor("blk.0.ffn_up.bias")
	for key, id := range map[string]int{"bos_token_id": t.BOS, "eos_token_id": t.EOS, "pad_token_id": t.PAD} {
		if id >= 0 {
			c[key] = id
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err) // not reached: numbers are finite
	}
	config, err := hf.ParseConfig(f.Path, text)
	if err != nil {
		return nil, err
	}
	if rotated != 0 && int(rotated) != config.HeadDim {
		return nil, format.Malformed(f.Path, arch+".rope.dimension_count", "is %d, a head has %d: rotating a part of a head is not supported", rotated, config.HeadDim)
	}
	return config, nil
}

// scaling reads what changes the rotary embedding into the members of rope_scaling.
func (f *File) scaling(arch string, members map[string]any) error {
	kind, err := Metadata[string](f, arch+".rope.scaling.type")
	if err != nil || kind == "" || kind == "none" {
		return err
	}
	members["rope_type"] = kind
	if members["factor"], err = f.Float(arch+".rope.scaling.factor", 1); err != nil {
		return err
	}
	n, err := f.Int(arch+".rope.scaling.original_context_length", 0, 0, math.MaxInt32)
	if n > 0 {
		members["original_max_position_embeddings"] = n
	}
	return err
}

// Names returns the names of the weights in increasing order.
func (m *Model) Names() []string {
	names := make([]string, len(m.weights))
	for i := range m.weights {
		names[i] = m.weights[i].name
	}
	return names
}

// find returns the weight called name; a tied head is the embedding.
func (m *Model) find(name string) (*weight, error) {
	if name = m.Config.Canonical(name); name == head && m.Config.Tied {
		name = embed
	}
	i, ok := slices.BinarySearchFunc(m.weights, name, func(w weight, name string) int { return strings.Compare(w.name, name) })
	if !ok {
		return nil, format.Malformed(m.Path, fmt.Sprintf("tensor %.128q", name), "is missing from the %d of the file", len(m.weights))
	}
	return &m.weights[i], nil
}

// Weight is a tensor of the file under a name of transformers.
type Weight struct {
	Shape []int
	Type  Type

	file   string
	weight *weight
}

// Weight returns the weight called name; that of a tied head is the embedding.
func (m *Model) Weight(name string) (*Weight, error) {
	w, err := m.find(name)
	if err != nil {
		return nil, err
	}
	return &Weight{slices.Clone(w.tensor.Shape), w.tensor.Type, m.Path, w}, nil
}

// Where names the tensor for a message.
func (w *Weight) Where() string {
	return fmt.Sprintf("%s: %s: (%s)", w.file, w.weight.tensor.where(), w.weight.name)
}

// ReadRows decodes rows as [Tensor.ReadRows] does, those of q and k in the order of transformers. The rows of a vector are its one.
func (w *Weight) ReadRows(dst []float64, first int) error {
	t, heads := w.weight.tensor, w.weight.heads
	if heads == 0 {
		return t.ReadRows(dst, first)
	}
	if len(t.Shape) == 1 {
		v, err := t.Float64s()
		if err == nil {
			copy(dst, halves(v, t.Shape[0], heads))
		}
		return err
	}
	n, size := t.row(), t.Shape[0]/heads // elements of a row, rows of a head
	for len(dst) > 0 {
		// row p·size/2 + j of a head is its row 2j + p in the file
		head, at := first/size, first%size
		if err := t.ReadRows(dst[:n], head*size+2*(at%(size/2))+at/(size/2)); err != nil {
			return err
		}
		dst, first = dst[n:], first+1
	}
	return nil
}

// Read returns the elements of the weight called name, row-major, dequantised, with the rows of q and k in the order of
// transformers. The weight must have that shape.
func (m *Model) Read(name string, shape ...int) ([]float64, error) {
	w, err := m.find(name)
	if err != nil {
		return nil, err
	}
	t := w.tensor
	if !slices.Equal(t.Shape, shape) {
		return nil, format.Malformed(m.Path, t.where(), "(%s): shape %s, want %s", w.name, shapeString(t.Shape), shapeString(shape))
	}
	v, err := t.Float64s()
	if err != nil || w.heads == 0 {
		return v, err
	}
	return halves(v, shape[0], w.heads), nil
}

// halves returns the rows of v, of which heads have 2·half each, with row 2j+p of a head at p·half+j.
func halves(v []float64, rows, heads int) []float64 {
	out := make([]float64, len(v))
	if len(v) == 0 {
		return out // no rows, or rows of no columns: of those a file may declare any number
	}
	n, size := len(v)/rows, rows/heads
	for h := range heads {
		for p := range 2 {
			for j := range size / 2 {
				copy(out[(h*size+p*size/2+j)*n:][:n], v[(h*size+2*j+p)*n:][:n])
			}
		}
	}
	return out
}
