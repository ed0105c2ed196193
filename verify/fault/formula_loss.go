package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// numerator returns a predictor for a mask that is wrong in the sum of a mean and right in its denominator.
func numerator(in input) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b, _, ok := in(c)
		if !ok {
			return nil
		}
		switch aggregation(c) {
		case "token":
		case "seq_mean_token_mean":
			by, was := tokensOf(b, b.Mask), tokensOf(c.B, c.B.Mask)
			for r := range by {
				by[r] /= max(was[r], 1)
			}
			return weighted(b, c, ch, by)
		default:
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
		return combined(1, timesCells(p, 0, func(i int) float64 { return a.X[i] }), 1, kl)
	}
	return under(token("token_loss", func(_ *stage.Case, x []float64) []float64 {
		return eachOf(len(x), func(i int) float64 { return x[i] * a.X[i] })
	}), c, ch)
}

// weightsOf returns ∂loss/∂(token loss) of every cell: the gradient of a KL term of k1 with coefficient 1, whose derivative is 1.
// The loss of a token of a supervised batch is −logp_new.
func weightsOf(c *stage.Case, ch *stage.Check) *stage.Prediction {
	if c.B.Meta.Algorithm == "sft" {
		return opposite(c, ch)
	}
	return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		set := c.Set.With("kl.kind", parsed("kl.kind", "k1"), "hypothesis").With("kl.grad", parsed("kl.grad", "naive"), "hypothesis").
			With("kl.beta", convention.NumberValue(1), "hypothesis").With("kl.place", parsed("kl.place", "loss"), "hypothesis").
			With("kl.clamp_in", parsed("kl.clamp_in", "none"), "hypothesis").With("kl.clamp_out", parsed("kl.clamp_out", "none"), "hypothesis")
		b, _, ok := noPolicy(c)
		if !ok {
			return nil, nil, false
		}
		if b.Tensors["logp_new"] == nil { // a loss of token_loss alone: the weights are those of any numbers
			if b, _, ok = perToken("logp_new", make([]float64, len(b.Mask)))(c.Of(b, set)); !ok {
				return nil, nil, false
			}
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
	q := altered(p)
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
	return q
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

// perToken returns the input in which a tensor, per row or per token or none of the batch, is x per token.
func perToken(name string, x []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b := c.B.With(name, x)
		t := *b.Tensors[name]
		t.Layout, t.Width = dump.PerToken, 1
		b.Tensors[name] = &t
		return b, c.Set, true
	}
}
