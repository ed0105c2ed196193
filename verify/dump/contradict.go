package dump

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// reducedBy returns the value of an option of t in words; agg.kind is that of a value loss only where value.agg does not take the tokens.
func (t *track) reducedBy(c stage.Change) string {
	if ofValues := t.check.ID == "gradient/dvalues" || t.check.ID == "aggregate/value_loss"; ofValues && c.Option == "agg.kind" {
		for _, d := range t.decided() {
			if d.Option == "value.agg" && d.To.String() == "token" {
				return "token"
			}
		}
	}
	return c.To.String()
}

// contradicted makes a failure of a gradient that is right only under another aggregation than the loss of which it is the
// derivative. Where no declaration says how the loss is aggregated, each is searched alone and fits.
func (t *track) contradicted(res *check.Result, s *session) {
	if res.Verdict != check.Pass || !t.searched || !t.all || t.worst == nil {
		return
	}
	for _, loss := range s.tracks {
		if !slices.Contains(stage.LossesOf[t.check.ID], loss.check.ID) || !loss.searched || !loss.all || loss.passed == 0 {
			continue
		}
		for _, mine := range t.decided() {
			for _, its := range loss.decided() {
				if mine.Option != its.Option || t.reducedBy(mine) == loss.reducedBy(its) || !strings.HasPrefix(mine.Option, "agg.") || s.rescaled(loss, mine) || mine.Option != "agg.div_ga" && t.apartFrom(loss) ||
					loss.check.ID == "aggregate/loss" && t.ofPolicyLoss(mine, s) {
					continue
				}
				res.Verdict = check.Fail
				res.Steps.Bad, res.Steps.First = t.passed, t.worstStep
				res.Metric, res.Formula = "", t.check.Formula
				if t.worst.Tally != nil && t.worst.Tally.N > 0 {
					res.Where = place(t.worst, t.worst.Tally.Worst.Index, s.o.Redact)
				}
				res.Reason = fmt.Sprintf("is no gradient of the loss in the dump: it is right only with %s=%s, and %s only with %s=%s",
					mine.Option, mine.To, loss.check.ID, its.Option, its.To)
				res.Fix = "look for a factor between the loss and its gradient: a division by the accumulation steps or by the ranks that only one of them has; " +
					"if the hook took them at two places, say so with dlogp_scale"
				res.Repeat = "--select " + loss.check.ID + "," + t.check.ID
				return
			}
		}
	}
}

// ofPolicyLoss reports whether the policy loss was dumped and has a value of an option that the gradient has: the whole loss says it of the terms beside it then,
// which may have an aggregation of their own.
func (t *track) ofPolicyLoss(mine stage.Change, s *session) bool {
	return t.check.ID == "gradient/dlogp" && slices.ContainsFunc(s.tracks, func(u *track) bool {
		return u.check.ID == "aggregate/pg_loss" && len(u.failing) == 0 && u.decidedTo(mine.Option, mine.To.String())
	})
}

// apartFrom reports whether a gradient of values is none of a loss: that of the policy alone is right without a value term, and a critic has a
// loss of its own, with an aggregation of its own.
func (t *track) apartFrom(loss *track) bool {
	if t.check.ID != "gradient/dvalues" || loss.check.ID != "aggregate/loss" || loss.worst == nil {
		return false
	}
	coef := loss.worst.Case.Set.Value("value.coef")
	return coef.Kind() != convention.Number || coef.Num() == 0
}

// rescaled reports whether a loss is right with and without a division by the accumulation steps: where nobody declares the coefficients of its terms they are
// solved for under the one that is tried first, and c·H/G is (c/G)·H.
func (s *session) rescaled(loss *track, c stage.Change) bool {
	if c.Option != "agg.div_ga" || loss.check.ID != "aggregate/loss" || loss.worst == nil {
		return false
	}
	u, err := s.unit(s.ctx, loss, loss.worstStep)
	if err != nil {
		s.fail(err)
		return false
	}
	set := changed(loss.worst.Case.Set, []stage.Change{c})
	steps := stage.NewCase(u.b, set, tol.U32).FactOr("gradient_accumulation_steps", float64(max(u.b.Meta.MicroBatches, 1)))
	free := false
	for _, name := range []string{"kl.beta", "entropy.coef", "value.coef"} {
		if v := set.Value(name); v.Kind() == convention.Number && v.Num() != 0 && !isDeclared(set, name) {
			k := steps
			if c.To.String() == "false" {
				k = 1 / steps
			}
			set, free = set.With(name, convention.NumberValue(k*v.Num()), "search"), true
		}
	}
	return free && stage.Judge(loss.check, u.b, set).Verdict == check.Pass
}

// unclipped makes a failure of a loss or gradient that is right only where the ratio is 1 for ever, although a clip range is declared and the
// policy leaves the old log-probs that are in the dump. Frameworks take a detached copy of the new ones where a rollout is one update, and
// there they are equal: the search decides nothing then. Weights of the engine may bound the policy in place of the clipping. Losses of tokens need no
// declared range where later updates of the same rows have them: the copy is taken where rows are used once alone (verl 0.9.1, dp_actor.py, on_policy;
// TRL 1.16, grpo_trainer.py, old_per_token_logps), and a loss without a ratio is no −A.
func (t *track) unclipped(res *check.Result, s *session, before []check.Result) {
	const id = "OLD-RECOMPUTED"
	if res.Verdict != check.Pass || !t.searched || t.worst == nil || !s.history.moved ||
		slices.ContainsFunc(before, func(r check.Result) bool { return len(r.Explanations) > 0 && r.Explanations[0].Fault == id }) {
		return
	}
	c := t.worst.Case
	weighed := c.Set.Value("tis.level").String() != "none" && (c.Has("logp_gen") || c.Has("is_weights"))
	ranged := c.Set.Value("clip.low").Kind() == convention.Number && isDeclared(c.Set, "clip.low")
	again := s.profile == nil && t.check.ID == "token_loss/policy" && s.usedAgain()
	if !ranged && !again || weighed ||
		!slices.ContainsFunc(t.decided(), func(d stage.Change) bool {
			return d.Option == "ratio.old" && !d.From.Known() && d.To.String() == "stopgrad_new"
		}) {
		return
	}
	res.Verdict = check.Fail
	res.Steps.Bad, res.Steps.First = t.passed, t.worstStep
	res.Metric, res.Formula = "", t.check.Formula
	res.Reason = "is right only with ratio.old=stopgrad_new, where the ratio is 1 at every update and the declared clipping clips nothing, although the policy leaves the logp_old of the dump"
	if !ranged {
		res.Reason = "is right only with ratio.old=stopgrad_new, where the ratio is 1 at every update, although later updates of the same rows leave the logp_old of the dump"
	}
	h := bug.MustFind(id)
	res.Fix = h.Fix + "; if a ratio of 1 is meant, declare ratio.old=stopgrad_new"
	res.Explanations = []check.Explanation{{Fault: h.ID, Title: h.Title, Cause: h.Cause, Rows: h.Rows, Evidence: res.Reason}}
}

// sharpened makes a warning of two temperatures between the old and the new pass of one step where in another step of the run the two are the same numbers: a
// temperature that one of the passes lacks is there in every step, at the first update of a rollout, too. A policy that learned is sharper than it was, or flatter.
func (t *track) sharpened(res *check.Result, s *session) {
	said := map[string]string{"agreement/temperature": "logp_new is logp_old ", "agreement/old": "logp_old ≈ "}[t.check.ID]
	if said == "" || res.Verdict != check.Fail || slices.ContainsFunc(t.first.Rules.Violations, func(v stage.Violation) bool {
		return !strings.HasPrefix(v.Reason, said)
	}) {
		return
	}
	units, err := s.looked(t)
	if err != nil || !slices.ContainsFunc(units, func(u unit) bool { return stage.NewCase(u.b, u.set, tol.U32).SamePass("logp_old", "logp_new") }) {
		return
	}
	res.Verdict, res.Explanations, res.Fix = check.Warn, nil, ""
	res.Reason += "; but in another step the two are equal, and a temperature that one of them lacks would be there, too: it is how far the policy was moved"
}

// usedAgain reports whether updates use rows that earlier ones used, whose old log-probs stay what they were.
func (s *session) usedAgain() bool {
	return slices.ContainsFunc(s.tracks, func(u *track) bool { return u.check.ID == "across/old" && u.passed > 0 && len(u.failing) == 0 })
}

// constant are the causes of an engine's other log-probs that a run has from its first step on, or not at all: what it reports, and of which temperature.
var constant = []string{"GEN-RAW", "GEN-TRUNCATED", "GEN-TEMPERATURE-TWICE", "GEN-OTHER-TOKEN", "LOGP-TEMPERATURE", "LOGP-SAME-POSITION"}

// drifted takes such a cause back where in another step of the run engine and trainer agree, and are apart in all tokens where it was seen: their weights are
// other ones by then, as those of an asynchronous rollout are, which across/engine judges.
func (t *track) drifted(res *check.Result, s *session) {
	if !slices.Contains([]string{"agreement/engine", "agreement/drift", "agreement/size"}, t.check.ID) || res.Verdict != check.Fail && res.Verdict != check.Warn || t.first == nil || t.first.Rules == nil ||
		len(t.first.Rules.Violations) == 0 || slices.ContainsFunc(t.first.Rules.Violations, func(v stage.Violation) bool { return !slices.Contains(constant, v.Fault) }) {
		return
	}
	units, err := s.looked(t)
	if err != nil || len(units) == 0 {
		return
	}
	near, far := math.Inf(1), 0.0
	for _, u := range units {
		switch d, ok := stage.NewCase(u.b, u.set, tol.U32).EngineGap(); {
		case !ok:
		case d.Near() && !slices.Contains([]check.Verdict{check.Fail, check.Warn}, stage.Judge(t.check, u.b, u.set).Verdict):
			near = min(near, d.Scale)
		default:
			far = max(far, d.Scale)
		}
	}
	if !(far > 4*near) {
		return
	}
	res.Verdict, res.Explanations, res.Fix = check.Warn, nil, ""
	if stage.Asynchronous(units[0].b, units[0].set) {
		res.Verdict = check.Pass
	}
	res.Reason += "; but in another step the two agree, and what the engine reports does not change: its weights are others by then"
}

// contradict looks for checks that pass under the declared options, and would fail under those that explain t: a program has one
// value of an option. A fit that some check contradicts gives way to those that none does, and to bugs that fit; if that leaves
// none, it says what the number is as if of, and no convention. It does the same with bugs that the loss of a gradient refutes.
func (s *session) contradict(t *track) {
	if len(t.why.fits) == 0 && len(t.why.faults) == 0 || t.first.Rules != nil || len(t.first.Case.B.Missing) > 0 {
		return
	}
	looked := s.lookedAt(t)
	t.unrefuted(s, looked)
	against := func(f stage.Fit) string {
		for _, u := range s.tracks {
			if !u.upheld(t) || u.worst == nil || !sameTerm(t.check, u.check, f) ||
				!slices.ContainsFunc(f.Changes, func(c stage.Change) bool { return c.From.Known() && slices.Contains(u.worst.Case.Read, c.Option) }) {
				continue
			}
			if slices.ContainsFunc(looked, func(at unit) bool {
				return stage.Judge(u.check, at.b, at.set).Verdict == check.Pass && stage.Judge(u.check, at.b, changed(at.set, f.Changes)).Verdict == check.Fail
			}) {
				return u.check.ID
			}
		}
		return ""
	}
	const most = 16 // of the fits, the first of which are shown
	if len(t.why.fits) == 0 {
		return
	}
	var free []stage.Fit
	for i, f := range t.why.fits {
		id := ""
		if i < most && declaredChanges(f) == 1 { // several say that another convention was meant, with options that only other checks read
			id = against(f)
		}
		if id == "" {
			free = append(free, f)
		} else if !slices.Contains(t.why.against, id) {
			t.why.against = append(t.why.against, id)
		}
	}
	switch {
	case len(free) > 0:
		t.why.fits, t.why.against = free, nil
	case slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }):
		t.why.fits, t.why.against = nil, nil
	}
}

// lookedAt are the steps by which explanations of t are contradicted: the first one that failed, and a few others, since a KL that is 0
// there contradicts nothing.
func (s *session) lookedAt(t *track) []unit {
	const others = 3
	looked := []unit{{t.first.Case.B, t.first.Case.Set}}
	for _, step := range spread(t.failing[min(1, len(t.failing)):], others) {
		if u, err := s.unit(s.ctx, t, step); err == nil && len(u.b.Missing) == 0 {
			looked = append(looked, unit{u.b, completed(t, u.set)})
		}
	}
	return looked
}

// upheld reports whether u is a check of numbers other than t that every step passes.
func (u *track) upheld(t *track) bool {
	return u != t && !u.silent && u.passed > 0 && len(u.failing) == 0 && u.check.Predict != nil
}

// derived reports whether one of two checks is of a gradient of the loss that the other is of.
func derived(a, b *stage.Check) bool {
	return slices.Contains(stage.LossesOf[a.ID], b.ID) || slices.Contains(stage.LossesOf[b.ID], a.ID)
}

// unrefuted leaves out the bugs of a gradient that its loss refutes, and those of a loss that its gradient refutes, if that leaves some.
func (t *track) unrefuted(s *session, looked []unit) {
	var right []*stage.Outcome
	for _, u := range s.tracks {
		if !u.upheld(t) || !derived(t.check, u.check) {
			continue
		}
		for _, at := range looked {
			right = append(right, stage.Judge(u.check, at.b, at.set))
		}
	}
	left := slices.DeleteFunc(slices.Clone(t.why.faults), func(e fault.Explanation) bool {
		return slices.ContainsFunc(right, func(o *stage.Outcome) bool { return fault.RefutedBy(e, o) })
	})
	if slices.ContainsFunc(left, func(e fault.Explanation) bool { return !e.Lead }) {
		t.why.faults = left
	}
}

// sameTerm reports whether two checks must agree on the options of a fit. The terms of a loss, which are judged side by side, may be
// reduced each in its own way; a gradient is reduced as its loss is.
func sameTerm(a, b *stage.Check, f stage.Fit) bool {
	if derived(a, b) || a.ID == "gae/returns" && b.ID == "gae/advantage" { // returns are made of the advantages
		return true
	}
	return a.Stage != b.Stage && !slices.ContainsFunc(f.Changes, func(c stage.Change) bool {
		return c.Option == "kl.agg" || c.Option == "value.agg" ||
			strings.HasPrefix(c.Option, "agg.") || strings.HasPrefix(c.Option, "mask.") || strings.HasPrefix(c.Option, "mean.")
	})
}
