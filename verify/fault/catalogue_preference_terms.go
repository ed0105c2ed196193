package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/stage"
)

// termLosses are slips in preference losses of several terms, where c and r are the log-ratios of the answers and h is their margin.
var termLosses = []pairLoss{
	{id: "DPO-SMOOTHING", title: "the loss of robust DPO is not divided by 1 − 2ε", needs: ofKind(rl.DPORobust),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return p.Loss(o) * (1 - 2*o.LabelSmoothing) }},
	{id: "DPO-SMOOTHING", title: "the loss of robust DPO is divided by 1 − ε, not by 1 − 2ε", needs: ofKind(rl.DPORobust),
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			return p.Loss(o) * (1 - 2*o.LabelSmoothing) / (1 - o.LabelSmoothing)
		}},
	{id: "DPO-SMOOTHING", title: "the loss of robust DPO is divided by 1 + ε, not by 1 − 2ε", needs: ofKind(rl.DPORobust),
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			return p.Loss(o) * (1 - 2*o.LabelSmoothing) / (1 + o.LabelSmoothing)
		}},
	{id: "DPO-SMOOTHING", title: "the term of the wrong labels of robust DPO is added, not subtracted", needs: ofKind(rl.DPORobust),
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			k := 1 - 2*o.LabelSmoothing
			o.Kind = rl.DPOSigmoid
			return p.Loss(o) / k
		}},
	{id: "DPO-SMOOTHING", title: "robust DPO has the label smoothing of conservative DPO", needs: ofKind(rl.DPORobust),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { o.Kind = rl.DPOSigmoid; return p.Loss(o) }},
	{id: "DPO-SMOOTHING", title: "ε and 1 − ε are exchanged in exo_pair", needs: ofKind(rl.DPOEXO),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { o.LabelSmoothing = 1 - o.LabelSmoothing; return p.Loss(o) }},
	{id: "DPO-SMOOTHING", title: "both terms of exo_pair are held against ε", needs: ofKind(rl.DPOEXO),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return exo(o, p, o.LabelSmoothing, o.LabelSmoothing) }},
	{id: "DPO-SMOOTHING", title: "both terms of exo_pair are held against 1 − ε", needs: ofKind(rl.DPOEXO),
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			return exo(o, p, 1-o.LabelSmoothing, 1-o.LabelSmoothing)
		}},
	{id: "DPO-TERMS", title: "the divergence of exo_pair is the other way round: −(1 − ε)·ln q − ε·ln(1 − q) and a constant", needs: ofKind(rl.DPOEXO),
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			e := o.LabelSmoothing
			o.Kind = rl.DPOSigmoid
			return p.Loss(o) + (1-e)*math.Log(1-e) + e*math.Log(e)
		}},
	{id: "DPO-TERMS", title: "the two terms of discopop have each other's weight", needs: ofKind(rl.DPODiscoPOP),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return disco(o, p, -1/o.Tau) }},
	{id: "DPO-TERMS", title: "τ of discopop multiplies the margin in place of dividing it", needs: ofKind(rl.DPODiscoPOP),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return disco(o, p, o.Tau) }},
	{id: "DPO-TERMS", title: "discopop is mixed without τ", needs: ofKind(rl.DPODiscoPOP),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return disco(o, p, 1) }},
	{id: "DPO-TERMS", title: "the second term of the chosen answer in nca_pair counts whole, not half", needs: ofKind(rl.DPONCA), of: answers(sigmoidLoss(1, 1), sigmoidLoss(0, .5))},
	{id: "DPO-TERMS", title: "the term of the rejected answer in nca_pair counts whole, not half", needs: ofKind(rl.DPONCA), of: answers(sigmoidLoss(1, .5), sigmoidLoss(0, 1))},
	{id: "DPO-TERMS", title: "nca_pair has no second term of the chosen answer, which is bco_pair with half of the rejected one", needs: ofKind(rl.DPONCA), of: answers(sigmoidLoss(1, 0), sigmoidLoss(0, .5))},
	{id: "DPO-TERMS", title: "the rejected answer has the sign of the chosen one in nca_pair", needs: ofKind(rl.DPONCA), of: answers(sigmoidLoss(1, .5), sigmoidLoss(.5, 0))},
	{id: "DPO-TERMS", title: "the rejected answer has the sign of the chosen one in bco_pair", needs: ofKind(rl.DPOBCO), of: answers(sigmoidLoss(1, 0), sigmoidLoss(1, 0))},
	{id: "DPO-TERMS", title: "the rejected answer has the target of the chosen one in sppo_hard", needs: ofKind(rl.DPOSPPO), of: answers(squared(.5), squared(.5))},
	{id: "DPO-TERMS", title: "the targets of sppo_hard have each other's sign", needs: ofKind(rl.DPOSPPO), of: answers(squared(-.5), squared(.5))},
	{id: "DPO-TERMS", title: "the targets of sppo_hard are ±1/β, not ±1/(2β)", needs: ofKind(rl.DPOSPPO), of: answers(squared(1), squared(-1))},
	{id: "DPO-TERMS", title: "sppo_hard is multiplied out by β: (βc − ½)² + (βr + ½)²", needs: ofKind(rl.DPOSPPO),
		of: func(o rl.DPOOptions, p stage.Pair) float64 { return o.Beta * o.Beta * p.Loss(o) }},
}

// apoLosses are the anchored losses whose terms are not their own. apo_zero is 1 − σ(βc) + σ(βr), apo_down is σ(βc) + 1 − σ(βh) (D'Oosterlinck et al.
// 2024, Eq. 4 and 5): either has a term of the chosen answer, and one of the rejected answer, by itself or against the chosen one.
func apoLosses() []pairLoss {
	type form struct {
		words string
		of    func(beta, x float64) float64
	}
	forms := func(of string) []form {
		return []form{{fmt.Sprintf("1 − σ(β%s)", of), falling}, {fmt.Sprintf("σ(β%s)", of), rising}}
	}
	var list []pairLoss
	for i, first := range forms("c") {
		for k, second := range slices.Concat(forms("r"), forms("h")) {
			title := fmt.Sprintf(" is %s + %s", first.words, second.words)
			of := func(o rl.DPOOptions, p stage.Pair) float64 {
				x := p.Rejected - p.RefRejected
				if k >= 2 {
					x = marginOf(p)
				}
				return first.of(o.Beta, p.Chosen-p.RefChosen) + second.of(o.Beta, x)
			}
			zero, down := i == 0 && k == 1, i == 1 && k == 2
			if zero || down {
				continue // the other loss, which is an option
			}
			list = append(list, pairLoss{id: "DPO-TERMS", title: "apo_zero" + title + ", not 1 − σ(βc) + σ(βr)", needs: ofKind(rl.DPOAPOZero), of: of},
				pairLoss{id: "DPO-TERMS", title: "apo_down" + title + ", not σ(βc) + 1 − σ(βh)", needs: ofKind(rl.DPOAPODown), of: of})
		}
	}
	return list
}

// smoothedAnyway are losses of labels that are smoothed by a number that people write, where none is declared.
func smoothedAnyway() []pairLoss {
	var list []pairLoss
	for _, e := range []float64{0.01, 0.05, 0.1, 0.2, 0.3} {
		list = append(list, pairLoss{id: "DPO-SMOOTHING", title: fmt.Sprintf("the labels are smoothed by ε = %g where nothing is to be smoothed", e),
			needs: func(o rl.DPOOptions) bool { return o.Kind == rl.DPOSigmoid && o.LabelSmoothing == 0 },
			of:    func(o rl.DPOOptions, p stage.Pair) float64 { o.LabelSmoothing = e; return p.Loss(o) }})
	}
	return append(list, pairLoss{id: "DPO-TERMS", title: "the log-ratios of the Jensen–Shannon margin have the wrong sign: ln 2 + ln σ(−c) for ln 2 + ln σ(c)",
		needs: func(o rl.DPOOptions) bool {
			return o.Kind == rl.DPOSigmoid && o.Divergence == rl.DPOJS && o.LabelSmoothing == 0
		},
		of: func(o rl.DPOOptions, p stage.Pair) float64 {
			return softplus(-o.Beta * (softplus(p.Rejected-p.RefRejected) - softplus(p.Chosen-p.RefChosen)))
		}})
}

func ofKind(k rl.DPOKind) func(rl.DPOOptions) bool {
	return func(o rl.DPOOptions) bool { return o.Kind == k }
}

// answers is a loss of the log-ratio of either answer by itself.
func answers(chosen, rejected func(beta, ratio float64) float64) func(rl.DPOOptions, stage.Pair) float64 {
	return func(o rl.DPOOptions, p stage.Pair) float64 {
		return chosen(o.Beta, p.Chosen-p.RefChosen) + rejected(o.Beta, p.Rejected-p.RefRejected)
	}
}

// sigmoidLoss is −up·ln σ(βx) − down·ln σ(−βx).
func sigmoidLoss(up, down float64) func(beta, x float64) float64 {
	return func(beta, x float64) float64 { return up*softplus(-beta*x) + down*softplus(beta*x) }
}

// squared is (x − k/β)².
func squared(k float64) func(beta, x float64) float64 {
	return func(beta, x float64) float64 { return (x - k/beta) * (x - k/beta) }
}

func rising(beta, x float64) float64  { return sigmoid(beta * x) }
func falling(beta, x float64) float64 { return sigmoid(-beta * x) }

// exo is the loss of exo_pair whose answers are held against other probabilities.
func exo(o rl.DPOOptions, p stage.Pair, chosen, rejected float64) float64 {
	x := o.Beta * rlMargin(o, p)
	return sigmoid(x)*(-softplus(-x)-math.Log(chosen)) + sigmoid(-x)*(-softplus(x)-math.Log(rejected))
}

// disco is the loss of discopop whose mixing has the margin times k.
func disco(o rl.DPOOptions, p stage.Pair, k float64) float64 {
	x := o.Beta * rlMargin(o, p)
	return sigmoid(-k*x)*softplus(-x) + sigmoid(k*x)*math.Exp(-x)
}
