package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
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
	for _, id := range []string{"agreement/engine", "agreement/drift"} {
		for _, v := range rules(t, id, g.Batch, set(t, options)).Rules.Violations {
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
