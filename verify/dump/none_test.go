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

// verl's critic has no coefficient of the value loss: gradients that one would explain are right but for a factor, and that is what is
// said first.
func TestAnOptionThatTheFrameworkLacksIsNoName(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{verlPPO})
	require.NoError(t, err)
	var steps dump.Batches
	for b, err := range run.Batches(context.Background()) {
		require.NoError(t, err)
		x := slices.Clone(b.Token("dvalues"))
		for i := range x {
			x[i] *= 4
		}
		steps = append(steps, b.With("dvalues", x))
	}
	r, err := dump.Judge(context.Background(), steps, dump.Options{})
	require.NoError(t, err)
	i := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "gradient/dvalues" })
	require.GreaterOrEqual(t, i, 0)
	res := r.Results[i]
	require.Equal(t, check.Fail, res.Verdict, res.Reason)
	require.NotEmpty(t, res.Explanations, res.Reason)
	require.Equal(t, "FACTOR", res.Explanations[0].Fault, "%+v", res.Explanations)
}
