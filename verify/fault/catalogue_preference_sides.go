package fault

import (
	"plumbline/reference/rl"
	"plumbline/verify/stage"
)

// sideLosses are slips in one of the two terms, or answers, of a preference loss.
var sideLosses = []pairLoss{
	{id: "DPO-BETA", title: "β is left out of the term of the wrong labels: −(1 − ε)·ln σ(βh) − ε·ln σ(−h)", needs: smoothed,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			h := rlMargin(o, p)
			return (1-o.LabelSmoothing)*softplus(-o.Beta*h) + o.LabelSmoothing*softplus(h)
		}},
	{id: "DPO-BETA", title: "β is left out of the term of the right labels: −(1 − ε)·ln σ(h) − ε·ln σ(−βh)", needs: smoothed,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			h := rlMargin(o, p)
			return (1-o.LabelSmoothing)*softplus(-h) + o.LabelSmoothing*softplus(o.Beta*h)
		}},
	{id: "DPO-HINGE", title: "the margin of the hinge is β in place of 1: max(0, β − βh)", needs: kind(rl.DPOHinge),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return max(0, o.Beta-o.Beta*marginOf(p)) }},
	{id: "DPO-NO-REFERENCE", title: "the reference's log-prob of the rejected answer is left out",
		of: func(o rl.DPOOptions, p stage.Pair) float64 { p.RefRejected = 0; return p.Loss(o) }},
	{id: "DPO-NO-REFERENCE", title: "the reference's log-prob of the chosen answer is left out",
		of: func(o rl.DPOOptions, p stage.Pair) float64 { p.RefChosen = 0; return p.Loss(o) }},
}

// lengthLosses are slips in the tokens that the log-probs of a loss per token are divided by.
var lengthLosses = []pairLoss{
	{id: "DPO-PER-TOKEN", title: "the log-probs of an answer are divided by the tokens of both", apart: true,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			n := p.ChosenTokens + p.RejectedTokens
			p.ChosenTokens, p.RejectedTokens = n, n
			return perToken4(true, true)(o, p)
		}},
	{id: "DPO-PER-TOKEN", title: "the log-probs of an answer are divided by the tokens of the other one", apart: true,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			p.ChosenTokens, p.RejectedTokens = p.RejectedTokens, p.ChosenTokens
			return perToken4(true, true)(o, p)
		}},
	{id: "DPO-PER-TOKEN", title: "the log-probs of both answers are divided by the tokens of the chosen one", apart: true,
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			p.RejectedTokens = p.ChosenTokens
			return perToken4(true, true)(o, p)
		}},
	{id: "DPO-PER-TOKEN", title: "the policy's log-probs of an answer are divided by its tokens, the reference's are not", apart: true, of: perToken4(true, false)},
	{id: "DPO-PER-TOKEN", title: "the reference's log-probs of an answer are divided by its tokens, the policy's are not", apart: true, of: perToken4(false, true)},
}
