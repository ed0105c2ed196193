package fault

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Advantages of the rewards of the rollout before are named where that is in the dump, in whatever order its rows were dealt out to steps.
func TestRewardsOfTheRolloutBefore(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	of := func(r []float64, group []int, i int) float64 {
		return (r[i] - centreOf("mean", r, group, i)) / (spreadOf("std1", r, group) + 1e-4)
	}
	before := rewarded(of)
	slices.Reverse(before.Tensors["scores"].Data)
	now := rewarded(func(r []float64, group []int, i int) float64 { return of(before.Row("scores"), group, i) })
	before.Meta.Step, now.Meta.Step = 1, 2
	number := func(b *dump.Batch, first float64) {
		id := make([]float64, b.Rows)
		for i := range id {
			id[i] = first + float64(i)
		}
		b.Tensors["sample_id"] = &dump.Tensor{Name: "sample_id", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: id, Type: format.F32}
	}
	number(before, 0)
	number(now, 1000)
	for i, j := range []int{5, 12, 3, 9, 0, 14} { // rows of the first rollout were permuted
		for _, x := range before.Tensors {
			x.Data[i], x.Data[j] = x.Data[j], x.Data[i]
		}
	}
	o := stage.Judge(stage.Find("advantage/group"), now, set)
	found := ExplainRows(o, func(int) []*dump.Batch { return []*dump.Batch{before, now} })
	require.NotEmpty(t, found)
	require.Equal(t, "REWARDS-STALE", found[0].Hypothesis.ID)
	require.Empty(t, ExplainRows(o, func(int) []*dump.Batch { return nil }), "the rollout before is not in the dump")
	number(before, 2000)
	require.Empty(t, ExplainRows(o, func(int) []*dump.Batch { return []*dump.Batch{before} }), "it was sampled later")
	healthy := stage.Judge(stage.Find("advantage/group"), rewarded(of), set)
	require.Empty(t, ExplainRows(healthy, func(int) []*dump.Batch { return []*dump.Batch{before} }))
}

// The steps of a second epoch are no rollout before that of the first one.
func TestTheRolloutBeforeHasOtherGroups(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	of := func(r []float64, group []int, i int) float64 {
		return (r[i] - centreOf("mean", r, group, i)) / (spreadOf("std1", r, group) + 1e-4)
	}
	before := rewarded(of)
	slices.Reverse(before.Tensors["scores"].Data)
	stale := func(_ []float64, group []int, i int) float64 { return of(before.Row("scores"), group, i) }
	first, second := rewarded(stale), rewarded(stale)
	for i := range before.Tensors["group_id"].Data {
		before.Tensors["group_id"].Data[i] += 100
	}
	before.Meta.Step, first.Meta.Step, second.Meta.Step = 1, 2, 3
	found := ExplainRows(stage.Judge(stage.Find("advantage/group"), second, set), func(int) []*dump.Batch { return []*dump.Batch{before, first} })
	require.NotEmpty(t, found)
	require.Equal(t, "REWARDS-STALE", found[0].Hypothesis.ID)
}
