package nn

import (
	"fmt"
	"slices"

	"plumbline/reference/ad"
)

// LogProb returns the log-probability of a token under each row of logits [..., V], as [...]:
//
//	y = x_token − ln Σ_v e^{x_v}
//
// It panics if tokens does not hold one id in [0, V) for each row.
func LogProb(logits *ad.Var, tokens []int) *ad.Var {
	s := logits.Shape()
	return ad.Reshape(ad.Gather(ad.LogSoftmax(logits, -1), 1, tokens), s[:len(s)-1]...)
}

// CrossEntropy returns the mean of −log p(target) over the rows of logits [..., V] whose target is not ignore:
//
//	L = −Σ_{r: target_r ≠ ignore} log p_r(target_r) / #{r: target_r ≠ ignore}
//
// as torch.nn.functional.cross_entropy, whose ignore_index is −100. An ignored row has no influence on the value, and its
// gradient is exactly 0. With every row ignored the mean of nothing is NaN. Targets are those of the rows they stand at:
// shifting them by one for a language model is the caller's.
//
// It panics if targets does not hold for each row ignore or an id in [0, V).
func CrossEntropy(logits *ad.Var, targets []int, ignore int) *ad.Var {
	s := logits.Shape()
	rows := 1
	for _, d := range s[:len(s)-1] {
		rows *= d
	}
	if len(targets) != rows {
		panic(fmt.Sprintf("nn: cross-entropy: %d targets for logits of shape %v", len(targets), s))
	}
	// The rows that count are picked out, so that what an ignored one holds cannot matter.
	var kept, at []int
	for r, v := range targets {
		if v != ignore {
			kept, at = append(kept, v), append(at, r)
		}
	}
	table := ad.Reshape(logits, rows, s[len(s)-1])
	if !slices.Contains(targets, ignore) {
		return ad.Neg(ad.Mean(LogProb(table, kept), false))
	}
	return ad.Neg(ad.Mean(LogProb(ad.Embedding(table, at, len(at)), kept), false))
}
