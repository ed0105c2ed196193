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
