package dump

import (
	"fmt"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// firstUses finds old log-probs that are computed when a mini-batch is first used, and not before the first update of their rollout. They are the new ones bit by bit in
// each mini-batch of the first epoch, and of a policy that has moved in the later ones: the engine's log-probs, of which all rows of the rollout are as far away before
// the first update, say so. That the steps are of one rollout a step of a later epoch says, which has rows of several of them, with the old log-probs as they were.
type firstUses struct {
	block  []stepSizes // the steps of new rows in a row, while in all of them old and new log-probs are the same bit by bit
	broken bool        // not in all of them
	again  bool        // the step before had rows of an earlier one
	first  stepSizes   // what was found: a first mini-batch, and a later one
	later  stepSizes
}

// add takes a step down, of whose rows earlier steps had some.
func (f *firstUses) add(n *StepNotes, earlier []*sampled, begins bool) {
	if begins {
		if f.again {
			f.block, f.broken = nil, false
		}
		f.again = false
		if n.Engine == nil || n.Update == nil || !n.Update.Same || n.Engine.Same {
			f.broken = true
			return
		}
		f.block = append(f.block, stepSizes{n.Step, n.Step, 1, true, n.Engine.discrepancy()})
		return
	}
	if f.again = true; f.broken || len(f.block) < 2 || f.found() || n.Update == nil || n.Update.Same {
		return
	}
	had := map[int]bool{}
	for _, e := range earlier {
		if e != nil {
			had[e.step] = true
		}
	}
	const fewest = 16 // tokens of a mini-batch
	first := f.block[0]
	for _, x := range f.block[1:] {
		near := 4 * first.Scale * sizeError(x.Tokens, first.Tokens)
		if had[first.first] && had[x.first] && min(x.Tokens, first.Tokens) >= fewest && x.Scale > stage.OrdinaryScale && x.Scale > near {
			f.first, f.later = first, x
			return
		}
	}
}

func (f *firstUses) found() bool { return f.later.Tokens > 0 }

// result makes of the engine's difference over the steps what it is of old log-probs that were computed late.
func (f *firstUses) result(res *check.Result) {
	if !f.found() {
		return
	}
	res.Compared = max(res.Compared, f.first.Tokens+f.later.Tokens)
	res.Verdict = check.Fail
	if res.Steps.First, res.Steps.Bad = f.later.first, max(res.Steps.Bad, 1); res.Subject == steps(res.Steps.Judged, "step") {
		res.Subject = fmt.Sprintf("%s (%d of %s)", f.later, res.Steps.Bad, res.Subject)
	}
	res.Where = fmt.Sprintf("%s  got %.4g  want at most %.4g", f.later, f.later.Scale, max(stage.OrdinaryScale, 4*f.first.Scale))
	res.Repeat, res.Fix = "--select "+acrossEngine, "compute the old log-probs once per rollout, before its first update, and store them with the rows"
	res.Metric, res.Measured, res.Limit = "logit noise", f.later.Scale, max(stage.OrdinaryScale, 4*f.first.Scale)
	res.Reason = fmt.Sprintf("a later epoch has rows of %s and of %s, whose old log-probs were the new ones bit by bit there, and are as far from the engine's as %.2g and %.2g of logit noise: the policy had moved between them",
		f.first, f.later, f.first.Scale, f.later.Scale)
	res.Explanations = []check.Explanation{{Fault: "OLD-RECOMPUTED",
		Title: "old log-probs are computed when a mini-batch is first used, behind the updates of those before it: the ratio is 1 in the whole first epoch"}}
}
