package fault

import (
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// gateFaults are of the soft gate −A·(4/τ)·σ(τ(ρ − 1)), whose slope at ρ = 1 is −A with its factor 4/τ (Gao et al. 2025, Eq. 6): what is left of the factor
// is one of the advantage, whose sign it keeps.
func gateFaults() []*Hypothesis {
	var list []*Hypothesis
	for _, g := range []struct {
		title string
		left  func(tau float64) float64 // of 4/τ
	}{
		{"the soft gate lacks its factor 4/τ", func(float64) float64 { return 1 }},
		{"the soft gate lacks the 4 of its factor 4/τ", func(tau float64) float64 { return 1 / tau }},
		{"the soft gate is not divided by its temperature: 4 for 4/τ", func(float64) float64 { return 4 }},
	} {
		list = append(list, &Hypothesis{ID: "SAPO-SCALE", Title: g.title, Checks: policyOutputs, Input: gateOf(func(tau float64) float64 { return g.left(tau) * tau / 4 })})
	}
	return list
}

// quantileFaults are of the quantile of the entropies above which tokens are trained on: loss.top_entropy is the share that is kept.
func quantileFaults() []*Hypothesis {
	kept := func(in input) input {
		return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if c.Set.Value("loss.top_entropy").Kind() != convention.Number {
				return nil, nil, false
			}
			return in(c)
		}
	}
	padded := mask(everyCell)
	const pads = "padding is among the entropies of which the quantile is taken"
	return []*Hypothesis{
		{ID: "TOP-ENTROPY-QUANTILE", Title: "tokens of all entropies are trained on", Checks: policyOutputs, Input: kept(option("loss.top_entropy", "none"))},
		{ID: "TOP-ENTROPY-QUANTILE", Title: "the quantile is that of the share which is kept, not of the one that is left out", Checks: policyOutputs,
			Input: number("loss.top_entropy", func(top float64) float64 { return 1 - top })},
		{ID: "TOP-ENTROPY-QUANTILE", Title: pads, Checks: []string{"token_loss"}, Input: kept(padded)},
		{ID: "TOP-ENTROPY-QUANTILE", Title: pads, Checks: []string{"gradient/dlogp"}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if c.Set.Value("loss.top_entropy").Kind() != convention.Number {
				return nil
			}
			return numerator(padded)(c, ch)
		}},
	}
}

// gateOf multiplies the advantages by a function of the temperature of their gate.
func gateOf(by func(tau float64) float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		pos, neg, adv := c.Set.Value("sapo.tau_pos"), c.Set.Value("sapo.tau_neg"), c.Optional("advantages").X
		if c.Set.Value("loss.kind").String() != "sapo" || pos.Kind() != convention.Number || neg.Kind() != convention.Number || len(adv) != len(c.B.Mask) {
			return nil, nil, false
		}
		x := make([]float64, len(adv))
		for i, a := range adv {
			tau := neg.Num()
			if a > 0 {
				tau = pos.Num()
			}
			x[i] = a * by(tau)
		}
		return perToken("advantages", x)(c)
	}
}
