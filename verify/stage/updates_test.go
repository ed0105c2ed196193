package stage

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
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

// A step that accumulates more micro-batches than a generation batch has holds rows of several, whose groups have the same ids, and whose rows may come twice.
func TestSeveralGenerationsInAStep(t *testing.T) {
	for per, want := range map[float64]check.Verdict{1: check.Pass, 2: check.Pass, 3: check.Undetermined, 4: check.Undetermined} {
		for _, scale := range []string{"none", "batch_std"} {
			adv, unit := []float64{-1, 1, -2, 2}, 1.0
			g := newGrid(2, 2, 2, 2, 2).row("group_id", 0, 0, 0, 0).row("scores", 1, 3, 2, 6)
			if per != 1 {
				g.row("group_id", 0, 0, 1, 1)
			}
			if scale == "batch_std" {
				if unit = math.Sqrt(14. / 3); per == 1 {
					adv[0], adv[1], adv[2], adv[3] = -1/math.Sqrt2, 1/math.Sqrt2, -2/math.Sqrt(8), 2/math.Sqrt(8)
					unit = 1
				}
			}
			for i := range adv {
				adv[i] /= unit
			}
			g.row("advantages", adv...)
			g.Meta.Framework, g.Meta.MicroBatches = "trl", 2
			g.Files = []dump.FileInfo{{Lo: 0, Hi: 2, Cols: 2, PromptCols: -1}, {MicroBatch: 1, Lo: 2, Hi: 4, Cols: 2, PromptCols: -1}}
			g.Origin[2].File, g.Origin[3].File = 1, 1
			options := set(t, plainGroup+"adv.center=mean adv.scale="+scale+" adv.ddof=1 adv.eps=0 adv.zero_std=divide_eps adv.group_by=uid").
				WithFact("steps_per_generation", per).WithFact("gradient_accumulation_steps", 2.0)
			o := Judge(Find("advantage/group"), g.Batch, options)
			if per == 4 { // the other half of it is in the next step
				require.NotContains(t, o.Lacking(), "several", "%g", per)
				continue
			}
			require.Equal(t, want, o.Verdict, "%g, %s: %s", per, scale, o.Lacking())
			require.Equal(t, per == 3, strings.Contains(o.Lacking(), "several"), "%g: %s", per, o.Lacking())
			g.Tensors["advantages"].Data[3] *= 1.01
			require.NotEqual(t, check.Pass, Judge(Find("advantage/group"), g.Batch, options).Verdict, "%g, %s", per, scale)
			g.Meta.Framework = "own"
			require.NotContains(t, Judge(Find("advantage/group"), g.Batch, options).Lacking(), "several", "whose loop is not TRL's")
		}
	}
}

// Scores of one group id in two generation batches of a step are no scores of a group.
func TestSignalOfSeveralGenerations(t *testing.T) {
	g := newGrid(2, 2, 2, 2, 2).row("group_id", 0, 0, 0, 0).row("scores", 1, 1, 2, 2).row("advantages", 0, 0, 0, 0)
	g.Meta.Framework, g.Meta.MicroBatches = "trl", 2
	g.Files = []dump.FileInfo{{Lo: 0, Hi: 2, Cols: 2, PromptCols: -1}, {MicroBatch: 1, Lo: 2, Hi: 4, Cols: 2, PromptCols: -1}}
	g.Origin[2].File, g.Origin[3].File = 1, 1
	options := set(t, "").WithFact("steps_per_generation", 1.0).WithFact("gradient_accumulation_steps", 2.0)
	require.Equal(t, check.Pass, rules(t, "advantage/signal", g.Batch, options).Verdict)
	require.Equal(t, check.Fail, rules(t, "advantage/signal", g.Batch, options.WithFact("steps_per_generation", 2.0)).Verdict)
	g.Tensors["scores"].Data[3] = 5
	require.Equal(t, check.Fail, rules(t, "advantage/signal", g.Batch, options).Verdict)
}
