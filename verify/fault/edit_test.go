package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// rewarded returns a step of four groups of four responses and the advantages that a program makes of their scores.
func rewarded(advantage func(r []float64, group []int, i int) float64) *dump.Batch {
	r := rand.New(rand.NewPCG(7, 7))
	const rows, cols = 16, 3
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
		Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	scores, ids, adv := make([]float64, rows), make([]float64, rows), make([]float64, rows)
	for i := range scores {
		scores[i], ids[i] = float64(float32(r.NormFloat64())), float64(i/4)
	}
	for i := range b.Mask {
		b.Mask[i] = true
	}
	for i := range adv {
		var group []int
		for j := range adv {
			if j/4 == i/4 {
				group = append(group, j)
			}
		}
		adv[i] = float64(float32(advantage(scores, group, i)))
	}
	for name, x := range map[string][]float64{"scores": scores, "group_id": ids, "advantages": adv} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: x, Type: format.F32}
	}
	return b
}

// Formulas that are no entry of the catalogue are found by changing one part of the right one, and named by that part.
func TestAdvantageEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	moments := func(r []float64, group []int) (mean, std float64) {
		for _, j := range group {
			mean += r[j] / float64(len(group))
		}
		for _, j := range group {
			std += (r[j] - mean) * (r[j] - mean)
		}
		return mean, math.Sqrt(std / float64(len(group)-1))
	}
	const eps = 1e-4
	for _, c := range []struct {
		id, words string
		of        func(r []float64, group []int, i int) float64
	}{
		{"ADV-CENTER", "the median", func(r []float64, group []int, i int) float64 {
			_, std := moments(r, group)
			x := []float64{r[group[0]], r[group[1]], r[group[2]], r[group[3]]}
			for range x {
				for k := range 3 {
					x[k], x[k+1] = min(x[k], x[k+1]), max(x[k], x[k+1])
				}
			}
			return (r[i] - (x[1]+x[2])/2) / (std + eps)
		}},
		{"ADV-SPREAD", "variance", func(r []float64, group []int, i int) float64 {
			mean, std := moments(r, group)
			return (r[i] - mean) / (std*std + eps)
		}},
		{"ADV-SPREAD", "the size of the mean plus the deviation", func(r []float64, group []int, i int) float64 {
			mean, std := moments(r, group)
			return (r[i] - mean) / (math.Abs(mean) + std + eps)
		}},
		{"ADV-SPREAD", "range", func(r []float64, group []int, i int) float64 {
			mean, _ := moments(r, group)
			lo, hi := r[i], r[i]
			for _, j := range group {
				lo, hi = min(lo, r[j]), max(hi, r[j])
			}
			return (r[i] - mean) / (hi - lo + eps)
		}},
		{"ADV-SPREAD", "the means of the groups", func(r []float64, group []int, i int) float64 {
			mean, _ := moments(r, group)
			var means []float64
			for lo := 0; lo < len(r); lo += len(group) {
				m, _ := moments(r, []int{lo, lo + 1, lo + 2, lo + 3})
				means = append(means, m)
			}
			all := make([]int, len(means))
			for k := range all {
				all[k] = k
			}
			_, std := moments(means, all)
			return (r[i] - mean) / (std + eps)
		}},
		{"ADV-SPREAD", "0.7 times the right one", func(r []float64, group []int, i int) float64 {
			mean, std := moments(r, group)
			return (r[i] - mean) / (0.7*std + eps)
		}},
		{"ADV-REWARDS", "ranks", func(r []float64, group []int, i int) float64 {
			x := make([]float64, len(r))
			for _, j := range group {
				for _, k := range group {
					if r[k] < r[j] {
						x[j]++
					}
				}
			}
			mean, std := moments(x, group)
			return (x[i] - mean) / (std + eps)
		}},
		{"REWARD-CLIP-MISSING", "within ±0.5", func(r []float64, group []int, i int) float64 {
			x := make([]float64, len(r))
			for j, v := range r {
				x[j] = max(-0.5, min(v, 0.5))
			}
			mean, std := moments(x, group)
			return (x[i] - mean) / (std + eps)
		}},
		{"REWARD-CLIP-MISSING", "between 0 and 1", func(r []float64, group []int, i int) float64 {
			x := make([]float64, len(r))
			for j, v := range r {
				x[j] = max(0, min(v, 1))
			}
			mean, std := moments(x, group)
			return (x[i] - mean) / (std + eps)
		}},
		{"ADV-ONE-GROUP", "all rows of the step", func(r []float64, group []int, i int) float64 { // on one rank none is "the rank's"
			var mean float64
			for _, x := range r {
				mean += x / float64(len(r))
			}
			_, std := moments(r, group)
			return (r[i] - mean) / (std + eps)
		}},
	} {
		t.Run(c.words, func(t *testing.T) {
			requireName(t, stage.Judge(stage.Find("advantage/group"), rewarded(c.of), set), c.id, c.words)
		})
	}
	t.Run("noise", func(t *testing.T) { // what no formula gives gets no name
		noise := rand.New(rand.NewPCG(1, 2))
		requireNoName(t, stage.Judge(stage.Find("advantage/group"), rewarded(func([]float64, []int, int) float64 { return noise.NormFloat64() }), set))
	})
}

// Returns that are the advantages by definition have the same bug, and do not explain it.
func TestReturnsThatAreTheAdvantages(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"adv.center": "loo", "adv.scale": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	b := rewarded(func(r []float64, group []int, i int) float64 {
		var sum float64
		for _, j := range group {
			sum += r[j]
		}
		return r[i] - (sum-r[i])/float64(len(group))
	})
	b.Tensors["returns"] = &dump.Tensor{Name: "returns", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: make([]float64, b.Rows*b.Cols), Type: format.F32}
	adv := *b.Tensors["returns"]
	adv.Name, adv.Data = "advantages", b.Tensors["returns"].Data
	for i := range adv.Data {
		adv.Data[i] = b.Tensors["advantages"].Data[i/b.Cols]
	}
	b.Tensors["advantages"] = &adv
	o := stage.Judge(stage.Find("advantage/group"), b, set)
	requireName(t, o, "ADV-CENTER", "over the number of all rows")
	set = set.With("adv.center", parsed("adv.center", "mean"), "test")
	requireName(t, stage.Judge(stage.Find("advantage/group"), b, set), "ADV-CENTER", "over the number of all rows")
	b = rewarded(func(r []float64, group []int, i int) float64 {
		return r[i] - (r[group[0]]+r[group[1]]+r[group[2]]+r[group[3]]-r[i])/4
	})
	requireName(t, stage.Judge(stage.Find("advantage/group"), b, set), "ADV-CENTER", "over the number of all rows")
	b = rewarded(func(r []float64, group []int, i int) float64 {
		return 1.3*r[i] - (r[group[0]]+r[group[1]]+r[group[2]]+r[group[3]])/4
	})
	requireName(t, stage.Judge(stage.Find("advantage/group"), b, set), "EXTRA-TERM", "0.3 × scores")
}

// A loss has +β·KL and −c·entropy in it, a reward −β·KL: no coefficient makes the other sign.
func TestTermsAgainstTheirSign(t *testing.T) {
	for _, c := range []struct {
		output, name string
		k            float64
		want         bool
	}{
		{"token_loss", "kl", 0.5, false}, {"token_loss", "kl", -0.5, true}, {"token_loss", "entropy", 0.5, true}, {"token_loss", "entropy", -0.5, false},
		{"token_rewards", "kl", -0.5, false}, {"token_rewards", "kl", 0.5, true}, {"token_loss", "values", -0.5, false}, {"token_rewards", "entropy", 0.5, false},
	} {
		require.Equal(t, c.want, againstSign(&stage.Check{Output: c.output}, c.name, c.k), "%g × %s in %s", c.k, c.name, c.output)
	}
}

// √((n − 1)/n) and its inverse, of a group or of all rows, are what another number of degrees of freedom makes of a deviation; other factors are not.
func TestFactorsOfOtherFreedom(t *testing.T) {
	c := &stage.Case{B: rewarded(func([]float64, []int, int) float64 { return 0 })} // four groups of four
	for _, n := range []float64{4, 16} {
		require.True(t, otherFreedom(c, math.Sqrt((n-1)/n)))
		require.True(t, otherFreedom(c, math.Sqrt(n/(n-1))))
	}
	for _, k := range []float64{math.Sqrt(7. / 8), math.Sqrt(8. / 7), 0.5, 2} {
		require.False(t, otherFreedom(c, k))
	}
}

// Advantages that are the scores themselves, or half of them, have no baseline and no scale: the tensor is named.
func TestAdvantagesThatAreTheScores(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for k, want := range map[float64][2]string{1: {"ADV-CENTER", "those of scores"}, 0.5: {"OTHER-TENSOR", "the numbers are 0.5 × scores"}} {
		o := stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, _ []int, i int) float64 { return k * r[i] }), set)
		var found [][2]string
		for _, e := range newTrial(o).extraTerms() {
			found = append(found, [2]string{e.Hypothesis.ID, e.Hypothesis.Title})
		}
		require.Len(t, found, 1)
		require.Equal(t, want[0], found[0][0])
		require.Contains(t, found[0][1], want[1])
	}
}

// requireName demands that a failure is explained first by a bug of this id whose title has these words, and proven.
func requireName(t *testing.T, o *stage.Outcome, id, words string) {
	t.Helper()
	require.Equal(t, check.Fail, o.Verdict)
	found := Explain(o)
	require.NotEmpty(t, found)
	require.False(t, found[0].Lead)
	require.Equal(t, id, found[0].Hypothesis.ID, found[0].Hypothesis.Title)
	require.Contains(t, found[0].Hypothesis.Title, words)
}

// requireNoName demands that nothing more than a lead is said of a failure.
func requireNoName(t *testing.T, o *stage.Outcome) {
	t.Helper()
	require.Equal(t, check.Fail, o.Verdict)
	for _, e := range Explain(o) {
		require.True(t, e.Lead, e.Hypothesis.Title)
	}
}
