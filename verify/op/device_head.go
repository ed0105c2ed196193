package op

import (
	"math"
	"math/rand/v2"

	"plumbline/reference/linalg"
	"plumbline/reference/optim"
	"plumbline/reference/rl"
)

// HeadBatchFunc computes, for logits [len(ids), V] at a temperature, the log-probability of ids and the entropy of every row, and dlogits from dlogp and
// dentropy.
type HeadBatchFunc = func(logp, entropy, dlogits, logits []float32, ids []int32, dlogp, dentropy []float32, vocab int, temperature float32)

// HeadBatch is the end of a language model: log-probabilities, entropies and the gradient of the logits. [Head] and [HeadBackward] are the same
// formulas under another contract: one row in chunks with a running maximum, in sums of float64 and of any temperature that its caller divided by
// before. A device has whole rows of a chunk of tokens, sums in float32 and divides by the temperature itself, so that neither function could stand in
// for the other.
var HeadBatch = &Spec[HeadBatchFunc]{
	Name: "f32.HeadBatch",
	Doc:  "logp = x_id − lse, H = −Σ p·ln p, dlogits_j = (dlogp·([j = id] − p_j) − dH·p_j·(ln p_j + H))/T, x = logits/T",
	Bound: "u·(|x| + d) of every difference, e_exp, V·u of the sum, 2⁻²² of the logarithm; carried through p and its products " +
		"for the gradient",
	Source:   "reference/rl LogProbs and LogProbsBackward",
	Families: []string{Normal, Uniform, Whole, Constant, Sparse},
	Dims: func(r *rand.Rand) []int {
		return []int{1 + r.IntN(3), 1 + r.IntN(700), r.IntN(3), r.IntN(3), r.IntN(2)}
	},
	Run: func(f HeadBatchFunc, c Case, t *Trial) {
		rows, vocab := c.Dims[0], c.Dims[1]
		temperature, spread := [...]float32{1, 0.5, 2}[c.Dims[2]], [...]float32{0, 1, 10}[c.Dims[3]]
		draw, v := words(c, 5), value(c, 1)
		ids := Input(t, rows, 1, 1, func(i int) int32 {
			id := int32(draw(i) >> 5 % uint64(vocab))
			if i == 0 && vocab > 3 && id == 1 {
				id = 2
			}
			return id
		})
		logits := Input(t, rows, vocab, vocab, func(i int) float32 {
			if i == 1 && vocab > 3 && c.Dims[4] == 1 {
				return float32(math.Inf(-1)) // forbidden
			}
			return spread * v(i)
		})
		dlogp, dh := Input(t, rows, 1, 1, value(c, 2)), Input(t, rows, 1, 1, value(c, 3))
		logp, entropy, dlogits := Output[float32](t, rows, 1, 1), Output[float32](t, rows, 1, 1), Output[float32](t, rows, vocab, vocab)
		f(logp.Data, entropy.Data, dlogits.Data, logits.Data, ids.Data, dlogp.Data, dh.Data, vocab, temperature)
		id := make([]int, rows)
		for i, n := range ids.Data {
			id[i] = int(n)
		}
		x, o, inv := widen(logits.Data), rl.LogProbOptions{Temperature: float64(temperature)}, 1/float64(temperature)
		lp := rl.LogProbs(nil, x, id, vocab, o)
		dl := rl.LogProbsBackward(nil, widen(dlogp.Data), x, id, vocab, o)
		for i := range rows {
			row := x[i*vocab : (i+1)*vocab]
			top := math.Inf(-1)
			for _, v := range row {
				top = math.Max(top, v*inv)
			}
			var s, w, second float64
			for _, v := range row {
				if d := v*inv - top; !math.IsInf(d, -1) {
					s, w, second = s+math.Exp(d), w+math.Exp(d)*d, second+math.Exp(d)*d*d
				}
			}
			h := math.Log(s) - w/s
			// Every difference has an error u·(|x| + |d|); temperatures are powers of two.
			rho := u32*math.Abs(w)/s + eExp + float64(vocab)*u32
			log := 0x1p-22*math.Max(1, math.Abs(math.Log2(s)))*math.Ln2 + 2*u32*math.Abs(math.Log(s))
			t.Within("logp", float64(logp.Data[i]), lp[i], rho+log+u32*(math.Abs(lp[i])+math.Abs(row[id[i]]*inv)+math.Abs(top)), i, 0)
			eH := rho + log + u32*math.Abs(h) + (2*rho+2*u32)*math.Abs(w)/s + u32*second/s
			t.Within("entropy", float64(entropy.Data[i]), h, eH, i, 0)
			lse, a, b := top+math.Log(s), math.Abs(float64(dlogp.Data[i])), math.Abs(float64(dh.Data[i]))
			for j, v := range row {
				l := v*inv - lse
				p, e, lost, want := math.Exp(l), 0.0, eta32, dl[i*vocab+j]
				if p > 0 {
					// Underflow: p loses tiny, which dlogp and dentropy·(ln p + H) multiply, and each product eta.
					lost += inv * (tiny*(a+b*math.Abs(l+h)) + eta32*(2+math.Abs(l+h)))
					want -= float64(dh.Data[i]) * p * (l + h) * inv
					el := rho + log + u32*(math.Abs(l)+math.Abs(lse))
					e = p * inv * (a*(el+eExp+3*u32) + b*(math.Abs(l+h)*(el+eExp+5*u32)+el+eH+u32*(math.Abs(l)+h)))
				}
				bound := (e + 2*u32*math.Abs(want) + lost) * (1 + 0x1p-10)
				if j == id[i] {
					bound += u32 * inv * a
				}
				t.Within("dlogits", float64(dlogits.At(i, j)), want, bound, i, j)
			}
		}
	},
	Faults: []Fault[HeadBatchFunc]{
		{"head-batch-temperature", "the gradient is not divided by the temperature", headBatchWith(0, 1, 0)},
		{"head-batch-entropy", "the entropy has no part in the gradient", headBatchWith(1, 0, 0)},
		{"head-batch-last", "the last token of the vocabulary is left out of the sum", headBatchWith(1, 1, 1)},
	},
}

func headBatchWith(divided, entropic float64, skip int) HeadBatchFunc {
	return func(logp, entropy, dlogits, logits []float32, ids []int32, dlogp, dentropy []float32, vocab int, temperature float32) {
		inv := 1 / float64(temperature)
		for i, id := range ids {
			row := widen(logits[i*vocab : (i+1)*vocab])
			top, s, h := math.Inf(-1), 0.0, 0.0
			for _, v := range row {
				top = math.Max(top, v*inv)
			}
			for _, v := range row[:max(1, vocab-skip)] {
				s += math.Exp(v*inv - top)
			}
			lse := top + math.Log(s)
			for _, v := range row {
				if l := v*inv - lse; !math.IsInf(l, -1) {
					h -= math.Exp(l) * l
				}
			}
			logp[i], entropy[i] = float32(row[id]*inv-lse), float32(h)
			by := inv
			if divided == 0 {
				by = 1
			}
			for j, v := range row {
				l := v*inv - lse
				p, d := math.Exp(l), 0.0
				if j == int(id) {
					d = float64(dlogp[i])
				}
				d -= float64(dlogp[i]) * p
				if p > 0 {
					d -= entropic * float64(dentropy[i]) * p * (l + h)
				}
				dlogits[i*vocab+j] = float32(d * by)
			}
		}
	}
}

// PolicyLossFunc computes the loss of tokens and its slope by logp.
type PolicyLossFunc = func(loss, slope, logp, old, ref, advantage, w []float32, low, high, beta float32)

// PolicyLoss is the clipped surrogate with the KL estimator k3, weighted.
var PolicyLoss = &Spec[PolicyLossFunc]{
	Name:     "f32.PolicyLoss",
	Doc:      "w·(−min(A·r, A·clip(r, low, high)) + β·k3), r = e^(logp − old), k3 = e^d − 1 − d, d = ref − logp; and its derivative by logp",
	Bound:    "the straddle rule at the bounds of the clip; near d = 0 the rest of the series, u⁶/600",
	Source:   "Schulman et al. 2017, Eq. 7; the estimator k3 of reference/rl",
	Families: []string{Normal},
	Dims:     func(r *rand.Rand) []int { return []int{1 + r.IntN(400), r.IntN(3), r.IntN(18)} },
	Run: func(f PolicyLossFunc, c Case, t *Trial) {
		n, beta := c.Dims[0], [...]float32{0, 0.04, 1}[c.Dims[1]]
		const low, high = float32(0.8), float32(1.25)
		spread, masked := math.Ldexp(1, c.Dims[2]-16), words(c, 7)
		at := value(c, 1)
		near := func(tensor uint64) func(i int) float32 {
			v := value(c, tensor)
			return func(i int) float32 { return at(i) + float32(float64(v(i))*spread) }
		}
		hide := func(v func(int) float32, hidden float32) func(int) float32 { // what a mask hides may be anything
			return func(i int) float32 {
				if masked(i)%8 == 0 {
					return hidden
				}
				return v(i)
			}
		}
		lp, old, ref := Input(t, n, 1, 1, at), Input(t, n, 1, 1, near(2)), Input(t, n, 1, 1, near(3))
		adv, w := Input(t, n, 1, 1, hide(value(c, 4), float32(math.NaN()))), Input(t, n, 1, 1, hide(value(c, 5), 0))
		loss, slope := Output[float32](t, n, 1, 1), Output[float32](t, n, 1, 1)
		f(loss.Data, slope.Data, lp.Data, old.Data, ref.Data, adv.Data, w.Data, low, high, beta)
		for i := range n {
			ww := float64(w.Data[i])
			if ww == 0 {
				Equal(t, "loss", loss.Data[i], 0, i, 0)
				Equal(t, "slope", slope.Data[i], 0, i, 0)
				continue
			}
			x, lo, hi := float64(lp.Data[i])-float64(old.Data[i]), float64(low), float64(high)
			ratio, a := math.Exp(x), float64(adv.Data[i])
			eRatio := u32*math.Abs(x) + eExp
			free, bound := a*ratio, a*math.Min(math.Max(ratio, lo), hi)
			v, s := -math.Min(free, bound), -free
			if bound < free {
				s = 0
			}
			b, bs := math.Abs(a)*ratio*(eRatio+2*u32), math.Abs(free)*(eRatio+2*u32)
			if math.Abs(ratio-lo) <= ratio*(eRatio+u32) || math.Abs(ratio-hi) <= ratio*(eRatio+u32) {
				bs += math.Abs(free) // the straddle rule: either branch
			}
			d, bt := float64(ref.Data[i])-float64(lp.Data[i]), float64(beta)
			k, ed := math.Expm1(d)-d, u32*math.Abs(d)
			// Near 0 the series ends at u⁵/120 (and u⁴/24 in the slope), so that u⁶/600 and u⁵/100 are left; elsewhere e^d − 1 − d cancels.
			if math.Abs(d) < 0.126 {
				b += bt * (math.Abs(math.Expm1(d))*ed + 8*u32*k + math.Pow(math.Abs(d), 6)/600)
				bs += bt * (ed + 8*u32*math.Abs(d) + math.Pow(math.Abs(d), 5)/100)
			}
			if math.Abs(d) > 0.124 {
				b += bt * (math.Exp(d)*(ed+eExp) + ed + u32*(math.Abs(math.Expm1(d))+k))
				bs += bt * (math.Exp(d)*(ed+eExp) + u32*math.Abs(math.Expm1(d)))
			}
			// Underflow: an exponential loses tiny, which A and β multiply, and each product eta; w multiplies all of it.
			lost := tiny*(math.Abs(a)+bt) + eta32*(2+2*bt)
			v += bt * k
			s -= bt * math.Expm1(d)
			t.Within("loss", float64(loss.Data[i]), ww*v, math.Abs(ww)*(b+3*u32*(math.Abs(v)+bt*k)+lost)*(1+0x1p-10)+eta32, i, 0)
			t.Within("slope", float64(slope.Data[i]), ww*s, math.Abs(ww)*(bs+3*u32*(math.Abs(free)+bt*math.Abs(math.Expm1(d)))+lost)*(1+0x1p-10)+eta32, i, 0)
		}
	},
	Faults: []Fault[PolicyLossFunc]{
		{"policy-loss-max", "the larger of the two surrogates is taken", policyLossWith(func(a, b float64) float64 { return math.Max(a, b) }, func(d float64) float64 { return math.Expm1(d) - d })},
		{"policy-loss-k1", "the estimator of the KL is −d", policyLossWith(math.Min, func(d float64) float64 { return -d })},
	},
}

func policyLossWith(least func(a, b float64) float64, k3 func(d float64) float64) PolicyLossFunc {
	return func(loss, slope, logp, old, ref, advantage, w []float32, low, high, beta float32) {
		for i := range loss {
			if w[i] == 0 {
				loss[i], slope[i] = 0, 0
				continue
			}
			a, ratio, d := float64(advantage[i]), math.Exp(float64(logp[i])-float64(old[i])), float64(ref[i])-float64(logp[i])
			free, bound := a*ratio, a*math.Min(math.Max(ratio, float64(low)), float64(high))
			v := -least(free, bound)
			s := -free
			if -v != free {
				s = 0
			}
			loss[i] = float32(float64(w[i]) * (v + float64(beta)*k3(d)))
			slope[i] = float32(float64(w[i]) * (s - float64(beta)*math.Expm1(d)))
		}
	}
}

// AdamWFunc updates p, m and v from g: step counts from 1, clip multiplies g.
type AdamWFunc = func(p, m, v, g []float32, lr, beta1, beta2, eps, decay, clip float64, step int)

// AdamW is a step of the optimiser.
var AdamW = &Spec[AdamWFunc]{
	Name:     "f32.AdamW",
	Doc:      "m = β₁m + (1 − β₁)g, v = β₂v + (1 − β₂)g², p = p·(1 − lr·wd) − lr·(m/c₁)/(√(v/c₂) + ε), c_i = 1 − β_i^t",
	Bound:    "decay first, with one more u for each of the numbers that a kernel gets in float32",
	Source:   "Loshchilov and Hutter 2019, Algorithm 2; reference/optim",
	Families: []string{Normal, Uniform, Sparse, Edge},
	Dims:     func(r *rand.Rand) []int { return []int{1 + r.IntN(600), r.IntN(21)} },
	Run: func(f AdamWFunc, c Case, t *Trial) {
		n, steps := c.Dims[0], c.Dims[1]
		const lr, beta1, beta2, eps, decay = 1e-2, 0.9, 0.999, 1e-8, 0.1
		g := Input(t, n, 1, 1, value(c, 2))
		p, m, v := Output[float32](t, n, 1, 1), Output[float32](t, n, 1, 1), Output[float32](t, n, 1, 1)
		v1, v3, v4 := value(c, 1), value(c, 3), value(c, 4)
		for i := range n {
			p.Data[i], m.Data[i] = v1(i), 0.1*v3(i)
			v.Data[i] = 0.01 * v4(i) * v4(i)
		}
		wantP, m0, v0 := widen(p.Data), widen(m.Data), widen(v.Data)
		p0 := widen(p.Data)
		f(p.Data, m.Data, v.Data, g.Data, lr, beta1, beta2, eps, decay, 1, steps+1)
		state := &optim.State{M: append([]float64(nil), m0...), V: v0, Step: steps}
		ref := optim.Adam{LR: lr, Beta1: beta1, Beta2: beta2, Eps: eps, WeightDecay: decay}
		ref.Step(wantP, widen(g.Data), state)
		c1, c2 := 1-math.Pow(beta1, float64(steps+1)), 1-math.Pow(beta2, float64(steps+1))
		for i := range n {
			em := 4 * u32 * (beta1*math.Abs(m0[i]) + (1-beta1)*math.Abs(float64(g.Data[i])))
			den := math.Sqrt(state.V[i]/c2) + eps
			upd := math.Abs(state.M[i] / c1 / den)
			// Underflow takes eta of the clipped gradient and of each product: two such of m and of v. That of m, and of m/c₁, the denominator divides; that
			// of v moves the denominator by the root of it.
			t.Within("m", float64(m.Data[i]), state.M[i], em+2*eta32, i, 0)
			t.Within("v", float64(v.Data[i]), state.V[i], 6*u32*state.V[i]+2*eta32, i, 0)
			lost := lr*((2*eta32/c1+eta32+upd*math.Sqrt(3*eta32/c2))/den+eta32) + 2*eta32
			t.Within("p", float64(p.Data[i]), wantP[i], 4*u32*math.Abs(p0[i])+u32*math.Abs(wantP[i])+lr*(em/(c1*den)+12*u32*upd)+3*u32*lr*upd+lost, i, 0)
		}
	},
	Faults: []Fault[AdamWFunc]{
		{"adamw-l2", "the decay goes into the gradient", adamWWith(true, true)},
		{"adamw-bias", "the moments are not corrected for their start", adamWWith(false, false)},
	},
}

func adamWWith(l2, corrected bool) AdamWFunc {
	return func(p, m, v, g []float32, lr, beta1, beta2, eps, decay, clip float64, step int) {
		c1, c2 := 1-math.Pow(beta1, float64(step)), 1-math.Pow(beta2, float64(step))
		if !corrected {
			c1, c2 = 1, 1
		}
		for i := range p {
			x, w := float64(g[i])*clip, float64(p[i])
			if l2 {
				x += decay * w
			}
			mm, vv := beta1*float64(m[i])+(1-beta1)*x, beta2*float64(v[i])+(1-beta2)*x*x
			m[i], v[i] = float32(mm), float32(vv)
			if !l2 {
				w *= 1 - lr*decay
			}
			p[i] = float32(w - lr*(mm/c1)/(math.Sqrt(vv/c2)+eps))
		}
	}
}

// ProjectFunc replaces g [d] by g − Q(Qᵀg), q [d, k], and returns Σ g² before.
type ProjectFunc = func(g, q []float32, k int) float64

// Project is the projection of a gradient onto the complement of a basis, and the norm of the gradient.
var Project = &Spec[ProjectFunc]{
	Name:     "f32.Project",
	Doc:      "g − Q(Qᵀg), and Σ g²",
	Bound:    "u·|g| and (d + k)·2⁻⁵⁰·Σ_k|q·c| of sums in float64: products of float32 are exact there",
	Source:   "reference/linalg Project; shielded PPO",
	Families: mild,
	Dims: func(r *rand.Rand) []int {
		return []int{[]int{1, 37, 255, 1000, 4095, 4096, 4097, 9001}[r.IntN(8)], 1 + r.IntN(4)}
	},
	Run: func(f ProjectFunc, c Case, t *Trial) {
		d, k := c.Dims[0], c.Dims[1]
		norm, v := float32(1/math.Sqrt(float64(d))), value(c, 1)
		q := Input(t, d, k, k, func(i int) float32 { return norm * v(i) })
		g, v2 := Output[float32](t, d, 1, 1), value(c, 2)
		for i := range d {
			g.Data[i] = v2(i)
		}
		before, squares := widen(g.Data), 0.0
		got := f(g.Data, q.Data, k)
		qq := widen(q.Data)
		coefficients := make([]float64, k)
		for i, x := range before {
			squares += float64(x * x)
			for j := range k {
				coefficients[j] += math.Abs(qq[i*k+j] * x)
			}
		}
		want := linalg.Project(qq, k, append([]float64(nil), before...), 1, 1)
		t.Within("sum of squares", got, squares, float64(d+8)*u64*squares, 0, 0)
		for i := range d {
			bound := u32*math.Abs(want[i]) + eta32
			for j := range k {
				bound += 2 * u64 * float64(d+k+4) * math.Abs(qq[i*k+j]) * coefficients[j]
			}
			t.Within("g", float64(g.Data[i]), want[i], bound+float64(k+2)*u64*math.Abs(before[i]), i, 0)
		}
	},
	Faults: []Fault[ProjectFunc]{
		{"project-float32", "the coefficients are rounded to float32", projectWith(func(c float64) float64 { return float64(float32(c)) }, 0)},
		{"project-last", "the last row is left out of the coefficients", projectWith(func(c float64) float64 { return c }, 1)},
	},
}

func projectWith(round func(c float64) float64, skip int) ProjectFunc {
	return func(g, q []float32, k int) (squares float64) {
		c := make([]float64, k)
		for i, v := range g {
			squares += float64(v) * float64(v)
			if i >= len(g)-skip {
				continue
			}
			for j := range k {
				c[j] += float64(q[i*k+j]) * float64(v)
			}
		}
		for i := range g {
			s := float64(g[i])
			for j := range k {
				s -= float64(q[i*k+j]) * round(c[j])
			}
			g[i] = float32(s)
		}
		return squares
	}
}
