package trainer

import "math"

// policyLogp returns the log-probs that the KL term takes: those of the update for a term of the loss, those of the rollout
// for one of the reward.
func (r *run[F]) policyLogp() []F {
	if r.o.klPlace == "loss" || r.o.klPlace == "none" {
		return r.lp[newPolicy]
	}
	return r.lp[oldPolicy]
}

// divergence computes the KL estimate of every cell.
func (r *run[F]) divergence() {
	if r.o.klKind == "" || r.o.klKind == "seq_prob" {
		return
	}
	n := r.cells()
	r.kl, r.dkl, r.bare = make([]F, n), make([]F, n), make([]F, n)
	lp, ref := r.policyLogp(), r.lp[refPolicy]
	if r.plant == "KL-OLD-FOR-REF" {
		ref = r.lp[oldPolicy]
	}
	inLoss := r.o.klPlace == "loss"
	for i := range n {
		d := r.sub(lp[i], ref[i])
		if r.plant == "KL-REVERSED" {
			d = r.sub(ref[i], lp[i])
		}
		r.bare[i], r.dkl[i] = r.estimate(d)
		if r.plant == "KL-REVERSED" {
			r.dkl[i] = -r.dkl[i]
		}
		r.kl[i] = r.bare[i]
		switch {
		case !inLoss:
		case r.klKind() == "ratio_d":
			rho := r.exp(r.sub(lp[i], r.lp[oldPolicy][i]))
			if r.o.stopgrad {
				rho = 1
			}
			// ∂(ρ·d)/∂lp = ρ·(∂d + d)
			r.kl[i] = r.mul(rho, r.bare[i])
			r.dkl[i] = r.mul(rho, r.add(r.dkl[i], r.bare[i]))
		case r.o.klGrad == "is_corrected":
			r.kl[i] = r.mul(r.ratio[i], r.bare[i])
		}
	}
}

func (r *run[F]) klKind() string {
	if r.plant == "KL-KIND" {
		return "k1"
	}
	return r.o.klKind
}

// estimate returns an estimate and its derivative with respect to the policy's log-prob, given d = lp − ref. What a clamp
// cuts off has no derivative.
func (r *run[F]) estimate(d F) (k, dk F) {
	kind := r.klKind()
	clamps := (kind == "k3" || r.o.klClamps) && r.plant != "KL-CLAMP-MISSING"
	pass := true
	if clamps && r.plant != "KL-GRAD-OVERFLOW" {
		lo, hi := F(-r.o.klIn), F(r.o.klFloorOnly)
		pass = inside(d, lo, hi)
		d = clip(d, lo, hi)
	}
	switch kind {
	case "k1", "ratio_d":
		k, dk = d, 1
	case "k2":
		k, dk = r.mul(0.5, r.mul(d, d)), d
	case "k3":
		e := r.exp(-d)
		k, dk = r.add(r.sub(e, 1), d), r.sub(1, e)
	case "abs":
		if k, dk = d, 1; d < 0 {
			k, dk = -d, -1
		} else if d == 0 {
			dk = 0
		}
	}
	if !pass {
		dk = 0
	}
	if clamps {
		bound := F(r.o.klOut)
		if !inside(k, -bound, bound) {
			// Autograd multiplies the 0 of the clamp by what exp has overflowed to.
			dk = F(float64(dk) * 0)
			if r.plant != "KL-GRAD-OVERFLOW" {
				dk = 0
			}
		}
		k = clip(k, -bound, bound)
	}
	return k, dk
}

// beta returns the coefficient with which the KL term enters.
func (r *run[F]) beta() F {
	switch r.plant {
	case "BETA-MISSING":
		return 1
	case "KL-ABSENT":
		return 0
	case "KL-TWICE":
		return r.num(2 * r.o.beta)
	}
	return r.num(r.o.beta)
}

// klGradient returns the derivative of the KL term of a cell with respect to its own log-prob, without β, and that with
// respect to the ratio of the cell.
func (r *run[F]) klGradient(i int) (direct, ratio F) {
	switch r.plant {
	case "KL-DETACHED":
		return 0, 0
	case "KL-GRAD-K1":
		return 1, 0
	}
	naive := r.plant == "KL-GRAD-NAIVE"
	switch r.o.klGrad {
	case "score_function":
		if !naive {
			return r.add(r.dkl[i], r.bare[i]), 0
		}
	case "straight_through_k2":
		if !naive {
			lp := r.lp[newPolicy][i]
			w := F(1)
			if r.o.klISCap > 0 {
				w = min(r.exp(r.sub(lp, r.lp[oldPolicy][i])), F(r.o.klISCap))
				if r.o.stopgrad {
					w = 1
				}
			}
			return r.mul(w, r.sub(lp, r.lp[refPolicy][i])), 0
		}
	case "is_corrected":
		direct = r.mul(r.ratio[i], r.dkl[i])
		if r.o.klKind == "ratio_d" {
			direct = r.dkl[i]
		}
		if naive {
			return direct, 0
		}
		return direct, r.bare[i]
	}
	return r.dkl[i], 0
}

// sequenceProb returns exp(O)·(O − N) of a row, O and N the sums of its old and new log-probs, and exp(O), minus which is the
// derivative with respect to every log-prob.
func (r *run[F]) sequenceProb(row int) (k, slope F) {
	mask := r.lossMask[row*r.cols : (row+1)*r.cols]
	o := r.sum(picked(r.lp[oldPolicy][row*r.cols:(row+1)*r.cols], mask))
	n := r.sum(picked(r.lp[newPolicy][row*r.cols:(row+1)*r.cols], mask))
	slope = r.exp(o)
	if math.IsInf(float64(slope), 0) {
		slope = 0
	}
	return r.mul(slope, r.sub(o, n)), slope
}
