package dump_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// verl's profile leaves agg.denominator open: a program that divides by the tokens of the step contradicts nobody, and what is named is the bug
// beside it, not that value.
func TestOpenOptionsAreNoBug(t *testing.T) {
	p, _, err := convention.Lookup("verl-grpo@0.9")
	require.NoError(t, err)
	require.Equal(t, convention.Unknown, p.Value("agg.denominator").Kind())
	with := func(set *convention.Set, option, value string) *convention.Set {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		return set.With(option, v, "the dump")
	}
	for _, id := range []string{"IS-NOT-APPLIED", "AGG-GA-TWICE"} {
		set := trainer.Complete(p, rand.New(rand.NewPCG(3, 7)))
		for option, value := range map[string]string{"agg.kind": "token", "agg.denominator": "global", "loss.kind": "ppo", "ratio.level": "token", "tis.level": "token", "kl.place": "none", "kl.beta": "0", "entropy.coef": "0"} {
			set = with(set, option, value)
		}
		b, set, shows := trainer.Faulty(trainer.Config{Set: set, Rows: 48, Cols: 24, Files: 2, Seed: 3}, id)
		require.True(t, shows, id)
		b = plant.Declared(b, set.With("agg.denominator", convention.Value{}, ""))
		r, err := dump.Judge(context.Background(), dump.Batches{b.Without("token_loss")}, dump.Options{Profile: p.Name})
		require.NoError(t, err)
		require.NotEmpty(t, bad(r), id)
		for _, res := range bad(r) {
			require.Contains(t, []check.Verdict{check.Fail, check.Convention}, res.Verdict, describe(bad(r)))
			require.NotEmpty(t, res.Explanations, describe(bad(r)))
			require.Equal(t, id, res.Explanations[0].Fault, describe(bad(r)))
			require.False(t, slices.ContainsFunc(res.Explanations[0].Options, func(o check.OptionChange) bool { return o.Option == "agg.denominator" }))
		}
	}
}
