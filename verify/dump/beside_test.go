package dump_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// A loss that reads the advantages of rows of another step is named, though no row of its own step has them.
func TestRowsOfAnotherStep(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{trlGRPO})
	require.NoError(t, err)
	var steps dump.Batches
	var advantages [][]float64
	for _, step := range run.Steps() {
		b, err := run.Batch(context.Background(), step)
		require.NoError(t, err)
		steps = append(steps, b)
		advantages = append(advantages, slices.Clone(b.Row("advantages")))
	}
	for i, b := range steps {
		other := advantages[(i+1)%len(steps)]
		lp, old, kl, loss := b.Token("logp_new"), b.Token("logp_old"), b.Token("kl"), b.Token("token_loss")
		cells(b, func(i, row, _ int) {
			a, r := other[row], math.Exp(lp[i]-old[i])
			loss[i] = single(math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28))) + 0.04*kl[i])
		})
	}
	r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "trl-grpo@1.16"})
	require.NoError(t, err)
	at := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "token_loss/policy" })
	require.Equal(t, check.Fail, r.Results[at].Verdict)
	require.NotEmpty(t, r.Results[at].Explanations, r.Results[at].Reason)
	require.Equal(t, "ADV-ROWS-OF-OTHERS", r.Results[at].Explanations[0].Fault)
	require.Contains(t, r.Results[at].Explanations[0].Title, "of other steps")
}
