package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// signalCheck demands that rewards that differ leave some advantage that is not 0, however advantages are made of them.
//
// Of an advantage that compares the responses of a group, A_i = f(r_i, the group) is 0 for at most one value of r_i: two rows of a group
// with different scores are not both 0. Of one that compares nothing, A_t is a sum of rewards, and two rows with different scores are not
// both 0. Of GAE, A = 0 everywhere makes every δ 0, V_t = r_t + γ·V_{t+1}: all γ_t = (V_t − r_t)/V_{t+1} of two tokens in a row are one number.
// Whitening of numbers that differ gives none that are all 0. What does give them: scores that a clip or a penalty makes equal, pass@k, whose advantages
// are 0 in a group with fewer than k failures, and options that nobody expresses.
func signalCheck() *Check {
	return &Check{
		ID: "advantage/signal", Stage: convention.Advantage, Output: "advantages", Title: "rewards that differ leave some advantage that is not 0, and packed ones are those of their response",
		Formula: "max|A| > 0 where two rows of a group have different scores, or where the values are no discounted sum of the rewards; the first A of a packed response is not that of the token before it, where all others are one number",
		Source:  "V30, B1, P057; C5, P163",
		Fix:     "cut what is packed by one slice; else look at what becomes of the advantages between estimator and loss: a mask, a buffer that is never filled, a product with 0",
		Assert:  advantagesSignal,
	}
}

func advantagesSignal(c *Case) *Assertion {
	b := c.B
	t := b.Tensors["advantages"]
	if t == nil {
		return nil
	}
	perRow := t.Layout == dump.PerRow && t.Width == 1
	a := &Assertion{}
	c.packedAdvantages(a)
	for i, x := range t.Data {
		if !perRow && (i >= len(b.Mask) || !b.Mask[i]) {
			continue
		}
		a.Checked++
		if x != 0 { // NaN, too
			return a
		}
	}
	if a.Checked == 0 || c.Set.Beyond(convention.Advantage) != "" || c.FactOr("overlong_buffer_len", 0) > 0 ||
		c.EnumOr("adv.multi", "sum_then_normalize") == "normalize_then_sum" || // of two functions that are apart the other way the sum is 0
		c.EnumOr("reward.clip", "none") != "none" || c.EnumOr("eos.rule", "none") != "none" {
		return a
	}
	say := func(row int, got float64, format string, args ...any) *Assertion {
		a.Violations = []Violation{{Row: row, Col: -1, Got: got, Fault: "ADV-ZERO", Reason: "all advantages are exactly 0, although " + fmt.Sprintf(format, args...) + ": nothing is learned"}}
		return a
	}
	kind := c.advantageKind()
	if kind == "gae" {
		if row, x, y := c.unlikeDiscounts(); row >= 0 {
			return say(row, 0, "the values are no discounted sum of the rewards, (V_t − r_t)/V_{t+1} is %.3g and %.3g", x, y)
		}
		return a
	}
	score := b.Row("scores")
	if len(score) != b.Rows || kind == "passk" {
		return a
	}
	group := b.Row("group_id")
	if isGroupKind(kind) && kind != "raw" && len(group) != b.Rows {
		return a
	}
	pass := make([]float64, b.Rows)
	if c.severalGenerations() != "" {
		passes := c.passesOf()
		if passes == nil {
			return a
		}
		for n, rows := range passes {
			for _, r := range rows {
				pass[r] = float64(n)
			}
		}
	}
	first := map[[2]float64]int{}
	for r, s := range score {
		g := [2]float64{pass[r]}
		if isGroupKind(kind) && kind != "raw" {
			g[1] = group[r]
		}
		if math.IsNaN(s) || !slices.Contains(b.Mask[r*b.Cols:(r+1)*b.Cols], true) {
			continue // a row that is left out
		}
		k, seen := first[g]
		if !seen {
			first[g] = r
		} else if score[k] != s {
			return say(r, s, "rows %d and %d of a group have the scores %.6g and %.6g", k, r, score[k], s)
		}
	}
	return a
}

// unlikeDiscounts returns two discounts that the values ask for if no advantage of GAE is to be other than 0, and the row of the second, if
// they differ by more than any rounding; −1 if not. Tokens behind a hole, and rows that are packed, are left out.
func (c *Case) unlikeDiscounts() (row int, x, y float64) {
	b := c.B
	v, r := b.Token("values"), b.Token("token_rewards")
	if v == nil || r == nil || b.Token("segment_ids") != nil || b.Token("dones") != nil {
		return -1, 0, 0
	}
	low, high, lowRow, highRow := math.Inf(1), math.Inf(-1), -1, -1
	for i := 0; i+1 < len(b.Mask); i++ {
		if (i+1)%b.Cols == 0 || !b.Mask[i] || !b.Mask[i+1] || math.Abs(v[i+1]) < 1e-2 {
			continue
		}
		g := (v[i] - r[i]) / v[i+1]
		if g < low {
			low, lowRow = g, i/b.Cols
		}
		if g > high {
			high, highRow = g, i/b.Cols
		}
	}
	if high-low > 0.1*max(1, math.Abs(low)) {
		return max(lowRow, highRow), low, high
	}
	return -1, 0, 0
}
