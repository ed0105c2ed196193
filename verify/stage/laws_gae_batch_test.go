package stage

import (
	"math"
	"slices"

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

// rowFollowsRow lets the values of a row into the next one.
var rowFollowsRow = fault{after: func(_ *subject, b *dump.Batch, p *Prediction) {
	for i := b.Cols; i < len(p.Want); i++ {
		p.Want[i] += 1e-3 * b.Token("values")[i-b.Cols]
	}
}}
