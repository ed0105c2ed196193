package dump

import (
	"fmt"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// referenceOfPairs demands that the reference of a preference loss, which is the policy at the first step, is of the same answers, and another model
// after updates.
func referenceOfPairs(c *stage.Case) *stage.Assertion {
	if synced(c) || c.B.Row("ref_rejected") == nil {
		return nil
	}
	if v := ofOtherPairs(c.B); v != nil {
		return &stage.Assertion{Checked: c.B.Rows, Violations: []stage.Violation{*v}}
	}
	begins, _ := c.Set.Fact("rollout_begins")
	if begins != true {
		return nil
	}
	a := &stage.Assertion{Checked: c.B.Rows}
	if pairs, same := pairsAlike(c.B); same && suspected(c, 2*pairs, 12) {
		a.Violations = []stage.Violation{{Row: -1, Col: -1, Fault: "REF-IS-POLICY",
			Reason: fmt.Sprintf("ref_chosen and ref_rejected are the policy's log-probs bit by bit in all %d pairs, in this step as in earlier ones after the first, whose gradients were not 0: the reference is the policy, and every margin is 0", pairs)}}
	}
	return a
}

// ofOtherPairs finds references of other answers, of other pairs or the other one of their own. Where the policy is the reference still, those of a pair are the policy's of another one, both of
// them, in more than 16 bits. That the two do not go together says nothing: of short answers two models may make anything.
func ofOtherPairs(b *dump.Batch) *stage.Violation {
	const (
		few      = 3    // pairs that are found elsewhere
		rounding = 1e-5 // of a sum in float32, by another kernel
		far      = 1e-3
	)
	var x [4][]float64
	for i, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"} {
		if x[i] = b.Row(name); x[i] == nil || coarse(b, name) {
			return nil
		}
	}
	near := func(p, q, by float64) bool { return math.Abs(p-q) <= by*max(1, math.Abs(p)) }
	taken, row, from := map[int]bool{}, -1, -1
	for r := range b.Rows {
		c, j := x[2][r], x[3][r]
		if c == 0 || j == 0 || near(c, x[0][r], far) || near(j, x[1][r], far) {
			continue
		}
		for s := range b.Rows {
			if s != r && !taken[s] && near(c, x[0][s], rounding) && near(j, x[1][s], rounding) {
				taken[s], row, from = true, r, s
				break
			}
		}
	}
	v := &stage.Violation{Row: -1, Col: -1, Fault: "DPO-REFERENCE-ROWS"}
	if len(taken) >= few {
		v.Reason = fmt.Sprintf("ref_chosen and ref_rejected of %d of %d pairs are logp_chosen and logp_rejected of other ones, those of row %d of row %d", len(taken), b.Rows, row, from)
		return v
	}
	exchanged := 0
	for r := range b.Rows {
		if near(x[2][r], x[1][r], rounding) && near(x[3][r], x[0][r], rounding) && !near(x[2][r], x[0][r], far) {
			exchanged++
		}
	}
	if exchanged >= few && exchanged == b.Rows {
		v.Fault = "DPO-REFERENCE-SIGN"
		v.Reason = fmt.Sprintf("ref_chosen is logp_rejected and ref_rejected is logp_chosen in all %d pairs: the halves of the reference's batch are exchanged", b.Rows)
		return v
	}
	return nil
}
