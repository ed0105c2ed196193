package dump_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// The profile of verl 0.8 does not say whether a loss is divided by the accumulation steps; its gradient is that of the same loss.
func TestGradientOfAnotherLoss(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{"../../golden/dumps/verl/clean/ppo"})
	require.NoError(t, err)
	for _, name := range []string{"", "dvalues", "dlogp"} {
		var steps dump.Batches
		for b, err := range run.Batches(context.Background()) {
			require.NoError(t, err)
			if name != "" {
				half := slices.Clone(b.Token(name))
				for i := range half {
					half[i] /= 2
				}
				b = b.With(name, half)
			}
			steps = append(steps, b)
		}
		r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "verl-ppo@0.8"})
		require.NoError(t, err)
		if name == "" {
			require.Empty(t, bad(r), describe(bad(r)))
			continue
		}
		require.Len(t, bad(r), 1, describe(bad(r)))
		res := bad(r)[0]
		require.Equal(t, check.Fail, res.Verdict)
		require.Equal(t, "gradient/"+name, res.Check)
		require.Contains(t, res.Reason, "it is right only with agg.div_ga=true, and aggregate/")
		require.NotZero(t, res.Where)
	}
}
