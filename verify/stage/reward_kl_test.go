package stage

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// Where scores are not dumped, the KL in the rewards of the tokens between them is judged all the same; rewards of each token are not.
func TestKLInRewardsWithoutScores(t *testing.T) {
	for name, c := range map[string]struct {
		times, dense float64
		want         check.Verdict
		of           func(kl []float64, t int) float64
	}{"right": {1, 0, check.Pass, nil}, "twice": {2, 0, check.Fail, nil}, "added": {-1, 0, check.Fail, nil}, "another number": {1.37, 0, check.Skip, nil}, "dense": {2, 1, check.Skip, nil},
		"the sum so far":      {1, 0, check.Fail, func(kl []float64, t int) float64 { return sumOf(kl[:t+1]) }},
		"the mean":            {1, 0, check.Fail, func(kl []float64, _ int) float64 { return sumOf(kl) / float64(len(kl)) }},
		"of the token before": {1, 0, check.Fail, func(kl []float64, t int) float64 { return kl[max(t-1, 0)] }},
		"the largest":         {1, 0, check.Skip, func(kl []float64, _ int) float64 { return slices.Max(kl) }}} {
		r := rand.New(rand.NewPCG(2, 7))
		const rows, cols = 4, 10
		kl, x := make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range kl {
			kl[i] = float64(float32(r.NormFloat64()))
		}
		for i := range kl {
			x[i] = float64(float32(-c.times*0.1*kl[i] + c.dense*r.NormFloat64()))
			if row := kl[i/cols*cols : i/cols*cols+cols]; c.of != nil {
				x[i] = float64(float32(-0.1 * c.of(row, i%cols)))
			}
			if i%cols == cols-1 {
				x[i] = float64(float32(x[i] + 1 + r.NormFloat64()))
			}
		}
		g := newGrid(cols, cols, cols, cols, cols).token("kl", kl...).token("token_rewards", x...)
		o := Judge(Find("reward/token"), g.Batch, set(t, "kl.place=token_reward kl.beta=0.1 kl.kind=k1 rewards.whiten=no adv.kind=gae"))
		require.Equal(t, c.want, o.Verdict, name)
		if c.want != check.Skip && (c.of == nil || name == "the mean") {
			require.Equal(t, rows*(cols-1), o.Tally.N+o.Exact, name)
		}
	}
}
