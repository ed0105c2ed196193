package fault

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// EOS does not count in the policy loss: responses that were cut off keep all of their tokens, and one of EOS alone has none, though it is one of the responses.
func TestWithoutEOS(t *testing.T) {
	for _, empty := range []string{"counted", "excluded"} {
		set := clippedLoss(t, "agg.kind", "seq_mean_token_mean", "agg.empty_rows", empty, "mean.eps", "0").WithFact("eos_token_id", 2.0)
		judge := func(drops bool) *stage.Outcome {
			ids := make([]float64, 0)
			b := summed(func(x []float64, mask []bool, rows, cols int) (sum float64) {
				clear(mask[5*cols+1 : 6*cols])
				for r := range rows {
					row := mask[r*cols : (r+1)*cols]
					_, last := firstLast(row)
					id := slices.Repeat([]float64{7}, cols)
					if r%3 > 0 {
						id[last] = 2
					}
					ids = append(ids, id...)
					mean, n := 0.0, 0.0
					for i, m := range row {
						if m && !(drops && id[i] == 2) {
							mean, n = mean+x[r*cols+i], n+1
						}
					}
					sum += mean / max(n, 1) / float64(rows)
				}
				return sum
			})
			b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: ids, Type: format.I64}
			b.Meta.DLogpScale = 1
			return stage.Judge(stage.Find("aggregate/pg_loss"), b, set)
		}
		require.Equal(t, check.Pass, judge(false).Verdict)
		requireName(t, judge(true), "LOSS-MASK-NO-EOS", "EOS does not count")
	}
}
