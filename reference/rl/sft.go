package rl

import "math"

// IgnoreLabel marks a position without a label, as in torch's cross_entropy.
const IgnoreLabel = -100

// CrossEntropy returns the supervised loss −Σ ln p(label)/N over the rows of logits, n×vocab, whose label is not
// IgnoreLabel, and adds to dlogits its gradient (p − 1[j = label])/N. N is items, or the number of labels if items is 0;
// the Hugging Face trainer passes the labels of the whole batch (num_items_in_batch), so that micro-batches add up. Labels
// belong to the row that predicts them: shifting is the caller's.
//
// Ignored rows are not read. Without labels the loss is 0/0 = NaN, as torch's, unless items is given. A nil dlogits is
// allocated as zeros. It panics if a label is outside the vocabulary.
func CrossEntropy(dlogits, logits []float64, labels []int, vocab int, items float64) (loss float64, d []float64) {
	needLogits(logits, len(labels), vocab)
	var n float64
	for _, y := range labels {
		if y != IgnoreLabel {
			need(0 <= y && y < vocab, "rl: token id outside the vocabulary")
			n++
		}
	}
	dlogits = output(dlogits, len(logits))
	if items != 0 {
		n = items
	}
	var sum float64
	for r, y := range labels {
		if y == IgnoreLabel {
			continue
		}
		x, dx := logits[r*vocab:(r+1)*vocab], dlogits[r*vocab:(r+1)*vocab]
		top, s := softmaxSum(x, 1)
		sum += math.Log(s) - (x[y] - top)
		for j, v := range x {
			dx[j] += math.Exp(v-top) / s / n
		}
		dx[y] -= 1 / n
	}
	return sum / n, dlogits
}
