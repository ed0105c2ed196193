package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rows of negative advantage that left the old policy by more than a limit are out of the loss (TRL 1.16 get_off_policy_mask): the limit lies between
// those that are kept and those that are not.
func TestOffPolicyLimitIsSolved(t *testing.T) {
	const limit = 0.031
	seen := 0
	for seed := range uint64(6) {
		left := false
		steps := stepsOf(seed, false, func(_, d, adv, _, _ float64) float64 { return max(-adv*math.Exp(d), -adv*clip(d, 0.0625, 0.177)) })
		for _, s := range steps {
			delete(s.B.Tensors, "logp_gen")
			lp, old, adv, loss := s.B.Token("logp_new"), s.B.Token("logp_old"), s.B.Token("advantages"), s.B.Token("token_loss")
			for r, mean := range rowMeans(s.B, s.B.Mask, old, lp) {
				for i := r * s.B.Cols; i < (r+1)*s.B.Cols; i++ {
					if adv[i] < 0 && mean > limit {
						loss[i], left = 0, true
					}
				}
			}
		}
		fits := Solve(Find("token_loss/policy"), steps)
		require.NotEmpty(t, fits, "seed %d", seed)
		got := texts(fits[0].Changes)
		require.Equal(t, []string{"ppo", "0.0625", "0.177"}, []string{got["loss.kind"], got["clip.low"], got["clip.high"]})
		require.Equal(t, left, got["loss.off_policy_max"] != "", "seed %d: %v", seed, got)
		if left {
			seen++
		}
	}
	require.Greater(t, seen, 3)
}

// Where most rows are clipped, their policy term is one number of a row all the same, and the KL term is what is left.
func TestKLBesideClippedRowsIsSolved(t *testing.T) {
	for seed := range uint64(3) {
		steps := stepsOf(seed, true, func(_, _, _, kl, _ float64) float64 { return 0.0213 * kl })
		for _, s := range steps {
			delete(s.B.Tensors, "logp_gen")
			lp, old, adv, loss := s.B.Token("logp_new"), s.B.Token("logp_old"), s.B.Token("advantages"), s.B.Token("token_loss")
			for r, mean := range rowMeans(s.B, s.B.Mask, lp, old) {
				for i := r * s.B.Cols; i < (r+1)*s.B.Cols; i++ {
					loss[i] = float64(float32(loss[i] + max(-adv[i]*math.Exp(mean), -adv[i]*clip(mean, 0.0011, 0.0023))))
				}
			}
		}
		fits := Solve(Find("token_loss/policy"), steps)
		require.NotEmpty(t, fits, "seed %d", seed)
		got := texts(fits[0].Changes)
		require.Equal(t, []string{"0.0213", "seq_mean", "0.0011", "0.0023"}, []string{got["kl.beta"], got["ratio.level"], got["clip.low"], got["clip.high"]}, "%v", got)
	}
}
