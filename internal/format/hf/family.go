package hf

import "strings"

// family is what a model_type says about the names of tensors. Names are those of the state dict of the class ...ForCausalLM
// of transformers, which the methods of Folder take and return.
type family struct {
	base      string   // the base model inside it: base_model_prefix and a point
	roots     []string // how names inside the base model begin, to know one that was stored without base
	embedding string
	head      string   // shares the values of the embedding when tie_word_embeddings is set
	ignored   []string // ends of the names of buffers that old versions saved: a causal mask, a constant, a table of angles
}

var llama = family{
	base:      "model.",
	roots:     []string{"embed_tokens.", "layers.", "norm.", "rotary_emb."},
	embedding: "model.embed_tokens.weight",
	head:      "lm_head.weight",
	ignored:   []string{".rotary_emb.inv_freq", ".rotary_emb.original_inv_freq"},
}

var gpt = family{
	base:      "transformer.",
	roots:     []string{"wte.", "wpe.", "h.", "ln_f."},
	embedding: "transformer.wte.weight",
	head:      "lm_head.weight",
	ignored:   []string{".attn.bias", ".attn.masked_bias", ".attn.embed_positions"},
}

// families are the architectures whose configuration is read in full.
var families = map[string]*family{"gpt2": &gpt, "gptj": &gpt, "llama": &llama, "qwen2": &llama}

// wrappers are the prefixes of modules that hold a model: a PEFT adapter's, those of torch's data parallelism, of
// torch.compile and of TRL's model with a value head.
var wrappers = []string{"base_model.model.", "module.", "_orig_mod.", "pretrained_model."}

// canonical returns the name in the state dict of the tensor that was stored or asked for as name.
func (f *family) canonical(name string) string {
	for again := true; again; {
		again = false
		for _, w := range wrappers {
			if rest, ok := strings.CutPrefix(name, w); ok {
				name, again = rest, true
			}
		}
	}
	if f == nil {
		return name
	}
	for _, root := range f.roots {
		if strings.HasPrefix(name, root) {
			return f.base + name
		}
	}
	return name
}

// Canonical returns the name in the state dict of the class ...ForCausalLM of transformers of the tensor that is stored or
// asked for as name: with the prefix of the base model, without those of wrappers.
func (c *Config) Canonical(name string) string { return families[c.ModelType].canonical(name) }

// buffer reports whether the tensor of that canonical name is a buffer that no version loads.
func (f *family) buffer(name string) bool {
	if f == nil {
		return false
	}
	for _, end := range f.ignored {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}
