package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The first reward of a group is that of the answer that was sampled first, wherever its row stands.
func TestBaselineOfTheFirstAnswer(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	place := func(i int) int { return (i*7 + 3) % 16 } // of a row in the order of sampling
	b := rewarded(func(r []float64, group []int, i int) float64 {
		first := group[0]
		for _, j := range group {
			if place(j) < place(first) {
				first = j
			}
		}
		return (r[i] - r[first]) / (spreadOf("std1", r, group) + 1e-4)
	})
	id := &dump.Tensor{Name: "sample_id", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Type: format.F32}
	for i := range b.Rows {
		id.Data = append(id.Data, float64(place(i)))
	}
	b.Tensors["sample_id"] = id
	requireName(t, stage.Judge(stage.Find("advantage/group"), b, convention.FromProfile(p).WithFact("num_generations", 4)), "ADV-CENTER", "the first reward")
}
