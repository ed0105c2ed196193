package trainer

import (
	"math"
	"slices"
)

// policy computes the policy loss of every cell, times the engine's weight, and its derivatives with respect to the ratio and
// to the log-prob outside the ratio.
func (r *run[F]) policy() {
	n := r.cells()
	r.isw = r.engineWeights()
	r.policyLoss, r.dratio, r.direct = make([]F, n), make([]F, n), make([]F, n)
	if r.o.loss == "gmpo" {
		r.geometric()
		return
	}
	adv := r.adv
	switch r.plant {
	case "ADV-SIGN":
		adv = slices.Clone(adv)
		for i := range adv {
			adv[i] = -adv[i]
		}
	case "GSPO-ADV-PADDING":
		mean := make([]F, r.rows)
		for row := range mean {
			lo, hi := row*r.cols, (row+1)*r.cols
			mean[row] = r.div(r.sum(picked(adv[lo:hi], r.mask[lo:hi])), F(r.cols))
		}
		adv = r.spread(mean)
	}
	held := r.covariance(adv)
	for row := range r.rows {
		lo, hi := row*r.cols, (row+1)*r.cols
		var sequence F
		if r.o.loss == "vespo" {
			sequence = r.sequenceLog(row)
		}
		for i := lo; i < hi; i++ {
			l, dr, dl := r.cell(i, adv[i], sequence, held)
			if r.isw != nil && r.o.loss != "vespo" && r.plant != "IS-NOT-APPLIED" {
				w := r.isw[i]
				l, dr, dl = r.mul(w, l), r.mul(w, dr), r.mul(w, dl)
				if r.plant == "IS-GRADIENT" {
					dl = r.add(dl, l)
				}
			}
			r.policyLoss[i], r.dratio[i], r.direct[i] = l, dr, dl
		}
	}
	if r.data == "NAN-OUTSIDE" {
		for _, s := range r.spans {
			for i := s.lo * r.cols; i < s.hi*r.cols; i++ {
				if !r.counts(i) {
					r.policyLoss[i] = F(math.NaN())
					break
				}
			}
		}
	}
}

// cell returns the loss of a cell, ∂ℓ/∂ρ and ∂ℓ/∂lp at constant ρ.
func (r *run[F]) cell(i int, a, sequence F, held []bool) (l, dr, dl F) {
	lp, old, rho := r.lp[newPolicy][i], r.lp[oldPolicy][i], r.ratio[i]
	if r.o.stopgrad {
		old = lp
	}
	score := func(w F) (F, F, F) { return -r.mul(r.mul(w, a), lp), 0, -r.mul(w, a) }
	switch r.o.loss {
	case "reinforce":
		return score(1)
	case "cispo":
		lo, hi := r.bounds()
		w := clip(rho, lo, hi)
		if r.plant == "CISPO-NOT-DETACHED" {
			if inside(rho, lo, hi) {
				dr = -a
			}
			return -r.mul(w, a), dr, 0
		}
		return score(w)
	case "vespo":
		k, lambda := r.o.kPos, r.o.lambdaPos
		if a < 0 {
			k, lambda = r.o.kNeg, r.o.lamNeg
		}
		// φ = W^k·exp(λ(1 − W))
		w := r.exp(sequence)
		phi := r.exp(r.add(r.mul(r.num(k), sequence), r.mul(r.num(lambda), r.sub(1, w))))
		return score(phi)
	case "dppo_tv", "dppo_kl":
		if !r.trusted(lp, old, a) {
			return score(0)
		}
		return score(min(rho, r.num(r.o.dppoLimit)))
	case "dro":
		d, b := r.sub(lp, old), r.num(r.o.droBeta)
		half := r.mul(r.mul(0.5, b), r.mul(d, d))
		return r.add(-r.mul(a, lp), half), 0, r.add(-a, r.mul(b, d))
	case "sapo":
		tau := r.num(r.o.tauNeg)
		if a > 0 {
			tau = r.num(r.o.tauPos)
		}
		s := r.div(1, r.add(1, r.exp(-r.mul(tau, r.sub(rho, 1)))))
		l = -r.mul(a, r.mul(r.div(4, tau), s))
		return l, -r.mul(a, r.mul(4, r.mul(s, r.sub(1, s)))), 0
	case "kl_cov":
		l, dr = -r.mul(a, rho), -a
		if held[i] {
			c, d := r.num(r.o.covCoef), r.sub(lp, old)
			l = r.add(l, r.mul(c, abs(d)))
			switch {
			case d > 0:
				dl = c
			case d < 0:
				dl = -c
			}
		}
		return l, dr, dl
	case "clip_cov":
		if held[i] {
			return 0, 0, 0
		}
	}
	l, dr = r.surrogate(rho, a)
	return l, dr, 0
}

// bounds returns the bounds of the ratio.
func (r *run[F]) bounds() (lo, hi F) {
	low, high := r.o.clipLow, r.o.clipHigh
	if r.plant == "CLIP-SIDES-SWAPPED" {
		low, high = high, low
	}
	lo, hi = r.sub(1, r.num(low)), r.add(1, r.num(high))
	if r.o.capAbsolute && r.o.loss == "cispo" {
		hi = r.num(high)
	}
	if r.plant == "CLIP-ABSENT" {
		lo, hi = F(math.Inf(-1)), F(math.Inf(1))
	}
	return lo, hi
}

// surrogate returns max(−A·min(ρ, δ), −A·clip(ρ)), for A < 0 at most −A·c, and its derivative with respect to ρ.
func (r *run[F]) surrogate(rho, a F) (l, d F) {
	lo, hi := r.bounds()
	delta := F(r.o.delta)
	plain, bounded := -r.mul(a, min(rho, delta)), -r.mul(a, clip(rho, lo, hi))
	leaks := r.plant == "CLIP-GRADIENT-LEAK"
	dPlain, dBounded := -a, F(0)
	if !(rho < delta) && !leaks {
		dPlain = 0
	}
	if inside(rho, lo, hi) || leaks {
		dBounded = -a
	}
	takeBounded := bounded > plain
	if r.plant == "CLIP-MIN-MAX" {
		takeBounded = bounded < plain
	}
	if l, d = plain, dPlain; takeBounded {
		l, d = bounded, dBounded
	}
	if r.o.loss == "clip_cov" || math.IsInf(r.o.dual, 1) {
		return l, d
	}
	if cap := -r.mul(a, r.num(r.o.dual)); (a < 0 || r.plant == "CLIP-DUAL-BOTH-SIGNS") && l > cap {
		l = cap
		if !leaks {
			d = 0
		}
	}
	return l, d
}

// isClipped reports whether a cell counts as clipped.
func (r *run[F]) isClipped(i int) bool {
	lo, hi := r.bounds()
	a, rho := r.adv[i], r.ratio[i]
	plain, bounded := -r.mul(a, rho), -r.mul(a, clip(rho, lo, hi))
	kind := r.o.clipFrac
	switch r.plant {
	case "METRIC-CLIP-SIGN":
		return bounded < plain
	case "METRIC-CLIP-SIGN-BLIND":
		kind = "outside"
	}
	switch kind {
	case "outside":
		return rho < lo || rho > hi
	case "lower":
		return a < 0 && max(plain, bounded) > -r.mul(a, r.num(r.o.dual))
	}
	return bounded > plain
}

// sequenceLog returns the logarithm of the importance weight of a row, as vespo takes it.
func (r *run[F]) sequenceLog(row int) F {
	var terms []F
	for i := row * r.cols; i < (row+1)*r.cols; i++ {
		if r.lossMask[i] {
			d := r.sub(r.lp[newPolicy][i], r.lp[oldPolicy][i])
			if r.o.stopgrad {
				d = 0
			}
			terms = append(terms, clip(d, -20, 20))
			if r.isw != nil && r.plant != "IS-NOT-APPLIED" { // the engine's weights are part of its own
				terms = append(terms, clip(r.log(r.isw[i]), F(math.Log(1e-8)), 20))
			}
		}
	}
	return clip(r.sum(terms), F(math.Log(1e-8)), 20)
}

// trusted reports whether a token lies within the trust region of dppo.
func (r *run[F]) trusted(lp, old, a F) bool {
	p, q := r.exp(lp), r.exp(old)
	if r.o.loss == "dppo_tv" {
		if a > 0 {
			return float64(r.sub(p, q)) <= r.o.clipHigh
		}
		return float64(r.sub(p, q)) >= -r.o.clipLow
	}
	tiny := r.num(1e-8)
	d := r.add(r.mul(q, r.sub(old, lp)), r.mul(r.sub(1, q), r.log(r.div(r.add(r.sub(1, q), tiny), r.add(r.sub(1, p), tiny)))))
	if a > 0 {
		return float64(d) <= r.o.clipHigh || p <= q
	}
	return float64(d) <= r.o.clipLow || p >= q
}

// covariance returns the tokens that clip_cov leaves out or kl_cov holds back, by the covariance of advantage and log-prob
// within a file.
func (r *run[F]) covariance(adv []F) []bool {
	if r.o.loss != "clip_cov" && r.o.loss != "kl_cov" {
		return nil
	}
	held := make([]bool, r.cells())
	lo, hi := r.bounds()
	for _, s := range r.spans {
		var cells []int
		var as, ls []F
		for i := s.lo * r.cols; i < s.hi*r.cols; i++ {
			if r.lossMask[i] {
				cells, as, ls = append(cells, i), append(as, adv[i]), append(ls, r.lp[newPolicy][i])
			}
		}
		if len(cells) == 0 {
			continue
		}
		n := F(len(cells))
		ma, ml := r.div(r.sum(as), n), r.div(r.sum(ls), n)
		cov := make([]F, len(cells))
		for k := range cells {
			cov[k] = r.mul(r.sub(as[k], ma), r.sub(ls[k], ml))
		}
		if r.o.loss == "clip_cov" {
			for k, i := range cells {
				rho := r.ratio[i]
				binds := -r.mul(adv[i], clip(rho, lo, hi)) > -r.mul(adv[i], rho)
				held[i] = !binds && float64(cov[k]) > r.o.covLow && float64(cov[k]) < r.o.covHigh
			}
			continue
		}
		order := make([]int, len(cells))
		for k := range order {
			order[k] = k
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case cov[a] > cov[b]:
				return -1
			case cov[a] < cov[b]:
				return 1
			}
			return 0
		})
		for _, k := range order[:max(1, int(r.o.covFraction*float64(len(cells))))] {
			held[cells[k]] = true
		}
	}
	return held
}

// geometric computes gmpo: one loss per row, −Ā·exp(mean of the clipped log-ratios), and its derivative.
func (r *run[F]) geometric() {
	r.rowLoss = make([]F, r.rows)
	for row := range r.rows {
		var cs, as []F
		slopes := map[int]F{}
		for i := row * r.cols; i < (row+1)*r.cols; i++ {
			if !r.lossMask[i] {
				continue
			}
			a := r.adv[i]
			if r.plant == "ADV-SIGN" {
				a = -a
			}
			d := r.sub(r.lp[newPolicy][i], r.lp[oldPolicy][i])
			if r.o.stopgrad {
				d = 0
			}
			if r.plant == "RATIO-INVERTED" {
				d = -d
			}
			slope := F(1)
			if bound := F(r.o.ratioClamp); !inside(d, -bound, bound) {
				d, slope = clip(d, -bound, bound), 0
			}
			bounded := clip(d, F(-r.o.clipLow), F(r.o.clipHigh))
			c := d
			switch {
			case a > 0 && bounded < d, a < 0 && bounded > d:
				c, slope = bounded, 0
			case a == 0:
				c, slope = 0, 0
			}
			if r.plant == "RATIO-INVERTED" {
				slope = -slope
			}
			cs, as = append(cs, c), append(as, a)
			slopes[i] = slope
		}
		n := r.add(F(len(cs)), r.num(r.o.aggLenEps))
		if len(cs) == 0 {
			continue
		}
		mean := r.div(r.sum(as), n)
		l := -r.mul(mean, r.exp(r.div(r.sum(cs), n)))
		r.rowLoss[row] = l
		for i, slope := range slopes {
			r.direct[i] = r.div(r.mul(l, slope), n)
		}
	}
}
