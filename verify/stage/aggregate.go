package stage

import (
	"math"

	"plumbline/verify/convention"
)

func aggregateChecks() []*Check {
	rlhf := func(c *Case) bool { return !c.preference() && !c.supervised() }
	return []*Check{{
		ID: "aggregate/num_items", Stage: convention.Aggregate, Output: "loss",
		Title:   "the token count that the trainer divides by",
		Formula: "num_items_in_batch = Σ mask over the micro-batches and ranks of the step, where a generation batch is one step",
		Source:  "TRL 1.16 dapo, transformers num_items_in_batch; V19 (trl#6024, #6439)",
		Fix:     "count the tokens after all masks are final, over the files that are accumulated into one step",
		Applies: func(c *Case) bool { return !math.IsNaN(c.FactOr("num_items_in_batch", math.NaN())) },
		Assert:  assertNumItems,
	}, {
		ID: "aggregate/finite", Stage: convention.Aggregate, Output: "loss",
		Title:   "a finite loss",
		Formula: "the loss is finite; NaN or ±Inf in a masked cell does no harm if it is left out, and makes the loss NaN if it is multiplied by 0",
		Source:  "V06 (verl#2377, OpenRLHF#1240, open-instruct#1685)",
		Fix:     "select masked cells away (torch.where, masked_fill) instead of multiplying by the mask, and guard means of no tokens",
		Assert:  assertFinite,
	}, {
		ID: "aggregate/pg_loss", Stage: convention.Aggregate, Output: "pg_loss",
		Title:   "policy loss of a file",
		Formula: "Agg(token_loss without KL) as agg.kind and agg.denominator say",
		Source:  "TRL 1.16 _compute_loss, verl agg_loss, OpenRLHF aggregate_loss; V19",
		Fix:     "compare the denominator: tokens or rows, of the micro-batch, the rank or all ranks, padded or not",
		Applies: rlhf, Predict: predictPolicyLoss,
	}, {
		ID: "aggregate/kl_loss", Stage: convention.Aggregate, Output: "kl_loss",
		Title:   "KL term of a file",
		Formula: "Agg(kl), or kl.beta·Agg(kl)",
		Source:  "verl use_kl_loss, OpenRLHF use_kl_loss; V19",
		Fix:     "compare the denominator with that of the policy loss, and look for a mean over padding",
		Applies: rlhf, Predict: predictKLLoss,
	}, {
		ID: "aggregate/value_loss", Stage: convention.Aggregate, Output: "value_loss",
		Title:   "value loss of a file",
		Formula: "Agg(value.factor·max((v − R)², (clip(v, V ± value.clip) − R)²)) over value.mask, or times value.coef",
		Source:  "OpenAI baselines ppo2; TRL 1.12 PPO, verl compute_value_loss, OpenRLHF ValueLoss; V18",
		Fix:     "compare the factor ½, the clip range, and the mask: TRL PPO takes one token more than the response",
		Applies: rlhf, Predict: predictValueLoss,
	}, {
		ID: "aggregate/entropy_loss", Stage: convention.Aggregate, Output: "entropy_loss",
		Title:   "entropy term of a file",
		Formula: "±Agg(entropy), or times entropy.coef",
		Source:  "verl entropy_coeff, TRL 1.16 entropy_coef; V19",
		Fix:     "compare the mask and the denominator of the mean",
		Applies: rlhf, Predict: predictEntropyLoss,
	}, {
		ID: "aggregate/loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "loss of a file",
		Formula: "Agg(token_loss) + kl.beta·Agg(kl) where token_loss lacks it + value.coef·value_loss − entropy.coef·Agg(entropy); Agg as agg.kind, agg.denominator and agg.div_ga say",
		Source:  "TRL 1.16 _compute_loss (conventions 7.1), verl agg_loss, OpenRLHF aggregate_loss; V19, V20",
		Fix:     "compare the denominator: tokens or rows, of the micro-batch, the rank or all ranks, padded or not; and the accumulation steps",
		Applies: rlhf, Predict: predictLoss,
	}}
}

// assertNumItems compares num_items_in_batch with the mask where both count the same tokens.
func assertNumItems(c *Case) *Assertion {
	want := c.FactOr("num_items_in_batch", math.NaN())
	micro := float64(c.B.Meta.MicroBatches)
	if !c.complete() || c.FactOr("steps_per_generation", micro) != micro {
		return nil
	}
	var tokens float64
	for _, m := range c.B.Mask {
		if m {
			tokens++
		}
	}
	a := &Assertion{Checked: 1}
	if tokens != want {
		a.Violations = []Violation{{Reason: "num_items_in_batch is not the number of tokens in the masks of the step, " + plain(tokens), Row: -1, Col: -1, Got: want, Fault: "AGG-COUNTS-MASKED"}}
	}
	return a
}

// assertFinite looks for the cause of a loss that is not finite.
func assertFinite(c *Case) *Assertion {
	a := &Assertion{}
	for f, x := range c.B.PerFile("loss") {
		a.Checked++
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			continue
		}
		v := Violation{Reason: "the loss of " + c.B.Files[f].Name + " is not finite", Row: -1, Col: -1, Got: x}
		for _, name := range []string{"token_loss", "logp_new", "logp_old", "advantages", "kl", "entropy"} {
			in := c.Optional(name).X
			if i := c.notFinite(in, f, true); i >= 0 {
				v.Reason += ": " + name + " holds NaN or an infinity in the mask"
				v.Row, v.Col = i/c.B.Cols, i%c.B.Cols
				break
			}
			if i := c.notFinite(in, f, false); i >= 0 {
				v.Reason += ": " + name + " holds NaN or an infinity outside the mask, which times 0 is NaN"
				v.Fault = "NAN-OUTSIDE"
				v.Row, v.Col = i/c.B.Cols, i%c.B.Cols
				break
			}
		}
		if v.Row < 0 && c.emptyRow(f) {
			v.Reason += ": a row has no token, and its mean is 0/0"
			v.Fault = "NAN-EMPTY-ROW"
		}
		a.Violations = append(a.Violations, v)
	}
	return a
}

// emptyRow reports whether file f has a row without a true cell.
func (c *Case) emptyRow(f int) bool {
	for r := c.B.Files[f].Lo; r < c.B.Files[f].Hi; r++ {
		if c.last(r) < 0 {
			return true
		}
	}
	return false
}

// notFinite returns the first cell of file f, in or out of the mask, that is not finite, or −1.
func (c *Case) notFinite(x []float64, f int, in bool) int {
	if x == nil {
		return -1
	}
	for i := c.B.Files[f].Lo * c.B.Cols; i < c.B.Files[f].Hi*c.B.Cols; i++ {
		if c.B.Mask[i] == in && extent(c.B, i) && (math.IsNaN(x[i]) || math.IsInf(x[i], 0)) {
			return i
		}
	}
	return -1
}
