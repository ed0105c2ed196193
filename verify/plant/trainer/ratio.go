package trainer

import "math"

// ratios computes the importance ratio of every cell, and what a token's log-prob does to its logarithm.
func (r *run[F]) ratios() {
	n := r.cells()
	r.ratio, r.share = make([]F, n), make([]F, n)
	bound := F(r.o.ratioClamp)
	sign := F(1)
	if r.plant == "RATIO-INVERTED" {
		sign = -1
	}
	d := make([]F, n)
	for i := range n {
		if !r.o.stopgrad {
			d[i] = sign * r.sub(r.lp[newPolicy][i], r.lp[r.below()][i])
		}
		r.share[i] = sign
		if !inside(d[i], -bound, bound) && !math.IsInf(float64(bound), 1) {
			r.share[i] = 0
		}
		d[i] = clip(d[i], -bound, bound)
	}
	if r.o.ratioLevel != "seq_mean" && r.o.ratioLevel != "seq_sum" {
		for i := range n {
			r.ratio[i] = r.exp(d[i])
		}
		return
	}
	for row := range r.rows {
		lo, hi := row*r.cols, (row+1)*r.cols
		mask := r.lossMask[lo:hi]
		s, tokens := r.sum(picked(d[lo:hi], mask)), F(max(count(mask), 1))
		if r.o.ratioLevel == "seq_mean" && r.plant != "RATIO-SUM-FOR-MEAN" {
			tokens = r.add(tokens, r.num(r.o.lenEps))
			s = r.div(s, tokens)
		} else {
			tokens = 1
		}
		pass := F(1)
		if float64(s) >= r.o.seqLogMax {
			s, pass = F(r.o.seqLogMax), 0
		}
		rho := r.exp(s)
		for i := lo; i < hi; i++ {
			r.ratio[i] = rho
			if !mask[i-lo] {
				r.share[i] = 0
			}
			if r.share[i] *= pass; !r.o.ratioPerToken || r.plant == "RATIO-GRAD-PER-TOKEN" {
				r.share[i] = r.div(r.share[i], tokens)
			}
		}
	}
}

// below returns the policy in the denominator of the ratio.
func (r *run[F]) below() int {
	if r.o.engineRatio {
		return genPolicy
	}
	return oldPolicy
}

// engineWeights computes the weights for the mismatch between inference engine and trainer; nil where there are none.
func (r *run[F]) engineWeights() []F {
	if r.o.tisLevel == "" || r.o.tisLevel == "none" || r.o.loss == "gmpo" {
		return nil
	}
	w := make([]F, r.cells())
	top, bottom := r.lp[oldPolicy], r.lp[genPolicy]
	if r.plant == "IS-OLD-FOR-GEN" {
		top, bottom = r.lp[newPolicy], r.lp[oldPolicy]
	}
	for row := range r.rows {
		lo, hi := row*r.cols, (row+1)*r.cols
		mask := r.mask[lo:hi]
		var logs, gates []F
		for i := lo; i < hi; i++ {
			if mask[i-lo] {
				logs = append(logs, r.sub(top[i], bottom[i]))
				gates = append(gates, r.gate(top[i], bottom[i]))
			}
		}
		if len(logs) == 0 {
			continue
		}
		s, tokens := r.sum(logs), F(len(logs))
		if r.o.tisLevel == "seq_geo" && r.plant != "IS-SUM-FOR-MEAN" {
			s = r.div(s, tokens)
		}
		seq, gate := r.expBounded(s), r.div(r.sum(gates), tokens)
		for i, k := lo, 0; i < hi; i++ {
			if !mask[i-lo] {
				continue
			}
			token := r.expBounded(logs[k])
			x, weight := gate, seq
			if r.o.tisLevel == "token" {
				x, weight = gates[k], token
			}
			if r.o.tisGate == "ratio" || r.o.tisGate == "" {
				x = weight
			}
			w[i] = r.bounded(weight, x, token)
			k++
		}
		if r.weightOfRow() {
			first, _ := ends(mask)
			for i := lo; i < hi; i++ {
				w[i] = w[lo+first]
			}
		}
	}
	return w
}

// weightOfRow reports whether a row has one engine weight, which then multiplies every cell of it.
func (r *run[F]) weightOfRow() bool {
	return r.o.tisLevel != "token" && r.o.tisRule != "seq_filter" && !r.broadcast
}

func (r *run[F]) expBounded(s F) F {
	return r.exp(clip(s, F(-r.o.tisClamp), F(r.o.tisClamp)))
}

// bounded applies the rule to a weight, x being what the bounds judge.
func (r *run[F]) bounded(weight, x, token F) F {
	lo, hi := F(max(r.o.tisLow, 0)), F(r.o.tisHigh)
	if r.plant == "IS-CLAMP-MISSING" {
		return weight
	}
	within := lo <= x && x <= hi
	switch r.o.tisRule {
	case "truncate_upper":
		return min(x, hi)
	case "clamp":
		return clip(x, lo, hi)
	case "zero_outside":
		if within {
			return weight
		}
	case "seq_filter":
		if within {
			return token
		}
	}
	return 0
}

// gate returns the divergence of a token by which weights may be judged.
func (r *run[F]) gate(old, gen F) F {
	switch r.o.tisGate {
	case "tv":
		return abs(r.sub(r.exp(gen), r.exp(old)))
	case "binary_kl":
		p, q := clip(r.exp(gen), 1e-6, 1-1e-6), clip(r.exp(old), 1e-6, 1-1e-6)
		yes := r.mul(p, r.log(r.div(p, q)))
		no := r.mul(r.sub(1, p), r.log(r.div(r.sub(1, p), r.sub(1, q))))
		return r.add(yes, no)
	}
	return 0
}
