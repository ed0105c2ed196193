package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format/hf"
)

// Model is the architecture of a language model, as far as it decides which tensors a checkpoint holds.
type Model struct {
	Name   string // of a known model, or the file it was read from
	Type   string // model_type of config.json: gptj, gpt2, llama, qwen2
	Layers int
	Hidden int
	Heads  int
	KV     int // heads of keys and values
	Head   int // size of one head
	Inner  int // width of the feed-forward layer
	Vocab  int // rows of the embedding
	Places int // learned positions, GPT-2 only
	Tied   bool

	QKVBias, OutBias, MLPBias, HeadBias bool
}

// Linear is a linear layer of every block, by its name inside the block. Conv1D layers of GPT-2 store [in, out].
type Linear struct {
	Name    string
	In, Out int
	Bias    bool
	Conv1D  bool
}

// Types are the architectures whose tensors are known.
var Types = []string{"gpt2", "gptj", "llama", "qwen2"}

// modelOf returns what c says, nil if its type is not one of Types.
func modelOf(c *hf.Config) *Model {
	if !slices.Contains(Types, c.ModelType) {
		return nil
	}
	m := &Model{Name: c.File, Type: c.ModelType, Layers: c.Layers, Hidden: c.Hidden, Heads: c.Heads, KV: c.KVHeads, Head: c.HeadDim, Inner: c.Inner, Vocab: c.Vocab,
		Tied: c.TieEmbeddings, QKVBias: c.AttentionBias, OutBias: c.OutputBias, MLPBias: c.MLPBias, HeadBias: c.HeadBias}
	if m.Type == "gpt2" {
		m.Places = c.Positions
	}
	return m
}

// Linears returns the linear layers of one block, attention first.
func (m *Model) Linears() []Linear {
	d, q, kv := m.Hidden, m.Heads*m.Head, m.KV*m.Head
	switch m.Type {
	case "gpt2":
		return []Linear{{"attn.c_attn", d, 3 * d, m.QKVBias, true}, {"attn.c_proj", d, d, m.OutBias, true}, {"mlp.c_fc", d, m.Inner, m.MLPBias, true}, {"mlp.c_proj", m.Inner, d, m.MLPBias, true}}
	case "gptj":
		return []Linear{{"attn.q_proj", d, q, m.QKVBias, false}, {"attn.k_proj", d, kv, m.QKVBias, false}, {"attn.v_proj", d, kv, m.QKVBias, false}, {"attn.out_proj", q, d, m.OutBias, false},
			{"mlp.fc_in", d, m.Inner, m.MLPBias, false}, {"mlp.fc_out", m.Inner, d, m.MLPBias, false}}
	}
	return []Linear{{"self_attn.q_proj", d, q, m.QKVBias, false}, {"self_attn.k_proj", d, kv, m.QKVBias, false}, {"self_attn.v_proj", d, kv, m.QKVBias, false}, {"self_attn.o_proj", q, d, m.OutBias, false},
		{"mlp.gate_proj", d, m.Inner, m.MLPBias, false}, {"mlp.up_proj", d, m.Inner, m.MLPBias, false}, {"mlp.down_proj", m.Inner, d, m.MLPBias, false}}
}

// conv1D reports whether the module is a linear layer whose weight is stored [in, out].
func (m *Model) conv1D(name string) bool {
	return slices.ContainsFunc(m.Linears(), func(l Linear) bool { return l.Conv1D && endsWith(name, l.Name) })
}

// block returns the name of a block.
func (m *Model) block(i int) string {
	if m.Type == "llama" || m.Type == "qwen2" {
		return fmt.Sprintf("model.layers.%d.", i)
	}
	return fmt.Sprintf("transformer.h.%d.", i)
}

// expected is a tensor that a whole model holds.
type expected struct {
	name  string
	shape []int
}

// tensors returns the tensors of a whole model, the head included unless it is tied.
func (m *Model) tensors() []expected {
	var list []expected
	add := func(name string, shape ...int) { list = append(list, expected{name, shape}) }
	norm := func(name string) {
		add(name+".weight", m.Hidden)
		if m.Type == "gpt2" || m.Type == "gptj" {
			add(name+".bias", m.Hidden)
		}
	}
	switch m.Type {
	case "gpt2":
		add("transformer.wte.weight", m.Vocab, m.Hidden)
		if m.Places > 0 {
			add("transformer.wpe.weight", m.Places, m.Hidden)
		}
	case "gptj":
		add("transformer.wte.weight", m.Vocab, m.Hidden)
	default:
		add("model.embed_tokens.weight", m.Vocab, m.Hidden)
	}
	for i := range m.Layers {
		p := m.block(i)
		switch m.Type {
		case "gpt2":
			norm(p + "ln_1")
			norm(p + "ln_2")
		case "gptj":
			norm(p + "ln_1")
		default:
			norm(p + "input_layernorm")
			norm(p + "post_attention_layernorm")
		}
		for _, l := range m.Linears() {
			if l.Conv1D {
				add(p+l.Name+".weight", l.In, l.Out)
			} else {
				add(p+l.Name+".weight", l.Out, l.In)
			}
			if l.Bias {
				add(p+l.Name+".bias", l.Out)
			}
		}
	}
	if m.Type == "gpt2" || m.Type == "gptj" {
		norm("transformer.ln_f")
	} else {
		norm("model.norm")
	}
	if !m.Tied {
		add("lm_head.weight", m.Vocab, m.Hidden)
		if m.HeadBias {
			add("lm_head.bias", m.Vocab)
		}
	}
	return list
}

// embedding returns the name of the input embedding.
func (m *Model) embedding() string {
	if m.Type == "gpt2" || m.Type == "gptj" {
		return "transformer.wte.weight"
	}
	return "model.embed_tokens.weight"
}

// ignorable reports whether a tensor of that name is a buffer that loaders leave out.
func ignorable(name string) bool {
	return strings.HasSuffix(name, ".attn.bias") || strings.HasSuffix(name, ".attn.masked_bias") || strings.HasSuffix(name, "rotary_emb.inv_freq") ||
		strings.HasSuffix(name, ".attn.embed_positions")
}

// plain returns name without the prefix that distinguishes a bare GPT-2 (h.0., wte.) from one with a head
// (transformer.h.0.): the name that tensors gives it.
func (m *Model) plain(name string) string {
	root := "transformer."
	if m.Type == "llama" || m.Type == "qwen2" {
		root = "model."
	}
	if strings.HasPrefix(name, root) || strings.HasPrefix(name, "lm_head.") {
		return name
	}
	first, _, _ := strings.Cut(name, ".")
	if slices.Contains([]string{"h", "wte", "wpe", "ln_f", "layers", "embed_tokens", "norm"}, first) {
		return root + name
	}
	return name
}

// Models are the models that are known by name, with the figures of their config.json on huggingface.co.
var Models = []Model{
	{Name: "gpt-j-6b", Type: "gptj", Layers: 28, Hidden: 4096, Heads: 16, KV: 16, Head: 256, Inner: 16384, Vocab: 50400, MLPBias: true, HeadBias: true},
	{Name: "gpt2", Type: "gpt2", Layers: 12, Hidden: 768, Heads: 12, KV: 12, Head: 64, Inner: 3072, Vocab: 50257, Places: 1024, Tied: true, QKVBias: true, OutBias: true, MLPBias: true},
	{Name: "qwen1.5-1.8b", Type: "qwen2", Layers: 24, Hidden: 2048, Heads: 16, KV: 16, Head: 128, Inner: 5504, Vocab: 151936, QKVBias: true},
	{Name: "qwen2.5-0.5b", Type: "qwen2", Layers: 24, Hidden: 896, Heads: 14, KV: 2, Head: 64, Inner: 4864, Vocab: 151936, Tied: true, QKVBias: true},
	{Name: "qwen2.5-1.5b", Type: "qwen2", Layers: 28, Hidden: 1536, Heads: 12, KV: 2, Head: 128, Inner: 8960, Vocab: 151936, Tied: true, QKVBias: true},
	{Name: "qwen2.5-7b", Type: "qwen2", Layers: 28, Hidden: 3584, Heads: 28, KV: 4, Head: 128, Inner: 18944, Vocab: 152064, QKVBias: true},
	{Name: "smollm2-135m", Type: "llama", Layers: 30, Hidden: 576, Heads: 9, KV: 3, Head: 64, Inner: 1536, Vocab: 49152, Tied: true},
	{Name: "smollm2-360m", Type: "llama", Layers: 32, Hidden: 960, Heads: 15, KV: 5, Head: 64, Inner: 2560, Vocab: 49152, Tied: true},
	{Name: "smollm2-1.7b", Type: "llama", Layers: 24, Hidden: 2048, Heads: 32, KV: 32, Head: 64, Inner: 8192, Vocab: 49152, Tied: true},
	{Name: "llama-3.2-1b", Type: "llama", Layers: 16, Hidden: 2048, Heads: 32, KV: 8, Head: 64, Inner: 8192, Vocab: 128256, Tied: true},
	{Name: "llama-3.1-8b", Type: "llama", Layers: 32, Hidden: 4096, Heads: 32, KV: 8, Head: 128, Inner: 14336, Vocab: 128256},
}

// Known returns the model that a name such as EleutherAI/gpt-j-6b or Qwen/Qwen1.5-1.8B-Chat stands for, nil if there is
// none.
func Known(name string) *Model {
	name = strings.ToLower(strings.TrimRight(name, "/"))
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = name[i+1:]
	}
	for _, end := range []string{"-instruct", "-chat", "-float16", "-sharded"} {
		name = strings.TrimSuffix(name, end)
	}
	for i := range Models {
		if Models[i].Name == name {
			return &Models[i]
		}
	}
	return nil
}

// ModelNames returns the names that Known knows.
func ModelNames() []string {
	names := make([]string, len(Models))
	for i := range Models {
		names[i] = Models[i].Name
	}
	return names
}
