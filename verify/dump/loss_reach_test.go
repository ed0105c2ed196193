package dump_test

import (
	"context"
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

// A loop that declares its loss, and dumps no losses of tokens, has no filter that it does not name; a bound that it does not name may have moved its
// loss, so far and no further.
func TestLossesOfALoopThatDeclaresThem(t *testing.T) {
	unnamed := []string{"ratio.log_clamp", "clip.dual", "clip.delta", "loss.off_policy_max", "loss.top_entropy", "mean.eps", "kl.clamp_in", "kl.clamp_out"}
	profile, _, err := convention.Lookup("verl-grpo@0.9")
	require.NoError(t, err)
	judged := func(dual string, less []string, change func(loss float64) float64) check.Result {
		s := plant.RandomScenario(profile, rand.New(rand.NewPCG(3, 1)))
		s.Config.DType, s.Config.Compute, s.Config.FirstStep = format.F32, format.F32, false
		s.Config.Rows, s.Config.Cols = 16, 12
		v, err := convention.Parse("clip.dual", dual)
		require.NoError(t, err)
		s.Config.Set = s.Config.Set.With("clip.dual", v, "test")
		b, set := trainer.Healthy(s.Config)
		b = plant.Declared(b, set)
		b.Meta.Framework, b.Meta.Version = "mine", ""
		b.Meta.Options = slices.DeleteFunc(b.Meta.Options, func(o dumpfile.Option) bool {
			return o.Value == "–" || slices.Contains(unnamed, o.Name) || slices.Contains(less, o.Name)
		})
		for _, name := range []string{"token_loss", "dlogp", "kl", "pg_loss", "kl_loss", "is_weights", "logits"} {
			delete(b.Tensors, name)
		}
		loss := slices.Clone(b.Tensors["loss"].Data)
		for i := range loss {
			loss[i] = single(change(loss[i]))
		}
		b.Tensors["loss"].Data = loss
		r, err := dump.Judge(context.Background(), dump.Batches{b}, dump.Options{})
		require.NoError(t, err)
		i := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "aggregate/loss" })
		require.GreaterOrEqual(t, i, 0)
		return r.Results[i]
	}
	same := func(x float64) float64 { return x }
	wrong := func(x float64) float64 { return 3.1*x + 1.7 }
	r := judged("1.37", nil, same)
	require.NotEqual(t, check.Fail, r.Verdict, r.Reason)
	r = judged("3", nil, wrong)
	require.Equal(t, check.Fail, r.Verdict, r.Reason)
	if !cases.All {
		return
	}
	r = judged("3", nil, same)
	require.Equal(t, check.Pass, r.Verdict, r.Reason)
	r = judged("3", []string{"clip.low"}, wrong)
	require.Equal(t, check.Undetermined, r.Verdict, "a bound that belongs to every loss is not declared")
}
