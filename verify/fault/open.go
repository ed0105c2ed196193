package fault

import (
	"math"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// coefficients are the options in which a loss and its gradient are linear: what nobody declares is solved for.
var coefficients = []string{"kl.beta", "entropy.coef", "value.coef", "dpo.nll_weight"}

// openBudget bounds by predicted cells what is spent on one failure.
const openBudget = 12_000_000

// ExplainOpen explains a failure where a coefficient of the loss is not declared: under the healthy formula no value of it fits, and
// under that of a bug one may. The failures are those of one output under several profiles; open says which coefficients were not
// declared. It returns the failure under the coefficient that was found, and what explains it.
func ExplainOpen(failures []*stage.Outcome, open func(option string) bool) (*stage.Outcome, []Explanation) {
	runs := make([][]*stage.Outcome, len(failures))
	spent := 0
	for i, o := range failures {
		runs[i] = []*stage.Outcome{o}
		if o.Verdict != check.Fail || o.Pred == nil || len(o.Got) < leastSolved {
			continue
		}
		for _, name := range coefficients {
			if !open(name) || !slices.Contains(o.Case.Read, name) {
				continue
			}
			byValue := map[float64][]*Hypothesis{}
			var order []float64
			for _, h := range all {
				if !h.Applies(o.Check) || h.Loose {
					continue
				}
				if spent += 2 * len(o.Pred.Want); spent > openBudget {
					break
				}
				x, ok := h.solve([]*stage.Outcome{o}, name)
				if !ok {
					continue
				}
				if byValue[x] == nil {
					order = append(order, x)
				}
				byValue[x] = append(byValue[x], h)
			}
			for _, x := range order {
				under := stage.Judge(o.Check, o.Case.B, o.Case.Set.With(name, convention.NumberValue(x), "search"))
				if under.Verdict != check.Fail || under.Pred == nil {
					continue
				}
				t := newTrial(under)
				var found []Explanation
				for _, h := range byValue[x] {
					if e, ok := t.try(h, "", h.judge); ok && !e.Lead {
						found = append(found, e)
					}
				}
				if len(found) > 0 {
					return under, finest(found)
				}
			}
		}
	}
	if o, found := explainWritten(runs, open); o != nil {
		return o, found
	}
	return explainEdits(runs, open, leastSolved)
}

// leastSolved is the number of elements that a number is fitted to.
const leastSolved = 24

// ExplainOpenSteps is [ExplainOpen] for an output that is one number of a file: runs are the outcomes of several steps under one profile each,
// the first of which has failed. The coefficient, and the bug, are those of all steps together.
func ExplainOpenSteps(runs [][]*stage.Outcome, open func(option string) bool) (*stage.Outcome, []Explanation) {
	spent := 0
	for _, run := range runs {
		if numbersOf(run) < leastOfSteps || run[0].Verdict != check.Fail || run[0].Pred == nil {
			continue
		}
		for _, name := range coefficients {
			if !open(name) || !slices.Contains(run[0].Case.Read, name) {
				continue
			}
			for _, h := range all {
				if !h.Applies(run[0].Check) || h.Loose {
					continue
				}
				if spent += 2 * len(run) * (len(run[0].Case.B.Mask) + 256); spent > openBudget {
					return explainWritten(runs, open)
				}
				x, ok := h.solve(run, name)
				if !ok {
					continue
				}
				if o, e, ok := h.everywhere(run, amount(name, x)); ok {
					return o, []Explanation{e}
				}
			}
		}
	}
	if o, found := explainWritten(runs, open); o != nil {
		return o, found
	}
	return explainEdits(runs, open, leastSolved)
}

// numbersOf counts the elements of the outputs of several steps.
func numbersOf(run []*stage.Outcome) (n int) {
	for _, o := range run {
		n += len(o.Got)
	}
	return n
}

// leastOfSteps is the number of files that a coefficient of a number per file is fitted to: two equations more than it needs.
const leastOfSteps = 3

// everywhere reports whether a bug gives the outputs of all steps under options, with what it explains of the first step that fails.
func (h *Hypothesis) everywhere(run []*stage.Outcome, options options) (first *stage.Outcome, of Explanation, ok bool) {
	for _, o := range run {
		under := stage.Judge(o.Check, o.Case.B, options(o.Case.Set))
		if under.Pred == nil {
			return nil, of, false
		}
		if under.Verdict != check.Fail {
			if q := h.judge(under); q != nil && q.Verdict == check.Fail {
				return nil, of, false
			}
			continue
		}
		e, fits := newTrial(under).try(h, "", h.judge)
		if !fits || e.Lead {
			return nil, of, false
		}
		if first == nil {
			first, of = under, e
		}
	}
	return first, of, first != nil
}

// solve returns the coefficient under which a bug comes nearest to the outputs of one or several steps, by least squares between its predictions
// for 1 and 2, in which it is linear, and whether most elements are then near.
func (h *Hypothesis) solve(steps []*stage.Outcome, name string) (float64, bool) {
	var got, zero, slope []float64
	for _, o := range steps {
		at := func(x float64) *stage.Prediction {
			c := o.Case.Of(o.Case.B, o.Case.Set.With(name, convention.NumberValue(x), "search"))
			return h.predict(c, o.Check)
		}
		p, q := at(1), at(2) // a bug of a coefficient does not show where that is 0
		if p == nil || q == nil || len(p.Want) != len(o.Got) || len(q.Want) != len(o.Got) {
			return 0, false
		}
		for i, w := range p.Want {
			if y := o.Got[i]; (p.Judge == nil || p.Judge[i]) && (o.Pred.Judge == nil || o.Pred.Judge[i]) && !math.IsNaN(y+w+q.Want[i]) && !math.IsInf(y+w+q.Want[i], 0) {
				got, zero, slope = append(got, y), append(zero, 2*w-q.Want[i]), append(slope, q.Want[i]-w)
			}
		}
	}
	var num, den, size float64
	for i, y := range got {
		num, den, size = num+float64(slope[i]*(y-zero[i])), den+float64(slope[i]*slope[i]), size+float64(y*y)
	}
	x := num / den
	const most = 100 // no coefficient of a loss is larger
	if !(x > 0) || x > most || !(den*x*x > 1e-10*size) {
		return 0, false
	}
	for digits := 1; digits <= 4; digits++ { // what people write
		if short := rounded(x, digits); math.Abs(short-x) <= 1e-3*x {
			x = short
			break
		}
	}
	var off float64
	for i, y := range got {
		d := y - zero[i] - x*slope[i]
		off += float64(d * d)
	}
	return x, off <= 1e-6*size
}
