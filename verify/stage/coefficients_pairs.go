package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// pairLosses collects the preference losses of a run that declares nothing: the margins of the pairs that a number is the mean loss of, of rows
// and of the ranks of the losses that sort, and those per token, where all batches say how many these are.
type pairLosses struct {
	rows, paired, unpaired, perToken [][]float64
	loss                             []float64
	beside                           besideLosses
}

// add takes the losses of the pairs of a batch, or, where these were not dumped, those of its files.
func (p *pairLosses) add(b *dump.Batch) {
	c, r, rc, rr := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("ref_chosen"), b.Row("ref_rejected")
	each, loss := b.Row("pair_loss"), b.PerFile("loss")
	p.beside.add(b)
	if c == nil || r == nil || rc == nil || rr == nil || each == nil && loss == nil {
		return
	}
	n, m := b.Row("chosen_tokens"), b.Row("rejected_tokens")
	counted := len(n) == b.Rows && len(m) == b.Rows
	for f, file := range b.Files {
		lo, hi := file.Lo, file.Hi
		h := make([]float64, hi-lo)
		for i := range h {
			h[i] = (c[lo+i] - r[lo+i]) - (rc[lo+i] - rr[lo+i])
		}
		means := make([]float64, hi-lo)
		for i := range means {
			if means[i] = math.NaN(); counted {
				means[i] = (c[lo+i]-rc[lo+i])/n[lo+i] - (r[lo+i]-rr[lo+i])/m[lo+i]
			}
		}
		of := func(kind rl.DPOKind) []float64 {
			s, h := rl.DPOSorted(c[lo:hi], r[lo:hi], rc[lo:hi], rr[lo:hi], kind), make([]float64, hi-lo)
			for i := range h {
				h[i] = s.Chosen[i] - s.Rejected[i] - s.RefChosen[i] + s.RefRejected[i]
			}
			return h
		}
		paired, unpaired := of(rl.DPOAOT), of(rl.DPOAOTUnpaired)
		switch {
		case each == nil && hi > lo:
			p.rows, p.paired, p.unpaired, p.perToken = append(p.rows, h), append(p.paired, paired), append(p.unpaired, unpaired), append(p.perToken, means)
			p.loss = append(p.loss, loss[f])
		case each != nil:
			for i := range h {
				p.rows, p.paired, p.unpaired = append(p.rows, h[i:i+1]), append(p.paired, paired[i:i+1]), append(p.unpaired, unpaired[i:i+1])
				p.perToken = append(p.perToken, means[i:i+1])
			}
			p.loss = append(p.loss, each[lo:hi]...)
		}
	}
}

// smoothed is a loss of x = βh that is searched for: the loss sigmoid of rows or of ranks, −(1 − ε)·ln σ(x) − ε·ln σ(−x) = ln(1 + e^{−x}) + ε·x, whose
// ε below 0 is −κ = −ε/(1 − 2ε) of robust, or exo_pair, q·ln q + p·ln p − q·ln(1 − ε) − p·ln ε with q = σ(x) and p = 1 − q. Of each β the least
// squares of all numbers give ε, so that β alone is searched.
type smoothed struct {
	margins [][]float64
	loss    []float64
	exo     bool
}

// coefficients returns β and the label smoothing of the first loss that leaves no more than 1e-5 of the size of the numbers, nil of fewer than four
// numbers. Losses that are all one number say nothing of β: as β falls to 0 those of any margins become ln 2.
func (p *pairLosses) coefficients() map[string]float64 {
	if len(p.loss) < 4 || slices.Max(p.loss)-slices.Min(p.loss) <= 1e-4*math.Abs(p.loss[0]) {
		return nil
	}
	for _, l := range []smoothed{{p.rows, p.loss, false}, {p.rows, p.loss, true}, {p.perToken, p.loss, false}, {p.perToken, p.loss, true},
		{p.paired, p.loss, false}, {p.unpaired, p.loss, false}} {
		if math.IsNaN(l.margins[0][0]) {
			continue
		}
		if beta, eps := l.solve(); l.left(beta, eps) <= 1e-5+4*tol.U32 {
			if eps < 0 {
				eps = written(-eps/(1-2*eps), 1e-2) // of robust
			}
			return map[string]float64{"dpo.beta": beta, "dpo.label_smoothing": eps}
		}
	}
	return nil
}

// solve returns β and ε of the least squares.
func (l smoothed) solve() (beta, eps float64) {
	const least, most, step = 1e-3, 20, 1.02
	best, off := 0.0, math.Inf(1)
	for beta := least; beta < most; beta *= step {
		if x := l.left(beta, l.smoothing(beta)); x < off {
			best, off = beta, x
		}
	}
	lo, hi := best/step, best*step
	for range 80 {
		a, b := lo+(hi-lo)/3, hi-(hi-lo)/3
		if l.left(a, l.smoothing(a)) < l.left(b, l.smoothing(b)) {
			hi = b
		} else {
			lo = a
		}
	}
	beta = written((lo+hi)/2, 1e-3)
	eps = l.smoothing(beta)
	switch {
	case !l.exo && math.Abs(eps) < 1e-4:
		return beta, 0
	case eps < 0:
		k := written(-eps/(1-2*eps), 1e-2) // robust: what is written is its ε
		return beta, -k / (1 - 2*k)
	}
	return beta, written(eps, 1e-2)
}

// smoothing returns the ε of least squares under β, within its bounds.
func (l smoothed) smoothing(beta float64) float64 {
	a := make([]float64, 2*3) // of ln(1 − ε) and ln ε
	var num, den float64
	for k, y := range l.loss {
		var q, p, plain, slope float64
		n := float64(len(l.margins[k]))
		for _, h := range l.margins[k] {
			x := beta * h
			if l.exo {
				q, p = q-sigma(x)/n, p-sigma(-x)/n
				plain -= (sigma(x)*softplus(-x) + sigma(-x)*softplus(x)) / n
			} else {
				plain, slope = plain+softplus(-x)/n, slope+x/n
			}
		}
		y -= plain
		num, den = num+y*slope, den+slope*slope
		for i, u := range [2]float64{q, p} {
			a[3*i], a[3*i+1], a[3*i+2] = a[3*i]+u*q, a[3*i+1]+u*p, a[3*i+2]+u*y
		}
	}
	if l.exo {
		if x := eliminate(a, 2); x != nil {
			return min(max(math.Exp(x[1]), 1e-9), 0.5)
		}
		return 0.5
	}
	if e := num / den; !math.IsNaN(e) {
		return min(max(e, -10), 0.5)
	}
	return 0
}

// left is the largest distance between the losses and those of β and ε, relative to the largest loss.
func (l smoothed) left(beta, eps float64) (most float64) {
	var size float64
	for k, y := range l.loss {
		var x float64
		n := float64(len(l.margins[k]))
		for _, h := range l.margins[k] {
			z := beta * h
			if l.exo {
				q, p := sigma(z), sigma(-z)
				x -= (q*(softplus(-z)+math.Log(1-eps)) + p*(softplus(z)+math.Log(eps))) / n
			} else {
				x += (softplus(-z) + eps*z) / n
			}
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
