package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A penalty of long answers that scores have, and advantages get once they are finished, is named by where it begins and ends.
func TestPenaltyOfScoresBehindTheBaseline(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	b := longRows(func(b *dump.Batch, right []float64) []float64 {
		y := make([]float64, len(right))
		for i := range y {
			n := []int{10, 3, 7, 10, 5, 9, 10, 2}[i%8]
			for k := range b.Cols {
				b.Mask[i*b.Cols+k] = k < n
			}
			penalty := -min(max(float64(n)-6, 0), 4) / 4
			b.Row("scores")[i] = float64(float32(b.Row("scores")[i] + penalty))
			y[i] = right[i] + penalty
		}
		return y
	})
	requireName(t, stage.Judge(stage.Find("advantage/group"), b, convention.FromProfile(p)), "PENALTY-AFTER-BASELINE", "longer than 6 tokens, down to −1 at 10, which their scores have")
}
