package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A loss that multiplies by importance weights may have others than those of the rollout: a function of them, or what the formula of the
// weights gives of other log-probs, of another level or under another rule.
type lossWeight struct {
	id, title string
	of        func(c *stage.Case, w *stage.Prediction) *stage.Prediction // of the right ones; nil: see in
	in        input                                                      // of the formula
	through   bool                                                       // the weights carry gradient
}

// lossWeights are importance weights that a loss applies in place of those of the rollout.
func lossWeights(c *stage.Case) []lossWeight {
	list := []lossWeight{
		{id: "IS-NOT-APPLIED", title: "1", of: mappedWeights(func(float64) float64 { return 1 })},
		{id: "IS-TWICE", title: "their squares", of: mappedWeights(func(x float64) float64 { return x * x })},
		{id: "IS-INVERTED", title: "their inverses", of: mappedWeights(func(x float64) float64 { return 1 / x })},
		{id: "IS-CLAMP-MISSING", title: "1 where they are not 0: what is kept is not weighted", of: mappedWeights(func(x float64) float64 { return float64(boolToInt(x != 0)) })},
		{id: "IS-GRADIENT", title: "e to the (logp_new − logp_gen), of the new pass, within the declared bounds, and they carry gradient", in: instead("logp_old", "logp_new"), through: true},
		{id: "IS-GRADIENT", title: "e to the (logp_new − logp_gen), of the new pass, without a bound, and they carry gradient", in: both(instead("logp_old", "logp_new"), unbounded), through: true},
		{id: "RATIO-FORM", title: "their square roots", of: mappedWeights(math.Sqrt)},
		{id: "IS-NORMALISED", title: "their mean over the tokens of the micro-batch", of: meanWeights(false, false)},
		{id: "IS-NORMALISED", title: "their mean over all cells of the micro-batch", of: meanWeights(false, true)},
		{id: "IS-LEVEL", title: "their mean over the response", of: meanWeights(true, false)},
		{id: "IS-INVERTED", title: "e to the (logp_gen − logp_old), within the declared bounds", in: crossed("logp_gen", "logp_old")},
		{id: "IS-NEW-FOR-OLD", title: "e to the (logp_new − logp_gen), of the new pass, within the declared bounds", in: instead("logp_old", "logp_new")},
		{id: "IS-NEW-FOR-OLD", title: "e to the (logp_new − logp_gen), of the new pass, without a bound", in: both(instead("logp_old", "logp_new"), unbounded)},
		{id: "IS-NEW-FOR-GEN", title: "e to the (logp_old − logp_new), of the new pass in place of the engine", in: instead("logp_gen", "logp_new")},
		{id: "IS-OLD-FOR-GEN", title: "e to the (logp_new − logp_old), the update's own ratio", in: both(instead("logp_gen", "logp_old"), instead("logp_old", "logp_new"))},
		{id: "IS-OF-REFERENCE", title: "e to the (logp_old − logp_ref), of the reference in place of the engine", in: instead("logp_gen", "logp_ref")},
		{id: "IS-OF-REFERENCE", title: "e to the (logp_ref − logp_gen), of the reference in place of the trainer", in: instead("logp_old", "logp_ref")},
		{id: "IS-CLAMP-MISSING", title: "e to the (logp_old − logp_gen) without a bound", in: unbounded},
		{id: "IS-CLAMP-MISSING", title: "at least tis.high where they should be at most tis.high: a maximum where a minimum belongs", in: turnedBound},
		{id: "IS-CLAMP-MISSING", title: "at most 1", in: atMostOne},
		{id: "IS-CLAMP-MISSING", title: "at most 1/tis.high", in: number("tis.high", func(x float64) float64 { return 1 / x })},
	}
	for _, rule := range []struct{ name, title string }{{"truncate_upper", "held at tis.high, and not from below"}, {"clamp", "held within the bounds"}, {"zero_outside", "0 outside the bounds"}, {"seq_filter", "those of the tokens, 0 in responses outside the bounds"}} {
		list = append(list, lossWeight{id: "IS-CLAMP-MISSING", title: rule.title, in: option("tis.rule", rule.name)})
	}
	for _, level := range []struct{ name, title string }{{"token", "those of single tokens"}, {"seq_sum", "e to the sum of the log-ratios of the response"}, {"seq_geo", "e to the mean of the log-ratios of the response"}} {
		list = append(list, lossWeight{id: "IS-LEVEL", title: level.title, in: option("tis.level", level.name)})
		if c.EnumOr("tis.level", "none") == "seq_geo" && level.name == "seq_sum" {
			list[len(list)-1].id = "IS-SUM-FOR-MEAN"
		}
	}
	for _, s := range weightScopes {
		list = append(list, lossWeight{id: "IS-LEVEL", title: "of a response " + s.title, in: ofScope(s)})
	}
	return list
}

// unbounded returns the input whose weights have no bounds.
func unbounded(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	set := c.Set
	for _, o := range [][2]string{{"tis.rule", "clamp"}, {"tis.gate", "ratio"}, {"tis.low", "none"}, {"tis.high", "none"}} {
		set = set.With(o[0], parsed(o[0], o[1]), "hypothesis")
	}
	return c.B, set, true
}

// turnedBound returns the input whose weights are held from below at what should hold them from above.
func turnedBound(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	high := c.Set.Value("tis.high")
	if high.Kind() != convention.Number {
		return nil, nil, false
	}
	b, set, _ := unbounded(c)
	return b, set.With("tis.low", high, "hypothesis"), true
}

// atMostOne returns the input whose weights are held at 1.
func atMostOne(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b, set, _ := unbounded(c)
	return b, set.With("tis.high", convention.NumberValue(1), "hypothesis"), true
}

// meanOverColumns returns the input whose weights of responses are those of log-ratios divided by the columns of their file.
func meanOverColumns(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	old, gen := ofTrainer(c), c.B.Token("logp_gen")
	level := c.EnumOr("tis.level", "none")
	if old == nil || gen == nil || level != "seq_sum" && level != "seq_geo" {
		return nil, nil, false
	}
	y, w := make([]float64, len(gen)), c.B.Cols
	for r, n := range tokensOf(c.B, c.B.Mask) {
		by := float64(width(c.B, r))
		if level == "seq_geo" {
			by /= max(n, 1)
		}
		for i := r * w; i < (r+1)*w; i++ {
			y[i] = old[i] - (old[i]-gen[i])/by
		}
	}
	return c.B.With("logp_gen", y), c.Set, true
}

// otherLevel returns the input whose weights are of another level than one of the declared ones.
func otherLevel(level string, declared ...string) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		if !slices.Contains(declared, c.Set.Value("tis.level").String()) {
			return nil, nil, false
		}
		return option("tis.level", level)(c)
	}
}

// crossed returns the input in which two tensors stand for each other.
func crossed(one, other string) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		a, b := c.B.Token(one), c.B.Token(other)
		if a == nil || b == nil {
			return nil, nil, false
		}
		return c.B.With(one, b).With(other, a), c.Set, true
	}
}

// mappedWeights returns a function of every weight; its error is what the function makes of that of the weight, and 8 roundings.
func mappedWeights(f func(float64) float64) func(*stage.Case, *stage.Prediction) *stage.Prediction {
	return func(c *stage.Case, w *stage.Prediction) *stage.Prediction {
		p := &stage.Prediction{Want: make([]float64, len(w.Want)), Bound: make([]float64, len(w.Want))}
		for i, x := range w.Want {
			if !c.B.Mask[i] {
				continue
			}
			y := f(x)
			p.Want[i] = y
			p.Bound[i] = max(math.Abs(f(x-w.Bound[i])-y), math.Abs(f(x+w.Bound[i])-y)) + 8*c.Unit*math.Abs(y)
		}
		return p
	}
}

// meanWeights returns the mean of the weights over the tokens of a row, or of a micro-batch or all its cells, at each of them.
func meanWeights(rows, pads bool) func(*stage.Case, *stage.Prediction) *stage.Prediction {
	return func(c *stage.Case, w *stage.Prediction) *stage.Prediction {
		b := c.B
		p := &stage.Prediction{Want: make([]float64, len(w.Want)), Bound: make([]float64, len(w.Want))}
		mean := func(lo, hi int) {
			var sum, e, n float64
			for i := lo * b.Cols; i < hi*b.Cols; i++ {
				if b.Mask[i] || pads && (b.Origin[i/b.Cols].Cols <= 0 || i%b.Cols < b.Origin[i/b.Cols].Cols) {
					sum, e, n = sum+w.Want[i], e+w.Bound[i], n+1
				}
			}
			for i := lo * b.Cols; i < hi*b.Cols; i++ {
				p.Want[i] = sum / max(n, 1)
				p.Bound[i] = e/max(n, 1) + 64*c.Unit*math.Abs(p.Want[i])
			}
		}
		for _, f := range b.Files {
			if !rows {
				mean(f.Lo, f.Hi)
				continue
			}
			for r := f.Lo; r < f.Hi; r++ {
				mean(r, r+1)
			}
		}
		return p
	}
}

// weightsGiven returns the weights of the rollout by token: those of the dump, else what their formula gives. It is nil where the loss has none.
func weightsGiven(c *stage.Case) *stage.Prediction {
	w := c.Of(c.B, c.Set).LossWeights()
	if len(w.X) != len(c.B.Mask) {
		return nil
	}
	p := &stage.Prediction{Want: w.X, Bound: make([]float64, len(w.X))}
	for i := range p.Bound {
		p.Bound[i] = w.E(i)
	}
	return p
}

// predict predicts an output of the loss under the weights of f.
func (f lossWeight) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	bare := c.B.Without("is_weights")
	var w *stage.Prediction
	if f.of != nil {
		if w = weightsGiven(c); w != nil {
			w = f.of(c, w)
		}
	} else {
		w = under(f.in, c.Of(bare, c.Set), stage.Find("ratio/is_weights"))
	}
	if w == nil || len(w.Want) != len(c.B.Mask) {
		return nil
	}
	level := c.Set.Value("tis.level") // that it is declared makes the loss apply it
	d := c.Of(bare, c.Set.With("tis.level", level, "hypothesis")).Standing("is_weights", w)
	if d == nil {
		return nil
	}
	p := ch.Predict(d)
	if p == nil || !d.OK() {
		return nil
	}
	if f.through && ch.Stage == convention.Gradient {
		e := c.Of(d.B, d.Set).Standing("is_weights", w)
		policy := policyOnlyOf(e)
		if policy == nil || len(policy.Want) != len(w.Want) {
			return nil
		}
		return added(p, weightsOf(c, ch), throughWeights(c, policy.Want, w.Want))
	}
	return p
}

// policyOnlyOf predicts the token losses of a case without their KL.
func policyOnlyOf(c *stage.Case) *stage.Prediction {
	loss := stage.Find("token_loss/policy")
	p := loss.Predict(c)
	if p == nil || !c.OK() {
		return nil
	}
	kl := klOnly(c.Of(c.B, c.Set), loss)
	if kl == nil {
		return p
	}
	return combined(1, p, -1, kl)
}

// throughWeights returns what the gradient of a token has in addition where it flows through the weights w = e to the d, of losses that are
// multiplied by them: the loss of the token, or of its row where that has one weight, less what a bound holds.
func throughWeights(c *stage.Case, loss, w []float64) []float64 {
	b := c.B
	high, level := numberOr(c, "tis.high", math.Inf(1)), c.EnumOr("tis.level", "token")
	extra := slices.Clone(loss)
	for r := range b.Rows {
		var sum, n float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if w[i] >= high {
				extra[i] = 0
			}
			if b.Mask[i] {
				sum, n = sum+extra[i], n+1
			}
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			switch level {
			case "seq_sum":
				extra[i] = sum
			case "seq_geo":
				extra[i] = sum / max(n, 1)
			}
		}
	}
	return extra
}

// lossWeightEdits returns edits of the importance weights that a loss applies.
func lossWeightEdits(o *stage.Outcome) []edit {
	switch o.Check.ID {
	case "token_loss/policy", "gradient/dlogp":
	case "aggregate/pg_loss", "aggregate/loss":
		if o.Case.Has("token_loss") || o.Check.ID == "aggregate/loss" && o.Case.Has("pg_loss") {
			return nil // it is aggregated as it was dumped: the edit shows there
		}
	default:
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if c.B.Cols == 0 || weightsGiven(c) == nil {
		return nil
	}
	var list []edit
	for _, f := range lossWeights(c) {
		list = append(list, edit{id: f.id, title: "the loss is multiplied by other importance weights: " + f.title, changes: 1, predict: f.predict})
	}
	return list
}
