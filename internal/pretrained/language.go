package pretrained

import (
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/reference/model"
	"plumbline/reference/nn"
)

// Language returns what a configuration says about the arithmetic of a language model. What the reference does not compute
// (an architecture, a classifier, a quantisation, a scaling of the rotary embedding) is refused by name.
func Language(c *hf.Config) (model.Config, error) {
	if err := c.Known(); err != nil {
		return model.Config{}, err
	}
	for _, a := range c.Architectures {
		if strings.Contains(a, "ForSequenceClassification") || strings.Contains(a, "ForTokenClassification") || strings.Contains(a, "ForQuestionAnswering") {
			return model.Config{}, format.Malformed(c.File, "architectures", "is %.64q, want a language model", a)
		}
	}
	if q := c.Quantization; q != nil && (q.Method != "bitsandbytes" || q.Bit4) {
		return model.Config{}, format.Malformed(c.File, "quantization_config", "quant_method %.64q with 4 bits %t is not supported, only bitsandbytes with load_in_8bit is", q.Method, q.Bit4)
	}
	m := model.Config{
		Kind: model.Kind(c.ModelType), Vocab: c.Vocab, Hidden: c.Hidden, Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads,
		HeadDim: c.HeadDim, Intermediate: c.Inner, MaxPositions: c.Positions, Eps: c.NormEps, Activation: c.Activation, Tied: c.TieEmbeddings,
		QKVBias: c.AttentionBias, OutputBias: c.OutputBias, MLPBias: c.MLPBias,
		Unscaled: !c.ScaleAttention, InverseLayerIdx: c.ScaleByInverseLayer,
	}
	if c.Rope.Theta > 0 {
		m.RoPE = rotary(c)
	}
	if c.SlidingWindow > 0 {
		m.Windows = make([]int, c.Layers)
		for i, on := range c.Windowed {
			if on {
				m.Windows[i] = c.SlidingWindow
			}
		}
	}
	if err := m.Validate(); err != nil {
		return model.Config{}, format.Malformed(c.File, "", "%v", err)
	}
	if err := c.Object.Err(); err != nil {
		return model.Config{}, err
	}
	return m, nil
}

// rotary returns the rotary embedding. Where the scaling does not say for how many positions the model was trained first,
// they are max_position_embeddings (transformers@5.23.0 modeling_rope_utils standardize_rope_params).
func rotary(c *hf.Config) nn.RoPE {
	r := nn.RoPE{Dim: c.Rope.Dim, Theta: c.Rope.Theta, Interleaved: c.Rope.Interleaved}
	if c.Rope.Type == "default" {
		return r
	}
	original := c.Rope.OriginalPositions
	if original == 0 {
		original = c.Positions
	}
	r.Scaling = nn.RoPEScaling{
		Type: c.Rope.Type, Factor: c.Rope.Factor, LowFreqFactor: c.Rope.LowFreqFactor, HighFreqFactor: c.Rope.HighFreqFactor,
		OriginalMaxPositions: float64(original), BetaFast: c.Rope.BetaFast, BetaSlow: c.Rope.BetaSlow, AttentionFactor: c.Rope.AttentionFactor,
	}
	for _, key := range []string{"rope_parameters", "rope_scaling"} { // the second counts where both are there
		if o := c.Object.Object(key); o != nil && c.Rope.Type == "yarn" {
			r.Scaling.MScale = o.Float("mscale", 0, 0, 1e9)
			r.Scaling.MScaleAllDim = o.Float("mscale_all_dim", 0, 0, 1e9)
			r.Scaling.NoTruncate = !o.Bool("truncate", true)
		}
	}
	return r
}
