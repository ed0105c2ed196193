package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A term of the length that advantages get once they are finished is named by its factor, where the scores have it and where nobody declares ε, too.
func TestShapingBehindTheBaseline(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	ch := stage.Find("advantage/group")
	judge := func(inScores bool, term func(n float64) float64) (b *dump.Batch) {
		return longRows(func(b *dump.Batch, right []float64) []float64 {
			y := make([]float64, len(right))
			for i := range y {
				n := []int{10, 3, 7, 10, 5, 9, 10, 2, 4}[i%9]
				for k := range b.Cols {
					b.Mask[i*b.Cols+k] = k < n
				}
				if y[i] = right[i] + term(float64(n)); inScores {
					b.Row("scores")[i] = float64(float32(b.Row("scores")[i] + term(float64(n))))
				}
			}
			return y
		})
	}
	b := judge(true, func(n float64) float64 { return -0.7 * n / 10 })
	requireName(t, stage.Judge(ch, b, set), "PENALTY-AFTER-BASELINE", "-0.07 for each token of the response, which the scores have, is added")
	requireNoName(t, stage.Judge(ch, judge(true, func(n float64) float64 { return -0.02 * n * n }), set))
	told := false
	for _, changes := range ShownUnder(ch, b, &convention.Set{}) {
		for _, c := range changes {
			told = told || c.Option == "adv.eps" && c.To.Num() == 1e-4
		}
	}
	require.True(t, told)
}
