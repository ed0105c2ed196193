package dump

import (
	"fmt"
	"math"

	"plumbline/verify/stage"
)

// followsPolicy finds a reference that moves with the policy: at a later update of the same rows it is logp_new bit by bit, as no two passes of
// different weights are, and it is not what it was at the earlier one.
func followsPolicy(c *stage.Case) *stage.Violation {
	const enough = 24 // tokens
	lp, ref, then := c.B.Token("logp_new"), c.B.Token("logp_ref"), c.B.Token(before+"logp_ref")
	if lp == nil || then == nil {
		return nil
	}
	tokens, moved, most := 0, 0, 0.0
	for i, m := range c.B.Mask {
		if !m || math.IsNaN(then[i]) {
			continue
		}
		if ref[i] != lp[i] {
			return nil
		}
		tokens++
		if d := math.Abs(ref[i] - then[i]); d > 1e-3*math.Max(0.1, math.Abs(then[i])) { // beyond what other kernels make of float32
			moved, most = moved+1, math.Max(most, d)
		}
	}
	if tokens < enough || 2*moved < tokens || coarse(c.B, "logp_ref") {
		return nil
	}
	return &stage.Violation{Row: -1, Col: -1, Got: most, Fault: "REF-IS-POLICY",
		Reason: fmt.Sprintf("logp_ref is logp_new bit by bit in all %d tokens of rows that an earlier update used, and was another there (by up to %.3g): the reference is the policy, and the KL to it is 0 for ever", tokens, most)}
}
