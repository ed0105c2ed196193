package dump_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Weights that are in the dump multiply the losses: losses that are right only without them lack them, though nobody declares any.
func TestLossesWithoutTheirWeights(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{verlGRPO})
	require.NoError(t, err)
	for _, applied := range []bool{true, false} {
		var steps dump.Batches
		for _, step := range run.Steps() {
			b, err := run.Batch(context.Background(), step)
			require.NoError(t, err)
			b.Meta.Framework, b.Meta.Version, b.Meta.Profile, b.Meta.Options = "", "", "", nil
			old, loss := b.Token("logp_old"), b.Token("token_loss")
			gen, w := make([]float64, len(old)), make([]float64, len(old))
			cells(b, func(i, row, col int) {
				gen[i] = single(old[i] - 0.05*float64((row+2*col)%5-2))
				w[i] = single(math.Exp(old[i] - gen[i]))
				if applied {
					loss[i] = single(loss[i] * w[i])
				}
			})
			steps = append(steps, perToken(perToken(b, "logp_gen", gen), "is_weights", w))
		}
		r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: dump.NoProfile, Selection: check.Selection{Select: []string{"ratio/*", "token_loss/*"}}})
		require.NoError(t, err)
		if applied {
			require.Empty(t, bad(r), describe(bad(r)))
			continue
		}
		require.Len(t, bad(r), 1, describe(bad(r)))
		require.Equal(t, check.Fail, bad(r)[0].Verdict, describe(bad(r)))
		require.Equal(t, "IS-NOT-APPLIED", bad(r)[0].Explanations[0].Fault)
	}
}
