package dump_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Ratios of rows whose log-ratios the padded width divides, and the bounds that hold some of them, are told where nobody declares that a ratio is that of a row.
func TestRatiosOfRowsOverThePaddedWidth(t *testing.T) {
	var list dump.Batches
	for step := range 3 {
		b := untold(t, step)
		lp, old, adv, loss := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages"), b.Token("token_loss")
		for r := range b.Rows {
			sum := 0.0
			cells(b, func(i, row, col int) {
				if row == r {
					lp[i] = single(old[i] + 0.02*math.Cos(float64(i)) + 0.3*math.Sin(float64(2*r+step)))
					sum += lp[i] - old[i]
				}
			})
			cells(b, func(i, row, col int) {
				if c := math.Exp(sum / float64(b.Cols)); row == r {
					loss[i] = single(max(-adv[i]*c, -adv[i]*min(max(c, 0.96), 1.05)))
				}
			})
		}
		list = append(list, b)
	}
	r, err := dump.Judge(t.Context(), list, dump.Options{Profile: dump.NoProfile, Selection: check.Selection{Select: []string{"token_loss/policy"}}})
	require.NoError(t, err)
	require.Equal(t, check.Fail, r.Results[0].Verdict, describe(r.Results))
	require.True(t, slices.ContainsFunc(r.Results[0].Explanations, func(e check.Explanation) bool { return e.Fault == "RATIO-MEAN-PADS" && !e.Lead }), describe(r.Results))
}

func untold(t *testing.T, step int) *dumpfile.Batch {
	t.Helper()
	run, err := dumpfile.Open(t.Context(), []string{verlGRPO})
	require.NoError(t, err)
	b, err := run.Batch(t.Context(), run.Steps()[step])
	require.NoError(t, err)
	b.Meta.Framework, b.Meta.Version, b.Meta.Profile, b.Meta.Options = "", "", "", nil
	return b
}
