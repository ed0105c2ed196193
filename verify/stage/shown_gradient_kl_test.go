package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// gradientOf is a batch of 6 rows of up to 20 tokens whose gradients, in float32, are those of mean over rows of means over tokens of a surrogate that
// stops at 0.8 and 1.2, and 0.037 times a term of the derivative kl.
func gradientOf(seed uint64, drift float64, kl func(d, rho float64) float64) *dump.Batch {
	const rows, cols = 6, 20
	r := rand.New(rand.NewPCG(seed, 11))
	single := func(x float64) float64 { return float64(float32(x)) }
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize, b.Meta.DLogpScale = 1, 1, 1, 1
	x := map[string][]float64{}
	for _, name := range []string{"logp_new", "logp_old", "logp_ref", "advantages", "dlogp"} {
		x[name] = make([]float64, rows*cols)
		b.Tensors[name] = &dump.Tensor{Data: x[name], Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}}
	}
	for row := range rows {
		n, a := 8+2*row, single(r.NormFloat64())
		for i := row * cols; i < row*cols+n; i++ {
			b.Mask[i] = true
			old := single(-3 * r.Float64())
			lp, ref := single(old+drift*r.NormFloat64()), single(old+0.5*r.NormFloat64())
			rho := math.Exp(lp - old)
			g := -a * rho
			if a > 0 && rho > 1.2 || a < 0 && rho < 0.8 {
				g = 0
			}
			x["logp_old"][i], x["logp_new"][i], x["logp_ref"][i], x["advantages"][i] = old, lp, ref, a
			x["dlogp"][i] = single((g + 0.037*kl(lp-ref, rho)) / float64(n*rows))
		}
	}
	return b
}

// A KL term of the loss is what gradients of the tokens of a row show beside the policy term, also where most tokens are clipped.
func TestGradientsShowTheirKL(t *testing.T) {
	for name, kl := range map[string]func(d, rho float64) float64{
		"k3":           func(d, _ float64) float64 { return 1 - math.Exp(-d) },
		"k1":           func(float64, float64) float64 { return 1 },
		"k2":           func(d, _ float64) float64 { return d },
		"abs":          func(d, _ float64) float64 { return math.Copysign(1, d) },
		"is_corrected": func(d, rho float64) float64 { return rho * d },
		"k1 corrected": func(d, rho float64) float64 { return rho * (1 + d) },
	} {
		for _, drift := range []float64{0, 0.1, 1.2} {
			if name == "k1" && drift == 0 { // a number of every row, as the policy term is
				continue
			}
			if drift > 1 && !cases.All {
				continue
			}
			for seed := range uint64(map[bool]int{false: 1, true: 2}[cases.All]) {
				b := gradientOf(seed, drift, kl)
				fits, _ := Complete(Find("gradient/dlogp"), b, &convention.Set{})
				require.NotEmpty(t, fits, "%s, drift %g, seed %d", name, drift, seed)
				require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
				got := texts(fits[0].Changes)
				require.Equal(t, "0.037", got["kl.beta"], "%s, drift %g, seed %d: %v", name, drift, seed, got)
				require.Equal(t, "seq_mean_token_mean", got["agg.kind"])
			}
		}
	}
}

// What is no KL shows none: the KL of another row, and noise.
func TestGradientsWithoutAKLShowNone(t *testing.T) {
	for seed := range uint64(4) {
		require.Empty(t, klSlopes(gradientOf(seed, 0.1, func(float64, float64) float64 { return 0 })))
		r := rand.New(rand.NewPCG(seed, 12))
		require.Empty(t, klSlopes(gradientOf(seed, 0.1, func(float64, float64) float64 { return 10 * r.NormFloat64() })))
	}
}
