package dump

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// Limits of the first update. They are no rounding bounds: two passes of one model differ by their batching and kernels.
const (
	ratioLimit  = 0.05 // |ρ − 1| of a token, H1
	klFloat32   = 1e-5 // mean ½(lp − old)², H13c
	klBFloat16  = 1e-2
	sameWeights = 1e-6 // |lp − ref| of a reference that is a copy, H7a
)

func isFirstStep(c *stage.Check) bool { return strings.HasPrefix(c.ID, "first_step/") }

var firstStepChecks = []*stage.Check{
	{ID: "first_step/ratio", Stage: convention.Ratio, Output: "logp_new", Title: "at the first update the ratio is 1",
		Formula: fmt.Sprintf("|exp(logp_new − logp_old) − 1| ≤ %g for every token, and mean ½(logp_new − logp_old)² below %g (float32) or %g (16 bits)", ratioLimit, klFloat32, klBFloat16),
		Source:  "N+ implementation details (arXiv 2403.17031): the ratio of the first epoch's first minibatch; V02, H1, H13c",
		Fix:     "look for dropout, another temperature, padding or slice in one of the two passes, or old log-probs that were never filled",
		Assert:  firstRatio},
	{ID: "first_step/kl", Stage: convention.KL, Output: "logp_ref", Title: "at the first update KL to the reference is 0",
		Formula: fmt.Sprintf("|logp_new − logp_ref| ≤ %g + 64u·|logp|", sameWeights), Source: "V03, H7a",
		Fix:    "evaluation mode in both passes; the reference is the policy before training, with the same adapter state",
		Assert: firstKL},
	{ID: "first_step/values", Stage: convention.TokenLoss, Output: "values_new", Title: "at the first update no value is clipped",
		Formula: "|values_new − values| ≤ value.clip", Source: "the same ritual for the critic",
		Fix: "values_new and values come from two passes that differ", Assert: firstValues},
	{ID: "first_step/gradient", Stage: convention.Gradient, Output: "dlogp", Title: "at the first update the policy has a gradient",
		Formula: "some ∂loss/∂logp_new in the mask is not 0, if some advantage is not", Source: "P182, P196; the loss itself may be 0",
		Fix: "find what detaches the log-probs", Assert: firstGradient},
}

func unitOf(c *stage.Case, name string) float64 {
	t := c.B.Tensors[name]
	u, _ := t.Type.Unit()
	return max(u, tol.U32)
}

func firstRatio(c *stage.Case) *stage.Assertion {
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	if lp == nil || old == nil {
		return nil
	}
	a := &stage.Assertion{}
	var sum float64
	equal := true
	for i := range c.B.Tokens() {
		a.Checked++
		d := lp[i] - old[i]
		equal = equal && d == 0
		sum += float64(d * d)
		if !(math.Abs(math.Expm1(d)) <= ratioLimit) {
			v := stage.Violation{Row: i / c.B.Cols, Col: i % c.B.Cols, Got: math.Exp(d), Reason: fmt.Sprintf("ratio %.6g: logp_new %.6g, logp_old %.6g", math.Exp(d), lp[i], old[i])}
			if old[i] == 0 {
				v.Fault = "LOGP-OLD-ZERO"
			}
			a.Violations = append(a.Violations, v)
		}
	}
	onlyFirst := startsOnly(c, a.Violations)
	for i := range a.Violations {
		switch v := &a.Violations[i]; {
		case v.Fault != "":
		case onlyFirst:
			v.Fault = "LOGP-FIRST-TOKEN"
		default:
			v.Fault = "OLD-OTHER-PASS"
		}
	}
	limit := klFloat32
	if unitOf(c, "logp_new") > tol.U32 || unitOf(c, "logp_old") > tol.U32 {
		limit = klBFloat16
	}
	if mean := 0.5 * sum / float64(max(a.Checked, 1)); !(mean <= limit) && len(a.Violations) == 0 {
		a.Violations = append(a.Violations, stage.Violation{Row: -1, Col: -1, Got: mean, Fault: "OLD-OTHER-PASS", Reason: fmt.Sprintf("mean ½(logp_new − logp_old)² is %.3g, above %g", mean, limit)})
	}
	if equal && a.Checked > 0 {
		a.Note = "the two log-probs are the same bit by bit, perhaps by construction (old = new detached): this proves nothing about dropout or temperature; dump logp_gen"
	}
	return a
}

// startsOnly reports whether all violations are first tokens of responses.
func startsOnly(c *stage.Case, violations []stage.Violation) bool {
	return !slices.ContainsFunc(violations, func(v stage.Violation) bool {
		return v.Col != 0 && c.B.Mask[v.Row*c.B.Cols+v.Col-1]
	})
}

func firstKL(c *stage.Case) *stage.Assertion {
	lp, ref := c.B.Token("logp_new"), c.B.Token("logp_ref")
	if lp == nil || ref == nil {
		return nil
	}
	u := max(unitOf(c, "logp_new"), unitOf(c, "logp_ref"))
	a := &stage.Assertion{}
	for i := range c.B.Tokens() {
		a.Checked++
		if d := math.Abs(lp[i] - ref[i]); !(d <= sameWeights+64*u*max(1, math.Abs(lp[i]))) {
			a.Violations = append(a.Violations, stage.Violation{Row: i / c.B.Cols, Col: i % c.B.Cols, Got: d, Fault: "REF-NOT-POLICY", Reason: fmt.Sprintf("logp_new %.6g, logp_ref %.6g: the policy is not its reference", lp[i], ref[i])})
		}
	}
	if len(a.Violations) > 0 && len(a.Violations) < a.Checked && startsOnly(c, a.Violations) { // another model differs everywhere
		for i := range a.Violations {
			a.Violations[i].Fault = "LOGP-FIRST-TOKEN"
			a.Violations[i].Reason = strings.Replace(a.Violations[i].Reason, "the policy is not its reference", "first tokens differ, all others agree", 1)
		}
	}
	return a
}

func firstValues(c *stage.Case) *stage.Assertion {
	v, old := c.B.Token("values_new"), c.B.Token("values")
	clip := c.NumOr("value.clip", math.Inf(1))
	if v == nil || old == nil || !c.OK() {
		return nil
	}
	a := &stage.Assertion{}
	for i := range c.B.Tokens() {
		a.Checked++
		if !(math.Abs(v[i]-old[i]) <= clip) {
			a.Violations = append(a.Violations, stage.Violation{Row: i / c.B.Cols, Col: i % c.B.Cols, Got: v[i], Reason: fmt.Sprintf("values_new %.6g is clipped: values %.6g, value.clip %g", v[i], old[i], clip)})
		}
	}
	return a
}

func firstGradient(c *stage.Case) *stage.Assertion {
	d := c.B.Token("dlogp")
	if d == nil {
		return nil
	}
	adv := c.Optional("advantages")
	a := &stage.Assertion{}
	zero := true
	for i, m := range c.B.Mask {
		if m && (adv.X == nil || adv.X[i] != 0) {
			a.Checked++
			zero = zero && d[i] == 0
		}
	}
	if zero && a.Checked > 0 {
		a.Violations = append(a.Violations, stage.Violation{Row: -1, Col: -1, Reason: fmt.Sprintf("dlogp is exactly 0 in all %d cells whose advantage is not", a.Checked), Fault: "GRADIENT-ZERO"})
	}
	return a
}
