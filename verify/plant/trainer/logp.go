package trainer

import (
	"math"
	"slices"
)

// softmax stores in z, the raw logits, those divided by the temperature, and returns what has to be subtracted from them to
// get log-probs: a maximum and the logarithm of the sum of what is left. It is one operation to the arithmetic.
func (r *run[F]) softmax(z []F, temperature, eps float64) (high, lse F) {
	t := r.num(temperature + eps)
	for v := range z {
		z[v] = r.div(z[v], t)
	}
	high = slices.Max(z)
	e := make([]F, len(z))
	for v := range z {
		e[v] = F(math.Exp(float64(z[v] - high)))
	}
	return high, F(math.Log(float64(pairwise(e))))
}

// logprobs computes the log-probs of all policies and the entropy of the new one.
func (r *run[F]) logprobs() {
	n := r.cells()
	for p := range r.lp {
		r.lp[p] = make([]F, n)
	}
	r.entropy, r.piSquared = make([]F, n), make([]F, n)
	if r.Logits {
		r.rawLogits = make([]F, n*r.vocab)
	}
	// Noise of policies that a bug makes another model at the first step.
	noise := r.noise
	if r.FirstStep {
		switch r.plant {
		case "REF-NOT-POLICY":
			noise[refPolicy] = 0.3
		case "OLD-OTHER-PASS":
			noise[oldPolicy] = 0.1
		}
	}
	wide, z := make([]float64, r.vocab), make([]F, r.vocab)
	for cell := range n {
		row, t := cell/r.cols, cell%r.cols
		outside := t >= r.length[row]
		for p := range r.lp {
			from := cell
			if r.twin != nil {
				from = r.twin[row]*r.cols + t
			}
			temperature, eps := r.o.temperature, r.o.tempEps
			switch {
			case p != genPolicy && r.plant == "LOGP-TEMPERATURE":
				temperature = 1
			case p != genPolicy && r.plant == "LOGP-SAME-POSITION":
				from++
			case p == newPolicy && r.plant == "LOGP-FIRST-TOKEN" && r.FirstStep && t == 0 && r.promptOf[row] < r.width:
				from = n + row
			case p == genPolicy:
				eps = 0
				if r.o.rawEngine != (r.plant == "GEN-RAW") {
					temperature = 1
				}
				if r.plant == "GEN-TEMPERATURE-TWICE" {
					temperature *= temperature
				}
			}
			weights := p
			if p == genPolicy && r.plant == "GEN-UNADAPTED" {
				weights = refPolicy
			}
			r.noisy(wide, weights, from, noise)
			for v := range z {
				z[v] = r.num(wide[v])
			}
			if p == newPolicy && r.Logits {
				if r.plant == "LOGP-SAME-POSITION" { // what is dumped stands at the right place
					r.noisy(wide, p, cell, noise)
				}
				for v := range z {
					r.rawLogits[cell*r.vocab+v] = r.num(wide[v])
				}
			}
			raw := slices.Clone(z)
			high, lse := r.softmax(z, temperature, eps)
			lp := r.q(z[r.ids[cell]] - high - lse)
			switch {
			case p == genPolicy && r.plant == "GEN-TRUNCATED":
				lp = r.sub(lp, r.log(kept(z, high, lse, r.ids[cell])))
			case p == genPolicy && r.plant == "GEN-OTHER-TOKEN":
				lp = r.q(-lse)
			case p == genPolicy && (r.plant == "GEN-ZERO" || r.hole[cell] || r.plant == "LOGP-END-ZERO" && t == r.length[row]-1):
				lp = 0
			case p != genPolicy && r.plant == "LOGP-BF16":
				lp = unit[F]{bf16: true}.q(lp)
			}
			if outside && r.fill == r.fill && r.plant != "LOGP-SHIFT-PADDING" {
				lp = F(r.fill)
				if p == genPolicy {
					lp = 0
				}
			}
			r.lp[p][cell] = lp
			switch p {
			case newPolicy:
				unscaled := (r.o.entropyLogits == "unscaled") != (r.plant == "ENTROPY-TEMPERATURE")
				if unscaled {
					z = raw
					high, lse = r.softmax(z, 1, 0)
				}
				r.entropy[cell] = r.entropyOf(z, high, lse)
			case oldPolicy:
				for _, v := range z {
					q := F(math.Exp(float64(v - high - lse)))
					r.piSquared[cell] += F(q * q)
				}
			}
		}
	}
	if r.o.stopgrad {
		copy(r.lp[oldPolicy], r.lp[newPolicy])
	}
	r.spoil()
	if r.o.entropyLogits == "monte_carlo" {
		r.entropy = nil
	}
}

// spoil plants what goes wrong with log-probs once they are computed.
func (r *run[F]) spoil() {
	switch r.plant {
	case "LOGP-SHIFT", "LOGP-SHIFT-PADDING":
		for _, p := range []int{newPolicy, oldPolicy, refPolicy} {
			for i := range r.rows {
				row := r.lp[p][i*r.cols : (i+1)*r.cols]
				by := 1
				if r.plant == "LOGP-SHIFT-PADDING" {
					by = r.cols - r.length[i]
				}
				copy(row, slices.Clone(row)[by:])
			}
		}
	case "LOGP-NEW-ZERO":
		clear(r.lp[newPolicy])
	case "LOGP-OLD-ZERO":
		clear(r.lp[oldPolicy])
	case "REF-ZERO":
		clear(r.lp[refPolicy])
	case "OLD-RECOMPUTED":
		copy(r.lp[oldPolicy], r.lp[newPolicy])
	case "ROWS-SWAPPED":
		x := slices.Clone(r.lp[oldPolicy])
		copy(r.lp[oldPolicy], x[r.cols:])
		copy(r.lp[oldPolicy][len(x)-r.cols:], x)
	case "ENTROPY-ROWS":
		x := slices.Clone(r.entropy)
		copy(r.entropy, x[r.cols:])
		copy(r.entropy[len(x)-r.cols:], x)
	case "LOGP-NAN":
		if i := slices.Index(r.mask, true); i >= 0 {
			r.lp[newPolicy][i] = F(math.NaN())
		}
	}
}

// entropyOf returns ln Σ eᶻ − Σ p·z of scaled logits, one operation to the arithmetic.
func (r *run[F]) entropyOf(z []F, high, lse F) F {
	terms := make([]F, len(z))
	for v, x := range z {
		d := x - high
		terms[v] = F(F(math.Exp(float64(d-lse))) * d)
	}
	return r.q(lse - pairwise(terms))
}

// kept returns the probability of the likeliest tokens that together reach 0.8, or reach down to the sampled one.
func kept[F float32 | float64](z []F, high, lse F, id int) F {
	p := make([]F, len(z))
	for v, x := range z {
		p[v] = F(math.Exp(float64(x - high - lse)))
	}
	least := p[id]
	slices.SortFunc(p, func(a, b F) int {
		if a > b {
			return -1
		}
		return 1
	})
	var s F
	for _, q := range p {
		if s >= 0.8 && q < least {
			break
		}
		s += q
	}
	return min(s, 1)
}
