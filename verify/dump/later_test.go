package dump_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// A loss of which a file has one number, of a value loss that was not dumped, is judged under the clip of the values that their gradients show.
func TestClipsOfValuesAreThoseOfTheirGradients(t *testing.T) {
	const rows, cols, clip, coef, eps, steps = 6, 8, 0.1, 0.25, 0.2, 8
	var run dump.Batches
	for step := 1; step <= steps; step++ {
		rng := rand.New(rand.NewPCG(uint64(step), 7))
		b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dumpfile.Origin, rows), Files: []dumpfile.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dumpfile.Tensor{}}
		b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize = step, 1, 1
		x := map[string][]float64{}
		for _, name := range []string{"logp_new", "logp_old", "advantages", "values", "values_new", "returns", "token_loss", "dvalues"} {
			x[name] = make([]float64, rows*cols)
			b.Tensors[name] = &dumpfile.Tensor{Name: name, Data: x[name], Layout: dumpfile.PerToken, Width: 1, Shape: []int{rows, cols}, Type: format.F32}
		}
		var sum, n float64
		for i := range b.Mask {
			b.Mask[i] = i%cols < cols-i/cols // shorter and shorter
			n += map[bool]float64{true: 1}[b.Mask[i]]
		}
		cells(b, func(i, _, _ int) {
			for name, size := range map[string]float64{"logp_old": 1, "advantages": 1, "values": 0.5} {
				x[name][i] = single(size * rng.NormFloat64())
			}
			x["logp_old"][i] = -math.Abs(x["logp_old"][i])
			x["logp_new"][i], x["values_new"][i] = single(x["logp_old"][i]+0.2*rng.NormFloat64()), single(x["values"][i]+0.15*rng.NormFloat64())
			x["returns"][i] = single(x["values"][i] + 0.5*rng.NormFloat64())
			r, v, held := math.Exp(x["logp_new"][i]-x["logp_old"][i]), x["values_new"][i], x["values_new"][i]
			held = min(max(held, x["values"][i]-clip), x["values"][i]+clip)
			x["token_loss"][i] = single(max(-x["advantages"][i]*r, -x["advantages"][i]*min(max(r, 1-eps), 1+eps)))
			plain, kept := v-x["returns"][i], held-x["returns"][i]
			if sum += (x["token_loss"][i] + coef*max(plain*plain, kept*kept)) / n; plain*plain >= kept*kept {
				x["dvalues"][i] = single(2 * coef * plain / n)
			}
		})
		b.Tensors["loss"] = &dumpfile.Tensor{Name: "loss", Data: []float64{single(sum)}, Layout: dumpfile.PerFile, Width: 1, Shape: []int{1}, Type: format.F32}
		run = append(run, b)
	}
	report, err := dump.Judge(context.Background(), run, dump.Options{Profile: dump.NoProfile, Selection: check.Selection{Select: []string{"token_loss/policy", "aggregate/loss", "gradient/dvalues"}}})
	require.NoError(t, err)
	for _, r := range report.Results {
		require.Equal(t, check.Pass, r.Verdict, "%s: %s", r.Check, r.Reason)
	}
}
