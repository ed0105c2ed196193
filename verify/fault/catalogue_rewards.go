package fault

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// everyPenalised returns the input whose scores all have the penalty of a response without EOS taken off.
func everyPenalised(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	k, score := c.Set.Value("eos.penalty"), c.B.Row("scores")
	if c.Set.Value("eos.rule").String() != "subtract" || k.Kind() != convention.Number || k.Num() == 0 || score == nil {
		return nil, nil, false
	}
	return c.B.With("scores", mapped(score, func(x float64) float64 { return x - k.Num() })), c.Set.With("eos.rule", parsed("eos.rule", "none"), "hypothesis"), true
}

// paddedKL predicts rewards of tokens r_t = −β·kl_t that have a KL outside the mask, too, and the score beside it where that stands behind the last token.
func paddedKL(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, kl, beta := under(sameInput, c, ch), c.B.Token("kl"), numberOr(c, "kl.beta", 0)
	if old, ref := c.B.Token("logp_old"), c.B.Token("logp_ref"); kl == nil && len(old) == len(c.B.Mask) && len(ref) == len(old) {
		for _, f := range klOfTokens {
			if f.kind != "" && f.kind == c.Set.Value("kl.kind").String() {
				kl = make([]float64, len(old))
				for i := range kl {
					kl[i] = f.of(ref[i] - old[i])
				}
			}
		}
	}
	if p == nil || beta == 0 || c.Set.Value("kl.place").String() != "token_reward" || len(kl) != len(p.Want) || len(kl) != len(c.B.Mask) {
		return nil
	}
	q := altered(p)
	for i, in := range c.B.Mask {
		if !in {
			q.Want[i] -= beta * kl[i]
			q.Bound[i] += 8 * c.Unit * (math.Abs(beta*kl[i]) + math.Abs(p.Want[i]))
		}
	}
	return q
}

// inBoth are the hypotheses of a penalty of KL that stands in the rewards, where the declared place is the loss: the KL of the rollout is that of the old policy.
func inBoth() (list []*Hypothesis) {
	for _, place := range []string{"token_reward", "sequence_reward_before_baseline", "sequence_reward_after"} {
		list = append(list, &Hypothesis{ID: "KL-TWICE", Checks: []string{"advantage", "gae", "reward/token"}, Configured: []string{"kl.place"},
			Title: "the KL is in the rewards, and in the loss, too, where it is declared: kl.place " + place + " besides",
			Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				if c.Set.Value("kl.place").String() != "loss" || numberOr(c, "kl.beta", 0) == 0 || c.B.Token("logp_old") == nil || c.B.Token("logp_ref") == nil {
					return nil, nil, false
				}
				return c.B.Without("kl"), c.Set.With("kl.place", parsed("kl.place", place), "hypothesis"), true
			}})
	}
	return list
}
