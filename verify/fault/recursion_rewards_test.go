package fault_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// Rewards that were whitened over the whole batch, and advantages over a micro-batch each, are of no bug of the recursion.
func TestRecursionOfWhiteRewards(t *testing.T) {
	p, _, err := convention.Lookup("nplus@2023")
	require.NoError(t, err)
	scope := func(set *convention.Set, word string) *convention.Set {
		v, err := convention.Parse("whiten.scope", word)
		require.NoError(t, err)
		return set.With("whiten.scope", v, "test")
	}
	set := scope(trainer.Complete(p, rand.New(rand.NewPCG(1, 7))), "local_batch")
	require.Equal(t, "shift_mean_false", set.Value("rewards.whiten").String())
	b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 8, Files: 2, Seed: 1})
	adv := b.Token("advantages")
	for _, f := range b.Files {
		var n, sum, square float64
		part := adv[f.Lo*b.Cols : f.Hi*b.Cols]
		for _, a := range part {
			n, sum, square = n+1, sum+a, square+a*a
		}
		mean := sum / n
		for i, a := range part {
			part[i] = float64(float32((a - mean) / math.Sqrt(square/n-mean*mean+1e-8)))
		}
	}
	o := stage.Judge(stage.Find("gae/advantage"), b, scope(set, "minibatch"))
	require.Equal(t, check.Fail, o.Verdict, o.Lacking())
	for _, e := range fault.Explain(o) {
		require.True(t, e.Lead, e.Hypothesis.ID)
	}
}
