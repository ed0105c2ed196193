package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

func TestUpdates(t *testing.T) {
	for _, c := range []struct {
		facts map[string]float64
		want  float64
	}{
		{nil, 1},
		{map[string]float64{"num_mini_batches": 4}, 4},
		{map[string]float64{"steps_per_generation": 8, "gradient_accumulation_steps": 2}, 4},
		{map[string]float64{"steps_per_generation": 2, "gradient_accumulation_steps": 2}, 1},
		{map[string]float64{"steps_per_generation": 3, "gradient_accumulation_steps": 2}, 1.5},
		{map[string]float64{"steps_per_generation": 3}, 3},
		{map[string]float64{"gradient_accumulation_steps": 4}, 1},
		{map[string]float64{"rollout_batch_size": 1024, "train_batch_size": 128}, 8},
		{map[string]float64{"rollout_batch_size": 128, "num_generations": 8, "train_batch_size": 256}, 4},
		{map[string]float64{"rollout_batch_size": 16, "num_generations": 1, "train_batch_size": 256}, 1},
		{map[string]float64{"train_batch_size": 1024, "ppo_mini_batch_size": 256, "num_generations": 5}, 4},
		{map[string]float64{"train_batch_size": 1024}, 1},
	} {
		set := &convention.Set{}
		for name, x := range c.facts {
			set = set.WithFact(name, x)
		}
		require.Equal(t, c.want, Updates(set), "%v", c.facts)
		require.Equal(t, 1.0, Updates(AsOneStep(set)), "%v", c.facts)
	}
}

// Of a part of a rollout some estimators cannot be tried: their statistics are over steps that are not there.
func TestLacksOtherSteps(t *testing.T) {
	g := newGrid(1, 1, 1, 1, 1).row("group_id", 0, 0, 1, 1).row("scores", 1, 0, 2, 0).row("advantages", .7, -.5, .5, -.5)
	open := set(t, plainGroup+"adv.center=mean adv.scale=none").With("adv.kind", mustParse(t, "adv.kind", "raw"), "search")
	whole := Judge(Find("advantage/group"), g.Batch, open.WithFact("num_mini_batches", 1.0))
	require.Equal(t, check.Fail, whole.Verdict)
	require.False(t, LacksOtherSteps(whole))
	part := Judge(Find("advantage/group"), g.Batch, open.WithFact("num_mini_batches", 4.0))
	require.Equal(t, check.Fail, part.Verdict)
	require.True(t, LacksOtherSteps(part))
}
