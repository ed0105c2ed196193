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

// sampledBatch draws rows of tokens from random distributions over v tokens, the likeliest of which together have the probability topP;
// spread is that of the logits.
func sampledBatch(r *rand.Rand, rows, cols, v int, spread, topP float64) (g grid, logits [][]float64) {
	lengths := make([]int, rows)
	for i := range lengths {
		lengths[i] = cols
	}
	g = newGrid(cols, lengths...)
	var lp, h []float64
	for range rows * cols {
		z := make([]float64, v)
		for i := range z {
			z[i] = spread * r.NormFloat64()
		}
		top := slices.Max(z)
		var sum float64
		for _, x := range z {
			sum += math.Exp(x - top)
		}
		lse := top + math.Log(sum)
		var entropy float64
		for i := range z {
			z[i] -= lse
			entropy -= math.Exp(z[i]) * z[i]
		}
		order := make([]int, v)
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int {
			if z[a] > z[b] {
				return -1
			}
			return 1
		})
		u, id := r.Float64()*topP, order[0]
		for _, i := range order {
			id = i
			if u -= math.Exp(z[i]); u < 0 {
				break
			}
		}
		lp, h, logits = append(lp, float64(float32(z[id]))), append(h, float64(float32(entropy))), append(logits, z)
	}
	return g.token("logp_new", lp...).token("logp_old", slices.Clone(lp)...).token("entropy", h...), logits
}

func TestLogProbsOfSampledTokens(t *testing.T) {
	r := rand.New(rand.NewPCG(69, 3))
	s := set(t, "logp.temperature=1 entropy.logits=scaled ratio.old=stored").WithFact("top_p", 1.0)
	judged := func(g grid, s *convention.Set) check.Verdict { return Judge(Find("logp/sampled"), g.Batch, s).Verdict }
	// Flat, usual and nearly certain distributions: of the last hardly any token says what the unlikely ones would add.
	for _, spread := range []float64{0.1, 1, 3, 8, 20} {
		for range 6 {
			g, _ := sampledBatch(r, 8, 40, 60, spread, 1)
			require.Equal(t, check.Pass, judged(g, s), "spread %g", spread)
		}
	}
	healthy, _ := sampledBatch(r, 16, 64, 40, 2, 1)
	vocabulary := s.WithFact("vocab_size", 40.0)
	require.Equal(t, check.Pass, judged(healthy, vocabulary))
	faulty := func(name string, edit func(lp, h []float64)) {
		g, _ := sampledBatch(r, 16, 64, 40, 2, 1)
		edit(g.Tensors["logp_new"].Data, g.Tensors["entropy"].Data)
		copy(g.Tensors["logp_old"].Data, g.Tensors["logp_new"].Data)
		o := Judge(Find("logp/sampled"), g.Batch, vocabulary)
		require.Equal(t, check.Fail, o.Verdict, name)
		require.Empty(t, o.Rules.Violations[0].Fault, name)
	}
	faulty("bits", func(_, h []float64) { each(h, func(x float64) float64 { return x / math.Ln2 }) })
	faulty("half of the sum", func(_, h []float64) { each(h, func(x float64) float64 { return x / 2 }) })
	faulty("log-probs of other tokens", func(lp, _ []float64) { each(lp, func(x float64) float64 { return x - 1.5 }) })
	nucleus, _ := sampledBatch(r, 16, 64, 40, 2, 0.6)
	require.Equal(t, check.Fail, judged(nucleus, vocabulary))
	for name, of := range map[string]*convention.Set{
		"top-p is declared": vocabulary.WithFact("top_p", 0.6), "nothing is": set(t, "logp.temperature=1 entropy.logits=scaled"), "top-k": vocabulary.WithFact("top_k", 5.0),
		"rows were taken out":                  vocabulary.WithFact("mask_truncated_completions", true),
		"the entropy has another temperature":  set(t, "logp.temperature=0.7 entropy.logits=unscaled").WithFact("top_p", 1.0),
		"it is not known what entropy that is": set(t, "logp.temperature=1").WithFact("top_p", 1.0),
	} {
		require.Equal(t, check.Skip, judged(nucleus, of), name)
	}
	penalised := *nucleus.Batch
	penalised.Meta.Options = []dump.Option{{Name: "repetition_penalty", Value: 1.1}}
	require.Equal(t, check.Skip, judged(grid{&penalised}, vocabulary))
	// A row that is there often is drawn once.
	one, _ := sampledBatch(r, 1, 20, 40, 2, 1)
	g := newGrid(20, slices.Repeat([]int{20}, 400)...)
	for _, name := range []string{"logp_new", "logp_old", "entropy"} {
		g = g.token(name, slices.Repeat(one.Tensors[name].Data, 400)...)
	}
	require.Equal(t, check.Pass, judged(g, vocabulary))
}

// No distribution of a given entropy has a larger variance of its log-probs.
func TestMostVariance(t *testing.T) {
	r := rand.New(rand.NewPCG(69, 4))
	for _, v := range []int{2, 3, 7, 40, 1000} {
		most := mostVariance(math.Log(float64(v)))
		for range 400 {
			p := make([]float64, v)
			var sum float64
			spread := 8 * r.Float64()
			for i := range p {
				p[i] = math.Exp(spread * r.NormFloat64())
				if r.IntN(3) == 0 {
					p[i] = math.Exp(-spread) // many alike
				}
				sum += p[i]
			}
			var h, square float64
			for _, x := range p {
				x /= sum
				if x > 0 {
					h -= x * math.Log(x)
					square += x * math.Log(x) * math.Log(x)
				}
			}
			require.LessOrEqual(t, square-h*h, most(h)+1e-9, "%d tokens, entropy %g", v, h)
		}
		for e := 1e-12; e < 0.5*(1-1/float64(v)); e *= 1.7 { // one token, and all others alike: nearly reached
			n := float64(v - 1)
			h := -(1-e)*math.Log1p(-e) - e*math.Log(e/n)
			of := e * (1 - e) * math.Pow(math.Log(n*(1-e)/e), 2)
			require.InEpsilon(t, of, most(h), 0.08)
			require.GreaterOrEqual(t, most(h), of*(1-1e-9))
		}
	}
}
