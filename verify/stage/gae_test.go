package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// gae32 is GAE of one row in float32, from the text of the option gae.hole. order says how δ is summed.
func gae32(hole string, r, v []float32, mask []bool, gamma, lambda float32, order int) []float32 {
	n := len(r)
	last := -1
	for t, m := range mask {
		if m {
			last = t
		}
	}
	bit := func(t int) float32 {
		if t < n && mask[t] {
			return 1
		}
		return 0
	}
	at := func(x []float32, t int) float32 {
		if t < n {
			return x[t]
		}
		return 0
	}
	delta := func(r, next, v float32) float32 {
		switch order {
		case 0:
			return (r + gamma*next) - v
		case 1:
			return (r - v) + gamma*next
		}
		return r + (gamma*next - v)
	}
	val, rew := append([]float32(nil), v...), append([]float32(nil), r...)
	for t := range n {
		switch hole {
		case "none":
			if t > last {
				val[t] = 0
			}
		case "zero_step":
			val[t] *= bit(t)
			rew[t] *= bit(t)
		}
	}
	a := make([]float32, n)
	gl := gamma * lambda
	var carryV, carryA float32
	for t := n - 1; t >= 0; t-- {
		switch hole {
		case "none", "zero_step":
			a[t] = delta(rew[t], at(val, t+1), val[t]) + gl*at(a, t+1)
		case "carry":
			if mask[t] {
				carryA = delta(r[t], carryV, v[t]) + gl*carryA
				carryV = v[t]
			}
			a[t] = carryA
		case "cut":
			keep := bit(t)
			if t == last {
				keep = 0
			}
			a[t] = delta(r[t], at(v, t+1)*keep, v[t]) + gl*(at(a, t+1)*keep)
		case "cut_next":
			a[t] = delta(r[t], at(v, t+1)*bit(t+1), v[t]) + gl*(at(a, t+1)*bit(t+1))
		}
	}
	return a
}

var gaeFamilies = map[string]func(r *rand.Rand) (reward, value float64){
	"dense":    func(r *rand.Rand) (float64, float64) { return r.NormFloat64(), r.NormFloat64() },
	"sparse":   func(r *rand.Rand) (float64, float64) { return float64(r.IntN(40) / 39), 0.1 * r.NormFloat64() },
	"offset":   func(r *rand.Rand) (float64, float64) { return 0.01 * r.NormFloat64(), 1000 + r.NormFloat64() },
	"heavy":    func(r *rand.Rand) (float64, float64) { return math.Exp(4 * r.NormFloat64()), 10 * r.NormFloat64() },
	"constant": func(*rand.Rand) (float64, float64) { return 0, 0.95 },
}

func gaeBatch(r *rand.Rand, draw func(*rand.Rand) (float64, float64), rows, cols int) grid {
	g := randomGrid(r, rows, cols, true)
	n := len(g.Mask)
	reward, value := make([]float64, n), make([]float64, n)
	for i := range reward {
		x, v := draw(r)
		reward[i], value[i] = float64(f32(x)), float64(f32(v))
	}
	return g.token("token_rewards", reward...).token("values", value...)
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = f32(v)
	}
	return y
}

func (g grid) gae32(hole string, gamma, lambda float64, order int) []float64 {
	var all []float64
	r, v := narrow(g.Token("token_rewards")), narrow(g.Token("values"))
	for i := range g.Rows {
		lo, hi := i*g.Cols, (i+1)*g.Cols
		for _, a := range gae32(hole, r[lo:hi], v[lo:hi], g.Mask[lo:hi], f32(gamma), f32(lambda), order) {
			all = append(all, float64(a))
		}
	}
	return all
}

const plainGAE = "adv.kind=gae whiten.scope=none gae.value_mask=response rewards.whiten=no "

func TestGAEBound(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	adv, ret := worst{}, worst{}
	for _, family := range sorted(gaeFamilies) {
		draw := gaeFamilies[family]
		for _, hole := range []string{"none", "carry", "zero_step", "cut", "cut_next"} {
			for _, text := range []string{"gae.gamma=1 gae.lambda=1", "gae.gamma=1 gae.lambda=0.95", "gae.gamma=0.99 gae.lambda=0.95"} {
				s := set(t, plainGAE+"returns.before_whiten=true gae.hole="+hole+" "+text)
				for range 30 {
					g := gaeBatch(r, draw, 1+r.IntN(3), 1+r.IntN(20))
					a := g.gae32(hole, s.Value("gae.gamma").Num(), s.Value("gae.lambda").Num(), r.IntN(3))
					returns := make([]float64, len(a))
					for i, x := range a {
						returns[i] = float64(f32(x) + f32(g.Token("values")[i]))
						if !g.Mask[i] {
							a[i] = math.NaN() // whatever the trainer leaves there
						}
					}
					g.token("advantages", a...).token("returns", returns...)
					if o := Judge(Find("gae/advantage"), g.Batch, s); o.Tally.N == 0 {
						continue
					}
					adv.add(t, family, "gae/advantage", g.Batch, s)
					ret.add(t, family, "gae/returns", g.Batch, s)
				}
			}
		}
	}
	adv.tight(t)
	ret.tight(t)
}

// TestTermsOfGAEAddUp: what a report prints beside a wrong advantage is what the recursion read, whatever the rule for holes.
func TestTermsOfGAEAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	for _, hole := range []string{"none", "carry", "zero_step", "cut", "cut_next"} {
		s := set(t, plainGAE+"gae.gamma=0.9 gae.lambda=0.8 gae.hole="+hole)
		holes := 0
		for range 40 {
			g := gaeBatch(r, gaeFamilies["dense"], 1+r.IntN(3), 1+r.IntN(12))
			g.token("advantages", make([]float64, len(g.Mask))...)
			p := Judge(Find("gae/advantage"), g.Batch, s).Pred
			for i, m := range g.Mask {
				if !m {
					holes++
					continue
				}
				want := p.term(i, "reward") + 0.9*p.term(i, "next value") - p.term(i, "value") + 0.9*0.8*p.term(i, "next advantage, not whitened")
				require.InDelta(t, want, p.Want[i], 1e-12, "%s, cell %d of %v", hole, i, g.Mask)
			}
		}
		require.NotZero(t, holes)
	}
}

func TestGAEFindsFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	g := newGrid(6, 6, 4, 5)
	g.Mask[2], g.Mask[3] = false, false
	g.fill("token_rewards", dump.PerToken, r.NormFloat64)
	v := g.fill("values", dump.PerToken, r.NormFloat64)
	s := set(t, plainGAE+"gae.hole=carry gae.gamma=0.99 gae.lambda=0.95")
	g.token("advantages", g.gae32("carry", 0.99, 0.95, 0)...)
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, s).Verdict)
	for _, hole := range []string{"none", "zero_step", "cut", "cut_next"} {
		fails(t, "gae/advantage", g.token("advantages", g.gae32(hole, 0.99, 0.95, 0)...).Batch, s)
	}
	fails(t, "gae/advantage", g.token("advantages", g.gae32("carry", 0.99, 0.95001, 0)...).Batch, s)
	fails(t, "gae/advantage", g.token("advantages", g.gae32("carry", 1, 0.95, 0)...).Batch, s)
	a := g.gae32("carry", 0.99, 0.95, 0)
	returns := make([]float64, len(a))
	for i := range a {
		returns[i] = a[i] - v[i]
	}
	fails(t, "gae/returns", g.token("advantages", a...).token("returns", returns...).Batch, s)
	a[0] += 1e-5
	fails(t, "gae/advantage", g.token("advantages", a...).Batch, s)
}

// A narrow file in a wider batch, an episode that ends inside a row, a bootstrap, and γ that is unknown.
func TestGAEEdges(t *testing.T) {
	s := set(t, plainGAE+"gae.hole=none gae.gamma=0.5 gae.lambda=1 returns.before_whiten=true")
	g := newGrid(3, 3).token("token_rewards", 1, 1, 1).token("values", 0, 0, 0).token("dones", 0, 1, 0).token("advantages", 1.5, 1, 1)
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, s).Verdict)
	require.Equal(t, check.Fail, Judge(Find("gae/advantage"), g.Without("dones"), s).Verdict)

	g = newGrid(2, 2).token("token_rewards", 1, 1).token("values", 0, 0).token("advantages", 2.5, 3).row("next_values", 4)
	boot := s.With("gae.truncated_bootstrap", mustParse(t, "gae.truncated_bootstrap", "value"), "test")
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, boot).Verdict)
	lacks(t, "gae/advantage", g.Without("next_values"), boot, "next_values")

	lacks(t, "gae/advantage", g.Batch, s.With("gae.gamma", convention.Value{}, "test"), "gae.gamma")
	lacks(t, "gae/advantage", g.Without("values"), s, "values")

	// Where no rewards were dumped, returns are held to the advantages; NaN that the hook filled in outside the mask is no
	// input.
	g = newGrid(3, 2).token("advantages", 1, 2, math.NaN()).token("values", 0.5, 0.5, math.NaN()).token("returns", 1.5, 2.5, math.NaN())
	require.Equal(t, check.Pass, Judge(Find("gae/returns"), g.Batch, s).Verdict)
	fails(t, "gae/returns", g.token("returns", 1.5, 2, 0).Batch, s)
	g = newGrid(3, 2).token("token_rewards", 1, 1, math.NaN()).token("values", 0, 0, math.Inf(1)).token("advantages", 1.5, 1, 0)
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, s).Verdict)
}

// TRL PPO keeps the value of the first pad and puts the score there.
func TestGAEValueOfOneTokenMore(t *testing.T) {
	s := set(t, "adv.kind=gae whiten.scope=none rewards.whiten=no gae.hole=none gae.gamma=1 gae.lambda=1 gae.value_mask=p1")
	g := newGrid(3, 1).token("token_rewards", 0, 5, 0).token("values", 1, 2, 7).token("advantages", 4, 3, 0)
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, s).Verdict) // δ₀ = 0 + 2 − 1, δ₁ = 5 − 2
	fails(t, "gae/advantage", g.token("advantages", 4+5, 3, 0).Batch, s)

	// Rewards that it whitens, of 0 and 5 here 1.5 and 3.5, are 0 behind that cell.
	s = set(t, "adv.kind=gae whiten.scope=none rewards.whiten=shift_mean_false whiten.mask=length whiten.ddof=0 whiten.eps=0 whiten.eps_place=inside_sqrt whiten.shift_mean=true "+
		"mean.eps=0 mean.empty=nan mean.nan_outside=ignore gae.hole=none gae.gamma=1 gae.lambda=1 gae.value_mask=p1")
	g = newGrid(4, 1).token("token_rewards", 0, 5, 0, 0).token("values", 1, 2, 0, 0).token("advantages", 4, 0, 0, 0)
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, s).Verdict) // δ₀ = 1.5 + 2 − 1, δ₁ = 3.5 − 2
	fails(t, "gae/advantage", g.token("advantages", 4+3, 0, 0, 0).Batch, s)
}

func TestReinforcePlusPlus(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	w := worst{}
	for _, family := range sorted(gaeFamilies) {
		draw := gaeFamilies[family]
		for _, text := range []string{"rfpp.mode=return_to_go gae.gamma=1 gae.hole=carry", "rfpp.mode=return_to_go gae.gamma=0.9 gae.hole=zero_step", "rfpp.mode=broadcast"} {
			s := set(t, "adv.kind=rfpp whiten.scope=none rewards.whiten=no "+text)
			gamma := float32(1)
			if v := s.Value("gae.gamma"); v.Known() {
				gamma = f32(v.Num())
			}
			for range 140 {
				g := gaeBatch(r, draw, 2, 1+r.IntN(30))
				x := narrow(g.Token("token_rewards"))
				a := make([]float64, len(x))
				for i := range g.Rows {
					var sum float32
					var kept []float32
					for k := (i+1)*g.Cols - 1; k >= i*g.Cols; k-- {
						if g.Mask[k] {
							sum = x[k] + gamma*sum
							kept = append(kept, x[k])
						} else if s.Value("gae.hole").Known() && s.Value("gae.hole").Text() == "zero_step" {
							sum *= gamma
						}
						a[k] = float64(sum)
					}
					for k := i * g.Cols; s.Value("rfpp.mode").Text() == "broadcast" && k < (i+1)*g.Cols; k++ {
						a[k] = float64(sums32(r)(kept))
					}
				}
				g.token("advantages", a...).token("returns", a...)
				if o := Judge(Find("advantage/return"), g.Batch, s); o.Tally == nil || o.Tally.N == 0 {
					continue
				}
				w.add(t, family, "advantage/return", g.Batch, s)
				w.add(t, family, "gae/returns", g.Batch, s)
			}
		}
	}
	w.tight(t)
	g := newGrid(2, 2).token("token_rewards", 1, 2).row("reward_baselines", 0.5).token("advantages", 2.5, 1.5)
	s := set(t, "adv.kind=remax")
	require.Equal(t, check.Pass, Judge(Find("advantage/return"), g.Batch, s).Verdict)
	fails(t, "advantage/return", g.token("advantages", 3, 2).Batch, s)
	lacks(t, "advantage/return", g.Without("reward_baselines"), s, "reward_baselines")
}

// CleanRL's compute of ppo.py: rows are environments, an episode may end at any step, and what follows the last step is the value
// of next_obs unless it ended an episode. The file holds that value as next_values, and dones one step earlier than CleanRL has them.
func TestGAEOfCleanRL(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 8))
	const rows, cols, gamma, lambda = 5, 32, 0.99, 0.95
	s := set(t, "adv.kind=gae whiten.scope=none rewards.whiten=no gae.value_mask=response gae.hole=none gae.gamma=0.99 gae.lambda=0.95 gae.truncated_bootstrap=value returns.before_whiten=true")
	for range 50 {
		g := newGrid(cols, cols, cols, cols, cols, cols)
		reward, value := g.fill("token_rewards", dump.PerToken, r.NormFloat64), g.fill("values", dump.PerToken, r.NormFloat64)
		next := g.fill("next_values", dump.PerRow, r.NormFloat64)
		adv, ret, ends := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range ends {
			if r.IntN(8) == 0 {
				ends[i] = 1
			}
		}
		for e := range rows {
			var last float32
			for step := cols - 1; step >= 0; step-- {
				i := e*cols + step
				nonterminal, following := f32(1-ends[i]), f32(next[e])
				if step < cols-1 {
					following = f32(value[i+1])
				}
				delta := f32(reward[i]) + f32(gamma)*following*nonterminal - f32(value[i])
				last = delta + f32(gamma)*f32(lambda)*nonterminal*last
				adv[i], ret[i] = float64(last), float64(last+f32(value[i]))
			}
		}
		g.token("dones", ends...).token("advantages", adv...).token("returns", ret...)
		for _, id := range []string{"gae/advantage", "gae/returns"} {
			require.Equal(t, check.Pass, Judge(Find(id), g.Batch, s).Verdict, id)
		}
		require.Equal(t, []string{"next_values"}, Judge(Find("gae/advantage"), g.Without("next_values"), s).Case.Absent)
		next[0] += 1
		ends[cols-1] = 0
		fails(t, "gae/advantage", g.row("next_values", next...).Batch, s)
	}
}

// An estimator without a critic gives its advantages as returns, too; other numbers there are nobody's target.
func TestReturnsOfAnOutcome(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none")
	g := newGrid(2, 2, 1).row("group_id", 5, 5).row("scores", 1, 0).token("advantages", .5, .5, -.5, 0).token("returns", .5, .5, -.5, 0)
	require.Equal(t, check.Pass, Judge(Find("gae/returns"), g.Batch, s).Verdict)
	require.Equal(t, check.Skip, Judge(Find("gae/returns"), g.token("returns", 1, 1, 0, 0).Batch, s).Verdict)
	lacks(t, "gae/returns", g.Batch, set(t, "adv.kind=gae whiten.scope=none gae.hole=carry gae.gamma=1 gae.lambda=1"), "values")
}

// A return over tokens that stand side by side is the same under every rule for holes, and over the columns behind them.
func TestReturnsWithoutHoles(t *testing.T) {
	s := set(t, "adv.kind=rfpp rfpp.mode=return_to_go gae.gamma=0.5 whiten.scope=none rewards.whiten=no")
	hole := func(rule string) *convention.Set { return s.With("gae.hole", mustParse(t, "gae.hole", rule), "test") }
	g := newGrid(3, 2, 3).token("token_rewards", 1, 2, 0, 1, 0, 4).token("advantages", 2, 2, 0, 2, 2, 4)
	for _, s := range []*convention.Set{s, hole("none"), hole("carry")} {
		require.Equal(t, check.Pass, Judge(Find("advantage/return"), g.Batch, s).Verdict)
	}
	g.token("token_rewards", 1, 2, 3, 1, 0, 4)
	lacks(t, "advantage/return", g.Batch, hole("none"), "gae.hole none is for GAE")
	g.token("token_rewards", 1, 2, 0, 1, 0, 4)
	g.Mask[4] = false
	lacks(t, "advantage/return", g.Batch, hole("none"), "gae.hole none is for GAE")
	o := Judge(Find("advantage/return"), g.Batch, s)
	require.Equal(t, check.Undetermined, o.Verdict)
	require.Equal(t, "not declared: gae.hole (none, carry, zero_step, cut, cut_next)", o.Lacking())
}
