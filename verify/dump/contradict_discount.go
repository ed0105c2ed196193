package dump

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// discounted makes a failure of returns that are right with a γ of their own alone, where the advantages of the run are with another: λ may be one for the
// critic and one for the policy (VAPO), and a problem has one discount. They are judged with all that makes the advantages right, with λ = 1, and as rewards to go, and are wrong.
func (t *track) discounted(res *check.Result, s *session) {
	const option, id = "gae.gamma", "GAE-NO-GAMMA"
	if res.Verdict != check.Pass || t.check.ID != "gae/returns" || s.profile != nil || t.worst == nil || isDeclared(t.worst.Case.Set, option) {
		return
	}
	gamma := s.foundBy("gae/advantage", option)
	if gamma.Kind() != convention.Number {
		return
	}
	own := "another"
	for _, f := range t.fits {
		if slices.ContainsFunc(f.Changes, func(c stage.Change) bool { return c.Option == "adv.kind" && c.To.String() != "gae" }) { // whose returns no γ is in
			continue
		}
		for _, c := range f.Changes {
			if c.Option == option && c.To.Kind() == convention.Number {
				if own = c.To.String(); math.Abs(c.To.Num()-gamma.Num()) <= 1e-3 {
					return
				}
			}
		}
	}
	u, err := s.unit(s.ctx, t, t.worstStep)
	if err != nil {
		s.fail(err)
		return
	}
	a := s.tracks[slices.IndexFunc(s.tracks, func(a *track) bool { return a.check.ID == "gae/advantage" })]
	right := changed(u.set, a.fits[0].Changes)
	for _, set := range []*convention.Set{right, right.With("gae.lambda", convention.NumberValue(1), "search"), changed(right, changesTo("returns.of", "reward_to_go"))} {
		if stage.Judge(t.check, u.b, set).Verdict != check.Fail {
			return
		}
	}
	res.Verdict = check.Fail
	res.Steps.Bad, res.Steps.First = t.passed, t.worstStep
	res.Metric, res.Formula = "", t.check.Formula
	res.Reason = fmt.Sprintf("is right only with %s=%s, and gae/advantage only with %s=%s", option, own, option, gamma)
	h := bug.MustFind(id)
	res.Fix = h.Fix
	res.Explanations = []check.Explanation{{Fault: h.ID, Title: h.Title, Cause: h.Cause, Rows: h.Rows, Evidence: res.Reason}}
	res.Class = []string{id}
}
