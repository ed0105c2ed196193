package update

import (
	"fmt"
	"math"

	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// freshHead judges the gradient of the bias of a value head, a tensor of one element: the bias b is added to every value, V = w·h + b, so that
// ∂loss/∂b = Σ ∂loss/∂V, the sum of dvalues. Where that is so in the first step, and in later ones with what clipping left of the gradient before,
// Σ ∂loss/∂V + c·g(t−1), nobody set the gradient to 0. Nil where no tensor is such a bias, and where it has no gradient of another step.
func freshHead(r *Run, d Declared) *check.Result {
	for _, name := range r.names {
		own, kept, first, told := 0, 0, 0, true
		var before *record
		for _, b := range r.steps {
			y := b.of[name]
			if y == nil || len(y.grad) != 1 || r.sizes[name][0] != 1 || y.unitG > 0 || b.parts > 1 || b.slope[1] == 0 {
				told = false
				break
			}
			near := 64 * tol.U32 * (b.slope[1] + math.Abs(y.grad[0]))
			rest := 0.0 // of the step before
			if before != nil && b.number == before.number+1 {
				rest = before.clipped(d) * before.of[name].grad[0]
				near += 64 * tol.U32 * math.Abs(rest)
			}
			before = b
			switch off := y.grad[0] - b.slope[0]; {
			case math.Abs(off) <= near:
				own++
			case rest != 0 && math.Abs(off-rest) <= near && math.Abs(rest) > 100*near:
				if kept++; first == 0 {
					first = b.number
				}
			default:
				told = false
			}
		}
		if !told || own == 0 || kept < 2 {
			continue
		}
		res := &check.Result{Check: freshID, Compared: own + kept, Where: name, Steps: &check.Steps{Judged: own + kept, Bad: kept, First: first}}
		reason := fmt.Sprintf("the gradient of %.80s, the bias of the values, is the sum of dvalues in %d steps, and has in %d others what clipping left of that of the step before, too", name, own, kept)
		named(res, "OPTIM-GRAD-KEPT", reason)
		res.Reason = reason
		return res
	}
	return nil
}
