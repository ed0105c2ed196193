package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// β and the label smoothing of no table are what the losses of pairs, or the mean losses of files, give; another formula gives none.
func TestPreferenceNumbersAreThoseOfTheLosses(t *testing.T) {
	run := func(each bool, loss func(h float64) float64) map[string]float64 {
		rng := rand.New(rand.NewPCG(5, 7))
		var l Losses
		for range 6 {
			const rows = 8
			x := map[string][]float64{}
			for _, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected", "pair_loss"} {
				x[name] = make([]float64, rows)
			}
			var sum float64
			for r := range rows {
				x["ref_chosen"][r], x["ref_rejected"][r] = -20-10*rng.Float64(), -22-10*rng.Float64()
				x["logp_chosen"][r], x["logp_rejected"][r] = x["ref_chosen"][r]+rng.NormFloat64(), x["ref_rejected"][r]+rng.NormFloat64()
				h := x["logp_chosen"][r] - x["logp_rejected"][r] - x["ref_chosen"][r] + x["ref_rejected"][r]
				x["pair_loss"][r] = float64(float32(loss(h)))
				sum += loss(h) / rows
			}
			b := &dump.Batch{Rows: rows, Files: []dump.FileInfo{{Name: "f", Hi: rows}}, Tensors: map[string]*dump.Tensor{}}
			for name, v := range x {
				if each || name != "pair_loss" {
					b.Tensors[name] = &dump.Tensor{Data: v, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
				}
			}
			b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(sum))}, Layout: dump.PerFile, Type: format.F32}
			l.Add(b)
		}
		return l.Coefficients()
	}
	sigmoid := func(beta, eps float64) func(h float64) float64 {
		return func(h float64) float64 {
			return -(1-eps)*-math.Log1p(math.Exp(-beta*h)) - eps*-math.Log1p(math.Exp(beta*h))
		}
	}
	robust := func(beta, eps float64) func(h float64) float64 {
		return func(h float64) float64 {
			return ((1-eps)*softplus(-beta*h) - eps*softplus(beta*h)) / (1 - 2*eps)
		}
	}
	exo := func(beta, eps float64) func(h float64) float64 {
		return func(h float64) float64 {
			q, p := sigma(beta*h), sigma(-beta*h)
			return q*math.Log(q/(1-eps)) + p*math.Log(p/eps)
		}
	}
	for _, each := range []bool{true, false} {
		require.Equal(t, map[string]float64{"dpo.beta": 0.37, "dpo.label_smoothing": 0.13}, run(each, robust(0.37, 0.13)))
		require.Equal(t, map[string]float64{"dpo.beta": 0.3, "dpo.label_smoothing": 0.02}, run(each, exo(0.3, 0.02)))
		require.Equal(t, map[string]float64{"dpo.beta": 0.37, "dpo.label_smoothing": 0.13}, run(each, sigmoid(0.37, 0.13)))
		require.Equal(t, map[string]float64{"dpo.beta": 0.0512, "dpo.label_smoothing": 0}, run(each, sigmoid(0.0512, 0)))
		require.Empty(t, run(each, func(h float64) float64 { return max(0, 1-0.3*h) }))
		require.Empty(t, run(each, func(h float64) float64 { return sigmoid(0.37, 0)(-h) }))
		require.Empty(t, run(each, func(float64) float64 { return math.Ln2 }), "the reference is the policy")
	}
}
