package dump

import (
	"slices"

	"plumbline/verify/bug"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
)

// sayAgainst are the options that say what a bug is relative to, by the words of the registry.
var sayAgainst = map[string][]string{
	"the log-probs that the ratio is against": {"ratio.old"},
	"whether the loss has importance weights": {"tis.level"},
	"the coefficient of the KL":               {"kl.beta"},
	"the clip bounds":                         {"clip.low", "clip.high"},
	"the dual clip":                           {"clip.dual"},
	"the loss of a token":                     {"loss.kind"},
	"the clip of the value loss":              {"value.clip"},
	"the clip range of the values":            {"value.clip"},
	"the coefficient of the value loss":       {"value.coef"},
	"the coefficient of the entropy":          {"entropy.coef"},
	"γ":                                       {"gae.gamma"},
	"λ":                                       {"gae.lambda"},
	"the whitening":                           {"whiten.scope"},
	"whether advantages are whitened":         {"whiten.scope"},
	"the whitening of rewards":                {"rewards.whiten"},
	"the scope of the deviation":              {"adv.scale"},
	"the scaling of the advantages":           {"adv.scale"},
	"the scale of the advantages":             {"adv.scale"},
	"the degrees of freedom of the deviation": {"adv.ddof"},
	"the ε of the deviation":                  {"adv.eps"},
	"the baseline of the group":               {"adv.center"},
	"the aggregation":                         {"agg.kind"},
	"the aggregation of the KL term":          {"kl.agg"},
	"the aggregation of the entropy term":     {"entropy.agg"},
}

// unsaidAgainst reports whether all that explains a failure is a difference from what nobody declares, whatever else of it is declared: of advantages that may be
// meant so, from their estimator.
func (t *track) unsaidAgainst() bool {
	set := t.first.Case.Set
	unsaid := func(options ...string) bool {
		return slices.ContainsFunc(options, func(name string) bool {
			return slices.Contains(t.first.Case.Read, name) && set.Value(name).Kind() != convention.NotApplicable && !isDeclared(set, name)
		})
	}
	bugs := slices.DeleteFunc(slices.Clone(t.why.faults), func(e fault.Explanation) bool { return e.Lead || e.Hypothesis == nil })
	return len(bugs) > 0 && !slices.ContainsFunc(bugs, func(e fault.Explanation) bool {
		against := bug.MustFind(e.Hypothesis.ID).Against
		switch options, known := sayAgainst[against]; {
		case slices.Contains(e.Hypothesis.Configured, "loss.kind"):
			return !unsaid("loss.kind")
		case !e.Hypothesis.Relative || e.Solved:
			return true
		case known:
			return !unsaid(options...)
		case against == "" && t.check.Stage == convention.Advantage:
			return !unsaid("adv.kind", "whiten.scope")
		}
		return true
	})
}
