package stage

import (
	"strings"
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

// A step that accumulates more micro-batches than a generation batch has holds rows of several, which nothing in a dump tells apart.
func TestSeveralGenerationsInAStep(t *testing.T) {
	for per, several := range map[float64]bool{1: true, 2: false, 3: true, 4: false} {
		g := newGrid(2, 2, 2, 2, 2).row("group_id", 0, 0, 1, 1).row("scores", 1, 3, 2, 6).row("advantages", -1, 1, -2, 2)
		g.Meta.Framework, g.Meta.MicroBatches = "trl", 2
		options := set(t, "adv.kind=group adv.center=mean adv.scale=none adv.group_by=uid kl.place=none whiten.scope=none").WithFact("steps_per_generation", per).WithFact("gradient_accumulation_steps", 2.0)
		o := Judge(Find("advantage/group"), g.Batch, options)
		require.Equal(t, several, strings.Contains(o.Lacking(), "several"), "%g: %s", per, o.Lacking())
		require.Equal(t, per == 2, o.Verdict == check.Pass, "%g: %s", per, o.Lacking())
		g.Meta.Framework = "own"
		require.NotContains(t, Judge(Find("advantage/group"), g.Batch, options).Lacking(), "several", "whose loop is not TRL's")
	}
}
