package stage

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/tol"
)

// What is no certain token: p = 1 but for rounding has the log-prob 0. In 16 bits log-probs are differences of logits with steps of up to
// 1/8, so that 1 − p may be 0.06, with an entropy of h(0.06) + 0.06·12.5 < 1; in float32, of logits up to 128, it is 8e-6, with an
// entropy below 3e-4.
const (
	uncertain16 = 1.0
	uncertain32 = 0.05
)

// silentEnds finds log-probs that are exactly 0 at the last token of responses, its EOS, and at no other that is as uncertain: what was
// shifted, padded or masked one token short. That the token is not certain is said by another pass of the policy, or by its entropy. A
// reference may be certain of what the policy is not: it must be 0 at the end of every row, and nowhere else.
func (c *Case) silentEnds() (list []Violation) {
	b := c.B
	const least = 3
	for _, name := range logpNames {
		x := b.Token(name)
		if x == nil {
			continue
		}
		ends, zeros, silent, elsewhere, zerosElsewhere := 0, 0, 0, 0, 0
		at, says := -1, ""
		for r := range b.Rows {
			last := c.last(r)
			for t := range last + 1 {
				i := r*b.Cols + t
				if !b.Mask[i] || last == 0 {
					continue
				}
				if t == last {
					ends++
				}
				if x[i] != 0 {
					continue
				}
				other := c.uncertain(name, i)
				switch {
				case t < last && other != "":
					elsewhere++
				case other != "":
					if silent++; at < 0 {
						at, says = i, other
					}
				}
				if t == last {
					zeros++
				} else {
					zerosElsewhere++
				}
			}
		}
		if silent < least || elsewhere > 0 || name == "logp_ref" && (zeros < ends || zerosElsewhere > 0 || ends < 2*least) {
			continue
		}
		list = append(list, Violation{Row: at / b.Cols, Col: at % b.Cols, Fault: "LOGP-END-ZERO",
			Reason: fmt.Sprintf("%s is exactly 0 at the last token of %d of %d responses, where it is not certain (%s), and at no other such token: what was not there was filled in", name, silent, ends, says)})
	}
	return list
}

// withoutSilentEnds returns c with a mask without the last tokens of responses at which [silentEnds] finds nothing in some pass: what was
// filled in there is no sign of the other tokens, nor of the engine's weights.
func (c *Case) withoutSilentEnds() *Case {
	list := c.silentEnds()
	if len(list) == 0 {
		return c
	}
	mask := slices.Clone(c.B.Mask)
	for _, v := range list {
		name, _, _ := strings.Cut(v.Reason, " ")
		x := c.B.Token(name)
		for r := range c.B.Rows {
			if last := c.last(r); last >= 0 && x[r*c.B.Cols+last] == 0 {
				mask[r*c.B.Cols+last] = false
			}
		}
	}
	return c.Of(c.B.WithMask(mask), c.Set)
}

// endsAgree is silentEnds as a check.
func endsAgree(c *Case) *Assertion {
	a := &Assertion{Violations: c.silentEnds()}
	for _, name := range logpNames {
		if c.B.Token(name) != nil {
			a.Checked += c.B.Rows
		}
	}
	return a
}

// uncertain says by what a token is known not to be certain although its log-prob called name is 0; "" if by nothing.
func (c *Case) uncertain(name string, i int) string {
	for _, other := range logpNames {
		// The reference of a policy that has collapsed may differ by much; the three of the policy may not.
		if y := c.B.Token(other); y != nil && other != name && (other != "logp_ref" || name == "logp_ref") && y[i] < silentMean {
			return fmt.Sprintf("%s %.3g there", other, y[i])
		}
	}
	if h := c.B.Token("entropy"); h != nil && name != "logp_ref" {
		least := uncertain32
		if Grid(c.B.Tensors[name].Data) > tol.U32 || Grid(h) > tol.U32 {
			least = uncertain16
		}
		if h[i] > least {
			return fmt.Sprintf("entropy %.3g there", h[i])
		}
	}
	return ""
}
