package stage

import (
	"math"

	"plumbline/reference/rl"
)

// castPaths are the results of [policy.castPath] for all cells.
type castPaths struct{ y, e []float64 }

// castPaths returns those of a loss whose ratio has nothing from the KL term.
func (p *policy) castPaths(path, weights []float64, u float64) *castPaths {
	all := &castPaths{y: make([]float64, len(path)), e: make([]float64, len(path))}
	for i, g := range path {
		if !math.IsNaN(g) && weights[i] != 0 {
			all.y[i], all.e[i] = p.castPath(g, 0, i, u, false)
		}
	}
	return all
}

// castPath returns the gradient of cell i without the path of the KL estimate: g that of the policy term in float32, more what is added to
// it with respect to the ratio, and how far roundings that are open can move it.
func (p *policy) castPath(g, more float64, i int, u float64, late bool) (y, e float64) {
	token := (p.o.Ratio.Level == rl.RatioToken || p.rowHalf && p.o.Ratio.PerToken) && p.ratio.x != nil && (p.old.Half > 0 || p.old.X == nil)
	switch {
	case p.scores():
		y, open := rounded(g, u)
		if open {
			e = 2 * u * math.Abs(g)
		}
		if p.lossHalf() == u {
			return p.scorePath(i, u)
		}
		return y, e
	case p.o.Kind == rl.LossDRO || p.o.Kind == rl.LossKLCov || p.o.Kind == rl.LossGMPO || p.ratio.x == nil: // two paths, or none of these
		if token && p.o.Kind == rl.LossKLCov && p.cut[i] == settled {
			return p.castHeld(g, i, u)
		}
		e = 2 * u * math.Abs(g)
		if p.beside != nil { // each path is rounded twice before they are added, and they may cancel
			e += u*math.Abs(g) + 4*u*math.Abs(p.beside[i])
		}
		return g, e
	case !token:
		y, open := rounded(g, u)
		switch {
		case p.rowGrad != nil:
			return p.rowGrad[i], p.rowGradE[i]
		case p.rowHalf: // of another loss than a clipped surrogate
			return g, 4 * u * math.Abs(g)
		}
		if open {
			e = 2 * u * math.Abs(g)
		}
		return y, e
	}
	rho, _ := rounded(p.ratio.x[i], u)
	if rho == 0 {
		return g, 0
	}
	if p.clipped() {
		return p.surrogatePath(more, rho, i, u, late)
	}
	slope := g / rho
	if p.rho != nil {
		slope, rho = g/p.ratio.x[i], p.rho[i]
	}
	cast, open := rounded(slope, u)
	if a := p.adv.X[i]; p.adv.Half == u && p.weight.Half == 0 && a != 0 { // the loss has the type, too, and so has its weight
		w, near := rounded(g/(rho*a), u) // of an importance weight, too, which is float32
		cast, _ = rounded(w*a, u)
		open = near
	}
	sum := cast + more
	if more != 0 && cast != 0 { // the paths to ρ are added in the order in which autograd meets them
		e = u * math.Abs(sum*rho)
	}
	sum, _ = rounded(sum, u)
	y, _ = rounded(sum*rho, u) // float32 has the product of two numbers of the type without an error
	if open {
		e += 2 * u * math.Abs(y)
	}
	return y, e
}

// castHeld returns the gradient of cell i of kl_cov: g in float32. That by the ratio is rounded before it is multiplied with the ratio and
// behind it, that by |d| when it enters and when it has been multiplied with the coefficient, and so is their sum.
func (p *policy) castHeld(g float64, i int, u float64) (y, e float64) {
	rho, _ := rounded(p.ratio.x[i], u)
	if rho == 0 {
		return g, 0
	}
	slope, near := rounded((g-p.beside[i])/rho, u)
	first, next := rounded(slope*rho, u)
	if near || next {
		e = 2 * u * math.Abs(first)
	}
	if p.beside[i] == 0 {
		return first, e
	}
	w, near := rounded(p.beside[i]/p.o.Cov.Coef, u)
	second, next := rounded(float64(w*p.o.Cov.Coef), u)
	if near || next {
		e += 4 * u * math.Abs(second)
	}
	y, near = rounded(first+second, u)
	if near || e > 0 {
		e += 2 * u * math.Abs(y)
	}
	return y, e
}
