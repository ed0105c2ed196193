package dump

import (
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// synchronised leaves a reference undecided that is the policy of each rollout bit by bit where no profile is declared: one that is synchronised with the policy
// before every rollout is (TRL's sync_ref_model with ref_model_mixup_alpha 1; Kimi k1.5's mirror descent), and no number tells it from a reference that is the
// policy by mistake, unless it moves within the rollout.
func (t *track) synchronised(res *check.Result, s *session) {
	if t.check.ID != "across/reference" || res.Verdict != check.Fail || s.profile != nil || t.first.Rules == nil ||
		slices.ContainsFunc(t.first.Rules.Violations, func(v stage.Violation) bool { return !strings.HasPrefix(v.Reason, "logp_ref is logp_old bit by bit") }) {
		return
	}
	for i := range res.Explanations {
		res.Explanations[i].Lead = true
	}
	res.Verdict, res.Class = check.Undetermined, nil
	res.Reason += "; nobody declares whether the reference is synchronised with the policy before a rollout"
	res.Fix = "if it is, say so (sync_ref_model: true among the options); else disable the adapter for the reference, or copy and freeze the model"
}
