package fault

import (
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// numerator returns a predictor for a mask that is wrong in the sum of a mean and right in its denominator.
func numerator(change func(row []bool)) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b, set, ok := mask(change)(c)
		if !ok || c.Set.Value("agg.kind").Kind() != convention.Enum || c.Set.Value("agg.kind").Text() != "token" {
			return nil
		}
		p := under(func(*stage.Case) (*dump.Batch, *convention.Set, bool) { return b, set, true }, c, ch)
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
		raw := under(both(in, option("whiten.scope", "none")), c, ch)
		if v := c.Set.Value("whiten.scope"); v.Kind() != convention.Enum || v.Text() == "none" || raw == nil {
			return raw
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

var engineFaults = []*Hypothesis{
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
	{ID: "LOGP-SHIFT-BACK", Rows: []string{"P172", "P173"}, Checks: []string{"logp"},
		Title: "log-probs are one position early",
		Cause: "logits of position t+1 are read for token t",
		Fix:   "logits[:, :-1] score ids[:, 1:]",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
				return nil
			}
			q := *p
			q.Want, q.Bound = shift(p.Want, c.B.Rows, c.B.Cols, -1), shift(p.Bound, c.B.Rows, c.B.Cols, -1)
			return &q
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
		Title: "half of the critic's gradient is cancelled", Cause: "the bootstrapped target is not detached", Fix: "detach the returns",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			return combined(0.5, p, 0, p)
		}},
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

var clipMetrics = []string{"scalars/clip_frac", "scalars/clip_ratio_low_mean", "scalars/clip_ratio_high_mean", "scalars/clip_ratio_region_mean",
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
	{ID: "METRIC-PPO-KL-RATIO", Rows: []string{"P094"}, Checks: []string{"scalars/ppo_kl", "scalars/approx_kl"},
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
