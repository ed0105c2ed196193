package dump

import (
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// convicted reports whether a bug explains the failure whatever the run was configured with: it is not relative to a declaration, and its bounds are not too
// wide to judge, as those of numbers in 16 bits may be. A formula near the right one fits these, while the right one, whose numbers nobody
// declares, was not found: the failure then says that a search was incomplete. What no bug explains is not decided here. Of a logged number
// one explanation that is relative is enough: what a log averages is what its program says it does. That a loss has importance weights at all, and
// which, where none were dumped, a declaration alone says; of weights of other log-probs than those of trainer and engine none has to.
func (t *track) convicted() bool {
	bugs := slices.DeleteFunc(slices.Clone(t.why.faults), func(e fault.Explanation) bool { return e.Lead || e.Hypothesis == nil })
	if groupOf(t.check.ID) == "scalars" && slices.ContainsFunc(bugs, func(e fault.Explanation) bool { return e.Hypothesis.Relative }) {
		return false
	}
	if slices.ContainsFunc(bugs, func(e fault.Explanation) bool { return t.configurable(e.Hypothesis) }) {
		return false
	}
	if t.check.Stage == convention.Advantage && slices.ContainsFunc(bugs, func(e fault.Explanation) bool {
		return e.Hypothesis.Relative && !e.Solved && t.legalScale(e.Hypothesis.ID)
	}) {
		return false
	}
	other := func(e fault.Explanation) bool { return slices.Contains(otherWeights, e.Hypothesis.ID) }
	unsaid := func(e fault.Explanation) bool { // what gives the same numbers is no surer
		return strings.HasPrefix(e.Hypothesis.ID, "IS-") && t.first.Case.B.Tensors["is_weights"] == nil && !other(e)
	}
	if !isDeclared(t.first.Case.Set, "tis.level") && slices.ContainsFunc(bugs, unsaid) && !slices.ContainsFunc(bugs, other) {
		return false
	}
	return len(bugs) == 0 || slices.ContainsFunc(bugs, func(e fault.Explanation) bool {
		coarse := e.Outcome != nil && e.Outcome.Half() && e.Outcome.Verdict != check.Pass
		return !coarse && !unsaid(e) && !(e.Hypothesis.Relative && !e.Solved && !t.otherBeta(e) && !t.carriedBeyond(e))
	})
}

// legalScale reports whether what explains advantages is another baseline, or another scale of them, that programs are configured with where nobody says
// which: a right one has the numbers then, whatever else makes them.
func (t *track) legalScale(id string) bool {
	option, ok := map[string]string{"ADV-NOT-SCALED": "adv.scale", "ADV-BATCH-STD": "adv.scale", "ADV-GROUP-STD": "adv.scale", "ADV-DDOF": "adv.ddof"}[id]
	return ok && !isDeclared(t.first.Case.Set, option)
}

// overOneWidth reports whether a failure is explained by a padded width in the denominator where all files have one: a configured constant may be as large (Dr. GRPO).
func (t *track) overOneWidth(s *session) bool {
	return !isDeclared(t.first.Case.Set, "agg.kind") && (t.check.Stage == convention.Aggregate || t.check.Stage == convention.Gradient) && s.scan().width > 0 &&
		slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool {
			return !e.Lead && e.Hypothesis != nil && e.Hypothesis.ID == "AGG-PAD-DENOMINATOR"
		})
}

// otherWeights are the bugs of importance weights that are of other log-probs.
var otherWeights = []string{"IS-NEW-FOR-OLD", "IS-NEW-FOR-GEN", "IS-INVERTED", "IS-OF-REFERENCE"}

// configurable reports whether a configuration that nobody declares makes of a bug a right program. Token losses that have the KL in them say its coefficient,
// so that the rest of the loss has no other. A KL after the baseline is one of OpenRLHF 0.11.2 (kl.place sequence_reward_after), and its gradient is the same on
// average. That a loss has a KL at all, and that rewards have a baseline of their group where REINFORCE has one of the batch, a declaration alone says.
func (t *track) configurable(h *fault.Hypothesis) bool {
	c := t.first.Case
	switch h.ID {
	case "EOS-PENALTY-IGNORED": // there is none
		return !isDeclared(c.Set, "eos.rule")
	case "GAE-REWARD-SHIFT": // a reward behind the last token is none, as one that a penalty of 0 makes of responses without an end
		return !isDeclared(c.Set, "eos.rule") && t.withoutScores()
	case "SCORE-ZERO-MISSING": // beside a penalty that only a profile in the place of a declaration has
		if v, origin := c.Set.Value("eos.rule"), c.Set.Origin("eos.rule"); v.Kind() == convention.Enum && v.Text() != "none" && (origin == ofNobody || strings.Contains(origin, "@")) {
			return true
		}
	case "AGG-COUNTS-MASKED":
		return stage.Rejected(c.B)
	case "LOSS-MASK-P1": // a recursion begins there where the cell behind a response holds a value
		if t.check.Stage == convention.Advantage {
			return !isDeclared(c.Set, "gae.value_mask")
		}
	case "LOSS-MASK-PADS": // a mean over a padded width is a sum divided by a constant, which is Dr. GRPO's, where padding adds nothing to the sum
		if t.check.Stage == convention.Aggregate || t.check.Stage == convention.Gradient {
			return !isDeclared(c.Set, "agg.kind") && stage.NothingOutside(t.check, c.B)
		}
	case "KL-AFTER-BASELINE":
		return !isDeclared(c.Set, "kl.place")
	case "KL-ABSENT":
		return !isDeclared(c.Set, "kl.place") && !isDeclared(c.Set, "kl.beta")
	case "ADV-ONE-GROUP":
		return !isDeclared(c.Set, "adv.kind")
	case "ADV-GROUPS-PER-FILE": // of a step that has several generation batches (TRL), whose groups have the same ids
		return t.mayRecur()
	case "ADV-NORMALISED-TWICE": // which one function under normalize_then_sum is (GDPO)
		return t.check.ID == "advantage/group" && (t.mayRecur() || !isDeclared(c.Set, "adv.multi") && c.B.Tensors["rewards_per_func"] == nil)
	case "IS-BOUND-FORM": // a lower bound alone may be that number
		return strings.Contains(h.Title, "1/tis.high") && !isDeclared(c.Set, "tis.high") && !stage.AtUpperBound(c)
	}
	includes := c.B.Meta.TokenLossIncludesKL
	return slices.ContainsFunc(h.Configured, func(option string) bool {
		return slices.Contains(c.Read, option) && !isDeclared(c.Set, option) &&
			!(option == "kl.beta" && c.B.Tensors["token_loss"] != nil && includes != nil && *includes && t.check.Stage == convention.Aggregate)
	})
}

// withoutScores reports whether the failing numbers are right where the scores of the responses that fill their rows, and may have been cut off, are 0.
func (t *track) withoutScores() bool {
	b := t.first.Case.B
	scores := slices.Clone(b.Row("scores"))
	if scores == nil || b.Cols == 0 || b.Tensors["token_rewards"] != nil {
		return false
	}
	for r := range scores {
		if b.Mask[(r+1)*b.Cols-1] {
			scores[r] = 0
		}
	}
	return stage.Judge(t.check, b.With("scores", scores), t.first.Case.Set).Verdict == check.Pass
}

// mayRecur reports whether the groups of a step may be of several generation batches, for all that is declared.
func (t *track) mayRecur() bool {
	_, said := t.first.Case.Set.Fact("steps_per_generation")
	return !said && stage.GroupsRecur(t.first.Case.B)
}

// carriedBeyond reports whether a bug is a recursion without γ whose returns carry what is no γλ of numbers that people write.
func (t *track) carriedBeyond(e fault.Explanation) bool {
	return e.Hypothesis.ID == "GAE-NO-GAMMA" && stage.CarriedBeyond(t.first.Case.B)
}

// otherRewards reports whether logged rewards are right with another β alone than the losses of the run, which are right with theirs, and not without β: a
// log of log-ratios is a matter of taste.
func (t *track) otherRewards() bool {
	if !strings.HasPrefix(t.check.ID, "scalars/rewards_") || len(t.why.fits) == 0 || len(t.why.fits[0].Changes) != 1 {
		return false
	}
	c := t.why.fits[0].Changes[0]
	return c.Option == "dpo.beta" && c.From.Kind() == convention.Number && c.To.Kind() == convention.Number && c.To.Num() != 1 && !isDeclared(t.first.Case.Set, c.Option)
}

// apart makes a failure of logged rewards with another β than the losses: a program has one. Where the losses are wrong themselves, theirs is of no formula.
func (t *track) apart(res *check.Result, s *session) {
	res.Verdict = check.Fail
	if slices.ContainsFunc(s.tracks, func(u *track) bool { return groupOf(u.check.ID) == "preference" && len(u.failing) > 0 }) {
		for i := range res.Explanations {
			res.Explanations[i].Lead = true
		}
		res.Class = nil
		return
	}
	res.Reason += "; the losses are right with another β, and a program has one"
}

// otherBeta reports whether a bug is another β in the loss than in the implicit rewards that the run logs: a program has one.
func (t *track) otherBeta(e fault.Explanation) bool {
	if e.Hypothesis.ID != "DPO-BETA" {
		return false
	}
	beta := t.first.Case.Set.Value("dpo.beta")
	return beta.Kind() == convention.Number && stage.LogsBeta(t.first.Case.B, beta.Num())
}

// unsaid returns the first of the options that explain a failure which contradicts only profiles that stood in for a declaration, and what the check was tried
// under for what its own numbers show; nil if there is none.
func (t *track) unsaid(s *session) *stage.Fit {
	if len(t.why.against) > 0 || len(t.why.fits) == 0 {
		return nil
	}
	own := func(option string) bool {
		if !t.searched || t.first.Case.Set.Origin(option) != "search" {
			return false
		}
		u, err := s.unit(s.ctx, t, t.first.Case.B.Meta.Step) // it could be read before: if not the run is changing under us, and the failure stands
		return err == nil && u.set.Value(option).Kind() == convention.Unknown
	}
	for i, f := range t.why.fits {
		if !slices.ContainsFunc(f.Changes, func(c stage.Change) bool {
			return c.From.Known() && !strings.Contains(t.first.Case.Set.Origin(c.Option), "@") && !own(c.Option)
		}) {
			return &t.why.fits[i]
		}
	}
	return nil
}
