package arch

import (
	"strconv"
	"strings"
)

// family is what the models of one model_type have in common.
type family struct {
	base   string // the base model inside the class with a head: base_model_prefix and a point
	blocks string // the list of blocks, with a point
	norm   Kind   // of its norms

	first func(c Config) []Module // before the blocks
	block func(c Config) []Module // one block, named inside it
	last  func(c Config) []Module // after the blocks

	roots   []string // how names inside the base model begin, to know one that was stored without base
	buffers []string // ends of the names of buffers that old versions saved: a causal mask, a constant, a table of angles
}

// families are the architectures by model_type.
var families = map[string]*family{"gpt2": &gpt2, "gptj": &gptj, "llama": &llama, "qwen2": &llama,
	"mistral": &llama, "granite": &llama, "smollm3": &llama, "qwen3": &qwen3, "gemma": &llama, "gemma2": &gemma2, "gemma3_text": &gemma3,
	"phi": &phi, "phi3": &phi3, "olmo": &olmo, "olmo2": &olmo2, "olmo3": &olmo2, "mixtral": &mixtral,
	"starcoder2": &starcoder2, "stablelm": &stablelm, "cohere": &cohere, "gpt_neox": &neox, "qwen2_moe": &qwenMoE, "qwen3_moe": &qwenMoE, "opt": &opt, "bloom": &bloom, "falcon": &falcon}

// roots and buffers of the models whose base is called transformer.
var (
	gptRoots   = []string{"wte.", "wpe.", "h.", "ln_f."}
	gptBuffers = []string{".attn.bias", ".attn.masked_bias", ".attn.embed_positions"}
)

var gpt2 = family{
	base: "transformer.", blocks: "transformer.h.", norm: LayerNorm, roots: gptRoots, buffers: gptBuffers,
	first: func(c Config) []Module {
		list := []Module{table("transformer.wte", Embedding, c.Vocab, c.Hidden)}
		if c.Positions > 0 {
			list = append(list, table("transformer.wpe", Places, c.Positions, c.Hidden))
		}
		return list
	},
	block: func(c Config) []Module {
		return []Module{
			{Name: "ln_1", Role: AttentionNorm, Kind: LayerNorm, Out: c.Hidden},
			{Name: "attn.c_attn", Role: QKV, Kind: Conv1D, In: c.Hidden, Out: 3 * c.Hidden, Bias: c.QKVBias},
			{Name: "attn.c_proj", Role: Output, Kind: Conv1D, In: c.Hidden, Out: c.Hidden, Bias: c.OutputBias},
			{Name: "ln_2", Role: MLPNorm, Kind: LayerNorm, Out: c.Hidden},
			{Name: "mlp.c_fc", Role: Up, Kind: Conv1D, In: c.Hidden, Out: c.Inner, Bias: c.MLPBias},
			{Name: "mlp.c_proj", Role: Down, Kind: Conv1D, In: c.Inner, Out: c.Hidden, Bias: c.MLPBias},
		}
	},
	last: func(c Config) []Module { return ending(c, "transformer.ln_f", LayerNorm) },
}

var gptj = family{
	base: "transformer.", blocks: "transformer.h.", norm: LayerNorm, roots: gptRoots, buffers: gptBuffers,
	first: func(c Config) []Module { return []Module{table("transformer.wte", Embedding, c.Vocab, c.Hidden)} },
	block: func(c Config) []Module {
		return append(append([]Module{{Name: "ln_1", Role: AttentionNorm, Kind: LayerNorm, Out: c.Hidden}}, attention(c, "attn.", "out_proj")...),
			Module{Name: "mlp.fc_in", Role: Up, In: c.Hidden, Out: c.Inner, Bias: c.MLPBias},
			Module{Name: "mlp.fc_out", Role: Down, In: c.Inner, Out: c.Hidden, Bias: c.MLPBias})
	},
	last: func(c Config) []Module { return ending(c, "transformer.ln_f", LayerNorm) },
}

// llamaLike returns a family with the names of Llama around blocks of its own.
func llamaLike(block func(c Config) []Module) family {
	return family{
		base: "model.", blocks: "model.layers.", norm: RMSNorm,
		roots:   []string{"embed_tokens.", "layers.", "norm.", "rotary_emb."},
		buffers: []string{".rotary_emb.inv_freq", ".rotary_emb.original_inv_freq"},
		first:   func(c Config) []Module { return []Module{table("model.embed_tokens", Embedding, c.Vocab, c.Hidden)} },
		block:   block,
		last:    func(c Config) []Module { return ending(c, "model.norm", RMSNorm) },
	}
}

// llama is the family of Llama, and of Qwen2, Mistral, Granite, SmolLM3 and Gemma, which differ in their biases and in what they
// compute, not in their tensors.
var llama = llamaLike(func(c Config) []Module {
	list := append([]Module{norm("input_layernorm", AttentionNorm, c.Hidden)}, attention(c, "self_attn.", "o_proj")...)
	return append(append(list, norm("post_attention_layernorm", MLPNorm, c.Hidden)), gated(c)...)
})

// qwen3 normalises the queries and keys of each head (transformers@5.23.0 models/qwen3/modeling_qwen3.py Qwen3Attention).
var qwen3 = llamaLike(func(c Config) []Module {
	list := append([]Module{norm("input_layernorm", AttentionNorm, c.Hidden)}, attention(c, "self_attn.", "o_proj")...)
	list = append(list, headNorms(c.HeadDim, c.HeadDim)...)
	return append(append(list, norm("post_attention_layernorm", MLPNorm, c.Hidden)), gated(c)...)
})

// gemma2 has a norm behind attention and one behind the MLP as well (models/gemma2/modeling_gemma2.py Gemma2DecoderLayer).
var gemma2 = llamaLike(func(c Config) []Module {
	return fourNorms(c, attention(c, "self_attn.", "o_proj"))
})

// gemma3 is gemma2 with the norms of qwen3 (models/gemma3/modeling_gemma3.py Gemma3Attention).
var gemma3 = llamaLike(func(c Config) []Module {
	return fourNorms(c, append(attention(c, "self_attn.", "o_proj"), headNorms(c.HeadDim, c.HeadDim)...))
})

func fourNorms(c Config, attention []Module) []Module {
	list := append([]Module{norm("input_layernorm", AttentionNorm, c.Hidden)}, attention...)
	list = append(list, norm("post_attention_layernorm", AttentionPostNorm, c.Hidden), norm("pre_feedforward_layernorm", MLPNorm, c.Hidden))
	return append(append(list, gated(c)...), norm("post_feedforward_layernorm", MLPPostNorm, c.Hidden))
}

// phi has one norm for attention and MLP, which run side by side, and biases everywhere (models/phi/modeling_phi.py).
var phi = func() family {
	f := llamaLike(func(c Config) []Module {
		list := append([]Module{{Name: "input_layernorm", Role: AttentionNorm, Kind: LayerNorm, Out: c.Hidden}}, attention(c, "self_attn.", "dense")...)
		if c.HeadNorms {
			list = append(list, Module{Name: "self_attn.q_layernorm", Role: QueryNorm, Kind: LayerNorm, Out: c.HeadDim}, Module{Name: "self_attn.k_layernorm", Role: KeyNorm, Kind: LayerNorm, Out: c.HeadDim})
		}
		return append(list, Module{Name: "mlp.fc1", Role: Up, In: c.Hidden, Out: c.Inner, Bias: c.MLPBias}, Module{Name: "mlp.fc2", Role: Down, In: c.Inner, Out: c.Hidden, Bias: c.MLPBias})
	})
	f.norm = LayerNorm
	f.roots = append(f.roots, "final_layernorm.")
	f.last = func(c Config) []Module { return ending(c, "model.final_layernorm", LayerNorm) }
	return f
}()

// phi3 has one layer for queries, keys and values and one for gate and up (models/phi3/modeling_phi3.py).
var phi3 = llamaLike(func(c Config) []Module {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return []Module{
		norm("input_layernorm", AttentionNorm, c.Hidden),
		{Name: "self_attn.qkv_proj", Role: QKV, In: c.Hidden, Out: q + 2*kv, Bias: c.QKVBias}, {Name: "self_attn.o_proj", Role: Output, In: q, Out: c.Hidden, Bias: c.OutputBias},
		norm("post_attention_layernorm", MLPNorm, c.Hidden),
		{Name: "mlp.gate_up_proj", Role: GateUp, In: c.Hidden, Out: 2 * c.Inner, Bias: c.MLPBias}, {Name: "mlp.down_proj", Role: Down, In: c.Inner, Out: c.Hidden, Bias: c.MLPBias},
	}
})

// olmo has norms without weights (models/olmo/modeling_olmo.py OlmoLayerNorm).
var olmo = func() family {
	f := llamaLike(func(c Config) []Module { return append(attention(c, "self_attn.", "o_proj"), gated(c)...) })
	f.last = func(c Config) []Module { return ending(c, "", RMSNorm)[1:] }
	return f
}()

// olmo2 normalises behind attention and MLP, and the queries and keys of all heads together (models/olmo2/modeling_olmo2.py).
var olmo2 = llamaLike(func(c Config) []Module {
	list := append(attention(c, "self_attn.", "o_proj"), headNorms(c.Heads*c.HeadDim, c.KVHeads*c.HeadDim)...)
	list = append(list, norm("post_attention_layernorm", AttentionPostNorm, c.Hidden))
	return append(append(list, gated(c)...), norm("post_feedforward_layernorm", MLPPostNorm, c.Hidden))
})

// mixtral has several MLPs and a router that chooses among them. They are stored one by one, under the names of the class of
// earlier versions; the class of transformers@5.23.0 holds all of a layer in two parameters (models/mixtral/modeling_mixtral.py).
var mixtral = llamaLike(func(c Config) []Module {
	list := append([]Module{norm("input_layernorm", AttentionNorm, c.Hidden)}, attention(c, "self_attn.", "o_proj")...)
	list = append(list, norm("post_attention_layernorm", MLPNorm, c.Hidden), Module{Name: "block_sparse_moe.gate", Role: Router, Kind: Matrix, In: c.Hidden, Out: c.Experts})
	for i := range c.Experts {
		name := "block_sparse_moe.experts." + strconv.Itoa(i)
		list = append(list, Module{Name: name + ".w1", Role: Expert, Kind: Matrix, In: c.Hidden, Out: c.Inner}, Module{Name: name + ".w2", Role: Expert, Kind: Matrix, In: c.Inner, Out: c.Hidden},
			Module{Name: name + ".w3", Role: Expert, Kind: Matrix, In: c.Hidden, Out: c.Inner})
	}
	return list
})

func norm(name string, role Role, width int) Module {
	return Module{Name: name, Role: role, Kind: RMSNorm, Out: width}
}

// headNorms are the norms of queries and keys.
func headNorms(query, key int) []Module {
	return []Module{norm("self_attn.q_norm", QueryNorm, query), norm("self_attn.k_norm", KeyNorm, key)}
}

// gated is the MLP of Llama.
func gated(c Config) []Module {
	return []Module{
		{Name: "mlp.gate_proj", Role: Gate, In: c.Hidden, Out: c.Inner, Bias: c.MLPBias},
		{Name: "mlp.up_proj", Role: Up, In: c.Hidden, Out: c.Inner, Bias: c.MLPBias},
		{Name: "mlp.down_proj", Role: Down, In: c.Inner, Out: c.Hidden, Bias: c.MLPBias},
	}
}

func table(name string, role Role, rows, width int) Module {
	return Module{Name: name, Role: role, Layer: -1, Kind: Table, In: rows, Out: width}
}

// attention returns the four projections of a block, with the keys and values of KVHeads.
func attention(c Config, prefix, output string) []Module {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return []Module{
		{Name: prefix + "q_proj", Role: Query, In: c.Hidden, Out: q, Bias: c.QKVBias},
		{Name: prefix + "k_proj", Role: Key, In: c.Hidden, Out: kv, Bias: c.QKVBias},
		{Name: prefix + "v_proj", Role: Value, In: c.Hidden, Out: kv, Bias: c.QKVBias},
		{Name: prefix + output, Role: Output, In: q, Out: c.Hidden, Bias: c.OutputBias},
	}
}

// ending returns the last norm and the head.
func ending(c Config, norm string, kind Kind) []Module {
	return []Module{
		{Name: norm, Role: FinalNorm, Layer: -1, Kind: kind, Out: c.Hidden},
		{Name: "lm_head", Role: Head, Layer: -1, In: c.Hidden, Out: c.Vocab, Bias: c.HeadBias, Tied: c.Tied},
	}
}

// wrappers are the prefixes of modules that hold a model: a PEFT adapter's, those of torch's data parallelism, of
// torch.compile and of TRL's model with a value head.
var wrappers = []string{"base_model.model.", "module.", "_orig_mod.", "pretrained_model."}

// Canonical returns the name in the state dict of the class ...ForCausalLM of the tensor that is stored or asked for as name:
// with the prefix of the base model, without those of wrappers. A model_type that is not known only loses the wrappers.
func Canonical(modelType, name string) string {
	for again := true; again; {
		again = false
		for _, w := range wrappers {
			if rest, ok := strings.CutPrefix(name, w); ok {
				name, again = rest, true
			}
		}
	}
	return Rooted(modelType, name)
}

// Rooted returns name with the prefix of the base model, if it lacks that.
func Rooted(modelType, name string) string {
	if f := families[modelType]; f != nil {
		for _, root := range f.roots {
			if strings.HasPrefix(name, root) {
				name = f.base + name
				break
			}
		}
	}
	if modelType == "mixtral" { // the module is mlp, and its tensors are stored under the name that it had
		name = strings.Replace(name, ".mlp.", ".block_sparse_moe.", 1)
	}
	if rest, ok := strings.CutPrefix(name, "lm_head."); ok && modelType == "gpt_neox" {
		name = "embed_out." + rest
	}
	return name
}

// Buffer reports whether the tensor of that canonical name is a buffer that no version loads; with no model_type, whether it is
// one in any architecture.
func Buffer(modelType, name string) bool {
	for of, f := range families {
		if of == modelType || modelType == "" {
			for _, end := range f.buffers {
				if strings.HasSuffix(name, end) {
					return true
				}
			}
		}
	}
	return false
}

// HeadWeight is the name of the weight that turns hidden states into logits, where it is stored.
const HeadWeight = "lm_head.weight"

// EmbeddingOf returns the name of the weight of a known model_type that turns tokens into hidden states, else "".
func EmbeddingOf(modelType string) string {
	if f := families[modelType]; f != nil {
		return f.first(Config{})[0].Name + ".weight"
	}
	return ""
}
