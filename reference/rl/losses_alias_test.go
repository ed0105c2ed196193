package rl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLossAliases: a destination may be the very slice of an input.
func TestLossAliases(t *testing.T) {
	lp, old, adv := lawBatch.LogProbs, lawBatch.Old, lawBatch.Adv
	mask, rows, cols := lawBatch.Mask, lawBatch.Rows, lawBatch.Cols
	ratio := Ratio(nil, lp, old, mask, rows, cols, RatioOptions{})
	for name, f := range map[string]func(dst, lp, old, adv, ratio []float64) []float64{
		"KL": func(dst, lp, old, adv, ratio []float64) []float64 {
			v, _ := KL(dst, nil, lp, old, nil, KLOptions{Kind: KLK3})
			return v
		},
		"KL gradient": func(dst, lp, old, adv, ratio []float64) []float64 {
			_, g := KL(nil, dst, lp, old, adv, KLOptions{Kind: KLK3, Grad: KLISCorrected})
			return g
		},
		"Ratio": func(dst, lp, old, adv, ratio []float64) []float64 {
			return Ratio(dst, lp, old, mask, rows, cols, RatioOptions{Level: RatioSeqMean})
		},
		"PPO": func(dst, lp, old, adv, ratio []float64) []float64 {
			l, _ := PPO(dst, nil, ratio, adv, ClipOptions{Low: .2, High: .2})
			return l
		},
		"Reinforce": func(dst, lp, old, adv, ratio []float64) []float64 {
			_, d := Reinforce(nil, dst, lp, adv, ratio)
			return d
		},
		"VESPOWeight": func(dst, lp, old, adv, ratio []float64) []float64 {
			return VESPOWeight(dst, lp, old, adv, nil, mask, rows, cols, VESPODefaults)
		},
		"GMPO": func(dst, lp, old, adv, ratio []float64) []float64 {
			_, d := GMPO(nil, dst, lp, old, adv, mask, rows, cols, GMPOOptions{Low: .2, High: .2})
			return d
		},
		"ISWeights": func(dst, lp, old, adv, ratio []float64) []float64 {
			return ISWeights(dst, lp, old, mask, rows, cols, TISOptions{Level: TISSeqGeo, High: 2})
		},
		"OffPolicyMask": func(dst, lp, old, adv, ratio []float64) []float64 {
			return OffPolicyMask(dst, lp, old, adv, mask, rows, cols, .1)
		},
		"Aggregate": func(dst, lp, old, adv, ratio []float64) []float64 {
			_, w, err := Aggregate(dst, lp, mask, rows, cols, AggOptions{Kind: AggSeqMeanTokenMean})
			require.NoError(t, err)
			return w
		},
		"TokenCovariance": func(dst, lp, old, adv, ratio []float64) []float64 {
			return TokenCovariance(dst, lp, adv, mask, 0)
		},
	} {
		want := f(nil, lp, old, adv, ratio)
		for which := range 4 {
			in := [4][]float64{}
			for i, x := range [][]float64{lp, old, adv, ratio} {
				in[i] = append([]float64{}, x...)
			}
			require.True(t, sameBits(want, f(in[which], in[0], in[1], in[2], in[3])), "%s over input %d", name, which)
		}
	}
}
