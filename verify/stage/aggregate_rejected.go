package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
)

// Names of verl's that say how its loss or its batch rejects what the engine sampled far from the policy.
const (
	rejection = "algorithm.rollout_correction.rollout_rs"
	bypass    = "algorithm.rollout_correction.bypass_mode"
)

// rejects reports whether tokens or responses are declared to be taken out of the mask.
func (c *Case) rejects() bool {
	rule, _ := c.Set.Fact(rejection)
	_, is := rule.(string)
	return is
}

// rejectsTokens reports whether tokens are taken out and not responses alone, which leave those of the others as they are (verl 0.9.1,
// rollout_corr_helper.py: token_k1, token_k2 and token_k3, several rules with commas between them).
func (c *Case) rejectsTokens() bool {
	rule, _ := c.Set.Fact(rejection)
	text, _ := rule.(string)
	return strings.Contains(text, "token_")
}

// weighedCells are the tokens that importance weights were made of where a rejection shrinks the mask behind them: those of the mask, and those that have a weight
// outside of it (verl 0.9.1, rollout_corr_helper.py: weights are of the mask before rollout_rs).
func weighedCells(b *dump.Batch) []bool {
	mask, w := slices.Clone(b.Mask), b.Token("is_weights")
	outside, filled := 0, 0
	for i := range w {
		if b.Mask[i] {
			continue
		}
		if outside++; w[i] != 0 && !math.IsNaN(w[i]) {
			mask[i] = true
			filled++
		}
	}
	if filled == outside { // a fill
		return b.Mask
	}
	return mask
}

// zeroed are the log-probs of the trainer, far from the engine's in the rows whose weights are all 0: they were outside of the bounds with the tokens that a
// rejection has taken since, and what is left of them cannot say so.
func zeroed(b *dump.Batch, old, gen []float64) []float64 {
	const far = 30 // e³⁰ is outside of any bounds
	y, w := slices.Clone(old), b.Token("is_weights")
	for r := range b.Rows {
		lo, hi := r*b.Cols, (r+1)*b.Cols
		if slices.ContainsFunc(w[lo:hi], func(x float64) bool { return x != 0 }) {
			continue
		}
		for i := lo; i < hi; i++ {
			y[i] = gen[i] + far
		}
	}
	return y
}

// countsRejected reports whether the loss rejects by a mask of its own, as verl's compute_policy_loss_bypass_mode does: the tokens that it divides
// by are counted in the batch, before.
func (c *Case) countsRejected() bool {
	on, _ := c.Set.Fact(bypass)
	return on == true && c.rejects()
}

// beforeRejection judges a count of tokens that is above that of the mask where the mask is dumped after the rejection: it is that of the responses as
// attention shows them, or nothing tells.
func (c *Case) beforeRejection(tokens, got float64) *Assertion {
	for _, w := range c.otherCounts() {
		if w.n == got && w.id == "AGG-COUNTS-MASKED" {
			return &Assertion{Checked: 1, Note: fmt.Sprintf("%s tokens before the rejection, %s in the mask", plain(got), plain(tokens))}
		}
	}
	note(&c.Absent, "the mask before the rejection")
	return nil
}

// Rejected reports whether some row has no token in the mask although attention shows it a response that is shorter than others: it was taken out, and
// not for its length. verl counts the tokens of its batch before it rejects (losses.ppo_loss, batch_num_tokens).
func Rejected(b *dump.Batch) bool {
	att := b.Tensors["attention_mask"]
	if att == nil || att.Width < b.Cols || len(att.Data) != b.Rows*att.Width {
		return false
	}
	seen, empty := make([]int, b.Rows), make([]bool, b.Rows)
	longest := 0
	for r := range seen {
		empty[r] = true
		for t := range b.Cols { // the last columns, behind the prompt
			empty[r] = empty[r] && !b.Mask[r*b.Cols+t]
			if att.Data[r*att.Width+att.Width-b.Cols+t] != 0 {
				seen[r]++
			}
		}
		longest = max(longest, seen[r])
	}
	for r, n := range seen {
		if empty[r] && n > 0 && n < longest {
			return true
		}
	}
	return false
}
