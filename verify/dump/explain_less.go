package dump

import (
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// saysLess reports whether a fit under another option gives the numbers of a bug whose words say what is wrong: a constant that is the padded width, where
// another reduction is declared, or one of two bounds of importance weights that is gone.
func (t *track) saysLess(f stage.Fit) bool {
	told := func(id string) bool {
		return slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead && e.Hypothesis.ID == id })
	}
	return slices.ContainsFunc(f.Changes, func(c stage.Change) bool {
		switch c.Option {
		case "adv.kind", "gae.lambda", "gae.gamma": // the advantages are right under the declared ones
			return t.check.ID == "gae/returns" && told("RETURNS-OF-REWARDS")
		case "agg.kind":
			return c.From.Known() && c.To.String() == "seq_sum_const" && told("AGG-PAD-DENOMINATOR")
		case "tis.high", "tis.low":
			unseen := c.To.Kind() != convention.Number || c.Option == "tis.high" && slices.Max(t.first.Got) < c.To.Num() // no weight is held at it
			other := map[string]string{"tis.high": "tis.low", "tis.low": "tis.high"}[c.Option]
			both := c.From.Kind() == convention.Number && t.first.Case.Set.Value(other).Kind() == convention.Number // else that the only one is gone says it
			return len(f.Changes) == 1 && both && unseen && told("IS-BOUND-FORM")
		}
		return false
	})
}
