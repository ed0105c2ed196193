package fault

import (
	"cmp"
	"slices"
	"strings"

	"plumbline/verify/stage"
)

// An edit is a change of the formula of a stage that is no entry of the catalogue: one part of it replaced by another quantity that the
// batch has. What the catalogue does not explain is held against all of them, made by rule: the words of the finding are those of the
// change. Edits of several parts are tried, too; one of fewer parts that fits excludes those of more.
type edit struct {
	id         string // of package bug: the nearest entry
	title      string
	changes    int
	own        bool     // a program may be configured so: it needs a declaration to be wrong
	foreign    bool     // no option of any program has the form: it needs no declaration to be wrong
	configured []string // as of a Hypothesis
	number     bool     // the formula is the right one, with another number of the configuration
	far        bool     // what hardly anybody writes: it says nothing where another edit gives the same numbers
	predict    func(c *stage.Case, ch *stage.Check) *stage.Prediction
}

// most changes of one formula that are told: three values chosen among dozens fit what they do not explain.
const mostChanges = 2

// edits tries the edits of the stage.
func (t *trial) edits() []Explanation {
	if found := t.fitting(editsOf(t.levels[0])); len(found) > 0 {
		return found
	}
	return t.fitting(t.sourceEdits())
}

// editsOf are the edits of the formula of an output.
func editsOf(o *stage.Outcome) (list []edit) {
	families := []func(*stage.Outcome) []edit{
		advantageEdits, opoEdits, tokenBaselineEdits, multiEdits, multiFormEdits, baselineEdits, beforeReturnEdits, lengthEdits, logpEdits, recursionEdits, turnRewardEdits, gapEdits, recursionAcrossEdits, boundEdits, numberFunctionEdits, valueEdits, returnEdits, rewardReturnEdits, lineEdits, toGoEdits, scoreEdits,
		rewardSumEdits, mixedEdits, rewardWhiteEdits, scoreFormEdits, weightPatterns, weightEdits, lossWeightEdits, whiteningEdits, momentEdits, whitenedCellEdits, whitenedSubsetEdits, partEdits, afterEdits, klEdits, klWeightEdits, klPairEdits, klMixedEdits,
		rewardKLEdits, movedKLEdits, klInputEdits, klProbabilityEdits, functionEdits, policyEdits, lossEdits, rowRatioEdits, keepEdits, ratioSumEdits, ratioCellEdits, ratioLengthEdits, insideEdits, softEdits, geometricEdits, meanAdvantageEdits, rowNumberEdits, scoreOrderEdits, scorePlaceEdits, rankOrderEdits, unfilteredEdits, covarianceEdits,
		normalisedAgain, ratioEdits, sliceEdits, rowEdits, termEdits, exchangedEdits, termFormEdits, termPartEdits, entropyEdits,
		reductionEdits, columnEdits, policyReductionEdits, valueReductionEdits, maskEdits, inputEdits, mixedInputEdits, outputEdits, partitionEdits, regroupEdits, engineOldEdits, cellEdits, turnEdits, preferenceEdits, halfLossEdits,
	}
	if strings.HasPrefix(o.Check.Output, "scalars/") {
		families = []func(*stage.Outcome) []edit{scalarEdits} // one number of a file, often a fraction of few tokens, fits too much
	}
	for _, family := range families {
		list = append(list, family(o)...)
	}
	return list
}

// hypothesis is the edit as one about the output of a check.
func (e edit) hypothesis(ch *stage.Check) *Hypothesis {
	h := described(&Hypothesis{ID: e.id, Title: e.title, Checks: []string{ch.ID}, Predict: e.predict, Configured: e.configured})[0]
	h.Relative = h.Relative && !e.foreign || e.own
	return h
}

// fitting returns those of the edits that reproduce the output, of those of the fewest changes that any of them does with.
func (t *trial) fitting(list []edit) []Explanation {
	slices.SortStableFunc(list, func(a, b edit) int { return cmp.Compare(a.changes, b.changes) })
	var found []Explanation
	least := mostChanges
	for _, e := range list {
		if e.changes > least {
			break
		}
		h := e.hypothesis(t.levels[0].Check)
		if x, ok := t.try(h, "", h.judge); ok && !x.Lead {
			least, x.number, x.far, x.Several = e.changes, e.number, e.far, e.changes >= mostChanges
			found = append(found, x)
		}
	}
	if near := func(e Explanation) bool { return !e.far && e.Hypothesis.ID != "FACTOR" }; slices.ContainsFunc(found, near) {
		found = slices.DeleteFunc(found, func(e Explanation) bool { return e.far })
	}
	slices.SortStableFunc(found, func(a, b Explanation) int { // a factor is true of many bugs
		return boolToInt(a.Hypothesis.ID == "FACTOR") - boolToInt(b.Hypothesis.ID == "FACTOR")
	})
	return found
}
