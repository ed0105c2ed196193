package fault

import (
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// numerator returns a predictor for a mask that is wrong in the sum of a mean and right in its denominator.
func numerator(change func(row []bool)) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b, _, ok := mask(change)(c)
		if !ok || c.Set.Value("agg.kind").Kind() != convention.Enum || c.Set.Value("agg.kind").Text() != "token" {
			return nil
		}
		p := under(func(*stage.Case) (*dump.Batch, *convention.Set, bool) { return b, c.Set, true }, c, ch)
		if p == nil {
			return nil
		}
		v := c.Set.Value("agg.denominator")
		micro := v.Kind() == convention.Enum && v.Text() == "micro"
		if _, ok := c.Set.Fact("num_items_in_batch"); ok && !micro {
			return p // the denominator is a number that was counted elsewhere
		}
		q := *p
		q.Want, q.Bound = slices.Clone(p.Want), slices.Clone(p.Bound)
		for f, info := range b.Files {
			lo, hi := info.Lo*b.Cols, info.Hi*b.Cols
			from, to := lo, hi
			if !micro {
				from, to = 0, len(b.Mask)
			}
			k := count(b.Mask[from:to]) / count(c.B.Mask[from:to])
			if len(p.Want) == len(b.Files) {
				lo, hi = f, f+1
			}
			for i := lo; i < hi && i < len(p.Want); i++ {
				q.Want[i] *= k
				q.Bound[i] *= k
			}
		}
		return &q
	}
}

func count(mask []bool) float64 {
	n := 0
	for _, m := range mask {
		if m {
			n++
		}
	}
	return float64(n)
}

// overAdvantages predicts an output whose mean is Σ ℓ·A/Σ A: the advantages stand for the mask in both sums.
func overAdvantages(c *stage.Case, ch *stage.Check) *stage.Prediction {
	a := c.Optional("advantages")
	p := timesAdvantages(c, ch)
	if p == nil || a.X == nil || c.Set.Value("agg.kind").Kind() != convention.Enum || c.Set.Value("agg.kind").Text() != "token" {
		return nil
	}
	doubt := 0.0 // relative, of a sum of advantages that may cancel
	q := scaled(p, c.B, func(f int) float64 {
		lo, hi := c.B.Files[f].Lo*c.B.Cols, c.B.Files[f].Hi*c.B.Cols
		if v := c.Set.Value("agg.denominator"); v.Kind() != convention.Enum || v.Text() != "micro" {
			lo, hi = 0, len(c.B.Mask)
		}
		var sum, size float64
		for i := lo; i < hi; i++ {
			if c.B.Mask[i] {
				sum += a.X[i]
				size += math.Abs(a.X[i])
			}
		}
		doubt = max(doubt, float64(hi-lo)*c.Unit*size/math.Abs(sum))
		return count(c.B.Mask[lo:hi]) / sum
	})
	for i, w := range q.Want {
		q.Bound[i] = math.Abs(q.Bound[i]) + doubt*math.Abs(w)
	}
	return q
}

// timesAdvantages predicts an output whose token losses are multiplied by the advantages.
func timesAdvantages(c *stage.Case, ch *stage.Check) *stage.Prediction {
	a := c.Optional("advantages")
	if a.X == nil || len(a.X) != c.B.Rows*c.B.Cols {
		return nil
	}
	if ch.Output == "dlogp" {
		p, kl := policyOnly(sameInput, c, ch), klOnly(c, ch)
		if p == nil || kl == nil || len(p.Want) != len(a.X) {
			return nil
		}
		q := *p
		q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
		for i, x := range a.X {
			q.Want[i] *= x
			q.Bound[i] *= math.Abs(x)
		}
		return combined(1, &q, 1, kl)
	}
	return under(token("token_loss", func(_ *stage.Case, x []float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = x[i] * a.X[i]
		}
		return y
	}), c, ch)
}

// weightsOf returns ∂loss/∂(token loss) of every cell: the gradient of a KL term of k1 with coefficient 1, whose derivative is 1.
func weightsOf(c *stage.Case, ch *stage.Check) *stage.Prediction {
	return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		set := c.Set.With("kl.kind", parsed("kl.kind", "k1"), "hypothesis").With("kl.grad", parsed("kl.grad", "naive"), "hypothesis").
			With("kl.beta", convention.NumberValue(1), "hypothesis").With("kl.place", parsed("kl.place", "loss"), "hypothesis").
			With("kl.clamp_in", parsed("kl.clamp_in", "none"), "hypothesis").With("kl.clamp_out", parsed("kl.clamp_out", "none"), "hypothesis")
		b, _, ok := noPolicy(c)
		if !ok {
			return nil, nil, false
		}
		if b.Tensors["logp_ref"] == nil {
			t := *b.Tensors["logp_new"]
			b = b.With("logp_ref", t.Data)
			u := *b.Tensors["logp_ref"]
			u.Layout, u.Width = t.Layout, t.Width
			b.Tensors["logp_ref"] = &u
		}
		return b, set, true
	}, c, ch)
}

// added returns p + w·x, element by element.
func added(p, w *stage.Prediction, x []float64) *stage.Prediction {
	if p == nil || w == nil || len(p.Want) != len(w.Want) || len(x) != len(p.Want) {
		return nil
	}
	q := &stage.Prediction{Judge: p.Judge, Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
	for i := range x {
		if w.Want[i] == 0 {
			continue
		}
		q.Want[i] += float64(w.Want[i] * x[i])
		q.Bound[i] += w.Bound[i]*math.Abs(x[i]) + 0x1p-20*math.Abs(w.Want[i]*x[i])
	}
	return q
}

// recursion predicts advantages whose recursion has a wrong mask while the whitening has the right one: what the recursion gives
// is handed to the whitening as rewards without a future.
func recursion(in input) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		if ch.Output != "advantages" {
			return under(in, c, ch)
		}
		if v := c.Set.Value("whiten.scope"); v.Kind() != convention.Enum || v.Text() == "none" {
			return under(in, c, ch)
		}
		raw := under(both(in, option("whiten.scope", "none")), c, ch)
		if raw == nil {
			return nil
		}
		p := under(both(both(perToken("token_rewards", raw.Want), constant("values", 0)), number("gae.gamma", func(float64) float64 { return 0 })), c, ch)
		if p == nil || len(p.Want) != len(raw.Want) {
			return nil
		}
		var most float64
		for _, b := range raw.Bound {
			most = max(most, b)
		}
		for i := range p.Bound {
			p.Bound[i] += 4 * most
		}
		return p
	}
}

// klTimes returns a predictor of the KL loss, with its coefficient or without, times k.
func klTimes(k float64) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := under(sameInput, c, ch)
		if p == nil {
			return nil
		}
		q := *p
		q.Want, q.Alt = slices.Clone(p.Want), slices.Clone(p.Alt)
		for i := range q.Want {
			q.Want[i] *= k
		}
		for i := range q.Alt {
			q.Alt[i] *= k
		}
		return &q
	}
}

// scaled returns p with the elements of every file multiplied by a factor of its own.
func scaled(p *stage.Prediction, b *dump.Batch, by func(file int) float64) *stage.Prediction {
	if p == nil {
		return nil
	}
	q := *p
	q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
	for f, info := range b.Files {
		lo, hi := info.Lo*b.Cols, info.Hi*b.Cols
		if len(p.Want) == len(b.Files) {
			lo, hi = f, f+1
		}
		for i := lo; i < hi && i < len(p.Want); i++ {
			q.Want[i] *= by(f)
			q.Bound[i] *= math.Abs(by(f))
		}
	}
	return &q
}

// moved returns a per-token output whose column t of row r is column t−by(r), judged where that one is in the mask.
func moved(p *stage.Prediction, c *stage.Case, by func(row int) int) *stage.Prediction {
	q := &stage.Prediction{Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound), Judge: make([]bool, len(p.Want))}
	w := c.B.Cols
	for r := range c.B.Rows {
		for t := range w {
			i, from := r*w+t, t-by(r)
			if from < 0 || from >= w || !c.B.Mask[i] || !c.B.Mask[r*w+from] {
				continue
			}
			q.Want[i], q.Bound[i], q.Judge[i] = p.Want[r*w+from], p.Bound[r*w+from], true
		}
	}
	return q
}

// lastReward returns the input in which the reward of the last token of a row has something added.
func lastReward(add func(c *stage.Case, row, last int) float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		r := c.B.Token("token_rewards")
		if r == nil {
			return nil, nil, false
		}
		x, w := slices.Clone(r), c.B.Cols
		for row := range c.B.Rows {
			if _, last := firstLast(c.B.Mask[row*w : (row+1)*w]); last >= 0 {
				x[row*w+last] += add(c, row, last)
			}
		}
		return c.B.With("token_rewards", x), c.Set, true
	}
}

// discounted returns γ·V of a cell, 0 behind the last column.
func discounted(c *stage.Case, row, col int) float64 {
	v, g := c.B.Token("values"), c.Set.Value("gae.gamma")
	if v == nil || g.Kind() != convention.Number || col >= c.B.Cols {
		return 0
	}
	return g.Num() * v[row*c.B.Cols+col]
}

// ended reports whether a row has an EOS in its mask.
func ended(c *stage.Case, row int) bool {
	eos := c.FactList("eos_token_id")
	for t := range c.B.Cols {
		if id, ok := c.B.TokenID(row, t); ok && c.B.Mask[row*c.B.Cols+t] && slices.Contains(eos, float64(id)) {
			return true
		}
	}
	return false
}

// lastValue returns the input in which the value of the last token of a row is 0.
func lastValueZero(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	v := c.B.Token("values")
	if v == nil {
		return nil, nil, false
	}
	x, w := slices.Clone(v), c.B.Cols
	for row := range c.B.Rows {
		if _, last := firstLast(c.B.Mask[row*w : (row+1)*w]); last >= 0 {
			x[row*w+last] = 0
		}
	}
	return c.B.With("values", x), c.Set, true
}

// byColumn whitens the raw advantages over columns in place of all cells.
func byColumn(c *stage.Case, ch *stage.Check) *stage.Prediction {
	if ch.Output != "advantages" {
		return nil
	}
	raw := under(option("whiten.scope", "none"), c, ch)
	ddof, eps := c.Set.Value("whiten.ddof"), c.Set.Value("whiten.eps")
	if raw == nil || len(raw.Want) != len(c.B.Mask) || ddof.Kind() != convention.Number || eps.Kind() != convention.Number {
		return nil
	}
	x, err := make([]float64, len(raw.Want)), slices.Clone(raw.Bound)
	column, mask := make([]float64, c.B.Rows), make([]bool, c.B.Rows)
	place := c.Set.Value("whiten.eps_place")
	if place.Kind() != convention.Enum {
		return nil
	}
	o := rl.WhitenOptions{Scope: rl.ScopeGlobal, Eps: eps.Num(), Var: rl.VarOptions{DDof: int(ddof.Num())}}
	o.EpsPlace, _ = rl.ParseEpsPlace(place.Text())
	for t := range c.B.Cols {
		for r := range column {
			column[r], mask[r] = raw.Want[r*c.B.Cols+t], c.B.Mask[r*c.B.Cols+t]
		}
		y, fail := rl.Whiten(nil, column, mask, c.B.Rows, 1, o)
		if fail != nil {
			return nil
		}
		for r := range column {
			x[r*c.B.Cols+t] = y[r]
			err[r*c.B.Cols+t] = 1e-4 * max(1, math.Abs(y[r]))
		}
	}
	return &stage.Prediction{Want: x, Bound: err, Scale: raw.Scale}
}

var engineFaults = []*Hypothesis{
	{ID: "ADV-WRONG-GROUPS", Rows: []string{"P110", "P111"}, Checks: []string{"advantage"},
		Title: "two prompts have the same group key and share a baseline", Cause: "prompt text or tokens are the key, not the identity of the prompt", Fix: "give every prompt an id of its own",
		Predict: merged},
	{ID: "EOS-INVERTED", Rows: []string{"P176"}, Checks: []string{"reward", "advantage", "gae"},
		Title: "termination flags are inverted: finished responses count as cut off", Cause: "truncation is inferred from the padded width, or a missing not", Fix: "test for the EOS in the response",
		Input: inverted},
	{ID: "SCORE-ZERO-MISSING", Rows: []string{"P097"}, Checks: []string{"reward", "advantage", "gae"},
		Title: "a score of 0.0 is taken for a missing one and replaced by −1", Cause: "`a or b` on a number", Fix: "compare with None",
		Input: token("scores", func(_ *stage.Case, x []float64) []float64 {
			y := slices.Clone(x)
			for i := range y {
				if y[i] == 0 {
					y[i] = -1
				}
			}
			return y
		})},
	{ID: "KL-AFTER-BASELINE", Rows: []string{"P104"}, Checks: []string{"advantage"},
		Title: "the KL of a sequence is subtracted after the baseline", Cause: "the order of baseline and penalty", Fix: "subtract it from the reward before the baseline, or declare kl.place",
		Predict: afterBaseline},
	{ID: "ADV-ROW-FROM-SPAN", Rows: []string{"P115"}, Checks: []string{"advantage", "gae/advantage"},
		Title: "whole rows are off by a constant: a penalty for one token reaches its row", Cause: "a write into an expanded view", Fix: "clone before writing to one cell",
		Predict: spanned},
	{ID: "GAE-LAST-INDEX", Rows: []string{"P190"}, Checks: []string{"gae"},
		Title: "the last token bootstraps from the cell after it", Cause: "an index of one too many, or no mask at the end", Fix: "V is 0 behind the last token of a response that has ended",
		Predict: recursion(lastReward(func(c *stage.Case, row, last int) float64 { return discounted(c, row, last+1) }))},
	{ID: "GAE-TRUNCATED-BOOTSTRAP", Rows: []string{"P055"}, Checks: []string{"gae"},
		Title: "a response cut off by its length is bootstrapped with its last value", Cause: "truncation is taken for a state with a future", Fix: "declare gae.truncated_bootstrap=value if that is meant",
		Predict: recursion(lastReward(func(c *stage.Case, row, last int) float64 {
			if ended(c, row) {
				return 0
			}
			return discounted(c, row, last)
		}))},
	{ID: "GAE-EOS-VALUE-ZERO", Rows: []string{"P059"}, Checks: []string{"gae"},
		Title: "the value of the last token is 0", Cause: "values are multiplied by a mask that is one position early", Fix: "cut mask and values by the same slice",
		Predict: recursion(lastValueZero)},
	{ID: "GAE-VALUE-SHIFT", Rows: []string{"C5", "P059"}, Checks: []string{"gae"},
		Title: "values are cut out one position late", Cause: "the value slice is not that of the tokens", Fix: "values of [p−1 : p+r−1], as for the logits",
		Predict: recursion(token("values", func(c *stage.Case, x []float64) []float64 {
			y, w := slices.Clone(x), c.B.Cols
			for r := range c.B.Rows {
				copy(y[r*w:(r+1)*w], x[r*w+1:(r+1)*w])
			}
			return y
		}))},
	{ID: "GAE-NO-LAMBDA", Rows: []string{"C3"}, Checks: []string{"gae"},
		Title: "the recursion forgets λ", Cause: "γ alone decays the sum", Fix: "A = δ + γλA",
		Predict: recursion(number("gae.lambda", func(float64) float64 { return 1 }))},
	{ID: "WHITEN-WRONG-AXIS", Rows: []string{"P091"}, Checks: []string{"gae/advantage", "advantage"},
		Title: "mean and variance are taken over columns, not over all cells", Cause: "an axis in the reduction, or no keepdim", Fix: "reduce over all cells of the mask",
		Predict: byColumn},
	{ID: "LOSS-MASK-SHIFT-ABOVE", Rows: []string{"P068", "P004"}, Checks: []string{"aggregate", "gradient"},
		Title:   "the mask of the sum is one position late, that of the denominator is not",
		Cause:   "the two are cut by different slices",
		Fix:     "cut the mask by the same slice as the tokens that it marks",
		Predict: numerator(func(row []bool) { copy(row[1:], slices.Clone(row)); row[0] = false })},
	{ID: "GRAD-LAST-CHUNK", Rows: []string{"P117", "P128"}, Checks: []string{"gradient/dlogp"},
		Title: "only the last micro-batch leaves a gradient",
		Cause: "gradients are overwritten, or finalised per chunk",
		Fix:   "accumulate over the micro-batches of a step",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			last := map[int]int{}
			for f, info := range c.B.Files {
				last[info.Rank] = f
			}
			return scaled(p, c.B, func(f int) float64 {
				if last[c.B.Files[f].Rank] == f {
					return 1
				}
				return 0
			})
		}},
	{ID: "CLIP-DUAL-BOTH-SIGNS", Rows: []string{"C3"}, Checks: []string{"token_loss", "gradient/dlogp"},
		Title: "the dual clip is applied to positive advantages, too",
		Cause: "the sign of the advantage is not looked at",
		Fix:   "bound the loss by −A·c only where A < 0",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			dual, adv := c.Set.Value("clip.dual"), c.Optional("advantages")
			loss := stage.Find("token_loss/policy")
			if dual.Kind() != convention.Number || adv.X == nil || loss == nil {
				return nil
			}
			// With a cap of −A·c every token of A > 0 whose loss is above it is held there: as if its ratio were c, without gradient.
			value := policyOnly(sameInput, c, loss)
			p := policyOnly(sameInput, c, ch)
			if value == nil || p == nil || len(p.Want) != len(adv.X) || len(value.Want) != len(adv.X) {
				return nil
			}
			q := &stage.Prediction{Judge: p.Judge, Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
			for i, a := range adv.X {
				if bound := -a * dual.Num(); a > 0 && value.Want[i] > bound {
					q.Want[i] = 0
					if ch.Output == "token_loss" {
						q.Want[i] = bound
					}
				}
			}
			return combined(1, q, 1, klOnly(c, ch))
		}},
	{ID: "AGG-COUNTS-MASKED", Rows: []string{"P030"}, Checks: []string{"aggregate", "gradient"},
		Title: "the denominator counts the tokens of completions that are masked out",
		Cause: "tokens are counted in the attention mask",
		Fix:   "count in the mask of the loss",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			b := c.B
			attention := b.Tensors["attention_mask"]
			if attention == nil || attention.Layout != dump.PerRow || c.Set.Value("agg.kind").Kind() != convention.Enum || c.Set.Value("agg.kind").Text() != "token" {
				return nil
			}
			attended := make([]bool, len(b.Mask))
			for r := range b.Rows {
				at := b.Files[b.File(r)].PromptCols
				for t := range b.Cols {
					if at >= 0 && at+t < attention.Width && attention.Data[r*attention.Width+at+t] != 0 {
						attended[r*b.Cols+t] = true
					}
				}
			}
			return scaled(under(sameInput, c, ch), b, func(f int) float64 {
				lo, hi := b.Files[f].Lo*b.Cols, b.Files[f].Hi*b.Cols
				if v := c.Set.Value("agg.denominator"); v.Kind() != convention.Enum || v.Text() != "micro" {
					lo, hi = 0, len(b.Mask)
				}
				return count(b.Mask[lo:hi]) / count(attended[lo:hi])
			})
		}},
	{ID: "KL-SIGN", Rows: []string{"P181"}, Checks: []string{"aggregate/kl_loss"},
		Title: "the KL term has the wrong sign", Cause: "the penalty is subtracted from the loss", Fix: "loss + β·KL",
		Predict: klTimes(-1)},
	{ID: "KL-TWICE", Rows: []string{"P075"}, Checks: []string{"aggregate/kl_loss"},
		Title: "the KL term is added twice", Cause: "it is part of the token loss and added again", Fix: "add it once",
		Predict: klTimes(2)},
	{ID: "KL-ABSENT", Rows: []string{"P069", "P107", "P210"}, Checks: []string{"aggregate/kl_loss"},
		Title: "the KL term is missing", Cause: "the option is accepted and ignored", Fix: "add β·KL, or declare kl.beta=0",
		Predict: klTimes(0)},
	{ID: "KL-BF16", Rows: []string{"P093"}, Checks: klDependent,
		Title: "the log-ratio of KL is taken in bfloat16",
		Cause: "log-probs, or their difference, are rounded to 16 bits before the estimator",
		Fix:   "subtract in float32",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			lp, ref := c.B.Token("logp_new"), c.B.Token("logp_ref")
			if lp == nil || ref == nil {
				return nil, nil, false
			}
			d, zero := make([]float64, len(lp)), make([]float64, len(lp))
			b := c.B
			for i := range lp {
				d[i] = format.Round(format.Round(lp[i], format.BF16)-format.Round(ref[i], format.BF16), format.BF16)
			}
			if old := b.Token("logp_old"); old != nil { // the ratio stays
				moved := make([]float64, len(old))
				for i := range old {
					moved[i] = d[i] - (lp[i] - old[i])
				}
				b = b.With("logp_old", moved)
			}
			return b.With("logp_new", d).With("logp_ref", zero), c.Set, true
		}},
	{ID: "GAE-PADS", Rows: []string{"P169", "P190", "C4"}, Checks: []string{"gae"},
		Title: "the recursion runs over every cell, tool tokens and padding included",
		Cause: "no mask in the loop",
		Fix:   "leave masked tokens out of the recursion (gae.hole)",
		Predict: recursion(mask(func(row []bool) {
			for i := range row {
				row[i] = true
			}
		}))},
	{ID: "IS-OLD-FOR-GEN", Rows: []string{"P026"}, Checks: []string{"ratio/is_weights"},
		Title: "importance weights compare the new policy with the old one",
		Cause: "logp_new and logp_old are taken where logp_old and logp_gen belong",
		Fix:   "w = exp(logp_old − logp_gen)",
		Input: both(instead("logp_gen", "logp_old"), func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			lp := c.B.Token("logp_new")
			if lp == nil {
				return nil, nil, false
			}
			return c.B.With("logp_old", lp), c.Set, true
		})},
	{ID: "IS-NEW-FOR-OLD", Rows: []string{"P070", "P026"}, Checks: []string{"ratio/is_weights"},
		Title: "importance weights are made of the policy being trained, so that they carry gradient",
		Cause: "logp_new is used where logp_old belongs, without detaching it",
		Fix:   "w = exp(logp_old − logp_gen), detached",
		Input: instead("logp_old", "logp_new")},
	{ID: "IS-GRADIENT", Rows: []string{"P070", "P114"}, Checks: []string{"gradient/dlogp"},
		Title: "gradient flows through the importance weights",
		Cause: "the weight is computed from log-probs that carry gradient",
		Fix:   "detach the weight",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			w := c.Optional("is_weights")
			loss := stage.Find("token_loss/policy")
			if w.X == nil || loss == nil {
				return nil
			}
			policy := policyOnly(sameInput, c, loss) // weight included
			if policy == nil || len(policy.Want) != len(w.X) {
				return nil
			}
			high := math.Inf(1)
			if v := c.Set.Value("tis.high"); v.Kind() == convention.Number {
				high = v.Num()
			}
			extra := slices.Clone(policy.Want)
			for i := range extra {
				if w.X[i] >= high {
					extra[i] = 0
				}
			}
			return added(under(sameInput, c, ch), weightsOf(c, ch), extra)
		}},
	{ID: "KL-WEIGHT-DETACHED", Rows: []string{"P113", "P045"}, Checks: []string{"gradient/dlogp"},
		Title: "the weight of the KL term is detached: the score-function part of its gradient is missing",
		Cause: "the ratio that multiplies the estimator is detached, so that only the estimator is differentiated",
		Fix:   "let the gradient flow through the weight too (kl.grad)",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			beta, kl := c.Set.Value("kl.beta"), stage.Find("kl/token")
			if beta.Kind() != convention.Number || kl == nil {
				return nil
			}
			value := under(sameInput, c, kl)
			if value == nil {
				return nil
			}
			extra := make([]float64, len(value.Want))
			for i, k := range value.Want {
				extra[i] = -beta.Num() * k
			}
			return added(under(sameInput, c, ch), weightsOf(c, ch), extra)
		}},
	{ID: "CISPO-THROUGH-CLIP", Rows: []string{"P130"}, Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp"},
		Title: "CISPO is trained through the capped ratio: the log-prob and the detach are missing",
		Cause: "−min(ρ, cap)·A in place of −sg(min(ρ, cap))·A·logp",
		Fix:   "detach the weight and multiply by the log-prob",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			kind, lp, old, adv := c.Set.Value("loss.kind"), c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages")
			if kind.Kind() != convention.Enum || kind.Text() != "cispo" || lp == nil || old == nil || adv.X == nil {
				return nil
			}
			a := make([]float64, len(lp))
			for i := range a {
				switch {
				case ch.Output == "dlogp" && math.Exp(lp[i]-old[i]) >= upperBound(c):
					a[i] = 0
				case ch.Output == "dlogp":
					a[i] = adv.X[i]
				default:
					a[i] = adv.X[i] / lp[i]
				}
			}
			return combined(1, policyOnly(perToken("advantages", a), c, ch), 1, klOnly(c, ch))
		}},
	{ID: "LOGP-ROWS-PERMUTED", Rows: []string{"P077"}, Checks: []string{"logp"},
		Title:   "the rows are those of others",
		Cause:   "the order of dynamic batching was not undone",
		Fix:     "sort the results back before they are used",
		Predict: permuted},
	{ID: "LOGP-ROWS-REVERSED", Rows: []string{"P077"}, Checks: []string{"logp"},
		Title:   "the rows are in the reverse order",
		Cause:   "the order of dynamic batching was not undone",
		Fix:     "sort the results back before they are used",
		Predict: rowsMoved(func(r, n int) int { return n - 1 - r })},
	{ID: "LOGP-ROWS-ROLLED", Rows: []string{"P077"}, Checks: []string{"logp"},
		Title:   "the rows are those of others",
		Cause:   "the order of dynamic batching was not undone",
		Fix:     "sort the results back before they are used",
		Predict: rowsMoved(func(r, n int) int { return (r + n - 1) % n })},
	{ID: "LOGP-SHIFT", Rows: []string{"C5", "P133", "P163"}, Checks: []string{"logp"},
		Title: "log-probs are one position early",
		Cause: "logits of position t+1 are read for token t",
		Fix:   "logits[:, :-1] score ids[:, 1:]",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
				return nil
			}
			return moved(p, c, func(int) int { return -1 })
		}},
	{ID: "LOGP-SHIFT-PADDING", Rows: []string{"P089", "P101"}, Checks: []string{"logp"},
		Title: "log-probs are cut out as if responses stood at the end: each row is shifted by its padding",
		Cause: "[-length:] of a tensor padded on the right",
		Fix:   "cut by where the response begins",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
				return nil
			}
			return moved(p, c, func(r int) int {
				_, last := firstLast(c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols])
				return last + 1 - c.B.Cols
			})
		}},
	{ID: "LOGP-SAME-POSITION", Rows: []string{"P172", "P173"}, Checks: []string{"logp/new"},
		Title: "the log-prob of a token is read from the logits at its own position, which predict the next",
		Cause: "no shift between logits and ids",
		Fix:   "logits[:, :-1] score ids[:, 1:]",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			t := c.B.Tensors["logits"]
			if t == nil || t.Layout != dump.PerToken || c.B.Cols < 2 {
				return nil
			}
			z, w := slices.Clone(t.Data), t.Width*c.B.Cols
			for r := range c.B.Rows {
				copy(z[r*w:(r+1)*w], t.Data[r*w+t.Width:(r+1)*w])
			}
			p := under(func(*stage.Case) (*dump.Batch, *convention.Set, bool) { return c.B.With("logits", z), c.Set, true }, c, ch)
			if p == nil || len(p.Want) != len(c.B.Mask) {
				return nil
			}
			p.Judge = slices.Clone(c.B.Mask)
			for r := range c.B.Rows {
				if _, last := firstLast(c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols]); last >= 0 {
					p.Judge[r*c.B.Cols+last] = false // what follows the last token was not dumped
				}
			}
			return p
		}},
	{ID: "LOGP-BF16", Rows: []string{"P093"}, Checks: []string{"logp", "kl/token", "token_loss"}, Loose: true,
		Title: "the numbers lie on the bfloat16 grid although they are stored in more bits",
		Cause: "this stage runs in 16 bits, under autocast or in the model's own type",
		Fix:   "take log-probs in float32",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			t := c.B.Tensors[ch.Output]
			p := under(sameInput, c, ch)
			if p == nil || t == nil || t.Type == format.BF16 || len(t.Data) != len(c.B.Mask) {
				return nil
			}
			var inside []float64
			for i, m := range c.B.Mask {
				if m {
					inside = append(inside, t.Data[i])
				}
			}
			if stage.Grid(inside) != 0x1p-8 {
				return nil
			}
			for i, w := range p.Want {
				p.Bound[i] = 0x1p-6*math.Abs(w) + 0x1p-6 // a few roundings of numbers of the size of a logit
			}
			return p
		}},
	{ID: "ADV-ONE-PASS", Rows: []string{"P109"}, Checks: []string{"advantage"},
		Title:   "the variance is E[x²] − μ² in float32: its error swamps it",
		Cause:   "one pass over rewards with an offset; the difference of two large numbers",
		Fix:     "subtract the mean first, then square",
		Predict: onePass},
	{ID: "VALUE-CLIP-MIN", Rows: []string{"C3", "V18"}, Checks: []string{"aggregate/value_loss", "aggregate/loss", "gradient/dvalues"},
		Title: "the smaller of the two squares is taken",
		Cause: "min where the clipped value loss has max",
		Fix:   "½·max((v − R)², (clip(v) − R)²)",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			v, old, ret := c.B.Token("values_new"), c.B.Token("values"), c.B.Token("returns")
			clip := c.Set.Value("value.clip")
			if v == nil || old == nil || ret == nil || clip.Kind() != convention.Number {
				return nil
			}
			// Unclipped, with the value that gives the smaller square; its gradient is 0 where that one is clipped.
			small := make([]float64, len(v))
			for i := range v {
				bounded := min(max(v[i], old[i]-clip.Num()), old[i]+clip.Num())
				small[i] = v[i]
				if math.Abs(bounded-ret[i]) < math.Abs(v[i]-ret[i]) {
					small[i] = bounded
					if ch.Output == "dvalues" {
						small[i] = ret[i]
					}
				}
			}
			b := c.B.With("values_new", small)
			return under(func(*stage.Case) (*dump.Batch, *convention.Set, bool) {
				return b, c.Set.With("value.clip", parsed("value.clip", "none"), "hypothesis"), true
			}, c, ch)
		}},
	{ID: "VALUE-TARGET-GRAD", Rows: []string{"P194"}, Checks: []string{"gradient/dvalues"},
		Title: "gradient flows into the bootstrapped target", Cause: "the returns are not detached: γ times a token's gradient is taken from the next one's", Fix: "detach the returns",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, g := under(sameInput, c, ch), c.Set.Value("gae.gamma")
			if p == nil || g.Kind() != convention.Number || len(p.Want) != len(c.B.Mask) {
				return nil
			}
			q := *p
			q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
			for i := range p.Want {
				if i%c.B.Cols > 0 && c.B.Mask[i] {
					q.Want[i] -= g.Num() * p.Want[i-1]
					q.Bound[i] += g.Num()*p.Bound[i-1] + 0x1p-22*math.Abs(p.Want[i-1])
				}
			}
			return &q
		}},
}

// permuted predicts a per-token output whose every row is the right one of some row, no two of the same: the row whose cells
// are nearest to those that were dumped.
func permuted(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const most = 512
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	w := c.B.Cols
	if p == nil || got == nil || len(got.Data) != len(c.B.Mask) || len(p.Want) != len(c.B.Mask) || c.B.Rows > most || c.B.Rows < 2 {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound), Judge: make([]bool, len(p.Want))}
	taken, elsewhere := map[int]bool{}, 0
	for r := range c.B.Rows {
		best, least, shared := -1, math.Inf(1), 0
		for s := range c.B.Rows {
			var sum float64
			n := 0
			for t := range w {
				if i, j := r*w+t, s*w+t; c.B.Mask[i] && c.B.Mask[j] {
					sum += math.Abs(got.Data[i] - p.Want[j])
					n++
				}
			}
			if n > 0 && sum/float64(n) < least && !taken[s] {
				best, least, shared = s, sum/float64(n), n
			}
		}
		if shared == 0 {
			continue
		}
		taken[best] = true
		if best != r {
			elsewhere++
		}
		for t := range w {
			if i, j := r*w+t, best*w+t; c.B.Mask[i] && c.B.Mask[j] {
				q.Want[i], q.Bound[i], q.Judge[i] = p.Want[j], p.Bound[j], true
			}
		}
	}
	if elsewhere < 2 {
		return nil
	}
	return q
}

// merged predicts group advantages where two groups share a key: those whose merging leaves the fewest cells wrong.
func merged(c *stage.Case, ch *stage.Check) *stage.Prediction {
	id, got := c.B.Row("group_id"), c.B.Tensors["advantages"]
	if id == nil || got == nil {
		return nil
	}
	groups := slices.Compact(slices.Sorted(slices.Values(id)))
	if len(groups) < 3 || len(groups) > 24 {
		return nil
	}
	pairwise := func(key func(g int) float64) *stage.Prediction {
		ids := make([]float64, len(id))
		for r, g := range id {
			at, _ := slices.BinarySearch(groups, g)
			ids[r] = key(at)
		}
		return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			return c.B.With("group_id", ids), c.Set, true
		}, c, ch)
	}
	var best *stage.Prediction
	fewest := math.MaxInt
	consider := func(p *stage.Prediction) {
		if p == nil || len(p.Want) != len(got.Data) {
			return
		}
		wrong := 0
		for i, w := range p.Want {
			if !(math.Abs(got.Data[i]-w) <= 4*p.Bound[i]+1e-6*math.Abs(w)) {
				wrong++
			}
		}
		if wrong < fewest {
			best, fewest = p, wrong
		}
	}
	consider(pairwise(func(g int) float64 { return float64(g / 2) }))
	for i := range groups {
		for j := i + 1; j < len(groups); j++ {
			consider(pairwise(func(g int) float64 {
				if g == j {
					return float64(i)
				}
				return float64(g)
			}))
		}
	}
	return best
}

// inverted returns the input in which finished responses get the penalty of a missing EOS, and the others do not.
func inverted(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	rule, penalty := c.Set.Value("eos.rule"), c.Set.Value("eos.penalty")
	score := c.B.Row("scores")
	if rule.Kind() != convention.Enum || penalty.Kind() != convention.Number || score == nil || c.FactList("eos_token_id") == nil {
		return nil, nil, false
	}
	x := slices.Clone(score)
	for r := range x {
		if !ended(c, r) {
			continue
		}
		switch p := penalty.Num(); {
		case rule.Text() == "subtract":
			x[r] -= p
		case rule.Text() == "replace", rule.Text() == "scale" && p < 0:
			x[r] = p
		case rule.Text() == "scale":
			x[r] *= p
		}
	}
	return c.B.With("scores", x), c.Set.With("eos.rule", parsed("eos.rule", "none"), "hypothesis"), true
}

// afterBaseline predicts group advantages from which the KL of the sequence is subtracted after the baseline.
func afterBaseline(c *stage.Case, ch *stage.Check) *stage.Prediction {
	beta, kl := c.Set.Value("kl.beta"), c.B.Token("kl")
	p := under(noKL, c, ch)
	if p == nil || kl == nil || beta.Kind() != convention.Number || len(p.Want) != c.B.Rows {
		return nil
	}
	q := *p
	q.Want, q.Bound = slices.Clone(p.Want), slices.Clone(p.Bound)
	for r := range q.Want {
		var sum, size float64
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			if c.B.Mask[i] {
				sum += kl[i]
				size += math.Abs(kl[i])
			}
		}
		q.Want[r] -= float64(beta.Num() * sum)
		q.Bound[r] += 0x1p-20 * (math.Abs(beta.Num())*size + math.Abs(q.Want[r]))
	}
	return &q
}

// spanned predicts per-token numbers of which a few rows are off by one constant each.
func spanned(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	if p == nil || got == nil || got.Layout != dump.PerToken || len(p.Want) != len(got.Data) || c.B.Cols < 3 {
		return nil
	}
	q := *p
	q.Want = slices.Clone(p.Want)
	off := 0
	for r := range c.B.Rows {
		by, n, constant := math.NaN(), 0, true
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			if !c.B.Mask[i] {
				continue
			}
			d := got.Data[i] - p.Want[i]
			if n++; n == 1 {
				by = d
			}
			constant = constant && math.Abs(d-by) <= 4*p.Bound[i]+1e-6
		}
		if n < 3 || !constant || !(math.Abs(by) > 1e-3) {
			continue
		}
		off++
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			q.Want[i] += by
		}
	}
	if off == 0 || off > max(1, c.B.Rows/4) {
		return nil
	}
	return &q
}

// upperBound returns the cap of the ratio.
func upperBound(c *stage.Case) float64 {
	high := c.Set.Value("clip.high")
	if high.Kind() != convention.Number {
		return math.Inf(1)
	}
	if v := c.Set.Value("clip.high_is_absolute"); v.Kind() == convention.Bool && v.Bool() {
		return high.Num()
	}
	return 1 + high.Num()
}

// perToken returns the input in which a tensor, per row or per token, is x per token.
func perToken(name string, x []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b := c.B.With(name, x)
		t := *b.Tensors[name]
		t.Layout, t.Width = dump.PerToken, 1
		b.Tensors[name] = &t
		return b, c.Set, true
	}
}

// rowsMoved returns a per-token output whose row r of a file is row from(r) of it.
func rowsMoved(from func(r, n int) int) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := under(sameInput, c, ch)
		if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
			return nil
		}
		q := &stage.Prediction{Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound), Judge: slices.Clone(c.B.Mask)}
		w := c.B.Cols
		for _, f := range c.B.Files {
			n := f.Hi - f.Lo
			for r := range n {
				s := from(r, n)
				for t := range w {
					i, j := (f.Lo+r)*w+t, (f.Lo+s)*w+t
					q.Want[i], q.Bound[i] = p.Want[j], p.Bound[j]
					q.Judge[i] = q.Judge[i] && c.B.Mask[j]
				}
			}
		}
		return q
	}
}

// onePass predicts group advantages whose deviation is one that E[x²] − μ² in float32 can have given. Mean and deviation of a
// group are fitted to its advantages, all of which they must explain; the mean must be right to its rounding, and the variance lie within the error of the one-pass
// formula: (n+2)·u·E[x²] of the mean of squares and (2n+1)·u·μ² of the squared mean, times n/(n−1).
func onePass(c *stage.Case, ch *stage.Check) *stage.Prediction {
	scale, eps := c.Set.Value("adv.scale"), c.Set.Value("adv.eps")
	r, group := c.B.Row("scores"), c.B.Row("group_id")
	got := c.B.Tensors["advantages"]
	if scale.Kind() != convention.Enum || scale.Text() != "group_std" || eps.Kind() != convention.Number || r == nil || group == nil || got == nil || got.Layout != dump.PerRow {
		return nil
	}
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != len(got.Data) || len(r) != len(got.Data) {
		return nil
	}
	q := *p
	q.Want, q.Bound = slices.Clone(p.Want), slices.Clone(p.Bound)
	rows := map[float64][]int{}
	for i, g := range group {
		rows[g] = append(rows[g], i)
	}
	for _, of := range rows {
		n := float64(len(of))
		var mean, adv, moment, cross, square, variance float64
		for _, i := range of {
			mean += r[i] / n
			adv += got.Data[i] / n
			moment += float64(r[i] * r[i])
		}
		for _, i := range of {
			d := r[i] - mean
			cross += float64(d * (got.Data[i] - adv))
			square += float64(d * d)
		}
		if square == 0 {
			continue
		}
		variance = square / (n - 1)
		factor := cross / square
		std := max(1/factor-eps.Num(), 0)
		centre := mean - adv/factor
		if !(factor > 0) || !(math.Abs(std*std-variance) <= (3*n+3)*0x1p-24*moment/(n-1)) || !(math.Abs(centre-mean) <= (n+1)*0x1p-24*math.Sqrt(moment/n)) {
			return nil
		}
		for _, i := range of {
			q.Want[i] = (r[i] - centre) * factor
			q.Bound[i] = 8 * 0x1p-24 * (math.Abs(q.Want[i]) + math.Abs(adv))
		}
	}
	return &q
}

// roughly widens the bounds of p to those of a float32 computation whose steps are not known.
func roughly(p *stage.Prediction) *stage.Prediction {
	if p == nil {
		return nil
	}
	for i, w := range p.Want {
		p.Bound[i] += 0x1p-19 * (math.Abs(w) + 1e-3)
	}
	return p
}

var clipMetrics = []string{"scalars/clip_frac", "scalars/actor_pg_clipfrac", "scalars/ppo_clip_ratio", "scalars/clip_ratio_low_mean", "scalars/clip_ratio_high_mean", "scalars/clip_ratio_region_mean",
	"scalars/clip_ratio_low_min", "scalars/clip_ratio_high_max"}

var metricFaults = []*Hypothesis{
	{ID: "METRIC-CLIP-SIGN-BLIND", Rows: []string{"P016"}, Checks: clipMetrics,
		Title: "ratios outside the bounds count whatever the sign of the advantage",
		Cause: "|ρ − 1| > ε is counted where only the binding side clips",
		Fix:   "count ρ < 1 − low with A < 0 and ρ > 1 + high with A > 0",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return combined(1, under(constant("advantages", -1), c, ch), 1, under(constant("advantages", 1), c, ch))
		}},
	{ID: "METRIC-CLIP-SIGN", Rows: []string{"P016"}, Checks: clipMetrics,
		Title: "the clip fraction counts the side that does not bind",
		Cause: "the comparison of the two losses is the wrong way round",
		Fix:   "count where the clipped loss is the larger one",
		Input: negated("advantages")},
	{ID: "METRIC-PPO-KL-RATIO", Rows: []string{"P094"}, Checks: []string{"scalars/ppo_kl", "scalars/approx_kl", "scalars/actor_ppo_kl"},
		Title: "the mean of −ρ is logged in place of that of −log ρ",
		Cause: "the ratio is used where the log-ratio belongs",
		Fix:   "mean(logp_old − logp_new)",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
			if lp == nil || old == nil {
				return nil
			}
			// The metric is a mean of old − new: with new = old + ρ it is that of −ρ.
			x := make([]float64, len(lp))
			for i := range x {
				x[i] = old[i] + math.Exp(lp[i]-old[i])
			}
			p := under(perToken("logp_new", x), c, ch)
			if p == nil {
				return nil
			}
			for i, w := range p.Want {
				p.Bound[i] += 0x1p-20 * math.Abs(w)
			}
			return p
		}},
	{ID: "METRIC-LAST-MICRO", Rows: []string{"P060"}, Checks: []string{"scalars"},
		Title: "the logged number is that of the last micro-batch",
		Cause: "a dictionary of metrics is overwritten, not added to",
		Fix:   "collect the metric over the micro-batches of the step",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			n := len(c.B.Files)
			if n < 2 {
				return nil
			}
			last := c.B.Files[n-1]
			rows := make([]int, 0, last.Hi-last.Lo)
			for r := last.Lo; r < last.Hi; r++ {
				rows = append(rows, r)
			}
			b := c.B.Select(rows)
			b.Files = b.Files[n-1:]
			b.Origin = slices.Clone(b.Origin)
			for i := range b.Origin {
				b.Origin[i].File = 0
			}
			for name, t := range b.Tensors {
				if t.Layout == dump.PerFile {
					u := *t
					u.Data = t.Data[n-1:]
					b.Tensors[name] = &u
				}
			}
			d := c.Of(b, c.Set)
			p := ch.Predict(d)
			if p == nil || !d.OK() || len(p.Want) != 1 {
				return nil
			}
			q := &stage.Prediction{Scale: p.Scale}
			for range n {
				q.Want, q.Bound = append(q.Want, p.Want[0]), append(q.Bound, p.Bound[0])
			}
			return q
		}},
	{ID: "METRIC-KL-K1", Rows: []string{"P003"}, Checks: []string{"scalars/kl", "scalars/actor_kl_loss"},
		Title: "the logged KL is k1, whatever the estimator",
		Cause: "the metric is recomputed with another formula than the loss",
		Fix:   "log the estimate that is used",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			ref, lp := c.B.Token("logp_ref"), c.B.Token("logp_new")
			if v := c.Set.Value("kl.place"); v.Kind() == convention.Enum && v.Text() != "loss" && v.Text() != "none" {
				lp = c.B.Token("logp_old")
			}
			if ref == nil || lp == nil {
				return nil
			}
			d := make([]float64, len(lp))
			for i := range d {
				d[i] = lp[i] - ref[i]
			}
			return roughly(under(perToken("kl", d), c, ch))
		}},
	{ID: "METRIC-ENTROPY-SENTINEL", Rows: []string{"P035"}, Checks: []string{"scalars/entropy", "scalars/actor_entropy"},
		Title: "the logged entropy is −Σ log-probs over every cell, padding with its sentinel log-prob 1.0 included",
		Cause: "a sentinel outside the mask is summed",
		Fix:   "take the mean over the mask",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			lp := c.B.Token("logp_new")
			if lp == nil {
				return nil
			}
			x := make([]float64, len(lp))
			for i := range x {
				if x[i] = -1; c.B.Mask[i] {
					x[i] = -lp[i]
				}
			}
			every := make([]bool, len(lp))
			for i := range every {
				every[i] = true
			}
			return roughly(under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				b, set, ok := perToken("entropy", x)(c)
				return b.WithMask(every), set, ok
			}, c, ch))
		}},
	{ID: "METRIC-APPROX-KL-PADS", Rows: []string{"P171"}, Checks: []string{"scalars/ppo_kl", "scalars/approx_kl", "scalars/actor_ppo_kl"},
		Title: "the logged KL of the update is averaged over padding",
		Cause: "a mean without the mask",
		Fix:   "take the mean over the mask",
		Input: mask(func(row []bool) {
			for i := range row {
				row[i] = true
			}
		})},
	{ID: "METRIC-POLICY-IS-TOTAL", Rows: []string{"P131"}, Checks: []string{"scalars/pg_loss"},
		Title: "the logged policy loss is the total",
		Cause: "the wrong key, or the variable after the other terms were added",
		Fix:   "log the policy term before the others are added",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			t := c.B.Tensors["loss"]
			if t == nil || c.B.Tensors["pg_loss"] == nil {
				return nil, nil, false
			}
			return c.B.With("pg_loss", t.Data), c.Set, true
		}},
	{ID: "METRIC-MAX-AVERAGED", Rows: []string{"P123"}, Checks: []string{"scalars/ratio_max", "scalars/clip_ratio_high_max"},
		Title: "the largest value of every micro-batch is averaged over them",
		Cause: "metrics are reduced by their mean whatever their name says",
		Fix:   "reduce a maximum by the maximum",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			d := c.Of(c.B, c.Set)
			meta := *c.B
			meta.Meta.ScalarsScope = "micro_batch"
			d.B = &meta
			p := ch.Predict(d)
			if p == nil || !d.OK() || len(p.Want) < 2 {
				return nil
			}
			var sum, err float64
			for i := range p.Want {
				sum += p.Want[i] / float64(len(p.Want))
				err = max(err, p.Bound[i])
			}
			for i := range p.Want {
				p.Want[i], p.Bound[i] = sum, err+0x1p-20*math.Abs(sum)
			}
			return p
		}},
	{ID: "METRIC-DUPLICATED-ROWS", Rows: []string{"P048"}, Checks: []string{"scalars/reward"},
		Title: "the logged reward counts rows twice that filled up the last shard",
		Cause: "the mean is taken before duplicated rows are dropped",
		Fix:   "gather with gather_for_metrics first",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			score := c.B.Row("scores")
			p := under(sameInput, c, ch)
			if p == nil || len(score) == 0 {
				return nil
			}
			x := append(slices.Clone(score), score[:(len(score)+1)/2]...)
			var sum float64
			for _, v := range x {
				sum += v
			}
			for i := range p.Want {
				p.Want[i] = sum / float64(len(x))
			}
			return roughly(p)
		}},
	{ID: "METRIC-REWARD-UNWEIGHTED", Rows: []string{"P029"}, Checks: []string{"scalars/reward", "scalars/reward_std"},
		Title: "the logged reward is not weighted",
		Cause: "rewards are summed without reward_weights for the log",
		Fix:   "log what is trained on: Σ weight·reward",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			t := c.B.Tensors["rewards_per_func"]
			if t == nil || c.B.Row("scores") == nil {
				return nil, nil, false
			}
			sums := make([]float64, c.B.Rows)
			for i, x := range t.Data {
				if !math.IsNaN(x) {
					sums[i/t.Width] += x
				}
			}
			return c.B.With("scores", sums), c.Set, true
		}},
	{ID: "METRIC-REWARD-WEIGHTED", Rows: []string{"P029"}, Checks: []string{"scalars/reward", "scalars/reward_std"},
		Title: "the logged reward is weighted, the one trained on is not",
		Cause: "reward_weights are applied for the log only",
		Fix:   "train on what is logged: Σ weight·reward",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			t, w := c.B.Tensors["rewards_per_func"], c.FactList("reward_weights")
			if t == nil || len(w) != t.Width || c.B.Row("scores") == nil {
				return nil, nil, false
			}
			sums := make([]float64, c.B.Rows)
			for i, x := range t.Data {
				if !math.IsNaN(x) {
					sums[i/t.Width] += float64(x * w[i%t.Width])
				}
			}
			return c.B.With("scores", sums), c.Set, true
		}},
}

// signFaults are what checks that assert, and compare nothing, may find: their names, causes and fixes.
var signFaults = []*Hypothesis{
	sign("GRADIENT-NAN", "a gradient is not finite where its inputs are", "exp overflows before it is clamped: 0·∞", "clamp the log-ratio before exp", "P099", "P098", "P061"),
	sign("ADV-NAN", "an advantage is not finite", "the deviation of one sample, or of none", "use groups of two or more", "H7e", "P091", "P132"),
	sign("NAN-OUTSIDE", "a number that is not finite outside the mask makes the loss NaN", "the mask is multiplied, not selected with: 0·NaN", "select with the mask (torch.where)", "P061", "P100"),
	sign("NAN-EMPTY-ROW", "a row without tokens makes the loss 0/0", "the row's mean divides by its number of tokens", "leave empty rows out, or clamp the denominator", "P132"),
	sign("LOGP-FIRST-TOKEN", "the first token's log-prob is off where the prompt is short", "prompts padded on the right", "pad prompts on the left", "H13c"),
	sign("OLD-OTHER-PASS", "the two passes of the first update differ", "dropout, other kernels or padding in one of them", "evaluation mode in both passes", "H7a", "P038", "P073", "P084", "P160", "P161", "P209"),
	sign("REF-NOT-POLICY", "at the first step the reference is another model than the policy", "another checkpoint, or the adapter is on in one of them", "make the reference of the policy before training", "P018", "P039"),
	sign("ROWS-SWAPPED", "log-probs of a row belong to another row", "one tensor was filtered, sorted or shuffled and another was not", "permute all tensors of a batch together", "P023", "P077"),
	sign("GEN-UNADAPTED", "the engine samples from the weights before training", "the sync sends the base without the adapter, or was rolled back", "send the merged weights after every update, and compare logp_gen with logp_old", "P013", "P024", "P085", "P134", "P168"),
	sign("GEN-RAW", "the engine reports log-probs before the temperature", "logprobs_mode raw", "ask the engine for processed log-probs, or divide by the temperature", "P025", "P121", "P185", "P188"),
	sign("GEN-TEMPERATURE-TWICE", "the temperature is missing on the trainer's side, or applied twice by the engine", "one side divides the logits and the other does not", "divide by the sampling temperature once on both sides", "P015", "P066", "P092", "P121"),
	sign("GEN-TRUNCATED", "the engine renormalises over the tokens that top-p or top-k kept", "truncated sampling", "sample with top_p=1 and top_k off, or correct by the kept mass", "P044", "P052"),
	sign("GEN-OTHER-TOKEN", "the engine's log-prob is that of another token than the sampled one", "the first entry of a dictionary is read", "look the sampled id up", "P119", "P126"),
	sign("GEN-ZERO", "missing engine log-probs are filled with 0", "a placeholder", "leave the tensor out where it is not known", "P120", "P174"),
	sign("LOGP-OLD-ZERO", "old log-probs are 0", "a placeholder was never filled", "fill in the log-probs of the rollout", "H1"),
	sign("LOGP-NEW-ZERO", "the policy's log-probs are 0", "a broken gather", "gather along the vocabulary", "B2"),
	sign("LOGP-NAN", "a log-prob is not finite", "an overflow in the model", "look at the logits of that token", "D10", "P147"),
	sign("REF-ZERO", "reference log-probs are 0", "the reference forward was skipped", "run the reference", "P116"),
	sign("MASK-NO-EOS", "the mask leaves out EOS", "ids ≠ pad where pad is EOS", "let the mask run up to and including the first EOS", "H13f", "P033", "P054"),
	sign("MASK-PAST-EOS", "the mask runs past EOS", "an end index of one too many", "end the mask with the first EOS", "P190"),
	sign("MASK-SHIFT", "the mask is shifted against the tokens", "one slice differs from the other", "cut the mask by the slice of the tokens", "P004", "P068"),
	sign("MASK-EMPTY", "no token is marked", "the mask was never filled", "mark the tokens that the policy sampled", "B2", "B4"),
	sign("IDS-RETOKENISED", "the ids trained on are not those sampled", "text was decoded and tokenised again", "hand on the ids", "P001", "P028", "P088"),
	sign("PROMPT-TRUNCATED", "the prompt's length is not that of its mask", "the trainer cut the prompt and the engine did not", "cut before the engine sees it", "P019"),
	sign("ROWS-REPEATED", "half of a group are copies of the other half", "repeat is applied twice", "repeat once", "P065"),
	sign("GROUP-IDENTICAL", "all completions of a group are the same", "the sampler has a fixed seed", "give every sample its own seed", "P064"),
	sign("SCORES-CONSTANT", "all scores are the same, so that nothing is learned", "the judge does not tell the completions apart", "look at the judge", "B1", "B4", "P057"),
}

func sign(id, title, cause, fix string, rows ...string) *Hypothesis {
	return &Hypothesis{ID: id, Rows: rows, Title: title, Cause: cause, Fix: fix}
}
