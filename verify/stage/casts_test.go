package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// What rounding logits to bfloat16 does to log-probs and entropies stays within its bound, and comes near it.
func TestShiftOfRoundedLogits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 16))
	worst := [2]float64{}
	for range 20_000 {
		n := 2 + r.IntN(30)
		z, x, e := make([]float64, n), make([]float64, n), make([]float64, n)
		scale, temperature := math.Exp(4*r.Float64()-1), 0.5+r.Float64()
		for i := range z {
			z[i] = scale * r.NormFloat64()
			x[i] = format.Round(z[i], format.BF16)
			e[i] = tol.UB * math.Abs(x[i])
		}
		id := r.IntN(n)
		o := rl.LogProbOptions{Temperature: temperature}
		s := softmaxErrors(x, temperature, 0, 0)
		h := rl.Entropy(nil, x, n, rl.EntropyOptions{LogProbOptions: o})[0]
		logp, entropy := s.shift(x, e, temperature, id, h)
		for i, d := range []float64{
			math.Abs(rl.LogProbs(nil, z, []int{id}, n, o)[0]-rl.LogProbs(nil, x, []int{id}, n, o)[0]) / (logp + 1e-12),
			math.Abs(rl.Entropy(nil, z, n, rl.EntropyOptions{LogProbOptions: o})[0]-h) / (entropy + 1e-12),
		} {
			worst[i] = max(worst[i], d)
		}
	}
	for _, w := range worst {
		require.Less(t, w, 1.0)
		require.Greater(t, w, 0.3, "a bound that is never reached")
	}
}

// The divergences by which engine weights are judged move no further than their errors when log-probs do.
func TestDivergenceOfRoundedLogProbs(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 16))
	for _, gate := range []rl.TISGate{rl.TISTV, rl.TISBinaryKL} {
		var worst float64
		for range 20_000 {
			at := [2]float64{-5 * r.Float64(), -5 * r.Float64()}
			if r.IntN(3) == 0 {
				at[1] = at[0] * (1 + 0.05*r.NormFloat64())
			}
			inputs := func(x [2]float64) (Input, Input) {
				return Input{X: x[:1], Err: []float64{tol.UB * math.Abs(at[0])}}, Input{X: x[1:], Err: []float64{tol.UB * math.Abs(at[1])}}
			}
			old, gen := inputs(at)
			d, e := divergence(old, gen, 0, gate, 0)
			moved := at
			for k := range moved {
				moved[k] -= at[k] * tol.UB * (2*r.Float64() - 1)
			}
			old, gen = inputs(moved)
			there, _ := divergence(old, gen, 0, gate, 0)
			worst = max(worst, math.Abs(there-d)/(e+1e-15))
		}
		require.LessOrEqual(t, worst, 1.0, gate)
		require.Greater(t, worst, 0.3, gate)
	}
}
