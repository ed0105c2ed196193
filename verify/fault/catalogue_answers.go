package fault

import (
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// answerLoss is the loss of a labelled answer in place of the declared one.
type answerLoss struct {
	id, title string
	of        func(o rl.UnpairedOptions, policy, reference, z float64, good bool) float64
	needs     func(o rl.UnpairedOptions) bool // nil: always
}

// declaredAnswer is the declared loss of an answer.
func declaredAnswer(o rl.UnpairedOptions, policy, reference, z float64, good bool) float64 {
	loss, _ := rl.Unpaired(nil, nil, []float64{policy}, []float64{reference}, []bool{good}, z, o)
	return loss[0]
}

// argument is x of the sigmoid: ±β·(g − z) or ±(β·g − z).
func argument(o rl.UnpairedOptions, g, z float64, good bool) float64 {
	x := o.Beta * (g - z)
	if o.Kind == rl.UnpairedBCO {
		x = o.Beta*g - z
	}
	if !good {
		x = -x
	}
	return x
}

func weightOf(o rl.UnpairedOptions, good bool) float64 {
	if good {
		return o.Desirable
	}
	return o.Undesirable
}

func ofKTO(o rl.UnpairedOptions) bool { return o.Kind == rl.UnpairedKTO }
func ofBCO(o rl.UnpairedOptions) bool { return o.Kind == rl.UnpairedBCO }

var answerLosses = []answerLoss{
	{id: "DPO-NO-REFERENCE", title: "the loss of labelled answers leaves the reference out",
		of: func(o rl.UnpairedOptions, p, _, z float64, good bool) float64 {
			return declaredAnswer(o, p, 0, z, good)
		}},
	{id: "DPO-BETA", title: "β is left out of the loss of labelled answers",
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			o.Beta = 1
			return declaredAnswer(o, p, r, z, good)
		}},
	{id: "DPO-BETA", title: "β enters the loss of labelled answers twice: β²",
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			o.Beta *= o.Beta
			return declaredAnswer(o, p, r, z, good)
		}},
	{id: "KTO-LABELS", of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
		return declaredAnswer(o, p, r, z, !good)
	}},
	{id: "KTO-LABELS", title: "bad answers are treated as good ones: the argument of their sigmoid has the sign of the good ones'",
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			o.Desirable = weightOf(o, good)
			return declaredAnswer(o, p, r, z, true)
		}},
	{id: "KTO-WEIGHTS", needs: func(o rl.UnpairedOptions) bool { return o.Desirable != o.Undesirable },
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			o.Desirable, o.Undesirable = o.Undesirable, o.Desirable
			return declaredAnswer(o, p, r, z, good)
		}},
	{id: "KTO-REFERENCE-POINT", title: "the reference point is left out", of: func(o rl.UnpairedOptions, p, r, _ float64, good bool) float64 {
		return declaredAnswer(o, p, r, 0, good)
	}},
	{id: "KTO-REFERENCE-POINT", title: "the reference point is added in place of subtracted",
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			return declaredAnswer(o, p, r, -z, good)
		}},
	{id: "KTO-REFERENCE-POINT", title: "the reference point, an estimate of KL, is not multiplied by β", needs: ofKTO,
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			return declaredAnswer(o, p, r, z/o.Beta, good)
		}},
	{id: "KTO-REFERENCE-POINT", title: "the reference point, a mean of rewards, is multiplied by β once more", needs: ofBCO,
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			return declaredAnswer(o, p, r, z*o.Beta, good)
		}},
	{id: "KTO-FORMULA", title: "the loss is −ln σ(x) in place of 1 − σ(x)", needs: ofKTO,
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			return weightOf(o, good) * softplus(-argument(o, p-r, z, good))
		}},
	{id: "KTO-FORMULA", title: "the loss is 1 − σ(x) in place of −ln σ(x)", needs: ofBCO,
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			return weightOf(o, good) * sigmoid(-argument(o, p-r, z, good))
		}},
	{id: "KTO-FORMULA", title: "the loss is −σ(x) in place of 1 − σ(x)", needs: ofKTO,
		of: func(o rl.UnpairedOptions, p, r, z float64, good bool) float64 {
			return -weightOf(o, good) * sigmoid(argument(o, p-r, z, good))
		}},
}

var answerOutputs = []string{"preference/logp_chosen", "preference/logp_rejected", "preference/ref_chosen", "preference/ref_rejected"}

// tokenFaults are sums of other tokens than those of the answer, or means of them.
func tokenFaults() []*Hypothesis {
	var list []*Hypothesis
	for _, f := range []struct {
		title  string
		mean   bool
		change func(row []bool)
	}{
		{"the log-probs of prompt and padding are summed, too", false, everyCell},
		{"the log-probs of the prompt are summed, too", false, func(row []bool) {
			_, last := firstLast(row)
			everyCell(row[:max(last, 0)])
		}},
		{"the log-probs of the padding behind the answer are summed, too", false, func(row []bool) {
			if first, _ := firstLast(row); first >= 0 {
				everyCell(row[first:])
			}
		}},
		{"the mask of the answer is one column late", false, late},
		{"the mask of the answer is one column early", false, early},
		{"the last token of the answer, its EOS, is left out", false, withoutLast},
		{"the first token of the answer is left out", false, withoutFirst},
		{"one column behind the answer is summed, too", false, oneMore},
		{"the log-probs of the answer are averaged over its tokens", true, func([]bool) {}},
		{"the log-probs of all columns are averaged", true, everyCell},
	} {
		list = append(list, &Hypothesis{ID: "DPO-TOKENS", Title: f.title, Checks: answerOutputs, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			x, mask, cols := c.AnswerTokens(ch.Output)
			if x == nil || cols == 0 || maskOfOther(c, ch.Output) != nil {
				return nil
			}
			m := append([]bool(nil), mask...)
			for r := range c.B.Rows {
				f.change(m[r*cols : (r+1)*cols])
			}
			return c.AnswerSum(x, m, cols, f.mean, nil)
		}})
	}
	for _, output := range answerOutputs {
		id, whose := "DPO-SWAPPED", "the policy's"
		if strings.Contains(output, "ref_") {
			id, whose = "DPO-REFERENCE-SIGN", "the reference's"
		}
		list = append(list, &Hypothesis{ID: id, Title: whose + " log-probs of the answer are those of the other one, with its mask: the halves of the batch are exchanged", Checks: []string{output},
			Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				x, _, cols := c.AnswerTokens(ch.Output)
				other := maskOfOther(c, ch.Output)
				if other == nil {
					return nil
				}
				return c.AnswerSum(x, other, cols, false, nil)
			}})
	}
	return list
}

// maskOfOther returns the mask of the other answer of each pair where the log-probs of tokens are 0 outside it and not within, as those that were
// multiplied by it are, and it is not that of the answer; nil else.
func maskOfOther(c *stage.Case, output string) []bool {
	other := map[string]string{"logp_chosen": "logp_rejected", "logp_rejected": "logp_chosen", "ref_chosen": "ref_rejected", "ref_rejected": "ref_chosen"}[output]
	x, mask, cols := c.AnswerTokens(output)
	_, m, width := c.AnswerTokens(other)
	if x == nil || m == nil || cols != width {
		return nil
	}
	differ := false
	for i, on := range m {
		if on != (x[i] != 0) {
			return nil
		}
		differ = differ || on != mask[i]
	}
	if !differ {
		return nil
	}
	return m
}

// answerFaults makes the bugs of answers hypotheses.
func answerFaults() []*Hypothesis {
	var list []*Hypothesis
	for _, l := range answerLosses {
		list = append(list, &Hypothesis{ID: l.id, Title: l.title, Checks: []string{"preference/unpaired_loss"}, Predict: func(c *stage.Case, _ *stage.Check) *stage.Prediction {
			beta := c.Set.Value("dpo.beta")
			if beta.Kind() != convention.Number {
				return nil
			}
			o := rl.UnpairedOptions{Beta: beta.Num(), Desirable: c.Default("kto.desirable", 1), Undesirable: c.Default("kto.undesirable", 1)}
			o.Kind, _ = rl.ParseUnpairedKind(c.B.Meta.Algorithm)
			if l.needs != nil && !l.needs(o) {
				return nil
			}
			return c.Answers(func(policy, reference, z float64, good bool) float64 { return l.of(o, policy, reference, z, good) })
		}})
	}
	return list
}

var (
	rewardMetrics = []string{"scalars/rewards_chosen", "scalars/rewards_rejected", "scalars/rewards_margins"}
	logpMetrics   = []string{"scalars/logps_chosen", "scalars/logps_rejected"}
	pairMetrics   = []string{"scalars/rewards_chosen", "scalars/rewards_rejected", "scalars/rewards_margins", "scalars/rewards_accuracies", "scalars/logps_chosen", "scalars/logps_rejected"}
)

// of either grid: what a change of pairs is where the rows are labelled answers.
func either(ofPairs, ofAnswers input) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		if c.B.Row("logp_policy") != nil {
			return ofAnswers(c)
		}
		return ofPairs(c)
	}
}

// swapped returns the input in which pairs of tensors stand in each other's place.
func swapped(names ...string) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b := c.B
		for i := 0; i < len(names); i += 2 {
			x, y := c.B.Row(names[i]), c.B.Row(names[i+1])
			if x == nil || y == nil {
				return nil, nil, false
			}
			b = b.With(names[i], y).With(names[i+1], x)
		}
		return b, c.Set, true
	}
}

// overTokens returns the input whose log-probs are divided by the tokens of the answers.
func overTokens(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b := c.B
	for _, n := range [][2]string{{"logp_chosen", "chosen_tokens"}, {"ref_chosen", "chosen_tokens"}, {"logp_rejected", "rejected_tokens"}, {"ref_rejected", "rejected_tokens"}} {
		x, tokens := b.Row(n[0]), b.Row(n[1])
		switch {
		case x == nil:
			continue
		case tokens == nil:
			return nil, nil, false
		}
		y := eachOf(len(x), func(r int) float64 { return x[r] / tokens[r] })
		b = b.With(n[0], y)
	}
	return b, c.Set, true
}

// tiesFirst returns the input in which the chosen answer of a pair of equal rewards has the larger one.
func tiesFirst(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	p, q, pr, qr := c.B.Row("logp_chosen"), c.B.Row("logp_rejected"), c.B.Row("ref_chosen"), c.B.Row("ref_rejected")
	if p == nil || q == nil || pr == nil || qr == nil {
		return nil, nil, false
	}
	x, some := make([]float64, len(p)), false
	for r := range x {
		if x[r] = p[r]; p[r] == pr[r] && q[r] == qr[r] || p[r] == q[r] && pr[r] == qr[r] {
			x[r], some = p[r]+1, true
		}
	}
	return c.B.With("logp_chosen", x), c.Set, some
}

var preferenceMetricFaults = []*Hypothesis{
	{ID: "METRIC-REWARD-BETA", Checks: rewardMetrics, Input: number("dpo.beta", func(float64) float64 { return 1 })},
	{ID: "METRIC-REWARD-BETA", Checks: rewardMetrics, Title: "the logged rewards are multiplied by β twice", Input: number("dpo.beta", func(b float64) float64 { return b * b })},
	{ID: "METRIC-REWARD-REFERENCE", Checks: append([]string{"scalars/rewards_accuracies"}, rewardMetrics...),
		Input: either(noReference, constant("logp_reference", 0))},
	{ID: "METRIC-REWARD-REFERENCE", Checks: rewardMetrics, Title: "the logged rewards of answers are the policy's log-probs, without β and the reference",
		Input: both(either(noReference, constant("logp_reference", 0)), number("dpo.beta", func(float64) float64 { return 1 }))},
	{ID: "METRIC-PAIR-SWAPPED", Checks: pairMetrics,
		Input: either(swapped("logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"), token("desirable", func(_ *stage.Case, x []float64) []float64 {
			return mapped(x, func(v float64) float64 { return 1 - v })
		}))},
	{ID: "METRIC-PAIR-TOKENS", Checks: pairMetrics, Input: overTokens},
	{ID: "METRIC-LOGPS-REFERENCE", Checks: logpMetrics,
		Input: either(both(instead("logp_chosen", "ref_chosen"), instead("logp_rejected", "ref_rejected")), instead("logp_policy", "logp_reference"))},
	{ID: "METRIC-ACCURACY", Checks: []string{"scalars/rewards_accuracies"}, Title: "pairs of equal rewards count as right", Input: tiesFirst},
	{ID: "METRIC-ACCURACY", Checks: []string{"scalars/rewards_accuracies"}, Title: "the logged accuracy is the share of chosen answers with a reward above 0",
		Input: both(constant("logp_rejected", 0), constant("ref_rejected", 0))},
}
