package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// answerSums are the log-probs of answers, by the log-probs of their tokens and the mask of these.
var answerSums = []struct{ output, tokens, mask string }{
	{"logp_chosen", "chosen_token_logps", "chosen_mask"},
	{"logp_rejected", "rejected_token_logps", "rejected_mask"},
	{"ref_chosen", "ref_chosen_token_logps", "chosen_mask"},
	{"ref_rejected", "ref_rejected_token_logps", "rejected_mask"},
}

func answerChecks() []*Check {
	var list []*Check
	for _, a := range answerSums {
		list = append(list, &Check{
			ID: "preference/" + a.output, Stage: convention.LogP, Output: a.output,
			Title:   a.output + ": log-prob of an answer",
			Formula: a.output + " = Σ " + a.mask + "·" + a.tokens + ", divided by the tokens where dpo.logp_mean says so",
			Source:  "Rafailov et al. 2023, Eq. 7: π(y|x) of the whole answer; TRL 1.16 DPOTrainer, ORPOTrainer (means)",
			Fix:     "sum over the tokens of the answer alone, the EOS among them: prompt and padding do not belong to it",
			Applies: func(c *Case) bool { return c.preference() && !c.unpaired() && c.Has(a.tokens) },
			Predict: func(c *Case) *Prediction { return c.answerSum(a.tokens, a.mask) },
		})
	}
	return append(list, answerTokensCheck())
}

// AnswerTokens returns the log-probs of the tokens that an output sums and their mask, rows by columns; nil where they were not dumped.
func (c *Case) AnswerTokens(output string) (x []float64, mask []bool, cols int) {
	for _, a := range answerSums {
		t, m := c.B.Tensors[a.tokens], c.B.Tensors[a.mask]
		if a.output != output || t == nil || m == nil || t.Width != m.Width {
			continue
		}
		mask = make([]bool, len(m.Data))
		for i, v := range m.Data {
			mask[i] = v == 1
		}
		return t.Data, mask, t.Width
	}
	return nil, nil, 0
}

// Widths of tokens and mask that differ leave open which belongs to which.
func (c *Case) answerSum(tokens, mask string) *Prediction {
	t, m := c.B.Tensors[tokens], c.B.Tensors[mask]
	switch {
	case m == nil:
		note(&c.Absent, mask)
	case t.Width != m.Width:
		note(&c.Absent, mask+" of the columns of "+tokens)
	}
	mean := false
	if kind := c.lossTerms()[0].Kind; !c.mixed() && (kind == rl.DPOIPO || kind == rl.DPOORPO) {
		mean = c.Bool("dpo.logp_mean")
	} else {
		mean = c.BoolOr("dpo.logp_mean", false)
	}
	if !c.OK() {
		return nil
	}
	on := make([]bool, len(m.Data))
	for i, v := range m.Data {
		on[i] = v == 1
	}
	return c.AnswerSum(t.Data, on, t.Width, mean, c.rounding(tokens))
}

// AnswerSum predicts the sums, or means, of the log-probs of tokens over a mask, with errors of their own or nil, off by fold(n) + 2u of the sum
// of magnitudes.
func (c *Case) AnswerSum(x []float64, mask []bool, cols int, mean bool, err []float64) *Prediction {
	p := &Prediction{Want: make([]float64, c.B.Rows), Bound: make([]float64, c.B.Rows)}
	counts := make([]float64, c.B.Rows)
	in := Input{Err: err}
	for r := range c.B.Rows {
		var size, e float64
		n := 0
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask[i] {
				p.Want[r] += x[i]
				size += math.Abs(x[i])
				e += in.E(i)
				n++
			}
		}
		by := 1.0
		if mean {
			by = float64(n)
		}
		// A masked product adds zeros, which round nothing, but may move the terms to other branches of the tree: all columns count.
		counts[r], p.Want[r], p.Bound[r] = float64(n), p.Want[r]/by, (e+(foldError(cols, c.Unit)+2*(c.Unit+tol.U64))*size)/by
	}
	p.Terms = func(r int) []Term { return []Term{{"tokens", counts[r]}} }
	return p
}
