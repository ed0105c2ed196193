package dump_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// A loop of one's own declares what it has, not each number that it lacks. Bounds of ratios and what is added to counts can move each number
// so far and no further: losses beyond that are wrong under all of them, losses within it may be right under one.
func TestNumbersThatNobodyDeclaresReachSoFar(t *testing.T) {
	open := []string{"ratio.log_clamp", "clip.dual", "clip.delta", "loss.off_policy_max", "loss.top_entropy", "mean.eps"}
	profile, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	judged := func(seed uint64, use map[string]string, change func(b *dumpfile.Batch)) check.Result {
		s := plant.RandomScenario(profile, rand.New(rand.NewPCG(seed, 1)))
		s.Config.DType, s.Config.Compute, s.Config.FirstStep = format.F32, format.F32, false
		s.Config.Rows, s.Config.Cols = 16, 12
		for name, text := range use {
			v, err := convention.Parse(name, text)
			require.NoError(t, err)
			s.Config.Set = s.Config.Set.With(name, v, "test")
		}
		b, set := trainer.Healthy(s.Config)
		b = plant.Declared(b, set)
		b.Meta.Framework, b.Meta.Version = "mine", ""
		b.Meta.Options = slices.DeleteFunc(b.Meta.Options, func(o dumpfile.Option) bool { return o.Value == "–" || slices.Contains(open, o.Name) })
		change(b)
		r, err := dump.Judge(context.Background(), dump.Batches{b}, dump.Options{})
		require.NoError(t, err)
		i := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "token_loss/policy" })
		require.GreaterOrEqual(t, i, 0)
		return r.Results[i]
	}
	seeds, uses := uint64(2), []map[string]string{{"clip.dual": "1.37"}, {"ratio.log_clamp": "0.0173"}, {"clip.delta": "1.0127"}}
	if testing.Short() || !cases.All {
		seeds, uses = 1, uses[:1]
	}
	for seed := range seeds {
		r := judged(seed, nil, func(b *dumpfile.Batch) {
			x := slices.Clone(b.Token("token_loss"))
			for i := range x {
				x[i] = single(1.7*x[i] + 0.3*math.Sin(float64(i)))
			}
			b.Tensors["token_loss"].Data = x
		})
		require.Equal(t, check.Fail, r.Verdict, "seed %d: %s", seed, r.Reason)
		for _, use := range uses {
			r := judged(seed, use, func(*dumpfile.Batch) {})
			require.NotEqual(t, check.Fail, r.Verdict, "seed %d, %v: %s %+v", seed, use, r.Reason, r.Explanations)
		}
	}
}
