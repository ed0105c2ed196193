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

// A supervised loss that is a mean over rows, which nobody says, and sums over the padding as well, is named on top of that mean.
func TestSupervisedMeanOverRows(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	var steps dump.Batches
	for step := range 2 {
		const rows, cols = 6, 8
		b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}, Origin: make([]dumpfile.Origin, rows),
			Files: []dumpfile.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
		b.Meta = dumpfile.Meta{Step: step, MicroBatches: 1, WorldSize: 1, Algorithm: "sft", Align: dumpfile.AlignShifted, DLogpScale: 1}
		lp, dlogp, loss := make([]float64, rows*cols), make([]float64, rows*cols), 0.0
		for row := range rows {
			n := float64(cols - row%3)
			for col := range cols {
				i := row*cols + col
				b.Mask[i] = float64(col) < n
				lp[i] = single(-0.5 - 3*r.Float64())
				dlogp[i] = single(-1 / n / rows)
				loss -= lp[i] / n / rows
			}
		}
		b.Tensors["logp_new"] = &dumpfile.Tensor{Name: "logp_new", Layout: dumpfile.PerToken, Width: 1, Shape: []int{rows, cols}, Data: lp, Type: format.F32}
		b.Tensors["dlogp"] = &dumpfile.Tensor{Name: "dlogp", Layout: dumpfile.PerToken, Width: 1, Shape: []int{rows, cols}, Data: dlogp, Type: format.F32}
		b.Tensors["loss"] = &dumpfile.Tensor{Name: "loss", Layout: dumpfile.PerFile, Width: 1, Shape: []int{1}, Data: []float64{single(loss)}, Type: format.F32}
		steps = append(steps, b)
	}
	report, err := dump.Judge(context.Background(), steps, dump.Options{})
	require.NoError(t, err)
	at := slices.IndexFunc(report.Results, func(r check.Result) bool { return r.Check == "gradient/dlogp" })
	require.Equal(t, check.Fail, report.Results[at].Verdict)
	require.NotEmpty(t, report.Results[at].Explanations, report.Results[at].Reason)
	require.Equal(t, "LOSS-MASK-PADS-ABOVE", report.Results[at].Explanations[0].Fault)
}
