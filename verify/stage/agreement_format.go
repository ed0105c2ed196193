package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/tol"
)

// oldFormat finds old log-probs that were rounded to 16 bits where the trainer says that it computes in float32 and the new ones have more:
// both are stored in 32 bits, so that it was not the dump that rounded them.
func oldFormat(c *Case) *Assertion {
	const name = "logp_old"
	old, lp := c.B.Token(name), c.B.Token("logp_new")
	if old == nil || lp == nil || c.B.Meta.ComputeDType != "float32" || c.unitStored(name) > 0 || slices.Contains(c.B.Meta.Lossy, name) {
		return nil
	}
	var x, y []float64
	for i, m := range c.B.Mask {
		if m && old[i] != 0 && !math.IsNaN(old[i]) && !math.IsInf(old[i], 0) {
			x, y = append(x, old[i]), append(y, lp[i])
		}
	}
	a := &Assertion{Checked: len(x)}
	// A float32 has 13 bits or more that a 16-bit format has not: that all of them are 0 in 24 numbers is no chance.
	if u := Grid(x); len(x) >= few && (u == tol.UB || u == tol.U16) && Grid(y) < u && Grid(y) > 0 {
		of := map[float64]string{tol.UB: "bfloat16", tol.U16: "float16"}[u]
		a.Violations = []Violation{{Row: -1, Col: -1, Got: u, Fault: "OLD-BF16",
			Reason: fmt.Sprintf("all %d old log-probs lie on the grid of %s, the new ones do not, and float32 is declared: the ratio of an unchanged policy is off by up to %.2g per nat", len(x), of, u)}}
	}
	return a
}
