package nn

import (
	"math"

	"plumbline/reference/ad"
)

// LoRA is a low-rank update of a linear layer, ΔW = s·B·A with A [R, in] and B [out, R]. Hu et al. 2021
// (https://arxiv.org/abs/2106.09685), Section 4.1.
type LoRA struct {
	A, B  *ad.Var
	Scale float64 // s, see LoRAScale
}

// LoRAScale returns the scale of an update of the given rank: alpha/rank, or alpha/√rank with rank stabilisation
// (Kalajdzievski 2023, https://arxiv.org/abs/2312.03732; use_rslora of peft@0.21.2). It panics unless rank is positive.
func LoRAScale(alpha float64, rank int, stabilised bool) float64 {
	if rank < 1 {
		panic("nn: lora: a rank below 1")
	}
	if stabilised {
		return alpha / math.Sqrt(float64(rank))
	}
	return alpha / float64(rank)
}

// Delta returns what the update adds to the output of the layer for the input x [..., in]:
//
//	ΔW·x = s·B(A·x)
//
// The factors are applied one after the other and ΔW is never formed, as peft@0.21.2 does while the adapter is not merged.
// There is no dropout.
func (l LoRA) Delta(x *ad.Var) *ad.Var {
	return ad.Scale(ad.MatMul(ad.MatMul(x, l.A, false, true), l.B, false, true), l.Scale)
}
