package fault

import (
	"fmt"
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// klWeightEdits returns edits in which the estimate of KL is multiplied by another power of the ratio than declared: none where there is no
// correction, and the first where kl.grad is is_corrected.
func klWeightEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.ID != "kl/token" && o.Check.ID != "gradient/dlogp" || c.B.Token("logp_new") == nil || c.B.Token("logp_old") == nil {
		return nil
	}
	place, grad := c.Set.Value("kl.place"), c.Set.Value("kl.grad")
	if place.Kind() != convention.Enum || place.Text() != "loss" || grad.Kind() != convention.Enum || c.EnumOr("ratio.level", "token") != "token" {
		return nil
	}
	if grad.Text() == "straight_through_k2" && o.Check.Stage == convention.Gradient {
		return []edit{
			{id: "KL-GRAD", title: "the gradient of the estimate itself is kept beside the one that is put under it", changes: 1, predict: bothSlopes},
			{id: "KL-GRAD", title: "the weight of the unbiased gradient of KL is not detached", changes: 1, predict: throughCap},
		}
	}
	declared := map[string]float64{"naive": 0, "is_corrected": 1}
	right, ok := declared[grad.Text()]
	if !ok {
		return nil
	}
	words := func(power float64) string {
		switch power {
		case 0:
			return "1"
		case 1:
			return "the ratio ρ"
		case -1:
			return "the inverse ratio 1/ρ"
		}
		return fmt.Sprintf("ρ to the %g", power)
	}
	var list []edit
	for _, power := range []float64{-2, -1, -0.5, 0, 0.5, 1, 2} {
		if power == right && o.Check.Stage == convention.KL {
			continue
		}
		for _, detached := range []bool{false, true} {
			title := fmt.Sprintf("the estimate of KL is multiplied by %s, where it should be by %s", words(power), words(right))
			switch {
			case detached && (power == 0 || o.Check.Stage == convention.KL):
				continue
			case detached:
				title += ", and that is detached"
			}
			list = append(list, edit{id: "KL-GRAD", title: title, changes: 1, own: !detached && (power == 0 || power == 1), // kl.grad has both
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return klTimesPower(power, power-right, detached, c, ch)
				}})
		}
	}
	if o.Check.Stage == convention.Gradient {
		for _, power := range []float64{-1, 1, 2} {
			list = append(list, edit{id: "RATIO-DETACHED", title: fmt.Sprintf("the ratio is detached in the policy term, and so is %s, which the estimate of KL is multiplied by", words(power)), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return combined(1, klTimesPower(power, power-right, true, c, ch), -1, under(noKL, c, ch))
				}})
		}
	}
	if right == 1 && o.Check.Stage == convention.Gradient {
		list = append(list, edit{id: "KL-DETACHED", title: "the estimate of KL is detached; the ratio that it is multiplied by is not", changes: 1, predict: klOfRatioAlone})
	}
	return list
}

// bothSlopes predicts the gradient of a loss whose KL term has its own slope and that of ½d².
func bothSlopes(c *stage.Case, ch *stage.Check) *stage.Prediction {
	plain := c.Of(c.B, c.Set.With("kl.grad", parsed("kl.grad", "naive"), "hypothesis"))
	own := combined(1, under(sameInput, plain, ch), -1, under(noKL, c, ch))
	return combined(1, under(sameInput, c, ch), 1, own)
}

// throughCap predicts the gradient of a loss whose KL term is w·½d² under its value, w = min(e to the (logp_new − logp_old), kl.is_cap), where w
// carries gradient: w·½d² more where the cap does not hold it.
func throughCap(c *stage.Case, ch *stage.Check) *stage.Prediction {
	lp, old, ref := c.B.Token("logp_new"), c.B.Token("logp_old"), c.B.Token("logp_ref")
	limit, beta := numberOr(c, "kl.is_cap", 0), numberOr(c, "kl.beta", 0)
	if lp == nil || old == nil || ref == nil || limit == 0 {
		return nil
	}
	extra := make([]float64, len(lp))
	for i := range extra {
		if w, d := math.Exp(lp[i]-old[i]), lp[i]-ref[i]; w < limit {
			extra[i] = beta * w * d * d / 2
		}
	}
	return added(under(sameInput, c, ch), weightsOf(c, ch), extra)
}

// klOfRatioAlone predicts the gradient of a loss whose KL term is E·ρ, E the estimate, which is detached: E·ρ' is left.
func klOfRatioAlone(c *stage.Case, ch *stage.Check) *stage.Prediction {
	lp, old, beta := c.B.Token("logp_new"), c.B.Token("logp_old"), numberOr(c, "kl.beta", 0)
	plain := c.Of(c.B, c.Set.With("kl.grad", parsed("kl.grad", "naive"), "hypothesis"))
	rest, estimate, weights := under(noKL, c, ch), under(sameInput, plain, stage.Find("kl/token")), weightsOf(c, ch)
	if lp == nil || old == nil || rest == nil || estimate == nil || weights == nil || len(rest.Want) != len(lp) || len(estimate.Want) != len(lp) {
		return nil
	}
	extra := eachOf(len(lp), func(i int) float64 { return beta * estimate.Want[i] * math.Exp(lp[i]-old[i]) })
	q := added(rest, weights, extra)
	for i := range extra { // the two terms are added up
		if q != nil {
			q.Bound[i] += 8*c.Unit*(math.Abs(q.Want[i])+math.Abs(rest.Want[i])) + math.Abs(beta*weights.Want[i])*math.Exp(lp[i]-old[i])*estimate.Bound[i]
		}
	}
	return q
}

// klTimesPower predicts the estimate of KL times ρ^more, or the gradient of a loss whose KL term is E·ρ^power, E the estimate alone:
//
//	ρ^power·(E' + power·E), without the second term where the power is detached
func klTimesPower(power, more float64, detached bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	if lp == nil || old == nil {
		return nil
	}
	rho := func(i int, power float64) (x, e float64) {
		d := lp[i] - old[i]
		x = math.Exp(power * d)
		return x, x * (4 + math.Abs(power)*(2+math.Abs(lp[i])+math.Abs(old[i]))) * c.Unit
	}
	if ch.Stage == convention.KL {
		p := under(sameInput, c, ch)
		if p == nil || len(p.Want) != len(lp) {
			return nil
		}
		q := altered(p)
		for i := range q.Want {
			x, e := rho(i, more)
			q.Want[i], q.Bound[i] = q.Want[i]*x, q.Bound[i]*x+math.Abs(q.Want[i])*e
		}
		return q
	}
	beta := numberOr(c, "kl.beta", 0)
	plain := c.Of(c.B, c.Set.With("kl.grad", parsed("kl.grad", "naive"), "hypothesis"))
	rest := under(noKL, c, ch)
	term, estimate, weights := combined(1, under(sameInput, plain, ch), -1, rest), under(sameInput, plain, stage.Find("kl/token")), weightsOf(c, ch)
	if term == nil || estimate == nil || weights == nil || len(term.Want) != len(lp) || len(estimate.Want) != len(lp) || len(weights.Want) != len(lp) {
		return nil
	}
	for i := range term.Want {
		x, e := rho(i, power)
		g, b := term.Want[i], term.Bound[i]
		if !detached {
			w := beta * weights.Want[i]
			g += w * power * estimate.Want[i]
			b += math.Abs(w*power)*estimate.Bound[i] + math.Abs(beta*power*estimate.Want[i])*weights.Bound[i]
		}
		term.Want[i], term.Bound[i] = g*x, b*x+math.Abs(g)*e
	}
	return combined(1, rest, 1, term)
}
