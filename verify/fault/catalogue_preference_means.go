package fault

import (
	"fmt"
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/stage"
)

// pairMeans are what a wrong mean over the pairs changes.
var pairMeans = []string{"preference/dpo_loss", "preference/dlogp_chosen", "preference/dlogp_rejected"}

// preferenceMeans are wrong means over the pairs of a micro-batch.
var preferenceMeans = []*Hypothesis{
	{ID: "AGG-GA-TWICE", Checks: pairMeans, Predict: timesAccumulation(-1)},
	{ID: "AGG-GA-MISSING", Checks: pairMeans, Predict: timesAccumulation(1)},
	{ID: "AGG-NO-BATCH", Checks: pairMeans, Title: "the losses of the pairs are summed, not averaged", Predict: overPairs(nil)},
	{ID: "AGG-KIND", Checks: pairMeans, Title: "the mean over the pairs is weighted by the tokens of the chosen answers", Predict: weightedPairs("chosen_tokens")},
	{ID: "AGG-KIND", Checks: pairMeans, Title: "the mean over the pairs is weighted by the tokens of the rejected answers", Predict: weightedPairs("rejected_tokens")},
	{ID: "AGG-KIND", Checks: pairMeans, Title: "the mean over the pairs is weighted by the tokens of both answers", Predict: weightedPairs("chosen_tokens", "rejected_tokens")},
	{ID: "AGG-DENOMINATOR", Checks: pairMeans, Title: "the sum over the pairs is divided by the number of those whose margin is below 0",
		Predict: overPairs(func(o rl.DPOOptions, p stage.Pair) bool { return rlMargin(o, p) < 0 })},
	{ID: "AGG-DENOMINATOR", Checks: pairMeans, Title: "the sum over the pairs is divided by the number of those whose margin is above 0",
		Predict: overPairs(func(o rl.DPOOptions, p stage.Pair) bool { return rlMargin(o, p) > 0 })},
	{ID: "AGG-DENOMINATOR", Checks: pairMeans, Title: "the sum over the pairs is divided by the number of those that have a loss",
		Predict: overPairs(func(o rl.DPOOptions, p stage.Pair) bool { return p.Loss(o) != 0 })},
}

// timesAccumulation multiplies a loss that is declared to be divided by the accumulation steps by a power of their number.
func timesAccumulation(power float64) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		ga := c.FactOr("gradient_accumulation_steps", float64(max(c.B.Meta.MicroBatches, 1)))
		p := under(sameInput, c, ch)
		if ga < 2 || !c.BoolOr("agg.div_ga", false) || p == nil {
			return nil
		}
		return combined(math.Pow(ga, power), p, 0, p)
	}
}

// weightedPairs predicts a loss, or its gradient, that is Σ n·l/Σ n over the pairs of a file with the tokens n of some answers.
func weightedPairs(tokens ...string) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b, p, pairs := c.B, under(sameInput, c, ch), under(sameInput, c, stage.Find("preference/pair_loss"))
		n := make([]float64, b.Rows)
		for _, name := range tokens {
			x := b.Row(name)
			if len(x) != b.Rows {
				return nil
			}
			for r := range n {
				n[r] += x[r]
			}
		}
		perFile := ch.Output == "loss"
		if p == nil || numberOr(c, "dpo.nll_weight", 0) != 0 || !perFile && len(p.Want) != b.Rows || perFile && (pairs == nil || len(pairs.Want) != b.Rows || len(p.Want) != len(b.Files)) {
			return nil
		}
		y := *p
		y.Want, y.Bound, y.Alt = make([]float64, len(p.Want)), make([]float64, len(p.Want)), nil
		for f, file := range b.Files {
			var all, plain, sum, e float64
			for r := file.Lo; r < file.Hi; r++ {
				all += n[r]
			}
			for r := file.Lo; r < file.Hi; r++ {
				k := n[r] * float64(file.Hi-file.Lo) / all
				if !perFile {
					y.Want[r], y.Bound[r] = k*p.Want[r], k*p.Bound[r]+8*c.Unit*math.Abs(k*p.Want[r])
					continue
				}
				plain += pairs.Want[r]
				sum += k * pairs.Want[r]
				e += k * (pairs.Bound[r] + 16*c.Unit*math.Abs(pairs.Want[r]))
			}
			if perFile {
				scale := p.Want[f] / plain // of the mean, and of what is accumulated
				y.Want[f], y.Bound[f] = scale*sum, math.Abs(scale)*e+p.Bound[f]
			}
		}
		return &y
	}
}

// overPairs predicts a loss, or its gradient, whose sum is divided by the number of some of the pairs of the file, 1 where there are none, or counts is nil.
func overPairs(counts func(o rl.DPOOptions, p stage.Pair) bool) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b, q, p := c.B, onlyPart(c), under(sameInput, c, ch)
		lp, lr, rc, rr := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("ref_chosen"), b.Row("ref_rejected")
		if q == nil || p == nil || numberOr(c, "dpo.nll_weight", 0) != 0 || len(lp) != b.Rows || len(lr) != b.Rows || len(rc) != b.Rows || len(rr) != b.Rows ||
			len(p.Want) != b.Rows && len(p.Want) != len(b.Files) {
			return nil
		}
		perFile := ch.Output == "loss"
		y := *p
		y.Want, y.Bound, y.Alt = make([]float64, len(p.Want)), make([]float64, len(p.Want)), nil
		for f, file := range b.Files {
			n := 0.0
			for r := file.Lo; r < file.Hi; r++ {
				n += float64(boolToInt(counts != nil && counts(q.Options, stage.Pair{Chosen: lp[r], Rejected: lr[r], RefChosen: rc[r], RefRejected: rr[r]})))
			}
			k := float64(file.Hi-file.Lo) / max(n, 1)
			lo, hi := file.Lo, file.Hi
			if perFile {
				lo, hi = f, f+1
			}
			for i := lo; i < hi; i++ {
				y.Want[i], y.Bound[i] = k*p.Want[i], k*p.Bound[i]+4*c.Unit*math.Abs(k*p.Want[i])
			}
		}
		return &y
	}
}

// heldMargins are losses whose margin is held within bounds that people write.
func heldMargins() []pairLoss {
	var list []pairLoss
	for _, bound := range []float64{0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 1, 2, 3, 5, 10} {
		for _, f := range []struct {
			words  string
			lo, hi float64
		}{{"within ±%g", -bound, bound}, {"at most at %g", math.Inf(-1), bound}, {"at least at −%g", -bound, math.Inf(1)}} {
			words := fmt.Sprintf(f.words, bound)
			list = append(list, pairLoss{id: "DPO-MARGIN-HELD", title: "β times the margin is held " + words + " before the loss", needs: heldCan,
				of: func(o rl.DPOOptions, p stage.Pair) float64 {
					h := rlMargin(o, p)
					p.Chosen += min(max(o.Beta*h, f.lo), f.hi)/o.Beta - h
					return p.Loss(o)
				}}, pairLoss{id: "DPO-MARGIN-HELD", title: "the margin is held " + words + " before β multiplies it", needs: heldCan,
				of: func(o rl.DPOOptions, p stage.Pair) float64 {
					h := rlMargin(o, p)
					p.Chosen += min(max(h, f.lo), f.hi) - h
					return p.Loss(o)
				}})
		}
	}
	return list
}

// heldCan demands a loss of the margin by the reverse KL.
func heldCan(o rl.DPOOptions) bool {
	return (o.Kind == rl.DPOSigmoid || o.Kind == rl.DPOHinge || o.Kind == rl.DPOIPO) && o.Divergence == rl.DPOReverseKL
}
