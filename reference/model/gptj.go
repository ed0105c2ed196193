package model

import (
	"math"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// GPT-J: blocks in which attention and MLP read the same LayerNorm and are added to the residual together, rotary positions
// in interleaved pairs on the first channels of each head, and a head with a bias. Wang and Komatsuzaki 2021
// (https://github.com/kingoflolz/mesh-transformer-jax); transformers@5.23.0 models/gptj.
//
//	y = (O·attention(rope(Q·n), rope(K·n), V·n) + Out·act(In·n)) + x,  n = layernorm(x)

func (c Config) validateGPTJ() error {
	if err := c.rotates(); err != nil {
		return err
	}
	if !c.RoPE.Interleaved {
		return c.errorf("half-split rotary pairs are not of this family")
	}
	if c.QKVBias || c.OutputBias || !c.MLPBias {
		return c.errorf("biases at the MLP and nowhere else in a block are of this family")
	}
	if err := c.whole(); err != nil {
		return err
	}
	return c.refuses(option{"sliding_window", c.Windows != nil},
		option{"scale_attn_weights false", c.Unscaled}, option{"scale_attn_by_inverse_layer_idx", c.InverseLayerIdx})
}

func (c Config) tensorsGPTJ() []Tensor {
	t := []Tensor{blank(c.embedding(), "weight", c.Vocab, c.Hidden)}
	for i := range c.Layers {
		p := c.layer(i)
		t = append(t,
			blank(p+"ln_1", "weight", c.Hidden), blank(p+"ln_1", "bias", c.Hidden),
			blank(p+"attn.q_proj", "weight", c.Hidden, c.Hidden),
			blank(p+"attn.k_proj", "weight", c.Hidden, c.Hidden),
			blank(p+"attn.v_proj", "weight", c.Hidden, c.Hidden),
			blank(p+"attn.out_proj", "weight", c.Hidden, c.Hidden),
			blank(p+"mlp.fc_in", "weight", c.Intermediate, c.Hidden), blank(p+"mlp.fc_in", "bias", c.Intermediate),
			blank(p+"mlp.fc_out", "weight", c.Hidden, c.Intermediate), blank(p+"mlp.fc_out", "bias", c.Hidden))
	}
	t = append(t, blank("transformer.ln_f", "weight", c.Hidden), blank("transformer.ln_f", "bias", c.Hidden))
	return append(t, c.headTensors(true)...)
}

func (n *Net) blockGPTJ(p *pass, x *ad.Var, i int) *ad.Var {
	c, name := n.Config, n.Config.layer(i)

	h := n.layerNorm(x, name+"ln_1")
	q := nn.Heads(n.linear(h, name+"attn.q_proj"), c.Heads)
	k := nn.Heads(n.linear(h, name+"attn.k_proj"), c.Heads)
	v := nn.Heads(n.linear(h, name+"attn.v_proj"), c.Heads)
	q, k = n.ops.rotate(c.RoPE, q, p.pos), n.ops.rotate(c.RoPE, k, p.pos)
	a := n.linear(n.attend(p, i, q, k, v, 1/math.Sqrt(float64(c.HeadDim))), name+"attn.out_proj")

	m := n.linear(n.act(n.linear(h, name+"mlp.fc_in")), name+"mlp.fc_out")
	return n.ops.residual(ad.Add(a, m), x)
}
