package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// losses are the checks of the losses that a gradient is the derivative of.
var losses = map[string][]string{
	"gradient/dlogp":   {"aggregate/loss", "aggregate/pg_loss"},
	"gradient/dvalues": {"aggregate/loss", "aggregate/value_loss"},
}

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
		if !slices.Contains(losses[t.check.ID], loss.check.ID) || !loss.searched || !loss.all || loss.passed == 0 {
			continue
		}
		for _, mine := range t.decided() {
			for _, its := range loss.decided() {
				if mine.Option != its.Option || t.reducedBy(mine) == loss.reducedBy(its) || !strings.HasPrefix(mine.Option, "agg.") {
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
