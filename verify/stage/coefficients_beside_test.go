package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// pairFiles adds three steps of two accumulated files to l: their pairs have a loss of the margin that is h, sums or means per token, and the loss of
// a file is what of makes of the mean of these and of a cross-entropy.
func pairFiles(l *Losses, perToken bool, each func(h float64) float64, of func(mean, nll float64) float64) {
	const rows, files = 12, 2
	rng := rand.New(rand.NewPCG(3, 11))
	for range 3 {
		x := map[string][]float64{}
		for _, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected", "pair_loss", "chosen_tokens", "rejected_tokens"} {
			x[name] = make([]float64, rows)
		}
		for r := range rows {
			n, m := float64(4+rng.IntN(20)), float64(4+rng.IntN(20))
			x["chosen_tokens"][r], x["rejected_tokens"][r] = n, m
			x["ref_chosen"][r], x["ref_rejected"][r] = -3*n, -4*m
			x["logp_chosen"][r], x["logp_rejected"][r] = x["ref_chosen"][r]+2*rng.NormFloat64(), x["ref_rejected"][r]+2*rng.NormFloat64()
			c, d := x["logp_chosen"][r]-x["ref_chosen"][r], x["logp_rejected"][r]-x["ref_rejected"][r]
			if perToken {
				c, d = c/n, d/m
			}
			x["pair_loss"][r] = float64(float32(each(c - d)))
		}
		b := &dump.Batch{Rows: rows, Meta: dump.Meta{MicroBatches: files}, Tensors: map[string]*dump.Tensor{}}
		var loss, nll []float64
		for f := range files {
			lo, hi := f*rows/files, (f+1)*rows/files
			var sum float64
			for _, v := range x["pair_loss"][lo:hi] {
				sum += v
			}
			nll = append(nll, float64(float32(3+rng.Float64())))
			loss = append(loss, float64(float32(of(sum/float64(hi-lo), nll[f]))))
			b.Files = append(b.Files, dump.FileInfo{Name: "f", Lo: lo, Hi: hi, MicroBatch: f})
		}
		for name, v := range x {
			b.Tensors[name] = &dump.Tensor{Data: v, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
		}
		b.Tensors["loss"], b.Tensors["nll_loss"] = &dump.Tensor{Data: loss, Layout: dump.PerFile, Type: format.F32}, &dump.Tensor{Data: nll, Layout: dump.PerFile, Type: format.F32}
		l.Add(b)
	}
}

func TestWeightOfACrossEntropyIsThatOfTheLosses(t *testing.T) {
	hinge := func(h float64) float64 { return max(0, 1-0.3*h) }
	weight := func(of func(mean, nll float64) float64) float64 {
		var l Losses
		pairFiles(&l, false, hinge, of)
		return l.Coefficients()["dpo.nll_weight"]
	}
	require.Equal(t, 0.23, weight(func(mean, nll float64) float64 { return mean + 0.23*nll }))
	require.Equal(t, 0.23, weight(func(mean, nll float64) float64 { return (mean + 0.23*nll) / 2 }))
	require.Zero(t, weight(func(mean, _ float64) float64 { return mean }), "there is none")
	require.Zero(t, weight(func(mean, nll float64) float64 { return mean - 0.23*nll }), "of the wrong sign")
	require.Zero(t, weight(func(mean, nll float64) float64 { return mean + 0.23*nll*nll }), "another term")
}

func TestNumbersOfALossPerTokenAreThoseOfThePairs(t *testing.T) {
	var l Losses
	pairFiles(&l, true, func(h float64) float64 { return 0.87*softplus(-0.3*h) + 0.13*softplus(0.3*h) }, func(mean, _ float64) float64 { return mean })
	found := l.Coefficients()
	require.InDelta(t, 0.3, found["dpo.beta"], 1e-12)
	require.InDelta(t, 0.13, found["dpo.label_smoothing"], 1e-12)
	require.False(t, math.IsNaN(found["dpo.nll_weight"]))
}
