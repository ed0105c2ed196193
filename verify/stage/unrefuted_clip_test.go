package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// Advantages that a clip behind the baseline holds have its form; one that is beyond it has not.
func TestClipBehindTheBaseline(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none reward.clip=none")
	judge := func(adv ...float64) *Outcome {
		g := newGrid(1, 1, 1, 1, 1, 1, 1).row("group_id", 1, 1, 2, 2, 3, 3).row("scores", 3, 0, 2.5, 0, 1, 0).row("advantages", adv...)
		return Judge(Find("advantage/group"), g.Batch, s)
	}
	o := judge(1, -1, 1, -1, .5, -.5)
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, []string{"reward.clip_range"}, Unrefuted(o))
	require.Equal(t, []string{"reward.clip_range"}, Unrefuted(judge(2, -2, 2, -2, 1, -1)), "leave one out")
	require.Empty(t, Unrefuted(judge(1, -1, 1, -1, .25, -.25)), "another number where nothing holds it")
	require.Empty(t, Unrefuted(judge(1.5, -1.5, 1, -1.25, .5, -.5)))
}
