package dump

import (
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// lawless says why the numbers that failed are of no configuration, whatever nobody declares; "" where that is not known. What is tried may be incomplete, a law
// that all options keep is not.
func (t *track) lawless(s *session) string {
	b := t.first.Case.B
	if t.first.Half() || len(b.Missing) > 0 {
		return ""
	}
	switch t.check.ID {
	case "gae/advantage":
		gamma, lambda := s.foundBy("gae/returns", "gae.gamma"), s.foundBy("gae/returns", "gae.lambda")
		if gamma.Kind() == convention.Number && lambda.Kind() == convention.Number && stage.NotARecursion(b, gamma.Num(), lambda.Num()) {
			return "the returns are right, and within a row these are no line of a recursion over what returns exceed values by, which every γ, λ and whitening gives"
		}
	case "gae/returns":
		if stage.NotReturns(b) {
			return "within responses no γ and λ make them of token_rewards and values"
		}
	case "advantage/group":
		if s.scoresAlone(b.Tensors["logp_ref"] != nil || b.Tensors["kl"] != nil) && stage.NotOfScores(b) {
			return "within a group they do not rise with the scores, as they do under every baseline and every number that they are divided by"
		}
	}
	return ""
}

// foundBy is the value of an option that a check has found which is right in all steps.
func (s *session) foundBy(id, option string) convention.Value {
	i := slices.IndexFunc(s.tracks, func(u *track) bool { return u.check.ID == id })
	if i < 0 || len(s.tracks[i].failing) > 0 || s.tracks[i].passed == 0 {
		return convention.Value{}
	}
	for _, c := range s.tracks[i].decided() {
		if c.Option == option {
			return c.To
		}
	}
	return convention.Value{}
}

// scoresAlone reports whether rewards are made of scores without a KL: there is none in the files, or what is right in all steps has it in the loss.
func (s *session) scoresAlone(there bool) bool {
	if !there {
		return true
	}
	for _, u := range s.tracks {
		if v := s.foundBy(u.check.ID, "kl.place"); v.Kind() == convention.Enum {
			return v.Text() == "loss" || v.Text() == "none"
		}
	}
	return false
}
