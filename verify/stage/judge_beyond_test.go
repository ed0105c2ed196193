package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// What is declared and no option expresses makes a failure undetermined, not a pass, and only that of its stage.
func TestJudgeBeyondOptions(t *testing.T) {
	d, err := convention.Declare("openrlhf", "0.11.2", []convention.NameValue{{Name: "algo.advantage.estimator", Value: "reinforce_baseline"}, {Name: "reward.normalize_enable", Value: true}}, "test")
	require.NoError(t, err)
	require.Contains(t, d.Set.Beyond(convention.Advantage), "normalize_enable=true")
	plain := set(t, plainGroup+"adv.center=mean adv.scale=none").WithFact("num_generations", 2.0)
	open, _ := d.Set.Over(plain)
	g := newGrid(1, 1, 1, 1, 1).row("group_id", 0, 0, 1, 1).row("scores", 1, 0, 3, 0).row("advantages", .5, -.5, 1.5, -1.5)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, open).Verdict)
	g.row("advantages", .5, -.5, 1.5, -1)
	require.Equal(t, check.Fail, Judge(Find("advantage/group"), g.Batch, plain).Verdict)
	o := Judge(Find("advantage/group"), g.Batch, open)
	require.Equal(t, check.Undetermined, o.Verdict)
	require.Contains(t, o.Lacking(), "normalize_enable=true: rewards are those of a reward model")
	require.Empty(t, open.Beyond(convention.Gradient))
}
