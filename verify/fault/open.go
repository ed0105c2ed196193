package fault

import (
	"math"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// coefficients are the options in which a loss and its gradient are linear: what nobody declares is solved for.
var coefficients = []string{"kl.beta", "entropy.coef", "value.coef"}

// openBudget bounds by predicted cells what is spent on one failure.
const openBudget = 12_000_000

// ExplainOpen explains a failure where a coefficient of the loss is not declared: under the healthy formula no value of it fits, and
// under that of a bug one may. The failures are those of one output under several profiles; open says which coefficients were not
// declared. It returns the failure under the coefficient that was found, and what explains it.
func ExplainOpen(failures []*stage.Outcome, open func(option string) bool) (*stage.Outcome, []Explanation) {
	spent := 0
	for _, o := range failures {
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
				x, ok := h.solve(o, name)
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
	return nil, nil
}

// leastSolved is the number of elements that a number is fitted to.
const leastSolved = 24

// solve returns the coefficient under which a bug comes nearest to an output, by least squares between its predictions for 0 and 1, and
// whether most elements are then near.
func (h *Hypothesis) solve(o *stage.Outcome, name string) (float64, bool) {
	at := func(x float64) *stage.Prediction {
		c := o.Case.Of(o.Case.B, o.Case.Set.With(name, convention.NumberValue(x), "search"))
		return h.predict(c, o.Check)
	}
	p, q := at(0), at(1)
	if p == nil || q == nil || len(p.Want) != len(o.Got) || len(q.Want) != len(o.Got) {
		return 0, false
	}
	judged := func(i int) bool {
		return (p.Judge == nil || p.Judge[i]) && (o.Pred.Judge == nil || o.Pred.Judge[i]) && !math.IsNaN(o.Got[i]+p.Want[i]+q.Want[i]) && !math.IsInf(o.Got[i]+p.Want[i]+q.Want[i], 0)
	}
	var num, den, size float64
	for i, w := range p.Want {
		if judged(i) {
			d := q.Want[i] - w
			num, den, size = num+float64(d*(o.Got[i]-w)), den+float64(d*d), size+float64(o.Got[i]*o.Got[i])
		}
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
	for i, w := range p.Want {
		if judged(i) {
			d := o.Got[i] - w - x*(q.Want[i]-w)
			off += float64(d * d)
		}
	}
	return x, off <= 1e-6*size
}
