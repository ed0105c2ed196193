package fault

import (
	"fmt"
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// klMixedEdits returns edits of an estimate of KL of two log-ratios, whose one term reads another pass than the other, and of one that is multiplied by the
// clipped ratio.
func klMixedEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	right, place := klPolicy(c), c.Set.Value("kl.place")
	if right == nil || place.Kind() != convention.Enum {
		return nil
	}
	if o.Check.ID == "kl/token" && c.EnumOr("kl.kind", "") == "k3" {
		passes := []string{"logp_new", "logp_old", "logp_gen"}
		for _, a := range passes {
			for _, b := range passes {
				if a == b || c.B.Token(a) == nil || c.B.Token(b) == nil {
					continue
				}
				list = append(list, edit{id: "KL-FORMULA", changes: 1, foreign: true,
					title:   fmt.Sprintf("the estimate of KL is eˣ − y − 1 of two log-ratios, x = logp_ref − %s and y = logp_ref − %s", a, b),
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return klOfTwo(a, b, c, ch) }})
			}
		}
	}
	if o.Check.ID != "kl/token" && o.Check.ID != "gradient/dlogp" || place.Text() != "loss" || c.B.Token("logp_old") == nil || c.EnumOr("ratio.level", "token") != "token" {
		return list
	}
	grad := c.EnumOr("kl.grad", "naive")
	if grad != "naive" && grad != "is_corrected" {
		return list
	}
	low, high := 1-numberOr(c, "clip.low", math.NaN()), 1+numberOr(c, "clip.high", math.NaN())
	none, inf := math.Inf(-1), math.Inf(1)
	for _, k := range []struct {
		least, most float64
		words       string
	}{
		{low, high, "the clipped ratio of the policy term"}, {none, high, "the ratio, clipped from above only"}, {low, inf, "the ratio, clipped from below only"},
		{1, inf, "the ratio or 1, what is larger"}, {none, 1, "the ratio or 1, what is smaller"},
	} {
		if math.IsNaN(k.least) || math.IsNaN(k.most) {
			continue
		}
		for _, detached := range []bool{false, true} {
			title := "the estimate of KL is multiplied by " + k.words
			if detached && o.Check.Stage == convention.KL {
				continue
			} else if detached {
				title += ", detached"
			}
			list = append(list, edit{id: "KL-GRAD", title: title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return klTimesClipped(k.least, k.most, detached, c, ch)
			}})
		}
	}
	return list
}

// klOfTwo predicts eˣ − y − 1 of x = logp_ref − a and y = logp_ref − b, times the ratio where that corrects the estimate.
func klOfTwo(a, b string, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, x, y, ref := under(sameInput, c, ch), c.B.Token(a), c.B.Token(b), c.B.Token("logp_ref")
	if p == nil || x == nil || y == nil || len(ref) != len(p.Want) {
		return nil
	}
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	corrected := c.EnumOr("kl.place", "") == "loss" && c.EnumOr("kl.grad", "naive") == "is_corrected" && lp != nil && old != nil
	q := altered(p)
	for i, r := range ref {
		w, size, e := 1.0, 4+math.Abs(x[i])+math.Abs(y[i])+math.Abs(r), math.Exp(r-x[i])
		if corrected {
			w = math.Exp(lp[i] - old[i])
			size += math.Abs(lp[i]) + math.Abs(old[i])
		}
		q.Want[i] = w * (e - (r - y[i]) - 1)
		q.Bound[i] = p.Bound[i] + 8*c.Unit*w*size*(1+e+math.Abs(r-y[i]))
	}
	return q
}

// klTimesClipped predicts the estimate E of KL times w, the ratio within two bounds, or the gradient of a loss with that term, E'·w + E·w', without the second
// part where w is detached or held.
func klTimesClipped(least, most float64, detached bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	plain := c.Of(c.B, c.Set.With("kl.grad", parsed("kl.grad", "naive"), "hypothesis"))
	estimate := under(sameInput, plain, stage.Find("kl/token"))
	if estimate == nil || len(lp) != len(estimate.Want) || len(old) != len(lp) {
		return nil
	}
	held := func(i int) (w, slope, doubt float64) {
		x := math.Exp(lp[i] - old[i])
		if w = min(max(x, least), most); w == x && !detached {
			slope = x
		}
		return w, slope, w * (4 + math.Abs(lp[i]) + math.Abs(old[i])) * c.Unit
	}
	q := altered(estimate)
	if ch.Stage == convention.KL {
		for i, e := range estimate.Want {
			w, _, doubt := held(i)
			q.Want[i], q.Bound[i] = e*w, estimate.Bound[i]*w+math.Abs(e)*doubt
		}
		return q
	}
	beta, rest, weights := numberOr(c, "kl.beta", 0), under(noKL, c, ch), weightsOf(c, ch)
	own := combined(1, under(sameInput, plain, ch), -1, rest)
	if own == nil || weights == nil || len(own.Want) != len(lp) || len(weights.Want) != len(lp) {
		return nil
	}
	for i := range own.Want {
		w, slope, doubt := held(i)
		k := beta * weights.Want[i] * slope
		own.Bound[i] = own.Bound[i]*w + math.Abs(own.Want[i])*doubt + math.Abs(k)*estimate.Bound[i] + math.Abs(beta*slope*estimate.Want[i])*weights.Bound[i] +
			math.Abs(beta*weights.Want[i]*estimate.Want[i])*doubt
		own.Want[i] = own.Want[i]*w + k*estimate.Want[i]
	}
	return combined(1, rest, 1, own)
}
