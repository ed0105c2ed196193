package fault_test

import (
	"slices"
	"testing"

	"plumbline/verify/stage"
)

// Baselines that go on from group to group are named by what they are made of.
func TestBaselinesThatGoOn(t *testing.T) {
	const n, g = 4, 4
	for words, of := range map[string]func(m []float64, k int) float64{
		"the mean of its group and of all groups before it": func(m []float64, k int) float64 {
			sum := 0.0
			for _, x := range m[:k+1] {
				sum += x
			}
			return sum / float64(k+1)
		},
		"all groups before it, of the first 0": func(m []float64, k int) float64 {
			sum := 0.0
			for _, x := range m[:k] {
				sum += x
			}
			return sum / float64(max(k, 1))
		},
		"the means of all groups but its own": func(m []float64, k int) float64 { return (m[0] + m[1] + m[2] + m[3] - m[k]) / 3 },
	} {
		for _, scale := range []string{"group_std", "none", "batch_std"} {
			b := grouped([]int{g, g, g, g}, func(r, id []float64) []float64 {
				slices.Sort(id)
				m, s := groupMoments(r, id)
				adv := make([]float64, n*g)
				for k := range adv {
					adv[k] = r[k] - of([]float64{m[0], m[g], m[2*g], m[3*g]}, k/g)
					switch scale {
					case "group_std":
						adv[k] /= s[k] + 1e-6
					case "batch_std":
						adv[k] /= byBatch(r) + 1e-6
					}
				}
				return adv
			})
			requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.scale", scale, "adv.std_of", "rewards")), "ADV-CENTER", words)
		}
	}
}
