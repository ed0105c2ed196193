package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// TestBaselinesMadeOfTheirGroupsAreNoGreedyResponses subtracts one number from the scores of each group (ReMax) whose greedy responses were not dumped: numbers
// that are the means of the groups times 4/3 were made of these.
func TestBaselinesMadeOfTheirGroupsAreNoGreedyResponses(t *testing.T) {
	score := []float64{1, 2, 0.5, 4, -1, 3}
	verdict := func(baseline func(group int) float64) check.Verdict {
		b := &dump.Batch{Rows: 6, Cols: 2, Mask: make([]bool, 12), Origin: make([]dump.Origin, 6), Files: []dump.FileInfo{{Name: "f", Hi: 6, Cols: 2}}, Tensors: map[string]*dump.Tensor{}}
		adv, rewards, ids := make([]float64, 12), make([]float64, 12), make([]float64, 6)
		for r, s := range score {
			ids[r], rewards[2*r+1] = float64(r/2), s
			for i := 2 * r; i < 2*r+2; i++ {
				b.Mask[i], adv[i] = true, float64(float32(s-baseline(r/2)))
			}
		}
		for name, x := range map[string][]float64{"advantages": adv, "token_rewards": rewards} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{6, 2}}
		}
		b.Tensors["group_id"] = &dump.Tensor{Data: ids, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{6}}
		v, err := convention.Parse("adv.kind", "remax")
		require.NoError(t, err)
		return Judge(Find("advantage/return"), b, (&convention.Set{}).With("adv.kind", v, "")).Verdict
	}
	require.Equal(t, check.Pass, verdict(func(g int) float64 { return []float64{0.7, -0.2, 2.1}[g] }))
	require.NotEqual(t, check.Pass, verdict(func(g int) float64 { return (score[2*g] + score[2*g+1]) * 2 / 3 }))
}
