package model

import (
	"math"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// GPT-2: blocks with two LayerNorms, learned positions, one projection for queries, keys and values together, biases
// everywhere and weights stored as [in, out]. Radford et al. 2019; transformers@5.23.0 models/gpt2.
//
//	h = x + O·attention(q, k, v),  (q, k, v) = QKV·layernorm(x)
//	y = h + Out·act(In·layernorm(h))

func (c Config) validateGPT2() error {
	if !c.QKVBias || !c.OutputBias || !c.MLPBias {
		return c.errorf("biases everywhere are of this family")
	}
	if err := c.whole(); err != nil {
		return err
	}
	return c.refuses(option{"sliding_window", c.Windows != nil}, option{"rotary positions", c.RoPE != nn.RoPE{}})
}

func (c Config) tensorsGPT2() []Tensor {
	t := []Tensor{blank(c.embedding(), "weight", c.Vocab, c.Hidden), blank("transformer.wpe", "weight", c.MaxPositions, c.Hidden)}
	conv1d := func(name string, in, out int) {
		t = append(t, blank(name, "weight", in, out), blank(name, "bias", out))
	}
	norm := func(name string) {
		t = append(t, blank(name, "weight", c.Hidden), blank(name, "bias", c.Hidden))
	}
	for i := range c.Layers {
		p := c.layer(i)
		norm(p + "ln_1")
		conv1d(p+"attn.c_attn", c.Hidden, 3*c.Hidden)
		conv1d(p+"attn.c_proj", c.Hidden, c.Hidden)
		norm(p + "ln_2")
		conv1d(p+"mlp.c_fc", c.Hidden, c.Intermediate)
		conv1d(p+"mlp.c_proj", c.Intermediate, c.Hidden)
	}
	norm("transformer.ln_f")
	return append(t, c.headTensors(false)...)
}

// embedGPT2 adds the embeddings of the positions.
func (n *Net) embedGPT2(p *pass, x *ad.Var) *ad.Var {
	return ad.Add(x, nn.Embedding(n.Var("transformer.wpe.weight"), p.pos, p.Batch, p.Time))
}

func (n *Net) blockGPT2(p *pass, x *ad.Var, i int) *ad.Var {
	c, name := n.Config, n.Config.layer(i)
	scale := 1.0
	if !c.Unscaled {
		scale = 1 / math.Sqrt(float64(c.HeadDim))
	}
	if c.InverseLayerIdx {
		scale /= float64(i + 1)
	}

	qkv := n.conv1d(n.layerNorm(x, name+"ln_1"), name+"attn.c_attn")
	third := func(k int) *ad.Var { return nn.Heads(ad.Slice(qkv, 2, k*c.Hidden, (k+1)*c.Hidden), c.Heads) }
	a := n.attend(p, i, third(0), third(1), third(2), scale)
	x = n.ops.residual(x, n.conv1d(a, name+"attn.c_proj"))

	h := n.act(n.conv1d(n.layerNorm(x, name+"ln_2"), name+"mlp.c_fc"))
	return n.ops.residual(x, n.conv1d(h, name+"mlp.c_proj"))
}
