package stage

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"

	"github.com/stretchr/testify/require"
)

// weighed is a batch of which the gradients are those of a surrogate with the bounds 0.17 and 0.23, times the weights that of makes of the log-probs of a
// token and of the means over its row.
func weighed(seed uint64, byRow bool, of func(old, gen, meanRatio, meanTV float64) float64) *dump.Batch {
	const rows, cols = 24, 20
	rng := rand.New(rand.NewPCG(seed, 9))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	x := map[string][]float64{}
	for _, name := range []string{"logp_new", "logp_old", "logp_gen", "dlogp", "advantages"} {
		x[name] = make([]float64, rows*cols)
		b.Tensors[name] = &dump.Tensor{Data: x[name], Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{rows, cols}}
	}
	single := func(v float64) float64 { return float64(float32(v)) }
	var tokens float64
	for r := range rows {
		n := cols - r%5
		a := single(rng.NormFloat64())
		for i := r * cols; i < r*cols+n; i++ {
			b.Mask[i] = true
			x["advantages"][i] = a
			x["logp_old"][i] = single(-0.2 - 3*rng.Float64())
			x["logp_gen"][i] = single(x["logp_old"][i] + 0.02*rng.NormFloat64())
			x["logp_new"][i] = single(x["logp_old"][i] + 0.2*rng.NormFloat64())
			tokens++
		}
	}
	for r := range rows {
		var ratio, tv, n float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if b.Mask[i] {
				old, gen := x["logp_old"][i], x["logp_gen"][i]
				ratio, tv, n = ratio+old-gen, tv+math.Abs(math.Exp(gen)-math.Exp(old)), n+1
			}
		}
		s := 1 / tokens
		if byRow {
			s = 1 / n / rows
		}
		for i := r * cols; i < (r+1)*cols; i++ {
			if !b.Mask[i] {
				continue
			}
			a, rho := x["advantages"][i], math.Exp(x["logp_new"][i]-x["logp_old"][i])
			if a > 0 && rho > 1.23 || a < 0 && rho < 1-0.17 {
				continue
			}
			x["dlogp"][i] = single(-a * rho * s * of(x["logp_old"][i], x["logp_gen"][i], math.Exp(ratio/n), tv/n))
		}
	}
	return b
}

// The gradients of tokens tell what becomes of weights that were not dumped, under either weight of a token in a mean; gradients without weights show none.
func TestGradientsShowWeights(t *testing.T) {
	token := func(old, gen float64) float64 { return math.Exp(old - gen) }
	between := func(x, low, high, w float64) float64 {
		if x < low || x > high {
			return 0
		}
		return w
	}
	for name, c := range map[string]struct {
		of    func(old, gen, meanRatio, meanTV float64) float64
		words map[string]string
		high  float64
	}{
		"left out": {func(old, gen, _, _ float64) float64 { return between(token(old, gen), 0.985, 1.012, token(old, gen)) },
			map[string]string{"tis.level": "token", "tis.rule": "zero_outside"}, 1.012},
		"held": {func(old, gen, _, _ float64) float64 { return min(max(token(old, gen), 0.98), 1.015) },
			map[string]string{"tis.level": "token", "tis.rule": "clamp"}, 1.015},
		"rows left out": {func(old, gen, m, _ float64) float64 { return between(m, 0.996, 1.003, token(old, gen)) },
			map[string]string{"tis.level": "seq_geo", "tis.rule": "seq_filter"}, 1.003},
		"rows far in total variation": {func(old, gen, _, tv float64) float64 { return between(tv, 0, 5e-3, token(old, gen)) },
			map[string]string{"tis.level": "seq_geo", "tis.rule": "seq_filter", "tis.gate": "tv"}, 5e-3},
	} {
		for seed := range uint64(4) {
			for _, byRow := range []bool{false, true} {
				lists := gradientWeights(weighed(seed, byRow, c.of))
				require.NotEmpty(t, lists, "%s, seed %d", name, seed)
				got, bounds := map[string]string{}, map[string]float64{}
				for _, list := range lists { // few rows tell one divergence of another by nothing
					clear(got)
					for _, a := range list {
						got[a.option] = a.value.String()
						if a.value.Kind() == convention.Number {
							bounds[a.option] = a.value.Num()
						}
					}
					if !slices.ContainsFunc(slices.Collect(maps.Keys(c.words)), func(option string) bool { return got[option] != c.words[option] }) {
						break
					}
				}
				for option, want := range c.words {
					require.Equal(t, want, got[option], "%s, seed %d", name, seed)
				}
				require.InEpsilon(t, c.high, bounds["tis.high"], 0.12, "%s, seed %d", name, seed)
				require.InDelta(t, 0.23, bounds["clip.high"], 0.08, "%s, seed %d", name, seed)
				require.InDelta(t, 0.17, bounds["clip.low"], 0.08, "%s, seed %d", name, seed)
			}
		}
	}
	for seed := range uint64(4) {
		require.Empty(t, gradientWeights(weighed(seed, false, func(_, _, _, _ float64) float64 { return 1 })), "no weights")
		b := weighed(seed, false, func(_, _, _, _ float64) float64 { return 1 })
		b.Tensors["logp_gen"] = b.Tensors["logp_old"]
		require.Empty(t, gradientWeights(b), "weights that are all 1")
	}
}
