package fault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// byBatch returns the deviation of all numbers, with n − 1.
func byBatch(x []float64) float64 {
	_, s := groupMoments(x, make([]float64, len(x)))
	return s[0]
}

// Baselines of groups whose differences are divided by the deviation of all rewards may be those of other groups, or made with another count, and are named as
// they are without the division; and the deviation may be that of the groups' means.
func TestBaselinesOverTheBatchDeviation(t *testing.T) {
	const n, g = 4, 4
	judge := func(center string, of func(r, m []float64, k int) float64, spread func(r, m []float64) []float64) *stage.Outcome {
		var sample []float64
		b := grouped([]int{g, g, g, g}, func(r, id []float64) []float64 {
			at, seen := make([]int, n*g), map[float64]int{} // the row of an answer
			for i, of := range id {
				k := int(of)*g + seen[of]
				seen[of]++
				at[k], sample = i, append(sample, float64(k))
			}
			m, _ := groupMoments(r, id)
			scores, means, adv := make([]float64, n*g), make([]float64, n*g), make([]float64, n*g)
			for k, i := range at {
				scores[k], means[k] = r[i], m[i]
			}
			s := byBatch(spread(scores, means)) + 1e-6
			for k, i := range at {
				adv[i] = (scores[k] - of(scores, means, k)) / s
			}
			return adv
		})
		b.Tensors["sample_id"] = &dump.Tensor{Name: "sample_id", Layout: dump.PerRow, Width: 1, Shape: []int{n * g}, Data: sample, Type: format.F32}
		return stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.center", center, "adv.scale", "batch_std", "adv.std_of", "rewards"))
	}
	rewards := func(r, _ []float64) []float64 { return r }
	own := func(_, m []float64, k int) float64 { return m[k] }
	o := judge("mean", own, rewards)
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	requireFirst(t, judge("mean", func(_, m []float64, k int) float64 { return m[k%n*g] }, rewards), "ADV-OTHER-GROUP", "repeated as a whole")
	requireFirst(t, judge("loo", func(r, m []float64, k int) float64 { return (g*m[k] - r[k]) / (n*g - 1) }, rewards), "ADV-CENTER", "the rows less 1")
	requireFirst(t, judge("mean", own, func(_, m []float64) []float64 { return m }), "ADV-SPREAD", "the means of the groups, one for every row")
}

// The baseline of an answer may be the reward of the one before it in its group.
func TestBaselineOfTheRowBefore(t *testing.T) {
	b := grouped([]int{4, 4, 4}, func(r, id []float64) []float64 {
		adv, last := make([]float64, len(r)), map[float64]float64{}
		for range 2 {
			for i, g := range id {
				adv[i], last[g] = r[i]-last[g], r[i]
			}
		}
		return adv
	})
	requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.center", "loo", "adv.scale", "none")), "ADV-CENTER", "the reward of the row before")
}
