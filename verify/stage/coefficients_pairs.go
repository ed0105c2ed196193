package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// pairLosses collects the preference losses of a run that declares nothing: the margins of the pairs that a number is the mean loss of.
type pairLosses struct {
	margins [][]float64
	loss    []float64
}

// add takes the losses of the pairs of a batch, or, where these were not dumped, those of its files.
func (p *pairLosses) add(b *dump.Batch) {
	c, r, rc, rr := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("ref_chosen"), b.Row("ref_rejected")
	if c == nil || r == nil || rc == nil || rr == nil {
		return
	}
	each, loss := b.Row("pair_loss"), b.PerFile("loss")
	h := make([]float64, b.Rows)
	for i := range h {
		if h[i] = (c[i] - r[i]) - (rc[i] - rr[i]); each != nil {
			p.margins, p.loss = append(p.margins, h[i:i+1]), append(p.loss, each[i])
		}
	}
	for f, file := range b.Files {
		if each == nil && loss != nil && file.Hi > file.Lo {
			p.margins, p.loss = append(p.margins, h[file.Lo:file.Hi]), append(p.loss, loss[f])
		}
	}
}

// coefficients solves the sigmoid loss −(1 − ε)·ln σ(βh) − ε·ln σ(−βh) = ln(1 + e^{−βh}) + ε·βh for β and ε: it is linear in ε, so that β alone is
// searched, for the least squares of all numbers. It is nil of fewer than four numbers, and where these leave more than 1e-5 of their size.
func (p *pairLosses) coefficients() map[string]float64 {
	if len(p.loss) < 4 {
		return nil
	}
	const least, most, step = 1e-3, 20, 1.02
	best, off := 0.0, math.Inf(1)
	for beta := least; beta < most; beta *= step {
		if x := p.left(beta, p.smoothing(beta)); x < off {
			best, off = beta, x
		}
	}
	lo, hi := best/step, best*step
	for range 80 {
		a, b := lo+(hi-lo)/3, hi-(hi-lo)/3
		if p.left(a, p.smoothing(a)) < p.left(b, p.smoothing(b)) {
			hi = b
		} else {
			lo = a
		}
	}
	beta := written((lo+hi)/2, 1e-3)
	eps := p.smoothing(beta)
	if eps < 1e-4 {
		eps = 0
	}
	eps = written(eps, 1e-2)
	if !(p.left(beta, eps) <= 1e-5+4*tol.U32) {
		return nil
	}
	return map[string]float64{"dpo.beta": beta, "dpo.label_smoothing": eps}
}

// smoothing returns the ε of least squares under β, within its bounds.
func (p *pairLosses) smoothing(beta float64) float64 {
	var num, den float64
	for k, y := range p.loss {
		var plain, slope float64
		for _, h := range p.margins[k] {
			n := float64(len(p.margins[k]))
			plain, slope = plain+softplus(-beta*h)/n, slope+beta*h/n
		}
		num, den = num+(y-plain)*slope, den+slope*slope
	}
	if e := num / den; e > 0 {
		return min(e, 0.5)
	}
	return 0
}

// left is the largest distance between the losses and those of β and ε, relative to the largest loss.
func (p *pairLosses) left(beta, eps float64) (most float64) {
	var size float64
	for k, y := range p.loss {
		var x float64
		for _, h := range p.margins[k] {
			x += (softplus(-beta*h) + eps*beta*h) / float64(len(p.margins[k]))
		}
		d := math.Abs(x - y)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		most, size = max(most, d), max(size, math.Abs(y))
	}
	return most / size
}

// softplus is ln(1 + eˣ).
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
