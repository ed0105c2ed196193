package fault

import (
	"cmp"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// lossForm is another loss of a token than the declared one, with its slope ∂ℓ/∂logp_new, of the log-probs and the advantage of the token.
type lossForm struct {
	id    string // "" is LOSS-KIND
	title string
	old   bool // reads logp_old
	of    func(lp, old, a float64, o tokenBounds) (loss, slope float64)
}

// configuredForms are losses that loss.kind and ratio.old may say.
var configuredForms = []lossForm{
	{"", "−A·logp_new: the score function without a ratio", false, func(lp, _, a float64, _ tokenBounds) (float64, float64) { return -a * lp, -a }},
	{"", "−A·e to the (logp_new − sg logp_new): a ratio of 1", false, func(_, _, a float64, _ tokenBounds) (float64, float64) { return -a, -a }},
}

// lossForms are losses of score functions and of probabilities, in which a ratio or a logarithm is missing, or stands detached.
var lossForms = []lossForm{
	{"", "−A·ρ·logp_new, the ratio ρ detached", true, func(lp, old, a float64, _ tokenBounds) (float64, float64) {
		r := math.Exp(lp - old)
		return -a * r * lp, -a * r
	}},
	{"", "−A·clip(ρ)·logp_new, the clipped ratio detached", true, func(lp, old, a float64, o tokenBounds) (float64, float64) {
		r := min(max(math.Exp(lp-old), 1-o.low), 1+o.high)
		return -a * r * lp, -a * r
	}},
	{"", "−A·clip(ρ)·ρ, the clipped ratio detached: the ratio stands where the log-prob belongs", true, func(lp, old, a float64, o tokenBounds) (float64, float64) {
		r := math.Exp(lp - old)
		return -a * min(max(r, 1-o.low), 1+o.high) * r, -a * min(max(r, 1-o.low), 1+o.high) * r
	}},
	{"", "−A·p, p = e to the logp_new: of the probability, not of its logarithm", false, func(lp, _, a float64, _ tokenBounds) (float64, float64) {
		return -a * math.Exp(lp), -a * math.Exp(lp)
	}},
	{"", "−A·ρ·p, the ratio ρ detached, p = e to the logp_new: of the probability, not of its logarithm", true, func(lp, old, a float64, _ tokenBounds) (float64, float64) {
		return -a * math.Exp(lp-old) * math.Exp(lp), -a * math.Exp(lp-old) * math.Exp(lp)
	}},
	{"", "−A·clip(ρ)·p, the clipped ratio detached, p = e to the logp_new: of the probability, not of its logarithm", true, func(lp, old, a float64, o tokenBounds) (float64, float64) {
		r := min(max(math.Exp(lp-old), 1-o.low), 1+o.high)
		return -a * r * math.Exp(lp), -a * r * math.Exp(lp)
	}},
	{"", "−A·p·logp_new, the probability p detached", false, func(lp, _, a float64, _ tokenBounds) (float64, float64) {
		return -a * math.Exp(lp) * lp, -a * math.Exp(lp)
	}},
	{"", "−A·p·logp_new, the gradient that of both factors", false, func(lp, _, a float64, _ tokenBounds) (float64, float64) {
		return -a * math.Exp(lp) * lp, -a * math.Exp(lp) * (lp + 1)
	}},
	{"", "−A·(p_new − p_old): a difference of probabilities, not their quotient", true, func(lp, old, a float64, _ tokenBounds) (float64, float64) {
		return -a * (math.Exp(lp) - math.Exp(old)), -a * math.Exp(lp)
	}},
	{"", "−A·(1 + p_new − p_old): a difference of probabilities, not their quotient", true, func(lp, old, a float64, _ tokenBounds) (float64, float64) {
		return -a * (1 + math.Exp(lp) - math.Exp(old)), -a * math.Exp(lp)
	}},
	{"", "−A·(logp_new − logp_old), without the exponential and without a clip", true, func(lp, old, a float64, _ tokenBounds) (float64, float64) {
		return -a * (lp - old), -a
	}},
	{"", "−A·logp_new²", false, func(lp, _, a float64, _ tokenBounds) (float64, float64) { return -a * lp * lp, -2 * a * lp }},
	{"", "the mean of the clipped and the unclipped side", true, func(lp, old, a float64, o tokenBounds) (float64, float64) {
		loss, slope := bothSides(lp, old, a, o)
		return loss / 2, slope / 2
	}},
	{"", "the sum of the clipped and the unclipped side", true, bothSides},
}

func bothSides(lp, old, a float64, o tokenBounds) (loss, slope float64) {
	r := math.Exp(lp - old)
	c := min(max(r, 1-o.low), 1+o.high)
	loss, slope = -a*(r+c), -a*r
	if c == r {
		slope *= 2
	}
	return loss, slope
}

// lossEdits returns edits of the policy term as another loss of the token.
func lossEdits(o *stage.Outcome) []edit {
	if !policyOutput(o) {
		return nil
	}
	var list []edit
	forms := slices.Clone(lossForms)
	switch kind := o.Case.Set.Value("loss.kind").String(); {
	case kind == "cispo":
		forms = append(forms, detachedForms...)
	case kind == "ppo" && o.Case.Set.Value("ratio.level").String() == "token":
		forms = append(forms, jointForms()...)
	}
	for _, f := range configuredForms {
		list = append(list, edit{id: "LOSS-KIND", title: "the loss of a token is " + f.title, changes: 1, configured: []string{"loss.kind"}, predict: f.predict})
	}
	for _, f := range forms {
		list = append(list, edit{id: cmp.Or(f.id, "LOSS-KIND"), title: "the loss of a token is " + f.title, changes: 1, predict: f.predict})
	}
	return list
}

// predict predicts an output of the loss: that of an unclipped one whose ratios are 1 and whose advantages are the losses, or the slopes.
// What a form computes of a log-prob has its rounding: e to the x is off by u·(2 + |x|) of its size, and each form has four factors at most.
func (f lossForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	c = ofStored(c)
	lp, old, adv := c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages").X
	kind := c.Set.Value("loss.kind")
	if lp == nil || len(adv) != len(lp) || f.old && old == nil || kind.Kind() != convention.Enum || kind.Text() == "gmpo" {
		return nil
	}
	if weighsBesides(c) {
		return nil
	}
	o := boundsOf(c)
	if kind.Text() == "cispo" {
		o.high = upperBound(c) - 1
	}
	a, e := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range c.B.Tokens() {
		size, was := math.Abs(lp[i]), 0.0
		if f.old {
			was = old[i]
			size += math.Abs(was)
		}
		loss, slope := f.of(lp[i], was, adv[i], o)
		if a[i] = -loss; ch.Stage == convention.Gradient {
			a[i] = -slope
		}
		e[i] = 8 * c.Unit * (2 + size) * (math.Abs(a[i]) + math.Abs(adv[i]))
	}
	return ofLosses(c, ch, a, e)
}

// ofLosses predicts an output of which the policy loss of a token is −a, off by e: the advantages of a loss whose ratios are 1. For a gradient −a is
// the slope.
func ofLosses(c *stage.Case, ch *stage.Check, a, e []float64) *stage.Prediction {
	p := policyOnly(withoutRatio(a), c, ch)
	p = withBound(p, combined(1, policyOnly(withoutRatio(e), c, ch), -1, policyOnly(withoutRatio(make([]float64, len(a))), c, ch)))
	return combined(1, p, 1, klOnly(c, ch))
}

// weighsBesides reports whether importance weights are made of the old log-probs and not dumped: a form that replaces these would change them.
func weighsBesides(c *stage.Case) bool {
	v := c.Set.Value("tis.level")
	return v.Kind() == convention.Enum && v.Text() != "none" && c.B.Tensors["is_weights"] == nil && c.B.Token("logp_gen") != nil
}

// withoutRatio returns the input whose policy loss of a token is −a: every ratio is 1, and nothing is clipped.
func withoutRatio(a []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, _, _ := perToken("advantages", a)(c)
		b, _, _ = perToken("logp_old", c.B.Token("logp_new"))(c.Of(b, c.Set))
		set := c.Set
		for _, o := range [][2]string{{"loss.kind", "ppo"}, {"ratio.level", "token"}, {"ratio.old", "stored"}, {"ratio.log_clamp", "none"},
			{"clip.low", "none"}, {"clip.high", "none"}, {"clip.dual", "none"}, {"clip.delta", "none"}} {
			set = set.With(o[0], parsed(o[0], o[1]), "hypothesis")
		}
		return b, set, true
	}
}

// normalisations are what programs do to the advantages once more, in the loss of a micro-batch.
var normalisations = []struct {
	title         string
	rows          bool // of the rows' numbers, not of the tokens'
	pads, centred bool
	ddof          float64
}{
	{"the mean of its responses subtracted, over their deviation with n − 1", true, false, true, 1},
	{"the mean of its responses subtracted, over their deviation with n", true, false, true, 0},
	{"the mean of its tokens subtracted, over their deviation with n − 1", false, false, true, 1},
	{"the mean of its tokens subtracted, over their deviation with n", false, false, true, 0},
	{"the mean of all its cells subtracted, over their deviation with n − 1", false, true, true, 1},
	{"the mean of all its cells subtracted, over their deviation with n", false, true, true, 0},
	{"over the deviation of its responses with n − 1, without a mean", true, false, false, 1},
	{"over the deviation of its tokens with n − 1, without a mean", false, false, false, 1},
}

// normalisedAgain returns edits of the policy term whose advantages are normalised over the micro-batch.
func normalisedAgain(o *stage.Outcome) []edit {
	if o.Check.ID != "token_loss/policy" && o.Check.ID != "gradient/dlogp" {
		return nil
	}
	var list []edit
	for _, f := range normalisations {
		list = append(list, edit{id: "WHITEN-FORM", title: "the loss normalises the advantages of a micro-batch once more: " + f.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				b, adv := c.B, c.Optional("advantages").X
				if len(adv) != len(b.Mask) || b.Cols == 0 {
					return nil
				}
				y, size := make([]float64, len(adv)), 0.0
				for _, file := range b.Files {
					var x []float64
					for r := file.Lo; r < file.Hi; r++ {
						for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
							if inside := file.Cols <= 0 || i%b.Cols < file.Cols; b.Mask[i] || f.pads && inside {
								x = append(x, adv[i])
								if f.rows {
									break
								}
							}
						}
					}
					if len(x) < 2 {
						return nil
					}
					m, s := meanOf(x), deviationOf(x, f.ddof)
					if !f.centred {
						m = 0
					}
					for i := file.Lo * b.Cols; i < file.Hi*b.Cols; i++ {
						y[i] = (adv[i] - m) / s
						if size = max(size, math.Abs(m)/s); math.IsNaN(y[i]) || math.IsInf(y[i], 0) {
							return nil
						}
					}
				}
				p := policyTerm(1, perToken("advantages", y))(c, ch)
				if p == nil || len(p.Want) != len(y) {
					return nil
				}
				q := altered(p)
				for i, w := range p.Want { // an advantage near 0 is off by roundings of what it is a difference of, and an epsilon of 1e-8 is less
					q.Bound[i] += 32 * c.Unit * math.Abs(w)
					if y[i] != 0 {
						q.Bound[i] += 32 * c.Unit * (1 + size) * math.Abs(w/y[i])
					}
				}
				return q
			}})
	}
	return list
}
