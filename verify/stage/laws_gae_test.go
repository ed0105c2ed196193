package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// gaeLaws are about the recursion.
var gaeLaws = []law{{
	name: "λ = 0: the TD error (B)", given: recursion + "gae.lambda=0 gae.lambda_policy=none", where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(false)
		return s.agrees(g, s.advantages(g), func(_ int, e episode) ([]float64, []float64) { return e.forward(s.gamma(), 0) })
	},
	faults: map[string]fault{"λ = 0.1": {options: "gae.lambda=0.1"}, "V of the next token": offByOne("values"), "a relative error": relative},
}, {
	name: "λ = 1: the discounted return less V (B)", given: recursion + "gae.lambda=1 gae.lambda_policy=none", where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(false)
		return s.agrees(g, s.advantages(g), func(_ int, e episode) (adv, err []float64) {
			n := len(e.r)
			adv, err = make([]float64, n), make([]float64, n)
			ret, size := e.end, math.Abs(e.end)
			for t := n - 1; t >= 0; t-- {
				ret, size = e.r[t]+s.gamma()*ret, math.Abs(e.r[t])+s.gamma()*size
				// The recursion adds and takes away every V on the way.
				adv[t], err[t] = ret-e.v[t], float64(2*n+4)*tol.U64*(size+math.Abs(e.v[t]))
			}
			return adv, err
		})
	},
	faults: map[string]fault{"λ = 0.99": {options: "gae.lambda=0.99"}, "γ = 0.5": {options: "gae.gamma=0.5"}, "a relative error": relative},
}, {
	name: "γ = 0: r − V (E)", given: recursion + "gae.gamma=0", where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		want := make([]float64, len(g.Mask))
		for i := range want {
			want[i] = g.Token("token_rewards")[i] - g.Token("values")[i]
		}
		return identical(g.Mask, s.advantages(g).Want, want)
	},
	faults: map[string]fault{"γ = 0.01": {options: "gae.gamma=0.01"}, "a relative error": relative},
}, {
	name: "forward view: Σ(γλ)^k·δ (B)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(false)
		return s.agrees(g, s.advantages(g), func(r int, e episode) ([]float64, []float64) {
			return e.forward(s.gamma(), s.lambda(lastToken(g.Batch, r)+1))
		})
	},
	faults: map[string]fault{"λ² for λ": {options: "gae.lambda=0.9025 gae.lambda_policy=none"}, "r of the next token": offByOne("token_rewards"),
		"V of the next token": offByOne("values"), "a relative error": relative},
}, {
	name: "scaling rewards and values by 2 (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		p := s.advantages(g)
		twice := grid{g.Batch}
		for _, name := range []string{"token_rewards", "values", "next_values"} {
			twice = replaced(twice, name, doubled(g.Tensors[name].Data))
		}
		return identical(g.Mask, s.advantages(twice).Want, doubled(p.Want))
	},
	faults: map[string]fault{"a reward clipped at 2": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("token_rewards", changedAt(b.Token("token_rewards"), func(i int) bool { return true }, func(i int) float64 { return min(b.Token("token_rewards")[i], 2) }))
	}}, "a constant": {after: func(_ *subject, _ *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] += 1e-8
		}
	}}},
}, {
	name: "additivity (B)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		a, b := s.rollout(true), grid{}
		b = grid{a.Batch}
		both := b
		for _, name := range []string{"token_rewards", "values", "next_values"} {
			x := a.Tensors[name].Data
			y := s.draw(len(x), s.dyadic)
			z := make([]float64, len(x))
			for i := range z {
				z[i] = x[i] + y[i]
			}
			b, both = replaced(b, name, y), replaced(both, name, z)
		}
		p, q, r := s.advantages(a), s.advantages(b), s.advantages(both)
		want := make([]float64, len(p.Want))
		for i := range want {
			want[i] = p.Want[i] + q.Want[i]
		}
		return near(a.Mask, r.Want, want, func(i int) float64 {
			return p.Bound[i] + q.Bound[i] + r.Bound[i] + tol.U64*math.Abs(want[i])
		})
	},
	faults: map[string]fault{"the absolute value of r": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("token_rewards", changedAt(b.Token("token_rewards"), func(i int) bool { return true }, func(i int) float64 { return math.Abs(b.Token("token_rewards")[i]) }))
	}}, "a relative error": relative},
}, {
	name: "c added to every V: A − c·[(1−γ)·Σ(γλ)^k, and (γλ)^n at the end] (B)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(false)
		c := float64(1 + s.r.IntN(4))
		shift := func(x []float64) []float64 {
			return changedAt(x, func(int) bool { return true }, func(i int) float64 { return x[i] + c })
		}
		moved := replaced(replaced(g, "values", shift(g.Token("values"))), "next_values", shift(g.Row("next_values")))
		p, q := s.advantages(g), s.advantages(moved)
		return s.agrees(g, q, func(r int, e episode) (adv, err []float64) {
			n := 0
			for _, live := range e.live {
				if live {
					n++
				}
			}
			tokens := lastToken(g.Batch, r) + 1
			gl := s.gamma() * s.lambda(tokens)
			for t := range tokens {
				var sum float64
				w := 1.0
				for range n - 1 - t {
					sum += (1 - s.gamma()) * w
					w *= gl
				}
				if e.boot {
					w *= 1 - s.gamma()
				}
				i := r*g.Cols + t
				adv = append(adv, p.Want[i]-c*(sum+w))
				err = append(err, p.Bound[i]+float64(2*n+6)*tol.U64*(c*(sum+w)+math.Abs(p.Want[i])))
			}
			return adv, err
		})
	},
	faults: map[string]fault{"a relative error": relative, "V clipped": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("values", changedAt(b.Token("values"), func(int) bool { return true }, func(i int) float64 { return min(b.Token("values")[i], 3) }))
	}}},
}, {
	name: "a potential Φ in rewards and values leaves A (B)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(false)
		reward, value, end := slices.Clone(g.Token("token_rewards")), slices.Clone(g.Token("values")), slices.Clone(g.Row("next_values"))
		for r := range g.Rows {
			e := s.episode(g.Batch, r)
			phi := make([]float64, len(e.r)+1) // 0 where no value is live: nothing could take it away again
			for t := range e.r {
				if e.live[t] {
					phi[t] = s.dyadic()
				}
			}
			if e.boot {
				phi[len(e.r)] = s.dyadic()
				end[r] -= phi[len(e.r)]
			}
			for t := range e.r {
				i := r*g.Cols + t
				reward[i] += s.gamma()*phi[t+1] - phi[t]
				value[i] -= phi[t]
			}
		}
		shaped := replaced(replaced(replaced(g, "token_rewards", reward), "values", value), "next_values", end)
		p, q := s.advantages(g), s.advantages(shaped)
		return s.agrees(g, q, func(r int, e episode) (adv, err []float64) {
			tokens := lastToken(g.Batch, r) + 1
			gl := s.gamma() * s.lambda(tokens)
			size := make([]float64, len(e.r)+1) // of the rounding of γΦ and of two sums in a reward: at most 8 each
			for t := len(e.r) - 1; t >= 0; t-- {
				size[t] = 3*16*tol.U64 + gl*size[t+1]
			}
			for t := range tokens {
				i := r*g.Cols + t
				adv, err = append(adv, p.Want[i]), append(err, p.Bound[i]+size[t])
			}
			return adv, err
		})
	},
	faults: map[string]fault{"V² for V": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("values", changedAt(b.Token("values"), func(int) bool { return true }, func(i int) float64 { return b.Token("values")[i] * b.Token("values")[i] }))
	}}, "another γ": {before: func(_ *subject, b *dump.Batch) *dump.Batch { // δ with γ − 10⁻⁶
		return b.With("token_rewards", changedAt(b.Token("token_rewards"), func(i int) bool { return (i+1)%b.Cols != 0 && b.Mask[i+1] }, func(i int) float64 { return b.Token("token_rewards")[i] - 1e-6*b.Token("values")[i+1] }))
	}}, "a relative error": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] += 1e-9 * b.Token("values")[i]
		}
	}}},
}, {
	name: "done isolates: nothing after it changes what is before (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		t := s.r.IntN(g.Cols)
		done := make([]float64, len(g.Mask))
		before := make([]bool, len(g.Mask))
		for i := range done {
			if before[i] = i%g.Cols <= t && g.Mask[i]; i%g.Cols == t {
				done[i] = 1
			}
		}
		g.token("dones", done...)
		other := grid{g.Batch}
		for _, name := range []string{"token_rewards", "values"} {
			x := g.Token(name)
			other = replaced(other, name, changedAt(x, func(i int) bool { return i%g.Cols > t }, func(int) float64 { return 100 * s.dyadic() }))
		}
		return identical(before, s.advantages(other).Want, s.advantages(g).Want)
	},
	faults: map[string]fault{"done ignored": {before: func(_ *subject, b *dump.Batch) *dump.Batch { return b.Without("dones") }},
		"done a token late": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
			d := make([]float64, len(b.Mask))
			for i, x := range b.Token("dones") {
				if x != 0 && (i+1)%b.Cols != 0 {
					d[i+1] = 1
				}
			}
			return b.With("dones", d)
		}}, "the last column leaks": leaks("values", fromLast)},
}, {
	name: "suffix: A from t₀ on depends on what is from t₀ on (E)", given: scoring, open: "kl.place=token_reward", where: usesGAE,
	holds: func(s *subject) string {
		s = s.with("gae.lambda_policy=none") // vapo's λ is a function of the whole row
		g := s.scored(true)
		t := s.r.IntN(g.Cols)
		from := make([]bool, len(g.Mask))
		other := grid{g.Batch}
		for _, name := range []string{"token_rewards", "kl", "values"} {
			if x := g.Token(name); x != nil {
				other = replaced(other, name, changedAt(x, func(i int) bool { return i%g.Cols < t }, func(int) float64 { return 100 * s.dyadic() }))
			}
		}
		mask := slices.Clone(g.Mask)
		for i := range mask {
			if from[i] = g.Mask[i] && i%g.Cols >= t; i%g.Cols < t {
				mask[i] = s.r.IntN(2) == 0
			}
		}
		other = grid{other.WithMask(mask)}
		return identical(from, s.advantages(other).Want, s.advantages(g).Want)
	},
	faults: map[string]fault{"the first column leaks": leaks("values", fromFirst), "normalised by the length": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for r := range b.Rows {
			n := 0.0
			for _, m := range b.Mask[r*b.Cols : (r+1)*b.Cols] {
				if m {
					n++
				}
			}
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				p.Want[i] /= n
			}
		}
	}}},
}, {
	name: "zero rewards and values give 0 (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		zero := make([]float64, len(g.Mask))
		g = replaced(replaced(replaced(g, "token_rewards", zero), "values", zero), "next_values", zero[:g.Rows])
		return identical(nil, s.advantages(g).Want, zero)
	},
	faults: map[string]fault{"a constant": {after: func(_ *subject, _ *dump.Batch, p *Prediction) { p.Want[0] += 1e-300 }}},
}, {
	name: "returns are A + V (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		want := slices.Clone(s.advantages(g).Want)
		for i, v := range g.Token("values") {
			want[i] += v
		}
		return identical(g.Mask, s.predict("gae/returns", g.Batch).Want, want)
	},
	faults: map[string]fault{"advantages for returns": {swap: func(_ *subject, id string) func(*Case) *Prediction { return Find("gae/advantage").Predict }},
		"V of the next token": {swap: func(_ *subject, id string) func(*Case) *Prediction {
			if id != "gae/returns" {
				return nil
			}
			return func(c *Case) *Prediction {
				p := *Find(id).Predict(c)
				p.Want = slices.Clone(p.Want)
				for i := range p.Want[1:] {
					p.Want[i] += c.B.Token("values")[i+1] - c.B.Token("values")[i]
				}
				return &p
			}
		}}, "the next row": {before: func(_ *subject, b *dump.Batch) *dump.Batch { return b.With("values", doubled(b.Token("values"))) }}},
}, {
	name: "monotone in every reward (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		p := s.advantages(g)
		k := s.r.IntN(len(g.Mask))
		more := changedAt(g.Token("token_rewards"), func(i int) bool { return i == k }, func(i int) float64 { return g.Token("token_rewards")[i] + 1 })
		q := s.advantages(replaced(g, "token_rewards", more))
		for i, a := range q.Want {
			if g.Mask[i] && !(a >= p.Want[i]) || g.Mask[i] && i == k && !(a > p.Want[i]) {
				return at(g.Batch, i) + ": a larger reward lowers the advantage, or leaves that of its token"
			}
		}
		return ""
	},
	faults: map[string]fault{"−r": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		r := slices.Clone(b.Token("token_rewards"))
		for i := range r {
			r[i] = -r[i]
		}
		return b.With("token_rewards", r)
	}}, "r of the next token": offByOne("token_rewards")},
}, {
	name: "truncation and termination differ (X)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(false)
		for i := range g.Rows {
			g.Tensors["next_values"].Data[i] += 10
		}
		open := s.advantages(g)
		done := make([]float64, len(g.Mask))
		for r := range g.Rows {
			done[r*g.Cols+lastToken(g.Batch, r)] = 1
		}
		ended := s.advantages(replaced(g, "dones", done))
		other := changedAt(g.Row("next_values"), func(int) bool { return true }, func(int) float64 { return s.dyadic() })
		if broken := identical(g.Mask, s.advantages(replaced(replaced(g, "dones", done), "next_values", other)).Want, ended.Want); broken != "" {
			return "what follows a terminal token matters: " + broken
		}
		for r := range g.Rows {
			i := r*g.Cols + lastToken(g.Batch, r)
			if s.gamma() > 0 && open.Want[i] == ended.Want[i] {
				return at(g.Batch, i) + ": the value after a truncated response does not count"
			}
		}
		return ""
	},
	faults: map[string]fault{"done ignored": {before: func(_ *subject, b *dump.Batch) *dump.Batch { return b.Without("dones") }},
		"no bootstrap": {options: "gae.truncated_bootstrap=none"}},
}}

func doubled(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = 2 * v
	}
	return y
}

// onTokens returns the elements of x at true cells.
func onTokens(mask []bool, x []float64) []float64 {
	y := make([]float64, 0, len(mask))
	for i, m := range mask {
		if m {
			y = append(y, x[i])
		}
	}
	return y
}

// permuted returns the rows of x in that order.
func permuted(x []float64, order []int, cols int) []float64 {
	var y []float64
	for _, r := range order {
		y = append(y, x[r*cols:(r+1)*cols]...)
	}
	return y
}
