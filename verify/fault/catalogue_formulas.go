package fault

import (
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// formulaFaults are slips in one formula: a term that is missing, a bound on the wrong side, a tensor in place of another.
var formulaFaults = slices.Concat(klForms(), policyForms(), gaeForms(), scoreForms(), correctedForms(), []*Hypothesis{
	{ID: "OLD-IS-REF", Rows: []string{"P163"}, Checks: ratioed,
		Title:   "the reference's log-probs stand in for the old ones",
		Cause:   "logp_ref is taken where logp_old belongs",
		Fix:     "ρ = exp(logp_new − logp_old)",
		Predict: policyTerm(1, instead("logp_old", "logp_ref"))},
	{ID: "ADV-SHIFT", Rows: []string{"C5", "P163"}, Checks: policyOutputs,
		Title:   "the loss reads the advantages one position early",
		Cause:   "advantages and log-probs are cut by different slices",
		Fix:     "cut both by [p−1 : p+r−1]",
		Predict: policyTerm(1, shifted("advantages", -1))},
	{ID: "ADV-SHIFT", Rows: []string{"C5", "P163"}, Checks: policyOutputs,
		Title:   "the loss reads the advantages one position late",
		Cause:   "advantages and log-probs are cut by different slices",
		Fix:     "cut both by [p−1 : p+r−1]",
		Predict: policyTerm(1, shifted("advantages", 1))},
	{ID: "ADV-NOT-WHITENED", Rows: []string{"C19"}, Checks: []string{"token_loss", "gradient/dlogp"},
		Title:   "the loss uses the advantages from before whitening",
		Cause:   "the whitened ones are stored, and the raw ones handed on",
		Fix:     "hand on what the whitening returns",
		Predict: unwhitened},
	{ID: "IS-TWICE", Rows: []string{"P210"}, Checks: []string{"token_loss", "gradient/dlogp"},
		Title: "the importance weights are multiplied in twice",
		Cause: "in the loss function, and by its caller",
		Fix:   "multiply the policy term by the weight once",
		Input: token("is_weights", func(_ *stage.Case, x []float64) []float64 {
			y := make([]float64, len(x))
			for i := range x {
				y[i] = float64(x[i] * x[i])
			}
			return y
		})},
	{ID: "KL-TIMES-WEIGHTS", Rows: []string{"P114"}, Checks: []string{"kl/token"},
		Title: "the estimate of KL is multiplied by the importance weights",
		Cause: "the weight is applied to the whole token loss",
		Fix:   "weight the policy term alone, or declare kl.under_is_weight",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, w := under(sameInput, c, ch), c.Optional("is_weights")
			if p == nil || len(w.X) != len(p.Want) {
				return nil
			}
			q := *p
			q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
			for i, x := range w.X {
				q.Want[i] *= x
				q.Bound[i] = q.Bound[i]*math.Abs(x) + 2*c.Unit*math.Abs(q.Want[i])
			}
			return &q
		}},
	{ID: "VALUE-TARGET", Rows: []string{"P171"}, Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Title: "the critic is fitted to the rewards of single tokens",
		Cause: "token_rewards stand where the returns belong",
		Fix:   "fit it to R = A + V",
		Input: instead("returns", "token_rewards")},
	{ID: "VALUE-TARGET", Rows: []string{"P171"}, Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Title: "the critic is fitted to the scores",
		Cause: "the score of a response stands where the returns belong",
		Fix:   "fit it to R = A + V",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			score := c.B.Row("scores")
			if score == nil || len(score) != c.B.Rows || c.B.Token("returns") == nil {
				return nil, nil, false
			}
			x := make([]float64, len(c.B.Mask))
			for i := range x {
				x[i] = score[i/c.B.Cols]
			}
			return c.B.With("returns", x), c.Set, true
		}},
	{ID: "VALUE-TARGET-SHIFT", Rows: []string{"C5", "P059"}, Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Title: "values and their targets are one position apart",
		Cause: "the two are cut by different slices",
		Fix:   "values of [p−1 : p+r−1], as for the logits",
		Input: shifted("returns", -1)},
	{ID: "VALUE-TARGET-SHIFT", Rows: []string{"C5", "P059"}, Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Title: "values and their targets are one position apart",
		Cause: "the two are cut by different slices",
		Fix:   "values of [p−1 : p+r−1], as for the logits",
		Input: shifted("returns", 1)},
	{ID: "GAE-VALUES-LATE", Rows: []string{"C5", "P059"}, Checks: []string{"gae"},
		Title:   "values are cut out one position late",
		Cause:   "the value slice is not that of the tokens",
		Fix:     "values of [p−1 : p+r−1], as for the logits",
		Predict: recursion(shifted("values", -1))},
	{ID: "GAE-REWARD-EARLY", Rows: []string{"P170", "P190"}, Checks: []string{"gae"},
		Title:   "the rewards are one position early",
		Cause:   "an index of one before the token",
		Fix:     "the reward of a token stands in its own column",
		Predict: recursion(shifted("token_rewards", -1))},
	{ID: "KL-OF-NEW", Rows: []string{"P003"}, Checks: []string{"kl", "reward/token"},
		Title: "the KL of the reward is that of the policy being trained, not of the one at the rollout",
		Cause: "logp_new is used where the rewards were made of logp_old",
		Fix:   "take the KL of the reward once, at the rollout",
		Input: instead("logp_old", "logp_new")},
	{ID: "IS-NORMALISED", Rows: []string{"P070"}, Checks: []string{"ratio/is_weights"},
		Title:   "the importance weights are divided by their mean",
		Cause:   "a self-normalised estimate that is not declared",
		Fix:     "declare tis.normalize, or leave the weights as they are",
		Predict: overTheirMean},
	{ID: "RETURNS-OF-NEW-VALUES", Rows: []string{"P162"}, Checks: []string{"gae/returns"},
		Title: "the returns are made of the values of the critic being trained",
		Cause: "A + V with V recomputed after the update",
		Fix:   "R = A + V, V of the rollout",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, v, lately := under(sameInput, c, ch), c.B.Token("values"), c.B.Token("values_new")
			if p == nil || len(v) != len(p.Want) || len(lately) != len(p.Want) {
				return nil
			}
			q := *p
			q.Want, q.Bound = slices.Clone(p.Want), slices.Clone(p.Bound)
			for i := range q.Want {
				q.Want[i] += lately[i] - v[i]
				q.Bound[i] += 4 * c.Unit * (math.Abs(lately[i]) + math.Abs(v[i]))
			}
			return &q
		}},
})

// unwhitened predicts an output of a policy loss whose advantages are A = R − V. That is a difference of rounded numbers: the errors
// of both are those of its bound.
func unwhitened(c *stage.Case, ch *stage.Check) *stage.Prediction {
	ret, v, adv := c.B.Token("returns"), c.B.Token("values"), c.B.Token("advantages")
	if ret == nil || v == nil || adv == nil {
		return nil
	}
	x, err := make([]float64, len(ret)), make([]float64, len(ret))
	for i := range x {
		x[i] = ret[i] - v[i]
		err[i] = 2 * c.Unit * (math.Abs(ret[i]) + math.Abs(v[i]))
	}
	p := policyTerm(1, token("advantages", func(*stage.Case, []float64) []float64 { return x }))(c, ch)
	if p == nil || len(p.Want) != len(x) {
		return p
	}
	for i, a := range x {
		if a != 0 { // the policy term is as many times its advantage as its error is
			p.Bound[i] += err[i] * math.Abs(p.Want[i]/a)
		}
	}
	return p
}

// correctedForms are bugs of the old log-probs where the ratio enters the estimate of KL as well as the policy term.
func correctedForms() []*Hypothesis {
	corrected := func(in input) input {
		return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if v := c.Set.Value("kl.grad"); v.Kind() != convention.Enum || v.Text() != "is_corrected" {
				return nil, nil, false
			}
			return in(c)
		}
	}
	coarse := token("logp_old", func(_ *stage.Case, x []float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = format.Round(x[i], format.BF16)
		}
		return y
	})
	var list []*Hypothesis
	for _, f := range []struct {
		id, title string
		in        input
	}{
		{"OLD-IS-REF", "the reference's log-probs stand in for the old ones", instead("logp_old", "logp_ref")},
		{"OLD-IS-GEN", "the engine's log-probs stand in for the old ones", instead("logp_old", "logp_gen")},
		{"OLD-RECOMPUTED", "the ratio is 1 everywhere: the old log-probs are those of the policy being trained", instead("logp_old", "logp_new")},
		{"OLD-ROWS-ROLLED", "the old log-probs belong to other rows", rolled("logp_old", 1)},
		{"OLD-ROWS-ROLLED-BACK", "the old log-probs belong to other rows", rolled("logp_old", -1)},
		{"OLD-SHIFT", "the old log-probs are one position late", shifted("logp_old", 1)},
		{"OLD-SHIFT-BACK", "the old log-probs are one position early", shifted("logp_old", -1)},
		{"OLD-BF16", "the old log-probs are rounded to bfloat16 before the ratio", coarse},
	} {
		list = append(list, &Hypothesis{ID: f.id, Rows: []string{"P163", "P023", "P162"}, Checks: []string{"kl/token", "gradient/dlogp"},
			Title: f.title, Cause: "the ratio, which multiplies the estimate of KL too, is made of the wrong log-probs", Fix: "ρ = exp(logp_new − logp_old), of the log-probs at the start of the update",
			Input: corrected(f.in)})
	}
	return append(list,
		&Hypothesis{ID: "OLD-BF16", Rows: []string{"P093"}, Checks: []string{"token_loss", "gradient/dlogp"},
			Title: "the old log-probs are rounded to bfloat16 before the ratio", Cause: "they are stored in 16 bits between rollout and update", Fix: "keep log-probs in float32",
			Predict: policyTerm(1, coarse)},
		&Hypothesis{ID: "GRAD-CUT-OFF", Rows: []string{"P122"}, Checks: []string{"gradient"},
			Title: "gradients are cut off at a bound", Cause: "a clamp by value, in a hook or in the loss", Fix: "clip the norm of the parameters' gradient, behind the backward pass", Predict: cutOff})
}

// overTheirMean predicts importance weights that are divided by their mean over the mask, of the step or of a file.
func overTheirMean(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	if p == nil || got == nil || len(p.Want) != len(c.B.Mask) || len(got.Data) != len(p.Want) {
		return nil
	}
	mean := func(lo, hi int) float64 {
		var sum, n float64
		for i := lo; i < hi; i++ {
			if c.B.Mask[i] {
				sum += p.Want[i]
				n++
			}
		}
		return sum / max(n, 1)
	}
	whole := mean(0, len(p.Want))
	over := func(by func(f int) float64) (*stage.Prediction, float64) {
		q := scaled(p, c.B, func(f int) float64 { return 1 / by(f) })
		var off float64
		for i, m := range c.B.Mask {
			if m {
				q.Bound[i] += 16 * c.Unit * math.Abs(q.Want[i])
				off += math.Abs(got.Data[i] - q.Want[i])
			}
		}
		return q, off
	}
	q, off := over(func(int) float64 { return whole })
	r, lower := over(func(f int) float64 { return mean(c.B.Files[f].Lo*c.B.Cols, c.B.Files[f].Hi*c.B.Cols) })
	if lower < off {
		return r
	}
	return q
}

// gaeForms are slips in the recursion A = δ + γλA', δ = r + γV' − V.
func gaeForms() []*Hypothesis {
	var list []*Hypothesis
	for _, f := range []struct {
		title        string
		value, trace func(gamma, lambda float64) float64
	}{
		{"A = δ + λA': γ is missing behind it", func(g, _ float64) float64 { return g }, func(_, l float64) float64 { return l }},
		{"δ = r + V' − V: γ is missing before the next value", func(float64, float64) float64 { return 1 }, func(g, l float64) float64 { return g * l }},
		{"δ = r − V: the next value is missing", func(float64, float64) float64 { return 0 }, func(g, l float64) float64 { return g * l }},
		{"A = δ: nothing is summed over the future", func(g, _ float64) float64 { return g }, func(float64, float64) float64 { return 0 }},
		{"A = δ + γλ²A'", func(g, _ float64) float64 { return g }, func(g, l float64) float64 { return g * l * l }},
		{"A = δ + γ²λA'", func(g, _ float64) float64 { return g }, func(g, l float64) float64 { return g * g * l }},
	} {
		list = append(list, &Hypothesis{ID: "GAE-RECURSION", Rows: []string{"C3", "P171"}, Checks: []string{"gae"},
			Title: "the recursion is " + f.title, Cause: "a factor or a term is left out", Fix: "δ = r + γV' − V, A = δ + γλA'",
			Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return recursed(c, ch, f.value, f.trace) }})
	}
	return list
}

// recursed predicts advantages and returns of another recursion, over the tokens of the mask one after the other.
func recursed(c *stage.Case, ch *stage.Check, value, trace func(gamma, lambda float64) float64) *stage.Prediction {
	r, v := c.B.Token("token_rewards"), c.B.Token("values")
	g, l := c.Set.Value("gae.gamma"), c.Set.Value("gae.lambda")
	if r == nil || v == nil || g.Kind() != convention.Number || l.Kind() != convention.Number {
		return nil
	}
	x := make([]float64, len(r))
	for row := range c.B.Rows {
		var next, sum float64
		last := -1
		for t := c.B.Cols - 1; t >= 0; t-- {
			i := row*c.B.Cols + t
			if !c.B.Mask[i] {
				continue
			}
			if last >= 0 && last != t+1 {
				if hole := c.Set.Value("gae.hole"); hole.Kind() != convention.Enum || hole.Text() != "carry" {
					return nil // what a hole does is another matter
				}
			}
			sum = r[i] + value(g.Num(), l.Num())*next - v[i] + trace(g.Num(), l.Num())*sum
			x[i], next, last = sum, v[i], t
		}
	}
	if ch.Output == "returns" {
		p := under(sameInput, c, ch)
		if p == nil || len(p.Want) != len(x) {
			return nil
		}
		q := *p
		q.Want, q.Bound, q.Alt = x, slices.Clone(p.Bound), nil
		for i := range x {
			x[i] += v[i]
			q.Bound[i] += 8 * c.Unit * math.Abs(x[i])
		}
		return &q
	}
	return recursion(func(*stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, _, _ := perToken("token_rewards", x)(c)
		b, _, ok := constant("values", 0)(c.Of(b, c.Set))
		return b, c.Set.With("gae.gamma", convention.NumberValue(0), "hypothesis"), ok
	})(c, ch)
}

// scoreForms are other places for the score of a response among the rewards of its tokens, and for the KL beside it.
func scoreForms() []*Hypothesis {
	var list []*Hypothesis
	for _, f := range []struct {
		title string
		place func(row []bool, score float64, kl []float64, out []float64)
	}{
		{"the score is given to every token", func(row []bool, score float64, kl, out []float64) {
			for t, m := range row {
				if out[t] = kl[t]; m {
					out[t] += score
				}
			}
		}},
		{"the score is spread over the tokens in equal shares", func(row []bool, score float64, kl, out []float64) {
			for t, m := range row {
				if out[t] = kl[t]; m {
					out[t] += score / count(row)
				}
			}
		}},
		{"the score is put on the first token", func(row []bool, score float64, kl, out []float64) {
			copy(out, kl)
			if first, _ := firstLast(row); first >= 0 {
				out[first] += score
			}
		}},
		{"the KL of the token that has the score is missing", func(row []bool, score float64, kl, out []float64) {
			copy(out, kl)
			if _, last := firstLast(row); last >= 0 {
				out[last] = score
			}
		}},
		{"the KL of the whole response is put on its last token", func(row []bool, score float64, kl, out []float64) {
			if _, last := firstLast(row); last >= 0 {
				out[last] = score
				for _, x := range kl {
					out[last] += x
				}
			}
		}},
		{"score and KL are put on the last token, the KL of the others stays", func(row []bool, score float64, kl, out []float64) {
			copy(out, kl)
			if _, last := firstLast(row); last >= 0 {
				out[last] = score
				for _, x := range kl {
					out[last] += x
				}
			}
		}},
	} {
		list = append(list, &Hypothesis{ID: "REWARD-PLACE", Rows: []string{"P036", "P053", "P170"}, Checks: []string{"reward/token"},
			Title: f.title, Cause: "the score is added by broadcasting, or written over what stands there", Fix: "r = −β·KL per token, + score on the last one of the response",
			Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				with, kl := under(sameInput, c, ch), under(constant("scores", 0), c, ch)
				score := combined(1, with, -1, kl)
				if score == nil || len(score.Want) != len(c.B.Mask) {
					return nil
				}
				q := &stage.Prediction{Judge: with.Judge, Scale: with.Scale, Want: make([]float64, len(with.Want)), Bound: make([]float64, len(with.Want))}
				w := c.B.Cols
				for r := range c.B.Rows {
					lo, hi := r*w, (r+1)*w
					var s, e float64
					shaped := make([]float64, w)
					for i := lo; i < hi; i++ {
						s += score.Want[i]
						e += score.Bound[i]
						if c.B.Mask[i] {
							shaped[i-lo] = kl.Want[i]
						}
					}
					f.place(c.B.Mask[lo:hi], s, shaped, q.Want[lo:hi])
					for i := lo; i < hi; i++ {
						q.Bound[i] = e
					}
				}
				return q
			}})
	}
	return list
}
