package nn

import (
	"fmt"

	"plumbline/reference/ad"
)

// Linear returns y = x·Wᵀ + b for x [..., in], w [out, in] and b [out]:
//
//	y_i = Σ_j w_ij·x_j + b_i
//
// as torch.nn.Linear does. It panics if the shapes do not fit or x has fewer than two axes.
func Linear(x, w, b *ad.Var) *ad.Var {
	return addBias("linear", ad.MatMul(x, w, false, true), b)
}

// Conv1D returns y = x·W + b for x [..., in], w [in, out] and b [out]. It is [Linear] with the weight stored the other way
// round, which is how GPT-2 keeps it (transformers@5.23.0 pytorch_utils.Conv1D).
func Conv1D(x, w, b *ad.Var) *ad.Var {
	return addBias("conv1d", ad.MatMul(x, w, false, false), b)
}

func addBias(op string, y, b *ad.Var) *ad.Var {
	if b == nil {
		return y
	}
	if s := y.Shape(); b.Size() != s[len(s)-1] {
		panic(fmt.Sprintf("nn: %s: a bias of shape %v for %d outputs", op, b.Shape(), s[len(s)-1]))
	}
	return ad.Add(y, b)
}
