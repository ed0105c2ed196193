// Package refmodel makes models of plumbline/reference/model, in float64, from what plumbline/internal/pretrained opens.
package refmodel

import (
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/pretrained"
	"plumbline/reference/model"
	"plumbline/reference/nn"
)

// Options says what to open.
type Options struct {
	Adapter     string // folder of a PEFT adapter, "" for none
	NoTokenizer bool   // leave the tokenizer out, which a folder of weights need not have
	Fingerprint bool   // take that of the weights, for which a part of them is read once more
}

// Model is a model with its tokenizer, in memory.
type Model struct {
	Path            string
	Base            *model.Model
	Adapter         model.Adapter // nil without an adapter
	pretrained.Text               // the tokenizer and what is said about texts
	Fingerprint     string        // of the weights of a folder, if it was asked for: [pretrained.Source.Fingerprint]
	Notes           []string      // what a reader should know
}

// Open reads the model at path: a folder with config.json, or a GGUF file.
func Open(path string, o Options) (*Model, error) {
	s, err := pretrained.Open(path, pretrained.Options{Adapter: o.Adapter, NoTokenizer: o.NoTokenizer})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	m, err := New(s)
	if err == nil && o.Fingerprint {
		m.Fingerprint, err = s.Fingerprint()
	}
	return m, err
}

// New reads the weights of an open model, with its adapter.
func New(s *pretrained.Source) (*Model, error) {
	c, m := s.Config, &Model{Path: s.Path, Text: s.Text, Notes: s.Notes}
	weights := func(name string, _ ...int) ([]float64, error) {
		w, err := s.Weight(name)
		if err != nil {
			return nil, err
		}
		return w.Float64s()
	}
	if a := s.Adapter; a != nil {
		c, weights, m.Adapter = a.Config, adapted(a, weights), model.Adapter{}
		for name, f := range a.Linears {
			m.Adapter[name] = model.LoRA{Rank: f.Rank, A: f.A, B: f.B, Scale: f.Scale}
		}
	}
	config, err := Config(s.ConfigFile, c)
	if err != nil {
		return nil, err
	}
	m.Base, err = model.New(config, weights)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// adapted returns the weights of a base with those that the adapter saved in their place, and with its updates of embeddings,
//
//	W'[t] = W[t] + s·B·A[:,t].
func adapted(a *pretrained.Adapter, base model.Weights) model.Weights {
	return func(name string, shape ...int) ([]float64, error) {
		w := slices.Clone(a.Saved[name])
		if w == nil {
			var err error
			if w, err = base(name, shape...); err != nil {
				return nil, err
			}
		}
		f, ok := a.Tables[strings.TrimSuffix(name, ".weight")]
		if !ok {
			return w, nil
		}
		rows, width := shape[0], shape[1]
		for t := range rows {
			for c := range width {
				sum := 0.0
				for k := range f.Rank {
					sum += float64(f.B[c*f.Rank+k] * f.A[k*rows+t])
				}
				w[t*width+c] += float64(f.Scale * sum)
			}
		}
		return w, nil
	}
}

// Config returns the configuration of the reference for a geometry that file describes. What the reference does not compute (an
// architecture, an activation, a scaling of the rotary embedding) is refused by name.
func Config(file string, c arch.Config) (model.Config, error) {
	m := model.Config{
		Kind: model.Kind(c.Type), Vocab: c.Vocab, Hidden: c.Hidden, Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads,
		HeadDim: c.HeadDim, Intermediate: c.Inner, MaxPositions: c.Positions, Eps: c.Eps, Activation: c.Activation, Tied: c.Tied,
		QKVBias: c.QKVBias, OutputBias: c.OutputBias, MLPBias: c.MLPBias,
		Windows: c.Windows, Unscaled: c.Unscaled, InverseLayerIdx: c.InverseLayerIdx,
	}
	if c.Rope.Theta > 0 {
		m.RoPE = rotary(c.Rope)
	}
	if err := m.Validate(); err != nil {
		return model.Config{}, format.Malformed(file, "", "%v", err)
	}
	return m, nil
}

// rotary returns the rotary embedding.
func rotary(r arch.Rope) nn.RoPE {
	out := nn.RoPE{Dim: r.Dim, Theta: r.Theta, Interleaved: r.Interleaved}
	if r.Type == "default" {
		return out
	}
	out.Scaling = nn.RoPEScaling{
		Type: r.Type, Factor: r.Factor, LowFreqFactor: r.LowFreqFactor, HighFreqFactor: r.HighFreqFactor, OriginalMaxPositions: float64(r.OriginalPositions),
		BetaFast: r.BetaFast, BetaSlow: r.BetaSlow, AttentionFactor: r.AttentionFactor, MScale: r.MScale, MScaleAllDim: r.MScaleAllDim, NoTruncate: r.NoTruncate,
	}
	return out
}
