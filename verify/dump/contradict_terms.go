package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// withoutKL makes a failure of a gradient that has no KL term, of a loss that has one: each was searched alone and fits. At some step the loss is
// wrong without the term, and at some the gradient with it, whatever the estimate and its gradient are.
func (t *track) withoutKL(res *check.Result, s *session) {
	const id = "KL-DETACHED"
	lead := res.Verdict == check.Undetermined && len(res.Explanations) > 0 && res.Explanations[0].Fault == id // a term that losses of tokens hold is due in their gradient
	if !lead && (res.Verdict != check.Pass || len(t.fits) == 0) || t.check.ID != "gradient/dlogp" || !t.searched || s.profile != nil {
		return
	}
	if !lead && t.decidedTo("kl.place", "loss") { // the gradient has the term, whatever its coefficient in the loss
		return
	}
	const looked = 4
	var at []unit
	for _, step := range spread(t.starts, looked) {
		u, err := s.unit(s.ctx, t, step)
		if err != nil || len(u.b.Missing) > 0 {
			return
		}
		at = append(at, u)
	}
	for _, loss := range s.tracks {
		if loss.check.ID != "aggregate/loss" && loss.check.ID != "token_loss/policy" || !loss.searched || loss.passed < loss.judged || !loss.needsKL(at) {
			continue
		}
		if lead {
			res.Verdict, res.Class, res.Fix = check.Fail, []string{id}, fault.Find(id).Fix
			res.Reason = fmt.Sprintf("is that of the loss without its KL term, and %s is right only with it", loss.check.ID)
			res.Explanations = res.Explanations[:1]
			res.Explanations[0].Lead = false
			return
		}
		for _, u := range at {
			o := t.withKL(u, loss.termsOfKL(s.estimates()))
			if o == nil {
				continue
			}
			t.blame(res, s, o, id, fmt.Sprintf("is that of the loss without its KL term, and %s is right only with it", loss.check.ID),
				fmt.Sprintf("%s has the KL term; no estimate of it and none of its gradients gives the gradient of step %d", loss.check.ID, u.b.Meta.Step))
			res.Repeat = "--select " + loss.check.ID + "," + t.check.ID
			return
		}
	}
}

// withoutWeights makes a failure of token losses that are right only without importance weights, where the dump has weights that are not 1 and right
// by a formula of their own: a run that dumps them multiplies its policy loss by them.
func (t *track) withoutWeights(res *check.Result, s *session) {
	if res.Verdict != check.Pass || t.check.ID != "token_loss/policy" || !t.searched || len(t.fits) == 0 || s.profile != nil || !t.decidedTo("tis.level", "none") {
		return
	}
	i := slices.IndexFunc(s.tracks, func(w *track) bool {
		return w.check.ID == "ratio/is_weights" && w.searched && w.passed == w.judged && len(w.fits) > 0
	})
	if i < 0 {
		return
	}
	for _, step := range spread(t.starts, 4) {
		u, err := s.unit(s.ctx, t, step)
		if err != nil || len(u.b.Missing) > 0 {
			return
		}
		var o *stage.Outcome
		for _, f := range t.fits[:min(4, len(t.fits))] {
			of := slices.DeleteFunc(slices.Clone(s.tracks[i].fits[0].Changes), func(c stage.Change) bool { return !strings.HasPrefix(c.Option, "tis.") })
			if o = stage.Judge(t.check, u.b, changed(u.set, slices.Concat(f.Changes, of))); o.Verdict != check.Fail {
				break
			}
		}
		if o.Verdict != check.Fail || o.Tally == nil || o.Tally.N == 0 {
			continue // the weights are 1, or nobody knows what they multiply
		}
		t.blame(res, s, o, "IS-NOT-APPLIED", "is that of a loss without importance weights, and is_weights are not 1", fmt.Sprintf("is_weights are not 1, and the losses of step %d are right only without them", step))
		res.Repeat = "--select ratio/is_weights,token_loss/policy"
		return
	}
}

// correctedTwice makes a failure of token losses whose ratio is against the engine's log-probs, and which weights π_old/π_gen multiply, too. A program that
// does without the old log-probs has no weights, or weights of 1 (verl 0.9.1, ray_trainer.py, bypass_mode); with both, what engine and trainer differ by is
// corrected twice.
func (t *track) correctedTwice(res *check.Result, s *session) {
	if res.Verdict != check.Pass || t.check.ID != "token_loss/policy" || !t.searched || len(t.fits) == 0 || s.profile != nil || !t.decidedTo("ratio.old", "engine") {
		return
	}
	none, err := convention.Parse("tis.level", "none")
	if err != nil {
		panic("dump: " + err.Error())
	}
	units, err := s.looked(t)
	if err != nil {
		return // what cannot be read again decides nothing
	}
	defer func() { s.kept = nil }()
	for _, u := range units {
		if u.b.Tensors["is_weights"] == nil {
			return
		}
		without := slices.Concat(t.fits[0].Changes, []stage.Change{{Option: "tis.level", To: none}})
		stored := slices.DeleteFunc(slices.Clone(t.fits[0].Changes), func(c stage.Change) bool { return c.Option == "ratio.old" })
		old, _ := convention.Parse("ratio.old", "stored")
		o := stage.Judge(t.check, u.b, changed(u.set, append(stored, stage.Change{Option: "ratio.old", To: old})))
		if o.Verdict != check.Fail || o.Tally == nil || stage.Judge(t.check, u.b, changed(u.set, without)).Verdict != check.Fail {
			continue // the weights are 1
		}
		t.blame(res, s, o, "OLD-IS-GEN", "is right only with a ratio against logp_gen and with is_weights: what engine and trainer differ by is corrected twice",
			fmt.Sprintf("the losses of step %d are multiplied by is_weights, and their ratio is against logp_gen", u.b.Meta.Step))
		return
	}
}

// blame makes a failure of what passes alone, for what other checks say of the run: as o fails.
func (t *track) blame(res *check.Result, s *session, o *stage.Outcome, id, reason, evidence string) {
	h := fault.Find(id)
	res.Verdict, res.Metric, res.Formula = check.Fail, "", t.check.Formula
	res.Steps.Bad, res.Steps.First = t.passed, o.Case.B.Meta.Step
	res.Where = place(o, o.Tally.Worst.Index, s.o.Redact)
	res.Reason, res.Fix = reason, h.Fix
	res.Explanations = []check.Explanation{{Fault: h.ID, Title: h.Title, Cause: h.Cause, Rows: h.Rows, Evidence: evidence}}
}

// decidedTo reports whether all that fits has a value of an option.
func (t *track) decidedTo(option, value string) bool {
	return slices.ContainsFunc(t.decided(), func(c stage.Change) bool { return c.Option == option && c.To.String() == value })
}

// needsKL reports whether all that fits a loss has its KL term, and is wrong at some step without it.
func (t *track) needsKL(at []unit) bool {
	if !t.decidedTo("kl.place", "loss") {
		return false
	}
	none, err := convention.Parse("kl.place", "none")
	return err == nil && slices.ContainsFunc(at, func(u unit) bool {
		without := slices.Concat(t.fits[0].Changes, []stage.Change{{Option: "kl.place", To: none}})
		return stage.Judge(t.check, u.b, changed(u.set, without)).Verdict == check.Fail
	})
}

// withKL returns how the gradient of a step fails with a KL term that a loss has; nil where with some it does not, or that is not known.
func (t *track) withKL(u unit, terms [][]stage.Change) (first *stage.Outcome) {
	left := 1000 // outcomes
	var right func(set *convention.Set) bool
	right = func(set *convention.Set) bool {
		left--
		o := stage.Judge(t.check, u.b, set)
		switch {
		case left < 0 || len(o.Case.Absent) > 0:
			return true
		case len(o.Case.Unknown) > 0:
			values := set.Among(o.Case.Unknown[0])
			return len(values) == 0 || slices.ContainsFunc(values, func(v convention.Value) bool { return right(set.With(o.Case.Unknown[0], v, "search")) })
		case o.Verdict != check.Fail || o.Tally == nil || o.Tally.N == 0:
			return true
		}
		if first == nil {
			first = o
		}
		return false
	}
	for _, f := range t.fits[:min(2, len(t.fits))] {
		for _, term := range terms {
			for _, by := range u.set.Among("kl.grad") {
				if right(changed(u.set, slices.Concat(f.Changes, term, []stage.Change{{Option: "kl.grad", To: by}}))) {
					return nil
				}
			}
		}
	}
	return first
}

// termsOfKL are the options of the KL term of what fits, a few that differ; where a loss reads the estimate from the dump, with those of the estimate.
func (t *track) termsOfKL(estimates [][]stage.Change) (list [][]stage.Change) {
	const most = 6
	for _, term := range distinct(t.fits, most, func(option string) bool { return strings.HasPrefix(option, "kl.") || option == "tis.applies_to_kl" }) {
		if len(estimates) == 0 || slices.ContainsFunc(term, func(c stage.Change) bool { return c.Option == "kl.kind" }) {
			list = append(list, term)
			continue
		}
		for _, e := range estimates {
			list = append(list, slices.Concat(e, term))
		}
	}
	return list[:min(most, len(list))]
}

// estimates are the kinds of estimate that the dumped KL of every step can be, with bounds that fit beside them: values that are equal to those of
// another bound have its slope, too. None where no KL was dumped.
func (s *session) estimates() [][]stage.Change {
	i := slices.IndexFunc(s.tracks, func(k *track) bool {
		return k.check.ID == "kl/token" && k.searched && k.passed > 0 && k.passed == k.judged
	})
	if i < 0 {
		return nil
	}
	const kinds = 3
	var list [][]stage.Change
	for _, kind := range distinct(s.tracks[i].fits, kinds, func(option string) bool { return option == "kl.kind" }) {
		for _, f := range s.tracks[i].fits {
			if len(kind) == 1 && slices.ContainsFunc(f.Changes, func(c stage.Change) bool { return c.Option == "kl.kind" && c.To == kind[0].To }) {
				list = append(list, slices.DeleteFunc(slices.Clone(f.Changes), func(c stage.Change) bool {
					return c.Option != "kl.kind" && !strings.HasPrefix(c.Option, "kl.clamp")
				}))
				break
			}
		}
	}
	return list
}

// distinct returns what the first fits that differ in some options say of these, at most so many.
func distinct(fits []stage.Fit, most int, of func(option string) bool) (list [][]stage.Change) {
	seen := map[string]bool{}
	for _, f := range fits {
		var part []stage.Change
		var key strings.Builder
		for _, c := range f.Changes {
			if of(c.Option) {
				part = append(part, c)
				fmt.Fprint(&key, c.Option, "=", c.To, ";")
			}
		}
		if !seen[key.String()] && len(list) < most {
			seen[key.String()] = true
			list = append(list, part)
		}
	}
	return list
}
