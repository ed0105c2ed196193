package stage_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Each micro-batch of a step that has a generation batch of its own is divided by the tokens of that one, as many times as the step has them.
func TestItemsOfSeveralGenerations(t *testing.T) {
	judged := 0
	for seed := range uint64(40) {
		tr := newTrainer(seed)
		b := tr.b
		if tr.micro < 2 {
			continue
		}
		x := tr.grid("token_loss", func(int) float64 { return 1 + tr.r.Float64() })
		tokens := make([]float64, tr.micro)
		for i, m := range b.Mask {
			if m {
				tokens[b.Files[b.Origin[i/b.Cols].File].MicroBatch]++
			}
		}
		if slices.Contains(tokens, 0) {
			continue
		}
		w := make([]float32, len(x))
		for i, m := range b.Mask {
			if m {
				w[i] = float32(float64(tr.ranks) / (tokens[b.Files[b.Origin[i/b.Cols].File].MicroBatch] * float64(tr.micro)))
			}
		}
		tr.perFile("loss", fileSums(b, w, x))
		b.Meta.Framework = "trl"
		several := reduction{kind: "token", where: "global"}.set(t, &convention.Set{}).WithFact("steps_per_generation", 1.)
		require.Equal(t, check.Pass, judged32(t, "aggregate/loss", b, several).Verdict, "%d", seed)
		b.Tensors["loss"].Data[0] += 0.01
		require.Equal(t, check.Fail, judged32(t, "aggregate/loss", b, several).Verdict, "%d", seed)
		judged++
	}
	require.Greater(t, judged, 5)
}
