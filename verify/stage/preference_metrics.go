package stage

import (
	"math"
	"strings"

	"plumbline/verify/tol"
)

// preferenceMetrics are what trainers of preferences log. TRL 1.16's DPOTrainer._compute_loss: β times the log-ratios of sums, whatever the
// loss divides by, the mean over the pairs of all ranks, and a strict comparison for the accuracy; its KTOTrainer: means over the answers
// of a label. The names of the first implementation (eric-mitchell/direct-preference-optimization) and of loops of one's own have the
// same meaning; these may also count a tie as right.
var preferenceMetrics = []metric{
	{name: "rewards/chosen", preference: true, ranks: weighted, also: rewardNames("chosen"), title: "mean implicit reward of the chosen answers", formula: "mean over pairs, or good answers, of dpo.beta·(logp_chosen − ref_chosen)", of: answerMean(true, true), among: nothing},
	{name: "rewards/rejected", preference: true, ranks: weighted, also: append(rewardNames("rejected"), alias{"openrlhf", "reject_reward"}), title: "mean implicit reward of the rejected answers", formula: "mean over pairs, or bad answers, of dpo.beta·(logp_rejected − ref_rejected)", of: answerMean(false, true), among: nothing},
	{name: "rewards/margins", preference: true, ranks: weighted, also: []alias{{"", "rewards_train/margins"}, {"", "rewards/margin"}, {"", "reward_margin"}, {"", "reward_margins"}, {"", "train/rewards/margins"}}, title: "mean margin of the implicit rewards", formula: "mean over pairs of dpo.beta·((logp_chosen − ref_chosen) − (logp_rejected − ref_rejected)); of labelled answers the difference of the two means", of: rewardMargin, among: nothing},
	{name: "rewards/accuracies", preference: true, ranks: weighted, also: []alias{{"", "rewards_train/accuracies"}, {"", "rewards/accuracy"}, {"", "reward_accuracy"}, {"", "reward_accuracies"}, {"", "train/rewards/accuracies"}, {"openrlhf", "acc"}}, title: "share of pairs in order", formula: "share of the pairs with logp_chosen − ref_chosen > logp_rejected − ref_rejected; equal ones do not count", of: pairsInOrder(false), among: tiesCounted},
	{name: "logps/chosen", preference: true, ranks: weighted, also: []alias{{"", "logps_train/chosen"}, {"", "train/logps/chosen"}}, title: "mean log-prob of the chosen answers", formula: "mean over pairs, or good answers, of logp_chosen", of: answerMean(true, false), among: nothing},
	{name: "logps/rejected", preference: true, ranks: weighted, also: []alias{{"", "logps_train/rejected"}, {"", "train/logps/rejected"}}, title: "mean log-prob of the rejected answers", formula: "mean over pairs, or bad answers, of logp_rejected", of: answerMean(false, false), among: nothing},
}

// rewardNames are other names of the mean implicit reward of chosen or rejected answers.
func rewardNames(of string) []alias {
	return []alias{{"", "rewards_train/" + of}, {"", of + "_rewards"}, {"", of + "_reward"}, {"", "reward/" + of}, {"", "reward_" + of}, {"", "train/rewards/" + of}}
}

// nothing else is meant, but for a number of all rows where means over files are not that.
func nothing(*Case, []span) [][]float64 { return nil }

// answer returns the log-prob of the chosen or the rejected answer of a row under the policy or, less that under the reference and times β,
// its implicit reward; false where the row has no such answer. e is the error of the computation, whatever its order.
func (c *Case) answer(chosen, reward bool) func(r int) (x, e float64, ok bool) {
	policy, reference := "logp_rejected", "ref_rejected"
	if chosen {
		policy, reference = "logp_chosen", "ref_chosen"
	}
	var labels []float64
	if c.unpaired() {
		policy, reference = "logp_policy", "logp_reference"
		if labels = c.B.Row("desirable"); labels == nil {
			note(&c.Absent, "desirable")
		}
	}
	row := func(name string) Input {
		if c.B.Row(name) == nil {
			note(&c.Absent, name)
			return Input{X: make([]float64, c.B.Rows)}
		}
		return Input{X: c.B.Row(name), Err: c.rounding(name)}
	}
	p, q, beta := row(policy), Input{X: make([]float64, c.B.Rows)}, 1.0
	if reward {
		beta = c.Num("dpo.beta")
		if c.unpaired() || c.EnumOr("dpo.loss", "sigmoid") != "orpo" { // which has no reference
			q = row(reference)
		}
	}
	u := c.Unit + tol.U64
	return func(r int) (x, e float64, ok bool) {
		if labels != nil && (labels[r] == 1) != chosen {
			return 0, 0, false
		}
		x, e = p.X[r]-q.X[r], p.E(r)+q.E(r)
		if reward {
			e += u * (math.Abs(p.X[r]) + math.Abs(q.X[r]))
			x *= beta
			e = beta*e + 2*u*math.Abs(x)
		}
		return x, e, true
	}
}

// answerMean is the mean over the answers of a kind.
func answerMean(chosen, reward bool) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		of := c.answer(chosen, reward)
		if !c.OK() {
			return nil, nil
		}
		return c.foldRows(rows, mean, of)
	}
}

// rewardMargin is the mean over pairs of the difference of their rewards, or the difference of the means over good and over bad answers.
func rewardMargin(c *Case, rows []span) ([]float64, []float64) {
	good, bad := c.answer(true, true), c.answer(false, true)
	if !c.OK() {
		return nil, nil
	}
	u := c.Unit + tol.U64
	x, e := c.foldRows(rows, mean, good)
	y, f := c.foldRows(rows, mean, bad)
	for i := range x {
		e[i] += f[i] + 2*u*(math.Abs(x[i])+math.Abs(y[i]))
		x[i] -= y[i]
	}
	return x, e
}

// pairsInOrder is the share of pairs whose chosen answer has the larger reward, or, with ties, no smaller one. A pair whose rewards are
// nearer to one another than they are known may count or not, unless both are made of the same numbers.
func pairsInOrder(ties bool) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		if c.unpaired() {
			note(&c.Absent, "pairs")
			return nil, nil
		}
		good, bad := c.answer(true, true), c.answer(false, true)
		if !c.OK() {
			return nil, nil
		}
		return c.foldRows(rows, mean, func(r int) (float64, float64, bool) {
			x, e, _ := good(r)
			y, f, _ := bad(r)
			share, open := 0.0, 0.0
			if x > y || ties && x == y {
				share = 1
			}
			if math.Abs(x-y) <= e+f && !c.tied(r) {
				open = 1
			}
			return share, open, true
		})
	}
}

// tied reports whether both rewards of a pair are 0, or made of the same two numbers, so that no rounding tells them apart.
func (c *Case) tied(r int) bool {
	b := c.B
	p, q, pr, qr := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("ref_chosen"), b.Row("ref_rejected")
	if p == nil || q == nil || pr == nil || qr == nil || c.Casts {
		return false
	}
	return p[r] == pr[r] && q[r] == qr[r] || p[r] == q[r] && pr[r] == qr[r]
}

// tiesCounted is what programs other than TRL may log: equal rewards count as right.
func tiesCounted(c *Case, rows []span) [][]float64 {
	if strings.EqualFold(c.B.Meta.Framework, "trl") {
		return nil
	}
	x, _ := pairsInOrder(true)(c, rows)
	return [][]float64{x}
}
