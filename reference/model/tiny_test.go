package model

import (
	"math/rand/v2"

	"plumbline/reference/nn"

	"pgregory.net/rapid"
)

// random returns weights of full mantissas: matrices of order 0.4, vectors around 1 or 0.
func random(r *rand.Rand) Weights {
	return func(name string, shape ...int) ([]float64, error) {
		x := make([]float64, elements(shape))
		for i := range x {
			x[i] = r.NormFloat64() * 0.4
			if len(shape) == 1 && hasSuffix(name, "weight") {
				x[i]++
			}
		}
		return x, nil
	}
}

// drawTiny draws a configuration of any family with all of its options.
func drawTiny(t *rapid.T) Config {
	num := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	c := Config{
		Kind: rapid.SampledFrom([]Kind{GPT2, GPTJ, Llama, Qwen2}).Draw(t, "kind"), Vocab: num("vocab", 4, 9), Layers: num("layers", 1, 2),
		KVHeads: num("kv", 1, 2), HeadDim: 2 * num("half", 1, 3), Intermediate: num("inter", 1, 7), MaxPositions: 24,
		Eps: rapid.SampledFrom([]float64{1e-6, 1e-2}).Draw(t, "eps"), Tied: rapid.Bool().Draw(t, "tied"),
		Activation: rapid.SampledFrom([]string{"gelu", "gelu_new", "silu", "relu"}).Draw(t, "act"), MLPBias: true,
	}
	c.RoPE = nn.RoPE{Dim: c.HeadDim, Theta: rapid.SampledFrom([]float64{10, 10000}).Draw(t, "theta")}
	c.Heads = c.KVHeads * num("group", 1, 3)
	switch c.Kind {
	case GPT2, GPTJ:
		c.Heads = 2 * num("pairs", 1, 2) // LayerNorm of one or two channels forgets them
		c.KVHeads, c.Hidden = c.Heads, c.Heads*c.HeadDim
		if c.Kind == GPT2 {
			c.RoPE, c.QKVBias, c.OutputBias = nn.RoPE{}, true, true
			c.Unscaled, c.InverseLayerIdx = rapid.Bool().Draw(t, "unscaled"), rapid.Bool().Draw(t, "inverse")
		} else {
			c.RoPE.Interleaved, c.RoPE.Dim = true, 2*num("rotated", 1, c.HeadDim/2)
		}
	default:
		c.Hidden, c.MLPBias = num("hidden", 4, 9), c.Kind == Llama && rapid.Bool().Draw(t, "mlp bias")
		c.QKVBias = c.Kind == Qwen2 || rapid.Bool().Draw(t, "bias")
		c.OutputBias = c.Kind == Llama && c.QKVBias
		if c.Kind == Qwen2 && rapid.Bool().Draw(t, "windows") {
			for range c.Layers {
				c.Windows = append(c.Windows, num("window", 0, 4))
			}
		}
		c.RoPE.Scaling = rapid.SampledFrom([]nn.RoPEScaling{
			{}, {Type: "linear", Factor: 2}, {Type: "yarn", Factor: 4, OriginalMaxPositions: 32},
			{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 16},
		}).Draw(t, "scaling")
	}
	return c
}

// tokens draws a batch without padding.
func tokens(c Config, r *rand.Rand, b, t int) Input {
	in := Input{Batch: b, Time: t, IDs: make([]int, b*t)}
	for i := range in.IDs {
		in.IDs[i] = r.IntN(c.Vocab)
	}
	return in
}
