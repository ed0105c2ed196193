package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// probabilityForms are estimates of KL in which probabilities p stand where log-probs belong, or beside them, with their slopes ∂/∂logp.
var probabilityForms = []struct {
	title        string
	value, slope func(lp, ref float64) float64
	difference   bool // a function of p_ref − p alone
}{
	{"½(p_ref − p)², of probabilities", func(lp, ref float64) float64 { d := math.Exp(ref) - math.Exp(lp); return d * d / 2 },
		func(lp, ref float64) float64 { return -(math.Exp(ref) - math.Exp(lp)) * math.Exp(lp) }, true},
	{"(p_ref − p)², of probabilities", func(lp, ref float64) float64 { d := math.Exp(ref) - math.Exp(lp); return d * d },
		func(lp, ref float64) float64 { return -2 * (math.Exp(ref) - math.Exp(lp)) * math.Exp(lp) }, true},
	{"|p_ref − p|, of probabilities", func(lp, ref float64) float64 { return math.Abs(math.Exp(ref) - math.Exp(lp)) },
		func(lp, ref float64) float64 { return float64(compare(lp, ref)) * math.Exp(lp) }, true},
	{"p − p_ref, of probabilities", func(lp, ref float64) float64 { return math.Exp(lp) - math.Exp(ref) }, func(lp, _ float64) float64 { return math.Exp(lp) }, true},
	{"e to the y − y − 1 of y = p_ref − p, of probabilities", func(lp, ref float64) float64 { y := math.Exp(ref) - math.Exp(lp); return math.Expm1(y) - y },
		func(lp, ref float64) float64 { return -math.Expm1(math.Exp(ref)-math.Exp(lp)) * math.Exp(lp) }, true},
	{"p·(logp − logp_ref): a term of the sum over tokens, not of a sampled one", func(lp, ref float64) float64 { return math.Exp(lp) * (lp - ref) },
		func(lp, ref float64) float64 { return math.Exp(lp) * (lp - ref + 1) }, false},
	{"p_ref·(logp_ref − logp): a term of the sum over tokens, not of a sampled one", func(lp, ref float64) float64 { return math.Exp(ref) * (ref - lp) },
		func(_, ref float64) float64 { return -math.Exp(ref) }, false},
	{"logp/logp_ref − 1: a quotient of log-probs", func(lp, ref float64) float64 { return lp/ref - 1 }, func(_, ref float64) float64 { return 1 / ref }, false},
}

// klProbabilityEdits returns edits of an estimate of KL as one of probabilities.
func klProbabilityEdits(o *stage.Outcome) []edit {
	if !slices.Contains([]string{"kl/token", "gradient/dlogp", "token_loss/policy", "aggregate/loss", "aggregate/kl_loss", "reward/token"}, o.Check.ID) {
		return nil
	}
	var list []edit
	for _, f := range probabilityForms {
		list = append(list, edit{id: "KL-FORMULA", title: "the estimate of KL is " + f.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				p := estimatedOf(c, ch, f.value, f.slope)
				if f.difference && p != nil && ch.Stage == convention.KL {
					boundDifference(p, c, f.slope)
				}
				return p
			}})
	}
	return list
}

// boundDifference bounds an estimate v(p_ref − p) by 8u·(|∂v/∂logp|·(1 + p_ref/p) + |v|): both exponentials have a relative error of a few u, and the
// differences of probabilities may be as small as the KL of tokens that are unlikely under both.
func boundDifference(p *stage.Prediction, c *stage.Case, slope func(lp, ref float64) float64) {
	lp, ref := c.B.Token("logp_new"), c.B.Token("logp_ref")
	if place := c.Set.Value("kl.place").String(); place != "loss" && place != "none" {
		lp = c.B.Token("logp_old")
	}
	for i, want := range p.Want {
		p.Bound[i] = 8 * c.Unit * (math.Abs(slope(lp[i], ref[i]))*(1+math.Exp(ref[i]-lp[i])) + math.Abs(want))
	}
}

// insideForms are slopes ∂k/∂logp of the estimates of KL that programs subtract from advantages.
var insideForms = map[string]func(lp, ref float64) float64{
	"k1": func(_, _ float64) float64 { return 1 }, "k2": func(lp, ref float64) float64 { return lp - ref },
	"k3": func(lp, ref float64) float64 { return -math.Expm1(ref - lp) }, "abs": func(lp, ref float64) float64 { return float64(compare(lp, ref)) },
}

// insideEdits returns edits of a KL that is subtracted from the advantage, inside the clip, where it should be a term of its own:
//
//	ℓ = max(−(A − βk)·ρ, −(A − βk)·clip(ρ))
func insideEdits(o *stage.Outcome) []edit {
	c := o.Case
	slope := insideForms[c.Set.Value("kl.kind").String()]
	if !policyOutput(o) || slope == nil || numberOr(c, "kl.beta", 0) == 0 || c.Set.Value("kl.place").String() != "loss" || weighsBesides(c) ||
		c.Set.Value("loss.kind").String() != "ppo" || c.Set.Value("ratio.level").String() != "token" {
		return nil
	}
	var list []edit
	for _, detached := range []bool{false, true} {
		title := "the KL is subtracted from the advantage, inside the clip, where it is a term of its own"
		if detached {
			title += ", and has no gradient"
		}
		list = append(list, edit{id: "KL-INSIDE-CLIP", title: title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return insideClip(slope, detached, c, ch) }})
	}
	return list
}

func insideClip(dk func(lp, ref float64) float64, detached bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	lp, old, ref, adv, kl := c.B.Token("logp_new"), c.B.Token("logp_old"), c.B.Token("logp_ref"), c.Optional("advantages").X, c.Token("kl").X
	if lp == nil || old == nil || ref == nil || len(adv) != len(lp) || len(kl) != len(lp) {
		return nil
	}
	o, beta := boundsOf(c), numberOr(c, "kl.beta", 0)
	a, e := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range c.B.Tokens() {
		r, own := math.Exp(lp[i]-old[i]), adv[i]-beta*kl[i]
		loss, slope := surrogateLoss(r, r, own, o)
		if a[i] = -loss; ch.Stage == convention.Gradient {
			a[i] = -slope
			if own != 0 && !detached { // ∂ℓ/∂A is −ρ or −clip(ρ), whichever was taken
				a[i] += loss / own * beta * dk(lp[i], ref[i])
			}
		}
		e[i] = 16 * c.Unit * (2 + math.Abs(lp[i]) + math.Abs(old[i]) + math.Abs(ref[i])) * (1 + r) * (math.Abs(adv[i]) + beta*(1+math.Abs(kl[i])))
	}
	p := policyOnly(withoutRatio(a), c, ch)
	return withBound(p, combined(1, policyOnly(withoutRatio(e), c, ch), -1, policyOnly(withoutRatio(make([]float64, len(a))), c, ch)))
}
