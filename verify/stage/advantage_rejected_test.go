package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// verl sums the rewards of all cells of a row, those of rejected tokens, too; elsewhere the mask says which count. NaN counts nowhere.
func TestRewardsOfRejectedTokens(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none kl.place=token_reward")
	g := newGrid(2, 2, 1).row("group_id", 0, 0).token("token_rewards", -0.25, 1, -0.5, -0.25)
	all := func() { g.row("advantages", 0.75, -0.75) }      // 0.75 and −0.75: mean 0
	masked := func() { g.row("advantages", 0.625, -0.625) } // 0.75 and −0.5: mean 0.125
	all()
	fails(t, "advantage/group", g.Batch, s)
	masked()
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	g.Meta.Framework = "verl"
	fails(t, "advantage/group", g.Batch, s)
	all()
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	g.token("token_rewards", -0.25, 1, -0.5, math.NaN())
	masked()
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
}
