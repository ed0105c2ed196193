package model

// ScorerHead gives a sequence L scores from the state x of its last token, s_l = ⟨W_l, x⟩, with sums of float64: the layer score of transformers'
// models for sequence classification, a reward model where L is 1.
type ScorerHead struct{ W [][]float64 } // [L][C]

// Last returns the number of the last token of every sequence, whose states [Pass.Gather] gives. It panics if a sequence has none: there is
// nothing to score.
func (ScorerHead) Last(t Tokens) []int {
	last := make([]int, len(t.Starts)-1)
	for s := range last {
		if t.Starts[s] == t.Starts[s+1] {
			panic("model: scorer: a sequence without tokens")
		}
		last[s] = t.Starts[s+1] - 1
	}
	return last
}

// Forward returns the scores of the states x [N, C], [N, L].
func (h ScorerHead) Forward(x []float32) []float64 {
	var scores []float64
	for l, w := range h.W {
		one := ValueHead{W: w}.Forward(x)
		if scores == nil {
			scores = make([]float64, len(one)*len(h.W))
		}
		for i, s := range one {
			scores[i*len(h.W)+l] = s
		}
	}
	return scores
}

// Backward adds to gradW [L][C] and dx [N, C] the gradients from ds [N, L], the gradient by the scores. dx is rounded once for every label.
func (h ScorerHead) Backward(gradW [][]float64, dx, x []float32, ds []float64) {
	d, none := make([]float64, len(ds)/max(1, len(h.W))), 0.0
	for l, w := range h.W {
		for i := range d {
			d[i] = ds[i*len(h.W)+l]
		}
		ValueHead{W: w}.Backward(gradW[l], &none, dx, x, d)
	}
}
