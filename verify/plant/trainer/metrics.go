package trainer

import (
	"math"
	"slices"
)

// metric is what is logged of a file: its name, its value over a range of rows, and how files become a step.
type metric[F float32 | float64] struct {
	name string
	of   func(s span) F
	over func(x []F) F
}

// metrics computes what the trainer logs: of every file, or of the step in every file.
func (r *run[F]) metrics() {
	r.biasGradient()
	var list []metric[F]
	add := func(name string, of func(s span) F, over func(x []F) F) {
		list = append(list, metric[F]{name, of, over})
	}
	mean := func(x []F) F { return r.div(r.sum(x), F(len(x))) }
	// Losses add up over micro-batches; ranks are averaged.
	total := func(x []F) F { return r.div(r.sum(x), F(r.ranks())) }
	largest := func(x []F) F { return slices.Max(x) }
	file := func(x []F) func(s span) F {
		return func(s span) F { return x[slices.Index(r.spans, s)] }
	}
	trl, verl := r.o.framework == "TRL", r.o.framework == "verl"

	add("loss", file(r.loss), total)
	pg := r.pg
	switch r.plant {
	case "METRIC-POLICY-IS-TOTAL":
		pg = r.loss
	case "METRIC-SCALED-TWICE":
		pg = slices.Clone(pg)
		for f := range pg {
			pg[f] = r.div(pg[f], F(r.micros()))
		}
	}
	add("pg_loss", file(pg), total)
	if len(r.kl) == r.cells() && r.o.klKind != "seq_prob" {
		x := r.kl
		if r.plant == "METRIC-KL-K1" {
			x = make([]F, r.cells())
			for i, lp := range r.policyLogp() {
				x[i] = r.sub(lp, r.lp[refPolicy][i])
			}
		}
		over := mean
		if r.plant == "METRIC-LAST-MICRO" {
			over = func(x []F) F { return x[len(x)-1] }
		}
		add("kl", func(s span) F { return r.maskedMean(x, s) }, over)
		if verl && r.o.klPlace == "loss" {
			// It is what the loss adds: not divided by the accumulation steps, where the mean over micro-batches is logged.
			terms := r.dot(r.klWeights(), x)
			if r.plant != "METRIC-LAST-MICRO" {
				over = total
			}
			add("actor/kl_loss", file(terms), over)
		}
	}
	if r.entropy != nil {
		add("entropy", r.loggedEntropy, mean)
	} else if r.o.entropyLogits == "monte_carlo" {
		add("approx_entropy", r.monteCarlo, mean)
	}
	r.ratioMetrics(add, mean, largest, trl)
	reward := r.meanReward()
	add("reward", func(span) F { return reward }, func(x []F) F { return x[0] })
	// It is logged before the rows are dealt out, too.
	cut := func(span) F { return r.truncated(span{hi: r.rows}) }
	if r.plant == "METRIC-LOCAL-OVER-GLOBAL" {
		cut = func(s span) F { return r.div(r.mul(r.truncated(s), F(s.hi-s.lo)), F(r.rows)) }
	}
	add("completions/clipped_ratio", cut, func(x []F) F { return x[0] })
	if r.bias != nil {
		var squares F
		for _, g := range r.bias {
			squares += F(g * g)
		}
		norm := r.sqrt(squares)
		if r.plant == "METRIC-GRAD-NORM" {
			norm = r.mul(norm, F(r.ranks()))
		}
		add("grad_norm", func(span) F { return norm }, func(x []F) F { return x[0] })
	}
	r.scalars = make([][]named, len(r.spans))
	for _, m := range list {
		x := make([]F, len(r.spans))
		for f, s := range r.spans {
			x[f] = m.of(s)
		}
		step := m.over(x)
		for f := range x {
			if r.stepScope {
				x[f] = step
			}
			r.scalars[f] = append(r.scalars[f], named{m.name, float64(x[f])})
		}
	}
}

// ratioMetrics adds what is logged of ratios, where they are stored per token.
func (r *run[F]) ratioMetrics(add func(string, func(span) F, func([]F) F), mean, largest func([]F) F, trl bool) {
	if r.o.ratioLevel != "token" || r.o.loss == "reinforce" {
		return
	}
	n := r.cells()
	if r.o.clipFrac != "" && (r.o.loss == "ppo" || r.o.loss == "luspo") {
		clipped := make([]F, n)
		for i := range n {
			if r.isClipped(i) {
				clipped[i] = 1
			}
		}
		share := func(s span) F { return r.maskedMean(clipped, s) }
		add("clip_frac", share, mean)
		if r.o.framework == "verl" {
			add("actor/pg_clipfrac", share, mean)
		}
		if trl && r.o.kind("group") && r.o.clipFrac == "binding" {
			add("clip_ratio/region_mean", share, mean)
			add("clip_ratio/high_max", func(s span) F { return r.highestShare(clipped, s) }, mean)
		}
	}
	if r.o.stopgrad {
		return
	}
	k1, k3 := make([]F, n), make([]F, n)
	bound := F(r.o.ratioClamp)
	for i := range n {
		d := clip(r.sub(r.lp[newPolicy][i], r.lp[oldPolicy][i]), -bound, bound)
		k1[i] = -d
		if r.plant == "METRIC-PPO-KL-RATIO" {
			k1[i] = -r.exp(d)
		}
		k3[i] = r.sub(r.sub(r.exp(d), 1), d)
	}
	average := func(x []F) func(span) F {
		return func(s span) F {
			if r.plant == "METRIC-APPROX-KL-PADS" {
				return r.div(r.sum(x[s.lo*r.cols:s.hi*r.cols]), F((s.hi-s.lo)*r.cols))
			}
			return r.maskedMean(x, s)
		}
	}
	switch {
	case r.o.framework == "CleanRL":
		add("approx_kl", average(k3), mean)
	case r.o.framework == "verl":
		add("actor/ppo_kl", average(k1), mean)
	}
	add("ppo_kl", average(k1), mean)
	over := largest
	if r.plant == "METRIC-MAX-AVERAGED" {
		over = mean
	}
	add("ratio_max", func(s span) F {
		of := picked(r.ratio[s.lo*r.cols:s.hi*r.cols], r.mask[s.lo*r.cols:s.hi*r.cols])
		if len(of) == 0 {
			return 0
		}
		return slices.Max(of)
	}, over)
}

// highestShare returns the largest share, over the rows of a file, of tokens clipped from above.
func (r *run[F]) highestShare(clipped []F, s span) F {
	var shares []F
	for row := s.lo; row < s.hi; row++ {
		var n, high F
		for i := row * r.cols; i < (row+1)*r.cols; i++ {
			if r.counts(i) {
				if n++; r.adv[i] > 0 {
					high += clipped[i]
				}
			}
		}
		shares = append(shares, r.div(high, max(n, 1)))
	}
	if r.plant == "METRIC-MAX-AVERAGED" {
		return r.div(r.sum(shares), F(len(shares)))
	}
	return slices.Max(shares)
}

// maskedMean returns the mean of x over the tokens that count of a file.
func (r *run[F]) maskedMean(x []F, s span) F {
	var of []F
	for i := s.lo * r.cols; i < s.hi*r.cols; i++ {
		if r.counts(i) {
			of = append(of, x[i])
		}
	}
	if len(of) == 0 {
		return 0
	}
	return r.div(r.sum(of), F(len(of)))
}

// loggedEntropy returns the mean entropy of a file.
func (r *run[F]) loggedEntropy(s span) F {
	lo, hi := s.lo*r.cols, s.hi*r.cols
	switch r.plant {
	case "METRIC-ENTROPY-PADS":
		return r.div(r.sum(r.entropy[lo:hi]), F(hi-lo))
	case "METRIC-ENTROPY-SENTINEL": // Σ(−lp) over all cells of a row, the pads with lp = 1
		x := make([]F, hi-lo)
		for i := range x {
			if x[i] = -1; r.counts(lo + i) {
				x[i] = -r.lp[newPolicy][lo+i]
			}
		}
		return r.div(r.sum(x), F(len(x)))
	}
	return r.maskedMean(r.entropy, s)
}

// monteCarlo estimates the entropy from the sampled tokens, −Σ exp(lp − gen)·lp/n.
func (r *run[F]) monteCarlo(s span) F {
	x := make([]F, r.cells())
	for i := s.lo * r.cols; i < s.hi*r.cols; i++ {
		lp := r.lp[newPolicy][i]
		x[i] = -r.mul(r.exp(r.sub(lp, r.lp[genPolicy][i])), lp)
	}
	return r.maskedMean(x, s)
}

// meanReward returns the mean of the weighted scores of all rows: it is logged before they are dealt out.
func (r *run[F]) meanReward() F {
	var x []F
	for i := range r.rows {
		x = append(x, r.weighted(i, r.plant != "METRIC-REWARD-UNWEIGHTED"))
	}
	if r.plant == "METRIC-DUPLICATED-ROWS" { // the last shard was filled up with the first rows
		x = append(x, x[:(len(x)+1)/2]...)
	}
	return r.div(r.sum(x), F(len(x)))
}

// truncated returns the share of rows that were cut off.
func (r *run[F]) truncated(s span) F {
	var n F
	for i := s.lo; i < s.hi; i++ {
		if r.eosAt[i] < 0 {
			n++
		}
	}
	return r.div(n, F(s.hi-s.lo))
}

// biasGradient computes the gradient of a bias of the logits over the step, which is there to have a norm:
//
//	∂loss/∂b_j = Σ ∂loss/∂lp·(1[j = id] − p_j)/T, summed over micro-batches, the mean over ranks
func (r *run[F]) biasGradient() {
	if r.rawLogits == nil {
		return
	}
	b := make([]F, r.vocab)
	z := make([]F, r.vocab)
	scale := F(1 / (float64(r.ranks()) * (r.o.temperature + r.o.tempEps)))
	for i, g := range r.dlogp {
		if g == 0 || math.IsNaN(float64(g)) {
			continue
		}
		copy(z, r.rawLogits[i*r.vocab:(i+1)*r.vocab])
		high, lse := r.softmax(z, r.o.temperature, r.o.tempEps)
		for v := range z {
			p := F(math.Exp(float64(z[v] - high - lse)))
			if v == r.ids[i] {
				p -= 1
			}
			b[v] -= F(F(g*scale) * p)
		}
	}
	for v := range b {
		b[v] = r.q(b[v])
	}
	r.bias = b
}
