package model

import (
	"math"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// Llama and Qwen2: blocks with two RMSNorms, rotary positions on the whole head, grouped key-value heads and a gated MLP.
// Touvron et al. 2023 (https://arxiv.org/abs/2307.09288); transformers@5.23.0 models/llama and models/qwen2.
//
//	h = x + O·attention(rope(Q·n₁), rope(K·n₁), V·n₁),  n₁ = rmsnorm(x)
//	y = h + Down·(act(Gate·n₂) ∘ Up·n₂),                n₂ = rmsnorm(h)

func (c Config) validateLlama() error {
	if err := c.rotates(); err != nil {
		return err
	}
	if c.RoPE.Interleaved {
		return c.errorf("interleaved rotary pairs are not of this family")
	}
	if c.Kind == Qwen2 && (!c.QKVBias || c.OutputBias || c.MLPBias) {
		return c.errorf("biases at q, k and v and nowhere else are of this family")
	}
	if c.Kind == Llama && c.QKVBias != c.OutputBias {
		return c.errorf("attention_bias is of q, k, v and o or of none")
	}
	return c.refuses(option{"sliding_window", c.Kind == Llama && c.Windows != nil},
		option{"scale_attn_weights false", c.Unscaled}, option{"scale_attn_by_inverse_layer_idx", c.InverseLayerIdx})
}

func (c Config) tensorsLlama() []Tensor {
	t := []Tensor{blank(c.embedding(), "weight", c.Vocab, c.Hidden)}
	linear := func(name string, out, in int, bias bool) {
		t = append(t, blank(name, "weight", out, in))
		if bias {
			t = append(t, blank(name, "bias", out))
		}
	}
	for i := range c.Layers {
		p := c.layer(i)
		t = append(t, blank(p+"input_layernorm", "weight", c.Hidden))
		linear(p+"self_attn.q_proj", c.Heads*c.HeadDim, c.Hidden, c.QKVBias)
		linear(p+"self_attn.k_proj", c.KVHeads*c.HeadDim, c.Hidden, c.QKVBias)
		linear(p+"self_attn.v_proj", c.KVHeads*c.HeadDim, c.Hidden, c.QKVBias)
		linear(p+"self_attn.o_proj", c.Hidden, c.Heads*c.HeadDim, c.OutputBias)
		t = append(t, blank(p+"post_attention_layernorm", "weight", c.Hidden))
		linear(p+"mlp.gate_proj", c.Intermediate, c.Hidden, c.MLPBias)
		linear(p+"mlp.up_proj", c.Intermediate, c.Hidden, c.MLPBias)
		linear(p+"mlp.down_proj", c.Hidden, c.Intermediate, c.MLPBias)
	}
	t = append(t, blank("model.norm", "weight", c.Hidden))
	return append(t, c.headTensors(false)...)
}

func (n *Net) blockLlama(p *pass, x *ad.Var, i int) *ad.Var {
	c, name := n.Config, n.Config.layer(i)

	h := n.rmsNorm(x, name+"input_layernorm")
	q := nn.Heads(n.linear(h, name+"self_attn.q_proj"), c.Heads)
	k := nn.Heads(n.linear(h, name+"self_attn.k_proj"), c.KVHeads)
	v := nn.Heads(n.linear(h, name+"self_attn.v_proj"), c.KVHeads)
	q, k = n.ops.rotate(c.RoPE, q, p.pos), n.ops.rotate(c.RoPE, k, p.pos)
	a := n.attend(p, i, q, k, v, 1/math.Sqrt(float64(c.HeadDim)))
	x = n.ops.residual(x, n.linear(a, name+"self_attn.o_proj"))

	h = n.rmsNorm(x, name+"post_attention_layernorm")
	gate, up := n.linear(h, name+"mlp.gate_proj"), n.linear(h, name+"mlp.up_proj")
	return n.ops.residual(x, n.linear(n.gated(gate, up), name+"mlp.down_proj"))
}

// gated returns act(gate)∘up.
func (n *Net) gated(gate, up *ad.Var) *ad.Var {
	if n.Config.Activation == "silu" || n.Config.Activation == "swish" {
		return n.ops.swiglu(gate, up)
	}
	return ad.Mul(n.act(gate), up)
}
