package stage

import (
	"cmp"
	"math"
	"slices"

	"plumbline/reference/ad"
)

// The losses written once more as formulas on the tape of package ad, from the text of the options, and differentiated by it:
// sg(x), a constant in the gradient, is ad.Detach, and the rules at kinks are torch's. Nothing of package rl is in it.

// taped is a batch on a tape under some options.
type taped struct {
	*subject
	g            grid
	tape         *ad.Tape
	lp, old, adv *ad.Var
	below        *ad.Var // the denominator of the ratio: old, or the log-probs of the engine
	on           []bool  // cells that count
	zero         *ad.Var
	drop         []bool // what clip_cov leaves out
	rho          *ad.Var
	shape        []int
	weights      []float64
}

func (s *subject) onTape(g grid) *taped {
	x := &taped{subject: s, g: g, tape: new(ad.Tape), on: s.counted(g.Batch), shape: []int{g.Rows, g.Cols}}
	x.lp = x.tape.Param(g.Token("logp_new"), x.shape...)
	x.adv = x.constant(g.Token("advantages"))
	x.zero = x.constant(make([]float64, len(g.Mask)))
	x.old = ad.Detach(x.lp)
	if s.text("ratio.old", "stored") != "stopgrad_new" {
		x.old = x.constant(g.Token("logp_old"))
	}
	if x.below = x.old; s.text("ratio.old", "stored") == "engine" && g.Token("logp_gen") != nil { // a value loss has none
		x.below = x.constant(g.Token("logp_gen"))
	}
	if s.text("tis.level", "") != "none" {
		x.weights = g.Token("is_weights")
	}
	return x
}

func (x *taped) constant(v []float64) *ad.Var { return x.tape.Const(v, x.shape...) }

// each returns f of every cell as a constant.
func (x *taped) each(f func(i int) float64) *ad.Var {
	v := make([]float64, len(x.g.Mask))
	for i := range v {
		v[i] = f(i)
	}
	return x.constant(v)
}

// choose returns a where on, else b.
func (x *taped) choose(on func(i int) bool, a, b *ad.Var) *ad.Var {
	m := ad.Mask{Shape: x.shape, On: make([]bool, len(x.g.Mask))}
	for i := range m.On {
		m.On[i] = on(i)
	}
	return ad.Where(m, a, b)
}

// rowSum returns Σ v·m of every row, [rows, 1].
func (x *taped) rowSum(v *ad.Var) *ad.Var {
	return ad.Sum(ad.Where(ad.Mask{Shape: x.shape, On: x.on}, v, x.zero), true, 1)
}

func (x *taped) spread(v *ad.Var) *ad.Var { return ad.BroadcastTo(v, x.shape...) }

// lengths returns the tokens of every row.
func (x *taped) lengths() []float64 {
	n := make([]float64, x.g.Rows)
	for i, m := range x.on {
		if m {
			n[i/x.g.Cols]++
		}
	}
	return n
}

// perRow returns f of the length of every row, [rows, 1].
func (x *taped) perRow(f func(n float64) float64) *ad.Var {
	n := x.lengths()
	for r := range n {
		n[r] = f(n[r])
	}
	return x.tape.Const(n, x.g.Rows, 1)
}

var infinite = math.Inf(1)

// ratioAt is ρ at its level.
func (x *taped) ratioAt() *ad.Var {
	d := ad.Sub(x.lp, x.below)
	if c := x.num("ratio.log_clamp", 0); c > 0 {
		d = ad.Clamp(d, -c, c)
	}
	level := x.text("ratio.level", "token")
	if level == "token" {
		return ad.Exp(d)
	}
	sum := x.rowSum(d)
	if level == "seq_mean" {
		sum = ad.Div(sum, x.perRow(func(n float64) float64 { return max(n, 1) + x.num("ratio.len_eps", 0) }))
	}
	log := x.spread(sum)
	if x.text("ratio.grad", "row") == "token" { // verl: lp − sg(lp) + sg(s)
		own := ad.Add(ad.Sub(x.lp, ad.Detach(x.lp)), ad.Detach(log))
		log = x.choose(func(i int) bool { return x.on[i] }, own, ad.Detach(log))
	}
	if m := x.num("ratio.seq_log_max", 0); m > 0 {
		log = ad.Clamp(log, math.Inf(-1), m)
	}
	return ad.Exp(log)
}

// clipped is max(−A·min(ρ, δ), −A·clip(ρ)), and for A < 0 at most −A·c.
func (x *taped) clipped(rho *ad.Var) *ad.Var {
	r := rho
	if d := x.num("clip.delta", 0); d > 0 {
		r = ad.Clamp(r, math.Inf(-1), d)
	}
	minus := ad.Neg(x.adv)
	l := ad.Max(ad.Mul(minus, r), ad.Mul(minus, ad.Clamp(rho, 1-x.num("clip.low", infinite), 1+x.num("clip.high", infinite))))
	if c := x.num("clip.dual", 0); c > 0 {
		l = x.choose(func(i int) bool { return x.adv.Data()[i] < 0 }, ad.Min(l, ad.Scale(minus, c)), l)
	}
	return l
}

// scored is −sg(w)·A·lp.
func (x *taped) scored(w *ad.Var) *ad.Var { return ad.Neg(ad.Mul(ad.Mul(ad.Detach(w), x.adv), x.lp)) }

// covariance returns (A − mean A)·(lp − mean lp), with the means over the tokens of each file.
func (x *taped) covariance() []float64 {
	cov := make([]float64, len(x.g.Mask))
	for _, f := range x.g.Files {
		var n, a, l float64
		for i := f.Lo * x.g.Cols; i < f.Hi*x.g.Cols; i++ {
			if x.on[i] {
				n++
				a += x.adv.Data()[i]
				l += x.lp.Data()[i]
			}
		}
		for i := f.Lo * x.g.Cols; i < f.Hi*x.g.Cols; i++ {
			cov[i] = (x.adv.Data()[i] - a/n) * (x.lp.Data()[i] - l/n)
		}
	}
	return cov
}

// policyTerm is the loss of every cell; that of gmpo is one of its row.
func (x *taped) policyTerm() *ad.Var {
	low, high := x.num("clip.low", infinite), x.num("clip.high", infinite)
	lp, old, adv := x.lp.Data(), x.below.Data(), x.adv.Data()
	d := ad.Sub(x.lp, x.below)
	rho := x.rho
	switch x.text("loss.kind", "") {
	case "ppo", "gspo", "luspo":
		return x.clipped(rho)
	case "clip_cov":
		return x.choose(func(i int) bool { return x.drop != nil && x.drop[i] }, x.zero, x.clipped(rho))
	case "kl_cov":
		cov := x.covariance()
		held := make([]bool, len(cov))
		for _, f := range x.g.Files {
			var tokens []int
			for i := f.Lo * x.g.Cols; i < f.Hi*x.g.Cols; i++ {
				if x.on[i] {
					tokens = append(tokens, i)
				}
			}
			slices.SortStableFunc(tokens, func(i, j int) int { return cmp.Compare(cov[j], cov[i]) })
			k := max(1, int(float64(len(tokens))*x.num("cov.fraction", 0)))
			for _, i := range tokens[:min(k, len(tokens))] {
				held[i] = true
			}
		}
		free := ad.Neg(ad.Mul(x.adv, rho))
		return x.choose(func(i int) bool { return held[i] }, ad.Add(free, ad.Scale(ad.Abs(d), x.num("cov.coef", 0))), free)
	case "reinforce":
		return ad.Neg(ad.Mul(x.adv, x.lp))
	case "cispo":
		hi := 1 + high
		if x.text("clip.high_is_absolute", "") == "true" {
			hi = high
		}
		return x.scored(x.each(func(i int) float64 { return max(min(rho.Data()[i], hi), 1-low) }))
	case "dppo_tv", "dppo_kl":
		kl := x.text("loss.kind", "") == "dppo_kl"
		limit := x.num("dppo.limit", infinite)
		return x.scored(x.each(func(i int) float64 {
			p, q, a := math.Exp(lp[i]), math.Exp(old[i]), adv[i]
			inside := a > 0 && p-q <= high || a <= 0 && q-p <= low
			if kl {
				div := q*(old[i]-lp[i]) + (1-q)*math.Log((1-q+1e-8)/(1-p+1e-8))
				inside = a > 0 && (div <= high || p <= q) || a <= 0 && (div <= low || p >= q)
			}
			if !inside {
				return 0
			}
			return min(rho.Data()[i], limit)
		}))
	case "vespo":
		logs := ad.Clamp(d, -20, 20)
		if x.weights != nil { // the engine's weights are part of its own
			logs = ad.Add(logs, x.each(func(i int) float64 { return max(min(math.Log(x.weights[i]), 20), math.Log(1e-8)) }))
		}
		sum := x.spread(ad.Clamp(x.rowSum(logs), math.Log(1e-8), 20))
		by := func(positive, negative string) *ad.Var {
			return x.each(func(i int) float64 {
				if adv[i] < 0 {
					return x.num(negative, math.NaN())
				}
				return x.num(positive, math.NaN())
			})
		}
		k, lambda := by("vespo.k_pos", "vespo.k_neg"), by("vespo.lambda_pos", "vespo.lambda_neg")
		// W^k·e^{λ(1−W)}
		return x.scored(ad.Exp(ad.Add(ad.Mul(k, sum), ad.Mul(lambda, ad.AddScalar(ad.Neg(ad.Exp(sum)), 1)))))
	case "dro":
		return ad.Sub(ad.Scale(ad.Mul(d, d), x.num("dro.beta", math.NaN())/2), ad.Mul(x.adv, x.lp))
	case "sapo":
		tau := x.each(func(i int) float64 {
			if adv[i] > 0 {
				return x.num("sapo.tau_pos", math.NaN())
			}
			return x.num("sapo.tau_neg", math.NaN())
		})
		return ad.Neg(ad.Mul(x.adv, ad.Div(ad.Scale(ad.Sigmoid(ad.Mul(tau, ad.AddScalar(rho, -1))), 4), tau)))
	case "gmpo":
		if c := x.num("ratio.log_clamp", 0); c > 0 {
			d = ad.Clamp(d, -c, c)
		}
		sign := x.each(func(i int) float64 {
			switch {
			case adv[i] > 0:
				return 1
			case adv[i] < 0:
				return -1
			}
			return 0
		})
		c := ad.Mul(sign, ad.Min(ad.Mul(sign, d), ad.Mul(sign, ad.Clamp(d, -low, high))))
		n := x.perRow(func(n float64) float64 { return max(n, 1) + x.num("agg.len_eps", 0) })
		return x.spread(ad.Neg(ad.Mul(ad.Div(x.rowSum(x.adv), n), ad.Exp(ad.Div(x.rowSum(c), n)))))
	}
	panic("no formula of this loss")
}

// estimate is the KL estimate of every cell, with the gradient that kl.grad says.
func (x *taped) estimate(rho *ad.Var) *ad.Var {
	d := ad.Sub(x.lp, x.constant(x.g.Token("logp_ref")))
	kind, grad := x.text("kl.kind", ""), x.text("kl.grad", "naive")
	clamps := kind == "k3" || x.text("kl.clamp_applies_to_k1", "") == "true"
	k := d
	if c := x.num("kl.clamp_in", 0); c > 0 && clamps {
		hi := c
		if x.text("kl.clamp_in_side", "both") == "below" {
			hi = infinite
		}
		k = ad.Clamp(k, -c, hi)
	}
	switch kind {
	case "k2":
		k = ad.Scale(ad.Mul(k, k), 0.5)
	case "k3":
		k = ad.Add(ad.Expm1(ad.Neg(k)), k)
	case "abs":
		k = ad.Abs(k)
	}
	if c := x.num("kl.clamp_out", 0); c > 0 && clamps {
		k = ad.Clamp(k, -c, c)
	}
	if kind == "ratio_d" || grad == "is_corrected" {
		k = ad.Mul(rho, k)
	}
	switch grad {
	case "score_function":
		return ad.Mul(k, ad.Exp(ad.Sub(x.lp, ad.Detach(x.lp))))
	case "straight_through_k2":
		k2 := ad.Scale(ad.Mul(d, d), 0.5)
		if c := x.num("kl.is_cap", 0); c > 0 { // w = min(exp(lp − old), cap), a constant
			k2 = ad.Mul(k2, ad.Clamp(ad.Exp(ad.Detach(ad.Sub(x.lp, x.old))), 0, c))
		}
		return ad.Add(ad.Detach(k), ad.Sub(k2, ad.Detach(k2)))
	}
	return k
}

// terms returns the policy loss and the KL term of every cell, weighted; the latter is nil if there is none.
func (x *taped) terms() (l, kl *ad.Var) {
	x.rho = x.ratioAt()
	l = x.policyTerm()
	weighted := x.weights != nil && x.text("loss.kind", "") != "vespo"
	if weighted {
		l = ad.Mul(l, x.constant(x.weights))
	}
	beta := x.num("kl.beta", 0)
	if x.text("kl.place", "none") != "loss" || beta == 0 {
		return l, nil
	}
	kl = ad.Scale(x.estimate(x.rho), beta)
	inside := x.text("kl.under_is_weight", "outside") == "inside"
	if !x.set.Value("kl.under_is_weight").Known() && x.set.Value("tis.applies_to_kl").Known() {
		inside = x.text("tis.applies_to_kl", "") == "true"
	}
	if weighted && inside {
		kl = ad.Mul(kl, x.constant(x.weights))
	}
	return l, kl
}
