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
	centred := rewarded(func(r []float64, group []int, i int) float64 {
		return (r[i] - centreOf("mean", before.Row("scores"), group, i)) / (spreadOf("std1", r, group) + 1e-4)
	})
	centred.Meta.Step = 2
	number(centred, 1000)
	for i, j := range []int{5, 12, 3, 9, 0, 14} { // rows of the first rollout were permuted
		for _, x := range before.Tensors {
			x.Data[i], x.Data[j] = x.Data[j], x.Data[i]
		}
	}
	o := stage.Judge(stage.Find("advantage/group"), now, set)
	found := ExplainRows(o, func(int) []*dump.Batch { return []*dump.Batch{before, now} })
	require.NotEmpty(t, found)
	require.Equal(t, "REWARDS-STALE", found[0].Hypothesis.ID)
	baseline := ExplainRows(stage.Judge(stage.Find("advantage/group"), centred, set), func(int) []*dump.Batch { return []*dump.Batch{before, now} })
	require.NotEmpty(t, baseline)
	require.Contains(t, baseline[0].Hypothesis.Title, "the rollout before")
	require.Equal(t, "ADV-CENTER", baseline[0].Hypothesis.ID)
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

// Mini-batches of a rollout in any order have the scores of the rows of the rollout before, as its penalty left them, or raw.
func TestScoresOfTheRolloutBeforeInTokenRewards(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("eos_token_id", 2.)
	for name, x := range map[string]string{"kl.place": "none", "eos.rule": "replace", "eos.penalty": "-1", "eos.test": "eos_id"} {
		set = set.With(name, parsed(name, x), "test")
	}
	raw := func(id int) float64 { return float64(id*id%23) / 8 }
	shaped := func(id int) float64 { return raw(id)*float64(1-id%3%2) - float64(id%3%2) }
	mini := func(step int, score func(id int) float64) *dump.Batch {
		b := updated(func(float64, float64) float64 { return 0 })
		b.Meta.Step = step
		reward, ids := make([]float64, len(b.Mask)), slices.Repeat([]float64{5}, len(b.Mask))
		of, s := make([]float64, b.Rows), make([]float64, b.Rows)
		for r := range b.Rows { // the rollout has 16 rows, of which each of its two mini-batches has every other one
			id, end := 16*((step-1)/2)+(10*r+step*7)%16/2*2+step%2, (r+1)*b.Cols-1
			of[r], s[r], reward[end], ids[end] = float64(id), raw(id), score(id), float64(2+id%3%2)
		}
		for name, x := range map[string][]float64{"token_rewards": reward, "response_ids": ids} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		for name, x := range map[string][]float64{"sample_id": of, "scores": s} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: x, Type: format.F32}
		}
		return b
	}
	for words, score := range map[string]func(id int) float64{"with what was made of them": func(id int) float64 { return shaped(id - 16) }, "": shaped} {
		o := stage.Judge(stage.Find("reward/token"), mini(4, score), set)
		found := ExplainRows(o, func(int) []*dump.Batch { return []*dump.Batch{mini(1, shaped), mini(2, shaped), mini(3, score)} })
		require.Equal(t, words == "", len(found) == 0, o.Lacking())
		if words != "" {
			require.Equal(t, "REWARDS-STALE", found[0].Hypothesis.ID)
			require.Contains(t, found[0].Hypothesis.Title, words)
		}
	}
}

// Token rewards with the KL of other rows, and with the coefficient of the rollout before.
func TestKLOfOtherRowsAndOfTheRolloutBefore(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	of := func(step int, declared, beta float64, by int) *dump.Batch {
		b := updated(func(float64, float64) float64 { return 0 })
		b.Meta.Step, b.Meta.Options = step, []dump.Option{{Name: "kl.beta", Value: declared}}
		kl, reward := mapped(b.Token("logp_new"), func(x float64) float64 { return float64(float32(x * x / 8)) }), make([]float64, len(b.Mask))
		for i := range reward {
			reward[i] = float64(float32(-beta * kl[(i+by*b.Cols)%len(kl)]))
		}
		for name, x := range map[string][]float64{"token_rewards": reward, "kl": kl} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: make([]float64, b.Rows), Type: format.F32}
		return b
	}
	set := convention.FromProfile(p).With("kl.place", parsed("kl.place", "token_reward"), "test").With("kl.beta", parsed("kl.beta", "0.12"), "test")
	beside := func(int) []*dump.Batch { return []*dump.Batch{of(1, 0.1, 0.1, 0)} }
	require.Empty(t, ExplainRows(stage.Judge(stage.Find("reward/token"), of(2, 0.12, 0.12, 0), set), beside))
	for id, b := range map[string]*dump.Batch{"KL-BETA": of(2, 0.12, 0.1, 0), "KL-OF-OTHER-ROWS": of(2, 0.12, 0.12, 3)} {
		found := ExplainRows(stage.Judge(stage.Find("reward/token"), b, set), beside)
		require.NotEmpty(t, found, id)
		require.Equal(t, id, found[0].Hypothesis.ID)
	}
}
