package fault_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"plumbline/verify/check"
	"plumbline/verify/fault"
	"plumbline/verify/stage"

	"github.com/stretchr/testify/require"
)

// groupMoments returns the mean and the deviation of the group of every row.
func groupMoments(r, id []float64) (mean, deviation []float64) {
	for i := range r {
		var x []float64
		for j := range r {
			if id[j] == id[i] {
				x = append(x, r[j])
			}
		}
		var m, square float64
		for _, v := range x {
			m += v / float64(len(x))
		}
		for _, v := range x {
			square += (v - m) * (v - m)
		}
		mean, deviation = append(mean, m), append(deviation, math.Sqrt(square/float64(len(x)-1)))
	}
	return mean, deviation
}

// Statistics of rows that stand one row, or one group, off against the rewards are named by how they are moved.
func TestMovedStatistics(t *testing.T) {
	const g, rows = 4, 16
	for words, from := range map[string]func(k int) int{
		"those of the answer before, of the first that of the last": func(k int) int { return (k + rows - 1) % rows }, "those of the answer behind, of the last its own": func(k int) int { return min(k+1, rows-1) },
	} {
		for what, part := range map[string]int{"baselines are ": 1, "deviations are ": 2, "baselines and deviations are ": 3} {
			b := grouped([]int{g, g, g, g}, func(r, id []float64) []float64 {
				slices.Sort(id)
				m, s := groupMoments(r, id)
				adv := make([]float64, rows)
				for k := range adv {
					at, of := k, k
					if part&1 != 0 {
						at = from(k)
					}
					if part&2 != 0 {
						of = from(k)
					}
					adv[k] = (r[k] - m[at]) / (s[of] + 1e-6)
				}
				return adv
			})
			requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t)), "ADV-OTHER-GROUP", what+words)
		}
	}
}

// Groups of rows in no order whose statistics are those of sets that cut across them are named without knowing the sets, and numbers that are of no sets are not.
func TestStatisticsAcrossGroups(t *testing.T) {
	for _, scale := range []string{"group_std", "none"} {
		for _, off := range []float64{0, 0.01} {
			b := grouped([]int{4, 4, 4, 4, 4}, func(r, id []float64) []float64 {
				sets, adv, taken := make([]float64, 20), make([]float64, 20), map[float64]float64{}
				for i, g := range id {
					sets[i], taken[g] = float64(int(taken[g]+g)%5), taken[g]+1
				}
				m, s := groupMoments(r, sets)
				for i, g := range id {
					at := slices.Index(sets, g)
					if adv[i] = r[i] - m[at]; g == 0 {
						adv[i] += off
					}
					if scale == "group_std" {
						adv[i] /= s[at] + 1e-6
					}
				}
				return adv
			})
			o := stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.scale", scale))
			if off == 0 {
				requireFirst(t, o, "ADV-WRONG-GROUPS", "along one axis and given back along another")
				continue
			}
			require.Equal(t, check.Fail, o.Verdict)
			for _, e := range fault.Explain(o) {
				require.False(t, e.Hypothesis.ID == "ADV-WRONG-GROUPS" && !e.Lead, e.Hypothesis.Title)
			}
		}
	}
}

// Differences from a baseline that are divided by another number of the batch than their deviation are named by the number.
func TestCentredSpreads(t *testing.T) {
	for words, by := range map[string]func(x []float64, square, absolute float64) float64{
		"divided by the mean square":           func(x []float64, square, _ float64) float64 { return square / float64(len(x)) },
		"divided by the largest magnitude":     func(x []float64, _, _ float64) float64 { return max(slices.Max(x), -slices.Min(x)) },
		"divided by the mean absolute":         func(x []float64, _, absolute float64) float64 { return absolute / float64(len(x)) },
		"divided by the root of the deviation": func(x []float64, square, _ float64) float64 { return math.Sqrt(math.Sqrt(square / float64(len(x)-1))) },
	} {
		b := grouped([]int{4, 4, 4, 4}, func(r, id []float64) []float64 {
			m, _ := groupMoments(r, id)
			x := make([]float64, len(r))
			var square, absolute float64
			for i := range x {
				x[i] = (r[i] - m[i]) * 4 / 3
				square, absolute = square+x[i]*x[i], absolute+math.Abs(x[i])
			}
			s := by(x, square, absolute) + 1e-6
			for i := range x {
				x[i] /= s
			}
			return x
		})
		o := stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.center", "loo", "adv.scale", "batch_std", "adv.std_of", "centred"))
		require.True(t, slices.ContainsFunc(fault.Explain(o), func(e fault.Explanation) bool {
			return e.Hypothesis.ID == "ADV-SPREAD" && strings.Contains(e.Hypothesis.Title, words)
		}), words)
	}
}

// The deviation of the others of a group may be in an advantage twice, or multiply it.
func TestDeviationOfOthersTwice(t *testing.T) {
	for words, of := range map[string]func(a, s float64) float64{
		"deviation of the others twice":             func(a, s float64) float64 { return a / s / s },
		"multiplied by the deviation of the others": func(a, s float64) float64 { return a * s },
	} {
		b := grouped([]int{5, 5, 5}, func(r, id []float64) []float64 {
			adv := make([]float64, len(r))
			for i := range r {
				others, ids := slices.Delete(slices.Clone(r), i, i+1), slices.Delete(slices.Clone(id), i, i+1)
				m, s := groupMoments(others, ids)
				at := slices.Index(ids, id[i])
				adv[i] = of(r[i]-m[at], s[at]+1e-6)
			}
			return adv
		})
		requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.center", "loo", "adv.scale", "loo_std")), map[bool]string{true: "ADV-NORMALISED-TWICE", false: "ADV-SPREAD"}[strings.Contains(words, "twice")], words)
	}
}

// The variance of the others of a group is made of moments, each of which may be another.
func TestMomentsOfOthers(t *testing.T) {
	for _, f := range []struct {
		id, words string
		of        func(sum, squares, own, n float64) (mean, m, e2, by float64)
	}{
		{"ADV-CENTER", "in the baseline and in the variance", func(sum, sq, _, n float64) (float64, float64, float64, float64) {
			return sum / n, sum / n, sq / (n - 1), (n - 1) / (n - 2)
		}},
		{"ADV-SPREAD", "the mean of all rows stands", func(sum, sq, own, n float64) (float64, float64, float64, float64) {
			return sum / (n - 1), (sum + own) / n, sq / (n - 1), (n - 1) / (n - 2)
		}},
		{"ADV-SPREAD", "of their squares, the sum of the other rows over", func(sum, sq, _, n float64) (float64, float64, float64, float64) {
			return sum / (n - 1), sum / (n - 1), sq / n, (n - 1) / (n - 2)
		}},
		{"ADV-DDOF", "(k + 1)/k", func(sum, sq, _, n float64) (float64, float64, float64, float64) {
			return sum / (n - 1), sum / (n - 1), sq / (n - 1), n / (n - 1)
		}},
	} {
		b := grouped([]int{6, 6, 6}, func(r, id []float64) []float64 {
			adv := make([]float64, len(r))
			for i := range r {
				var sum, sq, n float64
				for j := range r {
					if id[j] == id[i] {
						n++
						if j != i {
							sum, sq = sum+r[j], sq+r[j]*r[j]
						}
					}
				}
				mean, m, e2, by := f.of(sum, sq, r[i], n)
				adv[i] = (r[i] - mean) / (math.Sqrt(max(e2-m*m, 0)*by) + 1e-6)
			}
			return adv
		})
		requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.center", "loo", "adv.scale", "loo_std", "adv.ddof", "1")), f.id, f.words)
	}
}

// A loop over groups that leaves out the first or the last one is told, and what that group has.
func TestGroupsLeftOut(t *testing.T) {
	for words, of := range map[string]func(id, r, m, s float64) (float64, bool){
		"the last group of the rollout keeps its scores":  func(id, r, _, _ float64) (float64, bool) { return r, id == 3 },
		"the first group of the rollout keeps its scores": func(id, r, _, _ float64) (float64, bool) { return r, id == 0 },
		"the last group of the rollout is centred":        func(id, r, m, _ float64) (float64, bool) { return r - m, id == 3 },
		"the first group of the rollout has advantages":   func(id, r, _, _ float64) (float64, bool) { return 0, id == 0 },
	} {
		b := grouped([]int{4, 4, 4, 4}, func(r, id []float64) []float64 {
			m, s := groupMoments(r, id)
			adv := make([]float64, len(r))
			for i := range adv {
				first, last := slices.Min(id), slices.Max(id)
				at := 3 * (id[i] - first) / (last - first)
				if x, left := of(at, r[i], m[i], s[i]); left {
					adv[i] = x
				} else {
					adv[i] = (r[i] - m[i]) / (s[i] + 1e-6)
				}
			}
			return adv
		})
		requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, groupSet(t, "adv.center", "mean", "adv.scale", "group_std")), "ADV-GROUP-LEFT-OUT", words)
	}
}
