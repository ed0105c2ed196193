package fault

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Rewards of two functions that are normalised in their groups and added, and not normalised again over the batch.
func TestSumOfNormalisedRewards(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	weights := []float64{1, 0.5}
	set := convention.FromProfile(p).WithFact("num_generations", 4).WithFact("reward_weights", []any{weights[0], weights[1]}).
		With("adv.multi", parsed("adv.multi", "normalize_then_sum"), "test").With("adv.scale", parsed("adv.scale", "group_std"), "test")
	const eps = 1e-4 // grpo_trainer.py adds it to either deviation
	normal := func(x []float64, of []int) []float64 {
		var mean, square float64
		for _, j := range of {
			mean += x[j] / float64(len(of))
		}
		for _, j := range of {
			square += (x[j] - mean) * (x[j] - mean)
		}
		z := make([]float64, len(x))
		for _, j := range of {
			z[j] = (x[j] - mean) / (math.Sqrt(square/float64(len(of)-1)) + eps)
		}
		return z
	}
	judge := func(weights []float64, again bool) *stage.Outcome {
		var first, second []float64
		b := rewarded(func(r []float64, _ []int, i int) float64 { first = r; return 0 })
		var all []int
		per, sum := make([]float64, 2*b.Rows), make([]float64, b.Rows)
		for i := range b.Rows {
			second = append(second, float64(float32(math.Sin(float64(i*i)))))
			per[2*i], per[2*i+1] = first[i], second[i]
			all = append(all, i)
		}
		for lo := 0; lo < b.Rows; lo += 4 {
			x, y := normal(first, all[lo:lo+4]), normal(second, all[lo:lo+4])
			for i := lo; i < lo+4; i++ {
				sum[i] = weights[0]*x[i] + weights[1]*y[i]
			}
		}
		if again {
			sum = normal(sum, all)
		}
		for i := range sum {
			sum[i] = float64(float32(sum[i]))
		}
		b.Tensors["advantages"].Data = sum
		b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 2, Shape: []int{b.Rows, 2}, Data: per, Type: format.F32}
		return stage.Judge(stage.Find("advantage/group"), b, set)
	}
	require.Equal(t, check.Pass, judge(weights, true).Verdict)
	requireName(t, judge(weights, false), "ADV-MULTI", "the sum of the normalised rewards is not normalised over the batch")
	requireName(t, judge([]float64{1, 1}, false), "ADV-MULTI", "without their weights")
	requireName(t, judge([]float64{0.5, 1}, true), "REWARD-WEIGHTS", "in the reverse order of the functions")
	requireName(t, judge([]float64{0, 0.5}, true), "REWARD-ONE-FUNCTION", "that of function 2 of 2, and 0 for the others")
}

// Weights of other functions are named in the advantages of scores that are right.
func TestAdvantagesOfOtherWeights(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	for words, weights := range map[string][]float64{"": {1, 0.5, 2}, "in the reverse order": {2, 0.5, 1}, "in another order: 1, 2, 0.5": {1, 2, 0.5}, "0 for function 2 of 3": {1, 0, 2},
		"their sum for all functions": {3.5, 3.5, 3.5}, "their mean for all functions": {3.5 / 3, 3.5 / 3, 3.5 / 3}, "their share of the sum": {1 / 3.5, 0.5 / 3.5, 2 / 3.5}} {
		scaled := !strings.HasPrefix(words, "their") // a common factor shows where nothing is divided by the deviation
		var per []float64
		sums := func(r []float64, w []float64) (sum []float64) {
			per = per[:0]
			for i, x := range r {
				y, z := float64(float32(math.Sin(float64(i*i)))), float64(float32(math.Cos(float64(i*i))))
				per, sum = append(per, x, y, z), append(sum, float64(float32(w[0]*x+w[1]*y+w[2]*z)))
			}
			return sum
		}
		var scores []float64
		b := rewarded(func(r []float64, group []int, i int) float64 {
			x := sums(r, weights)
			scores = sums(r, []float64{1, 0.5, 2})
			if !scaled {
				return x[i] - centreOf("mean", x, group, i)
			}
			return (x[i] - centreOf("mean", x, group, i)) / (spreadOf("std1", x, group) + 1e-4)
		})
		b.Tensors["scores"].Data = scores
		b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 3, Shape: []int{b.Rows, 3}, Data: per, Type: format.F32}
		set := convention.FromProfile(p).WithFact("num_generations", 4).WithFact("reward_weights", []any{1.0, 0.5, 2.0})
		if !scaled {
			set = set.With("adv.scale", parsed("adv.scale", "none"), "test")
		}
		o := stage.Judge(stage.Find("advantage/group"), b, set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "REWARD-WEIGHTS", words)
	}
}

// One of the rewards of a dialogue's turns that stands for their sum is named.
func TestAdvantagesOfOneTurn(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	for id, f := range map[string]func(first, second float64, two bool) float64{
		"REWARD-ONE-FUNCTION": func(first, second float64, two bool) float64 {
			return map[bool]float64{true: second, false: first}[two]
		},
		"ADV-REWARDS": func(first, second float64, two bool) float64 {
			return (first + second) / map[bool]float64{true: 2, false: 1}[two]
		},
	} {
		var per, scores []float64
		b := rewarded(func(r []float64, group []int, i int) float64 {
			x := make([]float64, len(r))
			per, scores = nil, nil
			for j, first := range r {
				second := map[bool]float64{true: float64(float32(math.Sin(float64(j * j)))), false: 0}[j%3 > 0]
				x[j] = f(first, second, j%3 > 0)
				per, scores = append(per, first, second), append(scores, float64(float32(first+second)))
			}
			return (x[i] - centreOf("mean", x, group, i)) / (spreadOf("std1", x, group) + 1e-4)
		})
		b.Tensors["scores"].Data = scores
		b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 2, Shape: []int{b.Rows, 2}, Data: per, Type: format.F32}
		requireName(t, stage.Judge(stage.Find("advantage/group"), b, convention.FromProfile(p).WithFact("num_generations", 4)), id, "makes its advantage, not their sum")
	}
}

// Rewards of three functions that are normalised along the functions of a response, not along its group, and then over the batch.
func TestRewardsNormalisedAcrossFunctions(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	w := []float64{1, 0.5, 2}
	set := convention.FromProfile(p).WithFact("num_generations", 4).WithFact("reward_weights", []any{w[0], w[1], w[2]}).
		With("adv.multi", parsed("adv.multi", "normalize_then_sum"), "test").With("adv.scale", parsed("adv.scale", "group_std"), "test")
	var per, sums []float64
	of := func(x []float64, at []int, i int) float64 {
		return (x[i] - centreOf("mean", x, at, i)) / (spreadOf("std1", x, at) + 1e-4)
	}
	b := rewarded(func(r []float64, _ []int, i int) float64 {
		x, all := make([]float64, len(r)), make([]int, len(r))
		per, sums = nil, nil
		for j, first := range r {
			own := []float64{first, float64(float32(math.Sin(float64(j * j)))), float64(float32(math.Cos(float64(j * j))))}
			for k := range own {
				x[j] += w[k] * of(own, []int{0, 1, 2}, k)
			}
			all[j], per, sums = j, append(per, own...), append(sums, float64(float32(w[0]*own[0]+w[1]*own[1]+w[2]*own[2])))
		}
		return of(x, all, i)
	})
	b.Tensors["scores"].Data = sums
	b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 3, Shape: []int{b.Rows, 3}, Data: per, Type: format.F32}
	requireName(t, stage.Judge(stage.Find("advantage/group"), b, set), "ADV-MULTI", "over the reward functions of its response")
}

// A deviation of other numbers than the differences above it.
func TestDeviationsOfOtherRewards(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4).WithFact("reward_weights", []any{1.0, 0.5})
	for words, of := range map[string]func(first, second float64) float64{
		"of function 2 alone":   func(_, second float64) float64 { return second },
		"without their weights": func(first, second float64) float64 { return first + second },
	} {
		var per, scores []float64
		b := rewarded(func(r []float64, group []int, i int) float64 {
			x, of2 := make([]float64, len(r)), make([]float64, len(r))
			per, scores = nil, nil
			for j, first := range r {
				second := float64(float32(math.Sin(float64(j * j))))
				x[j], of2[j] = first+0.5*second, of(first, second)
				per, scores = append(per, first, second), append(scores, float64(float32(x[j])))
			}
			return (x[i] - centreOf("mean", x, group, i)) / (spreadOf("std1", of2, group) + 1e-4)
		})
		b.Tensors["scores"].Data = scores
		b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 2, Shape: []int{b.Rows, 2}, Data: per, Type: format.F32}
		requireName(t, stage.Judge(stage.Find("advantage/group"), b, set), "ADV-SPREAD", words)
	}
}

// Weights that nobody declares are those of the scores: advantages with others contradict them.
func TestWeightsOfTheScores(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	for _, declared := range []bool{true, false} {
		var per, scores []float64
		b := rewarded(func(r []float64, group []int, i int) float64 {
			x := make([]float64, len(r))
			per, scores = nil, nil
			for j, first := range r {
				second := float64(float32(math.Sin(float64(j * j))))
				x[j] = 0.5*first + second
				per, scores = append(per, first, second), append(scores, float64(float32(first+0.5*second)))
			}
			return (x[i] - centreOf("mean", x, group, i)) / (spreadOf("std1", x, group) + 1e-4)
		})
		b.Tensors["scores"].Data = scores
		b.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Layout: dump.PerRow, Width: 2, Shape: []int{b.Rows, 2}, Data: per, Type: format.F32}
		under := set
		if declared {
			under = set.WithFact("reward_weights", []any{1.0, 0.5})
		}
		found := Explain(stage.Judge(stage.Find("advantage/group"), b, under))
		require.NotEmpty(t, found)
		require.Equal(t, "REWARD-WEIGHTS", found[0].Hypothesis.ID)
		require.False(t, found[0].Hypothesis.Relative)
	}
}
