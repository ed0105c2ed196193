package fault

import (
	"math"
	"slices"
	"strings"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// klForms are slips in the estimator k3 = eˣ − x − 1 of x = logp_ref − logp, and in k2 = ½x². Each gives the estimate and its
// derivative by x.
func klForms() []*Hypothesis {
	var list []*Hypothesis
	for _, f := range []struct {
		title, kind  string
		value, slope func(x float64) float64
	}{
		{"eˣ − x, without the −1", "k3", func(x float64) float64 { return math.Exp(x) - x }, func(x float64) float64 { return math.Exp(x) - 1 }},
		{"eˣ − 1, without the −x", "k3", math.Expm1, math.Exp},
		{"eˣ − 1 + x: the sign of x is wrong in one place", "k3", func(x float64) float64 { return math.Expm1(x) + x }, func(x float64) float64 { return math.Exp(x) + 1 }},
		{"e⁻ˣ − x − 1: the sign of x is wrong in one place", "k3", func(x float64) float64 { return math.Expm1(-x) - x }, func(x float64) float64 { return -math.Exp(-x) - 1 }},
		{"eˣ − x − 1 of the exchanged policies", "k3", func(x float64) float64 { return math.Expm1(-x) + x }, func(x float64) float64 { return 1 - math.Exp(-x) }},
		{"|x|", "", math.Abs, func(x float64) float64 { return math.Copysign(1, x) }},
		{"x², without the ½", "", func(x float64) float64 { return x * x }, func(x float64) float64 { return 2 * x }},
	} {
		id := "KL-FORMULA"
		if strings.Contains(f.title, "exchanged policies") {
			id = "KL-REVERSED"
		}
		list = append(list, &Hypothesis{ID: id, Checks: []string{"kl/token", "token_loss", "aggregate/loss", "aggregate/kl_loss", "gradient/dlogp"},
			Title: "the estimate of KL is " + f.title, Configured: coefficientOf(f.value),
			Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				if v := c.Set.Value("kl.kind"); f.kind != "" && (v.Kind() != convention.Enum || v.Text() != f.kind) {
					return nil
				}
				if ch.Stage == convention.Gradient && strings.HasSuffix(f.title, "without the −x") && rightKL(c) {
					return nil // the term is there, and detached
				}
				return estimated(c, ch, f.value, f.slope)
			}})
	}
	return append(list, &Hypothesis{ID: "KL-CUT-OFF", Checks: []string{"kl/token"},
		Predict: cutOff}, &Hypothesis{ID: "KL-SIGN", Checks: []string{"kl/token"}, Title: "the estimate of KL has the wrong sign",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if v := c.Set.Value("kl.kind"); v.Kind() != convention.Enum || v.Text() == "k1" {
				return nil // −k1 is that of the exchanged policies
			}
			return opposite(c, ch)
		}})
}

// estimated predicts the estimate of KL by another formula of x = logp_ref − logp, or the gradient of a loss that has it. What the options hold x and the
// estimate within holds them here, too.
func estimated(c *stage.Case, ch *stage.Check, value, slope func(x float64) float64) *stage.Prediction {
	in, out := numberOr(c, "kl.clamp_in", 0), numberOr(c, "kl.clamp_out", 0)
	if c.EnumOr("kl.kind", "") != "k3" && !c.BoolOr("kl.clamp_applies_to_k1", false) {
		in, out = 0, 0
	}
	least, most := -in, in
	if in == 0 {
		least, most = math.Inf(-1), math.Inf(1)
	} else if c.EnumOr("kl.clamp_in_side", "both") == "below" { // of logp − logp_ref
		least = math.Inf(-1)
	}
	held := func(lp, ref float64) float64 { return min(max(ref-lp, least), most) }
	return estimatedOf(c, ch, func(lp, ref float64) float64 {
		y := value(held(lp, ref))
		if out > 0 {
			y = min(max(y, -out), out)
		}
		return y
	}, func(lp, ref float64) float64 {
		x := held(lp, ref)
		if x != ref-lp || out > 0 && math.Abs(value(x)) > out {
			return 0
		}
		return -slope(x)
	})
}

// estimatedOf is [estimated] for a formula of both log-probs, with its slope ∂/∂logp.
func estimatedOf(c *stage.Case, ch *stage.Check, value, slope func(lp, ref float64) float64) *stage.Prediction {
	place, ref := c.Set.Value("kl.place"), c.B.Token("logp_ref")
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	inLoss := place.Kind() == convention.Enum && (place.Text() == "loss" || place.Text() == "none")
	if !inLoss {
		lp = old
	}
	if lp == nil || ref == nil || place.Kind() != convention.Enum {
		return nil
	}
	corrected := false
	if v := c.Set.Value("kl.grad"); v.Kind() == convention.Enum && inLoss && v.Text() != "naive" && (v.Text() == "is_corrected" || ch.Stage != convention.KL) { // the others change the slope alone
		if corrected = v.Text() == "is_corrected"; !corrected || c.EnumOr("ratio.level", "token") != "token" {
			return nil
		}
		if old == nil { // the program has a detached copy of the new ones (TRL 1.16, grpo_trainer.py, _compute_loss)
			old = lp
		}
	}
	want, bound := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range want {
		x, r := ref[i]-lp[i], 1.0
		if corrected {
			r = math.Exp(lp[i] - old[i])
		}
		want[i] = r * value(lp[i], ref[i])
		if ch.Stage == convention.Gradient {
			want[i] = slope(lp[i], ref[i])
			if corrected {
				want[i] = r * (value(lp[i], ref[i]) + slope(lp[i], ref[i]))
			}
		}
		size := math.Abs(lp[i]) + math.Abs(ref[i])
		if corrected {
			size += math.Abs(old[i])
		}
		bound[i] = 8 * c.Unit * r * (1 + size) * (1 + math.Exp(math.Abs(x)) + x*x)
	}
	switch ch.Stage {
	case convention.KL:
		return &stage.Prediction{Want: want, Bound: bound}
	case convention.TokenLoss, convention.Aggregate:
		if c.Has("kl") || ch.Stage == convention.Aggregate && c.Has("token_loss") {
			return nil // it is read as it was dumped: the slip shows there
		}
		none := under(perToken("kl", make([]float64, len(want))), c, ch)
		return withBound(under(perToken("kl", want), c, ch), combined(1, under(perToken("kl", bound), c, ch), -1, none))
	}
	beta := c.Set.Value("kl.beta")
	if beta.Kind() != convention.Number || place.Text() != "loss" {
		return nil
	}
	for i := range want {
		want[i] *= beta.Num()
	}
	p, w := under(noKL, c, ch), weightsOf(c, ch)
	q := added(p, w, want)
	for i := range want {
		if q != nil {
			q.Bound[i] += math.Abs(w.Want[i]*beta.Num()) * bound[i]
		}
	}
	return q
}

// withBound returns p with the magnitudes of e added to its bounds, nil if either is nil.
func withBound(p, e *stage.Prediction) *stage.Prediction {
	if p == nil || e == nil || len(p.Want) != len(e.Want) {
		return nil
	}
	q := *p
	q.Bound = slices.Clone(p.Bound)
	for i, x := range e.Want {
		q.Bound[i] += math.Abs(x)
	}
	return &q
}

// widened returns p with a part of the magnitudes of its numbers added to its bounds.
func widened(p *stage.Prediction, part float64) *stage.Prediction {
	if p == nil {
		return nil
	}
	q := *p
	q.Bound = slices.Clone(p.Bound)
	for i, w := range p.Want {
		q.Bound[i] += part * math.Abs(w)
	}
	return &q
}

// policyForms are slips in the clipped objective −min(ρA, clip(ρ)A). Each gives the loss of a token, and its derivative by log ρ.
func policyForms() []*Hypothesis {
	inside := func(r, low, high float64) bool { return r >= low && r <= high }
	var list []*Hypothesis
	for _, f := range []struct {
		id   string
		form func(r, a, low, high float64) (value, slope float64)
	}{
		{"CLIP-WITHOUT-MIN", func(r, a, low, high float64) (float64, float64) {
			if inside(r, low, high) {
				return -a * r, -a * r
			}
			return -a * min(max(r, low), high), 0
		}},
		{"CLIP-WRONG-SIDE", func(r, a, low, high float64) (float64, float64) {
			if r > high { // max(ρA, cA) of a negative A is A times the smaller of the two, as min(ρA, cA) of a positive one is
				return -a * high, 0
			}
			return -a * r, -a * r
		}},
		{"CLIP-DROPS", func(r, a, low, high float64) (float64, float64) {
			if inside(r, low, high) {
				return -a * r, -a * r
			}
			return 0, 0
		}},
		{"CLIP-LOG-RATIO", func(r, a, low, high float64) (float64, float64) {
			if c := min(max(r, math.Exp(low-1)), math.Exp(high-1)); a*c < a*r {
				return -a * c, 0
			}
			return -a * r, -a * r
		}},
		{"CLIP-RANGE-ABSOLUTE", func(r, a, low, high float64) (float64, float64) {
			if c := min(max(r, 1-low), high-1); a*c < a*r {
				return -a * c, 0
			}
			return -a * r, -a * r
		}},
		{"ADV-ABSOLUTE", func(r, a, low, high float64) (float64, float64) {
			a = math.Abs(a)
			if r > high {
				return -a * high, 0
			}
			return -a * r, -a * r
		}},
	} {
		list = append(list, &Hypothesis{ID: f.id, Checks: []string{"token_loss", "gradient/dlogp"},
			Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return objective(c, ch, f.form) }})
	}
	return list
}

// objective predicts an output of a policy loss of another form: that of an unclipped loss whose advantages give it.
func objective(c *stage.Case, ch *stage.Check, form func(r, a, low, high float64) (value, slope float64)) *stage.Prediction {
	c = ofStored(c)
	lp, old, adv := c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages")
	low, high := c.Set.Value("clip.low"), c.Set.Value("clip.high")
	kind, level := c.Set.Value("loss.kind"), c.Set.Value("ratio.level")
	if lp == nil || old == nil || adv.X == nil || low.Kind() != convention.Number || high.Kind() != convention.Number ||
		kind.Kind() != convention.Enum || kind.Text() != "ppo" || level.Kind() != convention.Enum || level.Text() != "token" {
		return nil
	}
	if v := c.Set.Value("ratio.old"); v.Kind() == convention.Enum && v.Text() != "stored" {
		return nil
	}
	for _, name := range []string{"clip.dual", "clip.delta"} {
		if c.Set.Value(name).Kind() == convention.Number {
			return nil // more bounds than these forms have
		}
	}
	a := make([]float64, len(lp))
	for i := range a {
		r := math.Exp(lp[i] - old[i])
		value, slope := form(r, adv.X[i], 1-low.Num(), 1+high.Num())
		if a[i] = -value / r; ch.Stage == convention.Gradient {
			a[i] = -slope / r
		}
	}
	unclipped := both(option("clip.low", "none"), option("clip.high", "none"))
	return combined(1, policyOnly(both(perToken("advantages", a), unclipped), c, ch), 1, klOnly(c, ch))
}
