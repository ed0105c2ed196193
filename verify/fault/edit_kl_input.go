package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// klForm replaces the log-ratio x = logp_ref − logp of an estimate of KL, whatever the estimator is: the reference that gives the right formula
// the same numbers is logp + g(x). The gradient of the term is multiplied by g'.
type klForm struct {
	id, title string
	g         func(x float64) (y, slope float64)
	scales    bool // y is a multiple of x
}

// klInputs returns the forms that differ from the right one on log-ratios between least and most.
func klInputs(least, most float64) []klForm {
	list := []klForm{
		{id: "KL-FORMULA", title: "|x|", g: func(x float64) (float64, float64) { return math.Abs(x), float64(compare(x, 0)) }},
		{id: "KL-FORMULA", title: "x without its fraction", g: func(x float64) (float64, float64) { return math.Trunc(x), 0 }},
	}
	for _, k := range []float64{0.5, 2, 3} {
		list = append(list, klForm{id: "KL-FORMULA", title: fmt.Sprintf("%g·x", k), g: func(x float64) (float64, float64) { return k * x, k }, scales: true})
	}
	held := func(lo, hi float64) func(x float64) (y, slope float64) {
		return func(x float64) (float64, float64) {
			if x < lo || x > hi {
				return min(max(x, lo), hi), 0
			}
			return x, 1
		}
	}
	inf := math.Inf(1)
	for _, b := range append([]float64{0}, logBounds...) {
		above, below := most > b, least < -b
		if above && below && b > 0 {
			list = append(list, klForm{id: "KL-CUT-OFF", title: fmt.Sprintf("x held within ±%g", b), g: held(-b, b)})
		}
		if above {
			list = append(list, klForm{id: "KL-CUT-OFF", title: fmt.Sprintf("x of at most %g", b), g: held(-inf, b)})
		}
		if below {
			list = append(list, klForm{id: "KL-CUT-OFF", title: fmt.Sprintf("x of at least %g", -b), g: held(-b, inf)})
		}
	}
	for i := range list {
		list[i].title = "the estimate of KL is one of " + list[i].title + ", x = logp_ref − logp"
	}
	return list
}

// klInputEdits returns edits of what the estimator of KL is given.
func klInputEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	switch o.Check.ID {
	case "kl/token":
	case "token_loss/policy":
		if c.Has("kl") {
			return nil // it is read as it was dumped: the edit shows there
		}
	case "gradient/dlogp":
		if v := c.Set.Value("kl.grad"); v.Kind() == convention.Enum && v.Text() != "naive" || numberOr(c, "kl.beta", 0) == 0 {
			return nil // its derivative is another one
		}
	default:
		return nil
	}
	lp, ref := klPolicy(c), c.B.Token("logp_ref")
	if lp == nil || ref == nil {
		return nil
	}
	var least, most float64
	for i := range c.B.Tokens() {
		least, most = min(least, ref[i]-lp[i]), max(most, ref[i]-lp[i])
	}
	var list []edit
	// a multiple of an estimate that is a power, and that only a coefficient which nobody declares makes a number, is another coefficient
	coefficient := c.B.Token("kl") == nil && !c.Set.Declares("kl.beta") && slices.Contains([]string{"k1", "abs", "k2"}, c.Set.Value("kl.kind").String())
	for _, f := range klInputs(least, most) {
		if coefficient && f.scales {
			continue
		}
		list = append(list, edit{id: f.id, title: f.title, changes: 1, predict: f.predict})
	}
	return list
}

// klPolicy returns the log-probs that are compared with the reference: those of the new pass where the term is one of the loss.
func klPolicy(c *stage.Case) []float64 {
	switch place := c.Set.Value("kl.place"); {
	case place.Kind() != convention.Enum:
		return nil
	case place.Text() == "loss" || place.Text() == "none":
		return c.B.Token("logp_new")
	}
	return c.B.Token("logp_old")
}

func (f klForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	lp, ref := klPolicy(c), c.B.Token("logp_ref")
	if lp == nil || ref == nil {
		return nil
	}
	standIn, slope := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range lp {
		var y float64
		y, slope[i] = f.g(ref[i] - lp[i])
		standIn[i] = lp[i] + y
	}
	in := perToken("logp_ref", standIn)
	if ch.Stage != convention.Gradient {
		return under(in, c, ch)
	}
	without := under(noKL, c, ch)
	term := combined(1, under(in, c, ch), -1, without)
	if term == nil || len(term.Want) != len(slope) {
		return nil
	}
	return combined(1, without, 1, timesCells(term, 0, func(i int) float64 { return slope[i] }))
}
