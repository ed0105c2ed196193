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
	{ID: "OLD-IS-REF", Checks: ratioed,
		Predict: policyTerm(1, instead("logp_old", "logp_ref"))},
	{ID: "ADV-SHIFT", Checks: policyOutputs,
		Title:   "the loss reads the advantages one position early",
		Predict: policyTerm(1, shifted("advantages", -1))},
	{ID: "ADV-SHIFT", Checks: policyOutputs,
		Title:   "the loss reads the advantages one position late",
		Predict: policyTerm(1, shifted("advantages", 1))},
	{ID: "ADV-NOT-WHITENED", Checks: []string{"token_loss", "gradient/dlogp"},
		Predict: unwhitened},
	{ID: "IS-TWICE", Checks: []string{"token_loss", "gradient/dlogp"},
		Input: token("is_weights", func(_ *stage.Case, x []float64) []float64 {
			return mapped(x, func(v float64) float64 { return float64(v * v) })
		})},
	{ID: "KL-TIMES-WEIGHTS", Checks: []string{"kl/token"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, w := under(sameInput, c, ch), c.Optional("is_weights")
			if p == nil || len(w.X) != len(p.Want) {
				return nil
			}
			return timesCells(p, 2*c.Unit, func(i int) float64 { return w.X[i] })
		}},
	{ID: "VALUE-TARGET", Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Title: "the critic is fitted to the rewards of single tokens",
		Input: instead("returns", "token_rewards")},
	{ID: "VALUE-TARGET", Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Title: "the critic is fitted to the scores",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			score := c.B.Row("scores")
			if score == nil || len(score) != c.B.Rows || c.B.Token("returns") == nil {
				return nil, nil, false
			}
			x := eachOf(len(c.B.Mask), func(i int) float64 { return score[i/c.B.Cols] })
			return c.B.With("returns", x), c.Set, true
		}},
	{ID: "VALUE-TARGET", Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Title: "the critic is fitted to the advantages as the policy gets them, plus the values: whitened ones are no returns",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			a, v := c.B.Token("advantages"), c.B.Token("values")
			if a == nil || v == nil || c.B.Token("returns") == nil {
				return nil, nil, false
			}
			x := eachOf(len(a), func(i int) float64 { return a[i] + v[i] })
			return c.B.With("returns", x), c.Set, true
		}},
	{ID: "VALUE-TARGET-SHIFT", Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Input: shifted("returns", -1)},
	{ID: "VALUE-TARGET-SHIFT", Checks: []string{"aggregate/value_loss", "gradient/dvalues"},
		Input: shifted("returns", 1)},
	{ID: "GAE-VALUES-LATE", Checks: []string{"gae"},
		Predict: recursion(shifted("values", -1))},
	{ID: "GAE-REWARD-EARLY", Checks: []string{"gae"},
		Predict: recursion(shifted("token_rewards", -1))},
	{ID: "KL-OF-NEW", Checks: []string{"kl", "reward/token"},
		Input: instead("logp_old", "logp_new")},
	{ID: "IS-NORMALISED", Checks: []string{"ratio/is_weights"},
		Predict: overTheirMean},
	{ID: "RETURNS-OF-NEW-VALUES", Checks: []string{"gae/returns"},
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
		return mapped(x, func(v float64) float64 { return format.Round(v, format.BF16) })
	})
	var list []*Hypothesis
	for _, f := range append(slices.Clone(ratioInputs), ratioInput{"OLD-BF16", coarse}) {
		list = append(list, &Hypothesis{ID: f.id, Checks: []string{"kl/token", "gradient/dlogp"}, Input: corrected(f.in)})
	}
	return append(list,
		&Hypothesis{ID: "OLD-BF16", Checks: []string{"token_loss", "gradient/dlogp"},
			Predict: policyTerm(1, coarse)},
		&Hypothesis{ID: "GRAD-CUT-OFF", Checks: []string{"gradient"},
			Predict: cutOff})
}

// overTheirMean predicts importance weights that are divided by their mean over the mask, of the step or of a file.
func overTheirMean(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	if p == nil || got == nil || len(p.Want) != len(c.B.Mask) || len(got.Data) != len(p.Want) {
		return nil
	}
	mean := func(lo, hi int) float64 {
		var sum, n float64
		for i := range c.B.TokensIn(lo, hi) {
			sum += p.Want[i]
			n++
		}
		return sum / max(n, 1)
	}
	whole := mean(0, c.B.Rows)
	over := func(by func(f int) float64) (*stage.Prediction, float64) {
		q := scaled(p, c.B, func(f int) float64 { return 1 / by(f) })
		var off float64
		for i := range c.B.Tokens() {
			q.Bound[i] += 16 * c.Unit * math.Abs(q.Want[i])
			off += math.Abs(got.Data[i] - q.Want[i])
		}
		return q, off
	}
	q, off := over(func(int) float64 { return whole })
	r, lower := over(func(f int) float64 { return mean(c.B.Files[f].Lo, c.B.Files[f].Hi) })
	if lower < off {
		return r
	}
	return q
}

// gaeForms are slips in the recursion A = δ + γλA', δ = r + γV' − V.
func gaeForms() []*Hypothesis {
	var list []*Hypothesis
	for _, f := range []struct {
		id, title    string
		value, trace func(gamma, lambda float64) float64
	}{
		{"GAE-NO-GAMMA", "A = δ + λA': γ is missing behind it", func(g, _ float64) float64 { return g }, func(_, l float64) float64 { return l }},
		{"GAE-NO-GAMMA", "A = δ + λA', δ = r + V' − V: γ is missing", func(float64, float64) float64 { return 1 }, func(_, l float64) float64 { return l }},
		{"GAE-NO-GAMMA", "δ = r + V' − V: γ is missing before the next value", func(float64, float64) float64 { return 1 }, func(g, l float64) float64 { return g * l }},
		{"GAE-RECURSION", "δ = r − V: the next value is missing", func(float64, float64) float64 { return 0 }, func(g, l float64) float64 { return g * l }},
		{"GAE-RECURSION", "A = δ: nothing is summed over the future", func(g, _ float64) float64 { return g }, func(float64, float64) float64 { return 0 }},
		{"GAE-RECURSION", "A = δ + γλ²A'", func(g, _ float64) float64 { return g }, func(g, l float64) float64 { return g * l * l }},
		{"GAE-RECURSION", "A = δ + γ²λA'", func(g, _ float64) float64 { return g }, func(g, l float64) float64 { return g * g * l }},
	} {
		list = append(list, &Hypothesis{ID: f.id, Checks: []string{"gae"},
			Title:   "the recursion is " + f.title,
			Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return recursed(c, ch, f.value, f.trace) }})
	}
	return list
}

// recursed predicts advantages and returns of another recursion, over the tokens of the mask one after the other.
func recursed(c *stage.Case, ch *stage.Check, value, trace func(gamma, lambda float64) float64) *stage.Prediction {
	r, v := c.Of(c.B, c.Set).Token("token_rewards").X, c.B.Token("values")
	g, l := c.Set.Value("gae.gamma"), c.Set.Value("gae.lambda")
	if len(r) != len(c.B.Mask) || v == nil || g.Kind() != convention.Number || l.Kind() != convention.Number {
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
		place func(row []bool, at int, score float64, kl []float64, out []float64)
	}{
		{"the score is given to every token", func(row []bool, at int, score float64, kl, out []float64) {
			for t, m := range row {
				if out[t] = kl[t]; m {
					out[t] += score
				}
			}
		}},
		{"the score is spread over the tokens in equal shares", func(row []bool, at int, score float64, kl, out []float64) {
			for t, m := range row {
				if out[t] = kl[t]; m {
					out[t] += score / count(row)
				}
			}
		}},
		{"the score is put on the first token", func(row []bool, at int, score float64, kl, out []float64) {
			copy(out, kl)
			if first, _ := firstLast(row); first >= 0 {
				out[first] += score
			}
		}},
		{"the KL of the token that has the score is missing", func(_ []bool, at int, score float64, kl, out []float64) {
			copy(out, kl)
			if at >= 0 {
				out[at] = score
			}
		}},
		{"the KL of the whole response is put on its last token", func(_ []bool, at int, score float64, kl, out []float64) {
			if at >= 0 {
				out[at] = score
				for _, x := range kl {
					out[at] += x
				}
			}
		}},
		{"score and KL are put on the last token, the KL of the others stays", func(row []bool, at int, score float64, kl, out []float64) {
			copy(out, kl)
			if at >= 0 {
				out[at] = score
				for _, x := range kl {
					out[at] += x
				}
			}
		}},
	} {
		list = append(list, &Hypothesis{ID: "REWARD-PLACE", Checks: []string{"reward/token"},
			Title: f.title,
			Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				with, kl := under(sameInput, c, ch), under(noScore, c, ch)
				score := combined(1, with, -1, kl)
				if score == nil || len(score.Want) != len(c.B.Mask) {
					return nil
				}
				q := &stage.Prediction{Judge: with.Judge, Scale: with.Scale, Want: make([]float64, len(with.Want)), Bound: make([]float64, len(with.Want))}
				w := c.B.Cols
				for r := range c.B.Rows {
					lo, hi := r*w, (r+1)*w
					var s, e float64
					_, at := firstLast(c.B.Mask[lo:hi])
					shaped := make([]float64, w)
					for i := lo; i < hi; i++ {
						if s += score.Want[i]; score.Want[i] != 0 {
							at = i - lo
						}
						e += score.Bound[i]
						if c.B.Mask[i] {
							shaped[i-lo] = kl.Want[i]
						}
					}
					f.place(c.B.Mask[lo:hi], at, s, shaped, q.Want[lo:hi])
					for i := lo; i < hi; i++ {
						q.Bound[i] = e
					}
				}
				return q
			}})
	}
	return list
}
