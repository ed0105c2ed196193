package fault

import (
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// gateForm is the soft gate of SAPO with its parts apart,
//
//	ℓ = −A·k·σ(z),   z = τ(ρ − 1),   k = 4/τ,   ρ = e to the d,   τ by the sign of A
//
// of which a program may have got one wrong (Gao et al. 2025, Eq. 6; TRL 1.16 _compute_loss and verl 0.9.1 compute_policy_loss_sapo).
type gateForm struct {
	title string
	z     func(d, tau float64) (z, slope float64)
	k     func(tau float64) float64
	gate  func(z float64) (g, slope float64)
	side  func(d, a float64) bool // where the temperature of positive advantages is taken
}

func gateForms() []gateForm {
	var list []gateForm
	with := func(title string, change func(*gateForm)) {
		f := gateForm{
			z:    func(d, tau float64) (float64, float64) { return tau * math.Expm1(d), tau * math.Exp(d) },
			k:    func(tau float64) float64 { return 4 / tau },
			gate: func(z float64) (float64, float64) { s := 1 / (1 + math.Exp(-z)); return s, s * (1 - s) },
			side: func(_, a float64) bool { return a > 0 },
		}
		f.title = title
		change(&f)
		list = append(list, f)
	}
	for _, z := range []struct {
		title string
		of    func(d, tau float64) (float64, float64)
	}{
		{"is of τ·ρ: the 1 is not subtracted", func(d, tau float64) (float64, float64) { return tau * math.Exp(d), tau * math.Exp(d) }},
		{"is of τ·log ρ: the log-ratio stands for ρ − 1", func(d, tau float64) (float64, float64) { return tau * d, tau }},
		{"is of (ρ − 1)/τ: divided by the temperature", func(d, tau float64) (float64, float64) { return math.Expm1(d) / tau, math.Exp(d) / tau }},
		{"is of ρ − 1, without the temperature", func(d, _ float64) (float64, float64) { return math.Expm1(d), math.Exp(d) }},
		{"is of τ(1 − ρ): the difference has the wrong sign", func(d, tau float64) (float64, float64) { return -tau * math.Expm1(d), -tau * math.Exp(d) }},
		{"is of τ·|ρ − 1|", func(d, tau float64) (float64, float64) {
			return tau * math.Abs(math.Expm1(d)), tau * math.Exp(d) * float64(compare(d, 0))
		}},
	} {
		with("the soft gate "+z.title, func(f *gateForm) { f.z = z.of })
	}
	for _, k := range []struct {
		title string
		of    func(tau float64) float64
	}{
		{"4·τ", func(tau float64) float64 { return 4 * tau }},
		{"2/τ", func(tau float64) float64 { return 2 / tau }},
		{"τ/4", func(tau float64) float64 { return tau / 4 }},
		{"2", func(float64) float64 { return 2 }},
	} {
		with("the soft gate has the factor "+k.title+" in place of 4/τ", func(f *gateForm) { f.k = k.of })
	}
	for _, g := range []struct {
		title string
		of    func(z float64) (float64, float64)
	}{
		{"tanh z", func(z float64) (float64, float64) { t := math.Tanh(z); return t, 1 - t*t }},
		{"tanh z/2", func(z float64) (float64, float64) { t := math.Tanh(z / 2); return t, (1 - t*t) / 2 }},
		{"z, without a sigmoid", func(z float64) (float64, float64) { return z, 1 }},
		{"log σ(z)", func(z float64) (float64, float64) { return -math.Log1p(math.Exp(-z)), 1 / (1 + math.Exp(z)) }},
		{"σ(−z)", func(z float64) (float64, float64) { s := 1 / (1 + math.Exp(z)); return s, -s * (1 - s) }},
		{"σ(z)·(1 − σ(z))", func(z float64) (float64, float64) {
			s := 1 / (1 + math.Exp(-z))
			return s * (1 - s), s * (1 - s) * (1 - 2*s)
		}},
	} {
		with("the soft gate is "+g.title+", of z = τ(ρ − 1), in place of σ(z)", func(f *gateForm) { f.gate = g.of })
	}
	with("the temperature of the soft gate is chosen by the ratio, tau_pos above 1, not by the advantage", func(f *gateForm) {
		f.side = func(d, _ float64) bool { return d > 0 }
	})
	return list
}

// formsLoss reports whether an output of a check is made of the losses of tokens, which a form may replace.
func formsLoss(o *stage.Outcome, kind string) bool {
	c := o.Case
	if !policyOutput(o) || c.Set.Value("loss.kind").String() != kind || weighsBesides(c) {
		return false
	}
	level := c.Set.Value("ratio.level")
	return c.B.Cols > 0 && c.B.Token("logp_new") != nil && c.B.Token("logp_old") != nil &&
		(kind == "gmpo" || level.Kind() != convention.Enum || level.Text() == "token")
}

// softEdits returns edits of the soft gate.
func softEdits(o *stage.Outcome) []edit {
	pos, neg := o.Case.Set.Value("sapo.tau_pos"), o.Case.Set.Value("sapo.tau_neg")
	if !formsLoss(o, "sapo") || pos.Kind() != convention.Number || neg.Kind() != convention.Number {
		return nil
	}
	var list []edit
	for _, f := range gateForms() {
		list = append(list, edit{id: "SAPO-FORM", title: f.title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			lp, old, adv := c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages").X
			if len(adv) != len(lp) {
				return nil
			}
			a, e := make([]float64, len(lp)), make([]float64, len(lp))
			for i := range c.B.Tokens() {
				d, tau := lp[i]-old[i], neg.Num()
				if f.side(d, adv[i]) {
					tau = pos.Num()
				}
				z, dz := f.z(d, tau)
				g, dg := f.gate(z)
				if a[i] = adv[i] * f.k(tau) * g; ch.Stage == convention.Gradient {
					a[i] = adv[i] * f.k(tau) * dg * dz
				}
				e[i] = 8 * c.Unit * (2 + math.Abs(z) + math.Abs(d)) * (math.Abs(a[i]) + math.Abs(adv[i]))
			}
			return ofLosses(c, ch, a, e)
		}})
	}
	return list
}

// geometricForm is the surrogate of GMPO with its parts apart,
//
//	ℓ = −Ā·exp(Σ c·m/n),   c = s·min(s·d, s·clip(d, −low, high)),   s = sign A
//
// of which a program may have got one wrong (Zhao et al. 2025, Eq. 4; verl 0.9.1 compute_policy_loss_geo_mean).
type geometricForm struct {
	id, title string
	c         func(d, s, low, high float64) (c, slope float64)
	over      func(n, cols float64) float64
	of        func(mean float64) (x, slope float64)
	whole     func(mean, s, low, high float64) (c, slope float64) // what is made of the mean before the exponential; nil: nothing
}

func geometricForms() []geometricForm {
	clip := func(d, low, high float64) (float64, float64) {
		if d <= -low || d >= high {
			return max(min(d, high), -low), 0
		}
		return d, 1
	}
	var list []geometricForm
	with := func(id, title string, change func(*geometricForm)) {
		f := geometricForm{id: id, title: title,
			c: func(d, s, low, high float64) (float64, float64) {
				k, dk := clip(d, low, high)
				if s == 0 {
					return 0, 0
				}
				if s*k < s*d {
					return k, dk
				}
				return d, 1
			},
			over: func(n, _ float64) float64 { return n },
			of:   func(m float64) (float64, float64) { return math.Exp(m), math.Exp(m) },
		}
		change(&f)
		list = append(list, f)
	}
	with("GMPO-FORM", "the log-ratio is held on both sides whatever the sign of the advantage: there is no minimum of it and the clipped one", func(f *geometricForm) {
		f.c = func(d, _, low, high float64) (float64, float64) { return clip(d, low, high) }
	})
	with("GMPO-FORM", "the sign of the advantage is left out of the minimum: negative advantages are clipped on the side of positive ones", func(f *geometricForm) {
		f.c = func(d, _, low, high float64) (float64, float64) {
			if k, dk := clip(d, low, high); k < d {
				return k, dk
			}
			return d, 1
		}
	})
	with("GMPO-FORM", "the larger of the log-ratio and the clipped one is taken, where the smaller one belongs", func(f *geometricForm) {
		f.c = func(d, s, low, high float64) (float64, float64) {
			if k, dk := clip(d, low, high); s*k > s*d {
				return k, dk
			}
			return d, 1
		}
	})
	with("GMPO-FORM", "the log-ratio is not multiplied back by the sign of the advantage: the ratio of negative ones is inverted", func(f *geometricForm) {
		right := f.c
		f.c = func(d, s, low, high float64) (float64, float64) {
			c, dc := right(d, s, low, high)
			return s * c, s * dc
		}
	})
	with("CLIP-LOG-RATIO", "the ratio is held within 1 − clip.low and 1 + clip.high before its logarithm is taken", func(f *geometricForm) {
		right := f.c
		f.c = func(d, s, low, high float64) (float64, float64) {
			if low >= 1 {
				low = math.Inf(1)
			}
			return right(d, s, -math.Log1p(-low), math.Log1p(high))
		}
	})
	for _, w := range []struct {
		words string
		c     func(d, s, low, high float64) (c, slope float64)
	}{
		{"on both sides, whatever the sign of the advantage", func(d, _, low, high float64) (float64, float64) { return clip(d, low, high) }},
		{"by the sign of the advantage", func(d, s, low, high float64) (float64, float64) {
			if k, dk := clip(d, low, high); s*k < s*d {
				return k, dk
			}
			return d, 1
		}},
		{"as a ratio within 1 − clip.low and 1 + clip.high, on both sides", func(d, _, low, high float64) (float64, float64) {
			return clip(d, -math.Log1p(-min(low, 1)), math.Log1p(high))
		}},
		{"as a ratio within 1 − clip.low and 1 + clip.high, by the sign of the advantage", func(d, s, low, high float64) (float64, float64) {
			if k, dk := clip(d, -math.Log1p(-min(low, 1)), math.Log1p(high)); s*k < s*d {
				return k, dk
			}
			return d, 1
		}},
	} {
		with("GMPO-FORM", "the mean of the log-ratios is clipped, not the log-ratios of the tokens: "+w.words, func(f *geometricForm) {
			f.c, f.whole = func(d, _, _, _ float64) (float64, float64) { return d, 1 }, w.c
		})
	}
	with("GMPO-FORM", "nothing is clipped", func(f *geometricForm) { f.c = func(d, _, _, _ float64) (float64, float64) { return d, 1 } })
	with("RATIO-MEAN-PADS", "the mean of the log-ratios divides by the padded width", func(f *geometricForm) { f.over = func(_, cols float64) float64 { return cols } })
	with("RATIO-SUM-FOR-MEAN", "the log-ratios of a row are added up, not averaged", func(f *geometricForm) { f.over = func(_, _ float64) float64 { return 1 } })
	with("GMPO-FORM", "the sum of the log-ratios is divided by one token more", func(f *geometricForm) { f.over = func(n, _ float64) float64 { return n + 1 } })
	with("GMPO-FORM", "the sum of the log-ratios is divided by the root of their number", func(f *geometricForm) { f.over = func(n, _ float64) float64 { return math.Sqrt(n) } })
	with("GMPO-FORM", "the mean of the log-ratios stands for the geometric mean: without the exponential", func(f *geometricForm) {
		f.of = func(m float64) (float64, float64) { return m, 1 }
	})
	with("GMPO-FORM", "1 plus the mean of the log-ratios stands for the geometric mean", func(f *geometricForm) {
		f.of = func(m float64) (float64, float64) { return 1 + m, 1 }
	})
	return list
}

// geometricEdits returns edits of the geometric mean. Every token of a row has the same share of its loss, so that the slope by a log-prob is n times
// that of the token's own.
func geometricEdits(o *stage.Outcome) []edit {
	if !formsLoss(o, "gmpo") || o.Case.Has("is_weights") {
		return nil
	}
	var list []edit
	for _, f := range geometricForms() {
		list = append(list, edit{id: f.id, title: f.title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			b := c.B
			lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), c.Optional("advantages").X
			if len(adv) != len(lp) {
				return nil
			}
			low, high := numberOr(c, "clip.low", math.Inf(1)), numberOr(c, "clip.high", math.Inf(1))
			a, e, slope := make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, len(lp))
			for r := range b.Rows {
				var n, sum, size, mean, most float64
				for i := range b.TokensOf(r) {
					d := lp[i] - old[i]
					x, dx := f.c(d, float64(compare(adv[i], 0)), low, high)
					slope[i] = dx
					n, sum, size = n+1, sum+x, size+math.Abs(d)
					mean, most = mean+adv[i], max(most, math.Abs(adv[i]))
				}
				if n == 0 {
					continue
				}
				over := f.over(n, float64(width(b, r)))
				exponent, inner := sum/over, 1.0
				if f.whole != nil {
					exponent, inner = f.whole(exponent, float64(compare(mean, 0)), low, high)
				}
				x, dx := f.of(exponent)
				dx *= inner
				for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
					if a[i] = mean / n * x; ch.Stage == convention.Gradient {
						a[i] = mean / n * dx * slope[i] * n / over
					}
					e[i] = 8 * c.Unit * (2 + size/over + size/n) * (math.Abs(a[i]) + most*(1+math.Abs(x)))
				}
			}
			return ofLosses(c, ch, a, e)
		}})
	}
	return list
}
