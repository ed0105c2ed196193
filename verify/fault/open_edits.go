package fault

import (
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// editBases is the number of failures of one output, under as many profiles, on which edits with a coefficient are tried.
const editBases = 4

// editBudget bounds by predicted cells what edits with a coefficient may cost for one failure.
const editBudget = 4_000_000

// explainEdits explains a failure by an edit of the formula under a coefficient that nobody declares: the outcomes of one or several steps under some
// profiles each, the first of which has failed. An edit fits where one coefficient makes the outputs of all steps; a number is fitted to many times
// as many.
func explainEdits(runs [][]*stage.Outcome, open func(option string) bool, least int) (*stage.Outcome, []Explanation) {
	spent, tried := 0, 0
	for _, run := range runs {
		first := run[0]
		if numbersOf(run) < least || first.Verdict != check.Fail || first.Pred == nil || first.Half() {
			continue
		}
		for _, name := range coefficients {
			if !open(name) || !slices.Contains(first.Case.Read, name) {
				continue
			}
			if tried++; tried > editBases {
				return nil, nil
			}
			some := stage.Judge(first.Check, first.Case.B, first.Case.Set.With(name, convention.NumberValue(1), "search"))
			if some.Pred == nil || some.Verdict != check.Fail { // an edit of a term does not show where its coefficient is 0
				continue
			}
			var found []Explanation
			var under *stage.Outcome
			for _, e := range editsOf(some) {
				if e.changes > 1 || e.own {
					continue
				}
				if spent += 2 * len(run) * (len(first.Case.B.Mask) + 256); spent > editBudget {
					break
				}
				h := e.hypothesis(first.Check)
				x, ok := h.solve(run, name)
				if !ok {
					continue
				}
				if o, f, ok := h.everywhere(run, amount(name, x)); ok {
					under, found = o, append(found, f)
				}
			}
			if len(found) > 0 {
				return under, finest(found)
			}
		}
	}
	return nil, nil
}
