package dump

import (
	"fmt"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// placeOfKL returns set with what kl.place token_reward means of estimators that subtract a baseline before they make rewards of tokens, and words
// about it, "" if set stays: the KL of a token is in its reward there, too, which is kl.place sequence_reward_after (OpenRLHF 0.11.2, make_experience
// shapes the scores of a group, and compute_reward adds them to −β·kl). Token rewards that hold the scores as they are say that the option is meant as
// it stands.
func placeOfKL(b *dump.Batch, set *convention.Set, p *convention.Profile) (*convention.Set, string) {
	const option = "kl.place"
	declared := set.Value(option)
	if declared.String() != "token_reward" || set.Origin(option) == p.Name || p.Allows(option, declared) {
		return set, ""
	}
	after, err := convention.Parse(option, "sequence_reward_after")
	if err != nil {
		panic("dump: " + err.Error())
	}
	if !p.Allows(option, after) || stage.Judge(stage.Find("reward/token"), b, set).Verdict == check.Pass {
		return set, ""
	}
	words := fmt.Sprintf("%s %s is read as %s, as %s has it: the score in the reward of the last token is that after the baseline", option, declared, after, p.Name)
	return set.With(option, after, set.Origin(option)), words
}
