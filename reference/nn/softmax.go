package nn

import (
	"math"

	"plumbline/reference/ad"
)

// Softmax returns the probabilities of x [..., S] over its last axis among the entries where the mask, broadcast to x, is
// on:
//
//	y_j = e^{x_j − m}/Σ_i e^{x_i − m},   m = max x, over the entries that are on
//
// and exactly 0 with derivative 0 elsewhere, whatever x holds there. A row without any entry is 0 throughout: it passes
// nothing on and has no gradient. (torch has NaN in such a row if the mask is −Inf, and the plain mean of all entries if the
// mask is the smallest finite number, as in the eager attention of transformers.)
func Softmax(x *ad.Var, mask ad.Mask) *ad.Var {
	return ad.Softmax(ad.Where(mask, x, x.Tape().Scalar(math.Inf(-1))), -1)
}
