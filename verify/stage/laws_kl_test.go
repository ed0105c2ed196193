package stage

import (
	"math"
	"slices"
	"testing"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// estimates reports whether a profile has a KL estimate per token.
func estimates(set *convention.Set) bool {
	v := set.Value("kl.kind")
	return v.Kind() != convention.NotApplicable && v.String() != "seq_prob"
}

// inLoss reports whether it is a term of the loss.
func inLoss(set *convention.Set) bool { return estimates(set) && has("kl.place", "loss")(set) }

func (s *subject) estimate(g grid) *Prediction { return s.predict("kl/token", g.Batch) }

// vocabulary is a policy π, the reference and a policy that samples, over some tokens.
type vocabulary struct {
	p, q, b    []float64 // probabilities
	lp, lq, lb []float64 // and their logarithms
	slack      float64   // what the rounding of the logarithms and the sum over the tokens may do to an expectation of numbers near 1
}

// distribution returns the logarithms of a distribution whose ratios to others like it are at most e².
func (s *subject) distribution(n int) []float64 {
	z := s.draw(n, func() float64 { return math.Tanh(s.r.NormFloat64()) / 2 })
	var sum float64
	for _, x := range z {
		sum += math.Exp(x)
	}
	for i := range z {
		z[i] -= math.Log(sum)
	}
	return z
}

func newVocabulary(lp, lq, lb []float64) (v vocabulary) {
	v.lp, v.lq, v.lb = lp, lq, lb
	for i := range lp {
		v.p, v.q, v.b = append(v.p, math.Exp(lp[i])), append(v.q, math.Exp(lq[i])), append(v.b, math.Exp(lb[i]))
		// Of a logarithm u·|ln p|, of an exponential and of a product a few u; all numbers are at most e² < 8.
		v.slack += 8 * (v.p[i] + v.q[i] + v.b[i]) * (math.Abs(lp[i]) + math.Abs(lq[i]) + math.Abs(lb[i]) + 8) * tol.U64
	}
	v.slack += 8 * float64(len(lp)) * tol.U64
	return v
}

func (s *subject) vocabulary() vocabulary {
	n := 2 + s.r.IntN(15)
	if s.r.IntN(8) == 0 {
		n = 64
	}
	return newVocabulary(s.distribution(n), s.distribution(n), s.distribution(n))
}

// batch holds every token once, sampled by old.
func (v vocabulary) batch(s *subject, old []float64) grid {
	c := *s
	c.rows, c.cols = 1, len(v.lp)
	g := c.grid(false)
	for i := range g.Mask {
		g.Mask[i] = true
	}
	return g.token("logp_new", v.lp...).token("logp_old", old...).token("logp_ref", v.lq...).token("advantages", make([]float64, len(v.lp))...)
}

// divergence returns KL(π‖ref) and its gradient with respect to the logits of π, p·(ln p/q − KL).
func (v vocabulary) divergence() (kl float64, grad []float64) {
	for i, p := range v.p {
		kl += p * (v.lp[i] - v.lq[i])
	}
	for i, p := range v.p {
		grad = append(grad, p*(v.lp[i]-v.lq[i]-kl))
	}
	return kl, grad
}

// expectation returns Σ w·x and the bound of its error.
func (v vocabulary) expectation(w, x, bound []float64) (sum, err float64) {
	for i := range w {
		sum += w[i] * x[i]
		err += w[i] * bound[i]
	}
	return sum, 2*err + v.slack
}

// pushed returns Σ w_i·g_i·∇ln p_i with respect to the logits, w_j·g_j − p_j·Σ w·g.
func (v vocabulary) pushed(w, g []float64) []float64 {
	var sum float64
	for i := range g {
		sum += w[i] * g[i]
	}
	grad := make([]float64, len(g))
	for j := range g {
		grad[j] = w[j]*g[j] - v.p[j]*sum
	}
	return grad
}

// slope returns the derivative of the KL term with respect to the log-prob of every token, and its bound.
func (s *subject) slope(g grid) (slope, bound []float64) {
	p := s.predict("gradient/dlogp", g.Batch)
	for i, d := range p.Want {
		w := p.Terms(i)[0].Value * s.num("kl.beta", math.NaN())
		slope, bound = append(slope, d/w), append(bound, p.Bound[i]/math.Abs(w))
	}
	return slope, bound
}

func largestOf(x []float64) float64 { return slices.Max(append([]float64{0}, x...)) }

// klAlone are options under which the KL term is in the loss.
const klAlone = "kl.place=loss kl.beta=0.5 kl.adaptive=none "

// openGradient are options of a loss that a profile with its KL in the reward does not say.
const openGradient = "kl.grad=naive kl.is_cap=none "

var klLaws = []law{{
	name: "k2 and k3 are not negative (E)", open: "kl.place=loss", where: estimates,
	holds: func(s *subject) string {
		g := s.grid(true)
		n := len(g.Mask)
		scale := math.Ldexp(1, s.r.IntN(40)-36) // from 10⁻¹¹, where e^x − 1 − x would cancel
		old := s.draw(n, func() float64 { return -s.r.ExpFloat64() })
		near := func() []float64 {
			return changedAt(old, func(int) bool { return true }, func(i int) float64 { return old[i] + scale*s.r.NormFloat64() })
		}
		g.token("logp_new", near()...).token("logp_old", near()...).token("logp_ref", old...)
		for _, kind := range []string{"k2", "k3"} {
			for i, k := range s.with("kl.kind=" + kind).estimate(g).Want {
				if !(k >= 0) {
					return kind + ": " + at(g.Batch, i)
				}
			}
		}
		return ""
	},
	faults: map[string]fault{"k1": {swap: func(_ *subject, _ string) func(*Case) *Prediction {
		return func(c *Case) *Prediction {
			return Find("kl/token").Predict(NewCase(c.B, with(c.Set, "kl.kind=k1"), c.Unit))
		}
	}}, "the exponential less 1": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			x := b.Token("logp_ref")[i] - b.Token("logp_new")[i]
			p.Want[i] = math.Exp(x) - 1 - x
		}
	}}},
}, {
	name: "all are 0 where the policies are equal (E)", open: "kl.place=loss", where: estimates,
	holds: func(s *subject) string {
		g := s.grid(true)
		lp := s.draw(len(g.Mask), func() float64 { return -4 * s.r.ExpFloat64() })
		g.token("logp_new", lp...).token("logp_old", lp...).token("logp_ref", lp...)
		for _, kind := range []string{"k1", "k2", "k3", "abs", "ratio_d"} {
			if broken := identical(nil, s.with("kl.kind="+kind).estimate(g).Want, make([]float64, len(lp))); broken != "" {
				return kind + ": " + broken
			}
		}
		return ""
	},
	faults: map[string]fault{"without −1": {after: func(_ *subject, _ *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i]++
		}
	}}},
}, {
	name: "the gradient of k3 is 0 where the policies are equal (E)", given: klAlone + "kl.kind=k3", open: openGradient, where: estimates,
	holds: func(s *subject) string {
		g := s.grid(true)
		n := len(g.Mask)
		lp := s.draw(n, func() float64 { return -4 * s.r.ExpFloat64() })
		old := changedAt(lp, func(int) bool { return true }, func(i int) float64 { return lp[i] + s.r.NormFloat64()/4 })
		g.token("logp_new", lp...).token("logp_old", old...).token("logp_ref", lp...).token("advantages", make([]float64, n)...)
		return identical(nil, s.predict("gradient/dlogp", g.Batch).Want, make([]float64, n))
	},
	faults: map[string]fault{"k1": {options: "kl.kind=k1"}},
}, {
	name: "E k1 = E k3 = KL(π‖ref) (N)", open: "kl.place=loss", where: estimates,
	holds: func(s *subject) string {
		v := s.vocabulary()
		g := v.batch(s, v.lp)
		want, _ := v.divergence()
		for _, kind := range []string{"k1", "k3"} {
			p := s.with("kl.kind=" + kind).estimate(g)
			got, bound := v.expectation(v.p, p.Want, p.Bound)
			if broken := near(nil, []float64{got}, []float64{want}, func(int) float64 { return bound }); broken != "" {
				return kind + ": " + broken
			}
		}
		return ""
	},
	faults: map[string]fault{"the sign of d": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("logp_ref", b.Token("logp_new")).With("logp_new", b.Token("logp_ref")).With("logp_old", b.Token("logp_ref"))
	}}, "without + d": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] -= b.Token("logp_new")[i] - b.Token("logp_ref")[i]
		}
	}}, "a relative error": relative},
}, {
	name: "E k2 is another number than KL(π‖ref) (X)", open: "kl.place=loss", where: estimates,
	holds: func(s *subject) string {
		logs := func(x ...float64) []float64 {
			for i := range x {
				x[i] = math.Log(x[i])
			}
			return x
		}
		v := newVocabulary(logs(.4, .3, .2, .1), logs(.1, .2, .3, .4), logs(.25, .25, .25, .25))
		p := s.with("kl.kind=k2").estimate(v.batch(s, v.lp))
		got, _ := v.expectation(v.p, p.Want, p.Bound)
		kl, _ := v.divergence()
		if !(math.Abs(got-0.5215535023914927) <= 1e-15) || !(math.Abs(kl-0.4564348191467835) <= 1e-15) {
			return "E k2 and KL are not 0.52155 and 0.45643"
		}
		return ""
	},
	faults: map[string]fault{"d² for ½d²": {after: func(_ *subject, _ *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] *= 2
		}
	}}},
}, {
	name: "gradients of the estimators as a loss (N)", given: klAlone, open: openGradient, where: func(set *convention.Set) bool {
		return estimates(set) && has("ratio.level", "token")(set) || inLoss(set)
	},
	holds: func(s *subject) string {
		v := s.vocabulary()
		g := v.batch(s, v.lp)
		_, forwards := v.divergence()
		backwards, none := make([]float64, len(v.p)), make([]float64, len(v.p))
		for i := range backwards {
			backwards[i] = v.p[i] - v.q[i]
		}
		check := func(s *subject, want []float64) string {
			slope, bound := s.slope(g)
			return near(nil, v.pushed(v.p, slope), want, func(int) float64 { return 4*largestOf(bound) + v.slack })
		}
		for _, c := range []struct {
			kind, grad string
			want       []float64
		}{
			{"k1", "naive", none}, {"k2", "naive", forwards}, {"k3", "naive", backwards},
			{"k1", "score_function", forwards}, {"k3", "score_function", forwards},
			{"k1", "is_corrected", forwards}, {"k3", "is_corrected", forwards},
			{"k1", "straight_through_k2", forwards}, {"k2", "straight_through_k2", forwards}, {"k3", "straight_through_k2", forwards},
		} {
			if broken := check(s.with("kl.kind="+c.kind+" kl.grad="+c.grad), c.want); broken != "" {
				return c.kind + " " + c.grad + ": " + broken
			}
		}
		return ""
	},
	faults: map[string]fault{"kl.grad naive": {options: "kl.grad=naive"}, "kl.grad is_corrected": {options: "kl.grad=is_corrected"},
		"kl.kind k3": {options: "kl.kind=k3"}, "the other direction": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
			return b.With("logp_ref", b.Token("logp_new")).With("logp_new", b.Token("logp_ref")).With("logp_old", b.Token("logp_ref"))
		}}},
}, {
	name: "E k1·∇ln π = ∇KL(π‖ref), as a reward has it (N)", given: "kl.kind=k1", open: "kl.place=loss", where: estimates,
	holds: func(s *subject) string {
		v := s.vocabulary()
		p := s.estimate(v.batch(s, v.lp))
		_, want := v.divergence()
		return near(nil, v.pushed(v.p, p.Want), want, func(int) float64 { return 4*largestOf(p.Bound) + v.slack })
	},
	faults: map[string]fault{"kl.kind k2": {options: "kl.kind=k2"}, "kl.kind k3": {options: "kl.kind=k3"}},
}, {
	name: "the weight π/π_old restores the expectation under π_old (N)", given: klAlone + "kl.grad=is_corrected ratio.level=token ratio.old=stored", where: estimates,
	holds: func(s *subject) string {
		v := s.vocabulary()
		g := v.batch(s, v.lb)
		kl, grad := v.divergence()
		for _, kind := range []string{"k1", "k3"} {
			s := s.with("kl.kind=" + kind)
			p := s.estimate(g)
			got, bound := v.expectation(v.b, p.Want, p.Bound)
			if broken := near(nil, []float64{got}, []float64{kl}, func(int) float64 { return bound }); broken != "" {
				return kind + ": " + broken
			}
			slope, e := s.slope(g)
			if broken := near(nil, v.pushed(v.b, slope), grad, func(int) float64 { return 4*largestOf(e) + 8*v.slack }); broken != "" {
				return kind + ", gradient: " + broken
			}
		}
		return ""
	},
	faults: map[string]fault{"kl.grad naive": {options: "kl.grad=naive"}, "ratio.old stopgrad_new": {options: "ratio.old=stopgrad_new", before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("logp_old", b.Token("logp_new"))
	}}},
}, {
	name: "chain rule: KL of two tokens is the sum (N)", open: "kl.place=loss", where: estimates,
	holds: func(s *subject) string {
		n := 2 + s.r.IntN(4)
		first := newVocabulary(s.distribution(n), s.distribution(n), s.distribution(n))
		want, _ := first.divergence()
		var lp, ref, p []float64
		slack := first.slack
		for i := range n { // the second token, after the first was i
			next := newVocabulary(s.distribution(n), s.distribution(n), s.distribution(n))
			kl, _ := next.divergence()
			want += first.p[i] * kl
			slack += 2 * first.p[i] * next.slack
			for j := range n {
				lp, ref = append(lp, first.lp[i], next.lp[j]), append(ref, first.lq[i], next.lq[j])
				p = append(p, first.p[i]*next.p[j])
			}
		}
		c := *s
		c.rows, c.cols = n*n, 2
		g := c.grid(false)
		for i := range g.Mask {
			g.Mask[i] = true
		}
		g.token("logp_new", lp...).token("logp_old", lp...).token("logp_ref", ref...).row("kl", make([]float64, n*n)...)
		for _, kind := range []string{"k1", "k3"} {
			k := s.with("kl.kind=" + kind).estimate(g)
			var got, bound float64
			for i := range p {
				got += p[i] * k.Want[i]
				bound += p[i] * k.Bound[i]
			}
			if broken := near(nil, []float64{got}, []float64{want}, func(int) float64 { return 2*bound + 4*slack }); broken != "" {
				return kind + ": " + broken
			}
		}
		return ""
	},
	faults: map[string]fault{"a mean over the row": {after: func(_ *subject, _ *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] /= 2
		}
	}}, "the first token alone": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		mask := slices.Clone(b.Mask)
		for i := range mask {
			mask[i] = i%2 == 0
		}
		return b.WithMask(mask)
	}}},
}, {
	name: "a token without advantage keeps its KL term (E)", given: "kl.beta=0.5 kl.adaptive=none", open: openGradient, where: inLoss,
	holds: func(s *subject) string {
		v := s.vocabulary()
		g := v.batch(s, v.lb)
		want := slices.Clone(s.estimate(g).Want)
		for i := range want {
			want[i] *= 0.5
		}
		if broken := identical(g.Mask, s.predict("token_loss/policy", g.Batch).Want, want); broken != "" {
			return broken
		}
		slope, _ := s.slope(g)
		for i, d := range slope {
			if d == 0 {
				return at(g.Batch, i) + ": no gradient"
			}
		}
		return ""
	},
	faults: map[string]fault{"dropped with the group": {swap: func(_ *subject, id string) func(*Case) *Prediction {
		if id == "kl/token" {
			return nil
		}
		return func(c *Case) *Prediction {
			return Find(id).Predict(NewCase(c.B, with(c.Set, "kl.place=none"), c.Unit))
		}
	}}},
}}

var klSkips = skips{}

func TestKLLaws(t *testing.T) { testLaws(t, klLaws, klSkips) }
