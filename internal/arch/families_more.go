package arch

import (
	"cmp"
	"strconv"
)

func layerNorm(name string, role Role, width int) Module {
	return Module{Name: name, Role: role, Kind: LayerNorm, Out: width}
}

// twoLayers is an MLP of two layers, up and down.
func twoLayers(c Config, up, down string) []Module {
	return []Module{{Name: up, Role: Up, In: c.Hidden, Out: c.Inner, Bias: c.MLPBias}, {Name: down, Role: Down, In: c.Inner, Out: c.Hidden, Bias: c.MLPBias}}
}

// starcoder2 is llama with the norms and the MLP of GPT-2 (models/starcoder2/modeling_starcoder2.py).
var starcoder2 = func() family {
	f := llamaLike(func(c Config) []Module {
		list := append([]Module{layerNorm("input_layernorm", AttentionNorm, c.Hidden)}, attention(c, "self_attn.", "o_proj")...)
		return append(append(list, layerNorm("post_attention_layernorm", MLPNorm, c.Hidden)), twoLayers(c, "mlp.c_fc", "mlp.c_proj")...)
	})
	f.norm = LayerNorm
	f.last = func(c Config) []Module { return ending(c, "model.norm", LayerNorm) }
	return f
}()

// stablelm is llama with the norms of GPT-2, of which attention and MLP may share one (models/stablelm/modeling_stablelm.py).
var stablelm = func() family {
	f := llamaLike(func(c Config) []Module {
		list := append([]Module{layerNorm("input_layernorm", AttentionNorm, c.Hidden)}, attention(c, "self_attn.", "o_proj")...)
		if !c.OneNorm {
			list = append(list, layerNorm("post_attention_layernorm", MLPNorm, c.Hidden))
		}
		return append(list, gated(c)...)
	})
	f.norm = LayerNorm
	f.last = func(c Config) []Module { return ending(c, "model.norm", LayerNorm) }
	return f
}()

// cohere has one norm for attention and MLP, with a weight and no bias (models/cohere/modeling_cohere.py CohereLayerNorm).
var cohere = llamaLike(func(c Config) []Module {
	return append(append([]Module{norm("input_layernorm", AttentionNorm, c.Hidden)}, attention(c, "self_attn.", "o_proj")...), gated(c)...)
})

// neox has one layer for queries, keys and values of all heads in turn (models/gpt_neox/modeling_gpt_neox.py). The head is stored as
// embed_out.
var neox = family{
	base: "gpt_neox.", blocks: "gpt_neox.layers.", norm: LayerNorm, roots: []string{"embed_in.", "layers.", "final_layer_norm."},
	buffers: []string{".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"},
	first:   func(c Config) []Module { return []Module{table("gpt_neox.embed_in", Embedding, c.Vocab, c.Hidden)} },
	block: func(c Config) []Module {
		list := []Module{layerNorm("input_layernorm", AttentionNorm, c.Hidden), layerNorm("post_attention_layernorm", MLPNorm, c.Hidden)}
		return append(append(list, fusedAttention(c, "attention.", 3*c.Hidden)...), twoLayers(c, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")...)
	},
	last: func(c Config) []Module {
		list := ending(c, "gpt_neox.final_layer_norm", LayerNorm)
		list[1].Name = "embed_out"
		return list
	},
}

// fusedAttention is attention whose queries, keys and values are one layer of so many outputs.
func fusedAttention(c Config, prefix string, outputs int) []Module {
	return []Module{{Name: prefix + "query_key_value", Role: QKV, In: c.Hidden, Out: outputs, Bias: c.QKVBias}, {Name: prefix + "dense", Role: Output, In: c.Hidden, Out: c.Hidden, Bias: c.OutputBias}}
}

// bloom has a norm behind the embedding (models/bloom/modeling_bloom.py).
var bloom = family{
	base: "transformer.", blocks: "transformer.h.", norm: LayerNorm, roots: []string{"word_embeddings.", "word_embeddings_layernorm.", "h.", "ln_f."},
	first: func(c Config) []Module {
		return []Module{table("transformer.word_embeddings", Embedding, c.Vocab, c.Hidden),
			{Name: "transformer.word_embeddings_layernorm", Role: EmbeddingNorm, Layer: -1, Kind: LayerNorm, Out: c.Hidden}}
	},
	block: func(c Config) []Module {
		list := append([]Module{layerNorm("input_layernorm", AttentionNorm, c.Hidden)}, fusedAttention(c, "self_attention.", 3*c.Hidden)...)
		return append(append(list, layerNorm("post_attention_layernorm", MLPNorm, c.Hidden)), twoLayers(c, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")...)
	},
	last: func(c Config) []Module { return ending(c, "transformer.ln_f", LayerNorm) },
}

// falcon is of the first generation: one head of keys and values, or one for each of the queries (models/falcon/modeling_falcon.py).
var falcon = family{
	base: "transformer.", blocks: "transformer.h.", norm: LayerNorm, roots: []string{"word_embeddings.", "h.", "ln_f."},
	first: func(c Config) []Module {
		return []Module{table("transformer.word_embeddings", Embedding, c.Vocab, c.Hidden)}
	},
	block: func(c Config) []Module {
		list := append([]Module{layerNorm("input_layernorm", AttentionNorm, c.Hidden)}, fusedAttention(c, "self_attention.", c.Hidden+2*c.KVHeads*c.HeadDim)...)
		if !c.OneNorm {
			list = append(list, layerNorm("post_attention_layernorm", MLPNorm, c.Hidden))
		}
		return append(list, twoLayers(c, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")...)
	},
	last: func(c Config) []Module { return ending(c, "transformer.ln_f", LayerNorm) },
}

// opt has learned positions that begin at row 2 (models/opt/modeling_opt.py OPTLearnedPositionalEmbedding).
var opt = family{
	base: "model.", blocks: "model.decoder.layers.", norm: LayerNorm, roots: []string{"decoder."},
	first: func(c Config) []Module {
		list := []Module{table("model.decoder.embed_tokens", Embedding, c.Vocab, c.Hidden)}
		if c.Positions > 0 {
			list = append(list, table("model.decoder.embed_positions", Places, c.Positions+2, c.Hidden))
		}
		return list
	},
	block: func(c Config) []Module {
		list := append(attention(c, "self_attn.", "out_proj"), layerNorm("self_attn_layer_norm", AttentionNorm, c.Hidden))
		return append(append(list, twoLayers(c, "fc1", "fc2")...), layerNorm("final_layer_norm", MLPNorm, c.Hidden))
	},
	last: func(c Config) []Module { return ending(c, "model.decoder.final_layer_norm", LayerNorm) },
}

// qwenMoE is Qwen2-MoE and Qwen3-MoE, where every layer has experts: stored one by one, held together by the classes of
// transformers@5.23.0. Qwen3-MoE has the norms of Qwen3, Qwen2-MoE an expert that reads every token, weighed by a gate
// (models/qwen2_moe/modeling_qwen2_moe.py Qwen2MoeSparseMoeBlock, models/qwen3_moe/modeling_qwen3_moe.py Qwen3MoeSparseMoeBlock).
var qwenMoE = llamaLike(func(c Config) []Module {
	list := append([]Module{norm("input_layernorm", AttentionNorm, c.Hidden)}, attention(c, "self_attn.", "o_proj")...)
	if c.Type == "qwen3_moe" {
		list = append(list, headNorms(c.HeadDim, c.HeadDim)...)
	}
	list = append(list, norm("post_attention_layernorm", MLPNorm, c.Hidden), Module{Name: "mlp.gate", Role: Router, Kind: Matrix, In: c.Hidden, Out: c.Experts})
	inner := cmp.Or(c.ExpertInner, c.Inner)
	expert := func(prefix string, kind Kind, inner int) {
		list = append(list, Module{Name: prefix + "gate_proj", Role: Expert, Kind: kind, In: c.Hidden, Out: inner}, Module{Name: prefix + "up_proj", Role: Expert, Kind: kind, In: c.Hidden, Out: inner},
			Module{Name: prefix + "down_proj", Role: Expert, Kind: kind, In: inner, Out: c.Hidden})
	}
	for i := range c.Experts {
		expert("mlp.experts."+strconv.Itoa(i)+".", Matrix, inner)
	}
	if c.SharedInner > 0 {
		expert("mlp.shared_expert.", Linear, c.SharedInner)
		list = append(list, Module{Name: "mlp.shared_expert_gate", Role: Expert, In: c.Hidden, Out: 1})
	}
	return list
})
