package nn

import (
	"fmt"

	"plumbline/reference/ad"
)

// ValueHead returns the value of every position of the hidden states x [B, T, C], as [B, T]:
//
//	v_t = ⟨w, x_t⟩ + b
//
// with w [1, C] and b [1] or nil: v_head.summary of TRL's models with a value head.
func ValueHead(x, w, b *ad.Var) *ad.Var {
	if s := w.Shape(); len(s) != 2 || s[0] != 1 {
		panic(fmt.Sprintf("nn: value head: a weight of shape %v", s))
	}
	s := x.Shape()
	return ad.Reshape(Linear(x, w, b), s[:len(s)-1]...)
}

// SequenceScore returns one score in (0, 1) per row of the hidden states x [B, T, C], read at the first position, where a
// classifier's CLS token stands, as [B]:
//
//	y = σ(scale·⟨w, x_0⟩ + bias)
//
// with w [1, C] and scale and bias of one element each.
func SequenceScore(x, w, scale, bias *ad.Var) *ad.Var {
	s := x.Shape()
	if len(s) != 3 || s[1] < 1 || scale.Size() != 1 || bias.Size() != 1 {
		panic(fmt.Sprintf("nn: sequence score: hidden states of shape %v, scale %v, bias %v", s, scale.Shape(), bias.Shape()))
	}
	first := ad.Reshape(ad.Slice(x, 1, 0, 1), s[0], s[2])
	score := ValueHead(first, w, nil)
	return ad.Sigmoid(ad.Add(ad.Mul(score, ad.Reshape(scale, 1)), ad.Reshape(bias, 1)))
}
