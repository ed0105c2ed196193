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

// A score stands at the last token of a response, which may be rejected behind it.
func TestScoresOfRejectedTokens(t *testing.T) {
	s := set(t, "kl.place=none eos.rule=none reward.clip=none rewards.whiten=no score.index=last_response")
	g := newGrid(3, 2, 3).row("scores", 2, 1).token("token_rewards", 0, 0, 2, 0, 0, 1)
	fails(t, "reward/token", g.Batch, s)
	tokens := s.WithFact("algorithm.rollout_correction.rollout_rs", "token_k2")
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g.Batch, tokens).Verdict)
	fails(t, "reward/token", g.Batch, s.WithFact("algorithm.rollout_correction.rollout_rs", "seq_mean_k2"))
	g.Tensors["token_rewards"].Data[1] = 0.5
	fails(t, "reward/token", g.Batch, tokens)
}
