package dump_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Where each failing step has a bug that fits it alone, an edit that fits all of them is named: the mean over columns first divides a token by 8·6 of 8 rows of 4 tokens,
// which is the padded width, and by 4·6 where half of the rows have 3 tokens and half 1, which is one token too many of each.
func TestEditBesideABugOfEachStep(t *testing.T) {
	var list dump.Batches
	const rows, cols = 8, 6
	for step := range 4 {
		r := rand.New(rand.NewPCG(5, uint64(step)))
		b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dumpfile.Origin, rows), Files: []dumpfile.FileInfo{{Hi: rows, Cols: cols}}}
		b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize, b.Meta.DLogpScale = step, 1, 1, 1
		x, loss := make([]float64, rows*cols), 0.
		for i := range x {
			n, divisor := 4, 48.
			if step%2 == 1 {
				n, divisor = 1+2*(i/cols%2), 24
			}
			if b.Mask[i] = i%cols < n; b.Mask[i] && (step%2 == 0 || i%cols > 0) {
				x[i] = single(r.NormFloat64())
				loss += x[i] / divisor
			}
		}
		b.Tensors = map[string]*dumpfile.Tensor{
			"token_loss": {Name: "token_loss", Layout: dumpfile.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32},
			"logp_new":   {Name: "logp_new", Layout: dumpfile.PerToken, Width: 1, Shape: []int{rows, cols}, Data: slices.Repeat([]float64{-1}, rows*cols), Type: format.F32},
			"advantages": {Name: "advantages", Layout: dumpfile.PerRow, Width: 1, Shape: []int{rows}, Data: slices.Repeat([]float64{1}, rows), Type: format.F32},
			"pg_loss":    {Name: "pg_loss", Layout: dumpfile.PerFile, Width: 1, Shape: []int{1}, Data: []float64{single(loss)}, Type: format.F32},
		}
		list = append(list, b)
	}
	r, err := dump.Judge(context.Background(), list, dump.Options{Profile: "trl-grpo@1.16", Selection: check.Selection{Select: []string{"aggregate/pg_loss"}},
		Set: []string{"agg.kind=token", "agg.denominator=micro", "agg.div_ga=false", "kl.beta=0", "mean.eps=0"}})
	require.NoError(t, err)
	at := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "aggregate/pg_loss" })
	require.GreaterOrEqual(t, at, 0)
	require.Equal(t, check.Fail, r.Results[at].Verdict, r.Results[at].Reason)
	require.NotEmpty(t, r.Results[at].Explanations, r.Results[at].Reason)
	require.Contains(t, r.Results[at].Explanations[0].Title, "the mean over the responses of each column, and then over the columns")
}
