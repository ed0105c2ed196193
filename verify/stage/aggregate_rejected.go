package stage

import "fmt"

// Names of verl's that say how its loss or its batch rejects what the engine sampled far from the policy.
const (
	rejection = "algorithm.rollout_correction.rollout_rs"
	bypass    = "algorithm.rollout_correction.bypass_mode"
)

// rejects reports whether tokens or responses are declared to be taken out of the mask.
func (c *Case) rejects() bool {
	rule, _ := c.Set.Fact(rejection)
	_, is := rule.(string)
	return is
}

// countsRejected reports whether the loss rejects by a mask of its own, as verl's compute_policy_loss_bypass_mode does: the tokens that it divides
// by are counted in the batch, before.
func (c *Case) countsRejected() bool {
	on, _ := c.Set.Fact(bypass)
	return on == true && c.rejects()
}

// beforeRejection judges a count of tokens that is above that of the mask where the mask is dumped after the rejection: it is that of the responses as
// attention shows them, or nothing tells.
func (c *Case) beforeRejection(tokens, got float64) *Assertion {
	for _, w := range c.otherCounts() {
		if w.n == got && w.id == "AGG-COUNTS-MASKED" {
			return &Assertion{Checked: 1, Note: fmt.Sprintf("%s tokens before the rejection, %s in the mask", plain(got), plain(tokens))}
		}
	}
	note(&c.Absent, "the mask before the rejection")
	return nil
}
