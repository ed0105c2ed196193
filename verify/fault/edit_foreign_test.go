package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Baselines and spreads that no estimator has are wrong whatever a run declares. The largest of rewards of two values may be that of a greedy answer, and rewards
// by their size alone are a scale that a program may choose.
func TestFormsThatNoEstimatorHas(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	for _, c := range []struct {
		centre, spread string
		bits, relative bool
	}{{"max", "std1", false, false}, {"min", "std1", false, false}, {"max", "std1", true, true}, {"mean", "rms", false, false}, {"none", "rms", false, true}} {
		b := rewarded(func(r []float64, group []int, i int) float64 {
			if c.bits {
				r[i] = float64(i * i % 16 % 5 % 2)
			}
			return 0
		})
		r := b.Row("scores")
		for i := range r {
			group := []int{i / 4 * 4, i/4*4 + 1, i/4*4 + 2, i/4*4 + 3}
			b.Row("advantages")[i] = float64(float32((r[i] - centreOf(c.centre, r, group, i)) / (spreadOf(c.spread, r, group) + 1e-4)))
		}
		found := Explain(stage.Judge(stage.Find("advantage/group"), b, convention.FromProfile(p)))
		require.NotEmpty(t, found, c)
		require.False(t, found[0].Lead, c)
		require.Equal(t, c.relative, found[0].Hypothesis.Relative, "%v: %s", c, found[0].Hypothesis.Title)
	}
}

// Advantages that are normalised at all, and over the rows of a rank, are of groups that are cut by ranks: they are normalised once.
func TestRowsOfARankAreNormalised(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	b := longRows(func(b *dump.Batch, _ []float64) []float64 {
		r, y := b.Row("scores"), make([]float64, b.Rows)
		for i := range y {
			group := []int{i / 4 * 4, i/4*4 + 1, i/4*4 + 2, i/4*4 + 3}
			y[i] = r[i] - centreOf("mean", r, group, i)
		}
		for _, rank := range [][]int{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}} {
			s := spreadOf("std1", y, rank) + 1e-4
			for _, i := range rank {
				y[i] /= s
			}
		}
		return y
	})
	o := stage.Judge(stage.Find("advantage/group"), b, convention.FromProfile(p).With("adv.scale", parsed("adv.scale", "none"), "test"))
	requireName(t, o, "ADV-GROUPS-PER-RANK", "normalised over the rows of its rank")
}
