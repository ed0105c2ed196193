package update

import (
	"fmt"
	"math"

	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// fresh judges whether gradients hold those of the step before, which nobody set to 0: an element to which a batch adds nothing (the row of an
// embedding that it does not use) then is what clipping left of it, g(t) = c·g(t−1) with the factor c of clipping, which no batch gives by
// chance. Without clipping it is the same number twice; a loss that has a penalty on weights which stand still gives that, too, so it is a
// warning. Nil where no element tells.
func fresh(r *Run, d Declared) *check.Result {
	const least = 8 // elements of a pair of steps
	var pairs, clipped, first int
	judged := 0
	for i := 1; i < len(r.steps); i++ {
		a, b := r.steps[i-1], r.steps[i]
		if b.number != a.number+1 || a.parts > 1 || b.parts > 1 {
			continue
		}
		c := a.clipped(d)
		same, other := 0, 0
		for _, name := range r.names {
			x, y := a.of[name], b.of[name]
			if x == nil || y == nil || len(x.grad) == 0 || len(x.grad) != len(y.grad) || x.unitG > 0 || y.unitG > 0 {
				continue
			}
			for j, g := range x.grad {
				switch want := c * g; {
				case g == 0 || y.grad[j] == 0:
				case math.Abs(y.grad[j]-want) <= 8*tol.U32*math.Abs(want) && (c < 1 || y.grad[j] == g):
					same++
				case math.Abs(y.grad[j]-want) > 0.01*math.Abs(want):
					other++
				}
			}
		}
		if same+other == 0 {
			continue
		}
		if judged++; same >= least && other >= least { // a batch that is repeated gives all of them again
			if pairs++; c < 1 {
				clipped++
			}
			if pairs == 1 {
				first = b.number
			}
		}
	}
	if pairs < 2 {
		return nil
	}
	res := &check.Result{Check: freshID, Compared: judged, Steps: &check.Steps{Judged: judged, Bad: pairs, First: first}}
	reason := fmt.Sprintf("in %d of %d steps elements of the gradient are those of the step before, times what clipping left of them", pairs, judged)
	if clipped < 2 {
		res.Verdict, res.Steps.Bad = check.Warn, 0
		res.Reason = fmt.Sprintf("in %d of %d steps elements of the gradient are the same number as in the step before: is zero_grad called once per step?", pairs, judged)
		return res
	}
	named(res, "OPTIM-GRAD-KEPT", reason)
	res.Reason = reason
	return res
}

// clipped is what clipping multiplies the gradients of a step by, 1 where no bound is declared.
func (r *record) clipped(d Declared) float64 {
	norm := r.whole
	if r.norm > norm { // some tensors may not have been dumped
		norm = r.norm
	}
	if norm > d.Clip*(1+1e-3) {
		return d.Clip / (norm + 1e-6)
	}
	return 1
}
