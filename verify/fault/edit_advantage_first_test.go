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

// A greedy answer chose the likeliest first token of its prompt: where another one of the group has a likelier one, the first reward is no baseline of ReMax.
func TestFirstAnswerIsNotGreedy(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	for _, greedy := range []bool{true, false} {
		b := longRows(func(b *dump.Batch, _ []float64) []float64 {
			y, x := make([]float64, b.Rows), b.Row("scores")
			lp := &dump.Tensor{Name: "logp_old", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: make([]float64, len(b.Mask)), Type: format.F32}
			for i := range y {
				g := i / 4 * 4
				y[i] = (x[i] - x[g]) / (spreadOf("std1", x, []int{g, g + 1, g + 2, g + 3}) + 1e-4)
				if lp.Data[i*b.Cols] = -1 - float64(i%4); !greedy {
					lp.Data[i*b.Cols] = -2 + float64(i%4)/4
				}
			}
			b.Tensors["logp_old"] = lp
			return y
		})
		o := stage.Judge(stage.Find("advantage/group"), b, convention.FromProfile(p).WithFact("num_generations", 4))
		requireName(t, o, "ADV-CENTER", "the first reward")
		require.Equal(t, greedy, Explain(o)[0].Hypothesis.Relative)
	}
}
