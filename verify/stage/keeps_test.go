package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

const plainPPO = "ratio.level=token ratio.log_clamp=none ratio.old=stored loss.kind=ppo clip.low=0.2 clip.high=0.2 clip.dual=none clip.delta=none tis.level=none kl.place=none kl.beta=0 "

// Rows with A < 0 whose mean of gen − lp is above the limit leave the policy term; rows with A ≥ 0 stay, and NaN of a token that the
// engine did not score counts as no distance.
func TestOffPolicyRows(t *testing.T) {
	rows := func(gen ...float64) grid {
		return newGrid(2, 2, 2, 2).token("logp_new", -1, -1, -1, -1, -1, -1).token("logp_old", -1, -1, -1, -1, -1, -1).
			token("logp_gen", gen...).row("advantages", -2, -2, 2)
	}
	s := set(t, plainPPO+"loss.off_policy_max=0.1")
	g := rows(-0.5, -1, -1.5, -0.9, 0, 0).token("token_loss", 0, 0, 2, 2, -2, -2) // means ¼, −¼ + …, 1
	require.Equal(t, check.Pass, Judge(Find("token_loss/policy"), g.Batch, s).Verdict)
	fails(t, "token_loss/policy", g.Batch, set(t, plainPPO))
	fails(t, "token_loss/policy", rows(-0.5, -1, -1.5, -0.9, 0, 0).token("token_loss", 2, 2, 2, 2, -2, -2).Batch, s)

	holes := rows(math.NaN(), -0.85, -1, -1, 0, 0).token("token_loss", 2, 2, 2, 2, -2, -2) // 0.15 over two tokens
	require.Equal(t, check.Pass, Judge(Find("token_loss/policy"), holes.Batch, s).Verdict)

	// Without an engine the distance is that from the start of the update.
	old := newGrid(2, 2).token("logp_new", -1, -1).token("logp_old", -0.8, -0.8).row("advantages", -2).token("token_loss", 0, 0)
	require.Equal(t, check.Pass, Judge(Find("token_loss/policy"), old.Batch, s).Verdict)
}

// The policy term keeps the tokens from the quantile of the entropy on.
func TestHighEntropyTokens(t *testing.T) {
	s := set(t, plainPPO+"loss.top_entropy=0.5")
	g := newGrid(4, 4).token("logp_new", -1, -1, -1, -1).token("logp_old", -1, -1, -1, -1).row("advantages", 1).
		token("entropy", 0.1, 0.9, 0.7, 0.2).token("token_loss", 0, -1, -1, 0)
	require.Equal(t, check.Pass, Judge(Find("token_loss/policy"), g.Batch, s).Verdict)
	fails(t, "token_loss/policy", g.token("token_loss", -1, 0, 0, -1).Batch, s)
	lacks(t, "token_loss/policy", g.Without("entropy"), s, "entropy")
}

// Of entropies that are equal to the quantile all tokens are kept: between two equal numbers it is that number in every arithmetic.
func TestHighEntropyTies(t *testing.T) {
	s := set(t, plainPPO+"loss.top_entropy=0.7")
	g := newGrid(4, 4).token("logp_new", -1, -1, -1, -1).token("logp_old", -1, -1, -1, -1).row("advantages", 1).
		token("entropy", 0.5, 0.5, 0.5, 0.25).token("token_loss", -1, -1, -1, 0)
	o := Judge(Find("token_loss/policy"), g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict)
	require.Zero(t, o.Tally.Undetermined)
	fails(t, "token_loss/policy", g.token("token_loss", -1, 0, -1, 0).Batch, s)
}

// Where the rank of the quantile is whole but for the rounding of q, it may be one place above the entropy of that rank, whose token is then left out.
func TestHighEntropyAtAWholeRank(t *testing.T) {
	s := set(t, plainPPO+"loss.top_entropy=0.2")
	h, kept, left := make([]float64, 36), make([]float64, 36), make([]float64, 36)
	for i := range h { // the rank of 1 − 0.2 is 28
		if h[i] = float64(float32(i) / 16); i >= 28 {
			kept[i], left[i] = -1, -1
		}
	}
	left[28] = 0
	g := newGrid(36, 36).token("logp_new", make([]float64, 36)...).token("logp_old", make([]float64, 36)...).row("advantages", 1).token("entropy", h...)
	require.Equal(t, check.Pass, Judge(Find("token_loss/policy"), g.token("token_loss", kept...).Batch, s).Verdict)
	require.Equal(t, check.Pass, Judge(Find("token_loss/policy"), g.token("token_loss", left...).Batch, s).Verdict)
	left[29] = 0
	fails(t, "token_loss/policy", g.token("token_loss", left...).Batch, s)
	kept[27] = -1
	fails(t, "token_loss/policy", g.token("token_loss", kept...).Batch, s)
}

// The rewards of greedy responses that were not dumped are one number for each prompt.
func TestSolvedBaselines(t *testing.T) {
	s := set(t, "adv.kind=remax")
	g := newGrid(2, 2, 2).token("token_rewards", 1, 2, 0, 1).row("group_id", 0, 0).token("advantages", 2.5, 1.5, .5, .5)
	require.Equal(t, check.Pass, Judge(Find("advantage/return"), g.Batch, s).Verdict)
	fails(t, "advantage/return", g.token("advantages", 2.5, 1.5, .75, .75).Batch, s)
	lacks(t, "advantage/return", g.row("group_id", 0, 1).Batch, s, "reward_baselines")
}
