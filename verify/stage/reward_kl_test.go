package stage

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// Where scores are not dumped, the KL in the rewards of the tokens between them is judged all the same; rewards of each token are not.
func TestKLInRewardsWithoutScores(t *testing.T) {
	for name, c := range map[string]struct {
		times, dense float64
		want         check.Verdict
	}{"right": {1, 0, check.Pass}, "twice": {2, 0, check.Fail}, "added": {-1, 0, check.Fail}, "another number": {1.37, 0, check.Skip}, "dense": {2, 1, check.Skip}} {
		r := rand.New(rand.NewPCG(2, 7))
		const rows, cols = 4, 10
		kl, x := make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range kl {
			kl[i] = float64(float32(r.NormFloat64()))
			x[i] = float64(float32(-c.times*0.1*kl[i] + c.dense*r.NormFloat64()))
			if i%cols == cols-1 {
				x[i] = float64(float32(x[i] + 1 + r.NormFloat64()))
			}
		}
		g := newGrid(cols, cols, cols, cols, cols).token("kl", kl...).token("token_rewards", x...)
		o := Judge(Find("reward/token"), g.Batch, set(t, "kl.place=token_reward kl.beta=0.1 kl.kind=k1 rewards.whiten=no adv.kind=gae"))
		require.Equal(t, c.want, o.Verdict, name)
		if c.want != check.Skip {
			require.Equal(t, rows*(cols-1), o.Tally.N+o.Exact, name)
		}
	}
}
