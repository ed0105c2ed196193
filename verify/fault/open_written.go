package fault

import (
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// options writes the values of some options into a set.
type options func(*convention.Set) *convention.Set

func amount(name string, x float64) options {
	return func(set *convention.Set) *convention.Set { return set.With(name, convention.NumberValue(x), "search") }
}

// writtenNumber is a number in which an output is not linear, with the values that configurations give it, and the words of another option beside
// the found one under which it is read.
type writtenNumber struct {
	name   string
	values []float64
	option string
	words  []string
}

// writtenNumbers are those that a bug may stand on where nobody declares them: no value of theirs fits the right formula, so that none is solved
// for there.
var writtenNumbers = []writtenNumber{
	{"dpo.label_smoothing", []float64{0.1, 0.2, 0.05, 0.3, 0.01, 0.02, 0.15, 0.25, 0.35, 0.4, 0.45}, "dpo.loss", []string{"robust", "exo_pair"}},
	{"value.clip", []float64{0.2, 0.1, 0.5, 0.05, 0.15, 0.25, 0.3, 0.4, 1, 2, 10}, "", nil},
}

// leastWritten is the number of elements that a number of a short list is told by.
const leastWritten = 8

// explainWritten explains a failure by a bug under a number that nobody declares: the outcomes of one or several steps under some profiles each.
// What the right formula gives under another value is no bug.
func explainWritten(runs [][]*stage.Outcome, open func(option string) bool) (*stage.Outcome, []Explanation) {
	spent := 0
	for _, run := range runs {
		if numbersOf(run) < leastWritten || run[0].Verdict != check.Fail || run[0].Pred == nil {
			continue
		}
		for _, w := range writtenNumbers {
			if !open(w.name) || !slices.Contains(run[0].Case.Read, w.name) {
				continue
			}
			for _, under := range w.settings(open, w.values) {
				var first *stage.Outcome
				var found []Explanation
				for _, h := range all {
					if !h.Applies(run[0].Check) || h.Loose {
						continue
					}
					if spent += len(run) * (len(run[0].Pred.Want) + 256); spent > openBudget {
						return nil, nil
					}
					if o, e, ok := h.everywhere(run, under); ok {
						e.Solved = !slices.ContainsFunc(optionsOf(h.ID), func(o string) bool { // else another value of its own option may be meant
							return open(o) && o != w.name && o != w.option
						})
						first, found = o, append(found, e)
					}
				}
				if len(found) > 0 && !w.legal(run, open) {
					return first, finest(found)
				}
			}
		}
	}
	return nil, nil
}

// settings are the values of the number under what the option beside it is, and under each of its words where nobody declares it.
func (w writtenNumber) settings(open func(string) bool, values []float64) (list []options) {
	for _, x := range values {
		list = append(list, amount(w.name, x))
	}
	if w.option == "" || !open(w.option) {
		return list
	}
	for _, text := range w.words {
		v, err := convention.Parse(w.option, text)
		if err != nil {
			panic("fault: " + err.Error())
		}
		for _, x := range values {
			list = append(list, func(set *convention.Set) *convention.Set { return amount(w.name, x)(set.With(w.option, v, "search")) })
		}
	}
	return list
}

// legal reports whether the right formula gives all outputs under some value, or under half, twice or the complement of one.
func (w writtenNumber) legal(run []*stage.Outcome, open func(string) bool) bool {
	values := []float64{0}
	for _, x := range w.values {
		values = append(values, x, x/2, 2*x, 1-x)
	}
	return slices.ContainsFunc(w.settings(open, values), func(under options) bool {
		return !slices.ContainsFunc(run, func(o *stage.Outcome) bool {
			return stage.Judge(o.Check, o.Case.B, under(o.Case.Set)).Verdict != check.Pass
		})
	})
}
