package fault

import (
	"fmt"
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/stage"
)

// marginSlips are losses that leave pairs out by their margin, or have a number that people write beside it.
func marginSlips() []pairLoss {
	list := []pairLoss{
		{id: "DPO-WEIGHTING", title: "pairs whose margin is above 0 have no loss", needs: heldCan,
			of: func(o rl.DPOOptions, p stage.Pair) float64 {
				return p.Loss(o) * float64(boolToInt(rlMargin(o, p) <= 0))
			}},
		{id: "DPO-WEIGHTING", title: "pairs whose margin is not below 0 have no loss", needs: heldCan,
			of: func(o rl.DPOOptions, p stage.Pair) float64 { return p.Loss(o) * float64(boolToInt(rlMargin(o, p) < 0)) }},
		{id: "DPO-WEIGHTING", title: "pairs whose margin is not above 0 have no loss", needs: heldCan,
			of: func(o rl.DPOOptions, p stage.Pair) float64 { return p.Loss(o) * float64(boolToInt(rlMargin(o, p) > 0)) }},
	}
	for _, e := range []float64{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1} {
		list = append(list, pairLoss{id: "DPO-SIGMOID", title: fmt.Sprintf("%g is added to σ(βh) under the logarithm", e), needs: kind(rl.DPOSigmoid),
			of: func(o rl.DPOOptions, p stage.Pair) float64 { return -math.Log(sigmoid(o.Beta*rlMargin(o, p)) + e) }})
	}
	for _, k := range []float64{0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1} {
		for _, inside := range []bool{true, false} {
			words := map[bool]string{true: "before β multiplies it", false: "behind β"}[inside]
			list = append(list, pairLoss{id: "DPO-TERMS", title: fmt.Sprintf("%g times what the chosen answer is longer than the rejected one is taken off the margin, %s", k, words), needs: heldCan, raw: true,
				of: func(o rl.DPOOptions, p stage.Pair) float64 {
					if d := k * (p.ChosenTokens - p.RejectedTokens); inside {
						p.Chosen -= d
					} else {
						p.Chosen -= d / o.Beta
					}
					return p.Loss(o)
				}})
		}
	}
	return list
}

// exchangedAnswers are sums over answers that are those of the other answer of each pair.
var exchangedAnswers = []*Hypothesis{
	{ID: "DPO-SWAPPED", Checks: []string{"preference/logp_chosen", "preference/logp_rejected"}, Title: "the policy's log-probs of chosen and rejected answers are exchanged",
		Predict: ofOtherAnswer(map[string]string{"preference/logp_chosen": "preference/logp_rejected", "preference/logp_rejected": "preference/logp_chosen"})},
	{ID: "DPO-REFERENCE-SIGN", Checks: []string{"preference/ref_chosen", "preference/ref_rejected"}, Title: "the reference's log-probs of chosen and rejected answers are exchanged",
		Predict: ofOtherAnswer(map[string]string{"preference/ref_chosen": "preference/ref_rejected", "preference/ref_rejected": "preference/ref_chosen"})},
}

func ofOtherAnswer(other map[string]string) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		return under(sameInput, c, stage.Find(other[ch.ID]))
	}
}
