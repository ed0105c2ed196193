package fault

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// preferenceEdits returns edits of what a preference loss reads of its pairs: answers of other pairs, the mean of a micro-batch before the loss of each pair,
// and log-probs per token that the padded width divides.
func preferenceEdits(o *stage.Outcome) []edit {
	if !slices.Contains(pairOutputs, o.Check.ID) || o.Case.B.Rows < 2 {
		return nil
	}
	var list []edit
	add := func(id, title string, in input) {
		list = append(list, edit{id: id, title: title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(in, c, ch) }})
	}
	for _, s := range []struct {
		id, title string
		names     []string
	}{
		{"DPO-PAIR-ROWS", "the policy's log-probs of the rejected answers", []string{"logp_rejected"}},
		{"DPO-PAIR-ROWS", "the policy's log-probs of the chosen answers", []string{"logp_chosen"}},
		{"DPO-PAIR-ROWS", "the rejected answers", []string{"logp_rejected", "ref_rejected", "rejected_tokens"}},
		{"DPO-PAIR-ROWS", "the chosen answers", []string{"logp_chosen", "ref_chosen", "chosen_tokens"}},
		{"DPO-REFERENCE-ROWS", "the reference's log-probs of the rejected answers", []string{"ref_rejected"}},
		{"DPO-REFERENCE-ROWS", "the reference's log-probs of the chosen answers", []string{"ref_chosen"}},
	} {
		for _, m := range rowMoves {
			add(s.id, s.title+" are those of "+m.title, ofPairs(s.names, func(c *stage.Case, x []float64) []float64 { return ofMicroBatch(c, x, m.from) }))
		}
	}
	answers := []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"}
	add("DPO-MEAN-INSIDE", "the loss of every pair is that of the mean margin of its micro-batch", ofPairs(answers, func(c *stage.Case, x []float64) []float64 {
		y := make([]float64, len(x))
		for _, f := range c.B.Files {
			m := total(x[f.Lo:f.Hi]) / float64(f.Hi-f.Lo)
			for r := f.Lo; r < f.Hi; r++ {
				y[r] = m
			}
		}
		return y
	}))
	return append(list, edit{id: "DPO-PER-TOKEN", title: "the log-probs of all answers are divided by one number, as the padded width is, not by the tokens of each", changes: mostChanges,
		foreign: true, predict: perOneNumber})
}

// ofPairs returns the input in which numbers per pair are changed, those of them that the batch has; the first has to be there.
func ofPairs(names []string, change func(c *stage.Case, x []float64) []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, other := c.B, false
		for i, name := range names {
			x := c.B.Row(name)
			if len(x) != c.B.Rows {
				if i == 0 {
					return nil, nil, false
				}
				continue
			}
			y := change(c, x)
			other = other || !slices.Equal(x, y)
			b = b.With(name, y)
		}
		return b, c.Set, other
	}
}

// perOneNumber predicts an output of log-probs per token under one whole number of tokens for all answers, of those that no answer is longer than.
func perOneNumber(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const most = 512
	n, m, got := c.B.Row("chosen_tokens"), c.B.Row("rejected_tokens"), c.B.Tensors[ch.Output]
	if got == nil || len(n) != c.B.Rows || len(m) != c.B.Rows {
		return nil
	}
	longest := max(slices.Max(n), slices.Max(m))
	best := closest{got: got.Data}
	for width := longest; width <= min(4*longest, longest+most); width++ {
		best.consider(under(ofPairs([]string{"chosen_tokens", "rejected_tokens"}, func(_ *stage.Case, x []float64) []float64 {
			return slices.Repeat([]float64{width}, len(x))
		}), c, ch))
	}
	return best.p
}
