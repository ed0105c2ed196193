package fault

import (
	"fmt"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
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
	add("DPO-MEAN-INSIDE", "the loss of every pair is that of the mean margin of its micro-batch", ofPairs(answers, fileMeans))
	list = append(list, mixEdits(o)...)
	return append(list, edit{id: "DPO-PER-TOKEN", title: "the log-probs of all answers are divided by one number, as the padded width is, not by the tokens of each", changes: mostChanges,
		foreign: true, predict: perOneNumber})
}

// mixEdits are sums of preference losses by other weights than the declared ones: none, equal parts, one that is left out, or each other's.
func mixEdits(o *stage.Outcome) (list []edit) {
	mix := o.Case.Set.Value("dpo.mix")
	if mix.Kind() != convention.Enum {
		return nil
	}
	declared, err := rl.ParseDPOSum(mix.Text())
	if err != nil || len(declared) < 2 {
		return nil
	}
	nll := numberOr(o.Case, "dpo.nll_weight", 0)
	add := func(title string, nll float64, weight func(i int) float64) {
		sum := slices.Clone(declared)
		for i := range sum {
			sum[i].Weight = weight(i)
		}
		if nll == numberOr(o.Case, "dpo.nll_weight", 0) && slices.Equal(sum, declared) {
			return
		}
		list = append(list, edit{id: "DPO-TERMS", title: title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				v, err := convention.Parse("dpo.mix", sum.String())
				set := c.Set.With("dpo.mix", v, c.Set.Origin("dpo.mix"))
				if c.Set.Value("dpo.nll_weight").Kind() == convention.Number {
					set = set.With("dpo.nll_weight", convention.NumberValue(nll), c.Set.Origin("dpo.nll_weight"))
				}
				return c.B, set, err == nil
			}, c, ch)
		}})
	}
	n := len(declared)
	one := func(int) float64 { return 1 }
	if nll != 0 && nll != 1 {
		add("the losses that are summed have no weights, nor has the cross-entropy beside them: each counts 1", 1, one)
	}
	add("the losses of pairs that are summed have no weights: each counts 1", nll, one)
	add("the losses that are summed are averaged, whatever their weights are", nll, func(int) float64 { return 1 / float64(n) })
	add("the weights of the losses that are summed are in the reverse order", nll, func(i int) float64 { return declared[n-1-i].Weight })
	for k, t := range declared {
		add(fmt.Sprintf("%s is left out of the losses that are summed", t.Kind), nll, func(i int) float64 { return declared[i].Weight * float64(boolToInt(i != k)) })
		add(fmt.Sprintf("%s has no weight among the losses that are summed", t.Kind), nll, func(i int) float64 {
			if i == k {
				return 1
			}
			return declared[i].Weight
		})
	}
	return list
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

// padded is how many columns the longest answer of a file ends in, prompt included, to which its rows are padded.
func padded(c *stage.Case, f dump.FileInfo) (cols int) {
	for _, name := range []string{"chosen_mask", "rejected_mask"} {
		m := c.B.Tensors[name]
		for i, on := range m.Data[f.Lo*m.Width : f.Hi*m.Width] {
			if on == 1 {
				cols = max(cols, i%m.Width+1)
			}
		}
	}
	return cols
}

// perOneNumber predicts an output of log-probs per token under one whole number of tokens for all answers of a micro-batch, the width of its grid, or of
// all, of those that no answer is longer than.
func perOneNumber(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const most = 512
	n, m, got := c.B.Row("chosen_tokens"), c.B.Row("rejected_tokens"), c.B.Tensors[ch.Output]
	if got == nil || len(n) != c.B.Rows || len(m) != c.B.Rows {
		return nil
	}
	longest := max(slices.Max(n), slices.Max(m))
	best := closest{got: got.Data}
	for more := range 3 { // a grid of log-probs has a column less than that of the tokens, which may be padded by one more
		if c.B.Tensors["chosen_mask"] == nil || c.B.Tensors["rejected_mask"] == nil {
			break
		}
		best.consider(under(ofPairs([]string{"chosen_tokens", "rejected_tokens"}, func(c *stage.Case, x []float64) []float64 {
			y := make([]float64, len(x))
			for _, f := range c.B.Files {
				for r := f.Lo; r < f.Hi; r++ {
					y[r] = float64(padded(c, f) + more)
				}
			}
			return y
		}), c, ch))
	}
	for width := longest; width <= min(4*longest, longest+most); width++ {
		best.consider(under(ofPairs([]string{"chosen_tokens", "rejected_tokens"}, func(_ *stage.Case, x []float64) []float64 {
			return slices.Repeat([]float64{width}, len(x))
		}), c, ch))
	}
	return best.p
}
