package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// jointRatios are what stands where the ratio ρ = e to the (logp_new − logp_old) belongs and is no function of the difference: x, and ∂x/∂logp_new.
var jointRatios = []struct {
	id, title string
	of        func(lp, old float64) (x, slope float64)
}{
	{"RATIO-FORM", "1 + p_new − p_old: a difference of probabilities, not their quotient", func(lp, old float64) (float64, float64) {
		return 1 + math.Exp(lp) - math.Exp(old), math.Exp(lp)
	}},
	{"RATIO-FORM", "p_new − p_old: a difference of probabilities, not their quotient", func(lp, old float64) (float64, float64) {
		return math.Exp(lp) - math.Exp(old), math.Exp(lp)
	}},
	{"RATIO-FORM", "e to the (p_new − p_old): of probabilities, not of log-probs", func(lp, old float64) (float64, float64) {
		x := math.Exp(math.Exp(lp) - math.Exp(old))
		return x, x * math.Exp(lp)
	}},
	{"RATIO-FORM", "logp_new/logp_old: the quotient of the log-probs", func(lp, old float64) (float64, float64) { return lp / old, 1 / old }},
	{"RATIO-FORM", "logp_old/logp_new: the quotient of the log-probs", func(lp, old float64) (float64, float64) { return old / lp, -old / (lp * lp) }},
	{"RATIO-FORM", "p_new, which nothing divides", func(lp, _ float64) (float64, float64) { return math.Exp(lp), math.Exp(lp) }},
	{"RATIO-FORM", "logp_new, without an exponential", func(lp, _ float64) (float64, float64) { return lp, 1 }},
	{"RATIO-FORM", "e to the (logp_new + logp_old): a sum, not a difference", func(lp, old float64) (float64, float64) { return math.Exp(lp + old), math.Exp(lp + old) }},
	{"RATIO-FORM", "½(1 + ρ)", func(lp, old float64) (float64, float64) { return (1 + math.Exp(lp-old)) / 2, math.Exp(lp-old) / 2 }},
}

// surrogateLoss is ℓ = max(−A·x, −A·clip(x)), for A < 0 at most −A·dual, of x and its slope.
func surrogateLoss(x, dx, a float64, o tokenBounds) (loss, slope float64) {
	s := rightSurrogate()
	s.ratio = func(float64) (float64, float64) { return x, dx }
	return s.of(0, a, o)
}

// jointForms are clipped losses of which the ratio, or what is clipped, is another one.
func jointForms() []lossForm {
	var list []lossForm
	for _, r := range jointRatios {
		list = append(list, lossForm{id: r.id, title: "clipped as it should be, of another ratio: " + r.title, old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
			x, dx := r.of(lp, old)
			if math.IsNaN(x) || math.IsInf(x, 0) || math.IsNaN(dx) || math.IsInf(dx, 0) {
				x, dx = 0, 0
			}
			return surrogateLoss(x, dx, a, o)
		}})
	}
	held := func(x, lo, hi float64) (float64, bool) { return min(max(x, lo), hi), x >= lo && x <= hi }
	for _, f := range []struct {
		title  string
		lo, hi func(a float64, o tokenBounds) float64
	}{
		{"max(−A·ρ, −clip(A·ρ)), the bounds of the ratio on its product with the advantage", func(_ float64, o tokenBounds) float64 { return 1 - o.low }, func(_ float64, o tokenBounds) float64 { return 1 + o.high }},
		{"max(−A·ρ, −clip(A·ρ, −clip.low, clip.high)), bounds on the product with the advantage", func(_ float64, o tokenBounds) float64 { return -o.low }, func(_ float64, o tokenBounds) float64 { return o.high }},
		{"max(−A·ρ, −clip(A·ρ, A − clip.low, A + clip.high)), bounds on the product with the advantage", func(a float64, o tokenBounds) float64 { return a - o.low }, func(a float64, o tokenBounds) float64 { return a + o.high }},
	} {
		list = append(list, lossForm{id: "CLIP-BOUND", title: f.title, old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
			r := math.Exp(lp - old)
			y, within := held(a*r, f.lo(a, o), f.hi(a, o))
			if -y <= -a*r || within { // within the bounds both sides are one
				return -a * r, -a * r
			}
			return -y, 0
		}})
	}
	return list
}

// detachedForms are losses of a detached weight and a log-prob, as CISPO has them, −A·w·logp_new with w = clip(ρ) (MiniMax 2025, Eq. 4), of which the weight
// or the log-prob is another one.
var detachedForms = []lossForm{
	{title: "−A·clip(d, −clip.low, clip.high)·logp_new, of the log-ratio d, not of the ratio", old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
		w := min(max(lp-old, -o.low), o.high)
		return -a * w * lp, -a * w
	}},
	{title: "−A·d·logp_new, of the log-ratio d, not of the ratio", old: true, of: func(lp, old, a float64, _ tokenBounds) (float64, float64) {
		return -a * (lp - old) * lp, -a * (lp - old)
	}},
	{title: "−A·clip(ρ)·logp_old, with the gradient of logp_new", old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
		w := min(max(math.Exp(lp-old), 1-o.low), 1+o.high)
		return -a * w * old, -a * w
	}},
	{title: "−A·clip(ρ)·logp_new, with the gradient of both factors", old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
		r := math.Exp(lp - old)
		w, dw := min(max(r, 1-o.low), 1+o.high), 0.0
		if w == r {
			dw = r
		}
		return -a * w * lp, -a * (w + dw*lp)
	}},
	{title: "−A·clip(ρ)·(logp_new − logp_old), the clipped ratio detached", old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
		w := min(max(math.Exp(lp-old), 1-o.low), 1+o.high)
		return -a * w * (lp - old), -a * w
	}},
	{title: "−A·ρ·logp_new, ρ detached and held from below by the upper bound", id: "CISPO-WRONG-SIDE", old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
		w := max(math.Exp(lp-old), 1+o.high)
		return -a * w * lp, -a * w
	}},
	{title: "−A·ρ·logp_new, ρ detached and held from above by the lower bound", id: "CISPO-WRONG-SIDE", old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
		w := min(math.Exp(lp-old), 1-o.low)
		return -a * w * lp, -a * w
	}},
	{title: "−A·ρ·logp_new of tokens whose ratio is within the bounds, and 0 of the others", old: true, of: func(lp, old, a float64, o tokenBounds) (float64, float64) {
		w := math.Exp(lp - old)
		if w < 1-o.low || w > 1+o.high {
			w = 0
		}
		return -a * w * lp, -a * w
	}},
}

// rowRatioForm is a loss of the ratio of a row, s = e to the mean of the log-ratios d over n tokens (GSPO; Zheng et al. 2025, Eq. 6), with the other ratio of
// a token beside it: x and dx of a token t, and whether its slope goes to every token of the row.
type rowRatioForm struct {
	id, title string
	row       func(d []float64) (x float64, slopes []float64) // nil: the right one
	token     [2]bool                                         // the unclipped and the clipped side read e to the d of the token
}

var rowRatioForms = []rowRatioForm{
	{id: "RATIO-FORM", title: "the ratio of a row is the mean of the ratios of its tokens, not e to the mean or the sum of their logarithms", row: func(d []float64) (x float64, slopes []float64) {
		for _, v := range d {
			x += math.Exp(v) / float64(len(d))
			slopes = append(slopes, math.Exp(v)/float64(len(d)))
		}
		return x, slopes
	}},
	{id: "RATIO-FORM", title: "the ratio of a row is the largest of its tokens", row: extremeRatio(1)},
	{id: "RATIO-FORM", title: "the ratio of a row is the smallest of its tokens", row: extremeRatio(-1)},
	{id: "RATIO-FORM", title: "the ratio of a row is e to the sum of the log-ratios over the root of their number", row: func(d []float64) (float64, []float64) {
		root := math.Sqrt(float64(len(d)))
		x := math.Exp(total(d) / root)
		return x, slices.Repeat([]float64{x / root}, len(d))
	}},
	{id: "RATIO-FORM", title: "the ratio of a row is that of its first token", row: func(d []float64) (float64, []float64) {
		slopes := make([]float64, len(d))
		slopes[0] = math.Exp(d[0])
		return slopes[0], slopes
	}},
	{id: "RATIO-FORM", title: "the ratio of a row is that of its last token", row: func(d []float64) (float64, []float64) {
		slopes := make([]float64, len(d))
		slopes[len(d)-1] = math.Exp(d[len(d)-1])
		return slopes[len(d)-1], slopes
	}},
	{id: "RATIO-FORM", title: "the clipped side reads the ratios of the tokens, not that of the row", token: [2]bool{false, true}},
	{id: "RATIO-FORM", title: "the unclipped side reads the ratios of the tokens, not that of the row", token: [2]bool{true, false}},
}

func extremeRatio(sign float64) func(d []float64) (float64, []float64) {
	return func(d []float64) (float64, []float64) {
		at := 0
		for i := range d {
			if sign*d[i] > sign*d[at] {
				at = i
			}
		}
		slopes := make([]float64, len(d))
		slopes[at] = math.Exp(d[at])
		return slopes[at], slopes
	}
}

// rowRatioEdits returns edits of the ratio of a row.
func rowRatioEdits(o *stage.Outcome) []edit {
	if level := o.Case.Set.Value("ratio.level").String(); !policyOutput(o) || level != "seq_mean" && level != "seq_sum" || !slices.Contains([]string{"ppo", "gspo", "luspo"}, o.Case.Set.Value("loss.kind").String()) {
		return nil
	}
	var list []edit
	for _, f := range rowRatioForms {
		list = append(list, edit{id: f.id, title: f.title, changes: 1, predict: f.predict})
	}
	return list
}

// policyOutput reports whether an output of a check is made of the policy loss, which a form may replace.
func policyOutput(o *stage.Outcome) bool {
	switch o.Check.ID {
	case "token_loss/policy", "gradient/dlogp", "aggregate/pg_loss", "aggregate/loss":
		return !(o.Check.Stage == convention.Aggregate && o.Case.Has("token_loss")) // aggregated as it was dumped: the form shows there
	}
	return false
}

// predict predicts an output of the loss. In a gradient the tokens of a row have equal weights, so that a token's slope is the sum of what the losses of the
// row have through it; where ratio.grad is token the ratio of the row passes its gradient to each token as its own.
func (f rowRatioForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	c = ofStored(c)
	b := c.B
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), c.Optional("advantages").X
	if lp == nil || old == nil || len(adv) != len(lp) || b.Cols == 0 || weighsBesides(c) {
		return nil
	}
	byToken, summed := c.Set.Value("ratio.grad").String() == "token", c.Set.Value("ratio.level").String() == "seq_sum"
	o := boundsOf(c)
	a, e := make([]float64, len(lp)), make([]float64, len(lp))
	for r := range b.Rows {
		var d []float64
		var at []int
		for i := range b.TokensOf(r) {
			d, at = append(d, lp[i]-old[i]), append(at, i)
		}
		if len(d) == 0 {
			continue
		}
		x, slopes := 0.0, []float64(nil)
		if f.row != nil {
			x, slopes = f.row(d)
		} else {
			over := float64(len(d))
			if summed {
				over = 1
			}
			x = math.Exp(total(d) / over)
			slopes = slices.Repeat([]float64{x / over}, len(d))
		}
		size := total(mapped(d, math.Abs))
		var through float64 // what the losses of the row have through its ratio
		for k, i := range at {
			side := [2]float64{x, x}
			for s := range side {
				if f.token[s] {
					side[s] = math.Exp(d[k])
				}
			}
			bounded := min(max(side[1], 1-o.low), 1+o.high)
			loss, own, row := -adv[i]*side[0], 0.0, 0.0
			if f.token[0] {
				own = loss
			} else {
				row = -adv[i]
			}
			if l := -adv[i] * bounded; l > loss {
				loss, own, row = l, 0, 0
				switch {
				case bounded != side[1]:
				case f.token[1]:
					own = l
				default:
					row = -adv[i]
				}
			}
			if over := -adv[i] * o.dual; o.dual > 0 && adv[i] < 0 && loss > over {
				loss, own, row = over, 0, 0
			}
			if through += row; ch.Stage != convention.Gradient {
				a[i] = -loss
			} else if byToken {
				a[i] = -(own + row*x)
			} else {
				a[i] = -own
			}
		}
		for k, i := range at {
			if ch.Stage == convention.Gradient && !byToken {
				a[i] -= through * slopes[k]
			}
			e[i] = 8 * c.Unit * (2 + size) * (math.Abs(a[i]) + math.Abs(adv[i])*(1+x))
		}
	}
	return ofLosses(c, ch, a, e)
}

// boundsOf returns the declared bounds of the ratio, without one where there is none.
func boundsOf(c *stage.Case) tokenBounds {
	return tokenBounds{low: numberOr(c, "clip.low", math.Inf(1)), high: numberOr(c, "clip.high", math.Inf(1)), dual: numberOr(c, "clip.dual", 0), delta: numberOr(c, "clip.delta", 0)}
}
