package golden_test

import (
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// TestTRLMinibatch runs the losses of TRL's PPOTrainer on the rollout of the same batch, recomputed here, so that an error of
// any step before shows in the loss. The advantages carry the float32 leak of the whitening.
func TestTRLMinibatch(t *testing.T) {
	compared := 0
	for _, e := range load(t, "gae") {
		if e.Function != "PPOTrainer.train (minibatch statements)" {
			continue
		}
		c := trlRecompute(t, e)
		lp, old := e.input(t, "new_logprobs").Data, e.input(t, "logprobs").Data
		clip, _ := e.num(t, "cliprange")
		clipValue, _ := e.num(t, "cliprange_value")
		coef, _ := e.num(t, "vf_coef")

		bounds := rl.ClipOptions{Low: clip, High: clip}
		var policy rl.PolicyResult
		require.NoError(t, rl.Policy(&policy, rl.PolicyBatch{Rows: c.rows, Cols: c.cols, LogProbs: lp, Old: old, Adv: c.adv, Mask: c.mask},
			rl.PolicyOptions{Clip: bounds, Agg: rl.AggOptions{Outside: rl.OutsideIgnore}}))
		requireNear(t, e, "pg_loss", []float64{policy.Loss}, e.output(t, "pg_loss").Data, trlWhitened)
		requireNear(t, e, "dloss_dnew_logprobs", policy.DLogp, e.output(t, "dloss_dnew_logprobs").Data, trlWhitened)
		frac, err := rl.MaskedMean(rl.Clipped(nil, policy.Ratio, c.adv, rl.ClipFracBinding, bounds), c.mask, rl.MeanOptions{})
		require.NoError(t, err)
		requireNear(t, e, "pg_clipfrac", []float64{frac}, e.output(t, "pg_clipfrac").Data, float32Leak)

		var value rl.ValueResult
		v := rl.Remask(nil, e.input(t, "vpred").Data, c.p1)
		atRollout := rl.Remask(nil, e.input(t, "values").Data, c.p1)
		require.NoError(t, rl.ValueLoss(&value, v, atRollout, c.ret, c.p1, c.rows, c.cols, rl.ValueOptions{Clip: clipValue}))
		requireNear(t, e, "vf_loss", []float64{value.Loss}, e.output(t, "vf_loss").Data, trlWhitened)
		for i := range value.DValue {
			value.DValue[i] *= coef
		}
		requireNear(t, e, "dloss_dvpred", value.DValue, e.output(t, "dloss_dvpred").Data, trlWhitened)
		frac, err = rl.MaskedMean(rl.ValueClipped(nil, v, atRollout, c.ret, clipValue), c.p1, rl.MeanOptions{})
		require.NoError(t, err)
		requireNear(t, e, "vf_clipfrac", []float64{frac}, e.output(t, "vf_clipfrac").Data, float32Leak)
		requireNear(t, e, "loss", []float64{policy.Loss + coef*value.Loss}, e.output(t, "loss").Data, trlWhitened)

		half := make([]float64, len(lp)) // ½Δ², whose mean counts padding, where Δ = 0
		for i := range half {
			if c.mask[i] {
				half[i] = .5 * (lp[i] - old[i]) * (lp[i] - old[i])
			}
		}
		approx, err := rl.MaskedMean(half, nil, rl.MeanOptions{})
		require.NoError(t, err)
		requireNear(t, e, "approxkl", []float64{approx}, e.output(t, "approxkl").Data, exact)
		compared++
	}
	require.Equal(t, 9, compared)
}
