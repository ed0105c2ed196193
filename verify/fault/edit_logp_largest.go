package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/stage"
)

// largest returns the k largest logits.
func largest(x []float64, k int) []float64 {
	y := slices.Clone(x)
	slices.SortFunc(y, func(a, b float64) int { return compare(b, a) })
	return y[:min(k, len(y))]
}

// ofLargest is the entropy of the k largest logits alone: of their own softmax, or what they have of the sum over the vocabulary.
func ofLargest(k int, renormalised bool) func(x []float64, id int, t float64) float64 {
	return func(x []float64, _ int, t float64) (h float64) {
		top := largest(x, k)
		if renormalised {
			return entropyOf(top, t)
		}
		lse := logSumExp(x, 1/t)
		for _, v := range top {
			h -= math.Exp(v/t-lse) * (v/t - lse)
		}
		return h
	}
}

// largestLogits returns the entropy of the k largest logits, for the k that the first token shows: one number per token tells it from the others.
func largestLogits(o *stage.Outcome) []vocabularyForm {
	b := o.Case.B
	z, t := logitsOf(o.Case)
	if z == nil || len(o.Got) != len(b.Mask) || !(t > 0) {
		return nil
	}
	i := slices.Index(b.Mask, true)
	if i < 0 || math.IsNaN(o.Got[i]) {
		return nil
	}
	x := z.Data[i*z.Width : (i+1)*z.Width]
	const most = 1024 // logits: what programs keep for an entropy is fewer
	for _, f := range []struct {
		title        string
		renormalised bool
	}{{"of the softmax over its %d largest logits, not over the vocabulary", true}, {"−Σ p·ln p over its %d likeliest tokens, not over the vocabulary", false}} {
		near, at := math.Inf(1), 0
		for k := 2; k < min(z.Width, most); k++ {
			if d := math.Abs(ofLargest(k, f.renormalised)(x, 0, t) - o.Got[i]); d < near {
				near, at = d, k
			}
		}
		if at > 0 && near <= 1e-4*(1+math.Abs(o.Got[i])) {
			return []vocabularyForm{{"ENTROPY-FORM", fmt.Sprintf(f.title, at), ofLargest(at, f.renormalised)}}
		}
	}
	return nil
}
