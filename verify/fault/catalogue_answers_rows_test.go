package fault_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/internal/format/dump"
)

// answerBatch is a file of answers of different lengths behind prompts of different lengths, whose ref_rejected is what a program makes of tokens and masks.
func answerBatch(sum func(tokens, mask [][]float64, r int) float64) *dump.Batch {
	const rows, cols = 9, 20
	g := rand.New(rand.NewPCG(4, 11))
	var tokens, mask [][]float64
	for r := range rows {
		x, m := make([]float64, cols), make([]float64, cols)
		for t := range cols {
			x[t] = float64(float32(-0.1 - 3*g.ExpFloat64()))
			if t >= 1+r%3 && t < 8+r {
				m[t] = 1
			}
		}
		tokens, mask = append(tokens, x), append(mask, m)
	}
	sums, other := make([]float64, rows), make([]float64, rows)
	for r := range sums {
		sums[r], other[r] = sum(tokens, mask, r), -3-float64(r)
	}
	b := written("dpo", rows, 1, slices.Repeat([]bool{true}, rows), map[string][]float64{"ref_rejected": sums, "logp_rejected": other,
		"ref_rejected_token_logps": slices.Concat(tokens...), "rejected_mask": slices.Concat(mask...)})
	b.Tensors["ref_rejected_token_logps"].Width, b.Tensors["rejected_mask"].Width = cols, cols
	return b
}

func over(x, mask []float64) (sum float64) {
	for i, v := range x {
		sum += v * mask[i]
	}
	return sum
}

// Log-probs of answers in any other order, whole or of their tokens alone, and such that one width divides.
func TestAnswersOfOtherRows(t *testing.T) {
	set := pairOptions(t, "sigmoid", .1, 0)
	right := answerBatch(func(x, m [][]float64, r int) float64 { return over(x[r], m[r]) })
	order := []int{4, 7, 1, 8, 0, 6, 2, 3, 5}
	for _, c := range []struct {
		id string
		of func(x, m [][]float64, r int) float64
	}{
		{"DPO-REFERENCE-ROWS", func(x, m [][]float64, r int) float64 { return over(x[order[r]], m[order[r]]) }},
		{"DPO-REFERENCE-ROWS", func(x, m [][]float64, r int) float64 { return over(x[8-r], m[8-r]) }},
		{"DPO-REFERENCE-ROWS", func(x, m [][]float64, r int) float64 { return over(x[r], m[order[r]]) }},
		{"DPO-TOKENS", func(x, m [][]float64, r int) float64 { return over(x[r], m[r]) / 20 }},
	} {
		requireFault(t, c.id, "preference/ref_rejected", answerBatch(c.of), set, right)
	}
}
