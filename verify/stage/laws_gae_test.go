package stage

import (
	"math"
	"slices"
	"testing"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Laws of the recursion are stated for advantages that are not whitened, from rewards that are not.
const recursion = "whiten.scope=none rewards.whiten=no "

// rollout draws token rewards and values.
func (s *subject) rollout(holes bool) grid {
	g := s.grid(holes)
	n := len(g.Mask)
	reward, value := s.draw(n, s.dyadic), s.draw(n, s.dyadic)
	if s.r.IntN(2) == 0 { // a score, and a critic that is nearly right
		for i := range reward {
			reward[i] = math.Floor(reward[i] / 4)
			value[i] /= 64
		}
	}
	g.token("token_rewards", reward...).token("values", value...)
	return g.row("next_values", s.draw(g.Rows, s.dyadic)...)
}

// scored draws scores, KL and values, of which token rewards are made; those of a profile that has none are drawn.
func (s *subject) scored(holes bool) grid {
	g := s.rollout(holes)
	if !s.set.Value("score.index").Known() {
		return g
	}
	delete(g.Tensors, "token_rewards")
	return g.row("scores", s.draw(g.Rows, s.dyadic)...).token("kl", s.draw(len(g.Mask), s.dyadic)...)
}

// scoring are the options of token rewards that these laws do not depend on.
const scoring = recursion + "eos.rule=none reward.clip=none "

func (s *subject) advantages(g grid) *Prediction { return s.predict("gae/advantage", g.Batch) }

// episode is what the recursion sees of a row without holes: rewards and values as far as they flow into its tokens, which
// cells hold a live value, and the value after the last.
type episode struct {
	r, v []float64
	live []bool
	end  float64
	boot bool
}

func (s *subject) episode(b *dump.Batch, row int) (e episode) {
	last := lastToken(b, row)
	n := last + 1
	none := s.text("gae.hole", "") == "none"
	e.boot = s.text("gae.truncated_bootstrap", "none") == "value"
	if none && !e.boot {
		n = b.Cols
	}
	for t := range n {
		i := row*b.Cols + t
		live := t <= last || none && t == last+1 && s.text("gae.value_mask", "response") == "p1"
		v := 0.0
		if live {
			v = b.Token("values")[i]
		}
		e.r, e.v, e.live = append(e.r, b.Token("token_rewards")[i]), append(e.v, v), append(e.live, live)
	}
	if e.boot {
		e.end = b.Row("next_values")[row]
	}
	return e
}

// forward is the estimate as a sum, A_t = Σ_k (γλ)^k·δ_{t+k}, with a bound of its error: k + 4 roundings of each term, and
// those of the sum.
func (e episode) forward(gamma, lambda float64) (adv, err []float64) {
	n := len(e.r)
	for t := range n {
		var sum, size float64
		w := 1.0
		for k := t; k < n; k++ {
			next := e.end
			if k+1 < n {
				next = e.v[k+1]
			}
			sum += w * (e.r[k] + gamma*next - e.v[k])
			size += w * (math.Abs(e.r[k]) + math.Abs(gamma*next) + math.Abs(e.v[k]))
			w *= gamma * lambda
		}
		adv, err = append(adv, sum), append(err, float64(2*n+6)*tol.U64*size)
	}
	return adv, err
}

// agrees compares the advantages of the tokens of rows without holes with what of returns for each row.
func (s *subject) agrees(g grid, p *Prediction, of func(row int, e episode) (adv, err []float64)) string {
	want, bound := make([]float64, len(g.Mask)), make([]float64, len(g.Mask))
	for r := range g.Rows {
		adv, err := of(r, s.episode(g.Batch, r))
		for t := range lastToken(g.Batch, r) + 1 {
			want[r*g.Cols+t], bound[r*g.Cols+t] = adv[t], err[t]
		}
	}
	return near(g.Mask, p.Want, want, func(i int) float64 { return p.Bound[i] + bound[i] })
}

func (s *subject) gamma() float64 { return s.num("gae.gamma", math.NaN()) }

// lambda returns λ of a row.
func (s *subject) lambda(tokens int) float64 {
	if s.text("gae.lambda_policy", "none") == "vapo" {
		return 1 - 1/(2*float64(tokens)) // the fact vapo_alpha is 2
	}
	return s.num("gae.lambda", math.NaN())
}

func usesGAE(set *convention.Set) bool { return has("adv.kind", "gae")(set) }

// offByOne moves rewards, values or dones by a column.
func offByOne(name string) fault {
	return fault{before: func(_ *subject, b *dump.Batch) *dump.Batch {
		x := b.Token(name)
		if x == nil {
			return b
		}
		y := slices.Clone(x)
		for i := range y {
			if (i+1)%b.Cols != 0 {
				y[i] = x[i+1]
			}
		}
		return b.With(name, y)
	}}
}

// relative is an error of one part in 10⁹ in the first token.
var relative = fault{after: func(_ *subject, b *dump.Batch, p *Prediction) {
	for i := range p.Want {
		if len(p.Want) != len(b.Mask) || b.Mask[i] {
			p.Want[i] = p.Want[i]*(1+1e-9) + 1e-9
			return
		}
	}
}}

// leaks adds what the batch holds in a cell to all of its row.
func leaks(name string, from func(b *dump.Batch, r int) int) fault {
	return fault{after: func(_ *subject, b *dump.Batch, p *Prediction) {
		x := b.Token(name)
		for i := range p.Want {
			if k := from(b, i/b.Cols); x != nil && k >= 0 {
				p.Want[i] += 1e-3 * x[i/b.Cols*b.Cols+k]
			}
		}
	}}
}

var fromLast = func(b *dump.Batch, _ int) int { return b.Cols - 1 }
var fromFirst = func(*dump.Batch, int) int { return 0 }

// afterRow adds the sum of a row's tensor to the next row's prediction.
var rowFollowsRow = fault{after: func(_ *subject, b *dump.Batch, p *Prediction) {
	for i := b.Cols; i < len(p.Want); i++ {
		p.Want[i] += 1e-3 * b.Token("values")[i-b.Cols]
	}
}}

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
	name: "appended masked columns leave A (E)", given: scoring, open: "kl.place=token_reward", where: usesGAE,
	holds: func(s *subject) string {
		g := s.scored(true)
		wide := widened(g, 1+s.r.IntN(3), s.junk)
		p, q := s.advantages(g), s.advantages(wide)
		return identical(nil, onTokens(wide.Mask, q.Want), onTokens(g.Mask, p.Want))
	},
	faults: map[string]fault{"the last column leaks": leaks("values", fromLast), "a mean over columns": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] /= float64(b.Cols)
		}
	}}},
}, {
	name: "what padding holds does not matter (E)", given: scoring, open: "kl.place=token_reward", where: usesGAE,
	holds: func(s *subject) string {
		g := s.scored(true)
		after := 0 // TRL takes the value of one token more
		if s.text("gae.hole", "") == "none" {
			after = 1
		}
		return s.dirtied(g, func(i int) bool { return i%g.Cols > lastToken(g.Batch, i/g.Cols)+after })
	},
	faults: map[string]fault{"the last column leaks": leaks("values", fromLast), "a mask of ones": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.WithMask(slices.Repeat([]bool{true}, len(b.Mask)))
	}}},
}, {
	name: "what masked cells hold does not matter (E)", given: scoring, open: "kl.place=token_reward", where: usesGAE,
	holds: func(s *subject) string {
		g := s.scored(true)
		return s.dirtied(g, func(i int) bool { return !g.Mask[i] })
	},
	faults: map[string]fault{"the last column leaks": leaks("values", fromLast), "gae.hole none": {options: "gae.hole=none gae.value_mask=p1"},
		"gae.hole cut": {options: "gae.hole=cut"}},
}, {
	name: "a row with holes is the row without them (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		p := s.advantages(g)
		for r := range g.Rows {
			mask := g.Mask[r*g.Cols : (r+1)*g.Cols]
			reward, value := onTokens(mask, g.Token("token_rewards")[r*g.Cols:]), onTokens(mask, g.Token("values")[r*g.Cols:])
			short := newGrid(len(value), len(value)).token("token_rewards", reward...).token("values", value...).row("next_values", g.Row("next_values")[r])
			if broken := identical(nil, s.advantages(short).Want, onTokens(mask, p.Want[r*g.Cols:])); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: map[string]fault{"gae.hole zero_step": {options: "gae.hole=zero_step"}, "gae.hole cut_next": {options: "gae.hole=cut_next"}, "gae.hole none": {options: "gae.hole=none"}},
}, {
	name: "permutation of rows (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		order := s.r.Perm(g.Rows)
		return identical(nil, s.advantages(rowsOf(g, order...)).Want, permuted(s.advantages(g).Want, order, g.Cols))
	},
	faults: map[string]fault{"the row before leaks": rowFollowsRow, "the first row's values": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		v := slices.Clone(b.Token("values"))
		for i := range v {
			v[i] = v[i%b.Cols]
		}
		return b.With("values", v)
	}}},
}, {
	name: "the rows of a batch one by one (E)", given: recursion, where: usesGAE,
	holds: func(s *subject) string {
		g := s.rollout(true)
		p := s.advantages(g)
		for r := range g.Rows {
			if broken := identical(nil, s.advantages(rowsOf(g, r)).Want, p.Want[r*g.Cols:(r+1)*g.Cols]); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: map[string]fault{"the row before leaks": rowFollowsRow},
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
		}}, "a mean of them": {after: func(_ *subject, _ *dump.Batch, p *Prediction) { p.Want[0] += 1 }, before: nil}},
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

// widened returns g with more masked columns.
func widened(g grid, extra int, fill func(int) float64) grid {
	w := ofOneFile(newGrid(g.Cols+extra, make([]int, g.Rows)...))
	w.Meta = g.Meta
	for i, m := range g.Mask {
		w.Mask[i/g.Cols*w.Cols+i%g.Cols] = m
	}
	for name, x := range g.Tensors {
		y := *x
		if x.Layout == dump.PerToken {
			y.Data = make([]float64, len(w.Mask))
			for i := range y.Data {
				if y.Data[i] = fill(i); i%w.Cols < g.Cols {
					y.Data[i] = x.Data[i/w.Cols*g.Cols+i%w.Cols]
				}
			}
		}
		w.Tensors[name] = &y
	}
	return w
}

// dirtied compares the advantages with those of a batch that holds junk in some cells.
func (s *subject) dirtied(g grid, on func(i int) bool) string {
	p := s.advantages(g)
	dirty := grid{g.Batch}
	for _, name := range []string{"token_rewards", "kl", "values"} {
		if x := g.Token(name); x != nil {
			dirty = replaced(dirty, name, changedAt(x, on, s.junk))
		}
	}
	for i, m := range g.Mask {
		if p.Judge[i] != m {
			return at(g.Batch, i) + ": cells of the mask are judged, and no others"
		}
	}
	return identical(g.Mask, s.advantages(dirty).Want, p.Want)
}

var gaeSkips = skips{
	"appended masked columns leave A (E)": {
		"score.index last_column: the score moves with the width of the grid":             "oai@2019 nplus@2023",
		"score.index eos_plus_1: a row that fills the grid gets its score a column later": "trl-ppo@1.9 trl-ppo@1.12",
	},
	"what masked cells hold does not matter (E)": {
		"gae.hole none: no mask in the recursion, a value within the value mask counts": "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 cleanrl@020cf0e",
	},
	"a row with holes is the row without them (E)": {
		"gae.hole none: a hole is a step like any other":                "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 cleanrl@020cf0e",
		"gae.hole zero_step: a hole is a step without value and reward": "openrlhf-ppo@0.11",
		"gae.hole cut_next: nothing is taken from behind a hole":        "tinier-ppo@d3ec1cf ppo-gsm8k@1",
	},
	"truncation and termination differ (X)": {
		"gae.truncated_bootstrap none: 0 follows a response that was cut off, as one that ended": "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 verl-ppo@0.8 verl-ppo@0.9 openrlhf-ppo@0.11 nemo-ppo@7ea279a tinier-ppo@d3ec1cf ppo-gsm8k@1",
	},
}

func TestGAELaws(t *testing.T) { testLaws(t, gaeLaws, gaeSkips) }
