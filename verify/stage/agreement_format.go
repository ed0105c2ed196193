package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/tol"
)

// passFormats finds log-probs of the trainer that were rounded to 16 bits although they are stored in more, so that it was not the dump that
// rounded them.
func passFormats(c *Case) *Assertion {
	a := c.rounded("logp_new", "entropy")
	if old := oldFormat(c); old != nil {
		a.Checked += old.Checked
		a.Violations = append(a.Violations, old.Violations...)
	}
	if a.Checked == 0 {
		return nil
	}
	return a
}

// rounded finds log-probs on the grid of a 16-bit format where a tensor that is made of the same logits has more bits, or float32 is declared: the
// logits were not of 16 bits when the log-softmax was, or should not have been. Where all of a pass is on that grid, the model may be of that
// type, and its log-softmax with it.
func (c *Case) rounded(name, beside string) *Assertion {
	a := &Assertion{}
	x := c.tokens(name)
	if len(x) < few || c.halfDeclared() {
		return a
	}
	a.Checked = len(x)
	u := Grid(x)
	because := ""
	switch y := c.tokens(beside); {
	case u != tol.UB && u != tol.U16:
		return a
	case len(y) >= few && Grid(y) > 0 && Grid(y) < u:
		because = beside + " is of the same logits and has more bits"
	case units[c.B.Meta.ComputeDType] == tol.U32:
		because = "float32 is declared"
	default:
		return a
	}
	a.Violations = []Violation{{Row: -1, Col: -1, Got: u, Fault: "LOGP-BF16",
		Reason: fmt.Sprintf("all %d numbers of %s lie on the grid of %s, and %s: the log-softmax ran in 16 bits, and the policy's changes are below what it can tell", len(x), name, halfNames[u], because)}}
	return a
}

// halfNames are the 16-bit formats by their unit roundoff.
var halfNames = map[float64]string{tol.UB: "bfloat16", tol.U16: "float16"}

// halfDeclared reports whether 16 bits are what the trainer says that it computes in.
func (c *Case) halfDeclared() bool {
	u, known := units[c.B.Meta.ComputeDType]
	return known && u > tol.U32
}

// tokens returns what is neither 0 nor infinite of a tensor in the mask; nil where it was rounded to 16 bits on storing.
func (c *Case) tokens(name string) (list []float64) {
	x := c.B.Token(name)
	if x == nil || c.unitStored(name) > 0 || slices.Contains(c.B.Meta.Lossy, name) {
		return nil
	}
	for i, m := range c.B.Mask {
		if m && x[i] != 0 && isFinite(x[i]) {
			list = append(list, x[i])
		}
	}
	return list
}

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
		a.Violations = []Violation{{Row: -1, Col: -1, Got: u, Fault: "OLD-BF16",
			Reason: fmt.Sprintf("all %d old log-probs lie on the grid of %s, the new ones do not, and float32 is declared: the ratio of an unchanged policy is off by up to %.2g per nat", len(x), halfNames[u], u)}}
	}
	return a
}
