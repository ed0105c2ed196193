package arch

import (
	"slices"
	"strings"
)

// Model is an architecture under a name: one that everybody knows, or the file that it was read from.
type Model struct {
	Name string
	Config
	Listed []Module // its modules where they are known from its tensors alone and Config lists none
}

// Modules returns the modules of the model: [Config.Modules], or those that are Listed.
func (m *Model) Modules() []Module {
	if m.Listed != nil {
		return slices.Clone(m.Listed)
	}
	return m.Config.Modules()
}

// Adaptable returns the linear layers of one block: [Config.Adaptable], or all that are Listed.
func (m *Model) Adaptable() []Module {
	if m.Listed != nil {
		return slices.DeleteFunc(m.Modules(), func(x Module) bool { return !x.IsLinear() || x.Layer < 0 })
	}
	return m.Config.Adaptable()
}

// Alike is [Config.Alike] for the model.
func (m *Model) Alike(target string) string { return alike(m.Adaptable(), target) }

// Models are those that are known by name, with the figures of their config.json on huggingface.co. What decides on no tensor is
// left out.
var Models = []Model{
	{Name: "gpt-j-6b", Config: Config{Type: "gptj", Layers: 28, Hidden: 4096, Heads: 16, KVHeads: 16, HeadDim: 256, Inner: 16384, Vocab: 50400, MLPBias: true, HeadBias: true}},
	{Name: "gpt2", Config: Config{Type: "gpt2", Layers: 12, Hidden: 768, Heads: 12, KVHeads: 12, HeadDim: 64, Inner: 3072, Vocab: 50257, Positions: 1024, Tied: true,
		QKVBias: true, OutputBias: true, MLPBias: true}},
	{Name: "qwen1.5-1.8b", Config: Config{Type: "qwen2", Layers: 24, Hidden: 2048, Heads: 16, KVHeads: 16, HeadDim: 128, Inner: 5504, Vocab: 151936, QKVBias: true}},
	{Name: "qwen2.5-0.5b", Config: Config{Type: "qwen2", Layers: 24, Hidden: 896, Heads: 14, KVHeads: 2, HeadDim: 64, Inner: 4864, Vocab: 151936, Tied: true, QKVBias: true}},
	{Name: "qwen2.5-1.5b", Config: Config{Type: "qwen2", Layers: 28, Hidden: 1536, Heads: 12, KVHeads: 2, HeadDim: 128, Inner: 8960, Vocab: 151936, Tied: true, QKVBias: true}},
	{Name: "qwen2.5-7b", Config: Config{Type: "qwen2", Layers: 28, Hidden: 3584, Heads: 28, KVHeads: 4, HeadDim: 128, Inner: 18944, Vocab: 152064, QKVBias: true}},
	{Name: "smollm2-135m", Config: Config{Type: "llama", Layers: 30, Hidden: 576, Heads: 9, KVHeads: 3, HeadDim: 64, Inner: 1536, Vocab: 49152, Tied: true}},
	{Name: "smollm2-360m", Config: Config{Type: "llama", Layers: 32, Hidden: 960, Heads: 15, KVHeads: 5, HeadDim: 64, Inner: 2560, Vocab: 49152, Tied: true}},
	{Name: "smollm2-1.7b", Config: Config{Type: "llama", Layers: 24, Hidden: 2048, Heads: 32, KVHeads: 32, HeadDim: 64, Inner: 8192, Vocab: 49152, Tied: true}},
	{Name: "llama-3.2-1b", Config: Config{Type: "llama", Layers: 16, Hidden: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, Inner: 8192, Vocab: 128256, Tied: true}},
	{Name: "llama-3.1-8b", Config: Config{Type: "llama", Layers: 32, Hidden: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, Inner: 14336, Vocab: 128256}},
}

// Find returns the model of [Models] that a name such as EleutherAI/gpt-j-6b or Qwen/Qwen1.5-1.8B-Chat stands for, nil if there is
// none.
func Find(name string) *Model {
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

// Names returns the names of [Models].
func Names() []string {
	names := make([]string, len(Models))
	for i := range Models {
		names[i] = Models[i].Name
	}
	return names
}

// aliases are names that layers of one role have in different architectures. A name that stands for several layers of one of them
// is in every group that it is in there.
var aliases = [][]string{
	{"o_proj", "out_proj", "c_proj", "dense", "wo"}, {"q_proj", "c_attn", "query", "wq", "query_key_value", "qkv_proj"},
	{"k_proj", "c_attn", "key", "wk"}, {"v_proj", "c_attn", "value", "wv"},
	{"fc_in", "c_fc", "up_proj", "fc1", "w1", "dense_h_to_4h", "gate_up_proj"}, {"gate_proj", "c_fc", "fc_in", "w3", "gate_up_proj"}, {"fc_out", "down_proj", "c_proj", "fc2", "w2", "dense_4h_to_h"},
}

// Alike returns the last part of the name of the layer in a block that has the role that a layer called target has in another
// architecture, "" if there is none: out_proj of GPT-J for o_proj.
func (c Config) Alike(target string) string { return alike(c.Adaptable(), target) }

func alike(layers []Module, target string) string {
	var names []string
	for _, l := range layers {
		names = append(names, l.Last())
	}
	for _, group := range aliases {
		if !slices.Contains(group, target) {
			continue
		}
		for _, name := range group {
			if slices.Contains(names, name) {
				return name
			}
		}
	}
	return ""
}
