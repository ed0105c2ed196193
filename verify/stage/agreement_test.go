package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// twins are log-probs of sampled tokens under small models: raw and tempered logits of one policy, and of another one.
type twins struct {
	raw, tempered []float64
}

// distribution draws logits of v tokens and returns the log-probs of one, before and after a temperature.
func distribution(z []float64, id int, temperature float64) (raw, tempered float64) {
	lse := func(by float64) float64 {
		var s float64
		for _, x := range z {
			s += math.Exp(x / by)
		}
		return math.Log(s)
	}
	return z[id] - lse(1), z[id]/temperature - lse(temperature)
}

// policies draws n tokens from a policy at a temperature, and returns their log-probs under it, under another policy, and under
// the policy for a likeliest token.
func policies(r *rand.Rand, n int, temperature float64) (own, other twins, likeliest []float64) {
	const v = 12
	for range n {
		z, w := make([]float64, v), make([]float64, v)
		best := 0
		for i := range z {
			z[i] = 1.5 * r.NormFloat64()
			w[i] = z[i] + 0.4*r.NormFloat64()
			if z[i] > z[best] {
				best = i
			}
		}
		u, id := r.Float64(), v-1
		for i := range z {
			_, lp := distribution(z, i, temperature)
			if u -= math.Exp(lp); u < 0 {
				id = i
				break
			}
		}
		raw, tempered := distribution(z, id, temperature)
		own.raw, own.tempered = append(own.raw, raw), append(own.tempered, tempered)
		raw, tempered = distribution(w, id, temperature)
		other.raw, other.tempered = append(other.raw, raw), append(other.tempered, tempered)
		_, lp := distribution(z, best, temperature)
		likeliest = append(likeliest, lp)
	}
	return own, other, likeliest
}

// named returns the faults that the two checks of an engine's log-probs name.
func named(t *testing.T, g grid, options string) (faults []string) {
	return faultsUnder(t, g, set(t, options))
}

func faultsUnder(t *testing.T, g grid, set *convention.Set) (faults []string) {
	for _, id := range []string{"agreement/engine", "agreement/drift"} {
		for _, v := range rules(t, id, g.Batch, set).Rules.Violations {
			faults = append(faults, v.Fault)
		}
	}
	return faults
}

// An engine that reports raw log-probs is told from one that does not by the slope between them, whichever is declared.
func TestEngineAtTheTemperature(t *testing.T) {
	const rows, cols = 64, 16
	lengths := slices.Repeat([]int{cols}, rows)
	for _, temperature := range []float64{0.6, 0.8, 1.3} {
		text := "logp.temperature=" + map[float64]string{0.6: "0.6", 0.8: "0.8", 1.3: "1.3"}[temperature] + " ratio.old=stored logp.source="
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 52))
			own, other, likeliest := policies(r, rows*cols, temperature)
			dumped := func(gen []float64) grid {
				noisy := make([]float64, len(gen))
				for i, x := range gen {
					noisy[i] = math.Min(0, x+0.01*r.NormFloat64())
				}
				return newGrid(cols, lengths...).token("logp_new", own.tempered...).token("logp_old", own.tempered...).token("logp_ref", other.tempered...).token("logp_gen", noisy...)
			}
			require.Empty(t, named(t, dumped(own.tempered), text+"processed"), "as declared")
			require.Empty(t, named(t, dumped(own.raw), text+"raw"), "as declared")
			require.Contains(t, named(t, dumped(own.raw), text+"processed"), "GEN-RAW")
			require.Contains(t, named(t, dumped(own.tempered), text+"raw"), "GEN-RAW")
			require.Contains(t, named(t, dumped(other.raw), text+"raw"), "GEN-UNADAPTED")
			late := dumped(other.raw)
			late.Meta.Options = []dump.Option{{Name: "one_step_off", Value: true}}
			for step, of := range map[int]func(require.TestingT, any, any, ...any){2: require.NotContains, 3: require.Contains} {
				late.Meta.Step = step
				of(t, named(t, late, text+"raw"), "GEN-UNADAPTED", "the second rollout is still of the weights of the start")
			}
			late = dumped(other.raw)
			late.Meta.Step = 3
			require.Contains(t, named(t, late, text+"raw"), "GEN-UNADAPTED")
			require.NotContains(t, faultsUnder(t, late, set(t, text+"raw").WithFact(Adapted, true)), "GEN-UNADAPTED", "an engine that gets its weights, late, in files that say nothing")
			late.token("is_weights", own.raw...)
			late.Meta.Step = 3
			require.NotContains(t, named(t, late, text+"raw"), "GEN-UNADAPTED", "files that say nothing may be of an engine that is more rollouts late")
			late.Meta.Framework = "verl"
			for step, of := range map[int]func(require.TestingT, any, any, ...any){2: require.NotContains, 3: require.Contains} {
				late.Meta.Step = step
				of(t, named(t, late, text+"raw"), "GEN-UNADAPTED", "the second rollout may be, where weights stand between engine and trainer")
			}
			late.Meta.Step = 6
			require.NotContains(t, faultsUnder(t, late, set(t, text+"raw").WithFact(RolloutSteps, 4.0)), "GEN-UNADAPTED", "a rollout of four steps")
			late.Meta.Step, late.Meta.Framework = 2, "trl"
			require.Contains(t, named(t, late, text+"raw"), "GEN-UNADAPTED", "which sends the weights")
			require.Contains(t, named(t, dumped(likeliest), text+"processed"), "GEN-OTHER-TOKEN")
			require.NotContains(t, named(t, dumped(likeliest), text+"processed"), "GEN-TEMPERATURE-TWICE")
			// The first tokens of the trainer are wrong, not the engine's weights.
			const short = 3
			old := slices.Clone(own.tempered[:rows*short])
			for i := 0; i < len(old); i += short {
				old[i] = -12 * r.Float64()
			}
			gen := dumped(own.raw).Tensors["logp_gen"].Data[:len(old)]
			g := newGrid(short, slices.Repeat([]int{short}, rows)...).token("logp_new", old...).token("logp_old", old...).token("logp_ref", own.tempered[:len(old)]...).token("logp_gen", gen...)
			require.NotContains(t, named(t, g, text+"raw"), "GEN-UNADAPTED")
		}
	}
}

// Old log-probs that lack the temperature, or that neither the policy nor the engine agrees with, are not blamed on the engine.
func TestOldBesideTheEngine(t *testing.T) {
	const rows, cols = 32, 16
	lengths := slices.Repeat([]int{cols}, rows)
	of := func(id, options string, g grid) (faults []string) {
		for _, v := range rules(t, id, g.Batch, set(t, options)).Rules.Violations {
			faults = append(faults, v.Fault)
		}
		return faults
	}
	const options = "logp.temperature=0.7 ratio.old=stored logp.source=processed kl.beta=0.1"
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 54))
		own, other, _ := policies(r, rows*cols, 0.7)
		noisy := func(x []float64, by float64) []float64 {
			y := make([]float64, len(x))
			for i := range x {
				y[i] = math.Min(0, x[i]+by*r.NormFloat64())
			}
			return y
		}
		dumped := func(lp, old, ref, gen []float64) grid {
			g := newGrid(cols, lengths...).token("logp_new", lp...).token("logp_old", old...).token("logp_ref", ref...).token("logp_gen", gen...)
			g.Meta.Step = 2
			return g
		}
		healthy := dumped(noisy(own.tempered, 0.1), own.tempered, other.tempered, noisy(own.tempered, 0.01))
		for _, id := range []string{"agreement/old", "agreement/reference", "agreement/engine"} {
			require.Empty(t, of(id, options, healthy), id)
		}
		raw := dumped(own.tempered, own.raw, own.tempered, noisy(own.tempered, 1e-5))
		require.Equal(t, []string{"LOGP-TEMPERATURE"}, of("agreement/old", options, raw))
		require.Equal(t, []string{"OLD-OTHER-PASS"}, of("agreement/engine", options, raw), "the engine agrees with the policy")
		require.Empty(t, of("agreement/reference", options, raw), "nothing says that the policy has moved")
		both := dumped(own.raw, own.raw, own.raw, noisy(own.tempered, 1e-5))
		require.Equal(t, []string{"GEN-TEMPERATURE-TWICE"}, of("agreement/engine", options, both), "and not that the ratio is 1")
	}
}

// A reference that follows the policy is no reference, unless nothing has been trained or nobody asks for it; one of other rows is
// found by its neighbours.
func TestReferenceThatIsThePolicy(t *testing.T) {
	const rows, cols = 8, 16
	lengths := slices.Repeat([]int{cols}, rows)
	r := rand.New(rand.NewPCG(3, 55))
	own, other, _ := policies(r, rows*cols, 1)
	near := func(x []float64, by float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = math.Min(0, x[i]+by*r.NormFloat64())
		}
		return y
	}
	lp, gen := near(own.raw, 0.1), near(own.raw, 0.01)
	faults := func(step int, options string, old, ref, gen []float64) (list []string) {
		g := newGrid(cols, lengths...).token("logp_new", lp...).token("logp_old", old...).token("logp_ref", ref...).token("logp_gen", gen...)
		g.Meta.Step = step
		for _, v := range rules(t, "agreement/reference", g.Batch, set(t, options)).Rules.Violations {
			list = append(list, v.Fault)
		}
		return list
	}
	const options = "ratio.old=stored kl.beta=0.1"
	require.Equal(t, []string{"REF-IS-POLICY"}, faults(2, options, own.raw, lp, gen))
	require.Empty(t, faults(2, options, own.raw, other.raw, gen))
	require.Empty(t, faults(1, options, own.raw, lp, gen), "an adapter of zeros is the base")
	require.Empty(t, faults(2, "ratio.old=stored kl.beta=0", own.raw, lp, gen), "no KL")
	require.Empty(t, faults(2, options, gen, lp, gen), "the old log-probs are the engine's")
	require.Empty(t, faults(2, options, near(lp, 0.1), lp, near(lp, 1e-3)), "the old log-probs are those of another pass")
	rolled := append(slices.Clone(own.raw[cols:]), own.raw[:cols]...)
	require.Equal(t, []string{"ROWS-SWAPPED"}, faults(2, options, own.raw, near(rolled, 0.02), gen))
}

// Some tokens that are nats off among others that agree are not noise.
func TestEngineWithFewTokensFarOff(t *testing.T) {
	const rows, cols = 8, 16
	r := rand.New(rand.NewPCG(4, 56))
	own, _, _ := policies(r, rows*cols, 1)
	gen := make([]float64, len(own.raw))
	for i, x := range own.raw {
		gen[i] = x + 1e-4*r.NormFloat64()
	}
	for _, i := range []int{3, 40, 77, 100} {
		gen[i] -= 2.5
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.raw...).token("logp_old", own.raw...).token("logp_gen", gen...)
	require.Equal(t, []string{"GEN-OTHER-TOKEN"}, named(t, g, "ratio.old=stored"))
	gen[40], gen[77], gen[100] = own.raw[40], own.raw[77], own.raw[100]
	require.Empty(t, named(t, g.token("logp_gen", gen...), "ratio.old=stored"), "one token may be off by the engine's own kernels")
}

// An engine that renormalises over what top-p keeps is one whose run says so, or perhaps one of which nobody says anything.
func TestEngineThatKeepsAPart(t *testing.T) {
	const rows, cols = 8, 16
	r := rand.New(rand.NewPCG(6, 58))
	own, _, _ := policies(r, rows*cols, 1)
	gen := make([]float64, len(own.raw))
	for i, x := range own.raw {
		gen[i] = math.Min(0, x-math.Log(0.6+0.3*r.Float64()))
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.raw...).token("logp_old", own.raw...).token("logp_gen", gen...)
	verdict := func() check.Verdict { return rules(t, "agreement/engine", g.Batch, set(t, "ratio.old=stored")).Verdict }
	require.Equal(t, check.Warn, verdict(), "nobody says anything")
	g.Meta.Framework = "trl"
	require.Equal(t, check.Fail, verdict())
	for name, x := range map[string]any{"vllm.top_p": 0.9, "top_k": 12.0, "min_p": 0.05} {
		g.Meta.Options = []dump.Option{{Name: name, Value: x}}
		require.Equal(t, check.Pass, verdict(), name)
	}
	for name, x := range map[string]any{"top_p": 1.0, "top_k": -1.0, "min_p": 0.0} {
		g.Meta.Options = []dump.Option{{Name: name, Value: x}}
		require.Equal(t, check.Fail, verdict(), name)
	}
}

// What top-p leaves alone is certain, and no token that somebody else wrote.
func TestEngineThatIsCertain(t *testing.T) {
	const n = 64
	r := rand.New(rand.NewPCG(1, 53))
	old, gen := make([]float64, n), make([]float64, n)
	for i := range old {
		old[i] = -0.1 - 0.4*r.Float64()
		gen[i] = old[i] + 0.05*r.NormFloat64()
	}
	gen[5], old[5] = 0, -0.2
	g := newGrid(n, n).token("logp_new", old...).token("logp_old", old...).token("logp_gen", gen...)
	require.NotContains(t, named(t, g, "ratio.old=stored"), "MASK-ATTENTION")
	g.Tensors["logp_old"].Data[5] = -2.5
	require.Contains(t, named(t, g, "ratio.old=stored"), "MASK-ATTENTION")
}

// At the first update of a rollout the old log-probs are the new ones bit by bit, and those of a bfloat16 engine are not: nothing is
// wrong, with a reference or, as in TRL by default, without one.
func TestOldThatIsNewAtTheFirstUpdate(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 57))
	own, other, _ := policies(r, 8*16, 1)
	gen := make([]float64, len(own.raw))
	for i, x := range own.raw {
		gen[i] = math.Min(0, x+0.04*r.NormFloat64()*-math.Expm1(x))
	}
	g := newGrid(16, slices.Repeat([]int{16}, 8)...).token("logp_new", own.raw...).token("logp_old", own.raw...).token("logp_gen", gen...)
	require.Empty(t, named(t, g, "ratio.old=stored"))
	require.Empty(t, named(t, g.token("logp_ref", other.raw...), "ratio.old=stored"))
	s := set(t, "ratio.old=stored").WithFact("first_step", false)
	require.Equal(t, "OLD-RECOMPUTED", rules(t, "agreement/engine", g.Batch, s).Rules.Violations[0].Fault, "a later update of its batch")
}
