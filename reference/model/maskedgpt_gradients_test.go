package model

import (
	"math/rand/v2"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
)

// maskedGradients checks all weights of a tiny model by ad.CheckGrad.
func maskedGradients(c MaskedGPTConfig, seed uint64, f func(n *MaskedNet) *ad.Var) error {
	w := drawn(seed)
	var in []ad.Tensor
	for _, t := range c.Tensors() {
		x, _ := w(t.Name, t.Shape...)
		in = append(in, ad.Tensor{Shape: t.Shape, Data: x})
	}
	m, err := NewMaskedGPT(c, drawn(seed))
	if err != nil {
		return err
	}
	return ad.CheckGrad(string(c.Mode), func(x []*ad.Var) *ad.Var {
		p := &params{tape: x[0].Tape(), vars: map[string]*ad.Var{}}
		for i, t := range c.Tensors() {
			p.vars[t.Name] = x[i]
		}
		return f(&MaskedNet{p, c, m.ops})
	}, in, rand.New(rand.NewPCG(seed, 3)))
}

func TestMaskedGradients(t *testing.T) {
	c := MaskedGPTConfig{Mode: LanguageModel, Vocab: 6, Hidden: 4, Heads: 1, Layers: 2, MaxPositions: 6, Bias: true, Mask: 4, Pad: 5}
	in := Input{Batch: 2, Time: 4, IDs: []int{4, 1, 4, 2, 0, 4, 3, 5}, Real: []bool{true, true, true, true, true, true, true, false}}
	completion := []int{3, 1, 0, 2, 0, 1, 3, 5}
	require.NoError(t, maskedGradients(c, 5, func(n *MaskedNet) *ad.Var { return n.SequenceLogProb(in, completion) }))
	c.Heads, c.Layers, c.Bias = 2, 1, false
	require.NoError(t, maskedGradients(c, 6, func(n *MaskedNet) *ad.Var { return n.LogProbs(in, completion) }))
	c.Mode, c.Vocab, c.CLS, c.CLSEmbedding = SequenceScorer, 7, 6, true
	require.NoError(t, maskedGradients(c, 7, func(n *MaskedNet) *ad.Var { return n.Score(c.JudgeInput(in)) }))
}
