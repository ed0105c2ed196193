package stage

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// Whatever the loss is, β is what the logged implicit rewards are times the log-ratios; of one that is off, no number is.
func TestTheCoefficientOfPreferencesIsThatOfTheLoggedRewards(t *testing.T) {
	run := func(off float64) map[string]float64 {
		rng := rand.New(rand.NewPCG(5, 9))
		var l Losses
		for step := range 3 {
			const rows = 8
			x := map[string][]float64{}
			for _, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected", "pair_loss"} {
				x[name] = make([]float64, rows)
			}
			file := dump.FileInfo{Name: "f", Hi: rows}
			for r := range rows {
				for _, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"} {
					x[name][r] = -20 - 10*rng.Float64()
				}
				h := x["logp_chosen"][r] - x["logp_rejected"][r] - x["ref_chosen"][r] + x["ref_rejected"][r]
				x["pair_loss"][r] = max(0, 1-0.37*h)
			}
			for _, of := range []string{"chosen", "rejected"} {
				var mean float64
				for r := range rows {
					mean += 0.37 * (x["logp_"+of][r] - x["ref_"+of][r]) / rows
				}
				if step == 1 {
					mean += off
				}
				file.Scalars = append(file.Scalars, dump.Scalar{Name: "rewards/" + of, Value: float64(float32(mean))})
			}
			b := &dump.Batch{Rows: rows, Files: []dump.FileInfo{file}, Tensors: map[string]*dump.Tensor{}}
			for name, v := range x {
				b.Tensors[name] = &dump.Tensor{Data: v, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
			}
			l.Add(b)
		}
		return l.Coefficients()
	}
	require.Equal(t, map[string]float64{"dpo.beta": 0.37}, run(0))
	require.Empty(t, run(0.01))
}
